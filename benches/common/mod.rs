//! What the benchmarks share: the cases, each a closure that handles some requests, and a composer to put them through.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use weir::config::Quotas;
use weir::protocol::command;
use weir::protocol::{ReplyScanner, RequestDecoder, RequestLimits, encode};
use weir::routing::{Topology, slot_of};
use weir::shard::{AdmissionSettings, BackendSettings, Shard, ShardSettings};
use weir::values::time::Now;
use weir::values::{Action, BackendId, ClientId, ConnectionId, Owner, ShardId, Timestamp};

/// Something to be measured: one run handles this many requests.
pub struct Case {
    pub name: &'static str,
    pub requests: u64,
    pub run: Box<dyn FnMut()>,
}

/// Everything that is measured.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("decode a GET", 1, decode()),
        case("find its command", 1, find()),
        case("slot of its key", 1, slot()),
        case("scan a reply", 1, scan()),
    ];
    for (name, pipeline) in [("GET, P=1", 1), ("GET, P=16", 16), ("GET, P=64", 64)] {
        cases.push(case(name, pipeline, composed(1, &get(pipeline, 0), &VALUE_REPLY)));
    }
    for (name, pipeline) in [("SET, P=1", 1), ("SET, P=16", 16), ("SET, P=64", 64)] {
        cases.push(case(name, pipeline, composed(1, &set(pipeline), b"+OK\r\n")));
    }
    for (name, pipeline) in [("GET over another core, P=1", 1), ("GET over another core, P=16", 16)] {
        cases.push(case(name, pipeline, composed(2, &get(pipeline, 1), &VALUE_REPLY)));
    }
    cases.push(case("PING, P=16", 16, composed(1, &b"*1\r\n$4\r\nPING\r\n".repeat(16), b"")));
    cases.push(case("refused, P=16", 16, refused(&get(16, 0))));
    cases
}

fn case(name: &'static str, requests: usize, run: impl FnMut() + 'static) -> Case {
    Case { name, requests: requests as u64, run: Box::new(run) }
}

/// A bulk string of 64 bytes.
const VALUE_REPLY: [u8; 71] = {
    let mut reply = [b'v'; 71];
    [reply[0], reply[1], reply[2], reply[3], reply[4]] = [b'$', b'6', b'4', b'\r', b'\n'];
    [reply[69], reply[70]] = [b'\r', b'\n'];
    reply
};

fn decode() -> impl FnMut() {
    let (bytes, limits, mut decoder) =
        (get(1, 0), RequestLimits::trusted(1 << 20), RequestDecoder::default());
    move || {
        let request = decoder.next(black_box(&bytes), &mut 0, &limits).expect("well formed").expect("whole");
        black_box(request.arguments.len());
    }
}

fn find() -> impl FnMut() {
    let bytes = get(1, 0);
    let mut decoder = RequestDecoder::default();
    move || {
        // Decoding is part of it here, and is measured alone as well.
        let request = decoder.next(&bytes, &mut 0, &RequestLimits::trusted(1 << 20)).expect("well formed");
        let arguments = request.expect("whole").arguments;
        black_box(command::recognise(black_box(&arguments)).is_ok());
    }
}

fn slot() -> impl FnMut() {
    || {
        black_box(slot_of(black_box(b"key:000000012345")));
    }
}

fn scan() -> impl FnMut() {
    let mut scanner = ReplyScanner::default();
    move || {
        let scanned = scanner.scan(black_box(&VALUE_REPLY)).expect("well formed");
        black_box(scanned.is_some());
    }
}

fn composed(shards: u16, requests: &[u8], reply: &[u8]) -> impl FnMut() + use<> {
    let mut composer = Composer::new(shards);
    let (requests, replies) = (requests.to_vec(), reply.repeat(64));
    let reply = reply.len();
    move || composer.round(&requests, &replies, reply)
}

