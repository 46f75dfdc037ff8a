//! Set-up commands, which fill the store before the load starts: as fast as the connections take them.

use super::connection::{Connection, Request};
use super::group::Group;
use super::plan::SetupPlan;
use super::template::{Draw, Mix};
use weir::protocol::BufferPool;
use weir::values::Random;
use weir::values::Timestamp;

pub(super) struct Setup {
    mixes: Vec<Mix>,
    counts: Vec<u64>,
    /// The index of the set-up command (which fills the store before the load) that is being sent, in the
    /// plan's list.
    at: usize,
    sent: u64,
    waiting: u64,
    /// Requests of the present set-up command for which the target had no room. They are sent again when all others
    /// are answered.
    without_room: Vec<Draw>,
    /// Requests of the present set-up command that are due to be sent again.
    again: Vec<Draw>,
    refused: Vec<(u64, String)>,
    random: Random,
    scratch: Vec<u8>,
}

impl Setup {
    pub fn new(plans: &[SetupPlan], seed: u64) -> Self {
        Self {
            mixes: plans.iter().map(|plan| Mix::single(plan.command.clone())).collect(),
            counts: plans.iter().map(|plan| plan.count).collect(),
            at: 0,
            sent: 0,
            waiting: 0,
            without_room: Vec::new(),
            again: Vec::new(),
            refused: vec![(0, String::new()); plans.len()],
            random: Random::new(seed),
            scratch: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.at == self.mixes.len()
    }

    pub fn handle_answered(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    pub fn handle_refused(&mut self, command: u16, text: String) {
        let (count, first) = &mut self.refused[usize::from(command)];
        if *count == 0 {
            *first = text;
        }
        *count += 1;
    }

    /// Plans to send a request of the present set-up command again, because the target had no room for it.
    pub fn handle_no_room(&mut self, draw: Draw) {
        self.without_room.push(draw);
    }

    pub fn complaints(&self, plans: &[SetupPlan]) -> impl Iterator<Item = String> {
        self.refused.iter().zip(plans).filter(|((count, _), _)| *count > 0).map(|((count, text), plan)| {
            format!("set-up: {count} of {} times '{}' failed: {text}", plan.count, plan.command.text())
        })
    }

    /// Writes as many requests of the present set-up command (which fills the store before the load) as the connections
    /// take, and calls `written` with the index of each connection that has got some. The plan's next set-up command
    /// begins when all requests of the present one are answered, and none of them has to be sent again.
    pub fn pump(
        &mut self,
        plans: &[SetupPlan],
        groups: &mut [Group],
        connections: &mut [Connection],
        pool: &mut BufferPool,
        now: Timestamp,
        mut written: impl FnMut(u32, &mut Connection),
    ) {
        let group = &mut groups[plans[self.at].group];
        while (self.sent < self.counts[self.at] || !self.again.is_empty())
            && let Some((index, room)) = group.find_room(connections)
        {
            let connection = &mut connections[index as usize];
            let left = self.counts[self.at] - self.sent + self.again.len() as u64;
            for _ in 0..left.min(room as u64) {
                let draw = self.again.pop().unwrap_or_else(|| {
                    self.sent += 1;
                    Draw { seed: self.random.bits(), sequence: self.sent - 1 }
                });
                self.mixes[self.at].write(connection.output.buffer(pool), &mut self.scratch, draw);
                let setup = Some(self.at as u16);
                connection
                    .push(Request { intended: now, draw, phase: 0, attempt: 0, sent: None, setup }, now);
                self.waiting += 1;
            }
            written(index, connection);
            group.retire(connection);
            group.offer(index, connection);
        }
        if self.sent < self.counts[self.at] || !self.again.is_empty() || self.waiting > 0 {
            return;
        }
        std::mem::swap(&mut self.again, &mut self.without_room);
        if self.again.is_empty() {
            self.at += 1;
            self.sent = 0;
        }
    }
}
