//! Stage 4: may this request pass? Its price is taken before it leaves, and put right when its reply has come.
//!
//! ```text
//!   asked ──estimate──> global, tenant, user: checked together, then taken together
//!                          │ enough     │ not enough        │ only the pool knows
//!                          v            v                   v
//!                        route      -THROTTLED      the client's request waits for the answer
//!   reply ──actual──> the difference is booked, and the estimate of the next such request learns from it
//! ```

use std::time::Duration;

use super::Shard;
use super::accounts::{Charge, Decision, Payer, Scope, risk_of};
use super::client::HeldRequest;
use super::counters::Counter;
use super::pricing::{asked, class_of};
use super::refusal::Refusal;
use crate::policy::fixed_window::FixedWindows;
use crate::policy::price::Asked;
use crate::protocol::Arguments;
use crate::protocol::command::{Class, Command};
use crate::values::time::Now;
use crate::values::{ClientId, Grant, Price, UNIT, Usage, Weights};

/// How requests are admitted.
#[derive(Clone, Debug)]
pub enum Limiter {
    /// All of them, unpriced.
    Off,
    /// By buckets, but what does not fit passes too, and is only counted.
    Shadow,
    /// By buckets.
    Buckets,
    /// By a count of requests per tenant and second, and nothing else.
    Static(FixedWindows),
}

/// What a shard is told about pricing and admission.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    /// How requests are admitted.
    pub limiter: Limiter,
    /// What the terms of a price weigh.
    pub weights: Weights,
    /// How often a core tells the pools what it spent.
    pub period: Duration,
    /// A walk is asked to look at no more than so much in one step, whatever the client wants.
    pub scan_count_max: u32,
    /// Makes hashes of names that nobody outside can foretell; the same for all shards.
    pub secret: [u64; 2],
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        Self {
            limiter: Limiter::Buckets,
            weights: Weights::default(),
            period: Duration::from_millis(10),
            scan_count_max: 10_000,
            secret: [0; 2],
        }
    }
}

/// The request goes no further now: it was answered, or it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped;

/// Whoever is refused is told to come back up to a quarter later than needed, at random, so that not all of them come at
/// once: a random byte is divided by this.
const JITTER_PARTS: u64 = 4 * 256;

impl Shard {
    /// Admits a request and takes its price, if it has one. What does not go further has been seen to.
    #[expect(clippy::inline_always, reason = "every request: a call would be a third of it")]
    #[inline(always)]
    pub(super) fn admit(
        &mut self,
        id: ClientId,
        command: Option<&Command>,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        if matches!(self.settings.admission.limiter, Limiter::Off) {
            return Ok(None);
        }
        let weights = &self.settings.admission.weights;
        let (asked, class) = (asked(command, arguments), class_of(command));
        // A tab is opened only where there are prices.
        let client = self.clients.at(id);
        if let Some(payer) = client.identity.payer
            && let Some(tab) = self.accounts.tab_of(payer)
        {
            let quote = weights.quote(&asked);
            let taken = weights.estimate(&quote, tab.expected(class));
            let track = self.settings.track_of(taken, class, tab.is_known(class));
            if tab.could_pay(taken, class, client.unanswered())
                && client.take_track(track)
                && tab.take(taken, now.monotonic)
            {
                return Ok(Some(Charge { taken, quote, payer, class }));
            }
        }
        self.admit_asked(id, &asked, class, arguments, now)
    }

