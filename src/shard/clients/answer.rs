//! Replies to clients, in the order of requests, batched into one send per client and turn.

use std::collections::VecDeque;
use std::time::Duration;

use super::ClientStage;
use super::client::{Client, Ending};
use super::cursor::{with_next_cursor, with_walk_cursor};
use super::order::Rewrite;
use crate::protocol::http::{Conversation, mark_own};
use crate::protocol::{Output, Protocol, Segment};
use crate::shard::admission::Charge;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::gather::Arrival;
use crate::shard::message::Message;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::request::ReplyTo;
use crate::values::limits::{ANSWER_BYTES_PER_REQUEST, COPY_BYTES_MAX};
use crate::values::time::Now;
use crate::values::{ClientId, Owner, Timestamp};

/// Bytes of waiting replies (32 KiB) from which on a client's replies are sent at the end of the turn (pass
/// of the shard's loop). Fewer are held back so that all leave in one send: until the rest of its pipeline is
/// answered, no more events are pending, or 200 us have passed.
const PARTIAL_BYTES_MAX: usize = 32 * 1024;
/// The longest time (200 us) that replies to a part of a pipeline are held back while the shard has other work;
/// then they are sent without the rest.
const PARTIAL_WAIT_MAX: Duration = Duration::from_micros(200);

/// The clients that have replies to send: now, or once the rest of their pipelines is answered, so that each
/// send to a socket carries many replies.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Clients whose replies are sent at the end of the present turn (pass of the shard's loop).
    to_send: VecDeque<ClientId>,
    /// Clients whose replies are held back until the rest of their pipeline is answered.
    partial: Vec<ClientId>,
    /// The end of the first turn (pass of the shard's loop) at which replies to parts of pipelines were held back; None
    /// if none are.
    partial_since: Option<Timestamp>,
    /// The number of segments (blocks of replies) that are being written to clients' sockets.
    in_flight: usize,
}

impl Outbox {
    /// Returns the number of segments (blocks of replies) that are being written to clients' sockets.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Counts a segment (block of replies) as done: its socket has written it, or its client has
    /// disconnected.
    pub fn handle_done(&mut self) {
        self.in_flight -= 1;
    }

    /// Puts a client on the list of those whose replies are sent at the end of the turn (pass of the shard's
    /// loop), unless its socket is still busy.
    pub(super) fn list(&mut self, client: &mut Client, id: ClientId) {
        if !client.listed_to_send && client.sending_since.is_none() {
            client.listed_to_send = true;
            self.to_send.push_back(id);
        }
    }
}

/// Turns the RESP replies in the output of a client that speaks HTTP into a segment (block of bytes to send) of
/// HTTP responses. None if no response is complete enough to be sent yet.
fn http_segment(http: &mut Conversation, output: &mut Output) -> Option<Segment> {
    let mut spare = Vec::new();
    while let Some(segment) = output.take() {
        segment.pieces().for_each(|piece| http.hear(piece));
        if let Segment::Gathered(buffer) = segment {
            spare = buffer;
        }
    }
    spare.clear();
    http.take_output(spare)
}

fn marked(mut reply: Vec<u8>) -> Vec<u8> {
    mark_own(&mut reply);
    reply
}

/// True if a client over HTTP gets an error that weir has written itself, to a request that was refused or
/// lost. Such a reply is marked, so that its translation to HTTP tells it from an error of the store.
fn is_own(client: &Client, outcome: Outcome) -> bool {
    client.speaks_http && matches!(outcome, Outcome::Refused | Outcome::Throttled | Outcome::Lost)
}

/// True if the reply to one part of a request that was split by key is a refusal by weir, which its first word
/// tells. That is proof enough: scripts, which could write such words themselves, are never sent in parts.
fn is_worded_as_own(reply: &[u8]) -> bool {
    [&b"-THROTTLED "[..], b"-OVERLOADED ", b"-UNAVAILABLE "].into_iter().any(|word| reply.starts_with(word))
}

impl ClientStage {
    /// Answers a client's present request with a reply that weir writes itself (`write`). While a transaction
    /// is carried out, `write` adds to the reply to `EXEC` instead.
    pub fn answer_now(&mut self, env: &mut Env, id: ClientId, write: impl FnOnce(&mut Vec<u8>, Protocol)) {
        let Some(client) = self.clients.get(id) else { return };
        if let Some(captured) = &mut self.captured {
            return write(captured, client.protocol);
        }
        env.counters.add(Counter::AnsweredHere, 1);
        let (protocol, waiting) = (client.protocol, client.order.waiting_bytes());
        let speaks_http = client.speaks_http;
        client.order.answer_now(&mut env.pool, |out| {
            let start = out.len();
            write(out, protocol);
            if speaks_http {
                mark_own(&mut out[start..]);
            }
        });
        // Long answers of weir's own use up more of the client's turn.
        let written = client.order.waiting_bytes() - waiting;
        client.turn_left = client.turn_left.saturating_sub((written / ANSWER_BYTES_PER_REQUEST) as u32);
        env.counters.add(Counter::AnswerBytes, written as u64);
        self.after_answer(env, id);
    }

