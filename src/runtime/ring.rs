//! A core's `io_uring`, with safe methods. All of weir's code that gives pointers to the kernel is in this
//! file.
//!
//! The ring owns whatever the kernel borrows until the kernel is done: a segment that is being sent comes
//! back with its completion, and a receive buffer is lent out as a token and given back. So no caller can
//! free memory that the kernel still writes to or reads from. The same goes for descriptors: they are handed
//! over (`adopt`), named by tokens, and closed after `release` when no operation that names them is queued or
//! in flight.
//!
//! Operations that the kernel does not take at once (it lacks memory, or wants completions reaped first) wait
//! in order, and are offered again with the next submission.
//!
//! The kernel delivers completions only when the core enters it (`DEFER_TASKRUN`). `wait_handle` is an
//! eventfd that the kernel signals when there may be completions, so that the executor around the ring can
//! sleep on it.

#![expect(unsafe_code, reason = "the kernel's interface is made of pointers; this file is its border")]

use std::alloc::{Layout, alloc_zeroed};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::param::page_size;
use slab::Slab;

use super::descriptors::Descriptors;
use crate::protocol::{Room, Segment};
use crate::values::limits::{RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};

/// Maximum number of bytes of one send operation (1 MiB), so that a slow peer's progress can be seen between
/// operations; a longer segment takes several.
const SEND_BYTES_MAX: usize = 1 << 20;
/// The number of `io_uring` operations that fit in the queue to the kernel; more are submitted in several
/// steps.
const SUBMISSIONS: u32 = 1024;
/// The number of completions that fit in the `io_uring`; the kernel keeps further completions aside, and
/// delivers them when there is room.
const COMPLETIONS: u32 = 8192;
const BUFFER_GROUP: u16 = 0;
/// The number of times in a row that the kernel must have sent the same bytes again, without an
/// acknowledgement, before a TCP connection counts as lost on the way; the peer must also have been silent for
/// [`UNACKNOWLEDGED_MS`]. The second retransmission comes 0.6 s after the bytes at the earliest.
const RETRANSMISSIONS: u8 = 2;
/// Milliseconds without any packet from the peer's machine before a TCP connection counts as lost on the way,
/// if the kernel has also sent bytes again ([`RETRANSMISSIONS`]).
const UNACKNOWLEDGED_MS: u32 = 500;

/// The number by which [`Ring`] names a descriptor that it owns, also in the completions of operations on it.
pub type Token = u32;

/// A completed operation of the core's `io_uring`, or an event that it reports.
#[derive(Debug)]
pub enum Completion {
    /// A listening socket has accepted a connection, or failed to. If `ended`, the accept operation is over
    /// and must be started again.
    Accepted { listener: Token, socket: io::Result<OwnedFd>, ended: bool },
    /// Bytes have been received into one of the ring's buffers. If `ended`, the receive operation is over and
    /// must be started again.
    Received { socket: Token, buffer: ReceivedBuffer, ended: bool },
    /// A receive into a buffer lent by the caller is over. `result` is the number of bytes, 0 at the end of
    /// the stream; the buffer comes back.
    Filled { socket: Token, buffer: Vec<u8>, result: io::Result<usize> },
    /// The peer of this socket has ended its sending side.
    EndOfStream { socket: Token },
    /// A receive operation has ended without data: no buffers were left, it was cancelled, or the socket
    /// failed.
    ReceiveStopped { socket: Token, error: io::Error },
    /// The watch of a socket that is not received from is over. `ended` says whether the peer has ended its
    /// sending side, or the connection failed; if not, the watch was cancelled, or the kernel refused it.
    Watched { socket: Token, ended: bool },
    /// A send is over. `result` is the number of bytes sent by this operation, or the error; the segment
    /// comes back.
    Sent { socket: Token, segment: Segment, result: io::Result<usize> },
    /// A connection attempt is over; `result` says whether it succeeded.
    Connected { socket: Token, result: io::Result<()> },
    /// A wake-up of this core by another core, or by a message to it.
    Woken,
    /// A timer of this core's `io_uring` ([`Ring::wake_after`]) has fired.
    TimeUp,
    /// The kernel could not deliver this core's wake-up to the core with this number, which may sleep on.
    RungInVain { peer: usize },
}

/// A receive buffer with received bytes in it, which the caller must give back with [`Ring::give_back`].
#[derive(Debug)]
#[must_use = "give it back, or the ring runs out of buffers"]
pub struct ReceivedBuffer {
    id: u16,
    length: u32,
}

/// Memory that the kernel uses for an `io_uring` operation (bytes to send, a buffer to fill, an address), kept
/// alive until the operation has completed.
#[derive(Debug)]
enum Borrowed {
    Sending { socket: Token, segment: Segment, _places: Option<Box<Places>> },
    Connecting { socket: Token, _address: Box<socket2::SockAddr> },
    Time { _at: Box<Timespec> },
}

/// The addresses and lengths of a segment's pieces in memory, in the form that a send operation needs.
struct Places {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
}

