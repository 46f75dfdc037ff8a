//! The schedule of clients: how many requests of each client are started in a turn (one pass of the shard's
//! loop), and which client must wait for something first.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::ClientStage;
use super::client::{Client, Counted, Ending};
use super::held::HeldRequest;
use crate::protocol::command::{self, Flags};
use crate::protocol::http::Conversation;
use crate::protocol::{Argument, Arguments, RequestDecoder, RequestLimits};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::note::Note;
use crate::shard::partition::Partition;
use crate::shard::request::ReplyTo;
use crate::shard::settings::ShardSettings;
use crate::values::limits::PIPELINE_MAX;
use crate::values::time::Now;
use crate::values::{Action, ClientId, IdMap, Owner, TenantId, limits};

/// Number of undecoded bytes (64 KiB) above which weir stops reading from a client whose next request may not
/// be started.
const HELD_BYTES_PAUSE: usize = 64 * 1024;

/// For every 16 congested clients (those with many requests in backend queues), the number of requests of one
/// client that may be started in a turn (pass of the shard's loop) is halved.
const CONGESTED_MANY: u32 = 16;

/// Divisor (2) for the number of a shard's unanswered requests that counts as many, above which requests are started
/// sparingly: the limit of a store's queue on one shard, divided by the number of shards and by this. So the queue
/// stays half empty even if requests of all shards pass through one shard, as those for one key do.
const UNANSWERED_PARTS: usize = 2;

/// Number of unanswered requests that a client may have even while its tenant has many, as long as the tenant's
/// clients are few enough to have so many each.
const SHORT_PIPELINE: usize = 8;
/// Lower bound of the number of unanswered requests of one shard's clients from which on they count as many,
/// and further requests are limited.
const UNANSWERED_LEAST: usize = 256;
/// Divisor of the number of unanswered requests that counts as many. While so many are unanswered, a turn (pass
/// of the shard's loop) starts at most an eighth of that number: no more than queues have room for until they
/// have had time to hold their clients back.
const DEEP_PARTS: usize = 8;
/// Divisor that limits one client while its tenant has many unanswered requests: the client may have a sixteenth of
/// what the tenant lacks to one and a half times the number that counts as many.
const PARTS_OF_THE_REST: usize = 16;
/// Divisor for one client's part in a turn (pass of the shard's loop) while many requests are unanswered: it
/// starts at most a sixteenth of the turn's requests, so at least 16 clients share them.
const CLIENTS_OF_DEEP_TURN: u32 = 16;

/// The schedule of a shard's clients: which of them have further requests decoded, and when.
#[derive(Debug)]
pub struct Turns {
    /// The number of the shard's current turn (pass of its loop). A client's count of started requests that
    /// has another number is out of date.
    number: u32,
    /// The number of requests of all clients started in this turn (pass of the shard's loop), plus the number
    /// that the client whose bytes are being decoded may still start.
    taken: u32,
    /// Maximum number of requests of all clients that are started in this turn (pass of the shard's loop).
    most: u32,
    /// Number of unanswered requests of all clients that have more than one. Each client's are counted when requests of
    /// it are started or replies sent to it, and left out while they take long (such as `BLPOP`).
    unanswered: usize,
    /// The numbers of unanswered requests and clients in `unanswered`, by tenant. Tenants whose clients have at
    /// most one request unanswered each are not in it.
    unanswered_of: IdMap<TenantId, Unanswered>,
    /// Number of unanswered requests from which on they count as many, on the shard or of one tenant. With so many, a
    /// turn (pass of the shard's loop) starts few requests, and each client of a tenant that has so many may have few.
    unanswered_many: usize,
    /// The number of congested clients: those with so many requests in backend queues that no more are
    /// started.
    congested: u32,
    /// Clients that no longer have to wait, and whose requests are continued at the end of this turn (pass of
    /// the shard's loop).
    to_resume: VecDeque<ClientId>,
    /// Clients that have started as many requests as a turn (pass of the shard's loop) permits, but have sent
    /// more, which are continued in the next turn.
    next: VecDeque<ClientId>,
    /// Clients whose next request has so many keys that it is split by key over several turns (passes of the
    /// shard's loop).
    partitioning: VecDeque<ClientId>,
    /// Requests whose replies have so many values that they are joined over several turns, one after the other:
    /// the client, the request's sequence number, and its index in [`Gathers`]. The first of them is being
    /// joined, so only one such reply at a time takes memory besides its parts.
    ///
    /// [`Gathers`]: crate::shard::gather::Gathers
    joining: VecDeque<(ClientId, u32, u32)>,
    /// The length of `partitioning` and `joining` together, stored because every turn (pass of the shard's
    /// loop) checks it.
    in_steps: u32,
}

