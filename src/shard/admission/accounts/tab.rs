//! The tab: the sum of the prices of one payer's consecutive requests, which is taken from its buckets later.
//!
//! Requests come in runs: a pipeline has one payer, and so have all connections of one user. The first
//! requests of a run are booked one by one, each in up to three buckets. Then a tab is opened; from there on,
//! taking and settling are one comparison and a few sums, however many buckets there are.
//!
//! The result is the same as without a tab. Any access to the buckets goes through [`Ledger::buckets`], which books the
//! tab first. And a tab is opened only if booking it will cause no new report to the control executor: its buckets have
//! a report to make already, and its tenant's usage is due to be reported.

use std::time::Duration;

use super::buckets::Buckets;
use super::{Charge, Payer};
use crate::policy::estimate::{Expected, UnderWay};
use crate::policy::slice::{Rules, Wanted};
use crate::protocol::command::Class;
use crate::values::{MicroUnits, Price, Timestamp, Usage};

/// The amount left to a payer (account that is charged) without any limit: more than all prices together, and
/// far from overflow.
const NO_BOUND: i64 = i64::MAX / 2;

/// The sum of the prices of one payer's consecutive requests, not yet taken from its buckets. Amounts are in
/// millionths of a request unit.
#[derive(Debug)]
pub struct Tab {
    /// The amount that this core may still spend, without asking, from the scarcest bucket of the payer (account that
    /// is charged).
    left: i64,
    /// The amount that this core could spend, without asking, from the payer's scarcest bucket when the tab (sum of the
    /// payer's consecutive requests) was opened.
    opened_with: i64,
    /// The least amount that this core could count on from any of the buckets of the payer (account that is
    /// charged) when the tab (sum of the payer's consecutive requests) was opened. `NO_BOUND` if no bucket
    /// limits the payer; `i64::MIN` where all requests of the tenant have the same price, as the amount is
    /// not needed then.
    in_sight: i64,
    /// The time at which the oldest grant (amount of quota to spend) for the payer's buckets expires; from then
    /// on no request can be charged to the tab (sum of one payer's consecutive requests).
    good_until: Timestamp,
    /// The sum of the prices taken on this tab (sum of one payer's consecutive requests).
    wanted: MicroUnits,
    /// The largest price of one request taken on this tab (sum of one payer's consecutive requests).
    lump: Price,
    /// The real cost of the requests settled on this tab (sum of one payer's consecutive requests) that backends have
    /// answered.
    used: MicroUnits,
    /// The cost of the requests settled on this tab (sum of one payer's consecutive requests) that weir answered from
    /// memory.
    cached: MicroUnits,
    /// The sum of the costs beyond the prices taken on arrival, over the answered requests on this tab (sum of
    /// one payer's consecutive requests); cheaper requests are not set off against it.
    surprise: MicroUnits,
    /// The recent cost of requests of the tenant of the payer (account that is charged), by class.
    expected: Expected,
    /// Requests of the tenant of the payer (account that is charged) that are admitted and have not been
    /// charged at their real cost yet.
    under_way: UnderWay,
    /// The number of requests charged at their real cost since the tab (sum of one payer's consecutive
    /// requests) was opened, which is counted for the tenant when the tab is booked.
    settled: u32,
}

impl Tab {
    /// Returns the expected cost of the next request of a class beyond the part of its price that is known on
    /// arrival, in millionths of a request unit.
    #[inline]
    pub fn expected(&self, class: Class) -> MicroUnits {
        self.expected.of(class as usize)
    }

    /// Returns the expected cost of the next request of a class that is not billed, in millionths of a request
    /// unit: that of the store's time within the tenant's leeway (time of stores that it does not pay for).
    #[inline]
    pub fn expected_unbilled(&self, class: Class) -> MicroUnits {
        self.expected.unbilled(class as usize)
    }

    /// True once a request of this class has been charged at its real cost, so that the cost of the class is
    /// known.
    #[inline]
    pub const fn is_seen(&self, class: Class) -> bool {
        self.expected.is_seen(class as usize)
    }

    /// True if one more request of a class may be admitted without a look at each bucket: the payer (account that is
    /// charged) has no limit; or the cost of the class is known well enough for one more in flight, and either all
    /// requests of each class have cost the same lately, or none is in flight, or the payer can surely pay for this
    /// request along with all in flight. If false, [`Accounts::outlook`](super::Accounts::outlook) may still allow it,
    /// since it checks each bucket.
    #[inline]
    pub fn could_pay(&self, cost: Price, class: Class) -> bool {
        (self.expected.is_even() && self.expected.is_known(class as usize)) || self.could_pay_all(cost, class)
    }

