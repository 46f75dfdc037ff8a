//! A store that follows a script: every reply is held back until its time has come.

use std::collections::BTreeSet;

use weir::protocol::{Arguments, BufferPool, RequestLimits, Segment, encode};
use weir::store::{Connections, Disposition, Engine, Sockets, StoreClients, StoreService, Sweeper};
use weir::values::time::Now;
use weir::values::{Action, ClientId, Owner, Timestamp};

use crate::script::{ClusterSession, Director, Effect, Pending, Place, Script, Turn, Verdict, Visit};

/// Maximum number of bytes of replies, due or held back by the script, on one connection; a connection with
/// more is closed.
const OUTPUT_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Maximum number of bytes that a client may send while its new connection is not served yet (`slow_accept`
/// in the script); a connection with more is closed.
const EARLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The error for a blocking command (BLPOP and the like), which a scripted store does not support.
const NO_WAITS: &str = "ERR a store that follows a script lets no call wait";

/// State of a client's connection to a scripted store.
#[derive(Debug, Default)]
struct Scripted {
    /// Replies that are held back until their service time is over and all earlier ones are sent.
    pending: Pending,
    /// Bytes that came while the new connection is not served yet (`slow_accept` in the script); `None` once
    /// it is served.
    early: Option<Early>,
    /// State of the connection for a store that plays a node of a cluster: whether the client has sent
    /// ASKING or READONLY.
    cluster: ClusterSession,
}

type Connection = weir::store::Connection<Scripted>;

/// A scripted store: an engine that behaves as a script says, and its connections.
pub(crate) struct ScriptedService {
    engine: Engine,
    director: Director,
    limits: RequestLimits,
    connections: Connections<Scripted>,
    sweeper: Sweeper,
    /// New connections that are not served yet (`slow_accept` in the script), by the time from which they
    /// are served.
    ignored: BTreeSet<(Timestamp, Place)>,
}

impl ScriptedService {
    /// Creates a scripted store without connections. A client that sends a request of more than
    /// `request_bytes_max` bytes is disconnected.
    pub(crate) fn new(engine: Engine, request_bytes_max: usize, script: Script) -> Self {
        Self {
            engine,
            director: Director::new(script),
            limits: RequestLimits::trusted(request_bytes_max),
            connections: Connections::default(),
            sweeper: Sweeper::default(),
            ignored: BTreeSet::new(),
        }
    }

    /// Handles a new connection: closes it if the script refuses connections, or leaves it unserved for a
    /// while (`slow_accept`).
    fn receive_opened(&mut self, id: ClientId, now: Now) {
        let director = &mut self.director;
        director.handle_time(now.monotonic);
        if !director.accepts(now.monotonic) {
            self.connections.close(&mut self.engine, id);
            return;
        }
        let pause = director.slow_accept();
        if !pause.is_zero()
            && let Some(connection) = self.connections.get(id)
        {
            connection.own.early = Some(Early::default());
            self.ignored.insert((now.monotonic.after(pause), Place::new(id, 0)));
        }
    }

    /// Handles bytes (`chunk`) that the store has received from a client. A complete request among them
    /// starts at once if a server is free, and else is queued; a `STORAGE` command is answered at once. If
    /// the connection is not served yet (`slow_accept`), its bytes are only kept; with more than 64 MiB of
    /// them it is closed.
    fn receive(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        self.advance(now);
        let Some(connection) = self.connections.get(id) else { return };
        if let Some(early) = &mut connection.own.early {
            early.bytes.extend_from_slice(chunk);
            if early.bytes.len() > EARLY_BYTES_MAX {
                self.connections.close(&mut self.engine, id);
            }
            return;
        }
        self.take_in(id, chunk, now);
        self.advance(now);
        self.release(id);
    }

    /// Does all work that is due by `now`: begins and ends phases of the script, starts requests for which a
    /// server has become free, and sends replies whose service time is over.
    fn advance(&mut self, now: Now) {
        self.director.handle_time(now.monotonic);
        if self.director.take_outage() {
            self.close_all(None);
        }
        self.heed_ignored(now);
        loop {
            let director = &mut self.director;
            if let Some((job, start)) = director.next_start(now.monotonic) {
                let place = job.visit.place;
                let wanted = self.connections.get_with_pool(place.client());
                let holds = |connection: &Connection| connection.own.pending.holds(place.number);
                let Some((connection, pool)) = wanted.filter(|(connection, _)| holds(connection)) else {
                    director.note_lost(&job.visit);
                    continue;
                };
                let arguments = Arguments::new(&job.frame, &job.places);
                let mut desk = Desk { engine: &mut self.engine, director, pool };
                desk.start(connection, job.visit, arguments, start, now);
                self.release(place.client());
            } else if let Some(place) = director.next_finished(now.monotonic) {
                if let Some(connection) = self.connections.get(place.client()) {
                    connection.own.pending.finish(place.number);
                }
                self.release(place.client());
            } else {
                return;
            }
        }
    }

    /// Returns the latest time at which [`ScriptedService::advance`] should be called next; `None` if
    /// nothing is planned.
    fn next_scripted(&self) -> Option<Timestamp> {
        let event = self.director.next_event();
        [event, self.ignored.first().map(|(at, _)| *at)].into_iter().flatten().min()
    }

    fn take_in(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        let Self { engine, director, connections, limits, .. } = self;
        let Some((connection, pool)) = connections.get_with_pool(id) else { return };
        let mut consumed = 0;
        // The decoder is taken out, because requests borrow from it.
        let mut decoder = std::mem::take(&mut connection.decoder);
        let mut outage = false;
        while !connection.ending && !outage {
            match decoder.next(chunk, &mut consumed, limits) {
                Ok(Some(request)) => {
                    let mut desk = Desk { engine, director, pool };
                    outage = desk.take_in(connection, id, request.arguments, now) == Effect::Outage;
                }
                Ok(None) => break,
                Err(error) => {
                    let mut desk = Desk { engine, director, pool };
                    desk.answer(connection, |out| encode::error(out, &error.0));
                    connection.ending = true;
                }
            }
        }
        connection.decoder = decoder;
        if outage {
            // The outage begins now, and only the reply to the command itself is still sent.
            let _ = director.take_outage();
            self.close_all(Some(id));
        }
    }

    /// Takes in the bytes that were kept of new connections, once their `slow_accept` time, in which they are
    /// not served, is over.
    fn heed_ignored(&mut self, now: Now) {
        while self.ignored.first().is_some_and(|(at, _)| *at <= now.monotonic) {
            let Some((_, place)) = self.ignored.pop_first() else { return };
            let id = place.client();
            let Some(connection) = self.connections.get(id) else { continue };
            let Some(early) = connection.own.early.take() else { continue };
            self.take_in(id, &early.bytes, now);
            if early.ended {
                self.handle_client_end(id);
            }
            self.release(id);
        }
    }

    /// Moves the connection's oldest replies to its output, up to the first one that is not due yet.
    fn release(&mut self, id: ClientId) {
        let Some((connection, pool)) = self.connections.get_with_pool(id) else { return };
        while let Some(reply) = connection.own.pending.take() {
            connection.output.append(pool, &reply);
            pool.give(reply);
        }
        self.after_output(id);
    }

    /// Sends messages (of channels, about changed keys) to their connections; the script adds no service time to them.
    fn deliver(&mut self) {
        while let Some(delivery) = self.engine.poll_delivery() {
            let Some(id) = self.connections.numbered(delivery.session) else { continue };
            let Some((connection, pool)) = self.connections.get_with_pool(id) else { continue };
            let mut message = pool.take();
            message.extend_from_slice(&delivery.bytes);
            fill(connection, message);
            self.release(id);
        }
    }

    fn close_all(&mut self, but: Option<ClientId>) {
        for id in self.connections.all() {
            match self.connections.get_with_pool(id) {
                Some((connection, pool)) if Some(id) == but => {
                    connection.own.pending.clear();
                    connection.output.append(pool, b"+OK\r\n");
                    connection.ending = true;
                    self.release(id);
                }
                _ => self.connections.close(&mut self.engine, id),
            }
        }
    }

    fn after_output(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get(id) else { return };
        let done = connection.ending && connection.is_sent() && connection.own.pending.is_empty();
        let held_back = connection.output.len() + connection.own.pending.bytes();
        if done || held_back > OUTPUT_BYTES_MAX {
            self.connections.close(&mut self.engine, id);
        } else {
            self.connections.list(id);
        }
    }
}

impl StoreClients for ScriptedService {
    fn handle_client_opened(&mut self, now: Now) -> ClientId {
        let id = self.connections.open(Scripted::default());
        self.receive_opened(id, now);
        id
    }

    fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        self.receive(id, chunk, now);
        self.deliver();
        self.connections.close_killed(&mut self.engine);
    }

    fn handle_client_end(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get(id) else { return };
        if let Some(early) = &mut connection.own.early {
            early.ended = true;
        } else {
            connection.ending = true;
            self.after_output(id);
        }
    }

    fn handle_client_lost(&mut self, id: ClientId) {
        self.connections.forget(&mut self.engine, id);
    }

    fn handle_transmitted(&mut self, id: ClientId, segment: Segment) {
        if self.connections.handle_transmitted(id, segment) {
            self.after_output(id);
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.connections.poll_action()
    }

    fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        self.connections.poll_transmit()
    }
}

