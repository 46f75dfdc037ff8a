use std::collections::BTreeSet;

use super::*;
use weir::protocol::{RequestDecoder, RequestLimits};
use weir::routing::cluster::View;
use weir::store::{Engine, EngineLimits};
use weir::values::ServerAddress;
use weir::values::time::Now;

/// CLUSTER NODES of a made-up cluster: A owns the first half of the slots, B the second, and C replicates A.
/// The key `bar` is in slot 5061, `foo` in 12182.
const NODES: &str = "a 127.0.0.1:1@2 master - 0 0 1 connected 0-8191
    b 127.0.0.1:2@3,b.example master - 0 0 2 connected 8192-16383
    c 127.0.0.1:3@4 slave a 0 0 1 connected";

struct Bench {
    cluster: Cluster,
    said: ClusterSession,
    keys: BTreeSet<Vec<u8>>,
}

impl Bench {
    /// Plays the node with this id; `open` lists its slots that are being moved.
    fn new(id: &str, open: &str) -> Self {
        let start = format!("{id} 127");
        let open_of = |line: &str| if line.starts_with(&start) { open } else { "" };
        let text: Vec<String> =
            NODES.lines().map(str::trim).map(|line| format!("{line} {}\n", open_of(line))).collect();
        let nodes = ClusterNodes::parse_of(&text.concat(), Some(id), None).expect("well formed");
        Self { cluster: Cluster::new(nodes), said: ClusterSession::default(), keys: BTreeSet::new() }
    }

    fn judge(&mut self, line: &str) -> String {
        self.judge_within(line, None)
    }

    /// Returns the node's reply to a request, before which the requests `queued` came since MULTI; empty if
    /// the engine is to execute the request.
    fn judge_within(&mut self, line: &str, queued: Option<&[&str]>) -> String {
        let mut session = Session::new(1);
        if let Some(queued) = queued {
            let mut engine = Engine::new(EngineLimits::with_memory(u64::MAX), 1);
            for line in ["MULTI"].iter().chain(queued) {
                let (frame, places) = decoded(line);
                let (arguments, mut out) = (Arguments::new(&frame, &places), Vec::new());
                engine.execute(&mut session, arguments, Now::default(), &mut out);
                assert!(matches!(&*out, b"+OK\r\n" | b"+QUEUED\r\n"), "{line}");
            }
        }
        let (frame, places) = decoded(line);
        let (keys, mut out) = (&self.keys, Vec::new());
        let arguments = Arguments::new(&frame, &places);
        let mut holds = |key: &[u8]| keys.contains(key);
        let verdict = self.cluster.judge(&mut self.said, &session, &arguments, &mut holds, &mut out);
        match verdict {
            Verdict::Execute => String::new(),
            Verdict::Answered => String::from_utf8(out).expect("text").replace("\r\n", "|"),
            Verdict::Refused(line) => line,
        }
    }

    fn refuse(&mut self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        self.cluster.refusals.push(refusal(&words).expect("well formed")).expect("few");
    }
}

fn decoded(line: &str) -> (Vec<u8>, Vec<weir::protocol::Argument>) {
    let mut consumed = 0;
    let bytes = format!("{line}\r\n");
    let mut decoder = RequestDecoder::default();
    let request = decoder.next(bytes.as_bytes(), &mut consumed, &RequestLimits::trusted(1 << 20));
    let request = request.expect("well formed").expect("whole");
    (request.arguments.frame().to_vec(), request.arguments.places().to_vec())
}

#[test]
fn keys_of_others_are_moved() {
    let mut a = Bench::new("a", "");
    assert_eq!(a.judge("GET bar"), "");
    assert_eq!(a.judge("GET foo"), "MOVED 12182 127.0.0.1:2");
    assert_eq!(a.judge("MGET foo bar"), "CROSSSLOT Keys in request don't hash to the same slot");
    assert_eq!((a.judge("PING"), a.judge("DBSIZE"), a.judge("GET"), a.judge("NOPE foo")), Default::default());
    assert_eq!(a.cluster.refused, 2);
    a.cluster.endpoints = Endpoints::Name;
    assert_eq!(a.judge("GET foo"), "MOVED 12182 b.example:2");
    a.cluster.endpoints = Endpoints::Unknown;
    assert_eq!(a.judge("GET foo"), "MOVED 12182 :2");
    let mut b = Bench::new("b", "");
    b.cluster.endpoints = Endpoints::Name;
    assert_eq!(b.judge("GET bar"), "MOVED 5061 ?:1");
}

