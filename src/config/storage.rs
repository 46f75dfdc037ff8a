//! The stores that `--storage` and `--fleet` name.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;

pub use crate::values::ServerAddress;
use crate::values::limits::{BACKENDS_MAX, CLUSTER_NODES_MAX};
use crate::values::percent_decoded;

/// TCP port of a server whose address in a flag names none.
const DEFAULT_PORT: u16 = 6379;

/// The stores that `--storage` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// weir stores the keys itself, in an embedded store within this process.
    Embedded,
    /// One or more servers, over which the keys are spread.
    Servers {
        /// The servers: at least one, all different.
        servers: Vec<ServerAddress>,
        /// User and password with which weir authenticates to the servers; none if they need none.
        credentials: Option<Credentials>,
        /// True if weir connects to the servers with TLS.
        secure: bool,
    },
    /// A cluster, of which some nodes' addresses are given.
    Cluster {
        /// The given nodes: at least one, all different.
        seeds: Vec<ServerAddress>,
        /// User and password with which weir authenticates to all nodes; none if they need none.
        credentials: Option<Credentials>,
        /// True if weir connects to the nodes with TLS.
        secure: bool,
    },
    /// One server, at the Unix socket with this path.
    Unix(PathBuf),
}

impl Storage {
    /// True if weir connects to the stores with TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self, Self::Servers { secure: true, .. } | Self::Cluster { secure: true, .. })
    }

    /// Returns the servers that are named: stores, or nodes of a cluster.
    pub fn servers(&self) -> &[ServerAddress] {
        match self {
            Self::Embedded | Self::Unix(_) => &[],
            Self::Servers { servers, .. } | Self::Cluster { seeds: servers, .. } => servers,
        }
    }

    /// Returns the number of backends that the storage can have: servers that are named, or nodes of a
    /// cluster, whose number changes.
    pub fn backends_max(&self) -> usize {
        match self {
            Self::Embedded | Self::Unix(_) => 1,
            Self::Servers { servers, .. } => servers.len(),
            Self::Cluster { .. } => CLUSTER_NODES_MAX,
        }
    }
}

/// User and password with which weir authenticates to a store.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user; none for a store that knows only passwords.
    pub user: Option<String>,
    /// The password with which weir authenticates, alone or together with the user.
    pub password: String,
}

impl Credentials {
    /// Returns the name of the user, if any, and the password, with which weir logs in.
    pub fn pair(&self) -> (Option<String>, String) {
        (self.user.clone(), self.password.clone())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials").field("user", &self.user).field("password", &"(hidden)").finish()
    }
}

/// Writes the storage as an operator would give it to `--storage`, without the password.
impl fmt::Display for Storage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => out.write_str("embedded"),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Servers { servers, credentials, secure } => {
                write_servers(out, ("redis", *secure), servers, credentials.as_ref())
            }
            Self::Cluster { seeds, credentials, secure } => {
                write_servers(out, ("cluster", *secure), seeds, credentials.as_ref())
            }
        }
    }
}

fn write_servers(
    out: &mut fmt::Formatter<'_>,
    (scheme, secure): (&str, bool),
    servers: &[ServerAddress],
    credentials: Option<&Credentials>,
) -> fmt::Result {
    let hidden = if credentials.is_some() { "...@" } else { "" };
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    let secure = if secure { "s" } else { "" };
    write!(out, "{scheme}{secure}://{hidden}{}", servers.join(","))
}

const WANTED: &str =
    "embedded, redis://HOST:PORT[,HOST:PORT...], cluster://HOST:PORT[,HOST:PORT...] or unix:PATH is expected";

impl FromStr for Storage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            return if path.is_empty() { Err(WANTED.to_owned()) } else { Ok(Self::Unix(path.into())) };
        }
        match text.split_once("://") {
            Some((scheme @ ("redis" | "valkey" | "rediss" | "valkeys"), rest)) => {
                let secure = matches!(scheme, "rediss" | "valkeys");
                servers(rest).map(|(servers, credentials)| Self::Servers { servers, credentials, secure })
            }
            Some((scheme @ ("cluster" | "clusters"), rest)) => {
                let secure = scheme == "clusters";
                servers(rest).map(|(seeds, credentials)| Self::Cluster { seeds, credentials, secure })
            }
            _ => Err(WANTED.to_owned()),
        }
    }
}

