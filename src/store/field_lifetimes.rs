//! Commands on the lifetimes of hash fields, as of Redis 7.4 and 8.0: HEXPIRE, HTTL, HPERSIST, HGETEX and
//! their variants.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, RANK};
use super::engine::memory_needed;
use super::events::Class;
use super::expiries::EXPIRY_BYTES;
use super::fields::{Change, Fields};
use super::numbers;
use super::refusal::{Refusal, quoted};
use std::collections::BTreeSet;
use std::ops::Range;

pub(super) const COMMANDS: &[Command] = &[
    command("hexpire", -6, Effect::Grow, hexpire),
    command("hpexpire", -6, Effect::Grow, hpexpire),
    command("hexpireat", -6, Effect::Grow, hexpireat),
    command("hpexpireat", -6, Effect::Grow, hpexpireat),
    command("httl", -5, Effect::Read, httl),
    command("hpttl", -5, Effect::Read, hpttl),
    command("hexpiretime", -5, Effect::Read, hexpiretime),
    command("hpexpiretime", -5, Effect::Read, hpexpiretime),
    command("hpersist", -5, Effect::Write, hpersist),
    command("hgetdel", -5, Effect::Write, hgetdel),
    command("hgetex", -5, Effect::Grow, hgetex),
    command("hsetex", -6, Effect::Grow, hsetex),
];

/// The latest expiry that a hash's field may have, in milliseconds since 1970, as in Redis; a later one is
/// refused.
pub(super) const EXPIRES_MS_MAX: i64 = (1 << 46) - 1;

/// The reply of HEXPIRE, HTTL and their variants for a field that does not exist.
const MISSING: i64 = -2;
/// The reply of HTTL, HPERSIST and the like for a field that has no expiry.
const WITHOUT: i64 = -1;
/// The reply of HEXPIRE and its variants for a field whose expiry the command's condition leaves as it is.
const REFUSED: i64 = 0;
/// The reply of HEXPIRE, HPERSIST and the like for a field whose expiry was set or removed.
const DONE: i64 = 1;
/// The reply of HEXPIRE and its variants for a field that was deleted because the new expiry has passed.
const DELETED: i64 = 2;

/// Maximum number of bytes of one field's number (-2 to 2) in the reply of HEXPIRE, HPERSIST and the like.
const NUMBER_BYTES: usize = b":-2\r\n".len();

/// The unit in which a command gives the expiry of a field, and whether it counts from now or from 1970.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
    UnixSeconds,
    UnixMilliseconds,
}

impl Unit {
    /// Returns the time in argument `index`, in milliseconds since 1970. `name` is the command's name, for
    /// the error about a time that is too late. A negative time is refused as well.
    fn expiry(self, call: &Call<'_>, index: usize, name: &'static str) -> Result<u64, Refusal> {
        let given = call.integer_at(index)?;
        if given < 0 {
            return Err(Refusal::Words("ERR invalid expire time, must be >= 0"));
        }
        let scale = if matches!(self, Self::Seconds | Self::UnixSeconds) { 1000 } else { 1 };
        let base =
            if matches!(self, Self::Seconds | Self::Milliseconds) { call.keyspace.now_ms() } else { 0 };
        let expires_ms = given.checked_mul(scale).and_then(|ms| ms.checked_add_unsigned(base));
        let expires_ms = expires_ms.filter(|ms| *ms <= EXPIRES_MS_MAX);
        expires_ms.map(|ms| ms as u64).ok_or(Refusal::InvalidExpire(name))
    }

    /// Returns the unit of the time that the option at argument `index` of HGETEX or HSETEX (EX, PX, EXAT or
    /// PXAT) introduces; `None` if the argument is no such option.
    fn option(call: &Call<'_>, index: usize) -> Option<Self> {
        [
            ("ex", Self::Seconds),
            ("px", Self::Milliseconds),
            ("exat", Self::UnixSeconds),
            ("pxat", Self::UnixMilliseconds),
        ]
        .into_iter()
        .find_map(|(word, unit)| call.is(index, word).then_some(unit))
    }
}

