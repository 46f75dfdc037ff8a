//! Commands on sorted sets. Ranges are in `sorted_ranges.rs`, combinations in `sorted_combinations.rs`.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, RANK};
use super::events::Class;
use super::lists::PopRequest;
use super::numbers;
use super::ranking::{Ranking, Scored};
use super::refusal::Refusal;
use super::reply::{Reply, scored_bytes};
use super::scan::{self, Page, ScanOptions, Scanned};
use super::table::Keyed as _;
use super::waits::Want;
use crate::protocol::Protocol;

pub(super) const COMMANDS: &[Command] = &[
    command("zadd", -4, Effect::Grow, zadd),
    command("zincrby", 4, Effect::Grow, zincrby),
    command("zscore", 3, Effect::Read, zscore),
    command("zmscore", -3, Effect::Read, zmscore),
    command("zrank", -3, Effect::Read, zrank),
    command("zrevrank", -3, Effect::Read, zrevrank),
    command("zcard", 2, Effect::Read, zcard),
    command("zrem", -3, Effect::Write, zrem),
    command("zpopmin", -2, Effect::Write, zpopmin),
    command("zpopmax", -2, Effect::Write, zpopmax),
    command("zmpop", -4, Effect::Write, zmpop),
    command("zrandmember", -2, Effect::Read, zrandmember),
    command("zscan", -3, Effect::Read, zscan),
];

/// The options of ZADD: which members it adds or changes, and how it computes scores.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one word of the command")]
pub(super) struct AddOptions {
    pub(super) only_new: bool,
    pub(super) only_known: bool,
    only_greater: bool,
    only_less: bool,
    pub(super) counts_changes: bool,
    increments: bool,
}

/// The effect of ZADD on a member, with the resulting score: none (the options forbid it), added, changed or
/// unchanged.
#[derive(Clone, Copy, PartialEq)]
enum Added {
    Nothing,
    New(f64),
    Changed(f64),
    Unchanged(f64),
}

impl AddOptions {
    const NAMES: [&str; 6] = ["nx", "xx", "gt", "lt", "ch", "incr"];

    /// Parses the options of a ZADD request. Returns also the position of the argument at which the scores
    /// begin. An error if they contradict each other, or if scores and members do not pair up.
    fn parse(call: &Call<'_>) -> Result<(Self, usize), Refusal> {
        let mut options = Self::default();
        let mut index = 2;
        loop {
            let option = match () {
                () if call.is(index, "nx") => &mut options.only_new,
                () if call.is(index, "xx") => &mut options.only_known,
                () if call.is(index, "gt") => &mut options.only_greater,
                () if call.is(index, "lt") => &mut options.only_less,
                () if call.is(index, "ch") => &mut options.counts_changes,
                () if call.is(index, "incr") => &mut options.increments,
                () => break,
            };
            *option = true;
            index += 1;
        }
        options.check(call.count() - index)?;
        Ok((options, index))
    }

