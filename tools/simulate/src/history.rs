//! The history of writes: their order, and the values that a read may therefore find.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::queues::Ledger;
use super::token::Token;
use weir::routing::slot_of;
use weir::values::Timestamp;

/// The client, number and time of a request that was sent. The time is a step, the number of the
/// simulation's event: no two events happen in one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub client: u32,
    /// The number of the request among those of its client.
    pub sequence: u64,
    pub step: u64,
}

/// The history's knowledge about a write: whether it took effect, may have taken effect, or never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The write has no reply yet, so that it may take effect at any time.
    Open,
    /// The write was answered, so it took effect; the field is the number of the simulation's event (step)
    /// at that time.
    Done(u64),
    /// No reply says whether the write took effect (the connection broke, say): it may have, may yet, or never will.
    Unknown,
    /// The write was refused before it could take effect.
    Never,
}

#[derive(Debug)]
struct Write {
    sent: Sent,
    key: String,
    deletes: bool,
    /// The time from which on the value may have expired; `None` if it does not expire, or no store has carried
    /// the write out. `ended_at` is the step (number of the simulation's event) by which it has surely expired.
    ends_from: Option<Timestamp>,
    ended_at: Option<u64>,
    fate: Fate,
    /// The write's position in the order in which stores carried out all writes; `None` if no store has
    /// carried it out.
    executed: Option<usize>,
    /// The step (number of the simulation's event) in which a store that owned the key carried out the
    /// write; `None` if none has.
    executed_at: Option<u64>,
    /// The index of the takeover by which the write was lost, because the node that carried it out had been
    /// replaced, or was replaced by a node without the write; `None` if it is not lost.
    lost_with: Option<usize>,
}

#[derive(Debug)]
struct Count {
    sent: Sent,
    step: u64,
    value: i64,
}

#[derive(Debug, Default)]
pub(super) struct History {
    writes: Vec<Write>,
    by_key: BTreeMap<String, Vec<usize>>,
    counts: BTreeMap<String, Vec<Count>>,
    counts_sent: BTreeMap<String, i64>,
    /// The number of the newest write that a store has carried out, by writing client and key.
    executed: BTreeMap<(u32, String), usize>,
    /// The number of writes that stores have carried out.
    executions: usize,
    /// The number of the newest write whose value a client has read, by client and key.
    seen: BTreeMap<(u32, String), usize>,
    /// The times at which values expire, each with the number of its write.
    ends: BTreeSet<(Timestamp, usize)>,
    step: u64,
    /// The virtual time of each step (number of the simulation's event).
    times: Vec<Timestamp>,
    /// Takeovers, the oldest first: slots got another owner, which may lack some writes of the former owner.
    takeovers: Vec<Takeover>,
    /// The steps (numbers of events) in which deletes and increases of counters were carried out that were
    /// lost later by a takeover, by key; these have no numbers of their own.
    lost_unnamed: BTreeMap<String, Vec<u64>>,
    /// The step (number of the event) and the time at which a node last replied that the cluster is down.
    down: Option<(u64, Timestamp)>,
    /// The record of the queues and counters that clients share.
    pub ledger: Ledger,
}

/// The failure of a node whose slots another node takes over, with the steps (numbers of events) at which
/// this happened.
#[derive(Debug)]
struct Takeover {
    /// For each slot of the cluster, true if the failed node owned it or may be sent requests for it.
    slots: Vec<bool>,
    /// The step (number of the event) since which another node owns the slots of the node that went away;
    /// `known` is the step since which every core of weir knows that. `None` before that.
    since: Option<u64>,
    known: Option<u64>,
    /// True if the former owner of the slots may not know that it was replaced, and may still answer
    /// requests.
    is_doubtful: bool,
    /// The step (number of the event) after which no request is refused because of the takeover; `None`
    /// before that.
    over: Option<u64>,
}

type Checked = Result<(), String>;

impl History {
    /// Records a write of this key that is about to be sent. Returns its number, which becomes part of the
    /// value.
    pub fn write(&mut self, sent: Sent, key: &str) -> usize {
        self.note(sent, key, false)
    }

    /// Records a delete of this key that is about to be sent. Returns its number among all writes.
    pub fn delete(&mut self, sent: Sent, key: &str) -> usize {
        self.note(sent, key, true)
    }

