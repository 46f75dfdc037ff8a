//! The move of clients to another weir process that takes over from this one: when a client can move, and
//! which part of its state moves with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ClientStage;
use super::client::{Client, Ending};
use super::held::HeldRequest;
use super::identity::{Chosen, Identity};
use super::order::Replies;
use super::ties::Withdrawn;
use crate::protocol::Protocol;
use crate::shard::admission::AdmissionStage;
use crate::shard::env::Env;
use crate::shard::request::{Nature, Overdue, PrivateId};
use crate::values::limits::MOVED_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{ClientId, Database};

/// The state of a client that goes along when it moves to another weir process. Everything else of the client is empty
/// when it moves, or begins anew in the other process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// True if the client speaks HTTP. Such a client identifies itself with each request, so its identity is
    /// not part of the state.
    pub http: bool,
    resp3: bool,
    database: u8,
    /// The name of the tenant that the client has logged in as; None if it has not logged in.
    tenant: Option<String>,
    user: Option<String>,
    tier: Option<String>,
    deadline_ms: Option<u64>,
    keeps_deadlines: bool,
    name: String,
    library: [String; 2],
    no_evict: bool,
    #[serde(default)]
    replies: Replies,
    logins_failed: u8,
    /// The pauses (`CLIENT PAUSE`) that the client has ordered and may end: for each the tenant whose clients wait,
    /// None for the pause of all clients.
    orders_pauses: Vec<Option<String>>,
    /// True if `held` begins with a blocking command in which the client waits.
    #[serde(default)]
    pub waits: bool,
    /// The number of bytes of the blocking command in `held`; 0 if the client waits in none.
    call_bytes: usize,
    /// The time left, in milliseconds, until the reply to the blocking command is useless; None for no
    /// deadline.
    wait_deadline_ms: Option<u64>,
    /// The bytes received of requests that have not been carried out; the last may be incomplete. A blocking command
    /// that still waits comes first, with the rest of its timeout.
    #[serde(skip)]
    pub held: Vec<u8>,
}

/// Answer to the question whether a client can move to another process now, with the reason if it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The client can move to the successor process: no request of it is in flight. A blocking command that was ended
    /// at its store for the move, and requests that a `CLIENT PAUSE` holds back, go along.
    Ready,
    /// The client waits for replies, has sent requests that are not handled yet, or is leaving, or a store may still
    /// carry out a request that weir has answered. Weir reads no more requests from it meanwhile, since otherwise it
    /// might never be without requests.
    Owed,
    /// The client waits in a blocking command, which may never end. It can move once the command is withdrawn (ended at
    /// its store without a reply to the client); weir reads nothing from it meanwhile.
    Waits,
    /// The client waits in a blocking command and cannot move, because the command cannot be withdrawn (ended without a
    /// reply to the client) from its store, or because of other state, such as watched keys, subscriptions or a later
    /// long request. Weir continues to read from it, so that its end is noticed.
    Stays,
    /// The client cannot move before it has sent more: the rest of a large request, or a command that ends its
    /// transaction, its ties (watched or tracked keys, subscriptions) to stores, or its `MONITOR`.
    Unfinished,
}

impl ClientStage {
    /// Returns the ids of all clients of this shard.
    pub fn ids(&self) -> Vec<ClientId> {
        self.clients.ids().collect()
    }

    /// Returns whether a client can move to another process now, and if not, why.
    pub fn readiness(&self, id: ClientId) -> Readiness {
        let Some(client) = self.clients.peek(id) else { return Readiness::Owed };
        if client.is_withdrawn() {
            return if client.does_nothing_but_wait() { Readiness::Ready } else { Readiness::Owed };
        }
        let is_held = client.waits_for_pause_alone();
        let is_busy = !is_held && (client.is_owed() || client.is_stuck());
        if client.ending != Ending::Open || is_busy || client.unsettled > 0 {
            return Readiness::Owed;
        }
        // Watched keys and subscriptions belong to a connection to a store, which cannot move with the client. A
        // monitor would miss lines meanwhile.
        if client.is_tied() || client.is_monitor {
            return Readiness::Unfinished;
        }
        let half = client.decoder.is_lent() || client.held_bytes() > MOVED_BYTES_MAX;
        let midway = client.http.as_ref().is_some_and(|http| http.is_midway());
        if half || midway || client.transaction.is_some() {
            return Readiness::Unfinished;
        }
        Readiness::Ready
    }

    /// Returns the private link (the client's own connection to a store) of a client's one unanswered
    /// request, if it has a link and such a request.
    pub fn link_at_work(&self, id: ClientId) -> Option<PrivateId> {
        let client = self.clients.peek(id).filter(|client| client.unanswered() > 0)?;
        client.ties.as_ref()?.link
    }

    /// True if a client that waits in a blocking command has nothing else that keeps it from moving to
    /// another process.
    pub fn does_nothing_but_wait(&self, id: ClientId) -> bool {
        self.clients.peek(id).is_some_and(Client::does_nothing_but_wait)
    }

    /// Keeps a blocking command that was ended at its store without a reply to the client, so that the process
    /// to which the client moves can send it again. Closes the client instead if it is leaving.
    pub fn withdraw(&mut self, env: &mut Env, id: ClientId, withdrawn: Withdrawn) {
        let Some(client) = self.clients.get(id) else { return };
        // The command is the client's only unanswered request.
        let (call, _) = client.order.sequences();
        client.order.drop_again(call);
        let ties = client.ties_mut();
        (ties.link, ties.withdrawn) = (None, Some(Box::new(withdrawn)));
        if client.end_is_ahead && client.ending == Ending::Open {
            client.ending = Ending::NoMoreInput;
        }
        self.close_if_done(env, id);
    }

