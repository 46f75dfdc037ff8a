//! Lines of `MONITOR`: a request as redis-server 7.0 shows it, with its words quoted and its passwords left
//! out.
//!
//! ```text
//!   +1339518083.107412 [0 127.0.0.1:60866] "SET" "k" "v"
//! ```

use super::Arguments;
use super::command::{Command, Flags, Group, Handling, LocalCommand};
use super::encode;
use crate::values::Database;
use crate::values::limits::{MONITOR_ARGUMENT_BYTES_MAX, MONITOR_ARGUMENTS_MAX, MONITOR_REQUEST_BYTES_MAX};

/// The start of a line of `MONITOR`, before the request: time, database, and client.
#[derive(Clone, Copy, Debug)]
pub struct Heading<'a> {
    /// Time of the request, in microseconds since 1970.
    pub unix_micros: u64,
    /// Database that the client had selected when it sent the request.
    pub database: Database,
    /// Address of the client that sent the request: `ip:port`, or `unix:` and the path of a Unix socket.
    pub address: &'a str,
}

/// The text that `MONITOR` shows in place of a password, as in Redis.
const REDACTED: &[u8] = b"(redacted)";
/// The client's address on lines of `MONITOR` that say how many lines were left out. It has the form of an
/// address, because programs that read such lines parse it.
const WEIR: &str = "weir:0";

/// True if `MONITOR` shows this request. Commands that administer a server are not shown, as in Redis, and
/// neither are commands of modules that ask for it. `QOS CALL` is not shown either: its inner request is,
/// once it is carried out. `command` is None for an unknown command, which is shown.
pub fn is_shown(command: Option<&Command>, arguments: &Arguments<'_>) -> bool {
    let Some(command) = command else { return true };
    let is_call = command.handling == Handling::Local(LocalCommand::Qos)
        && arguments.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"call"));
    // Redis gives scripts the flag as well, since it shows them elsewhere.
    let is_secret = command.group == Group::Module && command.flags.contains(Flags::SKIP_MONITOR);
    !(command.flags.contains(Flags::ADMIN) || is_secret || is_call)
}

