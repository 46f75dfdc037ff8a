//! Tests of blocking commands of clients that leave this process: for another process in a takeover, or for
//! good in a drain.

use super::private::{greet, lending, links, orphans, unblocking};
use super::*;
use crate::shard::{ClientsTold, Paused, Readiness};

const POPPED: &str = "*2\r\n$1\r\nq\r\n$1\r\nx\r\n";

impl Rig {
    /// Asks a client's blocking command (such as `BLPOP`) to end, as a takeover does repeatedly until no
    /// client waits.
    fn withdraw(&mut self, client: usize) {
        let (shard, id) = self.clients[client];
        assert_eq!(self.shards[shard].readiness(id), Readiness::Waits);
        self.shards[shard].withdraw_waiting(id, self.now);
        self.turns();
    }

    fn readiness_of(&self, client: usize) -> Readiness {
        let (shard, id) = self.clients[client];
        self.shards[shard].readiness(id)
    }
}

/// Returns a test rig (shards with scripted stores and clients) and a client that has sent these requests, of
/// which one is a blocking command (such as `BLPOP`) that waits at its store, on the connection with id 7
/// there.
fn waiting(requests: &[&[&str]]) -> (Rig, usize) {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, requests);
    greet(&mut rig);
    (rig, client)
}

/// Returns a test rig (shards with scripted stores and clients) and a client whose blocking command `call`
/// (such as `BLPOP`) the store was told to end by `CLIENT UNBLOCK`, and has not ended yet; it waits on the
/// connection with id 7.
fn withdrawn(call: &[&str]) -> (Rig, usize) {
    let (mut rig, client) = waiting(&[call]);
    rig.withdraw(client);
    greet(&mut rig);
    assert_eq!(rig.frames("UNBLOCK\r\n$1\r\n7\r\n$7\r\nTIMEOUT").len(), 1);
    (rig, client)
}

#[test]
fn a_call_that_waits_goes_on_elsewhere_with_the_time_that_is_left() {
    let (mut rig, client) = waiting(&[&["BLPOP", "q", "10"], &["GET", "a"]]);
    rig.wait(Duration::from_secs(4));
    rig.withdraw(client);
    greet(&mut rig);
    rig.withdraw(client);
    assert_eq!(rig.frames("UNBLOCK").len(), 1, "the store is told once");
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    rig.wait(Duration::from_secs(1));
    assert_eq!((rig.told(client).as_str(), rig.words_at_stores(), links(&rig)), ("", vec![], (0, 1)));
    let session = rig.taken(client);
    let asked = [request(&["BLPOP", "q", "5.000"]), request(&["GET", "a"])].concat();
    assert_eq!(String::from_utf8_lossy(&session.held), String::from_utf8_lossy(&asked));

    let mut other = lending(1, 1, 10);
    let client = other.adopted(&session);
    greet(&mut other);
    assert_eq!(other.words_at_stores(), ["BLPOP"]);
    other.answer_first("BLPOP", POPPED);
    other.answer_first("GET", "$-1\r\n");
    assert_eq!(other.told(client), format!("{POPPED}$-1\r\n"));
    assert_eq!(other.counted(Counter::WaitsTakenOver), 1);
}

#[test]
fn a_call_whose_reply_is_switched_off_gets_none_elsewhere_either() {
    for (word, next) in [("SKIP", "$4\r\nnext\r\n"), ("OFF", "")] {
        let (mut rig, client) = waiting(&[&["CLIENT", "REPLY", word], &["BLPOP", "q", "0"]]);
        // Each process that takes over ends the call and sends it again.
        for _ in 0..2 {
            rig.withdraw(client);
            greet(&mut rig);
            rig.answer_first("UNBLOCK", ":1\r\n");
            rig.answer_first("BLPOP", "*-1\r\n");
            assert_eq!(rig.told(client), "", "{word}");
            let session = rig.taken(client);
            rig = lending(1, 1, 10);
            assert_eq!(rig.adopted(&session), client);
            greet(&mut rig);
        }
        rig.answer_first("BLPOP", POPPED);
        assert_eq!(rig.told(client), "", "{word}");
        rig.send(client, &[&["ECHO", "next"]]);
        assert_eq!(rig.told(client), next, "{word}");
        assert_eq!(rig.asks(client, &["CLIENT", "REPLY", "ON"]), "+OK\r\n", "{word}");
    }
}

