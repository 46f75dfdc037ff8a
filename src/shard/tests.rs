//! Tests of shards without sockets: the tests move the bytes of clients and of links (connections to stores) by hand.

mod admission;
mod breaker;
mod clients;
mod cluster;
mod cluster_databases;
mod cluster_down;
mod cluster_redirects;
mod cluster_tracking;
mod explain_hot;
mod fences;
mod greetings;
mod histories;
mod holdings;
mod hot;
mod http;
mod key_tracking;
mod large_messages;
mod many_keys;
mod monitors;
mod moving;
mod neighbours;
mod out_of_step;
mod overload;
mod private;
mod replicas;
mod retry;
mod secure;
mod shared_channels;
mod subscriptions;
mod track;
mod tracking_redirects;
mod transactions;
mod withdrawal;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::links::connections_max;
use super::*;
use crate::config::Quotas;
use crate::protocol::Segment;
use crate::protocol::command::{self, Handling};
use crate::protocol::encode;
use crate::routing::Topology;
use crate::routing::cluster::Cluster;
use crate::routing::slot_of;
use crate::values::allowance::Report;
use crate::values::time::Now;
use crate::values::{
    Action, BackendId, ClientId, ConnectionId, Demand, Grant, Loss, Owner, ShardId, StoreVersion, Timestamp,
    UNIT, Weights, limits,
};

/// Weights at which nothing costs anything.
const FREE: Weights =
    Weights { base: 0, hit: 0, kib_in: 0, kib_out: 0, row: 0, key: 0, latency_ms: 0, busy_ms: 0 };

#[test]
fn replies_keep_the_order_of_requests_across_cores() {
    let mut rig = Rig::new(2, 1);
    let client = rig.client(0);
    let [far, near] = [rig.key(1, 0), rig.key(0, 0)];
    rig.send(client, &[&["GET", &far], &["GET", &near]]);
    assert_eq!(rig.answer_first(&near, "$4\r\nnear\r\n"), 1);
    assert_eq!(rig.told(client), "", "the first one is still to come");
    rig.answer_first(&far, "$3\r\nfar\r\n");
    assert_eq!(rig.told(client), "$3\r\nfar\r\n$4\r\nnear\r\n");
}

#[test]
fn a_part_of_a_pipeline_waits_for_the_rest_while_there_is_other_work_but_not_for_long() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    for ends in [Work::None, Work::Other] {
        rig.work = Work::Other;
        rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
        rig.answer_next("$1\r\na\r\n");
        assert_eq!(rig.told(client), "");
        rig.work = ends;
        if ends == Work::Other {
            rig.now.monotonic = rig.now.monotonic.after(Duration::from_millis(1));
        }
        rig.turns();
        assert_eq!(rig.told(client), "$1\r\na\r\n");
        rig.answer_next("$1\r\nb\r\n");
        assert_eq!(rig.told(client), "$1\r\nb\r\n");
    }
}

#[test]
fn a_request_to_all_waits_for_earlier_ones_and_holds_back_later_ones() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let [key, other] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["GET", &key], &["DBSIZE"], &["GET", &other]]);
    assert_eq!(rig.words_at_stores(), ["GET"], "the others wait");
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.words_at_stores(), ["DBSIZE", "DBSIZE"]);
    rig.answer_first("DBSIZE", ":40\r\n");
    assert_eq!(rig.words_at_stores(), ["DBSIZE"]);
    rig.answer_first("DBSIZE", ":2\r\n");
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n:42\r\n$-1\r\n");
}

#[test]
fn a_failed_part_fails_only_its_own_keys() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let [lost, kept] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["MGET", &lost, &kept, &lost]]);
    rig.lose(&lost);
    rig.answer_first(&kept, "*1\r\n$1\r\nk\r\n");
    let refusal = "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50\r\n";
    assert_eq!(rig.told(client), format!("*3\r\n{refusal}$1\r\nk\r\n{refusal}"));
    assert_eq!(rig.shards[0].gathers_open(), 0);
}

#[test]
fn a_write_of_which_a_part_failed_claims_nothing_and_says_what_else_may_have_happened() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let [lost, kept] = [rig.key(0, 0), rig.key(0, 1)];
    let refusal = "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50";
    for (words, done) in [
        (vec!["DEL", &lost, &kept], ":1\r\n"),
        (vec!["UNLINK", &lost, &kept], ":1\r\n"),
        (vec!["MSET", &lost, "1", &kept, "2"], "+OK\r\n"),
        (vec!["EXISTS", &lost, &kept], ":1\r\n"),
        (vec!["TOUCH", &lost, &kept], ":1\r\n"),
    ] {
        for reply in [done, "-OOM no room\r\n"] {
            rig.send(client, &[&words]);
            rig.lose(&lost);
            rig.answer_first(&kept, reply);
            let changes = !matches!(words[0], "EXISTS" | "TOUCH") && reply == done;
            let rest = if changes { " (the rest may have happened)" } else { "" };
            assert_eq!(rig.told(client), format!("{refusal}{rest}\r\n"), "{words:?}");
        }
    }
    assert_eq!(rig.shards[0].gathers_open(), 0);
}

#[test]
fn keys_that_use_different_connections_are_different_parts() {
    let mut rig = Rig::with(1, 1, |settings| settings.links_per_backend = 2);
    let client = rig.client(0);
    let [even, odd] = [0, 1].map(|lane| {
        let keys = (0..).map(|number| format!("k{number}"));
        keys.into_iter().find(|key| slot_of(key.as_bytes()) % 2 == lane).expect("one of them")
    });
    rig.send(client, &[&["SET", &odd, "1"], &["MGET", &even, &odd]]);
    assert_eq!(rig.words_at_stores(), ["SET", "MGET", "MGET"]);
    let links = |rig: &Rig, word: &str| rig.frames(word).iter().map(|sent| sent.link).collect::<Vec<_>>();
    let (over_even, over_odd) = (links(&rig, &even), links(&rig, &odd));
    assert!(
        over_odd.len() == 2 && over_odd[0] == over_odd[1],
        "what is about one key goes over one connection"
    );
    assert_ne!(over_even[0], over_odd[0]);
    rig.answer_first("SET", "+OK\r\n");
    rig.answer_first(&even, "*1\r\n$1\r\ne\r\n");
    rig.answer_first(&odd, "*1\r\n$1\r\n1\r\n");
    assert_eq!(rig.told(client), "+OK\r\n*2\r\n$1\r\ne\r\n$1\r\n1\r\n");
    rig.send(client, &[&["SET", &odd, "2"], &["RENAME", &even, &odd]]);
    assert_eq!(rig.words_at_stores(), ["SET"], "the other one has keys on both connections, so it waits");
}

