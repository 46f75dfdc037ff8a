//! Simulated clients that share queues and counters: producers push elements, consumers wait for them in
//! blocking commands, and others increase counters under `WATCH`. Whatever breaks, no element is delivered
//! twice, none exists whose push was refused, and no increase is lost. An element is missing only if the call
//! that may have popped it was never answered.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::client::{Leaving, Move, Stage};
use super::expect::{Allowed, LATE, LATE_AFTER, STALLED, fate_of, is_of_cluster, same};
use super::history::Fate;
use weir::protocol::{encode, reply};
use weir::values::{Random, Timestamp};

/// The number of hash tags (parts of keys' names) of queues and counters: keys with one tag are on the same
/// store.
const GROUPS: u64 = 3;
/// The number of queues of each hash tag.
const QUEUES: u64 = 2;
/// The timeouts of which one is chosen at random for each blocking command: as a word, in seconds, and in
/// milliseconds.
const TIMEOUTS: [(&str, u64); 4] = [("0.02", 20), ("0.3", 300), ("2", 2_000), ("20", 20_000)];
/// The time by which a timeout may end too early: weir and stores count whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// The longest time after the timeout of a blocking command at which its reply comes, if nothing is wrong.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// An element that was pushed to a queue.
#[derive(Debug)]
struct Element {
    producer: u32,
    queue: String,
    push: Fate,
    /// True once a client has received the element and the queue does not have it any more.
    is_taken: bool,
    /// True once a client has received the element and it was moved to another list.
    is_moved: bool,
}

/// The numbers of increases of a counter: those that took effect (`done`), and those that may have taken
/// effect.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    done: u64,
    unknown: u64,
}

/// The record of a world's queues and counters: the requests on them, and the replies that clients got.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    elements: Vec<Element>,
    counts: BTreeMap<String, Count>,
    /// The largest number of elements that stores may have popped in calls that got no reply, or an error
    /// that does not tell whether the call was carried out.
    unanswered: u64,
    /// The part of `unanswered`, in elements, that belongs to clients which had disconnected before they
    /// could read a reply.
    unread: u64,
    /// True if weir puts back elements that a store has popped for clients that had disconnected.
    pub gives_back: bool,
    /// The number of elements of queues that clients received.
    pub delivered: u64,
    /// The number of transactions with `WATCH` that took effect.
    pub committed: u64,
    /// The number of transactions with `WATCH` that did not take effect, because another client had written.
    pub conflicts: u64,
}

/// The lists and counters in the stores at the end of a world.
pub(super) struct Left {
    /// The lists of the stores, by name.
    pub lists: BTreeMap<String, Vec<Vec<u8>>>,
    /// The values of the counters, by name.
    pub counters: BTreeMap<String, u64>,
    /// The number of elements that weir's shards (cores) report as lost with clients that had disconnected;
    /// `None` if elements can be lost in other ways too.
    pub orphans: Option<u64>,
}

impl Ledger {
    /// Returns the names of all lists that clients use: each queue, and for each hash tag the list that
    /// elements of its queues are moved to.
    pub fn lists() -> impl Iterator<Item = String> {
        let queues = (0..GROUPS).flat_map(|group| (0..QUEUES).map(move |queue| queue_of(group, queue)));
        queues.chain((0..GROUPS).map(target_of))
    }

    /// Returns the names of all counters that clients use.
    pub fn counters() -> impl Iterator<Item = String> {
        (0..GROUPS).map(counter_of)
    }

    fn push(&mut self, producer: u32, queue: &str, count: u64) -> Range<usize> {
        let first = self.elements.len();
        for _ in 0..count {
            let queue = queue.to_owned();
            self.elements.push(Element {
                producer,
                queue,
                push: Fate::Open,
                is_taken: false,
                is_moved: false,
            });
        }
        first..self.elements.len()
    }

