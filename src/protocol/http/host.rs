//! Check of the name by which a request addresses the server. A web page of any site can have its own name
//! resolve to this machine (DNS rebinding), and its browser would then show it weir's responses; but the
//! browser also sends that name. The admin port and the keys over HTTP share this check.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum number of characters of the name in the header `Host` that an error text repeats; the rest is cut
/// off.
const SHOWN_MAX: usize = 100;

/// The name by which a request addresses the server, in the header `Host` or in an absolute target
/// (`http://...`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The request names no server, as HTTP/1.0 allows. Browsers always name one.
    Unsaid,
    /// The request addresses the server by an IP address, or as localhost.
    Address,
    /// The request addresses the server by any other name, here in lower case.
    Name(String),
}

impl Host {
    /// Reads the values of the header `Host`; `None` if they are malformed or there are several.
    pub fn read<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let Some(value) = values.next() else { return Some(Self::Unsaid) };
        if values.next().is_some() {
            return None;
        }
        let text = std::str::from_utf8(value).ok()?.trim();
        if let Some(rest) = text.strip_prefix('[') {
            let (inner, port) = rest.split_once(']')?;
            inner.parse::<Ipv6Addr>().ok()?;
            return (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(Self::Address);
        }
        let (name, port) = text.split_once(':').unwrap_or((text, ""));
        if !is_port(port) {
            return None;
        }
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let is_address = name == "localhost" || name.parse::<Ipv4Addr>().is_ok();
        Some(if is_address { Self::Address } else { Self::Name(name) })
    }

    /// True if the server may be addressed in this way: by an IP address, as localhost, by no name, or by one
    /// of the names in `known`, in any case of letters.
    pub fn is_known(&self, known: &[String]) -> bool {
        match self {
            Self::Name(name) => known.iter().any(|known| known.eq_ignore_ascii_case(name)),
            Self::Unsaid | Self::Address => true,
        }
    }

    /// Checks that the server may be addressed by this name; an error if it may not. The error text names
    /// `flag`, the flag that sets the names in `known`.
    pub fn admit(&self, known: &[String], flag: &str) -> Result<(), String> {
        match self {
            Self::Name(name) if !self.is_known(known) => {
                let shown: String = name.chars().take(SHOWN_MAX).collect();
                Err(format!(
                    "the header Host is '{}', which is neither an IP address, nor localhost, nor a name of {flag}",
                    shown.escape_debug()
                ))
            }
            _ => Ok(()),
        }
    }
}

fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Option<Host> {
        Host::read(std::iter::once(value.as_bytes()))
    }

    #[test]
    fn addresses_and_this_machine_are_no_names() {
        for value in [
            "127.0.0.1",
            "127.0.0.1:7381",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:7381",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
        ] {
            assert_eq!(read(value), Some(Host::Address), "{value}");
        }
        assert_eq!(Host::read(std::iter::empty()), Some(Host::Unsaid));
    }

    #[test]
    fn a_name_must_be_known() {
        let known = ["weir.internal".to_owned(), "Prometheus-Target".to_owned()];
        for (value, fits) in [
            ("weir.internal:7381", true),
            ("WEIR.internal.", true),
            ("prometheus-target", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:7381", false),
            ("", false),
        ] {
            assert_eq!(read(value).expect("a name").admit(&known, "--admin-host").is_ok(), fits, "{value}");
        }
        let told = read(&format!("\u{1}{}", "x".repeat(5_000)))
            .expect("a name")
            .admit(&known, "--flag")
            .expect_err("unknown");
        assert!(told.len() < 300 && !told.contains('\u{1}'), "{told}");
    }

    #[test]
    fn what_makes_no_sense_is_none() {
        for value in ["[::1", "[x]:1", "[::1]x", "a:b", "a:1:2", "127.0.0.1:999999"] {
            assert_eq!(read(value), None, "{value}");
        }
        assert_eq!(Host::read([&b"a"[..], b"b"].into_iter()), None);
    }
}
