//! The client side of one shard: connected clients, the requests that each has sent, and its replies in the
//! order of its requests. The module borrows `shard/admission` where an identity needs an account, and
//! hands the charges of answered requests to its caller, which settles them. It never touches a connection to
//! a backend.
//!
//! | what | file |
//! |---|---|
//! | one client connection; the table of all | `client.rs`, `registry.rs` |
//! | the identity of a client: tenant, tier, deadline | `identity.rs`, `handshake.rs`, `request_options.rs` |
//! | a buffer for the rest of a large request | `large_request.rs` |
//! | whether a client's next request may be taken on | `turns.rs`, `held.rs`, `track.rs`, `pause.rs`, `pauses.rs` |
//! | times of arrival of bytes that wait to be decoded | `arrivals.rs` |
//! | requests queued since `MULTI` | `transaction.rs` |
//! | private links to stores, watched keys | `ties.rs` |
//! | keys that stores track for the client | `key_tracking.rs` |
//! | links on which a client takes the invalidation messages of others | `inbox.rs` |
//! | channels and patterns, and the stores that their messages come from | `subscriptions.rs` |
//! | clients by the shared channels that they are subscribed to | `listeners.rs` |
//! | requests that wait until the map of a cluster is confirmed | `map_confirmation.rs` |
//! | messages that wait for subscriptions that came before | `publications.rs` |
//! | patterns and key prefixes that clients have at stores | `filters.rs` |
//! | clients that speak HTTP | `http.rs`, `http_login.rs` |
//! | replies to clients | `answer.rs`, `order.rs`, `cursor.rs` |
//! | limits on connections and on the memory of clients | `seats.rs`, `memory.rs` |
//! | the end of a connection, or its move to another process | `leaving.rs`, `abandoned.rs`, `moving.rs` |
//! | prices of requests that were answered before their stores replied | `late_prices.rs` |
//! | clients that watch the requests of others (`MONITOR`) | `monitor.rs` |
//! | `CLIENT LIST`, `CLIENT KILL` and `CLIENT PAUSE` | `client_list.rs`, `client_filter.rs` |
//! | requests that only the control executor can answer | `question.rs` |

mod abandoned;
mod answer;
mod arrivals;
mod client;
pub mod client_filter;
mod client_list;
mod cursor;
mod filters;
mod handshake;
mod held;
mod http;
mod http_login;
mod identity;
mod inbox;
mod key_tracking;
mod large_request;
mod late_prices;
mod leaving;
mod listeners;
mod map_confirmation;
mod memory;
mod monitor;
mod moving;
mod order;
pub mod pause;
mod pauses;
mod publications;
mod question;
mod registry;
mod request_options;
mod seats;
mod subscriptions;
mod ties;
mod track;
mod transaction;
mod turns;

pub use client::{Address, Client};
pub use cursor::split_cursor;
pub use filters::Filter;
pub use identity::{Chosen, Identity};
pub use inbox::{INVALIDATIONS, Inbox, NO_TARGET, TARGET_GONE};
pub use key_tracking::{KeyTracking, NOT_TRACKING, TrackingReply};
pub use listeners::SharedMessage;
pub use map_confirmation::PATIENCE as MAP_PATIENCE;
pub use moving::{Readiness, Session};
pub use order::{Replies, Rewrite};
pub use question::{Question, ScopeLimit, StoreView};
pub use request_options::RequestOptions;
pub use subscriptions::{
    CHANNEL_BYTES_MAX, CHANNELS_MAX, Delivered, FeedLoss, FeedRequest, Moved, Named, Origin, Subscriptions,
};
pub use ties::{Watch, Withdrawn};
pub use transaction::{LocalRequest, NotQueued, Splice, Transaction};
pub use turns::Progress;

use std::collections::VecDeque;
use std::time::Duration;

use super::admission::{AdmissionStage, Charge, FREE_BYTES, Payer};
use super::counters::Counter;
use super::env::Env;
use super::gather::{Gathers, Join};
use super::request::{PrivateId, ReplyTo};
use super::settings::ShardSettings;
use super::tracking_redirect::RedirectMessage;
use crate::config::Quotas;
use crate::protocol::RequestLimits;
use crate::protocol::command::Effect;
use crate::values::limits::HOT_REPLY_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{ClientId, ShardId, StoreVersion, Timestamp};
use abandoned::Abandoned;
use answer::Outbox;
use filters::Filters;
use held::{Resumed, Times};
use late_prices::LatePrices;
use listeners::Listeners;
use map_confirmation::MapConfirmation;
use memory::Holdings;
use monitor::Monitor;
use pause::Pauses;
use publications::Publications;
use question::Questions;
use registry::Clients;
use transaction::WaitingExec;
use turns::Turns;

