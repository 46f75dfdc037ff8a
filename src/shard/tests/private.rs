//! Tests of private links: connections lent to one client for blocking commands, watched keys and
//! subscriptions.

use super::cluster::{ask, clustered, moved, thirds};
use super::*;
use crate::protocol::{Argument, Arguments};
use crate::shard::clients::client_filter::{ClientsAsked, ClientsTold, Reach};
use crate::shard::versions::Versions;

/// Returns a test rig (shards with scripted stores and clients) whose cores may lend clients `links` private
/// links (connections to stores) each.
pub(super) fn lending(shards: u16, backends: u16, links: usize) -> Rig {
    Rig::with(shards, backends, |settings| {
        settings.private_links_max = links;
        settings.overload.shed = Mode::On;
    })
}

/// Returns the number of private links (connections to stores that one client has to itself) of the first
/// core that clients hold, and the number of those that are open.
pub(super) fn links(rig: &Rig) -> (usize, usize) {
    let figures = rig.shards[0].private_links();
    let lent = figures.waiting + figures.watching + figures.subscribed;
    (lent, lent + figures.idle)
}

/// Answers the greeting (first requests) of the private link (connection that one client has to itself) that
/// was opened last.
pub(super) fn greet(rig: &mut Rig) {
    rig.answer_first("\r\nID\r\n", ":7\r\n");
}

#[test]
fn a_call_that_waits_holds_up_its_own_client_and_no_other() {
    let mut rig = lending(1, 1, 10);
    let [waiter, other] = [rig.client(0), rig.client(0)];
    rig.send(waiter, &[&["BLPOP", "q", "0"], &["GET", "a"]]);
    greet(&mut rig);
    assert_eq!(rig.words_at_stores(), ["BLPOP"], "what is behind it waits");
    rig.send(other, &[&["GET", "b"]]);
    rig.answer_first("GET", "$1\r\nb\r\n");
    assert_eq!(rig.told(other), "$1\r\nb\r\n");
    // A blocking call without timeout may wait for any time.
    rig.wait(Duration::from_secs(3_600));
    assert_eq!(rig.told(waiter), "");
    rig.answer_first("BLPOP", "*2\r\n$1\r\nq\r\n$1\r\nx\r\n");
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.told(waiter), "*2\r\n$1\r\nq\r\n$1\r\nx\r\n$-1\r\n");
    assert_eq!(links(&rig), (0, 1), "the link waits for the next");

    // The next call takes the link that is open.
    rig.send(other, &[&["BLPOP", "q", "0"]]);
    assert_eq!((rig.words_at_stores(), links(&rig)), (vec!["BLPOP"], (1, 1)));
}

#[test]
fn the_link_of_a_call_that_waits_is_examined_for_the_first_seconds() {
    let mut rig = lending(1, 1, 10);
    let waiter = rig.client(0);
    rig.send(waiter, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.wait(Duration::from_millis(400));
    assert_eq!(rig.take_examined(), 0);
    rig.wait(Duration::from_secs(4));
    assert!((10..=40).contains(&rig.take_examined()));
    rig.wait(Duration::from_secs(4));
    assert_eq!(rig.take_examined(), 0);
}

#[test]
fn links_to_a_store_that_has_become_a_replica_are_opened_anew() {
    let mut rig = lending(1, 1, 10);
    let [idle, waiting, popping] = [rig.client(0), rig.client(0), rig.client(0)];
    rig.send(idle, &[&["BLPOP", "q", "0"]]);
    rig.send(waiting, &[&["BLPOP", "r", "0"]]);
    rig.send(popping, &[&["BLPOP", "s", "0"]]);
    for _ in 0..3 {
        greet(&mut rig);
    }
    rig.answer_first("\r\nq\r\n", POPPED);
    assert_eq!(links(&rig), (2, 3));
    rig.answer_first("\r\ns\r\n", READ_ONLY);
    assert_eq!(rig.told(popping), READ_ONLY);
    rig.wait(Duration::from_millis(200));
    assert_eq!(links(&rig), (1, 1), "only a call that waits keeps its link");
    rig.answer_first("\r\nr\r\n", "*2\r\n$1\r\nr\r\n$1\r\nx\r\n");
    assert_eq!(links(&rig), (0, 0), "it is not used again");
}

#[test]
fn links_are_bounded_and_no_tenant_takes_all() {
    let mut rig = lending(1, 1, 5);
    let clients: Vec<usize> = (0..5).map(|_| rig.client(0)).collect();
    for client in &clients {
        rig.send(*client, &[&["BLPOP", "q", "0"]]);
    }
    // One tenant may hold four of five links.
    let refusal = "-OVERLOADED reason=links backend=store0 retry_after_ms=1000\r\n";
    assert_eq!(rig.told(clients[4]), refusal);
    assert_eq!(links(&rig), (4, 4));
    // A call that ends frees its link.
    greet(&mut rig);
    rig.answer_first("BLPOP", "*-1\r\n");
    rig.send(clients[4], &[&["BLPOP", "q", "0"]]);
    assert_eq!((rig.told(clients[4]).as_str(), links(&rig)), ("", (4, 4)));
}

#[test]
fn links_count_to_their_tenant_after_new_quotas_have_given_it_another_id() {
    let mut rig = lending(1, 1, 10);
    let acme = "[tenants.acme]\npassword = 'a'\nprivate_links = 1\n";
    rig.put_in_force(acme);
    let [holder, other] = [0; 2].map(|_| rig.signed_in("acme", "a"));
    rig.send(holder, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.put_in_force(&format!("[tenants.aaa]\npassword = 'b'\n{acme}"));
    rig.send(other, &[&["BLPOP", "q", "0"]]);
    let refusal = "-OVERLOADED reason=links backend=store0 retry_after_ms=1000\r\n";
    assert_eq!(rig.told(other), refusal);
    rig.answer_first("BLPOP", "*-1\r\n");
    rig.send(other, &[&["BLPOP", "q", "0"]]);
    assert_eq!((rig.told(other).as_str(), links(&rig)), ("", (1, 1)));
}

#[test]
fn without_links_the_commands_are_refused_as_they_were() {
    let mut rig = lending(1, 1, 0);
    let client = rig.client(0);
    for words in [&["BLPOP", "q", "0"][..], &["WATCH", "k"], &["SUBSCRIBE", "c"], &["UNSUBSCRIBE"]] {
        rig.send(client, &[words]);
        assert!(rig.told(client).starts_with(&format!("-ERR {} is not supported by weir", words[0])));
    }
}

#[test]
fn a_client_that_leaves_takes_its_link_with_it() {
    for ends in [true, false] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
        let id = rig.id(client);
        if ends {
            rig.shards[0].handle_client_end(id, rig.now);
        } else {
            rig.shards[0].handle_client_lost(id);
        }
        rig.turns();
        assert_eq!(rig.shards[0].requests_abandoned(), 0, "its charge is settled");
        greet(&mut rig);
        rig.answer_first("UNBLOCK\r\n$1\r\n7\r\n$7\r\nTIMEOUT", ":1\r\n");
        assert_eq!(links(&rig), (1, 2), "the call is not over until its store says so");
        rig.answer_first("BLPOP", "*-1\r\n");
        assert_eq!((links(&rig), orphans(&rig)), ((0, 1), (0, 0)), "nothing is popped for nobody");
    }
}

#[test]
fn clients_that_leave_together_need_one_more_link_together() {
    let mut rig = lending(1, 1, 10);
    let clients = [0; 5].map(|shard| rig.client(shard));
    for client in clients {
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
    }
    for client in clients {
        let id = rig.id(client);
        rig.shards[0].handle_client_lost(id);
    }
    rig.turns();
    assert_eq!(links(&rig), (5, 6));
    greet(&mut rig);
    assert_eq!(rig.frames("UNBLOCK").len(), 5);
}

#[test]
fn a_store_that_numbers_no_connections_sees_the_end_of_one_whose_client_has_left() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    rig.answer_first("\r\nID\r\n", "-ERR unknown subcommand\r\n");
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    assert_eq!(links(&rig), (0, 0));
    assert!(rig.at_stores.is_empty());
}

#[test]
fn a_deadline_ends_the_wait() {
    for hot in [Mode::On, Mode::Off] {
        a_deadline_ends_the_wait_with(hot);
    }
}

