//! Tests of turns between connections and of back pressure: a connection with heavy requests delays the
//! others little, and its own replies are complete.

use std::collections::BTreeSet;

use super::{Service, Sockets, StoreClients, StoreService};
use crate::store::{Engine, EngineLimits};
use crate::values::Random;
use crate::values::limits::{ENGINE_EFFORT_PER_TURN, ENGINE_INPUT_BYTES_HELD, ENGINE_OUTPUT_BYTES_HELD};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner};

/// Sockets on which nothing happens while a script runs.
pub(super) struct Unattended;

impl Sockets for Unattended {
    fn attend(&mut self, _clients: &mut dyn StoreClients) {}
}

/// A service, and clients that read their output only when a test tells them to.
struct Bench {
    service: Service,
    now: Now,
    paused: BTreeSet<u32>,
    closed: Vec<ClientId>,
}

impl Bench {
    fn new() -> Self {
        let engine = Engine::new(EngineLimits::with_memory(u64::MAX), 1);
        let service = Service::new(engine, 16 << 20);
        Self { service, now: Now::default(), paused: BTreeSet::new(), closed: Vec::new() }
    }

    fn open(&mut self) -> ClientId {
        self.service.handle_client_opened(self.now)
    }

    fn send(&mut self, client: ClientId, lines: &str) {
        self.service.handle_client_bytes(client, lines.as_bytes(), self.now);
        self.heed();
    }

    fn turn(&mut self) {
        self.service.handle_turn_end(self.now, &mut Unattended);
        self.heed();
    }

    fn heed(&mut self) {
        while let Some(action) = self.service.poll_action() {
            match action {
                Action::PauseReading(Owner::Client(id)) => assert!(self.paused.insert(id.index)),
                Action::ResumeReading(Owner::Client(id)) => assert!(self.paused.remove(&id.index)),
                Action::Close(Owner::Client(id)) => self.closed.push(id),
                other => panic!("a store does nothing like {other:?}"),
            }
        }
    }

    /// Lets every client read, and appends the bytes to its entry of `read`. True if there were any bytes.
    fn read_all(&mut self, read: &mut [Vec<u8>]) -> bool {
        let mut any = false;
        while let Some((owner, segment)) = self.service.poll_transmit() {
            let Owner::Client(id) = owner else { panic!("a store has clients only") };
            read[id.index as usize].extend_from_slice(&segment.bytes());
            self.service.handle_transmitted(id, segment);
            any = true;
        }
        self.heed();
        any
    }

    /// Runs turns until no connection waits for a turn and all output is read.
    fn finish(&mut self, read: &mut [Vec<u8>]) {
        while self.read_all(read) || self.service.is_busy() {
            self.turn();
        }
    }

    /// Fills the list `l` with this many short items.
    fn fill_list(&mut self, client: ClientId, items: usize) {
        let line = format!("RPUSH l{}\r\n", " x".repeat(1_000));
        for _ in 0..items / 1_000 {
            self.send(client, &line);
            self.finish(&mut [Vec::new(), Vec::new(), Vec::new()]);
        }
    }
}

#[test]
fn a_flood_of_dear_requests_lets_the_others_have_their_turns() {
    let mut bench = Bench::new();
    let (flood, neighbour) = (bench.open(), bench.open());
    bench.fill_list(flood, 40_000);
    let one = 40_000;
    bench.send(flood, &"LREM l 0 y\r\n".repeat(60));
    let mut read = [Vec::new(), Vec::new()];
    for _ in 0..20 {
        bench.send(neighbour, "PING\r\n");
        let mut spent = 0;
        while read[1].is_empty() {
            let before = bench.service.engine().statistics().commands;
            bench.turn();
            spent += (bench.service.engine().statistics().commands - before) * one;
            bench.read_all(&mut read);
            assert!(spent <= 2 * one, "{spent} units were another's turn");
        }
        assert_eq!(read[1], b"+PONG\r\n");
        read[1].clear();
    }
    // The driver sees other connections between two turns, so the test checks each turn by itself.
    let before = bench.service.engine().statistics().commands;
    bench.turn();
    assert!(bench.service.engine().statistics().commands - before <= 1);
    bench.finish(&mut read);
    assert_eq!(read[0], b":0\r\n".repeat(60));
    assert!(!bench.service.is_busy());
}

#[test]
fn two_that_ask_for_much_share_by_what_it_takes() {
    let mut bench = Bench::new();
    let (dear, cheap) = (bench.open(), bench.open());
    bench.fill_list(dear, 50_000);
    let mut read = [Vec::new(), Vec::new()];
    bench.send(dear, &"LREM l 0 y\r\n".repeat(1_000));
    bench.send(cheap, &"INCR n\r\n".repeat(200_000));
    for _ in 0..200 {
        bench.turn();
        bench.read_all(&mut read);
    }
    let replies = |bytes: &[u8]| bytes.split(|byte| *byte == b'\n').count() - 1;
    let (dear_done, cheap_done) = (replies(&read[0]), replies(&read[1]));
    let (dear_units, cheap_units) = (dear_done * 50_000, cheap_done * 16);
    assert!(dear_done > 10 && cheap_done > 10_000, "{dear_done} {cheap_done}");
    assert!(dear_units < cheap_units * 3 && cheap_units < dear_units * 3, "{dear_units} {cheap_units}");
}

