//! Scenario files: groups of clients, their phases, and the commands that fill the store first.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use weir::config::Tier;
use weir::config::units::positive_duration;
use weir_load::rate::Rate;
use weir_load::schedule::Arrivals;
use weir_load::template::{Mix, Template};
use weir_load::{ClientKind, GroupPlan, Identity, PhasePlan, SetupPlan};

use super::values::{
    CONNECTIONS_DEFAULT, CONNECTIONS_MAX, DURATION_DEFAULT, DURATION_MAX, PIPELINE_DEFAULT, PIPELINE_MAX,
    arrivals,
};

const GROUPS_MAX: usize = 256;
const PHASES_MAX: usize = 1_000;
const USERS_MAX: u64 = 1_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    duration: Option<Text<Length>>,
    #[serde(default)]
    setup: Vec<SetupEntry>,
    group: Vec<Spanned<GroupEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetupEntry {
    command: Text<Template>,
    count: Bounded<1, 1_000_000_000>,
    group: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupEntry {
    name: String,
    tenant: Option<String>,
    password: Option<String>,
    resp3: Option<bool>,
    user: Option<String>,
    users: Option<Bounded<1, USERS_MAX>>,
    tier: Option<Text<Tier>>,
    deadline: Option<Text<Length>>,
    connections: Option<Bounded<1, CONNECTIONS_MAX>>,
    pipeline: Option<Bounded<1, PIPELINE_MAX>>,
    arrivals: Option<Text<Spread>>,
    rate: Option<RateEntry>,
    command: Option<Text<Template>>,
    commands: Option<Vec<CommandEntry>>,
    client: Option<Text<ClientKind>>,
    retries: Option<Bounded<0, 255>>,
    timeout: Option<Text<Length>>,
    #[serde(default)]
    phase: Vec<Spanned<PhaseEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhaseEntry {
    name: Option<String>,
    duration: Text<Length>,
    rate: Option<RateEntry>,
    command: Option<Text<Template>>,
    commands: Option<Vec<CommandEntry>>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandEntry {
    weight: Option<Bounded<1, 1_000_000>>,
    command: Text<Template>,
}

/// A value that is text in the scenario file, and is parsed while the file is read, so that an error names
/// its line.
#[derive(Clone)]
struct Text<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|error| D::Error::custom(format!("'{text}': {error}")))
    }
}

#[derive(Clone, Copy)]
struct Length(Duration);

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let length = positive_duration(text)?;
        if length > DURATION_MAX {
            return Err(format!("at most {DURATION_MAX:?} is expected"));
        }
        Ok(Self(length))
    }
}

#[derive(Clone, Copy)]
struct Spread(Arrivals);

impl FromStr for Spread {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == "closed" {
            return Ok(Self(Arrivals::Closed));
        }
        arrivals(word).map(Self).map_err(|_| "even, poisson or closed is expected".to_owned())
    }
}

#[derive(Clone, Copy)]
struct Bounded<const LEAST: u64, const MOST: u64>(u64);

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Bounded<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let given = i64::deserialize(from)?;
        let number = u64::try_from(given).ok().filter(|number| (LEAST..=MOST).contains(number));
        number.map(Self).ok_or_else(|| {
            D::Error::custom(format!("{given}: a whole number from {LEAST} to {MOST} is expected"))
        })
    }
}

/// A rate of requests in a scenario file, written as a number or as text.
#[derive(Clone)]
struct RateEntry(Rate);

impl<'de> Deserialize<'de> for RateEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = RateEntry;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("requests per second, such as 5000, \"1000..5000\" or \"1000,2000\"")
            }

            fn visit_i64<E: serde::de::Error>(self, rate: i64) -> Result<RateEntry, E> {
                self.visit_str(&rate.to_string())
            }

            fn visit_f64<E: serde::de::Error>(self, rate: f64) -> Result<RateEntry, E> {
                self.visit_str(&rate.to_string())
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RateEntry, E> {
                text.parse().map(RateEntry).map_err(E::custom)
            }
        }
        from.deserialize_any(Either)
    }
}

