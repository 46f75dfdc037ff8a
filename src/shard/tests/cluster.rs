//! Tests of clusters whose nodes redirect requests (MOVED, ASK) because slots have moved to other owners.

use std::collections::BTreeSet;

use super::*;
use crate::policy::window::Bounds;
use crate::routing::cluster::{Reason, View};
use crate::shard::Doubt;
use crate::values::limits::{LINK_UNANSWERED_BYTES_MAX, SLOTS};
use crate::values::{Random, ServerAddress};

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const NODES: u16 = 3;

pub(super) fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// Returns a test rig (shards with scripted stores and clients) with this many cores in front of a cluster of three
/// nodes, each of which owns a third of the slots. `change` adjusts the settings.
pub(super) fn clustered(shards: u16, change: impl Fn(&mut ShardSettings)) -> Rig {
    let mut rig = Rig::with(shards, NODES, |settings| {
        settings.hot.mode = Mode::Off;
        change(settings);
    });
    rig.publish(|slot| Some(thirds(slot)));
    rig
}

/// Returns the number of the node that owns a slot at first: each of three nodes has a third of the slots.
pub(super) fn thirds(slot: u16) -> u16 {
    (u32::from(slot) * u32::from(NODES) / u32::from(SLOTS)) as u16
}

impl Rig {
    /// Publishes a map of the cluster with these owners of slots (None: no owner) to all cores.
    pub(super) fn publish(&mut self, owner_of: impl Fn(u16) -> Option<u16>) {
        self.publish_of((NODES, None), owner_of);
    }

    /// Publishes a map of a cluster with `nodes` nodes, of which the one with number `failed` has failed, to
    /// all cores. `owner_of` gives the number of each slot's owner.
    pub(super) fn publish_of(
        &mut self,
        (nodes, failed): (u16, Option<u16>),
        owner_of: impl Fn(u16) -> Option<u16>,
    ) {
        let view = self.view((nodes, failed), owner_of);
        self.publish_view(view);
        let map = self.cluster.map();
        assert!((0..nodes).all(|node| {
            map.node(BackendId(node)).is_some_and(|at| at.id.as_str().ends_with(&node.to_string()))
        }));
    }

    /// Publishes the map that follows from a node's view of the cluster to all cores.
    pub(super) fn publish_view(&mut self, view: View) {
        self.cluster.apply(&[view]);
        let map = Arc::clone(self.cluster.map());
        for shard in &mut self.shards {
            shard.handle_slots(Arc::clone(&map), self.now);
        }
        self.turns();
    }

    /// Returns the view of the first node that has not failed, for a cluster in which `owner_of` gives the
    /// owner of each slot.
    pub(super) fn view(
        &self,
        (nodes, failed): (u16, Option<u16>),
        owner_of: impl Fn(u16) -> Option<u16>,
    ) -> View {
        let mut slots: Vec<Vec<String>> = vec![Vec::new(); usize::from(nodes)];
        let all: Vec<u16> = (0..SLOTS).collect();
        for range in all.chunk_by(|one, next| owner_of(*one) == owner_of(*next)) {
            if let (Some(owner), Some(last)) = (owner_of(range[0]), range.last()) {
                slots[usize::from(owner)].push(format!(" {}-{last}", range[0]));
            }
        }
        let teller = usize::from(failed == Some(0));
        let newer = (self.cluster.map().version() + 1) * 10;
        let line = |(node, slots): (usize, Vec<String>)| {
            let (myself, epoch) = (if node == teller { "myself," } else { "" }, newer + node as u64);
            let place = format!("10.0.0.{node}:{}@1", 7000 + node);
            let fail = if failed.map(usize::from) == Some(node) { ",fail" } else { "" };
            format!("{node:040} {place} {myself}master{fail} - 0 0 {epoch} connected{}\n", slots.concat())
        };
        let told: String = slots.into_iter().enumerate().map(line).collect();
        let asked = ServerAddress { host: "10.0.0.0".to_owned(), port: 7000 };
        View::parse(&asked, b"*0\r\n", bulk(&told).as_bytes()).expect("a view")
    }

    /// Returns, for each unanswered request, the number of the node that it was sent to and its command, such
    /// as `0 GET`.
    pub(super) fn at_nodes(&self) -> Vec<String> {
        let word = |sent: &Sent| sent.frame.split("\r\n").nth(2).unwrap_or("").to_owned();
        self.at_stores.iter().map(|sent| format!("{} {}", sent.backend.0, word(sent))).collect()
    }
}

pub(super) fn moved(key: &str, node: u16) -> String {
    format!("-MOVED {} 10.0.0.{node}:{}\r\n", slot_of(key.as_bytes()), 7000 + node)
}

pub(super) fn ask(key: &str, node: u16) -> String {
    format!("-ASK {} 10.0.0.{node}:{}\r\n", slot_of(key.as_bytes()), 7000 + node)
}

/// Returns a test rig (shards with scripted stores and clients) with one core in front of a cluster, a client, and a
/// key of the first node.
fn before_a_node() -> (Rig, usize, String) {
    let mut rig = clustered(1, |_| {});
    let (client, key) = (rig.client(0), rig.key(0, 0));
    (rig, client, key)
}

#[test]
fn what_was_refused_goes_to_the_new_owner_and_so_does_what_comes_later() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["SET", &key, "1"], &["GET", &key], &["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["0 SET", "0 GET", "0 GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next(&moved(&key, 1));
    // A redirected request waits for requests that were sent behind it, which could otherwise be carried out
    // after it.
    rig.send(client, &[&["STRLEN", &key]]);
    assert_eq!(rig.at_nodes(), ["0 GET"]);
    rig.answer_next(&moved(&key, 1));
    assert_eq!(rig.at_nodes(), ["1 GET", "1 GET"]);
    for _ in 0..2 {
        rig.answer_next("$1\r\n1\r\n");
    }
    assert_eq!(rig.at_nodes(), ["1 STRLEN"]);
    rig.answer_next(":1\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n1\r\n$1\r\n1\r\n:1\r\n");
    let slot = slot_of(key.as_bytes());
    let doubt = rig.shards[0].poll_doubt().expect("somebody should look");
    let there = rig.cluster.map().node(BackendId(1)).map(|node| node.key);
    assert_eq!((doubt.reason, doubt.moved), (Reason::Moved(there), there.map(|there| (slot, there))));
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["1 GET"]);
}

#[test]
fn the_owner_that_a_redirect_named_is_forgotten_after_a_while_though_no_map_comes() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$1\r\n1\r\n");
    for (pause, asked) in [(1_900, "1 GET"), (200, "0 GET")] {
        rig.wait(pause * MILLISECOND);
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.at_nodes(), [asked], "{pause}");
        rig.answer_next("$1\r\n1\r\n");
    }
}

#[test]
fn when_a_redirect_is_forgotten_requests_wait_for_those_at_the_node_that_it_named() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$1\r\n1\r\n");
    rig.wait(1_900 * MILLISECOND);
    rig.send(client, &[&["APPEND", &key, "2"]]);
    rig.wait(200 * MILLISECOND);
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["1 APPEND"]);
    rig.answer_next(":2\r\n");
    assert_eq!(rig.at_nodes(), ["0 GET"]);
}

#[test]
fn a_redirect_to_the_owner_on_the_map_does_not_outlive_that_map() {
    let (mut rig, client, key) = before_a_node();
    let slot = slot_of(key.as_bytes());
    rig.send(client, &[&["GET", &key]]);
    rig.publish(|own| Some(if own == slot { 1 } else { thirds(own) }));
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$1\r\n1\r\n");
    rig.publish(|own| Some(if own == slot { 2 } else { thirds(own) }));
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["2 GET"]);
}

#[test]
fn a_redirect_to_a_node_that_has_left_is_forgotten_with_the_next_map() {
    let mut rig = clustered(1, |_| {});
    rig.publish_of((NODES, None), |slot| Some(thirds(slot).min(1)));
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 2));
    rig.answer_next("$1\r\n1\r\n");
    let view = rig.view((2, None), |slot| Some(thirds(slot).min(1)));
    rig.publish_view(view);
    assert!(rig.cluster.map().node(BackendId(2)).is_none());
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["0 GET"]);
}

