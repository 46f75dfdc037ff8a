//! Digests of the replies that clients were given last, as all cores see them. A reply that never passes its
//! key's home core (a read in a transaction, which leaves from the core that has its client) is compared
//! through them with the reply that the home keeps.
//!
//! Reads share places by a hash of the request. A place holds a digest of the request and of the reply to it
//! that was kept, or seen in passing, last; how many replies were seen in passing; and whether a reply was
//! ever kept for the place. Three rules follow:
//!
//! * A reply that is seen in passing and is not the last one invalidates the replies kept of its key, if
//!   there may be any: its key's cell (`versions.rs`) changes before the reply is given to its client. The
//!   same reply over and over changes nothing, so a client that only reads takes nothing from others: each
//!   change costs what a write costs.
//! * A fetched reply is kept only if no reply was seen in passing since the fetch was sent, or the last one
//!   was the same.
//! * No read joins a fetch that was sent before a reply was seen in passing: that reply may be newer than
//!   what the fetch finds.
//!
//! Two requests that share a place invalidate kept replies now and then without need, and do no other harm.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of places in the table of digests of last replies, which all requests share by hash.
const PLACES: usize = 1 << 16;
/// Mask of the digest of a request and its reply in a place of the table: the lower 48 bits.
const DIGEST: u64 = (1 << 48) - 1;
/// Flag of a place of the table which says that a reply to one of its requests was once kept in the hot-key cache.
const KEPT: u64 = 1 << 48;
/// Unit of the count of replies that clients were given and that were not kept in the hot-key cache. The count fills
/// the upper 15 bits of a place of the table and wraps around.
const SEEN: u64 = 1 << 49;

/// The digests of the replies to reads that clients were given last, shared by all cores of the process.
#[derive(Debug)]
pub struct LastTold {
    places: Box<[AtomicU64]>,
}

/// A request and the reply to it, as the request's place in the table of digests and a digest of both.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    place: usize,
    digest: u64,
}

impl Told {
    /// Combines the hashes of a request and of its reply. All cores have to hash alike.
    pub const fn new(question: u64, reply: u64) -> Self {
        Self { place: place_of(question), digest: (question.rotate_left(24) ^ reply) & DIGEST }
    }
}

/// State of a request's place in the table of digests when it was looked at; compared with a later state, it
/// shows whether clients have been given other replies since.
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
    /// Returns the state of the place that a request, given by its hash, shares. Taken before a fetch is
    /// sent, it shows afterwards (`is_latest`, `keep`) whether a client was given another reply, perhaps a
    /// newer one, since.
    pub fn look(&self, question: u64) -> Look {
        let place = place_of(question);
        Look { place, seen: self.places[place].load(Ordering::SeqCst) }
    }

    /// True if clients have been given no unkept reply ([`Self::pass`]) to a request of this place of the
    /// table since `look` was taken.
    pub fn is_latest(&self, look: &Look) -> bool {
        self.places[look.place].load(Ordering::SeqCst) / SEEN == look.seen / SEEN
    }

    /// Records that the reply to a fetch (shared read of a hot key) is kept in the hot-key cache; `told` is its digest,
    /// `look` the state of its place before the fetch was sent. False if it must not be kept: a client was given
    /// another reply, which may be newer, since then.
    pub fn keep(&self, look: &Look, told: Told) -> bool {
        let kept = self.places[told.place].fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            let may_be_kept = now / SEEN == look.seen / SEEN || now & DIGEST == told.digest;
            may_be_kept.then_some((now / SEEN * SEEN) | KEPT | told.digest)
        });
        kept.is_ok()
    }

    /// Records a reply that a client is given and that is not kept in the hot-key cache. False if another reply to the
    /// request may be kept there: the caller then has to invalidate all that is kept of the key.
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
        // The reply `told(2)` may come from a read before another writer restored the earlier value.
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
