//! The bulkhead before one backend, for one core and one track (set of connections, for usual or for expensive
//! requests): a window that limits the requests in flight, and a queue for requests that find no room. A slow backend
//! fills its own bulkhead and no other.
//!
//! ```text
//!   request ── room in the window, and nobody waits? ──────────────────────────────> link
//!       └─ else: hopeless, stalled, full? refused at once ── queue ── room again ───> link
//!                                                               └─ too old, too late: refused
//! ```
//!
//! A fetch of a hot key answers all reads that wait for it, so it takes the next free place, before all
//! queued requests. There are few: for one reply, at most two are in flight and one waits.
//!
//! A bulkhead without waiting requests costs a comparison and a count per request. One with waiting requests is handled
//! at the end of every turn (pass of the shard's loop), at least every 5 ms.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use crate::policy::breaker::Stage as BreakerStage;
use crate::policy::queue::{Choice, Circumstances, Held, Queue, Refused, Taken, Waiting};
use crate::policy::window::{Sample, Window};
use crate::policy::yielding::{Cheap, Expensive, Yielding};
use crate::shard::board::{Load, Section};
use crate::shard::refusal::NotSent;
use crate::shard::request::Envelope;
use crate::shard::searched::Searched;
use crate::shard::settings::{Mode, OverloadSettings};
use crate::shard::stored::Stored;
use crate::values::{IdMap, TenantId, Tier, Timestamp, UNIT};

/// The shortest silence after which a backend with requests in flight counts as stalled (nothing more is
/// sent to it); four median response times if that is longer.
const STALLED: Duration = Duration::from_millis(250);
/// The number of median response times for which a backend with requests in flight must be silent before it
/// counts as stalled (nothing more is sent to it), if that is longer than 250 ms.
const STALLED_MEDIANS: u32 = 4;
/// The silence after which a backend with requests in flight counts as stalled (nothing more is sent to it)
/// before any of its response times is known.
const STALLED_UNKNOWN: Duration = Duration::from_secs(1);
/// The silence after which a backend with requests in flight is asked, over another connection, whether it is
/// busy with a script.
const SILENT: Duration = Duration::from_millis(50);
/// The least and the largest retry delay (`retry_after`) that errors name to clients of a stalled (silent)
/// backend.
const RETRY_STALLED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The least and the largest retry delay named to clients when the queue is full. Under lasting overload
/// the least is 100 ms.
const RETRY_FULL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// The least retry delay named to clients when the queue is full under lasting overload: more is requested
/// than the backend can do.
const RETRY_OVER: Duration = Duration::from_millis(100);
/// Number of requests up to which a queue keeps the memory that it took for them, once none waits any more.
const PARKED_KEPT: usize = 64;
/// The divisor that gives the part (a tenth) of the window (limit on requests in flight to a backend) that only
/// requests of the critical tier, and fetches of hot keys, may use.
pub const RESERVED: u32 = 10;

/// A request that waits in the queue for room in the window (limit on requests in flight).
#[derive(Debug)]
pub struct Parked {
    pub envelope: Envelope,
    pub message: Stored,
    /// The number of requests in the message: more than one for a transaction, or for a fetch (shared read of
    /// a hot key) with `PTTL`.
    pub requests: usize,
    pub came: Timestamp,
    /// The hot keys that the request names, as the last search of the queue for requests about them has found; None for
    /// a request for a single key, or that was not searched.
    pub searched: Option<Box<Searched>>,
}

/// The window and queue in front of one backend, for one core and one track (set of connections).
#[derive(Debug)]
pub struct Bulkhead {
    window: Window,
    /// Cap on the number of this bulkhead's requests in flight, lowered while replies to cheap requests to the same
    /// backend come late. There is none for a bulkhead of cheap requests.
    yielding: Yielding,
    mode: Mode,
    /// True if replies are sampled: for the window, or where it is off, for the other layers that judge the backend by
    /// its response times.
    is_sampled: bool,
    queue: Queue<u32>,
    is_queue_obeyed: bool,
    parked: Slab<Parked>,
    /// Fetches of hot keys that wait for room in the window (limit on requests in flight); they are sent
    /// before all queued requests.
    fetches: VecDeque<Parked>,
    in_flight: u32,
    /// The number of requests in flight from which on each further request is checked more closely by
    /// [`Bulkhead::decide`]; 0 if all requests are checked.
    limit: u32,
    /// The longest response time expected of the backend, with however many requests in flight, in nanoseconds; 0 if
    /// unknown. A request whose deadline is later than now by that much can be sent without a closer check.
    longest_nanos: u64,
    /// True for the set of connections (track) for expensive requests, which may take long, so that a silent
    /// backend does not count as stalled.
    is_patient: bool,
    is_stalled: bool,
    /// True if the last check found requests in flight and that the backend had sent nothing for 50 ms; false again
    /// once it sends something.
    is_silent: bool,
    /// True if the backend has shown, over another connection, that it is busy with a script while it was silent here.
    /// Nothing is sent to it then, until it sends something.
    is_busy: bool,
    /// True while the backend is ejected (taken out of use after failures) or returning: the circuit
    /// breaker decides about each request, and requests are not queued.
    is_gated: bool,
    /// The response time of the last sampled reply, by which a silent backend is judged while no median is
    /// known; None before the first one.
    took: Option<Duration>,
    /// True if no request waited at the last call of [`Bulkhead::take_waits`], or at the end of a turn (pass of the
    /// shard's loop) since.
    was_empty: bool,
    /// True while requests wait or the backend is stalled (sends nothing although requests are in flight), so
    /// that the bulkhead (window and queue) is handled at the end of each turn (pass of the shard's loop).
    is_listed: bool,
    /// Number of each tenant's requests in flight through this bulkhead (window and queue), without those in the queue.
    /// While several tenants wait in a tier (importance), one that has half of the window in flight is given no more.
    /// Counted only while `is_listed` is true, else empty.
    tenants: IdMap<TenantId, u32>,
}

