//! Decides whether bytes are received on a socket, and which operation the ring is asked for. Pure, so that
//! tests can try every order of events.
//!
//! ```text
//!             Want::Receive ┌───────────────── pause ──> Stopping ──┐
//!   Idle ─────────────────> Armed <── its turn ── Waiting           │ stopped (or ended with data, or at the end)
//!    ^  \                     │                      ^              │
//!    │   └── Want::Turn ──────┼──────────────────────┤              │
//!    └────────────────────────┴── no buffer was left ┴──────────────┘
//! ```
//!
//! A socket whose reading is paused is watched instead (`Watching`), so that weir learns at once that its peer
//! has ended its side or the connection has failed, although the bytes before that are not read. Receiving and
//! watching exclude each other: each begins after the other's operation is over.
//!
//! The kernel serves a socket with up to 32 buffers per wake-up, so a few sockets that flood would take all
//! buffers again and again. Where buffers run out, a socket that found none, and one that had many in that
//! turn, waits for its turn from then on and takes one buffer at a time for a while.
//!
//! A socket that sends a large message is received from once at a time: the missing part then goes directly
//! into the message's own memory, instead of through receive buffers that others may need and from which it
//! would be copied.

use crate::values::limits::RECEIVE_BUFFER_BYTES;

/// The number of receives on a socket, after receive buffers ran out, during which it takes one buffer at a
/// time and waits in the queue for each.
const MODEST_RECEIVES: u8 = 200;
/// Maximum number of receive buffers that a socket may fill in a turn (round) of the core's loop while other
/// sockets find none; beyond that it must queue for each buffer.
const BUFFERS_PER_TURN: u8 = 4;
/// The least number of missing bytes (the size of a receive buffer, 20 KiB) at which a message counts as large,
/// because the rest would take more than one receive buffer.
const LARGE_BYTES_MIN: usize = RECEIVE_BUFFER_BYTES;
/// The least number of missing bytes (5 KiB) for which the rest of a message is received into the message's own
/// memory, while the socket counts as sending large messages (`LARGE_BYTES_MIN` was missing within the last
/// `SINGLE_RECEIVES` receives). A shorter rest is received through one receive buffer, together with the bytes
/// that follow it.
const REST_BYTES_MIN: usize = RECEIVE_BUFFER_BYTES / 4;
/// The number of receives on a socket after a large message that are started one by one, rather than as one
/// that repeats, since more large messages may follow.
const SINGLE_RECEIVES: u8 = 16;

/// The current turn (round) of the core's loop, and whether receive buffers are short in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// The number of this turn (round) of the core's loop, by which it differs from earlier ones.
    pub number: u32,
    /// True if a socket found no receive buffer in this turn (round) of the core's loop or the one before.
    pub starved: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// No receive operation is in flight on the socket.
    #[default]
    Idle,
    /// The socket is in the queue of sockets that wait for a receive buffer.
    Waiting,
    /// A receive operation is in flight on the socket.
    Armed,
    /// A receive operation is in flight on the socket, and the ring has been asked to cancel it.
    Stopping,
    /// Reading is paused, and the ring watches whether the peer ends its side or the connection fails.
    Watching,
    /// The watch for the peer's end is in flight, and the ring has been asked to cancel it.
    Unwatching,
}

/// The operation on a socket that the ring is asked for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Nothing,
    /// Asks the ring for a receive operation on the socket that repeats until it is cancelled.
    Receive,
    /// Asks the ring for one receive on the socket into one of the ring's buffers.
    ReceiveOnce,
    /// Asks the ring for a receive of the missing part of a large message into the message's own memory.
    Fill,
    /// Asks to put the socket at the end of the queue of sockets that wait for a receive buffer.
    Turn,
    /// Asks the ring to cancel the receive operation in flight on the socket.
    Cancel,
    /// Asks the ring to watch whether the peer ends its side, or the connection fails.
    Watch,
    /// Asks the ring to cancel the watch for the peer's end or the connection's failure.
    Unwatch,
}