#[test]
fn a_block_goes_out_as_one_segment_and_has_one_reply() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let key = rig.key(0, 1);
    rig.send(client, &[&["MULTI"], &["SET", &key, "1"], &["GET", &key], &["EXEC"]]);
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "GET", "EXEC"]);
    let segments: Vec<usize> = rig.at_stores.iter().map(|sent| sent.segment).collect();
    assert!(segments.iter().all(|segment| *segment == segments[0]), "one segment: {segments:?}");
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n"] {
        rig.answer_next(reply);
        assert_eq!(rig.told(client), "");
    }
    rig.answer_next("*2\r\n+OK\r\n$1\r\n1\r\n");
    assert_eq!(rig.told(client), "*2\r\n+OK\r\n$1\r\n1\r\n");
}

#[test]
fn a_spoilt_block_goes_nowhere() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let [here, there] = [rig.key(0, 0), rig.key(0, 1)];
    for spoiler in [&["GET", there.as_str()][..], &["BLPOP", "x", "0"], &["GET"], &["DBSIZE"]] {
        rig.send(client, &[&["MULTI"], &["SET", &here, "1"], spoiler, &["EXEC"]]);
        let told = rig.told(client);
        assert!(told.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"), "{told}");
        assert!(rig.at_stores.is_empty(), "{spoiler:?}");
    }
    rig.send(client, &[&["EXEC"], &["DISCARD"], &["MULTI"], &["MULTI"], &["DISCARD"]]);
    assert_eq!(
        rig.told(client),
        "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n+OK\r\n-ERR MULTI calls can not be nested\r\n+OK\r\n"
    );
}

#[test]
fn hello_tells_the_version_that_was_heard_last() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    for (heard, told) in [(None, "7.2.4"), (Some(&b"7.0.15"[..]), "7.0.15"), (Some(b"8.0.0"), "8.0.0")] {
        if let Some(version) = heard.and_then(StoreVersion::parse) {
            rig.shards[0].handle_store_version(version);
        }
        rig.send(client, &[&["HELLO"]]);
        let reply = rig.told(client);
        assert!(reply.contains(&format!("\r\nversion\r\n${}\r\n{told}\r\n", told.len())), "{reply}");
    }
}

#[test]
fn each_dialect_has_links_of_its_own() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["HELLO", "3"], &["GET", "a"]]);
    assert_eq!(rig.words_at_stores(), ["GET"], "the dialect changes when all before is answered");
    let resp2 = rig.at_stores[0].link;
    rig.answer_next("$-1\r\n");
    assert!(rig.told(client).starts_with("$-1\r\n%7\r\n"));
    assert_eq!(rig.words_at_stores(), ["HELLO"], "requests wait until the greeting is answered");
    assert_ne!(rig.at_stores[0].link, resp2);
    rig.answer_next("%1\r\n+proto\r\n:3\r\n");
    rig.answer_next("_\r\n");
    assert_eq!(rig.told(client), "_\r\n");
}

#[test]
fn a_lost_link_answers_each_request_once_and_repeats_none() {
    let mut rig = Rig::new(2, 1);
    let client = rig.client(0);
    let key = rig.key(1, 0);
    rig.send(client, &[&["SET", &key, "1"], &["SET", &key, "2"]]);
    rig.answer_first("SET", "+OK\r\n");
    rig.lose("SET");
    let refusal = "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50\r\n";
    assert_eq!(rig.told(client), format!("+OK\r\n{refusal}"));
    assert_eq!(rig.owed(), 0);
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["GET"], "nothing is sent again");
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!(rig.told(client), "$1\r\n2\r\n");
}

#[test]
fn a_store_whose_name_leads_elsewhere_owes_nothing_any_more_and_is_connected_to_anew() {
    let mut rig = Rig::new(2, 2);
    let client = rig.client(0);
    let [ours, others] = [0, 1].map(|place| rig.key(place, place));
    rig.send(client, &[&["SET", &ours, "1"], &["SET", &others, "2"]]);
    assert_eq!(rig.words_at_stores(), ["SET", "SET"]);
    let attempts = rig.attempts;
    for shard in &mut rig.shards {
        shard.handle_store_moved(BackendId(0), rig.now);
    }
    rig.turns();
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE backend=store0 reason=store-moved retry_after_ms="), "{told}");
    assert_eq!(rig.owed(), 1, "the other store owes what it owed");
    rig.answer_first(&others, "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    rig.wait(Duration::from_millis(100));
    rig.send(client, &[&["GET", &ours]]);
    assert!(rig.attempts > attempts, "over another connection");
    rig.answer_first("GET", "$1\r\n2\r\n");
    assert_eq!(rig.told(client), "$1\r\n2\r\n");
    assert_eq!(rig.shards[0].counters().get(Counter::StoresMoved), 1);
}

#[test]
fn that_a_store_could_not_be_reached_says_nothing_of_the_one_its_name_leads_to() {
    for before in [Connecting::Fails, Connecting::Hangs] {
        let mut rig = Rig::new(1, 1);
        let client = rig.client(0);
        rig.connecting = before;
        rig.send(client, &[&["GET", "a"]]);
        rig.connecting = Connecting::Works;
        rig.shards[0].handle_store_moved(BackendId(0), rig.now);
        rig.turns();
        assert_eq!(rig.told(client).matches("-UNAVAILABLE").count(), 1);
        rig.send(client, &[&["GET", "a"]]);
        rig.answer_next("$1\r\n1\r\n");
        assert_eq!(rig.told(client), "$1\r\n1\r\n");
    }
}

#[test]
fn a_backend_that_cannot_be_reached_is_left_alone_for_a_while() {
    let mut rig = Rig::new(1, 1);
    rig.connecting = Connecting::Fails;
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
    assert_eq!(rig.told(client).matches("-UNAVAILABLE backend=store0 reason=connect-failed").count(), 2);
    let attempts = rig.attempts;
    rig.send(client, &[&["GET", "a"]]);
    assert_eq!((rig.attempts, rig.told(client).matches("-UNAVAILABLE").count()), (attempts, 1));
    rig.wait(Duration::from_secs(1));
    rig.connecting = Connecting::Works;
    rig.send(client, &[&["GET", "a"]]);
    assert_eq!(rig.attempts, attempts + 1);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n");
}

#[test]
fn a_backend_that_goes_on_answering_is_not_given_up() {
    let mut rig = Rig::with(1, 1, |settings| settings.reply_timeout = Duration::from_secs(2));
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"][..]; 10]);
    for _ in 0..10 {
        rig.wait(Duration::from_millis(1_500));
        rig.answer_next("$-1\r\n");
        assert_eq!(rig.told(client), "$-1\r\n");
    }
}

#[test]
fn a_backend_that_is_silent_is_given_up() {
    let mut rig = Rig::with(1, 1, |settings| settings.reply_timeout = Duration::from_secs(2));
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.told(client), "");
    rig.connecting = Connecting::Hangs;
    rig.wait(Duration::from_millis(1_500));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    assert!(matches!(rig.actions.last(), Some((0, Action::Reset(Owner::Link(..))))));

    rig.send(client, &[&["GET", "a"]]);
    rig.wait(Duration::from_secs(2));
    assert!(rig.told(client).contains("reason=connect-timeout"));
}