    /// Starts to collect the replies that weir itself writes to the requests of a transaction, instead of
    /// sending them: they become a part of the reply to `EXEC`.
    pub fn begin_capture(&mut self, env: &mut Env) {
        self.captured = Some(env.pool.take());
    }

    /// Ends the collection of weir's own replies that [`Self::begin_capture`] began, and returns them.
    pub fn end_capture(&mut self) -> Vec<u8> {
        self.captured.take().unwrap_or_default()
    }

    /// Delivers a backend's reply, or one part of it, to the client on this shard; `outcome` is its result (answered by
    /// the store, refused, lost and so on), with the measurements of it. Once all parts are there, calls `settle` with
    /// the request's charge, if it has one, and the measurements from which its real price follows, even if the client
    /// has disconnected.
    #[inline]
    pub fn deliver(
        &mut self,
        env: &mut Env,
        to: ReplyTo,
        outcome: Outcome,
        message: Message<'_>,
        mut settle: impl FnMut(&Charge, &Settlement),
    ) {
        let id = to.client_id();
        if let Some(client) = self.clients.get(id)
            && !is_own(client, outcome)
            && let Some((Rewrite::AsItCame, charge)) = client.order.waiting(to.sequence)
        {
            if let Some(charge) = charge {
                settle(charge, &Settlement::of(outcome));
            }
            client.order.answer(to.sequence, message, &mut env.pool);
            return self.after_answer(env, id);
        }
        self.deliver_unusual(env, to, outcome, message, settle);
    }

    /// Delivers a reply, or one part of it, as [`Self::deliver`] does, if the client does not get it unchanged:
    /// it is rewritten or joined with other parts, or the client no longer awaits it.
    #[inline(never)]
    fn deliver_unusual(
        &mut self,
        env: &mut Env,
        to: ReplyTo,
        outcome: Outcome,
        message: Message<'_>,
        mut settle: impl FnMut(&Charge, &Settlement),
    ) {
        let id = to.client_id();
        // The request of a client that has left is still charged for.
        let Some(client) = self.clients.get(id) else {
            if let Some(owing) = self.abandoned.part_arrived(to, outcome) {
                settle(&owing.charge, &owing.settlement);
            }
            return;
        };
        let mut settle = |charge: Option<&Charge>, settlement: &Settlement| {
            if let Some(charge) = charge {
                settle(charge, settlement);
            }
        };
        let is_own = is_own(client, outcome);
        match client.order.waiting(to.sequence) {
            None => debug_assert!(false, "a reply that nobody waits for: {to:?}"),
            Some((Rewrite::AsItCame, charge)) => {
                settle(charge, &Settlement::of(outcome));
                self.answer_rewritten(env, id, to.sequence, marked(message.bytes().to_vec()));
            }
            Some((Rewrite::Cursor { backend }, charge)) => {
                settle(charge, &Settlement::of(outcome));
                let backends = env.settings.topology.backends();
                let next = Some(backend + 1).filter(|next| *next < backends);
                let reply = with_next_cursor(message.bytes(), backend, next, backends);
                let reply = if is_own { marked(reply) } else { reply };
                self.answer_rewritten(env, id, to.sequence, reply);
            }
            Some((Rewrite::Walk, charge)) => {
                settle(charge, &Settlement::of(outcome));
                let addressed = client.addressed.take();
                let walk = addressed.as_ref().and_then(|addressed| addressed.walk);
                if self.end_addressed(env, id, to.sequence, addressed, message.bytes()) {
                    let bytes = message.bytes();
                    let reply = walk.map_or_else(|| bytes.to_vec(), |walk| with_walk_cursor(bytes, walk));
                    let reply = if is_own { marked(reply) } else { reply };
                    self.answer_rewritten(env, id, to.sequence, reply);
                }
            }
            Some((Rewrite::Splice, charge)) => {
                settle(charge, &Settlement::of(outcome));
                let splice = client.splice.take().unwrap_or_default();
                let reply = splice.put_into(message.bytes());
                let reply = if is_own { marked(reply) } else { reply };
                self.answer_rewritten(env, id, to.sequence, reply);
            }
            Some((Rewrite::Gather(index), charge)) => {
                if let Some(receivers) = self.gathers.receivers(index) {
                    receivers.count_own(self.listeners.numbers());
                }
                let bytes_max = env.settings.output_bytes_max;
                let addressed = client.addressed.as_ref().filter(|_| client.held_request.is_none());
                let left_out = addressed.map_or(&[][..], |addressed| addressed.left_out());
                let part = (to.part, outcome, message);
                match self.gathers.part_arrived(index, part, left_out, bytes_max, &mut env.pool) {
                    Arrival::Stored(bytes) => {
                        client.order.stored_bytes += bytes;
                        self.after_answer(env, id);
                    }
                    Arrival::Complete { stored, settlement } => {
                        client.order.joining_bytes += stored;
                        let charge = client.order.take_charge(to.sequence);
                        settle(charge.as_ref(), &settlement);
                        self.turns.list_to_join(id, to.sequence, index);
                    }
                    Arrival::Joined { reply, waited, settlement } => {
                        settle(charge, &settlement);
                        client.order.stored_bytes -= waited;
                        let speaks_http = client.speaks_http;
                        let addressed = client.addressed.take();
                        if addressed.is_none() || self.end_addressed(env, id, to.sequence, addressed, &reply)
                        {
                            let is_own = speaks_http && is_worded_as_own(&reply);
                            let reply = if is_own { marked(reply) } else { reply };
                            self.answer_rewritten(env, id, to.sequence, reply);
                        }
                    }
                }
            }
        }
    }