#[test]
fn a_call_that_waits_goes_on_elsewhere_during_a_pause_and_what_is_behind_it_is_held_back() {
    let (mut rig, client) = waiting(&[&["BLPOP", "q", "0"], &["SET", "a", "1"]]);
    rig.withdraw(client);
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    let session = rig.taken(client);
    for extent in [Paused::Writes, Paused::Everything] {
        let mut other = lending(1, 1, 10);
        other.take_over_pause(extent);
        let client = other.adopted(&session);
        greet(&mut other);
        assert_eq!(other.words_at_stores(), ["BLPOP"]);
        other.answer_first("BLPOP", POPPED);
        assert_eq!((other.told(client).as_str(), other.words_at_stores()), (POPPED, vec![]));
        assert_eq!(other.shards[0].paused_clients(), 1);
        other.wait(Duration::from_secs(1_000));
        other.answer_first("SET", "+OK\r\n");
        assert_eq!(other.told(client), "+OK\r\n");
    }
}

#[test]
fn calls_that_were_admitted_elsewhere_are_not_refused_and_pay_for_their_replies() {
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    let session = rig.taken(client);
    let mut other = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.admission.weights = Weights { base: UNIT, row: UNIT, ..FREE };
    });
    other.put_in_force("[default]\nru_per_second = 1\n");
    other.pools = (0, true);
    let adopt = |_| {
        let client = other.adopted(&session);
        greet(&mut other);
        client
    };
    let clients: Vec<usize> = (0..5).map(adopt).collect();
    assert_eq!(other.words_at_stores(), ["BLPOP"; 5]);
    for client in &clients {
        other.answer_first("BLPOP", POPPED);
        assert_eq!(other.told(*client), POPPED);
    }
    let booked = super::admission::booked(&mut other);
    assert!(booked.1 >= 5 * UNIT, "each pays for an element: {booked:?}");
    // A client's next call is admitted like any other.
    other.send(clients[0], &[&["BLPOP", "q", "0"]]);
    assert!(other.told(clients[0]).starts_with("-THROTTLED scope=tenant "));
}

#[test]
fn a_call_that_waits_goes_on_elsewhere_in_a_turn_that_has_started_all_it_may() {
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", "*-1\r\n");
    let session = rig.taken(client);
    let mut other = lending(1, 1, 10);
    let crowd: Vec<usize> = (0..20).map(|_| other.client(0)).collect();
    other.take_over_pause(Paused::Writes);
    other.turns();
    let (now, flood) = (other.now, b"PING\r\n".repeat(200));
    for client in &crowd {
        let id = other.id(*client);
        other.shards[0].handle_client_bytes(id, &flood, now);
    }
    assert_eq!(other.counted(Counter::Requests), u64::from(limits::REQUESTS_PER_TURN_OF_ALL));
    // In a later turn the pause would hold the call back.
    let client = other.adopted(&session);
    greet(&mut other);
    assert_eq!(other.words_at_stores(), ["BLPOP"]);
    other.answer_first("BLPOP", POPPED);
    assert_eq!(other.told(client), POPPED);
    crowd.iter().for_each(|client| assert_eq!(other.told(*client), "+PONG\r\n".repeat(200)));
}

#[test]
fn what_was_popped_just_then_is_delivered_and_its_client_moves_as_an_idle_one() {
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    rig.answer_first("UNBLOCK", ":0\r\n");
    rig.answer_first("BLPOP", POPPED);
    assert_eq!(rig.told(client), POPPED);
    let session = rig.taken(client);
    assert_eq!((session.held.len(), session.waits), (0, false));
}

