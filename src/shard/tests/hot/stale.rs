//! Tests of `stale_on_error`: while a store is away, tenants that accept it get expired replies.

mod values;

use std::collections::VecDeque;

use super::*;
use crate::values::Random;

const LONGER: Duration = Duration::from_secs(2);
/// The longest pause between two attempts of weir to connect.
const PAUSE_MAX: Duration = Duration::from_millis(2_500);
const KEEN: &str = "[default]\nstale_on_error = \"2s\"\nadmin = true";
const BOTH: &str = "[default]\nadmin = true\n[tenants.keen]\npassword = \"k\"\nstale_on_error = \"2s\"";

impl Rig {
    fn put_in_force_as(&mut self, text: &str, version: u64) {
        let now = self.now;
        let quotas = Arc::new(Quotas::parse("quotas.toml", text).expect("well formed").with_version(version));
        for shard in &mut self.shards {
            shard.handle_quotas(Arc::clone(&quotas), now);
        }
    }

    /// Sends a client's read of a key, breaks the connection on which it is at the store, and makes all later
    /// attempts to connect fail. Returns the client's reply to the read.
    fn goes_away(&mut self, client: usize, key: &str) -> String {
        self.send(client, &[&["GET", key]]);
        self.connecting = Connecting::Fails;
        self.lose(key);
        self.told(client)
    }

    fn asked(&mut self, client: usize, words: &[&str]) -> String {
        self.send(client, &[words]);
        self.told(client)
    }
}

/// Returns a test rig (shards with scripted stores and clients) with one core, two clients of a tenant that
/// accepts expired replies while stores are away, and a hot key whose cached reply has expired.
fn keen() -> (Rig, [usize; 2], String) {
    let (mut rig, clients, key) = with_hot_key();
    rig.put_in_force_as(KEEN, 0);
    rig.keep(clients[0], &key, "v");
    rig.wait(TTL);
    (rig, clients, key)
}

#[test]
fn what_is_kept_is_told_while_the_store_is_away_and_no_longer_than_that() {
    let (mut rig, [client, other], key) = keen();
    let read_at = rig.now.monotonic;
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    let mut last = read_at;
    loop {
        let told = rig.asked(other, &["GET", &key]);
        if told != bulk("v") {
            assert!(told.starts_with("-UNAVAILABLE backend=store0 reason=connect-failed"), "{told}");
            break;
        }
        last = rig.now.monotonic;
        rig.wait(10 * MILLISECOND);
    }
    // The fetch was sent at most `TTL` before the expiry of its reply.
    let longest = last.since(read_at);
    assert!(longest < LONGER && longest + 40 * MILLISECOND > LONGER, "{longest:?}");
    assert!(rig.counted(Counter::HotStaleOnError) > 100);
    assert_eq!(rig.shards[0].hot_keys()[0].state, "stale");
    // A store that is back gets requests again.
    rig.connecting = Connecting::Works;
    rig.wait(LONGER);
    rig.make_hot(client, &key);
    rig.keep(client, &key, "new");
    assert_eq!(rig.figures().waiters, 0);
}

#[test]
fn a_store_that_says_it_cannot_answer_is_away_and_one_that_answers_is_not() {
    for (reply, is_away) in [
        ("-LOADING Redis is loading the dataset in memory\r\n", true),
        ("-MASTERDOWN Link with MASTER is down\r\n", true),
        ("-CLUSTERDOWN The cluster is down\r\n", true),
        ("-UNAVAILABLE backend=behind reason=connect-failed retry_after_ms=50\r\n", true),
        ("-OVERLOADED reason=stalled backend=behind retry_after_ms=50\r\n", true),
        ("-OVERLOADED reason=queue backend=behind retry_after_ms=50\r\n", false),
        ("-BUSY Redis is busy\r\n", false),
        ("-WRONGTYPE no\r\n", false),
        ("$1\r\nw\r\n", false),
        ("$-1\r\n", false),
    ] {
        let (mut rig, clients, key) = keen();
        for client in clients {
            rig.send(client, &[&["GET", &key], &["GET", &key]]);
        }
        assert_eq!(rig.serve(":-1\r\n", reply).join(" "), "PTTL GET");
        let told = if is_away { bulk("v") } else { reply.to_owned() };
        assert_eq!(clients.map(|client| rig.told(client)), [told.repeat(2), told.repeat(2)], "{reply}");
        assert_eq!(rig.counted(Counter::HotStaleOnError), if is_away { 4 } else { 0 });
        if !is_away {
            // A client that knows of the write must not get the older value.
            rig.wait(TTL);
            let told = rig.goes_away(clients[1], &key);
            assert!(told.starts_with("-UNAVAILABLE") || told == *reply, "{reply}: {told}");
        }
    }
}

