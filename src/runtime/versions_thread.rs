//! Asks every store for its version and its commands, on a thread of its own: once before the first client is
//! served, then about once a minute. HELLO and INFO show clients the lowest version; the control executor hears
//! when that changes. Commands that weir does not know are learned; all of them are asked for only if their
//! number has changed.

use std::io;
use std::thread;
use std::time::Duration;

use super::asking::{self, Credentials, Question};
use super::clock::Clock;
use super::connect::Route;
use super::log;
use super::messages::{Mailbox, ToControl};
use super::tls::StoreTls;
use crate::control::StoreVersions;
use crate::protocol::{command, reply};
use crate::values::{StoreVersion, Timestamp};

/// The longest time that the start waits for all stores' versions.
const START_PATIENCE: Duration = Duration::from_millis(300);
/// The longest time that stores may take to answer after the start; later a store counts as without an
/// answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval between two questions to a store that answers. A store that does not is asked after
/// `PAUSE_MIN`, then ever more rarely, at least once per `INTERVAL`.
const INTERVAL: Duration = Duration::from_secs(60);
/// The pause before a store that did not answer is asked for the second time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The stack size of a thread that asks a store and ends with its answer, in bytes.
const STACK_BYTES: usize = 256 * 1024;
/// Maximum number of bytes that a store may answer. The commands of Redis 8 with all its modules take 400 KiB.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A store, and when it is asked next.
struct Store {
    route: Route,
    credentials: Option<Credentials>,
    /// Number of commands that the store had when weir last learnt them all from `COMMAND`; `None` if it
    /// never did.
    commands: Option<i64>,
    due: Timestamp,
    pause: Duration,
}

/// State of the thread that asks every store behind weir for its server version (`INFO server`), about once a
/// minute: when each store is asked next, and the last version that each told.
pub(super) struct VersionsThread {
    stores: Vec<Store>,
    versions: StoreVersions,
    tls: Option<StoreTls>,
    clock: Clock,
}

impl VersionsThread {
    /// Makes the thread's state, before anything was asked. Each store comes with its address and weir's
    /// credentials there.
    pub fn new<'a>(
        stores: impl Iterator<Item = (Route, Option<&'a Credentials>)>,
        tls: Option<StoreTls>,
        clock: Clock,
    ) -> Self {
        let stores: Vec<Store> = stores
            .map(|(route, credentials)| Store {
                route,
                credentials: credentials.cloned(),
                commands: None,
                due: Timestamp::ZERO,
                pause: PAUSE_MIN,
            })
            .collect();
        Self { versions: StoreVersions::unknown(stores.len()), stores, tls, clock }
    }

    /// Asks all stores once, for at most `START_PATIENCE`. Returns the lowest version, which clients are told
    /// first.
    pub fn ask_first(&mut self) -> StoreVersion {
        self.ask_due(START_PATIENCE);
        self.versions.lowest()
    }

    /// Starts the thread, which ends with the process; does nothing if there is no store to ask.
    pub fn start(self, control: Mailbox<ToControl>) -> io::Result<()> {
        if self.stores.is_empty() {
            return Ok(());
        }
        thread::Builder::new().name("weir-versions".to_owned()).spawn(move || self.run(&control)).map(|_| ())
    }

    fn run(mut self, control: &Mailbox<ToControl>) {
        let mut told = self.versions.lowest();
        while let Some(due) = self.stores.iter().map(|store| store.due).min() {
            let now = self.clock.now().monotonic;
            if due > now {
                thread::park_timeout(due.since(now));
                continue;
            }
            self.ask_due(PATIENCE);
            let lowest = self.versions.lowest();
            if lowest != told {
                told = lowest;
                control.post(ToControl::StoreVersion(lowest));
            }
        }
    }

    /// Asks the stores that are due, and plans the next question to each.
    fn ask_due(&mut self, patience: Duration) {
        let clock = self.clock;
        let started = clock.now().monotonic;
        let stores = self.stores.iter_mut().enumerate();
        let due: Vec<(usize, &mut Store)> = stores.filter(|(_, store)| store.due <= started).collect();
        let deadline = started.after(patience);
        // Places of a cluster that have no node now are not asked, and have no version.
        let (due, empty): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(_, store)| store.route.spot().is_some());
        for (at, store) in empty {
            self.versions.forget(at);
            store.put_off(started);
        }
        let asked: Vec<&Store> = due.iter().map(|(_, store)| &**store).collect();
        let answers = ask_together(&asked, self.tls.as_ref(), clock, deadline);
        let now = clock.now().monotonic;
        for ((at, store), answer) in due.into_iter().zip(answers) {
            if let Some(answer) = answer {
                self.versions.take(at, answer.version);
                store.learn(&answer);
                store.pause = PAUSE_MIN;
                store.due = now.after(INTERVAL);
            } else {
                store.put_off(now);
            }
        }
    }
}

