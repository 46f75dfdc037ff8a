//! Values as bytes, for DUMP and RESTORE: in the format of Redis's snapshots, so that both move values
//! between the two.
//!
//! ```text
//!     type 1 | value | version 2 | CRC-64 of all before it 8
//! ```
//!
//! Values are written in the plain types that every version of Redis reads, except fields with lifetimes (as
//! of Redis 7.4) and streams, whose type is weir's own. Read are also the compact types of Redis 7: packed
//! lists, sorted integers, compressed strings, and streams of Redis 5 to 7.2.

use std::collections::BTreeMap;

use super::effort::{Effort, LOOK};
use super::field_lifetimes::EXPIRES_MS_MAX;
use super::fields::{Change, Fields};
use super::items::{End, Items};
use super::log::{Id, NodeSize};
use super::members::Members;
use super::numbers::{self, Digits};
use super::packed;
use super::ranking::Ranking;
use super::refusal::Refusal;
use super::shapes::Size;
use super::stream::{Group, PENDING_BYTES, Stream};
use super::stream_nodes;
use super::table::Hasher;
use super::text::Text;
use super::value::Value;

/// The format version of the dumps that are written, unless they have expiring fields: that of Redis 7.0.
const VERSION: u16 = 10;
/// The format version of the dumps that are written for hashes with expiring fields: that of Redis 7.4. It is
/// also the latest that is read.
const VERSION_WITH_FIELD_LIFETIMES: u16 = 12;
const FOOTER_BYTES: usize = 10;

const STRING: u8 = 0;
const LIST: u8 = 1;
const SET: u8 = 2;
const HASH: u8 = 4;
const SORTED_SET: u8 = 5;
const INTEGERS: u8 = 11;
const PACKED_HASH: u8 = 16;
const PACKED_SORTED_SET: u8 = 17;
const PACKED_LISTS: u8 = 18;
const PACKED_SET: u8 = 20;
const HASH_WITH_LIFETIMES: u8 = 24;
/// The type byte of a stream as Redis 5 and 6 dump it. The constants below are the type bytes of Redis 7.0,
/// which adds the number of entries ever added, and of Redis 7.2, which adds the times of consumers' last
/// entries.
const EARLY_STREAM: u8 = 15;
const COUNTED_STREAM: u8 = 19;
const TIMED_STREAM: u8 = 21;
/// The number that stands, in a dumped stream, for an unknown count of entries that a consumer group has
/// read.
const UNKNOWN_READ: u64 = u64::MAX;
/// The type byte of a stream as weir dumps it, which only weir reads.
const STREAM: u8 = 0xf0;
/// The byte before each library of functions in a dump; the constant below it is that of release candidates
/// of Redis 7.0.
#[cfg(feature = "scripts")]
const LIBRARY: u8 = 0xf5;
#[cfg(feature = "scripts")]
const EARLY_LIBRARY: u8 = 0xf6;

/// The refusal of a dump that is damaged, or of a later format version.
const NOT_VERIFIED: Refusal = Refusal::Words("ERR DUMP payload version or checksum are wrong");
/// The refusal of a dump whose bytes are not a valid value.
pub(super) const DAMAGED: Refusal = Refusal::Words("ERR Bad data format");

/// A dump (of a value or of libraries) that is being written. `fits` is given a number of bytes, and fails if
/// a reply cannot hold that many.
struct Writer<'a> {
    bytes: Vec<u8>,
    fits: &'a dyn Fn(usize) -> Result<(), Refusal>,
}

