//! Sockets of one core: turns completions of the ring into `handle_*` calls, and what is polled into requests to it.
//!
//! A socket's place is freed when nothing is under way on it any more, so a completion always finds its socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::time::Duration;

use slab::Slab;

use super::ring::{Completion, Ring, Token};
use crate::protocol::Segment;
use crate::values::time::Now;
use crate::values::{Action, BackendId, Owner, Timestamp};

/// How long a listener that failed is left alone.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// The deciding code that sockets belong to.
pub(super) trait Application {
    /// A new connection: whose it is.
    fn handle_accepted(&mut self, now: Now) -> Owner;
    fn handle_connected(&mut self, owner: Owner, now: Now);
    fn handle_received(&mut self, owner: Owner, bytes: &[u8], now: Now);
    /// The other side sends no more.
    fn handle_end(&mut self, owner: Owner, now: Now);
    /// Why a socket could not be connected; `handle_lost` follows.
    fn note_unreachable(&mut self, _owner: Owner, _error: &io::Error) {}
    /// The socket failed, or could not be connected.
    fn handle_lost(&mut self, owner: Owner, now: Now);
    fn handle_transmitted(&mut self, owner: Owner, segment: Segment, now: Now);
    fn poll_action(&mut self) -> Option<Action>;
    fn poll_transmit(&mut self) -> Option<(Owner, Segment)>;
}

/// Where backends are.
pub(super) trait Connector {
    /// A socket to a backend, and where it is to be connected to, unless it is connected already.
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<socket2::SockAddr>)>;
}

struct Socket {
    fd: OwnedFd,
    owner: Owner,
    receiving: bool,
    /// A cancellation of receiving is on its way.
    stopping: bool,
    paused: bool,
    sending: bool,
    connecting: bool,
    closing: bool,
    /// How much of the segment under way was sent before.
    sent: usize,
}

pub(super) struct Driver {
    pub ring: Ring,
    sockets: Slab<Socket>,
    listeners: Vec<OwnedFd>,
    listening: bool,
    /// Listeners that failed (no descriptors left, say) and are tried again a little later.
    resting: Vec<Token>,
    completions: Vec<Completion>,
    /// Sockets whose receiving ended for want of buffers.
    starved: Vec<Token>,
    client_sockets: Vec<Option<Token>>,
    link_sockets: Vec<Option<Token>>,
    wake_at: Option<Timestamp>,
}

impl Driver {
    pub fn new(ring: Ring, listeners: Vec<OwnedFd>) -> io::Result<Self> {
        let mut driver = Self {
            ring,
            sockets: Slab::new(),
            listeners,
            listening: true,
            resting: Vec::new(),
            completions: Vec::new(),
            starved: Vec::new(),
            client_sockets: Vec::new(),
            link_sockets: Vec::new(),
            wake_at: None,
        };
        for index in 0..driver.listeners.len() {
            driver.listen(index as Token)?;
        }
        Ok(driver)
    }

    fn listen(&mut self, listener: Token) -> io::Result<()> {
        self.ring.accept(listener, self.listeners[listener as usize].as_fd())
    }

    /// Accepts no more.
    pub fn stop_listening(&mut self) -> io::Result<()> {
        self.listening = false;
        for index in 0..self.listeners.len() {
            self.ring.cancel_accept(index as Token)?;
        }
        // The kernel would go on taking connections that nobody answers.
        self.listeners.clear();
        Ok(())
    }

    /// Deals with everything that has completed. How many completions there were that bring something new: sends that
    /// are over do not count.
    pub fn handle_completions(&mut self, application: &mut impl Application, now: Now) -> io::Result<usize> {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.reap(&mut completions)?;
        let mut count = 0;
        for completion in completions.drain(..) {
            count += usize::from(!matches!(completion, Completion::Sent { .. }));
            self.handle(completion, application, now)?;
        }
        self.completions = completions;
        while let Some(token) = self.starved.pop() {
            self.receive(token)?;
        }
        Ok(count)
    }

    /// Carries out what the application wants.
    pub fn carry_out(
        &mut self,
        application: &mut impl Application,
        connector: &impl Connector,
        now: Now,
    ) -> io::Result<()> {
        loop {
            while let Some(action) = application.poll_action() {
                self.act(action, application, connector, now)?;
            }
            let Some((owner, segment)) = application.poll_transmit() else { return Ok(()) };
            match self.token_of(owner) {
                Some(token) => self.send(token, segment, 0)?,
                None => application.handle_transmitted(owner, segment, now),
            }
        }
    }

