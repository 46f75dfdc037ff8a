//! A group of clients that behave alike: decides what they send and retry, and tallies how requests end.

use std::collections::VecDeque;
use std::time::Duration;

use super::again::{Again, Repeat};
use super::classify::Ending;
use super::connection::{Connection, Request};
use super::plan::GroupPlan;
use super::rate::Rate;
use super::schedule::{Arrivals, Schedule};
use super::smart::{Smart, outcome};
use super::statistics::Tally;
use super::template::Draw;
use weir::protocol::BufferPool;
use weir::values::Random;
use weir::values::Timestamp;
use weir_client::{Decision, call_within};

pub(super) struct Group {
    plan: GroupPlan,
    /// The times at which the group's requests that have not been sent yet are due.
    schedule: Schedule,
    /// A copy of the schedule, from which each request is counted as offered when it is due, whether it is
    /// sent or not.
    offered: Schedule,
    again: Again,
    /// The client library's state for this group on this thread (retry budget, throttle, breaker); `None` if
    /// the group's clients are naive: they retry at once.
    smart: Option<Smart>,
    /// Connections that may have room for another request, by index; those at the front are used first.
    free: VecDeque<u32>,
    /// True if requests are due and no connection has room for them.
    blocked: bool,
    /// True if no request is retried any more, because the run is ending.
    closing: bool,
    next_pump: Timestamp,
    /// Counts and latencies of requests since they were last taken, indexed by phase.
    tallies: Vec<Tally>,
    /// The end of each phase, counted from the start of the load.
    phase_ends: Vec<Timestamp>,
    /// The time at which the load starts; zero before it is known.
    start: Timestamp,
    sequence: u64,
    sequence_step: u64,
    random: Random,
    scratch: Vec<u8>,
    /// A buffer for a request that is wrapped into `QOS CALL DEADLINE`.
    inner: Vec<u8>,
}

impl Group {
    pub fn new(mut plan: GroupPlan, (thread, threads): (usize, usize), mut random: Random) -> Self {
        let phases: Vec<(Rate, Duration)> =
            plan.phases.iter().map(|phase| (phase.rate.clone(), phase.duration)).collect();
        let schedule = Schedule::new(&phases, plan.arrivals, (thread, threads), Random::new(random.bits()));
        let mut end = Timestamp::ZERO;
        let phase_ends = phases
            .iter()
            .map(|(_, length)| {
                end = end.after(*length);
                end
            })
            .collect();
        plan.timeout = plan.timeout.or(plan.client.timeout());
        Self {
            offered: schedule.clone(),
            schedule,
            again: Again::default(),
            smart: Smart::new(&plan, &mut random),
            free: VecDeque::new(),
            blocked: false,
            closing: false,
            next_pump: Timestamp::ZERO,
            tallies: plan.phases.iter().map(|_| Tally::default()).collect(),
            phase_ends,
            start: Timestamp::ZERO,
            sequence: thread as u64,
            sequence_step: threads as u64,
            random,
            scratch: Vec::new(),
            inner: Vec::new(),
            plan,
        }
    }

    pub fn plan(&self) -> &GroupPlan {
        &self.plan
    }

    /// Sets the time at which the load starts, from which times in the schedule count.
    pub fn handle_start(&mut self, at: Timestamp) {
        self.start = at;
    }

    /// Adds the connection with this index to the list of free ones, if it has room for requests and is not
    /// in it yet.
    pub fn offer(&mut self, index: u32, connection: &mut Connection) {
        if !connection.offered && connection.room(self.plan.pipeline) > 0 {
            connection.offered = true;
            self.free.push_back(index);
        }
    }

    /// Finds the next connection with room. Returns its index and the number of requests that it may be sent;
    /// `None` if there is none.
    pub fn find_room(&mut self, connections: &mut [Connection]) -> Option<(u32, usize)> {
        while let Some(index) = self.free.front().copied() {
            let connection = &mut connections[index as usize];
            let room = connection.room(self.plan.pipeline);
            if room > 0 {
                return Some((index, room));
            }
            self.retire(connection);
        }
        None
    }

    /// Removes the first connection from the list of free ones, because it has no room left for requests;
    /// `connection` is that one.
    pub fn retire(&mut self, connection: &mut Connection) {
        connection.offered = false;
        self.free.pop_front();
    }

    /// Moves the first connection in the list of free ones to the end, so that connections take turns.
    pub fn rotate(&mut self) {
        self.free.rotate_left(usize::from(!self.free.is_empty()));
    }

