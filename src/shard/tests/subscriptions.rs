//! Tests of subscriptions to channels and patterns at several stores, and at the nodes of a cluster.

use std::collections::BTreeSet;

use super::cluster::{MILLISECOND, clustered, moved, thirds};
use super::*;
use crate::shard::filter_board::FilterKind;
use crate::values::Random;

/// Returns a test rig (shards with scripted stores and clients) whose cores may lend clients 20 private links
/// each, so that each client's subscriptions have connections of their own.
fn lending(shards: u16, backends: u16) -> Rig {
    Rig::with(shards, backends, |settings| settings.private_links_max = 20)
}

/// Answers the greetings (first requests) of all private links (connections that one client has to itself)
/// that were opened.
pub(super) fn greet(rig: &mut Rig) {
    while rig.at_stores.iter().any(|sent| sent.frame.contains("\r\nID\r\n")) {
        rig.answer_first("\r\nID\r\n", ":7\r\n");
    }
}

fn bulk(word: &str) -> String {
    format!("${}\r\n{word}\r\n", word.len())
}

pub(super) fn said(word: &str, name: &str, count: usize) -> String {
    format!("*3\r\n{}{}:{count}\r\n", bulk(word), bulk(name))
}

pub(super) fn message(channel: &str, text: &str) -> String {
    format!("*3\r\n{}{}{}", bulk("message"), bulk(channel), bulk(text))
}

/// Returns the store's number and the words of each unanswered request at stores, sorted.
pub(super) fn asked(rig: &Rig) -> Vec<String> {
    let words = |frame: &str| frame.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ");
    let mut all: Vec<String> =
        rig.at_stores.iter().map(|sent| format!("{} {}", sent.backend.0, words(&sent.frame))).collect();
    all.sort();
    all
}

fn links_lent(rig: &Rig) -> usize {
    rig.shards.iter().map(|shard| shard.private_links().subscribed).sum()
}

#[test]
fn a_channel_is_at_one_store_and_a_pattern_at_all() {
    let mut rig = lending(1, 2);
    let [client, publisher] = [rig.client(0), rig.client(0)];
    let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["SUBSCRIBE", &near, &far, &near]]);
    greet(&mut rig);
    assert_eq!(asked(&rig), [format!("0 subscribe {near}"), format!("1 subscribe {far}")]);
    let over = rig.frames(&near)[0].clone();
    rig.answer_first(&near, &said("subscribe", &near, 1));
    rig.bytes(&over, message(&near, "early").as_bytes());
    assert_eq!(rig.told(client), "", "the other store has not acknowledged");
    rig.answer_first(&far, &said("subscribe", &far, 1));
    let acknowledged = [said("subscribe", &near, 1), said("subscribe", &far, 2), said("subscribe", &near, 2)];
    assert_eq!(rig.told(client), acknowledged.concat() + &message(&near, "early"));
    rig.send(publisher, &[&["PUBLISH", &near, "x"], &["PUBLISH", &far, "y"]]);
    assert_eq!(asked(&rig), [format!("0 PUBLISH {near} x")], "the messages of a client keep their order");
    rig.answer_next(":1\r\n");
    assert_eq!(asked(&rig), [format!("1 PUBLISH {far} y")]);
    rig.answer_next(":1\r\n");

    rig.send(client, &[&["PSUBSCRIBE", "n*"], &["UNSUBSCRIBE", &far, "none"]]);
    assert_eq!(asked(&rig), ["0 psubscribe n*", "1 psubscribe n*"]);
    for _ in 0..2 {
        rig.answer_first("psubscribe", &said("psubscribe", "n*", 2));
    }
    assert_eq!(asked(&rig), [format!("1 unsubscribe {far}")]);
    rig.answer_next(&said("unsubscribe", &far, 1));
    let acknowledged =
        [said("psubscribe", "n*", 3), said("unsubscribe", &far, 2), said("unsubscribe", "none", 2)];
    assert_eq!(rig.told(client), acknowledged.concat());
}