impl Bulkhead {
    pub fn new(shards: u16, settings: &OverloadSettings, is_patient: bool) -> Self {
        let mut bulkhead = Self {
            window: Window::new(shards, settings.window_bounds),
            yielding: Yielding::new(settings.window_bounds.least),
            mode: settings.window,
            is_sampled: [settings.window, settings.shed, settings.breaker]
                .iter()
                .any(|mode| *mode != Mode::Off),
            queue: Queue::new(settings.queue_limit, settings.queue_patience, Timestamp::ZERO),
            is_queue_obeyed: settings.queue == Mode::On,
            parked: Slab::new(),
            fetches: VecDeque::new(),
            in_flight: 0,
            limit: u32::MAX,
            longest_nanos: 0,
            is_patient,
            is_stalled: false,
            is_silent: false,
            is_busy: false,
            is_gated: false,
            took: None,
            was_empty: true,
            is_listed: false,
            tenants: IdMap::default(),
        };
        bulkhead.set_limit();
        bulkhead
    }

    /// Forgets the backend's response times and the window (limit on requests in flight) that follows from them,
    /// because another server has its place.
    pub fn forget_times(&mut self, now: Timestamp, mut others: Section<'_>) {
        self.window.forget(now, &mut others);
        self.yielding.forget();
        (self.longest_nanos, self.took) = (0, None);
        self.set_limit();
    }

    /// True if a request may be sent without a closer check: the window (limit on requests in flight) has
    /// room, and the deadline would be met with any number of requests in flight.
    #[inline]
    pub fn has_room(&self, deadline: Timestamp, now: Timestamp) -> bool {
        self.in_flight < self.limit && now.as_nanos() + self.longest_nanos <= deadline.as_nanos()
    }

    /// True if a request cannot be answered by its deadline, judging by response times. The request, which the caller
    /// refuses, then counts for the window (limit on requests in flight) like one that missed its deadline
    /// ([`Bulkhead::handle_missed`]).
    pub fn count_if_hopeless(&mut self, deadline: Timestamp, now: Timestamp) -> bool {
        let is_hopeless = self.is_hopeless(deadline, now);
        if is_hopeless {
            self.window.handle_missed();
        }
        is_hopeless
    }

    /// True if the reply to a request is not expected before its deadline, judging by response times. With
    /// no request in flight at the backend, true only once the deadline has passed, so that one request is
    /// tried.
    pub fn is_hopeless(&self, deadline: Timestamp, now: Timestamp) -> bool {
        // Without requests in flight one is tried unless its deadline has passed: otherwise nobody would
        // notice that replies have become faster.
        now.after(self.expected()) > deadline && (self.in_flight > 0 || now > deadline)
    }

    /// Tells the window (limit on requests in flight) that a request has missed its deadline or would have. At its next
    /// adjustment the window then counts as full, so that it can shrink: requests that would be late are not sent, and
    /// so do not fill it.
    pub fn handle_missed(&mut self) {
        self.window.handle_missed();
    }

    fn expected(&self) -> Duration {
        self.window.expected(self.in_flight as usize)
    }

    /// Counts a request as in flight. Returns the number of this core's requests in flight at the backend, on one track
    /// (usual or expensive requests), including this one.
    #[inline]
    pub fn handle_sent(&mut self, tenant: TenantId, now: Timestamp) -> u32 {
        if self.in_flight == 0 {
            self.queue.handle_progress(now);
        }
        self.in_flight += 1;
        if self.is_listed {
            self.count_tenant(tenant);
        }
        self.in_flight
    }

    #[cold]
    fn count_tenant(&mut self, tenant: TenantId) {
        *self.tenants.entry(tenant).or_default() += 1;
    }

