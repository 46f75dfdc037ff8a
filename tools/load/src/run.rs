//! The part of a run that one thread carries out: connections, groups and stages. Pure: sockets and clocks
//! are the caller's.
//!
//! ```text
//!  opening ── all connected, or patience over ──> setting up (thread 0) ──> waiting for the other threads
//!     ──> running: due requests out, replies in, a tally per second ──> draining: what is late, and replies ──> done
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::classify::Ending;
use super::connection::{Answered, Connection, Request, State};
use super::group::Group;
use super::plan::Plan;
use super::setup::Setup;
use super::statistics::Interval;
use weir::protocol::{BufferPool, Segment, encode};
use weir::values::Random;
use weir::values::{Action, BackendId, ConnectionId, Owner, Timestamp};

const BUFFERS_KEPT: usize = 1_024;
/// The interval at which each thread checks for requests and connection attempts that take too long, and for
/// lost connections to open again.
const ROUNDS_EVERY: Duration = Duration::from_millis(5);
const COMPLAINTS_MAX: usize = 8;
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    SettingUp,
    Waiting,
    Running,
    Draining,
    Done,
}

/// The part of a load generator's run that one thread carries out.
pub struct Run {
    plan: Arc<Plan>,
    targets: Vec<String>,
    connections: Vec<Connection>,
    groups: Vec<Group>,
    setup: Setup,
    pool: BufferPool,
    to_send: VecDeque<u32>,
    actions: VecDeque<Action>,
    intervals: VecDeque<Interval>,
    complaints: Vec<String>,
    stage: Stage,
    /// The time at which the present stage of the run (opening, setting up, running ...) began.
    since: Timestamp,
    start: Timestamp,
    second: u32,
    next_round: Timestamp,
    ready: Vec<usize>,
}

impl Run {
    /// Creates the part of the run for the thread with index `thread`. Connections are spread evenly over
    /// the targets, whose names are for messages to the user.
    pub fn new(plan: Arc<Plan>, thread: usize, targets: Vec<String>, now: Timestamp) -> Self {
        debug_assert!(!targets.is_empty());
        let threads = plan.threads;
        let mut seeds = Random::new(plan.seed.wrapping_add(thread as u64));
        let mut connections = Vec::new();
        let mut groups = Vec::new();
        for (index, group) in plan.groups.iter().enumerate() {
            let own = (thread..group.connections).step_by(threads);
            connections.extend(own.map(|number| Connection::new(index as u16, number)));
            groups.push(Group::new(group.clone(), (thread, threads), Random::new(seeds.bits())));
        }
        let ready = vec![0; groups.len()];
        let setup = Setup::new(if thread == 0 { &plan.setup } else { &[] }, seeds.bits());
        Self {
            plan,
            targets,
            connections,
            groups,
            setup,
            pool: BufferPool::new(BUFFERS_KEPT),
            to_send: VecDeque::new(),
            actions: VecDeque::new(),
            intervals: VecDeque::new(),
            complaints: Vec::new(),
            stage: Stage::Opening,
            since: now,
            start: Timestamp::ZERO,
            second: 0,
            next_round: Timestamp::ZERO,
            ready,
        }
    }

    /// True if this thread has opened its connections and finished the set-up (or given up either), and
    /// waits for the start of the load.
    pub fn is_waiting(&self) -> bool {
        self.stage == Stage::Waiting
    }

    /// True if this thread's part of the run has ended.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Returns, for each group, the number of connections that were ready for requests at the start.
    pub fn ready(&self) -> &[usize] {
        &self.ready
    }

    /// Returns problems of this thread's part of the run in words for people, at most eight, each once.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Begins this thread's part of the load, whose first requests are sent at the time `at`.
    pub fn handle_start(&mut self, at: Timestamp) {
        self.start = at;
        self.groups.iter_mut().for_each(|group| group.handle_start(at));
        self.enter(Stage::Running, at);
    }

    /// Ends this thread's part of the run at once; requests in flight count as timed out.
    pub fn handle_stop(&mut self, now: Timestamp) {
        match self.stage {
            Stage::Running | Stage::Draining => self.finish(now),
            _ => self.stage = Stage::Done,
        }
    }

    /// Marks a connection as open, and writes its greeting commands (AUTH, HELLO, QOS SET). Does nothing
    /// unless `generation`, which tells the connection from earlier ones with the same `id`, is the current
    /// one.
    pub fn handle_connected(&mut self, id: ConnectionId, generation: u32) {
        let connection = &mut self.connections[id.0 as usize];
        if connection.generation != generation {
            return;
        }
        let greeting = self.groups[usize::from(connection.group)].plan().identity.greeting(connection.number);
        for words in &greeting {
            let out = connection.output.buffer(&mut self.pool);
            encode::request(out, words.iter().map(String::as_bytes));
        }
        connection.greet(greeting.len());
        self.list(id.0);
        self.offer(id.0);
    }