    fn settle(&mut self, pushed: Range<usize>, fate: Fate) -> Result<(), String> {
        for number in pushed {
            let element = &mut self.elements[number];
            element.push = fate;
            if fate == Fate::Never && (element.is_taken || element.is_moved) {
                return Err(format!("e{number} was delivered, and its push is refused"));
            }
        }
        Ok(())
    }

    /// Records that a client has received an element (`word`) of this queue; if `moves`, the element was
    /// moved to another list as well. Returns the element's number. An error if it was received before, is
    /// of another queue, or was never pushed.
    fn deliver(&mut self, word: &[u8], queue: &str, moves: bool) -> Result<usize, String> {
        let number = number_of(word).ok_or("what nobody pushed")?;
        let element = self.elements.get_mut(number).ok_or("what nobody has pushed yet")?;
        if element.queue != queue {
            return Err(format!("e{number} is of {}, not of {queue}", element.queue));
        }
        if element.push == Fate::Never {
            return Err(format!("the push of e{number} was refused"));
        }
        if element.is_taken || element.is_moved {
            return Err(format!("e{number} was delivered before"));
        }
        if moves {
            element.is_moved = true;
        } else {
            element.is_taken = true;
        }
        self.delivered += 1;
        Ok(number)
    }

    fn count(&mut self, counter: &str, fate: Fate) {
        let count = self.counts.entry(counter.to_owned()).or_default();
        match fate {
            Fate::Done(_) => count.done += 1,
            Fate::Open | Fate::Unknown => count.unknown += 1,
            Fate::Never => {}
        }
    }

    /// Checks the lists and counters that are left at the end against the record: each pushed element was either
    /// received by a client or is in a list, and each counter has the increases that took effect. Returns the number of
    /// elements of which neither is true; as many are allowed as may have been popped in calls without a reply. The
    /// error says what is wrong.
    pub fn check(&self, left: &Left) -> Result<u64, String> {
        let mut places: BTreeMap<usize, &str> = BTreeMap::new();
        for (list, words) in &left.lists {
            for word in words {
                let number = number_of(word).ok_or_else(|| format!("{list} has what nobody pushed"))?;
                if let Some(other) = places.insert(number, list) {
                    return Err(format!("e{number} is in {other} and in {list}"));
                }
            }
        }
        let mut missing = Vec::new();
        for (number, element) in self.elements.iter().enumerate() {
            let done = format!("{}done", &element.queue[..=element.queue.find('}').expect("a hash tag")]);
            if let Some(list) = places.get(&number)
                && **list != done
                && (element.is_moved || **list != element.queue)
            {
                return Err(format!("e{number} of {} is in {list}", element.queue));
            }
            match (places.get(&number), element) {
                (Some(list), Element { is_taken: true, .. }) => {
                    return Err(format!("e{number} was delivered and is in {list}"));
                }
                (Some(list), Element { push: Fate::Never, .. }) => {
                    return Err(format!("the push of e{number} was refused, and it is in {list}"));
                }
                (None, Element { is_moved: true, .. }) => {
                    return Err(format!("e{number} was moved and is gone"));
                }
                (None, Element { push: Fate::Done(_), is_taken: false, .. }) => missing.push(number),
                _ => {}
            }
        }
        // weir's own count explains no more than what clients saw of it.
        let may_be_missing =
            left.orphans.map_or(self.unanswered, |orphans| (self.unread + orphans).min(self.unanswered));
        if missing.len() as u64 > may_be_missing {
            return Err(format!("{missing:?} are missing, though only {may_be_missing} elements may be"));
        }
        for (counter, value) in &left.counters {
            let Count { done, unknown } = self.counts.get(counter).copied().unwrap_or_default();
            if !(done..=done + unknown).contains(value) {
                return Err(format!("{counter} is {value}, not {done} to {}", done + unknown));
            }
        }
        Ok(missing.len() as u64)
    }
}

fn queue_of(group: u64, queue: u64) -> String {
    format!("{{{group}}}queue{queue}")
}