fn a_deadline_ends_the_wait_with(hot: Mode) {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.overload.shed = Mode::On;
        settings.hot.mode = hot;
    });
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"]]);
    rig.told(client);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.wait(Duration::from_millis(199));
    assert_eq!(rig.told(client), "");
    rig.wait(Duration::from_millis(2));
    assert_eq!(rig.told(client), "-DEADLINE stage=backend waited_ms=200 (it may have happened)\r\n");
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(links(&rig), (0, 1));
}

#[test]
fn a_deadline_that_passes_before_the_call_is_sent_changes_nothing() {
    for words in [["BLPOP", "q", "0"].as_slice(), &["WATCH", "k"]] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"]]);
        rig.told(client);
        // The store has not answered the greeting of the new link yet.
        rig.send(client, &[words]);
        rig.wait(Duration::from_millis(201));
        assert_eq!(rig.told(client), "-DEADLINE stage=backend waited_ms=200\r\n");
        rig.send(client, &[&["PING"]]);
        assert_eq!((rig.told(client).as_str(), links(&rig)), ("+PONG\r\n", (0, 0)));
    }
}

#[test]
fn a_deadline_is_only_counted_or_ignored_where_that_is_wanted() {
    for (mode, waits, late) in [(Mode::On, true, 0), (Mode::Off, false, 0), (Mode::Shadow, false, 1)] {
        let mut rig = Rig::with(1, 1, |settings| {
            settings.private_links_max = 10;
            settings.overload.shed = mode;
        });
        let client = rig.client(0);
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"]]);
        if waits {
            rig.send(client, &[&["QOS", "SET", "INFLIGHT", "wait"]]);
        }
        rig.told(client);
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
        rig.wait(Duration::from_millis(500));
        assert_eq!((rig.told(client).as_str(), rig.counted(Counter::LateInShadow)), ("", late), "{mode:?}");
        rig.answer_first("BLPOP", "*-1\r\n");
        assert_eq!(rig.told(client), "*-1\r\n");
    }
}

#[test]
fn a_message_whose_deadline_passes_at_the_store_may_have_happened() {
    let (mut rig, client, _) = watching();
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"]]);
    rig.told(client);
    rig.send(client, &[&["SPUBLISH", "k", "m"]]);
    rig.wait(Duration::from_millis(201));
    assert_eq!(rig.told(client), "-DEADLINE stage=backend waited_ms=200 (it may have happened)\r\n");
}

#[test]
fn a_deadline_that_passes_at_exec_or_the_first_watch_leaves_no_watch() {
    for (word, reply) in [("EXEC", "*1\r\n+OK\r\n"), ("WATCH", "+OK\r\n")] {
        let (mut rig, client) = if word == "EXEC" {
            let (rig, client, _) = watching();
            (rig, client)
        } else {
            let mut rig = lending(1, 1, 10);
            let client = rig.client(0);
            (rig, client)
        };
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"]]);
        match word {
            "EXEC" => rig.send(client, &[&["MULTI"], &["SET", "k", "1"], &["EXEC"]]),
            _ => rig.send(client, &[&["WATCH", "k"]]),
        }
        if word == "WATCH" {
            greet(&mut rig);
        }
        rig.wait(Duration::from_millis(201));
        let told = rig.told(client);
        assert!(told.contains("-DEADLINE stage=backend"), "{word}");
        let may_have_happened = told.contains("(it may have happened)");
        assert_eq!(may_have_happened, word == "EXEC", "a watch changes nothing: {told}");
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "0"], &["MULTI"], &["SET", "other", "2"], &["EXEC"]]);
        rig.told(client);
        if word == "EXEC" {
            rig.answer_first("MULTI", "+OK\r\n");
            rig.answer_first("SET", "+QUEUED\r\n");
        }
        rig.answer_first(word, reply);
        for (word, reply) in [("MULTI", "+OK\r\n"), ("SET", "+QUEUED\r\n"), ("EXEC", "*1\r\n+OK\r\n")] {
            rig.answer_first(word, reply);
        }
        assert_eq!(
            (rig.told(client).as_str(), rig.counted(Counter::WatchesBroken)),
            ("*1\r\n+OK\r\n", 0),
            "{word}"
        );
    }
}

/// Returns the number of elements that stores popped for clients that had left: those lost, and those that
/// weir pushed back.
pub(super) fn orphans(rig: &Rig) -> (u64, u64) {
    let counters = rig.shards[0].counters();
    (counters.get(Counter::OrphansLost), counters.get(Counter::OrphansPutBack))
}

/// Makes a client leave while its blocking call waits at a store, so late that the store has popped an
/// element for it: the test has yet to send the store's reply. `gives_back` says whether such elements are
/// pushed back. Returns the test rig, and its counters of writes.
fn leaves_too_late(gives_back: bool) -> (Rig, Arc<Versions>) {
    let versions = Arc::new(Versions::new(1));
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.hot.versions = Arc::clone(&versions);
    });
    let terms = quotas(&format!("[default]\nadmin = true\ngive_back = {gives_back}"));
    rig.shards[0].handle_quotas(terms, rig.now);
    let client = rig.client(0);
    wait_and_leave(&mut rig, client, &["BLPOP", "p", "q", "0"]);
    (rig, versions)
}

/// Lets a client send a blocking call (`words`) and leave. The store knows of no call to end, so its reply,
/// with an element that it has popped, is still to come from the test.
fn wait_and_leave(rig: &mut Rig, client: usize, words: &[&str]) {
    rig.send(client, &[words]);
    greet(rig);
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    greet(rig);
    for _ in 0..21 {
        rig.answer_first("UNBLOCK", ":0\r\n");
    }
    assert!(rig.frames("UNBLOCK").is_empty(), "a store that knows of no call is not asked for ever");
}

const POPPED: &str = "*2\r\n$1\r\nq\r\n$1\r\nx\r\n";

#[test]
fn what_is_popped_for_a_client_that_has_left_is_counted() {
    let (mut rig, versions) = leaves_too_late(false);
    rig.answer_first("BLPOP", POPPED);
    assert_eq!((orphans(&rig), links(&rig)), ((1, 0), (0, 1)));
    assert!(rig.at_stores.is_empty());
    assert!(matches!(rig.actions.last(), Some((0, Action::Reset(Owner::Link(..))))));
    let line = rig.shards[0].poll_line().expect("the log has it");
    assert!(line.contains("1 element(s) that store0 took from q"), "{line}");
    assert_eq!(versions.under_way(), 0);
}

#[test]
fn what_is_popped_for_a_client_that_has_left_is_put_back_where_its_tenant_wants_that() {
    for (reply, counted) in [(":1\r\n", (0, 1)), ("-WRONGTYPE not a list\r\n", (1, 0))] {
        let (mut rig, versions) = leaves_too_late(true);
        rig.answer_first("BLPOP", POPPED);
        assert_eq!((rig.words_at_stores(), orphans(&rig)), (vec!["LPUSH"], (0, 0)));
        assert!(rig.frames("LPUSH")[0].frame.ends_with("$1\r\nq\r\n$1\r\nx\r\n"));
        assert_eq!(versions.under_way(), 2, "replies about its keys are not kept");
        rig.answer_first("LPUSH", reply);
        assert_eq!((orphans(&rig), links(&rig)), (counted, (0, 1)), "{reply}");
        assert_eq!(versions.under_way(), 0);
    }
    // The store dies with the request that pushes the element back.
    let (mut rig, versions) = leaves_too_late(true);
    rig.answer_first("BLPOP", POPPED);
    rig.lose("LPUSH");
    assert_eq!((orphans(&rig), links(&rig), versions.under_way()), ((1, 0), (0, 0), 2));
    rig.wait(Duration::from_secs(1));
    assert_eq!(versions.under_way(), 0, "it is certainly over by now");
}

#[test]
fn what_is_popped_for_a_client_that_has_left_is_put_back_however_long_its_call_was() {
    let mut rig = lending(1, 1, 10);
    rig.put_in_force("[default]\nadmin = true\ngive_back = true\n");
    let client = rig.client(0);
    let queues: Vec<String> = (0..600).map(|number| format!("{number:025}")).collect();
    let names: Vec<&str> = queues.iter().map(String::as_str).collect();
    let words = [&["BLPOP"], names.as_slice(), &["0"]].concat();
    assert!(request(&words).len() > limits::COPY_BYTES_MAX);
    wait_and_leave(&mut rig, client, &words);
    rig.answer_first("BLPOP", POPPED);
    assert_eq!(rig.words_at_stores(), ["LPUSH"]);
    assert!(rig.frames("LPUSH")[0].frame.ends_with("$1\r\nq\r\n$1\r\nx\r\n"));
    rig.answer_first("LPUSH", ":1\r\n");
    assert_eq!(orphans(&rig), (0, 1));
}

