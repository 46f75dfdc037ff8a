//! Tests of MONITOR: clients that watch the requests of others.

use super::neighbours::TWO_TENANTS;
use super::*;
use crate::values::limits::MONITOR_OUTPUT_BYTES_MAX;

/// Returns a test rig (shards with scripted stores and clients) with one store, in which at most `places`
/// clients may be monitors (`MONITOR`) at a time.
fn watched(shards: u16, places: usize) -> Rig {
    let monitors = Arc::new(MonitorBoard::new(places));
    Rig::with(shards, 1, |settings| settings.clients.monitors = Arc::clone(&monitors))
}

impl Rig {
    /// Connects a client whose address has the given port, which lines for monitors show.
    fn client_from(&mut self, shard: usize, port: u16) -> usize {
        let client = self.client(shard);
        let (peer, local) = (format!("10.0.0.1:{port}").into(), "10.0.0.9:7379".into());
        let address = Address { peer, local, is_unix: false };
        let id = self.id(client);
        self.shards[shard].note_client_address(id, address);
        client
    }

    fn monitor(&mut self, shard: usize) -> usize {
        let client = self.client_from(shard, 9_000);
        self.begin_to_watch(client);
        client
    }

    fn begin_to_watch(&mut self, client: usize) {
        self.send(client, &[&["MONITOR"]]);
        assert_eq!(self.told(client), "+OK\r\n");
    }

    /// Returns the lines that a monitor (client that has sent `MONITOR`) got since the last call, without the
    /// time: each from the database and the address on.
    fn shown(&mut self, client: usize) -> Vec<String> {
        let told = self.told(client);
        let lines = told.split_inclusive("\r\n").map(|line| {
            let (time, rest) = line.split_once(" [").expect("a time, then the client");
            let (seconds, micros) = time.split_once('.').expect("a fraction of a second");
            assert_eq!((seconds, micros.len()), ("+1700000000", 6), "{line}");
            rest.strip_suffix("\r\n").expect("a whole line").replacen(']', "", 1)
        });
        lines.collect()
    }

    fn monitors(&self) -> usize {
        self.shards.iter().map(Shard::monitors).sum()
    }

    fn left_out(&self) -> u64 {
        let counted = |shard: &Shard| shard.counters().get(Counter::MonitorLinesLeftOut);
        self.shards.iter().map(counted).sum()
    }
}

/// Returns the number of `shown` lines about requests, and the sum of the numbers that the other lines report
/// as left out.
fn sum(shown: &[String]) -> (u64, u64) {
    let left_out = |line: &String| {
        let number = line.strip_prefix("0 weir:0 \"... ")?.strip_suffix(" lines left out\"")?;
        Some(number.parse::<u64>().expect("a number"))
    };
    let told: Vec<u64> = shown.iter().filter_map(left_out).collect();
    (shown.len() as u64 - told.len() as u64, told.iter().sum())
}

#[test]
fn a_monitor_sees_the_requests_of_all_cores_in_their_order() {
    let mut rig = watched(2, 4);
    let monitor = rig.monitor(0);
    let [near, far] = [rig.client_from(0, 1), rig.client_from(1, 2)];
    let keys = [rig.key(0, 0), rig.key(1, 0)];
    for client in [near, far] {
        rig.send(client, &[&["SET", &keys[0], "a \"b\"\n"], &["get", &keys[1]], &["PING"], &["SELECT", "2"]]);
        rig.answer_first("SET", "+OK\r\n");
        rig.answer_first("get", "$-1\r\n");
        assert_eq!(rig.told(client), "+OK\r\n$-1\r\n+PONG\r\n+OK\r\n");
    }
    let of = |port| {
        [
            format!("0 10.0.0.1:{port} \"SET\" \"{}\" \"a \\\"b\\\"\\n\"", keys[0]),
            format!("0 10.0.0.1:{port} \"get\" \"{}\"", keys[1]),
            format!("0 10.0.0.1:{port} \"PING\""),
            format!("2 10.0.0.1:{port} \"SELECT\" \"2\""),
        ]
    };
    assert_eq!(rig.shown(monitor), [of(1), of(2)].concat());
}

