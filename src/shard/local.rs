//! Commands that weir answers itself: they are about the connection, or about weir.

use super::accounts::Charge;
use super::batch::Outcome;
use super::client::Rewrite;
use super::settlement::Settlement;
use super::{Question, Shard};
use crate::protocol::command::{Command, FanOut, LocalCommand, describe, quoted};
use crate::protocol::{Arguments, Protocol, Request, encode};
use crate::routing::slot_of;
use crate::values::ClientId;
use crate::values::limits::INFO_SECTIONS_MAX;
use crate::values::time::Now;

const OK: &str = "OK";

impl Shard {
    pub(super) fn answer_locally(
        &mut self,
        id: ClientId,
        command: &'static Command,
        local: LocalCommand,
        request: Request<'_>,
        now: Now,
    ) {
        use LocalCommand as C;
        let arguments = &request.arguments;
        let mut charge = None;
        if local.is_priced() && self.captured.is_none() {
            let Ok(taken) = self.admit(id, Some(command), arguments, now) else { return };
            charge = taken;
        }
        match local {
            C::Ping => self.ping(id, arguments),
            C::Echo => self.answer_now(id, |out, _| encode::bulk(out, arguments.at(1))),
            C::Time => self.answer_now(id, |out, _| time(out, now)),
            C::Auth => {
                if let Some(charge) = charge {
                    self.settle_charge(&charge, &Settlement::of(Outcome::answered(0)), now);
                }
                self.auth(id, arguments);
            }
            C::Hello => self.hello(id, arguments, now),
            C::Quit => {
                self.answer_now(id, |out, _| encode::simple(out, OK));
                self.stop_listening(id);
            }
            C::Reset => self.reset(id, now),
            C::Select => self.select(id, arguments),
            C::ClientId => {
                let number = self.clients.at(id).number;
                self.answer_now(id, |out, _| encode::integer(out, number as i64));
            }
            C::ClientGetName => self.client_name(id),
            C::ClientSetName => self.set_client_name(id, arguments.at(2)),
            C::ClientSetInfo => self.set_client_info(id, arguments.at(2), arguments.at(3)),
            C::ClientInfo => self.client_info(id, now),
            C::ClientGetRedir => self.answer_now(id, |out, _| encode::integer(out, -1)),
            C::ClientKill => self.client_kill(id, arguments, charge, now),
            C::ClientList => self.client_list(id, arguments, charge, now),
            C::ClientPause => self.client_pause(id, arguments, now),
            C::ClientUnpause => self.client_unpause(id, now),
            // Nobody is blocked here.
            C::ClientUnblock => self.answer_now(id, |out, _| encode::integer(out, 0)),
            C::ClientNoEvict => self.set_no_evict(id, arguments.at(2)),
            C::ClientNoTouch => self.answer_on_or_off(id, arguments.at(2)),
            C::Unwatch | C::ReadOnly | C::ReadWrite => self.answer_now(id, |out, _| encode::simple(out, OK)),
            C::AclWhoAmI => self.who_am_i(id),
            C::ClusterKeySlot => {
                self.answer_now(id, |out, _| encode::integer(out, i64::from(slot_of(arguments.at(2)))));
            }
            C::Command => {
                self.answer_priced(id, charge, now, |out, protocol| {
                    describe::answer(out, protocol, arguments);
                });
            }
            C::Help => self.answer_now(id, |out, _| describe::help(out, command)),
            // Whoever administers asks the stores.
            C::ConfigGet
                if self.captured.is_none() && self.tenant_of(id).is_some_and(|tenant| tenant.admin) =>
            {
                self.ask_stores(id, command, FanOut::Settings, request, now);
            }
            C::ConfigGet => self.config_get(id, arguments),
            C::Info => self.info(id, arguments, charge),
            C::Lolwut => self.answer_now(id, |out, protocol| {
                encode::verbatim(
                    out,
                    protocol,
                    concat!("A weir holds the river, not the fish. ver. ", env!("CARGO_PKG_VERSION"), "\n"),
                );
            }),
            C::Role => self.answer_now(id, |out, _| {
                encode::array(out, 3);
                encode::bulk(out, b"master");
                encode::integer(out, 0);
                encode::array(out, 0);
            }),
            C::Multi => self.begin_transaction(id),
            C::Discard => self.discard_transaction(id),
            C::Exec => self.execute_transaction(id, arguments, now),
            C::Qos => self.qos(id, command, request, now),
        }
    }

