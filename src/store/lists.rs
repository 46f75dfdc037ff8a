//! Commands on lists, as the embedded store carries them out.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::LOOK;
use super::events::Class;
use super::items::{End, Items};
use super::keyspace::Keyspace;
use super::numbers;
use super::refusal::Refusal;
use super::reply::bulk_bytes;
use super::shapes::ListLimit;
use super::text::Text;
use super::waits::Want;

pub(super) const COMMANDS: &[Command] = &[
    command("lpush", -3, Effect::Grow, lpush),
    command("rpush", -3, Effect::Grow, rpush),
    command("lpushx", -3, Effect::Grow, lpushx),
    command("rpushx", -3, Effect::Grow, rpushx),
    command("lpop", -2, Effect::Write, lpop),
    command("rpop", -2, Effect::Write, rpop),
    command("llen", 2, Effect::Read, llen),
    command("lrange", 4, Effect::Read, lrange),
    command("lindex", 3, Effect::Read, lindex),
    command("lset", 4, Effect::Grow, lset),
    command("linsert", 5, Effect::Grow, linsert),
    command("lrem", 4, Effect::Write, lrem),
    command("ltrim", 4, Effect::Write, ltrim),
    command("lmove", 5, Effect::Grow, lmove),
    command("rpoplpush", 3, Effect::Grow, rpoplpush),
    command("lpos", -3, Effect::Read, lpos),
    command("lmpop", -4, Effect::Write, lmpop),
];

/// Returns the limits on the number of items or bytes of a small list, which Redis keeps as one listpack.
fn limit(keyspace: &Keyspace) -> ListLimit {
    keyspace.hasher().shapes().list()
}

fn lpush(call: &mut Call<'_>) -> Done {
    push(call, End::Left)
}

fn rpush(call: &mut Call<'_>) -> Done {
    push(call, End::Right)
}

fn push(call: &mut Call<'_>, end: End) -> Done {
    let (new, added, limit) = (call.rest(2), call.rest(2), limit(call.keyspace));
    let length = call.keyspace.change_or_create(call.at(1), |items: &mut Items| {
        items.expect(limit, added);
        new.for_each(|item| items.push(end, Text::new(item)));
        items.len()
    })?;
    call.announce(Class::List, pushed_at(end), call.at(1));
    call.number(length)
}

fn lpushx(call: &mut Call<'_>) -> Done {
    push_if_present(call, End::Left)
}

fn rpushx(call: &mut Call<'_>) -> Done {
    push_if_present(call, End::Right)
}

fn push_if_present(call: &mut Call<'_>, end: End) -> Done {
    let (new, added, limit) = (call.rest(2), call.rest(2), limit(call.keyspace));
    let length = call.keyspace.change(call.at(1), |items: &mut Items| {
        items.expect(limit, added);
        new.for_each(|item| items.push(end, Text::new(item)));
        items.len()
    })?;
    if length.is_some() {
        call.announce(Class::List, pushed_at(end), call.at(1));
    }
    call.number(length.unwrap_or(0))
}

/// Returns the name of the keyspace event of a push at this end of a list.
fn pushed_at(end: End) -> &'static str {
    if end == End::Left { "lpush" } else { "rpush" }
}

/// Returns the name of the keyspace event of a pop from this end of a list.
fn popped_at(end: End) -> &'static str {
    if end == End::Left { "lpop" } else { "rpop" }
}

fn lpop(call: &mut Call<'_>) -> Done {
    pop(call, End::Left, "lpop")
}

fn rpop(call: &mut Call<'_>) -> Done {
    pop(call, End::Right, "rpop")
}

fn pop(call: &mut Call<'_>, end: End, name: &'static str) -> Done {
    match call.count() {
        2 => {
            expect_popped(call, end, 1)?;
            let limit = limit(call.keyspace);
            let item = call.keyspace.change(call.at(1), |items: &mut Items| {
                let item = items.pop(end);
                items.settle(limit);
                item
            })?;
            let item = item.flatten();
            if item.is_some() {
                call.announce(Class::List, popped_at(end), call.at(1));
            }
            call.bulk_or_null(item.as_ref().map(Text::as_bytes))
        }
        3 => pop_several(call, end),
        _ => Err(Refusal::WrongArity(name)),
    }
}

