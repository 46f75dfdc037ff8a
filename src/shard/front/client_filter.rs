//! What clients may ask about clients: `CLIENT LIST`, `KILL`, `PAUSE`, read, and answered from what all shards told.

use std::time::Duration;

use super::pause::{Pause, Paused};
use crate::protocol::command::quoted;
use crate::protocol::{Arguments, Protocol, encode};
use crate::values::limits::{CLIENT_IDS_MAX, CLIENT_LIST_BYTES_MAX, CLIENT_PAUSE_MS_MAX};
use crate::values::time::Now;

/// Which clients are meant. What is none does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFilter {
    pub tenant: Option<String>,
    pub(super) ids: Option<Vec<u64>>,
    pub(super) address: Option<String>,
    pub(super) local_address: Option<String>,
    pub(super) user: Option<String>,
    pub(super) older_than: Option<Duration>,
    /// Not this one.
    pub(super) except: Option<u64>,
    /// Who asks, and is to have the reply before it is closed.
    pub(super) asker: u64,
    /// Of a kind that there is none of, such as replicas.
    pub(super) nobody: bool,
}

/// Who asks, and whose clients that one may see: none means everybody's.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The tenant whose clients they are.
    pub tenant: Option<String>,
    /// What `CLIENT ID` says to who asks.
    pub number: u64,
}

/// What a client wants of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientsAsked {
    /// Say what they are.
    List(ClientFilter),
    /// Close them, and say how many that were.
    Kill(ClientFilter),
    /// The same in the words of old: `OK`, or that there is none.
    KillOne(ClientFilter),
    /// Let them wait, all their requests or those that write.
    Pause(Pause),
    /// Let them go on.
    Unpause(Option<String>),
}

/// What one shard has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientsTold {
    /// Numbers of clients, and a line for each.
    Lines(Vec<(u64, String)>),
    /// More than fits into a reply.
    TooMany,
    /// So many were closed.
    Closed(u64),
    /// It is so now.
    Done,
}

impl ClientsAsked {
    /// `CLIENT LIST [TYPE type] [ID id ...]`
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
            return Err(format!("ERR at most {CLIENT_IDS_MAX} clients can be named at once"));
        }
        Ok(Self::List(filter))
    }

    /// `CLIENT KILL address` and `CLIENT KILL [option value] ...`
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
                b"id" => filter.ids = Some(vec![client_number(value)?]),
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

    /// `CLIENT PAUSE milliseconds [ALL|WRITE]`
    pub fn pause(asker: Reach, arguments: &Arguments<'_>, now: Now) -> Result<Self, String> {
        let millis = std::str::from_utf8(arguments.at(2)).ok().and_then(|text| text.parse::<i64>().ok());
        let millis = millis.ok_or("ERR timeout is not an integer or out of range")?;
        let millis = u64::try_from(millis).map_err(|_| "ERR timeout is negative")?;
        if millis > CLIENT_PAUSE_MS_MAX {
            return Err(format!("ERR a pause of up to {CLIENT_PAUSE_MS_MAX} ms is wanted"));
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
        Ok(Self::Pause(Pause { tenant: asker.tenant, until, extent, asker: asker.number }))
    }

    /// The reply to it, from what all shards told.
    pub fn reply(&self, protocol: Protocol, told: Vec<ClientsTold>) -> Vec<u8> {
        let mut out = Vec::new();
        let closed: u64 =
            told.iter().map(|told| if let ClientsTold::Closed(count) = told { *count } else { 0 }).sum();
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
            Self::Kill(_) => encode::integer(&mut out, closed as i64),
            Self::KillOne(_) if closed == 0 => encode::error(&mut out, "ERR No such client"),
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
            b"normal" => {}
            b"master" | b"primary" | b"replica" | b"slave" | b"pubsub" => self.nobody = true,
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
