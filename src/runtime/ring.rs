//! One `io_uring` per core, with safe verbs. All of weir's unsafe code is in this file.
//!
//! What the kernel borrows, the ring owns until the kernel is done: a segment that is being sent comes back with
//! its completion, a receive buffer is lent out as a token and given back. So no caller can free memory that the
//! kernel still writes to or reads from.
//!
//! Completions are only looked for on entry (`DEFER_TASKRUN`), and `wait_handle` is an eventfd that the kernel
//! signals when there is something to look for, so that the executor around the ring can sleep on it.

#![expect(unsafe_code, reason = "the kernel's interface is made of pointers; this file is its border")]

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;

use crate::protocol::Segment;
use crate::values::limits::{RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS};

/// Requests to the kernel that fit into one batch; a fuller batch is submitted in steps.
const SUBMISSIONS: u32 = 1024;
/// Completions that fit before the kernel must keep them aside.
const COMPLETIONS: u32 = 8192;
const BUFFER_GROUP: u16 = 0;

/// The caller's name for a socket; comes back with its completions.
pub type Token = u32;

/// What the kernel has to say.
#[derive(Debug)]
pub enum Completion {
    /// A listener has a new connection, or an error. `ended`: it must be armed again.
    Accepted { listener: Token, socket: io::Result<OwnedFd>, ended: bool },
    /// Bytes have come in. `ended`: receiving must be armed again.
    Received { socket: Token, buffer: ReceivedBuffer, ended: bool },
    /// The other side sends no more.
    EndOfStream { socket: Token },
    /// Receiving has stopped, for want of buffers, because it was cancelled, or because the socket failed.
    ReceiveStopped { socket: Token, error: io::Error },
    /// A segment was sent from where it had been sent so far, or could not be.
    Sent { socket: Token, segment: Segment, result: io::Result<usize> },
    /// A connection was made, or not.
    Connected { socket: Token, result: io::Result<()> },
    /// Another core's ring, or this ring's own clock, wanted this one awake.
    Woken,
}

/// A receive buffer with bytes in it. Must be given back.
#[derive(Debug)]
#[must_use = "give it back, or the ring runs out of buffers"]
pub struct ReceivedBuffer {
    id: u16,
    length: u32,
}

/// What the kernel is busy with, kept alive until it is done.
#[derive(Debug)]
enum Borrowed {
    Sending { socket: Token, segment: Segment },
    Connecting { socket: Token, _address: Box<socket2::SockAddr> },
    Time { _at: Box<Timespec> },
}

const KIND_SHIFT: u32 = 56;
const KIND_ACCEPT: u64 = 1;
const KIND_RECEIVE: u64 = 2;
const KIND_BORROWED: u64 = 3;
const KIND_WOKEN: u64 = 4;
const KIND_SILENT: u64 = 5;
const KIND_BELL: u64 = 6;

fn tag(kind: u64, value: u64) -> u64 {
    kind << KIND_SHIFT | value
}

/// The ring of one core.
pub struct Ring {
    kernel: IoUring,
    buffers: ReceiveBuffers,
    borrowed: Slab<Borrowed>,
    wait_handle: OwnedFd,
    bell: OwnedFd,
}

