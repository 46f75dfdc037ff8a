//! The load generator's deciding parts: when to send what, what a reply means, and what to count.
//!
//! ```text
//!  plan ─> schedule ── due ──> group ── template ──> connection ══> target
//!                                ^                        │ reply
//!                                └── classify, repeat ────┘──> statistics ─> reports (tools/load)
//! ```
//!
//! The loop is open: the schedule knows nothing of replies, and a latency counts from the moment when the request was
//! due, so a target that stalls is charged for everything that had to wait.

mod again;
pub mod classify;
mod connection;
mod group;
pub mod keys;
pub mod plan;
pub mod rate;
mod run;
pub mod schedule;
mod setup;
mod smart;
pub mod statistics;
pub mod template;
pub mod zipf;

pub use plan::{ClientKind, GroupPlan, Identity, PhasePlan, Plan, SetupPlan};
pub use run::Run;
