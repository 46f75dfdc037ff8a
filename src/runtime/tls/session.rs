//! TLS on one connection: decrypts bytes that arrive and encrypts bytes that leave. It does no I/O, so
//! sockets and rings stay where they are.
//!
//! Its memory is bounded: an incomplete record, and the part of a segment that was encrypted at once.
//! Decrypted bytes are passed on immediately, so they count like bytes of any other client.

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

/// Maximum number of bytes that encryption adds to 64 KiB of plain text (`TLS_SEND_BYTES_MAX`): each record
/// of 16 KiB grows by some 30 bytes, and a message of TLS itself may be added.
const SEND_OVERHEAD: usize = 1024;
/// The number of sent bytes (1 MiB) after which it is reported that a connection makes progress: as many as a
/// plain socket sends at once.
const PROGRESS_BYTES: usize = 1 << 20;

/// A client whose TLS handshake is done, on its way from the thread for handshakes to a shard.
pub(in crate::runtime) struct SecureClient {
    pub socket: OwnedFd,
    pub session: Box<Session>,
    pub entrance: Entrance,
    /// The name in the client's certificate; none if the client showed no certificate, or it has no name that
    /// could be a tenant's.
    pub name: Option<Box<str>>,
}

impl std::fmt::Debug for SecureClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SecureClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The peer of a TLS connection, a client or a store, with the data that only one of the two has.
enum Far {
    /// A client, counted as open, with the state of its certificate; None if it has shown none.
    Client(OpenConnection, Option<Arc<Credential>>),
    /// A store, with the name that error messages give it. `told` is true once a problem of the connection
    /// was reported, which happens once.
    Store { name: Box<str>, handshake: StoreHandshake, told: bool },
}

/// The changes of a connection's TLS state that received bytes caused.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::runtime) struct Heard {
    /// True if the TLS handshake was completed by the bytes that were received.
    pub ready: bool,
    /// True if the peer has ended its sending side with the bytes that were received.
    pub ended: bool,
}

/// The TLS state of one connection, which encrypts what is sent and decrypts what is received.
pub(in crate::runtime) struct Session {
    connection: Connection,
    far: Far,
    ready: bool,
    ended: bool,
    /// True once application data was received from the peer after the handshake.
    heard: bool,
    /// The segment of plain text that is being sent, None if none is; `taken` is the number of its bytes that
    /// were encrypted so far.
    plain: Option<Segment>,
    taken: usize,
    /// The number of bytes sent since it was last reported that the connection makes progress.
    progress: usize,
}

impl Session {
    /// Makes the TLS session of a client whose handshake is done. `credential` is the state of its
    /// certificate, if it showed one; `tally` counts the connection as open.
    pub fn of_client(
        connection: ServerConnection,
        credential: Option<Arc<Credential>>,
        tally: &Arc<Tally>,
    ) -> Self {
        let far = Far::Client(OpenConnection::new(tally), credential);
        Self::new(Connection::Server(connection), far, true)
    }

    /// Makes the TLS session of a connection to a store, before the handshake. `host` names the store in
    /// messages, `name` is the name that its certificate must have, and `tally` counts the handshake's outcome.
    /// Fails if the configuration permits no session.
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

    /// Returns the bare TLS connection, and the counter of its handshake's outcome if it is with a store, for
    /// threads that read and write it themselves.
    pub fn apart(self) -> (Connection, Option<StoreHandshake>) {
        let handshake = match self.far {
            Far::Store { handshake, .. } => Some(handshake),
            Far::Client(..) => None,
        };
        (self.connection, handshake)
    }

    /// True if the peer has announced, in TLS, that it sends no more.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// True if the peer is a client whose certificate is no longer accepted.
    pub fn is_withdrawn(&self) -> bool {
        matches!(&self.far, Far::Client(_, Some(credential)) if credential.is_withdrawn())
    }

    /// Decrypts received bytes and appends the plain text to `plain`: at most about as many bytes as were
    /// received, plus those of an earlier, incomplete record. Returns whether the handshake was completed, or
    /// the peer's side ended, by these bytes. After an error the connection must be closed.
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
            // The reader has all the bytes that it announced.
            let read = self.connection.reader().read(&mut plain[length..]).unwrap_or(0);
            plain.truncate(length + read);
            self.heard |= read > 0;
            self.ended |= state.peer_has_closed();
            if self.ended || bytes.is_empty() {
                break;
            }
            // `read_tls` takes a part of the bytes at a time. Bytes behind the peer's end are not looked at.
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

    /// Encrypts up to 64 KiB (`TLS_SEND_BYTES_MAX`) of the segment of plain text that is being sent, once the
    /// handshake is over. Returns the TLS records to send, those of the handshake among them; `None` if there
    /// are none.
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
                // Writing to memory does not fail; bytes that find no room are taken next time.
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

    /// Begins to send a segment of plain text. No other segment may begin before this one is returned as sent
    /// or given up.
    pub fn begin_sending(&mut self, segment: Segment) {
        debug_assert!(self.plain.is_none(), "one segment is under way");
        (self.plain, self.taken) = (Some(segment), 0);
    }

    /// Handles that `bytes` encrypted bytes have been sent. Returns the segment of plain text if all of it was
    /// sent (else `None`), and whether 1 MiB (`PROGRESS_BYTES`) was sent since progress was last reported, so
    /// that it is to be reported again.
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

    /// Takes the segment of plain text that was being sent, since the connection is lost. `None` if none was.
    pub fn give_up(&mut self) -> Option<Segment> {
        self.plain.take()
    }

    /// Encrypts the notice that no data follows (TLS `close_notify`), which is sent last. Returns the
    /// encrypted bytes.
    pub fn farewell(&mut self) -> Vec<u8> {
        self.connection.send_close_notify();
        let mut bytes = Vec::new();
        while self.connection.wants_write()
            && self.connection.write_tls(&mut bytes).is_ok_and(|written| written > 0)
        {}
        bytes
    }

    /// Returns the name in a client's certificate; `None` if the client showed no certificate, or it has no
    /// name, or a longer one than a tenant can have.
    pub fn name(connection: &ServerConnection) -> Option<Box<str>> {
        let certificate = connection.peer_certificates()?.first()?;
        name_in(certificate).filter(|name| name.len() <= TENANT_NAME_BYTES_MAX).map(Into::into)
    }

    /// Returns a message, with the reason `problem`, about a connection to a store that was lost before the
    /// store sent any data: the handshake failed or, with TLS 1.3, the store refused weir's certificate right
    /// after it. `None` if there was a message already, the store has sent data, or the peer is a client.
    /// `outcome` is counted if the handshake was not done.
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
    /// Counts an error in the bytes that the peer sent: they are not TLS, or TLS does not allow them.
    fn note_error(&mut self, error: &rustls::Error) {
        match self {
            Self::Client(open, _) => open.tally().note_broken(),
            Self::Store { handshake, .. } => handshake.note_error(error),
        }
    }
}
