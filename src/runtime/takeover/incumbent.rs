//! The process that is taken over from. A plain thread waits for a successor process, gives it the listening
//! sockets, and then the clients.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use super::successor::Predecessor;
use super::wire::{Manager, Message, Offer, PARTS_MAX, PROTOCOL, Peer, SOCKETS_MAX, has_ended};
use crate::config::{QuotaText, Quotas};
use crate::control::{InheritedPart, QuotaSource};
use crate::runtime::clock::Clock;
use crate::runtime::executor::files_too_few;
use crate::runtime::messages::{Mailbox, Moved, QuotasRead, Takeover, ToControl, ToShard, ToTakeover};
use crate::runtime::notify::Notify;
use crate::runtime::socket_file::SocketFile;
use crate::shard::{ClientsAsked, Pause};
use crate::values::limits::QUOTA_FILE_BYTES_MAX;
use crate::values::{BucketId, Part, Timestamp};

/// The longest time from a successor's connecting until it reports that it is ready to serve; it reads quotas
/// and asks stores meanwhile. After that the takeover is given up.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The longest time that this process, when it takes over from another, waits for the previous process to stop
/// accepting; after that time this process accepts even so.
const DEAF_PATIENCE: Duration = Duration::from_secs(5);

/// The name that errors give to the text of quotas that were posted to the previous process.
const POSTED_BEFORE: &str = "posted quotas of the process before";

/// The sockets and channels of the thread that waits for a successor process, and hands sockets and clients
/// over to it.
pub struct Incumbent {
    pub path: PathBuf,
    /// The Unix socket to which a successor process connects.
    pub listener: OwnedFd,
    /// The file of the Unix socket to which a successor connects; none if the file is gone already.
    pub file: Option<SocketFile>,
    /// Duplicates of the listening sockets for clients and administrators, to be given to a successor.
    pub offers: Vec<Offer>,
    pub manager: Manager,
    pub control: Mailbox<ToControl>,
    pub shards: Vec<Mailbox<ToShard>>,
    pub letters: Receiver<ToTakeover>,
    pub bell: OwnedFd,
    /// True while the socket files are this process's to remove: not before it has taken over from another
    /// process, and not once a successor process has the listening sockets.
    pub owns_files: Arc<AtomicBool>,
    /// The connection to the service manager (systemd), which is told that the successor is the main process of
    /// the service from then on.
    pub notify: Notify,
    pub clock: Clock,
}

/// A successor process that has received the listening sockets and has not reported yet that it is ready.
struct Suitor {
    peer: Peer,
    version: String,
    is_in_fleet: bool,
    deadline: Timestamp,
}

/// The events that a wait has ended with: another process has connected to take over (`is_called`), and the
/// other process of a takeover in progress has sent a message (`has_answered`).
struct Events {
    is_called: bool,
    has_answered: bool,
}

impl Incumbent {
    /// Starts the thread for takeovers. It first waits on the returned channel for the process that this one
    /// takes over from, and receives that process's clients; `None` means that there is no such process. Then
    /// it waits for a successor. If the channel is closed without a message, the thread ends at once. The
    /// returned receiver is disconnected once the thread has ended, and has decided which process removes the
    /// socket files.
    pub fn start(self) -> io::Result<(Sender<Option<Predecessor>>, Receiver<()>)> {
        Socket::from(self.listener.try_clone()?).set_nonblocking(true)?;
        let (begin, begins) = crossbeam_channel::bounded::<Option<Predecessor>>(1);
        let (running, ended) = crossbeam_channel::bounded(0);
        let run = move || {
            let _running = running;
            let Ok(predecessor) = begins.recv() else { return };
            if let Some(predecessor) = predecessor
                && self.take_clients(&predecessor.peer).is_err()
            {
                return self.withdraw(None);
            }
            self.run();
        };
        std::thread::Builder::new().name("weir-takeover".to_owned()).spawn(run).map(|_| (begin, ended))
    }

