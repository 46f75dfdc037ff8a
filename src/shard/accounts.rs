//! Who may spend how much on this core: slices of the global bucket, of each tenant's and of each active user's.
//!
//! Asked by `admission.rs`; told by the control executor what the pools can give. Knows no clients and no requests.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::AdmissionSettings;
use crate::config::quotas::{Limit, Quotas, Tenant};
use crate::policy::bucket_table::BucketTable;
use crate::policy::estimate::Expected;
use crate::policy::slice::{Slice, Terms, Verdict};
use crate::values::allowance::{Report, lease_of};
use crate::values::limits::USERS_MAX;
use crate::values::{BucketId, Capacity, Grant, MicroUnits, ShardId, TenantId, Timestamp, Usage};

/// Usage is reported with whatever else is, and after so long at the latest.
const METERED_REPORT: Duration = Duration::from_secs(1);
/// Reports that control has not answered; no more are sent, so that a stopped control executor is not drowned.
const REPORTS_UNANSWERED_MAX: usize = 16;
/// Idle users are looked for with every tick, at least this many at a time; without traffic, after so many periods.
const USERS_SWEPT: usize = 256;
const PERIODS_BETWEEN_SWEEPS: u32 = 50;

/// A user as the buckets know them: a hash of the name, and which size of bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// The user's bucket.
    pub bucket: BucketId,
    /// Index of its size.
    size: u32,
}

/// Who pays for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// The tenant.
    pub tenant: TenantId,
    /// The user within it, if a quota bounds what that user may spend.
    pub user: Option<UserAccount>,
    /// The version of the quotas that the tenant's id is of.
    pub version: u64,
}

/// Whose bucket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's.
    Global,
    /// One tenant's.
    Tenant(TenantId),
    /// One user's within a tenant.
    User(UserAccount),
}

/// What the buckets say about a request. If it is admitted, its cost was taken from all of them, else from none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Its cost was taken.
    Admitted,
    /// A pool is being asked; try again when it has answered.
    Wait,
    /// The most restrictive bucket has not enough before so much later.
    Refused {
        /// Whose bucket that is.
        scope: Scope,
        /// When there is enough, if nobody else takes any.
        retry_after: Duration,
    },
}

/// One bucket, as far as this core has to do with it.
#[derive(Debug)]
struct Account {
    bucket: BucketId,
    capacity: Capacity,
    slice: Slice,
    listed: bool,
}

/// One tenant: its bucket, if it has a bound, and what its requests cost lately.
#[derive(Debug)]
struct TenantAccount {
    account: Option<Account>,
    expected: Expected,
    /// What was not reported yet.
    metered: Usage,
}

/// One active user. There may be a million.
#[derive(Debug)]
struct UserEntry {
    slice: Slice,
    size: u32,
    listed: bool,
}

const _: () = assert!(size_of::<UserEntry>() <= 64);

/// Users of a shard whose buckets are not full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserFigures {
    /// Those that are remembered.
    pub active: usize,
    /// Idle ones that had to make room, so far.
    pub evicted: u64,
    /// Requests of those that found none, so far.
    pub refused: u64,
}

/// All of them.
#[derive(Debug)]
pub struct Accounts {
    shard: ShardId,
    period: Duration,
    lease: Duration,
    even_share: u32,
    secret: [u64; 2],
    version: u64,
    /// Where tenants of the version before went.
    moved: Vec<Option<TenantId>>,
    global: Option<Account>,
    tenants: Vec<TenantAccount>,
    tenant_by_bucket: HashMap<BucketId, TenantId>,
    users: BucketTable<UserEntry>,
    /// The sizes that buckets of users have, and where each stands. None is ever forgotten: the quota file has few.
    sizes: Vec<Capacity>,
    size_of: HashMap<Capacity, u32>,
    /// Buckets with something to report, or with an allowance to give back.
    listed: Vec<Scope>,
    next_tick: Option<Timestamp>,
    /// Tenants whose usage is to be reported, and when at the latest.
    metered: Vec<TenantId>,
    metered_report_at: Option<Timestamp>,
    /// Buckets whose pools must be asked, and for how much.
    asking: Vec<(Scope, MicroUnits)>,
    reports: VecDeque<Report>,
    /// When those were sent that were not answered, the oldest first.
    unanswered: VecDeque<Timestamp>,
}

