//! The decision whether a request may pass. Its estimated price is taken before it is sent, and corrected
//! when its reply has come.
//!
//! ```text
//! asked ──estimate──> global, tenant, user: checked together, then taken together
//! │ enough     │ not enough        │ only the pool knows
//! v            v                   v
//! passes      throttled      the client's request waits for the answer
//! reply ──actual──> the difference is booked, and the estimate of the next such request learns from it
//! ```

use std::collections::HashMap;
use std::time::Duration;

use super::AdmissionStage;
use super::accounts::{Charge, Decision, Outlook, Payer, Scope};
use crate::config::Quotas;
use crate::policy::fixed_window::FixedWindow;
use crate::policy::price::{Asked, Quote};
use crate::policy::slice::Verdict;
use crate::protocol::command::Class;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::request::Track;
use crate::shard::settings::Limiter;
use crate::values::time::Now;
use crate::values::{MicroUnits, Price, TenantId, Timestamp, UNIT, Usage};

/// The decision of the admission stage on a request: it passes, waits for something, or is refused.
#[derive(Clone, Copy, Debug)]
pub enum Admission {
    /// The request is admitted. The charge is corrected to the real cost when its reply comes; None where requests have
    /// no price, or where the price is final already, and in shadow mode (decisions are only counted) for a request
    /// that would not have been admitted at once.
    Passed(Option<Charge>),
    /// The request has to wait for the replies to its client's requests in flight, as it would otherwise take
    /// another track (set of backend connections) and overtake them.
    AfterReplies,
    /// The request has to wait until another request of its tenant is settled (charged at its real cost), or for 100
    /// ms, and is then decided on again.
    AfterSettlement,
    /// The request waits for the answer of the control executor (which divides quotas among cores) about a quota, and
    /// is then decided on again.
    AfterGrant,
    /// The request is refused because a quota is used up, or might not cover it along with the requests in flight.
    Throttled(Throttled),
}

/// The quota for which a request is refused, and the time until it has enough again.
#[derive(Clone, Copy, Debug)]
pub struct Throttled {
    /// The scope of the quota: global, a tenant's, or a user's.
    pub scope: Scope,
    /// The rate of the quota, in request units per second.
    pub limit: u64,
    /// The whole request units that are left in the bucket, as far as this core knows; 0 under the static
    /// limiter.
    pub remaining: u64,
    /// The time after which the client should try again, lengthened at random by up to a quarter (except under
    /// the static limiter), so that refused clients do not all return at once.
    pub retry_after: Duration,
}

/// The estimated cost of a request, from what is known before its reply.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The parts of the cost that follow from command and arguments, including the surcharge for a slow
    /// backend.
    pub quote: Quote,
    /// The expected cost beyond the part that is known on arrival, learnt from the tenant's recent requests
    /// of the same class, in millionths of a request unit.
    pub expected: MicroUnits,
    /// The whole estimated price: the quote's fixed part and the expected rest or, if more, the price of the keys and
    /// entries that the request names; but at least the quote's floor (the least price of a request of this kind).
    pub total: Price,
    /// The part of the price that is added because the backend is slow (shedding level), in millionths of a
    /// request unit.
    pub surcharge: MicroUnits,
}

/// The most requests about quotas (`QOS`) of one tenant's clients that a core answers per second while a quota
/// that pays for them is deep in debt; further ones are throttled.
const QUESTIONS_IN_DEBT_MAX: u32 = 10;

/// Counts, by tenant, the requests about quotas (`QOS`) that came in the current second while a quota of their payer
/// (account that is charged) was deep in debt. A second begins with the first such request after the last one.
#[derive(Debug, Default)]
pub struct QuestionsInDebt {
    since: Timestamp,
    counts: HashMap<TenantId, u32>,
}

