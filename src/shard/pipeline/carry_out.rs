//! Carrying out of a request: admits it (takes its price from its payer's buckets), and sends it to its
//! destination. Requests are admitted nowhere else.

use std::time::Duration;

use super::Shard;
use super::destination::Destination;
use super::explain::word_for;
use crate::policy::price::Asked;
use crate::protocol::command::{Class, Command, FanOut, Flags, Handling, LocalCommand, PrivateUse};
use crate::protocol::{Arguments, Request, encode, http};
use crate::routing::cluster::WalkStep;
use crate::shard::admission::{Admission, Charge, FREE_BYTES, Payer, Scope, Throttled, asked};
use crate::shard::backend_levels::USUAL_PERCENT;
use crate::shard::clients::{MAP_PATIENCE, Rewrite};
use crate::shard::counters::Counter;
use crate::shard::message::Message;
use crate::shard::outcome::Settlement;
use crate::shard::refusal::{NotSent, Refusal};
use crate::shard::replies::write_refusal;
use crate::shard::request::PRIMARY;
use crate::shard::request::{Envelope, Nature, ReplyTo, Track};
use crate::shard::settings::Mode;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, Price, ShardId, Timestamp, UNIT};

/// Retry delay in the error reply to a request that is refused because weir answered an earlier request of
/// its client without the store, and the store may still carry that earlier request out.
const RETRY_UNSETTLED: Duration = Duration::from_millis(250);

/// Error of the functions that admit a request (take its price): the request goes no further now, because
/// it has been answered already, or is held to be tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped;

impl Shard {
    /// Admits a request (takes its price from its payer's quotas) and sends it to its destination, unless
    /// it is refused or has to wait. `command` is None if weir does not know it.
    #[inline]
    pub(super) fn carry_out(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        destination: Destination,
        request: Request<'_>,
        now: Now,
    ) {
        let (client, is_alone) = (self.clients.client(id), destination.is_alone());
        let must_wait = is_alone && client.unanswered() > 0;
        if client.is_unsettled(is_alone) && self.refuses_unsettled(id, command, destination) {
            return;
        }
        if must_wait {
            return self.clients.hold_for_replies(&mut self.env, id, &request.arguments);
        }
        if is_alone && self.goes_its_own_way(id, command, destination, &request.arguments, now) {
            return;
        }
        if self.env.backend_levels.is_any()
            && self.is_held_back(id, command, destination, &request.arguments, now)
        {
            return;
        }
        if destination == Destination::Walk(WalkStep::Unsure) {
            return self.wait_for_map(id, &request.arguments, now);
        }
        let usual = if self.clients.client(id).reads_stale() {
            self.track_of_stale(command, destination)
        } else {
            Track::Usual
        };
        let Ok(charge) = self.admit(id, command, destination, usual, &request.arguments, now) else { return };
        if self.env.settings.clients.monitors.is_watched() {
            self.show_request(id, command, destination, &request.arguments, now);
        }
        let Destination::Home { slot, backend, home, touches } = destination else {
            return self.carry_out_alone(id, command, destination, charge, request, now);
        };
        if let Some(command) = command.filter(|command| command.class == Class::Script) {
            self.note_script(command, &request.arguments);
        }
        // Every request takes this path, so the client is looked up only once.
        let client = self.clients.client(id);
        let sequence = client.expect_reply(Rewrite::AsItCame, charge);
        let reply_to = ReplyTo::new(self.env.settings.id, id, sequence);
        let nature = Nature::of(command);
        client.note_write(nature, Some(backend));
        let envelope = client.envelope(reply_to, (slot, backend), (nature, touches), charge.as_ref());
        self.dispatch(home, &envelope, Message::new(request.arguments.frame(), request.shared), now);
    }

