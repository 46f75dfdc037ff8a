//! The bookings when a request is settled: the difference between its real cost and the price that was taken,
//! the cost that is learnt for its class, and the tenant's usage.

use std::time::Duration;

use super::{Accounts, METERED_REPORT, Payer, Scope};
use crate::policy::estimate::Expected;
use crate::policy::price::Quote;
use crate::protocol::command::Class;
use crate::values::{MicroUnits, Price, TenantId, Timestamp, Usage};

/// The price that was taken for a request, with the data needed to settle the request (charge it at its real
/// cost) once its reply has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The price that was taken from the buckets of the payer (account that is charged) on arrival.
    pub taken: Price,
    /// The parts of the request's cost that followed from its words, and so were known when the price was
    /// taken.
    pub quote: Quote,
    /// The account from whose buckets the price was taken.
    pub payer: Payer,
    /// The class of the request's command. The real cost is learnt for the class, so that later requests of
    /// it are priced better.
    pub class: Class,
    /// True for a request that is answered even if its payer's quota is used up, such as a login or a question
    /// about quotas. Such requests bring buckets into debt only so far (`OWED_MAX`).
    pub is_unrefused: bool,
}

/// The most debt that requests which are never refused may leave in a bucket, as the time in which the bucket's
/// rate pays it off. A larger debt would keep other payers of the same bucket (all tenants pay into the global
/// one) waiting for longer.
const OWED_MAX: Duration = Duration::from_secs(1);

/// The final cost of a request, as it follows from the replies to it or from the lack of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bill {
    /// The request was carried out by a store, and its real cost is known from the reply.
    Cost {
        /// The real cost, which may be more or less than was taken for the request.
        due: Price,
        /// The amount by which the request would have cost more if all of its store's time were billed, in
        /// millionths of a request unit.
        unbilled: MicroUnits,
    },
    /// Weir answered from memory, or with the reply to another request. The request costs the price given, which is not
    /// learnt for its class.
    Cached(Price),
    /// The request was sent, and its cost is unknown: the price that was taken is final.
    AsTaken,
    /// The request was refused after it had been admitted, and sent to no backend: the price that was taken is
    /// given back, and counts as shed in the tenant's usage.
    Shed,
    /// The request was refused after it had been admitted, because it writes a hot key that is written as often as
    /// permitted: the price that was taken is given back, and counts as throttled in the tenant's usage.
    Throttled,
    /// The request was sent to no backend, and for none of these reasons: the price that was taken is given back.
    Nothing,
}

impl Charge {
    /// Returns the price that was taken, in units of 1,024 millionths of a request unit.
    #[inline]
    pub fn weight(&self) -> u32 {
        (self.taken.micro() >> 10).min(u64::from(u32::MAX)) as u32
    }
}

// The size matters because each request in flight stores a charge.
const _: () = assert!(size_of::<Option<Charge>>() <= 56);

impl Accounts {
    /// Returns the expected cost of the next request of a payer (account that is charged) and class of commands beyond
    /// the part that is known on arrival, in millionths of a request unit, learnt from its tenant's recent requests of
    /// the class.
    pub fn expected(&mut self, payer: Payer, class: Class) -> MicroUnits {
        self.known(payer.tenant()).of(class as usize)
    }

    /// Returns the expected cost of the next request of a payer (account that is charged) and class that is not billed,
    /// in millionths of a request unit: that of the store's time within the tenant's leeway (time of stores that it
    /// does not pay for).
    pub fn expected_unbilled(&mut self, payer: Payer, class: Class) -> MicroUnits {
        self.known(payer.tenant()).unbilled(class as usize)
    }

    /// True once a request of this class of the tenant of the payer (account that is charged) has been charged
    /// at its real cost, so that the class's cost is known.
    pub fn is_seen(&mut self, payer: Payer, class: Class) -> bool {
        self.known(payer.tenant()).is_seen(class as usize)
    }

    /// Returns the record of the tenant's recent costs by class of commands, from which the cost of its next requests
    /// is expected, as far as it is not known on arrival.
    fn known(&mut self, tenant: TenantId) -> &mut Expected {
        &mut self.ledger.buckets().tenants[usize::from(tenant.0)].expected
    }

    /// Settles a request: corrects what it was charged to its real cost in the buckets, learns that cost for the
    /// request's class if a store has carried it out, and counts the tenant's usage.
    pub fn settle(&mut self, charge: &Charge, bill: Bill, now: Timestamp) {
        self.end(charge);
        let tenant = self.tenant_now(charge.payer);
        let cost = match bill {
            Bill::Cost { due: cost, .. } | Bill::Cached(cost) => cost,
            Bill::AsTaken => charge.taken,
            Bill::Shed | Bill::Throttled | Bill::Nothing => Price::ZERO,
        };
        if let Some(tenant) = tenant {
            if let Bill::Cost { due, unbilled } = bill {
                self.learn(tenant, charge, (due, unbilled));
            }
            let usage = match bill {
                Bill::Cached(_) => Usage { cached: cost.micro(), ..Usage::default() },
                Bill::Shed => Usage { shed: charge.taken.micro(), ..Usage::default() },
                Bill::Throttled => Usage { throttled: charge.taken.micro(), ..Usage::default() },
                _ => Usage { admitted: cost.micro(), ..Usage::default() },
            };
            self.meter(tenant, usage, now);
        }
        self.take_difference(charge, tenant, cost.signed() - charge.taken.signed(), now);
    }

