//! Board of subscriptions that stores have not acknowledged yet, on all cores. A client may send SUBSCRIBE
//! without awaiting the reply, and then PUBLISH over another connection. A server handles the two in this
//! order. Here each goes to the store over a connection of its own, and that of the SUBSCRIBE may have to be
//! opened first. So a PUBLISH waits for unacknowledged subscriptions of its tenant to the same channel
//! (`clients/publications.rs`), once the other cores have handled all that arrived before it.
//!
//! Each tenant has counters (cells) of its own, so that tenants never wait for each other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::protocol::command::Subscription;
use crate::routing::slot_of;
use crate::values::TenantId;
use crate::values::limits::TENANTS_MAX;

/// The number of counters (cells) of a tenant: one for all patterns, and others that channels share by hash.
const CELLS: u16 = 64;
/// The index, among a tenant's counters, of the one that counts unacknowledged subscriptions to patterns,
/// which may match any channel.
const PATTERNS: u16 = 0;

type Row = [AtomicU32; CELLS as usize];

/// Some of one tenant's counters of subscriptions that stores have not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    tenant: TenantId,
    /// Bit set of the indices of those counters of the tenant that are meant: bit n stands for the counter
    /// with index n.
    bits: u64,
}

/// The subscriptions of all cores that stores have not acknowledged.
#[derive(Debug)]
pub struct SubscriptionBoard {
    /// Rows of counters of unacknowledged subscriptions, by tenant, made when a client of the tenant first
    /// subscribes. The last one is of clients without a tenant.
    rows: Box<[OnceLock<Box<Row>>]>,
}

/// Subscriptions that count as not acknowledged by stores as long as this value lives.
#[derive(Debug)]
pub struct Opening {
    board: Arc<SubscriptionBoard>,
    cells: Cells,
}

impl Default for SubscriptionBoard {
    fn default() -> Self {
        Self { rows: std::iter::repeat_with(OnceLock::new).take(TENANTS_MAX + 1).collect() }
    }
}

impl SubscriptionBoard {
    /// Counts subscriptions of a tenant as not acknowledged by stores until the returned value is dropped.
    /// None for sharded channels, which are not counted.
    pub fn begin<'a>(
        self: &Arc<Self>,
        tenant: TenantId,
        kind: Subscription,
        names: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Opening> {
        let bits = match kind {
            Subscription::Channels => names.fold(0, |bits, name| bits | 1 << cell_of(name)),
            Subscription::Patterns => 1 << PATTERNS,
            Subscription::Sharded => return None,
        };
        let cells = Cells { tenant, bits };
        let row = self.place(tenant).get_or_init(|| Box::new([const { AtomicU32::new(0) }; CELLS as usize]));
        cells.iter().for_each(|cell| {
            row[cell].fetch_add(1, Ordering::Relaxed);
        });
        Some(Opening { board: Arc::clone(self), cells })
    }

    /// Returns the counters that a message (`PUBLISH`) of a tenant to a channel has to wait for; None if they
    /// count no subscription.
    pub fn awaited(&self, tenant: TenantId, channel: &[u8]) -> Option<Cells> {
        let cells = Cells { tenant, bits: 1 << PATTERNS | 1 << cell_of(channel) };
        self.has_any(cells).then_some(cells)
    }

    /// True if any of these counters counts a subscription that is not acknowledged.
    pub fn has_any(&self, cells: Cells) -> bool {
        let row = self.place(cells.tenant).get();
        row.is_some_and(|row| cells.iter().any(|cell| row[cell].load(Ordering::Relaxed) > 0))
    }

    fn place(&self, tenant: TenantId) -> &OnceLock<Box<Row>> {
        &self.rows[usize::from(tenant.0).min(TENANTS_MAX)]
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(row) = self.board.place(self.cells.tenant).get() {
            self.cells.iter().for_each(|cell| {
                row[cell].fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

impl Cells {
    fn iter(self) -> impl Iterator<Item = usize> {
        (0..usize::from(CELLS)).filter(move |cell| self.bits & 1 << cell != 0)
    }
}

fn cell_of(channel: &[u8]) -> u16 {
    1 + slot_of(channel) % (CELLS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);

    #[test]
    fn messages_wait_for_subscriptions_of_their_own_tenant_to_their_own_channel() {
        let board = Arc::new(SubscriptionBoard::default());
        assert_eq!(board.awaited(ONE, b"a"), None);
        let names: [&[u8]; 3] = [b"a", b"b", b"a"];
        let first = board.begin(ONE, Subscription::Channels, names.into_iter());
        let second = board.begin(ONE, Subscription::Channels, names.into_iter());
        let cells = board.awaited(ONE, b"a").expect("it is on its way");
        assert!(board.awaited(ONE, b"b").is_some());
        assert_eq!((board.awaited(ONE, b"other"), board.awaited(OTHER, b"a")), (None, None));
        drop(first);
        assert!(board.has_any(cells), "the second is still on its way");
        drop(second);
        assert!(!board.has_any(cells));
        assert_eq!(board.awaited(ONE, b"a"), None);
    }

    #[test]
    fn messages_to_all_channels_wait_for_patterns_and_none_for_sharded_channels() {
        let board = Arc::new(SubscriptionBoard::default());
        let nobody = TenantId(u16::MAX);
        let pattern: [&[u8]; 1] = [b"a*"];
        let opening = board.begin(nobody, Subscription::Patterns, pattern.into_iter());
        assert!(board.awaited(nobody, b"any").is_some() && board.awaited(ONE, b"any").is_none());
        drop(opening);
        assert_eq!(board.awaited(nobody, b"any"), None);
        assert!(board.begin(ONE, Subscription::Sharded, pattern.into_iter()).is_none());
        assert_eq!(board.awaited(ONE, b"a*"), None);
    }
}
