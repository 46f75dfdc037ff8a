//! A simulated client: sends bursts of requests, checks every reply, and ends its connection in one of
//! several ways.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::expect::{Allowed, Asked, Expected, Judged, LATE_AFTER};
use super::history::{Fate, History};
use super::network::SocketId;
use super::overload::Tally;
use super::pauses::KnownPause;
use super::plan::{Load, Plan};
use super::queues::Duty;
use super::request::{Burst, Writer};
use weir::protocol::{Protocol, ReplyScanner};
use weir::routing::Topology;
use weir::values::{Random, Tier, Timestamp};

/// The longest time between two replies of one connection if the second request only had to wait for the first.
const BEHIND_FOR_MOST: Duration = Duration::from_millis(500);

/// The way in which a simulated client ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The client closes its sending side and waits for the outstanding replies.
    HalfClose,
    /// The client sends `QUIT`, and after it a request that weir must not answer.
    Quit,
    /// The client sends bytes that are not RESP.
    Malformed,
    /// The client's connection breaks without notice to weir.
    Lost,
    /// The client stops reading replies, so that they pile up in weir.
    Stuck,
    /// The client sends nothing more, and weir closes it as idle; once the world ends, the client ends the
    /// connection itself.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Talking,
    /// The client has sent its last bytes and waits for the end of the connection.
    Leaving,
    Gone,
}

/// The next action that a simulated client takes.
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
    /// The time at which the client last sent or received something.
    quiet_since: Timestamp,
    /// Requests of the client without a reply so far, in the order of sending, each with the replies that it
    /// may get.
    asked: VecDeque<Asked>,
    /// The RESP version of the last reply that was no refusal.
    spoken: Protocol,
    writer: Writer,
    bursts_left: u64,
    burst_most: u64,
    /// True if the client waits for the replies to all its requests before it sends more.
    patient: bool,
    scanner: ReplyScanner,
    partial: Vec<u8>,
    walk: Option<Walk>,
    work: Option<Work>,
    /// The client's work with queues or counters; `None` if it sends other requests instead.
    duty: Option<Duty>,
    pub replies: u64,
    pub refusals: u64,
    /// The time of the client's last reply.
    answered_at: Timestamp,
    /// The number of the client's complete SCANs over all keys that had to meet at least one key.
    pub walks: u64,
    /// The least number of replies that the client must get before weir closes it, because their requests
    /// had arrived when its shard (core of weir) began to drain.
    replies_least: u64,
    /// True if one of the client's requests was refused while a node of the cluster that its keys belong to
    /// was away; later requests may be refused too.
    was_in_trouble: bool,
}

/// State of a client in a world under overload, which sends requests at a given mean rate, whatever the
/// replies are.
#[derive(Debug)]
struct Work {
    load: Load,
    tier: Tier,
    /// The times at which the client sent the requests that have no reply yet, the oldest first.
    sent_at: VecDeque<Timestamp>,
    tally: Tally,
}

/// A SCAN over all keys in progress: the number of the simulation's event (step) at which it began, and the
/// keys returned so far.
#[derive(Debug, Default)]
struct Walk {
    started: u64,
    found: BTreeSet<String>,
}

