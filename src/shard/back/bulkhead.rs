//! What stands before one backend for requests of one kind: a window of those in flight, and a queue before it. One slow backend
//! fills its own, and nothing else.
//!
//! ```text
//!   request ── room in the window, and nobody waits? ──────────────────────────────> link
//!       └─ else: hopeless, stalled, full? told at once ── queue ── room again ──────> link
//!                                                            └─ too old, too late: told at once
//! ```
//!
//! A fetch of a hot key stands for all requests that wait for it, so it takes the next place that becomes free, before anything that
//! is queued. Those are few: two in flight for a question at most, and one that waits.
//!
//! A bulkhead that has nothing waiting costs a comparison and a count. One that has is looked after at the end of every turn, at
//! least every few milliseconds.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use slab::Slab;

use super::BreakerStage;
use crate::policy::queue::{Choice, Circumstances, Held, Queue, Refused, Taken, Waiting};
use crate::policy::window::{Sample, Window};
use crate::shard::board::{Load, Section};
use crate::shard::request::Envelope;
use crate::shard::settings::{Mode, OverloadSettings};
use crate::shard::stored::Stored;
use crate::values::{TenantId, Tier, Timestamp, UNIT};

/// A backend that is silent for so long, or for as many medians, has stalled.
const STALLED: Duration = Duration::from_millis(250);
const STALLED_MEDIANS: u32 = 4;
/// The same where it is not known what replies take.
const STALLED_UNKNOWN: Duration = Duration::from_secs(1);
/// When to come back to a backend that has stalled.
const RETRY_STALLED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// And to one that is asked too much: later where more is asked than it can do for some time.
const RETRY_FULL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const RETRY_OVER: Duration = Duration::from_millis(100);
/// Room for so many requests that wait is kept while none does.
const PARKED_KEPT: usize = 64;
/// One in so many of a window's places is for what is critical.
pub const RESERVED: u32 = 10;

/// A request that waits.
#[derive(Debug)]
pub struct Parked {
    pub envelope: Envelope,
    pub message: Stored,
    /// Of how many requests its message is made.
    pub requests: usize,
    pub came: Timestamp,
}

/// One backend's, for requests of one kind.
#[derive(Debug)]
pub struct Bulkhead {
    window: Window,
    mode: Mode,
    queue: Queue<u32>,
    is_queue_obeyed: bool,
    parked: Slab<Parked>,
    /// Fetches of hot keys, which go before all that is queued.
    fetches: VecDeque<Parked>,
    in_flight: u32,
    /// With as many in flight, whoever comes is looked at more closely.
    limit: u32,
    /// What a reply takes with the window full, in nanoseconds.
    full_nanos: u64,
    /// It is what costs much: it may take long, and that is no stall.
    is_patient: bool,
    is_stalled: bool,
    /// The backend is sick: its requests are looked at one by one, and none waits.
    is_gated: bool,
    /// What a reply took of late, if one has come.
    took: Option<Duration>,
    /// Nothing waited at some time since this was asked last.
    was_empty: bool,
    /// It is looked after at the end of each turn.
    is_listed: bool,
    /// How many each tenant has in flight, while requests wait.
    tenants: HashMap<TenantId, u32>,
}

impl Bulkhead {
    pub fn new(shards: u16, settings: &OverloadSettings, is_patient: bool) -> Self {
        let mut bulkhead = Self {
            window: Window::new(shards, settings.window_bounds),
            mode: settings.window,
            queue: Queue::new(settings.queue_limit, settings.queue_patience, Timestamp::ZERO),
            is_queue_obeyed: settings.queue == Mode::On,
            parked: Slab::new(),
            fetches: VecDeque::new(),
            in_flight: 0,
            limit: u32::MAX,
            full_nanos: 0,
            is_patient,
            is_stalled: false,
            is_gated: false,
            took: None,
            was_empty: true,
            is_listed: false,
            tenants: HashMap::new(),
        };
        bulkhead.set_limit();
        bulkhead
    }

    /// May a request go on as it comes? Surely, if there is room, and time even with the window full; else it is looked at.
    #[inline]
    pub fn has_room(&self, deadline: Timestamp, now: Timestamp) -> bool {
        self.in_flight < self.limit && now.as_nanos() + self.full_nanos <= deadline.as_nanos()
    }

    /// Whether a request is turned away because it could not be answered in time.
    pub fn misses(&mut self, deadline: Timestamp, now: Timestamp) -> bool {
        let is_hopeless = self.is_hopeless(deadline, now);
        if is_hopeless {
            self.window.handle_missed();
        }
        is_hopeless
    }

