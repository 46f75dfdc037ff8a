//! Tests of fences: after weir has given up a connection, no later request overtakes those that its store may
//! still carry out.

use super::*;

const BUSY: &str =
    "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";

/// Returns a test rig (shards with scripted stores and clients) with a SET at the store, which stays
/// unanswered so that weir will give up its connection; and the client that sent it.
fn given_up(shards: u16) -> (Rig, usize) {
    let mut rig = Rig::with(shards, 1, |settings| {
        settings.reply_timeout = Duration::from_secs(2);
        settings.private_links_max = 10;
    });
    let client = rig.client(0);
    let key = rig.key(0, 0);
    rig.send(client, &[&["SET", &key, "old"]]);
    assert_eq!(rig.words_at_stores(), ["SET"]);
    (rig, client)
}

/// Returns a test rig (shards with scripted stores and clients) whose connection was given up with a SET that
/// may still be carried out, while no new one can be opened; a client with another RESP version, whose
/// connection is open already; and the key of the SET.
fn given_up_beside_open() -> (Rig, usize, String) {
    let (mut rig, client) = given_up(1);
    let other = rig.client(0);
    let key = rig.key(0, 0);
    rig.send(other, &[&["HELLO", "3"], &["GET", &key]]);
    rig.answer_first("HELLO", "%0\r\n");
    rig.answer_first("GET", "_\r\n");
    rig.connecting = Connecting::Hangs;
    rig.wait(Duration::from_secs(3));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    (rig, other, key)
}

#[test]
fn the_next_connection_has_the_store_drop_the_one_before_its_first_request() {
    let (mut rig, client) = given_up(1);
    let key = rig.key(0, 0);
    rig.wait(Duration::from_secs(3));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    assert!(matches!(rig.actions.last(), Some((0, Action::Reset(Owner::Link(..))))));
    assert_eq!(rig.killed, ["1"], "at once, though nobody has asked for anything yet");
    rig.send(client, &[&["SET", &key, "new"]]);
    assert_eq!(rig.words_at_stores(), ["SET"]);
    assert_eq!(rig.killed, ["1"], "once");
}

#[test]
fn an_open_connection_that_may_carry_a_later_request_does_the_same() {
    let (mut rig, other, key) = given_up_beside_open();
    assert!(rig.killed.is_empty(), "the next connection is not there yet");
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.killed, ["1"]);
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.killed, ["1"], "once");
}

#[test]
fn another_core_does_the_same_for_what_follows_from_the_refusal() {
    let (mut rig, client) = given_up(2);
    let far = rig.key(1, 0);
    // The other core's connection is open.
    rig.send(client, &[&["GET", &far]]);
    rig.answer_first(&far, "$-1\r\n");
    rig.connecting = Connecting::Hangs;
    rig.wait(Duration::from_secs(3));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    rig.send(client, &[&["GET", &far]]);
    assert_eq!(rig.killed, ["1"]);
}

/// Returns a test rig (shards with scripted stores and clients) with the unanswered EXEC of a client that
/// watches keys, on a private link (connection that the client has to itself), which is the store's first
/// connection; and the client.
fn with_transaction() -> (Rig, usize) {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.reply_timeout = Duration::from_secs(2);
        settings.private_links_max = 10;
    });
    let client = rig.client(0);
    let key = rig.key(0, 0);
    rig.send(client, &[&["WATCH", &key]]);
    private::greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(client, &[&["MULTI"], &["SET", &key, "old"], &["EXEC"]]);
    assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "EXEC"]);
    (rig, client)
}

#[test]
fn a_write_on_a_private_link_that_is_given_up_is_dropped_before_later_requests() {
    for is_open in [false, true] {
        let (mut rig, client) = with_transaction();
        let key = rig.key(0, 0);
        if is_open {
            let other = rig.client(0);
            rig.send(other, &[&["GET", &key]]);
            rig.answer_first("GET", "$-1\r\n");
        }
        rig.wait(Duration::from_secs(3));
        assert!(rig.told(client).contains("reason=reply-timeout"));
        rig.send(client, &[&["SET", &key, "new"]]);
        assert_eq!((rig.words_at_stores(), rig.killed.join(" ").as_str()), (vec!["SET"], "1"));
        rig.answer_first("SET", "+OK\r\n");
        rig.send(client, &[&["WATCH", &key]]);
        private::greet(&mut rig);
        assert_eq!((rig.words_at_stores(), rig.killed.len()), (vec!["WATCH"], 1));
    }
}

#[test]
fn a_write_on_a_private_link_that_its_store_has_closed_needs_no_fence() {
    let (mut rig, client) = with_transaction();
    let key = rig.key(0, 0);
    rig.lose("EXEC");
    rig.send(client, &[&["SET", &key, "new"]]);
    assert_eq!((rig.words_at_stores(), rig.killed.len()), (vec!["SET"], 0));
}

