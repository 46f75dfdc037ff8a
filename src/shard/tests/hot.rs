//! Tests of hot keys, in front of a store that replies what a test says.

mod stale;
mod tracked;
mod transactions;

use super::*;
use crate::config::HotScripts;
use crate::policy::hot_keys::HotSettings as Detection;
use crate::values::Usage;
use crate::values::limits::{HOT_QUEUED_KEYS_EXAMINED_MAX, HOT_SPLIT_KEYS_MAX};

const TTL: Duration = Duration::from_millis(200);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Returns a test rig (shards with scripted stores and clients) with one store, whose cores take a key for
/// hot from 20 requests per second on.
fn eager(shards: u16, change: impl Fn(&mut ShardSettings)) -> Rig {
    eager_before(shards, 1, change)
}

/// Returns a test rig (shards with scripted stores and clients) with `backends` stores, whose cores take a
/// key for hot from 20 requests per second on.
fn eager_before(shards: u16, backends: u16, change: impl Fn(&mut ShardSettings)) -> Rig {
    let hot = eager_settings(backends);
    Rig::with(shards, backends, |settings| {
        settings.hot = hot.clone();
        change(settings);
    })
}

/// Returns a test rig (shards with scripted stores and clients) with one core in front of a cluster, which takes a key
/// for hot from 20 requests per second on.
fn eager_before_a_cluster() -> Rig {
    let hot = eager_settings(cluster::NODES);
    cluster::clustered(1, |settings| settings.hot = hot.clone())
}

fn eager_settings(backends: u16) -> HotSettings {
    let detection = Detection { least_per_second: 20, least_share_per_mille: 0, ..Detection::default() };
    HotSettings { detection, ttl: TTL, ..HotSettings::new(backends) }
}

/// Returns a test rig (shards with scripted stores and clients) with one core, two clients, and a hot key of
/// which no reply is cached.
fn with_hot_key() -> (Rig, [usize; 2], String) {
    let mut rig = eager(1, |_| {});
    let clients = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(clients[0], &key);
    (rig, clients, key)
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

impl Rig {
    /// Checks that no reply to reads of a key is kept while a write that was just lost may still be carried
    /// out, and that they are kept again after that time.
    fn keeps_nothing_for_a_while(&mut self, client: usize, key: &str) {
        let lost_at = self.now.monotonic;
        while self.now.monotonic.since(lost_at) + MILLISECOND < TTL {
            let (told, asked) = self.ask(client, &["GET", key], ":-1\r\n", "$3\r\nold\r\n");
            assert!(told == bulk("old") && asked.last().is_some_and(|asked| asked == "GET"), "{asked:?}");
            self.wait(10 * MILLISECOND);
        }
        self.wait(10 * MILLISECOND);
        self.keep(client, key, "new");
        assert_eq!(self.figures().writes_under_way, 0);
    }

    /// Reads a key until its replies are cached, and then lets those expire.
    fn make_hot(&mut self, client: usize, key: &str) {
        let before = self.counted(Counter::HotHits);
        for _ in 0..60 {
            self.send(client, &[&["GET", key]]);
            self.serve(":-1\r\n", "$5\r\nfirst\r\n");
            self.wait(10 * MILLISECOND);
        }
        assert!(self.counted(Counter::HotHits) > before, "{key} is not hot");
        assert_eq!(self.told(client), "$5\r\nfirst\r\n".repeat(60));
        self.wait(TTL);
    }

    /// Answers all unanswered requests at stores: PTTL with `expiry`, HELLO and MULTI as a store does, and
    /// others with `reply`. Returns the names of the commands that were answered.
    fn serve(&mut self, expiry: &str, reply: &str) -> Vec<String> {
        let mut asked = Vec::new();
        while let Some(word) = self.words_at_stores().first().map(|word| (*word).to_owned()) {
            match word.as_str() {
                "PTTL" => self.answer_next(expiry),
                "HELLO" => self.answer_next("%1\r\n+proto\r\n:3\r\n"),
                "MULTI" => self.answer_next("+OK\r\n"),
                _ => self.answer_next(reply),
            }
            asked.push(word);
        }
        asked
    }

    /// Answers all unanswered requests at stores like [`Rig::serve`], but `MGET` with `value` for each of its
    /// keys. Returns the names of the commands that were answered.
    fn serve_values(&mut self, value: &str) -> Vec<String> {
        self.serve_each(":-1\r\n", |_| value.to_owned())
    }

    /// Answers all unanswered requests at stores: PTTL with `expiry`, `MGET` with the value of each of its keys, and
    /// others with the value of their first key. Returns the names of the commands that were answered.
    fn serve_each(&mut self, expiry: &str, value_of: impl Fn(&str) -> String) -> Vec<String> {
        let mut asked = Vec::new();
        while let Some(sent) = self.at_stores.first() {
            let words: Vec<String> = sent.frame.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect();
            let values = words[1..].iter().map(|key| value_of(key));
            let reply = match words[0].as_str() {
                "PTTL" => expiry.to_owned(),
                "MGET" => format!("*{}\r\n{}", words.len() - 1, values.collect::<String>()),
                _ => values.take(1).collect(),
            };
            self.answer_next(&reply);
            asked.push(words[0].clone());
        }
        asked
    }

    /// Returns a key with this home core (the core through which its requests pass) on the first store, which
    /// differs from `others` and shares no slot with them.
    fn other_key(&self, home: u16, others: &[&str]) -> String {
        let taken: Vec<u16> = others.iter().map(|key| slot_of(key.as_bytes())).collect();
        let is_fit = |key: &String| {
            let slot = slot_of(key.as_bytes());
            !taken.contains(&slot)
                && self.topology.home_of(slot) == ShardId(home)
                && self.topology.backend_of(slot) == BackendId(0)
        };
        (0..100_000).map(|number| format!("other-{number}")).find(is_fit).expect("some key does")
    }

    /// Sends a client's request and answers the requests that it causes at stores: PTTL with `expiry`, others
    /// with `reply`. Returns the client's reply, and the names of the commands that were at the store.
    fn ask(&mut self, client: usize, words: &[&str], expiry: &str, reply: &str) -> (String, Vec<String>) {
        self.send(client, &[words]);
        let asked = self.serve(expiry, reply);
        (self.told(client), asked)
    }

    /// Reads a hot key, whose value the store tells, and checks that the value is cached from then on.
    fn keep(&mut self, client: usize, key: &str, value: &str) {
        let (told, asked) = self.ask(client, &["GET", key], ":-1\r\n", &bulk(value));
        assert_eq!((told.as_str(), asked.join(" ").as_str()), (bulk(value).as_str(), "PTTL GET"));
        assert!(self.knows(client, key, value));
    }

    /// True if a client's read of a key is answered from the cache, with this value. If false, the read is at
    /// the store and not answered yet.
    fn knows(&mut self, client: usize, key: &str, value: &str) -> bool {
        let before = self.at_stores.len();
        self.send(client, &[&["GET", key]]);
        let is_known = self.at_stores.len() == before;
        if is_known {
            assert_eq!(self.told(client), bulk(value));
        }
        is_known
    }

    fn figures(&self) -> HotFigures {
        self.shards[0].hot_figures()
    }

    /// Returns a client with RESP3, for which weir uses other connections to stores.
    fn modern_client(&mut self, shard: usize) -> usize {
        let client = self.client(shard);
        self.send(client, &[&["HELLO", "3"]]);
        assert!(self.told(client).starts_with("%7\r\n"));
        client
    }
}

#[test]
fn what_is_kept_of_a_store_is_not_told_once_its_name_leads_elsewhere() {
    let (mut rig, [client, other], key) = with_hot_key();
    let get = ["GET", key.as_str()];
    let kept = bulk("kept");
    assert!(!rig.ask(client, &get, ":-1\r\n", &kept).1.is_empty(), "it is fetched");
    assert_eq!(rig.ask(other, &get, ":-1\r\n", &bulk("nobody asks")), (kept, Vec::new()));
    rig.shards[0].handle_store_moved(BackendId(0), rig.now);
    rig.turns();
    let (told, asked) = rig.ask(other, &get, ":-1\r\n", &bulk("elsewhere"));
    assert_eq!(told, bulk("elsewhere"));
    assert!(!asked.is_empty());
}

#[test]
fn what_everybody_reads_is_asked_for_once_for_as_long_as_it_is_good() {
    let (mut rig, clients, key) = with_hot_key();
    let mut asked = 0;
    for turn in 0..2_000 {
        for client in clients {
            rig.send(client, &[&["GET", &key]]);
        }
        asked += rig.frames("GET").len();
        assert!(rig.frames("GET").len() <= 1, "one at a time");
        rig.serve(":-1\r\n", "$1\r\nv\r\n");
        for client in clients {
            assert_eq!(rig.told(client), "$1\r\nv\r\n", "{turn}");
        }
        rig.wait(MILLISECOND);
    }
    // A cached reply lives 180 to 200 ms, and is fetched again 2 ms before its expiry.
    assert!((10..=12).contains(&asked), "{asked}");
}

#[test]
fn nothing_is_answered_that_is_older_than_allowed_counted_from_when_it_was_sent_for() {
    let (mut rig, [client, other], key) = with_hot_key();
    let mut longest = Duration::ZERO;
    for number in 0..100 {
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
        let sent_at = rig.now.monotonic;
        // Some fetches take nearly as long as a cached reply lives.
        rig.wait(MILLISECOND * (number % 3) * 60);
        rig.serve(":-1\r\n", "$1\r\nv\r\n");
        rig.told(client);
        // Fetches that would renew the cached reply in advance are never answered.
        loop {
            rig.send(other, &[&["GET", &key]]);
            if rig.told(other).is_empty() {
                break;
            }
            longest = longest.max(rig.now.monotonic.since(sent_at));
            assert!(longest < TTL, "{longest:?}");
            rig.wait(MILLISECOND);
        }
        rig.wait(TTL);
        rig.serve(":-1\r\n", "$1\r\nv\r\n");
        rig.told(other);
        rig.send(client, &[&["SET", &key, "v"]]);
        rig.serve("", "+OK\r\n");
        rig.told(client);
    }
    assert!(longest + 25 * MILLISECOND >= TTL, "{longest:?}");
}

#[test]
fn nobody_joins_a_fetch_that_has_taken_too_long() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.send(client, &[&["GET", &key]]);
    rig.wait(MILLISECOND * 199);
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.wait(MILLISECOND);
    let late = rig.client(0);
    rig.send(late, &[&["GET", &key]]);
    assert_eq!(
        rig.frames("GET").len(),
        1,
        "it waits for the next one, which leaves when this one comes back"
    );
    rig.answer_next(":-1\r\n");
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.answer_next(":-1\r\n");
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!((rig.told(client), rig.told(other), rig.told(late)), (bulk("1"), bulk("1"), bulk("2")));
}

#[test]
fn a_key_is_not_answered_after_its_own_end() {
    let (mut rig, [client, other], key) = with_hot_key();
    let (told, asked) = rig.ask(client, &["GET", &key], ":50\r\n", "$1\r\nv\r\n");
    assert_eq!((told, asked.join(" ")), (bulk("v"), "PTTL GET".to_owned()));
    rig.wait(20 * MILLISECOND);
    assert!(rig.knows(other, &key, "v"));
    rig.wait(30 * MILLISECOND);
    assert!(!rig.knows(other, &key, "v"));
    rig.serve(":-2\r\n", "$-1\r\n");
    assert_eq!(rig.told(other), "$-1\r\n");
}

#[test]
fn who_asks_after_the_end_of_a_key_is_not_told_what_was_on_its_way() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.send(client, &[&["GET", &key]]);
    rig.wait(20 * MILLISECOND);
    for _ in 0..2 {
        rig.send(other, &[&["GET", &key]]);
    }
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.answer_next(":15\r\n");
    rig.answer_next("$1\r\nv\r\n");
    assert_eq!((rig.told(client), rig.told(other)), (bulk("v"), String::new()));
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"], "once for all of them");
    rig.serve(":-2\r\n", "$-1\r\n");
    assert_eq!(rig.told(other), "$-1\r\n".repeat(2));
}

