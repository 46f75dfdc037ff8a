//! Constructors and modifiers with which the entries of the table of commands are written.

use super::super::{
    Class, Command, CommandId, Effect, FanOut, Flags, Gather, Group, Handling, KeyCount, Keys, LocalCommand,
    PrivateUse, Refusal,
};

/// Flags of nearly all commands about the server and about connections, which a store answers while it loads
/// its data, and as a replica without its primary.
pub(super) const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
/// Flags of commands that scripts may not call, and that a store answers while it loads its data, and as a
/// replica without its primary.
pub(super) const NOT_SCRIPTED: Flags = Flags::NOSCRIPT.and(ANY_TIME);
/// Flags of commands that administer the server: scripts may not call them, and a store answers them while it
/// loads its data, and as a replica without its primary.
pub(super) const ADMINISTERS: Flags = Flags::ADMIN.and(NOT_SCRIPTED);

/// Creates the entry of a command that reads the key at its first argument. `arity` is the number of its
/// words; negative for a least number.
pub(super) const fn read(name: &'static str, arity: i16) -> Command {
    Command {
        effect: Effect::Read,
        class: Class::Point,
        keys: Keys::FIRST,
        flags: Flags::READONLY,
        ..plain(name, arity)
    }
}

/// Creates the entry of a command that changes the key at its first argument. `arity` is the number of its
/// words; negative for a least number.
pub(super) const fn write(name: &'static str, arity: i16) -> Command {
    Command { effect: Effect::Write, flags: Flags::WRITE, ..read(name, arity) }
}

/// Creates the entry of a command without keys, on which the other constructors are based. Its handling is to
/// forward, so a caller has to set another one or to set keys: without keys there is no store to forward to.
/// `arity` is the number of its words; negative for a least number.
pub(super) const fn plain(name: &'static str, arity: i16) -> Command {
    Command {
        name,
        arity,
        effect: Effect::None,
        class: Class::Control,
        keys: Keys::None,
        handling: Handling::Forward,
        admin: false,
        flags: Flags::NONE,
        group: Group::Generic,
        id: CommandId(u16::MAX),
    }
}

/// Creates the entry of a command without keys that weir refuses, with the reason. `arity` is the number of
/// its words; negative for a least number.
pub(super) const fn refused(name: &'static str, arity: i16, refusal: Refusal) -> Command {
    plain(name, arity).refused(refusal)
}

/// Creates the entry of a command without keys that weir answers itself. `arity` is the number of its words;
/// negative for a least number.
pub(super) const fn local(name: &'static str, arity: i16, command: LocalCommand) -> Command {
    plain(name, arity).locally(command)
}

/// Creates the entry of a container command, whose name must be followed by a subcommand (`OBJECT`).
pub(super) const fn container(name: &'static str) -> Command {
    local(name, -2, LocalCommand::Help).flags(Flags::CONTAINER)
}

/// Creates the entry of a subcommand `HELP`, which lists a container's subcommands.
pub(super) const fn help(name: &'static str) -> Command {
    local(name, 2, LocalCommand::Help).flags(ANY_TIME)
}

impl Command {
    pub(super) const fn flags(self, flags: Flags) -> Self {
        Self { flags: self.flags.and(flags), ..self }
    }

    pub(super) const fn fast(self) -> Self {
        self.flags(Flags::FAST)
    }

    pub(super) const fn cacheable(self) -> Self {
        self.flags(Flags::CACHEABLE)
    }

    pub(super) const fn needs_memory(self) -> Self {
        self.flags(Flags::DENYOOM)
    }

    pub(super) const fn dangerous(self) -> Self {
        self.flags(Flags::DANGEROUS)
    }

    pub(super) const fn admin_only(self) -> Self {
        Self { admin: true, ..self }
    }

    pub(super) const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    pub(super) const fn group(self, group: Group) -> Self {
        Self { group, ..self }
    }

    pub(super) const fn id_of(self, index: usize) -> Self {
        Self { id: CommandId(index as u16), ..self }
    }

