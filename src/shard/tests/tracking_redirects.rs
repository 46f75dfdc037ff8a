//! Tests of CLIENT TRACKING with REDIRECT: invalidation messages go to another client, on the same core or
//! another.

use super::*;

const CHANGED: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
const PUBLISHED: &str = "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nk\r\n";
const BROKEN: &str = ">2\r\n$21\r\ntracking-redir-broken\r\n:2\r\n";
const NO_TARGET: &str = "-ERR The client ID you want redirect to does not exist\r\n";
/// The number (`CLIENT ID`) of the first client of core 1, in tests with two cores.
const NUMBER: &str = "2";

/// Answers the greetings (first requests: `HELLO`, `CLIENT ID`) of all private links (connections that one
/// client has to itself) that were opened.
fn greet(rig: &mut Rig) {
    for (word, reply) in [("HELLO", "%0\r\n"), ("\r\nID\r\n", ":7\r\n")] {
        while rig.at_stores.iter().any(|sent| sent.frame.contains(word)) {
            rig.answer_first(word, reply);
        }
    }
}

/// Returns the number of private links (connections to stores that one client has to itself) over which keys
/// are tracked, and the number of those to which invalidation messages are redirected.
fn links(rig: &Rig) -> (usize, usize) {
    let figures = rig.shards.iter().map(Shard::private_links);
    figures.fold((0, 0), |(tracking, redirected), figures| {
        (tracking + figures.tracking, redirected + figures.redirected)
    })
}

/// Two cores with a client each; the client on core 0 (`tracker`) has its invalidation messages sent to the
/// client on core 1 (`target`) by `CLIENT TRACKING` with `REDIRECT`.
struct Redirected {
    rig: Rig,
    tracker: usize,
    target: usize,
    /// The private links (connections to stores that one client has to itself) on which the target gets
    /// redirected messages.
    inbox: Vec<Sent>,
}

fn redirected(backends: u16, change: impl Fn(&mut ShardSettings)) -> Redirected {
    let mut rig = Rig::with(2, backends, |settings| {
        settings.private_links_max = 20;
        change(settings);
    });
    let (target, tracker) = (rig.client(1), rig.client(0));
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    let is_inbox = |sent: &&Sent| sent.shard == 1 && sent.frame.contains("HELLO");
    let inbox: Vec<Sent> = rig.at_stores.iter().filter(is_inbox).cloned().collect();
    greet(&mut rig);
    let frames = rig.frames("TRACKING");
    assert!(frames.iter().all(|sent| sent.shard == 0 && sent.frame.contains("REDIRECT\r\n$1\r\n7\r\n")));
    assert_eq!((frames.len(), rig.told(tracker)), (usize::from(backends), String::new()));
    for _ in 0..backends {
        rig.answer_first("TRACKING", "+OK\r\n");
    }
    assert_eq!((rig.told(tracker).as_str(), links(&rig)), ("+OK\r\n", (backends.into(), backends.into())));
    Redirected { rig, tracker, target, inbox }
}

fn info(rig: &mut Rig, client: usize) -> String {
    rig.send(client, &[&["CLIENT", "TRACKINGINFO"]]);
    rig.told(client)
}

#[test]
fn messages_go_to_the_client_that_the_number_names_in_its_dialect() {
    let Redirected { mut rig, tracker, target, inbox } = redirected(2, |_| {});
    rig.bytes(&inbox[0], CHANGED.as_bytes());
    assert_eq!(rig.told(target), "", "it speaks RESP2 and is not subscribed");
    rig.send(target, &[&["SUBSCRIBE", "__redis__:invalidate"]]);
    assert_eq!(rig.told(target), "*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n");
    assert!(rig.at_stores.is_empty(), "no store is told of the subscription");
    for link in &inbox {
        rig.bytes(link, CHANGED.as_bytes());
        assert_eq!(rig.told(target), PUBLISHED);
    }
    for null in ["_\r\n", "$-1\r\n", "*-1\r\n"] {
        rig.bytes(&inbox[0], format!(">2\r\n$10\r\ninvalidate\r\n{null}").as_bytes());
        assert_eq!(rig.told(target), PUBLISHED.replace("*1\r\n$1\r\nk\r\n", "$-1\r\n"));
    }
    rig.send(target, &[&["UNSUBSCRIBE"], &["HELLO", "3"]]);
    rig.told(target);
    rig.bytes(&inbox[1], format!("{CHANGED}>2\r\n$10\r\ninvalidate\r\n$-1\r\n").as_bytes());
    assert_eq!(rig.told(target), format!("{CHANGED}>2\r\n$10\r\ninvalidate\r\n_\r\n"));
    assert_eq!(rig.told(tracker), "", "the client that reads is told nothing");
    assert_eq!(rig.shards[1].counters().get(Counter::InvalidationsPassed), 7);
    rig.send(tracker, &[&["CLIENT", "GETREDIR"]]);
    assert_eq!(rig.told(tracker), ":2\r\n");
    rig.send(tracker, &[&["CLIENT", "INFO"]]);
    let line = rig.told(tracker);
    assert!(line.contains(" flags=t ") && line.contains(" redir=2 "), "{line}");
}

