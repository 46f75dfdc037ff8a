//! The state of one client connection: its identity, its unanswered requests, and whatever its next request
//! waits for.

use std::borrow::Cow;
use std::sync::Arc;

use super::arrivals::Arrivals;
use super::held::{HeldRequest, Times};
use super::http_login::HttpLogin;
use super::identity::Identity;
use super::map_confirmation::{Addressed, FirstTry};
use super::order::{Order, Replies, Rewrite};
use super::pause::{Paused, is_held_as_write};
use super::ties::{Ties, Watch};
use super::track::Tracks;
use super::transaction::{Splice, Transaction};
use super::{BACKLOG_PIPELINE_MAX, ReplyRoom};
use crate::protocol::command::{Command, Effect, Handling, LocalCommand};
use crate::protocol::http::Conversation;
use crate::protocol::{Arguments, Protocol, RequestDecoder};
use crate::shard::admission::{Charge, Payer};
use crate::shard::request::{Asker, Envelope, Nature, Overdue, ReplyTo, Route, Touches, Track};
use crate::shard::script_board::ScriptBoard;
use crate::shard::settings::ShardSettings;
use crate::shard::subscription_board::SubscriptionBoard;
use crate::values::limits::{REQUESTS_PER_TURN, TLS_CLIENT_BYTES, TLS_SEND_BYTES_MAX};
use crate::values::{BackendId, Database, TenantId, Timestamp};

/// Stage of the end of a client connection, which decides whether more is read from it, and whether requests
/// that it has sent are still carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The connection is not ending: its requests are read and answered.
    Open,
    /// Nothing more is read from the client. All requests that were read are answered, then the connection is
    /// closed.
    NoMoreInput,
    /// No more requests are carried out, not even those already received. Requests in flight are answered, then
    /// the connection is closed.
    Deaf,
}

/// The two addresses of a client connection, as text in Redis's form: `ip:port`; for a connection over a Unix socket
/// both are the path of weir's socket, with `:0`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The address from which the client connected, as `CLIENT LIST` reports it (`addr`).
    pub peer: Box<str>,
    /// Weir's own address, to which the client connected, as `CLIENT LIST` reports it (`laddr`).
    pub local: Box<str>,
    /// True if the client is connected over a Unix socket.
    pub is_unix: bool,
}

/// The unanswered requests of one client as its shard's schedule (of which clients may start requests in a pass
/// of the shard's loop) counted them last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Number of the client's unanswered requests that count; 0 if it has at most one, or if its requests have been
    /// unanswered for so long that they are left out.
    pub(super) requests: usize,
    /// The tenant among whose unanswered requests the client's are counted; None if `requests` is 0, or if the client
    /// had no tenant.
    pub(super) tenant: Option<TenantId>,
    /// True if requests of the client were started, or replies sent to it, since the last search for clients whose
    /// requests take long (such as `BLPOP`), which are then left out of the count.
    pub(super) has_changed: bool,
}

