//! The replies to the parts of one request, joined into one reply. In an array of values, a failed part fails
//! only its own keys.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use slab::Slab;

use super::message::Message;
use super::outcome::{Outcome, Settlement};
use super::shared_channel::OwnNumbers;
use super::shared_numbers::SharedNumbers;
use super::stored::Stored;
use crate::protocol::command::Effect;
use crate::protocol::reply::{self, Elements};
use crate::protocol::{Arguments, BufferPool, Protocol, encode};
use crate::values::limits::KEYS_PER_TURN;

/// The way in which the replies to the parts of a request are joined into one reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// An array with one value per key (`MGET`). The list says for each key which part of the split request
    /// has its value.
    Values(Vec<u16>),
    /// The reply to the first part (`OK`) if no part failed (`MSET`, `FLUSHALL`), else the first error, which
    /// says so if other parts may have been carried out.
    AllOk,
    /// The sum of the integers in the replies to all parts (`DEL`, `DBSIZE`), or the first error; that of a write says
    /// so if other parts may have been carried out.
    Sum,
    /// The arrays in the replies to all parts (`KEYS`), one after the other, or the first error.
    Concat,
    /// A reply of a part that is neither null nor an error (`RANDOMKEY`): of several, the number chooses one
    /// (modulo their count). If there is none, the first error; without an error, null.
    NonNull(u8),
    /// An array of integers (`SCRIPT EXISTS`), each 1 where every part says 1 and else 0; or the first error.
    Every,
    /// The reply to the first part, since all stores reply alike (`SCRIPT LOAD`); or the first error.
    Same,
    /// The first reply of a part that is not an error (`SCRIPT KILL`); the first error if all are errors.
    AnyOk,
    /// The distinct elements of the arrays in the replies to all parts (`PUBSUB CHANNELS`), or the first
    /// error.
    Union,
    /// An array in which each integer is the sum of the parts' integers at that position, and any other element is the
    /// first part's; or the first error.
    SumEach,
    /// The sum of the parts' replies to `PUBLISH` or `PUBSUB NUMSUB`, or the first error. Stores count weir's own
    /// connections as subscribers; the reply counts the clients of this process in their place.
    Receivers(Box<Receivers>),
    /// The first part's reply to `CONFIG GET` without secret settings, or the first error.
    Settings,
    /// The numbers of keys in the parts' replies to `INFO keyspace`, added up by database; or the first error.
    KeyCounts,
    /// A map from each store's name to its reply (`LASTSAVE`); the first error if all are errors.
    ByStore(Vec<String>),
}

/// The channels whose numbers of subscribers a reply states, with the data to correct these numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receivers {
    channels: Vec<Box<[u8]>>,
    /// True for the reply to `PUBLISH`, which also counts subscribers by patterns.
    is_message: bool,
    /// For each channel, the number of this process's connections that a store counts as subscribers, and of
    /// the clients on whose behalf they are subscribed.
    own: Vec<OwnNumbers>,
}

impl Receivers {
    /// Creates the record for a `PUBLISH` to this channel. [`Self::count_own`] adds the numbers by which a
    /// store's reply is corrected.
    pub fn of_message(channel: &[u8]) -> Self {
        Self { channels: vec![channel.into()], is_message: true, own: Vec::new() }
    }

    /// Creates the record for `PUBSUB NUMSUB` of these channels. [`Self::count_own`] adds the numbers by
    /// which a store's reply is corrected.
    pub fn of_channels<'a>(channels: impl Iterator<Item = &'a [u8]>) -> Self {
        Self { channels: channels.map(Box::from).collect(), is_message: false, own: Vec::new() }
    }

    /// Records the present numbers of this process's own subscriptions to each channel.
    pub fn count_own(&mut self, numbers: &SharedNumbers) {
        let own = |channel: &[u8]| {
            if self.is_message { numbers.of_message(channel) } else { numbers.of_channel(channel) }
        };
        self.own = self.channels.iter().map(|channel| own(channel)).collect();
    }

    fn bytes(&self) -> usize {
        let names: usize = self.channels.iter().map(|channel| channel.len()).sum();
        names + self.channels.len() * (size_of::<Box<[u8]>>() + size_of::<OwnNumbers>())
    }

    fn correct(&self, index: usize, counted: i64) -> i64 {
        self.own.get(index).copied().unwrap_or_default().correct(counted)
    }
}