#[test]
fn errors_and_lost_links_end_a_call_as_ever() {
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    rig.answer_first("BLPOP", "-WRONGTYPE no list\r\n");
    assert_eq!(
        (rig.told(client).as_str(), rig.readiness_of(client)),
        ("-WRONGTYPE no list\r\n", Readiness::Ready)
    );
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    rig.lose("BLPOP");
    assert!(rig.told(client).starts_with("-UNAVAILABLE backend=store0 reason=connection-lost"));
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_call_is_ended_by_another_client_or_for_the_move() {
    for moves_first in [true, false] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["CLIENT", "ID"], &["BLPOP", "q", "0"]]);
        let number = rig.told(client)[1..].trim().to_owned();
        greet(&mut rig);
        if moves_first {
            rig.withdraw(client);
        }
        let told = rig.shards[0].handle_clients_asked(&unblocking(&number), rig.now);
        assert_eq!(told, ClientsTold::Counted(u64::from(!moves_first)));
        rig.turns();
        greet(&mut rig);
        assert_eq!(rig.frames("UNBLOCK").len(), 1);
        if moves_first {
            rig.answer_first("BLPOP", "*-1\r\n");
            assert!(rig.taken(client).waits);
        } else {
            assert_eq!(rig.readiness_of(client), Readiness::Stays);
            rig.answer_first("BLPOP", "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
            assert_eq!(rig.told(client), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
            assert!(!rig.taken(client).waits);
        }
    }
}

#[test]
fn a_wait_for_replicas_goes_on_as_well() {
    let (mut rig, client) = waiting(&[&["WAIT", "2", "0"]]);
    rig.answer_first("PING", "+PONG\r\n");
    rig.answer_first("SPUBLISH", ":0\r\n");
    rig.withdraw(client);
    rig.answer_first("WAIT", ":1\r\n");
    assert_eq!((rig.taken(client).held, rig.told(client)), (request(&["WAIT", "2", "0"]), String::new()));
}

#[test]
fn a_store_that_has_not_seen_the_call_yet_is_told_again_but_not_for_ever() {
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    for _ in 0..19 {
        rig.answer_first("UNBLOCK", ":0\r\n");
        rig.withdraw(client);
    }
    rig.answer_first("UNBLOCK", ":0\r\n");
    assert_eq!(rig.readiness_of(client), Readiness::Stays);
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(rig.told(client), "*-1\r\n", "its time is over");
    // The store may refuse to end the command, or be lost with it.
    let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
    rig.lose("UNBLOCK");
    rig.withdraw(client);
    greet(&mut rig);
    rig.answer_first("UNBLOCK", "-NOPERM\r\n");
    assert_eq!(rig.readiness_of(client), Readiness::Stays);
}

#[test]
fn new_entries_of_a_stream_are_those_after_the_last_one_that_the_store_has() {
    let (mut rig, client) = waiting(&[&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]]);
    rig.withdraw(client);
    greet(&mut rig);
    rig.withdraw(client);
    assert_eq!(rig.words_at_stores(), ["XREAD", "XREVRANGE"]);
    rig.answer_first("XREVRANGE", "*1\r\n*2\r\n$3\r\n5-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
    rig.withdraw(client);
    assert_eq!(rig.words_at_stores(), ["XREAD", "CLIENT"]);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("XREAD", "*-1\r\n");
    let session = rig.taken(client);
    assert_eq!(session.held, request(&["XREAD", "BLOCK", "0", "STREAMS", "s", "5-1"]));
    assert_eq!(links(&rig), (0, 1));

    // Without the last id of the stream, entries in between would be missed.
    let client = rig.client(0);
    rig.send(client, &[&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]]);
    rig.withdraw(client);
    greet(&mut rig);
    rig.answer_first("XREVRANGE", "-NOPERM\r\n");
    assert_eq!((rig.words_at_stores(), rig.readiness_of(client)), (vec!["XREAD"], Readiness::Stays));
}

#[test]
fn a_client_that_does_more_than_wait_stays() {
    let mut rig = lending(1, 1, 10);
    let [watcher, other_terms, sender, asker] = [0; 4].map(|shard| rig.client(shard));
    rig.send(watcher, &[&["WATCH", "q"]]);
    greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(watcher, &[&["BLPOP", "q", "0"]]);
    rig.send(other_terms, &[&["QOS", "CALL", "TIER", "batch", "BLPOP", "q", "0"]]);
    rig.send(sender, &[&["BLPOP", "q", "0"], &["ECHO", &"x".repeat(limits::MOVED_BYTES_MAX)]]);
    rig.send(asker, &[&["BLPOP", &"k".repeat(limits::COPY_BYTES_MAX), "0"]]);
    for _ in 0..3 {
        greet(&mut rig);
    }
    assert_eq!(rig.words_at_stores(), ["BLPOP"; 4]);
    for client in [watcher, other_terms, sender, asker] {
        assert_eq!(rig.readiness_of(client), Readiness::Stays);
    }
    // A call that has not been sent yet is left alone, and the next pass tries again.
    let early = rig.client(0);
    rig.send(early, &[&["BLPOP", "q", "0"]]);
    rig.withdraw(early);
    assert!(rig.frames("UNBLOCK").is_empty());
}

