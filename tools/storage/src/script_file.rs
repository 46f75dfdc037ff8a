//! The script file: phases of a store's behaviour, in TOML.
//!
//! ```toml
//! [[phases]]
//! at = "5s"                 # from the start of the process
//! duration = "2s"           # without a duration, the phase never ends
//! errors = { kind = "LOADING", share = 0.3 }
//! service_time = "point=1ms,range=exp:5ms"
//! ```

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::script::{Change, Errors, Phase, Phases, ServiceTimes};
use serde::de::{Deserialize, Deserializer, Error as _};
use toml::Spanned;
use weir::config::units::{duration, positive_duration};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    phases: Vec<Spanned<Section>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    #[serde(deserialize_with = "moment")]
    at: Duration,
    #[serde(default, deserialize_with = "stretch")]
    duration: Option<Duration>,
    #[serde(default, deserialize_with = "stretch")]
    stall: Option<Duration>,
    #[serde(default)]
    outage: bool,
    servers: Option<usize>,
    #[serde(default, deserialize_with = "service_times")]
    service_time: Option<ServiceTimes>,
    #[serde(default, deserialize_with = "pause")]
    per_kib: Option<Duration>,
    #[serde(default, deserialize_with = "pause")]
    per_row: Option<Duration>,
    #[serde(default, deserialize_with = "errors")]
    errors: Option<Errors>,
    #[serde(default, deserialize_with = "pause")]
    slow_accept: Option<Duration>,
    refuse_connections: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorsTable {
    kind: String,
    share: f64,
}

/// Reads a script file: the phases in which the store behaves differently. The error is a text for the user,
/// which names the file and the line.
pub fn read(path: &Path) -> Result<Phases, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name} (--script): {error}"))?;
    phases(&text).map_err(|problem| format!("{name} (--script): {problem}"))
}

fn phases(text: &str) -> Result<Phases, String> {
    let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
    if document.phases.is_empty() {
        return Err("it has no [[phases]]: at least one is expected".to_owned());
    }
    let mut phases = Vec::new();
    for section in document.phases {
        let line = text[..section.span().start].matches('\n').count() + 1;
        let phase = phase(section.into_inner());
        phase.check().map_err(|problem| format!("the phase at line {line}: {problem}"))?;
        phases.push(phase);
    }
    Phases::new(phases)
}

fn phase(section: Section) -> Phase {
    let Section { at, duration, stall, outage, .. } = section;
    let change = Change {
        servers: section.servers,
        service_time: section.service_time,
        per_kib: section.per_kib,
        per_row: section.per_row,
        errors: section.errors,
        slow_accept: section.slow_accept,
        refuse_connections: section.refuse_connections,
    };
    Phase { at, duration, change, stall, outage }
}

fn moment<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    duration(&text).map_err(|problem| D::Error::custom(format!("'{text}': {problem}")))
}

fn pause<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    moment(from).map(Some)
}

fn stretch<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    positive_duration(&text).map(Some).map_err(|problem| D::Error::custom(format!("'{text}': {problem}")))
}

fn service_times<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ServiceTimes>, D::Error> {
    let text = String::deserialize(from)?;
    ServiceTimes::from_str(&text).map(Some).map_err(D::Error::custom)
}

fn errors<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Errors>, D::Error> {
    let table = ErrorsTable::deserialize(from)?;
    let kind = table.kind.parse().map_err(D::Error::custom)?;
    Errors::new(kind, table.share).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read() {
        let read = phases(
            "[[phases]]\nat = \"5s\"\nduration = \"2s\"\nerrors = { kind = \"LOADING\", share = 0.3 }\n\
             service_time = \"point=1ms\"\n[[phases]]\nat = \"0\"\nstall = \"1s\"\n",
        );
        let errors = Errors::new("LOADING".parse().expect("known"), 0.3).expect("a share");
        let wanted = Phases::new(vec![
            Phase { stall: Some(Duration::from_secs(1)), ..Phase::default() },
            Phase {
                at: Duration::from_secs(5),
                duration: Some(Duration::from_secs(2)),
                change: Change {
                    errors: Some(errors),
                    service_time: Some("point=1ms".parse().expect("well formed")),
                    ..Change::default()
                },
                ..Phase::default()
            },
        ]);
        assert_eq!(read, wanted);
    }

    #[test]
    fn complaints_name_the_line() {
        let cases = [
            ("", "no [[phases]]"),
            ("[[phases]]\nat = 5\n", "line 2"),
            ("[[phases]]\nat = \"5\"\n", "needs a unit"),
            ("[[phases]]\nat = \"5s\"\nstal = \"1s\"\n", "line 3"),
            ("\n[[phases]]\nat = \"5s\"\n", "the phase at line 2: it changes nothing"),
            ("[[phases]]\nat = \"5s\"\noutage = true\n", "duration is expected"),
            ("[[phases]]\nat = \"0\"\nerrors = { kind = \"NOPE\", share = 0.3 }\n", "line 3"),
            ("[[phases]]\nat = \"0\"\nerrors = { kind = \"BUSY\", share = 3.0 }\n", "from 0 to 1"),
            ("[[phases]]\nat = \"0\"\nservice_time = \"dot=1ms\"\n", "no class of commands"),
        ];
        for (text, wanted) in cases {
            let complaint = phases(text).expect_err(text);
            assert!(complaint.contains(wanted), "{text}: {complaint}");
        }
    }
}