#[test]
fn who_has_asked_before_the_fetch_left_is_told_though_the_key_has_ended() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.send(other, &[&["GET", &key]]);
    rig.send(client, &[&["GET", &key], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.wait(10 * MILLISECOND);
    rig.answer_next(":5\r\n");
    rig.answer_next(&bulk("v"));
    // Reads that came when the fetch had left may have come after the end of the key, so they are fetched again, once.
    assert_eq!((rig.told(other), rig.told(client)), (bulk("v"), String::new()));
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.wait(10 * MILLISECOND);
    rig.answer_next(":5\r\n");
    rig.answer_next(&bulk("w"));
    assert_eq!((rig.told(client), rig.figures().waiters), (bulk("w").repeat(2), 0));
    assert!(rig.at_stores.is_empty());
}

#[test]
fn what_the_store_says_of_its_end_decides_whether_a_reply_is_kept() {
    for (expiry, reply, is_kept) in [
        (":-1\r\n", "$1\r\nv\r\n", true),
        (":0\r\n", "$1\r\nv\r\n", false),
        (":-2\r\n", "$-1\r\n", true),
        (":-2\r\n", "$1\r\nv\r\n", false),
        ("-LOADING not yet\r\n", "$1\r\nv\r\n", false),
        ("$1\r\n5\r\n", "$1\r\nv\r\n", false),
        (":-1\r\n", "-WRONGTYPE no\r\n", false),
        (":-1\r\n", "-LOADING not yet\r\n", false),
        (":-1\r\n", "$0\r\n\r\n", true),
    ] {
        let (mut rig, [client, other], key) = with_hot_key();
        let (told, asked) = rig.ask(client, &["GET", &key], expiry, reply);
        assert_eq!((told.as_str(), asked.join(" ").as_str()), (reply, "PTTL GET"));
        let (told, asked) = rig.ask(other, &["GET", &key], expiry, reply);
        assert_eq!((told.as_str(), asked.is_empty()), (reply, is_kept), "{expiry:?} {reply:?}");
    }
}

#[test]
fn everybody_who_waits_is_told_the_error_that_the_store_told() {
    let (mut rig, clients, key) = with_hot_key();
    for client in clients {
        rig.send(client, &[&["GET", &key]]);
    }
    assert_eq!(rig.serve(":-1\r\n", "-WRONGTYPE no\r\n").join(" "), "PTTL GET");
    assert_eq!(clients.map(|client| rig.told(client)), ["-WRONGTYPE no\r\n"; 2]);
}

#[test]
fn each_dialect_is_kept_by_itself() {
    let (mut rig, [client, other], key) = with_hot_key();
    let modern = [rig.modern_client(0), rig.modern_client(0)];
    rig.ask(client, &["GET", &key], ":-2\r\n", "$-1\r\n");
    let (told, asked) = rig.ask(modern[0], &["GET", &key], ":-2\r\n", "_\r\n");
    assert_eq!((told.as_str(), asked.join(" ").as_str()), ("_\r\n", "HELLO PTTL GET"));
    assert_eq!(rig.ask(other, &["GET", &key], "", ""), ("$-1\r\n".to_owned(), Vec::new()));
    assert_eq!(rig.ask(modern[1], &["GET", &key], "", ""), ("_\r\n".to_owned(), Vec::new()));
    assert_eq!(rig.figures().kept, 2);
}

#[test]
fn each_request_is_kept_by_itself_and_no_more_than_sixteen_of_a_key() {
    let (mut rig, [client, _], key) = with_hot_key();
    // After this pause, the reply that was fetched while the key became hot is not cached any more.
    rig.wait(100 * MILLISECOND);
    let range = |number: usize| (10 + number).to_string();
    for round in 0..2 {
        let mut asked_for = 0;
        for number in 0..20 {
            let reply = bulk(&format!("from {number}"));
            let request = ["GETRANGE", &key, &range(number), "99"];
            let (told, asked) = rig.ask(client, &request, ":-1\r\n", &reply);
            assert_eq!(told, reply);
            asked_for += usize::from(!asked.is_empty());
        }
        assert!(rig.figures().kept <= limits::HOT_ANSWERS_MAX);
        assert_eq!(asked_for, if round == 0 { 20 } else { 4 });
    }
    let (_, asked) = rig.ask(client, &["TTL", &key], "", ":-1\r\n");
    assert_eq!((asked.join(" "), rig.ask(client, &["TTL", &key], "", ":-1\r\n").1.len()), ("TTL".into(), 1));
}

#[test]
fn what_is_large_is_shared_and_not_kept() {
    let (mut rig, clients, key) = with_hot_key();
    let large = bulk(&"x".repeat(limits::HOT_REPLY_BYTES_MAX));
    for _ in 0..2 {
        for client in clients {
            rig.send(client, &[&["GET", &key]]);
        }
        assert_eq!(rig.serve(":-1\r\n", &large).join(" "), "PTTL GET", "once for all of them");
        assert!(clients.iter().all(|client| rig.told(*client) == large));
        assert_eq!(rig.figures().kept, 0);
    }
}

#[test]
fn no_more_is_kept_than_fits() {
    for (entries_max, bytes_max) in [(1, 1 << 20), (100, 20)] {
        let mut rig = eager(1, |settings| {
            (settings.hot.entries_max, settings.hot.bytes_max) = (entries_max, bytes_max);
        });
        let client = rig.client(0);
        let key = rig.key(0, 0);
        rig.make_hot(client, &key);
        let value = bulk("123456");
        assert_eq!(rig.ask(client, &["GET", &key], ":-1\r\n", &value).1.len(), 2);
        assert_eq!(rig.ask(client, &["GETRANGE", &key, "0", "5"], ":-1\r\n", &value).1.len(), 2);
        assert_eq!(rig.figures().kept, 1);
        assert_eq!(rig.ask(client, &["GET", &key], "", "").1.len(), 0);
    }
}

/// All requests and transactions that may change a key; `|` separates the requests of a transaction. KEY
/// stands for the key, and OTHER for another key.
const WRITES: [&str; 24] = [
    "SET KEY v",
    "DEL KEY",
    "UNLINK KEY",
    "GETDEL KEY",
    "GETEX KEY PX 5",
    "EXPIRE KEY 1",
    "PERSIST KEY",
    "APPEND KEY v",
    "DEL OTHER KEY",
    "MSET OTHER v KEY v",
    "MSETNX OTHER v KEY v",
    "RENAME KEY OTHER",
    "RENAME OTHER KEY",
    "COPY OTHER KEY",
    "LMOVE OTHER KEY LEFT LEFT",
    "SORT OTHER STORE KEY",
    "BITOP AND KEY OTHER OTHER",
    "MULTI|SET KEY v|EXEC",
    "MULTI|GET OTHER|RENAME OTHER KEY|EXEC",
    "EVAL code 1 KEY",
    "EVAL code 0",
    "FCALL name 1 OTHER",
    "FLUSHALL",
    "FROB OTHER",
];

/// Checks that a write makes cached replies invalid: changes a key by `write`, one of [`WRITES`], from a client on the
/// first core, and reads the key meanwhile and afterwards. The key's home (the core through which its requests pass) is
/// the last core. `is_modern` is true for a writer with RESP3.
fn written(shards: u16, write: &str, is_modern: bool) {
    let mut rig = eager(shards, |_| {});
    let [reader, late] = [rig.client(0), rig.client(0)];
    let home = shards - 1;
    let key = rig.key(home, 0);
    // Two other keys: one of the same slot, and one whose home is another core.
    let others = [format!("{{{key}}}other"), rig.key(0, 0)];
    for other in others {
        rig.make_hot(reader, &key);
        rig.keep(reader, &key, "old");
        let writer = if is_modern { rig.modern_client(0) } else { rig.client(0) };
        let requests: Vec<Vec<String>> = write
            .split('|')
            .map(|request| {
                let words = request.split(' ');
                words.map(|word| word.replace("KEY", &key).replace("OTHER", &other)).collect()
            })
            .collect();
        for request in &requests {
            let words: Vec<&str> = request.iter().map(String::as_str).collect();
            rig.send(writer, &[&words]);
        }
        if rig.words_at_stores().first() == Some(&"HELLO") {
            rig.answer_next("%1\r\n+proto\r\n:3\r\n");
        }
        assert!(!rig.at_stores.is_empty(), "{write}");
        // From the moment that the write is sent, no cached value of the key is used, and no value that is
        // read meanwhile is cached.
        let told = |rig: &mut Rig, client: usize, value: &str| {
            if !rig.frames("\r\nPTTL\r\n").is_empty() {
                rig.answer_first("\r\nPTTL\r\n", ":-1\r\n");
            }
            let at = rig.at_stores.iter().rposition(|sent| sent.frame.contains("\r\nGET\r\n"));
            let sent = rig.at_stores.remove(at.expect("it was sent"));
            rig.bytes(&sent, bulk(value).as_bytes());
            rig.told(client)
        };
        assert!(!rig.knows(reader, &key, "old"), "{write}");
        if is_modern && requests.len() == 1 {
            assert_eq!(told(&mut rig, reader, "old"), bulk("old"));
            assert!(!rig.knows(reader, &key, "old"), "{write}");
        }
        let reply = match write.split(' ').next() {
            Some("SET" | "MSET" | "RENAME" | "FLUSHALL") => "+OK\r\n",
            _ => ":1\r\n",
        };
        let is_block = requests.len() > 1;
        while let Some(at) =
            rig.at_stores.iter().position(|sent| !sent.frame.contains("\r\nGET\r\n") || is_block)
        {
            let sent = rig.at_stores[at].clone();
            let reply = match () {
                () if !is_block => reply,
                () if sent.frame.contains("MULTI") => "+OK\r\n",
                () if sent.frame.contains("EXEC") => "*1\r\n+OK\r\n",
                () if sent.frame.contains(&key) && sent.frame.contains("\r\nGET\r\n") => "$3\r\nnew\r\n",
                () => "+QUEUED\r\n",
            };
            rig.at_stores.remove(at);
            rig.bytes(&sent, reply.as_bytes());
        }
        assert!(!rig.told(writer).is_empty(), "{write}: it is acknowledged");
        while !rig.at_stores.is_empty() {
            assert_eq!(told(&mut rig, reader, "new"), bulk("new"), "{write}");
        }
        // All clients read the new value from then on; once it is cached, the store gets no more reads.
        assert!(!rig.knows(late, &key, "old"), "{write}");
        rig.serve(":-1\r\n", "$3\r\nnew\r\n");
        assert_eq!(rig.told(late), bulk("new"), "{write}");
        assert!(rig.knows(late, &key, "new"), "{write}: nothing of it stays");
        rig.told(reader);
        for shard in &rig.shards {
            assert_eq!(shard.hot_figures().writes_under_way, 0, "{write}");
        }
        rig.ask(reader, &["SET", &key, "v"], "", "+OK\r\n");
    }
}

#[test]
fn nothing_old_is_answered_after_any_kind_of_write_has_left() {
    for write in WRITES {
        written(1, write, false);
        written(1, write, true);
    }
}

#[test]
fn nor_where_the_write_leaves_from_another_core() {
    for write in WRITES {
        written(2, write, false);
        written(2, write, true);
    }
}

#[test]
fn what_was_fetched_before_a_write_is_not_kept_though_it_comes_after_it() {
    let (mut rig, [client, other], key) = with_hot_key();
    let writer = rig.modern_client(0);
    rig.send(client, &[&["GET", &key]]);
    rig.send(writer, &[&["SET", &key, "new"]]);
    rig.answer_first("HELLO", "%1\r\n+proto\r\n:3\r\n");
    rig.answer_first("SET", "+OK\r\n");
    assert_eq!(rig.told(writer), "+OK\r\n");
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.frames("GET").len(), 2, "it does not wait for what was sent before the write");
    for reply in [":-1\r\n", "$3\r\nold\r\n", ":-1\r\n", "$3\r\nnew\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!((rig.told(client), rig.told(other)), (bulk("old"), bulk("new")));
    assert!(rig.knows(client, &key, "new"));
    assert_eq!(rig.counted(Counter::HotDiscarded), 1);
}

#[test]
fn nothing_is_kept_until_all_is_answered_that_was_sent_before_the_key_was_hot() {
    let mut rig = eager(1, |_| {});
    let [writer, client] = [rig.modern_client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.send(writer, &[&["SET", &key, "new"]]);
    rig.answer_next("%1\r\n+proto\r\n:3\r\n");
    for _ in 0..60 {
        rig.send(client, &[&["GET", &key]]);
        rig.answer_first("GET", "$3\r\nold\r\n");
        assert_eq!((rig.told(client), rig.words_at_stores().join(" ")), (bulk("old"), "SET".to_owned()));
        rig.wait(10 * MILLISECOND);
    }
    assert!(rig.counted(Counter::HotJoins) > 0 && rig.figures().keys == 1, "reads are shared");
    assert_eq!((rig.counted(Counter::HotFetched), rig.counted(Counter::HotBypassedWarming)), (0, 0));
    rig.answer_next("+OK\r\n");
    rig.wait(MILLISECOND);
    rig.keep(client, &key, "new");
}

#[test]
fn nor_until_all_is_sent_that_was_queued_before() {
    let queue = OverloadSettings { shed: Mode::Off, ..OverloadSettings::new(1, 1) };
    let mut rig = eager(1, |settings| settings.overload = queue.clone());
    let [filler, client] = [rig.client(0), rig.client(0)];
    let writer = rig.modern_client(0);
    let key = rig.key(0, 0);
    rig.send(writer, &[&["GET", "other"]]);
    rig.serve("", "$-1\r\n");
    let many: Vec<u8> = (0..100).flat_map(|number| request(&["GET", &format!("f{number}")])).collect();
    rig.raw(filler, &many);
    rig.send(writer, &[&["SET", &key, "new"]]);
    assert!(rig.frames("SET").is_empty(), "it is queued");
    // Requests that are queued count towards the key's heat too.
    for _ in 0..30 {
        rig.send(client, &[&["GET", &key]]);
        rig.now.monotonic = rig.now.monotonic.after(2 * MILLISECOND);
        rig.turns();
    }
    rig.now.monotonic = rig.now.monotonic.after(50 * MILLISECOND);
    rig.turns();
    assert_eq!(rig.figures().keys, 1);
    // Requests in flight are answered, and queued ones are sent; those except the write are answered too.
    while let Some(at) = rig.at_stores.iter().position(|sent| !sent.frame.contains("SET")) {
        assert!(rig.frames("PTTL").is_empty());
        let sent = rig.at_stores.remove(at);
        rig.bytes(&sent, b"$3\r\nold\r\n");
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(600));
        rig.turns();
    }
    rig.told(client);
    assert_eq!(rig.words_at_stores(), ["SET"]);
    rig.send(client, &[&["GET", &key]]);
    rig.answer_first("GET", "$3\r\nold\r\n");
    assert_eq!((rig.told(client), rig.words_at_stores().join(" ")), (bulk("old"), "SET".to_owned()));
    rig.answer_next("+OK\r\n");
    rig.wait(MILLISECOND);
    rig.keep(client, &key, "new");
}

#[test]
fn nobody_waits_for_a_fetch_over_another_connection_than_its_own() {
    let mut rig = eager(1, |_| {});
    let [client, heavy] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    // The client's ranges are known to be expensive, so its requests use the other connection while one is in
    // flight.
    rig.send(heavy, &[&["LRANGE", "l", "0", "-1"]]);
    rig.answer_next(&format!("*20000\r\n{}", ":1\r\n".repeat(20_000)));
    rig.told(heavy);
    rig.send(client, &[&["GET", &key]]);
    rig.send(heavy, &[&["LRANGE", "l", "0", "-1"], &["GET", &key]]);
    let links = |word: &str| rig.frames(word).iter().map(|sent| sent.link).collect::<Vec<_>>();
    let (fetches, ranges) = (links("PTTL"), links("LRANGE"));
    assert_eq!(
        fetches.len(),
        2,
        "what it sends next takes the other one too, and must not come before its read"
    );
    assert_eq!(fetches[1..], ranges);
    assert_ne!(fetches[0], fetches[1]);
}

#[test]
fn who_waits_for_a_fetch_and_then_writes_writes_when_that_has_come_back() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.send(other, &[&["GET", &key]]);
    rig.send(client, &[&["GET", &key], &["GET", &key], &["SET", &key, "new"], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.answer_next(":-1\r\n");
    rig.answer_next("$3\r\nold\r\n");
    assert_eq!(rig.words_at_stores(), ["SET", "GET"], "what it reads then comes behind what it has written");
    rig.answer_next("+OK\r\n");
    rig.answer_next("$3\r\nnew\r\n");
    assert_eq!(rig.told(other), bulk("old"));
    assert_eq!(rig.told(client), [bulk("old"), bulk("old"), "+OK\r\n".to_owned(), bulk("new")].concat());
    rig.keep(other, &key, "new");
}

#[test]
fn what_is_kept_overtakes_nothing_that_its_connection_has_under_way() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.keep(other, &key, "v");
    rig.send(client, &[&["TTL", &key], &["GET", &key], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["TTL"]);
    assert_eq!((rig.told(client).as_str(), rig.figures().waiters), ("", 2));
    rig.answer_next(":-1\r\n");
    assert_eq!(rig.told(client), ":-1\r\n$1\r\nv\r\n$1\r\nv\r\n", "they were told it when they could be");
    // A read after the client's own write is sent behind it.
    rig.send(client, &[&["TTL", &key], &["GET", &key], &["SET", &key, "w"], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["TTL"]);
    rig.answer_next(":-1\r\n");
    assert_eq!(rig.told(client), ":-1\r\n$1\r\nv\r\n");
    assert_eq!(rig.words_at_stores(), ["SET", "GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\nw\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\nw\r\n");
    rig.keep(other, &key, "w");
    assert_eq!((rig.figures().waiters, rig.figures().writes_under_way), (0, 0));
}

#[test]
fn what_is_held_back_is_read_together_if_it_is_not_known_then() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.send(client, &[&["TTL", &key], &["GET", &key], &["GET", &key]]);
    rig.send(other, &[&["SET", &key, "w"]]);
    assert_eq!(rig.words_at_stores(), ["TTL", "SET"]);
    rig.answer_next(":-1\r\n");
    assert_eq!(rig.words_at_stores(), ["SET", "GET"]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\nw\r\n");
    assert_eq!(rig.told(client), ":-1\r\n$1\r\nw\r\n$1\r\nw\r\n");
    rig.told(other);
    assert_eq!(rig.figures().kept, 0, "a write was under way when it was sent");
    rig.keep(other, &key, "w");
}

#[test]
fn what_is_held_back_goes_its_own_way_when_its_key_is_not_hot_any_more() {
    let (mut rig, [client, _], key) = with_hot_key();
    rig.send(client, &[&["TTL", &key], &["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["TTL"]);
    rig.wait(Duration::from_secs(3));
    assert_eq!((rig.figures().keys, rig.words_at_stores().join(" ")), (0, "TTL GET".to_owned()));
    rig.serve("", "$1\r\nv\r\n");
    assert_eq!((rig.told(client), rig.figures()), (bulk("v").repeat(2), HotFigures::default()));
}

#[test]
fn a_crowd_that_has_waited_for_a_slow_store_does_not_go_on_asking_it() {
    let mut rig = eager(1, |_| {});
    let crowd: Vec<usize> = (0..20).map(|_| rig.client(0)).collect();
    let key = rig.key(0, 0);
    // Each client sends its next request before the reply to the last one, so that it always has a request in
    // flight.
    let mut sent = 0;
    for turn in 0..100 {
        for client in &crowd {
            rig.send(*client, &[&["GET", &key]]);
        }
        rig.wait(10 * MILLISECOND);
        sent = sent.max(rig.at_stores.len());
        for _ in 0..(rig.at_stores.len() / 3).max(1) {
            if let Some(word) = rig.words_at_stores().first() {
                let reply = if *word == "PTTL" { ":-1\r\n" } else { "$1\r\nv\r\n" };
                rig.answer_next(reply);
            }
        }
        assert!(turn < 60 || rig.at_stores.len() <= 2, "{turn}: {}", rig.at_stores.len());
    }
    assert!(sent > 40, "there was a backlog");
}

#[test]
fn keys_with_one_hash_are_told_apart() {
    // A key of sixteen bytes that begins with the second secret has a hash that does not depend on its other
    // bytes.
    let secret = rapidhash::v3::RapidSecrets::seed(0).secrets[1].to_le_bytes();
    let named = |number: u64| [secret, number.to_le_bytes()].concat();
    let first = named(1);
    let slot = slot_of(&first);
    let second = (2..1_000_000).map(named).find(|key| slot_of(key) == slot).expect("one of them");
    let hash = |key: &[u8]| rapidhash::v3::rapidhash_v3_seeded(key, &rapidhash::v3::RapidSecrets::seed(0));
    assert_eq!(hash(&first), hash(&second));
    let mut rig = eager(1, |_| {});
    let client = rig.client(0);
    let get = |key: &[u8]| {
        let mut bytes = Vec::new();
        encode::request(&mut bytes, [b"GET".as_slice(), key].into_iter());
        bytes
    };
    for _ in 0..60 {
        rig.raw(client, &get(&first));
        rig.serve(":-1\r\n", "$1\r\n1\r\n");
        rig.wait(10 * MILLISECOND);
    }
    assert!(rig.counted(Counter::HotHits) > 0);
    rig.told(client);
    for _ in 0..3 {
        rig.raw(client, &get(&second));
        assert_eq!(rig.serve(":-1\r\n", "$1\r\n2\r\n"), ["GET"], "as if it were not hot");
        assert_eq!(rig.told(client), bulk("2"));
        rig.raw(client, &get(&first));
        rig.serve(":-1\r\n", "$1\r\n1\r\n");
        assert_eq!(rig.told(client), bulk("1"));
    }
}

#[test]
fn writes_of_other_keys_change_nothing() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.keep(client, &key, "v");
    for number in 0..5_000 {
        rig.send(other, &[&["SET", &format!("cold:{number}"), "v"]]);
        rig.answer_next("+OK\r\n");
        assert!(rig.knows(client, &key, "v"), "after {number}");
    }
}

#[test]
fn scripts_that_are_trusted_change_what_they_declare_and_nothing_else() {
    let mut rig = eager(1, |settings| settings.hot.scripts = HotScripts::Declared);
    let [client, writer] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    rig.keep(client, &key, "v");
    for request in
        [&["EVAL", "code", "0"][..], &["EVAL", "code", "1", "other"], &["FCALL", "name", "0", &key]]
    {
        rig.send(writer, &[request]);
        assert!(rig.knows(client, &key, "v"), "{request:?}");
        rig.answer_next(":1\r\n");
    }
    rig.send(writer, &[&["EVAL", "code", "2", "other", &key]]);
    assert!(!rig.knows(client, &key, "v"));
    rig.serve(":-1\r\n", "$1\r\nw\r\n");
    rig.told(client);
    rig.keep(client, &key, "w");
}

#[test]
fn scripts_that_only_read_change_nothing() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.keep(client, &key, "v");
    for request in [&["EVAL_RO", "code", "1", &key][..], &["DBSIZE"], &["SORT_RO", &key]] {
        rig.send(other, &[request]);
        assert!(rig.knows(client, &key, "v"), "{request:?}");
        rig.answer_next("*0\r\n");
    }
}

#[test]
fn a_write_whose_connection_was_lost_may_be_carried_out_for_as_long_as_anything_is_kept() {
    for request in
        [&["SET", "KEY", "new"][..], &["EVAL", "code", "0"], &["MSET", "KEY", "new", "{KEY}2", "x"]]
    {
        let (mut rig, [client, writer], key) = with_hot_key();
        let words: Vec<String> = request.iter().map(|word| word.replace("KEY", &key)).collect();
        rig.send(writer, &[&words.iter().map(String::as_str).collect::<Vec<_>>()]);
        rig.lose(&words[0]);
        assert!(rig.told(writer).starts_with("-UNAVAILABLE"), "{request:?}");
        rig.keeps_nothing_for_a_while(client, &key);
    }
}

#[test]
fn a_write_that_was_never_sent_is_over_at_once() {
    for request in
        [&["SET", "KEY", "new"][..], &["EVAL", "code", "0"], &["MSET", "KEY", "new", "{KEY}2", "x"]]
    {
        let (mut rig, [client, writer], key) = with_hot_key();
        rig.send(client, &[&["GET", "other"]]);
        rig.lose("GET");
        rig.connecting = Connecting::Fails;
        let words: Vec<String> = request.iter().map(|word| word.replace("KEY", &key)).collect();
        rig.send(writer, &[&words.iter().map(String::as_str).collect::<Vec<_>>()]);
        assert!(rig.told(writer).contains("reason=connect-failed"), "{request:?}");
        assert_eq!(rig.figures().writes_under_way, 0);
        rig.connecting = Connecting::Works;
        rig.told(client);
        rig.wait(150 * MILLISECOND);
        rig.keep(client, &key, "v");
    }
}

#[test]
fn a_write_is_under_way_until_its_reply_has_come_though_its_client_has_left() {
    for (home, request) in
        [(0, "SET KEY new"), (1, "SET KEY new"), (0, "EVAL code 0"), (1, "MSET KEY new OTHER x")]
    {
        let mut rig = eager(2, |_| {});
        let [client, writer] = [rig.client(0), rig.modern_client(0)];
        let [key, other] = [rig.key(home, 0), rig.key(1 - home, 0)];
        rig.make_hot(client, &key);
        let words: Vec<String> =
            request.split(' ').map(|word| word.replace("KEY", &key).replace("OTHER", &other)).collect();
        rig.send(writer, &[&words.iter().map(String::as_str).collect::<Vec<_>>()]);
        while !rig.frames("HELLO").is_empty() {
            rig.answer_first("HELLO", "%1\r\n+proto\r\n:3\r\n");
        }
        let id = rig.id(writer);
        rig.shards[0].handle_client_lost(id);
        rig.turns();
        for _ in 0..5 {
            rig.send(client, &[&["GET", &key]]);
            rig.answer_first("\r\nGET\r\n", "$3\r\nold\r\n");
            assert_eq!(rig.told(client), bulk("old"));
        }
        rig.serve("", "+OK\r\n");
        rig.keep(client, &key, "new");
    }
}

#[test]
fn whoever_waits_gets_the_reply_though_the_first_one_has_left() {
    let (mut rig, [first, other], key) = with_hot_key();
    rig.send(first, &[&["GET", &key]]);
    rig.send(other, &[&["GET", &key]]);
    let id = rig.id(first);
    rig.shards[0].handle_client_lost(id);
    rig.turns();
    assert_eq!(rig.serve(":-1\r\n", "$1\r\nv\r\n").join(" "), "PTTL GET");
    assert_eq!(rig.told(other), bulk("v"));
    assert!(rig.knows(other, &key, "v"));
    let figures = rig.figures();
    assert_eq!((figures.flights, figures.waiters, rig.shards[0].requests_abandoned()), (0, 0, 0));
}

#[test]
fn when_a_fetch_fails_one_is_told_so_and_the_next_one_tries_and_then_all_are() {
    for fails_again in [false, true] {
        let (mut rig, [first, second], key) = with_hot_key();
        let third = rig.client(0);
        for client in [first, second, third] {
            rig.send(client, &[&["GET", &key]]);
        }
        assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
        rig.lose("GET");
        assert!(rig.told(first).starts_with("-UNAVAILABLE"));
        assert_eq!(
            (rig.told(second), rig.words_at_stores().join(" ")),
            (String::new(), "PTTL GET".to_owned())
        );
        if fails_again {
            rig.lose("GET");
            assert!([second, third].iter().all(|client| rig.told(*client).starts_with("-UNAVAILABLE")));
        } else {
            rig.serve(":-1\r\n", "$1\r\nv\r\n");
            assert_eq!([second, third].map(|client| rig.told(client)), [bulk("v"), bulk("v")]);
        }
        assert_eq!((rig.figures().flights, rig.figures().waiters, rig.owed()), (0, 0, 0));
        let refused = rig.counted(Counter::RefusedUnavailable);
        assert_eq!(refused, if fails_again { 3 } else { 1 }, "each one that is told so counts");
        rig.wait(60 * MILLISECOND);
        rig.told(first);
        let is_known = rig.knows(first, &key, "v");
        assert_eq!(is_known, !fails_again);
    }
}

#[test]
fn what_a_client_sent_behind_a_fetch_that_fails_goes_on() {
    let mut rig = eager_before_a_cluster();
    let [client, other] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    // Before a cluster, a write waits until the fetch before it is answered.
    rig.send(client, &[&["GET", &key], &["SET", &key, "new"]]);
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "GET"]);
    rig.lose("GET");
    let told = rig.told(client);
    assert!(told.starts_with("-UNAVAILABLE") && told.lines().count() == 1, "{told}");
    rig.answer_first("SET", "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    rig.serve(":-1\r\n", &bulk("new"));
    assert_eq!(rig.told(other), bulk("new"));
    assert_eq!((rig.figures().waiters, rig.figures().flights, rig.owed()), (0, 0, 0));
}

#[test]
fn a_write_around_weir_that_one_dialect_has_seen_is_known_in_the_other() {
    for (kept, seen, is_same) in [("$3\r\nold\r\n", "$3\r\nnew\r\n", false), ("$-1\r\n", "_\r\n", true)] {
        let mut rig = eager(1, |_| {});
        let [client, modern] = [rig.client(0), rig.modern_client(0)];
        let key = rig.key(0, 0);
        rig.make_hot(client, &key);
        assert_eq!(rig.ask(client, &["GET", &key], ":-1\r\n", kept).0, kept);
        assert_eq!(rig.ask(modern, &["GET", &key], ":-1\r\n", seen).0, seen);
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.at_stores.is_empty(), is_same, "{kept}");
        assert_eq!(rig.counted(Counter::HotWrittenPast), u64::from(!is_same));
    }
}

#[test]
fn a_module_may_write_other_keys_than_the_one_that_it_names() {
    let told =
        "*1\r\n*6\r\n$12\r\nhottest.move\r\n:-2\r\n*2\r\n$5\r\nwrite\r\n$6\r\nmodule\r\n:1\r\n:1\r\n:1\r\n";
    crate::protocol::command::learn(told.as_bytes());
    let mut rig = eager(1, |_| {});
    let [client, writer] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    rig.keep(client, &key, "v");
    rig.send(writer, &[&["HOTTEST.MOVE", "another"]]);
    rig.answer_first("HOTTEST.MOVE", "+OK\r\n");
    assert!(!rig.knows(client, &key, "v"));
}

#[test]
fn the_last_to_wait_pays_for_a_fetch_that_comes_too_late_for_it() {
    // Only bytes of replies cost anything, so that nothing but the large reply counts.
    let weights = Weights { kib_out: UNIT, ..FREE };
    let mut rig = eager(1, |settings| {
        settings.overload = OverloadSettings::new(1, 1);
        settings.admission.weights = weights;
    });
    let [first, second, third] = [(); 3].map(|()| rig.client(0));
    let key = rig.key(0, 0);
    rig.make_hot(third, &key);
    for client in [first, second] {
        rig.send(client, &[&["QOS", "CALL", "DEADLINE", "50", "GET", &key]]);
    }
    rig.wait(51 * MILLISECOND);
    for client in [first, second] {
        assert_eq!(rig.told(client), "-DEADLINE stage=backend waited_ms=50\r\n");
    }
    // A read that joins the fetch later is answered with its reply, and has caused none.
    rig.send(third, &[&["GET", &key]]);
    let value = bulk(&"x".repeat(100 << 10));
    assert_eq!(rig.serve(":-1\r\n", &value).join(" "), "PTTL GET");
    assert_eq!((rig.told(third), rig.shards[0].requests_abandoned()), (value, 0));
    // A fetch that is lost costs no more than was taken at the deadline.
    rig.wait(TTL);
    rig.send(first, &[&["QOS", "CALL", "DEADLINE", "50", "GET", &key]]);
    rig.wait(51 * MILLISECOND);
    assert_eq!(rig.shards[0].requests_abandoned(), 1);
    rig.lose("GET");
    assert_eq!((rig.shards[0].requests_abandoned(), rig.figures().flights), (0, 0));
    rig.wait(Duration::from_secs(2));
    rig.turns();
    let usage = rig.reports.iter().flat_map(|report| &report.usage);
    let metered = usage.fold([0; 2], |sum, (_, usage)| [sum[0] + usage.admitted, sum[1] + usage.cached]);
    assert_eq!(
        metered.map(|cost| cost / UNIT / 100),
        [1, 1],
        "{metered:?}: one pays, one has its reply from memory"
    );
}

#[test]
fn everybody_who_waits_has_a_deadline_of_its_own() {
    let overload = OverloadSettings::new(1, 1);
    let mut rig = eager(1, |settings| settings.overload = overload.clone());
    let [first, hurried, patient] = [(); 3].map(|()| rig.client(0));
    let key = rig.key(0, 0);
    rig.make_hot(patient, &key);
    for (client, deadline) in [(first, "100"), (hurried, "50")] {
        rig.send(client, &[&["QOS", "SET", "DEADLINE", deadline]]);
        rig.told(client);
    }
    for client in [first, hurried, patient] {
        rig.send(client, &[&["GET", &key]]);
    }
    rig.wait(49 * MILLISECOND);
    assert_eq!(rig.told(hurried), "");
    rig.wait(2 * MILLISECOND);
    assert_eq!(rig.told(hurried), "-DEADLINE stage=backend waited_ms=50\r\n");
    rig.wait(50 * MILLISECOND);
    assert_eq!(rig.told(first), "-DEADLINE stage=backend waited_ms=100\r\n");
    assert_eq!(rig.serve(":-1\r\n", "$1\r\nv\r\n").join(" "), "PTTL GET", "it goes on for the others");
    assert_eq!(
        (rig.told(patient), rig.told(hurried), rig.told(first)),
        (bulk("v"), String::new(), String::new())
    );
}

#[test]
fn a_read_that_comes_too_late_is_told_how_long_it_has_waited_and_whether_its_fetch_was_sent() {
    let overload = OverloadSettings::new(1, 1);
    let mut rig = eager(1, |settings| settings.overload = overload.clone());
    let [first, second, third] = [(); 3].map(|()| rig.client(0));
    let key = rig.key(0, 0);
    rig.make_hot(first, &key);
    for client in [second, third] {
        rig.send(client, &[&["QOS", "SET", "DEADLINE", "40"]]);
        rig.told(client);
    }
    rig.send(first, &[&["GET", &key]]);
    rig.wait(30 * MILLISECOND);
    rig.send(second, &[&["GET", &key]]);
    rig.wait(41 * MILLISECOND);
    assert_eq!(rig.told(second), "-DEADLINE stage=backend waited_ms=40\r\n");
    rig.wait(TTL.saturating_sub(71 * MILLISECOND));
    // The fetch has taken too long to be joined, and the next one is sent when it has come back.
    rig.send(third, &[&["GET", &key]]);
    rig.wait(41 * MILLISECOND);
    assert_eq!(rig.told(third), "-DEADLINE stage=queue waited_ms=40\r\n");
    assert_eq!(rig.serve(":-1\r\n", "$1\r\nv\r\n").join(" "), "PTTL GET", "nobody waits for the next one");
    assert_eq!(rig.told(first), bulk("v"));
}

#[test]
fn no_more_wait_for_one_fetch_than_may() {
    let (mut rig, [client, _], key) = with_hot_key();
    let crowd: Vec<usize> = (0..16_800).map(|_| rig.client(0)).collect();
    for client in &crowd {
        rig.raw(*client, &request(&["GET", &key]));
    }
    assert_eq!(rig.figures().waiters, limits::HOT_WAITERS_PER_FLIGHT_MAX);
    rig.send(client, &[&["GET", &key]]);
    let refusal = rig.told(client);
    assert!(refusal.starts_with("-OVERLOADED "), "{refusal}");
    assert_eq!(rig.serve(":-1\r\n", "$1\r\nv\r\n").join(" "), "PTTL GET");
    let told: Vec<String> = crowd.iter().map(|client| rig.told(*client)).collect();
    let counted = |what: &str| told.iter().map(|told| told.matches(what).count()).sum::<usize>();
    assert_eq!((counted("$1\r\nv\r\n"), counted("-OVERLOADED ")), (16_384, 416));
    assert_eq!(rig.figures().waiters, 0);
}

#[test]
fn long_pipelines_of_reads_of_a_hot_key_wait_at_their_clients() {
    let (mut rig, _, key) = with_hot_key();
    let crowd: Vec<usize> = (0..50).map(|_| rig.client(0)).collect();
    let one = request(&["GET", &key]);
    // After some replies it is known that replies are small, so that more than 64 requests of each may be unanswered.
    crowd.iter().for_each(|client| rig.raw(*client, &one.repeat(60)));
    rig.serve(":-1\r\n", "$1\r\nv\r\n");
    assert!(crowd.iter().all(|client| rig.told(*client) == bulk("v").repeat(60)));
    rig.wait(2 * TTL);
    crowd.iter().for_each(|client| rig.raw(*client, &one.repeat(1_000)));
    rig.turns();
    let waiters = rig.figures().waiters;
    assert!((4_096..8_192).contains(&waiters), "{waiters} instead of 12,800");
    rig.serve(":-1\r\n", "$1\r\nv\r\n");
    rig.turns();
    assert!(crowd.iter().all(|client| rig.told(*client) == bulk("v").repeat(1_000)));
}

#[test]
fn the_first_one_pays_for_a_fetch_and_whoever_asks_for_what_is_known_a_tenth_and_its_bytes() {
    let mut rig = eager(1, |_| {});
    rig.put_in_force("[default]\nru_per_second = 1_000_000\n");
    let [client, other] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    let value = "x".repeat(10_000);
    // Returns the usage reported since the last call.
    let metered = |rig: &mut Rig| {
        rig.wait(20 * MILLISECOND);
        let mut sum = Usage::default();
        rig.reports.drain(..).flat_map(|report| report.usage).for_each(|(_, usage)| sum.add(usage));
        (sum.admitted, sum.cached)
    };
    let tenth = crate::values::Weights::default().cached(bulk(&value).len() as u64, 1).micro();
    assert!(tenth < 5 * UNIT && tenth > UNIT / 10);
    metered(&mut rig);
    let cold = "k".repeat(key.len());
    rig.ask(client, &["GET", &cold], "", &bulk(&value));
    let (full, cached) = metered(&mut rig);
    assert!(full > tenth && cached == 0);
    for client in [client, other, client] {
        rig.send(client, &[&["GET", &key]]);
    }
    rig.serve(":-1\r\n", &bulk(&value));
    assert_eq!(metered(&mut rig), (full, 2 * tenth));
    assert_eq!([client, other].map(|client| rig.told(client).len() / 10_000), [2, 1]);
    for _ in 0..10 {
        assert!(rig.knows(other, &key, &value));
    }
    assert_eq!(metered(&mut rig), (0, 10 * tenth));
}

#[test]
fn who_may_not_read_a_key_is_not_told_what_is_known_of_it() {
    let mut rig = eager(1, |_| {});
    rig.put_in_force(neighbours::TWO_TENANTS);
    let [root, acme] = [rig.signed_in("root", "r"), rig.signed_in("acme", "a")];
    rig.make_hot(root, "secret:1");
    rig.keep(root, "secret:1", "v");
    rig.send(acme, &[&["GET", "secret:1"]]);
    assert!(rig.told(acme).starts_with("-NOPERM "));
}

#[test]
fn in_shadow_all_is_forwarded_and_compared() {
    let mut rig = eager(1, |settings| settings.hot.mode = Mode::Shadow);
    let clients = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    for number in 0..100 {
        for client in clients {
            rig.send(client, &[&["GET", &key]]);
        }
        let own = rig.frames("\r\nGET\r\n").len() - rig.frames("PTTL").len();
        assert_eq!(own, 2, "nobody waits for anybody else");
        // After a while a client that does not use weir writes the key.
        let value = if number < 90 { "old" } else { "new" };
        rig.serve(":-1\r\n", &bulk(value));
        assert!(clients.iter().all(|client| rig.told(*client) == bulk(value)));
        rig.wait(2 * MILLISECOND);
    }
    assert!(rig.counted(Counter::HotMatches) > 50);
    assert!((1..=20).contains(&rig.counted(Counter::HotMismatches)));
    assert_eq!((rig.counted(Counter::HotHits), rig.counted(Counter::HotJoins)), (0, 0));
}

#[test]
fn switched_off_it_does_nothing() {
    let mut rig = eager(1, |settings| settings.hot.mode = Mode::Off);
    let clients = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    for _ in 0..100 {
        for client in clients {
            rig.send(client, &[&["GET", &key]]);
        }
        assert_eq!(rig.serve("", "$1\r\nv\r\n"), ["GET", "GET"]);
        rig.wait(5 * MILLISECOND);
    }
    rig.send(clients[0], &[&["EVAL", "code", "0"], &["SET", &key, "v"]]);
    assert_eq!(rig.figures(), HotFigures::default());
}

#[test]
fn a_key_that_nobody_asks_for_any_more_is_forgotten_and_what_is_under_way_of_it_ends_all_the_same() {
    let (mut rig, [client, writer], key) = with_hot_key();
    rig.send(writer, &[&["SET", &key, "v"], &["GET", &key]]);
    rig.wait(Duration::from_secs(3));
    assert_eq!((rig.figures().keys, rig.figures().writes_under_way), (0, 1));
    assert_eq!(rig.serve("", "+OK\r\n").len(), 2);
    assert_eq!(rig.figures(), HotFigures::default());
    rig.make_hot(client, &key);
    rig.keep(client, &key, "v");
}

#[test]
fn a_read_never_overtakes_what_its_connection_asked_for_before_of_keys_that_nobody_named() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.keep(other, &key, "old");
    rig.send(client, &[&["EVAL", "code", "1", &key], &["GET", &key], &["GET", &key]]);
    // Other clients may join a fetch meanwhile.
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["EVAL", "GET", "GET", "GET"]);
    rig.serve(":-1\r\n", "$3\r\nnew\r\n");
    assert_eq!(rig.told(client), "$3\r\nnew\r\n".repeat(3));
    assert_eq!(rig.told(other), "$3\r\nnew\r\n");
    rig.keep(client, &key, "new");
}

#[test]
fn who_waits_when_a_key_is_forgotten_goes_its_own_way() {
    let (mut rig, [client, other], key) = with_hot_key();
    rig.send(client, &[&["GET", &key], &["GET", &key]]);
    rig.send(other, &[&["MGET", &key, "other"], &["GET", &key]]);
    assert_eq!(rig.words_at_stores()[..2], ["PTTL", "GET"]);
    let before = rig.words_at_stores().len();
    rig.wait(Duration::from_secs(3));
    assert_eq!((rig.figures().keys, rig.figures().waiters), (0, 1), "the first waits for what was sent");
    // The connection's requests use one link again: its next request comes behind the earlier ones.
    rig.send(client, &[&["STRLEN", &key]]);
    let asked: Vec<String> = rig.words_at_stores()[before..].iter().map(|word| (*word).to_owned()).collect();
    assert_eq!(asked, ["GET", "GET", "STRLEN"]);
    rig.serve(":-1\r\n", "$1\r\nv\r\n");
    assert_eq!(rig.told(client), "$1\r\nv\r\n".repeat(3));
    assert_eq!(rig.figures(), HotFigures::default());
}

#[test]
fn who_has_seen_what_was_written_past_here_does_not_see_what_was_before() {
    let (mut rig, [client, other], key) = with_hot_key();
    let length = |rig: &mut Rig, reply: &str| {
        let (told, asked) = rig.ask(other, &["STRLEN", &key], ":-1\r\n", reply);
        assert_eq!(told, reply);
        asked.len()
    };
    rig.keep(client, &key, "old");
    assert_eq!([length(&mut rig, ":3\r\n"), length(&mut rig, ":3\r\n")], [2, 0]);
    // The cached reply is fetched again before its expiry, and has changed by then.
    let before = rig.counted(Counter::HotWrittenPast);
    while rig.at_stores.is_empty() {
        rig.wait(MILLISECOND);
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.told(client), bulk("old"));
    }
    rig.serve(":-1\r\n", "$5\r\nnewer\r\n");
    assert_eq!(rig.counted(Counter::HotWrittenPast), before + 1);
    assert_eq!([length(&mut rig, ":5\r\n"), length(&mut rig, ":5\r\n")], [2, 0]);
}

