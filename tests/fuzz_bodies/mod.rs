//! What is done with hostile bytes, one function per target. Nothing here may panic, whatever the bytes are.

mod engine;
mod nodes;

use std::sync::Arc;

pub use engine::engine;
pub use nodes::nodes;

use weir::config::Quotas;
use weir::control::http::{self, Received};
use weir::control::{Looks, Meter, ProcessFacts, Totals, Versions, View, page};
use weir::protocol::http::{Authority, Conversation, Rules, Step};
use weir::protocol::{ReplyScanner, RequestDecoder, RequestLimits, reply};
use weir::routing::Topology;
use weir::shard::{BackendSettings, Shard, ShardSettings};
use weir::values::time::Now;
use weir::values::{Action, ClientId, ConnectionId, Owner, ShardId, Timestamp, UNIT};

const SHARDS: u16 = 2;
const BACKENDS: u16 = 2;
/// The sizes of pieces that bytes arrive in.
const SPLITS: [usize; 4] = [1, 3, 17, 1000];

/// The decoder of requests finds the same ones, and the same error, however the bytes are split.
pub fn requests(bytes: &[u8]) {
    for limits in [RequestLimits::trusted(100_000), RequestLimits::stranger()] {
        let whole = decoded(bytes, bytes.len().max(1), &limits);
        for size in SPLITS {
            assert_eq!(decoded(bytes, size, &limits), whole, "in pieces of {size}");
        }
    }
}

/// The scanner of replies finds the same ends, and gives up on the same ones, however the bytes are split.
pub fn replies(bytes: &[u8]) {
    let whole = scanned(bytes, bytes.len().max(1));
    for size in SPLITS {
        assert_eq!(scanned(bytes, size), whole, "in pieces of {size}");
    }
    // What is taken apart need not have been scanned.
    let (_, _) = (reply::text(bytes), reply::integer(bytes));
    if let Some(elements) = reply::elements(bytes) {
        let within: usize = elements.map(<[u8]>::len).sum();
        assert!(within < bytes.len(), "elements lie in their array");
    }
}

/// Gives a request any bytes as its store's reply: the request is answered or its client closed, and nothing stays in
/// flight.
pub fn stores(bytes: &[u8]) {
    let Some((chosen, reply)) = bytes.split_first() else { return };
    let asked = ASKED[usize::from(*chosen) % ASKED.len()];
    for size in [reply.len().max(1), 3] {
        let mut house = House::new();
        house.stores = Stores::Silent;
        house.shards[0].handle_client_bytes(house.client, asked.as_bytes(), house.now);
        house.settle();
        // Once for each link that was asked something, and those that are asked next.
        while let Some((shard, link, generation)) = house.asked.pop() {
            for piece in reply.chunks(size) {
                house.shards[shard].handle_link_bytes(link, generation, piece, house.now);
                house.settle();
            }
            house.shards[shard].handle_link_lost(link, generation, weir::values::Loss::ByPeer, house.now);
            house.settle();
        }
        for shard in &house.shards {
            assert_eq!((shard.replies_in_flight(), shard.gathers_open()), (0, 0), "owed replies, gathers");
        }
        house.shards[0].handle_client_end(house.client);
        house.settle();
        assert!(house.shards.iter().all(|shard| shard.clients_open() == 0), "the client has ended");
    }
}

/// Requests whose replies are looked into, put together or rewritten; each works in both dialects.
const ASKED: [&str; 24] = [
    "MGET a b c d e f\r\n",
    "MSET a 1 b 2 c 3\r\n",
    "DEL a b c d e\r\n",
    "SCAN 0\r\n",
    "DBSIZE\r\n",
    "KEYS *\r\n",
    "RANDOMKEY\r\n",
    "SCRIPT EXISTS 0 1\r\n",
    "SCRIPT LOAD x\r\n",
    "FLUSHALL\r\n",
    "GET a\r\nGET b\r\nPING\r\n",
    "MULTI\r\nSET a 1\r\nGET a\r\nEXEC\r\n",
    "HELLO 3\r\nMGET a b c d e f\r\n",
    "HELLO 3\r\nMSET a 1 b 2 c 3\r\n",
    "HELLO 3\r\nDEL a b c d e\r\n",
    "HELLO 3\r\nSCAN 0\r\n",
    "HELLO 3\r\nDBSIZE\r\n",
    "HELLO 3\r\nKEYS *\r\n",
    "HELLO 3\r\nRANDOMKEY\r\n",
    "HELLO 3\r\nSCRIPT EXISTS 0 1\r\n",
    "HELLO 3\r\nSCRIPT LOAD x\r\n",
    "HELLO 3\r\nFLUSHALL\r\n",
    "HELLO 3\r\nGET a\r\nGET b\r\nPING\r\n",
    "HELLO 3\r\nMULTI\r\nSET a 1\r\nGET a\r\nEXEC\r\n",
];

