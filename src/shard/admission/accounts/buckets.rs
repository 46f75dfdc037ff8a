//! The token buckets that this core knows, with its slice (the part that it may spend) of each: the global
//! bucket, each tenant's, each active user's.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::num::NonZeroU32;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use super::{Payer, Scope, UserAccount, capacity_of};
use crate::config::quotas::{Quotas, Tenant};
use crate::policy::bucket_table::BucketTable;
use crate::policy::estimate::{Expected, UnderWay};
use crate::policy::leeway::Leeway;
use crate::policy::slice::{Rules, Slice};
use crate::values::limits::USERS_MAX;
use crate::values::{BucketId, Capacity, MicroUnits, Part, TenantId, Timestamp, Usage, signed};

/// The state that this core keeps of one token bucket, the global one or a tenant's: the quota's size, and the
/// core's slice (the part that it may spend).
#[derive(Debug)]
pub(super) struct Account {
    bucket: BucketId,
    /// The rate and the burst of the whole quota, of which this core may spend a part.
    quota: Capacity,
    /// The part of the quota that this process may use, as the control executor's last grant (amount of quota
    /// to spend) says.
    capacity: Capacity,
    pub slice: Slice,
    pub listed: bool,
}

/// The account of a tenant: its bucket, if it has a limit, and the recent cost of its requests.
#[derive(Debug)]
pub(super) struct TenantAccount {
    pub account: Option<Account>,
    pub expected: Expected,
    /// Requests of the tenant that were admitted under the current quotas and have not been charged at their
    /// real cost yet.
    pub under_way: UnderWay,
    /// Requests of the tenant that were admitted under the quotas before the current ones and have not been
    /// charged at their real cost yet.
    pub under_way_before: UnderWay,
    /// The number of the tenant's requests charged at their real cost since this number was last taken to let
    /// waiting requests go on.
    pub settled: u32,
    /// The time of stores that those of the tenant's requests whose words do not show how much work they are
    /// may take without being billed.
    pub leeway: Leeway,
    /// The tenant's usage that has not been reported to the control executor yet.
    pub metered: Usage,
}

/// The account of one user with recent requests. Kept small (at most 64 bytes), as there may be a million of
/// them.
#[derive(Debug)]
pub(super) struct UserEntry {
    pub slice: Slice,
    pub size: SizeId,
    pub listed: bool,
    /// The part of the quota that this process may use, as the control executor's last grant (amount of quota
    /// to spend) says.
    part: Sliver,
}

const _: () = assert!(size_of::<UserEntry>() <= 64);

/// Index of a size (rate and burst) in the list of the sizes that buckets of users have. Counted from one, so
/// that `Option<SizeId>` takes no more room than `SizeId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeId(NonZeroU32);

impl SizeId {
    pub(super) const fn bits(self) -> u32 {
        self.0.get()
    }

    /// Returns the index of a bucket size from its number ([`Self::bits`]). None for zero, which stands for
    /// no user's bucket and so no size.
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Self)
    }
}

/// A part of a quota in 16 bits, rounded down but never to zero: precise enough to estimate the time until a
/// bucket has enough for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sliver(u16);

impl Sliver {
    const WHOLE: Self = Self(u16::MAX);

    const fn of(part: Part) -> Self {
        let fraction = part.billionths() * Self::WHOLE.0 as u64 / Part::WHOLE.billionths();
        Self(if fraction == 0 { 1 } else { fraction as u16 })
    }

    fn part(self) -> Part {
        Part::of_billionths(u64::from(self.0) * Part::WHOLE.billionths() / u64::from(Self::WHOLE.0))
    }
}

/// The distinct sizes of users' buckets. No size is ever removed, as quota files name only few.
#[derive(Debug)]
struct Sizes(Vec<Capacity>);

impl Sizes {
    fn add(&mut self, capacity: Capacity) -> SizeId {
        self.0.push(capacity);
        SizeId(NonZeroU32::new(self.0.len() as u32).expect("one was added just now"))
    }

