//! Classification of replies by their first bytes, as outcomes of requests.

use weir_client::Refusal;

/// The way in which a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The request was served: its reply was not an error.
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
    /// The reply was an error other than a refusal.
    Error,
    /// The connection was lost before the reply came.
    Lost,
    /// The request waited too long for its reply, or was due and never sent.
    Timeout,
    /// The smart client did not send the request, in order to spare the target.
    RefusedByClient,
}

/// Classifies a reply, as the end of its request, by its first bytes (`head`), which must include its first
/// word.
pub fn classify(head: &[u8]) -> Ending {
    if head.first() != Some(&b'-') && head.first() != Some(&b'!') {
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
    fn the_first_word() {
        assert_eq!(first_word(b"-LOADING Redis is loading\r\n"), b"LOADING");
        assert_eq!(first_word(b"-OOM\r\n"), b"OOM");
    }
}
