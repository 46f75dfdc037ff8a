//! A client: sends bursts of requests, checks every reply, and leaves in one way or another.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::expect::{Allowed, Asked, Expected, Judged};
use super::history::{Fate, History};
use super::network::SocketId;
use super::overload::Tally;
use super::plan::{Load, Plan};
use super::request::{Burst, Writer};
use weir::protocol::{Protocol, ReplyScanner};
use weir::routing::Topology;
use weir::values::{Random, Tier, Timestamp};

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It closes its sending side and waits for what it is owed.
    HalfClose,
    /// `QUIT`, and something behind it that nobody may answer.
    Quit,
    /// Bytes that are no request.
    Malformed,
    /// Without a word.
    Lost,
    /// It stops reading.
    Stuck,
    /// It says nothing more, and is closed for that.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Talking,
    /// It has sent its last.
    Leaving,
    Gone,
}

/// What a client does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Move {
    Send(Vec<u8>),
    SendAndEnd(Vec<u8>),
    Leave,
    StopReading(Vec<u8>),
    Nothing,
}

#[derive(Debug)]
pub(super) struct Client {
    pub socket: SocketId,
    pub stage: Stage,
    pub leaving: Leaving,
    /// Every reply that is still to come, in order.
    asked: VecDeque<Asked>,
    /// The dialect of the last reply.
    spoken: Protocol,
    writer: Writer,
    bursts_left: u64,
    burst_most: u64,
    /// It waits for all replies before it sends more.
    patient: bool,
    scanner: ReplyScanner,
    partial: Vec<u8>,
    walk: Option<Walk>,
    work: Option<Work>,
    pub replies: u64,
    pub refusals: u64,
    /// So many at least before it is closed, because all of that was there when its shard began to drain.
    replies_least: u64,
    /// It was refused something because a node was away.
    was_in_trouble: bool,
}

/// A client that sends all the time, whatever it is answered.
#[derive(Debug)]
struct Work {
    load: Load,
    tier: Tier,
    /// When that was sent which is not answered.
    sent_at: VecDeque<Timestamp>,
    tally: Tally,
}

/// A walk over all keys: what must be found, and what was.
#[derive(Debug, Default)]
struct Walk {
    started: u64,
    found: BTreeSet<String>,
}

impl Work {
    /// A reply has come.
    fn count(&mut self, is_refused: bool, now: Timestamp) {
        let Some(sent_at) = self.sent_at.pop_front() else { return };
        if sent_at < self.load.counted_from || sent_at >= self.load.until {
            return;
        }
        if is_refused {
            self.tally.refused += 1;
        } else if now.since(sent_at) <= self.load.deadline {
            self.tally.in_time += 1;
        } else {
            self.tally.late += 1;
        }
    }
}

impl Client {
    pub fn new(number: u32, socket: SocketId, plan: &Plan, topology: Topology, mut random: Random) -> Self {
        let work = plan.load.map(|load| {
            let tier = *random.pick(&Tier::ALL);
            Work { load, tier, sent_at: VecDeque::new(), tally: Tally::default() }
        });
        let leaving = match random.below(100) {
            _ if work.is_some() => Leaving::Quit,
            _ if random.per_mille(plan.faults.client_lost) => Leaving::Lost,
            0..=24 => Leaving::Quit,
            25..=44 => Leaving::Malformed,
            45..=52 => Leaving::Stuck,
            53..=64 if plan.idle_timeout.is_some() => Leaving::Idle,
            _ => Leaving::HalfClose,
        };
        let (bursts_left, patient) = (random.between(1, 12), random.per_mille(500));
        let burst_most = *random.pick(&[1, 8, 40, 40, 200]);
        Self {
            socket,
            stage: Stage::Talking,
            leaving,
            asked: VecDeque::new(),
            spoken: Protocol::Resp2,
            writer: Writer {
                client: number,
                random,
                protocol: Protocol::Resp2,
                sequence: 0,
                topology,
                is_clustered: plan.cluster.is_some(),
                padding_max: plan.padding_max,
                has_favourites: plan.has_favourites,
                script_reads: plan.script_reads,
                cursor: None,
            },
            bursts_left,
            burst_most,
            patient,
            scanner: ReplyScanner::default(),
            partial: Vec::new(),
            walk: None,
            work,
            replies: 0,
            refusals: 0,
            replies_least: 0,
            was_in_trouble: false,
        }
    }

