//! A simulated store: the embedded engine behind connections that are slow, break, and send garbage.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::cluster::{CLUSTER_DOWN, Cluster, Verdict};
use super::history::History;
use super::network::{Lane, SocketId};
use super::plan::{Faults, Plan, Stall};
use super::token::{token_of_word, tokens};
use weir::protocol::command::Effect;
use weir::protocol::{Argument, Arguments, RequestDecoder, RequestLimits, command, encode, reply};
use weir::routing::slot_of;
use weir::store::{Disposition, Engine, EngineLimits, Session};
use weir::values::Random;
use weir::values::Timestamp;
use weir::values::time::Now;

/// The reply of a simulated store to a request.
#[derive(Debug)]
pub(super) enum StoreAnswer {
    Reply(Vec<u8>),
    /// The connection breaks after these bytes of the reply.
    Broken(Vec<u8>),
}

/// Bytes that a simulated store sends at another time than right after a request: a message, or the reply to
/// a blocking call that waited.
#[derive(Debug)]
pub(super) struct Delivered {
    pub socket: SocketId,
    pub answer: StoreAnswer,
    /// The number of later requests of the connection that are to be carried out now, since they were due
    /// while the call waited.
    pub resumed: usize,
}

#[derive(Clone, Debug)]
struct Waiting {
    frame: Vec<u8>,
    places: Vec<Argument>,
    is_script: bool,
}

/// Requests that a primary has carried out and its replica has not yet, with the time at which they reach it
/// (`arrives`).
#[derive(Debug)]
pub(super) struct Done {
    requests: Vec<Waiting>,
    at: Now,
    step: u64,
    arrives: Timestamp,
}

impl Done {
    fn requests(&self) -> impl Iterator<Item = Arguments<'_>> {
        self.requests.iter().map(|done| Arguments::new(&done.frame, &done.places))
    }

    /// Records in the history that these requests are lost with the store that carried them out. `takeover`
    /// is the index of the takeover in which the store was replaced by its replica.
    pub fn is_lost(&self, history: &mut History, takeover: usize) {
        self.requests().for_each(|arguments| lose(&arguments, self.step, history, takeover));
    }
}

/// The state of a transaction, between MULTI and EXEC, that a simulated store receives.
#[derive(Debug, Default)]
struct Block {
    /// The client whose writes are in the transaction, known by the tokens (marks of a write with its client's number)
    /// in the written values; `None` before the first token.
    client: Option<u32>,
}

struct Connection {
    session: Session,
    decoder: RequestDecoder,
    waiting: VecDeque<Waiting>,
    /// The time by which all requests received on the connection will have been carried out.
    busy_until: Timestamp,
    block: Option<Block>,
    /// True after ASKING: the next request, or the transaction that it begins, may use a slot that is being
    /// imported from another node.
    asking: bool,
    /// The requests of the transaction that have been queued since MULTI.
    queued: Vec<Waiting>,
    /// True if weir has closed the connection. Requests that the store had received are carried out all the
    /// same, as by a real store that has read them.
    ended: bool,
    /// True if the store reports changes of keys on the connection (CLIENT TRACKING).
    tracks: bool,
    /// The blocking call that waits on the connection (BLPOP and the like), if one does. `held` is the number
    /// of later requests on the connection that became due while that call waited.
    waits: Option<Waiting>,
    held: usize,
}

/// The work that the servers of a simulated store did in the counted time: the number of requests, and the
/// time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub requests: u64,
    pub took: Duration,
    /// The number of requests on connections that broke before a reply, so that their results were lost.
    pub in_vain: u64,
}

pub(super) struct Store {
    engine: Engine,
    cursors: Cursors,
    /// Requests that this store's replica has not carried out yet, if it has one; `lag` is the replica's
    /// longest delay.
    log: VecDeque<Done>,
    lag: Option<Duration>,
    to_replica: Lane,
    connections: BTreeMap<SocketId, Connection>,
    killed: Vec<SocketId>,
    loading_until: Timestamp,
    /// The error with which the store answers requests until `loading_until`.
    loading: &'static [u8],
    stalled_until: Timestamp,
    /// The time at which the last of all stalls so far ends. A later stall may be shorter: then only the
    /// connections whose requests came before it still wait.
    all_go_on_at: Timestamp,
    /// The time at which each server of the store is free again; `None` if connections do not share servers.
    servers: Option<Vec<Timestamp>>,
    stall: Option<Stall>,
    work: Work,
    counted: Range<Timestamp>,
    random: Random,
    faults: Faults,
    delay: Duration,
}

