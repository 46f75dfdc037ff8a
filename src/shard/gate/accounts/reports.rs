//! What this core tells the pools, and when: once per period what changed, at once what a request waits for.

use std::time::Duration;

use super::{Accounts, Scope};
use crate::policy::slice::Rules;
use crate::values::allowance::Report;
use crate::values::{Demand, Grant, MicroUnits, TenantId, Timestamp, Usage};

/// Reports that control has not answered; no more are sent, so that a stopped control executor is not drowned.
const REPORTS_UNANSWERED_MAX: usize = 16;
/// Idle users are looked for with every tick, at least this many at a time; without traffic, after so many periods.
const USERS_SWEPT: usize = 256;
const PERIODS_BETWEEN_SWEEPS: u32 = 50;

/// Buckets with something to report, or with an allowance to give back.
#[derive(Debug)]
pub(super) struct Agenda {
    pub period: Duration,
    pub listed: Vec<Scope>,
    pub next_tick: Option<Timestamp>,
}

impl Agenda {
    /// Puts a bucket on it, unless it is there already.
    pub fn list(&mut self, scope: Scope, listed: &mut bool, now: Timestamp) {
        if !*listed {
            *listed = true;
            self.add(scope, now);
        }
    }

    #[cold]
    fn add(&mut self, scope: Scope, now: Timestamp) {
        self.listed.push(scope);
        self.tick_after(self.period, now);
    }

    fn tick_after(&mut self, pause: Duration, now: Timestamp) {
        let at = now.after(pause);
        self.next_tick = Some(self.next_tick.map_or(at, |known| known.min(at)));
    }
}

impl Accounts {
    /// What the pools said. Requests that waited may be tried again.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Timestamp) {
        self.unanswered.pop_front();
        for grant in grants {
            // A tenant that has no bound any more needs no grant, nor a user that is forgotten.
            let Some(scope) = self.ledger.buckets().scope_of(grant.bucket) else { continue };
            self.ledger.buckets().set_part(scope, grant.part);
            if let Some(entry) = self.ledger.buckets().entry(scope, now) {
                entry.slice.handle_grant(grant);
                self.agenda.list(scope, entry.listed, now);
            }
        }
    }

    /// Reports what is due.
    pub fn handle_turn_end(&mut self, now: Timestamp) {
        if self.agenda.next_tick.is_some_and(|at| at <= now) {
            self.tick(now);
        }
        if self.metered_report_at.is_some_and(|at| at <= now) {
            self.send(Vec::new(), now);
        }
        if !self.asking.is_empty() {
            self.ask_pools(now);
        }
    }

    /// Reports all there is to report, before its time.
    pub fn flush(&mut self, now: Timestamp) {
        let listed = std::mem::take(&mut self.agenda.listed);
        let demands = self.demands(listed.iter().map(|scope| (*scope, 0)), now);
        self.send(demands, now);
        self.agenda.listed = listed;
    }

    /// What is to be told to the pools, if anything.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// When `handle_turn_end` should be called at the latest.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        [self.agenda.next_tick, self.metered_report_at].into_iter().flatten().min()
    }

    /// When requests that wait will wait no longer.
    pub fn patience_ends(&self) -> Option<Timestamp> {
        self.unanswered.front().map(|sent| sent.after(self.lease))
    }

    /// The control executor has not answered for longer than its grants are good for.
    pub fn is_alone(&self, now: Timestamp) -> bool {
        self.patience_ends().is_some_and(|at| at <= now)
    }

    pub(super) fn rules(&self, now: Timestamp) -> Rules {
        Rules {
            period: self.agenda.period,
            lease: self.lease,
            silent: self.is_alone(now),
            even_share: self.even_share,
        }
    }

    pub(super) fn ask_pools(&mut self, now: Timestamp) {
        let asking = std::mem::take(&mut self.asking);
        let demands = self.demands(asking.iter().copied(), now);
        self.send(demands, now);
        self.asking = asking;
        self.asking.clear();
    }

    fn tick(&mut self, now: Timestamp) {
        self.agenda.next_tick = None;
        let mut listed = std::mem::take(&mut self.agenda.listed);
        if self.unanswered.len() < REPORTS_UNANSWERED_MAX {
            let demands = self.demands(listed.iter().map(|scope| (*scope, 0)), now);
            self.send(demands, now);
        }
        listed.retain(|scope| {
            let entry = self.ledger.buckets().entry(*scope, now).expect("what is listed is not forgotten");
            entry.slice.start_period();
            *entry.listed = entry.slice.has_news();
            *entry.listed
        });
        if !listed.is_empty() {
            self.agenda.tick_after(self.agenda.period, now);
        }
        self.agenda.listed = listed;
        let buckets = self.ledger.buckets();
        buckets.sweep_users(USERS_SWEPT.max(buckets.users.len() / 64), now);
        if !buckets.users.is_empty() {
            // Users that are idle now are forgotten when their buckets are full.
            self.agenda.tick_after(self.agenda.period * PERIODS_BETWEEN_SWEEPS, now);
        }
    }

    fn demands(
        &mut self,
        scopes: impl ExactSizeIterator<Item = (Scope, MicroUnits)>,
        now: Timestamp,
    ) -> Vec<Demand> {
        let rules = self.rules(now);
        let mut demands = Vec::with_capacity(scopes.len());
        for (scope, needed) in scopes {
            let buckets = self.ledger.buckets();
            let Some(entry) = buckets.entry(scope, now) else { continue };
            let demand = entry.slice.report(entry.bucket, entry.quota, needed, now, rules);
            if let (Some(demand), Scope::Global) = (demand, scope) {
                demands.push(Demand { surprise: std::mem::take(&mut buckets.surprise), ..demand });
            } else {
                demands.extend(demand);
            }
        }
        demands
    }

    /// Sends demands, and what tenants used since it was last told.
    pub(super) fn send(&mut self, demands: Vec<Demand>, now: Timestamp) {
        let tenants = &mut self.ledger.buckets().tenants;
        let usage: Vec<(TenantId, Usage)> = self
            .metered
            .drain(..)
            .map(|tenant| (tenant, std::mem::take(&mut tenants[usize::from(tenant.0)].metered)))
            .collect();
        self.metered_report_at = None;
        if !demands.is_empty() {
            self.unanswered.push_back(now);
        } else if usage.is_empty() {
            return;
        }
        self.reports.push_back(Report { shard: self.shard, version: self.version, demands, usage });
    }
}