#[derive(Debug)]
struct Gathering {
    join: Join,
    effect: Effect,
    protocol: Protocol,
    parts: Vec<Option<Part>>,
    missing: usize,
    /// Bytes of memory that a split request takes: the replies to its parts that have come, except the last,
    /// and the tables of parts, keys and channels.
    bytes: usize,
    /// Bytes of the last part's reply while the reply to the whole request is joined over several turns (passes of
    /// the shard's loop); 0 before.
    last_bytes: usize,
    settlement: Settlement,
    /// The reply to a split request as far as it is joined from the parts' replies, if that takes several
    /// turns (passes of the shard's loop); None else.
    joining: Option<Box<Joining>>,
}

/// An array of values that is joined over several turns (passes of the shard's loop).
#[derive(Debug)]
struct Joining {
    reply: Vec<u8>,
    /// Number of values that have been joined into the reply so far.
    joined: usize,
    /// For each part, the bytes and the elements of its reply that are not joined yet; None for a reply that
    /// is not an array.
    left: Vec<Option<(usize, usize)>>,
}

#[derive(Debug)]
struct Part {
    reply: Stored,
    outcome: Outcome,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        self.reply.bytes()
    }

    /// True if the part's write was carried out by its store, or may have been, at least in part: its reply was lost,
    /// or is an error that says so.
    fn may_have_happened(&self) -> bool {
        let reply = self.bytes();
        self.outcome == Outcome::Lost || !is_error(reply) || reply.ends_with(MAY_HAVE_HAPPENED)
    }
}

/// The result when the reply to one part arrives.
#[derive(Debug)]
pub enum Arrival {
    /// Other parts have not replied yet, so the reply is stored: this number of bytes.
    Stored(usize),
    /// The last missing part has come, and the reply to the whole request is ready to be sent.
    Joined {
        /// The joined reply to the whole request.
        reply: Vec<u8>,
        /// The bytes of memory that the tables and the replies to the other parts took until now.
        waited: usize,
        /// The measurements of all parts, from which the cost of the request follows.
        settlement: Settlement,
    },
    /// The last part has come, and there are so many values that the caller joins them over several turns
    /// (passes of the shard's loop), with [`Gathers::go_on_joining`].
    Complete {
        /// The number of bytes of the last part's reply, which is stored until then.
        stored: usize,
        /// The measurements of all parts, from which the cost of the request follows.
        settlement: Settlement,
    },
}

/// The split requests of a shard that wait for the replies to their parts, with the replies that have come.
#[derive(Debug, Default)]
pub struct Gathers(Slab<Gathering>);

impl Gathers {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Registers a request that is split into `parts` parts, whose replies will be joined by the rule `join`.
    /// `effect` says whether the request writes, `protocol` is the RESP version of the joined reply. Returns
    /// the request's index, and the bytes of memory that it takes until the parts come.
    pub fn insert(
        &mut self,
        (join, effect): (Join, Effect),
        protocol: Protocol,
        parts: usize,
    ) -> (u32, usize) {
        let order = match &join {
            Join::Values(order) => size_of_val(order.as_slice()),
            Join::Receivers(receivers) => receivers.bytes(),
            _ => 0,
        };
        let bytes = order + parts * size_of::<Option<Part>>();
        let places = std::iter::repeat_with(|| None).take(parts).collect();
        let index = self.0.insert(Gathering {
            join,
            effect,
            protocol,
            parts: places,
            missing: parts,
            bytes,
            last_bytes: 0,
            settlement: Settlement::default(),
            joining: None,
        });
        (index as u32, bytes)
    }

