//! Destination of a request: the home core of its key; one backend, straight from this core and with no other
//! request of the client in flight, if its keys have several homes; several backends; or weir itself.

use super::Shard;
use crate::config::Tenant;
use crate::protocol::Arguments;
use crate::protocol::command::{
    Class, Command, Effect, FanOut, Flags, Gather, Handling, KeyError, Keys, LocalCommand, PrivateUse,
    Refusal, scan_cursor,
};
use crate::protocol::http::OF_CONNECTIONS;
use crate::routing::cluster::WalkStep;
use crate::routing::slot_of;
use crate::shard::clients::split_cursor;
use crate::shard::overload::Overload;
use crate::shard::partition::Partition;
use crate::shard::refusal::busy_with_script;
use crate::shard::request::NO_SLOT;
use crate::shard::request::Touches;
use crate::values::ClientId;
use crate::values::{BackendId, ShardId};

/// The cores and stores that a request goes to, or weir itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The request goes to the home core of all its keys (the core through which a key's requests pass),
    /// which sends it to the one backend that has them.
    Home { slot: u16, backend: BackendId, home: ShardId, touches: Touches },
    /// The request goes to a single backend, straight from the core that has the client, with no other
    /// request of the client in flight.
    Alone { slot: u16, backend: BackendId },
    /// The request is split by key over several backends or cores; `Gather` says how the replies are
    /// merged.
    Parts(Gather),
    /// The request goes to all backends (in a cluster, to all nodes that may have keys): the core that has the
    /// client sends it to each of them, and makes one reply of theirs as `FanOut` says.
    Stores(FanOut),
    /// The request is a `SCAN` and goes to the backend that its cursor names, with that backend's own
    /// cursor.
    Scan { backend: BackendId, cursor: u64 },
    /// The request is a `SCAN` over the nodes of a cluster, and goes to the node at which the walk has arrived,
    /// or is answered by weir if the walk has ended.
    Walk(WalkStep),
    /// The request goes to a single backend, over a connection that its client has to itself (private
    /// link).
    Private { slot: u16, backend: BackendId },
    /// The request goes to no store: weir itself answers this command.
    Weir(LocalCommand),
}

impl Destination {
    /// True if all earlier requests of the connection must be answered first: the request goes to stores other than
    /// through home cores (the cores through which keys' requests pass), or weir answers it and it changes the state
    /// of the connection or depends on earlier requests (such as `SELECT`, `EXEC`, `INFO`).
    #[inline]
    pub fn is_alone(self) -> bool {
        use LocalCommand::{
            ClientCaching, ClientReply, ClientTracking, Exec, Hello, Info, Monitor, Reset, Select,
        };
        match self {
            Self::Home { .. } | Self::Parts(_) => false,
            Self::Alone { .. }
            | Self::Stores(_)
            | Self::Scan { .. }
            | Self::Walk(_)
            | Self::Private { .. } => true,
            Self::Weir(local) => {
                matches!(
                    local,
                    ClientCaching
                        | ClientReply
                        | ClientTracking
                        | Exec
                        | Hello
                        // `INFO` waits for earlier requests, because the stores' figures must count them.
                        | Info
                        | Monitor
                        | Reset
                        | Select
                )
            }
        }
    }
}

impl Destination {
    /// Returns the backend that the request goes to, if it is only one; None for several, or for weir
    /// itself.
    pub fn backend(self) -> Option<BackendId> {
        match self {
            Self::Home { backend, .. }
            | Self::Alone { backend, .. }
            | Self::Scan { backend, .. }
            | Self::Private { backend, .. } => Some(backend),
            Self::Walk(WalkStep::Visit { node, .. }) => Some(node.backend),
            Self::Parts(_) | Self::Stores(_) | Self::Walk(_) | Self::Weir(_) => None,
        }
    }
}