/// The state of one client connection: who speaks, the requests that it has sent and their replies, and what its
/// next request waits for.
#[derive(Debug)]
pub struct Client {
    /// The connection's number, as `CLIENT ID` reports it.
    pub(super) number: u64,
    pub(super) protocol: Protocol,
    /// The database that the client has selected.
    pub(super) database: Database,
    pub(super) identity: Identity,
    /// Tenant whose connection limit counts this connection; None if it counts for no tenant.
    pub(super) seat: Option<TenantId>,
    /// True if the client speaks TLS.
    pub(super) secure: bool,
    /// The name of the tenant that the client's TLS certificate names; None if there is no such certificate, or if the
    /// quotas had no such tenant when the client connected.
    pub(super) certified: Option<Box<str>>,
    /// The time since which the client has had no tenant because it has not logged in, from which the login timeout
    /// counts; None for a client with a tenant.
    pub(super) stranger_since: Option<Timestamp>,
    pub(super) name: Vec<u8>,
    pub(super) library: [Vec<u8>; 2],
    /// The addresses of both ends of the connection, for `CLIENT LIST`.
    pub(super) address: Box<Address>,
    pub(super) opened: Timestamp,
    /// True if the client, an administrator's, is spared when clients are closed because all of them together hold too
    /// much memory (`CLIENT NO-EVICT`).
    pub(super) no_evict: bool,
    /// True if the client is sent a line for each request that it may see (`MONITOR`).
    pub(super) is_monitor: bool,
    /// The last command that the client has sent and was permitted to send, as `CLIENT LIST` shows it; None before the
    /// first.
    pub(super) last_command: Option<&'static Command>,
    /// The number of bytes of the client's request about clients (`CLIENT LIST`, `CLIENT INFO`) that is being
    /// carried out, and of its arguments alone, which the reply shows; zeros while there is none.
    pub(super) asking_bytes: [u32; 2],
    /// The requests of this client that `CLIENT PAUSE` holds back: none, writes, all, or all but `CLIENT` and `QUIT`.
    pub(super) paused: Paused,
    /// True while a `CLIENT PAUSE` holds back the client's next request, whether that is decoded, received but not
    /// decoded, or not even sent.
    pub(super) waits_by_order: bool,
    /// The number of failed attempts to log in on this connection; over HTTP, of those since the last one that
    /// succeeded. At 10 the connection is closed.
    pub(super) logins_failed: u8,
    pub(super) decoder: RequestDecoder,
    /// The state of the HTTP conversation; None if the client speaks RESP, and while its HTTP requests are
    /// being handled.
    pub(super) http: Option<Box<Conversation>>,
    /// True if the client speaks HTTP rather than RESP.
    pub(super) speaks_http: bool,
    /// The credentials (`Authorization` header, or none) of the last HTTP request, with the identity that they give.
    /// None if they were refused, if quotas have changed since, and for RESP. The field `identity` has the options of
    /// the single request as well.
    pub(super) http_login: Option<Box<HttpLogin>>,
    /// The time from which the timeout of an incomplete HTTP request counts; None if no request is incomplete.
    pub(super) http_since: Option<Timestamp>,
    pub(super) transaction: Option<Box<Transaction>>,
    /// The client's own connections to stores (private links), with its subscriptions, watched and tracked
    /// keys; None for most clients.
    pub(super) ties: Option<Box<Ties>>,
    /// Weir's own replies for the transaction in flight, to be put into the backend's reply to `EXEC`; None if
    /// it has none. A client has at most one such transaction in flight.
    pub(super) splice: Option<Box<Splice>>,
    pub(super) order: Order,
    /// The choice between tracks (groups of backend connections), so that requests of this client do not
    /// overtake each other.
    tracks: Tracks,
    /// True while later requests must wait until all requests in flight are answered, because a request must be alone
    /// in flight (it concerns several cores or changes the connection's state, for instance): the last one in flight,
    /// or the one that is held next.
    pub(super) barrier: bool,
    pub(super) held_request: Option<Box<HeldRequest>>,
    /// The slots to whose home cores (the cores through which their keys' requests pass) unanswered requests
    /// may have gone, as a bit set: bit n stands for all slots that are n modulo 64.
    handed_over: u64,
    /// The backends to which writes of the client may have gone, as a bit set: bit n stands for all backends
    /// whose numbers are n modulo 64. `WAIT` asks these.
    written: u64,
    /// The request in flight, such as `DBSIZE` or `SCAN`, that is sent to the primaries of a cluster rather
    /// than to a slot; None if there is none.
    pub(super) addressed: Option<Box<Addressed>>,
    /// The result of the first try of a request to primaries, while it is tried again because a node that was
    /// asked turned out to be no primary; else None.
    pub(super) first_try: Option<Box<FirstTry>>,
    /// True while the held request (kept to be handled later) waits for an answer about quotas, for another request of
    /// its tenant to be charged at its real cost, for the map of the cluster to be confirmed, or (`PUBLISH`) for
    /// earlier subscriptions; or while its keys are assigned to backends over several turns (passes of the shard's
    /// loop).
    pub(super) waits_for_quota: bool,
    /// The number of requests that weir answered before their backend did (at their deadline, for instance),
    /// and that the backend may still carry out.
    pub(super) unsettled: u32,
    /// True if weir answered a request before its store's reply came (at its deadline), and either the request had
    /// to be alone in flight, or the client has changed its RESP version since, which gives later requests other
    /// connections to stores: they could then overtake the request, which may still be carried out.
    pub(super) is_unsettled_alone: bool,
    /// The number of backend queues that each hold so many of this client's requests that they have asked for a pause.
    /// While there is one, no further request of the client is started.
    pub(super) congested: u16,
    /// The times at which the request that was decoded last arrived and was decoded; once all bytes are decoded, the
    /// time of arrival is that of the last bytes. While a held request (kept to be handled later) is handled, these are
    /// the times of that request.
    pub(super) times: Times,
    /// The times at which the client's undecoded bytes arrived, which have to wait to be decoded.
    pub(super) arrivals: Arrivals,
    pub(super) ending: Ending,
    /// True once it is known that the client's input ends behind bytes that are not read yet, since reading
    /// from it is paused.
    pub(super) end_is_ahead: bool,
    /// The time at which the segment (block of replies) that is being sent to the client was handed to its socket, or
    /// at which the client last accepted a part of it; None if none is being sent.
    pub(super) sending_since: Option<Timestamp>,
    /// The bytes of memory that are freed once the socket has sent the replies that it is sending now. Large replies
    /// that are also held elsewhere, such as those of hot keys, do not count.
    pub(super) sending_bytes: usize,
    /// Maximum number of bytes of replies that may wait for the client while it takes none because it writes the
    /// rest of a long pipeline first; 0 while the usual maximum holds.
    pub(super) backlog_bytes_max: usize,
    pub(super) last_heard: Timestamp,
    pub(super) reading_paused: bool,
    /// The number of the shard's turn (pass of its loop) to which `turn_left` belongs: the last one in which weir went
    /// on to decode bytes of this client.
    pub(super) turn: u32,
    /// The number of requests of this client that may still be started in the turn (pass of the shard's loop)
    /// whose number is `turn`.
    pub(super) turn_left: u32,
    /// The numbers of the client's unanswered requests, as the shard's schedule of clients counted them last.
    pub(super) counted: Counted,
    /// True while received bytes have not been decoded yet, because the client has to wait.
    pub(super) stalled: bool,
    /// True while the client is in the outbox's list of clients with replies to send.
    pub(super) listed_to_send: bool,
    /// True while the client is in the outbox's list of clients whose replies wait until the rest of their
    /// pipeline is answered.
    pub(super) listed_partial: bool,
    /// True while the client is in a list of clients that go on decoding at the end of this turn (pass of the
    /// shard's loop) or in the next.
    pub(super) listed_to_resume: bool,
}