impl QuestionsInDebt {
    /// Counts one more request about quotas (`QOS`) of a tenant in debt. True if no more than 10
    /// (`QUESTIONS_IN_DEBT_MAX`) of the tenant's came in this second, so that the request is answered.
    fn takes(&mut self, tenant: TenantId, now: Timestamp) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.counts.clear();
        }
        let count = self.counts.entry(tenant).or_default();
        *count += 1;
        *count <= QUESTIONS_IN_DEBT_MAX
    }
}

impl AdmissionStage {
    /// Admits a request and takes its price from its payer's open tab. A payer is the account that is
    /// charged; a tab is the sum of one payer's consecutive requests. Returns None, with no price taken, if
    /// the payer has no open tab or the tab alone cannot decide; the caller then uses [`Self::admit`].
    /// `take_track` puts the request on its track (set of backend connections), or returns false if it must
    /// wait for its client's requests in flight. `asked` are the facts about the request's cost, `class` the
    /// class of its command.
    #[expect(clippy::inline_always, reason = "every request: a call would be a third of it")]
    #[inline(always)]
    pub fn admit_on_tab(
        &mut self,
        payer: Payer,
        (asked, class): (&Asked, Class),
        mut take_track: impl FnMut(Track) -> bool,
        now: Now,
    ) -> Option<Charge> {
        // A tab is open only while requests have prices, so the prices need no check here.
        let tab = self.accounts.tab_of(payer)?;
        let weights = &self.settings.weights;
        let quote = weights.quote(asked);
        let taken = weights.estimate(&quote, tab.expected(class));
        let whole = taken.micro().saturating_add(tab.expected_unbilled(class));
        let track = track_of(self.heavy_from, whole, class, tab.is_seen(class));
        let is_taken =
            tab.could_pay(taken, class) && take_track(track) && tab.take(taken, class, now.monotonic);
        is_taken.then_some(Charge { taken, quote, payer, class, is_unrefused: false })
    }

    /// Decides on a request that arrived at `came`, and takes its price if it is admitted. The price is
    /// `percent` of the usual one (above 100 if the backend is slow). `take_track` puts the request on its
    /// track (set of backend connections), or returns false if it must wait for its client's requests in
    /// flight. `asked` are the facts about the request's cost, `class` the class of its command.
    pub fn admit(
        &mut self,
        env: &mut Env,
        payer: Payer,
        came: Timestamp,
        (asked, class, percent): (&Asked, Class, u32),
        mut take_track: impl FnMut(Track) -> bool,
        now: Now,
    ) -> Admission {
        match &self.settings.limiter {
            Limiter::Off => return Admission::Passed(None),
            Limiter::Static(_) if !take_track(Track::Usual) => return Admission::AfterReplies,
            Limiter::Static(_) => return count(&env.quotas, payer, &self.windows, now),
            Limiter::Shadow | Limiter::Buckets => {}
        }
        let Estimate { quote, total: cost, .. } = self.estimate(Some(payer), (asked, class, percent));
        let track = self.track(Some(payer), class, cost);
        if let Some(admission) = self.hold_back(env, payer, came, (class, cost), now) {
            return admission;
        }
        if !take_track(track) {
            return Admission::AfterReplies;
        }
        match self.accounts.admit(payer, cost, now.monotonic) {
            Decision::Admitted => {
                self.accounts.begin(payer, class);
                Admission::Passed(Some(Charge { taken: cost, quote, payer, class, is_unrefused: false }))
            }
            decision => self.handle_not_admitted(env, (payer, cost), decision, now),
        }
    }

    /// Decides on a request that weir answers by itself and whose only price is that of its bytes and its reply's.
    /// Takes that price, which is final, if the request is admitted.
    pub fn admit_bytes(
        &mut self,
        env: &mut Env,
        payer: Payer,
        (bytes_in, bytes_out): (usize, usize),
        now: Now,
    ) -> Admission {
        if !self.is_priced() {
            return Admission::Passed(None);
        }
        let cost = self.settings.weights.of_bytes(bytes_in as u64, bytes_out as u64);
        match self.accounts.admit(payer, cost, now.monotonic) {
            Decision::Admitted => {
                let usage = Usage { admitted: cost.micro(), ..Usage::default() };
                self.accounts.meter(payer.tenant(), usage, now.monotonic);
                Admission::Passed(None)
            }
            decision => self.handle_not_admitted(env, (payer, cost), decision, now),
        }
    }

