//! The list of all commands of the store, whose functions lie in one file per command family.

use super::call::Command;
use super::directory::Directory;
use super::{
    administration, bit_fields, bits, blocking, configuration, connection, distinct_counts, dumps,
    field_lifetimes, hashes, keys, latency, lifetimes, lists, places, pubsub, server, sets, slow_log, sort,
    sorted_combinations, sorted_ranges, sorted_sets, stream_groups, stream_info, streams, strings,
    subsequences, transactions,
};

const FAMILIES: &[&[Command]] = &[
    strings::COMMANDS,
    subsequences::COMMANDS,
    bits::COMMANDS,
    bit_fields::COMMANDS,
    distinct_counts::COMMANDS,
    keys::COMMANDS,
    dumps::COMMANDS,
    sort::COMMANDS,
    lifetimes::COMMANDS,
    hashes::COMMANDS,
    field_lifetimes::COMMANDS,
    lists::COMMANDS,
    blocking::COMMANDS,
    sets::COMMANDS,
    sorted_sets::COMMANDS,
    sorted_ranges::COMMANDS,
    sorted_combinations::COMMANDS,
    places::COMMANDS,
    streams::COMMANDS,
    stream_groups::COMMANDS,
    stream_info::COMMANDS,
    connection::COMMANDS,
    server::COMMANDS,
    configuration::COMMANDS,
    administration::COMMANDS,
    slow_log::COMMANDS,
    latency::COMMANDS,
    transactions::COMMANDS,
    pubsub::COMMANDS,
    #[cfg(feature = "scripts")]
    super::scripts::COMMANDS,
];

/// Builds the directory in which the engine looks up a command by name.
pub(super) fn directory() -> Directory<Command> {
    Directory::new(FAMILIES.iter().copied().flatten().map(|command| (command.name, command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_nothing_else_is() {
        let directory = directory();
        assert_eq!(directory.len(), FAMILIES.iter().map(|family| family.len()).sum::<usize>());
        for (position, name) in directory.names().enumerate() {
            assert_eq!(directory.find(name.to_uppercase().as_bytes()), Some(position), "{name}");
            assert_eq!(directory.at(position).name, name);
        }
        for name in ["", "ge", "gett", "get\0", "a-name-that-is-far-too-long"] {
            assert_eq!(directory.find(name.as_bytes()), None, "{name}");
        }
    }
}
