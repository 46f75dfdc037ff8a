//! Tests of separate connections for expensive requests: they must not let any request of a client overtake
//! another.

use super::*;

/// Returns a test rig (shards with scripted stores and clients) and a client whose `LRANGE` is known to be
/// expensive, so that it is sent over one of `heavy_links` connections for expensive requests.
fn rig_with_heavy_ranges(shards: u16, heavy_links: u16) -> (Rig, usize) {
    let mut rig = Rig::with(shards, 1, |settings| {
        settings.heavy_links = heavy_links;
        settings.links_per_backend = 2;
    });
    let client = rig.client(0);
    rig.send(client, &[&["LRANGE", "l", "0", "-1"]]);
    rig.answer_next(&format!("*20000\r\n{}", ":1\r\n".repeat(20_000)));
    rig.told(client);
    (rig, client)
}

fn links(rig: &Rig) -> Vec<(usize, ConnectionId)> {
    rig.at_stores.iter().map(|sent| (sent.shard, sent.link)).collect()
}

#[test]
fn what_costs_much_has_a_connection_of_its_own() {
    let (mut rig, client) = rig_with_heavy_ranges(1, 1);
    let other = rig.client(0);
    rig.send(client, &[&["LRANGE", "l", "0", "-1"]]);
    rig.send(other, &[&["GET", "l"], &["SET", "l", "1"]]);
    let links = links(&rig);
    assert_ne!(links[0], links[1], "though the key is the same");
    assert_eq!(links[1], links[2]);
    assert_eq!(
        rig.shards[0].counters().get(Counter::RequestsHeavy),
        2,
        "what the first one cost nobody knew"
    );
    rig.answer_first("GET", "$1\r\n1\r\n");
    assert_eq!(rig.told(other), "$1\r\n1\r\n", "it does not wait for the range");
}

#[test]
fn nothing_of_one_client_overtakes() {
    let (mut rig, client) = rig_with_heavy_ranges(2, 1);
    let key = rig.key(1, 0);
    rig.send(client, &[&["RPUSH", &key, "a"], &["LRANGE", &key, "0", "-1"], &["RPUSH", &key, "b"]]);
    assert_eq!(rig.words_at_stores(), ["RPUSH"], "the range would overtake it on another connection");
    rig.answer_first("RPUSH", ":1\r\n");
    assert_eq!(rig.words_at_stores(), ["LRANGE", "RPUSH"]);
    let both = links(&rig);
    assert_eq!(both[0], both[1], "what follows takes the same connection");
    rig.answer_first("LRANGE", "*1\r\n$1\r\na\r\n");
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["RPUSH"], "back to the usual connection when that is answered");
    rig.answer_first("RPUSH", ":2\r\n");
    assert_eq!(rig.words_at_stores(), ["GET"]);
    assert_ne!(links(&rig)[0], both[0]);
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.told(client), ":1\r\n*1\r\n$1\r\na\r\n:2\r\n$-1\r\n");
    assert_eq!(rig.owed(), 0);
}

#[test]
fn keys_that_go_together_go_together_on_either_track() {
    let (mut rig, client) = rig_with_heavy_ranges(1, 2);
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let mut found = BTreeMap::new();
    for key in &keys {
        rig.send(client, &[&["LRANGE", key, "0", "-1"]]);
        let heavy = links(&rig)[0];
        rig.answer_next("*0\r\n");
        rig.send(client, &[&["GET", key]]);
        let usual = links(&rig)[0];
        rig.answer_next("$-1\r\n");
        assert_eq!(*found.entry(usual).or_insert(heavy), heavy);
        rig.send(client, &[&["LRANGE", "l", "0", "-1"]]);
        rig.answer_next(&format!("*20000\r\n{}", ":1\r\n".repeat(20_000)));
    }
    assert_eq!(found.len(), 2);
}

#[test]
fn what_is_without_a_home_takes_the_track_that_it_costs() {
    let mut rig = Rig::with(2, 2, |settings| settings.heavy_links = 1);
    let client = rig.client(0);
    rig.send(client, &[&["KEYS", "*"]]);
    assert_eq!(rig.words_at_stores(), ["KEYS", "KEYS"]);
    assert_eq!(rig.shards[0].counters().get(Counter::RequestsHeavy), 2);
    rig.answer_next("*0\r\n");
    rig.answer_next("*0\r\n");
    assert_eq!(rig.told(client), "*0\r\n");
}

#[test]
fn a_script_that_keeps_its_store_busy_is_expensive_before_its_tenant_is_billed_for_that() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.heavy_links = 1;
        settings.links_per_backend = 1;
    });
    let client = rig.client(0);
    let mut run = |took: Duration| {
        let before = rig.shards[0].counters().get(Counter::RequestsHeavy);
        rig.send(client, &[&["EVAL", "return 1", "0"]]);
        rig.wait(took);
        rig.answer_next(":1\r\n");
        rig.shards[0].counters().get(Counter::RequestsHeavy) > before
    };
    let [long, short] = [Duration::from_millis(12), Duration::ZERO];
    // Twenty times 12 ms are within the leeway of half a second.
    assert!((0..20).all(|_| run(long)));
    let until_cheap = (0..100).take_while(|_| run(short)).count();
    assert!((1..40).contains(&until_cheap), "{until_cheap}");
    assert!((0..20).all(|_| !run(short)), "a script that does little goes with the others");
    assert!((0..20).filter(|_| run(long)).count() >= 15);
}

#[test]
fn without_such_connections_all_travel_together() {
    let (mut rig, client) = rig_with_heavy_ranges(1, 0);
    rig.send(client, &[&["GET", "l"], &["LRANGE", "l", "0", "-1"], &["GET", "l"]]);
    let links = links(&rig);
    assert!(links.len() == 3 && links.iter().all(|link| *link == links[0]), "{links:?}");
    assert_eq!(rig.shards[0].counters().get(Counter::RequestsHeavy), 0);
}
