//! Changes of hot keys that their stores tell of, whoever makes them (`CLIENT TRACKING`).
//!
//! Besides the connections for requests, a core has one connection to each store of its hot keys, the tracker, on which
//! the store reports changes of the keys that were read on it. Nothing is read there for clients: `PTTL key` registers
//! a key, and once the store has answered, it tells of the key's next change.
//!
//! ```text
//!   key:  Unregistered ── a fetch is sent ──> Asked ── the store has answered ──> Registered: replies are kept
//!              ^                                                                      │
//!              └──────────── the store tells of a change · the tracker is lost ───────┘
//! ```
//!
//! A reply is kept only if its fetch was sent after the registration was confirmed. So each change that the
//! reply lacks comes after the registration, and the store tells of it; that the message and the reply come over
//! two connections makes no difference. A change told before the reply comes makes that worthless, as a write
//! through weir does (`../versions.rs`).
//!
//! A connection that is cut off says nothing. While keys are registered, a tracker that has been silent for 100 ms is
//! asked (`PING`), and if no answer comes within another 100 ms it is given up, as one that is lost is. Then, and while
//! a store cannot track, replies are kept for `--hot-ttl` as if there were no trackers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::policy::hot_keys::HotId;
use crate::values::{BackendId, Timestamp};

/// The time without a message on a tracker (the connection on which a store reports changes of keys) after
/// which its store is sent a PING; also the time without a reply to that after which the tracker is given up.
const SILENT_MAX: Duration = Duration::from_millis(100);
/// The time after which a lost tracker (the connection on which a store reports changes of keys) is opened again. Each
/// tracker that is lost within 10 s of its opening doubles it, up to a minute.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest time after which a lost tracker (the connection on which a store reports changes of keys) is
/// opened again; also the time for which a store that cannot track keys is not asked again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The time for which a tracker (the connection on which a store reports changes of keys) has to last so
/// that the pause after its loss is only 250 ms.
const SETTLED: Duration = Duration::from_secs(10);
/// The time without a registered key after which a tracker (the connection on which a store reports changes
/// of keys) is closed.
const UNNEEDED: Duration = Duration::from_secs(10);
/// The time after which a fetch registers a key again whose registration its store refused; until then, no reply of the
/// key is kept for longer than this.
pub const REFUSED: Duration = Duration::from_secs(1);

/// Whether a store reports the next change of a key to this core (CLIENT TRACKING).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// The store was not asked to report changes of the key, or has reported one since.
    #[default]
    Unregistered,
    /// The store was asked to report the key's next change, and has not confirmed it. The number
    /// distinguishes this registration from earlier ones.
    Asked(u64),
    /// The store has confirmed the registration of this number: it will report the key's next change.
    Registered(u64),
    /// The store has answered the registration with an error, and is not asked again before this time.
    Refused(Timestamp),
}

impl Registration {
    /// True if the reply to a fetch (shared read of a hot key) may be kept now that was sent under the
    /// registration `earlier`: the store has confirmed the same registration, or refuses to register the key.
    pub fn covers(self, earlier: Self) -> bool {
        match self {
            Self::Registered(_) => earlier == self,
            Self::Refused(_) => true,
            Self::Unregistered | Self::Asked(_) => false,
        }
    }
}

/// An action on a tracker (the connection on which a store reports changes of keys), which the caller has to
/// carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Opens a tracker (connection on which a store reports changes of keys) to a store.
    Open(BackendId),
    /// Asks a store, over its tracker (connection for such reports), to report the next change of this key.
    Register(BackendId, Vec<u8>),
    /// Sends a PING to a store whose tracker (connection on which a store reports changes of keys) has been
    /// silent, to learn whether the connection still works.
    Ping(BackendId),
    /// Closes the tracker of a backend (the connection on which its store reports changes of keys).
    Close(BackendId),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Absent,
    Opening,
    /// Since this time the store reports changes of the keys that are read on the tracker (the connection for such
    /// reports).
    Tracks(Timestamp),
}