/// The admin port finds the same request whatever stands behind it, and answers it; what may be quotas is either taken or
/// complained about in one line, with a place that there is.
pub fn admin(bytes: &[u8]) {
    let received = http::receive(bytes);
    let Received::Request(head) = &received else { return };
    assert_eq!(http::receive(&bytes[..head.length]), received, "without what stands behind it");
    assert_eq!(http::receive(&bytes[..head.length - 1]), Received::Partial, "without its last byte");
    let body = &bytes[head.length..];
    let quotas = Quotas::parse_bytes("body", body).unwrap_or_else(|problem| {
        let (line, column) = problem.place().expect("a text was read");
        let lines: Vec<&[u8]> = body.split(|byte| *byte == b'\n').collect();
        assert!(column >= 1 && column <= lines[line - 1].len() + 1, "{problem}");
        assert!(!problem.to_string().contains(['\n', '\r']), "{problem:?}");
        Quotas::trusting()
    });
    let versions = Versions::new(Arc::new(quotas), None, 0);
    let (facts, totals) = (ProcessFacts::default(), Totals::default());
    let meter = Meter::new(versions.current());
    let view = View {
        facts: &facts,
        totals: Some(&totals),
        versions: &versions,
        meter: &meter,
        fleet: None,
        now: Now::default(),
    };
    let mut out = Vec::new();
    let response = page(head.route, &head.query, view, &mut Looks::default());
    response.write(&mut out, head.method, head.persistence);
    assert!(out.starts_with(b"HTTP/1.1 "));
}

/// The conversation of HTTP asks for the same commands and says the same, however the bytes are split, and holds no more than came.
pub fn http(bytes: &[u8]) {
    let whole = conversed(bytes, bytes.len().max(1));
    for size in SPLITS {
        let split = conversed(bytes, size);
        assert!(split == whole, "in pieces of {size}: {split} instead of {whole}");
    }
}

/// What came of bytes: the commands that were asked for, what was told, and whether that was the end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Conversed {
    commands: Vec<Vec<Vec<u8>>>,
    wishes: Vec<Vec<Vec<u8>>>,
    told: Vec<u8>,
    is_over: bool,
}

impl std::fmt::Display for Conversed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?} {} {}", self.commands, self.told.escape_ascii(), self.is_over)
    }
}

/// Where somebody waits for it before a body; who sends the body at once is not told.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// What a conversation may have in memory beside what came and what a command or a response is at most.
const HTTP_BYTES_SPARE: usize = 64 * 1024;
const HTTP_BODY_BYTES_MAX: usize = 2_000;

fn conversed(bytes: &[u8], size: usize) -> Conversed {
    let rules = Rules { origins: vec!["https://a".into()], hosts: vec!["a".to_owned()] };
    let mut http = Conversation::new(1_000).with_rules(rules.into());
    let mut conversed = Conversed::default();
    let mut queued = None;
    for piece in bytes.chunks(size) {
        http.receive(piece);
        loop {
            if !http.frames().is_empty() {
                let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
                let limits = RequestLimits::trusted(100_000);
                let request = decoder.next(http.frames(), &mut consumed, &limits);
                let request = request.expect("what was put together here").expect("whole");
                let words: Vec<Vec<u8>> = request.arguments.iter().map(<[u8]>::to_vec).collect();
                http.take(consumed);
                let reply = reply_to(&words, &mut queued);
                conversed.commands.push(words);
                conversed.wishes.push(http.options().to_vec());
                http.hear(reply.as_bytes());
                continue;
            }
            let mut step = http.go_on();
            if let Step::Begins(who) = step {
                let is_wrong = who.as_deref().is_some_and(|who| who.ends_with(b"wrong"));
                let authority = who.as_deref().map_or(Authority::Ambient, Authority::of);
                step = if is_wrong {
                    http.refuse("WRONGPASS no", false)
                } else {
                    http.admit(authority, HTTP_BODY_BYTES_MAX)
                };
            }
            match step {
                Step::Wait | Step::Begins(_) => break,
                Step::Told => http.hear(b"+OK\r\n"),
                Step::Commands => {}
            }
        }
        if let Some(told) = http.take_output(Vec::new()) {
            conversed.told.extend_from_slice(&told);
        }
        assert!(http.memory_bytes() <= 4 * bytes.len() + HTTP_BYTES_SPARE, "{} bytes", http.memory_bytes());
    }
    while let Some(at) = conversed.told.windows(GO_ON.len()).position(|told| told == GO_ON) {
        conversed.told.drain(at..at + GO_ON.len());
    }
    assert!(conversed.told.is_empty() || conversed.told.starts_with(b"HTTP/1.1 "), "a status line first");
    conversed.is_over = http.is_over();
    conversed
}

