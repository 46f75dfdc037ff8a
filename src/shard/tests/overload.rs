//! Tests of concurrency windows, queues, stalls and deadlines, as clients see them.

use super::*;

/// The number of requests that are sent at once to a backend without known response times, of a window of 64:
/// a tenth is reserved for critical requests.
const AT_ONCE: usize = 58;

fn crowded(shards: u16, backends: u16, change: impl Fn(&mut OverloadSettings)) -> Rig {
    let mut overload = OverloadSettings::new(shards, backends);
    change(&mut overload);
    Rig::with(shards, backends, |settings| settings.overload = overload.clone())
}

/// Encodes GETs of numbered keys whose home (the core through which their requests pass) is the core `home`.
fn gets(rig: &Rig, home: u16, numbers: std::ops::Range<usize>) -> Vec<u8> {
    let key = rig.key(home, 0);
    numbers.flat_map(|number| request(&["GET", &format!("{{{key}}}:{number}:")])).collect()
}

fn number_of(frame: &str) -> usize {
    frame.split(':').nth(1).and_then(|number| number.parse().ok()).expect("a numbered key")
}

fn waiting(rig: &Rig) -> usize {
    rig.shards.iter().map(Shard::requests_waiting).sum()
}

fn replies(text: &str) -> Vec<&str> {
    text.split_terminator("\r\n").filter(|line| !line.starts_with('$') || *line == "$-1").collect()
}

/// Answers requests one by one, oldest first, 100 µs apart, until none is left. Returns the numbers of their
/// keys in that order.
fn serve_all(rig: &mut Rig) -> Vec<usize> {
    let mut served = Vec::new();
    while let Some(sent) = rig.at_stores.first() {
        served.push(number_of(&sent.frame));
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(100));
        rig.answer_next("$-1\r\n");
    }
    served
}

#[test]
fn what_there_is_no_room_for_waits_and_goes_on_in_the_order_sent() {
    for (shards, home) in [(1, 0), (2, 0), (2, 1)] {
        let mut rig = crowded(shards, 1, |_| {});
        let client = rig.client(0);
        let bytes = gets(&rig, home, 0..2_000);
        rig.raw(client, &bytes);
        let first = if shards == 1 { AT_ONCE } else { 32 - 3 };
        assert_eq!(rig.at_stores.len(), first);
        let waits = waiting(&rig);
        assert!((64 - AT_ONCE..=64).contains(&waits), "no more is taken on of who waits: {waits}");
        assert_eq!(serve_all(&mut rig), (0..2_000).collect::<Vec<_>>());
        let told = rig.told(client);
        assert!(replies(&told).len() == 2_000 && replies(&told).iter().all(|line| *line == "$-1"));
        assert_eq!((waiting(&rig), rig.owed()), (0, 0));
    }
}

#[test]
fn a_critical_request_overtakes_others_and_none_of_its_own_connection() {
    for shards in [1, 2] {
        let mut rig = crowded(shards, 1, |_| {});
        rig.put_in_force("[default]\ntier = 'critical'\n");
        let (crowd, client, other) = (rig.client(0), rig.client(0), rig.client(0));
        rig.send(crowd, &[&["QOS", "SET", "TIER", "standard"]]);
        let bytes = gets(&rig, 0, 0..80);
        rig.raw(crowd, &bytes);
        let first = rig.at_stores.len();
        let key = format!("{{{}}}:100:", rig.key(0, 0));
        let low: &[&str] = &["QOS", "CALL", "TIER", "sheddable", "SET", &key, "1"];
        rig.send(client, &[low, &["QOS", "CALL", "TIER", "critical", "SET", &key, "2"], &["DEL", &key]]);
        assert_eq!(rig.at_stores.len(), first, "all of them wait behind the first");
        rig.send(other, &[&["QOS", "CALL", "TIER", "critical", "GET", &key]]);
        assert_eq!(rig.at_stores.len(), first + 1, "the rest of the window is reserved for it");
        let mut sent = Vec::new();
        while let Some(next) = rig.at_stores.first() {
            if next.frame.contains(":100:") && !next.frame.contains("GET") {
                sent.push(next.frame.clone());
            }
            rig.answer_next("$-1\r\n");
        }
        let expected = [vec!["SET", &key, "1"], vec!["SET", &key, "2"], vec!["DEL", &key]];
        assert_eq!(sent, expected.map(|words| String::from_utf8(request(&words)).expect("text")));
    }
}

#[test]
fn many_long_pipelines_that_arrive_at_once_are_held_back_and_not_refused() {
    for (shards, home, number) in [(1, 0, 40), (2, 0, 40), (2, 1, 40), (2, 0, 120), (2, 0, 240)] {
        let mut rig = crowded(shards, 1, |overload| overload.queue_limit.requests = 1_000);
        let clients: Vec<usize> =
            (0..number).map(|number| rig.client(number % usize::from(shards))).collect();
        let (bytes, now) = (gets(&rig, home, 0..100), rig.now);
        for client in &clients {
            let (shard, id) = rig.clients[*client];
            rig.shards[shard].handle_client_bytes(id, &bytes, now);
        }
        rig.turns();
        let waits = waiting(&rig);
        assert!(waits > 40 && waits < 1_000, "{waits}");
        while !rig.at_stores.is_empty() {
            rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(10));
            rig.answer_next("$-1\r\n");
        }
        for client in clients {
            let told = rig.told(client);
            assert!(
                replies(&told).len() == 100 && replies(&told).iter().all(|line| *line == "$-1"),
                "{told}"
            );
        }
    }
}