#[test]
fn a_monitor_may_send_other_requests_and_sees_them_too() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    rig.send(monitor, &[&["PING"], &["MONITOR"], &["CLIENT", "INFO"]]);
    let told = rig.told(monitor);
    let mut lines = told.split("\r\n");
    assert!(lines.next().is_some_and(|line| line.ends_with("[0 10.0.0.1:9000] \"PING\"")), "{told}");
    assert_eq!([lines.next(), lines.next()], [Some("+PONG"), Some("+OK")]);
    assert!(told.contains(" flags=O "), "{told}");
    assert_eq!(rig.monitors(), 1);
}

#[test]
fn what_is_refused_is_not_shown_and_neither_is_administration() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.client(0);
    rig.send(
        client,
        &[
            &["GET"],
            &["OBJECT", "NO", "a"],
            &["ASKING"],
            &["CLIENT", "LIST"],
            &["CONFIG", "GET", "save"],
            &["QOS", "CALL", "QOS", "CALL"],
            &["BLPOP", "a", "0"],
        ],
    );
    assert_eq!(rig.shown(monitor), [""; 0]);
}

#[test]
fn a_request_inside_qos_call_is_shown_by_itself() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.client_from(0, 1);
    rig.send(
        client,
        &[
            &["QOS", "CALL", "TIER", "batch", "GET", "k"],
            &["QOS", "CALL", "AUTH", "default", "secret"],
            &["QOS", "EXPLAIN", "AUTH", "secret"],
        ],
    );
    let told = rig.shown(monitor);
    assert_eq!(told[0], "0 10.0.0.1:1 \"GET\" \"k\"");
    assert!(told.len() == 3 && !told.concat().contains("secret"), "{told:?}");
}

#[test]
fn a_transaction_is_shown_when_it_is_carried_out() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.client_from(0, 1);
    let shown = |words: &[&str]| -> Vec<String> {
        words.iter().map(|request| format!("0 10.0.0.1:1 {request}")).collect()
    };
    rig.send(client, &[&["MULTI"], &["ROLE"], &["SET", "k", "v"], &["CLIENT", "ID"], &["GET", "k"]]);
    assert_eq!(rig.shown(monitor), shown(&["\"MULTI\""]));
    rig.send(client, &[&["EXEC"]]);
    let carried_out = ["\"ROLE\"", "\"SET\" \"k\" \"v\"", "\"CLIENT\" \"ID\"", "\"GET\" \"k\"", "\"EXEC\""];
    assert_eq!(rig.shown(monitor), shown(&carried_out));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n+OK\r\n$1\r\nv\r\n"] {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("$1\r\nv\r\n"));
    rig.send(
        client,
        &[&["MULTI"], &["GET", "k"], &["DISCARD"], &["MULTI"], &["GET"], &["GET", "k"], &["EXEC"]],
    );
    let carried_out = ["\"MULTI\"", "\"DISCARD\"", "\"MULTI\"", "\"EXEC\""];
    assert_eq!(rig.shown(monitor), shown(&carried_out), "of a transaction that fails only the ends");
}

#[test]
fn the_end_of_a_transaction_is_shown_in_the_database_that_it_selects() {
    let monitors = Arc::new(MonitorBoard::new(4));
    let mut rig = Rig::with(1, 1, |settings| {
        settings.clients.monitors = Arc::clone(&monitors);
        settings.private_links_max = 4;
    });
    let monitor = rig.monitor(0);
    let client = rig.client_from(0, 1);
    rig.send(client, &[&["MULTI"], &["SET", "k", "v"], &["SELECT", "2"], &["GET", "k"], &["EXEC"]]);
    assert_eq!(
        rig.shown(monitor),
        [
            "0 10.0.0.1:1 \"MULTI\"",
            "0 10.0.0.1:1 \"SET\" \"k\" \"v\"",
            "2 10.0.0.1:1 \"SELECT\" \"2\"",
            "2 10.0.0.1:1 \"GET\" \"k\"",
            "2 10.0.0.1:1 \"EXEC\"",
        ]
    );
}

