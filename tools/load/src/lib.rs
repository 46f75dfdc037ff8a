//! The load generator: when to send which request, what a reply means, and what to count.
//!
//! ```text
//!  plan ─> schedule ── due ──> group ── template ──> connection ══> target
//!                                ^                        │ reply
//!                                └── classify, repeat ────┘──> statistics ─> reports (bin/weir-load)
//! ```
//!
//! The loop is open: the schedule knows nothing of replies, and a latency counts from the moment when the
//! request was due, so a target that stalls is charged for every request that had to wait.
//!
//! `generator.rs` and `thread.rs` carry a plan out, with threads and sockets. All other files are pure: they
//! only decide, and time is an argument.

mod again;
pub mod classify;
mod connection;
mod generator;
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
mod thread;
pub mod zipf;

pub use generator::{LoadEvent, LoadSummary, run_load, stopwatch};
pub use plan::{ClientKind, GroupPlan, Identity, PhasePlan, Plan, SetupPlan};
pub use run::Run;
