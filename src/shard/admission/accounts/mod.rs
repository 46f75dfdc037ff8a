//! The accounts of one core: how much each payer may spend, from slices (this core's parts) of the global
//! bucket, of each tenant's and of each active user's.
//!
//! The caller is `admission/decision.rs`; the control executor tells what the pools (the parts of buckets that no core
//! holds) can give. This module has no access to clients or requests.
//!
//! | question | file |
//! |---|---|
//! | whether a cost may be spent | here |
//! | whether it could be paid if all requests in flight turn out expensive | `under_way.rs` |
//! | whether the payer is the same as before | `tab.rs` |
//! | which bucket belongs to which scope | `buckets.rs` |
//! | what a request cost in the end | `books.rs` |
//! | what the pools have to be told | `reports.rs` |

mod books;
mod buckets;
mod reports;
mod tab;
mod under_way;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

pub use self::books::{Bill, Charge};
pub use self::buckets::bucket_of;
use self::buckets::{Buckets, SizeId};
use self::reports::Agenda;
use self::tab::Ledger;
pub use self::tab::Tab;
pub use self::under_way::Outlook;

use crate::config::quotas::{FormerTenants, Limit, Quotas, Tenant};
use crate::policy::slice::{Slice, Verdict, Wanted};
use crate::shard::request::Asker;
use crate::shard::settings::AdmissionSettings;
use crate::values::allowance::{Report, lease_of};
use crate::values::{BucketId, Capacity, MicroUnits, Price, ShardId, TenantId, Timestamp};

/// The longest time until a tenant's usage is reported to the control executor (1 s). Usage is reported earlier along
/// with amounts that this core spent or needs.
const METERED_REPORT: Duration = Duration::from_secs(1);
/// The retry delay for a user for whom the table of accounts had no room (1 s): by then some other users will
/// be idle.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(1);

/// The account of a user: its bucket, whose id is a hash of the names of tenant and user, and the size of
/// that bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// Id of the token bucket of the user's quota.
    pub bucket: BucketId,
    /// The size (rate and burst) of the user's bucket, by its number among all sizes that the quotas know.
    size: SizeId,
}

/// The account that a request is charged to. 16 bytes, as one is stored per request in flight and compared
/// with the payer of the previous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// The id of the user's bucket; 0 if no quota limits the user.
    bucket: BucketId,
    /// The number of the size of the user's bucket in the upper 32 bits, 0 without a user; the tenant, counted from
    /// one, in 16 bits; the last 16 bits of the version of the quotas that the tenant's id belongs to. These 16 bits
    /// suffice, because only the current version and the eight before it are known.
    size_tenant_version: NonZeroU64,
}

impl Payer {
    /// Creates the payer (account that is charged) for a tenant in a version of the quotas, with the user if a
    /// quota limits that user; else `user` is None.
    pub fn new(tenant: TenantId, user: Option<UserAccount>, version: u64) -> Self {
        let (bucket, size) = user.map_or((BucketId(0), 0), |user| (user.bucket, user.size.bits()));
        let packed = u64::from(size) << 32 | (u64::from(tenant.0) + 1) << 16 | u64::from(version as u16);
        Self { bucket, size_tenant_version: NonZeroU64::new(packed).expect("tenants count from one") }
    }

    /// Returns the payer's tenant.
    pub const fn tenant(self) -> TenantId {
        TenantId((self.size_tenant_version.get() >> 16) as u16 - 1)
    }

    /// Returns the user's account; None if no quota limits the user.
    pub fn user(self) -> Option<UserAccount> {
        let size = SizeId::from_bits((self.size_tenant_version.get() >> 32) as u32)?;
        Some(UserAccount { bucket: self.bucket, size })
    }

    /// Returns the payer's tenant with the version of the quotas that its id belongs to, without the user's
    /// bucket: the short form that travels to other cores.
    #[inline]
    pub const fn asker(self) -> Asker {
        Asker::new(self.tenant(), self.size_tenant_version.get() as u16)
    }

    /// Returns by how many versions the payer's version of the quotas is older than the given one.
    pub(super) const fn versions_before(self, version: u64) -> u16 {
        (version as u16).wrapping_sub(self.size_tenant_version.get() as u16)
    }

