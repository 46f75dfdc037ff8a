//! Tests of hot keys that transactions read, while clients that do not use weir write the keys.

use std::collections::HashMap;

use super::*;
use crate::values::Random;
use crate::values::limits::MESSAGE_READ_BYTES_MAX;

/// Returns a test rig (shards with scripted stores and clients) with two cores, a client of each, and a hot key whose
/// home (the core through which its requests pass) is the first core and whose value "old" is cached.
fn kept_on_two_cores() -> (Rig, [usize; 2], String) {
    let mut rig = eager(2, |settings| {
        settings.hot.copied_from = [100, 10];
        settings.private_links_max = 10;
    });
    let clients = [rig.client(0), rig.client(1)];
    let key = rig.key(0, 0);
    rig.make_hot(clients[0], &key);
    rig.keep(clients[0], &key, "old");
    (rig, clients, key)
}

impl Rig {
    /// Runs a client's transaction, to whose `EXEC` the store replies `reply`. Returns the part of the
    /// client's reply that belongs to EXEC.
    fn transact(&mut self, client: usize, requests: &[&[&str]], reply: &str) -> String {
        let block: Vec<&[&str]> =
            [&["MULTI"][..]].into_iter().chain(requests.iter().copied()).chain([&["EXEC"][..]]).collect();
        self.send(client, &block);
        // The requests of the transaction follow each other directly; others may stand before and behind
        // them.
        let at =
            self.at_stores.iter().position(|sent| sent.frame.contains("\r\nMULTI\r\n")).expect("it was sent");
        for reply in [&["+OK\r\n"][..], &vec!["+QUEUED\r\n"; requests.len()], &[reply]].concat() {
            let sent = self.at_stores.remove(at);
            self.bytes(&sent, reply.as_bytes());
        }
        let told = self.told(client);
        let before = format!("+OK\r\n{}", "+QUEUED\r\n".repeat(requests.len()));
        told.strip_prefix(&before).unwrap_or_else(|| panic!("{told}")).to_owned()
    }
}

#[test]
fn who_has_read_what_is_newer_in_a_transaction_is_not_told_what_is_kept() {
    for (requests, reply) in [
        (&["GET KEY"][..], "*1\r\n$3\r\nnew\r\n"),
        (&["get KEY"], "*1\r\n$-1\r\n"),
        (&["GET COLD", "MGET COLD KEY"], "*2\r\n$-1\r\n*2\r\n$-1\r\n$3\r\nnew\r\n"),
        (&["MGET KEY"], "*1\r\n*1\r\n$3\r\nnew\r\n"),
        (&["GET KEY", "SET COLD x"], "*2\r\n$3\r\nnew\r\n+OK\r\n"),
        (&["GET KEY"], "*1\r\n-WRONGTYPE no\r\n"),
        (&["HGET COLD f", "GET KEY"], "*2\r\n-WRONGTYPE no\r\n$3\r\nnew\r\n"),
    ] {
        // The reader is on the key's home core, or on another core, which may have a copy.
        for (reader, has_copies) in [(0, false), (1, false), (1, true)] {
            let (mut rig, clients, key) = kept_on_two_cores();
            if has_copies {
                for _ in 0..40 {
                    assert!(rig.knows(clients[1], &key, "old"));
                    rig.wait(MILLISECOND);
                }
                assert!(rig.counted(Counter::HotHitsCopied) > 0);
            }
            let cold = format!("{{{key}}}cold");
            let named: Vec<String> =
                requests.iter().map(|request| request.replace("KEY", &key).replace("COLD", &cold)).collect();
            let words: Vec<Vec<&str>> = named.iter().map(|request| request.split(' ').collect()).collect();
            let words: Vec<&[&str]> = words.iter().map(Vec::as_slice).collect();
            assert_eq!(rig.transact(clients[reader], &words, reply), reply);
            for client in clients {
                rig.send(client, &[&["GET", &key]]);
                assert_eq!(rig.told(client), "", "{requests:?} on core {reader}");
            }
        }
    }
}