impl Client {
    pub(super) fn new(number: u64, identity: Identity, now: Timestamp) -> Self {
        Self {
            number,
            protocol: Protocol::Resp2,
            database: Database::FIRST,
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
            is_monitor: false,
            last_command: None,
            asking_bytes: [0; 2],
            paused: Paused::Nothing,
            waits_by_order: false,
            logins_failed: 0,
            decoder: RequestDecoder::default(),
            http: None,
            speaks_http: false,
            http_login: None,
            http_since: None,
            transaction: None,
            ties: None,
            splice: None,
            order: Order::default(),
            tracks: Tracks::default(),
            barrier: false,
            held_request: None,
            addressed: None,
            first_try: None,
            handed_over: 0,
            written: 0,
            waits_for_quota: false,
            unsettled: 0,
            is_unsettled_alone: false,
            congested: 0,
            times: Times { came: now, began: now },
            arrivals: Arrivals::default(),
            ending: Ending::Open,
            end_is_ahead: false,
            sending_since: None,
            sending_bytes: 0,
            backlog_bytes_max: 0,
            last_heard: now,
            reading_paused: false,
            turn: 0,
            turn_left: REQUESTS_PER_TURN,
            counted: Counted::default(),
            stalled: false,
            listed_to_send: false,
            listed_partial: false,
            listed_to_resume: false,
        }
    }

    /// Returns the number of bytes received for requests that have not been decoded yet, over HTTP too.
    pub(super) fn held_bytes(&self) -> usize {
        self.decoder.held_bytes() + self.http.as_ref().map_or(0, |http| http.held_bytes())
    }

    /// Corrects the record of times of arrival after decoding. Bytes that wait from now on get the time of arrival of
    /// the request that was decoded last, which is theirs or an earlier one; if no bytes wait, the record is emptied.
    #[cold]
    pub(super) fn date_undecoded(&mut self) {
        if self.stalled {
            self.arrivals.correct(self.held_bytes(), self.times.came);
        } else {
            self.arrivals.clear();
        }
    }

    /// True if the client speaks HTTP.
    pub fn speaks_http(&self) -> bool {
        self.speaks_http
    }