fn pop_several(call: &mut Call<'_>, end: End) -> Done {
    let count = numbers::integer(call.at(2)).filter(|count| *count >= 0);
    let count = count.ok_or(Refusal::Words("ERR value is out of range, must be positive"))? as usize;
    expect_popped(call, end, count)?;
    let limit = limit(call.keyspace);
    let out = &mut call.out;
    let popped = call.keyspace.change(call.arguments.at(1), |items: &mut Items| {
        let count = count.min(items.len());
        out.array(count);
        for _ in 0..count {
            let item = items.pop(end).expect("there are at least as many");
            out.bulk(item.as_bytes());
        }
        items.settle(limit);
        count
    })?;
    match popped {
        None => call.out.null_array(call.session.protocol),
        Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::List, popped_at(end), call.at(1)),
    }
    Ok(())
}

/// Refuses a pop of `count` items from one end of the list in argument 1 if its reply could not hold them or
/// it takes too much effort, before any item is removed. An error also if the value is no list.
fn expect_popped(call: &Call<'_>, end: End, count: usize) -> Done {
    expect_popped_from(call, call.at(1), end, count)
}

fn expect_popped_from(call: &Call<'_>, key: &[u8], end: End, count: usize) -> Done {
    let Some(items) = call.keyspace.peek_as::<Items>(key)? else { return Ok(()) };
    let count = count.min(items.len());
    call.effort.spend(count, LOOK)?;
    let bytes = |items: &mut dyn Iterator<Item = &Text>| {
        items.take(count).map(|item| bulk_bytes(item.as_bytes().len())).sum()
    };
    call.out.expect(match end {
        End::Left => bytes(&mut items.iter()),
        End::Right => bytes(&mut items.iter().rev()),
    })
}

/// The arguments of LMPOP, ZMPOP and their blocking variants: the positions of the keys, the end to pop from,
/// and the maximum number of elements.
pub(super) struct PopRequest {
    pub(super) keys: std::ops::Range<usize>,
    /// The position of the argument that names the end (of a list or of the order of scores) to pop from.
    pub(super) end: usize,
    pub(super) count: usize,
}

impl PopRequest {
    /// Parses `numkeys key ... end [COUNT count]` from argument `first` on; `ends` are the two words that may
    /// name the end to pop from, in lower case. An error if the arguments have another form.
    pub(super) fn parse(call: &Call<'_>, first: usize, ends: [&str; 2]) -> Result<Self, Refusal> {
        let keys = numbers::integer(call.at(first)).filter(|keys| *keys > 0);
        let keys = keys.ok_or(Refusal::Words("ERR numkeys should be greater than 0"))?;
        let end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(first + 1));
        let end = end.filter(|end| ends.iter().any(|word| call.is(*end, word))).ok_or(Refusal::Syntax)?;
        let count = match call.count() - end - 1 {
            0 => 1,
            2 if call.is(end + 1, "count") => numbers::integer(call.at(end + 2))
                .and_then(|count| usize::try_from(count).ok().filter(|count| *count > 0))
                .ok_or(Refusal::Words("ERR count should be greater than 0"))?,
            _ => return Err(Refusal::Syntax),
        };
        Ok(Self { keys: first + 1..end, end, count })
    }
}

fn lmpop(call: &mut Call<'_>) -> Done {
    let request = PopRequest::parse(call, 1, ["left", "right"])?;
    let (arguments, want) = (call.arguments, Want::Items(end_at(call, request.end)?, request.count));
    for key in request.keys.map(|index| arguments.at(index)) {
        if serve(call, &want, key)? {
            return Ok(());
        }
    }
    call.out.null_array(call.session.protocol);
    Ok(())
}

