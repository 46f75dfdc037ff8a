//! Commands on geographic places: GEOADD, GEOSEARCH and so on, over sorted sets whose scores are geohashes
//! (`globe.rs`).

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, RANK};
use super::globe::{Area, Outline, Place};
use super::numbers;
use super::ranking::{Ranking, Scored};
use super::refusal::{Refusal, quoted};
use super::reply::Reply;
use super::sorted_ranges::store_at;
use super::sorted_sets::{AddOptions, add_pairs};
use super::text::Text;
use crate::protocol::Protocol;

pub(super) const COMMANDS: &[Command] = &[
    command("geoadd", -5, Effect::Grow, geoadd),
    command("geodist", -4, Effect::Read, geodist),
    command("geohash", -2, Effect::Read, geohash),
    command("geopos", -2, Effect::Read, geopos),
    command("geosearch", -7, Effect::Read, geosearch),
    command("geosearchstore", -8, Effect::Grow, geosearchstore),
    command("georadius", -6, Effect::Grow, georadius),
    command("georadius_ro", -6, Effect::Read, georadius_ro),
    command("georadiusbymember", -5, Effect::Grow, georadiusbymember),
    command("georadiusbymember_ro", -5, Effect::Read, georadiusbymember_ro),
];

fn geoadd(call: &mut Call<'_>) -> Done {
    let mut options = AddOptions::default();
    let mut index = 2;
    loop {
        let option = match () {
            () if call.is(index, "nx") => &mut options.only_new,
            () if call.is(index, "xx") => &mut options.only_known,
            () if call.is(index, "ch") => &mut options.counts_changes,
            () => break,
        };
        *option = true;
        index += 1;
    }
    let words = call.count() - index;
    if words == 0 || !words.is_multiple_of(3) || options.only_new && options.only_known {
        return Err(Refusal::Syntax);
    }
    let triples = (index..call.count()).step_by(3);
    let pairs = triples.map(|index| Ok((place_at(call, index)?.score(), call.at(index + 2))));
    let pairs = pairs.collect::<Result<Vec<_>, Refusal>>()?;
    add_pairs(call, options, &pairs)
}

/// Returns the place whose longitude and latitude, in degrees, are argument `index` and the next; an error if
/// they are no numbers or out of range.
fn place_at(call: &Call<'_>, index: usize) -> Result<Place, Refusal> {
    let number = |index| numbers::float(call.at(index)).ok_or(Refusal::NotAFloat);
    let place = Place { longitude: number(index)?, latitude: number(index + 1)? };
    if place.is_valid() {
        return Ok(place);
    }
    let Place { longitude, latitude } = place;
    Err(Refusal::Quoting(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}")))
}

/// Returns the length, in metres, of the unit that argument `index` names: m, km, ft or mi. An error for any
/// other word.
fn unit_at(call: &Call<'_>, index: usize) -> Result<f64, Refusal> {
    [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)]
        .into_iter()
        .find_map(|(word, meters)| call.is(index, word).then_some(meters))
        .ok_or(Refusal::Words("ERR unsupported unit provided. please use M, KM, FT, MI"))
}

fn geodist(call: &mut Call<'_>) -> Done {
    let meters = match call.count() {
        4 => 1.0,
        5 => unit_at(call, 4)?,
        _ => return Err(Refusal::Syntax),
    };
    let ranking = call.keyspace.read_as::<Ranking>(call.arguments.at(1))?;
    let place =
        |index| ranking.and_then(|ranking| ranking.score(call.arguments.at(index)).map(Place::of_score));
    match place(2).zip(place(3)) {
        Some((one, other)) => write_distance(&mut call.out, one.distance(other) / meters),
        None => call.out.null(call.session.protocol),
    }
    Ok(())
}

/// Writes a distance, in the unit of the reply, with four decimals, as a string in both RESP versions.
fn write_distance(out: &mut Reply<'_>, distance: f64) {
    out.bulk(format!("{distance:.4}").as_bytes());
}

fn geohash(call: &mut Call<'_>) -> Done {
    tell_places(call, |out, protocol, place| match place {
        Some(place) => out.bulk(&place.text()),
        None => out.null(protocol),
    })
}

fn geopos(call: &mut Call<'_>) -> Done {
    tell_places(call, |out, protocol, place| match place {
        Some(place) => write_place(out, protocol, place),
        None => out.null_array(protocol),
    })
}

