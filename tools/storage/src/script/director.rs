//! Decides what happens to each request of a scripted store, and when: by its behaviour, phases, servers and
//! random errors.

use std::net::SocketAddr;
use std::time::Duration;

use super::behaviour::{Behaviour, WorkClass};
use super::cluster::{Cluster, ClusterNodes, ClusterSession, Verdict};
use super::distribution::fraction;
use super::phases::Phases;
use super::reads::KeyNumber;
use super::stations::Stations;
use super::tally::Tally;
use weir::protocol::command::{self, Effect};
use weir::protocol::{Argument, Arguments, ReplyScanner, reply};
use weir::store::Session;
use weir::values::Random;
use weir::values::{ClientId, Timestamp};

/// Maximum number of requests that wait for a server of the scripted store; further ones are refused.
/// `QUEUE_BYTES_MAX` bounds the bytes that they hold.
const QUEUE_MAX: usize = 1_000_000;
const QUEUE_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Commands that read only the expiry of a key; they are not counted as reads of its value.
const ASK_FOR_ITS_END: [&str; 4] = ["ttl", "pttl", "expiretime", "pexpiretime"];

/// The settings that a scripted store starts with.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// The scripted store's behaviour outside of phases.
    pub behaviour: Behaviour,
    /// Changes of the store's behaviour at set times, counted from the start of the process.
    pub phases: Phases,
    /// The seed of all random service times and errors of the scripted store.
    pub seed: u64,
    /// True if clients may change the script with `STORAGE` commands.
    pub scriptable: bool,
    /// The cluster of which the store plays a node; `None` for a plain store.
    pub cluster: Option<ClusterNodes>,
    /// The address that clients connect to, by which the store finds the node that it plays among those of
    /// the cluster; `None` if unknown.
    pub listens: Option<SocketAddr>,
}

/// A request that waits for one of the scripted store's servers: its bytes (`frame`), and where its
/// arguments are in them (`places`).
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) visit: Visit,
    pub(crate) frame: Vec<u8>,
    pub(crate) places: Vec<Argument>,
}

/// The place of a reply: its connection, and its number in the order of that connection's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    index: u32,
    generation: u32,
    pub(crate) number: u64,
}

impl Place {
    pub(crate) fn new(client: ClientId, number: u64) -> Self {
        Self { index: client.index, generation: client.generation, number }
    }

    pub(crate) fn client(self) -> ClientId {
        ClientId { index: self.index, generation: self.generation }
    }
}

/// A request in flight (waiting or in service): the place of its reply, and the keys that it reads, for the
/// counts of reads.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Visit {
    pub(crate) place: Place,
    keys: Vec<KeyNumber>,
}

/// The decision on a request whose service starts: execute it, or answer it with an error.
pub(crate) enum Turn {
    Execute(WorkClass),
    /// The request is answered with this error line, without a leading minus, and takes no service time.
    Fail(&'static str),
}

pub(crate) struct Director {
    pub(super) script: Script,
    /// The store's behaviour as set by flags and `STORAGE SET`, which phases of the script change for their
    /// duration.
    pub(super) base: Behaviour,
    current: Behaviour,
    /// The time up to which the beginnings of the script's phases have been handled; `None` before the
    /// first.
    seen: Option<Timestamp>,
    next_edge: Option<Timestamp>,
    outage_until: Timestamp,
    /// True if an outage (all connections are closed) has begun, and the caller has not closed the
    /// connections yet.
    outage_begun: bool,
    pub(super) stations: Stations<Job, Visit>,
    queued_bytes: usize,
    times: Random,
    faults: Random,
    pub(super) tally: Tally,
    pub(super) cluster: Option<Cluster>,
}

impl Director {
    pub(crate) fn new(script: Script) -> Self {
        let mut times = Random::new(script.seed);
        // A generator of its own, so that errors do not change which service times follow.
        let faults = times.fork();
        Self {
            base: script.behaviour.clone(),
            current: script.behaviour.clone(),
            seen: None,
            next_edge: Some(Timestamp::ZERO),
            outage_until: Timestamp::ZERO,
            outage_begun: false,
            stations: Stations::new(script.behaviour.servers),
            queued_bytes: 0,
            times,
            faults,
            tally: Tally::default(),
            cluster: script.cluster.clone().map(Cluster::new),
            script,
        }
    }

