//! Decisions across cores, and what is known of all of them together. Pure.

mod bulkhead_series;
pub mod client_rounds;
mod cluster;
pub mod exposition;
mod fleet;
mod fleet_series;
mod hot_keys;
mod hot_series;
pub mod http;
mod info;
pub mod json;
mod limits;
pub mod metering;
mod pages;
pub mod pool;
pub mod quota_page;
mod quotas;
pub mod reconciliation;
mod report;
mod store_versions;
pub mod suggestion;
mod tenant_series;
pub mod tenants;

pub use cluster::{node_names, slots_line};
pub use fleet::{Exchange, FleetQuotas, FleetSettings, PERIOD as FLEET_PERIOD};
pub use hot_keys::write_hot_keys;
pub use info::info;
pub use limits::write_limits;
pub use metering::Meter;
pub use pages::{View, page};
pub use quotas::{QuotaHistory, QuotaRefusal, QuotaSource, Versions};
pub use report::{EventLoopFigures, ProcessFacts, ShardReport, Totals};
pub use store_versions::StoreVersions;
pub use tenant_series::TenantSeries;
