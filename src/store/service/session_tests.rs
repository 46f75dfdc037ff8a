//! Tests of what connections keep in the engine: calls that wait, watches, subscriptions and databases.

use std::collections::BTreeMap;
use std::time::Duration;

use super::tests::Unattended;
use super::{Service, StoreClients, StoreService};
use crate::protocol::encode;
use crate::store::effort::RANK;
use crate::store::{Engine, EngineLimits};
use crate::values::limits::{
    ENGINE_CHANNELS_BYTES_MAX, ENGINE_INPUT_BYTES_HELD, ENGINE_SUBSCRIBER_BYTES_MAX,
    ENGINE_WAITING_BYTES_MAX, ENGINE_WATCHED_BYTES_MAX,
};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, Timestamp};

/// A service with clients that read everything at once unless a test stops them.
struct Bench {
    service: Service,
    now: Now,
    read: BTreeMap<u32, String>,
    closed: Vec<ClientId>,
    paused: Vec<u32>,
}

impl Bench {
    fn new() -> Self {
        let engine = Engine::new(EngineLimits::with_memory(u64::MAX), 1);
        let service = Service::new(engine, 256 << 20);
        let now = Now { unix_ms: 1_700_000_000_000, ..Now::default() };
        Self { service, now, read: BTreeMap::new(), closed: Vec::new(), paused: Vec::new() }
    }

    fn open<const N: usize>(&mut self) -> [ClientId; N] {
        std::array::from_fn(|_| self.service.handle_client_opened(self.now))
    }

    /// Sends requests of `client`, separated by `|`, and runs turns until nothing is left to do.
    fn send(&mut self, client: ClientId, lines: &str) {
        for line in lines.split('|') {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let mut bytes = Vec::new();
            encode::request(&mut bytes, words.into_iter());
            self.service.handle_client_bytes(client, &bytes, self.now);
        }
        self.run();
    }

    fn run(&mut self) {
        loop {
            self.service.handle_turn_end(self.now, &mut Unattended);
            let mut any = false;
            while let Some((Owner::Client(id), segment)) = self.service.poll_transmit() {
                let text = String::from_utf8_lossy(&segment.bytes()).replace("\r\n", "|");
                self.read.entry(id.index).or_default().push_str(&text);
                self.service.handle_transmitted(id, segment);
                any = true;
            }
            self.heed();
            if !any && !self.service.is_busy() {
                return;
            }
        }
    }

    fn heed(&mut self) {
        while let Some(action) = self.service.poll_action() {
            match action {
                Action::Close(Owner::Client(id)) => self.closed.push(id),
                Action::PauseReading(Owner::Client(id)) => self.paused.push(id.index),
                Action::ResumeReading(Owner::Client(id)) => self.paused.retain(|index| *index != id.index),
                other => panic!("a store does nothing like {other:?}"),
            }
        }
    }

    /// Returns the text that `client` was sent since the last call, with `|` in place of each CRLF.
    fn told(&mut self, client: ClientId) -> String {
        self.read.remove(&client.index).unwrap_or_default()
    }

    fn ask(&mut self, client: ClientId, lines: &str) -> String {
        self.send(client, lines);
        self.told(client)
    }

    fn wait_ms(&mut self, ms: u64) {
        self.now.unix_ms += ms;
        self.now.monotonic = self.now.monotonic.after(Duration::from_millis(ms));
        self.run();
    }
}

#[test]
fn calls_are_served_in_the_order_in_which_they_came() {
    let mut bench = Bench::new();
    let [first, second, third, pusher] = bench.open();
    assert_eq!(bench.ask(first, "BLPOP a b 0|ECHO behind"), "");
    bench.send(second, "BRPOP b 0");
    bench.send(third, "BLMPOP 0 2 c b LEFT COUNT 5");
    let info = bench.ask(pusher, "INFO clients");
    assert!(info.contains("|blocked_clients:3|"), "{info}");
    assert!(info.contains("|total_blocking_keys:3|total_blocking_keys_on_nokey:0|"), "{info}");
    assert_eq!(bench.ask(pusher, "RPUSH b 1 2 3 4"), ":4|");
    assert_eq!(bench.told(first), "*2|$1|b|$1|1|$6|behind|");
    assert_eq!(bench.told(second), "*2|$1|b|$1|4|");
    assert_eq!(bench.told(third), "*2|$1|b|*2|$1|2|$1|3|");
    assert_eq!(bench.ask(pusher, "EXISTS b"), ":0|");
    assert_eq!(bench.ask(first, "ECHO again"), "$5|again|");
}

