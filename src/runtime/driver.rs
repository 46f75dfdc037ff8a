//! The sockets of one core: turns completions of the ring into `handle_*` calls of the application, and
//! actions that it polls from the application into operations of the ring.
//!
//! A socket is forgotten only when no operation is in flight on it, so a completion always finds its socket;
//! the ring then closes its descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::SocketFlags;

use super::farewell::{self, LastWords, Lingering};
use super::listen::BACKLOG;
use super::reception::{Reception, Stop, Turn, Want};
use super::ring::{Completion, ReceivedBuffer, Ring, Token};
use super::tls::{Heard, SecureClient, Session};
use crate::control::Handshake;
use crate::protocol::{Room, Segment};
use crate::values::limits::RECEIVE_BUFFERS;
use crate::values::time::Now;
use crate::values::{Action, BackendId, ClientId, Loss, Owner, Timestamp};

/// The pause before the core accepts again on a listening socket on which accepting has failed (no descriptors
/// left, say).
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Of the sockets that wait for a receive buffer, the maximum number that get one in a turn (round) of the
/// core's loop: half as many as there are buffers, so that the other half is left to sockets that do not have
/// to wait.
const TURNS_AT_ONCE: usize = RECEIVE_BUFFERS as usize / 2;

/// The protocol (RESP or HTTP) that clients speak on the listening socket where a connection was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrance {
    Resp,
    Http,
}

/// The deciding code that a driver's sockets belong to: a shard, the embedded engine, or a tool.
pub(super) trait Application {
    /// Registers a newly accepted client connection, and returns the identity by which the application names
    /// it. `entrance` is the protocol that the client speaks.
    fn handle_accepted(&mut self, entrance: Entrance, now: Now) -> Owner;
    /// Handles that a new client connection uses TLS. `_name` is the name in the client's certificate, if it
    /// showed one.
    fn note_secure(&mut self, _owner: Owner, _name: Option<&str>, _now: Now) {}
    /// Handles that a connection to a store does not get a TLS session: the handshake failed, the store closed
    /// the connection right after it, or no session could be made. `_problem` is the reason in words.
    fn note_insecure(&mut self, _problem: String, _now: Now) {}
    /// Lends the socket of a new client connection to the application, so that the peer's address can be read
    /// from it.
    fn note_socket(&mut self, _owner: Owner, _socket: &OwnedFd) {}
    fn handle_connected(&mut self, owner: Owner, now: Now);
    /// Handles bytes that were received on a connection. If they end within a message, returns how many bytes
    /// of that message are known to be still missing; 0 if unknown.
    fn handle_received(&mut self, owner: Owner, bytes: &[u8], now: Now) -> usize;
    /// Lends a buffer into which the missing part of a large message is received. `None` if received bytes
    /// are to be passed to `handle_received` as usual.
    fn lend_room(&mut self, _owner: Owner) -> Option<Room> {
        None
    }
    /// Takes back the buffer that `lend_room` lent, with `received` bytes added to it. Returns the number of
    /// bytes that are known to be still missing from the message.
    fn handle_filled(&mut self, _owner: Owner, _buffer: Vec<u8>, _received: usize, _now: Now) -> usize {
        0
    }
    /// Handles that the peer of a connection has ended its sending side.
    fn handle_end(&mut self, owner: Owner, now: Now);
    /// Handles that the input of a client ends behind bytes that are not received yet, because the application
    /// has paused reading: the peer has ended its sending side, the connection has failed, or weir drains.
    fn handle_end_ahead(&mut self, _owner: Owner, _now: Now) {}
    /// Handles that a connection to a backend could not be opened, with the error; `handle_lost` follows.
    fn note_unreachable(&mut self, _owner: Owner, _error: &io::Error, _now: Now) {}
    /// Handles that accepting a connection failed, with the error; the driver accepts again after 50 ms
    /// (`ACCEPT_REST`).
    fn note_not_accepted(&mut self, _error: &io::Error, _now: Now) {}
    /// Handles that a connection failed, or could not be opened; `loss` says whether the peer closed or
    /// refused it, or it was lost in another way.
    fn handle_lost(&mut self, owner: Owner, loss: Loss, now: Now);
    /// Handles that the peer has accepted a part of a large send, which shows that the connection makes
    /// progress.
    fn handle_sending(&mut self, _owner: Owner, _now: Now) {}
    fn handle_transmitted(&mut self, owner: Owner, segment: Segment, now: Now);
    fn poll_action(&mut self) -> Option<Action>;
    fn poll_transmit(&mut self) -> Option<(Owner, Segment)>;
}

/// The part of a driver that knows the backends' addresses and TLS settings: it creates the socket and the TLS
/// session of each connection to a backend.
pub(super) trait Connector {
    /// Creates a socket to a backend. Returns it with the address to connect it to, or with `None` if it is
    /// connected already (the embedded engine). The error counts like a failed connection.
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<socket2::SockAddr>)>;
    /// Makes the TLS session for a connection to a backend; `None` if the connection is not encrypted, and an
    /// error in words if no session can be made.
    fn secure(&self, _backend: BackendId) -> Option<Result<Session, String>> {
        None
    }
}

struct Socket {
    owner: Owner,
    reception: Reception,
    sending: bool,
    connecting: bool,
    closing: bool,
    /// Number of bytes of the segment being sent that earlier send operations have sent already.
    sent: usize,
    /// The TLS session on the socket; none if the connection is not encrypted.
    tls: Option<Box<Session>>,
    /// The reads that are left on this client's socket while weir drains (before it ends); none if weir does
    /// not drain, or there is nothing more to read.
    last_words: Option<LastWords>,
    /// True if the socket, once weir has closed it, stays open until the peer has ended its side too.
    lingers: bool,
}

impl Socket {
    fn is_busy(&self) -> bool {
        self.reception.is_busy() || self.sending || self.connecting
    }
}

/// The way in which the driver closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// An orderly close of a connection: data that the kernel has accepted still arrives at the peer.
    Orderly,
    /// A reset of a connection: data that has not been sent yet is dropped.
    Reset,
    /// A handover of a connection: it goes on in another process, and only this process's descriptor is
    /// closed.
    Given,
}

/// A listener that is being closed, while its last accept operation is still in flight.
#[derive(Clone, Copy, Debug)]
struct Former {
    listener: Token,
    entrance: Entrance,
    /// True if clients that wait to be accepted on the listener are accepted before it closes.
    takes_rest: bool,
}