fn target_of(group: u64) -> String {
    format!("{{{group}}}done")
}

fn counter_of(group: u64) -> String {
    format!("{{{group}}}count")
}

/// Returns the number of a queue's element from its text (`word`), such as `e7`; `None` if the text is no
/// element.
fn number_of(word: &[u8]) -> Option<usize> {
    std::str::from_utf8(word).ok()?.strip_prefix('e')?.parse().ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Producer,
    Consumer,
    Counter,
}

/// A request of a client whose reply has not come yet.
#[derive(Debug)]
enum Asked {
    /// A push to a queue of the elements with these numbers.
    Push(Range<usize>),
    /// A call that pops up to `most` elements from the beginning of one of these queues (`is_left` is true)
    /// or from its end.
    Pop {
        queues: Vec<String>,
        most: u64,
        is_left: bool,
        until: Timestamp,
    },
    /// A call that moves an element from this queue to another list.
    Move {
        queue: String,
        until: Timestamp,
    },
    Watch,
    /// A read of the counter that the client watches.
    Get,
    /// A transaction that increases the counter with this name.
    Commit(String),
    /// A request that must get exactly this reply.
    Exactly(&'static [u8]),
}

/// The counter that a client watches (WATCH), as far as replies have told the client about it.
#[derive(Debug, Default)]
struct Watched {
    counter: String,
    is_held: bool,
    value: Option<u64>,
}

/// The work of one client with queues or counters, and its requests without a reply.
#[derive(Debug)]
pub(super) struct Duty {
    client: u32,
    role: Role,
    random: Random,
    rounds_left: u64,
    /// The client's requests without a reply, each with the time at which it was sent.
    asked: VecDeque<(Asked, Timestamp)>,
    /// The time of the client's last action.
    acts_at: Timestamp,
    watched: Option<Watched>,
    /// The number of the newest element that the client has popped from the beginning of a queue, by
    /// producer and queue.
    newest: BTreeMap<(u32, String), usize>,
    /// True if the last reply was an error after which weir may close the client, because the call may have
    /// taken an element.
    is_given_up: bool,
    /// True if the client is to give its requests a deadline and has not yet; `is_hurried` is true once it has.
    has_deadline: bool,
    is_hurried: bool,
    /// True if a request of the client's present transaction was refused, so that its EXEC fails.
    is_refused_in_part: bool,
}

impl Duty {
    pub fn new(client: u32, mut random: Random) -> Self {
        let role = [Role::Producer, Role::Consumer, Role::Consumer, Role::Counter][client as usize % 4];
        Self {
            client,
            role,
            rounds_left: random.between(3, 40),
            asked: VecDeque::new(),
            acts_at: Timestamp::ZERO,
            watched: None,
            newest: BTreeMap::new(),
            is_given_up: false,
            has_deadline: random.per_mille(200),
            is_hurried: false,
            is_refused_in_part: false,
            random,
        }
    }

    /// Decides on the client's next action on queues or counters at `now`. `over` is true once clients are to end,
    /// `ledger` records which elements were pushed and popped, and `stage` and `leaving` are the client's
    /// state and its way to end.
    pub fn act(
        &mut self,
        (now, over): (Timestamp, bool),
        ledger: &mut Ledger,
        (stage, leaving): (&mut Stage, Leaving),
    ) -> Move {
        self.acts_at = now;
        let is_patient = self.role != Role::Producer || self.random.per_mille(700);
        if *stage != Stage::Talking || (is_patient && !over && !self.asked.is_empty()) {
            return Move::Nothing;
        }
        if self.rounds_left == 0 || over {
            return self.leave(ledger, stage, leaving);
        }
        self.rounds_left -= 1;
        let mut out = Vec::new();
        if std::mem::take(&mut self.has_deadline) {
            self.is_hurried = true;
            let deadline = *self.random.pick(&["5", "50", "500"]);
            self.ask(
                &mut out,
                &[b"QOS", b"SET", b"DEADLINE", deadline.as_bytes()],
                Asked::Exactly(b"+OK\r\n"),
            );
        }
        match self.role {
            Role::Producer => self.produce(&mut out, ledger),
            Role::Consumer => self.consume(&mut out),
            Role::Counter => self.count(&mut out),
        }
        Move::Send(out)
    }

