//! Accepts clients that speak TLS, and does their handshakes on a thread of its own, since a signature takes
//! as long as hundreds of requests. A client whose handshake is done is given to a shard and stays there.
//! Handshakes are bounded in number, in time and per second. The thread has a low priority, so that shards
//! come first where CPUs are scarce.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustls::pki_types::UnixTime;
use rustls::{HandshakeKind, ServerConnection};
use slab::Slab;

use super::credentials::{Credential, Credentials};
use super::crowd::{Pace, UnderWay, makes_way};
use super::files::Terms;
use super::handshake::{Shaking, Step};
use super::session::{SecureClient, Session};
use super::tally::Tally;
use crate::control::Handshake;
use crate::runtime::clock::{Clock, thread_cpu, timespec};
use crate::runtime::driver::Entrance;
use crate::runtime::listeners::Doors;
use crate::runtime::log;
use crate::runtime::messages::{Mailbox, ToControl, ToShard};
use crate::values::Timestamp;
use crate::values::limits::{TLS_HANDSHAKES_MAX, TLS_IN_TRANSIT_MAX};

/// The interval at which TLS handshakes that take too long are looked for, while any handshake is in
/// progress.
const LOOKED_AFTER: Duration = Duration::from_millis(50);
/// The pause before the listening sockets are tried again, after accepting a client or waiting for clients
/// (epoll) has failed.
const REST: Duration = Duration::from_millis(50);
/// Maximum number of clients accepted in a row, before their TLS handshakes go on.
const ACCEPTS_AT_ONCE: usize = 64;
/// Maximum number of events that are read from the kernel (epoll) in one round of the thread's loop; the rest
/// are read in the next.
const EVENTS: usize = 256;
/// The tag of events (epoll) that announce a message to this thread; listening sockets are tagged by number
/// from `LISTENERS` on, and handshakes by index from `HANDSHAKES` on.
const BELL: u64 = 0;
const LISTENERS: u64 = 1;
const HANDSHAKES: u64 = 1 << 32;
/// The least time between two log lines about TLS handshakes that were given up in favour of new ones.
const CROWD_TOLD: Duration = Duration::from_secs(60);
/// The niceness of the thread for TLS handshakes: shards, which have 0, come first where CPUs are scarce.
const NICENESS: i32 = 5;

/// A message to the thread that does TLS handshakes with clients.
pub(in crate::runtime) enum ToHandshakes {
    /// New certificates are in force, with which later TLS handshakes are done, and clients' certificates are
    /// verified again.
    Terms(Arc<Terms>),
    /// An order to begin accepting clients, because the previous process, from which this one takes over, has
    /// stopped accepting, or has not done so in 5 s.
    Listen,
    /// An order to accept no more clients, and to drop the handshakes in progress.
    Stop,
}

/// The time limit of one TLS handshake with a client, after which it is given up, and the maximum number of
/// handshakes per second in this process; further clients wait until their first message is answered.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Rates {
    pub timeout: Duration,
    pub per_second: u32,
}

/// The listeners, settings and channels of the thread that does TLS handshakes with clients.
pub(in crate::runtime) struct HandshakesThread {
    pub listeners: Doors,
    /// True if the thread accepts clients from the start; false if it waits for `ToHandshakes::Listen`, until
    /// the process that this one takes over from has stopped accepting.
    pub listens: bool,
    pub terms: Arc<Terms>,
    pub rates: Rates,
    pub shards: Vec<Mailbox<ToShard>>,
    pub control: Mailbox<ToControl>,
    pub tally: Arc<Tally>,
    pub letters: Receiver<ToHandshakes>,
    pub bell: OwnedFd,
    pub clock: Clock,
}

impl HandshakesThread {
    /// Starts the thread that accepts clients with TLS and does their handshakes, which ends with the process.
    /// Fails if the kernel lets it watch no sockets, or no thread can be started.
    pub fn start(self) -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &self.bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let mut work = Work::new(self, epoll);
        for (listener, _) in &work.own.listeners {
            rustix::io::ioctl_fionbio(listener, true)?;
        }
        if work.own.listens {
            work.try_to_listen()?;
        }
        std::thread::Builder::new()
            .name("weir-tls".to_owned())
            .spawn(move || {
                let _ = rustix::process::nice(NICENESS);
                work.run();
            })
            .map(|_| ())
    }
}