    /// Writes all requests that are due at `now` to connections with room; calls `written` with the index of
    /// each connection that has got some. `tick` is the least time between two calls that look for due
    /// requests.
    pub fn pump(
        &mut self,
        connections: &mut [Connection],
        pool: &mut BufferPool,
        (now, tick): (Timestamp, Duration),
        mut written: impl FnMut(u32, &mut Connection),
    ) {
        if now < self.next_pump && !self.blocked {
            return;
        }
        self.next_pump = now.after(tick);
        self.blocked = false;
        self.drop_due(now);
        if !self.has_due(now) {
            return;
        }
        while let Some((index, room)) = self.find_room(connections) {
            let connection = &mut connections[index as usize];
            let mut wrote = 0;
            while wrote < room
                && let Some(request) = self.next_request(now)
            {
                self.write(connection.output.buffer(pool), &request);
                connection.push(request, now);
                wrote += 1;
            }
            if wrote > 0 {
                written(index, connection);
            }
            if wrote < room {
                self.rotate();
                return;
            }
            self.retire(connection);
        }
        self.blocked = true;
    }

    fn write(&mut self, out: &mut Vec<u8>, request: &Request) {
        let mix = &self.plan.phases[usize::from(request.phase)].mix;
        if let Some(rest) = request.sent.and_then(|sent| sent.rest()) {
            self.inner.clear();
            mix.write(&mut self.inner, &mut self.scratch, request.draw);
            call_within(out, &self.inner, rest);
        } else {
            mix.write(out, &mut self.scratch, request.draw);
        }
    }

    /// Ends due requests that a smart client will not send, because its circuit breaker is open or they have
    /// been due for longer than [`Smart::patience`]. These need no free connection.
    fn drop_due(&mut self, now: Timestamp) {
        let Some(smart) = &self.smart else { return };
        let is_open = smart.client.open_until(now).is_some();
        let patience = if is_open { Duration::ZERO } else { smart.patience };
        let ending = if is_open { Ending::RefusedByClient } else { Ending::Timeout };
        let Some(until) = now.since(self.start).checked_sub(patience) else { return };
        while let Some(due) = self.schedule.take_due(Timestamp::ZERO.after(until)) {
            // Draws the same requests as if they were sent, so that a seed always gives the same ones.
            self.draw();
            self.finish_due(self.start.after(offset(due.at)), due.phase, ending, now);
        }
    }

    /// Records the end, in the phase with this index, of a request that was due at `intended` and has never
    /// been sent.
    fn finish_due(&mut self, intended: Timestamp, phase: u16, ending: Ending, now: Timestamp) {
        self.tallies[usize::from(phase)].record(ending, now.since(intended));
    }

    fn has_due(&self, now: Timestamp) -> bool {
        let scheduled = || self.schedule.peek().is_some_and(|due| self.start.after(offset(due.at)) <= now);
        let repeated = self.again.next_at().is_some_and(|at| at <= now);
        repeated || self.plan.arrivals == Arrivals::Closed || scheduled()
    }

    /// Takes the next due retry or new request that the smart client, if there is one, allows to be sent;
    /// `None` if none is due.
    fn next_request(&mut self, now: Timestamp) -> Option<Request> {
        loop {
            let request = if let Some(repeat) = self.again.pop_due(now) {
                self.repeat(repeat, now)
            } else {
                let request = self.take_due(now)?;
                self.begin(request, now)
            };
            if request.is_some() {
                return request;
            }
        }
    }

    fn take_due(&mut self, now: Timestamp) -> Option<Request> {
        let since_start = self.since_start(now);
        let (intended, phase) = if self.plan.arrivals == Arrivals::Closed {
            let phase = self.phase_at(since_start)?;
            self.tallies[usize::from(phase)].counts.offered += 1;
            (now, phase)
        } else {
            let due = self.schedule.take_due(since_start)?;
            (self.start.after(offset(due.at)), due.phase)
        };
        Some(Request { intended, draw: self.draw(), phase, attempt: 0, sent: None, setup: None })
    }

    /// Asks the smart client, if there is one, whether a new request may be sent, and returns it if so;
    /// `None` if not, which ends the request.
    fn begin(&mut self, request: Request, now: Timestamp) -> Option<Request> {
        let mut sent = None;
        if let Some(smart) = &mut self.smart {
            let repeats = self.plan.phases[usize::from(request.phase)].mix.repeats(request.draw);
            match smart.client.may_send(repeats, now) {
                Decision::Send(attempt) => sent = Some(attempt),
                Decision::Refused(_) => {
                    self.finish(&request, Ending::RefusedByClient, now);
                    return None;
                }
            }
        }
        self.tallies[usize::from(request.phase)].counts.sent += 1;
        Some(Request { sent, ..request })
    }

    /// Asks the smart client, if there is one, whether a retry that is due may be sent, and returns the
    /// request if so. `None` if not: the request then ends, with the outcome of its last attempt.
    fn repeat(&mut self, repeat: Repeat, now: Timestamp) -> Option<Request> {
        let mut sent = None;
        if let (Some(smart), Some(retry)) = (&mut self.smart, repeat.retry) {
            match smart.client.may_repeat(retry, now) {
                Decision::Send(attempt) => sent = Some(attempt),
                Decision::Refused(_) => {
                    self.finish(&repeat.request, repeat.ending, now);
                    return None;
                }
            }
        }
        self.tallies[usize::from(repeat.request.phase)].counts.retries += 1;
        Some(Request { sent, attempt: repeat.request.attempt + 1, ..repeat.request })
    }

