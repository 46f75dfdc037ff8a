//! Commands for ranges of sorted sets: by rank, by score, by bytes. Each is turned into a range of ranks
//! first.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, LOOK, RANK};
use super::events::Class;
use super::keyspace::Lifetime;
use super::lists::positions;
use super::numbers;
use super::ranking::{Ranking, Scored};
use super::refusal::Refusal;
use super::sorted_sets::{scored_header, write_pair};
use super::value::Value;

pub(super) const COMMANDS: &[Command] = &[
    command("zrange", -4, Effect::Read, zrange),
    command("zrangestore", -5, Effect::Grow, zrangestore),
    command("zrevrange", -4, Effect::Read, zrevrange),
    command("zrangebyscore", -4, Effect::Read, zrangebyscore),
    command("zrevrangebyscore", -4, Effect::Read, zrevrangebyscore),
    command("zrangebylex", -4, Effect::Read, zrangebylex),
    command("zrevrangebylex", -4, Effect::Read, zrevrangebylex),
    command("zcount", 4, Effect::Read, zcount),
    command("zlexcount", 4, Effect::Read, zlexcount),
    command("zremrangebyrank", 4, Effect::Write, zremrangebyrank),
    command("zremrangebyscore", 4, Effect::Write, zremrangebyscore),
    command("zremrangebylex", 4, Effect::Write, zremrangebylex),
];

/// The kind of a range's bounds: ranks, scores, or members' bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Ascending,
    Descending,
}

/// One end of a range of scores.
#[derive(Clone, Copy)]
struct ScoreBound {
    score: f64,
    exclusive: bool,
}

/// One end of a range of a sorted set's members by their bytes.
#[derive(Clone, Copy)]
enum LexBound<'a> {
    Lowest,
    Highest,
    Including(&'a [u8]),
    Excluding(&'a [u8]),
}

/// The range of a sorted set that a command asks for, by ranks, scores or bytes, with its bounds parsed.
#[derive(Clone, Copy)]
enum Span<'a> {
    Ranks(i64, i64, Direction),
    Scores(ScoreBound, ScoreBound),
    Lex(LexBound<'a>, LexBound<'a>),
}

impl<'a> Span<'a> {
    /// Parses the bounds of a range at argument `index` and the next, which are of the kind `by`; a
    /// descending range names the higher bound first. Of ranks, a descending range counts from the highest
    /// score. An error if one of them is no bound of this kind.
    fn parse(call: &Call<'a>, index: usize, by: By, direction: Direction) -> Result<Self, Refusal> {
        let (first, second) = (call.at(index), call.at(index + 1));
        let (low, high) = if direction == Direction::Ascending { (first, second) } else { (second, first) };
        Ok(match by {
            By::Rank => Self::Ranks(call.integer_at(index)?, call.integer_at(index + 1)?, direction),
            By::Score => Self::Scores(score_bound(low)?, score_bound(high)?),
            By::Lex => Self::Lex(lex_bound(low)?, lex_bound(high)?),
        })
    }

    /// Returns the range as ranks of the sorted set in ascending order: the first, and one after the last.
    fn ranks(self, ranking: &Ranking) -> (usize, usize) {
        let (start, end) = match self {
            Self::Ranks(start, stop, direction) => {
                let (start, end) = positions(start, stop, ranking.len());
                match direction {
                    Direction::Ascending => (start, end),
                    Direction::Descending => (ranking.len() - end, ranking.len() - start),
                }
            }
            Self::Scores(low, high) => (
                ranking.count_while(|scored| low.is_above(scored.score)),
                ranking.count_while(|scored| !high.is_below(scored.score)),
            ),
            Self::Lex(low, high) => (
                ranking.count_while(|scored| low.is_above(scored.member.as_bytes())),
                ranking.count_while(|scored| !high.is_below(scored.member.as_bytes())),
            ),
        };
        (start, end.max(start))
    }
}

impl ScoreBound {
    fn is_above(self, score: f64) -> bool {
        score < self.score || self.exclusive && score <= self.score
    }

    fn is_below(self, score: f64) -> bool {
        score > self.score || self.exclusive && score >= self.score
    }
}

impl LexBound<'_> {
    fn is_above(self, member: &[u8]) -> bool {
        match self {
            Self::Lowest => false,
            Self::Highest => true,
            Self::Including(bytes) => member < bytes,
            Self::Excluding(bytes) => member <= bytes,
        }
    }

    fn is_below(self, member: &[u8]) -> bool {
        match self {
            Self::Lowest => true,
            Self::Highest => false,
            Self::Including(bytes) => member > bytes,
            Self::Excluding(bytes) => member >= bytes,
        }
    }
}