    /// Adds the reply (`message`) to one part of the request with this index; `outcome` has the part's
    /// measurements. With the last part, joins all replies into one, without those of the parts in `left_out`
    /// (refused by nodes in whose place other nodes will be asked); an array of values of more than
    /// `bytes_max` bytes is replaced by an error. If there are very many values, the caller joins them later
    /// instead ([`Arrival::Complete`]).
    pub fn part_arrived(
        &mut self,
        index: u32,
        (part, outcome, message): (u16, Outcome, Message<'_>),
        left_out: &[u16],
        bytes_max: usize,
        pool: &mut BufferPool,
    ) -> Arrival {
        let gathering = &mut self.0[index as usize];
        let place = &mut gathering.parts[usize::from(part)];
        debug_assert!(place.is_none(), "one reply per part");
        *place = Some(Part { reply: Stored::new(message, pool), outcome });
        gathering.settlement.add(outcome);
        gathering.missing -= 1;
        if gathering.missing > 0 {
            gathering.bytes += message.bytes().len();
            return Arrival::Stored(message.bytes().len());
        }
        if gathering.has_many_values() {
            debug_assert!(left_out.is_empty(), "requests to nodes have no values of keys");
            let stored = message.bytes().len();
            gathering.last_bytes = stored;
            return Arrival::Complete { stored, settlement: gathering.settlement };
        }
        let mut gathering = self.0.remove(index as usize);
        let out = left_out.iter().filter_map(|part| gathering.parts.get_mut(usize::from(*part))?.take());
        out.for_each(|part| part.reply.release(pool));
        let mut reply = pool.take();
        gathering.join(&mut reply, bytes_max);
        let (waited, settlement) = (gathering.bytes, gathering.settlement);
        gathering.release(pool);
        Arrival::Joined { reply, waited, settlement }
    }

    /// Joins up to 4,096 more values into the array that answers the request with this index (such as an `MGET`), all
    /// of whose parts have replied. Once all values are joined, removes the request, and returns the array, the bytes
    /// of memory that the tables and the earlier replies took until then, and those of the last reply. None while
    /// values are left, and if no request has this index. An array of more than `bytes_max` bytes is replaced by an
    /// error.
    pub fn go_on_joining(
        &mut self,
        index: u32,
        bytes_max: usize,
        pool: &mut BufferPool,
    ) -> Option<(Vec<u8>, usize, usize)> {
        let gathering = self.0.get_mut(index as usize)?;
        let reply = gathering.join_more(bytes_max, KEYS_PER_TURN)?;
        let gathering = self.0.remove(index as usize);
        let (waited, last) = (gathering.bytes, gathering.last_bytes);
        gathering.release(pool);
        Some((reply, waited, last))
    }

    /// Frees unused memory of the table of split requests, if no request is waiting for parts.
    pub fn tidy(&mut self) {
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }

    /// Returns the number of parts whose replies a request still waits for, and the measurements of those
    /// that have come.
    pub fn parts_missing(&self, index: u32) -> (usize, Settlement) {
        let gathering = &self.0[index as usize];
        (gathering.missing, gathering.settlement)
    }

    /// Returns the channels of a `PUBLISH` or `PUBSUB NUMSUB`, whose numbers of subscribers the reply states.
    /// None for any other request, and for an unknown index.
    pub fn receivers(&mut self, index: u32) -> Option<&mut Receivers> {
        match &mut self.0.get_mut(index as usize)?.join {
            Join::Receivers(receivers) => Some(receivers),
            _ => None,
        }
    }

    /// Drops a request whose client has disconnected, and gives the buffers of its parts back to `pool`.
    pub fn remove(&mut self, index: u32, pool: &mut BufferPool) {
        if let Some(gathering) = self.0.try_remove(index as usize) {
            gathering.release(pool);
        }
    }
}

impl Gathering {
    fn release(self, pool: &mut BufferPool) {
        self.parts.into_iter().flatten().for_each(|part| part.reply.release(pool));
    }

    /// True if the request asks for more values than may be joined in one turn (pass of the shard's loop),
    /// which is 4,096.
    fn has_many_values(&self) -> bool {
        matches!(&self.join, Join::Values(order) if order.len() > KEYS_PER_TURN)
    }

    /// Joins up to `values_max` more values. Returns the reply, of at most `bytes_max` bytes, once it is
    /// complete; None before.
    fn join_more(&mut self, bytes_max: usize, values_max: usize) -> Option<Vec<u8>> {
        let Join::Values(order) = &self.join else { return None };
        let parts: Vec<&[u8]> = self.parts.iter().flatten().map(Part::bytes).collect();
        let joining = self.joining.get_or_insert_with(|| Box::new(Joining::begin(order, &parts, bytes_max)));
        let ended = joining.advance(order, &parts, bytes_max, values_max);
        ended.then(|| std::mem::take(&mut joining.reply))
    }