    fn note(&mut self, sent: Sent, key: &str, deletes: bool) -> usize {
        self.writes.push(Write {
            sent,
            key: key.to_owned(),
            deletes,
            ends_from: None,
            ended_at: None,
            fate: Fate::Open,
            executed: None,
            executed_at: None,
            lost_with: None,
        });
        let number = self.writes.len() - 1;
        self.by_key.entry(key.to_owned()).or_default().push(number);
        number
    }

    /// Records the time from which on the value of the write with this number may have expired (`earliest`), and
    /// the one by which it has surely expired.
    pub fn ends_between(&mut self, write: usize, earliest: Timestamp, surely: Timestamp) {
        self.ends.insert((surely, write));
        if let Some(write) = self.writes.get_mut(write) {
            write.ends_from = Some(earliest);
        }
    }

    /// Sets the current time and step (number of the simulation's event), and records which values have
    /// expired by then.
    pub fn handle_time(&mut self, now: Timestamp, step: u64) {
        self.step = step;
        self.times.resize(step as usize + 1, now);
        while let Some((_, write)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.ends.pop_first();
            self.writes[write].ended_at = Some(step);
        }
    }

    /// Records an increase of the counter with this name that is about to be sent.
    pub fn count(&mut self, key: &str) {
        *self.counts_sent.entry(key.to_owned()).or_default() += 1;
    }

    /// Records how the write with this number ended. An error if it was refused although a store had carried
    /// it out, or acknowledged although none had.
    pub fn settle(&mut self, write: usize, fate: Fate) -> Checked {
        let settled = &mut self.writes[write];
        settled.fate = fate;
        if fate == Fate::Never && settled.executed.is_some() {
            return Err(format!(
                "write {write} on {} was refused as if it had never been sent, but was carried out",
                settled.key
            ));
        }
        if matches!(fate, Fate::Done(_)) && settled.executed.is_none() && !settled.deletes {
            return Err(format!(
                "write {write} on {} was acknowledged, but no store carried it out",
                settled.key
            ));
        }
        Ok(())
    }

    /// Returns the virtual time that has passed since a request was sent.
    pub fn age(&self, sent: Sent) -> Duration {
        let now = self.times.last().copied().unwrap_or_default();
        self.times.get(sent.step as usize).map_or(Duration::ZERO, |at| now.since(*at))
    }

    /// Returns the current step: the number of the simulation's event, which serves as time here.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Records that a node which may be sent requests for these slots (true, by slot) goes away.
    pub fn begin_fall(&mut self, slots: Vec<bool>) {
        self.takeovers.push(Takeover { slots, since: None, known: None, is_doubtful: false, over: None });
    }

    /// Returns the index of the latest takeover in the list of takeovers.
    pub fn takeover(&self) -> usize {
        self.takeovers.len() - 1
    }

    /// Records that from the current step (event) on another node owns the slots of the node that went away
    /// last. `is_doubtful` is true if that node may still believe that it owns them.
    pub fn take_over(&mut self, is_doubtful: bool) {
        let (since, last) = (self.step, self.takeovers.len() - 1);
        let takeover = &mut self.takeovers[last];
        (takeover.since, takeover.is_doubtful) = (Some(since), is_doubtful);
    }

    /// Records that from the current step (event) on every core of weir knows of the takeover with this
    /// index.
    pub fn know(&mut self, takeover: usize) {
        self.takeovers[takeover].known = Some(self.step);
    }

    /// Records that from the current step (event) on no request may be refused because of the takeover with
    /// this index.
    pub fn settle_down(&mut self, takeover: usize) {
        self.takeovers[takeover].over = Some(self.step);
    }

    /// Records that the write with this number was lost by the takeover with this index, so that it need not
    /// be seen any more.
    pub fn lose(&mut self, write: usize, takeover: usize) {
        if let Some(write) = self.writes.get_mut(write) {
            write.lost_with = Some(takeover);
        }
    }

    /// Records that a delete or an increase of this key, which has no number, was lost by a takeover; `step`
    /// is the number of the event in which it was carried out.
    pub fn lose_unnamed(&mut self, key: &str, step: u64) {
        self.lost_unnamed.entry(key.to_owned()).or_default().push(step);
    }

