//! Tests of the circuit breaker: stores that fail or are slow, and the replies that their clients get
//! meanwhile.

use super::*;
use crate::policy::breaker::Stage;

/// The time after which a store that the breaker has ejected is certainly tried again.
const PAUSE: Duration = Duration::from_millis(500);
const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";

fn watched(shards: u16, backends: u16, breaker: Mode) -> Rig {
    let off = OverloadSettings::off(shards, backends);
    let overload = OverloadSettings { breaker, window: Mode::On, shed: Mode::On, ..off };
    Rig::with(shards, backends, |settings| {
        settings.overload = overload.clone();
        settings.hot.mode = Mode::Off;
    })
}

fn stage(rig: &Rig, backend: u16) -> Stage {
    rig.shards[0].bulkheads().nth(usize::from(backend) * BULKHEADS).expect("one").breaker
}

fn ejections(rig: &Rig, backend: u16) -> u64 {
    let of = |shard: &Shard| shard.bulkheads().nth(usize::from(backend) * BULKHEADS).expect("one").ejections;
    rig.shards.iter().map(of).sum()
}

/// Sends a client's `GET`, which the store answers with `reply` if weir sends it there at all. Returns the
/// client's reply.
fn ask(rig: &mut Rig, client: usize, key: &str, reply: &str) -> String {
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(200));
    rig.send(client, &[&["GET", key]]);
    if !rig.at_stores.is_empty() {
        rig.answer_next(reply);
    }
    rig.told(client)
}

/// Lets a store answer five GETs in a row with `-LOADING`, after which the breaker ejects it (sends it no
/// more requests).
fn eject(rig: &mut Rig, client: usize, key: &str) {
    (0..5).for_each(|_| drop(ask(rig, client, key, LOADING)));
}

fn lines(rig: &mut Rig) -> Vec<String> {
    rig.shards.iter_mut().flat_map(|shard| std::iter::from_fn(move || shard.poll_line())).collect()
}

#[test]
fn after_five_failures_in_a_row_nobody_asks_for_a_while_and_then_one_does() {
    let mut rig = watched(1, 2, Mode::On);
    let client = rig.client(0);
    let [sick, well] = [0, 1].map(|backend| rig.key(0, backend));
    for _ in 0..5 {
        assert_eq!(ask(&mut rig, client, &sick, LOADING), LOADING);
    }
    let told = ask(&mut rig, client, &sick, "$-1\r\n");
    assert!(told.starts_with("-UNAVAILABLE backend=store0 reason=ejected retry_after_ms="), "{told}");
    assert_eq!(ask(&mut rig, client, &well, "$-1\r\n"), "$-1\r\n", "the other one is well");
    let said = lines(&mut rig);
    assert!(
        said.len() == 1
            && said[0].contains("store0 is set aside")
            && said[0].contains("5 failures in a row, the last one LOADING"),
        "{said:?}"
    );
    rig.wait(PAUSE);
    // The second request is refused while the first, the trial, has no reply yet.
    rig.send(client, &[&["GET", &sick]]);
    let other = rig.client(0);
    rig.send(other, &[&["GET", &sick]]);
    assert_eq!(rig.at_stores.len(), 1);
    assert!(rig.told(other).contains("reason=ejected"));
    rig.answer_next(LOADING);
    assert_eq!((rig.told(client).as_str(), stage(&rig, 0)), (LOADING, Stage::Out));
    rig.wait(PAUSE);
    assert!(
        ask(&mut rig, client, &sick, "$-1\r\n").contains("reason=ejected"),
        "this pause is twice as long"
    );
    rig.wait(PAUSE);
    assert_eq!(ask(&mut rig, client, &sick, "$-1\r\n"), "$-1\r\n");
    assert_eq!(stage(&rig, 0), Stage::Returning);
    // More and more requests pass to the store, and in the end all do.
    let mut passed = Vec::new();
    for _ in 0..20 {
        let part = (0..100).filter(|_| ask(&mut rig, client, &sick, "$-1\r\n") == "$-1\r\n").count();
        passed.push(part);
        rig.wait(Duration::from_millis(100));
    }
    assert!(
        passed[0] <= 15 && passed[10] > 40 && passed.windows(2).all(|two| two[0] <= two[1] + 3),
        "{passed:?}"
    );
    assert_eq!(passed.last(), Some(&100).filter(|_| stage(&rig, 0) == Stage::Well).or(passed.last()));
    rig.wait(Duration::from_millis(200));
    assert!((0..100).all(|_| ask(&mut rig, client, &sick, "$-1\r\n") == "$-1\r\n"));
    assert_eq!((stage(&rig, 0), ejections(&rig, 0)), (Stage::Well, 1));
}

