//! Commands on hashes. Commands on expiries of fields are in `field_lifetimes.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::LOOK;
use super::events::Class;
use super::fields::{Change, Field, Fields};
use super::long_double;
use super::numbers::{self, Digits};
use super::refusal::Refusal;
use super::scan::{self, Page, ScanOptions, Scanned};
use super::text::Text;
use crate::protocol::Protocol;

pub(super) const COMMANDS: &[Command] = &[
    command("hset", -4, Effect::Grow, hset),
    command("hmset", -4, Effect::Grow, hmset),
    command("hsetnx", 4, Effect::Grow, hsetnx),
    command("hget", 3, Effect::Read, hget),
    command("hmget", -3, Effect::Read, hmget),
    command("hgetall", 2, Effect::Read, hgetall),
    command("hkeys", 2, Effect::Read, hkeys),
    command("hvals", 2, Effect::Read, hvals),
    command("hdel", -3, Effect::Write, hdel),
    command("hlen", 2, Effect::Read, hlen),
    command("hexists", 3, Effect::Read, hexists),
    command("hstrlen", 3, Effect::Read, hstrlen),
    command("hincrby", 4, Effect::Grow, hincrby),
    command("hincrbyfloat", 4, Effect::Grow, hincrbyfloat),
    command("hscan", -3, Effect::Read, hscan),
    command("hrandfield", -2, Effect::Read, hrandfield),
];

fn hset(call: &mut Call<'_>) -> Done {
    let added = set_fields(call, "hset")?;
    call.number(added)
}

fn hmset(call: &mut Call<'_>) -> Done {
    set_fields(call, "hmset")?;
    call.ok()
}

fn set_fields(call: &mut Call<'_>, name: &'static str) -> Result<usize, Refusal> {
    if !call.count().is_multiple_of(2) {
        return Err(Refusal::WrongArity(name));
    }
    let arguments = call.arguments;
    spend_searches(call, arguments.len() / 2 - 1)?;
    let added = call.keyspace.change_or_create(call.at(1), |fields: &mut Fields| {
        let pairs = (2..arguments.len()).step_by(2);
        let set = |at: &usize| {
            fields.set_expiry(arguments.at(*at), None);
            fields.set(arguments.at(*at), arguments.at(at + 1)) == Change::Added
        };
        pairs.filter(set).count()
    })?;
    call.announce(Class::Hash, "hset", call.at(1));
    Ok(added)
}

/// Charges the effort (steps of work) to look up `names` fields of the hash in argument 1, or refuses the
/// request if too little is left: a small hash is searched from its start for each name.
fn spend_searches(call: &Call<'_>, names: usize) -> Done {
    // A value of another type is refused where the command reads it.
    let fields = call.keyspace.peek_as::<Fields>(call.at(1)).ok().flatten();
    let small = fields.filter(|fields| fields.is_small()).map_or(0, Fields::len);
    call.effort.spend(names, small as u64 / 8)
}

fn hsetnx(call: &mut Call<'_>) -> Done {
    let (name, value) = (call.at(2), call.at(3));
    let added = call.keyspace.change_or_create(call.at(1), |fields: &mut Fields| {
        let absent = fields.get(name).is_none();
        if absent {
            fields.set(name, value);
        }
        absent
    })?;
    if added {
        call.announce(Class::Hash, "hset", call.at(1));
    } else {
        call.keyspace.interest.withdraw();
    }
    call.integer(i64::from(added))
}

fn hget(call: &mut Call<'_>) -> Done {
    let fields = call.keyspace.read_as::<Fields>(call.arguments.at(1))?;
    match fields.and_then(|fields| fields.get(call.arguments.at(2))) {
        Some(value) => call.out.bulk(value.as_bytes()),
        None => call.out.null(call.session.protocol),
    }
    Ok(())
}

fn hmget(call: &mut Call<'_>) -> Done {
    let names = call.rest(2);
    spend_searches(call, names.len())?;
    let fields = call.keyspace.read_as::<Fields>(call.arguments.at(1))?;
    call.out.array(names.len());
    for name in names {
        match fields.and_then(|fields| fields.get(name)) {
            Some(value) => call.out.bulk(value.as_bytes()),
            None => call.out.null(call.session.protocol),
        }
    }
    Ok(())
}