    /// Records that a node replies at present that the cluster is down.
    pub fn note_down(&mut self) {
        self.down = Some((self.step, self.times.last().copied().unwrap_or_default()));
    }

    /// True if a node has replied that the cluster is down since the request was sent, or at most
    /// `under_way` before: a read may join an equal read in flight whose reply weir has not received yet,
    /// and gets that reply.
    pub fn was_down(&self, sent: Sent, under_way: Duration) -> bool {
        let sent_at = self.times.get(sent.step as usize).copied().unwrap_or_default();
        self.down.is_some_and(|(step, at)| step > sent.step || at.after(under_way) >= sent_at)
    }

    /// True if a request on these slots may have been refused because a node was away since it was sent.
    /// Without slots, the request goes to all nodes.
    pub fn was_in_trouble(&self, slots: &[u16], sent: Sent) -> bool {
        self.takeovers.iter().any(|takeover| {
            let is_touched = slots.is_empty() || slots.iter().any(|slot| takeover.slots[usize::from(*slot)]);
            is_touched && takeover.over.is_none_or(|over| sent.step <= over)
        })
    }

    /// True if a delete or increase of this key was lost by a takeover, between the step (event) at which it
    /// was sent and the step `answered`, so that its effect need not be seen.
    fn may_have_been_lost(&self, key: &str, sent: Sent, answered: u64) -> bool {
        let lost = self.lost_unnamed.get(key);
        lost.is_some_and(|lost| lost.iter().any(|step| (sent.step..=answered).contains(step)))
    }

    /// True if `read` may have been answered by a node that was replaced and does not know it, and that
    /// never had the write with this number, because its successor carried it out. The write need not be
    /// acknowledged, and may have been sent past weir: the replaced node lacks it either way.
    fn may_be_missed(&self, number: usize, read: Sent) -> bool {
        let write = &self.writes[number];
        let acknowledged = if let Fate::Done(step) = write.fate { Some(step) } else { None };
        let Some(done) = write.executed_at.or(acknowledged) else { return false };
        let mut doubtful = self.takeovers.iter().filter(|takeover| takeover.is_doubtful).peekable();
        doubtful.peek().is_some() && {
            let slot = usize::from(slot_of(write.key.as_bytes()));
            doubtful.any(|takeover| {
                let is_after = takeover.since.is_some_and(|since| done >= since);
                takeover.slots[slot] && is_after && takeover.known.is_none_or(|known| read.step <= known)
            })
        }
    }

    /// Records that a node which was replaced and does not know it has carried out a write, which is
    /// therefore lost. An error if the write is unknown, was refused or carried out before, or was sent
    /// after all cores knew of the takeover.
    pub fn carried_out_in_vain(&mut self, token: Token<'_>) -> Checked {
        let Token { write, key, .. } = token;
        self.executions += 1;
        let known = self.takeovers.last().and_then(|takeover| takeover.known);
        let Some(done) = self.writes.get_mut(write).filter(|done| done.key == key) else {
            return Err(format!("a store was sent write {write} on {key}, which nobody made"));
        };
        if done.executed.replace(self.executions).is_some() {
            return Err(format!("write {write} on {key} was carried out twice, the second time in vain"));
        }
        if done.fate == Fate::Never {
            return Err(format!("write {write} on {key} was carried out in vain after it was refused"));
        }
        if known.is_some_and(|known| done.sent.step > known) {
            return Err(format!(
                "write {write} on {key} was sent to a node of which all knew that it was replaced"
            ));
        }
        Ok(())
    }

    /// Records that a store has carried out the write whose mark (token) is given. An error if the write is
    /// unknown, was carried out before, was refused, or comes after a later write of its client.
    pub fn carried_out(&mut self, token: Token<'_>) -> Checked {
        let Token { write, client, key } = token;
        let Some(known) =
            self.writes.get_mut(write).filter(|known| known.key == key && known.sent.client == client)
        else {
            return Err(format!(
                "a store was sent write {write} of client {client} on {key}, which nobody made"
            ));
        };
        self.executions += 1;
        if known.executed.replace(self.executions).is_some() {
            return Err(format!("write {write} on {key} was carried out twice"));
        }
        known.executed_at = Some(self.step);
        match known.fate {
            Fate::Never => {
                return Err(format!("write {write} on {key} was carried out after it was refused"));
            }
            // A write on a connection that was given up also comes before later writes of its client, or
            // never takes effect.
            Fate::Unknown | Fate::Open | Fate::Done(_) => {}
        }
        let newest = self.executed.entry((client, key.to_owned())).or_default();
        if *newest > write {
            return Err(format!(
                "client {client} sent write {write} on {key} before {newest}, but it was carried out after it"
            ));
        }
        *newest = write;
        Ok(())
    }