#[test]
fn nor_does_who_has_read_it_by_itself() {
    let mut rig = eager(1, |settings| settings.output_bytes_max = 400_000);
    let [client, other] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    let [old, new] = ["o", "n"].map(|value| bulk(&value.repeat(45_000)));
    rig.send(client, &[&["GET", key.as_str()][..]; 4]);
    rig.answer_first("PTTL", ":-1\r\n");
    rig.answer_first("GET", &old);
    // A client that might not get all replies at once sends its other requests separately.
    assert_eq!(rig.words_at_stores(), ["GET", "GET"]);
    assert!(rig.knows(other, &key, &"o".repeat(45_000)));
    rig.serve("", &new);
    assert_eq!(rig.told(client), [old.as_str(), &old, &new, &new].concat());
    assert_eq!(rig.counted(Counter::HotWrittenPast), 1);
    assert!(!rig.knows(other, &key, "o"));
}

#[test]
fn a_flush_is_about_every_store() {
    let mut rig = eager_before(1, 2, |_| {});
    let [client, other] = [rig.client(0), rig.client(0)];
    for backend in 0..2 {
        let key = rig.key(0, backend);
        rig.make_hot(client, &key);
        rig.keep(client, &key, "old");
        rig.send(other, &[&["FLUSHALL"]]);
        assert_eq!(rig.frames("FLUSHALL").len(), 2);
        rig.serve("", "+OK\r\n");
        assert!(!rig.knows(client, &key, "old"), "{backend}");
        rig.serve(":-2\r\n", "$-1\r\n");
        assert_eq!((rig.told(client).as_str(), rig.told(other).as_str()), ("$-1\r\n", "+OK\r\n"));
    }
}