/// Maximum number of bytes of replies that usually may wait for one client (256 KiB). While more wait, none of its
/// further requests are started.
const REPLIES_BYTES_PAUSE: usize = 256 * 1024;
/// Time without taking a byte of its replies after which more replies than usual may wait for a client. Such
/// a client probably writes a whole pipeline before it reads a reply, as many client libraries do, and would
/// otherwise never get to the end. A client that only reads slowly takes some bytes within that time.
const UNREAD_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of requests in flight of a client while more replies than usual wait for it, because it takes none;
/// its further requests wait.
const BACKLOG_PIPELINE_MAX: usize = 8;
/// Number of requests of a client that may be in flight until it is known how large their replies are;
/// further ones wait.
const REQUESTS_AT_FIRST: usize = 64;
/// Factor by which the maximum number of bytes of replies that may wait for a client grows each time that as many wait,
/// once the client has taken none for a second. It grows to about three quarters of the number at which the client is
/// closed.
const BACKLOG_GROWTH: usize = 4;

/// Maximum numbers of bytes of replies for one client above which no more of its requests are started.
#[derive(Clone, Copy, Debug)]
struct ReplyRoom {
    /// Maximum number of bytes that usually may wait: for the client to read them, or for an earlier reply to come.
    usual: usize,
    /// Maximum number of bytes that may wait for a client that reads nothing while it has more requests to send. The
    /// client is allowed so many only in steps.
    unread: usize,
    /// Maximum number of bytes that wait for the client, together with those of the replies that are expected for its
    /// requests in flight. The rest, up to the number at which the client is closed, is for replies that are larger
    /// than expected.
    foreseen: usize,
}

impl ReplyRoom {
    /// Limits that no client reaches: replies never keep requests from being started.
    const UNLIMITED: Self = Self { usual: usize::MAX, unread: usize::MAX, foreseen: usize::MAX };

    /// Returns the limits for a client that is closed if more than `bytes_max` bytes of replies wait for it.
    fn within(bytes_max: usize) -> Self {
        // Leaves room for one kept reply: the last request that is taken on may be answered at once with one.
        let room = bytes_max.saturating_sub(HOT_REPLY_BYTES_MAX);
        Self {
            usual: room.min(REPLIES_BYTES_PAUSE),
            unread: room / 4 * 3,
            foreseen: room.max(bytes_max / 2) / 4 * 3,
        }
    }

    /// Returns the size in bytes that a reply is expected to have before any reply has come. With this size,
    /// 64 requests may be in flight; with each reply that turns out small, more may.
    const fn first_expected(self) -> usize {
        self.foreseen / REQUESTS_AT_FIRST
    }
}