fn score_bound(text: &[u8]) -> Result<ScoreBound, Refusal> {
    let (text, exclusive) = match text {
        [b'(', text @ ..] => (text, true),
        text => (text, false),
    };
    // Unlike a member's score, a bound may be empty, and larger than any number.
    let number = numbers::lenient(text).ok_or(Refusal::Words("ERR min or max is not a float"))?;
    Ok(ScoreBound { score: number.value, exclusive })
}

fn lex_bound(text: &[u8]) -> Result<LexBound<'_>, Refusal> {
    match text {
        b"-" => Ok(LexBound::Lowest),
        b"+" => Ok(LexBound::Highest),
        [b'[', bytes @ ..] => Ok(LexBound::Including(bytes)),
        [b'(', bytes @ ..] => Ok(LexBound::Excluding(bytes)),
        _ => Err(Refusal::Words("ERR min or max not valid string range item")),
    }
}

/// The content of the reply to a range request: members alone, or members with their scores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Members,
    Scores,
}

/// A parsed request for a range of a sorted set: the range, its direction, and the offset and limit (LIMIT)
/// that apply within it.
struct Query<'a> {
    span: Span<'a>,
    direction: Direction,
    shown: Shown,
    offset: i64,
    /// Maximum number of members of the range that are returned; negative for no limit.
    limit: i64,
}

/// The part of a range request that the command's name determines. `by` and `direction` are `None` where the
/// arguments may choose, `scores_allowed` where WITHSCORES is refused.
struct Preset {
    /// The position of the argument at which the two bounds of the range begin.
    index: usize,
    by: Option<By>,
    direction: Option<Direction>,
    scores_allowed: Option<Shown>,
}