/// Returns the dump of a value, as DUMP replies it. `fits` refuses a number of bytes that a reply cannot
/// hold.
pub(super) fn write(value: &Value, fits: &dyn Fn(usize) -> Result<(), Refusal>) -> Result<Vec<u8>, Refusal> {
    let mut writer = Writer { bytes: Vec::new(), fits };
    let mut version = VERSION;
    match value {
        Value::Integer(_) | Value::Text(_) | Value::Buffer(_) => {
            writer.bytes.push(STRING);
            writer.string(value.bytes(&mut Digits::new(0)).unwrap_or_default())?;
        }
        Value::List(items) => {
            writer.start(LIST, items.len());
            items.iter().try_for_each(|item| writer.string(item.as_bytes()))?;
        }
        Value::Set(members) => {
            writer.start(SET, members.len());
            members.try_each(|member| writer.string(member))?;
        }
        Value::SortedSet(ranking) => {
            writer.start(SORTED_SET, ranking.len());
            for scored in ranking.range(0, ranking.len()) {
                writer.string(scored.member.as_bytes())?;
                writer.bytes.extend_from_slice(&scored.score.to_le_bytes());
            }
        }
        Value::Hash(fields) if fields.expires() => {
            version = VERSION_WITH_FIELD_LIFETIMES;
            let soonest_ms = fields.soonest_ms();
            writer.bytes.push(HASH_WITH_LIFETIMES);
            writer.bytes.extend_from_slice(&soonest_ms.to_le_bytes());
            writer.length(fields.len() as u64);
            for field in fields.all() {
                let expires_ms = fields.expiry_ms(field.name.as_bytes());
                writer.length(expires_ms.map_or(0, |expires_ms| expires_ms - soonest_ms + 1));
                writer.string(field.name.as_bytes())?;
                writer.string(field.value.as_bytes())?;
            }
        }
        Value::Hash(fields) => {
            writer.start(HASH, fields.len());
            for field in fields.all() {
                writer.string(field.name.as_bytes())?;
                writer.string(field.value.as_bytes())?;
            }
        }
        Value::Stream(stream) => writer.stream(stream)?,
    }
    Ok(sealed(writer.bytes, version))
}

/// Returns the bytes of a dumped value with the format version and the checksum appended.
fn sealed(mut bytes: Vec<u8>, version: u16) -> Vec<u8> {
    bytes.extend_from_slice(&version.to_le_bytes());
    let checksum = checksum(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the dump of libraries of functions (FUNCTION DUMP), given by their sources. `fits` refuses a
/// number of bytes that a reply cannot hold.
#[cfg(feature = "scripts")]
pub(super) fn write_libraries<'a>(
    sources: impl Iterator<Item = &'a [u8]>,
    fits: &dyn Fn(usize) -> Result<(), Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let mut writer = Writer { bytes: Vec::new(), fits };
    for source in sources {
        writer.bytes.push(LIBRARY);
        writer.string(source)?;
    }
    Ok(sealed(writer.bytes, VERSION))
}

impl Writer<'_> {
    fn start(&mut self, kind: u8, count: usize) {
        self.bytes.push(kind);
        self.length(count as u64);
    }

    fn length(&mut self, length: u64) {
        match length {
            0..0x40 => self.bytes.push(length as u8),
            0x40..0x4000 => self.bytes.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
            _ => {
                if let Ok(length) = u32::try_from(length) {
                    self.bytes.push(0x80);
                    self.bytes.extend_from_slice(&length.to_be_bytes());
                } else {
                    self.bytes.push(0x81);
                    self.bytes.extend_from_slice(&length.to_be_bytes());
                }
            }
        }
    }

    /// Appends a string to the dump; a string that spells an integer of at most 32 bits is written in binary
    /// form. An error if a reply could not hold the dump.
    fn string(&mut self, text: &[u8]) -> Result<(), Refusal> {
        (self.fits)(self.bytes.len().saturating_add(text.len()))?;
        let integer = numbers::integer(text);
        if let Some(integer) = integer.and_then(|integer| i8::try_from(integer).ok()) {
            self.bytes.push(0xc0);
            self.bytes.extend_from_slice(&integer.to_le_bytes());
        } else if let Some(integer) = integer.and_then(|integer| i16::try_from(integer).ok()) {
            self.bytes.push(0xc1);
            self.bytes.extend_from_slice(&integer.to_le_bytes());
        } else if let Some(integer) = integer.and_then(|integer| i32::try_from(integer).ok()) {
            self.bytes.push(0xc2);
            self.bytes.extend_from_slice(&integer.to_le_bytes());
        } else {
            self.length(text.len() as u64);
            self.bytes.extend_from_slice(text);
        }
        Ok(())
    }

    fn id(&mut self, id: Id) {
        self.length(id.ms);
        self.length(id.sequence);
    }

    fn stream(&mut self, stream: &Stream) -> Result<(), Refusal> {
        let log = &stream.log;
        self.start(STREAM, log.len());
        for (id, entry) in log.range(Id::LEAST..=Id::GREATEST) {
            self.id(id);
            self.length(entry.words().len() as u64);
            entry.words().iter().try_for_each(|word| self.string(word.as_bytes()))?;
        }
        self.id(log.last);
        self.id(log.deleted);
        self.length(log.added);
        self.length(stream.groups().len() as u64);
        for (name, group) in stream.groups() {
            self.string(name)?;
            self.id(group.last);
            self.length(u64::from(group.read.is_some()));
            self.length(group.read.unwrap_or(0));
            self.length(group.consumers.len() as u64);
            for (name, consumer) in &group.consumers {
                self.string(name)?;
                self.length(consumer.seen_ms);
            }
            self.length(group.pending.len() as u64);
            for (id, pending) in &group.pending {
                self.id(*id);
                self.string(&pending.consumer)?;
                self.length(pending.delivered_ms);
                self.length(pending.deliveries);
            }
        }
        Ok(())
    }
}

