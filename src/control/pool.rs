//! The pool of one bucket that cores draw allowances from: who gets how much.
//!
//! Each core is entitled to a part of what is there: a tenth of it evenly, the rest by what was wanted of each, granted
//! or not. What a core does not need of its part is for the others. Nobody gets less than one request needs: when
//! that little is there, it goes to whoever has waited longest.

use std::time::Duration;

use crate::policy::bucket::Bucket;
use crate::values::{Capacity, Demand, Grant, MicroUnits, ShardId, Timestamp};

/// Shares are in this many parts, and so many of them are dealt out evenly.
const WHOLE_SHARE: u64 = 65_536;
const EVEN_PARTS: u64 = WHOLE_SHARE / 10;
/// What a core should have at the start of a period: so many times what it wanted in the last, and so many of the
/// largest costs.
const PERIODS_GIVEN: u64 = 2;
const LUMPS_GIVEN: u64 = 4;
/// Who asks for more is given at least this part of what is there, so that it need not ask for every few requests.
const PART_WHEN_ASKED: i64 = 8;

/// When grants end, and how many may spend on credit at once.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// How many cores there are.
    pub cores: u16,
    /// How often cores report.
    pub period: Duration,
    /// How long a grant is good for.
    pub lease: Duration,
}

/// One core's part.
#[derive(Clone, Debug)]
struct Holder {
    shard: ShardId,
    /// What it may still spend, as far as it has told.
    outstanding: i64,
    /// What was taken back from it because its lease was over.
    reclaimed: u64,
    wanted: u64,
    /// What it needed and was not granted.
    unmet: u64,
    granted_at: Timestamp,
    heard_at: Timestamp,
}

/// One bucket, and the cores that draw from it.
#[derive(Clone, Debug)]
pub struct Pool {
    bucket: Bucket,
    holders: Vec<Holder>,
    /// The largest request so far.
    lump: MicroUnits,
    forgiven: MicroUnits,
}

impl Pool {
    /// A full one.
    pub fn full(capacity: Capacity, now: Timestamp) -> Self {
        Self { bucket: Bucket::full(capacity, now), holders: Vec::new(), lump: 0, forgiven: 0 }
    }

    /// How large it is.
    pub fn capacity(&self) -> Capacity {
        self.bucket.capacity()
    }

    /// Another quota: what is in it stays, as far as it fits.
    pub fn resize(&mut self, capacity: Capacity, now: Timestamp) {
        let elsewhere = self.outstanding();
        self.bucket.resize(capacity, now, elsewhere);
    }

    /// What is left, wherever it is.
    pub fn remaining(&self, now: Timestamp) -> i64 {
        let elsewhere = self.outstanding();
        self.bucket.level_at(now, elsewhere) + elsewhere as i64
    }

    /// Debt that was forgiven, because it was more than a second's quota and one request of each core.
    pub fn take_forgiven(&mut self) -> MicroUnits {
        std::mem::take(&mut self.forgiven)
    }

    /// Nothing would be lost if it were forgotten.
    pub fn is_idle(&self, now: Timestamp, rhythm: Rhythm) -> bool {
        let active = |holder: &Holder| {
            holder.outstanding != 0 || holder.reclaimed != 0 || now.since(holder.heard_at) <= rhythm.lease
        };
        !self.holders.iter().any(active) && self.remaining(now) >= self.capacity().burst as i64
    }

    /// What a core told, and what it is told in return.
    pub fn handle_demand(
        &mut self,
        shard: ShardId,
        demand: &Demand,
        now: Timestamp,
        rhythm: Rhythm,
    ) -> Grant {
        // What came in more than a period ago was there before anything of this was spent.
        let before = now.before(rhythm.period);
        let elsewhere = self.outstanding();
        self.bucket.refill(before, elsewhere);
        self.lump = self.lump.max(demand.lump);
        self.reclaim(now, rhythm);
        let index = self.holder_of(shard, now);
        let debt = self.book(index, demand, now, rhythm);
        let elsewhere = self.outstanding();
        self.bucket.refill(now, elsewhere);
        let granted = self.grant(index, demand, now, rhythm);
        let holder = &mut self.holders[index];
        holder.outstanding += granted.amount as i64;
        if granted.amount > 0 {
            holder.granted_at = now;
        }
        self.forgiven += self.bucket.book(granted.amount as i64, self.lump);
        Grant {
            bucket: demand.bucket,
            amount: granted.amount as i64 + debt,
            level: self.bucket.level(),
            at: now,
            share: self.share_of(index, now, rhythm) as u32,
            dry_from: granted.dry_from,
        }
    }

    /// Takes back what cores hold that have not been heard of for longer than their grants are good for.
    fn reclaim(&mut self, now: Timestamp, rhythm: Rhythm) {
        for holder in &mut self.holders {
            let lapsed = now.since(holder.heard_at) > rhythm.lease + rhythm.period;
            if lapsed && holder.outstanding > 0 {
                self.bucket.book(-holder.outstanding, 0);
                holder.reclaimed += holder.outstanding as u64;
                holder.outstanding = 0;
            }
            if lapsed {
                (holder.wanted, holder.unmet) = (0, 0);
            }
        }
        self.holders.retain(|holder| {
            holder.outstanding != 0
                || holder.reclaimed != 0
                || now.since(holder.heard_at) <= rhythm.lease + rhythm.period
        });
    }