/// The reason why a receive operation has ended although the socket has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The receive ended because no receive buffer was left.
    Starved,
    /// The receive was cancelled, or interrupted by a signal.
    Interrupted,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reception {
    state: State,
    paused: bool,
    /// True while the driver has stopped receiving in order to hand the socket to another process. Independent
    /// of `paused`: bytes are received only if neither flag is set.
    detained: bool,
    /// True once no more bytes are received on the socket: the peer has ended its side, it has failed, or the
    /// socket is about to be closed.
    over: bool,
    /// True once a watch has ended without having been cancelled, so that the socket is not watched again: the peer
    /// has ended its side, the connection has failed, or the kernel could not watch it. What came before is still
    /// received when reading goes on.
    is_watched_out: bool,
    /// The number of remaining receives on the socket that take one buffer each, after queueing for it,
    /// because receive buffers ran out.
    modest: u8,
    /// The number of receive buffers that the socket filled in the turn (round of the core's loop) with
    /// number `filled_in`.
    filled: u8,
    filled_in: u32,
    /// The number of further receives on the socket that are started one by one, rather than as one that
    /// repeats, because a large message came lately.
    single: u8,
    /// The number of bytes that are missing from the message being received, as far as known; 0 if unknown.
    missing: usize,
}

impl Reception {
    /// True while a receive operation or a watch is in flight on the socket, or the socket is in the queue of
    /// those that wait for a receive buffer.
    pub fn is_busy(&self) -> bool {
        self.state != State::Idle
    }

    /// Asks for a receive (or for a place in the queue for a receive buffer), or while reading is paused for a
    /// watch. Returns the operation that the ring is asked for; `Want::Nothing` if one is in flight or no more
    /// bytes are to be received.
    pub fn start(&mut self) -> Want {
        if self.state != State::Idle || self.detained || self.over {
            return Want::Nothing;
        }
        if self.paused {
            if self.is_watched_out {
                return Want::Nothing;
            }
            self.state = State::Watching;
            return Want::Watch;
        }
        let fills = self.single > 0 && self.missing >= REST_BYTES_MIN;
        if self.modest > 0 && !fills {
            self.state = State::Waiting;
            return Want::Turn;
        }
        self.state = State::Armed;
        match self.single {
            _ if fills => Want::Fill,
            0 => Want::Receive,
            _ => Want::ReceiveOnce,
        }
    }

    /// Pauses reading: stops the receive in flight, after which the socket is watched. Returns the operation
    /// that the ring is asked for.
    pub fn pause(&mut self) -> Want {
        self.paused = true;
        if self.state == State::Armed { self.stop() } else { self.start() }
    }

    pub fn resume(&mut self) -> Want {
        self.paused = false;
        if self.state == State::Watching { self.stop() } else { self.start() }
    }

    /// True while reading is paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Stops receiving until [`Reception::let_go`] is called, even if reading is resumed meanwhile. The driver
    /// calls it before it hands the socket to another process. Returns the operation that the ring is asked
    /// for.
    pub fn detain(&mut self) -> Want {
        self.detained = true;
        self.stop()
    }

    pub fn let_go(&mut self) -> Want {
        if std::mem::take(&mut self.detained) { self.start() } else { Want::Nothing }
    }

    /// True if receiving was stopped in order to hand the socket to another process, the socket has not
    /// ended, and no receive is in flight, so that it can be given away.
    pub fn is_detained(&self) -> bool {
        self.detained && !self.over && !self.is_busy()
    }

    fn stop(&mut self) -> Want {
        let (state, want) = match self.state {
            State::Armed => (State::Stopping, Want::Cancel),
            State::Watching => (State::Unwatching, Want::Unwatch),
            other => (other, Want::Nothing),
        };
        self.state = state;
        want
    }

