//! Board of filters: the patterns of channels (`PSUBSCRIBE`) and the prefixes of keys (`CLIENT TRACKING` with
//! `BCAST`) that the clients of all cores have at stores. A store compares every message with all patterns and the
//! key of every write with all prefixes, whoever sends them. So they take places, of which there is a limit for all
//! clients together and for each tenant: otherwise one client could slow the requests of all others at the store. A
//! filter takes one place, or several if it is long or has a star inside, since it takes longer to compare then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::values::TenantId;
use crate::values::limits::{FILTER_PATTERNS_MAX, FILTER_PREFIXES_MAX, TENANT_PART, TENANTS_MAX};

/// Number of bytes of a filter (pattern of channels or prefix of keys) for which the filter takes one more
/// place, the unit of the limits on filters at stores. A store compares so many bytes in about the time of a
/// short filter.
const BYTES_PER_PLACE: usize = 64;
/// Number of bytes of a pattern behind its first star for which the pattern takes one more place (unit of the
/// limits on filters at stores). Fewer than before the star, as a store may compare them many times.
const BYTES_PER_PLACE_BEHIND_STAR: usize = 8;

/// Kind of a filter that a client has at a store, which compares it with every message or every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterKind {
    /// A pattern of channels, compared with the channel of each message.
    Pattern,
    /// A prefix of keys, compared with the key of each write.
    Prefix,
}

impl FilterKind {
    /// The kinds of filters, each with the word for it in metrics.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Pattern, "pattern"), (Self::Prefix, "prefix")];

    /// Returns the largest number of places that filters of this kind may take, for the clients of all
    /// tenants together. A filter takes one place, or several if it is slow to compare.
    fn limit(self) -> usize {
        match self {
            Self::Pattern => FILTER_PATTERNS_MAX,
            Self::Prefix => FILTER_PREFIXES_MAX,
        }
    }

    /// Returns the number of places that a filter with this text takes: one, and one more for each 64 bytes
    /// of it. A pattern with a star before its end may be compared from each byte of a channel on; it takes
    /// three more, and one for each 8 bytes behind that star.
    fn places(self, text: &[u8]) -> usize {
        let star = text.iter().position(|byte| *byte == b'*').map_or(text.len(), |star| star + 1);
        let behind = text.len() - star;
        match self {
            Self::Pattern if behind > 0 => 4 + star / BYTES_PER_PLACE + behind / BYTES_PER_PLACE_BEHIND_STAR,
            Self::Pattern | Self::Prefix => 1 + text.len() / BYTES_PER_PLACE,
        }
    }

    /// Returns the largest number of places that filters of this kind may take for the clients of one tenant
    /// together. A filter takes one place, or several if it is slow to compare.
    pub fn tenant_limit(self) -> usize {
        self.limit() * TENANT_PART.0 / TENANT_PART.1
    }
}

/// Numbers of places that filters of clients (patterns of channels, prefixes of keys) take at stores, by tenant and
/// kind: a filter takes one, or several if it is slow to compare, and the number of places is limited. Equal filters of
/// one tenant's clients on one core count once.
#[derive(Debug)]
pub struct FilterBoard {
    /// The numbers of places that filters of each tenant's clients take, for patterns and for prefixes; the
    /// last row is of clients without a tenant.
    tenants: Box<[[AtomicU32; 2]]>,
    totals: [AtomicU32; 2],
}

/// The places (shares of the limit on filters at stores) that one filter takes as long as this value lives.
#[derive(Debug)]
pub struct FilterPlace {
    board: Arc<FilterBoard>,
    /// The id (`TenantId`) of the tenant whose clients have the filter, as a number; it changes when new
    /// quotas give the tenant another id.
    tenant: AtomicU16,
    kind: FilterKind,
    places: u32,
}

impl Default for FilterBoard {
    fn default() -> Self {
        let tenants = std::iter::repeat_with(Default::default).take(TENANTS_MAX + 1).collect();
        Self { tenants, totals: Default::default() }
    }
}

