//! Commands about clients (`CLIENT LIST`, `KILL`, `UNBLOCK`, `PAUSE`, `UNPAUSE`), which all shards are asked. An
//! administrator reaches all clients, others those of their tenant.

use super::Shard;
use crate::protocol::command::LocalCommand;
use crate::protocol::{Arguments, encode};
use crate::shard::admission::Charge;
use crate::shard::clients::Question;
use crate::shard::clients::client_filter::{ClientsAsked, Reach};
use crate::values::ClientId;
use crate::values::time::Now;

impl Shard {
    /// Passes a client's command about other clients (such as `CLIENT KILL`) to all shards, through the control
    /// executor (thread that handles no data of clients), which sends back the joined answer. `charge` is the price
    /// taken for the command (None if it has none), which is corrected to the real price with that answer, or with an
    /// error here.
    pub(super) fn ask_about_clients(
        &mut self,
        id: ClientId,
        command: LocalCommand,
        arguments: &Arguments<'_>,
        charge: Option<Charge>,
        now: Now,
    ) {
        match self.asked_about_clients(id, command, arguments, now) {
            Ok(asked) => {
                let client = self.clients.client(id);
                client.note_asking(Some(arguments));
                let protocol = client.protocol();
                self.clients.ask(&self.env, id, charge, Question::Clients { asked, protocol });
            }
            Err(text) => self.answer_priced(id, charge, now, |out, _| encode::error(out, &text)),
        }
    }

    /// Reads a client's command about other clients (`CLIENT LIST`, `KILL`, `UNBLOCK`, `PAUSE`, `UNPAUSE`)
    /// into the question that all shards are asked. The error is the text of the reply.
    pub(super) fn asked_about_clients(
        &mut self,
        id: ClientId,
        command: LocalCommand,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Result<ClientsAsked, String> {
        let asker = self.reach_of(id);
        match command {
            LocalCommand::ClientList => ClientsAsked::list(asker, arguments),
            LocalCommand::ClientKill => {
                let tenant = asker.tenant.clone();
                ClientsAsked::kill(asker, arguments).and_then(|asked| self.with_known_user(asked, tenant))
            }
            LocalCommand::ClientUnblock => ClientsAsked::unblock(asker, arguments),
            LocalCommand::ClientPause => ClientsAsked::pause(asker, arguments, now),
            _ => Ok(ClientsAsked::Unpause(asker.tenant)),
        }
    }

    /// Checks that the user of a `CLIENT KILL USER` exists: a tenant, or a user of one. For a client that is
    /// confined to a `tenant` (None for an administrator's), only that tenant counts as existing. The error is
    /// the text of the reply.
    fn with_known_user(&self, asked: ClientsAsked, tenant: Option<String>) -> Result<ClientsAsked, String> {
        let Some(user) = asked.named_user() else { return Ok(asked) };
        let name = user.split('/').next().unwrap_or(user);
        let may_know = tenant.is_none_or(|tenant| tenant == name);
        if may_know && self.env.quotas.find(name).is_some() {
            return Ok(asked);
        }
        Err(format!("ERR No such user '{user}'"))
    }

    fn reach_of(&mut self, id: ClientId) -> Reach {
        let client = self.clients.client(id);
        let tenant = client.identity().tenant(&self.env.quotas).filter(|tenant| !tenant.admin);
        Reach { tenant: tenant.map(|tenant| tenant.name.clone()), number: client.number() }
    }
}
