//! A store that is itself a weir: it is told the rest of deadlines, so that it begins nothing that cannot be answered in time, and
//! what it refuses says nothing of how quick stores are.
//!
//! ```text
//!   CLIENT INFO ── tier=? a weir ── QOS SET INFLIGHT WAIT ── +OK: requests with a deadline go as QOS CALL DEADLINE rest ...
//!            └── else: a plain store, which never hears of QOS
//! ```
//!
//! Each connection asks anew, so what stands behind an address may change whenever connections are lost. Deadlines of what is in
//! flight are kept to here, where it is known whose requests they are: the inner weir would have to hold up the whole connection
//! for what it answered early (`INFLIGHT WAIT`).

use super::Back;
use super::link::{Greeting, Inner, Link, Odd};
use crate::protocol::call::begin_call;
use crate::protocol::{BufferPool, encode};
use crate::shard::counters::{Counter, Counters};
use crate::shard::fence::field_of;
use crate::shard::message::Message;
use crate::shard::request::Envelope;
use crate::values::limits::{COPY_BYTES_MAX, DEADLINE_MS_MAX};
use crate::values::{ConnectionId, Tier, Timestamp};

/// The least that is passed on: what is refused for less is refused here.
const REST_MS_LEAST: u64 = 1;
/// How refusals of a weir begin.
const REFUSALS: [&[u8]; 4] = [b"-DEADLINE ", b"-OVERLOADED ", b"-THROTTLED ", b"-UNAVAILABLE "];
/// How a weir answers that does not take such a tier: the longest of all of these.
const TIER_REFUSED: &[u8] = b"-ERR QOS TIER ";

impl Inner {
    /// What the reply to `CLIENT INFO` tells, if it is a weir's: no other store knows tiers.
    pub fn told_by(reply: &[u8]) -> Option<Self> {
        let tier = field_of(reply, "tier=")?.parse().ok()?;
        Some(Self { tier, takes_deadlines: false })
    }

    /// The tier of a request, if it has to be told.
    fn tier_to_tell(self, tier: Tier) -> Option<Tier> {
        (tier > self.tier).then_some(tier)
    }
}

impl Link {
    /// Asks a weir to be told deadlines, before requests flow.
    pub fn ask_for_terms(&mut self) {
        encode::request(&mut self.greeting, [&b"QOS"[..], b"SET", b"INFLIGHT", b"WAIT"].into_iter());
        self.greetings.push_back(Greeting::Terms);
    }

    /// A weir has answered to that.
    pub fn handle_terms(&mut self, reply: &[u8]) {
        if let Some(inner) = &mut self.inner {
            inner.takes_deadlines = reply.starts_with(b"+");
        }
    }

    /// Is there a weir that is told deadlines?
    #[inline]
    pub fn takes_deadlines(&self) -> bool {
        self.inner.is_some_and(|inner| inner.takes_deadlines)
    }

    /// Puts a request out with the rest of its deadline. What is large goes as it is: the words before it would have the inner weir
    /// copy it.
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

impl Back {
    /// An error from a weir, of which this is the end: what it refused took no store's time.
    #[cold]
    pub(super) fn hear_error(&mut self, connection: ConnectionId, end: &[u8]) {
        let link = &mut self.links[connection.0 as usize];
        let (Some(inner), Some(pending)) = (&mut link.inner, link.pending.front_mut()) else { return };
        let mut start = [0; TIER_REFUSED.len()];
        let text = link.partial.iter().chain(end);
        start.iter_mut().zip(text).for_each(|(place, byte)| *place = *byte);
        if REFUSALS.iter().any(|refusal| start.starts_with(refusal)) {
            if pending.odd == Odd::Costly {
                link.costly_ahead -= 1;
            }
            pending.odd = Odd::Refused;
        } else if start.starts_with(TIER_REFUSED) {
            // Its quotas have changed meanwhile. It is not told any more.
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
        assert_eq!(told("id=3 addr=127.0.0.1:9 resp=2 tier=batch lib-name="), Some(Tier::Batch));
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
