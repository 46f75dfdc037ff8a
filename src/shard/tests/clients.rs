//! Tests of CLIENT LIST, KILL and PAUSE over several shards.

use super::neighbours::TWO_TENANTS;
use super::*;
use crate::shard::script_board::ScriptBoard;

impl Rig {
    /// Delivers the questions that shards have for all shards (about `CLIENT LIST`, `KILL` or `PAUSE`) to all
    /// shards, and the joined answers back to the clients that asked.
    fn carry_client_questions(&mut self) {
        for asking in 0..self.shards.len() {
            while let Some((to, question)) = self.shards[asking].poll_question() {
                let Question::Clients { asked, protocol } = question else { panic!("{question:?}") };
                let now = self.now;
                let told =
                    self.shards.iter_mut().map(|shard| shard.handle_clients_asked(&asked, now)).collect();
                let reply = asked.reply(protocol, told);
                self.shards[asking].handle_answer(to, &reply, now);
            }
        }
        self.turns();
    }

    pub(super) fn asks(&mut self, client: usize, words: &[&str]) -> String {
        self.send(client, &[words]);
        self.carry_client_questions();
        self.told(client)
    }

    fn number(&self, client: usize) -> String {
        let (shard, id) = self.clients[client];
        self.shards[shard].front().peek(id).expect("it is open").number().to_string()
    }
}

#[test]
fn a_list_shows_whom_the_asker_may_see() {
    let mut rig = Rig::new(2, 1);
    rig.put_in_force(TWO_TENANTS);
    let (root, acme, stranger) = (rig.signed_in("root", "r"), rig.client(1), rig.client(1));
    rig.send(acme, &[&["AUTH", "acme/ann", "a"], &["CLIENT", "SETNAME", "cart"]]);
    rig.told(acme);
    let all = rig.asks(root, &["CLIENT", "LIST"]);
    assert_eq!(all.matches("id=").count(), 3, "{all}");
    assert!(
        all.contains(" name=cart ") && all.contains(" user=acme/ann ") && all.contains(" multi=-1 "),
        "{all}"
    );
    let own = rig.asks(acme, &["client", "list", "type", "normal"]);
    assert!(own.matches("id=").count() == 1 && own.contains(" name=cart "), "{own}");
    assert!(own.contains(" qbuf=48 qbuf-free=0 argv-mem=20 "), "{own}");
    assert_eq!(rig.asks(root, &["CLIENT", "LIST"]).matches(" qbuf=26 qbuf-free=0 argv-mem=10 ").count(), 1);
    let info = rig.asks(acme, &["CLIENT", "INFO"]);
    assert!(info.contains(" qbuf=26 qbuf-free=0 argv-mem=10 "), "{info}");
    assert!(rig.asks(root, &["CLIENT", "LIST", "USER", "x"]).starts_with("-ERR syntax"), "it shows nothing");
    let others = rig.asks(root, &["CLIENT", "LIST", "ID", &rig.number(acme)]);
    assert!(others.contains(" qbuf=0 qbuf-free=0 argv-mem=0 "), "{others}");
    assert_eq!(rig.asks(acme, &["CLIENT", "LIST", "ID", &rig.number(root)]), "$0\r\n\r\n");
    let two = rig.asks(root, &["CLIENT", "LIST", "ID", &rig.number(acme), &rig.number(stranger), "999"]);
    assert_eq!(two.matches("id=").count(), 2);
    assert_eq!(rig.asks(root, &["CLIENT", "LIST", "TYPE", "replica"]), "$0\r\n\r\n");
    for (wrong, text) in [
        (&["CLIENT", "LIST", "TYPE", "odd"][..], "-ERR Unknown client type 'odd'\r\n"),
        (&["CLIENT", "LIST", "ID", "x"], "-ERR Invalid client ID\r\n"),
        (&["CLIENT", "LIST", "ODD"], "-ERR syntax error\r\n"),
        (&["CLIENT", "KILL", "ODD", "x"], "-ERR syntax error\r\n"),
        (&["CLIENT", "KILL", "1.2.3.4:5"], "-ERR No such client\r\n"),
        (&["CLIENT", "PAUSE", "x"], "-ERR timeout is not an integer or out of range\r\n"),
        (&["CLIENT", "PAUSE", "-1"], "-ERR timeout is negative\r\n"),
        (&["CLIENT", "PAUSE", "10", "SOME"], "-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n"),
        (&["CLIENT", "UNBLOCK", "1"], ":0\r\n"),
    ] {
        assert_eq!(rig.asks(root, wrong), text, "{wrong:?}");
    }
    assert_eq!(rig.asks(stranger, &["CLIENT", "LIST"]), "-NOAUTH Authentication required.\r\n");
}