    fn ask(&mut self, out: &mut Vec<u8>, words: &[&[u8]], asked: Asked) {
        encode::request(out, words.iter().copied());
        self.asked.push_back((asked, self.acts_at));
    }

    fn produce(&mut self, out: &mut Vec<u8>, ledger: &mut Ledger) {
        for _ in 0..self.random.between(1, 3) {
            let queue = queue_of(self.random.below(GROUPS), self.random.below(QUEUES));
            let pushed = ledger.push(self.client, &queue, self.random.between(1, 3));
            let elements: Vec<String> = pushed.clone().map(|number| format!("e{number}")).collect();
            let words: Vec<&[u8]> = [&b"RPUSH"[..], queue.as_bytes()]
                .into_iter()
                .chain(elements.iter().map(String::as_bytes))
                .collect();
            self.ask(out, &words, Asked::Push(pushed));
        }
    }

    fn consume(&mut self, out: &mut Vec<u8>) {
        let group = self.random.below(GROUPS);
        let [one, other] = [0, 1].map(|queue| queue_of(group, queue));
        let (timeout, millis) = *self.random.pick(&TIMEOUTS);
        let (timeout, until) = (timeout.as_bytes(), self.acts_at.after(Duration::from_millis(millis)));
        let pop = |queues: &[&String], most, is_left| Asked::Pop {
            queues: queues.iter().map(|queue| (*queue).clone()).collect(),
            most,
            is_left,
            until,
        };
        match self.random.below(10) {
            0..=3 => {
                let words = [b"BLPOP", one.as_bytes(), other.as_bytes(), timeout];
                self.ask(out, &words, pop(&[&one, &other], 1, true));
            }
            4..=5 => {
                self.ask(out, &[b"BRPOP", one.as_bytes(), timeout], pop(&[&one], 1, false));
            }
            6..=7 => {
                let words = [
                    &b"BLMPOP"[..],
                    timeout,
                    b"2",
                    one.as_bytes(),
                    other.as_bytes(),
                    b"LEFT",
                    b"COUNT",
                    b"3",
                ];
                self.ask(out, &words, pop(&[&one, &other], 3, true));
            }
            8 => {
                let target = target_of(group);
                let words = [&b"BLMOVE"[..], one.as_bytes(), target.as_bytes(), b"LEFT", b"RIGHT", timeout];
                self.ask(out, &words, Asked::Move { queue: one.clone(), until });
            }
            _ => {
                let target = target_of(group);
                let words = [&b"BRPOPLPUSH"[..], one.as_bytes(), target.as_bytes(), timeout];
                self.ask(out, &words, Asked::Move { queue: one.clone(), until });
            }
        }
        if self.random.per_mille(300) {
            self.ask(out, &[b"PING"], Asked::Exactly(b"+PONG\r\n"));
        }
    }

    fn count(&mut self, out: &mut Vec<u8>) {
        let Some(Watched { counter, is_held, value }) = self.watched.take() else {
            let counter = counter_of(self.random.below(GROUPS));
            self.ask(out, &[b"WATCH", counter.as_bytes()], Asked::Watch);
            self.ask(out, &[b"GET", counter.as_bytes()], Asked::Get);
            self.watched = Some(Watched { counter, ..Watched::default() });
            return;
        };
        let Some(value) = value.filter(|_| is_held && self.random.per_mille(900)) else {
            return self.ask(out, &[b"UNWATCH"], Asked::Exactly(b"+OK\r\n"));
        };
        let next = (value + 1).to_string();
        self.ask(out, &[b"MULTI"], Asked::Exactly(b"+OK\r\n"));
        self.ask(out, &[b"SET", counter.as_bytes(), next.as_bytes()], Asked::Exactly(b"+QUEUED\r\n"));
        self.ask(out, &[b"EXEC"], Asked::Commit(counter));
    }