impl Accounts {
    /// Those of one shard of so many. All buckets are full, as far as it knows.
    pub fn new(shard: ShardId, shards: u16, settings: &AdmissionSettings, quotas: &Quotas) -> Self {
        let (period, secret) = (settings.period, settings.secret);
        let mut accounts = Self {
            shard,
            period,
            lease: lease_of(period),
            even_share: 65_536 / u32::from(shards),
            secret,
            version: quotas.version(),
            moved: Vec::new(),
            global: None,
            tenants: Vec::new(),
            tenant_by_bucket: HashMap::new(),
            users: BucketTable::new(USERS_MAX),
            sizes: Vec::new(),
            size_of: HashMap::new(),
            listed: Vec::new(),
            next_tick: None,
            metered: Vec::new(),
            metered_report_at: None,
            asking: Vec::new(),
            reports: VecDeque::new(),
            unanswered: VecDeque::new(),
        };
        accounts.take_over(quotas, &mut Vec::new());
        accounts
    }

    /// New quotas. What was spent stays spent: a bucket is known by the names of its owners.
    pub fn handle_quotas(&mut self, before: &Quotas, after: &Quotas, now: Timestamp) {
        // What was asked for and counted so far is of tenants by the ids of the version before.
        self.ask_pools(now);
        self.report(std::iter::empty(), now);
        self.moved = before.tenants().map(|(_, tenant)| after.find(&tenant.name)).collect();
        self.version = after.version();
        let mut former = std::mem::take(&mut self.tenants);
        self.listed.retain(|scope| !matches!(scope, Scope::Tenant(_)));
        self.take_over(after, &mut former);
    }

    /// Sets up the accounts of all tenants, with what is known of those that were there before.
    fn take_over(&mut self, quotas: &Quotas, former: &mut [TenantAccount]) {
        let global = quotas.global().map(capacity_of);
        self.global = global.map(|capacity| match self.global.take() {
            Some(account) => Account { capacity, ..account },
            None => Account::new(BucketId(0), capacity),
        });
        self.tenants = quotas
            .tenants()
            .map(|(_, tenant)| TenantAccount {
                account: tenant
                    .limit
                    .map(|limit| Account::new(self.bucket_of(tenant, None), capacity_of(limit))),
                expected: Expected::default(),
                metered: Usage::default(),
            })
            .collect();
        let buckets = (0..)
            .map(TenantId)
            .zip(&self.tenants)
            .filter_map(|(tenant, known)| known.account.as_ref().map(|account| (account.bucket, tenant)));
        self.tenant_by_bucket = buckets.collect();
        for (old, place) in former.iter_mut().zip(&self.moved) {
            let Some(new) = place else { continue };
            let tenant = &mut self.tenants[usize::from(new.0)];
            tenant.expected = old.expected;
            if let (Some(account), Some(known)) = (&mut tenant.account, old.account.take()) {
                account.slice = known.slice;
                if known.listed {
                    account.listed = true;
                    self.listed.push(Scope::Tenant(*new));
                }
            }
        }
        if !quotas.tenants().any(|(_, tenant)| tenant.limit.is_some()) && self.global.is_none() {
            self.listed.retain(|scope| matches!(scope, Scope::User(_)));
        }
        self.listed.retain(|scope| !matches!(scope, Scope::Global) || self.global.is_some());
    }

    /// The account of a user, if the quotas bound what that user may spend.
    pub fn user(&mut self, tenant: &Tenant, name: &str) -> Option<UserAccount> {
        let capacity = capacity_of(tenant.limit_of(name)?);
        let size = *self.size_of.entry(capacity).or_insert_with(|| {
            self.sizes.push(capacity);
            self.sizes.len() as u32 - 1
        });
        Some(UserAccount { bucket: self.bucket_of(tenant, Some(name)), size })
    }

    /// What the next request of a tenant and class will cost beyond its fixed part.
    pub fn expected(&self, tenant: TenantId, class: usize) -> MicroUnits {
        self.tenants[usize::from(tenant.0)].expected.of(class)
    }

    /// What one really cost.
    pub fn learn(&mut self, payer: Payer, class: usize, cost: MicroUnits) {
        if let Some(tenant) = self.tenant_now(payer) {
            self.tenants[usize::from(tenant.0)].expected.learn(class, cost);
        }
    }