    /// Receives the clients of the previous process (`before`) until it has no more, and distributes them
    /// over the shards. Lets shards accept clients once that process has stopped. Successors that connect
    /// meanwhile are refused. An error means that this process is to end, and the thread with it.
    fn take_clients(&self, before: &Peer) -> Result<(), ()> {
        let (mut clients, mut others, mut lost) = (0, 0, 0_u64);
        let mut waiting: BTreeMap<Option<String>, usize> = BTreeMap::new();
        let mut quotas = Vec::new();
        let mut deadline = Some(self.clock.now().monotonic.after(DEAF_PATIENCE));
        let why = loop {
            let events = self.wait(Some(before.as_fd()), deadline)?;
            if deadline.is_some_and(|deadline| deadline <= self.clock.now().monotonic) {
                self.listen(&mut deadline);
            }
            if events.is_called {
                self.refuse_call("it is still taking over from another process");
            }
            if !events.has_answered {
                continue;
            }
            match before.receive() {
                Ok(received) => match received.message {
                    Message::Client { session } => {
                        let Some(socket) = received.sockets.into_iter().next() else {
                            lost += 1;
                            continue;
                        };
                        let mut session = session;
                        session.held = received.rest;
                        // Each client that waits needs one of its shard's private links, of which a tenant
                        // has only a part. So those of each tenant take turns of their own.
                        let turn = if session.waits {
                            let tenants = waiting.len();
                            waiting.entry(session.tenant().map(str::to_owned)).or_insert(tenants)
                        } else {
                            &mut others
                        };
                        let shard = &self.shards[*turn % self.shards.len()];
                        *turn += 1;
                        shard.post(ToShard::Adopt(Box::new(Moved { socket, session })));
                        clients += 1;
                    }
                    Message::Parts { parts } => {
                        let part = |(key, bucket, part)| InheritedPart {
                            key,
                            bucket: BucketId(bucket),
                            part: Part::of_billionths(part),
                        };
                        let parts = parts.into_iter().map(part).collect();
                        self.control.post(ToControl::Takeover(Takeover::Parts(parts)));
                    }
                    Message::Quotas { file, is_last } => {
                        if quotas.len() + received.rest.len() > QUOTA_FILE_BYTES_MAX as usize {
                            break format!("; then it sent quotas of more than {QUOTA_FILE_BYTES_MAX} bytes");
                        }
                        quotas.extend(received.rest);
                        if is_last {
                            self.take_quotas(std::mem::take(&mut quotas), file);
                        }
                    }
                    Message::Pause { tenant, extent, left_ms } => {
                        let left = Duration::from_millis(left_ms);
                        let now = self.clock.now().monotonic;
                        self.pause(ClientsAsked::Pause(Pause::taken_over(tenant, left, extent, now)));
                    }
                    Message::Unpause { tenant } => self.pause(ClientsAsked::Unpause(tenant)),
                    Message::Deaf => self.listen(&mut deadline),
                    Message::Done => break String::new(),
                    _ => {}
                },
                Err(error) if has_ended(&error) => {
                    break "; it ended before it had handed over all clients".to_owned();
                }
                Err(error) => break format!("; then its message was not valid: {error}"),
            }
        };
        self.listen(&mut deadline);
        self.line(format!("{clients} clients of process {} go on here{why}", before.pid));
        if lost > 0 {
            self.line(format!(
                "{lost} more clients could not be taken over and are closed, because {}",
                files_too_few()
            ));
        }
        Ok(())
    }

    /// Has quotas put in force that were posted to the previous process, and waits for that: clients that are
    /// received later belong to tenants of these quotas. `file` is the digest of the quota file that the quotas
    /// have replaced there.
    fn take_quotas(&self, text: Vec<u8>, file: Option<String>) {
        let result = Quotas::parse_bytes(POSTED_BEFORE, &text);
        let posted = String::from_utf8(text).ok().map(QuotaText::of_another_process);
        let read = Box::new(QuotasRead { source: QuotaSource::Takeover, ticket: None, result, posted });
        let (taken, is_taken) = crossbeam_channel::bounded(0);
        self.control.post(ToControl::Takeover(Takeover::Quotas { read, file, taken }));
        // Nothing is sent: the other end is dropped then, or at the end of the control executor.
        let _ = is_taken.recv();
    }

    /// Has all shards carry out a `CLIENT PAUSE` or `CLIENT UNPAUSE` of the previous process. Shards get it before the
    /// clients that come from there later.
    fn pause(&self, asked: ClientsAsked) {
        let asked = Arc::new(asked);
        self.shards.iter().for_each(|shard| shard.post(ToShard::Pause(Arc::clone(&asked))));
        self.control.post(ToControl::Takeover(Takeover::Pause(asked)));
    }

