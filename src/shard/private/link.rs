//! One private link (a connection to a store that one client has to itself): its socket's state, the bytes to
//! send, and the replies that its store owes.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Abandoned, Kind, Owing, PrivateRequest, Waiting};
use crate::protocol::command::Effect;
use crate::protocol::{BufferPool, Output, Protocol, ReplyScanner, Segment, encode};
use crate::shard::env::Env;
use crate::shard::fence::StoreClient;
use crate::shard::message::Message;
use crate::shard::refusal::is_not_ready;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::shard::settings::BackendSettings;
use crate::shard::versions::Cell;
use crate::values::limits::SILENCE_EXAMINED;
use crate::values::{BackendId, ClientId, ConnectionId, Database, ShardId, TenantId, Timestamp};

/// The time of silence (3 s) after which a connection whose store owes a reply is no longer examined for
/// whether the store's machine acknowledges what was sent.
const EXAMINED_UNTIL: Duration = Duration::from_secs(3);

/// State of the socket of a private link (a connection to a store that one client has to itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The link's socket is being connected to the store.
    Opening,
    /// The greeting (login, database, `CLIENT INFO`, `CLIENT ID`) is being sent and answered; requests wait until the
    /// reply to `CLIENT ID` has come.
    Greeting,
    /// The greeting (the requests that open a connection) was answered as far as `CLIENT ID`; requests need not
    /// wait for it any more.
    Open,
}

/// The kind of a reply that a store owes on a link (unshared connection to a store), by which the reply is
/// handled. Replies come in the order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The reply to the login, or to a change of the RESP version. An error closes the link (unshared
    /// connection to a store).
    Login,
    /// The reply to `SELECT`. An error closes the link (unshared connection to a store).
    Select,
    /// The reply to `CLIENT INFO`: the store's id and address for the connection, by which it can be killed later.
    Name,
    /// The reply to `CLIENT ID`, the store's number for the connection, by which a blocking command on it can be
    /// ended. Clients' requests are sent from then on.
    Identity,
    /// The reply to a fence: `CLIENT KILL` of a connection that weir has given up, by the shard that gave it
    /// up and the sequence number that this shard gave it.
    Fence(ShardId, u64),
    /// The reply, which no client gets, to a request of a transaction before its `EXEC`, or to a command that weir
    /// sends right before a request (`ASKING`, `CLIENT CACHING` and the like).
    Step,
    /// The reply to the client's request in flight on the link (unshared connection to a store), even if the client
    /// no longer awaits it.
    Answer,
    /// The reply to `CLIENT TRACKING ON`, by which the store begins to report changes of keys.
    Tracking,
    /// The reply to a request that the core itself sent on a tracker (the link on which a store reports changes
    /// of keys) after `CLIENT TRACKING ON`.
    Told,
    /// The reply to a request that puts back elements which were popped for a client that had disconnected.
    PutBack,
    /// The reply to `PING`, sent to a store that is silent on other connections, to find out whether it is
    /// busy.
    Sign,
    /// The reply to `UNWATCH` or `CLIENT TRACKING OFF`, after which the link (unshared connection to a store) can
    /// be lent again if no client has it and the store owes nothing else. After any reply but `OK` the link is closed.
    Cleaned,
    /// The reply to a request about the blocking command of another link (the `Errand` of this link), after which
    /// this link can be lent again if the store owes nothing else on it.
    Errand,
}