    /// Checks all buckets of a request, then takes its cost from all of them.
    pub fn admit(&mut self, payer: Payer, cost: MicroUnits, now: Timestamp) -> Decision {
        let terms = self.terms(now);
        let mut decision = Decision::Admitted;
        if let Some(global) = &mut self.global {
            let verdict = global.slice.check(cost, global.capacity, now, terms);
            decision = decision.and(Scope::Global, verdict);
        }
        let tenant = &mut self.tenants[usize::from(payer.tenant.0)];
        if let Some(account) = &mut tenant.account {
            let verdict = account.slice.check(cost, account.capacity, now, terms);
            decision = decision.and(Scope::Tenant(payer.tenant), verdict);
        }
        if let Some(user) = payer.user {
            let verdict = match entry_of(&mut self.users, &self.sizes, user, now) {
                Some(entry) => entry.slice.check(cost, self.sizes[user.size as usize], now, terms),
                None => Verdict::Refused(Duration::from_secs(1)),
            };
            decision = decision.and(Scope::User(user), verdict);
        }
        match decision {
            Decision::Admitted => self.take(payer, cost, now),
            Decision::Wait => self.ask_for(payer, cost, now, terms),
            Decision::Refused { scope, .. } => {
                self.with_slice(scope, now, |slice, _| slice.handle_denied(cost));
                self.list(scope, now);
            }
        }
        decision
    }

    /// The same without taking or asking: what would be decided of this scope alone.
    pub fn peek(&self, scope: Scope, cost: MicroUnits, now: Timestamp) -> Option<Verdict> {
        let terms = self.terms(now);
        let (slice, capacity) = self.slice(scope, now)?;
        Some(slice.clone().check(cost, capacity, now, terms))
    }

    /// The size of a scope's bucket.
    pub fn capacity(&self, scope: Scope) -> Option<Capacity> {
        match scope {
            Scope::Global => self.global.as_ref().map(|account| account.capacity),
            Scope::Tenant(tenant) => {
                self.tenants[usize::from(tenant.0)].account.as_ref().map(|one| one.capacity)
            }
            Scope::User(user) => Some(self.sizes[user.size as usize]),
        }
    }

    /// Reports all there is to report, before its time.
    pub fn flush(&mut self, now: Timestamp) {
        let listed = std::mem::take(&mut self.listed);
        self.report(listed.iter().map(|scope| (*scope, 0)), now);
        self.listed = listed;
    }

    /// What of the scope's bucket is left, as far as this core knows.
    pub fn remaining(&self, scope: Scope, now: Timestamp) -> Option<(Capacity, MicroUnits)> {
        let (slice, capacity) = self.slice(scope, now)?;
        Some((capacity, slice.remaining(capacity, now)))
    }

    /// The bucket of a scope.
    pub fn bucket(&self, scope: Scope) -> Option<BucketId> {
        match scope {
            Scope::Global => self.global.as_ref().map(|account| account.bucket),
            Scope::Tenant(tenant) => {
                self.tenants[usize::from(tenant.0)].account.as_ref().map(|one| one.bucket)
            }
            Scope::User(user) => Some(user.bucket),
        }
    }

    /// A request cost more than was taken for it, or less.
    pub fn settle(&mut self, payer: Payer, taken: MicroUnits, cost: MicroUnits, now: Timestamp) {
        if let Some(tenant) = self.tenant_now(payer) {
            self.meter(tenant, Usage { admitted: cost, ..Usage::default() }, now);
        }
        let difference = cost as i64 - taken as i64;
        if difference == 0 {
            return;
        }
        if let Some(global) = &mut self.global {
            global.slice.book(difference);
            self.list(Scope::Global, now);
        }
        let Some(tenant) = self.tenant_now(payer) else { return };
        if let Some(account) = &mut self.tenants[usize::from(tenant.0)].account {
            account.slice.book(difference);
            self.list(Scope::Tenant(tenant), now);
        }
        if let Some(user) = payer.user
            && let Some(entry) = entry_of(&mut self.users, &self.sizes, user, now)
        {
            entry.slice.book(difference);
            self.list(Scope::User(user), now);
        }
    }

    /// Counts what became of a tenant's requests.
    pub fn meter(&mut self, tenant: TenantId, usage: Usage, now: Timestamp) {
        let metered = &mut self.tenants[usize::from(tenant.0)].metered;
        if metered.is_empty() && !usage.is_empty() {
            self.metered.push(tenant);
            self.metered_report_at.get_or_insert(now.after(METERED_REPORT));
        }
        metered.add(usage);
    }

    /// What the pools said. Requests that waited may be tried again.
    pub fn handle_grants(&mut self, grants: &[Grant], now: Timestamp) {
        self.unanswered.pop_front();
        for grant in grants {
            if grant.bucket == BucketId(0) {
                if let Some(global) = &mut self.global {
                    global.slice.handle_grant(grant);
                    self.list(Scope::Global, now);
                }
            } else if let Some(entry) = self.users.get_mut(grant.bucket) {
                let user = UserAccount { bucket: grant.bucket, size: entry.size };
                entry.slice.handle_grant(grant);
                self.list(Scope::User(user), now);
            } else if let Some(tenant) = self.tenant_by_bucket.get(&grant.bucket).copied() {
                // A tenant that has no bound any more needs no grant.
                if let Some(account) = &mut self.tenants[usize::from(tenant.0)].account {
                    account.slice.handle_grant(grant);
                    self.list(Scope::Tenant(tenant), now);
                }
            }
        }
    }