    /// Joins up to 4,096 more values of a reply to a split request that has so many values that joining them
    /// takes several turns (passes of the shard's loop), and answers the request once the reply is complete.
    pub fn go_on_joining(&mut self, env: &mut Env) {
        let Some((id, sequence, index)) = self.turns.next_to_join() else { return };
        let waiting = self.clients.get(id).and_then(|client| client.order.waiting(sequence));
        if !matches!(waiting, Some((Rewrite::Gather(other), _)) if other == index) {
            return self.turns.end_join();
        }
        let bytes_max = env.settings.output_bytes_max;
        let Some((reply, waited, last)) = self.gathers.go_on_joining(index, bytes_max, &mut env.pool) else {
            return;
        };
        self.turns.end_join();
        let client = self.clients.at(id);
        client.order.stored_bytes -= waited;
        client.order.joining_bytes -= last;
        let is_own = client.speaks_http && is_worded_as_own(&reply);
        let reply = if is_own { marked(reply) } else { reply };
        self.answer_rewritten(env, id, sequence, reply);
    }

    pub(super) fn answer_rewritten(&mut self, env: &mut Env, id: ClientId, sequence: u32, reply: Vec<u8>) {
        let client = self.clients.at(id);
        if reply.len() > COPY_BYTES_MAX {
            client.order.answer(sequence, Message::Shared(&reply.into()), &mut env.pool);
        } else {
            client.order.answer(sequence, Message::Small(&reply), &mut env.pool);
            env.pool.give(reply);
        }
        self.after_answer(env, id);
    }

    /// Continues after a reply was put into a client's output: schedules a send, resumes a waiting client, or
    /// closes a client with more than `output_bytes_max` bytes of replies waiting.
    fn after_answer(&mut self, env: &mut Env, id: ClientId) {
        let client = self.clients.at(id);
        if client.order.waiting_bytes() > env.settings.output_bytes_max {
            return self.expel(env, id, Counter::ClientsClosedUnread);
        }
        if client.order.output.is_empty() {
            if client.order.has_silence() {
                self.after_silence(env, id);
            } else if client.is_stuck() {
                // The reply waits for an earlier one, but may have shown that replies are small.
                self.list_to_resume(id);
            }
            return;
        }
        if client.unanswered() == 0 || client.order.output.len() >= PARTIAL_BYTES_MAX {
            self.outbox.list(client, id);
        } else if !client.listed_partial && !client.listed_to_send {
            client.listed_partial = true;
            self.outbox.partial.push(id);
        }
        if client.is_stuck() {
            self.list_to_resume(id);
        }
    }

    /// Resumes a client, or closes it if it is ending, after a request whose reply was switched off (`CLIENT
    /// REPLY`): no reply is sent whose completion would resume or close it.
    #[cold]
    fn after_silence(&mut self, env: &mut Env, id: ClientId) {
        let client = self.clients.at(id);
        self.turns.count_unanswered(client);
        if client.is_stuck() {
            self.list_to_resume(id);
        }
        self.close_if_done(env, id);
    }

