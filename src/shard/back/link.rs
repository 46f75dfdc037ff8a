//! One connection to a backend, shared by all requests of this shard that go there in one dialect.
//!
//! ```text
//!   Closed ──first request──> Opening ──connected──> Greeting ──answered──> Open
//!     ^                          │ failed              │                     │ lost, malformed, silent too long
//!     └──── time is over ── BackingOff <───────────────┴─────────────────────┘ (a lost one is tried again at once)
//! ```
//!
//! The greeting logs in, asks how the store calls the connection, and raises the fences that stand (`fence.rs`). Requests are sent
//! when all of it is answered, so no connection carries requests that could not be named to the store later.
//!
//! Replies come in the order of requests, so the oldest unanswered request owns the next reply. When the connection
//! is lost, all of them are answered `-UNAVAILABLE`: weir cannot know which were carried out, so it repeats none.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use super::unanswered::Unanswered;
use crate::protocol::command::{Class, Effect};
use crate::protocol::{BufferPool, Output, Protocol, ReplyScanner};
use crate::shard::fence::StoreClient;
use crate::shard::request::{Envelope, Overdue, ReplyTo};
use crate::values::limits::{LINK_OUTPUT_BYTES_MAX, LINK_PENDING_MAX, STEP_ERROR_BYTES_MAX};
use crate::values::{BackendId, ShardId, TenantId, Tier, Timestamp};

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Not connected, and nothing speaks against it.
    Closed,
    /// The socket is being connected; requests wait in the output.
    Opening { since: Timestamp },
    /// Weir's own greeting is being answered; requests wait in the output.
    Greeting { since: Timestamp },
    /// Requests flow.
    Open,
    /// The last attempt failed; requests are refused until then.
    BackingOff { until: Timestamp },
}

/// What a reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A client's.
    Answer(ReplyTo),
    /// A client's that was answered without it.
    Abandoned(ReplyTo),
    /// Nobody's: as many replies to a block of which only the one behind them counts.
    Steps(u32),
    /// What is asked right before a request whose reply depends on it.
    Ahead(ReplyTo),
    /// Nobody's: a fence, the oldest of those in the stream.
    Fence,
}

/// What a reply is for before requests flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// An error ends the connection.
    Login,
    /// That what follows only reads: else replicas send everybody to their primaries. An error ends the connection.
    ReadOnly,
    /// How the store calls the connection.
    Identity,
    /// What a weir is told of deadlines.
    Terms,
    /// A fence, by origin and sequence.
    Fence(ShardId, u64),
}

/// A reply that is to come. One stands for each request in flight, so it is small.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub purpose: Purpose,
    /// Of the command.
    pub class: Class,
    pub effect: Effect,
    pub tier: Tier,
    /// How long it takes says nothing of what others take.
    pub odd: Odd,
    pub tenant: TenantId,
    /// What was in flight at the bulkhead once it was sent, as far as this holds that many.
    pub depth: u16,
    /// How many milliseconds after it was sent nobody has a use for an answer any more, if ever.
    pub useful_ms: u32,
    pub sent_at: Timestamp,
}

const _: () = assert!(size_of::<Pending>() <= 40);

/// Why a reply is not like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// It is.
    No,
    /// Its request costs much, or was sent before the connection was there.
    Costly,
    /// One of those stood before it.
    Behind,
    /// A weir behind refused it.
    Refused,
}

impl Pending {
    /// One that no client waits for.
    pub const fn uncounted(purpose: Purpose, sent_at: Timestamp) -> Self {
        Self {
            purpose,
            class: Class::Control,
            effect: Effect::None,
            tier: Tier::Standard,
            odd: Odd::No,
            tenant: TenantId(0),
            depth: 0,
            useful_ms: u32::MAX,
            sent_at,
        }
    }

    /// The reply to a client's request.
    #[inline]
    pub fn answer(envelope: &Envelope, (depth, odd): (u32, Odd), sent_at: Timestamp) -> Self {
        let useful_ms = if envelope.deadline == Timestamp::MAX || envelope.overdue == Overdue::Awaited {
            u32::MAX
        } else {
            envelope.deadline.since(sent_at).as_millis().min(u128::from(u32::MAX)) as u32
        };
        Self {
            purpose: Purpose::Answer(envelope.reply_to),
            class: envelope.nature.class,
            effect: envelope.nature.effect,
            tier: envelope.tier,
            odd,
            tenant: envelope.tenant(),
            depth: depth.min(u32::from(u16::MAX)) as u16,
            useful_ms,
            sent_at,
        }
    }

