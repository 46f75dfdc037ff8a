//! Commands on groups of consumers of a stream: XGROUP, XREADGROUP, XACK, XPENDING, XCLAIM, XAUTOCLAIM.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, INSERT, LOOK, RANK};
use super::events::Class;
use super::keyspace::Keyspace;
use super::log::{Id, Log};
use super::numbers::Digits;
use super::refusal::{Refusal, quoted};
use super::stream::{CONSUMER_BYTES, Group, PENDING_BYTES, Pending, Stream};
use super::streams::{
    Bound, LookUp, ReadOptions, begin_stream, bound, count_at, finish_streams, id_at, id_or_end,
    write_entries, write_entry, write_id,
};
use super::waits::{Kind, Want};
use std::collections::BTreeMap;

pub(super) const COMMANDS: &[Command] = &[
    command("xgroup", -2, Effect::Write, xgroup),
    command("xreadgroup", -7, Effect::Take, xreadgroup),
    command("xack", -4, Effect::Write, xack),
    command("xpending", -3, Effect::Read, xpending),
    command("xclaim", -6, Effect::Take, xclaim),
    command("xautoclaim", -6, Effect::Take, xautoclaim),
];

/// Maximum number of entries that XAUTOCLAIM examines for each entry that it may claim.
const ATTEMPTS: usize = 10;
/// Maximum number of entries that one XAUTOCLAIM may ask for (COUNT), as in Redis, whose arrays cannot be
/// longer. A larger COUNT is refused.
const CLAIMED_MAX: usize = i64::MAX as usize / 16;
/// Maximum number of entries that XAUTOCLAIM claims without COUNT.
const CLAIMED: usize = 100;

