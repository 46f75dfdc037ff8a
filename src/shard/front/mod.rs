//! Towards the clients: who is connected, what each has sent, and its answers in the order asked. Is lent the gate where an
//! identity needs an account, and gives charges back to be settled; never sees a connection to a store.
//!
//! | what | file |
//! |---|---|
//! | one client, and all of them | `client.rs`, `clients.rs` |
//! | who it is, and on what terms | `identity.rs`, `handshake.rs`, `wishes.rs` |
//! | the rest of a large request, in room made for it | `room.rs` |
//! | may its next request be taken on | `turns.rs`, `held.rs`, `track.rs`, `pause.rs`, `pauses.rs` |
//! | what it has queued since `MULTI` | `transaction.rs` |
//! | what waits until the map of a cluster is known to be right | `certainty.rs` |
//! | who speaks HTTP instead | `http.rs` |
//! | its answers | `answer.rs`, `order.rs`, `gather.rs`, `cursor.rs` |
//! | who may be connected, and hold how much | `seats.rs`, `memory.rs` |
//! | how it leaves, or goes on in another process | `leaving.rs`, `departed.rs`, `moving.rs` |
//! | what clients may know of each other | `client_list.rs`, `client_filter.rs` |

mod answer;
mod certainty;
mod client;
pub mod client_filter;
mod client_list;
mod clients;
mod cursor;
mod departed;
mod gather;
mod handshake;
mod held;
mod http;
mod identity;
mod leaving;
mod memory;
mod moving;
mod order;
mod pause;
mod pauses;
mod room;
mod seats;
mod track;
mod transaction;
mod turns;
mod wishes;

pub use certainty::PATIENCE as MAP_PATIENCE;
pub use client::{Address, Client};
pub use cursor::split_cursor;
pub use gather::{Arrival, Gathers, Join};
pub use identity::{Chosen, Identity};
pub use moving::{Readiness, Session};
pub use order::Rewrite;
pub use seats::no_seat_left;
pub use transaction::{LocalRequest, NotQueued, Splice};
pub use turns::Progress;
pub use wishes::Wishes;

use super::counters::Counter;
use super::env::Env;
use super::gate::{Charge, Gate};
use super::question::{Question, Questions};
use super::request::ReplyTo;
use super::settings::ShardSettings;
use crate::config::Quotas;
use crate::protocol::RequestLimits;
use crate::protocol::command::Effect;
use crate::values::limits::HOT_REPLY_BYTES_MAX;
use crate::values::time::Now;
use crate::values::{ClientId, StoreVersion, Timestamp};
use answer::Outbox;
use certainty::Certainty;
use clients::Clients;
use departed::Departed;
use memory::Holdings;
use pause::Pause;
use turns::Turns;

/// Bytes of replies that may wait for one client while more of its requests are taken on.
const REPLIES_BYTES_PAUSE: usize = 256 * 1024;

/// All clients of one core.
#[derive(Debug)]
pub struct Front {
    clients: Clients,
    opened: u64,
    /// What a request of somebody who has logged in may be.
    limits: RequestLimits,
    /// A client that has more bytes of replies waiting has no more requests taken on: until it reads, or until the reply comes that
    /// they wait for.
    replies_bytes_max: usize,
    /// Who goes on decoding, and when.
    turns: Turns,
    /// Who has something to send.
    outbox: Outbox,
    gathers: Gathers,
    /// Requests in flight whose clients have left, and who pays for them.
    departed: Departed,
    /// What only the control executor knows.
    questions: Questions,
    /// Clients that wait for the map of the cluster.
    certainty: Certainty,
    /// Clients that wait by order.
    pauses: Vec<Pause>,
    /// Where answers go that are written while a transaction is carried out.
    captured: Option<Vec<u8>>,
    /// What clients held when they were weighed last.
    holdings: Holdings,
    /// There may be clients that have yet to log in.
    watch_strangers: bool,
    /// There may be clients of HTTP with a request that is not whole.
    watch_http: bool,
    draining: bool,
    /// What clients are told.
    store_version: StoreVersion,
}

impl Front {
    /// Nobody is connected yet.
    pub fn new(settings: &ShardSettings) -> Self {
        // The next one may be answered at once, with a reply that is kept.
        let room = settings.output_bytes_max.saturating_sub(HOT_REPLY_BYTES_MAX);
        Self {
            replies_bytes_max: room.min(REPLIES_BYTES_PAUSE),
            clients: Clients::default(),
            opened: 0,
            limits: RequestLimits::trusted(settings.request_bytes_max),
            turns: Turns::default(),
            outbox: Outbox::default(),
            gathers: Gathers::default(),
            departed: Departed::default(),
            questions: Questions::default(),
            certainty: Certainty::default(),
            pauses: Vec::new(),
            captured: None,
            holdings: Holdings::default(),
            watch_strangers: false,
            watch_http: false,
            draining: false,
            store_version: StoreVersion::default(),
        }
    }