/// The time by which the end of a value's life may differ from its lifetime, because stores count whole
/// milliseconds.
const MILLI: Duration = Duration::from_millis(1);
const READ_ONLY: &str = "-READONLY You can't write against a read only replica.\r\n";
const LOADING: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";

impl Store {
    pub fn new(mut random: Random, plan: &Plan, stall: Option<Stall>) -> Self {
        Self {
            engine: Engine::new(EngineLimits::with_memory(1 << 30), random.bits()),
            cursors: Cursors::default(),
            log: VecDeque::new(),
            lag: plan.cluster.and_then(|moves| moves.falls).map(|falls| falls.lag),
            to_replica: Lane::default(),
            connections: BTreeMap::new(),
            killed: Vec::new(),
            loading_until: Timestamp::ZERO,
            loading: LOADING,
            stalled_until: Timestamp::ZERO,
            all_go_on_at: Timestamp::ZERO,
            servers: plan.store_servers.map(|servers| vec![Timestamp::ZERO; servers]),
            stall,
            work: Work::default(),
            counted: plan.load.map_or(Timestamp::ZERO..Timestamp::ZERO, |load| load.counted_from..load.until),
            random,
            faults: plan.faults,
            delay: plan.store_delay,
        }
    }

    /// Ends all random faults of the store for the rest of the run.
    pub fn calm_down(&mut self) {
        self.faults = Faults { client_lost: self.faults.client_lost, ..Faults::NONE };
    }

    /// Returns the work that the store's servers did during the counted time.
    pub fn work(&self) -> Work {
        self.work
    }

    pub fn faults(&self) -> Faults {
        self.faults
    }

    pub fn connected(&mut self, socket: SocketId) {
        let connection = Connection {
            session: Session::new(socket.0 as u64),
            decoder: RequestDecoder::default(),
            waiting: VecDeque::new(),
            busy_until: Timestamp::ZERO,
            block: None,
            asking: false,
            queued: Vec::new(),
            ended: false,
            tracks: false,
            waits: None,
            held: 0,
        };
        self.connections.insert(socket, connection);
    }

    /// Forgets a connection that the store itself has dropped at `now`. Counts its unanswered requests as
    /// lost, if `now` is in the counted time.
    pub fn disconnected(&mut self, socket: SocketId, now: Timestamp) {
        let connection = self.drop_connection(socket);
        if self.counted.contains(&now) {
            self.work.in_vain += connection.map_or(0, |connection| connection.waiting.len() as u64);
        }
    }

    /// Removes a connection, and its transaction, watches and waiting call in the engine. Returns it; `None`
    /// if it is unknown.
    fn drop_connection(&mut self, socket: SocketId) -> Option<Connection> {
        let connection = self.connections.remove(&socket)?;
        self.engine.forget(&connection.session);
        Some(connection)
    }

