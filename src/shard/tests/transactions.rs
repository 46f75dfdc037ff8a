//! Tests of transactions with requests that weir answers itself, and with requests that go to every store.

use super::*;

#[test]
fn what_weir_answers_stands_in_its_place() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let key = rig.key(0, 1);
    rig.send(client, &[&["CLIENT", "SETNAME", "before"], &["MULTI"], &["SELECT", "0"], &["SET", &key, "1"]]);
    rig.send(
        client,
        &[&["CLIENT", "SETNAME", "within"], &["CLIENT", "GETNAME"], &["GET", &key], &["SELECT", "99"]],
    );
    assert_eq!(rig.told(client), format!("+OK\r\n+OK\r\n{}", "+QUEUED\r\n".repeat(6)));
    rig.send(client, &[&["EXEC"], &["CLIENT", "GETNAME"]]);
    assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "GET", "EXEC"]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    let own = ["+OK\r\n", "$6\r\nwithin\r\n", "-ERR DB index is out of range\r\n"];
    let block = format!("*6\r\n{0}+OK\r\n{0}{1}$1\r\n1\r\n{2}", own[0], own[1], own[2]);
    assert_eq!(rig.told(client), format!("{block}$6\r\nwithin\r\n"));

    // A transaction without requests for a store sends nothing, and DISCARD leaves nothing changed.
    rig.send(
        client,
        &[&["MULTI"], &["CLIENT", "SETNAME", "never"], &["DISCARD"], &["MULTI"], &["ROLE"], &["EXEC"]],
    );
    assert!(rig.told(client).ends_with("*1\r\n*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"));
    rig.send(client, &[&["CLIENT", "GETNAME"]]);
    assert_eq!((rig.told(client).as_str(), rig.at_stores.len()), ("$6\r\nwithin\r\n", 0));
}

#[test]
fn a_transaction_that_fails_has_nothing_put_into_it() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    for last in ["-EXECABORT no\r\n", "*-1\r\n"] {
        rig.send(client, &[&["MULTI"], &["SELECT", "0"], &["SET", "k", "1"], &["EXEC"]]);
        for reply in ["+OK\r\n", "+QUEUED\r\n", last] {
            rig.answer_next(reply);
        }
        assert_eq!(rig.told(client), format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n{last}"));
    }
    rig.send(client, &[&["MULTI"], &["SELECT", "0"], &["SET", "k", "1"], &["EXEC"]]);
    rig.lose("EXEC");
    assert!(rig.told(client).ends_with("reason=connection-lost retry_after_ms=50\r\n"));
    rig.send(client, &[&["MULTI"], &["FROB", "k"]]);
    assert!(rig.told(client).ends_with("-ERR unknown command 'FROB', with args beginning with: 'k' \r\n"));
    rig.send(client, &[&["EXEC"]]);
    assert_eq!(rig.told(client), "-EXECABORT Transaction discarded because of previous errors.\r\n");
    assert!(rig.at_stores.is_empty());
}

#[test]
fn exec_says_which_error_of_a_step_aborted_it() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let vague = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    let named = "-EXECABORT Transaction discarded because of: OOM later\r\n";
    let long = format!("-ERR {}\r\n", "x".repeat(100_000));
    let cut = format!("-EXECABORT Transaction discarded because of: ERR {}\r\n", "x".repeat(508));
    let arity = "-ERR wrong number of arguments for 'object|freq' command\r\n";
    let told = "-EXECABORT Transaction discarded because of: ERR wrong number of arguments for 'object|freq' command\r\n";
    for (steps, last, expected) in [
        (["+QUEUED\r\n", arity, "-ERR second\r\n"], vague, told),
        // The reason for which one transaction was refused is not given for the next one.
        (["+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n"], vague, vague),
        ([arity, "+QUEUED\r\n", "+QUEUED\r\n"], "*-1\r\n", "*-1\r\n"),
        (["+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n"], vague, vague),
        (["+QUEUED\r\n", arity, "+QUEUED\r\n"], named, named),
        ([&long, "+QUEUED\r\n", "+QUEUED\r\n"], vague, &cut),
    ] {
        rig.send(client, &[&["MULTI"], &["SET", "k", "1"], &["SET", "k", "2"], &["GET", "k"], &["EXEC"]]);
        rig.told(client);
        ["+OK\r\n"].iter().chain(&steps).chain(&[last]).for_each(|reply| rig.answer_next(reply));
        assert_eq!(rig.told(client), expected, "{steps:?}");
    }
    // The next error on the connection is that of its own request, not of the transaction.
    rig.send(client, &[&["GET", "k"]]);
    rig.answer_next(vague);
    assert_eq!(rig.told(client), vague);
}

