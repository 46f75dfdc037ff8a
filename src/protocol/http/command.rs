//! Translation of an HTTP request into RESP commands, which weir then handles like those of any other client.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::head::{Head, Method, Target};
use super::{Kind, Status};
use crate::protocol::{call, encode};
use crate::values::limits::{HTTP_COMMANDS_MAX, HTTP_WORDS_MAX};

/// Error text for commands that are refused over HTTP because they are about a connection or need one to a
/// store to themselves (such as `BLPOP`).
pub const OF_CONNECTIONS: &str = "that command is about a connection, and a request of HTTP has none of its own: Authorization, X-Weir-User, -Tier and \
     -Deadline-Ms say who asks, X-Weir-Database which database, /multi-exec is a transaction";

/// Writes the commands of an HTTP request (`head` and `body`) as RESP to `frames`, and returns how their
/// replies become the response. The error is the refusal sent to the client.
pub fn encode_commands(head: &Head, body: &[u8], frames: &mut Vec<u8>) -> Result<Kind, Status> {
    match &head.target {
        Target::Key(key, query) => of_key(head.method, key, query, body, frames),
        Target::Command => {
            write_all(std::iter::once(body), frames)?;
            Ok(Kind::Command)
        }
        Target::Pipeline => {
            let commands = commands(body)?;
            write_all(commands.iter().map(|words| words.get().as_bytes()), frames)?;
            Ok(Kind::Pipeline { left: commands.len(), first: true })
        }
        Target::Transaction => {
            let commands = commands(body)?;
            request(frames, &[b"MULTI"]);
            write_all(commands.iter().map(|words| words.get().as_bytes()), frames)?;
            request(frames, &[b"EXEC"]);
            Ok(Kind::Transaction { left: commands.len() + 1 })
        }
    }
}

fn request(frames: &mut Vec<u8>, words: &[&[u8]]) {
    encode::request(frames, words.iter().copied());
}

fn of_key(
    method: Method,
    key: &[u8],
    query: &str,
    body: &[u8],
    frames: &mut Vec<u8>,
) -> Result<Kind, Status> {
    let no_query = || if query.is_empty() { Ok(()) } else { Err(Status::BadRequest("only PUT takes ?ttl=")) };
    match method {
        // A preflight is answered when its head is there, before commands.
        Method::Get | Method::Head | Method::Preflight { .. } => {
            no_query()?;
            request(frames, &[b"GET", key]);
            Ok(Kind::Get)
        }
        Method::Delete => {
            no_query()?;
            request(frames, &[b"DEL", key]);
            Ok(Kind::Delete)
        }
        Method::Put | Method::Post => {
            if query.is_empty() {
                request(frames, &[b"SET", key, body]);
                return Ok(Kind::Put);
            }
            let wanted = Status::BadRequest(
                "?ttl= is expected with a time from 1ms on, such as 60, 60s, 500ms, 5m, 1h or 1d",
            );
            let millis = query.strip_prefix("ttl=").and_then(millis_of).ok_or(wanted)?;
            request(frames, &[b"SET", key, body, b"PX", millis.to_string().as_bytes()]);
            Ok(Kind::Put)
        }
    }
}

/// Reads a duration: a number of seconds, or a number with its unit (ms, s, m, h, d). Returns milliseconds;
/// `None` for any other text, and for a time of 0 or above 2^62 ms.
fn millis_of(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number
        .parse::<u64>()
        .ok()?
        .checked_mul(factor)
        .filter(|millis| (1..=i64::MAX as u64 / 2).contains(millis))
}

/// Reader of the elements of a JSON array, which gives up at element `most` + 1: what follows in an array that
/// is too long costs nothing.
struct Elements<'e, 'a> {
    kept: &'e mut Vec<&'a RawValue>,
    most: usize,
}

impl<'de: 'a, 'a> DeserializeSeed<'de> for Elements<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Elements<'_, 'a> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an array")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut elements: S) -> Result<(), S::Error> {
        while let Some(element) = elements.next_element::<&RawValue>()? {
            self.kept.push(element);
            if self.kept.len() > self.most {
                return Err(S::Error::custom("too many elements"));
            }
        }
        Ok(())
    }
}