/// The number of bytes that are decompressed per unit of effort (steps of work).
const DECOMPRESSED_BYTES: usize = 64;

/// A dump that is being read: the bytes not yet read, the memory that the value may take, and the effort (steps of
/// work) of the request.
struct Reader<'a> {
    left: &'a [u8],
    memory_left: usize,
    effort: &'a Effort,
    hasher: &'a Hasher,
}

/// Returns the value that the dump `bytes` contains. An error if the dump is damaged or of a later format
/// version, if the value has no elements, or if it takes more than about `memory_left` bytes. Spends the
/// request's effort (steps of work) for what is in the dump without being in its bytes or in the value:
/// compressed bytes, and entries that are dropped; an error if too little is left.
pub(super) fn read(
    bytes: &[u8],
    memory_left: u64,
    effort: &Effort,
    hasher: &Hasher,
) -> Result<Value, Refusal> {
    let body = verified(bytes)?;
    let memory_left = usize::try_from(memory_left).unwrap_or(usize::MAX);
    let mut reader = Reader { left: body, memory_left, effort, hasher };
    let value = reader.value()?;
    let empty = value.is_hollow();
    if empty || !reader.left.is_empty() { Err(DAMAGED) } else { Ok(value) }
}

/// Checks the format version and the checksum at the end of a dump, and returns the bytes before them. An
/// error if one of the two is wrong.
fn verified(bytes: &[u8]) -> Result<&[u8], Refusal> {
    let (covered, sum) = bytes.split_last_chunk::<8>().ok_or(NOT_VERIFIED)?;
    let (body, version) = covered.split_last_chunk::<2>().ok_or(NOT_VERIFIED)?;
    let known = u16::from_le_bytes(*version) <= VERSION_WITH_FIELD_LIFETIMES;
    if !known || bytes.len() < FOOTER_BYTES || checksum(covered) != u64::from_le_bytes(*sum) {
        return Err(NOT_VERIFIED);
    }
    Ok(body)
}