#[test]
fn patterns_beyond_the_limit_are_refused_until_others_end() {
    let mut rig = lending(1, 1);
    let [client, other] = [rig.client(0), rig.client(0)];
    let most = FilterKind::Pattern.tenant_limit();
    let subscribe = |rig: &mut Rig, client, from: usize, count: usize| {
        let names: Vec<String> = (from..from + count).map(|number| format!("{number:05}*")).collect();
        rig.send(
            client,
            &[&[&["PSUBSCRIBE"], names.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat()],
        );
        greet(rig);
        if !rig.frames("psubscribe").is_empty() {
            let replies: String = names.iter().map(|name| said("psubscribe", name, 1)).collect();
            rig.answer_first("psubscribe", &replies);
        }
        rig.told(client)
    };
    let is_begun = |reply: String| reply.starts_with("*3\r\n$10\r\npsubscribe\r\n");
    assert!(is_begun(subscribe(&mut rig, client, 0, most)));
    assert!(is_begun(subscribe(&mut rig, other, 0, 2)), "equal patterns count once");
    let refused = subscribe(&mut rig, other, 1, most);
    assert!(
        refused.starts_with(&format!("-ERR too many patterns: the clients of a tenant may have {most}, "))
    );
    assert_eq!(rig.shards[0].filters(), [most, 0]);
    assert!(rig.frames("psubscribe").is_empty(), "the store is not asked");
    rig.send(client, &[&["PUNSUBSCRIBE", "00000*", "00002*"]]);
    rig.answer_first(
        "punsubscribe",
        &(said("punsubscribe", "00000*", 1) + &said("punsubscribe", "00002*", 1)),
    );
    rig.told(client);
    assert_eq!(rig.shards[0].filters(), [most - 1, 0], "the other client has one of the two");
    assert!(is_begun(subscribe(&mut rig, other, most, 1)));
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    assert_eq!(rig.shards[0].filters(), [3, 0]);
}

#[test]
fn events_of_keys_are_not_subscribed_to_before_a_node_is_known() {
    let mut rig = lending(1, 1);
    let map = Arc::clone(rig.cluster.map());
    rig.shards[0].handle_slots(map, rig.now);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "__keyevent@0__:set"], &["ECHO", "x"]]);
    let refusal = "-UNAVAILABLE backend=none reason=no-owner retry_after_ms=100\r\n";
    assert_eq!(rig.told(client), format!("{refusal}$1\r\nx\r\n"));
}

#[test]
fn a_message_waits_for_a_subscription_of_another_client_that_came_before() {
    for begins in ["SUBSCRIBE", "PSUBSCRIBE"] {
        let mut rig = lending(2, 1);
        let [client, publisher, other] = [rig.client(0), rig.client(1), rig.client(1)];
        rig.send(client, &[&[begins, "news"]]);
        rig.send(publisher, &[&["PUBLISH", "news", "x"], &["GET", "k"]]);
        rig.send(other, &[&["PUBLISH", "of others", "y"]]);
        let waits = begins == "PSUBSCRIBE";
        assert_eq!(rig.frames("of others").is_empty(), waits, "only a pattern may match it");
        greet(&mut rig);
        assert!(rig.frames("PUBLISH\r\n$4\r\nnews").is_empty() && rig.frames("GET").is_empty());
        rig.answer_first(&begins.to_lowercase(), &said(&begins.to_lowercase(), "news", 1));
        rig.wait(MILLISECOND);
        assert_eq!(rig.frames("PUBLISH\r\n$4\r\nnews").len(), 1);
        assert_eq!(rig.counted(Counter::PublicationsHeld), 1 + u64::from(waits));
    }
}

#[test]
fn a_message_waits_no_longer_than_it_may_and_for_nobody_who_has_left() {
    let mut rig = lending(1, 1);
    let [client, publisher] = [rig.client(0), rig.client(0)];
    rig.send(client, &[&["SUBSCRIBE", "news"]]);
    rig.send(publisher, &[&["PUBLISH", "news", "x"]]);
    rig.wait(99 * MILLISECOND);
    assert!(rig.frames("PUBLISH").is_empty());
    rig.wait(MILLISECOND);
    assert_eq!(rig.frames("PUBLISH").len(), 1, "the store has not acknowledged for too long");
    rig.answer_first("PUBLISH", ":0\r\n");
    rig.send(publisher, &[&["PUBLISH", "news", "y"]]);
    assert!(rig.frames("PUBLISH").is_empty());
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.wait(MILLISECOND);
    assert_eq!(rig.frames("PUBLISH").len(), 1);
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 20;
        settings.clients.publish_wait = Duration::ZERO;
    });
    let [client, publisher] = [rig.client(0), rig.client(0)];
    rig.send(client, &[&["SUBSCRIBE", "news"]]);
    rig.send(publisher, &[&["PUBLISH", "news", "x"]]);
    assert_eq!(rig.frames("PUBLISH").len(), 1, "it is switched off");
}

#[test]
fn a_message_that_waited_to_be_decoded_waits_for_subscriptions_all_the_same() {
    let mut rig = lending(1, 1);
    let [client, publisher, operator] = [rig.client(0), rig.client(0), rig.client(0)];
    rig.send(client, &[&["SUBSCRIBE", "news"]]);
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "500"]), "+OK\r\n");
    rig.send(publisher, &[&["PING"], &["PUBLISH", "news", "x"]]);
    rig.wait(550 * MILLISECOND);
    assert_eq!((rig.frames("PUBLISH").len(), rig.counted(Counter::PublicationsHeld)), (0, 1));
    rig.wait(100 * MILLISECOND);
    assert_eq!(rig.frames("PUBLISH").len(), 1, "the store has not acknowledged for too long");
}

