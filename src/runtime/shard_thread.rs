//! A core: a glommio executor (pinned, where each CPU has one), whose main task turns the ring, the mesh and
//! the shard.
//!
//! ```text
//!  turn:  batches in ─> letters from control ─> completions ─> turn end ─> actions, sends ─> batches out ─> submit
//!         │                                                                       (at the end of a stretch of work)
//!         └── nothing happened? say that this core sleeps, look once more, await the eventfd
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::allocator;
use super::clock::{Clock, thread_cpu};
use super::driver::{Application, Connector, Driver, Entrance};
use super::executor::Lifeline;
use super::log;
use super::mesh::{Departure, Mesh};
use super::messages::{Mailbox, Moved, ToControl, ToShard};
use super::park::{Parking, Rest, SHALLOW_SLEEP, sleep_between_looks};
use super::survey::Survey;
use super::tls::Tally;
use crate::control::{EventLoopFigures, ShardReport};
use crate::protocol::{Room, Segment};
use crate::shard::{Address, Doubt, Readiness, Shard};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Loss, Owner, Timestamp};

/// The time (30 us) for which a core that waits until the other cores have handled all bytes that came before a
/// request (a `PUBLISH`) checks them in every turn (round of its loop); later it sleeps between checks. Most
/// cores need less time.
const SURVEYED_AWAKE: Duration = Duration::from_micros(30);
/// During a takeover, the interval at which a shard checks whether clients that may soon be ready can be handed
/// over to the other process: such as clients that wait for a reply.
const MOVING_PERIOD: Duration = Duration::from_millis(1);
/// During a takeover, the interval at which a shard checks whether any of its clients can be handed over to
/// the other process. Clients in a transaction or with subscriptions may be many, and may not be ready for
/// long.
const MOVING_ALL_PERIOD: Duration = Duration::from_millis(50);

/// The clients that a shard still has to hand over to another process, during a takeover.
#[derive(Default)]
struct Moving {
    /// The clients that may soon be ready to be handed over, such as those that wait for a reply.
    soon: Vec<ClientId>,
    /// The time at which the clients in `soon` are checked next.
    due: Timestamp,
    /// The time at which all clients of the shard are checked next.
    all_due: Timestamp,
}

/// The number of clients of all shards, the bytes of memory that they take, and the limits on both. The counts
/// change only when a client comes or goes, or when a shard has summed up the memory of its clients.
#[derive(Clone, Debug)]
pub(super) struct Door {
    open: Arc<AtomicUsize>,
    clients_max: usize,
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Door {
    pub fn new(clients_max: usize, bytes_max: usize) -> Self {
        Self { open: Arc::default(), clients_max, bytes: Arc::default(), bytes_max }
    }
}

/// A shard together with the limits that all shards share, on the number of clients and on the bytes that these
/// hold. The loop that serves a core's sockets passes all events to it.
struct Guarded {
    shard: Shard,
    door: Door,
    inside: usize,
    /// Bytes of memory that this shard's clients took when they were last summed up. The sum over all shards
    /// contains them.
    bytes: usize,
    control: Mailbox<ToControl>,
    /// The time of the last log line about a failed TLS handshake with a store; none before the first.
    complained: Option<Timestamp>,
    /// Limiter of the log lines about connections that could not be opened for want of resources (open files,
    /// memory).
    want: log::WantComplaints,
}

/// The least time between two log lines of a shard about failed TLS handshakes with stores.
const COMPLAINTS_APART: Duration = Duration::from_secs(1);

impl Guarded {
    /// Logs that `what` failed with this error, if the error says that resources (open files, memory) are used
    /// up; at most once a second.
    fn complain_of_want(&mut self, what: &str, error: &io::Error, now: Now) {
        if let Some(line) = self.want.complain(what, error, now.monotonic) {
            self.control.post(ToControl::Said(log::Kind::Want, line));
        }
    }

    /// Subtracts this shard's clients that have disconnected from the count over all shards.
    fn count_clients(&mut self) {
        let now_inside = self.shard.clients_open();
        if now_inside < self.inside {
            self.door.open.fetch_sub(self.inside - now_inside, Ordering::Relaxed);
        }
        self.inside = now_inside;
    }

    /// Adds a new connection to the number of clients of all shards. True if it must be refused, because
    /// `clients_max` clients are connected and the shard could close none in its favour.
    fn is_full(&mut self) -> bool {
        self.count_clients();
        if self.door.open.load(Ordering::Relaxed) >= self.door.clients_max && self.shard.make_room() {
            self.count_clients();
        }
        self.door.open.fetch_add(1, Ordering::Relaxed) >= self.door.clients_max
    }