/// Returns the sources of the libraries of functions that a dump (of FUNCTION DUMP) contains, which may take
/// at most `bytes_max` bytes together. An error if the dump is damaged, contains anything else, or exceeds
/// the effort limit.
#[cfg(feature = "scripts")]
pub(super) fn read_libraries(
    bytes: &[u8],
    bytes_max: usize,
    effort: &Effort,
    hasher: &Hasher,
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut reader = Reader { left: verified(bytes)?, memory_left: bytes_max, effort, hasher };
    let mut sources = Vec::new();
    while !reader.left.is_empty() {
        match reader.byte()? {
            LIBRARY => {}
            EARLY_LIBRARY => {
                return Err(Refusal::Words("ERR libraries of early versions of Redis 7.0 are not read"));
            }
            _ => return Err(Refusal::Words("ERR given type is not a function")),
        }
        let source = reader.text().map_err(|refusal| match refusal {
            DAMAGED => Refusal::Words("ERR Failed loading library payload"),
            other => other,
        })?;
        // An empty source takes a place in the list as well.
        reader.memory_left = reader.memory_left.saturating_sub(source.len() + size_of::<Vec<u8>>());
        reader.afford(1)?;
        sources.push(source);
    }
    Ok(sources)
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Result<Value, Refusal> {
        match self.byte()? {
            STRING => self.text().map(Value::from_owned),
            kind @ (LIST | PACKED_LISTS) => self.list(kind),
            kind @ (SET | PACKED_SET | INTEGERS) => self.set(kind),
            kind @ (HASH | PACKED_HASH | HASH_WITH_LIFETIMES) => self.hash(kind),
            kind @ (SORTED_SET | PACKED_SORTED_SET) => self.sorted_set(kind),
            STREAM => self.stream(),
            kind @ (EARLY_STREAM | COUNTED_STREAM | TIMED_STREAM) => self.redis_stream(kind),
            _ => Err(DAMAGED),
        }
    }

    fn list(&mut self, kind: u8) -> Result<Value, Refusal> {
        let mut items = Items::default();
        for _ in 0..self.length()? {
            if kind == LIST {
                items.push(End::Right, Text::new(&self.text()?));
            } else {
                // A node is one long item, or a packed list of several.
                match (self.length()?, self.text()?) {
                    (1, item) => items.push(End::Right, Text::new(&item)),
                    (2, node) => packed::texts(&node)?.try_for_each(|item| {
                        items.push(End::Right, Text::new(item?.as_bytes()));
                        self.afford(items.bytes())
                    })?,
                    _ => return Err(DAMAGED),
                }
            }
            self.afford(items.bytes())?;
        }
        items.settle_new(self.hasher.shapes().list());
        Ok(Value::List(Box::new(items)))
    }

    fn set(&mut self, kind: u8) -> Result<Value, Refusal> {
        let mut members = Members::new(self.hasher);
        let count = if kind == SET { self.length()? } else { 0 };
        // Redis chooses the encoding by the form of the dump, not only by the members.
        if kind == PACKED_SET {
            members.begin_packed();
        } else if count as usize > self.hasher.shapes().get(Size::Integers) {
            members.begin_spread();
        }
        let mut add = |reader: &Self, member: &[u8]| {
            let new = members.insert(member);
            reader.afford(members.bytes())?;
            if new { Ok(()) } else { Err(DAMAGED) }
        };
        match kind {
            SET => {
                for _ in 0..count {
                    let member = self.text()?;
                    add(self, &member)?;
                }
            }
            PACKED_SET => {
                packed::texts(&self.text()?)?.try_for_each(|member| add(self, member?.as_bytes()))?;
            }
            _ => packed::integers(&self.text()?)?
                .try_for_each(|integer| add(self, Digits::new(integer).as_bytes()))?,
        }
        Ok(Value::Set(Box::new(members)))
    }

    fn hash(&mut self, kind: u8) -> Result<Value, Refusal> {
        let mut fields = Fields::new(self.hasher);
        let mut add = |reader: &Self, name: &[u8], value: &[u8], expires_ms: Option<u64>| {
            let change = fields.set(name, value);
            if expires_ms.is_some() {
                fields.set_expiry(name, expires_ms);
            }
            reader.afford(fields.bytes())?;
            if change == Change::Added { Ok(()) } else { Err(DAMAGED) }
        };
        if kind == PACKED_HASH {
            let node = self.text()?;
            let mut texts = packed::texts(&node)?;
            while let Some(name) = texts.next() {
                let value = texts.next().ok_or(DAMAGED)??;
                add(self, name?.as_bytes(), value.as_bytes(), None)?;
            }
            return Ok(Value::Hash(Box::new(fields)));
        }
        let soonest_ms = if kind == HASH { 0 } else { u64::from_le_bytes(*self.chunk()?) };
        for _ in 0..self.length()? {
            let after = if kind == HASH { 0 } else { self.length()? };
            let expires_ms = match after {
                0 => None,
                after => {
                    let expires_ms = soonest_ms.checked_add(after - 1);
                    Some(expires_ms.filter(|ms| *ms <= EXPIRES_MS_MAX as u64).ok_or(DAMAGED)?)
                }
            };
            let (name, value) = (self.text()?, self.text()?);
            add(self, &name, &value, expires_ms)?;
        }
        Ok(Value::Hash(Box::new(fields)))
    }

    fn sorted_set(&mut self, kind: u8) -> Result<Value, Refusal> {
        let mut ranking = Ranking::new(self.hasher);
        let mut add = |reader: &Self, member: &[u8], score: f64| {
            if score.is_nan() || ranking.score(member).is_some() {
                return Err(DAMAGED);
            }
            ranking.set(member, score);
            reader.afford(ranking.bytes())
        };
        if kind == PACKED_SORTED_SET {
            let node = self.text()?;
            let mut texts = packed::texts(&node)?;
            while let Some(member) = texts.next() {
                let score = texts.next().ok_or(DAMAGED)??;
                add(self, member?.as_bytes(), numbers::float(score.as_bytes()).ok_or(DAMAGED)?)?;
            }
            return Ok(Value::SortedSet(Box::new(ranking)));
        }
        for _ in 0..self.length()? {
            let member = self.text()?;
            let score = f64::from_le_bytes(*self.chunk()?);
            add(self, &member, score)?;
        }
        Ok(Value::SortedSet(Box::new(ranking)))
    }

    fn stream(&mut self) -> Result<Value, Refusal> {
        let mut stream = Stream::default();
        for _ in 0..self.length()? {
            let id = self.id()?;
            let (mut words, mut bytes) = (Vec::new(), stream.bytes());
            for _ in 0..self.length()? {
                let word = Text::new(&self.text()?);
                bytes += word.cost();
                self.afford(bytes)?;
                words.push(word);
            }
            if id <= stream.log.last || words.is_empty() || !words.len().is_multiple_of(2) {
                return Err(DAMAGED);
            }
            stream.log.append(id, words.into(), NodeSize::default());
            self.afford(stream.bytes())?;
        }
        let (last, deleted, added) = (self.id()?, self.id()?, self.length()?);
        if last < stream.log.last {
            return Err(DAMAGED);
        }
        (stream.log.last, stream.log.deleted, stream.log.added) = (last, deleted, added);
        for _ in 0..self.length()? {
            self.group(&mut stream)?;
            self.afford(stream.bytes())?;
        }
        Ok(Value::Stream(Box::new(stream)))
    }

    fn group(&mut self, stream: &mut Stream) -> Result<(), Refusal> {
        let (name, last) = (self.text()?, self.id()?);
        let (known, read) = (self.length()?, self.length()?);
        if !stream.add_group(&name, last, (known == 1).then_some(read)) {
            return Err(DAMAGED);
        }
        let others = stream.bytes();
        let filled = stream.change_group(&name, |_, group| {
            for _ in 0..self.length()? {
                let (name, seen_ms) = (self.text()?, self.length()?);
                group.see(&name, seen_ms);
                group.note_active(&name, seen_ms);
                self.afford(others + group.bytes())?;
            }
            for _ in 0..self.length()? {
                let (id, consumer) = (self.id()?, self.text()?);
                if !group.consumers.contains_key(&*consumer) || group.pending.contains_key(&id) {
                    return Err(DAMAGED);
                }
                let pending = group.give(id, &consumer);
                (pending.delivered_ms, pending.deliveries) = (self.length()?, self.length()?);
                self.afford(others + group.bytes())?;
            }
            Ok(())
        });
        filled.unwrap_or(Err(DAMAGED))
    }

    /// Reads a stream in the format of the version of Redis that the type byte `kind` names. An error if the
    /// stream is damaged, or takes more memory or effort than is left.
    fn redis_stream(&mut self, kind: u8) -> Result<Value, Refusal> {
        let mut stream = Stream::default();
        for _ in 0..self.length()? {
            let first = stream_nodes::id(&self.text()?)?;
            let node = self.text()?;
            stream_nodes::read(&mut stream, first, &node, self.effort, &|bytes| self.afford(bytes))?;
        }
        let (length, last) = (self.length()?, self.id()?);
        if length != stream.log.len() as u64 || last < stream.log.last {
            return Err(DAMAGED);
        }
        (stream.log.last, stream.log.added) = (last, length);
        if kind != EARLY_STREAM {
            let _first = self.id()?;
            (stream.log.deleted, stream.log.added) = (self.id()?, self.length()?);
        }
        for _ in 0..self.length()? {
            let (name, last) = (self.text()?, self.id()?);
            let read = match kind {
                EARLY_STREAM => stream.log.added_until(last),
                _ => Some(self.length()?).filter(|read| *read != UNKNOWN_READ),
            };
            if !stream.add_group(&name, last, read) {
                return Err(DAMAGED);
            }
            let others = stream.bytes();
            let filled = stream.change_group(&name, |_, group| self.redis_group(kind, group, others));
            filled.unwrap_or(Err(DAMAGED))?;
            self.afford(stream.bytes())?;
        }
        Ok(Value::Stream(Box::new(stream)))
    }

    /// Reads the pending entries and the consumers of a group of a stream, in the format of the version of
    /// Redis that the type byte `kind` names. The rest of the stream takes `others` bytes of the memory that
    /// is left. An error if the group is damaged, or takes too much memory.
    fn redis_group(&mut self, kind: u8, group: &mut Group, others: usize) -> Result<(), Refusal> {
        let mut deliveries = BTreeMap::new();
        for _ in 0..self.length()? {
            let id = stream_nodes::id(self.chunk::<16>()?)?;
            let delivered_ms = u64::from_le_bytes(*self.chunk()?);
            deliveries.insert(id, (delivered_ms, self.length()?));
            self.afford(others + deliveries.len() * PENDING_BYTES)?;
        }
        for _ in 0..self.length()? {
            let (name, seen_ms) = (self.text()?, u64::from_le_bytes(*self.chunk()?));
            if !group.see(&name, seen_ms) {
                return Err(DAMAGED);
            }
            let active_ms =
                if kind == TIMED_STREAM { i64::from_le_bytes(*self.chunk()?) } else { seen_ms as i64 };
            if let Ok(active_ms) = u64::try_from(active_ms) {
                group.note_active(&name, active_ms);
            }
            self.afford(others + group.bytes())?;
            for _ in 0..self.length()? {
                let id = stream_nodes::id(self.chunk::<16>()?)?;
                let (delivered_ms, count) = deliveries.remove(&id).ok_or(DAMAGED)?;
                let pending = group.give(id, &name);
                (pending.delivered_ms, pending.deliveries) = (delivered_ms, count);
                self.afford(others + group.bytes())?;
            }
        }
        if deliveries.is_empty() { Ok(()) } else { Err(DAMAGED) }
    }

    fn afford(&self, bytes: usize) -> Result<(), Refusal> {
        if bytes > self.memory_left { Err(Refusal::OutOfMemory) } else { Ok(()) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(DAMAGED)?;
        self.left = left;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], Refusal> {
        let (taken, left) = self.left.split_first_chunk::<N>().ok_or(DAMAGED)?;
        self.left = left;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.chunk::<1>().map(|[byte]| *byte)
    }

    fn id(&mut self) -> Result<Id, Refusal> {
        Ok(Id { ms: self.length()?, sequence: self.length()? })
    }

    fn length(&mut self) -> Result<u64, Refusal> {
        let first = self.byte()?;
        self.length_after(first)
    }

    fn length_after(&mut self, first: u8) -> Result<u64, Refusal> {
        match first {
            0..0x40 => Ok(u64::from(first)),
            0x40..0x80 => Ok(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            0x80 => Ok(u64::from(u32::from_be_bytes(*self.chunk()?))),
            0x81 => Ok(u64::from_be_bytes(*self.chunk()?)),
            _ => Err(DAMAGED),
        }
    }

    fn text(&mut self) -> Result<Vec<u8>, Refusal> {
        let spelled = |integer: i64| Ok(Digits::new(integer).as_bytes().to_vec());
        match self.byte()? {
            0xc0 => spelled(i64::from(i8::from_le_bytes(*self.chunk()?))),
            0xc1 => spelled(i64::from(i16::from_le_bytes(*self.chunk()?))),
            0xc2 => spelled(i64::from(i32::from_le_bytes(*self.chunk()?))),
            0xc3 => {
                let (packed, length) = (self.length()?, self.length()?);
                let length = usize::try_from(length).map_err(|_| DAMAGED)?;
                self.afford(length)?;
                self.effort.spend(length.div_ceil(DECOMPRESSED_BYTES), LOOK)?;
                let packed = self.take(usize::try_from(packed).map_err(|_| DAMAGED)?)?;
                packed::decompressed(packed, length)
            }
            first => {
                let length = self.length_after(first)?;
                self.take(usize::try_from(length).map_err(|_| DAMAGED)?).map(<[u8]>::to_vec)
            }
        }
    }
}

/// Returns the CRC-64 that Redis uses: the polynomial of Jones, lowest bit first, starting from 0.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let by_words = words.fold(0, |sum, word| {
        let word = sum ^ u64::from_le_bytes(word.try_into().expect("a chunk has its length"));
        let of_bytes = word.to_le_bytes().into_iter().zip(CHECKSUMS.iter().rev());
        of_bytes.fold(0, |sum, (byte, checksums)| sum ^ checksums[usize::from(byte)])
    });
    rest.iter().fold(by_words, |sum, byte| sum >> 8 ^ CHECKSUMS[0][usize::from(sum as u8 ^ byte)])
}