impl Expected {
    /// True if `reply` fits the request that it is taken for, and shows that the store keeps nothing for the link
    /// (unshared connection to a store) that weir does not know of. An error fits where a refused request leaves
    /// nothing behind. False if the link must not be lent again: the store may not have ended what it was to end, or
    /// the replies may no longer be those to weir's requests.
    pub(super) fn is_met_by(self, reply: &[u8]) -> bool {
        let kind = reply.first().copied().unwrap_or_default();
        match self {
            Self::Select | Self::Tracking | Self::Cleaned => reply == b"+OK\r\n",
            Self::Login => matches!(kind, b'+' | b'%' | b'*'),
            Self::Fence(..) | Self::PutBack => matches!(kind, b':' | b'-'),
            Self::Sign => matches!(kind, b'+' | b'-'),
            // `CLIENT UNBLOCK` has a number for its reply, and `XREVRANGE` a list of entries.
            Self::Errand => matches!(kind, b':' | b'*' | b'-'),
            Self::Name | Self::Identity | Self::Step | Self::Answer | Self::Told => true,
        }
    }
}

/// A request that the core itself sends, on a link (unshared connection to a store) that no client has, about
/// the blocking command that waits on another link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    /// The link (unshared connection to a store) on which the blocking command waits.
    pub(super) link: PrivateId,
    /// Destination of the blocking command's reply, which distinguishes the command from later ones on that link
    /// (unshared connection to a store).
    pub(super) to: ReplyTo,
    pub(super) subject: Subject,
}

/// The subject of a request that the core itself sends about a client's blocking command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// `CLIENT UNBLOCK`, by which the store ends the blocking command.
    End,
    /// The last entry of a stream (`XREVRANGE`), whose id replaces a `$` in the blocking command: the word with
    /// this index.
    LastEntry(usize),
}