/// Sends a request with a deadline of 150 ms, which the first node refuses with a redirect to a node that
/// stays silent. Returns the client's reply at the deadline, and the bytes that the client gets when the node
/// answers after that. `inflight` is the client's setting for requests in flight at their deadline.
fn told_at_the_deadline(
    refusal: impl Fn(&str) -> String,
    words: &[&str],
    inflight: &str,
) -> (String, String) {
    let mut rig = clustered(1, |settings| settings.overload.shed = Mode::On);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "150", "INFLIGHT", inflight]]);
    assert_eq!(rig.told(client), "+OK\r\n");
    let words: Vec<&str> = words.iter().map(|word| if *word == "KEY" { &key } else { *word }).collect();
    rig.send(client, &[&words]);
    rig.wait(100 * MILLISECOND);
    rig.answer_next(&refusal(&key));
    assert!(rig.at_nodes().iter().all(|sent| sent.starts_with('1')) && !rig.at_stores.is_empty());
    rig.wait(40 * MILLISECOND);
    assert_eq!(rig.told(client), "", "10 ms are left");
    rig.wait(20 * MILLISECOND);
    let at_deadline = rig.told(client);
    while !rig.at_stores.is_empty() {
        rig.answer_next("$4\r\nlate\r\n");
    }
    (at_deadline, rig.told(client))
}

#[test]
fn what_was_sent_on_has_the_deadline_that_it_had() {
    let get = ["GET", "KEY"];
    let refusals: [fn(&str) -> String; 2] = [|key| moved(key, 1), |key| ask(key, 1)];
    for refusal in refusals {
        let (told, late) = told_at_the_deadline(refusal, &get, "answer");
        assert!(told.starts_with("-DEADLINE stage=backend "), "{told:?}");
        assert_eq!(late, "", "it has been answered");
        let (told, _) = told_at_the_deadline(refusal, &["SET", "KEY", "v"], "answer");
        assert!(
            told.starts_with("-DEADLINE stage=backend ") && told.contains("may have happened"),
            "{told:?}"
        );
        // For a client that enforces deadlines itself, weir waits for the reply.
        let (told, late) = told_at_the_deadline(refusal, &get, "wait");
        assert_eq!((told.as_str(), late.ends_with("$4\r\nlate\r\n")), ("", true), "{late:?}");
    }
}

#[test]
fn what_was_refused_is_sent_on_after_its_deadline_where_deadlines_are_off_or_only_counted() {
    let refusals: [fn(&str) -> String; 4] = [
        |key| moved(key, 1),
        |key| ask(key, 1),
        |_| TRY_AGAIN.to_owned(),
        |_| "-CLUSTERDOWN The cluster is down\r\n".to_owned(),
    ];
    for (mode, late) in [(Mode::Off, 0), (Mode::Shadow, 1)] {
        for refusal in refusals {
            let mut rig = clustered(1, |settings| settings.overload.shed = mode);
            let (client, key) = (rig.client(0), rig.key(0, 0));
            rig.send(client, &[&["QOS", "SET", "DEADLINE", "50"], &["GET", &key]]);
            assert_eq!(rig.told(client), "+OK\r\n");
            rig.wait(60 * MILLISECOND);
            let refusal = refusal(&key);
            rig.answer_next(&refusal);
            rig.wait(6 * MILLISECOND);
            assert_eq!(rig.frames("GET").len(), 1, "{mode:?}: {refusal}");
            while let Some(sent) = rig.at_stores.first() {
                let reply = if sent.frame.contains("ASKING") { "+OK\r\n" } else { "$1\r\n1\r\n" };
                rig.answer_next(reply);
            }
            assert_eq!(rig.told(client), "$1\r\n1\r\n", "{mode:?}: {refusal}");
            assert_eq!(rig.counted(Counter::LateInShadow), late, "{mode:?}: {refusal}");
        }
    }
}

#[test]
fn a_script_that_may_have_run_is_not_told_that_it_waited_until_its_deadline() {
    let mut rig = clustered(1, |settings| settings.overload.shed = Mode::On);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "300"], &["EVAL", "code", "1", &key]]);
    rig.wait(10 * MILLISECOND);
    rig.answer_next(&moved(&key, 1));
    // No node confirms the redirect.
    rig.wait(280 * MILLISECOND);
    assert_eq!((rig.at_nodes().len(), rig.told(client).as_str()), (0, "+OK\r\n"), "10 ms are left");
    rig.wait(20 * MILLISECOND);
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE backend=10.0.0.0:7000 reason=redirects "), "{told:?}");
}

#[test]
fn a_node_that_is_asked_to_take_over_is_told_so_and_the_map_stays() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["APPEND", &key, "1"]]);
    rig.answer_next(&ask(&key, 2));
    assert_eq!(rig.at_nodes(), ["2 ASKING", "2 APPEND"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next(":1\r\n");
    assert_eq!(rig.told(client), ":1\r\n");
    assert!(rig.shards[0].poll_doubt().is_none());
    rig.send(client, &[&["APPEND", &key, "2"]]);
    assert_eq!(rig.at_nodes(), ["0 APPEND"]);
    // A request that was redirected twice waits a little before it is sent again.
    rig.answer_next(&ask(&key, 2));
    rig.answer_next("+OK\r\n");
    rig.answer_next(&moved(&key, 0));
    assert_eq!(rig.at_nodes(), [""; 0]);
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["0 APPEND"]);
    rig.answer_next(":2\r\n");
    assert_eq!(rig.told(client), ":2\r\n");
}

#[test]
fn who_has_the_slot_no_more_sends_nobody_anywhere() {
    let (mut rig, client, key) = before_a_node();
    let slot = slot_of(key.as_bytes());
    rig.send(client, &[&["APPEND", &key, "1"], &["APPEND", &key, "2"]]);
    rig.answer_next(&ask(&key, 2));
    // The redirected request waits for the other one; meanwhile the whole slot moves to another node.
    rig.publish(|of| Some(if of == slot { 1 } else { thirds(of) }));
    rig.answer_next(&moved(&key, 1));
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["1 APPEND", "1 APPEND"]);
    rig.answer_next(":1\r\n");
    rig.answer_next(":2\r\n");
    assert_eq!(rig.told(client), ":1\r\n:2\r\n");
}

#[test]
fn nobody_is_asked_to_take_over_what_an_owner_gave_away_long_ago() {
    for (waited, expected) in [(200, "2 ASKING"), (300, "0 APPEND")] {
        let (mut rig, client, key) = before_a_node();
        let neighbour = format!("{{{key}}}b");
        rig.send(client, &[&["APPEND", &key, "1"], &["GET", &neighbour]]);
        rig.answer_next(&ask(&key, 2));
        // The redirected request waits for the other one; meanwhile the slot may have moved to the target,
        // come back, and begun to move again.
        rig.wait(waited * MILLISECOND);
        rig.answer_next("$-1\r\n");
        rig.wait(MILLISECOND);
        assert_eq!(rig.at_nodes()[0], expected);
    }
}

#[test]
fn a_block_that_was_refused_goes_whole() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["MULTI"], &["SET", &key, "1"], &["GET", &key], &["EXEC"]]);
    for reply in ["+OK\r\n", &moved(&key, 1), &moved(&key, 1), "-EXECABORT because\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.at_nodes(), ["1 MULTI", "1 SET", "1 GET", "1 EXEC"]);
    // The redirect may also be the reply to a step of a transaction.
    for reply in ["+OK\r\n", &ask(&key, 2), "+QUEUED\r\n", "-EXECABORT because\r\n"] {
        rig.answer_next(reply);
    }
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["2 ASKING", "2 MULTI", "2 SET", "2 GET", "2 EXEC"]);
    for reply in ["+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("*2\r\n+OK\r\n$1\r\n1\r\n"));
}

#[test]
fn a_slot_that_moves_while_a_transaction_is_queued_does_not_break_it() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["MULTI"], &["SET", &key, "1"]]);
    let slot = slot_of(key.as_bytes());
    rig.publish(|other| Some(if other == slot { 1 } else { thirds(other) }));
    rig.send(client, &[&["GET", &key], &["EXEC"]]);
    assert_eq!(rig.at_nodes(), ["1 MULTI", "1 SET", "1 GET", "1 EXEC"], "to the owner of now");
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n");
}

