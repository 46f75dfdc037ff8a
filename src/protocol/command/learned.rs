//! Commands that weir's table does not have, learned from stores' replies to `COMMAND`: commands of modules,
//! and of later versions. Only commands whose keys can be found are learned.
//!
//! Stores are few and rarely change, so learned commands stay for the life of the process: a command that is
//! known once is never forgotten or changed, which lets each core look names up without a lock.

use std::sync::OnceLock;

use super::specs::{Access, Begin, Find, KeySpec};
use super::{Class, Command, CommandId, Effect, Flags, Group, Handling, Keys, PrivateUse, Refusal, lookup};
use crate::protocol::reply;

/// Maximum number of bytes of the name of a command that is learned from a store, including that of a
/// subcommand. A command with a longer one is not learned.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Maximum number of commands that are learned from stores, subcommands included; further ones stay unknown.
/// Redis 8 with all its modules has about 250 that weir's table lacks.
const LEARNED_MAX: usize = 1024;
/// Number of slots in the hash table of commands learned from stores: at least half of them stay empty.
const CELLS: usize = 2 * LEARNED_MAX;
/// Maximum number of rules by which one learned command's keys are found. A command that needs more is not
/// learned.
const SPECS_MAX: usize = 8;

/// The commands learned from stores, as a hash table. A command is in the slot that its name hashes to or, if
/// that is taken, in the next free slot after it, wrapping at the end.
static LEARNED: [OnceLock<&'static Command>; CELLS] = [const { OnceLock::new() }; CELLS];

/// Learns the commands of a store from its whole reply to `COMMAND`, and returns how many were new. It leaves
/// out commands that the table has, that name no keys, or whose keys cannot be found from the reply, and all
/// beyond the 1,024th. weir refuses a command that it has not learned as unknown.
pub fn learn(reply: &[u8]) -> usize {
    let mut learned = 0;
    for told in reply::elements(reply).into_iter().flatten() {
        let Some(told) = Told::read(told) else { continue };
        let subcommands: Vec<Command> = told.subcommands().filter_map(|told| told.as_command()).collect();
        let container = (!subcommands.is_empty()).then(|| told.as_container());
        let commands = told.as_command().or(container).into_iter().chain(subcommands);
        learned += commands.filter(keep).count();
    }
    learned
}

/// Returns all commands that were learned from stores.
pub(super) fn all() -> impl Iterator<Item = &'static Command> + Clone {
    LEARNED.iter().filter_map(|cell| cell.get().copied())
}

/// Returns the command learned from a store that has this whole name, in any case of letters; `None` if there
/// is none.
#[cold]
#[inline(never)]
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    cells(name)
        .map_while(|cell| cell.get().copied())
        .find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Keeps a command learned from a store for the life of the process. Returns false, and does not keep it, if
/// its name is taken or too many are kept.
fn keep(command: &Command) -> bool {
    let name = command.name.as_bytes();
    if lookup::find_entry(name).is_some() || all().count() >= LEARNED_MAX {
        return false;
    }
    let command: &'static Command = Box::leak(Box::new(*command));
    cells(name).any(|cell| cell.set(command).is_ok())
}

/// Returns the slots of the hash table of learned commands that may hold a name, in the order in which they
/// are searched.
fn cells(name: &[u8]) -> impl Iterator<Item = &'static OnceLock<&'static Command>> {
    let mixed = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |mixed, byte| {
        (mixed ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
    });
    let first = (mixed >> 32) as usize % CELLS;
    LEARNED[first..].iter().chain(&LEARNED[..first])
}

/// A command as one element of a store's reply to `COMMAND` describes it.
struct Told<'a> {
    name: Vec<u8>,
    arity: i64,
    flags: Vec<&'a [u8]>,
    /// Positions of the first and the last key and the distance between keys, as the store gives them.
    positions: (i64, i64, i64),
    categories: Vec<&'a [u8]>,
    /// Rules for finding the command's keys, as the store wrote them; empty from servers older than 7.0.
    specs: Vec<&'a [u8]>,
    subcommands: Vec<&'a [u8]>,
}