    /// Returns the position of the write with this number in the order in which stores carried out all
    /// writes; `None` if no store has carried it out.
    pub fn executed(&self, write: usize) -> Option<usize> {
        self.writes.get(write)?.executed
    }

    /// Checks the value that `read` found for a key that is set and deleted as a whole: `found` is the
    /// number of the write that it is from, `None` for no value. The error says why it is not possible.
    pub fn check_value(&mut self, read: Sent, key: &str, found: Option<usize>) -> Checked {
        if let Some(found) = found.filter(|found| *found < self.writes.len()) {
            let newest = *self.seen.entry((read.client, key.to_owned())).or_insert(found);
            let is_gone = self.writes[newest].lost_with.is_some() || self.may_be_missed(newest, read);
            if self.writes[found].executed < self.writes[newest].executed && !is_gone {
                return Err(format!(
                    "{key} read as {found} by client {}, which had read {newest}",
                    read.client
                ));
            }
            self.seen.insert((read.client, key.to_owned()), found);
        }
        let numbers = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        let now = self.times.last().copied().unwrap_or_default();
        let possible = match found {
            Some(number) => {
                self.check_source(read, key, number)?;
                self.overwritten(read, numbers, Some(number)).is_none()
            }
            None => {
                self.overwritten(read, numbers, None).is_none()
                    || numbers.iter().any(|number| {
                        let delete = &self.writes[*number];
                        (delete.deletes || delete.ends_from.is_some_and(|from| from <= now))
                            && delete.fate != Fate::Never
                            && !sent_after(read, delete.sent)
                            && self.overwritten(read, numbers, Some(*number)).is_none()
                    })
            }
        };
        if possible {
            return Ok(());
        }
        let newer = self.overwritten(read, numbers, found);
        Err(format!(
            "{key} read as {found:?} by client {}, though {newer:?} had replaced it before",
            read.client
        ))
    }

