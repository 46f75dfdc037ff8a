//! Clients that behave alike: what they are due to send, what they repeat, and what came of it.

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
    /// What is still to be sent.
    schedule: Schedule,
    /// The same, for counting what is offered at its time, sent or not.
    offered: Schedule,
    again: Again,
    /// Unless the clients are naive.
    smart: Option<Smart>,
    /// Connections that may have room.
    free: VecDeque<u32>,
    /// Due requests found no room.
    blocked: bool,
    /// Nothing is sent again any more.
    closing: bool,
    next_pump: Timestamp,
    /// By phase.
    tallies: Vec<Tally>,
    phase_ends: Vec<Timestamp>,
    sequence: u64,
    sequence_step: u64,
    random: Random,
    scratch: Vec<u8>,
    /// A request that something is put before.
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

    /// A connection may have room for requests.
    pub fn offer(&mut self, index: u32, connection: &mut Connection) {
        if !connection.offered && connection.room(self.plan.pipeline) > 0 {
            connection.offered = true;
            self.free.push_back(index);
        }
    }

    /// A connection with room, and how much.
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

    /// The first connection with room has none any more.
    pub fn retire(&mut self, connection: &mut Connection) {
        connection.offered = false;
        self.free.pop_front();
    }

    /// The next connection takes its turn.
    pub fn rotate(&mut self) {
        self.free.rotate_left(usize::from(!self.free.is_empty()));
    }

    /// Writes everything that is due to connections with room; `written` hears which.
    pub fn pump(
        &mut self,
        connections: &mut [Connection],
        pool: &mut BufferPool,
        (start, now, tick): (Timestamp, Timestamp, Duration),
        mut written: impl FnMut(u32, &mut Connection),
    ) {
        if now < self.next_pump && !self.blocked {
            return;
        }
        self.next_pump = now.after(tick);
        self.blocked = false;
        self.drop_due(start, now);
        if !self.has_due(start, now) {
            return;
        }
        while let Some((index, room)) = self.find_room(connections) {
            let connection = &mut connections[index as usize];
            let mut wrote = 0;
            while wrote < room
                && let Some(request) = self.next_request(start, now)
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

    /// What smart clients do not send needs no room.
    fn drop_due(&mut self, start: Timestamp, now: Timestamp) {
        let Some(smart) = &self.smart else { return };
        let is_open = smart.client.open_until(now).is_some();
        let patience = if is_open { Duration::ZERO } else { smart.patience };
        let ending = if is_open { Ending::RefusedByClient } else { Ending::Timeout };
        let Some(until) = now.since(start).checked_sub(patience) else { return };
        while let Some(due) = self.schedule.take_due(Timestamp::ZERO.after(until)) {
            // The same requests are drawn, whatever becomes of them.
            self.draw();
            self.finish_due(start.after(offset(due.at)), due.phase, ending, now);
        }
    }

    /// A request that was due and never sent has ended.
    fn finish_due(&mut self, intended: Timestamp, phase: u16, ending: Ending, now: Timestamp) {
        self.tallies[usize::from(phase)].record(ending, now.since(intended));
    }

    fn has_due(&self, start: Timestamp, now: Timestamp) -> bool {
        let scheduled = || self.schedule.peek().is_some_and(|due| start.after(offset(due.at)) <= now);
        let repeated = self.again.next_at().is_some_and(|at| at <= now);
        repeated || self.plan.arrivals == Arrivals::Closed || scheduled()
    }

    /// The next request that is due, and that its client sends.
    fn next_request(&mut self, start: Timestamp, now: Timestamp) -> Option<Request> {
        loop {
            let request = if let Some(repeat) = self.again.pop_due(now) {
                self.repeat(repeat, now)
            } else {
                let request = self.take_due(start, now)?;
                self.begin(request, now)
            };
            if request.is_some() {
                return request;
            }
        }
    }

    fn take_due(&mut self, start: Timestamp, now: Timestamp) -> Option<Request> {
        let since_start = Timestamp::from_nanos(now.since(start).as_nanos() as u64);
        let (intended, phase) = if self.plan.arrivals == Arrivals::Closed {
            let phase = self.phase_ends.partition_point(|end| *end <= since_start);
            self.tallies.get_mut(phase)?.counts.offered += 1;
            (now, phase as u16)
        } else {
            let due = self.schedule.take_due(since_start)?;
            (start.after(offset(due.at)), due.phase)
        };
        Some(Request { intended, draw: self.draw(), phase, attempt: 0, sent: None, setup: None })
    }

    /// A new request, if its client sends it.
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

    /// A request that was sent before, if its client sends it again. If not, its last attempt was its end.
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

    /// An attempt was answered, failed or given up: that is the end of its request, or it is repeated. `text` is what an
    /// error reply says.
    pub fn settle(&mut self, request: Request, ending: Ending, text: &[u8], now: Timestamp) {
        if ending == Ending::Lost {
            self.note_kind(request.phase, "connection lost");
        }
        let repeat = |retry| Repeat { request, ending, retry };
        let again = match &mut self.smart {
            // Naive clients do not wait.
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
    }

    /// No more requests will be due.
    pub fn handle_closing(&mut self) {
        self.closing = true;
    }

    /// What kind of error a request met.
    pub fn note_kind(&mut self, phase: u16, kind: &str) {
        self.tallies[usize::from(phase)].note_kind(kind);
    }

    /// When it next has something to do of its own accord.
    pub fn poll_deadline(&self, start: Timestamp) -> Option<Timestamp> {
        if self.blocked {
            return None;
        }
        let due = self.schedule.peek().map(|due| start.after(offset(due.at)));
        let next = [due, self.again.next_at()].into_iter().flatten().min();
        next.map(|at| at.max(self.next_pump))
    }

    /// Is there nothing left to send?
    pub fn is_spent(&self) -> bool {
        self.schedule.peek().is_none() && self.again.next_at().is_none()
    }

    /// Counts what has been due up to that time since the start.
    pub fn count_offered(&mut self, until: Timestamp) {
        while let Some(due) = self.offered.take_due(until) {
            self.tallies[usize::from(due.phase)].counts.offered += 1;
        }
    }

    /// The end: what was due up to then and not sent has been waiting in vain.
    pub fn end(&mut self, start: Timestamp, until: Timestamp, now: Timestamp) {
        self.count_offered(until);
        while let Some(due) = self.schedule.take_due(until) {
            self.finish_due(start.after(offset(due.at)), due.phase, Ending::Timeout, now);
        }
        for repeat in self.again.drain() {
            self.finish(&repeat.request, repeat.ending, now);
        }
    }

    /// A sent request will not be answered any more.
    pub fn end_request(&mut self, request: Request, now: Timestamp) {
        self.finish(&request, Ending::Timeout, now);
    }

    /// What was tallied since the last time.
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
