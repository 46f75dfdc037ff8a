//! The arguments of `CLIENT LIST`, `CLIENT KILL`, `CLIENT UNBLOCK` and `CLIENT PAUSE`, and the one reply that
//! is made from the parts of all shards.

use std::time::Duration;

use super::pause::{Pause, Paused, Pauses};
use crate::protocol::command::quoted;
use crate::protocol::{Arguments, Protocol, encode};
use crate::values::Timestamp;
use crate::values::limits::{CLIENT_IDS_MAX, CLIENT_LIST_BYTES_MAX, CLIENT_PAUSE_MS_MAX};
use crate::values::time::Now;

/// The conditions that select clients for `CLIENT LIST`, `CLIENT KILL` and `CLIENT UNBLOCK`. A field that is None
/// selects all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFilter {
    pub tenant: Option<String>,
    pub(super) ids: Option<Vec<u64>>,
    pub(super) address: Option<String>,
    pub(super) local_address: Option<String>,
    pub(super) user: Option<String>,
    pub(super) older_than: Option<Duration>,
    /// The number (`CLIENT ID`) of a client that is left out (`SKIPME yes`); None if none is left out.
    pub(super) except: Option<u64>,
    /// The number (`CLIENT ID`) of the client that sent the command. If the command closes that client too,
    /// the client gets its reply first.
    pub(super) asker: u64,
    /// The type of client that is selected (`TYPE`); None for clients of all types.
    pub(super) kind: Option<ClientKind>,
}

/// Type of a client, as `CLIENT LIST TYPE` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Every client that is not subscribed to channels or patterns.
    Normal,
    /// A client that is subscribed to channels or patterns.
    PubSub,
    /// A type of which weir has no clients, so that nothing matches: replicas, and a primary.
    Nobody,
}

/// The client that sends a `CLIENT` command, and the clients that it may see and affect.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The tenant whose clients may be seen and affected; None for the clients of all tenants, which
    /// administrators may see.
    pub tenant: Option<String>,
    /// The number of the client that sends the command, as `CLIENT ID` reports it.
    pub number: u64,
}

/// A `CLIENT` command that concerns other clients, and so goes to all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientsAsked {
    /// `CLIENT LIST`: describes the clients that match.
    List(ClientFilter),
    /// `CLIENT KILL [option value] ...`: closes the clients that match. The reply is their number.
    Kill(ClientFilter),
    /// `CLIENT KILL address`, the old form: closes the client with that address. The reply is `OK`, or an
    /// error if there is no such client.
    KillOne(ClientFilter),
    /// `CLIENT PAUSE`: holds back all requests of clients, or only writes, for a time.
    Pause(Pause),
    /// `CLIENT UNBLOCK`: ends the blocking commands of the clients that match, as if they had timed out or, if the flag
    /// is true, with an error. The reply is the number of unblocked clients.
    Unblock(ClientFilter, bool),
    /// `CLIENT UNPAUSE`: ends the pause of a tenant, or with None all pauses.
    Unpause(Option<String>),
}

/// The part of one shard in the reply to a `CLIENT` command that goes to all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientsTold {
    /// The reply to `CLIENT LIST`: a line for each client that matches, with the client's number.
    Lines(Vec<(u64, String)>),
    /// The shard's lines would take more than its equal share of the 16 MiB that a list may have.
    TooMany,
    /// Number of this shard's clients that `CLIENT KILL` closed, with the asking client if it matched, or that
    /// `CLIENT UNBLOCK` unblocked.
    Counted(u64),
    /// A `CLIENT PAUSE` or `CLIENT UNPAUSE` was carried out on the shard.
    Done,
}

