//! The reports of this core to the pools of quotas (the parts that no core holds, kept by the control executor): what
//! it spent, once per period, and at once the amounts that requests wait for.

use std::time::Duration;

use super::{Accounts, Scope};
use crate::policy::slice::Rules;
use crate::values::allowance::Report;
use crate::values::{Demand, Grant, MicroUnits, TenantId, Timestamp, Usage};

/// Number of unanswered reports to the control executor from which on this core sends no more periodic ones, so that a
/// stopped control executor is not flooded.
const REPORTS_UNANSWERED_MAX: usize = 16;
/// The number of users' accounts that are checked for idleness at each tick (end of a reporting period), or one
/// in 64 of all accounts if that is more.
const USERS_SWEPT: usize = 256;
/// The number of reporting periods after which users' accounts are checked for idleness even without traffic,
/// so that idle ones are dropped.
const PERIODS_BETWEEN_SWEEPS: u32 = 50;

/// The list of buckets to report to the control executor at the next tick (end of a reporting period), because
/// amounts were spent or are to be given back, and the time of that tick.
#[derive(Debug)]
pub(super) struct Agenda {
    pub period: Duration,
    pub listed: Vec<Scope>,
    pub next_tick: Option<Timestamp>,
}

/// The occasion on which the control executor gets a report of the amounts of quota that this core spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The report comes at the end of a reporting period, when the next period begins.
    PeriodEnds,
    /// A moment within a period: a request waits for an answer of the control executor, or everything is to
    /// be reported at once.
    Between,
}