#[test]
fn a_kill_reaches_as_far_as_the_killer() {
    let mut rig = Rig::new(2, 1);
    rig.put_in_force(TWO_TENANTS);
    let (root, first) = (rig.signed_in("root", "r"), rig.signed_in("acme", "a"));
    let second = rig.client(1);
    rig.send(second, &[&["AUTH", "acme", "a"]]);
    rig.told(second);
    assert_eq!(rig.asks(first, &["CLIENT", "KILL", "ID", &rig.number(root)]), ":0\r\n");
    assert_eq!(
        rig.asks(first, &["CLIENT", "KILL", "TYPE", "normal"]),
        ":1\r\n",
        "itself only where it says so"
    );
    assert_eq!([root, first, second].map(|client| rig.is_open(client)), [true, true, false]);
    assert_eq!(rig.asks(first, &["CLIENT", "KILL", "USER", "acme", "SKIPME", "no"]), ":1\r\n");
    assert!(!rig.is_open(first), "it was told, and then closed");
    let id = rig.id(root);
    let address = Address { peer: "127.0.0.1:5".into(), local: "127.0.0.1:6".into(), is_unix: false };
    rig.shards[0].note_client_address(id, address);
    assert_eq!(rig.asks(root, &["CLIENT", "KILL", "LADDR", "127.0.0.1:6"]), ":0\r\n");
    assert_eq!(rig.asks(root, &["CLIENT", "KILL", "127.0.0.1:5"]), "+OK\r\n");
    assert!(!rig.is_open(root));
    assert_eq!(rig.counted(Counter::ClientsClosedKilled), 3);
}

#[test]
fn who_is_told_to_wait_waits_and_goes_on_in_order() {
    let mut rig = Rig::new(2, 1);
    let [operator, client] = [rig.client(0), rig.client(1)];
    let key = rig.key(1, 0);
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "1000"]), "+OK\r\n");
    rig.send(client, &[&["PING"], &["GET", &key]]);
    let late = rig.client(0);
    rig.send(late, &[&["PING"]]);
    // The client that ordered it waits too, but may ask about clients, and end the pause.
    assert!(rig.asks(operator, &["CLIENT", "LIST"]).contains("id="));
    rig.send(operator, &[&["PING"]]);
    let waiting = [operator, client, late];
    assert_eq!((waiting.map(|client| rig.told(client)), rig.at_stores.len()), (Default::default(), 0));
    rig.wait(Duration::from_millis(1_100));
    assert_eq!(waiting.map(|client| rig.told(client)), ["+PONG\r\n"; 3]);
    rig.answer_next("$-1\r\n");
    for (what, told) in [("PAUSE", "+OK\r\n"), ("UNPAUSE", "+OK\r\n")] {
        let words = ["CLIENT", what, "100000"];
        assert_eq!(rig.asks(operator, &words[..if what == "PAUSE" { 3 } else { 2 }]), told);
    }
    assert_eq!(rig.asks(operator, &["PING"]), "+PONG\r\n");

    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
    rig.send(client, &[&["GET", &key], &["SET", &key, "1"], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_next("$-1\r\n");
    rig.send(late, &[&["MULTI"], &["SET", "other", "2"], &["EXEC"]]);
    assert_eq!((rig.told(late).as_str(), rig.at_stores.len()), ("+OK\r\n+QUEUED\r\n", 0));
    assert_eq!(rig.asks(operator, &["CLIENT", "UNPAUSE"]), "+OK\r\n");
    assert_eq!(
        rig.words_at_stores().iter().filter(|word| **word != "GET").count(),
        4,
        "SET; MULTI, SET, EXEC"
    );
    rig.answer_first(&key, "+OK\r\n");
    rig.answer_first(&key, "$1\r\n1\r\n");
    assert!(rig.told(client).ends_with("+OK\r\n$1\r\n1\r\n"));
}

#[test]
fn a_pause_may_be_ended_by_a_request_with_options_of_its_own() {
    let mut rig = Rig::new(1, 1);
    let operator = rig.client(0);
    let call = ["QOS", "CALL", "TIER", "batch"];
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "100000"]), "+OK\r\n");
    assert_eq!(rig.asks(operator, &[&call[..], &["CLIENT", "UNPAUSE"]].concat()), "+OK\r\n");
    // Any other one waits, like its inner request.
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "1000"]), "+OK\r\n");
    rig.send(operator, &[&[&call[..], &["GET", "k"]].concat(), &["ECHO", "behind"]]);
    assert_eq!(
        (rig.told(operator).as_str(), rig.at_stores.len(), rig.shards[0].paused_clients()),
        ("", 0, 1)
    );
    rig.wait(Duration::from_millis(1_100));
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(operator), "$-1\r\n$6\r\nbehind\r\n");
}