#[test]
fn answers_in_a_transaction_are_bounded() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["SET", "k", "1"]]);
    rig.raw(client, &request(&["COMMAND", "DOCS"]).repeat(100));
    rig.told(client);
    rig.send(client, &[&["EXEC"], &["GET", "k"]]);
    let told = rig.told(client);
    assert!(
        told.starts_with("-EXECABORT Transaction discarded because weir's own answers") && told.len() < 200
    );
    assert_eq!(rig.words_at_stores(), ["GET"]);
    rig.answer_next("$-1\r\n");
    rig.send(client, &[&["MULTI"]]);
    rig.raw(client, &request(&["CLIENT", "SETNAME", &"n".repeat(500)]).repeat(3_000));
    assert!(rig.told(client).contains("-ERR the transaction is larger than 1048576 bytes"));
    let mut rig = Rig::with(1, 1, |settings| settings.request_bytes_max = 16 << 20);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"]]);
    rig.told(client);
    rig.raw(client, &request(&["CLIENT", "SETNAME", "n"]).repeat(20_000));
    let told = rig.told(client);
    let refused = "-ERR the transaction has more than 4096 requests that weir answers itself\r\n";
    assert_eq!((told.matches("+QUEUED").count(), told.matches(refused).count()), (4_096, 20_000 - 4_096));
}

#[test]
fn requests_that_are_collected_for_a_transaction_are_answered_in_their_order() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"]]);
    for number in 0..1_000 {
        let wrong = ["CLIENT", "UNBLOCK", "1", if number % 2 == 0 { "TIMEOUTS" } else { "ERRORS" }];
        rig.send(client, &[&wrong, &["CLIENT", "GETNAME"]]);
    }
    rig.told(client);
    rig.send(client, &[&["EXEC"]]);
    let wrong = "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n$-1\r\n";
    assert_eq!(rig.told(client), format!("*2000\r\n{}", wrong.repeat(1_000)));
}

#[test]
fn what_administrators_ask_of_stores_goes_to_all_of_them() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    for (request, replies, answer) in [
        (&["CONFIG", "SET", "a", "b"][..], ["+OK\r\n", "+OK\r\n"], "+OK\r\n"),
        (
            &["CONFIG", "SET", "a", "b"],
            ["+OK\r\n", "-ERR no\r\n"],
            "-ERR no (the rest may have happened)\r\n",
        ),
        (&["CONFIG", "GET", "save"], ["*0\r\n", "*0\r\n"], "*0\r\n"),
        (&["SLOWLOG", "LEN"], [":3\r\n", ":4\r\n"], ":7\r\n"),
        (&["SLOWLOG", "GET"], ["*1\r\n*1\r\n:1\r\n", "*1\r\n*1\r\n:2\r\n"], "*2\r\n*1\r\n:1\r\n*1\r\n:2\r\n"),
        (&["DEBUG", "SLEEP", "0"], ["+OK\r\n", "+OK\r\n"], "+OK\r\n"),
        (
            &["MEMORY", "DOCTOR"],
            ["$1\r\na\r\n", "$1\r\nb\r\n"],
            "*4\r\n$6\r\nstore0\r\n$1\r\na\r\n$6\r\nstore1\r\n$1\r\nb\r\n",
        ),
        (
            &["PUBSUB", "NUMSUB", "c"],
            ["*2\r\n$1\r\nc\r\n:1\r\n", "*2\r\n$1\r\nc\r\n:2\r\n"],
            "*2\r\n$1\r\nc\r\n:3\r\n",
        ),
    ] {
        rig.send(client, &[request]);
        assert_eq!(rig.at_stores.len(), 2, "{request:?}");
        replies.iter().for_each(|reply| rig.answer_next(reply));
        assert_eq!(rig.told(client), answer, "{request:?}");
    }
    let now = rig.now;
    rig.shards[0].handle_quotas(quotas("[default]"), now);
    for refused in [
        &["CONFIG", "SET", "a", "b"][..],
        &["SLOWLOG", "GET"],
        &["DEBUG", "SLEEP", "0"],
        &["MEMORY", "STATS"],
    ] {
        rig.send(client, &[refused]);
        assert!(rig.told(client).starts_with("-NOPERM tenant 'default' may not run "), "{refused:?}");
    }
    rig.send(client, &[&["CONFIG", "GET", "save"]]);
    assert_eq!(rig.told(client), "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
}

