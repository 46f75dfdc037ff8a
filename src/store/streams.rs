//! Commands on the entries of streams: XADD, XRANGE, XREAD and so on. Groups of consumers are in
//! `stream_groups.rs`, XINFO is in `stream_info.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{Effort, FIND, INSERT, LOOK};
use super::events::Class;
use super::keyspace::Keyspace;
use super::log::{Entry, Id, Keep, Log, NodeSize, Precision};
use super::numbers;
use super::refusal::{Refusal, c_string};
use super::reply::Reply;
use super::stream::Stream;
use super::text::Text;
use super::waits::{self, Kind, Timeout, Want};
use crate::protocol::Protocol;
use std::ops::RangeInclusive;

pub(super) const COMMANDS: &[Command] = &[
    command("xadd", -5, Effect::Grow, xadd),
    command("xlen", 2, Effect::Read, xlen),
    command("xrange", -4, Effect::Read, xrange),
    command("xrevrange", -4, Effect::Read, xrevrange),
    command("xdel", -3, Effect::Write, xdel),
    command("xtrim", -4, Effect::Write, xtrim),
    command("xsetid", -3, Effect::Write, xsetid),
    command("xread", -4, Effect::Read, xread),
];

/// Maximum number of nodes (groups of entries) that an approximate trim of a stream removes without LIMIT.
/// The constant below it is the maximum number of entries in them.
const NODES_TRIMMED_MAX: u64 = 100;
const TRIMMED_MAX: u64 = 1_000_000;
/// Maximum number of entries that an approximate trim of a stream removes without LIMIT if the settings do
/// not limit the entries of a node (group of entries).
const TRIMMED_MAX_OF_ANY: u64 = 10_000;

/// Parses one of the two numbers of a stream entry's id, which, unlike other integers, have 64 bits and no
/// sign; `None` for any other text. As C's `strtoull` does, it skips spaces before the number, and takes a plus.
fn part(text: &[u8]) -> Option<u64> {
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(0);
    let digits = if let [b'+', digits @ ..] = &text[start..] { digits } else { &text[start..] };
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Maximum number of bytes of the text of an id of a stream entry, as in Redis; a longer text is no id.
const ID_BYTES_MAX: usize = 127;

/// Parses an id of a stream entry, `ms` or `ms-sequence`; in the first form the sequence number is
/// `missing_sequence`. An error for any other text. As in Redis, which parses a C string, a zero byte ends the text.
fn id(text: &[u8], missing_sequence: u64) -> Result<Id, Refusal> {
    let text = if text.len() > ID_BYTES_MAX { &[] } else { c_string(text, ID_BYTES_MAX) };
    let parsed = match text.iter().position(|byte| *byte == b'-') {
        None => part(text).map(|ms| Id { ms, sequence: missing_sequence }),
        Some(at) => part(&text[..at]).zip(part(&text[at + 1..])).map(|(ms, sequence)| Id { ms, sequence }),
    };
    parsed.ok_or(Refusal::Words("ERR Invalid stream ID specified as stream command argument"))
}

/// Returns the id of a stream entry at argument `index`; the sequence number is 0 if it is left out. An error
/// if the argument is no id.
pub(super) fn id_at(call: &Call<'_>, index: usize) -> Result<Id, Refusal> {
    id(call.at(index), 0)
}

/// The end of an interval of ids (of stream entries) that an argument names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Start,
    End,
}

/// Parses an end (`bound` says which) of an interval of stream entries' ids: an id, `-` for the least, `+`
/// for the greatest, or `(` before an id that is not included. Returns the first or last id that is included.
/// An error for any other text, or if there is no such id.
pub(super) fn bound(text: &[u8], bound: Bound) -> Result<Id, Refusal> {
    let missing = if bound == Bound::Start { 0 } else { u64::MAX };
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => {
            let id = id(rest, missing)?;
            match bound {
                Bound::Start => id.next().ok_or(Refusal::Words("ERR invalid start ID for the interval")),
                Bound::End => id.previous().ok_or(Refusal::Words("ERR invalid end ID for the interval")),
            }
        }
        _ => id_or_end(text, missing),
    }
}

/// Parses the id of a stream entry, or `-` for the least and `+` for the greatest id. `missing` is the sequence number
/// of an id without one. An error for any other text.
pub(super) fn id_or_end(text: &[u8], missing: u64) -> Result<Id, Refusal> {
    match c_string(text, text.len()) {
        b"-" => Ok(Id::LEAST),
        b"+" => Ok(Id::GREATEST),
        _ => id(text, missing),
    }
}