    fn check(self, words: usize) -> Result<(), Refusal> {
        if words == 0 || !words.is_multiple_of(2) {
            return Err(Refusal::Syntax);
        }
        if self.only_new && self.only_known {
            return Err(Refusal::Words("ERR XX and NX options at the same time are not compatible"));
        }
        let exclusive = [self.only_new, self.only_greater, self.only_less];
        if exclusive.into_iter().filter(|option| *option).count() > 1 {
            return Err(Refusal::Words("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if self.increments && words > 2 {
            return Err(Refusal::Words("ERR INCR option supports a single increment-element pair"));
        }
        Ok(())
    }

    fn apply(self, ranking: &mut Ranking, member: &[u8], score: f64) -> Result<Added, Refusal> {
        let Some(old) = ranking.score(member) else {
            if self.only_known {
                return Ok(Added::Nothing);
            }
            ranking.set(member, score);
            return Ok(Added::New(score));
        };
        let score = if self.increments { old + score } else { score };
        if self.only_new {
            return Ok(Added::Nothing);
        }
        if score.is_nan() {
            return Err(Refusal::Words("ERR resulting score is not a number (NaN)"));
        }
        if self.only_greater && score <= old || self.only_less && score >= old {
            return Ok(Added::Nothing);
        }
        #[expect(clippy::float_cmp, reason = "an equal score is no change")]
        if score == old {
            return Ok(Added::Unchanged(old));
        }
        ranking.set(member, score);
        Ok(Added::Changed(score))
    }
}

fn zadd(call: &mut Call<'_>) -> Done {
    let (options, start) = AddOptions::parse(call)?;
    add(call, options, start)
}

fn zincrby(call: &mut Call<'_>) -> Done {
    // Redis takes an option of ZADD in the place of the increment for one, which leaves too few words.
    if AddOptions::NAMES.iter().any(|name| call.is(2, name)) {
        return Err(Refusal::Syntax);
    }
    add(call, AddOptions { increments: true, ..AddOptions::default() }, 2)
}

fn add(call: &mut Call<'_>, options: AddOptions, start: usize) -> Done {
    let pairs = (start..call.count()).step_by(2);
    let pairs = pairs.map(|index| Some((numbers::float(call.at(index))?, call.at(index + 1))));
    let pairs: Vec<(f64, &[u8])> = pairs.collect::<Option<_>>().ok_or(Refusal::NotAFloat)?;
    add_pairs(call, options, &pairs)
}

/// Adds members with their scores (`pairs`) to the sorted set in argument 1, or changes their scores, as far
/// as `options` permit, and replies as ZADD does. An error, without any change, if memory does not suffice,
/// the key holds another type, or an increment results in NaN.
pub(super) fn add_pairs(call: &mut Call<'_>, options: AddOptions, pairs: &[(f64, &[u8])]) -> Done {
    // Each member is kept twice, so its bytes are needed once more.
    call.afford(call.arguments.frame().len())?;
    call.effort.charge(pairs.len() as u64 * RANK);
    let done: Vec<Added> = call.keyspace.change_or_create(call.at(1), |ranking: &mut Ranking| {
        pairs.iter().map(|(score, member)| options.apply(ranking, member, *score)).collect::<Result<_, _>>()
    })??;
    if done.iter().all(|added| matches!(added, Added::Nothing | Added::Unchanged(_))) {
        call.keyspace.interest.withdraw();
    } else {
        call.announce(Class::SortedSet, if options.increments { "zincr" } else { "zadd" }, call.at(1));
    }
    if options.increments {
        return match done[0] {
            Added::Nothing => call.null(),
            Added::New(score) | Added::Changed(score) | Added::Unchanged(score) => {
                call.out.score(call.session.protocol, score);
                Ok(())
            }
        };
    }
    let counted = |added: &&Added| match added {
        Added::New(_) => true,
        Added::Changed(_) => options.counts_changes,
        Added::Nothing | Added::Unchanged(_) => false,
    };
    call.number(done.iter().filter(counted).count())
}

fn write_score_or_null(out: &mut Reply<'_>, protocol: Protocol, score: Option<f64>) {
    match score {
        Some(score) => out.score(protocol, score),
        None => out.null(protocol),
    }
}

fn zscore(call: &mut Call<'_>) -> Done {
    let ranking = call.keyspace.read_as::<Ranking>(call.arguments.at(1))?;
    let score = ranking.and_then(|ranking| ranking.score(call.arguments.at(2)));
    write_score_or_null(&mut call.out, call.session.protocol, score);
    Ok(())
}

fn zmscore(call: &mut Call<'_>) -> Done {
    let members = call.rest(2);
    let ranking = call.keyspace.read_as::<Ranking>(call.arguments.at(1))?;
    call.effort.spend(members.len(), FIND)?;
    call.out.array(members.len());
    for member in members {
        let score = ranking.and_then(|ranking| ranking.score(member));
        write_score_or_null(&mut call.out, call.session.protocol, score);
    }
    Ok(())
}

fn zrank(call: &mut Call<'_>) -> Done {
    tell_rank(call, "zrank", |rank, _| rank)
}

fn zrevrank(call: &mut Call<'_>) -> Done {
    tell_rank(call, "zrevrank", |rank, length| length - 1 - rank)
}

fn tell_rank(call: &mut Call<'_>, name: &'static str, count_from: fn(usize, usize) -> usize) -> Done {
    let with_score = match call.count() {
        3 => false,
        4 if call.is(3, "withscore") => true,
        4 => return Err(Refusal::Syntax),
        _ => return Err(Refusal::WrongArity(name)),
    };
    let member = call.at(2);
    let ranking = call.keyspace.read_as::<Ranking>(call.arguments.at(1))?;
    let rank = ranking.and_then(|ranking| Some(count_from(ranking.rank(member)?, ranking.len())));
    let score = ranking.and_then(|ranking| ranking.score(member)).filter(|_| with_score);
    match (rank, score) {
        (Some(rank), None) => call.out.integer(rank as i64),
        (Some(rank), Some(score)) => {
            call.out.array(2);
            call.out.integer(rank as i64);
            call.out.score(call.session.protocol, score);
        }
        (None, _) if with_score => call.out.null_array(call.session.protocol),
        (None, _) => call.out.null(call.session.protocol),
    }
    Ok(())
}

fn zcard(call: &mut Call<'_>) -> Done {
    let count = call.keyspace.read_as::<Ranking>(call.at(1))?.map_or(0, Ranking::len);
    call.number(count)
}

fn zrem(call: &mut Call<'_>) -> Done {
    let members = call.rest(2);
    call.effort.charge(members.len() as u64 * RANK);
    let removed = call.keyspace.change(call.at(1), |ranking: &mut Ranking| {
        members.filter(|member| ranking.remove(member).is_some()).count()
    })?;
    match removed {
        None => {}
        Some(0) => call.keyspace.interest.withdraw(),
        Some(_) => call.announce(Class::SortedSet, "zrem", call.at(1)),
    }
    call.number(removed.unwrap_or(0))
}

/// The end from which members of a sorted set are popped: the lowest or the highest score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extreme {
    Lowest,
    Highest,
}

fn zpopmin(call: &mut Call<'_>) -> Done {
    pop(call, Extreme::Lowest)
}

fn zpopmax(call: &mut Call<'_>) -> Done {
    pop(call, Extreme::Highest)
}

fn pop(call: &mut Call<'_>, extreme: Extreme) -> Done {
    let count = match call.count() {
        2 => None,
        3 => Some(
            numbers::integer(call.at(2))
                .filter(|count| *count >= 0)
                .ok_or(Refusal::Words("ERR value is out of range, must be positive"))? as usize,
        ),
        _ => return Err(Refusal::Syntax),
    };
    let popped = popped(call, call.at(1), extreme, count.unwrap_or(1))?;
    if count.is_some() {
        write_scored(call, popped.iter(), popped.len());
    } else {
        // Without a count there is at most one pair, and it is flat in both protocol versions.
        call.out.array(popped.len() * 2);
        for Scored { member, score } in &popped {
            call.out.bulk(member.as_bytes());
            call.out.score(call.session.protocol, *score);
        }
    }
    Ok(())
}

/// Removes and returns up to `count` members of the sorted set at `key`, from the lowest or the highest score
/// on. Empty if there is no such key. An error, with nothing removed, if the reply could not hold all of
/// them, if the value is no sorted set, or if that takes too much effort.
fn popped(call: &mut Call<'_>, key: &[u8], extreme: Extreme, count: usize) -> Result<Vec<Scored>, Refusal> {
    let (out, effort) = (&call.out, call.effort);
    let popped = call.keyspace.change(key, |ranking: &mut Ranking| {
        let length = ranking.len();
        let count = count.min(length);
        effort.spend(count, RANK)?;
        let (start, end) = match extreme {
            Extreme::Lowest => (0, count),
            Extreme::Highest => (length - count, length),
        };
        out.expect(ranking.range(start, end).map(|scored| scored_bytes(scored.key().len())).sum())?;
        let mut popped = ranking.remove_range(start, end);
        if extreme == Extreme::Highest {
            popped.reverse();
        }
        Ok(popped)
    })?;
    let popped = popped.transpose()?.unwrap_or_default();
    if popped.is_empty() {
        call.keyspace.interest.withdraw();
    } else {
        let event = if extreme == Extreme::Lowest { "zpopmin" } else { "zpopmax" };
        call.announce(Class::SortedSet, event, key);
    }
    Ok(popped)
}

fn zmpop(call: &mut Call<'_>) -> Done {
    let request = PopRequest::parse(call, 1, ["min", "max"])?;
    let arguments = call.arguments;
    let extreme = if call.is(request.end, "min") { Extreme::Lowest } else { Extreme::Highest };
    let want = Want::Members(extreme, request.count);
    for key in request.keys.map(|index| arguments.at(index)) {
        if serve(call, &want, key)? {
            return Ok(());
        }
    }
    call.out.null_array(call.session.protocol);
    Ok(())
}

/// Carries out a call that pops from sorted sets (`want` says from which end and how many) on the sorted set
/// at `key`: pops and writes the reply. False, with nothing done, if there is no such sorted set or `want` is
/// not about sorted sets. An error if the key holds another type, or the reply or the effort does not
/// suffice.
pub(super) fn serve(call: &mut Call<'_>, want: &Want, key: &[u8]) -> Result<bool, Refusal> {
    let (extreme, count) = match want {
        Want::Member(extreme) => (*extreme, 1),
        Want::Members(extreme, count) => (*extreme, *count),
        _ => return Ok(false),
    };
    if call.keyspace.read_uncounted_as::<Ranking>(key)?.is_none() {
        return Ok(false);
    }
    let is_single = matches!(want, Want::Member(_));
    call.out.array(if is_single { 3 } else { 2 });
    call.out.bulk(key);
    let popped = popped(call, key, extreme, count)?;
    if !is_single {
        call.out.array(popped.len());
    }
    // Pairs are nested in both protocol versions.
    for Scored { member, score } in &popped {
        if !is_single {
            call.out.array(2);
        }
        call.out.bulk(member.as_bytes());
        call.out.score(call.session.protocol, *score);
    }
    Ok(true)
}

/// Replies with `count` members and their scores: nested pairs in RESP3, a flat array in RESP2.
fn write_scored<'a>(call: &mut Call<'_>, scored: impl Iterator<Item = &'a Scored>, count: usize) {
    scored_header(&mut call.out, call.session.protocol, count);
    scored.for_each(|scored| write_pair(&mut call.out, call.session.protocol, scored));
}

