//! Backends that are themselves weirs. Such a backend gets the time left until each request's deadline, so
//! that it begins nothing that cannot be answered in time; its refusals do not count as response times of a
//! store.
//!
//! ```text
//!   CLIENT INFO ── fd=-1? perhaps a weir ── CLIENT LIST ID own id ── tier=? a weir ── QOS SET INFLIGHT WAIT
//!            └── else: a plain store                          └── else: a plain store       │
//!                                        +OK: requests with a deadline go as QOS CALL DEADLINE rest ... <┘
//! ```
//!
//! A plain store never receives `QOS`. Each connection asks anew whether a weir answers, so another server
//! may take the address whenever connections are lost. The outer weir itself answers requests in flight at
//! their deadlines, because it knows which client each belongs to: the inner weir would have to hold up the
//! whole connection behind a request that it answered early (`INFLIGHT WAIT`).

use super::Links;
use super::link::{Greeting, Inner, Link};
use crate::protocol::call::begin_call;
use crate::protocol::command::Class;
use crate::protocol::{BufferPool, encode};
use crate::shard::counters::{Counter, Counters};
use crate::shard::fence::field_of;
use crate::shard::message::Message;
use crate::shard::pending::{Odd, Pending};
use crate::shard::request::Envelope;
use crate::values::limits::{COPY_BYTES_MAX, DEADLINE_MS_MAX};
use crate::values::{ConnectionId, Tier, Timestamp};

/// The least time until a request's deadline that is passed on to a backend that is a weir, in milliseconds;
/// a shorter time is raised to it.
const REST_MS_LEAST: u64 = 1;
/// Beginnings of the errors by which a weir refuses requests.
const REFUSALS: [&[u8]; 4] = [b"-DEADLINE ", b"-OVERLOADED ", b"-THROTTLED ", b"-UNAVAILABLE "];
/// The beginning of a weir's error for a tier (importance) that it does not grant. It is longer than all of
/// `REFUSALS`, so that only this many bytes of an error are looked at.
const TIER_REFUSED: &[u8] = b"-ERR QOS TIER ";

impl Inner {
    /// True if a reply to `CLIENT INFO` may be a weir's: a weir names -1 as the connection's file descriptor, nearly
    /// all other stores a real one.
    fn may_have_told(reply: &[u8]) -> bool {
        field_of(reply, "fd=") == Some("-1")
    }

    /// Recognises a weir by its reply to `CLIENT LIST`, whose field `tier` no other store has. Returns its
    /// tier for this connection; None for another store.
    pub fn told_by(reply: &[u8]) -> Option<Self> {
        let tier = field_of(reply, "tier=")?.parse().ok()?;
        Some(Self { tier, takes_deadlines: false })
    }

    /// Returns the tier (importance) to pass on with a request of this `tier`: None unless it is less important than
    /// the tier that the backend gives to the connection.
    fn tier_to_tell(self, tier: Tier) -> Option<Tier> {
        (tier > self.tier).then_some(tier)
    }
}

impl Link {
    /// Adds a request to the greeting (the requests that open the connection) that asks a backend for the tier
    /// (importance) of this connection, if its reply to `CLIENT INFO` (`told`) shows that it may be a weir. True if the
    /// request was added.
    pub fn ask_for_tier(&mut self, told: &[u8]) -> bool {
        let Some(name) = self.name.as_ref().filter(|_| Inner::may_have_told(told)) else { return false };
        let id = name.id.to_string();
        encode::request(&mut self.greeting, [&b"CLIENT"[..], b"LIST", b"ID", id.as_bytes()].into_iter());
        self.greetings.push_back(Greeting::Tier);
        true
    }

    /// Adds a request to the greeting (the requests that open the connection) that asks a backend which is
    /// a weir to accept deadlines (`QOS SET INFLIGHT WAIT`).
    pub fn ask_for_terms(&mut self) {
        encode::request(&mut self.greeting, [&b"QOS"[..], b"SET", b"INFLIGHT", b"WAIT"].into_iter());
        self.greetings.push_back(Greeting::Terms);
    }

    /// Handles the reply of a backend that is a weir to `QOS SET INFLIGHT WAIT`: with `+OK` it accepts
    /// deadlines.
    pub fn handle_terms(&mut self, reply: &[u8]) {
        if let Some(inner) = &mut self.inner {
            inner.takes_deadlines = reply.starts_with(b"+");
        }
    }

