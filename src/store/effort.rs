//! What one request costs the thread that all connections share, counted while it is carried out and bounded before.
//!
//! A unit is about what reading one element of a list takes, some tens of nanoseconds. What follows a request's own
//! length is only counted: the limits on requests bound it. What a short request can multiply is asked for first, by
//! `spend`, before it is done.

use super::refusal::Refusal;
use std::cell::Cell;

/// Any request, and each of its arguments.
const REQUEST: u64 = 8;
const ARGUMENT: u64 = 4;
/// Bytes copied, or compared, in one unit.
const BYTES: usize = 512;
/// An element read in its row.
pub(super) const LOOK: u64 = 1;
/// An element found, or not, by its hash.
pub(super) const FIND: u64 = 4;
/// An element added to a table.
pub(super) const INSERT: u64 = 8;
/// An element added to an order, or taken out of one.
pub(super) const RANK: u64 = 16;

/// The units of one request: how many it took, and how many it may take.
#[derive(Debug)]
pub(super) struct Effort {
    most: u64,
    // In a cell, because what is counted is lent by the keyspace meanwhile.
    spent: Cell<u64>,
}

impl Effort {
    pub(super) fn new(most: u64) -> Self {
        Self { most, spent: Cell::new(0) }
    }

    /// Units taken so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    /// Units that are left.
    pub(super) fn left(&self) -> u64 {
        self.most.saturating_sub(self.spent.get())
    }

    /// Counts what is done in any case.
    pub(super) fn charge(&self, units: u64) {
        self.spent.set(self.spent.get().saturating_add(units));
    }

    /// Counts what is about to be done to `count` elements, or refuses it.
    pub(super) fn spend(&self, count: usize, units_each: u64) -> Result<(), Refusal> {
        let units = (count as u64).saturating_mul(units_each);
        if units > self.left() {
            return Err(Refusal::TooMuchWork(self.most));
        }
        self.charge(units);
        Ok(())
    }

    /// Counts bytes that are about to be copied or compared, or refuses it.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<(), Refusal> {
        self.spend(bytes / BYTES, 1)
    }

    pub(super) fn charge_bytes(&self, bytes: usize) {
        self.charge((bytes / BYTES) as u64);
    }

    /// Counts a request by its length.
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
        assert_eq!((effort.spent(), effort.left()), (10, 90));
        effort.charge(u64::MAX);
        assert_eq!((effort.spent(), effort.left()), (u64::MAX, 0));
        assert_eq!(effort.spend(1, LOOK), Err(Refusal::TooMuchWork(100)));
    }
}
