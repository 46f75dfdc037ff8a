//! Asks every store for its version and its commands, on a thread of its own: once before the first client is
//! served, then about once a minute. HELLO and INFO show clients the lowest version; the thread reports it to
//! the control executor when it changes. Commands that weir does not know are learned from the stores; all of
//! them are asked for only if their number has changed.

use std::io;
use std::thread;
use std::time::Duration;

use super::asking::{self, Credentials, Question};
use super::clock::Clock;
use super::connect::{Route, Spot};
use super::log;
use super::messages::{Mailbox, ToControl};
use super::tls::StoreTls;
use crate::control::StoreVersions;
use crate::protocol::{command, reply};
use crate::values::{StoreVersion, Timestamp};

/// The longest time that the start of the process waits for all stores' versions; those that have not told
/// theirs by then are asked again later.
const START_PATIENCE: Duration = Duration::from_millis(300);
/// The longest time that a store may take to reply with its version after the start of the process; after
/// that it counts as unanswered.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval at which a store that replies is asked for its version. A store that does not reply is asked
/// again after a second (`PAUSE_MIN`), then after pauses that double up to this interval.
const INTERVAL: Duration = Duration::from_secs(60);
/// The pause before a store that did not reply with its version is asked for the second time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Maximum number of stores that are asked for version and commands at the same time. Each reply may hold all
/// commands of a store.
const ASKED_AT_ONCE: usize = 16;
/// Maximum number of bytes of a store's replies about its version and commands; a store with longer ones
/// counts as unanswered. The commands of Redis 8 with all its modules take 400 KiB.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A store that is asked for its version and commands, and the time at which it is asked next.
struct Store {
    route: Route,
    credentials: Option<Credentials>,
    /// The number of commands that the store had when weir last learned them all from its reply to `COMMAND`.
    /// `None` if weir never did, or if the number has changed since; then the store is asked for all of them
    /// again.
    commands: Option<i64>,
    due: Timestamp,
    pause: Duration,
}

/// The state of the thread that asks every store for its version (`INFO server`), about once a minute: when
/// each store is asked next, and the version that each reported last.
pub(super) struct VersionsThread {
    stores: Vec<Store>,
    versions: StoreVersions,
    tls: Option<StoreTls>,
    clock: Clock,
}

impl VersionsThread {
    /// Makes the state of the thread that asks stores for their versions, before any store was asked. `stores`
    /// has the way to connect to each store, and weir's credentials there.
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

    /// Asks all stores once for their versions, for at most 300 ms (`START_PATIENCE`). Returns the lowest
    /// version, which clients are shown first.
    pub fn ask_first(&mut self) -> StoreVersion {
        let end = self.clock.now().monotonic.after(START_PATIENCE);
        self.ask_due(START_PATIENCE, Some(end));
        self.versions.lowest()
    }

    /// Starts the thread that asks every store for its version, about once a minute, and reports a change of the
    /// lowest one to `control`. It ends with the process. Does nothing if there is no store to ask. Fails if the
    /// thread cannot be started.
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
            self.ask_due(PATIENCE, None);
            let lowest = self.versions.lowest();
            if lowest != told {
                told = lowest;
                control.post(ToControl::StoreVersion(lowest));
            }
        }
    }

    /// Asks the stores that are due for their versions, each for at most `patience`, and plans when each is
    /// asked next. Stores whose turn has not come by the time `end` (None: there is no such time) stay due.
    fn ask_due(&mut self, patience: Duration, end: Option<Timestamp>) {
        let clock = self.clock;
        let started = clock.now().monotonic;
        let mut inquiries = Vec::new();
        for (at, store) in self.stores.iter_mut().enumerate().filter(|(_, store)| store.due <= started) {
            let Some(spot) = store.route.spot() else {
                // Places of a cluster that have no node now are not asked, and have no version.
                self.versions.forget(at);
                store.put_off(started);
                continue;
            };
            let credentials = store.credentials.clone();
            inquiries.push(Inquiry { at, spot, credentials, with_commands: store.commands.is_none() });
        }
        let Self { stores, versions, tls, .. } = self;
        let ask_in_time = |inquiry: &Inquiry| {
            let now = clock.now().monotonic;
            let deadline = end.map_or(now.after(patience), |end| end.min(now.after(patience)));
            let is_in_time = deadline > now;
            is_in_time.then(|| (inquiry.at, ask(inquiry, tls.as_ref(), clock, deadline).ok().flatten()))
        };
        asking::ask_each(("weir-versions", ASKED_AT_ONCE), &inquiries, ask_in_time, |told| {
            let Some((at, answer)) = told else { return };
            let (store, now) = (&mut stores[at], clock.now().monotonic);
            let Some(answer) = answer else { return store.put_off(now) };
            versions.take(at, answer.version);
            store.learn(&answer);
            store.pause = PAUSE_MIN;
            store.due = now.after(INTERVAL);
        });
    }
}

