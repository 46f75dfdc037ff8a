//! Tests of CLIENT TRACKING in front of a cluster: nodes track keys for clients, while slots move between the nodes.

use super::cluster::{NODES, ask, clustered, moved, thirds};
use super::key_tracking::greet;
use super::*;

const ANY_KEY: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// Returns a test rig (shards with scripted stores and clients) with one core in front of a cluster of `nodes` nodes, a
/// client with `CLIENT TRACKING` and these options, and a key of the first node.
fn tracking_at(nodes: u16, options: &[&str]) -> (Rig, usize, String) {
    let mut rig = clustered(1, |settings| settings.private_links_max = 10);
    rig.publish_of((nodes, None), |slot| Some(thirds(slot).min(nodes - 1)));
    let (client, key) = (rig.client(0), rig.key(0, 0));
    let words: Vec<&str> = ["CLIENT", "TRACKING", "ON"].into_iter().chain(options.iter().copied()).collect();
    rig.send(client, &[&["HELLO", "3"], &words]);
    rig.told(client);
    greet(&mut rig);
    for _ in 0..nodes {
        assert_eq!(rig.told(client), "", "not all nodes have confirmed it");
        rig.answer_first("TRACKING", "+OK\r\n");
    }
    assert_eq!(rig.told(client), "+OK\r\n");
    (rig, client, key)
}

fn tracking() -> (Rig, usize, String) {
    tracking_at(NODES, &[])
}

/// Publishes a map of the cluster in which the slot of `key` belongs to the node with number `node`, and all
/// other slots to their first owners.
fn move_slot(rig: &mut Rig, key: &str, node: u16) {
    let moving = slot_of(key.as_bytes());
    rig.publish(|slot| Some(if slot == moving { node } else { thirds(slot) }));
}

#[test]
fn no_keys_are_tracked_before_a_node_is_known() {
    let mut rig = Rig::with(1, NODES, |settings| {
        settings.hot.mode = Mode::Off;
        settings.private_links_max = 10;
    });
    let map = Arc::clone(rig.cluster.map());
    rig.shards[0].handle_slots(map, rig.now);
    let client = rig.client(0);
    rig.send(client, &[&["CLIENT", "TRACKING", "ON"], &["CLIENT", "GETREDIR"]]);
    let refusal = "-UNAVAILABLE backend=none reason=no-owner retry_after_ms=100\r\n";
    assert_eq!(rig.told(client), format!("{refusal}:-1\r\n"));
    rig.publish(|slot| Some(thirds(slot)));
    rig.send(client, &[&["CLIENT", "TRACKING", "ON"]]);
    assert_eq!(rig.shards[0].private_links().tracking, usize::from(NODES));
}

fn read(rig: &mut Rig, client: usize, key: &str, node: u16) {
    rig.send(client, &[&["GET", key]]);
    assert_eq!(rig.at_nodes(), [format!("{node} GET")]);
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), "$1\r\n1\r\n");
}

#[test]
fn a_client_is_told_that_any_key_may_have_changed_when_a_slot_has_another_owner() {
    let (mut rig, client, key) = tracking();
    read(&mut rig, client, &key, 0);
    let first = rig.answered.clone().expect("it was answered").link;
    move_slot(&mut rig, &key, 1);
    assert_eq!(rig.told(client), ANY_KEY);
    read(&mut rig, client, &key, 1);
    assert_ne!(rig.answered.clone().expect("it was answered").link, first);
    // A map in which all slots are where they were causes no message.
    move_slot(&mut rig, &key, 1);
    assert_eq!(rig.told(client), "");
    // In RESP2 the client cannot get messages.
    rig.send(client, &[&["HELLO", "2"]]);
    rig.told(client);
    greet(&mut rig);
    move_slot(&mut rig, &key, 2);
    assert_eq!(rig.told(client), "");
}

#[test]
fn a_reply_that_may_be_older_than_the_move_is_followed_by_the_message() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["GET", &key], &["GET", &key]]);
    move_slot(&mut rig, &key, 1);
    assert_eq!(rig.told(client), ANY_KEY);
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), format!("$1\r\n1\r\n{ANY_KEY}"));
    assert_eq!(rig.at_nodes(), ["1 GET"]);
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!(rig.told(client), "$1\r\n2\r\n");
}