fn tell_places(call: &mut Call<'_>, tell: fn(&mut Reply<'_>, Protocol, Option<Place>)) -> Done {
    let members = call.rest(2);
    let ranking = call.keyspace.read_as::<Ranking>(call.arguments.at(1))?;
    call.effort.spend(members.len(), FIND)?;
    call.out.array(members.len());
    for member in members {
        let place = ranking.and_then(|ranking| ranking.score(member)).map(Place::of_score);
        tell(&mut call.out, call.session.protocol, place);
    }
    Ok(())
}

fn write_place(out: &mut Reply<'_>, protocol: Protocol, place: Place) {
    out.array(2);
    for degrees in [place.longitude, place.latitude] {
        let text = format!("{degrees:.17}");
        out.decimal(protocol, text.trim_end_matches('0').trim_end_matches('.'));
    }
}

/// The kinds of geographic searches, by how their arguments begin: GEOSEARCH, GEOSEARCHSTORE, GEORADIUS and
/// GEORADIUSBYMEMBER.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Search,
    SearchStore,
    Radius,
    RadiusByMember,
}

/// The permission of a geographic search to store its result under a key that the option STORE or STOREDIST names. Only
/// GEORADIUS and GEORADIUSBYMEMBER have it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Storing {
    Allowed,
    Forbidden,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Nearest,
    Farthest,
}

/// The parsed arguments of a search for the members of a sorted set within an area (GEOSEARCH and the like).
#[derive(Default)]
struct Search<'a> {
    center: Option<Place>,
    /// True if the center of the search is to be a member of a key that does not exist, so that nothing is
    /// found.
    center_missing: bool,
    /// The option that gave the center of the search (`frommember` or `fromlonlat`); `None` until one is
    /// read. If that option is repeated, the center that it gives last counts; the other option is then a
    /// syntax error.
    center_from: Option<&'static str>,
    outline: Option<Outline>,
    /// The length, in metres, of the unit in which distances are replied.
    meters: f64,
    order: Option<Order>,
    count: Option<usize>,
    /// True if the geographic search may stop as soon as it has found as many members as COUNT says, instead
    /// of finding the nearest ones (ANY).
    any: bool,
    with_distance: bool,
    with_hash: bool,
    with_place: bool,
    target: Option<&'a [u8]>,
    stores_distances: bool,
}

/// A member of the sorted set that lies in the searched area.
struct Found {
    member: Text,
    score: f64,
    /// The distance of the member from the search's center, in metres.
    distance: f64,
}

fn geosearch(call: &mut Call<'_>) -> Done {
    search(call, Kind::Search, Storing::Forbidden)
}

fn geosearchstore(call: &mut Call<'_>) -> Done {
    search(call, Kind::SearchStore, Storing::Forbidden)
}

fn georadius(call: &mut Call<'_>) -> Done {
    search(call, Kind::Radius, Storing::Allowed)
}

fn georadius_ro(call: &mut Call<'_>) -> Done {
    search(call, Kind::Radius, Storing::Forbidden)
}

fn georadiusbymember(call: &mut Call<'_>) -> Done {
    search(call, Kind::RadiusByMember, Storing::Allowed)
}

fn georadiusbymember_ro(call: &mut Call<'_>) -> Done {
    search(call, Kind::RadiusByMember, Storing::Forbidden)
}

/// Returns the place of the member of `ranking` that argument `index` names, as the center of a search; an
/// error if the sorted set has no such member.
fn member_at(call: &Call<'_>, ranking: &Ranking, index: usize) -> Result<Place, Refusal> {
    let score = ranking.score(call.at(index));
    score.map(Place::of_score).ok_or(Refusal::Words("ERR could not decode requested zset member"))
}

fn length_at(call: &Call<'_>, index: usize, words: &'static str) -> Result<f64, Refusal> {
    numbers::float(call.at(index)).ok_or(Refusal::Words(words))
}

/// Returns a circle whose radius is argument `index`, in the unit that the next argument names, and the
/// length of that unit in metres. An error if they are wrong.
fn radius_at(call: &Call<'_>, index: usize) -> Result<(Outline, f64), Refusal> {
    let radius = length_at(call, index, "ERR need numeric radius")?;
    if radius < 0.0 {
        return Err(Refusal::Words("ERR radius cannot be negative"));
    }
    let meters = unit_at(call, index + 1)?;
    Ok((Outline::Circle { radius: radius * meters }, meters))
}

