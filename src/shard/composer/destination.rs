//! Where a request goes: one key to its home core, several on one backend together, from here, and alone.

use super::Shard;
use crate::protocol::Arguments;
use crate::protocol::command::{
    Class, Command, Effect, FanOut, Gather, Handling, KeyError, Keys, LocalCommand,
};
use crate::routing::cluster::WalkStep;
use crate::routing::slot_of;
use crate::shard::back::NO_SLOT;
use crate::shard::front::split_cursor;
use crate::shard::request::Touches;
use crate::values::ClientId;
use crate::values::{BackendId, ShardId};

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To the core that its keys are at home on.
    Home { slot: u16, backend: BackendId, home: ShardId, touches: Touches },
    /// To a backend, from here, with nothing else of its client in flight.
    Alone { slot: u16, backend: BackendId },
    /// Apart by key.
    Parts(Gather),
    /// To every backend.
    Stores(FanOut),
    /// To the backend that a cursor names, from the cursor that one gave.
    Scan { backend: BackendId, cursor: u64 },
    /// The next step of a walk over the nodes of a cluster.
    Walk(WalkStep),
    /// Nowhere: weir answers.
    Weir(LocalCommand),
}

impl Destination {
    /// Must all earlier requests of the connection be answered first? It has no one home, or changes the dialect.
    #[inline]
    pub fn is_alone(self) -> bool {
        use LocalCommand::{Exec, Hello, Reset};
        match self {
            Self::Home { .. } | Self::Parts(_) => false,
            Self::Alone { .. } | Self::Stores(_) | Self::Scan { .. } | Self::Walk(_) => true,
            Self::Weir(local) => matches!(local, Exec | Hello | Reset),
        }
    }
}

impl Destination {
    /// The only backend that it goes to.
    pub fn backend(self) -> Option<BackendId> {
        match self {
            Self::Home { backend, .. } | Self::Alone { backend, .. } | Self::Scan { backend, .. } => {
                Some(backend)
            }
            Self::Walk(WalkStep::Visit { node, .. }) => Some(node.backend),
            Self::Parts(_) | Self::Stores(_) | Self::Walk(_) | Self::Weir(_) => None,
        }
    }
}

/// Where the keys of a request live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// There are no keys.
    Nowhere,
    /// All on one core and one backend, over one connection.
    Together { slot: u16, backend: BackendId, home: ShardId },
    /// On one backend, but at home on several cores, or over several connections.
    OneBackend { slot: u16, backend: BackendId },
    /// On several backends.
    Apart,
}

/// The error for keys that no single store has.
pub(super) const CROSS_SLOT: &str =
    "CROSSSLOT Keys in request live on different stores; a common {tag} in their names keeps them together";

impl Shard {
    /// Where a request goes that its client may send. The error is the reply.
    #[inline]
    pub(super) fn destination(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) -> Result<Destination, String> {
        if matches!(handling, Handling::Forward)
            && let Some((slot, backend, home)) = self.place_of_only_key(command, arguments)
        {
            let touches = touches_of(command, arguments);
            return Ok(Destination::Home { slot, backend, home, touches });
        }
        self.destination_of_others(id, command, handling, arguments)
    }

    #[inline(never)]
    fn destination_of_others(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) -> Result<Destination, String> {
        match handling {
            Handling::Forward => {
                match self.placement(command, arguments).map_err(|error| error.to_string())? {
                    Placement::Together { slot, backend, home } => {
                        let touches = touches_of(command, arguments);
                        Ok(Destination::Home { slot, backend, home, touches })
                    }
                    Placement::OneBackend { slot, backend } => Ok(Destination::Alone { slot, backend }),
                    Placement::Nowhere => Ok(self.first_backend()),
                    Placement::Apart => Err(CROSS_SLOT.to_owned()),
                }
            }
            Handling::Refused(refusal) => Err(refusal.of(command).to_string()),
            Handling::Split(gather) => {
                if !(arguments.len() - 1).is_multiple_of(step_of(command)) {
                    return Err(format!("ERR wrong number of arguments for '{}' command", command.name));
                }
                match self.common_place(step_of(command), arguments) {
                    Some((slot, backend, home)) => {
                        let touches = touches_of(command, arguments);
                        Ok(Destination::Home { slot, backend, home, touches })
                    }
                    None => Ok(Destination::Parts(gather)),
                }
            }
            Handling::FanOut(FanOut::Scan) if self.env.slots.is_some() => {
                let cursor = std::str::from_utf8(arguments.at(1)).ok().and_then(|word| word.parse().ok());
                let came = self.front.client(id).came();
                let is_sure = self.env.is_sure(came);
                Ok(Destination::Walk(self.env.walks.step(cursor.ok_or("ERR invalid cursor")?, is_sure)))
            }
            Handling::FanOut(FanOut::Scan) => {
                let cursor = split_cursor(arguments.at(1), self.env.settings.topology.backends());
                let (backend, cursor) = cursor.ok_or("ERR invalid cursor")?;
                Ok(Destination::Scan { backend: BackendId(backend), cursor })
            }
            Handling::FanOut(FanOut::One) => Ok(self.first_backend()),
            Handling::FanOut(fan_out) if fan_out != FanOut::Settings && self.has_one_store() => {
                Ok(self.first_backend())
            }
            Handling::FanOut(fan_out) => Ok(Destination::Stores(fan_out)),
            // Whoever administers asks the stores.
            Handling::Local(LocalCommand::ConfigGet) if self.is_admin(id) => {
                Ok(Destination::Stores(FanOut::Settings))
            }
            Handling::Local(local) => Ok(Destination::Weir(local)),
        }
    }