#[test]
fn that_a_node_could_not_be_reached_says_nothing_of_what_it_has_become_since() {
    let (mut rig, client, key) = before_a_node();
    rig.connecting = Connecting::Fails;
    rig.send(client, &[&["GET", &key]]);
    assert!(rig.told(client).contains("reason=connect-failed"));
    // Another node takes over, and then both change roles again.
    rig.publish_of((NODES, Some(0)), |slot| Some(thirds(slot).max(1)));
    rig.publish(|slot| Some(thirds(slot)));
    rig.connecting = Connecting::Works;
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["0 GET"], "it is connected to at once");
}

#[test]
fn a_script_may_say_what_it_likes() {
    let (mut rig, client, key) = before_a_node();
    let script = ["EVAL", "code", "1", &key];
    rig.send(client, &[&script, &["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.at_nodes(), [""; 0], "it is not sent again before it is known that this was true");
    let doubt = rig.shards[0].poll_doubt();
    assert_eq!(doubt, Some(Doubt { reason: Reason::Unsure, moved: None }), "what it says proves nothing");
    // A redirect in a script's reply proves nothing, even if a second script says the same, nor does a map
    // that is newer for another reason.
    let named = rig.cluster.map().node(BackendId(1)).map(|node| (slot_of(key.as_bytes()), node.key));
    let map = named.and_then(|named| rig.cluster.patch(&[named]));
    let map = map.filter(|map| map.is_hearsay(slot_of(key.as_bytes()))).expect("a map by hearsay");
    rig.shards[0].handle_slots(map, rig.now);
    rig.turns();
    rig.publish(|slot| Some(if slot == 1 { 2 } else { thirds(slot) }));
    assert_eq!((rig.at_nodes().len(), rig.told(client).as_str()), (0, ""));
    // The confirmed map says that the node has the slot, so the script itself was carried out.
    rig.confirm();
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE backend=10.0.0.0:7000 reason=redirects"), "{told}");
    assert!(told.ends_with("$1\r\n1\r\n"));
    // No request waits because of the script's next redirect.
    rig.wait(5 * MILLISECOND);
    rig.send(client, &[&script, &["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$1\r\n1\r\n");
    let told = rig.told(client);
    assert!(told.contains("reason=redirects") && told.ends_with("$1\r\n1\r\n"), "{told}");
    // Some time later the node has lost the slot.
    rig.wait(Duration::from_secs(6));
    rig.send(client, &[&script]);
    rig.answer_next(&moved(&key, 1));
    rig.publish(|_| Some(1));
    assert_eq!(rig.at_nodes(), [""; 0], "a new map alone may be what a late node believes");
    rig.confirm();
    assert_eq!(rig.at_nodes(), ["1 EVAL"]);
    rig.answer_next(":7\r\n");
    assert_eq!(rig.told(client), ":7\r\n");
    // No node confirms the map: the first request waits a second for that, later ones do not wait.
    for waits in [true, false] {
        rig.wait(5 * MILLISECOND);
        rig.send(client, &[&script]);
        rig.answer_next(&moved(&key, 0));
        if waits {
            assert_eq!(rig.told(client), "");
            rig.wait(Duration::from_millis(1_100));
        }
        assert!(rig.told(client).contains("reason=redirects"));
    }
    // The redirects name another slot and an unknown node.
    rig.send(client, &[&script]);
    rig.answer_next("-MOVED 1 10.9.9.9:1\r\n");
    assert!(rig.told(client).contains("reason=redirects"));
}

#[test]
fn a_script_that_makes_up_a_refusal_pays_for_the_time_of_its_node() {
    type RefusalOf = fn(&str) -> String;
    // The refusal, and whether the map is confirmed after it; None if the refusal cannot be true anyway.
    let refusals: [(RefusalOf, Option<bool>); 6] = [
        (|_| "-MOVED 1 10.9.9.9:1\r\n".to_owned(), None),
        (|_| TRY_AGAIN.to_owned(), None),
        (|_| READ_ONLY.to_owned(), None),
        (|key| ask(key, 1), None),
        (|key| moved(key, 1), Some(true)),
        (|key| moved(key, 1), Some(false)),
    ];
    for (refusal, is_confirmed) in refusals {
        let mut rig = clustered(1, |settings| {
            settings.admission.weights = Weights { base: UNIT, busy_ms: 50 * UNIT, ..FREE };
        });
        rig.pools = (1_000_000 * UNIT as i64, false);
        rig.put_in_force("[default]\nru_per_second = 10\nadmin = true");
        let (client, key) = (rig.client(0), rig.key(0, 0));
        let mut costs = Vec::new();
        // The first run of 400 ms is within the leeway of half a second, most of the second one is not.
        for reply in [":1\r\n".to_owned(), refusal(&key)] {
            rig.send(client, &[&["EVAL", "code", "1", &key]]);
            rig.wait(400 * MILLISECOND);
            rig.answer_next(&reply);
            match is_confirmed {
                Some(true) => rig.confirm(),
                Some(false) => rig.wait(1_100 * MILLISECOND),
                None => {}
            }
            costs.push(super::admission::booked(&mut rig).1);
            rig.reports.clear();
        }
        let told = rig.told(client);
        assert!(told.starts_with(":1\r\n-UNAVAILABLE ") && told.contains("reason=redirects"), "{told}");
        assert!(costs[0] < 200 * UNIT && costs[1] > 10_000 * UNIT, "{told}: {costs:?}");
        assert!(rig.at_stores.is_empty());
    }
}

#[test]
fn a_map_older_than_what_a_node_said_is_no_proof_of_what_a_script_says() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$-1\r\n");
    rig.told(client);
    rig.send(client, &[&["EVAL", "code", "1", &key]]);
    assert_eq!(rig.at_nodes(), ["1 EVAL"], "what a node said counts");
    rig.answer_next(&moved(&key, 2));
    // Maps that are older than the slot's move to the script's node, and so have it elsewhere.
    for other in 1..3 {
        rig.publish(|slot| Some(if slot == other { 2 } else { thirds(slot) }));
        rig.wait(5 * MILLISECOND);
    }
    assert_eq!((rig.at_nodes().len(), rig.told(client).as_str()), (0, ""));
    rig.publish(|slot| Some(if slot == slot_of(key.as_bytes()) { 1 } else { thirds(slot) }));
    rig.confirm();
    let told = rig.told(client);
    assert!(rig.at_nodes().is_empty() && told.contains("reason=redirects"), "{told}");
    // All primaries say that the slot is elsewhere.
    rig.wait(Duration::from_secs(6));
    rig.publish(|slot| Some(thirds(slot)));
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next("$-1\r\n");
    rig.told(client);
    rig.send(client, &[&["EVAL", "code", "1", &key]]);
    rig.answer_next(&moved(&key, 0));
    assert!(rig.at_nodes().is_empty());
    rig.confirm();
    assert_eq!(rig.at_nodes(), ["0 EVAL"]);
}

#[test]
fn nothing_goes_behind_a_script_that_may_have_been_carried_out() {
    // One redirect that is believed for a while, and redirects that cannot be true.
    for (named, is_confirmed) in [(None, true), (None, false), (Some("-MOVED 1 10.9.9.9:1\r\n"), false)] {
        let (mut rig, client, key) = before_a_node();
        // Scripts that have proven cheap share connections with other requests.
        for _ in 0..3 {
            rig.send(client, &[&["EVAL", "code", "1", &key]]);
            rig.answer_next(":7\r\n");
        }
        rig.told(client);
        rig.send(client, &[&["SET", &key, "first"], &["EVAL", "code", "1", &key], &["GET", &key]]);
        rig.answer_next(&moved(&key, 1));
        rig.answer_next(named.unwrap_or(&moved(&key, 1)));
        // Requests for the slot wait until the map is confirmed.
        rig.wait(5 * MILLISECOND);
        assert_eq!(rig.at_nodes(), ["0 GET"]);
        rig.answer_next(&moved(&key, 1));
        if is_confirmed {
            rig.confirm();
        } else if named.is_none() {
            rig.wait(Duration::from_millis(1_100));
        }
        rig.wait(5 * MILLISECOND);
        let told = rig.told(client);
        assert_eq!((rig.at_nodes(), told.matches("reason=redirects").count()), (vec!["1 GET".to_owned()], 2));
    }
}

#[test]
fn a_node_that_nobody_knows_is_found_out_about_first() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&format!("-MOVED {} 10.0.0.9:7009\r\n", slot_of(key.as_bytes())));
    assert_eq!((rig.at_nodes(), rig.told(client).as_str()), (Vec::new(), ""));
    assert!(rig.shards[0].poll_doubt().is_some());
    rig.publish(|_| Some(2));
    assert_eq!(rig.at_nodes(), ["2 GET"]);
    rig.answer_next("$-1\r\n");
    // The client gets an error after a second if no owner becomes known.
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&format!("-MOVED {} 10.0.0.9:7009\r\n", slot_of(key.as_bytes())));
    rig.wait(Duration::from_millis(1_100));
    assert!(rig.told(client).contains("reason=redirects"));
}

#[test]
fn no_newer_map_is_waited_for_where_that_in_force_names_another_owner() {
    let refusals: [fn(&str) -> String; 2] =
        [|key| format!("-MOVED {} ?:6379\r\n", slot_of(key.as_bytes())), |_| READ_ONLY.to_owned()];
    for refusal in refusals {
        let (mut rig, client, key) = before_a_node();
        rig.send(client, &[&["SET", &key, "1"], &["SET", &key, "2"]]);
        rig.answer_next(&refusal(&key));
        rig.publish(|_| Some(2));
        assert_eq!(rig.at_nodes(), ["0 SET"], "the first one waits for it");
        // The map that has come already explains the second refusal.
        rig.answer_next(&refusal(&key));
        assert_eq!(rig.at_nodes(), ["2 SET", "2 SET"]);
        rig.answer_next("+OK\r\n");
        rig.answer_next("+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n+OK\r\n");
    }
}

#[test]
fn who_imports_a_slot_and_takes_no_writes_is_not_asked_again_before_a_newer_map() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.answer_next(&ask(&key, 1));
    assert_eq!(rig.at_nodes(), ["1 ASKING", "1 SET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next(READ_ONLY);
    rig.wait(100 * MILLISECOND);
    assert_eq!((rig.at_nodes().len(), rig.told(client).as_str()), (0, ""));
    rig.publish(|slot| Some(if slot == 1 { 2 } else { thirds(slot) }));
    assert_eq!(rig.at_nodes(), ["0 SET"]);
}

#[test]
fn nodes_that_send_each_other_requests_for_ever_are_not_followed_for_ever() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["GET", &key]]);
    let mut sent = 0;
    while rig.told(client).is_empty() {
        if let Some(at) = rig.at_stores.first().map(|sent| sent.backend.0) {
            sent += 1;
            rig.answer_next(&moved(&key, 1 - at));
        }
        rig.wait(MILLISECOND);
        assert!(sent < 20);
    }
    assert_eq!(sent, 7);
}

