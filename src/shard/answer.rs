//! Stage 11: replies, in the order of requests, batched into one send per turn.

use super::Shard;
use std::time::Duration;

use super::accounts::Charge;
use super::batch::{Message, Outcome, ReplyTo};
use super::client::{Client, Ending, Rewrite};
use super::counters::Counter;
use super::gather::Arrival;
use super::settlement::Settlement;
use crate::protocol::{Protocol, Segment, encode, reply};
use crate::values::ClientId;
use crate::values::Owner;
use crate::values::limits::ANSWER_BYTES_PER_REQUEST;
use crate::values::time::Now;

/// Replies to a part of what a client has pipelined wait for the rest while there is other work, so that they leave in
/// one send; not beyond this size and not for longer than this.
const PARTIAL_BYTES_MAX: usize = 32 * 1024;
const PARTIAL_WAIT_MAX: Duration = Duration::from_micros(200);

impl Shard {
    /// Answers a request that never left.
    pub(super) fn answer_now(&mut self, id: ClientId, write: impl FnOnce(&mut Vec<u8>, Protocol)) {
        let Some(client) = self.clients.get(id) else { return };
        if let Some(captured) = &mut self.captured {
            return write(captured, client.protocol);
        }
        self.counters.add(Counter::AnsweredHere, 1);
        let (protocol, waiting) = (client.protocol, client.waiting_bytes());
        client.answer_now(&mut self.pool, |out| write(out, protocol));
        // Whoever has long answers written has fewer of them in a turn.
        let written = client.waiting_bytes() - waiting;
        client.turn_left = client.turn_left.saturating_sub((written / ANSWER_BYTES_PER_REQUEST) as u32);
        self.counters.add(Counter::AnswerBytes, written as u64);
        self.after_answer(id);
    }

    /// Answers what never left and has a price nevertheless.
    pub(super) fn answer_priced(
        &mut self,
        id: ClientId,
        charge: Option<Charge>,
        now: Now,
        write: impl FnOnce(&mut Vec<u8>, Protocol),
    ) {
        let Some(client) = self.clients.get(id) else { return };
        let protocol = client.protocol;
        let mut text = self.pool.take();
        write(&mut text, protocol);
        if let Some(charge) = charge {
            self.settle_charge(&charge, &Settlement::of(Outcome::answered(text.len())), now);
        }
        self.answer_now(id, |out, _| out.extend_from_slice(&text));
        self.pool.give(text);
    }

    /// An answer of the control executor to a question.
    pub fn handle_answer(&mut self, to: ReplyTo, reply: &[u8], now: Now) {
        self.questions_under_way = self.questions_under_way.saturating_sub(1);
        self.deliver(to, Outcome::answered(reply.len()), Message::Small(reply), now);
    }

    /// A reply has come to the shard that its client is on.
    pub(super) fn deliver(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) {
        let id = ClientId { index: to.client, generation: to.generation };
        // The client may have left; the reply is then nobody's, but it cost what it cost.
        let Some(client) = self.clients.get(id) else {
            return self.settle_departed(to, outcome, now);
        };
        let weights = &self.settings.admission.weights;
        let mut settle = |charge: Option<&Charge>, settlement: &Settlement| {
            if let Some(charge) = charge {
                self.accounts.settle_reply(charge, settlement, weights, now);
            }
        };
        match client.waiting(to.sequence) {
            None => debug_assert!(false, "a reply that nobody waits for: {to:?}"),
            Some((Rewrite::AsItCame, charge)) => {
                settle(charge, &Settlement::of(outcome));
                client.answer(to.sequence, message, &mut self.pool);
                self.after_answer(id);
            }
            Some((Rewrite::Cursor { backend }, charge)) => {
                settle(charge, &Settlement::of(outcome));
                let reply = self.next_cursor(backend, message.bytes());
                self.answer_rewritten(id, to.sequence, reply);
            }
            Some((Rewrite::Splice, charge)) => {
                settle(charge, &Settlement::of(outcome));
                let splice = client.splice.take().unwrap_or_default();
                self.answer_rewritten(id, to.sequence, splice.put_into(message.bytes()));
            }
            Some((Rewrite::Gather(index), charge)) => {
                let bytes_max = self.settings.output_bytes_max;
                match self.gathers.part_arrived(index, to.part, outcome, message, bytes_max, &mut self.pool) {
                    Arrival::Stored(bytes) => {
                        client.stored_bytes += bytes;
                        self.after_answer(id);
                    }
                    Arrival::Joined { reply, waited, settlement } => {
                        settle(charge, &settlement);
                        client.stored_bytes -= waited;
                        self.answer_rewritten(id, to.sequence, reply);
                    }
                }
            }
        }
    }

    fn answer_rewritten(&mut self, id: ClientId, sequence: u32, reply: Vec<u8>) {
        let client = self.clients.at(id);
        if reply.len() > crate::values::limits::COPY_BYTES_MAX {
            client.answer(sequence, Message::Shared(&reply.into()), &mut self.pool);
        } else {
            client.answer(sequence, Message::Small(&reply), &mut self.pool);
            self.pool.give(reply);
        }
        self.after_answer(id);
    }

