//! Nothing found where something must have been.
//!
//! A nil is right if it has a *reason*: a delete, the expiry of a value, or (if stores forget) nothing at all, that began before the nil was answered and need not
//! have been over before something that the nil comes after. What it comes after are values that were written or found, with an answer before
//! the nil was asked, or earlier on its own connection.

use std::time::Duration;

use super::super::operation::{Act, Fate, Found, Operation, Way};
use super::{Rules, Verdict, explain, is_binding};
use weir::values::Timestamp;

pub fn find(operations: &[Operation], rules: &Rules, verdict: &mut Verdict) {
    let reasons = Reasons::of(operations, rules);
    let values = Values::of(operations, rules, |_| true);
    let written = Values::of(operations, rules, is_binding);
    // What the connection itself had or wrote: its newest write, and its reads since then.
    let mut own: Vec<usize> = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        own.retain(|earlier| operations[*earlier].session == operation.session);
        if operation.reads() == Some(Found::Nil) {
            let by_time = [values.newest(rules.start(operation)), written.newest(operation.asked)];
            let by_order =
                own.iter().copied().filter(|earlier| rules.keeps_up(&operations[*earlier], operation));
            let newest = by_time.into_iter().flatten().chain(by_order);
            let newest = newest.max_by_key(|earlier| rules.start(&operations[*earlier]));
            if let Some(newest) = newest
                && !reasons.allow(operation, rules.start(&operations[newest]))
            {
                verdict.note(|| {
                    explain::two(&operations[newest], "was there", operation, "found nothing, for no reason")
                });
            }
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
}

/// A value was surely there.
fn is_value(operation: &Operation) -> bool {
    match operation.act {
        Act::Write { .. } => operation.fate == Fate::Done,
        Act::Read(found) | Act::Take(found) => matches!(found, Found::Value(_)),
        Act::Delete | Act::Expire { .. } => false,
    }
}

/// What may have left nothing behind: the earliest start of each, and how late one of those up to it may have been.
struct Reasons(Vec<(Timestamp, Timestamp)>);

impl Reasons {
    fn of(operations: &[Operation], rules: &Rules) -> Self {
        let mut reasons: Vec<(Timestamp, Timestamp)> =
            operations.iter().filter_map(|operation| reason(operation, rules.slack)).collect();
        if rules.stores_forget {
            reasons.push((Timestamp::ZERO, Timestamp::MAX));
        }
        reasons.sort_unstable();
        let mut latest = Timestamp::ZERO;
        for (_, until) in &mut reasons {
            latest = latest.max(*until);
            *until = latest;
        }
        Self(reasons)
    }

    fn allow(&self, nil: &Operation, after: Timestamp) -> bool {
        let begun = self.0.partition_point(|(from, _)| *from <= nil.answered);
        begun > 0 && self.0[begun - 1].1 >= after
    }
}

/// From when to when it may have removed what was there.
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

/// Operations with values by their answers, each with that of them all up to it which began last.
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

    /// Of those that were answered before, the one that began last.
    fn newest(&self, before: Timestamp) -> Option<usize> {
        let answered = self.0.partition_point(|(answered, ..)| *answered < before);
        answered.checked_sub(1).map(|last| self.0[last].2 as usize)
    }
}