#[test]
fn a_message_waits_for_a_subscription_that_another_core_has_yet_to_read() {
    let mut rig = lending(2, 1);
    let [client, publisher] = [rig.client(0), rig.client(1)];
    rig.others_get_on = false;
    let came = rig.now.monotonic;
    rig.send(publisher, &[&["PUBLISH", "news", "x"], &["PUBLISH", "news", "y"], &["GET", "k"]]);
    assert!(rig.frames("PUBLISH").is_empty() && rig.shards[1].awaits_others());
    rig.now.monotonic = came.after(MILLISECOND);
    rig.send(client, &[&["SUBSCRIBE", "news"]]);
    rig.shards[1].handle_others_handled(came);
    rig.turns();
    assert!(!rig.shards[1].awaits_others(), "both have come together");
    assert!(rig.frames("PUBLISH").is_empty() && rig.frames("GET").is_empty());
    greet(&mut rig);
    rig.answer_first("subscribe", &said("subscribe", "news", 1));
    rig.wait(MILLISECOND);
    rig.answer_first("PUBLISH", ":1\r\n");
    assert_eq!(rig.frames("PUBLISH\r\n$4\r\nnews\r\n$1\r\ny").len(), 1);
    let held = [Counter::PublicationsHeldForCores, Counter::PublicationsHeld];
    assert_eq!(held.map(|counter| rig.counted(counter)), [1, 1]);
    rig.answer_first("PUBLISH", ":1\r\n");
    rig.now.monotonic = rig.now.monotonic.after(MILLISECOND);
    rig.send(publisher, &[&["PUBLISH", "news", "z"]]);
    assert!(rig.frames("PUBLISH").is_empty(), "what came since may not be read");
}

#[test]
fn a_message_does_not_wait_long_for_a_core_that_does_not_get_on() {
    let published = |shards: u16, publish_wait: u64| {
        let mut rig = Rig::with(shards, 1, |settings| {
            settings.clients.publish_wait = publish_wait as u32 * MILLISECOND;
        });
        rig.others_get_on = false;
        let publisher = rig.client(0);
        rig.send(publisher, &[&["PUBLISH", "news", "x"]]);
        let waited = (0..200).find(|_| {
            let is_sent = !rig.frames("PUBLISH").is_empty();
            if !is_sent {
                rig.wait(MILLISECOND);
            }
            is_sent
        });
        waited.expect("it is sent at last")
    };
    assert_eq!(published(2, 100), 100);
    assert_eq!(published(2, 7), 7);
    assert_eq!((published(2, 0), published(1, 100)), (0, 0), "switched off, and no other cores");
}

#[test]
fn a_message_waits_for_a_subscription_behind_another_one() {
    let mut rig = lending(2, 1);
    let [client, publisher] = [rig.client(0), rig.client(1)];
    rig.send(client, &[&["SUBSCRIBE", "a"], &["SUBSCRIBE", "b"], &["SUBSCRIBE", "news"]]);
    rig.send(publisher, &[&["PUBLISH", "news", "x"]]);
    assert!(rig.frames("PUBLISH").is_empty());
    greet(&mut rig);
    rig.answer_first("subscribe", &said("subscribe", "a", 1));
    rig.wait(MILLISECOND);
    assert!(rig.frames("PUBLISH").is_empty());
    rig.answer_first("subscribe", &said("subscribe", "b", 2));
    rig.wait(MILLISECOND);
    assert!(rig.frames("PUBLISH").is_empty());
    rig.answer_first("subscribe", &said("subscribe", "news", 3));
    rig.wait(MILLISECOND);
    assert_eq!(rig.frames("PUBLISH").len(), 1);
    rig.answer_first("PUBLISH", ":1\r\n");
    rig.send(client, &[&["UNSUBSCRIBE"], &["PING"]]);
    rig.send(publisher, &[&["PUBLISH", "other", "y"]]);
    assert!(rig.frames("PUBLISH").is_empty(), "what stands behind may be a subscription");
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.wait(MILLISECOND);
    assert_eq!(rig.frames("PUBLISH").len(), 1, "nobody waits for it any more");
}

/// Breaks the connection over which a request was sent: the store closes it.
fn lose(rig: &mut Rig, sent: &Sent) {
    rig.at_stores.retain(|other| other.link != sent.link);
    rig.shards[0].handle_link_lost(sent.link, sent.generation, Loss::ByPeer, rig.now);
    rig.turns();
}

#[test]
fn a_command_whose_store_is_lost_is_refused_and_leaves_nothing_behind() {
    for acknowledged in [false, true] {
        let mut rig = lending(1, 2);
        let client = rig.client(0);
        let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
        rig.send(client, &[&["SUBSCRIBE", &near, &far], &["PING"]]);
        greet(&mut rig);
        let lost = rig.frames(&near)[0].clone();
        if acknowledged {
            rig.answer_first(&near, &said("subscribe", &near, 1));
        }
        lose(&mut rig, &lost);
        assert_eq!(rig.told(client), "", "the other store has not answered");
        rig.answer_first(&far, &said("subscribe", &far, 1));
        let told = rig.told(client);
        assert!(told.starts_with("-UNAVAILABLE ") && told.ends_with("+PONG\r\n"), "{told}");
        assert_eq!(links_lent(&rig), 0);
        rig.send(client, &[&["SUBSCRIBE", &far]]);
        greet(&mut rig);
        rig.answer_first(&far, &said("subscribe", &far, 1));
        assert_eq!(rig.told(client), said("subscribe", &far, 1), "it is the first");
    }
}