#[test]
fn a_client_whose_target_has_left_is_told_once() {
    for tells_first in ["weir", "store"] {
        let Redirected { mut rig, tracker, target, .. } = redirected(1, |_| {});
        rig.send(tracker, &[&["HELLO", "3"], &["GET", "k"]]);
        rig.answer_first("HELLO", "%0\r\n");
        rig.told(tracker);
        let link = rig.at_stores[0].clone();
        rig.answer_first("GET", "$1\r\n1\r\n");
        assert_eq!(rig.told(tracker), "$1\r\n1\r\n");
        let by_store = b">2\r\n$21\r\ntracking-redir-broken\r\n:7\r\n";
        if tells_first == "store" {
            rig.bytes(&link, by_store);
            assert_eq!(rig.told(tracker), BROKEN);
        }
        let id = rig.id(target);
        rig.shards[1].handle_client_lost(id);
        rig.turns();
        assert_eq!(rig.told(tracker), if tells_first == "weir" { BROKEN } else { "" });
        rig.bytes(&link, by_store);
        assert_eq!((rig.told(tracker).as_str(), links(&rig)), ("", (1, 0)));
        assert!(info(&mut rig, tracker).contains("$15\r\nbroken_redirect\r\n$8\r\nredirect\r\n:2\r\n"));
        rig.send(tracker, &[&["CLIENT", "INFO"]]);
        assert!(rig.told(tracker).contains(" flags=tR "));
        // A new CLIENT TRACKING without REDIRECT repairs this: messages come to the client itself.
        rig.send(tracker, &[&["CLIENT", "TRACKING", "ON"]]);
        rig.answer_first("TRACKING", "+OK\r\n");
        rig.bytes(&link, CHANGED.as_bytes());
        assert_eq!(rig.told(tracker), format!("+OK\r\n{CHANGED}"));
        assert!(!info(&mut rig, tracker).contains("broken"));
    }
}

#[test]
fn a_target_keeps_its_links_while_some_client_redirects_to_it() {
    let Redirected { mut rig, tracker, target, inbox } = redirected(1, |_| {});
    let other = rig.client(1);
    rig.send(other, &[&["CLIENT", "TRACKING", "ON", "BCAST", "REDIRECT", NUMBER]]);
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    assert_eq!((rig.told(other).as_str(), links(&rig)), ("+OK\r\n", (2, 1)), "on its own core");
    // A command that is sent again does not count as a second client.
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.send(tracker, &[&["CLIENT", "TRACKING", "OFF"]]);
    assert_eq!(rig.told(tracker), "+OK\r\n+OK\r\n");
    rig.answer_first("OFF", "+OK\r\n");
    assert_eq!(links(&rig), (1, 1));
    rig.send(target, &[&["HELLO", "3"]]);
    rig.told(target);
    rig.bytes(&inbox[0], CHANGED.as_bytes());
    assert_eq!(rig.told(target), CHANGED);
    let id = rig.id(other);
    rig.shards[1].handle_client_lost(id);
    rig.turns();
    assert_eq!(links(&rig), (0, 0), "nobody redirects to it any more");
    assert_eq!((rig.shards[1].clients_open(), rig.shards[1].private_links().idle), (1, 0));
}

