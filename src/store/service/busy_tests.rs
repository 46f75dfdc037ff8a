//! Tests of long-running scripts: the replies that other connections get meanwhile, and how they end the
//! script.

use std::cell::Cell;

use super::{Service, Sockets, StoreClients, StoreService};
use crate::protocol::{RequestLimits, encode};
use crate::store::{Engine, EngineLimits};
use crate::values::limits::{ENGINE_OUTPUT_BYTES_HELD, ENGINE_REPLY_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{ClientId, Owner, Timestamp};

const BUSY: &str = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.|";
const KILLED: &str = "-ERR Script killed by user with SCRIPT KILL...|";
/// A script that runs until its effort (steps of work) is used up, which takes half a second.
const ENDLESS: &str = "while true do end";

/// Sockets of test clients: each call of `attend` ends the connections in `ends`, passes in the next of
/// `lines`, and takes what is to be sent.
#[derive(Default)]
struct World {
    lines: Vec<(ClientId, String)>,
    sent: Vec<(u32, String)>,
    ends: Vec<ClientId>,
    attended: usize,
}

fn request(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let words: Vec<&[u8]> = line.split('_').map(str::as_bytes).collect();
    encode::request(&mut bytes, words.into_iter());
    bytes
}

fn take_sent(clients: &mut (impl StoreClients + ?Sized), sent: &mut Vec<(u32, String)>) {
    while let Some((Owner::Client(id), segment)) = clients.poll_transmit() {
        sent.push((id.index, String::from_utf8_lossy(&segment.bytes()).replace("\r\n", "|")));
        clients.handle_transmitted(id, segment);
    }
}

impl Sockets for World {
    fn attend(&mut self, clients: &mut dyn StoreClients) {
        self.attended += 1;
        for id in self.ends.drain(..) {
            clients.handle_client_end(id);
            clients.handle_client_lost(id);
        }
        if !self.lines.is_empty() {
            let (id, line) = self.lines.remove(0);
            clients.handle_client_bytes(id, &request(&line), Now::default());
        }
        take_sent(clients, &mut self.sent);
    }
}

/// Sockets of two clients: one sends bytes and never reads, the other sends SCRIPT KILL.
struct Deaf {
    bytes: Vec<u8>,
    sender: ClientId,
    killer: ClientId,
}

impl Sockets for Deaf {
    fn attend(&mut self, clients: &mut dyn StoreClients) {
        clients.handle_client_bytes(self.sender, &std::mem::take(&mut self.bytes), Now::default());
        clients.handle_client_bytes(self.killer, &request("SCRIPT_KILL"), Now::default());
    }
}

/// A service whose clock advances by 0.1 ms with each reading, and the sockets of its clients.
struct Bench {
    service: Service,
    world: World,
}

impl Bench {
    fn new() -> Self {
        let time = Cell::new(0);
        let clock = move || {
            time.set(time.get() + 100_000);
            Timestamp::from_nanos(time.get())
        };
        let engine = Engine::new(EngineLimits::with_memory(u64::MAX), 1).with_clock(clock);
        let mut bench = Self { service: Service::new(engine, 16 << 20), world: World::default() };
        let [client] = bench.open();
        bench.send(client, "CONFIG_SET_busy-reply-threshold_10");
        assert_eq!(bench.turn(client), "+OK|");
        bench
    }

    fn open<const N: usize>(&mut self) -> [ClientId; N] {
        std::array::from_fn(|_| self.service.handle_client_opened(Now::default()))
    }

    /// Sends a request (`line`) whose words are separated by `_`.
    fn send(&mut self, client: ClientId, line: &str) {
        self.service.handle_client_bytes(client, &request(line), Now::default());
    }

    /// Runs turns until there is nothing left to do, and returns what `client` was sent since the last call.
    fn turn(&mut self, client: ClientId) -> String {
        for _ in 0..100 {
            self.service.handle_turn_end(Now::default(), &mut self.world);
            take_sent(&mut self.service, &mut self.world.sent);
            if !self.service.is_busy() {
                break;
            }
        }
        self.take(client)
    }

    fn take(&mut self, client: ClientId) -> String {
        let (own, others) =
            std::mem::take(&mut self.world.sent).into_iter().partition(|(index, _)| *index == client.index);
        self.world.sent = others;
        let own: Vec<(u32, String)> = own;
        own.into_iter().map(|(_, text)| text).collect()
    }

    fn meanwhile(&mut self, client: ClientId, lines: &[&str]) {
        self.world.lines.extend(lines.iter().map(|line| (client, (*line).to_owned())));
    }
}

#[test]
fn others_are_told_that_the_store_is_busy_and_end_the_script() {
    let mut bench = Bench::new();
    let [runner, other] = bench.open();
    bench.send(runner, &format!("EVAL_{ENDLESS}_0"));
    bench.send(runner, "PING");
    bench.meanwhile(other, &["PING", "GET_k", "FUNCTION_KILL", "SCRIPT_KILL", "PING"]);
    assert_eq!(bench.turn(runner), format!("{KILLED}+PONG|"));
    assert_eq!(bench.take(other), format!("{BUSY}{BUSY}{BUSY}+OK|"));
    assert_eq!(bench.world.lines.len(), 1, "the script has ended");
    bench.send(other, "SCRIPT_KILL");
    assert_eq!(bench.turn(other), "-NOTBUSY No scripts in execution right now.|");
}

#[test]
fn a_script_that_catches_errors_ends_as_well() {
    let mut bench = Bench::new();
    let [runner, other] = bench.open();
    let script = "local f = function() while 1 do redis.call('ping') end end while 1 do pcall(f) end";
    bench.send(runner, &format!("EVAL_{script}_0"));
    bench.meanwhile(other, &["SCRIPT_KILL"]);
    assert_eq!(bench.turn(runner), KILLED);
}

#[test]
fn a_script_that_has_written_goes_on() {
    let mut bench = Bench::new();
    let [runner, other] = bench.open();
    bench.send(runner, "EVAL_redis.call('set', KEYS[1], 'v') for i = 1, 300000 do end return 'done'_1_k");
    bench.meanwhile(other, &["SCRIPT_KILL"]);
    assert_eq!(bench.turn(runner), "$4|done|");
    assert!(bench.take(other).starts_with("-UNKILLABLE Sorry the script already executed write commands"));
}

#[test]
fn a_short_script_attends_to_nobody() {
    let mut bench = Bench::new();
    let [runner] = bench.open();
    bench.send(runner, "EVAL_return 1_0");
    assert_eq!(bench.turn(runner), ":1|");
    assert_eq!(bench.world.attended, 0);
}

#[test]
fn functions_end_by_a_command_of_their_own() {
    let mut bench = Bench::new();
    let [runner, other] = bench.open();
    let code = format!("#!lua name=l\nredis.register_function('f', function() {ENDLESS} end)");
    let mut load = Vec::new();
    encode::request(&mut load, [&b"FUNCTION"[..], b"LOAD", code.as_bytes()].into_iter());
    bench.service.handle_client_bytes(runner, &load, Now::default());
    assert_eq!(bench.turn(runner), "$1|l|");
    bench.send(runner, "FCALL_f_0");
    bench.meanwhile(other, &["SCRIPT_KILL", "FUNCTION_STATS", "FUNCTION_KILL"]);
    assert_eq!(bench.turn(runner), KILLED);
    let told = bench.take(other);
    assert!(
        told.starts_with("-BUSY Redis is busy running a script. You can only call FUNCTION KILL"),
        "{told}"
    );
    assert!(told.contains("*6|$4|name|$1|f|$7|command|*3|$5|FCALL|$1|f|$1|0|$11|duration_ms|:"), "{told}");
    assert!(told.ends_with("|+OK|"), "{told}");
}

/// Runs a script whose request is larger than a reply may be: FUNCTION STATS, which would show the request,
/// gets an error, and SCRIPT KILL ends the script.
#[test]
fn a_large_request_is_not_shown_in_part() {
    let mut bench = Bench::new();
    bench.service.limits = RequestLimits::trusted(128 << 20);
    let [runner, other] = bench.open();
    let (code, argument) = (vec![b'x'; ENGINE_REPLY_BYTES_MAX / 2], vec![b'x'; ENGINE_REPLY_BYTES_MAX / 2]);
    let code = [ENDLESS.as_bytes(), b" --", &code].concat();
    let mut run = Vec::new();
    encode::request(&mut run, [&b"EVAL"[..], &code, b"0", &argument].into_iter());
    bench.service.handle_client_bytes(runner, &run, Now::default());
    bench.meanwhile(other, &["FUNCTION_STATS", "SCRIPT_KILL"]);
    assert_eq!(bench.turn(runner), KILLED);
    assert_eq!(
        bench.take(other),
        format!("-ERR the reply would be larger than {ENGINE_REPLY_BYTES_MAX} bytes|+OK|")
    );
}

#[test]
fn transactions_end_where_a_request_was_refused() {
    let mut bench = Bench::new();
    let [runner, other, third] = bench.open();
    for client in [other, third] {
        bench.send(client, "MULTI");
        bench.send(client, "SET_k_v");
    }
    bench.turn(other);
    bench.take(third);
    bench.send(runner, &format!("EVAL_{ENDLESS}_0"));
    bench.meanwhile(other, &["SET_k_w"]);
    bench.meanwhile(third, &["EXEC"]);
    let [late, killer] = bench.open();
    bench.meanwhile(late, &["MULTI"]);
    bench.meanwhile(killer, &["SCRIPT_KILL"]);
    assert_eq!(bench.turn(runner), KILLED);
    assert_eq!(bench.take(other), BUSY);
    let aborted = bench.take(third);
    assert!(aborted.starts_with("-EXECABORT Transaction discarded because of: BUSY "), "{aborted}");
    bench.send(other, "EXEC");
    assert_eq!(bench.turn(other), "-EXECABORT Transaction discarded because of previous errors.|");
    bench.send(third, "EXEC");
    assert_eq!(bench.turn(third), "-ERR EXEC without MULTI|");
    assert_eq!(bench.take(late), "+OK|", "MULTI waits for the end of the script");
}

#[test]
fn clients_come_and_go_while_a_script_runs() {
    let mut bench = Bench::new();
    let [runner, other, waiting] = bench.open();
    bench.send(waiting, "BLPOP_list_0");
    bench.send(runner, &format!("EVAL_{ENDLESS}_0"));
    bench.world.ends.extend([runner, waiting]);
    bench.meanwhile(other, &["SCRIPT_KILL"]);
    assert_eq!(bench.turn(other), "+OK|");
    bench.send(other, "RPUSH_list_x");
    assert_eq!(bench.turn(other), ":1|");
    bench.send(other, "LLEN_list");
    assert_eq!(bench.turn(other), ":1|", "nobody waits for it any more");
}

#[test]
fn refusals_of_a_client_that_reads_nothing_are_bounded() {
    let mut bench = Bench::new();
    let [runner, other] = bench.open();
    let many = request("PING").repeat(200_000);
    let [killer] = bench.open();
    bench.send(runner, &format!("EVAL_{ENDLESS}_0"));
    let mut deaf = Deaf { bytes: many, sender: other, killer };
    bench.service.handle_turn_end(Now::default(), &mut deaf);
    let held = bench.service.connections.get(other).expect("it is open").output.len();
    assert!(held < ENGINE_OUTPUT_BYTES_HELD + 1_000, "{held}");
}