fn servers(text: &str) -> Result<(Vec<ServerAddress>, Option<Credentials>), String> {
    let (credentials, servers) = match text.rsplit_once('@') {
        Some((credentials, servers)) => (Some(read_credentials(credentials)?), servers),
        None => (None, text),
    };
    // A password may stand there, so the error does not repeat it.
    if servers.contains('?') {
        return Err(
            "options behind '?' are not supported: leave them out, and give a password before '@'".to_owned()
        );
    }
    let servers = match servers.split_once('/') {
        Some((servers, "" | "0")) => servers,
        Some(_) => {
            return Err("a database other than 0 is not supported: leave out what follows '/'".to_owned());
        }
        None => servers,
    };
    let servers = servers.split(',').map(str::parse).collect::<Result<Vec<ServerAddress>, _>>()?;
    if servers.len() > BACKENDS_MAX {
        return Err(format!("{} servers are given, and {BACKENDS_MAX} are the most", servers.len()));
    }
    match (1..servers.len()).find(|index| servers[..*index].contains(&servers[*index])) {
        Some(index) => Err(format!("{} is given twice", servers[index])),
        None => Ok((servers, credentials)),
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("'{text}' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected");
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wanted)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(wanted)?,
            None if port.is_empty() => DEFAULT_PORT,
            None => return Err(wanted()),
        };
        let strange =
            |letter: char| letter.is_whitespace() || letter.is_control() || "/@?#[]".contains(letter);
        if host.is_empty() || host.contains(strange) {
            return Err(wanted());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

/// Reads `user:password` or `:password`, in percent encoding (`%40` stands for `@`). The error is a text for
/// the operator.
fn read_credentials(text: &str) -> Result<Credentials, String> {
    let decoded = |text: &str| {
        percent_decoded(text)
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| "a '%' in user or password stands before two hexadecimal digits".to_owned())
    };
    let (user, password) =
        text.split_once(':').ok_or("before '@', user:password or :password is expected")?;
    if password.is_empty() {
        return Err("before '@', user:password or :password is expected".to_owned());
    }
    let user = if user.is_empty() { None } else { Some(decoded(user)?) };
    Ok(Credentials { user, password: decoded(password)? })
}

/// The Redis server in which the weir processes of a fleet (which share quotas) count their demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetStore {
    /// Address of the Redis server that the fleet's hosts share.
    pub server: ServerAddress,
    /// User and password with which weir authenticates to the server; none if it needs none.
    pub credentials: Option<Credentials>,
    /// True if weir connects to the server with TLS.
    pub secure: bool,
}

/// Writes the store as an operator would give it to `--fleet`, without the password.
impl fmt::Display for FleetStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = if self.credentials.is_some() { "...@" } else { "" };
        let secure = if self.secure { "s" } else { "" };
        write!(out, "redis{secure}://{hidden}{}", self.server)
    }
}

impl FromStr for FleetStore {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "one server is expected: redis://HOST:PORT, or redis://USER:PASSWORD@HOST:PORT";
        if !text.contains("://") || text.starts_with("unix:") {
            return Err(WANTED.to_owned());
        }
        match text.parse() {
            Ok(Storage::Servers { mut servers, credentials, secure }) if servers.len() == 1 => {
                Ok(Self { server: servers.remove(0), credentials, secure })
            }
            Err(problem) if problem != self::WANTED => Err(problem),
            _ => Err(WANTED.to_owned()),
        }
    }
}

/// Parser of the values of `--storage` and `--fleet`. Its errors never repeat the whole value, since that may
/// contain a password.
#[derive(Clone, Debug)]
pub(super) struct AddressParser<T>(PhantomData<T>);

impl<T> AddressParser<T> {
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: FromStr<Err = String> + Clone + Send + Sync + 'static> TypedValueParser for AddressParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let text = value.to_string_lossy();
        text.parse().map_err(|problem| {
            let name = argument.map_or_else(String::new, ToString::to_string);
            let shown = without_credentials(&text);
            // Such an error is shown as it stands, so it has to include the last line that other errors have.
            let help = "For more information, try '--help'.";
            let problem = format!("invalid value '{shown}' for '{name}': {problem}\n\n{help}\n");
            clap::Error::raw(ErrorKind::ValueValidation, problem).with_cmd(command)
        })
    }
}