    /// Reports what is due.
    pub fn handle_turn_end(&mut self, now: Timestamp) {
        if self.next_tick.is_some_and(|at| at <= now) {
            self.tick(now);
        }
        if self.metered_report_at.is_some_and(|at| at <= now) {
            self.report(std::iter::empty(), now);
        }
        self.ask_pools(now);
    }

    fn ask_pools(&mut self, now: Timestamp) {
        if !self.asking.is_empty() {
            let asking = std::mem::take(&mut self.asking);
            self.report(asking.iter().copied(), now);
            self.asking = asking;
            self.asking.clear();
        }
    }

    /// What is to be told to the pools, if anything.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// When `handle_turn_end` should be called at the latest.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        [self.next_tick, self.metered_report_at].into_iter().flatten().min()
    }

    /// When requests that wait will wait no longer.
    pub fn patience_ends(&self) -> Option<Timestamp> {
        self.unanswered.front().map(|sent| sent.after(self.lease))
    }

    /// The control executor has not answered for longer than its grants are good for.
    pub fn is_alone(&self, now: Timestamp) -> bool {
        self.patience_ends().is_some_and(|at| at <= now)
    }

    /// How many users are remembered.
    pub fn users(&self) -> UserFigures {
        UserFigures { active: self.users.len(), evicted: self.users.evicted(), refused: self.users.refused() }
    }

    fn terms(&self, now: Timestamp) -> Terms {
        Terms { lease: self.lease, silent: self.is_alone(now), even_share: self.even_share }
    }

    fn tenant_now(&self, payer: Payer) -> Option<TenantId> {
        match self.version.saturating_sub(payer.version) {
            0 => Some(payer.tenant),
            1 => self.moved[usize::from(payer.tenant.0)],
            _ => None,
        }
    }

    /// Takes a cost from all buckets, whatever is in them.
    pub fn take(&mut self, payer: Payer, cost: MicroUnits, now: Timestamp) {
        if let Some(global) = &mut self.global {
            global.slice.take(cost);
            if !global.listed {
                self.list(Scope::Global, now);
            }
        }
        if let Some(account) = &mut self.tenants[usize::from(payer.tenant.0)].account {
            account.slice.take(cost);
            if !account.listed {
                self.list(Scope::Tenant(payer.tenant), now);
            }
        }
        if let Some(user) = payer.user
            && let Some(entry) = self.users.get_mut(user.bucket)
        {
            entry.slice.take(cost);
            if !entry.listed {
                self.list(Scope::User(user), now);
            }
        }
    }

    /// Notes which pools must be asked before this can be decided.
    fn ask_for(&mut self, payer: Payer, cost: MicroUnits, now: Timestamp, terms: Terms) {
        let scopes = [Some(Scope::Global), Some(Scope::Tenant(payer.tenant)), payer.user.map(Scope::User)];
        for scope in scopes.into_iter().flatten() {
            let asks = self.with_slice(scope, now, |slice, capacity| {
                slice.check(cost, capacity, now, terms) == Verdict::Ask && !slice.await_answer()
            });
            if asks == Some(true) {
                self.asking.push((scope, cost));
            }
        }
    }

    fn tick(&mut self, now: Timestamp) {
        self.next_tick = None;
        let listed = std::mem::take(&mut self.listed);
        for scope in &listed {
            *self.listed_flag(*scope).expect("it was listed") = false;
        }
        if self.unanswered.len() < REPORTS_UNANSWERED_MAX {
            self.report(listed.iter().map(|scope| (*scope, 0)), now);
        }
        for scope in listed {
            let goes_on = self.with_slice(scope, now, |slice, _| {
                slice.start_period();
                slice.has_news()
            });
            if goes_on == Some(true) {
                self.list(scope, now);
            }
        }
        let sizes = &self.sizes;
        let looked_at = USERS_SWEPT.max(self.users.len() / 64);
        self.users
            .sweep(looked_at, |entry| !entry.listed && entry.slice.is_idle(sizes[entry.size as usize], now));
        if !self.users.is_empty() {
            // Users that are idle now are forgotten when their buckets are full.
            self.next_tick.get_or_insert(now.after(self.period * PERIODS_BETWEEN_SWEEPS));
        }
    }

    fn report(&mut self, scopes: impl Iterator<Item = (Scope, MicroUnits)>, now: Timestamp) {
        let terms = self.terms(now);
        let mut demands = Vec::new();
        for (scope, needed) in scopes {
            let Some(bucket) = self.bucket(scope) else { continue };
            let told = self
                .with_slice(scope, now, |slice, capacity| slice.report(bucket, capacity, needed, now, terms));
            demands.extend(told.flatten());
        }
        let tenants = &mut self.tenants;
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

    fn list(&mut self, scope: Scope, now: Timestamp) {
        let Some(listed) = self.listed_flag(scope) else { return };
        if !*listed {
            *listed = true;
            self.listed.push(scope);
            let soon = now.after(self.period);
            self.next_tick = Some(self.next_tick.map_or(soon, |at| at.min(soon)));
        }
    }

    fn listed_flag(&mut self, scope: Scope) -> Option<&mut bool> {
        match scope {
            Scope::Global => self.global.as_mut().map(|account| &mut account.listed),
            Scope::Tenant(tenant) => {
                self.tenants[usize::from(tenant.0)].account.as_mut().map(|account| &mut account.listed)
            }
            Scope::User(user) => self.users.get_mut(user.bucket).map(|entry| &mut entry.listed),
        }
    }

    fn slice(&self, scope: Scope, now: Timestamp) -> Option<(Slice, Capacity)> {
        match scope {
            Scope::Global => self.global.as_ref().map(|account| (account.slice, account.capacity)),
            Scope::Tenant(tenant) => {
                let account = self.tenants[usize::from(tenant.0)].account.as_ref();
                account.map(|account| (account.slice, account.capacity))
            }
            Scope::User(user) => {
                let known = self.users.get(user.bucket).map(|entry| entry.slice);
                Some((known.unwrap_or(Slice::untouched(now)), self.sizes[user.size as usize]))
            }
        }
    }

    fn with_slice<T>(
        &mut self,
        scope: Scope,
        now: Timestamp,
        with: impl FnOnce(&mut Slice, Capacity) -> T,
    ) -> Option<T> {
        match scope {
            Scope::Global => self.global.as_mut().map(|account| with(&mut account.slice, account.capacity)),
            Scope::Tenant(tenant) => {
                let account = self.tenants[usize::from(tenant.0)].account.as_mut();
                account.map(|account| with(&mut account.slice, account.capacity))
            }
            Scope::User(user) => {
                let capacity = self.sizes[user.size as usize];
                entry_of(&mut self.users, &self.sizes, user, now)
                    .map(|entry| with(&mut entry.slice, capacity))
            }
        }
    }

    /// The same on every core and in every version of the quota file, and nobody outside can find two alike.
    fn bucket_of(&self, tenant: &Tenant, user: Option<&str>) -> BucketId {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        (self.secret, &tenant.name, user).hash(&mut hasher);
        // Zero is the global bucket's.
        BucketId(hasher.finish().max(1))
    }
}