struct Work {
    own: HandshakesThread,
    epoll: OwnedFd,
    shaking: Slab<Shaking>,
    /// The indices of handshakes whose client's first message (hello) waits to be answered, because
    /// signatures per second are bounded; each is in the queue at most once.
    queued: VecDeque<usize>,
    pace: Pace,
    /// The time until which listeners pause because accepting failed; none while they accept.
    resting: Option<Timestamp>,
    /// Limiter of the log lines about clients that could not be accepted for want of resources.
    want: log::WantComplaints,
    looked: Timestamp,
    crowd_told: Option<Timestamp>,
    credentials: Credentials,
    next_shard: usize,
}

impl Work {
    fn new(own: HandshakesThread, epoll: OwnedFd) -> Self {
        Self {
            pace: Pace::new(own.rates.per_second, own.clock.now().monotonic),
            epoll,
            shaking: Slab::new(),
            queued: VecDeque::new(),
            resting: None,
            want: log::WantComplaints::default(),
            looked: Timestamp::ZERO,
            crowd_told: None,
            credentials: Credentials::default(),
            next_shard: 0,
            own,
        }
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut busy = thread_cpu();
        loop {
            events.clear();
            let pause = self.pause().map(timespec);
            let spare = rustix::buffer::spare_capacity(&mut events);
            // An interruption only makes the thread look around earlier.
            let _ = epoll::wait(&self.epoll, spare, pause.as_ref());
            for event in &events {
                self.handle(*event);
            }
            self.give_turns();
            self.look_after();
            self.look_at_credentials();
            self.own.tally.note_under_way(self.shaking.len());
            let now = thread_cpu();
            self.own.tally.note_busy(now.saturating_sub(std::mem::replace(&mut busy, now)));
        }
    }

    fn now(&self) -> Timestamp {
        self.own.clock.now().monotonic
    }

    /// Returns the longest time that the thread may sleep unless an event comes; `None` for no limit.
    fn pause(&self) -> Option<Duration> {
        if self.credentials.are_suspected() {
            return Some(Duration::ZERO);
        }
        let now = self.now();
        let turn = (!self.queued.is_empty()).then(|| self.pace.next().since(now));
        let look = (!self.shaking.is_empty() || self.resting.is_some()).then_some(LOOKED_AFTER);
        turn.into_iter().chain(look).min()
    }

    fn handle(&mut self, event: Event) {
        match event.data.u64() {
            BELL => self.hear(),
            place if place >= HANDSHAKES => {
                let place = (place - HANDSHAKES) as usize;
                if let Some(shaking) = self.shaking.get_mut(place) {
                    let step = shaking.go_on();
                    self.note(place, step);
                }
            }
            listener => self.accept((listener - LISTENERS) as usize),
        }
    }

    fn hear(&mut self) {
        // Reading resets the eventfd; the value read, a count of messages, is of no use.
        let _ = rustix::io::read(&self.own.bell, &mut [0_u8; 8]);
        while let Ok(letter) = self.own.letters.try_recv() {
            match letter {
                ToHandshakes::Terms(terms) => {
                    self.own.terms = terms;
                    self.credentials.suspect_all();
                }
                ToHandshakes::Listen => self.listen(),
                ToHandshakes::Stop => {
                    self.leave_listeners_alone();
                    self.own.listeners.clear();
                    self.shaking.clear();
                    self.queued.clear();
                }
            }
        }
    }

    /// Begins to wait for clients on the listening sockets. If that fails, most likely because the kernel has
    /// no memory left, tries again after a pause.
    fn listen(&mut self) {
        if self.try_to_listen().is_err() {
            self.rest();
        }
    }

