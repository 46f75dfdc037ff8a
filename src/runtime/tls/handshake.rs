//! A TLS handshake with one client, carried on as far as its socket and the bound on signatures per second
//! allow.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use rustls::ServerConnection;
use rustls::server::{Accepted, Acceptor};

use super::files::Terms;
use super::tally::outcome_of;
use crate::control::Handshake;
use crate::runtime::driver::Entrance;
use crate::values::Timestamp;

/// The size of one read from a client during its TLS handshake, in bytes.
const CHUNK_BYTES: usize = 4096;
/// The number of reads from one client in a row, before other clients' TLS handshakes are continued.
const READS_AT_ONCE: usize = 4;
/// The first byte of a TLS handshake record. A client that begins with another byte receives an error that
/// says that this port expects TLS.
const HANDSHAKE_RECORD: u8 = 0x16;
const NOT_TLS: &[u8] = b"-ERR this port expects TLS: use rediss://... or --tls\r\n";
const NOT_TLS_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 40\r\n\
    connection: close\r\n\r\nThis port expects TLS: use https://...\r\n";

/// The event that a TLS handshake waits for, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The TLS handshake waits for bytes from the client.
    Wait,
    /// The TLS handshake waits until the client accepts bytes that are sent to it.
    Send,
    /// The TLS handshake waits until weir answers the client's first message (hello): the answer takes an
    /// expensive signature, whose rate is limited.
    Turn,
    /// The TLS handshake is done: the connection can be handed to a shard.
    Done,
    /// The TLS handshake has failed, and is counted under this outcome.
    Failed(Handshake),
}

enum State {
    /// The client's first TLS message (hello) has not arrived in full.
    Hello(Box<Acceptor>),
    Queued(Box<Accepted>),
    /// The client's first TLS message (hello) was answered with this configuration; the handshake goes on.
    Answered(Box<ServerConnection>, Arc<Terms>),
    /// The TLS handshake has failed: nothing more is read or written.
    Over,
}

/// A client whose TLS handshake is in progress: its socket, and how far the handshake has come.
pub(super) struct Shaking {
    pub socket: TcpStream,
    pub entrance: Entrance,
    pub address: IpAddr,
    pub since: Timestamp,
    /// The time since which the handshake has waited for the client: when the client connected, or when its
    /// first message (hello) was answered.
    awaits_since: Timestamp,
    state: State,
    /// True once the client has sent a first byte, which shows whether it speaks TLS.
    heard: bool,
}

impl Shaking {
    /// Begins a TLS handshake on a client's socket, which must be non-blocking. `entrance` is the protocol
    /// that the client speaks over TLS, `address` its IP address, and `since` the time at which it connected.
    pub fn new(socket: TcpStream, entrance: Entrance, address: IpAddr, since: Timestamp) -> Self {
        let state = State::Hello(Box::default());
        Self { socket, entrance, address, since, awaits_since: since, state, heard: false }
    }

    /// Continues the TLS handshake when the socket is ready to be read or written. Returns the event that the
    /// handshake waits for next, or its end.
    pub fn go_on(&mut self) -> Step {
        for _ in 0..READS_AT_ONCE {
            match &self.state {
                State::Answered(connection, _) if connection.wants_write() => match self.send() {
                    Step::Wait => {}
                    other => return other,
                },
                State::Queued(_) => return self.look(),
                State::Over => return Step::Failed(Handshake::Left),
                _ => {}
            }
            let mut chunk = [0; CHUNK_BYTES];
            let step = match self.socket.read(&mut chunk) {
                Ok(0) => self.fail(Handshake::Left),
                Ok(length) => self.hear(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Step::Wait,
                Err(_) => self.fail(Handshake::Left),
            };
            if step != Step::Wait {
                return step;
            }
        }
        // The socket is still readable, so the next poll reports it again.
        Step::Wait
    }

    /// Returns the time since which the TLS handshake waits for bytes from its client: since the client
    /// connected, or since its first message (hello) was answered. `None` if the client's first message waits
    /// to be answered by weir.
    pub fn awaits_client_since(&self) -> Option<Timestamp> {
        (!matches!(self.state, State::Queued(_))).then_some(self.awaits_since)
    }

    /// Answers the client's first TLS message (hello), which takes a costly signature, with the configuration
    /// `terms` at the time `now`. Returns the event that the handshake waits for next, or its end.
    pub fn answer(&mut self, terms: &Arc<Terms>, now: Timestamp) -> Step {
        self.awaits_since = now;
        match std::mem::replace(&mut self.state, State::Over) {
            State::Queued(accepted) => match accepted.into_connection(Arc::clone(&terms.config)) {
                Ok(connection) => {
                    self.state = State::Answered(Box::new(connection), Arc::clone(terms));
                    self.send()
                }
                Err((error, mut alert)) => {
                    let _ = alert.write_all(&mut self.socket);
                    self.fail(outcome_of(&error))
                }
            },
            other => {
                self.state = other;
                Step::Wait
            }
        }
    }

    /// Takes the TLS handshake apart: socket, TLS connection, and the configuration with which it was done.
    /// `None` if the client's first message was not answered yet, or the handshake has failed.
    pub fn into_parts(self) -> Option<(TcpStream, ServerConnection, Arc<Terms>)> {
        match self.state {
            State::Answered(connection, terms) => Some((self.socket, *connection, terms)),
            _ => None,
        }
    }

    /// Checks whether a client whose first message (hello) waits to be answered is still connected. If the
    /// client has left, the handshake fails at once, since the kernel would report the end of its connection
    /// again and again. Returns `Step::Turn` (the handshake still waits to be answered) or `Step::Failed`.
    fn look(&mut self) -> Step {
        // A connection that was reset may still have bytes to read, behind which the error would be.
        if !matches!(self.socket.take_error(), Ok(None)) {
            return self.fail(Handshake::Left);
        }
        match self.socket.peek(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Step::Turn
            }
            Ok(1..) => Step::Turn,
            Ok(0) | Err(_) => self.fail(Handshake::Left),
        }
    }

