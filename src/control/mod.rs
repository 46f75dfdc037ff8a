//! Decisions across cores, and what is known of all of them together. Pure.

pub mod exposition;
pub mod http;
mod info;
mod pages;
pub mod pool;
pub mod reconciliation;
mod report;

pub use info::info;
pub use pages::page;
pub use report::{ProcessFacts, ShardReport, Totals};