    /// Returns the connection's number, as `CLIENT ID` reports it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the client's address as `MONITOR` shows it: `ip:port`, or `unix:` and the path of the Unix socket.
    pub fn address_in_monitor(&self) -> Cow<'_, str> {
        let Address { peer, is_unix, .. } = &*self.address;
        match peer.strip_suffix(":0").filter(|_| *is_unix) {
            Some(path) => Cow::Owned(format!("unix:{path}")),
            None => Cow::Borrowed(peer),
        }
    }

    /// Returns the time at which the request that is being handled arrived.
    pub fn came(&self) -> Timestamp {
        self.times.came
    }

    /// Returns the time at which the request that is being handled was decoded.
    pub fn began(&self) -> Timestamp {
        self.times.began
    }

    /// Returns the client's RESP version (RESP2 or RESP3).
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the database that the client has selected.
    #[inline]
    pub fn database(&self) -> Database {
        self.database
    }

    /// Returns the database that the client's next request will use: within a transaction the one selected
    /// there.
    pub fn database_of_next(&self) -> Database {
        self.transaction.as_ref().and_then(|transaction| transaction.database()).unwrap_or(self.database)
    }

    /// Sets the database of the client's next requests.
    pub fn select(&mut self, database: Database) {
        self.database = database;
    }

    /// Returns the client's identity: tenant, user, tier (importance), deadline.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the account that the client's requests are charged to; None for a client without a tenant.
    #[inline]
    pub fn payer(&self) -> Option<Payer> {
        self.identity.payer
    }

    /// True if replicas of a cluster may answer the client's reads, perhaps with old values.
    #[inline]
    pub fn reads_stale(&self) -> bool {
        self.identity.stale_reads
    }

    /// Returns the client's tenant in the short form that travels to other cores with a request (its id, and the
    /// version of the quotas). None for a client without a tenant.
    #[inline]
    pub fn asker(&self) -> Option<Asker> {
        self.identity.payer.map(Payer::asker)
    }

    /// Returns the number of requests whose replies have not been put into the client's output.
    #[inline]
    pub fn unanswered(&self) -> usize {
        self.order.unanswered()
    }

    /// Takes the next place in the order of the client's replies, for a request whose reply is changed as `rewrite`
    /// says. Returns the sequence number of that place. `charge` is the price taken for it (None if it has none), which
    /// is corrected to the real price with the reply.
    #[inline]
    pub fn expect_reply(&mut self, rewrite: Rewrite, charge: Option<Charge>) -> u32 {
        self.order.expect_reply(rewrite, charge)
    }

    /// Sets which of the client's next requests get replies (`CLIENT REPLY`).
    pub fn set_replies(&mut self, replies: Replies) {
        self.order.set_replies(replies);
    }

    /// Makes sure that the reply to the client's next request is sent, even if replies are switched off.
    pub fn send_next_reply(&mut self) {
        self.order.send_next();
    }

    /// Returns which of the client's next requests get replies (`CLIENT REPLY`).
    pub fn replies(&self) -> Replies {
        self.order.replies()
    }

    /// Chooses and records the track (group of backend connections) of the client's next request; `wanted` is
    /// the track that the request would take if none were in flight. False, with nothing recorded, if it must
    /// wait for those in flight.
    #[inline]
    pub fn take_track(&mut self, wanted: Track) -> bool {
        let (first, next) = self.order.sequences();
        self.tracks.choose_and_take(wanted, first, next)
    }

    /// True if the client's next request is the second try of one that some nodes of a cluster carried out in the
    /// first, so that it is paid for, and a refusal must not claim that nothing was done. It is then put on the track
    /// (group of backend connections) of the first try.
    #[cold]
    pub fn goes_on_paid(&mut self) -> bool {
        let (_, next) = self.order.sequences();
        let first_try = self.first_try.as_ref().filter(|first_try| first_try.is_followed_by(next));
        first_try.is_some_and(|first_try| first_try.done.is_some()) && self.take_track(self.tracks.current())
    }

    /// Returns the route of an admitted request of this client: slot, backend, RESP version, track (set of
    /// connections) and database.
    #[inline]
    pub fn route_to(&self, slot: u16, backend: BackendId) -> Route {
        Route {
            slot,
            backend,
            protocol: self.protocol,
            track: self.tracks.current(),
            database: self.database,
        }
    }

    /// Builds the envelope that goes with a request to a backend: destination of the reply, route, tenant, tier
    /// (importance), deadline. The request goes to `backend`; `nature` says whether it writes and what class it has,
    /// and `touches` which keys it is about. `charge` is the price taken for it, from which the envelope's weight
    /// follows; None (weight 0) if it has none.
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

    /// Returns the time after which a reply to the request being handled is useless; `Timestamp::MAX` without
    /// a deadline.
    #[inline]
    pub fn deadline(&self) -> Timestamp {
        self.identity.deadline.map_or(Timestamp::MAX, |deadline| self.times.came.after(deadline))
    }

    /// Returns the time at which weir answers the request being handled although its store has not replied;
    /// `Timestamp::MAX` without a deadline, or if the client wants to have the reply whenever it comes.
    pub fn deadline_obeyed(&self) -> Timestamp {
        match self.identity.chosen.overdue {
            Overdue::Answered => self.deadline(),
            Overdue::Awaited => Timestamp::MAX,
        }
    }

    /// True if a new request could overtake one that weir answered before its backend did, and that the
    /// backend may still carry out. `is_alone` says that the new request waits for all earlier ones and takes
    /// other backend connections.
    #[inline]
    pub fn is_unsettled(&self, is_alone: bool) -> bool {
        self.unsettled > 0 && (is_alone || self.is_unsettled_alone)
    }

    /// Copies a request of this client, with the client's identity and the time of arrival, to be handled
    /// later. Returns the copy.
    pub fn held(&self, arguments: &Arguments<'_>) -> HeldRequest {
        HeldRequest::new(arguments, &self.identity, self.times)
    }

    /// Returns the transaction in which requests are queued since `MULTI`; None outside of a transaction.
    #[inline]
    pub fn transaction(&mut self) -> Option<&mut Transaction> {
        self.transaction.as_deref_mut()
    }

    /// Starts a transaction (`MULTI`). False if the client is already in one.
    pub fn begin_transaction(&mut self) -> bool {
        let begins = self.transaction.is_none();
        self.transaction.get_or_insert_default();
        begins
    }

    /// Takes the transaction out of the client, which ends the queueing of requests (at `EXEC` or `DISCARD`); None if
    /// the client is in none.
    pub fn take_transaction(&mut self) -> Option<Box<Transaction>> {
        self.transaction.take()
    }

    /// Puts a transaction back that [`Self::take_transaction`] has taken, so that further requests are queued
    /// in it.
    pub fn put_back_transaction(&mut self, transaction: Box<Transaction>) {
        self.transaction = Some(transaction);
    }

    /// Keeps weir's own replies within a transaction (`splice`) until the backend's reply to the transaction
    /// arrives.
    pub fn keep_splice(&mut self, splice: Splice) {
        self.splice = Some(Box::new(splice));
    }

    /// Marks the client's transaction, if it is in one, so that `EXEC` refuses it because a request of it could
    /// not be queued.
    pub fn poison_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.poison();
        }
    }

    /// True while `CLIENT PAUSE` holds back some, but not all, of the client's requests.
    /// [`Client::is_held_back`] decides about each request.
    #[inline]
    pub fn is_paused_in_part(&self) -> bool {
        matches!(self.paused, Paused::Writes | Paused::AllButClient)
    }

    /// Switches the client to another RESP version. Each version has backend connections of its own, so
    /// requests that weir answered before their backends did, and that may still be carried out, could be
    /// overtaken from now on.
    pub(super) fn change_protocol(&mut self, protocol: Protocol) {
        self.is_unsettled_alone |= self.unsettled > 0 && protocol != self.protocol;
        self.protocol = protocol;
    }

    /// Records that weir answered a request that its backend may still carry out. Later requests are bound to the same
    /// track (group of backend connections), so that they cannot overtake it; not if that is the track for reads from
    /// replicas.
    pub(super) fn handle_unsettled(&mut self) {
        self.unsettled += 1;
        // With a held request, the barrier is that request's, and the one in flight did not have to be alone.
        self.is_unsettled_alone |= self.barrier && self.held_request.is_none();
        self.tracks.pin(true);
    }

    /// Records that a request which weir answered before its backend did can no longer be carried out. Once
    /// none is left, the client's requests may change tracks (groups of backend connections).
    pub(super) fn handle_settled(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
        self.is_unsettled_alone &= self.unsettled > 0;
        self.tracks.pin(self.unsettled > 0);
    }

    /// True if earlier unanswered requests of the client may have gone to the home core (the core through which a key's
    /// requests pass) of `slot`. A read must then go there too, as a copy of a hot key's reply on this core may be
    /// older than what they write. May be true without need, as slots share bits. The request that is asked about has
    /// taken its place in the order of replies; if no other is unanswered, the record is emptied first. `part` is the
    /// number of that request's part, 0 if it was not split.
    #[inline]
    pub fn has_handed_over(&mut self, slot: u16, part: u16) -> bool {
        // With a later part, earlier parts of the same request may be under way.
        if self.unanswered() <= 1 && part == 0 {
            self.handed_over = 0;
        }
        self.handed_over & slot_bit(slot) != 0
    }

    /// Records that a request of the client goes to the home core (the core through which a key's requests
    /// pass) of a slot, or with None to any number of cores.
    #[inline]
    pub fn hand_over(&mut self, slot: Option<u16>) {
        self.handed_over |= slot.map_or(u64::MAX, slot_bit);
    }

    /// Records that a request of this `nature` goes to a backend, or with None to any number of them: a write
    /// counts for the client's next `WAIT`.
    #[inline]
    pub fn note_write(&mut self, nature: Nature, backend: Option<BackendId>) {
        if nature.effect() == Effect::Write {
            self.written |= backend.map_or(u64::MAX, backend_bit);
        }
    }

    /// True if writes of the client may have gone to a backend, or if the client has written nothing yet.
    /// May be true without need, as backends share bits.
    pub fn may_have_written(&self, backend: BackendId) -> bool {
        self.written == 0 || self.written & backend_bit(backend) != 0
    }

    /// Makes later requests of the client wait until all requests in flight are answered.
    pub fn hold_back_later(&mut self) {
        self.barrier = true;
    }

    /// Records the client's last command, which `CLIENT LIST` shows.
    #[inline]
    pub const fn note_command(&mut self, command: &'static Command) {
        self.last_command = Some(command);
    }

    /// Records that the client's own request about clients (such as `CLIENT LIST`), with these `arguments`,
    /// is being carried out: until it is answered, `CLIENT LIST` and `CLIENT INFO` show its size in the
    /// client's line (`qbuf`, `argv-mem`). `None` records that it is answered.
    pub fn note_asking(&mut self, arguments: Option<&Arguments<'_>>) {
        self.asking_bytes = arguments.map_or([0; 2], |arguments| {
            let words: usize = arguments.iter().map(<[u8]>::len).sum();
            [arguments.frame().len() as u32, words as u32]
        });
    }

    /// True if the client has sent `MONITOR`, and is shown the requests that clients of its tenant (an
    /// administrator: all clients) send.
    pub fn is_monitor(&self) -> bool {
        self.is_monitor
    }

    /// Sets whether the client is spared when clients are closed for memory (`CLIENT NO-EVICT`), as only clients of
    /// administrators are.
    pub fn set_no_evict(&mut self, no_evict: bool) {
        self.no_evict = no_evict;
    }

    /// True while a request of the client is unanswered or held (kept to be handled later), or replies to the
    /// client are not written to its socket yet.
    pub(super) fn is_owed(&self) -> bool {
        self.unanswered() > 0 || self.held_request.is_some() || self.has_output()
    }

    /// True while replies to the client that may be sent now are not written to its socket yet.
    pub(super) fn has_output(&self) -> bool {
        !self.order.output.is_empty() || self.sending_since.is_some()
    }

    /// True while the client has to be resumed later, because received bytes wait to be decoded, a request is held
    /// (kept to be handled later), or later requests must not be sent before earlier ones are answered.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.stalled || self.held_request.is_some() || self.barrier
    }

    /// True if a `CLIENT PAUSE` that does not hold back all requests holds back the given request. `is_queued`
    /// says that the request is about to be queued in a transaction. A pause of writes lets such requests pass,
    /// and holds back their `EXEC` if one of them may write. `scripts` knows the scripts that declare that they
    /// write nothing.
    pub fn is_held_back(
        &self,
        (command, handling): (&Command, Handling),
        is_queued: bool,
        arguments: &Arguments<'_>,
        scripts: &ScriptBoard,
    ) -> bool {
        if self.paused == Paused::AllButClient {
            // The request inside of `QOS CALL` is asked about by itself.
            let is_call = command.name == "qos"
                && arguments.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"call"));
            return !(command.name == "quit" || command.name.starts_with("client") || is_call);
        }
        match handling {
            Handling::Local(LocalCommand::Exec) => {
                self.transaction.as_ref().is_some_and(|transaction| transaction.may_write())
            }
            _ => !is_queued && is_held_as_write(command, arguments, scripts),
        }
    }

    /// True while a request of the client, decoded or not, waits for the end of a `CLIENT PAUSE`. False for a
    /// paused client that has sent nothing.
    pub(super) fn is_held_by_pause(&self) -> bool {
        self.waits_by_order && (self.stalled || self.held_request.is_some())
    }

    /// True if the client's next request may not be started yet: it waits for earlier ones, for room in a
    /// backend's queue, for a quota, for the end of a pause or for the next turn, or too many requests or
    /// bytes of replies are outstanding. `room` limits the bytes of replies that may wait for the client or
    /// are expected; `pipeline_most` is the number of unanswered requests that it may have.
    #[inline]
    pub(super) fn must_wait(&self, room: ReplyRoom, pipeline_most: usize) -> bool {
        self.barrier
            || self.congested > 0
            || self.waits_for_quota
            || self.waits_by_order
            || self.turn_left == 0
            || self.unanswered() >= pipeline_most
            || self.order.waiting_bytes() > room.usual && self.is_backlog_full()
            || self.unanswered() > 0 && self.order.foreseen_bytes() > room.foreseen
    }

    /// True if no replies beyond the usual maximum may be added to those that wait for the client. False only while
    /// `backlog_bytes_max` permits more (the client takes none until it has written a long pipeline), at most that many
    /// bytes wait, and fewer than 8 requests are in flight, whose replies may be long.
    fn is_backlog_full(&self) -> bool {
        self.backlog_bytes_max == 0
            || self.unanswered() >= BACKLOG_PIPELINE_MAX
            || self.order.waiting_bytes() > self.backlog_bytes_max
    }

    /// Returns the bytes of memory that the client takes, with its buffers, queued requests and TLS state.
    pub fn memory_bytes(&self) -> usize {
        let held = self.held_request.as_ref().map_or(0, |held| held.memory_bytes());
        let queued = self.transaction.as_ref().map_or(0, |transaction| transaction.memory_bytes());
        let spliced = self.splice.as_ref().map_or(0, |splice| splice.memory_bytes());
        let again = self.addressed.as_ref().and_then(|addressed| addressed.again.as_ref());
        let said = self.first_try.as_ref().and_then(|first_try| first_try.done.as_ref());
        let held = held + again.map_or(0, |again| again.memory_bytes()) + said.map_or(0, |said| said.1.len());
        let names = self.name.len() + self.library.iter().map(Vec::len).sum::<usize>();
        let subscriptions = self.ties.as_ref().and_then(|ties| ties.subscriptions.as_ref());
        let subscribed = subscriptions.map_or(0, |subscriptions| subscriptions.memory_bytes());
        let tracking = self.ties.as_ref().and_then(|ties| ties.tracking.as_ref());
        let inbox = self.ties.as_ref().and_then(|ties| ties.inbox.as_ref());
        let tracked = tracking.map_or(0, |tracking| tracking.memory_bytes())
            + inbox.map_or(0, |inbox| inbox.memory_bytes());
        let tls = match (self.secure, self.sending_since) {
            (false, _) => 0,
            (true, None) => TLS_CLIENT_BYTES,
            (true, Some(_)) => TLS_CLIENT_BYTES + TLS_SEND_BYTES_MAX,
        };
        size_of::<Self>()
            + tls
            + self.decoder.memory_bytes()
            + self.arrivals.memory_bytes()
            + self.http.as_ref().map_or(0, |http| http.memory_bytes())
            + self.order.waiting_bytes()
            + self.order.joining_bytes
            + self.sending_bytes
            + self.order.entries_bytes()
            + held
            + queued
            + spliced
            + subscribed
            + tracked
            + names
    }

    /// Frees the unused memory that a long pipeline of the client left behind.
    pub(super) fn tidy(&mut self) {
        self.order.tidy();
        self.decoder.tidy();
        self.arrivals.tidy();
    }
}