    /// Removes all connections of the store, because its node goes away.
    pub fn forget_connections(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            self.engine.forget(&connection.session);
        }
    }

    /// Removes and returns the next requests that the store's replica has received by the time `by`; `None`
    /// if there are none.
    pub fn poll_done(&mut self, by: Timestamp) -> Option<Done> {
        let is_there = self.log.front().is_some_and(|done| done.arrives <= by);
        if is_there { self.log.pop_front() } else { None }
    }

    /// Removes and returns all requests that the store's replica has not carried out.
    pub fn take_log(&mut self) -> VecDeque<Done> {
        std::mem::take(&mut self.log)
    }

    /// Carries out, on this replica, requests that its primary has carried out.
    pub fn replay(&mut self, done: &Done) {
        for arguments in done.requests() {
            self.engine.execute(&mut Session::new(0), arguments, done.at, &mut Vec::new());
        }
    }

    /// Replaces all keys of this store with those of its new primary.
    pub fn copy_of(&mut self, primary: &mut Self, now: Now) {
        said(&mut self.engine, &[b"FLUSHALL"], now);
        self.log.clear();
        primary.log.clear();
        for key in primary.keys(now) {
            if let Some((value, until)) = primary.value_and_end(&key, now) {
                self.put(&key, &value, until, now);
            }
        }
    }

    /// Carries out a SET of a client that bypasses weir, or a DEL if `value` is `None`. `step` is the number
    /// of the present event of the simulation.
    pub fn write_beside(&mut self, key: &[u8], value: Option<&[u8]>, now: Now, step: u64) {
        let mut frame = Vec::new();
        match value {
            Some(value) => encode::request(&mut frame, [&b"SET"[..], key, value].into_iter()),
            None => encode::request(&mut frame, [&b"DEL"[..], key].into_iter()),
        }
        let mut consumed = 0;
        let mut decoder = RequestDecoder::default();
        let request = decoder.next(&frame, &mut consumed, &RequestLimits::trusted(1 << 20));
        let places = request.expect("well formed").expect("whole").arguments.places().to_vec();
        let written = Waiting { frame, places, is_script: false };
        let arguments = Arguments::new(&written.frame, &written.places);
        self.engine.execute(&mut Session::new(0), arguments, now, &mut Vec::new());
        self.note_done(vec![written], now, step);
    }

    fn note_done(&mut self, mut requests: Vec<Waiting>, at: Now, step: u64) {
        let Some(lag) = self.lag else { return };
        requests.retain(|done| {
            let command = command::recognise(&Arguments::new(&done.frame, &done.places));
            command.is_ok_and(|command| command.effect == Effect::Write)
        });
        if !requests.is_empty() {
            let arrives = self.to_replica.arrival(at.monotonic, lag, &mut self.random);
            self.log.push_back(Done { requests, at, step, arrives });
        }
    }

    /// Drops a connection that weir has reset while the store was stopped: requests that the store had not
    /// read are lost.
    pub fn reset_unread(&mut self, socket: SocketId) {
        self.drop_connection(socket);
    }

    /// Ends a connection that weir has closed, after the store has received everything that weir sent.
    /// Requests that are left are carried out first, unless a blocking call waits.
    pub fn ended(&mut self, socket: SocketId) {
        if let Some(connection) = self.connections.get_mut(&socket) {
            connection.ended = true;
            // A store closes a connection whose call waits as soon as it sees the end.
            if connection.waiting.is_empty() || connection.waits.is_some() {
                self.drop_connection(socket);
            }
        }
    }

    /// Drops one of the connections on which this store reports changes of keys, as a fault, and returns it;
    /// `None` if there is no such connection.
    pub fn cut_tracker(&mut self) -> Option<SocketId> {
        self.cut(|known| known.tracks)
    }

    /// Drops any connection, as a fault, and returns it; `None` if there is none.
    pub fn cut_any(&mut self) -> Option<SocketId> {
        self.cut(|_| true)
    }

    fn cut(&mut self, is_meant: impl Fn(&Connection) -> bool) -> Option<SocketId> {
        let meant: Vec<SocketId> =
            self.connections.iter().filter(|(_, known)| is_meant(known)).map(|(socket, _)| *socket).collect();
        let cut = (!meant.is_empty()).then(|| *self.random.pick(&meant))?;
        self.drop_connection(cut);
        Some(cut)
    }

    /// Returns the next message about a changed key, or reply to a blocking call that waited, for the caller
    /// to send; `None` if there is none.
    pub fn poll_delivery(&mut self) -> Option<Delivered> {
        loop {
            let delivery = self.engine.poll_delivery()?;
            let socket = SocketId(delivery.session as usize);
            let Some(connection) = self.connections.get_mut(&socket) else { continue };
            let bytes = delivery.bytes.to_vec();
            if !delivery.ends_wait {
                return Some(Delivered { socket, answer: StoreAnswer::Reply(bytes), resumed: 0 });
            }
            connection.waits = None;
            let resumed = std::mem::take(&mut connection.held);
            let answer = self.answer(bytes);
            return Some(Delivered { socket, answer, resumed });
        }
    }

    /// Ends the blocking calls whose timeouts are over at `now`.
    pub fn expire_waits(&mut self, now: Now) {
        self.engine.expire_waits(now);
    }

    /// Returns the time at which the next timeout of a waiting blocking call is over; `None` if no call
    /// waits with a timeout.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.engine.waits_until()
    }

    /// Returns the elements of the list `key`, read directly from the store's engine.
    pub fn list(&mut self, key: &[u8], now: Now) -> Vec<Vec<u8>> {
        let told = said(&mut self.engine, &[b"LRANGE", key, b"0", b"-1"], now);
        let elements = reply::elements(&told).expect("an array").filter_map(reply::text);
        elements.map(<[u8]>::to_vec).collect()
    }

    /// Removes and returns the next connection that CLIENT KILL on another one has closed; `None` if there
    /// is none.
    pub fn poll_killed(&mut self) -> Option<SocketId> {
        self.killed.pop()
    }

    /// Handles bytes of requests on a connection. Returns the time at which each request that is whole now
    /// will be carried out. An error if weir sent malformed bytes.
    pub fn receive(
        &mut self,
        socket: SocketId,
        bytes: &[u8],
        now: Timestamp,
    ) -> Result<Vec<Timestamp>, String> {
        let Some(connection) = self.connections.get_mut(&socket) else { return Ok(Vec::new()) };
        let limits = RequestLimits::trusted(64 << 20);
        let (mut consumed, mut times) = (0, Vec::new());
        loop {
            match connection.decoder.next(bytes, &mut consumed, &limits) {
                Ok(Some(request)) => {
                    let frame = request.arguments.frame().to_vec();
                    let mut places = request.arguments.places().to_vec();
                    // A script is the name of a command, which is called with its key and its arguments.
                    let is_script = request.arguments.name() == b"EVAL";
                    if is_script {
                        places.remove(2);
                        places.remove(0);
                    }
                    connection.waiting.push_back(Waiting { frame, places, is_script });
                }
                Ok(None) => break,
                Err(error) => return Err(format!("a store was sent malformed bytes: {}", error.0)),
            }
            if self.random.per_mille(self.faults.stall) {
                self.stalled_until = now.after(Duration::from_millis(self.random.between(1, 10_000)));
                self.all_go_on_at = self.all_go_on_at.max(self.stalled_until);
            }
            let from = now.max(self.stalled_until);
            let done = if let Some(servers) = &mut self.servers {
                let takes = self.delay.mul_f64(self.random.exponential());
                if self.counted.contains(&now) {
                    (self.work.requests, self.work.took) = (self.work.requests + 1, self.work.took + takes);
                }
                connection.busy_until.max(occupy(servers, from, takes, self.stall))
            } else {
                let takes = self.random.below(self.delay.as_nanos() as u64 + 1);
                connection.busy_until.max(from).after(Duration::from_nanos(takes))
            };
            connection.busy_until = done;
            times.push(done);
        }
        Ok(times)
    }

    /// Carries out the next request of a connection. Returns the reply; `None` if a blocking call waits or
    /// the connection is gone. `cluster` has the cluster and the store's index in it, if the store is a node
    /// of one. The error is a promise that weir has broken.
    pub fn carry_out(
        &mut self,
        socket: SocketId,
        now: Now,
        history: &mut History,
        cluster: Option<(&Cluster, usize)>,
    ) -> Result<Option<StoreAnswer>, String> {
        let answer = self.carry_out_next(socket, now, history, cluster)?;
        while let Some(killed) = self.engine.poll_killed() {
            let killed = SocketId(killed as usize);
            if self.drop_connection(killed).is_some() {
                self.killed.push(killed);
            }
        }
        // A store that finds that it cannot reply may drop the rest of the requests that it has read.
        let leaves = self.random.per_mille(100);
        if self
            .connections
            .get(&socket)
            .is_some_and(|known| known.ended && (leaves || known.waiting.is_empty()))
        {
            self.drop_connection(socket);
        }
        Ok(answer)
    }

    fn carry_out_next(
        &mut self,
        socket: SocketId,
        now: Now,
        history: &mut History,
        cluster: Option<(&Cluster, usize)>,
    ) -> Result<Option<StoreAnswer>, String> {
        let Some(connection) = self.connections.get_mut(&socket) else { return Ok(None) };
        if connection.waits.is_some() {
            connection.held += 1;
            return Ok(None);
        }
        let waiting = connection.waiting.pop_front().expect("each request has its time");
        let arguments = Arguments::new(&waiting.frame, &waiting.places);
        if self.random.per_mille(self.faults.lost_before) {
            return Ok(Some(StoreAnswer::Broken(Vec::new())));
        }
        if self.random.per_mille(self.faults.loading) {
            self.loading_until = now.monotonic.after(Duration::from_millis(self.random.between(1, 50)));
            let is_replica = cluster.is_none() && self.random.per_mille(300);
            self.loading = if is_replica { READ_ONLY.as_bytes() } else { LOADING };
        }
        check_block(connection, &arguments)?;
        connection.tracks |= arguments.name() == b"CLIENT" && arguments.get(1) == Some(b"TRACKING");
        let speaks_always =
            [&b"MULTI"[..], b"EXEC", b"HELLO", b"AUTH", b"CLIENT"].contains(&arguments.name());
        let mut reply = Vec::new();
        if self.loading_until > now.monotonic && !speaks_always {
            if connection.block.is_some() {
                spoil(&mut self.engine, &mut connection.session, now);
            }
            return Ok(Some(StoreAnswer::Reply(self.loading.to_vec())));
        }
        let mut forged = None;
        if let Some((nodes, node)) = cluster
            && self.random.per_mille(nodes.moves().lies)
            && arguments.name() != b"EXEC"
        {
            let lie = nodes.lie(node, &arguments, &mut self.random);
            if let Some(lie) = lie.filter(|_| connection.block.is_none()) {
                if !waiting.is_script {
                    connection.asking = false;
                    return Ok(Some(StoreAnswer::Reply(lie.into_bytes())));
                }
                let slot = slot_of_request(&waiting.frame, &waiting.places);
                forged = slot.filter(|slot| nodes.forge(*slot, now.monotonic)).map(|_| lie);
            }
        }
        if let Some(cluster) = cluster {
            let engine = (&mut self.engine, &mut self.random);
            let answer = answer_as_node(connection, engine, &arguments, now, cluster)?;
            if let Some(answer) = answer {
                if answer.starts_with(CLUSTER_DOWN.as_bytes()) {
                    history.note_down();
                }
                return Ok(Some(StoreAnswer::Reply(answer)));
            }
        }
        match cluster {
            Some(_) if arguments.name() == b"SCAN" => {
                reply = self.cursors.scan(&mut self.engine, &arguments, now)?;
            }
            _ => {
                let disposition = self.engine.execute(&mut connection.session, arguments, now, &mut reply);
                if disposition == Disposition::Wait {
                    connection.waits = Some(waiting);
                    return Ok(None);
                }
            }
        }
        if connection.block.is_some() {
            connection.queued.push(waiting);
        } else {
            let queued = std::mem::take(&mut connection.queued);
            let aborted = reply.starts_with(b"-EXECABORT");
            let done: Vec<Waiting> =
                queued.into_iter().filter(|_| !aborted).chain(std::iter::once(waiting.clone())).collect();
            let slot = done.iter().find_map(|done| slot_of_request(&done.frame, &done.places));
            let is_in_vain = cluster
                .zip(slot)
                .is_some_and(|((nodes, node), slot)| nodes.is_deluded(node, slot, now.monotonic));
            for done in &done {
                let arguments = Arguments::new(&done.frame, &done.places);
                if is_in_vain {
                    for token in arguments.iter().filter_map(token_of_word) {
                        history.carried_out_in_vain(token)?;
                    }
                    lose(&arguments, history.step(), history, history.takeover());
                }
                for token in arguments.iter().filter_map(token_of_word) {
                    if !is_in_vain {
                        history.carried_out(token)?;
                    }
                    if let Some(lifetime) = lifetime_of(&arguments) {
                        let ends = [lifetime.saturating_sub(MILLI), lifetime + MILLI];
                        let [earliest, surely] = ends.map(|after| now.monotonic.after(after));
                        history.ends_between(token.write, earliest, surely);
                    }
                }
            }
            if !is_in_vain {
                self.note_done(done, now, history.step());
            }
        }
        if let Some(forged) = forged {
            return Ok(Some(StoreAnswer::Reply(forged.into_bytes())));
        }
        if self.random.per_mille(self.faults.garbage) {
            return Ok(Some(StoreAnswer::Reply(b"what?\r\n".to_vec())));
        }
        Ok(Some(self.answer(reply)))
    }

    /// Decides how a reply is sent: whole, or only its beginning before the connection breaks.
    fn answer(&mut self, mut reply: Vec<u8>) -> StoreAnswer {
        if !self.random.per_mille(self.faults.lost_after) {
            return StoreAnswer::Reply(reply);
        }
        reply.truncate(self.random.below(reply.len() as u64) as usize);
        StoreAnswer::Broken(reply)
    }

    /// Returns the value of the string `key`, read directly from the store's engine; `None` if there is no
    /// such key.
    pub fn value(&mut self, key: &[u8], now: Now) -> Option<Vec<u8>> {
        reply::text(&said(&mut self.engine, &[b"GET", key], now)).map(<[u8]>::to_vec)
    }

    /// Returns all keys of the store, sorted.
    pub fn keys(&mut self, now: Now) -> Vec<Vec<u8>> {
        let told = said(&mut self.engine, &[b"KEYS", b"*"], now);
        let keys = reply::elements(&told).expect("an array").filter_map(reply::text);
        let mut keys: Vec<Vec<u8>> = keys.map(<[u8]>::to_vec).collect();
        keys.sort();
        keys
    }

    /// True if the store stalls at `now`, on all connections or on some.
    pub fn is_stuck(&self, now: Timestamp) -> bool {
        self.all_go_on_at > now
    }

    /// True if requests that come at `now` wait for the end of a stall.
    pub fn stands_still(&self, now: Timestamp) -> bool {
        self.stalled_until > now
    }

    /// True if the store has received ASKING on any connection, and has not carried out the request after it,
    /// which uses a slot that is being imported from another node.
    pub fn will_be_asked(&self) -> bool {
        let is_asking =
            |waiting: &Waiting| Arguments::new(&waiting.frame, &waiting.places).name() == b"ASKING";
        self.connections.values().any(|known| known.asking || known.waiting.iter().any(is_asking))
    }

    /// Ends blocking calls that wait for keys of slots which the node (`node` is its index) has lost, with a
    /// redirect, as a real node does. Returns the replies to be sent.
    pub fn redirect_waits(
        &mut self,
        now: Now,
        (cluster, node): (&Cluster, usize),
    ) -> Result<Vec<Delivered>, String> {
        let Self { engine, connections, .. } = self;
        let mut redirected = Vec::new();
        for (socket, connection) in connections {
            let Some(call) = &connection.waits else { continue };
            let arguments = Arguments::new(&call.frame, &call.places);
            let holds = &mut |_: &[u8]| true;
            let verdict = cluster.judge((node, now.monotonic), false, std::iter::once(arguments), holds)?;
            if let Verdict::Refused(line) = verdict {
                engine.forget(&connection.session);
                connection.waits = None;
                let resumed = std::mem::take(&mut connection.held);
                redirected.push(Delivered {
                    socket: *socket,
                    answer: StoreAnswer::Reply(line.into_bytes()),
                    resumed,
                });
            }
        }
        Ok(redirected)
    }

    /// Removes a key that moves to another node. Returns its value as DUMP writes it, and its expiry in
    /// milliseconds since 1970, if it has one; `None` if there is no such key.
    pub fn take(&mut self, key: &[u8], now: Now) -> Option<(Vec<u8>, Option<i64>)> {
        let found = self.value_and_end(key, now)?;
        said(&mut self.engine, &[b"DEL", key], now);
        Some(found)
    }

    fn value_and_end(&mut self, key: &[u8], now: Now) -> Option<(Vec<u8>, Option<i64>)> {
        let value = reply::text(&said(&mut self.engine, &[b"DUMP", key], now))?.to_vec();
        let until = reply::integer(&said(&mut self.engine, &[b"PEXPIRETIME", key], now));
        Some((value, until.filter(|until| *until > 0)))
    }

    /// Stores a key that moves here from another node. `value` is as DUMP writes it, `until` the expiry in
    /// milliseconds since 1970; `None` if it has none.
    pub fn put(&mut self, key: &[u8], value: &[u8], until: Option<i64>, now: Now) {
        let until = until.unwrap_or(0).to_string();
        said(&mut self.engine, &[b"RESTORE", key, until.as_bytes(), value, b"REPLACE", b"ABSTTL"], now);
    }
}