#[test]
fn what_a_lost_store_was_to_end_has_ended_and_other_channels_there_end_the_client() {
    let mut rig = lending(1, 2);
    let client = rig.client(0);
    let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["SUBSCRIBE", &near, &far]]);
    greet(&mut rig);
    let [first, second] = [rig.frames(&near)[0].clone(), rig.frames(&far)[0].clone()];
    rig.answer_first(&near, &said("subscribe", &near, 1));
    rig.answer_first(&far, &said("subscribe", &far, 1));
    rig.told(client);
    rig.send(client, &[&["UNSUBSCRIBE", &near]]);
    lose(&mut rig, &first);
    assert_eq!(rig.told(client), said("unsubscribe", &near, 1));
    rig.send(client, &[&["SUBSCRIBE", &format!("{{{far}}}2")]]);
    lose(&mut rig, &second);
    assert_eq!(rig.shards[0].clients_open(), 0, "it would miss messages to the channel that it has");
}

#[test]
fn subscriptions_end_whatever_the_quota_says() {
    let mut rig = lending(1, 1);
    rig.put_in_force("[default]\nru_per_second = 10\n");
    rig.pools = (10_000_000, true);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "news"]]);
    greet(&mut rig);
    rig.answer_first("subscribe", &said("subscribe", "news", 1));
    for _ in 0..20 {
        rig.send(client, &[&["SUBSCRIBE", "news"]]);
    }
    assert!(rig.told(client).contains("-THROTTLED "));
    rig.send(client, &[&["UNSUBSCRIBE", "news"]]);
    rig.answer_first("unsubscribe", &said("unsubscribe", "news", 0));
    assert_eq!(rig.told(client), said("unsubscribe", "news", 0));
}

#[test]
fn a_transaction_may_publish_where_its_keys_are() {
    let mut rig = lending(1, 2);
    let client = rig.client(0);
    let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["MULTI"], &["SET", &near, "1"], &["PUBLISH", &near, "x"], &["EXEC"]]);
    assert!(rig.at_stores.iter().all(|sent| sent.backend.0 == 0));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n:1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:1\r\n");
    rig.send(client, &[&["MULTI"], &["SET", &near, "1"], &["PUBLISH", &far, "x"], &["EXEC"]]);
    assert!(rig.told(client).contains("-CROSSSLOT "));
}

#[test]
fn a_command_that_one_store_refuses_leaves_nothing_behind() {
    let mut rig = lending(1, 2);
    let client = rig.client(0);
    let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["SUBSCRIBE", &near]]);
    greet(&mut rig);
    rig.answer_first(&near, &said("subscribe", &near, 1));
    rig.told(client);
    rig.send(client, &[&["SUBSCRIBE", &near, &far, "other"]]);
    greet(&mut rig);
    let refusal = "-NOPERM this user has no permissions\r\n";
    let other = rig.frames("other")[0].backend.0;
    if other == 1 {
        assert_eq!(asked(&rig), [format!("1 subscribe {far} other")]);
        rig.answer_next(refusal);
    } else {
        rig.answer_first("other", &said("subscribe", "other", 2));
        rig.answer_first(&far, refusal);
    }
    assert_eq!(rig.told(client), refusal);
    // The command has subscribed at the other store, which is undone and does not count.
    let undone: Vec<String> = asked(&rig).into_iter().filter(|asked| asked.contains("unsubscribe")).collect();
    assert!(!undone.is_empty() && undone.iter().all(|asked| !asked.contains(&near)), "{undone:?}");
    rig.at_stores.clear();
    rig.send(client, &[&["UNSUBSCRIBE"]]);
    assert_eq!(asked(&rig), [format!("0 unsubscribe {near}")]);
}

const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";

