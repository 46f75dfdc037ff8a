//! Commands that were sent to weir, and the operations on keys that follow from their replies.

use std::collections::BTreeMap;

use weir::protocol::reply;
use weir::values::Timestamp;
use weir_load::classify::{Ending, classify, error_text, may_have_happened};

use super::keys::Run;
use super::operation::{Act, Fate, Found, Operation, Token, Way};

/// The number of bytes of a reply that an explanation shows.
const SHOWN_BYTES_MAX: usize = 100;
/// The beginnings of errors that commands of a run may get, besides refusals of weir's: of a store without the
/// key or the element, of a transaction of which a command was refused, of a node that starts, fails over or
/// loses slots, and of limits and permissions that are configured.
const ERRORS: [&str; 19] = [
    "ERR no such key",
    "ERR index out of range",
    "EXECABORT ",
    "LOADING ",
    "READONLY ",
    "MASTERDOWN ",
    "NOREPLICAS ",
    "CLUSTERDOWN ",
    "MOVED ",
    "ASK ",
    "TRYAGAIN ",
    "BUSY ",
    "OOM ",
    "MISCONF ",
    "NOAUTH ",
    "NOPERM ",
    "ERR max number of clients",
    "ERR the reply is larger than",
    // Stores before Redis 7 put other errors of a script behind this.
    "ERR Error running script",
];
/// The beginning of the error of an EXEC whose MULTI was refused.
const NO_MULTI: &str = "ERR EXEC without MULTI";

/// A command that waits for its reply: its name, its effects on keys, the place of its result in the reply,
/// and the way in which it was sent.
#[derive(Debug)]
pub struct Asked {
    pub command: &'static str,
    pub effects: Vec<Effect>,
    pub expect: Expect,
    /// True if the command's keys may be on several stores, so that an error does not say whether some of
    /// them were changed.
    pub is_split: bool,
    /// True if the command counts in the run's table of commands; false for commands that only prepare or
    /// clean up.
    pub is_counted: bool,
    pub way: Way,
}

/// The effect of a command on one key. The `u16` is the key's index in the list of keys, a `Token` is the
/// number of the value written, and a `u32` is the lifetime of the value in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Read(u16),
    /// A read of the value that the same command removes or replaces; the field is the key's index.
    Take(u16),
    Write(u16, Token),
    /// A write whose value expires: the key's index, the number of the value, and its lifetime in
    /// milliseconds.
    WriteFor(u16, Token, u32),
    Delete(u16),
    Expire(u16, u32),
}

/// The reply that a command must get unless it gets an error, and the place of the result in it. Another reply
/// is recorded as broken, or as a read of bytes that are no value of this run.
#[derive(Debug)]
pub enum Expect {
    /// The reply is `OK`, and the command took effect.
    Ok,
    /// The reply is an integer, a length or a count that does not matter, and the command took effect.
    Number,
    /// The reply is an integer; the command had no effect if it is zero, else it took effect.
    NotZero,
    /// The reply is an integer, the number of removed keys; zero means that there was no key to remove, so that
    /// the command counts as a read that found nothing.
    Removed,
    /// The reply is that to MULTI, `OK`.
    Begun,
    /// The reply is `QUEUED`, since the command is in a transaction; any reply if the MULTI before it was
    /// refused, so that it was carried out at once.
    Queued,
    /// The reply is the value that was read.
    Value,
    /// The value that was read is the first element of the reply, an array.
    First,
    /// The value that was read is the second element of the reply, a map or an array.
    Second,
    /// The reply is an array with one value for each effect of the command.
    Each,
    /// The reply is a length or count; zero means that the key has no value, and any other number says
    /// nothing about the value.
    Count,
    /// The reply is that to EXEC: an array with the reply to each of these commands, in order.
    Block(Vec<Asked>),
}

/// The circumstances of a command: when it was sent (`asked`) and answered, the number of its connection
/// (`session`), and the command's number on that connection.
#[derive(Clone, Copy, Debug)]
pub struct Occasion {
    pub asked: Timestamp,
    pub answered: Timestamp,
    pub session: u32,
    pub number: u32,
}

