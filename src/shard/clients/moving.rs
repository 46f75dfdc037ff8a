//! The move of clients to another weir process that takes over from this one: when a client can move, and
//! which of its state goes along.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ClientStage;
use super::client::{Client, Ending};
use super::identity::{Chosen, Identity};
use crate::protocol::Protocol;
use crate::shard::admission::AdmissionStage;
use crate::shard::env::Env;
use crate::shard::request::Overdue;
use crate::values::limits::MOVED_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{ClientId, Database};

/// The state of a client that goes along when it moves to another weir process. Everything else of the client
/// is empty when it moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// True if the client speaks HTTP. It identifies itself with each request, so no identity goes along.
    pub http: bool,
    resp3: bool,
    database: u8,
    tenant: Option<String>,
    user: Option<String>,
    tier: Option<String>,
    deadline_ms: Option<u64>,
    keeps_deadlines: bool,
    name: String,
    library: [String; 2],
    no_evict: bool,
    logins_failed: u8,
    /// The bytes received of the client's next request.
    #[serde(skip)]
    pub held: Vec<u8>,
}

/// The answer to whether a client can move to another process now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The client can move to the successor process: no request of it is in flight.
    Ready,
    /// The client waits for replies or for its turn, or is leaving. Nothing more is read from it meanwhile,
    /// or the wait might never end.
    Owed,
    /// The client must send more first: the rest of a large request, or the end of a transaction.
    Unfinished,
}

impl ClientStage {
    /// Returns the ids of all clients of this shard.
    pub fn ids(&self) -> Vec<ClientId> {
        self.clients.ids().collect()
    }

    /// Determines whether a client can move to another process now.
    pub fn readiness(&self, id: ClientId) -> Readiness {
        let Some(client) = self.clients.peek(id) else { return Readiness::Owed };
        if client.ending != Ending::Open || client.is_owed() || client.is_stuck() || client.unsettled > 0 {
            return Readiness::Owed;
        }
        // Watched keys and subscriptions belong to a connection to a store, which cannot move with the client. A
        // monitor would miss lines meanwhile, and a client without replies would be sent some again.
        if client.is_tied() || client.is_monitor || client.order.is_silent() {
            return Readiness::Unfinished;
        }
        let half = client.decoder.is_lent() || client.held_bytes() > MOVED_BYTES_MAX;
        let midway = client.http.as_ref().is_some_and(|http| http.is_midway());
        if half || midway || client.transaction.is_some() {
            return Readiness::Unfinished;
        }
        Readiness::Ready
    }

    /// Removes a client that is ready to move. Returns the state that goes along.
    pub fn take_session(&mut self, env: &mut Env, id: ClientId) -> Session {
        let client = self.clients.at(id);
        let tenant = client.identity.tenant(&env.quotas).map(|tenant| tenant.name.clone());
        let session = Session::of(client, tenant);
        self.forget(env, id);
        session
    }

    /// Takes over a client from another process. Its tenant is found by name; if the quotas no longer have
    /// it, the client must log in again.
    pub fn adopt(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        session: &Session,
        now: Now,
    ) -> ClientId {
        if session.http {
            return self.open_http(env, now);
        }
        let id = self.open(env, now);
        let known = session.tenant.as_ref().and_then(|name| env.quotas.find(name));
        let Some(client) = self.clients.get(id) else { return id };
        client.protocol = if session.resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
        client.database = Database(session.database);
        client.name = session.name.clone().into_bytes();
        client.library = session.library.clone().map(String::into_bytes);
        client.no_evict = session.no_evict;
        client.logins_failed = session.logins_failed;
        if let Some(tenant) = known {
            let user: Option<Box<str>> = session.user.clone().map(Into::into);
            let account =
                user.as_ref().and_then(|user| admission.account_of(env.quotas.tenant(tenant), user));
            client.identity = Identity::of(&env.quotas, tenant, user, account, session.chosen());
            self.keep_seat(env, id, now);
            self.apply_pauses_to(&env.quotas, id);
        }
        // In another database its requests would change other keys.
        if u16::from(session.database) >= env.settings.databases {
            self.stop_listening(env, id);
        }
        id
    }
}

impl Session {
    fn of(client: &Client, tenant: Option<String>) -> Self {
        let chosen = client.identity.chosen;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Self {
            http: client.speaks_http,
            resp3: client.protocol == Protocol::Resp3,
            database: client.database.0,
            tenant,
            user: client.identity.user.as_deref().map(str::to_owned),
            tier: chosen.tier.map(|tier| tier.name().to_owned()),
            deadline_ms: chosen.deadline.map(|deadline| deadline.as_millis() as u64),
            keeps_deadlines: chosen.overdue == Overdue::Awaited,
            name: text(&client.name),
            library: [text(&client.library[0]), text(&client.library[1])],
            no_evict: client.no_evict,
            logins_failed: client.logins_failed,
            held: client.decoder.held().to_vec(),
        }
    }

    fn chosen(&self) -> Chosen {
        Chosen {
            tier: self.tier.as_ref().and_then(|word| word.parse().ok()),
            deadline: self.deadline_ms.map(Duration::from_millis),
            overdue: if self.keeps_deadlines { Overdue::Awaited } else { Overdue::Answered },
        }
    }
}