    #[cold]
    fn discount_tenant(&mut self, tenant: TenantId) {
        if let Some(count) = self.tenants.get_mut(&tenant) {
            *count = count.saturating_sub(1);
        }
    }

    /// Counts a request as no longer in flight. Returns the number of this core's requests that were in flight at the
    /// backend before, on one track (usual or expensive requests), including this one.
    #[inline]
    pub fn handle_over(&mut self, tenant: TenantId) -> usize {
        let before = self.in_flight as usize;
        self.in_flight -= 1;
        if self.is_listed {
            self.discount_tenant(tenant);
        }
        before
    }

    /// Returns the number of this core's requests in flight at the backend, on one track (usual or
    /// expensive requests).
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// If no request is in flight to the backend any more (all connections to it were lost, for instance), ends its
    /// silence, its stall and its busy state, so that requests may be sent to it again.
    pub fn handle_none_in_flight(&mut self, now: Timestamp) {
        if self.in_flight > 0 {
            return;
        }
        self.is_silent = false;
        if self.takes_nothing() {
            self.end_stall(now);
        }
    }

    /// True if the reply to a request sent at `sent_at` is selected as a sample of the backend's response times, by
    /// which the window (limit on requests in flight) is adjusted and the backend is judged.
    #[inline]
    pub fn should_sample(&mut self, sent_at: Timestamp, now: Timestamp) -> bool {
        self.is_sampled && self.window.wants(sent_at, now)
    }

    /// Adjusts the window (limit on requests in flight) by a sampled reply, and publishes the window to other cores on
    /// `board`.
    #[inline(never)]
    pub fn handle_reply(&mut self, sample: &Sample, now: Timestamp, mut board: Section<'_>) {
        self.took = Some(now.since(sample.sent_at));
        self.window.handle_reply(sample, now, &mut board);
        self.longest_nanos = self.window.expected(usize::MAX).as_nanos() as u64;
        self.set_limit();
    }

    /// Records, for the window of cheap requests, whether expensive requests to the same backend, which pass another
    /// bulkhead (window and queue), are in flight and may be the reason why replies come late. `may_yield` is true if
    /// fewer of them may soon be in flight because of that.
    pub fn handle_expensive(&mut self, are_in_flight: bool, may_yield: bool) {
        self.window.handle_expensive(are_in_flight, may_yield);
    }

    /// Looks at the latency of cheap requests to the same backend, for which there is another bulkhead (window and
    /// queue), about every 100 ms: while they come late, fewer of this bulkhead's expensive requests may be in flight.
    /// Returns whether fewer may than before. `cheap` is None if no reply to a cheap request came within a second;
    /// `all_in_flight` is the number of all cores' expensive requests in flight. `base_elsewhere` is the base (latency
    /// of a reply when little waits at the backend) of other cores' expensive requests, which counts if this core has
    /// had no reply to one yet; None if nobody has.
    pub fn yield_to(
        &mut self,
        cheap: Option<Cheap>,
        (all_in_flight, base_elsewhere): (u32, Option<Duration>),
        now: Timestamp,
    ) -> bool {
        let base = Some(self.window.base()).filter(|base| !base.is_zero()).or(base_elsewhere);
        let work = base.map(|base| base * all_in_flight);
        let waits = !self.is_empty();
        let expensive = Expensive { in_flight: self.in_flight, all_in_flight, work, waits };
        let has_yielded = self.yielding.handle_look(cheap, expensive, now);
        self.set_limit();
        has_yielded
    }

    /// True unless it is known that the expensive requests of this bulkhead (window and queue) are not the
    /// reason why replies to cheap ones come late.
    pub fn may_be_in_the_way(&self, now: Timestamp) -> bool {
        !self.yielding.rests(now)
    }

    /// True if fewer of the expensive requests of this bulkhead (window and queue) may soon be in flight
    /// because replies to cheap ones come late.
    pub fn may_yield(&self, now: Timestamp) -> bool {
        self.yielding.may_help(now)
    }

    /// Returns how many requests may be in flight through this bulkhead: as many as the window permits or, if that is
    /// less, as the cap on expensive requests does.
    fn size(&self) -> usize {
        self.window.size().min(self.yielding.cap())
    }

    /// Records that bytes came from the backend. Nothing was sent to it while it was stalled (silent for too
    /// long) or busy with a script; both states end now. `late` is the delay of this core itself, by which
    /// waiting requests do not age.
    #[inline]
    pub fn handle_progress(&mut self, late: Duration, now: Timestamp) {
        if self.is_listed {
            self.handle_look(now);
            self.begin_turn(late, now);
        }
        if self.takes_nothing() {
            self.end_stall(now);
        }
        self.is_silent = false;
        self.queue.handle_progress(now);
    }

