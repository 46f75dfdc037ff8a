//! What became of a request, told from the first bytes of its reply.

use weir_client::Refusal;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was answered.
    Served,
    /// Its budget was used up.
    Throttled,
    /// There was not enough for all.
    Overloaded,
    /// It could not be answered in time.
    Deadline,
    /// Its store is out of reach.
    Unavailable,
    /// Any other error reply.
    Error,
    /// Its connection was lost: an error without a reply.
    Lost,
    /// It waited too long, or was never sent.
    Timeout,
    /// Its client did not send it, so as to spare the target.
    RefusedByClient,
}

/// From the bytes a reply starts with; as many as make its first word.
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

/// What an error reply says.
pub fn error_text(head: &[u8]) -> &[u8] {
    match head {
        [b'-', text @ ..] => text,
        // A long error of RESP3: its length stands on a line of its own.
        [b'!', rest @ ..] => {
            rest.iter().position(|byte| *byte == b'\n').map_or(&[][..], |newline| &rest[newline + 1..])
        }
        other => other,
    }
}

/// The word that says what kind of error an error reply is.
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