    /// Adopts a connected socket, as if it had been accepted.
    pub fn adopt(&mut self, fd: OwnedFd, application: &mut impl Application, now: Now) -> io::Result<()> {
        let owner = application.handle_accepted(now);
        let token = self.insert(fd, owner)?;
        self.receive(token)
    }

    /// Sees to it that the ring has a completion at that time.
    pub fn wake_at(&mut self, at: Timestamp, now: Now) -> io::Result<()> {
        let armed = self.wake_at.is_some_and(|armed| armed > now.monotonic && armed <= at);
        if !armed {
            self.wake_at = Some(at);
            self.ring.wake_after(at.since(now.monotonic))?;
        }
        Ok(())
    }

    fn handle(
        &mut self,
        completion: Completion,
        application: &mut impl Application,
        now: Now,
    ) -> io::Result<()> {
        match completion {
            Completion::Accepted { listener, socket, ended } => {
                let failed = socket.is_err();
                if let Ok(fd) = socket {
                    self.adopt(fd, application, now)?;
                }
                if ended && self.listening && failed {
                    self.resting.push(listener);
                    self.ring.wake_after(ACCEPT_REST)?;
                } else if ended && self.listening {
                    self.listen(listener)?;
                }
            }
            Completion::Received { socket: token, buffer, ended } => {
                let socket = &mut self.sockets[token as usize];
                socket.receiving &= !ended;
                if !socket.closing {
                    application.handle_received(socket.owner, self.ring.bytes(&buffer), now);
                }
                self.ring.give_back(buffer);
                if ended {
                    self.receive(token)?;
                }
            }
            Completion::EndOfStream { socket: token } => {
                let socket = &mut self.sockets[token as usize];
                socket.receiving = false;
                if !socket.closing {
                    application.handle_end(socket.owner, now);
                }
                self.free_if_done(token);
            }
            Completion::ReceiveStopped { socket: token, error } => {
                self.receive_stopped(token, &error, application, now)?;
            }
            Completion::Sent { socket: token, segment, result } => {
                self.sent(token, segment, &result, application, now)?;
            }
            Completion::Connected { socket: token, result } => {
                let socket = &mut self.sockets[token as usize];
                socket.connecting = false;
                match result {
                    _ if socket.closing => self.free_if_done(token),
                    Ok(()) => {
                        application.handle_connected(socket.owner, now);
                        self.receive(token)?;
                    }
                    Err(error) => {
                        application.note_unreachable(socket.owner, &error);
                        self.lose(token, application, now)?;
                    }
                }
            }
            Completion::Woken => {
                while let Some(listener) = self.resting.pop().filter(|_| self.listening) {
                    self.listen(listener)?;
                }
            }
        }
        Ok(())
    }