/// Returns a value of `--storage` or `--fleet` that can be shown: the part between `://` and the last `@`, and
/// all behind the first `?`, which may be a password, are replaced by `...`.
fn without_credentials(text: &str) -> String {
    let shown = match text.rsplit_once('@') {
        Some((before, servers)) => {
            let scheme = before.split_once("://").map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
            format!("{scheme}...@{servers}")
        }
        None => text.to_owned(),
    };
    match shown.split_once('?') {
        Some((start, _)) => format!("{start}?..."),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores() {
        for (text, shown) in [
            ("embedded", "embedded"),
            ("unix:/run/redis.sock", "unix:/run/redis.sock"),
            ("unix:///run/redis.sock", "unix:/run/redis.sock"),
            ("redis://localhost", "redis://localhost:6379"),
            ("redis://10.0.0.1:6379,10.0.0.2:6380/0", "redis://10.0.0.1:6379,10.0.0.2:6380"),
            ("redis://[::1]:7000,[fe80::1]", "redis://[::1]:7000,[fe80::1]:6379"),
            ("redis://:secret@h:1/", "redis://...@h:1"),
            ("rediss://:secret@h,g:1", "rediss://...@h:6379,g:1"),
            ("valkeys://h", "rediss://h:6379"),
            ("valkey://h", "redis://h:6379"),
            ("clusters://h:1", "clusters://h:1"),
        ] {
            assert_eq!(
                text.parse::<Storage>().map(|storage| storage.to_string()),
                Ok(shown.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn credentials() {
        let read = |text: &str| match text.parse() {
            Ok(Storage::Servers { credentials: Some(Credentials { user, password }), .. }) => {
                (user, password)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(read("redis://:secret@h"), (None, "secret".to_owned()));
        assert_eq!(read("redis://ann:se:cr@et@h"), (Some("ann".to_owned()), "se:cr@et".to_owned()));
        assert_eq!(read("redis://a%2Fb:%40%25@h"), (Some("a/b".to_owned()), "@%".to_owned()));
    }

    #[test]
    fn what_is_none_is_told_how_it_should_be() {
        let many =
            format!("redis://{}", (1..=1025).map(|port| format!("h:{port}")).collect::<Vec<_>>().join(","));
        for (text, complaint) in [
            ("", WANTED),
            ("memory", WANTED),
            ("http://h", WANTED),
            ("unix:", WANTED),
            ("redis://", "'' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected"),
            ("redis://h:0", "'h:0' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected"),
            ("redis://h:x", "'h:x' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected"),
            ("redis://::1:6379", "'::1:6379' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected"),
            ("redis://a,,b", "'' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected"),
            ("redis://a:6379,b,a", "a:6379 is given twice"),
            ("redis://a/1", "a database other than 0 is not supported: leave out what follows '/'"),
            ("redis://secret@a", "before '@', user:password or :password is expected"),
            ("redis://:@a", "before '@', user:password or :password is expected"),
            ("redis://:%4@a", "a '%' in user or password stands before two hexadecimal digits"),
            (&many, "1025 servers are given, and 1024 are the most"),
        ] {
            assert_eq!(text.parse::<Storage>(), Err(complaint.to_owned()), "{text}");
        }
        assert_eq!("cluster://a,a:6379".parse::<Storage>(), Err("a:6379 is given twice".to_owned()));
    }

    #[test]
    fn a_cluster_is_named_by_some_of_its_nodes() {
        let storage: Storage = "cluster://ann:secret@a,b:7000".parse().expect("well formed");
        let Storage::Cluster { seeds, credentials, secure: false } = &storage else { panic!("{storage}") };
        let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
        assert_eq!(seeds, ["a:6379", "b:7000"]);
        assert_eq!(credentials.as_ref().and_then(|known| known.user.as_deref()), Some("ann"));
        assert_eq!(storage.to_string(), "cluster://...@a:6379,b:7000");
    }

    #[test]
    fn a_fleet_counts_in_one_server() {
        let store: FleetStore = "rediss://ann:secret@h".parse().expect("well formed");
        assert_eq!((store.to_string().as_str(), store.secure), ("rediss://...@h:6379", true));
        let store: FleetStore = "redis://ann:secret@h".parse().expect("well formed");
        assert_eq!(store.to_string(), "redis://...@h:6379");
        assert!(!format!("{store:?}").contains("secret"));
        let wanted = "one server is expected: redis://HOST:PORT, or redis://USER:PASSWORD@HOST:PORT";
        for text in ["", "embedded", "h:1", "unix:/a", "unix:///a", "redis://a,b", "http://h"] {
            assert_eq!(text.parse::<FleetStore>(), Err(wanted.to_owned()), "{text}");
        }
        for (text, complaint) in [
            ("redis://h:x", "'h:x' is no server: HOST, HOST:PORT or [IPV6]:PORT is expected"),
            ("redis://h/3", "a database other than 0 is not supported: leave out what follows '/'"),
        ] {
            assert_eq!(text.parse::<FleetStore>(), Err(complaint.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let storage: Storage = "redis://ann:secret@h:1".parse().expect("well formed");
        assert!(!format!("{storage:?} {storage}").contains("secret"));
        assert_eq!(without_credentials("redis://ann:sec@ret@h:x"), "redis://...@h:x");
        assert_eq!(without_credentials("ann:secret@h:x"), "...@h:x");
        assert_eq!(without_credentials("redis://ann:sec?ret@h?password=secret"), "redis://...@h?...");
        assert_eq!(without_credentials("redis://h?password=sec@ret"), "redis://...@ret");
        let problem = "redis://h,g?password=secret".parse::<Storage>().expect_err("no options");
        assert!(problem.starts_with("options behind '?'"), "{problem}");
    }
}