pub(super) struct Driver {
    pub ring: Ring,
    /// Sockets, indexed by the token that the ring gives each.
    sockets: Vec<Option<Socket>>,
    listeners: Vec<(Token, Entrance)>,
    /// True once [`Driver::listen`] was called, so that the driver accepts on its listening sockets.
    listens: bool,
    /// Listeners that no longer accept and wait for their last accept operation to end.
    former: Vec<Former>,
    /// Listening sockets that failed (no descriptors left, say), each with the time at which the driver accepts
    /// on it again.
    resting: Vec<(Token, Timestamp)>,
    completions: Vec<Completion>,
    /// Cores that the kernel failed to wake, so that the wake-up is tried again.
    unwoken: Vec<usize>,
    /// Sockets that wait for a receive buffer, because buffers ran out; each will receive once, and is in the
    /// queue at most once.
    waiting: VecDeque<Token>,
    turn: Turn,
    /// The number of the last turn (round) of the core's loop in which a socket found no receive buffer; None if
    /// none ever did.
    starved_in: Option<u32>,
    client_sockets: Vec<Option<Token>>,
    link_sockets: Vec<Option<Token>>,
    /// The time of the earliest timer that is known to be set in the ring and has not fired yet; None if none
    /// is known to be set.
    wake_at: Option<Timestamp>,
    lingering: Lingering,
    /// True while weir drains before its end, and bytes that clients have already sent are still being read.
    drains: bool,
    /// The time at which the present turn (round) of the core's loop began. Sockets that are closed in it, and
    /// stay open until their peers end their side, do so for at most a second from then on.
    began: Timestamp,
    /// The time at which those sockets that are about to be closed (while weir drains, or until the peer has
    /// ended its side) were last checked.
    parted: Timestamp,
    /// A buffer for decrypted bytes, reused for all sockets.
    plain: Vec<u8>,
}

impl Driver {
    pub fn new(mut ring: Ring, listeners: Vec<(OwnedFd, Entrance)>) -> Self {
        let listeners: Vec<(Token, Entrance)> =
            listeners.into_iter().map(|(listener, entrance)| (ring.adopt(listener), entrance)).collect();
        Self {
            ring,
            sockets: Vec::new(),
            listeners,
            listens: false,
            former: Vec::new(),
            resting: Vec::new(),
            completions: Vec::new(),
            unwoken: Vec::new(),
            waiting: VecDeque::new(),
            turn: Turn::default(),
            starved_in: None,
            client_sockets: Vec::new(),
            link_sockets: Vec::new(),
            wake_at: None,
            lingering: Lingering::new(),
            drains: false,
            began: Timestamp::ZERO,
            parted: Timestamp::ZERO,
            plain: Vec::new(),
        }
    }

    /// Starts accepting on all sockets for clients. A socket that is only bound begins to listen first.
    pub fn listen(&mut self) {
        let Self { listeners, ring, listens, .. } = self;
        *listens = true;
        for (listener, _) in listeners.iter() {
            // Without effect on a socket that listens already. If it fails, so does the accept operation.
            let _ = rustix::net::listen(ring.descriptor(*listener), BACKLOG);
            ring.accept(*listener);
        }
    }

    /// Stops accepting and closes the listening sockets. Clients that wait to be accepted are left to another
    /// process that has the same sockets; without one, the kernel resets their connections.
    pub fn stop_listening(&mut self) {
        for (listener, entrance) in std::mem::take(&mut self.listeners) {
            if self.accepts(listener) {
                self.ring.cancel_accept(listener);
                self.former.push(Former { listener, entrance, takes_rest: false });
            }
            // The kernel would go on queueing connections that nobody answers, so the listeners are closed as
            // well.
            self.ring.release(listener);
        }
        self.resting.clear();
    }

    /// Stops accepting and closes the listening sockets, but first accepts every client that already waits to
    /// be accepted. Sockets that did not accept yet are only closed, because another process still accepts on
    /// them.
    pub fn take_the_last(&mut self, application: &mut impl Application, now: Now) {
        if !self.listens {
            return self.stop_listening();
        }
        for (listener, entrance) in std::mem::take(&mut self.listeners) {
            if self.accepts(listener) {
                // The accept operation under way ends first, so that no client is accepted out of turn.
                self.ring.cancel_accept(listener);
                self.former.push(Former { listener, entrance, takes_rest: true });
            } else {
                self.take_rest(listener, entrance, application, now);
            }
        }
        self.resting.clear();
    }

    /// True if an accept operation of this listening socket is in flight.
    fn accepts(&self, listener: Token) -> bool {
        self.listens && !self.resting.iter().any(|(resting, _)| *resting == listener)
    }

    /// Accepts every client that waits to be accepted on this listening socket, then closes it.
    fn take_rest(
        &mut self,
        listener: Token,
        entrance: Entrance,
        application: &mut impl Application,
        now: Now,
    ) {
        // All shards share the socket of --unix, and with it the mode that is changed here: one that set it back would
        // let another one wait in its accept for ever.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // A blocking accept would stop the core. The loop is bounded by the backlog.
        if rustix::io::ioctl_fionbio(self.ring.descriptor(listener), true).is_ok() {
            for _ in 0..=BACKLOG {
                let listener = self.ring.descriptor(listener);
                // The accepted socket must be blocking, since the ring is to wait on it.
                let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else { break };
                self.adopt(socket, entrance, application, now);
            }
            // Another process may have the same socket.
            let _ = rustix::io::ioctl_fionbio(self.ring.descriptor(listener), false);
        }
        self.ring.release(listener);
    }

    /// True if connections may still come in: listeners accept, or their last accept operation is in flight.
    pub fn is_listening(&self) -> bool {
        !self.listeners.is_empty() || !self.former.is_empty()
    }

    /// Handles everything that has completed in the core's `io_uring`. Returns the amount of work: the number
    /// of completions other than finished sends, and of sockets that still wait for a receive buffer.
    pub fn handle_completions(&mut self, application: &mut impl Application, now: Now) -> usize {
        self.began = now.monotonic;
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.reap(&mut completions);
        let number = self.turn.number.wrapping_add(1);
        let starved = self.starved_in.is_some_and(|last| number.wrapping_sub(last) <= 1);
        self.turn = Turn { number, starved };
        let mut count = 0;
        for completion in completions.drain(..) {
            count += usize::from(!matches!(completion, Completion::Sent { .. }));
            self.handle(completion, application, now);
        }
        self.completions = completions;
        for _ in 0..self.waiting.len().min(TURNS_AT_ONCE) {
            let token = self.waiting.pop_front().expect("counted");
            let want = self.socket(token).reception.handle_turn();
            self.carry_on(token, want, application);
        }
        if self.drains || !self.lingering.is_empty() {
            self.part(application, now);
        }
        count + self.waiting.len()
    }

    /// Checks the sockets that are about to be closed (while weir drains, or until the peer has ended its
    /// side), at most once in 5 ms, and closes those whose input was read to its end, or whose peer has ended
    /// its side.
    fn part(&mut self, application: &mut impl Application, now: Now) {
        let due = self.parted.after(farewell::LOOKED_AFTER);
        if now.monotonic >= due {
            self.parted = now.monotonic;
            if self.drains {
                self.hear_last_words(application, now);
            }
            self.lingering.look(now.monotonic);
        }
        self.wake_at(self.parted.after(farewell::LOOKED_AFTER), now);
    }

    /// Begins to drain, before the process ends: the bytes that each client's socket holds now are read and
    /// handled, and only then is the client reported to the application as ended.
    pub fn drain(&mut self) {
        self.drains = true;
        self.lingering.make_room_for_all();
        for socket in self.sockets.iter_mut().flatten() {
            let is_client = matches!(socket.owner, Owner::Client(_));
            socket.last_words = (is_client && !socket.closing).then(LastWords::new);
        }
    }

    fn hear_last_words(&mut self, application: &mut impl Application, now: Now) {
        self.drains = false;
        for (token, socket) in self.sockets.iter_mut().enumerate() {
            let Some(socket) = socket else { continue };
            let Some(last_words) = &mut socket.last_words else { continue };
            if socket.closing || last_words.are_over(self.ring.descriptor(token as Token)) {
                socket.last_words = None;
                application.handle_end(socket.owner, now);
            } else {
                self.drains = true;
                if socket.reception.is_paused() && last_words.note_told() {
                    application.handle_end_ahead(socket.owner, now);
                }
            }
        }
    }