#[test]
fn a_client_that_leaves_takes_nothing() {
    let mut bench = Bench::new();
    let [lost, ended, killed, unblocked, pusher] = bench.open();
    for client in [lost, ended, killed, unblocked] {
        assert_eq!(bench.ask(client, "BLPOP q 0"), "");
    }
    bench.service.handle_client_lost(lost);
    bench.service.handle_client_end(ended);
    bench.run();
    assert_eq!(bench.closed, [ended]);
    assert_eq!(bench.ask(pusher, &format!("CLIENT KILL ID {}", killed.generation)), ":1|");
    let unblock = format!("CLIENT UNBLOCK {}", unblocked.generation);
    assert_eq!(bench.ask(pusher, &format!("{unblock} ERROR|{unblock}")), ":1|:0|");
    assert_eq!(bench.told(unblocked), "-UNBLOCKED client unblocked via CLIENT UNBLOCK|");
    assert_eq!(bench.ask(pusher, "RPUSH q 1|LLEN q"), ":1|:1|");
    assert!(bench.ask(pusher, "INFO clients").contains("|blocked_clients:0|"));
}

/// A client may leave while its requests wait for their turn: they are answered, but none of them waits.
#[test]
fn a_call_of_a_client_that_has_left_does_not_wait() {
    const PINGS: usize = 2_000;
    let mut bench = Bench::new();
    let [gone, pusher] = bench.open();
    let mut bytes = Vec::new();
    for _ in 0..PINGS {
        encode::request(&mut bytes, [&b"PING"[..]].into_iter());
    }
    encode::request(&mut bytes, [&b"BLPOP"[..], b"q", b"0"].into_iter());
    encode::request(&mut bytes, [&b"PING"[..]].into_iter());
    bench.service.handle_client_bytes(gone, &bytes, bench.now);
    assert!(bench.service.is_busy(), "these are more requests than one turn carries out");
    bench.service.handle_client_end(gone);
    bench.run();
    assert_eq!(bench.told(gone), "+PONG|".repeat(PINGS));
    assert_eq!(bench.closed, [gone]);
    assert!(bench.ask(pusher, "INFO clients").contains("|blocked_clients:0|"));
    assert_eq!(bench.ask(pusher, "RPUSH q 1|LLEN q"), ":1|:1|");
}

#[test]
fn keys_are_ready_after_the_whole_transaction_and_feed_each_other() {
    let mut bench = Bench::new();
    let [last, middle, sorted, pusher] = bench.open();
    bench.send(last, "BLPOP c 0");
    bench.send(middle, "BLMOVE b c LEFT RIGHT 0");
    bench.send(sorted, "BZPOPMIN z 0");
    bench.send(pusher, "MULTI|RPUSH b 1|LPOP b|RPUSH b 2|ZADD z 2 m|ZADD z 1 n|EXEC");
    assert!(bench.told(pusher).ends_with("*5|:1|$1|1|:1|:1|:1|"));
    assert_eq!(bench.told(middle), "$1|2|");
    assert_eq!(bench.told(last), "*2|$1|c|$1|2|");
    assert_eq!(bench.told(sorted), "*3|$1|z|$1|n|$1|1|");
    // BRPOPLPUSH with a target of another type is an error, and the item stays in its list.
    bench.send(middle, "BRPOPLPUSH b z 0");
    assert_eq!(bench.ask(pusher, "RPUSH b 3|LLEN b"), ":1|:1|");
    assert!(bench.told(middle).starts_with("-WRONGTYPE "));
    // A key of another type than the blocked calls want serves none of them.
    bench.send(last, "BLPOP k 0");
    bench.send(pusher, "SADD k x|DEL k|SET k v|DEL k|RENAME b k");
    assert_eq!(bench.told(last), "*2|$1|k|$1|3|");
    bench.told(pusher);
    assert_eq!(
        bench.ask(pusher, "MULTI|BLPOP k 0|BLMOVE k l LEFT LEFT 0|XREAD BLOCK 0 STREAMS x $|EXEC"),
        "+OK|+QUEUED|+QUEUED|+QUEUED|*3|*-1|$-1|*-1|"
    );
}

