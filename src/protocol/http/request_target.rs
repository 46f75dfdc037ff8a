//! Target of an HTTP request: the words between the method and the version.

use super::host::Host;

/// The target of a request, split into server, path and query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    /// The server, which only an absolute target names (`http://...`), as clients send to proxies; none for
    /// any other target.
    authority: Option<&'a str>,
    /// The path, which begins with a slash.
    pub path: &'a str,
    /// The part behind the question mark; empty without one.
    pub query: &'a str,
}

impl<'a> RequestTarget<'a> {
    /// Splits a target; None if it begins neither with a slash nor with `http://` or `https://`. An absolute
    /// target without a path has the path `/`.
    pub fn read(target: &'a str) -> Option<Self> {
        let (authority, origin) = match target.split_once("://") {
            Some((scheme, rest))
                if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") =>
            {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
            _ => (None, target),
        };
        let (path, query) = origin.split_once('?').unwrap_or((origin, ""));
        let path = if path.is_empty() && authority.is_some() { "/" } else { path };
        path.starts_with('/').then_some(Self { authority, path, query })
    }

    /// Returns the name by which a request with this target addresses the server; `said` is the name in its
    /// header `Host`. A name in the target takes precedence (RFC 9112, 3.2.2), but an IP address or localhost
    /// in it does not hide a name in the header. None if the name in the target is malformed.
    pub fn host(&self, said: Host) -> Option<Host> {
        let Some(authority) = self.authority else { return Some(said) };
        let named = Host::read(std::iter::once(authority.as_bytes()))?;
        Some(if matches!(named, Host::Name(_)) { named } else { said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_split() {
        for (target, authority, path, query) in [
            ("/", None, "/", ""),
            ("/a?b?c", None, "/a", "b?c"),
            ("http://h", Some("h"), "/", ""),
            ("HTTPS://h:1?q", Some("h:1"), "/", "q"),
            ("http://h/a/b?q", Some("h"), "/a/b", "q"),
            ("/a?u=http://h/b", None, "/a", "u=http://h/b"),
        ] {
            assert_eq!(
                RequestTarget::read(target),
                Some(RequestTarget { authority, path, query }),
                "{target}"
            );
        }
        for target in ["", "*", "a/b", "?q", "ftp://h/a", "h:80"] {
            assert_eq!(RequestTarget::read(target), None, "{target}");
        }
    }
}
