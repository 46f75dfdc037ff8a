//! Tests of CLIENT TRACKING with REDIRECT in front of a cluster: invalidation messages go to another client, while
//! slots move between nodes.

use super::cluster::{NODES, ask, clustered, moved, thirds};
use super::key_tracking::greet;
use super::*;

const ANY_KEY: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";
const CHANGED: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
/// The number (`CLIENT ID`) of the first client of core 1, in tests with two cores.
const NUMBER: &str = "2";

/// Two cores with a client each, in front of a cluster of two nodes which a third will join. The client on core 0
/// (`tracker`) has its invalidation messages sent to the client on core 1 (`target`) by `CLIENT TRACKING` with
/// `REDIRECT`.
struct Redirected {
    rig: Rig,
    tracker: usize,
    target: usize,
    /// The private links (connections to stores that one client has to itself) on which the target gets
    /// messages from the two nodes.
    inboxes: Vec<Sent>,
    /// A key of the second node, whose slot moves to the third node when that joins.
    key: String,
}

fn redirected(options: &[&str], links_of_target: usize) -> Redirected {
    let mut rig = clustered(2, |settings| {
        settings.private_links_max = if settings.id == ShardId(1) { links_of_target } else { 20 };
    });
    rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    let (target, tracker) = (rig.client(1), rig.client(0));
    rig.send(target, &[&["HELLO", "3"]]);
    rig.told(target);
    let words = ["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER];
    rig.send(tracker, &[&[&words[..], options].concat()]);
    let is_inbox = |sent: &&Sent| sent.shard == 1 && sent.frame.contains("HELLO");
    let inboxes: Vec<Sent> = rig.at_stores.iter().filter(is_inbox).cloned().collect();
    greet(&mut rig);
    for _ in 1..NODES {
        assert_eq!(rig.told(tracker), "");
        rig.answer_first("REDIRECT\r\n$1\r\n7", "+OK\r\n");
    }
    assert_eq!((rig.told(tracker).as_str(), links(&rig)), ("+OK\r\n", (2, 2)));
    let key = rig.key(1, 2);
    Redirected { rig, tracker, target, inboxes, key }
}

/// Returns the number of private links (connections to stores that one client has to itself) over which keys
/// are tracked, and the number of those to which invalidation messages are redirected.
fn links(rig: &Rig) -> (usize, usize) {
    (rig.shards[0].private_links().tracking, rig.shards[1].private_links().redirected)
}

impl Redirected {
    /// Publishes the map in which the third node has joined the cluster and owns its slots.
    fn join(&mut self) {
        self.rig.publish(|slot| Some(thirds(slot)));
    }

    /// Sends a GET of the key whose slot moved to the third node. Returns the first request on the private
    /// link that the target gets for that node's messages (its HELLO, which has no reply yet).
    fn ask_third(&mut self) -> Sent {
        self.rig.send(self.tracker, &[&["GET", &self.key]]);
        let is_inbox = |sent: &&Sent| sent.shard == 1 && sent.frame.contains("HELLO");
        self.rig.at_stores.iter().find(is_inbox).expect("a link of the target").clone()
    }
}

#[test]
fn the_target_is_told_that_any_key_may_have_changed_when_a_slot_has_another_owner() {
    let Redirected { mut rig, tracker, target, .. } = redirected(&[], 20);
    let key = rig.key(0, 0);
    let moving = slot_of(key.as_bytes());
    rig.send(tracker, &[&["GET", &key]]);
    rig.publish_of((NODES - 1, None), |slot| Some(if slot == moving { 1 } else { thirds(slot).min(1) }));
    assert_eq!(rig.told(target), ANY_KEY);
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(target), ANY_KEY, "the reply may be older than the move");
    assert_eq!(rig.told(tracker), "$1\r\n1\r\n");
    // In RESP2, the target gets messages of the channel `__redis__:invalidate`.
    rig.send(target, &[&["HELLO", "2"], &["SUBSCRIBE", "__redis__:invalidate"]]);
    rig.told(target);
    rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    assert_eq!(rig.told(target), "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n$-1\r\n");
    assert_eq!((rig.told(tracker).as_str(), links(&rig)), ("", (2, 2)));
}