impl<'a> Told<'a> {
    /// Reads one element of a store's reply to `COMMAND`; `None` if it has another form, or a name that no
    /// client could send.
    fn read(element: &'a [u8]) -> Option<Self> {
        let mut fields = reply::elements(element)?;
        let name = reply::text(fields.next()?)?.to_ascii_lowercase();
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic);
        let arity = reply::integer(fields.next()?)?;
        let flags = texts(fields.next()?);
        let mut position = || reply::integer(fields.next()?);
        let positions = (position()?, position()?, position()?);
        let categories = fields.next().map(texts).unwrap_or_default();
        let mut list = || fields.next().and_then(listed).unwrap_or_default();
        let (_hints, specs, subcommands) = (list(), list(), list());
        is_name.then_some(Self { name, arity, flags, positions, categories, specs, subcommands })
    }

    fn subcommands(&self) -> impl Iterator<Item = Told<'a>> {
        self.subcommands.iter().filter_map(|element| Self::read(element))
    }

    fn has_flag(&self, name: &[u8]) -> bool {
        self.flags.contains(&name)
    }

    /// Returns the command as an entry of the kind that weir's table has, by which weir forwards or refuses
    /// it; `None` if its keys cannot be found.
    fn as_command(&self) -> Option<Command> {
        let specs = self.specs.iter().map(|spec| Spec::read(spec)).collect::<Option<Vec<_>>>()?;
        let keys = self.keys(&specs)?;
        let flags = self.flags.iter().filter_map(|name| Flags::named(name)).fold(Flags::NONE, Flags::and);
        let effect = if flags.contains(Flags::READONLY) { Effect::Read } else { Effect::Write };
        // A module's command may look at any key, as a script may.
        let reaches_further = self.has_flag(b"module")
            || self.has_flag(b"touches_arbitrary_keys")
            || specs.iter().any(|spec| spec.is_incomplete || spec.rule.access == Access::NoKey);
        let has_one_key =
            matches!(keys, Keys::Range { first, last, .. } if i16::from(first) == i16::from(last));
        let class = match () {
            () if reaches_further => Class::Script,
            () if !flags.contains(Flags::FAST) => Class::Range,
            () if has_one_key => Class::Point,
            () => Class::Multi,
        };
        let hidden = if flags.contains(Flags::FAST) { Flags::NONE } else { Flags::HIDDEN_WORK };
        let is_multiplied = effect == Effect::Read && !has_one_key || flags.contains(Flags::BLOCKING);
        let repeats = if is_multiplied { Flags::MULTIPLIES } else { Flags::NONE };
        let is_about_connection = self.categories.contains(&b"@connection".as_slice());
        let handling = match () {
            () if flags.contains(Flags::PUBSUB) => Handling::Refused(Refusal::Subscribes),
            () if is_about_connection => Handling::Refused(Refusal::StoreClients),
            () if flags.contains(Flags::BLOCKING) => Handling::Private(PrivateUse::Waits),
            () => Handling::Forward,
        };
        Some(Command {
            effect,
            class,
            arity: at_least(self.arity(), keys),
            keys,
            handling,
            admin: flags.contains(Flags::ADMIN) || self.categories.contains(&b"@dangerous".as_slice()),
            flags: flags.and(hidden).and(repeats),
            ..self.as_container()
        })
    }

    /// Returns the entry of a command whose name is only the first word of its subcommands.
    fn as_container(&self) -> Command {
        let name: &'static str = String::from_utf8_lossy(&self.name).into_owned().leak();
        Command {
            name,
            arity: self.arity(),
            effect: Effect::None,
            class: Class::Control,
            keys: Keys::None,
            handling: Handling::Forward,
            admin: false,
            flags: if name.contains('|') { Flags::SUBCOMMAND } else { Flags::CONTAINER },
            group: Group::Module,
            id: CommandId(u16::MAX),
        }
    }

    /// Returns the number of words that a request of the command has, its name included; if negative, the least
    /// number that it may have.
    fn arity(&self) -> i16 {
        i16::try_from(self.arity).unwrap_or(-1)
    }

    /// Returns the rule by which the command's keys are found, by its fixed positions or by `specs`; `None`
    /// if there are no keys, or if they cannot be found.
    fn keys(&self, specs: &[Spec]) -> Option<Keys> {
        let (first, last, step) = self.positions;
        let is_movable = self.has_flag(b"movablekeys");
        if first > 0 && step > 0 && !is_movable {
            let first = u8::try_from(first).ok()?;
            let (last, step) = (i8::try_from(last).ok()?, u8::try_from(step).ok()?);
            return Some(Keys::Range { first, last, step });
        }
        let is_found = !specs.is_empty() && specs.len() <= SPECS_MAX && specs.iter().all(Spec::finds_keys);
        is_found.then(|| Keys::Specs(specs.iter().map(|spec| spec.rule).collect::<Vec<_>>().leak()))
    }
}