    fn get(&self, size: SizeId) -> Capacity {
        self.0[size.0.get() as usize - 1]
    }
}

/// A reference to the account of a scope, in the same form for global, tenants' and users' buckets.
pub(super) struct Entry<'a> {
    pub bucket: BucketId,
    /// The rate and the burst of the whole quota, of which this core may spend a part.
    pub quota: Capacity,
    /// The rate and the burst of the part of the quota that this process may use; less than `quota` in a fleet.
    pub capacity: Capacity,
    pub slice: &'a mut Slice,
    pub listed: &'a mut bool,
}

impl Entry<'_> {
    /// Returns the amount, in millionths of a request unit, that can be taken until the bucket owes as much as
    /// its rate brings in within `owed_max`.
    pub fn room_in_debt(&self, owed_max: Duration, now: Timestamp) -> i64 {
        self.above_debt(owed_max, now).max(0)
    }

    /// Returns the amount, in millionths of a request unit, by which the bucket owes less than its rate brings in
    /// within `owed_max`; below 0 if it owes more.
    pub fn above_debt(&self, owed_max: Duration, now: Timestamp) -> i64 {
        let most = signed(self.capacity.comes_in(owed_max));
        self.slice.balance(self.capacity, now).saturating_add(most)
    }
}

/// The slice of a scope (the part of its bucket that this core may spend), and the flag whether this core has
/// amounts of the scope to report to the control executor.
type Piece<'a> = (&'a mut Slice, &'a mut bool);

/// The buckets of all scopes (global, tenants, users) that this core knows.
#[derive(Debug)]
pub(super) struct Buckets {
    secret: [u64; 2],
    pub global: Option<Account>,
    /// The sum of costs beyond the prices that were taken, since it was last reported. The control executor
    /// limits how much of it the global bucket may owe, so that one tenant's requests that turn out expensive
    /// do not make all tenants wait for long.
    pub surprise: MicroUnits,
    pub tenants: Vec<TenantAccount>,
    tenant_by_bucket: HashMap<BucketId, TenantId>,
    pub users: BucketTable<UserEntry>,
    sizes: Sizes,
    size_of: HashMap<Capacity, SizeId>,
}

impl Buckets {
    pub fn new(secret: [u64; 2], quotas: &Quotas) -> Self {
        let mut buckets = Self {
            secret,
            global: None,
            surprise: 0,
            tenants: Vec::new(),
            tenant_by_bucket: HashMap::new(),
            users: BucketTable::new(USERS_MAX),
            sizes: Sizes(Vec::new()),
            size_of: HashMap::new(),
        };
        buckets.take_over(quotas, &[]);
        buckets
    }

    /// Sets up the accounts of all tenants, and the global one, for new quotas, and keeps the state of tenants that
    /// existed before. `moved` has, at the index of a tenant's former id, its new id, or None if it is gone.
    pub fn take_over(&mut self, quotas: &Quotas, moved: &[Option<TenantId>]) {
        let global = quotas.global().map(capacity_of);
        self.global = global.map(|capacity| match self.global.take() {
            Some(account) => Account { quota: capacity, capacity, ..account },
            None => Account::new(BucketId::GLOBAL, capacity),
        });
        let accounts = quotas.tenants().map(|(_, tenant)| {
            let account = |limit| Account::new(self.bucket_of(tenant, None), capacity_of(limit));
            tenant.limit.map(account)
        });
        let tenants = accounts
            .map(|account| TenantAccount {
                account,
                expected: Expected::default(),
                under_way: UnderWay::default(),
                under_way_before: UnderWay::default(),
                settled: 0,
                leeway: Leeway::WHOLE,
                metered: Usage::default(),
            })
            .collect();
        let mut former = std::mem::replace(&mut self.tenants, tenants);
        let buckets = (0..)
            .map(TenantId)
            .zip(&self.tenants)
            .filter_map(|(tenant, known)| known.account.as_ref().map(|account| (account.bucket, tenant)));
        self.tenant_by_bucket = buckets.collect();
        for (old, place) in former.iter_mut().zip(moved) {
            let Some(new) = place else { continue };
            let tenant = &mut self.tenants[usize::from(new.0)];
            (tenant.expected, tenant.leeway) = (old.expected, old.leeway);
            // Requests of still older quotas are no longer counted: some might never end.
            tenant.under_way_before.add(&old.under_way);
            if let (Some(account), Some(known)) = (&mut tenant.account, old.account.take()) {
                (account.slice, account.listed) = (known.slice, known.listed);
            }
        }
    }