/// Reads a scenario file. `cut` is the time after which the load ends even if its phases are longer; `None`
/// for no such time. `password` is that of tenants for which the file has none. Returns the groups of clients,
/// and the set-up commands; the error is a text for the user.
pub fn read(
    path: &Path,
    cut: Option<Duration>,
    password: Option<&str>,
) -> Result<(Vec<GroupPlan>, Vec<SetupPlan>), String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let (mut groups, setup) = parse(&text, cut).map_err(|problem| format!("{name}: {problem}"))?;
    groups.iter_mut().for_each(|group| group.identity.complete(password));
    Ok((groups, setup))
}

fn parse(text: &str, cut: Option<Duration>) -> Result<(Vec<GroupPlan>, Vec<SetupPlan>), String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let at = |offset: usize, problem: &str| {
        let line = text[..offset].matches('\n').count() + 1;
        format!("line {line}: {problem}")
    };
    if file.group.is_empty() || file.group.len() > GROUPS_MAX {
        return Err(format!(
            "{} groups: from 1 to {GROUPS_MAX} [[group]] sections are expected",
            file.group.len()
        ));
    }
    let length = file.duration.map(|Text(Length(length))| length).or(cut).unwrap_or(DURATION_DEFAULT);
    let mut groups: Vec<GroupPlan> = Vec::new();
    for entry in file.group {
        let offset = entry.span().start;
        let entry = entry.into_inner();
        if groups.iter().any(|other| other.name == entry.name) {
            return Err(at(offset, &format!("there are two groups of the name '{}'", entry.name)));
        }
        groups.push(group(entry, length, cut, &|place, problem| at(place.unwrap_or(offset), problem))?);
    }
    let mut setup = Vec::new();
    for entry in file.setup {
        let group = match entry.group {
            None => 0,
            Some(name) => groups.iter().position(|group| group.name == *name.get_ref()).ok_or_else(|| {
                let known: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
                let problem =
                    format!("there is no group '{}'; there are: {}", name.get_ref(), known.join(", "));
                at(name.span().start, &problem)
            })?,
        };
        setup.push(SetupPlan { command: entry.command.0, count: entry.count.0, group });
    }
    Ok((groups, setup))
}

fn group(
    entry: GroupEntry,
    length: Duration,
    cut: Option<Duration>,
    at: &dyn Fn(Option<usize>, &str) -> String,
) -> Result<GroupPlan, String> {
    let arrivals = entry.arrivals.map_or(Arrivals::Even, |Text(Spread(arrivals))| arrivals);
    let closed = arrivals == Arrivals::Closed;
    let own_mix = mix(entry.command, entry.commands).map_err(|problem| at(None, &problem))?;
    let phase_of = |offset, phase: PhaseEntry, index: usize| {
        let mix = mix(phase.command, phase.commands).map_err(|problem| at(offset, &problem))?;
        let mix = mix.or_else(|| own_mix.clone());
        let mix =
            mix.ok_or_else(|| at(offset, "a command, or commands, is expected here or in its group"))?;
        let rate = phase.rate.or_else(|| entry.rate.clone()).map(|RateEntry(rate)| rate);
        let rate = match rate {
            Some(_) if closed => return Err(at(offset, "a closed loop has no rate: leave one of them out")),
            Some(rate) => rate,
            None if closed => Rate::constant(0.0),
            None => return Err(at(offset, "a rate such as rate = 5000 is expected here or in its group")),
        };
        let name = phase.name.unwrap_or_else(|| (index + 1).to_string());
        Ok(PhasePlan { name, duration: phase.duration.0.0, rate, mix })
    };
    let mut phases = Vec::new();
    if entry.phase.is_empty() {
        let all = PhaseEntry {
            name: Some("all".to_owned()),
            duration: Text(Length(length)),
            rate: None,
            command: None,
            commands: None,
        };
        phases.push(phase_of(None, all, 0)?);
    }
    if entry.phase.len() > PHASES_MAX {
        return Err(at(None, &format!("{} phases: at most {PHASES_MAX} are expected", entry.phase.len())));
    }
    for (index, phase) in entry.phase.into_iter().enumerate() {
        let offset = phase.span().start;
        phases.push(phase_of(Some(offset), phase.into_inner(), index)?);
    }
    shorten(&mut phases, cut);
    if entry.user.is_some() && entry.users.is_some() {
        return Err(at(None, "user names one, and users says how many: leave one of them out"));
    }
    let users = match (entry.user, entry.users) {
        (Some(user), _) => vec![user],
        (None, Some(Bounded(count))) => (0..count).map(|user| format!("user-{user}")).collect(),
        (None, None) => Vec::new(),
    };
    let client = entry.client.map_or(ClientKind::Naive, |Text(client)| client);
    if closed && client == ClientKind::Smart {
        return Err(at(None, "a closed loop waits for replies already: leave client = \"smart\" or it out"));
    }
    Ok(GroupPlan {
        name: entry.name,
        identity: Identity {
            tenant: entry.tenant,
            password: entry.password,
            resp3: entry.resp3.unwrap_or(false),
            users,
            tier: entry.tier.map(|Text(tier)| tier),
            deadline: entry.deadline.map(|Text(Length(deadline))| deadline),
        },
        connections: entry.connections.map_or(CONNECTIONS_DEFAULT, |Bounded(count)| count as usize),
        pipeline: entry.pipeline.map_or(PIPELINE_DEFAULT, |Bounded(count)| count as usize),
        arrivals,
        phases,
        client,
        retries: entry.retries.map_or(client.retries(), |Bounded(count)| count as u8),
        timeout: entry.timeout.map(|Text(Length(timeout))| timeout).or(client.timeout()),
    })
}