    /// Something may have become possible: a send, the next request, the end.
    fn after_answer(&mut self, id: ClientId) {
        let client = self.clients.at(id);
        if client.waiting_bytes() > self.settings.output_bytes_max {
            return self.expel(id, Counter::ClientsClosedUnread);
        }
        if client.output.is_empty() {
            return;
        }
        if client.unanswered() == 0 || client.output.len() >= PARTIAL_BYTES_MAX {
            list_to_send(client, id, &mut self.clients_to_send);
        } else if !client.listed_partial && !client.listed_to_send {
            client.listed_partial = true;
            self.clients_partial.push(id);
        }
        if client.is_stuck() {
            self.list_to_resume(id);
        }
    }

    /// Nothing more is coming right now: replies that waited for the rest of their pipeline go out alone.
    pub fn handle_quiet(&mut self) {
        self.partial_since = None;
        while let Some(id) = self.clients_partial.pop() {
            let Some(client) = self.clients.get(id) else { continue };
            client.listed_partial = false;
            if !client.output.is_empty() {
                list_to_send(client, id, &mut self.clients_to_send);
            }
        }
    }

    /// The same once the first of them has waited long enough, however much is coming.
    pub(super) fn release_overdue_partials(&mut self, now: Now) {
        if self.clients_partial.is_empty() {
            self.partial_since = None;
        } else if now.monotonic.since(*self.partial_since.get_or_insert(now.monotonic)) >= PARTIAL_WAIT_MAX {
            self.handle_quiet();
        }
    }

    /// Puts a client whose obstacle may be gone on the list for the end of the turn.
    pub(super) fn list_to_resume(&mut self, id: ClientId) {
        let client = self.clients.at(id);
        if !client.is_stuck() || client.listed_to_resume {
            return;
        }
        let may_go_on = if client.barrier { client.unanswered() == 0 } else { !client.must_wait() };
        if may_go_on {
            client.listed_to_resume = true;
            self.clients_to_resume.push_back(id);
        }
    }

    pub(super) fn poll_client_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(id) = self.clients_to_send.pop_front() {
            let Some(client) = self.clients.get(id) else { continue };
            client.listed_to_send = false;
            if client.sending_since.is_some() {
                continue;
            }
            if let Some(segment) = client.output.take() {
                client.sending_since = Some(self.turn_started);
                self.sends_under_way += 1;
                // The turn has ended, but someone must look whether this client takes it.
                self.housekeeping_at.get_or_insert(self.turn_started.after(super::HOUSEKEEPING));
                return Some((Owner::Client(id), segment));
            }
        }
        None
    }

    pub(super) fn client_transmitted(&mut self, id: ClientId, now: Now) {
        let Some(client) = self.clients.get(id) else { return };
        debug_assert!(client.sending_since.is_some(), "a segment comes back once");
        client.sending_since = None;
        self.sends_under_way -= 1;
        client.last_heard = now.monotonic;
        if !client.output.is_empty() {
            list_to_send(client, id, &mut self.clients_to_send);
        }
        self.list_to_resume(id);
        if self.clients.at(id).ending != Ending::Open {
            self.close_if_done(id);
        }
    }

    /// A store's `SCAN` reply with a cursor that also says which store is next.
    fn next_cursor(&mut self, backend: u16, reply: &[u8]) -> Vec<u8> {
        let backends = u64::from(self.settings.topology.backends());
        let Some((cursor, rest)) = cursor_and_rest(reply) else { return reply.to_vec() };
        let next = match (cursor, u64::from(backend) + 1) {
            (0, next_backend) if next_backend == backends => Some(0),
            (0, next_backend) => Some(next_backend),
            (cursor, _) => {
                cursor.checked_mul(backends).and_then(|scaled| scaled.checked_add(u64::from(backend)))
            }
        };
        let mut out = Vec::with_capacity(reply.len() + 20);
        match next {
            Some(next) => {
                encode::array(&mut out, 2);
                encode::bulk(&mut out, next.to_string().as_bytes());
                out.extend_from_slice(rest);
            }
            None => encode::error(
                &mut out,
                "ERR the cursor of the store is too large to be combined with the number of stores",
            ),
        }
        out
    }
}

fn list_to_send(client: &mut Client, id: ClientId, list: &mut std::collections::VecDeque<ClientId>) {
    if !client.listed_to_send && client.sending_since.is_none() {
        client.listed_to_send = true;
        list.push_back(id);
    }
}

fn cursor_and_rest(scan_reply: &[u8]) -> Option<(u64, &[u8])> {
    let mut elements = reply::elements(scan_reply)?;
    let cursor = reply::text(elements.next()?)?;
    Some((std::str::from_utf8(cursor).ok()?.parse().ok()?, elements.rest()))
}
