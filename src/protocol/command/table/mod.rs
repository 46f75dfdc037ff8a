//! The table of commands itself: one file per family, written with the functions of [`build`].
//!
//! A test below compares it with a real server's reply about its commands.

mod bitmaps;
mod build;
mod cluster;
mod connection;
mod generic;
mod geo;
mod hashes;
mod lists;
mod pubsub;
mod scripting;
mod server;
mod sets;
mod sorted_sets;
mod streams;
mod strings;
mod transactions;
mod vector_sets;

use super::{Command, Flags, Group};

/// The families of commands, each with its commands, in the order of the commands' ids.
const FAMILIES: [(Group, &[Command]); 17] = [
    (Group::String, strings::COMMANDS),
    (Group::Generic, generic::COMMANDS),
    (Group::Hash, hashes::COMMANDS),
    (Group::List, lists::COMMANDS),
    (Group::Set, sets::COMMANDS),
    (Group::SortedSet, sorted_sets::COMMANDS),
    (Group::Stream, streams::COMMANDS),
    (Group::Bitmap, bitmaps::COMMANDS),
    (Group::HyperLogLog, bitmaps::HYPERLOGLOG),
    (Group::Geo, geo::COMMANDS),
    (Group::VectorSet, vector_sets::COMMANDS),
    (Group::Scripting, scripting::COMMANDS),
    (Group::Transactions, transactions::COMMANDS),
    (Group::PubSub, pubsub::COMMANDS),
    (Group::Connection, connection::COMMANDS),
    (Group::Server, server::COMMANDS),
    (Group::Cluster, cluster::COMMANDS),
];

/// Number of entries in the table of commands, subcommands included.
pub(super) const COMMANDS: usize = count();

/// All entries of the table of commands, each at the index that its id gives.
pub(super) static TABLE: [Command; COMMANDS] = table();

const fn count() -> usize {
    let mut count = 0;
    let mut family = 0;
    while family < FAMILIES.len() {
        count += FAMILIES[family].1.len();
        family += 1;
    }
    count
}

#[expect(clippy::large_stack_arrays, reason = "the compiler runs it")]
const fn table() -> [Command; COMMANDS] {
    let mut table = [build::plain("", 0); COMMANDS];
    let mut id = 0;
    let mut family = 0;
    while family < FAMILIES.len() {
        let (group, commands) = FAMILIES[family];
        let mut index = 0;
        while index < commands.len() {
            let command = commands[index].group(group).id_of(id);
            table[id] = if has_container(command.name) { command.flags(Flags::SUBCOMMAND) } else { command };
            id += 1;
            index += 1;
        }
        family += 1;
    }
    table
}

