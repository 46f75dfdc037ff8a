//! Options of `CLIENT TRACKING`: how they are parsed, and which are refused.

use std::borrow::Cow;

use super::command::quoted;
use super::{Arguments, encode};

/// Options of `CLIENT TRACKING ON`, by which a client asks for messages about changed keys. They may be given with
/// `OFF` too, where they have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackingOptions {
    /// Id (`CLIENT ID`) of the connection that receives the messages about changed keys in place of the
    /// client's own (`REDIRECT`); none if not given. 0, which a negative number becomes, is no connection's
    /// id.
    pub redirect: Option<u64>,
    /// True if messages are sent about changes of all keys with certain prefixes, whether or not the client
    /// has read them (`BCAST`).
    pub is_broadcast: bool,
    /// The prefixes of keys about whose changes messages are sent (`PREFIX`); an empty list means all keys.
    pub prefixes: Vec<Vec<u8>>,
    /// True if the client is sent messages only about keys that it has read right after `CLIENT CACHING YES`
    /// (`OPTIN`).
    pub opts_in: bool,
    /// True if the client is sent messages about all keys that it has read, except right after `CLIENT
    /// CACHING NO` (`OPTOUT`).
    pub opts_out: bool,
    /// True if the client is sent no messages about changes that it makes itself (`NOLOOP`).
    pub leaves_out_own: bool,
}

/// Reason why options of `CLIENT TRACKING` are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadTrackingOption {
    /// The word after `REDIRECT` is not a number.
    NoNumber,
    /// `REDIRECT` is given twice.
    SecondRedirect,
    /// A word of the request is no option, or an option lacks its value.
    Syntax,
}

impl BadTrackingOption {
    /// Returns the text of the error reply, as Redis words it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoNumber => "ERR value is not an integer or out of range",
            Self::SecondRedirect => "ERR A client can only redirect to a single other client",
            Self::Syntax => "ERR syntax error",
        }
    }
}

impl TrackingOptions {
    /// Reads the options of a request `CLIENT TRACKING ON` (or `OFF`) from the words after these three. The error is
    /// the reason why they are refused.
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
                b"REDIRECT" => {
                    let word = words.next().ok_or(BadTrackingOption::Syntax)?;
                    if options.redirect.is_some() {
                        return Err(BadTrackingOption::SecondRedirect);
                    }
                    let number = std::str::from_utf8(word).ok().and_then(|word| word.parse::<i64>().ok());
                    let number = number.ok_or(BadTrackingOption::NoNumber)?;
                    options.redirect = Some(u64::try_from(number).unwrap_or(0));
                }
                _ => return Err(BadTrackingOption::Syntax),
            }
        }
        Ok(options)
    }

    /// Writes the `CLIENT TRACKING ON` command that asks a store for these options. `redirect` is the store's
    /// id of the connection that its messages go to; `None` for the connection that the command is sent on.
    pub fn encode(&self, out: &mut Vec<u8>, redirect: Option<u64>) {
        let redirect = redirect.map(|number| number.to_string());
        let mut words: Vec<&[u8]> = vec![b"CLIENT", b"TRACKING", b"ON"];
        words.extend(redirect.iter().flat_map(|number| [b"REDIRECT", number.as_bytes()]));
        // The empty prefix means all keys, and a store refuses others in the same command.
        let has_empty = self.prefixes.iter().any(Vec::is_empty);
        let prefixes = self.prefixes.iter().filter(|prefix| !has_empty || prefix.is_empty());
        words.extend(prefixes.flat_map(|prefix| [b"PREFIX", prefix.as_slice()]));
        let flags: [(bool, &[u8]); 4] = [
            (self.is_broadcast, b"BCAST"),
            (self.opts_in, b"OPTIN"),
            (self.opts_out, b"OPTOUT"),
            (self.leaves_out_own, b"NOLOOP"),
        ];
        words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word));
        encode::request(out, words.into_iter());
    }

    /// Adds the prefixes of the options that were in force `before` (`None` if tracking was off) to these new
    /// options, if both ask for messages by prefix (`BCAST`). New options that ask for these and name no
    /// prefix get the empty one, which means all keys.
    pub fn add_prefixes_of(&mut self, before: Option<&Self>) {
        if !self.is_broadcast {
            return;
        }
        if self.prefixes.is_empty() {
            self.prefixes.push(Vec::new());
        }
        let before = before.filter(|before| before.is_broadcast);
        self.prefixes.extend(before.into_iter().flat_map(|before| before.prefixes.iter().cloned()));
        self.prefixes.sort_unstable();
        self.prefixes.dedup();
    }

    /// Returns the text of the error, as Redis words it, if a prefix of these options overlaps with another one of them
    /// or with one of `before` (those that are in force): the one begins with the other. None if no prefixes overlap.
    /// Each prefix is compared with all others, so the caller limits their number.
    pub fn overlap(&self, before: &[Vec<u8>]) -> Option<String> {
        self.prefixes.iter().enumerate().find_map(|(index, prefix)| {
            let overlaps = |other: &&Vec<u8>| other.starts_with(prefix) || prefix.starts_with(other);
            let known = before.iter().find(overlaps).map(|other| ("an existing", other));
            let given =
                || self.prefixes[index + 1..].iter().find(overlaps).map(|other| ("another provided", other));
            let (kind, other) = known.or_else(given)?;
            let (prefix, other) = (c_string(prefix), c_string(other));
            Some(format!(
                "ERR Prefix '{prefix}' overlaps with {kind} prefix '{other}'. Prefixes for a single client must not \
                 overlap."
            ))
        })
    }

    /// Returns the flags of these options that `CLIENT TRACKINGINFO` lists. `is_exception` is true if the
    /// client has sent `CLIENT CACHING`, which makes its next request an exception to the mode `OPTIN` or
    /// `OPTOUT`.
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