    /// It is time to do something.
    pub fn act(&mut self, step: u64, now: Timestamp, over: bool, history: &mut History) -> Move {
        if self.work.is_some() && self.stage == Stage::Talking && !over {
            return Move::Send(self.send_one(step, now, history));
        }
        if self.stage != Stage::Talking || (self.patient && !self.asked.is_empty() && !over) {
            return Move::Nothing;
        }
        if self.bursts_left > 0 && !over {
            self.bursts_left -= 1;
            let mut burst = Burst::default();
            self.fill(&mut burst, step, history);
            return Move::Send(self.sent(burst));
        }
        self.leave(step, over, history)
    }

    /// What a client under load sends.
    fn send_one(&mut self, step: u64, now: Timestamp, history: &mut History) -> Vec<u8> {
        let mut burst = Burst::default();
        if let Some(Work { load, tier, sent_at, .. }) = &mut self.work {
            if self.writer.sequence == 0 {
                self.writer.say_quality(&mut burst, *tier, load.deadline, step);
            }
            self.writer.add_plain(&mut burst, load.keys, step, history);
            sent_at.extend(burst.asked.iter().map(|_| now));
        }
        self.sent(burst)
    }

    fn fill(&mut self, burst: &mut Burst, step: u64, history: &mut History) {
        if self.walk.is_none() && self.writer.random.per_mille(150) {
            self.walk = Some(Walk { started: step, found: BTreeSet::new() });
            self.writer.cursor = Some(0);
        }
        // What everybody reads is read in both dialects, over connections of which none waits for the other.
        if self.writer.has_favourites && self.writer.sequence == 0 && self.writer.random.per_mille(500) {
            self.writer.modernise(burst, step);
        }
        let requests = self.writer.random.between(1, self.burst_most);
        // Rarely, more than weir takes on at once.
        let many = self.writer.random.per_mille(5);
        for _ in 0..if many { 1_500 } else { requests } {
            if many { self.writer.echo(burst, step) } else { self.writer.add(burst, step, history) }
        }
    }

    fn leave(&mut self, step: u64, over: bool, history: &mut History) -> Move {
        self.stage = Stage::Leaving;
        let mut burst = Burst::default();
        match self.leaving {
            Leaving::Lost => {
                self.gone(history);
                return Move::Leave;
            }
            Leaving::Idle if !over => return Move::Nothing,
            Leaving::Idle | Leaving::HalfClose => {
                self.leaving = Leaving::HalfClose;
                self.fill(&mut burst, step, history);
                return Move::SendAndEnd(self.sent(burst));
            }
            Leaving::Quit => {
                self.writer.quit(&mut burst, step);
                burst.bytes.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            }
            Leaving::Malformed => {
                self.writer.malformed(&mut burst, step);
                burst.bytes.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            }
            Leaving::Stuck => {
                self.writer.echo(&mut burst, step);
                self.fill(&mut burst, step, history);
                return Move::StopReading(self.sent(burst));
            }
        }
        Move::Send(self.sent(burst))
    }

    fn sent(&mut self, burst: Burst) -> Vec<u8> {
        self.asked.extend(burst.asked);
        burst.bytes
    }

    /// How long it thinks.
    pub fn pause(&mut self, now: Timestamp) -> Duration {
        if let Some(work) = &self.work {
            return Duration::from_secs_f64(self.writer.random.exponential() / work.load.rate(now));
        }
        Duration::from_micros(*self.writer.random.pick(&[1, 30, 300, 3_000, 20_000]))
    }

    /// The same after a reply, if that makes it think.
    pub fn pause_after_reply(&mut self, now: Timestamp) -> Option<Duration> {
        self.work.is_none().then(|| self.pause(now))
    }

    /// What became of the requests that count, and their tier.
    pub fn tally(&self) -> Option<(Tier, Tally)> {
        self.work.as_ref().map(|work| (work.tier, work.tally))
    }