    #[inline(never)]
    fn could_pay_all(&self, cost: Price, class: Class) -> bool {
        let is_let_in = self.expected.lets_in(class as usize, &self.under_way);
        if is_let_in && self.expected.is_even() {
            return true;
        }
        if self.in_sight == NO_BOUND || !is_let_in || self.under_way.is_empty() {
            return self.in_sight == NO_BOUND || is_let_in;
        }
        let in_sight = self.in_sight.saturating_sub(self.opened_with.saturating_sub(self.left));
        in_sight >= cost.signed().saturating_add(self.expected.risk(&self.under_way, class as usize))
    }

    /// Counts a request of the payer (account that is charged), of this class of commands, as admitted and not
    /// yet charged at its real cost.
    #[inline]
    pub(super) const fn begin(&mut self, class: Class) {
        self.under_way.begin(class as usize);
    }

    /// Counts a request of the payer (account that is charged) as charged at its real cost.
    #[inline]
    const fn end(&mut self, class: Class) {
        self.under_way.end(class as usize);
        self.settled += 1;
    }

    /// Takes the price of a request if this core may spend that much of all buckets without asking, and the last grants
    /// of quota by the control executor are still valid. False if not, with nothing taken.
    #[inline]
    pub fn take(&mut self, cost: Price, class: Class, now: Timestamp) -> bool {
        let allowed = cost.signed() <= self.left && now <= self.good_until;
        if allowed {
            self.left -= cost.signed();
            self.wanted = self.wanted.saturating_add(cost.micro());
            self.lump = self.lump.max(cost);
            self.begin(class);
        }
        allowed
    }

    /// Settles an answered request: `cost`, its real cost, replaces the price that was taken for it
    /// (`charge`), and is learnt for its class of commands.
    #[inline]
    pub fn settle(&mut self, charge: &Charge, cost: Price) {
        self.end(charge.class);
        self.expected.learn(charge.class as usize, cost.beyond(charge.quote.fixed));
        self.used = self.used.saturating_add(cost.micro());
        self.give_back(charge.taken.signed() - cost.signed());
    }

    /// Settles a request that was answered without a backend: `cost` replaces the price that was taken for it
    /// (`charge`), and is not learnt for its class of commands.
    #[inline]
    pub fn settle_cached(&mut self, charge: &Charge, cost: Price) {
        self.end(charge.class);
        self.cached = self.cached.saturating_add(cost.micro());
        self.give_back(charge.taken.signed() - cost.signed());
    }

    /// Corrects the tab by the price that was taken for a request less its real cost, in millionths of a
    /// request unit. A negative difference (a cost beyond the price) is also counted apart, because the debt of
    /// the global bucket from such costs is limited.
    #[inline]
    fn give_back(&mut self, difference: i64) {
        self.left = self.left.saturating_add(difference);
        if difference < 0 {
            self.surprise = self.surprise.saturating_add(difference.unsigned_abs());
        }
    }
}

/// The buckets, with the tab (sum of one payer's consecutive requests) that is booked in them before they are
/// accessed.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The payer (account that is charged) whose tab (sum of its consecutive requests, not booked yet) is open;
    /// None if no tab is open.
    open_for: Option<Payer>,
    tab: Tab,
    buckets: Buckets,
}

impl Ledger {
    pub fn new(buckets: Buckets) -> Self {
        let tab = Tab {
            left: 0,
            opened_with: 0,
            in_sight: 0,
            good_until: Timestamp::ZERO,
            wanted: 0,
            lump: Price::ZERO,
            used: 0,
            cached: 0,
            surprise: 0,
            expected: Expected::default(),
            under_way: UnderWay::default(),
            settled: 0,
        };
        Self { open_for: None, tab, buckets }
    }

    /// Returns the buckets after booking the open tab (sum of one payer's consecutive requests), so that
    /// their amounts are up to date.
    #[inline]
    pub fn buckets(&mut self) -> &mut Buckets {
        if self.open_for.is_some() {
            self.close();
        }
        &mut self.buckets
    }