/// The clients of one shard, with everything that the shard keeps for them.
#[derive(Debug)]
pub struct ClientStage {
    clients: Clients,
    opened: u64,
    /// The size limits of a request from a client that has logged in.
    limits: RequestLimits,
    reply_room: ReplyRoom,
    /// The schedule of clients: which of them may have requests decoded in this turn (pass of the shard's
    /// loop) or the next.
    turns: Turns,
    /// The held request (kept to be handled later) that is being handled; None at any other time.
    resumed: Option<Resumed>,
    /// The clients that have replies to send, now or once the rest of their pipelines is answered.
    outbox: Outbox,
    gathers: Gathers,
    /// Charged requests in flight whose replies no client awaits any more; they are charged their real price
    /// when the replies come.
    abandoned: Abandoned,
    /// Charged requests that were answered before their stores replied; the rest of their price is charged once the
    /// stores have replied.
    late_prices: LatePrices,
    /// Requests that a shard cannot answer by itself (`INFO`, `CLIENT LIST` and the like), for the control executor
    /// (the thread that collects data of all shards).
    questions: Questions,
    /// Clients whose next request waits until all primaries of the cluster have confirmed the map of its slots.
    map_confirmation: MapConfirmation,
    publications: Publications,
    filters: Box<Filters>,
    /// Clients by the channels and patterns that they are subscribed to, as far as weir has one subscription
    /// to them for all its clients.
    listeners: Box<Listeners>,
    /// The accounts of clients whose transactions were discarded since the last call of
    /// [`Self::take_unpaid`], with the bytes of the queued requests, which are still to be charged.
    unpaid: Vec<(Payer, usize)>,
    /// The pauses in force (`CLIENT PAUSE`).
    pauses: Pauses,
    /// The buffer that collects weir's own replies while a transaction is carried out; None at any other
    /// time.
    captured: Option<Vec<u8>>,
    /// The memory that clients of this core held when it was measured last.
    holdings: Holdings,
    /// True if there may be clients that have yet to log in. While it is false, the check for login timeouts
    /// is skipped.
    watch_strangers: bool,
    /// True if there may be clients with an incomplete HTTP request. While it is false, the check for slow
    /// requests is skipped.
    watch_http: bool,
    draining: bool,
    /// True while a request is handled under another identity than its connection's: that of a `QOS CALL`, or the one
    /// that the client had when the request, which was held since, arrived.
    has_own_terms: bool,
    /// The identities that connections have for all their requests, while a request of them is handled under another:
    /// that of the request's connection, and behind it the one under which the `QOS CALL` around the request is
    /// handled, if that was held (kept to be handled later). Empty at any other time.
    own_identities: Vec<Identity>,
    /// True if the request being handled has itself changed its client's identity (`AUTH`, `RESET`), so that the
    /// identity of before must not be restored after the request.
    is_identity_changed: bool,
    /// Clients that are sent a line for each request that they may see (`MONITOR`).
    monitors: Vec<Monitor>,
    /// Connections to stores that clients had for themselves (private links) until they disconnected, and that this
    /// core has yet to take back, or close.
    left_links: Vec<PrivateId>,
    /// Messages to cores about clients that take the invalidation messages of other clients (`CLIENT TRACKING ...
    /// REDIRECT`), which wait to be sent.
    redirects: VecDeque<(ShardId, RedirectMessage)>,
    /// The Redis version of the backends (the lowest, if they differ), which `HELLO` and `LOLWUT` show to clients.
    store_version: StoreVersion,
}

impl ClientStage {
    /// Creates the client side of a shard, without any clients; `settings` has the limits on requests, replies
    /// and queues.
    pub fn new(settings: &ShardSettings) -> Self {
        Self {
            reply_room: ReplyRoom::within(settings.output_bytes_max),
            clients: Clients::default(),
            opened: 0,
            limits: RequestLimits::trusted(settings.request_bytes_max),
            turns: Turns::new(settings),
            resumed: None,
            outbox: Outbox::default(),
            gathers: Gathers::default(),
            abandoned: Abandoned::default(),
            late_prices: LatePrices::default(),
            questions: Questions::default(),
            map_confirmation: MapConfirmation::default(),
            publications: Publications::default(),
            filters: Box::default(),
            listeners: Box::default(),
            unpaid: Vec::new(),
            pauses: Pauses::default(),
            captured: None,
            holdings: Holdings::default(),
            watch_strangers: false,
            watch_http: false,
            draining: false,
            has_own_terms: false,
            own_identities: Vec::new(),
            is_identity_changed: false,
            monitors: Vec::new(),
            left_links: Vec::new(),
            redirects: VecDeque::new(),
            store_version: StoreVersion::default(),
        }
    }

    /// Registers a new connection, and returns its id. If the quotas have a tenant for clients that have not logged in,
    /// and that tenant may have one more connection, the client gets it. While the shard drains (weir is about to end),
    /// the connection is closed at once.
    pub fn open(&mut self, env: &mut Env, now: Now) -> ClientId {
        env.counters.add(Counter::ClientsOpened, 1);
        self.opened += 1;
        let shards = u64::from(env.settings.topology.shards());
        let number = (self.opened - 1) * shards + u64::from(env.settings.id.0) + 1;
        let id = self.clients.open(number, Identity::default(), now.monotonic);
        self.seat_stranger(env, id, now);
        if self.draining {
            self.stop_listening(env, id);
        }
        id
    }

    /// Stores a client's addresses, for `CLIENT LIST`.
    pub fn note_address(&mut self, id: ClientId, address: Address) {
        if let Some(client) = self.clients.get(id) {
            *client.address = address;
        }
    }

