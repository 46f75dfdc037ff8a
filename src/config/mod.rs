//! Flags and quota file to one checked, immutable configuration.