    /// Returns the account of a user, or None if the quotas set no limit for the user.
    pub fn user(&mut self, tenant: &Tenant, name: &str) -> Option<UserAccount> {
        let capacity = capacity_of(tenant.limit_of(name)?);
        let size = *self.size_of.entry(capacity).or_insert_with(|| self.sizes.add(capacity));
        Some(UserAccount { bucket: self.bucket_of(tenant, Some(name)), size })
    }

    /// Returns the account of a scope (global, tenant or user), and creates that of a user. None if the scope
    /// has no limit, or if there is no room for another user.
    pub fn entry(&mut self, scope: Scope, now: Timestamp) -> Option<Entry<'_>> {
        let account = match scope {
            Scope::Global => self.global.as_mut(),
            Scope::Tenant(tenant) => self.tenants[usize::from(tenant.0)].account.as_mut(),
            Scope::User(user) => return self.entry_of_user(user, now),
        };
        account.map(|account| Entry {
            bucket: account.bucket,
            quota: account.quota,
            capacity: account.capacity,
            slice: &mut account.slice,
            listed: &mut account.listed,
        })
    }

    fn entry_of_user(&mut self, user: UserAccount, now: Timestamp) -> Option<Entry<'_>> {
        let sizes = &self.sizes;
        let entry = self.users.get_or_insert_with(
            user.bucket,
            || UserEntry::new(user.size, now),
            |entry| entry.is_idle(sizes, now),
        )?;
        // `user` may be of an earlier version of the quotas, which gave the bucket another size.
        let quota = sizes.get(entry.size);
        Some(Entry {
            bucket: user.bucket,
            quota,
            capacity: entry.here(quota),
            slice: &mut entry.slice,
            listed: &mut entry.listed,
        })
    }

    /// Returns the slices of the buckets of a payer (global, tenant, user; None where there is no limit): the parts
    /// that this core may spend, each with the flag whether amounts of it are to be reported. None if the user has a
    /// limit and no account on this core.
    pub fn parts_of(&mut self, payer: Payer) -> Option<[Option<Piece<'_>>; 3]> {
        let Self { global, tenants, users, .. } = self;
        let tenant = &mut tenants[usize::from(payer.tenant().0)];
        let user = match payer.user() {
            Some(user) => {
                users.get_mut(user.bucket).map(|entry| Some((&mut entry.slice, &mut entry.listed)))?
            }
            None => None,
        };
        Some([global.as_mut().map(Account::part), tenant.account.as_mut().map(Account::part), user])
    }

    /// Adds `change` to the number of admitted requests of the user of a payer (account that is charged) that have not
    /// been charged at their real cost yet: positive for admitted requests, negative for charged ones. Does nothing
    /// without a user, or if the user has no account on this core. A user's bucket is known by its name, so it is the
    /// same in all versions of the quotas.
    pub fn count_of_user(&mut self, payer: Payer, change: i32) {
        if let Some(entry) = payer.user().and_then(|user| self.users.get_mut(user.bucket)) {
            entry.slice.count_under_way(change);
        }
    }

    /// Returns the least amount that this core can count on in any bucket of a payer (account that is charged): its own
    /// allowance (what a core may spend without asking) plus its share of the amount that no core holds, which the
    /// control executor reported last, with the income since. In millionths of a request unit; `i64::MAX` if no bucket
    /// has a limit.
    pub fn in_sight(&self, payer: Payer, rules: Rules, now: Timestamp) -> i64 {
        let each = payer.scopes().filter_map(|scope| self.known(scope, now));
        each.map(|(slice, capacity)| slice.in_sight(capacity, now, rules).0).min().unwrap_or(i64::MAX)
    }

    /// Returns a copy of the slice of a scope's bucket (the part that this core may spend) and the part of the bucket's
    /// size that this process may use, without creating an account: for a user without one, those of an untouched
    /// bucket. None if the scope has no limit.
    pub fn known(&self, scope: Scope, now: Timestamp) -> Option<(Slice, Capacity)> {
        if let Scope::User(user) = scope {
            let quota = self.sizes.get(user.size);
            let known = self.users.get(user.bucket).map(|entry| (entry.slice, entry.here(quota)));
            return Some(known.unwrap_or((Slice::untouched(now), quota)));
        }
        self.account(scope).map(|account| (account.slice, account.capacity))
    }

    /// Returns the size of a scope's bucket (the whole quota), or None if the scope has no limit.
    pub fn capacity(&self, scope: Scope) -> Option<Capacity> {
        match scope {
            Scope::User(user) => Some(self.sizes.get(user.size)),
            _ => self.account(scope).map(|account| account.quota),
        }
    }

    /// Sets the part of the quota of a scope (global, tenant or user) that this process may use.
    pub fn set_part(&mut self, scope: Scope, part: Part) {
        let account = match scope {
            Scope::Global => self.global.as_mut(),
            Scope::Tenant(tenant) => self.tenants[usize::from(tenant.0)].account.as_mut(),
            Scope::User(user) => {
                if let Some(entry) = self.users.get_mut(user.bucket) {
                    entry.part = Sliver::of(part);
                }
                return;
            }
        };
        if let Some(account) = account {
            account.capacity = account.quota.scaled(part);
        }
    }

    /// Returns the id of the bucket of a scope (global, tenant or user), or None if the scope has no limit.
    pub fn bucket(&self, scope: Scope) -> Option<BucketId> {
        match scope {
            Scope::User(user) => Some(user.bucket),
            _ => self.account(scope).map(|account| account.bucket),
        }
    }

    /// Returns the scope (global, tenant or user) whose quota a bucket belongs to; None if this core has no
    /// account of it.
    pub fn scope_of(&self, bucket: BucketId) -> Option<Scope> {
        if bucket == BucketId::GLOBAL {
            return self.global.is_some().then_some(Scope::Global);
        }
        if let Some(entry) = self.users.get(bucket) {
            return Some(Scope::User(UserAccount { bucket, size: entry.size }));
        }
        self.tenant_by_bucket.get(&bucket).copied().map(Scope::Tenant)
    }

    /// Iterates over the scopes, except users, with amounts that this core has to report to the control
    /// executor.
    pub fn listed(&self) -> impl Iterator<Item = Scope> {
        let tenants = (0..).map(TenantId).zip(&self.tenants);
        std::iter::once((Scope::Global, self.global.as_ref()))
            .chain(tenants.map(|(tenant, known)| (Scope::Tenant(tenant), known.account.as_ref())))
            .filter(|(_, account)| account.is_some_and(|account| account.listed))
            .map(|(scope, _)| scope)
    }

    /// Checks at most `looked_at_max` users, those that were checked or added longest ago, and drops the accounts of
    /// those whose buckets are full and idle.
    pub fn sweep_users(&mut self, looked_at_max: usize, now: Timestamp) {
        let sizes = &self.sizes;
        self.users.sweep(looked_at_max, |entry| entry.is_idle(sizes, now));
    }

    fn account(&self, scope: Scope) -> Option<&Account> {
        match scope {
            Scope::Global => self.global.as_ref(),
            Scope::Tenant(tenant) => self.tenants[usize::from(tenant.0)].account.as_ref(),
            Scope::User(_) => None,
        }
    }

    /// Returns the bucket id of a tenant (`user` is None) or of its user. The id is the same on every core and
    /// in every version of the quota file; the secret key prevents others from choosing two names that have the
    /// same id.
    fn bucket_of(&self, tenant: &Tenant, user: Option<&str>) -> BucketId {
        bucket_of(self.secret, &tenant.name, user)
    }
}