    /// The same for what is already known to be asked, such as a whole transaction, and goes on no tab.
    #[inline(never)]
    pub(super) fn admit_asked(
        &mut self,
        id: ClientId,
        asked: &Asked,
        class: Class,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        let Some(payer) = self.payer_of(id) else { return Ok(None) };
        match &self.settings.admission.limiter {
            Limiter::Off => return Ok(None),
            Limiter::Static(windows) => {
                let windows = windows.clone();
                return self.admit_counted(id, payer, &windows, now);
            }
            Limiter::Shadow | Limiter::Buckets => {}
        }
        let weights = &self.settings.admission.weights;
        let quote = weights.quote(asked);
        let cost = weights.estimate(&quote, self.accounts.expected(payer, class));
        let charge = Charge { taken: cost, quote, payer, class };
        let is_known = self.accounts.is_known(payer, class);
        let track = self.settings.track_of(cost, class, is_known);
        if self.is_risky(id, payer, class, cost, now) || !self.clients.at(id).take_track(track) {
            self.hold_request(id, arguments);
            return Err(Stopped);
        }
        match self.accounts.admit(payer, cost, now.monotonic) {
            Decision::Admitted => Ok(Some(charge)),
            Decision::Wait => self.admit_later(id, &charge, arguments),
            Decision::Refused { scope, retry_after } => {
                let usage = Usage { throttled: cost.micro(), ..Usage::default() };
                self.accounts.meter(payer.tenant(), usage, now.monotonic);
                self.throttle(id, scope, retry_after, now)
            }
        }
    }

    /// The price of what is answered whether there is enough left or not: who has nothing left asks how much that is.
    pub(super) fn charge_afterwards(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Option<Charge> {
        if !matches!(self.settings.admission.limiter, Limiter::Shadow | Limiter::Buckets) {
            return None;
        }
        let weights = &self.settings.admission.weights;
        let quote = weights.quote(&asked(Some(command), arguments));
        let payer = self.payer_of(id)?;
        Some(Charge { taken: Price::ZERO, quote, payer, class: class_of(Some(command)) })
    }

    /// Would the payer owe something, if all that the client has under way turned out as dear as one such request did of
    /// late? Then the next one waits until it is known.
    fn is_risky(&mut self, id: ClientId, payer: Payer, class: Class, cost: Price, now: Now) -> bool {
        let under_way = self.clients.at(id).unanswered();
        let surprise = self.accounts.surprise(payer, class);
        let is_obeyed = matches!(self.settings.admission.limiter, Limiter::Buckets);
        if surprise == 0 || under_way == 0 || !is_obeyed {
            return false;
        }
        let worst = cost.micro().saturating_add(risk_of(surprise, under_way));
        !self.accounts.could_pay(payer, worst, now.monotonic)
    }

    /// Has a request wait for a pool. In shadow none waits: it passes, and what would have become of it is found out later.
    #[inline(never)]
    fn admit_later(
        &mut self,
        id: ClientId,
        charge: &Charge,
        arguments: &Arguments<'_>,
    ) -> Result<Option<Charge>, Stopped> {
        if matches!(self.settings.admission.limiter, Limiter::Shadow) {
            self.undecided_in_shadow.push((charge.payer, charge.taken));
            return Ok(None);
        }
        self.counters.add(Counter::AdmissionsWaited, 1);
        let client = self.clients.at(id);
        debug_assert!(client.held_request.is_none() && !client.waits_for_quota);
        client.waits_for_quota = true;
        client.held_request = Some(Box::new(HeldRequest::new(arguments, &client.identity)));
        self.clients_waiting.push(id);
        Err(Stopped)
    }

    /// What the pools of quotas said; requests that waited for it are tried again.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Now) {
        self.accounts.handle_grants(grants, now.monotonic);
        self.resume_waiting(now);
    }

    pub(super) fn admission_turn_end(&mut self, now: Now) {
        self.accounts.handle_turn_end(now.monotonic);
        if self.is_answer_awaited() && self.accounts.is_alone(now.monotonic) {
            self.counters.add(Counter::QuotaPoolsSilent, 1);
            self.resume_waiting(now);
        }
    }

    /// Does anything wait for what a pool says?
    pub(super) fn is_answer_awaited(&self) -> bool {
        !self.clients_waiting.is_empty() || !self.undecided_in_shadow.is_empty()
    }