    /// Lets shards and admin port accept clients, since the previous process has stopped accepting, or this
    /// process has waited for that for 5 s (`DEAF_PATIENCE`). `awaited` is the time until which this process
    /// waits for the previous one, and becomes None. Does nothing if `awaited` is None, since clients are
    /// accepted already.
    fn listen(&self, awaited: &mut Option<Timestamp>) {
        if awaited.take().is_some() {
            self.shards.iter().for_each(|shard| shard.post(ToShard::Listen));
            self.control.post(ToControl::Takeover(Takeover::Listen));
        }
    }

    /// Waits for successor processes and gives them the listening sockets, until one takes over or this
    /// process ends.
    fn run(self) {
        let mut suitor: Option<Suitor> = None;
        loop {
            let waits = suitor.as_ref().map(|suitor| (suitor.peer.as_fd(), suitor.deadline));
            let (peer, deadline) = waits.unzip();
            let Ok(events) = self.wait(peer, deadline) else { return self.withdraw(suitor.as_ref()) };
            if events.is_called {
                match &suitor {
                    Some(other) => {
                        self.refuse_call(&format!("process {} is already taking over", other.peer.pid));
                    }
                    None => suitor = self.hear(),
                }
            }
            let Some(near) = suitor.take_if(|suitor| events.has_answered || suitor.is_late(self.clock))
            else {
                continue;
            };
            match near.conclude(&events) {
                Ok(()) => return self.succeed(&near),
                Err(why) => self.give_up(&near.peer, &why),
            }
        }
    }

    /// Hands over to a successor process: closes this thread's copies of the listening sockets, then sends
    /// each client that the shards give up, until the control executor reports that there are no more.
    fn succeed(self, successor: &Suitor) {
        let pid = successor.peer.pid;
        self.owns_files.store(false, Ordering::Release);
        self.notify.main_process(pid);
        let Self { offers, listener, control, letters, clock, .. } = self;
        // The successor has duplicates of these sockets.
        drop((offers, listener));
        control.post(ToControl::Takeover(Takeover::Ready { pid, version: successor.version.clone() }));
        let (mut clients, mut lost) = (0, None);
        while let Ok(letter) = letters.recv() {
            match letter {
                ToTakeover::Moved(moved) => {
                    let Moved { socket, session } = *moved;
                    let held = session.held.clone();
                    match successor.peer.send(&Message::Client { session }, &held, &[socket.as_fd()]) {
                        Ok(()) => clients += 1,
                        Err(error) => lost = Some(error),
                    }
                }
                ToTakeover::Quotas(quotas) => {
                    if let Err(error) = successor.peer.send_quotas(&quotas) {
                        let line = format!("process {pid} did not take the posted quotas: {error}");
                        control.post(ToControl::Takeover(Takeover::Line(line)));
                    }
                }
                ToTakeover::Pause(asked) => {
                    let message = Message::of_pause(&asked, clock.now().monotonic);
                    message.iter().for_each(|message| drop(successor.peer.tell(message)));
                }
                ToTakeover::Parts(parts) if successor.is_in_fleet => {
                    for some in parts.chunks(PARTS_MAX) {
                        let told = |of: &InheritedPart| (of.key.clone(), of.bucket.0, of.part.billionths());
                        let parts = some.iter().map(told).collect();
                        let _ = successor.peer.tell(&Message::Parts { parts });
                    }
                }
                ToTakeover::Parts(_) => {}
                ToTakeover::Deaf => {
                    let _ = successor.peer.tell(&Message::Deaf);
                }
                ToTakeover::AllMoved => {
                    let _ = successor.peer.tell(&Message::Done);
                    if let Some(error) = lost {
                        let line = format!("process {pid} did not take all clients: {error}");
                        control.post(ToControl::Takeover(Takeover::Line(line)));
                    }
                    return control.post(ToControl::Takeover(Takeover::Done { clients }));
                }
                ToTakeover::Withdraw => return,
            }
        }
    }

