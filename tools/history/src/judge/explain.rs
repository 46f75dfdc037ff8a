//! Explains contradictions between operations in words for people.

use super::super::operation::{Act, Fate, Found, Operation};
use weir::values::Timestamp;

pub fn alone(operation: &Operation, what: &str) -> String {
    format!("{what}: {}", told(operation))
}

pub fn two(one: &Operation, what: &str, other: &Operation, more: &str) -> String {
    format!("{}\n      {what}; but this one {more}:\n      {}", told(one), told(other))
}

/// Explains a contradiction in words: each pair holds the indices of two operations of which the first must
/// come before the second, and the pairs together lead in a circle.
pub fn circle(operations: &[Operation], arrows: &[(usize, usize)]) -> String {
    let told = arrows.iter().map(|(earlier, later)| {
        let [earlier, later] = [earlier, later].map(|index| &operations[*index]);
        let why = if earlier.answered < later.asked {
            "was answered before this was asked"
        } else if earlier.session == later.session {
            "was sent by the same connection before"
        } else {
            "is too old for"
        };
        format!("\n      {}\n        {why}: {}", told(earlier), told(later))
    });
    format!("no order of these is possible:{}", told.collect::<String>())
}

/// Describes one operation in words, with the times of its command and reply in seconds since the start of
/// the run.
fn told(operation: &Operation) -> String {
    let Operation { asked, answered, session, number, command, .. } = operation;
    let found = |found: Found| match found {
        Found::Value(token) => format!("found w{token}"),
        Found::Nil => "found nothing".to_owned(),
        Found::Strange => "found strange bytes".to_owned(),
    };
    let act = match operation.act {
        Act::Read(what) => found(what),
        Act::Take(what) => format!("took what it found: {}", found(what)),
        Act::Write { token, lives_ms: 0 } => format!("wrote w{token}"),
        Act::Write { token, lives_ms } => format!("wrote w{token} for {lives_ms} ms"),
        Act::Delete => "deleted".to_owned(),
        Act::Expire { token, lives_ms } => {
            format!(
                "set the expiry of {} to {lives_ms} ms",
                token.map_or_else(|| "it".to_owned(), |token| format!("w{token}"))
            )
        }
    };
    let fate = match operation.fate {
        Fate::Done => "",
        Fate::Unknown => " (perhaps)",
        Fate::Never => " (refused)",
    };
    let answered = if *answered == Timestamp::MAX {
        "never answered".to_owned()
    } else {
        format!("answered {:.6}", seconds(*answered))
    };
    format!("{command} by {session}.{number} {act}{fate}, asked {:.6}, {answered}", seconds(*asked))
}

fn seconds(at: Timestamp) -> f64 {
    at.since(Timestamp::ZERO).as_secs_f64()
}