impl FilterBoard {
    /// Takes places for a filter of a tenant (`text` is the pattern or prefix) until the returned value is
    /// dropped: one, or several if it is slow to compare. None if fewer are left to the tenant's clients, or
    /// to all clients together.
    pub fn take(self: &Arc<Self>, tenant: TenantId, kind: FilterKind, text: &[u8]) -> Option<FilterPlace> {
        let places = u32::try_from(kind.places(text)).ok()?;
        let more =
            |most: usize| move |taken: u32| taken.checked_add(places).filter(|taken| *taken as usize <= most);
        let [of_tenant, total] = self.numbers(tenant, kind);
        let (order, most) = (Ordering::Relaxed, kind.limit());
        of_tenant.fetch_update(order, order, more(kind.tenant_limit())).ok()?;
        if total.fetch_update(order, order, more(most)).is_err() {
            of_tenant.fetch_sub(places, order);
            return None;
        }
        Some(FilterPlace { board: Arc::clone(self), tenant: AtomicU16::new(tenant.0), kind, places })
    }

    fn numbers(&self, tenant: TenantId, kind: FilterKind) -> [&AtomicU32; 2] {
        let row = &self.tenants[usize::from(tenant.0).min(TENANTS_MAX)];
        [&row[kind as usize], &self.totals[kind as usize]]
    }
}

impl FilterPlace {
    /// Returns the kind of the filter: a pattern of channels, or a prefix of keys.
    pub fn kind(&self) -> FilterKind {
        self.kind
    }

    /// Returns the number of places (shares of the limit on filters at stores) that the filter takes.
    pub fn places(&self) -> usize {
        self.places as usize
    }

    /// Moves the filter's places (units of the limit on filters at stores) to the count of the tenant's new id (`to`),
    /// which new quotas have given it.
    pub fn change_tenant(&self, to: TenantId) {
        let from = TenantId(self.tenant.swap(to.0, Ordering::Relaxed));
        let [of_former, _] = self.board.numbers(from, self.kind);
        let [of_tenant, _] = self.board.numbers(to, self.kind);
        of_former.fetch_sub(self.places, Ordering::Relaxed);
        of_tenant.fetch_add(self.places, Ordering::Relaxed);
    }
}

impl Drop for FilterPlace {
    fn drop(&mut self) {
        let tenant = TenantId(self.tenant.load(Ordering::Relaxed));
        for number in self.board.numbers(tenant, self.kind) {
            number.fetch_sub(self.places, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_take_places_by_the_time_that_they_take() {
        let [(pattern, _), (prefix, _)] = FilterKind::ALL;
        for (kind, text, places) in [
            (pattern, b"".as_slice(), 1),
            (pattern, b"news.*", 1),
            (pattern, b"exact", 1),
            (pattern, b"*", 1),
            (pattern, b"*news", 4),
            (pattern, b"__keyspace@*__:user*", 5),
            (pattern, &[b'a'; 640], 11),
            (pattern, &[b"*".as_slice(), &[b'a'; 640]].concat(), 84),
            (prefix, b"user:", 1),
            (prefix, b"user*x", 1),
            (prefix, &[b'a'; 640], 11),
        ] {
            assert_eq!(kind.places(text), places, "{:?}", text.escape_ascii().to_string());
            let board = Arc::new(FilterBoard::default());
            let taken = board.take(TenantId(0), kind, text);
            assert_eq!(board.totals[kind as usize].load(Ordering::Relaxed) as usize, places);
            drop(taken);
            assert_eq!(board.totals[kind as usize].load(Ordering::Relaxed), 0);
        }
        let board = Arc::new(FilterBoard::default());
        for (kind, _) in FilterKind::ALL {
            assert!(board.take(TenantId(0), kind, &vec![b'*'; 1 << 20]).is_none(), "longer than all places");
        }
    }

    #[test]
    fn a_tenant_has_a_part_of_all_filters_and_all_have_a_limit() {
        let board = Arc::new(FilterBoard::default());
        for (kind, _) in FilterKind::ALL {
            let take = |tenant| board.take(TenantId(tenant), kind, b"short*");
            let mut first: Vec<_> = std::iter::from_fn(|| take(1)).collect();
            assert_eq!(first.len(), kind.tenant_limit());
            let second: Vec<_> = std::iter::from_fn(|| take(u16::MAX)).collect();
            assert_eq!(first.len() + second.len(), kind.limit());
            assert!(take(2).is_none(), "all places are taken");
            first.pop();
            assert!(take(2).is_some() && take(1).is_some(), "one place is free again");
            drop((first, second));
            let third: Vec<_> = std::iter::from_fn(|| take(3)).collect();
            assert_eq!(third.len(), kind.tenant_limit(), "all places are free again");
        }
    }
}