#[test]
fn a_write_that_was_answered_before_its_store_had_is_under_way_until_that_has() {
    let overload = OverloadSettings::new(1, 1);
    let mut rig = eager(1, |settings| settings.overload = overload.clone());
    let [client, writer] = [rig.client(0), rig.modern_client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    rig.send(writer, &[&["GET", "other"]]);
    rig.serve("", "_\r\n");
    rig.told(writer);
    rig.send(writer, &[&["QOS", "CALL", "DEADLINE", "50", "SET", &key, "new"]]);
    rig.wait(60 * MILLISECOND);
    assert!(rig.told(writer).ends_with("(it may have happened)\r\n"));
    for _ in 0..30 {
        rig.send(client, &[&["GET", &key]]);
        assert_eq!(rig.words_at_stores(), ["SET", "GET"], "nothing is kept while it is written");
        rig.answer_first("GET", "$3\r\nold\r\n");
        assert_eq!(rig.told(client), bulk("old"));
        rig.wait(10 * MILLISECOND);
    }
    rig.answer_first("SET", "+OK\r\n");
    rig.keep(client, &key, "new");
    assert_eq!(rig.figures().writes_under_way, 0);
    // A write whose connection is lost after the deadline may be carried out later.
    rig.send(writer, &[&["QOS", "CALL", "DEADLINE", "50", "SET", &key, "newer"]]);
    rig.wait(60 * MILLISECOND);
    rig.told(writer);
    rig.lose("SET");
    assert_eq!(rig.figures().writes_under_way, 1);
    rig.wait(TTL);
    assert!(!rig.knows(client, &key, "new"));
}

#[test]
fn a_hot_key_may_be_written_so_often_and_whoever_writes_more_is_told_which() {
    let mut rig = eager(1, |settings| settings.hot.write_rate = Some(100));
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.make_hot(client, &key);
    let mut refused = 0;
    for _ in 0..300 {
        let (told, _) = rig.ask(client, &["SET", &key, "v"], "", "+OK\r\n");
        if told != "+OK\r\n" {
            let begins = format!("-THROTTLED scope=key name={key} limit=100 remaining=0 retry_after_ms=");
            assert!(told.starts_with(&begins), "{told}");
            let retry: u64 = told.trim().rsplit('=').next().expect("a number").parse().expect("a number");
            assert!(retry <= 10, "{told}");
            refused += 1;
        }
        rig.wait(MILLISECOND * 5);
    }
    // In 1.5 s half of the 300 writes are refused, less the burst.
    assert!((135..=151).contains(&refused), "{refused}");
    // Commands for several keys are no way around.
    let several: Vec<_> = (0..100)
        .map(|number| {
            let words: &[&str] = if number % 2 == 0 { &["MSET", &key, "v"] } else { &["UNLINK", &key, &key] };
            rig.ask(client, words, "", if number % 2 == 0 { "+OK\r\n" } else { ":1\r\n" }).0
        })
        .collect();
    assert!(
        several.iter().filter(|told| told.starts_with("-THROTTLED scope=key")).count() > 80,
        "{several:?}"
    );
    assert_eq!(rig.ask(client, &["SET", "another", "v"], "", "+OK\r\n").0, "+OK\r\n");
    rig.wait(Duration::from_secs(2));
    let usage = rig.reports.iter().flat_map(|report| &report.usage).map(|(_, usage)| usage);
    let (throttled, shed) = usage.fold((0, 0), |sums, usage| (sums.0 + usage.throttled, sums.1 + usage.shed));
    assert!(throttled > 0 && shed == 0, "{throttled} throttled, {shed} shed");
}

#[test]
fn writes_that_are_held_back_count_towards_the_limit_of_their_key() {
    let requests: [&[&str]; 2] = [&["MGET", "KEY", "another"], &["EVAL", "return 1", "0"]];
    for last in requests {
        let mut rig = eager(1, |settings| settings.hot.write_rate = Some(10));
        let (client, key) = (rig.client(0), rig.key(0, 0));
        rig.make_hot(client, &key);
        let last: Vec<&str> =
            last.iter().map(|word| if *word == "KEY" { key.as_str() } else { *word }).collect();
        let mut sent = 0;
        for _ in 0..20 {
            // The writes are held back behind reads that wait for a fetch, until the last request of the pipeline must
            // not overtake them.
            let set: &[&str] = &["SET", &key, "v"];
            let [get, length]: [&[&str]; 2] = [&["GET", &key], &["STRLEN", &key]];
            rig.send(client, &[get, length, set, get, length, set, get, length, set, &last]);
            let asked = rig.serve(":-1\r\n", ":1\r\n");
            sent += asked.iter().filter(|word| *word == "SET").count();
            rig.wait(10 * MILLISECOND);
        }
        let told = rig.told(client);
        let refused = told.matches("-THROTTLED scope=key name=").count();
        // Two writes may come at once, and one more every 100 ms.
        assert!((2..=4).contains(&sent) && sent + refused == 60, "{last:?}: {sent} sent, {refused} refused");
        assert_eq!((rig.figures().waiters, rig.figures().writes_under_way), (0, 0), "{last:?}");
    }
}

#[test]
fn a_key_whose_replies_cost_much_is_told_of_though_it_is_asked_for_seldom() {
    let mut rig = Rig::with(1, 1, |settings| {
        let detection = Detection { least_per_second: 500, ..Detection::default() };
        settings.hot = HotSettings { detection, ..HotSettings::new(1) };
    });
    let (client, key) = (rig.client(0), rig.key(0, 0));
    // 100,000 rows per second cost 2,000 request units.
    let rows = format!("*5000\r\n{}", "$1\r\nx\r\n".repeat(5_000));
    for _ in 0..80 {
        rig.ask(client, &["LRANGE", &key, "0", "-1"], "", &rows);
        rig.wait(MILLISECOND * 50);
    }
    let told = rig.shards[0].hot_keys();
    let found = told.iter().find(|told| told.key == key.as_bytes()).expect("it is told of");
    assert!(found.hot_for.is_none() && found.request_units > 1_500.0, "{found:?}");
}

#[test]
fn what_a_hot_key_costs_has_its_fetches_in_it() {
    let mut rig = eager(1, |_| {});
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.make_hot(client, &key);
    for round in 0..40 {
        rig.wait(MILLISECOND * 50);
        let value = bulk(&"x".repeat(60_000 + round));
        rig.send(client, &[&["GET", &key][..]; 20]);
        rig.serve(":-1\r\n", &value);
        rig.take_all();
        rig.wait(MILLISECOND);
        rig.send(client, &[&["SET", &key, "v"]]);
        rig.answer_first("SET", "+OK\r\n");
    }
    let told = rig.shards[0].hot_keys();
    let found = told.iter().find(|told| told.key == key.as_bytes()).expect("it is hot");
    // Twenty fetches of nearly 60 KiB a second, at a quarter of a unit per KiB.
    assert!(found.hot_for.is_some() && found.request_units > 150.0, "{found:?}");
}

#[test]
fn a_core_that_asks_much_answers_from_a_copy_until_something_is_written() {
    let mut rig = eager(2, |settings| settings.hot.copied_from = [100, 10]);
    let (here, elsewhere) = (rig.client(0), rig.client(1));
    let key = rig.key(0, 0);
    rig.make_hot(elsewhere, &key);
    for _ in 0..60 {
        rig.ask(elsewhere, &["GET", &key], ":-1\r\n", "$1\r\na\r\n");
        rig.wait(MILLISECOND);
    }
    assert!(rig.counted(Counter::HotHitsCopied) > 10);
    assert!(rig.shards[1].hot_figures().copies > 0);
    // A read pipelined behind the write goes to the key's home core; the write invalidates the copy.
    rig.send(elsewhere, &[&["SET", &key, "b"], &["GET", &key]]);
    assert_eq!(rig.serve(":-1\r\n", "+OK\r\n"), ["SET", "GET"]);
    assert_eq!(rig.told(elsewhere), "+OK\r\n+OK\r\n");
    let copied = rig.counted(Counter::HotHitsCopied);
    assert_eq!(rig.ask(here, &["SET", &key, "c"], "", "+OK\r\n").0, "+OK\r\n");
    let (told, asked) = rig.ask(elsewhere, &["GET", &key], ":-1\r\n", "$1\r\nc\r\n");
    assert_eq!((told.as_str(), asked.join(" ").as_str()), ("$1\r\nc\r\n", "PTTL GET"));
    assert_eq!(rig.counted(Counter::HotHitsCopied), copied);
}

/// A copy of a key's reply on another core is not sent any more once the key is no longer hot, though it is young
/// enough: the key's home core (the core through which its requests pass) does not notice writes of the key any more.
#[test]
fn copies_of_a_key_are_worthless_once_its_home_does_not_look_at_its_writes() {
    let mut rig = eager(2, |settings| {
        settings.hot.copied_from = [100, 10];
        settings.hot.ttl = Duration::from_secs(20);
    });
    let (here, elsewhere) = (rig.client(0), rig.client(1));
    let key = rig.key(0, 0);
    rig.make_hot(elsewhere, &key);
    for _ in 0..60 {
        rig.ask(elsewhere, &["GET", &key], ":-1\r\n", "$1\r\na\r\n");
        rig.wait(MILLISECOND);
    }
    rig.wait(Duration::from_secs(3));
    assert_eq!(rig.figures().keys, 0, "nobody has asked for it");
    assert!(rig.shards[1].hot_figures().copies > 0, "they are not too old");
    assert_eq!(rig.ask(here, &["SET", &key, "b"], "", "+OK\r\n").0, "+OK\r\n");
    let (told, asked) = rig.ask(elsewhere, &["GET", &key], "", "$1\r\nb\r\n");
    assert_eq!((told.as_str(), asked.join(" ").as_str()), ("$1\r\nb\r\n", "GET"));
}

/// While the first part of an MGET is on its way to a key's home core (the core through which its requests pass) and
/// its last part goes elsewhere, a later request of the client is not answered from a copy before the MGET.
#[test]
fn a_copy_does_not_overtake_a_part_of_the_same_connection() {
    let mut rig = eager(3, |settings| settings.hot.copied_from = [100, 10]);
    let elsewhere = rig.client(1);
    let (key, other) = (rig.key(0, 0), rig.key(2, 0));
    rig.make_hot(elsewhere, &key);
    for _ in 0..60 {
        rig.ask(elsewhere, &["GET", &key], ":-1\r\n", "$1\r\na\r\n");
        rig.wait(MILLISECOND);
    }
    let copied = rig.counted(Counter::HotHitsCopied);
    assert!(copied > 10 && rig.shards[1].hot_figures().copies > 0);
    rig.send(elsewhere, &[&["MGET", &key, &key, &other], &["GET", &key]]);
    assert_eq!(rig.counted(Counter::HotHitsCopied), copied, "it goes to the home");
}

/// In front of a cluster, where weir splits requests by slot, nearly every key of an MGET has a part of its own: the
/// reply to such a part is kept, requests share its fetch, and it is fetched again after a write.
#[test]
fn a_key_that_is_read_only_beside_others_is_kept_where_it_is_alone_in_its_part() {
    const VALUE: &str = "$5\r\nvalue\r\n";
    for shards in [1, 2] {
        let mut rig = eager_before(shards, 2, |_| {});
        let clients = [rig.client(0), rig.client(0)];
        let (key, other) = (rig.key(shards - 1, shards - 1), rig.key(0, 2 - shards));
        let both = format!("*2\r\n{VALUE}{VALUE}");
        for _ in 0..60 {
            let (told, _) =
                rig.ask(clients[0], &["MGET", &key, &other], ":-1\r\n", &format!("*1\r\n{VALUE}"));
            assert_eq!(told, both);
            rig.wait(10 * MILLISECOND);
        }
        assert!(rig.counted(Counter::HotHits) + rig.counted(Counter::HotHitsCopied) > 0, "{shards} shards");
        rig.wait(TTL);
        // Each key has one fetch for all requests that wait.
        rig.send(clients[0], &[&["MGET", &key, &other], &["MGET", &other, &key]]);
        rig.send(clients[1], &[&["MGET", &key, &other], &["MGET", &key]]);
        let asked = rig.serve(":-1\r\n", &format!("*1\r\n{VALUE}"));
        assert_eq!(asked, ["PTTL", "MGET", "PTTL", "MGET"]);
        assert_eq!(rig.told(clients[0]), format!("{both}{both}"));
        assert_eq!(rig.told(clients[1]), format!("{both}*1\r\n{VALUE}"));
        // A key that was written is fetched again.
        let (told, asked) = rig.ask(clients[1], &["SET", &key, "v"], "", "+OK\r\n");
        assert_eq!((told.as_str(), asked.as_slice()), ("+OK\r\n", &["SET".to_owned()][..]));
        let (told, asked) = rig.ask(clients[0], &["MGET", &key, &other], ":-1\r\n", "*1\r\n$3\r\nnew\r\n");
        assert!(told.starts_with("*2\r\n$3\r\nnew\r\n") && !asked.is_empty(), "{told} {asked:?}");
    }
}

/// Keys of one core and store that are all hot are split from an `MGET` one by one: each is kept and shares its
/// fetches, however often one of them is written, and a key beside them that is not hot keeps them together.
#[test]
fn hot_keys_that_are_read_together_are_kept_one_by_one() {
    const VALUE: &str = "$5\r\nvalue\r\n";
    for shards in [1, 2] {
        let mut rig = eager(shards, |_| {});
        let (client, other) = (rig.client(0), rig.client(usize::from(shards - 1)));
        let key = rig.key(shards - 1, 0);
        let second = rig.other_key(shards - 1, &[&key]);
        let cold = rig.other_key(shards - 1, &[&key, &second]);
        let both: &[&str] = &["MGET", &key, &second];
        let mut asked = Vec::new();
        for _ in 0..60 {
            rig.send(client, &[both]);
            asked = rig.serve_values(VALUE);
            assert_eq!(rig.told(client), format!("*2\r\n{VALUE}{VALUE}"));
            rig.wait(10 * MILLISECOND);
        }
        assert_eq!(asked, [""; 0], "no other command makes them hot, and both values are kept");
        rig.wait(TTL);
        rig.send(client, &[both, &["MGET", &second, &key]]);
        rig.send(other, &[both, &["MGET", &second]]);
        assert_eq!(rig.serve_values(VALUE), ["PTTL", "MGET", "PTTL", "MGET"], "one fetch for each key");
        assert_eq!(rig.told(client), format!("*2\r\n{VALUE}{VALUE}").repeat(2));
        assert_eq!(rig.told(other), format!("*2\r\n{VALUE}{VALUE}*1\r\n{VALUE}"));
        // One of them is written: the other one is still kept.
        let (told, _) = rig.ask(other, &["SET", &key, "w"], "", "+OK\r\n");
        assert_eq!(told, "+OK\r\n");
        rig.send(client, &[both]);
        assert_eq!(rig.serve_values(VALUE), ["PTTL", "MGET"]);
        // With a key that is not hot, all are read by one request.
        rig.send(client, &[&["MGET", &key, &cold, &second]]);
        assert!(rig.frames("MGET")[0].frame.starts_with("*4\r\n"), "{:?}", rig.frames("MGET"));
        assert_eq!(rig.serve_values(VALUE), ["MGET"]);
        assert_eq!(rig.told(client), format!("*2\r\n{VALUE}{VALUE}*3\r\n{VALUE}{VALUE}{VALUE}"));
    }
}

/// A request whose keys are of several cores or stores is divided further only where all keys of a part are hot.
#[test]
fn a_hot_key_and_a_cold_one_of_a_divided_request_stay_together() {
    let mut rig = eager_before(1, 2, |_| {});
    let (client, alone, hot) = (rig.client(0), rig.key(0, 1), rig.other_key(0, &[]));
    let cold = rig.other_key(0, &[&hot]);
    rig.make_hot(client, &hot);
    rig.send(client, &[&["MGET", &alone, &hot, &cold]]);
    let frames = rig.frames("MGET");
    let keys: Vec<usize> = frames.iter().map(|sent| sent.frame.matches('$').count() - 1).collect();
    assert_eq!(keys, [2, 1], "{frames:?}");
}

/// A client's read of several keys of one core and store is divided by slot only if all keys are hot and they are few.
#[test]
fn keys_that_are_cold_again_or_too_many_are_read_together() {
    let mut rig = eager(1, |_| {});
    let (client, key) = (rig.client(0), rig.key(0, 0));
    let second = rig.other_key(0, &[&key]);
    let read = |rig: &mut Rig, keys: &[&str]| {
        rig.send(client, &[&[&["MGET"], keys].concat()]);
        let asked = rig.serve_values("$1\r\nv\r\n").into_iter().filter(|word| word == "MGET").count();
        assert_eq!(rig.told(client), format!("*{}\r\n{}", keys.len(), "$1\r\nv\r\n".repeat(keys.len())));
        asked
    };
    for _ in 0..60 {
        read(&mut rig, &[&key, &second]);
        rig.wait(10 * MILLISECOND);
    }
    rig.wait(TTL);
    let many = [key.as_str(); HOT_SPLIT_KEYS_MAX];
    assert_eq!(
        read(&mut rig, &[&many[1..], &[second.as_str()]].concat()),
        3,
        "one request for each slot, and a fetch"
    );
    assert_eq!(read(&mut rig, &[&many, &[second.as_str()][..]].concat()), 1, "they are too many");
    rig.wait(Duration::from_secs(3));
    assert_eq!(rig.figures().keys, 0);
    assert_eq!(read(&mut rig, &[&key, &second]), 1);
}

/// Hot keys of one slot are read from the store by one request, so that their values are from one moment. Once the
/// values of all are kept, reads of them are answered from memory, with values of one moment too.
#[test]
fn hot_keys_of_one_slot_are_answered_together_from_memory() {
    for mut rig in [eager(1, |_| {}), eager(2, |_| {}), eager_before_a_cluster()] {
        let [client, writer] = [rig.client(0), rig.client(0)];
        let keys = ["a", "b", "c"].map(|name| format!("{{{}}}{name}", rig.key(0, 0)));
        let [a, b, cold] = keys.each_ref().map(String::as_str);
        let both = |value: &str| format!("*2\r\n{value}{value}");
        let mut asked = Vec::new();
        for _ in 0..100 {
            rig.send(client, &[&["MGET", a, b]]);
            asked = rig.serve_values("$1\r\nv\r\n");
            assert_eq!(rig.told(client), both("$1\r\nv\r\n"));
            rig.wait(10 * MILLISECOND);
        }
        assert_eq!(asked, [""; 0], "both values are kept");
        rig.wait(TTL);
        // Values that are not kept are read together, and fetched one by one for later reads, once.
        rig.send(client, &[&["MGET", a, b], &["MGET", b, a]]);
        let asked = rig.serve_values("$-1\r\n");
        assert_eq!(asked.iter().filter(|word| *word == "MGET").count(), 4, "{asked:?}");
        assert_eq!(rig.told(client), both("$-1\r\n").repeat(2));
        rig.send(client, &[&["MGET", b, a]]);
        assert_eq!(rig.told(client), both("$-1\r\n"), "it is answered without the store");
        rig.send(client, &[&["MGET", b, a, b]]);
        assert_eq!(rig.told(client), "*3\r\n$-1\r\n$-1\r\n$-1\r\n", "so is one that names a key twice");
        // While one key is written, and with a key that is not hot, the store is asked for all.
        rig.send(writer, &[&["SET", b, "w"]]);
        rig.send(client, &[&["MGET", a, b]]);
        assert_eq!(rig.frames("MGET").len(), 1, "no fetch begins whose reply would not be kept");
        rig.serve_values("+OK\r\n");
        rig.told(client);
        rig.send(client, &[&["MGET", a, cold]]);
        assert_eq!(rig.serve_values("$1\r\nw\r\n"), ["MGET"]);
        assert_eq!(rig.told(client), both("$1\r\nw\r\n"));
        // No reply from memory overtakes what the client has sent before.
        rig.send(client, &[&["MGET", a, b]]);
        rig.serve_values("$1\r\nw\r\n");
        rig.told(client);
        rig.send(client, &[&["TTL", a], &["MGET", a, b]]);
        assert_eq!(rig.frames("MGET").len(), 1, "it may have been told of a newer value");
        rig.serve_values("$1\r\nw\r\n");
        rig.told(client);
        rig.send(client, &[&["SET", a, "x"], &["MGET", a, b]]);
        rig.answer_first("SET", "+OK\r\n");
        rig.serve_values("$1\r\nx\r\n");
        assert_eq!(rig.told(client), format!("+OK\r\n{}", both("$1\r\nx\r\n")));
    }
}

/// Reads of several keys that come while their values are being fetched from a slow store are no reason to stop
/// keeping these values.
#[test]
fn values_of_several_keys_are_kept_after_a_fetch_that_took_long() {
    let mut rig = eager(1, |_| {});
    let client = rig.client(0);
    let [a, b] = ["a", "b"].map(|name| format!("{{{}}}{name}", rig.key(0, 0)));
    let both: &[&str] = &["MGET", &a, &b];
    for _ in 0..60 {
        rig.send(client, &[both]);
        rig.serve_values("$1\r\nv\r\n");
        rig.wait(10 * MILLISECOND);
    }
    rig.wait(TTL);
    for _ in 0..110 {
        rig.send(client, &[both]);
        rig.wait(10 * MILLISECOND);
    }
    for _ in 0..2 {
        rig.serve_values("$1\r\nv\r\n");
        rig.wait(TTL);
        rig.send(client, &[both]);
    }
    rig.serve_values("$1\r\nv\r\n");
    rig.send(client, &[both]);
    assert_eq!(rig.at_stores.len(), 0, "the values are kept");
}

#[test]
fn reads_of_a_key_that_is_always_being_written_share_two_fetches_at_most() {
    let (mut rig, [client, _], key) = with_hot_key();
    let [writer, crowd] = [rig.modern_client(0), rig.client(0)];
    rig.send(writer, &[&["SET", &key, "w0"]]);
    rig.answer_first("HELLO", "%1\r\n+proto\r\n:3\r\n");
    rig.send(client, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["SET", "GET"], "one is on its way");
    for _ in 0..50 {
        rig.send(crowd, &[&["GET", &key]]);
    }
    assert_eq!(rig.words_at_stores(), ["SET", "GET"], "the next one leaves when that comes back");
    rig.send(writer, &[&["SET", &key, "w1"]]);
    rig.send(crowd, &[&["GET", &key]]);
    let late = rig.client(0);
    rig.answer_first("GET", "$2\r\nw0\r\n");
    assert_eq!((rig.told(client), rig.told(crowd).as_str()), (bulk("w0"), ""), "they came after it was sent");
    assert_eq!(rig.words_at_stores(), ["SET", "SET", "GET"]);
    rig.send(late, &[&["GET", &key]]);
    rig.send(writer, &[&["SET", &key, "w2"]]);
    let last = rig.client(0);
    rig.send(last, &[&["GET", &key]]);
    assert_eq!(rig.frames("GET").len(), 1, "nobody else has begun a fetch since the last write");
    rig.answer_first("GET", "$2\r\nw1\r\n");
    assert_eq!(rig.told(crowd), bulk("w1").repeat(51));
    rig.answer_first("GET", "$2\r\nw2\r\n");
    assert_eq!((rig.told(late), rig.told(last)), (bulk("w2"), bulk("w2")));
    rig.serve(":-1\r\n", "+OK\r\n");
    let bypassed = [Counter::HotBypassedOrder, Counter::HotBypassedOther, Counter::HotBypassedFull];
    assert_eq!(bypassed.map(|counter| rig.counted(counter)), [0; 3]);
    rig.keep(client, &key, "w2");
}

#[test]
fn a_fetch_leaves_at_once_where_a_write_has_begun_since_the_one_on_its_way_and_no_third_one_does() {
    let (mut rig, [client, other], key) = with_hot_key();
    let writer = rig.modern_client(0);
    rig.send(client, &[&["GET", &key]]);
    rig.send(writer, &[&["SET", &key, "w"]]);
    rig.answer_first("HELLO", "%1\r\n+proto\r\n:3\r\n");
    rig.send(other, &[&["GET", &key]]);
    assert_eq!(rig.frames("\r\nGET\r\n").len(), 2);
    rig.send(writer, &[&["SET", &key, "x"]]);
    let third = rig.client(0);
    rig.send(third, &[&["GET", &key]]);
    assert_eq!(rig.frames("\r\nGET\r\n").len(), 2, "two are on their way at most");
    rig.answer_first("PTTL", ":-1\r\n");
    rig.answer_first("\r\nGET\r\n", "$1\r\nv\r\n");
    assert_eq!(
        rig.frames("\r\nGET\r\n").len(),
        2,
        "the third follows the second, which a write has outdated"
    );
    rig.answer_first("\r\nGET\r\n", "$1\r\nw\r\n");
    rig.answer_first("\r\nGET\r\n", "$1\r\nx\r\n");
    assert_eq!((rig.told(client), rig.told(other), rig.told(third)), (bulk("v"), bulk("w"), bulk("x")));
    assert_eq!(rig.figures().kept, 0, "none of them is kept");
}

/// Returns a test rig (shards with scripted stores and clients) whose window (limit on requests in flight) is
/// filled by 100 reads of other keys, so that further requests are queued; the client that sent these reads;
/// and a key that is not hot yet.
fn with_full_window() -> (Rig, usize, String) {
    let queue = OverloadSettings { shed: Mode::Off, ..OverloadSettings::new(1, 1) };
    let mut rig = eager(1, |settings| settings.overload = queue.clone());
    let [filler, first] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.send(first, &[&["GET", "other"]]);
    rig.serve("", "$-1\r\n");
    let many: Vec<u8> = (0..100).flat_map(|number| request(&["GET", &format!("f{number}")])).collect();
    rig.raw(filler, &many);
    (rig, filler, key)
}

#[test]
fn reads_that_are_queued_when_their_key_becomes_hot_are_fetched_together_before_all_that_is_queued() {
    let (mut rig, _, key) = with_full_window();
    let [writer, reader] = [rig.client(0), rig.client(0)];
    let crowd: Vec<usize> = (0..30).map(|_| rig.client(0)).collect();
    // The client's own write is queued before its read, and the read before another write.
    rig.send(writer, &[&["SET", &key, "w"], &["GET", &key]]);
    rig.send(reader, &[&["GET", &key], &["SET", &key, "r"]]);
    for client in &crowd {
        rig.send(*client, &[&["GET", &key]]);
        rig.now.monotonic = rig.now.monotonic.after(2 * MILLISECOND);
        rig.turns();
    }
    let of_key = format!("\r\n{key}\r\n");
    rig.now.monotonic = rig.now.monotonic.after(50 * MILLISECOND);
    rig.turns();
    assert_eq!(rig.figures().keys, 1);
    let waiters = rig.figures().waiters;
    assert!(
        (20..34).contains(&waiters),
        "reads wait for a fetch, or behind writes, and a write behind one: {waiters}"
    );
    // Fetches may use the tenth of the window that is reserved for critical requests.
    let last = rig.at_stores.last().expect("it was sent").frame.clone();
    assert!(
        last.contains(&of_key) && last.contains("GET"),
        "a fetch stands behind nothing that is queued: {last}"
    );
    // All other requests are answered in their order.
    let mut value = String::from("v");
    while !rig.at_stores.is_empty() {
        let sent = rig.at_stores.remove(0);
        let reply = if !sent.frame.contains(&of_key) {
            "$1\r\nf\r\n".to_owned()
        } else if sent.frame.contains("PTTL") {
            ":-1\r\n".to_owned()
        } else if sent.frame.contains("SET") {
            value = if sent.frame.contains("\r\nw\r\n") { "w".to_owned() } else { "r".to_owned() };
            "+OK\r\n".to_owned()
        } else {
            bulk(&value)
        };
        rig.bytes(&sent, reply.as_bytes());
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(100));
        rig.turns();
    }
    let values = ["v", "w", "r"].map(bulk);
    assert!(crowd.iter().all(|client| values.contains(&rig.told(*client))), "each is answered once");
    let told = rig.told(writer);
    assert!(
        told.starts_with("+OK\r\n") && !told.contains('v'),
        "it reads what it has written, or later: {told}"
    );
    let told = rig.told(reader);
    assert!(told.ends_with("+OK\r\n") && told.starts_with("$1\r\n") && !told.contains("\r\nr\r\n"), "{told}");
    let bypassed = [Counter::HotBypassedWarming, Counter::HotBypassedOrder, Counter::HotBypassedFull];
    assert_eq!(bypassed.map(|counter| rig.counted(counter)), [0; 3]);
    assert_eq!((rig.figures().waiters, rig.figures().flights, rig.figures().writes_under_way), (0, 0, 0));
}

