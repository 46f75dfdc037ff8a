//! Asks every store for its version, on a thread of its own: once before the first client is served, and then about once
//! a minute. What HELLO and INFO tell clients goes by the answers. Control hears when that changes.

use std::io::{self, Read as _, Write as _};
use std::thread;
use std::time::Duration;

use socket2::{SockAddr, Socket, Type};

use super::clock::Clock;
use super::messages::{Mailbox, ToControl};
use crate::control::StoreVersions;
use crate::protocol::{ReplyScanner, encode, reply};
use crate::values::{StoreVersion, Timestamp};

/// How long the start waits for stores, all together.
const START_PATIENCE: Duration = Duration::from_millis(300);
/// How long stores may take later on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two questions to a store that answers; one that does not is asked sooner, and then ever more rarely.
const INTERVAL: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The shortest time that sockets are made to wait for.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// A store is asked by a thread of little weight that lasts as long as its answer.
const STACK_BYTES: usize = 128 * 1024;
/// What a store may send before it is no answer to the question.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How much is read at once.
const CHUNK_BYTES: usize = 4096;

/// One store, and when it is asked next.
struct Store {
    address: SockAddr,
    question: Question,
    due: Timestamp,
    pause: Duration,
}

/// What is sent, and how many replies stand before the one that counts.
struct Question {
    bytes: Vec<u8>,
    replies_before: usize,
}

impl Question {
    fn new(credentials: Option<&(Option<String>, String)>) -> Self {
        let mut bytes = Vec::new();
        if let Some((user, password)) = credentials {
            let words = ["AUTH"].into_iter().chain(user.as_deref()).chain([password.as_str()]);
            let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
            encode::request(&mut bytes, words.into_iter());
        }
        encode::request(&mut bytes, [b"INFO".as_slice(), b"server"].into_iter());
        Self { bytes, replies_before: usize::from(credentials.is_some()) }
    }
}

/// All stores, and what is known of them.
pub(super) struct VersionsThread {
    stores: Vec<Store>,
    versions: StoreVersions,
    clock: Clock,
}

impl VersionsThread {
    /// Nothing has been asked yet. Each store has its address and weir's credentials there.
    pub fn new<'a>(
        stores: impl Iterator<Item = (SockAddr, Option<&'a (Option<String>, String)>)>,
        clock: Clock,
    ) -> Self {
        let stores: Vec<Store> = stores
            .map(|(address, credentials)| Store {
                address,
                question: Question::new(credentials),
                due: Timestamp::ZERO,
                pause: PAUSE_MIN,
            })
            .collect();
        Self { versions: StoreVersions::unknown(stores.len()), stores, clock }
    }

    /// Asks all of them once, and waits a little for their answers: what clients are told first.
    pub fn ask_first(&mut self) -> StoreVersion {
        self.ask_due(START_PATIENCE);
        self.versions.lowest()
    }

    /// Goes on asking. The thread ends with the process.
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

    /// Asks those whose time has come.
    fn ask_due(&mut self, patience: Duration) {
        let clock = self.clock;
        let started = clock.now().monotonic;
        let stores = self.stores.iter_mut().enumerate();
        let due: Vec<(usize, &mut Store)> = stores.filter(|(_, store)| store.due <= started).collect();
        let deadline = started.after(patience);
        let asked: Vec<&Store> = due.iter().map(|(_, store)| &**store).collect();
        let answers = ask_together(&asked, clock, deadline);
        let now = clock.now().monotonic;
        for ((at, store), version) in due.into_iter().zip(answers) {
            if let Some(version) = version {
                self.versions.take(at, version);
                store.pause = PAUSE_MIN;
                store.due = now.after(INTERVAL);
            } else {
                store.due = now.after(store.pause);
                store.pause = store.pause.saturating_mul(2).min(INTERVAL);
            }
        }
    }
}

/// One thread for each of them, so that a store that is silent takes no time from others. They are `BACKENDS_MAX` at most.
fn ask_together(stores: &[&Store], clock: Clock, deadline: Timestamp) -> Vec<Option<StoreVersion>> {
    thread::scope(|scope| {
        let asked: Vec<_> = stores
            .iter()
            .map(|store| {
                let thread = thread::Builder::new().name("weir-versions".to_owned()).stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, move || ask(store, clock, deadline).ok().flatten())
            })
            .collect();
        asked.into_iter().map(|thread| thread.ok()?.join().ok().flatten()).collect()
    })
}

/// The version that a store tells, if it is one.
fn ask(store: &Store, clock: Clock, deadline: Timestamp) -> io::Result<Option<StoreVersion>> {
    let left = || match deadline.since(clock.now().monotonic) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        // What is rounded down to nothing would mean to wait for ever.
        left => Ok(left.max(TIMEOUT_MIN)),
    };
    let mut socket = Socket::new(store.address.domain(), Type::STREAM.cloexec(), None)?;
    socket.connect_timeout(&store.address, left()?)?;
    socket.set_write_timeout(Some(left()?))?;
    socket.write_all(&store.question.bytes)?;
    let mut answer = Answer::new(store.question.replies_before);
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        socket.set_read_timeout(Some(left()?))?;
        let length = socket.read(&mut chunk)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(reply) = answer.take(&chunk[..length])? {
            return Ok(version_in(reply));
        }
    }
}