    /// Handles bytes from the target: ends the requests that they answer, or closes the connection if they
    /// are not RESP. `generation` tells the connection from earlier ones with the same `id`.
    pub fn handle_bytes(&mut self, id: ConnectionId, generation: u32, bytes: &[u8], now: Timestamp) {
        let mut at = 0;
        while at < bytes.len() {
            let connection = &mut self.connections[id.0 as usize];
            if connection.generation != generation {
                return;
            }
            match connection.scan(&bytes[at..]) {
                Ok(None) => break,
                Ok(Some((end, ending))) => {
                    at += end;
                    self.handle_reply(id.0, ending, now);
                }
                Err(_) => {
                    self.complain("the target sent something that is not RESP".to_owned());
                    self.close(id.0, now);
                    return;
                }
            }
        }
        self.offer(id.0);
    }

    /// Closes a connection that the target has ended. Its requests in flight end as lost, or are retried.
    /// `generation` tells the connection from earlier ones with the same `id`.
    pub fn handle_end(&mut self, id: ConnectionId, generation: u32, now: Timestamp) {
        if self.connections[id.0 as usize].generation == generation {
            self.close(id.0, now);
        }
    }

    /// Records the reason why a connection could not be opened, in the operating system's words, for the
    /// user. `generation` tells the connection from earlier ones with the same `id`.
    pub fn note_unreachable(&mut self, id: ConnectionId, generation: u32, error: &str) {
        let connection = &self.connections[id.0 as usize];
        if connection.generation == generation {
            self.complain(format!("cannot connect to {}: {error}", self.targets[self.target_of(connection)]));
        }
    }

    /// Resets a connection that was lost or could not be opened, and plans to connect again. Its requests in
    /// flight end as lost, or are retried. `generation` tells the connection from earlier ones with the same
    /// `id`.
    pub fn handle_lost(&mut self, id: ConnectionId, generation: u32, now: Timestamp) {
        if self.connections[id.0 as usize].generation == generation {
            self.lose(id.0, now);
        }
    }

    /// Takes back a segment of bytes that was sent, or whose socket is closed. `generation` tells the
    /// connection from earlier ones with the same `id`.
    pub fn handle_transmitted(&mut self, id: ConnectionId, generation: u32, segment: Segment) {
        self.pool.give_segment(segment);
        let connection = &mut self.connections[id.0 as usize];
        if connection.generation == generation {
            connection.sending = false;
            self.list(id.0);
        }
    }

    /// Does the work that is due by `now`: sends due requests, gives up those that took too long, and
    /// completes the counts of seconds that are over.
    pub fn handle_turn(&mut self, now: Timestamp) {
        if now >= self.next_round {
            self.next_round = now.after(ROUNDS_EVERY);
            self.make_rounds(now);
        }
        match self.stage {
            Stage::Opening => self.open_up(now),
            Stage::SettingUp => self.set_up(now),
            Stage::Running => self.run(now),
            Stage::Draining => self.drain(now),
            Stage::Waiting | Stage::Done => {}
        }
    }

    /// Returns the latest time at which [`Run::handle_turn`] should be called.
    pub fn poll_deadline(&self) -> Timestamp {
        let mut at = self.next_round;
        if self.stage == Stage::Running {
            at = at.min(self.end());
        }
        if matches!(self.stage, Stage::Running | Stage::Draining) {
            let groups = self.groups.iter().filter_map(Group::poll_deadline);
            at = groups.fold(at, Timestamp::min);
        }
        at
    }

    /// Returns the next connection that the caller is to open or to close; `None` if there is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the next bytes to send, and the connection that they are for; `None` if there are none.
    pub fn poll_transmit(&mut self) -> Option<(Owner, Segment)> {
        while let Some(index) = self.to_send.pop_front() {
            let connection = &mut self.connections[index as usize];
            connection.listed = false;
            let owner = Owner::Link(ConnectionId(index), connection.generation);
            if let Some(segment) = connection.segment() {
                return Some((owner, segment));
            }
        }
        None
    }

    /// Takes the counts of the next second of the load, if that second is over; `None` otherwise.
    pub fn poll_interval(&mut self) -> Option<Interval> {
        self.intervals.pop_front()
    }