#[test]
fn a_wait_ends_at_its_time() {
    let mut bench = Bench::new();
    let [short, long, pusher] = bench.open();
    bench.send(short, "BLPOP a 0.0505");
    bench.send(long, "HELLO 3|XREAD BLOCK 200 STREAMS x $");
    assert_eq!(bench.service.poll_deadline(), Some(Timestamp::from_millis(51)));
    bench.wait_ms(50);
    assert_eq!(bench.told(short), "");
    bench.wait_ms(1);
    assert_eq!(bench.told(short), "*-1|");
    assert!(bench.told(long).starts_with("%7|"));
    bench.wait_ms(149);
    assert_eq!(bench.told(long), "_|");
    assert_eq!(bench.ask(short, "WAIT 0 0|WAIT 1 30"), ":0|");
    bench.wait_ms(30);
    assert_eq!(bench.told(short), ":0|");
    assert_eq!(bench.service.poll_deadline(), None);
    assert_eq!(bench.ask(pusher, "RPUSH a 1|LLEN a"), ":1|:1|");
    for (timeout, words) in [
        ("-1", "timeout is negative"),
        ("x", "timeout is not a float or out of range"),
        ("nan", "timeout is not a float or out of range"),
        ("inf", "timeout is negative"),
    ] {
        assert_eq!(bench.ask(pusher, &format!("BLPOP none {timeout}")), format!("-ERR {words}|"));
    }
}

#[test]
fn readers_of_streams_wait_for_entries_and_learn_of_the_end() {
    let mut bench = Bench::new();
    let [reader, grouped, other, writer] = bench.open();
    bench.send(writer, "XADD x 1-1 f v|XGROUP CREATE x g $|XGROUP CREATE x h $");
    bench.told(writer);
    bench.send(reader, "XREAD COUNT 1 BLOCK 0 STREAMS y x $ $");
    bench.send(grouped, "XREADGROUP GROUP g c BLOCK 0 STREAMS x >");
    bench.send(other, "XREADGROUP GROUP h c BLOCK 0 STREAMS x >");
    bench.send(writer, "XADD x 2-1 f w");
    let entry = "*1|*2|$1|x|*1|*2|$3|2-1|*2|$1|f|$1|w|";
    for client in [reader, grouped, other] {
        assert_eq!(bench.told(client), entry);
    }
    assert!(bench.ask(writer, "XPENDING x g").contains("*4|:1|$3|2-1|"));
    bench.send(grouped, "XREADGROUP GROUP g c BLOCK 0 STREAMS x >");
    bench.send(other, "XREADGROUP GROUP h c BLOCK 0 STREAMS x >");
    bench.send(writer, "XGROUP DESTROY x g|DEL x");
    let gone = |group: &str| {
        format!("-NOGROUP No such key 'x' or consumer group '{group}' in XREADGROUP with GROUP option|")
    };
    assert_eq!(bench.told(grouped), gone("g"));
    assert_eq!(bench.told(other), gone("h"));
    for (change, error) in [
        ("SET x v", "-WRONGTYPE Operation against a key holding the wrong kind of value|".to_owned()),
        ("FLUSHALL", gone("g")),
        ("SWAPDB 0 1", gone("g")),
        ("MULTI|DEL x|XADD x 1-1 f v|EXEC", gone("g")),
    ] {
        bench.ask(writer, "DEL x|XGROUP CREATE x g $ MKSTREAM");
        bench.send(grouped, "XREADGROUP GROUP g c BLOCK 0 STREAMS x >");
        bench.send(writer, change);
        assert_eq!(bench.told(grouped), error, "{change}");
        bench.told(writer);
    }
}

