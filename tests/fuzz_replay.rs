//! Replays the corpus of each fuzz target, and random mutations of it, identically in every run. One test, which only
//! runs when asked for, goes on with other mutations in each run: `tests/run fuzz`.

mod fuzz_bodies;

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use weir::values::Random;

/// The number of mutated inputs per target, which take a few seconds in an unoptimised build.
const MUTANTS: u64 = 6_000;
const MUTANT_BYTES_MAX: usize = 4_096;
/// Pieces that mutations insert: words of the protocol, and numbers at its limits.
const PARTS: [&[u8]; 32] = [
    b"\r\n",
    b"*",
    b"$",
    b"\n",
    b"\"",
    b"'",
    b"*1\r\n",
    b"*2\r\n",
    b"*3\r\n",
    b"$1\r\na\r\n",
    b"$3\r\nGET\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"-5",
    b"0",
    b"999999999999",
    b"2147483647",
    b"18446744073709551615",
    b"%1\r\n",
    b"~2\r\n",
    b"|1\r\n",
    b">2\r\n",
    b"_\r\n",
    b"$5\r\nMULTI\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
    b"*1\r\n$6\r\nDBSIZE\r\n",
    b"PING\r\n",
    b"*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*2\r\n$4\r\nSCAN\r\n$1\r\n0\r\n",
];

/// Pieces that mutations insert for the admin port: HTTP and quota files.
const ADMIN_PARTS: [&[u8]; 24] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\"",
    b"\"\"\"",
    b"'",
    b"#",
    b"=",
    b".",
    b"[",
    b"]",
    b"{",
    b"}",
    b"[[",
    b"\\u0000",
    b"\xc3",
    b"[tenants.a]\n",
    b"[tenants.a.users.b]\n",
    b"password = 'x'\n",
    b"ru_per_second = ",
    b"18446744073709551616",
    b"-nan",
    b"1979-05-27",
    b"GET /tenants?minutes=",
];

/// Pieces that mutations insert for commands over HTTP.
const HTTP_PARTS: [&[u8]; 28] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\0",
    b"[",
    b"]",
    b"\"",
    b"\\u0000",
    b",",
    b" ",
    b"%2f",
    b"%",
    b"?ttl=5",
    b"GET /v1/keys/a HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD ",
    b"POST / HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b"Host: b\r\n",
    b"Connection: close\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Upstash-Encoding: base64\r\n",
    b"5\r\nhello\r\n",
    b"ffffffffffffffff\r\n",
    b"0\r\n\r\n",
    b"[[\"GET\",\"a\"],[\"TTL\",\"b\"]]",
];

/// Parts of requests for the embedded store: options, numbers and types of keys.
const ENGINE_PARTS: [&[u8]; 32] = [
    b"\r\n",
    b" ",
    b"\"",
    b"OTHER\r\n",
    b"LATER\r\n",
    b"MULTI\r\n",
    b"EXEC\r\n",
    b"HELLO 3\r\n",
    b"0",
    b"-1",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"1e308",
    b"nan",
    b"-inf",
    b"(1",
    b"[a",
    b"+",
    b"0-0",
    b"$",
    b"*",
    b"key",
    b" COUNT 1",
    b" LIMIT 0 1",
    b" WITHSCORES",
    b" BLOCK 0",
    b" STORE key",
    b"SET key 1\r\n",
    b"LPUSH list a b c\r\n",
    b"ZADD zset 1 a 2 b\r\n",
    b"XADD stream * a 1\r\n",
];

/// Parts of a node's replies about its cluster.
const NODES_PARTS: [&[u8]; 24] = [
    b"\r\n",
    b"\n",
    b"---\n",
    b"*1\r\n",
    b"*3\r\n",
    b":0\r\n",
    b":16383\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"aaaa",
    b"bbbb",
    b" 10.0.0.1:7000@17000 ",
    b"[fe80::1]:7000@17000,name",
    b"myself,",
    b"master ",
    b"slave ",
    b"fail? ",
    b" 0-16383",
    b" 5",
    b" [7->-aaaa]",
    b" [7-<-bbbb]",
    b"18446744073709551615",
    b"connected",
    b"-MOVED 1 a:1\r\n",
];

/// A fuzz target: the body that an input is given to, the name of its corpus, and the pieces that mutations insert.
struct Target {
    name: &'static str,
    body: fn(&[u8]),
    parts: &'static [&'static [u8]],
}

