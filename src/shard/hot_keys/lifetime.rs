//! How long the reply to a read stays true while the key is not written: until the key expires (`PTTL`), or a field of
//! its hash does (`HPTTL`, Redis 7.4 and Valkey 9). The store is asked for both right before the read.

use std::time::Duration;

use crate::protocol::encode;
use crate::protocol::reply::{elements, integer, text};
use crate::shard::outcome::Outcome;
use crate::values::{BackendId, Timestamp};

/// Maximum number of fields whose expiry the store is asked for before one read. For a read of more fields,
/// their expiry counts as unknown.
const FIELDS_MAX: usize = 128;
/// Commands that read only the hash fields that they name after the key.
const NAMING_FIELDS: [&[u8]; 4] = [b"HGET", b"HMGET", b"HEXISTS", b"HSTRLEN"];
/// A time that stands for no expiry: longer than any that matters, and short enough to be added to any other.
const ENDLESS: Duration = Duration::from_secs(u32::MAX as u64);
/// The time for which a store that has shown that it has no fields that expire is not asked about them again.
const BELIEVED: Duration = Duration::from_secs(60);
/// The beginning of the error (without `-`) of a store that does not know a command.
const UNKNOWN_COMMAND: &[u8] = b"ERR unknown command";

/// The time until a key or field expires, counted from when the store was asked (PTTL, HPTTL).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Left {
    /// The store was not asked, or its reply was not a valid number, or none came.
    #[default]
    Unknown,
    /// The store has replied that there is no such key.
    NoKey,
    /// The key, or the field, does not expire: the store has replied so, has no such field, or does not know HPTTL, or
    /// the read is not about a hash.
    Endless,
    For(Duration),
}

/// The commands sent before a fetch (shared read of a hot key) to learn how long its reply is valid (PTTL,
/// HPTTL), and the store's replies to them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lifetime {
    questions: usize,
    answers: usize,
    key: Left,
    /// The earliest expiry of the hash fields that the reply is about; `Endless` for a reply about no hash.
    fields: Left,
}

impl Lifetime {
    /// Appends to `out` the commands that are sent before a read (`frame`): PTTL for its key and, if
    /// `fields_expire` at its store, HPTTL for the fields that it names. Returns the record of these
    /// commands, to which their replies are added.
    pub fn ask(out: &mut Vec<u8>, (key, frame): (&[u8], &[u8]), fields_expire: bool) -> Self {
        encode::request(out, [b"PTTL".as_slice(), key].into_iter());
        if !fields_expire || !may_be_about_hash(frame) {
            return Self { questions: 1, fields: Left::Endless, ..Self::default() };
        }
        let Some(fields) = fields_of(frame) else { return Self { questions: 1, ..Self::default() } };
        let count = fields.len().to_string();
        let mut words = vec![b"HPTTL".as_slice(), key, b"FIELDS", count.as_bytes()];
        words.extend(fields);
        encode::request(out, words.into_iter());
        Self { questions: 2, ..Self::default() }
    }

    /// Returns the number of commands (PTTL, HPTTL) that are sent right before the read to learn how long its
    /// reply is valid: 0 to 2.
    pub fn questions(&self) -> usize {
        self.questions
    }

    /// Records that the read was sent, with the commands before it (PTTL, HPTTL), so that the next reply is
    /// the one to the first of these.
    pub fn handle_sent(&mut self) {
        self.answers = 0;
    }

    /// Takes the store's reply (`told`) to the next of the commands that were sent before the read (PTTL,
    /// HPTTL). True if the store does not know HPTTL, so that its hash fields never expire.
    pub fn handle_answer(&mut self, outcome: Outcome, told: &[u8]) -> bool {
        let was_served = matches!(outcome, Outcome::Served { .. });
        self.answers += 1;
        if self.answers == 1 {
            self.key = if was_served { key_left(told) } else { Left::Unknown };
            return false;
        }
        let is_unknown = text(told).is_some_and(|error| error.starts_with(UNKNOWN_COMMAND));
        self.fields = match fields_left(told) {
            _ if is_unknown => Left::Endless,
            left if was_served => left,
            _ => Left::Unknown,
        };
        is_unknown
    }

    /// Returns the time, from the sending of the read, for which its reply is valid unless the key is written: until
    /// the key, or a field with a known expiry, expires; many years if nothing does. Zero if the key's expiry is
    /// unknown, or if there was no key but the reply does not look like that of a store without it (`is_of_none`).
    /// Fields whose expiry is unknown ([`Self::may_lose_fields`]) are left out.
    pub fn left(&self, is_of_none: bool) -> Duration {
        let of_key = match self.key {
            Left::Endless => ENDLESS,
            Left::For(left) => left,
            Left::NoKey if is_of_none => ENDLESS,
            Left::NoKey | Left::Unknown => Duration::ZERO,
        };
        of_key.min(self.fields.known())
    }