#[test]
fn who_has_read_what_is_newer_behind_a_watch_is_not_told_what_is_kept() {
    for (requests, reply, is_newer) in [
        (&["GET KEY"][..], "$3\r\nnew\r\n", true),
        (&["GET KEY"], "$3\r\nold\r\n", false),
        (&["MGET COLD KEY"], "*2\r\n$-1\r\n$3\r\nnew\r\n", true),
        (&["GET KEY"], "-UNAVAILABLE it is said\r\n", false),
        (&["MULTI", "GET COLD", "GET KEY", "EXEC"], "*2\r\n$-1\r\n$3\r\nnew\r\n", true),
        (&["MULTI", "GET COLD", "GET KEY", "EXEC"], "*2\r\n$-1\r\n$3\r\nold\r\n", false),
        (&["MULTI", "GET KEY", "EXEC"], "*-1\r\n", false),
    ] {
        for reader in [0, 1] {
            let (mut rig, clients, key) = kept_on_two_cores();
            let [reader, other] = [clients[reader], clients[1 - reader]];
            let cold = format!("{{{key}}}cold");
            rig.send(reader, &[&["WATCH", &cold]]);
            private::greet(&mut rig);
            rig.answer_first("WATCH", "+OK\r\n");
            for request in requests {
                let request = request.replace("KEY", &key).replace("COLD", &cold);
                rig.send(reader, &[&request.split(' ').collect::<Vec<_>>()]);
            }
            let (last, steps) = requests.split_last().expect("there is one");
            for step in steps {
                let step = step.split(' ').next().expect("it has a name");
                rig.answer_first(step, if step == "MULTI" { "+OK\r\n" } else { "+QUEUED\r\n" });
            }
            rig.answer_first(last.split(' ').next().expect("it has a name"), reply);
            assert!(rig.told(reader).ends_with(reply));
            assert_eq!(rig.knows(other, &key, "old"), !is_newer, "{requests:?} {reply}");
        }
    }
}

#[test]
fn a_transaction_too_long_to_be_read_for_its_keys_counts_as_a_change_of_all() {
    for (bytes, is_kept) in [(1_000, true), (MESSAGE_READ_BYTES_MAX, false)] {
        for reader in [0, 1] {
            let (mut rig, clients, key) = kept_on_two_cores();
            let (cold, value) = (format!("{{{key}}}cold"), "x".repeat(bytes));
            let requests = [&["SET", &cold, &value][..]];
            assert_eq!(rig.transact(clients[reader], &requests, "*1\r\n+OK\r\n"), "*1\r\n+OK\r\n");
            assert_eq!(rig.knows(clients[0], &key, "old"), is_kept, "{bytes} bytes on core {reader}");
        }
    }
}

#[test]
fn transactions_that_read_what_is_kept_take_it_from_nobody() {
    let (mut rig, [client, other], key) = kept_on_two_cores();
    let (cold, neighbour) = (format!("{{{key}}}cold"), format!("{{{key}}}list"));
    let mut asked = 0;
    for number in 0..1_000 {
        let value = bulk(&number.to_string());
        let requests =
            [&["GET", &key][..], &["GET", &cold], &["MGET", &cold, &key], &["LRANGE", &neighbour, "0", "1"]];
        let old = bulk("old");
        let reply = format!("*4\r\n{old}{value}*2\r\n{value}{old}*0\r\n");
        assert_eq!(rig.transact([client, other][number % 2], &requests, &reply), reply);
        rig.send(client, &[&["GET", &key]]);
        asked += rig.serve(":-1\r\n", &old).len();
        assert_eq!(rig.told(client), old);
        rig.wait(MILLISECOND);
    }
    // A cached reply lives 180 to 200 ms, and each fetch asks for the value and its expiry.
    assert!(asked <= 2 * 7, "{asked}");
}

#[test]
fn a_transaction_that_was_not_carried_out_has_read_nothing() {
    for reply in ["*-1\r\n", "-EXECABORT no\r\n", "*0\r\n", "$3\r\nnew\r\n"] {
        for reader in 0..2 {
            let (mut rig, clients, key) = kept_on_two_cores();
            rig.transact(clients[reader], &[&["GET", &key], &["MGET", &key]], reply);
            assert!(rig.knows(clients[0], &key, "old"), "{reply}");
        }
    }
    let (mut rig, [client, other], key) = kept_on_two_cores();
    rig.transact(other, &[&["MGET", &key]], "*1\r\n-ERR no\r\n");
    assert!(rig.knows(client, &key, "old"), "no value was told");
}

