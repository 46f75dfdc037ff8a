//! Asks stores for their `INFO` when a client asks weir for it, on a thread of its own, so that no other
//! request waits. If a store is down or slow, the rest of weir's `INFO` comes without the stores' part,
//! within a quarter of a second.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::asking::{self, Credentials, Question};
use super::clock::Clock;
use super::connect::Route;
use super::messages::{Mailbox, ToControl, ToStoreInfo};
use super::storage_thread::ToStorage;
use super::tls::{Line, StoreTls};
use crate::control::{StoreInfo, StoresTold};
use crate::protocol::reply;
use crate::values::Timestamp;

/// The longest time that all stores together may take to reply to `INFO`; after that weir's `INFO` comes without
/// the stores' part.
const PATIENCE: Duration = Duration::from_millis(250);
/// The time for which a store that did not reply is not asked again, so that clients' `INFO` is answered at
/// once in between.
const REST: Duration = Duration::from_secs(1);
/// Maximum number of stores that are asked for `INFO` at the same time; the others wait.
const ASKED_AT_ONCE: usize = 16;
/// Maximum number of bytes of one store's reply to `INFO`; a longer reply counts as none. A store that has
/// used all commands of Redis replies with about 60 KiB.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A store, the requests that ask it for `INFO`, and the connection for them.
struct Store {
    route: Route,
    /// The requests for those sections of `INFO` that a store shows if none is named.
    default: Question,
    /// The requests for all sections of the store's `INFO`.
    everything: Question,
    asked: Mutex<Asked>,
}

/// The open connection to a store, kept from one `INFO` request to the next, and the time until which the store
/// is not asked after a failure.
#[derive(Default)]
struct Asked {
    line: Option<Line>,
    /// The time until which the store is not asked, because it did not reply; in the past for a store that may
    /// be asked.
    rests_until: Timestamp,
}

/// The state of the thread that asks stores for their `INFO`.
pub(super) struct StoreInfoThread {
    stores: Vec<Store>,
    tls: Option<StoreTls>,
    clock: Clock,
}

impl StoreInfoThread {
    /// Makes the state of the thread that asks stores for their `INFO`. `stores` has the way to connect to each
    /// store, and weir's credentials there.
    pub fn new<'a>(
        stores: impl Iterator<Item = (Route, Option<&'a Credentials>)>,
        tls: Option<StoreTls>,
        clock: Clock,
    ) -> Self {
        let stores = stores
            .map(|(route, credentials)| Store {
                route,
                default: Question::new(credentials, &[&["INFO"]], ANSWER_BYTES_MAX),
                everything: Question::new(credentials, &[&["INFO", "everything"]], ANSWER_BYTES_MAX),
                asked: Mutex::default(),
            })
            .collect();
        Self { stores, tls, clock }
    }

    /// Starts the thread that asks stores for their `INFO`, which ends with the process. It gets orders by
    /// `letters` and posts the stores' replies to `control`. Fails if the thread cannot be started.
    pub fn start(self, letters: Receiver<ToStoreInfo>, control: Mailbox<ToControl>) -> io::Result<()> {
        let run = move || {
            for letter in letters {
                control.post(ToControl::StoresTold(self.ask(&letter)));
            }
        };
        thread::Builder::new().name("weir-store-info".to_owned()).spawn(run).map(|_| ())
    }

    /// Asks the stores that the message names (all if it names none) for their `INFO`, and joins their replies
    /// into one. The result has no `INFO` unless all of them replied in time.
    fn ask(&self, letter: &ToStoreInfo) -> StoresTold {
        let is_asked = |index: &usize| letter.only.as_ref().is_none_or(|only| only.contains(index));
        let stores: Vec<&Store> = self
            .stores
            .iter()
            .enumerate()
            .filter(|(index, _)| is_asked(index))
            .map(|(_, store)| store)
            .collect();
        let deadline = self.clock.now().monotonic.after(PATIENCE);
        let ask = |store: &&Store| self.ask_store(store, letter.everything, deadline);
        let mut infos = Vec::with_capacity(stores.len());
        if let [store] = stores[..] {
            infos.extend(ask(&store));
        } else {
            asking::ask_each(("weir-store-info", ASKED_AT_ONCE), &stores, ask, |info| infos.extend(info));
        }
        let (asked, answered) = (stores.len(), infos.len());
        StoresTold { asked, answered, info: (answered == asked).then(|| StoreInfo::join(infos)).flatten() }
    }

