//! Was a key ever read as something that it could not have been? Pure: a list of operations in, contradictions out.
//!
//! Values are unique, so each read names its write. A value with its write and its reads is a *cluster* (Gibbons and Korach,
//! "Testing shared memories", 1997): a register holds it from its write until something replaces it, and never again. A delete is a cluster
//! of its own, and so is each read that found nothing. A cluster comes before another if an operation of it does: it was answered before
//! the other was asked, or the same connection sent it earlier. The history of a key is right if and only if the clusters can be put into
//! one order (the order of time alone is the rule of forward and backward zones; connections add arrows that zones cannot tell, such
//! as within a pipeline), and no value is read before it is written.
//!
//! | file | what it finds |
//! |---|---|
//! | `clusters.rs` | values that nobody wrote, that were refused, or that were read before they were written |
//! | `arrows.rs`, `circles.rs` | clusters that come before each other: stale reads, reads that go backwards, own writes not seen |
//! | `absence.rs` | nothing found where no delete, expiry or beginning can be the reason |
//! | `lifetimes.rs` | values found after they had expired, or after a command had taken them away and said so |
//! | `explain.rs` | words for them |
//! | `brute_force.rs` | in tests: every order is tried, as a model |
//!
//! What is found is always wrong. What is not found: a nil has no name, so which delete it saw is left open as far as there are enough of them
//! at the right times (`absence.rs`); and an unknown delete is a reason for a nil, but proves nothing.
//!
//! Nobody promises the place of a script that does not declare its key in a pipeline (`Way::Unnamed`), so for it only time counts.
//!
//! **Stale by permission** (`Rules::ttl`, where somebody writes past weir): a plain read may be as of any instant since `ttl` before it was asked, but
//! not before a write through weir that was acknowledged by then, nor before what its own connection wrote or had read with the same command.

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

/// What is promised.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// By how much plain reads may be stale where somebody writes past weir.
    pub ttl: Duration,
    /// How exact expiry is: the store counts in milliseconds, on a clock of its own.
    pub slack: Duration,
    /// Stores may come back empty, so that nothing found needs no reason.
    pub stores_forget: bool,
}

/// What is wrong with a key.
#[derive(Debug, Default)]
pub struct Verdict {
    pub violations: u64,
    /// The first of them in words.
    pub explained: Vec<String>,
}

/// So many are explained of each kind.
const EXPLAINED_MAX: usize = 20;

impl Verdict {
    fn note(&mut self, explain: impl FnOnce() -> String) {
        self.violations += 1;
        if self.explained.len() < EXPLAINED_MAX {
            self.explained.push(explain());
        }
    }
}

/// Judges all operations on one key.
pub fn judge(mut operations: Vec<Operation>, rules: &Rules) -> Verdict {
    // Stable: the read and the write of one command stay in this order.
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
    /// The earliest instant that an operation may be as of.
    fn start(&self, operation: &Operation) -> Timestamp {
        let may_be_stale = operation.way == Way::Plain && matches!(operation.act, Act::Read(_));
        if may_be_stale { operation.asked.before(self.ttl) } else { operation.asked }
    }

    /// Is a later read of the same connection as new as this one?
    fn keeps_up(&self, earlier: &Operation, later: &Operation) -> bool {
        let both_read = matches!((earlier.act, later.act), (Act::Read(_), Act::Read(_)));
        !both_read || self.ttl.is_zero() || earlier.command == later.command
    }
}

/// A write through weir that was acknowledged: whoever asks afterwards must not miss it.
fn is_binding(operation: &Operation) -> bool {
    operation.way != Way::Around
        && operation.fate == Fate::Done
        && matches!(operation.act, Act::Write { .. } | Act::Delete)
}