    fn try_to_listen(&self) -> io::Result<()> {
        for (number, (listener, _)) in self.own.listeners.iter().enumerate() {
            epoll::add(&self.epoll, listener, EventData::new_u64(LISTENERS + number as u64), EventFlags::IN)?;
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some((listener, entrance)) = self.own.listeners.get(listener) else { return };
            let entrance = *entrance;
            match rustix::net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((socket, address)) => {
                    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                    let address = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
                    self.take_in(socket.into(), entrance, address);
                }
                Err(Errno::AGAIN) => return,
                // The client that was to be accepted has left.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Most likely no descriptors are left, so the thread pauses before it accepts again.
                Err(error) => {
                    let now = self.now();
                    if let Some(line) = self.want.complain(log::NOT_ACCEPTED, &error.into(), now) {
                        self.own.control.post(ToControl::Said(log::Kind::Want, line));
                    }
                    return self.rest();
                }
            }
        }
    }

    /// Stops waiting for events of the listening sockets. Closing them would not be enough if another process
    /// has them open too: the kernel would still report their events here.
    fn leave_listeners_alone(&self) {
        for (listener, _) in &self.own.listeners {
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    fn rest(&mut self) {
        self.leave_listeners_alone();
        self.resting = Some(self.now().after(REST));
    }

    fn take_in(&mut self, socket: TcpStream, entrance: Entrance, address: IpAddr) {
        let since = self.now();
        if self.shaking.len() >= TLS_HANDSHAKES_MAX {
            self.tell_of_crowd();
            let all = self.shaking.iter().map(|(key, shaking)| UnderWay {
                key,
                address: shaking.address,
                since: shaking.since,
                awaits_client_since: shaking.awaits_client_since(),
            });
            let Some(place) = makes_way(all, since) else {
                // The new one is given up: its socket is closed.
                return self.own.tally.note_client(Handshake::Crowded);
            };
            self.note(place, Step::Failed(Handshake::Crowded));
        }
        let place = self.shaking.insert(Shaking::new(socket, entrance, address, since));
        let data = EventData::new_u64(HANDSHAKES + place as u64);
        if epoll::add(&self.epoll, &self.shaking[place].socket, data, EventFlags::IN).is_err() {
            self.note(place, Step::Failed(Handshake::Left));
        }
    }

    /// Acts on the event that the TLS handshake at index `place` waits for next: changes the socket events
    /// that the thread waits for, queues the handshake, removes it, or passes the client to a shard.
    fn note(&mut self, place: usize, step: Step) {
        let flags = match step {
            Step::Wait => EventFlags::IN,
            Step::Send => EventFlags::OUT,
            Step::Turn => {
                if !self.queued.contains(&place) {
                    self.queued.push_back(place);
                }
                EventFlags::empty()
            }
            Step::Failed(outcome) => {
                self.own.tally.note_client(outcome);
                // Closing the socket also removes it from epoll.
                self.remove(place);
                return;
            }
            Step::Done => return self.hand_over(place),
        };
        let data = EventData::new_u64(HANDSHAKES + place as u64);
        let _ = epoll::modify(&self.epoll, &self.shaking[place].socket, data, flags);
    }

    fn remove(&mut self, place: usize) -> Shaking {
        // The index may soon belong to another handshake, which does not wait for a turn yet.
        self.queued.retain(|queued| *queued != place);
        self.shaking.remove(place)
    }

    /// Answers the first messages (hellos) of the clients that have waited longest, as many as the rate of
    /// signatures allows now.
    fn give_turns(&mut self) {
        while !self.queued.is_empty() && self.pace.take(self.now()) {
            let Some(place) = self.queued.pop_front() else { return };
            let now = self.now();
            let Some(shaking) = self.shaking.get_mut(place) else { continue };
            let step = shaking.answer(&self.own.terms, now);
            self.note(place, step);
        }
    }

    /// Gives up TLS handshakes that took too long, and accepts again on listening sockets whose pause after a
    /// failure is over.
    fn look_after(&mut self) {
        let now = self.now();
        if now.since(self.looked) < LOOKED_AFTER {
            return;
        }
        self.looked = now;
        let timeout = self.own.rates.timeout;
        let over = self.shaking.iter().filter(|(_, shaking)| now.since(shaking.since) >= timeout);
        let over: Vec<usize> = over.map(|(place, _)| place).collect();
        over.into_iter().for_each(|place| self.note(place, Step::Failed(Handshake::TimedOut)));
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            self.listen();
        }
    }

    fn hand_over(&mut self, place: usize) {
        let shaking = self.remove(place);
        let entrance = shaking.entrance;
        let Some((socket, connection, terms)) = shaking.into_parts() else { return };
        let _ = epoll::delete(&self.epoll, &socket);
        let tally = Arc::clone(&self.own.tally);
        // The ring waits for sockets itself, so they must be blocking.
        if socket.set_nonblocking(false).is_err() || !tally.begin_transit(TLS_IN_TRANSIT_MAX) {
            return tally.note_client(Handshake::Crowded);
        }
        tally.note_client(Handshake::Done);
        let name = Session::name(&connection);
        let credential = self.credential(&connection, &terms);
        let session = Box::new(Session::of_client(connection, credential, &tally));
        let client = Box::new(SecureClient { socket: socket.into(), session, entrance, name });
        self.next_shard = (self.next_shard + 1) % self.own.shards.len();
        self.own.shards[self.next_shard].post(ToShard::SecureClient(client));
    }

    /// Records the certificate that a client has shown in a completed handshake, which was done with the
    /// configuration `terms`. Returns the state that all connections with this certificate share; `None` if
    /// the client showed none.
    fn credential(&mut self, connection: &ServerConnection, terms: &Arc<Terms>) -> Option<Arc<Credential>> {
        let chain = connection.peer_certificates()?;
        debug_assert_ne!(
            connection.handshake_kind(),
            Some(HandshakeKind::Resumed),
            "a resumed session would count as a certificate that was verified now"
        );
        let now = Duration::from_millis(self.own.clock.now().unix_ms);
        let credential = self.credentials.note(chain, UnixTime::since_unix_epoch(now));
        // The files have changed since the hello was answered, so the certificate must be verified again.
        if !Arc::ptr_eq(terms, &self.own.terms) {
            self.credentials.suspect(chain);
        }
        Some(credential)
    }

    /// Verifies again some clients' certificates that are queued for it; after the last of them, orders
    /// shards to close connections whose certificates are no longer accepted.
    fn look_at_credentials(&mut self) {
        let withdrawn = self.credentials.look(self.own.terms.verifier.as_deref());
        if let Some(withdrawn) = withdrawn.filter(|withdrawn| *withdrawn > 0) {
            self.own.shards.iter().for_each(|shard| shard.post(ToShard::Withdrawn));
            self.own.control.post(ToControl::Said(
                log::Kind::Tls,
                format!(
                    "TLS: {withdrawn} of the certificates that clients have shown would be refused by now: their connections \
                     are closed (weir_clients_expelled_total{{reason=\"revoked\"}})"
                ),
            ));
        }
    }

    fn tell_of_crowd(&mut self) {
        let now = self.now();
        if self.crowd_told.is_some_and(|told| now.since(told) < CROWD_TOLD) {
            return;
        }
        self.crowd_told = Some(now);
        self.own.control.post(ToControl::Said(
            log::Kind::Tls,
            format!(
                "TLS: {TLS_HANDSHAKES_MAX} handshakes are under way: for each further one, one of the network that has most, \
                 one whose client has been silent for long, or the further one itself is given up \
                 (weir_tls_handshakes_total)"
            ),
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;

    use super::super::files::TlsFiles;
    use super::*;

    fn pause(time: Duration) {
        rustix::event::poll(&mut [], Some(&timespec(time))).expect("nothing interrupts it");
    }

    #[test]
    fn listeners_that_fail_again_after_their_pause_are_tried_until_they_work() {
        let sample = |name| Path::new(env!("CARGO_MANIFEST_DIR")).join("src/runtime/tls/samples").join(name);
        let (certificate, key) = (sample("localhost.crt"), sample("localhost.key"));
        let files = TlsFiles { certificate, key, client_ca: None, client_crl: None };
        let (control, _heard, _bell_of_control) = Mailbox::for_executor().expect("an eventfd");
        let (_own, letters, bell) = Mailbox::for_executor().expect("an eventfd");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let thread = HandshakesThread {
            listeners: vec![(listener.into(), Entrance::Resp)],
            listens: true,
            terms: files.load().expect("they are right"),
            rates: Rates { timeout: Duration::from_secs(1), per_second: 1 },
            shards: Vec::new(),
            control,
            tally: Arc::default(),
            letters,
            bell,
            clock: Clock::start(),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let mut work = Work::new(thread, epoll);
        work.listen();
        assert_eq!(work.resting, None);
        // The kernel refuses to add sockets that it has already.
        work.resting = Some(Timestamp::ZERO);
        pause(LOOKED_AFTER);
        work.look_after();
        assert!(work.resting.is_some(), "the next attempt is planned");
        pause(REST);
        work.look_after();
        assert_eq!(work.resting, None, "and it works");
    }
}