/// Carries out a call that pops from lists (`want` says from which end and how many) on the list at `key`:
/// pops and writes the reply. False, with nothing done, if there is no such list or `want` is not about
/// lists. An error if a key holds another type, or the reply or the effort does not suffice.
pub(super) fn serve(call: &mut Call<'_>, want: &Want, key: &[u8]) -> Result<bool, Refusal> {
    let (end, most) = match want {
        Want::Item(end) => (*end, 1),
        Want::Items(end, count) => (*end, *count),
        Want::Moved { from, to, target } => return transfer(call, (key, *from), (target, *to)),
        _ => return Ok(false),
    };
    let Some(length) = call.keyspace.read_uncounted_as::<Items>(key)?.map(Items::len) else {
        return Ok(false);
    };
    let count = most.min(length);
    call.out.array(2);
    call.out.bulk(key);
    if matches!(want, Want::Items(..)) {
        call.out.array(count);
    }
    expect_popped_from(call, key, end, count)?;
    let limit = limit(call.keyspace);
    let out = &mut call.out;
    call.keyspace.change(key, |items: &mut Items| {
        (0..count).filter_map(|_| items.pop(end)).for_each(|item| out.bulk(item.as_bytes()));
        items.settle(limit);
    })?;
    call.announce(Class::List, popped_at(end), key);
    Ok(true)
}

fn llen(call: &mut Call<'_>) -> Done {
    let length = call.keyspace.read_as::<Items>(call.at(1))?.map_or(0, Items::len);
    call.number(length)
}

/// Returns the positions from `start` to `stop` inclusive, as the first position and the one after the last;
/// both are 0 if the range is empty. Negative numbers count from the end of the list, which has `length`
/// items.
pub(super) fn positions(start: i64, stop: i64, length: usize) -> (usize, usize) {
    let length = length as i64;
    let absolute = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let (start, stop) = (absolute(start).max(0), absolute(stop).min(length - 1));
    if start > stop { (0, 0) } else { (start as usize, stop as usize + 1) }
}

fn lrange(call: &mut Call<'_>) -> Done {
    let (start, stop) = (call.integer_at(2)?, call.integer_at(3)?);
    let Some(items) = call.keyspace.read_as::<Items>(call.arguments.at(1))? else {
        return call.empty_array();
    };
    let (start, end) = positions(start, stop, items.len());
    call.effort.spend(end - start, LOOK)?;
    let range = items.range(start, end);
    call.out.array(range.len());
    range.for_each(|item| call.out.bulk(item.as_bytes()));
    Ok(())
}

/// Returns the position in a list that `index` means; `None` if the list does not reach that far. A negative
/// index counts from the end of the list, which has `length` items.
fn position(index: i64, length: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(length as i64)? } else { index };
    usize::try_from(index).ok().filter(|position| *position < length)
}

fn lindex(call: &mut Call<'_>) -> Done {
    let Some(items) = call.keyspace.read_as::<Items>(call.arguments.at(1))? else { return call.null() };
    let index = numbers::integer(call.arguments.at(2)).ok_or(Refusal::NotAnInteger)?;
    match position(index, items.len()).and_then(|position| items.get(position)) {
        Some(item) => call.out.bulk(item.as_bytes()),
        None => call.out.null(call.session.protocol),
    }
    Ok(())
}

fn lset(call: &mut Call<'_>) -> Done {
    let (index, item) = (numbers::integer(call.at(2)), call.at(3));
    let limit = limit(call.keyspace);
    call.keyspace
        .change(call.at(1), |items: &mut Items| {
            let index = index.ok_or(Refusal::NotAnInteger)?;
            let position = position(index, items.len()).ok_or(Refusal::OutOfRange)?;
            items.expect(limit, std::iter::once(item));
            items.set(position, Text::new(item));
            items.settle(limit);
            Ok(())
        })?
        .ok_or(Refusal::NoSuchKey)??;
    call.announce(Class::List, "lset", call.at(1));
    call.ok()
}

fn linsert(call: &mut Call<'_>) -> Done {
    let (pivot, item) = (call.at(3), call.at(4));
    let after = match (call.is(2, "before"), call.is(2, "after")) {
        (true, _) => 0,
        (_, true) => 1,
        _ => return Err(Refusal::Syntax),
    };
    let Some(items) = call.keyspace.peek_as::<Items>(call.at(1))? else { return call.integer(0) };
    let looked_at = items.len().min(usize::try_from(call.effort.left()).unwrap_or(usize::MAX));
    let found = items.range(0, looked_at).position(|other| other.as_bytes() == pivot);
    // A search that ended at the effort limit without a match gives no answer, so the whole length is charged
    // and refused.
    let effort = found.unwrap_or(items.len());
    call.effort.spend(effort, LOOK)?;
    let Some(found) = found else { return call.integer(-1) };
    let limit = limit(call.keyspace);
    let length = call.keyspace.change(call.at(1), |items: &mut Items| {
        items.expect(limit, std::iter::once(item));
        items.insert(found + after, Text::new(item));
        items.len()
    })?;
    call.announce(Class::List, "linsert", call.at(1));
    call.number(length.unwrap_or(0))
}

