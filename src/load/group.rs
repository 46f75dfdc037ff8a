//! Clients that behave alike: what they are due to send, what they repeat, and what came of it.

use std::collections::VecDeque;
use std::time::Duration;

use super::classify::Ending;
use super::connection::{Connection, Request};
use super::plan::GroupPlan;
use super::rate::Rate;
use super::schedule::{Arrivals, Schedule};
use super::statistics::Tally;
use super::template::Draw;
use crate::protocol::BufferPool;
use crate::values::Random;
use crate::values::Timestamp;

pub(super) struct Group {
    plan: GroupPlan,
    /// What is still to be sent.
    schedule: Schedule,
    /// The same, for counting what is offered at its time, sent or not.
    offered: Schedule,
    /// Repetitions; at most as many as connections may hold.
    again: VecDeque<Request>,
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
}

impl Group {
    pub fn new(plan: GroupPlan, (thread, threads): (usize, usize), mut random: Random) -> Self {
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
        Self {
            offered: schedule.clone(),
            schedule,
            again: VecDeque::new(),
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
        if !self.has_due(start, now) {
            return;
        }
        while let Some((index, room)) = self.find_room(connections) {
            let connection = &mut connections[index as usize];
            let mut wrote = 0;
            while wrote < room
                && let Some(request) = self.next_request(start, now)
            {
                let out = connection.output.buffer(pool);
                self.plan.phases[usize::from(request.phase)].mix.write(out, &mut self.scratch, request.draw);
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

    fn has_due(&self, start: Timestamp, now: Timestamp) -> bool {
        let scheduled = || self.schedule.peek().is_some_and(|due| start.after(offset(due.at)) <= now);
        !self.again.is_empty() || self.plan.arrivals == Arrivals::Closed || scheduled()
    }

    fn next_request(&mut self, start: Timestamp, now: Timestamp) -> Option<Request> {
        if let Some(request) = self.again.pop_front() {
            self.tallies[usize::from(request.phase)].counts.retries += 1;
            return Some(request);
        }
        let since_start = Timestamp::from_nanos(now.since(start).as_nanos() as u64);
        let (intended, phase) = if self.plan.arrivals == Arrivals::Closed {
            let phase = self.phase_ends.partition_point(|end| *end <= since_start);
            self.tallies.get_mut(phase)?.counts.offered += 1;
            (now, phase as u16)
        } else {
            let due = self.schedule.take_due(since_start)?;
            (start.after(offset(due.at)), due.phase)
        };
        self.tallies[usize::from(phase)].counts.sent += 1;
        Some(Request { intended, draw: self.draw(), phase, attempt: 0, setup: None })
    }

    fn draw(&mut self) -> Draw {
        let draw = Draw { seed: self.random.bits(), sequence: self.sequence };
        self.sequence += self.sequence_step;
        draw
    }

    /// A request was answered, failed or given up: that is its end, or it is repeated.
    pub fn settle(&mut self, request: Request, ending: Ending, now: Timestamp) {
        if ending != Ending::Served && self.may_repeat(request) {
            self.again.push_back(Request { attempt: request.attempt + 1, ..request });
            // Naive clients do not wait.
            self.next_pump = Timestamp::ZERO;
            return;
        }
        self.tallies[usize::from(request.phase)].record(ending, now.since(request.intended));
    }

    fn may_repeat(&self, request: Request) -> bool {
        !self.closing && request.attempt < self.plan.retries
    }

    /// No more requests will be due.
    pub fn handle_closing(&mut self) {
        self.closing = true;
    }

    /// The connection of a request was lost.
    pub fn settle_lost(&mut self, request: Request, now: Timestamp) {
        let repeats = self.may_repeat(request);
        let tally = &mut self.tallies[usize::from(request.phase)];
        tally.note_kind("connection lost");
        if !repeats {
            tally.counts.lost += 1;
        }
        self.settle(request, Ending::Error, now);
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
        if !self.again.is_empty() {
            return Some(self.next_pump);
        }
        self.schedule.peek().map(|due| start.after(offset(due.at)).max(self.next_pump))
    }

    /// Is there nothing left to send?
    pub fn is_spent(&self) -> bool {
        self.schedule.peek().is_none() && self.again.is_empty()
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
            let took = now.since(start.after(offset(due.at)));
            self.tallies[usize::from(due.phase)].record(Ending::Timeout, took);
        }
        for request in std::mem::take(&mut self.again) {
            self.tallies[usize::from(request.phase)].record(Ending::Timeout, now.since(request.intended));
        }
    }

    /// A sent request will not be answered any more.
    pub fn end_request(&mut self, request: Request, now: Timestamp) {
        self.tallies[usize::from(request.phase)].record(Ending::Timeout, now.since(request.intended));
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