    /// Learns for the class of a settled request (`charge`) of a tenant what it cost, and by how much
    /// (`unbilled`, in millionths of a request unit) it would have cost more if all of its store's time were
    /// billed.
    fn learn(&mut self, tenant: TenantId, charge: &Charge, (cost, unbilled): (Price, MicroUnits)) {
        let beyond = cost.beyond(charge.quote.fixed);
        self.known(tenant).learn_partly_billed(charge.class as usize, beyond, unbilled);
    }

    /// Takes the difference between a request's real cost and the price that was taken for it from the buckets of its
    /// payer, which has the number `tenant` now; a negative difference is given back.
    #[inline]
    fn take_difference(
        &mut self,
        charge: &Charge,
        tenant: Option<TenantId>,
        difference: i64,
        now: Timestamp,
    ) {
        match difference {
            0 => {}
            _ if charge.is_unrefused => self.correct_up_to_debt(charge.payer, tenant, difference, now),
            _ => self.correct(charge.payer, tenant, difference, now),
        }
        self.handle_booked(charge.payer, now);
    }

    /// Takes the time for which a request kept a store busy (`busy_micros`, in microseconds) out of the
    /// tenant's leeway (time of stores that it does not pay for), and returns the rest, for which the payer
    /// is billed. 0 if the tenant is gone. Called for requests whose words do not show how much work they
    /// are.
    pub fn billed_time(&mut self, payer: Payer, busy_micros: u64, now: Timestamp) -> u64 {
        let (tenant, shards) = (self.tenant_now(payer), self.shards);
        tenant.map_or(0, |tenant| {
            let known = &mut self.ledger.buckets().tenants[usize::from(tenant.0)];
            known.leeway.beyond(busy_micros, shards, now)
        })
    }

    /// Settles the rest of the cost of a request that was answered early, at its estimated price, now that
    /// its store has replied. Takes the part of the real cost that exceeds the price taken before, and learns
    /// for the request's class the cost, and by how much (`unbilled`, in millionths of a request unit) it would
    /// have been higher if all of the store's time were billed.
    pub fn settle_late(&mut self, charge: &Charge, (cost, unbilled): (Price, MicroUnits), now: Timestamp) {
        let tenant = self.tenant_now(charge.payer);
        let rest = cost.beyond(charge.taken);
        if let Some(tenant) = tenant {
            self.learn(tenant, charge, (cost, unbilled));
            self.meter(tenant, Usage { admitted: rest, ..Usage::default() }, now);
        }
        self.take_difference(charge, tenant, Price::new(rest).signed(), now);
    }

    /// Settles a request that may wait at its store for ever: counts what it costs whatever its reply is
    /// (`due`) as its tenant's usage, and learns nothing. Returns the part of the price that was taken beyond
    /// `due`, in millionths of a request unit, which stays taken until the reply is charged.
    pub fn settle_waiting(&mut self, charge: &Charge, due: Price, now: Timestamp) -> MicroUnits {
        self.end(charge);
        let due = due.min(charge.taken);
        let tenant = self.tenant_now(charge.payer);
        if let Some(tenant) = tenant {
            self.meter(tenant, Usage { admitted: due.micro(), ..Usage::default() }, now);
        }
        self.take_difference(charge, tenant, 0, now);
        charge.taken.beyond(due)
    }

    /// Charges the reply to a request that was settled when it began to wait at its store: counts its `cost` as
    /// the tenant's usage, and takes what exceeds the part already paid (`paid_ahead`) from all buckets of the
    /// payer (account that is charged), or gives the rest of that part back.
    pub fn book_waited(&mut self, payer: Payer, cost: MicroUnits, paid_ahead: MicroUnits, now: Timestamp) {
        let tenant = self.tenant_now(payer);
        if let Some(tenant) = tenant {
            self.meter(tenant, Usage { admitted: cost, ..Usage::default() }, now);
        }
        self.correct(payer, tenant, Price::new(cost).signed() - Price::new(paid_ahead).signed(), now);
    }

    /// Charges a cost that belongs to no unsettled request (bytes of a published message, say) to all buckets of the
    /// payer (account that is charged), even if they owe it then, and counts it as the tenant's usage. `usage` has the
    /// cost, as admitted or as answered from memory.
    #[inline(never)]
    pub fn book(&mut self, payer: Payer, usage: Usage, now: Timestamp) {
        let tenant = self.tenant_now(payer);
        if let Some(tenant) = tenant {
            self.meter(tenant, usage, now);
        }
        let cost = Price::new(usage.admitted.saturating_add(usage.cached));
        self.correct(payer, tenant, cost.signed(), now);
    }