#[test]
fn only_a_client_of_the_same_tenant_can_be_named() {
    let mut rig = Rig::with(2, 1, |settings| settings.private_links_max = 20);
    let now = rig.now;
    rig.shards.iter_mut().for_each(|shard| shard.handle_quotas(quotas(QUOTAS), now));
    let (target, tracker) = (rig.client(1), rig.client(0));
    rig.send(target, &[&["HELLO", "3", "AUTH", "root", "r"]]);
    rig.send(tracker, &[&["HELLO", "3", "AUTH", "acme", "a"]]);
    rig.told(target);
    rig.told(tracker);
    for number in [NUMBER, "4", "0", "-3", "9223372036854775807"] {
        rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", number], &["CLIENT", "GETREDIR"]]);
        greet(&mut rig);
        while rig.at_stores.iter().any(|sent| sent.frame.contains("OFF")) {
            rig.answer_first("OFF", "+OK\r\n");
        }
        assert_eq!((rig.told(tracker), links(&rig)), (format!("{NO_TARGET}:-1\r\n"), (0, 0)), "{number}");
    }
    for (words, error) in [
        (&["REDIRECT", "x"][..], "-ERR value is not an integer or out of range\r\n"),
        (&["REDIRECT", "2", "REDIRECT", "2"], "-ERR A client can only redirect to a single other client\r\n"),
        (&["REDIRECT"], "-ERR syntax error\r\n"),
    ] {
        rig.send(tracker, &[&[&["CLIENT", "TRACKING", "ON"], words].concat()]);
        assert_eq!(rig.told(tracker), error);
    }
    // A client that logs in as another tenant takes no more redirected messages.
    rig.send(target, &[&["AUTH", "acme", "a"]]);
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    assert_eq!((rig.told(tracker).as_str(), links(&rig)), ("+OK\r\n", (1, 1)));
    rig.send(target, &[&["AUTH", "root", "r"]]);
    assert_eq!((rig.told(tracker).as_str(), links(&rig)), (BROKEN, (1, 0)));
}

#[test]
fn a_refused_command_leaves_the_options_before_in_force() {
    let Redirected { mut rig, tracker, .. } = redirected(1, |_| {});
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", "77"]]);
    assert_eq!(rig.told(tracker), NO_TARGET);
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "BCAST", "REDIRECT", NUMBER]]);
    rig.answer_first("TRACKING", "-ERR You can't switch BCAST mode\r\n");
    assert_eq!(rig.told(tracker), "-ERR You can't switch BCAST mode\r\n");
    rig.send(tracker, &[&["CLIENT", "GETREDIR"]]);
    assert_eq!((rig.told(tracker).as_str(), links(&rig)), (":2\r\n", (1, 1)));
}

#[test]
fn tracking_goes_on_if_the_command_that_ends_it_has_bad_options() {
    let Redirected { mut rig, tracker, .. } = redirected(1, |_| {});
    for (words, error) in [
        (&["FOO"][..], "-ERR syntax error\r\n"),
        (&["REDIRECT"], "-ERR syntax error\r\n"),
        (&["REDIRECT", "x"], "-ERR value is not an integer or out of range\r\n"),
        (&["REDIRECT", "77"], NO_TARGET),
        (&["REDIRECT", "78"], NO_TARGET),
        (&["REDIRECT", "0"], NO_TARGET),
    ] {
        let off = [&["CLIENT", "TRACKING", "OFF"], words].concat();
        rig.send(tracker, &[&off, &["CLIENT", "GETREDIR"]]);
        assert_eq!(rig.told(tracker), format!("{error}:2\r\n"), "{words:?}");
    }
    assert!(rig.at_stores.is_empty());
    let off = ["CLIENT", "TRACKING", "OFF", "REDIRECT", NUMBER, "BCAST", "PREFIX", "a", "PREFIX", "ab"];
    rig.send(tracker, &[&off, &["CLIENT", "GETREDIR"]]);
    assert_eq!(rig.told(tracker), "+OK\r\n:-1\r\n");
    rig.answer_first("OFF", "+OK\r\n");
    assert_eq!(links(&rig), (0, 0));
    // Where nothing is tracked, too.
    for (number, told) in [(NUMBER, "+OK\r\n"), ("77", NO_TARGET)] {
        rig.send(tracker, &[&["CLIENT", "TRACKING", "OFF", "REDIRECT", number], &["PING"]]);
        assert_eq!(rig.told(tracker), format!("{told}+PONG\r\n"));
    }
}

