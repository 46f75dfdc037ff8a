//! Outcome: the result of a request, as far as its price depends on that.

use crate::policy::price::Measured;

/// Result of a request, from which its final cost is calculated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A backend replied, perhaps with an error, or weir made the reply itself. Replies from memory and
    /// refusals by weir are not of this kind.
    Served {
        /// Number of bytes of the reply, including those that were not passed on to the client.
        bytes: u32,
        /// Number of elements of the reply; 0 if it is not a collection.
        rows: u32,
        /// Time that the backend took, in microseconds.
        took_micros: u32,
        /// Time by which the reply took longer than replies to requests of its class usually do, in
        /// microseconds.
        slowness_micros: u32,
        /// Time for which the request kept the backend busy, in microseconds, where neither the request nor the
        /// reply shows how much work it was; 0 for all other requests.
        busy_micros: u32,
    },
    /// The reply was taken from memory, or from the fetch of a hot key that another request had caused.
    Cached {
        /// Number of bytes of the reply.
        bytes: u32,
        /// Number of values in the reply: those of `MGET`, and 1 for any other request.
        values: u32,
    },
    /// The request was sent to a backend, and whether it was carried out is unknown: it costs its estimated
    /// price.
    Lost,
    /// weir refused the request after it had been admitted, and counts it as not carried out: it costs nothing.
    Refused,
    /// weir refused the request after it had been admitted, because it writes a hot key that is written as often as
    /// permitted (`--hot-write-rate`): it costs nothing.
    Throttled,
}

impl Outcome {
    /// Returns the outcome of a request that a backend answered with so many `bytes` and elements (`rows`). All
    /// times are in microseconds: that which the backend took, by how much that is more than usual, and that for
    /// which the request kept the backend busy.
    #[inline]
    pub const fn served(
        (bytes, rows): (u64, u64),
        (took_micros, slowness_micros): (u64, u64),
        busy_micros: u32,
    ) -> Self {
        Self::Served {
            bytes: in_32_bits(bytes),
            rows: in_32_bits(rows),
            took_micros: in_32_bits(took_micros),
            slowness_micros: in_32_bits(slowness_micros),
            busy_micros,
        }
    }

    /// Returns the outcome of a request that weir answered by itself: besides the part of its price that is known on
    /// arrival, it costs only the bytes of its reply.
    pub const fn answered(reply_bytes: usize) -> Self {
        Self::served((reply_bytes as u64, 0), (0, 0), 0)
    }

    /// Returns the outcome of a request that was answered from memory, or with the reply to another request.
    pub const fn cached(reply_bytes: usize) -> Self {
        Self::cached_values(reply_bytes, 1)
    }

    /// Returns the outcome of an `MGET` that was answered with so many `values` from memory.
    pub const fn cached_values(reply_bytes: usize, values: usize) -> Self {
        Self::Cached { bytes: in_32_bits(reply_bytes as u64), values: in_32_bits(values as u64) }
    }
}

/// The measurements of a reply, summed up over the parts of the request, from which its price follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    pub(super) measured: Measured,
    /// The number of parts of the request that a backend answered, or that weir answered by itself.
    pub(super) served: u16,
    /// The number of parts of the request that were sent and never answered; `u16::MAX` if there are none and at least
    /// one part was answered from memory, or from a fetch that another request had caused.
    pub(super) lost: u16,
    /// True if weir refused a part of the request after the request had been admitted, and counts the part as not
    /// carried out; writes of hot keys that are written as often as permitted are left out.
    pub(super) is_refused: bool,
    /// True if weir refused a part of the request because it writes a hot key that is written as often as permitted
    /// (`--hot-write-rate`).
    pub(super) is_throttled: bool,
}

/// The value of [`Settlement::lost`] (number of parts of a request that were never answered) which means that
/// none was lost, and at least one was answered from memory, or from a fetch that another request had caused.
pub(super) const CACHED: u16 = u16::MAX;

impl Settlement {
    /// Creates the measurements of a request that was not split, from its outcome.
    #[inline]
    pub fn of(outcome: Outcome) -> Self {
        let mut settlement = Self::default();
        settlement.add(outcome);
        settlement
    }

    /// Adds the outcome of one more part of the request to the measurements of the others.
    #[inline]
    pub fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Served { bytes, rows, took_micros, slowness_micros, busy_micros } => {
                self.served = self.served.saturating_add(1);
                let measured = &mut self.measured;
                measured.bytes_out = measured.bytes_out.saturating_add(u64::from(bytes));
                measured.rows = measured.rows.saturating_add(u64::from(rows));
                measured.took_micros = measured.took_micros.max(u64::from(took_micros));
                measured.slowness_micros = measured.slowness_micros.max(u64::from(slowness_micros));
                measured.busy_micros = measured.busy_micros.saturating_add(u64::from(busy_micros));
            }
            Outcome::Cached { bytes, values } => {
                if self.lost == 0 {
                    self.lost = CACHED;
                }
                self.measured.bytes_out = self.measured.bytes_out.saturating_add(u64::from(bytes));
                self.measured.rows = self.measured.rows.saturating_add(u64::from(values));
            }
            Outcome::Lost => self.lost = self.lost.saturating_add(1).min(CACHED - 1),
            Outcome::Refused => self.is_refused = true,
            Outcome::Throttled => self.is_throttled = true,
        }
    }
}

const fn in_32_bits(number: u64) -> u32 {
    if number > u32::MAX as u64 { u32::MAX } else { number as u32 }
}