    /// Sends an admitted request that has no single home core (the core through which a key's requests
    /// pass), or answers it here. `charge` is the price taken for it; None if it has none.
    #[inline(never)]
    fn carry_out_alone(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        destination: Destination,
        charge: Option<Charge>,
        request: Request<'_>,
        now: Now,
    ) {
        let (arguments, nature) = (&request.arguments, Nature::of(command));
        self.is_paid |= charge.is_some();
        self.clients.client(id).note_write(nature, destination.backend());
        let message = Message::new(arguments.frame(), request.shared);
        if let Some(command) = command {
            self.note_script(command, arguments);
        }
        match (destination, command) {
            (Destination::Alone { slot, backend }, _) => {
                if let Some(receivers) = self.receivers_of(command, arguments) {
                    let place = (slot, backend);
                    return self.ask_for_receivers(id, place, receivers, (charge, nature), message, now);
                }
                let envelope = self.envelope_alone(id, (slot, backend), (Rewrite::AsItCame, charge), nature);
                self.send_from_here(&envelope, message, 1, now);
            }
            (Destination::Private { slot, backend }, command) => {
                self.send_private(id, command, (slot, backend), charge, request, now);
            }
            (Destination::Scan { backend, cursor }, _) => {
                let mut frame = self.env.pool.take();
                with_cursor(&mut frame, arguments, cursor);
                let rewrite = Rewrite::Cursor { backend: backend.0 };
                let slot = self.no_slot();
                let envelope = self.envelope_alone(id, (slot, backend), (rewrite, charge), nature);
                self.send_from_here(&envelope, Message::Small(&frame), 1, now);
                self.env.pool.give(frame);
            }
            (Destination::Walk(step), _) => self.walk_on(id, step, (charge, nature), arguments, now),
            // Before the first map of a cluster there is no node to ask.
            (Destination::Stores(_), _) if !self.env.has_stores() => {
                self.settle(charge, &Settlement::default(), now);
                self.answer_not_sent(id, BackendId(0), NotSent::NoOwner);
            }
            (Destination::Stores(fan_out), _) => {
                if self.env.slots.is_some() {
                    self.clients.note_addressed(id, None, arguments);
                }
                let receivers = self.receivers_of(command, arguments);
                let is_for_busy = command.is_some_and(|command| command.flags.contains(Flags::ALLOW_BUSY));
                let message = (message, is_for_busy);
                self.ask_all(id, (fan_out, receivers), (charge, nature), message, now);
            }
            (Destination::Parts(gather), Some(command)) => {
                self.split(id, command, gather, charge, arguments, now);
            }
            (Destination::Weir(local), Some(command)) => {
                // A longer request has paid, and the one in `QOS CALL` pays by itself.
                let is_call = local == LocalCommand::Qos
                    && arguments.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"call"));
                let is_free = charge.is_none() && message.bytes().len() <= FREE_BYTES && !is_call;
                let payer = self.payer_of(id);
                let written = self
                    .answer_bytes_of(|shard| shard.answer_locally(id, command, local, charge, request, now));
                if is_free && written > FREE_BYTES {
                    self.charge_for_own(payer, (0, written), now);
                }
            }
            (Destination::Home { .. }, _) => unreachable!("seen to by who calls this"),
            (Destination::Parts(_) | Destination::Weir(_), None) => {
                unreachable!("what is in no table goes to one store")
            }
        }
    }

    /// Handles a client's `SCAN` of a cluster, which walks over the cluster's nodes: as `step` says, sends the `SCAN`
    /// to the node at which the walk has arrived, or answers that the walk has ended, or cannot go on. `charge` is
    /// the price taken for the request, if it has one. `nature` says whether it writes and what class it has.
    fn walk_on(
        &mut self,
        id: ClientId,
        step: WalkStep,
        (charge, nature): (Option<Charge>, Nature),
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        match step {
            WalkStep::Visit { node, cursor, position } => {
                self.clients.note_addressed(id, Some(position), arguments);
                let mut frame = self.env.pool.take();
                with_cursor(&mut frame, arguments, cursor);
                let place = (PRIMARY, node.backend);
                let envelope = self.envelope_alone(id, place, (Rewrite::Walk, charge), nature);
                self.send_from_here(&envelope, Message::Small(&frame), 1, now);
                self.env.pool.give(frame);
            }
            WalkStep::Done => self.answer_priced(id, charge, now, |out, _| {
                encode::array(out, 2);
                encode::bulk(out, b"0");
                encode::array(out, 0);
            }),
            WalkStep::Nowhere | WalkStep::Unsure => {
                self.settle(charge, &Settlement::default(), now);
                self.answer_not_sent(id, BackendId(0), NotSent::NoOwner);
            }
        }
    }

    /// Handles two kinds of requests before admission. A command that ends subscriptions is carried out at once: a
    /// quota must not refuse it, since the client would go on paying for messages; its tenant pays for its bytes. A
    /// `PUBLISH` is held while earlier subscriptions to its channel may be on their way to stores. False if the request
    /// is not of these kinds or need not be held, and is to be admitted as usual.
    fn goes_its_own_way(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        destination: Destination,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> bool {
        match command.map(|command| command.handling) {
            Some(Handling::FanOut(FanOut::Channel)) => {
                self.clients.hold_for_subscriptions(&mut self.env, id, arguments, now)
            }
            Some(Handling::Private(usage @ PrivateUse::Unsubscribes(_))) if self.private.is_on() => {
                if self.env.settings.clients.monitors.is_watched() {
                    self.show_request(id, command, destination, arguments, now);
                }
                let payer = self.payer_of(id);
                let written =
                    self.answer_bytes_of(|shard| shard.change_subscriptions(id, usage, None, arguments, now));
                self.is_paid = true;
                self.charge_for_own(payer, (arguments.frame().len(), written), now);
                true
            }
            _ => false,
        }
    }

    /// Calls `answer`, and returns the number of bytes that weir itself has written to clients meanwhile, which
    /// their tenant pays for.
    #[inline]
    fn answer_bytes_of(&mut self, answer: impl FnOnce(&mut Self)) -> usize {
        let before = self.env.counters.get(Counter::AnswerBytes);
        answer(self);
        (self.env.counters.get(Counter::AnswerBytes) - before) as usize
    }

    /// Resumes clients' `PUBLISH` requests that were held for earlier subscriptions: those whose subscriptions
    /// are acknowledged by now, and those that have waited for too long.
    pub(super) fn resume_publications(&mut self, now: Now) {
        let ready = self.clients.publications().take_ready(&self.env, now.monotonic);
        self.resume_held(ready, now);
    }

    /// True if a `PUBLISH` waits until the other cores have handled all bytes that arrived before it, since an earlier
    /// subscription to its channel may be among them. The caller reports by [`Self::handle_others_handled`] when they
    /// have.
    #[inline]
    pub fn awaits_others(&self) -> bool {
        self.clients.await_others()
    }

    /// Records that the other cores have handled all bytes of their clients that arrived by the time `by`. Requests
    /// that wait for this are tried again at the end of the turn (pass of the shard's loop).
    pub fn handle_others_handled(&mut self, by: Timestamp) {
        self.env.others_handled = self.env.others_handled.max(Some(by));
    }

    /// Holds a client's `SCAN`, which must not miss a node, until the cluster's primaries have confirmed the map of
    /// slots. Refuses it if it was decoded 2 s ago or more.
    fn wait_for_map(&mut self, id: ClientId, arguments: &Arguments<'_>, now: Now) {
        if now.monotonic.since(self.clients.client(id).began()) >= MAP_PATIENCE {
            return self.answer_not_sent(id, BackendId(0), NotSent::Unconfirmed);
        }
        self.env.counters.add(Counter::RequestsHeld, 1);
        self.clients.hold_for_map(id, arguments);
    }

    /// Records that all primaries have confirmed the cluster's map of slots, each when it was asked at `at`
    /// or later. Requests that came before `at`, and are held until the map is confirmed, may go on.
    pub fn handle_slots_confirmed(&mut self, at: Timestamp) {
        self.env.slots_confirmed = self.env.slots_confirmed.max(Some(at));
        self.upstream.touch_slots();
    }

    /// Resumes clients' requests that were held until the cluster's map of slots is confirmed: those for
    /// which it has been confirmed, and those that have waited for too long.
    pub(super) fn resume_sure(&mut self, now: Now) {
        let ready = self.clients.map_confirmation().take_ready(&self.env, now.monotonic);
        self.resume_held(ready, now);
    }

    /// Admits a request: takes its price from the buckets of its payer (account that is charged), and returns
    /// the charge; None if it has no price. A refused request is answered here, and one that has to wait is
    /// held; both return [`Stopped`]. `usual` is the track (set of connections to a backend) of a request that
    /// does not cost much, and `command` is None if weir does not know it. A request to all nodes of a cluster that
    /// goes on after some have carried it out is paid for already, and is not refused.
    #[expect(clippy::inline_always, reason = "every request: a call would be a third of it")]
    #[inline(always)]
    fn admit(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        destination: Destination,
        usual: Track,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        if self.admission.lets_all_pass() {
            let has_tracks = self.env.settings.replicas == Mode::On;
            return if has_tracks { self.take_track(id, destination, usual, arguments) } else { Ok(None) };
        }
        if let Destination::Weir(local) = destination {
            return self.admit_local(id, command, local, arguments, now);
        }
        let (asked, class) = (asked(command, arguments), Nature::of(command).class);
        let client = self.clients.client(id);
        let Some(payer) = client.payer() else { return Ok(None) };
        if matches!(destination, Destination::Stores(_)) && client.goes_on_paid() {
            self.is_paid = true;
            return Ok(None);
        }
        if self.env.backend_levels.is_any() {
            let backend = destination.backend();
            return self.admit_off_tab(id, payer, (&asked, class), (backend, usual), arguments, now);
        }
        let take_track = |track: Track| client.take_track(track.or(usual));
        let charge = self.admission.admit_on_tab(payer, (&asked, class), take_track, now);
        if charge.is_some() {
            return Ok(charge);
        }
        self.admit_off_tab(id, payer, (&asked, class), (destination.backend(), usual), arguments, now)
    }

    /// Puts a request on the track `usual` (a set of connections to a backend) where nothing has a price and replicas
    /// may answer reads. If the client has requests in flight on another track, which this one could overtake, the
    /// request is held, and the result is an error. Never returns a charge.
    #[cold]
    fn take_track(
        &mut self,
        id: ClientId,
        destination: Destination,
        usual: Track,
        arguments: &Arguments<'_>,
    ) -> Result<Option<Charge>, Stopped> {
        if self.reaches_stores(id, destination) && !self.clients.client(id).take_track(usual) {
            self.clients.hold_for_replies(&mut self.env, id, arguments);
            return Err(Stopped);
        }
        Ok(None)
    }

    /// Admits a request that weir answers by itself (takes its price from its payer's quotas). Few of these
    /// commands have a price; `EXEC` has the price of all requests of its transaction together. `local` is the
    /// command. Returns the charge; None if the request has no price. The error says that it was refused, or is
    /// held to wait.
    #[inline(never)]
    fn admit_local(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        local: LocalCommand,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        // Clients of other tenants log in over connections that begin as those of the default tenant, which must
        // not be able to keep them out; and a pause may be ended by a client that has nothing left.
        if let (LocalCommand::Auth | LocalCommand::Hello | LocalCommand::ClientUnpause, Some(command)) =
            (local, command)
        {
            let is_priced = local.is_priced(arguments);
            self.is_paid |= is_priced;
            return Ok(if is_priced { self.charge_afterwards(id, command, arguments) } else { None });
        }
        let asked: Option<(Asked, Class)> = match local {
            // A transaction is charged whole, because one that was throttled half way would not be atomic.
            LocalCommand::Exec => self.asked_by_transaction(id),
            _ if local.is_priced(arguments) => Some((asked(command, arguments), Nature::of(command).class)),
            _ => None,
        };
        let client = self.clients.client(id);
        let (tier, Some(payer)) = (client.identity().tier, client.payer()) else { return Ok(None) };
        let Some((asked, class)) = asked else {
            return self.admit_bytes(id, payer, local, arguments, now).map(|()| None);
        };
        let percent = match local {
            LocalCommand::Exec => {
                let backend = self.backend_asked(id, Destination::Weir(local));
                self.env.backend_levels.percent(backend, tier)
            }
            // No store is asked, so none is strained by it.
            _ => USUAL_PERCENT,
        };
        self.admit_at(id, payer, (&asked, class, percent), Track::Usual, arguments, now)
    }

    /// Admits a request that weir answers by itself and that has no price (`local` is the command): if it has
    /// more than 1 KiB, takes the price of its bytes and of those that weir sends back. The error says that it
    /// was refused, or is held to wait.
    fn admit_bytes(
        &mut self,
        id: ClientId,
        payer: Payer,
        local: LocalCommand,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<(), Stopped> {
        let bytes_in = arguments.frame().len();
        // The request in `QOS CALL` is admitted by itself.
        if bytes_in <= FREE_BYTES || local == LocalCommand::Qos {
            return Ok(());
        }
        let bytes_out = if matches!(local, LocalCommand::Echo | LocalCommand::Ping) { bytes_in } else { 0 };
        match self.admission.admit_bytes(&mut self.env, payer, (bytes_in, bytes_out), now) {
            Admission::Passed(_) => {
                self.is_paid = true;
                return Ok(());
            }
            Admission::AfterGrant => {
                self.clients.hold_for_grant(id, arguments);
                self.admission.await_grant(id);
            }
            Admission::Throttled(throttled) => self.throttle(id, &throttled, now),
            Admission::AfterReplies | Admission::AfterSettlement => {
                unreachable!("a request whose whole price is known waits for no other")
            }
        }
        Err(Stopped)
    }

    /// Admits a request (takes its price from its payer's quotas) that cannot be charged to the tab (the sum of
    /// one payer's consecutive requests), such as a transaction, and returns the charge; None if it has no price.
    /// `asked` are the facts about its cost, `class` is the class of its command, `backend` where it goes (None for
    /// several), and `usual` the track (set of connections) that it takes unless it is expensive. The error says that
    /// it was refused, or is held to wait.
    #[inline(never)]
    fn admit_off_tab(
        &mut self,
        id: ClientId,
        payer: Payer,
        (asked, class): (&Asked, Class),
        (backend, usual): (Option<BackendId>, Track),
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        let percent = self.env.backend_levels.percent(backend, self.clients.client(id).identity().tier);
        self.admit_at(id, payer, (asked, class, percent), usual, arguments, now)
    }

    /// Admits a request like [`Self::admit_off_tab`], at a price of `percent` of the usual one.
    fn admit_at(
        &mut self,
        id: ClientId,
        payer: Payer,
        (asked, class, percent): (&Asked, Class, u32),
        usual: Track,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        // The call was paid for there, except for its reply.
        if std::mem::take(&mut self.is_admitted_elsewhere) {
            return Ok(self.admission.charge_afterwards(Some(payer), asked, class));
        }
        let client = self.clients.client(id);
        let came = client.came();
        let take_track = |track: Track| client.take_track(track.or(usual));
        match self.admission.admit(&mut self.env, payer, came, (asked, class, percent), take_track, now) {
            Admission::Passed(charge) => return Ok(charge),
            Admission::AfterReplies => self.clients.hold_for_replies(&mut self.env, id, arguments),
            Admission::AfterSettlement => {
                self.clients.hold_for_grant(id, arguments);
                self.admission.await_settlement(payer, id, now.monotonic);
            }
            Admission::AfterGrant => {
                self.clients.hold_for_grant(id, arguments);
                self.admission.await_grant(id);
            }
            Admission::Throttled(throttled) => self.throttle(id, &throttled, now),
        }
        Err(Stopped)
    }

    /// Counts a request that is never throttled, such as a login, as in flight, and returns its charge:
    /// nothing is taken beforehand, and its price is charged with the reply. None if the request has no
    /// price.
    fn charge_afterwards(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Option<Charge> {
        let (asked, class) = (asked(Some(command), arguments), Nature::of(Some(command)).class);
        let payer = self.payer_of(id);
        self.admission.charge_afterwards(payer, &asked, class)
    }

    /// Admits a request about quotas (`QOS`), which is answered even if its payer's quota is used up, and
    /// charged afterwards. Returns the charge; None if it has no price. An error if it is throttled, because the
    /// payer owes much already and its tenant has sent 10 such requests in this second.
    pub(super) fn admit_in_debt(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        let Some(payer) = self.payer_of(id) else { return Ok(None) };
        let asked = (&asked(Some(command), arguments), Nature::of(Some(command)).class);
        match self.admission.admit_in_debt(&mut self.env, payer, asked, now) {
            Admission::Passed(charge) => {
                self.is_paid = true;
                Ok(charge)
            }
            Admission::Throttled(throttled) => {
                self.throttle(id, &throttled, now);
                Err(Stopped)
            }
            Admission::AfterReplies | Admission::AfterSettlement | Admission::AfterGrant => {
                unreachable!("a request that may be paid for later does not wait")
            }
        }
    }

    /// Answers a client's request with `-THROTTLED`, which names the quota that is used up and the time
    /// until a retry. A transaction that it belongs to is discarded.
    fn throttle(&mut self, id: ClientId, throttled: &Throttled, now: Now) {
        let Throttled { scope: refused, limit, remaining, retry_after } = *throttled;
        self.is_paid = true;
        let mut text = self.env.pool.take();
        self.discard_refused(id);
        let identity = self.clients.client(id).identity();
        let tenant = identity.tenant(&self.env.quotas).map_or("", |tenant| tenant.name.as_str());
        let (scope, tenant, user) = match refused {
            Scope::Global => ("global", "global", None),
            Scope::Tenant(_) => ("tenant", tenant, None),
            Scope::User(_) => ("user", tenant, identity.user.as_deref()),
        };
        Refusal::Throttled { scope, tenant, user, limit, remaining, retry_after }.encode(&mut text);
        if self.clients.client(id).speaks_http() {
            self.tell_other_quotas(&mut text, id, refused, now);
        }
        self.env.counters.add(Counter::RefusedThrottled, 1);
        self.clients.answer_now(&mut self.env, id, |out, _| out.extend_from_slice(&text));
        self.env.pool.give(text);
    }

    /// Adds to the headers of an HTTP refusal the amounts that this core has left of the quotas that the request counts
    /// against, except that of the scope `refused` (global, tenant or user). The quota with the smallest part left
    /// comes first; one of which this core has less than a request unit is left out.
    #[cold]
    fn tell_other_quotas(&mut self, text: &mut Vec<u8>, id: ClientId, refused: Scope, now: Now) {
        let identity = self.clients.client(id).identity().clone();
        let mut others = Vec::new();
        for (scope, _) in self.scopes_of(&identity).into_iter().filter(|(scope, _)| *scope != refused) {
            // A quota that this core has no allowance of is left out: other cores may have some.
            if let Some((_, capacity, left)) = self.admission.peek(scope, Price::ZERO, now.monotonic)
                && left >= UNIT
            {
                others.push((word_for(scope), capacity.ru_per_second(), left / UNIT));
            }
        }
        others.sort_by(|(_, limit, left), (_, other_limit, other_left)| {
            let part = |left: u64, limit: u64| left as f64 / limit.max(1) as f64;
            part(*left, *limit).total_cmp(&part(*other_left, *other_limit))
        });
        http::note_quotas(text, &others);
    }

    /// Makes the envelope (record that goes with a request's bytes) of a request that must be the only one of
    /// its client in flight: takes the next place in the order of the client's replies, and holds back the
    /// client's later requests until this one is answered. The request goes to `backend`; `rewrite` says how its
    /// reply is to be changed, and `charge` is the price taken for it (None if it has none), which is corrected to the
    /// real price with the reply.
    pub(super) fn envelope_alone(
        &mut self,
        id: ClientId,
        (slot, backend): (u16, BackendId),
        (rewrite, charge): (Rewrite, Option<Charge>),
        nature: Nature,
    ) -> Envelope {
        let client = self.clients.client(id);
        let sequence = client.expect_reply(rewrite, charge);
        client.hold_back_later();
        let reply_to = ReplyTo::new(self.env.settings.id, id, sequence);
        client.envelope(reply_to, (slot, backend), (nature, nature.touches()), charge.as_ref())
    }

    /// True if a request is refused because its backend is slow (shedding level) and requests of more important tiers
    /// (degrees of importance) go first; its client has been answered with an error then.
    #[cold]
    fn is_held_back(
        &mut self,
        id: ClientId,
        command: Option<&Command>,
        destination: Destination,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> bool {
        let tier = self.clients.client(id).identity().tier;
        let backend = self.backend_asked(id, destination);
        let is_held_back =
            self.reaches_stores(id, destination) && self.env.backend_levels.refuses(backend, tier);
        if is_held_back {
            if let Some(payer) = self.clients.client(id).payer() {
                let transaction = match destination {
                    Destination::Weir(LocalCommand::Exec) => self.asked_by_transaction(id),
                    _ => None,
                };
                let (asked, class) =
                    transaction.unwrap_or_else(|| (asked(command, arguments), Nature::of(command).class));
                self.admission.meter_shed(payer, (&asked, class), now);
            }
            let strained = backend.unwrap_or_else(|| self.env.backend_levels.worst());
            self.answer_not_sent(id, strained, NotSent::Strained);
        }
        is_held_back
    }

    /// Returns the facts about the cost of a client's whole transaction, and its class; None if it has no price, or if
    /// the client is in no transaction.
    fn asked_by_transaction(&mut self, id: ClientId) -> Option<(Asked, Class)> {
        let asked = self.clients.client(id).transaction()?.asked()?;
        Some((asked, Nature::TRANSACTION_CLASS))
    }

    /// Returns the backend whose shedding level decides about a request: the one that it, or its transaction at
    /// `EXEC`, goes to. None for several.
    fn backend_asked(&mut self, id: ClientId, destination: Destination) -> Option<BackendId> {
        // A comparison by `==` here would keep the one in `carry_out` from being inlined there.
        if !matches!(destination, Destination::Weir(LocalCommand::Exec)) {
            return destination.backend();
        }
        let place = self.clients.client(id).transaction().and_then(|transaction| transaction.place());
        Some(place.map_or_else(|| self.first_place().1, |(_, backend)| backend))
    }

    /// Refuses a request that, as the caller has found, could overtake an earlier one of its client: the store may
    /// still carry that one out, although weir has answered it. False, with nothing done, if no part of the request
    /// goes to a store.
    #[cold]
    fn refuses_unsettled(
        &mut self,
        id: ClientId,
        command: Option<&Command>,
        destination: Destination,
    ) -> bool {
        // The end of a subscription cannot overtake a request for keys, and its client pays until then.
        let ends_subscription = command.is_some_and(|command| {
            matches!(command.handling, Handling::Private(PrivateUse::Unsubscribes(_)))
        });
        let is_refused = !ends_subscription && self.reaches_stores(id, destination);
        if is_refused {
            let backend = destination.backend().unwrap_or(BackendId(0));
            self.answer_not_sent(id, backend, NotSent::Stalled(RETRY_UNSETTLED));
        }
        is_refused
    }

    /// True if any part of a client's request, or of its transaction at `EXEC`, goes to a store.
    pub(super) fn reaches_stores(&mut self, id: ClientId, destination: Destination) -> bool {
        match destination {
            Destination::Weir(LocalCommand::Exec) => {
                self.clients.client(id).transaction().is_some_and(|transaction| transaction.reaches_stores())
            }
            Destination::Weir(_) => false,
            _ => true,
        }
    }

    /// Answers a client's request, which cannot be sent to `backend` for the reason `why`, with the error for
    /// that reason. The request must not have taken its place in the order of the client's replies yet. A
    /// transaction that it belongs to is discarded.
    pub(super) fn answer_not_sent(&mut self, id: ClientId, backend: BackendId, why: NotSent) {
        self.is_paid = true;
        self.discard_refused(id);
        let tier = self.clients.client(id).identity().tier;
        let mut text = self.env.pool.take();
        write_refusal(&mut self.env, backend, why, &mut text);
        if let Some(pressure) = why.pressure() {
            self.env.count_refused(pressure, tier, backend, 1);
        }
        self.clients.answer_now(&mut self.env, id, |out, _| out.extend_from_slice(&text));
        self.env.pool.give(text);
    }

    /// Sends a request to its backend if this core is `home` (the core through which the key's requests pass), else
    /// hands it over to that core.
    #[expect(clippy::inline_always, reason = "every request: two calls would be a tenth of it")]
    #[inline(always)]
    pub(super) fn dispatch(&mut self, home: ShardId, envelope: &Envelope, message: Message<'_>, now: Now) {
        if home == self.env.settings.id {
            self.send_from_here(envelope, message, 1, now);
        } else {
            self.hand_over(home, envelope, message, now);
        }
    }

    /// Hands a request over to its key's home core (the core through which a key's requests pass), unless
    /// this core's copy of a hot key's reply answers it. Refuses it if the batch for that core is full.
    #[inline(never)]
    fn hand_over(&mut self, home: ShardId, envelope: &Envelope, message: Message<'_>, now: Now) {
        if self.hot_keys.is_on() && self.is_copied(envelope, message, now) {
            return;
        }
        if self.peers.push_request(home, envelope, message) {
            self.env.counters.add(Counter::RequestsHandedOver, 1);
        } else {
            self.refuse(envelope, NotSent::CoreFull, now);
        }
    }

    /// Sends a request to its store from this core: the home of its key (the core through which a key's requests pass),
    /// or the core of its client for a request that goes through no home, such as a transaction or `SCAN`. A request
    /// for a hot key may instead be answered from memory, wait for a fetch (shared read), or be refused. `requests` is
    /// above 1 only for a transaction, of which the last reply counts.
    #[expect(clippy::inline_always, reason = "every request, see above")]
    #[inline(always)]
    pub(super) fn send_from_here(
        &mut self,
        envelope: &Envelope,
        message: Message<'_>,
        requests: usize,
        now: Now,
    ) {
        if self.hot_keys.is_on() && self.hot_keys.notices(envelope) {
            return self.meet(envelope, message, requests, now);
        }
        self.put_out(envelope, message, requests, now);
    }

    /// Sends a message of `requests` requests over this core's backend connections, whether or not a reply for
    /// its hot key is kept in memory. If it cannot be sent, its client is answered with the reason.
    #[expect(clippy::inline_always, reason = "every request, see above")]
    #[inline(always)]
    pub(super) fn put_out(&mut self, envelope: &Envelope, message: Message<'_>, requests: usize, now: Now) {
        if let Err(why) = self.upstream.send(&mut self.env, envelope, message, requests, now) {
            self.refuse(envelope, why, now);
        }
        if self.upstream.has_notes() {
            let (env, upstream, mut replies) = self.towards_clients();
            upstream.deliver_notes(env, &mut replies);
        }
    }

    /// Returns the account (of a tenant, or of a user of it) that a client's requests are charged to; None if there is
    /// none.
    pub(super) fn payer_of(&mut self, id: ClientId) -> Option<Payer> {
        self.clients.client(id).payer()
    }
}

/// Writes a client's `SCAN` to `out` with another cursor: the one that the store itself has given.
fn with_cursor(out: &mut Vec<u8>, arguments: &Arguments<'_>, cursor: u64) {
    encode::array(out, arguments.len());
    encode::bulk(out, arguments.name());
    encode::bulk(out, cursor.to_string().as_bytes());
    arguments.iter().skip(2).for_each(|word| encode::bulk(out, word));
}
