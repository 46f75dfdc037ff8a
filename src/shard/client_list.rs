//! `CLIENT LIST`, `KILL`, `PAUSE`: about weir's own connections, on all shards. An administrator means everybody's, others their
//! tenant's.
//!
//! ```text
//!   request ── what is asked ──> control executor ── to all shards ──> told by each ── one reply ──> the client
//! ```

use std::fmt::Write as _;
use std::time::Duration;

use super::accounts::Charge;
use super::client::{Client, Rewrite};
use super::counters::Counter;
use super::{Question, Shard};
use crate::protocol::command::quoted;
use crate::protocol::{Arguments, Protocol, encode};
use crate::values::limits::{CLIENT_IDS_MAX, CLIENT_LIST_BYTES_MAX, CLIENT_PAUSE_MS_MAX};
use crate::values::time::Now;
use crate::values::{ClientId, Timestamp};

/// Which clients are meant. What is none does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFilter {
    tenant: Option<String>,
    ids: Option<Vec<u64>>,
    address: Option<String>,
    local_address: Option<String>,
    user: Option<String>,
    older_than: Option<Duration>,
    /// Not this one.
    except: Option<u64>,
    /// Who asks, and is to have the reply before it is closed.
    asker: u64,
    /// Of a kind that there is none of, such as replicas.
    nobody: bool,
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

/// Clients that wait by order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Whose clients; none means everybody's.
    tenant: Option<String>,
    until: Timestamp,
    extent: Paused,
    asker: u64,
}

/// What of a client's waits by order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Paused {
    #[default]
    Nothing,
    /// Requests that may write.
    Writes,
    Everything,
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

impl Shard {
    pub(super) fn client_list(
        &mut self,
        id: ClientId,
        arguments: &Arguments<'_>,
        charge: Option<Charge>,
        now: Now,
    ) {
        let filter = self.filter_of_list(id, arguments);
        self.ask_about_clients(id, filter.map(ClientsAsked::List), charge, now);
    }

    pub(super) fn client_kill(
        &mut self,
        id: ClientId,
        arguments: &Arguments<'_>,
        charge: Option<Charge>,
        now: Now,
    ) {
        let asked = self.filter_of_kill(id, arguments);
        self.ask_about_clients(id, asked, charge, now);
    }

    pub(super) fn client_pause(&mut self, id: ClientId, arguments: &Arguments<'_>, now: Now) {
        let asked = self.pause_of(id, arguments, now).map(ClientsAsked::Pause);
        self.ask_about_clients(id, asked, None, now);
    }

    pub(super) fn client_unpause(&mut self, id: ClientId, now: Now) {
        let asked = ClientsAsked::Unpause(self.reach_of(id));
        self.ask_about_clients(id, Ok(asked), None, now);
    }

    fn ask_about_clients(
        &mut self,
        id: ClientId,
        asked: Result<ClientsAsked, String>,
        charge: Option<Charge>,
        now: Now,
    ) {
        let asked = match asked {
            Ok(asked) => asked,
            Err(text) => return self.answer_priced(id, charge, now, |out, _| encode::error(out, &text)),
        };
        let protocol = self.clients.at(id).protocol;
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        self.ask(id, to, Question::Clients { asked, protocol });
    }

    /// Whose clients somebody may see: none means everybody's.
    fn reach_of(&mut self, id: ClientId) -> Option<String> {
        self.tenant_of(id).filter(|tenant| !tenant.admin).map(|tenant| tenant.name.clone())
    }

    fn filter_for(&mut self, id: ClientId) -> ClientFilter {
        let asker = self.clients.at(id).number;
        ClientFilter { tenant: self.reach_of(id), asker, ..ClientFilter::default() }
    }

    fn filter_of_list(&mut self, id: ClientId, arguments: &Arguments<'_>) -> Result<ClientFilter, String> {
        let mut filter = self.filter_for(id);
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
        Ok(filter)
    }