    /// True if there are sockets that stay open until the peer ends its side, although weir is done with
    /// them.
    pub fn is_lingering(&self) -> bool {
        // A socket that will linger may still have an operation in flight, so it is not in the list yet.
        !self.lingering.is_empty() || self.sockets.iter().flatten().any(|socket| socket.lingers)
    }

    /// Carries out the application's actions (connect, close, reset, pause or resume reading) and starts its
    /// sends, until it returns no more: an action may cause sends, and a send may cause further actions. A
    /// segment whose socket is gone goes back to the application as transmitted.
    pub fn carry_out(&mut self, application: &mut impl Application, connector: &impl Connector, now: Now) {
        loop {
            while let Some(action) = application.poll_action() {
                self.act(action, application, connector, now);
            }
            let Some((owner, segment)) = application.poll_transmit() else { return };
            match self.token_of(owner) {
                Some(token) => self.send(token, segment, 0),
                None => application.handle_transmitted(owner, segment, now),
            }
        }
    }

    /// Adopts a connected client socket, as if it had just been accepted on a listener whose clients speak
    /// the protocol `entrance`.
    pub fn adopt(&mut self, fd: OwnedFd, entrance: Entrance, application: &mut impl Application, now: Now) {
        let owner = application.handle_accepted(entrance, now);
        self.adopt_of(fd, owner, application);
    }

    /// Adopts a connected socket of a client that the application has registered already as `owner`.
    pub fn adopt_of(&mut self, fd: OwnedFd, owner: Owner, application: &mut impl Application) {
        application.note_socket(owner, &fd);
        let token = self.insert(fd, owner);
        self.receive(token, application);
    }

    /// Stops receiving on the socket of this owner, so that [`Driver::part_with`] can hand it to another
    /// process once no operation is in flight on it.
    pub fn detain(&mut self, owner: Owner, application: &mut impl Application) {
        if let Some(token) = self.token_of(owner) {
            let want = self.socket(token).reception.detain();
            self.carry_on(token, want, application);
        }
    }

    /// True if [`Driver::detain`] has stopped the socket of this owner, and no more bytes come in on it.
    pub fn is_detained(&mut self, owner: Owner) -> bool {
        self.token_of(owner).is_some_and(|token| {
            let socket = self.socket(token);
            !socket.closing && socket.reception.is_detained()
        })
    }

    /// True if the connection of this owner (client or backend connection) uses TLS.
    pub fn is_secure(&mut self, owner: Owner) -> bool {
        self.token_of(owner).is_some_and(|token| self.socket(token).tls.is_some())
    }

    /// Receives again on the socket of this owner, which [`Driver::detain`] has stopped.
    pub fn let_go(&mut self, owner: Owner, application: &mut impl Application) {
        if let Some(token) = self.token_of(owner) {
            let want = self.socket(token).reception.let_go();
            self.carry_on(token, want, application);
        }
    }

    /// Gives away the socket of this owner, on which [`Driver::detain`] has stopped receiving, for another
    /// process; `None` while an operation is in flight on it. The driver forgets the socket; the connection
    /// goes on.
    pub fn part_with(&mut self, owner: Owner) -> Option<OwnedFd> {
        let token = self.token_of(owner)?;
        let socket = self.socket(token);
        if socket.is_busy() || socket.closing || !socket.reception.is_detained() {
            return None;
        }
        let fd = self.ring.duplicate(token).ok()?;
        self.close(token, Ending::Given);
        Some(fd)
    }

    /// Adopts a client whose TLS handshake is done, and handles the bytes that it has sent since then.
    pub fn adopt_secure(&mut self, client: SecureClient, application: &mut impl Application, now: Now) {
        let owner = application.handle_accepted(client.entrance, now);
        application.note_socket(owner, &client.socket);
        application.note_secure(owner, client.name.as_deref(), now);
        let token = self.insert(client.socket, owner);
        self.socket(token).tls = Some(client.session);
        self.hear(token, &[], application, now);
        if self.sockets[token as usize].is_some() {
            self.receive(token, application);
        }
    }

    /// Returns the connected clients whose TLS certificates are no longer accepted, since the certificate files
    /// have changed; the caller closes them.
    pub fn withdrawn_clients(&self) -> Vec<ClientId> {
        let is_withdrawn = |socket: &&Socket| socket.tls.as_ref().is_some_and(|tls| tls.is_withdrawn());
        let owner = |socket: &Socket| match socket.owner {
            Owner::Client(id) => Some(id),
            Owner::Link(..) => None,
        };
        self.sockets.iter().flatten().filter(is_withdrawn).filter_map(owner).collect()
    }

    /// Returns the number of a core that the kernel failed to wake, and removes it from the list of such
    /// cores; `None` if there is none left.
    pub fn poll_unwoken(&mut self) -> Option<usize> {
        self.unwoken.pop()
    }

    /// Makes sure that the core's `io_uring` has a completion at time `at` or earlier, so that the core, if
    /// it sleeps, wakes by then.
    pub fn wake_at(&mut self, at: Timestamp, now: Now) {
        let armed = self.wake_at.is_some_and(|armed| armed > now.monotonic && armed <= at);
        if !armed {
            self.wake_at = Some(at);
            self.ring.wake_after(at.since(now.monotonic));
        }
    }

    fn handle(&mut self, completion: Completion, application: &mut impl Application, now: Now) {
        match completion {
            Completion::Accepted { listener, socket, ended } => {
                self.accepted(listener, socket, ended, application, now);
            }
            Completion::Received { socket: token, buffer, ended } => {
                let socket = self.sockets[token as usize].as_mut().expect("busy sockets are kept");
                if let Some(last_words) = &mut socket.last_words {
                    last_words.note_received(self.ring.bytes(&buffer).len());
                }
                if socket.tls.is_some() {
                    return self.received_encrypted(token, buffer, ended, application, now);
                }
                let missing = if socket.closing {
                    0
                } else {
                    application.handle_received(socket.owner, self.ring.bytes(&buffer), now)
                };
                self.ring.give_back(buffer);
                let turn = self.turn;
                let reception = &mut socket.reception;
                let want = if ended {
                    reception.handle_received_last(missing)
                } else {
                    reception.handle_received(turn, missing)
                };
                if want != Want::Nothing || ended {
                    self.carry_on(token, want, application);
                }
            }
            Completion::Filled { socket: token, buffer, result } => {
                self.filled(token, buffer, &result, application, now);
            }
            Completion::EndOfStream { socket: token } => self.ended(token, application, now),
            Completion::ReceiveStopped { socket: token, error } => {
                self.receive_stopped(token, &error, application, now);
            }
            Completion::Watched { socket: token, ended } => {
                let socket = self.socket(token);
                let (owner, closing) = (socket.owner, socket.closing);
                let want = socket.reception.handle_watched(ended);
                if ended && !closing {
                    application.handle_end_ahead(owner, now);
                }
                self.carry_on(token, want, application);
            }
            Completion::Sent { socket: token, segment, result } => {
                self.sent(token, segment, &result, application, now);
            }
            Completion::Connected { socket: token, result } => {
                let socket = self.socket(token);
                socket.connecting = false;
                let owner = socket.owner;
                match result {
                    _ if socket.closing => self.forget_if_done(token),
                    Ok(()) => {
                        if socket.tls.is_some() {
                            // A connection with TLS counts as connected after its handshake.
                            self.pump(token);
                        } else {
                            application.handle_connected(owner, now);
                        }
                        self.receive(token, application);
                    }
                    Err(error) => {
                        application.note_unreachable(owner, &error, now);
                        self.lose(token, loss_of(&error), application, now);
                    }
                }
            }
            Completion::Woken => {}
            Completion::TimeUp => {
                // The turn may have begun before the time that the timer was set for.
                self.wake_at = None;
                self.listen_again(now);
            }
            Completion::RungInVain { peer } => self.unwoken.push(peer),
        }
    }