#[test]
fn a_source_asks_for_what_is_gone() {
    let mut a = Bench::new("a", "[5061->-b]");
    a.keys.insert(b"bar".to_vec());
    assert_eq!(a.judge("GET bar"), "");
    assert_eq!(a.judge("GET {bar}2"), "ASK 5061 127.0.0.1:2");
    assert!(a.judge("MGET bar {bar}2").starts_with("TRYAGAIN "));
    assert_eq!(a.judge("MGET {bar}3 {bar}2"), "ASK 5061 127.0.0.1:2");
    assert_eq!(a.judge("GET {b}"), "", "another slot");
}

#[test]
fn a_target_takes_what_is_asked_for_and_only_then() {
    let mut b = Bench::new("b", "[5061-<-a]");
    assert_eq!(b.judge("SET bar 1"), "MOVED 5061 127.0.0.1:1");
    assert_eq!((b.judge("ASKING"), b.judge("SET bar 1")), ("+OK|".to_owned(), String::new()));
    assert_eq!(b.judge("SET bar 1"), "MOVED 5061 127.0.0.1:1", "for one request");
    b.judge("ASKING");
    assert!(b.judge("MGET bar {bar}2").starts_with("TRYAGAIN "));
    b.judge("ASKING");
    assert_eq!(b.judge("GET {bar}{a}"), "", "one that is not there may be asked for");
    // ASKING applies to the whole transaction that follows, and has no effect within one.
    b.judge("ASKING");
    assert_eq!((b.judge("MULTI"), b.judge_within("SET bar 1", Some(&[]))), Default::default());
    assert_eq!(b.judge_within("EXEC", Some(&["SET bar 1", "GET bar"])), "");
    assert_eq!(b.judge_within("EXEC", Some(&["SET bar 1"])), "MOVED 5061 127.0.0.1:1");
    assert_eq!(b.judge_within("ASKING", Some(&[])), "", "the engine knows no such command");
}

#[test]
fn a_replica_reads_for_those_who_said_so() {
    let mut c = Bench::new("c", "");
    assert_eq!(c.judge("GET bar"), "MOVED 5061 127.0.0.1:1");
    assert_eq!(c.judge("READONLY"), "+OK|");
    assert_eq!((c.judge("GET bar"), c.judge("GET {bar}")), Default::default());
    assert_eq!(c.judge("SET bar 1"), "MOVED 5061 127.0.0.1:1");
    assert_eq!(c.judge("EVAL x 1 bar"), "MOVED 5061 127.0.0.1:1");
    assert_eq!(c.judge("EVAL_RO x 1 bar"), "");
    assert_eq!(c.judge("GET foo"), "MOVED 12182 127.0.0.1:2");
    c.judge("READWRITE");
    assert_eq!(c.judge("EVAL_RO x 1 bar"), "MOVED 5061 127.0.0.1:1");
    assert_eq!(c.judge("GET bar"), "MOVED 5061 127.0.0.1:1");
}

#[test]
fn refusals_come_at_the_request_they_are_scripted_for() {
    let mut a = Bench::new("a", "");
    a.refuse("moved 10.0.0.1:7 slots 5000-5100 skip 2 times 1");
    a.refuse("TRYAGAIN SLOTS 5061 SKIP 2 TIMES 2");
    a.refuse("READONLY SLOTS 0");
    let seen: Vec<String> = (0..7).map(|_| a.judge("GET bar").chars().take(5).collect()).collect();
    // The third request gets MOVED, so the TRYAGAIN rule does not count it.
    assert_eq!(seen, ["", "", "MOVED", "TRYAG", "TRYAG", "", ""]);
    let zero = (0..100_000).map(|number| format!("{number}")).find(|key| slot_of(key.as_bytes()) == 0);
    let zero = zero.expect("every slot has keys");
    assert_eq!(a.judge(&format!("GET {zero}")), "");
    assert!(a.judge(&format!("SET {zero} v")).starts_with("READONLY "));
    for words in [
        "",
        "MOVED",
        "NOPE",
        "MOVED a:1 SLOTS",
        "MOVED a:1 SLOTS 5-4",
        "BUSY TIMES 0",
        "BUSY SKIP x",
        "BUSY HARD 1",
    ] {
        assert!(refusal(&words.split(' ').collect::<Vec<_>>()).is_err(), "{words}");
    }
}