    /// True if the backend is a weir that accepts deadlines, so that requests are sent with the time left to
    /// theirs.
    #[inline]
    pub fn takes_deadlines(&self) -> bool {
        self.inner.is_some_and(|inner| inner.takes_deadlines)
    }

    /// Appends a request to the connection's output, with the time left until its deadline, and its tier (importance)
    /// if that is less important than the connection's. Messages larger than 16 KiB (`COPY_BYTES_MAX`) or in shared
    /// buffers go without both, because the inner weir would have to copy them.
    #[cold]
    pub fn append_within(
        &mut self,
        (pool, counters): (&mut BufferPool, &mut Counters),
        envelope: &Envelope,
        message: Message<'_>,
        now: Timestamp,
    ) {
        let bytes = match message {
            Message::Shared(bytes) => return self.output.append_shared(pool, bytes),
            Message::Small(bytes) if bytes.len() > COPY_BYTES_MAX => return self.output.append(pool, bytes),
            Message::Small(bytes) => bytes,
        };
        let rest = envelope.deadline.since(now).as_millis();
        let millis = u64::try_from(rest).unwrap_or(u64::MAX).clamp(REST_MS_LEAST, DEADLINE_MS_MAX);
        let tier = self.inner.and_then(|inner| inner.tier_to_tell(envelope.tier));
        let out = self.output.buffer(pool);
        let replaced = begin_call(out, bytes, millis, tier);
        counters.add(Counter::DeadlinesPassedOn, u64::from(replaced.is_some()));
        out.extend_from_slice(&bytes[replaced.unwrap_or(0)..]);
    }
}

impl Links {
    /// Records an error reply from a weir; `end` has the bytes of it that came last, after those kept of the
    /// connection's incomplete reply. A refusal is marked, so that its time does not count as the store's.
    /// After the refusal of a tier (importance), no tier is passed on again. An error in reply to a script is not
    /// recorded, because a script may return any text.
    #[cold]
    pub fn record_weir_error(&mut self, connection: ConnectionId, end: &[u8]) {
        let link = &mut self.connections[connection.0 as usize];
        let Some(inner) = &mut link.inner else { return };
        let request = link.pending.front_mut().and_then(Pending::request_mut);
        let Some(request) = request.filter(|request| request.envelope.nature.class != Class::Script) else {
            return;
        };
        let mut start = [0; TIER_REFUSED.len()];
        let text = link.partial.iter().chain(end);
        start.iter_mut().zip(text).for_each(|(place, byte)| *place = *byte);
        if REFUSALS.iter().any(|refusal| start.starts_with(refusal)) {
            if request.odd == Odd::Costly {
                link.costly_ahead -= 1;
            }
            request.odd = Odd::Refused;
        } else if start.starts_with(TIER_REFUSED) {
            // The inner weir has refused the tier, so its quotas have changed: no tier is passed on any more.
            inner.tier = Tier::Sheddable;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_weir_tells_a_tier() {
        let told = |line: &str| Inner::told_by(format!("${}\r\n{line}\r\n", line.len()).as_bytes());
        let told = |line: &str| told(line).map(|inner| inner.tier);
        assert_eq!(told("id=3 addr=127.0.0.1:9 resp=2 lib-name= tier=batch"), Some(Tier::Batch));
        assert_eq!(told("id=3 addr=127.0.0.1:9 tier=critical\n"), Some(Tier::Critical));
        for other in
            ["id=3 addr=127.0.0.1:9 user=default lib-ver=", "id=3 name=tier=batch", "tier=urgent", ""]
        {
            assert_eq!(told(other), None, "{other}");
        }
        assert_eq!(Inner::told_by(b"-ERR unknown command 'CLIENT' tier=batch\r\n"), None);
    }

    #[test]
    fn a_tier_is_told_where_it_is_lower() {
        let inner = Inner { tier: Tier::Standard, takes_deadlines: true };
        let told = Tier::ALL.map(|tier| inner.tier_to_tell(tier));
        assert_eq!(told, [None, None, Some(Tier::Batch), Some(Tier::Sheddable)]);
        let inner = Inner { tier: Tier::Sheddable, ..inner };
        assert_eq!(Tier::ALL.map(|tier| inner.tier_to_tell(tier)), [None; 4]);
    }
}