#[test]
fn what_needs_keys_that_are_here_and_there_is_tried_again_for_a_while() {
    let (mut rig, client, key) = before_a_node();
    let keys = ["a", "b"].map(|name| format!("{{{key}}}{name}"));
    let sunion = ["SUNION", &keys[0], &keys[1]];
    rig.send(client, &[&sunion, &["GET", "other"]]);
    rig.answer_first("SUNION", TRY_AGAIN);
    assert!(rig.frames("SUNION").is_empty());
    rig.wait(12 * MILLISECOND);
    rig.answer_first("SUNION", "*0\r\n");
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "*0\r\n$-1\r\n");
}

const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";

#[test]
fn keys_that_are_here_and_there_are_asked_for_one_by_one_at_once() {
    for home in 0..2 {
        let mut rig = clustered(2, |_| {});
        let (client, key) = (rig.client(0), rig.key(home, home));
        let [a, b, c] = ["a", "b", "c"].map(|name| format!("{{{key}}}{name}"));
        let (owner, target) = (thirds(slot_of(key.as_bytes())), 2);
        let at = |node: u16, word: &str| format!("{node} {word}");
        rig.send(client, &[&["MGET", &a, &b, &a], &["APPEND", &b, "+"], &["GET", &a]]);
        rig.answer_first("MGET", TRY_AGAIN);
        // Requests that were sent behind the redirected one are still in flight.
        assert_eq!(rig.at_nodes(), [at(owner, "APPEND"), at(owner, "GET")]);
        rig.answer_next(&ask(&b, target));
        rig.answer_next("$1\r\nA\r\n");
        // Key a was read behind the request meanwhile; key b is appended to behind it.
        let told = rig.told(client);
        assert_eq!(told, "", "in the order of requests");
        rig.wait(MILLISECOND);
        let sent = rig.at_nodes();
        assert_eq!(sent.iter().filter(|sent| sent.ends_with("MGET")).count(), 1, "{sent:?}");
        rig.answer_first("MGET", &ask(&b, target));
        rig.wait(50 * MILLISECOND);
        while let Some(next) = rig.at_stores.first().map(|sent| sent.frame.clone()) {
            let reply = if next.contains("ASKING") {
                "+OK\r\n"
            } else if next.contains("MGET") {
                "*1\r\n$1\r\nB\r\n"
            } else {
                ":2\r\n"
            };
            rig.answer_next(reply);
            rig.wait(5 * MILLISECOND);
        }
        let told = rig.told(client);
        assert!(told.starts_with("*3\r\n-UNAVAILABLE ") && told.contains("\r\n$1\r\nB\r\n-"), "{told}");
        assert!(told.ends_with(":2\r\n$1\r\nA\r\n"), "{told}");
        // Nothing was sent behind the request, so all its parts are sent at once, two of them for keys that
        // are new at the target.
        rig.send(client, &[&["EXISTS", &a, &b, &c, &c]]);
        rig.answer_next(&ask(&a, target));
        assert_eq!(rig.at_nodes(), [at(target, "ASKING"), at(target, "EXISTS")]);
        rig.answer_next("+OK\r\n");
        rig.answer_next(TRY_AGAIN);
        assert_eq!(rig.at_nodes(), vec![at(owner, "EXISTS"); 4]);
        rig.answer_next(":1\r\n");
        for key in [&b, &c, &c] {
            rig.answer_next(&ask(key, target));
        }
        rig.wait(5 * MILLISECOND);
        assert_eq!(rig.at_nodes().len(), 6);
        for reply in [":1\r\n", ":0\r\n", ":1\r\n"] {
            rig.answer_next("+OK\r\n");
            rig.answer_next(reply);
        }
        assert_eq!(rig.told(client), ":3\r\n");
        // One part is lost with its connection, and the others are answered.
        rig.send(client, &[&["DEL", &a, &b]]);
        rig.answer_next(TRY_AGAIN);
        rig.answer_first("DEL", &ask(&a, target));
        rig.answer_first("DEL", ":1\r\n");
        rig.wait(5 * MILLISECOND);
        rig.lose("DEL");
        assert!(rig.told(client).starts_with("-UNAVAILABLE "));
        rig.send(client, &[&["GET", &a]]);
        assert_eq!(rig.at_nodes(), [at(owner, "GET")]);
        assert!(rig.shards.iter().all(Shard::has_no_pieces));
    }
}

#[test]
fn that_a_request_was_taken_apart_and_failed_in_part_is_told_whichever_error_is_told() {
    for (done, rest) in [(":1\r\n", " (the rest may have happened)"), ("-OOM no room\r\n", "")] {
        let mut rig = clustered(1, |_| {});
        let (client, refused, key) = (rig.client(0), rig.key(0, 0), rig.key(0, 1));
        let [a, b] = ["a", "b"].map(|name| format!("{{{key}}}{name}"));
        rig.send(client, &[&["DEL", &refused, &a, &b]]);
        rig.answer_first(&refused, "-ERR broken\r\n");
        rig.answer_first(&key, TRY_AGAIN);
        assert_eq!(rig.at_nodes(), ["1 DEL", "1 DEL"]);
        rig.answer_next(done);
        rig.answer_next("-OOM no room\r\n");
        assert_eq!(rig.told(client), format!("-ERR broken{rest}\r\n"), "{done}");
        assert!(rig.shards[0].has_no_pieces());
    }
}