/// A rule for finding keys, as a store describes it.
struct Spec {
    rule: KeySpec,
    /// True if the rule does not find all keys that it should (the flag `incomplete`), or if the use of the
    /// keys depends on the arguments (`variable_flags`).
    is_incomplete: bool,
}

impl Spec {
    /// Reads from `spec` (part of a store's reply to `COMMAND INFO`) a rule for finding keys; `None` if it has
    /// an unknown form.
    fn read(spec: &[u8]) -> Option<Self> {
        let flags = texts(field(spec, b"flags")?);
        let has = |name: &[u8]| flags.contains(&name);
        let access = match () {
            () if has(b"not_key") => Access::NoKey,
            () if has(b"RO") => Access::Read,
            () if has(b"OW") => Access::Overwrite,
            () => Access::ReadAndWrite,
        };
        let (begin, find) = (field(spec, b"begin_search")?, field(spec, b"find_keys")?);
        let (begin_fields, find_fields) = (field(begin, b"spec")?, field(find, b"spec")?);
        let number =
            |fields, name: &[u8]| reply::integer(field(fields, name)?).filter(|number| is_position(*number));
        let begin = match reply::text(field(begin, b"type")?)? {
            b"index" => Begin::Index(number(begin_fields, b"index")?),
            b"keyword" => {
                let word = reply::text(field(begin_fields, b"keyword")?)?;
                let word = std::str::from_utf8(word).ok().filter(|word| word.len() <= NAME_BYTES_MAX)?;
                Begin::Keyword(word.to_owned().leak(), number(begin_fields, b"startfrom")?)
            }
            _ => Begin::Unknown,
        };
        let find = match reply::text(field(find, b"type")?)? {
            b"range" => Find::Range {
                last: number(find_fields, b"lastkey")?,
                step: number(find_fields, b"keystep")?,
                limit: number(find_fields, b"limit")?,
            },
            b"keynum" => Find::Counted {
                number: number(find_fields, b"keynumidx")?,
                first: number(find_fields, b"firstkey")?,
                step: number(find_fields, b"keystep")?,
            },
            _ => Find::Unknown,
        };
        let is_incomplete = has(b"incomplete") || has(b"variable_flags");
        Some(Self { rule: KeySpec { access, begin, find }, is_incomplete })
    }

    fn finds_keys(&self) -> bool {
        self.rule.begin != Begin::Unknown && self.rule.find != Find::Unknown
    }
}

/// True if a number from a store may be a position in a request or a distance between positions: from -1,024
/// to 1,024.
const fn is_position(number: i64) -> bool {
    number >= -1024 && number <= 1024
}

/// Returns the value of a field in a RESP map reply; `None` if the map does not have it.
fn field<'a>(map: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut fields = reply::names_and_values(map)?;
    while let (Some(given), Some(value)) = (fields.next(), fields.next()) {
        if reply::text(given) == Some(name) {
            return Some(value);
        }
    }
    None
}

/// Returns those elements of a RESP array (`list`) that are texts.
fn texts(list: &[u8]) -> Vec<&[u8]> {
    reply::elements(list).into_iter().flatten().filter_map(reply::text).collect()
}

fn listed(list: &[u8]) -> Option<Vec<&[u8]>> {
    reply::elements(list).map(Iterator::collect)
}