#[test]
fn a_subscription_whose_end_a_store_refuses_stays() {
    let mut rig = lending(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "a", "b"], &["PSUBSCRIBE", "p*"]]);
    greet(&mut rig);
    let over = rig.at_stores[0].clone();
    rig.answer_next(&(said("subscribe", "a", 1) + &said("subscribe", "b", 2)));
    rig.answer_next(&said("psubscribe", "p*", 3));
    rig.told(client);
    for (words, kept) in
        [(&["UNSUBSCRIBE", "a"][..], "a"), (&["UNSUBSCRIBE"], "b"), (&["UNSUBSCRIBE", "none", "a"], "a")]
    {
        rig.send(client, &[words]);
        rig.answer_next(BUSY);
        assert_eq!(rig.told(client), BUSY);
        rig.bytes(&over, message(kept, "x").as_bytes());
        assert_eq!(rig.told(client), message(kept, "x"), "{words:?}");
    }
    rig.send(client, &[&["PUNSUBSCRIBE", "p*"]]);
    rig.answer_next(BUSY);
    assert_eq!((rig.told(client).as_str(), rig.shards[0].filters()), (BUSY, [1, 0]));
    // The store is asked again when the client ends them once more.
    rig.send(client, &[&["PUNSUBSCRIBE"], &["UNSUBSCRIBE", "a", "b"], &["GET", "k"]]);
    assert_eq!(asked(&rig), ["0 punsubscribe p*"]);
    rig.answer_next(&said("punsubscribe", "p*", 2));
    assert_eq!(asked(&rig), ["0 unsubscribe a b"]);
    let ended = said("unsubscribe", "a", 1) + &said("unsubscribe", "b", 0);
    rig.answer_next(&ended);
    assert_eq!(rig.told(client), said("punsubscribe", "p*", 2) + &ended);
    let figures = rig.shards[0].private_links();
    assert_eq!((figures.subscribed, figures.idle), (0, 0), "the link is lent to nobody else");
    assert_eq!((rig.words_at_stores(), rig.shards[0].filters()), (vec!["GET"], [0, 0]));
}

#[test]
fn the_end_of_a_pattern_that_one_store_refuses_is_undone_at_the_other() {
    let mut rig = lending(1, 2);
    let client = rig.client(0);
    rig.send(client, &[&["PSUBSCRIBE", "n*"]]);
    greet(&mut rig);
    let over = [0, 1].map(|index: usize| rig.at_stores[index].clone());
    for _ in 0..2 {
        rig.answer_next(&said("psubscribe", "n*", 1));
    }
    rig.told(client);
    rig.send(client, &[&["PUNSUBSCRIBE", "n*"]]);
    let ends = rig.at_stores[0].backend.0;
    rig.answer_next(&said("punsubscribe", "n*", 0));
    rig.answer_next(BUSY);
    assert_eq!(rig.told(client), BUSY);
    assert_eq!(asked(&rig), [format!("{ends} psubscribe n*")]);
    rig.answer_next(&said("psubscribe", "n*", 1));
    assert_eq!(rig.told(client), "");
    let text = format!("*4\r\n{}{}{}{}", bulk("pmessage"), bulk("n*"), bulk("news"), bulk("x"));
    for link in &over {
        rig.bytes(link, text.as_bytes());
        assert_eq!(rig.told(client), text);
    }
}

#[test]
fn messages_of_a_channel_whose_refused_subscription_could_not_be_undone_are_dropped() {
    let mut rig = lending(1, 2);
    let client = rig.client(0);
    let [near, far] = [rig.key(0, 0), rig.key(0, 1)];
    let other = format!("other {{{near}}}");
    rig.send(client, &[&["SUBSCRIBE", &near]]);
    greet(&mut rig);
    let over = rig.at_stores[0].clone();
    rig.answer_next(&said("subscribe", &near, 1));
    rig.told(client);
    rig.send(client, &[&["SUBSCRIBE", &other, &far]]);
    greet(&mut rig);
    rig.answer_first(&other, &said("subscribe", &other, 2));
    rig.answer_first(&far, BUSY);
    assert_eq!(rig.told(client), BUSY);
    let undone = format!("0 unsubscribe {other}");
    rig.at_stores.retain(|sent| sent.backend.0 == 0);
    assert_eq!(asked(&rig), [undone]);
    rig.answer_next(BUSY);
    rig.bytes(&over, (message(&other, "x") + &message(&near, "y")).as_bytes());
    assert_eq!(rig.told(client), message(&near, "y"));
}

#[test]
fn a_subscriber_may_send_no_command_that_weir_does_not_know() {
    let mut rig = lending(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "c"]]);
    greet(&mut rig);
    rig.answer_next(&said("subscribe", "c", 1));
    rig.told(client);
    rig.send(client, &[&["MyRange", "k", "0", "1"]]);
    let context =
        "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n";
    assert_eq!(rig.told(client), format!("-ERR Can't execute 'myrange': {context}"));
    assert!(rig.at_stores.is_empty());
}

#[test]
fn without_links_to_all_stores_nothing_is_subscribed() {
    let mut rig = Rig::with(1, 3, |settings| settings.private_links_max = 2);
    let client = rig.client(0);
    rig.send(client, &[&["PSUBSCRIBE", "x*"], &["GET", "k"]]);
    assert!(rig.told(client).starts_with("-OVERLOADED reason=links "));
    assert_eq!((links_lent(&rig), rig.words_at_stores()), (0, vec!["GET"]));
}