#[test]
fn what_says_nothing_of_a_store_ejects_nobody() {
    let mut rig = watched(1, 1, Mode::On);
    let client = rig.client(0);
    let key = rig.key(0, 0);
    for error in [
        "CLUSTERDOWN The cluster is down",
        "MOVED 1 a:1",
        "ASK 1 a:1",
        "TRYAGAIN x",
        "READONLY x",
        "OOM x",
        "NOREPLICAS x",
        "MISCONF x",
        "NOPERM x",
        "WRONGTYPE x",
        "ERR x",
        "NOSCRIPT x",
        "BUSYKEY x",
        "BUSYGROUP x",
        "LOADINGS x",
    ] {
        let error = format!("-{error}\r\n");
        for _ in 0..200 {
            let told = ask(&mut rig, client, &key, &error);
            assert!(told.starts_with('-'), "{error}: {told}");
        }
        assert_eq!((stage(&rig, 0), ejections(&rig, 0)), (Stage::Well, 0), "{error}");
    }
    // A script may reply any error text that its client likes, so such errors do not count as failures.
    for _ in 0..200 {
        rig.send(client, &[&["EVAL", "return redis.error_reply('LOADING')", "1", &key]]);
        rig.answer_next(LOADING);
        assert_eq!(rig.told(client), LOADING);
    }
    assert_eq!((stage(&rig, 0), ejections(&rig, 0)), (Stage::Well, 0));
    // A script's reply does not end the row of failures either.
    for round in 0..5 {
        assert_eq!(ask(&mut rig, client, &key, LOADING), LOADING, "{round}");
        rig.send(client, &[&["EVAL", "return redis.error_reply('MINE')", "1", &key]]);
        if !rig.at_stores.is_empty() {
            rig.answer_next("-MINE\r\n");
        }
        rig.told(client);
    }
    assert_eq!((stage(&rig, 0), ejections(&rig, 0)), (Stage::Out, 1));
}

#[test]
fn failures_that_all_cores_see_are_added_up_and_all_leave_the_store_alone() {
    let mut rig = watched(2, 1, Mode::On);
    let clients = [0, 1].map(|shard| rig.client(shard));
    let keys = [0, 1].map(|home| rig.key(home, 0));
    // A quarter of the replies are failures: never five in a row, and too few on each core alone.
    for number in 0..4_000 {
        let core = number % 2;
        let reply = if number / 2 % 4 == 0 { LOADING } else { "$-1\r\n" };
        let told = ask(&mut rig, clients[core], &keys[core], reply);
        rig.wait(Duration::from_millis(9));
        if told.contains("reason=ejected") {
            break;
        }
    }
    assert_eq!((stage(&rig, 0), ejections(&rig, 0)), (Stage::Out, 1));
    for core in [0, 1] {
        rig.wait(Duration::from_millis(1));
        let told = ask(&mut rig, clients[core], &keys[core], "$-1\r\n");
        let heard = rig.shards[core].counters().get(Counter::RefusedEjected) > 0;
        // The other core learns of the ejection when it next compares.
        assert!(heard == told.contains("reason=ejected"));
    }
    let said = lines(&mut rig);
    assert!(said.iter().filter(|line| line.contains("replies were failures")).count() == 1, "{said:?}");
}

#[test]
fn a_store_that_was_away_is_back_with_the_first_connection() {
    let mut rig = watched(1, 1, Mode::On);
    let client = rig.client(0);
    let key = rig.key(0, 0);
    rig.connecting = Connecting::Fails;
    let mut reasons = Vec::new();
    for _ in 0..100 {
        let told = ask(&mut rig, client, &key, "$-1\r\n");
        reasons.push(told.contains("reason=ejected"));
        rig.wait(Duration::from_millis(100));
    }
    assert!(reasons.iter().filter(|is_ejected| **is_ejected).count() > 50);
    assert!(ejections(&rig, 0) == 1 && rig.attempts < 40, "{} attempts", rig.attempts);
    rig.connecting = Connecting::Works;
    let waited = (0..200).find(|_| {
        rig.wait(Duration::from_millis(10));
        ask(&mut rig, client, &key, "$-1\r\n") == "$-1\r\n"
    });
    assert!(waited.is_some_and(|waited| waited <= 110), "tried once a second at least: {waited:?}");
    assert!((0..100).all(|_| ask(&mut rig, client, &key, "$-1\r\n") == "$-1\r\n"), "all at once");
}

