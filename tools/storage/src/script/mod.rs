//! A store that behaves as it is told: slow, full, stalled, faulty or away, in time and by command.
//!
//! ```text
//!     request ─> Director ── STORAGE ...: answered at once
//!                   │ arrives
//!                   v
//!               Stations: one queue, N servers, virtual time ── starts ─> Engine::execute ── reply ─> Pending
//!                   │                                                                                   │ when due,
//!                   └─ finished ────────────────────────────────────────────────────────────────────────┤ in order
//!                                                                                                       v
//!     Behaviour (flags, STORAGE SET) + Phases (a file) = what holds now                               Output
//! ```
//!
//! * The engine executes a request when its service **starts**. How long it takes depends on what it finds, so it has
//!   to be looked up first; and a request that still waits when its client leaves, or when an outage begins, has
//!   changed nothing, as one that a real store never read.
//! * Requests start in the order of arrival, whoever sent them, so what they do to keys is in that order too.
//! * Starts and ends are computed, not observed: a server that is free at 5.0 ms takes the next request at 5.0 ms,
//!   though the process wakes at 5.1 ms. So late wake-ups cost no capacity.
//! * It may play a node of a cluster (`cluster/`): then it refuses what that node would, when service starts.
//! * The same seed and the same arrivals give the same service times and the same errors.

mod behaviour;
mod cluster;
mod command;
mod director;
mod distribution;
mod fault;
mod pending;
mod phases;
mod reads;
mod stations;
mod tally;

pub use behaviour::{Behaviour, Change, SERVERS_MAX, ServiceTimes};
pub use cluster::ClusterNodes;
pub use director::Script;
pub use fault::Errors;
pub use phases::{Phase, Phases};

pub(crate) use cluster::{ClusterSession, Verdict};
pub(crate) use command::Effect;
pub(crate) use director::{Director, Place, Turn, Visit};
pub(crate) use pending::Pending;
