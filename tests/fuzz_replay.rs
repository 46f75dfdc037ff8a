//! Replays the corpus of each fuzz target, and random mutations of it, identically in every run.

mod fuzz_bodies;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

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

#[test]
fn engine() {
    replay("engine", fuzz_bodies::engine, &ENGINE_PARTS);
}

#[test]
fn nodes() {
    replay("nodes", fuzz_bodies::nodes, &NODES_PARTS);
}

#[test]
fn requests() {
    replay("requests", fuzz_bodies::requests, &PARTS);
}

#[test]
fn replies() {
    replay("replies", fuzz_bodies::replies, &PARTS);
}

#[test]
fn stores() {
    replay("stores", fuzz_bodies::stores, &PARTS);
}

#[test]
fn pipeline() {
    replay("pipeline", fuzz_bodies::pipeline, &PARTS);
}

#[test]
fn admin() {
    replay("admin", fuzz_bodies::admin, &ADMIN_PARTS);
}

#[test]
fn http() {
    replay("http", fuzz_bodies::http, &HTTP_PARTS);
}

fn replay(target: &str, body: fn(&[u8]), parts: &[&[u8]]) {
    let corpus = corpus(target);
    for (name, bytes) in &corpus {
        hold(body, bytes, name);
    }
    let mut random = Random::new(target.len() as u64);
    for number in 0..MUTANTS {
        let (name, bytes) = random.pick(&corpus);
        let (_, other) = random.pick(&corpus);
        let mutant = mutated(bytes, other, parts, &mut random);
        hold(body, &mutant, &format!("mutant {number} of {name}"));
    }
}

/// Runs a body on an input, and names the input if the body panics.
fn hold(body: fn(&[u8]), bytes: &[u8], name: &str) {
    let held = catch_unwind(AssertUnwindSafe(|| body(bytes)));
    assert!(held.is_ok(), "{name}: {}", bytes.escape_ascii());
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
