//! The requests that weir sends to a backend of its own accord: those that open a connection (the greeting), and fences
//! (`CLIENT KILL` of connections that weir gave up), which are sent in the greeting and between clients' requests.

use super::Links;
use super::link::{Greeting, Inner, LinkState};
use crate::protocol::encode;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::fence::store_client;
use crate::shard::pending::Pending;
use crate::shard::refusal::{
    NO_DATABASE, NOT_READY, NotSent, TURNED_AWAY, UNEXPECTED_REPLY, is_not_ready, reason_of_refused_login,
    reason_of_refused_select, turns_away,
};
use crate::shard::settings::Mode;
use crate::values::time::Now;
use crate::values::{Action, ConnectionId, Database, Owner};

/// The state of a connection to a backend after bytes that came while replies to the greeting (login, CLIENT
/// INFO, `CLIENT KILL` of given-up connections) were owed.
#[derive(Debug)]
pub enum Greeted<'a> {
    /// More replies to the greeting (the requests that open a connection) are owed, so clients' requests
    /// wait.
    Waits,
    /// The connection is open. Requests leave only now, so the bytes left can only be push messages.
    Open(&'a [u8]),
    /// The connection is to be given up, for this reason.
    Failed(&'static str),
}

impl Links {
    /// Opens a connection to a backend: asks for its socket to be connected, and writes the greeting (login, database,
    /// `CLIENT INFO` and the like), which is sent once it is.
    pub fn open(&mut self, env: &mut Env, connection: ConnectionId, now: Now) {
        let mut out = env.pool.take();
        let link = &mut self.connections[connection.0 as usize];
        link.generation = link.generation.wrapping_add(1);
        link.state = LinkState::Opening { since: now.monotonic };
        link.is_refused = false;
        link.end_retirement();
        let backend = &env.settings.backends[usize::from(link.backend.0)];
        if let Some(words) = backend.login_words(link.protocol) {
            encode::request(&mut out, words.iter().map(|word| word.as_bytes()));
            link.greetings.push_back(Greeting::Login);
        }
        if link.is_for_replica() {
            encode::request(&mut out, [&b"READONLY"[..]].into_iter());
            link.greetings.push_back(Greeting::ReadOnly);
        }
        if link.database != Database::FIRST {
            encode::select(&mut out, link.database);
            link.greetings.push_back(Greeting::Select);
        }
        encode::request(&mut out, [&b"CLIENT"[..], b"INFO"].into_iter());
        link.greetings.push_back(Greeting::Identity);
        link.greeting = out;
        self.in_flight += link.greetings.len();
        let owner = Owner::Link(connection, link.generation);
        env.actions.push_back(Action::Connect { owner, backend: link.backend });
    }

    /// Records that the socket of a connection is connected, so that the greeting (login, `CLIENT INFO`,
    /// `CLIENT KILL` of given-up connections) is sent. Does nothing if `generation` is that of an earlier
    /// socket.
    pub fn handle_connected(&mut self, env: &mut Env, connection: ConnectionId, generation: u32, now: Now) {
        let Some(link) = self.current(connection, generation) else { return };
        link.connected(now.monotonic);
        env.counters.add(Counter::LinksOpened, 1);
        self.list_to_send(connection);
    }

    /// Handles a backend's replies to the greeting (the requests that open a connection) in `chunk`. The connection
    /// fails if the store turns it away, if it refuses the login, the database, or `READONLY` on a connection for
    /// replica reads, if it cannot carry out fences now, or if the bytes are not the replies that are owed.
    pub fn take_greetings<'a>(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        mut chunk: &'a [u8],
    ) -> Greeted<'a> {
        while !chunk.is_empty() {
            let link = &mut self.connections[connection.0 as usize];
            let Ok(scanned) = link.scanner.scan(chunk) else { return Greeted::Failed("malformed-reply") };
            let Some(scanned) = scanned else {
                // An error is kept, because it may be that with which a store turns connections away.
                let is_error = link.partial.first().or(chunk.first()) == Some(&b'-');
                if link.handed == 0 && !is_error && link.scanner.is_within_reply() {
                    return Greeted::Failed(UNEXPECTED_REPLY);
                }
                self.keep_partial(env, connection, chunk);
                return Greeted::Waits;
            };
            let (end, rest) = chunk.split_at(scanned.end);
            chunk = rest;
            if scanned.kind == b'>' {
                self.swallow(env, connection);
                continue;
            }
            link.let_go = 0;
            let mut reply = std::mem::take(&mut link.partial);
            reply.extend_from_slice(end);
            if turns_away(&reply) {
                link.handle_not_ready();
                let is_told = std::mem::replace(&mut link.is_turned_away, true);
                if !is_told {
                    env.say_turned_away(link.backend, &reply);
                }
                env.pool.give(reply);
                return Greeted::Failed(TURNED_AWAY);
            }
            let Some(handed) = link.handed.checked_sub(1) else {
                env.pool.give(reply);
                return Greeted::Failed(UNEXPECTED_REPLY);
            };
            link.handed = handed;
            let step = link.greetings.pop_front().expect("one is owed");
            self.in_flight -= 1;
            let failed = self.take_greeting(env, (connection, step), &reply);
            env.pool.give(reply);
            if let Some(reason) = failed {
                return Greeted::Failed(reason);
            }
            self.list_to_send(connection);
            if self.connections[connection.0 as usize].state == LinkState::Open {
                return Greeted::Open(chunk);
            }
        }
        Greeted::Waits
    }

    /// Handles the reply to one step of the greeting (the requests that open a connection), and opens the connection
    /// for requests if it is the last reply. Returns the reason to give the connection up; None if it stays. An error
    /// is a reason in reply to the login, the choice of the database, and `READONLY`. A store that can carry out
    /// nothing at present (it is busy with a script, say) is one while fences (`CLIENT KILL` of given-up connections)
    /// have to be carried out before the first request, unless there are no private links, over which alone the script
    /// could be killed.
    fn take_greeting(
        &mut self,
        env: &mut Env,
        (connection, step): (ConnectionId, Greeting),
        reply: &[u8],
    ) -> Option<&'static str> {
        let link = &mut self.connections[connection.0 as usize];
        if !reply.starts_with(b"-") {
            link.handle_success();
        } else if step == Greeting::Login {
            return Some(reason_of_refused_login(reply));
        } else if step == Greeting::ReadOnly {
            return Some("no-replica");
        } else if step == Greeting::Select {
            let reason = reason_of_refused_select(reply);
            if reason == NO_DATABASE {
                link.handle_refused();
            }
            return Some(reason);
        } else if matches!(step, Greeting::Identity | Greeting::Fence(..))
            && is_not_ready(reply)
            // Without private links, only this connection can carry the `SCRIPT KILL` that ends the wait.
            && env.settings.private_links_max > 0
            && env.fences.at(link.backend, 0).next().is_some()
        {
            link.handle_not_ready();
            return Some(NOT_READY);
        }
        match step {
            Greeting::Login | Greeting::ReadOnly | Greeting::Select => {}
            Greeting::Identity => {
                link.name = store_client(reply);
                link.inner = None;
                self.in_flight += usize::from(link.ask_for_tier(reply));
                self.raise_standing(env, connection);
            }
            Greeting::Tier => {
                link.inner = Inner::told_by(reply);
                if link.inner.is_some() && env.settings.overload.shed == Mode::On {
                    link.ask_for_terms();
                    self.in_flight += 1;
                }
            }
            Greeting::Terms => link.handle_terms(reply),
            // The fence is sent again before the next request.
            Greeting::Fence(..) if is_not_ready(reply) => {
                self.connections[connection.0 as usize].fenced = 0;
            }
            // Any other error lifts the fence too: the store lacks the command, and no more can be done.
            Greeting::Fence(origin, sequence) => env.fences.lift(origin, sequence),
        }
        let link = &mut self.connections[connection.0 as usize];
        if link.greetings.is_empty() {
            link.opened();
        }
        None
    }

    /// Adds to the greeting (the requests that open a connection) of a new connection a `CLIENT KILL` for
    /// every connection to its store that weir gave up and whose kill the store has not confirmed, so that
    /// the store carries out none of their requests later. Before that, forgets given-up connections from
    /// before a restart of the store.
    fn raise_standing(&mut self, env: &mut Env, connection: ConnectionId) {
        let link = &mut self.connections[connection.0 as usize];
        if let Some(name) = &link.name {
            env.fences.lift_former(link.backend, name);
        }
        link.fenced = env.fences.count();
        for fence in env.fences.at(link.backend, 0) {
            fence.encode(&mut link.greeting);
            link.greetings.push_back(Greeting::Fence(fence.origin, fence.sequence));
            self.in_flight += 1;
        }
    }

    /// Sends over this connection, before its next request, a `CLIENT KILL` for every connection to the
    /// backend that weir has given up since such commands were last sent over it.
    fn fence_off(&mut self, env: &mut Env, connection: ConnectionId, now: Now) {
        let link = &mut self.connections[connection.0 as usize];
        let Env { fences, pool, .. } = env;
        let seen = std::mem::replace(&mut link.fenced, fences.count());
        for fence in fences.at(link.backend, seen) {
            fence.encode(link.output.buffer(pool));
            link.fences.push_back((fence.origin, fence.sequence));
            link.pending.push_back(Pending::Fence { sent_at: now.monotonic });
            self.in_flight += 1;
        }
    }

    /// Makes a connection ready for requests: opens it if it is closed, or opens it anew if it is to be renewed, and
    /// sends over it a `CLIENT KILL` for each connection to its store that weir has given up since such commands were
    /// last sent over it. An error if the connection may not be opened yet or has no room for requests. `has_room` is
    /// false if the caller has no room to keep further requests of the connection, in case they must be sent again.
    #[cold]
    pub fn make_ready(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        has_room: bool,
        now: Now,
    ) -> Result<(), NotSent> {
        let link = &mut self.connections[connection.0 as usize];
        match link.state {
            LinkState::BackingOff { until } if until > now.monotonic => {
                let pause = until.since(now.monotonic);
                let is_refused = link.is_refused;
                return Err(if is_refused { NotSent::NoDatabase(pause) } else { NotSent::Down(pause) });
            }
            LinkState::Closed | LinkState::BackingOff { .. } => self.open(env, connection, now),
            LinkState::Open if link.is_to_be_renewed() => self.renew(env, connection, now),
            LinkState::Opening { .. } | LinkState::Greeting { .. } | LinkState::Open => {
                if !link.has_room() || !has_room {
                    return Err(NotSent::Full);
                }
            }
        }
        if self.connections[connection.0 as usize].fenced < env.fences.count() {
            self.fence_off(env, connection, now);
        }
        Ok(())
    }

    /// Closes a connection on which nothing is unanswered, and opens it anew, because its store has become a
    /// replica and the address may lead to another server by now.
    fn renew(&mut self, env: &mut Env, connection: ConnectionId, now: Now) {
        env.counters.add(Counter::LinksRenewed, 1);
        let generation = self.connections[connection.0 as usize].generation;
        env.actions.push_back(Action::Close(Owner::Link(connection, generation)));
        let none = self.take_lost(env, connection, now.monotonic, 0);
        self.recycle(connection, none);
        self.connections[connection.0 as usize].forget_failures();
        self.open(env, connection, now);
    }

    /// Raises a fence for a connection that is about to be given up: later connections ask the store to kill it
    /// (`CLIENT KILL`), so that the store carries out none of its unanswered requests after later ones. False, without
    /// a fence, if no request that was sent is unanswered, if the store did not report the connection's id and address,
    /// or for a connection to a replica.
    pub fn raise_fence(&mut self, env: &mut Env, connection: ConnectionId) -> bool {
        let link = &mut self.connections[connection.0 as usize];
        let sent = link.has_sent() && !link.is_for_replica();
        let Some(name) = link.name.take().filter(|_| sent) else { return false };
        env.fences.raise(link.backend, name);
        true
    }
}