    /// True if the key, or a field that the reply is about, is known to have expired when `elapsed` has passed since
    /// the read was sent.
    pub fn has_ended(&self, elapsed: Duration) -> bool {
        elapsed >= self.key.known().min(self.fields.known())
    }

    /// True if hash fields that the reply is about may expire at a time that is not known.
    pub fn may_lose_fields(&self) -> bool {
        self.fields == Left::Unknown
    }
}

impl Left {
    fn known(self) -> Duration {
        if let Self::For(left) = self { left } else { ENDLESS }
    }

    /// Reads a store's reply (`answer`) to PTTL, or an element of that to HPTTL, in milliseconds (-1: no expiry);
    /// `missing` is returned for -2, the reply of a store without such a key or field.
    fn of(answer: &[u8], missing: Self) -> Self {
        match integer(answer) {
            Some(-1) => Self::Endless,
            Some(-2) => missing,
            Some(left) if left >= 0 => Self::For(Duration::from_millis(left.unsigned_abs()).min(ENDLESS)),
            _ => Self::Unknown,
        }
    }
}

/// Stores that are known to have no hash fields that expire (Redis before 7.4, Valkey before 9), each until
/// it is asked again, since another server may have taken its place.
#[derive(Debug, Default)]
pub struct FieldExpiry(Vec<(BackendId, Timestamp)>);

impl FieldExpiry {
    /// True unless the store has shown in the last minute that its hash fields never expire, as it does not know
    /// `HPTTL`.
    pub fn may_expire(&self, backend: BackendId, now: Timestamp) -> bool {
        !self.0.iter().any(|(own, until)| *own == backend && now < *until)
    }

    /// Records that hash fields never expire at a store, so that HPTTL is not sent to it for a minute.
    pub fn handle_never_expire(&mut self, backend: BackendId, now: Timestamp) {
        self.forget(backend);
        self.0.push((backend, now.after(BELIEVED)));
    }

    /// Forgets what is known about a store's hash fields that expire, because another server may have
    /// replaced it.
    pub fn forget(&mut self, backend: BackendId) {
        self.0.retain(|(own, _)| *own != backend);
    }
}

fn key_left(told: &[u8]) -> Left {
    Left::of(told, Left::NoKey)
}

/// Returns the earliest expiry among the fields in a reply (`told`) to `HPTTL`; unknown if that of any field is. A
/// field that is missing does not expire.
fn fields_left(told: &[u8]) -> Left {
    let Some(answers) = elements(told) else { return Left::Unknown };
    answers.map(|answer| Left::of(answer, Left::Endless)).fold(Left::Endless, |earliest, left| {
        match (earliest, left) {
            (Left::Unknown, _) | (_, Left::Unknown) => Left::Unknown,
            (earliest, left) if left.known() < earliest.known() => left,
            (earliest, _) => earliest,
        }
    })
}

/// True for a command (`frame`) that reads a hash, or that reads whether there is one: a hash ends with its last field.
/// Among the commands whose replies may be kept, the names of those about hashes alone begin with an H.
fn may_be_about_hash(frame: &[u8]) -> bool {
    let name = elements(frame).and_then(|mut words| text(words.next()?)).unwrap_or_default();
    matches!(name.first(), Some(b'h' | b'H'))
        || name.eq_ignore_ascii_case(b"exists")
        || name.eq_ignore_ascii_case(b"type")
}

