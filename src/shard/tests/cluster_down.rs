//! Tests of nodes of a cluster that cannot carry out a request at first (CLUSTERDOWN, TRYAGAIN), and can a
//! little later.

use super::cluster::{MILLISECOND, clustered, moved, thirds};
use super::*;

const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";

/// Returns a test rig (shards with scripted stores and clients) with one core in front of a cluster, a client of it,
/// and a key of the first node.
fn before_a_node() -> (Rig, usize, String) {
    let mut rig = clustered(1, |settings| settings.overload.shed = Mode::On);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    (rig, client, key)
}

impl Rig {
    /// Lets time pass in steps of 1 ms, and answers every request at the nodes with `reply` after each step.
    /// Returns the number of requests that were answered.
    fn answered_for(&mut self, duration: Duration, reply: &str) -> usize {
        let (end, mut asked) = (self.now.monotonic.after(duration), 0);
        while self.now.monotonic < end {
            while !self.at_stores.is_empty() {
                self.answer_next(reply);
                asked += 1;
            }
            self.wait(MILLISECOND);
        }
        asked
    }

    fn asked_again(&self) -> [u64; 2] {
        [Counter::RefusedClusterDown, Counter::RefusedTryAgain].map(|counter| self.counted(counter))
    }
}

#[test]
fn what_a_node_that_is_down_refuses_is_asked_again_until_it_is_well() {
    for words in [vec!["SET", "KEY", "1"], vec!["GET", "KEY"], vec!["MGET", "KEY", "KEY"]] {
        let (mut rig, client, key) = before_a_node();
        let words: Vec<&str> =
            words.into_iter().map(|word| if word == "KEY" { &key } else { word }).collect();
        rig.send(client, &[&words]);
        rig.answer_next(DOWN);
        let node = rig.cluster.map().node(BackendId(0)).map(|node| node.key).expect("it is known");
        let doubt = rig.shards[0].poll_doubt().map(|doubt| doubt.reason);
        assert_eq!(doubt, Some(crate::routing::cluster::Reason::ClusterDown(node)), "somebody should look");
        assert_eq!((rig.at_nodes().len(), rig.told(client).as_str()), (0, ""), "it waits");
        // The pauses between attempts are 5, 10, 20, 40, 50 and 50 ms.
        let asked = rig.answered_for(200 * MILLISECOND, DOWN);
        assert!((5..=6).contains(&asked), "{asked}");
        rig.wait(51 * MILLISECOND);
        rig.answer_next("$4\r\nwell\r\n");
        assert_eq!(rig.told(client), "$4\r\nwell\r\n");
        assert_eq!(rig.asked_again(), [asked as u64 + 1, 0]);
        // Nothing of the retry remains: the next request is sent at once.
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.at_nodes(), ["0 GET"]);
    }
}

#[test]
fn a_node_that_stays_down_is_asked_for_a_second_and_then_its_words_are_told() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["SET", &key, "1"]]);
    let asked = rig.answered_for(900 * MILLISECOND, DOWN);
    assert_eq!(rig.told(client), "");
    assert!((18..=24).contains(&asked), "{asked}");
    rig.answered_for(150 * MILLISECOND, DOWN);
    assert_eq!(rig.told(client), DOWN);
    assert_eq!(rig.answered_for(100 * MILLISECOND, DOWN), 0);
}

#[test]
fn a_deadline_leaves_no_more_time_than_it_says() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "100"]]);
    assert_eq!(rig.told(client), "+OK\r\n");
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.answered_for(60 * MILLISECOND, DOWN);
    assert_eq!(rig.told(client), "");
    rig.answered_for(41 * MILLISECOND, DOWN);
    assert_eq!(rig.told(client), DOWN, "in time");
    // The node recovers before the next deadline; until then the pauses go on as before.
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.answered_for(60 * MILLISECOND, DOWN);
    rig.answered_for(35 * MILLISECOND, "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
}

#[test]
fn what_comes_behind_for_the_same_key_waits_and_other_slots_do_not() {
    let (mut rig, client, key) = before_a_node();
    let other = rig.key(0, 2);
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.answer_next(DOWN);
    rig.send(client, &[&["SET", &key, "2"], &["GET", &key], &["GET", &other]]);
    assert_eq!(rig.at_nodes(), ["2 GET"]);
    rig.answer_next("$-1\r\n");
    rig.wait(6 * MILLISECOND);
    assert!(rig.frames("SET")[0].frame.ends_with("$1\r\n1\r\n"));
    assert_eq!(rig.at_nodes(), ["0 SET"]);
    rig.answer_next(DOWN);
    rig.wait(11 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["0 SET"], "still the first one");
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.at_nodes(), ["0 SET", "0 GET"]);
    assert!(rig.frames("SET")[0].frame.ends_with("$1\r\n2\r\n"));
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!(rig.told(client), "+OK\r\n+OK\r\n$1\r\n2\r\n$-1\r\n");
}