pub(super) fn scored_header(out: &mut Reply<'_>, protocol: Protocol, count: usize) {
    out.array(if protocol == Protocol::Resp3 { count } else { count * 2 });
}

pub(super) fn write_pair(out: &mut Reply<'_>, protocol: Protocol, scored: &Scored) {
    if protocol == Protocol::Resp3 {
        out.array(2);
    }
    out.bulk(scored.member.as_bytes());
    out.score(protocol, scored.score);
}

fn zrandmember(call: &mut Call<'_>) -> Done {
    let mut random = call.keyspace.random.fork();
    let key = call.arguments.at(1);
    if call.count() == 2 {
        let scored = call.keyspace.read_as::<Ranking>(key)?.map_or(&[][..], Ranking::unordered);
        match scored {
            [] => call.out.null(call.session.protocol),
            scored => call.out.bulk(scored[random.index(scored.len())].member.as_bytes()),
        }
        return Ok(());
    }
    let count = call.integer_at(2)?;
    let with_scores = call.count() == 4 && call.is(3, "withscores");
    if call.count() > 3 && !with_scores {
        return Err(Refusal::Syntax);
    }
    let (out, protocol) = (&mut call.out, call.session.protocol);
    let scored = call.keyspace.read_as::<Ranking>(key)?.map_or(&[][..], Ranking::unordered);
    let picks = scan::picks(&mut random, count, scored.len(), call.effort)?;
    if with_scores {
        call.effort.spend(picks.len(), FIND)?;
        scored_header(out, protocol, picks.len());
        for pick in picks {
            write_pair(out, protocol, &scored[pick]);
        }
    } else {
        out.array(picks.len());
        for pick in picks {
            out.bulk(scored[pick].member.as_bytes());
        }
    }
    Ok(())
}