/// Returns the bucket id of a tenant or, with `user`, of one of its users: a hash of the names with the key
/// `[one, two]`, so all processes with that key agree on it, even hosts of a fleet that run other versions of
/// weir.
pub fn bucket_of([one, two]: [u64; 2], tenant: &str, user: Option<&str>) -> BucketId {
    // No name contains this byte, so a tenant's and a user's name cannot run into each other.
    const END: [u8; 1] = [0xff];
    let mut hasher = SipHasher13::new_with_keys(one, two);
    hasher.write(tenant.as_bytes());
    let of_tenant = hasher.finish();
    let Some(user) = user else { return BucketId::of_tenant(of_tenant) };
    hasher.write(&END);
    hasher.write(user.as_bytes());
    BucketId::of_user(of_tenant, hasher.finish())
}

impl Account {
    const fn part(&mut self) -> Piece<'_> {
        (&mut self.slice, &mut self.listed)
    }

    fn new(bucket: BucketId, quota: Capacity) -> Self {
        let capacity = quota;
        Self { bucket, quota, capacity, slice: Slice::untouched(Timestamp::ZERO), listed: false }
    }
}

impl UserEntry {
    const fn new(size: SizeId, now: Timestamp) -> Self {
        Self { slice: Slice::untouched(now), size, listed: false, part: Sliver::WHOLE }
    }

