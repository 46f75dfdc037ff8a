//! The requests that simulated clients send, of every kind that weir treats differently, and the replies that
//! each may get.

use std::time::Duration;

use super::expect::{Asked, Expected, Reach};
use super::history::{History, Sent};
use super::token::value;
use weir::protocol::{Protocol, encode};
use weir::routing::{Topology, slot_of};
use weir::values::{Random, Tier};

/// The deadline that some simulated requests have (5 seconds), after which weir need not answer them.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

const SHARED_KEYS: u64 = 12;
const FAVOURITES: u64 = 2;
const OWN_KEYS: u64 = 3;
const LOGS: u64 = 5;
const COUNTERS: u64 = 5;
const GROUPS: u64 = 3;
/// The number of slots that the keys of all clients share when the stores are a cluster.
const SHARED_SLOTS: u64 = 3;

/// The writer of one client's requests, with the state of its connection as the requests change it.
#[derive(Debug)]
pub(super) struct Writer {
    pub client: u32,
    pub random: Random,
    /// The RESP version of the client's connection after the requests sent so far.
    pub protocol: Protocol,
    pub sequence: u64,
    pub topology: Topology,
    /// True if the stores form a cluster: then all keys of a request must be in one slot.
    pub is_clustered: bool,
    pub padding_max: usize,
    /// True if the client mostly reads the same few keys as all other clients.
    pub has_favourites: bool,
    /// Probability, in thousandths, that a client which mostly reads the same few keys sends a read in place
    /// of another request.
    pub mere_reads: u64,
    /// Probability, in thousandths, that a read is sent as a script.
    pub script_reads: u64,
    /// The next cursor of a SCAN over all keys in progress; `None` if there is none.
    pub cursor: Option<u64>,
}

/// Requests that are sent together, and the replies that each may get.
#[derive(Debug, Default)]
pub(super) struct Burst {
    pub bytes: Vec<u8>,
    pub asked: Vec<Asked>,
}

impl Writer {
    /// Adds to the burst (requests that are sent together) one random request, or a few that belong
    /// together. `step` is the number of the present event of the simulation.
    pub fn add(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        if self.has_favourites && self.random.per_mille(self.mere_reads) {
            return self.get(burst, step);
        }
        match self.random.below(100) {
            0..=17 => self.set(burst, step, history),
            18..=41 => self.get(burst, step),
            42..=49 => self.append(burst, step, history),
            50..=54 => self.count(burst, step, history),
            55..=61 => self.get_many(burst, step),
            62..=65 => self.set_many(burst, step, history),
            66..=67 => self.delete(burst, step, history),
            68 => self.take(burst, step, history),
            69..=71 => self.replace_own(burst, step, history),
            72..=74 => self.exists_or_size(burst, step),
            75..=77 => self.rename(burst, step, history),
            78..=82 => self.transaction(burst, step, history),
            83..=88 => self.echo(burst, step),
            89..=90 => self.hello(burst, step),
            91..=92 => self.ask_about_weir(burst, step),
            93..=94 => self.wrong(burst, step),
            95..=96 => self.quality(burst, step),
            97 => self.inline(burst, step),
            _ => self.scan(burst, step),
        }
    }

    /// Adds to the burst (requests that are sent together) a request of a client under load: a GET or SET of
    /// one of `keys` keys. `step` is the number of the present event of the simulation.
    pub fn add_plain(&mut self, burst: &mut Burst, keys: u64, step: u64, history: &mut History) {
        let key = format!("key:{}", self.random.below(keys));
        if self.random.per_mille(750) {
            return self.ask(burst, step, &[b"GET", key.as_bytes()], Expected::Value(key.clone()));
        }
        self.set_key(burst, &key, step, history);
    }

    /// Adds to the burst (requests that are sent together) a `QOS SET` with the tier (importance) and the
    /// deadline of the client's requests. `step` is the number of the present event of the simulation.
    pub fn say_quality(&mut self, burst: &mut Burst, tier: Tier, deadline: Duration, step: u64) {
        let millis = deadline.as_millis().to_string();
        let words = [b"QOS", &b"SET"[..], b"TIER", tier.name().as_bytes(), b"DEADLINE", millis.as_bytes()];
        self.ask(burst, step, &words, Expected::Exactly(b"+OK\r\n".to_vec()));
    }

