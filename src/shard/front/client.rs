//! One client connection: who it is, what it sent and has not been answered, and what of it waits.

use super::certainty::{Addressed, FirstTry};
use super::held::HeldRequest;
use super::http::Known;
use super::identity::Identity;
use super::order::{Order, Rewrite};
use super::pause::Paused;
use super::track::Tracks;
use super::transaction::{Splice, Transaction};
use crate::protocol::http::Conversation;
use crate::protocol::{Arguments, Protocol, RequestDecoder};
use crate::shard::gate::{Charge, Payer};
use crate::shard::request::{Asker, Envelope, Nature, ReplyTo, Route, Touches, Track};
use crate::values::limits::{PIPELINE_MAX, REQUESTS_PER_TURN, TLS_CLIENT_BYTES, TLS_SEND_BYTES_MAX};
use crate::values::{BackendId, TenantId, Timestamp};

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It does not.
    Open,
    /// Nothing more is read from it: all that was is answered, then it is closed.
    NoMoreInput,
    /// Not even what was read is taken on: what was before is answered, then it is closed.
    Deaf,
}

/// Both ends of a connection, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The client's.
    pub peer: Box<str>,
    /// Weir's.
    pub local: Box<str>,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    /// What `CLIENT ID` says.
    pub(super) number: u64,
    pub(super) protocol: Protocol,
    pub(super) identity: Identity,
    /// Whose seat it has taken.
    pub(super) seat: Option<TenantId>,
    /// It speaks TLS.
    pub(super) secure: bool,
    /// The tenant that its certificate names.
    pub(super) certified: Option<Box<str>>,
    /// Since when it has yet to log in.
    pub(super) stranger_since: Option<Timestamp>,
    pub(super) name: Vec<u8>,
    pub(super) library: [Vec<u8>; 2],
    /// Where it is, as sockets name it.
    pub(super) address: Box<Address>,
    pub(super) opened: Timestamp,
    /// It is not closed for what all clients hold.
    pub(super) no_evict: bool,
    /// What of it waits by order.
    pub(super) paused: Paused,
    /// Its next request, held or not, waits by order.
    pub(super) waits_by_order: bool,
    /// Attempts to log in that failed.
    pub(super) logins_failed: u8,
    pub(super) decoder: RequestDecoder,
    /// It speaks HTTP; taken out while its requests are handled.
    pub(super) http: Option<Box<Conversation>>,
    pub(super) speaks_http: bool,
    /// What it was identified by, if it speaks HTTP: its identity is that of the request under way, or of the last one.
    pub(super) known: Option<Box<Known>>,
    /// Since when a request of HTTP is coming that is not whole.
    pub(super) http_since: Option<Timestamp>,
    pub(super) transaction: Option<Box<Transaction>>,
    /// What belongs into the reply to the transaction that is in flight; there is one at a time.
    pub(super) splice: Option<Box<Splice>>,
    pub(super) order: Order,
    /// Which connections its requests take.
    tracks: Tracks,
    /// Requests after the one that is in flight must wait until it is answered.
    pub(super) barrier: bool,
    pub(super) held_request: Option<Box<HeldRequest>>,
    /// To the homes of which slots requests went that may have yet to be answered: a bit for all that have its number in common.
    handed_over: u64,
    /// The request in flight, if it is for primaries of a cluster as such; and whether it is tried for the second time.
    pub(super) addressed: Option<Box<Addressed>>,
    pub(super) first_try: Option<Box<FirstTry>>,
    /// The held request waits for a pool of quotas, or for the map of the cluster.
    pub(super) waits_for_quota: bool,
    /// Requests of it that were answered without their backend, which may carry them out yet.
    pub(super) unsettled: u32,
    /// One of those was to be over before anything else began, or later ones would take other connections to stores.
    pub(super) is_unsettled_alone: bool,
    /// Queues in which so much of it waits that no more is taken on.
    pub(super) congested: u16,
    /// When bytes of it came last.
    pub(super) came: Timestamp,
    pub(super) ending: Ending,
    /// Since when a segment is with the socket, or when the client took a part of it last.
    pub(super) sending_since: Option<Timestamp>,
    pub(super) last_heard: Timestamp,
    pub(super) reading_paused: bool,
    /// The turn in which requests of it were taken on last, and how many more may be in that one.
    pub(super) turn: u32,
    pub(super) turn_left: u32,
    /// Requests (or parts of them) are held that were not looked at yet.
    pub(super) stalled: bool,
    /// In the list of those with something to send.
    pub(super) listed_to_send: bool,
    /// In the list of those whose replies wait for the rest of their pipeline.
    pub(super) listed_partial: bool,
    /// In the list of those that may go on decoding, at the end of this turn or of the next.
    pub(super) listed_to_resume: bool,
}