#[test]
fn a_store_that_does_not_acknowledge_is_given_up() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 20;
        settings.reply_timeout = Duration::from_secs(2);
    });
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "a"]]);
    greet(&mut rig);
    rig.wait(Duration::from_millis(1_900));
    assert_eq!(rig.shards[0].clients_open(), 1);
    rig.wait(Duration::from_millis(1_200));
    assert!(rig.told(client).starts_with("-UNAVAILABLE "));
    assert_eq!((rig.shards[0].clients_open(), links_lent(&rig)), (1, 0));

    // A store without messages does not count as silent.
    let client = rig.client(0);
    rig.at_stores.clear();
    rig.send(client, &[&["SUBSCRIBE", "a"]]);
    greet(&mut rig);
    rig.answer_first("subscribe", &said("subscribe", "a", 1));
    rig.wait(Duration::from_secs(600));
    assert_eq!(rig.shards[0].clients_open(), 2);
}

#[test]
fn sharded_channels_follow_their_slots() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 20);
    let client = rig.client(0);
    let channel = "c";
    let home = thirds(slot_of(channel.as_bytes()));
    let [next, last] = [(home + 1) % 3, (home + 2) % 3];
    // The node that no longer has the slot has not seen the new map.
    rig.send(client, &[&["SSUBSCRIBE", channel]]);
    greet(&mut rig);
    assert_eq!(asked(&rig), [format!("{home} ssubscribe {channel}")]);
    rig.answer_next(&moved(channel, next));
    greet(&mut rig);
    assert_eq!(
        (asked(&rig), rig.told(client)),
        (vec![format!("{next} ssubscribe {channel}")], String::new())
    );
    let over = rig.at_stores[0].clone();
    rig.answer_next(&said("ssubscribe", channel, 1));
    assert_eq!(rig.told(client), said("ssubscribe", channel, 1));

    // The slot moves again: the node ends the subscription by itself, and names the next node when it is
    // asked.
    rig.bytes(&over, said("sunsubscribe", channel, 0).as_bytes());
    assert_eq!(asked(&rig), [format!("{next} ssubscribe {channel}")]);
    rig.answer_next(&moved(channel, last));
    greet(&mut rig);
    assert_eq!(asked(&rig), [format!("{last} ssubscribe {channel}")]);
    let over = rig.at_stores[0].clone();
    rig.answer_next(&said("ssubscribe", channel, 1));
    assert_eq!(rig.told(client), "", "the client is told nothing");
    let text = message(channel, "hi").replace("$7\r\nmessage", "$8\r\nsmessage");
    rig.bytes(&over, text.as_bytes());
    assert_eq!(rig.told(client), text);
    rig.send(client, &[&["SUNSUBSCRIBE"]]);
    assert_eq!(asked(&rig), [format!("{last} sunsubscribe {channel}")]);
    rig.answer_next(&said("sunsubscribe", channel, 0));
    assert_eq!(rig.told(client), said("sunsubscribe", channel, 0));
    assert_eq!(links_lent(&rig), 0);
}

#[test]
fn a_sharded_channel_that_no_node_has_ends_the_command_or_the_client() {
    for is_subscribed in [false, true] {
        let mut rig = clustered(1, |settings| settings.private_links_max = 20);
        let client = rig.client(0);
        rig.send(client, &[&["SSUBSCRIBE", "c"]]);
        greet(&mut rig);
        if is_subscribed {
            let over = rig.at_stores[0].clone();
            rig.answer_next(&said("ssubscribe", "c", 1));
            rig.told(client);
            rig.bytes(&over, said("sunsubscribe", "c", 0).as_bytes());
        }
        // The nodes redirect the client round and round.
        for turn in 0..20 {
            greet(&mut rig);
            let Some(sent) = rig.at_stores.first() else { break };
            let next = (sent.backend.0 + 1) % 3;
            assert!(turn < 10, "it ends");
            rig.answer_next(&moved("c", next));
        }
        if is_subscribed {
            assert_eq!(rig.shards[0].clients_open(), 0, "it would miss messages");
        } else {
            assert!(rig.told(client).starts_with("-MOVED "));
            assert_eq!(rig.shards[0].clients_open(), 1);
        }
        assert_eq!(links_lent(&rig), 0);
    }
}

#[test]
fn events_of_keys_come_from_all_primaries_of_a_cluster() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 20);
    let client = rig.client(0);
    // Two nodes have all slots at first.
    rig.publish(|slot| Some(thirds(slot).min(1)));
    let events = "__keyevent@0__:expired";
    rig.send(client, &[&["SUBSCRIBE", events, "news"]]);
    greet(&mut rig);
    let stores = |rig: &Rig| {
        let asked = asked(rig).into_iter().filter(|asked| asked.contains(events));
        asked.map(|asked| asked[..1].parse::<u16>().expect("a number")).collect::<BTreeSet<_>>()
    };
    let before = stores(&rig);
    let news: Vec<&Sent> = rig.frames("news");
    assert_eq!(news.len(), 1, "nodes pass on what is published");
    while let Some(sent) = rig.at_stores.first().cloned() {
        let names: String = [events, "news"]
            .iter()
            .filter(|name| sent.frame.contains(*name))
            .map(|name| said("subscribe", name, 1))
            .collect();
        rig.answer_next(&names);
    }
    assert_eq!(rig.told(client), said("subscribe", events, 1) + &said("subscribe", "news", 2));
    rig.publish(|slot| Some(thirds(slot)));
    greet(&mut rig);
    let after = stores(&rig);
    assert!(before.is_disjoint(&after), "{before:?} {after:?}");
    assert_eq!(&before | &after, BTreeSet::from([0, 1, 2]));
    let over = rig.at_stores.first().cloned();
    if let Some(over) = over {
        rig.answer_next(&said("subscribe", events, 1));
        assert_eq!(rig.told(client), "");
        rig.bytes(&over, message(events, "k").as_bytes());
        assert_eq!(rig.told(client), message(events, "k"));
    }
    rig.wait(MILLISECOND);
    assert_eq!(rig.shards[0].clients_open(), 1);
}

