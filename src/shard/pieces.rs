//! Pieces: a request for several keys of a slot that is half moved to another node is sent as one request per
//! key, and the replies are joined into one.

use slab::Slab;

use super::gather::{Arrival, Gathers, Join};
use super::message::Message;
use super::outcome::Outcome;
use super::request::ReplyTo;
use crate::protocol::command::{self, Effect, Gather, Handling};
use crate::protocol::{BufferPool, Protocol, RequestDecoder, RequestLimits, encode};
use crate::values::limits::KEYS_PER_TURN;

/// The largest number of keys of a request that may be split into one request per key (pieces). A request
/// with more keys is not split.
const PIECES_MAX: usize = 1_024;
const _: () = assert!(PIECES_MAX <= KEYS_PER_TURN, "the replies to pieces are joined in one turn");

/// A request that was split into one per key (pieces), because its keys were not all on one node, and some of
/// whose pieces are unanswered.
#[derive(Debug)]
struct Whole {
    to: ReplyTo,
    /// Index of the request's entry in `Pieces::gathers`, where the replies are joined.
    gather: u32,
    missing: usize,
    /// Combined outcome of those pieces (one per key) of the request that have been answered.
    outcome: Outcome,
}

/// All requests of one core that were split into one request per key (pieces), because their keys were not
/// all on one node.
#[derive(Debug, Default)]
pub struct Pieces {
    wholes: Slab<Whole>,
    gathers: Gathers,
}

impl Pieces {
    /// Registers a request that is split into `pieces` requests, one per key. `to` is its reply address;
    /// `join` says how the replies become one, and whether the request writes. Returns the request's index,
    /// which [`ReplyTo::piece`] takes.
    pub fn insert(&mut self, to: ReplyTo, join: (Join, Effect), protocol: Protocol, pieces: usize) -> u32 {
        let (gather, _) = self.gathers.insert(join, protocol, pieces);
        self.wholes.insert(Whole { to, gather, missing: pieces, outcome: Outcome::Refused }) as u32
    }

    /// True if every piece of every request that was split into one per key is answered.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.wholes.is_empty() && self.gathers.len() == 0
    }

    /// Returns the number of the client connection that sent a request, also for one piece of a request that
    /// was split into one per key.
    pub fn connection(&self, to: ReplyTo) -> u64 {
        self.whole(to).connection()
    }

    /// Returns, for the reply address of a piece (one key's part of a split request), that of the whole
    /// request as its client sent it; any other address unchanged.
    pub fn whole(&self, to: ReplyTo) -> ReplyTo {
        let mut to = to;
        // A piece may have been taken apart once more.
        while let Some(whole) = to.piece_of().and_then(|whole| self.wholes.get(whole as usize)) {
            to = whole.to;
        }
        to
    }

    /// Takes the reply to a piece (one key's part of a split request): piece `part` of the request with index
    /// `whole`. If this was the last piece, returns the reply address of the whole request, its outcome, and
    /// the joined reply; else None. An error takes the place of a joined reply above `bytes_max` bytes.
    pub fn handle_reply(
        &mut self,
        (whole, part): (u32, u16),
        outcome: Outcome,
        message: Message<'_>,
        bytes_max: usize,
        pool: &mut BufferPool,
    ) -> Option<(ReplyTo, Outcome, Vec<u8>)> {
        let at = self.wholes.get_mut(whole as usize)?;
        at.missing -= 1;
        at.outcome = together(at.outcome, outcome);
        let arrival = self.gathers.part_arrived(at.gather, (part, outcome, message), &[], bytes_max, pool);
        let Arrival::Joined { reply, .. } = arrival else { return None };
        debug_assert!(at.missing == 0);
        let whole = self.wholes.remove(whole as usize);
        Some((whole.to, whole.outcome, reply))
    }
}