fn lrem(call: &mut Call<'_>) -> Done {
    let (count, item) = (call.integer_at(2)?, call.at(3));
    let (count, end) = match count {
        0 => (usize::MAX, End::Left),
        1.. => (count as usize, End::Left),
        _ => (count.unsigned_abs() as usize, End::Right),
    };
    let length = call.keyspace.peek_as::<Items>(call.at(1))?.map_or(0, Items::len);
    call.effort.spend(length, LOOK)?;
    let limit = limit(call.keyspace);
    let removed = call.keyspace.change(call.at(1), |items: &mut Items| {
        let removed = items.remove(item, count, end);
        if removed > 0 {
            items.settle(limit);
        }
        removed
    })?;
    match removed {
        None => {}
        Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::List, "lrem", call.at(1)),
    }
    call.number(removed.unwrap_or(0))
}

fn ltrim(call: &mut Call<'_>) -> Done {
    let (start, stop) = (call.integer_at(2)?, call.integer_at(3)?);
    let limit = limit(call.keyspace);
    let removed = call.keyspace.change(call.at(1), |items: &mut Items| {
        let (start, end) = positions(start, stop, items.len());
        let removed = items.keep(start, end);
        items.settle(limit);
        removed
    })?;
    if removed.is_some() {
        call.announce(Class::List, "ltrim", call.at(1));
    }
    call.effort.charge(removed.unwrap_or(0) as u64 * LOOK);
    call.ok()
}

fn lmove(call: &mut Call<'_>) -> Done {
    let (from, to) = (end_at(call, 3)?, end_at(call, 4)?);
    move_item(call, from, to)
}

pub(super) fn end_at(call: &Call<'_>, index: usize) -> Result<End, Refusal> {
    match (call.is(index, "left"), call.is(index, "right")) {
        (true, _) => Ok(End::Left),
        (_, true) => Ok(End::Right),
        _ => Err(Refusal::Syntax),
    }
}

fn rpoplpush(call: &mut Call<'_>) -> Done {
    move_item(call, End::Right, End::Left)
}

fn move_item(call: &mut Call<'_>, from: End, to: End) -> Done {
    if transfer(call, (call.at(1), from), (call.at(2), to))? { Ok(()) } else { call.null() }
}

/// Moves an item from one end (`from`) of the list `source` to one end (`to`) of the list `target`, and
/// writes it as the reply. False if there is no list `source`. An error, before any change, if one of the
/// keys holds another type, or if the reply or the effort does not suffice.
fn transfer(
    call: &mut Call<'_>,
    (source, from): (&[u8], End),
    (target, to): (&[u8], End),
) -> Result<bool, Refusal> {
    if call.keyspace.read_uncounted_as::<Items>(source)?.is_none() {
        return Ok(false);
    }
    call.keyspace.read_uncounted_as::<Items>(target)?;
    expect_popped_from(call, source, from, 1)?;
    let item = moved(call.keyspace, source, target, from, to)?;
    call.announce(Class::List, pushed_at(to), target);
    call.announce(Class::List, popped_at(from), source);
    call.bulk(item.as_bytes())?;
    Ok(true)
}

fn moved(keyspace: &mut Keyspace, source: &[u8], target: &[u8], from: End, to: End) -> Result<Text, Refusal> {
    let limit = limit(keyspace);
    let push = |items: &mut Items, item: Text| {
        items.expect(limit, std::iter::once(item.as_bytes()));
        items.push(to, item);
    };
    let pop = |items: &mut Items| items.pop(from);
    if source == target {
        // A single change, so that a list of one item is not removed in between, and its lifetime with it.
        let rotated = keyspace.change(source, |items: &mut Items| {
            let item = pop(items).expect("no list is empty");
            push(items, item.clone());
            items.settle(limit);
            item
        })?;
        return rotated.ok_or(Refusal::NoSuchKey);
    }
    let item = keyspace.change(source, |items: &mut Items| {
        let item = pop(items);
        items.settle(limit);
        item
    })?;
    let item = item.flatten().ok_or(Refusal::NoSuchKey)?;
    keyspace.change_or_create(target, |items: &mut Items| push(items, item.clone()))?;
    Ok(item)
}

