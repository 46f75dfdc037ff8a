//! Unions, intersections and differences of sorted sets; plain sets count as scored 1.

use super::call::{Call, Done};
use super::commands::{Command, Effect, command};
use super::members::Members;
use super::numbers;
use super::ranking::Ranking;
use super::refusal::Refusal;
use super::sorted_ranges::store;
use super::sorted_sets::{scored_header, write_pair};
use super::value::{Collection, Value};
use crate::protocol::encode;

pub(super) const COMMANDS: &[Command] = &[
    command("zunion", -3, Effect::Read, zunion),
    command("zinter", -3, Effect::Read, zinter),
    command("zdiff", -3, Effect::Read, zdiff),
    command("zunionstore", -4, Effect::Grow, zunionstore),
    command("zinterstore", -4, Effect::Grow, zinterstore),
    command("zdiffstore", -4, Effect::Grow, zdiffstore),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combination {
    Union,
    Intersection,
    Difference,
}

/// How the scores of one member become one.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Least,
    Greatest,
}

impl Aggregate {
    fn of(self, left: f64, right: f64) -> f64 {
        match self {
            // Opposite infinities cancel out, as in Redis.
            Self::Sum => Some(left + right).filter(|sum| !sum.is_nan()).unwrap_or(0.0),
            Self::Least => left.min(right),
            Self::Greatest => left.max(right),
        }
    }
}

/// One of the keys that are combined.
#[derive(Clone, Copy)]
enum Source<'a> {
    Missing,
    Set(&'a Members),
    Sorted(&'a Ranking),
}

impl<'a> Source<'a> {
    fn at(call: &'a Call<'_>, key: &[u8]) -> Result<Self, Refusal> {
        let Some(entry) = call.keyspace.peek(key) else { return Ok(Self::Missing) };
        match &entry.value {
            Value::Set(members) => Ok(Self::Set(members)),
            value => Ranking::within(value).map(Self::Sorted).ok_or(Refusal::WrongType),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Missing => 0,
            Self::Set(members) => members.len(),
            Self::Sorted(ranking) => ranking.len(),
        }
    }

    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            Self::Missing => None,
            Self::Set(members) => members.contains(member).then_some(1.0),
            Self::Sorted(ranking) => ranking.score(member),
        }
    }

    fn for_each(self, mut visit: impl FnMut(&[u8], f64)) {
        match self {
            Self::Missing => {}
            Self::Set(members) => members.for_each(|member| visit(member, 1.0)),
            Self::Sorted(ranking) => {
                ranking
                    .range(0, ranking.len())
                    .for_each(|scored| visit(scored.member.as_bytes(), scored.score));
            }
        }
    }
}

/// What follows the command name, read.
struct Request<'a> {
    sources: Vec<(Source<'a>, f64)>,
    aggregate: Aggregate,
    with_scores: bool,
}

/// Where the number of keys stands, and with it whether the result is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Shown,
    Stored,
}