#[test]
fn a_client_of_a_unix_socket_is_shown_by_its_path() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.client(0);
    let path: Box<str> = "/run/weir.sock:0".into();
    let address = Address { peer: path.clone(), local: path, is_unix: true };
    let id = rig.id(client);
    rig.shards[0].note_client_address(id, address);
    rig.send(client, &[&["PING"], &["CLIENT", "INFO"]]);
    let told = rig.told(client);
    assert!(told.contains(" addr=/run/weir.sock:0 laddr=/run/weir.sock:0 "), "{told}");
    assert!(told.contains(" flags=U "), "{told}");
    assert_eq!(rig.shown(monitor)[0], "0 unix:/run/weir.sock \"PING\"");
}

#[test]
fn a_tenant_sees_its_own_clients_only_and_an_administrator_all() {
    let mut rig = watched(2, 16);
    rig.put_in_force(TWO_TENANTS);
    let [own, root] = [rig.signed_in("acme", "a"), rig.signed_in("root", "r")];
    rig.begin_to_watch(own);
    rig.begin_to_watch(root);
    let [acme, other] = [rig.client_from(1, 1), rig.client_from(1, 2)];
    rig.send(acme, &[&["AUTH", "acme", "a"], &["GET", "acme:1"], &["GET", "secret:1"]]);
    rig.send(other, &[&["HELLO", "2", "AUTH", "root", "r"], &["SET", "secret:2", "secret"]]);
    let seen = rig.shown(own);
    assert_eq!(seen, ["0 10.0.0.1:1 \"GET\" \"acme:1\""]);
    assert_eq!(
        rig.shown(root),
        [
            "0 10.0.0.1:1 \"AUTH\" \"(redacted)\" \"(redacted)\"",
            "0 10.0.0.1:1 \"GET\" \"acme:1\"",
            "0 10.0.0.1:2 \"HELLO\" \"2\" \"AUTH\" \"(redacted)\" \"(redacted)\"",
            "0 10.0.0.1:2 \"SET\" \"secret:2\" \"secret\"",
        ]
    );
    // A monitor that logs in as another tenant sees what that tenant may see, and no more.
    rig.send(root, &[&["AUTH", "acme", "a"]]);
    rig.told(root);
    rig.send(other, &[&["SET", "secret:3", "secret"]]);
    assert_eq!(rig.told(root), "");
    rig.send(own, &[&["AUTH", "root", "r"]]);
    rig.told(own);
    rig.send(other, &[&["GET", "secret:4"]]);
    assert_eq!(rig.shown(own), ["0 10.0.0.1:2 \"GET\" \"secret:4\""]);
}

