//! Calls that wait (BLPOP, XREAD BLOCK and so on): for each key, the waiting calls in the order of their arrival.
//!
//! ```text
//!     a call waits ──> ticket, in the row of each of its keys
//!     a key is added, a stream grows or goes ──> the key is ready
//!     end of the command or transaction ──> ready keys in order; of each, its waiters in order
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::call::Call;
use super::effort::{Effort, RANK};
use super::items::End;
use super::log::Id;
use super::long_double;
use super::numbers;
use super::refusal::Refusal;
use super::sorted_sets::Extreme;
use super::stats::Slot;
use super::value::Value;
use crate::protocol::{Protocol, encode};
use crate::values::Timestamp;
use crate::values::limits::{ENGINE_DATABASES, ENGINE_WAITING_BYTES_MAX};

/// The approximate bytes of a blocking call that waits, besides its keys and the names that it wants.
/// `KEY_BYTES` is the approximate bytes of each key besides its name, which is stored twice.
const WAITER_BYTES: usize = 256;
const KEY_BYTES: usize = 128;
/// The longest timeout of a blocking call in milliseconds, three hundred years; a call with a longer one
/// waits for ever.
const WAIT_MS_MAX: u64 = 300 * 366 * 86_400 * 1_000;

type Name = Box<[u8]>;

/// The kind of value that a blocking call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    SortedSet,
    Stream,
    /// The acknowledgements of replicas (WAIT, WAITAOF), which never come, because the engine has no
    /// replicas.
    Replicas,
}

const KINDS: usize = 4;

impl Kind {
    /// Returns the kind of blocking calls that wait for such a value; `None` for a type that no call waits
    /// for.
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::List(_) => Some(Self::List),
            Value::SortedSet(_) => Some(Self::SortedSet),
            Value::Stream(_) => Some(Self::Stream),
            Value::Integer(_) | Value::Text(_) | Value::Buffer(_) | Value::Hash(_) | Value::Set(_) => None,
        }
    }
}

/// The time after which a waiting blocking call gets the reply for a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    Never,
    After(Duration),
}

/// The elements that a blocking call waits for at its keys, and the way in which it takes or reads them.
#[derive(Clone, Debug)]
pub(super) enum Want {
    /// The call waits for one item from this end of a list (BLPOP, BRPOP).
    Item(End),
    /// The call waits for items from this end of a list, and takes up to this many (BLMPOP).
    Items(End, usize),
    /// The call waits for one item at the end `from` of a list, and moves it to the end `to` of the list
    /// `target` (BLMOVE, BRPOPLPUSH).
    Moved { from: End, to: End, target: Name },
    /// The call waits for one member of a sorted set (BZPOPMIN, BZPOPMAX).
    Member(Extreme),
    /// The call waits for members of a sorted set with the lowest or highest scores, and takes up to this
    /// many (BZMPOP).
    Members(Extreme, usize),
    /// The call waits for entries of a stream after an id (XREAD), and reads at most `count` of each stream,
    /// all if it is `None`; `after` has the ids in the order of the call's keys.
    Entries { after: Vec<Id>, count: Option<usize> },
    /// The call waits for entries of a stream that a group has not delivered (XREADGROUP), and reads at most
    /// `count` (all if it is `None`) for `consumer`; with `forgets` (NOACK) they do not become pending.
    Deliveries { group: Name, consumer: Name, count: Option<usize>, forgets: bool },
    /// The call waits for acknowledgements of replicas (WAIT), which never come.
    Replicas,
    /// The call waits for acknowledgements of replicas that have written to disk (WAITAOF), which never come.
    Copies,
}

impl Want {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Item(_) | Self::Items(..) | Self::Moved { .. } => Kind::List,
            Self::Member(_) | Self::Members(..) => Kind::SortedSet,
            Self::Entries { .. } | Self::Deliveries { .. } => Kind::Stream,
            Self::Replicas | Self::Copies => Kind::Replicas,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Item(_)
            | Self::Items(..)
            | Self::Member(_)
            | Self::Members(..)
            | Self::Replicas
            | Self::Copies => 0,
            Self::Moved { target, .. } => target.len(),
            Self::Entries { after, .. } => size_of_val(after.as_slice()),
            Self::Deliveries { group, consumer, .. } => group.len() + consumer.len(),
        }
    }
}