#[test]
fn what_was_sent_behind_a_request_that_is_taken_apart_waits_for_all_its_parts() {
    let (mut rig, client, key) = before_a_node();
    let [a, b, c] = ["a", "b", "c"].map(|name| format!("{{{key}}}{name}"));
    rig.send(client, &[&["GET", &a], &["DEL", &b, &c], &["SET", &b, "x"]]);
    rig.answer_first("GET", &ask(&a, 1));
    rig.answer_first("DEL", TRY_AGAIN);
    rig.answer_first("SET", &ask(&b, 1));
    rig.wait(10 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["1 ASKING", "1 GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\na\r\n");
    rig.wait(10 * MILLISECOND);
    assert_eq!(rig.at_nodes(), ["0 DEL", "0 DEL"]);
    rig.answer_next(":1\r\n");
    rig.answer_next(":0\r\n");
    rig.wait(10 * MILLISECOND);
    assert_eq!(rig.frames("SET").len(), 1);
    while !rig.at_stores.is_empty() {
        rig.answer_next("+OK\r\n");
    }
    assert_eq!(rig.told(client), "$1\r\na\r\n:1\r\n+OK\r\n");
}

#[test]
fn a_request_that_is_taken_apart_is_answered_at_its_deadline_though_a_part_is_in_flight() {
    let mut rig = clustered(1, |settings| settings.overload.shed = Mode::On);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    let [a, b] = ["a", "b"].map(|name| format!("{{{key}}}{name}"));
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "150"]]);
    assert_eq!(rig.told(client), "+OK\r\n");
    rig.send(client, &[&["DEL", &a, &b]]);
    rig.answer_next(TRY_AGAIN);
    rig.answer_first("DEL", ":1\r\n");
    rig.wait(140 * MILLISECOND);
    assert_eq!((rig.at_nodes(), rig.told(client)), (vec!["0 DEL".to_owned()], String::new()));
    rig.wait(20 * MILLISECOND);
    let told = rig.told(client);
    assert!(told.starts_with("-DEADLINE stage=backend ") && told.contains("may have happened"), "{told}");
    assert!(rig.shards[0].has_no_pieces());
    // Another request is taken apart at another node, and has the index of the first one, when the late reply
    // comes.
    let (other, key) = (rig.client(0), rig.key(0, 1));
    rig.send(other, &[&["EXISTS", &key, &key]]);
    rig.answer_first("EXISTS", TRY_AGAIN);
    assert_eq!(rig.at_nodes(), ["0 DEL", "1 EXISTS", "1 EXISTS"]);
    rig.answer_first("DEL", ":0\r\n");
    assert_eq!(rig.shards[0].requests_abandoned(), 0);
    rig.answer_next(":1\r\n");
    rig.answer_next(":1\r\n");
    assert_eq!((rig.told(other).as_str(), rig.told(client).as_str()), (":2\r\n", ""));
    assert!(rig.shards[0].has_no_pieces());
}

#[test]
fn another_owner_gets_nothing_while_the_former_one_owes_something() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["APPEND", &key, "1"]]);
    rig.publish(|_| Some(2));
    rig.send(client, &[&["APPEND", &key, "2"], &["GET", "of another slot"]]);
    assert_eq!(rig.at_nodes(), ["0 APPEND", "2 GET"]);
    rig.answer_first("APPEND", ":1\r\n");
    assert_eq!(rig.at_nodes(), ["2 GET", "2 APPEND"]);
    rig.answer_next("$-1\r\n");
    rig.answer_next(":2\r\n");
    assert_eq!(rig.told(client), ":1\r\n:2\r\n$-1\r\n");
}

#[test]
fn a_node_that_left_the_cluster_is_let_go_of() {
    let mut rig = clustered(1, |_| {});
    let (client, key) = (rig.client(0), rig.key(0, 2));
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["2 GET"]);
    rig.publish_of((2, None), |slot| Some(slot % 2));
    assert!(rig.told(client).starts_with("-UNAVAILABLE backend=10.0.0.2:7002 reason=node-gone"));
    assert_eq!(rig.at_nodes(), [""; 0]);
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes().len(), 1);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n");
}

#[test]
fn a_node_in_the_place_of_one_that_left_begins_without_the_failures_of_that_one() {
    let mut rig = clustered(1, |_| {});
    let (client, key) = (rig.client(0), rig.key(0, 2));
    rig.connecting = Connecting::Hangs;
    rig.send(client, &[&["GET", &key]]);
    let newer = (rig.cluster.map().version() + 1) * 10;
    let thirds_of = [(0, "0-5461"), (1, "5462-10922"), (7, "10923-16383")];
    let nodes = thirds_of.map(|(node, slots)| {
        let flags = if node == 0 { "myself,master" } else { "master" };
        format!(
            "{node:040} 10.0.0.{node}:{}@1 {flags} - 0 0 {} connected {slots}\n",
            7000 + node,
            newer + node
        )
    });
    let asked = ServerAddress { host: "10.0.0.0".to_owned(), port: 7000 };
    let view = View::parse(&asked, b"*0\r\n", bulk(&nodes.concat()).as_bytes()).expect("a view");
    rig.publish_view(view);
    let newcomer = rig.cluster.map().node(BackendId(2)).expect("the place is taken again");
    assert!(newcomer.id.as_str().ends_with('7'));
    assert!(rig.told(client).contains("reason=node-gone"));
    rig.connecting = Connecting::Works;
    rig.send(client, &[&["GET", &key]]);
    assert_eq!((rig.at_nodes(), rig.told(client)), (vec!["2 GET".to_owned()], String::new()));
}

#[test]
fn what_nodes_have_yet_to_answer_has_a_bound() {
    let (mut rig, client, key) = before_a_node();
    let value = "x".repeat(1 << 19);
    let mut refused = 0;
    for _ in 0..200 {
        rig.send(client, &[&["SET", &key, &value]]);
        let told = rig.told(client);
        refused += usize::from(!told.is_empty());
    }
    let most = LINK_UNANSWERED_BYTES_MAX / value.len() + 1;
    assert!(rig.at_stores.len() <= most, "{} at stores", rig.at_stores.len());
    while !rig.at_stores.is_empty() {
        rig.answer_next("+OK\r\n");
    }
    let told = rig.told(client);
    assert_eq!(told.lines().count() + refused, 200);
    assert!(told.contains("-OVERLOADED reason=pending"), "{}", &told[..200]);
    rig.send(client, &[&["SET", &key, &value]]);
    assert_eq!(rig.at_nodes(), ["0 SET"]);
}

#[test]
fn only_keys_of_one_slot_go_together() {
    let (mut rig, client, key) = before_a_node();
    let neighbour = (0..100_000).map(|number| format!("n{number}")).find(|name| {
        thirds(slot_of(name.as_bytes())) == 0 && slot_of(name.as_bytes()) != slot_of(key.as_bytes())
    });
    let neighbour = neighbour.expect("some key is");
    rig.send(client, &[&["RENAME", &key, &neighbour]]);
    assert!(rig.told(client).starts_with("-CROSSSLOT "));
    rig.send(client, &[&["MULTI"], &["GET", &key], &["GET", &neighbour], &["EXEC"]]);
    assert!(rig.told(client).contains("-CROSSSLOT "));
    rig.send(client, &[&["MGET", &key, &neighbour, &key]]);
    assert_eq!(rig.at_nodes(), ["0 MGET", "0 MGET"]);
    rig.answer_next("*2\r\n$1\r\na\r\n$1\r\nc\r\n");
    rig.answer_next("*1\r\n$1\r\nb\r\n");
    assert_eq!(rig.told(client), "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n");
}

