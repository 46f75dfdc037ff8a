//! Who may spend how much on this core: slices of the global bucket, of each tenant's and of each active user's.
//!
//! Asked by `gate/admission.rs`; told by the control executor what the pools can give. Knows no clients and no requests.
//!
//! | question | file |
//! |---|---|
//! | may this be spent | here |
//! | could it be paid if all that is under way turns out dear | `under_way.rs` |
//! | is it one more of the same payer | `tab.rs` |
//! | whose bucket is which | `buckets.rs` |
//! | what was it in the end | `books.rs` |
//! | what do the pools have to know | `reports.rs` |

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

use crate::config::quotas::{Limit, Quotas, Tenant};
use crate::policy::slice::{Slice, Verdict, Wanted};
use crate::shard::request::Asker;
use crate::shard::settings::AdmissionSettings;
use crate::values::allowance::{Report, lease_of};
use crate::values::{BucketId, Capacity, MicroUnits, Price, ShardId, TenantId, Timestamp};

/// Usage is reported with whatever else is, and after so long at the latest.
const METERED_REPORT: Duration = Duration::from_secs(1);
/// When a user for whom there is no room may come back: until then some of the others will be idle.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(1);

/// A user as the buckets know them: a hash of the name, and which size of bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// The user's bucket.
    pub bucket: BucketId,
    /// Which of the sizes that are known it has.
    size: SizeId,
}

/// Who pays for a request. Two words, because it stands beside each request that waits for its reply, and is compared
/// with who came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payer {
    /// The user's bucket, if a quota bounds what that user may spend.
    bucket: BucketId,
    /// The size of that bucket in 32 bits, none being zero; in 16 the tenant, counted from one; in 16 the last digits of
    /// the version of the quotas that the tenant's id is of, because only the one before still matters.
    size_tenant_version: NonZeroU64,
}

impl Payer {
    /// A tenant of that version of the quotas, and the user within it if a quota bounds what that user may spend.
    pub fn new(tenant: TenantId, user: Option<UserAccount>, version: u64) -> Self {
        let (bucket, size) = user.map_or((BucketId(0), 0), |user| (user.bucket, user.size.bits()));
        let packed = u64::from(size) << 32 | (u64::from(tenant.0) + 1) << 16 | u64::from(version as u16);
        Self { bucket, size_tenant_version: NonZeroU64::new(packed).expect("tenants count from one") }
    }

    /// The tenant.
    pub const fn tenant(self) -> TenantId {
        TenantId((self.size_tenant_version.get() >> 16) as u16 - 1)
    }

    /// The user within it, if a quota bounds what that user may spend.
    pub fn user(self) -> Option<UserAccount> {
        let size = SizeId::from_bits((self.size_tenant_version.get() >> 32) as u32)?;
        Some(UserAccount { bucket: self.bucket, size })
    }

    /// Who asks, as far as others than the buckets want to know.
    #[inline]
    pub const fn asker(self) -> Asker {
        Asker { tenant: self.tenant(), version: self.size_tenant_version.get() as u16 }
    }

    /// How many versions of the quotas ago that was.
    pub(super) const fn versions_before(self, version: u64) -> u16 {
        (version as u16).wrapping_sub(self.size_tenant_version.get() as u16)
    }

