//! Finds reads of values after they had expired or been removed.

use std::collections::HashMap;
use std::time::Duration;

use super::super::operation::{Act, Fate, Found, Operation, Token};
use super::clusters::Clusters;
use super::{Rules, Verdict, explain};
use weir::values::Timestamp;

pub fn find(operations: &[Operation], clusters: &Clusters, rules: &Rules, verdict: &mut Verdict) {
    let ends = ends(operations, clusters, rules.slack);
    for operation in operations {
        let Some(Found::Value(token)) = operation.reads() else { continue };
        let Some(end) = ends.get(&token).filter(|end| end.at < operation.asked) else { continue };
        verdict.note(|| {
            explain::two(&operations[end.by as usize], "was the end of it", operation, "found it later")
        });
    }
}

/// The time (`at`) from which a value cannot be read any more, and the index (`by`) of the operation that
/// removed it or made it expire.
#[derive(Clone, Copy)]
struct End {
    at: Timestamp,
    by: u32,
}

fn ends(operations: &[Operation], clusters: &Clusters, slack: Duration) -> HashMap<Token, End> {
    let mut expiries: HashMap<Token, End> = HashMap::new();
    // The time from which an expiry of unknown success may have put off the end of any value.
    let mut put_off = Timestamp::MAX;
    for (index, operation) in operations.iter().enumerate() {
        let (token, lives_ms) = match operation.act {
            Act::Expire { token: None, .. } if operation.fate != Fate::Never => {
                put_off = put_off.min(operation.asked);
                continue;
            }
            Act::Write { token, lives_ms } if lives_ms > 0 => (token, lives_ms),
            Act::Expire { token: Some(token), lives_ms } => (token, lives_ms),
            _ => continue,
        };
        let at = operation.answered.after(Duration::from_millis(lives_ms.into())).after(slack);
        let end = End { at, by: index as u32 };
        let known = expiries.entry(token).or_insert(end);
        // Of several expiries of one value, it is not known which came last.
        if known.at < at {
            *known = end;
        }
    }
    expiries.retain(|_, end| end.at < put_off);
    for (index, operation) in operations.iter().enumerate() {
        let Act::Take(Found::Value(token)) = operation.act else { continue };
        if clusters.write_of(token).is_none() {
            continue;
        }
        let end = End { at: operation.answered, by: index as u32 };
        let known = expiries.entry(token).or_insert(end);
        if known.at > end.at {
            *known = end;
        }
    }
    expiries
}