/// Queues `many` requests for 500 keys each, `also` among them, in front of the store, which make no key hot; and
/// behind them enough reads of each of `keys` to make it hot. Returns the number of keys that the requests for 500 keys
/// name together.
fn queue_reads_of_many_keys(rig: &mut Rig, many: usize, also: &[String], keys: &[String]) -> u64 {
    let names: Vec<String> = (0..500 - also.len()).map(|number| format!("m{number}")).collect();
    let words: Vec<&str> =
        ["EXISTS"].into_iter().chain(names.iter().chain(also).map(String::as_str)).collect();
    for _ in 0..many {
        let client = rig.client(0);
        rig.send(client, &[&words]);
    }
    for _ in 0..20 {
        let client = rig.client(0);
        let reads: Vec<u8> = keys.iter().flat_map(|key| request(&["GET", key])).collect();
        rig.raw(client, &reads);
        rig.now.monotonic = rig.now.monotonic.after(2 * MILLISECOND);
        rig.turns();
    }
    many as u64 * 500
}

#[test]
fn queued_requests_for_several_keys_are_read_once_for_all_keys_that_become_hot() {
    let (mut rig, _, _) = with_full_window();
    let keys: Vec<String> = (0..12).map(|number| format!("hot{number}")).collect();
    let queued = queue_reads_of_many_keys(&mut rig, 10, &keys, &keys);
    for _ in 0..100 {
        rig.now.monotonic = rig.now.monotonic.after(5 * MILLISECOND);
        rig.turns();
    }
    assert_eq!(
        (rig.figures().keys, rig.frames("EXISTS").len()),
        (12, 0),
        "all are hot, and the rest is queued"
    );
    let examined = rig.figures().examined;
    assert!(examined >= queued, "all are read: {examined} of {queued}");
    // The keys become hot at the ends of at most three intervals of 50 ms.
    assert!(examined <= 3 * queued, "however often the queues are searched: {examined} keys of {queued}");
    assert_eq!(rig.figures().waiters, 0, "no read of the keys overtakes a request that names them");
}