/// SCAN cursors of the engine. Clients are given the place of a cursor in this list (from 1) instead, because
/// a real cluster's cursors are smaller than the engine's.
#[derive(Debug, Default)]
struct Cursors(Vec<Vec<u8>>);

impl Cursors {
    fn scan(&mut self, engine: &mut Engine, arguments: &Arguments<'_>, now: Now) -> Result<Vec<u8>, String> {
        let mut words: Vec<&[u8]> = arguments.iter().collect();
        let place = std::str::from_utf8(words[1]).ok().and_then(|word| word.parse::<usize>().ok());
        let place = place.ok_or("a node was sent what is no cursor")?;
        if let Some(place) = place.checked_sub(1) {
            words[1] = self.0.get(place).ok_or("a node was sent a cursor that it never gave")?;
        }
        let told = said(engine, &words, now);
        let mut parts = reply::elements(&told).ok_or("a page")?;
        let next = parts.next().and_then(reply::text).ok_or("a cursor")?;
        let mut out = Vec::new();
        encode::array(&mut out, 2);
        if next == b"0" {
            encode::bulk(&mut out, b"0");
        } else {
            self.0.push(next.to_vec());
            encode::bulk(&mut out, self.0.len().to_string().as_bytes());
        }
        out.extend_from_slice(parts.rest());
        Ok(out)
    }
}

