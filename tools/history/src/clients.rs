//! The connections of a run: each has a thread, sends batches of commands of random size, and records how
//! each command ended.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Sender;
use weir::runtime::Clock;
use weir::values::{Random, Timestamp};

use super::asked::{Asked, Log, Occasion};
use super::flags::HistoryFlags;
use super::line::Line;
use super::workload::{Batch, Workload};

/// The size in bytes at which a batch of commands (sent together) ends, however many were wanted: it must
/// fit into a socket's buffers, because nothing is read while it is sent.
const BATCH_BYTES: usize = 48 * 1024;
/// The longest pause of a connection, in milliseconds, after weir has refused a request on it, or could not be reached.
const REFUSED_PAUSE_MS: u64 = 10;
const AROUND_PAUSE_MS: u64 = 4;
/// The time after which a server that cannot be reached ends the run with an error.
const UNREACHABLE: Duration = Duration::from_secs(30);

/// State that all threads of a run of `weir-history` share.
pub struct Shared {
    pub workload: Workload,
    pub flags: HistoryFlags,
    pub clock: Clock,
    /// The number of operations of the run that no client thread has taken to send yet.
    pub left: AtomicU64,
    /// True once all threads are to stop, since the run cannot continue or a signal has ended it.
    pub stop: Arc<AtomicBool>,
    sessions: AtomicU32,
}

/// The server that a thread sends its commands to.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Commands go to weir; the field is the number of this client among all that use weir.
    Client(u64),
    /// Commands go directly to the store with this index, bypassing weir.
    Around(usize),
}

impl Shared {
    pub fn new(workload: Workload, flags: HistoryFlags, clock: Clock, stop: Arc<AtomicBool>) -> Self {
        let left = AtomicU64::new(flags.operations);
        Self { workload, flags, clock, left, stop, sessions: AtomicU32::new(0) }
    }

    /// Returns the number of operations of the run that threads have taken to send so far.
    pub fn asked(&self) -> u64 {
        self.flags.operations - self.left.load(Ordering::Relaxed)
    }

    /// Takes one of the run's remaining operations. False if there is none.
    fn take_one(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0 || self.stop.load(Ordering::Relaxed)
    }
}

/// Runs one client thread until no operations are left or the run is stopped, on one connection after the other. Sends
/// on `told` the record of its operations, or the reason why the run cannot continue.
pub fn run(shared: &Arc<Shared>, role: Role, address: SocketAddr, told: &Sender<Result<Log, String>>) {
    let mut client = Client::new(shared, role, address);
    let mut unreachable_since: Option<Timestamp> = None;
    while !shared.is_over() && client.has_keys() {
        let now = shared.clock.now().monotonic;
        match client.session() {
            Ok(()) | Err(Broken::Used) => unreachable_since = None,
            Err(Broken::Unused(error)) => {
                if now.since(*unreachable_since.get_or_insert(now)) > UNREACHABLE {
                    shared.stop.store(true, Ordering::Relaxed);
                    let _ = told.send(Err(format!("cannot reach {address}: {error}")));
                    return;
                }
                client.pause(REFUSED_PAUSE_MS);
            }
        }
    }
    let _ = told.send(Ok(client.log));
}

/// The way in which a connection was lost before its thread had finished.
enum Broken {
    /// The connection failed before a command of the run was sent on it.
    Unused(io::Error),
    Used,
}

struct Client<'a> {
    shared: &'a Shared,
    role: Role,
    address: SocketAddr,
    random: Random,
    writes_per_mille: u64,
    speaks_resp3: bool,
    log: Log,
    batch: Batch,
    waiting: VecDeque<(Asked, Timestamp, u32)>,
}

impl<'a> Client<'a> {
    fn new(shared: &'a Shared, role: Role, address: SocketAddr) -> Self {
        let number = match role {
            Role::Client(number) => number,
            Role::Around(store) => u64::MAX - store as u64,
        };
        // Half of the connections only read, if the other half can write enough for all.
        let average = shared.flags.writes_per_mille;
        let only_reads = number & 2 != 0 && average <= 500;
        let writes_per_mille = match only_reads {
            true => 0,
            false if average <= 500 && shared.flags.connections > 2 => average * 2,
            false => average,
        };
        Self {
            shared,
            role,
            address,
            random: Random::new(shared.flags.seed.wrapping_mul(0x1_0001).wrapping_add(number)),
            writes_per_mille,
            speaks_resp3: number & 1 != 0,
            log: Log::default(),
            batch: Batch::default(),
            waiting: VecDeque::new(),
        }
    }