    /// Marks a command that reads a range of a collection, or all of it, so that its price depends on the
    /// range.
    pub(super) const fn over_range(self) -> Self {
        self.class(Class::Range)
    }

    /// Marks a command whose amount of work can be seen neither in the request nor in the reply: it combines,
    /// searches or copies data inside the store.
    pub(super) const fn hides_work(self) -> Self {
        self.flags(Flags::HIDDEN_WORK)
    }

    /// Marks a command whose work grows with a number among its arguments, such as the index of an element in
    /// a list, or with the square of its number of keys (`WATCH`).
    pub(super) const fn goes_far(self) -> Self {
        self.flags(Flags::FAR_WORK)
    }

    /// Marks a command whose requests may make a store repeat its work (by repeated keys, long patterns and
    /// the like), so that weir limits how often (`../multiplied.rs`).
    pub(super) const fn multiplies(self) -> Self {
        self.flags(Flags::MULTIPLIES)
    }

    /// Marks a command that steps through the key space or a whole collection, so that it counts as a scan.
    pub(super) const fn walks(self) -> Self {
        self.class(Class::Scan)
    }

    /// Marks a command that runs a client's code, which may write unless the command is only for reading.
    /// `count` is the rule for its number of keys.
    pub(super) const fn runs_code(self, count: KeyCount) -> Self {
        let flags = Flags::NOSCRIPT.and(Flags::STALE).and(Flags::SKIP_MONITOR).and(Flags::NO_MANDATORY_KEYS);
        let effect = if self.flags.contains(Flags::READONLY) { Effect::Read } else { Effect::Write };
        Self { effect, ..self }.class(Class::Script).flags(flags).counted(2, count)
    }

    pub(super) const fn keys(self, first: u8, last: i8, step: u8) -> Self {
        Self { keys: Keys::Range { first, last, step }, ..self }
    }

    pub(super) const fn keyless(self) -> Self {
        Self { keys: Keys::None, ..self }
    }

    /// Marks a command on several keys, at every `step`th argument from `first` to `last`, with little work
    /// for each.
    pub(super) const fn several(self, first: u8, last: i8, step: u8) -> Self {
        self.keys(first, last, step).class(Class::Multi)
    }

    /// Marks a command whose keys follow their number, which is argument `at`; `count` has the errors for a
    /// wrong number.
    pub(super) const fn counted(self, at: u8, count: KeyCount) -> Self {
        self.movable(Keys::NumKeys { at, destination: None, count })
    }

    /// Marks a command that stores its result in the key at its first argument, and whose second argument is
    /// the number of keys that follow; `count` has the errors for a wrong number.
    pub(super) const fn stored_and_counted(self, count: KeyCount) -> Self {
        self.movable(Keys::NumKeys { at: 2, destination: Some(1), count })
    }

    pub(super) const fn movable(self, keys: Keys) -> Self {
        Self { keys, ..self }.flags(Flags::MOVABLE_KEYS)
    }

    pub(super) const fn split(self, gather: Gather) -> Self {
        Self { handling: Handling::Split(gather), ..self }
    }

    pub(super) const fn to_all(self, fan_out: FanOut) -> Self {
        Self { handling: Handling::FanOut(fan_out), keys: Keys::None, ..self }
    }

    /// Marks a command that changes keys of two databases.
    pub(super) const fn between_databases(self) -> Self {
        Self { handling: Handling::BetweenDatabases, ..self }
    }

    pub(super) const fn locally(self, command: LocalCommand) -> Self {
        Self { handling: Handling::Local(command), ..self }
    }

    pub(super) const fn refused(self, refusal: Refusal) -> Self {
        Self { handling: Handling::Refused(refusal), class: Class::Control, ..self }
    }

    /// Marks a command that waits at its store until there is data to return.
    pub(super) const fn blocks(self) -> Self {
        self.flags(Flags::BLOCKING).multiplies().privately(PrivateUse::Waits)
    }

    /// Marks a command that needs a connection to its store that no other client uses, for the reason
    /// `usage`.
    pub(super) const fn privately(self, usage: PrivateUse) -> Self {
        Self { handling: Handling::Private(usage), ..self }
    }
}
