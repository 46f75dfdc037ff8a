//! Large replies that one core is receiving from stores: they share a room, whatever connections they come over.
//!
//! A reply is kept until it is complete. Without a common bound, as many bytes as the largest permitted reply
//! has would be kept for each connection: of each track, of each database, of each private link.
//!
//! ```text
//!   begins ──> received ──> complete: the next one that waits goes on, if there is room for it
//!                 │  ^
//!       no room   v  │ its turn, or no other is being received
//!               paused: weir does not read the connection
//! ```
//!
//! Bytes that a store has announced count from the announcement on, so that replies take turns as a whole. They
//! do not count while the store sends nothing: then others use the room meanwhile. At least one reply is received
//! at any time, and none is refused for want of room.

use std::collections::VecDeque;
use std::time::Duration;

use crate::values::{Action, ConnectionId, Owner, Timestamp};

/// The least size in bytes of a reply, as far as it is known, that counts towards the room (the limit on the
/// bytes of all large replies that one core receives at a time). Smaller ones are received without regard to
/// it.
const LARGE_BYTES_MIN: usize = 64 << 10;
/// The time without a byte of a large reply after which the bytes that its store has announced no longer count towards
/// the room (limit on the bytes of all large replies), so that other replies may use it.
const SILENT: Duration = Duration::from_millis(250);

/// A connection to a store: its number, and the generation that tells it from earlier ones in its place.
type Connection = (ConnectionId, u32);

/// How a large reply is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// The connection is being read, and bytes of the reply have come in the last 250 ms: all bytes that the store has
    /// announced count towards the room (limit on the bytes of all large replies).
    Goes,
    /// The connection is being read, but no bytes of the reply have come for 250 ms: only the bytes received count
    /// towards the room (limit on the bytes of all large replies).
    Silent,
    /// The connection is not being read, because there is no room for the rest of the reply. Only the bytes received
    /// count towards the room (limit on the bytes of all large replies).
    Paused,
}

/// A large reply that has not been received to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    connection: Connection,
    /// The number of bytes of the reply that have been received.
    held: usize,
    /// The number of bytes of the reply that are known of: those received, and those that the store has
    /// announced.
    known: usize,
    reading: Reading,
    /// The time of the first regular check that found the reply as long as it is now; `None` if bytes have
    /// come since the last check.
    grew_at: Option<Timestamp>,
}

impl Listed {
    fn bytes(&self) -> usize {
        if self.reading == Reading::Goes { self.known } else { self.held }
    }

    fn is_paused(&self) -> bool {
        self.reading == Reading::Paused
    }
}

/// The large replies that one core is receiving, and the room that they share (the limit on their bytes in
/// memory).
#[derive(Debug)]
pub struct LargeReplies {
    bytes_max: usize,
    /// The replies in the order in which their receiving began; a paused one moves to the end.
    listed: Vec<Listed>,
}

