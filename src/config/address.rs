//! Addresses that weir listens on, as flags give them: TCP addresses, or `off`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Value of a flag that names a listener: the address on which weir accepts connections, or `off` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// The value `off`: weir does not listen for these connections.
    Off,
    /// The address to listen on. Port 0 means any free port.
    At(SocketAddr),
}

impl ListenAddress {
    /// Returns the address to listen on; `None` if the flag's value is `off`.
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

/// Returns the socket addresses of all listen addresses that are not `off`.
pub(super) fn addresses_of(given: &[ListenAddress]) -> Vec<SocketAddr> {
    given.iter().filter_map(|listen| listen.address()).collect()
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => out.write_str("off"),
            Self::At(address) => address.fmt(out),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| {
            let example = nearest(text).unwrap_or("127.0.0.1:7379 or [::1]:7379".to_owned());
            format!("an IP address and a port are expected, such as {example}, or off")
        })
    }
}

/// Returns an address that is close to the text and may have been meant, for an error text; `None` if none
/// can be guessed.
fn nearest(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port: u16 = port.parse().ok()?;
    match host {
        "*" => Some(format!("0.0.0.0:{port} or [::]:{port}")),
        "" | "localhost" => Some(format!("127.0.0.1:{port}")),
        _ => host.parse::<std::net::Ipv6Addr>().ok().map(|address| format!("[{address}]:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["127.0.0.1:7379", "0.0.0.0:0", "[::1]:7379", "[fe80::1]:1", "off"] {
            assert_eq!(text.parse::<ListenAddress>().expect("an address").to_string(), text);
        }
        for (text, complaint) in [
            ("7379", "an IP address and a port are expected, such as 127.0.0.1:7379, or off"),
            (":7379", "an IP address and a port are expected, such as 127.0.0.1:7379, or off"),
            ("*:80", "an IP address and a port are expected, such as 0.0.0.0:80 or [::]:80, or off"),
            ("localhost:1", "an IP address and a port are expected, such as 127.0.0.1:1, or off"),
            ("fe80::1:7379", "an IP address and a port are expected, such as [fe80::1]:7379, or off"),
            (
                "127.0.0.1",
                "an IP address and a port are expected, such as 127.0.0.1:7379 or [::1]:7379, or off",
            ),
            (
                "127.0.0.1:99999",
                "an IP address and a port are expected, such as 127.0.0.1:7379 or [::1]:7379, or off",
            ),
        ] {
            assert_eq!(text.parse::<ListenAddress>(), Err(complaint.to_owned()), "{text}");
        }
    }
}
