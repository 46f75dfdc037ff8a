//! Receiving of replies: whole replies, their parts, and the order in which backends owe them; and the
//! unanswered requests of a connection that is lost.

use std::collections::VecDeque;

use super::Links;
use crate::protocol::{Scanned, room};
use crate::shard::env::Env;
use crate::shard::pending::{Odd, Pending, whole};
use crate::shard::refusal::is_not_ready;
use crate::values::limits::COPY_BYTES_MAX;
use crate::values::{Action, ConnectionId, Owner, Timestamp};

/// The result of receiving bytes from a backend that begin or continue a reply.
#[derive(Debug)]
pub enum Received<'a> {
    /// No reply has been received to its end yet.
    Nothing,
    /// A reply has been received to its end: the part of it that came last, and where it ends, its type and
    /// size.
    Whole(&'a [u8], Scanned),
    /// The bytes are not a RESP reply, so the connection has to be given up.
    Malformed,
    /// The bytes begin a reply although no request that was sent is unanswered, so the connection has to be
    /// given up.
    Unexpected,
}

/// Data on a reply to a request that has been received to its end: whether it came in one part, and the error
/// that replaces it for the client, if any.
#[derive(Debug)]
pub struct Finished {
    /// True if the reply came in one part, so that no earlier bytes of it are kept.
    pub is_all_here: bool,
    /// The error that the client gets in place of `EXEC`'s reply, because it contains the reason why the
    /// transaction was aborted; None if the reply stays.
    pub abort: Option<Vec<u8>>,
}