/// The tracker of one store: the connection on which it reports changes of keys, and the unanswered commands
/// on it.
#[derive(Debug, Default)]
struct Tracker {
    state: State,
    /// The time before which no tracker (connection on which it reports changes of keys) is opened to the
    /// store.
    opens_at: Timestamp,
    /// True from the loss of a tracker (connection on which the store reports changes of keys) until the next one is
    /// opened, or none is needed because no key of the store is hot. The next one is opened at `opens_at` without
    /// waiting for a fetch, as replies may be kept meanwhile that no tracker covers.
    is_missed: bool,
    pause: Duration,
    /// The commands that the store has not answered yet, in order: the registration of a key with its number,
    /// or `None` for a PING.
    asked: VecDeque<Option<(HotId, u64)>>,
    /// The time at which the store last sent something, or was sent a command while it owed no reply.
    heard_at: Timestamp,
    /// The last time at which some key was known to be registered, or at which the tracker (connection on
    /// which a store reports changes of keys) was opened.
    needed_at: Timestamp,
}

/// The trackers of one core: for each store of its hot keys, a connection on which the store reports changes of these
/// keys.
#[derive(Debug, Default)]
pub struct Tracking {
    /// The tracker (connection on which the store reports changes of keys) of each backend, by its number.
    trackers: Vec<Tracker>,
    registrations: u64,
    tasks: VecDeque<Task>,
}

impl Tracking {
    fn at(&mut self, backend: BackendId) -> &mut Tracker {
        let index = usize::from(backend.0);
        if self.trackers.len() <= index {
            self.trackers.resize_with(index + 1, Tracker::default);
        }
        &mut self.trackers[index]
    }

    /// Returns for each backend, by its number, whether its store reports changes of registered keys at present. Ends
    /// with the last backend to which a tracker (connection for such reports) was needed so far.
    pub fn states(&self) -> impl Iterator<Item = bool> {
        self.trackers.iter().map(|tracker| matches!(tracker.state, State::Tracks(_)))
    }

    /// True if a store reports changes of registered keys at present.
    pub fn tracks(&self, backend: BackendId) -> bool {
        let tracker = self.trackers.get(usize::from(backend.0));
        tracker.is_some_and(|tracker| matches!(tracker.state, State::Tracks(_)))
    }

    /// Registers a key at its store, so that the store reports its next change. If there is no tracker (connection for
    /// such reports), opens one instead, unless the pause after the last one's loss is not over. Returns the key's
    /// registration, which may be that it is not registered.
    pub fn register(
        &mut self,
        backend: BackendId,
        (id, key): (HotId, &[u8]),
        now: Timestamp,
    ) -> Registration {
        let number = self.registrations + 1;
        let tracker = self.at(backend);
        match tracker.state {
            State::Opening => Registration::Unregistered,
            State::Absent => {
                if now >= tracker.opens_at {
                    tracker.open();
                    self.tasks.push_back(Task::Open(backend));
                }
                Registration::Unregistered
            }
            State::Tracks(_) => {
                tracker.ask(Some((id, number)), now);
                self.registrations = number;
                self.tasks.push_back(Task::Register(backend, key.to_vec()));
                Registration::Asked(number)
            }
        }
    }

    /// Records that a store has switched `CLIENT TRACKING` on for its tracker (connection on which a store
    /// reports changes of keys): from now on it reports changes of the keys that are read there.
    pub fn handle_tracks(&mut self, backend: BackendId, now: Timestamp) {
        let tracker = self.at(backend);
        (tracker.state, tracker.heard_at, tracker.needed_at) = (State::Tracks(now), now, now);
    }

    /// Closes the tracker (connection for reports of changes) to a store that cannot track keys. The next one is opened
    /// after a minute at the earliest.
    pub fn handle_cannot_track(&mut self, backend: BackendId, now: Timestamp) {
        self.give_up(backend, now);
        let tracker = self.at(backend);
        (tracker.pause, tracker.opens_at) = (PAUSE_MAX, now.after(PAUSE_MAX));
    }

    /// Handles a store's reply to the oldest unanswered command on its tracker (the connection on which it reports
    /// changes of keys). Returns the key and number of the registration that it answers; None for the reply to a PING,
    /// and if no command is unanswered.
    pub fn handle_answer(&mut self, backend: BackendId, now: Timestamp) -> Option<(HotId, u64)> {
        let tracker = self.at(backend);
        tracker.heard_at = now;
        tracker.asked.pop_front().flatten()
    }

    /// Records that a store has sent an invalidation message, so that its tracker (connection on which a
    /// store reports changes of keys) does not count as silent.
    pub fn handle_message(&mut self, backend: BackendId, now: Timestamp) {
        self.at(backend).heard_at = now;
    }