fn box_at(call: &Call<'_>, index: usize) -> Result<(Outline, f64), Refusal> {
    let width = length_at(call, index, "ERR need numeric width")?;
    let height = length_at(call, index + 1, "ERR need numeric height")?;
    if width < 0.0 || height < 0.0 {
        return Err(Refusal::Words("ERR height or width cannot be negative"));
    }
    let meters = unit_at(call, index + 2)?;
    Ok((Outline::Box { width: width * meters, height: height * meters }, meters))
}

impl<'a> Search<'a> {
    fn parse(
        call: &Call<'a>,
        kind: Kind,
        storing: Storing,
        ranking: Option<&Ranking>,
    ) -> Result<Self, Refusal> {
        let mut search = Self { meters: 1.0, ..Self::default() };
        let mut index = match kind {
            Kind::Search => 2,
            Kind::SearchStore => {
                search.target = Some(call.at(1));
                3
            }
            Kind::Radius => {
                search.center = Some(place_at(call, 2)?);
                search.set_outline(radius_at(call, 4)?);
                6
            }
            Kind::RadiusByMember => {
                search.center_missing = ranking.is_none();
                search.center = ranking.map(|ranking| member_at(call, ranking, 2)).transpose()?;
                // Redis does not look at the radius either in this case.
                if ranking.is_some() {
                    search.set_outline(radius_at(call, 3)?);
                }
                5
            }
        };
        while index < call.count() {
            index += search.option(call, kind, storing, ranking, index)?;
        }
        search.check(call, kind)?;
        Ok(search)
    }

    fn set_outline(&mut self, (outline, meters): (Outline, f64)) {
        (self.outline, self.meters) = (Some(outline), meters);
    }

    /// Parses the option of a geographic search at argument `index`, and returns how many arguments it takes.
    /// `kind` and `storing` say which options the command has, and `ranking` is the searched sorted set
    /// (`None` if its key does not exist), in which FROMMEMBER looks up the center. An error if the argument
    /// is no option of the command, or has a wrong value.
    fn option(
        &mut self,
        call: &Call<'a>,
        kind: Kind,
        storing: Storing,
        ranking: Option<&Ranking>,
        index: usize,
    ) -> Result<usize, Refusal> {
        let left = call.count() - index - 1;
        let searches = matches!(kind, Kind::Search | Kind::SearchStore);
        let is = |word| call.is(index, word);
        let words = match () {
            () if is("withdist") => {
                self.with_distance = true;
                1
            }
            () if is("withhash") => {
                self.with_hash = true;
                1
            }
            () if is("withcoord") => {
                self.with_place = true;
                1
            }
            () if is("any") => {
                self.any = true;
                1
            }
            () if is("asc") => {
                self.order = Some(Order::Nearest);
                1
            }
            () if is("desc") => {
                self.order = Some(Order::Farthest);
                1
            }
            () if is("count") && left >= 1 => {
                let count = usize::try_from(call.integer_at(index + 1)?).ok().filter(|count| *count > 0);
                self.count = Some(count.ok_or(Refusal::Words("ERR COUNT must be > 0"))?);
                2
            }
            () if storing == Storing::Allowed && (is("store") || is("storedist")) && left >= 1 => {
                self.target = Some(call.at(index + 1));
                self.stores_distances = is("storedist");
                2
            }
            () if kind == Kind::SearchStore && is("storedist") => {
                self.stores_distances = true;
                1
            }
            () if searches
                && is("frommember")
                && left >= 1
                && self.center_from.is_none_or(|from| from == "frommember") =>
            {
                self.center_from = Some("frommember");
                self.center_missing = ranking.is_none();
                self.center = ranking.map(|ranking| member_at(call, ranking, index + 1)).transpose()?;
                2
            }
            () if searches
                && is("fromlonlat")
                && left >= 2
                && self.center_from.is_none_or(|from| from == "fromlonlat") =>
            {
                self.center_from = Some("fromlonlat");
                self.center = Some(place_at(call, index + 1)?);
                3
            }
            () if searches
                && is("byradius")
                && left >= 2
                && matches!(self.outline, None | Some(Outline::Circle { .. })) =>
            {
                self.set_outline(radius_at(call, index + 1)?);
                3
            }
            () if searches
                && is("bybox")
                && left >= 3
                && matches!(self.outline, None | Some(Outline::Box { .. })) =>
            {
                self.set_outline(box_at(call, index + 1)?);
                4
            }
            () => return Err(Refusal::Syntax),
        };
        Ok(words)
    }

