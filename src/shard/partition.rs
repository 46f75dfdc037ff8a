//! Partition of a request by key: the keys that may share a request to one store, and these requests.
//!
//! A request may have a million keys, and hashing and copying them takes tens of milliseconds. So a partition
//! can be made in steps, between which the core does its other work. No part of the request is sent before
//! its partition is whole; a request that is given up before that leaves nothing behind.
//!
//! | step | result |
//! |---|---|
//! | each key is hashed | its part; whether the request's tenant may use it |
//! | the keys are copied, unless all are in one part | the request of each part |

use crate::protocol::command::Repeats;
use crate::protocol::{Argument, Arguments, BufferPool, encode};
use crate::routing::slot_of;
use crate::shard::env::Env;
use crate::shard::hot_slots::HotSlots;
use crate::values::ShardId;
use crate::values::limits::{HOT_SPLIT_KEYS_MAX, SLOTS};

/// Maximum number of bytes around one word of a request: `$`, the length of the word and two line ends.
const BULK_HEAD_BYTES_MAX: usize = 1 + 10 + 4;
/// Maximum number of bytes of a request before its first key, without the name of the command.
const FRAME_HEAD_BYTES_MAX: usize = 1 + 10 + 2 + BULK_HEAD_BYTES_MAX;

/// Part of a split request: the keys that have one home core (the core through which a key's requests pass), backend
/// and connection; in front of a cluster, or of hot keys, those of one slot.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The home core (the core through which a key's requests pass) of all keys of the part, which sends the
    /// part's request.
    pub home: ShardId,
    /// Slot of the part's first key, which chooses the backend and the connection.
    pub slot: u16,
    /// Number of the request's keys that belong to the part.
    pub keys: u32,
    /// Length of the part's last key, in bytes; of its only key, if it has one.
    key_bytes: u32,
    /// Upper bound of the number of bytes of the part's request, for which memory is reserved.
    frame_bytes: usize,
}

impl Part {
    fn empty((home, slot): (ShardId, u16), arguments: &Arguments<'_>) -> Self {
        let frame_bytes = FRAME_HEAD_BYTES_MAX + arguments.name().len();
        Self { home, slot, keys: 0, key_bytes: 0, frame_bytes }
    }

    /// Adds a key, which is the word with this index among a request's words; `step` words are copied for it.
    fn add_key(&mut self, arguments: &Arguments<'_>, (index, step): (usize, usize)) {
        self.keys += 1;
        self.key_bytes = arguments.at(index).len() as u32;
        let words = (index..index + step).map(|word| arguments.at(word).len() + BULK_HEAD_BYTES_MAX);
        self.frame_bytes += words.sum::<usize>();
    }

    /// Returns the place of the part's only key in the bytes of its request (`frame`), which ends with the
    /// key.
    pub const fn place_of_key(&self, frame: &[u8]) -> Argument {
        const END: u32 = 2;
        Argument { start: frame.len() as u32 - END - self.key_bytes, length: self.key_bytes }
    }
}

/// Whether a request's tenant may use all its keys, as far as the keys have been checked while they were
/// assigned to parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Not known: the quotas have changed since the partition was begun.
    Unknown,
    /// No key has been found so far that the tenant may not use.
    Granted,
    /// The tenant may not use the key with this index among the request's words.
    Foreign(usize),
}

/// The parts of a request that is split by key, as far as they are known.
#[derive(Debug)]
pub struct Partition {
    /// Number of arguments per key: 2 for `MSET`, else 1.
    step: usize,
    /// True if each slot has a part of its own, because a cluster node refuses a request for keys of several
    /// slots.
    by_slot: bool,
    permission: Permission,
    /// Index of the part of each slot (in front of a cluster) or of each home core's connection to a backend;
    /// `u16::MAX` where there is none.
    part_at: Vec<u16>,
    parts: Vec<Part>,
    /// Index of each key's part, in the order of the keys.
    order: Vec<u16>,
    /// Encoded request of each part. The first `copied` keys of the client's request have been copied, each
    /// to the request of its own part.
    frames: Vec<Vec<u8>>,
    copied: usize,
    /// Record of the keys seen so far, which counts those that the request names more than once; None if they
    /// need not be counted.
    repeats: Option<Repeats>,
}

impl Partition {
    /// Begins to split a request that has `step` arguments per key; no key is assigned to a part yet.
    pub fn begin(env: &Env, step: usize, arguments: &Arguments<'_>) -> Self {
        let topology = env.settings.topology;
        let by_slot = env.slots.is_some();
        let places = if by_slot {
            usize::from(SLOTS)
        } else {
            let lanes = usize::from(env.settings.links_per_backend);
            usize::from(topology.shards()) * usize::from(topology.backends()) * lanes
        };
        Self {
            step,
            by_slot,
            permission: Permission::Granted,
            part_at: vec![u16::MAX; places],
            parts: Vec::new(),
            order: Vec::with_capacity((arguments.len() - 1) / step),
            frames: Vec::new(),
            copied: 0,
            repeats: None,
        }
    }