/// Returns the elements of the JSON array `text`. The error is the refusal of more than `most` elements, or of
/// any other text.
fn elements(text: &[u8], most: usize) -> Result<Vec<&RawValue>, Status> {
    let wanted =
        Status::BadRequest("a JSON array is expected: [\"SET\",\"k\",\"v\"], or several of them in one");
    let (mut kept, mut json) = (Vec::new(), serde_json::Deserializer::from_slice(text));
    let read = Elements { kept: &mut kept, most }.deserialize(&mut json).and_then(|()| json.end());
    if kept.len() > most {
        return Err(Status::ContentTooLarge);
    }
    read.map(|()| kept).map_err(|_| wanted)
}

fn commands(body: &[u8]) -> Result<Vec<&RawValue>, Status> {
    let commands = elements(body, HTTP_COMMANDS_MAX)?;
    if commands.is_empty() {
        Err(Status::BadRequest("at least one command is expected"))
    } else {
        Ok(commands)
    }
}

/// Writes all commands of a request as RESP to `frames`, each from a JSON array. The error is the refusal of
/// the first that is wrong, or of too many words in all.
fn write_all<'a>(commands: impl Iterator<Item = &'a [u8]>, frames: &mut Vec<u8>) -> Result<(), Status> {
    let mut words_left = HTTP_WORDS_MAX;
    for text in commands {
        command(text, &mut words_left, frames)?;
    }
    Ok(())
}

/// Encodes one command as RESP, appended to `frames`, from a JSON array (`text`) of strings, numbers, true
/// and false. Subtracts its number of words from `words_left`, the limit that all commands of the HTTP
/// request share. The error is the refusal of any other text, of a missing or empty name, of too many words,
/// and of a command that is about its connection or needs one to a store to itself.
fn command(text: &[u8], words_left: &mut usize, frames: &mut Vec<u8>) -> Result<(), Status> {
    let words = elements(text, *words_left)?;
    *words_left -= words.len();
    let words =
        words.iter().map(|word| word_of(word.get())).collect::<Result<Vec<Cow<'_, str>>, Status>>()?;
    if words.first().is_none_or(|name| name.is_empty()) {
        return Err(Status::BadRequest("a command begins with its name"));
    }
    if call::is_about_connection(words.iter().map(|word| word.as_bytes())) {
        return Err(Status::BadRequest(OF_CONNECTIONS));
    }
    encode::request(frames, words.iter().map(|word| word.as_bytes()));
    Ok(())
}

