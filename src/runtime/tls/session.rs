//! What stands around one connection that speaks TLS: bytes that arrive become plain, bytes that leave are encrypted. It does no I/O, so
//! sockets and rings stay where they are.
//!
//! What it holds is bounded: a record that is not whole, and what of one segment was encrypted at once. What has become plain is passed on
//! at once, so it counts as what any other client sent.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConnection};

use super::credentials::Credential;
use super::names::name_in;
use super::tally::{OpenConnection, StoreHandshake, Tally};
use crate::control::Handshake;
use crate::protocol::Segment;
use crate::runtime::driver::Entrance;
use crate::values::limits::{TENANT_NAME_BYTES_MAX, TLS_SEND_BYTES_MAX};

/// What encryption adds to that much at most: 16 KiB of a record take some 30 bytes more, and a word of TLS itself may go along.
const SEND_OVERHEAD: usize = 1024;
/// Sent bytes that are told as progress: as many as a plain socket sends at once.
const PROGRESS_BYTES: usize = 1 << 20;

/// A client that has shaken hands.
pub(in crate::runtime) struct SecureClient {
    pub socket: OwnedFd,
    pub session: Box<Session>,
    pub entrance: Entrance,
    /// Whom its certificate names.
    pub name: Option<Box<str>>,
}

impl std::fmt::Debug for SecureClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SecureClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Who is at the other end.
enum Far {
    /// What it has shown, if it had to.
    Client(OpenConnection, Option<Arc<Credential>>),
    /// A store, as errors call it.
    Store { name: Box<str>, handshake: StoreHandshake, told: bool },
}

/// What has come of bytes that arrived.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::runtime) struct Heard {
    /// The handshake is over, just now.
    pub ready: bool,
    /// The other side says that it sends no more, just now.
    pub ended: bool,
}

/// TLS around one connection.
pub(in crate::runtime) struct Session {
    connection: Connection,
    far: Far,
    ready: bool,
    ended: bool,
    /// Something was said after the handshake.
    heard: bool,
    /// What is being sent, and how much of it was encrypted so far.
    plain: Option<Segment>,
    taken: usize,
    /// Bytes that were sent since that was told last.
    progress: usize,
}

impl Session {
    /// Of a client whose handshake is over.
    pub fn of_client(
        connection: ServerConnection,
        credential: Option<Arc<Credential>>,
        tally: &Arc<Tally>,
    ) -> Self {
        let far = Far::Client(OpenConnection::new(tally), credential);
        Self::new(Connection::Server(connection), far, true)
    }

    /// With a store, before the handshake.
    pub fn with_store(
        config: Arc<ClientConfig>,
        host: &str,
        name: ServerName<'static>,
        tally: &Arc<Tally>,
    ) -> Result<Self, rustls::Error> {
        let connection = ClientConnection::new(config, name)?;
        let far = Far::Store { name: host.into(), handshake: StoreHandshake::new(tally), told: false };
        Ok(Self::new(Connection::Client(connection), far, false))
    }

    fn new(mut connection: Connection, far: Far, ready: bool) -> Self {
        connection.set_buffer_limit(Some(TLS_SEND_BYTES_MAX + SEND_OVERHEAD));
        Self { connection, far, ready, ended: false, heard: false, plain: None, taken: 0, progress: 0 }
    }

    /// The bare connection and its handshake with a store, for who does without the rest.
    pub fn apart(self) -> (Connection, Option<StoreHandshake>) {
        let handshake = match self.far {
            Far::Store { handshake, .. } => Some(handshake),
            Far::Client(..) => None,
        };
        (self.connection, handshake)
    }

    /// Has the other side said that it sends no more?
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Would the certificate that was shown for it be refused by now?
    pub fn is_withdrawn(&self) -> bool {
        matches!(&self.far, Far::Client(_, Some(credential)) if credential.is_withdrawn())
    }