fn xgroup(call: &mut Call<'_>) -> Done {
    let subcommand = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
    let count = call.count();
    let (fits, run): (bool, fn(&mut Call<'_>) -> Done) = match subcommand.as_str() {
        "create" => (count >= 5, create),
        "setid" => (count >= 5, set_id),
        "destroy" => (count == 4, destroy),
        "createconsumer" => (count == 5, create_consumer),
        "delconsumer" => (count == 5, delete_consumer),
        "help" => (count == 2, |call| call.empty_array()),
        _ => return Err(call.unknown_subcommand()),
    };
    if !fits {
        return Err(Refusal::Quoting(format!(
            "ERR wrong number of arguments for 'xgroup|{subcommand}' command"
        )));
    }
    run(call)
}

/// The options of XGROUP CREATE and XGROUP SETID: whether to create a missing stream, and the number of
/// entries that the group counts as read.
struct GroupOptions {
    creates_stream: bool,
    read: Option<u64>,
}

impl GroupOptions {
    fn parse(call: &Call<'_>, may_create: bool) -> Result<Self, Refusal> {
        let mut options = Self { creates_stream: false, read: None };
        let mut index = 5;
        while index < call.count() {
            if may_create && call.is(index, "mkstream") {
                options.creates_stream = true;
            } else if call.is(index, "entriesread") && index + 1 < call.count() {
                index += 1;
                options.read =
                    match call.integer_at(index)? {
                        -1 => None,
                        read => Some(u64::try_from(read).map_err(|_| {
                            Refusal::Words("ERR value for ENTRIESREAD must be positive or -1")
                        })?),
                    };
            } else {
                return Err(call.wrong_subcommand());
            }
            index += 1;
        }
        Ok(options)
    }
}

/// Maximum number of words of XGROUP CREATE, the command's name included, as in Redis: enough for each option
/// once. A longer request is refused.
const CREATE_WORDS_MAX: usize = 8;
/// Maximum number of words of XGROUP SETID, the command's name included; a longer request is refused.
const SET_ID_WORDS_MAX: usize = 7;

const NO_STREAM: Refusal = Refusal::Words(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM \
     option to create an empty stream automatically.",
);

/// Returns the refusal of a subcommand on a group that does not exist; `key` and `group` are the positions of
/// the arguments that name the stream and the group.
pub(super) fn no_such_group(call: &Call<'_>, key: usize, group: usize) -> Refusal {
    let (group, key) = (quoted(call.at(group)), quoted(call.at(key)));
    Refusal::Quoting(format!("NOGROUP No such consumer group '{group}' for key name '{key}'"))
}

/// Returns the refusal of a command on a stream (`key`) or consumer group that does not exist; `context` is
/// appended to the text.
fn no_such_key_or_group(key: &[u8], group: &[u8], context: &str) -> Refusal {
    let (key, group) = (quoted(key), quoted(group));
    Refusal::Quoting(format!("NOGROUP No such key '{key}' or consumer group '{group}'{context}"))
}

/// Returns the id at argument `index`, after which a group begins to read; `$` means `last`, the last id of
/// the stream. An error if it is no id.
fn start_at(call: &Call<'_>, index: usize, last: Id) -> Result<Id, Refusal> {
    if call.at(index) == b"$" { Ok(last) } else { id_at(call, index) }
}

fn create(call: &mut Call<'_>) -> Done {
    let options = GroupOptions::parse(call, true)?;
    call.afford(call.arguments.frame().len())?;
    let (key, name, words) = (call.at(2), call.at(3), call.count());
    let stream = call.keyspace.read_uncounted_as::<Stream>(key)?;
    if stream.is_none() && !options.creates_stream {
        return Err(NO_STREAM);
    }
    let existed = stream.is_some();
    let last = stream.map_or(Id::LEAST, |stream| stream.log.last);
    if words > CREATE_WORDS_MAX {
        return Err(call.wrong_subcommand());
    }
    let start = start_at(call, 4, last)?;
    let added = call
        .keyspace
        .change_or_create(key, |stream: &mut Stream| stream.add_group(name, start, options.read))?;
    if existed {
        call.keyspace.interest.withdraw();
    }
    if !added {
        return Err(Refusal::Words("BUSYGROUP Consumer Group name already exists"));
    }
    call.announce(Class::Stream, "xgroup-create", key);
    call.ok()
}

fn set_id(call: &mut Call<'_>) -> Done {
    let options = GroupOptions::parse(call, false)?;
    let name = call.at(3);
    let last = call.keyspace.read_uncounted_as::<Stream>(call.at(2))?.ok_or(NO_STREAM)?.log.last;
    if call.keyspace.peek_as::<Stream>(call.at(2))?.is_some_and(|stream| stream.group(name).is_none()) {
        return Err(no_such_group(call, 2, 3));
    }
    if call.count() > SET_ID_WORDS_MAX {
        return Err(call.wrong_subcommand());
    }
    let start = if call.at(4) == b"$" { last } else { id_or_end(call.at(4), 0)? };
    call.keyspace.change(call.at(2), |stream: &mut Stream| {
        stream.change_group(name, |_, group| (group.last, group.read) = (start, options.read))
    })?;
    call.keyspace.interest.withdraw();
    call.announce(Class::Stream, "xgroup-setid", call.at(2));
    call.ok()
}

fn destroy(call: &mut Call<'_>) -> Done {
    let name = call.at(3);
    let pending = call
        .keyspace
        .peek_as::<Stream>(call.at(2))?
        .ok_or(NO_STREAM)?
        .group(name)
        .map_or(0, |group| group.pending.len());
    call.effort.charge(pending as u64 * LOOK);
    let removed = call.keyspace.change(call.at(2), |stream: &mut Stream| stream.remove_group(name))?;
    if removed == Some(true) {
        call.keyspace.interest.waits.signal(call.session.database, call.at(2), Kind::Stream);
        call.announce(Class::Stream, "xgroup-destroy", call.at(2));
    }
    call.keyspace.interest.withdraw();
    call.integer(i64::from(removed.unwrap_or(false)))
}

/// Changes the consumer group in argument 3 of the stream in argument 2 by `change`, and returns the result
/// of `change`; an error if one of them does not exist.
fn change_named<R>(call: &mut Call<'_>, change: impl FnOnce(&mut Group) -> R) -> Result<R, Refusal> {
    let name = call.at(3);
    let changed = call
        .keyspace
        .change(call.at(2), |stream: &mut Stream| stream.change_group(name, |_, group| change(group)))?;
    call.keyspace.interest.withdraw();
    changed.ok_or(NO_STREAM)?.ok_or_else(|| no_such_group(call, 2, 3))
}

fn create_consumer(call: &mut Call<'_>) -> Done {
    call.afford(call.arguments.frame().len())?;
    let (name, now_ms) = (call.at(4), call.keyspace.now_ms());
    let created = change_named(call, |group| {
        let new = !group.consumers.contains_key(name);
        if new {
            group.see(name, now_ms);
        }
        new
    })?;
    if created {
        call.announce(Class::Stream, CONSUMER_CREATED, call.at(2));
    }
    call.integer(i64::from(created))
}

fn delete_consumer(call: &mut Call<'_>) -> Done {
    let name = call.at(4);
    let (known, pending) =
        change_named(call, |group| (group.consumers.contains_key(name), group.remove_consumer(name)))?;
    if known {
        call.announce(Class::Stream, "xgroup-delconsumer", call.at(2));
    }
    call.effort.charge(pending as u64 * FIND);
    call.number(pending)
}

/// The name of the keyspace event when a command creates a consumer.
const CONSUMER_CREATED: &str = "xgroup-createconsumer";

/// The entries of a stream that XREADGROUP reads.
#[derive(Clone, Copy)]
enum From {
    /// Entries that the group has not delivered to any consumer yet (`>`).
    New,
    /// Entries after this id that are pending with the consumer: delivered to it and not acknowledged.
    Own(Id),
}

fn xreadgroup(call: &mut Call<'_>) -> Done {
    let options = ReadOptions::parse(call, true)?;
    let Some((group, consumer)) = options.group else { return Err(Refusal::Syntax) };
    let mut starts = Vec::with_capacity(options.streams);
    for at in 0..options.streams {
        let key = call.at(options.keys + at);
        check_group(call, key, group, Keyspace::read_as::<Stream>)?;
        let index = options.keys + options.streams + at;
        starts.push(match call.at(index) {
            b"$" => {
                return Err(Refusal::Words(
                    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of \
                     this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would \
                     just return an empty result set.",
                ));
            }
            b">" => From::New,
            _ => From::Own(id_at(call, index)?),
        });
    }
    // Everything is written before anything is changed, because a reply that does not fit must change nothing.
    let mut deliveries = Vec::with_capacity(options.streams);
    // For each stream, the new entries that its names so far deliver. If it is named again, further new entries come
    // after these, and the consumer's own entries include them, unless they do not become pending.
    let mut fresh: BTreeMap<&[u8], Vec<Id>> = BTreeMap::new();
    for (at, from) in starts.iter().enumerate() {
        let key = call.at(options.keys + at);
        let forgotten = options.forgets && matches!(from, From::Own(_));
        let known = fresh.get(key).filter(|_| !forgotten).map_or(&[][..], Vec::as_slice);
        // As in Redis, each stream counts as looked up twice: for its group, and for its entries.
        call.keyspace.read(key);
        let delivery = write_deliveries(call, key, options.count, (*from, known), (group, consumer))?;
        if let Some((From::New, ids)) = &delivery {
            fresh.entry(key).or_default().extend(ids);
        }
        deliveries.push(delivery);
    }
    // The header of all streams is written at the end.
    call.out.expect(0)?;
    let told = deliveries.iter().flatten().count();
    let keys: Vec<&[u8]> = (0..options.streams).map(|at| call.at(options.keys + at)).collect();
    note_deliveries(call, &keys, deliveries, (group, consumer), options.forgets)?;
    if told == 0
        && let Some(timeout) = options.timeout
    {
        let (group, consumer) = (group.into(), consumer.into());
        let want = Want::Deliveries { group, consumer, count: options.count, forgets: options.forgets };
        if options.wait(call, want, timeout)? {
            return Ok(());
        }
    }
    finish_streams(call, told);
    Ok(())
}

/// Checks that `key` holds a stream that has the group of consumers `group`, which XREADGROUP reads; an error if
/// not. `look_up` finds the stream, and counts a hit or a miss or does not.
fn check_group(call: &mut Call<'_>, key: &[u8], group: &[u8], look_up: LookUp) -> Done {
    let stream = look_up(call.keyspace, key)?;
    if stream.is_none_or(|stream| stream.group(group).is_none()) {
        return Err(no_such_key_or_group(key, group, " in XREADGROUP with GROUP option"));
    }
    Ok(())
}

/// Carries out an XREADGROUP that has waited: writes the reply for `consumer` with the entries of the streams
/// at `keys` that `group` has not delivered yet, at most `count` of each, and records them as delivered. With
/// `forgets` (NOACK) they do not become pending. False if there are none; an error if one of the keys does
/// not hold a stream with such a group any more, as when the request comes in anew.
pub(super) fn serve(
    call: &mut Call<'_>,
    keys: &[Box<[u8]>],
    (group, consumer): (&[u8], &[u8]),
    count: Option<usize>,
    forgets: bool,
) -> Result<bool, Refusal> {
    let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
    let look_up: LookUp = Keyspace::read_uncounted_as::<Stream>;
    call.effort.charge(keys.len() as u64 * RANK);
    keys.iter().try_for_each(|key| check_group(call, key, group, look_up))?;
    let mut deliveries = Vec::with_capacity(keys.len());
    for key in &keys {
        deliveries.push(write_deliveries(call, key, count, (From::New, &[]), (group, consumer))?);
    }
    // The header of all streams is written at the end.
    call.out.expect(0)?;
    let told = deliveries.iter().flatten().count();
    note_deliveries(call, &keys, deliveries, (group, consumer), forgets)?;
    if told > 0 {
        finish_streams(call, told);
    }
    Ok(told > 0)
}

/// Records the entries that were written into the reply as delivered; `deliveries` has an item for each stream
/// of `keys`. They become pending with `consumer` of `group`; with `forgets` (NOACK), entries that are delivered
/// for the first time do not. Creates the consumer in each stream that does not know it, even without entries,
/// as Redis 7.2 does. An error, before any change, if memory does not suffice.
fn note_deliveries(
    call: &mut Call<'_>,
    keys: &[&[u8]],
    deliveries: Vec<Option<(From, Vec<Id>)>>,
    (group, consumer): (&[u8], &[u8]),
    forgets: bool,
) -> Done {
    let pending = deliveries.iter().flatten().map(|(_, ids)| ids.len()).sum::<usize>();
    // Each stream that does not know the consumer yet gets its own copy of the name.
    let knows = |key: &[u8]| {
        let stream = call.keyspace.peek_as::<Stream>(key).ok().flatten();
        stream
            .and_then(|stream| stream.group(group))
            .is_some_and(|group| group.consumers.contains_key(consumer))
    };
    let names = keys.iter().filter(|key| !knows(key)).count() * (CONSUMER_BYTES + consumer.len());
    call.afford_taken(if forgets { 0 } else { pending * PENDING_BYTES } + names)?;
    call.effort.charge(pending as u64 * RANK);
    let now_ms = call.keyspace.now_ms();
    for (key, delivery) in keys.iter().zip(deliveries) {
        let (from, ids) = delivery.unwrap_or((From::New, Vec::new()));
        let forgets = forgets && matches!(from, From::New);
        let mut created = false;
        call.keyspace.change(key, |stream: &mut Stream| {
            stream.change_group(group, |log, group| {
                created = group.see(consumer, now_ms);
                for id in ids {
                    deliver(log, group, consumer, id, (from, forgets, now_ms));
                }
            })
        })?;
        call.keyspace.interest.withdraw();
        if created {
            call.announce(Class::Stream, CONSUMER_CREATED, key);
        }
    }
    Ok(())
}

fn deliver(
    log: &Log,
    group: &mut Group,
    consumer: &[u8],
    id: Id,
    (from, forgets, now_ms): (From, bool, u64),
) {
    if let From::New = from {
        group.advance(log, id);
    }
    if forgets {
        return;
    }
    let pending = group.give(id, consumer);
    pending.delivered_ms = now_ms;
    if let From::New = from {
        pending.deliveries = 1;
        group.note_active(consumer, now_ms);
    } else {
        pending.deliveries = pending.deliveries.wrapping_add(1);
    }
}

/// Writes the entries of one stream of XREADGROUP, at most `count`, that `consumer` of `group` reads; `from`
/// says which ones. `fresh` has the ids, ascending, of new entries that the same request has delivered but not
/// recorded yet: new entries come after them, and those of the consumer include them. Returns `from` and the ids
/// of the entries that count as delivered; `None` if the reply leaves the stream out. An error if the reply or the
/// effort does not suffice.
fn write_deliveries(
    call: &mut Call<'_>,
    key: &[u8],
    count: Option<usize>,
    (from, fresh): (From, &[Id]),
    (group, consumer): (&[u8], &[u8]),
) -> Result<Option<(From, Vec<Id>)>, Refusal> {
    let count = count.unwrap_or(usize::MAX);
    let Some(stream) = call.keyspace.peek_as::<Stream>(key)? else { return Ok(None) };
    let Some(group) = stream.group(group) else { return Ok(None) };
    let mut ids = Vec::new();
    match from {
        From::New => {
            let last = fresh.last().map_or(group.last, |last| group.last.max(*last));
            let first = last.next().filter(|_| stream.log.newest() > last);
            let Some(first) = first else { return Ok(None) };
            begin_stream(&mut call.out, call.session.protocol, key);
            let range = stream.log.range(first..=Id::GREATEST).take(count).inspect(|(id, _)| ids.push(*id));
            write_entries(&mut call.out, call.effort, range)?;
        }
        From::Own(after) => {
            begin_stream(&mut call.out, call.session.protocol, key);
            let pending = group.consumers.get(consumer).zip(after.next());
            let pending = pending.into_iter().flat_map(|(consumer, first)| consumer.pending.range(first..));
            let mut pending = pending.copied().peekable();
            let mut fresh = fresh[fresh.partition_point(|id| *id <= after)..].iter().copied().peekable();
            let own = std::iter::from_fn(|| {
                let next = pending.peek().into_iter().chain(fresh.peek()).min().copied()?;
                pending.next_if_eq(&next);
                fresh.next_if_eq(&next);
                Some(next)
            });
            let start = call.out.len();
            let mut told = 0;
            for id in own.take(count) {
                call.effort.spend(1, FIND)?;
                told += 1;
                if let Some(entry) = stream.log.get(id) {
                    call.effort.spend(entry.words().len(), LOOK)?;
                    write_entry(&mut call.out, id, entry);
                    ids.push(id);
                } else {
                    call.out.array(2);
                    write_id(&mut call.out, id);
                    call.out.null_array(call.session.protocol);
                }
                call.out.check()?;
            }
            call.out.insert(start, |out| out.array(told));
        }
    }
    Ok(Some((from, ids)))
}

fn xack(call: &mut Call<'_>) -> Done {
    let name = call.at(2);
    let stream = call.keyspace.read_as::<Stream>(call.at(1))?;
    if stream.is_none_or(|stream| stream.group(name).is_none()) {
        return call.integer(0);
    }
    let ids = (3..call.count()).map(|index| id_at(call, index)).collect::<Result<Vec<_>, _>>()?;
    call.effort.spend(ids.len(), INSERT)?;
    let acknowledged = call.keyspace.change(call.at(1), |stream: &mut Stream| {
        stream.change_group(name, |_, group| ids.into_iter().filter(|id| group.acknowledge(*id)).count())
    })?;
    call.keyspace.interest.withdraw();
    call.number(acknowledged.flatten().unwrap_or(0))
}

/// The part of XPENDING's arguments that selects pending entries: by least idle time, range of ids, maximum
/// number and consumer.
struct Selection<'a> {
    idle_ms: u64,
    first: Id,
    last: Id,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> Selection<'a> {
    /// Parses the arguments of XPENDING that select entries; `None` if they ask for a summary only. An error
    /// if they are wrong.
    fn parse(call: &Call<'a>) -> Result<Option<Self>, Refusal> {
        let mut index = 3;
        let mut idle_ms = 0;
        match call.count() {
            3 => return Ok(None),
            6..=9 => {}
            _ => return Err(Refusal::Syntax),
        }
        if call.is(3, "idle") {
            idle_ms = u64::try_from(call.integer_at(4)?).unwrap_or(0);
            index = 5;
            if call.count() < 8 {
                return Err(Refusal::Syntax);
            }
        }
        let count = usize::try_from(call.integer_at(index + 2)?).unwrap_or(0);
        let first = bound(call.at(index), Bound::Start)?;
        let last = bound(call.at(index + 1), Bound::End)?;
        Ok(Some(Self { idle_ms, first, last, count, consumer: call.arguments.get(index + 3) }))
    }
}