#[test]
fn under_new_quotas_a_number_stands_for_another_tenant_and_nobody_is_taken_for_it() {
    const AFTER: &str = "[tenants.acme]\npassword = 'a'\n[tenants.before]\npassword = 'b'\n";
    let in_force = |text: &str, version| {
        Arc::new(Quotas::parse("quotas.toml", text).expect("well formed").with_version(version))
    };
    let mut rig = watched(2, 16);
    rig.put_in_force("[tenants.before]\npassword = 'b'\n");
    let monitor = rig.signed_in("before", "b");
    rig.begin_to_watch(monitor);
    let ours = rig.client_from(1, 1);
    rig.send(ours, &[&["AUTH", "before", "b"], &["GET", "a"]]);
    assert_eq!(rig.shown(monitor), ["0 10.0.0.1:1 \"GET\" \"a\""]);
    // The core of the other clients gets the new quotas first.
    let now = rig.now;
    rig.shards[1].handle_quotas(in_force(AFTER, 1), now);
    let acme = rig.client_from(1, 2);
    rig.send(acme, &[&["AUTH", "acme", "a"], &["GET", "secret"]]);
    assert_eq!(rig.told(monitor), "");
    rig.shards[0].handle_quotas(in_force(AFTER, 1), now);
    rig.turns();
    rig.send(acme, &[&["GET", "secret"]]);
    rig.send(ours, &[&["GET", "b"]]);
    assert_eq!(rig.shown(monitor), ["0 10.0.0.1:1 \"GET\" \"b\""]);
    // A monitor whose tenant is removed is closed, as a subscriber is.
    let fewer = "[tenants.acme]\npassword = 'a'\n";
    for shard in &mut rig.shards {
        shard.handle_quotas(in_force(fewer, 2), now);
    }
    rig.turns();
    assert_eq!((rig.monitors(), rig.shards[0].clients_open()), (0, 0));
}

#[test]
fn a_monitor_that_does_not_read_holds_little_and_is_told_what_it_missed() {
    let mut rig = watched(2, 4);
    let monitor = rig.monitor(0);
    let client = rig.client(1);
    rig.reading = Reading::Never;
    let word = "x".repeat(900);
    let requests = 2_000;
    for _ in 0..requests {
        rig.send(client, &[&["ECHO", &word]]);
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(300));
        // Replies to the other client are taken at once, so that only the monitor's memory counts.
        let replies = std::mem::take(&mut rig.untaken);
        for (shard, owner, segment) in replies {
            if shard == 1 {
                rig.take(shard, owner, segment);
            } else {
                rig.untaken.push((shard, owner, segment));
            }
        }
    }
    rig.told(client);
    rig.shards[0].weigh_clients();
    let held = rig.shards[0].clients_bytes();
    assert!(held < MONITOR_OUTPUT_BYTES_MAX + 100_000, "{held}");
    rig.take_all();
    let (lines, left_out) = sum(&rig.shown(monitor));
    assert_eq!((lines + left_out, rig.left_out()), (requests, left_out));
    assert!(lines > 200 && left_out > 1_000, "{lines} shown, {left_out} left out");
    rig.send(client, &[&["PING"]]);
    assert_eq!(sum(&rig.shown(monitor)), (1, 0), "it goes on");
}

#[test]
fn what_a_core_writes_in_a_moment_has_a_bound() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.client(0);
    let requests = 10_000;
    rig.send(client, &vec![&["PING"][..]; requests]);
    let told = rig.told(monitor);
    assert!(told.len() < 300 * 1_024, "{} bytes", told.len());
    rig.wait(Duration::from_millis(200));
    let lines = told.matches("\"PING\"").count() as u64;
    let (none, left_out) = sum(&rig.shown(monitor));
    assert_eq!((none, lines + left_out, rig.left_out()), (0, requests as u64, left_out));
    assert!(left_out > 0, "more was asked than is shown at once");
    rig.send(client, &[&["PING"]]);
    assert_eq!(sum(&rig.shown(monitor)), (1, 0), "it goes on");
}

#[test]
fn a_long_transaction_is_shown_in_part() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.client(0);
    let requests = limits::MONITOR_TRANSACTION_MAX + 7;
    rig.send(client, &[&["MULTI"]]);
    rig.send(client, &vec![&["GET", "k"][..]; requests]);
    rig.told(monitor);
    rig.send(client, &[&["EXEC"]]);
    rig.wait(Duration::from_millis(200));
    assert_eq!(sum(&rig.shown(monitor)), (requests as u64 - 7 + 1, 7));
}

