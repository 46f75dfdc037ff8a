//! Which connections to a backend a request takes. Replies of one connection come in order, so what costs much has
//! connections of its own: nothing else then waits for it.
//!
//! Requests of one client must not overtake each other, so all that a client has in flight takes the same track:
//!
//! | the next request | what is in flight | it |
//! |---|---|---|
//! | costs much | on the usual track | waits until that is answered |
//! | does not | costs much, at least some of it | follows: its reply must come after that one anyway |
//! | does not | only what has followed | waits until that is answered, and is back on the usual track |
//! | is a read that a replica may answer | on the usual track | follows: it may ask for what is being written |
//! | is none | at replicas | waits until that is answered: a read must not see what was written after it |

use crate::shard::request::Track;

/// What one client has in flight, as far as the choice of a track goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracks {
    current: Track,
    /// The number of the last request that cost much.
    heavy: u32,
    /// Something on the current track may be carried out yet, though it is answered: all that follows takes that one too.
    is_pinned: bool,
}

impl Tracks {
    /// The track of what was sent last.
    pub const fn current(self) -> Track {
        self.current
    }

    /// From now on all take the current track, or any again. What is at replicas only reads, and nothing needs to follow it.
    pub fn pin(&mut self, is_pinned: bool) {
        self.is_pinned = is_pinned && self.current != Track::Replica;
    }

    /// Puts the request with the number `next` on a track, where `first` is the oldest that has not been answered. False while it
    /// must wait.
    #[inline]
    pub fn choose_and_take(&mut self, wanted: Track, first: u32, next: u32) -> bool {
        let Some(track) = self.choose(wanted, first, next) else { return false };
        self.take(wanted, track, next);
        true
    }

    /// The track for a request with the number `next`, where `first` is the oldest that has not been answered. None while
    /// it must wait.
    fn choose(self, wanted: Track, first: u32, next: u32) -> Option<Track> {
        if wanted == self.current {
            return Some(wanted);
        }
        if self.is_pinned {
            return Some(self.current);
        }
        if first == next {
            return Some(wanted);
        }
        if self.current == Track::Replica {
            return None;
        }
        if wanted == Track::Replica && self.current == Track::Usual {
            return Some(Track::Usual);
        }
        let heavy_under_way = self.heavy.wrapping_sub(first) < next.wrapping_sub(first);
        (wanted != Track::Heavy && heavy_under_way).then_some(Track::Heavy)
    }

    /// The request with that number takes a track.
    const fn take(&mut self, wanted: Track, track: Track, next: u32) {
        self.current = track;
        if matches!(wanted, Track::Heavy) {
            self.heavy = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::values::random::Random;

    /// One client against a list of all that it has in flight.
    #[test]
    fn nothing_overtakes_and_nothing_waits_without_need() {
        let mut random = Random::new(11);
        let mut tracks = Tracks::default();
        let mut under_way: VecDeque<(Track, Track)> = VecDeque::new();
        let mut next = u32::MAX - 1_000;
        let (mut waited, mut followed) = (0, 0);
        for _ in 0..100_000 {
            if random.below(2) == 0 && under_way.pop_front().is_some() {
                continue;
            }
            let wanted = *random.pick(&[Track::Heavy, Track::Usual, Track::Usual, Track::Replica]);
            let first = next.wrapping_sub(under_way.len() as u32);
            let last = under_way.back().map(|(_, track)| *track);
            let heavy_under_way = under_way.iter().any(|(wanted, _)| *wanted == Track::Heavy);
            let expected = match (wanted, last) {
                (_, None) => Some(wanted),
                (wanted, Some(track)) if wanted == track => Some(wanted),
                (_, Some(Track::Replica)) => None,
                (Track::Replica, Some(Track::Usual)) => Some(Track::Usual),
                (Track::Usual | Track::Replica, Some(_)) if heavy_under_way => Some(Track::Heavy),
                _ => None,
            };
            assert_eq!(tracks.choose(wanted, first, next), expected, "{wanted:?} behind {under_way:?}");
            let Some(track) = expected else {
                waited += 1;
                continue;
            };
            followed += u32::from(track != wanted);
            tracks.take(wanted, track, next);
            under_way.push_back((wanted, track));
            next = next.wrapping_add(1);
            assert!(under_way.iter().all(|(_, other)| *other == track), "{under_way:?}");
        }
        assert!(waited > 1_000 && followed > 1_000, "{waited} waited, {followed} followed");
    }
}