    /// Returns the scopes (global, tenant, user) whose buckets the payer's requests are taken from.
    fn scopes(self) -> impl Iterator<Item = Scope> + use<> {
        let user = self.user().map(Scope::User);
        [Some(Scope::Global), Some(Scope::Tenant(self.tenant())), user].into_iter().flatten()
    }
}

/// The extent of a quota, with its token bucket: all tenants together, one tenant, or one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The quota, and its bucket, of all tenants together.
    Global,
    /// The quota, and its bucket, of one tenant.
    Tenant(TenantId),
    /// The quota, and its bucket, of one user within a tenant.
    User(UserAccount),
}

/// The decision of a payer's buckets (global, tenant, user) on a request. If it is admitted, its price was taken from
/// all of them, else from none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The price of the request was taken from all its payer's buckets.
    Admitted,
    /// The request has to wait for the control executor's answer about a bucket, and is tried again then.
    Wait,
    /// The request is refused: a bucket does not have enough, or there is no room for the account of its user.
    Refused {
        /// The scope whose bucket takes the longest to have enough.
        scope: Scope,
        /// Time until the bucket of `scope` has enough for the request, if no other request takes any: the
        /// longest of all buckets that lack quota.
        retry_after: Duration,
    },
}

/// The numbers of users with an account on a shard. A user without one has a full bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserFigures {
    /// The number of users that have an account on the shard at present.
    pub active: usize,
    /// The number of idle users so far whose accounts were dropped because the table of accounts was full. Those
    /// dropped in the regular search for idle users do not count.
    pub evicted: u64,
    /// The number of times so far that an account for a user was needed and there was no room for one. The request is
    /// refused then, and may be counted twice.
    pub refused: u64,
}

/// The accounts of one core: the buckets of all scopes (global, tenant, user), and the reports about them to
/// the control executor.
#[derive(Debug)]
pub struct Accounts {
    shard: ShardId,
    lease: Duration,
    /// The number of shards, each of which has accounts of its own and a part of each bucket.
    shards: u16,
    version: u64,
    former: FormerTenants,
    ledger: Ledger,
    last_booked: Option<Payer>,
    agenda: Agenda,
    /// The tenants whose usage (cost admitted, throttled and so on) is still to be reported to the control
    /// executor.
    metered: Vec<TenantId>,
    /// The time at which usage is reported at the latest; None if there is no usage to report.
    metered_report_at: Option<Timestamp>,
    /// The buckets for which the control executor must be asked for a grant, each with the amount that a
    /// request waits for.
    asking: Vec<(Scope, MicroUnits)>,
    reports: VecDeque<Report>,
    /// The times at which the reports that the control executor has not answered were sent, the oldest first.
    unanswered: VecDeque<Timestamp>,
}

impl Accounts {
    /// Creates the accounts of one shard out of `shards`. Buckets count as full until the control executor (which
    /// divides them among cores) tells otherwise.
    pub fn new(shard: ShardId, shards: u16, settings: &AdmissionSettings, quotas: &Quotas) -> Self {
        Self {
            shard,
            lease: lease_of(settings.period),
            shards,
            version: quotas.version(),
            former: FormerTenants::default(),
            ledger: Ledger::new(Buckets::new(settings.secret, quotas)),
            last_booked: None,
            agenda: Agenda { period: settings.period, listed: Vec::new(), next_tick: None },
            metered: Vec::new(),
            metered_report_at: None,
            asking: Vec::new(),
            reports: VecDeque::new(),
            unanswered: VecDeque::new(),
        }
    }

    /// Applies new quotas. Spent amounts stay spent, since buckets are found again by the names of their
    /// tenants and users.
    pub fn handle_quotas(&mut self, before: &Quotas, after: &Quotas, now: Timestamp) {
        // Demands and usage so far carry tenant ids of the version before, so they are reported first.
        self.ask_pools(now);
        self.send(Vec::new(), now);
        let moved = self.former.handle_quotas(before, after);
        self.version = after.version();
        let buckets = self.ledger.buckets();
        buckets.take_over(after, moved);
        self.agenda.listed.retain(|scope| matches!(scope, Scope::User(_)));
        self.agenda.listed.extend(buckets.listed());
    }

    /// Returns the account of a user, or None if the quotas set no limit for the user.
    pub fn user(&mut self, tenant: &Tenant, name: &str) -> Option<UserAccount> {
        self.ledger.buckets().user(tenant, name)
    }