fn mix(one: Option<Text<Template>>, several: Option<Vec<CommandEntry>>) -> Result<Option<Mix>, String> {
    match (one, several) {
        (Some(_), Some(_)) => Err("command and commands are both there: leave one of them out".to_owned()),
        (None, Some(several)) if several.is_empty() => {
            Err("commands is empty: leave it out, or fill it".to_owned())
        }
        (Some(Text(template)), None) => Ok(Some(Mix::single(template))),
        (None, Some(several)) => {
            let weight = |entry: &CommandEntry| entry.weight.map_or(1, |Bounded(weight)| weight as u32);
            Ok(Some(Mix::weighted(
                several.into_iter().map(|entry| (weight(&entry), entry.command.0)).collect(),
            )))
        }
        (None, None) => Ok(None),
    }
}

/// Shortens or removes the phases that lie after the time `cut`, counted from the start of the load; `None`
/// leaves all. A shortened phase begins as the whole one would, with the same rate at each moment.
fn shorten(phases: &mut Vec<PhasePlan>, cut: Option<Duration>) {
    let Some(mut left) = cut else { return };
    phases.retain_mut(|phase| {
        let kept = phase.duration.min(left);
        left -= kept;
        if kept.is_zero() {
            return false;
        }
        if kept < phase.duration {
            phase.rate = phase.rate.first(kept.as_secs_f64() / phase.duration.as_secs_f64());
            phase.duration = kept;
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
duration = "4s"
[[setup]]
command = "ZADD board {seq} m{seq}"
count = 100_000
group = "scan"
[[group]]
name = "point"
rate = 1000
command = "GET key:{zipf:1000}"
[[group.phase]]
name = "calm"
duration = "1s"
[[group.phase]]
duration = "2s"
rate = "1000..5000"
command = "GET {viral}"
[[group]]
name = "scan"
tenant = "acme"
resp3 = true
users = 3
tier = "batch"
deadline = "50ms"
arrivals = "poisson"
rate = 2.5
retries = 3
timeout = "1s"
commands = [{ weight = 9, command = "ZRANGE board 0 -1" }, { command = "PING" }]
"#;

    #[test]
    fn a_scenario() {
        let (groups, setup) = parse(GOOD, None).expect("it is right");
        assert_eq!((setup[0].count, setup[0].group), (100_000, 1));
        let (point, scan) = (&groups[0], &groups[1]);
        assert_eq!(point.phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), ["calm", "2"]);
        assert_eq!(point.phases[0].rate, Rate::constant(1_000.0));
        assert_eq!(point.phases[1].rate, Rate::Ramp(1_000.0, 5_000.0));
        assert_eq!(point.phases[1].mix.texts().collect::<Vec<_>>(), ["GET {viral}"]);
        assert!(scan.identity.resp3 && !point.identity.resp3);
        assert_eq!(scan.identity.users, ["user-0", "user-1", "user-2"]);
        assert_eq!(scan.phases[0].duration, Duration::from_secs(4));
        assert_eq!((scan.arrivals, scan.retries), (Arrivals::Poisson, 3));
        assert_eq!(scan.phases[0].rate, Rate::constant(2.5));
    }

    #[test]
    fn the_example_is_right() {
        let (groups, setup) = parse(include_str!("../../../example.toml"), None).expect("it is right");
        assert_eq!((groups.len(), groups[0].phases.len(), setup.len()), (2, 3, 1));
        assert!(groups.iter().all(|group| group.duration() == Duration::from_secs(8)));
    }

    #[test]
    fn a_cut_shortens_phases() {
        let (groups, _) = parse(GOOD, Some(Duration::from_millis(1_500))).expect("it is right");
        assert!(groups.iter().all(|group| group.duration() == Duration::from_millis(1_500)));
        assert_eq!(groups[0].phases[1].duration, Duration::from_millis(500));
        // The ramp from 1,000 to 5,000 takes two seconds, of which half a second is left.
        assert_eq!(groups[0].phases[1].rate, Rate::Ramp(1_000.0, 2_000.0));
        let (groups, _) = parse(GOOD, Some(Duration::from_millis(500))).expect("it is right");
        assert_eq!(groups[0].phases.len(), 1);
    }

    #[test]
    fn complaints_have_a_line_what_was_given_and_what_would_be_right() {
        let group = "[[group]]\nname = \"a\"\n";
        for (text, line, complaint) in [
            (format!("{group}rate = \"fast\"\ncommand = \"PING\""), 3, "'fast' is no rate"),
            (format!("{group}rate = true\ncommand = \"PING\""), 3, "requests per second, such as 5000"),
            (format!("{group}rate = 5\ncommand = \"GET {{zip:3}}\""), 4, "{zip:3} is not known"),
            (format!("{group}rate = 5\ncomand = \"PING\""), 4, "unknown field `comand`"),
            (format!("{group}command = \"PING\""), 1, "a rate such as rate = 5000 is expected"),
            (format!("{group}rate = 5"), 1, "a command, or commands, is expected"),
            (
                format!("{group}rate = 5\npipeline = 0\ncommand = \"PING\""),
                4,
                "a whole number from 1 to 4096",
            ),
            (
                format!("{group}rate = 5\ntier = \"gold\"\ncommand = \"PING\""),
                4,
                "critical, standard, batch or",
            ),
            (
                format!("{group}rate = 5\nclient = \"clever\"\ncommand = \"PING\""),
                4,
                "'clever': naive or smart is expected",
            ),
            (
                format!("{group}arrivals = \"closed\"\nclient = \"smart\"\ncommand = \"PING\""),
                1,
                "a closed loop waits for replies",
            ),
            (format!("{group}rate = 5\ntimeout = \"5\"\ncommand = \"PING\""), 4, "a duration needs a unit"),
            (
                format!("{group}rate = 5\narrivals = \"closed\"\ncommand = \"PING\""),
                1,
                "a closed loop has no rate",
            ),
            (
                format!("{group}rate = 5\ncommand = \"PING\"\n{group}rate = 5\ncommand = \"PING\""),
                5,
                "there are two groups of the name 'a'",
            ),
            (
                format!(
                    "[[setup]]\ncommand = \"PING\"\ncount = 1\ngroup = \"b\"\n{group}rate = 5\ncommand = \"PING\""
                ),
                4,
                "there is no group 'b'; there are: a",
            ),
        ] {
            let told = parse(&text, None).expect_err(&text);
            assert!(told.contains(complaint), "{told}");
            assert!(told.contains(&format!("line {line}")), "line {line}: {told}");
        }
        assert!(parse("", None).expect_err("nothing is there").contains("missing field `group`"));
    }
}
