//! Commands for unions, intersections and differences of sorted sets; members of plain sets have a score of
//! 1.

use std::ops::Range;

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{Effort, FIND, LOOK, RANK};
use super::members::Members;
use super::numbers;
use super::ranking::Ranking;
use super::refusal::Refusal;
use super::reply::bulk_bytes;
use super::sorted_ranges::store_at;
use super::sorted_sets::{scored_header, write_pair};
use super::value::{Collection, Value};

pub(super) const COMMANDS: &[Command] = &[
    command("zunion", -3, Effect::Read, zunion),
    command("zinter", -3, Effect::Read, zinter),
    command("zdiff", -3, Effect::Read, zdiff),
    command("zintercard", -3, Effect::Read, zintercard),
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

/// The operation by which several scores of a member become one: sum, minimum or maximum.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Least,
    Greatest,
}

impl Aggregate {
    fn of(self, left: f64, right: f64) -> f64 {
        match self {
            // Opposite infinities make 0, and so does NaN, as in Redis.
            Self::Sum => Some(left + right).filter(|sum| !sum.is_nan()).unwrap_or(0.0),
            Self::Least if right < left => right,
            Self::Greatest if right > left => right,
            Self::Least | Self::Greatest => left,
        }
    }
}

/// A key that a union, intersection or difference combines, by its value: none, a set or a sorted set.
#[derive(Clone, Copy)]
enum Source<'a> {
    Missing,
    Set(&'a Members),
    Sorted(&'a Ranking),
}

impl<'a> Source<'a> {
    fn of(value: Option<&'a Value>) -> Result<Self, Refusal> {
        match value {
            None => Ok(Self::Missing),
            Some(Value::Set(members)) => Ok(Self::Set(members)),
            Some(value) => Ranking::within(value).map(Self::Sorted).ok_or(Refusal::WrongType),
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

    fn try_each(self, mut visit: impl FnMut(&[u8], f64) -> Done) -> Done {
        match self {
            Self::Missing => Ok(()),
            Self::Set(members) => members.try_each(|member| visit(member, 1.0)),
            Self::Sorted(ranking) => ranking
                .range(0, ranking.len())
                .try_for_each(|scored| visit(scored.member.as_bytes(), scored.score)),
        }
    }
}

/// The parsed arguments of a union, intersection or difference: the keys' values with their weights, how
/// scores are combined, and whether the reply has scores.
struct Request<'a> {
    sources: Vec<(Source<'a>, f64)>,
    aggregate: Aggregate,
    with_scores: bool,
    /// The number of shared members at which ZINTERCARD stops counting; 0 for no limit.
    limit: usize,
}

/// The use of the result of a union, intersection or difference (replied, stored or counted), which decides
/// where the number of keys stands in the arguments, and which options may follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Shown,
    Stored,
    Counted,
}

/// Returns the positions of the arguments that name the sources of a union, intersection or difference.
/// Counts a hit or a miss for each of these keys, and updates the times of last access; an error if a value
/// is of another type.
fn read_sources(call: &mut Call<'_>, place: Place) -> Result<Range<usize>, Refusal> {
    let first = if place == Place::Stored { 3 } else { 2 };
    let keys = call.integer_at(first - 1)?;
    if keys < 1 {
        let name = String::from_utf8_lossy(call.at(0)).to_ascii_lowercase();
        return Err(Refusal::Quoting(format!("ERR at least 1 input key is needed for '{name}' command")));
    }
    let end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(first));
    let end = end.filter(|end| *end <= call.count()).ok_or(Refusal::Syntax)?;
    for index in first..end {
        Source::of(call.keyspace.read(call.at(index)))?;
    }
    Ok(first..end)
}

impl<'a> Request<'a> {
    /// Parses the request whose sources are the arguments at positions `keys`. An error if a source is
    /// neither a set nor a sorted set, or if an option is wrong.
    fn parse(
        call: &'a Call<'_>,
        keys: Range<usize>,
        place: Place,
        combination: Combination,
    ) -> Result<Self, Refusal> {
        let end = keys.end;
        let value = |index| call.keyspace.peek(call.at(index)).map(|entry| &entry.value);
        let sources = keys.map(|index| Ok((Source::of(value(index))?, 1.0)));
        let mut request = Self {
            sources: sources.collect::<Result<_, _>>()?,
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: 0,
        };
        let mut index = end;
        while index < call.count() {
            let left = call.count() - index - 1;
            let weighs = combination != Combination::Difference && place != Place::Counted;
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
            } else if place == Place::Counted && call.is(index, "limit") && left >= 1 {
                index += 1;
                request.limit = numbers::integer(call.at(index))
                    .and_then(|limit| usize::try_from(limit).ok())
                    .ok_or(Refusal::Words("ERR LIMIT can't be negative"))?;
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        Ok(request)
    }

    fn combine(mut self, result: &mut Growing<'_>, combination: Combination) -> Done {
        if combination != Combination::Difference {
            self.sources.sort_by_key(|(source, _)| source.len());
        }
        match combination {
            Combination::Union => self.unite(result),
            Combination::Intersection => self.intersect(result),
            Combination::Difference => self.subtract(result),
        }
    }

    fn unite(&self, result: &mut Growing<'_>) -> Done {
        self.sources.iter().try_for_each(|(source, weight)| {
            source.try_each(|member, score| {
                let score = weighed(*weight, score);
                let old = result.ranking.score(member);
                result.set(member, old.map_or(score, |old| self.aggregate.of(old, score)))
            })
        })
    }

    fn intersect(&self, result: &mut Growing<'_>) -> Done {
        let (first, others) = self.sources.split_first().expect("at least one key was asked for");
        first.0.try_each(|member, score| {
            let mut sum = weighed(first.1, score);
            result.effort.spend(1, LOOK)?;
            for (other, weight) in others {
                result.effort.spend(1, FIND)?;
                let Some(score) = other.score(member) else { return Ok(()) };
                // As in Redis, only the first score counts as 0 where its weight makes it NaN: the sum with a
                // later one is 0, and a later one is neither less nor greater.
                sum = self.aggregate.of(sum, weight * score);
            }
            result.set(member, sum)
        })
    }

    /// Returns the number of members that all sources (the sets and sorted sets that the request names) have,
    /// but not more than the request's limit, if it has one. An error if that takes too much effort.
    fn count_shared(mut self, effort: &Effort) -> Result<usize, Refusal> {
        self.sources.sort_by_key(|(source, _)| source.len());
        let (first, others) = self.sources.split_first().expect("at least one key was asked for");
        let mut found = 0;
        let counted = first.0.try_each(|member, _| {
            effort.spend(1, LOOK)?;
            for (other, _) in others {
                effort.spend(1, FIND)?;
                if other.score(member).is_none() {
                    return Ok(());
                }
            }
            found += 1;
            // This error is not a refusal; it ends the walk early.
            if found == self.limit { Err(Refusal::OutOfRange) } else { Ok(()) }
        });
        match counted {
            Err(refusal) if refusal != Refusal::OutOfRange => Err(refusal),
            _ => Ok(found),
        }
    }

    fn subtract(&self, result: &mut Growing<'_>) -> Done {
        let (first, others) = self.sources.split_first().expect("at least one key was asked for");
        first.0.try_each(|member, score| {
            result.effort.spend(1, LOOK)?;
            for (other, _) in others {
                result.effort.spend(1, FIND)?;
                if other.score(member).is_some() {
                    return Ok(());
                }
            }
            result.set(member, score)
        })
    }
}

/// The sorted set that a union, intersection or difference results in. It is not in the keyspace yet, so its
/// size is limited here while it grows.
struct Growing<'a> {
    ranking: Ranking,
    effort: &'a Effort,
    /// The number of bytes that the result's members take in a reply.
    bytes: usize,
    fits: &'a dyn Fn(&Ranking, usize) -> Done,
}

impl Growing<'_> {
    fn set(&mut self, member: &[u8], score: f64) -> Done {
        self.effort.spend(1, RANK)?;
        self.effort.spend_bytes(member.len())?;
        let before = self.ranking.len();
        self.ranking.set(member, score);
        if self.ranking.len() > before {
            self.bytes += bulk_bytes(member.len());
            (self.fits)(&self.ranking, self.bytes)?;
        }
        Ok(())
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

fn zintercard(call: &mut Call<'_>) -> Done {
    let keys = read_sources(call, Place::Counted)?;
    let request = Request::parse(call, keys, Place::Counted, Combination::Intersection)?;
    let count = request.count_shared(call.effort)?;
    call.number(count)
}

fn show(call: &mut Call<'_>, combination: Combination) -> Done {
    let keys = read_sources(call, Place::Shown)?;
    let request = Request::parse(call, keys, Place::Shown, combination)?;
    let with_scores = request.with_scores;
    let fits = |_: &Ranking, bytes| call.out.expect(bytes);
    // Redis collects a result in the large form, and shows minus zero from there.
    let ranking = Ranking::large(call.keyspace.hasher());
    let ranking = grown(call, ranking, request, combination, &fits)?;
    let (out, protocol) = (&mut call.out, call.session.protocol);
    if with_scores {
        scored_header(out, protocol, ranking.len());
        ranking.range(0, ranking.len()).for_each(|scored| write_pair(out, protocol, scored));
    } else {
        out.array(ranking.len());
        ranking.range(0, ranking.len()).for_each(|scored| out.bulk(scored.member.as_bytes()));
    }
    Ok(())
}

/// Returns the sorted set `ranking`, which is empty at first, with the result of a union, intersection or difference.
/// `fits` refuses a result that is too large.
fn grown(
    call: &Call<'_>,
    ranking: Ranking,
    request: Request<'_>,
    combination: Combination,
    fits: &dyn Fn(&Ranking, usize) -> Done,
) -> Result<Ranking, Refusal> {
    let mut result = Growing { ranking, effort: call.effort, bytes: 0, fits };
    request.combine(&mut result, combination)?;
    Ok(result.ranking)
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
    let keys = read_sources(call, Place::Stored)?;
    let request = Request::parse(call, keys, Place::Stored, combination)?;
    let fits = |ranking: &Ranking, _| call.afford(ranking.bytes());
    let ranking = Ranking::new(call.keyspace.hasher());
    let ranking = grown(call, ranking, request, combination, &fits)?;
    let event = match combination {
        Combination::Union => "zunionstore",
        Combination::Intersection => "zinterstore",
        Combination::Difference => "zdiffstore",
    };
    store_at(call, call.at(1), ranking, event)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn infinite_scores_times_zero_count_as_in_redis() {
        let mut bench = Bench::new();
        bench.talk(&[("ZADD a 5 x", ":1|"), ("ZADD b inf x", ":1|")]);
        for (command, score) in [
            ("ZUNIONSTORE u 2 a b WEIGHTS 1 0", "$1|5|"),
            ("ZINTERSTORE u 2 a b WEIGHTS 1 0", "$1|0|"),
            ("ZINTERSTORE u 2 b a WEIGHTS 0 1", "$1|5|"),
            ("ZINTERSTORE u 2 a b WEIGHTS 1 0 AGGREGATE MIN", "$1|5|"),
            ("ZUNIONSTORE u 2 a b WEIGHTS 1 0 AGGREGATE MIN", "$1|0|"),
        ] {
            bench.talk(&[(command, ":1|"), ("ZSCORE u x", score)]);
        }
    }

    #[test]
    fn minus_zero_is_shown_but_not_stored() {
        Bench::new().talk(&[
            ("ZADD z 0 a 1 b", ":2|"),
            ("ZUNION 1 z WEIGHTS -1 WITHSCORES", "*4|$1|b|$2|-1|$1|a|$2|-0|"),
            ("ZINTER 1 z WEIGHTS -1 WITHSCORES", "*4|$1|b|$2|-1|$1|a|$2|-0|"),
            ("ZUNIONSTORE u 1 z WEIGHTS -1", ":2|"),
            ("ZSCORE u a", "$1|0|"),
        ]);
    }

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
            ("ZINTERCARD 2 a b", ":1|"),
            ("ZINTERCARD 2 u b LIMIT 1", ":1|"),
            ("ZINTERCARD 1 b LIMIT 0", ":2|"),
            ("ZINTERCARD 1 b LIMIT -1", "-ERR LIMIT can't be negative|"),
            ("ZINTERCARD 1 b WITHSCORES", "-ERR syntax error|"),
            ("ZINTERSTORE u 2 a nothing", ":0|"),
            ("EXISTS u", ":0|"),
            ("ZUNIONSTORE u 0 a", "-ERR at least 1 input key is needed for 'zunionstore' command|"),
        ]);
    }
}