/// Appends the line by which `MONITOR` shows a request. At most 128 words are shown, of at most 1 KiB each
/// and 8 KiB together, with notes of how many bytes or arguments are missing. `command` is None if weir does
/// not know it.
pub fn write_line(
    out: &mut Vec<u8>,
    heading: &Heading<'_>,
    command: Option<&Command>,
    arguments: &Arguments<'_>,
) {
    begin(out, heading);
    let mut secrets = Secrets::of(command);
    let mut bytes_left = MONITOR_REQUEST_BYTES_MAX;
    for (index, word) in arguments.iter().enumerate() {
        out.push(b' ');
        if index == MONITOR_ARGUMENTS_MAX || bytes_left == 0 {
            note(out, (arguments.len() - index) as u64, "more arguments");
            break;
        }
        let word = if secrets.hides(index, word) { REDACTED } else { word };
        let shown = word.len().min(MONITOR_ARGUMENT_BYTES_MAX).min(bytes_left);
        bytes_left -= shown;
        write_word(out, &word[..shown], word.len() - shown);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the line that says how many lines a monitoring client was not sent. `unix_micros` is the present
/// time.
pub fn write_left_out(out: &mut Vec<u8>, unix_micros: u64, lines: u64) {
    begin(out, &Heading { unix_micros, database: Database::FIRST, address: WEIR });
    out.extend_from_slice(b" \"... ");
    encode::decimal(out, lines as i64);
    out.extend_from_slice(b" lines left out\"\r\n");
}

fn begin(out: &mut Vec<u8>, heading: &Heading<'_>) {
    let Heading { unix_micros, database, address } = *heading;
    out.push(b'+');
    encode::decimal(out, (unix_micros / 1_000_000) as i64);
    out.push(b'.');
    let mut micros = unix_micros % 1_000_000;
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit += (micros % 10) as u8;
        micros /= 10;
    }
    out.extend_from_slice(&digits);
    out.extend_from_slice(b" [");
    encode::decimal(out, i64::from(database.0));
    out.push(b' ');
    out.extend_from_slice(address.as_bytes());
    out.push(b']');
}

/// Appends a word of a request in quotation marks for `MONITOR`: its bytes in `shown`, and a note if further
/// ones are left out, whose number is `missing`.
fn write_word(out: &mut Vec<u8>, shown: &[u8], missing: usize) {
    out.push(b'"');
    escape(out, shown);
    if missing > 0 {
        out.extend_from_slice(b"... (");
        encode::decimal(out, missing as i64);
        out.extend_from_slice(b" more bytes)");
    }
    out.push(b'"');
}

/// Appends a note that `count` of `what` were left out, such as `"... (N more arguments)"`.
fn note(out: &mut Vec<u8>, count: u64, what: &str) {
    out.extend_from_slice(b"\"... (");
    encode::decimal(out, count as i64);
    out.push(b' ');
    out.extend_from_slice(what.as_bytes());
    out.extend_from_slice(b")\"");
}

/// Appends bytes quoted as Redis quotes them (`sdscatrepr`): printable ASCII as itself, quotation marks and
/// backslashes after a backslash, five control characters by their letters, every other byte in hexadecimal.
fn escape(out: &mut Vec<u8>, mut bytes: &[u8]) {
    const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    while let Some(at) = bytes.iter().position(|byte| !is_plain(byte)) {
        let (plain, rest) = bytes.split_at(at);
        out.extend_from_slice(plain);
        let letter = match rest[0] {
            byte @ (b'"' | b'\\') => Some(byte),
            b'\n' => Some(b'n'),
            b'\r' => Some(b'r'),
            b'\t' => Some(b't'),
            b'\x07' => Some(b'a'),
            b'\x08' => Some(b'b'),
            _ => None,
        };
        if let Some(letter) = letter {
            out.extend_from_slice(&[b'\\', letter]);
        } else {
            let [high, low] = [rest[0] >> 4, rest[0] & 0xf].map(|digit| HEXADECIMAL[usize::from(digit)]);
            out.extend_from_slice(&[b'\\', b'x', high, low]);
        }
        bytes = &rest[1..];
    }
    out.extend_from_slice(bytes);
}

/// State that decides, word by word, which words of a request may be passwords and are hidden.
#[derive(Clone, Copy, Debug)]
enum Secrets {
    /// No word of the request is hidden, because none is a password.
    None,
    /// The request is `AUTH`, in which all words after the name are hidden.
    All,
    /// The request is `HELLO`, in which the two words after `AUTH` are hidden, and all words that belong to
    /// no option, except the version.
    Hello(Behind),
    /// The request is `QOS`, which may contain another request: all words after a word `AUTH` are hidden. The
    /// field is true once there was one.
    Inner(bool),
}

/// The part of a `HELLO` request that the last word belonged to.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// The last word was the command's name, or the last one of an option.
    Option,
    /// The last word belonged to the option `AUTH`, of whose two values this many have come.
    Auth(u8),
    /// The last word was the option `SETNAME`, whose value is still to come.
    SetName,
}

impl Secrets {
    fn of(command: Option<&Command>) -> Self {
        match command.map(|command| command.handling) {
            Some(Handling::Local(LocalCommand::Auth)) => Self::All,
            Some(Handling::Local(LocalCommand::Hello)) => Self::Hello(Behind::Option),
            Some(Handling::Local(LocalCommand::Qos)) => Self::Inner(false),
            _ => Self::None,
        }
    }