    fn end(&self) -> Timestamp {
        self.start.after(self.plan.duration())
    }

    fn target_of(&self, connection: &Connection) -> usize {
        connection.number % self.targets.len()
    }

    fn enter(&mut self, stage: Stage, now: Timestamp) {
        self.stage = stage;
        self.since = now;
    }

    fn complain(&mut self, complaint: String) {
        if self.complaints.len() < COMPLAINTS_MAX && !self.complaints.contains(&complaint) {
            self.complaints.push(complaint);
        }
    }

    fn list(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.listed && !connection.sending && !connection.output.is_empty() {
            connection.listed = true;
            self.to_send.push_back(index);
        }
    }

    fn offer(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        self.groups[usize::from(connection.group)].offer(index, connection);
    }

    fn handle_reply(&mut self, index: u32, ending: Ending, now: Timestamp) {
        let connection = &mut self.connections[index as usize];
        let group = &mut self.groups[usize::from(connection.group)];
        match connection.answered() {
            Answered::Greeting if ending == Ending::Served => {}
            Answered::Greeting => {
                let complaint =
                    format!("group '{}' was not let in: {}", group.plan().name, connection.error_text());
                connection.turned_away = true;
                self.complain(complaint);
                self.close(index, now);
            }
            Answered::Request(Request { setup: Some(command), draw, .. }) => {
                if ending == Ending::Overloaded && !connection.may_have_happened(ending) {
                    self.setup.handle_no_room(draw);
                } else if ending != Ending::Served {
                    let text = connection.error_text();
                    self.setup.handle_refused(command, text);
                }
                self.setup.handle_answered();
            }
            Answered::Request(request) => {
                if ending == Ending::Error {
                    group.note_kind(request.phase, &connection.error_kind());
                }
                if connection.may_have_happened(ending) {
                    group.note_may_have_happened(request.phase);
                }
                group.settle(request, ending, connection.error(), now);
            }
            Answered::GivenUp => {}
            Answered::Nothing => {
                let text = connection.error_text();
                self.complain(format!("the target spoke unasked: {text}"));
                self.close(index, now);
            }
        }
    }

    fn close(&mut self, index: u32, now: Timestamp) {
        let generation = self.connections[index as usize].generation;
        self.actions.push_back(Action::Close(Owner::Link(ConnectionId(index), generation)));
        self.lose(index, now);
    }

    fn lose(&mut self, index: u32, now: Timestamp) {
        let connection = &mut self.connections[index as usize];
        let group = &mut self.groups[usize::from(connection.group)];
        for request in connection.lose(now, &mut self.pool) {
            if let Some(command) = request.setup {
                self.setup.handle_refused(command, "the connection was lost".to_owned());
                self.setup.handle_answered();
            } else {
                group.settle(request, Ending::Lost, b"", now);
            }
        }
    }

    /// Opens connections whose pause after a loss is over, gives up connection attempts that take too long,
    /// and times out requests.
    fn make_rounds(&mut self, now: Timestamp) {
        let connecting_since = now.as_nanos().saturating_sub(self.plan.connect_timeout.as_nanos() as u64);
        for index in 0..self.connections.len() {
            let target = self.target_of(&self.connections[index]);
            let connection = &mut self.connections[index];
            match connection.state {
                State::Resting(until) if until <= now => {
                    connection.state = State::Opening(now);
                    let backend = BackendId(target as u16);
                    let owner = Owner::Link(ConnectionId(index as u32), connection.generation);
                    self.actions.push_back(Action::Connect { owner, backend });
                }
                State::Opening(since) if since.as_nanos() < connecting_since => {
                    let patience = self.plan.connect_timeout;
                    let target = &self.targets[target];
                    self.complain(format!("cannot connect to {target}: not accepted within {patience:?}"));
                    self.close(index as u32, now);
                }
                State::Ready => self.give_up(index, now),
                State::Resting(_) | State::Opening(_) | State::Greeting(_) => {}
            }
        }
    }

    fn give_up(&mut self, index: usize, now: Timestamp) {
        let connection = &mut self.connections[index];
        let group = &mut self.groups[usize::from(connection.group)];
        let Some(timeout) = group.plan().timeout else { return };
        let before = Timestamp::from_nanos(now.as_nanos().saturating_sub(timeout.as_nanos() as u64));
        while let Some(request) = connection.give_up(before) {
            let Some(command) = request.setup else {
                group.settle(request, Ending::Timeout, b"", now);
                continue;
            };
            self.setup.handle_refused(command, format!("no reply within {timeout:?}"));
            self.setup.handle_answered();
        }
        self.offer(index as u32);
    }