    /// Bytes of replies.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        (step, now): (u64, Timestamp),
        history: &mut History,
        allowed: Allowed,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            let scanned = self.scanner.scan(bytes).map_err(|_| self.told("was sent what is no reply"))?;
            let Some(scanned) = scanned else {
                self.partial.extend_from_slice(bytes);
                return Ok(());
            };
            let (end, rest) = bytes.split_at(scanned.end);
            let mut reply = std::mem::take(&mut self.partial);
            reply.extend_from_slice(end);
            bytes = rest;
            self.take_reply(&reply, (step, now), history, allowed)?;
        }
        Ok(())
    }

    fn take_reply(
        &mut self,
        reply: &[u8],
        (step, now): (u64, Timestamp),
        history: &mut History,
        allowed: Allowed,
    ) -> Result<(), String> {
        let Some(asked) = self.asked.pop_front() else {
            let shown = String::from_utf8_lossy(&reply[..reply.len().min(100)]).escape_debug().to_string();
            return Err(self.told(&format!("was answered without having asked: {shown}")));
        };
        self.replies += 1;
        // What is unsettled stands in the way of requests for other nodes.
        let refusals = allowed.refusals || self.was_in_trouble;
        // What was refused is not sent again behind a script that may have been carried out.
        let is_before_script =
            self.asked.iter().any(|later| later.reach.is_script && later.reach.meets(&asked.reach));
        let overtaken = self.asked.iter().any(|later| later.reach.meets(&asked.reach));
        let going_around = allowed.going_around || is_before_script;
        let allowed = Allowed { refusals, going_around, overtaken, ..allowed };
        let judged = asked.judge(reply, step, history, allowed)?;
        self.was_in_trouble |=
            judged == Judged::Refusal && history.was_in_trouble(&asked.reach.slots, asked.sent);
        if let Some(work) = &mut self.work {
            work.count(judged == Judged::Refusal, now);
        }
        match judged {
            Judged::Answer => self.spoken = asked.protocol,
            Judged::Refusal => {
                self.refusals += 1;
                if asked.chooses_dialect() {
                    self.keep_dialect();
                }
                if matches!(asked.expected, Expected::Scanned) {
                    self.walk = None;
                }
            }
            Judged::Page(cursor, mut keys) => {
                let walk = self.walk.as_mut().expect("a page is of a walk");
                walk.found.append(&mut keys);
                if cursor == 0 {
                    let walk = self.walk.take().expect("just seen");
                    return self.check_walk(&walk, history);
                }
                self.writer.cursor = Some(cursor);
            }
        }
        Ok(())
    }

    /// What was to change the dialect was refused: replies are in the old one until another request changes it.
    fn keep_dialect(&mut self) {
        let later = self.asked.iter().position(Asked::chooses_dialect);
        self.asked
            .iter_mut()
            .take(later.unwrap_or(usize::MAX))
            .for_each(|asked| asked.keep_dialect(self.spoken));
        if later.is_none() {
            self.writer.protocol = self.spoken;
        }
    }

    /// Keys that are never deleted, and were there when the walk began, must have been met.
    fn check_walk(&self, walk: &Walk, history: &History) -> Result<(), String> {
        let missed = history
            .keys()
            .filter(|key| key.starts_with("log:") && history.written_by(key, walk.started))
            .find(|key| !walk.found.contains(*key));
        match missed {
            Some(key) => Err(self.told(&format!("walked over all keys and did not meet {key}"))),
            None => Ok(()),
        }
    }

    /// All that it has asked by now is answered before it is closed.
    pub fn must_be_served(&mut self) {
        let is_heard = self.stage == Stage::Talking || self.leaving == Leaving::HalfClose;
        self.replies_least = if is_heard { self.replies + self.asked.len() as u64 } else { 0 };
    }

    /// Weir has closed the connection.
    pub fn closed(
        &mut self,
        may_be_early: bool,
        idle_allowed: bool,
        history: &mut History,
    ) -> Result<(), String> {
        let leaving = self.stage == Stage::Leaving;
        let served = self.asked.is_empty() && self.partial.is_empty();
        let expected = match self.leaving {
            Leaving::Quit | Leaving::Malformed | Leaving::HalfClose if leaving => served,
            Leaving::Stuck | Leaving::Idle | Leaving::Lost if leaving => true,
            _ => idle_allowed && served,
        };
        let is_cut_short = self.replies < self.replies_least;
        if !expected && (!may_be_early || is_cut_short) {
            let (owed, leaving) = (self.asked.len(), self.leaving);
            return Err(self
                .told(&format!("was closed in stage {:?} ({leaving:?}), {owed} replies short", self.stage)));
        }
        self.gone(history);
        Ok(())
    }

    fn gone(&mut self, history: &mut History) {
        self.stage = Stage::Gone;
        for asked in self.asked.drain(..) {
            asked.refused(Fate::Unknown, history).expect("an unknown fate contradicts nothing");
        }
    }

    /// What it is still waiting for, if it is not gone.
    pub fn unserved(&self) -> Option<String> {
        (self.stage != Stage::Gone).then(|| {
            self.told(&format!(
                "is still there ({:?}, {:?}), {} replies short",
                self.stage,
                self.leaving,
                self.asked.len()
            ))
        })
    }

    fn told(&self, what: &str) -> String {
        format!("client {} {what}", self.writer.client)
    }
}
