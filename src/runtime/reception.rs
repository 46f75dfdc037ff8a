//! Whether bytes are received on one socket, and what is to be asked of the ring for it. Pure, so that every order of
//! events can be tried.
//!
//! ```text
//!             Want::Receive ┌───────────────── pause ──> Stopping ──┐
//!   Idle ─────────────────> Armed <── its turn ── Waiting           │ stopped (or ended with data, or at the end)
//!    ^  \                     │                      ^              │
//!    │   └── Want::Turn ──────┼──────────────────────┤              │
//!    └────────────────────────┴── no buffer was left ┴──────────────┘
//! ```
//!
//! The kernel serves a socket with up to 32 buffers per wake-up, so a few that flood take all there are, again and again. So
//! where buffers run out, whoever found none, and whoever had many in that turn, waits for its turn from then on and takes one
//! buffer at a time for a while.

/// Receives, one buffer each, that such a socket is held to.
const MODEST_RECEIVES: u8 = 200;
/// Buffers that one socket may fill in a turn in which others find none.
const BUFFERS_PER_TURN: u8 = 4;

/// One turn of the core, as receiving sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Tells it from the ones before.
    pub number: u32,
    /// Somebody found no buffer, in this turn or the one before.
    pub starved: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing is under way.
    #[default]
    Idle,
    /// In the queue of those that wait for their turn.
    Waiting,
    /// The ring receives.
    Armed,
    /// The ring receives, and was told to stop.
    Stopping,
}

/// What the ring is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Nothing,
    /// Receive until told otherwise.
    Receive,
    /// Put the socket at the end of the queue.
    Turn,
    /// Stop receiving.
    Cancel,
}

/// Why receiving has stopped without a failure of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// No buffer was left.
    Starved,
    /// It was cancelled, or interrupted.
    Interrupted,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reception {
    state: State,
    paused: bool,
    /// Nothing more will come, or nothing more is wanted.
    over: bool,
    /// Receives left that take one buffer each.
    modest: u8,
    /// Buffers filled in a turn, and which turn that was.
    filled: u8,
    filled_in: u32,
}

impl Reception {
    /// Is the ring, or the queue, not done with the socket yet?
    pub fn is_busy(&self) -> bool {
        self.state != State::Idle
    }

    /// Receives, unless that is under way, unwanted or pointless.
    pub fn start(&mut self) -> Want {
        if self.state != State::Idle || self.paused || self.over {
            return Want::Nothing;
        }
        if self.modest > 0 {
            self.state = State::Waiting;
            return Want::Turn;
        }
        self.state = State::Armed;
        Want::Receive
    }

    pub fn pause(&mut self) -> Want {
        self.paused = true;
        if self.state != State::Armed {
            return Want::Nothing;
        }
        self.state = State::Stopping;
        Want::Cancel
    }

    pub fn resume(&mut self) -> Want {
        self.paused = false;
        self.start()
    }

    /// Its turn has come: receive into one buffer?
    #[must_use]
    pub fn handle_turn(&mut self) -> bool {
        debug_assert_eq!(self.state, State::Waiting, "only those that wait are in the queue");
        let wanted = !self.paused && !self.over;
        self.state = if wanted { State::Armed } else { State::Idle };
        wanted
    }

    /// Bytes came, and more will by themselves.
    pub fn handle_received(&mut self, turn: Turn) -> Want {
        if self.filled_in != turn.number {
            (self.filled_in, self.filled) = (turn.number, 0);
        }
        self.filled = self.filled.saturating_add(1);
        if !turn.starved || self.filled < BUFFERS_PER_TURN || self.state != State::Armed {
            return Want::Nothing;
        }
        self.modest = MODEST_RECEIVES;
        self.state = State::Stopping;
        Want::Cancel
    }

    /// Bytes came, and nothing more is received unless it is asked for.
    pub fn handle_received_last(&mut self) -> Want {
        self.state = State::Idle;
        self.modest = self.modest.saturating_sub(1);
        self.start()
    }