#[test]
fn who_matters_less_makes_way_and_who_comes_too_late_is_told_when_to_come_back() {
    let mut rig = crowded(1, 1, |overload| overload.queue_limit.requests = 10);
    let [filler, standard] = [0; 2].map(|_| rig.client(0));
    let lesser: Vec<usize> = (0..12).map(|_| rig.client(0)).collect();
    let bytes = gets(&rig, 0, 0..AT_ONCE);
    rig.raw(filler, &bytes);
    for (number, lesser) in lesser.iter().enumerate() {
        rig.send(*lesser, &[&["QOS", "SET", "TIER", "batch"]]);
        assert_eq!(rig.told(*lesser), "+OK\r\n");
        let bytes = gets(&rig, 0, 100 + number..101 + number);
        rig.raw(*lesser, &bytes);
    }
    assert_eq!(waiting(&rig), 10);
    let refused = "-OVERLOADED reason=queue backend=store0 retry_after_ms=10";
    for number in 200..203 {
        let others = rig.client(0);
        let bytes = gets(&rig, 0, number..number + 1);
        rig.raw(if number == 200 { standard } else { others }, &bytes);
    }
    assert_eq!(waiting(&rig), 10, "three have made way");
    let order = serve_all(&mut rig);
    let after: Vec<usize> = order.into_iter().skip(AT_ONCE).collect();
    assert_eq!(after, [200, 201, 202, 100, 101, 102, 103, 104, 105, 106]);
    let told: Vec<String> = lesser.iter().map(|lesser| rig.told(*lesser)).collect();
    let told: Vec<&str> = told.iter().flat_map(|told| replies(told)).collect();
    assert_eq!(told[..7], ["$-1"; 7]);
    assert_eq!(told[7..], [refused; 5], "three that had waited, and two that came last");
    let told = rig.shards[0].pressures().get(Pressure::Queue, crate::values::Tier::Batch);
    assert_eq!(told, 5);
    let refused: Vec<u64> = rig.shards[0].bulkheads().map(|own| own.refused).collect();
    assert_eq!(refused, [5; crate::shard::BULKHEADS], "of the one store there is");
}

#[test]
fn without_a_queue_it_is_refused_and_without_a_window_it_goes_on() {
    let mut rig = crowded(1, 1, |overload| overload.queue = Mode::Off);
    let client = rig.client(0);
    let bytes = gets(&rig, 0, 0..AT_ONCE + 2);
    rig.raw(client, &bytes);
    serve_all(&mut rig);
    let told = rig.told(client);
    let refused = "-OVERLOADED reason=window backend=store0 retry_after_ms=10";
    assert_eq!(replies(&told)[AT_ONCE..], [refused; 2]);
    for mode in [Mode::Off, Mode::Shadow] {
        let mut rig = crowded(1, 1, |overload| overload.window = mode);
        for number in 0..4 {
            let client = rig.client(0);
            let bytes = gets(&rig, 0, 50 * number..50 * (number + 1));
            rig.raw(client, &bytes);
        }
        assert_eq!(rig.at_stores.len(), 200);
        let would_wait = rig.shards[0].counters().get(Counter::WaitedInShadow);
        assert_eq!(would_wait > 100, mode == Mode::Shadow);
    }
}

#[test]
fn in_shadow_only_those_count_as_waiting_that_find_the_window_full() {
    let mut rig = crowded(1, 1, |overload| overload.window = Mode::Shadow);
    let [client, other] = [rig.client(0), rig.client(0)];
    // Replies take 2 ms, and lately 22 ms.
    for number in 0..60 {
        let bytes = gets(&rig, 0, number..number + 1);
        rig.raw(client, &bytes);
        rig.wait(Duration::from_millis(if number < 40 { 2 } else { 22 }));
        rig.answer_next("$-1\r\n");
    }
    let would_wait = |rig: &Rig| rig.shards[0].counters().get(Counter::WaitedInShadow);
    // The deadline could be missed if many requests were in flight, so the request is looked at closely.
    let bytes = gets(&rig, 0, 100..101);
    rig.raw(other, &bytes);
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "60", "GET", "a"]]);
    assert_eq!((rig.at_stores.len(), would_wait(&rig)), (2, 0));
    let bytes = gets(&rig, 0, 101..163);
    rig.raw(other, &bytes);
    assert_eq!((rig.at_stores.len(), would_wait(&rig)), (64, 0));
    rig.send(client, &[&["GET", "b"]]);
    assert_eq!((rig.at_stores.len(), would_wait(&rig)), (65, 1));
}

