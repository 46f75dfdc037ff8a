//! Classification of replies by their first bytes, and by the errors within arrays, as outcomes of requests.

use weir::protocol::ReplyScanner;
use weir_client::Refusal;

/// The way in which a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The request was served: its reply was not an error, and held none.
    Served,
    /// The request was refused because a quota was used up (`-THROTTLED`).
    Throttled,
    /// The request was refused because there was not enough capacity for all requests, or the store had stalled
    /// (`-OVERLOADED`).
    Overloaded,
    /// The request could not be answered within its deadline (`-DEADLINE`).
    Deadline,
    /// The request was refused because no store could answer it, or the connection to the store was lost
    /// (`-UNAVAILABLE`).
    Unavailable,
    /// The reply, or the first error in it, was an error other than a refusal.
    Error,
    /// The connection was lost before the reply came.
    Lost,
    /// The request waited too long for its reply, or was due and never sent.
    Timeout,
    /// The smart client did not send the request, in order to spare the target.
    RefusedByClient,
}

/// The reasons in an `-UNAVAILABLE` reply for which a request was not sent to a store.
const NOT_SENT: [&str; 3] = ["reason=connect-failed", "reason=ejected", "reason=no-owner"];

/// Classifies a reply, as the end of its request, by its first bytes (`head`), which must include its first
/// word. An array counts as served, whatever it holds.
pub fn classify(head: &[u8]) -> Ending {
    if !is_error(head) {
        return Ending::Served;
    }
    match Refusal::named(first_word(head)) {
        Some(Refusal::Throttled) => Ending::Throttled,
        Some(Refusal::Overloaded) => Ending::Overloaded,
        Some(Refusal::Deadline) => Ending::Deadline,
        Some(Refusal::Unavailable) => Ending::Unavailable,
        None => Ending::Error,
    }
}

/// True if a write that ended with this error may have been carried out nevertheless, wholly or in part; `error` is the
/// error's text, as [`error_text`] returns it. False for errors of stores, as far as they are not about a large reply.
pub fn may_have_happened(error: &[u8]) -> bool {
    let says = |words: &str| error.windows(words.len()).any(|part| part == words.as_bytes());
    says("may have happened")
        // The store's reply was too large for weir to pass it on.
        || error.starts_with(b"ERR the reply is larger than")
        || (error.starts_with(b"UNAVAILABLE") && !NOT_SENT.iter().any(|reason| says(reason)))
}

fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// True if a reply that begins with these bytes consists of several values, or has attributes or push messages before
/// it.
fn has_parts(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'*' | b'%' | b'~' | b'>' | b'|'))
}

/// Finder of the first error within a reply of several values, at any depth, such as the reply to MGET where a store
/// is away, or to EXEC. The reply may come in pieces.
#[derive(Debug, Default)]
pub(super) struct ErrorWithin {
    /// The scanner of the values that are no aggregates (array, map, set).
    scanner: ReplyScanner,
    /// True between two pieces of the line with which an aggregate, an attribute or a push message begins.
    is_in_header: bool,
    /// True from the first byte of the first error on.
    is_found: bool,
}

impl ErrorWithin {
    /// Creates the finder for a reply that begins with these bytes; `None` for a reply of one value.
    pub fn begin(reply: &[u8]) -> Option<Self> {
        has_parts(reply).then(Self::default)
    }

    /// Looks through further bytes of the reply, which must be RESP. Returns those of them that belong to the reply's
    /// first error; none before it, and none after it.
    pub fn scan<'bytes>(&mut self, bytes: &'bytes [u8]) -> &'bytes [u8] {
        let mut rest = bytes;
        while !rest.is_empty() {
            if !self.scanner.is_midway() {
                if self.is_found {
                    break;
                }
                if self.is_in_header || has_parts(rest) {
                    let newline = rest.iter().position(|byte| *byte == b'\n');
                    self.is_in_header = newline.is_none();
                    rest = newline.map_or(&[][..], |newline| &rest[newline + 1..]);
                    continue;
                }
                self.is_found = is_error(rest);
            }
            let scanned = self.scanner.scan(rest).ok().flatten();
            let (value, after) = rest.split_at(scanned.map_or(rest.len(), |scanned| scanned.end));
            if self.is_found {
                return value;
            }
            rest = after;
        }
        &[]
    }
}

/// Returns the text of an error reply, whose first bytes are `head`, without its type byte and, for a long
/// error of RESP3, its length.
pub fn error_text(head: &[u8]) -> &[u8] {
    match head {
        [b'-', text @ ..] => text,
        // A long error of RESP3 has its length on a line of its own.
        [b'!', rest @ ..] => {
            rest.iter().position(|byte| *byte == b'\n').map_or(&[][..], |newline| &rest[newline + 1..])
        }
        other => other,
    }
}