#[test]
fn an_entry_that_many_wait_for_is_copied_for_few_of_them() {
    let mut bench = Bench::new();
    let readers: [ClientId; 5] = bench.open();
    let [other, writer] = bench.open();
    let value = "v".repeat(40 << 20);
    // Equal questions share a reply; replies that differ may be 128 MiB together, or a little more.
    for (differ, served) in [(false, 5), (true, 4)] {
        for (count, reader) in (1..).zip(readers) {
            let count = if differ { count } else { 1 };
            bench.send(reader, &format!("XREAD COUNT {count} BLOCK 0 STREAMS x $"));
        }
        bench.send(other, "BLPOP l 0");
        bench.send(writer, &format!("MULTI|XADD x * f {value}|RPUSH l 1|EXEC"));
        let told = readers.map(|reader| bench.told(reader));
        let whole = told.iter().filter(|told| told.len() > value.len()).count();
        let refused = "-ERR too many bytes would be sent to calls that wait at once: ask again|";
        assert_eq!(whole, served);
        assert!(told[served..].iter().all(|told| told == refused));
        assert_eq!(bench.told(other), "*2|$1|l|$1|1|", "what is taken away is bounded by what there is");
        bench.told(writer);
    }
}

#[test]
fn a_call_that_waited_looks_at_all_its_keys_in_their_order() {
    let mut bench = Bench::new();
    let [popper, reader, grouped, writer] = bench.open();
    bench.ask(writer, "XGROUP CREATE x g $ MKSTREAM|XGROUP CREATE y g $ MKSTREAM");
    bench.send(popper, "BLPOP k l 0");
    bench.send(reader, "XREAD BLOCK 0 STREAMS x y $ $");
    bench.send(grouped, "XREADGROUP GROUP g c BLOCK 0 STREAMS x y > >");
    let info = bench.ask(writer, "INFO clients");
    assert!(info.contains("|total_blocking_keys:4|total_blocking_keys_on_nokey:2|"), "{info}");
    bench.send(writer, "MULTI|RPUSH l 2|RPUSH k 1|XADD y 2-1 f w|XADD x 1-1 f v|EXEC");
    assert_eq!(bench.told(popper), "*2|$1|k|$1|1|");
    let entries = "*2|*2|$1|x|*1|*2|$3|1-1|*2|$1|f|$1|v|*2|$1|y|*1|*2|$3|2-1|*2|$1|f|$1|w|";
    assert_eq!((bench.told(reader).as_str(), bench.told(grouped).as_str()), (entries, entries));
    bench.told(writer);
    bench.send(popper, "BLPOP k l 0");
    assert_eq!(bench.told(popper), "*2|$1|l|$1|2|");
    bench.send(popper, "BLPOP k l 0");
    bench.send(writer, "MULTI|SET k v|RPUSH l 3|EXEC");
    assert!(bench.told(popper).starts_with("-WRONGTYPE"));
    // Entries that are deleted within the transaction that adds them end no wait.
    bench.send(grouped, "XREADGROUP GROUP g c BLOCK 0 STREAMS x >");
    bench.send(writer, "MULTI|XADD x 2-1 f v|XDEL x 2-1|EXEC");
    assert_eq!(bench.told(grouped), "");
    bench.send(writer, "XADD x 3-1 f v");
    assert_eq!(bench.told(grouped), "*1|*2|$1|x|*1|*2|$3|3-1|*2|$1|f|$1|v|");
}