fn hgetall(call: &mut Call<'_>) -> Done {
    let fields = call.keyspace.read_as::<Fields>(call.arguments.at(1))?.map_or(&[][..], Fields::all);
    call.effort.spend(fields.len(), 2 * LOOK)?;
    call.out.map(call.session.protocol, fields.len());
    for field in fields {
        call.out.bulk(field.name.as_bytes());
        call.out.bulk(field.value.as_bytes());
    }
    Ok(())
}

fn hkeys(call: &mut Call<'_>) -> Done {
    list_parts(call, |field| &field.name)
}

fn hvals(call: &mut Call<'_>) -> Done {
    list_parts(call, |field| &field.value)
}

fn list_parts(call: &mut Call<'_>, part: fn(&Field) -> &Text) -> Done {
    let fields = call.keyspace.read_as::<Fields>(call.arguments.at(1))?.map_or(&[][..], Fields::all);
    call.effort.spend(fields.len(), LOOK)?;
    call.out.array(fields.len());
    for field in fields {
        call.out.bulk(part(field).as_bytes());
    }
    Ok(())
}

fn hdel(call: &mut Call<'_>) -> Done {
    let names = call.rest(2);
    spend_searches(call, names.len())?;
    let removed = call.keyspace.change(call.at(1), |fields: &mut Fields| {
        names.filter(|name| fields.remove(name).is_some()).count()
    })?;
    match removed {
        None => {}
        Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::Hash, "hdel", call.at(1)),
    }
    call.number(removed.unwrap_or(0))
}

fn hlen(call: &mut Call<'_>) -> Done {
    let length = call.keyspace.read_as::<Fields>(call.at(1))?.map_or(0, Fields::len);
    call.number(length)
}

fn hexists(call: &mut Call<'_>) -> Done {
    let name = call.at(2);
    let found = call.keyspace.read_as::<Fields>(call.at(1))?.is_some_and(|fields| fields.get(name).is_some());
    call.integer(i64::from(found))
}

fn hstrlen(call: &mut Call<'_>) -> Done {
    let name = call.at(2);
    let value = call.keyspace.read_as::<Fields>(call.at(1))?.and_then(|fields| fields.get(name));
    let length = value.map_or(0, |value| value.as_bytes().len());
    call.number(length)
}

fn hincrby(call: &mut Call<'_>) -> Done {
    let (name, by) = (call.at(2), call.integer_at(3)?);
    let sum = call.keyspace.change_or_create(call.at(1), |fields: &mut Fields| {
        let old = fields.get(name).map_or(Some(0), |old| numbers::integer(old.as_bytes()));
        let old = old.ok_or(Refusal::Words("ERR hash value is not an integer"))?;
        let sum = old.checked_add(by).ok_or(Refusal::Overflow)?;
        fields.set(name, Digits::new(sum).as_bytes());
        Ok(sum)
    })??;
    call.announce(Class::Hash, "hincrby", call.at(1));
    call.integer(sum)
}

fn hincrbyfloat(call: &mut Call<'_>) -> Done {
    let (name, by) = (call.at(2), call.at(3));
    call.effort.spend(1, long_double::effort(by))?;
    if !long_double::is_finite(by)? {
        return Err(Refusal::Words("ERR value is NaN or Infinity"));
    }
    let (out, effort) = (&call.out, call.effort);
    let sum = call.keyspace.change_or_create(call.arguments.at(1), |fields: &mut Fields| {
        let old = fields.get(name).map_or(&b"0"[..], Text::as_bytes);
        effort.spend(1, long_double::effort(old))?;
        let sum = long_double::add(old, by).map_err(|refusal| match refusal {
            Refusal::NotAFloat => Refusal::Words("ERR hash value is not a float"),
            other => other,
        })?;
        out.expect(sum.len())?;
        fields.set(name, sum.as_bytes());
        Ok(sum)
    })??;
    call.announce(Class::Hash, "hincrbyfloat", call.at(1));
    call.bulk(sum.as_bytes())
}

fn hscan(call: &mut Call<'_>) -> Done {
    scan::check_cursor(call.at(2))?;
    if call.keyspace.read_as::<Fields>(call.at(1))?.is_none() {
        return scan::nothing(&mut call.out);
    }
    let mut page = Page::new(ScanOptions::parse(call, 2, Scanned::Fields)?, call.effort);
    let (cursor, count) = (page.options().table_cursor(), page.options().count);
    let names_only = page.options().names_only;
    let fields = call.keyspace.peek_as::<Fields>(call.arguments.at(1))?;
    let next = fields.zip(cursor).and_then(|(fields, cursor)| {
        fields.walk(cursor, count, |field| {
            page.meet(field.name.as_bytes(), if names_only { 1 } else { 2 }, || {
                call.out.bulk(field.name.as_bytes());
                if !names_only {
                    call.out.bulk(field.value.as_bytes());
                }
            });
        })
    });
    page.finish(&mut call.out, next.map(u64::from))
}