impl Places {
    /// Lists the pieces of a segment after its first `sent` bytes, at most 1 MiB of them (`SEND_BYTES_MAX`).
    /// The segment must not change while the kernel uses the addresses.
    fn of(segment: &Segment, mut sent: usize) -> Self {
        let mut pieces = Vec::new();
        let mut room = SEND_BYTES_MAX;
        for piece in segment.pieces() {
            let left = &piece[sent.min(piece.len())..];
            sent -= piece.len() - left.len();
            let left = &left[..left.len().min(room)];
            room -= left.len();
            if !left.is_empty() {
                pieces.push(libc::iovec { iov_base: left.as_ptr().cast_mut().cast(), iov_len: left.len() });
            }
        }
        // SAFETY: a header of zeroes is one without an address, without pieces and without control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        // The pieces are on the heap, so moving their vector does not move them.
        header.msg_iov = pieces.as_mut_ptr();
        header.msg_iovlen = pieces.len();
        Self { header, pieces }
    }
}

impl std::fmt::Debug for Places {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} pieces", self.pieces.len())
    }
}

const KIND_SHIFT: u32 = 56;
const KIND_ACCEPT: u64 = 1;
const KIND_RECEIVE: u64 = 2;
const KIND_BORROWED: u64 = 3;
const KIND_WOKEN: u64 = 4;
const KIND_RUNG: u64 = 5;
const KIND_BELL: u64 = 6;
const KIND_CANCEL: u64 = 7;
const KIND_FILL: u64 = 8;
const KIND_WATCH: u64 = 9;

fn tag(kind: u64, value: u64) -> u64 {
    kind << KIND_SHIFT | value
}

/// The `io_uring` of one core, with everything that the kernel uses for its operations: descriptors, bytes to
/// send, buffers.
pub struct Ring {
    kernel: IoUring,
    buffers: ReceiveBuffers,
    borrowed: Slab<Borrowed>,
    /// The buffers lent by callers that are being received into, at most one per socket.
    rooms: HashMap<Token, Room>,
    descriptors: Descriptors,
    /// Operations that found no room in the queue to the kernel, in order: at most a few per socket, as each
    /// socket has at most one operation of each kind in flight.
    unsubmitted: VecDeque<squeue::Entry>,
    wait_handle: OwnedFd,
    bell: OwnedFd,
    /// The number of next submissions that tests make fail as if the kernel were busy; 0 otherwise.
    #[cfg(test)]
    busy: u32,
}