    /// Returns the part of a quota that this process may use.
    fn here(&self, quota: Capacity) -> Capacity {
        if self.part == Sliver::WHOLE { quota } else { quota.scaled(self.part.part()) }
    }

    fn is_idle(&self, sizes: &Sizes, now: Timestamp) -> bool {
        !self.listed && self.slice.is_idle(sizes.get(self.size), now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sliver_is_hardly_less_than_the_part_and_never_more(billionths in 0..=1_000_000_000_u64) {
            let part = Part::of_billionths(billionths);
            let sliver = Sliver::of(part);
            let least = Part::of_billionths(Part::WHOLE.billionths() / 65_535 + 1);
            prop_assert!(sliver.part() <= part.max(least));
            prop_assert!(part.billionths() - sliver.part().billionths().min(billionths) <= 15_261);
        }

        #[test]
        fn no_two_names_are_one_bucket_and_a_secret_is_needed_to_know_it(
            names in proptest::collection::btree_set(("[a-z]{1,4}", proptest::option::of("[a-z]{0,4}")), 2..50),
        ) {
            let bucket = |secret: [u64; 2], (tenant, user): &(String, Option<String>)| {
                bucket_of(secret, tenant, user.as_deref())
            };
            let buckets: std::collections::BTreeSet<_> = names.iter().map(|name| bucket([1, 2], name)).collect();
            prop_assert_eq!(buckets.len(), names.len());
            prop_assert!(names.iter().all(|name| !buckets.contains(&bucket([2, 1], name))));
        }
    }

    /// A bucket's number must be the same in all versions of weir, because hosts of a fleet count users by
    /// it.
    #[test]
    fn a_bucket_is_the_same_for_ever() {
        assert_eq!(bucket_of([1, 2], "acme", None), BucketId(0x336a_4631_cc02_4433));
        assert_eq!(bucket_of([1, 2], "acme", Some("ann")), BucketId(0x8ccd_bb0d_cc50_f450));
    }
}