#[test]
fn a_backend_that_stands_still_keeps_nobody_waiting_and_nothing_overtakes_what_it_may_do_yet() {
    for (shards, home) in [(1, 0), (2, 1)] {
        let mut rig = crowded(shards, 1, |_| {});
        let [client, other] = [rig.client(0), rig.client(0)];
        let key = rig.key(home, 0);
        rig.send(client, &[&["GET", &key]]);
        rig.answer_next("$-1\r\n");
        rig.told(client);
        rig.send(client, &[&["SET", &key, "1"], &["GET", &key]]);
        rig.wait(Duration::from_millis(400));
        assert_eq!(rig.told(client), "", "there is hope yet");
        rig.send(other, &[&["GET", &key]]);
        assert!(rig.told(other).starts_with("-OVERLOADED reason=stalled backend=store0 retry_after_ms="));
        rig.wait(Duration::from_millis(700));
        let told = rig.told(client);
        let told = replies(&told);
        let unsure = " (it may have happened)";
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.iter().all(|line| line.starts_with("-OVERLOADED reason=stalled backend=store0 ")));
        assert!(told[0].ends_with(unsure) && !told[1].ends_with(unsure), "{told:?}");
        // The transaction needs another connection to the store.
        rig.send(client, &[&["MULTI"], &["GET", &key], &["EXEC"]]);
        let told = rig.told(client);
        assert!(told.contains("-OVERLOADED reason=stalled"), "{told}");
        assert_eq!(rig.at_stores.len(), 2);
        rig.answer_next("+OK\r\n");
        rig.answer_next("$1\r\n1\r\n");
        assert_eq!(rig.told(client), "", "it was told already");
        rig.send(client, &[&["MULTI"], &["GET", &key], &["EXEC"]]);
        assert_eq!(rig.words_at_stores(), ["MULTI", "GET", "EXEC"], "all of it is settled");
        rig.send(other, &[&["GET", &key]]);
        assert_eq!(rig.words_at_stores().len(), 4);
        assert_eq!(rig.told(other), "");
    }
}

#[test]
fn a_connection_that_is_lost_after_all_settles_what_was_answered() {
    let mut rig = crowded(1, 1, |_| {});
    let client = rig.client(0);
    rig.send(client, &[&["SET", "a", "1"]]);
    rig.wait(Duration::from_millis(1_300));
    assert!(rig.told(client).contains("(it may have happened)"));
    rig.lose("SET");
    assert_eq!(rig.told(client), "");
    rig.send(client, &[&["MULTI"], &["GET", "a"], &["EXEC"], &["GET", "a"]]);
    rig.wait(Duration::from_millis(100));
    assert_eq!(rig.words_at_stores(), ["MULTI", "GET", "EXEC"]);
    assert_eq!(rig.owed(), 3);
}

#[test]
fn what_touches_no_store_passes_while_a_write_is_unsettled_and_no_other_dialect_overtakes_it() {
    for (shards, home) in [(1, 0), (2, 1)] {
        let mut rig = crowded(shards, 1, |_| {});
        let client = rig.client(0);
        let key = rig.key(home, 0);
        rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "SET", &key, "1"]]);
        rig.wait(Duration::from_millis(60));
        assert!(rig.told(client).ends_with("(it may have happened)\r\n"));
        for (words, wanted) in [
            (&["HELLO"][..], "*14\r\n$6\r\nserver"),
            (&["HELLO", "2", "SETNAME", "cart"], "*14\r\n$6\r\nserver"),
            (&["HELLO", "4"], "-NOPROTO"),
            (&["EXEC"], "-ERR EXEC without MULTI"),
            (&["CLIENT", "GETNAME"], "$4\r\ncart"),
            (&["RESET"], "+RESET"),
            (&["PING"], "+PONG"),
        ] {
            rig.send(client, &[words]);
            let told = rig.told(client);
            assert!(told.starts_with(wanted), "{words:?}: {told}");
        }
        rig.send(client, &[&["MULTI"], &["EXEC"], &["MULTI"], &["CLIENT", "ID"], &["EXEC"]]);
        assert_eq!(rig.told(client), "+OK\r\n*0\r\n+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
        rig.send(client, &[&["MULTI"], &["GET"], &["EXEC"]]);
        assert!(rig.told(client).contains("-EXECABORT"));
        // A later request on the same connection is sent, but not one over another connection.
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.words_at_stores(), ["SET", "GET"]);
        rig.send(client, &[&["MULTI"], &["GET", &key], &["EXEC"]]);
        rig.answer_next("+OK\r\n");
        rig.answer_next("$1\r\n1\r\n");
        let told = rig.told(client);
        assert!(told.starts_with("$1\r\n1\r\n+OK\r\n+QUEUED\r\n-OVERLOADED reason=stalled "), "{told}");
        // Another RESP version has connections of its own.
        rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "SET", &key, "2"]]);
        rig.wait(Duration::from_millis(60));
        rig.told(client);
        rig.send(client, &[&["HELLO", "3"], &["GET", &key], &["HELLO", "2"], &["GET", &key]]);
        let told = rig.told(client);
        assert!(
            told.starts_with("%7\r\n") && told.matches("-OVERLOADED reason=stalled").count() == 2,
            "{told}"
        );
        assert_eq!(rig.words_at_stores(), ["SET"]);
        rig.answer_next("+OK\r\n");
        rig.send(client, &[&["HELLO", "3"], &["GET", &key]]);
        assert!(rig.words_at_stores().contains(&"HELLO"), "a new connection");
        rig.answer_first("HELLO", "%1\r\n+proto\r\n:3\r\n");
        rig.answer_first("GET", "$1\r\n2\r\n");
        assert!(rig.told(client).ends_with("$1\r\n2\r\n"));
    }
}