    /// Handles a request that the buckets' `decision` does not admit now: it waits for the control executor's
    /// answer or is refused, or in shadow mode passes. Counts it accordingly. `cost` is its price.
    fn handle_not_admitted(
        &mut self,
        env: &mut Env,
        (payer, cost): (Payer, Price),
        decision: Decision,
        now: Now,
    ) -> Admission {
        match decision {
            Decision::Admitted => Admission::Passed(None),
            // In shadow mode no request waits: the decision that it would have got is found out later.
            Decision::Wait if self.is_shadow() => {
                self.undecided_in_shadow.push((payer, cost));
                Admission::Passed(None)
            }
            Decision::Wait => {
                env.counters.add(Counter::AdmissionsWaited, 1);
                Admission::AfterGrant
            }
            Decision::Refused { scope, retry_after } => {
                self.throttle(env, (payer, cost), (scope, retry_after), now)
            }
        }
    }

    /// Estimates the price of a request now. It is `percent` of the usual price; below 100 counts as 100.
    /// `asked` are the facts about the request's cost, `class` the class of its command; `payer` is the
    /// account of its client, if the client has one.
    pub fn estimate(
        &mut self,
        payer: Option<Payer>,
        (asked, class, percent): (&Asked, Class, u32),
    ) -> Estimate {
        let expected = payer.map_or(0, |payer| self.accounts.expected(payer, class));
        let weights = &self.settings.weights;
        let mut quote = weights.quote(asked);
        let mut total = weights.estimate(&quote, expected);
        let mut surcharge = 0;
        if percent > 100 {
            // The surcharge of a strained backend is due whatever the reply is.
            surcharge = quote.add_surcharge(total.micro().saturating_mul(u64::from(percent - 100)) / 100);
            total = weights.estimate(&quote, expected);
        }
        Estimate { quote, expected, total, surcharge }
    }

    /// Returns the track (set of backend connections) for a request with this estimated price: the heavy one
    /// for expensive requests. Time of the store that is not billed counts as if it were. `payer` is the account
    /// of the request's client, if it has one.
    pub fn track(&mut self, payer: Option<Payer>, class: Class, estimate: Price) -> Track {
        let Some(payer) = payer.filter(|_| self.is_priced()) else { return Track::Usual };
        let whole = estimate.micro().saturating_add(self.accounts.expected_unbilled(payer, class));
        track_of(self.heavy_from, whole, class, self.accounts.is_seen(payer, class))
    }

    /// Counts a request that is answered even if its quota is used up, such as a login, as in flight, and
    /// returns its charge. Nothing is taken until its real cost is known. `payer` is the account that is
    /// charged; None for a client without a tenant, which is charged nothing. Returns None without a payer,
    /// and where requests have no prices.
    pub fn charge_afterwards(&mut self, payer: Option<Payer>, asked: &Asked, class: Class) -> Option<Charge> {
        let payer = payer.filter(|_| self.is_priced())?;
        self.accounts.begin(payer, class);
        let quote = self.settings.weights.quote(asked);
        Some(Charge { taken: Price::ZERO, quote, payer, class, is_unrefused: true })
    }

    /// Decides on a request about quotas, which is answered even if its payer's quota is used up. Once the payer
    /// (account that is charged) owes so much that the request would not be paid for, this core answers a few of its
    /// tenant's each second (`QUESTIONS_IN_DEBT_MAX`), and others are throttled.
    pub fn admit_in_debt(
        &mut self,
        env: &mut Env,
        payer: Payer,
        (asked, class): (&Asked, Class),
        now: Now,
    ) -> Admission {
        if !self.is_priced() {
            return Admission::Passed(None);
        }
        let cost = self.estimate(Some(payer), (asked, class, 100)).total;
        let overdrawn = self.accounts.overdrawn(payer, cost, now.monotonic);
        match overdrawn.filter(|_| !self.questions.takes(payer.tenant(), now.monotonic)) {
            Some(refused) => self.throttle(env, (payer, cost), refused, now),
            None => Admission::Passed(self.charge_afterwards(Some(payer), asked, class)),
        }
    }