#[test]
fn what_is_popped_for_a_client_that_has_left_is_put_back_though_new_quotas_gave_its_tenant_another_id() {
    let mut rig = lending(1, 1, 10);
    let acme = "[tenants.acme]\npassword = 'a'\ngive_back = true\n";
    rig.put_in_force(acme);
    let client = rig.signed_in("acme", "a");
    wait_and_leave(&mut rig, client, &["BLPOP", "q", "0"]);
    rig.put_in_force(&format!("[tenants.aaa]\npassword = 'b'\n{acme}"));
    rig.answer_first("BLPOP", POPPED);
    assert_eq!(rig.words_at_stores(), ["LPUSH"]);
}

#[test]
fn a_call_whose_client_has_left_ends_with_its_store() {
    for ends in [true, false] {
        let (mut rig, versions) = leaves_too_late(true);
        if ends {
            rig.lose("BLPOP");
        } else {
            rig.wait(Duration::from_secs(30));
        }
        assert_eq!((orphans(&rig), links(&rig)), ((0, 0), (0, 1)));
        rig.wait(Duration::from_secs(1));
        assert_eq!(versions.under_way(), 0);
    }
}

#[test]
fn what_is_popped_after_a_deadline_is_counted() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"], &["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.wait(Duration::from_millis(201));
    assert!(rig.told(client).contains("-DEADLINE stage=backend waited_ms=200 (it may have happened)"));
    rig.answer_first("BLPOP", POPPED);
    assert_eq!((orphans(&rig), links(&rig)), ((1, 0), (0, 1)));
}

#[test]
fn a_store_that_dies_with_a_waiting_call_ends_its_client() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.lose("BLPOP");
    let refusal = "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50\r\n";
    assert_eq!(rig.told(client), refusal);
    assert!(rig.actions.iter().any(|(_, action)| matches!(action, Action::Close(Owner::Client(_)))));
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_link_that_cannot_be_opened_is_given_up_in_time() {
    let mut rig = lending(1, 1, 10);
    rig.connecting = Connecting::Hangs;
    let client = rig.client(0);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    rig.wait(Duration::from_secs(2));
    let refusal = "-UNAVAILABLE backend=store0 reason=connect-timeout retry_after_ms=50\r\n";
    assert_eq!(rig.told(client), refusal);
    assert_eq!((rig.shards[0].clients_open(), links(&rig)), (1, (0, 0)));
}

#[test]
fn what_follows_watch_goes_over_the_same_link() {
    let mut rig = lending(2, 1, 10);
    let client = rig.client(0);
    let [key, far] = [rig.key(0, 0), rig.key(1, 0)];
    rig.send(client, &[&["WATCH", &key], &["GET", &key], &["MGET", &key, &far]]);
    greet(&mut rig);
    let link = rig.frames("WATCH")[0].link;
    rig.answer_first("WATCH", "+OK\r\n");
    assert_eq!(rig.frames("\r\nGET\r\n")[0].link, link, "a read from a cache could be older than the watch");
    rig.answer_first("\r\nGET\r\n", "$1\r\n1\r\n");
    assert_eq!(rig.frames("MGET")[0].link, link);
    rig.answer_first("MGET", "*2\r\n$1\r\n1\r\n$-1\r\n");
    rig.told(client);
    rig.send(client, &[&["MULTI"], &["SET", &key, "2"], &["EXEC"], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "EXEC"]);
    assert!(rig.at_stores.iter().all(|sent| sent.link == link));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*-1\r\n"] {
        rig.answer_next(reply);
    }
    assert_ne!(rig.frames("\r\nGET\r\n")[0].link, link, "nothing is watched any more");
    rig.answer_next("$1\r\n9\r\n");
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*-1\r\n$1\r\n9\r\n");
    assert_eq!(links(&rig), (0, 1));
}

#[test]
fn a_link_is_clean_before_it_is_lent_again() {
    for end in [&["UNWATCH"][..], &["MULTI", "DISCARD"]] {
        let mut rig = lending(1, 1, 10);
        let [client, other] = [rig.client(0), rig.client(0)];
        rig.send(client, &[&["WATCH", "k"]]);
        greet(&mut rig);
        let link = rig.frames("WATCH")[0].link;
        rig.answer_first("WATCH", "+OK\r\n");
        for word in end {
            rig.send(client, &[&[word]]);
        }
        assert_eq!(rig.told(client), "+OK\r\n".repeat(1 + end.len()));
        assert_eq!(rig.words_at_stores(), ["UNWATCH"]);
        rig.send(other, &[&["WATCH", "k"]]);
        greet(&mut rig);
        assert_ne!(rig.frames("\r\nWATCH\r\n")[0].link, link, "the first is not clean yet");
        rig.answer_first("UNWATCH", "+OK\r\n");
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        assert_eq!(rig.frames("BLPOP")[0].link, link);
    }
}

/// The error of a store that is busy with a script.
pub(super) const BUSY: &str =
    "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";

#[test]
fn a_link_is_lent_again_only_if_its_store_has_ended_what_it_kept_for_it() {
    for (reply, idle) in [("+OK\r\n", 1), (BUSY, 0), ("+QUEUED\r\n", 0), (":1\r\n", 0)] {
        let (mut rig, client, _) = watching();
        rig.send(client, &[&["UNWATCH"]]);
        rig.answer_first("UNWATCH", reply);
        assert_eq!(links(&rig), (0, idle), "{reply}");
    }
    // A transaction that the store has not begun ends no watch.
    for (begun, ended, idle) in [
        ("+OK\r\n", "*-1\r\n", 1),
        ("+OK\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n", 1),
        (BUSY, "-ERR EXEC without MULTI\r\n", 0),
    ] {
        let (mut rig, client, _) = watching();
        rig.send(client, &[&["MULTI"], &["SET", "k", "1"], &["EXEC"]]);
        rig.answer_first("MULTI", begun);
        rig.answer_first("SET", "+QUEUED\r\n");
        rig.answer_first("EXEC", ended);
        assert_eq!(links(&rig), (0, idle), "{ended}");
    }
    // A command that weir does not know may leave anything behind.
    let (mut rig, client, watch) = watching();
    rig.send(client, &[&["FROB", "k"]]);
    assert_eq!(rig.frames("FROB")[0].link, watch.link, "for the client it is one connection");
    rig.answer_first("FROB", "+OK\r\n");
    rig.send(client, &[&["UNWATCH"]]);
    assert_eq!((rig.at_stores.len(), links(&rig)), (0, (0, 0)));
}

#[test]
fn a_link_over_which_a_reply_comes_that_belongs_to_no_request_is_lent_no_more() {
    // The end of the last one has not come when a link is needed.
    for (unasked, idle) in [("+OK\r\n", 0), ("$5\r\nabcde\r\n", 0), ("$5\r\nab", 1)] {
        let (mut rig, client, watch) = watching();
        rig.send(client, &[&["UNWATCH"]]);
        rig.answer_first("UNWATCH", "+OK\r\n");
        assert_eq!(links(&rig), (0, 1));
        rig.more(unasked);
        assert_eq!(links(&rig), (0, idle), "{unasked}");
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
        let next = rig.frames("BLPOP")[0];
        assert_ne!((next.link, next.generation), (watch.link, watch.generation), "{unasked}");
    }
}

/// Returns a test rig (shards with scripted stores and clients) with a client that watches the key `k`, and
/// the `WATCH` that its store has answered.
fn watching() -> (Rig, usize, Sent) {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["WATCH", "k"]]);
    greet(&mut rig);
    let watch = rig.frames("WATCH")[0].clone();
    rig.answer_first("WATCH", "+OK\r\n");
    (rig, client, watch)
}

