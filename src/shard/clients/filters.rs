//! Filters of this core's clients: patterns of channels and prefixes of keys that they have at stores, of which
//! equal ones of one tenant count once (`../filter_board.rs`).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use super::ClientStage;
use crate::shard::env::Env;
use crate::shard::filter_board::{FilterBoard, FilterKind, FilterPlace};
use crate::values::limits::{FILTER_PATTERNS_MAX, FILTER_PREFIXES_MAX};
use crate::values::{ClientId, TenantId};

/// A filter (pattern of channels or prefix of keys) that a client has at stores. It takes its places (units of the
/// limit on filters) until all clients of the tenant on this core that have an equal one have dropped theirs.
pub type Filter = Arc<FilterPlace>;

/// The filters (patterns of channels and prefixes of keys at stores) of this core's clients, by which equal ones
/// of one tenant count only once towards the limits.
#[derive(Debug, Default)]
pub struct Filters {
    /// The places that each filter (pattern of channels or prefix of keys at stores) takes on the board where all cores
    /// count them: one, or several if the filter is slow to compare. By kind, by tenant and by a hash of the text, so
    /// that long texts take no memory here. Some are of filters that no client has any more.
    places: HashMap<(FilterKind, TenantId, u64), Weak<FilterPlace>>,
    /// The function that hashes the text of a filter, with a random key, so that no client can choose texts
    /// whose hashes collide.
    hashes: RandomState,
}

impl Filters {
    /// Returns the numbers of places (a filter takes one, or several if it is slow to compare) that patterns
    /// of channels and prefixes of keys of this core's clients take, in this order.
    fn counts(&self) -> [usize; 2] {
        FilterKind::ALL.map(|(kind, _)| {
            let live = self.places.values().filter_map(Weak::upgrade);
            live.filter(|place| place.kind() == kind).map(|place| place.places()).sum()
        })
    }

    /// Takes places (units of the limit on filters at stores) for a text (pattern or prefix), or shares those of an
    /// equal text of the same tenant on this core, and returns the record of them (filter). The caller keeps it as long
    /// as the text is in force at stores. None if too few places are left to the tenant's clients, or to all clients.
    fn hold(
        &mut self,
        board: &Arc<FilterBoard>,
        (tenant, kind): (TenantId, FilterKind),
        text: &[u8],
    ) -> Option<Filter> {
        let key = (kind, tenant, self.hashes.hash_one(text));
        if let Some(place) = self.places.get(&key).and_then(Weak::upgrade) {
            return Some(place);
        }
        let place = Arc::new(board.take(tenant, kind, text)?);
        if self.places.len() >= 2 * (FILTER_PATTERNS_MAX + FILTER_PREFIXES_MAX) {
            // At least half of them are of nobody, so this is rare.
            self.places.retain(|_, place| place.strong_count() > 0);
        }
        self.places.insert(key, Arc::downgrade(&place));
        Some(place)
    }

    /// Changes the tenants of filters to the ids that `renamed` returns for their present ids, because new
    /// quotas give tenants other ids.
    fn handle_tenants(&mut self, renamed: impl Fn(TenantId) -> TenantId) {
        for ((kind, tenant, hash), place) in std::mem::take(&mut self.places) {
            if let Some(filter) = place.upgrade() {
                let tenant = renamed(tenant);
                filter.change_tenant(tenant);
                self.places.insert((kind, tenant, hash), place);
            }
        }
    }
}

impl ClientStage {
    /// Returns the numbers of places (a filter takes one, or several if it is slow to compare) that patterns
    /// of channels and prefixes of keys of this core's clients take at stores, in this order.
    pub fn filters(&self) -> [usize; 2] {
        self.filters.counts()
    }

    /// Changes the tenants of filters (patterns of channels and prefixes of keys at stores) to the ids that
    /// `renamed` returns, because new quotas give tenants other ids.
    pub fn handle_tenants_of_filters(&mut self, renamed: impl Fn(TenantId) -> TenantId) {
        self.filters.handle_tenants(renamed);
    }