#[test]
fn a_client_that_leaves_in_between_leaves_nothing_behind() {
    for (reply, counted) in [("*-1\r\n", (0, 0)), (POPPED, (1, 0))] {
        let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
        let id = rig.id(client);
        rig.shards[0].handle_client_lost(id);
        rig.turns();
        assert!(rig.shards[0].owes_orphans());
        rig.answer_first("UNBLOCK", ":1\r\n");
        rig.answer_first("BLPOP", reply);
        assert_eq!((orphans(&rig), links(&rig)), (counted, (0, 1)));
        assert!(!rig.shards[0].owes_orphans());
    }
    // The blocking command has ended already when the client leaves.
    for is_lost in [true, false] {
        let (mut rig, client) = withdrawn(&["BLPOP", "q", "0"]);
        rig.send(client, &[&["GET", "a"]]);
        rig.answer_first("BLPOP", "*-1\r\n");
        let id = rig.id(client);
        if is_lost {
            rig.shards[0].handle_client_lost(id);
        } else {
            rig.shards[0].handle_client_revoked(id, rig.now);
        }
        rig.turns();
        assert_eq!((rig.shards[0].clients_open(), rig.words_at_stores()), (0, vec!["CLIENT"]));
    }
}

#[test]
fn a_call_ends_with_the_rights_that_it_began_with() {
    let before = "[tenants.acme]\npassword = \"a\"\nru_per_second = 1000\n";
    let cases = [
        (before.replace("1000", "2000"), true),
        (format!("[tenants.aaa]\npassword = \"b\"\n{before}"), true),
        (format!("{before}keys = [\"acme:\"]\n"), false),
        (before.replace("acme", "other"), false),
    ];
    for (after, goes_on) in cases {
        let mut rig = lending(1, 1, 10);
        rig.shards[0].handle_quotas(quotas(before), rig.now);
        let client = rig.client(0);
        rig.send(client, &[&["AUTH", "acme", "a"], &["BLPOP", "q", "0"], &["GET", "a"]]);
        greet(&mut rig);
        assert_eq!(rig.told(client), "+OK\r\n");
        rig.shards[0].handle_quotas(quotas(&after), rig.now);
        rig.turns();
        if !goes_on {
            greet(&mut rig);
        }
        rig.answer_first("BLPOP", POPPED);
        let told = if goes_on { POPPED } else { "" };
        assert_eq!((rig.told(client).as_str(), rig.is_open(client)), (told, goes_on), "{after}");
        assert_eq!(orphans(&rig), (u64::from(!goes_on), 0), "{after}");
    }
    // A client whose certificate is no longer accepted.
    let (mut rig, client) = waiting(&[&["BLPOP", "q", "0"]]);
    let id = rig.id(client);
    rig.shards[0].handle_client_revoked(id, rig.now);
    rig.turns();
    greet(&mut rig);
    assert_eq!((rig.frames("UNBLOCK").len(), rig.is_open(client)), (1, false));
}

#[test]
fn a_deadline_counts_the_time_before_the_move() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "200"]]);
    rig.told(client);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.wait(Duration::from_millis(150));
    rig.withdraw(client);
    rig.answer_first("BLPOP", "*-1\r\n");
    let session = rig.taken(client);
    let mut other = lending(1, 1, 10);
    let client = other.adopted(&session);
    greet(&mut other);
    other.wait(Duration::from_millis(49));
    assert_eq!(other.told(client), "");
    other.wait(Duration::from_millis(2));
    assert!(other.told(client).starts_with("-DEADLINE stage=backend"));
}