/// A connection to a store that one client has to itself for a while, or that the core itself has.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) backend: BackendId,
    /// The RESP version of the link's next request.
    pub(super) protocol: Protocol,
    /// The RESP version that the store was told last to speak on the link; `HELLO` precedes the next request
    /// if `protocol` is another one.
    pub(super) spoken: Protocol,
    /// The database of the link's next request.
    pub(super) database: Database,
    /// The database that the store was told last to select on the link; `SELECT` precedes the next request if
    /// `database` is another one.
    pub(super) selected: Database,
    pub(super) state: State,
    /// The store's number for the connection (`CLIENT ID`); None if the store has not reported it.
    pub(super) number: Option<u64>,
    /// The store's id and address for the connection (`CLIENT INFO`), by which a later connection has it
    /// killed; None if the store has not reported them.
    pub(super) name: Option<StoreClient>,
    /// The number of fences (given-up connections that stores are to kill) that the shard knew of when a
    /// `CLIENT KILL` was last sent over the link for each of those connections that lead to its store.
    fenced: u64,
    /// The client that has the link (unshared connection to a store), and its tenant; it stays after the client
    /// has abandoned a request on the link. `None` while no client has the link: it is idle or being cleaned,
    /// or the core itself uses it.
    pub(super) holder: Option<(ClientId, TenantId)>,
    pub(super) in_flight: Option<PrivateRequest>,
    /// The request in flight on the link, if no client awaits its reply any more; the store was asked to end it
    /// if it is a blocking command. None otherwise.
    pub(super) abandoned: Option<Abandoned>,
    /// The version cells (counters of writes) of a key whose popped elements are being put back, and the number
    /// of elements; None while no elements are being put back.
    pub(super) puts_back: Option<(Vec<Cell>, usize)>,
    /// The first error among the replies that come before the one to the request in flight: to the requests of
    /// its transaction before `EXEC`, or to `ASKING` and the like before it. None if there is none, and if the store
    /// has carried out a later request before a blocking command.
    pub(super) step_error: Option<Vec<u8>>,
    pub(super) expected: VecDeque<Expected>,
    /// Unanswered requests that the core itself has sent over this link for blocking commands on other links,
    /// the oldest first: `CLIENT UNBLOCK` ends such a command, `XREVRANGE` tells the last id of its stream.
    pub(super) errands: VecDeque<Errand>,
    /// True while messages that are not replies to requests, such as published ones, may come over the link
    /// (unshared connection to a store), since subscriptions were sent over it.
    pub(super) is_streaming: bool,
    /// True while the store has not acknowledged all `SUBSCRIBE` and `UNSUBSCRIBE` commands of this link
    /// (unshared connection to a store).
    pub(super) owes_acknowledgements: bool,
    /// True if the store tracks keys on this link (unshared connection to a store) for the client that has the
    /// link, or was asked to.
    pub(super) is_tracking: bool,
    /// The client for which the store has tracked keys on this link (unshared connection to a store); None if
    /// for none. The store may remember these keys even after `CLIENT TRACKING OFF` and send messages about
    /// them, so it tracks keys for no other client on the link.
    pub(super) tracked_for: Option<ClientId>,
    /// True for a link (unshared connection to a store) on which a client takes the invalidation messages of
    /// other clients (`REDIRECT`).
    pub(super) is_inbox: bool,
    /// True for a tracker: the core itself has the link (unshared connection to a store), on which the store
    /// reports changes of keys.
    pub(super) is_tracker: bool,
    /// True for a feed: the core itself has the link (unshared connection to a store), over which messages of
    /// channels with one subscription for all clients come.
    pub(super) is_feed: bool,
    /// True once the store was asked to end the present or an earlier blocking command on this link (`CLIENT
    /// UNBLOCK`). The link is then lent to no other client, whose command a late `CLIENT UNBLOCK` could end.
    pub(super) was_unblocked: bool,
    /// True once the store may keep something for this link (unshared connection to a store) that weir does not know
    /// of, or may send replies that belong to no request: it has refused to end something, or sent what fits no
    /// request. The link is then lent to no other client.
    pub(super) is_spoilt: bool,
    /// True if the store has refused to tell its number or its name for this link (unshared connection to a store), but
    /// might tell them on another one later: it was busy with a script, say. The link is then lent to no other client.
    pub(super) is_half_greeted: bool,
    /// The time at which the request in flight is to be sent once more, because a node could not carry it out yet;
    /// None if it is not to be.
    pub(super) put_off_until: Option<Timestamp>,
    /// True while nothing is sent over the link (unshared connection to a store), because it is not known yet
    /// how its store is to track keys on it.
    pub(super) is_held: bool,
    /// Bytes that are sent before the output: a `CLIENT KILL` for each given-up connection, ahead of a
    /// request that waited for the link to open, or the `CLIENT TRACKING` command for which all output was
    /// held back.
    pub(super) prelude: Vec<u8>,
    /// The bytes of the greeting (the requests that open a connection) until they are sent.
    greeting: Vec<u8>,
    pub(super) output: Output,
    /// Bytes that are sent only when the store has answered a `SELECT` or `HELLO` before them, because it would carry
    /// out what follows even if it refused that, in another database for instance. One part for each such command that
    /// is unanswered; the first part follows the command at the end of `output`.
    behind: VecDeque<Output>,
    pub(super) is_sending: bool,
    pub(super) is_listed: bool,
    pub(super) scanner: ReplyScanner,
    partial: Vec<u8>,
    /// The number of bytes dropped so far of the reply that is being received, because it is larger than
    /// permitted or no client awaits it; else 0.
    let_go: u64,
    /// The time from which the store's silence is counted: when bytes came from it last or, if that is later, when
    /// something was last sent for which it owes a reply, or began to wait for that.
    pub(super) heard_at: Timestamp,
    pub(super) idle_since: Timestamp,
    /// True if the store has become a replica since the link was opened: the link is then closed when its
    /// client gives it back.
    pub(super) is_retired: bool,
}