/// The condition under which HEXPIRE and its variants set an expiry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    IfNone,
    IfSome,
    IfLater,
    IfSooner,
}

impl Condition {
    fn at(call: &Call<'_>, index: usize) -> Option<Self> {
        [("nx", Self::IfNone), ("xx", Self::IfSome), ("gt", Self::IfLater), ("lt", Self::IfSooner)]
            .into_iter()
            .find_map(|(word, condition)| call.is(index, word).then_some(condition))
    }

    /// True if the condition of HEXPIRE allows the new expiry of a field (`new_ms`) in place of the old one
    /// (`old_ms`; `None` if the field does not expire). A field without an expiry counts as expiring last of
    /// all.
    fn allows(self, old_ms: Option<u64>, new_ms: u64) -> bool {
        match self {
            Self::Always => true,
            Self::IfNone => old_ms.is_none(),
            Self::IfSome => old_ms.is_some(),
            Self::IfLater => old_ms.is_some_and(|old_ms| new_ms > old_ms),
            Self::IfSooner => old_ms.is_none_or(|old_ms| new_ms < old_ms),
        }
    }
}

/// Returns the positions of the arguments that `FIELDS count field ...` at argument `index` lists. Each field
/// takes `words` arguments: 1 for a name, 2 for a name and a value. `not_positive` is the error text for a
/// count that is no positive number. An error if the arguments have another form.
fn listed(
    call: &Call<'_>,
    index: usize,
    words: usize,
    not_positive: &'static str,
) -> Result<Range<usize>, Refusal> {
    if !call.is(index, "fields") || index + 1 >= call.count() {
        return Err(Refusal::Words("ERR Mandatory argument FIELDS is missing or not at the right position"));
    }
    let count = numbers::integer(call.at(index + 1)).filter(|count| *count > 0);
    let count = count.ok_or(Refusal::Words(not_positive))? as usize;
    let start = index + 2;
    if count.checked_mul(words) != Some(call.count() - start) {
        return Err(Refusal::Words("ERR The `numfields` parameter must match the number of arguments"));
    }
    Ok(start..call.count())
}

const NOT_POSITIVE: &str = "ERR Number of fields must be a positive integer";

fn hexpire(call: &mut Call<'_>) -> Done {
    set_lifetimes(call, Unit::Seconds, "hexpire")
}

fn hpexpire(call: &mut Call<'_>) -> Done {
    set_lifetimes(call, Unit::Milliseconds, "hpexpire")
}

fn hexpireat(call: &mut Call<'_>) -> Done {
    set_lifetimes(call, Unit::UnixSeconds, "hexpireat")
}

fn hpexpireat(call: &mut Call<'_>) -> Done {
    set_lifetimes(call, Unit::UnixMilliseconds, "hpexpireat")
}

fn set_lifetimes(call: &mut Call<'_>, unit: Unit, name: &'static str) -> Done {
    call.keyspace.read_uncounted_as::<Fields>(call.at(1))?;
    let expires_ms = unit.expiry(call, 2, name)?;
    let condition = Condition::at(call, 3);
    let index = if condition.is_some() { 4 } else { 3 };
    let names = listed(call, index, 1, "ERR Parameter `numFields` should be greater than 0")?;
    let condition = condition.unwrap_or(Condition::Always);
    let now_ms = call.keyspace.now_ms();
    if expires_ms > now_ms {
        afford_expiries(call, names.clone())?;
    }
    change_each(call, names, "hexpire", |fields, name| {
        if fields.get(name).is_none() {
            return MISSING;
        }
        if !condition.allows(fields.expiry_ms(name), expires_ms) {
            return REFUSED;
        }
        set_expiry(fields, name, expires_ms, now_ms)
    })
}