    /// Adds to the burst (requests that are sent together) a PING or ECHO, which weir answers without a
    /// store.
    pub fn echo(&mut self, burst: &mut Burst, step: u64) {
        let text = format!("e{}.{}", self.client, self.sequence);
        let mut reply = Vec::new();
        if self.random.per_mille(300) {
            encode::simple(&mut reply, "PONG");
            self.ask(burst, step, &[b"PING"], Expected::Exactly(reply));
        } else {
            encode::bulk(&mut reply, text.as_bytes());
            let name: &[u8] = if self.random.per_mille(500) { b"ECHO" } else { b"ping" };
            self.ask(burst, step, &[name, text.as_bytes()], Expected::Exactly(reply));
        }
    }

    /// Adds to the burst (requests that are sent together) a HELLO that switches the connection to RESP3.
    /// `step` is the event of the simulation at which it is sent.
    pub fn modernise(&mut self, burst: &mut Burst, step: u64) {
        let sent = self.next(step);
        self.protocol = Protocol::Resp3;
        self.push(burst, sent, &[b"HELLO", b"3"], Expected::Hello);
    }

    pub fn quit(&mut self, burst: &mut Burst, step: u64) {
        self.ask(burst, step, &[b"QUIT"], Expected::Exactly(b"+OK\r\n".to_vec()));
    }

    /// Adds to the burst (requests that are sent together) bytes that are not RESP: weir answers with an error
    /// and closes the connection.
    pub fn malformed(&mut self, burst: &mut Burst, step: u64) {
        let wrong: [&[u8]; 7] = [
            b"*2147483647\r\n",
            b"*1\r\n$-5\r\n",
            b"*1\r\n$99999999999\r\n",
            b"*1\r\n:1\r\n",
            b"*2\r\n$3\r\nGETxx$1\r\n",
            b"*x\r\n",
            b"SET \"unbalanced\r\n",
        ];
        let sent = self.next(step);
        burst.bytes.extend_from_slice(self.random.pick::<&[u8]>(&wrong));
        let expected = Expected::OwnError("-ERR Protocol error");
        burst.asked.push(Asked { sent, protocol: self.protocol, expected, reach: Reach::default() });
    }

    fn set(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let key = self.register();
        if self.random.per_mille(150) {
            return self.set_for_a_while(burst, &key, step, history);
        }
        if self.random.per_mille(50) {
            let sent = self.next(step);
            let (write, value) = self.written(sent, &key, history);
            let words = [&b"EVAL"[..], b"SET", b"1", key.as_bytes(), &value];
            return self.push(burst, sent, &words, Expected::Scripted(write));
        }
        self.set_key(burst, &key, step, history);
    }

    fn set_for_a_while(&mut self, burst: &mut Burst, key: &str, step: u64, history: &mut History) {
        let sent = self.next(step);
        let (write, value) = self.written(sent, key, history);
        let millis = self.random.pick(&[1, 10, 100]).to_string();
        let words = [b"SET", key.as_bytes(), &value, b"PX", millis.as_bytes()];
        self.push(burst, sent, &words, Expected::Ok(vec![write]));
    }

    /// Adds to the burst (requests that are sent together) a GETDEL, whose reply is the deleted value.
    fn take(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let key = self.register();
        let sent = self.next(step);
        let write = history.delete(sent, &key);
        self.push(burst, sent, &[b"GETDEL", key.as_bytes()], Expected::Taken { key: key.clone(), write });
    }

    fn set_key(&mut self, burst: &mut Burst, key: &str, step: u64, history: &mut History) {
        let sent = self.next(step);
        let (write, value) = self.written(sent, key, history);
        self.push(burst, sent, &[b"SET", key.as_bytes(), &value], Expected::Ok(vec![write]));
    }

    fn get(&mut self, burst: &mut Burst, step: u64) {
        if self.random.per_mille(250) {
            let key = self.log();
            return self.ask(burst, step, &[b"GET", key.as_bytes()], Expected::Log(key.clone()));
        }
        let key = self.register();
        let words: &[&[u8]] = if self.random.per_mille(self.script_reads) {
            &[b"EVAL", b"GET", b"1", key.as_bytes()]
        } else {
            &[b"GET", key.as_bytes()]
        };
        self.ask(burst, step, words, Expected::Value(key.clone()));
    }

    fn append(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let key = self.log();
        let sent = self.next(step);
        let write = history.write(sent, &key);
        let value = value(write, self.client, &key, 0);
        let expected = Expected::Appended { write, bytes: value.len() };
        self.push(burst, sent, &[b"APPEND", key.as_bytes(), &value], expected);
    }