#[test]
fn a_backend_that_is_silent_for_half_a_second_has_its_connection_examined() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    rig.wait(Duration::from_millis(400));
    assert_eq!(rig.take_examined(), 0);
    rig.wait(Duration::from_millis(400));
    assert!(rig.take_examined() > 0);
    rig.answer_next("$-1\r\n");
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.take_examined(), 0, "nothing is owed any more");
}

const READ_ONLY: &str = "-READONLY You can't write against a read only replica.\r\n";

#[test]
fn without_queues_a_connection_to_a_new_replica_goes_on_until_nothing_is_unanswered() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["SET", "a", "1"], &["GET", "b"]]);
    rig.answer_next(READ_ONLY);
    rig.send(client, &[&["GET", "c"]]);
    assert_eq!(rig.words_at_stores(), ["GET", "GET"]);
    rig.answer_next("$-1\r\n");
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), format!("{READ_ONLY}$-1\r\n$-1\r\n"));
    assert_eq!(rig.shards[0].counters().get(Counter::LinksRenewed), 0);
    rig.send(client, &[&["GET", "d"]]);
    assert_eq!(rig.shards[0].counters().get(Counter::LinksRenewed), 1);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n");
}

#[test]
fn a_store_that_has_become_a_replica_is_reached_anew_once_all_its_replies_have_come() {
    let mut rig = Rig::with(1, 1, |settings| {
        (settings.overload.window, settings.overload.queue) = (Mode::On, Mode::On);
    });
    let [writer, reader] = [rig.client(0), rig.client(0)];
    let opened = |rig: &Rig| rig.shards[0].counters().get(Counter::LinksOpened);
    rig.send(writer, &[&["SET", "a", "1"]]);
    rig.send(reader, &[&["GET", "b"]]);
    assert_eq!(opened(&rig), 1);
    rig.answer_next(READ_ONLY);
    assert_eq!(rig.told(writer), READ_ONLY, "the client gets it");
    // The next request waits until the read before it is answered, and leaves over another connection.
    rig.send(writer, &[&["SET", "a", "2"]]);
    rig.wait(Duration::from_millis(20));
    assert_eq!((rig.words_at_stores(), opened(&rig)), (vec!["GET"], 1));
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(reader), "$-1\r\n", "it is not lost");
    rig.wait(Duration::from_millis(20));
    assert_eq!((rig.words_at_stores(), opened(&rig)), (vec!["SET"], 2));
    assert_eq!(rig.actions.iter().filter(|(_, action)| matches!(action, Action::Close(..))).count(), 1);
    // A store that stays a replica is not connected to again for each write.
    for _ in 0..20 {
        rig.answer_next(READ_ONLY);
        rig.send(writer, &[&["SET", "a", "3"]]);
    }
    assert_eq!(opened(&rig), 2);
    rig.wait(Duration::from_millis(1_100));
    rig.answer_next(READ_ONLY);
    rig.send(writer, &[&["SET", "a", "4"]]);
    assert_eq!(opened(&rig), 3);
    rig.answer_next("+OK\r\n");
    assert!(rig.told(writer).ends_with("+OK\r\n"));
}

#[test]
fn bytes_that_are_no_reply_end_the_link() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
    rig.answer_next("$1\r\na\r\nwhat?\r\n");
    assert_eq!(
        rig.told(client),
        "$1\r\na\r\n-UNAVAILABLE backend=store0 reason=malformed-reply retry_after_ms=50\r\n"
    );
    rig.send(client, &[&["GET", "a"]]);
    let sent = rig.at_stores.remove(0);
    rig.bytes(&sent, b"$1\r\na\r\n+and one more\r\n");
    assert_eq!(rig.told(client), "$1\r\na\r\n");
    assert_eq!(rig.shards[0].links_open(), 0, "nobody asked for the second one");
}

#[test]
fn a_reply_that_is_too_large_is_let_go() {
    let mut rig = Rig::with(1, 1, |settings| settings.reply_bytes_max = 1_000);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
    rig.answer_next("$5000\r\n");
    for _ in 0..5 {
        rig.more(&"x".repeat(1_000));
    }
    rig.more("\r\n");
    rig.answer_next("$1\r\nb\r\n");
    assert_eq!(
        rig.told(client),
        "-ERR the reply is larger than 1000 bytes (--max-reply-bytes)\r\n$1\r\nb\r\n"
    );
}

#[test]
fn a_client_for_which_too_much_waits_is_closed() {
    let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 5_000);
    let client = rig.client(0);
    rig.reading = Reading::Never;
    rig.send(client, &[&["GET", "a"], &["GET", "b"], &["GET", "c"]]);
    for _ in 0..2 {
        rig.answer_next(&format!("$4000\r\n{}\r\n", "v".repeat(4_000)));
    }
    assert_eq!(rig.shards[0].clients_open(), 1, "one reply is with the socket, one waits");
    rig.answer_next(&format!("$4000\r\n{}\r\n", "v".repeat(4_000)));
    assert_eq!(rig.shards[0].clients_open(), 0);
    assert_eq!(rig.shards[0].counters().get(Counter::ClientsClosedUnread), 1);
    assert!(rig.actions.contains(&(0, Action::Close(Owner::Client(rig.id(client))))));
}

#[test]
fn an_answer_that_is_too_much_and_the_last_one_closes_once() {
    for last in [&["QUIT"][..], &["HELLO", "2"], &["RESET"]] {
        let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 2);
        let client = rig.client(0);
        rig.send(client, &[last]);
        assert_eq!(rig.shards[0].clients_open(), 0, "{last:?}");
    }
    let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 2);
    let client = rig.client(0);
    rig.raw(client, b"*1\r\nwrong");
    assert_eq!(rig.shards[0].clients_open(), 0);
    assert_eq!(rig.actions.len(), 1);
}

