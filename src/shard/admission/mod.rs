//! Admission: estimates what a request costs, finds the account that pays, and decides whether its quotas have enough
//! left. It has access to accounts, not to connections.
//!
//! | question | file |
//! |---|---|
//! | the estimated cost, from the command and its arguments alone | `pricing.rs`, `effort.rs` |
//! | whether a request may pass | `decision.rs` |
//! | which clients wait until requests of their tenant are settled | `waiting.rs` |
//! | how much each account may spend on this core | `accounts/` |
//! | the actual cost, once the reply has come | `settlement.rs` |

mod accounts;
mod decision;
mod effort;
mod pricing;
mod settlement;
mod waiting;

pub use accounts::{
    Accounts, Bill, Charge, Decision, Outlook, Payer, Scope, Tab, UserAccount, UserFigures, bucket_of,
    capacity_of,
};
pub use decision::{Admission, Estimate, Throttled};
pub use pricing::asked;

use self::waiting::Waiting;
use super::outcome::Settlement;
use super::settings::{AdmissionSettings, Limiter, Mode, ShardSettings};
use crate::config::{Quotas, Tenant};
use crate::policy::fixed_window::FixedWindow;
use crate::policy::price::{Asked, Measured};
use crate::policy::slice::Verdict;
use crate::protocol::command::Class;
use crate::values::allowance::Report;
use crate::values::time::Now;
use crate::values::{
    BucketId, Capacity, ClientId, Grant, MicroUnits, Price, TenantId, Timestamp, Usage, Weights,
};

/// The most bytes (1 KiB) of a request, or of a reply that weir writes itself, that cost nothing where weir
/// answers a request by itself and the request has no other price. Longer ones pay for all their bytes. Requests
/// with which clients open and name connections are far shorter.
pub const FREE_BYTES: usize = 1024;

/// The prices and accounts of one core, and the clients that wait for them.
#[derive(Debug)]
pub struct AdmissionStage {
    settings: AdmissionSettings,
    /// The estimated price from which a request takes the track (set of backend connections) for expensive
    /// requests, in millionths of a request unit; None without such connections.
    heavy_from: Option<MicroUnits>,
    accounts: Accounts,
    /// Clients whose next request waits for the answer of the control executor (which divides quotas among cores) about
    /// a quota.
    waiting: Vec<ClientId>,
    /// Clients whose next request waits until a request of their tenant is charged at its real cost.
    for_settlement: Waiting,
    /// The payer (account that is charged) and price of each request that passed in shadow mode, where decisions
    /// are only counted, before the control executor's answer showed whether the payer can pay for it.
    undecided_in_shadow: Vec<(Payer, Price)>,
    /// Counts, by tenant, of the requests about quotas (`QOS`) that came in the current second while a quota
    /// of their payer was deep in debt.
    questions: decision::QuestionsInDebt,
    /// The counts of each tenant's requests in the present second, by tenant id. Empty unless the limiter only counts
    /// requests (static).
    windows: Vec<FixedWindow>,
}

impl AdmissionStage {
    /// Creates the admission stage of a core, with full buckets.
    pub fn new(settings: &ShardSettings, quotas: &Quotas) -> Self {
        let (shards, admission) = (settings.topology.shards(), settings.admission.clone());
        Self {
            accounts: Accounts::new(settings.id, shards, &admission, quotas),
            heavy_from: (settings.heavy_links > 0).then_some(settings.heavy_from),
            windows: windows_of(&admission.limiter, quotas),
            settings: admission,
            waiting: Vec::new(),
            for_settlement: Waiting::default(),
            undecided_in_shadow: Vec::new(),
            questions: decision::QuestionsInDebt::default(),
        }
    }

    /// True if requests are neither priced nor counted (the limiter is off).
    #[inline]
    pub fn lets_all_pass(&self) -> bool {
        matches!(self.settings.limiter, Limiter::Off)
    }

    /// True if requests have prices; false if the limiter is off or only counts requests (static).
    #[inline]
    pub fn is_priced(&self) -> bool {
        matches!(self.settings.limiter, Limiter::Shadow | Limiter::Buckets)
    }

    /// Returns whether the limiter refuses requests, only counts which it would refuse (shadow), or is off.
    pub fn mode(&self) -> Mode {
        match self.settings.limiter {
            Limiter::Off => Mode::Off,
            Limiter::Shadow => Mode::Shadow,
            Limiter::Static(_) | Limiter::Buckets => Mode::On,
        }
    }

    /// Returns the weights (prices per request, byte, key and so on) of the parts that a price is made of.
    pub fn weights(&self) -> &Weights {
        &self.settings.weights
    }

    /// Returns the largest `COUNT` that a client's `SCAN` may have; a larger one is lowered to it.
    pub fn scan_count_max(&self) -> u32 {
        self.settings.scan_count_max
    }

    /// Returns the account of a user, or None if the quotas set no limit for the user.
    pub fn account_of(&mut self, tenant: &Tenant, user: &str) -> Option<UserAccount> {
        self.accounts.user(tenant, user)
    }

