//! Way of a reply: to a client of this core, or into the batch for the core that has the client.

use bytes::Bytes;

use super::Shard;
use crate::shard::admission::{AdmissionStage, Charge};
use crate::shard::clients::ClientStage;
use crate::shard::env::Env;
use crate::shard::hot_keys::HotKeyStage;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::peers::PeerStage;
use crate::shard::refusal::NotSent;
use crate::shard::replies::{Replies, turn_away};
use crate::shard::request::{Envelope, ReplyTo};
use crate::shard::upstream::Upstream;
use crate::values::limits::COPY_BYTES_MAX;
use crate::values::time::Now;

/// The stages (parts of the shard) that a store's reply passes on its way to the client: first the handling of
/// hot keys, which may keep a copy, then the order of its client's replies.
pub(super) struct TowardsClients<'a> {
    clients: Delivery<'a>,
    hot_keys: &'a mut HotKeyStage,
}

/// The last stages (parts of the shard) that a reply passes: its place in the order of its client's replies
/// and the correction of the request's charge to its real price, or the batch for the core that has the
/// client.
pub(super) struct Delivery<'a> {
    clients: &'a mut ClientStage,
    admission: &'a mut AdmissionStage,
    peers: &'a mut PeerStage,
}

impl Replies for TowardsClients<'_> {
    #[expect(clippy::inline_always, reason = "every reply: a call would be half of it")]
    #[inline(always)]
    fn reply(&mut self, env: &mut Env, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) -> u64 {
        if to.flight_id().is_some() {
            return self.land(env, to, outcome, message, now);
        }
        if let Some(whole) = to.piece_of() {
            self.hot_keys.handle_reply(env, to, outcome, message.bytes(), now.monotonic);
            self.join(env, (whole, to.part), outcome, message, now);
            return 1;
        }
        match self.hot_keys.handle_reply(env, to, outcome, message.bytes(), now.monotonic) {
            None => {
                self.clients.give(env, to, outcome, message, now);
                return 1;
            }
            // The store works on a request that was answered early, so it is paid for all the same.
            Some(instead) if outcome == Outcome::Lost => {
                self.clients.give(env, to, outcome, Message::new(&instead, Some(&instead)), now);
            }
            Some(instead) => self.clients.give_cached(env, to, &instead, now),
        }
        0
    }

    fn note(&mut self, env: &mut Env, to: ReplyTo, note: Note) {
        self.hot_keys.handle_note(env, to, note);
        if let Note::Sent(_) = note {
            return;
        }
        let to = env.pieces.whole(to);
        let Delivery { clients, peers, .. } = &mut self.clients;
        if to.shard == env.settings.id {
            clients.handle_note(to, note);
        } else {
            peers.push_note(to, note);
        }
    }
}

impl TowardsClients<'_> {
    /// Takes the reply to one piece of a request that was split by key because a node could not carry it
    /// out whole; `piece` is the index of the whole request and of the piece in it. If it was the last
    /// piece, passes the joined reply on.
    #[inline(never)]
    fn join(&mut self, env: &mut Env, piece: (u32, u16), outcome: Outcome, message: Message<'_>, now: Now) {
        let bytes_max = env.settings.reply_bytes_max;
        let joined = env.pieces.handle_reply(piece, outcome, message, bytes_max, &mut env.pool);
        let Some((to, outcome, reply)) = joined else { return };
        if let Some(whole) = to.piece_of() {
            // The joined reply is itself that of a piece, which was taken apart once more.
            self.hot_keys.handle_reply(env, to, outcome, &reply, now.monotonic);
            return self.join(env, (whole, to.part), outcome, Message::Shared(&reply.into()), now);
        }
        // A piece that failed has its error in the joined reply, so no kept reply is given instead.
        self.hot_keys.handle_reply(env, to, outcome, &reply, now.monotonic);
        if reply.len() > COPY_BYTES_MAX {
            self.clients.give(env, to, outcome, Message::Shared(&reply.into()), now);
        } else {
            self.clients.give(env, to, outcome, Message::Small(&reply), now);
            env.pool.give(reply);
        }
    }

    /// Handles the reply to a fetch (shared read) of a hot key, or its failure, and answers all requests
    /// that wait for it. Returns the number of those that get this reply.
    #[inline(never)]
    fn land(&mut self, env: &mut Env, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) -> u64 {
        let bytes = message.bytes();
        let Some(mut landed) = self.hot_keys.land(env, to, outcome, bytes, now.monotonic) else { return 0 };
        if let Some(payer) = landed.payer() {
            self.note(env, payer, Note::LatePrice(outcome));
        }
        while let Some((to, outcome, reply)) = landed.next_spared() {
            self.hand_on(env, to, outcome, Message::new(&reply, Some(&reply)), now);
        }
        let mut answered = 0;
        while let Some((to, outcome)) = landed.next(bytes.len()) {
            self.hand_on(env, to, outcome, message, now);
            answered += 1;
        }
        answered
    }

    /// Passes on the reply to a request that was not sent to a store by itself, since a fetch of a hot key
    /// (one read for all requests that wait) answers it: to the client, or to the request that was split by
    /// key and of which it is a piece.
    pub(super) fn hand_on(
        &mut self,
        env: &mut Env,
        to: ReplyTo,
        outcome: Outcome,
        message: Message<'_>,
        now: Now,
    ) {
        match to.piece_of() {
            Some(whole) => self.join(env, (whole, to.part), outcome, message, now),
            None => self.clients.give(env, to, outcome, message, now),
        }
    }
}