    /// Returns the quota of a payer (account that is charged) that is too deep in debt to pay a request that is never
    /// refused, and the time until it can pay: of several, the one that takes longest. None if all quotas can. `cost`
    /// is the request's price; the debt may grow up to this core's part of `OWED_MAX`. Creates the account of the
    /// payer's user if it is new.
    pub fn overdrawn(&mut self, payer: Payer, cost: Price, now: Timestamp) -> Option<(Scope, Duration)> {
        let owed_max = self.owed_max_here();
        let waits = payer.scopes().filter_map(|scope| {
            let entry = self.ledger.buckets().entry(scope, now)?;
            let missing = cost.signed().saturating_sub(entry.above_debt(owed_max, now));
            let wait = Duration::from_micros(entry.capacity.micros_for(missing.max(0) as u64));
            (missing > 0).then_some((scope, wait))
        });
        waits.max_by_key(|(_, wait)| *wait)
    }

    /// Returns this core's even part of `OWED_MAX`, the debt that requests which are never refused may leave
    /// in a bucket, as the time in which the bucket's rate pays it off. Other cores may add as much debt
    /// before this core learns of it.
    fn owed_max_here(&self) -> Duration {
        OWED_MAX / u32::from(self.shards)
    }

    /// Takes `difference`, the cost of a request that is never refused, in millionths of a request unit, from
    /// the buckets of its payer (account that is charged), whose tenant has the number `tenant` now. A bucket
    /// whose debt would exceed this core's part of `OWED_MAX` pays only as much as leads up to it.
    #[cold]
    fn correct_up_to_debt(
        &mut self,
        payer: Payer,
        tenant: Option<TenantId>,
        difference: i64,
        now: Timestamp,
    ) {
        let owed_max = self.owed_max_here();
        for scope in scopes_of(payer, tenant) {
            let Some(entry) = self.ledger.buckets().entry(scope, now) else { continue };
            let booked = difference.min(entry.room_in_debt(owed_max, now));
            entry.slice.book(booked);
            self.agenda.list(scope, entry.listed, now);
            if scope == Scope::Global {
                let buckets = self.ledger.buckets();
                buckets.surprise = buckets.surprise.saturating_add(booked.max(0) as u64);
            }
        }
    }

    /// Adds to the usage of a tenant, which is reported to the control executor within `METERED_REPORT` (1
    /// s).
    #[inline]
    pub fn meter(&mut self, tenant: TenantId, usage: Usage, now: Timestamp) {
        let metered = &mut self.ledger.buckets().tenants[usize::from(tenant.0)].metered;
        let is_new = metered.is_empty();
        metered.add(usage);
        if is_new && !usage.is_empty() {
            self.metered.push(tenant);
            self.metered_report_at.get_or_insert(now.after(METERED_REPORT));
        }
    }

    // Inlined into the settlement of every request; it has a second, rare caller.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "every settled request: a call costs 44 instructions of 660")]
    fn correct(&mut self, payer: Payer, tenant: Option<TenantId>, difference: i64, now: Timestamp) {
        let buckets = self.ledger.buckets();
        buckets.surprise = buckets.surprise.saturating_add(difference.max(0) as u64);
        for scope in scopes_of(payer, tenant) {
            if let Some(entry) = self.ledger.buckets().entry(scope, now) {
                entry.slice.book(difference);
                self.agenda.list(scope, entry.listed, now);
            }
        }
    }

    /// Returns the id that a tenant has in the quotas in force, by its id in those before; None if it is gone.
    pub fn renamed(&self, tenant: TenantId) -> Option<TenantId> {
        self.former.now(1, tenant)
    }

    /// True if the tenant of a payer (account that is charged) is still known: it is not gone, and quotas have not
    /// changed more than eight times since.
    pub fn knows(&self, payer: Payer) -> bool {
        self.tenant_now(payer).is_some()
    }

    /// Returns the current id of a payer's tenant. None if the tenant is gone, or if the payer (account that is
    /// charged) is of quotas from before the last eight changes, whose tenants are no longer known.
    pub(super) fn tenant_now(&self, payer: Payer) -> Option<TenantId> {
        self.former.now(payer.versions_before(self.version).into(), payer.tenant())
    }
}

/// Returns the scopes (global, tenant, user) from whose buckets a payer (account that is charged) pays now.
/// `tenant` is its tenant by the current quotas; None if the tenant is gone, and then its users are too.
#[inline]
fn scopes_of(payer: Payer, tenant: Option<TenantId>) -> impl Iterator<Item = Scope> {
    let user = tenant.and(payer.user());
    [Some(Scope::Global), tenant.map(Scope::Tenant), user.map(Scope::User)].into_iter().flatten()
}