#[test]
fn a_watch_that_is_lost_fails_its_transaction() {
    for held_too_long in [false, true] {
        let (mut rig, client, Sent { link, generation, .. }) = watching();
        if held_too_long {
            rig.wait(Duration::from_secs(31));
            rig.answer_first("UNWATCH", "+OK\r\n");
        } else {
            rig.shards[0].handle_link_lost(link, generation, Loss::ByPeer, rig.now);
            rig.turns();
        }
        rig.send(client, &[&["WATCH", "more"], &["MULTI"], &["SET", "k", "1"], &["EXEC"], &["EXEC"]]);
        let told = "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n-ERR EXEC without MULTI\r\n";
        assert_eq!((rig.told(client).as_str(), rig.at_stores.len()), (told, 0));
        assert_eq!(rig.counted(Counter::WatchesBroken), 1);
    }
}

#[test]
fn a_watch_outlives_hello_unless_it_changes_the_dialect() {
    for (words, is_broken) in [
        (&["HELLO", "9"][..], false),
        (&["HELLO", "3", "NONSENSE"], false),
        (&["HELLO", "2"], false),
        (&["HELLO", "3"], true),
    ] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["WATCH", "k"]]);
        greet(&mut rig);
        rig.answer_first("WATCH", "+OK\r\n");
        rig.send(client, &[words, &["MULTI"], &["SET", "k", "1"], &["EXEC"]]);
        let at_stores: &[&str] = if is_broken { &["UNWATCH"] } else { &["MULTI", "SET", "EXEC"] };
        assert_eq!(rig.words_at_stores(), at_stores, "{words:?}");
    }
}

/// True if a transaction that selects `database` needs a private link (connection that its client has to
/// itself), which shows in a `MULTI` at the store.
fn selects_again(rig: &mut Rig, client: usize, database: &str) -> bool {
    rig.send(client, &[&["MULTI"], &["SELECT", database], &["GET", "k"], &["EXEC"]]);
    rig.words_at_stores().contains(&"MULTI")
}

#[test]
fn a_transaction_that_selects_takes_a_link_and_its_client_follows() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(
        client,
        &[&["MULTI"], &["SELECT", "5"], &["GET", "k"], &["SELECT", "3"], &["EXEC"], &["CLIENT", "INFO"]],
    );
    greet(&mut rig);
    assert_eq!(links(&rig), (1, 1));
    assert_eq!(rig.words_at_stores(), ["MULTI", "SELECT", "GET", "SELECT", "EXEC"]);
    for step in ["MULTI", "SELECT", "GET", "SELECT"] {
        rig.answer_first(step, "+QUEUED\r\n");
    }
    // The store has no database 3, so the client stays in database 5.
    rig.answer_first("EXEC", "*3\r\n+OK\r\n$-1\r\n-ERR DB index is out of range\r\n");
    let told = rig.told(client);
    assert!(told.contains("*3\r\n+OK\r\n$-1\r\n-ERR DB index") && told.contains(" db=5 "), "{told}");
    assert_eq!(links(&rig), (0, 1));

    // The link stays in its database, and is lent again only to transactions that select it.
    assert!(selects_again(&mut rig, client, "6"));
    assert_eq!((links(&rig), rig.words_at_stores()), ((1, 1), vec!["MULTI", "SELECT", "GET", "EXEC"]));
}

#[test]
fn a_link_whose_database_is_not_known_is_closed() {
    for (reply, open) in [("*-1\r\n", 1), ("*2\r\n+OK\r\n$-1\r\n", 1), ("-ERR the reply is too large\r\n", 0)]
    {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        assert!(!selects_again(&mut rig, client, "5"));
        greet(&mut rig);
        for step in ["MULTI", "SELECT", "GET"] {
            rig.answer_first(step, "+QUEUED\r\n");
        }
        rig.answer_first("EXEC", reply);
        assert_eq!(links(&rig), (0, open), "{reply}");
        rig.told(client);
        rig.send(client, &[&["CLIENT", "INFO"]]);
        let database = if reply.starts_with("*2") { " db=5 " } else { " db=0 " };
        assert!(rig.told(client).contains(database), "{reply}");
    }
}

#[test]
fn a_link_that_is_given_back_after_a_redirect_is_lent_to_one_client() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 10);
    let terms = |most: u32| format!("[default]\nadmin = true\nprivate_links = {most}");
    rig.put_in_force(&terms(2));
    let [redirected, waiter, next, last] = [0; 4].map(|shard| rig.client(shard));
    let key = rig.key(0, 0);
    for client in [redirected, waiter] {
        rig.send(client, &[&["BLPOP", &key, "0"]]);
        greet(&mut rig);
    }
    // The tenant may hold fewer links than it does, so there is none to the other node.
    rig.put_in_force(&terms(1));
    rig.answer_first("BLPOP", &moved(&key, 1));
    assert!(rig.told(redirected).starts_with("-UNAVAILABLE backend=10.0.0.0:7000 reason=redirects "));
    assert_eq!(links(&rig), (1, 2));
    rig.put_in_force(&terms(4));
    for client in [next, last] {
        rig.send(client, &[&["BLPOP", &key, "0"]]);
    }
    assert_eq!(links(&rig), (3, 3));
}

#[test]
fn a_call_whose_keys_are_moving_waits_at_the_node_to_which_they_move() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 10);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["BLPOP", &key, "5"]]);
    greet(&mut rig);
    rig.wait(Duration::from_secs(1));
    // The node does not have the key, which may have moved already.
    rig.answer_first("BLPOP", &ask(&key, 1));
    greet(&mut rig);
    assert_eq!(rig.at_nodes(), ["1 ASKING", "1 BLPOP"]);
    assert!(rig.frames("BLPOP")[0].frame.ends_with("\r\n4.000\r\n"), "for the rest of its time");
    rig.answer_first("ASKING", "+OK\r\n");
    let popped = format!("*2\r\n${}\r\n{key}\r\n$1\r\n1\r\n", key.len());
    rig.answer_first("BLPOP", &popped);
    assert_eq!(rig.told(client), popped);
    assert_eq!(links(&rig), (0, 2));
}

#[test]
fn a_call_that_no_node_carries_out_is_refused_in_words_of_weirs_own() {
    let unknown = |key: &str| format!("-MOVED {} 10.0.0.9:7009\r\n", slot_of(key.as_bytes()));
    let refusals: [&dyn Fn(&str) -> String; 5] =
        [&unknown, &|key| moved(key, 0), &|key| ask(key, 0), &|key| ask(key, 9), &|_| {
            "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned()
        }];
    for refusal in refusals {
        let mut rig = clustered(1, |settings| settings.private_links_max = 10);
        let (client, key) = (rig.client(0), rig.key(0, 0));
        rig.send(client, &[&["BLPOP", &key, "0"]]);
        greet(&mut rig);
        rig.answer_first("BLPOP", &refusal(&key));
        let told = rig.told(client);
        assert!(told.starts_with("-UNAVAILABLE backend=10.0.0.0:7000 reason=redirects "), "{told}");
        assert!(rig.shards[0].poll_doubt().is_some(), "the map may be old");
        assert_eq!(links(&rig), (0, 1));
    }
}

#[test]
fn a_call_that_goes_on_at_another_node_breaks_the_watch_of_its_client() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 10);
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["WATCH", &key]]);
    greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["BLPOP", &key, "0"]]);
    rig.answer_first("BLPOP", &moved(&key, 1));
    rig.answer_first("UNWATCH", "+OK\r\n");
    greet(&mut rig);
    assert_eq!(rig.at_nodes(), ["1 BLPOP"]);
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(rig.told(client), "+OK\r\n*-1\r\n");
    rig.send(client, &[&["MULTI"], &["SET", &key, "1"], &["EXEC"]]);
    assert_eq!((rig.told(client).as_str(), rig.at_stores.len()), ("+OK\r\n+QUEUED\r\n*-1\r\n", 0));
}

