//! Metrics about the fleet: weir processes that share quotas.

use super::FleetQuotas;
use super::exposition::{Exposition, Kind};
use super::fleet::Ending;
use crate::values::{TenantId, Timestamp};

/// Writes the metrics of the fleet (weir processes that share quotas): the number of hosts, the outcomes of
/// exchanges with its store, the users counted there, and this host's part of the quota of all tenants and of
/// the quotas of those `tenants`, which have metrics of their own.
pub fn write_fleet<'a>(
    page: &mut Exposition,
    fleet: &FleetQuotas,
    tenants: impl Iterator<Item = (TenantId, &'a str)>,
    now: Timestamp,
) {
    page.family("weir_fleet_hosts", "Hosts that share quotas, this one among them.", Kind::Gauge)
        .sample(&[], fleet.hosts());
    let help = "Exchanges with the fleet's store, by outcome.";
    let mut exchanges = page.family("weir_fleet_exchanges_total", help, Kind::Counter);
    for ending in Ending::ALL {
        exchanges.sample(&[("outcome", ending.name())], fleet.counted(ending));
    }
    if let Some(age) = fleet.age(now) {
        let help = "Time since the last reply of the fleet's store.";
        page.family("weir_fleet_answer_age_seconds", help, Kind::Gauge).sample(&[], age.as_secs_f64());
    }
    if let Some(users) = fleet.users() {
        let help = "Users whose quotas this host counts with the fleet's store.";
        page.family("weir_fleet_users", help, Kind::Gauge).sample(&[], users.counted as u64);
        let help = "Number of times that a user with high demand was not counted with the fleet's store, because too many users had high demand.";
        page.family("weir_fleet_users_left_out_total", help, Kind::Counter).sample(&[], users.left_out);
    }
    let help = "Share of a quota that this host may spend.";
    let mut shares = page.family("weir_fleet_share_ratio", help, Kind::Gauge);
    let everybody = std::iter::once(("global", "global", fleet.part(None, now)));
    let tenants = tenants.map(|(id, name)| ("tenant", name, fleet.part(Some(id), now)));
    for (scope, name, part) in everybody.chain(tenants) {
        if let Some(part) = part {
            shares.sample(&[("scope", scope), ("name", name)], part.ratio());
        }
    }
}
