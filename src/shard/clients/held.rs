//! A request that is kept until it may be carried out.

use super::identity::Identity;
use crate::protocol::{Argument, Arguments};
use crate::values::Timestamp;

/// A copy of a request that may not be carried out yet: it waits for earlier replies, for quotas, for the map
/// of a cluster, or for the end of a `CLIENT PAUSE`. Requests queued in a transaction for weir itself are
/// kept in the same form.
#[derive(Debug)]
pub struct HeldRequest {
    /// The bytes of the request, as received.
    pub frame: Vec<u8>,
    /// The positions of the request's arguments in `frame`.
    pub places: Vec<Argument>,
    /// The identity under which the request is carried out.
    pub identity: Identity,
    /// Time at which the request arrived; its deadline counts from this time.
    pub came: Timestamp,
}

impl HeldRequest {
    /// Copies a request.
    pub fn new(arguments: &Arguments<'_>, identity: &Identity, came: Timestamp) -> Self {
        Self {
            frame: arguments.frame().to_vec(),
            places: arguments.places().to_vec(),
            identity: identity.clone(),
            came,
        }
    }

    /// Returns the memory that the copy takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.frame.capacity() + self.places.capacity() * size_of::<Argument>()
    }
}
