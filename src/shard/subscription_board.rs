//! Board of subscriptions that stores have not acknowledged yet, on all cores. A client may send SUBSCRIBE
//! without awaiting the reply, and then PUBLISH over another connection. A server handles the two in this
//! order. Here each goes to the store over a connection of its own, and that of the SUBSCRIBE may have to be
//! opened first. So a PUBLISH waits for unacknowledged subscriptions of its tenant to the same channel
//! (`clients/publications.rs`), once the other cores have handled all that arrived before it.
//!
//! Each tenant has counters (cells) of its own, so that tenants never wait for each other. A PUBLISH does not wait
//! for subscriptions that begin after it, however many do: they count in a later generation.
//!
//! ```text
//!  generation 7:  begun, and not acknowledged: 3     a PUBLISH comes: generation 8 begins
//!  generation 8:  begun since: 5                     the PUBLISH waits until generation 7 has none
//!  generation 9:  begins when a PUBLISH of generation 8 waits and generation 7 has none
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::protocol::command::Subscription;
use crate::routing::slot_of;
use crate::values::TenantId;
use crate::values::limits::TENANTS_MAX;

/// The number of counters (cells) of a tenant: one of subscriptions that may match any channel, and others that
/// channels share by hash.
const CELLS: u16 = 64;
/// The index, among a tenant's counters, of the one that counts unacknowledged subscriptions that may match
/// any channel: those to patterns, and those that are not read yet.
const ANY: u16 = 0;

type Row = [Cell; CELLS as usize];

/// The number of bits in which a cell counts unacknowledged subscriptions of one generation (those that began
/// between two changes of the cell's number).
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// The position of the lowest bit of the number of the current generation in a cell, above the two counts.
const GENERATION_AT: u32 = 2 * COUNT_BITS;

/// Unacknowledged subscriptions of the current generation and of the one before it: two counts, of even and of
/// odd generations, and the number of the current generation (which wraps around). A message waits for its
/// generation and the one before; the next generation begins meanwhile, so that later subscriptions do not
/// delay it.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

/// The subscriptions that a message (`PUBLISH`) waits for: those of a tenant that had begun before it, and that may
/// match its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    tenant: TenantId,
    /// The counter of subscriptions that may match any channel, and the one for the message's channel: each as its
    /// index and its generation when the message came, or `None` if it counted nothing then.
    cells: [Option<(u16, u16)>; 2],
}

/// Counters of the subscriptions of all cores that stores have not acknowledged. A `PUBLISH` waits for those that began
/// before it.
#[derive(Debug)]
pub struct SubscriptionBoard {
    /// Rows of counters of unacknowledged subscriptions, by tenant, made when a client of the tenant first
    /// subscribes. The last one is of clients without a tenant.
    rows: Box<[OnceLock<Box<Row>>]>,
}

/// Subscriptions that count as not acknowledged by stores, so that a later `PUBLISH` waits for them, as long
/// as this value lives.
#[derive(Debug)]
pub struct Opening {
    board: Arc<SubscriptionBoard>,
    tenant: TenantId,
    /// The indices of the tenant's counters in which the subscriptions count, each with its generation.
    cells: Box<[(u16, u16)]>,
}

impl Cell {
    /// Counts one more subscription in the current generation, and returns the generation's number.
    fn begin(&self) -> u16 {
        let counted = |state| Some(state + one_of(generation_of(state)));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
        generation_of(before.unwrap_or_else(|state| state))
    }

    fn end(&self, generation: u16) {
        self.0.fetch_sub(one_of(generation), Ordering::Relaxed);
    }

    /// Returns the number of the current generation; `None` if no subscription is counted.
    fn awaited(&self) -> Option<u16> {
        let state = self.0.load(Ordering::Relaxed);
        let counts = state & ((1 << GENERATION_AT) - 1);
        (counts > 0).then_some(generation_of(state))
    }

    /// True if no subscription of this generation (those that began between two changes of the number) or an earlier
    /// one is counted any more. Begins the next generation if this one is the latest, as soon as the one before has
    /// ended, so that later subscriptions are not waited for.
    fn is_over(&self, generation: u16) -> bool {
        let state = self.0.load(Ordering::Relaxed);
        let left = count_of(state, generation);
        match generation_of(state).wrapping_sub(generation) {
            0 if count_of(state, generation.wrapping_sub(1)) > 0 => false,
            0 if left > 0 => {
                let next = state.wrapping_add(1 << GENERATION_AT);
                // If the counts have changed meanwhile, the next look tries again.
                let _ = self.0.compare_exchange(state, next, Ordering::Relaxed, Ordering::Relaxed);
                false
            }
            0 | 1 => left == 0,
            // The generation after the next one began when this one was over.
            _ => true,
        }
    }
}

/// Returns the number that is added to a cell to count one subscription of this generation.
fn one_of(generation: u16) -> u64 {
    1 << (u32::from(generation % 2) * COUNT_BITS)
}

fn count_of(state: u64, generation: u16) -> u64 {
    (state / one_of(generation)) & COUNT
}