impl Links {
    /// Takes one reply from the beginning of `chunk`, or keeps all of `chunk` as the beginning of a reply. Drops
    /// push messages before the reply: they answer no request. `generation` tells the connection from earlier
    /// ones in its place.
    #[inline]
    pub fn receive<'a>(
        &mut self,
        env: &mut Env,
        (connection, generation): (ConnectionId, u32),
        chunk: &mut &'a [u8],
    ) -> Received<'a> {
        while !chunk.is_empty() {
            let Some(link) = self.current(connection, generation) else { return Received::Nothing };
            let Ok(scanned) = link.scanner.scan(chunk) else { return Received::Malformed };
            let Some(scanned) = scanned else {
                if link.handed == 0 && link.scanner.is_within_reply() {
                    return Received::Unexpected;
                }
                self.keep_partial(env, connection, chunk);
                return Received::Nothing;
            };
            env.handle_reply_end((connection, generation));
            let (end, rest) = chunk.split_at(scanned.end);
            *chunk = rest;
            if scanned.kind != b'>' {
                return Received::Whole(end, scanned);
            }
            self.swallow(env, connection);
        }
        Received::Nothing
    }

    /// Takes the record of the oldest unanswered request or command, to which the next reply belongs; None if there is
    /// none that was handed to the socket, so that the reply cannot be to it.
    #[inline]
    pub fn take_pending(&mut self, connection: ConnectionId) -> Option<Pending> {
        let link = &mut self.connections[connection.0 as usize];
        link.handed = link.handed.checked_sub(1)?;
        let pending = link.pending.pop_front()?;
        if pending.request().is_some_and(|request| request.odd == Odd::Costly) {
            link.costly_ahead -= 1;
        }
        self.in_flight -= 1;
        Some(pending)
    }

    /// Records that the whole reply to a request has been received, and returns the data on it. `kind` is the
    /// reply's first byte, and `end` has the bytes of it that came last, after those kept before.
    #[inline]
    pub fn finish(&mut self, connection: ConnectionId, kind: u8, end: &[u8]) -> Finished {
        let link = &mut self.connections[connection.0 as usize];
        link.handle_success();
        Finished {
            is_all_here: link.partial.is_empty() && link.let_go == 0,
            abort: if kind == b'-' { link.reasoned_abort(end) } else { None },
        }
    }

    /// Takes a reply that came in several parts, of which `end` is the last; `None` for one that exceeded the
    /// limit and was dropped.
    pub fn take_parts(&mut self, connection: ConnectionId, end: &[u8]) -> Option<Vec<u8>> {
        let link = &mut self.connections[connection.0 as usize];
        let mut partial = std::mem::take(&mut link.partial);
        if std::mem::take(&mut link.let_go) > 0 {
            return None;
        }
        partial.extend_from_slice(end);
        Some(partial)
    }

    /// Takes the bytes that were kept of the reply being received: all of it before the part that came last, or none if
    /// it was dropped as too long. The caller uses them, or gives the buffer back to the pool.
    pub fn take_partial(&mut self, connection: ConnectionId) -> Vec<u8> {
        std::mem::take(&mut self.connections[connection.0 as usize].partial)
    }

    /// Drops one complete reply, which no client gets, such as that to a request which was answered early or
    /// sent elsewhere, or one complete push message.
    pub fn swallow(&mut self, env: &mut Env, connection: ConnectionId) {
        let link = &mut self.connections[connection.0 as usize];
        link.let_go = 0;
        env.pool.give(std::mem::take(&mut link.partial));
    }

    /// Drops one complete reply to a request of a transaction before its `EXEC`, or to a command sent right
    /// before a request (`ROLE`, `ASKING`). `left` is the number of such replies that were owed, this one
    /// included, and `sent_at` when the requests were sent.
    pub fn swallow_step(&mut self, env: &mut Env, connection: ConnectionId, left: u32, sent_at: Timestamp) {
        self.swallow(env, connection);
        if left > 1 {
            let link = &mut self.connections[connection.0 as usize];
            link.pending.push_front(Pending::Steps { left: left - 1, sent_at });
            link.handed += 1;
        }
    }

    /// Drops the reply to the oldest unanswered fence (`CLIENT KILL` for a connection that weir gave up), and removes
    /// the fence: the connection is killed or unknown. If the store can carry out nothing at present, the fence stays
    /// instead, and is sent again before the next request on the connection. `kind` is the reply's first byte, and
    /// `end` has the bytes of it that came last.
    pub fn swallow_fence(&mut self, env: &mut Env, connection: ConnectionId, kind: u8, end: &[u8]) {
        let link = &mut self.connections[connection.0 as usize];
        let is_refused = kind == b'-' && is_not_ready(&whole(&link.partial, end));
        let (origin, sequence) = link.fences.pop_front().expect("each in the stream is noted");
        self.swallow(env, connection);
        if is_refused {
            self.connections[connection.0 as usize].fenced = 0;
        } else {
            env.fences.lift(origin, sequence);
        }
    }

    /// Keeps the beginning (`chunk`) of a reply until the rest comes. A reply that exceeds `reply_bytes_max`
    /// is dropped, and its bytes are only counted. Nothing is kept of a push message, which no client gets.
    pub(super) fn keep_partial(&mut self, env: &mut Env, connection: ConnectionId, chunk: &[u8]) {
        let link = &mut self.connections[connection.0 as usize];
        if link.scanner.is_within_push() {
            env.handle_reply_end((connection, link.generation));
            return self.swallow(env, connection);
        }
        if link.let_go > 0 {
            link.let_go = link.let_go.saturating_add(chunk.len() as u64);
            return;
        }
        if link.partial.len() + chunk.len() > env.settings.reply_bytes_max {
            link.let_go = (link.partial.len() + chunk.len()) as u64;
            link.partial = Vec::new();
            env.handle_reply_end((connection, link.generation));
            return;
        }
        let missing = link.scanner.missing();
        // A large reply is passed on in its buffer, so it takes none from the pool.
        if link.partial.capacity() == 0 && missing <= COPY_BYTES_MAX {
            link.partial = env.pool.take();
        }
        room::expect(&mut link.partial, chunk.len(), missing.min(env.settings.reply_bytes_max));
        link.partial.extend_from_slice(chunk);
        let expected = link.scanner.expected(link.partial.len());
        let bytes_left = env.settings.reply_bytes_max - link.partial.len();
        room::expect_many(&mut link.partial, expected.min(bytes_left));
        self.count_partial(env, connection);
    }

    /// Counts the reply that is being received on a connection among the large ones, if it is one.
    pub(super) fn count_partial(&self, env: &mut Env, connection: ConnectionId) {
        let link = &self.connections[connection.0 as usize];
        let part = (link.partial.len(), link.missing_within(env.settings.reply_bytes_max));
        env.handle_reply_part((connection, link.generation), part);
    }

    /// Closes the socket of a connection that is given up, and drops unsent bytes. If requests are
    /// unanswered, raises a fence where possible: later connections have the store kill this one (`CLIENT
    /// KILL`) before they send requests, so that it carries out none of these requests later. True if a fence
    /// was raised; without one, the store may still carry unanswered requests out.
    pub fn reset(&mut self, env: &mut Env, connection: ConnectionId) -> bool {
        let generation = self.connections[connection.0 as usize].generation;
        env.actions.push_back(Action::Reset(Owner::Link(connection, generation)));
        self.raise_fence(env, connection)
    }

    /// Forgets the socket of a lost connection, and sets the pause before it is opened again; `spread`, a random byte,
    /// varies the pause. Returns the records of the unanswered requests in their order; [`Links::recycle`] takes the
    /// emptied list back.
    pub fn take_lost(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        now: Timestamp,
        spread: u8,
    ) -> VecDeque<Pending> {
        let link = &mut self.connections[connection.0 as usize];
        env.handle_reply_end((connection, link.generation));
        self.in_flight -= link.clear(&mut env.pool);
        link.lost(now, spread);
        let pending = std::mem::take(&mut link.pending);
        link.costly_ahead = 0;
        self.in_flight -= pending.iter().map(Pending::replies).sum::<usize>();
        pending
    }

    /// Takes back the memory of an emptied list of unanswered requests.
    pub fn recycle(&mut self, connection: ConnectionId, pending: VecDeque<Pending>) {
        self.connections[connection.0 as usize].pending = pending;
    }
}