impl StoreService for ScriptedService {
    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn handle_turn_end(&mut self, now: Now, _sockets: &mut dyn Sockets) {
        self.advance(now);
        self.deliver();
        self.connections.close_killed(&mut self.engine);
        self.sweeper.handle_turn_end(&mut self.engine, now);
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        [self.sweeper.deadline(), self.next_scripted()].into_iter().flatten().min()
    }

    fn is_busy(&self) -> bool {
        self.director.is_busy()
    }
}

/// Bytes from a client that came while its new connection was not served yet (`slow_accept`).
#[derive(Debug, Default)]
struct Early {
    bytes: Vec<u8>,
    /// True if the client has ended its sending side while its connection was not served yet.
    ended: bool,
}

/// The parts of a scripted store that take requests in and carry them out, borrowed apart from its
/// connections.
struct Desk<'a> {
    engine: &'a mut Engine,
    director: &'a mut Director,
    pool: &'a mut BufferPool,
}

impl Desk<'_> {
    fn take_in(
        &mut self,
        connection: &mut Connection,
        id: ClientId,
        arguments: Arguments<'_>,
        now: Now,
    ) -> Effect {
        if Director::answers(&arguments) {
            let protocol = connection.session.protocol();
            let mut reply = self.pool.take();
            let effect = self.director.command(&arguments, protocol, now.monotonic, &mut reply);
            fill(connection, reply);
            return effect;
        }
        let place = Place::new(id, connection.own.pending.promise());
        let visit = self.director.enter(place, &arguments);
        if self.director.is_free(now.monotonic) {
            self.start(connection, visit, arguments, now.monotonic, now);
        } else if let Err(line) = self.director.arrive(visit, arguments, now.monotonic) {
            let mut reply = self.pool.take();
            encode::error(&mut reply, line);
            connection.own.pending.fill(place.number, reply);
            connection.own.pending.finish(place.number);
        }
        Effect::None
    }

    /// Carries out a request whose service starts at `start`, and occupies a server for its service time. The reply is
    /// held back until that is over. The script may answer the request with an error instead, at once.
    fn start(
        &mut self,
        connection: &mut Connection,
        visit: Visit,
        arguments: Arguments<'_>,
        start: Timestamp,
        now: Now,
    ) {
        let place = visit.place;
        let mut reply = self.pool.take();
        let engine = &mut *self.engine;
        let verdict = self.director.judge(
            &visit,
            &mut connection.own.cluster,
            &connection.session,
            &arguments,
            &mut |key| engine.holds(key, now),
            &mut reply,
        );
        if let Verdict::Refused(line) = &verdict {
            connection.session.refuse(&arguments);
            encode::error(&mut reply, line);
        }
        if verdict != Verdict::Execute {
            connection.own.pending.fill(place.number, reply);
            connection.own.pending.finish(place.number);
            return;
        }
        match self.director.turn_of(&visit, &arguments, start) {
            Turn::Fail(line) => {
                connection.session.refuse(&arguments);
                encode::error(&mut reply, line);
                connection.own.pending.fill(place.number, reply);
                connection.own.pending.finish(place.number);
            }
            Turn::Execute(class) => {
                let disposition = self.engine.execute(&mut connection.session, arguments, now, &mut reply);
                if disposition == Disposition::Wait {
                    self.engine.cancel_wait(&connection.session);
                    encode::error(&mut reply, NO_WAITS);
                }
                let service = self.director.service_time(class, arguments.frame().len(), &reply);
                connection.own.pending.fill(place.number, reply);
                if self.director.serve(visit, start, service) {
                    connection.own.pending.finish(place.number);
                }
                if disposition == Disposition::Close {
                    connection.ending = true;
                    connection.own.pending.cut_behind(place.number);
                }
            }
        }
    }

    /// Adds a reply that is sent as soon as all earlier ones of the connection are. `write` appends the
    /// reply to a buffer.
    fn answer(&mut self, connection: &mut Connection, write: impl FnOnce(&mut Vec<u8>)) {
        let mut reply = self.pool.take();
        write(&mut reply);
        fill(connection, reply);
    }
}