    /// Records that a tracker (the connection on which a store reports changes of keys) was lost or could not be
    /// opened; the caller stops trusting the replies that depend on its reports. A new tracker is opened when a key is
    /// next to be registered, or while keys of the store are hot, but not before a pause of 250 ms to a minute is over.
    pub fn handle_lost(&mut self, backend: BackendId, now: Timestamp) {
        let tracker = self.at(backend);
        let was_settled = matches!(tracker.state, State::Tracks(since) if now.since(since) >= SETTLED);
        let pause = if was_settled { PAUSE_MIN } else { (2 * tracker.pause).clamp(PAUSE_MIN, PAUSE_MAX) };
        *tracker = Tracker { opens_at: now.after(pause), pause, is_missed: true, ..Tracker::default() };
    }

    fn give_up(&mut self, backend: BackendId, now: Timestamp) {
        self.handle_lost(backend, now);
        self.tasks.push_back(Task::Close(backend));
    }

    /// Sends a PING to stores whose trackers have been silent for 100 ms, if `is_needed` says that keys are registered
    /// there. Closes trackers on which no key has been registered for 10 s, and opens lost ones if `has_hot` says that
    /// keys of the store are hot. Gives up trackers of stores that have not answered a command for 100 ms, and returns
    /// these stores.
    pub fn look_after(
        &mut self,
        (has_hot, is_needed): (impl Fn(BackendId) -> bool, impl Fn(BackendId) -> bool),
        now: Timestamp,
    ) -> Vec<BackendId> {
        let mut silent = Vec::new();
        for index in 0..self.trackers.len() {
            let (backend, tracker) = (BackendId(index as u16), &mut self.trackers[index]);
            if tracker.due().is_none_or(|due| due > now) {
                continue;
            }
            if tracker.state == State::Absent {
                tracker.is_missed = has_hot(backend);
                if tracker.is_missed {
                    tracker.open();
                    self.tasks.push_back(Task::Open(backend));
                }
                continue;
            }
            if !tracker.asked.is_empty() {
                silent.push(backend);
            } else if is_needed(backend) {
                tracker.ask(None, now);
                tracker.needed_at = now;
                self.tasks.push_back(Task::Ping(backend));
            } else if now.since(tracker.needed_at) < UNNEEDED {
                tracker.heard_at = now;
            } else {
                *tracker = Tracker::default();
                self.tasks.push_back(Task::Close(backend));
            }
        }
        silent.iter().for_each(|backend| self.give_up(*backend, now));
        silent
    }

    /// Returns the time at which [`Self::look_after`] should be called next; None if it has nothing to do.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.trackers.iter().filter_map(Tracker::due).min()
    }

    /// True if actions on trackers (connections on which stores report changes of keys) wait to be carried
    /// out.
    #[inline]
    pub fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Returns the next action on a tracker (connection on which a store reports changes of keys); None if
    /// there is none.
    pub fn poll_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }
}

impl Tracker {
    fn open(&mut self) {
        (self.state, self.is_missed) = (State::Opening, false);
    }

    /// Returns the time at which [`Tracking::look_after`] has something to do about this tracker (connection
    /// on which a store reports changes of keys); None if never.
    fn due(&self) -> Option<Timestamp> {
        match self.state {
            State::Absent => self.is_missed.then_some(self.opens_at),
            State::Opening => None,
            State::Tracks(_) => Some(self.heard_at.after(SILENT_MAX)),
        }
    }