/// Refuses the command if the memory that is left does not suffice for expiries of those fields of the hash in
/// argument 1 that have none yet; their names are the arguments at positions `names`.
fn afford_expiries(call: &Call<'_>, names: Range<usize>) -> Done {
    call.effort.spend(names.len(), FIND)?;
    let Some(fields) = call.keyspace.peek_as::<Fields>(call.at(1))? else { return Ok(()) };
    let new = names.map(|index| call.at(index));
    let new = new.filter(|name| fields.get(name).is_some() && fields.expiry_ms(name).is_none());
    call.afford(new.map(expiry_bytes).sum())
}

/// Returns the approximate bytes that the expiry of a field with the given name takes.
fn expiry_bytes(name: &[u8]) -> usize {
    2 * name.len() + EXPIRY_BYTES
}

/// Sets the expiry of a field (`expires_ms`, since 1970), or removes the field if that time has come at
/// `now_ms`. Returns the number that is the reply for the field: 1 if the expiry was set, 2 if the field was
/// removed.
fn set_expiry(fields: &mut Fields, name: &[u8], expires_ms: u64, now_ms: u64) -> i64 {
    if expires_ms <= now_ms {
        fields.remove(name);
        return DELETED;
    }
    fields.set_expiry(name, Some(expires_ms));
    DONE
}

/// Applies `change` to each field whose name is among the arguments at positions `names`, in the hash in
/// argument 1. Replies with the numbers that `change` returns; -2 for each field if there is no such hash.
/// Queues the keyspace event `event` if one of the numbers is 1 (an expiry was set or removed), and `hdel` if
/// one is 2 (a field was removed). An error, before any change, if the key holds another type, or if the work
/// or the reply would exceed its limit.
fn change_each(
    call: &mut Call<'_>,
    names: Range<usize>,
    event: &'static str,
    mut change: impl FnMut(&mut Fields, &[u8]) -> i64,
) -> Done {
    let (arguments, count) = (call.arguments, names.len());
    call.effort.spend(count, RANK)?;
    call.out.expect(count * NUMBER_BYTES)?;
    let done = call.keyspace.change(call.at(1), |fields: &mut Fields| {
        names.map(|index| change(fields, arguments.at(index))).collect::<Vec<_>>()
    })?;
    let done = done.unwrap_or_else(|| vec![MISSING; count]);
    if !done.iter().any(|number| [DONE, DELETED].contains(number)) {
        call.keyspace.interest.withdraw();
    }
    for (number, event) in [(DONE, event), (DELETED, "hdel")] {
        if done.contains(&number) {
            call.announce(Class::Hash, event, call.at(1));
        }
    }
    call.out.array(count);
    for number in done {
        call.out.integer(number);
    }
    Ok(())
}

fn httl(call: &mut Call<'_>) -> Done {
    let now_ms = call.keyspace.now_ms();
    tell_lifetimes(call, |expires_ms| (expires_ms - now_ms).div_ceil(1000))
}

fn hpttl(call: &mut Call<'_>) -> Done {
    let now_ms = call.keyspace.now_ms();
    tell_lifetimes(call, |expires_ms| expires_ms - now_ms)
}

fn hexpiretime(call: &mut Call<'_>) -> Done {
    tell_lifetimes(call, |expires_ms| expires_ms.div_ceil(1000))
}

fn hpexpiretime(call: &mut Call<'_>) -> Done {
    tell_lifetimes(call, |expires_ms| expires_ms)
}

fn tell_lifetimes(call: &mut Call<'_>, tell: impl Fn(u64) -> u64) -> Done {
    let fields = call.keyspace.read_as::<Fields>(call.arguments.at(1))?;
    // The borrow of the keyspace ends before the arguments are looked at again.
    let known = fields.is_some();
    let names = listed(call, 2, 1, NOT_POSITIVE)?;
    call.effort.spend(names.len(), FIND)?;
    let fields = call.keyspace.peek_as::<Fields>(call.arguments.at(1))?.filter(|_| known);
    call.out.array(names.len());
    for name in names.map(|index| call.arguments.at(index)) {
        call.out.integer(match fields {
            Some(fields) if fields.get(name).is_some() => {
                fields.expiry_ms(name).map_or(WITHOUT, |expires_ms| tell(expires_ms) as i64)
            }
            _ => MISSING,
        });
    }
    Ok(())
}

