//! The cases that the benchmarks share, each a closure that handles some requests per run.

mod ledger;
mod pipeline;

use std::hint::black_box;
use std::time::Duration;

use ledger::{Ledger, Level, Row};
use pipeline::{Behind, Pipeline};
use weir::config::Quotas;
use weir::policy::hot_keys::{Access, HotKeys, HotSettings};
use weir::policy::latency_ratio::{Company, LatencyRatio};
use weir::protocol::command;
use weir::protocol::{ReplyScanner, RequestDecoder, RequestLimits, encode};
use weir::routing::{Topology, slot_of};
use weir::shard::Limiter;
use weir::values::{Price, ShardId, Timestamp};

/// A benchmark case: a name, and a closure that handles `requests` requests per run.
pub struct Case {
    pub name: &'static str,
    pub requests: u64,
    pub run: Box<dyn FnMut()>,
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("decode a GET", 1, decode()),
        case("decode it, find its command", 1, find()),
        case("slot of its key", 1, slot()),
        case("scan a reply", 1, scan()),
        case("admit under three limits", 1, admit(Row::One)),
        case("admit, 16 of a user in a row", 1, admit(Row::Sixteen)),
        case("settle under three limits", 1, settle(Row::One)),
        case("settle, 16 of a user in a row", 1, settle(Row::Sixteen)),
        case("refuse under three limits", 1, refuse()),
        case("a reply's time, 1,000/s", 1, reply_time(1)),
        case("replies' times, 400,000/s", 400, reply_time(400)),
    ];
    cases.extend([
        case("hot keys, a cold slot", 4_096, hot_keys_cold()),
        case("hot keys, end of a pane", 1, hot_keys_pane()),
        case("hot keys, a hot key, with hash", 64, hot_keys_hot()),
        case("hot keys, flood of a slot", 1_024, hot_keys_flood(1_024)),
        case("hot keys, flood beyond the cap", 16_384, hot_keys_flood(16_384)),
        case("hot keys, a cost", 4_096, hot_keys_cost()),
    ]);
    for (name, pipeline) in [("GET, P=1", 1), ("GET, P=16", 16), ("GET, P=64", 64)] {
        cases.push(case(name, pipeline, composed(1, &get(pipeline, 0), &VALUE_REPLY)));
    }
    for (name, pipeline) in [("SET, P=1", 1), ("SET, P=16", 16), ("SET, P=64", 64)] {
        cases.push(case(name, pipeline, composed(1, &set(pipeline), b"+OK\r\n")));
    }
    for (names, behind) in [
        (["GET, three stores, P=16", "SET, three stores, P=16"], Behind::Stores(3)),
        (["GET, cluster of three, P=16", "SET, cluster of three, P=16"], Behind::Cluster(3)),
    ] {
        cases.push(case(names[0], 16, before(behind, &get(16, 0), &VALUE_REPLY)));
        cases.push(case(names[1], 16, before(behind, &set(16), b"+OK\r\n")));
    }
    for (name, pipeline) in [("GET over another core, P=1", 1), ("GET over another core, P=16", 16)] {
        cases.push(case(name, pipeline, composed(2, &get(pipeline, 1), &VALUE_REPLY)));
    }
    cases.push(case("GET, unpriced, P=16", 16, unpriced(&get(16, 0))));
    for (name, pipeline) in [("GET, three limits, P=1", 1), ("GET, three limits, P=16", 16)] {
        cases.push(case(name, pipeline, limited(&get(pipeline, 0), &VALUE_REPLY)));
    }
    for (name, pipeline) in [("throttled, P=1", 1), ("throttled, P=16", 16)] {
        cases.push(case(name, pipeline, throttled(&get(pipeline, 0))));
    }
    cases.push(case("PING, P=16", 16, composed(1, &[b"*1\r\n$4\r\nPING\r\n".repeat(16)], b"")));
    cases.push(case("refused, P=16", 16, refused(&get(16, 0))));
    cases
}

fn case(name: &'static str, requests: usize, run: impl FnMut() + 'static) -> Case {
    Case { name, requests: requests as u64, run: Box::new(run) }
}

/// A bulk string of 64 bytes, as a store replies it.
const VALUE_REPLY: [u8; 71] = {
    let mut reply = [b'v'; 71];
    [reply[0], reply[1], reply[2], reply[3], reply[4]] = [b'$', b'6', b'4', b'\r', b'\n'];
    [reply[69], reply[70]] = [b'\r', b'\n'];
    reply
};

