//! The gate: what a request costs, who pays, and whether there is enough left. Knows payers, not connections.
//!
//! | question | file |
//! |---|---|
//! | what is asked, from the command and its arguments alone | `pricing.rs`, `effort.rs` |
//! | may it pass | `admission.rs` |
//! | whose requests wait until others of their tenant are settled | `waiting.rs` |
//! | who may spend how much on this core | `accounts/` |
//! | what did it cost in the end | `settlement.rs` |

mod accounts;
mod admission;
mod effort;
mod pricing;
mod settlement;
mod waiting;

pub use accounts::{
    Accounts, Bill, Charge, Decision, Outlook, Payer, Scope, Tab, UserAccount, UserFigures, bucket_of,
    capacity_of,
};
pub use admission::{Admission, Estimate, Throttled};
pub use pricing::asked;
pub use settlement::Settlement;

use self::waiting::Waiting;
use super::settings::{AdmissionSettings, Limiter, ShardSettings};
use crate::config::{Quotas, Tenant};
use crate::policy::slice::Verdict;
use crate::values::allowance::Report;
use crate::values::time::Now;
use crate::values::{BucketId, Capacity, ClientId, Grant, MicroUnits, Price, Timestamp, Weights};

/// Prices and accounts of one core.
#[derive(Debug)]
pub struct Gate {
    settings: AdmissionSettings,
    /// What costs much travels on connections of its own, where there are such.
    heavy_from: Option<MicroUnits>,
    accounts: Accounts,
    /// Whose next request waits for the answer of a pool.
    waiting: Vec<ClientId>,
    /// Whose next request waits until one of its tenant is settled.
    for_settlement: Waiting,
    /// Requests that passed in shadow, and what was asked for them, before a pool has said whether they could.
    undecided_in_shadow: Vec<(Payer, Price)>,
}

impl Gate {
    /// One that has let nothing pass yet.
    pub fn new(settings: &ShardSettings, quotas: &Quotas) -> Self {
        let (shards, admission) = (settings.topology.shards(), settings.admission.clone());
        Self {
            accounts: Accounts::new(settings.id, shards, &admission, quotas),
            heavy_from: (settings.heavy_links > 0).then_some(settings.heavy_from),
            settings: admission,
            waiting: Vec::new(),
            for_settlement: Waiting::default(),
            undecided_in_shadow: Vec::new(),
        }
    }

    /// Is nothing priced or counted?
    #[inline]
    pub fn lets_all_pass(&self) -> bool {
        matches!(self.settings.limiter, Limiter::Off)
    }

    /// Has a request a price?
    #[inline]
    pub fn is_priced(&self) -> bool {
        matches!(self.settings.limiter, Limiter::Shadow | Limiter::Buckets)
    }

    /// What the terms of a price weigh.
    pub fn weights(&self) -> &Weights {
        &self.settings.weights
    }

    /// A walk may look at no more than so much in one step.
    pub fn scan_count_max(&self) -> u32 {
        self.settings.scan_count_max
    }

    /// The account of a user, if the quotas bound what that user may spend.
    pub fn account_of(&mut self, tenant: &Tenant, user: &str) -> Option<UserAccount> {
        self.accounts.user(tenant, user)
    }

    /// Users whose quotas are kept account of.
    pub fn users(&self) -> UserFigures {
        self.accounts.users()
    }

    /// The reply to a request is there, or will never be: what was taken for it becomes what it cost.
    #[inline]
    pub fn settle(&mut self, charge: &Charge, reply: &Settlement, now: Now) {
        self.accounts.settle_reply(charge, reply, &self.settings.weights, now);
    }

    /// A client's next request waits for the answer of a pool.
    pub fn await_grant(&mut self, id: ClientId) {
        self.waiting.push(id);
    }

    /// Those that have waited: they try again, and what came behind them after them.
    pub fn take_waiting(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.waiting)
    }

    /// A client's next request waits until one of its payer's tenant is settled.
    pub fn await_settlement(&mut self, payer: Payer, id: ClientId, now: Timestamp) {
        self.for_settlement.push(payer.tenant(), id, now);
    }

    /// The clients whose requests may have waited long enough for others of their tenant to be settled.
    pub fn take_settled(&mut self, now: Timestamp) -> Vec<ClientId> {
        let Self { for_settlement, accounts, .. } = self;
        for_settlement.take_due(|tenant| accounts.take_settled(tenant), now)
    }

    /// True if a request waits for others of its tenant to be settled.
    #[inline]
    pub fn is_settlement_awaited(&self) -> bool {
        !self.for_settlement.is_empty()
    }

    /// Does anything wait for what a pool says?
    pub fn is_answer_awaited(&self) -> bool {
        !self.waiting.is_empty() || !self.undecided_in_shadow.is_empty()
    }

    /// Has nothing been heard of the pools for so long that those who wait should not wait for them any more?
    pub fn is_alone(&self, now: Timestamp) -> bool {
        self.accounts.is_alone(now)
    }

    /// What the pools of quotas said.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Timestamp) {
        self.accounts.handle_grants(grants, now);
    }

    /// New quotas.
    pub fn handle_quotas(&mut self, before: &Quotas, after: &Quotas, now: Timestamp) {
        // Tenants have other ids now, so those that wait try again.
        self.for_settlement.release();
        self.accounts.handle_quotas(before, after, now);
    }

    /// The end of a turn.
    pub fn handle_turn_end(&mut self, now: Timestamp) {
        self.accounts.handle_turn_end(now);
    }

    /// Something that is to be told to the pools, if there is anything.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.accounts.poll_report()
    }

    /// When `handle_turn_end` should be called at the latest.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let patience = if self.is_answer_awaited() { self.accounts.patience_ends() } else { None };
        let settlement = self.for_settlement.poll_deadline();
        [self.accounts.poll_deadline(), patience, settlement].into_iter().flatten().min()
    }

    /// What was spent here and not told yet goes to the pools now.
    pub fn flush(&mut self, now: Timestamp) {
        self.accounts.flush(now);
    }

    /// The bucket of a scope and its size, if it is bounded.
    pub fn bucket(&self, scope: Scope) -> Option<(BucketId, Capacity)> {
        self.accounts.bucket(scope).zip(self.accounts.capacity(scope))
    }

    /// What would be decided of a scope alone, its size, and what is left of it, if it has a bound. Nothing is taken.
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
