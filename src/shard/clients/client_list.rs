//! `CLIENT LIST`, `CLIENT KILL`, `CLIENT UNBLOCK` and `CLIENT PAUSE`, carried out on the clients of one shard. They
//! concern weir's own client connections on all shards: an administrator's command those of all tenants, any other
//! client's those of its tenant.
//!
//! ```text
//!   request ── what is asked ──> control executor ── to all shards ──> told by each ── one reply ──> client
//! ```

use std::fmt::Write as _;

use super::ClientStage;
use super::client::Client;
use super::client_filter::{ClientFilter, ClientKind, ClientsAsked, ClientsTold};
use crate::config::Quotas;
use crate::protocol::Protocol;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::ClientId;
use crate::values::limits::CLIENT_LIST_BYTES_MAX;
use crate::values::time::Now;

impl ClientStage {
    /// Carries out a `CLIENT` command, sent by a client of any shard, on the clients of this shard, and returns this
    /// shard's part of the reply. `CLIENT UNBLOCK` is carried out by the caller.
    pub fn handle_clients_asked(&mut self, env: &mut Env, asked: &ClientsAsked, now: Now) -> ClientsTold {
        match asked {
            ClientsAsked::List(filter) => self.list_clients(env, filter, now),
            ClientsAsked::Kill(filter) | ClientsAsked::KillOne(filter) => {
                ClientsTold::Counted(self.kill_clients(env, filter, now))
            }
            // The shard has unblocked its clients already.
            ClientsAsked::Unblock(..) => ClientsTold::Done,
            ClientsAsked::Pause(_) | ClientsAsked::Unpause(_) => {
                self.change_pauses(&env.quotas, asked, now);
                ClientsTold::Done
            }
        }
    }

    fn list_clients(&self, env: &Env, filter: &ClientFilter, now: Now) -> ClientsTold {
        let bytes_max = CLIENT_LIST_BYTES_MAX / usize::from(env.settings.topology.shards());
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for client in self.clients.all().filter(|client| filter.fits(client, &env.quotas, now)) {
            let line = client.line_with_tier(&env.quotas, now);
            bytes += line.len();
            if bytes > bytes_max {
                return ClientsTold::TooMany;
            }
            lines.push((client.number, line));
        }
        ClientsTold::Lines(lines)
    }

    /// Returns the ids of the clients of this shard that a filter selects.
    pub fn clients_of(&self, env: &Env, filter: &ClientFilter, now: Now) -> Vec<ClientId> {
        let fits = |id: &ClientId| {
            self.clients.peek(*id).is_some_and(|client| filter.fits(client, &env.quotas, now))
        };
        self.clients.ids().filter(fits).collect()
    }

    fn kill_clients(&mut self, env: &mut Env, filter: &ClientFilter, now: Now) -> u64 {
        let matching = self.clients_of(env, filter, now);
        let count = matching.len() as u64;
        for id in matching {
            if self.clients.at(id).number == filter.asker {
                env.counters.add(Counter::ClientsClosedKilled, 1);
                self.stop_listening(env, id);
            } else {
                self.expel(env, id, Counter::ClientsClosedKilled);
            }
        }
        count
    }
}

impl ClientFilter {
    fn fits(&self, client: &Client, quotas: &Quotas, now: Now) -> bool {
        let tenant = client.identity.tenant(quotas).map(|tenant| tenant.name.as_str());
        let age = now.monotonic.since(client.opened);
        self.kind.is_none_or(|kind| client.is_of(kind))
            && self.tenant.as_deref().is_none_or(|wanted| tenant == Some(wanted))
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&client.number))
            && self.address.as_deref().is_none_or(|wanted| *client.address.peer == *wanted)
            && self.local_address.as_deref().is_none_or(|wanted| *client.address.local == *wanted)
            && self.user.as_ref().is_none_or(|wanted| client.identity.full_name(quotas) == *wanted)
            && self.older_than.is_none_or(|least| age >= least)
            && self.except != Some(client.number)
    }
}