#[test]
fn a_client_that_takes_nothing_is_closed_though_nothing_else_happens() {
    let mut rig = Rig::with(1, 1, |settings| settings.send_timeout = Duration::from_secs(2));
    rig.reading = Reading::Never;
    let client = rig.client(0);
    rig.send(client, &[&["PING"]]);
    assert!(rig.shards[0].poll_deadline().is_some(), "someone must look");
    rig.wait(Duration::from_secs(3));
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_client_that_takes_little_at_a_time_is_not_closed() {
    let mut rig = Rig::with(1, 1, |settings| settings.send_timeout = Duration::from_secs(2));
    rig.reading = Reading::Never;
    let client = rig.client(0);
    rig.send(client, &[&["PING"]]);
    for _ in 0..5 {
        rig.wait(Duration::from_millis(1_500));
        let (shard, id) = rig.clients[client];
        rig.shards[shard].handle_sending(Owner::Client(id), rig.now);
        assert_eq!(rig.shards[0].clients_open(), 1);
    }
    rig.wait(Duration::from_secs(3));
    assert_eq!(rig.shards[0].clients_open(), 0, "it has stopped");
}

#[test]
fn a_client_that_waits_for_a_slow_store_is_not_idle() {
    let mut rig = Rig::with(1, 1, |settings| settings.idle_timeout = Some(Duration::from_secs(2)));
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    rig.wait(Duration::from_secs(5));
    rig.reading = Reading::Never;
    rig.answer_next("$-1\r\n");
    rig.wait(Duration::from_millis(200));
    assert_eq!(rig.shards[0].clients_open(), 1, "its reply is on its way");
    rig.take_all();
    assert_eq!(rig.told(client), "$-1\r\n");
    rig.wait(Duration::from_secs(3));
    assert_eq!(rig.shards[0].clients_open(), 0, "now it is");
}

#[test]
fn draining_answers_what_was_taken_on_and_closes() {
    let mut rig = Rig::new(2, 1);
    let (client, quiet) = (rig.client(0), rig.client(0));
    let key = rig.key(1, 0);
    rig.send(client, &[&["GET", &key]]);
    rig.shards[0].refuse_newcomers();
    for id in [client, quiet].map(|client| rig.id(client)) {
        rig.shards[0].handle_client_end(id, rig.now);
    }
    rig.turns();
    assert_eq!(rig.actions, [(0, Action::Close(Owner::Client(rig.id(quiet))))]);
    rig.send(client, &[&["PING"]]);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n", "and nothing to what came later");
    assert_eq!(rig.shards[0].clients_open(), 0);
    let late = rig.client(0);
    assert_eq!(rig.shards[0].clients_open(), 0, "{late} is closed at once");
}

#[test]
fn draining_answers_what_was_read_though_it_had_to_wait() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let many = limits::PIPELINE_MAX + 10;
    rig.raw(client, &request(&["GET", "a"]).repeat(many));
    rig.shards[0].refuse_newcomers();
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    rig.turns();
    for _ in 0..many {
        assert_eq!(rig.shards[0].clients_open(), 1);
        rig.answer_next("$-1\r\n");
    }
    assert_eq!(rig.told(client), "$-1\r\n".repeat(many));
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_half_closed_client_gets_all_its_replies() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["DBSIZE"], &["ECHO", "last"]]);
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    rig.turns();
    rig.answer_next("$-1\r\n");
    for _ in 0..2 {
        assert_eq!(rig.shards[0].clients_open(), 1);
        rig.answer_next(":1\r\n");
    }
    assert_eq!(rig.told(client), "$-1\r\n:2\r\n$4\r\nlast\r\n");
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_long_pipeline_is_taken_on_in_portions() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let many = limits::PIPELINE_MAX + 10;
    let several = 2 * many;
    rig.raw(client, &request(&["GET", "a"]).repeat(several));
    assert_eq!(rig.owed(), 64, "until it is known how large the replies are");
    for answered in 1..several {
        rig.answer_next("$-1\r\n");
        let more = rig.owed() + answered;
        assert!(more >= several.min(64 + answered), "one answered, at least one more taken on");
        assert!(rig.owed() <= limits::PIPELINE_MAX);
        if (100..1_000).contains(&answered) {
            assert_eq!(rig.owed(), limits::PIPELINE_MAX, "the replies are small");
        }
    }
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n".repeat(several));
    assert_eq!(rig.owed(), 0);
}

#[test]
fn a_client_that_cannot_go_on_is_not_read_from_for_ever() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let owner = Owner::Client(rig.id(client));
    rig.send(client, &[&["DBSIZE"]]);
    let large = request(&["ECHO", &"x".repeat(10_000)]);
    for _ in 0..8 {
        rig.raw(client, &large);
    }
    assert_eq!(rig.actions, [(0, Action::PauseReading(owner))]);
    rig.answer_next(":1\r\n");
    assert_eq!(rig.actions, [(0, Action::PauseReading(owner)), (0, Action::ResumeReading(owner))]);
    assert_eq!(rig.told(client).matches("$10000\r\n").count(), 8);
}

#[test]
fn a_walk_over_three_stores_meets_every_key() {
    let mut rig = Rig::new(1, 3);
    let client = rig.client(0);
    // The pages that each store replies: its next cursor, and the key on the page.
    let pages = [vec![(17, "a"), (0, "b")], vec![(0, "c")], vec![(3, "d"), (9, "e"), (0, "f")]];
    let (mut cursor, mut met) = ("0".to_owned(), Vec::new());
    for (store, pages) in pages.iter().enumerate() {
        let mut expected_cursor = 0;
        for (next, key) in pages {
            rig.send(client, &[&["SCAN", &cursor, "COUNT", "1"]]);
            let sent = rig.at_stores.first().expect("one store is asked");
            assert_eq!(usize::from(sent.backend.0), store);
            assert_eq!(sent.frame.as_bytes(), request(&["SCAN", &expected_cursor.to_string(), "COUNT", "1"]));
            let next_text = next.to_string();
            rig.answer_next(&format!("*2\r\n${}\r\n{next_text}\r\n*1\r\n$1\r\n{key}\r\n", next_text.len()));
            let told = rig.told(client);
            let lines: Vec<&str> = told.split("\r\n").collect();
            cursor = lines[2].to_owned();
            met.push(lines[5].to_owned());
            expected_cursor = *next;
        }
    }
    assert_eq!((cursor.as_str(), met.concat().as_str()), ("0", "abcdef"));
    rig.send(client, &[&["SCAN", "nonsense"]]);
    assert_eq!(rig.told(client), "-ERR invalid cursor\r\n");
}