fn version_in(reply: &[u8]) -> Option<StoreVersion> {
    reply::text(reply).and_then(StoreVersion::in_info)
}

/// Replies as they come in.
struct Answer {
    scanner: ReplyScanner,
    /// Of the reply that comes in.
    bytes: Vec<u8>,
    taken: usize,
    replies_before: usize,
}

impl Answer {
    fn new(replies_before: usize) -> Self {
        Self { scanner: ReplyScanner::default(), bytes: Vec::new(), taken: 0, replies_before }
    }

    /// More bytes; the reply that counts, once it is whole.
    fn take(&mut self, mut chunk: &[u8]) -> io::Result<Option<&[u8]>> {
        self.taken += chunk.len();
        if self.taken > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        while !chunk.is_empty() {
            let scanned = self.scanner.scan(chunk).map_err(|_| io::ErrorKind::InvalidData)?;
            let (part, rest) = chunk.split_at(scanned.map_or(chunk.len(), |scanned| scanned.end));
            self.bytes.extend_from_slice(part);
            chunk = rest;
            if scanned.is_none() {
                continue;
            }
            if self.replies_before == 0 {
                return Ok(Some(&self.bytes));
            }
            self.replies_before -= 1;
            self.bytes.clear();
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &[u8] = b"$35\r\n# Server\r\nredis_version:7.0.15\r\nx:1\r\n";

    /// What comes of bytes that arrive in pieces of this length.
    fn read(replies_before: usize, bytes: &[u8], piece: usize) -> Read {
        let mut answer = Answer::new(replies_before);
        for part in bytes.chunks(piece) {
            match answer.take(part) {
                Ok(None) => {}
                Ok(Some(reply)) => return Read::Whole(version_in(reply)),
                Err(_) => return Read::Broken,
            }
        }
        Read::GoesOn
    }

    #[derive(Debug, PartialEq)]
    enum Read {
        Whole(Option<StoreVersion>),
        GoesOn,
        Broken,
    }

    #[test]
    fn an_answer_is_read_in_whatever_pieces_it_comes() {
        let known = StoreVersion::parse(b"7.0.15");
        let with_login = [b"+OK\r\n", INFO].concat();
        for piece in 1..=with_login.len() {
            assert_eq!(read(0, INFO, piece), Read::Whole(known));
            assert_eq!(read(1, &with_login, piece), Read::Whole(known));
        }
        assert_eq!(read(0, &INFO[..INFO.len() - 1], 7), Read::GoesOn);
    }

    #[test]
    fn what_is_no_answer_ends_the_question() {
        assert_eq!(read(0, b"-NOAUTH Authentication required.\r\n", 100), Read::Whole(None));
        assert_eq!(read(1, b"-WRONGPASS no\r\n-NOAUTH no\r\n", 3), Read::Whole(None));
        assert_eq!(read(0, b"*1\r\n*0\r\n", 100), Read::Whole(None));
        assert_eq!(read(0, b"HTTP/1.1 400 Bad Request\r\n", 5), Read::Broken);
        let endless = [b"$100000000\r\n".as_slice(), &vec![b'x'; ANSWER_BYTES_MAX]].concat();
        assert_eq!(read(0, &endless, CHUNK_BYTES), Read::Broken, "no more is held than the bound");
    }

    #[test]
    fn credentials_go_before_the_question() {
        let question = |credentials: Option<(Option<String>, String)>| {
            let question = Question::new(credentials.as_ref());
            (String::from_utf8(question.bytes).expect("text"), question.replies_before)
        };
        let info = "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n";
        assert_eq!(question(None), (info.to_owned(), 0));
        let password = question(Some((None, "p".to_owned())));
        assert_eq!(password, (format!("*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n{info}"), 1));
        let user = question(Some((Some("u".to_owned()), "p".to_owned())));
        assert_eq!(user, (format!("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n{info}"), 1));
    }

    #[test]
    fn who_does_not_answer_is_asked_ever_more_rarely_and_holds_nobody_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let silent: SockAddr = listener.local_addr().expect("it is bound").into();
        let mut thread = VersionsThread::new([(silent, None)].into_iter(), Clock::start());
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let asked = thread.clock.now().monotonic;
            thread.stores[0].due = asked;
            assert_eq!(thread.stores[0].pause, Duration::from_secs(pause));
            thread.ask_due(Duration::from_millis(1));
            assert!(thread.stores[0].due >= asked.after(Duration::from_secs(pause)));
        }
        assert_eq!(thread.versions.lowest(), StoreVersion::COMPATIBLE);
    }
}