    fn join(&self, out: &mut Vec<u8>, bytes_max: usize) {
        let parts: Vec<&[u8]> = self.parts.iter().flatten().map(Part::bytes).collect();
        let first_error = parts.iter().find(|part| is_error(part)).copied();
        match &self.join {
            Join::Values(order) => join_values(out, order, &parts, bytes_max),
            Join::AllOk => match first_error {
                // Commands of this kind change keys, so the error must say that other parts may have been
                // carried out.
                Some(error) => self.join_failed(out, error),
                None => out.extend_from_slice(parts[0]),
            },
            Join::Same => out.extend_from_slice(first_error.unwrap_or(parts[0])),
            Join::Sum => match first_error {
                Some(error) if self.effect == Effect::Write => self.join_failed(out, error),
                Some(error) => out.extend_from_slice(error),
                None => encode::integer(out, sum(&parts)),
            },
            Join::Concat => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => concatenate(out, &parts),
            },
            Join::NonNull(number) => {
                let values: Vec<&[u8]> =
                    parts.iter().filter(|part| !is_error(part) && !is_null(part)).copied().collect();
                match (values.is_empty(), first_error) {
                    (false, _) => out.extend_from_slice(values[usize::from(*number) % values.len()]),
                    (true, Some(error)) => out.extend_from_slice(error),
                    (true, None) => encode::null(out, self.protocol),
                }
            }
            Join::Every => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => every(out, &parts),
            },
            Join::Union => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => union(out, &parts),
            },
            Join::SumEach => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => sum_each(out, &parts),
            },
            Join::Receivers(receivers) => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => count_receivers(out, receivers, &parts),
            },
            Join::Settings => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => settings(out, self.protocol, parts[0]),
            },
            Join::KeyCounts => match first_error {
                Some(error) => out.extend_from_slice(error),
                None => key_counts(out, self.protocol, &parts),
            },
            Join::ByStore(names) => match first_error {
                Some(error) if parts.iter().all(|part| is_error(part)) => out.extend_from_slice(error),
                _ => {
                    encode::map(out, self.protocol, parts.len());
                    for (name, part) in names.iter().zip(&parts) {
                        encode::bulk(out, name.as_bytes());
                        out.extend_from_slice(part);
                    }
                }
            },
            Join::AnyOk => {
                out.extend_from_slice(parts.iter().find(|part| !is_error(part)).unwrap_or(&parts[0]));
            }
        }
    }

    /// Writes the reply to a write of which a part failed: the error, as a sum or `OK` would claim more than
    /// was done. Adds that the rest may have happened if another part may have been carried out.
    fn join_failed(&self, out: &mut Vec<u8>, error: &[u8]) {
        let is_told = |part: &&Part| std::ptr::eq(part.bytes(), error);
        let mut others = self.parts.iter().flatten().filter(|part| !is_told(part));
        out.extend_from_slice(error);
        if others.any(Part::may_have_happened)
            && error.starts_with(b"-")
            && !error.ends_with(REST_MAY_HAVE_HAPPENED)
            && let Some(text) = error.strip_suffix(b"\r\n")
        {
            out.truncate(out.len() - error.len() + text.len());
            out.extend_from_slice(REST_MAY_HAVE_HAPPENED);
        }
    }
}

/// Words appended to the error of one part of a write, when other parts may have been carried out.
const REST_MAY_HAVE_HAPPENED: &[u8] = b" (the rest may have happened)\r\n";
/// End of an error which says that a write may have been carried out, wholly or in part, although it failed.
const MAY_HAVE_HAPPENED: &[u8] = b"may have happened)\r\n";

fn is_error(part: &[u8]) -> bool {
    part.starts_with(b"-") || part.starts_with(b"!")
}

fn is_null(part: &[u8]) -> bool {
    part.starts_with(b"$-1") || part.starts_with(b"_") || part.starts_with(b"*-1")
}

/// The error in place of each missing value when a part's reply is not an array, or has fewer elements than
/// keys were requested.
const SHORT_REPLY: &[u8] = b"-ERR the store returned fewer values than requested\r\n";
const TOO_LARGE: &str =
    "ERR the reply is larger than the limit of bytes that wait for a client (--output-limit)";

impl Joining {
    /// Begins to join the replies (`parts`) into one array, with one value per key; `order` says for each key
    /// which reply has its value. If errors, repeated in place of missing values, would alone exceed
    /// `bytes_max` bytes, the whole reply is an error at once.
    fn begin(order: &[u16], parts: &[&[u8]], bytes_max: usize) -> Self {
        Self::begin_in(Vec::new(), order, parts, bytes_max)
    }