impl Delivery<'_> {
    /// Gives a reply, with its `outcome` (result and measurements), to its client, which may be on any core: if
    /// on this core, corrects the request's charge to its real price and delivers the reply, else puts the
    /// reply into the batch for the client's core.
    #[inline]
    pub fn give(&mut self, env: &mut Env, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) {
        if to.shard == env.settings.id {
            let settle =
                |charge: &Charge, settlement: &Settlement| self.admission.settle(charge, settlement, now);
            self.clients.deliver(env, to, outcome, message, settle);
        } else {
            self.peers.push_reply(to, outcome, message);
        }
    }

    /// Gives a client a reply that was kept in memory for a hot key; it is charged like other answers from
    /// memory.
    #[cold]
    fn give_cached(&mut self, env: &mut Env, to: ReplyTo, reply: &Bytes, now: Now) {
        self.give(env, to, Outcome::cached(reply.len()), Message::new(reply, Some(reply)), now);
    }
}

/// Reply (`OK`) that stands for the control executor's answer to a question that weir asked for a request of a
/// transaction. Only the arrival of the answer matters, so no client is sent it.
const UNHEARD: &[u8] = b"+OK\r\n";

impl Shard {
    /// Returns the state that all stages (parts of the shard) use, and the stages that a reply passes if it
    /// comes from no store.
    pub(super) fn clients(&mut self) -> (&mut Env, Delivery<'_>) {
        let Self { env, clients, admission, peers, .. } = self;
        (env, Delivery { clients, admission, peers })
    }

    /// Returns the state that all stages (parts of the shard) use, the connections to stores, and the stages
    /// that the stores' replies pass on their way to clients.
    pub(super) fn towards_clients(&mut self) -> (&mut Env, &mut Upstream, TowardsClients<'_>) {
        let Self { env, clients, admission, upstream, peers, hot_keys, .. } = self;
        (env, upstream, TowardsClients { clients: Delivery { clients, admission, peers }, hot_keys })
    }

    /// Passes the reply to a request on to its client, which may be on any core. The handling of hot keys sees
    /// the reply first: it may keep the reply to a read, and learns that a write of a hot key has ended.
    pub(super) fn give_back(&mut self, to: ReplyTo, outcome: Outcome, message: Message<'_>, now: Now) {
        let (env, _, mut replies) = self.towards_clients();
        replies.reply(env, to, outcome, message, now);
    }

    /// Answers a request that was not sent to its store with an error that names the reason `why`.
    pub(super) fn refuse(&mut self, envelope: &Envelope, why: NotSent, now: Now) {
        let (env, _, mut replies) = self.towards_clients();
        turn_away(env, &mut replies, envelope.addressee(), why.for_nature(envelope.nature), now);
    }

    /// Handles the control executor's reply to a client's request, and passes it to the client, or goes on
    /// with the client's `EXEC` that waits for it.
    pub fn handle_answer(&mut self, to: ReplyTo, reply: &[u8], now: Now) {
        self.clients.handle_question_answered();
        if let Some(client) = self.clients.find(to.client_id()) {
            client.note_asking(None);
        }
        if let Some(exec) = self.clients.handle_answer_before_exec(to, reply) {
            let charge = self.clients.take_charge(to);
            let newest = self.clients.begin_exec(to.client_id(), &exec);
            // A client that is ending, as one that has killed itself, is closed once it is owed nothing. So the
            // reply to `EXEC` takes its place before the unheard one leaves its own.
            self.execute_transaction(to.client_id(), charge, now);
            self.end_caching(to.client_id(), b"exec");
            self.clients.end_exec(to.client_id(), newest);
            return self.give_back(to, Outcome::answered(UNHEARD.len()), Message::Small(UNHEARD), now);
        }
        self.give_back(to, Outcome::answered(reply.len()), Message::Small(reply), now);
    }
}