    /// Takes the blocking command of a client that is about to move, which was ended at its store without a
    /// reply to the client; `None` if the client waits in none.
    pub fn take_withdrawn(&mut self, id: ClientId) -> Option<Box<Withdrawn>> {
        self.clients.get(id)?.ties()?.withdrawn.take()
    }

    /// Removes a client that is ready to move to another process. Returns the state that moves with it.
    pub fn take_session(&mut self, env: &mut Env, id: ClientId) -> Session {
        let client = self.clients.at(id);
        let proven = client.identity.tenant(&env.quotas).filter(|_| client.identity.is_proven);
        let tenant = proven.map(|tenant| tenant.name.clone());
        let mut session = Session::of(client, tenant);
        let client = self.clients.peek(id).expect("it has not left");
        session.orders_pauses = self.pauses_ordered_by(&env.quotas, client);
        self.forget(env, id);
        session
    }

    /// Takes over a client from another process, with the state that `session` holds. A tenant that it has
    /// logged in as is found by name; if the quotas do not have it, the client must log in again. The
    /// connection is ended if the client's database does not exist here.
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
        client.set_replies(session.replies);
        client.logins_failed = session.logins_failed;
        // In the other process the client may have written to any backend.
        client.note_write(Nature::of(None), None);
        let number = client.number;
        let stranger = client.identity.tenant.filter(|_| session.tenant.is_none());
        if let Some(tenant) = known.or(stranger) {
            let user: Option<Box<str>> = session.user.clone().map(Into::into);
            let account =
                user.as_ref().and_then(|user| admission.account_of(env.quotas.tenant(tenant), user));
            let identity = Identity::of(&env.quotas, tenant, user, account, session.chosen());
            client.identity = Identity { is_proven: known.is_some(), ..identity };
            self.keep_seat(env, id, now);
        }
        self.pauses.hand_to(number, &session.orders_pauses);
        self.apply_pauses_to(&env.quotas, id);
        // In another database its requests would change other keys.
        if u16::from(session.database) >= env.settings.databases {
            self.stop_listening(env, id);
        }
        id
    }
}

impl Client {
    /// True if the client has requests that wait for the end of a `CLIENT PAUSE`, and for nothing else, so that they
    /// can wait in another process as well.
    fn waits_for_pause_alone(&self) -> bool {
        let held = self.held_request.as_deref();
        // The other process carries the request out as the client itself, and not as `QOS CALL` has it.
        let is_own = |held: &HeldRequest| held.partition.is_none() && held.identity == self.identity;
        let bytes = self.held_bytes() + held.map_or(0, |held| held.frame.len());
        self.waits_by_order
            && self.unanswered() == 0
            && !self.has_output()
            && !self.barrier
            && !self.waits_for_quota
            && !self.speaks_http
            && held.is_none_or(is_own)
            && bytes <= MOVED_BYTES_MAX
    }

    /// True if the client does nothing but wait in a blocking command, so that it can wait in another process
    /// as well.
    fn does_nothing_but_wait(&self) -> bool {
        let is_tied_alone = self.ties.as_ref().is_some_and(|ties| {
            ties.watch.is_none()
                && ties.subscriptions.is_none()
                && ties.tracking.is_none()
                && ties.inbox.is_none()
        });
        is_tied_alone
            && self.ending == Ending::Open
            && self.unsettled == 0
            && self.unanswered() == 1
            && self.held_request.is_none()
            && self.order.output.is_empty()
            && self.sending_since.is_none()
            && self.transaction.is_none()
            && !self.speaks_http
            && !self.is_monitor
            && !self.decoder.is_lent()
            && self.held_bytes() <= MOVED_BYTES_MAX
    }
}

impl Session {
    /// Puts a blocking command in which the client waits (`call`) before the bytes that the client has sent
    /// since. `deadline` is the time left until its reply is useless; `None` for no deadline.
    pub fn put_first(&mut self, call: &[u8], deadline: Option<Duration>) {
        self.held.splice(..0, call.iter().copied());
        (self.waits, self.call_bytes) = (true, call.len());
        self.wait_deadline_ms = deadline.map(|left| left.as_millis() as u64);
    }

    /// Returns the blocking command in which the client waits, empty if there is none, and the bytes that it has sent
    /// behind it.
    pub fn call_and_rest(&self) -> (&[u8], &[u8]) {
        self.held.split_at_checked(self.call_bytes).unwrap_or((&self.held, &[]))
    }

    /// Returns the name of the tenant that the client has logged in as; `None` if it has not logged in.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Returns the time left until the reply to the client's blocking command is useless; `None` for no
    /// deadline.
    pub fn wait_deadline(&self) -> Option<Duration> {
        self.wait_deadline_ms.map(Duration::from_millis)
    }

    fn of(client: &Client, tenant: Option<String>) -> Self {
        let chosen = client.identity.chosen;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let held_request = client.held_request.as_ref().map_or(&[][..], |held| &held.frame[..]);
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
            replies: client.replies(),
            logins_failed: client.logins_failed,
            orders_pauses: Vec::new(),
            waits: false,
            call_bytes: 0,
            wait_deadline_ms: None,
            held: [held_request, client.decoder.held()].concat(),
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
