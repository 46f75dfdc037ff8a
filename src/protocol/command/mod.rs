//! The table of commands: what each one does to keys, where its keys stand, and how weir treats it.
//!
//! Plain facts and lookups, no behaviour. A request is recognised in three steps that [`recognise`] takes together:
//! [`find`] its name, [`Command::resolve`] the subcommand where the name is only a container (`OBJECT ENCODING`), and
//! check the argument count.

pub mod describe;
mod flags;
mod handling;
mod keys;
mod lookup;
mod specs;
mod table;
mod walk;

use std::borrow::Cow;
use std::fmt;

use super::Arguments;

pub use flags::{Flags, Group};
pub use handling::{FanOut, Gather, Handling, LocalCommand, Refusal};
pub use keys::{KeyCount, KeyError, Keys, sort_names_patterns};
pub use lookup::{all, find};
pub use walk::Walk;

/// How many entries the table has, subcommands included: the length of an array that is indexed by [`CommandId`].
pub const COMMANDS: usize = table::COMMANDS;

/// An entry's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(pub u16);

/// What a command does to the keys that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Leaves them as they are.
    Read,
    /// May change them. Scripts count as writers, because nobody can tell.
    Write,
    /// Names none, or only talks about them.
    None,
}

/// What a command's cost grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// One key, a bounded part of it.
    Point,
    /// Several keys, a bounded part of each.
    Multi,
    /// A stretch of what lies in one key, or all that lies in several.
    Range,
    /// A walk over the key space or over a whole collection.
    Scan,
    /// Code of the client's that runs in the store.
    Script,
    /// Talks about connections, settings or the server.
    Control,
}

impl Class {
    /// How many classes there are: the length of an array that is indexed by one.
    pub const COUNT: usize = 6;
    /// All of them, in the order of such an array.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Point, Self::Multi, Self::Range, Self::Scan, Self::Script, Self::Control];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Point => "point",
            Self::Multi => "multi",
            Self::Range => "range",
            Self::Scan => "scan",
            Self::Script => "script",
            Self::Control => "control",
        }
    }

    /// The place in such an array.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One command, or one subcommand of a container.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Lower case; a subcommand is written behind its container, as in `object|encoding`.
    pub name: &'static str,
    /// Words of a request, the name included; negative where that is only the least.
    pub arity: i16,
    /// What it does to its keys.
    pub effect: Effect,
    /// What its cost grows with.
    pub class: Class,
    /// Where its keys stand.
    pub keys: Keys,
    /// What weir does with it, as long as the arguments do not say otherwise: see [`Command::handling_for`].
    pub handling: Handling,
    /// It touches what belongs to everyone, so only a tenant marked `admin` may run it.
    pub admin: bool,
    /// What `COMMAND INFO` says about it.
    pub flags: Flags,
    /// The family it belongs to.
    pub group: Group,
    id: CommandId,
}

impl Command {
    /// Its place in the table.
    pub const fn id(&self) -> CommandId {
        self.id
    }

    /// Whether a request of `count` words, the name included, is long enough and not too long.
    pub const fn arity_fits(&self, count: usize) -> bool {
        if self.arity >= 0 {
            count == self.arity as usize
        } else {
            count >= self.arity.unsigned_abs() as usize
        }
    }

    /// The entry that the request really means: the subcommand's, if this is only a container.
    pub fn resolve<'a>(&'static self, arguments: &Arguments<'a>) -> Result<&'static Self, Unrecognised<'a>> {
        if !self.flags.contains(Flags::CONTAINER) {
            return Ok(self);
        }
        match arguments.get(1) {
            None => Ok(self),
            Some(given) => lookup::find_subcommand(self, given)
                .ok_or(Unrecognised::Subcommand { container: self, given }),
        }
    }

    /// Whether a request of that name and subcommand tells or changes what its connection is. All of `CLIENT` counts, whatever
    /// follows.
    pub fn is_about_connection(&'static self, subcommand: Option<&[u8]>) -> bool {
        let is_container = self.flags.contains(Flags::CONTAINER);
        let found =
            subcommand.filter(|_| is_container).and_then(|given| lookup::find_subcommand(self, given));
        self.name == "client" || found.unwrap_or(self).handling.is_about_connection()
    }

    /// What weir does with this request. The arguments of a few commands decide: `XREAD` may be forwarded, `XREAD
    /// BLOCK` may not.
    pub fn handling_for(&self, arguments: &Arguments<'_>) -> Handling {
        if self.flags.contains(Flags::ARGUMENTS_DECIDE) {
            handling::decide(self, arguments)
        } else {
            self.handling
        }
    }

    /// The word that a client would write: `OBJECT ENCODING` for `object|encoding`.
    pub fn spoken_name(&self) -> String {
        self.name.replace('|', " ").to_ascii_uppercase()
    }
}