fn decode() -> impl FnMut() {
    let (bytes, limits, mut decoder) =
        (get(1, 0).swap_remove(0), RequestLimits::trusted(1 << 20), RequestDecoder::default());
    move || {
        let request = decoder.next(black_box(&bytes), &mut 0, &limits).expect("well formed").expect("whole");
        black_box(request.arguments.len());
    }
}

fn find() -> impl FnMut() {
    let bytes = get(1, 0).swap_remove(0);
    let mut decoder = RequestDecoder::default();
    move || {
        // This case includes decoding, which is measured by itself as well.
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

/// Returns a closure that admits a GET: prices it, and checks and charges three buckets. `in_a_row` is the number of
/// successive requests of one user.
fn admit(in_a_row: Row) -> impl FnMut() {
    let mut ledger = Ledger::new(&ample(), Level::Full, in_a_row);
    move || black_box(&mut ledger).admit()
}

/// Records the response times of `replies` replies of a backend, all in one millisecond, for its latency ratio (usual
/// latency divided by the present one), and computes the ratio every 100 ms.
fn reply_time(replies: u64) -> impl FnMut() {
    let mut ratio = LatencyRatio::new([0.7, 0.5, 0.3], Timestamp::ZERO);
    let mut millis = 0;
    move || {
        for number in 0..replies {
            black_box(&mut ratio).record(0, black_box(900 + number));
        }
        millis += 1;
        if millis % 100 == 0 {
            black_box(ratio.handle_tick(Timestamp::from_millis(millis), Company::default()));
        }
    }
}

/// Counts requests for keys whose slots have few requests: the work that the search for hot keys adds to every request.
fn hot_keys_cold() -> impl FnMut() {
    let mut keys = HotKeys::new(HotSettings::default(), 1, Timestamp::ZERO);
    let mut now = Timestamp::ZERO;
    move || {
        for slot in 0..4_096 {
            if black_box(&mut keys).note(black_box(slot)) {
                black_box(slot);
            }
        }
        // Time passes so that slots stay cold; most runs do not end a pane.
        now = now.after(Duration::from_millis(5));
        keys.tick(now, &mut |event| _ = black_box(event));
    }
}

/// Ends a pane (interval of 50 ms) of the search for hot keys, which happens twenty times per second at any load.
fn hot_keys_pane() -> impl FnMut() {
    let mut keys = HotKeys::new(HotSettings::default(), 1, Timestamp::ZERO);
    let mut now = Timestamp::ZERO;
    move || {
        keys.note(black_box(7));
        now = now.after(Duration::from_millis(50));
        keys.tick(now, &mut |event| _ = black_box(event));
    }
}

/// Counts requests for one hot key, each with the computation of the key's hash.
fn hot_keys_hot() -> impl FnMut() {
    let mut keys = HotKeys::new(HotSettings::default(), 1, Timestamp::ZERO);
    let mut now = Timestamp::ZERO;
    move || {
        for _ in 0..64 {
            let (slot, key) = (black_box(7), black_box(b"key:000000012345".as_slice()));
            if keys.note(slot) {
                black_box(keys.note_key(slot, keys.hash(key), key, Access::Read));
            }
        }
        now = now.after(Duration::from_millis(1));
        keys.tick(now, &mut |event| _ = black_box(event));
    }
}

/// Counts `keys_per_pane` requests, each for a new key of one slot, in each pane (interval of 50 ms). With 1,024, most
/// replace another key in the table of the most requested ones; beyond a cap, requests are not counted by key.
fn hot_keys_flood(keys_per_pane: u64) -> impl FnMut() {
    let mut keys = HotKeys::new(HotSettings::default(), 1, Timestamp::ZERO);
    let (mut now, mut number) = (Timestamp::ZERO, 0_u64);
    move || {
        for _ in 0..keys_per_pane {
            number += 1;
            let (slot, key) = (black_box(7), number.to_le_bytes());
            if keys.note(slot) {
                black_box(keys.note_key(slot, keys.hash(&key), &key, Access::Read));
            }
        }
        now = now.after(Duration::from_millis(50));
        keys.tick(now, &mut |event| _ = black_box(event));
    }
}

/// Adds the prices of requests to their slots, in the search for expensive keys.
fn hot_keys_cost() -> impl FnMut() {
    let mut keys = HotKeys::new(HotSettings::default(), 1, Timestamp::ZERO);
    let cost = Price::new(1_100_000);
    move || {
        for slot in 0..4_096 {
            black_box(&mut keys).note_cost(black_box(slot), black_box(cost));
        }
    }
}

/// Settles a reply whose cost is more or less than was taken for the request, in three buckets and the accounts.
fn settle(in_a_row: Row) -> impl FnMut() {
    let mut ledger = Ledger::new(&ample(), Level::Full, in_a_row);
    move || black_box(&mut ledger).settle()
}

/// Refuses a GET because the buckets and the pools (the parts of the quotas that no core holds) have nothing: the
/// decision alone.
fn refuse() -> impl FnMut() {
    let mut ledger = Ledger::new(&ample(), Level::Dry, Row::One);
    move || black_box(&mut ledger).refuse()
}

fn composed(shards: u16, requests: &[Vec<u8>], reply: &[u8]) -> impl FnMut() + use<> {
    rounds(Pipeline::new(shards, Quotas::trusting(), Limiter::Buckets), requests, reply)
}

fn before(behind: Behind, requests: &[Vec<u8>], reply: &[u8]) -> impl FnMut() + use<> {
    rounds(Pipeline::before(behind, 1, Quotas::trusting(), Limiter::Buckets), requests, reply)
}

/// GETs with the limiter switched off.
fn unpriced(requests: &[Vec<u8>]) -> impl FnMut() + use<> {
    rounds(Pipeline::new(1, Quotas::trusting(), Limiter::Off), requests, &VALUE_REPLY)
}

/// Requests under three ample limits: one for all, one for the tenant and one for the user.
fn limited(requests: &[Vec<u8>], reply: &[u8]) -> impl FnMut() + use<> {
    let mut pipeline = Pipeline::new(1, ample(), Limiter::Buckets);
    pipeline.speak_for_a_user();
    rounds(pipeline, requests, reply)
}

/// Requests under three limits, of which the user's is used up.
fn throttled(requests: &[Vec<u8>]) -> impl FnMut() + use<> {
    let mut pipeline = Pipeline::new(1, scarce(), Limiter::Buckets);
    pipeline.speak_for_a_user();
    rounds(pipeline, requests, &VALUE_REPLY)
}

fn rounds(mut pipeline: Pipeline, requests: &[Vec<u8>], reply: &[u8]) -> impl FnMut() + use<> {
    let (requests, replies) = (requests.to_vec(), reply.repeat(64));
    let reply = reply.len();
    let mut turn = 0;
    move || {
        turn = (turn + 1) % requests.len();
        pipeline.round(&requests[turn], &replies, reply);
    }
}

/// GETs that are refused at once, because the connection to the store has just failed.
fn refused(requests: &[Vec<u8>]) -> impl FnMut() + use<> {
    let mut pipeline = Pipeline::new(1, Quotas::trusting(), Limiter::Buckets);
    let requests = requests[0].clone();
    pipeline.fail_links = true;
    pipeline.round(&requests, &[], 0);
    move || pipeline.round(&requests, &[], 0)
}

/// Returns quotas with three limits that no benchmark reaches.
fn ample() -> Quotas {
    limits(1_000_000_000)
}

/// Returns quotas with three limits, of which the user's admits one or two requests per second.
fn scarce() -> Quotas {
    limits(2)
}

fn limits(of_the_user: u64) -> Quotas {
    let text = format!(
        "[global]\nru_per_second = 1_000_000_000\n\
         [default]\nru_per_second = 1_000_000_000\nuser_ru_per_second = {of_the_user}"
    );
    Quotas::parse("the benchmark", &text).expect("well formed")
}

/// Returns the first `pipeline` keys whose home (the core that handles all requests for a key) is core `home` of two.
fn keys(pipeline: usize, home: u16) -> Vec<String> {
    let topology = Topology::new(2, 1);
    (0..)
        .map(|number| format!("key:{number:012}"))
        .filter(|key| topology.home_of(slot_of(key.as_bytes())) == ShardId(home))
        .take(pipeline)
        .collect()
}

/// The number of different pipelines that follow each other, so large that no key becomes hot.
const PIPELINES: usize = 128;

fn get(pipeline: usize, home: u16) -> Vec<Vec<u8>> {
    pipelines(pipeline, home, |out, key| encode::request(out, [b"GET", key].into_iter()))
}

fn set(pipeline: usize) -> Vec<Vec<u8>> {
    pipelines(pipeline, 0, |out, key| encode::request(out, [b"SET", key, &[b'v'; 64]].into_iter()))
}

fn pipelines(pipeline: usize, home: u16, encode: impl Fn(&mut Vec<u8>, &[u8])) -> Vec<Vec<u8>> {
    let all = keys(pipeline * PIPELINES, home);
    let encoded = all.chunks(pipeline).map(|keys| {
        let mut bytes = Vec::new();
        keys.iter().for_each(|key| encode(&mut bytes, key.as_bytes()));
        bytes
    });
    encoded.collect()
}