    fn check(&self, call: &Call<'_>, kind: Kind) -> Result<(), Refusal> {
        if self.target.is_some() && (self.with_distance || self.with_hash || self.with_place) {
            let name = match kind {
                Kind::SearchStore => "GEOSEARCHSTORE",
                _ => "STORE option in GEORADIUS",
            };
            return Err(Refusal::Quoting(format!(
                "ERR {name} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        if self.center.is_none() && !self.center_missing {
            return Err(Refusal::Quoting(format!(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {}",
                quoted(call.at(0))
            )));
        }
        if self.outline.is_none() && kind != Kind::RadiusByMember {
            return Err(Refusal::Quoting(format!(
                "ERR exactly one of BYRADIUS and BYBOX can be specified for {}",
                quoted(call.at(0))
            )));
        }
        if self.any && self.count.is_none() {
            return Err(Refusal::Words("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }

    /// Returns the members of the sorted set `ranking` that lie in the searched area, at most as many as
    /// COUNT says, in the order of the reply. An error if the search would take too much effort.
    fn run(&self, call: &Call<'_>, ranking: &Ranking) -> Result<Vec<Found>, Refusal> {
        let (Some(center), Some(outline)) = (self.center, self.outline) else { return Ok(Vec::new()) };
        let area = Area { center, outline };
        let enough = if self.any { self.count.unwrap_or(usize::MAX) } else { usize::MAX };
        let mut found = Vec::new();
        'ranges: for (first, end) in area.ranges() {
            let start = ranking.count_while(|scored| scored.score < first);
            let end = ranking.count_while(|scored| scored.score < end);
            for Scored { member, score } in ranking.range(start, end.max(start)) {
                call.effort.spend(1, RANK)?;
                if let Some(distance) = area.distance(Place::of_score(*score)) {
                    found.push(Found { member: member.clone(), score: *score, distance });
                }
                if found.len() >= enough {
                    break 'ranges;
                }
            }
        }
        // The nearest are meant by COUNT alone.
        let order = self.order.or((self.count.is_some() && !self.any).then_some(Order::Nearest));
        match order {
            None => {}
            Some(Order::Nearest) => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
            Some(Order::Farthest) => found.sort_by(|a, b| b.distance.total_cmp(&a.distance)),
        }
        found.truncate(self.count.unwrap_or(usize::MAX));
        Ok(found)
    }
}

fn search(call: &mut Call<'_>, kind: Kind, storing: Storing) -> Done {
    let source = call.at(if kind == Kind::SearchStore { 2 } else { 1 });
    call.keyspace.read_as::<Ranking>(source)?;
    let ranking = call.keyspace.peek_as::<Ranking>(source)?;
    let search = Search::parse(call, kind, storing, ranking)?;
    let found = ranking.map(|ranking| search.run(call, ranking)).transpose()?.unwrap_or_default();
    match search.target {
        None => show(call, &search, &found),
        Some(target) => keep(call, &search, &found, target),
    }
}

fn show(call: &mut Call<'_>, search: &Search<'_>, found: &[Found]) -> Done {
    let (out, protocol) = (&mut call.out, call.session.protocol);
    let options = [search.with_distance, search.with_hash, search.with_place];
    let options = options.into_iter().filter(|with| *with).count();
    out.array(found.len());
    for Found { member, score, distance } in found {
        if options > 0 {
            out.array(options + 1);
        }
        out.bulk(member.as_bytes());
        if search.with_distance {
            write_distance(out, distance / search.meters);
        }
        if search.with_hash {
            out.integer(*score as i64);
        }
        if search.with_place {
            write_place(out, protocol, Place::of_score(*score));
        }
    }
    Ok(())
}

/// Stores the members that a geographic search has found as a sorted set at `target`, with their geohashes as
/// scores, or with their distances if the search says so (STOREDIST). Replies with their number. An error if
/// they take more effort or memory than is left.
fn keep(call: &mut Call<'_>, search: &Search<'_>, found: &[Found], target: &[u8]) -> Done {
    call.effort.spend(found.len(), RANK)?;
    let mut stored = Ranking::new(call.keyspace.hasher());
    for Found { member, score, distance } in found {
        let score = if search.stores_distances { distance / search.meters } else { *score };
        stored.set(member.as_bytes(), score);
        call.afford(stored.bytes())?;
    }
    let event = if call.is(0, "geosearchstore") { "geosearchstore" } else { "georadiusstore" };
    store_at(call, target, stored, event)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    const ADD: (&str, &str) = ("GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", ":2|");

    #[test]
    fn places_are_told_as_redis_tells_them() {
        Bench::new().talk(&[
            ADD,
            ("GEOADD g NX CH 13 38 Palermo", ":0|"),
            ("ZSCORE g Palermo", "$16|3479099956230698|"),
            ("GEODIST g Palermo Catania", "$11|166274.1516|"),
            ("GEODIST g Palermo Catania mi", "$8|103.3182|"),
            ("GEODIST g Palermo nobody", "$-1|"),
            ("GEOHASH g Palermo nobody", "*2|$11|sqc8b49rny0|$-1|"),
            ("GEOPOS g Palermo nobody", "*2|*2|$20|13.36138933897018433|$20|38.11555639549629859|*-1|"),
            ("GEOADD g 200 38 x", "-ERR invalid longitude,latitude pair 200.000000,38.000000|"),
            ("GEOADD g 1 2 x 3", "-ERR syntax error|"),
            ("GEOSEARCH g FROMLONLAT 15 37 BYBOX 400 400 km BYBOX 1 1 km", "*0|"),
            (
                "GEOSEARCH g FROMLONLAT 0 0 FROMLONLAT 15 37 BYRADIUS 1 km BYRADIUS 200 km",
                "*2|$7|Palermo|$7|Catania|",
            ),
            ("GEOSEARCH g FROMMEMBER Palermo FROMMEMBER Catania BYRADIUS 1 km", "*1|$7|Catania|"),
            ("GEOSEARCH g FROMMEMBER Palermo FROMLONLAT 1 1 BYRADIUS 1 km", "-ERR syntax error|"),
            ("GEOSEARCH g FROMMEMBER Palermo BYBOX 1 1 km BYRADIUS 1 km", "-ERR syntax error|"),
            ("GEODIST g a b miles", "-ERR unsupported unit provided. please use M, KM, FT, MI|"),
        ]);
    }

    #[test]
    fn areas_are_searched() {
        Bench::new().talk(&[
            ADD,
            ("GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC", "*2|$7|Catania|$7|Palermo|"),
            (
                "GEOSEARCH g FROMLONLAT 15 37 BYBOX 400 400 km DESC COUNT 1 WITHDIST WITHHASH",
                "*1|*3|$7|Palermo|$8|190.4424|:3479099956230698|",
            ),
            ("GEOSEARCH g FROMMEMBER Palermo BYRADIUS 10 km", "*1|$7|Palermo|"),
            ("GEOSEARCH g FROMMEMBER x BYRADIUS 10 km", "-ERR could not decode requested zset member|"),
            ("GEOSEARCH nothing FROMMEMBER x BYRADIUS 10 km", "*0|"),
            (
                "GEOSEARCH g BYRADIUS 10 km ASC COUNT 1",
                "-ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GEOSEARCH|",
            ),
            (
                "GEOSEARCH g FROMLONLAT 1 1 ASC COUNT 1",
                "-ERR exactly one of BYRADIUS and BYBOX can be specified for GEOSEARCH|",
            ),
            ("GEOSEARCHSTORE d g FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST", ":2|"),
            ("ZRANGE d 0 0", "*1|$7|Catania|"),
            ("GEORADIUS g 15 37 100 km", "*1|$7|Catania|"),
            ("GEORADIUS g 15 37 100 km STORE d", ":1|"),
            (
                "GEORADIUS g 15 37 100 km STORE d WITHDIST",
                "-ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options|",
            ),
            ("GEORADIUS_RO g 15 37 100 km STORE d", "-ERR syntax error|"),
            ("GEORADIUSBYMEMBER g Catania 1 ft ASC", "*1|$7|Catania|"),
            ("GEORADIUSBYMEMBER_RO nothing x 1 m", "*0|"),
            ("GEORADIUS g 15 37 100 km ANY", "-ERR the ANY argument requires COUNT argument|"),
            ("GEORADIUS nothing 15 37 100 km STORE d", ":0|"),
            ("EXISTS d", ":0|"),
        ]);
    }
}