#[test]
fn a_fetch_is_neither_kept_nor_joined_once_a_transaction_has_read_something_newer() {
    for new in ["new", "first"] {
        let (mut rig, [client, other], key) = kept_on_two_cores();
        // The older value may be there again: its writer may have written it before or after the fetch.
        rig.transact(other, &[&["GET", &key]], &format!("*1\r\n{}", bulk("first")));
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
        let told =
            rig.transact(other, &[&["SORT_RO", &key], &["GET", &key]], &format!("*2\r\n*0\r\n{}", bulk(new)));
        assert!(told.ends_with(&bulk(new)));
        rig.send(other, &[&["GET", &key]]);
        // The next read starts a fetch at once if the older value certainly differed from the one that the
        // transaction read.
        let at_stores = if new == "new" { 4 } else { 2 };
        assert_eq!(rig.words_at_stores(), ["PTTL", "GET", "PTTL", "GET"][..at_stores]);
        rig.answer_next(":-1\r\n");
        rig.answer_next(&bulk("old"));
        assert_eq!((rig.told(client), rig.told(other)), (bulk("old"), String::new()), "{new}");
        assert_eq!(rig.serve(":-1\r\n", &bulk(new)), ["PTTL", "GET"]);
        assert_eq!(rig.told(other), bulk(new));
        assert!(rig.knows(client, &key, new), "and that is kept");
    }
}

#[test]
fn a_fetch_finds_what_transactions_read_meanwhile_and_is_kept() {
    let (mut rig, [client, other], key) = kept_on_two_cores();
    rig.send(other, &[&["SET", &key, "new"]]);
    rig.serve("", "+OK\r\n");
    rig.told(other);
    for number in 0..2 {
        rig.send(client, &[&["GET", &key]]);
        rig.transact(other, &[&["GET", &key]], &format!("*1\r\n{}", bulk("new")));
        rig.serve(":-1\r\n", &bulk("new"));
        assert_eq!(rig.told(client), bulk("new"));
        // The first transaction shows that the cached value may be outdated.
        assert_eq!(rig.knows(client, &key, "new"), number > 0);
        rig.serve(":-1\r\n", &bulk("new"));
        rig.told(client);
    }
}