    /// Accepts the connection of a process that wants to take over, checks the version of its takeover protocol
    /// and gives it the listening sockets. `None` if it was refused.
    fn hear(&self) -> Option<Suitor> {
        let peer = self.accept()?;
        let heard = peer.receive().map_err(|error| format!("sent a message that is not valid: {error}")).and_then(|received| {
            match received.message {
                Message::Hello { protocol: PROTOCOL, version, is_in_fleet } => Ok((version, is_in_fleet)),
                Message::Hello { protocol, version, .. } => Err(format!(
                    "is version {version}, which speaks {protocol} here, and this is {PROTOCOL}: end one, start the other"
                )),
                other => Err(format!("sent an unexpected message ({other:?})")),
            }
        });
        let given = heard.and_then(|hello| {
            let is_near = Path::new("/proc").join(peer.pid.to_string()).exists();
            if is_near && ends_all(std::process::id()) {
                return Err(format!("cannot take over: {ENDS_ALL}"));
            }
            self.give_sockets(&peer)
                .map(|()| hello)
                .map_err(|error| format!("did not take the sockets: {error}"))
        });
        match given {
            Ok((version, is_in_fleet)) => {
                self.line(format!("process {} (version {version}) is about to take over", peer.pid));
                let deadline = self.clock.now().monotonic.after(START_PATIENCE);
                Some(Suitor { peer, version, is_in_fleet, deadline })
            }
            Err(why) => {
                self.give_up(&peer, &why);
                None
            }
        }
    }

    /// Informs a process that it does not take over and must not serve. `why` is the reason, as a sentence
    /// about that process without its subject.
    fn give_up(&self, peer: &Peer, why: &str) {
        self.line(format!("process {} {why}; nothing has changed", peer.pid));
        let _ = peer.tell(&Message::Refused { pid: own_pid(), why: format!("it {why}") });
    }

