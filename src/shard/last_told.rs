//! What was told last of keys, as all cores see it: so that a reply which never passes its key's home (a read in a transaction, which
//! leaves from the core that has its client) is compared with what is kept there.
//!
//! Questions share places by hash. In a place stand a digest of the question and of the reply to it that was kept, or seen in passing, last;
//! how many were seen in passing; and whether anything was ever kept that belongs there. Three rules follow:
//!
//! * A reply that is seen in passing and is not the last one makes worthless what is kept of its key, if anything may be: its key's cell
//!   changes before the reply is given to its client. The same reply over and over changes nothing, so who only reads takes nothing
//!   from others: each change costs what a write costs.
//! * What was fetched is kept if no reply was seen in passing since it was sent for, or the last one was the same.
//! * Nobody joins a fetch that was sent before a reply was seen in passing: that may be newer than what the fetch finds.
//!
//! Two questions in one place count as a change now and then for nothing, and that is all.

use std::sync::atomic::{AtomicU64, Ordering};

/// Places that questions share.
const PLACES: usize = 1 << 16;
/// The lower bits of a place are the digest.
const DIGEST: u64 = (1 << 48) - 1;
/// Something was kept.
const KEPT: u64 = 1 << 48;
/// The others count what was seen in passing, and start again.
const SEEN: u64 = 1 << 49;

/// The places of a process.
#[derive(Debug)]
pub struct LastTold {
    places: Box<[AtomicU64]>,
}

/// A question and a reply to it.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    place: usize,
    digest: u64,
}

impl Told {
    /// That of a question and a reply with these hashes, which all cores have to know them by.
    pub const fn new(question: u64, reply: u64) -> Self {
        Self { place: place_of(question), digest: (question.rotate_left(24) ^ reply) & DIGEST }
    }
}

/// How it stood with a question at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    place: usize,
    seen: u64,
}

const fn place_of(question: u64) -> usize {
    question as usize % PLACES
}

impl Default for LastTold {
    fn default() -> Self {
        Self { places: std::iter::repeat_with(AtomicU64::default).take(PLACES).collect() }
    }
}

impl LastTold {
    /// How it stands with a question: to be called before a fetch of it is sent.
    pub fn look(&self, question: u64) -> Look {
        let place = place_of(question);
        Look { place, seen: self.places[place].load(Ordering::SeqCst) }
    }

    /// Was no reply seen in passing since?
    pub fn is_latest(&self, look: &Look) -> bool {
        self.places[look.place].load(Ordering::SeqCst) / SEEN == look.seen / SEEN
    }

    /// A fetched reply is about to be kept. False if it must not be: a reply that may be newer was seen in passing since it was sent for.
    pub fn keep(&self, look: &Look, told: Told) -> bool {
        let kept = self.places[told.place].fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            let may_be_kept = now / SEEN == look.seen / SEEN || now & DIGEST == told.digest;
            may_be_kept.then_some((now / SEEN * SEEN) | KEPT | told.digest)
        });
        kept.is_ok()
    }

    /// A reply is seen in passing. False if what is kept of its key may be another one.
    pub fn pass(&self, told: Told) -> bool {
        let place = &self.places[told.place];
        let next = |now: u64| (now / SEEN).wrapping_add(1).wrapping_mul(SEEN) | (now & KEPT) | told.digest;
        let before = place.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| Some(next(now)));
        before.is_ok_and(|before| before & KEPT == 0 || before & DIGEST == told.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: u64 = 0x1234_5678_9abc_def0;

    fn told(reply: u64) -> Told {
        Told::new(QUESTION, reply)
    }

    #[test]
    fn a_reply_in_passing_differs_from_what_is_kept_once() {
        let last = LastTold::default();
        assert!(last.pass(told(1)) && last.pass(told(2)), "nothing is kept that could differ");
        let look = last.look(QUESTION);
        assert!(last.keep(&look, told(3)));
        assert!(last.pass(told(3)) && last.pass(told(3)));
        assert!(!last.pass(told(4)));
        assert!(last.pass(told(4)) && !last.pass(told(3)));
    }

    #[test]
    fn what_was_fetched_is_not_kept_if_another_reply_was_seen_in_passing_meanwhile() {
        let last = LastTold::default();
        let look = last.look(QUESTION);
        assert!(last.keep(&look, told(1)));
        let look = last.look(QUESTION);
        assert!(last.is_latest(&look));
        assert!(last.pass(told(1)));
        // It may have been read before another writer restored what was before.
        assert!(!last.is_latest(&look) && !last.keep(&look, told(2)));
        assert!(last.keep(&look, told(1)), "the same reply is as new as what was seen");
        let look = last.look(QUESTION);
        assert!(!last.pass(told(2)) && last.keep(&look, told(2)));
    }

    #[test]
    fn the_count_starts_again_and_leaves_the_rest_as_it_is() {
        let last = LastTold::default();
        assert!(last.keep(&last.look(QUESTION), told(1)));
        let look = last.look(QUESTION);
        for _ in 0..1 << 15 {
            assert!(last.pass(told(1)));
        }
        assert!(last.is_latest(&look) && !last.pass(told(2)));
    }

    #[test]
    fn questions_that_share_a_place_are_told_apart() {
        let last = LastTold::default();
        let other = QUESTION ^ (1 << 40);
        assert!(last.keep(&last.look(QUESTION), told(1)));
        assert!(!last.pass(Told::new(other, 1)), "what was kept of it may have given way to this");
        assert!(!last.pass(told(1)));
    }
}