    /// Where a command goes that is in no table.
    pub(super) fn destination_of_unknown(&self, arguments: &Arguments<'_>) -> Destination {
        let slot = arguments.get(1).map_or(0, slot_of);
        Destination::Alone { slot, backend: self.env.backend_of(slot) }
    }

    /// Where goes what names no key.
    fn first_backend(&self) -> Destination {
        let (slot, backend) = self.first_place();
        Destination::Alone { slot, backend }
    }

    /// The same as a slot and a backend.
    pub(super) fn first_place(&self) -> (u16, BackendId) {
        let primary = self.env.slots.as_ref().and_then(|slots| slots.primaries().next());
        (self.no_slot(), primary.map_or(BackendId(0), |node| node.key.backend))
    }

    /// The slot of what goes to a backend for another reason.
    pub(super) fn no_slot(&self) -> u16 {
        if self.env.slots.is_some() { NO_SLOT } else { 0 }
    }

    /// Is there only one store, which has all keys?
    pub(super) fn has_one_store(&self) -> bool {
        self.env.slots.is_none() && self.env.settings.topology.backends() == 1
    }

    /// Where the key of a request lives that has exactly one.
    #[inline]
    fn place_of_only_key(
        &self,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Option<(u16, BackendId, ShardId)> {
        let Keys::Range { first, last, .. } = command.keys else { return None };
        if i16::from(first) != i16::from(last) {
            return None;
        }
        let slot = slot_of(arguments.at(usize::from(first)));
        Some((slot, self.env.backend_of(slot), self.env.settings.topology.home_of(slot)))
    }

    /// The place where all keys of a request that can be split live. Looks no further than to the first key that lives elsewhere: a
    /// request may have a million, and each is looked at again where it goes apart.
    fn common_place(&self, step: usize, arguments: &Arguments<'_>) -> Option<(u16, BackendId, ShardId)> {
        let settings = &self.env.settings;
        let mut keys = (1..arguments.len()).step_by(step).map(|index| slot_of(arguments.at(index)));
        let slot = keys.next()?;
        let place = |slot| (self.env.backend_of(slot), settings.topology.home_of(slot));
        let (backend, home) = place(slot);
        let is_together = if self.env.slots.is_some() {
            keys.all(|other| other == slot)
        } else {
            keys.all(|other| {
                other == slot
                    || place(other) == (backend, home) && settings.lane_of(other) == settings.lane_of(slot)
            })
        };
        is_together.then_some((slot, backend, home))
    }

    /// Where the keys of a request live.
    pub(super) fn placement(
        &self,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Result<Placement, KeyError> {
        let settings = &self.env.settings;
        let topology = settings.topology;
        if let Some((slot, backend, home)) = self.place_of_only_key(command, arguments) {
            return Ok(Placement::Together { slot, backend, home });
        }
        let mut placement = Placement::Nowhere;
        command.for_each_key(arguments, &mut |index| {
            let slot = slot_of(arguments.at(index));
            let (backend, home) = (self.env.backend_of(slot), topology.home_of(slot));
            let is_apart = self.env.slots.is_some() && placement.slot().is_some_and(|other| other != slot);
            placement = if is_apart {
                Placement::Apart
            } else {
                placement.and(slot, backend, home, |slot| settings.lane_of(slot))
            };
        })?;
        Ok(placement)
    }
}

/// Which keys a request is about that goes to their home. What a script writes only its author knows.
#[inline]
pub(super) fn touches_of(command: &Command, arguments: &Arguments<'_>) -> Touches {
    match command.keys {
        Keys::Range { first, last, .. }
            if i16::from(first) == i16::from(last)
                || last == -1 && arguments.len() == usize::from(first) + 1 =>
        {
            Touches::key(command, arguments.places()[usize::from(first)])
        }
        _ if command.class == Class::Script && command.effect == Effect::Write => Touches::UNKNOWN,
        _ => Touches::KEYS,
    }
}

/// How many words stand with each key of a command that is split.
pub(super) fn step_of(command: &Command) -> usize {
    match command.keys {
        Keys::Range { step, .. } => usize::from(step),
        _ => unreachable!("a command that is split has its keys in a range"),
    }
}

impl Placement {
    /// The slot of the first key, as long as all are together.
    fn slot(self) -> Option<u16> {
        match self {
            Self::Together { slot, .. } | Self::OneBackend { slot, .. } => Some(slot),
            Self::Nowhere | Self::Apart => None,
        }
    }

    /// The same with one more key.
    fn and(self, slot: u16, backend: BackendId, home: ShardId, lane_of: impl Fn(u16) -> u16) -> Self {
        match self {
            Self::Nowhere => Self::Together { slot, backend, home },
            Self::Together { backend: other, .. } | Self::OneBackend { backend: other, .. }
                if other != backend =>
            {
                Self::Apart
            }
            Self::Together { slot: first, home: other, .. }
                if other != home || lane_of(first) != lane_of(slot) =>
            {
                Self::OneBackend { slot: first, backend }
            }
            same => same,
        }
    }
}