#[test]
fn a_command_that_weir_does_not_know_waits_with_the_writes() {
    let mut rig = Rig::new(1, 1);
    let [operator, client] = [rig.client(0), rig.client(0)];
    for pause in [&["CLIENT", "PAUSE", "1000", "WRITE"][..], &["CLIENT", "PAUSE", "1000"]] {
        assert_eq!(rig.asks(operator, pause), "+OK\r\n");
        rig.send(client, &[&["FROB", "k"]]);
        rig.send(operator, &[&["QOS", "CALL", "TIER", "batch", "FROB", "k"]]);
        assert_eq!((rig.at_stores.len(), rig.shards[0].paused_clients()), (0, 2), "{pause:?}");
        rig.wait(Duration::from_millis(1_100));
        assert_eq!(rig.words_at_stores(), ["FROB"; 2]);
        for _ in 0..2 {
            rig.answer_next("+FINE\r\n");
        }
        assert_eq!([operator, client].map(|client| rig.told(client)), ["+FINE\r\n"; 2]);
    }
}

#[test]
fn what_comes_between_the_end_of_a_pause_and_the_held_request_goes_behind_that() {
    for later in [&["GET", "k"][..], &["DBSIZE"]] {
        let mut rig = Rig::new(1, 1);
        let [operator, client] = [rig.client(0), rig.client(0)];
        assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
        rig.send(client, &[&["SET", "k", "1"]]);
        rig.send(operator, &[&["CLIENT", "UNPAUSE"]]);
        let (_, question) = rig.shards[0].poll_question().expect("all cores are told");
        let Question::Clients { asked, .. } = question else { panic!("{question:?}") };
        rig.shards[0].handle_clients_asked(&asked, rig.now);
        // The pause is over, and the client's held request goes on at the end of the turn.
        rig.send(client, &[later]);
        assert_eq!(rig.words_at_stores()[0], "SET");
        rig.answer_next("+OK\r\n");
        rig.answer_next(":1\r\n");
        assert_eq!(rig.told(client), "+OK\r\n:1\r\n");
    }
}

#[test]
fn a_tenant_holds_up_its_own_only() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TWO_TENANTS);
    let [operator, own, other] =
        [rig.signed_in("acme", "a"), rig.signed_in("acme", "a"), rig.signed_in("root", "r")];
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "1000"]), "+OK\r\n");
    for client in [own, other] {
        rig.send(client, &[&["PING"]]);
    }
    assert_eq!((rig.told(own).as_str(), rig.told(other).as_str()), ("", "+PONG\r\n"));
    // A client that logs in as the paused tenant waits too, and one that is closed while it waits leaves
    // nothing behind.
    rig.send(other, &[&["AUTH", "acme", "a"], &["PING"]]);
    assert_eq!(rig.told(other), "+OK\r\n");
    rig.shards[0].handle_client_end(rig.clients[own].1, rig.now);
    rig.wait(Duration::from_secs(2));
    assert_eq!((rig.told(own).as_str(), rig.told(other).as_str()), ("+PONG\r\n", "+PONG\r\n"));
    assert!(!rig.is_open(own));
}