impl<'a> Query<'a> {
    fn parse(call: &Call<'a>, preset: &Preset) -> Result<Self, Refusal> {
        let (mut by, mut direction) = (preset.by, preset.direction);
        let (mut shown, mut offset, mut limit) = (Shown::Members, 0, -1);
        let mut index = preset.index + 2;
        while index < call.count() {
            if call.is(index, "withscores") && preset.scores_allowed.is_some() {
                shown = Shown::Scores;
            } else if call.is(index, "limit") && index + 2 < call.count() {
                (offset, limit) = (call.integer_at(index + 1)?, call.integer_at(index + 2)?);
                index += 2;
            } else if call.is(index, "rev") && direction.is_none() {
                direction = Some(Direction::Descending);
            } else if call.is(index, "bylex") && by.is_none() {
                by = Some(By::Lex);
            } else if call.is(index, "byscore") && by.is_none() {
                by = Some(By::Score);
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        let (by, direction) = (by.unwrap_or(By::Rank), direction.unwrap_or(Direction::Ascending));
        if limit != -1 && by == By::Rank {
            return Err(Refusal::Words(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if shown == Shown::Scores && by == By::Lex {
            return Err(Refusal::Words(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        Ok(Self { span: Span::parse(call, preset.index, by, direction)?, direction, shown, offset, limit })
    }

    /// Returns the ranks (in ascending order) of the members that are left of the range after offset and
    /// limit: the first, and one after the last.
    fn ranks(&self, ranking: &Ranking) -> (usize, usize) {
        let (start, end) = self.span.ranks(ranking);
        if matches!(self.span, Span::Ranks(..)) {
            return (start, end);
        }
        // A negative offset skips everything, as in Redis.
        let skipped = usize::try_from(self.offset).unwrap_or(usize::MAX).min(end - start);
        let kept = usize::try_from(self.limit).unwrap_or(usize::MAX).min(end - start - skipped);
        match self.direction {
            Direction::Ascending => (start + skipped, start + skipped + kept),
            Direction::Descending => (end - skipped - kept, end - skipped),
        }
    }
}

fn zrange(call: &mut Call<'_>) -> Done {
    show(call, None, None)
}

fn zrevrange(call: &mut Call<'_>) -> Done {
    show(call, Some(By::Rank), Some(Direction::Descending))
}

fn zrangebyscore(call: &mut Call<'_>) -> Done {
    show(call, Some(By::Score), Some(Direction::Ascending))
}

fn zrevrangebyscore(call: &mut Call<'_>) -> Done {
    show(call, Some(By::Score), Some(Direction::Descending))
}

fn zrangebylex(call: &mut Call<'_>) -> Done {
    show(call, Some(By::Lex), Some(Direction::Ascending))
}

fn zrevrangebylex(call: &mut Call<'_>) -> Done {
    show(call, Some(By::Lex), Some(Direction::Descending))
}

fn show(call: &mut Call<'_>, by: Option<By>, direction: Option<Direction>) -> Done {
    let preset = Preset { index: 2, by, direction, scores_allowed: Some(Shown::Scores) };
    let query = Query::parse(call, &preset)?;
    let Some(ranking) = call.keyspace.read_as::<Ranking>(call.arguments.at(1))? else {
        return call.empty_array();
    };
    let (out, protocol) = (&mut call.out, call.session.protocol);
    let (start, end) = query.ranks(ranking);
    call.effort.spend(end - start, if query.shown == Shown::Scores { FIND } else { LOOK })?;
    let write: &mut dyn FnMut(&Scored) = match query.shown {
        Shown::Members => {
            out.array(end - start);
            &mut |scored| out.bulk(scored.member.as_bytes())
        }
        Shown::Scores => {
            scored_header(out, protocol, end - start);
            &mut |scored| write_pair(out, protocol, scored)
        }
    };
    match query.direction {
        Direction::Ascending => ranking.range(start, end).for_each(write),
        Direction::Descending => ranking.range(start, end).rev().for_each(write),
    }
    Ok(())
}

fn zrangestore(call: &mut Call<'_>) -> Done {
    let preset = Preset { index: 3, by: None, direction: None, scores_allowed: None };
    let query = Query::parse(call, &preset)?;
    let mut stored = Ranking::new(call.keyspace.hasher());
    let memory_left = call.memory_left();
    if let Some(ranking) = call.keyspace.read_as::<Ranking>(call.arguments.at(2))? {
        let (start, end) = query.ranks(ranking);
        call.effort.spend(end - start, RANK)?;
        for scored in ranking.range(start, end) {
            call.effort.spend_bytes(scored.member.as_bytes().len())?;
            stored.set(scored.member.as_bytes(), scored.score);
            if stored.bytes() as u64 > memory_left {
                return Err(Refusal::OutOfMemory);
            }
        }
    }
    store_at(call, call.at(1), stored, "zrangestore")
}

/// Replaces the key `target` by a sorted set, queues the keyspace event `event` (such as `zunionstore`) for
/// it, and replies with the number of members. An empty set leaves no key. An error if the memory that is
/// left does not suffice.
pub(super) fn store_at(call: &mut Call<'_>, target: &[u8], ranking: Ranking, event: &'static str) -> Done {
    let count = ranking.len();
    if count == 0 {
        call.remove_key(target);
    } else {
        call.afford(ranking.bytes())?;
        call.keyspace.set(target, Value::SortedSet(Box::new(ranking)), Lifetime::Forever);
        call.announce(Class::SortedSet, event, target);
    }
    call.number(count)
}

fn zcount(call: &mut Call<'_>) -> Done {
    count(call, By::Score)
}

fn zlexcount(call: &mut Call<'_>) -> Done {
    count(call, By::Lex)
}

fn count(call: &mut Call<'_>, by: By) -> Done {
    let span = Span::parse(call, 2, by, Direction::Ascending)?;
    let counted = call.keyspace.read_as::<Ranking>(call.at(1))?.map_or(0, |ranking| {
        let (start, end) = span.ranks(ranking);
        end - start
    });
    call.number(counted)
}

fn zremrangebyrank(call: &mut Call<'_>) -> Done {
    remove(call, By::Rank)
}

fn zremrangebyscore(call: &mut Call<'_>) -> Done {
    remove(call, By::Score)
}

fn zremrangebylex(call: &mut Call<'_>) -> Done {
    remove(call, By::Lex)
}

fn remove(call: &mut Call<'_>, by: By) -> Done {
    let span = Span::parse(call, 2, by, Direction::Ascending)?;
    let effort = call.effort;
    let removed = call.keyspace.change(call.at(1), |ranking: &mut Ranking| {
        let (start, end) = span.ranks(ranking);
        effort.spend(end - start, RANK)?;
        Ok(ranking.remove_range(start, end).len())
    })?;
    let removed = removed.transpose()?.unwrap_or(0);
    if removed == 0 {
        call.keyspace.interest.withdraw();
    } else {
        let event = match by {
            By::Rank => "zremrangebyrank",
            By::Score => "zremrangebyscore",
            By::Lex => "zremrangebylex",
        };
        call.announce(Class::SortedSet, event, call.at(1));
    }
    call.number(removed)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
    use crate::values::Random;
    use std::collections::BTreeMap;

    /// Reference model: scores by member, sorted anew for every range.
    type Model = BTreeMap<String, i64>;

    fn ordered(model: &Model) -> Vec<(i64, String)> {
        let mut order: Vec<(i64, String)> =
            model.iter().map(|(member, score)| (*score, member.clone())).collect();
        order.sort();
        order
    }

    fn shown(members: impl ExactSizeIterator<Item = (i64, String)>) -> String {
        let head = format!("*{}|", members.len());
        members.fold(head, |reply, (_, member)| format!("{reply}${}|{member}|", member.len()))
    }

    /// Returns the members at the ranks from `start` to `stop`, as Redis documents them, computed index by
    /// index.
    fn by_rank(order: &[(i64, String)], start: i64, stop: i64) -> Vec<(i64, String)> {
        let length = order.len() as i64;
        let absolute = |index: i64| if index < 0 { index + length } else { index };
        (0..length)
            .filter(|index| absolute(start) <= *index && *index <= absolute(stop))
            .map(|index| order[index as usize].clone())
            .collect()
    }

    fn check_ranges(bench: &mut Bench, model: &Model, random: &mut Random) {
        let order = ordered(model);
        let (a, b) = (random.below(900) as i64 - 450, random.below(900) as i64 - 450);
        let ranks = by_rank(&order, a, b);
        assert_eq!(bench.send(&format!("ZRANGE z {a} {b}")), shown(ranks.into_iter()));
        let reversed: Vec<(i64, String)> = order.iter().rev().cloned().collect();
        let ranks = by_rank(&reversed, a, b);
        assert_eq!(bench.send(&format!("ZREVRANGE z {a} {b}")), shown(ranks.into_iter()));

        let (low, high) = (random.below(60) as i64 - 5, random.below(60) as i64 - 5);
        let scores: Vec<_> =
            order.iter().filter(|(score, _)| low < *score && *score <= high).cloned().collect();
        assert_eq!(bench.send(&format!("ZCOUNT z ({low} {high}")), format!(":{}|", scores.len()));
        let (skip, take) = (random.index(20), random.index(20));
        let some: Vec<_> = scores.into_iter().rev().skip(skip).take(take).collect();
        let line = format!("ZRANGE z {high} ({low} BYSCORE REV LIMIT {skip} {take}");
        assert_eq!(bench.send(&line), shown(some.into_iter()));
    }

    #[test]
    fn ranges_agree_with_sorting() {
        let mut random = Random::new(2024);
        let (mut bench, mut model) = (Bench::new(), Model::new());
        for step in 0..6_000 {
            let (member, score) = (format!("m{}", random.index(1_500)), random.below(50) as i64);
            // Growth first, then decline, so that pieces split and join.
            if random.index(10) < if step < 3_000 { 8 } else { 3 } {
                let added = i32::from(model.insert(member.clone(), score).is_none());
                assert_eq!(bench.send(&format!("ZADD z {score} {member}")), format!(":{added}|"));
            } else {
                let removed = i32::from(model.remove(&member).is_some());
                assert_eq!(bench.send(&format!("ZREM z {member}")), format!(":{removed}|"));
            }
            if step % 50 == 0 {
                check_ranges(&mut bench, &model, &mut random);
                let order = ordered(&model);
                let rank = order.iter().position(|(_, other)| *other == member);
                let expected = rank.map_or("$-1|".to_owned(), |rank| format!(":{rank}|"));
                assert_eq!(bench.send(&format!("ZRANK z {member}")), expected);
            }
        }
        assert_eq!(bench.send("ZREMRANGEBYRANK z 0 -1"), format!(":{}|", model.len()));
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }

    #[test]
    fn bytes_are_bounds_too() {
        Bench::new().talk(&[
            ("ZADD z 0 a 0 b 0 c 0 d", ":4|"),
            ("ZRANGEBYLEX z [b (d", "*2|$1|b|$1|c|"),
            ("ZRANGE z + (b BYLEX REV LIMIT 1 5", "*1|$1|c|"),
            ("ZLEXCOUNT z - +", ":4|"),
            ("ZLEXCOUNT z + -", ":0|"),
            ("ZRANGEBYLEX z b d", "-ERR min or max not valid string range item|"),
            ("ZRANGESTORE y z 1 2", ":2|"),
            ("ZREMRANGEBYLEX z [c +", ":2|"),
            ("ZRANGE z 0 -1 WITHSCORES", "*4|$1|a|$1|0|$1|b|$1|0|"),
            (
                "ZRANGE y 0 -1 LIMIT 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX|",
            ),
        ]);
    }
}