#[test]
fn slots_change_hands_as_a_client_says() {
    let mut b = Bench::new("b", "");
    assert_eq!(b.judge("CLUSTER SETSLOT 5061 IMPORTING a"), "+OK|");
    assert!(b.cluster.nodes.imports(5061));
    assert_eq!(b.judge("CLUSTER SETSLOT 5061 STABLE"), "+OK|");
    assert!(!b.cluster.nodes.imports(5061));
    assert_eq!(b.judge("CLUSTER SETSLOT 5061 NODE b"), "+OK|");
    assert_eq!(
        (b.judge("GET bar"), b.cluster.nodes.node(1).epoch),
        (String::new(), 2),
        "it is the highest already"
    );
    assert_eq!(b.judge("CLUSTER SETSLOT 12182 MIGRATING a"), "+OK|");
    assert_eq!(b.judge("GET foo"), "ASK 12182 127.0.0.1:1");
    let mut a = Bench::new("a", "");
    a.judge("CLUSTER SETSLOT 12182 NODE a");
    assert_eq!(a.cluster.nodes.node(0).epoch, 3);
    for line in [
        "SETSLOT 16384 STABLE",
        "SETSLOT 1 NODE z",
        "SETSLOT 12182 IMPORTING b",
        "SETSLOT 16000 MIGRATING b",
        "SETSLOT 1",
        "NOPE",
    ] {
        assert!(a.judge(&format!("CLUSTER {line}")).starts_with("-ERR "), "{line}");
    }
    assert_eq!(
        (a.judge("CLUSTER KEYSLOT foo"), a.judge("CLUSTER MYID")),
        (":12182|".to_owned(), "$1|a|".to_owned())
    );
    assert!(a.judge("CLUSTER INFO").contains("cluster_state:ok|"));
}

/// A recorded view of a real node is replied so that readers find the recorded view in the reply.
#[test]
fn a_recorded_view_is_played_as_it_was() {
    for (nodes, slots) in [
        (
            &include_bytes!("../../../../../tests/data/cluster/healthy.nodes")[..],
            &include_bytes!("../../../../../tests/data/cluster/healthy.slots")[..],
        ),
        (
            include_bytes!("../../../../../tests/data/cluster/migrating.nodes"),
            include_bytes!("../../../../../tests/data/cluster/migrating.slots"),
        ),
        (
            include_bytes!("../../../../../tests/data/cluster/promoted.nodes"),
            include_bytes!("../../../../../tests/data/cluster/promoted.slots"),
        ),
    ] {
        let asked = ServerAddress { host: "asked".to_owned(), port: 1 };
        let wanted = View::parse(&asked, slots, nodes).expect("a view");
        let text = std::str::from_utf8(nodes).expect("text").split_once("\r\n").expect("a header").1;
        let nodes = ClusterNodes::parse(text, None).expect("well formed");
        let mut bench =
            Bench { cluster: Cluster::new(nodes), said: ClusterSession::default(), keys: BTreeSet::new() };
        let [slots, nodes, shards] = ["SLOTS", "NODES", "SHARDS"]
            .map(|word| bench.judge(&format!("CLUSTER {word}")).replace('|', "\r\n"));
        assert_eq!(View::parse(&asked, slots.as_bytes(), nodes.as_bytes()), Ok(wanted));
        assert!(
            shards.starts_with("*3\r\n*4\r\n$5\r\nslots\r\n*2\r\n") || shards.starts_with("*5\r\n"),
            "{shards}"
        );
    }
}

#[test]
fn views_that_make_no_sense_are_refused_and_named() {
    let listens = Some("127.0.0.1:2".parse().expect("an address"));
    let found = ClusterNodes::parse(NODES, listens).expect("it is b");
    assert_eq!(found.my_id(), "b");
    for (text, wanted) in [
        ("", "which node is this?"),
        (NODES, "which node is this?"),
        ("a", "line 1: ID HOST:PORT"),
        ("a x myself,master - 0 0 1 connected", "'x': HOST:PORT"),
        ("a h:1 myself,master - 0 0 x connected", "'x' is no epoch"),
        ("a h:1 myself,master - 0 0 1 connected 5-4", "'5-4' is no slot"),
        ("a h:1 myself,master - 0 0 1 connected 16384", "'16384' is no slot"),
        ("a h:1 myself,master - 0 0 1 connected [5->b]", "is no open slot"),
        (
            "a h:1 myself,master - 0 0 1 connected 5\nb h:2 master - 0 0 1 connected 5",
            "line 2: '5': a slot has one",
        ),
        ("a h:1 myself,master - 0 0 1 connected\na h:2 master - 0 0 1 connected", "'a' is given twice"),
        ("a h:1 myself,master - 0 0 1 connected\nb h:2 myself,master - 0 0 1 connected", "only one node"),
    ] {
        let complaint = ClusterNodes::parse(text, None).expect_err(text);
        assert!(complaint.contains(wanted), "{text}: {complaint}");
    }
}