#[test]
fn a_client_whose_tenant_is_gone_does_not_wait_for_the_end_of_its_pause() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TWO_TENANTS);
    let [operator, client] = [rig.signed_in("acme", "a"), rig.signed_in("acme", "a")];
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "100000"]), "+OK\r\n");
    rig.send(client, &[&["PING"]]);
    rig.put_in_force(TWO_TENANTS);
    rig.turns();
    assert_eq!(rig.told(client), "", "the tenant is still paused");
    rig.put_in_force("[tenants.root]\npassword = \"r\"\n");
    rig.turns();
    assert!(rig.told(client).starts_with("-NOAUTH "));
    assert_eq!(rig.shards[0].paused_clients(), 0);
}

#[test]
fn a_pause_in_a_transaction_is_in_force_when_the_transaction_is_answered() {
    let mut rig = Rig::new(2, 1);
    let [operator, client] = [rig.client(0), rig.client(1)];
    let (key, here) = (rig.key(1, 0), rig.key(0, 0));
    let pause = ["CLIENT", "PAUSE", "100000", "WRITE"];
    let wrong = ["CLIENT", "PAUSE", "x"];
    rig.send(operator, &[&["MULTI"], &pause, &["SET", &here, "1"], &wrong, &["EXEC"], &["PING"]]);
    assert_eq!(rig.told(operator), "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(operator), "", "other cores have not heard of the pause");
    rig.carry_client_questions();
    let wrong = "-ERR timeout is not an integer or out of range\r\n";
    assert_eq!(rig.told(operator), format!("*3\r\n+OK\r\n+OK\r\n{wrong}+PONG\r\n"));
    rig.send(client, &[&["SET", &key, "1"]]);
    assert!(rig.at_stores.is_empty());
    // The last of several CLIENT PAUSE or UNPAUSE in a transaction counts. A transaction that needs no store
    // gets its reply once that is in force.
    rig.send(operator, &[&["MULTI"], &pause, &["CLIENT", "UNPAUSE"], &["EXEC"]]);
    assert_eq!(rig.told(operator), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    rig.carry_client_questions();
    assert_eq!(rig.told(operator), "*2\r\n+OK\r\n+OK\r\n");
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    // A transaction that fails has no effect.
    rig.send(operator, &[&["MULTI"], &pause, &["GET"], &["EXEC"]]);
    assert!(rig.told(operator).ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    assert!(rig.shards[0].poll_question().is_none());
}

#[test]
fn replies_that_are_collected_stand_in_their_places_in_a_transaction() {
    let mut rig = Rig::new(2, 1);
    let client = rig.client(0);
    let key = rig.key(0, 0);
    let answered = |rig: &mut Rig, text: &str| {
        let (to, _) = rig.shards[0].poll_question().expect("EXEC waits for it");
        let now = rig.now;
        rig.shards[0].handle_answer(to, format!("${}\r\n{text}\r\n", text.len()).as_bytes(), now);
        rig.turns();
    };
    let wrong = ["CLIENT", "LIST", "TYPE", "x"];
    rig.send(client, &[&["MULTI"], &["INFO", "server"], &["SET", &key, "1"], &wrong]);
    rig.send(client, &[&["CLIENT", "LIST"], &["INFO"], &["EXEC"], &["PING"]]);
    assert_eq!(rig.told(client), format!("+OK\r\n{}", "+QUEUED\r\n".repeat(5)));
    answered(&mut rig, "one");
    assert!(rig.at_stores.is_empty(), "EXEC waits for all of them");
    answered(&mut rig, "id=1");
    answered(&mut rig, "two");
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    let told = rig.told(client);
    let unknown = "-ERR Unknown client type 'x'\r\n";
    assert_eq!(told, format!("*5\r\n$3\r\none\r\n+OK\r\n{unknown}$4\r\nid=1\r\n$3\r\ntwo\r\n+PONG\r\n"));
    // A transaction that needs no store.
    rig.send(client, &[&["MULTI"], &["INFO"], &["EXEC"]]);
    answered(&mut rig, "three");
    assert!(rig.told(client).ends_with("*1\r\n$5\r\nthree\r\n"));
    // Long answers end it.
    rig.send(client, &[&["MULTI"], &["INFO"], &["INFO"], &["EXEC"]]);
    answered(&mut rig, &"x".repeat(limits::DESCRIPTION_BYTES_MAX + 1));
    assert!(rig.told(client).contains("-EXECABORT Transaction discarded because weir's own answers in it"));
    // Refused ones are asked nothing, nor are those who have left.
    rig.send(client, &[&["MULTI"], &["INFO"], &["GET"], &["EXEC"]]);
    assert!(rig.told(client).contains("-EXECABORT ") && rig.shards[0].poll_question().is_none());
    rig.send(client, &[&["MULTI"], &["INFO"], &["SET", &key, "1"], &["EXEC"]]);
    let (to, _) = rig.shards[0].poll_question().expect("EXEC waits for it");
    let id = rig.id(client);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    let now = rig.now;
    rig.shards[0].handle_answer(to, b"$1\r\nx\r\n", now);
    rig.turns();
    assert!(rig.at_stores.is_empty());
    assert_eq!((rig.shards[0].clients_open(), rig.shards[0].requests_abandoned()), (0, 0));
}

#[test]
fn clients_are_closed_in_a_transaction_and_the_asker_after_its_reply() {
    let mut rig = Rig::new(2, 1);
    let [asker, near, far] = [rig.client(0), rig.client(0), rig.client(1)];
    let [near_id, far_id] = [near, far].map(|client| rig.number(client));
    rig.send(asker, &[&["MULTI"], &["CLIENT", "KILL", "ID", &near_id], &["SET", "k", "1"]]);
    rig.send(asker, &[&["CLIENT", "KILL", "ODD", "x"], &["CLIENT", "UNBLOCK", &far_id]]);
    rig.send(asker, &[&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"], &["EXEC"], &["PING"]]);
    assert!([asker, near, far].iter().all(|client| rig.is_open(*client)), "nothing happens before EXEC");
    for _ in 0..3 {
        rig.carry_client_questions();
    }
    assert_eq!([asker, near, far].map(|client| rig.is_open(client)), [true, false, false]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    let queued = "+QUEUED\r\n".repeat(5);
    let told = rig.told(asker);
    assert_eq!(told, format!("+OK\r\n{queued}*5\r\n:1\r\n+OK\r\n-ERR syntax error\r\n:0\r\n:2\r\n"));
    assert!(!rig.is_open(asker), "PING is not answered");
    // A transaction that needs no store, and two that close nobody.
    let [asker, other] = [rig.client(0), rig.client(1)];
    let (own, other_id) = (rig.number(asker), rig.number(other));
    rig.send(asker, &[&["MULTI"], &["CLIENT", "KILL", "ID", &other_id], &["GET"], &["EXEC"]]);
    rig.send(asker, &[&["MULTI"], &["CLIENT", "KILL", "ID", &other_id], &["DISCARD"]]);
    assert!(rig.shards[0].poll_question().is_none() && rig.is_open(other));
    rig.told(asker);
    rig.send(asker, &[&["MULTI"], &["CLIENT", "KILL", "SKIPME", "no", "ID", &own], &["EXEC"]]);
    rig.carry_client_questions();
    assert_eq!(rig.told(asker), "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    assert!(!rig.is_open(asker) && rig.is_open(other));
    assert_eq!(rig.counted(Counter::ClientsClosedKilled), 4);
}

#[test]
fn a_client_that_sends_nothing_more_is_answered_the_exec_that_waits() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["CLIENT", "LIST", "ID", "99"], &["SET", "k", "1"], &["EXEC"]]);
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    rig.carry_client_questions();
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("*2\r\n$0\r\n\r\n+OK\r\n"));
    assert!(!rig.is_open(client));
}

#[test]
fn a_client_that_leaves_while_its_transaction_pauses_others_leaves_nothing_behind() {
    let mut rig = Rig::new(1, 1);
    let operator = rig.client(0);
    rig.send(operator, &[&["MULTI"], &["CLIENT", "PAUSE", "100000"], &["SET", "k", "1"], &["EXEC"]]);
    let id = rig.id(operator);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    assert!(rig.shards[0].poll_question().is_none());
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!((rig.shards[0].clients_open(), rig.shards[0].requests_abandoned()), (0, 0));
}

#[test]
fn scripts_that_declare_that_they_write_nothing_pass_while_writes_are_held_back() {
    const READS: &str = "#!lua flags=no-writes\nreturn 2";
    const DIGEST: &str = "ae33f9227913b24d053a555637f98260b23bd3a3";
    let mut rig = Rig::new(2, 1);
    let [operator, client, other] = [rig.client(0), rig.client(0), rig.client(1)];
    // The core that stores the script's source is not that of the client that runs it by digest.
    rig.send(other, &[&["SCRIPT", "LOAD", READS]]);
    rig.answer_next(&format!("$40\r\n{DIGEST}\r\n"));
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "100000", "WRITE"]), "+OK\r\n");
    for words in [
        &["EVAL", READS, "0"][..],
        &["EVAL_RO", "return 1", "0"],
        &["EVALSHA", DIGEST, "0"],
        &["EVALSHA_RO", "0123456789012345678901234567890123456789", "0"],
        &["FCALL_RO", "f", "0"],
    ] {
        rig.send(client, &[words]);
        rig.answer_next(":2\r\n");
        assert_eq!(rig.told(client), ":2\r\n", "{words:?}");
    }
    rig.send(client, &[&["MULTI"], &["EVALSHA", DIGEST, "0"], &["EXEC"]]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n:2\r\n"] {
        rig.answer_next(reply);
    }
    rig.told(client);
    for words in [
        &["EVAL", "return 1", "0"][..],
        &["EVAL", "#!lua\nreturn 1", "0"],
        &["EVALSHA", "0123456789012345678901234567890123456789", "0"],
        &["FCALL", "f", "0"],
    ] {
        let client = rig.client(0);
        rig.send(client, &[words]);
        assert!(rig.at_stores.is_empty(), "{words:?}");
    }
    rig.send(client, &[&["MULTI"], &["EVALSHA", DIGEST, "0"], &["EVAL", "return 1", "0"], &["EXEC"]]);
    assert!(rig.at_stores.is_empty());
    assert_eq!(rig.shards[0].paused_clients(), 5);
}