    fn receive_stopped(
        &mut self,
        token: Token,
        error: &io::Error,
        application: &mut impl Application,
        now: Now,
    ) -> io::Result<()> {
        let socket = &mut self.sockets[token as usize];
        socket.receiving = false;
        socket.stopping = false;
        if socket.closing {
            self.free_if_done(token);
            return Ok(());
        }
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => self.starved.push(token),
            Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN) => self.receive(token)?,
            _ => self.lose(token, application, now)?,
        }
        Ok(())
    }

    fn sent(
        &mut self,
        token: Token,
        segment: Segment,
        result: &io::Result<usize>,
        application: &mut impl Application,
        now: Now,
    ) -> io::Result<()> {
        let socket = &mut self.sockets[token as usize];
        socket.sending = false;
        match result {
            Ok(sent) if !socket.closing && socket.sent + sent < segment.bytes().len() && *sent > 0 => {
                let from = socket.sent + sent;
                return self.send(token, segment, from);
            }
            result => {
                let failed = !matches!(result, Ok(sent) if socket.sent + sent == segment.bytes().len());
                let closing = socket.closing;
                application.handle_transmitted(socket.owner, segment, now);
                if failed && !closing {
                    self.lose(token, application, now)?;
                } else {
                    self.free_if_done(token);
                }
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        action: Action,
        application: &mut impl Application,
        connector: &impl Connector,
        now: Now,
    ) -> io::Result<()> {
        match action {
            Action::Connect { owner, backend } => match connector.open(backend) {
                Ok((fd, None)) => {
                    let token = self.insert(fd, owner)?;
                    application.handle_connected(owner, now);
                    self.receive(token)?;
                }
                Ok((fd, Some(address))) => {
                    let token = self.insert(fd, owner)?;
                    let socket = &mut self.sockets[token as usize];
                    socket.connecting = true;
                    self.ring.connect(token, socket.fd.as_fd(), address)?;
                }
                Err(error) => {
                    application.note_unreachable(owner, &error);
                    application.handle_lost(owner, now);
                }
            },
            Action::Close(owner) => {
                if let Some(token) = self.token_of(owner) {
                    self.close(token)?;
                }
            }
            Action::PauseReading(owner) => {
                if let Some(token) = self.token_of(owner) {
                    self.pause(token)?;
                }
            }
            Action::ResumeReading(owner) => {
                if let Some(token) = self.token_of(owner) {
                    self.sockets[token as usize].paused = false;
                    self.receive(token)?;
                }
            }
        }
        Ok(())
    }

    fn pause(&mut self, token: Token) -> io::Result<()> {
        let socket = &mut self.sockets[token as usize];
        socket.paused = true;
        if socket.receiving && !socket.stopping {
            socket.stopping = true;
            self.ring.cancel_receive(token)?;
        }
        Ok(())
    }

    /// Receives, unless that is under way, unwanted or pointless.
    fn receive(&mut self, token: Token) -> io::Result<()> {
        let Some(socket) = self.sockets.get_mut(token as usize) else { return Ok(()) };
        if socket.closing {
            self.free_if_done(token);
            return Ok(());
        }
        if socket.receiving || socket.paused || socket.connecting {
            return Ok(());
        }
        socket.receiving = true;
        self.ring.receive(token, socket.fd.as_fd())
    }

    fn send(&mut self, token: Token, segment: Segment, sent: usize) -> io::Result<()> {
        let socket = &mut self.sockets[token as usize];
        debug_assert!(!socket.sending, "one segment per socket is under way");
        socket.sending = true;
        socket.sent = sent;
        self.ring.send(token, socket.fd.as_fd(), segment, sent)
    }

    fn lose(&mut self, token: Token, application: &mut impl Application, now: Now) -> io::Result<()> {
        application.handle_lost(self.sockets[token as usize].owner, now);
        self.close(token)
    }

    fn close(&mut self, token: Token) -> io::Result<()> {
        let socket = &mut self.sockets[token as usize];
        if socket.closing {
            return Ok(());
        }
        socket.closing = true;
        let (busy, owner) = (socket.receiving || socket.sending || socket.connecting, socket.owner);
        if busy {
            // Whatever is under way completes then, and the place is freed.
            self.ring.shutdown(socket.fd.as_fd())?;
        }
        if let Some(place) = self.place_of(owner)
            && *place == Some(token)
        {
            *place = None;
        }
        self.free_if_done(token);
        Ok(())
    }

    fn free_if_done(&mut self, token: Token) {
        let socket = &self.sockets[token as usize];
        let busy = socket.receiving || socket.sending || socket.connecting;
        if socket.closing && !busy && !self.starved.contains(&token) {
            self.sockets.remove(token as usize);
        }
    }

    fn insert(&mut self, fd: OwnedFd, owner: Owner) -> io::Result<Token> {
        let socket = Socket {
            fd,
            owner,
            receiving: false,
            stopping: false,
            paused: false,
            sending: false,
            connecting: false,
            closing: false,
            sent: 0,
        };
        let token = self.sockets.insert(socket) as Token;
        let index = index_of(owner);
        let places = self.places_of(owner);
        if places.len() <= index {
            places.resize(index + 1, None);
        }
        // Whose place this was has let go of it, though the order to close its socket is still to come.
        let former = places[index].replace(token);
        if let Some(former) = former {
            self.close(former)?;
        }
        Ok(token)
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

    /// The open socket of an owner. A former owner of the same place has none.
    fn token_of(&mut self, owner: Owner) -> Option<Token> {
        let token = (*self.place_of(owner)?)?;
        (self.sockets[token as usize].owner == owner).then_some(token)
    }

    /// The descriptor that other cores wake this one by.
    pub fn doorbell(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

fn index_of(owner: Owner) -> usize {
    match owner {
        Owner::Client(id) => id.index as usize,
        Owner::Link(connection, _) => connection.0 as usize,
    }
}