    /// Begins to join the replies (`parts`) into one array in this empty buffer; `order` says for each key
    /// which reply has its value. If errors, repeated in place of missing values, would alone exceed
    /// `bytes_max` bytes, the whole reply is an error at once.
    fn begin_in(mut reply: Vec<u8>, order: &[u16], parts: &[&[u8]], bytes_max: usize) -> Self {
        let values = parts.iter().map(|part| reply::elements(part));
        let left: Vec<Option<(usize, usize)>> =
            values.map(|values| values.map(|values| (values.rest().len(), values.left()))).collect();
        let mut asked = vec![0_usize; parts.len()];
        for part in order {
            asked[usize::from(*part)] += 1;
        }
        let repeated = asked.iter().zip(&left).zip(parts).map(|((asked, left), part)| {
            let missing = asked.saturating_sub(left.map_or(0, |(_, elements)| elements));
            missing.saturating_mul(instead_of_value(part).len())
        });
        let repeated = repeated.fold(0, usize::saturating_add);
        if repeated > bytes_max {
            encode::error(&mut reply, TOO_LARGE);
            return Self { reply, joined: order.len(), left };
        }
        // Reserves the room at once: a reply of megabytes would be copied each time it outgrows its buffer.
        reply.reserve((repeated + parts.iter().map(|part| part.len()).sum::<usize>()).min(bytes_max));
        encode::array(&mut reply, order.len());
        Self { reply, joined: 0, left }
    }

    /// Joins up to `values_max` more values from the replies (`parts`) into the array; `order` says for each
    /// key which reply has its value. An array above `bytes_max` bytes is replaced by an error. True once the
    /// reply is complete.
    fn advance(&mut self, order: &[u16], parts: &[&[u8]], bytes_max: usize, values_max: usize) -> bool {
        let mut values: Vec<Option<Elements<'_>>> = parts
            .iter()
            .zip(&self.left)
            .map(|(part, left)| left.map(|(bytes, elements)| Elements::resume(part, bytes, elements)))
            .collect();
        for part in order[self.joined..].iter().take(values_max) {
            let part = usize::from(*part);
            let value = values[part].as_mut().map_or(Some(instead_of_value(parts[part])), Elements::next);
            self.reply.extend_from_slice(value.unwrap_or(SHORT_REPLY));
            self.joined += 1;
            // A value is added once per key, but the error of a part is repeated for each of its keys, so the
            // limit is checked again.
            if self.reply.len() > bytes_max {
                self.reply.clear();
                encode::error(&mut self.reply, TOO_LARGE);
                self.joined = order.len();
                break;
            }
        }
        if self.joined == order.len() {
            return true;
        }
        let left = |values: &Option<Elements<'_>>| values.as_ref().map(|it| (it.rest().len(), it.left()));
        self.left = values.iter().map(left).collect();
        false
    }
}

/// Returns the bytes that take the place of each value of a part whose reply is not an array: the reply
/// itself if it is an error, else an error that the store returned fewer values than requested.
fn instead_of_value(part: &[u8]) -> &[u8] {
    if is_error(part) { part } else { SHORT_REPLY }
}

fn join_values(out: &mut Vec<u8>, order: &[u16], parts: &[&[u8]], bytes_max: usize) {
    let mut joining = Joining::begin_in(std::mem::take(out), order, parts, bytes_max);
    joining.advance(order, parts, bytes_max, usize::MAX);
    *out = joining.reply;
}

fn sum(parts: &[&[u8]]) -> i64 {
    parts.iter().filter_map(|part| reply::integer(part)).fold(0, i64::saturating_add)
}

fn concatenate(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let lists: Vec<Elements<'_>> = parts.iter().filter_map(|part| reply::elements(part)).collect();
    encode::array(out, lists.iter().map(Elements::left).sum());
    lists.iter().for_each(|list| out.extend_from_slice(list.rest()));
}

fn union(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let mut seen = HashSet::new();
    let elements = parts.iter().filter_map(|part| reply::elements(part)).flatten();
    let distinct: Vec<&[u8]> = elements.filter(|element| seen.insert(*element)).collect();
    encode::array(out, distinct.len());
    distinct.iter().for_each(|element| out.extend_from_slice(element));
}

fn sum_each(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let mut lists: Vec<Elements<'_>> = parts.iter().filter_map(|part| reply::elements(part)).collect();
    let count = lists.iter().map(Elements::left).min().unwrap_or(0);
    encode::array(out, count);
    for _ in 0..count {
        let row: Vec<&[u8]> = lists.iter_mut().filter_map(Elements::next).collect();
        if row.iter().all(|element| reply::integer(element).is_some()) {
            encode::integer(out, sum(&row));
        } else {
            row.first().into_iter().for_each(|element| out.extend_from_slice(element));
        }
    }
}