/// A blocking call (BLPOP and the like) that waits for elements at one of its keys.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) session: u64,
    /// The key under which the statistics of the waiting call's command are kept.
    pub(super) slot: Slot,
    pub(super) protocol: Protocol,
    pub(super) database: u8,
    pub(super) keys: Vec<Name>,
    pub(super) want: Want,
    /// The time at which the waiting call gets the reply for a timeout; `None` if it waits for ever.
    pub(super) deadline: Option<Timestamp>,
}

impl Waiter {
    /// Returns the reply that the waiting call gets if it has found nothing when its timeout passes.
    pub(super) fn reply_at_end(&self) -> Vec<u8> {
        let mut reply = Vec::new();
        match self.want {
            Want::Replicas => encode::integer(&mut reply, 0),
            Want::Copies => {
                encode::array(&mut reply, 2);
                encode::integer(&mut reply, 0);
                encode::integer(&mut reply, 0);
            }
            _ => encode::null_array(&mut reply, self.protocol),
        }
        reply
    }

    /// True if the call reads the same entries of the same streams (XREAD) as `other`, and its reply has the same form.
    /// The reply of one of the two calls then serves both.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        let (Want::Entries { after, count }, Want::Entries { after: other_after, count: other_count }) =
            (&self.want, &other.want)
        else {
            return false;
        };
        (after, count) == (other_after, other_count)
            && (self.protocol, self.database) == (other.protocol, other.database)
            && self.keys == other.keys
    }

    fn bytes(&self) -> usize {
        let keys = self.keys.iter().map(|key| KEY_BYTES + 2 * key.len()).sum::<usize>();
        WAITER_BYTES + self.want.bytes() + keys
    }
}

/// All blocking calls that wait, with the keys that they wait for.
#[derive(Debug)]
pub(super) struct Waits {
    /// For each key, the tickets (numbers in order of arrival) of the calls that wait for it, by database.
    by_key: Vec<BTreeMap<Name, BTreeSet<u64>>>,
    by_ticket: BTreeMap<u64, Waiter>,
    by_session: BTreeMap<u64, u64>,
    deadlines: BTreeSet<(Timestamp, u64)>,
    /// The number of waiting calls by the kind of value that they wait for.
    by_kind: [usize; KINDS],
    /// The keys (database and name) at which a waiting call may find elements now, in the order in which they
    /// got them.
    ready: VecDeque<(u8, Name)>,
    /// The keys in `ready` (those at which a waiting call may find elements), each with true if a stream was
    /// added there, got entries or was removed.
    listed: BTreeMap<(u8, Name), bool>,
    tickets: u64,
    bytes: usize,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            by_key: (0..ENGINE_DATABASES).map(|_| BTreeMap::new()).collect(),
            by_ticket: BTreeMap::new(),
            by_session: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            by_kind: [0; KINDS],
            ready: VecDeque::new(),
            listed: BTreeMap::new(),
            tickets: 0,
            bytes: 0,
        }
    }
}

impl Waits {
    /// Returns the number of blocking calls that wait.
    pub(super) fn len(&self) -> usize {
        self.by_ticket.len()
    }

    /// Returns the number of keys, in all databases, that blocking calls wait for, and how many of them have a call
    /// that ends when its key is removed (XREADGROUP). Charges `effort` for the search for the latter.
    pub(super) fn count_keys(&self, effort: &Effort) -> (usize, usize) {
        let mut ended_by_removal = BTreeSet::new();
        if self.by_kind[Kind::Stream as usize] > 0 {
            effort.charge(self.by_ticket.len() as u64);
            for waiter in self.by_ticket.values() {
                if let Want::Deliveries { .. } = waiter.want {
                    effort.charge(RANK * waiter.keys.len() as u64);
                    ended_by_removal.extend(waiter.keys.iter().map(|key| (waiter.database, key)));
                }
            }
        }
        (self.by_key.iter().map(BTreeMap::len).sum(), ended_by_removal.len())
    }