#[test]
fn of_two_writes_on_one_key_the_first_is_not_made_behind_the_second() {
    let (mut rig, client, key) = before_a_node();
    // The node recovers between the two requests.
    rig.send(client, &[&["SET", &key, "1"], &["SET", &key, "2"]]);
    rig.answer_next(DOWN);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.answered_for(100 * MILLISECOND, "+OK\r\n"), 0);
    assert_eq!(rig.told(client), format!("{DOWN}+OK\r\n"));
    // Both requests are refused, and both are sent again, one by one.
    rig.send(client, &[&["APPEND", &key, "1"], &["APPEND", &key, "2"]]);
    rig.answer_next(DOWN);
    rig.answer_next(DOWN);
    rig.wait(11 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["0 APPEND"], "one asks for both");
    rig.answer_next(":1\r\n");
    assert_eq!(rig.at_nodes(), ["0 APPEND"]);
    rig.answer_next(":2\r\n");
    assert_eq!(rig.told(client), ":1\r\n:2\r\n");
    // A third request is in flight while the first is tried again; one of another connection does not disturb
    // the order.
    let stranger = rig.client(0);
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.send(stranger, &[&["SET", &key, "2"]]);
    rig.answer_next(DOWN);
    rig.answer_next("+OK\r\n");
    rig.answered_for(10 * MILLISECOND, "+OK\r\n");
    assert_eq!((rig.told(client).as_str(), rig.told(stranger).as_str()), ("+OK\r\n", "+OK\r\n"));
}

#[test]
fn a_request_that_was_held_goes_where_its_slot_has_gone_meanwhile() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.answer_next(DOWN);
    // A replica has taken over the slots.
    rig.publish(|slot| Some(thirds(slot).max(1)));
    rig.wait(6 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["1 SET"]);
    rig.answer_next(&moved(&key, 2));
    assert_eq!(rig.at_nodes(), ["2 SET"]);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
}

#[test]
fn a_block_of_which_a_step_was_refused_is_asked_again_whole() {
    let (mut rig, client, key) = before_a_node();
    let block: [&[&str]; 4] = [&["MULTI"], &["SET", &key, "1"], &["GET", &key], &["EXEC"]];
    let refused = ["+OK\r\n", DOWN, DOWN, "-EXECABORT Transaction discarded because of previous errors.\r\n"];
    rig.send(client, &block);
    refused.iter().for_each(|reply| rig.answer_next(reply));
    assert_eq!(rig.at_nodes(), [""; 0]);
    rig.wait(6 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["0 MULTI", "0 SET", "0 GET", "0 EXEC"]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("*2\r\n+OK\r\n$1\r\n1\r\n"));
    // The client of a transaction gets the node's error when the time for retries is over.
    rig.send(client, &block);
    for _ in 0..1_100 {
        if !rig.at_stores.is_empty() {
            refused.iter().for_each(|reply| rig.answer_next(reply));
        }
        rig.wait(MILLISECOND);
    }
    let told = rig.told(client);
    let reason = "-EXECABORT Transaction discarded because of: CLUSTERDOWN The cluster is down\r\n";
    assert!(told.ends_with(reason), "{told}");
}

#[test]
fn what_a_script_says_of_its_cluster_is_handed_on_at_once() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["EVAL", "code", "1", &key], &["GET", &key]]);
    rig.answer_first("EVAL", DOWN);
    rig.answer_first("GET", "$1\r\n1\r\n");
    assert_eq!(rig.told(client), format!("{DOWN}$1\r\n1\r\n"));
    assert_eq!(rig.asked_again(), [0, 0]);
}

#[test]
fn many_that_wait_for_a_node_do_not_flood_it() {
    let (mut rig, _, key) = before_a_node();
    let clients: Vec<usize> = (0..100).map(|_| rig.client(0)).collect();
    // All requests are for one slot.
    for client in &clients {
        rig.send(*client, &[&["GET", &key]]);
    }
    for _ in &clients {
        rig.answer_next(DOWN);
    }
    let asked = rig.answered_for(500 * MILLISECOND, DOWN);
    assert!((8..=40).contains(&asked), "{asked}");
    // The first reply releases all requests for the slot.
    rig.wait(51 * MILLISECOND);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.at_nodes().len(), 99);
    rig.answered_for(MILLISECOND, "$-1\r\n");
    assert!(clients.iter().all(|client| rig.told(*client) == "$-1\r\n"));
    // The requests are for many slots.
    let keys: Vec<String> = (0..)
        .map(|number| format!("k{number}"))
        .filter(|key| thirds(slot_of(key.as_bytes())) == 0)
        .take(400)
        .collect();
    for (client, keys) in clients.iter().zip(keys.chunks(4)) {
        keys.iter().for_each(|key| rig.send(*client, &[&["GET", key]]));
    }
    assert_eq!(rig.answered_for(MILLISECOND, DOWN), 400);
    let asked = rig.answered_for(500 * MILLISECOND, DOWN);
    assert!((250..=510).contains(&asked), "{asked} in half a second");
    rig.answered_for(60 * MILLISECOND, "$-1\r\n");
    assert!(clients.iter().all(|client| rig.told(*client) == "$-1\r\n".repeat(4)));
}