impl LargeReplies {
    /// Creates the list of large replies, which is empty. `bytes_max` is the most bytes that the replies may
    /// have together, and should not be less than the largest permitted reply has.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, listed: Vec::new() }
    }

    /// Records that a reply is being received over a connection: `held` bytes of it have come, and `missing` more are
    /// announced. Does nothing if these are less than 64 KiB together. Pauses reading of connections, by actions for
    /// the runtime, while the replies take more than the room (limit on their bytes) and more than one is being
    /// received. Returns how many connections were paused.
    pub fn handle_part(
        &mut self,
        connection: Connection,
        (held, missing): (usize, usize),
        actions: &mut VecDeque<Action>,
    ) -> u64 {
        let known = held.saturating_add(missing);
        if known < LARGE_BYTES_MIN {
            return 0;
        }
        let place = self.place_of(connection).unwrap_or_else(|| {
            self.listed.push(Listed { connection, held, known, reading: Reading::Goes, grew_at: None });
            self.listed.len() - 1
        });
        let listed = &mut self.listed[place];
        (listed.held, listed.known, listed.grew_at) = (held, known, None);
        if listed.reading == Reading::Silent {
            listed.reading = Reading::Goes;
        }
        // The reply that has grown is paused first, then the one that began last.
        let mut next = Some(place).filter(|place| !self.listed[*place].is_paused());
        let mut count = 0;
        while self.read() > 1 && self.bytes() > self.bytes_max {
            let last = || self.listed.iter().rposition(|listed| listed.reading == Reading::Goes);
            let Some(place) = next.take().or_else(last) else { break };
            count += 1;
            let paused = Listed { reading: Reading::Paused, ..self.listed.remove(place) };
            self.listed.push(paused);
            actions.push_back(Action::PauseReading(owner(paused.connection)));
        }
        count
    }

    /// Records that no reply is being received over a connection any more: it is complete, is too large and
    /// dropped, or the connection is lost. Paused connections are read again, by actions for the runtime, as
    /// far as there is room for their replies.
    pub fn handle_end(&mut self, connection: Connection, actions: &mut VecDeque<Action>) {
        let Some(place) = self.place_of(connection) else { return };
        if self.listed.remove(place).is_paused() {
            // Bytes that had arrived before the pause can complete a reply.
            actions.push_back(Action::ResumeReading(owner(connection)));
        }
        self.go_on(actions);
    }

    /// Finds replies of which no bytes have come for 250 ms, and no longer reserves room for the rest of
    /// them. Paused connections are read again, by actions for the runtime, as far as there is room for their
    /// replies.
    pub fn handle_time(&mut self, now: Timestamp, actions: &mut VecDeque<Action>) {
        for listed in self.listed.iter_mut().filter(|listed| listed.reading == Reading::Goes) {
            if now.since(*listed.grew_at.get_or_insert(now)) >= SILENT {
                listed.reading = Reading::Silent;
            }
        }
        self.go_on(actions);
    }

    /// Returns the time at which [`Self::handle_time`] should be called to find silent replies; `None` if no
    /// reply is paused for want of room.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.paused().next()?;
        let going = self.listed.iter().filter(|listed| listed.reading == Reading::Goes);
        going.filter_map(|listed| listed.grew_at).min().map(|at| at.after(SILENT))
    }

    /// Resumes reading of paused connections in their order, as far as there is room for their replies; of
    /// the first one in any case if no other large reply is being received.
    fn go_on(&mut self, actions: &mut VecDeque<Action>) {
        while let Some(next) = self.listed.iter().position(Listed::is_paused) {
            let Listed { connection, held, known, .. } = self.listed[next];
            if self.read() > 0 && self.bytes() - held + known > self.bytes_max {
                return;
            }
            (self.listed[next].reading, self.listed[next].grew_at) = (Reading::Goes, None);
            actions.push_back(Action::ResumeReading(owner(connection)));
        }
    }

    /// True if no large reply is being received.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns the connections whose reading is paused.
    pub fn paused(&self) -> impl Iterator<Item = Connection> {
        self.listed.iter().filter(|listed| listed.is_paused()).map(|listed| listed.connection)
    }

    /// Returns the number of bytes that count towards the room (limit on the bytes of all large replies): those
    /// received, and those that stores have announced on connections that are being read and not silent.
    fn bytes(&self) -> usize {
        self.listed.iter().fold(0, |sum, listed| sum.saturating_add(listed.bytes()))
    }

    /// Returns the number of connections with large replies that are being read (not paused).
    fn read(&self) -> usize {
        self.listed.iter().filter(|listed| !listed.is_paused()).count()
    }

    fn place_of(&self, connection: Connection) -> Option<usize> {
        self.listed.iter().position(|listed| listed.connection == connection)
    }
}

