//! A slow and simple judge for tests, which tries every order of operations.

use super::super::operation::{Act, Fate, Found, Operation, Token};

/// True if a register without expiry could have carried out these operations in some order.
pub fn is_possible(operations: &[Operation]) -> bool {
    assert!(operations.len() <= 16, "every order is tried");
    extend(operations, 0, None)
}

/// True if the operations that are not in `done` (a bit mask of indices) can follow in some order, when the
/// register holds `value`.
fn extend(operations: &[Operation], done: u32, value: Option<Token>) -> bool {
    let left = || (0..operations.len()).filter(move |index| done & (1 << index) == 0);
    if left().next().is_none() {
        return true;
    }
    left().any(|index| {
        let next = &operations[index];
        // An operation of unknown fate may not have happened; if it did, later commands of its connection
        // came later.
        if next.fate != Fate::Done && extend(operations, done | 1 << index, value) {
            return true;
        }
        let after = match next.act {
            _ if next.fate == Fate::Never => return false,
            Act::Read(found) | Act::Take(found) => match found {
                Found::Value(token) if value != Some(token) => return false,
                Found::Nil if value.is_some() => return false,
                Found::Strange => return false,
                Found::Value(_) | Found::Nil => value,
            },
            Act::Write { token, .. } => Some(token),
            Act::Delete => None,
            Act::Expire { .. } => value,
        };
        let is_first = left().all(|other| !comes_before(operations, other, index));
        is_first && extend(operations, done | 1 << index, after)
    })
}

fn comes_before(operations: &[Operation], one: usize, other: usize) -> bool {
    let (former, latter) = (&operations[one], &operations[other]);
    former.answered < latter.asked || (former.session == latter.session && one < other)
}