fn xpending(call: &mut Call<'_>) -> Done {
    let selection = Selection::parse(call)?;
    let (key, name, now_ms) = (call.arguments.at(1), call.at(2), call.keyspace.now_ms());
    call.keyspace.read_as::<Stream>(key)?;
    let group = call.keyspace.peek_as::<Stream>(key)?.and_then(|stream| stream.group(name));
    let Some(group) = group else { return Err(no_such_key_or_group(key, name, "")) };
    let out = &mut call.out;
    let Some(selection) = selection else {
        out.array(4);
        out.integer(group.pending.len() as i64);
        let (Some((first, _)), Some((last, _))) =
            (group.pending.first_key_value(), group.pending.last_key_value())
        else {
            out.null(call.session.protocol);
            out.null(call.session.protocol);
            out.null_array(call.session.protocol);
            return Ok(());
        };
        write_id(out, *first);
        write_id(out, *last);
        let (at, mut busy) = (out.len(), 0);
        call.effort.spend(group.consumers.len(), LOOK)?;
        for (name, consumer) in group.consumers.iter().filter(|(_, consumer)| !consumer.pending.is_empty()) {
            out.array(2);
            out.bulk(name);
            out.bulk(Digits::new(consumer.pending.len() as i64).as_bytes());
            busy += 1;
        }
        out.insert(at, |out| out.array(busy));
        return Ok(());
    };
    let Selection { idle_ms, first, last, count, consumer } = selection;
    let ids: &mut dyn Iterator<Item = Id> = match consumer {
        _ if first > last => &mut std::iter::empty(),
        None => &mut group.pending.range(first..=last).map(|(id, _)| *id),
        Some(name) => match group.consumers.get(name) {
            Some(consumer) => &mut consumer.pending.range(first..=last).copied(),
            None => &mut std::iter::empty(),
        },
    };
    let (at, mut told) = (out.len(), 0);
    for id in ids {
        if told == count {
            break;
        }
        call.effort.spend(1, FIND)?;
        let Some(pending) = group.pending.get(&id) else { continue };
        let idle = now_ms.saturating_sub(pending.delivered_ms);
        if idle < idle_ms {
            continue;
        }
        out.array(4);
        write_id(out, id);
        out.bulk(&pending.consumer);
        out.integer(idle as i64);
        out.integer(pending.deliveries as i64);
        out.check()?;
        told += 1;
    }
    out.insert(at, |out| out.array(told));
    Ok(())
}