/// The options RANK, COUNT and MAXLEN of LPOS.
struct Search {
    /// The number of matches that LPOS skips before the first one that it replies with: the absolute value of
    /// RANK, less 1.
    skipped: usize,
    from: End,
    /// Maximum number of positions that LPOS returns (COUNT), 0 for all; `None` to reply with a single one
    /// instead of an array.
    count: Option<usize>,
    compared_max: usize,
}

fn lpos(call: &mut Call<'_>) -> Done {
    let search = lpos_options(call)?;
    let wanted = call.arguments.at(2);
    let items = call.keyspace.read_as::<Items>(call.arguments.at(1))?;
    let limit = search.count.map_or(1, |count| if count == 0 { usize::MAX } else { count });
    let (out, effort) = (&mut call.out, call.effort);
    let mut found = 0;
    if let Some(items) = items {
        let last = items.len().saturating_sub(1);
        let places: &mut dyn Iterator<Item = (usize, &Text)> = match search.from {
            End::Left => &mut items.iter().enumerate(),
            End::Right => &mut items.iter().rev().enumerate().map(|(index, item)| (last - index, item)),
        };
        let mut skipped = 0;
        for (index, item) in places.take(search.compared_max) {
            effort.spend(1, LOOK)?;
            if item.as_bytes() != wanted {
                continue;
            }
            if skipped < search.skipped {
                skipped += 1;
                continue;
            }
            out.integer(index as i64);
            found += 1;
            if found == limit {
                break;
            }
        }
    }
    if search.count.is_some() {
        out.insert(0, |out| out.array(found));
    } else if found == 0 {
        return call.null();
    }
    Ok(())
}