/// The link has just failed, so every request is answered at once.
fn refused(requests: &[u8]) -> impl FnMut() + use<> {
    let mut composer = Composer::new(1);
    let requests = requests.to_vec();
    composer.fail_links = true;
    composer.round(&requests, &[], 0);
    move || composer.round(&requests, &[], 0)
}

/// Keys that are at home on this core of two, or of one.
fn keys(pipeline: usize, home: u16) -> Vec<String> {
    let topology = Topology::new(2, 1);
    (0..)
        .map(|number| format!("key:{number:012}"))
        .filter(|key| topology.home_of(slot_of(key.as_bytes())) == ShardId(home))
        .take(pipeline)
        .collect()
}

fn get(pipeline: usize, home: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in keys(pipeline, home) {
        encode::request(&mut bytes, [b"GET", key.as_bytes()].into_iter());
    }
    bytes
}

fn set(pipeline: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in keys(pipeline, 0) {
        encode::request(&mut bytes, [b"SET", key.as_bytes(), &[b'v'; 64]].into_iter());
    }
    bytes
}

/// Shards with one client, on the first of them, and one store that answers at once.
struct Composer {
    shards: Vec<Shard>,
    client: ClientId,
    now: Now,
    /// What was sent to the store: by which shard, over which link, how many requests.
    sent: Vec<(usize, ConnectionId, u32, usize)>,
    fail_links: bool,
}

impl Composer {
    fn new(shards: u16) -> Self {
        let topology = Topology::new(shards, 1);
        let settings = |id| ShardSettings {
            id: ShardId(id),
            topology,
            backends: Arc::new([BackendSettings { name: "127.0.0.1:6379".into(), credentials: None }]),
            links_per_backend: 1,
            request_bytes_max: 1 << 20,
            reply_bytes_max: 1 << 20,
            output_bytes_max: 1 << 20,
            idle_timeout: None,
            send_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(1),
            seed: 1,
            admission: AdmissionSettings::default(),
        };
        let mut shards: Vec<Shard> =
            (0..shards).map(|id| Shard::new(settings(id), Arc::new(Quotas::trusting()))).collect();
        let now = Now { monotonic: Timestamp::from_millis(1), unix_ms: 1_700_000_000_000 };
        let client = shards[0].handle_client_opened(now);
        Self { shards, client, now, sent: Vec::new(), fail_links: false }
    }

    /// A pipeline of requests, all the way to their replies.
    fn round(&mut self, requests: &[u8], replies: &[u8], reply_bytes: usize) {
        self.shards[0].handle_client_bytes(self.client, requests, self.now);
        loop {
            for shard in 0..self.shards.len() {
                self.turn(shard);
            }
            if self.sent.is_empty() {
                break;
            }
            while let Some((shard, link, generation, requests)) = self.sent.pop() {
                let replies = &replies[..requests * reply_bytes];
                self.shards[shard].handle_link_bytes(link, generation, replies, self.now);
            }
        }
        // What the second shard gave back in its turn has reached the first one after its own.
        self.turn(0);
    }

    fn turn(&mut self, shard: usize) {
        let now = self.now;
        self.shards[shard].handle_turn_end(now);
        while let Some(action) = self.shards[shard].poll_action() {
            if let Action::Connect { owner: Owner::Link(link, generation), backend: BackendId(_) } = action {
                if self.fail_links {
                    self.shards[shard].handle_link_lost(link, generation, now);
                } else {
                    self.shards[shard].handle_link_connected(link, generation);
                }
            }
        }
        while let Some((owner, segment)) = self.shards[shard].poll_transmit() {
            if let Owner::Link(link, generation) = owner {
                let requests = segment.bytes().split(|byte| *byte == b'*').count() - 1;
                self.sent.push((shard, link, generation, requests));
            }
            black_box(segment.bytes());
            self.shards[shard].handle_transmitted(owner, segment, now);
        }
        while let Some((to, batch)) = self.shards[shard].poll_batch() {
            self.shards[usize::from(to.0)].handle_batch(batch, now);
        }
    }
}