impl Ring {
    /// Sets up an `io_uring` for the calling thread, the only one that may use it. A write to the other end of
    /// the socket `bell` wakes a thread that sleeps in the `io_uring`. Fails if the kernel forbids or lacks it,
    /// or memory or descriptors are short.
    pub fn new(bell: OwnedFd) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder
            .setup_cqsize(COMPLETIONS)
            .setup_clamp()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag();
        let mut ring: IoUring = builder.build(SUBMISSIONS)?;
        // A registered ring saves a look-up per system call; older kernels do without.
        let _ = ring.submitter().register_ring_fd();
        let wait_handle = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(wait_handle.as_raw_fd())?;
        ring.completion().disable_eventfd();
        let buffers = ReceiveBuffers::new(&ring)?;
        let mut ring = Self {
            kernel: ring,
            buffers,
            borrowed: Slab::new(),
            rooms: HashMap::new(),
            descriptors: Descriptors::default(),
            unsubmitted: VecDeque::new(),
            wait_handle,
            bell,
            #[cfg(test)]
            busy: 0,
        };
        ring.listen_to_bell();
        Ok(ring)
    }

    /// Duplicates the `io_uring`'s descriptor, by which other cores wake this one. As long as the duplicate is
    /// open, the number by which other cores know it cannot come to name another file.
    pub fn doorbell(&self) -> io::Result<OwnedFd> {
        // SAFETY: the descriptor is open as long as `self.kernel`, which outlives this borrow.
        unsafe { BorrowedFd::borrow_raw(self.kernel.as_raw_fd()) }.try_clone_to_owned()
    }

    /// Takes ownership of a descriptor and returns the token that names it in calls of this `io_uring` until
    /// [`Ring::release`].
    pub fn adopt(&mut self, fd: OwnedFd) -> Token {
        self.descriptors.adopt(fd)
    }

    /// Gives a descriptor up: it is closed as soon as no operation in flight names it.
    pub fn release(&mut self, token: Token) {
        self.descriptors.release(token);
    }

    /// Duplicates a socket's descriptor, so that the duplicate can be given to another process.
    pub fn duplicate(&self, token: Token) -> io::Result<OwnedFd> {
        self.descriptors.get(token).try_clone_to_owned()
    }

    /// Returns the eventfd that becomes readable when the `io_uring` may have completions. It is signalled only
    /// between `start_waiting` and `stop_waiting`.
    pub fn wait_handle(&self) -> BorrowedFd<'_> {
        self.wait_handle.as_fd()
    }

    /// Makes completions signal the eventfd ([`Ring::wait_handle`]) from now on, so that the core can sleep
    /// on it. False if some completions are there already, or an operation has not been submitted yet; then
    /// the caller must not sleep.
    pub fn start_waiting(&mut self) -> bool {
        self.kernel.completion().enable_eventfd();
        // The kernel first posts a completion and then checks whether to signal; here the order is reversed,
        // so one of both sides sees the other.
        fence(Ordering::SeqCst);
        let submitted = self.unsubmitted.is_empty() && self.kernel.submission().is_empty();
        if !submitted || self.has_completions() {
            self.stop_waiting();
            return false;
        }
        true
    }

    /// Stops completions from signalling the eventfd ([`Ring::wait_handle`]), since the core no longer
    /// sleeps.
    pub fn stop_waiting(&mut self) {
        self.kernel.completion().disable_eventfd();
    }

    /// True if the `io_uring` has completions that [`Ring::reap`] would return.
    pub fn has_completions(&mut self) -> bool {
        let submission = self.kernel.submission();
        let pending = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        pending || !self.kernel.completion().is_empty()
    }

    fn listen_to_bell(&mut self) {
        let entry = opcode::RecvMulti::new(Fd(self.bell.as_raw_fd()), BUFFER_GROUP)
            .build()
            .user_data(tag(KIND_BELL, 0));
        self.push(entry);
    }

    /// Accepts connections on a listener, each reported by a completion `Accepted`, repeatedly until cancelled
    /// or until it fails.
    pub fn accept(&mut self, listener: Token) {
        let fd = Fd(self.descriptors.begin(listener));
        let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry.user_data(tag(KIND_ACCEPT, u64::from(listener))));
    }

    /// Receives bytes on a socket into the `io_uring`'s own buffers, repeatedly until cancelled, the stream
    /// ends, the socket fails or no buffer is left.
    pub fn receive(&mut self, socket: Token) {
        let fd = Fd(self.descriptors.begin(socket));
        let entry = opcode::RecvMulti::new(fd, BUFFER_GROUP).build();
        self.push(entry.user_data(tag(KIND_RECEIVE, u64::from(socket))));
    }

    /// Receives bytes on a socket once, into one of the `io_uring`'s own buffers.
    pub fn receive_once(&mut self, socket: Token) {
        let fd = Fd(self.descriptors.begin(socket));
        let entry = opcode::Recv::new(fd, std::ptr::null_mut(), RECEIVE_BUFFER_BYTES as u32)
            .buf_group(BUFFER_GROUP)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT);
        self.push(entry.user_data(tag(KIND_RECEIVE, u64::from(socket))));
    }

    /// Receives bytes on a socket once, into a buffer lent by the caller, which comes back with the
    /// completion.
    pub fn receive_into(&mut self, socket: Token, mut room: Room) {
        let fd = Fd(self.descriptors.begin(socket));
        let free = &mut room.buffer.spare_capacity_mut()[..room.bytes];
        let entry = opcode::Recv::new(fd, free.as_mut_ptr().cast(), free.len() as u32).build();
        // The bytes are on the heap, so moving the room does not move them.
        let before = self.rooms.insert(socket, room);
        debug_assert!(before.is_none(), "one receive of a socket is under way");
        self.push(entry.user_data(tag(KIND_FILL, u64::from(socket))));
    }

    /// Cancels a socket's receive operation; a completion `ReceiveStopped` or `Filled` says that it is over.
    pub fn cancel_receive(&mut self, socket: Token) {
        let kind = if self.rooms.contains_key(&socket) { KIND_FILL } else { KIND_RECEIVE };
        self.cancel(socket, tag(kind, u64::from(socket)));
    }

    /// Watches a socket that is not received from: a completion `Watched` comes once its peer has ended its
    /// sending side or the connection has failed, even if bytes that came before are unread.
    pub fn watch(&mut self, socket: Token) {
        let fd = Fd(self.descriptors.begin(socket));
        // The kernel adds errors and the end of both directions by itself.
        let entry = opcode::PollAdd::new(fd, libc::POLLRDHUP as u32).build();
        self.push(entry.user_data(tag(KIND_WATCH, u64::from(socket))));
    }

    /// Cancels the watch of a socket; a completion `Watched` says that it is over.
    pub fn cancel_watch(&mut self, socket: Token) {
        self.cancel(socket, tag(KIND_WATCH, u64::from(socket)));
    }

    /// Cancels a listener's accept operation; a completion `Accepted` says that it is over.
    pub fn cancel_accept(&mut self, listener: Token) {
        self.cancel(listener, tag(KIND_ACCEPT, u64::from(listener)));
    }

    /// Cancels a connection attempt; a completion `Connected` says that it is over. Does nothing if none is in
    /// flight.
    pub fn cancel_connect(&mut self, socket: Token) {
        let connecting = self.borrowed.iter().find(|(_, borrowed)| {
            matches!(borrowed, Borrowed::Connecting { socket: other, .. } if *other == socket)
        });
        if let Some((place, _)) = connecting {
            self.cancel(socket, tag(KIND_BORROWED, place as u64));
        }
    }

    /// Cancels an operation on a descriptor, named by its tag `user_data`. The descriptor stays open until
    /// the cancellation is over, so that the tag cannot name an operation on another socket by then.
    fn cancel(&mut self, token: Token, user_data: u64) {
        self.descriptors.begin(token);
        let entry = opcode::AsyncCancel::new(user_data).build();
        self.push(entry.user_data(tag(KIND_CANCEL, u64::from(token))));
    }

    /// Sends a segment's bytes on a socket, from byte number `sent` on, at most 1 MiB; the segment comes back
    /// with the completion.
    pub fn send(&mut self, socket: Token, segment: Segment, sent: usize) {
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let fd = Fd(self.descriptors.begin(socket));
        // The bytes are on the heap (a vector's or shared ones), so moving the segment does not move them.
        let (entry, places) = if let Segment::Several(_) = &segment {
            let places = Box::new(Places::of(&segment, sent));
            let header: *const libc::msghdr = &raw const places.header;
            (opcode::SendMsg::new(fd, header).flags(flags as u32).build(), Some(places))
        } else {
            let bytes = &segment.pieces().next().expect("one piece")[sent..];
            let bytes = &bytes[..bytes.len().min(SEND_BYTES_MAX)];
            (opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32).flags(flags).build(), None)
        };
        let place = self.borrowed.insert(Borrowed::Sending { socket, segment, _places: places });
        self.push(entry.user_data(tag(KIND_BORROWED, place as u64)));
    }

    /// Starts to connect a socket to an address; a completion `Connected` has the result.
    pub fn connect(&mut self, socket: Token, address: socket2::SockAddr) {
        let address = Box::new(address);
        let (start, length) = (address.as_ptr(), address.len());
        let place = self.borrowed.insert(Borrowed::Connecting { socket, _address: address });
        let entry = opcode::Connect::new(Fd(self.descriptors.begin(socket)), start.cast(), length).build();
        self.push(entry.user_data(tag(KIND_BORROWED, place as u64)));
    }

    /// Sends a few last bytes on a socket by a direct system call, as far as the socket takes them at once; the
    /// rest, and an error, are ignored. No other send may be in flight.
    pub fn send_last(&self, token: Token, bytes: &[u8]) {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(self.descriptors.get(token), bytes, flags);
    }

    /// Shuts a socket down in both directions, so that the operations in flight on it complete.
    pub fn shut_down(&self, socket: Token) {
        // Done by a direct system call, since the kernel would hand it to a worker thread over the ring. A
        // failure means that there is no connection to end.
        let _ = rustix::net::shutdown(self.descriptors.get(socket), rustix::net::Shutdown::Both);
    }

    /// Ends the sending side of a socket; data that the kernel has accepted still arrives at the peer.
    pub fn end_sending(&self, socket: Token) {
        let _ = rustix::net::shutdown(self.descriptors.get(socket), rustix::net::Shutdown::Write);
    }

    /// Returns the descriptor that a token names, for direct system calls.
    pub fn descriptor(&self, socket: Token) -> BorrowedFd<'_> {
        self.descriptors.get(socket)
    }

    /// Ends a connection and drops its unsent data; over TCP the peer receives a RST.
    pub fn reset(&self, socket: Token) {
        let fd = self.descriptors.get(socket);
        // For TCP this disconnects at once, whatever is under way. Other sockets hold no unsent data of their
        // own: what was taken is in the peer's buffer.
        if rustix::net::connect_unspec(fd).is_err() {
            self.shut_down(socket);
        }
    }

    /// True if the peer's machine acknowledges nothing any more: the kernel has sent the same bytes again at
    /// least twice, and no packet has come from it for half a second. A peer that is only slow or stopped still
    /// acknowledges, as the kernel of its machine does that. False for a socket that is not of TCP.
    pub fn is_unacknowledged(&self, socket: Token) -> bool {
        let fd = self.descriptors.get(socket).as_raw_fd();
        // SAFETY: a `tcp_info` is made of integers, for which zeroes are valid.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let place = (&raw mut info).cast::<libc::c_void>();
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, which `info` has.
        let result =
            unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut length) };
        result == 0
            && info.tcpi_unacked > 0
            && info.tcpi_retransmits >= RETRANSMISSIONS
            && info.tcpi_last_ack_recv >= UNACKNOWLEDGED_MS
    }

    /// Starts a one-shot `io_uring` timeout: the ring has a completion once `pause` has passed, so that a
    /// core that waits for completions wakes by then. Earlier completions do not cancel it.
    pub fn wake_after(&mut self, pause: std::time::Duration) {
        let at = Box::new(Timespec::from(pause));
        let start: *const Timespec = &raw const *at;
        let place = self.borrowed.insert(Borrowed::Time { _at: at });
        let entry = opcode::Timeout::new(start).build().user_data(tag(KIND_BORROWED, place as u64));
        self.push(entry);
    }

    /// Wakes the core with number `peer`, which owns the ring behind `doorbell`; a completion `RungInVain`
    /// says that the kernel could not. The doorbell must stay open while cores run.
    pub fn wake(&mut self, peer: usize, doorbell: BorrowedFd<'_>) {
        let entry = opcode::MsgRingData::new(Fd(doorbell.as_raw_fd()), 0, tag(KIND_WOKEN, 0), None)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(tag(KIND_RUNG, peer as u64));
        self.push(entry);
    }

    /// Submits queued operations to the kernel and lets it deliver completions that are due, in one system call;
    /// makes no call if there is nothing to do. Operations that a busy kernel does not take stay queued; only an
    /// error that lasts is returned.
    pub fn submit(&mut self) -> io::Result<()> {
        self.move_up();
        let submission = self.kernel.submission();
        let nothing = submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
        drop(submission);
        if nothing {
            return Ok(());
        }
        // If the kernel is busy, the next turn tries again: what is left stays in the queue.
        while self.enter()? == Entered::Taken && self.move_up() {}
        Ok(())
    }

    /// Submits queued operations to the kernel, and sleeps until there is a completion or `pause_max` has passed
    /// (`None`: without limit). Returns at once while more operations wait than fit in the queue. Only an error
    /// that lasts is returned.
    pub fn submit_and_wait(&mut self, pause_max: Option<std::time::Duration>) -> io::Result<()> {
        if self.move_up() && !self.unsubmitted.is_empty() {
            // More operations wait than fit in the queue: no time to sleep.
            return self.submit();
        }
        let result = match pause_max {
            None => self.kernel.submit_and_wait(1),
            Some(pause) => {
                let time = Timespec::from(pause);
                self.kernel.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Err(error) if is_passing(&error) || error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn enter(&mut self) -> io::Result<Entered> {
        #[cfg(test)]
        if self.busy > 0 {
            self.busy -= 1;
            return Ok(Entered::Busy);
        }
        match self.kernel.submit() {
            Ok(_) => Ok(Entered::Taken),
            Err(error) if is_passing(&error) => Ok(Entered::Busy),
            Err(error) => Err(error),
        }
    }

    /// Moves operations that found no room before (`unsubmitted`) into the kernel's queue, as far as there is
    /// room now. False if there were none.
    fn move_up(&mut self) -> bool {
        let waited = !self.unsubmitted.is_empty();
        while let Some(entry) = self.unsubmitted.front() {
            if !queue(&mut self.kernel, entry) {
                break;
            }
            self.unsubmitted.pop_front();
        }
        waited
    }

    /// Removes all completions from the `io_uring` and appends them to `completions`.
    pub fn reap(&mut self, completions: &mut Vec<Completion>) {
        let Self { kernel, borrowed, rooms, buffers, descriptors, .. } = self;
        let mut deaf = false;
        completions.extend(kernel.completion().filter_map(|entry| {
            if entry.user_data() == tag(KIND_BELL, 0) {
                deaf |= !cqueue::more(entry.flags());
            }
            let completion = interpret(&entry, borrowed, rooms);
            // Bytes received by the bell do not matter, and some kernels use up a buffer for an end of
            // stream: both are given back here.
            if let Some(id) = cqueue::buffer_select(entry.flags())
                && !matches!(completion, Some(Completion::Received { .. }))
            {
                buffers.give_back(&ReceivedBuffer { id, length: 0 });
            }
            if let Some(token) = finished(&entry, completion.as_ref()) {
                descriptors.finish(token);
            }
            completion
        }));
        if deaf {
            self.listen_to_bell();
        }
    }

    /// Returns the bytes in a receive buffer.
    pub fn bytes(&self, buffer: &ReceivedBuffer) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Gives a receive buffer back to the kernel, which may receive into it again. Buffers not given back run
    /// out.
    #[expect(clippy::needless_pass_by_value, reason = "the token is used up")]
    pub fn give_back(&mut self, buffer: ReceivedBuffer) {
        self.buffers.give_back(&buffer);
    }

    /// Queues an `io_uring` operation. It never fails and loses none: an operation that finds no room in the
    /// kernel's queue waits after earlier ones.
    fn push(&mut self, entry: squeue::Entry) {
        if self.unsubmitted.is_empty() {
            if queue(&mut self.kernel, &entry) {
                return;
            }
            // Makes room, unless the kernel is busy. A lasting error shows again at the next `submit`, which
            // returns it.
            if matches!(self.enter(), Ok(Entered::Taken)) && queue(&mut self.kernel, &entry) {
                return;
            }
        }
        self.unsubmitted.push_back(entry);
    }
}

/// The result of an attempt to hand the queued operations of an `io_uring` to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Taken,
    /// The kernel takes no operations at the moment, so they are submitted again later.
    Busy,
}

/// True for an error that handing operations to the kernel may have for a while: the call was interrupted,
/// memory is short, or the kernel wants completions reaped first.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

fn queue(kernel: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: everything the entry points to is owned by the ring (`borrowed`, `buffers`) until the kernel has completed
    // it, and so are the descriptors it names (`descriptors`, `bell`); doorbells of other rings are open
    // while any core runs.
    unsafe { kernel.submission().push(entry) }.is_ok()
}

/// Returns the process and the user at the other end of a Unix socket, as the kernel recorded them when the two
/// ends were connected. The process ID is 0 if that process is in a PID namespace (a container) into which this
/// process cannot see. A socket that is not connected has process 0 and the user 4,294,967,295, which nobody is.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    // The function of rustix has a type for the process ID in which 0 cannot be.
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut peer).cast::<libc::c_void>();
    let fd = socket.as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes, which `peer` has. It is made of
    // integers, for which any bytes are valid.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    if result == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// Returns the token of the descriptor whose operation ended with this completion; `None` if the operation goes