    /// Takes places (units of the limit on filters at stores) for a text (pattern or prefix) that a client asks for, or
    /// shares those of an equal text of its tenant on this core, and returns the record of them (filter). The caller
    /// keeps it as long as the text is in force at stores. The error is the text of the reply if too few places are
    /// left.
    pub fn hold_filter(
        &mut self,
        env: &Env,
        (id, kind): (ClientId, FilterKind),
        text: &[u8],
    ) -> Result<Filter, String> {
        let tenant = self.clients.at(id).identity().tenant_id();
        let held = self.filters.hold(&env.settings.clients.filters, (tenant, kind), text);
        held.ok_or_else(|| {
            let (what, compared) = match kind {
                FilterKind::Pattern => ("patterns", "each message"),
                FilterKind::Prefix => ("prefixes", "the key of each write"),
            };
            let most = kind.tenant_limit();
            format!(
                "ERR too many {what}: the clients of a tenant may have {most}, of which a long one counts as several, \
                 because a store compares {compared} with all of them"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(3);

    #[test]
    fn equal_filters_of_a_tenant_count_once_until_the_last_is_dropped() {
        let (board, mut filters) = (Arc::new(FilterBoard::default()), Filters::default());
        let hold = |filters: &mut Filters, tenant, texts: [&[u8]; 2]| {
            texts
                .map(|text| filters.hold(&board, (tenant, FilterKind::Pattern), text).expect("there is room"))
        };
        let first = hold(&mut filters, TENANT, [b"a*", b"b*"]);
        let second = hold(&mut filters, TENANT, [b"a*", b"a*"]);
        assert_eq!(filters.counts(), [2, 0]);
        let other = hold(&mut filters, TenantId(4), [b"a*", b"a*"]);
        assert_eq!(filters.counts(), [3, 0]);
        drop((first, other));
        assert_eq!(filters.counts(), [1, 0]);
        drop(second);
        assert_eq!(filters.counts(), [0, 0]);
    }

    #[test]
    fn filters_count_to_their_tenant_after_it_has_got_another_id() {
        let (board, mut filters) = (Arc::new(FilterBoard::default()), Filters::default());
        let hold = |filters: &mut Filters, tenant, number: usize| {
            filters.hold(&board, (tenant, FilterKind::Prefix), number.to_string().as_bytes())
        };
        let (most, newer) = (FilterKind::Prefix.tenant_limit(), TenantId(TENANT.0 + 1));
        let all: Vec<Filter> =
            (0..most).map(|number| hold(&mut filters, TENANT, number).expect("there is room")).collect();
        filters.handle_tenants(|tenant| if tenant == TENANT { newer } else { tenant });
        assert!(hold(&mut filters, newer, most).is_none(), "the tenant has as many as it may");
        assert!(hold(&mut filters, newer, 0).is_some_and(|equal| Arc::ptr_eq(&equal, &all[0])));
        assert!(hold(&mut filters, TENANT, most).is_some(), "the id is another tenant's now");
        drop(all);
        assert!(hold(&mut filters, newer, most).is_some());
        assert_eq!(filters.counts(), [0, 0]);
    }

    #[test]
    fn filters_beyond_the_limit_are_refused_together_and_those_left_are_forgotten() {
        let (board, mut filters) = (Arc::new(FilterBoard::default()), Filters::default());
        let hold = |filters: &mut Filters, from: usize, count: usize| {
            let texts = (from..from + count).map(|number| number.to_string());
            texts
                .map(|text| filters.hold(&board, (TENANT, FilterKind::Prefix), text.as_bytes()))
                .collect::<Option<Vec<Filter>>>()
        };
        let most = FilterKind::Prefix.tenant_limit();
        let all = hold(&mut filters, 0, most).expect("as many as there may be");
        assert!(hold(&mut filters, most - 1, 2).is_none());
        assert_eq!(filters.counts(), [0, most]);
        drop(all);
        for round in 0..40 {
            assert!(hold(&mut filters, round * most, most).is_some());
        }
        assert_eq!(filters.counts(), [0, 0]);
        assert!(filters.places.len() <= 2 * (FILTER_PATTERNS_MAX + FILTER_PREFIXES_MAX));
    }
}
