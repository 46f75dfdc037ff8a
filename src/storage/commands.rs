//! The table of commands: name, arity, what it may do, and the function that does it.

use super::call::{Call, Done};
use super::{
    bits, connection, hashes, keys, lifetimes, lists, server, sets, sorted_combinations, sorted_ranges,
    sorted_sets, strings, transactions,
};

/// Longest command name, so that one fits a machine word pair.
const NAME_BYTES_MAX: usize = 16;
/// Places of the index; several times the commands, so that nearly every search ends at its first place.
const INDEX_PLACES: usize = 1024;
const VACANT: u16 = u16::MAX;

/// What a command may do to the keyspace or to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    /// Changes, but needs no more memory.
    Write,
    /// May need more memory, so it is refused when there is none left.
    Grow,
    /// Opens, ends or leaves a transaction, so it is never queued in one.
    Control,
}

/// One command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Arguments including the name; negative for at least that many, as in Redis.
    arity: i8,
    pub(super) effect: Effect,
    pub(super) run: fn(&mut Call<'_>) -> Done,
}

pub(super) const fn command(
    name: &'static str,
    arity: i8,
    effect: Effect,
    run: fn(&mut Call<'_>) -> Done,
) -> Command {
    Command { name, arity, effect, run }
}

impl Command {
    pub(super) fn accepts(&self, arguments: usize) -> bool {
        if self.arity < 0 {
            arguments >= usize::from(self.arity.unsigned_abs())
        } else {
            arguments == usize::from(self.arity.unsigned_abs())
        }
    }
}

/// All commands, found by name in any case without allocating.
pub(super) struct Directory {
    commands: Vec<(u128, &'static Command)>,
    index: Box<[u16]>,
}

impl Directory {
    pub(super) fn new() -> Self {
        let mut directory =
            Self { commands: Vec::new(), index: vec![VACANT; INDEX_PLACES].into_boxed_slice() };
        for family in [
            strings::COMMANDS,
            bits::COMMANDS,
            keys::COMMANDS,
            lifetimes::COMMANDS,
            hashes::COMMANDS,
            lists::COMMANDS,
            sets::COMMANDS,
            sorted_sets::COMMANDS,
            sorted_ranges::COMMANDS,
            sorted_combinations::COMMANDS,
            connection::COMMANDS,
            server::COMMANDS,
            transactions::COMMANDS,
        ] {
            for command in family {
                directory.add(command);
            }
        }
        directory
    }

    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.commands.iter().map(|(_, command)| command.name)
    }

    pub(super) fn at(&self, position: usize) -> &'static Command {
        self.commands[position].1
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        let word = word(name)?;
        let mut place = first_place(word);
        loop {
            let position = self.index[place];
            if position == VACANT {
                return None;
            }
            let (known, command) = &self.commands[usize::from(position)];
            if *known == word && command.name.len() == name.len() {
                return Some(usize::from(position));
            }
            place = (place + 1) % INDEX_PLACES;
        }
    }

    fn add(&mut self, command: &'static Command) {
        let word = word(command.name.as_bytes()).expect("names fit a word");
        debug_assert!(self.find(command.name.as_bytes()).is_none(), "{} is there twice", command.name);
        let mut place = first_place(word);
        while self.index[place] != VACANT {
            place = (place + 1) % INDEX_PLACES;
        }
        self.index[place] = self.commands.len() as u16;
        self.commands.push((word, command));
    }
}

/// A name in lower case as one number; nothing if it is too long to be a command.
fn word(name: &[u8]) -> Option<u128> {
    let mut bytes = [0; NAME_BYTES_MAX];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    bytes.make_ascii_lowercase();
    Some(u128::from_le_bytes(bytes))
}

fn first_place(word: u128) -> usize {
    let folded = (word as u64) ^ ((word >> 64) as u64).rotate_left(29);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

const _: () = assert!(INDEX_PLACES == 1 << (64 - 54));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_nothing_else_is() {
        let directory = Directory::new();
        for position in 0..directory.len() {
            let name = directory.at(position).name;
            assert_eq!(directory.find(name.to_uppercase().as_bytes()), Some(position), "{name}");
        }
        for name in ["", "ge", "gett", "get\0", "a-name-that-is-far-too-long"] {
            assert_eq!(directory.find(name.as_bytes()), None, "{name}");
        }
    }
}