#[test]
fn a_search_of_long_queues_is_done_in_parts_and_finds_the_reads_of_a_hot_key() {
    let (mut rig, _, key) = with_full_window();
    let (many, mut before) = (60, 0);
    let queued = queue_reads_of_many_keys(&mut rig, many, &[], std::slice::from_ref(&key));
    let most = HOT_QUEUED_KEYS_EXAMINED_MAX as u64 + 500;
    assert!(queued > 3 * most, "they are more than three parts: {queued}");
    for _ in 0..20 {
        rig.now.monotonic = rig.now.monotonic.after(5 * MILLISECOND);
        rig.turns();
        let examined = rig.figures().examined;
        assert!(examined - before <= most, "{} keys at once", examined - before);
        before = examined;
    }
    assert_eq!((rig.figures().keys, rig.frames("EXISTS").len(), before), (1, 0, queued));
    assert_eq!(rig.figures().waiters, 20, "the reads share a fetch");
}

#[test]
fn what_is_held_back_is_answered_at_its_deadline() {
    let overload = OverloadSettings::new(1, 1);
    let mut rig = eager(1, |settings| settings.overload = overload.clone());
    let [client, writer] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.make_hot(client, &key);
    rig.send(client, &[&["GET", &key]]);
    // The read joins a fetch that is in flight, so the client's write waits for that fetch.
    rig.send(writer, &[&["GET", &key], &["QOS", "CALL", "DEADLINE", "50", "SET", &key, "w"]]);
    assert_eq!((rig.words_at_stores().join(" ").as_str(), rig.figures().waiters), ("PTTL GET", 3));
    rig.wait(60 * MILLISECOND);
    rig.answer_next(":-1\r\n");
    rig.answer_next("$1\r\nv\r\n");
    let told = rig.told(writer);
    assert!(
        told.starts_with("$1\r\nv\r\n-DEADLINE stage=queue waited_ms=") && !told.contains("may have"),
        "{told}"
    );
    assert_eq!((rig.at_stores.len(), rig.figures().waiters), (0, 0), "it was never sent");
}

