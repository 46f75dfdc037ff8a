//! The bodies of the fuzz targets: each checks properties of one parser or pipeline for any bytes. Nothing
//! may panic, whatever the bytes are.

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
/// The sizes of the pieces in which the bytes arrive.
const SPLITS: [usize; 4] = [1, 3, 17, 1000];

/// Checks that the decoder finds the same requests and the same error however the bytes are split.
pub fn requests(bytes: &[u8]) {
    for limits in [RequestLimits::trusted(100_000), RequestLimits::stranger()] {
        let whole = decoded(bytes, bytes.len().max(1), &limits);
        for size in SPLITS {
            assert_eq!(decoded(bytes, size, &limits), whole, "in pieces of {size}");
        }
    }
}

/// Checks that the scanner finds the same reply ends, and rejects the same bytes, however the bytes are
/// split.
pub fn replies(bytes: &[u8]) {
    let whole = scanned(bytes, bytes.len().max(1));
    for size in SPLITS {
        assert_eq!(scanned(bytes, size), whole, "in pieces of {size}");
    }
    // These readers must accept bytes that the scanner has not checked.
    let (_, _) = (reply::text(bytes), reply::integer(bytes));
    if let Some(elements) = reply::elements(bytes) {
        let within: usize = elements.map(<[u8]>::len).sum();
        assert!(within < bytes.len(), "elements lie in their array");
    }
}

/// Answers one of the requests in [`ASKED`], which the first byte chooses, with the other bytes as the reply of each
/// store, whose connection is then lost. Checks that no reply to the client stays owed, and that the client can
/// disconnect.
pub fn stores(bytes: &[u8]) {
    let Some((chosen, reply)) = bytes.split_first() else { return };
    let asked = ASKED[usize::from(*chosen) % ASKED.len()];
    for size in [reply.len().max(1), 3] {
        let mut house = House::new();
        house.stores = Stores::Silent;
        house.shards[0].handle_client_bytes(house.client, asked.as_bytes(), house.now);
        house.settle();
        // Each link that was sent a request gets the bytes and is lost; requests that are sent again thereby
        // follow.
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
        house.shards[0].handle_client_end(house.client, house.now);
        house.settle();
        assert!(house.shards.iter().all(|shard| shard.clients_open() == 0), "the client has ended");
    }
}

/// Requests whose replies weir parses, merges or rewrites, each in RESP2 and RESP3.
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

/// Checks that the admin port parses the same request whatever bytes follow it, and that it responds. A body
/// is either valid quotas, or rejected with a message of one line that names an existing place.
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

/// Checks that the HTTP parser finds the same commands and writes the same responses however the bytes are
/// split, and that its memory stays in proportion to the input.
pub fn http(bytes: &[u8]) {
    let whole = conversed(bytes, bytes.len().max(1));
    for size in SPLITS {
        let split = conversed(bytes, size);
        assert!(split == whole, "in pieces of {size}: {split} instead of {whole}");
    }
}

/// The result of an HTTP conversation: the commands, the options of each (`wishes`: user, tier and deadline), the bytes
/// of the responses, and whether the conversation ended.
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

/// The interim response to `Expect: 100-continue`, which depends on whether the body has arrived already.
/// Comparisons leave it out.
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The memory that a conversation may use in bytes, besides four times its input.
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
                    Step::Told(http.refuse("WRONGPASS no", false))
                } else {
                    http.admit(authority, HTTP_BODY_BYTES_MAX)
                };
            }
            match step {
                Step::Wait | Step::Begins(_) => break,
                Step::Told(response) | Step::Refused { response, .. } => {
                    let mut reply = Vec::new();
                    weir::protocol::encode::bulk(&mut reply, &response);
                    http.hear(&reply);
                }
                Step::Commands => {}
            }
        }
        if let Some(told) = http.take_output(Vec::new()) {
            conversed.told.extend_from_slice(&told.bytes());
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

/// Returns the reply of a made-up store to a command: one of the usual type for some commands, a refusal for `TTL`, and
/// an array for all others. `queued` counts the commands since MULTI; `None` outside of a transaction.
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

/// Sends arbitrary bytes as a client's input. Checks that every request gets one reply (none after a request that ends
/// the connection), that stores get complete requests only, and that nothing stays in flight.
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
        house.shards[0].handle_client_end(house.client, house.now);
        house.settle();
        for shard in &house.shards {
            let left = (shard.clients_open(), shard.replies_in_flight(), shard.gathers_open());
            assert_eq!(left, (0, 0, 0), "clients, owed replies, gathers");
        }
    }
}

type Words = Vec<Vec<u8>>;

/// Decodes the requests in `bytes`, which arrive in pieces of `size`. Returns them, and the error that ended
/// the input, if there is one.
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

/// Scans the replies in `bytes`, which arrive in pieces of `size`. Returns the end, type byte and row count
/// of each, and true if malformed bytes follow.
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

/// The behaviour of the stores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stores {
    /// Stores reply OK to every request.
    Agree,
    /// Stores reply nothing; the test sends replies itself.
    Silent,
}

/// Two shards with one client, and their stores.
struct House {
    stores: Stores,
    /// Links (shard, number, generation) over which a request was sent, in the mode [`Stores::Silent`].
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

    /// Runs turns (passes of the loop) of all shards until none of them has anything left to do.
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

    /// Returns the number of requests that become complete with these bytes, the next ones that a shard sends over a
    /// link (connection to a store).
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

    /// Returns the number of replies that the client has received, after a check that all are complete. Lines
    /// of MONITOR do not count.
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