/// The record of one client thread: operations, each with the index of its key, and counts of commands by name.
#[derive(Debug, Default)]
pub struct Log {
    pub operations: Vec<(u16, Operation)>,
    pub tally: BTreeMap<&'static str, Tally>,
    /// Descriptions of received bytes that cannot be the replies to the commands, such as bytes that are not RESP, a
    /// reply too many, an array of another length, or an error that no store in use gives.
    pub broken: Vec<String>,
    /// True if the last MULTI on the connection was accepted, so that the commands after it are queued. Its EXEC
    /// changes nothing here.
    is_in_block: bool,
}

/// Numbers of commands of one name, by how they ended: carried out, without effect, refused by weir, or
/// unknown (no reply, or an error after which the command may have taken effect).
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub done: u64,
    /// The number of commands that had no effect, or got an error of the store (not a refusal of weir's).
    pub in_vain: u64,
    pub refused: u64,
    pub unknown: u64,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.done += other.done;
        self.in_vain += other.in_vain;
        self.refused += other.refused;
        self.unknown += other.unknown;
    }
}

impl Asked {
    pub fn new(command: &'static str, effects: impl Into<Vec<Effect>>, expect: Expect) -> Self {
        let effects = effects.into();
        Self { command, effects, expect, is_split: false, is_counted: true, way: Way::Store }
    }

    /// Creates the record of a command that reads the key with this index, and that weir may answer without
    /// the store. `expect` says where in the reply the value is.
    pub fn plain(command: &'static str, key: u16, expect: Expect) -> Self {
        Self { way: Way::Plain, ..Self::new(command, [Effect::Read(key)], expect) }
    }

    /// Creates the record of a command whose effects are not checked, such as one that prepares a key; it is
    /// not counted.
    pub fn helper(command: &'static str, expect: Expect) -> Self {
        Self { is_counted: false, ..Self::new(command, [], expect) }
    }
}

impl Log {
    /// Records the reply to a command: its effects on keys, and how it ended. `run` tells this run's values
    /// from older ones. Returns true if the reply is a refusal of weir's, so that the connection should
    /// pause before it sends more.
    pub fn answer(&mut self, asked: &Asked, reply: &[u8], run: Run, occasion: Occasion) -> bool {
        let ending = classify(reply);
        if matches!(asked.expect, Expect::Begun) {
            self.is_in_block = ending == Ending::Served;
        }
        if ending == Ending::Served {
            self.serve(asked, reply, run, occasion);
            return false;
        }
        if ending == Ending::Error {
            self.check_error(asked, reply);
        }
        let fate = fate(error_text(reply), asked.is_split);
        self.fail(asked, fate, occasion);
        self.count(asked, |tally| match (fate, ending) {
            (Fate::Unknown, _) => tally.unknown += 1,
            (_, Ending::Error) => tally.in_vain += 1,
            _ => tally.refused += 1,
        });
        ending != Ending::Error
    }

    /// Records a command whose reply never came, so that it may have taken effect at any time or never.
    pub fn lose(&mut self, asked: &Asked, occasion: Occasion) {
        self.fail(asked, Fate::Unknown, occasion);
        self.count(asked, |tally| tally.unknown += 1);
    }

    /// Records an error reply, which is no refusal of weir's, as broken, unless its text begins as one of [`ERRORS`] or
    /// says that there was no MULTI where that was refused.
    fn check_error(&mut self, asked: &Asked, reply: &[u8]) {
        let error = error_text(reply);
        let is_possible = ERRORS.iter().any(|start| error.starts_with(start.as_bytes()))
            || (error.starts_with(NO_MULTI.as_bytes()) && !self.is_in_block);
        if !is_possible {
            self.note_broken(asked, reply);
        }
    }

    fn note_broken(&mut self, asked: &Asked, reply: &[u8]) {
        let shown = reply[..reply.len().min(SHOWN_BYTES_MAX)].escape_ascii();
        self.broken.push(format!("{} was answered {shown}", asked.command));
    }