impl Client {
    /// True if the client has ties to stores: connections of its own (private links), watched keys,
    /// subscriptions, tracked keys, invalidation messages that it takes for other clients (CLIENT TRACKING
    /// REDIRECT), or a blocking command that was ended at its store so that the client can move to another
    /// process.
    #[inline]
    pub fn is_tied(&self) -> bool {
        self.ties.is_some()
    }

    /// Returns the client's ties to stores (see [`Self::is_tied`]); None if it has none.
    pub fn ties(&mut self) -> Option<&mut Ties> {
        self.ties.as_deref_mut()
    }

    /// Returns the client's ties (own connections, watched or tracked keys, subscriptions) to stores, and
    /// creates an empty record if it has none.
    pub fn ties_mut(&mut self) -> &mut Ties {
        self.ties.get_or_insert_default()
    }

    /// Counts the client's undecoded bytes and held request as commands that may subscribe, as long as stores have not
    /// acknowledged its last command about subscriptions: programs tend to send several such commands in a row, and a
    /// message (`PUBLISH`) of the tenant to any channel has to wait for them.
    #[cold]
    pub fn count_unread_subscriptions(&mut self, board: &Arc<SubscriptionBoard>) {
        let tenant = self.identity.tenant_id();
        let is_behind = self.held_bytes() > 0 || self.held_request.is_some();
        let Some(ties) = self.ties.as_deref_mut() else { return };
        if is_behind && ties.subscriptions.as_ref().is_some_and(|known| known.is_pending()) {
            ties.unread.get_or_insert_with(|| board.begin_unread(tenant));
        } else if ties.unread.take().is_some() {
            self.release_ties();
        }
    }