fn zscan(call: &mut Call<'_>) -> Done {
    scan::check_cursor(call.at(2))?;
    if call.keyspace.read_as::<Ranking>(call.at(1))?.is_none() {
        return scan::nothing(&mut call.out);
    }
    let mut page = Page::new(ScanOptions::parse(call, 2, Scanned::Elements)?, call.effort);
    let (cursor, count) = (page.options().table_cursor(), page.options().count);
    let ranking = call.keyspace.peek_as::<Ranking>(call.arguments.at(1))?;
    let next = ranking.zip(cursor).and_then(|(ranking, cursor)| {
        ranking.walk(cursor, count, |scored| {
            page.meet(scored.key(), 2, || {
                call.out.bulk(scored.key());
                write_listed_score(&mut call.out, ranking, scored.score);
            });
        })
    });
    page.finish(&mut call.out, next.map(u64::from))
}

/// Writes the score of a member in the reply of ZSCAN, which is a string in both RESP versions. As in Redis,
/// a whole score of a small sorted set has all its digits, where another one may have an exponent (`1e+17`).
#[expect(clippy::float_cmp, reason = "a whole number equals its own whole part")]
fn write_listed_score(out: &mut Reply<'_>, ranking: &Ranking, score: f64) {
    const INTEGER_MAX: f64 = (1_u64 << 62) as f64;
    if ranking.is_small() && score.abs() < INTEGER_MAX && score.trunc() == score {
        out.bulk(numbers::Digits::new(score as i64).as_bytes());
    } else {
        out.score(Protocol::Resp2, score);
    }
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn scores_are_added_under_conditions() {
        Bench::new().talk(&[
            ("ZADD z 1 a 2 b", ":2|"),
            ("ZADD z NX 9 a 3 c", ":1|"),
            ("ZADD z XX CH 5 a 9 nobody", ":1|"),
            ("ZADD z GT CH 4 a 6 b", ":1|"),
            ("ZADD z LT INCR 1 b", "$-1|"),
            ("ZADD z INCR 1.5 b", "$3|7.5|"),
            ("ZADD z NX XX 1 a", "-ERR XX and NX options at the same time are not compatible|"),
            ("ZADD z 1", "-ERR wrong number of arguments for 'zadd' command|"),
            ("ZADD z x a", "-ERR value is not a valid float|"),
            ("ZADD z inf i", ":1|"),
            ("ZINCRBY z -inf i", "-ERR resulting score is not a number (NaN)|"),
            ("ZMSCORE z a b c i no", "*5|$1|5|$3|7.5|$1|3|$3|inf|$-1|"),
            ("ZRANK z a", ":1|"),
            ("ZREVRANK z a", ":2|"),
            ("ZPOPMIN z", "*2|$1|c|$1|3|"),
            ("ZPOPMAX z 5", "*6|$1|i|$3|inf|$1|b|$3|7.5|$1|a|$1|5|"),
            ("EXISTS z", ":0|"),
            ("ZADD z XX 1 a", ":0|"),
            ("EXISTS z", ":0|"),
        ]);
    }

    #[test]
    fn resp3_has_doubles_and_pairs() {
        let mut bench = Bench::new();
        assert!(bench.send("HELLO 3").starts_with("%7|"));
        bench.talk(&[
            ("ZADD z 1.5 a 2 b", ":2|"),
            ("ZSCORE z a", ",1.5|"),
            ("ZSCORE z x", "_|"),
            ("ZPOPMIN z 1", "*1|*2|$1|a|,1.5|"),
            ("ZPOPMIN z", "*2|$1|b|,2|"),
        ]);
    }

    #[test]
    fn the_first_sorted_set_that_exists_is_popped_from() {
        Bench::new().talk(&[
            ("ZADD b 1 x 2 y 3 z", ":3|"),
            ("ZMPOP 2 a b MIN", "*2|$1|b|*1|*2|$1|x|$1|1|"),
            ("ZRANK b z WITHSCORE", "*2|:1|$1|3|"),
            ("ZREVRANK b x WITHSCORE", "*-1|"),
            ("ZRANK b z SCORE", "-ERR syntax error|"),
            ("ZMPOP 2 a b MAX COUNT 5", "*2|$1|b|*2|*2|$1|z|$1|3|*2|$1|y|$1|2|"),
            ("ZMPOP 1 b MIN", "*-1|"),
            ("ZMPOP 1 b LEFT", "-ERR syntax error|"),
        ]);
    }
}
