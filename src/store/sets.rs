//! Commands on sets, and their unions, intersections and differences.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{Effort, FIND, INSERT, LOOK};
use super::events::Class;
use super::keyspace::Lifetime;
use super::members::Members;
use super::numbers;
use super::refusal::Refusal;
use super::reply::bulk_bytes;
use super::scan::{self, Page, ScanOptions, Scanned};
use super::text::Text;
use super::value::Value;
use crate::values::Random;

pub(super) const COMMANDS: &[Command] = &[
    command("sadd", -3, Effect::Grow, sadd),
    command("srem", -3, Effect::Write, srem),
    command("smembers", 2, Effect::Read, smembers),
    command("sismember", 3, Effect::Read, sismember),
    command("smismember", -3, Effect::Read, smismember),
    command("scard", 2, Effect::Read, scard),
    command("spop", -2, Effect::Write, spop),
    command("srandmember", -2, Effect::Read, srandmember),
    command("smove", 4, Effect::Take, smove),
    command("sunion", -2, Effect::Read, sunion),
    command("sinter", -2, Effect::Read, sinter),
    command("sdiff", -2, Effect::Read, sdiff),
    command("sunionstore", -3, Effect::Grow, sunionstore),
    command("sinterstore", -3, Effect::Grow, sinterstore),
    command("sdiffstore", -3, Effect::Grow, sdiffstore),
    command("sintercard", -3, Effect::Read, sintercard),
    command("sscan", -3, Effect::Read, sscan),
];

fn sadd(call: &mut Call<'_>) -> Done {
    let (new, first) = (call.rest(2), call.at(2));
    let added = call.keyspace.change_or_create(call.at(1), |members: &mut Members| {
        members.expect(first, new.len());
        new.filter(|member| members.insert(member)).count()
    })?;
    if added == 0 {
        call.keyspace.interest.withdraw();
    } else {
        call.announce(Class::Set, "sadd", call.at(1));
    }
    call.number(added)
}

fn srem(call: &mut Call<'_>) -> Done {
    let old = call.rest(2);
    let removed = call
        .keyspace
        .change(call.at(1), |members: &mut Members| old.filter(|member| members.remove(member)).count())?;
    match removed {
        None => {}
        Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::Set, "srem", call.at(1)),
    }
    call.number(removed.unwrap_or(0))
}

fn smembers(call: &mut Call<'_>) -> Done {
    let members = call.keyspace.read_as::<Members>(call.arguments.at(1))?;
    call.effort.spend(members.map_or(0, Members::len), LOOK)?;
    call.out.set(call.session.protocol, members.map_or(0, Members::len));
    if let Some(members) = members {
        members.for_each(|member| call.out.bulk(member));
    }
    Ok(())
}

fn sismember(call: &mut Call<'_>) -> Done {
    let member = call.at(2);
    let found = call.keyspace.read_as::<Members>(call.at(1))?.is_some_and(|members| members.contains(member));
    call.integer(i64::from(found))
}

fn smismember(call: &mut Call<'_>) -> Done {
    let asked = call.rest(2);
    let members = call.keyspace.read_as::<Members>(call.arguments.at(1))?;
    call.out.array(asked.len());
    for member in asked {
        let found = members.is_some_and(|members| members.contains(member));
        call.out.integer(i64::from(found));
    }
    Ok(())
}

fn scard(call: &mut Call<'_>) -> Done {
    let count = call.keyspace.read_as::<Members>(call.at(1))?.map_or(0, Members::len);
    call.number(count)
}

fn spop(call: &mut Call<'_>) -> Done {
    let mut random = call.keyspace.random.fork();
    match call.count() {
        2 => {
            let popped = pop(call, &mut random, 1)?;
            return call.bulk_or_null(popped.unwrap_or_default().first().map(Text::as_bytes));
        }
        3 => {}
        _ => return Err(Refusal::Syntax),
    }
    let count = numbers::integer(call.at(2)).filter(|count| *count >= 0);
    let count = count.ok_or(Refusal::Words("ERR value is out of range, must be positive"))? as usize;
    let popped = pop(call, &mut random, count)?.unwrap_or_default();
    call.out.set(call.session.protocol, popped.len());
    popped.iter().for_each(|member| call.out.bulk(member.as_bytes()));
    Ok(())
}

