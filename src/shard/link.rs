//! One connection to a backend, shared by all requests of this shard that go there in one dialect.
//!
//! ```text
//!   Closed ──first request──> Opening ──connected──> Open
//!     ^                          │ failed              │ lost, malformed, silent too long
//!     └──── time is over ── BackingOff <───────────────┘ (a lost one is tried again at once)
//! ```
//!
//! Replies come in the order of requests, so the oldest unanswered request owns the next reply. When the connection
//! is lost, all of them are answered `-UNAVAILABLE`: weir cannot know which were carried out, so it repeats none.

use std::collections::VecDeque;
use std::time::Duration;

use super::batch::ReplyTo;
use crate::protocol::{Output, Protocol, ReplyScanner};
use crate::values::{BackendId, Timestamp};

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Not connected, and nothing speaks against it.
    Closed,
    /// The socket is being connected; requests wait in the output.
    Opening { since: Timestamp },
    /// Requests flow.
    Open,
    /// The last attempt failed; requests are refused until then.
    BackingOff { until: Timestamp },
}

/// What a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A client's.
    Answer(ReplyTo),
    /// Nobody's: a step of a block of which only the last reply counts.
    Step,
    /// Weir's own greeting; an error ends the connection.
    Greeting,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub purpose: Purpose,
    /// Of the command, as an index.
    pub class: u8,
    pub sent_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct Link {
    pub backend: BackendId,
    pub protocol: Protocol,
    pub state: LinkState,
    /// Counts sockets, so that an event of an old one is not taken for the new one's.
    pub generation: u32,
    attempts: u32,
    pub output: Output,
    pub sending: bool,
    pub listed_to_send: bool,
    pub pending: VecDeque<Pending>,
    pub scanner: ReplyScanner,
    /// When bytes came last.
    pub heard_at: Timestamp,
    /// The beginning of a reply that is not whole yet.
    pub partial: Vec<u8>,
    /// The reply under way is larger than allowed: its bytes are let go, and an error takes its place.
    pub oversized: bool,
}

/// The first pause after a failed attempt, and the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl Link {
    pub fn new(backend: BackendId, protocol: Protocol) -> Self {
        Self {
            backend,
            protocol,
            state: LinkState::Closed,
            generation: 0,
            attempts: 0,
            output: Output::default(),
            sending: false,
            listed_to_send: false,
            pending: VecDeque::new(),
            scanner: ReplyScanner::default(),
            heard_at: Timestamp::ZERO,
            partial: Vec::new(),
            oversized: false,
        }
    }

    pub fn opened(&mut self) {
        self.state = LinkState::Open;
    }

    /// A greeting was answered: the backend works, so the next loss is tried again at once.
    pub fn proved(&mut self) {
        self.attempts = 0;
    }

    /// Forgets the socket. `spread` (0 to 255) keeps many links from coming back in step.
    pub fn lost(&mut self, now: Timestamp, spread: u8) {
        let pause = if self.attempts == 0 && self.state == LinkState::Open {
            Duration::ZERO
        } else {
            BACKOFF_FIRST.saturating_mul(1 << self.attempts.min(10)).min(BACKOFF_MAX)
        };
        self.attempts = self.attempts.saturating_add(1);
        let jittered = pause.mul_f64(0.75 + f64::from(spread) / 512.0);
        self.state = if pause.is_zero() {
            LinkState::Closed
        } else {
            LinkState::BackingOff { until: now.after(jittered) }
        };
        self.sending = false;
        self.scanner = ReplyScanner::default();
        self.partial = Vec::new();
        self.oversized = false;
    }

    /// How long until an attempt to connect is allowed.
    pub fn pause_left(&self, now: Timestamp) -> Duration {
        match self.state {
            LinkState::BackingOff { until } => until.since(now),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut link = Link::new(BackendId(0), Protocol::Resp2);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            link.state = LinkState::Opening { since: Timestamp::ZERO };
            link.lost(Timestamp::ZERO, 128);
            pauses.push(link.pause_left(Timestamp::ZERO));
        }
        assert!(pauses.is_sorted());
        assert_eq!(pauses.first(), Some(&BACKOFF_FIRST));
        assert_eq!(pauses.last(), Some(&BACKOFF_MAX));
    }

    #[test]
    fn a_link_that_worked_is_tried_again_at_once() {
        let mut link = Link::new(BackendId(0), Protocol::Resp2);
        link.state = LinkState::Opening { since: Timestamp::ZERO };
        link.lost(Timestamp::ZERO, 0);
        link.opened();
        link.proved();
        link.lost(Timestamp::ZERO, 0);
        assert_eq!(link.state, LinkState::Closed);
    }
}