    /// Returns how many users have accounts on this core, how many idle accounts were dropped to make room, and how
    /// often there was no room for a user's account.
    pub fn users(&self) -> UserFigures {
        self.accounts.users()
    }

    /// Settles a request whose reply has come or never will: its real cost replaces the price that was taken
    /// for it.
    #[inline]
    pub fn settle(&mut self, charge: &Charge, reply: &Settlement, now: Now) {
        self.accounts.settle_reply(charge, reply, &self.settings.weights, now);
    }

    /// Charges the rest of the price of a request that was answered before its store replied, and charged its
    /// estimated price then. `reply` has the measurements of all late parts of the reply.
    pub fn settle_late(&mut self, charge: &Charge, reply: &Settlement, now: Now) {
        let reply = self.accounts.with_billed_time(charge, reply, now);
        let weights = &self.settings.weights;
        let cost = weights.actual(&charge.quote, &reply.measured);
        let unbilled = weights.unbilled(&charge.quote, &reply.measured);
        self.accounts.settle_late(charge, (cost, unbilled), now.monotonic);
    }

    /// Counts the estimated price of a request that is refused before it is admitted, because its backend is in an
    /// overload. Its buckets pay nothing.
    pub fn meter_shed(&mut self, payer: Payer, (asked, class): (&Asked, Class), now: Now) {
        if self.is_priced() {
            let shed = self.estimate(Some(payer), (asked, class, 100)).total.micro();
            self.accounts.meter(payer.tenant(), Usage { shed, ..Usage::default() }, now.monotonic);
        }
    }

    /// Settles a blocking command that begins to wait at its store: what it costs whatever its reply is counts as its
    /// tenant's usage, and no other request of its tenant waits for its real cost. Returns the rest of the price taken,
    /// in millionths of a request unit, which was for the reply and stays taken until that comes
    /// ([`Self::charge_for_waited`]).
    pub fn settle_waiting(&mut self, charge: &Charge, now: Now) -> MicroUnits {
        let without_reply = self.settings.weights.actual(&charge.quote, &Measured::default());
        self.accounts.settle_waiting(charge, without_reply, now.monotonic)
    }

    /// True if the tenant of an account is still known: the quotas in force have it, as have all since the account was
    /// made, and they have not changed more than eight times since.
    pub fn knows(&self, payer: Payer) -> bool {
        self.accounts.knows(payer)
    }

    /// Charges an account for the reply to a blocking command, whose price was settled when the command began to wait.
    /// The reply costs its bytes and elements (`rows`), less the part of that price which was for the reply
    /// (`paid_ahead`); if it costs less than that part, the rest is given back. Does nothing where requests have no
    /// prices.
    pub fn charge_for_waited(
        &mut self,
        payer: Payer,
        (bytes, rows): (u64, u64),
        paid_ahead: MicroUnits,
        now: Now,
    ) {
        if self.is_priced() {
            let weights = &self.settings.weights;
            let cost = weights.of_reply(bytes, rows).beyond(Price::new(weights.base));
            self.accounts.book_waited(payer, cost, paid_ahead, now.monotonic);
        }
    }

    /// Ends a blocking command to which no reply comes. The part of its price that was taken for the reply
    /// (`paid_ahead`, in millionths of a request unit) is given back if the command did not reach its store
    /// (`was_sent` is false); else it counts as usage, as the store may have done the work. Does nothing where requests
    /// have no prices.
    pub fn charge_for_unanswered(&mut self, payer: Payer, paid_ahead: MicroUnits, was_sent: bool, now: Now) {
        if self.is_priced() {
            let cost = if was_sent { paid_ahead } else { 0 };
            self.accounts.book_waited(payer, cost, paid_ahead, now.monotonic);
        }
    }

    /// Charges an account for the bytes of a request that weir has answered by itself without an admission, and of
    /// its reply.
    pub fn charge_for_own(&mut self, payer: Payer, (bytes_in, bytes_out): (usize, usize), now: Now) {
        if self.is_priced() {
            let cost = self.settings.weights.of_bytes(bytes_in as u64, bytes_out as u64);
            let usage = Usage { admitted: cost.micro(), ..Usage::default() };
            self.accounts.book(payer, usage, now.monotonic);
        }
    }

    /// Charges an account for bytes that its client is sent without a request, such as a published message: as much as
    /// for a reply from memory. Does nothing where requests have no prices.
    pub fn charge_for_bytes(&mut self, payer: Payer, bytes: usize, now: Now) {
        if self.is_priced() {
            let cost = self.settings.weights.cached(bytes as u64, 1);
            let usage = Usage { cached: cost.micro(), ..Usage::default() };
            self.accounts.book(payer, usage, now.monotonic);
        }
    }

    /// Returns the number of a tenant's requests that are admitted and not charged at their real cost yet. For
    /// tests.
    #[cfg(test)]
    pub fn under_way(&mut self, tenant: crate::values::TenantId) -> u32 {
        self.accounts.under_way(tenant)
    }

    /// Adds a client whose next request waits for the control executor's answer about a quota.
    pub fn await_grant(&mut self, id: ClientId) {
        self.waiting.push(id);
    }