impl Agenda {
    /// Adds a scope's bucket to those to be reported to the control executor at the end of the period, and
    /// sets `listed`; does nothing if `listed` is set already.
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
    /// Applies the grants (amounts of quotas that the control executor gives to this core), which answer the oldest
    /// unanswered report. Requests that waited for them may be tried again.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Timestamp) {
        self.unanswered.pop_front();
        for grant in grants {
            // A tenant without a limit any more needs no grant, nor does a user whose account was dropped.
            let Some(scope) = self.ledger.buckets().scope_of(grant.bucket) else { continue };
            self.ledger.buckets().set_part(scope, grant.part);
            if let Some(entry) = self.ledger.buckets().entry(scope, now) {
                entry.slice.handle_grant(grant);
                self.agenda.list(scope, entry.listed, now);
            }
        }
    }

    /// Sends the reports to the control executor that are due: at the end of a reporting period what was spent,
    /// and at once the amounts that requests wait for. Called at the end of each turn (pass of the shard's
    /// loop).
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

    /// Reports to the control executor at once all amounts spent and all usage of tenants since the last report,
    /// without waiting for the end of the period.
    pub fn flush(&mut self, now: Timestamp) {
        let listed = std::mem::take(&mut self.agenda.listed);
        let demands = self.demands(listed.iter().map(|scope| (*scope, 0)), Moment::Between, now);
        self.send(demands, now);
        self.agenda.listed = listed;
    }

    /// Takes the next report to the control executor (amounts spent, amounts needed, tenants' usage); None if
    /// there is none.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// Returns the time at which [`Self::handle_turn_end`] should be called at the latest, for a periodic report, a
    /// report of usage, or the search for idle users; None if none of them is due.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        Timestamp::earliest([self.agenda.next_tick, self.metered_report_at])
    }

    /// Returns the time at which requests stop waiting for the control executor's answer: a lease (the time
    /// for which a grant of it is valid) after the oldest unanswered report. None if all reports are
    /// answered.
    pub fn patience_ends(&self) -> Option<Timestamp> {
        self.unanswered.front().map(|sent| sent.after(self.lease))
    }

    /// True if the control executor has not answered a report for at least a lease, the time for which a
    /// grant is valid.
    pub fn is_alone(&self, now: Timestamp) -> bool {
        self.patience_ends().is_some_and(|at| at <= now)
    }

    pub(super) fn rules(&self, now: Timestamp) -> Rules {
        Rules {
            period: self.agenda.period,
            lease: self.lease,
            silent: self.is_alone(now),
            even_share: 65_536 / u32::from(self.shards),
        }
    }

    pub(super) fn ask_pools(&mut self, now: Timestamp) {
        let asking = std::mem::take(&mut self.asking);
        let demands = self.demands(asking.iter().copied(), Moment::Between, now);
        self.send(demands, now);
        self.asking = asking;
        self.asking.clear();
    }

    fn tick(&mut self, now: Timestamp) {
        self.agenda.next_tick = None;
        let mut listed = std::mem::take(&mut self.agenda.listed);
        if self.unanswered.len() < REPORTS_UNANSWERED_MAX {
            let demands = self.demands(listed.iter().map(|scope| (*scope, 0)), Moment::PeriodEnds, now);
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
            // Users that are idle now are dropped once their buckets are full again.
            self.agenda.tick_after(self.agenda.period * PERIODS_BETWEEN_SWEEPS, now);
        }
    }

    fn demands(
        &mut self,
        scopes: impl ExactSizeIterator<Item = (Scope, MicroUnits)>,
        moment: Moment,
        now: Timestamp,
    ) -> Vec<Demand> {
        let rules = self.rules(now);
        let mut demands = Vec::with_capacity(scopes.len());
        for (scope, needed) in scopes {
            let buckets = self.ledger.buckets();
            let Some(entry) = buckets.entry(scope, now) else { continue };
            let asked = if moment == Moment::PeriodEnds { entry.slice.asked() } else { 0 };
            let demand = entry.slice.report(entry.bucket, entry.quota, needed, now, rules);
            let Some(demand) = demand else { continue };
            let surprise = if scope == Scope::Global { std::mem::take(&mut buckets.surprise) } else { 0 };
            demands.push(Demand { asked, surprise, ..demand });
        }
        demands
    }

    /// Sends a report to the control executor with `demands` (amounts of quotas that were spent or are
    /// needed), and with the usage of tenants since the last report. Does nothing if there is neither.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quotas;
    use crate::shard::AdmissionSettings;
    use crate::shard::admission::accounts::{Decision, Payer};
    use crate::values::{BucketId, Part, Price, ShardId, UNIT};

    /// A test setup: a core with a user who asks for one request unit per millisecond, and a stand-in for the
    /// control executor that grants a part of that.
    struct Rig {
        accounts: Accounts,
        payer: Payer,
        user: BucketId,
        part: Part,
        /// The request units that the pool (the part of a bucket that no core holds) grants in a period.
        given: u64,
        millis: u64,
        asked_of_it: u64,
        told: u64,
    }

    impl Rig {
        fn new(given: u64) -> Self {
            let text = "[tenants.acme]\npassword = 'a'\nuser_ru_per_second = 100";
            let quotas = Quotas::parse("q", text).expect("well formed");
            let mut accounts = Accounts::new(ShardId(0), 2, &AdmissionSettings::default(), &quotas);
            let id = quotas.find("acme").expect("it is there");
            let account = accounts.user(quotas.tenant(id), "ann").expect("it is bounded");
            let payer = Payer::new(id, Some(account), quotas.version());
            let (user, part) = (account.bucket, Part::WHOLE);
            Self { accounts, payer, user, part, given, millis: 1, asked_of_it: 0, told: 0 }
        }

        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.millis)
        }

        /// Runs a turn: answers the core's reports, and adds up the demand that they state.
        fn turn(&mut self) {
            let now = self.now();
            self.accounts.handle_turn_end(now);
            while let Some(report) = self.accounts.poll_report() {
                let answers = report.demands.iter().map(|demand| Grant {
                    bucket: demand.bucket,
                    amount: (self.given * UNIT) as i64,
                    holds: self.given * UNIT,
                    level: 0,
                    at: now,
                    share: 65_536,
                    part: self.part,
                    dry_from: Some(UNIT),
                });
                let grants: Vec<Grant> = answers.collect();
                let of_user = report.demands.iter().filter(|demand| demand.bucket == self.user);
                self.told += of_user.map(|demand| demand.asked).sum::<u64>();
                self.accounts.handle_grants(&grants, now);
            }
            self.millis += 1;
        }

        fn ask(&mut self) -> Decision {
            let now = self.now();
            let decision = self.accounts.admit(self.payer, Price::new(UNIT), now);
            if decision != Decision::Wait {
                self.asked_of_it += UNIT;
            }
            decision
        }
    }

    #[test]
    fn what_was_asked_for_is_told_once_whether_it_was_granted_or_not() {
        for given in [0, 3, 1_000] {
            let mut rig = Rig::new(given);
            let mut refused = 0;
            for _ in 0..500 {
                refused += u32::from(matches!(rig.ask(), Decision::Refused { .. }));
                if rig.millis.is_multiple_of(37) {
                    let now = rig.now();
                    rig.accounts.flush(now);
                }
                rig.turn();
            }
            (0..100).for_each(|_| rig.turn());
            assert_eq!((rig.told, refused > 100), (rig.asked_of_it, given < 1_000), "{given} in each period");
        }
    }

    #[test]
    fn a_user_who_goes_on_asking_has_the_new_quota_at_once() {
        let mut rig = Rig::new(1);
        (0..20).for_each(|_| {
            rig.ask();
            rig.turn();
        });
        let quotas = |version, rate: u32| {
            let text = format!("[tenants.acme]\npassword = 'a'\nuser_ru_per_second = {rate}");
            Quotas::parse("q", &text).expect("well formed").with_version(version)
        };
        let (before, after) = (quotas(0, 100), quotas(1, 10));
        let now = rig.now();
        rig.accounts.handle_quotas(&before, &after, now);
        let id = after.find("acme").expect("it is there");
        let account = rig.accounts.user(after.tenant(id), "ann").expect("it is bounded");
        rig.payer = Payer::new(id, Some(account), after.version());
        let mut told = Vec::new();
        for _ in 0..100 {
            rig.ask();
            let now = rig.now();
            rig.accounts.handle_turn_end(now);
            while let Some(report) = rig.accounts.poll_report() {
                let of_user = report.demands.iter().filter(|demand| demand.bucket == rig.user);
                told.extend(of_user.map(|demand| demand.capacity.ru_per_second()));
            }
            rig.millis += 1;
        }
        assert!(told.len() > 2 && told[1..].iter().all(|rate| *rate == 10), "{told:?}");
    }

    #[test]
    fn who_is_refused_is_told_to_come_back_by_what_this_process_has_of_the_quota() {
        let mut rig = Rig::new(0);
        rig.part = Part::even(4);
        while !matches!(rig.ask(), Decision::Refused { .. }) {
            rig.turn();
        }
        rig.turn();
        let Decision::Refused { retry_after, .. } = rig.ask() else { panic!("nothing was given") };
        // The bucket gets 100 units a second, of which a quarter belongs to this process.
        assert!((35..=41).contains(&retry_after.as_millis()), "{retry_after:?}");
    }
}
