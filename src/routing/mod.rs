//! Key to slot, slot to core and backend.