    fn count(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let number = self.random.below(COUNTERS);
        let key = self.named("n", number);
        history.count(&key);
        self.ask(burst, step, &[b"INCR", key.as_bytes()], Expected::Counted(key.clone()));
    }

    fn get_many(&mut self, burst: &mut Burst, step: u64) {
        let keys: Vec<String> = (0..self.random.between(1, 9)).map(|_| self.register()).collect();
        let words: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(keys.iter().map(String::as_bytes)).collect();
        self.ask(burst, step, &words, Expected::Values(keys.clone()));
    }

    fn set_many(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let keys = self.distinct_registers(6);
        let sent = self.next(step);
        let (writes, values) = self.written_all(sent, &keys, history);
        let words = paired(b"MSET", &keys, &values);
        self.push(burst, sent, &words, Expected::Ok(writes));
    }

    fn delete(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let keys = self.distinct_registers(3);
        self.delete_these(burst, step, &keys, history);
    }

    fn delete_these(&mut self, burst: &mut Burst, step: u64, keys: &[String], history: &mut History) {
        let sent = self.next(step);
        let writes = keys.iter().map(|key| history.delete(sent, key)).collect();
        let name: &[u8] = if self.random.per_mille(500) { b"DEL" } else { b"UNLINK" };
        let words: Vec<&[u8]> = std::iter::once(name).chain(keys.iter().map(String::as_bytes)).collect();
        self.push(burst, sent, &words, Expected::Deleted(writes));
    }

    /// Adds to the burst a request that deletes keys which only this client writes, one MSETNX that writes
    /// all of them again at once, and a GET of one of them.
    fn replace_own(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let own: Vec<String> = (0..OWN_KEYS).map(|index| self.own(index)).collect();
        let place = self.place_of(&own[0]);
        let keys: Vec<String> = own.into_iter().filter(|key| self.place_of(key) == place).collect();
        self.delete_these(burst, step, &keys, history);
        let sent = self.next(step);
        let (writes, values) = self.written_all(sent, &keys, history);
        let words = paired(b"MSETNX", &keys, &values);
        self.push(burst, sent, &words, Expected::IfNone { writes, keys: keys.clone(), certain: true });
        let key = self.random.pick(&keys).clone();
        self.ask(burst, step, &[b"GET", key.as_bytes()], Expected::Value(key.clone()));
    }

    fn exists_or_size(&mut self, burst: &mut Burst, step: u64) {
        if self.random.per_mille(400) {
            return self.ask(burst, step, &[b"DBSIZE"], Expected::Number(1_000_000));
        }
        let keys: Vec<String> = (0..self.random.between(1, 5)).map(|_| self.register()).collect();
        let words: Vec<&[u8]> =
            std::iter::once(&b"EXISTS"[..]).chain(keys.iter().map(String::as_bytes)).collect();
        self.ask(burst, step, &words, Expected::Number(keys.len() as i64));
    }

    /// Adds to the burst (requests that are sent together) a request on a group of keys with the same tag:
    /// SET, GET or RENAME.
    fn rename(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let group = format!("{{tag{}}}", self.random.below(GROUPS));
        let [from, to] = [(); 2].map(|()| format!("{group}{}", self.random.below(3)));
        match self.random.below(3) {
            0 => self.set_key(burst, &from, step, history),
            1 => self.ask(burst, step, &[b"GET", from.as_bytes()], Expected::OneOf(group)),
            _ => self.ask(burst, step, &[b"RENAME", from.as_bytes(), to.as_bytes()], Expected::Renamed),
        }
    }