/// Place of a request's keys: one or several backends, and home cores (the cores through which the keys'
/// requests pass).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// The request names no keys, so that nothing determines its backend.
    Nowhere,
    /// All keys of the request are on one backend, have one home core (the core through which a key's requests
    /// pass), and use the same one of its connections to the backend.
    Together { slot: u16, backend: BackendId, home: ShardId },
    /// All keys of the request are on one backend, but have several home cores (the cores through which the
    /// keys' requests pass) or use several connections.
    OneBackend { slot: u16, backend: BackendId },
    /// The keys of the request are on several backends; in a cluster, in several slots.
    Apart,
}

/// Text of the error for a request whose keys are not all on one backend (in a cluster, not all in one
/// slot).
pub(super) const CROSS_SLOT: &str =
    "CROSSSLOT Keys in request live on different stores; a common {tag} in their names keeps them together";

impl Shard {
    /// Returns the destination of a request that its client has permission to send; `handling` says how
    /// weir handles its `command`. The error is the text of the reply.
    #[inline]
    pub(super) fn destination(
        &mut self,
        id: ClientId,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) -> Result<Destination, String> {
        if matches!(handling, Handling::Forward)
            && !command.flags.contains(Flags::MULTIPLIES)
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
                    // The keys that it reads besides may be written by requests that are still on their way.
                    Placement::Together { slot, backend, .. } if command.has_key_patterns(arguments) => {
                        Ok(Destination::Alone { slot, backend })
                    }
                    Placement::Together { slot, backend, home } => {
                        let touches = touches_of(command, arguments);
                        Ok(Destination::Home { slot, backend, home, touches })
                    }
                    Placement::OneBackend { slot, backend } => Ok(Destination::Alone { slot, backend }),
                    Placement::Nowhere => Ok(self.first_backend()),
                    Placement::Apart => Err(CROSS_SLOT.to_owned()),
                }
            }
            // The reads and writes that a client sends behind it may be about the other database, over another
            // connection.
            Handling::BetweenDatabases => match self.placement(command, arguments) {
                Err(error) => Err(error.to_string()),
                Ok(Placement::Together { slot, backend, .. } | Placement::OneBackend { slot, backend }) => {
                    Ok(Destination::Alone { slot, backend })
                }
                Ok(Placement::Nowhere | Placement::Apart) => Err(CROSS_SLOT.to_owned()),
            },
            Handling::Refused(refusal) => Err(refusal.of(command).to_string()),
            // `XREAD` shows only by its arguments that it waits.
            Handling::Private(_) if self.clients.client(id).speaks_http() => {
                Err(format!("ERR {OF_CONNECTIONS}"))
            }
            Handling::Private(usage) => self.private_destination(id, (command, usage), arguments),
            Handling::Split(gather) => {
                if !(arguments.len() - 1).is_multiple_of(step_of(command)) {
                    return Err(format!("ERR wrong number of arguments for '{}' command", command.name));
                }
                let common = match self.clients.partition(&self.env, arguments) {
                    None => self.common_place(step_of(command), arguments),
                    Some(partition) => partition
                        .only_part()
                        .map(|part| (part.slot, self.env.backend_of(part.slot), part.home)),
                };
                let is_divided =
                    gather == Gather::Values && Partition::divides(arguments, self.hot_keys.slots());
                match common.filter(|_| !is_divided) {
                    Some((slot, backend, home)) => {
                        let touches = touches_of(command, arguments);
                        Ok(Destination::Home { slot, backend, home, touches })
                    }
                    None => Ok(Destination::Parts(gather)),
                }
            }
            Handling::FanOut(FanOut::Scan) if self.env.slots.is_some() => {
                let cursor = scan_cursor(arguments.at(1));
                let is_sure = self.env.is_sure(self.clients.client(id).began());
                Ok(Destination::Walk(self.env.walks.step(cursor.ok_or("ERR invalid cursor")?, is_sure)))
            }
            Handling::FanOut(FanOut::Scan) => {
                let cursor = split_cursor(arguments.at(1), self.env.settings.topology.backends());
                let (backend, cursor) = cursor.ok_or("ERR invalid cursor")?;
                Ok(Destination::Scan { backend: BackendId(backend), cursor })
            }
            Handling::FanOut(FanOut::One) => Ok(self.first_backend()),
            Handling::FanOut(FanOut::Channel) => {
                let (slot, backend) = self.store_of_channel(arguments.get(1).unwrap_or_default());
                Ok(Destination::Alone { slot, backend })
            }
            Handling::FanOut(FanOut::Patterns) if self.env.slots.is_none() => Ok(self.first_backend()),
            Handling::FanOut(fan_out) if fan_out != FanOut::Settings && self.has_one_store() => {
                let is_for_busy = command.flags.contains(Flags::ALLOW_BUSY);
                Ok(if is_for_busy { Destination::Stores(FanOut::Same) } else { self.first_backend() })
            }
            Handling::FanOut(fan_out) => Ok(Destination::Stores(fan_out)),
            Handling::Local(local @ (LocalCommand::ConfigGet | LocalCommand::Info)) => {
                let fan_out = asked_of_stores(local, self.tenant_of(id), arguments);
                Ok(fan_out.map_or(Destination::Weir(local), Destination::Stores))
            }
            Handling::Local(local) => Ok(Destination::Weir(local)),
        }
    }

    /// Returns the destination of a command that weir does not know: only the backend that owns the slot of
    /// the first argument after the name, or slot 0 if there is none.
    pub(super) fn destination_of_unknown(&self, arguments: &Arguments<'_>) -> Destination {
        let slot = arguments.get(1).map_or(0, slot_of);
        Destination::Alone { slot, backend: self.env.backend_of(slot) }
    }

    /// Returns the destination of a request that names no key: the first backend, with no other request of
    /// the client in flight.
    fn first_backend(&self) -> Destination {
        let (slot, backend) = self.first_place();
        Destination::Alone { slot, backend }
    }

    /// Returns the slot that requests without keys are sent with, and the first backend (in a cluster the
    /// first primary), to which they go.
    pub(super) fn first_place(&self) -> (u16, BackendId) {
        let primary = self.env.slots.as_ref().and_then(|slots| slots.primaries().next());
        (self.no_slot(), primary.map_or(BackendId(0), |node| node.key.backend))
    }

    /// Returns the slot that a request without keys is sent with: 0, or `NO_SLOT` (a number that is no
    /// slot) where weir stands in front of a cluster.
    pub(super) fn no_slot(&self) -> u16 {
        if self.env.slots.is_some() { NO_SLOT } else { 0 }
    }

    /// Returns how a command is handled with the settings in force: as `handling` says, but refused if it needs a
    /// connection that a client has to itself (private link) or is `MONITOR`, and the settings allow clients none, or
    /// if it waits for replicas (`WAIT`) and the stores are a cluster.
    #[inline]
    pub(super) fn in_force(&self, handling: Handling) -> Handling {
        match handling {
            Handling::Private(usage) if !self.private.is_on() => Handling::Refused(usage.refusal()),
            Handling::Local(LocalCommand::Monitor) if self.env.settings.clients.monitors.places() == 0 => {
                Handling::Refused(Refusal::Monitors)
            }
            // A slot may move while the command waits, and nothing without an effect on keys moves a cluster's
            // replication on, which must precede the command (`BEFORE_WAIT`).
            Handling::Private(usage @ PrivateUse::AwaitsCopies) if self.env.slots.is_some() => {
                Handling::Refused(usage.refusal())
            }
            handling => handling,
        }
    }

    /// Returns the error for clients while the only store is busy with a script and so answers nothing else; `None` if
    /// it is not busy, and if there are several stores or a cluster.
    pub(super) fn only_store_is_busy(&self) -> Option<String> {
        if !self.has_one_store() {
            return None;
        }
        let (_, backend) = self.first_place();
        Overload::is_busy_anywhere(&self.env.settings, backend)
            .then(|| busy_with_script(self.env.backend_name(backend)))
    }

    /// True if weir stands in front of one plain store, which has all keys.
    pub(super) fn has_one_store(&self) -> bool {
        self.env.slots.is_none() && self.env.settings.topology.backends() == 1
    }

    /// Returns the slot, backend and home core (the core through which a key's requests pass) of the only key of a
    /// request; None unless its command always has exactly one key, at a fixed place.
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

    /// Returns the slot of a request's first key, and the backend and home core (the core through which a key's
    /// requests pass), if all keys have the same ones and use the same connection (in a cluster, have the same slot);
    /// else None. The keys are every `step`th word from the first argument on. Stops at the first key that differs: a
    /// request may have a million keys, and each is looked at again when the request is split.
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

    /// Returns where the keys of a request are: on which backend, with which home core (the core through
    /// which a key's requests pass). An error if the keys cannot be read from its words.
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