#[test]
fn a_slot_that_moves_breaks_the_watch_of_its_keys() {
    let mut rig = clustered(1, |settings| settings.private_links_max = 10);
    let key = rig.key(0, 0);
    let transaction: &[&[&str]] = &[&["MULTI"], &["SET", &key, "1"], &["EXEC"]];
    let clients = [rig.client(0), rig.client(0), rig.client(0)];
    for client in clients {
        rig.send(client, &[&["WATCH", &key]]);
        greet(&mut rig);
        rig.answer_first("WATCH", "+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n");
    }
    let moved = slot_of(key.as_bytes());
    rig.publish(|slot| Some(if slot == moved { 1 } else { thirds(slot) }));
    let [executes, watches_more, waits] = clients;
    rig.send(executes, transaction);
    assert_eq!(rig.told(executes), "+OK\r\n+QUEUED\r\n*-1\r\n", "as if the key were deleted");
    rig.send(watches_more, &[&["WATCH", &key]]);
    rig.send(watches_more, transaction);
    assert_eq!(rig.told(watches_more), "+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
    rig.send(waits, &[&["BLPOP", &key, "0"]]);
    greet(&mut rig);
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(rig.told(waits), "*-1\r\n");
    rig.send(waits, transaction);
    assert_eq!(rig.told(waits), "+OK\r\n+QUEUED\r\n*-1\r\n");
}

/// Answers the greeting of the private link (connection that one client has to itself) that was opened last; none
/// is there on a link that was open before.
fn greet_if_new(rig: &mut Rig) {
    if !rig.frames("\r\nID\r\n").is_empty() {
        greet(rig);
    }
}

/// Answers the requests that precede a `WAIT` with these `words`, which is the only other request at the stores.
fn begin_wait(rig: &mut Rig, words: &str) {
    greet_if_new(rig);
    rig.answer_first("PING", "+PONG\r\n");
    rig.answer_first("SPUBLISH", ":0\r\n");
    assert_eq!(rig.words_at_stores(), ["WAIT"]);
    assert_eq!(rig.frames("WAIT")[0].frame.as_bytes(), request(&words.split(' ').collect::<Vec<_>>()));
}

/// Has a store answer a `WAIT` with these `words`, and the requests that precede it.
fn confirm(rig: &mut Rig, words: &str, reply: &str) {
    begin_wait(rig, words);
    rig.answer_first("WAIT", reply);
}

#[test]
fn a_wait_for_replicas_asks_each_store_that_the_client_has_written_to() {
    let mut rig = lending(1, 3, 10);
    let client = rig.client(0);
    // A client that has written nothing yet hears of the store with the fewest replicas.
    rig.send(client, &[&["WAIT", "1", "5000"]]);
    begin_wait(&mut rig, "WAIT 1 5000");
    rig.wait(Duration::from_secs(2));
    rig.answer_first("WAIT", ":2\r\n");
    assert_eq!(rig.told(client), "");
    confirm(&mut rig, "WAIT 1 3000", ":1\r\n");
    confirm(&mut rig, "WAIT 1 3000", ":3\r\n");
    assert_eq!((rig.told(client).as_str(), links(&rig).0), (":1\r\n", 0));
    // Reads do not count, and neither does a store that only others have written to.
    let keys = [0, 1, 2].map(|store| rig.key(0, store));
    rig.send(client, &[&["GET", &keys[0]], &["SET", &keys[1], "v"]]);
    rig.answer_first("GET", "$-1\r\n");
    rig.answer_first("SET", "+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["WAIT", "2", "1000"]]);
    confirm(&mut rig, "WAIT 2 1000", ":2\r\n");
    assert_eq!(rig.told(client), ":2\r\n");
    // The first store lets the whole time pass, so the next says at once what it knows.
    rig.send(client, &[&["MULTI"], &["SET", &keys[2], "v"], &["EXEC"]]);
    rig.answer_first("MULTI", "+OK\r\n");
    rig.answer_first("SET", "+QUEUED\r\n");
    rig.answer_first("EXEC", "*1\r\n+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["WAIT", "2", "1000"], &["GET", &keys[0]]]);
    begin_wait(&mut rig, "WAIT 2 1000");
    rig.wait(Duration::from_millis(1_001));
    rig.answer_first("WAIT", ":0\r\n");
    confirm(&mut rig, "WAIT 2 1", ":2\r\n");
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.told(client), ":0\r\n$-1\r\n");
    // An error of one store is the reply, and so is the loss of one.
    rig.send(client, &[&["WAIT", "2", "0"]]);
    confirm(&mut rig, "WAIT 2 0", ":2\r\n");
    confirm(&mut rig, "WAIT 2 0", "-ERR no\r\n");
    assert_eq!(rig.told(client), "-ERR no\r\n");
    rig.send(client, &[&["WAIT", "2", "0"]]);
    confirm(&mut rig, "WAIT 2 0", ":2\r\n");
    begin_wait(&mut rig, "WAIT 2 0");
    rig.lose("WAIT");
    assert!(rig.told(client).starts_with("-UNAVAILABLE "));
}

#[test]
fn a_wait_for_replicas_is_an_error_where_its_store_refuses_what_makes_it_count_the_clients_writes() {
    let forbidden = "-NOPERM this user has no permissions to run the 'spublish' command\r\n";
    let failing = "-MISCONF Errors writing to the AOF file: No space left on device\r\n";
    let unknown = "-ERR unknown command 'SPUBLISH', with args beginning with: '__weir:copies' '' \r\n";
    for (version, ping, publish, refused) in [
        ("7.2.4", "+PONG\r\n", ":0\r\n", None),
        ("7.2.4", "+PONG\r\n", forbidden, Some(forbidden)),
        ("7.0.15", "+PONG\r\n", forbidden, Some(forbidden)),
        ("7.2.4", BUSY, BUSY, Some(BUSY)),
        // Replicas get the message whatever becomes of the other request.
        ("7.2.4", failing, ":0\r\n", None),
        // A store before 7.0 does not know the command, and a later one may have it under another name.
        ("6.2.14", "+PONG\r\n", unknown, None),
        ("6.2.14", failing, unknown, Some(failing)),
        ("7.2.4", "+PONG\r\n", unknown, Some(unknown)),
    ] {
        for (words, reply) in [("WAIT 1 0", ":1\r\n"), ("WAITAOF 1 1 0", "*2\r\n:1\r\n:1\r\n")] {
            let mut rig = lending(1, 2, 10);
            rig.shards[0].handle_store_version(StoreVersion::parse(version.as_bytes()).expect("a version"));
            let client = rig.client(0);
            // The client has written nothing, so both stores are asked, unless the first one refuses.
            let stores = if refused.is_none() { 2 } else { 1 };
            rig.send(client, &[&words.split(' ').collect::<Vec<_>>()]);
            for _ in 0..stores {
                greet_if_new(&mut rig);
                rig.answer_first("PING", ping);
                rig.answer_first("SPUBLISH", publish);
                assert_eq!(rig.told(client), "");
                rig.answer_first("WAIT", reply);
            }
            assert_eq!(rig.told(client), refused.unwrap_or(reply), "{version} {ping} {publish}");
            assert!(rig.at_stores.is_empty());
            // The error of the command itself is worth more.
            if refused.is_some() {
                rig.send(client, &[&words.split(' ').collect::<Vec<_>>()]);
                rig.answer_first("PING", ping);
                rig.answer_first("SPUBLISH", publish);
                rig.answer_first("WAIT", "-ERR timeout is negative\r\n");
                assert_eq!(rig.told(client), "-ERR timeout is negative\r\n");
            }
        }
    }
}

#[test]
fn a_wait_for_replicas_ends_at_all_stores_when_one_is_told_to_end_it() {
    let mut rig = lending(1, 3, 10);
    let client = rig.client(0);
    rig.send(client, &[&["CLIENT", "ID"], &["WAIT", "1", "0"]]);
    let number = rig.told(client)[1..].trim().to_owned();
    begin_wait(&mut rig, "WAIT 1 0");
    let told = rig.shards[0].handle_clients_asked(&unblocking(&number), rig.now);
    assert_eq!(told, ClientsTold::Counted(1));
    rig.turns();
    greet_if_new(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("WAIT", ":0\r\n");
    confirm(&mut rig, "WAIT 1 1", ":1\r\n");
    confirm(&mut rig, "WAIT 1 1", ":2\r\n");
    assert_eq!(rig.told(client), ":0\r\n");
    // In a takeover the next process asks all stores again, also those that have confirmed.
    rig.send(client, &[&["WAIT", "1", "0"]]);
    confirm(&mut rig, "WAIT 1 0", ":1\r\n");
    begin_wait(&mut rig, "WAIT 1 0");
    let (shard, id) = rig.clients[client];
    rig.shards[shard].withdraw_waiting(id, rig.now);
    rig.turns();
    greet_if_new(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("WAIT", ":0\r\n");
    assert_eq!((rig.taken(client).held, rig.told(client)), (request(&["WAIT", "1", "0"]), String::new()));
}

#[test]
fn a_wait_for_the_replicas_of_several_stores_breaks_no_watch() {
    let mut rig = lending(1, 2, 10);
    let client = rig.client(0);
    let keys = [0, 1].map(|store| rig.key(0, store));
    rig.send(client, &[&["WATCH", &keys[0]]]);
    greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["WAIT", "1", "0"]]);
    assert!(rig.told(client).starts_with("-ERR WAIT asks each store"));
    // A client that has written to the watched store alone has one store to ask.
    rig.send(client, &[&["SET", &keys[0], "v"]]);
    rig.answer_first("SET", "+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["WAIT", "1", "0"]]);
    confirm(&mut rig, "WAIT 1 0", ":1\r\n");
    rig.send(client, &[&["MULTI"], &["SET", &keys[0], "w"], &["EXEC"]]);
    rig.answer_first("MULTI", "+OK\r\n");
    rig.answer_first("SET", "+QUEUED\r\n");
    rig.answer_first("EXEC", "*1\r\n+OK\r\n");
    assert!(rig.told(client).ends_with("*1\r\n+OK\r\n"));
}

#[test]
fn keys_of_several_stores_cannot_be_watched_together() {
    let mut rig = lending(1, 2, 10);
    let client = rig.client(0);
    let [here, there] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["WATCH", &here, &there]]);
    assert!(rig.told(client).starts_with("-CROSSSLOT "));
    rig.send(client, &[&["WATCH", &here]]);
    greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.told(client);
    rig.send(client, &[&["WATCH", &there], &["MGET", &here, &there]]);
    assert_eq!(rig.told(client).matches("-CROSSSLOT ").count(), 2);
    rig.send(client, &[&["MULTI"], &["SET", &there, "1"], &["EXEC"]]);
    assert!(rig.told(client).contains("-EXECABORT Transaction discarded because of: CROSSSLOT "));
}

#[test]
fn messages_pass_to_subscribers_in_their_order() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "a", "b"]]);
    greet(&mut rig);
    let over = rig.frames("subscribe")[0].clone();
    rig.at_stores.clear();
    let said = |word: &str, channel: &str, count: u32| {
        format!("*3\r\n${}\r\n{word}\r\n${}\r\n{channel}\r\n:{count}\r\n", word.len(), channel.len())
    };
    let message = "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n";
    // A message between two acknowledgements is delivered after both, because weir sends them together.
    let [first, second] = [said("subscribe", "a", 1), said("subscribe", "b", 2)];
    rig.bytes(&over, [&first, message, &second].concat().as_bytes());
    assert_eq!(rig.told(client), [&first, &*second, message].concat());
    rig.bytes(&over, message.repeat(3).as_bytes());
    assert_eq!(rig.told(client), message.repeat(3));
    rig.send(client, &[&["GET", "k"], &["PING", "x"]]);
    let told = rig.told(client);
    assert!(told.starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE"), "{told}");
    assert!(told.ends_with("*2\r\n$4\r\npong\r\n$1\r\nx\r\n"), "{told}");
    rig.send(client, &[&["UNSUBSCRIBE"], &["GET", "k"]]);
    let ended = |names: [&str; 2]| said("unsubscribe", names[0], 1) + &said("unsubscribe", names[1], 0);
    rig.at_stores.clear();
    // A message that arrives before the acknowledgement of the end is delivered before it.
    rig.bytes(&over, [message, &ended(["a", "b"])].concat().as_bytes());
    let told = rig.told(client);
    let orders = [["a", "b"], ["b", "a"]].map(|names| [message, &ended(names)].concat());
    assert!(orders.contains(&told), "{told}");
    // All subscriptions have ended, so the link is clean and can be lent again.
    assert_eq!((rig.words_at_stores(), links(&rig)), (vec!["GET"], (0, 1)));
    rig.send(client, &[&["UNSUBSCRIBE"]]);
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n");
}

