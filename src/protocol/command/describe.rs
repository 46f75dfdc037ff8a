//! Answers about commands: `COMMAND`, its subcommands, and `HELP` of every container.

use super::{Command, Flags, Group};

/// The access categories of a command, with the `@` before each.
pub fn categories(command: &Command) -> impl Iterator<Item = &'static str> {
    let flagged = |flag, category| command.flags.contains(flag).then_some(category);
    let scripted = command.group == Group::Scripting;
    let sorts = matches!(command.name, "sort" | "sort_ro");
    let family = match command.group {
        // A container that cannot stand alone is nothing that access could be given to.
        _ if command.flags.contains(Flags::CONTAINER) && !command.arity_fits(1) => None,
        Group::Generic if sorts => None,
        group => group.category(),
    };
    [
        flagged(Flags::WRITE, "@write"),
        flagged(Flags::READONLY, "@read").filter(|_| !scripted),
        flagged(Flags::ADMIN, "@admin"),
        flagged(Flags::PUBSUB, "@pubsub"),
        flagged(Flags::BLOCKING, "@blocking"),
        (command.flags.contains(Flags::ADMIN) || command.flags.contains(Flags::DANGEROUS))
            .then_some("@dangerous"),
        Some(if command.flags.contains(Flags::FAST) { "@fast" } else { "@slow" }),
        family,
    ]
    .into_iter()
    .flatten()
    .chain(sorts.then_some(["@set", "@sortedset", "@list"]).into_iter().flatten())
}
