//! Effects, and nothing else: executors, clock, ring, mesh, sockets, admin port, signals.

pub mod clock;
pub mod ring;