/// The least number of members that SPOP removes, for each one that it leaves, so that it makes a new set of
/// the rest, as in Redis.
const REST_SHARE: usize = 5;

/// Removes and returns up to `count` random members of the set in argument 1; removes none if the reply could
/// not hold them all. `None` if there is no such key. An error if the value is no set, or if the reply or the
/// effort does not suffice.
fn pop(call: &mut Call<'_>, random: &mut Random, count: usize) -> Result<Option<Vec<Text>>, Refusal> {
    let (out, effort) = (&call.out, call.effort);
    let popped = call.keyspace.change(call.arguments.at(1), |members: &mut Members| {
        let count = count.min(members.len());
        effort.spend(count, INSERT)?;
        let popped: Vec<Text> = (0..count).filter_map(|_| members.pop(random)).collect();
        let bytes = popped.iter().map(|member| bulk_bytes(member.as_bytes().len())).sum();
        // Redis makes a new set of the rest if it is small.
        if members.len() > 0 && members.len().saturating_mul(REST_SHARE) <= popped.len() {
            members.pack_rest();
        }
        let fits = out.expect(bytes);
        if fits.is_err() {
            popped.iter().for_each(|member| {
                members.insert(member.as_bytes());
            });
        }
        fits.map(|()| popped)
    })?;
    let popped = popped.transpose()?;
    match &popped {
        None => {}
        Some(popped) if popped.is_empty() => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::Set, "spop", call.at(1)),
    }
    Ok(popped)
}

fn srandmember(call: &mut Call<'_>) -> Done {
    let mut random = call.keyspace.random.fork();
    if call.count() > 3 {
        return Err(Refusal::Syntax);
    }
    let count = if call.count() == 3 { Some(call.integer_at(2)?) } else { None };
    let members = call.keyspace.read_as::<Members>(call.arguments.at(1))?;
    let length = members.map_or(0, Members::len);
    let Some(count) = count else {
        match members {
            Some(members) => members.at(random.index(length), |member| call.out.bulk(member)),
            None => call.out.null(call.session.protocol),
        }
        return Ok(());
    };
    let picks = scan::picks(&mut random, count, length, call.effort)?;
    call.out.array(picks.len());
    for pick in picks {
        let members = members.expect("only what exists can be picked");
        members.at(pick, |member| call.out.bulk(member));
    }
    Ok(())
}

fn smove(call: &mut Call<'_>) -> Done {
    let (source, target, member) = (call.at(1), call.at(2), call.at(3));
    let Some(members) = call.keyspace.read_uncounted_as::<Members>(source)? else { return call.integer(0) };
    let found = members.contains(member);
    let is_there =
        call.keyspace.read_uncounted_as::<Members>(target)?.is_some_and(|members| members.contains(member));
    if found && source != target {
        call.keyspace.change(source, |members: &mut Members| members.remove(member))?;
        call.announce(Class::Set, "srem", source);
        // A target that has the member does not change, so that a watch of it goes on.
        if !is_there {
            call.keyspace.change_or_create(target, |members: &mut Members| {
                members.expect(member, 1);
                members.insert(member)
            })?;
            call.announce(Class::Set, "sadd", target);
        }
    }
    call.integer(i64::from(found))
}

/// The operation by which several sets are combined: union, intersection or difference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Combination {
    Union,
    Intersection,
    Difference,
}

fn sunion(call: &mut Call<'_>) -> Done {
    show(call, Combination::Union)
}

fn sinter(call: &mut Call<'_>) -> Done {
    show(call, Combination::Intersection)
}

fn sdiff(call: &mut Call<'_>) -> Done {
    show(call, Combination::Difference)
}

fn sunionstore(call: &mut Call<'_>) -> Done {
    store(call, Combination::Union)
}