    /// Foretells what the quota of one scope (global, tenant or user) alone would decide about a request of this
    /// price. Returns the decision, the quota's rate in request units per second, and the whole units that are left
    /// of it; under the static limiter, the rate in requests per second, and the number of requests that are left in
    /// this second. None if the scope has no limit. Takes nothing.
    pub fn forecast(
        &mut self,
        quotas: &Quotas,
        scope: Scope,
        cost: Price,
        now: Timestamp,
    ) -> Option<(Verdict, u64, u64)> {
        if matches!(self.settings.limiter, Limiter::Static(_)) {
            let Scope::Tenant(tenant) = scope else { return None };
            let limit = quotas.tenant(tenant).limit?.ru_per_second;
            let (left, until_next) = self.windows[usize::from(tenant.0)].left(limit, now);
            let verdict = if left > 0 { Verdict::Fits } else { Verdict::Refused(until_next) };
            return Some((verdict, limit, left));
        }
        let (verdict, capacity, remaining) = self.peek(scope, cost, now)?;
        Some((verdict, capacity.ru_per_second(), remaining / UNIT))
    }

    /// Decides on all requests that passed in shadow mode (decisions are only counted) before the control executor had
    /// answered about a quota, takes the price of those that would have been admitted, and counts those that would have
    /// been refused.
    pub fn decide_in_shadow(&mut self, env: &mut Env, now: Now) {
        for (payer, cost) in std::mem::take(&mut self.undecided_in_shadow) {
            self.decide_one_in_shadow(env, payer, cost, now);
        }
    }

    /// Decides on a request that has passed in shadow mode (decisions are only counted), by its estimated
    /// price, which is taken if it would have been admitted. A request that passed under earlier quotas is
    /// not counted; one about which the control executor still has not answered is decided on later.
    fn decide_one_in_shadow(&mut self, env: &mut Env, payer: Payer, cost: Price, now: Now) {
        if payer.versions_before(env.quotas.version()) != 0 {
            return;
        }
        let usage = match self.accounts.admit(payer, cost, now.monotonic) {
            Decision::Wait => return self.undecided_in_shadow.push((payer, cost)),
            Decision::Admitted => Usage { admitted: cost.micro(), ..Usage::default() },
            Decision::Refused { .. } => {
                env.counters.add(Counter::ThrottledInShadow, 1);
                Usage { throttled: cost.micro(), ..Usage::default() }
            }
        };
        self.accounts.meter(payer.tenant(), usage, now.monotonic);
    }

    /// Decides whether a request must wait until another request of its tenant in flight is charged at its real cost;
    /// None if it may go on, as always in shadow mode. It waits if the cost of its class is not known well enough, or
    /// if a bucket might not cover it along with all requests in flight. In the second case it is refused once 100 ms
    /// have passed since it arrived (`came`), so that waits of requests of one client do not add up, or if too many
    /// requests of its tenant wait already.
    fn hold_back(
        &mut self,
        env: &mut Env,
        payer: Payer,
        came: Timestamp,
        (class, cost): (Class, Price),
        now: Now,
    ) -> Option<Admission> {
        if self.is_shadow() {
            return None;
        }
        match self.accounts.outlook(payer, class, cost, now.monotonic) {
            // A request that its bucket refuses anyway does not wait for that.
            Outlook::Covered | Outlook::Lacking => return None,
            Outlook::Unknown => {}
            Outlook::Risky { scope, retry_after } => {
                let has_waited = now.monotonic.since(came) >= SETTLEMENT_PATIENCE;
                let places = WAITING_MIN.max(self.accounts.under_way(payer.tenant()) as usize);
                if has_waited || self.for_settlement.waiting(payer.tenant()) >= places {
                    self.accounts.handle_denied(scope, cost, now.monotonic);
                    return Some(self.throttle(env, (payer, cost), (scope, retry_after), now));
                }
            }
        }
        env.counters.add(Counter::AdmissionsHeld, 1);
        Some(Admission::AfterSettlement)
    }