#[test]
fn wishes_are_taken_or_refused_with_a_reason() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    for (request, answer) in [
        (&["QOS", "SET"][..], "-ERR wrong number of arguments for 'qos|set' command"),
        (&["QOS", "SET", "TIER", "batch"], "+OK"),
        (&["QOS", "SET", "TIER", "critical"], "-ERR QOS TIER 'critical': above 'standard'"),
        (&["QOS", "SET", "TIER", "urgent"], "-ERR QOS TIER 'urgent': critical, standard"),
        (&["QOS", "SET", "DEADLINE", "0"], "-ERR QOS DEADLINE '0': whole milliseconds"),
        (&["QOS", "SET", "COLOUR", "red"], "-ERR QOS SET 'COLOUR'"),
        (&["QOS", "CALL", "TIER", "batch"], "-ERR wrong number of arguments for 'qos|call' command"),
        (&["QOS", "CALL", "QOS", "HELP"], "-ERR QOS CALL: a command other than QOS"),
        (&["QOS", "CALL", "TIER", "sheddable", "ECHO", "x"], "$1\r\nx"),
        (&["QOS", "HOTKEYS", "COUNT"], "-ERR QOS HOTKEYS: nothing more, or COUNT and a number from 1"),
        (&["QOS", "HOTKEYS", "COUNT", "1001"], "-ERR QOS HOTKEYS: nothing more, or COUNT"),
        (&["QOS", "TENANTS", "AFTER"], "-ERR QOS TENANTS: nothing more, or AFTER and a name,"),
        (&["QOS", "NOPE"], "-ERR unknown subcommand 'NOPE'"),
    ] {
        rig.send(client, &[request]);
        let told = rig.told(client);
        assert!(told.starts_with(answer) && told.ends_with("\r\n"), "{request:?}: {told}");
    }
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "GET", "a"]]);
    assert_eq!(rig.at_stores[0].frame.as_bytes(), request(&["GET", "a"]));
    rig.answer_next("$-1\r\n");
    rig.told(client);
    let told = rig.asks(client, &["CLIENT", "LIST"]);
    assert!(told.contains(" tier=batch\n"), "what was said for one request does not stay");
}

#[test]
fn malformed_bytes_are_answered_behind_what_came_before_and_end_the_connection() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let mut bytes = request(&["GET", "a"]);
    bytes.extend_from_slice(b"*1\r\n$-5\r\n");
    bytes.extend_from_slice(&request(&["PING"]));
    rig.raw(client, &bytes);
    assert_eq!(rig.told(client), "");
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n-ERR Protocol error: invalid bulk length\r\n");
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_client_that_left_leaves_nothing_behind() {
    let mut rig = Rig::new(2, 2);
    let client = rig.client(0);
    let [near, far] = [rig.key(0, 0), rig.key(1, 1)];
    rig.send(client, &[&["MGET", &near, &far], &["GET", &far], &["DBSIZE"]]);
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    assert_eq!((rig.shards[0].gathers_open(), rig.shards[0].clients_open()), (0, 0));
    let successor = rig.client(0);
    rig.send(successor, &[&["PING"]]);
    while !rig.at_stores.is_empty() {
        rig.answer_next("*1\r\n$4\r\nlate\r\n");
    }
    assert_eq!((rig.told(successor), rig.owed()), ("+PONG\r\n".to_owned(), 0));
}

const QUOTAS: &str = r#"
[tenants.acme]
password = "a"
ru_per_second = 1000
keys = ["acme:"]
[tenants.root]
password = "r"
ru_per_second = 1000
admin = true
"#;

fn quotas(text: &str) -> Arc<Quotas> {
    Arc::new(Quotas::parse("quotas.toml", text).expect("well formed"))
}

#[test]
fn a_stranger_may_only_say_who_it_is() {
    let mut rig = Rig::new(1, 1);
    let now = rig.now;
    rig.shards[0].handle_quotas(quotas(QUOTAS), now);
    let client = rig.client(0);
    for refused in
        [&["GET", "a"][..], &["DBSIZE"], &["FROB", "a"], &["MULTI"], &["QOS", "CALL", "GET", "a"], &["INFO"]]
    {
        rig.send(client, &[refused]);
        assert_eq!(rig.told(client), "-NOAUTH Authentication required.\r\n", "{refused:?}");
    }
    rig.send(client, &[&["AUTH", "acme", "wrong"]]);
    assert!(rig.told(client).starts_with("-WRONGPASS "));
    rig.send(client, &[&["HELLO", "3"]]);
    assert!(rig.told(client).starts_with("-NOAUTH HELLO must be called"));
    rig.send(client, &[&["AUTH", "acme/cart", "a"], &["ACL", "WHOAMI"], &["RESET"], &["GET", "a"]]);
    assert_eq!(rig.told(client), "+OK\r\n$9\r\nacme/cart\r\n+RESET\r\n-NOAUTH Authentication required.\r\n");
    rig.raw(client, b"*11\r\n");
    assert_eq!(rig.told(client), "-ERR Protocol error: unauthenticated multibulk length\r\n");
    assert_eq!((rig.shards[0].clients_open(), rig.at_stores.len()), (0, 0));
}