impl Link {
    pub(super) fn new(
        (backend, database): (BackendId, Database),
        protocol: Protocol,
        now: Timestamp,
    ) -> Self {
        Self {
            backend,
            protocol,
            spoken: protocol,
            database,
            selected: database,
            state: State::Opening,
            number: None,
            name: None,
            fenced: 0,
            holder: None,
            in_flight: None,
            abandoned: None,
            puts_back: None,
            step_error: None,
            expected: VecDeque::new(),
            errands: VecDeque::new(),
            is_streaming: false,
            owes_acknowledgements: false,
            is_tracking: false,
            tracked_for: None,
            is_inbox: false,
            is_tracker: false,
            is_feed: false,
            was_unblocked: false,
            is_spoilt: false,
            is_half_greeted: false,
            put_off_until: None,
            is_held: false,
            prelude: Vec::new(),
            greeting: Vec::new(),
            output: Output::default(),
            behind: VecDeque::new(),
            is_sending: false,
            is_listed: false,
            scanner: ReplyScanner::with_pushes(),
            partial: Vec::new(),
            let_go: 0,
            heard_at: now,
            idle_since: now,
            is_retired: false,
        }
    }

    /// Writes the greeting: the login, if there is one, the database unless it is the first, `CLIENT INFO`,
    /// so that the store can be asked to kill the connection, and `CLIENT ID`, which older stores know too,
    /// so that a blocking command can be ended at the store. A tracker (connection on which a store reports
    /// changes of keys) goes on with `CLIENT TRACKING ON`.
    pub(super) fn greet(&mut self, backend: &BackendSettings, pool: &mut BufferPool) {
        let mut out = pool.take();
        if let Some(words) = backend.login_words(self.protocol) {
            encode::request(&mut out, words.iter().map(|word| word.as_bytes()));
            self.expected.push_back(Expected::Login);
        }
        if self.database != Database::FIRST {
            encode::select(&mut out, self.database);
            self.expected.push_back(Expected::Select);
        }
        encode::request(&mut out, [&b"CLIENT"[..], b"INFO"].into_iter());
        self.expected.push_back(Expected::Name);
        encode::request(&mut out, [&b"CLIENT"[..], b"ID"].into_iter());
        self.expected.push_back(Expected::Identity);
        if self.is_tracker {
            encode::request(&mut out, [&b"CLIENT"[..], b"TRACKING", b"ON"].into_iter());
            self.expected.push_back(Expected::Tracking);
        }
        self.greeting = out;
    }

    pub(super) fn lend(&mut self, holder: ClientId, tenant: TenantId) {
        debug_assert!(self.holder.is_none() && self.in_flight.is_none(), "a link has one holder");
        self.holder = Some((holder, tenant));
    }

    pub(super) fn append(&mut self, env: &mut Env, message: Message<'_>) {
        let output = self.last_output();
        match message {
            Message::Small(bytes) => output.append(&mut env.pool, bytes),
            Message::Shared(bytes) => output.append_shared(&mut env.pool, bytes),
        }
    }

    /// Returns the output that further bytes are appended to: the last part of it that waits for the reply to a
    /// `SELECT` or `HELLO`, if there is one.
    fn last_output(&mut self) -> &mut Output {
        self.behind.back_mut().unwrap_or(&mut self.output)
    }

    /// Changes the RESP version of the requests that follow on the link. `HELLO 3` is sent at once, because
    /// in RESP2 the store reports no changes of tracked keys; `HELLO 2` precedes the next request.
    pub(super) fn change_dialect(&mut self, env: &mut Env, protocol: Protocol, now: Timestamp) {
        self.protocol = protocol;
        if protocol == Protocol::Resp3 {
            self.speak(env, now);
        }
    }

    /// Sends over the open link, before a request, a `CLIENT KILL` for every connection to its store that weir
    /// has given up since such commands were last sent over it, so that no write sent over these connections
    /// takes effect after the request.
    pub(super) fn fence_off(&mut self, env: &mut Env) {
        let seen = std::mem::replace(&mut self.fenced, env.fences.count());
        let Env { fences, pool, .. } = env;
        for fence in fences.at(self.backend, seen) {
            fence.encode(self.last_output().buffer(pool));
            self.expected.push_back(Expected::Fence(fence.origin, fence.sequence));
        }
    }

