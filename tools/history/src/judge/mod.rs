//! The judge: finds reads of a key that cannot have happened. Pure: takes a list of operations, returns
//! contradictions.
//!
//! Values are unique, so each read names its write. A value with its write and its reads is a *cluster*
//! (Gibbons and Korach, "Testing shared memories", 1997): a register holds the value from its write until a
//! later write, a delete or an expiry, and never again. A delete is a cluster of its own, and so is each read
//! that found nothing. A cluster comes before another if one of its operations was answered before an
//! operation of the other was asked, or if one connection sent these two operations in that order. The
//! history of a key is right if and only if the clusters can be put into one order, and no value is read
//! before it is written. (By time alone, this is the rule of forward and backward zones; the order on
//! connections, such as within a pipeline, adds to it.)
//!
//! | file | what it finds |
//! |---|---|
//! | `clusters.rs` | values that no client wrote, that were refused, or that were read before they were written |
//! | `arrows.rs`, `circles.rs` | clusters before each other: stale reads, reads going backwards, unseen own writes |
//! | `absence.rs` | reads of nothing where no delete, expiry or beginning can be the reason |
//! | `lifetimes.rs` | values found after they had expired, or after a command had taken them away and said so |
//! | `explain.rs` | explanations of contradictions in words |
//! | `brute_force.rs` | in tests: every order is tried, as a model |
//!
//! Every contradiction that is found is real. Some are missed: a nil does not name the delete that it saw, so
//! that is left open as far as there are enough deletes at the right times (`absence.rs`); and an unknown
//! delete is a reason for a nil, but proves nothing.
//!
//! The place of a script that does not declare its key is not promised within a pipeline (`Way::Unnamed`), so
//! for it only time counts.
//!
//! **Stale by permission** (`Rules::ttl`, where a client writes past weir): a plain read may show the key as
//! it was at any instant in the time `ttl` before the read was asked. But it may show no older state than a
//! write through weir that was acknowledged before the read was asked, and no older value than its own
//! connection had written, or had read with the same command.

mod absence;
mod arrows;
#[cfg(test)]
mod brute_force;
mod circles;
mod clusters;
mod explain;
mod lifetimes;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::operation::{Act, Fate, Operation, Way};
use arrows::Arrows;
use clusters::Clusters;
use weir::values::Timestamp;

/// The promises of weir and its stores by which the recorded operations are judged.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The time by which reads that weir may answer without the store can be stale, if a client writes to
    /// the store past weir; zero if none does.
    pub ttl: Duration,
    /// The tolerance for the time at which a value expires, since the store counts in milliseconds on a
    /// clock of its own.
    pub slack: Duration,
    /// True if stores may lose all keys, so that a read that finds nothing is always possible.
    pub stores_forget: bool,
}

/// The violations found on one key: their number, and explanations of the first ones.
#[derive(Debug, Default)]
pub struct Verdict {
    pub violations: u64,
    /// Explanations of the first violations on the key, at most 20, in words for people.
    pub explained: Vec<String>,
}

/// Maximum number of violations on one key that are explained; further ones are only counted.
const EXPLAINED_MAX: usize = 20;

impl Verdict {
    fn note(&mut self, explain: impl FnOnce() -> String) {
        self.violations += 1;
        if self.explained.len() < EXPLAINED_MAX {
            self.explained.push(explain());
        }
    }
}

/// Checks all operations on one key against the promises in `rules`. Returns the violations: reads that
/// found a value, or nothing, that they cannot have found.
pub fn judge(mut operations: Vec<Operation>, rules: &Rules) -> Verdict {
    // The sort is stable: the read and the write of one command stay in this order.
    operations.sort_by_key(|operation| (operation.session, operation.number));
    let mut verdict = Verdict::default();
    let clusters = Clusters::of(&operations, &mut verdict);
    let arrows = Arrows::of(&operations, &clusters, rules, &mut verdict);
    circles::find(&operations, &clusters, &arrows, &mut verdict);
    absence::find(&operations, rules, &mut verdict);
    lifetimes::find(&operations, &clusters, rules, &mut verdict);
    verdict
}

impl Rules {
    /// Returns the earliest instant whose state of the key the operation may have seen: when it was asked,
    /// or earlier for a read that may be stale.
    fn start(&self, operation: &Operation) -> Timestamp {
        let may_be_stale = operation.way == Way::Plain && matches!(operation.act, Act::Read(_));
        if may_be_stale { operation.asked.before(self.ttl) } else { operation.asked }
    }

    /// True if `later`, on the same connection, must see a state of the key at least as new as `earlier` saw.
    fn keeps_up(&self, earlier: &Operation, later: &Operation) -> bool {
        let both_read = matches!((earlier.act, later.act), (Act::Read(_), Act::Read(_)));
        !both_read || self.ttl.is_zero() || earlier.command == later.command
    }
}

/// True for an acknowledged write or delete through weir, which all operations that begin afterwards must
/// see.
fn is_binding(operation: &Operation) -> bool {
    operation.way != Way::Around
        && operation.fate == Fate::Done
        && matches!(operation.act, Act::Write { .. } | Act::Delete)
}