fn lpos_options(call: &Call<'_>) -> Result<Search, Refusal> {
    let mut search = Search { skipped: 0, from: End::Left, count: None, compared_max: usize::MAX };
    let not_negative = |index, words| {
        let given = numbers::integer(call.at(index)).and_then(|given| usize::try_from(given).ok());
        given.ok_or(Refusal::Words(words))
    };
    let mut index = 3;
    while index < call.count() {
        if index + 1 == call.count() {
            return Err(Refusal::Syntax);
        }
        if call.is(index, "rank") {
            let rank = call.integer_at(index + 1)?;
            if rank == i64::MIN {
                return Err(Refusal::Words(
                    "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
                ));
            }
            if rank == 0 {
                return Err(Refusal::Words(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                     negative to start from the end of the list",
                ));
            }
            search.skipped = rank.unsigned_abs() as usize - 1;
            search.from = if rank > 0 { End::Left } else { End::Right };
        } else if call.is(index, "count") {
            search.count = Some(not_negative(index + 1, "ERR COUNT can't be negative")?);
        } else if call.is(index, "maxlen") {
            let most = not_negative(index + 1, "ERR MAXLEN can't be negative")?;
            search.compared_max = if most == 0 { usize::MAX } else { most };
        } else {
            return Err(Refusal::Syntax);
        }
        index += 2;
    }
    Ok(search)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn short_lists_are_listpacks() {
        let mut bench = Bench::new();
        let (small, large) = ("$8|listpack|", "$9|quicklist|");
        let kilobyte = "x".repeat(1_000);
        let push = format!("RPUSH l{}", format!(" {kilobyte}").repeat(8));
        bench.talk(&[
            // 8 items of 1,004 bytes each, and 7 of the listpack itself, leave 153 of 8,192 bytes.
            (&push, ":8|"),
            ("OBJECT ENCODING l", small),
            ("COPY l same", ":1|"),
            (&format!("RPUSH same {}", "x".repeat(153)), ":9|"),
            ("OBJECT ENCODING same", small),
            (&format!("RPUSH l {}", "x".repeat(154)), ":9|"),
            ("OBJECT ENCODING l", large),
            ("COPY l copied", ":1|"),
            ("OBJECT ENCODING copied", large),
            ("LTRIM l 0 3", "+OK|"),
            ("OBJECT ENCODING l", small),
            ("LPOP copied 4", &format!("*4|{}", format!("$1000|{kilobyte}|").repeat(4))),
            ("OBJECT ENCODING copied", large),
            ("LREM copied 1 x", ":0|"),
            (&format!("LREM copied 1 {kilobyte}"), ":1|"),
            ("OBJECT ENCODING copied", small),
            (&format!("LSET copied 0 {}", "y".repeat(8_000)), "+OK|"),
            ("OBJECT ENCODING copied", large),
            ("LSET copied 0 1", "+OK|"),
            ("OBJECT ENCODING copied", small),
            ("CONFIG SET list-max-listpack-size 4", "+OK|"),
            ("RPUSH m 1 2 3 4", ":4|"),
            ("OBJECT ENCODING m", small),
            ("LINSERT m BEFORE 1 0", ":5|"),
            ("OBJECT ENCODING m", large),
            ("RPOP m", "$1|4|"),
            ("RPOP m", "$1|3|"),
            ("OBJECT ENCODING m", large),
            ("LMOVE m m LEFT RIGHT", "$1|0|"),
            ("LMOVE m n LEFT RIGHT", "$1|1|"),
            ("OBJECT ENCODING m", small),
            ("OBJECT ENCODING n", small),
            ("SADD s 1 2 3 4 5", ":5|"),
            ("SORT s STORE sorted", ":5|"),
            ("OBJECT ENCODING sorted", large),
            ("SORT s LIMIT 0 4 STORE sorted", ":4|"),
            ("OBJECT ENCODING sorted", small),
        ]);
        let dump = bench.send_bytes(&[b"DUMP", b"sorted"]);
        let start = dump.windows(2).position(|pair| pair == b"\r\n").expect("a bulk string") + 2;
        assert_eq!(bench.send_bytes(&[b"RESTORE", b"back", b"0", &dump[start..dump.len() - 2]]), b"+OK\r\n");
        bench.talk(&[("OBJECT ENCODING back", small)]);
    }

    #[test]
    fn items_move_between_ends() {
        Bench::new().talk(&[
            ("RPUSH l a b c", ":3|"),
            ("LPUSH l z y", ":5|"),
            ("LRANGE l 0 -1", "*5|$1|y|$1|z|$1|a|$1|b|$1|c|"),
            ("LRANGE l -2 100", "*2|$1|b|$1|c|"),
            ("LRANGE l 3 1", "*0|"),
            ("LMOVE l l RIGHT LEFT", "$1|c|"),
            ("LPOP l 2", "*2|$1|c|$1|y|"),
            ("LTRIM l 1 1", "+OK|"),
            ("RPOPLPUSH l other", "$1|a|"),
            ("EXISTS l", ":0|"),
            ("LPOP l 1", "*-1|"),
            ("LSET l 0 a", "-ERR no such key|"),
            ("LSET other 5 a", "-ERR index out of range|"),
        ]);
    }

    #[test]
    fn removal_counts_from_either_end() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("RPUSH l a b a c a", ":5|"),
            ("LREM l -2 a", ":2|"),
            ("LRANGE l 0 -1", "*3|$1|a|$1|b|$1|c|"),
            ("RPUSH l a a", ":5|"),
            ("LPOS l a RANK -1 COUNT 0", "*3|:4|:3|:0|"),
            (
                "LPOS l a RANK -9223372036854775808",
                "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807|",
            ),
            ("LPOS l a RANK -9223372036854775807", "$-1|"),
            ("LREM l 2 a", ":2|"),
            ("LRANGE l 0 -1", "*3|$1|b|$1|c|$1|a|"),
            ("LREM l 0 x", ":0|"),
            ("DEL l", ":1|"),
        ]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }

    #[test]
    fn the_first_list_that_exists_is_popped_from() {
        Bench::new().talk(&[
            ("RPUSH b 1 2 3", ":3|"),
            ("LMPOP 2 a b LEFT", "*2|$1|b|*1|$1|1|"),
            ("LMPOP 2 a b RIGHT COUNT 5", "*2|$1|b|*2|$1|3|$1|2|"),
            ("LMPOP 1 b LEFT", "*-1|"),
            ("LMPOP 0 b LEFT", "-ERR numkeys should be greater than 0|"),
            ("LMPOP 2 b LEFT", "-ERR syntax error|"),
            ("LMPOP 1 b LEFT COUNT 0", "-ERR count should be greater than 0|"),
            ("LMPOP 1 b LEFT COUNT", "-ERR syntax error|"),
        ]);
    }
}
