//! The table of commands: the effect of each on keys, the positions of its keys, and how weir handles it.
//!
//! The module contains plain facts and lookups, no behaviour. A request is recognised in three steps that
//! [`recognise`] takes together: [`find`] its name, [`Command::resolve`] the subcommand where the name is
//! only a container (`OBJECT ENCODING`), and check the argument count.

pub mod describe;
mod flags;
mod handling;
mod keys;
mod learned;
mod lookup;
mod multiplied;
mod since;
mod specs;
mod table;
mod uses;
mod walk;

use std::borrow::Cow;
use std::fmt;

use super::Arguments;

pub use flags::{Flags, Group};
pub use handling::{FanOut, Gather, Handling, LocalCommand, PrivateUse, Refusal, Subscription};
pub use keys::{KeyCount, KeyError, Keys, integer};
pub use learned::learn;
pub use lookup::{all, find};
pub use multiplied::{Excess, Repeats};
pub use walk::{Walk, scan_cursor};

/// Number of entries in the table of commands, subcommands included: the length of an array that is indexed
/// by [`CommandId`].
pub const COMMANDS: usize = table::COMMANDS;

/// Position of a command in the table of commands; 65,535 for a command learned from a store, which is not in
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(pub u16);

/// Effect of a command on the keys that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The command leaves the keys that it names as they are, or reads the key space as a whole.
    Read,
    /// The command may change keys. Scripts count as writers, because their effect is unknown, except those
    /// that may only read (`EVAL_RO`).
    Write,
    /// The command neither reads nor changes keys: it is about connections, channels, settings or the server
    /// (`PING`, `PUBLISH`, `WATCH`). Commands that return facts about keys (`TTL`, `OBJECT ENCODING`) count
    /// as `Read`.
    None,
}

/// Class of a command, by the quantity that its cost grows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The command reads or changes a bounded part of one key.
    Point,
    /// The command reads or changes a bounded part of each of several keys.
    Multi,
    /// The command works on a range of one key's elements, or on all elements of several keys.
    Range,
    /// The command walks over the key space or over a whole collection.
    Scan,
    /// The command runs a client's code in the store.
    Script,
    /// The command is about connections, channels, settings or the server, or weir refuses it.
    Control,
}

impl Class {
    /// Number of classes of commands: the length of an array that is indexed by [`Class::index`].
    pub const COUNT: usize = 6;
    /// All classes of commands, in the order of their indexes.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Point, Self::Multi, Self::Range, Self::Scan, Self::Script, Self::Control];

    /// Returns the name of the class of commands.
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

    /// Returns the index of the class in an array of [`Class::COUNT`] elements.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Entry of the table of commands: one command, or one subcommand of a container.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Name in lower case; a subcommand's name follows its container's, as in `object|encoding`.
    pub name: &'static str,
    /// Number of words of a request of this command, the name included. If negative, its absolute value is
    /// the least number.
    pub arity: i16,
    /// Effect of the command on the keys that it names.
    pub effect: Effect,
    /// Class of the command, by the quantity that its cost grows with.
    pub class: Class,
    /// Rule by which the keys among the command's arguments are found.
    pub keys: Keys,
    /// Way in which weir handles the command's requests, unless their arguments decide otherwise (as
    /// [`Command::handling_for`] says).
    pub handling: Handling,
    /// True if only a tenant marked `admin` may run the command, because it affects all tenants.
    pub admin: bool,
    /// Properties of the command that `COMMAND INFO` lists, and some of weir's own.
    pub flags: Flags,
    /// Family of the command, such as commands on lists.
    pub group: Group,
    id: CommandId,
}

impl Command {
    /// Returns the command's position in the table of commands; 65,535 for a command learned from a store.
    pub const fn id(&self) -> CommandId {
        self.id
    }

    /// True if a request of this command with `count` words, the name included, is neither too short nor too
    /// long.
    pub const fn arity_fits(&self, count: usize) -> bool {
        if self.arity >= 0 {
            count == self.arity as usize
        } else {
            count >= self.arity.unsigned_abs() as usize
        }
    }

    /// Returns the entry of the table of commands that the request means: this command, or, if it is a
    /// container and the request has a second word, the subcommand that this word names. An error if there is
    /// no such subcommand.
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

    /// True if a request with this command's name and the given subcommand, if it has one, reads or changes
    /// the state of its connection, or needs a connection to a store to itself (such as `BLPOP`). Every
    /// subcommand of `CLIENT` counts.
    pub fn is_about_connection(&'static self, subcommand: Option<&[u8]>) -> bool {
        let is_container = self.flags.contains(Flags::CONTAINER);
        let found =
            subcommand.filter(|_| is_container).and_then(|given| lookup::find_subcommand(self, given));
        self.name == "client" || found.unwrap_or(self).handling.is_about_connection()
    }