    fn end_stall(&mut self, now: Timestamp) {
        self.is_busy = false;
        if !std::mem::take(&mut self.is_stalled) {
            return self.set_limit();
        }
        self.window.handle_stall_end(now);
        self.set_limit();
    }

    /// Tells the queue that this core did not run for `late`, so that waiting requests do not age by that
    /// time.
    pub fn handle_late(&mut self, late: Duration) {
        self.queue.handle_late(late);
    }

    /// Checks whether the backend is silent, and whether it has stalled: requests are in flight, and it was silent for
    /// too long (250 ms or four median response times, whichever is longer; 1 s before its first sampled reply).
    /// Nothing more is sent to a stalled one. True only in the call that finds the stall; never unless windows are on,
    /// nor for expensive requests.
    pub fn handle_look(&mut self, now: Timestamp) -> bool {
        // Before the first reply the backend may be far away, so more time is granted.
        let patience = self.took.map_or(STALLED_UNKNOWN, |took| {
            let median = self.window.median();
            STALLED.max(STALLED_MEDIANS * if median.is_zero() { took } else { median })
        });
        self.is_silent = self.in_flight > 0 && self.queue.silence(now) > SILENT;
        let has_stalled = self.mode == Mode::On
            && !self.is_patient
            && !self.is_stalled
            && self.in_flight > 0
            && self.queue.silence(now) > patience;
        if has_stalled {
            self.is_stalled = true;
            self.set_limit();
        }
        has_stalled
    }

    /// True if the last check found the backend silent for 50 ms with requests in flight, so that it is asked
    /// whether it is busy with a script. Never unless windows are on.
    pub fn is_silent(&self) -> bool {
        self.is_silent && self.mode == Mode::On
    }

    /// Records whether the backend is busy with a script, as its reply to a `PING` over another connection
    /// shows. Nothing more is sent to a backend that is busy and silent on its other connections.
    pub fn handle_sign(&mut self, is_busy: bool) {
        self.is_busy = is_busy && self.is_silent();
        self.set_limit();
    }

    /// True while nothing is sent to the backend, because it is stalled (silent although requests are in
    /// flight) or busy with a script.
    const fn takes_nothing(&self) -> bool {
        self.is_stalled || self.is_busy
    }