/// The ids that an XCLAIM names, and its options.
struct Claim {
    ids: Vec<Id>,
    idle_ms: u64,
    delivered_ms: u64,
    deliveries: Option<u64>,
    force: bool,
    just_ids: bool,
    last: Id,
}

impl Claim {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let now_ms = call.keyspace.now_ms();
        let mut claim = Self {
            ids: Vec::new(),
            idle_ms: idle_at(call, "ERR Invalid min-idle-time argument for XCLAIM")?,
            delivered_ms: now_ms,
            deliveries: None,
            force: false,
            just_ids: false,
            last: Id::LEAST,
        };
        let mut index = 5;
        while index < call.count() {
            let Ok(id) = id_at(call, index) else { break };
            claim.ids.push(id);
            index += 1;
        }
        while index < call.count() {
            let more = index + 1 < call.count();
            let number = |words| super::numbers::integer(call.at(index + 1)).ok_or(Refusal::Words(words));
            if call.is(index, "force") {
                claim.force = true;
            } else if call.is(index, "justid") {
                claim.just_ids = true;
            } else if call.is(index, "idle") && more {
                let idle = number("ERR Invalid IDLE option argument for XCLAIM")?;
                let delivered = (now_ms as i64).checked_sub(idle).and_then(|ms| u64::try_from(ms).ok());
                claim.delivered_ms = delivered.unwrap_or(now_ms).min(now_ms);
                index += 1;
            } else if call.is(index, "time") && more {
                let time = number("ERR Invalid TIME option argument for XCLAIM")?;
                claim.delivered_ms = u64::try_from(time).unwrap_or(now_ms).min(now_ms);
                index += 1;
            } else if call.is(index, "retrycount") && more {
                let count = number("ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                claim.deliveries = u64::try_from(count).ok();
                index += 1;
            } else if call.is(index, "lastid") && more {
                index += 1;
                claim.last = id_at(call, index)?;
            } else {
                let option = quoted(call.at(index));
                return Err(Refusal::Quoting(format!("ERR Unrecognized XCLAIM option '{option}'")));
            }
            index += 1;
        }
        Ok(claim)
    }
}

