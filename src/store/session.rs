//! The engine's state about one connection: its database, name, RESP version and transaction.

use crate::protocol::{Argument, Arguments, Protocol};

/// Maximum number of bytes that the commands queued in one transaction may take. Beyond it a command is not
/// queued, and EXEC fails.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The memory in bytes that a command queued in a transaction takes besides its frame and the positions of
/// its words there, including the overhead of two allocations.
const QUEUED_BYTES: usize = size_of::<Queued>() + 32;

/// The consequence of a request for its connection: it continues, is closed, or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The connection stays open.
    Continue,
    /// The connection is closed once the reply is sent.
    Close,
    /// There is no reply yet, because the request is a blocking call that waits. The connection's further
    /// requests wait for the reply, which [`Engine::poll_delivery`](super::Engine::poll_delivery) returns.
    Wait,
}

/// The engine's state of one connection: its database, name, RESP version and transaction.
#[derive(Debug)]
pub struct Session {
    pub(super) protocol: Protocol,
    pub(super) id: u64,
    pub(super) name: Vec<u8>,
    pub(super) library_name: Vec<u8>,
    pub(super) library_version: Vec<u8>,
    pub(super) transaction: Option<Transaction>,
    /// The number of the selected database.
    pub(super) database: u8,
    /// True from the connection's first WATCH until its watches end (by EXEC, UNWATCH and the like).
    pub(super) watches: bool,
    /// True while CLIENT TRACKING is on for the connection.
    pub(super) tracks: bool,
    /// True while the connection is subscribed to a channel or pattern.
    pub(super) subscribed: bool,
}

impl Session {
    /// Creates the state of a new connection; `id` is the number that `CLIENT ID` returns.
    pub fn new(id: u64) -> Self {
        Self {
            protocol: Protocol::Resp2,
            id,
            name: Vec::new(),
            library_name: Vec::new(),
            library_version: Vec::new(),
            transaction: None,
            database: 0,
            watches: false,
            tracks: false,
            subscribed: false,
        }
    }

    /// Returns the number that names the connection in [`Delivery`](super::Delivery) and in `CLIENT ID`.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Records that a request was refused before it was carried out: EXEC will refuse the open transaction,
    /// or the transaction is dropped if the request was EXEC itself.
    pub fn refuse(&mut self, arguments: &Arguments<'_>) {
        if arguments.name().eq_ignore_ascii_case(b"exec") {
            self.transaction = None;
        } else if let Some(transaction) = &mut self.transaction {
            transaction.spoiled = true;
        }
    }

    /// Returns the commands that the connection has queued since MULTI; `None` outside of a transaction.
    pub fn queued(&self) -> Option<impl ExactSizeIterator<Item = Arguments<'_>>> {
        self.transaction.as_ref().map(Transaction::commands)
    }

    /// Returns the RESP version of the connection.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }
}

/// The commands queued between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    queued: Vec<Queued>,
    bytes: usize,
    /// True if a command was refused when the transaction was to queue it, so that EXEC will refuse all of
    /// them.
    pub(super) spoiled: bool,
}

#[derive(Debug)]
struct Queued {
    frame: Vec<u8>,
    places: Vec<Argument>,
}

impl Transaction {
    /// Queues a copy of a command in the transaction. False if the queue is full; EXEC will refuse the
    /// transaction then.
    #[must_use]
    pub(super) fn queue(&mut self, arguments: Arguments<'_>) -> bool {
        self.bytes += arguments.frame().len() + size_of_val(arguments.places()) + QUEUED_BYTES;
        if self.bytes > QUEUED_BYTES_MAX {
            self.spoiled = true;
            return false;
        }
        self.queued.push(Queued { frame: arguments.frame().to_vec(), places: arguments.places().to_vec() });
        true
    }

    pub(super) fn commands(&self) -> impl ExactSizeIterator<Item = Arguments<'_>> {
        self.queued.iter().map(|queued| Arguments::new(&queued.frame, &queued.places))
    }
}