/// Returns a test rig (shards with scripted stores and clients), clients and a hot key as [`keen`] does, with
/// a core that notices stalled stores (silent although requests are in flight).
fn keen_where_stalls_are_seen() -> (Rig, [usize; 2], String) {
    let overload = OverloadSettings::new(1, 1);
    let mut rig = eager(1, |settings| settings.overload = overload.clone());
    let clients = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(clients[0], &key);
    rig.put_in_force_as(KEEN, 0);
    rig.keep(clients[0], &key, "v");
    rig.wait(TTL);
    (rig, clients, key)
}

#[test]
fn a_store_that_stands_still_is_away() {
    let (mut rig, [client, other], key) = keen_where_stalls_are_seen();
    rig.send(client, &[&["GET", &key]]);
    rig.wait(Duration::from_millis(1_100));
    assert_eq!(rig.told(client), bulk("v"));
    assert_eq!(rig.asked(other, &["GET", &key]), bulk("v"), "it is not asked while it stands still");
    rig.serve(":-1\r\n", "$3\r\nnew\r\n");
    rig.wait(MILLISECOND);
    assert_eq!(rig.ask(other, &["GET", &key], ":-1\r\n", &bulk("new")).0, bulk("new"));
    assert_eq!(rig.told(client), "");
}

#[test]
fn nothing_is_told_that_a_write_has_or_may_have_replaced() {
    for (write, reply) in [
        ("SET KEY w", "+OK\r\n"),
        ("SET KEY w", "-OOM no\r\n"),
        ("SET KEY w", "LOST"),
        ("MSET KEY w {KEY}2 w", "+OK\r\n"),
        ("EVAL code 0", ":1\r\n"),
        ("EVAL code 1 KEY", "LOST"),
        ("FLUSHALL", "+OK\r\n"),
        ("FROB other", "-ERR unknown command\r\n"),
    ] {
        let (mut rig, [client, writer], key) = keen();
        let words: Vec<String> = write.split(' ').map(|word| word.replace("KEY", &key)).collect();
        rig.send(writer, &[&words.iter().map(String::as_str).collect::<Vec<_>>()]);
        match reply {
            "LOST" => rig.lose(&words[0]),
            reply => rig.answer_next(reply),
        }
        let told = rig.goes_away(client, &key);
        assert!(told.starts_with("-UNAVAILABLE"), "{write}: {told}");
        // The older value does not come back later either.
        for _ in 0..30 {
            rig.wait(10 * MILLISECOND);
            let told = rig.asked(client, &["GET", &key]);
            assert!(told.starts_with("-UNAVAILABLE"), "{write}: {told}");
        }
    }
}