    /// Returns the buckets without booking the open tab (sum of one payer's consecutive requests): only for
    /// their ids, sizes and counts, which do not depend on it.
    pub fn names(&self) -> &Buckets {
        &self.buckets
    }

    #[inline]
    pub fn tab_of(&mut self, payer: Payer) -> Option<&mut Tab> {
        (self.open_for == Some(payer)).then_some(&mut self.tab)
    }

    /// Opens a tab (sum of its consecutive requests, booked in the buckets later) for a payer (account that is
    /// charged), unless another tab is open, the payer's user has no account on this core, or booking the tab later
    /// would cause a report to the control executor that is not due anyway. `lease` is the time for which a grant of
    /// quota is valid.
    #[inline(never)]
    pub fn open(&mut self, payer: Payer, lease: Duration, rules: Rules, now: Timestamp) {
        let Self { open_for, tab, buckets, .. } = self;
        let tenant = &buckets.tenants[usize::from(payer.tenant().0)];
        // A settled request of zero cost was booked in no bucket, so another tab may still be open.
        if open_for.is_some() || tenant.metered.is_empty() {
            return;
        }
        let (expected, under_way) = (tenant.expected, tenant.under_way);
        let mut in_sight = if expected.is_even() { i64::MIN } else { buckets.in_sight(payer, rules, now) };
        let Some(parts) = buckets.parts_of(payer) else { return };
        let (mut left, mut good_until) = (NO_BOUND, Timestamp::MAX);
        for (slice, listed) in parts.into_iter().flatten() {
            if !*listed {
                return;
            }
            left = left.min(slice.allowance());
            good_until = good_until.min(slice.heard_at().after(lease));
        }
        if left == NO_BOUND {
            in_sight = NO_BOUND;
        }
        *open_for = Some(payer);
        *tab = Tab {
            left,
            opened_with: left,
            in_sight,
            good_until,
            wanted: 0,
            lump: Price::ZERO,
            used: 0,
            cached: 0,
            surprise: 0,
            expected,
            under_way,
            settled: 0,
        };
    }

    #[inline(never)]
    fn close(&mut self) {
        let Self { open_for, tab, buckets, .. } = self;
        let payer = open_for.take().expect("only an open tab is closed");
        let tenant = &mut buckets.tenants[usize::from(payer.tenant().0)];
        let joined = tab.under_way.total() as i32 - tenant.under_way.total() as i32;
        (tenant.expected, tenant.under_way) = (tab.expected, tab.under_way);
        tenant.settled = tenant.settled.saturating_add(tab.settled);
        tenant.metered.add(Usage { admitted: tab.used, cached: tab.cached, ..Usage::default() });
        let (spent, sum, largest) =
            (tab.opened_with.saturating_sub(tab.left), Wanted::of_sum(tab.wanted), Wanted::of(tab.lump));
        buckets.surprise = buckets.surprise.saturating_add(tab.surprise);
        let parts = buckets.parts_of(payer).expect("nothing is forgotten while a tab is open");
        for (slice, _) in parts.into_iter().flatten() {
            slice.take_run(spent, sum, largest);
        }
        buckets.count_of_user(payer, joined);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Accounts, Bill, Decision, Scope};
    use super::*;
    use crate::config::Quotas;
    use crate::policy::price::Quote;
    use crate::shard::AdmissionSettings;
    use crate::values::{Grant, ShardId};

    const QUOTAS: [&str; 2] = [
        "[global]\nru_per_second = 1_000\n\
         [tenants.acme]\npassword = 'a'\nru_per_second = 300\nuser_ru_per_second = 100\n\
         [tenants.brick]\npassword = 'b'\n",
        // In the next version of the quotas, tenants have other positions, and one has other limits.
        "[global]\nru_per_second = 500\n\
         [tenants.aaa]\npassword = 'x'\n\
         [tenants.acme]\npassword = 'a'\nuser_ru_per_second = 50\n",
    ];
    const PAYERS: [(&str, Option<&str>); 4] =
        [("acme", Some("ann")), ("acme", Some("bob")), ("acme", None), ("brick", None)];