impl Ring {
    /// Sets up a ring for the calling thread, the only one that may use it.
    /// Whoever writes to the other end of `bell`, a socket, wakes it.
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
        // Saves a look-up per call; older kernels go without.
        let _ = ring.submitter().register_ring_fd();
        let wait_handle = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(wait_handle.as_raw_fd())?;
        ring.completion().disable_eventfd();
        let buffers = ReceiveBuffers::new(&ring)?;
        let mut ring = Self { kernel: ring, buffers, borrowed: Slab::new(), wait_handle, bell };
        ring.listen_to_bell()?;
        Ok(ring)
    }

    /// The file descriptor that other rings address messages to.
    pub fn as_raw_fd(&self) -> RawFd {
        self.kernel.as_raw_fd()
    }

    /// Readable when there may be completions, between `start_waiting` and `stop_waiting`.
    pub fn wait_handle(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.wait_handle.as_fd()
    }

    /// From now on, completions signal the wait handle. False if some are there already.
    pub fn start_waiting(&mut self) -> bool {
        self.kernel.completion().enable_eventfd();
        if self.has_completions() {
            self.stop_waiting();
            return false;
        }
        true
    }

    /// Completions no longer signal the wait handle.
    pub fn stop_waiting(&mut self) {
        self.kernel.completion().disable_eventfd();
    }

    /// Is there anything that `reap` would find?
    pub fn has_completions(&mut self) -> bool {
        let submission = self.kernel.submission();
        let pending = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        pending || !self.kernel.completion().is_empty()
    }

    fn listen_to_bell(&mut self) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(self.bell.as_raw_fd()), BUFFER_GROUP)
            .build()
            .user_data(tag(KIND_BELL, 0));
        self.push(&entry)
    }

    /// Accepts connections until told otherwise.
    pub fn accept(&mut self, listener: Token, socket: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::AcceptMulti::new(Fd(socket.as_raw_fd()))
            .flags(libc::SOCK_CLOEXEC)
            .build()
            .user_data(tag(KIND_ACCEPT, u64::from(listener)));
        self.push(&entry)
    }

    /// Receives into the ring's buffers until told otherwise.
    pub fn receive(&mut self, socket: Token, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(fd.as_raw_fd()), BUFFER_GROUP)
            .build()
            .user_data(tag(KIND_RECEIVE, u64::from(socket)));
        self.push(&entry)
    }

    /// Stops receiving; `ReceiveStopped` says when.
    pub fn cancel_receive(&mut self, socket: Token) -> io::Result<()> {
        self.cancel(tag(KIND_RECEIVE, u64::from(socket)))
    }

    /// Stops accepting.
    pub fn cancel_accept(&mut self, listener: Token) -> io::Result<()> {
        self.cancel(tag(KIND_ACCEPT, u64::from(listener)))
    }

    fn cancel(&mut self, user_data: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(user_data).build().user_data(tag(KIND_SILENT, 0));
        self.push(&entry)
    }

    /// Sends a segment from `sent` on, and gives it back with the completion.
    pub fn send(
        &mut self,
        socket: Token,
        fd: BorrowedFd<'_>,
        segment: Segment,
        sent: usize,
    ) -> io::Result<()> {
        let bytes = &segment.bytes()[sent..];
        let (start, length) = (bytes.as_ptr(), bytes.len() as u32);
        // The bytes are on the heap (a vector's or shared ones), so moving the segment does not move them.
        let place = self.borrowed.insert(Borrowed::Sending { socket, segment });
        let entry = opcode::Send::new(Fd(fd.as_raw_fd()), start, length)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
            .user_data(tag(KIND_BORROWED, place as u64));
        self.push(&entry)
    }

    /// Connects a socket.
    pub fn connect(
        &mut self,
        socket: Token,
        fd: BorrowedFd<'_>,
        address: socket2::SockAddr,
    ) -> io::Result<()> {
        let address = Box::new(address);
        let (start, length) = (address.as_ptr(), address.len());
        let place = self.borrowed.insert(Borrowed::Connecting { socket, _address: address });
        let entry = opcode::Connect::new(Fd(fd.as_raw_fd()), start.cast(), length)
            .build()
            .user_data(tag(KIND_BORROWED, place as u64));
        self.push(&entry)
    }

    /// Ends a socket in both directions, so that whatever is under way on it completes.
    pub fn shutdown(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry =
            opcode::Shutdown::new(Fd(fd.as_raw_fd()), libc::SHUT_RDWR).build().user_data(tag(KIND_SILENT, 0));
        self.push(&entry)
    }

    /// Sees to it that this ring has a completion when so much time has passed.
    pub fn wake_after(&mut self, pause: std::time::Duration) -> io::Result<()> {
        let at = Box::new(Timespec::from(pause));
        let start: *const Timespec = &raw const *at;
        let place = self.borrowed.insert(Borrowed::Time { _at: at });
        let entry = opcode::Timeout::new(start).build().user_data(tag(KIND_BORROWED, place as u64));
        self.push(&entry)
    }

    /// Wakes the core that owns another ring.
    pub fn wake(&mut self, ring: RawFd) -> io::Result<()> {
        let entry = opcode::MsgRingData::new(Fd(ring), 0, tag(KIND_WOKEN, 0), None)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(tag(KIND_SILENT, 0));
        self.push(&entry)
    }

    /// Hands what was pushed to the kernel and lets it finish what is due, in one call; no call if there is nothing.
    pub fn submit(&mut self) -> io::Result<()> {
        let submission = self.kernel.submission();
        let nothing = submission.is_empty() && !submission.taskrun() && !submission.cq_overflow();
        drop(submission);
        if nothing {
            return Ok(());
        }
        match self.kernel.submit() {
            // Interrupted, or the kernel wants completions reaped first: the next turn tries again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    /// Hands over and sleeps until there is a completion or the time has passed.
    pub fn submit_and_wait(&mut self, pause_max: Option<std::time::Duration>) -> io::Result<()> {
        let result = match pause_max {
            None => self.kernel.submit_and_wait(1),
            Some(pause) => {
                let time = Timespec::from(pause);
                self.kernel.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME)
                ) =>
            {
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    /// Moves what has completed into `completions`.
    pub fn reap(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        let Self { kernel, borrowed, buffers, .. } = self;
        let mut deaf = false;
        completions.extend(kernel.completion().filter_map(|entry| {
            if entry.user_data() == tag(KIND_BELL, 0) {
                deaf |= !cqueue::more(entry.flags());
                // What was written does not matter.
                if let Some(id) = cqueue::buffer_select(entry.flags()) {
                    buffers.give_back(&ReceivedBuffer { id, length: 0 });
                }
            }
            interpret(&entry, borrowed)
        }));
        if deaf {
            self.listen_to_bell()?;
        }
        Ok(())
    }

    /// The bytes of a receive buffer.
    pub fn bytes(&self, buffer: &ReceivedBuffer) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Lets the kernel write to the buffer again.
    #[expect(clippy::needless_pass_by_value, reason = "the token is used up")]
    pub fn give_back(&mut self, buffer: ReceivedBuffer) {
        self.buffers.give_back(&buffer);
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: everything the entry points to is owned by `self.borrowed` or `self.buffers` until the kernel
            // has completed it, and file descriptors are only closed after that or fail cleanly.
            let pushed = unsafe { self.kernel.submission().push(entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.kernel.submit()?;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still read what is being sent: it is let go of only by a ring that is gone, and a ring is
        // torn down in the background. What is left is a bounded leak at the end of the process.
        std::mem::forget(std::mem::take(&mut self.borrowed));
    }
}

fn interpret(entry: &cqueue::Entry, borrowed: &mut Slab<Borrowed>) -> Option<Completion> {
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
        KIND_BORROWED => match borrowed.remove(value as usize) {
            Borrowed::Sending { socket, segment } => {
                Completion::Sent { socket, segment, result: result.map(|sent| sent as usize) }
            }
            Borrowed::Connecting { socket, .. } => {
                Completion::Connected { socket, result: result.map(|_| ()) }
            }
            Borrowed::Time { .. } => Completion::Woken,
        },
        KIND_WOKEN | KIND_BELL => Completion::Woken,
        _ => return None,
    })
}

/// Memory that the kernel receives into: a ring of descriptors and the buffers they describe. Never freed: a closed
/// ring is torn down in the kernel's own time, and a ring lives as long as its process.
struct ReceiveBuffers {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    tail: u16,
}

impl ReceiveBuffers {
    const ENTRIES_LAYOUT: Layout =
        match Layout::from_size_align(RECEIVE_BUFFERS as usize * size_of::<BufRingEntry>(), 4096) {
            Ok(layout) => layout,
            Err(_) => panic!("the layout is constant"),
        };
    const MEMORY_LAYOUT: Layout =
        match Layout::from_size_align(RECEIVE_BUFFERS as usize * RECEIVE_BUFFER_BYTES, 4096) {
            Ok(layout) => layout,
            Err(_) => panic!("the layout is constant"),
        };

    fn new(ring: &IoUring) -> io::Result<Self> {
        // SAFETY: neither layout is empty.
        let (entries, memory) =
            unsafe { (alloc_zeroed(Self::ENTRIES_LAYOUT), alloc_zeroed(Self::MEMORY_LAYOUT)) };
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