    /// True if the word at `index` (0 is the command's name) of a request may be a password, so that it is
    /// not shown. The caller passes all words of the request, in order.
    fn hides(&mut self, index: usize, word: &[u8]) -> bool {
        if index == 0 {
            return false;
        }
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        match self {
            Self::None => false,
            Self::All => true,
            Self::Inner(is_behind) => std::mem::replace(is_behind, *is_behind || is("auth")),
            Self::Hello(behind) => {
                let (next, is_hidden) = match behind {
                    Behind::Auth(0) => (Behind::Auth(1), true),
                    Behind::Auth(_) => (Behind::Option, true),
                    Behind::SetName => (Behind::Option, false),
                    Behind::Option if is("auth") => (Behind::Auth(0), false),
                    Behind::Option if is("setname") => (Behind::SetName, false),
                    Behind::Option => (Behind::Option, index > 1 || !matches!(word, [b'0'..=b'9'])),
                };
                *behind = next;
                is_hidden
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::command::recognise;
    use super::super::{Argument, RequestDecoder, RequestLimits};
    use super::*;

    const HEADING: Heading<'static> =
        Heading { unix_micros: 1_339_518_083_007_412, database: Database(3), address: "127.0.0.1:60866" };

    fn with_words<T>(words: &[&[u8]], check: impl FnOnce(&Arguments<'_>) -> T) -> T {
        let mut frame = Vec::new();
        encode::request(&mut frame, words.iter().copied());
        let mut decoder = RequestDecoder::default();
        let request = decoder.next(&frame, &mut 0, &RequestLimits::assembled()).expect("well formed");
        check(&request.expect("whole").arguments)
    }

    fn line(words: &[&[u8]]) -> String {
        with_words(words, |arguments| {
            let mut out = Vec::new();
            write_line(&mut out, &HEADING, recognise(arguments).ok(), arguments);
            let text = String::from_utf8(out).expect("a line is ASCII");
            let line = text.strip_suffix("\r\n").expect("a line ends so");
            line.strip_prefix("+1339518083.007412 [3 127.0.0.1:60866] ").expect("a line begins so").to_owned()
        })
    }

    fn line_of(request: &str) -> String {
        line(&request.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Reference model of Redis's quoting, byte by byte.
    fn model(word: &[u8]) -> String {
        let one = |byte: &u8| match byte {
            b'\\' | b'"' => format!("\\{}", char::from(*byte)),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'\t' => "\\t".to_owned(),
            7 => "\\a".to_owned(),
            8 => "\\b".to_owned(),
            32..=126 => char::from(*byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
        format!("\"{}\"", word.iter().map(one).collect::<String>())
    }

    proptest! {
        #[test]
        fn words_are_quoted_as_redis_quotes_them(
            words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6),
        ) {
            // No command's name begins with `x` and this word, so nothing is hidden.
            let first = [b"x".as_slice(), &words[0]].concat();
            let words: Vec<&[u8]> =
                std::iter::once(first.as_slice()).chain(words[1..].iter().map(Vec::as_slice)).collect();
            let expected: Vec<String> = words.iter().map(|word| model(word)).collect();
            prop_assert_eq!(line(&words), expected.join(" "));
        }

        #[test]
        fn a_line_is_bounded_whatever_the_request(
            words in proptest::collection::vec((any::<u8>(), 0_usize..3 * MONITOR_ARGUMENT_BYTES_MAX), 1..200),
        ) {
            let words: Vec<Vec<u8>> = words.into_iter().map(|(byte, length)| vec![byte; length]).collect();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let most = 4 * MONITOR_REQUEST_BYTES_MAX + 64 * (MONITOR_ARGUMENTS_MAX + 1);
            prop_assert!(line(&words).len() <= most);
        }
    }

    #[test]
    fn long_words_and_many_say_what_is_missing() {
        let long = vec![b'a'; MONITOR_ARGUMENT_BYTES_MAX + 7];
        let shown = "a".repeat(MONITOR_ARGUMENT_BYTES_MAX);
        assert_eq!(line(&[b"SET", b"k", &long]), format!("\"SET\" \"k\" \"{shown}... (7 more bytes)\""));
        assert_eq!(
            line(&[b"SET", b"k", &long[7..]]),
            format!("\"SET\" \"k\" \"{shown}\""),
            "a word of just the length is whole"
        );
        let many = vec![b"k".as_slice(); MONITOR_ARGUMENTS_MAX + 3];
        let told = line(&many);
        assert!(told.ends_with(" \"k\" \"... (3 more arguments)\""), "{told}");
        assert_eq!(told.matches("\"k\"").count(), MONITOR_ARGUMENTS_MAX);
        assert_eq!(line(&many[3..]).matches("\"k\"").count(), MONITOR_ARGUMENTS_MAX);
        let large = vec![long[7..].as_ref(); MONITOR_REQUEST_BYTES_MAX / MONITOR_ARGUMENT_BYTES_MAX + 2];
        assert!(line(&large).ends_with("\" \"... (2 more arguments)\""));
    }

    #[test]
    fn times_have_six_digits_behind_the_point() {
        for (micros, text) in [
            (0, "+0.000000 [0 weir:0] "),
            (1_000_001, "+1.000001 [0 weir:0] "),
            (1_339_518_083_107_412, "+1339518083.107412 [0 weir:0] "),
        ] {
            let mut out = Vec::new();
            write_left_out(&mut out, micros, 120);
            assert_eq!(String::from_utf8_lossy(&out), format!("{text}\"... 120 lines left out\"\r\n"));
        }
    }

    #[test]
    fn no_password_is_shown_however_it_is_sent() {
        for (request, shown) in [
            ("AUTH secret", "AUTH #"),
            ("auth acme secret", "auth # #"),
            ("AUTH acme secret secret", "AUTH # # #"),
            ("HELLO 3 AUTH acme secret", "HELLO 3 AUTH # #"),
            ("HELLO 3 auth acme secret SETNAME me", "HELLO 3 auth # # SETNAME me"),
            ("HELLO 3 SETNAME me AUTH acme secret", "HELLO 3 SETNAME me AUTH # #"),
            ("HELLO 3 SETNAME AUTH AUTH acme secret", "HELLO 3 SETNAME AUTH AUTH # #"),
            ("HELLO 3 AUTH AUTH secret", "HELLO 3 AUTH # #"),
            ("HELLO 3 AUTH secret", "HELLO 3 AUTH #"),
            ("HELLO 3 acme secret", "HELLO 3 # #"),
            ("HELLO secret", "HELLO #"),
            ("HELLO AUTH acme secret", "HELLO AUTH # #"),
            ("QOS EXPLAIN AUTH acme secret", "QOS EXPLAIN AUTH # #"),
            ("QOS EXPLAIN HELLO 3 AUTH acme secret", "QOS EXPLAIN HELLO 3 AUTH # #"),
            ("QOS COLL auth secret", "QOS COLL auth #"),
        ] {
            let expected: Vec<String> = shown
                .split(' ')
                .map(|word| format!("\"{}\"", if word == "#" { "(redacted)" } else { word }))
                .collect();
            assert_eq!(line_of(request), expected.join(" "));
        }
        assert_eq!(line_of("SET AUTH secret"), "\"SET\" \"AUTH\" \"secret\"", "which is no password");
    }

    #[test]
    fn commands_that_administer_are_not_shown() {
        let is = |request: &str| {
            with_words(&request.split(' ').map(str::as_bytes).collect::<Vec<_>>(), |arguments| {
                is_shown(recognise(arguments).ok(), arguments)
            })
        };
        for request in
            ["MONITOR", "CONFIG SET requirepass x", "CLIENT LIST", "QOS CALL AUTH x", "qos call GET a"]
        {
            assert!(!is(request), "{request}");
        }
        for request in [
            "GET call",
            "EVAL x 0",
            "FCALL x 0",
            "QOS LIMITS",
            "QOS EXPLAIN GET a",
            "CLIENT ID",
            "no-such call",
            "AUTH x",
        ] {
            assert!(is(request), "{request}");
        }
    }

    #[test]
    fn words_of_a_request_need_not_be_text() {
        let places = [Argument { start: 0, length: 2 }];
        let mut out = Vec::new();
        write_line(&mut out, &HEADING, None, &Arguments::new(b"\xff\"", &places));
        assert!(out.ends_with(b"] \"\\xff\\\"\"\r\n"));
    }
}