    #[derive(Clone, Debug)]
    enum Step {
        Admit { payer: usize, times: usize, milli: u64 },
        Settle { times: usize, milli: Option<u64> },
        Refuse { payer: usize },
        Look { payer: usize },
        Grant { share: u64, dry: bool },
        Wait { micros: u64 },
        Flush,
        NewQuotas,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let payer = || prop_oneof![4 => Just(0_usize), 1 => 0..PAYERS.len()];
        let step = prop_oneof![
            20 => (payer(), 1_usize..8, prop_oneof![Just(0), 0_u64..4_000])
                .prop_map(|(payer, times, milli)| Step::Admit { payer, times, milli }),
            20 => (1_usize..8, proptest::option::weighted(0.9, prop_oneof![Just(0), 0_u64..6_000]))
                .prop_map(|(times, milli)| Step::Settle { times, milli }),
            2 => payer().prop_map(|payer| Step::Refuse { payer }),
            2 => payer().prop_map(|payer| Step::Look { payer }),
            6 => (prop_oneof![0_u64..200_000, 0_u64..20_000_000], proptest::bool::weighted(0.2))
                .prop_map(|(share, dry)| Step::Grant { share, dry }),
            10 => prop_oneof![5 => 0_u64..3_000, 1 => 0_u64..60_000].prop_map(|micros| Step::Wait { micros }),
            1 => Just(Step::Flush),
            1 => Just(Step::NewQuotas),
        ];
        proptest::collection::vec(step, 1..400)
    }

    /// The accounts of one core, with the charges of unsettled requests and other state that the code around
    /// the accounts would keep.
    struct Core {
        accounts: Accounts,
        quotas: Quotas,
        now: Timestamp,
        charges: std::collections::VecDeque<Charge>,
        grants: Vec<Grant>,
        /// True for the reference model, which books everything at once and leaves nothing on a tab.
        books_at_once: bool,
        tabbed: usize,
    }

    impl Core {
        fn new(books_at_once: bool) -> Self {
            let quotas = quotas(0);
            Self {
                accounts: Accounts::new(ShardId(0), 2, &AdmissionSettings::default(), &quotas),
                quotas,
                now: Timestamp::from_millis(1),
                charges: std::collections::VecDeque::new(),
                grants: Vec::new(),
                books_at_once,
                tabbed: 0,
            }
        }

        /// Carries out a step, and returns as text all its results that are visible outside of the accounts,
        /// for comparison with the model.
        fn step(&mut self, step: &Step) -> String {
            let seen = self.take_step(step);
            self.accounts.handle_turn_end(self.now);
            let mut reports = Vec::new();
            while let Some(report) = self.accounts.poll_report() {
                self.grants.extend(report.demands.iter().map(|demand| Grant {
                    bucket: demand.bucket,
                    amount: (demand.wanted + demand.needed) as i64,
                    holds: demand.wanted + demand.needed,
                    level: 1_000_000,
                    at: self.now,
                    share: 30_000,
                    part: crate::values::Part::WHOLE,
                    dry_from: None,
                }));
                reports.push(report);
            }
            format!("{seen} {reports:?} {:?}", self.accounts.poll_deadline())
        }

        fn take_step(&mut self, step: &Step) -> String {
            match *step {
                Step::Admit { payer, times, milli } => {
                    let decisions: Vec<_> = (0..times).map(|_| self.admit(payer, milli * 1_000)).collect();
                    format!("{decisions:?}")
                }
                Step::Settle { times, milli } => {
                    (0..times).for_each(|_| self.settle(milli.map(|milli| milli * 1_000)));
                    String::new()
                }
                Step::Refuse { payer } => {
                    let Some(payer) = self.payer(payer) else { return String::new() };
                    let usage = Usage { throttled: 7_000, ..Usage::default() };
                    self.accounts.meter(payer.tenant(), usage, self.now);
                    String::new()
                }
                Step::Look { payer } => self.looked_at(payer),
                Step::Grant { share, dry } => {
                    let grants: Vec<Grant> = std::mem::take(&mut self.grants)
                        .into_iter()
                        .map(|grant| Grant {
                            amount: grant.amount * share as i64 / 100_000,
                            holds: (grant.holds + 1_000_000) * share / 100_000,
                            at: self.now,
                            dry_from: dry.then_some(0),
                            ..grant
                        })
                        .collect();
                    self.accounts.handle_grants(&grants, self.now);
                    String::new()
                }
                Step::Wait { micros } => {
                    self.now = self.now.after(Duration::from_micros(micros));
                    String::new()
                }
                Step::Flush => {
                    self.accounts.flush(self.now);
                    String::new()
                }
                Step::NewQuotas => {
                    let version = self.quotas.version() + 1;
                    let before = std::mem::replace(&mut self.quotas, quotas(version));
                    self.accounts.handle_quotas(&before, &self.quotas, self.now);
                    String::new()
                }
            }
        }