    fn ping(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        self.answer_now(id, |out, _| match arguments.get(1) {
            _ if arguments.len() > 2 => {
                encode::error(out, "ERR wrong number of arguments for 'ping' command");
            }
            Some(message) => encode::bulk(out, message),
            None => encode::simple(out, "PONG"),
        });
    }

    fn select(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let index = std::str::from_utf8(arguments.at(1)).ok().and_then(|text| text.parse::<i64>().ok());
        self.answer_now(id, |out, _| match index {
            Some(0) => encode::simple(out, OK),
            Some(_) => encode::error(out, "ERR DB index is out of range"),
            None => encode::error(out, "ERR value is not an integer or out of range"),
        });
    }

    /// Whether a client may be closed when all hold too much. Only who administers decides that.
    fn set_no_evict(&mut self, id: ClientId, word: &[u8]) {
        if self.tenant_of(id).is_some_and(|tenant| tenant.admin) {
            self.clients.at(id).no_evict = word.eq_ignore_ascii_case(b"on");
        }
        self.answer_on_or_off(id, word);
    }

    fn answer_on_or_off(&mut self, id: ClientId, word: &[u8]) {
        let fits = word.eq_ignore_ascii_case(b"on") || word.eq_ignore_ascii_case(b"off");
        self.answer_now(id, |out, _| {
            if fits { encode::simple(out, OK) } else { encode::error(out, "ERR syntax error") }
        });
    }

    fn who_am_i(&mut self, id: ClientId) {
        let name = self.full_user_name(id);
        self.answer_now(id, |out, _| encode::bulk(out, name.as_bytes()));
    }

    /// `tenant` or `tenant/user`.
    pub(super) fn full_user_name(&mut self, id: ClientId) -> String {
        let tenant = self.tenant_of(id).map_or_else(|| "default".to_owned(), |tenant| tenant.name.clone());
        match &self.clients.at(id).identity.user {
            Some(user) => format!("{tenant}/{user}"),
            None => tenant,
        }
    }

    /// The few parameters that benchmarks and clients read.
    fn config_get(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let known = [
            ("save", String::new()),
            ("appendonly", "no".to_owned()),
            ("maxmemory", "0".to_owned()),
            ("databases", "1".to_owned()),
            ("timeout", self.settings.idle_timeout.map_or(0, |timeout| timeout.as_secs()).to_string()),
            ("proto-max-bulk-len", self.settings.request_bytes_max.to_string()),
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
        self.answer_now(id, |out, protocol| {
            encode::map(out, protocol, asked.len());
            for (name, value) in &asked {
                encode::bulk(out, name.as_bytes());
                encode::bulk(out, value.as_bytes());
            }
        });
    }

    fn info(&mut self, id: ClientId, arguments: &Arguments<'_>, charge: Option<Charge>) {
        let named = arguments.iter().skip(1).take(INFO_SECTIONS_MAX);
        let sections = named.map(|word| quoted(word).to_lowercase()).collect();
        let protocol: Protocol = self.clients.at(id).protocol;
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        self.ask(id, to, Question::Info { sections, protocol });
    }
}

fn time(out: &mut Vec<u8>, now: Now) {
    encode::array(out, 2);
    encode::bulk(out, (now.unix_ms / 1000).to_string().as_bytes());
    encode::bulk(out, (now.unix_ms % 1000 * 1000).to_string().as_bytes());
}