    /// Refuses a request because the bucket of a scope (global, tenant or user) has less than its price, and
    /// counts the price as throttled. In shadow mode the request passes, and is only counted. `cost` is that
    /// price, and `retry_after` the time after which the client may try again.
    fn throttle(
        &mut self,
        env: &mut Env,
        (payer, cost): (Payer, Price),
        (scope, retry_after): (Scope, Duration),
        now: Now,
    ) -> Admission {
        let usage = Usage { throttled: cost.micro(), ..Usage::default() };
        self.accounts.meter(payer.tenant(), usage, now.monotonic);
        if self.is_shadow() {
            env.counters.add(Counter::ThrottledInShadow, 1);
            return Admission::Passed(None);
        }
        let retry_after = jittered(retry_after, env.random_byte());
        let known = self.accounts.remaining(scope, now.monotonic);
        let (capacity, remaining) = known.expect("a scope that refuses has a bucket");
        let (limit, remaining) = (capacity.ru_per_second(), remaining / UNIT);
        Admission::Throttled(Throttled { scope, limit, remaining, retry_after })
    }

    fn is_shadow(&self) -> bool {
        matches!(self.settings.limiter, Limiter::Shadow)
    }
}

/// Admits or refuses a request under the static limiter, which counts requests per tenant whatever they cost, and
/// admits as many per second as the quota has request units.
fn count(quotas: &Quotas, payer: Payer, windows: &[FixedWindow], now: Now) -> Admission {
    let Some(limit) = quotas.tenant(payer.tenant()).limit else { return Admission::Passed(None) };
    let limit = limit.ru_per_second;
    match windows[usize::from(payer.tenant().0)].count(limit, now.monotonic) {
        Ok(()) => Admission::Passed(None),
        Err(retry_after) => {
            let scope = Scope::Tenant(payer.tenant());
            Admission::Throttled(Throttled { scope, limit, remaining: 0, retry_after })
        }
    }
}

/// Returns the track (set of backend connections) for a request: the heavy one if its estimated cost, billed
/// or not, is `heavy_from` or more. Ranges, scans and scripts also take the heavy track as long as `is_known`
/// is false: no such request of the tenant has shown its real cost yet. `heavy_from` is None if there is no
/// heavy track.
#[inline]
fn track_of(heavy_from: Option<MicroUnits>, estimate: MicroUnits, class: Class, is_known: bool) -> Track {
    let may_be_anything = !is_known && matches!(class, Class::Range | Class::Scan | Class::Script);
    match heavy_from {
        Some(heavy_from) if estimate >= heavy_from || may_be_anything => Track::Heavy,
        _ => Track::Usual,
    }
}

/// The longest time (100 ms) that a request waits for other requests of its tenant to be charged at their real
/// cost, where a quota might not cover all of them; if it still might not then, the request is throttled.
pub(super) const SETTLEMENT_PATIENCE: Duration = Duration::from_millis(100);
/// The number of one tenant's clients that may always wait on a core for other requests of the tenant to be
/// charged at their real cost (16). If the tenant has more than 16 requests in flight, as many clients as
/// these may wait. The requests of further clients are throttled.
const WAITING_MIN: usize = 16;

/// Divisor for lengthening retry delays: a delay grows by itself times a random byte divided by this, which is
/// less than a quarter of the delay, so that refused clients do not all return at once.
const JITTER_PARTS: u64 = 4 * 256;

/// Returns a retry delay lengthened by up to a quarter and never shortened. `spread` is a random byte.
fn jittered(retry_after: Duration, spread: u8) -> Duration {
    let micros = retry_after.as_micros() as u64;
    Duration::from_micros(micros + micros * u64::from(spread) / JITTER_PARTS)
}