    /// True if the client waits in a blocking command, as far as the client knows.
    fn waits(&self) -> bool {
        self.asked.iter().any(|(asked, _)| matches!(asked, Asked::Pop { .. } | Asked::Move { .. }))
    }

    fn leave(&mut self, ledger: &mut Ledger, stage: &mut Stage, leaving: Leaving) -> Move {
        *stage = Stage::Leaving;
        let mut out = Vec::new();
        match leaving {
            Leaving::Lost => {
                *stage = Stage::Gone;
                self.gone(true, ledger);
                Move::Leave
            }
            Leaving::Quit if !self.waits() => {
                self.ask(&mut out, &[b"QUIT"], Asked::Exactly(b"+OK\r\n"));
                Move::Send(out)
            }
            _ => {
                self.ask(&mut out, &[b"PING"], Asked::Exactly(b"+PONG\r\n"));
                Move::SendAndEnd(out)
            }
        }
    }

    /// Handles a reply of weir to the client's oldest unanswered request. Returns true for an error reply
    /// that the request may get, false for another reply that it may get. The `Err` describes a reply that it
    /// cannot get. `step` is the number of the present event of the simulation, and `allowed` says which
    /// failures are possible.
    pub fn take_reply(
        &mut self,
        reply: &[u8],
        (step, now): (u64, Timestamp),
        ledger: &mut Ledger,
        allowed: Allowed,
    ) -> Result<bool, String> {
        let (asked, sent_at) = self.asked.pop_front().ok_or("was answered without having asked")?;
        let described = format!("{asked:?}");
        self.is_given_up = false;
        let ends_transaction = matches!(asked, Asked::Commit(_));
        let is_error = reply.starts_with(b"-");
        let judged = if is_error {
            self.refused((asked, now.since(sent_at)), reply, ledger, allowed)
        } else {
            let is_prompt = !allowed.refusals && !allowed.lateness;
            self.answered((asked, is_prompt), reply, (step, now), ledger)
        };
        self.is_refused_in_part &= !ends_transaction;
        judged.map(|()| is_error).map_err(|why| {
            let shown = String::from_utf8_lossy(&reply[..reply.len().min(200)]).escape_debug().to_string();
            format!("client {}: {described} was answered {shown}: {why}", self.client)
        })
    }

    /// Judges an error reply to a request that was sent this long ago.
    fn refused(
        &mut self,
        (asked, age): (Asked, Duration),
        reply: &[u8],
        ledger: &mut Ledger,
        allowed: Allowed,
    ) -> Result<(), String> {
        let is_late = reply.starts_with(LATE);
        if is_late && !self.is_hurried && !allowed.early_deadlines && age < LATE_AFTER {
            return Err("it is too young for that".into());
        }
        let is_of_deadline = is_late || reply.starts_with(STALLED);
        let is_possible = allowed.refusals
            || (allowed.redirections && (is_of_cluster(reply) || is_late))
            || allowed.lateness
            || (self.is_hurried && is_of_deadline)
            || (allowed.few_links && reply.starts_with(NO_LINK));
        let is_abort = matches!(asked, Asked::Commit(_)) && reply.starts_with(b"-EXECABORT ");
        // The slot of a watched key may move to another node between WATCH and EXEC.
        let may_abort = allowed.refusals || allowed.redirections || self.is_refused_in_part;
        let fate = match fate_of(reply) {
            Some(fate) if is_possible => fate,
            None if is_abort && may_abort => Fate::Never,
            _ => return Err("nothing was wrong that could be a reason".into()),
        };
        self.is_given_up = fate == Fate::Unknown;
        match asked {
            Asked::Exactly(b"+QUEUED\r\n") => {
                self.is_refused_in_part = true;
                Ok(())
            }
            Asked::Exactly(_) => Err("weir answers this by itself".into()),
            asked => Self::end(asked, fate, ledger),
        }
    }