#[test]
fn what_a_write_has_not_replaced_is_told_though_somebody_tries() {
    let (mut rig, [client, writer], key) = keen();
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    // This write is never sent to the store.
    let told = rig.asked(writer, &["SET", &key, "w"]);
    assert!(told.starts_with("-UNAVAILABLE backend=store0 reason=connect-failed"), "{told}");
    assert_eq!(rig.asked(client, &["GET", &key]), bulk("v"));
    // This write is sent, but the store does not carry it out.
    rig.connecting = Connecting::Works;
    rig.wait(300 * MILLISECOND);
    rig.send(writer, &[&["SET", &key, "w"]]);
    assert_eq!(rig.words_at_stores(), ["SET"]);
    rig.answer_next("-LOADING not yet\r\n");
    assert_eq!(rig.told(writer), "-LOADING not yet\r\n");
    assert_eq!(rig.ask(client, &["GET", &key], ":-1\r\n", "-LOADING not yet\r\n").0, bulk("v"));
    assert_eq!(rig.figures().writes_under_way, 0);
    // A read during such a write is sent behind it, and gets the kept reply all the same.
    rig.send(writer, &[&["SET", &key, "w"]]);
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["SET", "GET"]);
    (0..2).for_each(|_| rig.answer_next("-LOADING not yet\r\n"));
    assert_eq!((rig.told(writer), rig.told(client)), ("-LOADING not yet\r\n".to_owned(), bulk("v")));
}

#[test]
fn a_key_is_not_told_beyond_its_own_end() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.put_in_force_as(KEEN, 0);
    rig.ask(client, &["GET", &key], ":500\r\n", "$1\r\nv\r\n");
    let read_at = rig.now.monotonic;
    rig.wait(TTL);
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    while rig.asked(other, &["GET", &key]) == bulk("v") {
        assert!(rig.now.monotonic.since(read_at) < Duration::from_millis(500));
        rig.wait(5 * MILLISECOND);
    }
    assert!(rig.now.monotonic.since(read_at) >= Duration::from_millis(490));
}

#[test]
fn only_tenants_that_want_that_are_told_what_is_old_and_new_quotas_say_anew_who_does() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.put_in_force_as(BOTH, 0);
    assert_eq!(rig.asked(client, &["AUTH", "keen", "k"]), "+OK\r\n");
    rig.keep(other, &key, "v");
    rig.wait(TTL);
    // Both clients wait for the same fetch.
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.goes_away(client, &key), bulk("v"));
    assert!(rig.told(other).starts_with("-UNAVAILABLE"));
    for version in 1..4 {
        assert_eq!(rig.asked(client, &["GET", &key]), bulk("v"));
        assert!(rig.asked(other, &["GET", &key]).starts_with("-UNAVAILABLE"));
        rig.put_in_force_as(BOTH, version);
    }
    rig.put_in_force_as(&BOTH.replace("2s", "0"), 4);
    assert!(rig.asked(client, &["GET", &key]).starts_with("-UNAVAILABLE"));
}

#[test]
fn what_is_too_old_makes_room_for_what_is_not() {
    let mut rig = eager(1, |settings| settings.hot.entries_max = 1);
    let client = rig.client(0);
    let keys = [rig.key(0, 0), "another".to_owned()];
    keys.iter().for_each(|key| rig.make_hot(client, key));
    rig.put_in_force_as(KEEN, 0);
    for key in keys.iter().chain(&keys) {
        rig.keep(client, key, "v");
        assert_eq!(rig.figures().kept, 1);
        rig.wait(TTL);
    }
}

/// A simulation of a store that is away now and then, with clients of a hot key: the values that the store
/// has held, and the newest value that each client was told.
struct World {
    rig: Rig,
    key: String,
    /// Each value that the store has held, with the time of its write.
    history: Vec<(Timestamp, String)>,
    is_away: bool,
    /// The last time at which the store was unreachable.
    away_at: Timestamp,
    /// The index of the newest acknowledged write in the history.
    acknowledged: usize,
    waiting: Vec<VecDeque<Asked>>,
    /// The index of the value that each connection has read last.
    seen: Vec<usize>,
    errors: usize,
    old: usize,
    /// The number of `MGET` replies with an expired value of the key beside the value of the other key, which
    /// never changes.
    old_of_two: usize,
}

/// The key whose value never changes.
const OTHER: &str = "other";

#[derive(Clone)]
enum What {
    Write(String),
    Read,
    ReadBoth,
    ReadOther,
}

fn both(value: &str, other: &str) -> String {
    format!("*2\r\n{}{}", bulk(value), bulk(other))
}

struct Asked {
    what: What,
    at: Timestamp,
    floor: usize,
}

