//! Replies that backends owe: one small record for each request in flight on a connection, with the data that
//! windows, the breaker and the choice of replicas need when the reply comes.

use std::borrow::Cow;
use std::time::Duration;

use crate::protocol::command::{Class, Effect};
use crate::shard::request::{Envelope, Overdue, ReplyTo};
use crate::values::{TenantId, Tier, Timestamp};

/// The purpose of an expected reply, which decides how it is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The reply to a client's request, or to a fetch of a hot key (one read for all requests that wait).
    Answer(ReplyTo),
    /// The reply to a client's request that weir has answered already. It is dropped.
    Abandoned(ReplyTo),
    /// Replies to so many requests of a transaction before its `EXEC`, or to commands sent right before a
    /// request (`ROLE`, `ASKING`). No client gets them, since only the last reply counts.
    Steps(u32),
    /// The reply to a command that was sent right before a fetch (shared read of a hot key): `PTTL` or
    /// `HPTTL`, or `ASKING` if the fetch was redirected.
    Ahead(ReplyTo),
    /// The reply to the oldest unanswered fence that was sent between requests: a `CLIENT KILL` for a
    /// connection that weir gave up.
    Fence,
}

/// The record of a reply that a backend owes. Small, because there is one for each request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub purpose: Purpose,
    /// The class of the request's command.
    pub class: Class,
    pub effect: Effect,
    pub tier: Tier,
    /// The reason, if there is one, why the response time does not count as a sample of the backend's latency.
    pub odd: Odd,
    pub tenant: TenantId,
    /// The number of requests in flight at the bulkhead (the window in front of a backend) when this one was
    /// sent, at most 65,535.
    pub depth: u16,
    /// Milliseconds after sending within which the reply is useful to its client; `u32::MAX` without a
    /// deadline.
    pub useful_ms: u32,
    pub sent_at: Timestamp,
}

const _: () = assert!(size_of::<Pending>() <= 40);

/// The reason why the response time of a request is not comparable to that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// A usual request, whose response time counts.
    No,
    /// The request costs much, or was sent before the connection was open.
    Costly,
    /// The request was sent after a costly one (`Costly`) that was unanswered on the same connection. Its
    /// response time says little about other requests, so the window (limit on requests in flight) does not
    /// learn from it.
    Behind,
    /// A weir at the other end of the connection refused the request.
    Refused,
}

impl Pending {
    /// Creates the record of a reply to a request that does not count towards the limit of requests in flight.
    /// `purpose` says what the reply is for, `sent_at` when the request was sent.
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

    /// Creates the record of the reply to a client's request or a fetch (shared read of a hot key). `depth` is
    /// the number of requests in flight when it was sent, and `odd` says why its response time is no sample,
    /// if it is none.
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

    /// Returns the time after which the reply is useless; `Timestamp::MAX` without a deadline.
    pub fn deadline(&self) -> Timestamp {
        if self.useful_ms == u32::MAX {
            Timestamp::MAX
        } else {
            self.sent_at.after(Duration::from_millis(u64::from(self.useful_ms)))
        }
    }

    /// Returns the number of replies that the record stands for; more than one only for requests of a
    /// transaction before its `EXEC`, and for several commands sent right before a request.
    pub const fn replies(&self) -> usize {
        match self.purpose {
            Purpose::Steps(left) => left as usize,
            Purpose::Answer(_) | Purpose::Abandoned(_) | Purpose::Ahead(_) | Purpose::Fence => 1,
        }
    }

    /// True if the request counts towards the limit of requests in flight: it is a client's or a fetch
    /// (shared read of a hot key), also if weir has answered the client already.
    #[inline]
    pub const fn is_counted(&self) -> bool {
        matches!(self.purpose, Purpose::Answer(_) | Purpose::Abandoned(_))
    }
}

/// Joins the bytes of a reply: those that were kept from earlier receives, and those that came last.
pub fn whole<'a>(kept: &[u8], end: &'a [u8]) -> Cow<'a, [u8]> {
    if kept.is_empty() { Cow::Borrowed(end) } else { Cow::Owned([kept, end].concat()) }
}
