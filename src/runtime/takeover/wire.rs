//! The messages between two processes in a takeover, over a Unix socket that preserves message boundaries and
//! carries descriptors.

use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::runtime::messages::QuotasMoved;
use crate::runtime::ring::peer_credentials;
use crate::runtime::socket_file;
use crate::shard::{ClientsAsked, Pause, Paused, Session};
use crate::values::Timestamp;
use crate::values::limits::{COPY_BYTES_MAX, MOVED_BYTES_MAX};

/// The version of the takeover protocol, which must be equal in both processes; raised whenever a message
/// changes its meaning.
pub const PROTOCOL: u32 = 5;
/// Maximum number of descriptors of sockets in one message of a takeover; more sockets take further messages.
/// The kernel would take 253.
pub const SOCKETS_MAX: usize = 64;
/// Maximum number of parts of shared quotas in one message of a takeover; more take further messages.
pub const PARTS_MAX: usize = 100;
/// Maximum number of bytes of the text of quotas in one message of a takeover; a longer text takes further
/// messages.
const QUOTAS_PIECE_BYTES_MAX: usize = 32 * 1024;
/// Maximum number of bytes of a message of a takeover, which may hold a client's blocking command that is
/// still in progress, and the bytes that the client has sent of its next request.
const MESSAGE_BYTES_MAX: usize = COPY_BYTES_MAX + MOVED_BYTES_MAX + 64 * 1024;
/// The longest time that the other process of a takeover may take to accept a message, or to send one whose
/// coming it has announced. After that sending or receiving fails.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for the first message of a process whose takeover is refused; after it, the process is
/// refused without its message having been read. Other processes wait meanwhile.
const GREETING_PATIENCE: Duration = Duration::from_millis(200);
/// The listen backlog of the socket for takeovers, in connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Listening sockets for one kind of clients at one address, which are offered to a successor process.
#[derive(Debug)]
pub struct Offer {
    /// The kind of clients that connect there: "resp", "tls", "tls-http", "unix", "http" or "admin".
    pub entrance: &'static str,
    /// The address or path of the listening sockets, as written in the flag.
    pub address: String,
    pub sockets: Vec<OwnedFd>,
}

/// The service manager that a process notifies, as its environment names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    pub socket: Option<String>,
    pub watchdog_micros: Option<u64>,
}

/// A message of the takeover protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    Hello {
        protocol: u32,
        version: String,
        /// True if the process that takes over belongs to a fleet, so that it wants the parts of shared quotas.
        #[serde(default)]
        is_in_fleet: bool,
    },
    Refused {
        pid: i32,
        why: String,
    },
    Welcome {
        pid: i32,
        version: String,
        manager: Manager,
    },
    Listener {
        entrance: String,
        address: String,
    },
    Started,
    Ready,
    /// The parts that the running process has of quotas which a fleet (processes of weir that share quotas)
    /// shares: for each the key of its counter, the id of its bucket, and the part in billionths of the quota.
    Parts {
        parts: Vec<(String, u64, u64)>,
    },
    /// A piece of the text of quotas that were posted to the process, which follows the message; `is_last` is
    /// true for the last piece. `file` is the digest of the quota file that they have replaced, in hexadecimal
    /// digits; `None` without a file.
    Quotas {
        file: Option<String>,
        is_last: bool,
    },
    /// A `CLIENT PAUSE` in force, which lasts for `left_ms` milliseconds more: of the clients of `tenant`, or
    /// with None of all; `extent` says whether all their requests are paused or only writes.
    Pause {
        tenant: Option<String>,
        extent: Paused,
        left_ms: u64,
    },
    /// A `CLIENT UNPAUSE`: the pause of this tenant, or with None all pauses, are over.
    Unpause {
        tenant: Option<String>,
    },
    Deaf,
    Client {
        session: Session,
    },
    Done,
}

impl Message {
    /// Returns the message that passes a `CLIENT PAUSE` or `CLIENT UNPAUSE` on, with the time left from `now`; None for
    /// any other command.
    pub fn of_pause(asked: &ClientsAsked, now: Timestamp) -> Option<Self> {
        match asked {
            ClientsAsked::Pause(Pause { tenant, until, extent, .. }) => {
                // A pause that is about to end is not cut short by the fraction of a millisecond.
                let left_ms = until.since(now).as_micros().div_ceil(1_000) as u64;
                Some(Self::Pause { tenant: tenant.clone(), extent: *extent, left_ms })
            }
            ClientsAsked::Unpause(tenant) => Some(Self::Unpause { tenant: tenant.clone() }),
            _ => None,
        }
    }
}

/// A received message of a takeover, with the bytes (such as a text of quotas) that follow it and the
/// descriptors that came with it.
#[derive(Debug)]
pub struct Received {
    pub message: Message,
    pub rest: Vec<u8>,
    pub sockets: Vec<OwnedFd>,
    /// True if the kernel closed descriptors of the message, because this process has as many files open as
    /// its limit allows.
    pub is_cut: bool,
}

