//! Replies that backends owe: one record for each request in flight on a connection, which holds the envelope
//! of the request itself, so that nothing about it has to be rebuilt when the reply comes or is lost.

use std::borrow::Cow;
use std::time::Duration;

use crate::shard::request::{Envelope, Overdue, ReplyTo};
use crate::values::Timestamp;

/// A request in flight: a client's, or a fetch of a hot key (one read for all requests that wait). It counts
/// towards the limit of requests in flight until its reply comes or its connection is lost.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    pub envelope: Envelope,
    pub sent_at: Timestamp,
    /// The number of requests in flight through the bulkhead (the window in front of a backend) when this one was sent,
    /// itself included, at most 65,535.
    pub depth: u16,
    /// The reason, if there is one, why the response time does not count as a sample of the backend's latency.
    pub odd: Odd,
    /// True if weir has answered the request already, so that the backend's reply is dropped.
    pub is_abandoned: bool,
    /// Reading of the backend's quiet time (running sum of the shares of the time in which it answered nothing) when
    /// the request was sent, if the request does not show how much work it is; else 0.
    pub quiet_reading: u32,
}

/// A reply that a backend owes on a connection, or several in a row that no client gets. Replies come in the
/// order of the requests.
#[derive(Clone, Copy, Debug)]
pub enum Pending {
    /// The reply to a client's request, or to a fetch of a hot key.
    Request(InFlight),
    /// Several replies, `left` in number, to requests of a transaction before its `EXEC`, or to commands sent
    /// right before a request (`ROLE`, `ASKING`). No client gets them, since only the reply that follows them
    /// counts.
    Steps { left: u32, sent_at: Timestamp },
    /// The reply to a command that was sent right before the fetch `to` (shared read of a hot key): `PTTL` or
    /// `HPTTL`, or `ASKING` if the fetch was redirected.
    Ahead { to: ReplyTo, sent_at: Timestamp },
    /// The reply to the oldest unanswered fence that was sent between requests: a `CLIENT KILL` for a
    /// connection that weir gave up.
    Fence { sent_at: Timestamp },
}

// There is one for each reply that is owed: 64 bytes are one line of the processor's cache.
const _: () = assert!(size_of::<Pending>() <= 64);

/// The reason why the response time of a request is not comparable to that of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// A usual request, whose response time counts as a sample of the backend's latency.
    No,
    /// The request costs much, or was sent before the connection was open, so its response time does not
    /// count.
    Costly,
    /// The request was sent after a costly one (`Costly`) that was unanswered on the same connection. Its
    /// response time says little about other requests, so the window (limit on requests in flight) does not
    /// learn from it.
    Behind,
    /// A weir at the other end of the connection refused the request, so the response time is not that of a
    /// store.
    Refused,
}

impl InFlight {
    /// Creates the record of a request that is sent now. `depth` is the number of requests in flight, this one
    /// included, `odd` says why its response time is no sample, if it is none, and `quiet_reading` is the reading of
    /// the backend's quiet time (in which it answers nothing), or 0 if the request shows how much work it is.
    #[inline]
    pub fn new(
        envelope: &Envelope,
        (depth, odd, quiet_reading): (u32, Odd, u32),
        sent_at: Timestamp,
    ) -> Self {
        let depth = depth.min(u32::from(u16::MAX)) as u16;
        Self { envelope: *envelope, sent_at, depth, odd, is_abandoned: false, quiet_reading }
    }

    /// Returns the time after which the reply is useless; None if the request has no deadline, or its sender
    /// enforces the deadline itself.
    #[inline]
    pub fn deadline(&self) -> Option<Timestamp> {
        let Envelope { deadline, overdue, .. } = self.envelope;
        (deadline != Timestamp::MAX && overdue == Overdue::Answered).then_some(deadline)
    }

    /// Returns the time from sending to the deadline, within which the reply is useful; None without a
    /// deadline that weir enforces.
    pub fn useful(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.since(self.sent_at))
    }
}

impl Pending {
    /// Returns the record of the request that the reply is for; None for a reply to a command that weir sent
    /// for its own purposes, or to a part of a transaction.
    #[inline]
    pub const fn request(&self) -> Option<&InFlight> {
        match self {
            Self::Request(request) => Some(request),
            Self::Steps { .. } | Self::Ahead { .. } | Self::Fence { .. } => None,
        }
    }

    /// Returns the record of the request that the reply is for, to change it; None for a reply to a
    /// command that weir sent for its own purposes, or to a part of a transaction.
    #[inline]
    pub const fn request_mut(&mut self) -> Option<&mut InFlight> {
        match self {
            Self::Request(request) => Some(request),
            Self::Steps { .. } | Self::Ahead { .. } | Self::Fence { .. } => None,
        }
    }

    /// Returns the time at which the request or command was sent whose reply is owed.
    #[inline]
    pub const fn sent_at(&self) -> Timestamp {
        match *self {
            Self::Request(InFlight { sent_at, .. })
            | Self::Steps { sent_at, .. }
            | Self::Ahead { sent_at, .. }
            | Self::Fence { sent_at } => sent_at,
        }
    }

    /// Returns the number of replies that the record stands for; more than one only for requests of a
    /// transaction before its `EXEC`, and for several commands sent right before a request.
    pub const fn replies(&self) -> usize {
        match self {
            Self::Steps { left, .. } => *left as usize,
            Self::Request(_) | Self::Ahead { .. } | Self::Fence { .. } => 1,
        }
    }
}

/// Joins the bytes of a reply: those that were kept from earlier receives, and those that came last.
pub fn whole<'a>(kept: &[u8], end: &'a [u8]) -> Cow<'a, [u8]> {
    if kept.is_empty() { Cow::Borrowed(end) } else { Cow::Owned([kept, end].concat()) }
}