impl Account {
    fn new(bucket: BucketId, capacity: Capacity) -> Self {
        Self { bucket, capacity, slice: Slice::untouched(Timestamp::ZERO), listed: false }
    }
}

impl Decision {
    /// The same with one more bucket's verdict: what refuses for the longest time decides, then what must be asked.
    fn and(self, scope: Scope, verdict: Verdict) -> Self {
        match (self, verdict) {
            (Self::Refused { retry_after: longest, .. }, Verdict::Refused(retry_after))
                if retry_after <= longest =>
            {
                self
            }
            (_, Verdict::Refused(retry_after)) => Self::Refused { scope, retry_after },
            (Self::Admitted, Verdict::Ask) => Self::Wait,
            _ => self,
        }
    }
}

/// A quota as a bucket.
pub fn capacity_of(limit: Limit) -> Capacity {
    let burst = u128::from(limit.ru_per_second) * limit.burst.as_micros();
    // A burst of nothing would let nothing pass.
    Capacity { ru_per_second: limit.ru_per_second, burst: (burst as u64).max(1) }
}

fn entry_of<'a>(
    users: &'a mut BucketTable<UserEntry>,
    sizes: &[Capacity],
    user: UserAccount,
    now: Timestamp,
) -> Option<&'a mut UserEntry> {
    let entry = users.get_or_insert_with(
        user.bucket,
        || UserEntry { slice: Slice::untouched(now), size: user.size, listed: false },
        |entry| !entry.listed && entry.slice.is_idle(sizes[entry.size as usize], now),
    )?;
    entry.size = user.size;
    Some(entry)
}