#[test]
fn only_a_request_that_was_alone_keeps_back_all_later_ones_once_it_is_answered_early() {
    let mut rig = crowded(1, 1, |_| {});
    let client = rig.client(0);
    // DBSIZE waits for the reply to GET when that is late, and then would overtake it.
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "GET", "a"], &["DBSIZE"]]);
    rig.wait(Duration::from_millis(60));
    let told = rig.told(client);
    assert!(
        told.starts_with("-DEADLINE stage=backend waited_ms=50\r\n-OVERLOADED reason=stalled "),
        "{told}"
    );
    // A request that is sent behind the late one cannot overtake it.
    rig.send(client, &[&["GET", "b"]]);
    assert_eq!(rig.words_at_stores(), ["GET", "GET"]);
    rig.answer_next("$1\r\na\r\n");
    rig.answer_next("$1\r\nb\r\n");
    assert_eq!(rig.told(client), "$1\r\nb\r\n");
    // Requests over any connection could overtake one that had to be alone.
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "DBSIZE"]]);
    rig.wait(Duration::from_millis(60));
    assert!(rig.told(client).starts_with("-DEADLINE stage=backend "));
    rig.send(client, &[&["GET", "b"]]);
    let told = rig.told(client);
    assert!(told.starts_with("-OVERLOADED reason=stalled "), "{told}");
    assert_eq!(rig.words_at_stores(), ["DBSIZE"]);
    rig.answer_next(":1\r\n");
    rig.send(client, &[&["GET", "b"]]);
    assert_eq!(rig.words_at_stores(), ["GET"]);
}

#[test]
fn all_but_reads_may_have_happened_when_a_deadline_passes_at_the_store() {
    for (words, may_have_happened) in [
        (&["SET", "a", "1"][..], true),
        (&["PUBLISH", "news", "m"], true),
        (&["SPUBLISH", "news", "m"], true),
        (&["SCRIPT", "FLUSH"], true),
        (&["GET", "a"], false),
        (&["DBSIZE"], false),
    ] {
        let mut rig = crowded(1, 1, |_| {});
        let client = rig.client(0);
        let call = [&["QOS", "CALL", "DEADLINE", "50"][..], words].concat();
        rig.send(client, &[&call]);
        rig.wait(Duration::from_millis(60));
        let unsure = if may_have_happened { " (it may have happened)" } else { "" };
        let expected = format!("-DEADLINE stage=backend waited_ms=50{unsure}\r\n");
        assert_eq!(rig.told(client), expected, "{words:?}");
    }
}

#[test]
fn a_deadline_counts_from_the_arrival_however_long_a_request_waits_to_be_decoded() {
    let mut rig = crowded(1, 1, |_| {});
    let client = rig.client(0);
    // As many requests fill the window and the queue as one client may have there.
    let bytes = gets(&rig, 0, 0..AT_ONCE + 64);
    rig.raw(client, &bytes);
    let key = rig.key(0, 0);
    for (number, deadline) in [(900, "50"), (901, "1000"), (902, "1000")] {
        let key = format!("{{{key}}}:{number}:");
        rig.send(client, &[&["QOS", "CALL", "DEADLINE", deadline, "GET", &key]]);
        rig.wait(Duration::from_millis(20));
    }
    let served = serve_all(&mut rig);
    assert_eq!(served[AT_ONCE + 64..], [901, 902]);
    let told = rig.told(client);
    let told = replies(&told);
    assert!(told[AT_ONCE + 64].starts_with("-DEADLINE stage=arrival "), "{told:?}");
    assert_eq!(told[AT_ONCE + 65..], ["$-1", "$-1"]);
}

#[test]
fn nobody_waits_beyond_a_deadline_wherever_the_request_is_then() {
    let mut rig = crowded(1, 2, |_| {});
    let [client, filler] = [rig.client(0), rig.client(0)];
    let [key, _] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "50"]]);
    rig.told(client);
    // The deadline passes while the request is in flight.
    rig.send(client, &[&["SET", &key, "1"]]);
    rig.wait(Duration::from_millis(49));
    assert_eq!(rig.told(client), "");
    rig.wait(Duration::from_millis(10));
    assert_eq!(rig.told(client), "-DEADLINE stage=backend waited_ms=50 (it may have happened)\r\n");
    // Later requests for the same key are sent behind the late one.
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["SET", "GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), "$1\r\n1\r\n");
    // The deadline passes while the request is in the queue.
    let bytes = gets(&rig, 0, 0..AT_ONCE + 20);
    rig.raw(filler, &bytes);
    rig.send(client, &[&["GET", &key]]);
    rig.wait(Duration::from_millis(60));
    let told = rig.told(client);
    assert!(told.starts_with("-DEADLINE stage=queue waited_ms=5"), "{told}");
    serve_all(&mut rig);
    // The request is held behind an earlier one of its connection, whose deadline is far away.
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "100000"], &["DBSIZE"]]);
    rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "DBSIZE"]]);
    rig.wait(Duration::from_millis(100));
    rig.answer_first("DBSIZE", ":1\r\n");
    rig.answer_first("DBSIZE", ":1\r\n");
    let told = rig.told(client);
    assert!(told.starts_with("+OK\r\n:2\r\n") && told.contains("-DEADLINE stage=arrival"), "{told}");
    assert_eq!(rig.at_stores.len(), 0);
}