#[test]
fn a_node_that_joins_knows_the_target_before_it_is_asked() {
    let mut at = redirected(&[], 20);
    at.join();
    assert_eq!(at.rig.told(at.target), ANY_KEY);
    let inbox = at.ask_third();
    assert!(at.rig.frames("GET").is_empty(), "the request waits for the number of the target's link");
    greet(&mut at.rig);
    assert_eq!(at.rig.at_nodes(), ["2 CLIENT", "2 GET"]);
    assert_eq!(at.rig.frames("REDIRECT\r\n$1\r\n7").len(), 1);
    at.rig.answer_next("+OK\r\n");
    at.rig.answer_next("$1\r\n1\r\n");
    assert_eq!((at.rig.told(at.tracker).as_str(), links(&at.rig)), ("$1\r\n1\r\n", (3, 3)));
    at.rig.bytes(&inbox, CHANGED.as_bytes());
    assert_eq!(at.rig.told(at.target), CHANGED);
    // Another client has a link to the node that is free by now.
    let other = at.rig.client(0);
    at.rig.send(other, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    greet(&mut at.rig);
    assert_eq!((at.rig.frames("REDIRECT").len(), links(&at.rig).1), (3, 3));
}

#[test]
fn a_redirected_request_reaches_a_node_that_knows_the_target() {
    let mut at = redirected(&[], 20);
    at.join();
    let key = at.rig.key(0, 0);
    at.rig.send(at.tracker, &[&["GET", &key]]);
    at.rig.answer_next(&moved(&key, 2));
    greet(&mut at.rig);
    assert_eq!(at.rig.at_nodes(), ["2 CLIENT", "2 GET"]);
    at.rig.answer_next("+OK\r\n");
    at.rig.answer_next(&ask(&key, 1));
    assert_eq!(at.rig.at_nodes(), ["1 ASKING", "1 GET"]);
    at.rig.answer_next("+OK\r\n");
    at.rig.answer_next("$1\r\n1\r\n");
    assert_eq!(at.rig.told(at.tracker), "$1\r\n1\r\n");
}

#[test]
fn broadcasts_of_a_node_that_joins_come_to_the_target() {
    let mut at = redirected(&["BCAST", "PREFIX", "k"], 20);
    at.join();
    assert_eq!(at.rig.told(at.target), ANY_KEY);
    greet(&mut at.rig);
    assert_eq!(at.rig.at_nodes(), ["2 CLIENT"]);
    let frame = at.rig.at_stores[0].frame.clone();
    assert!(frame.contains("REDIRECT\r\n$1\r\n7") && frame.contains("PREFIX\r\n$1\r\nk\r\n"), "{frame}");
    at.rig.answer_next("+OK\r\n");
    assert_eq!(at.rig.told(at.target), ANY_KEY, "keys may have changed before the node knew of the target");
    assert_eq!((links(&at.rig), at.rig.told(at.tracker).as_str()), ((3, 3), ""));
}

#[test]
fn without_a_link_of_the_target_nothing_is_read_untracked() {
    // One tenant may hold four of five private links.
    for (options, open) in [(&[][..], 1), (&["BCAST"], 0)] {
        let mut at = redirected(options, 3);
        at.join();
        at.rig.send(at.tracker, &[&["GET", &at.key]]);
        greet(&mut at.rig);
        let told = at.rig.told(at.tracker);
        let refused = told.starts_with("-UNAVAILABLE ") && told.contains(" reason=links ");
        assert_eq!((refused, at.rig.shards[0].clients_open()), (open == 1, open), "{told}");
        assert!(at.rig.at_stores.is_empty() && at.rig.shards[1].clients_open() == 1);
        if open == 1 {
            // Keys of other nodes can be read as before.
            let key = at.rig.key(0, 0);
            at.rig.send(at.tracker, &[&["GET", &key]]);
            at.rig.answer_next("$1\r\n1\r\n");
            assert_eq!(at.rig.told(at.tracker), "$1\r\n1\r\n");
        }
    }
}

#[test]
fn a_link_that_cannot_be_opened_refuses_the_request_and_costs_the_target_nothing() {
    let mut at = redirected(&[], 20);
    at.join();
    let inbox = at.ask_third();
    at.rig.at_stores.retain(|sent| (sent.shard, sent.link) != (inbox.shard, inbox.link));
    at.rig.shards[1].handle_link_lost(inbox.link, inbox.generation, Loss::ByPeer, at.rig.now);
    at.rig.turns();
    assert!(at.rig.told(at.tracker).contains("-UNAVAILABLE "));
    assert_eq!((at.rig.shards[1].clients_open(), links(&at.rig)), (1, (2, 2)));
    // The next request tries again to open the link.
    at.ask_third();
    greet(&mut at.rig);
    assert_eq!(at.rig.at_nodes(), ["2 CLIENT", "2 GET"]);
    // The loss of a link that was open closes the target's connection, because the target may have missed
    // messages.
    let is_open = at.rig.shards[1].private_links().redirected == 3;
    at.rig.shards[1].handle_link_lost(inbox.link, inbox.generation + 1, Loss::ByPeer, at.rig.now);
    at.rig.turns();
    assert_eq!((is_open, at.rig.shards[1].clients_open()), (true, 0));
}

#[test]
fn a_target_that_leaves_while_its_link_is_opened_is_told_of_and_the_request_goes_on() {
    let mut at = redirected(&[], 20);
    at.rig.send(at.tracker, &[&["HELLO", "3"]]);
    greet(&mut at.rig);
    at.rig.told(at.tracker);
    at.join();
    at.ask_third();
    let id = at.rig.id(at.target);
    at.rig.shards[1].handle_client_lost(id);
    at.rig.turns();
    assert_eq!(at.rig.told(at.tracker), ">2\r\n$21\r\ntracking-redir-broken\r\n:2\r\n");
    greet(&mut at.rig);
    assert_eq!(at.rig.at_nodes(), ["2 CLIENT", "2 GET"]);
    assert!(at.rig.at_stores[0].frame.contains("\r\nOFF\r\n"), "nobody hears of the key");
    at.rig.answer_next("+OK\r\n");
    at.rig.answer_next("$1\r\n1\r\n");
    assert_eq!((at.rig.told(at.tracker).as_str(), at.rig.shards[0].clients_open()), ("$1\r\n1\r\n", 1));
    // Changes of the map are not reported to anybody either.
    at.rig.publish(|slot| Some(thirds(slot).min(1)));
    assert_eq!((at.rig.told(at.tracker).as_str(), links(&at.rig).1), ("", 0));
    at.rig.send(at.tracker, &[&["CLIENT", "TRACKINGINFO"]]);
    assert!(at.rig.told(at.tracker).contains("broken_redirect"));
}

#[test]
fn a_node_that_leaves_costs_neither_client_its_connection() {
    let mut at = redirected(&[], 20);
    at.join();
    at.ask_third();
    greet(&mut at.rig);
    at.rig.answer_next("+OK\r\n");
    let link = at.rig.at_stores[0].clone();
    at.rig.answer_next("$1\r\n1\r\n");
    at.rig.told(at.tracker);
    at.rig.told(at.target);
    // The node reports that the target's link is gone, before this core has noticed.
    at.rig.bytes(&link, b">2\r\n$21\r\ntracking-redir-broken\r\n:7\r\n");
    assert_eq!((at.rig.told(at.tracker).as_str(), at.rig.told(at.target).as_str()), ("", ANY_KEY));
    at.rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    assert_eq!((links(&at.rig), at.rig.told(at.target).as_str()), ((2, 2), ANY_KEY));
    assert_eq!(at.rig.shards.iter().map(Shard::clients_open).sum::<usize>(), 2);
    at.rig.send(at.tracker, &[&["CLIENT", "TRACKINGINFO"]]);
    assert!(!at.rig.told(at.tracker).contains("broken"));
}

#[test]
fn a_node_that_is_no_primary_any_more_and_dies_costs_the_target_nothing() {
    for holds_keys in [true, false] {
        let Redirected { mut rig, target, inboxes, .. } = redirected(&[], 20);
        if !holds_keys {
            rig.publish_of((NODES - 1, Some(0)), |_| Some(1));
            assert_eq!((rig.told(target).as_str(), links(&rig)), (ANY_KEY, (1, 2)));
        }
        let Sent { link, generation, .. } = inboxes[0];
        rig.shards[1].handle_link_lost(link, generation, Loss::ByPeer, rig.now);
        rig.turns();
        assert_eq!(rig.shards[1].clients_open(), usize::from(!holds_keys));
    }
}

#[test]
fn a_command_that_names_a_target_whose_core_has_another_map_is_to_be_sent_again() {
    let mut at = redirected(&[], 20);
    at.rig.publish(|slot| Some(thirds(slot)));
    let newer = Arc::clone(at.rig.cluster.map());
    at.rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    at.rig.shards[0].handle_slots(newer, at.rig.now);
    let other = at.rig.client(0);
    at.rig.send(other, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    greet(&mut at.rig);
    let told = at.rig.told(other);
    assert!(told.starts_with("-UNAVAILABLE ") && told.contains(" reason=topology "), "{told}");
    at.rig.send(other, &[&["CLIENT", "GETREDIR"]]);
    assert_eq!(at.rig.told(other), ":-1\r\n");
}