/// A transaction makes many streams ready at once, of which one group's calls wait for all: each call looks at its
/// streams once, and is charged for them.
#[test]
fn calls_that_found_nothing_are_not_carried_out_again_for_the_next_stream() {
    const STREAMS: usize = 100;
    const READY: usize = 20;
    let mut bench = Bench::new();
    let readers: [ClientId; 30] = bench.open();
    let [single, writer] = bench.open();
    for stream in 0..STREAMS {
        bench.ask(writer, &format!("XGROUP CREATE s{stream} g $ MKSTREAM"));
    }
    let keys = (0..STREAMS).fold(String::new(), |line, stream| format!("{line} s{stream}"));
    for reader in readers {
        bench.send(reader, &format!("XREADGROUP GROUP g c BLOCK 0 STREAMS{keys}{}", " >".repeat(STREAMS)));
    }
    bench.send(single, &format!("XREAD BLOCK 0 STREAMS{keys}{}", " $".repeat(STREAMS)));
    bench.send(writer, "MULTI");
    for stream in 0..READY {
        bench.send(writer, &format!("XADD s{stream} 1-1 f v"));
    }
    bench.send(writer, "EXEC");
    let looks = (readers.len() * STREAMS) as u64 * RANK;
    let effort = bench.service.engine().effort();
    assert!((looks..looks + 10_000).contains(&effort), "{effort} units, and {looks} for each stream once");
    assert!(bench.told(readers[0]).starts_with("*20|*2|$2|s0|*1|*2|$3|1-1|"));
    assert!(bench.told(single).starts_with("*20|*2|$2|s0|*1|*2|$3|1-1|"));
    assert!(readers[1..].iter().all(|reader| bench.told(*reader).is_empty()));
    // Calls that found nothing then are served by the next transaction.
    bench.send(writer, "XADD s7 2-1 f v");
    assert_eq!(bench.told(readers[1]), "*1|*2|$2|s7|*1|*2|$3|2-1|*2|$1|f|$1|v|");
    assert_eq!(bench.told(readers[2]), "");
}

#[test]
fn little_is_received_behind_a_call_that_waits() {
    let mut bench = Bench::new();
    let [waiter, pusher] = bench.open();
    bench.send(waiter, "BLPOP q 0");
    let line = format!("ECHO {}", "x".repeat(1_000));
    for _ in 0..=ENGINE_INPUT_BYTES_HELD / 1_000 {
        bench.send(waiter, &line);
    }
    assert_eq!(bench.paused, [waiter.index]);
    bench.send(pusher, "RPUSH q 1");
    assert!(bench.paused.is_empty());
    assert!(bench.told(waiter).starts_with("*2|$1|q|$1|1|$1000|xxx"));
}

#[test]
fn calls_that_wait_and_watches_are_bounded_in_bytes() {
    let mut bench = Bench::new();
    let [first, second, third] = bench.open();
    let key = "k".repeat(ENGINE_WAITING_BYTES_MAX / 5);
    bench.send(first, &format!("BLPOP {key} 0"));
    bench.send(second, &format!("BLPOP {key} 0"));
    assert_eq!(bench.ask(third, &format!("BLPOP {key} 0")), "-ERR too many calls wait, try again later|");
    bench.service.handle_client_lost(first);
    assert_eq!(bench.ask(third, &format!("BLPOP {key} 0")), "");
    let [watcher] = bench.open();
    let key = "k".repeat(ENGINE_WATCHED_BYTES_MAX / 3);
    assert_eq!(
        bench.ask(watcher, &format!("WATCH {key}|WATCH x{key}|UNWATCH|WATCH x{key}")),
        "+OK|-ERR too many keys are watched, try again later|+OK|+OK|"
    );
}

