//! A scripted store: slow, full, stalled, faulty or away, at set times and by command.
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
//! * The engine executes a request when its service **starts**. The service time depends on the reply, so the
//!   request is executed first; and a request that still waits when its client leaves, or when an outage
//!   begins, has changed nothing, like a request that a real store never read.
//! * Requests start in the order of arrival, whichever connection sent them, so they change keys in that
//!   order.
//! * Starts and ends are computed, not observed: a server that is free at 5.0 ms takes the next request at
//!   5.0 ms, though the process wakes at 5.1 ms. So late wake-ups cost no capacity.
//! * The store may play a node of a cluster (`cluster/`): it refuses what that node would, when service
//!   starts.
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