    /// True while the backend counts as stalled (sends nothing although requests are in flight).
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Begins a turn (pass of the shard's loop): passes the time and the state of the window (limit on
    /// requests in flight) to the queue, which ages its requests. Does nothing the second time in one turn.
    /// `late` is the time by which this turn of the core began later than planned.
    pub fn begin_turn(&mut self, late: Duration, now: Timestamp) {
        let circumstances = Circumstances {
            late,
            in_flight: self.in_flight as usize,
            median: self.window.median(),
            is_growing: self.window.is_growing() || self.yielding.is_starting(),
            is_draining: self.in_flight as usize > self.window.size(),
        };
        self.queue.handle_turn(now, &circumstances);
    }

    /// Decides whether a request is sent, queued or refused, if [`Bulkhead::has_room`] did not show that it can be sent
    /// at once. A fetch of a hot key may use the reserved tenth of the window, unless other fetches wait. So may a
    /// critical request, unless other critical ones or fetches wait, or an earlier request of its client connection
    /// (`connection`), which it would overtake.
    pub fn decide(&mut self, (envelope, connection): (&Envelope, u64), now: Timestamp) -> Verdict {
        if self.count_if_hopeless(envelope.deadline, now) {
            Verdict::TooLate
        } else if self.is_busy {
            Verdict::Busy
        } else if self.is_stalled {
            Verdict::Stalled(self.retry_stalled(now))
        } else if self.mode == Mode::Shadow {
            // The limit says nothing here while the breaker checks each request.
            if (self.in_flight as usize) < self.size() { Verdict::Passes } else { Verdict::PassesInShadow }
        } else if self.in_flight < self.limit
            || envelope.reply_to.flight_id().is_some() && self.has_place() && self.fetches.is_empty()
            || envelope.tier == Tier::Critical
                && self.has_place()
                && self.fetches.is_empty()
                && !self.queue.has_any_of(Tier::Critical)
                && !self.queue.has_any_from(connection)
        {
            Verdict::Passes
        } else {
            Verdict::Waits
        }
    }

    /// Returns the reason with which requests to a stalled (silent) backend, or one busy with a script, are
    /// refused.
    pub fn why_stalled(&self, now: Timestamp) -> NotSent {
        if self.is_busy { NotSent::Busy } else { NotSent::Stalled(self.retry_stalled(now)) }
    }

    /// Returns the retry delay named to clients of a stalled (silent) backend: as long as it has been silent, but 100
    /// ms to 1 s.
    pub fn retry_stalled(&self, now: Timestamp) -> Duration {
        self.queue.silence(now).clamp(RETRY_STALLED.0, RETRY_STALLED.1)
    }

    /// Returns the retry delay named to clients when the queue is full: the time in which it is expected to
    /// empty, 10 ms (100 ms under lasting overload) to 1 s.
    pub fn retry_full(&self) -> Duration {
        let places = self.size().max(1) as f64;
        let wait =
            self.window.median().min(RETRY_FULL.1).mul_f64((self.queue.len() as f64 / places).min(1e6));
        let least = if self.queue.is_any_over() { RETRY_OVER } else { RETRY_FULL.0 };
        wait.clamp(least, RETRY_FULL.1)
    }

    /// Queues a fetch of a hot key (one read for all requests that wait), which takes the next free place in
    /// the window (limit on requests in flight).
    pub fn park_fetch(&mut self, parked: Parked) {
        self.fetches.push_back(parked);
        self.set_limit();
    }

    /// True if the queue of waiting requests has reached its limit. Once full, it counts as full until a
    /// quarter of the limit is free; the call records which is the case.
    pub fn check_full(&mut self) -> bool {
        self.queue.is_full()
    }

    /// Takes the newest request of the least important tier with waiting requests out of the full queue, to make room
    /// for one of `tier`; None if none of a less important tier than `tier` waits. The flag is true if its client
    /// connection, from which no more was read, may be read from again.
    pub fn displace(&mut self, tier: Tier) -> Option<(Parked, bool)> {
        self.queue.displace(tier).map(|taken| self.unpark(taken))
    }

    /// Queues a request (`parked`) after the earlier ones of its client connection. `Ok(true)` if no more requests of
    /// that connection should be read for now, because many wait (said once, until few wait); `Err` gives the request
    /// back if the queue has no room. `late` is the time by which this turn of the core (pass of its loop) began later
    /// than planned.
    pub fn park(
        &mut self,
        (connection, parked): (u64, Parked),
        late: Duration,
        now: Timestamp,
    ) -> Result<bool, Parked> {
        if !self.queue.is_empty() {
            self.begin_turn(late, now);
        }
        let (envelope, bytes) = (parked.envelope, parked.message.len());
        let index = self.parked.insert(parked);
        let waiting = Waiting {
            item: index as u32,
            connection,
            tenant: envelope.tenant(),
            tier: envelope.tier,
            cost: u64::from(envelope.weight).max(1) * (UNIT / 1_000),
            bytes,
            deadline: (envelope.deadline != Timestamp::MAX).then_some(envelope.deadline),
        };
        let pushed = self.queue.push(waiting, now);
        self.set_limit();
        pushed.map_err(|_| self.parked.remove(index))
    }

    /// True if requests were waiting at the last call, about 100 ms ago, and at the end of every turn (pass of the
    /// shard's loop) since: a sign of lasting overload, by which the backend's shedding level is decided.
    pub fn take_waits(&mut self) -> bool {
        let is_empty = self.is_empty();
        let was_empty = std::mem::replace(&mut self.was_empty, is_empty);
        !was_empty && !is_empty
    }

    /// True while requests wait or the backend is stalled (sends nothing although requests are in flight), so
    /// that the bulkhead (window and queue) is handled at the end of each turn (pass of the shard's loop).
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns all requests and fetches (shared reads of hot keys) that wait for room in the window (limit on
    /// requests in flight).
    pub fn parked(&self) -> impl Iterator<Item = &Parked> {
        self.parked.iter().map(|(_, parked)| parked).chain(&self.fetches)
    }

    /// Returns all queued requests, in no particular order, to be changed; without fetches (shared reads of hot keys).
    pub fn queued_mut(&mut self) -> impl Iterator<Item = &mut Parked> {
        self.parked.iter_mut().map(|(_, parked)| parked)
    }

    /// Takes the requests that `choose` selects out of the queue, each connection's in their order. `choose`
    /// sees every queued request and may change it. The flag with each says whether its client connection may
    /// be read from again.
    pub fn take_chosen(&mut self, mut choose: impl FnMut(&mut Parked) -> Choice) -> Vec<(Parked, bool)> {
        let Self { queue, parked, .. } = self;
        let taken = queue.take_chosen(|item| choose(&mut parked[item as usize]));
        let taken = taken.into_iter().map(|taken| self.unpark(taken)).collect();
        self.set_limit();
        taken
    }

    /// True if no request, and no fetch (shared read of a hot key), waits for room in the window (limit on
    /// requests in flight).
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.fetches.is_empty()
    }

    /// Begins to handle the bulkhead (window and queue) at the end of each turn (pass of the shard's loop),
    /// and to count its requests in flight by tenant. `in_flight` gives the tenants of those in flight now.
    pub fn begin_list(&mut self, in_flight: impl Iterator<Item = TenantId>) {
        self.is_listed = true;
        self.tenants.clear();
        in_flight.for_each(|tenant| *self.tenants.entry(tenant).or_default() += 1);
    }

    /// Takes out the requests that have waited too long or can no longer meet their deadline and, while nothing is sent
    /// to the backend, the requests and fetches (shared reads of hot keys) that have waited for more than 100 ms
    /// (`Queue::interval`). Passes each to `refuse` with the reason, and with a flag which says whether its client
    /// connection may be read from again.
    pub fn expire(&mut self, now: Timestamp, mut refuse: impl FnMut((Parked, bool), Refused)) {
        // Without requests in flight the next one is tried, as in [`Bulkhead::is_hopeless`]: replies may have
        // become faster.
        let expected = if self.in_flight == 0 { Duration::ZERO } else { self.expected() };
        let takes_nothing = self.takes_nothing();
        let Self { queue, parked, is_queue_obeyed, .. } = self;
        let mut has_missed = false;
        queue.expire(now, expected, (takes_nothing, *is_queue_obeyed), |taken, why| {
            has_missed |= why == Refused::Deadline;
            refuse((parked.remove(taken.item as usize), taken.is_eased), why);
        });
        while let Some(fetch) = self.fetches.front()
            && takes_nothing
            && now.since(fetch.came) > queue.interval()
        {
            refuse((self.fetches.pop_front().expect("it is the first"), false), Refused::Stalled);
        }
        if has_missed {
            self.window.handle_missed();
        }
    }

    /// Takes the next request to send, fetches (shared reads of hot keys) first. None if the window (limit on requests
    /// in flight) has no room, of which a tenth is reserved for fetches and critical requests, if nothing may be sent
    /// to the backend, or if nothing waits that may be taken: while several tenants wait in a tier (importance), none
    /// of them is given more than half of the window, rounded up. The first flag says whether the request's client
    /// connection may be read from again. The second says whether the request is so old that it would be refused if the
    /// queue were not in shadow mode.
    pub fn take(&mut self) -> Option<((Parked, bool), bool)> {
        let size = self.size() as u32;
        let is_reserved = self.fetches.is_empty() && !self.queue.has_any_of(Tier::Critical);
        let size = if is_reserved { size - size / RESERVED } else { size };
        if self.takes_nothing() || self.is_gated || self.in_flight >= size {
            return None;
        }
        if let Some(fetch) = self.fetches.pop_front() {
            return Some(((fetch, false), false));
        }
        let half = size.div_ceil(2);
        let tenants = &self.tenants;
        let may = |tenant: TenantId| tenants.get(&tenant).is_none_or(|count| *count < half);
        let taken = self.queue.take(may)?;
        Some((self.unpark(taken), taken.is_old))
    }

    /// Sets by `is_gated` whether the backend is ejected (taken out of use) or returning: each request is
    /// then checked by the breaker before it is sent.
    pub fn set_gated(&mut self, is_gated: bool) {
        self.is_gated = is_gated;
        self.set_limit();
    }

    /// True while the backend is ejected (taken out of use) or returning, so that the breaker checks each
    /// request.
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// True if the window (limit on requests in flight) permits another request, with its reserved tenth and whether or
    /// not others wait for it, or if windows are not in force.
    pub fn has_place(&self) -> bool {
        self.mode != Mode::On || (self.in_flight as usize) < self.size()
    }

    /// Takes the next waiting request, fetches first, whatever room the window has: the backend is ejected
    /// (taken out of use) or returning, and the caller refuses the request. The flag says whether its client
    /// connection may be read from again. None if none waits.
    pub fn take_gated(&mut self) -> Option<(Parked, bool)> {
        if let Some(fetch) = self.fetches.pop_front() {
            return Some((fetch, false));
        }
        let taken = self.queue.take(|_| true)?;
        Some(self.unpark(taken))
    }

    fn unpark(&mut self, taken: Taken<u32>) -> (Parked, bool) {
        (self.parked.remove(taken.item as usize), taken.is_eased)
    }

    /// Ends a turn (pass of the shard's loop) for a bulkhead (window and queue), and publishes its load to
    /// other cores. True if it need not be handled in the next turn: no request waits, and the backend is
    /// not stalled.
    pub fn end_turn(&mut self, board: Section<'_>) -> bool {
        if !self.is_empty() && !self.is_stalled && self.in_flight as usize >= self.window.size() * 9 / 10 {
            self.window.handle_limited();
        }
        self.queue.handle_turn_end();
        self.was_empty |= self.is_empty();
        self.set_limit();
        let is_calm = self.is_empty() && !self.is_stalled;
        if is_calm {
            self.is_listed = false;
            self.tenants.clear();
        }
        self.tell(board);
        is_calm
    }

    /// Publishes the load of this bulkhead (window and queue in front of a backend) to other cores over the
    /// board (state that all cores can read).
    pub fn tell(&self, board: Section<'_>) {
        board.tell_load(Load {
            waiting: self.queue.len() as u32,
            in_flight: self.in_flight,
            is_full: self.queue.would_be_full(),
            is_stalled: self.is_stalled,
            is_busy: self.is_busy,
        });
    }

    fn set_limit(&mut self) {
        let size = self.size() as u32;
        self.limit = match self.mode {
            _ if self.is_gated || self.is_busy => 0,
            Mode::Off => u32::MAX,
            Mode::Shadow => size,
            Mode::On if self.is_stalled || !self.is_empty() => 0,
            Mode::On => size - size / RESERVED,
        };
    }

    /// Frees the memory that the queue took while many requests waited, if none waits any more.
    pub fn tidy(&mut self) {
        if self.parked.is_empty() && self.parked.capacity() > PARKED_KEPT {
            self.parked = Slab::new();
        }
        self.queue.tidy();
    }

    /// Returns the figures of a bulkhead (window and queue in front of a backend) for reports; the fields
    /// about the backend as a whole are left at zero or None.
    pub fn figures(&self) -> Figures {
        Figures {
            in_flight: self.in_flight as usize,
            window: self.size(),
            held: self.queue.held(),
            age: self.queue.age(),
            base: self.window.base(),
            median: self.window.median(),
            is_full: self.queue.would_be_full(),
            is_stalled: self.is_stalled,
            level: 0,
            latency_ratio: None,
            breaker: BreakerStage::Well,
            ejections: 0,
            refused: 0,
        }
    }
}

/// The decision about a request that is checked against the backend's window (limit of requests in flight),
/// queue and latency, because the window was not known to have room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is sent to the backend now.
    Passes,
    /// The request is sent, although it would wait if windows were not in shadow mode (decisions are only
    /// counted).
    PassesInShadow,
    /// The request is to be queued in front of its backend, or refused where queues are switched off.
    Waits,
    /// The request is refused: it could not be answered by its deadline.
    TooLate,
    /// The request is refused because the backend is stalled (sends nothing although requests are in flight);
    /// the time is the retry delay named to the client.
    Stalled(Duration),
    /// The request is refused because the backend is busy with a script.
    Busy,
}