    fn accepted(
        &mut self,
        listener: Token,
        socket: io::Result<OwnedFd>,
        ended: bool,
        application: &mut impl Application,
        now: Now,
    ) {
        let entrance = self.listeners.iter().find(|(own, _)| *own == listener).map(|(_, entrance)| *entrance);
        let listening = entrance.is_some();
        let place = self.former.iter().position(|former| former.listener == listener);
        let former = place.map(|place| self.former[place]);
        let entrance = entrance.or_else(|| former.map(|former| former.entrance));
        match socket {
            Ok(fd) => self.adopt(fd, entrance.unwrap_or(Entrance::Resp), application, now),
            Err(error) if ended && listening => {
                application.note_not_accepted(&error, now);
                self.resting.push((listener, now.monotonic.after(ACCEPT_REST)));
                self.ring.wake_after(ACCEPT_REST);
                return;
            }
            Err(_) => {}
        }
        if ended && listening {
            self.ring.accept(listener);
        }
        if let Some(place) = place.filter(|_| ended) {
            let Former { listener, entrance, takes_rest } = self.former.swap_remove(place);
            if takes_rest {
                self.take_rest(listener, entrance, application, now);
            }
        }
    }

    /// Accepts again on listening sockets whose pause after a failure is over.
    fn listen_again(&mut self, now: Now) {
        let Self { resting, ring, .. } = self;
        resting.retain(|(listener, until)| {
            let rests = *until > now.monotonic;
            if !rests {
                ring.accept(*listener);
            }
            rests
        });
        // A timer may have fired in a turn that began before the pause was over.
        if let Some(next) = self.resting.iter().map(|(_, until)| *until).min() {
            self.wake_at(next, now);
        }
    }

    fn filled(
        &mut self,
        token: Token,
        buffer: Vec<u8>,
        result: &io::Result<usize>,
        application: &mut impl Application,
        now: Now,
    ) {
        let socket = self.socket(token);
        let (owner, closing) = (socket.owner, socket.closing);
        let received = *result.as_ref().unwrap_or(&0);
        let missing = if closing { 0 } else { application.handle_filled(owner, buffer, received, now) };
        match result {
            Ok(0) => self.ended(token, application, now),
            Ok(_) => {
                let want = self.socket(token).reception.handle_received_last(missing);
                self.carry_on(token, want, application);
            }
            Err(error) => self.receive_stopped(token, error, application, now),
        }
    }

    fn received_encrypted(
        &mut self,
        token: Token,
        buffer: ReceivedBuffer,
        ended: bool,
        application: &mut impl Application,
        now: Now,
    ) {
        // Taken out of `self` while the session writes to it, so that both can be borrowed.
        let mut plain = std::mem::take(&mut self.plain);
        let socket = self.sockets[token as usize].as_mut().expect("busy sockets are kept");
        let heard = match &mut socket.tls {
            Some(tls) if !socket.closing => tls.receive(self.ring.bytes(&buffer), &mut plain),
            _ => Ok(Heard::default()),
        };
        self.ring.give_back(buffer);
        self.pass_on(token, heard, &mut plain, application, now);
        self.plain = plain;
        let turn = self.turn;
        let reception = &mut self.socket(token).reception;
        // A missing part of a message cannot be received into a lent buffer, since it must be decrypted
        // first.
        let want = if ended { reception.handle_received_last(0) } else { reception.handle_received(turn, 0) };
        if want != Want::Nothing || ended {
            self.carry_on(token, want, application);
        }
    }

    /// Decrypts received bytes with the TLS session of a socket, and passes the plain bytes to the
    /// application.
    fn hear(&mut self, token: Token, bytes: &[u8], application: &mut impl Application, now: Now) {
        let mut plain = std::mem::take(&mut self.plain);
        if let Some(tls) = &mut self.socket(token).tls {
            let heard = tls.receive(bytes, &mut plain);
            self.pass_on(token, heard, &mut plain, application, now);
        }
        self.plain = plain;
    }

    fn pass_on(
        &mut self,
        token: Token,
        heard: Result<Heard, rustls::Error>,
        plain: &mut Vec<u8>,
        application: &mut impl Application,
        now: Now,
    ) {
        let owner = self.socket(token).owner;
        if matches!(heard, Ok(Heard { ready: true, .. })) {
            application.handle_connected(owner, now);
        }
        if !plain.is_empty() {
            application.handle_received(owner, plain, now);
            plain.clear();
        }
        match heard {
            Ok(Heard { ended, .. }) => {
                self.pump(token);
                if ended && !self.socket(token).closing {
                    application.handle_end(owner, now);
                    if let Owner::Link(..) = owner {
                        self.close(token, Ending::Orderly);
                    }
                }
            }
            Err(error) => {
                self.complain(token, (&error.to_string(), Handshake::Refused), application, now);
                // A client must still receive the alert that says why it is closed; a store may or may not
                // have carried out its requests.
                let loss = if let Owner::Client(_) = owner { Loss::ByPeer } else { Loss::OnTheWay };
                self.lose(token, loss, application, now);
            }
        }
    }

    /// Reports to the application that a connection to a store failed in its TLS handshake, or after it
    /// before the store sent any data; at most once per connection. Does nothing for clients. `problem`
    /// describes the failure, and the handshake is counted with this `outcome`.
    fn complain(
        &mut self,
        token: Token,
        (problem, outcome): (&str, Handshake),
        application: &mut impl Application,
        now: Now,
    ) {
        let complaint = self.socket(token).tls.as_mut().and_then(|tls| tls.complaint(problem, outcome));
        if let Some(complaint) = complaint {
            application.note_insecure(complaint, now);
        }
    }

    /// Sends bytes that the socket's TLS session has encrypted, or can encrypt now, unless a send is in flight
    /// already or the socket is about to be closed.
    fn pump(&mut self, token: Token) {
        let socket = self.socket(token);
        if socket.sending || socket.closing {
            return;
        }
        if let Some(bytes) = socket.tls.as_mut().and_then(|tls| tls.encrypt()) {
            (socket.sending, socket.sent) = (true, 0);
            self.ring.send(token, Segment::Gathered(bytes), 0);
        }
    }

