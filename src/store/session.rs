//! What the engine remembers of one connection.

use crate::protocol::{Argument, Arguments, Protocol};

/// Bytes that one transaction may queue.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What keeping a command costs beside its bytes, two blocks of an allocator included.
const QUEUED_BYTES: usize = size_of::<Queued>() + 32;

/// What becomes of a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It goes on.
    Continue,
    /// It is closed once the reply is sent.
    Close,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    pub(super) protocol: Protocol,
    pub(super) id: u64,
    pub(super) name: Vec<u8>,
    pub(super) library_name: Vec<u8>,
    pub(super) library_version: Vec<u8>,
    pub(super) transaction: Option<Transaction>,
}

impl Session {
    /// The state of a connection that has just come; `id` is what `CLIENT ID` tells.
    pub fn new(id: u64) -> Self {
        Self {
            protocol: Protocol::Resp2,
            id,
            name: Vec::new(),
            library_name: Vec::new(),
            library_version: Vec::new(),
            transaction: None,
        }
    }

    /// A request was refused before it was carried out: what is queued with it will be too.
    pub fn refuse(&mut self, arguments: &Arguments<'_>) {
        if arguments.name().eq_ignore_ascii_case(b"exec") {
            self.transaction = None;
        } else if let Some(transaction) = &mut self.transaction {
            transaction.spoiled = true;
        }
    }

    /// Commands that wait for EXEC; nothing outside of a transaction.
    pub fn queued(&self) -> Option<impl ExactSizeIterator<Item = Arguments<'_>>> {
        self.transaction.as_ref().map(Transaction::commands)
    }

    /// The dialect that the connection speaks.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    queued: Vec<Queued>,
    bytes: usize,
    /// A command was refused, so EXEC will refuse them all.
    pub(super) spoiled: bool,
}

#[derive(Debug)]
struct Queued {
    frame: Vec<u8>,
    places: Vec<Argument>,
}

impl Transaction {
    /// Keeps a copy of a command; tells whether there was room.
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

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn commands(&self) -> impl ExactSizeIterator<Item = Arguments<'_>> {
        self.queued.iter().map(|queued| Arguments::new(&queued.frame, &queued.places))
    }
}
