//! Before a cluster: reads that were lost with a connection, and what is asked for once more.

use std::collections::BTreeSet;

use super::cluster::{MILLISECOND, Nodes, bulk, clustered, moved, thirds};
use super::*;
use crate::values::Random;

/// A core before a cluster, a client of it, and two keys of one slot that the first node has.
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
    // What comes meanwhile does not overtake it.
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
        // It might see what was written after it.
        (&[&["GET", &key], &["SET", &key, "1"]], &[]),
        (&[&["GET", &key], &["GET", &other], &["SET", &other, "1"]], &[]),
        // What stands before it is done with.
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
        // No time passes: only so much is saved up, and each request adds a tenth.
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

/// Beside lists that nodes keep: whatever is lost and whatever moves, a read tells of all that its client knows to have been written
/// before it, and of nothing that it wrote later.
#[test]
fn reads_that_are_asked_for_again_stay_in_their_order() {
    let mut all_retries = 0;
    for seed in 0..25 {
        let random = &mut Random::new(seed);
        let mut rig = clustered(2, |settings| settings.retries = Mode::On);
        let names: Vec<String> =
            (0..3).flat_map(|slot| ["a", "b"].map(|name| format!("{{{slot}}}{name}"))).collect();
        let slots: Vec<u16> = names.iter().map(|name| slot_of(name.as_bytes())).collect();
        let mut cluster = Nodes::new(slots.iter().map(|slot| (*slot, thirds(*slot))).collect());
        let clients = [rig.client(0), rig.client(0), rig.client(1)];
        // By client, in order: key, and the value that is appended.
        let mut sent: BTreeMap<usize, Vec<(String, Option<String>)>> = BTreeMap::new();
        let mut count = 0;
        for step in 0..2_500 {
            match if step < 1_500 { random.below(12) } else { 11 } {
                0..=2 if count < 200 => {
                    let client = *random.pick(&clients);
                    for _ in 0..random.between(1, 5) {
                        let (name, value) = (random.pick(&names).clone(), format!("c{client}.{count}"));
                        let is_read = random.below(3) > 0;
                        if is_read {
                            rig.send(client, &[&["GET", &name]]);
                        } else {
                            rig.send(client, &[&["APPEND", &name, &value]]);
                        }
                        sent.entry(client).or_default().push((name, (!is_read).then_some(value)));
                        count += 1;
                    }
                }
                3 if step % 8 == 0 => cluster.move_on(*random.pick(&slots), random),
                4 if random.below(6) == 0 => {
                    let owners = cluster.owners.clone();
                    rig.publish(|slot| Some(owners.get(&slot).copied().unwrap_or(thirds(slot))));
                }
                5 => rig.wait(MILLISECOND),
                choice => {
                    let links: BTreeSet<_> =
                        rig.at_stores.iter().map(|sent| (sent.shard, sent.link)).collect();
                    let Some(link) = links.iter().nth(random.index(links.len().max(1))).copied() else {
                        rig.wait(MILLISECOND);
                        continue;
                    };
                    let at = rig.at_stores.iter().position(|sent| (sent.shard, sent.link) == link);
                    if choice == 6 && random.below(4) == 0 {
                        // The node has done some of it, and the rest not.
                        let owed: Vec<Sent> = rig
                            .at_stores
                            .iter()
                            .filter(|sent| (sent.shard, sent.link) == link)
                            .cloned()
                            .collect();
                        for done in owed.iter().take(random.index(owed.len() + 1)) {
                            cluster.carry_out(done);
                        }
                        cluster.forget(link);
                        rig.lose(&owed[0].frame);
                        continue;
                    }
                    let next = rig.at_stores.remove(at.expect("there is one"));
                    let reply = cluster.carry_out(&next);
                    rig.bytes(&next, reply.as_bytes());
                }
            }
        }
        all_retries += retries(&rig)[0];
        for client in clients {
            let told = rig.told(client);
            let replies = if told.is_empty() { Vec::new() } else { frames_of(told.as_bytes()) };
            let asked = sent.remove(&client).unwrap_or_default();
            assert_eq!(replies.len(), asked.len(), "seed {seed}: each is answered once");
            for (place, ((name, value), reply)) in asked.iter().zip(&replies).enumerate() {
                assert!(
                    !reply.starts_with('-')
                        || reply.contains("=redirects")
                        || reply.contains("=connection-lost"),
                    "seed {seed}: {reply}"
                );
                if value.is_some() || reply.starts_with('-') {
                    continue;
                }
                let seen: BTreeSet<&str> = reply.split("\r\n").nth(1).unwrap_or("").split(',').collect();
                for (other, ((written, value), reply)) in asked.iter().zip(&replies).enumerate() {
                    let Some(value) = value.as_ref().filter(|_| written == name) else { continue };
                    let is_seen = seen.contains(value.as_str());
                    if other < place && reply.starts_with(':') {
                        assert!(is_seen, "seed {seed}: {value} was written before it was asked");
                    }
                    assert!(other < place || !is_seen, "seed {seed}: {value} was written later");
                }
            }
        }
    }
    assert!(all_retries > 40, "{all_retries}");
}