fn hpersist(call: &mut Call<'_>) -> Done {
    call.keyspace.read_uncounted_as::<Fields>(call.at(1))?;
    let names = listed(call, 2, 1, NOT_POSITIVE)?;
    change_each(call, names, "hpersist", |fields, name| match fields.get(name).is_some() {
        false => MISSING,
        true if fields.set_expiry(name, None) => DONE,
        true => WITHOUT,
    })
}

/// Replies with an array of the values of the fields whose names are the arguments at positions `names`; a
/// missing field gives null. With `once`, a name that is repeated gives null from its second occurrence on.
/// An error, before anything is changed, if the values do not fit in a reply.
fn write_values(call: &mut Call<'_>, names: Range<usize>, once: bool) -> Done {
    call.effort.spend(names.len(), if once { RANK } else { FIND })?;
    let mut met = BTreeSet::new();
    let fields = call.keyspace.peek_as::<Fields>(call.arguments.at(1))?;
    call.out.array(names.len());
    for name in names.map(|index| call.arguments.at(index)) {
        let is_new = !once || met.insert(name);
        match fields.and_then(|fields| fields.get(name)).filter(|_| is_new) {
            Some(value) => call.out.bulk(value.as_bytes()),
            None => call.out.null(call.session.protocol),
        }
    }
    call.out.check()
}

fn hgetdel(call: &mut Call<'_>) -> Done {
    call.keyspace.read_as::<Fields>(call.at(1))?;
    let names = listed(call, 2, 1, NOT_POSITIVE)?;
    write_values(call, names.clone(), true)?;
    let arguments = call.arguments;
    let removed = call.keyspace.change(call.at(1), |fields: &mut Fields| {
        names.filter(|index| fields.remove(arguments.at(*index)).is_some()).count()
    })?;
    match removed {
        None | Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::Hash, "hdel", call.at(1)),
    }
    Ok(())
}

/// The change of fields' expiries that HGETEX or HSETEX asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// The request has no option about expiries: HGETEX leaves them as they are, and HSETEX removes them.
    Unnamed,
    Keep,
    Persist,
    UntilMs(u64),
}

fn hgetex(call: &mut Call<'_>) -> Done {
    call.keyspace.read_as::<Fields>(call.at(1))?;
    let (lifetime, index) = if call.is(2, "persist") {
        (Lifetime::Persist, 3)
    } else if let Some(unit) = Unit::option(call, 2) {
        (Lifetime::UntilMs(unit.expiry(call, 3, "hgetex")?), 4)
    } else {
        (Lifetime::Unnamed, 2)
    };
    if index > 2 && (call.is(index, "persist") || Unit::option(call, index).is_some()) {
        return Err(Refusal::Words(
            "ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified",
        ));
    }
    let names = listed(call, index, 1, NOT_POSITIVE)?;
    write_values(call, names.clone(), false)?;
    if matches!(lifetime, Lifetime::UntilMs(expires_ms) if expires_ms > call.keyspace.now_ms()) {
        afford_expiries(call, names.clone())?;
    }
    call.effort.charge(names.len() as u64 * RANK);
    let (arguments, now_ms) = (call.arguments, call.keyspace.now_ms());
    let (mut changed, mut removed) = (false, false);
    call.keyspace.change(call.at(1), |fields: &mut Fields| {
        for name in names.map(|index| arguments.at(index)) {
            match lifetime {
                Lifetime::Persist => changed |= fields.set_expiry(name, None),
                Lifetime::UntilMs(expires_ms) if fields.get(name).is_some() => {
                    let done = set_expiry(fields, name, expires_ms, now_ms);
                    changed |= done == DONE;
                    removed |= done == DELETED;
                }
                _ => {}
            }
        }
    })?;
    if !(changed || removed) {
        call.keyspace.interest.withdraw();
    }
    let event = if lifetime == Lifetime::Persist { "hpersist" } else { "hexpire" };
    for (happened, event) in [(changed, event), (removed, "hdel")] {
        if happened {
            call.announce(Class::Hash, event, call.at(1));
        }
    }
    Ok(())
}