    /// Handles that the socket has come to the head of the queue of sockets that wait for a receive buffer.
    /// Returns the operation that the ring is asked for: one receive; a watch if reading is paused; nothing if
    /// no more bytes are to be received, or the socket is to go to another process.
    pub fn handle_turn(&mut self) -> Want {
        debug_assert_eq!(self.state, State::Waiting, "only those that wait are in the queue");
        self.state = State::Idle;
        if self.paused || self.detained || self.over {
            return self.start();
        }
        self.state = State::Armed;
        Want::ReceiveOnce
    }

    /// Handles that a watch is over. `ended` says whether the peer has ended its side, or the connection has
    /// failed; if not, the watch was cancelled, or the kernel could not keep it up. Returns the operation that the
    /// ring is asked for.
    pub fn handle_watched(&mut self, ended: bool) -> Want {
        self.is_watched_out |= ended || self.state == State::Watching;
        self.state = State::Idle;
        self.start()
    }

    /// Handles bytes from a receive operation that repeats and goes on. `missing` bytes of the message being
    /// received are still to come. `turn` is the current round of the core's loop. Returns the operation that
    /// the ring is asked for.
    pub fn handle_received(&mut self, turn: Turn, missing: usize) -> Want {
        self.note_missing(missing);
        if self.filled_in != turn.number {
            (self.filled_in, self.filled) = (turn.number, 0);
        }
        self.filled = self.filled.saturating_add(1);
        let greedy = turn.starved && self.filled >= BUFFERS_PER_TURN;
        if self.state != State::Armed || !(greedy || self.single > 0) {
            return Want::Nothing;
        }
        if greedy {
            self.modest = MODEST_RECEIVES;
        }
        self.state = State::Stopping;
        Want::Cancel
    }

    /// Handles the bytes with which a receive operation has ended. `missing` bytes of the message being
    /// received are still to come. Returns the operation that the ring is asked for next.
    pub fn handle_received_last(&mut self, missing: usize) -> Want {
        self.state = State::Idle;
        self.modest = self.modest.saturating_sub(1);
        self.single = self.single.saturating_sub(1);
        self.note_missing(missing);
        self.start()
    }

    fn note_missing(&mut self, missing: usize) {
        self.missing = missing;
        if missing >= LARGE_BYTES_MIN {
            self.single = SINGLE_RECEIVES;
        }
    }

    pub fn handle_stopped(&mut self, stop: Stop) -> Want {
        self.state = State::Idle;
        if stop == Stop::Starved {
            self.modest = MODEST_RECEIVES;
        }
        self.start()
    }

    /// Handles that the peer has ended its sending side, or the socket failed.
    pub fn handle_end(&mut self) {
        self.state = State::Idle;
        self.over = true;
    }

    /// True once no more bytes are received on the socket: the peer has ended its side, the socket has failed,
    /// or it is about to be closed.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ends receiving because the socket is about to be closed. The receive in flight ends with the socket; a
    /// watch is cancelled. Returns the operation that the ring is asked for.
    pub fn close(&mut self) -> Want {
        self.over = true;
        if self.state == State::Watching { self.stop() } else { Want::Nothing }
    }