#[test]
fn a_node_without_channels_may_leave_and_any_other_takes_its_subscribers_with_it() {
    for is_used in [false, true] {
        let mut rig = clustered(1, |settings| settings.private_links_max = 20);
        let client = rig.client(0);
        rig.send(client, &[&["SSUBSCRIBE", "c"]]);
        greet(&mut rig);
        let first = rig.at_stores[0].clone();
        rig.answer_next(&said("ssubscribe", "c", 1));
        rig.told(client);
        if !is_used {
            rig.bytes(&first, said("sunsubscribe", "c", 0).as_bytes());
            rig.answer_next(&moved("c", (first.backend.0 + 1) % 3));
            greet(&mut rig);
            rig.answer_next(&said("ssubscribe", "c", 1));
        }
        rig.shards[0].handle_link_lost(first.link, first.generation, Loss::ByPeer, rig.now);
        rig.turns();
        assert_eq!(rig.shards[0].clients_open(), usize::from(!is_used));
    }
}

/// The channels and patterns that one connection is subscribed to: at a store, or in the model of a single
/// server with which weir's replies are compared.
#[derive(Clone, Debug, Default)]
struct Heard {
    channels: BTreeSet<String>,
    patterns: BTreeSet<String>,
}

impl Heard {
    fn names(&mut self, kind: &str) -> &mut BTreeSet<String> {
        if kind.starts_with('p') { &mut self.patterns } else { &mut self.channels }
    }

    /// Carries out a subscription command as a server does, and returns its reply.
    fn change(&mut self, word: &str, named: &[String]) -> String {
        let begins = word.trim_start_matches('p').starts_with("sub");
        let all: Vec<String> = self.names(word).iter().cloned().collect();
        let named = if named.is_empty() { &all } else { named };
        let mut reply = String::new();
        for name in named {
            if begins {
                self.names(word).insert(name.clone());
            } else {
                self.names(word).remove(name);
            }
            reply += &said(word, name, self.channels.len() + self.patterns.len());
        }
        if reply.is_empty() {
            let count = self.channels.len() + self.patterns.len();
            reply = format!("*3\r\n{}$-1\r\n:{count}\r\n", bulk(word));
        }
        reply
    }

    /// Returns the messages that a connection gets when `text` is published to a channel.
    fn hear(&self, channel: &str, text: &str) -> Vec<String> {
        let direct = self.channels.contains(channel).then(|| message(channel, text));
        let matching =
            self.patterns.iter().filter(|pattern| channel.starts_with(pattern.trim_end_matches('*')));
        let matched = matching.map(|pattern| {
            format!("*4\r\n{}{}{}{}", bulk("pmessage"), bulk(pattern), bulk(channel), bulk(text))
        });
        direct.into_iter().chain(matched).collect()
    }
}

/// Answers all requests at stores in random order, as servers do whose connections have the subscriptions in
/// `heard`.
fn serve(rig: &mut Rig, heard: &mut BTreeMap<(u16, usize, u32, u32), Heard>, random: &mut Random) {
    loop {
        greet(rig);
        // Requests of one link keep their order.
        let first = |index: &usize| {
            let sent = &rig.at_stores[*index];
            !rig.at_stores[..*index].iter().any(|other| (other.shard, other.link) == (sent.shard, sent.link))
        };
        let ready: Vec<usize> = (0..rig.at_stores.len()).filter(first).collect();
        if ready.is_empty() {
            return;
        }
        let sent = rig.at_stores.remove(*random.pick(&ready));
        let words: Vec<String> = sent.frame.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect();
        let place = |sent: &Sent| (sent.backend.0, sent.shard, sent.link.0, sent.generation);
        if words[0] == "PUBLISH" {
            let subscribers: Vec<_> = heard
                .iter()
                .filter(|(at, _)| at.0 == sent.backend.0)
                .map(|(at, heard)| (*at, heard.hear(&words[1], &words[2])))
                .collect();
            let mut count = 0;
            for ((_, shard, link, generation), messages) in subscribers {
                count += messages.len();
                let over = Sent { shard, link: ConnectionId(link), generation, ..sent.clone() };
                rig.bytes(&over, messages.concat().as_bytes());
            }
            rig.bytes(&sent, format!(":{count}\r\n").as_bytes());
        } else {
            let reply = heard.entry(place(&sent)).or_default().change(&words[0], &words[1..]);
            rig.bytes(&sent, reply.as_bytes());
        }
    }
}