/// The options of HSETEX, and the position of the argument (FIELDS) at which its fields begin.
struct SetOptions {
    /// The condition of HSETEX on the named fields: `Some(false)` if none may exist yet (FNX), `Some(true)`
    /// if all must exist (FXX), `None` without a condition.
    present: Option<bool>,
    lifetime: Lifetime,
    index: usize,
}

impl SetOptions {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let mut options = Self { present: None, lifetime: Lifetime::Unnamed, index: 2 };
        while options.index < call.count() && !call.is(options.index, "fields") {
            let index = options.index;
            if call.is(index, "fnx") || call.is(index, "fxx") {
                if options.present.is_some() {
                    return Err(Refusal::Words("ERR Only one of FXX or FNX arguments can be specified"));
                }
                options.present = Some(call.is(index, "fxx"));
                options.index += 1;
                continue;
            }
            let unit = Unit::option(call, index).filter(|_| index + 1 < call.count());
            if unit.is_none() && !call.is(index, "keepttl") {
                return Err(Refusal::Quoting(format!("ERR unknown argument: {}", quoted(call.at(index)))));
            }
            if options.lifetime != Lifetime::Unnamed {
                return Err(Refusal::Words(
                    "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
                ));
            }
            options.lifetime = match unit {
                None => Lifetime::Keep,
                Some(unit) => Lifetime::UntilMs(unit.expiry(call, index + 1, "hsetex")?),
            };
            options.index += 1 + usize::from(unit.is_some());
        }
        Ok(options)
    }
}