    /// Makes the partition count the keys that repeat an earlier key of the request, while it assigns keys to
    /// parts.
    #[must_use]
    pub fn counting_repeats(self) -> Self {
        Self { repeats: Some(Repeats::with_capacity(self.order.capacity())), ..self }
    }

    /// Returns how many of the keys assigned to parts so far repeat an earlier key of the request; None if
    /// that is not counted.
    pub fn repeated(&self) -> Option<usize> {
        self.repeats.as_ref().map(Repeats::count)
    }

    /// Splits a request at once: assigns all its keys, with `step` arguments each, to parts. With `hot`, keys
    /// of slots with hot keys are [set apart](Self::set_hot_apart).
    pub fn whole(env: &mut Env, step: usize, arguments: &Arguments<'_>, hot: Option<&HotSlots>) -> Self {
        let mut partition = Self::begin(env, step, arguments);
        partition.place(env, arguments, &[], usize::MAX);
        if let Some(hot) = hot {
            partition.set_hot_apart(arguments, hot);
        }
        partition.copy(&mut env.pool, arguments, usize::MAX);
        partition
    }

    /// True if [`Self::whole`] with `hot` divides a request with one argument per key even where all its keys could be
    /// in one part: there are at most 16 keys, and they have several slots, all of them with hot keys.
    pub fn divides(arguments: &Arguments<'_>, hot: &HotSlots) -> bool {
        if !may_divide(arguments.len() - 1, hot) {
            return false;
        }
        let mut slots = arguments.iter().skip(1).map(slot_of);
        let Some(first) = slots.next() else { return false };
        let mut has_several = false;
        let are_hot = slots.all(|slot| {
            has_several |= slot != first;
            hot.has(slot)
        });
        has_several && are_hot && hot.has(first)
    }

    /// Takes one step: assigns up to `keys_max` more keys to parts or, once all are assigned, copies up to
    /// `keys_max` more keys to the requests of their parts. True once all keys are assigned and copied. The
    /// tenant may use only keys that begin with one of `prefixes`; all keys if `prefixes` are empty.
    pub fn advance(
        &mut self,
        env: &mut Env,
        arguments: &Arguments<'_>,
        prefixes: &[String],
        keys_max: usize,
    ) -> bool {
        if self.order.len() < self.keys(arguments) {
            self.place(env, arguments, prefixes, keys_max);
        } else if self.is_split() {
            self.copy(&mut env.pool, arguments, keys_max);
        }
        self.is_whole(arguments)
    }

    /// True once all keys of the request are assigned to parts and, if there are several parts, copied to the
    /// parts' requests.
    fn is_whole(&self, arguments: &Arguments<'_>) -> bool {
        let keys = self.keys(arguments);
        self.order.len() == keys && (self.copied == keys || !self.is_split())
    }

    fn keys(&self, arguments: &Arguments<'_>) -> usize {
        (arguments.len() - 1) / self.step
    }

    /// True if the request's keys go to several destinations (core, backend, connection), each with a part of
    /// its own.
    fn is_split(&self) -> bool {
        self.parts.len() > 1
    }

    /// True if all keys are in their parts and the parts are still right: they are not if the core has got its first
    /// map of a cluster since the splitting began, as each slot needs a part of its own then.
    pub fn is_in_force(&self, env: &Env, arguments: &Arguments<'_>) -> bool {
        self.by_slot == env.slots.is_some() && self.is_whole(arguments)
    }

    /// Returns the part that has all keys of the request, once all are assigned; None if there are several
    /// parts.
    pub fn only_part(&self) -> Option<&Part> {
        self.parts.first().filter(|_| !self.is_split())
    }

    /// Returns whether the request's tenant may use all keys, as far as they have been checked while they
    /// were assigned to parts.
    pub fn permission(&self) -> Permission {
        self.permission
    }

    /// Forgets whether the tenant may use the keys that have been checked, because the quotas have changed.
    pub fn forget_permission(&mut self) {
        self.permission = Permission::Unknown;
    }

    /// Returns the parts, each with its request, and for each key, in the order of the keys, the index of its
    /// part.
    pub fn into_parts(self) -> (impl ExactSizeIterator<Item = (Part, Vec<u8>)>, Vec<u16>) {
        (self.parts.into_iter().zip(self.frames), self.order)
    }

    /// Returns the bytes of memory that the partition takes, which count towards its client's.
    pub fn memory_bytes(&self) -> usize {
        self.frames.iter().map(Vec::capacity).sum::<usize>()
            + (self.part_at.capacity() + self.order.capacity()) * size_of::<u16>()
            + self.parts.capacity() * size_of::<Part>()
            + self.repeats.as_ref().map_or(0, Repeats::memory_bytes)
    }