fn count_receivers(out: &mut Vec<u8>, receivers: &Receivers, parts: &[&[u8]]) {
    if let [part] = parts
        && let Some(counted) = reply::integer(part)
    {
        return encode::integer(out, receivers.correct(0, counted));
    }
    let mut sums = Vec::new();
    sum_each(&mut sums, parts);
    let Some(elements) = reply::elements(&sums) else { return };
    encode::array(out, elements.left());
    for (index, element) in elements.enumerate() {
        match reply::integer(element) {
            Some(counted) => encode::integer(out, receivers.correct(index / 2, counted)),
            None => out.extend_from_slice(element),
        }
    }
}

/// The settings in a store's reply to `CONFIG GET` that hold credentials, its own or those of its primary.
/// Clients must not see them, as weir itself logs in with such credentials.
const SECRETS: [&str; 8] = [
    "requirepass",
    "masterauth",
    "masteruser",
    "primaryauth",
    "primaryuser",
    "tls-key-file-pass",
    "tls-client-key-file-pass",
    "sentinel-pass",
];

fn is_secret(name: &[u8]) -> bool {
    SECRETS.iter().any(|secret| name.eq_ignore_ascii_case(secret.as_bytes()))
}

/// True if each word after `CONFIG GET` is the full name of a setting, not a pattern, and none of these settings holds
/// credentials.
pub fn names_no_secret(arguments: &Arguments<'_>) -> bool {
    let is_pattern = |word: &[u8]| word.iter().any(|byte| b"*?[\\".contains(byte));
    arguments.iter().skip(2).all(|word| !is_pattern(word) && !is_secret(word))
}

fn settings(out: &mut Vec<u8>, protocol: Protocol, map: &[u8]) {
    let mut elements = reply::names_and_values(map).into_iter().flatten();
    let mut shown: Vec<[&[u8]; 2]> = Vec::new();
    while let (Some(name), Some(value)) = (elements.next(), elements.next()) {
        if !reply::text(name).is_none_or(is_secret) {
            shown.push([name, value]);
        }
    }
    encode::map(out, protocol, shown.len());
    shown.iter().flatten().for_each(|element| out.extend_from_slice(element));
}

/// Adds up lines such as `db0:keys=3,expires=1,avg_ttl=900,subexpiry=0` by database. The average time to live
/// is taken over all keys that have one.
fn key_counts(out: &mut Vec<u8>, protocol: Protocol, parts: &[&[u8]]) {
    let mut databases: BTreeMap<u32, Vec<(&str, u128)>> = BTreeMap::new();
    let texts = parts.iter().filter_map(|part| std::str::from_utf8(reply::text(part)?).ok());
    for (number, fields) in
        texts.flat_map(str::lines).filter_map(|line| line.strip_prefix("db")?.split_once(':'))
    {
        let Ok(number) = number.parse() else { continue };
        let sums = databases.entry(number).or_default();
        let fields: Vec<(&str, u128)> = fields
            .split(',')
            .filter_map(|field| field.split_once('='))
            .filter_map(|(name, value)| Some((name, u128::from(value.parse::<u64>().ok()?))))
            .collect();
        let expiring = fields.iter().find(|(name, _)| *name == "expires").map_or(0, |(_, count)| *count);
        for (name, value) in fields {
            let value = if name == "avg_ttl" { value * expiring } else { value };
            match sums.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum = sum.saturating_add(value),
                None => sums.push((name, value)),
            }
        }
    }
    let mut text = String::from("# Keyspace\r\n");
    for (number, sums) in &databases {
        let expiring = sums.iter().find(|(name, _)| *name == "expires").map_or(0, |(_, count)| *count);
        let field = |(name, sum): &(&str, u128)| {
            let value = if *name == "avg_ttl" { sum / expiring.max(1) } else { *sum };
            format!("{name}={value}")
        };
        let fields: Vec<String> = sums.iter().map(field).collect();
        // Writing to a string does not fail.
        let _ = write!(text, "db{number}:{}\r\n", fields.join(","));
    }
    encode::verbatim(out, protocol, &text);
}

