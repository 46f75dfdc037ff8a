//! Finds reads of nothing where a value must have been.
//!
//! A nil (a read that found nothing) needs a *reason*: a delete or the expiry of a value. The nil comes after
//! values that were written or found with an answer before the nil was asked, or earlier on its own
//! connection; so the reason must not be over before the newest of these values began, and must have begun
//! before the nil was answered. One reason serves for several nils until a value comes between. So each of
//! the nils with values between them needs a reason of its own: their spans of time do not touch, and of the
//! reasons that fit, the one that is over first is used up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::super::operation::{Act, Fate, Found, Operation, Way};
use super::{Rules, Verdict, explain, is_binding};
use weir::values::Timestamp;

pub fn find(operations: &[Operation], rules: &Rules, verdict: &mut Verdict) {
    if rules.stores_forget {
        return;
    }
    let mut nils: Vec<Nil> = Vec::new();
    let values = Values::of(operations, rules, |_| true);
    let written = Values::of(operations, rules, is_binding);
    // Values that the connection itself wrote or read: its newest write, and its reads since then.
    let mut own: Vec<usize> = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        own.retain(|earlier| operations[*earlier].session == operation.session);
        if operation.reads() == Some(Found::Nil) {
            let by_time = [values.newest(rules.start(operation)), written.newest(operation.asked)];
            let by_order =
                own.iter().copied().filter(|earlier| rules.keeps_up(&operations[*earlier], operation));
            let newest = by_time.into_iter().flatten().chain(by_order);
            let newest = newest.max_by_key(|earlier| rules.start(&operations[*earlier]));
            nils.extend(newest.map(|newest| Nil {
                until: operation.answered,
                from: rules.start(&operations[newest]),
                index,
                newest,
            }));
        }
        if is_value(operation) && operation.way != Way::Unnamed {
            if !matches!(operation.act, Act::Read(_)) {
                own.clear();
            }
            own.retain(|earlier| {
                let former = &operations[*earlier];
                !matches!(former.act, Act::Read(_)) || !rules.keeps_up(former, operation)
            });
            own.push(index);
        }
    }
    for nil in unexplained(operations, nils, rules.slack) {
        let (value, nil) = (&operations[nil.newest], &operations[nil.index]);
        verdict.note(|| explain::two(value, "was there", nil, "found nothing, for no reason"));
    }
}

/// A read that found nothing, its index among the operations, and a time span (`from` to `until`): a delete
/// or an expiry explains the read only if it lies in that span.
#[derive(Clone, Copy)]
struct Nil {
    from: Timestamp,
    until: Timestamp,
    index: usize,
    /// The index of the operation that wrote or found the newest value before this read that found nothing.
    newest: usize,
}

fn unexplained(operations: &[Operation], mut nils: Vec<Nil>, slack: Duration) -> Vec<Nil> {
    let mut reasons: Vec<(Timestamp, Timestamp)> =
        operations.iter().filter_map(|operation| reason(operation, slack)).collect();
    reasons.sort_unstable();
    nils.sort_by_key(|nil| nil.until);
    let latest = latest(&reasons);
    let mut begun = 0;
    let mut fitting = BinaryHeap::new();
    let mut served = Timestamp::ZERO;
    let mut found = Vec::new();
    for nil in nils {
        while begun < reasons.len() && reasons[begun].0 <= nil.until {
            fitting.push(Reverse(reasons[begun].1));
            begun += 1;
        }
        let has_any = begun > 0 && latest[begun - 1] >= nil.from;
        // A nil that no value separates from the last one with a reason may have the same reason.
        let needs_own = nil.from > served;
        while needs_own && fitting.peek().is_some_and(|Reverse(over)| *over < nil.from) {
            fitting.pop();
        }
        if !has_any || (needs_own && fitting.pop().is_none()) {
            found.push(nil);
        } else if needs_own {
            served = nil.until;
        }
    }
    found
}

/// Returns, for each time span (start, end) of a list that is sorted by start, the latest end of that span
/// and of all spans before it.
fn latest(reasons: &[(Timestamp, Timestamp)]) -> Vec<Timestamp> {
    let until = reasons.iter().scan(Timestamp::ZERO, |latest, (_, until)| {
        *latest = (*latest).max(*until);
        Some(*latest)
    });
    until.collect()
}

/// True if the operation proves that the key had a value: an acknowledged write, or a read that found one.
fn is_value(operation: &Operation) -> bool {
    match operation.act {
        Act::Write { .. } => operation.fate == Fate::Done,
        Act::Read(found) | Act::Take(found) => matches!(found, Found::Value(_)),
        Act::Delete | Act::Expire { .. } => false,
    }
}

/// Returns the time span within which the operation may have removed a value (by a delete, or at the expiry
/// that it set), wider by `slack` on both sides for an expiry; `None` if it removes none.
fn reason(operation: &Operation, slack: Duration) -> Option<(Timestamp, Timestamp)> {
    let lives_ms = match operation.act {
        _ if operation.fate == Fate::Never => return None,
        Act::Delete => return Some((operation.asked, operation.answered)),
        Act::Write { lives_ms: 0, .. } | Act::Read(_) | Act::Take(_) => return None,
        Act::Write { lives_ms, .. } | Act::Expire { lives_ms, .. } => lives_ms,
    };
    let lives = Duration::from_millis(lives_ms.into());
    Some((operation.asked.after(lives).before(slack), operation.answered.after(lives).after(slack)))
}

/// Operations that prove that the key had a value, in the order of their replies. Each entry has the time of
/// the operation's reply. Its start and index are those of the operation that began last, among the entries
/// up to this one.
struct Values(Vec<(Timestamp, Timestamp, u32)>);

impl Values {
    fn of(operations: &[Operation], rules: &Rules, counts: impl Fn(&Operation) -> bool) -> Self {
        let values =
            operations.iter().enumerate().filter(|(_, operation)| is_value(operation) && counts(operation));
        let mut values: Vec<_> = values
            .map(|(index, operation)| (operation.answered, rules.start(operation), index as u32))
            .collect();
        values.sort_unstable();
        let mut newest = (Timestamp::ZERO, 0);
        for (_, start, index) in &mut values {
            newest = newest.max((*start, *index));
            (*start, *index) = newest;
        }
        Self(values)
    }

    /// Returns the index of the operation that began last, among those that prove that the key had a value
    /// and were answered before `before`. `None` if there is none.
    fn newest(&self, before: Timestamp) -> Option<usize> {
        let answered = self.0.partition_point(|(answered, ..)| *answered < before);
        answered.checked_sub(1).map(|last| self.0[last].2 as usize)
    }
}