impl Store {
    /// Learns the store's commands, if the answer has them. Otherwise compares their number with the number
    /// when they were last learned: if it has changed, the store is asked for all its commands next time.
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

    /// Plans when a store that did not reply with its version is asked next, with a pause that doubles each
    /// time up to a minute (`INTERVAL`).
    fn put_off(&mut self, now: Timestamp) {
        self.due = now.after(self.pause);
        self.pause = self.pause.saturating_mul(2).min(INTERVAL);
    }
}

/// The requests to one store for its version and its commands.
struct Inquiry {
    /// The index of the store in the list of the thread that asks.
    at: usize,
    spot: Spot,
    credentials: Option<Credentials>,
    /// True if the store is also asked for all its commands: weir has not learned them from it yet, their number has
    /// changed since, or the store does not report their number.
    with_commands: bool,
}

/// A store's version, the number of its commands, and the commands themselves if they were asked for.
struct Answer {
    version: StoreVersion,
    /// The number of the store's commands (`COMMAND COUNT`); `None` if the store does not report it.
    count: Option<i64>,
    /// The reply to `COMMAND`; `None` if the store was not asked for its commands.
    commands: Option<Vec<u8>>,
}

/// Asks a store for its version, the number of its commands and, if wanted, the commands. `None` if its reply
/// has no version; an error if it cannot be reached or has not replied to all by `deadline`.
fn ask(
    inquiry: &Inquiry,
    tls: Option<&StoreTls>,
    clock: Clock,
    deadline: Timestamp,
) -> io::Result<Option<Answer>> {
    let requests: [&[&str]; 3] = [&["INFO", "server"], &["COMMAND", "COUNT"], &["COMMAND"]];
    let asked = if inquiry.with_commands { 3 } else { 2 };
    let question = Question::new(inquiry.credentials.as_ref(), &requests[..asked], ANSWER_BYTES_MAX);
    let mut replies = asking::ask(&inquiry.spot, tls, &question, clock, deadline)?.into_iter();
    let Some(version) = replies.next().and_then(|reply| version_in(&reply)) else { return Ok(None) };
    let count = replies.next().and_then(|reply| reply::integer(&reply));
    Ok(Some(Answer { version, count, commands: replies.next() }))
}

fn version_in(reply: &[u8]) -> Option<StoreVersion> {
    reply::text(reply).and_then(StoreVersion::in_info)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::runtime::connect::Place;

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
            thread.ask_due(Duration::from_millis(1), None);
            assert!(thread.stores.iter().all(|store| store.due >= asked.after(Duration::from_secs(pause))));
        }
        assert_eq!(thread.versions.lowest(), StoreVersion::COMPATIBLE);
    }

    #[test]
    fn many_stores_are_asked_a_few_at_a_time() {
        use std::io::{Read as _, Write as _};
        use std::sync::atomic::AtomicBool;

        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (open, most, is_over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let (open, most, is_over) = (&open, &most, &is_over);
            scope.spawn(move || {
                for connection in listener.incoming() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut connection = connection.expect("a connection");
                    most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    scope.spawn(move || {
                        let mut asked = Vec::new();
                        while !asked.ends_with(b"*1\r\n$7\r\nCOMMAND\r\n") {
                            let mut bytes = [0; 256];
                            match connection.read(&mut bytes) {
                                Ok(length) if length > 0 => asked.extend_from_slice(&bytes[..length]),
                                _ => break,
                            }
                        }
                        // Counted before the answer, because the next question may follow it at once.
                        open.fetch_sub(1, Ordering::Relaxed);
                        let _ = connection.write_all(b"$19\r\nredis_version:7.4.1\r\n:0\r\n*0\r\n");
                    });
                }
            });
            let stores = (0..200).map(|_| {
                let spot = Spot { address: address.into(), host: String::new() };
                (Route::Server(Place::new(Some(spot).into())), None)
            });
            let mut thread = VersionsThread::new(stores, None, Clock::start());
            let asked = thread.clock.now().monotonic;
            thread.ask_due(Duration::from_secs(60), None);
            assert!(thread.stores.iter().all(|store| store.due >= asked.after(INTERVAL)));
            assert_eq!(Some(thread.versions.lowest()), StoreVersion::in_info(b"redis_version:7.4.1"));
            // A store whose turn has not come is not postponed.
            thread.stores.iter_mut().for_each(|store| store.due = asked);
            thread.ask_due(Duration::from_secs(60), Some(asked));
            assert!(thread.stores.iter().all(|store| store.due == asked));
            is_over.store(true, Ordering::Relaxed);
            std::net::TcpStream::connect(address).expect("it listens");
        });
        let most = most.into_inner();
        assert!((1..=ASKED_AT_ONCE).contains(&most), "{most} at the same time");
    }
}