#[test]
fn what_waits_for_a_node_is_bounded_in_number_and_in_bytes() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(DOWN);
    let clients: Vec<usize> = (0..16_800).map(|_| rig.client(0)).collect();
    clients.iter().for_each(|client| rig.send(*client, &[&["GET", &key]]));
    assert_eq!(rig.counted(Counter::SlotsHeld), 16_383);
    while rig.at_stores.is_empty() {
        rig.wait(MILLISECOND);
    }
    rig.answered_for(50 * MILLISECOND, "$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n");
    let told: String = clients.iter().map(|client| rig.told(*client)).collect();
    let (served, refused) = (told.matches("$-1\r\n").count(), told.matches("-OVERLOADED ").count());
    assert_eq!((served, refused), (16_383, 16_800 - 16_383));
    // The requests are large.
    let value = "x".repeat(1 << 20);
    rig.send(client, &[&["SET", &key, &value]]);
    rig.answer_next(DOWN);
    for number in 1..100 {
        rig.send(clients[number % 2], &[&["SET", &key, &value]]);
    }
    rig.answered_for(1_100 * MILLISECOND, DOWN);
    let told = [client, clients[0], clients[1]].map(|client| rig.told(client)).concat();
    assert_eq!(
        (told.matches(DOWN).count(), told.matches("-OVERLOADED ").count()),
        (63, 37),
        "{}",
        &told[..200]
    );
}

#[test]
fn a_client_that_leaves_leaves_nothing_behind() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["APPEND", &key, "1"], &["APPEND", &key, "2"]]);
    rig.answer_next(DOWN);
    rig.answer_next(DOWN);
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    let other = rig.client(0);
    rig.send(other, &[&["APPEND", &key, "3"]]);
    // The request is carried out as if it had not been refused, and no request of its connection overtakes
    // it.
    let mut values = Vec::new();
    for _ in 0..60 {
        while let Some(sent) = rig.at_stores.first() {
            values.push(sent.frame.split("\r\n").nth(6).unwrap_or_default().to_owned());
            rig.answer_next(":1\r\n");
        }
        rig.wait(MILLISECOND);
    }
    assert_eq!(values, ["1", "2", "3"]);
    assert_eq!((rig.told(other).as_str(), rig.owed()), (":1\r\n", 0));
}

#[test]
fn keys_that_are_here_and_there_are_waited_for_as_long_as_a_second() {
    let (mut rig, client, key) = before_a_node();
    let keys = ["a", "b"].map(|name| format!("{{{key}}}{name}"));
    let others: Vec<usize> = (0..5).map(|_| rig.client(0)).collect();
    let sunion: &[&str] = &["SUNION", &keys[0], &keys[1]];
    rig.send(client, &[sunion]);
    others.iter().for_each(|other| rig.send(*other, &[sunion]));
    rig.answered_for(900 * MILLISECOND, TRY_AGAIN);
    rig.answered_for(51 * MILLISECOND, "*0\r\n");
    assert_eq!(rig.told(client), "*0\r\n");
    assert!(others.iter().all(|other| rig.told(*other) == "*0\r\n"), "however many wait");
    assert!(rig.asked_again()[1] > 6 * 15, "{:?}", rig.asked_again());
    // The owner and the target redirect two new keys back and forth, for as long as a request may be held.
    let asking = format!("-ASK {} 10.0.0.1:7001\r\n", slot_of(key.as_bytes()));
    rig.send(client, &[sunion]);
    for _ in 0..900 {
        while let Some(sent) = rig.at_stores.first() {
            let is_asking = sent.frame.contains("ASKING");
            let reply = match sent.backend.0 {
                0 => &asking,
                _ if is_asking => "+OK\r\n",
                _ => TRY_AGAIN,
            };
            rig.answer_next(reply);
        }
        rig.wait(MILLISECOND);
    }
    assert_eq!(rig.told(client), "");
    rig.answered_for(51 * MILLISECOND, "*0\r\n");
    assert_eq!(rig.told(client), "*0\r\n");
}