impl<'a> Request<'a> {
    fn parse(call: &'a Call<'_>, place: Place, combination: Combination) -> Result<Self, Refusal> {
        let first = if place == Place::Stored { 3 } else { 2 };
        let keys = call.integer_at(first - 1)?;
        if keys < 1 {
            let name = String::from_utf8_lossy(call.at(0)).to_ascii_lowercase();
            return Err(Refusal::Quoting(format!("ERR at least 1 input key is needed for '{name}' command")));
        }
        let end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(first));
        let end = end.filter(|end| *end <= call.count()).ok_or(Refusal::Syntax)?;
        let sources = (first..end).map(|index| Ok((Source::at(call, call.at(index))?, 1.0)));
        let mut request = Self {
            sources: sources.collect::<Result<_, _>>()?,
            aggregate: Aggregate::Sum,
            with_scores: false,
        };
        let mut index = end;
        while index < call.count() {
            let left = call.count() - index - 1;
            let weighs = combination != Combination::Difference;
            if weighs && call.is(index, "weights") && left >= request.sources.len() {
                for (_, weight) in &mut request.sources {
                    index += 1;
                    *weight = numbers::float(call.at(index))
                        .ok_or(Refusal::Words("ERR weight value is not a float"))?;
                }
            } else if weighs && call.is(index, "aggregate") && left >= 1 {
                index += 1;
                request.aggregate = aggregate_at(call, index)?;
            } else if place == Place::Shown && call.is(index, "withscores") {
                request.with_scores = true;
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        Ok(request)
    }

    fn combine(mut self, mut result: Ranking, combination: Combination) -> Ranking {
        if combination == Combination::Difference {
            let (first, others) = self.sources.split_first().expect("at least one key was asked for");
            first.0.for_each(|member, score| {
                if !others.iter().any(|(other, _)| other.score(member).is_some()) {
                    result.set(member, score);
                }
            });
            return result;
        }
        self.sources.sort_by_key(|(source, _)| source.len());
        if combination == Combination::Union {
            for (source, weight) in &self.sources {
                source.for_each(|member, score| {
                    let score = weighed(*weight, score);
                    let sum = result.score(member).map_or(score, |old| self.aggregate.of(old, score));
                    result.set(member, sum);
                });
            }
            return result;
        }
        let (first, others) = self.sources.split_first().expect("at least one key was asked for");
        first.0.for_each(|member, score| {
            let sum = others.iter().try_fold(weighed(first.1, score), |sum, (other, weight)| {
                Some(self.aggregate.of(sum, weighed(*weight, other.score(member)?)))
            });
            if let Some(sum) = sum {
                result.set(member, sum);
            }
        });
        result
    }
}

fn weighed(weight: f64, score: f64) -> f64 {
    Some(weight * score).filter(|product| !product.is_nan()).unwrap_or(0.0)
}

fn aggregate_at(call: &Call<'_>, index: usize) -> Result<Aggregate, Refusal> {
    [("sum", Aggregate::Sum), ("min", Aggregate::Least), ("max", Aggregate::Greatest)]
        .into_iter()
        .find_map(|(word, aggregate)| call.is(index, word).then_some(aggregate))
        .ok_or(Refusal::Syntax)
}

fn zunion(call: &mut Call<'_>) -> Done {
    show(call, Combination::Union)
}

fn zinter(call: &mut Call<'_>) -> Done {
    show(call, Combination::Intersection)
}

fn zdiff(call: &mut Call<'_>) -> Done {
    show(call, Combination::Difference)
}

fn show(call: &mut Call<'_>, combination: Combination) -> Done {
    let request = Request::parse(call, Place::Shown, combination)?;
    let with_scores = request.with_scores;
    let ranking = request.combine(Ranking::new(call.keyspace.hasher()), combination);
    let (out, protocol) = (&mut *call.out, call.session.protocol);
    if with_scores {
        scored_header(out, protocol, ranking.len());
        ranking.range(0, ranking.len()).for_each(|scored| write_pair(out, protocol, scored));
    } else {
        encode::array(out, ranking.len());
        ranking.range(0, ranking.len()).for_each(|scored| encode::bulk(out, scored.member.as_bytes()));
    }
    Ok(())
}

fn zunionstore(call: &mut Call<'_>) -> Done {
    store_combined(call, Combination::Union)
}

fn zinterstore(call: &mut Call<'_>) -> Done {
    store_combined(call, Combination::Intersection)
}

fn zdiffstore(call: &mut Call<'_>) -> Done {
    store_combined(call, Combination::Difference)
}

fn store_combined(call: &mut Call<'_>, combination: Combination) -> Done {
    let request = Request::parse(call, Place::Stored, combination)?;
    let ranking = request.combine(Ranking::new(call.keyspace.hasher()), combination);
    store(call, ranking)
}

#[cfg(test)]
mod tests {
    use crate::storage::engine::testing::Bench;

    #[test]
    fn scores_are_weighed_and_aggregated() {
        Bench::new().talk(&[
            ("ZADD a 1 x 2 y", ":2|"),
            ("ZADD b 10 y 20 z", ":2|"),
            ("SADD s y", ":1|"),
            ("ZUNIONSTORE u 2 a b WEIGHTS 2 1", ":3|"),
            ("ZRANGE u 0 -1 WITHSCORES", "*6|$1|x|$1|2|$1|y|$2|14|$1|z|$2|20|"),
            ("ZINTERSTORE u 3 a b s AGGREGATE MAX", ":1|"),
            ("ZRANGE u 0 -1 WITHSCORES", "*2|$1|y|$2|10|"),
            ("ZDIFF 2 a b", "*1|$1|x|"),
            ("ZINTERSTORE u 2 a nothing", ":0|"),
            ("EXISTS u", ":0|"),
            ("ZUNIONSTORE u 0 a", "-ERR at least 1 input key is needed for 'zunionstore' command|"),
        ]);
    }
}