/// The unanswered requests of one tenant's clients; only clients with more than one unanswered request count.
#[derive(Clone, Copy, Debug, Default)]
struct Unanswered {
    /// Number of unanswered requests of the tenant's clients that have more than one.
    requests: usize,
    /// Number of the tenant's clients that have more than one unanswered request, at least 1.
    clients: usize,
}

impl Turns {
    pub fn new(settings: &ShardSettings) -> Self {
        let shards = usize::from(settings.topology.shards());
        let many = settings.overload.queue_limit.requests / (UNANSWERED_PARTS * shards);
        let many = many.max(UNANSWERED_LEAST);
        Self {
            number: 0,
            taken: 0,
            most: most_of_all(many, 0),
            unanswered: 0,
            unanswered_of: IdMap::default(),
            unanswered_many: many,
            congested: 0,
            to_resume: VecDeque::new(),
            next: VecDeque::new(),
            partitioning: VecDeque::new(),
            joining: VecDeque::new(),
            in_steps: 0,
        }
    }

    /// Counts the unanswered requests of a client anew for the limits on starting requests. A single one counts
    /// as none, because it may wait at its store, as BLPOP does. Called whenever requests of the client were
    /// started or replies sent to it.
    pub(super) fn count_unanswered(&mut self, client: &mut Client) {
        client.counted.has_changed = true;
        let unanswered = client.unanswered();
        self.count(client, if unanswered > 1 { unanswered } else { 0 });
    }

    fn count(&mut self, client: &mut Client, requests: usize) {
        let tenant = client.identity.tenant.filter(|_| requests > 0);
        if client.counted.requests == requests && client.counted.tenant == tenant {
            return;
        }
        self.discount(&client.counted);
        (client.counted.requests, client.counted.tenant) = (requests, tenant);
        self.unanswered += requests;
        if let Some(tenant) = tenant {
            let of_tenant = self.unanswered_of.entry(tenant).or_default();
            of_tenant.requests += requests;
            of_tenant.clients += 1;
        }
    }

    fn discount(&mut self, counted: &Counted) {
        self.unanswered -= counted.requests;
        if let Some(tenant) = counted.tenant
            && let Some(of_tenant) = self.unanswered_of.get_mut(&tenant)
        {
            of_tenant.requests -= counted.requests;
            of_tenant.clients -= 1;
            if of_tenant.clients == 0 {
                self.unanswered_of.remove(&tenant);
            }
        }
    }

    /// Returns the most unanswered requests that a client may have. While its tenant has `unanswered_many` or more,
    /// that is a sixteenth of what the tenant lacks to one and a half times `unanswered_many`, but at least the
    /// client's equal share, of at most 8, of half of `unanswered_many`: queues, and fetches of hot keys, have no room
    /// for long pipelines of many clients. Clients of other tenants may have `PIPELINE_MAX`.
    #[inline]
    pub(super) fn pipeline_most(&self, client: &Client) -> usize {
        if self.unanswered < self.unanswered_many { PIPELINE_MAX } else { self.pipeline_most_of(client) }
    }

    #[cold]
    fn pipeline_most_of(&self, client: &Client) -> usize {
        let of_tenant = client.identity.tenant.and_then(|tenant| self.unanswered_of.get(&tenant));
        let Some(of_tenant) = of_tenant.filter(|of_tenant| of_tenant.requests >= self.unanswered_many) else {
            return PIPELINE_MAX;
        };
        let half = self.unanswered_many / 2;
        let left = (self.unanswered_many + half).saturating_sub(of_tenant.requests);
        let least = (half / of_tenant.clients).clamp(1, SHORT_PIPELINE);
        (left / PARTS_OF_THE_REST).clamp(least, PIPELINE_MAX)
    }

