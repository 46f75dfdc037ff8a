//! Where servers are.

use std::fmt;

/// Where a server is. The name is looked up by whoever connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// A name or an address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(out, "[{host}]:{port}") } else { write!(out, "{host}:{port}") }
    }
}
