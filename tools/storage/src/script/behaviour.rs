//! The scripted behaviour of a store: capacity, service times, errors, and how it accepts connections.

use std::str::FromStr;
use std::time::Duration;

use super::distribution::Distribution;
use super::fault::Errors;
use weir::protocol::Command;
use weir::protocol::command::{Class, Effect};

/// Maximum number of servers (places for requests served at the same time) that a store may have: in
/// practice no limit.
pub const SERVERS_MAX: usize = 65_536;

/// Classes of commands. Each has a service time of its own in a scripted store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkClass {
    /// Commands that read a bounded part of one key, such as GET.
    Point,
    /// Commands that read several keys, such as MGET.
    Multi,
    /// Commands that read a range of a collection, such as LRANGE.
    Range,
    /// Commands that walk over a collection or over the keys.
    Scan,
    /// Commands that change keys, and all scripts.
    Write,
    /// Commands about connections and the server: PING, HELLO, INFO.
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

    /// Returns the class of a command, by which its service time is chosen. A command that weir's table does
    /// not have (`None`) is answered with an error, and counts as control.
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

/// Service times of some classes of commands, written as `point=1ms,range=exp:5ms`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceTimes(Vec<(WorkClass, Distribution)>);

impl ServiceTimes {
    /// Creates the service time of the named class of commands, or of all classes except control if the name
    /// is `all`. The error, for an unknown name, is a text for the user.
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
                "'{class}' is no class of commands; one of {} or all is expected",
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
                format!("'{part}' is no CLASS=TIME; one such as point=1ms or range=exp:5ms is expected")
            })?;
            all.0.extend(Self::of(class.trim(), time.trim().parse()?)?.0);
        }
        Ok(all)
    }
}

/// The behaviour of a scripted store at one time: service times, errors, and how it accepts connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// The number of requests that the store serves at the same time.
    pub(super) servers: usize,
    pub(super) service_time: [Distribution; WorkClass::ALL.len()],
    pub(super) per_kib: Duration,
    pub(super) per_row: Duration,
    pub(super) errors: Option<Errors>,
    pub(super) slow_accept: Duration,
    pub(super) refuse_connections: bool,
}

/// The behaviour of a store without a script: one server whose service takes no time, and no errors.
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

/// Changes to a store's behaviour; a field that is `None` leaves its part as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The new number of requests that are served at the same time, 1 to 65,536.
    pub servers: Option<usize>,
    /// The new service times of some classes of commands; others keep theirs.
    pub service_time: Option<ServiceTimes>,
    /// The service time added for each 1,024 bytes of request and reply.
    pub per_kib: Option<Duration>,
    /// The service time added for each element of the reply.
    pub per_row: Option<Duration>,
    /// The kind of error, and the share of requests answered with it; a share of 0 ends errors.
    pub errors: Option<Errors>,
    /// The time for which a new connection is not served: bytes from it are kept, and handled afterwards.
    pub slow_accept: Option<Duration>,
    /// True if new connections are closed at once, false if they are served again.
    pub refuse_connections: Option<bool>,
}

impl Change {
    /// Checks that the number of servers is from 1 to 65,536. The error is a text for the user.
    pub fn check(&self) -> Result<(), String> {
        match self.servers {
            Some(servers) if !(1..=SERVERS_MAX).contains(&servers) => {
                Err(format!("'{servers}' servers: a whole number from 1 to {SERVERS_MAX} is expected"))
            }
            _ => Ok(()),
        }
    }
}

impl Behaviour {
    /// Applies a change (new values for some of the settings) to the store's behaviour. The change must have
    /// been checked.
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
            assert!(complaint.contains("expected"), "{complaint}");
        }
        assert!(Change { servers: Some(0), ..Change::default() }.check().is_err());
    }
}