#[test]
fn a_watch_is_broken_by_every_change_of_its_key_and_by_nothing_else() {
    let mut bench = Bench::new();
    let [watcher, other] = bench.open();
    let block = "MULTI|PING|EXEC";
    let (whole, nil) = ("+OK|+QUEUED|*1|+PONG|", "+OK|+QUEUED|*-1|");
    for (before, change, result) in [
        ("SET k v", "SET k v", nil),
        ("SET k v", "GET k", whole),
        ("SET k v", "SET other v", whole),
        ("DEL k", "DEL k", whole),
        ("DEL k", "SET k v|DEL k", nil),
        ("SADD k a", "SADD k a|SREM k b|SMOVE k l b", whole),
        ("SADD k a", "SADD k b", nil),
        ("ZADD k 1 a", "ZADD k 1 a|ZREM k b|ZREMRANGEBYSCORE k 5 6", whole),
        ("RPUSH k a", "LREM k 0 b|LPUSHX none a", whole),
        ("HSET k f v", "HSETNX k f w|HDEL k g", whole),
        ("HSET k f v", "HGETEX k FIELDS 1 f|HGETEX k PERSIST FIELDS 1 f|HPERSIST k FIELDS 1 f", whole),
        ("HSET k f v", "HEXPIRE k 10 XX FIELDS 1 f|HPEXPIRE k 10 FIELDS 1 g|HGETDEL k FIELDS 1 g", whole),
        ("HSET k f v g w", "HGETDEL k FIELDS 1 g", nil),
        ("HSET k f v", "HGETEX k EX 10 FIELDS 1 f", nil),
        ("HSET k f v", "HEXPIRE k 10 FIELDS 1 f", nil),
        ("RPUSH k a", "LPOP k 0|RPOP k 0", whole),
        ("SETBIT k 1 1", "SETBIT k 1 1|BITFIELD k INCRBY u4 0 0", whole),
        ("SET k v", "APPEND k w", nil),
        ("SET k v", "EXPIRE k 100", nil),
        ("SET k v", "RENAME k l", nil),
        ("SET k v", "COPY l k REPLACE", nil),
        ("SET k v", "LPUSH k a", whole),
        ("SET k v", "SELECT 1|SET k v|DEL k|SELECT 0", whole),
        ("SET k v", "MOVE k 2", nil),
        ("SET k v", "FLUSHALL", nil),
        ("DEL k", "FLUSHALL", whole),
        ("SET k v", "SWAPDB 0 3", nil),
        ("DEL k", "SWAPDB 0 4", whole),
    ] {
        bench.send(other, &format!("FLUSHALL|SET l x|{before}"));
        assert_eq!(bench.ask(watcher, "WATCH k"), "+OK|");
        bench.send(other, change);
        assert_eq!(bench.ask(watcher, block), result, "{before}, {change}");
        // EXEC has ended the watch, so this change has no effect.
        bench.send(other, "SET k changed");
        assert_eq!(bench.ask(watcher, block), whole);
    }
    for end in ["UNWATCH", "MULTI|DISCARD", "RESET"] {
        bench.send(watcher, &format!("WATCH k|{end}"));
        bench.send(other, "SET k w PX 100");
        bench.told(watcher);
        assert_eq!(bench.ask(watcher, block), whole, "{end}");
    }
    bench.send(watcher, "WATCH k");
    bench.told(other);
    let info = bench.ask(other, "INFO clients");
    assert!(info.contains("|watching_clients:1|total_watched_keys:1|"), "{info}");
    bench.told(watcher);
    bench.wait_ms(101);
    assert_eq!(bench.ask(watcher, block), nil, "the key has expired");
    assert_eq!(
        bench.ask(watcher, "MULTI|WATCH k|UNWATCH|EXEC"),
        "+OK|-ERR WATCH inside MULTI is not allowed|+QUEUED|*1|+OK|"
    );
}

