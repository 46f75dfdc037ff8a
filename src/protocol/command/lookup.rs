//! Lookup of a command by name in a few instructions: a hash table that the compiler builds.

use super::table::{COMMANDS, TABLE};
use super::{Command, Flags, learned};

/// Number of bytes of the longest name in weir's table of commands; longer names are not looked up there.
const NAME_BYTES_MAX: usize = longest_name();
/// Number of slots in the hash table of command names, a power of two: enough (more than three per command)
/// that most names are found in the first slot.
const CELLS: usize = 2048;
/// Value that marks a free slot of the hash table `INDEXES`.
const EMPTY: u16 = u16::MAX;

const _: () = assert!(NAME_BYTES_MAX <= learned::NAME_BYTES_MAX);
const _: () = assert!(CELLS.is_power_of_two() && COMMANDS * 3 < CELLS);

/// Names of all commands, in the order of their [`CommandId`](super::CommandId).
static NAMES: [Name; COMMANDS] = names();
/// Hash table from a command's name to its index in `NAMES`: the index is in the slot that the name hashes to
/// or, if that is taken, in the next free slot after it, wrapping at the end. Free slots hold `EMPTY`.
static INDEXES: [u16; CELLS] = indexes();

/// Returns every entry of the table of commands, in the order of their ids.
pub fn all() -> &'static [Command] {
    &TABLE
}

/// Returns the entry of the command with this name, in any case of letters; `None` if there is none.
/// Subcommands are not found by this, but through their container ([`Command::resolve`]).
pub fn find(name: &[u8]) -> Option<&'static Command> {
    find_entry(name).filter(|command| !command.flags.contains(Flags::SUBCOMMAND))
}

/// Returns the entry of the subcommand `given` of `container`; `None` if there is none.
#[cold]
pub(super) fn find_subcommand(container: &Command, given: &[u8]) -> Option<&'static Command> {
    let mut name = [0; learned::NAME_BYTES_MAX];
    let (first, separator) = (container.name.as_bytes(), container.name.len());
    let end = separator + 1 + given.len();
    name.get_mut(..separator)?.copy_from_slice(first);
    *name.get_mut(separator)? = b'|';
    name.get_mut(separator + 1..end)?.copy_from_slice(given);
    find_entry(&name[..end])
}

/// Returns the entry of the command with this whole name, which may be a subcommand's (`object|encoding`),
/// from weir's table or learned from a store; `None` if there is none.
#[inline]
pub(super) fn find_entry(name: &[u8]) -> Option<&'static Command> {
    let entry =
        if name.len() > Name::WHOLE_BYTES_MAX { find_long(name) } else { probe(Name::of(name), |_| true) };
    entry.or_else(|| learned::find(name))
}

/// Looks up in weir's table the name of a command of more than sixteen bytes, which has to be compared byte
/// by byte. Returns its entry; None if there is none.
#[inline(never)]
fn find_long(name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    probe(Name::of(name), |command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the first entry of weir's table of commands that `accept` approves of, among those whose names
/// have the same first and last eight bytes and length as `wanted`. None if there is none.
fn probe(wanted: Name, accept: impl Fn(&Command) -> bool) -> Option<&'static Command> {
    let mut cell = wanted.cell();
    loop {
        let index = usize::from(INDEXES[cell]);
        // An empty cell holds an index beyond the names, which ends the search.
        if *NAMES.get(index)? == wanted && accept(&TABLE[index]) {
            return Some(&TABLE[index]);
        }
        cell = (cell + 1) % CELLS;
    }
}

/// A command's name in lower case, small enough to be compared in three instructions: its first and its last
/// eight bytes, and its length. Up to sixteen bytes that is the whole name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    first: u64,
    last: u64,
    length: usize,
}

impl Name {
    /// Number of bytes of the longest command name that is compared as a whole in two words of 8 bytes.
    const WHOLE_BYTES_MAX: usize = 16;

    const fn of(name: &[u8]) -> Self {
        let length = name.len();
        if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
            let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
            return Self { first: lower(first), last: lower(last), length };
        }
        Self { first: lower(short(name)), last: 0, length }
    }

    /// Returns the slot of the hash table at which the search for the name begins. The multiplier was found
    /// by trial: it spreads the names well.
    const fn cell(self) -> usize {
        let mixed = self.first ^ self.last.rotate_left(29) ^ (self.length as u64) << 56;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - CELLS.ilog2())) as usize
    }
}

