//! The choice of a track, a group of connections to a backend, for each request. Replies on one connection
//! come in order, so expensive requests have connections of their own (the heavy track): nothing else then
//! waits behind them.
//!
//! Requests of one client must not overtake each other, so all that a client has in flight takes the same
//! track:
//!
//! | the next request | requests in flight | the next request then |
//! |---|---|---|
//! | is expensive | are on the usual track | waits until they are answered |
//! | is cheap | include an expensive one | follows on the heavy track: its reply must come after that one anyway |
//! | is cheap | are cheap ones that followed an expensive one | waits for their replies, then takes the usual track |
//! | is a read that a replica may answer | are on the usual track | follows there: it may read what they write |
//! | is anything else | are at replicas | waits until they are answered: a read must not see later writes |

use crate::shard::request::Track;

/// The data on a client's requests in flight by which its next request is put on a track (one of the sets of
/// connections to a backend).
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracks {
    current: Track,
    /// The sequence number of the client's last expensive request.
    heavy: u32,
    /// True while the store may still carry out a request that weir has answered already, so that all later
    /// requests take the same track (set of backend connections).
    is_pinned: bool,
}

impl Tracks {
    /// Returns the track (group of backend connections) of the request that was sent last.
    pub const fn current(self) -> Track {
        self.current
    }

    /// Binds all later requests to the current track (set of backend connections), or lifts that if `is_pinned`
    /// is false. The track to replicas binds none: it carries only reads, which later requests may overtake.
    pub fn pin(&mut self, is_pinned: bool) {
        self.is_pinned = is_pinned && self.current != Track::Replica;
    }

    /// Chooses and records the track (group of backend connections) of the request with sequence number
    /// `next`. `wanted` is the track that the request would take if no others were in flight; `first` is the
    /// number of the oldest unanswered request. False while the request must wait for those in flight.
    #[inline]
    pub fn choose_and_take(&mut self, wanted: Track, first: u32, next: u32) -> bool {
        let Some(track) = self.choose(wanted, first, next) else { return false };
        self.take(wanted, track, next);
        true
    }

    /// Returns the track (group of backend connections) for the request with sequence number `next`. `wanted`
    /// is the track that the request would take if no others were in flight; `first` is the number of the
    /// oldest unanswered request. None while the request must wait for those in flight.
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

    /// Records that the request with sequence number `next` is sent on `track` (a set of backend connections);
    /// `wanted`, the track that it would take if no others were in flight, tells whether it is expensive.
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

    /// Compares one client's choices with those that follow from a full list of its requests in flight.
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
