//! The same service, told how to behave: every reply is held back until it is due.

use crate::protocol::{Arguments, BufferPool, encode};
use crate::storage::script::{Director, Effect, Place, Turn, Verdict, Visit};
use crate::storage::{Disposition, Engine};
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, Timestamp};

use super::{Connection, Service, find};

/// What one connection may send before it is taken notice of.
const EARLY_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Service {
    /// A client has connected while the store is scripted: it may be turned away, or have to wait.
    pub(super) fn receive_opened(&mut self, id: ClientId, now: Now) {
        let Some(director) = &mut self.director else { return };
        director.handle_time(now.monotonic);
        if !director.accepts(now.monotonic) {
            self.close(id);
            return;
        }
        let pause = director.slow_accept();
        if !pause.is_zero()
            && let Some(connection) = find(&mut self.connections, id)
        {
            connection.early = Some(Early::default());
            self.ignored.insert((now.monotonic.after(pause), Place::new(id, 0)));
        }
    }

    /// Bytes from a client: every whole request in them arrives at the stations.
    pub(super) fn receive_scripted(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        self.advance_script(now);
        let Some(connection) = find(&mut self.connections, id) else { return };
        if let Some(early) = &mut connection.early {
            early.bytes.extend_from_slice(chunk);
            if early.bytes.len() > EARLY_BYTES_MAX {
                self.close(id);
            }
            return;
        }
        self.take_in(id, chunk, now);
        self.advance_script(now);
        self.release(id);
    }

    /// Time has passed: what has started is carried out, and what is due leaves.
    pub(super) fn advance_script(&mut self, now: Now) {
        let Some(director) = &mut self.director else { return };
        director.handle_time(now.monotonic);
        if director.take_outage() {
            self.close_all(None);
        }
        self.heed_ignored(now);
        loop {
            let Some(director) = &mut self.director else { return };
            if let Some((job, start)) = director.next_start(now.monotonic) {
                let place = job.visit.place;
                let wanted = find(&mut self.connections, place.client());
                let Some(connection) = wanted.filter(|connection| connection.pending.holds(place.number))
                else {
                    director.note_lost(&job.visit);
                    continue;
                };
                let arguments = Arguments::new(&job.frame, &job.places);
                let mut desk = Desk { engine: &mut self.engine, director, pool: &mut self.pool };
                desk.start(connection, job.visit, arguments, start, now);
                self.release(place.client());
            } else if let Some(place) = director.next_finished(now.monotonic) {
                if let Some(connection) = find(&mut self.connections, place.client()) {
                    connection.pending.finish(place.number);
                }
                self.release(place.client());
            } else {
                return;
            }
        }
    }

    /// When `advance_script` should be called at the latest.
    pub(super) fn next_scripted(&self) -> Option<Timestamp> {
        let event = self.director.as_ref()?.next_event();
        [event, self.ignored.first().map(|(at, _)| *at)].into_iter().flatten().min()
    }

    fn take_in(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        let Self { engine, director, connections, limits, pool, .. } = self;
        let Some(director) = director else { return };
        let Some(connection) = find(connections, id) else { return };
        let mut consumed = 0;
        // The decoder is taken out, because what it gives borrows from it.
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
            // What it asks for happens now, and only its own reply is still sent.
            let _ = director.take_outage();
            self.close_all(Some(id));
        }
    }

    /// Connections whose time has come are taken notice of.
    fn heed_ignored(&mut self, now: Now) {
        while self.ignored.first().is_some_and(|(at, _)| *at <= now.monotonic) {
            let Some((_, place)) = self.ignored.pop_first() else { return };
            let id = place.client();
            let Some(connection) = find(&mut self.connections, id) else { continue };
            let Some(early) = connection.early.take() else { continue };
            self.take_in(id, &early.bytes, now);
            if early.ended {
                self.handle_client_end(id);
            }
            self.release(id);
        }
    }

    /// Moves replies that are due, and have nothing before them, to the output.
    fn release(&mut self, id: ClientId) {
        let Some(connection) = find(&mut self.connections, id) else { return };
        while let Some(reply) = connection.pending.take() {
            connection.output.append(&mut self.pool, &reply);
            self.pool.give(reply);
        }
        self.after_output(id);
    }

    fn close_all(&mut self, but: Option<ClientId>) {
        let all: Vec<ClientId> = self
            .connections
            .iter()
            .map(|(index, connection)| ClientId { index: index as u32, generation: connection.generation })
            .collect();
        for id in all {
            match find(&mut self.connections, id) {
                Some(connection) if Some(id) == but => {
                    connection.pending.clear();
                    connection.output.append(&mut self.pool, b"+OK\r\n");
                    connection.ending = true;
                    self.release(id);
                }
                _ => self.close(id),
            }
        }
    }

    fn close(&mut self, id: ClientId) {
        self.handle_client_lost(id);
        self.actions.push_back(Action::Close(Owner::Client(id)));
    }
}