    fn holder_of(&mut self, shard: ShardId, now: Timestamp) -> usize {
        self.holders.iter().position(|holder| holder.shard == shard).unwrap_or_else(|| {
            // Most buckets are a user's, and most users are on one core.
            self.holders.reserve_exact(1);
            self.holders.push(Holder {
                shard,
                outstanding: 0,
                reclaimed: 0,
                wanted: 0,
                unmet: 0,
                granted_at: Timestamp::ZERO,
                heard_at: now,
            });
            self.holders.len() - 1
        })
    }

    /// Books what the core tells. What it spent beyond its allowance is taken from the pool: how much that was.
    fn book(&mut self, index: usize, demand: &Demand, now: Timestamp, rhythm: Rhythm) -> i64 {
        let holder = &mut self.holders[index];
        holder.heard_at = now;
        holder.wanted = demand.wanted;
        holder.outstanding -= demand.spent;
        let beyond = (-holder.outstanding).max(0);
        holder.outstanding += beyond;
        // What was taken back from it at the end of its lease it had spent before, or it has lost it: neither is owed to
        // it, nor given back.
        let reclaimed = std::mem::take(&mut holder.reclaimed) as i64;
        let lost = (reclaimed - beyond).max(0);
        // Only a debt that the core knows of is taken over. What it spent of an allowance that was reclaimed, or that it
        // gave itself while the pool was silent, is booked and no more: else it would have it again and again.
        let debt = beyond.min(demand.owed as i64);
        // What it allowed itself while the pool was silent never was in the pool.
        let returned = (demand.returned as i64 - lost).clamp(0, holder.outstanding);
        holder.outstanding -= returned;
        // Each core may have let one request through on credit.
        let credit = self.lump * u64::from(rhythm.cores);
        self.forgiven += self.bucket.book(beyond - returned, credit);
        debt
    }

    fn grant(&mut self, index: usize, demand: &Demand, now: Timestamp, rhythm: Rhythm) -> Granted {
        let level = self.bucket.level();
        let outstanding = self.holders[index].outstanding;
        let asked = if demand.needed > 0 { level / PART_WHEN_ASKED } else { 0 };
        let usual = if demand.wanted > 0 || demand.needed > 0 {
            (PERIODS_GIVEN * demand.wanted + LUMPS_GIVEN * demand.lump) as i64
        } else {
            0
        };
        let target = usual.max(asked).max(demand.needed as i64);
        let short = (target - outstanding).max(0);
        let allowed = (level - self.reserved_for_others(index, now, rhythm)).max(0);
        let mut amount = short.min(allowed);
        // Less than one request is of no use: better whole ones in turn. Where one waits, it is known how much is of use.
        let whole = if demand.needed > 0 { demand.needed } else { demand.lump };
        let least = (whole as i64 - outstanding).max(0);
        let is_due = demand.needed > 0 || demand.wanted > 0;
        if amount < least.min(short) {
            let fits = level >= least
                || (self.holds_all(index) && least > self.capacity().burst as i64 - outstanding);
            amount = if is_due && fits && self.has_waited_longest(index) { least } else { 0 };
        }
        let unmet = if is_due { (short - amount).max(0) } else { 0 };
        self.holders[index].unmet = unmet as u64;
        let dry = unmet > 0 && (demand.needed == 0 || outstanding + amount < demand.needed as i64);
        Granted { amount: amount as u64, dry_from: dry.then_some(whole) }
    }

    /// What other cores need and are entitled to.
    fn reserved_for_others(&self, index: usize, now: Timestamp, rhythm: Rhythm) -> i64 {
        let there = self.bucket.level().max(0) + self.outstanding() as i64;
        let others =
            self.holders.iter().enumerate().filter(|(other, holder)| *other != index && holder.unmet > 0);
        others
            .map(|(other, holder)| {
                let entitled = part_of(there as u64, self.share_of(other, now, rhythm)) as i64;
                (entitled - holder.outstanding).clamp(0, holder.unmet as i64)
            })
            .sum()
    }

    /// A core's part in 65,536ths.
    fn share_of(&self, index: usize, now: Timestamp, rhythm: Rhythm) -> u64 {
        let live = |holder: &&Holder| now.since(holder.heard_at) <= rhythm.lease;
        let (count, wanted) = self
            .holders
            .iter()
            .filter(live)
            .fold((0, 0_u128), |(count, sum), holder| (count + 1, sum + u128::from(holder.wanted)));
        if wanted == 0 {
            return WHOLE_SHARE / count.max(1);
        }
        let by_demand =
            u128::from(WHOLE_SHARE - EVEN_PARTS) * u128::from(self.holders[index].wanted) / wanted;
        EVEN_PARTS / count.max(1) + by_demand as u64
    }

    /// Nobody else holds any, and it is full.
    fn holds_all(&self, index: usize) -> bool {
        let own = self.holders[index].outstanding;
        self.outstanding() as i64 == own.max(0) && self.bucket.level() + own >= self.capacity().burst as i64
    }

    fn has_waited_longest(&self, index: usize) -> bool {
        let since = self.holders[index].granted_at;
        let rivals =
            self.holders.iter().enumerate().filter(|(other, rival)| *other != index && rival.unmet > 0);
        rivals.map(|(_, rival)| rival.granted_at).all(|rival| since <= rival)
    }

    fn outstanding(&self) -> u64 {
        self.holders.iter().map(|holder| holder.outstanding.max(0) as u64).sum()
    }
}

struct Granted {
    amount: MicroUnits,
    dry_from: Option<MicroUnits>,
}

fn part_of(amount: u64, share: u64) -> u64 {
    (u128::from(amount) * u128::from(share) / u128::from(WHOLE_SHARE)) as u64
}