    fn hear(&mut self, mut bytes: &[u8]) -> Step {
        if !std::mem::replace(&mut self.heard, true) && bytes[0] != HANDSHAKE_RECORD {
            let _ = self.socket.write(match self.entrance {
                Entrance::Resp => NOT_TLS,
                Entrance::Http => NOT_TLS_HTTP,
            });
            return self.fail(Handshake::NotTls);
        }
        match &mut self.state {
            State::Hello(acceptor) => {
                // The acceptor bounds how much it takes.
                while !bytes.is_empty() && acceptor.read_tls(&mut bytes).is_ok_and(|taken| taken > 0) {}
                match acceptor.accept() {
                    _ if !bytes.is_empty() => self.fail(Handshake::Refused),
                    Ok(None) => Step::Wait,
                    Ok(Some(accepted)) => {
                        self.state = State::Queued(Box::new(accepted));
                        Step::Turn
                    }
                    Err((error, mut alert)) => {
                        let _ = alert.write_all(&mut self.socket);
                        self.fail(outcome_of(&error))
                    }
                }
            }
            State::Answered(connection, _) => {
                while !bytes.is_empty() {
                    let heard = match connection.read_tls(&mut bytes) {
                        // The client has ended its side.
                        Ok(0) => break,
                        Ok(_) => connection.process_new_packets().map_err(|error| outcome_of(&error)),
                        Err(_) => Err(Handshake::Refused),
                    };
                    if let Err(outcome) = heard {
                        // Sends the TLS alert that says why, if the client listens.
                        let _ = connection.write_tls(&mut self.socket);
                        return self.fail(outcome);
                    }
                }
                if connection.is_handshaking() { self.send() } else { Step::Done }
            }
            State::Queued(_) => Step::Turn,
            State::Over => Step::Failed(Handshake::Left),
        }
    }

    fn send(&mut self) -> Step {
        let State::Answered(connection, _) = &mut self.state else { return Step::Wait };
        while connection.wants_write() {
            match connection.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Send,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.fail(Handshake::Left),
            }
        }
        if connection.is_handshaking() { Step::Wait } else { Step::Done }
    }

    fn fail(&mut self, outcome: Handshake) -> Step {
        self.state = State::Over;
        Step::Failed(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use socket2::SockRef;

    use super::*;
    use crate::runtime::tls::files::provider;

    /// Waits for these events of a socket, or for its failure. Panics if neither comes within 30 s.
    fn wait_for(socket: &TcpStream, events: PollFlags) {
        let mut handles = [PollFd::new(socket, events)];
        let long = Timespec { tv_sec: 30, tv_nsec: 0 };
        assert_eq!(poll(&mut handles, Some(&long)), Ok(1));
    }

    #[test]
    fn a_reset_behind_unread_bytes_ends_a_handshake_that_waits_for_its_turn() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (socket, _) = listener.accept().expect("connected");
        socket.set_nonblocking(true).expect("a socket");
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the versions are supported")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let mut session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut shaking = Shaking::new(socket, Entrance::Resp, address, Timestamp::ZERO);
        session.write_tls(&mut client).expect("a connected socket");
        while shaking.go_on() == Step::Wait {
            wait_for(&shaking.socket, PollFlags::IN);
        }
        client.write_all(b"more").expect("a connected socket");
        wait_for(&shaking.socket, PollFlags::IN);
        assert_eq!(shaking.go_on(), Step::Turn, "bytes behind the hello wait for their turn, too");
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket");
        drop(client);
        wait_for(&shaking.socket, PollFlags::empty());
        assert_eq!(shaking.go_on(), Step::Failed(Handshake::Left));
    }
}