#[test]
fn a_second_pause_ends_no_earlier_and_holds_back_no_less_than_the_first() {
    let mut rig = Rig::new(1, 1);
    let [operator, client] = [rig.client(0), rig.client(0)];
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "10000"]), "+OK\r\n");
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "10", "WRITE"]), "+OK\r\n");
    rig.send(client, &[&["PING"]]);
    rig.wait(Duration::from_secs(5));
    assert_eq!(rig.told(client), "");
    rig.wait(Duration::from_secs(6));
    assert_eq!(rig.told(client), "+PONG\r\n");
}

#[test]
fn a_client_whose_request_waits_for_the_end_of_a_pause_is_not_idle() {
    let mut rig = Rig::with(1, 1, |settings| settings.idle_timeout = Some(Duration::from_secs(2)));
    let [operator, waiting, quiet] = [rig.client(0), rig.client(0), rig.client(0)];
    assert_eq!(rig.asks(operator, &["CLIENT", "PAUSE", "5000"]), "+OK\r\n");
    rig.send(waiting, &[&["SET", "k", "1"]]);
    rig.wait(Duration::from_secs(4));
    assert_eq!([waiting, quiet].map(|client| rig.is_open(client)), [true, false]);
    assert!(rig.at_stores.is_empty());
    rig.wait(Duration::from_millis(1_100));
    assert_eq!(rig.words_at_stores(), ["SET"]);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(waiting), "+OK\r\n");
    rig.wait(Duration::from_secs(3));
    assert!(!rig.is_open(waiting), "now it is");
}

