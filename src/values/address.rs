//! Addresses of servers: a host name or IP address, and a port.

use std::fmt;

/// Address of a server: host and port. The code that connects resolves the host's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Name or IP address, an IPv6 address without brackets.
    pub host: String,
    /// TCP port that the server (a store or a node of a cluster) listens on.
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(out, "[{host}]:{port}") } else { write!(out, "{host}:{port}") }
    }
}