    /// Returns the keys of a database that blocking calls wait for.
    pub(super) fn keys(&self, database: u8) -> impl Iterator<Item = Name> {
        self.by_key[usize::from(database)].keys().cloned()
    }

    /// Lets a blocking call wait, after all others that wait for its keys. An error if all waiting calls
    /// together would take too much memory.
    pub(super) fn enter(&mut self, mut waiter: Waiter) -> Result<(), Refusal> {
        let bytes = waiter.bytes();
        if self.bytes + bytes > ENGINE_WAITING_BYTES_MAX {
            return Err(Refusal::Words("ERR too many calls wait, try again later"));
        }
        self.bytes += bytes;
        self.tickets += 1;
        let ticket = self.tickets;
        waiter.keys.shrink_to_fit();
        let rows = &mut self.by_key[usize::from(waiter.database)];
        for key in &waiter.keys {
            rows.entry(key.clone()).or_default().insert(ticket);
        }
        self.by_kind[waiter.want.kind() as usize] += 1;
        self.deadlines.extend(waiter.deadline.map(|at| (at, ticket)));
        self.by_session.insert(waiter.session, ticket);
        self.by_ticket.insert(ticket, waiter);
        Ok(())
    }

    /// Ends the wait of the blocking call of a connection (`session`) and returns the call; `None` if none
    /// waits.
    pub(super) fn leave(&mut self, session: u64) -> Option<Waiter> {
        let ticket = self.by_session.get(&session)?;
        self.end(*ticket)
    }

    /// Ends the wait of the blocking call with this ticket (its number in the order of arrival) and returns
    /// the call; `None` if it does not wait any more.
    pub(super) fn end(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.by_ticket.remove(&ticket)?;
        let rows = &mut self.by_key[usize::from(waiter.database)];
        for key in &waiter.keys {
            if let Some(row) = rows.get_mut(key) {
                row.remove(&ticket);
                if row.is_empty() {
                    rows.remove(key);
                }
            }
        }
        self.by_kind[waiter.want.kind() as usize] -= 1;
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, ticket));
        }
        self.by_session.remove(&waiter.session);
        self.bytes -= waiter.bytes();
        Some(waiter)
    }

    /// Queues a key of a database, at which calls that wait for this kind of value may find elements now, or
    /// which was a stream and is none any more. Does nothing if no call waits for the key.
    pub(super) fn signal(&mut self, database: u8, key: &[u8], kind: Kind) {
        if self.by_kind[kind as usize] == 0 || !self.by_key[usize::from(database)].contains_key(key) {
            return;
        }
        let place: (u8, Name) = (database, key.into());
        let ready = &mut self.ready;
        let streamed = self.listed.entry(place).or_insert_with_key(|place| {
            ready.push_back(place.clone());
            false
        });
        *streamed |= kind == Kind::Stream;
    }

    /// True if any key is queued at which waiting calls may find elements.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes and returns the next key at which waiting calls may find elements: its database, its name, and
    /// true if a stream was added there, got entries or was removed. `None` if no key is queued.
    pub(super) fn next_ready(&mut self) -> Option<(u8, Name, bool)> {
        let place = self.ready.pop_front()?;
        let streamed = self.listed.remove(&place)?;
        Some((place.0, place.1, streamed))
    }

    /// Takes out the call with this ticket (its number in the order of arrival) while its keys are searched
    /// for elements, and returns it; its keys and deadline stay recorded. The caller puts it back afterwards.
    /// `None` if there is no such call.
    pub(super) fn take_out(&mut self, ticket: u64) -> Option<Waiter> {
        self.by_ticket.remove(&ticket)
    }

    /// Puts back the call with this ticket that [`Waits::take_out`] has taken out. If the call got its reply,
    /// the caller then ends its wait.
    pub(super) fn put_back(&mut self, ticket: u64, waiter: Waiter) {
        self.by_ticket.insert(ticket, waiter);
    }

    /// Returns the first call with a ticket (number in the order of arrival) greater than `after` that waits
    /// for the key: its ticket, and the elements that it wants. `None` if there is none. `database` is that
    /// of the key.
    pub(super) fn next_behind(&self, database: u8, key: &[u8], after: u64) -> Option<(u64, &Want)> {
        let row = self.by_key[usize::from(database)].get(key)?;
        let ticket = *row.range(after + 1..).next()?;
        Some((ticket, &self.by_ticket.get(&ticket)?.want))
    }

    /// Ends the wait of a call whose timeout has passed at `now`, and returns it; `None` if there is none.
    pub(super) fn next_overdue(&mut self, now: Timestamp) -> Option<Waiter> {
        let (at, ticket) = *self.deadlines.first()?;
        if at > now {
            return None;
        }
        self.end(ticket)
    }

    /// Returns the time at which the next timeout of a waiting call passes; `None` if no call has one.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(at, _)| *at)
    }
}