#[test]
fn a_fetch_that_is_sent_again_is_not_for_those_who_have_written_since() {
    let (mut rig, [client, _], key) = with_hot_key();
    let [writer, other] = [rig.client(0), rig.modern_client(0)];
    rig.send(other, &[&["SET", &key, "a"]]);
    rig.answer_first("HELLO", "%1\r\n+proto\r\n:3\r\n");
    // All clients wait for one fetch; one of them writes once the fetch is in flight.
    rig.send(client, &[&["GET", &key]]);
    rig.send(writer, &[&["GET", &key]]);
    let last = rig.client(0);
    rig.send(last, &[&["GET", &key]]);
    assert_eq!(rig.words_at_stores(), ["SET", "GET"]);
    rig.answer_first("GET", "$1\r\na\r\n");
    assert_eq!(rig.words_at_stores(), ["SET", "GET"], "two wait for the next one");
    rig.send(writer, &[&["SET", &key, "b"]]);
    assert_eq!(rig.words_at_stores(), ["SET", "GET", "SET"]);
    rig.lose("GET");
    rig.turns();
    assert!(rig.told(writer).starts_with("-UNAVAILABLE"), "it would see what it has written later");
    assert!(rig.told(last).is_empty() || rig.told(last).starts_with("-UNAVAILABLE"));
    rig.serve(":-1\r\n", "$1\r\nb\r\n");
    assert_eq!((rig.figures().waiters, rig.figures().flights), (0, 0));
}