#[test]
fn a_part_whose_slot_nobody_has_fails_only_its_keys() {
    let (mut rig, client, key) = before_a_node();
    let [gone, there] = [key.clone(), rig.key(0, 1)];
    rig.publish(|slot| (slot != slot_of(gone.as_bytes())).then_some(1));
    rig.send(client, &[&["MGET", &there, &gone, &there]]);
    rig.answer_next("*2\r\n$1\r\na\r\n$1\r\na\r\n");
    let told = rig.told(client);
    let away = "-UNAVAILABLE backend=10.0.0.0:7000 reason=no-owner retry_after_ms=100";
    assert_eq!(told, format!("*3\r\n$1\r\na\r\n{away}\r\n$1\r\na\r\n"));
    rig.send(client, &[&["DEL", &gone, &there]]);
    rig.answer_next(":1\r\n");
    assert_eq!(rig.told(client), format!("{away} (the rest may have happened)\r\n"));
}

#[test]
fn a_slot_that_nobody_has_and_a_cluster_of_nobody_are_told_of() {
    let (mut rig, client, key) = before_a_node();
    rig.publish(|slot| (slot != slot_of(key.as_bytes())).then_some(1));
    rig.send(client, &[&["GET", &key], &["GET", "other"], &["DBSIZE"]]);
    rig.answer_next("$-1\r\n");
    let mut asked = rig.at_nodes();
    asked.sort();
    assert_eq!(asked, ["0 DBSIZE", "0 ROLE", "1 DBSIZE", "1 ROLE", "2 DBSIZE", "2 ROLE"]);
    for _ in 0..3 {
        rig.answer_first("ROLE", PRIMARY_ROLE);
        rig.answer_first("DBSIZE", ":4\r\n");
    }
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE ") && told.contains("reason=no-owner"), "{told}");
    assert!(told.ends_with("$-1\r\n:12\r\n"), "{told}");
}

const PRIMARY_ROLE: &str = "*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n";
const REPLICA_ROLE: &str = "*5\r\n$5\r\nslave\r\n$8\r\n10.0.0.1\r\n:7001\r\n$9\r\nconnected\r\n:7\r\n";

impl Rig {
    /// Confirms the map of slots on all cores, as if all primaries had been asked just now and had changed
    /// nothing.
    fn confirm(&mut self) {
        self.now.monotonic = self.now.monotonic.after(MILLISECOND);
        for shard in &mut self.shards {
            shard.handle_slots_confirmed(self.now.monotonic);
        }
        self.turns();
    }

    /// Answers a request that only a primary may carry out: `ROLE`, which is sent right before it, with
    /// `role`, and the request itself with `reply`.
    fn answer_as(&mut self, role: &str, reply: &str) {
        self.answer_first("ROLE", role);
        self.answer_next(reply);
    }
}

#[test]
fn who_is_no_primary_any_more_contributes_nothing() {
    let (mut rig, client, key) = before_a_node();
    rig.send(client, &[&["DBSIZE"], &["GET", &key]]);
    rig.answer_as(PRIMARY_ROLE, ":1\r\n");
    // The reply to `ROLE` may come in pieces.
    rig.answer_first("ROLE", &REPLICA_ROLE[..9]);
    rig.more(&REPLICA_ROLE[9..]);
    rig.answer_next(":100\r\n");
    rig.answer_as(PRIMARY_ROLE, ":1\r\n");
    assert_eq!((rig.told(client).as_str(), rig.at_nodes().len()), ("", 0));
    let node = rig.cluster.map().node(BackendId(1)).map(|node| node.key);
    assert_eq!(rig.shards[0].poll_doubt().map(|doubt| doubt.reason), node.map(Reason::ReadOnly));
    assert_eq!(rig.shards[0].poll_doubt().map(|doubt| doubt.reason), Some(Reason::Unsure));
    assert_eq!(rig.shards[0].poll_doubt(), None);
    // The second attempt is not due yet.
    rig.wait(MILLISECOND);
    rig.shards[0].handle_slots_confirmed(Timestamp::ZERO);
    rig.turns();
    assert_eq!(rig.at_nodes().len(), 0);
    rig.publish(|slot| Some(2 * u16::from(slot > 5_000)));
    rig.confirm();
    assert_eq!(rig.at_nodes().len(), 6);
    for _ in 0..3 {
        rig.answer_as(PRIMARY_ROLE, ":5\r\n");
    }
    assert_eq!(rig.told(client), ":15\r\n");
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n");
    // A request is refused after it has twice reached a node that is no primary.
    rig.send(client, &[&["KEYS", "*"]]);
    for round in 0..2 {
        assert_eq!(rig.told(client), "", "round {round}");
        rig.confirm();
        rig.answer_as(REPLICA_ROLE, "*0\r\n");
        rig.answer_as(PRIMARY_ROLE, "*0\r\n");
        rig.answer_as(PRIMARY_ROLE, "*0\r\n");
        rig.confirm();
    }
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE ") && told.contains("reason=not-primary"), "{told}");
    // Without a confirmed map the request is tried again after a while; the next request has two attempts of
    // its own.
    rig.send(client, &[&["DBSIZE"]]);
    for _ in 0..3 {
        rig.answer_as(REPLICA_ROLE, ":0\r\n");
    }
    rig.wait(Duration::from_secs(3));
    for _ in 0..3 {
        rig.answer_as(PRIMARY_ROLE, ":1\r\n");
    }
    assert_eq!(rig.told(client), ":3\r\n");
}

#[test]
fn who_has_done_it_is_not_told_again_when_another_was_no_primary() {
    let (mut rig, client, _) = before_a_node();
    let asked =
        |rig: &Rig| rig.at_nodes().into_iter().filter(|asked| !asked.ends_with("ROLE")).collect::<Vec<_>>();
    for (words, done) in
        [(&["FLUSHALL"][..], "+OK\r\n"), (&["FUNCTION", "LOAD", "#!lua name=l"], "$1\r\nl\r\n")]
    {
        rig.send(client, &[words]);
        rig.answer_as(PRIMARY_ROLE, done);
        rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
        rig.answer_as(PRIMARY_ROLE, done);
        assert_eq!(rig.told(client), "");
        rig.confirm();
        assert_eq!(asked(&rig), [format!("1 {}", words[0])]);
        rig.answer_as(PRIMARY_ROLE, done);
        assert_eq!(rig.told(client), done);
        // The next request has attempts of its own, and goes to all nodes again.
        rig.send(client, &[words]);
        assert_eq!(asked(&rig).len(), 3);
        for _ in 0..3 {
            rig.answer_as(PRIMARY_ROLE, done);
        }
        assert_eq!(rig.told(client), done);
    }
    // An error of another kind is forwarded although other nodes have carried out the request; so is the
    // error for a second node that is no primary.
    rig.send(client, &[&["FLUSHALL"]]);
    rig.answer_as(PRIMARY_ROLE, "-ERR broken\r\n");
    rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    rig.confirm();
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    assert_eq!(rig.told(client), "-ERR broken (the rest may have happened)\r\n");
    rig.send(client, &[&["FLUSHALL"]]);
    for round in 0..2 {
        if round == 0 {
            rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
        }
        rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
        if round == 0 {
            rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
        }
        rig.confirm();
    }
    let told = rig.told(client);
    assert!(
        told.contains("reason=not-primary") && told.ends_with("(the rest may have happened)\r\n"),
        "{told}"
    );
    // No node has carried the request out, so all are asked again.
    rig.send(client, &[&["FLUSHALL"]]);
    for _ in 0..3 {
        rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
    }
    rig.confirm();
    assert_eq!(asked(&rig).len(), 3);
    for _ in 0..3 {
        rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    }
    assert_eq!(rig.told(client), "+OK\r\n");
    // The node that was no primary has left the cluster, so no other node has to be asked.
    rig.send(client, &[&["FLUSHALL"]]);
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    rig.publish_of((NODES, Some(1)), |slot| Some(2 * u16::from(slot > 5_000)));
    rig.confirm();
    assert_eq!((rig.told(client).as_str(), rig.at_nodes().len()), ("+OK\r\n", 0));
}

