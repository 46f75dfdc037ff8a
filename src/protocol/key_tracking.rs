//! Options of `CLIENT TRACKING ON`.

use super::Arguments;

/// Options of `CLIENT TRACKING ON`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackingOptions {
    /// True for messages about all keys with certain prefixes, whether the client has read them or not
    /// (`BCAST`).
    pub is_broadcast: bool,
    /// The prefixes; none means all keys.
    pub prefixes: Vec<Vec<u8>>,
    /// True if only reads behind `CLIENT CACHING YES` are tracked.
    pub opts_in: bool,
    /// True if all reads are tracked except behind `CLIENT CACHING NO`.
    pub opts_out: bool,
    /// True if the client is sent no messages about changes that it makes itself (`NOLOOP`).
    pub leaves_out_own: bool,
}

/// Reason why options are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadTrackingOption {
    /// Messages are wanted over another connection (`REDIRECT`).
    Redirects,
    /// A word is no option, or lacks its value.
    Syntax,
}

impl TrackingOptions {
    /// Reads the words behind `CLIENT TRACKING ON`.
    pub fn parse(arguments: &Arguments<'_>) -> Result<Self, BadTrackingOption> {
        let mut options = Self::default();
        let mut words = arguments.iter().skip(3);
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"BCAST" => options.is_broadcast = true,
                b"OPTIN" => options.opts_in = true,
                b"OPTOUT" => options.opts_out = true,
                b"NOLOOP" => options.leaves_out_own = true,
                b"PREFIX" => options.prefixes.push(words.next().ok_or(BadTrackingOption::Syntax)?.to_vec()),
                b"REDIRECT" => return Err(BadTrackingOption::Redirects),
                _ => return Err(BadTrackingOption::Syntax),
            }
        }
        Ok(options)
    }

    /// Returns the flags as `CLIENT TRACKINGINFO` names them. `is_exception` tells that `CLIENT CACHING` was sent
    /// and the next request is an exception.
    pub fn flags(&self, is_exception: bool) -> impl Iterator<Item = &'static str> {
        let flags = [
            (true, "on"),
            (self.is_broadcast, "bcast"),
            (self.opts_in, "optin"),
            (self.opts_in && is_exception, "caching-yes"),
            (self.opts_out, "optout"),
            (self.opts_out && is_exception, "caching-no"),
            (self.leaves_out_own, "noloop"),
        ];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name)
    }
}