    /// Puts a `CLIENT KILL` for every given-up connection to the store before a request that has waited for the
    /// link to open. Connections from before a restart of the store are left out, since the restart has ended
    /// them; the store's reply to `CLIENT INFO` on the link shows whether it has restarted.
    pub(super) fn fence_off_first(&mut self, env: &Env) {
        self.fenced = env.fences.count();
        let mut kills = Vec::new();
        for (place, fence) in env.fences.at(self.backend, 0).enumerate() {
            fence.encode(&mut kills);
            self.expected.insert(place, Expected::Fence(fence.origin, fence.sequence));
        }
        self.prelude.splice(..0, kills);
    }

    /// Handles the reply to a fence (`CLIENT KILL` of a connection that weir gave up): the fence is lifted, so
    /// that no further link sends it. If the store can carry out nothing at present, the fence stays, and is
    /// sent again before the next request on the link.
    pub(super) fn take_fence_reply(
        &mut self,
        env: &mut Env,
        (origin, sequence): (ShardId, u64),
        reply: &[u8],
    ) {
        if is_not_ready(reply) {
            self.fenced = 0;
        } else {
            env.fences.lift(origin, sequence);
        }
    }

    /// Raises a fence for this link, which is about to be given up: later connections ask the store to kill
    /// it (`CLIENT KILL`), so that the store does not carry out its request in flight after later ones. Does
    /// nothing unless that request was sent and may write, and the store has named the connection. A blocking
    /// command needs no fence: its client is gone or is closed, so no later request of that client follows.
    pub(super) fn raise_fence(&mut self, env: &mut Env) {
        let was_sent = self.may_have_sent();
        let may_write = self
            .in_flight
            .as_ref()
            .is_some_and(|request| request.nature.effect() == Effect::Write && !request.waits());
        if was_sent
            && may_write
            && let Some(name) = self.name.take()
        {
            env.fences.raise(self.backend, name);
        }
    }

    /// Sends, before a request, `HELLO` if the store was last told another RESP version on the link than the
    /// request needs, and `SELECT` if it was last told another database.
    pub(super) fn prepare(&mut self, env: &mut Env, now: Timestamp) {
        self.speak(env, now);
        if self.selected != self.database {
            self.select_anew(env, now);
        }
    }

    /// Sends `HELLO` with the link's RESP version; does nothing if the store speaks that version already.
    fn speak(&mut self, env: &mut Env, now: Timestamp) {
        if self.spoken != self.protocol {
            self.spoken = self.protocol;
            let version: &[u8] = if self.protocol == Protocol::Resp3 { b"3" } else { b"2" };
            let mut words = env.pool.take();
            encode::request(&mut words, [&b"HELLO"[..], version].into_iter());
            self.send_first(env, words, Expected::Login, now);
        }
    }

    /// Sends `SELECT` of the link's database, before its next request if another one was selected last, or once
    /// more if it is unknown which one is selected at the store.
    pub(super) fn select_anew(&mut self, env: &mut Env, now: Timestamp) {
        self.selected = self.database;
        let mut words = env.pool.take();
        encode::select(&mut words, self.database);
        self.send_first(env, words, Expected::Select, now);
    }

    /// Sends a request of weir's own (`words`) on which later requests on the link depend: these are sent when the
    /// store has answered it ([`Self::go_on`]). `expected` says which reply the request gets. If the store owes
    /// earlier replies, the time allowed for them does not start anew.
    fn send_first(&mut self, env: &mut Env, words: Vec<u8>, expected: Expected, now: Timestamp) {
        self.append(env, Message::Small(&words));
        env.pool.give(words);
        self.behind.push_back(Output::default());
        if self.expected.is_empty() {
            self.heard_at = now;
        }
        self.expected.push_back(expected);
    }