    /// Handles that the peer of a socket has ended its sending side. A backend connection is closed then; a
    /// client's stays open, because replies may still be owed to it.
    fn ended(&mut self, token: Token, application: &mut impl Application, now: Now) {
        if !self.socket(token).closing {
            self.complain(token, ("it closed the connection", Handshake::Left), application, now);
        }
        let socket = self.socket(token);
        socket.reception.handle_end();
        let told = socket.tls.as_ref().is_some_and(|tls| tls.has_ended());
        let (owner, closing) = (socket.owner, socket.closing);
        if !closing && !told {
            application.handle_end(owner, now);
        }
        match owner {
            // A store that sends no more is of no use; a client may still be owed replies.
            Owner::Link(..) if !closing => self.close(token, Ending::Orderly),
            _ => self.forget_if_done(token),
        }
    }

    fn receive_stopped(
        &mut self,
        token: Token,
        error: &io::Error,
        application: &mut impl Application,
        now: Now,
    ) {
        let stop = match error.raw_os_error() {
            Some(libc::ENOBUFS) => Stop::Starved,
            Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN) => Stop::Interrupted,
            _ => {
                let socket = self.socket(token);
                socket.reception.handle_end();
                if socket.closing {
                    self.forget_if_done(token);
                } else {
                    self.complain(token, (&error.to_string(), Handshake::Left), application, now);
                    self.lose(token, loss_of(error), application, now);
                }
                return;
            }
        };
        if stop == Stop::Starved {
            self.turn.starved = true;
            self.starved_in = Some(self.turn.number);
        }
        let want = self.socket(token).reception.handle_stopped(stop);
        self.carry_on(token, want, application);
    }

    fn sent(
        &mut self,
        token: Token,
        segment: Segment,
        result: &io::Result<usize>,
        application: &mut impl Application,
        now: Now,
    ) {
        let socket = self.socket(token);
        socket.sending = false;
        let length = segment.len();
        let sent = socket.sent + result.as_ref().map_or(0, |sent| *sent);
        let (owner, closing) = (socket.owner, socket.closing);
        if socket.tls.is_some() {
            return self.sent_encrypted(token, segment, sent, result, application, now);
        }
        match result {
            Ok(progress) if !closing && sent < length && *progress > 0 => {
                application.handle_sending(owner, now);
                return self.send(token, segment, sent);
            }
            // No byte was lost, so the unsent bytes are sent again.
            Err(error) if !closing && matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {
                return self.send(token, segment, sent);
            }
            _ => {}
        }
        application.handle_transmitted(owner, segment, now);
        if sent < length && !closing {
            let loss = result.as_ref().map_or_else(loss_of, |_| Loss::OnTheWay);
            self.lose(token, loss, application, now);
        } else {
            self.forget_if_done(token);
        }
    }

    fn sent_encrypted(
        &mut self,
        token: Token,
        segment: Segment,
        sent: usize,
        result: &io::Result<usize>,
        application: &mut impl Application,
        now: Now,
    ) {
        let length = segment.len();
        let socket = self.socket(token);
        let (owner, closing) = (socket.owner, socket.closing);
        let Some(tls) = &mut socket.tls else { return };
        let goes_on = match result {
            Ok(progress) => *progress > 0,
            Err(error) => matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)),
        };
        if !closing && sent < length && goes_on {
            (socket.sending, socket.sent) = (true, sent);
            return self.ring.send(token, segment, sent);
        }
        if closing || sent < length {
            if let Some(plain) = tls.give_up() {
                application.handle_transmitted(owner, plain, now);
            }
            if closing {
                return self.forget_if_done(token);
            }
            let loss = result.as_ref().map_or_else(loss_of, |_| Loss::OnTheWay);
            return self.lose(token, loss, application, now);
        }
        let (done, tell) = tls.handle_sent(length);
        if tell {
            application.handle_sending(owner, now);
        }
        if let Some(plain) = done {
            application.handle_transmitted(owner, plain, now);
        }
        self.pump(token);
    }

    fn act(
        &mut self,
        action: Action,
        application: &mut impl Application,
        connector: &impl Connector,
        now: Now,
    ) {
        if let Action::Connect { owner, backend } = action {
            return self.connect(owner, backend, application, connector, now);
        }
        let (Action::Connect { owner, .. }
        | Action::Close(owner)
        | Action::Reset(owner)
        | Action::PauseReading(owner)
        | Action::ResumeReading(owner)
        | Action::Examine(owner)) = action;
        let Some(token) = self.token_of(owner) else { return };
        if matches!(action, Action::Close(_) | Action::Reset(_)) {
            self.complain(token, ("it did not answer in time", Handshake::TimedOut), application, now);
        }
        match action {
            Action::Close(_) => self.close(token, Ending::Orderly),
            Action::Reset(_) => self.close(token, Ending::Reset),
            Action::PauseReading(_) => {
                let want = self.socket(token).reception.pause();
                self.carry_on(token, want, application);
            }
            Action::ResumeReading(_) => {
                let socket = self.socket(token);
                // Before the socket is connected there is nothing to receive.
                let want = if socket.connecting { Want::Nothing } else { socket.reception.resume() };
                self.carry_on(token, want, application);
            }
            Action::Examine(_) if self.ring.is_unacknowledged(token) => {
                self.lose(token, Loss::OnTheWay, application, now);
            }
            Action::Connect { .. } | Action::Examine(_) => {}
        }
    }

    fn connect(
        &mut self,
        owner: Owner,
        backend: BackendId,
        application: &mut impl Application,
        connector: &impl Connector,
        now: Now,
    ) {
        match connector.open(backend) {
            Ok((fd, None)) => {
                let token = self.insert(fd, owner);
                application.handle_connected(owner, now);
                self.receive(token, application);
            }
            Ok((fd, Some(address))) => {
                let session = match connector.secure(backend).transpose() {
                    Ok(session) => session.map(Box::new),
                    Err(problem) => {
                        application.note_insecure(problem, now);
                        return application.handle_lost(owner, Loss::ByPeer, now);
                    }
                };
                let token = self.insert(fd, owner);
                self.socket(token).tls = session;
                self.socket(token).connecting = true;
                self.ring.connect(token, address);
            }
            Err(error) => {
                application.note_unreachable(owner, &error, now);
                application.handle_lost(owner, loss_of(&error), now);
            }
        }
    }

    fn receive(&mut self, token: Token, application: &mut impl Application) {
        let want = self.socket(token).reception.start();
        self.carry_on(token, want, application);
    }

    /// Starts the operation that the decision about receiving on a socket (`want`) asks for: a receive, a place
    /// in the queue of sockets that wait for a receive buffer, a watch, or the cancellation of a receive or
    /// watch. If it asks for nothing, removes the socket if it is closed.
    fn carry_on(&mut self, token: Token, want: Want, application: &mut impl Application) {
        match want {
            Want::Nothing => self.forget_if_done(token),
            Want::Receive => self.ring.receive(token),
            Want::ReceiveOnce => self.ring.receive_once(token),
            Want::Fill => match application.lend_room(self.socket(token).owner) {
                Some(room) => self.ring.receive_into(token, room),
                None => self.ring.receive_once(token),
            },
            Want::Turn => self.waiting.push_back(token),
            Want::Cancel => self.ring.cancel_receive(token),
            Want::Watch => self.ring.watch(token),
            Want::Unwatch => self.ring.cancel_watch(token),
        }
    }

    fn send(&mut self, token: Token, segment: Segment, sent: usize) {
        let socket = self.socket(token);
        if let Some(tls) = &mut socket.tls {
            tls.begin_sending(segment);
            return self.pump(token);
        }
        debug_assert!(!socket.sending, "one segment per socket is under way");
        socket.sending = true;
        socket.sent = sent;
        self.ring.send(token, segment, sent);
    }

    fn lose(&mut self, token: Token, loss: Loss, application: &mut impl Application, now: Now) {
        application.handle_lost(self.socket(token).owner, loss, now);
        self.close(token, if loss == Loss::ByPeer { Ending::Orderly } else { Ending::Reset });
    }

    fn close(&mut self, token: Token, ending: Ending) {
        let socket = self.socket(token);
        if socket.closing {
            return;
        }
        socket.closing = true;
        let has_ended = socket.reception.is_over();
        if socket.reception.close() == Want::Unwatch {
            self.ring.cancel_watch(token);
        }
        let socket = self.socket(token);
        if ending == Ending::Orderly
            && !socket.sending
            && !socket.connecting
            && let Some(tls) = &mut socket.tls
        {
            let farewell = tls.farewell();
            self.ring.send_last(token, &farewell);
        }
        let socket = self.socket(token);
        let (busy, connecting, owner) = (socket.is_busy(), socket.connecting, socket.owner);
        // Each way to close ends the operations in flight soon, after which the socket is removed.
        match (ending, owner) {
            (Ending::Reset, _) => self.ring.reset(token),
            (Ending::Orderly, Owner::Client(_)) => {
                socket.lingers = !has_ended;
                let want = socket.reception.leave();
                self.ring.end_sending(token);
                if want == Want::Cancel {
                    self.ring.cancel_receive(token);
                }
            }
            (Ending::Orderly, Owner::Link(..)) if busy => self.ring.shut_down(token),
            (Ending::Orderly | Ending::Given, _) => {}
        }
        if connecting {
            self.ring.cancel_connect(token);
        }
        if let Some(place) = self.place_of(owner)
            && *place == Some(token)
        {
            *place = None;
        }
        self.forget_if_done(token);
    }

    fn forget_if_done(&mut self, token: Token) {
        let socket = self.socket(token);
        if socket.closing && !socket.is_busy() {
            if socket.lingers
                && let Ok(socket) = self.ring.duplicate(token)
            {
                self.lingering.add(socket, self.began);
            }
            self.sockets[token as usize] = None;
            self.ring.release(token);
        }
    }

    fn socket(&mut self, token: Token) -> &mut Socket {
        self.sockets[token as usize].as_mut().expect("a socket is kept while anything is under way on it")
    }

    fn insert(&mut self, fd: OwnedFd, owner: Owner) -> Token {
        let token = self.ring.adopt(fd);
        if self.sockets.len() <= token as usize {
            self.sockets.resize_with(token as usize + 1, || None);
        }
        let reception = Reception::default();
        let socket = Socket {
            owner,
            reception,
            sending: false,
            connecting: false,
            closing: false,
            sent: 0,
            tls: None,
            last_words: None,
            lingers: false,
        };
        let before = self.sockets[token as usize].replace(socket);
        debug_assert!(before.is_none(), "the ring names nothing twice");
        let index = index_of(owner);
        let places = self.places_of(owner);
        if places.len() <= index {
            places.resize(index + 1, None);
        }
        // The former owner of this place has released it, though the action that closes its socket is still
        // to come.
        let former = places[index].replace(token);
        if let Some(former) = former {
            self.close(former, Ending::Orderly);
        }
        token
    }

    fn places_of(&mut self, owner: Owner) -> &mut Vec<Option<Token>> {
        match owner {
            Owner::Client(_) => &mut self.client_sockets,
            Owner::Link(..) => &mut self.link_sockets,
        }
    }

    fn place_of(&mut self, owner: Owner) -> Option<&mut Option<Token>> {
        self.places_of(owner).get_mut(index_of(owner))
    }

    /// Returns the token of an owner's open socket, if it has one. Another owner's socket at the same index
    /// (one of a later generation) does not count.
    fn token_of(&mut self, owner: Owner) -> Option<Token> {
        let token = (*self.place_of(owner)?)?;
        (self.socket(token).owner == owner).then_some(token)
    }
}