#[test]
fn a_drain_closes_who_waits_once_the_store_has_said_that_nothing_was_popped() {
    for (reply, told) in [("*-1\r\n", ""), (POPPED, POPPED)] {
        let (mut rig, client) = waiting(&[&["BLPOP", "q", "0"], &["GET", "a"]]);
        rig.shards[0].refuse_newcomers();
        let id = rig.id(client);
        rig.shards[0].handle_client_end(id, rig.now);
        rig.turns();
        greet(&mut rig);
        rig.answer_first("UNBLOCK", ":1\r\n");
        assert!(rig.is_open(client), "its store may have popped something");
        rig.answer_first("BLPOP", reply);
        assert_eq!((rig.told(client).as_str(), rig.shards[0].clients_open(), links(&rig)), (told, 0, (0, 1)));
        assert!(rig.at_stores.is_empty(), "what is behind the call is dropped");
    }
}

#[test]
fn a_drain_closes_who_waits_where_the_store_knows_of_no_call() {
    let (mut rig, client) = waiting(&[&["BLPOP", "q", "0"]]);
    rig.shards[0].refuse_newcomers();
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    rig.turns();
    greet(&mut rig);
    for _ in 0..20 {
        assert_eq!(rig.shards[0].clients_open(), 1);
        rig.answer_first("UNBLOCK", ":0\r\n");
    }
    assert_eq!(rig.shards[0].clients_open(), 0);
    assert!(rig.shards[0].owes_orphans(), "its call may have popped something");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert!(!rig.shards[0].owes_orphans());
}

#[test]
fn a_drain_awaits_a_call_that_is_on_its_way_to_the_store() {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["BLPOP", "q", "0"]]);
    rig.shards[0].refuse_newcomers();
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    rig.turns();
    rig.answer_first("GET", "$-1\r\n");
    assert_eq!(rig.shards[0].clients_open(), 1, "the link of its call is not open yet");
    greet(&mut rig);
    assert_eq!(rig.words_at_stores(), ["BLPOP", "CLIENT"]);
    greet(&mut rig);
    assert_eq!(rig.frames("UNBLOCK").len(), 1);
    rig.answer_first("BLPOP", POPPED);
    assert_eq!((rig.told(client), rig.shards[0].clients_open()), (format!("$-1\r\n{POPPED}"), 0));
}

impl Rig {
    /// Ends a client's input, as the TCP FIN of a client does that still reads replies.
    fn half_close(&mut self, client: usize) {
        let (shard, id) = self.clients[client];
        self.shards[shard].handle_client_end(id, self.now);
        self.turns();
    }
}

#[test]
fn a_call_that_begins_after_the_end_of_input_does_not_wait() {
    for (reply, told) in [("*-1\r\n", "+OK\r\n".to_owned()), (POPPED, format!("+OK\r\n{POPPED}+PONG\r\n"))] {
        let mut rig = lending(1, 1, 10);
        let client = rig.client(0);
        rig.send(client, &[&["SET", "a", "1"], &["BLPOP", "q", "0"], &["PING"]]);
        rig.half_close(client);
        rig.answer_first("SET", "+OK\r\n");
        greet(&mut rig);
        greet(&mut rig);
        rig.answer_first("UNBLOCK", ":0\r\n");
        assert_eq!(rig.frames("UNBLOCK").len(), 1, "the call may be on its way");
        rig.answer_first("BLPOP", reply);
        assert_eq!(
            (rig.told(client), rig.shards[0].clients_open(), rig.counted(Counter::Requests)),
            (told.clone(), 0, 2 + u64::from(told.contains("PONG")))
        );
    }
}

/// Returns a test rig (shards with scripted stores and clients) and a client that waits in `BLPOP` and has
/// sent so much behind it that reading from it is paused. After `waited`, the runtime reports that the
/// client's input ends behind bytes that are not read yet.
fn ended_ahead(waited: Duration) -> (Rig, usize) {
    let mut rig = lending(1, 1, 10);
    let client = rig.client(0);
    let behind = request(&["ECHO", &"x".repeat(100_000)]);
    rig.raw(client, &[request(&["BLPOP", "q", "0"]), behind].concat());
    greet(&mut rig);
    let (shard, id) = rig.clients[client];
    assert!(rig.actions.contains(&(shard, Action::PauseReading(Owner::Client(id)))));
    rig.wait(waited);
    rig.shards[shard].handle_client_end_ahead(id, rig.now);
    rig.turns();
    (rig, client)
}