    /// Returns the payer's tab (sum of its consecutive requests), if it is open. If it is not open, the caller
    /// uses [`Self::admit`] and [`Self::settle`].
    #[inline]
    pub fn tab_of(&mut self, payer: Payer) -> Option<&mut Tab> {
        self.ledger.tab_of(payer)
    }

    /// Decides on a request: checks all buckets of its payer (account that is charged), then takes the price from all
    /// of them, or from none. Lists the buckets about which the control executor must be asked.
    #[inline]
    pub fn admit(&mut self, payer: Payer, cost: Price, now: Timestamp) -> Decision {
        if !self.take_if_allowed(payer, cost, now) {
            return self.admit_otherwise(payer, cost, now);
        }
        self.handle_booked(payer, now);
        Decision::Admitted
    }

    /// Records that the price of a payer's request was taken from the payer's buckets, or corrected in them,
    /// without a tab. The second such booking of one payer in a row opens a tab: a sum of prices that is
    /// booked later.
    #[inline]
    fn handle_booked(&mut self, payer: Payer, now: Timestamp) {
        if self.last_booked != Some(payer) {
            self.last_booked = Some(payer);
        } else if payer.versions_before(self.version) == 0 {
            let rules = self.rules(now);
            self.ledger.open(payer, self.lease, rules, now);
        }
    }

    /// Slow path of [`Self::admit`], for requests that cost more than the core may spend without asking the
    /// control executor. A function of its own so that the fast path needs few registers. Returns the
    /// decision.
    #[inline(never)]
    fn admit_otherwise(&mut self, payer: Payer, cost: Price, now: Timestamp) -> Decision {
        let decision = self.decide(payer, cost, now);
        match decision {
            Decision::Admitted => self.take(payer, cost, now),
            Decision::Wait => self.ask_for(payer, cost, now),
            Decision::Refused { scope, .. } => self.handle_denied(scope, cost, now),
        }
        decision
    }

    /// Counts a request that was refused because a scope's bucket has less than its price, so that the pool
    /// (the part of a bucket that no core holds) learns of the demand.
    pub fn handle_denied(&mut self, scope: Scope, cost: Price, now: Timestamp) {
        // A user that has no account for lack of room is counted where the account was refused.
        let has_account = match scope {
            Scope::User(user) => self.ledger.buckets().users.get_mut(user.bucket).is_some(),
            Scope::Global | Scope::Tenant(_) => true,
        };
        if has_account && let Some(entry) = self.ledger.buckets().entry(scope, now) {
            entry.slice.handle_denied(cost);
            self.agenda.list(scope, entry.listed, now);
        }
    }

    /// Takes a request's price from this core's allowance (the amount that it may spend without asking) of
    /// each bucket of the payer, if all these allowances cover it. False, with nothing taken, if any
    /// allowance is too small or the payer's user has no account on this core yet. The fast path of nearly
    /// every request.
    #[expect(clippy::inline_always, reason = "one caller, and every request: a call would be a tenth of it")]
    #[inline(always)]
    fn take_if_allowed(&mut self, payer: Payer, cost: Price, now: Timestamp) -> bool {
        let Buckets { global, tenants, users, .. } = self.ledger.buckets();
        let global = global.as_mut();
        let tenant = tenants[usize::from(payer.tenant().0)].account.as_mut();
        let mut user = None;
        if let Some(account) = payer.user() {
            let Some(entry) = users.get_mut(account.bucket) else { return false };
            entry.size = account.size;
            user = Some((account, entry));
        }
        let (heard_since, wanted) = (now.before(self.lease), Wanted::of(cost));
        let allows = |slice: &Slice| slice.allows(cost, heard_since);
        if !(global.as_ref().is_none_or(|account| allows(&account.slice))
            && tenant.as_ref().is_none_or(|account| allows(&account.slice))
            && user.as_ref().is_none_or(|(_, entry)| allows(&entry.slice)))
        {
            return false;
        }
        if let Some(account) = global {
            account.slice.take_wanted(cost, wanted);
            if !account.listed {
                self.agenda.list(Scope::Global, &mut account.listed, now);
            }
        }
        if let Some(account) = tenant {
            account.slice.take_wanted(cost, wanted);
            if !account.listed {
                self.agenda.list(Scope::Tenant(payer.tenant()), &mut account.listed, now);
            }
        }
        if let Some((account, entry)) = user {
            entry.slice.take_wanted(cost, wanted);
            if !entry.listed {
                self.agenda.list(Scope::User(account), &mut entry.listed, now);
            }
        }
        true
    }