    fn ask(&mut self, question: Option<(HotId, u64)>, now: Timestamp) {
        if self.asked.is_empty() {
            self.heard_at = now;
        }
        self.asked.push_back(question);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: BackendId = BackendId(3);
    const MILLISECOND: Duration = Duration::from_millis(1);

    fn id(index: u16) -> HotId {
        HotId { index, generation: 0 }
    }

    fn register(tracking: &mut Tracking, key: u16, now: Timestamp) -> Registration {
        tracking.register(STORE, (id(key), b"k"), now)
    }

    fn tasks(tracking: &mut Tracking) -> Vec<Task> {
        std::iter::from_fn(|| tracking.poll_task()).collect()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO.after(Duration::from_millis(1_000_000 + millis))
    }

    #[test]
    fn a_tracker_is_opened_when_a_key_is_to_be_registered_and_answers_come_in_order() {
        let mut tracking = Tracking::default();
        assert_eq!(register(&mut tracking, 1, at(0)), Registration::Unregistered);
        assert_eq!(register(&mut tracking, 1, at(0)), Registration::Unregistered);
        assert_eq!(tasks(&mut tracking), [Task::Open(STORE)]);
        assert!(!tracking.tracks(STORE));
        tracking.handle_tracks(STORE, at(1));
        assert!(tracking.tracks(STORE) && !tracking.tracks(BackendId(0)) && !tracking.tracks(BackendId(9)));
        assert_eq!(register(&mut tracking, 1, at(2)), Registration::Asked(1));
        assert_eq!(register(&mut tracking, 2, at(2)), Registration::Asked(2));
        assert_eq!(tasks(&mut tracking).len(), 2);
        assert_eq!(tracking.handle_answer(STORE, at(3)), Some((id(1), 1)));
        assert_eq!(tracking.handle_answer(STORE, at(3)), Some((id(2), 2)));
    }

    #[test]
    fn a_silent_tracker_is_asked_and_then_given_up() {
        let mut tracking = Tracking::default();
        register(&mut tracking, 1, at(0));
        tracking.handle_tracks(STORE, at(0));
        register(&mut tracking, 1, at(10));
        tracking.handle_answer(STORE, at(11));
        tasks(&mut tracking);
        let mut look = |needed: bool, now: Timestamp| {
            let silent = tracking.look_after((|_| false, |_| needed), now);
            let asked = tasks(&mut tracking);
            (silent, asked, tracking.poll_deadline())
        };
        assert_eq!(look(true, at(110)), (vec![], vec![], Some(at(111))));
        assert_eq!(look(true, at(111)), (vec![], vec![Task::Ping(STORE)], Some(at(211))));
        assert_eq!(look(true, at(210)).0, []);
        assert_eq!(look(true, at(211)), (vec![STORE], vec![Task::Close(STORE)], Some(at(461))));
        assert_eq!(look(true, at(461)), (vec![], vec![], None), "no key is hot");
        assert_eq!(register(&mut tracking, 1, at(211)), Registration::Unregistered);
        assert_eq!(tasks(&mut tracking), [], "not at once");
        register(&mut tracking, 1, at(211).after(PAUSE_MIN));
        assert_eq!(tasks(&mut tracking), [Task::Open(STORE)]);
        tracking.handle_tracks(STORE, at(500));
        assert_eq!(tracking.look_after((|_| true, |_| false), at(600)), []);
        assert_eq!(tasks(&mut tracking), [], "nothing is registered there");
        assert_eq!(tracking.look_after((|_| true, |_| false), at(10_500)), []);
        assert_eq!((tasks(&mut tracking), tracking.tracks(STORE)), (vec![Task::Close(STORE)], false));
        assert_eq!(tracking.poll_deadline(), None);
        tracking.handle_lost(STORE, at(10_500));
        tracking.look_after((|_| true, |_| false), at(10_999));
        assert_eq!(tasks(&mut tracking), [Task::Open(STORE)], "keys are hot though no fetch is sent");
    }

    #[test]
    fn a_store_that_cannot_track_is_asked_once_a_minute_and_one_that_is_lost_ever_more_rarely() {
        let mut tracking = Tracking::default();
        register(&mut tracking, 1, at(0));
        tracking.handle_cannot_track(STORE, at(1));
        assert_eq!(tasks(&mut tracking), [Task::Open(STORE), Task::Close(STORE)]);
        register(&mut tracking, 1, at(60_000));
        assert_eq!(tasks(&mut tracking), []);
        register(&mut tracking, 1, at(60_001));
        assert_eq!(tasks(&mut tracking), [Task::Open(STORE)]);
        let mut tracking = Tracking::default();
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            tracking.handle_tracks(STORE, now);
            tracking.handle_lost(STORE, now);
            let lost = now;
            while tasks(&mut tracking).is_empty() {
                now = now.after(50 * MILLISECOND);
                register(&mut tracking, 1, now);
            }
            pauses.push(now.since(lost).as_millis());
        }
        assert_eq!(pauses[..3], [250, 500, 1_000]);
        assert_eq!(pauses[9], 60_000);
        tracking.handle_tracks(STORE, now);
        now = now.after(SETTLED);
        tracking.handle_lost(STORE, now);
        register(&mut tracking, 1, now.after(PAUSE_MIN));
        assert_eq!(tasks(&mut tracking), [Task::Open(STORE)], "it had worked for a while");
    }
}
