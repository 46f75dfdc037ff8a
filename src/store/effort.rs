//! The effort of a request: its cost to the thread that all connections share, counted while it is carried
//! out, and bounded.
//!
//! A unit is about the time to read one element of a list, some tens of nanoseconds. Effort that follows from
//! a request's own length is only counted, since the limits on requests bound it. Effort that a short request
//! can multiply is requested by `spend` before the work is done.

use super::refusal::Refusal;
use std::cell::Cell;

/// The units of effort (steps of work) charged for any request, besides its arguments and bytes.
const REQUEST: u64 = 8;
/// The units of effort (steps of work) charged for each argument of a request.
const ARGUMENT: u64 = 4;
/// The number of bytes that are copied or compared per unit of effort (steps of work).
const BYTES: usize = 512;
/// The units of effort (steps of work) to read the next element of a collection that is read in its order.
pub(super) const LOOK: u64 = 1;
/// The units of effort (steps of work) to look an element up by its hash.
pub(super) const FIND: u64 = 4;
/// The units of effort (steps of work) to add an element to a hash table.
pub(super) const INSERT: u64 = 8;
/// The units of effort (steps of work) to add an element to a sorted order, or to remove one.
pub(super) const RANK: u64 = 16;

/// The effort (steps of work) of one request: the units that it has taken, and the most that it may take.
#[derive(Debug)]
pub(super) struct Effort {
    most: u64,
    // The units taken so far, in a cell because they are counted while the keyspace is borrowed.
    spent: Cell<u64>,
    // The units taken, besides those, for work that has a limit of its own.
    aside: Cell<u64>,
}

impl Effort {
    pub(super) fn new(most: u64) -> Self {
        Self { most, spent: Cell::new(0), aside: Cell::new(0) }
    }

    /// Returns the units of effort (steps of work) that the request has taken so far, also for work that has a
    /// limit of its own.
    pub(super) fn spent(&self) -> u64 {
        self.spent.get().saturating_add(self.aside.get())
    }

    /// Returns the units of effort (steps of work) that the request may still take.
    pub(super) fn left(&self) -> u64 {
        self.most.saturating_sub(self.spent.get())
    }

    /// Counts units of effort (steps of work) for work that is done in any case, even beyond the limit.
    pub(super) fn charge(&self, units: u64) {
        self.spent.set(self.spent.get().saturating_add(units));
    }

    /// Counts units of effort (steps of work) for work that has a limit of its own, such as that for events of keys:
    /// the request may still take as many units as before.
    pub(super) fn charge_aside(&self, units: u64) {
        self.aside.set(self.aside.get().saturating_add(units));
    }

    /// Counts the units of effort (steps of work) for `count` elements, `units_each` for each, or refuses the
    /// request if fewer units are left.
    pub(super) fn spend(&self, count: usize, units_each: u64) -> Result<(), Refusal> {
        let units = (count as u64).saturating_mul(units_each);
        if units > self.left() {
            return Err(Refusal::TooMuchWork(self.most));
        }
        self.charge(units);
        Ok(())
    }

    /// Counts the units of effort (steps of work) for copying or comparing `bytes` bytes, or refuses the request
    /// if fewer units are left.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<(), Refusal> {
        self.spend(bytes / BYTES, 1)
    }

    pub(super) fn charge_bytes(&self, bytes: usize) {
        self.charge((bytes / BYTES) as u64);
    }

    /// Counts the units of effort (steps of work) for a request by its number of `arguments` and its length in
    /// `bytes`, even beyond the limit.
    pub(super) fn charge_request(&self, arguments: usize, bytes: usize) {
        self.charge(REQUEST + ARGUMENT * arguments as u64 + (bytes / BYTES) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_too_much_is_refused_before_and_not_counted() {
        let effort = Effort::new(100);
        effort.spend(10, LOOK).expect("there is enough");
        assert_eq!(effort.spend(usize::MAX, RANK), Err(Refusal::TooMuchWork(100)));
        effort.charge_aside(1_000);
        assert_eq!((effort.spent(), effort.left()), (1_010, 90));
        effort.charge(u64::MAX);
        assert_eq!((effort.spent(), effort.left()), (u64::MAX, 0));
        assert_eq!(effort.spend(1, LOOK), Err(Refusal::TooMuchWork(100)));
    }
}