    /// Tries requests that waited for a pool again, before anything that came after them.
    pub(super) fn resume_waiting(&mut self, now: Now) {
        for id in std::mem::take(&mut self.clients_waiting) {
            if let Some(client) = self.clients.get(id) {
                client.waits_for_quota = false;
                self.resume(id, now);
            }
        }
        for (payer, cost) in std::mem::take(&mut self.undecided_in_shadow) {
            self.decide_in_shadow(payer, cost, now);
        }
    }

    /// What would have become of a request that has passed: its estimate counts, whatever it cost.
    fn decide_in_shadow(&mut self, payer: Payer, cost: Price, now: Now) {
        if payer.versions_before(self.quotas.version()) != 0 {
            return;
        }
        let usage = match self.accounts.admit(payer, cost, now.monotonic) {
            Decision::Wait => return self.undecided_in_shadow.push((payer, cost)),
            Decision::Admitted => Usage { admitted: cost.micro(), ..Usage::default() },
            Decision::Refused { .. } => {
                self.counters.add(Counter::ThrottledInShadow, 1);
                Usage { throttled: cost.micro(), ..Usage::default() }
            }
        };
        self.accounts.meter(payer.tenant(), usage, now.monotonic);
    }

    /// Who pays for a client's requests.
    pub(super) fn payer_of(&mut self, id: ClientId) -> Option<Payer> {
        self.clients.at(id).identity.payer
    }

    /// Refuses a request. In shadow it passes, and is only counted.
    #[inline(never)]
    fn throttle(
        &mut self,
        id: ClientId,
        scope: Scope,
        retry_after: Duration,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        if matches!(self.settings.admission.limiter, Limiter::Shadow) {
            self.counters.add(Counter::ThrottledInShadow, 1);
            return Ok(None);
        }
        let retry_after = self.jittered(retry_after);
        let known = self.accounts.remaining(scope, now.monotonic);
        let (capacity, remaining) = known.expect("a scope that refuses has a bucket");
        let mut text = self.pool.take();
        let identity = &self.clients.at(id).identity;
        let tenant = identity.tenant.map_or("", |tenant| self.quotas.tenant(tenant).name.as_str());
        let (scope, tenant, user) = match scope {
            Scope::Global => ("global", "global", None),
            Scope::Tenant(_) => ("tenant", tenant, None),
            Scope::User(_) => ("user", tenant, identity.user.as_deref()),
        };
        let (limit, remaining) = (capacity.ru_per_second, remaining / UNIT);
        Refusal::Throttled { scope, tenant, user, limit, remaining, retry_after }.encode(&mut text);
        self.refuse_admission(id, text);
        Err(Stopped)
    }

    /// The old way: requests are counted, whatever they cost.
    fn admit_counted(
        &mut self,
        id: ClientId,
        payer: Payer,
        windows: &FixedWindows,
        now: Now,
    ) -> Result<Option<Charge>, Stopped> {
        let tenant = self.quotas.tenant(payer.tenant());
        let Some(limit) = tenant.limit else { return Ok(None) };
        let counted = windows.count(usize::from(payer.tenant().0), limit.ru_per_second, now.monotonic);
        let Err(retry_after) = counted else { return Ok(None) };
        let mut text = self.pool.take();
        let (tenant, limit) = (tenant.name.as_str(), limit.ru_per_second);
        Refusal::Throttled { scope: "tenant", tenant, user: None, limit, remaining: 0, retry_after }
            .encode(&mut text);
        self.refuse_admission(id, text);
        Err(Stopped)
    }

    fn refuse_admission(&mut self, id: ClientId, text: Vec<u8>) {
        self.counters.add(Counter::RefusedThrottled, 1);
        self.poison_transaction(id);
        self.answer_now(id, |out, _| out.extend_from_slice(&text));
        self.pool.give(text);
    }

    /// Never earlier than possible, and not all at once.
    fn jittered(&mut self, retry_after: Duration) -> Duration {
        let micros = retry_after.as_micros() as u64;
        Duration::from_micros(micros + micros * u64::from(self.random_byte()) / JITTER_PARTS)
    }
}
