//! Decisions across cores, and what is known of all of them together. Pure.

pub mod exposition;
pub mod http;
mod info;
pub mod json;
mod pages;
pub mod pool;
pub mod quota_page;
mod quotas;
pub mod reconciliation;
mod report;

pub use info::info;
pub use pages::{View, page};
pub use quotas::{QuotaHistory, QuotaRefusal, QuotaSource, Versions};
pub use report::{ProcessFacts, ShardReport, Totals};