/// The connection to the other process in a takeover, over which messages and descriptors of sockets are sent.
#[derive(Debug)]
pub struct Peer {
    socket: Socket,
    /// The process ID of the other process of the takeover. Exact if that process connected to this one; 0 if it is
    /// in a container (PID namespace) into which this process cannot see. If this process connected to the other, it
    /// is at first that of the process which made the socket and may have ended, until the `Welcome` message tells
    /// the real one.
    pub pid: i32,
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Peer {
    /// Wraps a connection to the other process of a takeover, and sets its timeouts to 5 s (`PATIENCE`). The
    /// error is a text: the process belongs to another user, or a system call failed.
    pub fn new(socket: Socket) -> Result<Self, String> {
        let told = |error: io::Error| error.to_string();
        let libc::ucred { pid, uid, .. } = peer_credentials(socket.as_fd()).map_err(told)?;
        let own = rustix::process::geteuid().as_raw();
        if uid != own {
            return Err(format!(
                "process {pid} is of user {uid}, and this one is of user {own}: only the same user takes over"
            ));
        }
        socket.set_nonblocking(false).map_err(told)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(told)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(told)?;
        Ok(Self { socket, pid })
    }

    /// Sends a message of the takeover without further bytes or descriptors.
    pub fn tell(&self, message: &Message) -> io::Result<()> {
        self.send(message, &[], &[])
    }

    /// Sends a message of the takeover followed by the bytes `rest`, with the descriptors of these sockets. More
    /// than 64 of them (`SOCKETS_MAX`) are an error, and nothing is sent.
    pub fn send(&self, message: &Message, rest: &[u8], sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(message)?;
        // The JSON text has no line end of its own, so this ends it.
        bytes.push(b'\n');
        bytes.extend_from_slice(rest);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = sockets.len() <= SOCKETS_MAX;
        if !fits || !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
            return Err(io::Error::other("too many sockets for one message"));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Sends quotas that were posted, in as many messages as their text needs.
    pub fn send_quotas(&self, quotas: &QuotasMoved) -> io::Result<()> {
        let file = quotas.file.map(|digest| digest.to_string());
        let mut pieces = quotas.text.as_str().as_bytes().chunks(QUOTAS_PIECE_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            let message = Message::Quotas { file: file.clone(), is_last: pieces.peek().is_none() };
            self.send(&message, piece, &[])?;
        }
        Ok(())
    }

    /// Shuts the receiving side of the connection, so that later sends of the other process fail. Messages that
    /// it has sent before can still be received; after the last of them, receiving fails with an error of the
    /// kind `UnexpectedEof`.
    pub fn stop_hearing(&self) {
        // A failed shutdown means that there is no connection to end.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
    }

    /// Reads and drops the other process's first message, if it comes within 200 ms (`GREETING_PATIENCE`).
    pub fn discard_one(&self) {
        let _ = self.socket.set_read_timeout(Some(GREETING_PATIENCE));
        let _ = self.receive();
    }

    /// Receives the next message from the other process, with the bytes after it and its descriptors. An
    /// error of the kind `UnexpectedEof` means that the process has closed the connection.
    pub fn receive(&self) -> io::Result<Received> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.socket, pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let (length, is_cut) = (got.bytes, got.flags.contains(ReturnFlags::CTRUNC));
        let mut sockets = Vec::new();
        for piece in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = piece {
                sockets.extend(descriptors);
            }
        }
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes = &bytes[..length];
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(length);
        let message = serde_json::from_slice(&bytes[..end])?;
        Ok(Received { message, rest: bytes.get(end + 1..).unwrap_or_default().to_vec(), sockets, is_cut })
    }
}