    /// Counts the client for which [`Guarded::is_full`] was called, and which the shard has registered since,
    /// as one of this shard's. If the shard has closed the client on the spot, the client is subtracted again,
    /// like all others that have disconnected.
    fn count_newcomer(&mut self) {
        self.inside += 1;
        self.count_clients();
    }

    /// Adopts a client that another process hands over during a takeover, with the bytes of its next request
    /// that were read there. If `clients_max` clients are connected and none can be closed in its favour, the
    /// client gets an error instead, and is closed.
    fn adopt(&mut self, driver: &mut Driver, moved: Moved, now: Now) {
        let Moved { socket, session } = moved;
        let id = match self.is_full() {
            true if session.http => self.shard.handle_http_client_refused(self.door.clients_max, now),
            true => self.shard.handle_client_refused(self.door.clients_max, now),
            false => self.shard.handle_client_moved(&session, now),
        };
        self.count_newcomer();
        driver.adopt_of(socket, Owner::Client(id), self);
        if !session.held.is_empty() {
            self.shard.handle_client_held(id, &session, now);
        }
    }

    /// Hands clients that have no request in flight to the successor process: all of the shard's clients when
    /// `moving` says that they are due, else those that may be ready soon. Sets the times at which clients are
    /// checked next.
    fn hand_over(&mut self, moving: &mut Moving, driver: &mut Driver, now: Now) {
        if moving.all_due <= now.monotonic {
            moving.soon = self.shard.client_ids();
            moving.all_due = now.monotonic.after(MOVING_ALL_PERIOD);
        }
        moving.soon.retain(|id| self.hand_over_one(*id, driver, now));
        moving.due = if moving.soon.is_empty() { moving.all_due } else { now.monotonic.after(MOVING_PERIOD) };
    }

    /// Hands a client to the successor process if it has no request in flight. If it waits in a blocking
    /// command, has the store end the command, so that the client can be handed over by a later call. An idle
    /// TLS client is closed instead, since its keys cannot leave this process; one that waits in a blocking
    /// command stays here until that is over. Returns true if the client may be able to move soon.
    fn hand_over_one(&mut self, id: ClientId, driver: &mut Driver, now: Now) -> bool {
        let owner = Owner::Client(id);
        match self.shard.readiness(id) {
            Readiness::Owed => driver.detain(owner, self),
            Readiness::Unfinished | Readiness::Stays => {
                driver.let_go(owner, self);
                return false;
            }
            // The call goes on in this process until it is over, because the TLS keys cannot leave.
            Readiness::Waits if driver.is_secure(owner) => {
                driver.let_go(owner, self);
                return false;
            }
            Readiness::Waits => {
                driver.detain(owner, self);
                if driver.is_detained(owner) {
                    self.shard.withdraw_waiting(id, now);
                }
            }
            // The TLS keys of the client exist only in this process.
            Readiness::Ready if driver.is_secure(owner) => self.shard.handle_client_end(id, now),
            Readiness::Ready => {
                driver.detain(owner, self);
                if let Some(socket) = driver.part_with(owner) {
                    let session = self.shard.take_session(id, now);
                    self.control.post(ToControl::Moved(Box::new(Moved { socket, session })));
                    return false;
                }
            }
        }
        true
    }

    /// Updates the sum of the bytes of memory taken by the clients of all shards, and has this shard close its
    /// largest clients if the sum exceeds the limit (`bytes_max`).
    fn count_bytes(&mut self) {
        let bytes = self.shard.clients_bytes();
        if bytes == self.bytes && bytes <= self.shard.clients_bytes_share() {
            return;
        }
        let excess = self.sum_of_bytes().saturating_sub(self.door.bytes_max);
        if excess > 0 {
            self.shard.handle_memory_exceeded(excess);
            self.sum_of_bytes();
        }
    }

    /// Adds the change of the bytes of memory that this shard's clients take to the sum over all shards, and
    /// returns the sum.
    fn sum_of_bytes(&mut self) -> usize {
        let bytes = self.shard.clients_bytes();
        // A decrease is added as a number that wraps around.
        let change = bytes.wrapping_sub(std::mem::replace(&mut self.bytes, bytes));
        self.door.bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change)
    }
}