    fn serve(&mut self, asked: &Asked, reply: &[u8], run: Run, occasion: Occasion) {
        let is_reply = match &asked.expect {
            Expect::Ok | Expect::Begun => reply == b"+OK\r\n",
            Expect::Queued => !self.is_in_block || reply == b"+QUEUED\r\n",
            Expect::Number | Expect::NotZero | Expect::Removed => reply::integer(reply).is_some(),
            // Values are judged with the history of their key, and arrays by their length.
            _ => true,
        };
        if !is_reply {
            self.note_broken(asked, reply);
            return self.lose(asked, occasion);
        }
        let happened = match &asked.expect {
            Expect::NotZero if reply::integer(reply) == Some(0) => {
                self.fail(asked, Fate::Never, occasion);
                false
            }
            Expect::Removed if reply::integer(reply) == Some(0) => {
                let looked = |effect: &Effect| match effect {
                    Effect::Delete(key) => Effect::Read(*key),
                    other => *other,
                };
                for effect in &asked.effects {
                    self.note(asked, looked(effect), Some(Found::Nil), Fate::Done, occasion);
                }
                false
            }
            Expect::Ok
            | Expect::Number
            | Expect::NotZero
            | Expect::Removed
            | Expect::Begun
            | Expect::Queued => self.apply(asked, None, occasion),
            Expect::Value => self.apply(asked, found(reply, run), occasion),
            Expect::First => self.apply(asked, element(reply, 0, run), occasion),
            Expect::Second => self.apply(asked, element(reply, 1, run), occasion),
            Expect::Each => {
                let elements = self.elements(asked, reply, asked.effects.len());
                for (effect, element) in asked.effects.iter().zip(elements) {
                    if classify(element) == Ending::Error {
                        self.check_error(asked, element);
                    }
                    self.note(asked, *effect, found(element, run), Fate::Done, occasion);
                }
                true
            }
            Expect::Count => match reply::integer(reply) {
                Some(0) => self.apply(asked, Some(Found::Nil), occasion),
                // The size of a value does not tell which value it is.
                Some(_) => true,
                None => self.apply(asked, Some(Found::Strange), occasion),
            },
            Expect::Block(block) => {
                let mut elements = self.elements(asked, reply, block.len()).into_iter();
                for each in block {
                    match elements.next() {
                        Some(element) => _ = self.answer(each, element, run, occasion),
                        None => self.lose(each, occasion),
                    }
                }
                true
            }
        };
        self.count(asked, |tally| if happened { tally.done += 1 } else { tally.in_vain += 1 });
    }

    /// Returns the elements of a reply that must be an array of `count` elements. Any other reply is recorded as
    /// broken; none are returned if it is no array.
    fn elements<'a>(&mut self, asked: &Asked, reply: &'a [u8], count: usize) -> Vec<&'a [u8]> {
        let elements: Option<Vec<&[u8]>> = reply::elements(reply).map(Iterator::collect);
        if elements.as_ref().is_none_or(|elements| elements.len() != count) {
            let shown = reply[..reply.len().min(SHOWN_BYTES_MAX)].escape_ascii();
            self.broken.push(format!("{} of {count}: {shown}", asked.command));
        }
        elements.unwrap_or_default()
    }

    fn apply(&mut self, asked: &Asked, found: Option<Found>, occasion: Occasion) -> bool {
        for effect in &asked.effects {
            self.note(asked, *effect, found, Fate::Done, occasion);
        }
        true
    }

    fn fail(&mut self, asked: &Asked, fate: Fate, occasion: Occasion) {
        for effect in &asked.effects {
            self.note(asked, *effect, None, fate, occasion);
        }
        if let Expect::Block(block) = &asked.expect {
            block.iter().for_each(|each| self.fail(each, fate, occasion));
        }
    }

    fn note(&mut self, asked: &Asked, effect: Effect, found: Option<Found>, fate: Fate, occasion: Occasion) {
        let (key, act) = match effect {
            Effect::Write(key, token) => (key, Act::Write { token, lives_ms: 0 }),
            Effect::WriteFor(key, token, lives_ms) => (key, Act::Write { token, lives_ms }),
            // There was nothing to delete, and the read of nothing is recorded already.
            Effect::Delete(_) if found == Some(Found::Nil) => return,
            Effect::Delete(key) => (key, Act::Delete),
            Effect::Expire(key, lives_ms) => match found {
                Some(Found::Value(token)) => (key, Act::Expire { token: Some(token), lives_ms }),
                _ if fate == Fate::Unknown => (key, Act::Expire { token: None, lives_ms }),
                _ => return,
            },
            Effect::Read(key) | Effect::Take(key) => {
                let Some(found) = found else { return };
                (key, if effect == Effect::Take(key) { Act::Take(found) } else { Act::Read(found) })
            }
        };
        let Occasion { asked: began, answered, session, number } = occasion;
        let answered = if fate == Fate::Unknown { Timestamp::MAX } else { answered };
        let (command, way) = (asked.command, asked.way);
        let operation = Operation { asked: began, answered, session, number, command, act, fate, way };
        self.operations.push((key, operation));
    }

    fn count(&mut self, asked: &Asked, add: impl FnOnce(&mut Tally)) {
        if asked.is_counted {
            add(self.tally.entry(asked.command).or_default());
        }
    }
}