impl World {
    /// Carries out a request in the simulated store, and returns its reply.
    fn carry_out(&mut self, frame: &str) -> String {
        let words: Vec<&str> = frame.split("\r\n").collect();
        match words[2] {
            "PTTL" => ":-1\r\n".to_owned(),
            "GET" if words[4] != self.key => bulk(OTHER),
            "GET" => bulk(&self.history.last().expect("it is never empty").1),
            "MGET" => {
                let value = |key: &str| {
                    let last = &self.history.last().expect("it is never empty").1;
                    bulk(if key == self.key { last } else { OTHER })
                };
                let keys: Vec<&str> = words[4..].iter().step_by(2).copied().collect();
                format!("*{}\r\n{}", keys.len(), keys.into_iter().map(value).collect::<String>())
            }
            _ => {
                self.history.push((self.rig.now.monotonic, words[6].to_owned()));
                "+OK\r\n".to_owned()
            }
        }
    }

    /// Answers one request at the store; if the store is away, breaks a connection with all requests on it
    /// instead, or replies `-LOADING` if `is_loading`.
    fn serve(&mut self, is_loading: bool, random: &mut Random) {
        if self.rig.at_stores.is_empty() {
            return;
        }
        let over = random.pick(&self.rig.at_stores).clone();
        let is_on = |sent: &Sent| (sent.shard, sent.link) == (over.shard, over.link);
        if self.is_away && !is_loading {
            // The store may have carried out some of the requests on the connection.
            let on_it: Vec<Sent> = self.rig.at_stores.iter().filter(|sent| is_on(sent)).cloned().collect();
            for sent in &on_it[..random.index(on_it.len() + 1)] {
                self.carry_out(&sent.frame);
            }
            self.rig.at_stores.retain(|sent| !is_on(sent));
            let now = self.rig.now;
            self.rig.shards[over.shard].handle_link_lost(over.link, over.generation, Loss::ByPeer, now);
            self.rig.turns();
            return;
        }
        let at = self.rig.at_stores.iter().position(is_on).expect("there is one");
        let next = self.rig.at_stores.remove(at);
        let reply =
            if self.is_away { "-LOADING not yet\r\n".to_owned() } else { self.carry_out(&next.frame) };
        self.rig.bytes(&next, reply.as_bytes());
    }

    /// Checks that the replies that clients got are not older than permitted; `is_keen` says which clients
    /// accept expired replies.
    fn judge(&mut self, is_keen: impl Fn(usize) -> bool) {
        let now = self.rig.now.monotonic;
        for client in 0..self.waiting.len() {
            let told = self.rig.told(client);
            let mut lines = told.split_terminator("\r\n");
            while let Some(line) = lines.next() {
                let asked = self.waiting[client].pop_front().expect("each is answered once");
                let place = |value: &str| self.history.iter().position(|(_, held)| held == value);
                match &asked.what {
                    _ if line.starts_with('-') => self.errors += 1,
                    What::ReadOther => assert_eq!(lines.next(), Some(OTHER)),
                    What::Write(value) => {
                        assert_eq!(line, "+OK");
                        self.acknowledged = self.acknowledged.max(place(value).expect("it was carried out"));
                    }
                    What::Read | What::ReadBoth => {
                        let is_one_of_two = line == "*2";
                        let value = lines.nth(usize::from(is_one_of_two)).expect("a value");
                        if is_one_of_two {
                            assert_eq!(lines.nth(1), Some(OTHER));
                        }
                        let read = place(value).expect("it was held once");
                        let until = self.history.get(read + 1).map_or(Timestamp::MAX, |(at, _)| *at);
                        let may_be_old = is_keen(client) && self.away_at >= asked.at;
                        let longest = if may_be_old { TTL + LONGER } else { TTL };
                        assert!(read >= asked.floor, "it was overwritten, and that was acknowledged");
                        assert!(
                            until >= asked.at.before(longest),
                            "{read}: {:?} too old",
                            asked.at.since(until)
                        );
                        assert!(read >= self.seen[client], "a connection has seen something newer");
                        self.seen[client] = read;
                        let is_old = until < now.before(TTL);
                        self.old += usize::from(is_old);
                        self.old_of_two += usize::from(is_old && is_one_of_two);
                    }
                }
            }
        }
    }
}