    /// When nobody has a use for an answer any more.
    pub fn deadline(&self) -> Timestamp {
        if self.useful_ms == u32::MAX {
            Timestamp::MAX
        } else {
            self.sent_at.after(Duration::from_millis(u64::from(self.useful_ms)))
        }
    }

    /// How many replies it stands for.
    pub const fn replies(&self) -> usize {
        match self.purpose {
            Purpose::Steps(left) => left as usize,
            Purpose::Answer(_) | Purpose::Abandoned(_) | Purpose::Ahead(_) | Purpose::Fence => 1,
        }
    }

    /// Is it one of those that the window counts: a client's, whether it still waits or not?
    #[inline]
    pub const fn is_counted(&self) -> bool {
        matches!(self.purpose, Purpose::Answer(_) | Purpose::Abandoned(_))
    }
}

/// What is known of a weir behind a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// How much requests over the connection matter there. No tier above it may be asked for.
    pub tier: Tier,
    /// It has agreed to be told deadlines.
    pub takes_deadlines: bool,
}

#[derive(Debug)]
pub struct Link {
    pub backend: BackendId,
    pub protocol: Protocol,
    /// Through which of them its requests pass.
    pub bulkhead: usize,
    /// It leads to a replica, and carries nothing but reads that it may answer.
    pub only_reads: bool,
    pub state: LinkState,
    /// Counts sockets, so that an event of an old one is not taken for the new one's.
    pub generation: u32,
    attempts: u32,
    /// What weir says first, until it is sent, and what is to be answered before requests flow.
    pub greeting: Vec<u8>,
    pub greetings: VecDeque<Greeting>,
    /// How the store calls the connection, if it says.
    pub name: Option<StoreClient>,
    /// What is known of the store, if it is a weir.
    pub inner: Option<Inner>,
    /// How many fences were seen to on this connection; all that there may ever be before the greeting has asked for some.
    pub fenced: u64,
    /// Those between requests, by origin and sequence.
    pub fences: VecDeque<(ShardId, u64)>,
    pub output: Output,
    pub sending: bool,
    pub listed_to_send: bool,
    pub pending: VecDeque<Pending>,
    /// How many of those are costly.
    pub costly_ahead: u32,
    pub scanner: ReplyScanner,
    /// When bytes came last.
    pub heard_at: Timestamp,
    /// What was sent and has yet to be answered, before a cluster.
    pub unanswered: Unanswered,
    /// The first error among the steps of the transaction that is being answered: EXEC itself only says that there was one.
    pub step_error: Option<Box<[u8]>>,
    /// The beginning of a reply that is not whole yet.
    pub partial: Vec<u8>,
    /// Of the reply that is coming, if it is larger than allowed: so many bytes were let go, and an error takes its place.
    pub let_go: u64,
}

