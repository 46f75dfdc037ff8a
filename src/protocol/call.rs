//! `QOS CALL`, by which a client sends a deadline and a tier along with a request, and the test whether a
//! request is about its connection.

use super::command::{self, Handling, LocalCommand};
use super::encode;
use crate::values::Tier;

/// Appends to `out` the beginning of the request `QOS CALL DEADLINE millis [TIER tier] request`: all of it
/// before the words of `request`. Returns the length of the array header of `request`, which this beginning
/// replaces: the caller appends the bytes after that header. `None`, with nothing written, if `request` has
/// no such header.
pub fn begin_call(out: &mut Vec<u8>, request: &[u8], millis: u64, tier: Option<Tier>) -> Option<usize> {
    let head = request.iter().position(|byte| *byte == b'\n')? + 1;
    let digits = request[..head].strip_prefix(b"*")?.strip_suffix(b"\r\n")?;
    let count: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let added = if tier.is_some() { 6 } else { 4 };
    encode::array(out, count.checked_add(added)?);
    out.extend_from_slice(b"$3\r\nQOS\r\n$4\r\nCALL\r\n$8\r\nDEADLINE\r\n");
    let millis = millis.min(i64::MAX as u64);
    encode::header(out, b'$', millis.checked_ilog10().unwrap_or(0) as usize + 1);
    encode::decimal(out, millis as i64);
    out.extend_from_slice(b"\r\n");
    if let Some(tier) = tier {
        out.extend_from_slice(b"$4\r\nTIER\r\n");
        encode::bulk(out, tier.name().as_bytes());
    }
    Some(head)
}

/// Name of an option of `QOS CALL` and `QOS SET`; its value is the next word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOption {
    /// The option `USER`: name of the user, within the tenant, whose quota the request is charged to.
    User,
    /// The option `TIER`: importance of the request under overload.
    Tier,
    /// The option `DEADLINE`: time, in milliseconds from the request's arrival, after which the reply is of no
    /// more use to the client.
    Deadline,
    /// The option `INFLIGHT`: what happens to a request whose deadline passes while a store has the request
    /// and has not answered it.
    InFlight,
}

impl CallOption {
    /// Returns the option with the name `word`, in any case of letters; `None` if there is none.
    pub fn of(word: &[u8]) -> Option<Self> {
        let named = [
            ("user", Self::User),
            ("tier", Self::Tier),
            ("deadline", Self::Deadline),
            ("inflight", Self::InFlight),
        ];
        named
            .into_iter()
            .find_map(|(name, option)| word.eq_ignore_ascii_case(name.as_bytes()).then_some(option))
    }
}

/// True if a request reads or changes the state of its connection (`AUTH`, `MULTI`, `CLIENT`, `QOS SET`) or
/// needs a connection to a store to itself (`BLPOP`, `SUBSCRIBE`), also as the inner request of `QOS CALL`,
/// however deeply nested. False for an unknown command.
pub fn is_about_connection<'a>(mut words: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
    loop {
        let Some(command) = words.next().and_then(command::find) else { return false };
        let mut behind = words.clone();
        let subcommand = behind.next();
        if command.handling != Handling::Local(LocalCommand::Qos) {
            return command.is_about_connection(subcommand);
        }
        match subcommand {
            Some(word) if word.eq_ignore_ascii_case(b"set") => return true,
            Some(word) if word.eq_ignore_ascii_case(b"call") => words = inner(behind),
            _ => return false,
        }
    }
}

/// Returns the first word of the inner request of a `QOS CALL`, whose words from the first option on are `words`.
/// None if it has no inner request.
pub fn inner_name<'a>(words: impl Iterator<Item = &'a [u8]> + Clone) -> Option<&'a [u8]> {
    inner(words).next()
}

/// Returns the words of a `QOS CALL` after its options: the inner request. `words` begin with the first
/// option.
fn inner<'a, W: Iterator<Item = &'a [u8]> + Clone>(mut words: W) -> W {
    loop {
        let mut behind = words.clone();
        match (behind.next().and_then(CallOption::of), behind.next()) {
            (Some(_), Some(_)) => words = behind,
            _ => return words,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_a_connection_is_found_however_deep() {
        let is = |request: &str| is_about_connection(request.split(' ').map(str::as_bytes));
        let about = [
            "MULTI",
            "exec",
            "Discard",
            "WATCH a",
            "UNWATCH",
            "AUTH a b",
            "HELLO 3",
            "QUIT",
            "RESET",
            "SELECT 0",
            "READONLY",
            "READWRITE",
            "CLIENT",
            "CLIENT ID",
            "client no-such",
            "CLIENT REPLY OFF",
            "CLIENT KILL ID 1",
            "CLIENT SETNAME a;tier=batch",
            "QOS SET TIER batch",
            "SUBSCRIBE a",
            "MONITOR",
        ];
        for request in about {
            for before in [
                "",
                "QOS CALL ",
                "qos call tier batch ",
                "QOS CALL USER a DEADLINE 5 Tier x INFLIGHT wait ",
                "QOS CALL QOS call USER QUIT QOS CALL ",
            ] {
                assert!(is(&format!("{before}{request}")), "{before}{request}");
            }
        }
        let others = [
            "GET MULTI",
            "SET AUTH QUIT",
            "QOS",
            "QOS CALL",
            "QOS CALL TIER",
            "QOS CALL TIER batch",
            "QOS LIMITS",
            "QOS CALL TIER MULTI GET a",
            "QOS CALL GET QUIT",
            "QOS EXPLAIN MULTI",
            "nope",
            "COMMAND COUNT",
            "PING",
            "ECHO MULTI",
            "ACL WHOAMI",
            "OBJECT ENCODING a",
            "CLUSTER KEYSLOT a",
            "EVAL s 1 client",
        ];
        for request in others {
            assert!(!is(request), "{request}");
        }
        assert!(!is_about_connection(std::iter::empty()));
    }

    fn called(request: &str, millis: u64, tier: Option<Tier>) -> Option<String> {
        let mut out = Vec::new();
        let Some(head) = begin_call(&mut out, request.as_bytes(), millis, tier) else {
            assert!(out.is_empty());
            return None;
        };
        out.extend_from_slice(&request.as_bytes()[head..]);
        Some(String::from_utf8(out).expect("text"))
    }

    fn encoded(words: &[&str]) -> String {
        let mut out = Vec::new();
        encode::request(&mut out, words.iter().map(|word| word.as_bytes()));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_call_is_the_request_with_words_before_it() {
        for millis in [0, 1, 9, 10, 99, 100, 86_400_000] {
            let digits = millis.to_string();
            for words in [&["PING"][..], &["GET", "a"], &["SET", "a", ""], &["MGET"; 10]] {
                let plain = [&["QOS", "CALL", "DEADLINE", &digits], words].concat();
                assert_eq!(called(&encoded(words), millis, None), Some(encoded(&plain)));
                for tier in Tier::ALL {
                    let told = ["QOS", "CALL", "DEADLINE", &digits, "TIER", tier.name()];
                    let wanted = encoded(&[&told[..], words].concat());
                    assert_eq!(called(&encoded(words), millis, Some(tier)), Some(wanted));
                }
            }
        }
    }

    #[test]
    fn what_is_no_array_stays_as_it_is() {
        for request in ["", "PING\r\n", "*x\r\n", "*\r\n", "*-1\r\n", "*1\n", "*18446744073709551615\r\n"] {
            assert_eq!(called(request, 5, None), None, "{request:?}");
        }
    }
}