    /// Returns the most requests of one client that are started in a turn (pass of the shard's loop), at least
    /// one. Many congested clients halve it repeatedly, since other clients may turn out to be congested only
    /// after their requests were started. While many requests are unanswered, one client may start at most a
    /// sixteenth of a turn's requests.
    fn most_of_one(&self) -> u32 {
        let usual = limits::REQUESTS_PER_TURN >> (self.congested / CONGESTED_MANY).min(31);
        let share =
            if self.unanswered < self.unanswered_many { usual } else { self.most / CLIENTS_OF_DEEP_TURN };
        usual.min(share).max(1)
    }

    /// Lists a client's request whose reply is to be joined over several turns (passes of the shard's loop), by
    /// the request's sequence number and the index (`gather`) under which the replies to its parts are
    /// collected.
    pub(super) fn list_to_join(&mut self, id: ClientId, sequence: u32, gather: u32) {
        self.joining.push_back((id, sequence, gather));
        self.in_steps += 1;
    }

    /// Returns the request whose reply is being joined over several turns (passes of the shard's loop), as
    /// client, sequence number, and index under which the replies to its parts are collected; None if there is
    /// none.
    pub(super) fn next_to_join(&self) -> Option<(ClientId, u32, u32)> {
        self.joining.front().copied()
    }

    /// Ends the joining of the reply that is being joined over several turns, because it is complete or its
    /// client is gone.
    pub(super) fn end_join(&mut self) {
        self.joining.pop_front();
        self.in_steps -= 1;
    }
}

/// Returns the most requests of all clients that a turn (pass of the shard's loop) starts while `unanswered`
/// are unanswered: as many as are left up to `many`, at least an eighth of `many`.
fn most_of_all(many: usize, unanswered: usize) -> u32 {
    let free = many.saturating_sub(unanswered).max(many / DEEP_PARTS);
    free.min(limits::REQUESTS_PER_TURN_OF_ALL as usize) as u32
}

/// The result of decoding the bytes that a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All bytes received are decoded, or never will be because the connection is ending.
    Done,
    /// Some received bytes are left that will be decoded later, because the client has to wait.
    Stalled,
}