/// The cost of the checksum of each byte in DUMP and RESTORE, as a multiple of the cost of copying a byte.
pub(super) const CHECKSUM_COST: usize = 8;

/// The CRC-64 of each possible byte with no to seven bytes of zeros behind it, from which the checksum of several bytes
/// is computed, eight at once.
static CHECKSUMS: [[u64; 256]; 8] = {
    let mut tables = [CHECKSUMS_OF_BYTES; 8];
    let mut zeros = 1;
    while zeros < tables.len() {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[zeros - 1][byte];
            tables[zeros][byte] = before >> 8 ^ CHECKSUMS_OF_BYTES[(before & 0xff) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
};

const CHECKSUMS_OF_BYTES: [u64; 256] = {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn effort() -> Effort {
        Effort::new(u64::MAX)
    }

    /// Returns the bytes of a packed list with these elements, as a string of a dump.
    fn packed(elements: &[u8]) -> Vec<u8> {
        let node = [&[0; 6][..], elements].concat();
        [&[0x80][..], &(node.len() as u32).to_be_bytes(), &node].concat()
    }

    #[test]
    fn checksums_are_those_of_redis() {
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        let mut random = crate::values::Random::new(8);
        for length in 0..100 {
            let bytes: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
            let one_by_one = |sum, byte: &u8| sum >> 8 ^ CHECKSUMS[0][usize::from(sum as u8 ^ byte)];
            assert_eq!(checksum(&bytes), bytes.iter().fold(0, one_by_one));
        }
    }

    #[test]
    fn damaged_bytes_are_refused_and_nothing_panics() {
        let hasher = Hasher::new(1);
        let all = |_: usize| Ok(());
        let mut ranking = Ranking::new(&hasher);
        ranking.set(b"member", 1.5);
        let value = Value::SortedSet(Box::new(ranking));
        let whole = write(&value, &all).expect("it fits");
        assert!(read(&whole, u64::MAX, &effort(), &hasher).is_ok());
        assert_eq!(read(&whole, 10, &effort(), &hasher).err(), Some(Refusal::OutOfMemory));
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length], u64::MAX, &effort(), &hasher).err(), Some(NOT_VERIFIED));
        }
        // Bytes with a valid checksum may still be malformed.
        let mut random = crate::values::Random::new(9);
        for _ in 0..200_000 {
            let kinds = [0, 1, 2, 4, 5, 11, 15, 16, 17, 18, 19, 20, 21, 24, STREAM];
            let mut bytes = vec![*random.pick(&kinds)];
            for _ in 0..random.index(40) {
                let small = random.index(3) > 0;
                bytes.push(if small { random.index(8) as u8 } else { random.bits() as u8 });
            }
            bytes.extend_from_slice(&VERSION.to_le_bytes());
            let sum = checksum(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            let _ = read(&bytes, 1_000_000, &effort(), &hasher);
        }
    }

    #[test]
    fn memory_is_refused_before_a_value_is_complete() {
        let refused = |bytes: Vec<u8>| {
            let read = read(&sealed(bytes, VERSION), 10_000, &effort(), &Hasher::new(1));
            assert_eq!(read.err(), Some(Refusal::OutOfMemory));
        };
        // Each value ends too early, which shows only to those who have read all that comes before.
        let many = |element: &[u8]| element.repeat(5_000);
        let distinct: Vec<u8> =
            (0..0x1000_u16).flat_map(|number| [0xc0 | (number >> 8) as u8, number as u8, 2]).collect();
        refused([&[PACKED_LISTS, 1, 2][..], &packed(&many(&[7, 1]))].concat());
        refused([&[PACKED_SET][..], &packed(&distinct)].concat());
        let fields: Vec<u8> = distinct.chunks(3).flat_map(|name| [name, &[7, 1]].concat()).collect();
        refused([&[PACKED_HASH][..], &packed(&fields)].concat());
        refused([&[PACKED_SORTED_SET][..], &packed(&fields)].concat());
        refused([&[STREAM, 1, 1, 1, 0x53, 0x89][..], &many(&[1, b'w'])].concat());
        let id = [&[16][..], &[0; 16]].concat();
        let names = [&[1, 1, 0, 1, 0xf1, 0x88, 0x13, 3][..], &many(&[7, 1])].concat();
        refused([&[EARLY_STREAM, 1][..], &id, &packed(&names)].concat());
        let words = [&[1, 1, 0, 1, 1, 1, 7, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0xf1, 0xc4, 9, 3][..], &many(&[7, 1])];
        refused([&[EARLY_STREAM, 1][..], &id, &packed(&words.concat())].concat());
        let group = [STREAM, 0, 0, 0, 0, 0, 0, 1, 1, b'g', 0, 0, 0, 0];
        let consumers: Vec<u8> =
            (0..0x1000_u16).flat_map(|number| [2, (number >> 8) as u8, number as u8, 0]).collect();
        refused([&group[..], &[0x53, 0x88], &consumers].concat());
        let pending: Vec<u8> = (0..0x1000_u16)
            .flat_map(|number| [0x40 | (number >> 8) as u8, number as u8, 0, 1, b'c', 0, 0])
            .collect();
        refused([&group[..], &[1, 1, b'c', 0, 0x53, 0x88], &pending].concat());
    }

    #[test]
    fn what_is_packed_or_dropped_in_a_dump_is_work_all_the_same() {
        let hasher = Hasher::new(1);
        let refused = |bytes: &[u8], most: u64| {
            let read = read(&sealed(bytes.to_vec(), VERSION), u64::MAX, &Effort::new(most), &hasher);
            read.err() == Some(Refusal::TooMuchWork(most))
        };
        // One byte as it is, then copies of it: each 264 bytes take three.
        let compressed = [&[0, b'a'][..], &[0xe0, 0xff, 0].repeat(1_000)].concat();
        let lengths = [0x80, 0, 0, 0x0b, 0xba, 0x80, 0, 4, 7, 0x41];
        let text = [&[STRING, 0xc3][..], &lengths, &compressed].concat();
        let value = read(&sealed(text.clone(), VERSION), u64::MAX, &effort(), &hasher).expect("it is whole");
        assert_eq!(value.stored().map(<[u8]>::len), Some(264_001));
        assert_eq!((refused(&text, 4_125), refused(&text, 4_126)), (true, false));
        // Entries that XDEL has deleted are dropped.
        let entry = [3, 1, 1, 1, 0, 1, 7, 1, 4, 1];
        let node = [&[1, 1, 0, 1, 1, 1, 0x81, b'f', 2, 0, 1][..], &entry.repeat(100), &[0xff]].concat();
        let end = [0, 0, 0, 0];
        let stream = [&[EARLY_STREAM, 1, 16][..], &[0; 16], &packed(&node), &end].concat();
        assert!(read(&sealed(stream.clone(), VERSION), u64::MAX, &effort(), &hasher).is_ok());
        assert_eq!((refused(&stream, 799), refused(&stream, 800)), (true, false));
    }

    #[test]
    fn a_field_does_not_expire_later_than_a_client_may_ask_for() {
        let latest = EXPIRES_MS_MAX as u64;
        for (expires_ms, is_valid) in [(latest, true), (latest + 1, false), (u64::MAX, false)] {
            let head = [&[HASH_WITH_LIFETIMES][..], &expires_ms.to_le_bytes()].concat();
            let bytes = sealed([&head[..], &[1, 1, 1, b'f', 1, b'v']].concat(), VERSION_WITH_FIELD_LIFETIMES);
            assert_eq!(read(&bytes, u64::MAX, &effort(), &Hasher::new(1)).is_ok(), is_valid);
        }
    }
}