/// Returns a client's bytes as Redis quotes them in an error: up to the first zero byte, where a string of C ends.
fn c_string(bytes: &[u8]) -> Cow<'_, str> {
    quoted(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{RequestDecoder, RequestLimits};

    fn parsed(frame: &[u8]) -> Result<TrackingOptions, BadTrackingOption> {
        let mut consumed = 0;
        let limits = RequestLimits::trusted(1_000);
        let mut decoder = RequestDecoder::default();
        let request = decoder.next(frame, &mut consumed, &limits);
        TrackingOptions::parse(&request.expect("well formed").expect("whole").arguments)
    }

    fn of(line: &str) -> Result<TrackingOptions, BadTrackingOption> {
        let mut frame = Vec::new();
        let words = format!("CLIENT TRACKING ON {line}");
        encode::request(
            &mut frame,
            words.split_whitespace().map(str::as_bytes).collect::<Vec<_>>().into_iter(),
        );
        parsed(&frame)
    }

    #[test]
    fn options_are_written_as_they_were_read_but_for_the_connection() {
        for line in ["", "REDIRECT 7", "BCAST PREFIX a PREFIX bc REDIRECT 7 NOLOOP", "OPTIN", "optout noloop"]
        {
            let options = of(line).expect("good options");
            let mut frame = Vec::new();
            options.encode(&mut frame, options.redirect.map(|_| 41));
            let told = parsed(&frame).expect("good options");
            assert_eq!(told, TrackingOptions { redirect: options.redirect.map(|_| 41), ..options });
        }
        assert_eq!(of("REDIRECT -5").expect("a number").redirect, Some(0));
        for (line, bad) in [
            ("REDIRECT", BadTrackingOption::Syntax),
            ("REDIRECT x", BadTrackingOption::NoNumber),
            ("REDIRECT 1 REDIRECT 1", BadTrackingOption::SecondRedirect),
            ("PREFIX", BadTrackingOption::Syntax),
        ] {
            assert_eq!(of(line), Err(bad), "{line}");
        }
    }

    #[test]
    fn prefixes_add_up() {
        let mut options = of("BCAST PREFIX b").expect("good options");
        options.add_prefixes_of(Some(&of("BCAST PREFIX c PREFIX a").expect("good options")));
        assert_eq!(options.prefixes, [b"a", b"b", b"c"]);
        let mut all = of("BCAST").expect("good options");
        all.add_prefixes_of(None);
        assert_eq!(all.prefixes, [b""]);
        let mut none = of("OPTIN").expect("good options");
        none.add_prefixes_of(Some(&options));
        assert!(none.prefixes.is_empty());
        // A store that is told of all prefixes at once would refuse others beside the empty one.
        all.add_prefixes_of(Some(&options));
        let mut frame = Vec::new();
        all.encode(&mut frame, None);
        assert_eq!(
            (all.prefixes.len(), parsed(&frame).expect("good options").prefixes),
            (4, vec![Vec::new()])
        );
    }

    #[test]
    fn prefixes_of_which_one_begins_with_the_other_overlap() {
        let overlap = |line: &str, before: &str| {
            let before = of(before).expect("good options").prefixes;
            let text = of(line).expect("good options").overlap(&before)?;
            let words: Vec<&str> = text.split('\'').collect();
            Some(format!("{} {} {}", words[1], if text.contains("existing") { "<" } else { "=" }, words[3]))
        };
        for (line, before, told) in [
            ("PREFIX a PREFIX b", "PREFIX c PREFIX d", None),
            ("", "PREFIX c", None),
            ("PREFIX a PREFIX b PREFIX bc", "", Some("b = bc")),
            ("PREFIX z PREFIX aa PREFIX a", "", Some("aa = a")),
            ("PREFIX a PREFIX a", "PREFIX b", Some("a = a")),
            ("PREFIX a PREFIX a", "PREFIX ab", Some("a < ab")),
            ("PREFIX x PREFIX a", "PREFIX b PREFIX a", Some("a < a")),
        ] {
            assert_eq!(overlap(line, before).as_deref(), told, "{line} after {before}");
        }
        let zero =
            TrackingOptions { prefixes: vec![b"a\0b".to_vec(), b"a\0bc".to_vec()], ..Default::default() };
        assert_eq!(
            zero.overlap(&[]).as_deref(),
            Some(
                "ERR Prefix 'a' overlaps with another provided prefix 'a'. Prefixes for a single client must not \
                 overlap."
            )
        );
        assert_eq!(
            zero.overlap(&[Vec::new()]).map(|text| text.contains("an existing prefix ''")),
            Some(true)
        );
    }
}