#[test]
fn a_redirected_request_goes_over_the_link_on_which_its_node_tracks_keys() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    assert_eq!(rig.at_nodes(), ["1 GET"]);
    let links = rig.shards[0].private_links();
    assert_eq!((links.tracking, links.idle), (usize::from(NODES), 0));
    rig.answer_next(&ask(&key, 2));
    assert_eq!(rig.at_nodes(), ["2 ASKING", "2 GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), "$1\r\n1\r\n");
    let there = rig.cluster.map().node(BackendId(1)).map(|node| node.key);
    let doubt = rig.shards[0].poll_doubt().expect("somebody should look");
    assert_eq!(doubt.moved, there.map(|there| (slot_of(key.as_bytes()), there)));
    // A transaction is redirected as a whole; one that is redirected for ever is refused.
    rig.send(client, &[&["MULTI"], &["GET", &key], &["EXEC"]]);
    for turn in 0..7 {
        assert_eq!(rig.words_at_stores(), ["MULTI", "GET", "EXEC"]);
        let other = u16::from(rig.at_stores[0].backend.0 == 0);
        for reply in ["+OK\r\n", &moved(&key, other), "-EXECABORT because\r\n"] {
            rig.answer_next(reply);
        }
        assert_eq!(rig.at_stores.is_empty(), turn == 6, "{turn}");
    }
    let told = rig.told(client);
    assert!(told.contains("-UNAVAILABLE ") && told.contains("reason=redirects"), "{told}");
}

#[test]
fn a_script_may_say_what_it_likes() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["GET", &key], &["EVAL", "code", "1", &key]]);
    rig.answer_next("$1\r\n1\r\n");
    rig.told(client);
    rig.answer_next(&moved(&key, 1));
    assert!(rig.at_stores.is_empty(), "it may have been carried out");
    assert!(rig.told(client).contains("reason=redirects"));
}

#[test]
fn a_node_without_a_link_tracks_keys_before_it_is_asked() {
    for is_refused in [false, true] {
        let (mut rig, client, key) = tracking_at(NODES - 1, &[]);
        rig.publish(|slot| Some(thirds(slot).min(1)));
        assert_eq!(rig.told(client), ANY_KEY, "another node may hold keys");
        assert!(rig.at_stores.is_empty());
        rig.send(client, &[&["GET", &key]]);
        rig.answer_next(&ask(&key, 2));
        greet(&mut rig);
        assert_eq!(rig.at_nodes(), ["2 CLIENT", "2 ASKING", "2 GET"]);
        rig.answer_first("TRACKING", if is_refused { "-ERR no\r\n" } else { "+OK\r\n" });
        rig.answer_next("+OK\r\n");
        rig.answer_next("$1\r\n1\r\n");
        let open = usize::from(!is_refused);
        assert_eq!(rig.shards[0].clients_open(), open, "a client that would miss changes is closed");
        assert_eq!(rig.told(client), "$1\r\n1\r\n");
    }
}

#[test]
fn broadcasts_are_heard_from_nodes_that_join() {
    let (mut rig, client, _) = tracking_at(NODES - 1, &["BCAST", "PREFIX", "key"]);
    rig.publish(|slot| Some(thirds(slot).min(1)));
    assert_eq!(rig.told(client), ANY_KEY);
    greet(&mut rig);
    let sent = rig.at_stores[0].clone();
    assert!(sent.backend == BackendId(2) && sent.frame.contains("PREFIX\r\n$3\r\nkey\r\n"), "{sent:?}");
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(client), ANY_KEY, "keys may have changed before the node knew of the client");
    let changed = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\nkey1\r\n";
    rig.bytes(&sent, changed.as_bytes());
    assert_eq!(rig.told(client), changed);
}

#[test]
fn a_map_that_comes_while_nodes_are_told_of_a_client_is_followed_afterwards() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 10);
    rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON", "BCAST"]]);
    rig.told(client);
    greet(&mut rig);
    rig.publish(|slot| Some(thirds(slot).min(1)));
    for _ in 1..NODES {
        assert_eq!(rig.told(client), "");
        rig.answer_first("TRACKING", "+OK\r\n");
    }
    assert_eq!(rig.told(client), format!("+OK\r\n{ANY_KEY}"));
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    assert_eq!(rig.told(client), ANY_KEY);
}

#[test]
fn a_node_that_leaves_costs_no_client_its_connection() {
    let (mut rig, client, key) = tracking();
    read(&mut rig, client, &key, 0);
    rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    assert_eq!((rig.told(client).as_str(), rig.shards[0].clients_open()), (ANY_KEY, 1));
    assert_eq!(rig.shards[0].private_links().tracking, 2);
    read(&mut rig, client, &key, 0);
}

#[test]
fn a_read_for_which_the_client_has_opted_in_is_unsure_if_its_slot_is_on_the_move() {
    let (mut rig, client, key) = tracking_at(NODES, &["OPTIN"]);
    rig.send(client, &[&["CLIENT", "CACHING", "YES"], &["GET", &key]]);
    assert_eq!(rig.at_nodes(), ["0 CLIENT", "0 GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next(&moved(&key, 1));
    assert_eq!(rig.at_nodes(), ["1 CLIENT", "1 GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next(&ask(&key, 2));
    assert_eq!(rig.at_nodes(), ["2 ASKING", "2 GET"], "a node takes only one of both words");
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), format!("+OK\r\n$1\r\n1\r\n{ANY_KEY}"));
}

#[test]
fn a_call_that_waits_follows_its_slot_and_its_keys_stay_tracked() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["BLPOP", &key, "0"]]);
    rig.answer_next(&moved(&key, 1));
    assert_eq!(rig.at_nodes(), ["1 BLPOP"]);
    assert_eq!(rig.shards[0].private_links().tracking, usize::from(NODES) - 1, "one waits");
    rig.answer_next("*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    assert_eq!(rig.told(client), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    read(&mut rig, client, &key, 0);
    assert_eq!(rig.shards[0].private_links().tracking, usize::from(NODES));
}