impl Client {
    fn is_of(&self, kind: ClientKind) -> bool {
        let is_subscribed = self.ties.as_ref().is_some_and(|ties| ties.subscriptions.is_some());
        match kind {
            ClientKind::Normal => !is_subscribed,
            ClientKind::PubSub => is_subscribed,
            ClientKind::Nobody => false,
        }
    }

    /// Returns the client's flags in the letters of `CLIENT LIST`: `O` for a monitor, `b` in a blocking
    /// command or held back by `CLIENT PAUSE`, `P` subscribed to channels, `t` while keys are tracked, `R` if
    /// their messages go to a client that is gone, `B` for broadcasts, `x` in a transaction, `U` over a Unix
    /// socket, `e` for `CLIENT NO-EVICT`, `N` none of these.
    fn flags(&self) -> String {
        let ties = self.ties.as_ref();
        let waits = ties.is_some_and(|ties| ties.link.is_some() && ties.watch.is_none());
        let is_blocked = waits || self.is_held_by_pause();
        let is_subscribed = ties.is_some_and(|ties| ties.subscriptions.is_some());
        let tracking = ties.and_then(|ties| ties.tracking.as_ref());
        let options = tracking.and_then(|tracking| tracking.options());
        let is_broadcast = options.is_some_and(|options| options.is_broadcast);
        let is_broken = tracking.is_some_and(|tracking| tracking.is_broken());
        let all = [
            ('O', self.is_monitor),
            ('P', is_subscribed),
            ('x', self.transaction.is_some()),
            ('b', is_blocked),
            ('t', options.is_some()),
            ('R', is_broken),
            ('B', is_broadcast),
            ('U', self.address.is_unix),
            ('e', self.no_evict),
        ];
        let flags: String = all.into_iter().filter(|(_, is_set)| *is_set).map(|(letter, _)| letter).collect();
        if flags.is_empty() { "N".to_owned() } else { flags }
    }

    /// Describes the client in one line of `name=value` words: the line of [`Client::line`], with the client's
    /// tier (importance) as the last word. `CLIENT LIST` answers with such lines.
    fn line_with_tier(&self, quotas: &Quotas, now: Now) -> String {
        let mut line = self.line(quotas, now);
        line.pop();
        // Writing to a string does not fail.
        let _ = writeln!(line, " tier={}", self.identity.tier);
        line
    }

    /// Describes the client in one line of `name=value` words, which are exactly those of Redis's `CLIENT
    /// INFO`: the client library go-redis refuses a reply with any other word.
    pub fn line(&self, quotas: &Quotas, now: Now) -> String {
        let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let subscriptions = self.ties.as_ref().and_then(|ties| ties.subscriptions.as_ref());
        let channels = subscriptions.map_or([0; 3], |subscriptions| subscriptions.counts());
        let mut line = String::with_capacity(384);
        // Writing to a string does not fail.
        let _ = writeln!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={} qbuf={} \
             qbuf-free=0 argv-mem={} multi-mem={} rbs=0 rbp=0 obl=0 oll={} omem={} tot-mem={} events=r cmd={} user={} \
             redir={} resp={} lib-name={} lib-ver={}",
            self.number,
            self.address.peer,
            self.address.local,
            name(&self.name),
            now.monotonic.since(self.opened).as_secs(),
            now.monotonic.since(self.last_heard).as_secs(),
            self.flags(),
            self.database.0,
            channels[0],
            channels[1],
            channels[2],
            self.transaction.as_ref().map_or(-1, |transaction| transaction.len() as i64),
            self.decoder.held_bytes() + self.asking_bytes[0] as usize,
            self.asking_bytes[1],
            self.transaction.as_ref().map_or(0, |transaction| transaction.memory_bytes()),
            u8::from(self.order.waiting_bytes() > 0),
            self.order.waiting_bytes(),
            self.memory_bytes(),
            self.last_command.map_or("NULL", |command| command.name),
            self.identity.full_name(quotas),
            self.redirect(),
            if self.protocol == Protocol::Resp3 { 3 } else { 2 },
            name(&self.library[0]),
            name(&self.library[1]),
        );
        line
    }
}
