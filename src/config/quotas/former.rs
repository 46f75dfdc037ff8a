//! Present ids of tenants by the ids that they had under earlier versions of the quotas.

use std::collections::VecDeque;

use super::Quotas;
use crate::values::TenantId;

/// Maximum number of earlier versions of the quotas whose tenant ids are remembered. A request, or a report of
/// usage, that takes longer than as many reloads is charged to no tenant.
const KEPT: usize = 8;

/// The tenant ids of the last eight versions of the quotas before the one in force, each with the id that the
/// tenant has now.
///
/// Requests in flight and reports of usage carry ids of the version under which they began. A tenant keeps its
/// identity by its name, as long as every version in between has it.
#[derive(Clone, Debug, Default)]
pub struct FormerTenants {
    /// For each earlier version, the newest first: the present ids by the former ids; None for tenants that
    /// are gone.
    now: VecDeque<Vec<Option<TenantId>>>,
}

impl FormerTenants {
    /// Handles that the quotas `after` replace the quotas `before`. Returns the tenants' ids in `after` by
    /// their ids in `before`.
    pub fn handle_quotas(&mut self, before: &Quotas, after: &Quotas) -> &[Option<TenantId>] {
        let step: Vec<_> = before.tenants().map(|(_, tenant)| after.find(&tenant.name)).collect();
        for tenant in self.now.iter_mut().flatten() {
            *tenant = tenant.and_then(|tenant| step[usize::from(tenant.0)]);
        }
        self.now.truncate(KEPT - 1);
        self.now.push_front(step);
        &self.now[0]
    }

    /// Returns, by the tenant ids of the version that is `age` versions older than the one in force, the
    /// present ids (None for tenants that are gone). None if that version is no longer kept, or `age` is 0.
    pub fn since(&self, age: u64) -> Option<&[Option<TenantId>]> {
        let index = usize::try_from(age.checked_sub(1)?).ok()?;
        self.now.get(index).map(Vec::as_slice)
    }

    /// Returns the present id of a tenant that had this id `age` versions ago. None if the tenant is gone, or
    /// the version is no longer kept.
    pub fn now(&self, age: u64, tenant: TenantId) -> Option<TenantId> {
        if age == 0 {
            return Some(tenant);
        }
        *self.since(age)?.get(usize::from(tenant.0))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(names: &[&str]) -> Quotas {
        let text: Vec<_> = names.iter().map(|name| format!("[tenants.{name}]\npassword = 'x'\n")).collect();
        Quotas::parse("q", &text.concat()).expect("well formed")
    }

    /// Compares ids with names looked up version by version, which is slow and obvious.
    #[test]
    fn a_tenant_is_found_by_its_name_through_all_versions_that_are_kept() {
        let all: Vec<Quotas> = (0..20)
            .map(|version: u32| {
                let names = ["a", "b", "c", "d", "e"];
                let present = names
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| !(version + *index as u32).is_multiple_of(5));
                quotas(&present.map(|(_, name)| *name).collect::<Vec<_>>())
            })
            .chain((0..5).map(|_| quotas(&["b", "a"])))
            .collect();
        let mut former = FormerTenants::default();
        let mut found = 0;
        for last in 1..all.len() {
            former.handle_quotas(&all[last - 1], &all[last]);
            for age in 0..=last {
                let then = &all[last - age];
                for (id, tenant) in then.tenants() {
                    let stays =
                        all[last - age..=last].iter().all(|quotas| quotas.find(&tenant.name).is_some());
                    let expected = all[last].find(&tenant.name).filter(|_| stays && age <= KEPT);
                    assert_eq!(former.now(age as u64, id), expected, "{} of {age} versions ago", tenant.name);
                    found += usize::from(expected.is_some());
                }
                assert_eq!(former.since(age as u64).is_some(), (1..=KEPT).contains(&age));
            }
            assert_eq!(former.now(1, TenantId(999)), None);
        }
        assert!(found > 100);
    }
}