    fn draw(&mut self) -> Draw {
        let draw = Draw { seed: self.random.bits(), sequence: self.sequence };
        self.sequence += self.sequence_step;
        draw
    }

    /// Handles the end of an attempt at a request: plans a retry, or records the end of the request. `text`
    /// is that of the error reply, or empty.
    pub fn settle(&mut self, request: Request, ending: Ending, text: &[u8], now: Timestamp) {
        if ending == Ending::Lost {
            self.note_kind(request.phase, "connection lost");
        }
        if matches!(ending, Ending::Lost | Ending::Timeout) {
            self.note_may_have_happened(request.phase);
        }
        let repeat = |retry| Repeat { request, ending, retry };
        let again = match &mut self.smart {
            // Naive clients retry at once, whatever the reply says.
            None => {
                let repeats = ending != Ending::Served && request.attempt < self.plan.retries;
                repeats.then(|| (Timestamp::ZERO, repeat(None)))
            }
            Some(smart) => {
                let retry = smart.handle(&request, outcome(ending, text), now);
                retry.map(|retry| (retry.at(), repeat(Some(retry))))
            }
        };
        match again.filter(|_| !self.closing) {
            Some((at, repeat)) => {
                self.again.push(at, repeat);
                self.next_pump = self.next_pump.min(at);
            }
            None => self.finish(&request, ending, now),
        }
    }

    fn finish(&mut self, request: &Request, ending: Ending, now: Timestamp) {
        self.tallies[usize::from(request.phase)].record(ending, now.since(request.intended));
        if ending == Ending::Served
            && let Some(phase) = self.phase_at(self.since_start(now))
        {
            self.tallies[usize::from(phase)].counts.served_in_time += 1;
        }
    }

    fn since_start(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.since(self.start).as_nanos() as u64)
    }

    /// Returns the index of the phase whose time holds the moment `at`, counted from the start of the load;
    /// `None` after the group's last phase.
    fn phase_at(&self, at: Timestamp) -> Option<u16> {
        let phase = self.phase_ends.partition_point(|end| *end <= at);
        (phase < self.phase_ends.len()).then_some(phase as u16)
    }

    /// Stops retries: an attempt that fails from now on ends its request.
    pub fn handle_closing(&mut self) {
        self.closing = true;
    }

    /// Counts an error reply by its kind (its first word), for the phase (by index) of its request.
    pub fn note_kind(&mut self, phase: u16, kind: &str) {
        self.tallies[usize::from(phase)].note_kind(kind);
    }

    /// Counts, for the phase (by index) of its request, an attempt that was not served and may have been carried out
    /// nevertheless.
    pub fn note_may_have_happened(&mut self, phase: u16) {
        self.tallies[usize::from(phase)].counts.may_have_happened += 1;
    }

    /// Returns the next time at which the group has a request to send; `None` if it has none, or waits for a
    /// free connection.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        if self.blocked {
            return None;
        }
        let due = self.schedule.peek().map(|due| self.start.after(offset(due.at)));
        let next = [due, self.again.next_at()].into_iter().flatten().min();
        next.map(|at| at.max(self.next_pump))
    }

    /// True if no request and no retry is left to send.
    pub fn is_spent(&self) -> bool {
        self.schedule.peek().is_none() && self.again.next_at().is_none()
    }

    /// Counts as offered the requests that became due up to `until` (time since the start of the load) and
    /// were not counted yet.
    pub fn count_offered(&mut self, until: Timestamp) {
        while let Some(due) = self.offered.take_due(until) {
            self.tallies[usize::from(due.phase)].counts.offered += 1;
        }
    }

    /// Ends the group's part of the run: records due requests that were never sent as timed out, and waiting
    /// retries with the outcome of their last attempt.
    pub fn end(&mut self, now: Timestamp) {
        let until = self.since_start(now);
        self.count_offered(until);
        while let Some(due) = self.schedule.take_due(until) {
            self.finish_due(self.start.after(offset(due.at)), due.phase, Ending::Timeout, now);
        }
        for repeat in self.again.drain() {
            self.finish(&repeat.request, repeat.ending, now);
        }
    }

    /// Records a request that is still in flight at the end of the run as timed out.
    pub fn end_request(&mut self, request: Request, now: Timestamp) {
        self.note_may_have_happened(request.phase);
        self.finish(&request, Ending::Timeout, now);
    }

    /// Takes the counts and latencies of requests since the last call, with the index of their phase; phases
    /// without any are left out.
    pub fn take_tallies(&mut self) -> Vec<(u16, Tally)> {
        let mut taken = Vec::new();
        for (phase, tally) in self.tallies.iter_mut().enumerate() {
            if !tally.is_empty() {
                taken.push((phase as u16, tally.clone()));
                tally.clear();
            }
        }
        taken
    }
}

fn offset(since_start: Timestamp) -> Duration {
    Duration::from_nanos(since_start.as_nanos())
}
