//! Tests of retries: reads that were lost with the connection to a node of a cluster.

use super::cluster::{MILLISECOND, bulk, clustered, moved};
use super::*;

/// Returns a test rig (shards with scripted stores and clients) with one core in front of a cluster, with this mode of
/// retries; a client; and two keys of one slot of the first node.
fn before_a_node(mode: Mode) -> (Rig, usize, [String; 2]) {
    let mut rig = clustered(1, |settings| settings.retries = mode);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    let other = format!("{{{key}}}other");
    (rig, client, [key, other])
}

fn retries(rig: &Rig) -> [u64; 3] {
    let counters = rig.shards[0].counters();
    [Counter::RetriesSent, Counter::RetriesOverBudget, Counter::RetriesInShadow]
        .map(|each| counters.get(each))
}

#[test]
fn a_read_that_was_lost_is_asked_for_again_and_once() {
    let (mut rig, client, [key, _]) = before_a_node(Mode::On);
    rig.send(client, &[&["GET", &key]]);
    rig.lose("GET");
    rig.wait(MILLISECOND);
    assert_eq!(rig.told(client), "", "nobody hears of it");
    assert_eq!(rig.at_nodes(), ["0 GET"]);
    // A request that arrives during the retry does not overtake it.
    rig.send(client, &[&["SET", &key, "2"]]);
    assert_eq!(rig.at_nodes(), ["0 GET"]);
    rig.answer_next(&bulk("1"));
    rig.wait(MILLISECOND);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(client), format!("{}+OK\r\n", bulk("1")));
    rig.send(client, &[&["GET", &key]]);
    rig.lose("GET");
    rig.wait(MILLISECOND);
    rig.lose("GET");
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE ") && told.contains(" reason=connection-lost "), "{told}");
    assert_eq!(retries(&rig), [2, 0, 0]);
}

#[test]
fn what_changes_something_or_has_that_behind_it_is_not() {
    let (mut rig, client, [key, other]) = before_a_node(Mode::On);
    let cases: [(&[&[&str]], &[&str]); 8] = [
        (&[&["SET", &key, "1"]], &[]),
        (&[&["GETEX", &key, "EX", "9"]], &[]),
        (&[&["GETDEL", &key]], &[]),
        (&[&["EVAL_RO", "return 1", "1", &key]], &[]),
        // A retried read might see the write that was sent after it.
        (&[&["GET", &key], &["SET", &key, "1"]], &[]),
        (&[&["GET", &key], &["GET", &other], &["SET", &other, "1"]], &[]),
        // A request before the read does not prevent its retry.
        (&[&["SET", &key, "1"], &["GET", &key]], &["0 GET"]),
        (&[&["MULTI"], &["GET", &key], &["EXEC"]], &[]),
    ];
    for (requests, again) in cases {
        rig.send(client, requests);
        let first = rig.at_stores[0].frame.clone();
        rig.lose(&first);
        rig.wait(MILLISECOND);
        assert_eq!(rig.at_nodes(), again, "{requests:?}");
        again.iter().for_each(|_| rig.answer_next(&bulk("1")));
        let told = rig.told(client);
        let lost = told.matches("reason=connection-lost").count();
        let expected = if requests[0][0] == "MULTI" { 1 } else { requests.len() - again.len() };
        assert_eq!(lost, expected, "{requests:?}: {told}");
    }
}

#[test]
fn another_clients_write_does_not_matter_and_the_new_owner_is_asked() {
    let (mut rig, client, [key, _]) = before_a_node(Mode::On);
    let other = rig.client(0);
    rig.send(client, &[&["GET", &key]]);
    rig.send(other, &[&["SET", &key, "2"]]);
    rig.lose("GET");
    rig.wait(MILLISECOND);
    assert_eq!(rig.at_nodes(), ["0 GET"]);
    assert!(rig.told(other).contains("reason=connection-lost"));
    rig.answer_next(&moved(&key, 2));
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["2 GET"]);
    rig.answer_next(&bulk("2"));
    assert_eq!(rig.told(client), bulk("2"));
}

#[test]
fn there_is_a_budget_and_a_switch() {
    let (mut rig, client, [key, _]) = before_a_node(Mode::On);
    for round in 0..40 {
        rig.send(client, &[&["GET", &key]]);
        rig.lose("GET");
        // No time passes, so the budget consists of its reserve, and of a tenth of a retry per request.
        rig.turns();
        let was_lost = rig.told(client).contains("reason=connection-lost");
        assert_eq!(was_lost, retries(&rig)[1] > 0, "round {round}");
        if was_lost {
            break;
        }
        rig.wait(Duration::ZERO);
        while !rig.at_stores.is_empty() {
            rig.answer_next(&bulk("1"));
        }
    }
    let [sent, over, _] = retries(&rig);
    assert!((10..=13).contains(&sent) && over == 1, "{sent} {over}");

    for (mode, expected) in [(Mode::Off, [0, 0, 0]), (Mode::Shadow, [0, 0, 1])] {
        let (mut rig, client, [key, _]) = before_a_node(mode);
        rig.send(client, &[&["GET", &key]]);
        rig.lose("GET");
        assert!(rig.told(client).contains("reason=connection-lost"), "{mode:?}");
        assert_eq!(retries(&rig), expected);
    }
}

#[test]
fn a_store_that_was_silent_for_too_long_is_not_asked_again() {
    let (mut rig, client, [key, _]) = before_a_node(Mode::On);
    rig.send(client, &[&["GET", &key]]);
    rig.wait(Duration::from_secs(31));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    assert_eq!((rig.at_nodes().len(), retries(&rig)), (0, [0, 0, 0]));
}