    /// A client has connected.
    pub fn open(&mut self, env: &mut Env, now: Now) -> ClientId {
        env.counters.add(Counter::ClientsOpened, 1);
        self.opened += 1;
        let shards = u64::from(env.settings.topology.shards());
        let number = (self.opened - 1) * shards + u64::from(env.settings.id.0) + 1;
        let id = self.clients.open(number, Identity::default(), now.monotonic);
        self.seat_stranger(env, id, now);
        if self.draining {
            self.stop_listening(env, id);
        }
        id
    }

    /// Where a client is, for those who list clients.
    pub fn note_address(&mut self, id: ClientId, address: Address) {
        if let Some(client) = self.clients.get(id) {
            *client.address = address;
        }
    }

    /// A client that the caller knows to be there.
    #[inline]
    pub fn client(&mut self, id: ClientId) -> &mut Client {
        self.clients.at(id)
    }

    /// A client, unless it has left.
    #[inline]
    pub fn find(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get(id)
    }

    /// Clients that are connected.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Requests that wait for the replies to several parts.
    pub fn gathers_open(&self) -> usize {
        self.gathers.len()
    }

    /// Requests in flight whose clients have left.
    pub fn requests_departed(&self) -> usize {
        self.departed.len()
    }

    /// Segments that sockets are busy with.
    pub fn sends_in_flight(&self) -> usize {
        self.outbox.in_flight()
    }

    /// Clients that say HELLO from now on are told this version.
    pub fn handle_store_version(&mut self, version: StoreVersion) {
        self.store_version = version;
    }

    /// New quotas. Clients keep their tenant by its name; those whose tenant is gone must authenticate again.
    pub fn handle_quotas(&mut self, env: &Env, gate: &mut Gate, after: &Quotas, now: Now) {
        let before = &env.quotas;
        let ids: Vec<ClientId> = self.clients.ids().collect();
        for id in ids {
            let client = self.clients.at(id);
            // What is queued was permitted by the quotas before.
            if let Some(transaction) = &mut client.transaction
                && !client.identity.keeps_its_rights(before, after)
            {
                transaction.poison();
            }
            // Whose token was right before may be nobody now.
            client.known = None;
            let held = client.held_request.as_mut().map(|held| &mut held.identity);
            for identity in std::iter::once(&mut client.identity).chain(held) {
                *identity = identity.carried_over(before, after, gate);
            }
            self.keep_seat(env, id, now);
        }
    }

    /// From now on no client is taken in.
    pub fn refuse_newcomers(&mut self) {
        self.draining = true;
    }

    /// One request of a client on other terms than its own. Gives back its own, for `end_acting`.
    pub fn begin_acting(&mut self, id: ClientId, identity: &Identity) -> Identity {
        std::mem::replace(&mut self.clients.at(id).identity, identity.clone())
    }

    /// What the request itself changed (AUTH, RESET) stays changed.
    pub fn end_acting(&mut self, id: ClientId, identity: &Identity, own: Identity) {
        if let Some(client) = self.clients.get(id)
            && client.identity == *identity
        {
            client.identity = own;
        }
    }

    /// A request that was held came earlier than what came last. Gives back when that was, for `end_held`.
    pub fn begin_held(&mut self, id: ClientId, came: Timestamp) -> Timestamp {
        std::mem::replace(&mut self.clients.at(id).came, came)
    }

    /// What comes next is not that old.
    pub fn end_held(&mut self, id: ClientId, newest: Timestamp) {
        if let Some(client) = self.clients.get(id) {
            client.came = newest;
        }
    }

    /// From now on a client is on other terms.
    pub fn change_identity(&mut self, id: ClientId, identity: Identity) {
        self.clients.at(id).identity = identity;
    }

    /// Takes the next place in a client's order of replies, for a request that goes on in parts.
    pub fn expect_parts(
        &mut self,
        id: ClientId,
        join: (Join, Effect),
        parts: usize,
        charge: Option<Charge>,
    ) -> u32 {
        let client = self.clients.at(id);
        let (index, bytes) = self.gathers.insert(join, client.protocol, parts);
        client.order.stored_bytes += bytes;
        client.expect_reply(Rewrite::Gather(index), charge)
    }

    /// Asks what only the control executor knows. What the client asks for behind it waits, so that nobody has more than one such
    /// question in flight.
    pub fn ask(&mut self, env: &Env, id: ClientId, charge: Option<Charge>, question: Question) {
        let client = self.clients.at(id);
        let sequence = client.expect_reply(Rewrite::AsItCame, charge);
        client.hold_back_later();
        self.questions.ask(ReplyTo::new(env.settings.id, id, sequence), question);
    }

    /// A question for the control executor, if there is one.
    pub fn poll_question(&mut self) -> Option<(ReplyTo, Question)> {
        self.questions.poll()
    }

    /// A question was answered.
    pub fn handle_question_answered(&mut self) {
        self.questions.handle_answer();
    }

    /// Gives back what long pipelines took. True if there is more of it.
    pub fn tidy(&mut self, idle_since: Timestamp) -> bool {
        self.gathers.tidy();
        self.departed.tidy();
        let mut untidy = false;
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            if client.last_heard <= idle_since {
                client.tidy();
            } else {
                untidy = true;
            }
        }
        untidy
    }
}