#[test]
fn a_lost_node_closes_the_client() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["GET", &key]]);
    rig.lose("GET");
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn without_a_link_nothing_is_read_untracked() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 3);
    rig.publish_of((NODES - 1, None), |slot| Some(thirds(slot).min(1)));
    let (client, key) = (rig.client(0), rig.key(0, 2));
    rig.send(client, &[&["CLIENT", "TRACKING", "ON"]]);
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.publish(|slot| Some(thirds(slot)));
    rig.told(client);
    rig.send(client, &[&["GET", &key], &["MULTI"], &["GET", &key], &["EXEC"]]);
    let told = rig.told(client);
    assert!(rig.at_stores.is_empty() && told.matches("-OVERLOADED reason=links ").count() == 2, "{told}");
}

#[test]
fn a_request_that_a_node_cannot_carry_out_yet_is_sent_once_more_within_a_second() {
    for (refusal, told) in [
        ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "-UNAVAILABLE "),
        ("-CLUSTERDOWN The cluster is down\r\n", "-CLUSTERDOWN The cluster is down\r\n"),
    ] {
        let (mut rig, client, key) = tracking();
        rig.send(client, &[&["GET", &key], &["GET", &key]]);
        for _ in 0..3 {
            rig.answer_next(refusal);
            assert!(rig.at_stores.is_empty() && rig.shards[0].poll_deadline().is_some());
            rig.wait(Duration::from_millis(50));
            assert_eq!(rig.at_nodes(), ["0 GET"]);
        }
        rig.answer_next("$1\r\n1\r\n");
        assert_eq!(rig.told(client), "$1\r\n1\r\n");
        let (began, mut times) = (rig.now.monotonic, 0);
        while !rig.at_stores.is_empty() {
            rig.answer_next(refusal);
            rig.wait(Duration::from_millis(50));
            times += 1;
        }
        let took = rig.now.monotonic.since(began);
        let is_in_time = took >= Duration::from_secs(1) && took < Duration::from_millis(1_200);
        assert!(is_in_time && (20..40).contains(&times), "{took:?}, {times} times");
        let text = rig.told(client);
        assert!(text.starts_with(told), "{text}");
    }
}

#[test]
fn a_transaction_of_which_a_part_cannot_be_carried_out_yet_is_sent_whole_once_more() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["MULTI"], &["GET", &key], &["EXEC"]]);
    rig.told(client);
    for reply in
        ["+OK\r\n", "-TRYAGAIN later\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n"]
    {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "");
    rig.wait(Duration::from_millis(10));
    assert_eq!(rig.at_nodes(), ["0 MULTI", "0 GET", "0 EXEC"]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "*1\r\n$1\r\n1\r\n");
    // The error may come from a script itself.
    rig.send(client, &[&["EVAL", "code", "1", &key]]);
    rig.answer_next("-CLUSTERDOWN it says\r\n");
    assert_eq!(rig.told(client), "-CLUSTERDOWN it says\r\n");
}

#[test]
fn a_request_that_is_half_moved_is_tried_at_both_nodes_for_as_long() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["MGET", &key, &key]]);
    for _ in 0..10 {
        rig.answer_next(&ask(&key, 1));
        assert_eq!(rig.at_nodes(), ["1 ASKING", "1 MGET"]);
        rig.answer_next("+OK\r\n");
        rig.answer_next("-TRYAGAIN later\r\n");
        rig.wait(Duration::from_millis(50));
        assert_eq!(rig.at_nodes(), ["0 MGET"]);
    }
    rig.answer_next(&ask(&key, 1));
    rig.answer_next("+OK\r\n");
    rig.answer_next("*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    assert_eq!(rig.told(client), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
}

#[test]
fn a_client_that_leaves_while_its_request_is_to_be_sent_once_more_leaves_nothing_behind() {
    for is_lost in [true, false] {
        let (mut rig, client, key) = tracking();
        rig.send(client, &[&["GET", &key]]);
        rig.answer_next("-TRYAGAIN later\r\n");
        if is_lost {
            let id = rig.id(client);
            rig.shards[0].handle_client_lost(id);
            rig.turns();
        } else {
            let Sent { link, generation, .. } = rig.answered.clone().expect("it was answered");
            rig.shards[0].handle_link_lost(link, generation, Loss::ByPeer, rig.now);
            rig.turns();
        }
        rig.wait(Duration::from_millis(100));
        assert_eq!(rig.shards[0].clients_open(), 0);
        assert!(!rig.at_nodes().iter().any(|sent| sent.ends_with("GET")), "{:?}", rig.at_nodes());
    }
}

#[test]
fn a_request_whose_link_is_lost_behind_the_refusal_is_answered() {
    let (mut rig, client, key) = tracking();
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next("-TRYAGAIN later\r\nno reply\r\n");
    assert_eq!((rig.shards[0].clients_open(), rig.shards[0].requests_abandoned()), (0, 0));
}
