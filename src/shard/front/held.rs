//! A request that waits.

use super::identity::Identity;
use crate::protocol::{Argument, Arguments};
use crate::values::Timestamp;

/// A request that may not start before all earlier ones of its connection are answered.
#[derive(Debug)]
pub struct HeldRequest {
    /// Its bytes.
    pub frame: Vec<u8>,
    /// Where its words are.
    pub places: Vec<Argument>,
    /// On whose terms it is to run.
    pub identity: Identity,
    /// When it came.
    pub came: Timestamp,
}

impl HeldRequest {
    /// Keeps a request.
    pub fn new(arguments: &Arguments<'_>, identity: &Identity, came: Timestamp) -> Self {
        Self {
            frame: arguments.frame().to_vec(),
            places: arguments.places().to_vec(),
            identity: identity.clone(),
            came,
        }
    }

    /// What that takes.
    pub fn memory_bytes(&self) -> usize {
        self.frame.capacity() + self.places.capacity() * size_of::<Argument>()
    }
}
