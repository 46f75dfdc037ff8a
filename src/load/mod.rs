//! The load generator's deciding parts: when to send what, what a reply means, and what to count.
//!
//! ```text
//!  plan ─> schedule ── due ──> group ── template ──> connection ══> target
//!                                ^                        │ reply
//!                                └── classify, retry ─────┘──> statistics ─> reports (tools/load)
//! ```
//!
//! The loop is open: the schedule knows nothing of replies, and a latency counts from the moment when the request was
//! due, so a target that stalls is charged for everything that had to wait.

pub mod classify;
mod connection;
mod group;
pub mod keys;
pub mod plan;
pub mod rate;
mod run;
pub mod schedule;
mod setup;
pub mod statistics;
pub mod template;
pub mod zipf;

pub use plan::{GroupPlan, Identity, PhasePlan, Plan, SetupPlan};
pub use run::Run;