    /// Records the end of a request that got an error or no reply; `fate` says whether it took effect. An
    /// error if that contradicts the record.
    fn end(asked: Asked, fate: Fate, ledger: &mut Ledger) -> Result<(), String> {
        match asked {
            Asked::Push(pushed) => return ledger.settle(pushed, fate),
            Asked::Pop { most, .. } if fate == Fate::Unknown => ledger.unanswered += most,
            Asked::Commit(counter) => ledger.count(&counter, fate),
            Asked::Pop { .. } | Asked::Move { .. } | Asked::Watch | Asked::Get | Asked::Exactly(_) => {}
        }
        Ok(())
    }

    /// Judges a reply that is no error. `is_prompt` is true if nothing can be wrong that delays it.
    fn answered(
        &mut self,
        (asked, is_prompt): (Asked, bool),
        reply: &[u8],
        (step, now): (u64, Timestamp),
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        let is_nothing = matches!(reply, b"*-1\r\n" | b"$-1\r\n");
        match asked {
            Asked::Push(pushed) => {
                reply::integer(reply).ok_or("not a number")?;
                ledger.settle(pushed, Fate::Done(step))
            }
            Asked::Pop { until, .. } | Asked::Move { until, .. } if is_nothing => {
                if now.after(ROUNDING) < until {
                    return Err(format!("{:?} before its timeout", until.since(now)));
                }
                if is_prompt && now > until.after(ENDS_WITHIN) {
                    return Err(format!("{:?} after its timeout", now.since(until)));
                }
                Ok(())
            }
            Asked::Pop { queues, most, is_left, .. } => {
                let mut parts = reply::elements(reply).ok_or("not an array")?;
                let queue = parts.next().and_then(reply::text).ok_or("no name of a queue")?;
                let queue = String::from_utf8_lossy(queue).into_owned();
                if !queues.contains(&queue) {
                    return Err(format!("an element of {queue}, which was not asked for"));
                }
                let told = parts.next().ok_or("no element")?;
                let words: Vec<&[u8]> = match reply::elements(told) {
                    Some(all) => all.filter_map(reply::text).collect(),
                    None => reply::text(told).into_iter().collect(),
                };
                if !(1..=most).contains(&(words.len() as u64)) {
                    return Err(format!("{} elements", words.len()));
                }
                for word in words {
                    let number = ledger.deliver(word, &queue, false)?;
                    if is_left {
                        self.check_order(number, ledger)?;
                    }
                }
                Ok(())
            }
            Asked::Move { queue, .. } => {
                let word = reply::text(reply).ok_or("no element")?;
                ledger.deliver(word, &queue, true).map(|_| ())
            }
            Asked::Watch => {
                same(reply, b"+OK\r\n")?;
                self.watched.iter_mut().for_each(|watched| watched.is_held = true);
                Ok(())
            }
            Asked::Get => {
                let value = if is_nothing { Some(0) } else { reply::text(reply).and_then(value_of) };
                let value = value.ok_or("not a number")?;
                self.watched.iter_mut().for_each(|watched| watched.value = Some(value));
                Ok(())
            }
            Asked::Commit(_) if is_nothing => {
                ledger.conflicts += 1;
                Ok(())
            }
            Asked::Commit(counter) => {
                same(reply, b"*1\r\n+OK\r\n")?;
                ledger.committed += 1;
                ledger.count(&counter, Fate::Done(step));
                Ok(())
            }
            Asked::Exactly(bytes) => same(reply, bytes),
        }
    }