    /// Assigns the next keys, `keys_max` at most, to parts, and checks that the request's tenant may use
    /// these keys: each has to begin with one of `prefixes`, unless these are empty.
    fn place(&mut self, env: &Env, arguments: &Arguments<'_>, prefixes: &[String], keys_max: usize) {
        let settings = &env.settings;
        let (topology, step, by_slot) = (settings.topology, self.step, self.by_slot);
        let (backends, lanes) = (usize::from(topology.backends()), usize::from(settings.links_per_backend));
        let next = 1 + self.order.len() * step;
        for index in (next..arguments.len()).step_by(step).take(keys_max) {
            let key = arguments.at(index);
            if let Some(repeats) = &mut self.repeats {
                repeats.note(key);
            }
            let slot = slot_of(key);
            let home = topology.home_of(slot);
            // All keys of a part use one connection. If keys of different connections were in one part, a key
            // could be reached over two connections, and its requests overtake each other.
            let place = if by_slot {
                usize::from(slot)
            } else {
                (usize::from(home.0) * backends + usize::from(topology.backend_of(slot).0)) * lanes
                    + usize::from(settings.lane_of(slot))
            };
            if self.part_at[place] == u16::MAX {
                self.part_at[place] = self.parts.len() as u16;
                self.parts.push(Part::empty((home, slot), arguments));
            }
            let part = self.part_at[place];
            self.parts[usize::from(part)].add_key(arguments, (index, step));
            self.order.push(part);
            let is_foreign = || !prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()));
            if !prefixes.is_empty() && self.permission == Permission::Granted && is_foreign() {
                self.permission = Permission::Foreign(index);
            }
        }
    }

    /// Divides each part whose keys are all in slots with hot keys into one part for each slot, so that these
    /// keys are answered from memory or share fetches (shared reads of hot keys). Keys of one slot stay in one
    /// part, whose values are from one moment. A part with any other key goes to its store anyway, and stays as it is.
    /// Called when all keys are assigned to parts. Does nothing in front of a cluster, where each slot has a part of
    /// its own already, and for more than 16 keys.
    fn set_hot_apart(&mut self, arguments: &Arguments<'_>, hot: &HotSlots) {
        if self.by_slot || !may_divide(self.order.len(), hot) {
            return;
        }
        let step = self.step;
        let place_of = |key: usize| 1 + key * step;
        let slots: Vec<u16> = (0..self.order.len()).map(|key| slot_of(arguments.at(place_of(key)))).collect();
        let divided: Vec<bool> = (0..self.parts.len())
            .map(|part| {
                let mut own = slots.iter().zip(&self.order).filter(|(_, own)| usize::from(**own) == part);
                own.all(|(slot, _)| hot.has(*slot))
            })
            .collect();
        for (key, slot) in slots.iter().enumerate() {
            let part = usize::from(self.order[key]);
            let Part { home, slot: first, .. } = self.parts[part];
            if !divided[part] || first == *slot {
                continue;
            }
            let begun = self.parts[divided.len()..].iter().position(|other| other.slot == *slot);
            let own = begun.map_or(self.parts.len(), |begun| divided.len() + begun);
            if begun.is_none() {
                self.parts.push(Part::empty((home, *slot), arguments));
            }
            self.order[key] = own as u16;
        }
        for part in &mut self.parts {
            *part = Part::empty((part.home, part.slot), arguments);
        }
        for (key, part) in self.order.iter().enumerate() {
            self.parts[usize::from(*part)].add_key(arguments, (place_of(key), step));
        }
    }

    /// Copies the next keys of a request that is split, `keys_max` at most, with their values if they have
    /// any, to the requests of the parts (one part per destination) that the keys belong to.
    fn copy(&mut self, pool: &mut BufferPool, arguments: &Arguments<'_>, keys_max: usize) {
        let step = self.step;
        if self.frames.is_empty() {
            let mut begin = |part: &Part| {
                let mut frame = pool.take();
                // A request of megabytes would be copied each time that it outgrows its buffer.
                frame.reserve(part.frame_bytes);
                encode::array(&mut frame, 1 + part.keys as usize * step);
                encode::bulk(&mut frame, arguments.name());
                frame
            };
            self.frames = self.parts.iter().map(&mut begin).collect();
        }
        let begun = self.copied;
        for (index, part) in self.order.iter().enumerate().skip(begun).take(keys_max) {
            for word in 0..step {
                encode::bulk(&mut self.frames[usize::from(*part)], arguments.at(1 + index * step + word));
            }
            self.copied = index + 1;
        }
    }
}

/// True if a request with this number of keys may be divided because of hot keys: there are some, and the request has
/// at most 16 keys.
fn may_divide(keys: usize, hot: &HotSlots) -> bool {
    !hot.is_empty() && keys <= HOT_SPLIT_KEYS_MAX
}