    /// Ends receiving while the socket stays open for replies, so the receive in flight is cancelled. Returns
    /// the operation that the ring is asked for.
    pub fn leave(&mut self) -> Want {
        self.over = true;
        self.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A model of the kernel's side: the receive operation that is under way for a socket.
    #[derive(Default)]
    struct Kernel {
        armed: bool,
        once: bool,
        cancelling: bool,
        queued: usize,
        watched: bool,
        unwatching: bool,
    }

    impl Kernel {
        fn ask(&mut self, want: Want) {
            match want {
                Want::Nothing => {}
                Want::Receive => self.arm(false),
                Want::ReceiveOnce | Want::Fill => self.arm(true),
                Want::Turn => self.queued += 1,
                Want::Cancel => {
                    assert!(self.armed && !self.cancelling, "what is cancelled is under way, and not twice");
                    self.cancelling = true;
                }
                Want::Watch => {
                    assert!(!self.watched && !self.armed && self.queued == 0, "it is watched instead");
                    (self.watched, self.unwatching) = (true, false);
                }
                Want::Unwatch => {
                    assert!(
                        self.watched && !self.unwatching,
                        "what is cancelled is under way, and not twice"
                    );
                    self.unwatching = true;
                }
            }
        }

        fn arm(&mut self, once: bool) {
            assert!(!self.armed && !self.watched, "two receives on one socket would mix its bytes");
            *self = Self { armed: true, once, queued: self.queued, ..Self::default() };
        }

        /// Ends the receive that is under way; a cancellation that comes later has no effect.
        fn over(&mut self) {
            self.armed = false;
            self.cancelling = false;
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Pause,
        Resume,
        Detain,
        LetGo,
        Turn,
        Bytes(usize),
        LastBytes(usize),
        NoBuffer,
        Cancelled,
        Watched,
        Unwatched,
        End,
        Close,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        use Event::{Bytes, Cancelled, Close, Detain, End, LastBytes, LetGo};
        use Event::{NoBuffer, Pause, Resume, Turn, Unwatched, Watched};
        let mut often = vec![Pause, Resume, Detain, LetGo, LetGo, Turn, Turn, NoBuffer, Cancelled, Cancelled];
        often.extend([Unwatched, Unwatched]);
        for missing in [0, 0, REST_BYTES_MIN, LARGE_BYTES_MIN] {
            often.extend([Bytes(missing), LastBytes(missing)]);
        }
        let often = prop::sample::select(often);
        let seldom = prop::sample::select(vec![End, Close, Watched]);
        prop::collection::vec(prop_oneof![20 => often, 1 => seldom], 0..200)
    }

    proptest! {
        #[test]
        fn whatever_happens_it_receives_exactly_while_it_is_wanted(events in events()) {
            let (mut reception, mut kernel) = (Reception::default(), Kernel::default());
            let (mut paused, mut detained, mut over, mut missing) = (false, false, false, 0);
            let mut end_is_ahead = false;
            kernel.ask(reception.start());
            for (number, event) in events.into_iter().enumerate() {
                let turn = Turn { number: number as u32 / 10, starved: number % 50 > 25 };
                match event {
                    Event::Pause => {
                        paused = true;
                        kernel.ask(reception.pause());
                    }
                    Event::Resume => {
                        paused = false;
                        kernel.ask(reception.resume());
                    }
                    Event::Detain => {
                        detained = true;
                        kernel.ask(reception.detain());
                    }
                    Event::LetGo => {
                        detained = false;
                        kernel.ask(reception.let_go());
                    }
                    Event::Turn if kernel.queued > 0 => {
                        kernel.queued -= 1;
                        kernel.ask(reception.handle_turn());
                    }
                    Event::LastBytes(left) | Event::Bytes(left) if kernel.armed => {
                        missing = left;
                        // A receive that is being cancelled may still return data in its last buffer.
                        if kernel.once || matches!(event, Event::LastBytes(_)) {
                            kernel.over();
                            kernel.ask(reception.handle_received_last(missing));
                        } else {
                            kernel.ask(reception.handle_received(turn, missing));
                        }
                    }
                    Event::NoBuffer if kernel.armed => {
                        kernel.over();
                        kernel.ask(reception.handle_stopped(Stop::Starved));
                    }
                    Event::Cancelled if kernel.cancelling => {
                        kernel.over();
                        kernel.ask(reception.handle_stopped(Stop::Interrupted));
                    }
                    Event::Watched if kernel.watched => {
                        end_is_ahead = true;
                        kernel.watched = false;
                        kernel.ask(reception.handle_watched(true));
                    }
                    Event::Unwatched if kernel.watched && kernel.unwatching => {
                        kernel.watched = false;
                        kernel.ask(reception.handle_watched(false));
                    }
                    Event::End if kernel.armed => {
                        over = true;
                        kernel.over();
                        reception.handle_end();
                    }
                    Event::Close => {
                        over = true;
                        kernel.ask(reception.close());
                    }
                    _ => {}
                }
                prop_assert!(kernel.queued <= 1, "a socket stands in the queue once");
                if missing >= LARGE_BYTES_MIN && kernel.armed && !kernel.once {
                    prop_assert!(kernel.cancelling, "what is large does not go on through buffers");
                }
                prop_assert_eq!(reception.is_busy(), kernel.armed || kernel.watched || kernel.queued > 0);
                if kernel.watched && (over || detained || !paused) {
                    prop_assert!(kernel.unwatching, "only a socket whose reading is paused is watched");
                }
                if paused && !detained && !over && !end_is_ahead {
                    prop_assert!(reception.is_busy(), "a paused socket is watched, or will be");
                }
                if (paused || detained) && kernel.armed && !over {
                    prop_assert!(kernel.cancelling, "a paused socket is on its way to rest");
                }
                prop_assert_eq!(reception.is_detained(), detained && !over && !reception.is_busy());
                if !paused && !detained && !over {
                    prop_assert!(reception.is_busy(), "a socket that is read from receives, or will in its turn");
                }
            }
        }
    }

    #[test]
    fn an_end_with_data_leaves_no_trace_of_the_cancellation() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        assert_eq!(reception.pause(), Want::Cancel);
        assert_eq!(reception.handle_received_last(0), Want::Watch);
        assert_eq!((reception.resume(), reception.handle_watched(false)), (Want::Unwatch, Want::Receive));
        assert_eq!(reception.pause(), Want::Cancel, "the next pause must cancel again");
    }

    #[test]
    fn who_found_no_buffer_is_modest_for_a_while() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        let mut want = reception.handle_stopped(Stop::Starved);
        for _ in 0..MODEST_RECEIVES {
            assert_eq!((want, reception.handle_turn()), (Want::Turn, Want::ReceiveOnce));
            want = reception.handle_received_last(0);
        }
        assert_eq!(want, Want::Receive);
    }

