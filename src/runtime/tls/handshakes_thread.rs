//! Takes clients in that speak TLS, and shakes hands with them: a signature takes as long as hundreds of requests, and no shard has
//! that time. Who has shaken hands goes to a shard and stays there, as if it had come to it. Handshakes are bounded in number, in time
//! and by the second; a thread of little weight, so that shards come first where CPUs are scarce.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustls::ServerConnection;
use rustls::pki_types::UnixTime;
use slab::Slab;

use super::credentials::{Credential, Credentials};
use super::crowd::{Pace, makes_way};
use super::files::Terms;
use super::handshake::{Shaking, Step};
use super::session::{SecureClient, Session};
use super::tally::Tally;
use crate::control::Handshake;
use crate::runtime::clock::{Clock, thread_cpu};
use crate::runtime::driver::Entrance;
use crate::runtime::log;
use crate::runtime::messages::{Mailbox, ToControl, ToShard};
use crate::values::Timestamp;
use crate::values::limits::{TLS_HANDSHAKES_MAX, TLS_IN_TRANSIT_MAX};

/// How often it is looked whose time is over, while there are any.
const LOOKED_AFTER: Duration = Duration::from_millis(50);
/// How long a listener is left alone that failed.
const REST: Duration = Duration::from_millis(50);
/// Clients taken in before others go on.
const ACCEPTS_AT_ONCE: usize = 64;
const EVENTS: usize = 256;
/// What events are about; everything above is the place of a handshake.
const BELL: u64 = 0;
const LISTENERS: u64 = 1;
const HANDSHAKES: u64 = 1 << 32;
/// That so many make way is told once in so long at most.
const CROWD_TOLD: Duration = Duration::from_secs(60);
const NICENESS: i32 = 5;

/// To this thread.
pub(in crate::runtime) enum ToHandshakes {
    /// Other certificates are in force.
    Terms(Arc<Terms>),
    /// Nobody is taken in any more.
    Stop,
}

/// How long one handshake may take, and how many there are in a second.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Rates {
    pub timeout: Duration,
    pub per_second: u32,
}

/// What the thread works with.
pub(in crate::runtime) struct HandshakesThread {
    pub listeners: Vec<(OwnedFd, Entrance)>,
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
    /// Starts it. It ends with the process.
    pub fn start(self) -> io::Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &self.bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let mut work = Work {
            pace: Pace::new(self.rates.per_second, self.clock.now().monotonic),
            epoll,
            shaking: Slab::new(),
            queued: VecDeque::new(),
            resting: None,
            looked: Timestamp::ZERO,
            crowd_told: None,
            credentials: Credentials::default(),
            next_shard: 0,
            own: self,
        };
        for (listener, _) in &work.own.listeners {
            rustix::io::ioctl_fionbio(listener, true)?;
        }
        work.listen()?;
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
    /// Those that wait for their turn, each once; some may be gone by then.
    queued: VecDeque<usize>,
    pace: Pace,
    /// Listeners failed, and are left alone until then.
    resting: Option<Timestamp>,
    looked: Timestamp,
    crowd_told: Option<Timestamp>,
    credentials: Credentials,
    next_shard: usize,
}

impl Work {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut busy = thread_cpu();
        loop {
            events.clear();
            let pause = self.pause().map(timespec);
            let spare = rustix::buffer::spare_capacity(&mut events);
            // Interruptions only make it look around earlier.
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

    /// How long there is nothing to do, unless something happens.
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
        // What is read is only a count of letters.
        let _ = rustix::io::read(&self.own.bell, &mut [0_u8; 8]);
        while let Ok(letter) = self.own.letters.try_recv() {
            match letter {
                ToHandshakes::Terms(terms) => {
                    self.own.terms = terms;
                    self.credentials.suspect_all();
                }
                ToHandshakes::Stop => {
                    self.leave_listeners_alone();
                    self.own.listeners.clear();
                    self.shaking.clear();
                    self.queued.clear();
                }
            }
        }
    }

    fn listen(&self) -> io::Result<()> {
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
                // Who was to be taken in has left.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // No descriptors left, say.
                Err(_) => return self.rest(),
            }
        }
    }

    /// Where another process has them too, closing them would not be enough.
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
        if self.shaking.len() >= TLS_HANDSHAKES_MAX {
            let all = self.shaking.iter().map(|(place, shaking)| (place, shaking.address, shaking.since));
            if let Some(place) = makes_way(all) {
                self.note(place, Step::Failed(Handshake::Crowded));
                self.tell_of_crowd();
            }
        }
        let since = self.now();
        let place = self.shaking.insert(Shaking::new(socket, entrance, address, since));
        let data = EventData::new_u64(HANDSHAKES + place as u64);
        if epoll::add(&self.epoll, &self.shaking[place].socket, data, EventFlags::IN).is_err() {
            self.note(place, Step::Failed(Handshake::Left));
        }
    }

    /// What a handshake waits for now.
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
                // Closing it takes it out of the others' sight, too.
                self.remove(place);
                return;
            }
            Step::Done => return self.hand_over(place),
        };
        let data = EventData::new_u64(HANDSHAKES + place as u64);
        let _ = epoll::modify(&self.epoll, &self.shaking[place].socket, data, flags);
    }

    fn remove(&mut self, place: usize) -> Shaking {
        // Its place may be another's soon, who waits for nothing yet.
        self.queued.retain(|queued| *queued != place);
        self.shaking.remove(place)
    }

    /// Those whose turn it is, as many as may be at once.
    fn give_turns(&mut self) {
        while !self.queued.is_empty() && self.pace.take(self.now()) {
            let Some(place) = self.queued.pop_front() else { return };
            let Some(shaking) = self.shaking.get_mut(place) else { continue };
            let step = shaking.answer(&self.own.terms);
            self.note(place, step);
        }
    }

    /// Those whose time is over, and listeners that have rested.
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
            let _ = self.listen();
        }
    }

    fn hand_over(&mut self, place: usize) {
        let shaking = self.remove(place);
        let entrance = shaking.entrance;
        let Some((socket, connection, terms)) = shaking.into_parts() else { return };
        let _ = epoll::delete(&self.epoll, &socket);
        let tally = Arc::clone(&self.own.tally);
        // Rings wait for sockets themselves.
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

    /// What a client has shown of itself.
    fn credential(&mut self, connection: &ServerConnection, terms: &Arc<Terms>) -> Option<Arc<Credential>> {
        let chain = connection.peer_certificates()?;
        let now = Duration::from_millis(self.own.clock.now().unix_ms);
        let credential = self.credentials.note(chain, UnixTime::since_unix_epoch(now));
        // The files have changed since it was answered.
        if !Arc::ptr_eq(terms, &self.own.terms) {
            self.credentials.suspect(chain);
        }
        Some(credential)
    }

    /// Closes connections whose certificates would be refused by now.
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
                "TLS: {TLS_HANDSHAKES_MAX} handshakes are under way: for each further one, the oldest of the address that \
                 has most is given up (weir_tls_handshakes_total)"
            ),
        ));
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