/// Reads from an error reply whether its command may have taken effect at the store. `is_split` is true if
/// weir splits the command among stores, so that a part of it may have taken effect.
fn fate(error: &[u8], is_split: bool) -> Fate {
    // If MULTI was refused, the commands of the block were carried out one by one.
    let is_no_block = error.starts_with(NO_MULTI.as_bytes());
    if is_split || is_no_block || may_have_happened(error) { Fate::Unknown } else { Fate::Never }
}

/// Reads the value in a reply or in one element of a reply; a null or empty one counts as no value
/// (`Found::Nil`). `None` for an error. `run` tells this run's values from other bytes.
fn found(reply: &[u8], run: Run) -> Option<Found> {
    if is_nothing(reply) {
        return Some(Found::Nil);
    }
    match reply.first() {
        Some(b'-' | b'!') | None => None,
        Some(_) => Some(reply::text(reply).map_or(Found::Strange, |text| run.read(text))),
    }
}

fn element(reply: &[u8], place: usize, run: Run) -> Option<Found> {
    if is_nothing(reply) {
        return Some(Found::Nil);
    }
    match reply::names_and_values(reply).and_then(|mut elements| elements.nth(place)) {
        Some(element) => found(element, run),
        None => Some(Found::Strange),
    }
}

/// True if a reply is null or empty, in RESP2 or RESP3.
fn is_nothing(reply: &[u8]) -> bool {
    matches!(reply, b"$-1\r\n" | b"_\r\n" | b"*-1\r\n" | b"*0\r\n" | b"%0\r\n" | b"$0\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = Run(0xa);
    const OCCASION: Occasion = Occasion {
        asked: Timestamp::from_millis(1),
        answered: Timestamp::from_millis(2),
        session: 1,
        number: 1,
    };

    fn acts(asked: &Asked, reply: &str) -> Vec<(Act, Fate)> {
        let mut log = Log::default();
        log.answer(asked, reply.as_bytes(), RUN, OCCASION);
        log.operations.iter().map(|(_, operation)| (operation.act, operation.fate)).collect()
    }

    #[test]
    fn where_the_value_is() {
        let seven = (Act::Read(Found::Value(7)), Fate::Done);
        let nil = (Act::Read(Found::Nil), Fate::Done);
        for (expect, reply, expected) in [
            (Expect::Value, "$6\r\na.7.0.\r\n", Some(seven)),
            (Expect::Value, "$-1\r\n", Some(nil)),
            (Expect::Value, "_\r\n", Some(nil)),
            (Expect::Value, "$0\r\n\r\n", Some(nil)),
            (Expect::Value, "$1\r\nz\r\n", Some((Act::Read(Found::Strange), Fate::Done))),
            (Expect::Value, "-UNAVAILABLE backend=a reason=connection-lost\r\n", None),
            (Expect::First, "*1\r\n$6\r\na.7.0.\r\n", Some(seven)),
            (Expect::First, "*0\r\n", Some(nil)),
            (Expect::First, "*1\r\n$-1\r\n", Some(nil)),
            (Expect::Second, "%1\r\n$1\r\nf\r\n$6\r\na.7.0.\r\n", Some(seven)),
            (Expect::Second, "*2\r\n$1\r\nf\r\n$6\r\na.7.0.\r\n", Some(seven)),
            (Expect::Count, ":0\r\n", Some(nil)),
            (Expect::Count, ":6\r\n", None),
            (Expect::Count, "+OK\r\n", Some((Act::Read(Found::Strange), Fate::Done))),
            (Expect::First, "+OK\r\n", Some((Act::Read(Found::Strange), Fate::Done))),
            (Expect::Second, "*1\r\n$1\r\nf\r\n", Some((Act::Read(Found::Strange), Fate::Done))),
        ] {
            let acts = acts(&Asked::plain("X", 0, expect), reply);
            assert_eq!(acts.first().copied(), expected, "{reply}");
        }
    }

    #[test]
    fn some_commands_do_two_things() {
        let get_set = Asked::new("GETSET", [Effect::Take(0), Effect::Write(0, 8)], Expect::Value);
        let wrote = (Act::Write { token: 8, lives_ms: 0 }, Fate::Done);
        assert_eq!(acts(&get_set, "$6\r\na.7.0.\r\n"), [(Act::Take(Found::Value(7)), Fate::Done), wrote]);
        let expire = Asked::new("GETEX", [Effect::Read(0), Effect::Expire(0, 5)], Expect::Value);
        assert_eq!(acts(&expire, "_\r\n"), [(Act::Read(Found::Nil), Fate::Done)]);
        assert_eq!(
            acts(&expire, "-UNAVAILABLE x\r\n"),
            [(Act::Expire { token: None, lives_ms: 5 }, Fate::Unknown)]
        );
        let several = Asked::new("MGET", [Effect::Read(0), Effect::Read(1)], Expect::Each);
        assert_eq!(acts(&several, "*2\r\n-UNAVAILABLE x\r\n$-1\r\n"), [(Act::Read(Found::Nil), Fate::Done)]);
        let block = Asked::new(
            "EXEC",
            [],
            Expect::Block(vec![
                Asked::new("SET in MULTI", [Effect::Write(0, 8)], Expect::Ok),
                Asked::new("GET in MULTI", [Effect::Read(0)], Expect::Value),
            ]),
        );
        let read = (Act::Read(Found::Value(8)), Fate::Done);
        assert_eq!(acts(&block, "*2\r\n+OK\r\n$6\r\na.8.0.\r\n"), [wrote, read]);
        assert_eq!(acts(&block, "-OVERLOADED x\r\n"), [(wrote.0, Fate::Never)]);
        let get_delete = Asked::new("GETDEL", [Effect::Take(0), Effect::Delete(0)], Expect::Value);
        assert_eq!(acts(&get_delete, "_\r\n"), [(Act::Take(Found::Nil), Fate::Done)]);
        let delete = Asked::new("DEL", [Effect::Delete(0)], Expect::Removed);
        assert_eq!(acts(&delete, ":0\r\n"), [(Act::Read(Found::Nil), Fate::Done)]);
        assert_eq!(acts(&delete, ":1\r\n"), [(Act::Delete, Fate::Done)]);
        let copy = Asked::new("COPY", [Effect::Write(0, 8)], Expect::NotZero);
        assert_eq!(acts(&copy, ":0\r\n"), [(wrote.0, Fate::Never)]);
    }

    #[test]
    fn arrays_of_another_length_are_broken() {
        let several = || Asked::new("MGET", [Effect::Read(0), Effect::Read(1)], Expect::Each);
        let set = || Asked::new("SET in MULTI", [Effect::Write(0, 8)], Expect::Ok);
        let block = || Asked::new("EXEC", [], Expect::Block(vec![set(), set()]));
        for (asked, reply, broken) in [
            (several(), "*2\r\n$-1\r\n$-1\r\n", 0),
            (several(), "*1\r\n$-1\r\n", 1),
            (several(), "*3\r\n$-1\r\n$-1\r\n$-1\r\n", 1),
            (several(), "+OK\r\n", 1),
            (several(), "-UNAVAILABLE x\r\n", 0),
            (block(), "*2\r\n+OK\r\n+OK\r\n", 0),
            (block(), "*1\r\n+OK\r\n", 1),
            (block(), "*-1\r\n", 1),
        ] {
            let mut log = Log::default();
            log.answer(&asked, reply.as_bytes(), RUN, OCCASION);
            assert_eq!(log.broken.len(), broken, "{reply}: {:?}", log.broken);
        }
    }

    #[test]
    fn what_is_no_reply_to_the_command_is_broken_and_may_have_taken_effect() {
        let write = |expect| Asked::new("X", [Effect::Write(0, 8)], expect);
        let removal = || Asked::new("DEL", [Effect::Delete(0)], Expect::Removed);
        for (asked, reply, is_broken) in [
            (write(Expect::Ok), "+OK\r\n", false),
            (write(Expect::Ok), "$-1\r\n", true),
            (write(Expect::Ok), ":1\r\n", true),
            (write(Expect::Number), ":1\r\n", false),
            (write(Expect::Number), "+OK\r\n", true),
            (write(Expect::NotZero), "+OK\r\n", true),
            (removal(), ":2\r\n", false),
            (removal(), "$1\r\n1\r\n", true),
            (Asked::helper("MULTI", Expect::Begun), "+QUEUED\r\n", true),
            (write(Expect::Ok), "-ERR no such key\r\n", false),
            (write(Expect::Ok), "-LOADING Redis is loading the dataset in memory\r\n", false),
            (write(Expect::Ok), "-THROTTLED scope=tenant\r\n", false),
            (write(Expect::Ok), "-ERR unknown command 'x'\r\n", true),
            (write(Expect::Ok), "!9\r\nWRONGTYPE\r\n", true),
            (Asked::new("MGET", [Effect::Read(0)], Expect::Each), "*1\r\n-WRONGTYPE x\r\n", true),
        ] {
            let mut log = Log::default();
            log.answer(&asked, reply.as_bytes(), RUN, OCCASION);
            assert_eq!(!log.broken.is_empty(), is_broken, "{reply}: {:?}", log.broken);
            if is_broken && !reply.starts_with(['-', '!']) {
                let fates = log.operations.iter().map(|(_, operation)| operation.fate);
                assert!(fates.into_iter().all(|fate| fate == Fate::Unknown), "{reply}");
            }
        }
    }

    #[test]
    fn commands_behind_a_refused_multi_are_not_queued() {
        let broken = |begun: &str| {
            let mut log = Log::default();
            let block = Asked::new("EXEC", [], Expect::Block(Vec::new()));
            let asked =
                [Asked::helper("MULTI", Expect::Begun), Asked::helper("queued", Expect::Queued), block];
            for (asked, reply) in asked.iter().zip([begun, "+OK\r\n", "-ERR EXEC without MULTI\r\n"]) {
                log.answer(asked, reply.as_bytes(), RUN, OCCASION);
            }
            log.broken.len()
        };
        assert_eq!(broken("-OVERLOADED reason=queue backend=a\r\n"), 0);
        assert_eq!(broken("+OK\r\n"), 2, "the second reply is not QUEUED, and the third is no reply to EXEC");
    }

    #[test]
    fn what_errors_say_of_a_write() {
        for (error, is_split, expected) in [
            ("UNAVAILABLE backend=a reason=connection-lost retry_after_ms=5", false, Fate::Unknown),
            ("UNAVAILABLE backend=a reason=connect-failed retry_after_ms=5", false, Fate::Never),
            ("UNAVAILABLE backend=a reason=ejected retry_after_ms=5", false, Fate::Never),
            ("OVERLOADED reason=queue backend=a retry_after_ms=5", false, Fate::Never),
            (
                "OVERLOADED reason=stalled backend=a retry_after_ms=5 (it may have happened)",
                false,
                Fate::Unknown,
            ),
            ("DEADLINE stage=backend waited_ms=5 (it may have happened)", false, Fate::Unknown),
            ("THROTTLED scope=tenant", false, Fate::Never),
            ("OVERLOADED reason=queue backend=a retry_after_ms=5", true, Fate::Unknown),
            ("ERR no such key", false, Fate::Never),
            ("ERR the reply is larger than 1024 bytes (--max-reply-bytes)", false, Fate::Unknown),
            ("ERR EXEC without MULTI", false, Fate::Unknown),
        ] {
            assert_eq!(fate(error.as_bytes(), is_split), expected, "{error}");
        }
    }
}