    #[test]
    fn what_is_missing_of_something_large_is_received_into_its_own_memory() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        assert_eq!(reception.handle_received(Turn::default(), LARGE_BYTES_MIN), Want::Cancel);
        assert_eq!(
            reception.handle_received(Turn::default(), LARGE_BYTES_MIN),
            Want::Nothing,
            "once is enough"
        );
        assert_eq!(reception.handle_stopped(Stop::Interrupted), Want::Fill);
        assert_eq!(reception.handle_received_last(REST_BYTES_MIN), Want::Fill);
        assert_eq!(reception.handle_received_last(REST_BYTES_MIN - 1), Want::ReceiveOnce);
        // More large messages may follow; if none does, the socket goes back to multishot receives.
        let wants: Vec<Want> = (0..SINGLE_RECEIVES).map(|_| reception.handle_received_last(0)).collect();
        assert_eq!(wants.last(), Some(&Want::Receive));
    }

    #[test]
    fn what_just_takes_two_buffers_goes_on_through_buffers() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        assert_eq!(reception.handle_received(Turn::default(), LARGE_BYTES_MIN - 1), Want::Nothing);
    }

    #[test]
    fn filling_takes_no_buffer_and_waits_for_no_turn() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        assert_eq!(reception.handle_stopped(Stop::Starved), Want::Turn);
        assert_eq!(reception.handle_turn(), Want::ReceiveOnce);
        assert_eq!(reception.handle_received_last(LARGE_BYTES_MIN), Want::Fill);
        assert_eq!(reception.handle_received_last(0), Want::Turn);
    }

    #[test]
    fn nothing_is_received_behind_the_end() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        reception.handle_end();
        assert_eq!(reception.pause(), Want::Nothing);
        assert_eq!(reception.resume(), Want::Nothing);
    }
}