#[test]
fn who_does_not_read_is_not_served_and_not_closed() {
    let mut bench = Bench::new();
    let (slow, other) = (bench.open(), bench.open());
    let value = "v".repeat(300_000);
    bench.send(slow, &format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\n{value}\r\n"));
    bench.send(slow, &"GET k\r\n".repeat(200));
    for _ in 0..100 {
        bench.turn();
        let held = bench.service.connections.get(slow).expect("open").output.len();
        assert!(held <= ENGINE_OUTPUT_BYTES_HELD + 300_100, "{held} bytes wait");
    }
    assert!(!bench.service.is_busy(), "nothing can be done before it reads");
    // The client continues to send, and after a while the service pauses reading from it.
    for _ in 0..100 {
        if !bench.paused.contains(&slow.index) {
            bench.send(slow, &format!("ECHO {}\r\n", "e".repeat(10_000)));
        }
    }
    assert!(bench.paused.contains(&slow.index));
    let held = bench.service.connections.get(slow).expect("open").decoder.held_bytes();
    assert!(held < ENGINE_INPUT_BYTES_HELD + 20_000, "{held} bytes wait");
    let mut read = [Vec::new(), Vec::new()];
    bench.send(other, "PING\r\n");
    let (owner, segment) = bench.service.poll_transmit().expect("it was answered");
    assert_eq!(owner, Owner::Client(slow), "what waited longest leaves first");
    bench.read_all(&mut read);
    assert_eq!(read[1], b"+PONG\r\n");
    // The client reads again.
    bench.service.handle_transmitted(slow, segment);
    let mut bytes = 0;
    while bench.service.is_busy() {
        bench.turn();
        bench.read_all(&mut read);
        bytes += std::mem::take(&mut read[0]).len();
    }
    assert!(bytes > 199 * 300_000, "{bytes}");
    assert!(bench.paused.is_empty() && bench.closed.is_empty());
}

#[test]
fn what_was_sent_before_the_end_is_answered_before_the_close() {
    let mut bench = Bench::new();
    let client = bench.open();
    bench.fill_list(client, 20_000);
    bench.send(client, &"LREM l 0 y\r\n".repeat(20));
    bench.service.handle_client_end(client);
    let mut read = [Vec::new()];
    bench.finish(&mut read);
    assert_eq!(read[0], b":0\r\n".repeat(20));
    assert_eq!(bench.closed, [client]);
}

#[test]
fn a_connection_that_is_lost_while_it_waits_is_forgotten() {
    let mut bench = Bench::new();
    let (lost, other) = (bench.open(), bench.open());
    bench.fill_list(lost, 20_000);
    bench.send(lost, &"LREM l 0 y\r\n".repeat(20));
    bench.service.handle_client_lost(lost);
    let successor = bench.open();
    assert_eq!(successor.index, lost.index);
    bench.send(other, "PING\r\n");
    let mut read = [Vec::new(), Vec::new()];
    bench.finish(&mut read);
    assert_eq!((read[0].len(), read[1].as_slice()), (0, &b"+PONG\r\n"[..]));
}

/// Random pieces of input, turns and reads never change a connection's replies.
#[test]
fn turns_change_no_reply_and_no_order() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut bench = Bench::new();
        let clients: Vec<ClientId> = (0..3).map(|_| bench.open()).collect();
        let mut input: Vec<Vec<u8>> = (0..3).map(|client| requests(&mut random, client)).collect();
        // Each client uses keys of its own, so its replies do not depend on the others.
        let expected: Vec<Vec<u8>> = input.iter().map(|bytes| alone(bytes)).collect();
        let mut read = vec![Vec::new(); 3];
        while input.iter().any(|bytes| !bytes.is_empty()) {
            let who = random.index(3);
            let length = input[who].len().min(1 + random.index(5_000));
            let rest = input[who].split_off(length);
            let chunk = std::mem::replace(&mut input[who], rest);
            bench.service.handle_client_bytes(clients[who], &chunk, bench.now);
            if random.index(3) == 0 {
                bench.turn();
            }
            if random.index(4) == 0 {
                bench.read_all(&mut read);
            }
        }
        bench.finish(&mut read);
        assert!(read == expected, "seed {seed}");
    }
}

fn requests(random: &mut Random, client: usize) -> Vec<u8> {
    let mut lines = Vec::new();
    for number in 0..300 {
        let line = match random.index(9) {
            0 => format!("RPUSH l{client}{}", " x".repeat(random.index(800) + 1)),
            1 => format!("LREM l{client} {} y", random.index(9)),
            2 => format!("LRANGE l{client} 0 -1"),
            3 => format!("SADD s{client} {}", random.index(500)),
            4 => format!("SUNION{}", format!(" s{client}").repeat(random.index(50) + 1)),
            5 => format!("MULTI\r\nINCR n{client}\r\nLLEN l{client}\r\nEXEC"),
            6 => format!("SETRANGE v{client} {} {number}", random.index(200_000)),
            7 => format!("GET v{client}"),
            _ => format!("SET w{client} {number} GET"),
        };
        lines.extend_from_slice(line.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    lines
}

/// Returns the replies that a connection gets for `bytes` when it is the only one, request by request.
fn alone(bytes: &[u8]) -> Vec<u8> {
    let mut bench = Bench::new();
    let client = bench.open();
    let mut read = [Vec::new()];
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        bench.service.handle_client_bytes(client, line, bench.now);
        bench.finish(&mut read);
    }
    let [read] = read;
    read
}

#[test]
fn a_turn_is_worth_many_small_requests() {
    let mut bench = Bench::new();
    let client = bench.open();
    bench.send(client, &"PING\r\n".repeat(300));
    assert!(!bench.service.is_busy(), "{ENGINE_EFFORT_PER_TURN} units are enough for a whole buffer of them");
}