    /// Decides on a request that costs more than the core may spend without asking: it may pass because a
    /// bucket that was not used lately is full, or on the core's last known share while the control executor
    /// does not answer; else it waits or is refused. Takes nothing yet.
    fn decide(&mut self, payer: Payer, cost: Price, now: Timestamp) -> Decision {
        let rules = self.rules(now);
        payer.scopes().fold(Decision::Admitted, |decision, scope| {
            let verdict = match (self.ledger.buckets().entry(scope, now), scope) {
                (Some(entry), _) => entry.slice.check(cost, entry.capacity, now, rules),
                (None, Scope::User(_)) => Verdict::Refused(RETRY_WHEN_FULL),
                (None, Scope::Global | Scope::Tenant(_)) => Verdict::Fits,
            };
            decision.and(scope, verdict)
        })
    }

    /// Takes a request's price from all buckets of a payer (account that is charged), even if too little is
    /// left in them, so that they owe the rest.
    fn take(&mut self, payer: Payer, cost: Price, now: Timestamp) {
        for scope in payer.scopes() {
            if let Some(entry) = self.ledger.buckets().entry(scope, now) {
                entry.slice.take(cost);
                self.agenda.list(scope, entry.listed, now);
            }
        }
    }

    /// Lists the buckets for which the control executor must be asked for a grant (amount of quota to spend)
    /// before a request can be decided on, unless it has been asked already.
    fn ask_for(&mut self, payer: Payer, cost: Price, now: Timestamp) {
        let rules = self.rules(now);
        for scope in payer.scopes() {
            let Some(entry) = self.ledger.buckets().entry(scope, now) else { continue };
            let asks = entry.slice.check(cost, entry.capacity, now, rules) == Verdict::Ask;
            if asks && !entry.slice.await_answer() {
                self.asking.push((scope, cost.micro()));
            }
        }
    }

    /// Returns the decision of this scope (global, tenant or user) alone about a price, without taking it or
    /// asking the pool (the part of a bucket that no core holds). None if the scope has no limit.
    pub fn peek(&mut self, scope: Scope, cost: Price, now: Timestamp) -> Option<Verdict> {
        let (mut slice, capacity) = self.ledger.buckets().known(scope, now)?;
        Some(slice.check(cost, capacity, now, self.rules(now)))
    }

    /// Returns the size of the bucket of a scope (global, tenant or user), and the amount left in it as far as
    /// this core knows, in millionths of a request unit. None if the scope has no limit.
    pub fn remaining(&mut self, scope: Scope, now: Timestamp) -> Option<(Capacity, MicroUnits)> {
        let (slice, here) = self.ledger.buckets().known(scope, now)?;
        Some((self.capacity(scope)?, slice.remaining(here, now)))
    }

    /// Returns the size of the bucket of a scope (global, tenant or user) for the whole quota. None if the
    /// scope has no limit.
    pub fn capacity(&self, scope: Scope) -> Option<Capacity> {
        self.ledger.names().capacity(scope)
    }

    /// Returns the id of the bucket of a scope (global, tenant or user), or None if the scope has no limit.
    pub fn bucket(&self, scope: Scope) -> Option<BucketId> {
        self.ledger.names().bucket(scope)
    }

    /// Returns how many users have accounts on this core, how many idle accounts were dropped to make room, and how
    /// often there was no room for a user's account.
    pub fn users(&self) -> UserFigures {
        let users = &self.ledger.names().users;
        UserFigures { active: users.len(), evicted: users.evicted(), refused: users.refused() }
    }
}

impl Decision {
    /// Returns the decision with the verdict of one more bucket (that of `scope`) included. A refusal wins, the
    /// one with the longest wait first; after that, waiting for the control executor's answer.
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

/// Converts a quota's limit into the size of its bucket: the rate, and as the burst what comes in within the
/// limit's burst time, at least a millionth of a request unit.
pub fn capacity_of(limit: Limit) -> Capacity {
    let burst = u128::from(limit.ru_per_second) * limit.burst.as_micros();
    // A burst of zero would let no request pass.
    Capacity::new(limit.ru_per_second, (burst as u64).max(1))
}
