//! Commands that weir answers itself, because they are about the connection or about weir.

use super::Shard;
use crate::protocol::command::{Command, LocalCommand, describe, integer, quoted};
use crate::protocol::http::OF_CONNECTIONS;
use crate::protocol::{Arguments, Protocol, Request, encode};
use crate::routing::cluster::{Databases, NOT_IN_CLUSTER};
use crate::routing::slot_of;
use crate::shard::admission::Charge;
use crate::shard::clients::{Question, Replies, StoreView};
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::refusal::NotSent;
use crate::values::limits::INFO_SECTIONS_MAX;
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, Database};

const OK: &str = "OK";

impl Shard {
    /// Answers a client's command that weir carries out itself (`local` says which). Some answers come later, from the
    /// control executor (thread that handles no data of clients). `charge` is the price taken for the command, None if
    /// it has none; it is corrected to the real price when the answer is made, here or later.
    pub(super) fn answer_locally(
        &mut self,
        id: ClientId,
        command: &'static Command,
        local: LocalCommand,
        charge: Option<Charge>,
        request: Request<'_>,
        now: Now,
    ) {
        use LocalCommand as C;
        let arguments = &request.arguments;
        // The `MULTI` and `EXEC` of HTTP's `/multi-exec` are sent by weir itself, so they are let through.
        let is_shared = local.is_about_connection() && self.clients.client(id).speaks_http();
        if is_shared && !matches!(local, C::Multi | C::Exec) {
            self.settle(charge, &Settlement::default(), now);
            return self.refuse_about_connection(id);
        }
        let (env, front, admission) = (&mut self.env, &mut self.clients, &mut self.admission);
        match local {
            C::Ping => self.ping(id, arguments),
            C::Echo => front.answer_now(env, id, |out, _| encode::bulk(out, arguments.at(1))),
            C::Time => front.answer_now(env, id, |out, _| time(out, now)),
            C::Auth => {
                self.settle(charge, &Settlement::of(Outcome::answered(0)), now);
                let before = self.clients.client(id).identity().tenant_id();
                self.clients.auth(&mut self.env, &mut self.admission, id, arguments);
                self.keep_redirects_within(before, id, now);
            }
            C::Hello => {
                self.settle(charge, &Settlement::of(Outcome::answered(0)), now);
                let client = self.clients.client(id);
                let (before, protocol) = (client.identity().tenant_id(), client.protocol());
                self.clients.hello(&mut self.env, &mut self.admission, id, arguments, now);
                self.follow_dialect((id, protocol), now);
                self.keep_redirects_within(before, id, now);
            }
            C::Quit => {
                front.answer_now(env, id, |out, _| encode::simple(out, OK));
                front.stop_listening(env, id);
            }
            C::Reset => {
                let before = front.client(id).identity().tenant_id();
                self.end_ties(id, now);
                self.clients.reset(&mut self.env, id, now);
                self.keep_redirects_within(before, id, now);
            }
            C::Select => self.select(id, arguments),
            C::ClientId => {
                let number = front.client(id).number();
                front.answer_now(env, id, |out, _| encode::integer(out, number as i64));
            }
            C::ClientGetName => front.client_name(env, id),
            C::ClientSetName => front.set_client_name(env, admission, id, arguments.at(2)),
            C::ClientSetInfo => front.set_client_info(env, id, arguments.at(2), arguments.at(3)),
            C::ClientInfo => front.client_info(env, id, arguments, now),
            C::ClientGetRedir => {
                let redirect = front.client(id).redirect();
                front.answer_now(env, id, |out, _| encode::integer(out, redirect));
            }
            C::ClientKill | C::ClientList | C::ClientPause | C::ClientUnblock | C::ClientUnpause => {
                self.ask_about_clients(id, local, arguments, charge, now);
            }
            // Capabilities allow a server to answer in ways that weir never does.
            C::ClientCapa => front.answer_now(env, id, |out, _| encode::simple(out, OK)),
            C::ClientCaching => self.client_caching(id, arguments.at(2)),
            C::ClientReply => self.client_reply(id, arguments.at(2)),
            C::ClientTracking => {
                self.settle(charge, &Settlement::of(Outcome::answered(0)), now);
                self.client_tracking(id, command, arguments, now);
            }
            C::ClientTrackingInfo => front.tracking_info(env, id),
            C::ClientNoEvict => self.set_no_evict(id, arguments.at(2)),
            C::ClientNoTouch => self.answer_on_or_off(id, arguments.at(2)),
            C::ReadOnly | C::ReadWrite => front.answer_now(env, id, |out, _| encode::simple(out, OK)),
            C::Unwatch => {
                self.end_watch(id, now);
                self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, OK));
            }
            C::AclGetUser | C::AclList | C::AclUsers => {
                self.describe_users(id, local, arguments, charge, now);
            }
            C::AclWhoAmI => self.who_am_i(id),
            C::ClusterKeySlot => {
                front.answer_now(env, id, |out, _| encode::integer(out, i64::from(slot_of(arguments.at(2)))));
            }
            C::Command => {
                self.answer_priced(id, charge, now, |out, protocol| {
                    describe::answer(out, protocol, arguments);
                });
            }
            C::Help => front.answer_now(env, id, |out, _| describe::help(out, command)),
            C::ConfigGet => self.config_get(id, arguments),
            C::Info => self.info(id, arguments, charge),
            C::Lolwut => front.answer_lolwut(env, id),
            C::Role => front.answer_now(env, id, |out, _| {
                encode::array(out, 3);
                encode::bulk(out, b"master");
                encode::integer(out, 0);
                encode::array(out, 0);
            }),
            C::Monitor => front.begin_monitoring(env, id),
            C::Multi => self.begin_transaction(id),
            C::Discard => self.discard_transaction(id, now),
            C::Exec => self.execute_transaction(id, charge, now),
            C::Qos => self.qos(id, command, request, now),
        }
    }

    /// Refuses a command about the connection that came over HTTP: such a connection may be shared by several
    /// users, none of whom may change the state of the connection for the other users.
    pub(super) fn refuse_about_connection(&mut self, id: ClientId) {
        self.refuse_in_transaction(id, &format!("ERR {OF_CONNECTIONS}"));
    }

    /// Answers a client's `PING`, with an error if the only store is busy with a script and would refuse all
    /// other requests, as that store would.
    fn ping(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let is_among_messages = self.clients.client(id).is_subscriber_only();
        if let Some(error) = self.only_store_is_busy().filter(|_| !is_among_messages) {
            return self.answer_error(id, &error);
        }
        self.clients.answer_now(&mut self.env, id, |out, _| match arguments.get(1) {
            word if is_among_messages && arguments.len() <= 2 => {
                encode::array(out, 2);
                encode::bulk(out, b"pong");
                encode::bulk(out, word.unwrap_or_default());
            }
            _ if arguments.len() > 2 => {
                encode::error(out, "ERR wrong number of arguments for 'ping' command");
            }
            Some(message) => encode::bulk(out, message),
            None => encode::simple(out, "PONG"),
        });
    }

    /// Answers a client's `SELECT`: changes the database of its next requests. Connections to that database
    /// are opened when it is used.
    fn select(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        match self.database_named(arguments).and_then(|database| self.select_database(id, database)) {
            Ok(()) => self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, OK)),
            Err(text) => self.answer_error(id, &text),
        }
    }

    /// Changes the database of a client if its tenant may use the new one. The error is the text of the
    /// reply.
    fn select_database(&mut self, id: ClientId, database: Database) -> Result<(), String> {
        if let Some(tenant) = self.tenant_of(id).filter(|tenant| !tenant.may_use(database)) {
            return Err(tenant.refusal_of(database.0));
        }
        self.change_database(id, database);
        Ok(())
    }

    /// Changes the database of a client to the one (`number`) that its HTTP request names. The error is the
    /// text of the reply.
    pub(super) fn assume_database(&mut self, id: ClientId, number: i64) -> Result<(), String> {
        let database = self.database_numbered(number)?;
        if self.clients.find(id).is_some_and(|client| client.database() != database) {
            self.select_database(id, database)?;
        }
        Ok(())
    }

    /// Returns the database of a `SELECT` within a client's transaction; None if it is invalid, or if it is the
    /// client's own database and no other database was selected before in the transaction. If a database is
    /// returned, the `SELECT` is sent to the store with the transaction; else weir answers it.
    pub(super) fn other_database(&mut self, id: ClientId, arguments: &Arguments<'_>) -> Option<Database> {
        let client = self.clients.client(id);
        let current = client.database();
        let is_changed = client.transaction().is_some_and(|transaction| transaction.database().is_some());
        self.database_named(arguments).ok().filter(|database| is_changed || *database != current)
    }

    /// Returns the database whose number the first argument of a `SELECT` names. The error is the text of the
    /// reply: the word is no number, or stores have no such database.
    pub(super) fn database_named(&self, arguments: &Arguments<'_>) -> Result<Database, String> {
        let index = integer(arguments.at(1)).ok_or("ERR value is not an integer or out of range")?;
        if i32::try_from(index).is_err() {
            let text = "ERR value is out of range, value must between -2147483648 and 2147483647";
            return Err(text.to_owned());
        }
        self.database_numbered(index)
    }

    /// Returns the database with this number, if stores have that many. The error is the text of the reply: stores have
    /// no such database or, in front of a cluster, no node has said yet how many it has.
    fn database_numbered(&self, number: i64) -> Result<Database, String> {
        if number == 0 {
            return Ok(Database::FIRST);
        }
        let count = match self.env.databases {
            Some(Databases::Numbered(count)) => count,
            Some(Databases::OnlyFirst) => return Err(NOT_IN_CLUSTER.to_owned()),
            None => return Err(NotSent::Unconfirmed.words(self.env.backend_name(BackendId(0)))),
        };
        let found = u8::try_from(number).ok().filter(|number| u16::from(*number) < count);
        found.map(Database).ok_or_else(|| "ERR DB index is out of range".to_owned())
    }

    /// Answers `CLIENT NO-EVICT`: sets (`word` is `ON` or `OFF`) whether a client is spared when clients are
    /// closed because all together hold too many bytes. Has no effect unless the client's tenant is an
    /// administrator, nor if the word is another.
    fn set_no_evict(&mut self, id: ClientId, word: &[u8]) {
        if let Some(is_on) = on_or_off(word)
            && self.is_admin(id)
        {
            self.clients.client(id).set_no_evict(is_on);
        }
        self.answer_on_or_off(id, word);
    }

    fn answer_on_or_off(&mut self, id: ClientId, word: &[u8]) {
        let fits = on_or_off(word).is_some();
        self.clients.answer_now(&mut self.env, id, |out, _| {
            if fits { encode::simple(out, OK) } else { encode::error(out, "ERR syntax error") }
        });
    }

    /// Carries out a client's `CLIENT REPLY word`: switches the replies to its next requests on (`ON`) or
    /// off (`OFF`), or off for one request (`SKIP`). Only `ON` and an error are answered. Messages of
    /// subscriptions are sent in any case.
    fn client_reply(&mut self, id: ClientId, word: &[u8]) {
        let says = |expected: &str| word.eq_ignore_ascii_case(expected.as_bytes());
        let client = self.clients.client(id);
        let is_known = ["on", "off", "skip"].into_iter().any(says);
        if says("on") {
            client.set_replies(Replies::All);
        } else if says("off") {
            client.set_replies(Replies::None);
        } else if says("skip") && client.replies() != Replies::None {
            // `CLIENT REPLY SKIP` itself gets no reply, so it counts as the first of two.
            client.set_replies(Replies::NoneTo(2));
        }
        self.clients.answer_now(&mut self.env, id, |out, _| {
            if is_known { encode::simple(out, OK) } else { encode::error(out, "ERR syntax error") }
        });
    }

    fn who_am_i(&mut self, id: ClientId) {
        let name = self.clients.client(id).identity().full_name(&self.env.quotas);
        self.clients.answer_now(&mut self.env, id, |out, _| encode::bulk(out, name.as_bytes()));
    }

    /// Answers a client's `CONFIG GET` with the few parameters that benchmarks and clients read, without
    /// asking a store.
    fn config_get(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let databases = self.env.databases.map_or(1, Databases::count);
        let known = [
            ("save", String::new()),
            ("appendonly", "no".to_owned()),
            ("maxmemory", "0".to_owned()),
            ("databases", databases.to_string()),
            ("timeout", self.env.settings.idle_timeout.map_or(0, |timeout| timeout.as_secs()).to_string()),
            ("proto-max-bulk-len", self.env.settings.request_bytes_max.to_string()),
        ];
        let asked: Vec<_> = known
            .iter()
            .filter(|(name, _)| {
                arguments
                    .iter()
                    .skip(2)
                    .any(|word| word == b"*" || word.eq_ignore_ascii_case(name.as_bytes()))
            })
            .collect();
        self.clients.answer_now(&mut self.env, id, |out, protocol| {
            encode::map(out, protocol, asked.len());
            for (name, value) in &asked {
                encode::bulk(out, name.as_bytes());
                encode::bulk(out, value.as_bytes());
            }
        });
    }

    fn info(&mut self, id: ClientId, arguments: &Arguments<'_>, charge: Option<Charge>) {
        let question = self.asked_by_info(id, arguments);
        self.clients.ask(&self.env, id, charge, question);
    }

    /// Returns the question that a client's `INFO` asks the control executor (thread that handles no data of clients):
    /// the sections that it names, and how much of the stores' figures the client may see.
    pub(super) fn asked_by_info(&mut self, id: ClientId, arguments: &Arguments<'_>) -> Question {
        let named = arguments.iter().skip(1).take(INFO_SECTIONS_MAX);
        let sections = named.map(|word| section_named(quoted(word).to_lowercase())).collect();
        let protocol: Protocol = self.clients.client(id).protocol();
        let view = match self.tenant_of(id) {
            Some(tenant) if tenant.admin => StoreView::All,
            Some(tenant) if tenant.keys.is_empty() && tenant.databases.is_empty() => StoreView::KeyCounts,
            _ => StoreView::Settings,
        };
        Question::Info { sections, view, protocol }
    }

    /// Answers a request that weir carries out itself and that has a price: `write` writes the reply, whose
    /// bytes are charged. `charge` is the price taken before; None if it has none.
    pub(super) fn answer_priced(
        &mut self,
        id: ClientId,
        charge: Option<Charge>,
        now: Now,
        write: impl FnOnce(&mut Vec<u8>, Protocol),
    ) {
        let Some(client) = self.clients.find(id) else { return };
        let protocol = client.protocol();
        let mut text = self.env.pool.take();
        write(&mut text, protocol);
        self.settle(charge, &Settlement::of(Outcome::answered(text.len())), now);
        self.clients.answer_now(&mut self.env, id, |out, _| out.extend_from_slice(&text));
        self.env.pool.give(text);
    }

    /// Corrects a charge from the estimate that was taken for a request to its real price, which follows from the
    /// measurements of the `reply` (an empty record of them gives the price back); does nothing without a charge.
    pub(super) fn settle(&mut self, charge: Option<Charge>, reply: &Settlement, now: Now) {
        if let Some(charge) = charge {
            // A price that is given back has not paid for the request's bytes.
            self.is_paid &= *reply != Settlement::default();
            self.admission.settle(&charge, reply, now);
        }
    }
}

/// Returns true for `ON`, false for `OFF`, in any case of letters; None for any other word.
fn on_or_off(word: &[u8]) -> Option<bool> {
    let is_on = word.eq_ignore_ascii_case(b"on");
    (is_on || word.eq_ignore_ascii_case(b"off")).then_some(is_on)
}

/// Returns the present name of a section of `INFO` that a client names: `weirshards` was called `weir_shards`.
fn section_named(name: String) -> String {
    if name == "weir_shards" { "weirshards".to_owned() } else { name }
}

fn time(out: &mut Vec<u8>, now: Now) {
    encode::array(out, 2);
    encode::bulk(out, (now.unix_ms / 1000).to_string().as_bytes());
    encode::bulk(out, (now.unix_ms % 1000 * 1000).to_string().as_bytes());
}
