//! The words in which the table is written.

use super::super::{
    Class, Command, CommandId, Effect, FanOut, Flags, Gather, Group, Handling, KeyCount, Keys, LocalCommand,
    Refusal,
};

/// Flags of nearly all commands about the server and about connections.
pub(super) const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
/// The same for those that scripts may not call.
pub(super) const NOT_SCRIPTED: Flags = Flags::NOSCRIPT.and(ANY_TIME);
/// The same for those that administer.
pub(super) const ADMINISTERS: Flags = Flags::ADMIN.and(NOT_SCRIPTED);

/// A command that reads the key at its first argument.
pub(super) const fn read(name: &'static str, arity: i16) -> Command {
    Command {
        effect: Effect::Read,
        class: Class::Point,
        keys: Keys::FIRST,
        flags: Flags::READONLY,
        ..plain(name, arity)
    }
}

/// A command that changes the key at its first argument.
pub(super) const fn write(name: &'static str, arity: i16) -> Command {
    Command { effect: Effect::Write, flags: Flags::WRITE, ..read(name, arity) }
}

/// A command without keys.
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

/// A command without keys that does not pass.
pub(super) const fn refused(name: &'static str, arity: i16, refusal: Refusal) -> Command {
    plain(name, arity).refused(refusal)
}

/// A command without keys that weir answers.
pub(super) const fn local(name: &'static str, arity: i16, command: LocalCommand) -> Command {
    plain(name, arity).locally(command)
}

/// A name that must be followed by a subcommand.
pub(super) const fn container(name: &'static str) -> Command {
    local(name, -2, LocalCommand::Help).flags(Flags::CONTAINER)
}

/// The list of a container's subcommands.
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

    /// It works on a stretch of a collection, or on all of it.
    pub(super) const fn over_range(self) -> Self {
        self.class(Class::Range)
    }

    /// Its work shows neither in the request nor in the reply: it combines, searches or copies inside the store.
    pub(super) const fn hides_work(self) -> Self {
        self.flags(Flags::HIDDEN_WORK)
    }

    /// The further away what it names is, the more it does.
    pub(super) const fn goes_far(self) -> Self {
        self.flags(Flags::FAR_WORK)
    }

    /// It walks the key space or a collection.
    pub(super) const fn walks(self) -> Self {
        self.class(Class::Scan)
    }

    /// It runs code of the client's, which may write whatever the command is called.
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

    /// Several keys, and little work for each.
    pub(super) const fn several(self, first: u8, last: i8, step: u8) -> Self {
        self.keys(first, last, step).class(Class::Multi)
    }

    /// Argument `at` says how many keys follow.
    pub(super) const fn counted(self, at: u8, count: KeyCount) -> Self {
        self.movable(Keys::NumKeys { at, destination: None, count })
    }

    /// The result goes to the key at the first argument; the second says how many keys follow.
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

    pub(super) const fn locally(self, command: LocalCommand) -> Self {
        Self { handling: Handling::Local(command), ..self }
    }

    pub(super) const fn refused(self, refusal: Refusal) -> Self {
        Self { handling: Handling::Refused(refusal), class: Class::Control, ..self }
    }

    /// It blocks, so it does not pass.
    pub(super) const fn blocks(self) -> Self {
        self.flags(Flags::BLOCKING).refused(Refusal::Blocks)
    }
}