#[test]
fn the_tenant_of_a_monitor_pays_for_its_lines() {
    let spent = |watches: bool| {
        let mut rig = watched(1, 4);
        rig.put_in_force("[default]\nru_per_second = 1_000_000\n");
        let [watcher, client] = [rig.client(0), rig.client(0)];
        rig.begin_to_watch(watcher);
        if !watches {
            rig.send(watcher, &[&["RESET"]]);
        }
        let word = "x".repeat(900);
        for _ in 0..100 {
            rig.send(client, &[&["PING", &word]]);
            rig.wait(Duration::from_millis(10));
        }
        let demands = rig.reports.iter().flat_map(|report| &report.demands);
        demands.map(|demand| demand.spent).sum::<i64>()
    };
    let lines = spent(true) - spent(false);
    assert!(lines > 0, "{lines}");
}

#[test]
fn nothing_is_written_while_nobody_watches() {
    let mut rig = watched(2, 4);
    rig.put_in_force(TWO_TENANTS);
    let monitor = rig.signed_in("acme", "a");
    let [ours, other] = [rig.client(1), rig.client(1)];
    rig.send(ours, &[&["AUTH", "acme", "a"]]);
    rig.send(other, &[&["AUTH", "root", "r"]]);
    let batches = |rig: &Rig| rig.shards[1].counters().get(Counter::BatchesSent);
    let sent_for = |rig: &mut Rig, client| {
        let before = batches(rig);
        rig.send(client, &[&["PING"]]);
        batches(rig) - before
    };
    assert_eq!((sent_for(&mut rig, ours), sent_for(&mut rig, other)), (0, 0));
    rig.begin_to_watch(monitor);
    assert_eq!((sent_for(&mut rig, ours), sent_for(&mut rig, other)), (1, 0), "only for its own tenant");
    rig.send(monitor, &[&["RESET"]]);
    assert_eq!((sent_for(&mut rig, ours), sent_for(&mut rig, other)), (0, 0));
}

#[test]
fn a_monitor_that_leaves_gives_its_place_back() {
    let mut rig = watched(2, 1);
    let client = rig.client(1);
    for number in 0..5 {
        let monitor = rig.monitor(0);
        rig.send(client, &[&["MONITOR"]]);
        let refusal = "-OVERLOADED reason=monitors limit=1 (--monitors) retry_after_ms=1000\r\n";
        assert_eq!((rig.told(client).as_str(), rig.monitors()), (refusal, 1));
        let id = rig.id(monitor);
        match number {
            0 => {
                rig.send(monitor, &[&["RESET"], &["ECHO", "a"]]);
                assert!(rig.told(monitor).ends_with("+RESET\r\n$1\r\na\r\n"));
            }
            1 => {
                rig.send(monitor, &[&["QUIT"]]);
                assert!(rig.told(monitor).ends_with("+OK\r\n"));
            }
            2 => rig.shards[0].handle_client_lost(id),
            3 => rig.shards[0].handle_client_end(id, rig.now),
            _ => rig.shards[0].handle_client_revoked(id, rig.now),
        }
        rig.turns();
        assert_eq!(rig.monitors(), 0, "{number}");
        rig.send(client, &[&["PING"]]);
        assert_eq!((rig.told(client).as_str(), rig.told(monitor).as_str()), ("+PONG\r\n", ""));
    }
}

#[test]
fn a_monitor_that_begins_anew_in_the_same_turn_has_one_place() {
    let mut rig = watched(1, 4);
    let [monitor, client] = [rig.client(0), rig.client(0)];
    let [begin, end] = ["MONITOR", "RESET"].map(|word| request(&[word]));
    rig.raw(monitor, &[begin.clone(), [end, begin].concat().repeat(10)].concat());
    assert!(rig.told(monitor).ends_with("+RESET\r\n+OK\r\n"));
    assert_eq!(rig.monitors(), 1);
    rig.send(client, &[&["PING"]]);
    assert_eq!(rig.told(monitor).matches("\"PING\"").count(), 1);
}