#[test]
fn a_script_is_noted_only_when_it_is_carried_out() {
    const READS: &str = "#!lua flags=no-writes\nreturn 2";
    const DIGEST: &str = "ae33f9227913b24d053a555637f98260b23bd3a3";
    let scripts = Arc::new(ScriptBoard::default());
    let mut rig = Rig::with(1, 1, |settings| settings.clients.scripts = Arc::clone(&scripts));
    rig.put_in_force(TWO_TENANTS);
    let stranger = rig.client(0);
    rig.send(stranger, &[&["EVAL", READS, "0"]]);
    assert!(rig.told(stranger).starts_with("-NOAUTH"));
    assert!(!scripts.has(DIGEST.as_bytes()));
    let client = rig.signed_in("root", "r");
    rig.send(client, &[&["EVAL", READS, "0"]]);
    assert!(scripts.has(DIGEST.as_bytes()));
}

#[test]
fn an_exemption_from_eviction_ends_with_reset_and_counts_for_administrators_alone() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TWO_TENANTS);
    let client = rig.signed_in("root", "r");
    assert_eq!(rig.asks(client, &["CLIENT", "NO-EVICT", "ON"]), "+OK\r\n");
    assert!(rig.asks(client, &["CLIENT", "INFO"]).contains(" flags=e "));
    assert_eq!(rig.asks(client, &["CLIENT", "NO-EVICT", "perhaps"]), "-ERR syntax error\r\n");
    assert!(rig.asks(client, &["CLIENT", "INFO"]).contains(" flags=e "));
    rig.send(client, &[&["RESET"], &["AUTH", "root", "r"]]);
    rig.told(client);
    assert!(rig.asks(client, &["CLIENT", "INFO"]).contains(" flags=N "));
}