/// on, or was on no descriptor whose operations are counted (a timer or a wake-up, for instance).
fn finished(entry: &cqueue::Entry, completion: Option<&Completion>) -> Option<Token> {
    if cqueue::more(entry.flags()) {
        return None;
    }
    match completion {
        Some(
            Completion::Accepted { listener: token, .. }
            | Completion::Received { socket: token, .. }
            | Completion::Filled { socket: token, .. }
            | Completion::EndOfStream { socket: token }
            | Completion::ReceiveStopped { socket: token, .. }
            | Completion::Watched { socket: token, .. }
            | Completion::Sent { socket: token, .. }
            | Completion::Connected { socket: token, .. },
        ) => Some(*token),
        None if entry.user_data() >> KIND_SHIFT == KIND_CANCEL => Some(entry.user_data() as Token),
        Some(Completion::Woken | Completion::TimeUp | Completion::RungInVain { .. }) | None => None,
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still read what is being sent, and write to buffers that are being received into,
        // since a closed ring is torn down in the background. That memory is leaked: the amount is bounded,
        // and the process ends.
        std::mem::forget(std::mem::take(&mut self.borrowed));
        std::mem::forget(std::mem::take(&mut self.rooms));
    }
}

fn interpret(
    entry: &cqueue::Entry,
    borrowed: &mut Slab<Borrowed>,
    rooms: &mut HashMap<Token, Room>,
) -> Option<Completion> {
    let (kind, value) = (entry.user_data() >> KIND_SHIFT, entry.user_data() & ((1 << KIND_SHIFT) - 1));
    let ended = !cqueue::more(entry.flags());
    let result = if entry.result() < 0 {
        Err(io::Error::from_raw_os_error(-entry.result()))
    } else {
        Ok(entry.result() as u32)
    };
    Some(match kind {
        KIND_ACCEPT => Completion::Accepted {
            listener: value as Token,
            // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
            socket: result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
            ended,
        },
        KIND_RECEIVE => match (result, cqueue::buffer_select(entry.flags())) {
            (Ok(length), Some(id)) if length > 0 => {
                Completion::Received { socket: value as Token, buffer: ReceivedBuffer { id, length }, ended }
            }
            (Ok(_), _) => Completion::EndOfStream { socket: value as Token },
            (Err(error), _) => Completion::ReceiveStopped { socket: value as Token, error },
        },
        KIND_FILL => {
            let Room { mut buffer, bytes } = rooms.remove(&(value as Token))?;
            let result = result.map(|received| (received as usize).min(bytes));
            let filled = buffer.len() + result.as_ref().map_or(0, |received| *received);
            // SAFETY: the kernel has written that many bytes behind the buffer's, where there was memory for them.
            unsafe { buffer.set_len(filled) };
            Completion::Filled { socket: value as Token, buffer, result }
        }
        KIND_WATCH => Completion::Watched { socket: value as Token, ended: result.is_ok() },
        KIND_BORROWED => match borrowed.remove(value as usize) {
            Borrowed::Sending { socket, segment, .. } => {
                Completion::Sent { socket, segment, result: result.map(|sent| sent as usize) }
            }
            Borrowed::Connecting { socket, .. } => {
                Completion::Connected { socket, result: result.map(|_| ()) }
            }
            Borrowed::Time { .. } => Completion::TimeUp,
        },
        KIND_WOKEN | KIND_BELL => Completion::Woken,
        KIND_RUNG if result.is_err() => Completion::RungInVain { peer: value as usize },
        _ => return None,
    })
}