    /// Returns the state of a client that the caller knows to be connected. Panics if the client has
    /// disconnected.
    #[inline]
    pub fn client(&mut self, id: ClientId) -> &mut Client {
        self.clients.at(id)
    }

    /// Returns the state of a client, or None if it has disconnected.
    #[inline]
    pub fn find(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get(id)
    }

    /// Returns the number of connected clients.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns the number of requests that were split into parts and whose joined reply is not complete yet.
    pub fn gathers_open(&self) -> usize {
        self.gathers.len()
    }

    /// Returns the number of charged requests in flight whose clients have disconnected, or which were answered
    /// before their stores replied.
    pub fn requests_abandoned(&self) -> usize {
        self.abandoned.len() + self.late_prices.len()
    }

    /// Returns the charged requests that were answered before their stores replied.
    pub fn late_prices(&mut self) -> &mut LatePrices {
        &mut self.late_prices
    }

    /// Returns the number of segments (blocks of replies) that are being written to clients' sockets.
    pub fn sends_in_flight(&self) -> usize {
        self.outbox.in_flight()
    }

    /// Sets the backends' version that weir shows to clients from now on (`HELLO`, for instance).
    pub fn handle_store_version(&mut self, version: StoreVersion) {
        self.store_version = version;
    }

    /// Returns the backends' version that weir shows to clients, the lowest of them.
    pub fn store_version(&self) -> StoreVersion {
        self.store_version
    }