#[test]
fn a_login_for_the_user_of_one_request_lasts() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force("[tenants.t]\npassword = 'p'\n[tenants.s]\npassword = 'q'\n");
    let client = rig.client(0);
    rig.send(
        client,
        &[&["AUTH", "t", "p"], &["QOS", "CALL", "USER", "b", "AUTH", "t/b", "p"], &["ACL", "WHOAMI"]],
    );
    assert_eq!(rig.told(client), "+OK\r\n+OK\r\n$3\r\nt/b\r\n");
    // A login that fails leaves the connection's own identity.
    let wrong = ["QOS", "CALL", "USER", "c", "HELLO", "2", "AUTH", "s", "wrong"];
    rig.send(client, &[&wrong, &["QOS", "CALL", "USER", "c", "PING"], &["ACL", "WHOAMI"]]);
    let told = rig.told(client);
    assert!(told.starts_with("-WRONGPASS") && told.ends_with("+PONG\r\n$3\r\nt/b\r\n"), "{told}");
}

#[test]
fn a_name_with_options_keeps_nothing_of_the_one_request_that_sets_it() {
    let mut rig = Rig::with(1, 1, |settings| settings.overload.shed = Mode::On);
    rig.put_in_force("[tenants.t]\npassword = 'p'\n");
    let client = rig.signed_in("t", "p");
    let call = ["QOS", "CALL", "USER", "ann", "DEADLINE", "50"];
    let named = [&call[..], &["CLIENT", "SETNAME", "cart;tier=batch"]].concat();
    rig.send(client, &[&named, &["ACL", "WHOAMI"]]);
    assert_eq!(rig.told(client), "+OK\r\n$1\r\nt\r\n");
    let listed = rig.asks(client, &["CLIENT", "LIST"]);
    assert!(listed.contains(" name=cart ") && listed.contains(" tier=batch\n"), "{listed}");
    // Of several names in a transaction the options of all stay, and those of `EXEC` do not.
    let [first, second] = ["a;tier=sheddable", "b;user=bob"].map(|name| ["CLIENT", "SETNAME", name]);
    let exec = [&call[..], &["EXEC"]].concat();
    rig.send(client, &[&["MULTI"], &first, &second, &exec, &["ACL", "WHOAMI"]]);
    let told = rig.told(client);
    assert!(told.ends_with("*2\r\n+OK\r\n+OK\r\n$5\r\nt/bob\r\n"), "{told}");
    let listed = rig.asks(client, &["CLIENT", "LIST"]);
    assert!(listed.contains(" name=b ") && listed.contains(" tier=sheddable\n"), "{listed}");
    rig.send(client, &[&["GET", "k"]]);
    rig.wait(Duration::from_millis(200));
    assert_eq!(rig.told(client), "", "it has no deadline");
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n");
    // A login in the same request counts.
    let hello = ["HELLO", "2", "AUTH", "t/eve", "p", "SETNAME", "c;tier=batch"];
    rig.send(client, &[&[&call[..], &hello].concat(), &["ACL", "WHOAMI"]]);
    let told = rig.told(client);
    assert!(told.ends_with("$5\r\nt/eve\r\n"), "{told}");
    assert!(rig.asks(client, &["CLIENT", "LIST"]).contains(" name=c "));
}