#[test]
fn a_subscriber_whose_store_is_lost_is_closed() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "a"]]);
    greet(&mut rig);
    let over = rig.frames("subscribe")[0].clone();
    rig.bytes(&over, b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    rig.shards[0].handle_link_lost(over.link, over.generation, Loss::ByPeer, rig.now);
    rig.turns();
    assert_eq!((rig.shards[0].clients_open(), links(&rig)), (0, (0, 0)));
}

#[test]
fn a_subscriber_that_does_not_read_is_closed_and_holds_up_nobody() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "a"]]);
    greet(&mut rig);
    let over = rig.frames("subscribe")[0].clone();
    rig.bytes(&over, b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    rig.reading = Reading::Never;
    let message = format!("*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$65536\r\n{}\r\n", "x".repeat(65_536));
    for _ in 0..20 {
        rig.bytes(&over, message.as_bytes());
    }
    assert_eq!(rig.counted(Counter::ClientsClosedSubscriber), 1);
    assert_eq!((rig.shards[0].clients_open(), links(&rig)), (0, (0, 0)));
}

#[test]
fn names_of_channels_are_bounded() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["SUBSCRIBE", "a"]]);
    greet(&mut rig);
    let over = rig.frames("subscribe")[0].clone();
    rig.bytes(&over, b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    rig.told(client);
    let long = "x".repeat(1 << 19);
    rig.send(client, &[&["PSUBSCRIBE", &long, &long]]);
    assert!(rig.told(client).starts_with("-ERR too many subscriptions"));
}

#[test]
fn names_that_change_no_subscription_are_bounded_too() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    let naming = |command: &'static str, names: usize| {
        let mut words = vec!["a"; names + 1];
        words[0] = command;
        words
    };
    rig.send(client, &[&naming("UNSUBSCRIBE", 16_384)]);
    assert_eq!(rig.told(client).matches("unsubscribe").count(), 16_384);
    rig.send(client, &[&naming("UNSUBSCRIBE", 16_385)]);
    assert!(rig.told(client).starts_with("-ERR too many names: "));
    rig.send(client, &[&["SUBSCRIBE", "a"]]);
    greet(&mut rig);
    rig.answer_first("subscribe", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    rig.told(client);
    rig.send(client, &[&naming("SUBSCRIBE", 16_384)]);
    assert_eq!(rig.told(client).matches("subscribe").count(), 16_384);
    rig.send(client, &[&naming("SUBSCRIBE", 16_385)]);
    assert!(rig.told(client).starts_with("-ERR too many subscriptions"));
}

#[test]
fn a_client_watches_a_limited_number_of_keys_at_a_time() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    let watch = |rig: &mut Rig, keys: usize| {
        let names: Vec<String> = (0..keys).map(|number| number.to_string()).collect();
        rig.send(
            client,
            &[&[&["WATCH"], names.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat()],
        );
    };
    let full = |rig: &mut Rig| {
        watch(rig, 1_000);
        if rig.at_stores.iter().any(|sent| sent.frame.contains("\r\nID\r\n")) {
            greet(rig);
        }
        rig.answer_first("WATCH", "+OK\r\n");
        watch(rig, 24);
        rig.answer_first("WATCH", "+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n+OK\r\n");
        watch(rig, 1);
        assert!(
            rig.told(client).starts_with("-ERR too many watched keys: a client may watch 1024 at a time")
        );
        assert!(rig.at_stores.is_empty(), "the store is not asked");
    };
    watch(&mut rig, 1_025);
    assert!(rig.told(client).starts_with("-ERR too many watched keys"));
    full(&mut rig);
    rig.send(client, &[&["UNWATCH"]]);
    while let Some(sent) = rig.at_stores.first().cloned() {
        rig.at_stores.remove(0);
        rig.bytes(&sent, b"+OK\r\n");
    }
    assert_eq!(rig.told(client), "+OK\r\n");
    full(&mut rig);
}

#[test]
fn a_place_that_leads_to_another_server_has_no_old_links() {
    let mut rig = lending(1, 1, 10);
    let [waiter, idle] = [rig.client(0), rig.client(0)];
    for client in [waiter, idle] {
        rig.send(client, &[&["BLPOP", "q", "0"]]);
    }
    greet(&mut rig);
    greet(&mut rig);
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(links(&rig), (1, 2));
    rig.shards[0].handle_store_moved(BackendId(0), rig.now);
    rig.turns();
    assert_eq!(links(&rig), (0, 0));
    assert!(rig.told(idle).starts_with("-UNAVAILABLE backend=store0 reason=store-moved "));
}