#[test]
fn a_tenant_reaches_only_what_is_its_own() {
    let mut rig = Rig::new(1, 1);
    let now = rig.now;
    rig.shards[0].handle_quotas(quotas(QUOTAS), now);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "2", "AUTH", "acme", "a"]]);
    assert!(rig.told(client).starts_with("*14\r\n"));
    for refused in [
        &["GET", "other:1"][..],
        &["MGET", "acme:1", "other:1"],
        &["RENAME", "acme:1", "other:1"],
        &["SCAN", "0"],
        &["SCAN", "0", "MATCH", "*acme:*"],
        &["EVAL", "return 1", "0"],
        &["FLUSHALL"],
        &["KEYS", "acme:*"],
        &["SORT", "acme:1", "BY", "other:*"],
        &["QOS", "CALL", "GET", "other:1"],
    ] {
        rig.send(client, &[refused]);
        let told = rig.told(client);
        assert!(told.starts_with("-NOPERM tenant 'acme' "), "{refused:?}: {told}");
        assert!(rig.at_stores.is_empty());
    }
    rig.send(client, &[&["FROB", "acme:1"]]);
    assert!(
        rig.told(client).starts_with("-ERR unknown command 'FROB'"),
        "nobody can tell what it would reach"
    );
    rig.send(client, &[&["MULTI"], &["SET", "acme:1", "x"], &["SET", "other:1", "x"], &["EXEC"]]);
    assert!(rig.told(client).ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    assert!(rig.at_stores.is_empty());
    rig.send(client, &[&["MGET", "acme:1", "acme:2"], &["SCAN", "0", "MATCH", "acme:*"]]);
    assert_eq!(rig.words_at_stores(), ["MGET"]);
    rig.answer_next("*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(rig.words_at_stores(), ["SCAN"]);
}

#[test]
fn acl_list_names_the_commands_that_a_tenant_may_not_run() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(
        "[tenants.root]\npassword = 'r'\nadmin = true\n[tenants.all]\npassword = 'a'\n[tenants.own]\npassword = 'o'\nkeys = ['1']\n[tenants.first]\npassword = 'f'\ndatabases = [0]",
    );
    // Open with other arguments than those below, or without an answer at once.
    let by_arguments = [
        "copy",
        "exec",
        "monitor",
        "move",
        "pubsub|channels",
        "pubsub|shardchannels",
        "quit",
        "reset",
        "scan",
        "select",
    ];
    let mut wrong = Vec::new();
    for (tenant, password) in [("root", "r"), ("all", "a"), ("own", "o"), ("first", "f")] {
        let asker = rig.signed_in(tenant, password);
        rig.send(asker, &[&["ACL", "GETUSER", tenant]]);
        let told = rig.told(asker);
        let line = told.split("\r\n").find(|line| line.starts_with("+@all")).expect("it has commands");
        let closed: Vec<&str> = line.split(" -").skip(1).collect();
        for command in command::all() {
            if by_arguments.contains(&command.name) || matches!(command.handling, Handling::Refused(_)) {
                continue;
            }
            let mut words: Vec<&str> = command.name.split('|').collect();
            words.resize(usize::from(command.arity.unsigned_abs()), "1");
            let client = rig.signed_in(tenant, password);
            rig.send(client, &[&words]);
            let is_refused = rig.told(client).starts_with("-NOPERM");
            if is_refused != closed.contains(&command.name) {
                wrong.push(format!("{tenant}: {words:?} {is_refused}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn new_quotas_keep_a_tenant_by_its_name_and_turn_away_one_that_is_gone() {
    let mut rig = Rig::new(1, 1);
    let now = rig.now;
    rig.shards[0].handle_quotas(quotas(QUOTAS), now);
    let [stays, goes] = [rig.client(0), rig.client(0)];
    rig.send(stays, &[&["AUTH", "root", "r"]]);
    rig.send(goes, &[&["AUTH", "acme", "a"]]);
    let fewer = QUOTAS.split("[tenants.root]").nth(1).expect("two tenants");
    let now = rig.now;
    rig.shards[0].handle_quotas(quotas(&format!("[tenants.root]{fewer}")), now);
    assert_eq!((rig.told(stays), rig.told(goes)), ("+OK\r\n".into(), "+OK\r\n".into()));
    for client in [stays, goes] {
        rig.send(client, &[&["ACL", "WHOAMI"]]);
    }
    assert_eq!(rig.told(stays), "$4\r\nroot\r\n");
    assert_eq!(rig.told(goes), "-NOAUTH Authentication required.\r\n");
}

/// The outcome of the attempts to connect to stores that shards make in a test: they work, fail, or have no
/// outcome.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connecting {
    Works,
    Fails,
    Hangs,
}

/// Whether clients take the bytes that are sent to them, or never read, so that output waits in the shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Always,
    Never,
}

/// Whether shards have other work, so that they are never idle at the end of a turn (pass of the shard's
/// loop).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    None,
    Other,
}

/// A request that a shard has sent to a store and that the test has not answered yet, with the connection for
/// its reply.
#[derive(Clone, Debug)]
struct Sent {
    shard: usize,
    link: ConnectionId,
    generation: u32,
    backend: BackendId,
    frame: String,
    /// The number of the segment (bytes that a shard handed to the socket at once) in which the request was
    /// sent, counted from the beginning of the last [`Rig::turns`].
    segment: usize,
}

/// Shards without sockets, with stores and clients that do what a test says: what most tests of shards begin
/// with.
struct Rig {
    shards: Vec<Shard>,
    /// The amount, in millionths of a request unit, that each core may spend of a bucket after each of its reports, and
    /// true if the quota pools (the parts of buckets that no core holds) have nothing left beside it.
    pools: (i64, bool),
    /// The reports of shards about their demand on quotas and about usage.
    reports: Vec<Report>,
    topology: Topology,
    now: Now,
    clients: Vec<(usize, ClientId)>,
    received: BTreeMap<(usize, u32), Vec<u8>>,
    untaken: Vec<(usize, Owner, Segment)>,
    links: BTreeMap<(usize, ConnectionId), BackendId>,
    /// The number of shared connections to stores of each shard; connections with higher numbers are private
    /// links, which one client has to itself.
    shared_links: u32,
    /// The requests that stores have received and not answered yet, in the order in which they were sent.
    at_stores: Vec<Sent>,
    /// The request that was answered last, so that a test can send more bytes of its reply.
    answered: Option<Sent>,
    /// The actions that shards asked the runtime for, except connecting, which the test has not taken yet.
    actions: Vec<(usize, Action)>,
    attempts: usize,
    connecting: Connecting,
    reading: Reading,
    work: Work,
    /// True if shards are told at once that the other shards have handled all bytes that arrived before a
    /// message (`PUBLISH`); false if they are never told.
    others_get_on: bool,
    /// The number of connections to which stores have given an id in the greeting (first requests); the last one has
    /// this id.
    named: u64,
    killed: Vec<String>,
    /// The reply of stores to `CLIENT KILL` of a connection that weir gave up.
    kill_reply: &'static str,
    /// The tier (importance) that stores report to have given weir's connections, as a weir does; `None` for
    /// stores that are no weirs.
    inner: Option<&'static str>,
    /// The reply of stores that are weirs to `QOS SET INFLIGHT WAIT`, by which they agree to be sent
    /// deadlines.
    terms: &'static str,
    /// The cluster map as it follows from the views of nodes that tests have published so far.
    cluster: Cluster,
    /// The reply of stores to `SELECT` in the greeting (first requests) of a shared connection.
    select_reply: &'static str,
    /// The database that the greeting (first requests) of each connection has selected last, by shard and
    /// connection.
    selected: BTreeMap<(usize, ConnectionId), String>,
}

impl Rig {
    fn new(shards: u16, backends: u16) -> Self {
        Self::with(shards, backends, |_| {})
    }

    fn with(shards: u16, backends: u16, change: impl Fn(&mut ShardSettings)) -> Self {
        let topology = Topology::new(shards, backends);
        let backends: Arc<[BackendSettings]> = (0..backends)
            .map(|index| BackendSettings { name: format!("store{index}"), credentials: None })
            .collect();
        let common = ShardSettings::new(topology, backends);
        let mut shared_links = 0;
        let shards = (0..shards)
            .map(|id| {
                let mut settings = ShardSettings {
                    id: ShardId(id),
                    // Overload protection is off; it has tests of its own.
                    overload: OverloadSettings::off(topology.shards(), topology.backends()),
                    ..common.clone()
                };
                change(&mut settings);
                shared_links = connections_max(&settings);
                Shard::new(settings, Arc::new(Quotas::trusting()))
            })
            .collect();
        Self {
            shards,
            pools: (1_000_000_000, false),
            reports: Vec::new(),
            topology,
            now: Now { monotonic: Timestamp::from_millis(1), unix_ms: 1_700_000_000_000 },
            clients: Vec::new(),
            received: BTreeMap::new(),
            untaken: Vec::new(),
            links: BTreeMap::new(),
            shared_links,
            at_stores: Vec::new(),
            answered: None,
            actions: Vec::new(),
            attempts: 0,
            connecting: Connecting::Works,
            reading: Reading::Always,
            work: Work::None,
            others_get_on: true,
            named: 0,
            killed: Vec::new(),
            kill_reply: ":1\r\n",
            inner: None,
            terms: "+OK\r\n",
            cluster: Cluster::default(),
            select_reply: "+OK\r\n",
            selected: BTreeMap::new(),
        }
    }

    /// Returns a key whose home (the core through which its requests pass) is the core `home`, and whose store is
    /// `backend`.
    fn key(&self, home: u16, backend: u16) -> String {
        let lives_there = |key: &String| {
            let slot = slot_of(key.as_bytes());
            (self.topology.home_of(slot), self.topology.backend_of(slot))
                == (ShardId(home), BackendId(backend))
        };
        (0..100_000)
            .map(|number| format!("key-{home}-{backend}-{number}"))
            .find(lives_there)
            .expect("some key does")
    }

    fn client(&mut self, shard: usize) -> usize {
        let id = self.shards[shard].handle_client_opened(self.now);
        self.clients.push((shard, id));
        self.turns();
        self.clients.len() - 1
    }

    fn id(&self, client: usize) -> ClientId {
        self.clients[client].1
    }

    fn owed(&self) -> usize {
        self.shards.iter().map(Shard::replies_in_flight).sum()
    }

    fn send(&mut self, client: usize, requests: &[&[&str]]) {
        let bytes: Vec<u8> = requests.iter().flat_map(|words| request(words)).collect();
        self.raw(client, &bytes);
    }

    fn raw(&mut self, client: usize, bytes: &[u8]) {
        let (shard, id) = self.clients[client];
        self.shards[shard].handle_client_bytes(id, bytes, self.now);
        self.turns();
    }

    /// Returns the bytes that a client has received since the last call, as text.
    fn told(&mut self, client: usize) -> String {
        let (shard, id) = self.clients[client];
        let bytes = self.received.remove(&(shard, id.index)).unwrap_or_default();
        String::from_utf8(bytes).expect("tests speak text")
    }

    fn frames(&self, word: &str) -> Vec<&Sent> {
        self.at_stores.iter().filter(|sent| sent.frame.contains(word)).collect()
    }

    /// Returns the command names of the requests that stores have received and not answered yet, the oldest
    /// first.
    fn words_at_stores(&self) -> Vec<&str> {
        self.at_stores.iter().map(|sent| sent.frame.split("\r\n").nth(2).expect("a command")).collect()
    }

    /// Sends `reply` to the oldest unanswered request that contains `word`. Returns the number of requests
    /// that are unanswered after that. Panics if no request contains the word.
    fn answer_first(&mut self, word: &str, reply: &str) -> usize {
        let at = self.at_stores.iter().position(|sent| sent.frame.contains(word)).expect("it was sent");
        let sent = self.at_stores.remove(at);
        self.bytes(&sent, reply.as_bytes());
        self.answered = Some(sent);
        self.at_stores.len()
    }

    /// Forgets the actions that shards asked for, and returns how many of them are to examine a connection to
    /// a store (to check whether its host still acknowledges bytes).
    fn take_examined(&mut self) -> usize {
        let examines = |(_, action): &(usize, Action)| matches!(action, Action::Examine(Owner::Link(..)));
        std::mem::take(&mut self.actions).iter().filter(|action| examines(action)).count()
    }

    /// Sends `reply` to the oldest unanswered request at the stores.
    fn answer_next(&mut self, reply: &str) {
        self.answer_first("", reply);
    }

    /// Sends more bytes of the reply to the request that was answered last.
    fn more(&mut self, bytes: &str) {
        let sent = self.answered.clone().expect("a reply was begun");
        self.bytes(&sent, bytes.as_bytes());
    }

    fn bytes(&mut self, over: &Sent, bytes: &[u8]) {
        self.shards[over.shard].handle_link_bytes(over.link, over.generation, bytes, self.now);
        // Requests of weir's own on a private link are answered when their turn comes.
        while let Some(at) = self.first_of(over.shard, over.link)
            && is_answered_for(&self.at_stores[at].frame)
        {
            let Sent { shard, link, generation, frame, .. } = self.at_stores.remove(at);
            self.greeted(shard, link, generation, &frame);
        }
        self.turns();
    }

    /// Returns the index in `at_stores` (unanswered requests) of the oldest request sent over a private link
    /// (connection that one client has to itself); None if there is none, or the connection is shared.
    fn first_of(&self, shard: usize, link: ConnectionId) -> Option<usize> {
        let is_private = link.0 >= self.shared_links;
        self.at_stores.iter().position(|sent| is_private && (sent.shard, sent.link) == (shard, link))
    }

    /// Breaks the connection over which the oldest unanswered request that contains `word` was sent: the
    /// store closes it.
    fn lose(&mut self, word: &str) {
        let Sent { shard, link, generation, .. } = self.frames(word)[0].clone();
        self.at_stores.retain(|sent| (sent.shard, sent.link) != (shard, link));
        self.shards[shard].handle_link_lost(link, generation, Loss::ByPeer, self.now);
        self.turns();
    }

    /// Lets time pass, and runs turns (passes of the shards' loops) only at times for which a shard has
    /// asked.
    fn wait(&mut self, duration: Duration) {
        let end = self.now.monotonic.after(duration);
        while let Some(next) =
            self.shards.iter().filter_map(Shard::poll_deadline).min().filter(|next| *next <= end)
        {
            self.now.monotonic = next;
            self.turns();
        }
        self.now.monotonic = end;
    }

    /// Lets clients take all bytes that were sent to them, from now on without delay.
    fn take_all(&mut self) {
        self.reading = Reading::Always;
        for (shard, owner, segment) in std::mem::take(&mut self.untaken) {
            self.take(shard, owner, segment);
        }
        self.turns();
    }

    /// Runs turns (passes of the loop) of all shards until none has anything left to do.
    fn turns(&mut self) {
        let mut segments = 0;
        loop {
            let mut moved = false;
            for shard in 0..self.shards.len() {
                moved |= self.shards[shard].is_busy();
                if self.others_get_on && self.shards[shard].awaits_others() {
                    moved = true;
                    self.shards[shard].handle_others_handled(self.now.monotonic);
                }
                self.shards[shard].handle_turn_end(self.now);
                if self.work == Work::None {
                    self.shards[shard].handle_quiet();
                }
                while let Some(action) = self.shards[shard].poll_action() {
                    moved = true;
                    self.act(shard, action);
                }
                while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
                    moved = true;
                    self.transmit(shard, owner, segment, segments);
                    segments += 1;
                }
                while let Some(report) = self.shards[shard].poll_report() {
                    moved = true;
                    let granted = |demand: &Demand| Grant {
                        bucket: demand.bucket,
                        amount: demand.spent + self.pools.0,
                        holds: self.pools.0 as u64,
                        level: 0,
                        at: self.now.monotonic,
                        share: 1 << 15,
                        part: crate::values::Part::WHOLE,
                        dry_from: self.pools.1.then_some(0),
                    };
                    let grants: Vec<Grant> = report.demands.iter().map(granted).collect();
                    if !grants.is_empty() {
                        self.shards[shard].handle_grants(&grants, self.now);
                    }
                    self.reports.push(report);
                }
                while let Some((to, batch)) = self.shards[shard].poll_batch() {
                    moved = true;
                    self.shards[usize::from(to.0)].handle_batch(batch, self.now);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn act(&mut self, shard: usize, action: Action) {
        if let Action::Reset(Owner::Link(link, _)) = action {
            self.at_stores.retain(|sent| (sent.shard, sent.link) != (shard, link));
        }
        let Action::Connect { owner: Owner::Link(link, generation), backend } = action else {
            return self.actions.push((shard, action));
        };
        self.attempts += 1;
        self.links.insert((shard, link), backend);
        match self.connecting {
            Connecting::Works => self.shards[shard].handle_link_connected(link, generation, self.now),
            Connecting::Fails => {
                self.shards[shard].handle_link_lost(link, generation, Loss::ByPeer, self.now);
            }
            Connecting::Hangs => {}
        }
    }

    fn transmit(&mut self, shard: usize, owner: Owner, segment: Segment, number: usize) {
        match owner {
            Owner::Client(_) if self.reading == Reading::Never => self.untaken.push((shard, owner, segment)),
            Owner::Client(_) => self.take(shard, owner, segment),
            Owner::Link(link, generation) => {
                let backend = self.links[&(shard, link)];
                let frames = frames_of(&segment.bytes());
                let is_private = link.0 >= self.shared_links;
                let greets = frames.iter().any(|frame| frame.contains("\r\nCLIENT\r\n$4\r\nINFO\r\n"));
                for frame in frames {
                    // Tests answer the greetings of private links themselves, except for CLIENT INFO.
                    let is_greeting = ["INFO", "KILL", "LIST\r\n$2\r\nID", "INFLIGHT", "READONLY"]
                        .iter()
                        .any(|word| frame.contains(&format!("\r\n{word}\r\n")))
                        && !frame.contains("\r\nSCRIPT\r\n")
                        || greets && !is_private && frame.contains("\r\nSELECT\r\n");
                    let is_greeting = is_greeting && self.first_of(shard, link).is_none();
                    if is_greeting {
                        self.greeted(shard, link, generation, &frame);
                        continue;
                    }
                    self.at_stores.push(Sent { shard, link, generation, backend, frame, segment: number });
                }
                self.shards[shard].handle_transmitted(owner, segment, self.now);
            }
        }
    }

    /// Answers a request (`frame`) of a connection's greeting (first requests) as a store does: tells the
    /// connection's id, kills the connection that the request names, selects a database or agrees to
    /// deadlines.
    fn greeted(&mut self, shard: usize, link: ConnectionId, generation: u32, frame: &str) {
        let reply = if frame.contains("\r\nKILL\r\n") {
            self.killed.push(frame.split("\r\n").nth(8).expect("an id").to_owned());
            self.kill_reply.to_owned()
        } else if frame.contains("\r\nSELECT\r\n") {
            let number = frame.split("\r\n").nth(4).expect("a number").to_owned();
            self.selected.insert((shard, link), number);
            self.select_reply.to_owned()
        } else if frame.contains("\r\nREADONLY\r\n") {
            "+OK\r\n".to_owned()
        } else if frame.contains("\r\nQOS\r\n") {
            assert!(self.inner.is_some(), "a plain store never hears of it");
            self.terms.to_owned()
        } else if frame.contains("\r\nLIST\r\n") {
            let tier = self.inner.expect("a plain store is not asked for it");
            let line = format!("id={} addr=127.0.0.1:9 fd=-1 name= tier={tier}", self.named);
            format!("${}\r\n{line}\r\n", line.len())
        } else {
            self.named += 1;
            let descriptor = if self.inner.is_some() { -1 } else { 8 };
            let line = format!("id={} addr=127.0.0.1:9 fd={descriptor} name=", self.named);
            format!("${}\r\n{line}\r\n", line.len())
        };
        self.shards[shard].handle_link_bytes(link, generation, reply.as_bytes(), self.now);
    }

    fn take(&mut self, shard: usize, owner: Owner, segment: Segment) {
        let Owner::Client(id) = owner else { unreachable!("only clients let something wait") };
        self.received.entry((shard, id.index)).or_default().extend_from_slice(&segment.bytes());
        self.shards[shard].handle_transmitted(owner, segment, self.now);
    }
}

/// True for a request of weir's own on a private link (`CLIENT INFO`, `CLIENT KILL`) that the test rig
/// answers by itself.
fn is_answered_for(frame: &str) -> bool {
    ["\r\nCLIENT\r\n$4\r\nINFO\r\n", "\r\nCLIENT\r\n$4\r\nKILL\r\n"].iter().any(|words| frame.contains(words))
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::request(&mut bytes, words.iter().map(|word| word.as_bytes()));
    bytes
}

fn frames_of(mut bytes: &[u8]) -> Vec<String> {
    let mut frames = Vec::new();
    while let Some(scanned) =
        crate::protocol::ReplyScanner::default().scan(bytes).expect("requests are RESP too")
    {
        let (frame, rest) = bytes.split_at(scanned.end);
        frames.push(String::from_utf8_lossy(frame).into_owned());
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    frames
}