#[test]
fn what_waits_for_a_store_that_is_set_aside_is_told_so() {
    let settings = OverloadSettings {
        window_bounds: crate::policy::window::Bounds { least: 1, most: 1 },
        ..OverloadSettings::new(1, 1)
    };
    let mut rig = Rig::with(1, 1, |shard| shard.overload = settings.clone());
    let client = rig.client(0);
    let key = rig.key(0, 0);
    for _ in 0..4 {
        assert_eq!(ask(&mut rig, client, &key, LOADING), LOADING);
    }
    rig.send(client, &[&["GET", &key], &["GET", &key], &["GET", &key]]);
    assert_eq!((rig.at_stores.len(), rig.shards[0].requests_waiting()), (1, 2));
    rig.answer_next(LOADING);
    let told = rig.told(client);
    assert!(told.starts_with(LOADING) && told.matches("reason=ejected").count() == 2, "{told}");
    assert_eq!((rig.owed(), rig.shards[0].requests_waiting()), (0, 0));
}

#[test]
fn a_trial_that_is_lost_is_a_failure_and_one_that_cannot_be_sent_is_none() {
    let mut rig = watched(1, 1, Mode::On);
    let client = rig.client(0);
    let key = rig.key(0, 0);
    eject(&mut rig, client, &key);
    rig.wait(PAUSE);
    rig.send(client, &[&["GET", &key]]);
    rig.lose("GET");
    assert!(rig.told(client).contains("reason=connection-lost"));
    assert_eq!(stage(&rig, 0), Stage::Out);
    rig.wait(PAUSE * 4);
    assert_eq!(ask(&mut rig, client, &key, "$-1\r\n"), "$-1\r\n");
    assert_eq!(stage(&rig, 0), Stage::Returning);
}

#[test]
fn a_store_whose_script_is_killed_is_tried_at_once() {
    let settings = OverloadSettings { breaker: Mode::On, ..OverloadSettings::off(1, 1) };
    let mut rig = Rig::with(1, 1, |shard| {
        shard.overload = settings.clone();
        shard.hot.mode = Mode::Off;
        shard.private_links_max = 1;
    });
    let [client, admin] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    let busy = "-BUSY Redis is busy running a script\r\n";
    (0..5).for_each(|_| drop(ask(&mut rig, client, &key, busy)));
    for (reply, answers) in [("-NOTBUSY No scripts in execution right now.\r\n", false), ("+OK\r\n", true)] {
        assert!(ask(&mut rig, client, &key, "").contains("reason=ejected"));
        rig.send(admin, &[&["SCRIPT", "KILL"]]);
        super::private::greet(&mut rig);
        rig.answer_first("KILL", reply);
        assert_eq!(rig.told(admin), reply);
        assert_eq!(ask(&mut rig, client, &key, "$-1\r\n") == "$-1\r\n", answers);
    }
    assert_eq!(stage(&rig, 0), Stage::Returning);
}

#[test]
fn a_trial_whose_database_the_store_lacks_shows_that_the_store_answers() {
    let mut rig = watched(1, 1, Mode::On);
    rig.select_reply = "-ERR DB index is out of range\r\n";
    let [client, elsewhere] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.send(elsewhere, &[&["SELECT", "3"]]);
    assert_eq!(rig.told(elsewhere), "+OK\r\n");
    eject(&mut rig, client, &key);
    rig.wait(PAUSE);
    let told = ask(&mut rig, elsewhere, &key, "");
    assert!(told.contains(" reason=no-database "), "{told}");
    assert_eq!(stage(&rig, 0), Stage::Returning);
}

#[test]
fn a_trial_whose_script_fails_shows_that_the_store_answers() {
    let mut rig = watched(1, 1, Mode::On);
    let client = rig.client(0);
    let key = rig.key(0, 0);
    eject(&mut rig, client, &key);
    let script: &[&str] = &["EVALSHA", &"a".repeat(40), "1", &key];
    // A script is no cheap request, so it becomes the trial only after a while. Nobody can tell whose words
    // the first reply is.
    rig.wait(3 * PAUSE);
    rig.send(client, &[script]);
    rig.answer_next(LOADING);
    assert_eq!((rig.told(client).as_str(), stage(&rig, 0)), (LOADING, Stage::Trying));
    rig.wait(Duration::from_secs(4));
    let missing = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    rig.send(client, &[script]);
    rig.answer_next(missing);
    assert_eq!((rig.told(client).as_str(), stage(&rig, 0)), (missing, Stage::Returning));
}