    fn filter_of_kill(&mut self, id: ClientId, arguments: &Arguments<'_>) -> Result<ClientsAsked, String> {
        let mut filter = self.filter_for(id);
        if arguments.len() == 3 {
            filter.address = Some(quoted(arguments.at(2)).into_owned());
            return Ok(ClientsAsked::KillOne(filter));
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
        Ok(ClientsAsked::Kill(filter))
    }

    fn pause_of(&mut self, id: ClientId, arguments: &Arguments<'_>, now: Now) -> Result<Pause, String> {
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
        let asker = self.clients.at(id).number;
        Ok(Pause { tenant: self.reach_of(id), until, extent, asker })
    }

    /// What a client of any shard wants of those of this one.
    pub fn handle_clients_asked(&mut self, asked: &ClientsAsked, now: Now) -> ClientsTold {
        match asked {
            ClientsAsked::List(filter) => self.list_clients(filter, now),
            ClientsAsked::Kill(filter) | ClientsAsked::KillOne(filter) => {
                ClientsTold::Closed(self.kill_clients(filter, now))
            }
            ClientsAsked::Pause(pause) => {
                self.pauses.retain(|other| other.tenant != pause.tenant);
                self.pauses.push(pause.clone());
                self.apply_pauses();
                ClientsTold::Done
            }
            ClientsAsked::Unpause(tenant) => {
                // An administrator lets everybody go on.
                self.pauses.retain(|pause| tenant.is_some() && pause.tenant != *tenant);
                self.apply_pauses();
                ClientsTold::Done
            }
        }
    }

    fn list_clients(&mut self, filter: &ClientFilter, now: Now) -> ClientsTold {
        let bytes_max = CLIENT_LIST_BYTES_MAX / usize::from(self.settings.topology.shards());
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for id in self.matching(filter, now) {
            let line = self.client_line(id, now);
            bytes += line.len();
            if bytes > bytes_max {
                return ClientsTold::TooMany;
            }
            lines.push((self.clients.at(id).number, line));
        }
        ClientsTold::Lines(lines)
    }

    fn kill_clients(&mut self, filter: &ClientFilter, now: Now) -> u64 {
        let matching = self.matching(filter, now);
        let count = matching.len() as u64;
        for id in matching {
            if self.clients.at(id).number == filter.asker {
                self.counters.add(Counter::ClientsClosedKilled, 1);
                self.stop_listening(id);
            } else {
                self.expel(id, Counter::ClientsClosedKilled);
            }
        }
        count
    }

    fn matching(&mut self, filter: &ClientFilter, now: Now) -> Vec<ClientId> {
        let ids: Vec<ClientId> = self.clients.ids().collect();
        ids.into_iter().filter(|id| self.fits(*id, filter, now)).collect()
    }

    fn fits(&mut self, id: ClientId, filter: &ClientFilter, now: Now) -> bool {
        let user = filter.user.as_ref().map(|_| self.full_user_name(id));
        let Some(client) = self.clients.peek(id) else { return false };
        let tenant = client.identity.tenant.map(|tenant| self.quotas.tenant(tenant).name.as_str());
        let age = now.monotonic.since(client.opened);
        !filter.nobody
            && filter.tenant.as_deref().is_none_or(|wanted| tenant == Some(wanted))
            && filter.ids.as_ref().is_none_or(|ids| ids.contains(&client.number))
            && filter.address.as_deref().is_none_or(|wanted| *client.address.peer == *wanted)
            && filter.local_address.as_deref().is_none_or(|wanted| *client.address.local == *wanted)
            && filter.user == user
            && filter.older_than.is_none_or(|least| age >= least)
            && filter.except != Some(client.number)
    }

    /// One client as a line of words, as Redis shows them, and how much its requests matter.
    pub(super) fn client_line(&mut self, id: ClientId, now: Now) -> String {
        let user = self.full_user_name(id);
        let client = self.clients.at(id);
        let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let mut line = String::with_capacity(384);
        // Writing to a string does not fail.
        let _ = writeln!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags=N db=0 sub=0 psub=0 ssub=0 multi={} qbuf={} \
             qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl=0 oll={} omem={} tot-mem={} events=r cmd=NULL user={} \
             redir=-1 resp={} tier={} lib-name={} lib-ver={}",
            client.number,
            client.address.peer,
            client.address.local,
            name(&client.name),
            now.monotonic.since(client.opened).as_secs(),
            now.monotonic.since(client.last_heard).as_secs(),
            client.transaction.as_ref().map_or(-1, |transaction| transaction.len() as i64),
            client.decoder.held_bytes(),
            client.transaction.as_ref().map_or(0, |transaction| transaction.memory_bytes()),
            client.unanswered(),
            client.waiting_bytes(),
            client.memory_bytes(),
            user,
            if client.protocol == Protocol::Resp3 { 3 } else { 2 },
            client.identity.tier,
            name(&client.library[0]),
            name(&client.library[1]),
        );
        line
    }

    /// What of a client's waits by order now.
    pub(super) fn paused_for(&self, client: &Client) -> Paused {
        let tenant = client.identity.tenant.map(|tenant| self.quotas.tenant(tenant).name.as_str());
        let concerns = |pause: &&Pause| {
            pause.asker != client.number
                && pause.tenant.as_deref().is_none_or(|wanted| tenant == Some(wanted))
        };
        self.pauses.iter().filter(concerns).map(|pause| pause.extent).max().unwrap_or_default()
    }

    /// What waits by order of a client that has come, or is somebody else now, or whose pauses changed.
    pub(super) fn apply_pauses_to(&mut self, id: ClientId) {
        let Some(paused) = self.clients.peek(id).map(|client| self.paused_for(client)) else { return };
        let client = self.clients.at(id);
        client.paused = paused;
        // What waits for its turn to write waits on while nobody may write.
        let holds = paused == Paused::Writes && client.held_request.is_some();
        client.waits_by_order = paused == Paused::Everything || (client.waits_by_order && holds);
    }

    fn apply_pauses(&mut self) {
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            self.apply_pauses_to(id);
            self.list_to_resume(id);
        }
    }

    pub(super) fn end_pauses(&mut self, now: Now) {
        if self.pause_ends().is_some_and(|at| at <= now.monotonic) {
            self.pauses.retain(|pause| pause.until > now.monotonic);
            self.apply_pauses();
        }
    }

    /// When the next of those who wait by order may go on.
    pub(super) fn pause_ends(&self) -> Option<Timestamp> {
        self.pauses.iter().map(|pause| pause.until).min()
    }
}

impl ClientFilter {
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