fn fill(connection: &mut Connection, reply: Vec<u8>) {
    let number = connection.own.pending.promise();
    connection.own.pending.fill(number, reply);
    connection.own.pending.finish(number);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use weir::store::EngineLimits;

    use crate::script::{Behaviour, Change, Errors, Phase, Phases, Script};

    /// Sockets for tests: while a script runs, they neither receive nor send anything.
    struct Unattended;

    impl Sockets for Unattended {
        fn attend(&mut self, _clients: &mut dyn StoreClients) {}
    }

    /// A scripted service whose clients speak inline, and its clock.
    struct Bench {
        service: ScriptedService,
        now: Now,
        closed: Vec<ClientId>,
    }

    impl Bench {
        fn new(servers: usize, service_time: &str, phases: Vec<Phase>) -> Self {
            let mut behaviour = Behaviour::default();
            let service_time = Some(service_time.parse().expect("well formed"));
            behaviour.apply(&Change { servers: Some(servers), service_time, ..Change::default() });
            let phases = Phases::new(phases).expect("few");
            let script = Script { behaviour, phases, seed: 3, scriptable: true, ..Script::default() };
            let engine = Engine::new(EngineLimits::with_memory(u64::MAX), 1);
            let service = ScriptedService::new(engine, 1 << 20, script);
            Self { service, now: Now::default(), closed: Vec::new() }
        }

        fn open(&mut self) -> ClientId {
            self.service.handle_client_opened(self.now)
        }

        fn send(&mut self, id: ClientId, lines: &str) {
            self.service.handle_client_bytes(id, lines.replace('|', "\r\n").as_bytes(), self.now);
        }

        fn wait_ms(&mut self, ms: u64) {
            self.now.monotonic = self.now.monotonic.after(Duration::from_millis(ms));
            self.service.handle_turn_end(self.now, &mut Unattended);
        }

        /// Returns the replies that were sent to all clients since the last call.
        fn sent(&mut self) -> String {
            let mut text = String::new();
            while let Some((Owner::Client(id), segment)) = self.service.poll_transmit() {
                text.push_str(&String::from_utf8_lossy(&segment.bytes()).replace("\r\n", "|"));
                self.service.handle_transmitted(id, Segment::Gathered(Vec::new()));
            }
            while let Some(action) = self.service.poll_action() {
                if let Action::Close(Owner::Client(id)) = action {
                    self.closed.push(id);
                }
            }
            text
        }

        /// Returns the reply to one command that is answered at once.
        fn ask(&mut self, id: ClientId, line: &str) -> String {
            self.send(id, &format!("{line}|"));
            self.sent()
        }

        fn figure(&mut self, name: &str) -> u64 {
            let id = self.open();
            let figures = self.ask(id, "STORAGE STATS");
            let words: Vec<&str> = figures.split('|').collect();
            let at =
                words.iter().position(|word| *word == name).unwrap_or_else(|| panic!("{name} in {figures}"));
            words[at + 1][1..].parse().expect("a number")
        }
    }

    #[test]
    fn replies_leave_when_they_are_due_and_in_order() {
        let mut bench = Bench::new(2, "point=10ms,write=1ms", Vec::new());
        let client = bench.open();
        bench.send(client, "SET k v|GET k|GET k|GET k|PING|");
        assert_eq!(bench.sent(), "");
        assert_eq!(bench.service.poll_deadline(), Some(Timestamp::from_millis(1)));
        assert_eq!((bench.figure("concurrency"), bench.figure("queue")), (2, 3));
        bench.wait_ms(1);
        assert_eq!(bench.sent(), "+OK|");
        // The first GET began with the SET, the second after it: they end after 10 and 11 ms.
        bench.wait_ms(9);
        assert_eq!(bench.sent(), "$1|v|");
        bench.wait_ms(1);
        assert_eq!(bench.sent(), "$1|v|");
        bench.wait_ms(9);
        assert_eq!(bench.sent(), "$1|v|+PONG|");
        assert!(!bench.service.is_busy());
        assert_eq!((bench.figure("requests"), bench.figure("replies"), bench.figure("queue_max")), (5, 5, 3));
        assert_eq!(bench.ask(client, "STORAGE READS k"), ":3|");
        assert_eq!(bench.ask(client, "STORAGE COMMANDS"), "*6|$3|get|:3|$4|ping|:1|$3|set|:1|");
    }

    #[test]
    fn a_storage_command_works_at_once_and_its_reply_keeps_its_place() {
        let mut bench = Bench::new(1, "point=10ms", Vec::new());
        let (client, other) = (bench.open(), bench.open());
        bench.send(client, "GET k|STORAGE STALL 50ms|GET k|");
        assert_eq!(bench.sent(), "");
        assert_eq!(bench.ask(other, "STORAGE READS k"), ":1|");
        bench.wait_ms(59);
        assert_eq!(bench.sent(), "");
        bench.wait_ms(1);
        assert_eq!(bench.sent(), "$-1|+OK|");
        bench.wait_ms(10);
        assert_eq!(bench.sent(), "$-1|");
    }

    #[test]
    fn an_outage_loses_what_is_under_way() {
        let mut bench = Bench::new(1, "all=10ms", Vec::new());
        let (client, operator) = (bench.open(), bench.open());
        bench.send(client, "SET a 1|SET b 1|");
        assert_eq!(bench.ask(operator, "STORAGE OUTAGE 1s"), "+OK|");
        assert_eq!(bench.sent(), "");
        assert_eq!(bench.closed.len(), 2);
        let refused = bench.open();
        assert_eq!(bench.sent(), "");
        assert_eq!(bench.closed.pop(), Some(refused));
        bench.wait_ms(1_000);
        let client = bench.open();
        bench.send(client, "EXISTS a b|");
        bench.wait_ms(10);
        // The first request had begun, the second had not.
        assert_eq!(bench.sent(), ":1|");
        assert_eq!((bench.figure("requests_lost"), bench.figure("connections_refused")), (2, 1));
    }

    #[test]
    fn phases_come_and_go() {
        let errors = Errors::new("BUSY".parse().expect("known"), 1.0).ok();
        let second = Duration::from_secs(1);
        let phases = vec![
            Phase {
                at: second,
                duration: Some(second),
                change: Change { errors, ..Change::default() },
                ..Phase::default()
            },
            Phase { at: second * 3, duration: Some(second), outage: true, ..Phase::default() },
        ];
        let mut bench = Bench::new(1, "all=0", phases);
        let client = bench.open();
        assert_eq!(bench.ask(client, "GET k"), "$-1|");
        bench.wait_ms(1_000);
        assert!(bench.ask(client, "GET k").starts_with("-BUSY "));
        assert!(
            bench
                .ask(client, "MULTI|SET k v|EXEC")
                .ends_with("|-EXECABORT Transaction discarded because of previous errors.|")
        );
        assert_eq!(bench.ask(client, "PING"), "+PONG|");
        bench.wait_ms(1_000);
        assert_eq!(bench.ask(client, "GET k"), "$-1|");
        assert_eq!(bench.service.poll_deadline(), Some(Timestamp::from_millis(3_000)));
        bench.wait_ms(1_000);
        assert_eq!(bench.sent(), "");
        assert_eq!(bench.closed, [client]);
    }

    #[test]
    fn shares_of_errors_and_service_times_follow_the_seed() {
        let run = || {
            let mut bench = Bench::new(3, "point=exp:2ms", Vec::new());
            let client = bench.open();
            assert_eq!(bench.ask(client, "STORAGE SET ERRORS LOADING 0.3"), "+OK|");
            bench.send(client, &"GET k|".repeat(1_000));
            let mut trace = Vec::new();
            while let Some(at) = bench.service.poll_deadline() {
                bench.now.monotonic = at;
                bench.service.handle_turn_end(bench.now, &mut Unattended);
                trace.push((at, bench.sent()));
            }
            (trace, bench.figure("errors_injected"))
        };
        let (trace, errors) = run();
        assert!((250..350).contains(&errors), "{errors}");
        assert_eq!((trace, errors), run());
    }

    #[test]
    fn slow_accept_leaves_a_connection_alone_for_a_while() {
        let mut bench = Bench::new(1, "all=0", Vec::new());
        let client = bench.open();
        assert_eq!(bench.ask(client, "STORAGE SLOW-ACCEPT 100ms"), "+OK|");
        let late = bench.open();
        bench.send(late, "SET k v|GET k|");
        bench.service.handle_client_end(late);
        bench.wait_ms(99);
        assert_eq!(bench.ask(client, "GET k"), "$-1|");
        bench.wait_ms(1);
        assert_eq!(bench.sent(), "+OK|$1|v|");
        assert_eq!(bench.closed, [late]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        let mut bench = Bench::new(1, "all=0", Vec::new());
        let client = bench.open();
        for (line, wanted) in [
            ("STORAGE", "Try STORAGE HELP"),
            ("STORAGE NOPE 1", "'NOPE 1' is no STORAGE command"),
            ("STORAGE STALL 1", "needs a unit"),
            ("STORAGE STALL 0", "above 0"),
            ("STORAGE SET SERVERS 0", "'0': a whole number from 1 to"),
            ("STORAGE SET ERRORS LOADING 2", "from 0 to 1"),
            ("STORAGE SET ERRORS SMOKE 0.1", "one of LOADING, BUSY"),
            ("STORAGE SET SERVICE-TIME dot 1ms", "one of point, multi"),
            ("STORAGE SET SERVICE-TIME point 1", "needs a unit"),
            ("STORAGE SET COLOUR red", "SERVICE-TIME CLASS TIME"),
            ("STORAGE TOP 5 size", "'size': READS or IN-FLIGHT is expected"),
            ("STORAGE KEY", "Try STORAGE HELP"),
        ] {
            let reply = bench.ask(client, line);
            assert!(reply.starts_with("-ERR ") && reply.contains(wanted), "{line}: {reply}");
        }
    }

    #[test]
    fn closing_words_and_half_closed_connections_get_their_replies() {
        let mut bench = Bench::new(1, "point=10ms", Vec::new());
        let (client, half) = (bench.open(), bench.open());
        bench.send(client, "GET k|QUIT|GET k|");
        bench.send(half, "GET k|");
        bench.service.handle_client_end(half);
        bench.wait_ms(10);
        assert_eq!(bench.sent(), "$-1|+OK|");
        bench.wait_ms(10);
        assert_eq!(bench.sent(), "$-1|");
        assert_eq!(bench.closed, [client, half]);
        assert_eq!(bench.figure("requests_lost"), 1);
    }

    #[test]
    fn reads_of_a_key_are_in_flight_from_their_arrival_to_their_end() {
        let mut bench = Bench::new(2, "point=10ms,multi=10ms", Vec::new());
        let (client, leaver, operator) = (bench.open(), bench.open(), bench.open());
        let told = |bench: &mut Bench| bench.ask(operator, "STORAGE KEY k").replace('|', " ");
        bench.send(client, "GET k|MGET k j|SET k v|GET k|");
        bench.send(leaver, "GET k|");
        let wanted = |reads, in_flight, most| {
            format!(
                "*8 $5 reads :{reads} $9 in_flight :{in_flight} $13 in_flight_max :{most} $14 per_second_max :{reads} "
            )
        };
        // Two requests are served; the write and two more reads wait.
        assert_eq!(told(&mut bench), wanted(2, 4, 4));
        bench.service.handle_client_lost(leaver);
        bench.wait_ms(10);
        bench.sent();
        assert_eq!(told(&mut bench), wanted(3, 1, 4));
        assert_eq!(bench.ask(operator, "STORAGE TOP 1 in-flight"), "*1|*2|$1|k|:4|");
        bench.ask(operator, "STORAGE READS-RESET");
        assert_eq!(told(&mut bench), wanted(0, 1, 1));
        bench.wait_ms(10);
        bench.sent();
        assert_eq!(told(&mut bench), wanted(0, 0, 1));
        assert!(bench.ask(operator, "STORAGE SERVICE-TIMES").contains("|$5|count|:4|"));
    }

    #[test]
    fn nothing_is_in_flight_after_an_outage_an_error_or_a_read_that_takes_no_time() {
        let mut bench = Bench::new(1, "point=10ms", Vec::new());
        let (client, operator) = (bench.open(), bench.open());
        bench.send(client, "GET k|GET k|");
        bench.ask(operator, "STORAGE OUTAGE 1ms");
        bench.wait_ms(1);
        let client = bench.open();
        assert!(bench.ask(client, "STORAGE KEY k").contains("|$9|in_flight|:0|$13|in_flight_max|:2|"));
        bench.ask(client, "STORAGE SET ERRORS BUSY 1");
        bench.ask(client, "GET k");
        assert!(bench.ask(client, "STORAGE KEY k").contains("|$9|in_flight|:0|"));
        bench.ask(client, "STORAGE SET ERRORS OFF");
        bench.ask(client, "STORAGE SET SERVICE-TIME all 0");
        assert_eq!(bench.ask(client, "GET z"), "$-1|");
        assert!(bench.ask(client, "STORAGE KEY z").contains("|:1|$9|in_flight|:0|$13|in_flight_max|:1|"));
    }

    #[test]
    fn resetting_starts_anew() {
        let mut bench = Bench::new(1, "point=10ms", Vec::new());
        let client = bench.open();
        assert_eq!(bench.ask(client, "STORAGE SET SERVICE-TIME all 0"), "+OK|");
        assert_eq!(bench.ask(client, "GET k"), "$-1|");
        assert_eq!(bench.ask(client, "STORAGE TOP"), "*1|*2|$1|k|:1|");
        assert_eq!(bench.ask(client, "STORAGE RESET"), "+OK|");
        assert_eq!(bench.ask(client, "STORAGE TOP 5"), "*0|");
        assert_eq!(bench.ask(client, "GET k"), "");
        bench.wait_ms(10);
        assert_eq!(bench.sent(), "$-1|");
    }
}