    /// True if the client's blocking command was ended at its store without a reply to the client, because the client
    /// is to move to another process or to be closed.
    pub fn is_withdrawn(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.withdrawn.is_some())
    }

    /// True if stores track keys for the client (`CLIENT TRACKING`), or have been asked to and not replied yet.
    pub fn tracks_keys(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.tracking.is_some())
    }

    /// True if the client is subscribed to channels or patterns, even if stores have not acknowledged that yet.
    pub fn is_subscribed(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.subscriptions.is_some())
    }

    /// True if the client is sent messages besides replies: it is subscribed to channels, or takes the
    /// invalidation messages of other clients.
    pub fn is_messaged(&self) -> bool {
        self.ties.as_ref().is_some_and(|ties| ties.subscriptions.is_some() || ties.inbox.is_some())
    }

    /// True if more than the permitted bytes (setting `subscriber_slow_bytes`) have waited for the client for the
    /// permitted time (`subscriber_slow_time`) or longer. Called for clients that are sent messages; records the time
    /// since which so many bytes have waited.
    pub(super) fn is_slow_subscriber(&mut self, settings: &ShardSettings, now: Timestamp) -> bool {
        let is_behind = self.order.waiting_bytes() > settings.clients.subscriber_slow_bytes;
        let Some(ties) = self.ties.as_mut() else { return false };
        if !is_behind {
            ties.slow_since = None;
            return false;
        }
        let since = *ties.slow_since.get_or_insert(now);
        now.since(since) >= settings.clients.subscriber_slow_time
    }

    /// Returns the client's watch of keys (`WATCH`); None if it watches none, or if the watch is broken, so
    /// that `EXEC` will fail.
    pub fn watch(&self) -> Option<Watch> {
        self.ties.as_ref()?.watch.filter(|watch| !watch.is_broken)
    }

    /// True if the client's watch of keys is broken, so that its next `EXEC` fails.
    pub fn is_watch_broken(&self) -> bool {
        self.ties.as_ref().and_then(|ties| ties.watch).is_some_and(|watch| watch.is_broken)
    }

    /// Frees the record of the client's ties (own connections, watched or tracked keys, subscriptions) to
    /// stores if it is empty.
    pub fn release_ties(&mut self) {
        let is_free = |ties: &Ties| {
            ties.link.is_none()
                && ties.watch.is_none()
                && ties.subscriptions.is_none()
                && ties.unread.is_none()
                && ties.tracking.is_none()
                && ties.withdrawn.is_none()
                && ties.inbox.is_none()
        };
        if self.ties.as_deref().is_some_and(is_free) {
            self.ties = None;
        }
    }

    /// True if the client speaks RESP2 and is subscribed: it may then send only commands about subscriptions, `PING`,
    /// `QUIT` and `RESET`.
    pub fn is_subscriber_only(&self) -> bool {
        self.protocol == Protocol::Resp2
            && self.ties.as_ref().is_some_and(|ties| ties.subscriptions.is_some())
    }
}

const fn slot_bit(slot: u16) -> u64 {
    1 << (slot % 64)
}

const fn backend_bit(backend: BackendId) -> u64 {
    1 << (backend.0 % 64)
}