/// Carries out a command (`words`) directly in a store's engine, and returns the reply.
fn said(engine: &mut Engine, words: &[&[u8]], now: Now) -> Vec<u8> {
    let mut frame = Vec::new();
    encode::request(&mut frame, words.iter().copied());
    let mut consumed = 0;
    let mut decoder = RequestDecoder::default();
    let request = decoder.next(&frame, &mut consumed, &RequestLimits::trusted(1 << 20));
    let request = request.expect("well formed").expect("whole");
    let mut out = Vec::new();
    engine.execute(&mut Session::new(0), request.arguments, now, &mut out);
    out
}

/// Queues an unknown command in the transaction to which a refused request belongs, so that EXEC fails, as in
/// Redis.
fn spoil(engine: &mut Engine, session: &mut Session, now: Now) {
    let words: [Argument; 1] = [Argument { start: 0, length: 1 }];
    engine.execute(session, Arguments::new(b"?", &words), now, &mut Vec::new());
}

/// Returns the reply with which a cluster's node refuses or answers a request itself; `None` if the node
/// carries the request out. `cluster` and `node` are the cluster and the node's index in it.
fn answer_as_node(
    connection: &mut Connection,
    (engine, random): (&mut Engine, &mut Random),
    arguments: &Arguments<'_>,
    now: Now,
    (cluster, node): (&Cluster, usize),
) -> Result<Option<Vec<u8>>, String> {
    let Connection { block, queued, session, asking, .. } = connection;
    let was_asking = std::mem::take(asking);
    *asking = was_asking && block.is_some();
    let is_end = arguments.name() == b"EXEC";
    let of_block = queued.iter().filter(|_| is_end).map(|done| Arguments::new(&done.frame, &done.places));
    let this = (!is_end).then_some(*arguments);
    let holds = &mut |key: &[u8]| said(engine, &[b"EXISTS", key], now) == b":1\r\n";
    match cluster.judge((node, now.monotonic), was_asking, of_block.chain(this), holds)? {
        Verdict::CarryOut => Ok(None),
        Verdict::Answered(line) => {
            *asking = arguments.name() == b"ASKING";
            Ok(Some(line.into_bytes()))
        }
        Verdict::Refused(line) => {
            let is_write = command::recognise(arguments).is_ok_and(|command| command.effect == Effect::Write);
            let is_moved = line.starts_with("-MOVED");
            let line = if is_moved && is_write && cluster.is_replica(node) && random.per_mille(100) {
                READ_ONLY.to_owned()
            } else {
                line
            };
            if is_end {
                queued.clear();
                let words: [Argument; 1] = [Argument { start: 0, length: 7 }];
                engine.execute(session, Arguments::new(b"DISCARD", &words), now, &mut Vec::new());
            } else if block.is_some() {
                spoil(engine, session, now);
            }
            Ok(Some(line.into_bytes()))
        }
    }
}