#[test]
fn logins_take_no_monitor_beyond_the_part_of_a_tenant() {
    const QUOTAS: &str =
        "[default]\n[tenants.acme]\npassword = 'a'\n[tenants.op]\npassword = 'o'\nadmin = true\n";
    let refusal = "-OVERLOADED reason=monitors limit=8 (--monitors) retry_after_ms=1000\r\n";
    let mut rig = watched(1, 8);
    rig.put_in_force(QUOTAS);
    let [first, second] = [rig.monitor(0), rig.monitor(0)];
    let third = rig.signed_in("op", "o");
    rig.begin_to_watch(third);
    let login = request(&["AUTH", "acme", "a"]);
    for client in [first, second, third] {
        let (shard, id) = rig.clients[client];
        rig.shards[shard].handle_client_bytes(id, &login, rig.now);
    }
    rig.turns();
    let are_refused = [first, second, third].map(|client| rig.told(client).ends_with(refusal));
    assert_eq!(are_refused, [false, false, true], "all three logins are of one turn");
    for login in [
        &["AUTH", "acme", "a"][..],
        &["HELLO", "3", "AUTH", "acme", "a"],
        &["QOS", "CALL", "AUTH", "acme", "a"],
    ] {
        rig.send(third, &[login]);
        assert!(rig.told(third).ends_with(refusal), "{login:?}");
    }
    rig.send(first, &[&["PING"]]);
    assert!(rig.told(third).ends_with("\"PING\"\r\n"), "it is still an administrator's");
    rig.send(third, &[&["RESET"], &["AUTH", "acme", "a"], &["MONITOR"]]);
    assert_eq!(rig.told(third), format!("+RESET\r\n+OK\r\n{refusal}"));
    rig.send(second, &[&["RESET"]]);
    // A login whose HELLO fails takes no place, and the monitor sees what it saw before.
    let late = rig.monitor(0);
    rig.send(late, &[&["HELLO", "2", "AUTH", "acme", "a", "SETNAME", "a b"], &["PING"]]);
    assert!(rig.told(late).ends_with("\"PING\"\r\n+PONG\r\n"));
    rig.send(third, &[&["MONITOR"]]);
    assert_eq!((rig.told(third).as_str(), rig.monitors()), ("+OK\r\n", 3));
}

#[test]
fn without_places_it_is_not_supported() {
    let mut rig = watched(1, 0);
    let client = rig.client(0);
    rig.send(client, &[&["MONITOR"], &["PING"]]);
    let refusal = "-ERR MONITOR is not supported by weir: it shows the requests of other clients, and weir was started with --monitors 0\r\n";
    assert_eq!(rig.told(client), format!("{refusal}+PONG\r\n"));
}

#[test]
fn an_idle_monitor_is_not_closed() {
    let monitors = Arc::new(MonitorBoard::new(1));
    let mut rig = Rig::with(1, 1, |settings| {
        settings.clients.monitors = Arc::clone(&monitors);
        settings.idle_timeout = Some(Duration::from_secs(5));
    });
    let (monitor, client) = (rig.monitor(0), rig.client(0));
    rig.wait(Duration::from_secs(20));
    assert_eq!((rig.monitors(), rig.shards[0].clients_open()), (1, 1));
    let id = rig.id(monitor);
    assert_eq!(rig.shards[0].readiness(id), Readiness::Unfinished, "it does not move to another process");
    assert_eq!(rig.told(client), "");
}

#[test]
fn requests_over_http_are_shown_and_http_cannot_watch() {
    let mut rig = watched(1, 4);
    let monitor = rig.monitor(0);
    let client = rig.http_client(0);
    rig.raw(client, b"GET /v1/keys/k HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(rig.shown(monitor), ["0  \"GET\" \"k\""]);
    rig.answer_next("$-1\r\n");
    rig.told(client);
    let body = r#"["MONITOR"]"#;
    let length = body.len();
    rig.raw(
        client,
        format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes(),
    );
    let told = rig.told(client);
    assert!(told.starts_with("HTTP/1.1 4") && rig.monitors() == 1, "{told}");
}