    fn transaction(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        let queued = || Expected::Exactly(b"+QUEUED\r\n".to_vec());
        self.ask(burst, step, &[b"MULTI"], Expected::Exactly(b"+OK\r\n".to_vec()));
        let place = if self.is_clustered {
            let key = self.register();
            self.place_of(&key)
        } else {
            self.random.below(u64::from(self.topology.backends())) as u16
        };
        let mut inner = Burst::default();
        for _ in 0..self.random.below(6) {
            let key = if self.random.per_mille(300) { self.log() } else { self.register() };
            if self.place_of(&key) != place {
                continue;
            }
            let log = key.contains("log:");
            let sent = self.next(step);
            match (log, self.random.per_mille(500)) {
                (true, true) => {
                    let write = history.write(sent, &key);
                    let value = value(write, self.client, &key, 0);
                    let expected = Expected::Appended { write, bytes: value.len() };
                    self.push(&mut inner, sent, &[b"APPEND", key.as_bytes(), &value], expected);
                }
                (true, false) => {
                    self.push(&mut inner, sent, &[b"GET", key.as_bytes()], Expected::Log(key.clone()));
                }
                (false, true) => {
                    let (write, value) = self.written(sent, &key, history);
                    self.push(&mut inner, sent, &[b"SET", key.as_bytes(), &value], Expected::Ok(vec![write]));
                }
                (false, false) => {
                    self.push(&mut inner, sent, &[b"GET", key.as_bytes()], Expected::Value(key.clone()));
                }
            }
            let sent = self.next(step);
            let reach = Reach::default();
            burst.asked.push(Asked { sent, protocol: self.protocol, expected: queued(), reach });
        }
        burst.bytes.append(&mut inner.bytes);
        if self.random.per_mille(100) {
            let asked = Expected::OwnError("-ERR BLPOP is not supported");
            self.ask(burst, step, &[b"BLPOP", b"x", b"0"], asked);
            Self::abandon(&inner.asked, history);
            return self.ask(burst, step, &[b"EXEC"], Expected::NoBlock("-EXECABORT"));
        }
        if self.random.per_mille(100) {
            Self::abandon(&inner.asked, history);
            return self.ask(burst, step, &[b"DISCARD"], Expected::Exactly(b"+OK\r\n".to_vec()));
        }
        if inner.asked.is_empty() {
            return self.ask(burst, step, &[b"EXEC"], Expected::NoBlock("*0\r\n"));
        }
        self.ask(burst, step, &[b"EXEC"], Expected::Block(inner.asked));
    }

    /// Records in the history that requests which were queued in a transaction are never carried out.
    fn abandon(asked: &[Asked], history: &mut History) {
        for asked in asked {
            asked.refused(super::history::Fate::Never, history).expect("it was never sent to a store");
        }
    }

    fn hello(&mut self, burst: &mut Burst, step: u64) {
        if self.random.per_mille(200) {
            self.protocol = Protocol::Resp2;
            return self.ask(burst, step, &[b"RESET"], Expected::Reset);
        }
        let sent = self.next(step);
        let version: &[u8] = if self.random.per_mille(500) { b"3" } else { b"2" };
        self.protocol = if version == b"3" { Protocol::Resp3 } else { Protocol::Resp2 };
        self.push(burst, sent, &[b"HELLO", version], Expected::Hello);
    }

    /// Adds to the burst (requests that are sent together) an `INFO`, which weir's control executor answers:
    /// in the simulated world it replies with the section's name.
    fn ask_about_weir(&mut self, burst: &mut Burst, step: u64) {
        let section = format!("i{}.{}", self.client, self.sequence);
        let mut reply = Vec::new();
        encode::bulk(&mut reply, section.as_bytes());
        self.ask(burst, step, &[b"INFO", section.as_bytes()], Expected::Told(reply));
    }

    fn wrong(&mut self, burst: &mut Burst, step: u64) {
        let key = self.register();
        match self.random.below(5) {
            0 => self.ask(
                burst,
                step,
                &[b"FROB", key.as_bytes()],
                Expected::StoreError("-ERR unknown command"),
            ),
            1 => self.ask(
                burst,
                step,
                &[b"WATCH", key.as_bytes()],
                Expected::OwnError("-ERR WATCH is not supported"),
            ),
            2 => self.ask(burst, step, &[b"GET"], Expected::OwnError("-ERR wrong number of arguments")),
            3 => self.ask(burst, step, &[b"EXEC"], Expected::NoBlock("-ERR EXEC without MULTI")),
            _ => self.ask(
                burst,
                step,
                &[b"INCRBY", key.as_bytes(), b"x"],
                Expected::StoreError("-ERR value is not"),
            ),
        }
    }

    fn quality(&mut self, burst: &mut Burst, step: u64) {
        match self.random.below(3) {
            0 => {
                let ok = Expected::Exactly(b"+OK\r\n".to_vec());
                self.ask(burst, step, &[b"QOS", b"SET", b"TIER", b"batch", b"USER", b"u"], ok);
            }
            1 => self.ask(
                burst,
                step,
                &[b"QOS", b"SET", b"TIER", b"urgent"],
                Expected::OwnError("-ERR QOS TIER"),
            ),
            _ => {
                let key = self.register();
                let millis = DEADLINE.as_millis().to_string();
                let words: [&[u8]; 6] =
                    [b"QOS", b"CALL", b"DEADLINE", millis.as_bytes(), b"GET", key.as_bytes()];
                self.ask(burst, step, &words, Expected::Value(key.clone()));
            }
        }
    }

