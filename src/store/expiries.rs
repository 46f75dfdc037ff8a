//! The expiries of a hash's fields, by name and by time.

use std::collections::{BTreeMap, BTreeSet};

/// The approximate bytes that the expiry of a field takes, without the two copies of the field's name in
/// `Expiries` (by name, by time), which come on top of it and of the hash's own copy.
pub(super) const EXPIRY_BYTES: usize = 112;
/// The least bytes of the expiries of a hash's fields: both trees have room for several from the beginning.
const BYTES_MIN: usize = 560;

/// The expiries of the fields of one hash, in milliseconds since 1970.
#[derive(Clone, Default)]
pub(super) struct Expiries {
    by_name: BTreeMap<Box<[u8]>, u64>,
    by_time: BTreeSet<(u64, Box<[u8]>)>,
    bytes: usize,
}

impl Expiries {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.max(BYTES_MIN)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the number of fields of the hash that expire.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the latest expiry of any field of the hash, in milliseconds since 1970; `None` if no field
    /// expires.
    pub(super) fn latest_ms(&self) -> Option<u64> {
        self.by_time.last().map(|(expires_ms, _)| *expires_ms)
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// Returns the soonest expiry of any field of the hash, in milliseconds since 1970; `None` if no field
    /// expires.
    pub(super) fn soonest_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(expires_ms, _)| *expires_ms)
    }

    /// Sets the expiry of a field of the hash (milliseconds since 1970), or removes it (`None`). True if the
    /// field had an expiry before.
    pub(super) fn set(&mut self, name: &[u8], expires_ms: Option<u64>) -> bool {
        let former = self.by_name.remove(name);
        if let Some(former) = former {
            self.by_time.remove(&(former, name.into()));
            self.bytes -= 2 * name.len() + EXPIRY_BYTES;
        }
        if let Some(expires_ms) = expires_ms {
            self.by_name.insert(name.into(), expires_ms);
            self.by_time.insert((expires_ms, name.into()));
            self.bytes += 2 * name.len() + EXPIRY_BYTES;
        }
        former.is_some()
    }

    /// Removes the expiry of a field that expired before `now_ms`, and returns the field's name; `None` if
    /// there is no such field.
    pub(super) fn pop_expired(&mut self, now_ms: u64) -> Option<Box<[u8]>> {
        self.soonest_ms().filter(|soonest| *soonest < now_ms)?;
        let (_, name) = self.by_time.pop_first()?;
        self.by_name.remove(&name);
        self.bytes -= 2 * name.len() + EXPIRY_BYTES;
        Some(name)
    }
}