#[test]
fn without_shedding_deadlines_are_no_ones_business() {
    let mut rig = crowded(1, 1, |overload| overload.shed = Mode::Off);
    let client = rig.client(0);
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "50"], &["GET", "a"]]);
    rig.wait(Duration::from_millis(90));
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n1\r\n");
}

#[test]
fn in_shadow_deadlines_are_counted_once_and_nobody_is_told() {
    let mut rig = crowded(1, 1, |overload| overload.shed = Mode::Shadow);
    let client = rig.client(0);
    let late = |rig: &Rig| rig.shards[0].counters().get(Counter::LateInShadow);
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "50"], &["GET", "a"], &["GET", "b"]]);
    rig.wait(Duration::from_millis(40));
    assert_eq!(late(&rig), 0);
    rig.wait(Duration::from_millis(40));
    assert_eq!(late(&rig), 2, "they are with the backend");
    rig.answer_next("$1\r\n1\r\n");
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // The window knows by now how long replies take.
    pace(&mut rig, client, Duration::from_secs(2), Duration::from_millis(80));
    rig.told(client);
    let before = late(&rig);
    rig.send(client, &[&["GET", "a"]]);
    assert_eq!(late(&rig), before + 1, "hopeless when it comes");
    rig.wait(Duration::from_millis(80));
    let counted = late(&rig);
    rig.wait(Duration::from_millis(80));
    assert_eq!(late(&rig), counted);
    // With nothing in flight, the next request is tried however long replies take, and counted when it is
    // late.
    while !rig.at_stores.is_empty() {
        rig.answer_next("$1\r\n1\r\n");
    }
    let before = late(&rig);
    rig.send(client, &[&["GET", "a"]]);
    assert_eq!(late(&rig), before);
    rig.wait(Duration::from_millis(80));
    assert_eq!(late(&rig), before + 1);
}

/// Returns the words of each request that stores have received and not answered, as one text.
fn at_stores(rig: &Rig) -> Vec<String> {
    let words = |sent: &Sent| sent.frame.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ");
    rig.at_stores.iter().map(words).collect()
}

/// Returns a test rig (shards with scripted stores and clients) whose stores are weirs themselves, which have given its
/// connections this tier (importance), with open connections; and a client with a deadline of 50 ms.
fn before_weirs(change: impl Fn(&mut OverloadSettings), tier: &'static str) -> (Rig, usize) {
    let mut rig = crowded(1, 1, change);
    rig.inner = Some(tier);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["QOS", "SET", "DEADLINE", "50"]]);
    rig.answer_next("$-1\r\n");
    rig.told(client);
    (rig, client)
}

#[test]
fn a_weir_behind_is_told_the_rest_of_deadlines() {
    let (mut rig, client) = before_weirs(|_| {}, "standard");
    let passed_on = |rig: &Rig| rig.shards[0].counters().get(Counter::DeadlinesPassedOn);
    rig.send(client, &[&["GET", "a"], &["MGET", "a", "b"], &["QOS", "CALL", "TIER", "batch", "DBSIZE"]]);
    let told = ["QOS CALL DEADLINE 50 GET a", "QOS CALL DEADLINE 50 MGET a b"];
    assert_eq!(at_stores(&rig), told);
    rig.wait(Duration::from_millis(20));
    rig.answer_next("$-1\r\n");
    rig.answer_next("*2\r\n$-1\r\n$-1\r\n");
    assert_eq!(
        at_stores(&rig),
        ["QOS CALL DEADLINE 30 TIER batch DBSIZE"],
        "20 ms were over before it was sent"
    );
    rig.answer_next(":1\r\n");
    assert_eq!(passed_on(&rig), 3);
    rig.told(client);
    // A transaction is sent without a deadline, and so are large requests and those of clients without a
    // deadline.
    let large = "x".repeat(limits::COPY_BYTES_MAX + 1);
    let other = rig.client(0);
    rig.send(client, &[&["MULTI"], &["GET", "a"], &["EXEC"]]);
    rig.send(other, &[&["GET", "a"], &["QOS", "SET", "DEADLINE", "50"], &["SET", "a", &large]]);
    let sent = at_stores(&rig);
    assert_eq!(sent[..4], ["MULTI", "GET a", "EXEC", "GET a"]);
    assert_eq!((sent[4].as_str(), passed_on(&rig)), (format!("SET a {large}").as_str(), 3));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n$-1\r\n", "$-1\r\n", "+OK\r\n"] {
        rig.answer_next(reply);
    }
    // A request that was queued is sent with the time that is left of its deadline then.
    let bytes = gets(&rig, 0, 0..AT_ONCE);
    rig.raw(other, &bytes);
    rig.send(client, &[&["GET", "late"]]);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_millis(12));
    rig.answer_next("$-1\r\n");
    assert_eq!(at_stores(&rig).last().map(String::as_str), Some("QOS CALL DEADLINE 38 GET late"));
}