/// Returns a command's arity (number of words; negative for a least number), made large enough to include the
/// first key that `keys` finds: a store may state a smaller arity and let the command count its words.
fn at_least(arity: i16, keys: Keys) -> i16 {
    let Keys::Range { first, .. } = keys else { return arity };
    let least = i16::from(first) + 1;
    if i32::from(arity).abs() < i32::from(least) { -least } else { arity }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_request;
    use super::super::{find as find_command, recognise};
    use super::*;

    /// Writes words with spaces between them as a reply: numbers as integers, `[` and `]` around arrays.
    fn encoded(text: &str) -> Vec<u8> {
        fn element<'a>(out: &mut Vec<u8>, words: &mut impl Iterator<Item = &'a str>) -> bool {
            match words.next() {
                None | Some("]") => return false,
                Some("[") => {
                    let (mut elements, mut count) = (Vec::new(), 0);
                    while element(&mut elements, words) {
                        count += 1;
                    }
                    out.extend_from_slice(format!("*{count}\r\n").as_bytes());
                    out.extend_from_slice(&elements);
                }
                Some(word) if word.parse::<i64>().is_ok() => {
                    out.extend_from_slice(format!(":{word}\r\n").as_bytes());
                }
                Some(word) => out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes()),
            }
            true
        }
        let mut out = Vec::new();
        element(&mut out, &mut text.split_ascii_whitespace());
        out
    }

    fn spec(flags: &str, begin: &str, find: &str) -> String {
        format!(
            "[ flags [ {flags} ] begin_search [ type {} ] find_keys [ type {} ] ]",
            begin.replacen(' ', " spec ", 1),
            find.replacen(' ', " spec ", 1)
        )
    }

    fn keys_of(request: &str) -> Result<Vec<usize>, String> {
        with_request(request, |arguments| {
            let command = recognise(arguments).map_err(|error| error.to_string())?;
            let mut keys = Vec::new();
            command
                .for_each_key(arguments, &mut |index| keys.push(index))
                .map_err(|error| error.to_string())?;
            Ok(keys)
        })
    }

    #[test]
    fn keys_are_found_by_what_a_store_tells() {
        let one = |at: u8| {
            spec("RW access", &format!("index [ index {at} ]"), "range [ lastkey 0 keystep 1 limit 0 ]")
        };
        let counted = spec("OW", "index [ index 1 ]", "keynum [ keynumidx 0 firstkey 1 keystep 2 ]");
        let halves =
            spec("RO", "keyword [ keyword FROM startfrom 1 ]", "range [ lastkey -1 keystep 1 limit 2 ]");
        let last =
            spec("RO", "keyword [ keyword KEYS startfrom -2 ]", "range [ lastkey -1 keystep 1 limit 0 ]");
        let unknown = spec("RO", "unknown [ ]", "unknown [ ]");
        let reply = format!(
            "[ [ LEARN.ONE -2 [ write fast ] 1 1 1 [ ] [ ] [ {one1} ] [ ] ] \
               [ learn.two 3 [ write ] 1 2 1 [ ] [ ] [ {one1} {one2} ] [ ] ] \
               [ learn.counted -3 [ write movablekeys ] 0 0 0 [ ] [ ] [ {counted} ] [ ] ] \
               [ learn.halves -3 [ readonly movablekeys ] 0 0 0 [ ] [ ] [ {halves} ] [ ] ] \
               [ learn.last -3 [ readonly movablekeys ] 0 0 0 [ ] [ ] [ {last} ] [ ] ] \
               [ learn.unknown -3 [ readonly movablekeys ] 0 0 0 [ ] [ ] [ {unknown} ] [ ] ] \
               [ learn.none 1 [ readonly ] 0 0 0 [ ] [ ] [ ] [ ] ] \
               [ learn.old 2 [ readonly ] 1 1 1 ] \
               [ learn.of -2 [ ] 0 0 0 [ ] [ ] [ ] [ [ learn.of|set 4 [ write ] 2 2 1 [ ] [ ] [ {one2} ] [ ] ] ] ] \
               [ get 2 [ write ] 2 2 1 [ ] [ ] [ {one2} ] [ ] ] ]",
            one1 = one(1),
            one2 = one(2),
        );
        learn(&encoded(&reply));
        assert_eq!(learn(&encoded(&reply)), 0, "nothing is learned twice");
        for (request, keys) in [
            ("learn.one a b", vec![1]),
            ("LEARN.TWO a b", vec![1, 2]),
            ("learn.counted 2 a 1 b 2 EX 5", vec![2, 4]),
            ("learn.counted 0 a", vec![]),
            ("learn.halves x from a b 1 2", vec![3, 4]),
            ("learn.halves x y", vec![]),
            ("learn.last x keys a b", vec![3, 4]),
            ("learn.old a", vec![1]),
            ("learn.of SET a b", vec![2]),
            ("get a", vec![1]),
        ] {
            assert_eq!(keys_of(request), Ok(keys), "{request}");
        }
        for (request, error) in [
            ("learn.one", "ERR wrong number of arguments for 'learn.one' command"),
            ("learn.counted 3 a 1", "ERR syntax error"),
            ("learn.counted x a", "ERR value is not an integer or out of range"),
            ("learn.counted -1 a", "ERR value is not an integer or out of range"),
            ("learn.counted 9223372036854775807 a", "ERR value is not an integer or out of range"),
            ("learn.unknown a b", "ERR unknown command 'learn.unknown', with args beginning with: 'a' 'b' "),
            ("learn.none", "ERR unknown command 'learn.none', with args beginning with: "),
            ("learn.of nope a", "ERR unknown subcommand 'nope'. Try LEARN.OF HELP."),
        ] {
            assert_eq!(keys_of(request), Err(error.to_owned()), "{request}");
        }
    }

    #[test]
    fn a_command_has_as_many_words_as_its_first_key_needs() {
        learn(&encoded(
            "[ [ least.any -1 [ readonly ] 1 1 1 ] [ least.few -2 [ readonly ] 3 3 1 ] [ least.one 1 [ readonly ] 1 1 1 ] \
               [ least.fits -3 [ readonly ] 1 1 1 ] ]",
        ));
        let arity = |name: &str| find_command(name.as_bytes()).expect("learned").arity;
        let arities = ["least.any", "least.few", "least.one", "least.fits"].map(arity);
        assert_eq!(arities, [-2, -4, -2, -3]);
    }

    #[test]
    fn effects_and_risks_follow_from_flags() {
        let one = spec("RO", "index [ index 1 ]", "range [ lastkey 0 keystep 1 limit 0 ]");
        let channel = spec("not_key", "index [ index 1 ]", "range [ lastkey 0 keystep 1 limit 0 ]");
        let reply = format!(
            "[ [ risk.read 2 [ readonly fast ] 1 1 1 [ @read ] [ ] [ {one} ] [ ] ] \
               [ risk.slow 2 [ readonly ] 1 1 1 [ @read ] [ ] [ {one} ] [ ] ] \
               [ risk.module 2 [ readonly module ] 1 1 1 [ @read ] [ ] [ {one} ] [ ] ] \
               [ risk.cursor 2 [ readonly ] 1 1 1 [ @read ] [ ] [ {channel} ] [ ] ] \
               [ risk.plain 2 [ ] 1 1 1 [ ] [ ] [ {one} ] [ ] ] \
               [ risk.waits 2 [ write blocking ] 1 1 1 [ ] [ ] [ {one} ] [ ] ] \
               [ risk.hears 2 [ pubsub ] 1 1 1 [ ] [ ] [ {channel} ] [ ] ] \
               [ risk.binds 2 [ ] 1 1 1 [ @connection ] [ ] [ {one} ] [ ] ] \
               [ risk.harms 2 [ write ] 1 1 1 [ @dangerous ] [ ] [ {one} ] [ ] ] ]",
        );
        learn(&encoded(&reply));
        let forward = Handling::Forward;
        let told = |name: &str| {
            let command = find_command(name.as_bytes()).expect("learned");
            (command.effect, command.class, command.handling, command.admin)
        };
        assert_eq!(told("risk.read"), (Effect::Read, Class::Point, forward, false));
        assert_eq!(told("risk.slow"), (Effect::Read, Class::Range, forward, false));
        assert_eq!(told("risk.module"), (Effect::Read, Class::Script, forward, false));
        assert_eq!(told("risk.cursor"), (Effect::Read, Class::Script, forward, false));
        assert_eq!(told("risk.plain"), (Effect::Write, Class::Range, forward, false));
        assert_eq!(
            told("risk.waits"),
            (Effect::Write, Class::Range, Handling::Private(PrivateUse::Waits), false)
        );
        assert!(matches!(told("risk.hears").2, Handling::Refused(Refusal::Subscribes)));
        assert!(matches!(told("risk.binds").2, Handling::Refused(Refusal::StoreClients)));
        assert!(told("risk.harms").3);
    }

    #[test]
    fn malformed_replies_teach_nothing() {
        for text in
            ["[ ]", "[ 1 2 ]", "[ [ bad.one ] ]", "[ [ bad.two x [ ] 1 1 1 ] ]", "[ [ 1 1 [ ] 1 1 1 ] ]", "x"]
        {
            let _: usize = learn(&encoded(text));
        }
        learn(b"-NOPERM no permission\r\n");
        learn(b"*100\r\n*6\r\n");
        let long = format!("[ [ bad.{} 1 [ ] 1 1 1 ] ]", "x".repeat(NAME_BYTES_MAX));
        learn(&encoded(&long));
        assert_eq!(all().filter(|command| command.name.starts_with("bad.")).count(), 0);
    }
}