impl ClientsAsked {
    /// Parses `CLIENT LIST [TYPE type] [ID id ...]`, sent by `asker`. The error is the text of the reply.
    pub fn list(asker: Reach, arguments: &Arguments<'_>) -> Result<Self, String> {
        let mut filter = ClientFilter::of(asker);
        let mut at = 2;
        while let Some(option) = arguments.get(at) {
            let value = arguments.get(at + 1).ok_or_else(syntax)?;
            if option.eq_ignore_ascii_case(b"type") {
                filter.take_kind(value)?;
                at += 2;
            } else if option.eq_ignore_ascii_case(b"id") {
                let ids = arguments.iter().skip(at + 1).take(CLIENT_IDS_MAX + 1);
                filter.ids = Some(ids.map(client_number).collect::<Result<_, _>>()?);
                at = arguments.len();
            } else {
                return Err(syntax());
            }
        }
        if filter.ids.as_ref().is_some_and(|ids| ids.len() > CLIENT_IDS_MAX) {
            return Err(format!("ERR at most {CLIENT_IDS_MAX} client ids are allowed"));
        }
        Ok(Self::List(filter))
    }

    /// Parses `CLIENT KILL address` and `CLIENT KILL [option value] ...`, sent by `asker`. The error is the
    /// text of the reply.
    pub fn kill(asker: Reach, arguments: &Arguments<'_>) -> Result<Self, String> {
        let mut filter = ClientFilter::of(asker);
        if arguments.len() == 3 {
            filter.address = Some(quoted(arguments.at(2)).into_owned());
            return Ok(Self::KillOne(filter));
        }
        filter.except = Some(filter.asker);
        for at in (2..arguments.len()).step_by(2) {
            let (option, value) = (arguments.at(at), arguments.get(at + 1).ok_or_else(syntax)?);
            let text = || Some(quoted(value).into_owned());
            match option.to_ascii_lowercase().as_slice() {
                b"id" => {
                    let number =
                        client_number(value).map_err(|_| "ERR client-id should be greater than 0")?;
                    filter.ids = Some(vec![number]);
                }
                b"type" => filter.take_kind(value)?,
                b"user" => filter.user = text(),
                b"addr" => filter.address = text(),
                b"laddr" => filter.local_address = text(),
                b"maxage" => filter.older_than = Some(Duration::from_secs(client_number(value)?)),
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.except = Some(filter.asker),
                b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.except = None,
                _ => return Err(syntax()),
            }
        }
        Ok(Self::Kill(filter))
    }

    /// Returns the user that `CLIENT KILL USER` names, a tenant or a user of one (`tenant/user`); None if it
    /// names none.
    pub fn named_user(&self) -> Option<&str> {
        match self {
            Self::Kill(filter) => filter.user.as_deref(),
            _ => None,
        }
    }

    /// Parses `CLIENT UNBLOCK id [TIMEOUT|ERROR]`, sent by `asker`. The error is the text of the reply.
    pub fn unblock(asker: Reach, arguments: &Arguments<'_>) -> Result<Self, String> {
        let is_error = match arguments.get(3) {
            None => false,
            Some(word) if word.eq_ignore_ascii_case(b"timeout") => false,
            Some(word) if word.eq_ignore_ascii_case(b"error") => true,
            Some(_) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".to_owned()),
        };
        if arguments.len() > 4 {
            return Err(syntax());
        }
        let number = std::str::from_utf8(arguments.at(2)).ok().and_then(|word| word.parse::<i64>().ok());
        let number = number.ok_or("ERR value is not an integer or out of range")?;
        let ids = Some(u64::try_from(number).into_iter().collect());
        Ok(Self::Unblock(ClientFilter { ids, ..ClientFilter::of(asker) }, is_error))
    }