#[test]
fn a_block_owes_a_reply_for_each_request_until_its_connection_is_lost() {
    for answered in [0, 1, 700] {
        let mut rig = Rig::new(1, 1);
        let client = rig.client(0);
        rig.send(client, &[&["MULTI"]]);
        for _ in 0..4 {
            rig.send(client, &[&["SET", "k", "v"][..]; 250]);
        }
        rig.send(client, &[&["EXEC"], &["GET", "k"]]);
        rig.told(client);
        assert_eq!(rig.owed(), 1_002, "MULTI, what was queued, EXEC; what came later waits");
        (0..answered).for_each(|_| rig.answer_next("+QUEUED\r\n"));
        assert_eq!(rig.owed(), 1_002 - answered);
        rig.lose("EXEC");
        assert_eq!(
            rig.told(client),
            "-UNAVAILABLE backend=store0 reason=connection-lost retry_after_ms=50\r\n"
        );
        rig.answer_first("GET", "$1\r\nv\r\n");
        assert_eq!((rig.told(client).as_str(), rig.owed()), ("$1\r\nv\r\n", 0));
    }
}

#[test]
fn the_only_store_answers_settings_in_a_transaction_as_outside() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["CONFIG", "GET", "notify-keyspace-events"], &["EXEC"]]);
    assert_eq!(rig.words_at_stores(), ["MULTI", "CONFIG", "EXEC"]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n*2\r\n$22\r\nnotify-keyspace-events\r\n$1\r\nx\r\n"] {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("events\r\n$1\r\nx\r\n"));
    rig.send(client, &[&["MULTI"], &["CONFIG", "GET", "maxmemory", "save"], &["EXEC"]]);
    assert_eq!(rig.words_at_stores(), ["MULTI", "CONFIG", "EXEC"]);
    rig.told(client);
    (0..3).for_each(|_| rig.answer_next("+OK\r\n"));
    rig.told(client);
    // A store's reply to others could have its passwords.
    for settings in [&["*"][..], &["save", "RequirePass"], &["mastera?th"]] {
        let asked = [&["CONFIG", "GET"][..], settings].concat();
        rig.send(client, &[&["MULTI"], &asked, &["EXEC"]]);
        assert!(rig.at_stores.is_empty());
        let told = rig.told(client);
        assert!(told.contains("-ERR CONFIG GET cannot stand in a transaction"), "{told}");
    }
}

#[test]
fn options_may_stand_before_each_request_of_a_transaction() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let called = |request: &[&'static str]| [&["QOS", "call", "DEADLINE", "50"], request].concat();
    for request in [&["MULTI"][..], &["SET", "k", "1"], &["PING"], &["EXEC"]] {
        rig.send(client, &[&called(request)]);
    }
    assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "PING", "EXEC"]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n+PONG\r\n"] {
        rig.answer_next(reply);
    }
    let queued = "+QUEUED\r\n".repeat(2);
    assert_eq!(rig.told(client), format!("+OK\r\n{queued}*2\r\n+OK\r\n+PONG\r\n"));
}

#[test]
fn the_options_of_exec_count_also_after_it_has_waited_for_an_answer() {
    let tenants = "[tenants.t]\npassword = 'p'\nadmin = true\n";
    for other in ["", "[tenants.s]\npassword = 's'\n"] {
        let mut rig = Rig::with(1, 1, |settings| settings.overload.shed = Mode::On);
        rig.put_in_force(tenants);
        let client = rig.signed_in("t", "p");
        let whoami = ["ACL", "WHOAMI"];
        rig.send(client, &[&["MULTI"], &["SET", "k", "1"], &["INFO"], &whoami]);
        rig.send(client, &[&["QOS", "CALL", "USER", "ann", "DEADLINE", "100", "EXEC"]]);
        rig.told(client);
        let (to, _) = rig.shards[0].poll_question().expect("EXEC waits for it");
        rig.wait(Duration::from_millis(60));
        // The tenant gets another number meanwhile.
        rig.put_in_force(&format!("{other}{tenants}"));
        rig.send(client, &[&["GET", "k"], &whoami]);
        rig.shards[0].handle_answer(to, b"$1\r\ni\r\n", rig.now);
        rig.turns();
        assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "EXEC"]);
        if other.is_empty() {
            // The deadline counts from the arrival of `EXEC`.
            rig.wait(Duration::from_millis(50));
            let told = rig.told(client);
            assert!(told.starts_with("-DEADLINE stage=backend ") && told.contains("may have"), "{told}");
            continue;
        }
        for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
            rig.answer_next(reply);
        }
        assert_eq!(rig.told(client), "*3\r\n+OK\r\n$1\r\ni\r\n$5\r\nt/ann\r\n");
        // Later requests are those of the connection again.
        rig.wait(Duration::from_millis(200));
        rig.answer_next("$1\r\n1\r\n");
        assert_eq!(rig.told(client), "$1\r\n1\r\n$1\r\nt\r\n");
    }
}