    /// Asks one store for `INFO` over the kept connection, or over a new one. `None` if that fails, or the
    /// store failed within the last second. If the kept connection fails, a new one is tried, since the store
    /// may have closed the kept one meanwhile. `everything` asks for all sections instead of the default ones.
    fn ask_store(&self, store: &Store, everything: bool, deadline: Timestamp) -> Option<StoreInfo> {
        let mut asked = store.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.rests_until > self.clock.now().monotonic {
            return None;
        }
        let question = if everything { &store.everything } else { &store.default };
        let ask_on = |mut line: Line| {
            let replies = asking::ask_on(&mut line, question, self.clock, deadline)?;
            let info =
                replies.first().filter(|reply| reply.starts_with(b"$")).and_then(|reply| reply::text(reply));
            let info = info.and_then(StoreInfo::parse).ok_or(io::ErrorKind::InvalidData)?;
            io::Result::Ok((line, info))
        };
        let kept = asked.line.take().and_then(|line| ask_on(line).ok());
        let told = kept.map_or_else(|| self.connect(&store.route, deadline).and_then(ask_on), Ok);
        let Ok((line, info)) = told else {
            asked.rests_until = self.clock.now().monotonic.after(REST);
            return None;
        };
        asked.line = Some(line);
        Some(info)
    }

    fn connect(&self, route: &Route, deadline: Timestamp) -> io::Result<Line> {
        match route {
            Route::Server(_) => {
                let spot = route.spot().ok_or(io::ErrorKind::AddrNotAvailable)?;
                asking::connect(&spot, self.tls.as_ref(), self.clock, deadline)
            }
            Route::Embedded(storage) => {
                let (ours, theirs) = UnixStream::pair()?;
                storage.post(ToStorage::Adopt(theirs.into()));
                Ok(Line::new(ours.into(), None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::runtime::connect::{Place, Spot};

    fn route_to(listener: &TcpListener) -> Route {
        let address = listener.local_addr().expect("it is bound").into();
        Route::Server(Place::new(Some(Spot { address, host: String::new() }).into()))
    }

    fn everything() -> ToStoreInfo {
        ToStoreInfo { everything: true, only: None }
    }

    /// Accepts `connections` connections one after the other, and answers `requests` requests on each with
    /// `reply`.
    fn serve(listener: &TcpListener, connections: usize, requests: usize, reply: &[u8]) {
        for _ in 0..connections {
            let (mut connection, _) = listener.accept().expect("a connection");
            for _ in 0..requests {
                let mut bytes = [0; 256];
                let length = connection.read(&mut bytes).expect("a request");
                assert!(bytes[..length].starts_with(b"*2\r\n$4\r\nINFO\r\n"));
                connection.write_all(reply).expect("it is read");
            }
        }
    }

    #[test]
    fn a_connection_is_kept_and_a_lost_one_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let thread = StoreInfoThread::new([(route_to(&listener), None)].into_iter(), None, Clock::start());
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, 2, 2, b"$23\r\n# Stats\r\nexpired_keys:3\r\n"));
            for _ in 0..4 {
                let told = thread.ask(&everything());
                assert_eq!((told.asked, told.answered, told.info.is_some()), (1, 1, true));
            }
        });
    }

    #[test]
    fn a_store_that_does_not_answer_is_left_alone_for_a_while() {
        let (silent, talks) = (
            TcpListener::bind("127.0.0.1:0").expect("a free port"),
            TcpListener::bind("127.0.0.1:0").expect("a free port"),
        );
        let routes = [(route_to(&silent), None), (route_to(&talks), None)];
        let thread = StoreInfoThread::new(routes.into_iter(), None, Clock::start());
        thread::scope(|scope| {
            scope.spawn(|| serve(&talks, 1, 3, b"$23\r\n# Stats\r\nexpired_keys:3\r\n"));
            for _ in 0..2 {
                let told = thread.ask(&everything());
                assert_eq!((told.asked, told.answered, told.info), (2, 1, None));
            }
            assert!(thread.stores[0].asked.lock().expect("nobody panicked").rests_until > Timestamp::ZERO);
            let told = thread.ask(&ToStoreInfo { only: Some(vec![1]), ..everything() });
            assert_eq!((told.asked, told.answered, told.info.is_some()), (1, 1, true));
        });
    }

    #[test]
    fn errors_and_nonsense_are_no_answer() {
        for reply in [
            b"-NOAUTH Authentication required.\r\n".as_slice(),
            b":1\r\n",
            b"$0\r\n\r\n",
            b"HTTP/1.1 400\r\n\r\n",
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let thread =
                StoreInfoThread::new([(route_to(&listener), None)].into_iter(), None, Clock::start());
            thread::scope(|scope| {
                scope.spawn(|| serve(&listener, 1, 1, reply));
                assert_eq!(thread.ask(&everything()).info, None);
            });
        }
    }
}