const ENGINE: Target = Target { name: "engine", body: fuzz_bodies::engine, parts: &ENGINE_PARTS };
const NODES: Target = Target { name: "nodes", body: fuzz_bodies::nodes, parts: &NODES_PARTS };
const REQUESTS: Target = Target { name: "requests", body: fuzz_bodies::requests, parts: &PARTS };
const REPLIES: Target = Target { name: "replies", body: fuzz_bodies::replies, parts: &PARTS };
const STORES: Target = Target { name: "stores", body: fuzz_bodies::stores, parts: &PARTS };
const PIPELINE: Target = Target { name: "pipeline", body: fuzz_bodies::pipeline, parts: &PARTS };
const ADMIN: Target = Target { name: "admin", body: fuzz_bodies::admin, parts: &ADMIN_PARTS };
const HTTP: Target = Target { name: "http", body: fuzz_bodies::http, parts: &HTTP_PARTS };

#[test]
fn engine() {
    replay(&ENGINE);
}

#[test]
fn nodes() {
    replay(&NODES);
}

#[test]
fn requests() {
    replay(&REQUESTS);
}

#[test]
fn replies() {
    replay(&REPLIES);
}

#[test]
fn stores() {
    replay(&STORES);
}

#[test]
fn pipeline() {
    replay(&PIPELINE);
}

#[test]
fn admin() {
    replay(&ADMIN);
}

#[test]
fn http() {
    replay(&HTTP);
}

/// Goes on with mutations that no other run has tried, for `WEIR_FUZZ_SECONDS` (10 if unset). `WEIR_FUZZ_SEED` repeats
/// a run: its mutants come in the order of that run.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "it is told by the environment how long to take, and takes that long"
)]
#[ignore = "takes as long as it is told, and tries something else in each run"]
fn mutants_of_this_run() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set");
    let seed = number("WEIR_FUZZ_SEED").unwrap_or(since_1970.as_nanos() as u64);
    println!("WEIR_FUZZ_SEED={seed}");
    let until = Instant::now() + Duration::from_secs(number("WEIR_FUZZ_SECONDS").unwrap_or(10));
    let mut random = Random::new(seed);
    let targets = [ENGINE, NODES, REQUESTS, REPLIES, STORES, PIPELINE, ADMIN, HTTP];
    let corpora = targets.each_ref().map(|target| corpus(target.name));
    let mut count = 0;
    while Instant::now() < until {
        for (target, corpus) in targets.iter().zip(&corpora) {
            for _ in 0..100 {
                count += 1;
                try_mutant(target, corpus, &format!("WEIR_FUZZ_SEED={seed}, number {count}"), &mut random);
            }
        }
    }
    println!("{count} mutants held, of WEIR_FUZZ_SEED={seed}");
}

fn replay(target: &Target) {
    let corpus = corpus(target.name);
    for (name, bytes) in &corpus {
        hold(target, bytes, name);
    }
    let mut random = Random::new(target.name.len() as u64);
    for number in 0..MUTANTS {
        try_mutant(target, &corpus, &format!("number {number}"), &mut random);
    }
}

fn try_mutant(target: &Target, corpus: &[(String, Vec<u8>)], place: &str, random: &mut Random) {
    let (name, bytes) = random.pick(corpus);
    let (_, other) = random.pick(corpus);
    let mutant = mutated(bytes, other, target.parts, random);
    hold(target, &mutant, &format!("mutant of {name}, {place}"));
}

/// Runs a target's body on an input, and names the input if the body panics.
fn hold(target: &Target, bytes: &[u8], name: &str) {
    let held = catch_unwind(AssertUnwindSafe(|| (target.body)(bytes)));
    assert!(held.is_ok(), "{}: {name}: {}", target.name, bytes.escape_ascii());
}

/// Returns the corpus of a target as names and contents, sorted by name so that every run is the same.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target);
    let mut found: Vec<(String, Vec<u8>)> = fs::read_dir(&folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("the corpus can be read").path())
        .map(|path| {
            (
                path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                fs::read(&path).expect("a file"),
            )
        })
        .collect();
    found.sort();
    assert!(found.len() >= 10, "{target} has a corpus");
    found
}

fn mutated(bytes: &[u8], other: &[u8], parts: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut mutant = bytes[..bytes.len().min(MUTANT_BYTES_MAX)].to_vec();
    for _ in 0..random.between(1, 4) {
        let at = random.index(mutant.len() + 1);
        let end = (at + random.index(20)).min(mutant.len());
        match random.below(7) {
            0 => mutant.truncate(at),
            1 => drop(mutant.drain(at..end)),
            2 if at < mutant.len() => mutant[at] ^= 1 << random.below(8),
            3 => drop(mutant.splice(at..at, random.pick::<&[u8]>(parts).iter().copied())),
            4 => drop(mutant.splice(at..end, random.pick::<&[u8]>(parts).iter().copied())),
            5 => {
                let copied = mutant[at..end].to_vec();
                mutant.splice(at..at, copied);
            }
            _ => {
                let from = random.index(other.len() + 1);
                mutant.splice(at.., other[from..].iter().copied().take(MUTANT_BYTES_MAX));
            }
        }
    }
    mutant
}
