//! May this request pass? Its price is taken before it leaves, and put right when its reply has come.
//!
//! ```text
//!   asked ──estimate──> global, tenant, user: checked together, then taken together
//!                          │ enough     │ not enough        │ only the pool knows
//!                          v            v                   v
//!                        passes      throttled      the client's request waits for the answer
//!   reply ──actual──> the difference is booked, and the estimate of the next such request learns from it
//! ```

use std::time::Duration;

use super::Gate;
use super::accounts::{Charge, Decision, Outlook, Payer, Scope};
use crate::config::Quotas;
use crate::policy::fixed_window::FixedWindows;
use crate::policy::price::{Asked, Quote};
use crate::protocol::command::Class;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::request::Track;
use crate::shard::settings::Limiter;
use crate::values::time::Now;
use crate::values::{MicroUnits, Price, Timestamp, UNIT, Usage};

/// What the gate says to a request.
#[derive(Clone, Copy, Debug)]
pub enum Admission {
    /// It goes on. What was taken for it is settled with its reply.
    Passed(Option<Charge>),
    /// First the replies to what its client has in flight must be there.
    AfterReplies,
    /// First a request of its tenant that is under way must be settled.
    AfterSettlement,
    /// First a pool must answer.
    AfterGrant,
    /// Somebody has used up a quota.
    Throttled(Throttled),
}

/// Whose quota is used up, and when there will be enough again.
#[derive(Clone, Copy, Debug)]
pub struct Throttled {
    /// Whose.
    pub scope: Scope,
    /// Request units per second.
    pub limit: u64,
    /// Whole units that are left.
    pub remaining: u64,
    /// When it makes sense to come back.
    pub retry_after: Duration,
}

/// What a request is thought to cost.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// By its command and its arguments, with the surcharge.
    pub quote: Quote,
    /// What of it such requests cost lately.
    pub expected: MicroUnits,
    /// All of it.
    pub total: Price,
    /// What is due on top because its backend is strained.
    pub surcharge: MicroUnits,
}

impl Gate {
    /// Admits one more request of whoever has a tab open, and takes its price. None if that is not enough to tell. `take_track`
    /// puts the request on its track, or says that it must wait for what its client has in flight.
    #[expect(clippy::inline_always, reason = "every request: a call would be a third of it")]
    #[inline(always)]
    pub fn admit_on_tab(
        &mut self,
        payer: Payer,
        (asked, class): (&Asked, Class),
        mut take_track: impl FnMut(Track) -> bool,
        now: Now,
    ) -> Option<Charge> {
        // A tab is open only where there are prices.
        let tab = self.accounts.tab_of(payer)?;
        let weights = &self.settings.weights;
        let quote = weights.quote(asked);
        let taken = weights.estimate(&quote, tab.expected(class));
        let track = track_of(self.heavy_from, taken, class, tab.is_seen(class));
        let is_taken =
            tab.could_pay(taken, class) && take_track(track) && tab.take(taken, class, now.monotonic);
        is_taken.then_some(Charge { taken, quote, payer, class })
    }