/// The first pause after a failed attempt, and the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl Link {
    pub fn new(backend: BackendId, protocol: Protocol, bulkhead: usize) -> Self {
        Self {
            backend,
            protocol,
            bulkhead,
            only_reads: false,
            state: LinkState::Closed,
            generation: 0,
            attempts: 0,
            greeting: Vec::new(),
            greetings: VecDeque::new(),
            name: None,
            inner: None,
            fenced: u64::MAX,
            fences: VecDeque::new(),
            output: Output::default(),
            sending: false,
            listed_to_send: false,
            pending: VecDeque::new(),
            costly_ahead: 0,
            scanner: ReplyScanner::default(),
            heard_at: Timestamp::ZERO,
            unanswered: Unanswered::default(),
            step_error: None,
            partial: Vec::new(),
            let_go: 0,
        }
    }

    /// The socket is connected: the greeting goes out.
    pub fn connected(&mut self, now: Timestamp) {
        self.state = LinkState::Greeting { since: now };
    }

    /// The greeting was answered.
    pub fn opened(&mut self) {
        debug_assert!(self.greetings.is_empty(), "requests flow when all of it is answered");
        self.state = LinkState::Open;
    }

    /// Is there something that may be sent?
    pub fn has_output(&self) -> bool {
        match self.state {
            LinkState::Greeting { .. } => !self.greeting.is_empty(),
            LinkState::Open => !self.output.is_empty(),
            _ => false,
        }
    }

    /// Should it be listed, from now on, as one that has something to send?
    #[inline]
    pub fn begin_list(&mut self) -> bool {
        let is_new = !self.sending && !self.listed_to_send && self.has_output();
        self.listed_to_send |= is_new;
        is_new
    }

    /// May a request go out over it as it is, with so many fences raised so far?
    #[inline]
    pub fn is_ready(&self, fences: u64) -> bool {
        self.state == LinkState::Open && self.fenced >= fences && self.has_room()
    }

    /// May more go out, as far as what has yet to leave goes?
    pub fn has_room(&self) -> bool {
        self.pending.len() < LINK_PENDING_MAX
            && self.output.len() < LINK_OUTPUT_BYTES_MAX
            && self.unanswered.has_room()
    }

    /// Bytes that are known to be missing of the reply that is coming.
    pub fn missing(&self) -> usize {
        let wanted = !self.partial.is_empty() && self.let_go == 0 && self.greetings.is_empty();
        if wanted { usize::try_from(self.scanner.missing()).unwrap_or(usize::MAX) } else { 0 }
    }

    /// Notes the reply to a step of a transaction: the first error is kept until the next `MULTI` is answered.
    pub fn hear_step(&mut self, kind: u8, end: &[u8]) {
        let whole = whole(&self.partial, end);
        if kind == b'+' && *whole == *b"+OK\r\n" {
            self.step_error = None;
        } else if kind == b'-' && self.step_error.is_none() {
            let text =
                whole.strip_prefix(b"-").and_then(|line| line.strip_suffix(b"\r\n")).unwrap_or_default();
            self.step_error = Some(text[..text.len().min(STEP_ERROR_BYTES_MAX)].into());
        }
    }

    /// Returns the error that `EXEC` is answered with in the place of `end`: one that names the step's error. None where the store
    /// names one itself, or the reply is another.
    pub fn reasoned_abort(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        let step_error = self.step_error.as_deref()?;
        let whole = whole(&self.partial, end);
        let is_vague = whole.starts_with(b"-EXECABORT") && whole.windows(8).any(|words| words == b"previous");
        let text =
            [b"-EXECABORT Transaction discarded because of: ".as_slice(), step_error, b"\r\n"].concat();
        self.step_error = None;
        is_vague.then_some(text)
    }

    /// Since when the store owes something, if it does. What stands behind much else is not owed from when it was sent, but from the
    /// reply before it.
    pub fn owes_since(&self) -> Option<Timestamp> {
        let owed = match self.state {
            LinkState::Greeting { since } => Some(since),
            _ => self.pending.front().map(|pending| pending.sent_at),
        };
        owed.map(|since| since.max(self.heard_at))
    }

    /// A greeting was answered: the backend works, so the next loss is tried again at once.
    pub fn proved(&mut self) {
        self.attempts = 0;
    }

    /// Forgets what was on its way out or to be answered, but for the requests. How many answers to the greeting were owed.
    pub fn clear(&mut self, pool: &mut BufferPool) -> usize {
        self.output.clear(pool);
        self.unanswered.clear();
        pool.give(std::mem::take(&mut self.greeting));
        self.fences.clear();
        self.step_error = None;
        self.name = None;
        self.inner = None;
        self.fenced = u64::MAX;
        let owed = self.greetings.len();
        self.greetings.clear();
        owed
    }

    /// Forgets the socket. `spread` (0 to 255) keeps many links from coming back in step.
    pub fn lost(&mut self, now: Timestamp, spread: u8) {
        let worked = matches!(self.state, LinkState::Open | LinkState::Greeting { .. });
        let pause = if self.attempts == 0 && worked {
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
        self.let_go = 0;
    }

    /// What it is connected to is another, or does something else: how often it failed says nothing of that.
    pub fn forget_failures(&mut self) {
        self.attempts = 0;
        if let LinkState::BackingOff { .. } = self.state {
            self.state = LinkState::Closed;
        }
    }

    /// How long until an attempt to connect is allowed.
    pub fn pause_left(&self, now: Timestamp) -> Duration {
        match self.state {
            LinkState::BackingOff { until } => until.since(now),
            _ => Duration::ZERO,
        }
    }
}

/// A reply of which some came before.
pub fn whole<'a>(kept: &[u8], end: &'a [u8]) -> Cow<'a, [u8]> {
    if kept.is_empty() { Cow::Borrowed(end) } else { Cow::Owned([kept, end].concat()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut link = Link::new(BackendId(0), Protocol::Resp2, 0);
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
        let mut link = Link::new(BackendId(0), Protocol::Resp2, 0);
        link.state = LinkState::Opening { since: Timestamp::ZERO };
        link.lost(Timestamp::ZERO, 0);
        link.opened();
        link.proved();
        link.lost(Timestamp::ZERO, 0);
        assert_eq!(link.state, LinkState::Closed);
    }
}