impl Client {
    pub(super) fn new(number: u64, identity: Identity, now: Timestamp) -> Self {
        Self {
            number,
            protocol: Protocol::Resp2,
            identity,
            seat: None,
            secure: false,
            certified: None,
            stranger_since: None,
            name: Vec::new(),
            library: [Vec::new(), Vec::new()],
            address: Box::default(),
            opened: now,
            no_evict: false,
            paused: Paused::Nothing,
            waits_by_order: false,
            logins_failed: 0,
            decoder: RequestDecoder::default(),
            http: None,
            speaks_http: false,
            known: None,
            http_since: None,
            transaction: None,
            splice: None,
            order: Order::default(),
            tracks: Tracks::default(),
            barrier: false,
            held_request: None,
            addressed: None,
            first_try: None,
            handed_over: 0,
            waits_for_quota: false,
            unsettled: 0,
            is_unsettled_alone: false,
            congested: 0,
            came: now,
            ending: Ending::Open,
            sending_since: None,
            last_heard: now,
            reading_paused: false,
            turn: 0,
            turn_left: REQUESTS_PER_TURN,
            stalled: false,
            listed_to_send: false,
            listed_partial: false,
            listed_to_resume: false,
        }
    }

    /// Bytes of requests that have come and were not taken on.
    pub(super) fn held_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.http.as_ref().map_or(0, |http| http.held_bytes())
    }

    /// Is it told in HTTP?
    pub fn speaks_http(&self) -> bool {
        self.speaks_http
    }

    /// What `CLIENT ID` says.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// When bytes of it came last, or the request came that is looked at.
    pub fn came(&self) -> Timestamp {
        self.came
    }

    /// Its dialect.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// On whose terms its requests are.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Who pays for its requests.
    #[inline]
    pub fn payer(&self) -> Option<Payer> {
        self.identity.payer
    }

    /// May its reads be answered by replicas of a cluster?
    #[inline]
    pub fn reads_stale(&self) -> bool {
        self.identity.stale_reads
    }

    /// Who asks, as other cores are told.
    #[inline]
    pub fn asker(&self) -> Option<Asker> {
        self.identity.payer.map(Payer::asker)
    }

    /// Requests that have not been answered to it.
    #[inline]
    pub fn unanswered(&self) -> usize {
        self.order.unanswered()
    }

    /// Takes the next place in the order of replies.
    #[inline]
    pub fn expect_reply(&mut self, rewrite: Rewrite, charge: Option<Charge>) -> u32 {
        self.order.expect_reply(rewrite, charge)
    }

    /// Puts the next request on its track. False while it must wait for what is in flight.
    #[inline]
    pub fn take_track(&mut self, wanted: Track) -> bool {
        let (first, next) = self.order.sequences();
        self.tracks.choose_and_take(wanted, first, next)
    }

    /// Where a request of this client goes that was admitted.
    #[inline]
    pub fn route_to(&self, slot: u16, backend: BackendId) -> Route {
        Route { slot, backend, protocol: self.protocol, track: self.tracks.current() }
    }

    /// What travels with a request that takes a place of this client in the order of replies.
    pub fn envelope(
        &self,
        reply_to: ReplyTo,
        (slot, backend): (u16, BackendId),
        (nature, touches): (Nature, Touches),
        charge: Option<&Charge>,
    ) -> Envelope {
        Envelope {
            reply_to,
            route: self.route_to(slot, backend),
            asker: self.asker(),
            nature,
            touches,
            tier: self.identity.tier,
            weight: charge.map_or(0, Charge::weight),
            deadline: self.deadline(),
            overdue: self.identity.chosen.overdue,
        }
    }

    /// Until when an answer to the request that is being looked at is of use.
    #[inline]
    pub fn deadline(&self) -> Timestamp {
        self.identity.deadline.map_or(Timestamp::MAX, |deadline| self.came.after(deadline))
    }

    /// May something that was answered be carried out yet, and must nothing that goes another way overtake it?
    #[inline]
    pub fn is_unsettled(&self, is_alone: bool) -> bool {
        self.unsettled > 0 && (is_alone || self.is_unsettled_alone)
    }

    /// A request of it, to be looked at later.
    pub fn held(&self, arguments: &Arguments<'_>) -> HeldRequest {
        HeldRequest::new(arguments, &self.identity, self.came)
    }

    /// Does it queue requests since `MULTI`?
    #[inline]
    pub fn transaction(&mut self) -> Option<&mut Transaction> {
        self.transaction.as_deref_mut()
    }

    /// Begins to queue. False if it does already.
    pub fn begin_transaction(&mut self) -> bool {
        let begins = self.transaction.is_none();
        self.transaction.get_or_insert_default();
        begins
    }

    /// Queues no more. What was queued, if it did.
    pub fn take_transaction(&mut self) -> Option<Box<Transaction>> {
        self.transaction.take()
    }

    /// What belongs into the reply to the transaction that is sent now.
    pub fn keep_splice(&mut self, splice: Splice) {
        self.splice = Some(Box::new(splice));
    }

    /// A request that cannot be queued spoils the transaction it stands in, if any.
    pub fn poison_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.poison();
        }
    }

    /// May requests of it that write not be carried out now?
    #[inline]
    pub fn must_not_write(&self) -> bool {
        self.paused == Paused::Writes
    }

    /// It speaks this dialect from now on, which has connections to stores of its own.
    pub(super) fn change_protocol(&mut self, protocol: Protocol) {
        self.is_unsettled_alone |= self.unsettled > 0 && protocol != self.protocol;
        self.protocol = protocol;
    }

    /// A request was answered that may be carried out yet.
    pub(super) fn handle_unsettled(&mut self) {
        self.unsettled += 1;
        self.is_unsettled_alone |= self.barrier;
        self.tracks.pin(true);
    }

    /// Such a one is over.
    pub(super) fn handle_settled(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
        self.is_unsettled_alone &= self.unsettled > 0;
        self.tracks.pin(self.unsettled > 0);
    }

    /// May something of it be under way at the home of a slot, besides the request that has just taken its place in the order?
    #[inline]
    pub fn has_handed_over(&mut self, slot: u16, part: u16) -> bool {
        // What went before a part may be of the same request.
        if self.unanswered() <= 1 && part == 0 {
            self.handed_over = 0;
        }
        self.handed_over & slot_bit(slot) != 0
    }

    /// A request of it goes to the home of a slot, or to those of several.
    #[inline]
    pub fn hand_over(&mut self, slot: Option<u16>) {
        self.handed_over |= slot.map_or(u64::MAX, slot_bit);
    }

    /// Later requests of the connection wait until the one just sent is answered.
    pub fn hold_back_later(&mut self) {
        self.barrier = true;
    }

    /// Whether it may be closed for what all clients hold.
    pub fn set_no_evict(&mut self, no_evict: bool) {
        self.no_evict = no_evict;
    }

    /// Has it yet to be answered, or to be sent an answer?
    pub(super) fn is_owed(&self) -> bool {
        self.unanswered() > 0
            || self.held_request.is_some()
            || !self.order.output.is_empty()
            || self.sending_since.is_some()
    }

    /// Does something of it wait to go on?
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.stalled || self.held_request.is_some() || self.barrier
    }

    /// May the next request not be taken on yet, where so many bytes of replies may wait?
    #[inline]
    pub(super) fn must_wait(&self, replies_bytes_max: usize) -> bool {
        self.barrier
            || self.congested > 0
            || self.waits_for_quota
            || self.waits_by_order
            || self.turn_left == 0
            || self.unanswered() >= PIPELINE_MAX
            || self.order.waiting_bytes() > replies_bytes_max
    }

    /// What it takes.
    pub fn memory_bytes(&self) -> usize {
        let held = self.held_request.as_ref().map_or(0, |held| held.memory_bytes());
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.memory_bytes());
        let spliced = self.splice.as_ref().map_or(0, |splice| splice.memory_bytes());
        let again = self.addressed.as_ref().and_then(|addressed| addressed.again.as_ref());
        let said = self.first_try.as_ref().and_then(|first_try| first_try.done.as_ref());
        let held = held + again.map_or(0, |again| again.memory_bytes()) + said.map_or(0, |said| said.1.len());
        let names = self.name.len() + self.library.iter().map(Vec::len).sum::<usize>();
        let tls = match (self.secure, self.sending_since) {
            (false, _) => 0,
            (true, None) => TLS_CLIENT_BYTES,
            (true, Some(_)) => TLS_CLIENT_BYTES + TLS_SEND_BYTES_MAX,
        };
        size_of::<Self>()
            + tls
            + self.decoder.memory_bytes()
            + self.http.as_ref().map_or(0, |http| http.memory_bytes())
            + self.order.waiting_bytes()
            + self.order.entries_bytes()
            + held
            + queued
            + spliced
            + names
    }

    /// Gives back what a long pipeline took.
    pub(super) fn tidy(&mut self) {
        self.order.tidy();
        self.decoder.tidy();
    }
}

const fn slot_bit(slot: u16) -> u64 {
    1 << (slot % 64)
}