    fn give_sockets(&self, peer: &Peer) -> io::Result<()> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        peer.tell(&Message::Welcome { pid: own_pid(), version, manager: self.manager.clone() })?;
        for Offer { entrance, address, sockets } in &self.offers {
            let message = Message::Listener { entrance: (*entrance).to_owned(), address: address.clone() };
            for some in sockets.chunks(SOCKETS_MAX) {
                let some: Vec<BorrowedFd<'_>> = some.iter().map(|socket| socket.as_fd()).collect();
                peer.send(&message, &[], &some)?;
            }
        }
        let own =
            Message::Listener { entrance: "takeover".to_owned(), address: self.path.display().to_string() };
        peer.send(&own, &[], &[self.listener.as_fd()])?;
        peer.tell(&Message::Started)
    }

    fn refuse_call(&self, why: &str) {
        if let Some(peer) = self.accept() {
            self.line(format!("process {} does not take over: {why}", peer.pid));
            // Closing the socket with an unread message in it would discard the reply.
            peer.discard_one();
            let _ = peer.tell(&Message::Refused { pid: own_pid(), why: why.to_owned() });
        }
    }

    fn accept(&self) -> Option<Peer> {
        // The caller may have left already.
        let socket = rustix::net::accept_with(&self.listener, rustix::net::SocketFlags::CLOEXEC).ok()?;
        match Peer::new(socket.into()) {
            Ok(peer) => Some(peer),
            Err(why) => {
                self.line(why);
                None
            }
        }
    }

    /// Sleeps until a process connects, the other process sends a message, or the deadline has passed. An
    /// error means that this process is to end, and the thread with it. `peer` is the connection to the other
    /// process of the takeover, if there is one.
    fn wait(&self, peer: Option<BorrowedFd<'_>>, deadline: Option<Timestamp>) -> Result<Events, ()> {
        let now = self.clock.now().monotonic;
        let pause = deadline.map(|deadline| deadline.since(now) + Duration::from_millis(1));
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut handles =
            vec![PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        handles.extend(peer.iter().map(|peer| PollFd::new(peer, PollFlags::IN)));
        // An interrupted poll reports no event, and the caller polls again.
        let _ = poll(&mut handles, pause.as_ref());
        let happened = |at: usize| handles.get(at).is_some_and(|handle| !handle.revents().is_empty());
        let events = Events { is_called: happened(1), has_answered: happened(2) };
        // Before there is a successor, `Withdraw` is the only message.
        if happened(0) && matches!(self.letters.try_recv(), Ok(ToTakeover::Withdraw)) {
            return Err(());
        }
        Ok(events)
    }

    /// Ends the thread, because this process ends, and removes the socket file, so that no process can take
    /// over from this one any more. If a process (`suitor`) has received the listening sockets already, the
    /// sockets, their files and the service are left to it: it serves as soon as it is ready.
    fn withdraw(self, suitor: Option<&Suitor>) {
        if let Some(suitor) = suitor {
            self.owns_files.store(false, Ordering::Release);
            return self.notify.main_process(suitor.peer.pid);
        }
        self.notify.stopping();
        if let Some(file) = &self.file {
            file.remove();
        }
    }

    fn line(&self, text: String) {
        self.control.post(ToControl::Takeover(Takeover::Line(text)));
    }
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

/// The reason why no successor may take over from this process: all processes of its container would end with
/// it.
const ENDS_ALL: &str = "this is process 1 of its container, with which all others end; \
                        to replace it under load, start weir under a supervisor that outlives it, such \
                        as s6 (`docker run --init` does not, as it ends with its first child)";

/// True if the end of the process with this number ends all other processes of its PID namespace (a
/// container), as that of process 1 does.
const fn ends_all(pid: u32) -> bool {
    pid == 1
}

impl Suitor {
    /// Receives the successor's report that it is ready to serve, after a message of it has come (`events`)
    /// or its time is over. The error says why it is not ready.
    fn conclude(&self, events: &Events) -> Result<(), String> {
        if !events.has_answered {
            // A report that comes later than this fails, so that both processes know which of them serves. A
            // report that has just come is received below.
            self.peer.stop_hearing();
        }
        match self.peer.receive() {
            Ok(received) if received.message == Message::Ready => Ok(()),
            Ok(received) => Err(format!("sent an unexpected message ({:?})", received.message)),
            Err(error) if has_ended(&error) && events.has_answered => {
                Err("ended before it was ready".to_owned())
            }
            Err(error) if has_ended(&error) => Err(format!("was not ready within {START_PATIENCE:?}")),
            Err(error) => Err(format!("sent a message that is not valid: {error}")),
        }
    }

    fn is_late(&self, clock: Clock) -> bool {
        self.deadline <= clock.now().monotonic
    }
}

/// Starts this process's own program with the same arguments, as a successor that takes over from it. A thread
/// waits for the child process to end, and logs its status. Only logs why not if this process is process 1 of
/// its container, with which a successor would end.
pub fn start_successor(control: Mailbox<ToControl>) {
    if ends_all(std::process::id()) {
        let line = format!("SIGUSR2: no successor is started: {ENDS_ALL}");
        return control.post(ToControl::Takeover(Takeover::Line(line)));
    }
    let run = move || {
        let mut words = std::env::args_os();
        let status = words
            .next()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
            .and_then(|program| Command::new(program).args(words).status());
        let why = match status.map(|status: ExitStatus| status.to_string()) {
            Ok(status) => format!("the successor ended: {status}"),
            Err(error) => format!("cannot start a successor: {error}"),
        };
        control.post(ToControl::Takeover(Takeover::Line(why)));
    };
    // If no thread can be started, nothing else would work either.
    let _ = std::thread::Builder::new().name("weir-successor".to_owned()).spawn(run);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::super::wire;
    use super::*;

    /// Makes an incumbent (process that waits to be taken over from) whose takeover socket is at this path,
    /// with the receiver of its messages to control and the mailbox in which it is told to withdraw.
    fn incumbent(path: &Path) -> (Incumbent, Receiver<ToControl>, Mailbox<ToTakeover>) {
        let (control, heard, _) = Mailbox::for_executor().expect("an eventfd");
        let (takeover, letters, bell) = Mailbox::for_executor().expect("an eventfd");
        let listener = wire::bind(path).expect("a new path");
        let incumbent = Incumbent {
            path: path.to_owned(),
            listener,
            file: SocketFile::at(path),
            offers: Vec::new(),
            manager: Manager::default(),
            control,
            shards: Vec::new(),
            letters,
            bell,
            owns_files: Arc::new(AtomicBool::new(true)),
            notify: Notify::default(),
            clock: Clock::start(),
        };
        (incumbent, heard, takeover)
    }

    fn free_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("weir-incumbent-{name}-{}", std::process::id()))
    }

    fn suitor(peer: Peer) -> Suitor {
        Suitor { peer, version: String::new(), is_in_fleet: false, deadline: Timestamp::ZERO }
    }

    const LATE: Events = Events { is_called: false, has_answered: false };

    #[test]
    fn a_late_successor_is_told_that_it_must_not_serve() {
        let path = free_path("late");
        let (incumbent, heard, _takeover) = incumbent(&path);
        let (near, far) = wire::pair();
        let late = suitor(near);
        let why = late.conclude(&LATE).expect_err("it said nothing");
        assert_eq!(why, "was not ready within 60s");
        incumbent.give_up(&late.peer, &why);
        assert!(has_ended(&far.tell(&Message::Ready).expect_err("it is too late")));
        drop(late);
        let told = far.receive().expect("a message").message;
        assert_eq!(told, Message::Refused { pid: own_pid(), why: format!("it {why}") });
        assert!(matches!(heard.try_recv(), Ok(ToControl::Takeover(Takeover::Line(_)))));
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn a_successor_that_is_ready_at_the_last_moment_is_heard() {
        let (near, far) = wire::pair();
        far.tell(&Message::Ready).expect("room");
        suitor(near).conclude(&LATE).expect("the report came in time");
    }

    #[test]
    fn who_withdraws_leaves_the_files_to_a_process_that_has_the_sockets() {
        let path = free_path("withdraw");
        let (incumbent, ..) = incumbent(&path);
        let owns_files = Arc::clone(&incumbent.owns_files);
        let (near, _far) = wire::pair();
        incumbent.withdraw(Some(&suitor(near)));
        assert!(path.exists() && !owns_files.load(Ordering::Acquire));
        std::fs::remove_file(&path).expect("it is there");

        let (incumbent, ..) = self::incumbent(&path);
        incumbent.withdraw(None);
        assert!(!path.exists());
    }

    #[test]
    fn a_service_manager_learns_which_process_goes_on_with_the_service() {
        let (path, manager) = (free_path("main"), free_path("manager"));
        let told = UnixDatagram::bind(&manager).expect("a new path");
        let address = manager.to_str().map(str::to_owned);
        let notify = Notify::of(&Manager { socket: address, watchdog_micros: None }).expect("it listens");
        let (near, _far) = wire::pair();
        let suitor = suitor(near);
        let successor = format!("MAINPID={}", own_pid());
        for (suitor, expected) in [(Some(&suitor), successor.as_str()), (None, "STOPPING=1")] {
            let (mut incumbent, ..) = incumbent(&path);
            incumbent.notify = notify.clone();
            incumbent.withdraw(suitor);
            let mut word = [0; 64];
            let length = told.recv(&mut word).expect("a word");
            assert_eq!(String::from_utf8_lossy(&word[..length]), expected);
        }
        std::fs::remove_file(manager).expect("it is there");
    }

    #[test]
    fn the_end_of_the_thread_is_known_once_its_file_is_gone() {
        let path = free_path("end");
        let (incumbent, _heard, takeover) = incumbent(&path);
        let (begin, ended) = incumbent.start().expect("a thread");
        begin.send(None).expect("it waits for this");
        assert!(ended.try_recv().is_err_and(|error| error.is_empty()));
        takeover.post(ToTakeover::Withdraw);
        ended.recv().expect_err("nothing is ever sent");
        assert!(!path.exists());
    }

    #[test]
    fn who_is_told_to_end_while_clients_come_withdraws() {
        let path = free_path("told");
        let (incumbent, _heard, takeover) = incumbent(&path);
        let (near, _far) = wire::pair();
        takeover.post(ToTakeover::Withdraw);
        incumbent.take_clients(&near).expect_err("the thread is to end");
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn clients_that_arrive_without_their_sockets_are_counted() {
        let path = free_path("lost");
        let (mut incumbent, heard, _takeover) = incumbent(&path);
        let (shard, adopted, _) = Mailbox::for_executor().expect("an eventfd");
        incumbent.shards.push(shard);
        let (near, far) = wire::pair();
        let client = || Message::Client { session: crate::shard::Session::default() };
        let (socket, _client) = UnixStream::pair().expect("a pair");
        far.send(&client(), &[], &[socket.as_fd()]).expect("room");
        far.tell(&client()).expect("room");
        far.tell(&Message::Done).expect("room");
        incumbent.take_clients(&near).expect("nobody is told to end");
        assert!(matches!(adopted.try_recv(), Ok(ToShard::Adopt(_))));
        let lines: Vec<String> = heard
            .try_iter()
            .filter_map(|letter| match letter {
                ToControl::Takeover(Takeover::Line(line)) => Some(line),
                _ => None,
            })
            .collect();
        assert!(lines[0].starts_with("1 clients of process"), "{lines:?}");
        assert!(lines[1].starts_with("1 more clients could not be taken over"), "{lines:?}");
        std::fs::remove_file(path).expect("it is there");
    }

    /// Lets a process take over from a previous process that sends these messages, each with the bytes that
    /// follow it. Returns the messages to its only shard, and those to control about pauses and quotas, in
    /// order.
    fn taken(name: &str, sent: Vec<(Message, Vec<u8>)>) -> (Vec<ToShard>, Vec<Takeover>) {
        let path = free_path(name);
        let (mut incumbent, heard, _takeover) = incumbent(&path);
        let (shard, letters, _) = Mailbox::for_executor().expect("an eventfd");
        incumbent.shards.push(shard);
        let (near, far) = wire::pair();
        let sender = std::thread::spawn(move || {
            sent.iter().for_each(|(message, rest)| far.send(message, rest, &[]).expect("room"));
        });
        let taking = std::thread::spawn(move || {
            incumbent.take_clients(&near).expect("nobody is told to end");
        });
        let mut told = Vec::new();
        while let Ok(ToControl::Takeover(letter)) = heard.recv() {
            match letter {
                // Control puts them in force, and only then the thread goes on.
                Takeover::Quotas { read, file, .. } => {
                    assert!(letters.is_empty(), "clients come after the quotas");
                    let (taken, _) = crossbeam_channel::bounded(0);
                    told.push(Takeover::Quotas { read, file, taken });
                }
                Takeover::Pause(_) => told.push(letter),
                _ => {}
            }
        }
        taking.join().expect("no panic");
        sender.join().expect("no panic");
        std::fs::remove_file(path).expect("it is there");
        (letters.try_iter().collect(), told)
    }

    #[test]
    fn pauses_and_posted_quotas_are_in_force_before_clients_come() {
        let quotas = |is_last| Message::Quotas { file: Some("ab".to_owned()), is_last };
        let pause = Message::Pause { tenant: None, extent: crate::shard::Paused::Writes, left_ms: 9_000 };
        let (shard, control) = taken(
            "quotas",
            vec![
                (quotas(false), b"[default]\n".to_vec()),
                (quotas(true), b"keys = ['a:']\n".to_vec()),
                (pause, Vec::new()),
                (Message::Deaf, Vec::new()),
                (Message::Unpause { tenant: None }, Vec::new()),
                (Message::Done, Vec::new()),
            ],
        );
        let asked = |letter: &ToShard| match letter {
            ToShard::Pause(asked) => Some((**asked).clone()),
            _ => None,
        };
        let pauses: Vec<_> = shard.iter().map(asked).collect();
        assert!(
            matches!(&pauses[..], [Some(ClientsAsked::Pause(_)), None, Some(ClientsAsked::Unpause(None))]),
            "{shard:?}"
        );
        assert!(matches!(shard[1], ToShard::Listen));
        let [Takeover::Quotas { read, file, .. }, Takeover::Pause(_), Takeover::Pause(_)] = &control[..]
        else {
            panic!("{control:?}")
        };
        let tenants = read.result.as_ref().expect("valid").tenants().map(|(_, tenant)| tenant.keys.clone());
        assert_eq!(tenants.collect::<Vec<_>>(), [["a:"]]);
        assert_eq!((read.source, file.as_deref()), (QuotaSource::Takeover, Some("ab")));
        assert!(read.posted.is_some(), "the next takeover needs it");
    }

    #[test]
    fn quotas_that_are_too_long_end_the_takeover() {
        let piece = vec![b' '; 64 * 1024];
        let more = |_| (Message::Quotas { file: None, is_last: false }, piece.clone());
        let pieces = QUOTA_FILE_BYTES_MAX as usize / piece.len();
        let (shard, control) = taken("long", (0..=pieces).map(more).collect());
        assert!(control.is_empty() && matches!(shard[..], [ToShard::Listen]), "{control:?}");
    }

    #[test]
    fn process_1_is_not_succeeded() {
        assert!(ends_all(1) && !ends_all(2));
    }
}