const NEGATIVE: Refusal = Refusal::Words("ERR timeout is negative");

/// Returns the timeout of a blocking command at argument `index`, which is in seconds and may have a
/// fraction; 0 means that it waits for ever. An error if it is negative, too large or no number.
pub(super) fn seconds_at(call: &Call<'_>, index: usize) -> Result<Timeout, Refusal> {
    const NO_FLOAT: Refusal = Refusal::Words("ERR timeout is not a float or out of range");
    let text = call.at(index);
    call.effort.charge(long_double::effort(text));
    let finite = long_double::is_finite(text).map_err(|_| NO_FLOAT)?;
    let seconds = numbers::number(text).ok_or(NO_FLOAT)?;
    // A number that is too close to 0 for an `f64` is not 0, which would mean for ever.
    let is_tiny = seconds.is_out_of_range && seconds.value == 0.0 && seconds.value.is_sign_positive();
    let ms = if is_tiny { 1.0 } else { (seconds.value * 1000.0).ceil() };
    // Redis takes a number of milliseconds that 64 bits cannot hold for a negative one.
    if !finite || ms >= i64::MAX as f64 {
        return Err(NEGATIVE);
    }
    timeout(ms as i64)
}

/// Returns the timeout of a blocking command at argument `index`, which is in milliseconds; 0 means that it
/// waits for ever. An error if it is negative or no integer.
pub(super) fn milliseconds_at(call: &Call<'_>, index: usize) -> Result<Timeout, Refusal> {
    const NO_INTEGER: Refusal = Refusal::Words("ERR timeout is not an integer or out of range");
    timeout(numbers::integer(call.at(index)).ok_or(NO_INTEGER)?)
}

fn timeout(ms: i64) -> Result<Timeout, Refusal> {
    let ms = u64::try_from(ms).map_err(|_| NEGATIVE)?;
    let is_limited = (1..WAIT_MS_MAX).contains(&ms);
    Ok(if is_limited { Timeout::After(Duration::from_millis(ms)) } else { Timeout::Never })
}

impl Call<'_> {
    /// Lets the blocking call wait for the elements `want` at one of `keys`, of which repeated ones count
    /// once. False if it may not wait, because it is part of a transaction or a script: the caller then
    /// replies at once, as after its timeout. An error if too many calls wait.
    pub(super) fn wait(
        &mut self,
        keys: &mut dyn Iterator<Item = &[u8]>,
        want: Want,
        timeout: Timeout,
    ) -> Result<bool, Refusal> {
        if !self.may_wait {
            return Ok(false);
        }
        let mut names: Vec<Name> = Vec::new();
        let mut kept = BTreeSet::new();
        let mut want = want;
        let mut after = Vec::new();
        for (index, key) in keys.enumerate() {
            if kept.insert(key) {
                names.push(key.into());
                if let Want::Entries { after: all, .. } = &want {
                    after.push(all[index]);
                }
            }
        }
        if let Want::Entries { after: all, .. } = &mut want {
            *all = after;
        }
        let deadline = match timeout {
            Timeout::Never => None,
            Timeout::After(duration) => Some(self.now.monotonic.after(duration)),
        };
        let position = self.directory.find(self.arguments.name());
        let slot = position.map_or(Slot::Unknown, |position| self.tally.stats.slot(position, self.arguments));
        self.keyspace.interest.waits.enter(Waiter {
            session: self.session.id,
            slot,
            protocol: self.session.protocol,
            database: self.session.database,
            keys: names,
            want,
            deadline,
        })?;
        self.disposition = super::session::Disposition::Wait;
        Ok(true)
    }
}