/// Returns the first word of an error reply, which names the kind of error. `head` holds the reply's first
/// bytes.
pub fn first_word(head: &[u8]) -> &[u8] {
    error_text(head).split(u8::is_ascii_whitespace).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies() {
        for (reply, ending) in [
            ("$5\r\nhello\r\n", Ending::Served),
            ("$-1\r\n", Ending::Served),
            ("+OK\r\n", Ending::Served),
            ("-THROTTLED scope=tenant name=acme\r\n", Ending::Throttled),
            ("-OVERLOADED reason=queue\r\n", Ending::Overloaded),
            ("-DEADLINE stage=queue\r\n", Ending::Deadline),
            ("-UNAVAILABLE backend=a\r\n", Ending::Unavailable),
            ("-THROTTLEDX\r\n", Ending::Error),
            ("-ERR unknown command\r\n", Ending::Error),
            ("!21\r\nTHROTTLED scope=tenant\r\n", Ending::Throttled),
            ("-\r\n", Ending::Error),
        ] {
            assert_eq!(classify(reply.as_bytes()), ending, "{reply}");
        }
    }

    #[test]
    fn the_first_error_within_a_reply_is_found_at_any_depth_and_in_any_pieces() {
        for (reply, error) in [
            ("*2\r\n$1\r\na\r\n$-1\r\n", ""),
            ("*0\r\n", ""),
            ("*-1\r\n", ""),
            ("*1\r\n$6\r\n\r\n-ERR\r\n", ""),
            ("*2\r\n$1\r\na\r\n-UNAVAILABLE backend=a\r\n", "-UNAVAILABLE backend=a\r\n"),
            ("*3\r\n-OVERLOADED reason=queue\r\n:1\r\n-LOADING\r\n", "-OVERLOADED reason=queue\r\n"),
            ("*2\r\n*3\r\n*0\r\n$1\r\na\r\n-ERR no\r\n:1\r\n", "-ERR no\r\n"),
            ("%1\r\n+a\r\n!22\r\nTHROTTLED scope=tenant\r\n", "!22\r\nTHROTTLED scope=tenant\r\n"),
            ("|1\r\n+ttl\r\n:3600\r\n-OVERLOADED reason=queue\r\n", "-OVERLOADED reason=queue\r\n"),
            (">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n$1\r\n-\r\n", ""),
        ] {
            for step in 1..=reply.len() {
                let mut finder = ErrorWithin::begin(reply.as_bytes()).expect("it has parts");
                let pieces = reply.as_bytes().chunks(step).map(|piece| finder.scan(piece));
                let found = pieces.collect::<Vec<_>>().concat();
                assert_eq!(String::from_utf8_lossy(&found), error, "{reply:?} in steps of {step}");
            }
        }
        for reply in ["$1\r\n*\r\n", "+OK\r\n", "-ERR no\r\n"] {
            assert!(ErrorWithin::begin(reply.as_bytes()).is_none(), "{reply:?} has one value");
        }
    }

    #[test]
    fn errors_after_which_a_write_may_have_happened() {
        for (error, expected) in [
            ("UNAVAILABLE backend=a reason=connection-lost retry_after_ms=5\r\n", true),
            ("UNAVAILABLE backend=a reason=connect-failed retry_after_ms=5\r\n", false),
            ("UNAVAILABLE backend=a reason=ejected retry_after_ms=5\r\n", false),
            ("UNAVAILABLE backend=a reason=no-owner retry_after_ms=5\r\n", false),
            ("UNAVAILABLE backend=a reason=redirects retry_after_ms=5\r\n", true),
            ("OVERLOADED reason=queue backend=a retry_after_ms=5\r\n", false),
            ("OVERLOADED reason=stalled backend=a retry_after_ms=5 (it may have happened)\r\n", true),
            ("DEADLINE stage=backend waited_ms=5 (it may have happened)\r\n", true),
            ("DEADLINE stage=queue waited_ms=5\r\n", false),
            ("OOM no room (the rest may have happened)\r\n", true),
            ("ERR the reply is larger than 1024 bytes (--max-reply-bytes)\r\n", true),
            ("ERR no such key\r\n", false),
            ("", false),
        ] {
            assert_eq!(may_have_happened(error.as_bytes()), expected, "{error}");
        }
    }

    #[test]
    fn the_first_word() {
        assert_eq!(first_word(b"-LOADING Redis is loading\r\n"), b"LOADING");
        assert_eq!(first_word(b"-OOM\r\n"), b"OOM");
    }
}
