//! What is scripted: capacity, service times, errors, how connections are taken.

use std::str::FromStr;
use std::time::Duration;

use super::distribution::Distribution;
use super::fault::Errors;
use weir::protocol::Command;
use weir::protocol::command::{Class, Effect};

/// As many servers are as good as no limit.
pub const SERVERS_MAX: usize = 65_536;

/// Kinds of work that take different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkClass {
    /// Reads a bounded part of one key.
    Point,
    /// Reads several keys.
    Multi,
    /// Reads a stretch of a collection.
    Range,
    /// Walks over a collection or over the keys.
    Scan,
    /// Changes keys, however many.
    Write,
    /// Talks about connections and the server: PING, HELLO, INFO.
    Control,
}

impl WorkClass {
    const ALL: [(&'static str, Self); 6] = [
        ("point", Self::Point),
        ("multi", Self::Multi),
        ("range", Self::Range),
        ("scan", Self::Scan),
        ("write", Self::Write),
        ("control", Self::Control),
    ];

    /// The class of a command; what the table does not know is answered with an error, and that is control.
    pub(super) fn of(command: Option<&Command>) -> Self {
        match command {
            None => Self::Control,
            Some(command) if command.effect == Effect::Write => Self::Write,
            Some(command) => match command.class {
                Class::Point => Self::Point,
                Class::Multi => Self::Multi,
                Class::Range => Self::Range,
                Class::Scan => Self::Scan,
                Class::Script => Self::Write,
                Class::Control => Self::Control,
            },
        }
    }
}

/// Changes to the service times of some classes: `point=1ms,range=exp:5ms`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceTimes(Vec<(WorkClass, Distribution)>);

impl ServiceTimes {
    /// One class, or `all` of them that touch keys.
    pub fn of(class: &str, time: Distribution) -> Result<Self, String> {
        let named: Vec<_> = WorkClass::ALL
            .iter()
            .filter(|(name, of)| {
                name.eq_ignore_ascii_case(class)
                    || class.eq_ignore_ascii_case("all") && *of != WorkClass::Control
            })
            .map(|(_, class)| (*class, time))
            .collect();
        if named.is_empty() {
            let names: Vec<_> = WorkClass::ALL.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "'{class}' is no class of commands; one of {} or all is wanted",
                names.join(", ")
            ));
        }
        Ok(Self(named))
    }
}

impl FromStr for ServiceTimes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for part in text.split(',') {
            let (class, time) = part.split_once('=').ok_or_else(|| {
                format!("'{part}' is no CLASS=TIME; one such as point=1ms or range=exp:5ms is wanted")
            })?;
            all.0.extend(Self::of(class.trim(), time.trim().parse()?)?.0);
        }
        Ok(all)
    }
}

/// How the store behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// Requests that are served at the same time.
    pub(super) servers: usize,
    pub(super) service_time: [Distribution; WorkClass::ALL.len()],
    pub(super) per_kib: Duration,
    pub(super) per_row: Duration,
    pub(super) errors: Option<Errors>,
    pub(super) slow_accept: Duration,
    pub(super) refuse_connections: bool,
}

/// One server that takes no time: what a store does that is told nothing.
impl Default for Behaviour {
    fn default() -> Self {
        Self {
            servers: 1,
            service_time: [Distribution::NONE; WorkClass::ALL.len()],
            per_kib: Duration::ZERO,
            per_row: Duration::ZERO,
            errors: None,
            slow_accept: Duration::ZERO,
            refuse_connections: false,
        }
    }
}

/// What is to be different; nothing said means as before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Requests that are served at the same time.
    pub servers: Option<usize>,
    /// How long the classes take.
    pub service_time: Option<ServiceTimes>,
    /// How much longer for each 1,024 bytes of request and reply.
    pub per_kib: Option<Duration>,
    /// How much longer for each element of the reply.
    pub per_row: Option<Duration>,
    /// Which requests are answered with an error.
    pub errors: Option<Errors>,
    /// How long a new connection is left alone.
    pub slow_accept: Option<Duration>,
    /// Are new connections closed at once?
    pub refuse_connections: Option<bool>,
}

impl Change {
    /// Is everything as it should be?
    pub fn check(&self) -> Result<(), String> {
        match self.servers {
            Some(servers) if !(1..=SERVERS_MAX).contains(&servers) => {
                Err(format!("'{servers}' servers: a whole number from 1 to {SERVERS_MAX} is wanted"))
            }
            _ => Ok(()),
        }
    }
}

impl Behaviour {
    /// Changes what the change names. The change has been checked.
    pub fn apply(&mut self, change: &Change) {
        debug_assert_eq!(change.check(), Ok(()), "checked where it came in");
        self.servers = change.servers.unwrap_or(self.servers);
        for (class, time) in change.service_time.iter().flat_map(|times| &times.0) {
            self.service_time[*class as usize] = *time;
        }
        self.per_kib = change.per_kib.unwrap_or(self.per_kib);
        self.per_row = change.per_row.unwrap_or(self.per_row);
        self.errors = change.errors.or(self.errors).filter(|errors| errors.share() > 0.0);
        self.slow_accept = change.slow_accept.unwrap_or(self.slow_accept);
        self.refuse_connections = change.refuse_connections.unwrap_or(self.refuse_connections);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::protocol::command::find;

    #[test]
    fn classes_of_commands() {
        let classes = [
            (&b"get"[..], WorkClass::Point),
            (b"mget", WorkClass::Multi),
            (b"lrange", WorkClass::Range),
            (b"scan", WorkClass::Scan),
            (b"set", WorkClass::Write),
            (b"mset", WorkClass::Write),
            (b"ping", WorkClass::Control),
            (b"nothing", WorkClass::Control),
        ];
        for (name, class) in classes {
            assert_eq!(WorkClass::of(find(name)), class, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn later_times_replace_earlier_ones() {
        let mut behaviour = Behaviour::default();
        let service_time = Some("all=1ms, scan=exp:10ms".parse().expect("well formed"));
        behaviour.apply(&Change { service_time, ..Change::default() });
        let ms = Duration::from_millis;
        assert_eq!(behaviour.service_time[WorkClass::Write as usize], Distribution::Fixed(ms(1)));
        assert_eq!(behaviour.service_time[WorkClass::Scan as usize], Distribution::Exponential(ms(10)));
        assert_eq!(behaviour.service_time[WorkClass::Control as usize], Distribution::NONE);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for text in ["point", "points=1ms", "point=1", ""] {
            let complaint = text.parse::<ServiceTimes>().expect_err(text);
            assert!(complaint.contains("wanted"), "{complaint}");
        }
        assert!(Change { servers: Some(0), ..Change::default() }.check().is_err());
    }
}