fn sinterstore(call: &mut Call<'_>) -> Done {
    store(call, Combination::Intersection)
}

fn sdiffstore(call: &mut Call<'_>) -> Done {
    store(call, Combination::Difference)
}

fn show(call: &mut Call<'_>, combination: Combination) -> Done {
    let mut bytes = 0;
    read_sets(call, 1..call.count())?;
    let members = combined(call, 1, combination, |_, member| {
        bytes += bulk_bytes(member.len());
        call.out.expect(bytes)
    })?;
    call.out.set(call.session.protocol, members.len());
    members.for_each(|member| call.out.bulk(member));
    Ok(())
}

fn store(call: &mut Call<'_>, combination: Combination) -> Done {
    read_sets(call, 2..call.count())?;
    let members = combined(call, 2, combination, |members, _| call.afford(members.bytes()))?;
    let (target, count) = (call.at(1), members.len());
    if count == 0 {
        call.remove_key(target);
    } else {
        call.keyspace.set(target, Value::Set(Box::new(members)), Lifetime::Forever);
        let event = match combination {
            Combination::Union => "sunionstore",
            Combination::Intersection => "sinterstore",
            Combination::Difference => "sdiffstore",
        };
        call.announce(Class::Set, event, target);
    }
    call.number(count)
}

/// Counts a hit or a miss for each key that the arguments at positions `keys` name, and updates the times of
/// last access. An error if a value is no set: the keys after it count neither.
fn read_sets(call: &mut Call<'_>, mut keys: std::ops::Range<usize>) -> Done {
    keys.try_for_each(|index| call.keyspace.read_as::<Members>(call.arguments.at(index)).map(|_| ()))
}

/// Returns the sets at the keys that the arguments at positions `keys` name; `None` for a missing key, which
/// counts as an empty set. An error if a value is no set.
fn sets_at<'a>(
    call: &'a Call<'_>,
    keys: std::ops::Range<usize>,
) -> Result<Vec<Option<&'a Members>>, Refusal> {
    keys.map(|index| call.keyspace.peek_as::<Members>(call.at(index))).collect()
}

/// Returns the combination of the sets at the keys from argument `start` on. `fits` is called with the result
/// so far and each new member, and refuses a result that is too large: the result is not yet counted in the
/// keyspace's memory. An error also if a value is no set, or if that takes too much effort.
fn combined(
    call: &Call<'_>,
    start: usize,
    combination: Combination,
    mut fits: impl FnMut(&Members, &[u8]) -> Done,
) -> Result<Members, Refusal> {
    let sets = sets_at(call, start..call.count())?;
    let mut result = Members::new(call.keyspace.hasher());
    let add = |member: &[u8]| {
        call.effort.spend(1, INSERT)?;
        call.effort.spend_bytes(member.len())?;
        if result.insert(member) { fits(&result, member) } else { Ok(()) }
    };
    match combination {
        Combination::Union => unite(&sets, add)?,
        Combination::Intersection => {
            in_all(&sets, call.effort, add)?;
            result.pack_integers();
        }
        Combination::Difference => in_first_only(&sets, call.effort, add)?,
    }
    Ok(result)
}

fn unite(sets: &[Option<&Members>], mut visit: impl FnMut(&[u8]) -> Done) -> Done {
    sets.iter().flatten().try_for_each(|set| set.try_each(&mut visit))
}

fn in_first_only(sets: &[Option<&Members>], effort: &Effort, mut visit: impl FnMut(&[u8]) -> Done) -> Done {
    let Some((Some(first), others)) = sets.split_first() else { return Ok(()) };
    first.try_each(|member| {
        effort.spend(1, LOOK)?;
        for other in others.iter().flatten() {
            effort.spend(1, FIND)?;
            if other.contains(member) {
                return Ok(());
            }
        }
        visit(member)
    })
}