/// The id that an XADD request asks for, whole or in part.
#[derive(Clone, Copy)]
enum Wanted {
    Any,
    /// An id with this time in milliseconds, and the next free sequence number (`ms-*`).
    Within(u64),
    Exactly(Id),
}

impl Wanted {
    fn parse(text: &[u8]) -> Result<Self, Refusal> {
        match c_string(text, text.len()) {
            b"*" => Ok(Self::Any),
            [ms @ .., b'-', b'*'] if text.len() <= ID_BYTES_MAX && !ms.contains(&b'-') => {
                id(ms, 0).map(|id| Self::Within(id.ms))
            }
            _ => id(text, 0).map(Self::Exactly),
        }
    }

    /// Returns the id that XADD gives to a new entry of a stream whose last id is `last`. With the time left
    /// open (`*`), it has the present time (`now_ms`) or, if the clock is not ahead of `last`, is the next id
    /// after `last`. `None` if the id would not be greater than `last`, or if no greater one exists.
    fn settle(self, last: Id, now_ms: u64) -> Option<Id> {
        let id = match self {
            Self::Any if now_ms > last.ms => Id { ms: now_ms, sequence: 0 },
            Self::Any => last.next()?,
            Self::Within(ms) if ms == last.ms => Id { ms, sequence: last.sequence.checked_add(1)? },
            Self::Within(ms) => Id { ms, sequence: 0 },
            Self::Exactly(id) => id,
        };
        (id > last).then_some(id)
    }
}

/// The options of XADD and XTRIM: how the stream is trimmed, and where XADD's id stands.
#[derive(Default)]
struct Options {
    trim: Option<(Keep, Precision)>,
    limit: Option<u64>,
    /// True if XADD adds only to a stream that exists (NOMKSTREAM).
    only_known: bool,
    /// The position of the argument that is XADD's id; `None` for XTRIM.
    id: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Adding,
    Trimming,
}

impl Options {
    fn parse(call: &Call<'_>, purpose: Purpose) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut approximate = false;
        let mut index = 2;
        while index < call.count() {
            let left = call.count() - index - 1;
            let (most, least) = (call.is(index, "maxlen"), call.is(index, "minid"));
            if (most || least) && left >= 1 {
                if options.trim.is_some() {
                    return Err(Refusal::Words(
                        "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
                    ));
                }
                approximate = left >= 2 && call.at(index + 1) == b"~";
                let marked = approximate || left >= 2 && call.at(index + 1) == b"=";
                index += 1 + usize::from(marked);
                let keep = if most {
                    Keep::Newest(not_negative(call, index, LENGTH)?)
                } else {
                    Keep::Since(id_at(call, index)?)
                };
                options.trim = Some((keep, Precision::Exact));
            } else if call.is(index, "limit") && left >= 1 {
                index += 1;
                options.limit = Some(not_negative(call, index, LIMIT)?);
            } else if purpose == Purpose::Trimming {
                return Err(Refusal::Syntax);
            } else if call.is(index, "nomkstream") {
                options.only_known = true;
            } else {
                options.id = Some(index);
                break;
            }
            index += 1;
        }
        options.check(purpose, approximate, call.settings.stream_nodes)?;
        Ok(options)
    }

    fn check(&mut self, purpose: Purpose, approximate: bool, size: NodeSize) -> Result<(), Refusal> {
        if self.limit.is_some_and(|limit| limit > 0) && self.trim.is_none() {
            return Err(Refusal::Words(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            ));
        }
        if purpose == Purpose::Trimming && self.trim.is_none() {
            return Err(Refusal::Words("ERR syntax error, XTRIM must be called with a trimming strategy"));
        }
        if self.limit.is_some() && !approximate {
            return Err(Refusal::Words(
                "ERR syntax error, LIMIT cannot be used without the special ~ option",
            ));
        }
        if let Some((_, precision)) = &mut self.trim
            && approximate
        {
            *precision = Precision::Nodes(self.limit.unwrap_or_else(|| trimmed_max(size)));
        }
        Ok(())
    }
}