    fn has_keys(&self) -> bool {
        let mut keys = self.shared.workload.keys.iter();
        match self.role {
            Role::Client(_) => true,
            Role::Around(store) => keys.any(|key| key.stores.contains(&store)),
        }
    }

    /// Runs one connection until no operations are left, it is closed on purpose, or it is lost. The error
    /// says how the connection was lost.
    fn session(&mut self) -> Result<(), Broken> {
        let mut line = self.open().map_err(Broken::Unused)?;
        let session = self.shared.sessions.fetch_add(1, Ordering::Relaxed);
        let mut number = 0;
        let ended = self.converse(&mut line, session, &mut number);
        // The connection is closed first, so that commands on the next one come later.
        drop(line);
        for (asked, at, number) in self.waiting.drain(..) {
            let occasion = Occasion { asked: at, answered: Timestamp::MAX, session, number };
            self.log.lose(&asked, occasion);
        }
        if let Err(error) = &ended
            && error.kind() == ErrorKind::InvalidData
        {
            self.log.broken.push(format!("connection {session}: {error}"));
        }
        match ended {
            Err(error) if number == 0 => Err(Broken::Unused(error)),
            Err(_) => Err(Broken::Used),
            Ok(()) => Ok(()),
        }
    }

    fn open(&self) -> io::Result<Line> {
        let mut line = Line::open(self.address)?;
        if self.speaks_resp3 && matches!(self.role, Role::Client(_)) {
            line.ask_firmly(&["HELLO", "3"])?;
        }
        Ok(line)
    }

    fn converse(&mut self, line: &mut Line, session: u32, number: &mut u32) -> io::Result<()> {
        loop {
            let is_over = self.shared.is_over();
            if is_over && self.waiting.is_empty() {
                return Ok(());
            }
            // The next batch often leaves before all of the last one is answered.
            if !is_over && self.waiting.len() as u64 <= self.random.below(self.shared.flags.pipeline) / 2 {
                self.fill();
                let at = self.shared.clock.now().monotonic;
                for asked in self.batch.asked.drain(..) {
                    self.waiting.push_back((asked, at, *number));
                    *number += 1;
                }
                line.send(&self.batch.bytes)?;
                if matches!(self.role, Role::Client(_))
                    && self.random.per_mille(self.shared.flags.closes_per_mille)
                {
                    return Ok(());
                }
            }
            if self.waiting.is_empty() {
                continue;
            }
            line.receive()?;
            let answered = self.shared.clock.now().monotonic;
            let mut was_refused = false;
            while let Some(reply) = line.next_reply()? {
                let Some((asked, at, number)) = self.waiting.pop_front() else {
                    return Err(io::Error::new(ErrorKind::InvalidData, "a reply to nothing"));
                };
                let occasion = Occasion { asked: at, answered, session, number };
                was_refused |= self.log.answer(&asked, reply, self.shared.workload.run, occasion);
            }
            if was_refused {
                self.pause(REFUSED_PAUSE_MS);
            }
            if let Role::Around(_) = self.role {
                self.pause(AROUND_PAUSE_MS);
            }
        }
    }

    /// Fills the next batch with random commands for the operations that it takes from the run: a random number of them
    /// up to `--pipeline` (one if weir is bypassed), and no more once the batch has 48 KiB.
    fn fill(&mut self) {
        self.batch.bytes.clear();
        let wanted = match self.role {
            Role::Client(_) => self.random.between(1, self.shared.flags.pipeline),
            Role::Around(_) => 1,
        };
        for _ in 0..wanted {
            if self.batch.bytes.len() > BATCH_BYTES || !self.shared.take_one() {
                break;
            }
            let (workload, batch, random) = (&self.shared.workload, &mut self.batch, &mut self.random);
            match self.role {
                Role::Around(store) => workload.around(store, batch, random),
                Role::Client(_) if random.per_mille(self.writes_per_mille) => workload.write(batch, random),
                Role::Client(_) => workload.read(batch, random),
            }
        }
    }

    /// Pauses the thread for a random time of at most `ms_max` milliseconds.
    fn pause(&mut self, ms_max: u64) {
        thread::park_timeout(Duration::from_micros(self.random.below(ms_max * 1_000)));
    }
}