#[test]
fn dialects_and_questions_are_compared_each_with_what_is_kept_of_the_same() {
    let mut rig = eager(1, |_| {});
    let [old_client, client] = [rig.client(0), rig.modern_client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(old_client, &key);
    let hget = ["HGET", key.as_str(), "f"];
    assert_eq!(rig.ask(client, &hget, ":-2\r\n", "_\r\n").0, "_\r\n");
    assert!(rig.ask(client, &hget, "", "").1.is_empty(), "it is kept");
    // A null is the same answer in RESP2 and RESP3; another field is another question.
    let requests = [&hget[..], &["HGET", &key, "g"]];
    rig.transact(client, &requests, "*2\r\n_\r\n$1\r\nv\r\n");
    rig.transact(old_client, &requests, "*2\r\n$-1\r\n$1\r\nv\r\n");
    assert!(rig.ask(client, &hget, "", "").1.is_empty(), "it is kept");
    rig.transact(client, &requests, "*2\r\n$1\r\nv\r\n$1\r\nv\r\n");
    assert!(!rig.ask(client, &hget, ":-1\r\n", "$1\r\nv\r\n").1.is_empty());
}

#[test]
fn what_a_transaction_reads_beyond_what_is_compared_counts_as_written() {
    let (mut rig, [client, other], key) = kept_on_two_cores();
    let cold: Vec<String> = (0..1_100).map(|number| format!("{{{key}}}{number}")).collect();
    let words: Vec<&str> =
        ["MGET"].into_iter().chain(cold.iter().map(String::as_str)).chain([key.as_str()]).collect();
    let reply = format!("*1\r\n*1101\r\n{}{}", "$-1\r\n".repeat(1_100), bulk("old"));
    assert_eq!(rig.transact(other, &[&words], &reply), reply);
    assert!(!rig.knows(client, &key, "old"));
}

/// A scripted store with one number as the value of every key, which a client that does not use weir
/// increments now and then.
#[derive(Default)]
struct Store {
    held: u64,
    /// The number of queued requests of each open transaction, by the link over which it was sent.
    queued: HashMap<String, usize>,
}

impl Store {
    fn carry_out(&mut self, sent: &Sent) -> String {
        let value = bulk(&self.held.to_string());
        let from = format!("{:?}", (sent.shard, sent.link));
        match sent.frame.split("\r\n").nth(2).expect("a command") {
            "PTTL" => ":-1\r\n".to_owned(),
            "MULTI" => {
                self.queued.insert(from, 0);
                "+OK\r\n".to_owned()
            }
            "EXEC" => {
                let queued = self.queued.remove(&from).expect("it was begun");
                format!("*{queued}\r\n{}", value.repeat(queued))
            }
            _ => match self.queued.get_mut(&from) {
                Some(queued) => {
                    *queued += 1;
                    "+QUEUED\r\n".to_owned()
                }
                None => value,
            },
        }
    }
}

/// A request of the test that has no reply yet, with the bytes of the reply that have come.
struct Waiting {
    is_block: bool,
    told: String,
    /// The newest number that a transaction had returned before the request was sent.
    floor: u64,
}

#[test]
fn nobody_is_told_what_is_older_than_what_a_transaction_has_told() {
    let (mut hits, mut newer) = (0, 0);
    for seed in 0..40 {
        let random = &mut Random::new(seed);
        let mut rig = eager(2, |settings| {
            settings.hot.copied_from = [100, 10];
            settings.private_links_max = 10;
        });
        let clients = [0, 0, 1, 1].map(|shard| rig.client(shard));
        let key = rig.key(1, 0);
        let mut store = Store::default();
        let mut waiting: [Option<Waiting>; 4] = Default::default();
        let (mut seen, mut floor) = ([0; 4], 0);
        for _ in 0..6_000 {
            match random.below(40) {
                0..=15 => {
                    let client = random.index(4);
                    if waiting[client].is_none() {
                        let is_block = random.below(12) == 0;
                        waiting[client] = Some(Waiting { is_block, told: String::new(), floor });
                        let get = ["GET", key.as_str()];
                        let block = [&["MULTI"][..], &get, &["EXEC"]];
                        rig.send(clients[client], if is_block { &block } else { &block[1..2] });
                    }
                }
                16..=18 => rig.wait(random.between(1, 5) as u32 * MILLISECOND),
                19 => store.held += u64::from(random.below(4) == 0),
                _ if !rig.at_stores.is_empty() => {
                    let over = random.pick(&rig.at_stores).clone();
                    let is_on = |sent: &Sent| (sent.shard, sent.link) == (over.shard, over.link);
                    let at = rig.at_stores.iter().position(is_on).expect("there is one");
                    let next = rig.at_stores.remove(at);
                    let reply = store.carry_out(&next);
                    rig.bytes(&next, reply.as_bytes());
                }
                _ => {}
            }
            for client in 0..4 {
                let Some(asked) = &mut waiting[client] else { continue };
                asked.told += &rig.told(clients[client]);
                let lines: Vec<&str> = asked.told.split_terminator("\r\n").collect();
                if lines.len() < if asked.is_block { 5 } else { 2 } {
                    continue;
                }
                let value: u64 = lines.last().and_then(|line| line.parse().ok()).expect("a value");
                assert!(
                    value >= asked.floor,
                    "seed {seed}: {value}, where a transaction had told {}",
                    asked.floor
                );
                assert!(
                    value >= seen[client],
                    "seed {seed}: {value}, where its client had read {}",
                    seen[client]
                );
                seen[client] = value;
                if asked.is_block {
                    newer += u64::from(value > floor);
                    floor = floor.max(value);
                }
                waiting[client] = None;
            }
        }
        hits += rig.counted(Counter::HotHits) + rig.counted(Counter::HotHitsCopied);
    }
    assert!(hits > 10_000 && newer > 1_000, "{hits} {newer}");
}

#[test]
fn a_transaction_of_a_client_that_watches_keys_may_be_carried_out_after_its_connection_was_lost() {
    let mut rig = eager(1, |settings| settings.private_links_max = 10);
    let [client, writer] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    rig.send(writer, &[&["WATCH", &key]]);
    private::greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(writer, &[&["MULTI"], &["SET", &key, "new"], &["EXEC"]]);
    assert_eq!(rig.words_at_stores(), ["MULTI", "SET", "EXEC"]);
    rig.lose("EXEC");
    assert!(rig.told(writer).contains("-UNAVAILABLE backend=store0 reason=connection-lost "));
    rig.keeps_nothing_for_a_while(client, &key);
}