/// Returns the hash fields that a request (`frame`) names, if its reply is about these alone and they are
/// at most 128; else None.
fn fields_of(frame: &[u8]) -> Option<Vec<&[u8]>> {
    let mut words = elements(frame)?;
    let name = text(words.next()?)?;
    if !NAMING_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return None;
    }
    let fields: Vec<&[u8]> = words.skip(1).map_while(text).take(FIELDS_MAX + 1).collect();
    (1..=FIELDS_MAX).contains(&fields.len()).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(words: &str) -> Vec<u8> {
        let mut frame = Vec::new();
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        encode::request(&mut frame, words.into_iter());
        frame
    }

    fn asked(words: &str, fields_expire: bool) -> (String, Lifetime) {
        let mut out = Vec::new();
        let own = Lifetime::ask(&mut out, (b"k", &frame(words)), fields_expire);
        let words = String::from_utf8(out).unwrap();
        let words = words.split("\r\n").filter(|part| !part.is_empty() && !part.starts_with(['*', '$']));
        (words.collect::<Vec<_>>().join(" "), own)
    }

    fn told(words: &str, answers: &[&str]) -> Lifetime {
        let mut own = asked(words, true).1;
        assert_eq!(own.questions(), answers.len(), "{words}");
        for answer in answers {
            own.handle_answer(Outcome::answered(answer.len()), answer.as_bytes());
        }
        own
    }

    #[test]
    fn questions_are_about_the_key_and_the_fields_that_the_read_names() {
        for (words, questions) in [
            ("GET k", "PTTL k"),
            ("LRANGE k 0 1", "PTTL k"),
            ("HGET k a", "PTTL k HPTTL k FIELDS 1 a"),
            ("hmget k a b", "PTTL k HPTTL k FIELDS 2 a b"),
            ("HEXISTS k a", "PTTL k HPTTL k FIELDS 1 a"),
            ("HSTRLEN k a", "PTTL k HPTTL k FIELDS 1 a"),
            ("HGETALL k", "PTTL k"),
            ("EXISTS k", "PTTL k"),
            ("type k", "PTTL k"),
        ] {
            assert_eq!(asked(words, true).0, questions);
            assert_eq!(asked(words, false).0, "PTTL k");
            let is_hash = words.starts_with(['H', 'h', 'E', 't']);
            assert_eq!(
                (asked(words, true).1.may_lose_fields(), asked(words, false).1.may_lose_fields()),
                (is_hash, false)
            );
        }
        let many = format!("HMGET k{}", " f".repeat(FIELDS_MAX));
        assert_eq!(asked(&many, true).1.questions(), 2);
        assert_eq!(asked(&(many + " f"), true).1.questions(), 1);
    }

    #[test]
    fn a_reply_holds_until_the_first_thing_expires_that_it_is_about() {
        let ms = Duration::from_millis;
        for (words, answers, left) in [
            ("GET k", &[":-1\r\n"] as &[&str], ENDLESS),
            ("GET k", &[":250\r\n"], ms(250)),
            ("GET k", &[":-2\r\n"], Duration::ZERO),
            ("GET k", &["-NOPERM no\r\n"], Duration::ZERO),
            ("HGET k a", &[":-1\r\n", "*1\r\n:-1\r\n"], ENDLESS),
            ("HGET k a", &[":-1\r\n", "*1\r\n:-2\r\n"], ENDLESS),
            ("HMGET k a b", &[":-1\r\n", "*2\r\n:-1\r\n:90\r\n"], ms(90)),
            ("HMGET k a b", &[":-1\r\n", "*2\r\n:70\r\n:90\r\n"], ms(70)),
            ("HMGET k a b", &[":50\r\n", "*2\r\n:70\r\n:90\r\n"], ms(50)),
            ("HGET k a", &[":500\r\n", "-ERR unknown command 'HPTTL'\r\n"], ms(500)),
            ("HGETALL k", &[":500\r\n"], ms(500)),
        ] {
            let own = told(words, answers);
            assert_eq!(own.left(false), left, "{words} {answers:?}");
            let known = if left.is_zero() { ENDLESS } else { left };
            assert!(own.has_ended(known), "{words} {answers:?}");
            assert!(!own.has_ended(known.saturating_sub(ms(1))), "{words} {answers:?}");
        }
        assert_eq!(told("GET k", &[":-2\r\n"]).left(true), ENDLESS);
        assert_eq!(told("HGET k a", &[":-2\r\n", "*1\r\n:-2\r\n"]).left(true), ENDLESS);
    }

    #[test]
    fn a_store_without_fields_that_expire_is_asked_again_after_a_minute() {
        let (mut own, now) = (FieldExpiry::default(), Timestamp::ZERO.after(BELIEVED));
        own.handle_never_expire(BackendId(3), now);
        own.handle_never_expire(BackendId(3), now);
        assert!(!own.may_expire(BackendId(3), now) && own.may_expire(BackendId(2), now));
        assert!(own.may_expire(BackendId(3), now.after(BELIEVED)));
        own.forget(BackendId(3));
        assert!(own.may_expire(BackendId(3), now));
    }

    #[test]
    fn fields_are_unknown_unless_the_store_answers_for_each() {
        for (answer, is_unknown, may_lose_fields) in [
            ("*1\r\n:-1\r\n", false, false),
            ("-ERR unknown command 'HPTTL', with args beginning with: 'k'\r\n", true, false),
            ("-NOPERM this user has no permissions\r\n", false, true),
            ("-WRONGTYPE no\r\n", false, true),
            ("*1\r\n$-1\r\n", false, true),
        ] {
            let mut own = told("HGET k a", &[":-1\r\n", "*1\r\n:5\r\n"]);
            own.handle_sent();
            assert!(!own.handle_answer(Outcome::answered(5), b":-1\r\n"));
            assert_eq!(own.handle_answer(Outcome::answered(answer.len()), answer.as_bytes()), is_unknown);
            assert_eq!((own.may_lose_fields(), own.left(false)), (may_lose_fields, ENDLESS), "{answer}");
        }
    }
}
