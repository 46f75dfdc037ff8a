//! The embedded engine: a small, bounded, single-threaded Redis-compatible store.
