//! Check of requests that web pages make browsers send. A page of any site can have a browser send requests
//! to any server that the browser reaches, and they would be carried out wherever the sender needs no token
//! of its own. Browsers say in headers, which no page can change, which page a request comes from; other
//! clients send no such headers. The admin port and the keys over HTTP share this check.

use std::sync::Arc;

use httparse::Header;

use super::headers::values;

/// Web pages whose requests for keys are permitted, and host names by which the server may be addressed.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Origins of web pages whose requests are permitted, as browsers write them: `https://app.example`.
    pub origins: Vec<Arc<str>>,
    /// Host names by which requests may address the server, besides IP addresses and localhost.
    pub hosts: Vec<String>,
}

/// The web page that made a browser send a request, as far as the browser's headers say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// No web page of another origin made the request, as far as headers say: the sender is a program, a
    /// person who typed the address, or a page of this server.
    Unsaid,
    /// The request comes from a web page of this origin, such as `https://app.example`.
    Page(Vec<u8>),
    /// The request comes from a web page of another origin, which is not sent or is sent more than once.
    Elsewhere,
}

impl Source {
    /// Reads from which web page a request comes: from the header `Origin`, and from `Sec-Fetch-Site` if
    /// there is no `Origin`.
    pub fn of(headers: &[Header<'_>]) -> Self {
        let mut origins = values(headers, "origin");
        match (origins.next(), origins.next()) {
            (Some(origin), None) => Self::Page(origin.to_vec()),
            (Some(_), Some(_)) => Self::Elsewhere,
            (None, _) => {
                let is_elsewhere = |value: &[u8]| !matches!(value, b"same-origin" | b"none");
                let elsewhere = values(headers, "sec-fetch-site").any(is_elsewhere);
                if elsewhere { Self::Elsewhere } else { Self::Unsaid }
            }
        }
    }

    /// Returns the origin of the web page that may read the response, if the request comes from a permitted
    /// page (one in `rules`), and `None` if it comes from no page; an error for a page that is not permitted.
    pub fn admit(&self, rules: &Rules) -> Result<Option<Arc<str>>, Foreign> {
        match self {
            Self::Unsaid => Ok(None),
            Self::Page(origin) => {
                let known = rules.origins.iter().find(|known| known.as_bytes().eq_ignore_ascii_case(origin));
                known.map(|known| Some(Arc::clone(known))).ok_or(Foreign)
            }
            Self::Elsewhere => Err(Foreign),
        }
    }
}

/// Error for a request that comes from a web page that is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

/// The proof of identity by which a request is accepted, classified by whether a browser adds it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// The request has a token that only its sender knows (`Authorization: Bearer`): no page can have a
    /// browser add one.
    Token,
    /// The request has a password (`Authorization: Basic`), which a browser adds by itself once it has stored
    /// one for that host.
    Password,
    /// The request has no proof of identity in itself: no password is required, or the certificate of the
    /// connection identifies the client. Any web page can have a browser send such a request.
    Ambient,
}

impl Authority {
    /// Returns which kind of proof of identity a request has whose `Authorization` header (its value) was
    /// verified: a token or a password.
    pub fn of(authorization: &[u8]) -> Self {
        let is_bearer = super::headers::credentials(authorization, "bearer").is_some();
        if is_bearer { Self::Token } else { Self::Password }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(headers: &[(&'static str, &'static str)]) -> Source {
        let headers: Vec<Header<'_>> =
            headers.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect();
        Source::of(&headers)
    }

    #[test]
    fn pages_are_told_from_programs() {
        for unsaid in [
            &[][..],
            &[("Accept", "*/*")],
            &[("Sec-Fetch-Site", "none")],
            &[("sec-fetch-site", "same-origin")],
        ] {
            assert_eq!(source(unsaid), Source::Unsaid, "{unsaid:?}");
        }
        for elsewhere in [
            &[("Sec-Fetch-Site", "cross-site")][..],
            &[("Sec-Fetch-Site", "same-site")],
            &[("Sec-Fetch-Site", "Same-Origin")],
            &[("Sec-Fetch-Site", "")],
            &[("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "cross-site")],
            &[("Origin", "https://a"), ("Origin", "https://b")],
        ] {
            assert_eq!(source(elsewhere), Source::Elsewhere, "{elsewhere:?}");
        }
        for origin in ["https://evil.example", "null", ""] {
            assert_eq!(source(&[("Origin", origin)]), Source::Page(origin.into()));
        }
    }

    #[test]
    fn only_named_pages_may_ask() {
        let rules = Rules { origins: vec!["https://app.example".into()], hosts: Vec::new() };
        let admit = |headers: &[(&'static str, &'static str)]| source(headers).admit(&rules);
        assert_eq!(admit(&[]), Ok(None));
        for more in [&[][..], &[("Sec-Fetch-Site", "cross-site")]] {
            let headers = [&[("Origin", "https://app.example")], more].concat();
            assert_eq!(admit(&headers), Ok(Some("https://app.example".into())));
        }
        for origin in [
            "https://app.example.evil.example",
            "https://evil.example",
            "http://app.example",
            "https://app.example:8443",
            "https://app.example ",
            "null",
            "",
        ] {
            assert_eq!(admit(&[("Origin", origin)]), Err(Foreign), "{origin}");
        }
        assert_eq!(admit(&[("Sec-Fetch-Site", "cross-site")]), Err(Foreign));
    }

    #[test]
    fn only_bearer_tokens_are_out_of_reach_of_pages() {
        assert_eq!(Authority::of(b"Bearer a"), Authority::Token);
        assert_eq!(Authority::of(b"bearer a"), Authority::Token);
        assert_eq!(Authority::of(b"Basic YQ=="), Authority::Password);
        assert_eq!(Authority::of(b"a"), Authority::Password);
    }
}