impl Application for Guarded {
    fn handle_accepted(&mut self, entrance: Entrance, now: Now) -> Owner {
        let full = self.is_full();
        let clients_max = self.door.clients_max;
        let id = match entrance {
            Entrance::Resp if full => self.shard.handle_client_refused(clients_max, now),
            Entrance::Resp => self.shard.handle_client_opened(now),
            Entrance::Http if full => self.shard.handle_http_client_refused(clients_max, now),
            Entrance::Http => self.shard.handle_http_client_opened(now),
        };
        self.count_newcomer();
        Owner::Client(id)
    }

    fn note_socket(&mut self, owner: Owner, socket: &OwnedFd) {
        if let Owner::Client(id) = owner {
            self.shard.note_client_address(id, address_of(socket));
        }
    }

    fn note_secure(&mut self, owner: Owner, name: Option<&str>, now: Now) {
        if let Owner::Client(id) = owner {
            self.shard.handle_client_secure(id, name, now);
        }
    }

    fn note_insecure(&mut self, problem: String, now: Now) {
        // At most one message a second, as connections are tried again and again.
        if self.complained.is_none_or(|at| now.monotonic.since(at) >= COMPLAINTS_APART) {
            self.complained = Some(now.monotonic);
            self.control.post(ToControl::Said(log::Kind::Tls, problem));
        }
    }

    fn note_not_accepted(&mut self, error: &io::Error, now: Now) {
        self.complain_of_want(log::NOT_ACCEPTED, error, now);
    }

    fn note_unreachable(&mut self, _owner: Owner, error: &io::Error, now: Now) {
        self.complain_of_want("a connection to a store could not be opened", error, now);
    }

    fn handle_connected(&mut self, owner: Owner, now: Now) {
        if let Owner::Link(connection, generation) = owner {
            self.shard.handle_link_connected(connection, generation, now);
        }
    }

    fn handle_received(&mut self, owner: Owner, bytes: &[u8], now: Now) -> usize {
        match owner {
            Owner::Client(id) => self.shard.handle_client_bytes(id, bytes, now),
            Owner::Link(connection, generation) => {
                self.shard.handle_link_bytes(connection, generation, bytes, now)
            }
        }
    }

    fn lend_room(&mut self, owner: Owner) -> Option<Room> {
        match owner {
            Owner::Client(id) => self.shard.lend_client_room(id),
            Owner::Link(connection, generation) => self.shard.lend_link_room(connection, generation),
        }
    }

    fn handle_filled(&mut self, owner: Owner, buffer: Vec<u8>, received: usize, now: Now) -> usize {
        match owner {
            Owner::Client(id) => self.shard.handle_client_filled(id, buffer, received, now),
            Owner::Link(connection, generation) => {
                self.shard.handle_link_filled(connection, generation, buffer, received, now)
            }
        }
    }

    fn handle_end(&mut self, owner: Owner, now: Now) {
        match owner {
            Owner::Client(id) => self.shard.handle_client_end(id, now),
            Owner::Link(..) => self.handle_lost(owner, Loss::ByPeer, now),
        }
    }

    fn handle_end_ahead(&mut self, owner: Owner, now: Now) {
        if let Owner::Client(id) = owner {
            self.shard.handle_client_end_ahead(id, now);
        }
    }

    fn handle_lost(&mut self, owner: Owner, loss: Loss, now: Now) {
        match owner {
            Owner::Client(id) => self.shard.handle_client_lost(id),
            Owner::Link(connection, generation) => {
                self.shard.handle_link_lost(connection, generation, loss, now);
            }
        }
    }

    fn handle_sending(&mut self, owner: Owner, now: Now) {
        self.shard.handle_sending(owner, now);
    }