#[test]
fn the_error_of_a_step_is_named_where_exec_names_none() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["WATCH", "k"]]);
    greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["MULTI"], &["SET", "k", "1"], &["EXEC"]]);
    for reply in
        ["+OK\r\n", "-OOM no room\r\n", "-EXECABORT Transaction discarded because of previous errors.\r\n"]
    {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("-EXECABORT Transaction discarded because of: OOM no room\r\n"));
    assert_eq!(links(&rig), (0, 1));
}

/// Returns an administrator's command `CLIENT UNBLOCK number ERROR`, as cores send it to each other.
pub(super) fn unblocking(number: &str) -> ClientsAsked {
    let (mut frame, mut places) = (Vec::new(), Vec::new());
    for word in ["CLIENT", "UNBLOCK", number, "ERROR"] {
        places.push(Argument { start: frame.len() as u32, length: word.len() as u32 });
        frame.extend_from_slice(word.as_bytes());
    }
    let asker = Reach { tenant: None, number: 0 };
    ClientsAsked::unblock(asker, &Arguments::new(&frame, &places)).expect("it is well-formed")
}

#[test]
fn a_link_whose_call_was_unblocked_is_lent_no_more() {
    let mut rig = lending(1, 1, 10);
    let [waiter, other] = [rig.client(0), rig.client(0)];
    rig.send(waiter, &[&["CLIENT", "ID"], &["BLPOP", "q", "0"]]);
    let number = rig.told(waiter)[1..].trim().to_owned();
    let now = rig.now;
    let unblock = |rig: &mut Rig, number: &str| {
        let told = rig.shards[0].handle_clients_asked(&unblocking(number), now);
        rig.turns();
        told
    };
    // A call that has not been sent cannot be ended at its store.
    assert_eq!(unblock(&mut rig, &number), ClientsTold::Counted(0));
    greet(&mut rig);
    assert_eq!(unblock(&mut rig, "12345"), ClientsTold::Counted(0));
    assert_eq!(unblock(&mut rig, &number), ClientsTold::Counted(1));
    greet(&mut rig);
    assert_eq!(rig.words_at_stores(), ["BLPOP", "CLIENT"]);
    rig.answer_first("BLPOP", "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(rig.told(waiter), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    // The store could otherwise end whatever waits on the first link next.
    rig.send(other, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    assert_eq!(rig.words_at_stores(), ["CLIENT", "BLPOP"]);
    rig.answer_first("UNBLOCK\r\n$1\r\n7", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(links(&rig), (0, 2));
}

/// Returns a test rig (shards with scripted stores and clients) with a client that watches a key and waits in
/// `BLPOP q 0` for the second time, after another client had ended the first one by `CLIENT UNBLOCK`. Returns
/// also the client, and the number by which others name it.
fn watching_and_unblocked_once() -> (Rig, usize, String) {
    let (mut rig, client, _) = watching();
    rig.told(client);
    rig.send(client, &[&["CLIENT", "ID"], &["BLPOP", "q", "0"]]);
    let number = rig.told(client)[1..].trim().to_owned();
    unblock(&mut rig, &number);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(rig.told(client), "*-1\r\n");
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    assert_eq!(rig.words_at_stores(), ["BLPOP"]);
    (rig, client, number)
}

/// Lets an administrator's `CLIENT UNBLOCK` end the blocking command of the client with this number.
fn unblock(rig: &mut Rig, number: &str) {
    let told = rig.shards[0].handle_clients_asked(&unblocking(number), rig.now);
    assert_eq!(told, ClientsTold::Counted(1));
    rig.turns();
    if rig.frames("\r\nID\r\n").len() == 1 {
        greet(rig);
    }
}

#[test]
fn each_call_of_a_client_that_watches_keys_can_be_ended_by_another() {
    let (mut rig, client, number) = watching_and_unblocked_once();
    unblock(&mut rig, &number);
    assert_eq!(rig.frames("UNBLOCK").len(), 1);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(rig.told(client), "*-1\r\n");
    rig.send(client, &[&["MULTI"], &["EXEC"]]);
    for reply in ["+OK\r\n", "*0\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "+OK\r\n*0\r\n");
    assert_eq!(links(&rig), (0, 1), "the link of the calls that were ended is lent no more");
}

#[test]
fn a_client_that_watches_keys_leaves_no_call_behind_after_one_was_ended() {
    let (mut rig, client, _) = watching_and_unblocked_once();
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    assert_eq!(rig.frames("UNBLOCK").len(), 1, "nothing is popped for nobody");
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!((links(&rig), orphans(&rig)), ((0, 1), (0, 0)));
}

#[test]
fn a_call_of_a_client_that_has_left_is_ended_though_the_store_has_not_seen_it_yet() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":0\r\n");
    assert_eq!(rig.frames("UNBLOCK").len(), 1, "the store is asked again");
    rig.answer_first("UNBLOCK", ":1\r\n");
    assert!(rig.frames("UNBLOCK").is_empty());
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!((links(&rig), orphans(&rig)), ((0, 1), (0, 0)));
}

#[test]
fn a_call_of_a_client_that_has_left_ends_with_its_connection_if_the_store_does_not_end_it() {
    for is_lost in [false, true] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
        let id = rig.id(client);
        rig.shards[0].handle_client_lost(id);
        rig.turns();
        greet(&mut rig);
        assert!(rig.shards[0].owes_orphans());
        if is_lost {
            rig.lose("UNBLOCK");
        } else {
            rig.answer_first("UNBLOCK", BUSY);
        }
        assert!(rig.at_stores.is_empty(), "an element would be popped for nobody");
        assert_eq!((links(&rig), orphans(&rig)), ((0, usize::from(!is_lost)), (0, 0)));
        assert!(!rig.shards[0].owes_orphans());
    }
}

#[test]
fn a_watch_that_was_idle_outlives_a_select() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.reply_timeout = Duration::from_secs(2);
    });
    let client = rig.client(0);
    rig.send(client, &[&["WATCH", "k"]]);
    greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.wait(Duration::from_secs(20));
    rig.send(client, &[&["SELECT", "3"], &["MULTI"], &["GET", "k"], &["EXEC"]]);
    rig.wait(Duration::from_millis(500));
    rig.answer_first("SELECT", "+OK\r\n");
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n$-1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
}

#[test]
fn a_request_in_a_database_that_its_store_refuses_or_does_not_confirm_goes_nowhere() {
    for (words, reason) in [
        (&["SET", "k", "v"][..], "no-database"),
        (&["BLPOP", "k", "0"], "no-database"),
        (&["BLPOP", "k", "0"], "connection-lost"),
        (&["BLPOP", "k", "0"], "reply-timeout"),
    ] {
        let (mut rig, client, _) = watching();
        rig.told(client);
        rig.send(client, &[&["SELECT", "9"], words]);
        assert_eq!(rig.words_at_stores(), ["SELECT"], "it could be carried out in the first database");
        match reason {
            "no-database" => rig.answer_next("-ERR DB index is out of range\r\n"),
            "connection-lost" => rig.lose("SELECT"),
            _ => rig.wait(Duration::from_secs(60)),
        }
        let told = rig.told(client);
        assert!(told.starts_with(&format!("+OK\r\n-UNAVAILABLE backend=store0 reason={reason} ")), "{told}");
        assert!(rig.at_stores.is_empty(), "{words:?}");
        // Nothing was popped, so the client goes on, without the watch that was on the lost link.
        assert_eq!((rig.shards[0].clients_open(), links(&rig)), (1, (0, 0)), "{words:?} {reason}");
        rig.send(client, &[&["SELECT", "0"], &["MULTI"], &["SET", "k", "v"], &["EXEC"]]);
        assert_eq!(rig.told(client), "+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
    }
}

#[test]
fn a_deadline_that_passes_before_the_database_is_selected_changes_nothing() {
    let (mut rig, client, _) = watching();
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"], &["SELECT", "9"]]);
    rig.told(client);
    rig.send(client, &[&["SET", "k", "v"]]);
    rig.wait(Duration::from_millis(201));
    assert_eq!(rig.told(client), "-DEADLINE stage=backend waited_ms=200\r\n");
    assert_eq!((rig.at_stores.len(), links(&rig)), (0, (0, 0)));
}

#[test]
fn databases_that_a_client_selects_in_turn_cost_its_link_one_request() {
    let mut rig = lending(1, 1, 10);
    let [client, other] = [rig.client(0), rig.client(0)];
    rig.send(client, &[&["WATCH", "k"]]);
    greet(&mut rig);
    let link = rig.frames("WATCH")[0].link;
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["SELECT", "1"][..], &["SELECT", "0"]].repeat(50));
    assert!(rig.at_stores.is_empty(), "nobody pays for it");
    rig.send(client, &[&["SELECT", "1"], &["SELECT", "2"], &["GET", "k"]]);
    assert_eq!(rig.words_at_stores(), ["SELECT"]);
    assert!(rig.at_stores[0].frame.ends_with("\r\n2\r\n"));
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_next("$-1\r\n");
    // The next client gets the link in the database that the store was told.
    rig.send(client, &[&["SELECT", "3"], &["UNWATCH"]]);
    assert_eq!(rig.words_at_stores(), ["UNWATCH"]);
    rig.answer_next("+OK\r\n");
    rig.send(other, &[&["SELECT", "2"], &["BLPOP", "q", "0"]]);
    assert_eq!((rig.words_at_stores(), rig.at_stores[0].link), (vec!["BLPOP"], link));
}