fn every(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let mut lists: Vec<Elements<'_>> = parts.iter().filter_map(|part| reply::elements(part)).collect();
    let count = lists.iter().map(Elements::left).min().unwrap_or(0);
    encode::array(out, count);
    for _ in 0..count {
        // Every list must be advanced, so `all` cannot be used: it stops early.
        let ones = lists.iter_mut().filter_map(Elements::next).filter(|value| *value == b":1\r\n").count();
        encode::integer(out, i64::from(ones == lists.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(join: Join, parts: &[&str]) -> String {
        let parts: Vec<_> = parts.iter().map(|part| (*part, Outcome::Refused)).collect();
        joined_after((join, Effect::Read), &parts)
    }

    fn joined_after(join: (Join, Effect), parts: &[(&str, Outcome)]) -> String {
        let mut gathers = Gathers::default();
        let mut pool = BufferPool::new(4);
        let (index, listed) = gathers.insert(join, Protocol::Resp2, parts.len());
        let mut whole = None;
        for (part, (reply, outcome)) in parts.iter().enumerate().rev() {
            assert!(whole.is_none(), "complete before the last part");
            let message = Message::Small(reply.as_bytes());
            let part = (part as u16, *outcome, message);
            let joined = match gathers.part_arrived(index, part, &[], 1_000, &mut pool) {
                Arrival::Stored(_) => continue,
                Arrival::Joined { reply, waited, .. } => (reply, waited),
                Arrival::Complete { stored, .. } => {
                    let (joined, waited, last) = (0..1_000)
                        .find_map(|_| gathers.go_on_joining(index, 1_000, &mut pool))
                        .expect("it ends");
                    assert_eq!(
                        (stored, last),
                        (reply.len(), reply.len()),
                        "the last part is stored until then"
                    );
                    (joined, waited)
                }
            };
            assert_eq!(joined.1, listed + parts.iter().skip(1).map(|(part, _)| part.len()).sum::<usize>());
            whole = Some(joined.0);
        }
        String::from_utf8(whole.expect("complete")).expect("text")
    }

    #[test]
    fn values_stand_in_the_order_of_their_keys_and_errors_only_where_they_belong() {
        let join = Join::Values(vec![0, 1, 0, 2]);
        let parts = ["*2\r\n$1\r\na\r\n$-1\r\n", "-UNAVAILABLE b\r\n", "*1\r\n$1\r\nd\r\n"];
        assert_eq!(joined(join, &parts), "*4\r\n$1\r\na\r\n-UNAVAILABLE b\r\n$-1\r\n$1\r\nd\r\n");
    }

    #[test]
    fn what_is_repeated_for_each_key_is_bounded() {
        let parts = ["-ERR a part that failed\r\n", "*0\r\n"];
        assert!(joined(Join::Values(vec![0; 20]), &parts).starts_with("*20\r\n-ERR a part"));
        assert_eq!(joined(Join::Values(vec![0; 10_000]), &parts), format!("-{TOO_LARGE}\r\n"));
        let strange = ["$9\r\nno array!\r\n"; 2];
        assert!(joined(Join::Values(vec![0, 1]), &strange).starts_with("*2\r\n-ERR the store returned"));
    }

    #[test]
    fn a_write_of_which_a_part_failed_says_whether_the_rest_may_have_happened() {
        let (write, served) = (Effect::Write, Outcome::answered(4));
        let away = ("-UNAVAILABLE b\r\n", Outcome::Refused);
        let lost = ("-UNAVAILABLE lost\r\n", Outcome::Lost);
        let refused = ("-OOM c\r\n", served);
        let told = |join, effect, parts: &[_]| joined_after((join, effect), parts);
        for (join, done) in [(Join::Sum, (":1\r\n", served)), (Join::AllOk, ("+OK\r\n", served))] {
            let rest = "-UNAVAILABLE b (the rest may have happened)\r\n";
            assert_eq!(told(join.clone(), write, &[done, away]), rest);
            assert_eq!(told(join.clone(), write, &[away, refused, lost]), rest);
            // No other part can have changed anything, so the error is not marked as partial.
            assert_eq!(told(join.clone(), write, &[away, refused]), away.0);
            assert_eq!(told(join.clone(), write, &[refused, away]), refused.0);
            assert_eq!(told(join.clone(), write, &[lost, away]), lost.0);
            // An error of another part may say that something was changed all the same.
            for half in ["-OOM (the rest may have happened)\r\n", "-DEADLINE (it may have happened)\r\n"] {
                assert_eq!(told(join.clone(), write, &[away, (half, served)]), rest);
                assert_eq!(told(join.clone(), write, &[(half, served), away]), half);
            }
            assert_eq!(told(join, write, &[done, ("!5\r\nERR x\r\n", served)]), "!5\r\nERR x\r\n");
        }
        assert_eq!(told(Join::Sum, Effect::Read, &[(":1\r\n", served), away]), away.0);
    }

    #[test]
    fn sums_and_agreements() {
        assert_eq!(
            joined(Join::Sum, &[&format!(":{}\r\n", i64::MAX), ":1\r\n"]),
            format!(":{}\r\n", i64::MAX)
        );
        assert_eq!(joined(Join::Sum, &[":2\r\n", ":40\r\n"]), ":42\r\n");
        assert_eq!(joined(Join::Sum, &[":2\r\n", "-ERR no\r\n"]), "-ERR no\r\n");
        assert_eq!(joined(Join::AllOk, &["+OK\r\n", "+OK\r\n"]), "+OK\r\n");
        assert_eq!(joined(Join::AllOk, &["+OK\r\n", "-OOM\r\n"]), "-OOM (the rest may have happened)\r\n");
        assert_eq!(
            joined(Join::Concat, &["*1\r\n+a\r\n", "*0\r\n", "*2\r\n+b\r\n+c\r\n"]),
            "*3\r\n+a\r\n+b\r\n+c\r\n"
        );
        for number in 0..4 {
            let some = ["$-1\r\n", "$1\r\na\r\n", "-ERR no\r\n", "$1\r\nb\r\n"];
            let one = if number % 2 == 0 { some[1] } else { some[3] };
            assert_eq!(joined(Join::NonNull(number), &some), one);
        }
        assert_eq!(joined(Join::NonNull(9), &["$-1\r\n", "$-1\r\n"]), "$-1\r\n");
        assert_eq!(joined(Join::NonNull(9), &["$-1\r\n", "-ERR no\r\n"]), "-ERR no\r\n");
        assert_eq!(joined(Join::Every, &["*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n"]), "*2\r\n:1\r\n:0\r\n");
        let subscribers =
            ["*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:0\r\n", "*4\r\n$1\r\na\r\n:2\r\n$1\r\nb\r\n:5\r\n"];
        assert_eq!(joined(Join::SumEach, &subscribers), "*4\r\n$1\r\na\r\n:3\r\n$1\r\nb\r\n:5\r\n");
        assert_eq!(
            joined(Join::Union, &["*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*1\r\n$1\r\na\r\n", "*0\r\n"]),
            "*2\r\n$1\r\na\r\n$1\r\nb\r\n"
        );
        let told = "*4\r\n$11\r\nrequirepass\r\n$1\r\nx\r\n$4\r\nsave\r\n$0\r\n\r\n";
        assert_eq!(joined(Join::Settings, &[told, "*0\r\n"]), "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
        assert_eq!(joined(Join::Settings, &["%1\r\n+masterauth\r\n+x\r\n"]), "*0\r\n");
        let info = |lines: &str| format!("${}\r\n{lines}\r\n", lines.len());
        let parts = [
            info("# Keyspace\r\ndb0:keys=3,expires=1,avg_ttl=900\r\ndb9:keys=1,expires=0,avg_ttl=0\r\n"),
            info("# Keyspace\r\n"),
            "=62\r\ntxt:# Keyspace\r\ndb0:keys=4,expires=3,avg_ttl=100,subexpiry=1\r\n\r\n".to_owned(),
        ];
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let sum = "# Keyspace\r\ndb0:keys=7,expires=4,avg_ttl=300,subexpiry=1\r\ndb9:keys=1,expires=0,avg_ttl=0\r\n";
        assert_eq!(joined(Join::KeyCounts, &parts), info(sum));
        assert_eq!(joined(Join::KeyCounts, &[parts[0], "-LOADING\r\n"]), "-LOADING\r\n");
        let by_store = || Join::ByStore(vec!["s0".to_owned(), "s1".to_owned()]);
        assert_eq!(
            joined(by_store(), &["+well\r\n", "-ERR no\r\n"]),
            "*4\r\n$2\r\ns0\r\n+well\r\n$2\r\ns1\r\n-ERR no\r\n"
        );
        assert_eq!(joined(by_store(), &["-ERR a\r\n", "-ERR b\r\n"]), "-ERR a\r\n");
        assert_eq!(joined(Join::AnyOk, &["-NOTBUSY\r\n", "+OK\r\n"]), "+OK\r\n");
    }
}