/// What a store would say, in the form that belongs to the command.
fn reply_to(words: &[Vec<u8>], queued: &mut Option<usize>) -> String {
    match words[0].to_ascii_uppercase().as_slice() {
        b"MULTI" if queued.is_none() => {
            *queued = Some(0);
            "+OK\r\n".to_owned()
        }
        b"EXEC" if queued.is_some() => {
            let count = queued.take().unwrap_or_default();
            format!("*{count}\r\n{}", ":1\r\n".repeat(count))
        }
        _ if queued.is_some() => {
            *queued = queued.map(|count| count + 1);
            "+QUEUED\r\n".to_owned()
        }
        b"GET" => format!("${}\r\n{}\r\n", words[1].len() * 300, "v".repeat(words[1].len() * 300)),
        b"SET" => "+OK\r\n".to_owned(),
        b"DEL" => ":1\r\n".to_owned(),
        b"TTL" => "-THROTTLED scope=tenant name=acme limit=5 remaining=0 retry_after_ms=37\r\n".to_owned(),
        _ => "*2\r\n$1\r\n\"\r\n_\r\n".to_owned(),
    }
}

/// The pipeline answers every request that it takes on, asks stores for whole requests only, and comes to rest.
pub fn pipeline(bytes: &[u8]) {
    let limits = RequestLimits::trusted(REQUEST_BYTES_MAX);
    let (requests, error) = decoded(bytes, bytes.len().max(1), &limits);
    for size in [bytes.len().max(1), 5] {
        let mut house = House::new();
        for piece in bytes.chunks(size) {
            house.shards[0].handle_client_bytes(house.client, piece, house.now);
            house.settle();
        }
        let expected = requests.len() + usize::from(error.is_some());
        let answered = house.replies();
        // Many wrong passwords end a connection, as QUIT does.
        let ends = [&b"quit"[..], b"auth", b"hello"];
        let may_end_early =
            requests.iter().flatten().any(|word| ends.iter().any(|end| word.eq_ignore_ascii_case(end)));
        assert!(
            answered == expected || (may_end_early && answered <= expected),
            "{answered} replies to {expected}"
        );
        house.shards[0].handle_client_end(house.client);
        house.settle();
        for shard in &house.shards {
            let left = (shard.clients_open(), shard.replies_in_flight(), shard.gathers_open());
            assert_eq!(left, (0, 0, 0), "clients, owed replies, gathers");
        }
    }
}

type Words = Vec<Vec<u8>>;