    /// Begins and ends phases of the script whose time has come by `now`.
    pub(crate) fn handle_time(&mut self, now: Timestamp) {
        if self.next_edge.is_none_or(|edge| edge > now) {
            return;
        }
        for phase in self.script.phases.begun(self.seen, now) {
            if let Some(stall) = phase.stall {
                self.stations.stall(now, stall);
            }
            if let Some(duration) = phase.duration.filter(|_| phase.outage) {
                self.outage_until = self.outage_until.max(now.after(duration));
                self.outage_begun = true;
            }
        }
        self.seen = Some(now);
        self.next_edge = self.script.phases.next_edge(now);
        self.refresh(now);
    }

    /// Computes the store's current behaviour anew from the set behaviour and the phases of the script that
    /// hold at `now`.
    pub(super) fn refresh(&mut self, now: Timestamp) {
        self.current = self.script.phases.behaviour(&self.base, now);
        self.stations.set_servers(self.current.servers, now);
    }

    pub(super) fn begin_outage(&mut self, now: Timestamp, duration: Duration) {
        self.outage_until = self.outage_until.max(now.after(duration));
        self.outage_begun = true;
    }

    pub(super) fn end_outage(&mut self) {
        self.outage_until = Timestamp::ZERO;
        self.outage_begun = false;
    }

    /// Returns true once after an outage has begun, so that the caller closes all connections. All requests
    /// in flight have then been dropped and counted as lost.
    pub(crate) fn take_outage(&mut self) -> bool {
        if self.outage_begun {
            self.tally.requests_lost += self.stations.clear() as u64;
            self.tally.reads.leave_all();
            self.queued_bytes = 0;
        }
        std::mem::take(&mut self.outage_begun)
    }

    /// Returns whether a new connection may stay open: not during an outage, nor while connections are
    /// refused. Counts those that may not.
    pub(crate) fn accepts(&mut self, now: Timestamp) -> bool {
        let refused = self.current.refuse_connections || now < self.outage_until;
        self.tally.connections_refused += u64::from(refused);
        !refused
    }

    /// Returns the time for which a new connection is not served: bytes from it are kept, and handled
    /// afterwards.
    pub(crate) fn slow_accept(&self) -> Duration {
        self.current.slow_accept
    }

    /// True if a request that arrives now would be served at once, because a server is free and no request
    /// waits.
    pub(crate) fn is_free(&self, now: Timestamp) -> bool {
        self.stations.is_free(now)
    }

    /// Counts a request that has arrived, and the reads of its keys as in flight. `place` is that of its
    /// reply. Returns the request as one in flight.
    pub(crate) fn enter(&mut self, place: Place, arguments: &Arguments<'_>) -> Visit {
        self.tally.requests += 1;
        let mut keys = Vec::new();
        if let Ok(command) = command::recognise(arguments)
            && command.effect == Effect::Read
            && !ASK_FOR_ITS_END.contains(&command.name)
        {
            let reads = &mut self.tally.reads;
            // A request whose keys cannot be found is answered with an error later.
            let _ =
                command.for_each_key(arguments, &mut |index| keys.extend(reads.enter(arguments.at(index))));
        }
        Visit { place, keys }
    }

    /// Ends a request in flight (`visit`): the reads of its keys no longer count as in flight.
    fn leave(&mut self, visit: &Visit) {
        visit.keys.iter().for_each(|key| self.tally.reads.leave(*key));
    }

    /// Queues a request until one of the scripted store's servers is free. The error is the error line for
    /// the client if the request is refused, because too many requests or bytes wait already.
    pub(crate) fn arrive(
        &mut self,
        visit: Visit,
        arguments: Arguments<'_>,
        now: Timestamp,
    ) -> Result<(), &'static str> {
        let bytes = held_bytes(arguments.frame(), arguments.places());
        if self.stations.waiting() >= QUEUE_MAX || self.queued_bytes + bytes > QUEUE_BYTES_MAX {
            self.tally.requests_refused += 1;
            self.leave(&visit);
            return Err("ERR too many requests wait for a server");
        }
        self.queued_bytes += bytes;
        let job = Job { visit, frame: arguments.frame().to_vec(), places: arguments.places().to_vec() };
        self.stations.arrive(job, now);
        self.tally.queue_max = self.tally.queue_max.max(self.stations.waiting());
        Ok(())
    }

    /// Returns the next waiting request whose service has started by `now`, and the time of its start;
    /// `None` if there is none.
    pub(crate) fn next_start(&mut self, now: Timestamp) -> Option<(Job, Timestamp)> {
        let (job, start) = self.stations.next_start(now)?;
        self.queued_bytes -= held_bytes(&job.frame, &job.places);
        Some((job, start))
    }