    /// Removes and returns all clients whose requests waited for the control executor's answer about a quota,
    /// in their order. The caller tries those requests again.
    pub fn take_waiting(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.waiting)
    }

    /// Adds a client whose next request waits until a request of the tenant of the payer (account that is
    /// charged) is charged at its real cost.
    pub fn await_settlement(&mut self, payer: Payer, id: ClientId, now: Timestamp) {
        self.for_settlement.push(payer.tenant(), id, now);
    }

    /// Takes the clients whose waiting requests are to be tried again: all that have waited for 100 ms, and
    /// of each tenant one client for each of its requests that was charged at its real cost since the last
    /// call. After new quotas, takes all.
    pub fn take_settled(&mut self, now: Timestamp) -> Vec<ClientId> {
        let Self { for_settlement, accounts, .. } = self;
        for_settlement.take_due(|tenant| accounts.take_settled(tenant), now)
    }

    /// True if a client waits until another request of its tenant is charged at its real cost, or has waited
    /// for that and is to be tried again now.
    #[inline]
    pub fn is_settlement_awaited(&self) -> bool {
        !self.for_settlement.is_empty()
    }

    /// True if requests wait for the control executor's answer about a quota, or passed in shadow mode
    /// (decisions are only counted) before that answer.
    pub fn is_answer_awaited(&self) -> bool {
        !self.waiting.is_empty() || !self.undecided_in_shadow.is_empty()
    }

    /// True if the control executor has not answered a report for as long as a lease (the validity of a grant) or
    /// longer, so that requests should no longer wait for it.
    pub fn is_alone(&self, now: Timestamp) -> bool {
        self.accounts.is_alone(now)
    }

    /// Applies the grants (amounts of quotas that the control executor gives to this core).
    pub fn handle_grants(&mut self, grants: &[Grant], now: Timestamp) {
        self.accounts.handle_grants(grants, now);
    }

    /// Applies new quotas (`after`, in place of `before`). Spent amounts stay spent. Requests that wait for others of
    /// their tenant to be charged at their real cost are tried again.
    pub fn handle_quotas(&mut self, before: &Quotas, after: &Quotas, now: Timestamp) {
        // Tenants have new ids now, so the waiting requests are tried again.
        self.for_settlement.release();
        self.accounts.handle_quotas(before, after, now);
        self.windows = windows_of(&self.settings.limiter, after);
    }

    /// Returns the id that a tenant has in the quotas in force, by its id in those before; None if it is gone.
    pub fn renamed(&self, tenant: TenantId) -> Option<TenantId> {
        self.accounts.renamed(tenant)
    }

    /// Handles the end of a turn (pass of the shard's loop): makes the reports to the control executor that are due
    /// about what was spent and used, and about amounts that requests wait for. [`Self::poll_report`] returns them.
    pub fn handle_turn_end(&mut self, now: Timestamp) {
        self.accounts.handle_turn_end(now);
    }

    /// Takes the next report to the control executor (amounts spent, amounts needed, tenants' usage); None if
    /// there is none.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.accounts.poll_report()
    }

    /// Returns the time of the next event that admission waits for: a report to the control executor that is
    /// due ([`Self::handle_turn_end`]), the end of the patience with a control executor that does not answer
    /// ([`Self::is_alone`]), or clients to try again ([`Self::take_settled`]), at once if there are such
    /// already. None if there is no such event.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let patience = if self.is_answer_awaited() { self.accounts.patience_ends() } else { None };
        let settlement = self.for_settlement.poll_deadline();
        Timestamp::earliest([self.accounts.poll_deadline(), patience, settlement])
    }

    /// Reports to the control executor at once the amounts spent on this core and tenants' usage since the last report,
    /// without waiting for the end of the period.
    pub fn flush(&mut self, now: Timestamp) {
        self.accounts.flush(now);
    }

    /// Returns the id of the bucket of a scope (global, tenant or user) and its size (rate and burst), or None
    /// if the scope has no limit.
    pub fn bucket(&self, scope: Scope) -> Option<(BucketId, Capacity)> {
        self.accounts.bucket(scope).zip(self.accounts.capacity(scope))
    }

    /// Returns the decision of one scope (global, tenant or user) alone about a price, the size of its bucket,
    /// and the amount left in it. None if the scope has no limit. Takes nothing.
    pub fn peek(
        &mut self,
        scope: Scope,
        cost: Price,
        now: Timestamp,
    ) -> Option<(Verdict, Capacity, MicroUnits)> {
        let verdict = self.accounts.peek(scope, cost, now)?;
        let (capacity, remaining) = self.accounts.remaining(scope, now)?;
        Some((verdict, capacity, remaining))
    }
}

/// Returns the counts of all tenants' requests in the present second, by tenant id; none unless the limiter only counts
/// requests (static).
fn windows_of(limiter: &Limiter, quotas: &Quotas) -> Vec<FixedWindow> {
    let Limiter::Static(windows) = limiter else { return Vec::new() };
    windows.of(quotas.tenants().map(|(_, tenant)| tenant.name.as_str()))
}