    pub fn handle_stopped(&mut self, stop: Stop) -> Want {
        self.state = State::Idle;
        if stop == Stop::Starved {
            self.modest = MODEST_RECEIVES;
        }
        self.start()
    }

    /// The other side sends no more, or the socket failed.
    pub fn handle_end(&mut self) {
        self.state = State::Idle;
        self.over = true;
    }

    /// Nothing more is wanted. What is under way ends by itself, as the socket does.
    pub fn close(&mut self) {
        self.over = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The ring's side of one socket, as the kernel keeps it.
    #[derive(Default)]
    struct Kernel {
        armed: bool,
        once: bool,
        cancelling: bool,
        queued: usize,
    }

    impl Kernel {
        fn ask(&mut self, want: Want) {
            match want {
                Want::Nothing => {}
                Want::Receive => self.arm(false),
                Want::Turn => self.queued += 1,
                Want::Cancel => {
                    assert!(self.armed && !self.cancelling, "what is cancelled is under way, and not twice");
                    self.cancelling = true;
                }
            }
        }

        fn arm(&mut self, once: bool) {
            assert!(!self.armed, "two receives on one socket would mix its bytes");
            *self = Self { armed: true, once, cancelling: false, queued: self.queued };
        }

        /// A receive is over; the cancellation on its way, if any, finds nothing.
        fn over(&mut self) {
            self.armed = false;
            self.cancelling = false;
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Pause,
        Resume,
        Turn,
        Bytes,
        LastBytes,
        NoBuffer,
        Cancelled,
        End,
        Close,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        use Event::{Bytes, Cancelled, Close, End, LastBytes, NoBuffer, Pause, Resume, Turn};
        let often = prop::sample::select(vec![
            Pause, Resume, Turn, Turn, Bytes, LastBytes, NoBuffer, Cancelled, Cancelled,
        ]);
        let seldom = prop::sample::select(vec![End, Close]);
        prop::collection::vec(prop_oneof![20 => often, 1 => seldom], 0..200)
    }

    proptest! {
        #[test]
        fn whatever_happens_it_receives_exactly_while_it_is_wanted(events in events()) {
            let (mut reception, mut kernel) = (Reception::default(), Kernel::default());
            let (mut paused, mut over) = (false, false);
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
                    Event::Turn if kernel.queued > 0 => {
                        kernel.queued -= 1;
                        if reception.handle_turn() {
                            kernel.arm(true);
                        }
                    }
                    Event::LastBytes | Event::Bytes if kernel.armed => {
                        // Also while it is being cancelled: the last buffer may come with data in it.
                        if kernel.once || matches!(event, Event::LastBytes) {
                            kernel.over();
                            kernel.ask(reception.handle_received_last());
                        } else {
                            kernel.ask(reception.handle_received(turn));
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
                    Event::End if kernel.armed => {
                        over = true;
                        kernel.over();
                        reception.handle_end();
                    }
                    Event::Close => {
                        over = true;
                        reception.close();
                    }
                    _ => {}
                }
                prop_assert!(kernel.queued <= 1, "a socket stands in the queue once");
                prop_assert_eq!(reception.is_busy(), kernel.armed || kernel.queued > 0);
                if paused && kernel.armed && !over {
                    prop_assert!(kernel.cancelling, "a paused socket is on its way to rest");
                }
                if !paused && !over {
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
        assert_eq!(reception.handle_received_last(), Want::Nothing);
        assert_eq!(reception.resume(), Want::Receive);
        assert_eq!(reception.pause(), Want::Cancel, "the next pause must cancel again");
    }

    #[test]
    fn who_found_no_buffer_is_modest_for_a_while() {
        let mut reception = Reception::default();
        assert_eq!(reception.start(), Want::Receive);
        let mut want = reception.handle_stopped(Stop::Starved);
        for _ in 0..MODEST_RECEIVES {
            assert_eq!(want, Want::Turn);
            assert!(reception.handle_turn());
            want = reception.handle_received_last();
        }
        assert_eq!(want, Want::Receive);
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