/// Classifies a socket error: lost by the peer (it closed or refused the connection, so it will not carry out
/// requests that it had not read), or lost in another way.
fn loss_of(error: &io::Error) -> Loss {
    match error.raw_os_error() {
        Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNREFUSED | libc::ENOENT) => Loss::ByPeer,
        _ => Loss::OnTheWay,
    }
}

fn index_of(owner: Owner) -> usize {
    match owner {
        Owner::Client(id) => id.index as usize,
        Owner::Link(connection, _) => connection.0 as usize,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::values::ClientId;
    use crate::values::limits::RECEIVE_BUFFER_BYTES;

    /// Number of bytes that a lent buffer in the tests has before more are received into it.
    const BEFORE: usize = 20_000;

    /// An application for tests that records all events, and returns the actions and sends that the test has
    /// queued.
    #[derive(Default)]
    struct Notes {
        accepted: u32,
        /// The number of bytes of the present message that the application reports as still missing; it falls
        /// as bytes arrive.
        missing: usize,
        /// The number of bytes received into lent buffers; `stream` has all bytes of the first socket in
        /// order.
        filled: usize,
        stream: Vec<u8>,
        received: Vec<usize>,
        ended: Vec<u32>,
        ended_ahead: Vec<u32>,
        lost: Vec<u32>,
        actions: VecDeque<Action>,
        to_send: VecDeque<(Owner, Segment)>,
    }

    fn client(index: u32) -> Owner {
        Owner::Client(ClientId { index, generation: 1 })
    }

    fn index(owner: Owner) -> u32 {
        index_of(owner) as u32
    }

    impl Application for Notes {
        fn handle_accepted(&mut self, _entrance: Entrance, _now: Now) -> Owner {
            self.accepted += 1;
            self.received.push(0);
            client(self.accepted - 1)
        }
        fn handle_connected(&mut self, _owner: Owner, _now: Now) {}
        fn handle_received(&mut self, owner: Owner, bytes: &[u8], _now: Now) -> usize {
            self.received[index_of(owner)] += bytes.len();
            if index(owner) == 0 {
                self.stream.extend_from_slice(bytes);
            }
            self.missing = self.missing.saturating_sub(bytes.len());
            self.missing
        }
        fn lend_room(&mut self, _owner: Owner) -> Option<Room> {
            Room::in_buffer(&mut vec![b'-'; BEFORE], self.missing)
        }
        fn handle_filled(&mut self, owner: Owner, buffer: Vec<u8>, received: usize, now: Now) -> usize {
            assert!(buffer.starts_with(&vec![b'-'; BEFORE]), "what was lent comes back");
            self.filled += received;
            self.handle_received(owner, &buffer[BEFORE..], now)
        }
        fn handle_end(&mut self, owner: Owner, _now: Now) {
            self.ended.push(index(owner));
        }
        fn handle_end_ahead(&mut self, owner: Owner, _now: Now) {
            self.ended_ahead.push(index(owner));
        }
        fn handle_lost(&mut self, owner: Owner, _loss: Loss, _now: Now) {
            self.lost.push(index(owner));
        }
        fn handle_transmitted(&mut self, _owner: Owner, _segment: Segment, _now: Now) {}
        fn poll_action(&mut self) -> Option<Action> {
            self.actions.pop_front()
        }
        fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
            self.to_send.pop_front()
        }
    }

    struct Nowhere;

    impl Connector for Nowhere {
        fn open(&self, _backend: BackendId) -> io::Result<(OwnedFd, Option<socket2::SockAddr>)> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    struct Rig {
        driver: Driver,
        notes: Notes,
        turns: u64,
        _rope: UnixStream,
    }

    impl Rig {
        fn new() -> Self {
            let (bell, rope) = UnixStream::pair().expect("a pair");
            let ring = Ring::new(bell.into()).expect("a ring");
            Self { driver: Driver::new(ring, Vec::new()), notes: Notes::default(), turns: 1, _rope: rope }
        }

        fn now(&self) -> Now {
            Now { monotonic: Timestamp::from_millis(self.turns), unix_ms: 0 }
        }

        /// Opens a connection to the driver, and returns the client's end of it.
        fn connect(&mut self) -> UnixStream {
            let (near, far) = UnixStream::pair().expect("a pair");
            let now = self.now();
            self.driver.adopt(near.into(), Entrance::Resp, &mut self.notes, now);
            far.set_nonblocking(true).expect("a socket");
            far
        }

        fn turn(&mut self) {
            self.turns += 1;
            let now = self.now();
            self.driver.handle_completions(&mut self.notes, now);
            self.driver.carry_out(&mut self.notes, &Nowhere, now);
            self.driver.ring.submit_and_wait(Some(Duration::from_millis(1))).expect("a working ring");
        }
    }

    /// True if the client's end (`far`) has not been closed by the driver.
    fn is_open(far: &mut UnixStream) -> bool {
        match far.read(&mut [0; 16]) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(count) => count > 0,
        }
    }

    #[test]
    fn connections_that_are_cut_off_take_no_other_with_them() {
        let mut rig = Rig::new();
        let mut fresh = Vec::new();
        for round in 0..300 {
            // Connections are closed in every way while an operation is under way on them, and another opens
            // at the same moment.
            let mut doomed = rig.connect();
            let owner = client(rig.notes.accepted - 1);
            doomed.write_all(b"PING\r\n").expect("a socket buffer");
            if round % 2 == 0 {
                rig.turn();
            }
            rig.notes.to_send.push_back((owner, Segment::Gathered(vec![b'x'; 1 << 20])));
            match round % 3 {
                0 => rig.notes.actions.push_back(Action::Close(owner)),
                1 => rig.notes.actions.push_back(Action::Reset(owner)),
                _ => drop(doomed),
            }
            rig.turn();
            fresh.push(rig.connect());
            if fresh.len() > 20 {
                assert!(is_open(&mut fresh.remove(0)), "round {round}");
            }
        }
        for _ in 0..20 {
            rig.turn();
        }
        assert!(fresh.iter_mut().all(is_open));
    }

    #[test]
    fn a_listener_whose_timer_fired_too_early_accepts_again() {
        let mut rig = Rig::new();
        let (listener, address) = listener();
        let token = rig.driver.ring.adopt(listener);
        rig.driver.listeners.push((token, Entrance::Resp));
        rig.driver.listens = true;
        let _client = TcpStream::connect(address).expect("it listens");
        let now = rig.now();
        let until = now.monotonic.after(Duration::from_millis(5));
        rig.driver.resting.push((token, until));
        // The timer that was set for it fires in a turn that began before.
        rig.driver.wake_at = Some(until);
        rig.driver.handle(Completion::TimeUp, &mut rig.notes, now);
        let patient_until = now.monotonic.after(Duration::from_secs(20));
        while rig.notes.accepted == 0 {
            rig.turn();
            assert!(rig.now().monotonic < patient_until, "the client was not accepted");
        }
    }

    #[test]
    fn sockets_that_another_process_accepts_on_keep_their_clients_at_a_drain() {
        let mut rig = Rig::new();
        let (listener, address) = listener();
        let other = listener.try_clone().expect("a copy");
        let token = rig.driver.ring.adopt(listener);
        rig.driver.listeners.push((token, Entrance::Resp));
        let _client = TcpStream::connect(address).expect("it listens");
        let now = rig.now();
        rig.driver.take_the_last(&mut rig.notes, now);
        (0..3).for_each(|_| rig.turn());
        assert_eq!(rig.notes.accepted, 0);
        TcpListener::from(other).accept().expect("the client is left to the other process");
    }

    fn listener() -> (OwnedFd, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        (listener.into(), address)
    }

    #[test]
    fn a_flood_leaves_a_buffer_for_the_neighbour() {
        let mut rig = Rig::new();
        let mut floods: Vec<UnixStream> = (0..60).map(|_| rig.connect()).collect();
        let mut neighbour = rig.connect();
        let chunk = vec![b'f'; 4 * RECEIVE_BUFFER_BYTES];
        let flood = |floods: &mut Vec<UnixStream>| {
            for far in floods {
                while far.write(&chunk).is_ok() {}
            }
        };
        for _ in 0..20 {
            flood(&mut floods);
            rig.turn();
        }
        let before = rig.notes.received.clone();
        let (mut asked, rounds) = (0, 200);
        let mut waited_most = 0;
        for _ in 0..rounds {
            flood(&mut floods);
            neighbour.write_all(b"PING").expect("a socket buffer");
            asked += 4;
            let mut waited = 0;
            while rig.notes.received[60] < asked {
                rig.turn();
                flood(&mut floods);
                waited += 1;
                assert!(waited < 1_000, "the neighbour is starved");
            }
            waited_most = waited.max(waited_most);
        }
        assert!(waited_most <= 4, "the neighbour waited {waited_most} turns");
        let shares: Vec<usize> =
            rig.notes.received.iter().zip(&before).take(60).map(|(now, before)| now - before).collect();
        let (least, most) = (shares.iter().min().expect("60"), shares.iter().max().expect("60"));
        assert!(least * 2 > *most, "from {least} to {most} bytes");
    }

    #[test]
    fn a_pause_during_the_last_data_can_be_taken_back() {
        let mut rig = Rig::new();
        let mut far = rig.connect();
        for _ in 0..100 {
            rig.notes.actions.push_back(Action::PauseReading(client(0)));
            let _ = far.write(&vec![b'x'; 2 * RECEIVE_BUFFER_BYTES]);
            rig.turn();
            rig.notes.actions.push_back(Action::ResumeReading(client(0)));
            rig.turn();
        }
        let before = rig.notes.received[0];
        // The bytes that are in the lent buffer arrive, and then a further message.
        for _ in 0..20 {
            rig.turn();
        }
        far.write_all(b"more").expect("room");
        rig.turn();
        rig.turn();
        assert!(rig.notes.received[0] >= before + 4);
    }

    #[test]
    fn something_large_comes_into_rooms_in_order_and_whatever_is_paused() {
        let mut rig = Rig::new();
        let mut far = rig.connect();
        let message: Vec<u8> = (0..1 << 20).map(|number: u32| (number / 999) as u8).collect();
        rig.notes.missing = message.len();
        let mut sent = 0;
        for step in 0..10_000 {
            if rig.notes.received[0] == message.len() {
                break;
            }
            sent += far.write(&message[sent..]).unwrap_or(0);
            match step % 7 {
                3 => rig.notes.actions.push_back(Action::PauseReading(client(0))),
                5 => rig.notes.actions.push_back(Action::ResumeReading(client(0))),
                _ => {}
            }
            rig.turn();
        }
        assert!(rig.notes.stream == message, "all of it, in order");
        assert!(rig.notes.filled > message.len() / 2, "only {} came into rooms", rig.notes.filled);
        // Bytes that follow arrive as usual, and so does the end of the connection.
        rig.notes.actions.push_back(Action::ResumeReading(client(0)));
        far.write_all(b"more").expect("room");
        drop(far);
        for _ in 0..5 {
            rig.turn();
        }
        assert!(rig.notes.stream.ends_with(b"more"));
        assert_eq!(rig.notes.ended, [0]);
    }

    #[test]
    fn a_room_of_a_socket_that_is_closed_is_let_go() {
        let mut rig = Rig::new();
        let mut far = rig.connect();
        rig.notes.missing = 1 << 20;
        far.write_all(&[b'x'; 1_000]).expect("a socket buffer");
        (0..4).for_each(|_| rig.turn());
        far.write_all(&[b'x'; 1_000]).expect("a socket buffer");
        (0..2).for_each(|_| rig.turn());
        assert!(rig.notes.filled > 0, "a room is lent");
        rig.notes.actions.push_back(Action::Close(client(0)));
        let filled = rig.notes.filled;
        (0..4).for_each(|_| rig.turn());
        assert_eq!(rig.notes.filled, filled, "nobody is told any more");
        assert!(rig.driver.sockets.iter().all(Option::is_none));
    }

    #[test]
    fn a_socket_that_is_parted_with_lives_on_with_all_that_was_not_received() {
        let mut rig = Rig::new();
        let mut far = rig.connect();
        far.write_all(b"one").expect("a socket buffer");
        (0..3).for_each(|_| rig.turn());
        rig.driver.detain(client(0), &mut rig.notes);
        assert!(rig.driver.part_with(client(0)).is_none(), "the ring still has it");
        // A resume in the meantime must not undo the detention.
        rig.notes.actions.push_back(Action::ResumeReading(client(0)));
        (0..3).for_each(|_| rig.turn());
        far.write_all(b"two").expect("a socket buffer");
        (0..3).for_each(|_| rig.turn());
        assert_eq!(rig.notes.stream, b"one");
        let socket = rig.driver.part_with(client(0)).expect("nothing is under way");
        (0..3).for_each(|_| rig.turn());
        assert!(rig.driver.sockets.iter().all(Option::is_none) && is_open(&mut far));
        let mut near = UnixStream::from(socket);
        let mut rest = [0; 16];
        let received = near.read(&mut rest).expect("what was left");
        assert_eq!(&rest[..received], b"two");
        near.write_all(b"three").expect("it is connected");
        assert_eq!(far.read(&mut rest).expect("an answer"), 5);
        assert!(rig.notes.ended.is_empty() && rig.notes.lost.is_empty());
    }

    #[test]
    fn a_socket_that_is_let_go_again_is_received_from() {
        let mut rig = Rig::new();
        let mut far = rig.connect();
        rig.driver.detain(client(0), &mut rig.notes);
        (0..3).for_each(|_| rig.turn());
        far.write_all(b"one").expect("a socket buffer");
        rig.driver.let_go(client(0), &mut rig.notes);
        (0..3).for_each(|_| rig.turn());
        assert_eq!(rig.notes.stream, b"one");
        assert!(rig.driver.part_with(client(0)).is_none(), "it is not detained");
    }

    /// Returns a rig with one client, a TCP connection whose reading is paused, and the client's end of it.
    fn paused() -> (Rig, TcpStream) {
        let mut rig = Rig::new();
        let (listener, address) = listener();
        let far = TcpStream::connect(address).expect("it listens");
        let (near, _) = TcpListener::from(listener).accept().expect("it has connected");
        let now = rig.now();
        rig.driver.adopt(near.into(), Entrance::Resp, &mut rig.notes, now);
        rig.turn();
        rig.notes.actions.push_back(Action::PauseReading(client(0)));
        (0..3).for_each(|_| rig.turn());
        (rig, far)
    }

    #[test]
    fn an_end_behind_what_is_not_read_yet_is_told_and_what_came_before_it_is_read_later() {
        let (mut rig, mut far) = paused();
        far.write_all(b"more").expect("a socket buffer");
        (0..3).for_each(|_| rig.turn());
        assert!(rig.notes.ended_ahead.is_empty(), "bytes alone are no end");
        far.shutdown(std::net::Shutdown::Write).expect("a socket");
        (0..5).for_each(|_| rig.turn());
        assert_eq!((rig.notes.received[0], rig.notes.ended.len()), (0, 0));
        assert_eq!(rig.notes.ended_ahead, [0], "once");
        rig.notes.actions.push_back(Action::ResumeReading(client(0)));
        (0..5).for_each(|_| rig.turn());
        assert_eq!((rig.notes.stream.as_slice(), rig.notes.ended.as_slice()), (&b"more"[..], &[0][..]));
    }

    #[test]
    fn a_connection_that_fails_while_it_is_not_read_from_is_told_as_one_that_ends() {
        let (mut rig, mut far) = paused();
        rig.notes.to_send.push_back((client(0), Segment::Gathered(b"unread".to_vec())));
        far.write_all(b"more").expect("a socket buffer");
        (0..3).for_each(|_| rig.turn());
        far.peek(&mut [0]).expect("the reply has come");
        // Closed with an unread reply, so the connection is reset.
        drop(far);
        (0..5).for_each(|_| rig.turn());
        assert_eq!(rig.notes.ended_ahead, [0]);
    }

    #[test]
    fn a_socket_that_is_not_read_from_can_be_closed_in_every_way_or_given_away() {
        for action in [Action::Close(client(0)), Action::Reset(client(0))] {
            let (mut rig, _far) = paused();
            rig.notes.actions.push_back(action);
            (0..5).for_each(|_| rig.turn());
            assert!(rig.driver.sockets.iter().all(Option::is_none));
            assert!(rig.notes.ended_ahead.is_empty(), "nobody is told any more");
        }
        let (mut rig, mut far) = paused();
        rig.driver.detain(client(0), &mut rig.notes);
        (0..3).for_each(|_| rig.turn());
        let mut near = TcpStream::from(rig.driver.part_with(client(0)).expect("nothing is under way"));
        far.write_all(b"x").expect("a socket buffer");
        near.read_exact(&mut [0]).expect("it is connected");
    }

    #[test]
    fn a_drain_tells_once_that_a_client_will_be_read_no_further() {
        let (mut rig, mut far) = paused();
        far.write_all(b"more").expect("a socket buffer");
        rig.driver.drain();
        (0..30).for_each(|_| rig.turn());
        assert_eq!((rig.notes.ended_ahead.as_slice(), rig.notes.ended.len()), (&[0][..], 0));
    }

    #[test]
    fn the_end_is_told_once_however_often_reading_is_resumed() {
        let mut rig = Rig::new();
        let far = rig.connect();
        far.shutdown(std::net::Shutdown::Write).expect("a socket");
        for _ in 0..5 {
            rig.turn();
            rig.notes.actions.push_back(Action::PauseReading(client(0)));
            rig.notes.actions.push_back(Action::ResumeReading(client(0)));
        }
        assert_eq!(rig.notes.ended, [0]);
        assert!(rig.notes.lost.is_empty());
    }
}