    /// Could it not be answered in time?
    pub fn is_hopeless(&self, deadline: Timestamp, now: Timestamp) -> bool {
        // With nothing in flight one is tried all the same: else nobody would find out that replies have become quicker.
        now.after(self.expected()) > deadline && (self.in_flight > 0 || now > deadline)
    }

    /// A request was not answered in time.
    pub fn handle_missed(&mut self) {
        self.window.handle_missed();
    }

    fn expected(&self) -> Duration {
        self.window.expected(self.in_flight as usize)
    }

    /// One more is in flight. How many that are.
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

    /// One that was in flight is not any more. How many were, with it.
    #[inline]
    pub fn handle_over(&mut self, tenant: TenantId) -> usize {
        let before = self.in_flight as usize;
        self.in_flight -= 1;
        if self.is_listed {
            self.discount_tenant(tenant);
        }
        before
    }

    /// How many are in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The connections were lost: nothing is in flight that a stalled backend could answer.
    pub fn handle_none_in_flight(&mut self, now: Timestamp) {
        if self.in_flight == 0 && self.is_stalled {
            self.end_stall(now);
        }
    }

    /// Should the reply to what was sent then be looked at more closely?
    #[inline]
    pub fn wants(&mut self, sent_at: Timestamp, now: Timestamp) -> bool {
        self.mode != Mode::Off && self.window.wants(sent_at, now)
    }

    /// A reply that is looked at.
    #[inline(never)]
    pub fn handle_reply(&mut self, sample: &Sample, now: Timestamp, mut board: Section<'_>) {
        self.took = Some(now.since(sample.sent_at));
        self.window.handle_reply(sample, now, &mut board);
        self.full_nanos = self.window.expected(usize::MAX).as_nanos() as u64;
        self.set_limit();
    }

    /// The backend gives a sign.
    #[inline]
    pub fn handle_progress(&mut self, late: Duration, now: Timestamp) {
        if self.is_listed {
            self.handle_look(now);
            self.begin_turn(late, now);
        }
        if self.is_stalled {
            self.end_stall(now);
        }
        self.queue.handle_progress(now);
    }

    fn end_stall(&mut self, now: Timestamp) {
        self.is_stalled = false;
        self.window.handle_stall_end(now);
        self.set_limit();
    }

    /// This core did not run for so long.
    pub fn handle_late(&mut self, late: Duration) {
        self.queue.handle_late(late);
    }

    /// Whether the backend has just been found to stand still.
    pub fn handle_look(&mut self, now: Timestamp) -> bool {
        // Where no reply has come yet, it may be far away.
        let patience = self.took.map_or(STALLED_UNKNOWN, |took| {
            let median = self.window.median();
            STALLED.max(STALLED_MEDIANS * if median.is_zero() { took } else { median })
        });
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

    /// Is the backend silent?
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// The clock of what waits goes on. Nothing if that was done in this turn.
    pub fn begin_turn(&mut self, late: Duration, now: Timestamp) {
        let circumstances = Circumstances {
            late,
            in_flight: self.in_flight as usize,
            median: self.window.median(),
            is_growing: self.window.is_growing(),
        };
        self.queue.handle_turn(now, &circumstances);
    }

    /// A request for which there is no room as it comes: why it goes no further, or nothing if it goes on at once.
    pub fn judge(&mut self, envelope: &Envelope, now: Timestamp) -> Verdict {
        if self.misses(envelope.deadline, now) {
            Verdict::TooLate
        } else if self.is_stalled {
            Verdict::Stalled(self.retry_stalled(now))
        } else if self.mode == Mode::Shadow {
            Verdict::PassesInShadow
        } else if self.in_flight < self.limit
            || envelope.reply_to.flight_id().is_some() && self.has_place() && self.fetches.is_empty()
            || envelope.tier == Tier::Critical
                && self.has_place()
                && self.fetches.is_empty()
                && !self.queue.has_any_of(Tier::Critical)
        {
            Verdict::Passes
        } else {
            Verdict::Waits
        }
    }

    /// When it makes sense to ask a backend again that has stalled.
    pub fn retry_stalled(&self, now: Timestamp) -> Duration {
        self.queue.silence(now).clamp(RETRY_STALLED.0, RETRY_STALLED.1)
    }

    /// When what waits now will have been served.
    pub fn retry_full(&self) -> Duration {
        let places = self.window.size().max(1) as f64;
        let wait =
            self.window.median().min(RETRY_FULL.1).mul_f64((self.queue.len() as f64 / places).min(1e6));
        let least = if self.queue.is_any_over() { RETRY_OVER } else { RETRY_FULL.0 };
        wait.clamp(least, RETRY_FULL.1)
    }

    /// A fetch of a hot key waits for the next place in the window.
    pub fn park_fetch(&mut self, parked: Parked) {
        self.fetches.push_back(parked);
        self.set_limit();
    }

    /// Is there no room for one more to wait?
    pub fn is_full(&mut self) -> bool {
        self.queue.is_full()
    }

    /// Takes the place of something that matters less, if anything does.
    pub fn displace(&mut self, tier: Tier) -> Option<(Parked, bool)> {
        self.queue.displace(tier).map(|taken| self.unpark(taken))
    }

    /// It waits, in the order of its connection. Whether no more of that should be taken on; or it is given back, where there is no room.
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

    /// Has something waited all along since this was asked last?
    pub fn take_waits(&mut self) -> bool {
        let is_empty = self.is_empty();
        let was_empty = std::mem::replace(&mut self.was_empty, is_empty);
        !was_empty && !is_empty
    }

    /// Is it looked after at the end of each turn?
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// All that waits.
    pub fn parked(&self) -> impl Iterator<Item = &Parked> {
        self.parked.iter().map(|(_, parked)| parked).chain(&self.fetches)
    }

    /// Takes chosen requests out of the queue, each connection's in their order; `choose` sees all that is queued and may change it.
    /// With each comes whether that eases its connection.
    pub fn take_chosen(&mut self, mut choose: impl FnMut(&mut Parked) -> Choice) -> Vec<(Parked, bool)> {
        let Self { queue, parked, .. } = self;
        let taken = queue.take_chosen(|item| choose(&mut parked[item as usize]));
        let taken = taken.into_iter().map(|taken| self.unpark(taken)).collect();
        self.set_limit();
        taken
    }

    /// Does nothing wait?
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.fetches.is_empty()
    }

