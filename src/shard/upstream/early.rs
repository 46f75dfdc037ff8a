//! Answers requests in flight before their backend does: at their deadline, or when the backend has been
//! stalled for a while. The backend may still carry them out, so their entries stay and consume the replies.

use std::time::Duration;

use super::Upstream;
use crate::protocol::command::Effect;
use crate::shard::counters::{Counter, Pressure};
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::Outcome;
use crate::shard::overload::bulkhead_for;
use crate::shard::pending::{InFlight, Pending};
use crate::shard::refusal::{Refusal, Stage};
use crate::shard::replies::Replies;
use crate::shard::request::{Overdue, ReplyTo};
use crate::shard::settings::Mode;
use crate::values::time::Now;
use crate::values::{ConnectionId, Tier, Timestamp};

/// The time after which a request in flight at a stalled backend (one that sends nothing although requests
/// are in flight) is answered with an error, counted from when the request was sent.
const PATIENCE: Duration = Duration::from_secs(1);
/// The least time after which a search of the requests in flight, for those that weir has to answer with an error
/// before their backend replies, plans the next one. A request that is sent since may plan an earlier one.
const LOOKS_APART: Duration = Duration::from_millis(1);

impl Upstream {
    /// Answers with an error the requests in flight whose deadline has passed (unless deadlines are off or in shadow
    /// mode), or that were sent a second ago or earlier to a backend which has stalled (sends nothing although
    /// requests are in flight). Closes connections to replicas that are silent for too long, so that their reads go
    /// to the owners of the slots. Plans the next search for such requests.
    pub(super) fn answer_early(&mut self, env: &mut Env, replies: &mut impl Replies, now: Now) {
        // The plan is cleared first, so that requests which are sent during this search can plan the next
        // one.
        self.overload.plan_no_search();
        let mut next = Timestamp::MAX;
        let mut given_up: Vec<(ReplyTo, Given)> = Vec::new();
        for index in 0..self.links.len() {
            let connection = ConnectionId(index as u32);
            if self.links.at(connection).is_for_replica() {
                next = next.min(self.give_up_reads(env, connection, replies, now));
            }
            given_up.clear();
            next = next.min(self.find_overdue(env, connection, &mut given_up, now));
            if given_up.is_empty() {
                continue;
            }
            let link = self.links.at(connection);
            let bulkhead = self.overload.bulkhead_mut(bulkhead_for(link.backend, link.track));
            if given_up.iter().any(|(_, given)| given.is_late) {
                bulkhead.handle_missed();
            }
            let retry_after = bulkhead.retry_stalled(now.monotonic);
            let backend = link.backend;
            let mut text = env.pool.take();
            for (to, given) in given_up.drain(..) {
                text.clear();
                let (counter, refusal) = given.refusal(env.backend_name(backend), retry_after);
                refusal.encode(&mut text);
                env.counters.add(Counter::RequestsAbandoned, 1);
                // The request is charged its estimated cost, like one whose connection was lost, and the rest when
                // the reply comes.
                let whole = env.pieces.whole(to);
                replies.note(env, whole, Note::PriceFollows);
                if !link.is_for_replica() {
                    replies.note(env, whole, Note::Unsettled);
                }
                let refused = replies.reply(env, to, Outcome::Lost, Message::Small(&text), now);
                env.counters.add(counter, refused);
                env.count_refused(given.pressure(), given.tier, backend, refused);
            }
            env.pool.give(text);
        }
        self.overload.search_by(next.max(now.monotonic.after(LOOKS_APART)));
    }

    /// Collects the requests in flight on a connection that are to be answered with an error now, because their
    /// deadline has passed, or because they were sent a second ago or earlier and the backend has stalled (sends
    /// nothing although requests are in flight), and marks them as answered. `given_up` gets each with the reason.
    /// Returns the time at which the next one is due; `Timestamp::MAX` if none is. In shadow mode of deadlines,
    /// requests whose deadline has passed are only counted.
    fn find_overdue(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        given_up: &mut Vec<(ReplyTo, Given)>,
        now: Now,
    ) -> Timestamp {
        let link = self.links.at_mut(connection);
        let is_stalled = self.overload.bulkhead(bulkhead_for(link.backend, link.track)).is_stalled();
        let deadlines = self.overload.deadlines();
        let mut next = Timestamp::MAX;
        for request in link.pending.iter_mut().filter_map(Pending::request_mut) {
            if request.is_abandoned {
                continue;
            }
            let patient_until = if is_stalled { request.sent_at.after(PATIENCE) } else { Timestamp::MAX };
            let mut deadline = request.deadline().unwrap_or(Timestamp::MAX);
            if deadlines != Mode::On && deadline <= now.monotonic {
                env.counters.add(Counter::LateInShadow, u64::from(deadlines == Mode::Shadow));
                (request.envelope.overdue, deadline) = (Overdue::Awaited, Timestamp::MAX);
            }
            let until = deadline.min(patient_until);
            if until > now.monotonic {
                next = next.min(until);
                continue;
            }
            given_up.push((request.envelope.reply_to, Given::of(request, now.monotonic)));
            request.is_abandoned = true;
            // By the time of a piece's late reply, another split request may have the index of its own.
            request.envelope.reply_to = env.pieces.whole(request.envelope.reply_to);
        }
        next
    }
}

/// The data of a request that is answered before its backend's reply comes, from which its error reply is
/// made.
#[derive(Clone, Copy, Debug)]
struct Given {
    is_late: bool,
    /// False for a read, which changes nothing even if the backend still carries it out.
    may_have_happened: bool,
    tier: Tier,
    waited: Duration,
}

impl Given {
    fn of(request: &InFlight, now: Timestamp) -> Self {
        Self {
            is_late: request.deadline().is_some_and(|deadline| deadline <= now),
            // Commands that are neither reads nor writes of keys, such as `PUBLISH`, may have consequences as well.
            may_have_happened: request.envelope.nature.effect() != Effect::Read,
            tier: request.envelope.tier,
            waited: now.since(request.sent_at),
        }
    }

    const fn pressure(self) -> Pressure {
        if self.is_late { Pressure::Deadline } else { Pressure::Stalled }
    }

    fn refusal(self, backend: &str, retry_after: Duration) -> (Counter, Refusal<'_>) {
        let Self { waited, may_have_happened, .. } = self;
        if self.is_late {
            let refusal = Refusal::TooLate { stage: Stage::Backend, waited, may_have_happened };
            (Counter::RefusedDeadline, refusal)
        } else {
            (Counter::RefusedOverloaded, Refusal::Abandoned { backend, may_have_happened, retry_after })
        }
    }
}