#[test]
fn a_call_does_not_wait_for_a_client_whose_input_ends_behind_what_is_not_read_yet() {
    let (mut rig, client) = ended_ahead(Duration::from_millis(20));
    assert_eq!((rig.told(client).as_str(), rig.shards[0].clients_open(), orphans(&rig)), ("", 0, (0, 0)));

    let (mut rig, client) = ended_ahead(Duration::ZERO);
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    assert_eq!(rig.shards[0].clients_open(), 1, "an element may have been popped");
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!((rig.told(client).as_str(), rig.shards[0].clients_open()), ("", 0));

    let (mut rig, client) = ended_ahead(Duration::ZERO);
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":0\r\n");
    rig.answer_first("BLPOP", POPPED);
    assert!(rig.told(client).starts_with(&format!("{POPPED}$100000\r\n")), "what is behind the call follows");
    let (shard, id) = rig.clients[client];
    assert!(rig.actions.contains(&(shard, Action::ResumeReading(Owner::Client(id)))));
}

#[test]
fn replies_to_requests_before_a_call_are_sent_though_its_client_has_ended_its_input() {
    for has_waited in [false, true] {
        let mut rig = lending(1, 1, 10);
        rig.reading = Reading::Never;
        let client = rig.client(0);
        rig.send(client, &[&["PING"]]);
        rig.send(client, &[&["ECHO", "hi"], &["BLPOP", "q", "0"], &["GET", "a"]]);
        greet(&mut rig);
        if has_waited {
            rig.wait(Duration::from_secs(1));
        }
        rig.half_close(client);
        greet(&mut rig);
        rig.answer_first("UNBLOCK", ":1\r\n");
        rig.answer_first("BLPOP", "*-1\r\n");
        assert_eq!((links(&rig), rig.shards[0].clients_open()), ((0, 1), 1));
        rig.take_all();
        assert_eq!((rig.told(client).as_str(), rig.shards[0].clients_open()), ("+PONG\r\n$2\r\nhi\r\n", 0));
        assert!(rig.at_stores.is_empty(), "what is behind the call is dropped");
    }
}

#[test]
fn a_client_that_takes_nothing_after_the_end_of_its_input_is_closed() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.private_links_max = 10;
        settings.send_timeout = Duration::from_secs(2);
    });
    rig.reading = Reading::Never;
    let client = rig.client(0);
    rig.send(client, &[&["PING"], &["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.half_close(client);
    greet(&mut rig);
    rig.answer_first("BLPOP", "*-1\r\n");
    assert_eq!(rig.shards[0].clients_open(), 1);
    rig.wait(Duration::from_secs(4));
    assert_eq!(rig.shards[0].clients_open(), 0);
}

#[test]
fn a_store_that_confirms_nothing_keeps_no_client_that_has_ended_its_input() {
    for is_sent in [true, false] {
        let mut rig = Rig::with(1, 1, |settings| {
            settings.private_links_max = 10;
            settings.reply_timeout = Duration::from_secs(3);
        });
        let client = rig.client(0);
        rig.send(client, &[&["BLPOP", "q", "0"]]);
        if is_sent {
            greet(&mut rig);
        }
        rig.half_close(client);
        assert_eq!(rig.shards[0].clients_open(), 1);
        rig.wait(Duration::from_secs(4));
        assert_eq!(rig.shards[0].clients_open(), 0);
        rig.wait(Duration::from_secs(4));
        assert_eq!((links(&rig), rig.shards[0].owes_orphans()), ((0, 0), false));
    }
}

#[test]
fn a_popped_element_goes_back_if_its_client_has_waited_before_it_ended_its_input() {
    let mut rig = lending(1, 1, 10);
    rig.put_in_force("[default]\nadmin = true\ngive_back = true");
    let client = rig.client(0);
    rig.send(client, &[&["BLPOP", "q", "0"]]);
    greet(&mut rig);
    rig.wait(Duration::from_millis(20));
    rig.half_close(client);
    assert_eq!(rig.shards[0].clients_open(), 0);
    greet(&mut rig);
    rig.answer_first("UNBLOCK", ":1\r\n");
    rig.answer_first("BLPOP", POPPED);
    assert_eq!(rig.words_at_stores(), ["LPUSH"]);
}