/// Returns the slot of a request's first key; `None` if it has no key.
fn slot_of_request(frame: &[u8], places: &[Argument]) -> Option<u16> {
    let arguments = Arguments::new(frame, places);
    let first = command::recognise(&arguments).ok()?.first_key(&arguments).ok()??;
    Some(slot_of(arguments.at(first)))
}

/// Records in the history that the writes of a request, carried out in the event number `step`, are lost by
/// the takeover with the index `takeover`.
fn lose(arguments: &Arguments<'_>, step: u64, history: &mut History, takeover: usize) {
    let written: Vec<_> = arguments.iter().filter_map(token_of_word).collect();
    written.iter().for_each(|token| history.lose(token.write, takeover));
    if let Ok(command) = command::recognise(arguments) {
        let _ = command.for_each_key(arguments, &mut |index| {
            let key = arguments.at(index);
            if written.iter().all(|token| token.key.as_bytes() != key) {
                history.lose_unnamed(&String::from_utf8_lossy(key), step);
            }
        });
    }
}

/// Returns the lifetime of the value that a request sets; `None` if it does not expire.
fn lifetime_of(arguments: &Arguments<'_>) -> Option<Duration> {
    if arguments.len() != 5 || arguments.at(3) != b"PX" {
        return None;
    }
    let millis: u64 = std::str::from_utf8(arguments.at(4)).ok()?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

/// Gives a request, which comes at `from` and takes this long, to the server that is free first, and returns
/// the time when it is done; if that is within the stall, the stall's length is added.
fn occupy(servers: &mut [Timestamp], from: Timestamp, takes: Duration, stall: Option<Stall>) -> Timestamp {
    let free = servers.iter_mut().min().expect("a store has a server");
    *free = (*free).max(from).after(takes);
    if let Some(stall) = stall.filter(|stall| (stall.from..stall.until).contains(free)) {
        *free = free.after(stall.until.since(stall.from));
    }
    *free
}

/// Checks that MULTI and EXEC on a connection match, and that the writes between them are all of one client.
/// The error says what weir did wrong.
fn check_block(connection: &mut Connection, arguments: &Arguments<'_>) -> Result<(), String> {
    match (arguments.name(), &mut connection.block) {
        (b"MULTI", None) => connection.block = Some(Block::default()),
        (b"EXEC", Some(_)) => connection.block = None,
        (b"MULTI" | b"EXEC", _) => return Err("a store was sent MULTI and EXEC that do not match".into()),
        (_, Some(block)) => {
            let writers = arguments.iter().skip(1).filter_map(tokens).flatten().map(|token| token.client);
            for writer in writers {
                let client = *block.client.get_or_insert(writer);
                if client != writer {
                    return Err(format!("the blocks of clients {client} and {writer} were mixed"));
                }
            }
        }
        _ => {}
    }
    Ok(())
}