    /// Applies new quotas to all clients. A client keeps its tenant by name; if the tenant is gone, the client counts
    /// as one that has not logged in. If the rights of a client in a transaction have changed, its `EXEC` is refused.
    /// Returns the clients whose rights have changed and that wait in a blocking command, are subscribed, have keys
    /// tracked or have sent `MONITOR`; the caller closes them. `waits` says whether a blocking command waits on a
    /// private link (unshared connection to a store).
    pub fn handle_quotas(
        &mut self,
        env: &Env,
        admission: &mut AdmissionStage,
        (after, waits): (&Quotas, impl Fn(PrivateId) -> bool),
        now: Now,
    ) -> Vec<ClientId> {
        let mut to_close = Vec::new();
        let before = &env.quotas;
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            let waits = self.link_at_work(id).is_some_and(&waits);
            let client = self.clients.at(id);
            // Queued requests were permitted by the quotas before.
            if let Some(transaction) = &mut client.transaction
                && !client.identity.keeps_its_rights(before, after)
            {
                transaction.poison();
            }
            // A wait or a subscription goes on, so it has to be permitted anew.
            let is_over = (waits || client.is_subscribed() || client.tracks_keys() || client.is_monitor)
                && !client.identity.keeps_its_rights(before, after);
            // The new quotas may not accept the HTTP token that was right before.
            client.http_login = None;
            if let Some(partition) = client.held_request.as_mut().and_then(|held| held.partition.as_mut()) {
                partition.forget_permission();
            }
            let held = client.held_request.as_mut().map(|held| &mut held.identity);
            // The copy of a request for a second try becomes a held request.
            let again = client.addressed.as_mut().and_then(|addressed| addressed.again.as_mut());
            let again = again.map(|again| &mut again.identity);
            let exec = client.transaction.as_mut().and_then(|transaction| transaction.identity_of_exec());
            for identity in std::iter::once(&mut client.identity).chain(held).chain(again).chain(exec) {
                *identity = identity.carried_over(before, after, admission);
            }
            if is_over {
                to_close.push(id);
            }
            self.keep_seat(env, id, now);
        }
        // A client whose tenant is gone does not wait for the end of that tenant's pause.
        if !self.pauses.is_empty() {
            self.apply_pauses(after);
        }
        to_close
    }

    /// Starts to drain, as weir is about to end: every connection that is opened from now on is closed at once.
    pub fn refuse_newcomers(&mut self) {
        self.draining = true;
    }

    /// True once weir drains (is about to end), so that it accepts no more clients.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Gives a client another identity for one request: that of a `QOS CALL`, or the one that it had when a held
    /// request, or an `EXEC` that has waited, arrived. Keeps its own identity until [`Self::end_acting`].
    pub fn begin_acting(&mut self, id: ClientId, identity: &Identity) {
        let own = std::mem::replace(&mut self.clients.at(id).identity, identity.clone());
        self.has_own_terms = own != *identity;
        self.is_identity_changed = false;
        self.own_identities.push(own);
    }

    /// True while a request is handled under another identity than its connection's: that of a `QOS CALL`, or the one
    /// that the client had when the request, which was held since, arrived.
    pub fn has_own_terms(&self) -> bool {
        self.has_own_terms
    }

    /// Restores a client's own identity after [`Self::begin_acting`] gave it another for one request, unless the
    /// request itself changed the identity (AUTH, RESET).
    pub fn end_acting(&mut self, id: ClientId) {
        self.has_own_terms = false;
        if let Some(own) = self.own_identities.pop()
            && let Some(client) = self.clients.get(id)
            && !self.is_identity_changed
        {
            client.identity = own;
        }
    }

    /// Changes the options of a client's later requests. If the request that does so is itself handled under another
    /// identity (in `QOS CALL`), nothing of that identity stays. The error is the text of the reply.
    fn change_options(
        &mut self,
        env: &Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        options: &RequestOptions,
    ) -> Result<(), String> {
        let acting = &self.clients.at(id).identity;
        let is_restored = !self.is_identity_changed;
        if let Some(own) = self.own_identities.first_mut().filter(|own| is_restored && **own != *acting) {
            *own = own.with_options(env, admission, options)?;
            return Ok(());
        }
        let identity = acting.with_options(env, admission, options)?;
        self.change_identity(id, identity);
        Ok(())
    }

    /// Replaces a client's identity for its later requests. A request that is itself handled under another identity (in
    /// `QOS CALL`) can do so, too: [`Self::end_acting`] then does not restore the identity of before.
    pub fn change_identity(&mut self, id: ClientId, identity: Identity) {
        self.clients.at(id).identity = identity;
        self.is_identity_changed = true;
    }

    /// Takes the next place in the order of a client's replies for a request that is sent in `parts` parts. Returns the
    /// sequence number of that place. `join` says how their replies are merged and whether the request writes; `charge`
    /// is the price taken for it (None if it has none), which is corrected to the real price with the merged reply.
    pub fn expect_parts(
        &mut self,
        id: ClientId,
        join: (Join, Effect),
        parts: usize,
        charge: Option<Charge>,
    ) -> u32 {
        let client = self.clients.at(id);
        let (index, bytes) = self.gathers.insert(join, client.protocol, parts);
        client.order.stored_bytes += bytes;
        client.expect_reply(Rewrite::Gather(index), charge)
    }

    /// Queues a request of a client for the control executor (the thread that collects data of all shards). The
    /// client's later requests wait for the reply, so that each client has at most one such request in flight. `charge`
    /// is the price taken for the request (None if it has none), which is corrected to the real price with the reply.
    pub fn ask(&mut self, env: &Env, id: ClientId, charge: Option<Charge>, question: Question) {
        let client = self.clients.at(id);
        let sequence = client.expect_reply(Rewrite::AsItCame, charge);
        client.hold_back_later();
        self.questions.ask(ReplyTo::new(env.settings.id, id, sequence), question);
    }

    /// Queues a question that weir itself asks the control executor (the thread that collects data of all shards) for
    /// the sake of a client's request, and whose answer the client is not sent. The client's next reply, and its later
    /// requests, wait until the answer has come. Returns the sequence number of the answer. `charge` is the price taken
    /// for the client's request (None if it has none); it is corrected to the real price with the answer unless it is
    /// taken before ([`Self::take_charge`]).
    pub fn ask_unheard(
        &mut self,
        env: &Env,
        id: ClientId,
        charge: Option<Charge>,
        question: Question,
    ) -> u32 {
        let client = self.clients.at(id);
        let sequence = client.order.expect_dropped(charge);
        client.hold_back_later();
        self.questions.ask(ReplyTo::new(env.settings.id, id, sequence), question);
        sequence
    }

    /// Queues a question for the control executor (the thread that collects data of all shards) that a client's `EXEC`
    /// waits for. Keeps the transaction, the identity and the times of that `EXEC`
    /// ([`Self::handle_answer_before_exec`]), and the price taken for it (`charge`, None if it has none), until the
    /// answer has come ([`Self::take_charge`]).
    pub fn ask_before_exec(
        &mut self,
        env: &Env,
        id: ClientId,
        (mut transaction, charge): (Box<Transaction>, Option<Charge>),
        question: Question,
    ) {
        let sequence = self.ask_unheard(env, id, charge, question);
        let client = self.clients.at(id);
        let (identity, times) = (client.identity.clone(), client.times);
        transaction.await_answer(WaitingExec { sequence, identity, times });
        client.put_back_transaction(transaction);
    }

    /// Begins to carry out an `EXEC` that has waited for the control executor, as on its arrival: until
    /// [`Self::end_exec`] the client has the identity of then, and the times are those of the `EXEC`. Returns the
    /// client's own times, to be restored.
    pub fn begin_exec(&mut self, id: ClientId, exec: &WaitingExec) -> Times {
        self.begin_acting(id, &exec.identity);
        std::mem::replace(&mut self.clients.at(id).times, exec.times)
    }

    /// Restores a client's own identity and times (`newest`) after [`Self::begin_exec`].
    pub fn end_exec(&mut self, id: ClientId, newest: Times) {
        if let Some(client) = self.clients.get(id) {
            client.times = newest;
        }
        self.end_acting(id);
    }

    /// Discards a client's transaction, whose queued requests are charged for their bytes. False if the client is in
    /// none.
    pub fn discard_transaction(&mut self, id: ClientId) -> bool {
        let discarded = self.clients.get(id).and_then(Client::take_transaction);
        if let Some(transaction) = &discarded {
            self.note_discarded(id, transaction);
        }
        discarded.is_some()
    }

    /// Records that a client's transaction is not carried out, so that its queued requests are charged for their bytes
    /// ([`Self::take_unpaid`]). If they have at most 1 KiB together, they cost nothing.
    pub fn note_discarded(&mut self, id: ClientId, transaction: &Transaction) {
        let bytes = transaction.priced_bytes();
        let payer = self.clients.get(id).and_then(|client| client.payer());
        let Some(payer) = payer.filter(|_| bytes > FREE_BYTES) else { return };
        match self.unpaid.last_mut() {
            Some((last, sum)) if *last == payer => *sum = sum.saturating_add(bytes),
            _ => self.unpaid.push((payer, bytes)),
        }
    }

    /// True if bytes of discarded transactions are still to be charged.
    #[inline]
    pub fn has_unpaid(&self) -> bool {
        !self.unpaid.is_empty()
    }

    /// Takes the bytes of discarded transactions that are still to be charged, each with the account that pays.
    pub fn take_unpaid(&mut self) -> Vec<(Payer, usize)> {
        std::mem::take(&mut self.unpaid)
    }

    /// Takes a reply of the control executor (the thread that collects data of all shards) that a client's `EXEC` waits
    /// for, and returns that `EXEC`. None, and the reply is not taken, if `to` is the address of another one.
    pub fn handle_answer_before_exec(&mut self, to: ReplyTo, reply: &[u8]) -> Option<Box<WaitingExec>> {
        let transaction = self.clients.get(to.client_id())?.transaction.as_mut()?;
        transaction.handle_answer(to.sequence, reply)
    }

    /// Removes and returns the charge (the price that was taken) of a client's request that is not answered yet. None
    /// if it has none, or if the client has disconnected.
    pub fn take_charge(&mut self, to: ReplyTo) -> Option<Charge> {
        self.clients.get(to.client_id())?.order.take_charge(to.sequence)
    }

    /// Removes and returns the next request for the control executor (the thread that collects data of all shards).
    /// None if there is none, or if 64 of this shard's are unanswered.
    pub fn poll_question(&mut self) -> Option<(ReplyTo, Question)> {
        self.questions.poll()
    }

    /// Counts a request to the control executor as answered, so that another may be sent.
    pub fn handle_question_answered(&mut self) {
        self.questions.handle_answer();
    }

    /// Frees unused memory of clients that have been idle since `idle_since`: no bytes came from them, and no send to
    /// them was completed. True if other clients were active since, so that a later call can free more.
    pub fn tidy(&mut self, idle_since: Timestamp) -> bool {
        self.gathers.tidy();
        self.abandoned.tidy();
        self.late_prices.tidy();
        let mut untidy = false;
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            if client.last_heard <= idle_since {
                client.tidy();
            } else {
                untidy = true;
            }
        }
        untidy
    }
}