/// The same for nearly all requests, in less: `None` says that `recognise` knows more.
#[inline]
pub fn recognise_plain(arguments: &Arguments<'_>) -> Option<&'static Command> {
    find(arguments.name())
        .filter(|command| command.arity_fits(arguments.len()) && !command.flags.contains(Flags::CONTAINER))
}

/// The entry for a whole request, if its name, subcommand and argument count are those of a command.
pub fn recognise<'a>(arguments: &Arguments<'a>) -> Result<&'static Command, Unrecognised<'a>> {
    let command = find(arguments.name()).ok_or(Unrecognised::Command(*arguments))?;
    if !command.arity_fits(arguments.len()) {
        return Err(Unrecognised::Arity(command));
    }
    let command = command.resolve(arguments)?;
    if command.arity_fits(arguments.len()) { Ok(command) } else { Err(Unrecognised::Arity(command)) }
}

/// Why a request is not one of a known command. Its text is the error that Redis would send.
#[derive(Clone, Copy, Debug)]
pub enum Unrecognised<'a> {
    /// No command has this name.
    Command(Arguments<'a>),
    /// The container has no such subcommand.
    Subcommand {
        /// The entry of the first word.
        container: &'static Command,
        /// The second word.
        given: &'a [u8],
    },
    /// Too few words for the command, or too many.
    Arity(&'static Command),
}

/// How much of what the client sent an error repeats, as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

/// What a client sent, cut short to be repeated in an error.
pub fn quoted(bytes: &[u8]) -> Cow<'_, str> {
    quotable(bytes, QUOTED_BYTES_MAX)
}

impl fmt::Display for Unrecognised<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(arguments) => {
                let name = quoted(arguments.name());
                write!(out, "ERR unknown command '{name}', with args beginning with: ")?;
                let mut room = QUOTED_BYTES_MAX;
                for argument in arguments.iter().skip(1) {
                    if room == 0 {
                        break;
                    }
                    write!(out, "'{}' ", quotable(argument, room))?;
                    room = room.saturating_sub(argument.len() + 3);
                }
                Ok(())
            }
            Self::Subcommand { container, given } => write!(
                out,
                "ERR unknown subcommand '{}'. Try {} HELP.",
                quoted(given),
                container.spoken_name()
            ),
            Self::Arity(command) => {
                write!(out, "ERR wrong number of arguments for '{}' command", command.name)
            }
        }
    }
}

fn quotable(bytes: &[u8], length_max: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(length_max)])
}

#[cfg(test)]
mod tests {
    use super::super::Argument;
    use super::*;

    /// Shows `check` a request of these words; `""` stands for an empty one.
    pub(super) fn with_request<T>(request: &str, check: impl FnOnce(&Arguments<'_>) -> T) -> T {
        let words = request.split(' ').map(|word| if word == "\"\"" { "" } else { word });
        let mut frame = Vec::new();
        let places: Vec<_> = words
            .map(|word| {
                let start = frame.len() as u32;
                frame.extend_from_slice(word.as_bytes());
                Argument { start, length: word.len() as u32 }
            })
            .collect();
        check(&Arguments::new(&frame, &places))
    }

    #[test]
    fn what_is_no_command_gets_the_words_of_redis() {
        let cases = [
            ("nope a b", "ERR unknown command 'nope', with args beginning with: 'a' 'b' "),
            ("GET", "ERR wrong number of arguments for 'get' command"),
            ("OBJECT", "ERR wrong number of arguments for 'object' command"),
            ("object nope a", "ERR unknown subcommand 'nope'. Try OBJECT HELP."),
            ("OBJECT ENCODING", "ERR wrong number of arguments for 'object|encoding' command"),
            ("object|encoding a", "ERR unknown command 'object|encoding', with args beginning with: 'a' "),
        ];
        for (request, text) in cases {
            let told =
                with_request(request, |arguments| recognise(arguments).map_err(|error| error.to_string()));
            assert_eq!(told.err().as_deref(), Some(text), "{request}");
        }
    }

    #[test]
    fn an_error_repeats_only_so_much() {
        let long = format!("nope {}", "x ".repeat(1000));
        let told = with_request(&long, |arguments| recognise(arguments).map_err(|error| error.to_string()));
        assert!(told.expect_err("no command").len() < 400);
    }

    #[test]
    fn a_refusal_names_the_command_and_why() {
        let cases = [
            (
                "BLPOP a 0",
                "ERR BLPOP is not supported by weir: it holds its connection until data arrives, and connections to \
                 the store are shared",
            ),
            (
                "CLIENT CAPA redirect",
                "ERR CLIENT CAPA is not supported by weir: it is about the store's own connections",
            ),
            ("CLUSTER NODES", "ERR This instance has cluster support disabled"),
        ];
        for (request, text) in cases {
            with_request(request, |arguments| {
                let command = recognise(arguments).expect("a command");
                let Handling::Refused(refusal) = command.handling_for(arguments) else { panic!("{request}") };
                assert!(refusal.of(command).to_string().starts_with(text), "{}", refusal.of(command));
            });
        }
    }
}
