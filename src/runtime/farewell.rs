//! Closes connections so that no reply is lost: when weir drains, bytes in a client's socket are read first,
//! and a socket is closed only after the peer has ended its side. A kernel that closes a socket with unread
//! bytes, or receives more for it, resets the connection and drops replies that have not been sent yet.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::RecvFlags;

use crate::values::Timestamp;
use crate::values::limits::{CLIENTS_LINGERING_MAX, DRAIN_BYTES_MAX};

/// The interval at which the driver checks sockets that are about to be closed: whether all that clients had
/// sent is read (while weir drains), or the peer has ended its side.
pub(super) const LOOKED_AFTER: Duration = Duration::from_millis(5);
/// The longest time that a socket stays open after weir has ended its sending side, waiting for the peer to
/// end its own.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum number of bytes read and dropped at one check from a socket that stays open until its peer ends its
/// side; the rest is read at later checks.
const DROPPED_BYTES: usize = 16 * 1024;

/// The reads that are left on a client's socket while weir drains: it is read until it is found empty, or
/// `DRAIN_BYTES_MAX` bytes have come.
#[derive(Debug)]
pub(super) struct LastWords {
    /// Maximum number of further bytes that are read from the client before it is closed.
    left: usize,
    /// True if the last check found the client's socket empty. Bytes may be on their way through the ring
    /// then, so two checks must agree.
    empty: bool,
    /// True once the application knows that the client's input will end, although weir does not read it now.
    told: bool,
}

impl LastWords {
    pub fn new() -> Self {
        Self { left: DRAIN_BYTES_MAX, empty: false, told: false }
    }

    pub fn note_received(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Records that the application is told of the end of the client's input before weir has read it. False if
    /// it was told before.
    pub fn note_told(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// True if all bytes that the client had sent were read: the socket was empty at two consecutive calls,
    /// or `DRAIN_BYTES_MAX` bytes came in. The driver calls this every 5 ms (`LOOKED_AFTER`), after it has
    /// handled the received bytes.
    pub fn are_over(&mut self, socket: BorrowedFd<'_>) -> bool {
        let was_empty = std::mem::replace(&mut self.empty, unread(socket) == 0);
        self.left == 0 || (was_empty && self.empty)
    }
}

/// Sockets on which weir has ended its sending side. Each is closed as soon as the peer ends its side too,
/// after a second (`LINGER`), or earlier if there are too many of them.
#[derive(Debug)]
pub(super) struct Lingering {
    /// Sockets that stay open until their peers end their side, each with the time at which it was added, the
    /// oldest first.
    sockets: VecDeque<(OwnedFd, Timestamp)>,
    most: usize,
}

impl Lingering {
    pub fn new() -> Self {
        Self { sockets: VecDeque::new(), most: CLIENTS_LINGERING_MAX }
    }

    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Lifts the bound on the number of sockets that stay open until their peers end their side. Called when
    /// weir drains: no more clients connect then, so the sockets are no more than the clients.
    pub fn make_room_for_all(&mut self) {
        self.most = usize::MAX;
    }

    /// Ends the sending side of a socket and keeps it until the peer ends its side too. If the maximum number
    /// of such sockets is reached, the oldest one is closed.
    pub fn add(&mut self, socket: OwnedFd, now: Timestamp) {
        if self.sockets.len() >= self.most {
            self.sockets.pop_front();
        }
        // A failed shutdown means that there is no connection to end.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
        self.sockets.push_back((socket, now));
    }

    /// Reads and drops bytes that peers still send on sockets that stay open until their peers end their side,
    /// and closes those whose peer has ended its side or that have waited for a second (`LINGER`).
    pub fn look(&mut self, now: Timestamp) {
        self.sockets.retain(|(socket, since)| now.since(*since) < LINGER && !has_ended(socket.as_fd()));
    }
}

/// Returns the number of received bytes in a socket that have not been read; 0 also if the kernel does not tell.
fn unread(socket: BorrowedFd<'_>) -> u64 {
    rustix::io::ioctl_fionread(socket).unwrap_or(0)
}

/// Reads and drops some received bytes of a socket. True if the peer has ended the connection, or the
/// connection failed.
fn has_ended(socket: BorrowedFd<'_>) -> bool {
    match rustix::net::recv(socket, &mut [0_u8; DROPPED_BYTES], RecvFlags::DONTWAIT) {
        Ok((length, _)) => length == 0,
        Err(error) => !matches!(error, rustix::io::Errno::AGAIN | rustix::io::Errno::INTR),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_socket_lingers_until_the_other_side_ends_or_for_a_second() {
        let mut lingering = Lingering::new();
        let mut pairs: Vec<UnixStream> = Vec::new();
        for _ in 0..3 {
            let (mut ours, theirs) = UnixStream::pair().expect("sockets");
            ours.write_all(b"bye").expect("room");
            lingering.add(ours.into(), at(0));
            pairs.push(theirs);
        }
        for pair in &mut pairs {
            let mut told = String::new();
            pair.read_to_string(&mut told).expect("the end is told at once");
            assert_eq!(told, "bye");
        }
        pairs[0].write_all(b"one word more").expect("it is listened to");
        drop(pairs.remove(1));
        lingering.look(at(5));
        assert_eq!(lingering.sockets.len(), 2);
        lingering.look(at(999));
        assert_eq!(lingering.sockets.len(), 2);
        lingering.look(at(1_000));
        assert!(lingering.is_empty());
    }

    #[test]
    fn so_many_linger_and_no_more_unless_nobody_comes_any_more() {
        let mut lingering = Lingering::new();
        let mut others = Vec::new();
        let mut add = |lingering: &mut Lingering| {
            let (ours, theirs) = UnixStream::pair().expect("sockets");
            lingering.add(ours.into(), at(0));
            others.push(theirs);
        };
        (0..CLIENTS_LINGERING_MAX + 10).for_each(|_| add(&mut lingering));
        assert_eq!(lingering.sockets.len(), CLIENTS_LINGERING_MAX);
        lingering.make_room_for_all();
        (0..10).for_each(|_| add(&mut lingering));
        assert_eq!(lingering.sockets.len(), CLIENTS_LINGERING_MAX + 10);
    }

    #[test]
    fn last_words_are_heard_until_the_socket_was_empty_twice_or_they_are_too_many() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let mut words = LastWords::new();
        theirs.write_all(b"word").expect("room");
        assert!(!words.are_over(ours.as_fd()) && !words.are_over(ours.as_fd()));
        (&ours).read_exact(&mut [0; 4]).expect("it came");
        assert!(!words.are_over(ours.as_fd()), "it may be on its way to who hears it");
        theirs.write_all(b"word").expect("room");
        assert!(!words.are_over(ours.as_fd()));
        (&ours).read_exact(&mut [0; 4]).expect("it came");
        assert!(!words.are_over(ours.as_fd()));
        assert!(words.are_over(ours.as_fd()));
        let mut words = LastWords::new();
        theirs.write_all(b"word").expect("room");
        words.note_received(DRAIN_BYTES_MAX - 1);
        assert!(!words.are_over(ours.as_fd()));
        words.note_received(2);
        assert!(words.are_over(ours.as_fd()));
    }
}