    /// It is looked after from now on, and what is in flight is counted by tenants.
    pub fn begin_list(&mut self, in_flight: impl Iterator<Item = TenantId>) {
        self.is_listed = true;
        self.tenants.clear();
        in_flight.for_each(|tenant| *self.tenants.entry(tenant).or_default() += 1);
    }

    /// What waits for too long, or too late, is told so.
    pub fn expire(&mut self, now: Timestamp, mut refuse: impl FnMut((Parked, bool), Refused)) {
        // With nothing in flight the next one is tried, as in `is_hopeless`: replies may have become quicker.
        let expected = if self.in_flight == 0 { Duration::ZERO } else { self.expected() };
        let Self { queue, parked, is_stalled, is_queue_obeyed, .. } = self;
        let mut has_missed = false;
        queue.expire(now, expected, (*is_stalled, *is_queue_obeyed), |taken, why| {
            has_missed |= why == Refused::Deadline;
            refuse((parked.remove(taken.item as usize), taken.is_eased), why);
        });
        while let Some(fetch) = self.fetches.front()
            && *is_stalled
            && now.since(fetch.came) > queue.interval()
        {
            refuse((self.fetches.pop_front().expect("it is the first"), false), Refused::Stalled);
        }
        if has_missed {
            self.window.handle_missed();
        }
    }

    /// The next one that is sent, if there is room for it, whether that eases its connection, and whether it waited for too long.
    pub fn take(&mut self) -> Option<((Parked, bool), bool)> {
        let size = self.window.size() as u32;
        let is_reserved = self.fetches.is_empty() && !self.queue.has_any_of(Tier::Critical);
        let size = if is_reserved { size - size / RESERVED } else { size };
        if self.is_stalled || self.is_gated || self.in_flight >= size {
            return None;
        }
        if let Some(fetch) = self.fetches.pop_front() {
            return Some(((fetch, false), false));
        }
        let half = (size / 2).max(1);
        let has_rivals = self.queue.has_rivals();
        let tenants = &self.tenants;
        let may = |tenant: TenantId| !has_rivals || tenants.get(&tenant).is_none_or(|count| *count < half);
        let taken = self.queue.take(may)?;
        Some((self.unpark(taken), taken.is_old))
    }

    /// Whether the backend is sick, from now on.
    pub fn set_gated(&mut self, is_gated: bool) {
        self.is_gated = is_gated;
        self.set_limit();
    }

    /// Is it?
    pub fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// Is there room in the window, whatever waits?
    pub fn has_place(&self) -> bool {
        self.mode != Mode::On || (self.in_flight as usize) < self.window.size()
    }

    /// The next one that waited for a backend that has been set aside.
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

    /// The end of a turn. Whether it need not be looked after any more.
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

    /// Others are told how it stands.
    pub fn tell(&self, board: Section<'_>) {
        board.tell_load(Load {
            waiting: self.queue.len() as u32,
            in_flight: self.in_flight,
            is_full: self.queue.would_be_full(),
            is_stalled: self.is_stalled,
        });
    }