    /// Checks that the elements that one client takes from the beginning of a queue come in the order of
    /// their pushes; `number` is that of the newest one taken. Not checked if weir puts elements back.
    fn check_order(&mut self, number: usize, ledger: &Ledger) -> Result<(), String> {
        let Element { producer, queue, .. } = &ledger.elements[number];
        let newest = self.newest.insert((*producer, queue.clone()), number);
        match newest.filter(|newest| *newest > number && !ledger.gives_back) {
            Some(newest) => Err(format!("e{newest} was pushed later, and was taken before")),
            None => Ok(()),
        }
    }

    /// Ends the client's requests after weir has closed its connection in this stage. `may_be_early` is true
    /// if weir may close it at any time. An error if weir should not have closed it.
    pub fn closed(&mut self, stage: Stage, may_be_early: bool, ledger: &mut Ledger) -> Result<(), String> {
        // A client is closed behind the error of a call that may have taken an element, and one that has sent its last
        // without an answer to a call that waits.
        let has_left = stage == Stage::Leaving && (self.asked.is_empty() || self.waits());
        if !has_left && !self.is_given_up && !may_be_early {
            return Err(format!(
                "client {} was closed in stage {stage:?}, and awaits {:?}",
                self.client, self.asked
            ));
        }
        self.gone(false, ledger);
        Ok(())
    }