    /// Bytes arrived. What they are is appended to `plain`: hardly more than came, and what was missing of them before. An error is
    /// the end of the connection.
    pub fn receive(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> Result<Heard, rustls::Error> {
        let before = (self.ready, self.ended);
        loop {
            let state = match self.connection.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    self.far.note_error(&error);
                    return Err(error);
                }
            };
            let length = plain.len();
            plain.resize(length + state.plaintext_bytes_to_read(), 0);
            // As much as was said is there.
            let read = self.connection.reader().read(&mut plain[length..]).unwrap_or(0);
            plain.truncate(length + read);
            self.heard |= read > 0;
            self.ended |= state.peer_has_closed();
            if self.ended || bytes.is_empty() {
                break;
            }
            // It takes some of it at a time; what is said behind the end is not looked at.
            if self
                .connection
                .read_tls(&mut bytes)
                .map_err(|error| rustls::Error::General(error.to_string()))?
                == 0
            {
                break;
            }
        }
        if !self.ready && !self.connection.is_handshaking() {
            self.ready = true;
            if let Far::Store { handshake, .. } = &mut self.far {
                handshake.end(Handshake::Done);
            }
        }
        Ok(Heard { ready: self.ready && !before.0, ended: self.ended && !before.1 })
    }

    /// The next bytes to send, if there are any.
    pub fn encrypt(&mut self) -> Option<Vec<u8>> {
        if self.ready
            && let Some(segment) = &self.plain
        {
            let mut room = TLS_SEND_BYTES_MAX;
            let mut skipped = self.taken;
            for piece in segment.pieces() {
                let left = &piece[skipped.min(piece.len())..];
                skipped -= piece.len() - left.len();
                let left = &left[..left.len().min(room)];
                // In memory nothing fails; what finds no room is taken next time.
                let taken = self.connection.writer().write(left).unwrap_or(0);
                (self.taken, room) = (self.taken + taken, room - taken);
                if taken < left.len() || room == 0 {
                    break;
                }
            }
        }
        if !self.connection.wants_write() {
            return None;
        }
        if let Far::Store { handshake, .. } = &mut self.far {
            handshake.go_on(Handshake::Left);
        }
        let mut bytes = Vec::new();
        while self.connection.wants_write()
            && self.connection.write_tls(&mut bytes).is_ok_and(|written| written > 0)
        {}
        Some(bytes)
    }

    /// Something is to be sent; nothing else is, until it is given back.
    pub fn begin_sending(&mut self, segment: Segment) {
        debug_assert!(self.plain.is_none(), "one segment is under way");
        (self.plain, self.taken) = (Some(segment), 0);
    }

    /// What was encrypted has left. Gives the segment back if that was the rest of it, and tells whether the other side has
    /// taken enough of it to speak of.
    pub fn handle_sent(&mut self, bytes: usize) -> (Option<Segment>, bool) {
        let done = self.plain.as_ref().is_some_and(|segment| self.taken >= segment.len());
        if done {
            self.progress = 0;
            return (self.plain.take(), false);
        }
        self.progress += bytes;
        let tell = self.plain.is_some() && self.progress >= PROGRESS_BYTES;
        if tell {
            self.progress = 0;
        }
        (None, tell)
    }

    /// The connection is over: what was to be sent is given back.
    pub fn give_up(&mut self) -> Option<Segment> {
        self.plain.take()
    }

    /// The last words: that nothing follows.
    pub fn farewell(&mut self) -> Vec<u8> {
        self.connection.send_close_notify();
        let mut bytes = Vec::new();
        while self.connection.wants_write()
            && self.connection.write_tls(&mut bytes).is_ok_and(|written| written > 0)
        {}
        bytes
    }

    /// Whom the other side's certificate names.
    pub fn name(connection: &ServerConnection) -> Option<Box<str>> {
        let certificate = connection.peer_certificates()?.first()?;
        name_in(certificate).filter(|name| name.len() <= TENANT_NAME_BYTES_MAX).map(Into::into)
    }

    /// The connection was lost before a store said anything: what to say of it, if nothing was said. With TLS 1.3 the handshake
    /// is over on this side before the store has looked at weir's certificate. `outcome` is how the handshake ended if it
    /// was not over.
    pub fn complaint(&mut self, problem: &str, outcome: Handshake) -> Option<String> {
        match &mut self.far {
            Far::Store { name, handshake, told } if !self.heard && !*told => {
                *told = true;
                handshake.give_up(outcome);
                Some(if self.ready {
                    format!(
                        "store {name}: lost right after the handshake ({problem}): it may want another certificate of weir \
                         (--storage-tls-cert)"
                    )
                } else {
                    format!("store {name}: no TLS with it: {problem}")
                })
            }
            _ => None,
        }
    }
}

impl Far {
    /// What it sent is no TLS, or not the right one.
    fn note_error(&mut self, error: &rustls::Error) {
        match self {
            Self::Client(open, _) => open.tally().note_broken(),
            Self::Store { handshake, .. } => handshake.note_error(error),
        }
    }
}