#[test]
fn a_spare_link_is_ready_for_the_next_client() {
    let mut rig = lending(1, 1, 100);
    let [first, second] = [rig.client(0), rig.client(0)];
    rig.send(first, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    greet(&mut rig);
    assert_eq!(links(&rig), (1, 2));
    rig.send(second, &[&["BLPOP", "q", "0"]]);
    assert_eq!(rig.words_at_stores(), ["BLPOP", "BLPOP", "CLIENT"], "the second goes out at once");
    assert_eq!(links(&rig), (2, 3), "one more is opened");
    rig.answer_first("BLPOP", "*-1\r\n");
    greet(&mut rig);
    assert_eq!(links(&rig), (1, 3));
}

#[test]
fn a_spare_link_that_is_lost_makes_room_for_another() {
    let mut rig = lending(1, 1, 100);
    let client = rig.client(0);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    rig.wait(Duration::from_secs(60));
    assert_eq!(links(&rig), (0, 0), "neither was connected in time");
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    greet(&mut rig);
    assert_eq!(links(&rig), (1, 2));
}

#[test]
fn a_script_is_killed_over_another_connection() {
    for stores in [1, 2] {
        let mut rig = lending(1, stores, 1);
        let [busy, waiter, admin] = [0; 3].map(|shard| rig.client(shard));
        rig.send(busy, &[&["EVAL", "while true do end", "0"]]);
        rig.send(waiter, &[&["BLPOP", "q", "0"]]);
        greet(&mut rig);
        // The only link is lent to another client by now.
        rig.send(admin, &[&["SCRIPT", "KILL"]]);
        assert_eq!(rig.frames("KILL").len(), 0, "nothing is sent before the greeting is answered");
        for _ in 0..stores {
            // A busy store refuses a part of the greeting.
            rig.answer_first("\r\nID\r\n", "-BUSY Redis is busy running a script\r\n");
        }
        assert_eq!(rig.frames("KILL").len(), usize::from(stores));
        if stores == 2 {
            rig.answer_first("KILL", "-NOTBUSY No scripts in execution right now.\r\n");
            assert_eq!(rig.told(admin), "");
        }
        rig.answer_first("KILL", "+OK\r\n");
        assert_eq!(rig.told(admin), "+OK\r\n");
        assert_eq!(links(&rig), (1, 1), "its links serve nobody else");
        rig.answer_first("EVAL", "-ERR Error running script\r\n");
        assert_eq!(rig.told(busy), "-ERR Error running script\r\n");
    }
}

#[test]
fn a_store_that_is_busy_with_a_script_is_found_out_and_keeps_nobody_waiting() {
    let overload = OverloadSettings::new(2, 1);
    let mut rig = Rig::with(2, 1, |settings| {
        settings.private_links_max = 10;
        settings.overload = overload.clone();
    });
    let [busy, other, far] = [rig.client(0), rig.client(0), rig.client(1)];
    let key = rig.key(0, 0);
    rig.send(busy, &[&["EVAL", "while true do end", "1", &key]]);
    rig.send(other, &[&["PING"], &["MULTI"]]);
    rig.told(other);
    rig.wait(Duration::from_millis(200));
    greet(&mut rig);
    rig.answer_first("PING", "+PONG\r\n");
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.told(other), "+QUEUED\r\n", "the script may end yet");
    rig.wait(Duration::from_millis(100));
    rig.answer_first("PING", "-BUSY Redis is busy running a script\r\n");
    rig.wait(Duration::from_millis(1));
    let refusal = "-BUSY backend=store0 is busy running a script. SCRIPT KILL or FUNCTION KILL ends it\r\n";
    for client in [busy, far] {
        rig.send(client, &[&["PING"]]);
    }
    assert_eq!(rig.told(far), refusal);
    // A script uses the connection on which another script hangs.
    rig.send(far, &[&["EVAL", "return 1", "1", &key]]);
    assert_eq!(rig.told(far), refusal);
    rig.send(other, &[&["GET", &key], &["EXEC"]]);
    let aborted = format!("-EXECABORT Transaction discarded because of: {}", &refusal[1..]);
    assert_eq!(rig.told(other), format!("{refusal}{aborted}"));
    rig.answer_first("EVAL", ":1\r\n");
    assert!(rig.told(busy).starts_with(":1\r\n"));
    rig.wait(Duration::from_millis(200));
    rig.send(far, &[&["PING"], &["GET", &key]]);
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.told(far), "+PONG\r\n$-1\r\n");
}

#[test]
fn a_transaction_that_waits_before_a_store_busy_with_a_script_is_refused_in_the_words_of_a_store() {
    let mut overload = OverloadSettings::new(1, 1);
    overload.window_bounds = crate::policy::window::Bounds { least: 1, most: 1 };
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.overload = overload.clone();
    });
    let [busy, first, other] = [0; 3].map(|shard| rig.client(shard));
    rig.send(busy, &[&["EVAL", "while true do end", "1", "k"]]);
    rig.send(first, &[&["GET", "k"]]);
    rig.wait(Duration::from_millis(200));
    greet(&mut rig);
    rig.send(other, &[&["MULTI"], &["SET", "k", "v"], &["EXEC"]]);
    assert_eq!((rig.told(other).as_str(), rig.frames("SET").len()), ("+OK\r\n+QUEUED\r\n", 0), "it waits");
    rig.answer_first("PING", "-BUSY Redis is busy running a script\r\n");
    rig.wait(Duration::from_millis(200));
    let refusal = "BUSY backend=store0 is busy running a script. SCRIPT KILL or FUNCTION KILL ends it";
    assert_eq!(rig.told(other), format!("-EXECABORT Transaction discarded because of: {refusal}\r\n"));
}

#[test]
fn an_unwatch_inside_a_transaction_leaves_the_check_to_exec() {
    for is_lost in [false, true] {
        let (mut rig, client, Sent { link, generation, .. }) = watching();
        if is_lost {
            rig.shards[0].handle_link_lost(link, generation, Loss::ByPeer, rig.now);
            rig.turns();
        }
        rig.send(client, &[&["MULTI"], &["UNWATCH"], &["SET", "k", "1"], &["EXEC"]]);
        if !is_lost {
            assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "EXEC"]);
            assert!(rig.at_stores.iter().all(|sent| sent.link == link), "where the key is watched");
            ["+OK\r\n", "+QUEUED\r\n", "*-1\r\n"].iter().for_each(|reply| rig.answer_next(reply));
        }
        assert_eq!(rig.told(client), "+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n");
        assert_eq!((rig.at_stores.len(), links(&rig).0), (0, 0), "the watch has ended");
    }
}

#[test]
fn a_subscription_ends_although_an_earlier_request_is_unsettled() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3"], &["SUBSCRIBE", "a"]]);
    rig.answer_first("HELLO", "%0\r\n");
    greet(&mut rig);
    let over = rig.frames("subscribe")[0].clone();
    rig.at_stores.clear();
    rig.bytes(&over, b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    rig.told(client);
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "SET", "k", "v"]]);
    rig.wait(Duration::from_millis(60));
    assert!(rig.told(client).ends_with("(it may have happened)\r\n"));
    rig.send(client, &[&["UNSUBSCRIBE", "a"]]);
    assert_eq!((rig.told(client).as_str(), rig.frames("unsubscribe").len()), ("", 1));
    rig.send(client, &[&["SUBSCRIBE", "b"]]);
    assert!(rig.told(client).is_empty(), "it waits for the end of the other subscription");
}