    /// Admits a request that came at a time, and takes its price, if it has one.
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
            Limiter::Static(windows) => return count(&env.quotas, payer, windows, now),
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
                Admission::Passed(Some(Charge { taken: cost, quote, payer, class }))
            }
            // In shadow nobody waits: what would have become of it is found out later.
            Decision::Wait if self.is_shadow() => {
                self.undecided_in_shadow.push((payer, cost));
                Admission::Passed(None)
            }
            Decision::Wait => {
                env.counters.add(Counter::AdmissionsWaited, 1);
                Admission::AfterGrant
            }
            Decision::Refused { scope, retry_after } => {
                let usage = Usage { throttled: cost.micro(), ..Usage::default() };
                self.accounts.meter(payer.tenant(), usage, now.monotonic);
                self.throttle(env, scope, retry_after, now)
            }
        }
    }

    /// What such a request is thought to cost now, where `percent` of its usual price are due.
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
            // The backend is strained: so much is due on top, whatever the reply is.
            let before = quote.fixed.micro();
            let on_top = total.micro().saturating_mul(u64::from(percent - 100)) / 100;
            quote.fixed = Price::new(before.saturating_add(on_top));
            surcharge = quote.fixed.micro() - before;
            total = weights.estimate(&quote, expected);
        }
        Estimate { quote, expected, total, surcharge }
    }

    /// The track for a request that is estimated to cost so much.
    pub fn track(&mut self, payer: Option<Payer>, class: Class, estimate: Price) -> Track {
        let Some(payer) = payer.filter(|_| self.is_priced()) else { return Track::Usual };
        track_of(self.heavy_from, estimate, class, self.accounts.is_seen(payer, class))
    }

    /// The price of what is answered whether there is enough left or not: who has nothing left asks how much that is.
    pub fn charge_afterwards(&mut self, payer: Option<Payer>, asked: &Asked, class: Class) -> Option<Charge> {
        let payer = payer.filter(|_| self.is_priced())?;
        self.accounts.begin(payer, class);
        Some(Charge { taken: Price::ZERO, quote: self.settings.weights.quote(asked), payer, class })
    }

    /// Finds out, for all that passed in shadow before a pool had answered, what would have become of it.
    pub fn decide_in_shadow(&mut self, env: &mut Env, now: Now) {
        for (payer, cost) in std::mem::take(&mut self.undecided_in_shadow) {
            self.decide_one_in_shadow(env, payer, cost, now);
        }
    }

    /// What would have become of a request that has passed: its estimate counts, whatever it cost.
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

    /// Holds a request back that its tenant might not be able to pay for beside all that is under way: until one of those is
    /// settled, but no longer than [`SETTLEMENT_PATIENCE`], and no more requests than may go on about then. None if it goes on.
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
            Outlook::Covered => return None,
            Outlook::Unknown => {}
            Outlook::Risky { scope, retry_after } => {
                let has_waited = now.monotonic.since(came) >= SETTLEMENT_PATIENCE;
                let places = WAITING_MIN.max(self.accounts.under_way(payer.tenant()) as usize);
                if has_waited || self.for_settlement.waiting(payer.tenant()) >= places {
                    self.accounts.handle_denied(scope, cost, now.monotonic);
                    let usage = Usage { throttled: cost.micro(), ..Usage::default() };
                    self.accounts.meter(payer.tenant(), usage, now.monotonic);
                    return Some(self.throttle(env, scope, retry_after, now));
                }
            }
        }
        env.counters.add(Counter::AdmissionsHeld, 1);
        Some(Admission::AfterSettlement)
    }

    /// Refuses a request. In shadow it passes, and is only counted.
    fn throttle(&mut self, env: &mut Env, scope: Scope, retry_after: Duration, now: Now) -> Admission {
        if self.is_shadow() {
            env.counters.add(Counter::ThrottledInShadow, 1);
            return Admission::Passed(None);
        }
        let retry_after = jittered(retry_after, env.random_byte());
        let known = self.accounts.remaining(scope, now.monotonic);
        let (capacity, remaining) = known.expect("a scope that refuses has a bucket");
        let (limit, remaining) = (capacity.ru_per_second, remaining / UNIT);
        Admission::Throttled(Throttled { scope, limit, remaining, retry_after })
    }

    fn is_shadow(&self) -> bool {
        matches!(self.settings.limiter, Limiter::Shadow)
    }
}

/// The old way: requests are counted, whatever they cost.
fn count(quotas: &Quotas, payer: Payer, windows: &FixedWindows, now: Now) -> Admission {
    let Some(limit) = quotas.tenant(payer.tenant()).limit else { return Admission::Passed(None) };
    let limit = limit.ru_per_second;
    match windows.count(usize::from(payer.tenant().0), limit, now.monotonic) {
        Ok(()) => Admission::Passed(None),
        Err(retry_after) => {
            let scope = Scope::Tenant(payer.tenant());
            Admission::Throttled(Throttled { scope, limit, remaining: 0, retry_after })
        }
    }
}

/// The track for a request that is estimated to cost so much. Where nothing is known yet of what such requests of the tenant
/// cost, it may be anything.
#[inline]
fn track_of(heavy_from: Option<MicroUnits>, estimate: Price, class: Class, is_known: bool) -> Track {
    let may_be_anything = !is_known && matches!(class, Class::Range | Class::Scan | Class::Script);
    match heavy_from {
        Some(heavy_from) if estimate.micro() >= heavy_from || may_be_anything => Track::Heavy,
        _ => Track::Usual,
    }
}

/// A request waits at most so long for others of its tenant to be settled, where a quota has too little for all of them.
pub(super) const SETTLEMENT_PATIENCE: Duration = Duration::from_millis(100);
/// As many requests of a tenant may wait for that on a core, or as many as are under way, if those are more.
const WAITING_MIN: usize = 16;

/// Whoever is refused is told to come back up to a quarter later than needed, so that not all of them come at once.
const JITTER_PARTS: u64 = 4 * 256;

/// Never earlier than possible. `spread` is a random byte.
fn jittered(retry_after: Duration, spread: u8) -> Duration {
    let micros = retry_after.as_micros() as u64;
    Duration::from_micros(micros + micros * u64::from(spread) / JITTER_PARTS)
}
