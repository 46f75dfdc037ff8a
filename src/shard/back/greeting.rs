//! The requests that weir sends of its own accord: those that open a connection to a backend, and the fences
//! there and between clients' requests.

use super::link::{Greeting, Inner, LinkState, Pending, Purpose};
use super::{Back, Replies};
use crate::protocol::encode;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::fence::{Fence, store_client};
use crate::shard::settings::Mode;
use crate::values::time::Now;
use crate::values::{Action, ConnectionId, Owner, ShardId};

impl Back {
    pub(super) fn open_link(&mut self, env: &mut Env, connection: ConnectionId, now: Now) {
        let mut out = env.pool.take();
        let link = &mut self.links[connection.0 as usize];
        link.generation = link.generation.wrapping_add(1);
        link.state = LinkState::Opening { since: now.monotonic };
        let backend = &env.settings.backends[usize::from(link.backend.0)];
        if let Some(words) = backend.login_words(link.protocol) {
            encode::request(&mut out, words.iter().map(|word| word.as_bytes()));
            link.greetings.push_back(Greeting::Login);
        }
        if link.only_reads {
            encode::request(&mut out, [&b"READONLY"[..]].into_iter());
            link.greetings.push_back(Greeting::ReadOnly);
        }
        encode::request(&mut out, [&b"CLIENT"[..], b"INFO"].into_iter());
        link.greetings.push_back(Greeting::Identity);
        link.greeting = out;
        self.in_flight += link.greetings.len();
        let owner = Owner::Link(connection, link.generation);
        env.actions.push_back(Action::Connect { owner, backend: link.backend });
    }

    /// Handles a connected socket: the greeting is sent.
    pub fn handle_connected(&mut self, env: &mut Env, connection: ConnectionId, generation: u32, now: Now) {
        let Some(link) = self.current_link(connection, generation) else { return };
        link.connected(now.monotonic);
        env.counters.add(Counter::LinksOpened, 1);
        self.list_to_send(connection);
    }

    /// Handles replies to the greeting. Returns the bytes that are left when the greeting is answered. Closes
    /// the connection if the login is refused, or `READONLY` by a node for replica reads.
    pub(super) fn take_greetings<'a>(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        mut chunk: &'a [u8],
        replies: &mut impl Replies,
        now: Now,
    ) -> &'a [u8] {
        while !chunk.is_empty() {
            let Some(link) = self.current_link(connection, generation) else { break };
            if link.greetings.is_empty() {
                break;
            }
            let Ok(scanned) = link.scanner.scan(chunk) else {
                self.drop_link(env, connection, "malformed-reply", replies, now);
                break;
            };
            let Some(scanned) = scanned else {
                self.keep_partial(env, connection, chunk);
                return &[];
            };
            let (end, rest) = chunk.split_at(scanned.end);
            chunk = rest;
            link.let_go = 0;
            let mut reply = std::mem::take(&mut link.partial);
            reply.extend_from_slice(end);
            let step = link.greetings.pop_front().expect("just seen");
            self.in_flight -= 1;
            self.take_greeting(env, (connection, step), &reply, replies, now);
            env.pool.give(reply);
        }
        chunk
    }

    fn take_greeting(
        &mut self,
        env: &mut Env,
        (connection, step): (ConnectionId, Greeting),
        reply: &[u8],
        replies: &mut impl Replies,
        now: Now,
    ) {
        let link = &mut self.links[connection.0 as usize];
        if !reply.starts_with(b"-") {
            link.proved();
        } else if step == Greeting::Login {
            return self.drop_link(env, connection, "login-refused", replies, now);
        } else if step == Greeting::ReadOnly {
            return self.drop_link(env, connection, "no-replica", replies, now);
        }
        match step {
            Greeting::Login | Greeting::ReadOnly => {}
            Greeting::Identity => {
                link.name = store_client(reply);
                link.inner = Inner::told_by(reply);
                if link.inner.is_some() && self.deadlines == Mode::On {
                    link.ask_for_terms();
                    self.in_flight += 1;
                }
                self.raise_standing(connection);
            }
            Greeting::Terms => link.handle_terms(reply),
            // An error also lifts the fence: the store lacks the command, and nothing more can be done.
            Greeting::Fence(origin, sequence) => self.lift_fence(origin, sequence),
        }
        let link = &mut self.links[connection.0 as usize];
        if link.greetings.is_empty() {
            link.opened();
            // Requests that waited for the connection leave only now.
            let bulkhead = link.bulkhead;
            self.bulkheads[bulkhead].handle_progress(self.late, now.monotonic);
        }
        self.list_to_send(connection);
    }

    /// Adds to the greeting of a new connection a `CLIENT KILL` for every connection to its store that weir
    /// gave up and the store has not answered for, so that the store carries out none of their requests
    /// later. First lifts fences from before a restart of the store.
    fn raise_standing(&mut self, connection: ConnectionId) {
        let link = &mut self.links[connection.0 as usize];
        if let Some(name) = &link.name {
            // Ids grow, so an id above our own is from before the store was restarted.
            let lifted = self.fences.lift_all(link.backend, |target| target.id >= name.id);
            self.lifted.extend(lifted);
        }
        let link = &mut self.links[connection.0 as usize];
        link.fenced = self.fences.count();
        for fence in self.fences.at(link.backend, 0) {
            encode_fence(&mut link.greeting, fence);
            link.greetings.push_back(Greeting::Fence(fence.origin, fence.sequence));
            self.in_flight += 1;
        }
    }

    /// Sends a `CLIENT KILL` for every connection that weir gave up since this was last done on this
    /// connection, before the next request.
    pub(super) fn fence_off(&mut self, env: &mut Env, connection: ConnectionId, now: Now) {
        let link = &mut self.links[connection.0 as usize];
        let seen = std::mem::replace(&mut link.fenced, self.fences.count());
        for fence in self.fences.at(link.backend, seen) {
            encode_fence(link.output.buffer(&mut env.pool), fence);
            link.fences.push_back((fence.origin, fence.sequence));
            link.pending.push_back(Pending::uncounted(Purpose::Fence, now.monotonic));
            self.in_flight += 1;
        }
    }

    /// Raises a fence for a connection that is about to be given up, so that the store carries out none of
    /// its requests after later ones. False if no request was sent, or the store did not name the connection.
    pub(super) fn raise_fence(&mut self, connection: ConnectionId) -> bool {
        let link = &mut self.links[connection.0 as usize];
        let sent = link.state == LinkState::Open && !link.pending.is_empty() && !link.only_reads;
        let Some(name) = link.name.take().filter(|_| sent) else { return false };
        self.fences.raise(link.backend, name);
        true
    }

    /// Lifts a fence because a store has answered its `CLIENT KILL`.
    pub(super) fn lift_fence(&mut self, origin: ShardId, sequence: u64) {
        if self.fences.lift(origin, sequence) {
            self.lifted.push(sequence);
        }
    }
}

fn encode_fence(out: &mut Vec<u8>, fence: &Fence) {
    let id = fence.target.id.to_string();
    let words = [&b"CLIENT"[..], b"KILL", b"ID", id.as_bytes(), b"ADDR", fence.target.address.as_bytes()];
    encode::request(out, words.into_iter());
}