    fn handle_transmitted(&mut self, owner: Owner, segment: Segment, now: Now) {
        self.shard.handle_transmitted(owner, segment, now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.shard.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.shard.poll_transmit()
    }
}

/// Returns the addresses of both ends of a client's connection, as texts in the form that Redis prints them.
fn address_of(socket: &OwnedFd) -> Address {
    let socket = socket2::SockRef::from(socket);
    let in_words = |address: io::Result<socket2::SockAddr>| match address {
        Ok(address) => match (address.as_socket(), address.as_pathname()) {
            (Some(address), _) => address.to_string().into_boxed_str(),
            (None, path) => {
                format!("{}:0", path.map_or_else(String::new, |path| path.display().to_string())).into()
            }
        },
        // The connection is gone already.
        Err(_) => "?:0".into(),
    };
    let local = socket.local_addr();
    let is_unix = local.as_ref().is_ok_and(socket2::SockAddr::is_unix);
    let local = in_words(local);
    // The client's end of a Unix socket has no path of its own.
    let peer = if is_unix { local.clone() } else { in_words(socket.peer_addr()) };
    Address { peer, local, is_unix }
}

/// Data that a core's thread runs with: the shard with its sockets, the rings of messages to other shards, and
/// mailboxes.
pub(super) struct ShardThread<C> {
    pub shard: Shard,
    pub driver: Driver,
    pub mesh: Mesh,
    pub connector: C,
    pub letters: Receiver<ToShard>,
    pub control: Mailbox<ToControl>,
    /// The channel on which the shard reports that its map of the cluster may be outdated; none without a
    /// cluster.
    pub doubts: Option<Sender<Doubt>>,
    pub door: Door,
    pub clock: Clock,
    pub busy_poll: Duration,
    /// The counters of TLS; none without TLS.
    pub tally: Option<Arc<Tally>>,
    pub lifeline: Lifeline,
}

impl<C: Connector> ShardThread<C> {
    /// Runs the shard's loop until the control executor posts `ToShard::Stop`.
    pub async fn run(self) -> io::Result<()> {
        let Self {
            shard,
            mut driver,
            mut mesh,
            connector,
            letters,
            control,
            doubts,
            door,
            clock,
            busy_poll,
            tally,
            lifeline,
        } = self;
        let mut guarded = Guarded {
            shard,
            door,
            inside: 0,
            bytes: 0,
            control: control.clone(),
            complained: None,
            want: log::WantComplaints::default(),
        };
        let mut parking = Parking::new(driver.ring.wait_handle())?;
        let mut draining = false;
        // The shard drains as soon as nobody can be accepted any more.
        let mut closing = false;
        let mut moving: Option<Moving> = None;
        let mut is_heard = true;
        let mut departure = Departure::default();
        let mut survey = Survey::default();
        let mut figures = EventLoopFigures::default();
        let mut last_work = clock.now().monotonic;
        mesh.announce(driver.ring.doorbell()?);
        lifeline.note_started();
        loop {
            let now = clock.now();
            let mut work = 0;
            while let Some(batch) = mesh.receive() {
                guarded.shard.handle_batch(batch, now);
                work += 1;
            }
            while let Ok(letter) = letters.try_recv() {
                work += 1;
                match letter {
                    ToShard::Quotas(quotas) => guarded.shard.handle_quotas(quotas, now),
                    ToShard::Grants(grants) => guarded.shard.handle_grants(&grants, now),
                    ToShard::StoreVersion(version) => guarded.shard.handle_store_version(version),
                    ToShard::StoreMoved(backend) => guarded.shard.handle_store_moved(backend, now),
                    ToShard::Slots(slots) => guarded.shard.handle_slots(slots, now),
                    ToShard::SlotsConfirmed(at) => guarded.shard.handle_slots_confirmed(at),
                    ToShard::Replicas(states) => guarded.shard.handle_replicas(&states),
                    ToShard::SecureClient(client) => {
                        if let Some(tally) = &tally {
                            tally.end_transit();
                        }
                        driver.adopt_secure(*client, &mut guarded, now);
                    }
                    ToShard::Withdrawn => {
                        for id in driver.withdrawn_clients() {
                            guarded.shard.handle_client_revoked(id, now);
                        }
                    }
                    ToShard::Report => {
                        figures.cpu = thread_cpu();
                        let report = ShardReport::of(&guarded.shard, figures);
                        control.post(ToControl::Report(guarded.shard.id(), Box::new(report)));
                    }
                    ToShard::Clients(asked) => {
                        let told = guarded.shard.handle_clients_asked(&asked, now);
                        control.post(ToControl::Clients(guarded.shard.id(), told));
                    }
                    ToShard::Explain { query, ticket } => {
                        let told = guarded.shard.handle_explain(&query.tenant, &query.words, now);
                        control.post(ToControl::Explained { ticket, told });
                    }
                    ToShard::Answer(to, reply) => guarded.shard.handle_answer(to, &reply, now),
                    ToShard::Drain => {
                        (draining, closing) = (true, true);
                        driver.take_the_last(&mut guarded, now);
                    }
                    ToShard::HandOver => {
                        draining = true;
                        moving = Some(Moving::default());
                        driver.stop_listening();
                    }
                    ToShard::Listen => driver.listen(),
                    ToShard::Pause(asked) => {
                        guarded.shard.handle_clients_asked(&asked, now);
                    }
                    ToShard::Adopt(moved) => guarded.adopt(&mut driver, *moved, now),
                    ToShard::Stop => return Ok(()),
                }
            }
            work += driver.handle_completions(&mut guarded, now);
            while let Some(peer) = driver.poll_unwoken() {
                mesh.ring_again(peer);
            }
            // A client accepted before this point is served like any other.
            if closing && !driver.is_listening() {
                closing = false;
                guarded.shard.refuse_newcomers();
                driver.drain();
            }
            if guarded.shard.awaits_others()
                && let Some(by) = survey.look(&mesh, clock.now().monotonic)
            {
                guarded.shard.handle_others_handled(by);
            }
            guarded.shard.handle_turn_end(now);
            mesh.end_turn();
            guarded.count_bytes();
            if work == 0 {
                guarded.shard.handle_quiet();
            }
            driver.carry_out(&mut guarded, &connector, now);
            if let Some(moving) = moving.as_mut().filter(|moving| moving.due <= now.monotonic) {
                guarded.hand_over(moving, &mut driver, now);
            }
            guarded.count_clients();
            while let Some(report) = guarded.shard.poll_report() {
                control.post(ToControl::Spent(report));
            }
            while let Some(line) = guarded.shard.poll_line() {
                control.post(ToControl::Line(line));
            }
            if let Some(doubts) = &doubts {
                while let Some(doubt) = guarded.shard.poll_doubt() {
                    // If the channel is full, a further report says nothing new.
                    let _ = doubts.try_send(doubt);
                }
            }
            while let Some((to, question)) = guarded.shard.poll_question() {
                control.post(ToControl::Ask(to, question));
            }
            let blocked = mesh.push_again(now.monotonic);
            if departure.is_due(work, now.monotonic) && blocked.is_none() {
                while let Some((to, batch)) = guarded.shard.poll_batch() {
                    mesh.send(to, batch);
                }
            }
            for (peer, doorbell) in mesh.sleepers() {
                driver.ring.wake(peer, doorbell);
                figures.doorbells += 1;
            }
            driver.ring.submit()?;
            if moving.is_some() && is_heard && !driver.is_listening() {
                is_heard = false;
                control.post(ToControl::Deaf);
            }
            let is_empty =
                draining && !closing && guarded.shard.clients_open() == 0 && !guarded.shard.owes_orphans();
            if is_empty && !driver.is_listening() && !driver.is_lingering() {
                draining = false;
                moving = None;
                control.post(ToControl::Drained(guarded.shard.id()));
            }
            if let Some(moving) = &moving {
                driver.wake_at(moving.due, now);
            }
            let surveyed = guarded.shard.awaits_others().then(|| survey.lasts(now.monotonic));
            let looks_on = surveyed.is_some_and(|lasts| lasts < SURVEYED_AWAKE);
            if work > 0 || guarded.shard.is_busy() || looks_on {
                figures.turns += u64::from(work > 0);
                last_work = now.monotonic;
                continue;
            }
            if driver.ring.has_completions()
                || (!busy_poll.is_zero() && now.monotonic.since(last_work) < busy_poll)
            {
                continue;
            }
            if !mesh.park() {
                continue;
            }
            figures.sleeps += 1;
            let waited = [blocked, surveyed].into_iter().flatten().min();
            if waited.is_some() || now.monotonic.since(last_work) < SHALLOW_SLEEP {
                let longest = waited.map_or(SHALLOW_SLEEP, sleep_between_looks);
                let pause = guarded.shard.poll_deadline().map_or(longest, |at| at.since(now.monotonic));
                driver.ring.submit_and_wait(Some(pause.min(longest)))?;
            } else {
                if let Some(at) = guarded.shard.poll_deadline() {
                    driver.wake_at(at, now);
                    driver.ring.submit()?;
                }
                if guarded.shard.take_tidied() {
                    allocator::collect();
                }
                if driver.ring.start_waiting() {
                    if letters.is_empty()
                        && parking.sleep().await == Rest::Ended
                        && driver.ring.has_completions()
                    {
                        figures.overslept += 1;
                    }
                    driver.ring.stop_waiting();
                }
            }
            mesh.unpark();
        }
    }
}