/// What came from a client before it was taken notice of.
#[derive(Debug, Default)]
pub(super) struct Early {
    bytes: Vec<u8>,
    /// It will send no more.
    pub(super) ended: bool,
}

/// Where requests are taken in and carried out.
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
        let place = Place::new(id, connection.pending.promise());
        let visit = self.director.enter(place, &arguments);
        if self.director.is_free(now.monotonic) {
            self.start(connection, visit, arguments, now.monotonic, now);
        } else if let Err(line) = self.director.arrive(visit, arguments, now.monotonic) {
            let mut reply = self.pool.take();
            encode::error(&mut reply, line);
            connection.pending.fill(place.number, reply);
            connection.pending.finish(place.number);
        }
        Effect::None
    }

    /// Carries out a request whose service starts, and takes a server for it.
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
            &mut connection.cluster,
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
            connection.pending.fill(place.number, reply);
            connection.pending.finish(place.number);
            return;
        }
        match self.director.turn_of(&visit, &arguments, start) {
            Turn::Fail(line) => {
                connection.session.refuse(&arguments);
                encode::error(&mut reply, line);
                connection.pending.fill(place.number, reply);
                connection.pending.finish(place.number);
            }
            Turn::Execute(class) => {
                let disposition = self.engine.execute(&mut connection.session, arguments, now, &mut reply);
                let service = self.director.service_time(class, arguments.frame().len(), &reply);
                connection.pending.fill(place.number, reply);
                if self.director.serve(visit, start, service) {
                    connection.pending.finish(place.number);
                }
                if disposition == Disposition::Close {
                    connection.ending = true;
                    connection.pending.cut_behind(place.number);
                }
            }
        }
    }

    /// A reply that leaves as soon as those before it have.
    fn answer(&mut self, connection: &mut Connection, write: impl FnOnce(&mut Vec<u8>)) {
        let mut reply = self.pool.take();
        write(&mut reply);
        fill(connection, reply);
    }
}

fn fill(connection: &mut Connection, reply: Vec<u8>) {
    let number = connection.pending.promise();
    connection.pending.fill(number, reply);
    connection.pending.finish(number);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::Segment;
    use crate::storage::EngineLimits;
    use crate::storage::script::{Behaviour, Change, Phase, Phases, Script};

    /// A scripted service whose clients speak inline, and the milliseconds on its clock.
    struct Bench {
        service: Service,
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
            let service = Service::new(engine, 1 << 20).scripted(script);
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
            self.service.handle_turn_end(self.now);
        }

        /// What has left since the last time, of all clients.
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

        /// The reply to one command, which is answered at once.
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
        // The first GET began with the SET, the second behind it: 10 and 11 ms.
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
        // The first had begun, the second had not.
        assert_eq!(bench.sent(), ":1|");
        assert_eq!((bench.figure("requests_lost"), bench.figure("connections_refused")), (2, 1));
    }

    #[test]
    fn phases_come_and_go() {
        let errors = crate::storage::script::Errors::new("BUSY".parse().expect("known"), 1.0).ok();
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
                bench.service.handle_turn_end(bench.now);
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
            ("STORAGE TOP 5 size", "'size': READS or IN-FLIGHT is wanted"),
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
        // Two are served, the write and two more reads wait.
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