    /// Queues a message that is no reply to a request (of a subscription, for instance) for a client: it is sent
    /// at the end of the turn (pass of the shard's loop). Closes the client if more than `output_bytes_max`
    /// bytes wait for it then.
    pub fn push_message(&mut self, env: &mut Env, id: ClientId, message: &[u8]) {
        let Some(client) = self.clients.get(id) else { return };
        client.order.push(Message::Small(message), &mut env.pool);
        if client.order.waiting_bytes() > env.settings.output_bytes_max {
            return self.expel(env, id, Counter::ClientsClosedUnread);
        }
        self.outbox.list(client, id);
    }

    /// Passes a published message to a subscriber, and closes the subscriber if too many bytes of messages and
    /// replies wait for it (more than the limit for subscribers).
    pub(super) fn push_published(&mut self, env: &mut Env, id: ClientId, message: Message<'_>) {
        let Some(client) = self.clients.get(id) else { return };
        client.order.push(message, &mut env.pool);
        if client.order.waiting_bytes() > env.settings.subscriber_bytes_max() {
            return self.expel(env, id, Counter::ClientsClosedSubscriber);
        }
        self.outbox.list(client, id);
    }

    /// Lets those replies be sent that were held back until the rest of their pipelines is answered. Called when no
    /// more events are pending.
    pub fn handle_quiet(&mut self) {
        self.outbox.partial_since = None;
        while let Some(id) = self.outbox.partial.pop() {
            let Some(client) = self.clients.get(id) else { continue };
            client.listed_partial = false;
            if !client.order.output.is_empty() {
                self.outbox.list(client, id);
            }
        }
    }

    /// Sends the replies that were held back for the rest of their pipelines once the first has waited for
    /// 200 us, even if more events are pending.
    pub fn release_overdue_partials(&mut self, now: Now) {
        let outbox = &mut self.outbox;
        if outbox.partial.is_empty() {
            outbox.partial_since = None;
        } else if now.monotonic.since(*outbox.partial_since.get_or_insert(now.monotonic)) >= PARTIAL_WAIT_MAX
        {
            self.handle_quiet();
        }
    }

    /// Takes the next segment (block of replies) to write to a client's socket; None if there is none.
    /// `turn_started` is the start of the present turn (pass of the shard's loop).
    pub fn poll_transmit(&mut self, turn_started: Timestamp) -> Option<(Owner, Segment)> {
        while let Some(id) = self.outbox.to_send.pop_front() {
            let Some(client) = self.clients.get(id) else { continue };
            client.listed_to_send = false;
            if client.sending_since.is_some() {
                continue;
            }
            let segment = match &mut client.http {
                None => client.order.output.take(),
                Some(http) => http_segment(http, &mut client.order.output),
            };
            if let Some(segment) = segment {
                self.turns.count_unanswered(client);
                client.sending_since = Some(turn_started);
                client.sending_bytes = segment.own_bytes();
                self.outbox.in_flight += 1;
                return Some((Owner::Client(id), segment));
            }
            if client.speaks_http {
                // The client's next request may have waited only for the output that was just taken.
                self.list_to_resume(id);
            }
        }
        None
    }

    /// Records that a socket has accepted a part of a client's segment (block) of replies: the send timeout starts
    /// anew, and the usual maximum of bytes of replies that may wait for the client holds again, if more were allowed
    /// because it took none.
    pub fn handle_sending(&mut self, id: ClientId, now: Now) {
        if let Some(client) = self.clients.get(id)
            && client.sending_since.is_some()
        {
            client.sending_since = Some(now.monotonic);
            client.backlog_bytes_max = 0;
        }
    }

    /// Handles the completion of a send to a client: replies that wait are sent next, requests that had to wait until
    /// the client took replies are continued, and a connection that is ending is closed once nothing is left to send.
    pub fn handle_transmitted(&mut self, env: &mut Env, id: ClientId, now: Now) {
        let Some(client) = self.clients.get(id) else { return };
        debug_assert!(client.sending_since.is_some(), "a segment comes back once");
        (client.sending_since, client.sending_bytes) = (None, 0);
        self.outbox.handle_done();
        client.last_heard = now.monotonic;
        client.backlog_bytes_max = 0;
        if !client.order.output.is_empty() {
            self.outbox.list(client, id);
        }
        let has_ended = client.ending != Ending::Open;
        self.list_to_resume(id);
        if has_ended {
            self.close_if_done(env, id);
        }
    }
}
