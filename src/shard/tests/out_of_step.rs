//! Tests of stores that send on shared connections bytes that answer no request.

use super::*;

/// Returns a push message of RESP3 with one text of `bytes` bytes, which answers no request.
fn push(bytes: usize) -> String {
    format!(">2\r\n$7\r\nmessage\r\n${bytes}\r\n{}\r\n", "m".repeat(bytes))
}

#[test]
fn push_messages_that_nobody_asked_for_are_dropped_whatever_their_pieces() {
    let stream = format!("{}$1\r\na\r\n>0\r\n{}{}$1\r\nb\r\n{}", push(3), push(40), push(1), push(2));
    for resp in ["2", "3"] {
        for size in 1..stream.len() {
            let mut rig = Rig::new(1, 1);
            let client = rig.client(0);
            rig.send(client, &[&["HELLO", resp]]);
            if resp == "3" {
                rig.told(client);
            }
            rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
            if resp == "3" {
                rig.answer_first("HELLO", "%0\r\n");
            }
            rig.told(client);
            let sent = rig.at_stores[0].clone();
            for piece in stream.as_bytes().chunks(size) {
                rig.bytes(&sent, piece);
            }
            assert_eq!(rig.told(client), "$1\r\na\r\n$1\r\nb\r\n", "RESP{resp} in pieces of {size}");
            assert_eq!((rig.owed(), rig.shards[0].links_open()), (0, 1));
        }
    }
}

#[test]
fn push_messages_on_an_idle_connection_take_no_memory_and_spoil_no_reply() {
    let mut rig = Rig::with(1, 1, |settings| settings.reply_bytes_max = 1_000);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    let sent = rig.at_stores[0].clone();
    rig.answer_next("$1\r\na\r\n");
    let stream = push(300).repeat(20) + &push(5_000);
    for piece in stream.as_bytes().chunks(77) {
        rig.bytes(&sent, piece);
        let room = rig.shards[0].lend_link_room(sent.link, sent.generation);
        assert!(room.is_none(), "nothing is kept of a push message");
    }
    rig.send(client, &[&["GET", "a"]]);
    rig.answer_next("$1\r\nb\r\n");
    assert_eq!(rig.told(client), "$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(rig.counted(Counter::RepliesOversized), 0);
}

#[test]
fn push_messages_between_the_replies_of_a_transaction_change_nothing() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["SET", "a", "1"], &["EXEC"]]);
    rig.told(client);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(&format!("{}{reply}{}", push(5), push(6)));
    }
    assert_eq!(rig.told(client), "*1\r\n+OK\r\n");
    assert_eq!((rig.owed(), rig.shards[0].links_open()), (0, 1));
}

/// Returns a test rig (shards with scripted stores and clients) with a request that waits for its connection,
/// whose socket was just connected; the request's client; and the connection with the generation of its
/// socket.
fn connected() -> (Rig, usize, ConnectionId, u32) {
    let mut rig = Rig::new(1, 1);
    rig.connecting = Connecting::Hangs;
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    let ((_, link), _) = rig.links.first_key_value().expect("it is being connected");
    let (link, generation) = (*link, 1);
    rig.shards[0].handle_link_connected(link, generation, rig.now);
    (rig, client, link, generation)
}

#[test]
fn push_messages_within_the_greeting_are_dropped() {
    for size in 1..40 {
        let (mut rig, client, link, generation) = connected();
        while let Some((owner, segment)) = rig.shards[0].poll_transmit() {
            rig.shards[0].handle_transmitted(owner, segment, rig.now);
        }
        let identity = "id=7 addr=127.0.0.1:9 fd=8 name=";
        let stream = format!("{}${}\r\n{identity}\r\n{}", push(3), identity.len(), push(50));
        for piece in stream.as_bytes().chunks(size) {
            rig.shards[0].handle_link_bytes(link, generation, piece, rig.now);
        }
        rig.turns();
        assert_eq!(rig.words_at_stores(), ["GET"], "in pieces of {size}");
        rig.answer_next("$1\r\na\r\n");
        assert_eq!(rig.told(client), "$1\r\na\r\n");
    }
}

/// The reply of a store to `CLIENT INFO` in the greeting (first requests of a connection).
const IDENTITY: &str = "$32\r\nid=7 addr=127.0.0.1:9 fd=8 name=\r\n";

/// Takes all output for stores, as if it was handed to the sockets, without answering it.
fn hand_over(rig: &mut Rig) {
    while let Some((owner, segment)) = rig.shards[0].poll_transmit() {
        rig.shards[0].handle_transmitted(owner, segment, rig.now);
    }
}