#[test]
fn an_idle_private_link_that_carries_a_later_request_does_the_same() {
    let (mut rig, client) = with_transaction();
    let key = rig.key(0, 0);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    rig.send(client, &[&["SET", &key, "old"]]);
    rig.connecting = Connecting::Hangs;
    rig.wait(Duration::from_secs(3));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    assert!(rig.killed.is_empty(), "the next shared connection is not there yet");
    rig.kill_reply = BUSY;
    rig.send(client, &[&["WATCH", &key]]);
    assert_eq!((rig.words_at_stores(), rig.killed.join(" ").as_str()), (vec!["WATCH"], "2"));
    rig.kill_reply = ":1\r\n";
    rig.answer_first("WATCH", BUSY);
    for killed in [2, 2] {
        rig.send(client, &[&["WATCH", &key]]);
        assert_eq!(rig.killed.len(), killed, "until the store has carried it out");
        rig.answer_first("WATCH", "+OK\r\n");
    }
}

#[test]
fn a_private_link_that_opens_does_the_same_unless_the_store_was_started_anew() {
    for is_new in [false, true] {
        let mut rig = Rig::with(1, 1, |settings| {
            settings.reply_timeout = Duration::from_secs(2);
            settings.private_links_max = 10;
        });
        let (client, key) = (rig.client(0), rig.key(0, 0));
        rig.send(client, &[&["SET", &key, "old"]]);
        rig.connecting = Connecting::Hangs;
        rig.wait(Duration::from_secs(3));
        assert!(rig.told(client).contains("reason=reply-timeout"));
        if is_new {
            rig.named = 0;
        }
        rig.connecting = Connecting::Works;
        rig.send(client, &[&["WATCH", &key]]);
        assert!(rig.killed.is_empty(), "its own name is not known yet");
        private::greet(&mut rig);
        let killed = if is_new { "" } else { "1" };
        assert_eq!((rig.words_at_stores(), rig.killed.join(" ").as_str()), (vec!["WATCH"], killed));
        rig.answer_first("WATCH", "+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n");
    }
}

#[test]
fn a_store_that_is_busy_is_asked_again_before_any_request() {
    let (mut rig, client) = given_up(1);
    let key = rig.key(0, 0);
    rig.kill_reply = BUSY;
    rig.wait(Duration::from_secs(3));
    assert!(rig.told(client).contains("reason=reply-timeout"));
    assert_eq!(rig.killed, ["1"], "the store refused that");
    for _ in 0..2 {
        rig.send(client, &[&["SET", &key, "new"]]);
        assert!(rig.told(client).starts_with("-UNAVAILABLE backend=store0 reason="));
        assert_eq!((rig.at_stores.len(), rig.owed()), (0, 0));
        rig.wait(Duration::from_secs(1));
    }
    rig.kill_reply = ":1\r\n";
    let refused = rig.killed.len();
    rig.send(client, &[&["SET", &key, "new"]]);
    assert_eq!((rig.words_at_stores(), rig.killed.len()), (vec!["SET"], refused + 1));
}

#[test]
fn an_open_connection_asks_a_store_again_that_was_busy() {
    let (mut rig, other, key) = given_up_beside_open();
    for (reply, killed) in [(BUSY, 1), (BUSY, 2), (":1\r\n", 3), (":1\r\n", 3)] {
        rig.kill_reply = reply;
        rig.send(other, &[&["GET", &key]]);
        assert_eq!(rig.killed.len(), killed, "{reply}");
        rig.answer_first("GET", "_\r\n");
    }
}

#[test]
fn a_connection_that_its_store_has_closed_needs_no_fence() {
    let (mut rig, client) = given_up(1);
    let key = rig.key(0, 0);
    rig.lose("SET");
    rig.send(client, &[&["SET", &key, "new"]]);
    assert_eq!(rig.words_at_stores(), ["SET"]);
    assert!(rig.killed.is_empty());
}

#[test]
fn a_store_that_was_started_anew_is_told_nothing() {
    let (mut rig, _client) = given_up(1);
    // The store has restarted, so its connection ids begin again.
    rig.named = 0;
    rig.wait(Duration::from_secs(3));
    assert!(rig.killed.is_empty());
    assert_eq!(rig.owed(), 0);
}

#[test]
fn a_connection_that_sent_nothing_needs_no_fence() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    rig.answer_next("$-1\r\n");
    rig.answered.clone().expect("answered");
    rig.more("+nobody asked\r\n");
    rig.send(client, &[&["GET", "a"]]);
    assert_eq!(rig.words_at_stores(), ["GET"]);
    assert!(rig.killed.is_empty());
}