#[test]
fn what_some_nodes_have_done_is_not_refused_or_priced_when_the_rest_is_asked() {
    let mut rig = clustered(1, |settings| settings.admission.weights = Weights { base: UNIT, ..FREE });
    rig.put_in_force("[default]\nru_per_second = 150\nadmin = true");
    rig.pools = (0, true);
    let client = rig.client(0);
    rig.send(client, &[&["FLUSHALL"]]);
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    rig.confirm();
    assert_eq!(rig.at_nodes(), ["1 ROLE", "1 FLUSHALL"]);
    rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    // The next request has its own price, for which too little is left.
    rig.send(client, &[&["FLUSHALL"]]);
    let told = rig.told(client);
    assert!(told.starts_with("-THROTTLED scope=tenant name=default "), "{told}");
    assert_eq!(super::admission::booked(&mut rig), (100 * UNIT as i64, 100 * UNIT));
}

#[test]
fn a_second_try_that_is_refused_is_none_of_the_next_request() {
    let (mut rig, client, _) = before_a_node();
    let administrators = "[default]\nadmin = true";
    rig.put_in_force(administrators);
    for (is_permitted, told) in [(false, "-NOPERM "), (true, "+OK\r\n")] {
        rig.send(client, &[&["FLUSHALL"]]);
        rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
        rig.answer_as(REPLICA_ROLE, "-READONLY no\r\n");
        rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
        assert_eq!(rig.told(client), "", "it is tried again");
        if is_permitted {
            rig.confirm();
            rig.answer_as(PRIMARY_ROLE, "+OK\r\n");
        } else {
            rig.put_in_force("[default]");
            rig.confirm();
            rig.put_in_force(administrators);
        }
        let reply = rig.told(client);
        assert!(reply.starts_with(told), "{reply}");
    }
}

#[test]
fn a_walk_goes_from_node_to_node_when_the_map_is_known_to_be_right() {
    let (mut rig, client, _) = before_a_node();
    let cursor_in = |told: &str| told.split("\r\n").nth(2).expect("a cursor").to_owned();
    let page = |cursor: &str, key: &str| format!("*2\r\n{}*1\r\n{}", bulk(cursor), bulk(key));
    rig.send(client, &[&["SCAN", "0", "COUNT", "7"]]);
    let mut cursor = String::new();
    for node in 0..3 {
        assert_eq!(rig.at_nodes(), [format!("{node} ROLE"), format!("{node} SCAN")]);
        assert!(rig.frames("SCAN")[0].frame.contains("SCAN\r\n$1\r\n0\r\n"));
        rig.answer_as(PRIMARY_ROLE, &page("12", "a"));
        cursor = cursor_in(&rig.told(client));
        rig.send(client, &[&["SCAN", &cursor]]);
        assert!(rig.frames("SCAN")[0].frame.ends_with("$2\r\n12\r\n"));
        rig.answer_as(PRIMARY_ROLE, &page("0", "b"));
        let told = rig.told(client);
        assert!(told.ends_with("*1\r\n$1\r\nb\r\n"), "{told}");
        cursor = cursor_in(&told);
        rig.send(client, &[&["SCAN", &cursor], &["PING"]]);
        assert_eq!(rig.at_nodes().len(), 0, "first it has to be known what has changed");
        assert_eq!(rig.shards[0].poll_doubt().map(|doubt| doubt.reason), Some(Reason::Unsure));
        rig.confirm();
    }
    assert_eq!(rig.told(client), "*2\r\n$1\r\n0\r\n*0\r\n+PONG\r\n");
    // No node confirms the map.
    rig.send(client, &[&["SCAN", &cursor]]);
    rig.wait(Duration::from_millis(2_200));
    assert!(rig.told(client).contains("reason=topology"));
    // The last node's slots went to the first node meanwhile, so that the first node is visited again.
    rig.publish(|slot| Some(thirds(slot) % 2));
    rig.send(client, &[&["SCAN", &cursor]]);
    rig.confirm();
    assert_eq!(rig.at_nodes(), ["0 ROLE", "0 SCAN"]);
    // The node has become a replica, so its primary is asked.
    rig.answer_as(REPLICA_ROLE, &page("0", "stale"));
    assert_eq!(rig.told(client), "");
    rig.publish(|slot| Some(1 + thirds(slot) % 2));
    rig.confirm();
    assert_eq!(rig.at_nodes()[1], "1 SCAN");
    rig.answer_as(PRIMARY_ROLE, &page(&u64::MAX.to_string(), "a"));
    assert!(rig.told(client).starts_with("-ERR the cursor of the store is too large"));
    rig.send(client, &[&["SCAN", "x"]]);
    assert_eq!(rig.told(client), "-ERR invalid cursor\r\n");
}

/// A scripted cluster between whose nodes slots move. Each node carries out requests for slots that it owns,
/// or after `ASKING` for slots that it imports, and keeps each key's value as a list of what was appended.
pub(super) struct Nodes {
    pub(super) owners: BTreeMap<u16, u16>,
    /// Slots that are moving: by slot, the node that it moves to, and the keys that have moved already.
    moving: BTreeMap<u16, (u16, BTreeSet<String>)>,
    lists: BTreeMap<String, Vec<String>>,
    asked: BTreeSet<(usize, ConnectionId)>,
}

impl Nodes {
    /// Creates nodes without keys; `owners` gives the owner of each slot.
    pub(super) fn new(owners: BTreeMap<u16, u16>) -> Self {
        Self { owners, moving: BTreeMap::new(), lists: BTreeMap::new(), asked: BTreeSet::new() }
    }

    /// Forgets that `ASKING` was sent over a connection, because the connection is lost.
    pub(super) fn forget(&mut self, link: (usize, ConnectionId)) {
        self.asked.remove(&link);
    }

    pub(super) fn carry_out(&mut self, sent: &Sent) -> String {
        let words: Vec<&str> = sent.frame.split("\r\n").collect();
        if words[2] == "ASKING" {
            self.asked.insert((sent.shard, sent.link));
            return "+OK\r\n".to_owned();
        }
        let is_many = words[2] == "MGET";
        let (key, value) = (words[4], words.get(6).filter(|_| !is_many));
        let keys: Vec<&str> =
            words.iter().skip(4).step_by(2).copied().take(if is_many { 2 } else { 1 }).collect();
        let was_asked = self.asked.remove(&(sent.shard, sent.link));
        if let Some(refusal) = self.refusal(sent.backend.0, &keys, was_asked) {
            return refusal;
        }
        if is_many {
            let values = keys
                .iter()
                .map(|key| bulk(&self.lists.get(*key).map_or(String::new(), |list| list.join(","))));
            return format!("*{}\r\n{}", keys.len(), values.collect::<String>());
        }
        if words[2] == "PTTL" {
            return ":-1\r\n".to_owned();
        }
        let list = self.lists.entry(key.to_owned()).or_default();
        if words[2] == "GET" {
            return bulk(&list.join(","));
        }
        list.extend(value.map(|value| (*value).to_owned()));
        format!(":{}\r\n", list.len())
    }

    /// Returns the error (MOVED, ASK or TRYAGAIN) with which a node refuses a request for keys of one slot;
    /// `None` if the node carries it out. `was_asked` is true after `ASKING`.
    fn refusal(&mut self, node: u16, keys: &[&str], was_asked: bool) -> Option<String> {
        let slot = slot_of(keys[0].as_bytes());
        let owner = self.owners[&slot];
        let Some((target, there)) = self.moving.get_mut(&slot) else {
            return (node != owner).then(|| moved(keys[0], owner));
        };
        let try_again = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned();
        if node == owner {
            let is_missing = |key: &&&str| there.contains(**key) || !self.lists.contains_key(**key);
            return match keys.iter().filter(is_missing).count() {
                0 => None,
                all if all == keys.len() => Some(ask(keys[0], *target)),
                _ => Some(try_again),
            };
        }
        if node != *target || !was_asked {
            return Some(moved(keys[0], owner));
        }
        if keys.len() > 1 {
            return (!keys.iter().all(|key| there.contains(*key))).then_some(try_again);
        }
        there.insert(keys[0].to_owned());
        None
    }