/// True if a name is a subcommand's (`object|encoding`).
const fn has_container(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        if bytes[index] == b'|' {
            return true;
        }
        index += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{Class, Effect, Handling, Keys, all, find};
    use super::*;

    /// The commands of redis-server 7.0.15, as `tests/data/record-commands` recorded them.
    const REDIS_7: &str = include_str!("../../../../tests/data/commands-7.0.15.txt");

    /// One line of the recorded file: a command and its properties in Redis.
    struct Recorded {
        name: &'static str,
        arity: i16,
        positions: (i64, i64, i64),
        flags: BTreeSet<&'static str>,
        categories: BTreeSet<&'static str>,
    }

    fn recorded() -> impl Iterator<Item = Recorded> {
        REDIS_7.lines().map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [name, arity, first, last, step, flags, categories] = fields[..] else { panic!("{line}") };
            let number = |text: &str| text.parse().expect("a number");
            let set = |text: &'static str| text.split(',').filter(|word| *word != "-").collect();
            Recorded {
                name,
                arity: arity.parse().expect("a number"),
                positions: (number(first), number(last), number(step)),
                flags: set(flags),
                categories: set(categories),
            }
        })
    }

    fn entry(name: &str) -> &'static Command {
        all().iter().find(|command| command.name == name).unwrap_or_else(|| panic!("{name} is missing"))
    }

    #[test]
    fn every_command_of_redis_7_is_there_and_stands_as_redis_says() {
        for theirs in recorded() {
            let ours = entry(theirs.name);
            let arity = match ours.name {
                // Since Redis 7.2, ZRANK and ZREVRANK take WITHSCORE, and the other two commands accept a
                // command without arguments.
                "zrank" | "zrevrank" | "command|getkeys" | "command|getkeysandflags" => -3,
                _ => theirs.arity,
            };
            assert_eq!(ours.arity, arity, "{}", ours.name);
            assert_eq!(ours.keys.positions(), theirs.positions, "{}", ours.name);
        }
    }

    #[test]
    fn flags_are_those_of_redis_7() {
        for theirs in recorded() {
            let ours: BTreeSet<&str> = entry(theirs.name).flags.names().collect();
            assert_eq!(ours, theirs.flags, "{}", theirs.name);
        }
    }

    #[test]
    fn effects_agree_with_flags() {
        for theirs in recorded() {
            let command = entry(theirs.name);
            if theirs.flags.contains("write") {
                assert_eq!(command.effect, Effect::Write, "{}", command.name);
            }
            if command.effect == Effect::Read {
                assert!(theirs.flags.contains("readonly"), "{}", command.name);
            }
            // A script counts as a writer, because it does not say what it may write.
            if command.keys != Keys::None && command.class == Class::Script {
                assert_ne!(command.effect, Effect::None, "{}", command.name);
            }
        }
    }

    #[test]
    fn access_categories_are_those_of_redis_7() {
        // Redis puts these two commands into the category admin, but weir lets every user run them.
        for theirs in recorded().filter(|theirs| !matches!(theirs.name, "lastsave" | "role")) {
            let command = entry(theirs.name);
            let ours: BTreeSet<&str> = super::super::describe::categories(command).collect();
            assert_eq!(ours, theirs.categories, "{}", command.name);
        }
    }

    #[test]
    fn ids_are_places() {
        for (index, command) in all().iter().enumerate() {
            assert_eq!(usize::from(command.id().0), index, "{}", command.name);
        }
    }

    #[test]
    fn every_subcommand_has_a_container() {
        for command in all() {
            let Some((container, _)) = command.name.split_once('|') else { continue };
            let container = find(container.as_bytes()).expect("a command");
            assert!(container.flags.contains(Flags::CONTAINER), "{}", command.name);
            assert!(container.arity < 0, "{}", command.name);
        }
    }

    #[test]
    fn what_has_no_key_is_never_forwarded() {
        for command in all().iter().filter(|command| command.handling == Handling::Forward) {
            assert_ne!(command.keys, Keys::None, "{}: where would it go?", command.name);
        }
    }

    #[test]
    fn only_what_touches_everyone_needs_an_admin() {
        let admin: Vec<_> =
            all().iter().filter(|command| command.admin).map(|command| command.name).collect();
        let expected = [
            "flushall",
            "flushdb",
            "keys",
            "swapdb",
            "pfdebug",
            "pfselftest",
            "function|delete",
            "function|flush",
            "function|kill",
            "function|load",
            "function|restore",
            "function|stats",
            "script|flush",
            "script|kill",
            "acl|cat",
            "acl|genpass",
            "bgrewriteaof",
            "bgsave",
            "commandlog|get",
            "commandlog|len",
            "commandlog|reset",
            "config|resetstat",
            "config|rewrite",
            "config|set",
            "debug",
            "lastsave",
            "latency|doctor",
            "latency|graph",
            "latency|histogram",
            "latency|history",
            "latency|latest",
            "latency|reset",
            "memory|doctor",
            "memory|malloc-stats",
            "memory|purge",
            "memory|stats",
            "module|list",
            "save",
            "shutdown",
            "slowlog|get",
            "slowlog|len",
            "slowlog|reset",
        ];
        assert_eq!(admin, expected);
    }
}