impl Store {
    /// Learns the commands that the store has told, if it told them; else notes whether it has others than at the
    /// time when it told them.
    fn learn(&mut self, answer: &Answer) {
        let Some(commands) = &answer.commands else {
            self.commands = self.commands.filter(|count| answer.count == Some(*count));
            return;
        };
        self.commands = answer.count;
        let learned = command::learn(commands);
        if learned > 0 {
            log::line(&format!("learned {learned} commands from a store, which has more than weir knows"));
        }
    }

    /// Plans the next question to a store that did not answer, with a pause that doubles each time up to
    /// `INTERVAL`.
    fn put_off(&mut self, now: Timestamp) {
        self.due = now.after(self.pause);
        self.pause = self.pause.saturating_mul(2).min(INTERVAL);
    }
}

/// Asks stores, each from a thread of its own, so that a silent store takes no time from others. At most
/// `BACKENDS_MAX` threads.
fn ask_together(
    stores: &[&Store],
    tls: Option<&StoreTls>,
    clock: Clock,
    deadline: Timestamp,
) -> Vec<Option<Answer>> {
    thread::scope(|scope| {
        let asked: Vec<_> = stores
            .iter()
            .map(|store| {
                let thread = thread::Builder::new().name("weir-versions".to_owned()).stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, move || ask(store, tls, clock, deadline).ok().flatten())
            })
            .collect();
        asked.into_iter().map(|thread| thread.ok()?.join().ok().flatten()).collect()
    })
}

/// A store's version, the number of its commands, and the commands where they were asked for.
struct Answer {
    version: StoreVersion,
    /// Number of the store's commands (`COMMAND COUNT`); `None` if the store does not tell it.
    count: Option<i64>,
    /// Reply to `COMMAND`, if the store was asked.
    commands: Option<Vec<u8>>,
}

/// Asks a store for its version and its commands. None if its answer has no version.
fn ask(
    store: &Store,
    tls: Option<&StoreTls>,
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Option<Answer>> {
    let Some(spot) = store.route.spot() else { return Ok(None) };
    let requests: [&[&str]; 3] = [&["INFO", "server"], &["COMMAND", "COUNT"], &["COMMAND"]];
    let asked = if store.commands.is_none() { 3 } else { 2 };
    let question = Question::new(store.credentials.as_ref(), &requests[..asked], ANSWER_BYTES_MAX);
    let mut replies = asking::ask(&spot, tls, &question, clock, deadline)?.into_iter();
    let Some(version) = replies.next().and_then(|reply| version_in(&reply)) else { return Ok(None) };
    let count = replies.next().and_then(|reply| reply::integer(&reply));
    Ok(Some(Answer { version, count, commands: replies.next() }))
}

fn version_in(reply: &[u8]) -> Option<StoreVersion> {
    reply::text(reply).and_then(StoreVersion::in_info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::connect::{Place, Spot};

    #[test]
    fn who_does_not_answer_is_asked_ever_more_rarely_and_holds_nobody_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").into();
        let silent = Spot { address, host: String::new() };
        let nobody = Route::Server(Place::default());
        let silent = Route::Server(Place::new(Some(silent).into()));
        let stores = [(silent, None), (nobody, None)];
        let mut thread = VersionsThread::new(stores.into_iter(), None, Clock::start());
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let asked = thread.clock.now().monotonic;
            thread.stores.iter_mut().for_each(|store| store.due = asked);
            assert_eq!(thread.stores[0].pause, Duration::from_secs(pause));
            thread.ask_due(Duration::from_millis(1));
            assert!(thread.stores.iter().all(|store| store.due >= asked.after(Duration::from_secs(pause))));
        }
        assert_eq!(thread.versions.lowest(), StoreVersion::COMPATIBLE);
    }
}