    fn set_limit(&mut self) {
        let size = self.window.size() as u32;
        self.limit = match self.mode {
            _ if self.is_gated => 0,
            Mode::Off => u32::MAX,
            Mode::Shadow => size,
            Mode::On if self.is_stalled || !self.is_empty() => 0,
            Mode::On => size - size / RESERVED,
        };
    }

    /// Gives back what a burst took, once nothing waits.
    pub fn tidy(&mut self) {
        if self.parked.is_empty() && self.parked.capacity() > PARKED_KEPT {
            self.parked = Slab::new();
        }
        self.queue.tidy();
    }

    /// In flight, the window, what waits and for how long, and what replies take at best and in the mean.
    pub fn figures(&self) -> Figures {
        Figures {
            in_flight: self.in_flight as usize,
            window: self.window.size(),
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

/// What becomes of a request for which there is no room as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Passes,
    /// The same, though it should have waited.
    PassesInShadow,
    /// It waits, if it may.
    Waits,
    /// It could not be answered in time.
    TooLate,
    /// The backend stands still; when to come back.
    Stalled(Duration),
}

/// How it stands with one bulkhead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests in flight.
    pub in_flight: usize,
    /// How many there may be.
    pub window: usize,
    /// What waits.
    pub held: Held,
    /// For how long the oldest has.
    pub age: Duration,
    /// What a reply takes when little waits at the backend, and in the mean of late.
    pub base: Duration,
    /// The median of what replies took in the last round.
    pub median: Duration,
    /// No more may wait.
    pub is_full: bool,
    /// The backend gives no sign.
    pub is_stalled: bool,
    /// How much this core would hold back of what matters little: of the backend as a whole.
    pub level: u8,
    /// The latency ratio that was seen last.
    pub latency_ratio: Option<f64>,
    /// What is done with the requests of the backend as a whole.
    pub breaker: BreakerStage,
    /// How often this core set the backend as a whole aside.
    pub ejections: u64,
    /// What this core refused because the backend as a whole could not have answered in time.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{BufferPool, Protocol};
    use crate::shard::message::Message;
    use crate::shard::request::{Nature, Overdue, ReplyTo, Route, Touches, Track};
    use crate::values::{BackendId, ClientId, ShardId};

    const TENANT: TenantId = TenantId(0);

    /// A bulkhead that has seen replies which each took so long, with nothing in flight any more.
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

    /// A request with this deadline.
    fn parked(deadline: Timestamp, now: Timestamp) -> Parked {
        let client = ClientId { index: 0, generation: 1 };
        let envelope = Envelope {
            reply_to: ReplyTo::new(ShardId(0), client, 0),
            route: Route { slot: 0, backend: BackendId(0), protocol: Protocol::Resp2, track: Track::Usual },
            asker: None,
            nature: Nature::TRANSACTION,
            touches: Touches::NOTHING,
            tier: Tier::Standard,
            weight: 1,
            deadline,
            overdue: Overdue::Answered,
        };
        let message = Stored::new(Message::Small(b"PING"), &mut BufferPool::new(1));
        Parked { envelope, message, requests: 1, came: now }
    }

    #[test]
    fn with_nothing_in_flight_the_next_waiting_is_tried_however_slow_replies_were() {
        let (mut bulkhead, now) = after_replies(Duration::from_millis(200));
        let deadline = now.after(Duration::from_millis(50));
        bulkhead.park((1, parked(deadline, now)), Duration::ZERO, now).expect("there is room");
        bulkhead.expire(now, |_, why| panic!("refused for {why:?}"));
        assert!(!bulkhead.is_hopeless(deadline, now));
        assert!(bulkhead.take().is_some(), "it is sent");
        // Behind another one replies take what they took.
        bulkhead.handle_sent(TENANT, now);
        assert!(bulkhead.is_hopeless(deadline, now));
        bulkhead.park((2, parked(deadline, now)), Duration::ZERO, now).expect("there is room");
        let mut refused = Vec::new();
        bulkhead.expire(now, |_, why| refused.push(why));
        assert_eq!(refused, [Refused::Deadline]);
        // Whatever is in flight, what is late already is not sent.
        bulkhead.handle_over(TENANT);
        let late = deadline.after(Duration::from_millis(1));
        bulkhead.park((3, parked(deadline, now)), Duration::ZERO, now).expect("there is room");
        bulkhead.expire(late, |_, why| refused.push(why));
        assert_eq!(refused, [Refused::Deadline; 2]);
        assert!(bulkhead.is_hopeless(deadline, late));
    }
}
