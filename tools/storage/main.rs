//! The embedded engine as a server of its own.

fn main() {}