        fn admit(&mut self, payer: usize, cost: MicroUnits) -> Option<Decision> {
            let payer = self.payer(payer)?;
            let class = Class::Point;
            let with = |expected: MicroUnits| Price::new(cost + expected / 1_000 * 1_000);
            let taken;
            let decision = if let Some(tab) = self.accounts.tab_of(payer)
                && tab.take(with(tab.expected(class)), class, self.now)
            {
                self.tabbed += 1;
                taken = with(tab.expected(class));
                Decision::Admitted
            } else {
                taken = with(self.accounts.expected(payer, class));
                self.accounts.admit(payer, taken, self.now)
            };
            if decision == Decision::Admitted {
                let quote = Quote { fixed: Price::new(cost / 2), ..Quote::default() };
                self.charges.push_back(Charge { taken, quote, payer, class, is_unrefused: false });
            }
            self.book_at_once();
            Some(decision)
        }

        fn settle(&mut self, cost: Option<MicroUnits>) {
            let Some(charge) = self.charges.pop_front() else { return };
            let is_cached = cost.is_some_and(|cost| cost % 5_000 == 4_000);
            let cost = cost.map(|cost| Price::new(charge.quote.fixed.micro() + cost));
            match (self.accounts.tab_of(charge.payer), cost) {
                (Some(tab), Some(cost)) if is_cached => tab.settle_cached(&charge, cost),
                (_, Some(cost)) if is_cached => {
                    self.accounts.settle(&charge, Bill::Cached(cost), self.now);
                }
                (Some(tab), Some(cost)) => tab.settle(&charge, cost),
                (_, Some(due)) => self.accounts.settle(&charge, Bill::Cost { due, unbilled: 0 }, self.now),
                (_, None) => self.accounts.settle(&charge, Bill::Nothing, self.now),
            }
            self.book_at_once();
        }

        fn book_at_once(&mut self) {
            if self.books_at_once {
                self.accounts.ledger.buckets();
            }
        }

        fn looked_at(&mut self, payer: usize) -> String {
            let Some(payer) = self.payer(payer) else { return String::new() };
            let expected = self.accounts.expected(payer, Class::Point);
            let scopes: Vec<Scope> = payer.scopes().collect();
            let told: Vec<_> = scopes
                .into_iter()
                .map(|scope| {
                    let remaining = self.accounts.remaining(scope, self.now);
                    (self.accounts.peek(scope, Price::new(5_000_000), self.now), remaining)
                })
                .collect();
            format!("{expected} {told:?}")
        }

        fn payer(&mut self, number: usize) -> Option<Payer> {
            let (tenant, user) = PAYERS[number];
            let id = self.quotas.find(tenant)?;
            let account = user.and_then(|user| self.accounts.user(self.quotas.tenant(id), user));
            Some(Payer::new(id, account, self.quotas.version()))
        }
    }

    fn quotas(version: u64) -> Quotas {
        let text = QUOTAS[version as usize % QUOTAS.len()];
        Quotas::parse("quotas.toml", text).expect("well formed").with_version(version)
    }

    proptest! {
        #[test]
        fn nobody_can_tell_whether_there_was_a_tab(steps in steps()) {
            let (mut tabs, mut books) = (Core::new(false), Core::new(true));
            for step in &steps {
                prop_assert_eq!(tabs.step(step), books.step(step), "{:?}", step);
            }
            prop_assert_eq!(books.tabbed, 0);
        }
    }

    #[test]
    fn a_pipeline_is_on_one_tab_but_for_its_beginning() {
        let mut core = Core::new(false);
        let one = Step::Admit { payer: 3, times: 1, milli: 1 };
        let sixteen = Step::Admit { payer: 3, times: 16, milli: 1 };
        for _ in 0..20 {
            // A period ends, and the first reply afterwards makes the usage due for a report.
            let period = [Step::Wait { micros: 10_000 }, Step::Grant { share: 10_000_000, dry: false }];
            let settle = |times| Step::Settle { times, milli: Some(1) };
            let steps = [one.clone(), settle(1), sixteen.clone(), settle(16)];
            period.iter().chain(&steps).for_each(|step| drop(core.step(step)));
        }
        assert!(core.tabbed >= 15 * 15, "{} of 16 each time", core.tabbed);
    }
}