    /// Whose buckets are asked.
    fn scopes(self) -> impl Iterator<Item = Scope> + use<> {
        let user = self.user().map(Scope::User);
        [Some(Scope::Global), Some(Scope::Tenant(self.tenant())), user].into_iter().flatten()
    }
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
    lease: Duration,
    even_share: u32,
    version: u64,
    /// Where tenants of the version before went.
    moved: Vec<Option<TenantId>>,
    ledger: Ledger,
    last_booked: Option<Payer>,
    agenda: Agenda,
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
        Self {
            shard,
            lease: lease_of(settings.period),
            even_share: 65_536 / u32::from(shards),
            version: quotas.version(),
            moved: Vec::new(),
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

    /// New quotas. What was spent stays spent: a bucket is known by the names of its owners.
    pub fn handle_quotas(&mut self, before: &Quotas, after: &Quotas, now: Timestamp) {
        // What was asked for and counted so far is of tenants by the ids of the version before.
        self.ask_pools(now);
        self.send(Vec::new(), now);
        self.moved = before.tenants().map(|(_, tenant)| after.find(&tenant.name)).collect();
        self.version = after.version();
        let buckets = self.ledger.buckets();
        buckets.take_over(after, &self.moved);
        self.agenda.listed.retain(|scope| matches!(scope, Scope::User(_)));
        self.agenda.listed.extend(buckets.listed());
    }

    /// The account of a user, if the quotas bound what that user may spend.
    pub fn user(&mut self, tenant: &Tenant, name: &str) -> Option<UserAccount> {
        self.ledger.buckets().user(tenant, name)
    }

    /// The tab of a payer, if it is open. Who has none is booked by `admit` and `settle`.
    #[inline]
    pub fn tab_of(&mut self, payer: Payer) -> Option<&mut Tab> {
        self.ledger.tab_of(payer)
    }

    /// Checks all buckets of a request, then takes its cost from all of them.
    #[inline]
    pub fn admit(&mut self, payer: Payer, cost: Price, now: Timestamp) -> Decision {
        if !self.take_if_allowed(payer, cost, now) {
            return self.admit_otherwise(payer, cost, now);
        }
        self.handle_booked(payer, now);
        Decision::Admitted
    }

    /// Something was booked alone. Who is not the first in a row gets a tab.
    #[inline]
    fn handle_booked(&mut self, payer: Payer, now: Timestamp) {
        if self.last_booked != Some(payer) {
            self.last_booked = Some(payer);
        } else if payer.versions_before(self.version) == 0 {
            let rules = self.rules(now);
            self.ledger.open(payer, self.lease, rules, now);
        }
    }

    /// In a function of its own, so that the usual case needs few registers.
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

    /// A request was refused for want of its cost in a scope's bucket.
    pub fn handle_denied(&mut self, scope: Scope, cost: Price, now: Timestamp) {
        if let Some(entry) = self.ledger.buckets().entry(scope, now) {
            entry.slice.handle_denied(cost);
            self.agenda.list(scope, entry.listed, now);
        }
    }

    /// Nearly every such request: its cost is within the allowances that all its buckets have here, and is taken from them.
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

    /// The same in general: on credit, from a silent pool's share, or not at all. Nothing is taken yet.
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

    /// Takes a cost from all buckets, whatever is in them.
    fn take(&mut self, payer: Payer, cost: Price, now: Timestamp) {
        for scope in payer.scopes() {
            if let Some(entry) = self.ledger.buckets().entry(scope, now) {
                entry.slice.take(cost);
                self.agenda.list(scope, entry.listed, now);
            }
        }
    }

    /// Notes which pools must be asked before this can be decided.
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

    /// What would be decided of this scope alone, without taking or asking.
    pub fn peek(&mut self, scope: Scope, cost: Price, now: Timestamp) -> Option<Verdict> {
        let (mut slice, capacity) = self.ledger.buckets().known(scope, now)?;
        Some(slice.check(cost, capacity, now, self.rules(now)))
    }

    /// The size of the scope's bucket, and what of it is left as far as this core knows.
    pub fn remaining(&mut self, scope: Scope, now: Timestamp) -> Option<(Capacity, MicroUnits)> {
        let (slice, here) = self.ledger.buckets().known(scope, now)?;
        Some((self.capacity(scope)?, slice.remaining(here, now)))
    }

    /// The size of a scope's bucket: the whole quota.
    pub fn capacity(&self, scope: Scope) -> Option<Capacity> {
        self.ledger.names().capacity(scope)
    }

    /// The bucket of a scope.
    pub fn bucket(&self, scope: Scope) -> Option<BucketId> {
        self.ledger.names().bucket(scope)
    }

    /// How many users are remembered.
    pub fn users(&self) -> UserFigures {
        let users = &self.ledger.names().users;
        UserFigures { active: users.len(), evicted: users.evicted(), refused: users.refused() }
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
