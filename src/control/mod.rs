//! Decisions across cores, and what is known of all of them together. Pure.

mod info;
mod report;

pub use info::info;
pub use report::{ProcessFacts, ShardReport, Totals};