fn hrandfield(call: &mut Call<'_>) -> Done {
    let mut random = call.keyspace.random.fork();
    let key = call.arguments.at(1);
    if call.count() == 2 {
        let fields = call.keyspace.read_as::<Fields>(key)?.map_or(&[][..], Fields::all);
        match fields {
            [] => call.out.null(call.session.protocol),
            fields => call.out.bulk(fields[random.index(fields.len())].name.as_bytes()),
        }
        return Ok(());
    }
    let count = call.integer_at(2)?;
    let with_values = call.count() == 4 && call.is(3, "withvalues");
    if call.count() > 3 && !with_values {
        return Err(Refusal::Syntax);
    }
    let fields = call.keyspace.read_as::<Fields>(key)?.map_or(&[][..], Fields::all);
    let picks = scan::picks(&mut random, count, fields.len(), call.effort)?;
    let nested = with_values && call.session.protocol == Protocol::Resp3;
    call.out.array(if with_values && !nested { picks.len() * 2 } else { picks.len() });
    for pick in picks {
        if nested {
            call.out.array(2);
        }
        call.out.bulk(fields[pick].name.as_bytes());
        if with_values {
            call.out.bulk(fields[pick].value.as_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn fields_come_and_go_with_their_key() {
        Bench::new().talk(&[
            ("HSET h a 1 b 2", ":2|"),
            ("HSET h a 9", ":0|"),
            ("HSET h a 9 b", "-ERR wrong number of arguments for 'hset' command|"),
            ("HGETALL h", "*4|$1|a|$1|9|$1|b|$1|2|"),
            ("HMGET h b nothing", "*2|$1|2|$-1|"),
            ("HINCRBY h a 5", ":14|"),
            ("HINCRBY h c x", "-ERR value is not an integer or out of range|"),
            ("HINCRBYFLOAT h b 0.5", "$3|2.5|"),
            ("HINCRBY h b 1", "-ERR hash value is not an integer|"),
            ("HDEL h a b c", ":2|"),
            ("EXISTS h", ":0|"),
            ("HINCRBYFLOAT h b x", "-ERR value is not a valid float|"),
            ("EXISTS h", ":0|"),
        ]);
    }

    #[test]
    fn a_long_number_in_a_field_takes_effort() {
        let mut bench = Bench::new();
        bench.send("HSET h f 1e4000");
        bench.send("HINCRBYFLOAT h f 1");
        assert!(bench.engine.effort() >= 4_000);
    }

    #[test]
    fn a_scan_leaves_out_values_where_it_is_asked_to() {
        Bench::new().talk(&[
            ("HSET h a 1 b 2", ":2|"),
            ("HSCAN h 0", "*2|$1|0|*4|$1|a|$1|1|$1|b|$1|2|"),
            ("HSCAN h 0 NOVALUES", "*2|$1|0|*2|$1|a|$1|b|"),
            ("HSCAN h 0 COUNT 10 novalues MATCH b", "*2|$1|0|*1|$1|b|"),
            ("HSCAN h 0 NOVALUES MATCH", "-ERR syntax error|"),
            ("HSCAN none 0 NOVALUES", "*2|$1|0|*0|"),
            ("SADD s a", ":1|"),
            ("SSCAN s 0 NOVALUES", "-ERR NOVALUES option can only be used in HSCAN|"),
            ("SCAN 0 NOVALUES", "-ERR NOVALUES option can only be used in HSCAN|"),
        ]);
    }

    #[test]
    fn a_large_hash_holds_the_same_as_a_small_one() {
        let mut bench = Bench::new();
        for number in 0..1_000 {
            assert_eq!(bench.send(&format!("HSET h f{number} {number}")), ":1|");
        }
        bench.talk(&[
            ("HLEN h", ":1000|"),
            ("HGET h f777", "$3|777|"),
            ("OBJECT ENCODING h", "$9|hashtable|"),
        ]);
        for number in 0..1_000 {
            assert_eq!(bench.send(&format!("HDEL h f{number}")), ":1|");
        }
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }
}