/// Returns the maximum number of entries that an approximate trim of a stream removes without LIMIT; `size`
/// is the largest size of a node (group of entries).
fn trimmed_max(size: NodeSize) -> u64 {
    match (size.entries_max as u64).saturating_mul(NODES_TRIMMED_MAX) {
        0 => TRIMMED_MAX_OF_ANY,
        entries => entries.min(TRIMMED_MAX),
    }
}

const LENGTH: &str = "ERR The MAXLEN argument must be >= 0.";
const LIMIT: &str = "ERR The LIMIT argument must be >= 0.";

fn not_negative(call: &Call<'_>, index: usize, words: &'static str) -> Result<u64, Refusal> {
    u64::try_from(call.integer_at(index)?).map_err(|_| Refusal::Words(words))
}

fn xadd(call: &mut Call<'_>) -> Done {
    let options = Options::parse(call, Purpose::Adding)?;
    let index = options.id.ok_or(Refusal::WrongArity("xadd"))?;
    let wanted = Wanted::parse(call.at(index))?;
    let words = call.count() - index - 1;
    if words < 2 || !words.is_multiple_of(2) {
        return Err(Refusal::WrongArity("xadd"));
    }
    if let Wanted::Exactly(Id::LEAST) = wanted {
        return Err(Refusal::Words("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let key = call.at(1);
    let stream = call.keyspace.read_uncounted_as::<Stream>(key)?;
    if stream.is_none() && options.only_known {
        return call.null();
    }
    let last = stream.map_or(Id::LEAST, |stream| stream.log.last);
    if last == Id::GREATEST {
        return Err(Refusal::Words(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    let id = wanted.settle(last, call.keyspace.now_ms()).ok_or(Refusal::Words(
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
    ))?;
    let told = id.text();
    call.out.expect(told.len())?;
    // The names of fields may be kept once more, and are copied then.
    call.afford(call.arguments.frame().len())?;
    call.effort.charge(INSERT);
    let words = call.rest(index + 1).map(Text::new).collect();
    let size = call.settings.stream_nodes;
    let trimmed = call.keyspace.change_or_create(key, |stream: &mut Stream| {
        stream.log.append(id, words, size);
        options.trim.map_or(0, |(keep, precision)| stream.log.trim(keep, precision))
    })?;
    call.announce(Class::Stream, "xadd", key);
    if trimmed > 0 {
        call.announce(Class::Stream, "xtrim", key);
    }
    call.effort.charge(trimmed * FIND);
    call.keyspace.interest.waits.signal(call.session.database, key, Kind::Stream);
    call.bulk(told.as_bytes())
}

fn xlen(call: &mut Call<'_>) -> Done {
    let length = call.keyspace.read_as::<Stream>(call.at(1))?.map_or(0, |stream| stream.log.len());
    call.number(length)
}

fn xrange(call: &mut Call<'_>) -> Done {
    let ids = bound(call.at(2), Bound::Start)?..=bound(call.at(3), Bound::End)?;
    show(call, ids, false)
}

fn xrevrange(call: &mut Call<'_>) -> Done {
    let ids = bound(call.at(3), Bound::Start)?..=bound(call.at(2), Bound::End)?;
    show(call, ids, true)
}

fn show(call: &mut Call<'_>, ids: RangeInclusive<Id>, reversed: bool) -> Done {
    let mut count = usize::MAX;
    let mut index = 4;
    while index < call.count() {
        if !call.is(index, "count") || index + 1 == call.count() {
            return Err(Refusal::Syntax);
        }
        count = usize::try_from(call.integer_at(index + 1)?).unwrap_or(0);
        index += 2;
    }
    let Some(stream) = call.keyspace.read_as::<Stream>(call.arguments.at(1))? else {
        return call.empty_array();
    };
    if count == 0 {
        call.out.null_array(call.session.protocol);
        return Ok(());
    }
    let range = stream.log.range(ids);
    if reversed {
        write_entries(&mut call.out, call.effort, range.rev().take(count))?;
    } else {
        write_entries(&mut call.out, call.effort, range.take(count))?;
    }
    Ok(())
}

/// Writes entries of a stream as an array, and returns their number. An error if they do not fit in the reply
/// or take too much effort.
pub(super) fn write_entries<'a>(
    out: &mut Reply<'_>,
    effort: &Effort,
    entries: impl Iterator<Item = (Id, &'a Entry)>,
) -> Result<usize, Refusal> {
    let at = out.len();
    let mut count = 0;
    for (id, entry) in entries {
        effort.spend(1 + entry.words().len(), LOOK)?;
        write_entry(out, id, entry);
        out.check()?;
        count += 1;
    }
    out.insert(at, |out| out.array(count));
    Ok(count)
}

pub(super) fn write_entry(out: &mut Reply<'_>, id: Id, entry: &Entry) {
    out.array(2);
    write_id(out, id);
    out.array(entry.words().len());
    entry.words().iter().for_each(|word| out.bulk(word.as_bytes()));
}

pub(super) fn write_id(out: &mut Reply<'_>, id: Id) {
    out.bulk(id.text().as_bytes());
}

fn xdel(call: &mut Call<'_>) -> Done {
    if call.keyspace.read_uncounted_as::<Stream>(call.at(1))?.is_none() {
        return call.integer(0);
    }
    let ids = (2..call.count()).map(|index| id_at(call, index)).collect::<Result<Vec<_>, _>>()?;
    call.effort.spend(ids.len(), FIND)?;
    let deleted = call.keyspace.change(call.at(1), |stream: &mut Stream| {
        ids.into_iter().filter(|id| stream.log.delete(*id)).count()
    })?;
    match deleted {
        None => {}
        Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::Stream, "xdel", call.at(1)),
    }
    call.number(deleted.unwrap_or(0))
}

fn xtrim(call: &mut Call<'_>) -> Done {
    let Options { trim: Some((keep, precision)), .. } = Options::parse(call, Purpose::Trimming)? else {
        return Err(Refusal::Syntax);
    };
    let trimmed = call
        .keyspace
        .change(call.at(1), |stream: &mut Stream| stream.log.trim(keep, precision))?
        .unwrap_or(0);
    if trimmed == 0 {
        call.keyspace.interest.withdraw();
    } else {
        call.announce(Class::Stream, "xtrim", call.at(1));
    }
    call.effort.charge(trimmed * FIND);
    call.integer(trimmed as i64)
}

fn xsetid(call: &mut Call<'_>) -> Done {
    let last = id_at(call, 2)?;
    let (mut added, mut deleted) = (None, Id::LEAST);
    let mut index = 3;
    while index < call.count() {
        if index + 1 == call.count() {
            return Err(Refusal::Syntax);
        }
        if call.is(index, "entriesadded") {
            added = Some(not_negative(call, index + 1, "ERR entries_added must be positive")?);
        } else if call.is(index, "maxdeletedid") {
            deleted = id_at(call, index + 1)?;
            if last < deleted {
                return Err(Refusal::Words(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
        } else {
            return Err(Refusal::Syntax);
        }
        index += 2;
    }
    let changed = call.keyspace.change(call.at(1), |Stream { log, .. }: &mut Stream| {
        check_entries(log, last, added)?;
        log.last = last;
        log.added = added.unwrap_or(log.added);
        if deleted != Id::LEAST {
            log.deleted = deleted;
        }
        Ok(())
    })?;
    changed.ok_or(Refusal::NoSuchKey)??;
    // As in Redis, XSETID does not break the watches of the stream's key, nor does any command about groups.
    call.keyspace.interest.withdraw();
    call.announce(Class::Stream, "xsetid", call.at(1));
    call.ok()
}

/// Checks what XSETID sets: the new last id (`last`) must not be below the ids of the present entries and of
/// those that XDEL has deleted, nor the new count of entries ever added (`added`, `None` if not given) below
/// the number of present entries; an error if one is.
fn check_entries(log: &Log, last: Id, added: Option<u64>) -> Result<(), Refusal> {
    if last < log.deleted {
        return Err(Refusal::Words(
            "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id",
        ));
    }
    if log.len() > 0 && last < log.newest() {
        return Err(Refusal::Words(
            "ERR The ID specified in XSETID is smaller than the target stream top item",
        ));
    }
    if log.len() > 0 && added.is_some_and(|added| added < log.len() as u64) {
        return Err(Refusal::Words(
            "ERR The entries_added specified in XSETID is smaller than the target stream length",
        ));
    }
    Ok(())
}

/// The options of XREAD and XREADGROUP.
#[derive(Default)]
pub(super) struct ReadOptions<'a> {
    /// Maximum number of entries to read of each stream (COUNT); `None` for all.
    pub(super) count: Option<usize>,
    /// The names of the group and the consumer; `None` for XREAD.
    pub(super) group: Option<(&'a [u8], &'a [u8])>,
    /// True if entries that XREADGROUP reads do not become pending (NOACK).
    pub(super) forgets: bool,
    /// The time for which the command waits if there are no entries (BLOCK); `None` if it does not wait.
    pub(super) timeout: Option<Timeout>,
    /// The position of the argument that names the first stream's key.
    pub(super) keys: usize,
    /// The number of streams: their keys are followed by as many ids.
    pub(super) streams: usize,
}

impl<'a> ReadOptions<'a> {
    pub(super) fn parse(call: &Call<'a>, reads_as_group: bool) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut index = 1;
        while index < call.count() {
            let left = call.count() - index - 1;
            if call.is(index, "block") && left >= 1 {
                index += 1;
                options.timeout = Some(waits::milliseconds_at(call, index)?);
            } else if call.is(index, "count") && left >= 1 {
                index += 1;
                let count = usize::try_from(call.integer_at(index)?).unwrap_or(0);
                options.count = Some(count).filter(|count| *count > 0);
            } else if call.is(index, "streams") && left >= 1 {
                (options.keys, options.streams) = (index + 1, left / 2);
                if !left.is_multiple_of(2) {
                    return Err(Refusal::Words(
                        "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
                    ));
                }
                break;
            } else if call.is(index, "group") && left >= 2 {
                if !reads_as_group {
                    return Err(Refusal::Words(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                options.group = Some((call.at(index + 1), call.at(index + 2)));
                index += 2;
            } else if call.is(index, "noack") {
                if !reads_as_group {
                    return Err(Refusal::Words(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                options.forgets = true;
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        if options.streams == 0 {
            return Err(Refusal::Syntax);
        }
        if reads_as_group && options.group.is_none() {
            return Err(Refusal::Words("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(options)
    }

    /// Lets the command wait until one of its streams has an entry that `want` describes, or for `timeout`.
    /// False if it may not wait, as in a transaction. An error if too many calls wait.
    pub(super) fn wait(&self, call: &mut Call<'_>, want: Want, timeout: Timeout) -> Result<bool, Refusal> {
        let arguments = call.arguments;
        let mut keys = (self.keys..self.keys + self.streams).map(|index| arguments.at(index));
        call.wait(&mut keys, want, timeout)
    }
}

fn xread(call: &mut Call<'_>) -> Done {
    let options = ReadOptions::parse(call, false)?;
    let mut after = Vec::with_capacity(options.streams);
    for at in 0..options.streams {
        let stream = call.keyspace.read_as::<Stream>(call.at(options.keys + at))?;
        let last = stream.map_or(Id::LEAST, |stream| stream.log.last);
        let newest = stream.map_or(Id::LEAST, |stream| stream.log.newest());
        after.push(match call.at(options.keys + options.streams + at) {
            b"$" => last,
            // The last entry is read, as in Redis 7.4; of a stream without entries, what is added later.
            b"+" => newest.previous().unwrap_or(last),
            b">" => {
                return Err(Refusal::Words(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> \
                     <consumer> option.",
                ));
            }
            text => id(text, 0)?,
        });
    }
    let arguments = call.arguments;
    let starts = after.iter().enumerate().map(|(at, after)| (arguments.at(options.keys + at), *after));
    // As in Redis, each stream counts as looked up twice: for its last id, and for its entries.
    let told = write_after(call, starts, options.count, Keyspace::read_as::<Stream>)?;
    if told == 0
        && let Some(timeout) = options.timeout
    {
        let want = Want::Entries { after, count: options.count };
        if options.wait(call, want, timeout)? {
            return Ok(());
        }
    }
    finish_streams(call, told);
    Ok(())
}

/// Carries out an XREAD that has waited: writes the reply with the entries of the streams at `keys` after the
/// ids `after`, at most `count` of each. False if there are none; an error if one of the keys holds a value
/// of another type by now, as when the request comes in anew.
pub(super) fn serve(
    call: &mut Call<'_>,
    keys: &[Box<[u8]>],
    after: &[Id],
    count: Option<usize>,
) -> Result<bool, Refusal> {
    call.effort.charge(keys.len() as u64 * FIND);
    for key in keys {
        call.keyspace.read_uncounted_as::<Stream>(key)?;
    }
    let starts = keys.iter().map(|key| &**key).zip(after.iter().copied());
    let told = write_after(call, starts, count, Keyspace::read_uncounted_as::<Stream>)?;
    if told > 0 {
        finish_streams(call, told);
    }
    Ok(told > 0)
}

/// A way to find the stream at a key, which counts a hit or a miss ([`Keyspace::read_as`]) or does not
/// ([`Keyspace::read_uncounted_as`]).
pub(super) type LookUp = for<'k> fn(&'k mut Keyspace, &[u8]) -> Result<Option<&'k Stream>, Refusal>;

/// Writes the entries of each stream (`starts` has its key) after an id, at most `count`, and leaves out streams
/// without any. `look_up` finds a stream. Returns the number of streams written. An error if a value is no
/// stream, or if the reply or the effort does not suffice.
fn write_after<'a>(
    call: &mut Call<'_>,
    starts: impl Iterator<Item = (&'a [u8], Id)>,
    count: Option<usize>,
    look_up: LookUp,
) -> Result<usize, Refusal> {
    let mut told = 0;
    for (key, after) in starts {
        let stream = look_up(call.keyspace, key)?.filter(|stream| stream.log.newest() > after);
        let Some((stream, first)) = stream.zip(after.next()) else { continue };
        told += 1;
        begin_stream(&mut call.out, call.session.protocol, key);
        let range = stream.log.range(first..=Id::GREATEST).take(count.unwrap_or(usize::MAX));
        write_entries(&mut call.out, call.effort, range)?;
    }
    Ok(told)
}

/// Writes the part of the reply to XREAD or XREADGROUP that comes before the entries of one stream: its key,
/// and in RESP2 the header of an array of two (in RESP3, streams are a map).
pub(super) fn begin_stream(out: &mut Reply<'_>, protocol: Protocol, key: &[u8]) {
    if protocol == Protocol::Resp2 {
        out.array(2);
    }
    out.bulk(key);
}

/// Inserts the part of the reply to XREAD or XREADGROUP that comes before all streams, of which `told` are in
/// the reply; writes null if none is.
pub(super) fn finish_streams(call: &mut Call<'_>, told: usize) {
    let protocol = call.protocol();
    match (told, protocol) {
        (0, _) => call.out.null_array(protocol),
        (_, Protocol::Resp2) => call.out.insert(0, |out| out.array(told)),
        (_, Protocol::Resp3) => call.out.insert(0, |out| out.map(protocol, told)),
    }
}

/// Returns the number in argument `index`, which must be at least `least`; otherwise an error with the text
/// `words`.
pub(super) fn count_at(
    call: &Call<'_>,
    index: usize,
    least: i64,
    words: &'static str,
) -> Result<usize, Refusal> {
    let count = numbers::integer(call.at(index)).filter(|count| *count >= least);
    count.and_then(|count| usize::try_from(count).ok()).ok_or(Refusal::Words(words))
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn nodes_have_the_size_that_is_set() {
        let mut bench = Bench::new();
        bench.send("CONFIG SET stream-node-max-entries 10");
        (0..100).for_each(|_| drop(bench.send("XADD x * f v")));
        bench.talk(&[
            ("XADD x MAXLEN ~ 55 LIMIT 30 1800000000000-0 f v", "$15|1800000000000-0|"),
            ("XLEN x", ":71|"),
        ]);
        bench.send("CONFIG SET stream-node-max-entries 1");
        (1..=102).for_each(|number| drop(bench.send(&format!("XADD y {number} f v"))));
        bench.talk(&[
            ("XTRIM y MAXLEN ~ 1", ":100|"),
            ("CONFIG SET stream-node-max-entries 0 stream-node-max-bytes 0", "+OK|"),
            ("DEL y", ":1|"),
        ]);
        (1..=300).for_each(|number| drop(bench.send(&format!("XADD y {number} f v"))));
        bench.talk(&[("XTRIM y MAXLEN ~ 1", ":0|"), ("XTRIM y MAXLEN 1", ":299|")]);
    }

    #[test]
    fn a_zero_byte_ends_an_id() {
        let mut bench = Bench::new();
        for (id, reply) in [
            (&b"1-1\0x"[..], "$3|1-1|"),
            (b"1-*\0", "$3|1-2|"),
            (b"\0", "-ERR Invalid stream ID specified as stream command argument|"),
            (&[b'1'; 128], "-ERR Invalid stream ID specified as stream command argument|"),
        ] {
            let told = bench.send_bytes(&[b"XADD", b"x", id, b"f", b"v"]);
            assert_eq!(String::from_utf8_lossy(&told).replace("\r\n", "|"), reply);
        }
        let told = bench.send_bytes(&[b"XRANGE", b"x", b"(1-1\0", b"+\0"]);
        assert_eq!(String::from_utf8_lossy(&told).replace("\r\n", "|"), "*1|*2|$3|1-2|*2|$1|f|$1|v|");
    }

    #[test]
    fn only_a_time_stands_before_an_open_sequence_number() {
        let invalid = "-ERR Invalid stream ID specified as stream command argument|";
        let mut bench = Bench::new();
        let (longest, too_long) = (format!("{:0125}-*", 7), format!("{:0126}-*", 7));
        for (id, reply) in [
            ("5-*", "$3|5-0|"),
            ("5-3-*", invalid),
            ("5--*", invalid),
            ("-5-*", invalid),
            ("-*", invalid),
            ("5-*", "$3|5-1|"),
            ("+6-*", "$3|6-0|"),
            (longest.as_str(), "$3|7-0|"),
            (too_long.as_str(), invalid),
        ] {
            assert_eq!(bench.send(&format!("XADD x {id} f v")), reply, "{id}");
        }
        bench.talk(&[("XLEN x", ":4|")]);
    }

    #[test]
    fn entries_are_added_and_read() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("XADD x 1-1 f v", "$3|1-1|"),
            ("XADD x 1-* f v g w", "$3|1-2|"),
            (
                "XADD x 1-2 f v",
                "-ERR The ID specified in XADD is equal or smaller than the target stream top item|",
            ),
            ("XADD x 0-0 f v", "-ERR The ID specified in XADD must be greater than 0-0|"),
            ("XADD x 2 f", "-ERR wrong number of arguments for 'xadd' command|"),
            ("XADD y NOMKSTREAM * f v", "$-1|"),
            ("XLEN x", ":2|"),
            ("XRANGE x - + COUNT 1", "*1|*2|$3|1-1|*2|$1|f|$1|v|"),
            ("XRANGE x (1-1 +", "*1|*2|$3|1-2|*4|$1|f|$1|v|$1|g|$1|w|"),
            ("XREVRANGE x + - COUNT 1", "*1|*2|$3|1-2|*4|$1|f|$1|v|$1|g|$1|w|"),
            ("XRANGE x - + COUNT 0", "*-1|"),
            ("XRANGE x + -", "*0|"),
            ("XRANGE x a b", "-ERR Invalid stream ID specified as stream command argument|"),
            ("XREAD COUNT 1 STREAMS x y 0 0", "*1|*2|$1|x|*1|*2|$3|1-1|*2|$1|f|$1|v|"),
            ("XREAD STREAMS x $", "*-1|"),
            ("XREAD STREAMS x +", "*1|*2|$1|x|*1|*2|$3|1-2|*4|$1|f|$1|v|$1|g|$1|w|"),
            ("XREAD COUNT 5 STREAMS none x + +", "*1|*2|$1|x|*1|*2|$3|1-2|*4|$1|f|$1|v|$1|g|$1|w|"),
            ("XREAD STREAMS none +", "*-1|"),
            ("XADD x * f v", "$15|1700000000000-0|"),
            ("XADD x * f v", "$15|1700000000000-1|"),
            ("XTRIM x MAXLEN ~ 1", ":0|"),
            ("XTRIM x MAXLEN 1", ":3|"),
            ("XADD x MINID 1700000000001 1700000000001 f v", "$15|1700000000001-0|"),
            ("XDEL x 1700000000001-0 9-9", ":1|"),
            ("XLEN x", ":0|"),
            ("XREAD STREAMS x +", "*-1|"),
            ("TYPE x", "+stream|"),
            ("XSETID x 5-5", "-ERR The ID specified in XSETID is smaller than current max_deleted_entry_id|"),
            ("XSETID x 1700000000001-0", "+OK|"),
            ("XSETID nothing 5-5", "-ERR no such key|"),
            ("XTRIM x LIMIT 0", "-ERR syntax error, XTRIM must be called with a trimming strategy|"),
            (
                "XTRIM x MAXLEN 1 LIMIT 1",
                "-ERR syntax error, LIMIT cannot be used without the special ~ option|",
            ),
            ("DEL x", ":1|"),
        ]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }
}