    /// Checks the values that `read` found for a key that is only appended to, each as the mark of its
    /// write. The error says why they are not possible.
    pub fn check_log(&self, read: Sent, key: &str, found: &[Token<'_>]) -> Checked {
        let mut seen = BTreeSet::new();
        let mut newest = None;
        for token in found {
            self.check_source(read, key, token.write)?;
            if !seen.insert(token.write) {
                return Err(format!("{key} holds write {} twice", token.write));
            }
            if let Some(newest) = newest.filter(|newest| self.executed(*newest) > self.executed(token.write))
            {
                return Err(format!(
                    "{key} holds write {} of client {} behind {newest}, which was carried out later",
                    token.write, token.client
                ));
            }
            newest = Some(token.write);
        }
        let numbers = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        let is_older = |number| newest.is_some_and(|newest| self.ran_before(number, newest));
        let is_missing = |number: &&usize| {
            let write = &self.writes[**number];
            let was_there =
                self.done_before(**number, read) || (write.lost_with.is_none() && is_older(**number));
            was_there && !seen.contains(number) && !self.may_be_missed(**number, read)
        };
        match numbers.iter().find(is_missing) {
            Some(missing) => Err(format!(
                "{key} read as {newest:?} by client {} without write {missing}, which was acknowledged or \
                 carried out before",
                read.client
            )),
            None => Ok(()),
        }
    }

    /// Checks the reply (`value`) to an increase of a counter: each increase must get a value of its own,
    /// above all values that were known before. `step` is the number of the present event of the simulation.
    /// The error says what is wrong.
    pub fn check_count(&mut self, sent: Sent, step: u64, key: &str, value: i64) -> Checked {
        if self.may_have_been_lost(key, sent, step) {
            return Ok(());
        }
        let is_left = |other: &Count| !self.may_have_been_lost(key, other.sent, other.step);
        let counted = self.counts.get(key).map_or(&[][..], Vec::as_slice);
        for other in counted.iter().filter(|other| is_left(other)) {
            let before = other.step < sent.step
                || (other.sent.client == sent.client && other.sent.sequence < sent.sequence);
            if other.value == value || (before && other.value > value) {
                return Err(format!(
                    "{key} counted {value} for client {} after {} for client {}",
                    sent.client, other.value, other.sent.client
                ));
            }
        }
        self.counts.entry(key.to_owned()).or_default().push(Count { sent, step, value });
        let sent_so_far = self.counts_sent[key];
        if value > sent_so_far {
            return Err(format!("{key} counted {value} after {sent_so_far} increases were sent"));
        }
        Ok(())
    }

    /// Records that an increase of the counter with this name was refused before it could take effect.
    pub fn never_counted(&mut self, key: &str) {
        *self.counts_sent.get_mut(key).expect("it was sent") -= 1;
    }

    /// Returns the least and the largest value that the counter with this name may have at the end of the
    /// run.
    pub fn count_bounds(&self, key: &str) -> (i64, i64) {
        let is_left = |count: &&Count| !self.may_have_been_lost(key, count.sent, count.step);
        let counts = self.counts.get(key).map_or(&[][..], Vec::as_slice);
        let least = counts.iter().filter(is_left).map(|count| count.value).max();
        (least.unwrap_or(0), self.counts_sent.get(key).copied().unwrap_or(0))
    }

    pub fn counters(&self) -> impl Iterator<Item = &str> {
        self.counts_sent.keys().map(String::as_str)
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.by_key.keys().map(String::as_str)
    }

    /// True if a write of this key was acknowledged before this step (number of an event) and was not lost
    /// by a takeover.
    pub fn written_by(&self, key: &str, step: u64) -> bool {
        let numbers = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        numbers.iter().any(|number| {
            let write = &self.writes[*number];
            let is_there = write.lost_with.is_none() && matches!(write.fate, Fate::Done(at) if at < step);
            is_there && !self.may_be_missed(*number, Sent { step, ..write.sent })
        })
    }

    /// True if no other client writes this key, and every write of it by this client was or will be carried
    /// out and none was lost.
    pub fn is_certain(&self, key: &str, client: u32) -> bool {
        let numbers = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        let slot = usize::from(slot_of(key.as_bytes()));
        if self.takeovers.iter().any(|takeover| takeover.is_doubtful && takeover.slots[slot]) {
            return false;
        }
        !self.lost_unnamed.contains_key(key)
            && numbers.iter().all(|number| {
                let write = &self.writes[*number];
                write.lost_with.is_none()
                    && write.sent.client == client
                    && !matches!(write.fate, Fate::Unknown | Fate::Never)
            })
    }

    /// Checks that `read` may find the value of the write with this number at all: it was sent for this key,
    /// a store has carried it out, it was not lost, and it has not expired. The error says why not.
    fn check_source(&self, read: Sent, key: &str, number: usize) -> Checked {
        match self.writes.get(number) {
            None => Err(format!("{key} holds write {number}, which nobody made")),
            Some(write) if write.key != key => {
                Err(format!("{key} holds write {number}, which was on {}", write.key))
            }
            Some(write) if write.ended_at.is_some_and(|ended| ended < read.step) => Err(format!(
                "{key} read as write {number} by client {}, though its time had been over before",
                read.client
            )),
            Some(Write { lost_with: Some(takeover), .. })
                if self.takeovers[*takeover].known.is_some_and(|known| read.step > known) =>
            {
                Err(format!(
                    "{key} read as write {number} by client {}, though all cores knew who has it without that",
                    read.client
                ))
            }
            Some(write) if write.fate == Fate::Never => {
                Err(format!("{key} holds write {number}, which was refused"))
            }
            Some(write) if sent_after(read, write.sent) => Err(format!(
                "{key} read as write {number}, which its client {} sent after the read",
                read.client
            )),
            Some(write) if write.executed.is_none() => {
                Err(format!("{key} holds write {number}, which no store has carried out"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Returns a write among those with these numbers that surely took effect after the write `found` (or
    /// after the beginning, if `None`) and before the read, so that the read should have found it; `None` if
    /// there is none.
    fn overwritten(&self, read: Sent, numbers: &[usize], found: Option<usize>) -> Option<usize> {
        numbers.iter().copied().find(|number| {
            Some(*number) != found
                && self.done_before(*number, read)
                && !self.may_be_missed(*number, read)
                && found.is_none_or(|found| {
                    self.done_before(found, self.writes[*number].sent) || self.ran_before(found, *number)
                })
        })
    }

    /// True if stores that owned the key carried out both writes with these numbers, and `one` before
    /// `other`. Stores see the order of writes that were in flight at once, which their clients do not.
    fn ran_before(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|number| &self.writes[number]);
        one.executed_at.is_some() && other.executed_at.is_some() && one.executed < other.executed
    }

    /// True if the write with this number surely took effect before the request `later` was sent.
    fn done_before(&self, number: usize, later: Sent) -> bool {
        let write = &self.writes[number];
        let Fate::Done(step) = write.fate else { return false };
        if write.lost_with.is_some()
            || (write.deletes && self.may_have_been_lost(&write.key, write.sent, step))
        {
            return false;
        }
        step < later.step || (write.sent.client == later.client && write.sent.sequence < later.sequence)
    }
}

fn sent_after(read: Sent, write: Sent) -> bool {
    read.client == write.client && write.sequence > read.sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(client: u32, sequence: u64, step: u64) -> Sent {
        Sent { client, sequence, step }
    }

    fn acknowledged(history: &mut History, sent: Sent, step: u64) -> usize {
        let number = history.write(sent, "k");
        history.carried_out(Token { write: number, client: sent.client, key: "k" }).expect("first time");
        history.settle(number, Fate::Done(step)).expect("carried out");
        number
    }

    #[test]
    fn a_stale_read_is_noticed() {
        let mut history = History::default();
        let old = acknowledged(&mut history, sent(1, 1, 1), 5);
        let new = acknowledged(&mut history, sent(2, 1, 6), 9);
        assert!(
            history.check_value(sent(3, 1, 8), "k", Some(old)).is_ok(),
            "the newer one was not acknowledged then"
        );
        assert!(history.check_value(sent(3, 1, 10), "k", Some(old)).is_err());
        assert!(history.check_value(sent(3, 1, 10), "k", Some(new)).is_ok());
        assert!(history.check_value(sent(3, 1, 10), "k", None).is_err());
    }

    /// Checks reads at a stalled node that was replaced: until it knows, its replies lack the writes of its
    /// successor, acknowledged or not, and have all earlier ones.
    #[test]
    fn a_node_that_does_not_know_that_it_was_replaced_misses_what_its_successor_has_done() {
        let mut history = History::default();
        let written = |history: &mut History, step: u64| {
            history.handle_time(Timestamp::from_millis(step), step);
            let number = history.write(sent(1, step, step), "k");
            history.carried_out(Token { write: number, client: 1, key: "k" }).expect("first time");
            number
        };
        let [oldest, before] = [1, 2].map(|step| written(&mut history, step));
        history.begin_fall(vec![true; usize::from(weir::values::limits::SLOTS)]);
        history.handle_time(Timestamp::from_millis(3), 3);
        history.take_over(true);
        let after = written(&mut history, 4);
        let reads = [after, before, after, before, oldest];
        let judged = reads.map(|found| history.check_value(sent(2, 9, 9), "k", Some(found)).is_ok());
        assert_eq!(judged, [true, true, true, true, false], "both nodes had the newer of the first two");
    }

    #[test]
    fn a_value_that_vanishes_before_its_time_is_noticed() {
        let mut history = History::default();
        history.handle_time(Timestamp::from_millis(1), 1);
        let write = acknowledged(&mut history, sent(1, 1, 1), 5);
        history.ends_between(write, Timestamp::from_millis(10), Timestamp::from_millis(12));
        let mut is_possible = |found, millis, step| {
            history.handle_time(Timestamp::from_millis(millis), step);
            history.check_value(sent(2, step, step), "k", found).is_ok()
        };
        assert!(!is_possible(None, 9, 6) && is_possible(Some(write), 9, 7), "it is still there");
        assert!(is_possible(None, 10, 8) && is_possible(Some(write), 11, 9), "it may be gone");
        assert!(is_possible(None, 13, 10) && !is_possible(Some(write), 13, 11), "it is gone");
    }

    #[test]
    fn one_connection_sees_its_own_order() {
        let mut history = History::default();
        let first = acknowledged(&mut history, sent(1, 1, 1), 5);
        let second = acknowledged(&mut history, sent(1, 3, 1), 5);
        assert!(history.check_value(sent(1, 2, 1), "k", Some(first)).is_ok());
        assert!(history.check_value(sent(1, 2, 1), "k", Some(second)).is_err(), "sent after the read");
        assert!(history.check_value(sent(1, 4, 1), "k", Some(first)).is_err(), "replaced before the read");
    }

    /// Checks reads of two writes that were in flight at once: stores tell which one replaced the other,
    /// whether or not the replaced one was acknowledged.
    #[test]
    fn a_read_of_a_write_that_another_in_flight_replaced_is_noticed() {
        for fate in [Fate::Done(5), Fate::Unknown] {
            let mut history = History::default();
            let old = history.write(sent(1, 1, 1), "k");
            let new = history.write(sent(2, 1, 2), "k");
            for (write, client) in [(old, 1), (new, 2)] {
                history.carried_out(Token { write, client, key: "k" }).expect("first time");
            }
            history.settle(old, fate).expect("carried out");
            history.settle(new, Fate::Done(6)).expect("carried out");
            assert!(history.check_value(sent(4, 1, 3), "k", Some(old)).is_ok(), "neither was acknowledged");
            assert!(history.check_value(sent(3, 1, 10), "k", Some(old)).is_err(), "{fate:?}");
            assert!(history.check_value(sent(3, 1, 10), "k", Some(new)).is_ok(), "{fate:?}");
        }
    }

    #[test]
    fn a_value_that_no_store_has_carried_out_is_noticed() {
        let mut history = History::default();
        let write = history.write(sent(1, 1, 1), "k");
        assert!(history.check_value(sent(2, 1, 9), "k", Some(write)).is_err());
        assert!(history.check_log(sent(2, 1, 9), "k", &[Token { write, client: 1, key: "k" }]).is_err());
        history.carried_out(Token { write, client: 1, key: "k" }).expect("first time");
        assert!(history.check_value(sent(2, 1, 9), "k", Some(write)).is_ok());
    }

    #[test]
    fn appends_of_two_clients_in_another_order_or_with_a_gap_are_noticed() {
        let mut history = History::default();
        let tokens: Vec<_> = (1..=3)
            .map(|client| Token { write: history.write(sent(client, 1, 1), "k"), client, key: "k" })
            .collect();
        for token in &tokens {
            history.carried_out(*token).expect("first time");
        }
        let [first, second, third] = tokens[..] else { unreachable!("three were made") };
        let is_possible = |found: &[Token<'_>]| history.check_log(sent(9, 1, 9), "k", found).is_ok();
        assert!(is_possible(&[]) && is_possible(&[first, second]), "none was acknowledged");
        assert!(is_possible(&[first, second, third]));
        assert!(!is_possible(&[second, first, third]), "another order than that of the store");
        assert!(!is_possible(&[first, third]), "the second one was there before the third");
    }

    #[test]
    fn twice_and_out_of_order_are_noticed() {
        let mut history = History::default();
        let [first, second] = [1, 2].map(|sequence| history.write(sent(1, sequence, 1), "k"));
        let token = |write| Token { write, client: 1, key: "k" };
        assert!(history.carried_out(token(second)).is_ok());
        assert!(history.carried_out(token(second)).is_err());
        assert!(history.carried_out(token(first)).is_err());
    }

    #[test]
    fn a_lost_append_is_noticed() {
        let mut history = History::default();
        let [first, second] = [1, 2].map(|sequence| acknowledged(&mut history, sent(1, sequence, 1), 5));
        let token = |write| Token { write, client: 1, key: "k" };
        assert!(history.check_log(sent(2, 1, 9), "k", &[token(first), token(second)]).is_ok());
        assert!(history.check_log(sent(2, 1, 9), "k", &[token(second)]).is_err());
        assert!(history.check_log(sent(2, 1, 9), "k", &[token(second), token(first)]).is_err());
        assert!(history.check_log(sent(2, 1, 9), "k", &[token(first), token(first), token(second)]).is_err());
    }
}