    fn open_up(&mut self, now: Timestamp) {
        let decided =
            self.connections.iter().all(|connection| connection.is_ready() || connection.turned_away);
        if !decided && now.since(self.since) < self.plan.connect_timeout {
            return;
        }
        for connection in self.connections.iter().filter(|connection| connection.is_ready()) {
            self.ready[usize::from(connection.group)] += 1;
        }
        // If a group has no connection, the run would show nothing: the caller ends it.
        let complete = self.ready.iter().all(|ready| *ready > 0);
        self.enter(if complete { Stage::SettingUp } else { Stage::Waiting }, now);
    }

    fn set_up(&mut self, now: Timestamp) {
        let late = now.since(self.since) >= self.plan.setup_timeout;
        if late {
            self.complain(format!("the set-up was not done after {:?}", self.plan.setup_timeout));
        }
        if late || self.setup.is_done() {
            let complaints: Vec<String> = self.setup.complaints(&self.plan.setup).collect();
            complaints.into_iter().for_each(|complaint| self.complain(complaint));
            self.enter(Stage::Waiting, now);
            return;
        }
        let Self { setup, connections, groups, pool, to_send, plan, .. } = self;
        setup.pump(&plan.setup, groups, connections, pool, now, |index, connection| {
            list(index, connection, to_send);
        });
    }

    fn run(&mut self, now: Timestamp) {
        if now < self.start {
            return;
        }
        self.pump(now);
        self.close_seconds(now);
        if now >= self.end() {
            self.groups.iter_mut().for_each(Group::handle_closing);
            self.enter(Stage::Draining, now);
        }
    }

    fn pump(&mut self, now: Timestamp) {
        let Self { connections, groups, pool, to_send, plan, .. } = self;
        for group in groups {
            group.pump(connections, pool, (now, plan.tick), |index, connection| {
                list(index, connection, to_send);
            });
        }
    }

    fn drain(&mut self, now: Timestamp) {
        self.pump(now);
        self.close_seconds(now);
        let answered = || self.connections.iter().all(|connection| connection.waiting() == 0);
        let quiet = self.groups.iter().all(Group::is_spent) && answered();
        if quiet || now.since(self.since) >= self.plan.drain {
            self.finish(now);
        }
    }

    /// Completes the counts of every second of the load that is over, for [`Run::poll_interval`].
    fn close_seconds(&mut self, now: Timestamp) {
        while now >= self.start.after(SECOND * (self.second + 1)) {
            let until = (SECOND * (self.second + 1)).min(self.plan.duration());
            for group in &mut self.groups {
                // A request that is due exactly at the border belongs to the next second.
                group.count_offered(Timestamp::from_nanos(until.as_nanos() as u64 - 1));
            }
            self.tell();
        }
    }

    fn tell(&mut self) {
        let groups = self.groups.iter_mut().map(Group::take_tallies).collect();
        self.intervals.push_back(Interval { second: self.second, groups });
        self.second += 1;
    }

    fn finish(&mut self, now: Timestamp) {
        self.groups.iter_mut().for_each(|group| group.end(now));
        for connection in &mut self.connections {
            let group = &mut self.groups[usize::from(connection.group)];
            let of_load = connection.drain().filter(|request| request.setup.is_none());
            of_load.for_each(|request| group.end_request(request, now));
        }
        self.tell();
        self.enter(Stage::Done, now);
    }
}