#[test]
fn several_stores_are_like_one_to_subscribers() {
    let names: Vec<String> =
        (0..12).map(|number| format!("{}{number}", if number % 2 == 0 { "a" } else { "b" })).collect();
    let patterns: Vec<String> = ["a*", "b*", "a1*", "*"].map(str::to_owned).into();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut rig = lending(2, 3);
        let clients = [rig.client(0), rig.client(1), rig.client(0)];
        let publisher = rig.client(1);
        let (mut heard, mut single) = (BTreeMap::new(), vec![Heard::default(); clients.len()]);
        for step in 0..60 {
            let which = random.index(clients.len());
            let kind = *random.pick(&[
                "subscribe",
                "psubscribe",
                "unsubscribe",
                "punsubscribe",
                "publish",
                "publish",
            ]);
            if kind == "publish" {
                let channel = random.pick(&names);
                let text = step.to_string();
                rig.send(publisher, &[&["PUBLISH", channel, &text]]);
                serve(&mut rig, &mut heard, &mut random);
                let expected: Vec<Vec<String>> =
                    single.iter().map(|heard| heard.hear(channel, &text)).collect();
                let count = expected.iter().map(Vec::len).sum::<usize>();
                assert_eq!(rig.told(publisher), format!(":{count}\r\n"), "seed {seed} step {step}");
                for (client, messages) in clients.iter().zip(expected) {
                    assert_eq!(rig.told(*client), messages.concat(), "seed {seed} step {step}");
                }
                continue;
            }
            let from = if kind.starts_with('p') { &patterns } else { &names };
            let least = u64::from(!kind.contains("un"));
            let count = least + random.below(3);
            let named: Vec<String> = (0..count).map(|_| random.pick(from).clone()).collect();
            let words: Vec<&str> = std::iter::once(kind).chain(named.iter().map(String::as_str)).collect();
            rig.send(clients[which], &[&words]);
            serve(&mut rig, &mut heard, &mut random);
            let (told, expected) = (rig.told(clients[which]), single[which].change(kind, &named));
            if named.is_empty() {
                // The acknowledgements of ended subscriptions may come in any order, with the same counts.
                let sorted = |text: &str| {
                    let mut lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
                    lines.sort();
                    lines
                };
                assert_eq!(sorted(&told), sorted(&expected), "seed {seed} step {step}");
            } else {
                assert_eq!(told, expected, "seed {seed} step {step} {words:?}");
            }
        }
        for (client, heard) in clients.iter().zip(&single) {
            let is_subscribed = !heard.channels.is_empty() || !heard.patterns.is_empty();
            rig.send(*client, &[&["GET", "k"]]);
            assert_eq!(
                rig.told(*client).starts_with("-ERR Can't execute 'get'"),
                is_subscribed,
                "seed {seed}"
            );
            rig.at_stores.clear();
        }
    }
}

#[test]
fn hello_passes_while_subscribed_unless_it_changes_the_version() {
    let mut rig = lending(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "c"]]);
    greet(&mut rig);
    rig.answer_next(&said("subscribe", "c", 1));
    rig.told(client);
    rig.send(client, &[&["PING", "x", "y"], &["PING", "x"]]);
    let arity = "-ERR wrong number of arguments for 'ping' command\r\n";
    assert_eq!(rig.told(client), format!("{arity}*2\r\n$4\r\npong\r\n$1\r\nx\r\n"));
    rig.send(client, &[&["GET", "k"], &["EXEC"]]);
    let context =
        "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context\r\n";
    let aborted = "-EXECABORT Transaction discarded because of: Can't execute 'exec'";
    assert_eq!(rig.told(client), format!("-ERR Can't execute 'get': {context}{aborted}: {context}"));

    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"], &["SUBSCRIBE", "c"]]);
    while let Some(word) = rig.words_at_stores().first().map(|word| (*word).to_owned()) {
        match word.as_str() {
            "HELLO" => rig.answer_next("%0\r\n"),
            "CLIENT" => rig.answer_next(":7\r\n"),
            _ => rig.answer_next(&said("subscribe", "c", 1).replace('*', ">")),
        }
    }
    rig.told(client);
    for words in [&["HELLO"][..], &["HELLO", "3"], &["HELLO", "3", "SETNAME", "joe"]] {
        rig.send(client, &[words]);
        assert!(rig.told(client).starts_with("%7\r\n"), "{words:?}");
    }
    rig.send(client, &[&["HELLO", "2"], &["CLIENT", "GETNAME"]]);
    let refusal = "-ERR HELLO is not allowed while the connection is subscribed to channels\r\n";
    assert_eq!(rig.told(client), format!("{refusal}$3\r\njoe\r\n"));
}