#[test]
fn a_tier_is_told_as_long_as_the_weir_behind_takes_it() {
    let (mut rig, client) = before_weirs(|_| {}, "critical");
    rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
    assert_eq!(at_stores(&rig)[0], "QOS CALL DEADLINE 50 TIER standard GET a");
    rig.answer_next("-ERR QOS TIER 'standard': above 'batch', which is this tenant's\r\n");
    rig.send(client, &[&["GET", "c"]]);
    assert_eq!(at_stores(&rig)[1], "QOS CALL DEADLINE 50 GET c");
}

#[test]
fn what_a_script_says_of_the_weir_behind_is_not_believed() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.overload = OverloadSettings::new(1, 1);
        settings.heavy_links = 0;
    });
    rig.inner = Some("critical");
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["QOS", "SET", "DEADLINE", "50"]]);
    rig.answer_next("$-1\r\n");
    rig.told(client);
    for said in ["-ERR QOS TIER x\r\n", "-DEADLINE x\r\n"] {
        let times = rig.shards[0].service_times().count();
        rig.send(client, &[&["EVAL", "code", "1", "a"]]);
        rig.answer_next(said);
        assert_eq!(rig.told(client), said);
        assert_eq!(rig.shards[0].service_times().count(), times + 1, "the store was at work");
        rig.send(client, &[&["GET", "b"]]);
        assert_eq!(at_stores(&rig), ["QOS CALL DEADLINE 50 TIER standard GET b"], "{said}");
        rig.answer_next("$-1\r\n");
        rig.told(client);
    }
}

#[test]
fn no_plain_store_is_told_deadlines_and_no_weir_that_does_not_want_it() {
    let (mut rig, client) = before_weirs(|_| {}, "standard");
    let ask = |rig: &mut Rig| {
        rig.send(client, &[&["GET", "a"]]);
        at_stores(rig).pop().expect("it was sent")
    };
    assert_eq!(ask(&mut rig), "QOS CALL DEADLINE 50 GET a");
    // A Redis answers at the address now.
    rig.lose("GET");
    rig.inner = None;
    assert_eq!([ask(&mut rig), ask(&mut rig)], ["GET a"; 2]);
    // A weir answers at the address again, and is recognised with its first reply.
    rig.lose("GET");
    rig.inner = Some("standard");
    assert_eq!([ask(&mut rig), ask(&mut rig)], ["GET a", "QOS CALL DEADLINE 50 GET a"]);
    rig.lose("GET");
    rig.terms = "-ERR QOS SET 'INFLIGHT'\r\n";
    assert_eq!([ask(&mut rig), ask(&mut rig)], ["GET a"; 2]);
    for mode in [Mode::Off, Mode::Shadow] {
        let (mut rig, client) = before_weirs(|overload| overload.shed = mode, "standard");
        rig.terms = "it is not asked";
        rig.send(client, &[&["GET", "a"]]);
        assert_eq!(at_stores(&rig), ["GET a"]);
        assert_eq!(rig.shards[0].counters().get(Counter::DeadlinesPassedOn), 0);
    }
}

#[test]
fn what_a_weir_behind_refuses_is_told_as_it_is_and_makes_no_store_look_slow_or_quick() {
    let (mut rig, client) = before_weirs(|_| {}, "standard");
    pace(&mut rig, client, Duration::from_secs(100), Duration::from_millis(2));
    while !rig.at_stores.is_empty() {
        rig.answer_next("$-1\r\n");
    }
    rig.told(client);
    let before = rig.shards[0].bulkheads().next().expect("one");
    let times = rig.shards[0].service_times().count();
    let refusals = [
        "-DEADLINE stage=queue waited_ms=40\r\n",
        "-OVERLOADED reason=queue backend=s retry_after_ms=10\r\n",
        "-THROTTLED scope=tenant name=t limit=1 remaining=0 retry_after_ms=9\r\n",
        "-UNAVAILABLE backend=s reason=connect-failed retry_after_ms=50\r\n",
    ];
    for (number, refusal) in (0..4_000).zip(refusals.iter().cycle()) {
        rig.send(client, &[&["GET", "a"]]);
        // Replies come at once, or as late as possible.
        rig.wait(Duration::from_millis(if number % 8 < 4 { 0 } else { 40 }));
        let (start, rest) = refusal.split_at(number % 12);
        if start.is_empty() {
            rig.answer_next(rest);
        } else {
            rig.answer_next(start);
            rig.more(rest);
        }
        assert_eq!(rig.told(client), *refusal);
    }
    let after = rig.shards[0].bulkheads().next().expect("one");
    assert_eq!((after.base, after.median, after.window), (before.base, before.median, before.window));
    assert_eq!((after.level, after.is_stalled), (0, false));
    assert_eq!(rig.shards[0].service_times().count(), times);
    // Any other error used the store's time, so it counts as a sample.
    rig.send(client, &[&["GET", "a"]]);
    rig.answer_next("-WRONGTYPE no\r\n");
    assert_eq!(rig.shards[0].service_times().count(), times + 1);
}