/// Combines the outcomes of two pieces (each for one key) of one request: their measurements are added up;
/// the combined outcome is lost if one piece is, and refused only if both are.
fn together(one: Outcome, other: Outcome) -> Outcome {
    use Outcome::{Cached, Lost, Refused, Served, Throttled};
    match (one, other) {
        (Cached { bytes, values }, Cached { bytes: more, values: others }) => {
            Cached { bytes: bytes.saturating_add(more), values: values.saturating_add(others) }
        }
        (
            Served { bytes, rows, took_micros, slowness_micros, busy_micros },
            Cached { bytes: more, values },
        )
        | (
            Cached { bytes: more, values },
            Served { bytes, rows, took_micros, slowness_micros, busy_micros },
        ) => {
            let (bytes, rows) = (bytes.saturating_add(more), rows.saturating_add(values));
            Served { bytes, rows, took_micros, slowness_micros, busy_micros }
        }
        (
            Served { bytes, rows, took_micros, slowness_micros, busy_micros },
            Served {
                bytes: more_bytes,
                rows: more_rows,
                took_micros: took,
                slowness_micros: slowness,
                busy_micros: busy,
            },
        ) => Served {
            bytes: bytes.saturating_add(more_bytes),
            rows: rows.saturating_add(more_rows),
            took_micros: took_micros.saturating_add(took),
            slowness_micros: slowness_micros.saturating_add(slowness),
            busy_micros: busy_micros.saturating_add(busy),
        },
        (Lost, _) | (_, Lost) => Lost,
        (Refused | Throttled, other) | (other, Refused | Throttled) => other,
    }
}

/// Splits a request (`frame`) into one per key, and says how the replies become one. None if the command
/// cannot be split, has fewer than 2 keys or more than 1,024, or writes several values (`MSET`): other
/// clients would see it half done.
pub fn taken_apart(frame: &[u8]) -> Option<(Vec<Vec<u8>>, Join)> {
    let mut consumed = 0;
    let mut decoder = RequestDecoder::default();
    let request = decoder.next(frame, &mut consumed, &RequestLimits::trusted(frame.len())).ok()??;
    let arguments = &request.arguments;
    let command = command::recognise(arguments).ok()?;
    let Handling::Split(gather) = command.handling_for(arguments) else { return None };
    let keys = arguments.len() - 1;
    let join = match gather {
        Gather::Values => Join::Values((0..keys as u16).collect()),
        Gather::Sum => Join::Sum,
        Gather::AllOk => return None,
    };
    if consumed != frame.len() || !(2..=PIECES_MAX).contains(&keys) {
        return None;
    }
    let piece = |key: &[u8]| {
        let mut piece = Vec::new();
        encode::request(&mut piece, [arguments.name(), key].into_iter());
        piece
    };
    Some((arguments.iter().skip(1).map(piece).collect(), join))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(words: &[&str]) -> Option<(Vec<String>, Join)> {
        let mut frame = Vec::new();
        encode::request(&mut frame, words.iter().map(|word| word.as_bytes()));
        let (pieces, join) = taken_apart(&frame)?;
        Some((pieces.into_iter().map(|piece| String::from_utf8_lossy(&piece).into_owned()).collect(), join))
    }

    #[test]
    fn what_reads_or_ends_keys_is_taken_apart_and_nothing_else() {
        let (pieces, join) = apart(&["mget", "{a}1", "{a}2"]).expect("two keys");
        assert_eq!(pieces[1], "*2\r\n$4\r\nmget\r\n$4\r\n{a}2\r\n");
        assert_eq!((pieces.len(), join), (2, Join::Values(vec![0, 1])));
        for name in ["DEL", "UNLINK", "EXISTS", "TOUCH"] {
            assert_eq!(
                apart(&[name, "k", "k", "l"]).map(|(pieces, join)| (pieces.len(), join)),
                Some((3, Join::Sum))
            );
        }
        for words in [&["MGET", "k"][..], &["MSET", "k", "1", "l", "2"], &["SUNION", "k", "l"], &["GET", "k"]]
        {
            assert_eq!(apart(words), None, "{words:?}");
        }
    }
}