    fn inline(&mut self, burst: &mut Burst, step: u64) {
        let key = self.register();
        let sent = self.next(step);
        burst.bytes.extend_from_slice(format!("  get \"{key}\"\r\n").as_bytes());
        let reach = Reach::of(&[b"get", key.as_bytes()]);
        burst.asked.push(Asked { sent, protocol: self.protocol, expected: Expected::Value(key), reach });
    }

    /// Adds to the burst (requests that are sent together) the request for the next page of the SCAN in
    /// progress, if there is one and that page is not requested yet: its cursor is in the reply before it.
    pub fn scan(&mut self, burst: &mut Burst, step: u64) {
        if let Some(cursor) = self.cursor.take() {
            let cursor = cursor.to_string();
            let count: &[u8] = if self.random.per_mille(500) { b"7" } else { b"100" };
            self.ask(burst, step, &[b"SCAN", cursor.as_bytes(), b"COUNT", count], Expected::Scanned);
        }
    }

    fn ask(&mut self, burst: &mut Burst, step: u64, words: &[&[u8]], expected: Expected) {
        let sent = self.next(step);
        self.push(burst, sent, words, expected);
    }

    fn push(&mut self, burst: &mut Burst, sent: Sent, words: &[&[u8]], expected: Expected) {
        encode::request(&mut burst.bytes, words.iter().copied());
        let reach = match &expected {
            Expected::Block(inner) => Reach::of_all(inner.iter().map(|asked| &asked.reach)),
            _ => Reach::of(words),
        };
        burst.asked.push(Asked { sent, protocol: self.protocol, expected, reach });
    }

    fn next(&mut self, step: u64) -> Sent {
        self.sequence += 1;
        Sent { client: self.client, sequence: self.sequence, step }
    }

    fn written(&mut self, sent: Sent, key: &str, history: &mut History) -> (usize, Vec<u8>) {
        let write = history.write(sent, key);
        let large = self.random.per_mille(100);
        let padding =
            if large { self.padding_max } else { self.padding_max.min(self.random.below(200) as usize) };
        (write, value(write, self.client, key, padding))
    }

    fn written_all(
        &mut self,
        sent: Sent,
        keys: &[String],
        history: &mut History,
    ) -> (Vec<usize>, Vec<Vec<u8>>) {
        keys.iter().map(|key| self.written(sent, key, history)).unzip()
    }

    /// Returns the name of a random key whose value is set and deleted as a whole.
    fn register(&mut self) -> String {
        if self.has_favourites && self.random.per_mille(700) {
            let number = self.random.below(FAVOURITES);
            return self.named("key", number);
        }
        if self.random.per_mille(400) {
            let index = self.random.below(OWN_KEYS);
            self.own(index)
        } else {
            let number = self.random.below(SHARED_KEYS);
            self.named("key", number)
        }
    }

    fn own(&self, index: u64) -> String {
        if self.is_clustered {
            return format!("own:{{c{}}}:{index}", self.client);
        }
        format!("own:{}:{index}", self.client)
    }

    fn distinct_registers(&mut self, most: u64) -> Vec<String> {
        let mut keys: Vec<String> = (0..self.random.between(1, most)).map(|_| self.register()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Returns the name of a random key whose value is only appended to.
    fn log(&mut self) -> String {
        if self.random.per_mille(500) {
            let tag = if self.is_clustered { "{c" } else { "" };
            let end = if self.is_clustered { "}" } else { "" };
            format!("log:own:{tag}{}{end}", self.client)
        } else {
            let number = self.random.below(LOGS);
            self.named("log", number)
        }
    }

    /// Returns the name of the key with this number that all clients use. `kind` is the kind of its value,
    /// such as `log`. In a cluster, keys with the same number modulo 3 share a slot.
    fn named(&self, kind: &str, number: u64) -> String {
        if self.is_clustered {
            return format!("{kind}:{{{}}}:{number}", number % SHARED_SLOTS);
        }
        format!("{kind}:{number}")
    }

    /// Returns the slot of a key if the stores are a cluster, else the index of its store: only keys for
    /// which the result is the same may be in one request.
    fn place_of(&self, key: &str) -> u16 {
        let slot = slot_of(key.as_bytes());
        if self.is_clustered { slot } else { self.topology.backend_of(slot).0 }
    }
}

fn paired<'a>(name: &'a [u8], keys: &'a [String], values: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    let pairs = keys.iter().zip(values).flat_map(|(key, value)| [key.as_bytes(), value.as_slice()]);
    std::iter::once(name).chain(pairs).collect()
}