/// True if the client was told that its request was not carried out (the error names `reason`), and the
/// connection is closed, without a `CLIENT KILL` for it from later connections, since no request was sent on
/// it.
fn is_given_up(rig: &mut Rig, client: usize, reason: &str) -> bool {
    rig.turns();
    let told = rig.told(client);
    assert!(
        told.starts_with(&format!("-UNAVAILABLE backend=store0 reason={reason} retry_after_ms=")),
        "{told}"
    );
    assert!(rig.at_stores.is_empty() && rig.killed.is_empty());
    let is_reset = rig.actions.iter().any(|(_, action)| matches!(action, Action::Reset(Owner::Link(..))));
    is_reset && (rig.owed(), rig.shards[0].links_open()) == (0, 0)
}

#[test]
fn a_reply_before_its_request_was_sent_answers_no_request() {
    for unasked in ["$5\r\nother\r\n", "+O", "$5\r", "*2\r\n:1\r\n", ">1\r\n+x\r\n:1\r\n"] {
        for is_at_once in [true, false] {
            let (mut rig, client, link, generation) = connected();
            hand_over(&mut rig);
            let chunks = if is_at_once {
                vec![format!("{IDENTITY}{unasked}")]
            } else {
                vec![IDENTITY.into(), unasked.into()]
            };
            for chunk in chunks {
                rig.shards[0].handle_link_bytes(link, generation, chunk.as_bytes(), rig.now);
            }
            assert!(is_given_up(&mut rig, client, "unexpected-reply"), "{unasked:?}");
        }
        // Before the greeting was sent.
        let (mut rig, client, link, generation) = connected();
        rig.shards[0].handle_link_bytes(link, generation, unasked.as_bytes(), rig.now);
        assert!(is_given_up(&mut rig, client, "unexpected-reply"), "{unasked:?}");
    }
}

#[test]
fn a_reply_to_a_request_that_waits_for_its_socket_is_unexpected() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"]]);
    let sent = rig.at_stores[0].clone();
    rig.answer_next("$1\r\na\r\n");
    rig.told(client);
    let id = rig.id(client);
    rig.shards[0].handle_client_bytes(id, &request(&["SET", "a", "b"]), rig.now);
    rig.shards[0].handle_turn_end(rig.now);
    rig.shards[0].handle_link_bytes(sent.link, sent.generation, b"+OK\r\n", rig.now);
    assert!(is_given_up(&mut rig, client, "unexpected-reply"));
}

#[test]
fn a_store_that_turns_connections_away_has_carried_out_nothing() {
    for (words, is_sent) in [
        ("-ERR max number of clients reached\r\n", true),
        ("-ERR max number of clients reached\r\n", false),
        ("-ERR max number of clients + cluster connections reached\r\n", true),
        ("-DENIED Redis is running in protected mode\r\n", false),
    ] {
        for size in [1, 7, words.len()] {
            let (mut rig, client, link, generation) = connected();
            if is_sent {
                hand_over(&mut rig);
            }
            for piece in words.as_bytes().chunks(size) {
                rig.shards[0].handle_link_bytes(link, generation, piece, rig.now);
            }
            assert!(is_given_up(&mut rig, client, "turned-away"), "{words:?}");
            let line = rig.shards[0].poll_line().expect("a line in the log");
            assert_eq!(
                line,
                format!("backend store0 turns connections away: {}", &words[1..words.len() - 2])
            );
            // The next attempt comes after a pause, and says nothing new.
            rig.send(client, &[&["GET", "a"]]);
            assert!(rig.told(client).contains("reason=connect-failed"));
            rig.wait(Duration::from_secs(1));
            rig.send(client, &[&["GET", "a"]]);
            rig.shards[0].handle_link_connected(link, generation + 1, rig.now);
            rig.shards[0].handle_link_bytes(link, generation + 1, words.as_bytes(), rig.now);
            assert!(is_given_up(&mut rig, client, "turned-away"));
            assert_eq!(rig.shards[0].poll_line(), None);
        }
    }
}

#[test]
fn a_store_that_turns_a_clients_own_connection_away_has_carried_out_nothing() {
    for words in ["-ERR max number of clients reached\r\n", "-DENIED Redis is running in protected mode\r\n"]
    {
        // In RESP3 the greeting begins with a login.
        for (protocol, is_sent) in [("2", true), ("2", false), ("3", true)] {
            let mut rig = Rig::with(1, 1, |settings| settings.private_links_max = 10);
            rig.connecting = Connecting::Hangs;
            let client = rig.client(0);
            rig.send(client, &[&["HELLO", protocol]]);
            rig.told(client);
            for generation in 1..4 {
                rig.send(client, &[&["BLPOP", "q", "0"]]);
                let link = rig.links.first_key_value().expect("it is being connected").0.1;
                rig.shards[0].handle_link_connected(link, generation, rig.now);
                if is_sent {
                    hand_over(&mut rig);
                }
                rig.shards[0].handle_link_bytes(link, generation, words.as_bytes(), rig.now);
                assert!(is_given_up(&mut rig, client, "turned-away"), "{words:?}");
                let line = format!("backend store0 turns connections away: {}", words[1..].trim_end());
                assert_eq!(rig.shards[0].poll_line(), (generation == 1).then_some(line));
            }
        }
    }
}
