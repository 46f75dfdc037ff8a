//! Decisions across cores.