/// True if the error means that the other process of the takeover has closed its end, whether or not it read
/// what was sent.
pub fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Connects to the process that listens for a successor at a path; `None` if no process does, and an error if
/// that cannot be found out (the path is not permitted, for instance).
pub fn connect(path: &Path) -> io::Result<Option<Socket>> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(Some(socket)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Listens at a path for a successor process; only processes of the same user can connect. A socket file that
/// nobody listens on any more is replaced; any other file stays, and is an error.
pub fn bind(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_file::bind(Type::SEQPACKET, path)?;
    // Permissions are set before the socket listens, so no other user can get in between.
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Makes two connected ends of a takeover's connection.
#[cfg(test)]
pub fn pair() -> (Peer, Peer) {
    let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).expect("a pair");
    (Peer::new(one).expect("ourselves"), Peer::new(other).expect("ourselves"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{QuotaText, Quotas};

    #[test]
    fn a_client_crosses_with_its_socket_and_what_it_has_sent() {
        let (one, other) = pair();
        assert_eq!(one.pid, std::process::id() as i32);
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let message = Message::Client { session: Session::default() };
        let held = vec![b'\n'; MOVED_BYTES_MAX];
        one.send(&message, &held, &[near.as_fd()]).expect("room");
        drop(near);
        let received = other.receive().expect("a message");
        assert!((received.message, received.rest) == (message, held));
        let socket = std::os::unix::net::UnixStream::from(received.sockets.into_iter().next().expect("one"));
        io::Write::write_all(&mut &socket, b"x").expect("it is open");
        assert_eq!(io::Read::read(&mut &far, &mut [0; 4]).expect("its other end is too"), 1);
    }

    #[test]
    fn a_process_that_cannot_be_seen_from_here_has_the_number_0() {
        // The kernel gives that number for the process behind a socket that is not connected, too.
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).expect("a socket");
        let peer = peer_credentials(socket.as_fd()).expect("a Unix socket");
        assert_eq!((peer.pid, peer.uid), (0, u32::MAX));
        let refused = Peer::new(socket).expect_err("it is of nobody");
        assert!(refused.starts_with("process 0 is of user 4294967295, and this one is of "), "{refused}");
    }

    #[test]
    fn posted_quotas_cross_in_pieces() {
        let (one, other) = pair();
        let tenants = (0..2_000).map(|tenant| format!("[tenants.t{tenant}]\npassword = 'x'\n"));
        let posted = tenants.collect::<Vec<_>>().concat();
        let text = QuotaText::without_passwords(&posted).expect("it is TOML");
        let file = Quotas::parse("q", "[default]").expect("valid").text_digest();
        let quotas = QuotasMoved { text: text.clone(), file };
        let sender = std::thread::spawn(move || one.send_quotas(&quotas));
        let (mut came, mut pieces) = (Vec::new(), 0);
        loop {
            let received = other.receive().expect("a message");
            let Message::Quotas { file: told, is_last } = received.message else { panic!("{received:?}") };
            assert_eq!(told, file.map(|digest| digest.to_string()));
            came.extend(received.rest);
            pieces += 1;
            if is_last {
                break;
            }
        }
        sender.join().expect("no panic").expect("room");
        assert!(came == text.as_str().as_bytes() && pieces == came.len().div_ceil(QUOTAS_PIECE_BYTES_MAX));
        assert!(pieces > 1, "it is a long text");
    }

    #[test]
    fn a_pause_is_told_with_the_time_that_is_left() {
        let now = Timestamp::ZERO.after(Duration::from_secs(7));
        let tenant = Some("acme".to_owned());
        let left = Duration::from_micros(1_500);
        let pause = Pause::taken_over(tenant.clone(), left, Paused::Writes, now);
        let told = Message::of_pause(&ClientsAsked::Pause(pause), now);
        assert_eq!(told, Some(Message::Pause { tenant: tenant.clone(), extent: Paused::Writes, left_ms: 2 }));
        let told = Message::of_pause(&ClientsAsked::Unpause(tenant.clone()), now);
        assert_eq!(told, Some(Message::Unpause { tenant }));
    }

    #[test]
    fn as_many_sockets_as_promised_go_with_one_message_and_no_more() {
        let (one, other) = pair();
        let sockets = vec![one.as_fd(); SOCKETS_MAX + 1];
        one.send(&Message::Started, &[], &sockets[1..]).expect("they fit");
        assert_eq!(other.receive().expect("a message").sockets.len(), SOCKETS_MAX);
        one.send(&Message::Started, &[], &sockets).expect_err("one too many");
    }

    #[test]
    fn who_is_not_heard_any_more_is_heard_to_the_end_and_learns_of_it() {
        let (one, other) = pair();
        one.tell(&Message::Ready).expect("room");
        other.stop_hearing();
        assert!(has_ended(&one.tell(&Message::Done).expect_err("nobody hears it")));
        assert_eq!(other.receive().expect("it came before").message, Message::Ready);
        assert!(has_ended(&other.receive().expect_err("the end")));
        other.tell(&Message::Deaf).expect("the way back is open");
        assert_eq!(one.receive().expect("a message").message, Message::Deaf);
    }

    #[test]
    fn what_is_no_message_is_an_error_and_so_is_the_end() {
        let (one, other) = pair();
        for bytes in [b"GET / HTTP/1.1".as_slice(), b"{}", b"\n", b"{\"message\":\"later\"}\n"] {
            one.socket.send(bytes).expect("room");
            other.receive().expect_err("no message");
        }
        drop(one);
        assert_eq!(other.receive().expect_err("the end").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_living_one_is_not() {
        let path = std::env::temp_dir().join(format!("weir-takeover-{}", std::process::id()));
        let first = bind(&path).expect("a new path");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(bind(&path).expect_err("one listens").kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(connect(&path).expect("a stale file is nobody").is_none());
        bind(&path).expect("nobody listens any more");
        std::fs::remove_file(&path).expect("it is there");
        assert!(connect(&path).expect("no file is nobody").is_none());
    }
}