/// The requests in these bytes, and what is wrong with what follows them.
fn decoded(bytes: &[u8], size: usize, limits: &RequestLimits) -> (Vec<Words>, Option<String>) {
    let (mut decoder, mut found) = (RequestDecoder::default(), Vec::new());
    for piece in bytes.chunks(size) {
        let mut consumed = 0;
        loop {
            match decoder.next(piece, &mut consumed, limits) {
                Ok(Some(request)) => found.push(request.arguments.iter().map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (found, Some(error.0)),
            }
        }
        assert_eq!(consumed, piece.len(), "what is no whole request is kept");
    }
    (found, None)
}

/// Ends, kinds and rows of the replies in these bytes, and whether what follows them is none.
fn scanned(bytes: &[u8], size: usize) -> (Vec<(usize, u8, u64)>, bool) {
    let (mut scanner, mut found) = (ReplyScanner::default(), Vec::new());
    for (index, piece) in bytes.chunks(size).enumerate() {
        let mut at = 0;
        while at < piece.len() {
            match scanner.scan(&piece[at..]) {
                Ok(Some(scanned)) => {
                    assert!(
                        scanned.end > 0 && scanned.end <= piece.len() - at,
                        "an end lies in what was scanned"
                    );
                    at += scanned.end;
                    found.push((index * size + at, scanned.kind, scanned.rows));
                }
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}

const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What stores do when they are asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stores {
    /// They say OK to everything.
    Agree,
    /// Nothing, until a test has them answer.
    Silent,
}

/// Two shards with one client, and stores.
struct House {
    stores: Stores,
    /// Links over which stores were asked something that they have not answered.
    asked: Vec<(usize, ConnectionId, u32)>,
    shards: Vec<Shard>,
    client: ClientId,
    now: Now,
    received: Vec<u8>,
    decoders: Vec<((usize, ConnectionId), RequestDecoder)>,
}

impl House {
    fn new() -> Self {
        let topology = Topology::new(SHARDS, BACKENDS);
        let backends: Arc<[BackendSettings]> = (0..BACKENDS)
            .map(|index| BackendSettings { name: format!("store{index}:6379"), credentials: None })
            .collect();
        let common = ShardSettings {
            links_per_backend: 2,
            heavy_from: UNIT + UNIT / 20,
            request_bytes_max: REQUEST_BYTES_MAX,
            output_bytes_max: 64 << 20,
            ..ShardSettings::new(topology, backends)
        };
        let settings = |id| ShardSettings { id: ShardId(id), ..common.clone() };
        let mut shards: Vec<Shard> =
            (0..SHARDS).map(|id| Shard::new(settings(id), Arc::new(Quotas::trusting()))).collect();
        let now = Now { monotonic: Timestamp::from_millis(1), unix_ms: 1_700_000_000_000 };
        let client = shards[0].handle_client_opened(now);
        let (stores, asked) = (Stores::Agree, Vec::new());
        Self { stores, asked, shards, client, now, received: Vec::new(), decoders: Vec::new() }
    }

    /// Turns until nothing moves any more.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for shard in 0..self.shards.len() {
                moved |= self.turn(shard);
            }
            if !moved {
                return;
            }
        }
    }

    fn turn(&mut self, shard: usize) -> bool {
        let (now, mut moved) = (self.now, self.shards[shard].is_busy());
        self.shards[shard].handle_turn_end(now);
        self.shards[shard].handle_quiet();
        while let Some(action) = self.shards[shard].poll_action() {
            if let Action::Connect { owner: Owner::Link(link, generation), .. } = action {
                self.shards[shard].handle_link_connected(link, generation, now);
            }
            moved = true;
        }
        while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
            match owner {
                Owner::Client(_) => self.received.extend_from_slice(&segment.bytes()),
                Owner::Link(link, generation) if self.stores == Stores::Silent => {
                    if !self.asked.contains(&(shard, link, generation)) {
                        self.asked.push((shard, link, generation));
                    }
                }
                Owner::Link(link, generation) => {
                    for _ in 0..self.whole_requests(shard, link, &segment.bytes()) {
                        self.shards[shard].handle_link_bytes(link, generation, b"+OK\r\n", now);
                    }
                }
            }
            self.shards[shard].handle_transmitted(owner, segment, now);
            moved = true;
        }
        while let Some((to, _)) = self.shards[shard].poll_question() {
            self.shards[shard].handle_answer(to, b"+about weir\r\n", now);
            moved = true;
        }
        while let Some((to, batch)) = self.shards[shard].poll_batch() {
            self.shards[usize::from(to.0)].handle_batch(batch, now);
            moved = true;
        }
        moved
    }

    /// How many requests end in what a store was sent.
    fn whole_requests(&mut self, shard: usize, link: ConnectionId, bytes: &[u8]) -> usize {
        if !self.decoders.iter().any(|(whose, _)| *whose == (shard, link)) {
            self.decoders.push(((shard, link), RequestDecoder::default()));
        }
        let known = self.decoders.iter_mut().find(|(whose, _)| *whose == (shard, link));
        let (_, decoder) = known.expect("just put there");
        let (mut consumed, mut count) = (0, 0);
        let limits = RequestLimits::trusted(64 << 20);
        while decoder.next(bytes, &mut consumed, &limits).expect("a store is sent requests only").is_some() {
            count += 1;
        }
        count
    }

    /// How many replies the client has received, all of them whole. Lines of `MONITOR` are no replies.
    fn replies(&self) -> usize {
        let (found, malformed) = scanned(&self.received, self.received.len().max(1));
        assert!(!malformed, "a client is sent replies only");
        assert_eq!(found.last().map_or(0, |(end, ..)| *end), self.received.len(), "whole replies only");
        let mut start = 0;
        let replies = found.iter().filter(|(end, ..)| {
            let is_line = self.received[start..].starts_with(b"+1700000000.");
            start = *end;
            !is_line
        });
        replies.count()
    }
}
