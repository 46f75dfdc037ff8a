//! Compares the cost of a rate-limiting decision in three ways: `cargo bench --bench limiters`.
//!
//! * weir: the request is priced, and charged to a global, a tenant's and a user's bucket on its own core;
//! * the crate governor, the usual choice: one request, one bucket, shared by all threads;
//! * counters in a store, which several servers can share: one round trip with three pairs of INCR and EXPIRE, to a
//!   redis-server that the benchmark starts on a free loopback port, and ends.

#![expect(clippy::disallowed_methods, reason = "a stopwatch is what this is")]

#[expect(dead_code, reason = "settling and refusing are measured elsewhere")]
#[path = "common/ledger.rs"]
mod ledger;
#[path = "common/stopwatch.rs"]
mod stopwatch;

use std::hint::black_box;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};

use governor::{Quota, RateLimiter};
use ledger::{Ledger, Level, Row};
use weir::config::Quotas;
use weir::protocol::encode;

const USERS: u64 = 256;
const AMPLE: u32 = 1_000_000_000;
const ROUND_TRIPS: u64 = 64;

fn main() {
    // `cargo test` runs benchmarks without the flag `--bench`; each case then runs once.
    let measures =
        std::env::args().any(|word| word == "--bench") && !std::env::args().any(|word| word == "--test");
    let mut first = None;
    println!("{:<44} {:>12} {:>10} {:>12}", "", "ns/request", "spread", "of the first");
    let mut show = |name: &str, requests: u64, run: &mut dyn FnMut()| {
        if !measures {
            run();
            return println!("{name:<44} runs");
        }
        let timing = stopwatch::time(run);
        let nanos = timing.nanos / requests as f64;
        let times = nanos / *first.get_or_insert(nanos);
        println!("{name:<44} {nanos:>12.1} {:>9.1}% {times:>12.1}", timing.spread * 100.0);
    };
    show("weir, three limits with prices", 1, &mut weir(Row::One));
    show("the same, 16 of a user in a row", 1, &mut weir(Row::Sixteen));
    show("governor, one limit", 1, &mut governor_of_all());
    show("governor, one limit of 256 by key", 1, &mut governor_by_key());
    match Store::start() {
        Ok(mut store) => {
            show("redis-server, three counters, one round trip", ROUND_TRIPS, &mut || store.count_three());
        }
        // Wherever all tests run, redis-server is installed.
        Err(error) => println!("redis-server cannot be started ({error}): its counters are left out"),
    }
}

fn weir(in_a_row: Row) -> impl FnMut() {
    let text = format!(
        "[global]\nru_per_second = {AMPLE}\n[default]\nru_per_second = {AMPLE}\nuser_ru_per_second = {AMPLE}"
    );
    let quotas = Quotas::parse("the benchmark", &text).expect("well formed");
    let mut ledger = Ledger::new(&quotas, Level::Full, in_a_row);
    move || black_box(&mut ledger).admit()
}

fn ample() -> Quota {
    Quota::per_second(NonZeroU32::new(AMPLE).expect("more than nothing"))
}

fn governor_of_all() -> impl FnMut() {
    let limiter = RateLimiter::direct(ample());
    move || assert!(black_box(&limiter).check().is_ok(), "there is enough")
}

fn governor_by_key() -> impl FnMut() {
    let limiter = RateLimiter::keyed(ample());
    let mut turn = 0;
    move || {
        turn = (turn + 1) % USERS;
        assert!(black_box(&limiter).check_key(&turn).is_ok(), "there is enough");
    }
}

/// A redis-server that the benchmark has started, and a connection to it.
struct Store {
    process: Child,
    connection: TcpStream,
    request: Vec<u8>,
}

impl Store {
    fn start() -> io::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let told = BufReader::new(process.stdout.take().expect("it is piped"));
        let ready = told.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept"));
        let connection = if ready {
            TcpStream::connect(("127.0.0.1", port))
        } else {
            Err(io::Error::other("it ended before it was ready"))
        };
        match connection {
            Ok(connection) => {
                connection.set_nodelay(true)?;
                Ok(Self { process, connection, request: three_counters() })
            }
            Err(error) => {
                end(&mut process);
                Err(error)
            }
        }
    }

    /// Sends `ROUND_TRIPS` requests, each to increment three counters, one after the other, and waits for the replies
    /// to each.
    fn count_three(&mut self) {
        let mut replies = [0; 256];
        for _ in 0..ROUND_TRIPS {
            self.connection.write_all(&self.request).expect("the server listens");
            let mut lines = 0;
            while lines < 6 {
                let received = self.connection.read(&mut replies).expect("the server answers");
                assert!(received > 0, "the server is there");
                lines += replies[..received].split(|byte| *byte == b'\n').count() - 1;
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

fn end(process: &mut Child) {
    // The process may have ended by itself.
    let _ = process.kill();
    let _ = process.wait();
}

fn three_counters() -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in ["limit:global", "limit:tenant:acme", "limit:user:acme/ann"] {
        encode::request(&mut bytes, ["INCR", key].map(str::as_bytes).into_iter());
        encode::request(&mut bytes, ["EXPIRE", key, "1"].map(str::as_bytes).into_iter());
    }
    bytes
}