    /// Parses `CLIENT PAUSE milliseconds [ALL|WRITE]`, sent by `asker`, whose rights decide which clients are
    /// paused. The error is the text of the error reply; a pause of more than 24 hours is one.
    pub fn pause(asker: Reach, arguments: &Arguments<'_>, now: Now) -> Result<Self, String> {
        let millis = std::str::from_utf8(arguments.at(2)).ok().and_then(|text| text.parse::<i64>().ok());
        let millis = millis.ok_or("ERR timeout is not an integer or out of range")?;
        let millis = u64::try_from(millis).map_err(|_| "ERR timeout is negative")?;
        if millis > CLIENT_PAUSE_MS_MAX {
            return Err(format!("ERR a pause of at most {CLIENT_PAUSE_MS_MAX} ms is expected"));
        }
        let extent = match arguments.get(3) {
            None => Paused::Everything,
            Some(word) if word.eq_ignore_ascii_case(b"all") => Paused::Everything,
            Some(word) if word.eq_ignore_ascii_case(b"write") => Paused::Writes,
            Some(_) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".to_owned()),
        };
        if arguments.len() > 4 {
            return Err(syntax());
        }
        let until = now.monotonic.after(Duration::from_millis(millis));
        Ok(Self::Pause(Pause { tenant: asker.tenant, until, extent, asker: Some(asker.number) }))
    }

    /// Begins or ends pauses, if this is a `CLIENT PAUSE` or `CLIENT UNPAUSE`. Returns false for any other command,
    /// which changes nothing.
    pub fn change_pauses(&self, pauses: &mut Pauses, now: Timestamp) -> bool {
        match self {
            Self::Pause(pause) => pauses.begin(pause, now),
            Self::Unpause(tenant) => pauses.end(tenant.as_deref()),
            _ => return false,
        }
        true
    }

    /// Writes the reply to the `CLIENT` command. `told` holds the parts of all shards; if one has too many lines for
    /// `CLIENT LIST`, the reply is an error.
    pub fn reply(&self, protocol: Protocol, told: Vec<ClientsTold>) -> Vec<u8> {
        let mut out = Vec::new();
        let counted: u64 =
            told.iter().map(|told| if let ClientsTold::Counted(count) = told { *count } else { 0 }).sum();
        match self {
            Self::List(_) if told.contains(&ClientsTold::TooMany) => {
                let text = format!(
                    "ERR the list is longer than {CLIENT_LIST_BYTES_MAX} bytes: name clients with ID"
                );
                encode::error(&mut out, &text);
            }
            Self::List(_) => {
                let lists = told.into_iter().filter_map(|told| match told {
                    ClientsTold::Lines(lines) => Some(lines),
                    _ => None,
                });
                let mut lines: Vec<(u64, String)> = lists.flatten().collect();
                lines.sort_unstable_by_key(|(number, _)| *number);
                let text: String = lines.into_iter().map(|(_, line)| line).collect();
                encode::verbatim(&mut out, protocol, &text);
            }
            Self::Kill(_) | Self::Unblock(..) => encode::integer(&mut out, counted as i64),
            Self::KillOne(_) if counted == 0 => encode::error(&mut out, "ERR No such client"),
            Self::KillOne(_) | Self::Pause(_) | Self::Unpause(_) => encode::simple(&mut out, "OK"),
        }
        out
    }
}

impl ClientFilter {
    fn of(asker: Reach) -> Self {
        Self { tenant: asker.tenant, asker: asker.number, ..Self::default() }
    }

    fn take_kind(&mut self, kind: &[u8]) -> Result<(), String> {
        match kind.to_ascii_lowercase().as_slice() {
            b"normal" => self.kind = Some(ClientKind::Normal),
            b"pubsub" => self.kind = Some(ClientKind::PubSub),
            b"master" | b"primary" | b"replica" | b"slave" => self.kind = Some(ClientKind::Nobody),
            _ => return Err(format!("ERR Unknown client type '{}'", quoted(kind))),
        }
        Ok(())
    }
}

fn client_number(word: &[u8]) -> Result<u64, String> {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.filter(|number| *number > 0).ok_or_else(|| "ERR Invalid client ID".to_owned())
}

fn syntax() -> String {
    "ERR syntax error".to_owned()
}