impl Work {
    /// Counts a reply to the oldest unanswered request, by whether it is a refusal, in time or late; not if
    /// the request was sent outside the counted time.
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
        let duty = plan.private.map(|_| Duty::new(number, random.fork()));
        let leaving = match leaving {
            Leaving::Malformed | Leaving::Stuck | Leaving::Idle if duty.is_some() => Leaving::HalfClose,
            leaving => leaving,
        };
        let (bursts_left, patient) = (random.between(1, 12), random.per_mille(500));
        let burst_most = *random.pick(&[1, 8, 40, 40, 200]);
        Self {
            socket,
            stage: Stage::Talking,
            leaving,
            quiet_since: Timestamp::ZERO,
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
                mere_reads: plan.mere_reads,
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
            duty,
            replies: 0,
            refusals: 0,
            answered_at: Timestamp::ZERO,
            walks: 0,
            replies_least: 0,
            was_in_trouble: false,
        }
    }

    /// Decides on the client's next action, such as sending a burst of requests. `step` is the number of the
    /// present event of the simulation; `over` is true once clients are to end.
    pub fn act(&mut self, step: u64, now: Timestamp, over: bool, history: &mut History) -> Move {
        let next = self.next_move(step, now, over, history);
        if next != Move::Nothing {
            self.quiet_since = now;
        }
        next
    }

    fn next_move(&mut self, step: u64, now: Timestamp, over: bool, history: &mut History) -> Move {
        if let Some(duty) = &mut self.duty {
            return duty.act((now, over), &mut history.ledger, (&mut self.stage, self.leaving));
        }
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

    /// Returns the bytes of the next GET or SET of a client in a world under overload; a `QOS SET` with the client's
    /// tier and deadline precedes the first one. `step` is the number of the simulation's present event.
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
        if self.walk.is_none() && self.writer.random.per_mille(300) {
            self.walk = Some(Walk { started: step, found: BTreeSet::new() });
            self.writer.cursor = Some(0);
        }
        // The favourite keys are read in both dialects, over connections that do not wait for each other.
        if self.writer.has_favourites && self.writer.sequence == 0 && self.writer.random.per_mille(500) {
            self.writer.modernise(burst, step);
        }
        if self.writer.cursor.is_some() {
            self.writer.scan(burst, step);
        }
        let requests = self.writer.random.between(1, self.burst_most);
        // Rarely, a burst has more requests than weir takes at once.
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

    /// Draws a random time to wait until the client's next action.
    pub fn pause(&mut self, now: Timestamp) -> Duration {
        if let Some(work) = &self.work {
            return Duration::from_secs_f64(self.writer.random.exponential() / work.load.rate(now));
        }
        Duration::from_micros(*self.writer.random.pick(&[1, 30, 300, 3_000, 20_000]))
    }

    /// Returns the time to wait after a reply before the client's next action; `None` for a client under
    /// load, which does not wait for replies.
    pub fn pause_after_reply(&mut self, now: Timestamp) -> Option<Duration> {
        self.work.is_none().then(|| self.pause(now))
    }

    /// Returns the tier (importance) and the outcome counts of a client under load; `None` for other clients.
    pub fn tally(&self) -> Option<(Tier, Tally)> {
        self.work.as_ref().map(|work| (work.tier, work.tally))
    }

    /// Handles bytes from weir, and checks each complete reply against those that its request may get.
    /// `step` is the number of the present event of the simulation, and `allowed` says which failures are
    /// possible. The error describes a reply that is not possible.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        (step, now): (u64, Timestamp),
        history: &mut History,
        allowed: Allowed,
    ) -> Result<(), String> {
        self.quiet_since = now;
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
        if let Some(duty) = &mut self.duty {
            let is_refusal = duty.take_reply(reply, (step, now), &mut history.ledger, allowed)?;
            (self.replies, self.refusals) = (self.replies + 1, self.refusals + u64::from(is_refusal));
            return Ok(());
        }
        let Some(asked) = self.asked.pop_front() else {
            let shown = String::from_utf8_lossy(&reply[..reply.len().min(100)]).escape_debug().to_string();
            return Err(self.told(&format!("was answered without having asked: {shown}")));
        };
        self.replies += 1;
        // A slot with an unsettled request delays requests of the same connection for other nodes.
        let refusals = allowed.refusals || self.was_in_trouble;
        // A refused request is not sent again after a script that may have been carried out.
        let is_before_script =
            self.asked.iter().any(|later| later.reach.is_script && later.reach.meets(&asked.reach));
        let overtaken = self.asked.iter().any(|later| later.reach.meets(&asked.reach));
        // A deadline counts from a request's arrival, and weir may start it late: after earlier ones of its connection.
        let is_behind = now.since(self.answered_at) <= BEHIND_FOR_MOST;
        let lateness = allowed.lateness || (is_behind && history.age(asked.sent) >= LATE_AFTER);
        self.answered_at = now;
        let going_around = allowed.going_around || is_before_script;
        let allowed = Allowed { refusals, going_around, overtaken, lateness, ..allowed };
        let judged = asked.judge(reply, step, history, allowed)?;
        let is_forbidden = |pause: KnownPause| pause.forbids(asked.sent, asked.writes(), now);
        if judged != Judged::Refusal && allowed.pause.is_some_and(is_forbidden) {
            return Err(self.told(&format!("was answered {:?} during a pause", asked.expected)));
        }
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

    /// Corrects the expected RESP version of replies after a refused HELLO or RESET: they stay in the old
    /// version until another request changes it.
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

    /// Checks that a complete SCAN has returned all keys that are never deleted and were there when it
    /// began, and counts it if there were any. The error names a missing key.
    fn check_walk(&mut self, walk: &Walk, history: &History) -> Result<(), String> {
        let is_due = |key: &&str| key.starts_with("log:") && history.written_by(key, walk.started);
        let mut due = history.keys().filter(is_due).peekable();
        self.walks += u64::from(due.peek().is_some());
        match due.find(|key| !walk.found.contains(*key)) {
            Some(key) => Err(self.told(&format!("walked over all keys and did not meet {key}"))),
            None => Ok(()),
        }
    }

    /// Records that all requests that the client has sent so far must be answered before it is closed. Requires nothing
    /// for a client that shares queues or counters, or that is ending its connection otherwise than by a half-close.
    pub fn must_be_served(&mut self) {
        if self.duty.is_some() {
            // Some calls wait for elements that no client pushes any more.
            return;
        }
        let is_heard = self.stage == Stage::Talking || self.leaving == Leaving::HalfClose;
        self.replies_least = if is_heard { self.replies + self.asked.len() as u64 } else { 0 };
    }

    /// Ends the client after weir has closed its connection. An error if weir should have sent more replies
    /// first. `may_be_early` is true if weir may close connections before their requests are answered. weir
    /// may close a client without unanswered requests as idle once it has been quiet for `quiet_least`, never
    /// if that is `None`.
    pub fn closed(
        &mut self,
        may_be_early: bool,
        (now, quiet_least): (Timestamp, Option<Duration>),
        history: &mut History,
    ) -> Result<(), String> {
        if let Some(duty) = &mut self.duty {
            duty.closed(self.stage, may_be_early, &mut history.ledger)?;
            self.stage = Stage::Gone;
            return Ok(());
        }
        let leaving = self.stage == Stage::Leaving;
        let served = self.asked.is_empty() && self.partial.is_empty();
        let is_idle = quiet_least.is_some_and(|least| now.since(self.quiet_since) >= least);
        let expected = match self.leaving {
            Leaving::Quit | Leaving::Malformed | Leaving::HalfClose if leaving => served,
            Leaving::Stuck | Leaving::Lost if leaving => true,
            _ => is_idle && served,
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

    /// Describes the replies that the client still lacks at the end, for an error text; `None` if its
    /// connection has ended.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_closed_before_it_was_idle_for_long_is_noticed() {
        let quiet_least = Some(Duration::from_millis(500));
        let is_right = |millis, quiet_least| {
            let mut random = Random::new(1);
            let plan = Plan::drawn(&mut random);
            let mut client = Client::new(1, SocketId(0), &plan, Topology::new(1, 1), random);
            client.quiet_since = Timestamp::from_millis(1_000);
            client
                .closed(false, (Timestamp::from_millis(millis), quiet_least), &mut History::default())
                .is_ok()
        };
        assert!(is_right(1_500, quiet_least));
        assert!(!is_right(1_499, quiet_least), "it was quiet for less");
        assert!(!is_right(9_000, None), "weir closes no idle clients");
    }
}