fn list(index: u32, connection: &mut Connection, to_send: &mut VecDeque<u32>) {
    if !connection.listed && !connection.sending {
        connection.listed = true;
        to_send.push_back(index);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::{ClientKind, GroupPlan, Identity, PhasePlan, SetupPlan};
    use crate::rate::Rate;
    use crate::schedule::Arrivals;
    use crate::statistics::{Counts, Tally};
    use crate::template::{Mix, Template};
    use weir::protocol::{RequestDecoder, RequestLimits};

    const STEP: Duration = Duration::from_millis(1);

    fn plan(rate: f64, seconds: u64) -> Plan {
        let template = Template::parse("GET key:{seq}").expect("a command");
        let phase = PhasePlan {
            name: "all".to_owned(),
            duration: Duration::from_secs(seconds),
            rate: Rate::constant(rate),
            mix: Mix::single(template),
        };
        let group = GroupPlan {
            name: "load".to_owned(),
            identity: Identity::default(),
            connections: 4,
            pipeline: 2,
            arrivals: Arrivals::Even,
            phases: vec![phase],
            client: ClientKind::Naive,
            retries: 0,
            timeout: None,
        };
        Plan {
            setup: Vec::new(),
            groups: vec![group],
            threads: 1,
            tick: Duration::ZERO,
            drain: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            setup_timeout: Duration::from_secs(5),
            seed: 1,
        }
    }

    /// A simulated target that replies at once, except when it stalls, and may close connections or refuse
    /// requests.
    struct World {
        run: Run,
        now: Timestamp,
        /// The number of requests that wait for a reply, by connection and generation.
        asked: BTreeMap<(u32, u32), u64>,
        decoders: BTreeMap<(u32, u32), RequestDecoder>,
        reply: &'static [u8],
        requests: u64,
        /// Most requests that are answered in one step, over all connections; `None` for all.
        answered_max: Option<u64>,
        /// The number of requests that came with a deadline of their own (`QOS CALL DEADLINE`).
        calls: u64,
        total: Tally,
        seconds: u32,
        refuses_connections: bool,
    }

    impl World {
        fn new(plan: Plan) -> Self {
            Self {
                run: Run::new(Arc::new(plan), 0, vec!["store:6379".to_owned()], Timestamp::ZERO),
                now: Timestamp::ZERO,
                asked: BTreeMap::new(),
                decoders: BTreeMap::new(),
                reply: b"+OK\r\n",
                requests: 0,
                answered_max: None,
                calls: 0,
                total: Tally::default(),
                seconds: 0,
                refuses_connections: false,
            }
        }

        /// Lets a millisecond pass. Returns the counts of seconds that have ended in it.
        fn step(&mut self, stalled: bool) -> Vec<Interval> {
            self.now = self.now.after(STEP);
            if self.run.is_waiting() {
                self.run.handle_start(self.now);
            }
            self.run.handle_turn(self.now);
            while let Some(action) = self.run.poll_action() {
                match action {
                    Action::Connect { owner: Owner::Link(id, generation), .. } => {
                        if self.refuses_connections {
                            self.run.handle_lost(id, generation, self.now);
                            continue;
                        }
                        self.decoders.insert((id.0, generation), RequestDecoder::default());
                        self.run.handle_connected(id, generation);
                    }
                    Action::Close(Owner::Link(id, generation)) => self.forget((id.0, generation)),
                    other => panic!("{other:?} is not for a generator"),
                }
            }
            while let Some((Owner::Link(id, generation), segment)) = self.run.poll_transmit() {
                if let Some(decoder) = self.decoders.get_mut(&(id.0, generation)) {
                    let mut at = 0;
                    while let Ok(Some(request)) =
                        decoder.next(&segment.bytes(), &mut at, &RequestLimits::trusted(65_536))
                    {
                        *self.asked.entry((id.0, generation)).or_default() += 1;
                        self.requests += 1;
                        self.calls += u64::from(request.arguments.get(1) == Some(b"CALL"));
                    }
                }
                self.run.handle_transmitted(id, generation, segment);
            }
            if !stalled {
                let mut left = self.answered_max.unwrap_or(u64::MAX);
                for ((index, generation), count) in std::mem::take(&mut self.asked) {
                    let answered = count.min(left);
                    left -= answered;
                    if answered < count {
                        self.asked.insert((index, generation), count - answered);
                    }
                    let replies = self.reply.repeat(answered as usize);
                    self.run.handle_bytes(ConnectionId(index), generation, &replies, self.now);
                }
            }
            let mut intervals = Vec::new();
            while let Some(interval) = self.run.poll_interval() {
                assert_eq!(interval.second, self.seconds);
                self.seconds += 1;
                interval.groups.iter().flatten().for_each(|(_, tally)| self.total.add(tally));
                intervals.push(interval);
            }
            intervals
        }

        fn forget(&mut self, socket: (u32, u32)) {
            self.asked.remove(&socket);
            self.decoders.remove(&socket);
        }

        fn run_to_end(&mut self, stalled: impl Fn(u64) -> bool) -> Counts {
            for millisecond in 0..60_000 {
                if self.run.is_done() {
                    assert_eq!(self.total.counts.offered, self.total.counts.ended());
                    return self.total.counts;
                }
                self.step(stalled(millisecond));
            }
            panic!("a run ends");
        }
    }

    #[test]
    fn everything_that_is_due_is_sent_and_served() {
        let counts = World::new(plan(500.0, 3)).run_to_end(|_| false);
        assert_eq!((counts.offered, counts.sent, counts.served), (1_500, 1_500, 1_500));
    }

    #[test]
    fn replies_after_the_load_are_not_served_in_its_time() {
        // The world answers 1,000 requests per second, of the 2,000 that are due.
        for (millis, seconds) in [(500, 0.5), (1_100, 1.1), (2_000, 2.0)] {
            let mut plan = plan(2_000.0, 1);
            plan.groups[0].pipeline = 1_000;
            plan.groups[0].phases[0].duration = Duration::from_millis(millis);
            plan.drain = Duration::from_secs(5);
            let mut world = World::new(plan);
            world.answered_max = Some(1);
            let counts = world.run_to_end(|_| false);
            assert_eq!(counts.served, millis * 2);
            let rate = counts.served_in_time as f64 / seconds;
            assert!((995.0..=1_005.0).contains(&rate), "{rate} of {millis} ms");
        }
    }

    #[test]
    fn each_phase_and_group_has_its_own_time() {
        // The first group asks for 3,000 requests in its first second, for none in its second and last one.
        let mut plan = plan(3_000.0, 1);
        let group = &mut plan.groups[0];
        group.pipeline = 1_000;
        let idle = PhasePlan { rate: Rate::constant(0.0), ..group.phases[0].clone() };
        let longer = GroupPlan { phases: vec![idle.clone(); 4], ..group.clone() };
        group.phases.push(idle);
        plan.groups.push(longer);
        let mut world = World::new(plan);
        world.answered_max = Some(1);
        let mut by_phase = BTreeMap::<(usize, u16), u64>::new();
        while !world.run.is_done() {
            for interval in world.step(false) {
                for (group, tallies) in interval.groups.iter().enumerate() {
                    for (phase, tally) in tallies {
                        *by_phase.entry((group, *phase)).or_default() += tally.counts.served_in_time;
                    }
                }
            }
        }
        let told: Vec<_> = by_phase.into_iter().collect();
        let [((0, 0), first), ((0, 1), second)] = told[..] else { panic!("{told:?}") };
        assert!((990..=1_000).contains(&first) && (990..=1_000).contains(&second), "{first} {second}");
    }

    #[test]
    fn a_stall_is_charged_to_every_request_that_was_due_meanwhile() {
        let mut world = World::new(plan(500.0, 3));
        let counts = world.run_to_end(|millisecond| (1_000..2_000).contains(&millisecond));
        assert_eq!(counts.served, 1_500);
        let slow = world.total.served.len() - world.total.served.count_between(0, 500_000_000);
        assert!(
            (240..=280).contains(&slow),
            "{slow} of the 500 of one second waited for more than half of it"
        );
        assert!(world.total.served.max() >= 990_000_000);
    }

    #[test]
    fn what_is_never_answered_has_timed_out() {
        let counts = World::new(plan(500.0, 2)).run_to_end(|millisecond| millisecond >= 1_000);
        assert_eq!(counts.offered, 1_000);
        assert!(counts.timeouts.abs_diff(500) < 10, "{counts:?}");
        assert!(
            counts.sent.abs_diff(508) < 10,
            "no more are sent than four connections of two hold: {counts:?}"
        );
        assert_eq!(counts.may_have_happened, 8, "what was never sent cannot have happened: {counts:?}");
    }

    #[test]
    fn requests_that_may_have_happened_are_counted() {
        let refused = |reply: &'static [u8]| {
            let mut world = World::new(plan(100.0, 1));
            world.reply = reply;
            let counts = world.run_to_end(|_| false);
            assert_eq!((counts.served, counts.refused() + counts.errors), (0, 100));
            counts.may_have_happened
        };
        assert_eq!(refused(b"-UNAVAILABLE backend=a reason=ejected retry_after_ms=5\r\n"), 0);
        assert_eq!(refused(b"-UNAVAILABLE backend=a reason=connection-lost retry_after_ms=5\r\n"), 100);
        assert_eq!(refused(b"*2\r\n+OK\r\n-WRONGTYPE x\r\n"), 100);
    }

    #[test]
    fn refusals_are_repeated_as_often_as_asked() {
        let mut plan = plan(100.0, 2);
        plan.groups[0].retries = 2;
        let mut world = World::new(plan);
        world.reply = b"-OVERLOADED reason=queue\r\n";
        let counts = world.run_to_end(|_| false);
        assert_eq!((counts.offered, counts.overloaded), (200, 200));
        assert!((390..=400).contains(&counts.retries), "{counts:?}");
        assert_eq!(world.requests, counts.sent + counts.retries);
    }

    fn smart(rate: f64, seconds: u64) -> Plan {
        let mut plan = plan(rate, seconds);
        plan.groups[0].client = ClientKind::Smart;
        plan.groups[0].retries = 2;
        plan
    }

    #[test]
    fn smart_clients_repeat_no_refusal_and_spare_a_target_that_refuses_everything() {
        let mut world = World::new(smart(1_000.0, 3));
        world.reply = b"-OVERLOADED reason=stalled backend=a:1 retry_after_ms=100\r\n";
        let counts = world.run_to_end(|_| false);
        assert_eq!((counts.offered, counts.retries), (3_000, 0));
        assert_eq!(counts.overloaded + counts.refused_by_client, 3_000);
        assert_eq!((counts.sent, world.requests), (counts.overloaded, counts.overloaded));
        assert!((20..60).contains(&counts.sent), "{counts:?}");
    }

    #[test]
    fn smart_clients_repeat_what_only_reads_with_the_rest_of_its_deadline() {
        let mut plan = smart(100.0, 5);
        plan.groups[0].timeout = Some(Duration::from_millis(100));
        plan.groups[0].identity.deadline = Some(Duration::from_millis(500));
        plan.groups[0].pipeline = 16;
        // A few requests stay unanswered: too few for the breaker to open.
        let is_stalled = |millisecond| (3_000..3_150).contains(&millisecond);
        let mut world = World::new(plan.clone());
        let counts = world.run_to_end(is_stalled);
        assert!(counts.retries > 0 && counts.retries <= 12, "{counts:?}");
        assert_eq!((world.calls, counts.refused_by_client), (counts.retries, 0));
        assert!(counts.served >= 495, "{counts:?}");
        plan.groups[0].phases[0].mix = Mix::single(Template::parse("SET key:{seq} 1").expect("a command"));
        let counts = World::new(plan).run_to_end(is_stalled);
        assert!(counts.retries == 0 && counts.timeouts > 0, "{counts:?}");
    }

    #[test]
    fn smart_clients_are_back_soon_after_a_stall() {
        let mut plan = smart(1_000.0, 6);
        plan.groups[0].timeout = Some(Duration::from_millis(50));
        plan.groups[0].pipeline = 100;
        let mut world = World::new(plan);
        let counts = world.run_to_end(|millisecond| (2_000..4_000).contains(&millisecond));
        // Timeouts: requests due until the breaker opens, probes, and at most one and a half pauses after the
        // end.
        assert!(counts.timeouts < 500, "{counts:?}");
        assert!(counts.served > 3_200, "{counts:?}");
        assert!(counts.sent + counts.retries < counts.served + 600, "{counts:?}");
    }

    #[test]
    fn smart_clients_do_not_send_what_nobody_waits_for_any_more() {
        let mut plan = smart(100.0, 3);
        plan.groups[0].timeout = Some(Duration::from_millis(200));
        let mut world = World::new(plan);
        while world.requests < 100 {
            world.step(false);
        }
        // No connection can be made for a second.
        let before = world.requests;
        for (index, generation) in world.decoders.keys().copied().collect::<Vec<_>>() {
            world.run.handle_end(ConnectionId(index), generation, world.now);
        }
        world.refuses_connections = true;
        (0..1_000).for_each(|_| drop(world.step(false)));
        assert_eq!(world.requests, before);
        world.refuses_connections = false;
        let counts = world.run_to_end(|_| false);
        // Of the requests due in that second and until connections are made again, only the last are sent,
        // late.
        assert!((70..=200).contains(&counts.timeouts), "{counts:?}");
        assert_eq!(counts.served + counts.timeouts + counts.errors, 300);
    }

    #[test]
    fn requests_are_given_up_after_their_timeout_and_make_room() {
        let mut plan = plan(100.0, 2);
        plan.groups[0].timeout = Some(Duration::from_millis(50));
        let mut world = World::new(plan);
        let counts = world.run_to_end(|millisecond| (500..1_500).contains(&millisecond));
        assert!(counts.timeouts.abs_diff(100) <= 8, "{counts:?}");
        assert_eq!(counts.sent, 200);
    }

    #[test]
    fn lost_connections_are_errors_and_are_made_anew() {
        let mut world = World::new(plan(1_000.0, 2));
        while world.requests < 500 {
            world.step(false);
        }
        world.step(true);
        let sockets: Vec<(u32, u32)> = world.decoders.keys().copied().collect();
        for (index, generation) in sockets {
            world.run.handle_end(ConnectionId(index), generation, world.now);
        }
        let counts = world.run_to_end(|_| false);
        assert!(counts.errors > 0 && counts.errors == counts.lost, "{counts:?}");
        assert_eq!(counts.served + counts.errors, 2_000);
        assert_eq!(world.total.kinds["connection lost"], counts.lost);
        assert_eq!(counts.may_have_happened, counts.lost);
    }

    #[test]
    fn a_setup_is_over_before_the_load_starts() {
        let mut plan = plan(100.0, 1);
        let command = Template::parse("SET key:{seq} {value:10}").expect("a command");
        plan.setup = vec![SetupPlan { command, count: 1_000, group: 0 }];
        let mut world = World::new(plan);
        while !world.run.is_waiting() {
            world.step(false);
        }
        assert_eq!(world.requests, 1_000);
        assert_eq!(world.run_to_end(|_| false).served, 100);
        assert_eq!(world.run.complaints(), [""; 0]);
    }

    #[test]
    fn a_setup_command_is_sent_again_where_it_found_no_room() {
        let mut plan = plan(100.0, 1);
        let command = Template::parse("SET key:{seq} {value:10}").expect("a command");
        plan.setup = vec![SetupPlan { command, count: 20, group: 0 }];
        let ends = |world: &mut World, reply: &'static [u8]| {
            world.reply = reply;
            (0..100).for_each(|_| {
                if !world.run.is_waiting() {
                    world.step(false);
                }
            });
            world.run.is_waiting()
        };
        let mut world = World::new(plan.clone());
        assert!(!ends(&mut world, b"-OVERLOADED reason=window backend=a retry_after_ms=10\r\n"));
        let refused = world.requests;
        assert!(ends(&mut world, b"+OK\r\n") && world.run.complaints().is_empty());
        assert_eq!(world.requests - refused, 20);
        let mut world = World::new(plan);
        assert!(ends(&mut world, b"-OVERLOADED reason=stalled backend=a (it may have happened)\r\n"));
        let complaint = &world.run.complaints()[0];
        assert!(complaint.starts_with("set-up: 20 of 20 times"), "{complaint}");
    }

    #[test]
    fn an_interruption_counts_what_was_due_by_then() {
        let mut world = World::new(plan(1_000.0, 10));
        (0..1_500).for_each(|_| drop(world.step(false)));
        world.run.handle_stop(world.now);
        world.step(false);
        let counts = world.run_to_end(|_| false);
        assert!((1_480..=1_500).contains(&counts.offered), "{counts:?}");
    }

    #[test]
    fn a_group_that_is_not_let_in_ends_the_opening_at_once() {
        let mut plan = plan(100.0, 1);
        plan.groups[0].identity.tenant = Some("nobody".to_owned());
        let mut world = World::new(plan);
        world.reply = b"-WRONGPASS no such tenant\r\n";
        (0..20).for_each(|_| {
            if !world.run.is_waiting() {
                world.step(false);
            }
        });
        assert!(world.run.is_waiting());
        assert_eq!(world.run.ready(), [0]);
        assert_eq!(
            world.run.complaints(),
            ["group 'nobody' was not let in: WRONGPASS no such tenant".replace("nobody", "load")]
        );
    }

    #[test]
    fn what_cannot_be_reached_is_told_by_name_and_once() {
        let mut run =
            Run::new(Arc::new(plan(1.0, 1)), 0, vec!["a:1".to_owned(), "b:2".to_owned()], Timestamp::ZERO);
        for _ in 0..2 {
            run.handle_turn(Timestamp::from_millis(10));
            while let Some(action) = run.poll_action() {
                let Action::Connect { owner: Owner::Link(id, generation), .. } = action else { continue };
                if id.0 % 2 == 0 {
                    run.note_unreachable(id, generation, "Connection refused (os error 111)");
                    run.handle_lost(id, generation, Timestamp::from_millis(10));
                }
            }
        }
        // A connection that the other target never accepted is given up after the patience of a second.
        run.handle_turn(Timestamp::from_millis(1_500));
        assert_eq!(
            run.complaints(),
            [
                "cannot connect to a:1: Connection refused (os error 111)",
                "cannot connect to b:2: not accepted within 1s"
            ]
        );
    }

    #[test]
    fn threads_share_the_load() {
        let mut shared = plan(1_000.0, 1);
        shared.threads = 2;
        let shared = Arc::new(shared);
        let mut requests = 0;
        for thread in 0..2 {
            let mut world = World::new(plan(1.0, 1));
            world.run = Run::new(Arc::clone(&shared), thread, vec!["store:6379".to_owned()], Timestamp::ZERO);
            requests += world.run_to_end(|_| false).offered;
        }
        assert_eq!(requests, 1_000);
    }
}