fn hsetex(call: &mut Call<'_>) -> Done {
    let fields = call.keyspace.read_as::<Fields>(call.at(1))?.is_some();
    let options = SetOptions::parse(call)?;
    let pairs = listed(call, options.index, 2, NOT_POSITIVE)?;
    call.effort.spend(pairs.len(), RANK)?;
    let arguments = call.arguments;
    let mut names = pairs.clone().step_by(2).map(|index| arguments.at(index));
    let known = call.keyspace.peek_as::<Fields>(arguments.at(1))?.filter(|_| fields);
    let mut has = |name| known.is_some_and(|fields: &Fields| fields.get(name).is_some());
    let goes = match options.present {
        None => true,
        Some(true) => names.all(&mut has),
        Some(false) => !names.any(&mut has),
    };
    if !goes {
        return call.integer(0);
    }
    let expiries = match options.lifetime {
        Lifetime::UntilMs(_) => pairs.clone().step_by(2).map(|index| expiry_bytes(arguments.at(index))).sum(),
        _ => 0,
    };
    call.afford(memory_needed(arguments) as usize + expiries)?;
    let now_ms = call.keyspace.now_ms();
    let event = match options.lifetime {
        Lifetime::UntilMs(expires_ms) if expires_ms <= now_ms => Some("hdel"),
        Lifetime::UntilMs(_) => Some("hexpire"),
        _ => None,
    };
    let removes = event == Some("hdel");
    if removes {
        // If the hash loses its last field, its event `del` comes behind the next one, which is `hdel`.
        call.announce(Class::Hash, "hset", call.at(1));
    }
    call.keyspace.change_or_create(call.at(1), |fields: &mut Fields| {
        for index in pairs.step_by(2) {
            let name = arguments.at(index);
            let _: Change = fields.set(name, arguments.at(index + 1));
            match options.lifetime {
                Lifetime::Keep => {}
                Lifetime::UntilMs(expires_ms) => {
                    set_expiry(fields, name, expires_ms, now_ms);
                }
                Lifetime::Unnamed | Lifetime::Persist => {
                    fields.set_expiry(name, None);
                }
            }
        }
    })?;
    if !removes {
        call.announce(Class::Hash, "hset", call.at(1));
    }
    if let Some(event) = event {
        call.announce(Class::Hash, event, call.at(1));
    }
    call.integer(1)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::store::limits::EngineLimits;

    #[test]
    fn fields_expire() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("HSET h a 1 b 2 c 3", ":3|"),
            ("HEXPIRE h 10 FIELDS 2 a x", "*2|:1|:-2|"),
            ("HPEXPIRE h 100 NX FIELDS 2 a b", "*2|:0|:1|"),
            ("HEXPIRE h 5 GT FIELDS 3 a b c", "*3|:0|:1|:0|"),
            ("HEXPIRE h 4 LT FIELDS 2 b c", "*2|:1|:1|"),
            ("HPEXPIRE h 300 XX FIELDS 1 b", "*1|:1|"),
            ("HTTL h FIELDS 4 a b c x", "*4|:10|:1|:4|:-2|"),
            ("HPTTL h FIELDS 2 a b", "*2|:10000|:300|"),
            ("HEXPIRETIME h FIELDS 1 a", "*1|:1700000010|"),
            ("HPEXPIRETIME h FIELDS 1 b", "*1|:1700000000300|"),
            ("OBJECT ENCODING h", "$10|listpackex|"),
            ("HINCRBY h b 1", ":3|"),
            ("HSET h c 9", ":0|"),
            ("HTTL h FIELDS 2 b c", "*2|:1|:-1|"),
            ("COPY h i", ":1|"),
        ]);
        bench.wait_ms(300);
        bench.talk(&[("HGET h b", "$1|3|")]);
        bench.wait_ms(1);
        bench.talk(&[
            ("HGET h b", "$-1|"),
            ("HLEN h", ":2|"),
            ("HGETALL i", "*4|$1|a|$1|1|$1|c|$1|9|"),
            ("HPERSIST h FIELDS 3 a c x", "*3|:1|:-1|:-2|"),
            ("HEXPIRE h 0 FIELDS 1 a", "*1|:2|"),
            ("HPEXPIREAT h 1 FIELDS 1 c", "*1|:2|"),
            ("EXISTS h", ":0|"),
            ("HTTL h FIELDS 2 a b", "*2|:-2|:-2|"),
            ("HEXPIRE i -1 FIELDS 1 a", "-ERR invalid expire time, must be >= 0|"),
            ("HEXPIRE i 99999999999999 FIELDS 1 a", "-ERR invalid expire time in 'hexpire' command|"),
            (
                "HEXPIRE i 1 FIELD 1 a",
                "-ERR Mandatory argument FIELDS is missing or not at the right position|",
            ),
            ("HEXPIRE i 1 FIELDS 0 a", "-ERR Parameter `numFields` should be greater than 0|"),
            ("HTTL i FIELDS 2 a", "-ERR The `numfields` parameter must match the number of arguments|"),
            ("SET s v", "+OK|"),
            ("HTTL s FIELDS 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value|"),
        ]);
    }

    #[test]
    fn values_are_read_and_set_with_lifetimes() {
        let mut bench = Bench::new();
        bench.talk(&[
            ("HSETEX h EX 10 FIELDS 2 a 1 b 2", ":1|"),
            ("HSETEX h FNX FIELDS 2 b 9 c 9", ":0|"),
            ("HSETEX h FXX KEEPTTL FIELDS 1 b 3", ":1|"),
            ("HTTL h FIELDS 2 a b", "*2|:10|:10|"),
            ("HSETEX h FIELDS 1 b 4", ":1|"),
            ("HGETEX h PX 50 FIELDS 3 a b x", "*3|$1|1|$1|4|$-1|"),
            ("HPTTL h FIELDS 2 a b", "*2|:50|:50|"),
            ("HGETEX h PERSIST FIELDS 1 a", "*1|$1|1|"),
            ("HGETEX h FIELDS 1 b", "*1|$1|4|"),
            ("HPTTL h FIELDS 2 a b", "*2|:-1|:50|"),
            ("HGETDEL h FIELDS 2 a x", "*2|$1|1|$-1|"),
            (
                "HSETEX h EX 1 PX 1 FIELDS 1 a 1",
                "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified|",
            ),
            ("HSETEX h SOON FIELDS 1 a 1", "-ERR unknown argument: SOON|"),
            ("HGETDEL nothing FIELDS 1 a", "*1|$-1|"),
        ]);
        bench.wait_ms(51);
        bench.talk(&[("EXISTS h", ":0|"), ("DBSIZE", ":0|")]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }

    #[test]
    fn fields_that_are_set_with_a_time_that_has_passed_are_told_of_as_removed() {
        let mut bench = Bench::new();
        bench.send("HELLO 3");
        bench.send("CONFIG SET notify-keyspace-events EA");
        bench.send("PSUBSCRIBE *event*");
        for (line, events) in [
            ("HSETEX h FIELDS 1 a 1", &["hset"][..]),
            ("HSETEX h EX 10 FIELDS 1 b 1", &["hset", "hexpire"]),
            ("HSETEX h PXAT 1 FIELDS 1 b 2", &["hset", "hdel"]),
            ("HSETEX h PXAT 1 FIELDS 2 a 2 b 2", &["hset", "hdel", "del"]),
        ] {
            let reply = bench.send(line);
            let told: Vec<_> =
                reply.split("__keyevent@0__:").skip(1).filter_map(|rest| rest.split('|').next()).collect();
            assert_eq!(told, events, "{line}: {reply}");
            assert!(reply.ends_with("|:1|"), "{reply}");
        }
        bench.talk(&[("EXISTS h", ":0|")]);
    }

    #[test]
    fn a_sweep_frees_fields_that_nobody_asks_for() {
        let mut bench = Bench::new();
        for number in 0..500 {
            bench.send(&format!("HSETEX h{} PX {} FIELDS 1 f{number} v", number % 7, number + 1));
        }
        bench.send("HSET h0 stays v");
        bench.send("RENAME h1 other");
        bench.wait_ms(1_000);
        while bench.engine.expire_some(bench.now, 5).visited > 0 {}
        bench.talk(&[("DBSIZE", ":1|"), ("HLEN h0", ":1|"), ("DEL h0", ":1|")]);
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }

    #[test]
    fn a_reply_that_does_not_fit_changes_nothing() {
        let limits = EngineLimits { reply_bytes_max: 200, ..EngineLimits::with_memory(u64::MAX) };
        let mut bench = Bench::with(limits);
        bench.talk(&[("HSET h f v", ":1|"), ("HEXPIRE h 10 FIELDS 1 f", "*1|:1|")]);
        let names = " f".repeat(100);
        for line in [format!("HPERSIST h FIELDS 100{names}"), format!("HEXPIRE h 5 FIELDS 100{names}")] {
            assert_eq!(bench.send(&line), "-ERR the reply would be larger than 200 bytes|");
        }
        bench.talk(&[("HTTL h FIELDS 1 f", "*1|:10|")]);
    }

    #[test]
    fn expiries_need_memory() {
        let mut bench = Bench::bounded(60_000);
        let names = (100..500).map(|field| format!(" {field}")).collect::<Vec<_>>().concat();
        let pairs = (100..500).map(|field| format!(" {field} v")).collect::<Vec<_>>().concat();
        let refusal = "-OOM command not allowed when used memory > 'maxmemory'.|";
        bench.talk(&[
            (&format!("HSET h{pairs}"), ":400|"),
            (&format!("HEXPIRE h 10 FIELDS 400{names}"), refusal),
            (&format!("HGETEX h EX 10 FIELDS 400{names}"), refusal),
            ("HTTL h FIELDS 1 100", "*1|:-1|"),
            ("HEXPIRE h 10 FIELDS 1 100", "*1|:1|"),
        ]);
    }

    #[test]
    fn a_field_is_taken_once() {
        Bench::new().talk(&[
            ("HSET h a 1 b 2 c 3", ":3|"),
            ("HGETDEL h FIELDS 3 a a b", "*3|$1|1|$-1|$1|2|"),
            ("HGETEX h PERSIST FIELDS 2 c c", "*2|$1|3|$1|3|"),
        ]);
    }
}