#[test]
fn a_client_of_whose_stores_only_some_accept_is_closed() {
    let Redirected { mut rig, tracker, .. } = redirected(2, |_| {});
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "NOLOOP", "REDIRECT", NUMBER]]);
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.answer_first("TRACKING", NO_TARGET);
    assert_eq!((rig.told(tracker).as_str(), rig.shards[0].clients_open()), (NO_TARGET, 0));
    assert_eq!(links(&rig), (0, 0));
}

#[test]
fn a_target_for_which_there_is_no_link_is_refused() {
    let mut rig = Rig::with(2, 2, |settings| {
        settings.private_links_max = if settings.id == ShardId(1) { 1 } else { 20 };
    });
    let (_target, tracker) = (rig.client(1), rig.client(0));
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    let told = rig.told(tracker);
    assert!(told.starts_with("-OVERLOADED reason=links "), "{told}");
    assert_eq!(links(&rig), (0, 0));
}

#[test]
fn a_store_that_is_lost_before_it_has_numbered_the_link_refuses_the_command() {
    let mut rig = Rig::with(2, 1, |settings| settings.private_links_max = 20);
    let (_target, tracker) = (rig.client(1), rig.client(0));
    rig.send(tracker, &[&["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    // The target's link to the store speaks RESP3.
    rig.lose("HELLO");
    let told = rig.told(tracker);
    assert!(told.starts_with("-UNAVAILABLE backend=store0 reason="), "{told}");
    assert_eq!((links(&rig).1, rig.shards[1].clients_open()), (0, 1));
}

#[test]
fn a_target_that_would_miss_messages_is_closed() {
    let Redirected { mut rig, tracker, inbox, .. } = redirected(1, |_| {});
    let link = &inbox[0];
    rig.shards[1].handle_link_lost(link.link, link.generation, Loss::ByPeer, rig.now);
    rig.turns();
    assert_eq!((rig.shards[1].clients_open(), links(&rig)), (0, (1, 0)));
    assert!(info(&mut rig, tracker).contains("broken_redirect"));
}

#[test]
fn a_target_that_reads_too_slowly_is_closed() {
    let Redirected { mut rig, target, inbox, .. } = redirected(1, |settings| {
        settings.clients.subscriber_bytes_max = 1_000;
    });
    rig.send(target, &[&["HELLO", "3"]]);
    rig.told(target);
    rig.reading = Reading::Never;
    for _ in 0..40 {
        rig.bytes(&inbox[0], CHANGED.as_bytes());
    }
    assert_eq!((rig.shards[1].clients_open(), links(&rig)), (0, (1, 0)));
    assert_eq!(rig.shards[1].counters().get(Counter::ClientsClosedSubscriber), 1);
}

#[test]
fn neither_of_the_two_moves_to_another_process() {
    let Redirected { rig, tracker, target, .. } = redirected(1, |_| {});
    assert_eq!(rig.shards[0].readiness(rig.id(tracker)), Readiness::Unfinished);
    assert_eq!(rig.shards[1].readiness(rig.id(target)), Readiness::Unfinished);
}

#[test]
fn a_drain_closes_both() {
    let Redirected { mut rig, tracker, target, .. } = redirected(1, |_| {});
    for (shard, client) in [(1, target), (0, tracker)] {
        let id = rig.id(client);
        rig.shards[shard].handle_client_end(id, rig.now);
        rig.turns();
        assert_eq!(rig.shards[shard].clients_open(), 0);
    }
    assert_eq!(links(&rig), (0, 0));
}

#[test]
fn a_client_may_name_itself() {
    let mut rig = Rig::with(2, 1, |settings| settings.private_links_max = 20);
    let client = rig.client(1);
    rig.send(client, &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON", "REDIRECT", NUMBER]]);
    rig.told(client);
    let inbox = rig.at_stores.last().expect("the link for messages is opened last").clone();
    greet(&mut rig);
    rig.answer_first("TRACKING", "+OK\r\n");
    rig.bytes(&inbox, CHANGED.as_bytes());
    assert_eq!(rig.told(client), format!("+OK\r\n{CHANGED}"));
    let id = rig.id(client);
    rig.shards[1].handle_client_lost(id);
    rig.turns();
    assert_eq!(links(&rig), (0, 0));
}