impl ClientStage {
    /// Records that `bytes` bytes of a client have arrived now. False if they are not to be read, because the client
    /// has disconnected or its connection is ending.
    pub fn hear(&mut self, id: ClientId, bytes: usize, now: Now) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        client.last_heard = now.monotonic;
        if client.stalled {
            client.arrivals.add(bytes, now.monotonic);
        } else {
            client.times.came = now.monotonic;
        }
        client.ending == Ending::Open
    }

    /// Takes a client's decoder, and its HTTP conversation if it has one, out of the table of clients,
    /// because requests that are being handled borrow from them. [`Self::end_decoding`] puts the decoder
    /// back. None if the client has disconnected.
    #[inline]
    pub fn begin_decoding(
        &mut self,
        id: ClientId,
        now: Now,
    ) -> Option<(RequestDecoder, Option<Box<Conversation>>)> {
        let client = self.clients.get(id)?;
        client.times.began = now.monotonic;
        if client.turn != self.turns.number {
            (client.turn, client.turn_left) = (self.turns.number, self.turns.most_of_one());
        }
        if client.unanswered() == 0 {
            client.order.expect_at_least(self.reply_room.first_expected());
        }
        // The unused rest is given back in `end_decoding`.
        client.turn_left = client.turn_left.min(self.turns.most - self.turns.taken);
        self.turns.taken += client.turn_left;
        Some((std::mem::take(&mut client.decoder), client.http.take()))
    }

    /// Returns how many more requests of a client may be started in this turn (pass of the shard's loop), and
    /// the size limits of its next request. The error says that none may be started now, and whether the
    /// bytes received wait to be decoded later.
    #[expect(clippy::inline_always, reason = "every request: a call would be a third of it")]
    #[inline(always)]
    pub fn may_take_on(&mut self, id: ClientId) -> Result<(&mut u32, RequestLimits), Progress> {
        let Some(client) = self.clients.get(id) else { return Err(Progress::Done) };
        if client.ending == Ending::Deaf {
            return Err(Progress::Done);
        }
        // A held request comes first, also where nothing holds it any more: it goes on at the end of the turn.
        let is_behind = client.held_request.is_some();
        if is_behind || client.must_wait(self.reply_room, self.turns.pipeline_most(client)) {
            return Err(Progress::Stalled);
        }
        // An HTTP request has limits of its own for head and body, and is taken on only once its sender is
        // identified.
        if client.speaks_http {
            return Ok((&mut client.turn_left, RequestLimits::assembled()));
        }
        let is_known = client.identity.tenant.is_some();
        let limits = if is_known { self.limits } else { RequestLimits::stranger() };
        Ok((&mut client.turn_left, limits))
    }

    /// True if bytes of a client had to wait to be decoded, so that its next request arrived earlier than now.
    #[inline]
    pub fn has_waited(&mut self, id: ClientId) -> bool {
        self.find(id).is_some_and(|client| !client.arrivals.is_empty())
    }

    /// Sets a client's time of arrival to that of its request just decoded, which had to wait; `behind` is the
    /// number of undecoded bytes behind that request.
    #[cold]
    pub fn date_request(&mut self, id: ClientId, behind: usize) {
        let client = self.clients.at(id);
        let came = client.arrivals.take_until(behind);
        client.times.came = came.unwrap_or(client.times.came);
    }

    /// Puts a client's decoder back after decoding; `progress` says whether received bytes are left to be
    /// decoded later. Stops reading from a client that holds too many undecoded bytes, and resumes reading once
    /// its requests go on.
    pub fn end_decoding(&mut self, env: &mut Env, id: ClientId, decoder: RequestDecoder, progress: Progress) {
        let Some(client) = self.clients.get(id) else { return };
        client.decoder = decoder;
        self.turns.taken -= client.turn_left;
        self.turns.count_unanswered(client);
        client.stalled = progress == Progress::Stalled;
        if client.stalled || !client.arrivals.is_empty() {
            client.date_undecoded();
        }
        if client.ties.is_some() {
            client.count_unread_subscriptions(&env.settings.clients.subscriptions);
        }
        let goes_on_next_turn = client.stalled && client.turn_left == 0 && !client.listed_to_resume;
        let full = client.stalled && client.held_bytes() > HELD_BYTES_PAUSE;
        if full && !client.reading_paused && client.ending == Ending::Open {
            client.reading_paused = true;
            env.actions.push_back(Action::PauseReading(Owner::Client(id)));
        } else if client.reading_paused && !client.stalled {
            client.reading_paused = false;
            env.actions.push_back(Action::ResumeReading(Owner::Client(id)));
        }
        if goes_on_next_turn {
            self.resume_next_turn(id);
        }
        self.close_if_done(env, id);
    }

    /// Lets a client go on after a wait. Returns its held request (kept to be handled later), to be handled
    /// now, if it has one and no longer has to wait for anything.
    pub fn take_up(&mut self, id: ClientId) -> Option<Box<HeldRequest>> {
        let client = self.clients.get(id)?;
        client.listed_to_resume = false;
        client.barrier &= client.unanswered() > 0;
        let may_try = !client.barrier && !client.waits_for_quota && !client.waits_by_order;
        if may_try { client.held_request.take() } else { None }
    }

    /// Holds a request until all earlier requests of its connection are answered. Later requests wait after
    /// it.
    pub fn hold_for_replies(&mut self, env: &mut Env, id: ClientId, arguments: &Arguments<'_>) {
        let client = self.clients.at(id);
        debug_assert!(client.unanswered() > 0);
        client.barrier = true;
        env.counters.add(Counter::RequestsHeld, 1);
        self.hold(id, arguments);
    }

    /// Holds a request that a `CLIENT PAUSE` of some requests holds back (a write, for instance), until the
    /// pause ends. Later requests of the client wait after it.
    pub fn hold_by_order(&mut self, env: &mut Env, id: ClientId, arguments: &Arguments<'_>) {
        self.clients.at(id).waits_by_order = true;
        env.counters.add(Counter::RequestsHeld, 1);
        self.hold(id, arguments);
    }

    /// Holds a request until there is an answer about a quota, a request of its tenant is charged at its real cost, the
    /// map of the cluster is confirmed, or a `PUBLISH` need no longer wait for earlier subscriptions. Later requests of
    /// the client wait after it.
    pub fn hold_for_grant(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        debug_assert!(!self.clients.at(id).waits_for_quota);
        self.clients.at(id).waits_for_quota = true;
        self.hold(id, arguments);
    }

    /// Holds a request with very many keys (`step` is the number of arguments per key) while weir assigns its
    /// keys to backends over several turns (passes of the shard's loop). Later requests of the client wait
    /// after it.
    pub fn hold_for_turns(
        &mut self,
        env: &mut Env,
        id: ClientId,
        step: usize,
        request: (Bytes, Vec<Argument>),
    ) {
        env.counters.add(Counter::RequestsInSteps, 1);
        let arguments = Arguments::new(&request.0, &request.1);
        let mut partition = Partition::begin(env, step, &arguments);
        if command::recognise(&arguments).is_ok_and(|command| command.flags.contains(Flags::MULTIPLIES)) {
            partition = partition.counting_repeats();
        }
        let client = self.clients.at(id);
        debug_assert!(client.held_request.is_none());
        let held = HeldRequest::to_partition(request, partition, &client.identity, client.times);
        client.held_request = Some(Box::new(held));
        client.waits_for_quota = true;
        self.turns.partitioning.push_back(id);
        self.turns.in_steps += 1;
    }

    /// Takes one step in the splitting by key of a large request, for 4,096 keys at most; the splitting takes several
    /// turns (passes of the shard's loop). Returns the request's client once the splitting is complete, to be passed to
    /// [`Self::end_wait_for_grant`]. None before, if the client is gone, and if no request is being split.
    pub fn go_on_partitioning(&mut self, env: &mut Env) -> Option<ClientId> {
        let id = self.turns.partitioning.pop_front()?;
        self.turns.in_steps -= 1;
        let held = self.clients.get(id)?.held_request.as_mut()?;
        let partition = held.partition.as_mut()?;
        let arguments = Arguments::new(&held.frame, &held.places);
        let quotas = Arc::clone(&env.quotas);
        let prefixes = held.identity.tenant(&quotas).map_or(&[][..], |tenant| &tenant.keys);
        if partition.advance(env, &arguments, prefixes, limits::KEYS_PER_TURN) {
            return Some(id);
        }
        self.turns.partitioning.push_back(id);
        self.turns.in_steps += 1;
        None
    }

    fn hold(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        if self.hold_again(arguments) {
            return;
        }
        let client = self.clients.at(id);
        debug_assert!(client.held_request.is_none());
        client.held_request = Some(Box::new(client.held(arguments)));
    }

    /// Ends the wait of a client's request that [`Self::hold_for_grant`] or [`Self::hold_for_turns`] began.
    /// False if the client has disconnected.
    pub fn end_wait_for_grant(&mut self, id: ClientId) -> bool {
        let client = self.clients.get(id);
        client.map(|client| client.waits_for_quota = false).is_some()
    }

    /// Keeps the charge of a request that is about to be answered before its store replies, whether or not its client
    /// is still connected.
    fn expect_late_price(&mut self, to: ReplyTo) {
        let charge = match self.clients.get(to.client_id()) {
            Some(client) => client.order.waiting(to.sequence).and_then(|(_, charge)| charge),
            None => self.abandoned.charge_of(to),
        };
        if let Some(charge) = charge {
            self.late_prices.expect(to, charge);
        }
    }

    /// Handles a message (note) about one of a client's requests from the core that sends it to a backend,
    /// such as that too many of the client's requests are queued.
    pub fn handle_note(&mut self, to: ReplyTo, note: Note) {
        let id = to.client_id();
        match note {
            Note::PriceFollows => return self.expect_late_price(to),
            Note::LatePrice(outcome) => return self.late_prices.handle_late(to, outcome),
            _ => {}
        }
        let Some(client) = self.clients.get(id) else { return };
        match note {
            // `Sent` never leaves the core of the request, and no client gets it.
            Note::Sent(_) | Note::PriceFollows | Note::LatePrice(_) => {}
            Note::Unsettled => client.handle_unsettled(),
            Note::Settled { .. } => client.handle_settled(),
            Note::Long => {
                self.turns.congested += u32::from(client.congested == 0);
                client.congested = client.congested.saturating_add(1);
            }
            Note::NotPrimary => {
                if let Some(addressed) = &mut client.addressed {
                    addressed.refused.push(to.part);
                }
            }
            Note::Eased => {
                self.turns.congested -= u32::from(client.congested == 1);
                client.congested = client.congested.saturating_sub(1);
                self.list_to_resume(id);
            }
        }
    }

    /// Puts a client on the list of those whose requests are continued at the end of the turn (pass of the
    /// shard's loop), if it was waiting and no longer has to.
    pub(super) fn list_to_resume(&mut self, id: ClientId) {
        let client = self.clients.at(id);
        if !client.is_stuck() || client.listed_to_resume {
            return;
        }
        let may_go_on = if client.barrier {
            client.unanswered() == 0
        } else {
            !client.must_wait(self.reply_room, self.turns.pipeline_most(client))
        };
        if may_go_on {
            client.listed_to_resume = true;
            self.turns.to_resume.push_back(id);
        }
    }

    /// Plans that a client's requests are continued in the next turn (pass of the shard's loop).
    pub(super) fn resume_next_turn(&mut self, id: ClientId) {
        self.clients.at(id).listed_to_resume = true;
        self.turns.next.push_back(id);
    }

    /// True if the next turn (pass of the shard's loop) has work without new input: clients wait for it with
    /// requests that were received already, or requests with many keys are being split or their replies
    /// joined in steps.
    pub fn is_busy(&self) -> bool {
        !self.turns.next.is_empty() || self.is_working_in_steps()
    }

    /// True if requests with very many keys are being split, or their replies joined, over several turns
    /// (passes of the shard's loop).
    pub fn is_working_in_steps(&self) -> bool {
        self.turns.in_steps > 0
    }

    /// Returns the number of clients that wait for the next turn (pass of the shard's loop), because they have
    /// started as many requests as they may in the present one.
    pub fn waiting_for_turn(&self) -> usize {
        self.turns.next.len()
    }

    /// Reserves half of the requests that this turn (pass of the shard's loop) may start for clients that have
    /// waited for it since the turn before, however many requests arrive in it.
    pub fn reserve_for_waiting(&mut self) {
        self.turns.taken = self.turns.taken.min(self.turns.most / 2);
    }

    /// Makes room in this turn (pass of the shard's loop) for one more request, if as many as may be are started: for a
    /// blocking command that began in another process, which would be a new request in a later turn.
    pub fn reserve_for_moved(&mut self) {
        self.turns.taken = self.turns.taken.min(self.turns.most.saturating_sub(1));
    }

    /// Takes the next client that waited for this turn (pass of the shard's loop). None if there is no other,
    /// or if no more requests may be started in this turn.
    pub fn take_next_turn(&mut self) -> Option<ClientId> {
        if self.turns.taken == self.turns.most { None } else { self.turns.next.pop_front() }
    }

    /// Removes and returns the next client that no longer has to wait, so that its requests are continued.
    /// None if there is none.
    pub fn take_resumable(&mut self) -> Option<ClientId> {
        self.turns.to_resume.pop_front()
    }

    /// Corrects the numbers of congested clients and of unanswered requests when a client disconnects.
    pub(super) fn end_turns_of(&mut self, client: &Client) {
        self.turns.congested -= u32::from(client.congested > 0);
        self.turns.discount(&client.counted);
    }

    /// While many requests are unanswered, leaves the requests of those clients out of the count of unanswered
    /// ones that had no reply, and no request started, since the last call: they wait for something that takes
    /// long, such as BLPOP. Called with the regular checks, about every 100 ms.
    pub fn leave_out_waiting(&mut self) {
        if self.turns.unanswered < self.turns.unanswered_many {
            return;
        }
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            if !std::mem::take(&mut client.counted.has_changed) {
                self.turns.count(client, 0);
            }
        }
    }

    /// Begins the next turn (pass of the shard's loop), in which requests of all clients may be started
    /// again.
    pub fn begin_turn(&mut self) {
        self.turns.number = self.turns.number.wrapping_add(1);
        self.turns.taken = 0;
        self.turns.most = most_of_all(self.turns.unanswered_many, self.turns.unanswered);
    }
}