    /// Returns how weir handles this request. For a few commands the arguments decide: `XREAD` is forwarded,
    /// `XREAD BLOCK` needs a private connection (one to the store that no other client uses).
    pub fn handling_for(&self, arguments: &Arguments<'_>) -> Handling {
        if self.flags.contains(Flags::ARGUMENTS_DECIDE) {
            handling::decide(self, arguments)
        } else {
            self.handling
        }
    }

    /// Returns the command's name as a client writes it: `OBJECT ENCODING` for `object|encoding`.
    pub fn spoken_name(&self) -> String {
        self.name.replace('|', " ").to_ascii_uppercase()
    }
}

/// Returns the entry of the table of commands for most requests, faster than [`recognise`]; `None` if
/// `recognise` has to decide (a container, a wrong argument count, an unknown name).
#[inline]
pub fn recognise_plain(arguments: &Arguments<'_>) -> Option<&'static Command> {
    find(arguments.name())
        .filter(|command| command.arity_fits(arguments.len()) && !command.flags.contains(Flags::CONTAINER))
}

/// Returns the entry of the table of commands for a request; an error unless its name, subcommand and
/// argument count are those of a command.
pub fn recognise<'a>(arguments: &Arguments<'a>) -> Result<&'static Command, Unrecognised<'a>> {
    let command = find(arguments.name()).ok_or(Unrecognised::Command(*arguments))?;
    if !command.arity_fits(arguments.len()) {
        return Err(Unrecognised::Arity(command));
    }
    let command = command.resolve(arguments)?;
    if command.arity_fits(arguments.len()) { Ok(command) } else { Err(Unrecognised::Arity(command)) }
}

/// Reason why a request does not match any known command. Its text is the error reply that Redis would send.
#[derive(Clone, Copy, Debug)]
pub enum Unrecognised<'a> {
    /// No command has this name; the field is the request.
    Command(Arguments<'a>),
    /// The request names a subcommand that its command does not have.
    Subcommand {
        /// The container command that the first word names.
        container: &'static Command,
        /// The second word, which names no subcommand of the container.
        given: &'a [u8],
    },
    /// The request has too few words for the command, or too many.
    Arity(&'static Command),
}

/// Maximum number of bytes of a client's words that an error reply repeats, as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

/// Returns a client's bytes (a word of its request) as text for an error reply, at most 128 bytes of them.
pub fn quoted(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(beginning(bytes, QUOTED_BYTES_MAX))
}

impl Unrecognised<'_> {
    /// Returns the text of the error reply. It quotes the client's words byte for byte, so it may be no UTF-8.
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::Command(arguments) => {
                let name = beginning(arguments.name(), QUOTED_BYTES_MAX);
                let mut text = [b"ERR unknown command '", name, b"', with args beginning with: "].concat();
                let mut room = QUOTED_BYTES_MAX;
                for argument in arguments.iter().skip(1) {
                    if room == 0 {
                        break;
                    }
                    text.extend_from_slice(&[b"'", beginning(argument, room), b"' "].concat());
                    room = room.saturating_sub(argument.len() + 3);
                }
                text
            }
            Self::Subcommand { container, given } => {
                let (given, name) = (beginning(given, QUOTED_BYTES_MAX), container.spoken_name());
                [b"ERR unknown subcommand '", given, b"'. Try ", name.as_bytes(), b" HELP."].concat()
            }
            Self::Arity(command) => {
                format!("ERR wrong number of arguments for '{}' command", command.name).into_bytes()
            }
        }
    }
}

impl fmt::Display for Unrecognised<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

/// Returns the first bytes of a client's word, at most `length_max` of them.
fn beginning(bytes: &[u8], length_max: usize) -> &[u8] {
    &bytes[..bytes.len().min(length_max)]
}

#[cfg(test)]
mod tests {
    use super::super::Argument;
    use super::*;

    /// Passes a request of these words to `check`; `""` stands for an empty word.
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
                "CLIENT IMPORT-SOURCE on",
                "ERR CLIENT IMPORT-SOURCE is not supported by weir: it is about the store's own connections",
            ),
            ("CLUSTER NODES", "ERR This instance has cluster support disabled"),
        ];
        for (request, text) in cases {
            with_request(request, |arguments| {
                let command = recognise(arguments).expect("a command");
                let refusal = match command.handling_for(arguments) {
                    Handling::Refused(refusal) => refusal,
                    Handling::Private(usage) => usage.refusal(),
                    _ => panic!("{request}"),
                };
                assert!(refusal.of(command).to_string().starts_with(text), "{}", refusal.of(command));
            });
        }
    }
}