/// Returns which keys a request reads or writes, for the home core (the core through which a key's requests
/// pass) that the request is sent to. The keys of a script or of a module's command that writes count as
/// unknown, since it may write keys that it does not name.
#[inline]
pub(super) fn touches_of(command: &Command, arguments: &Arguments<'_>) -> Touches {
    match command.keys {
        _ if command.class == Class::Script && command.effect == Effect::Write => Touches::UNKNOWN,
        Keys::Range { first, last, .. }
            if i16::from(first) == i16::from(last)
                || last == -1 && arguments.len() == usize::from(first) + 1 =>
        {
            Touches::key(command, arguments.places()[usize::from(first)])
        }
        _ => Touches::KEYS,
    }
}

/// Returns how the stores are asked about a command (`local`) that weir answers itself for most tenants; None if weir
/// answers it for this tenant, too. An administrator's `CONFIG GET` goes to the stores, and anybody's for what
/// programs that wait for events of keys ask when they start. So does an `INFO` for the numbers of keys alone, from a
/// tenant that may use all keys.
pub(super) fn asked_of_stores(
    local: LocalCommand,
    tenant: Option<&Tenant>,
    arguments: &Arguments<'_>,
) -> Option<FanOut> {
    let is_admin = || tenant.is_some_and(|tenant| tenant.admin);
    let has_all_keys = || tenant.is_some_and(|tenant| tenant.keys.is_empty() && tenant.databases.is_empty());
    match local {
        LocalCommand::ConfigGet if is_admin() || asks_for_events(arguments) => Some(FanOut::Settings),
        LocalCommand::Info
            if arguments.len() == 2
                && arguments.at(1).eq_ignore_ascii_case(b"keyspace")
                && has_all_keys() =>
        {
            Some(FanOut::KeyCounts)
        }
        _ => None,
    }
}

/// True if all parameters that `CONFIG GET` asks for are `notify-keyspace-events`, whose value only stores know.
pub(super) fn asks_for_events(arguments: &Arguments<'_>) -> bool {
    arguments.iter().skip(2).all(|word| word.eq_ignore_ascii_case(b"notify-keyspace-events"))
}

/// Returns the number of words per key in a command that is split by key: 2 for `MSET`, else 1.
pub(super) fn step_of(command: &Command) -> usize {
    match command.keys {
        Keys::Range { step, .. } => usize::from(step),
        _ => unreachable!("a command that is split has its keys in a range"),
    }
}

impl Placement {
    /// Returns the slot of a request's first key, as long as all of its keys seen so far are on one backend.
    /// None if they are on several, or no key was seen.
    fn slot(self) -> Option<u16> {
        match self {
            Self::Together { slot, .. } | Self::OneBackend { slot, .. } => Some(slot),
            Self::Nowhere | Self::Apart => None,
        }
    }

    /// Returns the placement of a request's keys seen so far together with one more key, which has the given
    /// slot, backend and home core. `lane_of` returns the number of the connection, among a core's connections
    /// to a backend, that a slot uses.
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