/// Returns the least idle time of pending entries to claim, in milliseconds, that argument 4 gives. `words`
/// is the error for a wrong one. A negative time counts as 0.
fn idle_at(call: &Call<'_>, words: &'static str) -> Result<u64, Refusal> {
    let given = super::numbers::integer(call.at(4)).ok_or(Refusal::Words(words))?;
    Ok(u64::try_from(given).unwrap_or(0))
}

/// Returns the stream in argument 1 and its group in argument 2; an error if one of them does not exist.
fn group_of<'a>(call: &'a Call<'_>) -> Result<(&'a Stream, &'a Group), Refusal> {
    let (key, name) = (call.at(1), call.at(2));
    let stream = call.keyspace.peek_as::<Stream>(key)?;
    let group = stream.and_then(|stream| stream.group(name));
    stream.zip(group).ok_or_else(|| no_such_key_or_group(key, name, ""))
}

/// True if a pending entry was last delivered at least `idle_ms` milliseconds before `now_ms`.
fn is_idle(pending: &Pending, idle_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(pending.delivered_ms) >= idle_ms
}

fn xclaim(call: &mut Call<'_>) -> Done {
    call.keyspace.read_as::<Stream>(call.at(1))?;
    group_of(call)?;
    let claim = Claim::parse(call)?;
    let now_ms = call.keyspace.now_ms();
    call.effort.spend(claim.ids.len(), RANK)?;
    let (mut claimed, mut gone) = (Vec::new(), Vec::new());
    let mut reply_bytes = 0;
    {
        let (stream, group) = group_of(call)?;
        for id in &claim.ids {
            let pending = group.pending.get(id);
            let Some(entry) = stream.log.get(*id) else {
                gone.push(*id);
                continue;
            };
            let idle = pending.map_or(claim.force, |pending| is_idle(pending, claim.idle_ms, now_ms));
            if idle {
                claimed.push(*id);
                reply_bytes += entry.words().iter().map(|word| word.as_bytes().len() + 64).sum::<usize>();
            }
        }
    }
    call.out.expect(if claim.just_ids { claimed.len() * 64 } else { reply_bytes + claimed.len() * 96 })?;
    call.afford_taken(claimed.len() * PENDING_BYTES)?;
    let (group, consumer) = (call.at(2), call.at(3));
    let (delivered_ms, deliveries, just_ids) = (claim.delivered_ms, claim.deliveries, claim.just_ids);
    // An entry that is named twice is found again by the second name, unless it is not idle any more.
    let mut created = false;
    let claimed = call.keyspace.change(call.at(1), |stream: &mut Stream| {
        stream.change_group(group, |_, group| {
            group.last = group.last.max(claim.last);
            created = group.see(consumer, now_ms);
            for id in gone {
                group.acknowledge(id);
            }
            claimed.retain(|id| {
                let known = group.pending.get(id);
                if known.is_some_and(|pending| !is_idle(pending, claim.idle_ms, now_ms)) {
                    return false;
                }
                let new = known.is_none();
                let pending = group.give(*id, consumer);
                pending.delivered_ms = delivered_ms;
                pending.deliveries = deliveries
                    .unwrap_or(pending.deliveries.wrapping_add(u64::from(new) + u64::from(!just_ids)));
                true
            });
            if !claimed.is_empty() {
                group.note_active(consumer, now_ms);
            }
            claimed
        })
    })?;
    call.keyspace.interest.withdraw();
    if created {
        call.announce(Class::Stream, CONSUMER_CREATED, call.at(1));
    }
    write_claimed(call, &claimed.flatten().unwrap_or_default(), just_ids)
}