/// Figures of one bulkhead (window and queue in front of a backend) for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Number of requests in flight at the backend, of one core and on one track (usual or expensive requests).
    pub in_flight: usize,
    /// The window: the most requests that may be in flight to the backend, of one core and on one track (usual or
    /// expensive requests).
    pub window: usize,
    /// The number of the requests that wait in the queue, and of their bytes.
    pub held: Held,
    /// The time for which the oldest request in the queue has waited, without delays that the backend did not cause;
    /// zero if none waits.
    pub age: Duration,
    /// The backend's response time with few requests in flight, against which its present times are compared; zero
    /// while unknown.
    pub base: Duration,
    /// The median response time among the replies by which the window (limit on requests in flight) was last adjusted;
    /// zero before that.
    pub median: Duration,
    /// True if the queue in front of the backend accepts no more requests.
    pub is_full: bool,
    /// True while the backend counts as stalled (sends nothing although requests are in flight).
    pub is_stalled: bool,
    /// The shedding level that this core proposes for the backend, 0 (steady) to 3: at which prices less important
    /// tiers of requests are admitted, or whether they are refused. In force is the level on which the cores agree.
    pub level: u8,
    /// The latency ratio of the backend: usual divided by recent response time, 1 when steady, less when it
    /// is slow; None if there were too few replies.
    pub latency_ratio: Option<f64>,
    /// The stage of the backend's circuit breaker, which all cores share: each core, and each of the
    /// backend's bulkheads (windows and queues) on it, reports the same stage.
    pub breaker: BreakerStage,
    /// The number of times that this core ejected the backend (took it out of use, for all cores); in shadow mode, that
    /// it logged that it would have.
    pub ejections: u64,
    /// Number of requests to the backend, on any track, that this core refused because the backend was overloaded, or
    /// answered with an error because it had stalled or the reply was late.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::window::Bounds;
    use crate::protocol::{BufferPool, Protocol};
    use crate::shard::message::Message;
    use crate::shard::request::{Asker, Nature, Overdue, ReplyTo, Route, Touches, Track};
    use crate::values::{BackendId, ClientId, Database, ShardId};

    const TENANT: TenantId = TenantId(0);

    /// Returns a bulkhead (window and queue) that has seen 20 replies of the same duration, with no request in
    /// flight.
    fn after_replies(took: Duration) -> (Bulkhead, Timestamp) {
        let settings = OverloadSettings::new(1, 1);
        let mut bulkhead = Bulkhead::new(1, &settings, false);
        let mut now = Timestamp::from_millis(1_000);
        for _ in 0..20 {
            let sent_at = now;
            now = now.after(took);
            let depth = bulkhead.handle_sent(TENANT, sent_at);
            let in_flight = bulkhead.handle_over(TENANT);
            let late = Duration::ZERO;
            let sample = Sample { sent_at, late, in_flight, depth, kind: 0, is_costly: false, left: None };
            bulkhead.handle_reply(&sample, now, settings.board.of(ShardId(0), 0));
        }
        assert!(bulkhead.figures().median > took.mul_f64(0.99), "{:?}", bulkhead.figures());
        (bulkhead, now)
    }

    #[test]
    fn two_tenants_that_wait_fill_a_window_of_odd_size() {
        let window_bounds = Bounds { least: 3, most: 3 };
        let settings = OverloadSettings { window_bounds, ..OverloadSettings::new(1, 1) };
        let mut bulkhead = Bulkhead::new(1, &settings, false);
        let now = Timestamp::from_millis(1_000);
        bulkhead.begin_list(std::iter::empty());
        for connection in 0..6 {
            let mut parked = parked(Timestamp::MAX, now);
            let tenant = TenantId(connection as u16 % 2);
            parked.envelope.asker = Some(Asker::new(tenant, 0));
            bulkhead.park((connection, parked), Duration::ZERO, now).expect("there is room");
        }
        let mut sent = [0; 2];
        while let Some(((parked, _), _)) = bulkhead.take() {
            let tenant = parked.envelope.tenant();
            sent[usize::from(tenant.0)] += 1;
            bulkhead.handle_sent(tenant, now);
        }
        sent.sort_unstable();
        assert_eq!(sent, [1, 2]);
    }

    /// Returns a request with this deadline that waits in a queue since `now`, for tests.
    fn parked(deadline: Timestamp, now: Timestamp) -> Parked {
        let client = ClientId { index: 0, generation: 1 };
        let envelope = Envelope {
            reply_to: ReplyTo::new(ShardId(0), client, 0),
            route: Route {
                slot: 0,
                backend: BackendId(0),
                protocol: Protocol::Resp2,
                track: Track::Usual,
                database: Database::FIRST,
            },
            asker: None,
            nature: Nature::of_transaction(false),
            touches: Touches::NOTHING,
            tier: Tier::Standard,
            weight: 1,
            deadline,
            overdue: Overdue::Answered,
        };
        let message = Stored::new(Message::Small(b"PING"), &mut BufferPool::new(1));
        Parked { envelope, message, requests: 1, came: now, searched: None }
    }

    #[test]
    fn a_late_sign_of_a_busy_backend_stops_nothing_once_all_connections_to_it_are_lost() {
        let settings = OverloadSettings::new(1, 1);
        for is_lost in [false, true] {
            let mut bulkhead = Bulkhead::new(1, &settings, false);
            let sent_at = Timestamp::from_millis(1_000);
            bulkhead.handle_sent(TENANT, sent_at);
            let now = sent_at.after(SILENT + Duration::from_millis(10));
            bulkhead.handle_look(now);
            assert!(bulkhead.is_silent(), "so the backend is asked whether it is busy");
            if is_lost {
                bulkhead.handle_over(TENANT);
                bulkhead.handle_none_in_flight(now);
            }
            bulkhead.handle_sign(true);
            assert_eq!(bulkhead.has_room(Timestamp::MAX, now), is_lost);
        }
    }

    #[test]
    fn with_nothing_in_flight_the_next_waiting_is_tried_however_slow_replies_were() {
        let (mut bulkhead, now) = after_replies(Duration::from_millis(200));
        let deadline = now.after(Duration::from_millis(50));
        bulkhead.park((1, parked(deadline, now)), Duration::ZERO, now).expect("there is room");
        bulkhead.expire(now, |_, why| panic!("refused for {why:?}"));
        assert!(!bulkhead.is_hopeless(deadline, now));
        assert!(bulkhead.take().is_some(), "it is sent");
        // With another request in flight, replies are expected to take as long as before.
        bulkhead.handle_sent(TENANT, now);
        assert!(bulkhead.is_hopeless(deadline, now));
        bulkhead.park((2, parked(deadline, now)), Duration::ZERO, now).expect("there is room");
        let mut refused = Vec::new();
        bulkhead.expire(now, |_, why| refused.push(why));
        assert_eq!(refused, [Refused::Deadline]);
        // A request whose deadline has passed is not sent, whatever is in flight.
        bulkhead.handle_over(TENANT);
        let late = deadline.after(Duration::from_millis(1));
        bulkhead.park((3, parked(deadline, now)), Duration::ZERO, now).expect("there is room");
        bulkhead.expire(late, |_, why| refused.push(why));
        assert_eq!(refused, [Refused::Deadline; 2]);
        assert!(bulkhead.is_hopeless(deadline, late));
    }
}