#[test]
fn a_fetch_is_sent_to_another_node_without_its_questions() {
    let mut rig = eager_before_a_cluster();
    let client = rig.client(0);
    let key = rig.key(0, 0);
    for _ in 0..40 {
        rig.send(client, &[&["HGET", &key, "f"]]);
        rig.serve(":-1\r\n", &bulk("v"));
        rig.wait(10 * MILLISECOND);
    }
    assert_eq!(rig.told(client), bulk("v").repeat(40));
    rig.wait(TTL);
    rig.send(client, &[&["HGET", &key, "f"]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "HPTTL", "HGET"]);
    let new = (rig.at_stores[0].backend.0 + 1) % 3;
    for _ in 0..3 {
        rig.answer_next(&cluster::moved(&key, new));
    }
    assert_eq!((rig.words_at_stores(), rig.at_stores[0].backend.0), (vec!["HGET"], new));
    rig.answer_next(&bulk("w"));
    assert_eq!(rig.told(client), bulk("w"));
    rig.send(client, &[&["HGET", &key, "f"]]);
    assert_eq!(rig.words_at_stores(), ["PTTL", "HPTTL", "HGET"], "nobody has said how long it stays");
}

/// A write that was sent before its key became hot may be redirected to another node. The next read of its
/// connection must not reach that node first; a fetch could, because it belongs to no connection.
#[test]
fn before_a_cluster_no_fetch_overtakes_what_was_sent_before_the_key_was_hot() {
    let mut rig = eager_before_a_cluster();
    let [writer, crowd] = [rig.client(0), rig.client(0)];
    let key = rig.key(0, 0);
    rig.send(writer, &[&["APPEND", &key, "w"]]);
    for _ in 0..40 {
        rig.send(crowd, &[&["GET", &key]]);
        rig.wait(10 * MILLISECOND);
    }
    assert!(rig.counted(Counter::HotBypassedWarming) > 0, "it is hot");
    rig.send(writer, &[&["GET", &key]]);
    assert_eq!(rig.figures().flights, 0);
    let (old, new) = (rig.at_stores[0].backend.0, (rig.at_stores[0].backend.0 + 1) % 3);
    while rig.at_stores.first().is_some_and(|sent| sent.backend.0 == old) {
        rig.answer_next(&cluster::moved(&key, new));
    }
    rig.answer_first("APPEND", ":6\r\n");
    rig.serve(":-1\r\n", &bulk("firstw"));
    assert_eq!(rig.told(writer), format!(":6\r\n{}", bulk("firstw")));
    assert_eq!(rig.told(crowd), bulk("firstw").repeat(40));
    // All earlier requests are answered, so reads join fetches from now on.
    rig.wait(MILLISECOND);
    rig.send(crowd, &[&["GET", &key]]);
    assert_eq!(rig.figures().flights, 1);
}