    /// Moves a slot one step further: begins the move (or moves the whole slot at once), moves one more key,
    /// or ends the move.
    pub(super) fn move_on(&mut self, slot: u16, random: &mut Random) {
        let owner = self.owners[&slot];
        match self.moving.remove(&slot) {
            None => {
                let target = (owner + 1 + random.below(u64::from(NODES) - 1) as u16) % NODES;
                if random.below(3) == 0 {
                    self.owners.insert(slot, target);
                } else {
                    self.moving.insert(slot, (target, BTreeSet::new()));
                }
            }
            Some((target, mut keys)) if random.below(2) == 0 => {
                // A further key moves to the target.
                let next =
                    self.lists.keys().find(|key| slot_of(key.as_bytes()) == slot && !keys.contains(*key));
                keys.extend(next.cloned());
                self.moving.insert(slot, (target, keys));
            }
            Some((target, _)) => {
                self.owners.insert(slot, target);
            }
        }
    }
}

/// While slots move at random, each request is carried out once, those of a connection in order, and clients
/// notice nothing.
#[test]
fn every_append_is_carried_out_once_and_in_order_while_slots_move() {
    let (mut all_refused, mut all_asked) = (0, 0);
    for seed in 0..40 {
        let random = &mut Random::new(seed);
        let narrow = random.below(2) == 0;
        let mut rig = clustered(2, |settings| {
            if narrow {
                let window_bounds = Bounds { least: 1, most: 3 };
                settings.overload = OverloadSettings { window_bounds, ..OverloadSettings::new(2, NODES) };
            }
        });
        let names: Vec<String> =
            (0..3).flat_map(|slot| ["a", "b"].map(|name| format!("{{{slot}}}{name}"))).collect();
        let slots: Vec<u16> = names.iter().map(|name| slot_of(name.as_bytes())).collect();
        let owners: BTreeMap<u16, u16> = slots.iter().map(|slot| (*slot, thirds(*slot))).collect();
        let mut cluster = Nodes::new(owners);
        let clients = [rig.client(0), rig.client(0), rig.client(1)];
        let mut sent: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
        let (mut count, mut answered) = (0, 0);
        for step in 0..1_500 {
            match random.below(12) {
                0..=2 if count < 200 => {
                    let client = *random.pick(&clients);
                    for _ in 0..random.between(1, 5) {
                        let (name, value) = (random.pick(&names).clone(), format!("c{client}.{count}"));
                        rig.send(client, &[&["APPEND", &name, &value]]);
                        sent.entry((client, name)).or_default().push(value);
                        count += 1;
                    }
                }
                3 if step % 4 == 0 => cluster.move_on(*random.pick(&slots), random),
                4 if random.below(6) == 0 => {
                    let owners = cluster.owners.clone();
                    let owner_of = |slot| Some(owners.get(&slot).copied().unwrap_or(thirds(slot)));
                    rig.publish(owner_of);
                }
                5 => rig.wait(MILLISECOND),
                _ => {
                    let links: BTreeSet<_> =
                        rig.at_stores.iter().map(|sent| (sent.shard, sent.link)).collect();
                    let links: Vec<_> = links.into_iter().collect();
                    if links.is_empty() {
                        continue;
                    }
                    let link = *random.pick(&links);
                    let at = rig.at_stores.iter().position(|sent| (sent.shard, sent.link) == link);
                    let next = rig.at_stores.remove(at.expect("there is one"));
                    let reply = cluster.carry_out(&next);
                    answered += u32::from(reply.starts_with(':'));
                    rig.bytes(&next, reply.as_bytes());
                }
            }
        }
        // The slots stop moving, and all requests are answered.
        for _ in 0..4_000 {
            if rig.at_stores.is_empty() {
                rig.wait(MILLISECOND);
            } else {
                let next = rig.at_stores.remove(0);
                let reply = cluster.carry_out(&next);
                rig.bytes(&next, reply.as_bytes());
            }
        }
        let mut told = 0;
        let mut refused = 0;
        for client in clients {
            for line in rig.told(client).lines() {
                told += 1;
                refused += u32::from(line.starts_with('-'));
                assert!(
                    line.starts_with(':') || line.contains("reason=redirects"),
                    "seed {seed}: a client was told {line}"
                );
            }
        }
        assert_eq!(told, count, "seed {seed}: each is answered once");
        assert!(answered > 0, "seed {seed}");
        all_refused += refused;
        all_asked += count;
        for ((client, name), values) in sent {
            let own = format!("c{client}.");
            let list: Vec<&String> = cluster
                .lists
                .get(&name)
                .into_iter()
                .flatten()
                .filter(|value| value.starts_with(&own))
                .collect();
            let mut expected = values.iter();
            let in_order = list.iter().all(|value| expected.any(|sent| sent == *value));
            assert!(in_order, "seed {seed}, {name}: sent {values:?}, carried out {list:?}");
        }
        let all: usize = cluster.lists.values().map(Vec::len).sum();
        assert_eq!(all as u32, count - refused, "seed {seed}: what was refused was not carried out");
    }
    // A slot that comes back after some of a connection's requests were redirected may have carried out later
    // requests, so the redirected ones are refused; this must stay rare.
    assert!(all_refused * 50 <= all_asked, "{all_refused} of {all_asked} refused");
}

#[test]
fn what_a_fallen_node_owes_nobody_waits_for() {
    let mut rig = clustered(1, |settings| settings.retries = Mode::On);
    let (client, reader, key) = (rig.client(0), rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["INCR", &key]]);
    rig.send(reader, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["0 INCR", "0 GET"]);
    // The node has been silent for a while, so the map should be checked.
    rig.wait(Duration::from_millis(400));
    assert_eq!(rig.shards[0].poll_doubt(), None);
    rig.wait(Duration::from_millis(400));
    let silent = rig.cluster.map().node(BackendId(0)).map(|node| node.key);
    let doubt = rig.shards[0].poll_doubt();
    assert_eq!(doubt.map(|doubt| doubt.reason), Some(Reason::LinkLost(silent)));
    // Requests at a failed node are not given up as long as the map says that it owns its slots.
    rig.publish_of((NODES, Some(0)), |slot| Some(thirds(slot)));
    assert_eq!(rig.at_nodes(), ["0 INCR", "0 GET"]);
    rig.publish_of((NODES, Some(0)), |slot| Some(thirds(slot).max(1)));
    assert!(rig.told(client).contains("reason=node-failed"), "it may have been carried out");
    assert_eq!(rig.at_nodes(), ["1 GET"]);
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(reader), "$1\r\n1\r\n");
}

#[test]
fn moved_to_a_fallen_node_counts_no_longer_than_it_takes_to_know_better() {
    let mut rig = clustered(1, |_| {});
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    assert_eq!(rig.at_nodes(), ["1 GET"]);
    rig.answer_next("$1\r\n1\r\n");
    // The node dies, and then the map names the slot's new owner.
    rig.publish_of((NODES, Some(1)), |slot| Some(thirds(slot)).map(|node| if node == 1 { 2 } else { node }));
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["0 GET"]);
    // A node that has not heard of the failover redirects the request back.
    rig.answer_next(&moved(&key, 1));
    rig.wait(Duration::from_millis(20));
    assert_eq!(rig.at_nodes(), ["0 GET"]);
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!(rig.told(client), "$1\r\n1\r\n$1\r\n2\r\n");
}

#[test]
fn an_explanation_of_a_request_without_keys_names_the_primary_that_it_goes_to() {
    let mut rig = clustered(1, |_| {});
    // The first node has become a replica of the second.
    let epoch = (rig.cluster.map().version() + 1) * 10;
    let told = format!(
        "{:040} 10.0.0.0:7000@1 myself,slave {:040} 0 0 {epoch} connected\n\
         {:040} 10.0.0.1:7001@1 master - 0 0 {} connected 0-16383\n",
        0,
        1,
        1,
        epoch + 1
    );
    let asked = ServerAddress { host: "10.0.0.0".to_owned(), port: 7000 };
    rig.publish_view(View::parse(&asked, b"*0\r\n", bulk(&told).as_bytes()).expect("a view"));
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "EXPLAIN", "EVAL", "return 1", "0"]]);
    let explained = rig.told(client);
    rig.send(client, &[&["EVAL", "return 1", "0"]]);
    assert_eq!(rig.at_nodes(), ["1 EVAL"]);
    let backend = &explained[explained.find("backend\r\n").expect("it names one")..];
    let name = backend.split("\r\n").nth(2).expect("a bulk string");
    assert_eq!(name, "10.0.0.1:7001");
}