#[test]
fn in_shadow_it_is_only_said_and_switched_off_nothing_is() {
    for breaker in [Mode::Shadow, Mode::Off] {
        let mut rig = watched(1, 1, breaker);
        let client = rig.client(0);
        let key = rig.key(0, 0);
        assert!((0..300).all(|_| {
            rig.wait(Duration::from_millis(10));
            ask(&mut rig, client, &key, LOADING) == LOADING
        }));
        let said = lines(&mut rig);
        let (lines, counted) = if breaker == Mode::Shadow { (1, 1) } else { (0, 0) };
        assert_eq!(
            (said.len(), ejections(&rig, 0), stage(&rig, 0)),
            (lines, counted, Stage::Well),
            "{said:?}"
        );
    }
}

/// Simulates stores with equal load, except that one of them has more requests (`crowd`), and one is slow.
/// Returns the milliseconds until the slow one was ejected; `None` if no store was.
fn slow_store_found_after(slow: Duration, crowd: usize, backends: u16) -> Option<u64> {
    let usual = Duration::from_millis(2);
    let mut rig = watched(1, backends, Mode::On);
    let client = rig.client(0);
    let keys: Vec<String> = (0..backends).map(|backend| rig.key(0, backend)).collect();
    let start = rig.now.monotonic;
    let onset = start.after(Duration::from_secs(6));
    // The requests in flight, by the time at which each is answered.
    let mut due: Vec<(Timestamp, u16)> = Vec::new();
    let mut clients: Vec<usize> = (0..200).map(|_| rig.client(0)).collect();
    for tick in 0..6_000_u64 {
        rig.now.monotonic = start.after(Duration::from_millis(tick * 2));
        due.sort();
        while let Some((_, backend)) = due.first().copied().filter(|(at, _)| *at <= rig.now.monotonic) {
            due.remove(0);
            let place = rig.at_stores.iter().position(|sent| sent.backend.0 == backend).expect("it was sent");
            let sent = rig.at_stores.remove(place);
            rig.at_stores.insert(0, sent);
            rig.answer_next("$-1\r\n");
        }
        let is_ill = rig.now.monotonic >= onset;
        let backend = (tick % u64::from(backends)) as u16;
        let times = if backend == 0 && is_ill { crowd } else { 1 };
        for _ in 0..times {
            let asker = clients.remove(0);
            clients.push(asker);
            let before = rig.at_stores.len();
            rig.send(asker, &[&["GET", &keys[usize::from(backend)]]]);
            let takes = if backend == 0 && is_ill { slow } else { usual };
            if rig.at_stores.len() > before {
                due.push((rig.now.monotonic.after(takes), backend));
            }
        }
        rig.wait(Duration::ZERO);
        if ejections(&rig, 0) > 0 {
            return Some(rig.now.monotonic.since(onset).as_millis() as u64);
        }
    }
    drop(rig.told(client));
    assert!((1..backends).all(|backend| ejections(&rig, backend) == 0), "the others are well");
    None
}

/// A core that stands still again and again finds replies that arrived long before. It knows when it should
/// have run, but not how long the replies lay in its socket, so it must not take the delay for slowness of a
/// store.
#[test]
fn a_core_that_does_not_run_in_time_takes_no_store_for_slow() {
    const BACKENDS: u16 = 6;
    let mut rig = watched(1, BACKENDS, Mode::On);
    let client = rig.client(0);
    let keys: Vec<String> = (0..BACKENDS).map(|backend| rig.key(0, backend)).collect();
    let get = |rig: &mut Rig, backend: usize, takes: Duration| {
        rig.send(client, &[&["GET", &keys[backend]]]);
        rig.now.monotonic = rig.now.monotonic.after(takes);
        rig.answer_next("$-1\r\n");
        rig.wait(Duration::ZERO);
        assert_eq!(rig.told(client), "$-1\r\n");
    };
    let (usual, stands_still) = (Duration::from_millis(1), Duration::from_millis(150));
    for round in 0..600 {
        for backend in 0..usize::from(BACKENDS) {
            get(&mut rig, backend, if round >= 300 && backend == 0 { stands_still } else { usual });
        }
        rig.wait(Duration::from_millis(10));
    }
    assert_eq!(lines(&mut rig), Vec::<String>::new());
}

#[test]
fn a_slow_store_is_found_within_three_seconds_and_the_owner_of_a_hot_key_never_is() {
    let slow = Duration::from_millis(80);
    assert!(slow_store_found_after(slow, 1, 6).is_some_and(|millis| millis <= 3_000));
    assert_eq!(slow_store_found_after(slow, 4, 6), None, "much is asked of it");
    assert_eq!(slow_store_found_after(Duration::from_millis(5), 1, 6), None, "not slow enough");
    assert_eq!(slow_store_found_after(slow, 1, 2), None, "nobody to compare with");
}