/// Packs a name of up to seven bytes into a number, without a loop.
const fn short(name: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        // The two halves overlap where the name is shorter than eight, with the same bytes.
        return u32::from_le_bytes(*first) as u64
            | (u32::from_le_bytes(*last) as u64) << (8 * (name.len() - 4));
    }
    match *name {
        [first, second, third] => u32::from_le_bytes([first, second, third, 0]) as u64,
        [first, second] => u16::from_le_bytes([first, second]) as u64,
        [first] => first as u64,
        _ => 0,
    }
}

/// Turns the letters among eight bytes to lower case at once, and leaves all other bytes as they are.
const fn lower(bytes: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = 0x80 * ONES;
    let low_bits = bytes & !HIGH;
    // The high bit of each byte becomes set from 'A' on, and from behind 'Z' on.
    let from_a = low_bits + (0x80 - b'A' as u64) * ONES;
    let behind_z = low_bits + (0x80 - b'Z' as u64 - 1) * ONES;
    let upper = (from_a ^ behind_z) & !bytes & HIGH;
    // 0x80 moved down by two is 0x20, the bit that tells the cases apart.
    bytes | upper >> 2
}

const fn longest_name() -> usize {
    let mut longest = 0;
    let mut index = 0;
    while index < COMMANDS {
        if TABLE[index].name.len() > longest {
            longest = TABLE[index].name.len();
        }
        index += 1;
    }
    longest
}

const fn names() -> [Name; COMMANDS] {
    let mut names = [Name { first: 0, last: 0, length: 0 }; COMMANDS];
    let mut index = 0;
    while index < COMMANDS {
        names[index] = Name::of(TABLE[index].name.as_bytes());
        index += 1;
    }
    names
}

const fn indexes() -> [u16; CELLS] {
    let mut indexes = [EMPTY; CELLS];
    let mut index = 0;
    while index < COMMANDS {
        let mut cell = Name::of(TABLE[index].name.as_bytes()).cell();
        while indexes[cell] != EMPTY {
            cell = (cell + 1) % CELLS;
        }
        indexes[cell] = index as u16;
        index += 1;
    }
    indexes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for command in all().iter().filter(|command| !command.name.contains('|')) {
            let upper = command.name.to_ascii_uppercase();
            let mixed: String = command
                .name
                .char_indices()
                .map(|(at, letter)| if at % 2 == 0 { letter.to_ascii_uppercase() } else { letter })
                .collect();
            for name in [command.name, &upper, &mixed] {
                assert_eq!(find(name.as_bytes()).map(Command::id), Some(command.id()), "{name}");
            }
        }
    }

    #[test]
    fn nothing_else_is_found() {
        let strange: [&[u8]; 9] =
            [b"", b"ge", b"gett", b"get\0", b"\0get", b"g\xe5t", b"ge\x14", b"[et", b"georadiusbymember_rx"];
        for name in strange {
            assert!(find(name).is_none(), "{name:?}");
        }
        assert!(find(&[b'a'; 10_000]).is_none());
    }

    #[test]
    fn a_subcommand_is_no_command() {
        assert!(find(b"object|encoding").is_none());
        let object = find(b"OBJECT").expect("a command");
        assert_eq!(find_subcommand(object, b"EnCoding").expect("a subcommand").name, "object|encoding");
        assert!(find_subcommand(object, b"").is_none());
        assert!(find_subcommand(object, &[b'x'; 64]).is_none());
        assert!(find_subcommand(object, b"encoding|x").is_none());
    }

    #[test]
    fn lower_case_leaves_other_bytes_alone() {
        for byte in 0..=u8::MAX {
            let lowered = lower(u64::from_le_bytes([byte; 8]));
            assert_eq!(lowered, u64::from_le_bytes([byte.to_ascii_lowercase(); 8]), "{byte}");
        }
    }

    #[test]
    fn names_rarely_share_a_place() {
        let probes = |command: &Command| {
            let start = Name::of(command.name.as_bytes()).cell();
            (0..CELLS)
                .position(|step| INDEXES[(start + step) % CELLS] == command.id().0)
                .expect("it is there")
        };
        assert_eq!(probes(find(b"get").expect("a command")), 0);
        assert_eq!(probes(find(b"set").expect("a command")), 0);
        assert!(all().iter().map(probes).max() <= Some(3), "{:?}", all().iter().map(probes).max());
    }
}