    /// Lets the bytes be sent that have waited for the reply to a `SELECT` or `HELLO`, which the store has carried out.
    /// False, with nothing changed, if that command was not sent yet, so that the store cannot have answered it.
    pub(super) fn go_on(&mut self) -> bool {
        if !self.output.is_empty() {
            return false;
        }
        self.output = self.behind.pop_front().unwrap_or_default();
        true
    }

    /// True if bytes wait for the reply to a `SELECT` or `HELLO` before them. If a request is in flight on the link, it
    /// is among them.
    pub(super) fn waits_behind(&self) -> bool {
        self.behind.iter().any(|output| !output.is_empty())
    }

    /// Returns the number of bytes of output that wait to be sent over the link.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.output.len() + self.behind.iter().map(Output::len).sum::<usize>()
    }

    /// Drops all output, and gives its buffers back to the pool.
    pub(super) fn clear_output(&mut self, pool: &mut BufferPool) {
        self.output.clear(pool);
        self.behind.drain(..).for_each(|mut output| output.clear(pool));
    }

    pub(super) fn expect_steps(&mut self, steps: usize) {
        self.expected.extend(std::iter::repeat_n(Expected::Step, steps));
    }

    /// True if the link is open and all bytes that were to be sent over it have been written to the socket.
    pub(super) fn is_sent(&self) -> bool {
        self.state == State::Open && self.unsent_bytes() == 0 && !self.is_sending
    }

    /// True if the request in flight on the link may have reached the store. False if it certainly has not, because
    /// the link is not open yet, or the request is held back or waits for the reply to a `SELECT` or `HELLO`.
    pub(super) fn may_have_sent(&self) -> bool {
        self.state == State::Open && !self.is_held && self.put_off_until.is_none() && !self.waits_behind()
    }

    /// True if neither a client nor the core itself has the open link, so that it can be lent when its store owes
    /// nothing any more.
    pub(super) fn is_free(&self) -> bool {
        self.holder.is_none() && !self.is_tracker && !self.is_feed && self.state == State::Open
    }

    /// True if messages for the link's holder that are not replies to requests may come over the link: published ones,
    /// or such about changed keys.
    pub(super) fn takes_messages(&self) -> bool {
        self.is_streaming || self.is_tracking || self.is_inbox
    }

    /// True unless a part of a reply or message has been received over the link whose rest has yet to come.
    pub(super) fn is_between_replies(&self) -> bool {
        self.partial.is_empty() && self.let_go == 0
    }

    /// True if the request in flight on the link is a blocking command, whose reply may never come.
    pub(super) fn waits(&self) -> bool {
        self.in_flight.as_ref().is_some_and(PrivateRequest::waits)
    }

    /// True if the request in flight on the link is a blocking command, or `WATCH`, behind which blocking commands of
    /// its client go over the same link.
    pub(super) fn stays_tied(&self) -> bool {
        let kind = self.in_flight.as_ref().map(|request| &request.kind);
        matches!(kind, Some(Kind::Waits(_) | Kind::Watch(_)))
    }

    /// Returns the record of the blocking command in flight on the link; `None` if there is none.
    pub(super) fn waiting(&mut self) -> Option<&mut Waiting> {
        match &mut self.in_flight.as_mut()?.kind {
            Kind::Waits(waiting) => Some(waiting),
            _ => None,
        }
    }

    pub(super) fn has_output(&self) -> bool {
        match self.state {
            State::Opening => false,
            State::Greeting => !self.greeting.is_empty(),
            State::Open if self.is_held => false,
            State::Open => !self.prelude.is_empty() || !self.output.is_empty(),
        }
    }

    /// Takes the next bytes to send over the link; None if there are none, or if earlier ones are still
    /// being written to the socket.
    pub(super) fn take_output(&mut self) -> Option<Segment> {
        if self.is_sending || !self.has_output() {
            return None;
        }
        let segment = match self.state {
            State::Greeting => Some(Segment::Gathered(std::mem::take(&mut self.greeting))),
            _ if !self.prelude.is_empty() => Some(Segment::Gathered(std::mem::take(&mut self.prelude))),
            _ => self.output.take(),
        };
        self.is_sending = segment.is_some();
        segment
    }

    /// Keeps a part (`chunk`) of a reply until the rest comes. Returns the number of bytes kept of the reply so far,
    /// and the number of further bytes of it that the store has announced. A reply that exceeds `bytes_max`, or that
    /// no client awaits ([`Self::drops_reply`]), is dropped, its bytes are only counted, and None is returned.
    pub(super) fn keep_partial(&mut self, chunk: &[u8], bytes_max: usize) -> Option<(usize, usize)> {
        if self.let_go > 0 || self.drops_reply() || self.partial.len() + chunk.len() > bytes_max {
            self.let_go += (self.partial.len() + chunk.len()) as u64;
            self.partial = Vec::new();
            return None;
        }
        self.partial.extend_from_slice(chunk);
        let held = self.partial.len();
        Some((held, self.scanner.missing().min(bytes_max - held)))
    }

    /// Takes a reply that has been received to its end, of which `end` is the last part and which may have at most
    /// `bytes_max` bytes, with the number of its bytes. For a larger one, and one of which parts were dropped
    /// before, None is returned in place of the bytes.
    pub(super) fn take_whole(&mut self, end: &[u8], bytes_max: usize) -> (Option<Vec<u8>>, u64) {
        let mut whole = std::mem::take(&mut self.partial);
        let let_go = std::mem::take(&mut self.let_go);
        let bytes = let_go + (whole.len() + end.len()) as u64;
        if let_go > 0 || whole.len() + end.len() > bytes_max {
            return (None, bytes);
        }
        whole.extend_from_slice(end);
        (Some(whole), bytes)
    }

    /// True if the reply in progress is only measured, because no client awaits it and it cannot have elements that
    /// must be put back. False on a link over which messages come as well, because the reply may be one of them.
    pub(super) fn drops_reply(&self) -> bool {
        let is_measured =
            self.abandoned.as_ref().is_some_and(|request| matches!(request.owing, Owing::Rest { .. }));
        // Messages that are not replies may come between.
        is_measured && !self.is_tracking && !self.is_streaming
    }

    /// Drops the beginning of a reply that came while a client still awaited it; its bytes are only counted.
    pub(super) fn drop_partial(&mut self, env: &mut Env, connection: (ConnectionId, u32)) {
        self.let_go += std::mem::take(&mut self.partial).len() as u64;
        env.handle_reply_end(connection);
    }

    /// Returns the reason to give up the link (unshared connection to a store): its socket was not connected in time,
    /// or its store has owed a reply and sent nothing for too long. None if the link is in order, also while a
    /// blocking command that was sent waits on the open link.
    pub(super) fn overdue(
        &self,
        (connect_timeout, reply_timeout): (Duration, Duration),
        now: Timestamp,
    ) -> Option<&'static str> {
        let silent = now.since(self.heard_at);
        if self.state == State::Opening {
            return (silent >= connect_timeout).then_some("connect-timeout");
        }
        let may_wait = self.state == State::Open && self.waits() && !self.is_held && !self.waits_behind();
        (self.owes() && !may_wait && silent >= reply_timeout).then_some("reply-timeout")
    }

    /// True if the store owes a reply, or acknowledgements of subscriptions, so that its silence is counted.
    fn owes(&self) -> bool {
        !self.expected.is_empty() || self.owes_acknowledgements
    }

    /// True if the connection is to be examined for whether the store's machine still acknowledges what was sent: the
    /// store owes a reply and has been silent for 500 ms, but not for 3 s yet, so that a long wait is not examined all
    /// along.
    pub(super) fn is_to_be_examined(&self, now: Timestamp) -> bool {
        let silent = now.since(self.heard_at);
        self.state != State::Opening && self.owes() && (SILENCE_EXAMINED..EXAMINED_UNTIL).contains(&silent)
    }
}