/// Writes the claimed entries (of XCLAIM or XAUTOCLAIM) of the stream in argument 1 as an array, or only
/// their ids if `just_ids`.
fn write_claimed(call: &mut Call<'_>, claimed: &[Id], just_ids: bool) -> Done {
    let Some(stream) = call.keyspace.peek_as::<Stream>(call.arguments.at(1))? else { return Ok(()) };
    call.out.array(claimed.len());
    for id in claimed {
        match stream.log.get(*id) {
            Some(entry) if !just_ids => write_entry(&mut call.out, *id, entry),
            _ => write_id(&mut call.out, *id),
        }
    }
    Ok(())
}

fn xautoclaim(call: &mut Call<'_>) -> Done {
    let idle_ms = idle_at(call, "ERR Invalid min-idle-time argument for XAUTOCLAIM")?;
    let start = bound(call.at(5), Bound::Start)?;
    let (mut count, mut just_ids) = (CLAIMED, false);
    let mut index = 6;
    while index < call.count() {
        if call.is(index, "count") && index + 1 < call.count() {
            index += 1;
            count = count_at(call, index, 1, "ERR COUNT must be > 0")?;
            if count > CLAIMED_MAX {
                return Err(Refusal::Words("ERR COUNT must be > 0"));
            }
        } else if call.is(index, "justid") {
            just_ids = true;
        } else {
            return Err(Refusal::Syntax);
        }
        index += 1;
    }
    call.keyspace.read_as::<Stream>(call.at(1))?;
    let now_ms = call.keyspace.now_ms();
    let (mut claimed, mut gone) = (Vec::new(), Vec::new());
    let mut next = Id::LEAST;
    let mut bytes = 0;
    {
        let (stream, group) = group_of(call)?;
        let attempts = count.saturating_mul(ATTEMPTS);
        for (looked_at, (id, pending)) in group.pending.range(start..).enumerate() {
            if claimed.len() + gone.len() == count || looked_at == attempts {
                next = *id;
                break;
            }
            call.effort.spend(1, RANK)?;
            match stream.log.get(*id) {
                None => gone.push(*id),
                Some(entry) if is_idle(pending, idle_ms, now_ms) => {
                    claimed.push(*id);
                    bytes += 96 + entry.words().iter().map(|word| word.as_bytes().len() + 64).sum::<usize>();
                }
                Some(_) => {}
            }
        }
    }
    call.out.expect(if just_ids { claimed.len() * 64 } else { bytes } + gone.len() * 64 + 128)?;
    let (group, consumer) = (call.at(2), call.at(3));
    let mut created = false;
    call.keyspace.change(call.at(1), |stream: &mut Stream| {
        stream.change_group(group, |_, group| {
            created = group.see(consumer, now_ms);
            if !claimed.is_empty() {
                group.note_active(consumer, now_ms);
            }
            for id in &gone {
                group.acknowledge(*id);
            }
            for id in &claimed {
                let pending = group.give(*id, consumer);
                pending.delivered_ms = now_ms;
                pending.deliveries = pending.deliveries.wrapping_add(u64::from(!just_ids));
            }
        })
    })?;
    call.keyspace.interest.withdraw();
    if created {
        call.announce(Class::Stream, CONSUMER_CREATED, call.at(1));
    }
    call.out.array(3);
    write_id(&mut call.out, next);
    write_claimed(call, &claimed, just_ids)?;
    call.out.array(gone.len());
    gone.into_iter().for_each(|id| write_id(&mut call.out, id));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn the_name_of_a_consumer_counts_in_every_stream() {
        let mut bench = Bench::bounded(80_000);
        for key in 0..20 {
            bench.talk(&[
                (&format!("XADD {key} 1-1 a 1"), "$3|1-1|"),
                (&format!("XGROUP CREATE {key} g 0"), "+OK|"),
            ]);
        }
        let keys = (0..20).map(|key| key.to_string()).collect::<Vec<_>>().join(" ");
        let line =
            format!("XREADGROUP GROUP g {} STREAMS {keys} {}", "c".repeat(4_000), "> ".repeat(20).trim());
        assert!(bench.send(&line).starts_with("-OOM"));
        assert!(bench.engine.statistics().bytes_used < 80_000);
    }

    #[test]
    fn consumers_share_a_stream() {
        let mut bench = Bench::new();
        bench.talk(&[
            (
                "XGROUP CREATE x g 0",
                "-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the \
                 MKSTREAM option to create an empty stream automatically.|",
            ),
            ("XGROUP CREATE x g $ MKSTREAM", "+OK|"),
            ("XGROUP CREATE x g 0", "-BUSYGROUP Consumer Group name already exists|"),
            ("XADD x 1-1 f v", "$3|1-1|"),
            ("XADD x 2-1 f w", "$3|2-1|"),
            ("XREADGROUP GROUP g c COUNT 1 STREAMS x >", "*1|*2|$1|x|*1|*2|$3|1-1|*2|$1|f|$1|v|"),
            ("XREADGROUP GROUP g d STREAMS x >", "*1|*2|$1|x|*1|*2|$3|2-1|*2|$1|f|$1|w|"),
            ("XREADGROUP GROUP g d STREAMS x >", "*-1|"),
            ("XREADGROUP GROUP g c STREAMS x 0", "*1|*2|$1|x|*1|*2|$3|1-1|*2|$1|f|$1|v|"),
            ("XREADGROUP GROUP g e STREAMS x 0", "*1|*2|$1|x|*0|"),
            (
                "XREADGROUP GROUP h c STREAMS x >",
                "-NOGROUP No such key 'x' or consumer group 'h' in XREADGROUP with GROUP option|",
            ),
            ("XPENDING x g", "*4|:2|$3|1-1|$3|2-1|*2|*2|$1|c|$1|1|*2|$1|d|$1|1|"),
            ("XPENDING x g - + 10 c", "*1|*4|$3|1-1|$1|c|:0|:2|"),
            ("XCLAIM x g d 10 1-1", "*0|"),
        ]);
        bench.wait_ms(10);
        bench.talk(&[
            ("XPENDING x g IDLE 11 - + 10", "*0|"),
            ("XCLAIM x g d 10 1-1", "*1|*2|$3|1-1|*2|$1|f|$1|v|"),
            ("XPENDING x g - + 10 d", "*2|*4|$3|1-1|$1|d|:0|:3|*4|$3|2-1|$1|d|:10|:1|"),
            ("XDEL x 2-1", ":1|"),
            ("XREADGROUP GROUP g d STREAMS x 1-1", "*1|*2|$1|x|*1|*2|$3|2-1|*-1|"),
            ("XAUTOCLAIM x g e 0 0 COUNT 1", "*3|$3|2-1|*1|*2|$3|1-1|*2|$1|f|$1|v|*0|"),
            ("XAUTOCLAIM x g e 0 0 JUSTID", "*3|$3|0-0|*1|$3|1-1|*1|$3|2-1|"),
            ("XACK x g 1-1 9-9", ":1|"),
            ("XPENDING x g", "*4|:0|$-1|$-1|*-1|"),
            ("XGROUP CREATECONSUMER x g n", ":1|"),
            ("XGROUP DELCONSUMER x g n", ":0|"),
            ("XGROUP SETID x g 0", "+OK|"),
            ("XREADGROUP GROUP g n NOACK STREAMS x >", "*1|*2|$1|x|*1|*2|$3|1-1|*2|$1|f|$1|v|"),
            ("XPENDING x g - + 10 n", "*0|"),
            ("XGROUP SETID x h 0", "-NOGROUP No such consumer group 'h' for key name 'x'|"),
            ("XREADGROUP GROUP g c STREAMS x 0", "*1|*2|$1|x|*0|"),
            ("XGROUP DESTROY x g", ":1|"),
            ("XGROUP DESTROY x g", ":0|"),
            ("DEL x", ":1|"),
        ]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }

    #[test]
    fn a_full_store_can_be_emptied_by_consumers() {
        let mut bench = Bench::new();
        let value = "v".repeat(40_000);
        bench.send(&format!("XADD x 1-1 f {value}"));
        bench.talk(&[("XGROUP CREATE x g 0", "+OK|"), ("SADD s m", ":1|")]);
        let full = format!("CONFIG SET maxmemory {}", bench.engine.statistics().bytes_used);
        let refused = "-OOM command not allowed when used memory > 'maxmemory'.|";
        bench.talk(&[
            (&full, "+OK|"),
            ("XADD x 2-1 f v", refused),
            ("XGROUP CREATE x h 0", refused),
            ("XGROUP CREATECONSUMER x g c", refused),
            ("EVAL return(redis.call('xgroup','setid','x','g','0')) 0", "+OK|"),
            ("SMOVE s t m", ":1|"),
        ]);
        assert!(bench.send("XREADGROUP GROUP g c STREAMS x >").contains(&value));
        bench.talk(&[
            ("MULTI", "+OK|"),
            ("XACK x g 1-1", "+QUEUED|"),
            ("XGROUP DELCONSUMER x g c", "+QUEUED|"),
        ]);
        assert_eq!(bench.send("EXEC"), "*2|:1|:0|");
        bench.talk(&[
            ("CONFIG SET maxmemory 1000", "+OK|"),
            ("XREADGROUP GROUP g c STREAMS x 0", refused),
            ("XGROUP DESTROY x g", ":1|"),
            ("XDEL x 1-1", ":1|"),
        ]);
    }

    #[test]
    fn a_consumer_is_created_even_if_there_is_nothing_for_it() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("XGROUP CREATE x g $ MKSTREAM", "+OK|"),
            ("XREADGROUP GROUP g read STREAMS x >", "*-1|"),
            ("XGROUP CREATECONSUMER x g read", ":0|"),
            ("XREADGROUP GROUP g waited BLOCK 0 STREAMS x >", "+WAITS|"),
            ("XGROUP CREATECONSUMER x g waited", ":0|"),
            ("XCLAIM x g claimed 0 1-1", "*0|"),
            ("XGROUP CREATECONSUMER x g claimed", ":0|"),
            ("XAUTOCLAIM x g auto 0 0", "*3|$3|0-0|*0|*0|"),
            ("XGROUP CREATECONSUMER x g auto", ":0|"),
        ]);
        bench.wait_ms(5);
        bench.send("XREADGROUP GROUP g read STREAMS x >");
        let consumers = bench.send("XINFO CONSUMERS x g");
        assert!(consumers.contains("$4|read|$7|pending|:0|$4|idle|:0|$8|inactive|:-1|"), "{consumers}");
    }

    #[test]
    fn a_stream_that_is_named_twice_delivers_each_entry_once() {
        let first = "*2|$1|x|*1|*2|$3|1-1|*2|$1|a|$1|1|";
        let second = "*2|$1|x|*1|*2|$3|2-1|*2|$1|a|$1|2|";
        let third = "*2|$1|x|*1|*2|$3|3-1|*2|$1|a|$1|3|";
        Bench::new().talk(&[
            ("XADD x 1-1 a 1", "$3|1-1|"),
            ("XADD x 2-1 a 2", "$3|2-1|"),
            ("XADD x 3-1 a 3", "$3|3-1|"),
            ("XGROUP CREATE x g 0", "+OK|"),
            ("XREADGROUP GROUP g c COUNT 1 STREAMS x x > >", &format!("*2|{first}{second}")),
            ("XREADGROUP GROUP g c STREAMS x x > >", &format!("*1|{third}")),
            ("XPENDING x g", "*4|:3|$3|1-1|$3|3-1|*1|*2|$1|c|$1|3|"),
        ]);
    }

    #[test]
    fn the_history_of_a_consumer_includes_what_the_same_request_delivers() {
        let entry = |ms| format!("*2|$3|{ms}-1|*2|$1|a|$1|{ms}|");
        let (first, second, third) = (entry(1), entry(2), entry(3));
        let mut bench = Bench::new();
        for ms in 1..=3 {
            bench.send(&format!("XADD x {ms}-1 a {ms}"));
        }
        bench.talk(&[
            ("XGROUP CREATE x g 0", "+OK|"),
            ("XREADGROUP GROUP g other COUNT 1 STREAMS x >", &format!("*1|*2|$1|x|*1|{first}")),
            (
                "XREADGROUP GROUP g c COUNT 1 STREAMS x x x x > 0 > 2-0",
                &format!("*4|*2|$1|x|*1|{second}*2|$1|x|*1|{second}*2|$1|x|*1|{third}*2|$1|x|*1|{second}"),
            ),
            ("XPENDING x g - + 9 c", "*2|*4|$3|2-1|$1|c|:0|:3|*4|$3|3-1|$1|c|:0|:1|"),
            ("XGROUP SETID x g 1-1", "+OK|"),
            (
                "XREADGROUP GROUP g c STREAMS x x > 0",
                &format!("*2|*2|$1|x|*2|{second}{third}*2|$1|x|*2|{second}{third}"),
            ),
            ("XADD x 4-1 a 4", "$3|4-1|"),
            ("XREADGROUP GROUP g n NOACK STREAMS x x > 0", &format!("*2|*2|$1|x|*1|{}*2|$1|x|*0|", entry(4))),
        ]);
    }
}