/// In no state of the store does a client read a value that an acknowledged write had replaced before the
/// read was sent, or one older than its tenant accepts; it reads one older than `TTL` only while the store
/// was away.
#[test]
fn nothing_is_read_that_is_older_than_may_be() {
    let (mut stale, mut old, mut old_of_two) = (0, 0, 0);
    for seed in 0..30 {
        let random = &mut Random::new(seed);
        let mut rig = eager(2, |settings| settings.hot.copied_from = [100, 10]);
        rig.put_in_force_as(BOTH, 0);
        let clients = [rig.client(0), rig.client(0), rig.client(1), rig.client(1)];
        let is_keen = |client: usize| client.is_multiple_of(2);
        for client in clients.into_iter().filter(|client| is_keen(*client)) {
            assert_eq!(rig.asked(client, &["AUTH", "keen", "k"]), "+OK\r\n");
        }
        let key = rig.key(1, 0);
        let mut world = World {
            history: vec![(Timestamp::ZERO, "first".to_owned())],
            rig,
            key,
            is_away: false,
            away_at: Timestamp::ZERO,
            acknowledged: 0,
            waiting: clients.iter().map(|_| VecDeque::new()).collect(),
            seen: vec![0; clients.len()],
            errors: 0,
            old: 0,
            old_of_two: 0,
        };
        let is_loading = seed.is_multiple_of(3);
        let (mut count, mut back_at) = (0, Timestamp::ZERO);
        for _ in 0..6_000 {
            match random.below(40) {
                0..=11 => {
                    let client = *random.pick(&clients);
                    for _ in 0..random.between(1, 3) {
                        let what = match random.below(60) {
                            0 => {
                                count += 1;
                                What::Write(format!("w{count}"))
                            }
                            1..=12 => What::ReadBoth,
                            13..=24 => What::ReadOther,
                            _ => What::Read,
                        };
                        let (key, other) = (world.key.clone(), format!("{{{}}}2", world.key));
                        let (at, floor) = (world.rig.now.monotonic, world.acknowledged);
                        world.waiting[client].push_back(Asked { what: what.clone(), at, floor });
                        match what {
                            What::Write(value) => world.rig.send(client, &[&["SET", &key, &value]]),
                            What::Read => world.rig.send(client, &[&["GET", &key]]),
                            What::ReadBoth => world.rig.send(client, &[&["MGET", &key, &other]]),
                            What::ReadOther => world.rig.send(client, &[&["GET", &other]]),
                        }
                    }
                }
                12..=15 => world.rig.wait(random.between(1, 8) as u32 * MILLISECOND),
                16 if random.below(6) == 0 => {
                    // A client that does not use weir writes the key.
                    count += 1;
                    world.history.push((world.rig.now.monotonic, format!("around{count}")));
                }
                17 if random.below(if world.is_away { 12 } else { 6 }) == 0 => {
                    world.is_away = !world.is_away;
                    let works = !world.is_away || is_loading;
                    world.rig.connecting = if works { Connecting::Works } else { Connecting::Fails };
                }
                _ => world.serve(is_loading, random),
            }
            let now = world.rig.now.monotonic;
            if world.is_away {
                (back_at, world.away_at) =
                    (now.after(if is_loading { Duration::ZERO } else { PAUSE_MAX }), now);
            } else if now < back_at {
                // The store stays away until weir's next attempt to connect.
                world.away_at = now;
            }
            world.judge(is_keen);
        }
        stale += world.rig.counted(Counter::HotStaleOnError);
        old += world.old;
        old_of_two += world.old_of_two;
        assert!(world.errors > 0, "seed {seed}");
    }
    assert!(stale > 500 && old > 100 && old_of_two > 20, "{stale} {old} {old_of_two}");
}