/// Visits the members that all `sets` have, by going through the smallest set, until `visit` returns an
/// error, which it returns, or `effort` does not suffice, an error as well. A missing set (`None`) is empty.
fn in_all(sets: &[Option<&Members>], effort: &Effort, mut visit: impl FnMut(&[u8]) -> Done) -> Done {
    let Some(mut sets) = sets.iter().copied().collect::<Option<Vec<&Members>>>() else { return Ok(()) };
    sets.sort_by_key(|set| set.len());
    let Some((smallest, others)) = sets.split_first() else { return Ok(()) };
    smallest.try_each(|member| {
        effort.spend(1, LOOK)?;
        for other in others {
            effort.spend(1, FIND)?;
            if !other.contains(member) {
                return Ok(());
            }
        }
        visit(member)
    })
}

fn sintercard(call: &mut Call<'_>) -> Done {
    let keys = numbers::integer(call.at(1)).filter(|keys| *keys > 0);
    let keys = keys.ok_or(Refusal::Words("ERR numkeys should be greater than 0"))?;
    let end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(2));
    let end = end
        .filter(|end| *end <= call.count())
        .ok_or(Refusal::Words("ERR Number of keys can't be greater than number of args"))?;
    let mut limit = 0;
    let mut index = end;
    while index < call.count() {
        if !call.is(index, "limit") || index + 1 == call.count() {
            return Err(Refusal::Syntax);
        }
        limit = numbers::integer(call.at(index + 1))
            .filter(|limit| *limit >= 0)
            .ok_or(Refusal::Words("ERR LIMIT can't be negative"))? as usize;
        index += 2;
    }
    read_sets(call, 2..end)?;
    let mut found = 0;
    let counted = in_all(&sets_at(call, 2..end)?, call.effort, |_| {
        found += 1;
        // This error is not a refusal; it ends the walk early.
        if found == limit { Err(Refusal::OutOfRange) } else { Ok(()) }
    });
    match counted {
        Err(refusal) if refusal != Refusal::OutOfRange => Err(refusal),
        _ => call.number(found),
    }
}

fn sscan(call: &mut Call<'_>) -> Done {
    scan::check_cursor(call.at(2))?;
    if call.keyspace.read_as::<Members>(call.at(1))?.is_none() {
        return scan::nothing(&mut call.out);
    }
    let mut page = Page::new(ScanOptions::parse(call, 2, Scanned::Elements)?, call.effort);
    let (cursor, count) = (page.options().table_cursor(), page.options().count);
    let members = call.keyspace.peek_as::<Members>(call.arguments.at(1))?;
    let next = members.zip(cursor).and_then(|(members, cursor)| {
        members.walk(cursor, count, |member| page.meet(member, 1, || call.out.bulk(member)))
    });
    page.finish(&mut call.out, next.map(u64::from))
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn sets_combine() {
        Bench::new().talk(&[
            ("SADD a 3 1 2", ":3|"),
            ("SADD b 2 3 4", ":3|"),
            ("SMEMBERS a", "*3|$1|1|$1|2|$1|3|"),
            ("SINTER a b", "*2|$1|2|$1|3|"),
            ("SUNION a b nothing", "*4|$1|1|$1|2|$1|3|$1|4|"),
            ("SDIFF a b", "*1|$1|1|"),
            ("SINTERCARD 2 a b LIMIT 1", ":1|"),
            ("SINTERSTORE a a nothing", ":0|"),
            ("EXISTS a", ":0|"),
            ("SET s x", "+OK|"),
            ("SUNION b s", "-WRONGTYPE Operation against a key holding the wrong kind of value|"),
        ]);
    }

    #[test]
    fn what_is_popped_was_there_and_is_gone() {
        let mut bench = Bench::new();
        for number in 0..600 {
            bench.send(&format!("SADD s {number}"));
        }
        let mut popped: Vec<String> = (0..600).map(|_| bench.send("SPOP s")).collect();
        popped.sort();
        popped.dedup();
        assert_eq!(popped.len(), 600);
        bench.talk(&[("EXISTS s", ":0|"), ("SPOP s", "$-1|")]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }
}