fn owner((connection, generation): Connection) -> Owner {
    Owner::Link(connection, generation)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MAX: usize = 1 << 20;

    fn carry_out(actions: &mut VecDeque<Action>, paused: &mut BTreeSet<u32>) {
        for action in actions.drain(..) {
            match action {
                Action::PauseReading(Owner::Link(connection, _)) => assert!(paused.insert(connection.0)),
                Action::ResumeReading(Owner::Link(connection, _)) => assert!(paused.remove(&connection.0)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn replies_that_have_no_room_together_take_turns_in_order() {
        let (mut room, mut actions, mut paused) = (LargeReplies::new(MAX), VecDeque::new(), BTreeSet::new());
        for connection in 0..4 {
            room.handle_part((ConnectionId(connection), 1), (20_000, 580_000), &mut actions);
        }
        carry_out(&mut actions, &mut paused);
        assert_eq!(paused, BTreeSet::from([1, 2, 3]));
        for ended in 0..4 {
            room.handle_end((ConnectionId(ended), 1), &mut actions);
            carry_out(&mut actions, &mut paused);
            assert_eq!(paused.iter().copied().collect::<Vec<_>>(), (ended + 2..4).collect::<Vec<_>>());
        }
        assert!(room.is_empty());
    }

    #[test]
    fn a_reply_larger_than_the_room_is_received_alone() {
        let (mut room, mut actions, mut paused) = (LargeReplies::new(MAX), VecDeque::new(), BTreeSet::new());
        room.handle_part((ConnectionId(0), 1), (5 * MAX, 0), &mut actions);
        room.handle_part((ConnectionId(1), 1), (5_000, 0), &mut actions);
        assert_eq!((actions.len(), room.listed.len()), (0, 1), "small ones take no part");
        room.handle_part((ConnectionId(1), 1), (70_000, 0), &mut actions);
        carry_out(&mut actions, &mut paused);
        assert_eq!(paused, BTreeSet::from([1]));
        room.handle_part((ConnectionId(0), 1), (6 * MAX, 0), &mut actions);
        assert!(actions.is_empty(), "the one that is left goes on");
    }

    #[test]
    fn the_room_of_a_reply_whose_store_is_silent_is_used_by_others() {
        let (mut room, mut actions, mut paused) = (LargeReplies::new(MAX), VecDeque::new(), BTreeSet::new());
        let at = Timestamp::from_millis;
        room.handle_part((ConnectionId(0), 1), (100_000, 900_000), &mut actions);
        room.handle_part((ConnectionId(1), 1), (20_000, 580_000), &mut actions);
        room.handle_part((ConnectionId(2), 1), (20_000, 580_000), &mut actions);
        room.handle_time(at(0), &mut actions);
        room.handle_time(at(249), &mut actions);
        carry_out(&mut actions, &mut paused);
        assert_eq!((paused.clone(), room.poll_deadline()), (BTreeSet::from([1, 2]), Some(at(250))));
        room.handle_time(at(250), &mut actions);
        carry_out(&mut actions, &mut paused);
        assert_eq!(paused, BTreeSet::from([2]), "the first one keeps only what has come of it");
        // Once it goes on, it waits for its turn behind the others.
        room.handle_part((ConnectionId(0), 1), (110_000, 890_000), &mut actions);
        carry_out(&mut actions, &mut paused);
        assert_eq!(paused, BTreeSet::from([0, 2]));
        for (ended, left) in [(1, [0].as_slice()), (2, &[]), (0, &[])] {
            room.handle_end((ConnectionId(ended), 1), &mut actions);
            carry_out(&mut actions, &mut paused);
            assert_eq!(paused.iter().copied().collect::<Vec<_>>(), left);
        }
        assert_eq!((room.is_empty(), room.poll_deadline()), (true, None));
    }

    proptest::proptest! {
        /// Replies grow beyond what was announced, fall silent, end and are lost in any order. Checks that two or more
        /// are received at once only if they fit together into the room (limit on their bytes), and that at no time all
        /// of them are paused.
        #[test]
        fn the_room_is_kept_and_somebody_goes_on(
            steps in proptest::collection::vec((0..12_u32, 0..8_u8, 0..400_000_usize, 0..800_000_usize), 1..300),
        ) {
            let (mut room, mut actions, mut paused) = (LargeReplies::new(MAX), VecDeque::new(), BTreeSet::new());
            let (mut held, mut now) = ([0_usize; 12], Timestamp::ZERO);
            for (connection, what, more, missing) in steps {
                let id = (ConnectionId(connection), 7);
                now = now.after(Duration::from_micros(more as u64));
                room.handle_time(now, &mut actions);
                if room.listed.iter().all(|listed| listed.reading != Reading::Goes) {
                    let next = room.listed.iter().find(|listed| listed.is_paused());
                    let others: usize = room.listed.iter().map(|listed| listed.held).sum();
                    proptest::prop_assert!(next.is_none_or(|next| others - next.held + next.known > MAX));
                }
                let own = &mut held[connection as usize];
                if what == 0 {
                    *own = 0;
                    room.handle_end(id, &mut actions);
                } else {
                    // Bytes may still arrive after a pause.
                    *own += if paused.contains(&connection) { more / 10 } else { more };
                    room.handle_part(id, (*own, missing), &mut actions);
                }
                carry_out(&mut actions, &mut paused);
                proptest::prop_assert_eq!(room.paused().map(|at| at.0.0).collect::<BTreeSet<_>>(), paused.clone());
                proptest::prop_assert!(room.read() > 0 || room.is_empty());
                let goes_any = room.listed.iter().any(|listed| listed.reading == Reading::Goes);
                let is_kept = !goes_any || room.read() < 2 || room.bytes() <= MAX;
                proptest::prop_assert!(is_kept, "{} of {MAX}", room.bytes());
            }
        }
    }
}