#[test]
fn who_keeps_to_deadlines_itself_is_not_answered_before_a_store_that_has_begun() {
    let mut rig = crowded(1, 1, |_| {});
    let [outer, filler] = [rig.client(0), rig.client(0)];
    rig.send(outer, &[&["QOS", "SET", "INFLIGHT", "maybe"], &["QOS", "SET", "INFLIGHT", "wait"]]);
    assert_eq!(rig.told(outer), "-ERR QOS INFLIGHT 'maybe': wait or answer is expected\r\n+OK\r\n");
    rig.send(outer, &[&["QOS", "CALL", "DEADLINE", "50", "SET", "a", "1"]]);
    rig.wait(Duration::from_millis(200));
    assert_eq!(rig.told(outer), "");
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(outer), "+OK\r\n");
    // A request that was never sent is refused nevertheless.
    let bytes = gets(&rig, 0, 0..AT_ONCE + 1);
    rig.raw(filler, &bytes);
    rig.send(outer, &[&["QOS", "CALL", "DEADLINE", "50", "GET", "a"]]);
    rig.wait(Duration::from_millis(60));
    assert!(rig.told(outer).starts_with("-DEADLINE stage=queue waited_ms=5"));
    serve_all(&mut rig);
    rig.send(outer, &[&["QOS", "CALL", "DEADLINE", "50", "INFLIGHT", "answer", "GET", "a"]]);
    rig.wait(Duration::from_millis(60));
    assert!(rig.told(outer).starts_with("-DEADLINE stage=backend waited_ms=50"));
}

#[test]
fn a_core_that_stands_still_refuses_nobody_for_it() {
    let mut rig = crowded(1, 1, |_| {});
    let client = rig.client(0);
    let bytes = gets(&rig, 0, 0..AT_ONCE + 50);
    rig.raw(client, &bytes);
    for _ in 0..AT_ONCE + 50 {
        // The core runs no turn for ten seconds, although some were due; then a reply arrives and the turn
        // runs.
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(10));
        rig.answer_next("$-1\r\n");
    }
    assert_eq!(replies(&rig.told(client)), ["$-1"; AT_ONCE + 50]);
}

/// Sends a client's `GET` every 5 ms for the time `lasts`, and answers each with nil after the time `takes`.
fn pace(rig: &mut Rig, client: usize, lasts: Duration, takes: Duration) {
    pace_with(rig, client, (lasts, takes), "$-1\r\n");
}

/// Sends a client's `GET` every 5 ms for the time `lasts`, and answers each with `reply` after the time
/// `takes`.
fn pace_with(rig: &mut Rig, client: usize, (lasts, takes): (Duration, Duration), reply: &str) {
    let end = rig.now.monotonic.after(lasts);
    let mut sent_at: std::collections::VecDeque<Timestamp> =
        rig.at_stores.iter().map(|_| rig.now.monotonic).collect();
    let mut next = rig.now.monotonic;
    while rig.now.monotonic < end {
        rig.wait(Duration::from_millis(1));
        while sent_at.front().is_some_and(|at| at.after(takes) <= rig.now.monotonic) {
            sent_at.pop_front();
            rig.answer_next(reply);
        }
        if rig.now.monotonic >= next {
            next = next.after(Duration::from_millis(5));
            let before = rig.at_stores.len();
            rig.send(client, &[&["GET", "a"]]);
            sent_at.extend((before..rig.at_stores.len()).map(|_| rig.now.monotonic));
        }
    }
}