fn generation_of(state: u64) -> u16 {
    (state >> GENERATION_AT) as u16
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
            Subscription::Channels => names.fold(0, |bits: u64, name| bits | 1 << cell_of(name)),
            Subscription::Patterns => 1 << ANY,
            Subscription::Sharded => return None,
        };
        Some(self.begin_in(tenant, (0..CELLS).filter(|cell| bits & 1 << cell != 0)))
    }

    /// Counts subscriptions of a tenant that are not read yet, and so may be to any channel, until the returned
    /// value is dropped.
    pub fn begin_unread(self: &Arc<Self>, tenant: TenantId) -> Opening {
        self.begin_in(tenant, std::iter::once(ANY))
    }

    fn begin_in(self: &Arc<Self>, tenant: TenantId, cells: impl Iterator<Item = u16>) -> Opening {
        let row =
            self.place(tenant).get_or_init(|| Box::new([const { Cell(AtomicU64::new(0)) }; CELLS as usize]));
        let cells = cells.map(|cell| (cell, row[usize::from(cell)].begin())).collect();
        Opening { board: Arc::clone(self), tenant, cells }
    }

    /// Returns the subscriptions that a message (`PUBLISH`) of a tenant to a channel has to wait for; None if
    /// there are none.
    pub fn awaited(&self, tenant: TenantId, channel: &[u8]) -> Option<Awaited> {
        let row = self.place(tenant).get()?;
        let cells = [ANY, cell_of(channel)]
            .map(|cell| row[usize::from(cell)].awaited().map(|generation| (cell, generation)));
        let awaited = Awaited { tenant, cells };
        // This look also begins the next generation, so that subscriptions from now on are not waited for.
        (!self.is_over(&awaited)).then_some(awaited)
    }

    /// True if stores have acknowledged these subscriptions, or they have failed. Has to be called again until then,
    /// since it also makes later subscriptions count apart (in the next generation), so that they are not waited for.
    pub fn is_over(&self, awaited: &Awaited) -> bool {
        let Some(row) = self.place(awaited.tenant).get() else { return true };
        // Each counter is looked at even if one is not over, as looks begin the next generation.
        let mut is_over = true;
        for (cell, generation) in awaited.cells.iter().flatten() {
            is_over &= row[usize::from(*cell)].is_over(*generation);
        }
        is_over
    }

    fn place(&self, tenant: TenantId) -> &OnceLock<Box<Row>> {
        &self.rows[usize::from(tenant.0).min(TENANTS_MAX)]
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(row) = self.board.place(self.tenant).get() {
            for (cell, generation) in &self.cells {
                row[usize::from(*cell)].end(*generation);
            }
        }
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
        let awaited = board.awaited(ONE, b"a").expect("it is on its way");
        assert!(board.awaited(ONE, b"b").is_some());
        assert_eq!((board.awaited(ONE, b"other"), board.awaited(OTHER, b"a")), (None, None));
        drop(first);
        assert!(!board.is_over(&awaited), "the second is still on its way");
        drop(second);
        assert!(board.is_over(&awaited));
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

    #[test]
    fn messages_wait_for_subscriptions_that_are_not_read_yet_whatever_their_channel() {
        let board = Arc::new(SubscriptionBoard::default());
        let unread = board.begin_unread(ONE);
        let awaited = board.awaited(ONE, b"any").expect("it may be to this channel");
        assert!(board.awaited(OTHER, b"any").is_none() && !board.is_over(&awaited));
        drop(unread);
        assert!(board.is_over(&awaited));
    }

    proptest::proptest! {
        /// Compares the board with a list of all unacknowledged subscriptions and waiting messages. No message may go
        /// before a subscription that came before it is acknowledged. Each message has to go once all subscriptions
        /// from before it are acknowledged, and after that all that had come by that moment.
        #[test]
        fn messages_wait_for_what_came_before_them_only(
            steps in proptest::collection::vec((0..3_u8, 0..1_000_usize), 1..400),
        ) {
            let board = Arc::new(SubscriptionBoard::default());
            let name: [&[u8]; 1] = [b"news"];
            let mut open: Vec<(usize, Opening)> = Vec::new();
            let mut waiting: Vec<(usize, Option<usize>, Awaited)> = Vec::new();
            for (number, (step, which)) in steps.into_iter().enumerate() {
                match step {
                    0 => {
                        let opening = board.begin(ONE, Subscription::Channels, name.into_iter());
                        open.push((number, opening.expect("a channel")));
                    }
                    1 if !open.is_empty() => drop(open.swap_remove(which % open.len())),
                    _ => {
                        let awaited = board.awaited(ONE, b"news");
                        proptest::prop_assert_eq!(awaited.is_some(), !open.is_empty());
                        waiting.extend(awaited.map(|awaited| (number, None, awaited)));
                    }
                }
                let is_open_before = |when: usize| open.iter().any(|(began, _)| *began < when);
                for (came, first, awaited) in std::mem::take(&mut waiting) {
                    let first = first.or_else(|| (!is_open_before(came)).then_some(number));
                    if board.is_over(&awaited) {
                        proptest::prop_assert!(!is_open_before(came), "it went before one that came before it");
                    } else {
                        proptest::prop_assert!(first.is_none_or(|first| is_open_before(first + 1)), "it waits in vain");
                        waiting.push((came, first, awaited));
                    }
                }
            }
        }
    }

    #[test]
    fn a_crowd_that_keeps_subscribing_keeps_no_message_waiting() {
        let board = Arc::new(SubscriptionBoard::default());
        let name: [&[u8]; 1] = [b"news"];
        let begin = || board.begin(ONE, Subscription::Channels, name.into_iter());
        let mut open = begin();
        for _ in 0..100_000 {
            let awaited = board.awaited(ONE, b"news").expect("one is always open");
            let next = begin();
            assert!(!board.is_over(&awaited));
            open = next;
            assert!(board.is_over(&awaited), "only what came since is open");
        }
        drop(open);
        assert_eq!(board.awaited(ONE, b"news"), None);
    }
}