#[test]
fn a_mistake_in_options_spoils_the_transaction() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    for wrong in [
        &["QOS", "CALL", "TIER", "none", "SET", "k", "1"][..],
        &["QOS", "CALL", "TIER", "batch"],
        &["QOS", "CALL", "QOS", "LIMITS"],
        &["QOS", "CALL", "GET"],
        &["QOS", "LIMITS"],
        &["QOS", "SET", "TIER", "batch"],
    ] {
        rig.send(client, &[&["MULTI"], wrong, &["EXEC"]]);
        let told = rig.told(client);
        assert!(told.starts_with("+OK\r\n-ERR "), "{told}");
        assert!(told.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"), "{told}");
    }
    let wrong: &[&str] = &["QOS", "CALL", "TIER", "none", "EXEC"];
    rig.send(client, &[&["MULTI"], &["SET", "k", "1"], wrong, &["EXEC"]]);
    assert!(rig.told(client).ends_with("-ERR EXEC without MULTI\r\n"), "the transaction is over");
    assert!(rig.at_stores.is_empty());
}

#[test]
fn a_malformed_exec_ends_the_transaction() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["SET", "k", "1"], &["EXEC", "k"], &["EXEC"], &["EXEC", "k"]]);
    let aborted =
        "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n";
    let told = format!("+OK\r\n+QUEUED\r\n{aborted}-ERR EXEC without MULTI\r\n{aborted}");
    assert_eq!(rig.told(client), told);
    assert!(rig.at_stores.is_empty());
}

#[test]
fn replies_are_switched_on_within_a_transaction() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(
        client,
        &[&["CLIENT", "REPLY", "OFF"], &["MULTI"], &["SET", "k", "1"], &["CLIENT", "REPLY", "SKIP"]],
    );
    rig.send(client, &[&["CLIENT", "REPLY", "ON"], &["GET", "k"], &["EXEC"], &["PING"]]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n$1\r\n1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n1\r\n+PONG\r\n", "as Redis answers it");
    // If they were on, the reply is whole, and nothing may be left out of it.
    rig.send(client, &[&["MULTI"], &["CLIENT", "REPLY", "ON"], &["EXEC"]]);
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    for word in ["OFF", "skip"] {
        rig.send(client, &[&["MULTI"], &["CLIENT", "REPLY", word], &["EXEC"], &["PING"]]);
        let refusal = "-ERR CLIENT REPLY cannot stand in a transaction that passes through weir\r\n";
        let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        assert_eq!(rig.told(client), format!("+OK\r\n{refusal}{aborted}+PONG\r\n"));
    }
}

#[test]
fn a_reply_that_is_skipped_may_be_that_to_reset() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["CLIENT", "REPLY", "SKIP"], &["RESET"], &["PING"]]);
    rig.send(client, &[&["CLIENT", "REPLY", "OFF"], &["RESET"], &["PING"]]);
    assert_eq!(rig.told(client), "+PONG\r\n+RESET\r\n+PONG\r\n");
}

#[test]
fn numbers_are_read_as_redis_reads_them() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let no_integer = "-ERR value is not an integer or out of range\r\n";
    let no_version = "-ERR Protocol version is not an integer or out of range\r\n";
    for (words, told) in [
        (["SELECT", "01"], no_integer),
        (["SELECT", "+1"], no_integer),
        (["SELECT", "-1"], "-ERR DB index is out of range\r\n"),
        (
            ["SELECT", "2147483648"],
            "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n",
        ),
        (["SELECT", "99999999999999999999"], no_integer),
        (["HELLO", "03"], no_version),
        (["HELLO", "+3"], no_version),
        (["HELLO", "4"], "-NOPROTO unsupported protocol version\r\n"),
    ] {
        rig.send(client, &[&words]);
        assert_eq!(rig.told(client), told, "{words:?}");
    }
}