#[test]
fn a_backend_that_becomes_slow_costs_more_and_then_refuses_what_matters_least() {
    let mut rig = crowded(1, 1, |_| {});
    let [client, lesser] = [rig.client(0), rig.client(0)];
    rig.send(lesser, &[&["QOS", "SET", "TIER", "sheddable"]]);
    assert_eq!(rig.told(lesser), "+OK\r\n");
    let level = |rig: &Rig| rig.shards[0].bulkheads().next().expect("one").level;
    pace(&mut rig, client, Duration::from_secs(100), Duration::from_millis(2));
    assert_eq!((level(&rig), rig.shards[0].poll_line()), (0, None));
    pace(&mut rig, client, Duration::from_secs(10), Duration::from_millis(30));
    assert_eq!(level(&rig), 3);
    let lines: Vec<String> = std::iter::from_fn(|| rig.shards[0].poll_line()).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[2]
            .starts_with("shard 0: backend store0: level 2 (Overloaded) -> 3 (Shedding), latency ratio 0.")
    );
    assert!(lines[2].contains("p95 of point requests"), "{lines:?}");
    assert_eq!(rig.shards[0].counters().get(Counter::LevelChanges), 3);
    rig.told(lesser);
    let before = rig.at_stores.len();
    for _ in 0..99 {
        rig.send(lesser, &[&["GET", "b"]]);
    }
    let told = rig.told(lesser);
    assert!(told.starts_with("-OVERLOADED reason=latency backend=store0 retry_after_ms=1000\r\n"), "{told}");
    assert!(rig.at_stores.len() <= before + 1, "a probe at most");
    rig.send(lesser, &[&["HELLO"], &["MULTI"], &["EXEC"], &["RESET"], &["QOS", "SET", "TIER", "sheddable"]]);
    let told = rig.told(lesser);
    assert!(told.starts_with("*14\r\n") && told.ends_with("+OK\r\n*0\r\n+RESET\r\n+OK\r\n"), "{told}");
    rig.send(client, &[&["GET", "a"]]);
    assert!(rig.at_stores.len() > before, "what matters goes on");
    pace(&mut rig, client, Duration::from_secs(15), Duration::from_millis(2));
    assert_eq!(level(&rig), 0);
    rig.told(lesser);
    let before = rig.at_stores.len();
    rig.send(lesser, &[&["GET", "b"]]);
    assert_eq!(rig.at_stores.len(), before + 1);
}

#[test]
fn a_backend_that_becomes_slow_is_noticed_without_windows_too() {
    let mut rig = crowded(1, 1, |settings| settings.window = Mode::Off);
    let [client, lesser] = [rig.client(0), rig.client(0)];
    rig.send(lesser, &[&["QOS", "SET", "TIER", "sheddable"]]);
    pace(&mut rig, client, Duration::from_secs(100), Duration::from_millis(2));
    pace(&mut rig, client, Duration::from_secs(10), Duration::from_millis(30));
    assert_eq!(rig.shards[0].bulkheads().next().expect("one").level, 3);
    rig.told(lesser);
    rig.send(lesser, &[&["GET", "b"], &["GET", "b"]]);
    let told = rig.told(lesser);
    assert!(told.contains("-OVERLOADED reason=latency backend=store0 "), "{told}");
    pace(&mut rig, client, Duration::from_secs(15), Duration::from_millis(2));
    assert_eq!(rig.shards[0].bulkheads().next().expect("one").level, 0);
}

#[test]
fn errors_that_come_at_once_make_no_store_look_slow_afterwards() {
    let mut rig = crowded(1, 1, |_| {});
    let client = rig.client(0);
    let [takes, at_once] = [12, 1].map(Duration::from_millis);
    pace(&mut rig, client, Duration::from_secs(20), takes);
    let of = |rig: &Rig| rig.shards[0].bulkheads().next().expect("one");
    let before = of(&rig);
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    // Errors are all that the store says for longer than usual latencies are remembered.
    pace_with(&mut rig, client, (Duration::from_secs(100), at_once), oom);
    let meanwhile = of(&rig);
    assert_eq!(
        (meanwhile.base, meanwhile.in_flight <= 1),
        (before.base, true),
        "its other replies take as long"
    );
    // More requests than before are in flight, so that only the latency ratio keeps the level from rising.
    let other = rig.client(0);
    for _ in 0..5_000 {
        rig.send(other, &[&["GET", "b"], &["GET", "c"], &["GET", "d"]]);
        rig.wait(takes);
        while !rig.at_stores.is_empty() {
            rig.answer_next("$-1\r\n");
        }
        assert_eq!(of(&rig).level, 0);
    }
    assert_eq!(of(&rig).latency_ratio, Some(1.0));
}

#[test]
fn a_transaction_is_refused_for_the_level_of_its_own_store_alone() {
    let mut rig = crowded(1, 2, |_| {});
    let [client, lesser] = [rig.client(0), rig.client(0)];
    pace(&mut rig, client, Duration::from_secs(100), Duration::from_millis(2));
    pace(&mut rig, client, Duration::from_secs(10), Duration::from_millis(30));
    let slow = rig.topology.backend_of(slot_of(b"a")).0;
    let key = rig.key(0, 1 - slow);
    rig.send(lesser, &[&["QOS", "SET", "TIER", "sheddable"]]);
    rig.told(lesser);
    for _ in 0..3 {
        rig.send(lesser, &[&["MULTI"], &["SET", &key, "v"], &["EXEC"]]);
        rig.answer_first("MULTI", "+OK\r\n");
        rig.answer_first("SET", "+QUEUED\r\n");
        rig.answer_first("EXEC", "*1\r\n+OK\r\n");
        assert!(rig.told(lesser).ends_with("*1\r\n+OK\r\n"));
    }
    let refusal = format!("-OVERLOADED reason=latency backend=store{slow} ");
    rig.send(lesser, &[&["MULTI"], &["SET", "a", "v"], &["EXEC"]]);
    let told = rig.told(lesser);
    assert!(told.contains(&refusal), "{told}");
    rig.send(lesser, &[&["MGET", "a", &key]]);
    let told = rig.told(lesser);
    assert!(told.starts_with(&refusal), "{told}");
}