    /// Decides, for a request whose service starts, whether the cluster node that this store plays would
    /// carry it out. `said` has what the connection sent before (ASKING, READONLY), `holds` tells whether
    /// the store has a key, and `out` takes the reply to a request that the node answers itself. A request
    /// that is not executed is done, and takes no service time.
    pub(crate) fn judge(
        &mut self,
        visit: &Visit,
        said: &mut ClusterSession,
        session: &Session,
        arguments: &Arguments<'_>,
        holds: &mut dyn FnMut(&[u8]) -> bool,
        out: &mut Vec<u8>,
    ) -> Verdict {
        let Some(cluster) = &mut self.cluster else { return Verdict::Execute };
        let verdict = cluster.judge(said, session, arguments, holds, out);
        if verdict != Verdict::Execute {
            self.tally.served += 1;
            self.leave(visit);
        }
        verdict
    }

    /// Decides whether a request whose service starts at `start` is executed or answered with a random
    /// scripted error; counts it as served.
    pub(crate) fn turn_of(&mut self, visit: &Visit, arguments: &Arguments<'_>, start: Timestamp) -> Turn {
        let command = command::recognise(arguments).ok();
        let class = WorkClass::of(command);
        self.tally.served += 1;
        if let Some(command) = command {
            self.tally.note_command(command.id());
        }
        if class == WorkClass::Control {
            return Turn::Execute(class);
        }
        if let Some(errors) = self.current.errors
            && fraction(&mut self.faults) <= errors.share()
        {
            self.tally.errors_injected += 1;
            self.leave(visit);
            return Turn::Fail(errors.kind().line());
        }
        visit.keys.iter().for_each(|key| self.tally.reads.note_read(*key, start));
        Turn::Execute(class)
    }

    /// Draws the service time of a request, and adds the time for its bytes, for those of its reply, and for
    /// the reply's elements; commands about the connection or the server (class control) get no such
    /// additions.
    pub(crate) fn service_time(&mut self, class: WorkClass, request_bytes: usize, reply: &[u8]) -> Duration {
        let time = self.current.service_time[class as usize].sample(&mut self.times);
        if class == WorkClass::Control {
            return time;
        }
        let bytes = (request_bytes + reply.len()) as u128;
        let for_bytes = self.current.per_kib.as_nanos() * bytes / 1024;
        let for_rows = self.current.per_row.as_nanos() * self.rows(reply);
        let time =
            time + Duration::from_nanos((for_bytes + for_rows).min(u128::from(u32::MAX) * 1_000) as u64);
        self.tally.note_service_time(time);
        time
    }

    /// Occupies one of the scripted store's servers (places for requests in service) from `start` for the
    /// service time. Returns true, and occupies none, if that time is zero, so that the request is done at
    /// once.
    pub(crate) fn serve(&mut self, visit: Visit, start: Timestamp, service: Duration) -> bool {
        let busy = self.stations.in_service() + 1;
        self.tally.concurrency_max = self.tally.concurrency_max.max(busy);
        if service.is_zero() {
            self.leave(&visit);
            return true;
        }
        self.stations.serve(visit, start, service);
        false
    }

    pub(crate) fn next_finished(&mut self, now: Timestamp) -> Option<Place> {
        let visit = self.stations.next_finished(now)?;
        self.leave(&visit);
        Some(visit.place)
    }

    /// Ends a request in flight and counts it as lost, because its client disconnected before the reply.
    pub(crate) fn note_lost(&mut self, visit: &Visit) {
        self.leave(visit);
        self.tally.requests_lost += 1;
    }

    /// True if any request to the scripted store waits or is in service.
    pub(crate) fn is_busy(&self) -> bool {
        self.stations.waiting() + self.stations.in_service() > 0
    }

    /// Returns the next time at which a request starts or ends, or a phase of the script begins or ends;
    /// `None` if there is none.
    pub(crate) fn next_event(&self) -> Option<Timestamp> {
        [self.stations.next_event(), self.next_edge].into_iter().flatten().min()
    }

    fn rows(&self, reply: &[u8]) -> u128 {
        if self.current.per_row.is_zero() {
            return 0;
        }
        // An array has its length in its first line: scanning all of a long one would take the store's only
        // thread a millisecond.
        if let Some(elements) = reply::elements(reply) {
            return elements.left() as u128;
        }
        let scanned = ReplyScanner::default().scan(reply);
        scanned.ok().flatten().map_or(0, |scanned| u128::from(scanned.rows))
    }
}

fn held_bytes(frame: &[u8], places: &[Argument]) -> usize {
    frame.len() + size_of_val(places)
}