    /// Ends all unanswered requests of the client, whose effect stays unknown. `is_unread` is true if replies
    /// may have been on their way to it.
    fn gone(&mut self, is_unread: bool, ledger: &mut Ledger) {
        let before = ledger.unanswered;
        for (asked, _) in self.asked.drain(..) {
            Self::end(asked, Fate::Unknown, ledger).expect("an unknown fate contradicts nothing");
        }
        if is_unread {
            ledger.unread += ledger.unanswered - before;
        }
    }
}

/// The beginning of weir's refusal of a call that needs a connection of its own, while all of them are taken.
const NO_LINK: &[u8] = b"-OVERLOADED reason=links ";

fn value_of(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a consumer that waits for elements of `queue` until two seconds.
    fn waiting(queue: &str) -> Duty {
        let mut duty = Duty::new(1, Random::new(1));
        let (queues, until) = (vec![queue.to_owned()], Timestamp::from_millis(2_000));
        let asked = Asked::Pop { queues, most: 1, is_left: true, until };
        duty.asked.push_back((asked, Timestamp::ZERO));
        duty
    }

    /// True if the consumer may get this reply at the given millisecond, while one element is in each of two
    /// queues.
    fn is_possible(mut duty: Duty, reply: &[u8], millis: u64, allowed: Allowed) -> bool {
        let mut ledger = Ledger::default();
        ledger.push(0, "{0}queue0", 1);
        ledger.push(0, "{0}queue1", 1);
        duty.take_reply(reply, (9, Timestamp::from_millis(millis)), &mut ledger, allowed).is_ok()
    }

    #[test]
    fn an_element_of_a_queue_that_was_not_asked_for_is_noticed() {
        let reply = b"*2\r\n$9\r\n{0}queue1\r\n$2\r\ne1\r\n";
        assert!(is_possible(waiting("{0}queue1"), reply, 1, Allowed::NOTHING));
        assert!(!is_possible(waiting("{0}queue0"), reply, 1, Allowed::NOTHING));
    }

    #[test]
    fn a_wait_that_ends_before_its_timeout_or_long_after_is_noticed() {
        assert!(is_possible(waiting("{0}queue0"), b"*-1\r\n", 2_000, Allowed::NOTHING));
        assert!(!is_possible(waiting("{0}queue0"), b"*-1\r\n", 3_001, Allowed::NOTHING));
        let late = Allowed { lateness: true, ..Allowed::NOTHING };
        assert!(is_possible(waiting("{0}queue0"), b"*-1\r\n", 3_001, late));
        assert!(!is_possible(waiting("{0}queue0"), b"*-1\r\n", 1_500, Allowed::NOTHING));
    }

    #[test]
    fn a_refusal_without_a_reason_is_noticed() {
        let (lost, no_link) =
            (b"-UNAVAILABLE reason=reply-timeout \r\n", b"-OVERLOADED reason=links backend=a\r\n");
        let troubled = Allowed { refusals: true, ..Allowed::NOTHING };
        let late = Allowed { lateness: true, ..Allowed::NOTHING };
        let clustered = Allowed { redirections: true, ..Allowed::NOTHING };
        let no_owner = b"-UNAVAILABLE slot=1 reason=no-owner retry_after_ms=5\r\n";
        assert!(is_possible(waiting("{0}queue0"), no_owner, 1, clustered));
        assert!(!is_possible(waiting("{0}queue0"), lost, 1, clustered));
        assert!(is_possible(waiting("{0}queue0"), lost, 1, troubled));
        assert!(!is_possible(waiting("{0}queue0"), lost, 1, Allowed::NOTHING));
        assert!(is_possible(waiting("{0}queue0"), b"-DEADLINE stage=queue\r\n", 4_500, late));
        assert!(!is_possible(waiting("{0}queue0"), b"-DEADLINE stage=queue\r\n", 4_499, late));
        let few_links = Allowed { few_links: true, ..Allowed::NOTHING };
        assert!(is_possible(waiting("{0}queue0"), no_link, 1, few_links));
        assert!(!is_possible(waiting("{0}queue0"), no_link, 1, Allowed::NOTHING));
        assert!(!is_possible(waiting("{0}queue0"), b"-ERR unknown command\r\n", 1, troubled));
    }

    #[test]
    fn an_abort_of_a_transaction_of_which_nothing_was_refused_is_noticed() {
        let judged = |queued: &[u8], allowed| {
            let mut duty = Duty::new(3, Random::new(1));
            let asked = [Asked::Exactly(b"+QUEUED\r\n"), Asked::Commit(counter_of(0))];
            duty.asked.extend(asked.map(|asked| (asked, Timestamp::ZERO)));
            let mut ledger = Ledger::default();
            let mut take =
                |reply| duty.take_reply(reply, (9, Timestamp::from_millis(1)), &mut ledger, allowed);
            take(queued).and_then(|_| take(b"-EXECABORT Transaction discarded\r\n"))
        };
        let few_links = Allowed { few_links: true, ..Allowed::NOTHING };
        assert_eq!(judged(b"-OVERLOADED reason=links backend=a\r\n", few_links), Ok(true));
        assert!(judged(b"+QUEUED\r\n", few_links).is_err());
    }

    #[test]
    fn more_missing_elements_than_calls_without_an_answer_are_noticed() {
        let mut ledger = Ledger::default();
        let pushed = ledger.push(0, "{0}queue0", 1);
        ledger.settle(pushed, Fate::Done(1)).expect("nobody has it");
        let left = || Left { lists: BTreeMap::new(), counters: BTreeMap::new(), orphans: Some(5) };
        assert!(ledger.check(&left()).is_err(), "every call was answered");
        ledger.unanswered = 1;
        assert_eq!(ledger.check(&left()), Ok(1));
    }

    #[test]
    fn an_element_in_a_list_that_it_was_not_pushed_or_moved_to_is_noticed() {
        let mut ledger = Ledger::default();
        ledger.push(0, "{0}queue0", 1);
        let in_list = |list: &str| Left {
            lists: BTreeMap::from([(list.to_owned(), vec![b"e0".to_vec()])]),
            counters: BTreeMap::new(),
            orphans: None,
        };
        assert!(ledger.check(&in_list("{0}queue0")).is_ok() && ledger.check(&in_list("{0}done")).is_ok());
        assert!(ledger.check(&in_list("{0}queue1")).is_err() && ledger.check(&in_list("{1}done")).is_err());
        ledger.deliver(b"e0", "{0}queue0", true).expect("it is there");
        assert!(ledger.check(&in_list("{0}queue0")).is_err() && ledger.check(&in_list("{0}done")).is_ok());
    }
}