#[test]
fn messages_reach_their_subscribers_in_each_protocol() {
    let mut bench = Bench::new();
    let [old, new, publisher] = bench.open();
    assert_eq!(bench.ask(old, "SUBSCRIBE c d"), "*3|$9|subscribe|$1|c|:1|*3|$9|subscribe|$1|d|:2|");
    bench.send(new, "HELLO 3|PSUBSCRIBE c*|SSUBSCRIBE c");
    assert!(bench.told(new).ends_with(">3|$10|psubscribe|$2|c*|:1|>3|$10|ssubscribe|$1|c|:1|"));
    assert_eq!(bench.ask(publisher, "PUBLISH c x|SPUBLISH c y|PUBLISH none z"), ":2|:1|:0|");
    assert_eq!(bench.told(old), "*3|$7|message|$1|c|$1|x|");
    assert_eq!(bench.told(new), ">4|$8|pmessage|$2|c*|$1|c|$1|x|>3|$8|smessage|$1|c|$1|y|");
    // A message that a client publishes to itself precedes the reply, also the reply of EXEC.
    assert_eq!(bench.ask(new, "PUBLISH c x"), ">4|$8|pmessage|$2|c*|$1|c|$1|x|:2|");
    assert_eq!(
        bench.ask(new, "MULTI|PUBLISH cc x|EXEC"),
        "+OK|+QUEUED|>4|$8|pmessage|$2|c*|$2|cc|$1|x|*1|:1|"
    );
    bench.told(old);
    assert_eq!(
        bench.ask(old, "PING|PING x|UNSUBSCRIBE c"),
        "*2|$4|pong|$0||*2|$4|pong|$1|x|*3|$11|unsubscribe|$1|c|:1|"
    );
    assert!(bench.ask(old, "GET k").starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE / "));
    assert_eq!(bench.ask(old, "RESET|GET k|UNSUBSCRIBE"), "+RESET|$-1|*3|$11|unsubscribe|$-1|:0|");
    assert_eq!(
        bench.ask(publisher, "PUBSUB CHANNELS|PUBSUB NUMPAT|PUBSUB SHARDNUMSUB c d"),
        "*0|:1|*4|$1|c|:1|$1|d|:0|"
    );
    let info = bench.ask(publisher, "INFO");
    for field in ["pubsub_clients:1", "pubsub_channels:0", "pubsub_patterns:1", "pubsubshard_channels:1"] {
        assert!(info.contains(&format!("|{field}|")), "{field}");
    }
    bench.service.handle_client_lost(new);
    assert_eq!(bench.ask(publisher, "PUBLISH c x|PUBSUB NUMPAT"), ":0|:0|");
}

#[test]
fn a_refused_subscription_ends_no_earlier_one() {
    let mut bench = Bench::new();
    let [reader, writer] = bench.open();
    bench.ask(reader, "subscribe a b");
    let too_long = "c".repeat(ENGINE_CHANNELS_BYTES_MAX / 2);
    let refusal = bench.ask(reader, &format!("subscribe b new {too_long}"));
    assert!(refusal.starts_with("-ERR too many subscriptions"), "{refusal}");
    assert_eq!(bench.ask(writer, "publish a 1|publish b 2|publish new 3"), ":1|:1|:0|");
    assert_eq!(bench.told(reader), "*3|$7|message|$1|a|$1|1|*3|$7|message|$1|b|$1|2|");
}

#[test]
fn a_subscriber_that_does_not_read_is_closed() {
    let mut bench = Bench::new();
    let [slow, quick, publisher] = bench.open();
    bench.send(slow, "SUBSCRIBE c");
    bench.send(quick, "SUBSCRIBE c");
    let mut message = Vec::new();
    encode::request(&mut message, [&b"PUBLISH"[..], b"c", &vec![b'm'; 1 << 20]].into_iter());
    for sent in 0..(ENGINE_SUBSCRIBER_BYTES_MAX >> 20) + 2 {
        assert!(bench.closed.is_empty(), "{sent} messages of 1 MiB are few enough");
        bench.service.handle_client_bytes(publisher, &message, bench.now);
        bench.service.handle_turn_end(bench.now, &mut Unattended);
        // The driver keeps the first segment of the slow subscriber, so the rest of its output is not sent.
        while let Some((Owner::Client(id), segment)) = bench.service.poll_transmit() {
            if id != slow {
                bench.service.handle_transmitted(id, segment);
            }
        }
        bench.heed();
        if !bench.closed.is_empty() {
            assert!(sent >= ENGINE_SUBSCRIBER_BYTES_MAX >> 20, "{sent} messages");
            break;
        }
    }
    assert_eq!(bench.closed, [slow]);
    // A message is sent once for each pattern that it matches, and the bytes of one request's messages are
    // limited.
    let patterns =
        (0..200).fold("PSUBSCRIBE".to_owned(), |line, number| format!("{line} {}c", "*".repeat(number)));
    bench.ask(quick, &patterns);
    bench.service.handle_client_bytes(publisher, &message, bench.now);
    bench.run();
    let told = bench.told(publisher);
    assert!(told.ends_with("-ERR the request would send too many bytes of messages|"), "{told}");
    bench.send(quick, "PUNSUBSCRIBE");
    assert_eq!(bench.ask(publisher, "PUBSUB NUMSUB c").split('|').nth(3), Some(":1"));
}

/// A reply may be larger than the messages that may wait for a client, and does not count among them: the
/// client is closed only once too many bytes of messages wait behind it.
#[test]
fn a_message_behind_a_large_reply_closes_nothing() {
    let mut bench = Bench::new();
    let [reader, writer] = bench.open();
    bench.send(reader, "HELLO 3|CLIENT TRACKING ON BCAST");
    let mut large = Vec::new();
    encode::request(&mut large, [&b"SET"[..], b"large", &vec![b'v'; 48 << 20]].into_iter());
    bench.service.handle_client_bytes(writer, &large, bench.now);
    bench.run();
    // The reader takes nothing of the reply.
    let mut get = Vec::new();
    encode::request(&mut get, [&b"GET"[..], b"large"].into_iter());
    bench.service.handle_client_bytes(reader, &get, bench.now);
    bench.service.handle_turn_end(bench.now, &mut Unattended);
    bench.told(reader);
    let key = "k".repeat(1 << 20);
    for written in 0..ENGINE_SUBSCRIBER_BYTES_MAX >> 20 {
        assert!(bench.closed.is_empty(), "{written} messages of 1 MiB are few enough");
        let mut set = Vec::new();
        encode::request(&mut set, [&b"SET"[..], key.as_bytes(), b"v"].into_iter());
        bench.service.handle_client_bytes(writer, &set, bench.now);
        bench.service.handle_turn_end(bench.now, &mut Unattended);
        bench.heed();
    }
    assert_eq!(bench.closed, [reader]);
}

#[test]
fn each_connection_has_its_database() {
    let mut bench = Bench::new();
    let [zero, five, waiter] = bench.open();
    let none = "-ERR DB index is out of range|";
    assert_eq!(
        bench.ask(five, "SELECT 16|SELECT -1|SELECT x|SELECT 5"),
        format!("{none}{none}-ERR value is not an integer or out of range|+OK|")
    );
    bench.send(zero, "MSET a 1 b 2");
    bench.send(five, "SET a 5|MULTI|SELECT 6|SET a 6|SELECT 5|GET a|EXEC");
    assert!(bench.told(five).ends_with("*4|+OK|+OK|+OK|$1|5|"));
    bench.told(zero);
    let same = "-ERR source and destination objects are the same|";
    assert_eq!(
        bench.ask(zero, "GET a|DBSIZE|MOVE a 5|MOVE b 5|MOVE a 0|COPY a c DB 5|COPY a a"),
        format!("$1|1|:2|:0|:1|{same}:1|{same}")
    );
    assert_eq!(bench.ask(five, "MGET a b c|DBSIZE"), "*3|$1|5|$1|2|$1|1|:3|");
    assert!(bench.ask(zero, "INFO keyspace").contains("db0:keys=1,expires=0,avg_ttl=0|db5:keys=3,"));
    // A key that MOVE or SWAPDB brings to a database serves the calls that wait for it there.
    bench.send(waiter, "SELECT 7|BLPOP l 0");
    bench.send(zero, "RPUSH l 1 2|MOVE l 7");
    assert_eq!(bench.told(waiter), "+OK|*2|$1|l|$1|1|");
    bench.send(waiter, "SELECT 8|BLPOP l 0");
    bench.send(zero, "SWAPDB 7 8");
    assert_eq!(bench.told(waiter), "+OK|*2|$1|l|$1|2|");
    bench.send(five, "FLUSHDB");
    let info = bench.ask(zero, "INFO keyspace");
    assert!(
        info.contains("|db0:keys=1,") && info.contains("|db6:keys=1,") && !info.contains("db5"),
        "{info}"
    );
    bench.send(zero, "FLUSHALL");
    let statistics = bench.service.engine().statistics();
    assert_eq!((statistics.keys, statistics.bytes_used), (0, 0));
}