fn word_of(raw: &str) -> Result<Cow<'_, str>, Status> {
    match raw.as_bytes().first() {
        Some(b'"') => {
            let text: String =
                serde_json::from_str(raw).map_err(|_| Status::BadRequest("a text is malformed"))?;
            Ok(Cow::Owned(text))
        }
        Some(b'-' | b'0'..=b'9' | b't' | b'f') => Ok(Cow::Borrowed(raw)),
        _ => Err(Status::BadRequest("a command is made of texts and numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::http::head::Length;
    use crate::protocol::http::{Host, Source};

    fn head(method: Method, target: Target) -> Head {
        Head {
            method,
            target,
            host: Host::Address,
            source: Source::Unsaid,
            origin: None,
            is_json: true,
            length: Length::Known(0),
            waits: false,
            keeps: true,
            is_modern: true,
            authorization: None,
            options: Vec::new(),
            database: 0,
            in_base64: false,
        }
    }

    fn commands_of(target: Target, body: &str) -> Result<String, Status> {
        let method = if matches!(target, Target::Key(..)) { Method::Put } else { Method::Post };
        let mut frames = Vec::new();
        encode_commands(&head(method, target), body.as_bytes(), &mut frames)?;
        Ok(String::from_utf8(frames).expect("text").replace("\r\n", " "))
    }

    #[test]
    fn arrays_are_commands() {
        let one = |body| commands_of(Target::Command, body);
        assert_eq!(one(r#"["SET", "k", 1.50]"#).as_deref(), Ok("*3 $3 SET $1 k $4 1.50 "));
        assert_eq!(one(r#"["SET","ä\n",true]"#).as_deref(), Ok("*3 $3 SET $3 ä\n $4 true "));
        assert_eq!(one(r#"["GET","\ud83d\ude00"]"#).as_deref(), Ok("*2 $3 GET $4 😀 "));
        let many = commands_of(Target::Pipeline, r#"[["GET","a"],["GET","b"]]"#);
        assert_eq!(many.as_deref(), Ok("*2 $3 GET $1 a *2 $3 GET $1 b "));
        let block = commands_of(Target::Transaction, r#"[["INCR","a"]]"#);
        assert_eq!(block.as_deref(), Ok("*1 $5 MULTI *2 $4 INCR $1 a *1 $4 EXEC "));
        for body in [
            "",
            "{}",
            "[]",
            "[[]]",
            "[\"\"]",
            "[null]",
            "[[\"GET\"]]",
            "[\"GET\",{}]",
            "[\"GET\",\"\\ud800\"]",
            "[\"GET\"",
            "[\"GET\"]x",
            "[\"auth\",\"a\"]",
            "[\"Multi\"]",
            "[\"QOS\",\"set\",\"TIER\",\"batch\"]",
            "[\"HELLO\",3]",
            "[\"qos\",\"Call\",\"multi\"]",
            "[\"QOS\",\"CALL\",\"TIER\",\"batch\",\"QOS\",\"CALL\",\"QUIT\"]",
            "\"GET\"",
        ] {
            assert!(matches!(one(body), Err(Status::BadRequest(_))), "{body}");
        }
        assert!(matches!(commands_of(Target::Pipeline, "[]"), Err(Status::BadRequest(_))));
        let many = format!("[{}]", vec!["[\"PING\"]"; HTTP_COMMANDS_MAX + 1].join(","));
        assert_eq!(commands_of(Target::Pipeline, &many), Err(Status::ContentTooLarge));
        let half = format!("[\"DEL\"{}]", ",1".repeat(HTTP_WORDS_MAX / 2));
        assert!(commands_of(Target::Command, &half).is_ok());
        let two = commands_of(Target::Pipeline, &format!("[{half},{half}]"));
        assert_eq!(two, Err(Status::ContentTooLarge), "of all commands together");
        let long = format!("[\"DEL\"{}]", ",1".repeat(HTTP_WORDS_MAX));
        assert_eq!(one(&long), Err(Status::ContentTooLarge));
        let broken_behind = |text: &str| format!("{}{{", &text[..text.len() - 1]);
        assert_eq!(one(&broken_behind(&long)), Err(Status::ContentTooLarge), "the rest is not read");
        assert_eq!(commands_of(Target::Pipeline, &broken_behind(&many)), Err(Status::ContentTooLarge));
    }

    #[test]
    fn keys_are_read_written_and_deleted() {
        let put = |query: &str| commands_of(Target::Key(b"k".to_vec(), query.to_owned()), "v");
        assert_eq!(put("").as_deref(), Ok("*3 $3 SET $1 k $1 v "));
        for (ttl, millis) in [
            ("60", "60000"),
            ("60s", "60000"),
            ("500ms", "500"),
            ("5m", "300000"),
            ("1h", "3600000"),
            ("1d", "86400000"),
        ] {
            let expected = format!("*5 $3 SET $1 k $1 v $2 PX ${} {millis} ", millis.len());
            assert_eq!(put(&format!("ttl={ttl}")), Ok(expected));
        }
        for query in [
            "ttl=",
            "ttl=0",
            "ttl=-1",
            "ttl=1.5",
            "ttl=1y",
            "ttl=99999999999999999999",
            "x=1",
            "ttl=1&x=2",
            "ttl=9223372036854775807",
        ] {
            assert!(matches!(put(query), Err(Status::BadRequest(_))), "{query}");
        }
        let mut frames = Vec::new();
        let key = Target::Key(b"a b".to_vec(), String::new());
        assert_eq!(encode_commands(&head(Method::Delete, key.clone()), b"", &mut frames), Ok(Kind::Delete));
        assert_eq!(encode_commands(&head(Method::Head, key), b"", &mut frames), Ok(Kind::Get));
        assert_eq!(frames, b"*2\r\n$3\r\nDEL\r\n$3\r\na b\r\n*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
    }
}