/// The memory that the kernel receives into: a ring of descriptors and the buffers that they describe. It is
/// never freed, since the kernel may still use it after the ring was closed, and a ring lives as long as its
/// process anyway.
struct ReceiveBuffers {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    tail: u16,
}

impl ReceiveBuffers {
    fn new(ring: &IoUring) -> io::Result<Self> {
        // The kernel takes only whole pages for the entries, and not all machines have pages of 4 KiB.
        let in_pages = |bytes| {
            Layout::from_size_align(bytes, page_size())
                .expect("pages are a power of two, and sizes are small")
        };
        let entries_layout = in_pages(usize::from(RECEIVE_BUFFERS) * size_of::<BufRingEntry>());
        let memory_layout = in_pages(usize::from(RECEIVE_BUFFERS) * RECEIVE_BUFFER_BYTES);
        // SAFETY: neither layout is empty.
        let (entries, memory) = unsafe { (alloc_zeroed(entries_layout), alloc_zeroed(memory_layout)) };
        let (Some(entries), Some(memory)) = (NonNull::new(entries), NonNull::new(memory)) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut buffers = Self { entries: entries.cast(), memory, tail: 0 };
        // SAFETY: the memory is page-aligned, holds that many entries, and is never freed.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                entries.as_ptr() as u64,
                RECEIVE_BUFFERS,
                BUFFER_GROUP,
                0,
            )?;
        }
        for id in 0..RECEIVE_BUFFERS {
            buffers.give_back(&ReceivedBuffer { id, length: 0 });
        }
        Ok(buffers)
    }

    fn start_of(&self, id: u16) -> *mut u8 {
        debug_assert!(id < RECEIVE_BUFFERS);
        // SAFETY: the id is below the number of buffers, so the result lies in the allocation.
        unsafe { self.memory.as_ptr().add(usize::from(id) * RECEIVE_BUFFER_BYTES) }
    }

    fn bytes(&self, buffer: &ReceivedBuffer) -> &[u8] {
        // SAFETY: the kernel has written that many bytes and leaves the buffer alone until it is given back, which
        // takes the token that is borrowed here.
        unsafe { std::slice::from_raw_parts(self.start_of(buffer.id), buffer.length as usize) }
    }

    fn give_back(&mut self, buffer: &ReceivedBuffer) {
        let place = usize::from(self.tail % RECEIVE_BUFFERS);
        // SAFETY: the place is below the number of entries; the kernel reads only entries before the tail.
        let entry = unsafe { &mut *self.entries.as_ptr().add(place) };
        entry.set_addr(self.start_of(buffer.id) as u64);
        entry.set_len(RECEIVE_BUFFER_BYTES as u32);
        entry.set_bid(buffer.id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry holds the tail, which both sides access atomically.
        let tail = unsafe { &*types::BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Creates a ring for a test. Returns the other end of its wake-up socket too.
    fn ring() -> (Ring, UnixStream) {
        let (bell, rope) = UnixStream::pair().expect("a pair");
        (Ring::new(bell.into()).expect("a ring"), rope)
    }

    /// Submits and waits repeatedly until `count` completions have come, and returns them.
    fn completions(ring: &mut Ring, count: usize) -> Vec<Completion> {
        let mut found = Vec::new();
        for _ in 0..1_000 {
            if found.len() >= count {
                return found;
            }
            ring.submit_and_wait(Some(Duration::from_millis(10))).expect("a working ring");
            ring.reap(&mut found);
        }
        panic!("only {found:?} in ten seconds");
    }

    #[test]
    fn a_number_is_nobody_elses_while_something_queued_names_it() {
        let (mut ring, _rope) = ring();
        let (mut peer, own) = UnixStream::pair().expect("a pair");
        let number = own.as_raw_fd();
        let token = ring.adopt(own.into());
        ring.receive(token);
        completions_after_write(&mut ring, &mut peer);
        ring.cancel_receive(token);
        ring.release(token);
        // The receive is queued and not submitted: a socket opened now must not get the same number.
        let fresh: Vec<UnixStream> = (0..4).map(|_| UnixStream::pair().expect("a pair").0).collect();
        assert!(fresh.iter().all(|socket| socket.as_raw_fd() != number));
        assert!(matches!(completions(&mut ring, 1)[0], Completion::ReceiveStopped { .. }));
        ring.submit_and_wait(Some(Duration::from_millis(1))).expect("a working ring");
        ring.reap(&mut Vec::new());
        assert_eq!(peer.read(&mut [0]).expect("the end"), 0, "it was closed in the end");
        assert_eq!(ring.descriptors.len(), 0);
    }

    fn completions_after_write(ring: &mut Ring, peer: &mut UnixStream) {
        peer.write_all(b"x").expect("a connected socket");
        for completion in completions(ring, 1) {
            let Completion::Received { buffer, .. } = completion else { panic!("{completion:?}") };
            ring.give_back(buffer);
        }
    }

    /// Has the kernel drop each packet that comes for this socket, as if the path to it had gone.
    fn drop_packets(socket: &TcpStream) {
        let mut instruction =
            libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut instruction };
        let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
        let place = (&raw const program).cast::<libc::c_void>();
        let fd = socket.as_raw_fd();
        // SAFETY: the kernel copies the program of one instruction, which outlives the call.
        let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, place, length) };
        assert_eq!(result, 0, "the kernel takes the filter");
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_is_told_from_one_that_reads_nothing() {
        let (mut ring, _rope) = ring();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connect = || {
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            (near, listener.accept().expect("it has connected").0)
        };
        let ((mut near_gone, gone), (mut near_slow, _slow)) = (connect(), connect());
        drop_packets(&gone);
        near_gone.write_all(b"x").expect("the kernel takes it");
        near_slow.set_nonblocking(true).expect("a socket");
        while near_slow.write(&[0; 1 << 13]).is_ok() {}
        let (pair_end, _other) = UnixStream::pair().expect("a pair");
        let [gone, slow, pair_end] = [OwnedFd::from(near_gone), near_slow.into(), pair_end.into()]
            .map(|socket: OwnedFd| ring.adopt(socket));
        assert!(!ring.is_unacknowledged(gone), "it has had no time");
        let has_shown = (0..1_000).any(|_| {
            ring.submit_and_wait(Some(Duration::from_millis(10))).expect("a working ring");
            ring.is_unacknowledged(gone)
        });
        assert!(has_shown);
        assert!(!ring.is_unacknowledged(slow) && !ring.is_unacknowledged(pair_end));
    }

    #[test]
    fn a_busy_kernel_is_asked_again_and_nothing_is_lost_or_overtaken() {
        let (mut ring, _rope) = ring();
        let (mut peer, own) = UnixStream::pair().expect("a pair");
        let token = ring.adopt(own.into());
        // More operations than the queue holds, while the kernel takes nothing.
        ring.busy = 5;
        for _ in 0..2 * SUBMISSIONS {
            ring.wake_after(Duration::ZERO);
        }
        ring.send(token, Segment::Gathered(b"last".to_vec()), 0);
        assert!(!ring.unsubmitted.is_empty());
        assert!(!ring.start_waiting(), "nobody sleeps on what was not submitted");
        for _ in 0..5 {
            ring.submit().expect("a busy kernel is no error");
        }
        let found = completions(&mut ring, 2 * SUBMISSIONS as usize + 1);
        let sent = found.iter().filter(|completion| matches!(completion, Completion::Sent { .. }));
        assert_eq!(sent.count(), 1);
        let mut bytes = [0; 4];
        peer.read_exact(&mut bytes).expect("what was sent");
        assert_eq!(&bytes, b"last");
    }

    #[test]
    fn whom_the_kernel_cannot_wake_is_told() {
        let (mut ring, _rope) = ring();
        let (no_ring, _other) = UnixStream::pair().expect("a pair");
        ring.wake(3, no_ring.as_fd());
        let found = completions(&mut ring, 1);
        assert!(matches!(found[..], [Completion::RungInVain { peer: 3 }]), "{found:?}");
    }

    #[test]
    fn the_memory_that_the_kernel_receives_into_begins_with_a_page() {
        let (ring, _rope) = ring();
        for start in [ring.buffers.entries.as_ptr() as usize, ring.buffers.start_of(0) as usize] {
            assert_eq!(start % page_size(), 0);
        }
    }

    #[test]
    fn a_reset_drops_what_has_not_left_yet() {
        let (mut ring, _rope) = ring();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let near = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut far, _) = listener.accept().expect("connected");
        let token = ring.adopt(near.into());
        ring.receive(token);
        // More bytes than both socket buffers hold, so that many remain in this process.
        let bytes = 64 << 20;
        ring.send(token, Segment::Gathered(vec![0; bytes]), 0);
        ring.submit().expect("a working ring");
        ring.reset(token);
        let found = completions(&mut ring, 2);
        assert!(found.iter().any(|completion| {
            matches!(completion, Completion::EndOfStream { .. } | Completion::ReceiveStopped { .. })
        }));
        let (mut read, mut chunk) = (0, vec![0; 1 << 20]);
        let end = loop {
            match far.read(&mut chunk) {
                Ok(0) => break None,
                Ok(count) => read += count,
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(end, Some(io::ErrorKind::ConnectionReset));
        assert!(read < bytes);
    }

    #[test]
    fn a_room_is_filled_behind_what_it_holds_and_no_further() {
        let (mut ring, _rope) = ring();
        let (mut peer, own) = UnixStream::pair().expect("a pair");
        let token = ring.adopt(own.into());
        peer.write_all(b"behindmore").expect("a socket buffer");
        let mut buffer = b"before".to_vec();
        buffer.reserve(100);
        ring.receive_into(token, Room { buffer, bytes: 6 });
        let found = completions(&mut ring, 1).pop().expect("one");
        let Completion::Filled { buffer, result: Ok(6), .. } = found else { panic!("{found:?}") };
        assert_eq!(buffer, b"beforebehind");
        ring.receive_once(token);
        let found = completions(&mut ring, 1).pop().expect("one");
        let Completion::Received { buffer, .. } = found else { panic!("{found:?}") };
        assert_eq!(ring.bytes(&buffer), b"more");
        ring.give_back(buffer);
    }

    #[test]
    fn a_room_comes_back_when_receiving_is_cancelled_or_at_the_end() {
        let (mut ring, _rope) = ring();
        let (peer, own) = UnixStream::pair().expect("a pair");
        let token = ring.adopt(own.into());
        let room = || Room { buffer: Vec::with_capacity(64), bytes: 64 };
        ring.receive_into(token, room());
        ring.submit().expect("a working ring");
        ring.cancel_receive(token);
        let found = completions(&mut ring, 1).pop().expect("one");
        let Completion::Filled { result: Err(error), .. } = found else { panic!("{found:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        ring.receive_into(token, room());
        drop(peer);
        let found = completions(&mut ring, 1).pop().expect("one");
        assert!(matches!(found, Completion::Filled { result: Ok(0), .. }), "{found:?}");
        assert!(ring.rooms.is_empty());
    }

    #[test]
    fn what_is_large_is_sent_in_parts() {
        let large = || bytes::Bytes::from(vec![b'x'; SEND_BYTES_MAX + 7]);
        let several = vec![Segment::Shared(large()), Segment::Shared(large())];
        for (segment, sends) in [(Segment::Shared(large()), 2), (Segment::Several(several), 3)] {
            let (mut ring, _rope) = ring();
            let (mut peer, own) = UnixStream::pair().expect("a pair");
            let reader = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
            let token = ring.adopt(own.into());
            let length = segment.len();
            let (mut segment, mut sent, mut completed) = (segment, 0, 0);
            while sent < length {
                ring.send(token, segment, sent);
                let found = completions(&mut ring, 1).pop().expect("one");
                let Completion::Sent { segment: back, result: Ok(part), .. } = found else {
                    panic!("{found:?}")
                };
                assert!(part <= SEND_BYTES_MAX);
                (segment, sent, completed) = (back, sent + part, completed + 1);
            }
            assert_eq!((sent, completed), (length, sends));
            ring.shut_down(token);
            assert_eq!(reader.join().expect("it reads").expect("until the end"), length as u64);
        }
    }

    #[test]
    fn one_buffer_at_a_time_ends_with_each() {
        let (mut ring, _rope) = ring();
        let (mut peer, own) = UnixStream::pair().expect("a pair");
        let token = ring.adopt(own.into());
        peer.write_all(&vec![1; 3 * RECEIVE_BUFFER_BYTES]).expect("a socket buffer");
        for _ in 0..3 {
            ring.receive_once(token);
            let found = completions(&mut ring, 1).pop().expect("one");
            let Completion::Received { buffer, ended: true, .. } = found else { panic!("{found:?}") };
            assert_eq!(ring.bytes(&buffer).len(), RECEIVE_BUFFER_BYTES);
            ring.give_back(buffer);
        }
    }

    #[test]
    fn several_pieces_leave_in_one_send_from_wherever_it_had_come_to() {
        let (mut ring, _rope) = ring();
        let (mut peer, own) = UnixStream::pair().expect("a pair");
        let token = ring.adopt(own.into());
        // More bytes than a socket buffer holds.
        let pieces = [
            vec![b'a'; 3],
            vec![b'b'; SEND_BYTES_MAX / 2 - 8],
            Vec::new(),
            vec![b'c'; 5],
            vec![b'd'; SEND_BYTES_MAX / 2 - 8],
        ];
        let whole = pieces.concat();
        for sent in [0, 2, 3, 1000, 3 + SEND_BYTES_MAX / 2 - 8, whole.len() - 1] {
            let pieces = pieces.iter().map(|piece| Segment::Shared(piece.clone().into())).collect();
            ring.send(token, Segment::Several(pieces), sent);
            ring.submit().expect("a working ring");
            let mut read = vec![0; whole.len() - sent];
            std::thread::scope(|threads| {
                threads.spawn(|| peer.read_exact(&mut read).expect("what was sent"));
                let found = completions(&mut ring, 1).pop().expect("one");
                let Completion::Sent { segment, result, .. } = found else { panic!("{found:?}") };
                assert_eq!(result.expect("a connected socket"), whole.len() - sent);
                assert_eq!(segment.len(), whole.len());
            });
            assert!(read == whole[sent..], "from {sent} on");
        }
    }
}
