//! The forwarder's `io_uring`, with safe methods. It is set up as weir's own (multishot accepts and receives,
//! one ring of receive buffers for all connections, completions delivered only when the thread enters the
//! kernel), so that a comparison with weir does not measure a difference in the kernel's work. The ring owns
//! sockets and bytes that are being sent until the kernel is done with them.

#![expect(unsafe_code, reason = "the kernel's interface is made of pointers; this file is its border")]

use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use slab::Slab;
use socket2::Socket;

/// The number of receive buffers, of 20 KiB each; as many as one core of weir has, so that the two can be compared.
const BUFFERS: u16 = 256;
const BUFFER_BYTES: usize = 20 * 1024;
/// The number of operations that fit in the `io_uring`'s queue to the kernel; more are submitted in several
/// steps.
const SUBMISSIONS: u32 = 1024;
/// The number of completed operations that fit in the `io_uring`; the kernel keeps further ones aside.
const COMPLETIONS: u32 = 8192;
/// Maximum number of bytes of one send operation.
const SEND_BYTES_MAX: usize = 1 << 20;
const BUFFER_GROUP: u16 = 0;

/// The number that names a connection of a [`Ring`]: its index in the ring's list of connections, used again after the
/// connection is closed.
pub type Token = u32;

/// A completed operation of the forwarder's `io_uring`.
#[derive(Debug)]
pub enum Completion {
    Accepted(io::Result<Socket>),
    /// Bytes have been received on a connection.
    Received {
        socket: Token,
        buffer: ReceivedBuffer,
    },
    /// No more bytes will be received: the peer has ended its side, or the connection failed. This comes once
    /// per connection.
    Ended {
        socket: Token,
    },
    /// A send is over, whether all bytes were sent or the connection failed; its buffer (`bytes`) comes
    /// back.
    Sent {
        socket: Token,
        bytes: Vec<u8>,
    },
}

/// A receive buffer with received bytes in it, which must be given back with [`Ring::give_back`].
#[derive(Debug)]
#[must_use = "give it back, or the ring runs out of buffers"]
pub struct ReceivedBuffer {
    id: u16,
    length: u32,
}

struct Connection {
    socket: Socket,
    is_receiving: bool,
    sending: Option<Sending>,
}

struct Sending {
    bytes: Vec<u8>,
    sent: usize,
}

const KIND_SHIFT: u32 = 56;
const KIND_ACCEPT: u64 = 1;
const KIND_RECEIVE: u64 = 2;
const KIND_SEND: u64 = 3;

fn tag(kind: u64, token: Token) -> u64 {
    kind << KIND_SHIFT | u64::from(token)
}

/// The `io_uring` of the forwarder's only thread.
pub struct Ring {
    kernel: IoUring,
    buffers: ReceiveBuffers,
    listener: Option<Socket>,
    connections: Slab<Connection>,
    /// Operations that found no room in the queue to the kernel, oldest first: at most two per connection,
    /// and an accept.
    unsubmitted: VecDeque<squeue::Entry>,
    /// A buffer for the kernel's completions, empty between two calls of `reap`, which reuses its memory.
    completed: Vec<cqueue::Entry>,
}

impl Ring {
    /// Sets up an `io_uring` for the calling thread, the only one that may use it.
    pub fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder
            .setup_cqsize(COMPLETIONS)
            .setup_clamp()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun();
        let kernel: IoUring = builder.build(SUBMISSIONS)?;
        // A registered ring saves a look-up per system call; older kernels do without.
        let _ = kernel.submitter().register_ring_fd();
        let buffers = ReceiveBuffers::new(&kernel)?;
        Ok(Self {
            kernel,
            buffers,
            listener: None,
            connections: Slab::new(),
            unsubmitted: VecDeque::new(),
            completed: Vec::new(),
        })
    }

    /// Begins to accept connections on a listening socket.
    pub fn listen(&mut self, listener: Socket) {
        self.listener = Some(listener);
        self.accept();
    }

    /// Takes ownership of a connection, and begins to receive on it. Returns the number (token) by which it
    /// is named from now on.
    pub fn adopt(&mut self, socket: Socket) -> Token {
        let connection = Connection { socket, is_receiving: true, sending: None };
        let token = self.connections.insert(connection) as Token;
        self.receive(token);
        token
    }

    /// Shuts a connection down in both directions, so that operations in flight on it complete.
    pub fn shut_down(&self, token: Token) {
        // A failure means that there is no connection to end.
        let _ = self.connections[token as usize].socket.shutdown(Shutdown::Both);
    }

    /// Closes a connection on which no operation is in flight: it has ended, and its last send is over.
    pub fn close(&mut self, token: Token) {
        let connection = self.connections.remove(token as usize);
        assert!(!connection.is_receiving && connection.sending.is_none(), "nothing is under way");
    }

    /// Sends all these bytes, unless the connection fails. A connection may have one send in flight.
    pub fn send(&mut self, token: Token, bytes: Vec<u8>) {
        let before = self.connections[token as usize].sending.replace(Sending { bytes, sent: 0 });
        assert!(before.is_none(), "one send of a connection is under way");
        self.send_rest(token);
    }

    /// Returns the bytes in a receive buffer.
    pub fn bytes(&self, buffer: &ReceivedBuffer) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Gives a receive buffer back to the kernel, which may receive into it again.
    #[expect(clippy::needless_pass_by_value, reason = "the token is used up")]
    pub fn give_back(&mut self, buffer: ReceivedBuffer) {
        self.buffers.give_back(&buffer);
    }

    /// Submits queued operations to the kernel, and sleeps until at least one operation has completed or a signal
    /// comes; does not sleep if more operations are queued than fit.
    pub fn submit_and_wait(&mut self) -> io::Result<()> {
        while let Some(entry) = self.unsubmitted.pop_front() {
            if !queue(&mut self.kernel, &entry) {
                self.unsubmitted.push_front(entry);
                // More operations wait than fit in the queue: no time to sleep.
                return passing(self.kernel.submit());
            }
        }
        passing(self.kernel.submit_and_wait(1))
    }

    /// Appends all operations that have completed to `completions`. Does not wait.
    pub fn reap(&mut self, completions: &mut Vec<Completion>) {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.kernel.completion());
        completions.extend(completed.drain(..).filter_map(|entry| self.interpret(&entry)));
        self.completed = completed;
    }

    fn interpret(&mut self, entry: &cqueue::Entry) -> Option<Completion> {
        let (kind, token) = (entry.user_data() >> KIND_SHIFT, entry.user_data() as Token);
        let has_ended = !cqueue::more(entry.flags());
        let result = match u32::try_from(entry.result()) {
            Ok(result) => Ok(result),
            Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
        };
        match kind {
            KIND_ACCEPT => {
                if has_ended {
                    self.accept();
                }
                // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
                let socket = result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) }.into());
                Some(Completion::Accepted(socket))
            }
            KIND_RECEIVE => self.received(token, result, cqueue::buffer_select(entry.flags()), has_ended),
            _ => self.sent(token, result),
        }
    }

    fn received(
        &mut self,
        token: Token,
        result: io::Result<u32>,
        buffer: Option<u16>,
        has_ended: bool,
    ) -> Option<Completion> {
        let received = match (&result, buffer) {
            (Ok(length), Some(id)) if *length > 0 => Some(ReceivedBuffer { id, length: *length }),
            (_, Some(id)) => {
                // Some kernels use up a buffer for an end of stream.
                self.buffers.give_back(&ReceivedBuffer { id, length: 0 });
                None
            }
            (_, None) => None,
        };
        let goes_on = received.is_some() || result.is_err_and(|error| is_passing(&error));
        if has_ended && goes_on {
            // The buffers of this turn are given back before this receive is submitted, so that it finds one.
            self.receive(token);
        }
        if let Some(buffer) = received {
            return Some(Completion::Received { socket: token, buffer });
        }
        if goes_on {
            return None;
        }
        self.connections[token as usize].is_receiving = false;
        Some(Completion::Ended { socket: token })
    }

    fn sent(&mut self, token: Token, result: io::Result<u32>) -> Option<Completion> {
        let sending = &mut self.connections[token as usize].sending;
        let Sending { bytes, sent } = sending.as_mut().expect("a send is under way");
        let failed = match result {
            Ok(length) => {
                *sent += length as usize;
                length == 0
            }
            Err(error) => !is_passing(&error),
        };
        if !failed && *sent < bytes.len() {
            self.send_rest(token);
            return None;
        }
        let bytes = sending.take().expect("a send is under way").bytes;
        Some(Completion::Sent { socket: token, bytes })
    }

    fn accept(&mut self) {
        let fd = Fd(self.listener.as_ref().expect("it listens").as_raw_fd());
        let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
        self.push(entry.user_data(tag(KIND_ACCEPT, 0)));
    }

    fn receive(&mut self, token: Token) {
        let fd = Fd(self.connections[token as usize].socket.as_raw_fd());
        let entry = opcode::RecvMulti::new(fd, BUFFER_GROUP).build();
        self.push(entry.user_data(tag(KIND_RECEIVE, token)));
    }

    fn send_rest(&mut self, token: Token) {
        let connection = &self.connections[token as usize];
        let Sending { bytes, sent } = connection.sending.as_ref().expect("a send is under way");
        let rest = &bytes[*sent..];
        let rest = &rest[..rest.len().min(SEND_BYTES_MAX)];
        // The bytes are on the heap, so moving their vector does not move them.
        let entry = opcode::Send::new(Fd(connection.socket.as_raw_fd()), rest.as_ptr(), rest.len() as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        self.push(entry.user_data(tag(KIND_SEND, token)));
    }

    /// Queues an operation, after earlier ones that found no room in the kernel's queue.
    fn push(&mut self, entry: squeue::Entry) {
        if !self.unsubmitted.is_empty() || !queue(&mut self.kernel, &entry) {
            self.unsubmitted.push_back(entry);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel tears a closed ring down in its own time and may read what is being sent until then, so that
        // memory is leaked; the process ends.
        std::mem::forget(std::mem::take(&mut self.connections));
    }
}

fn queue(kernel: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: the ring owns everything that the entry points to (`connections`, `buffers`) and the descriptors that it
    // names (`connections`, `listener`) until the kernel has completed it; `close` checks that.
    unsafe { kernel.submission().push(entry) }.is_ok()
}

/// True for an error after which the operation is simply tried again: it was interrupted, no receive buffer
/// was left, or the kernel wants completions to be taken first.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ENOBUFS))
}

fn passing(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(error) if !is_passing(&error) => Err(error),
        _ => Ok(()),
    }
}

/// The memory that the kernel receives into: a ring of descriptors and the buffers that they describe. It is
/// never freed, since a ring lives as long as its process.
struct ReceiveBuffers {
    entries: NonNull<BufRingEntry>,
    memory: NonNull<u8>,
    tail: u16,
}

const _: () = assert!(BUFFERS.is_power_of_two(), "the kernel masks with it");

impl ReceiveBuffers {
    fn new(kernel: &IoUring) -> io::Result<Self> {
        // SAFETY: the call reads a constant of the system.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let layout = |bytes| Layout::from_size_align(bytes, page_bytes).expect("a small size");
        let entries_layout = layout(usize::from(BUFFERS) * size_of::<BufRingEntry>());
        // SAFETY: neither layout is empty.
        let (entries, memory) = unsafe {
            (alloc_zeroed(entries_layout), alloc_zeroed(layout(usize::from(BUFFERS) * BUFFER_BYTES)))
        };
        let (Some(entries), Some(memory)) = (NonNull::new(entries), NonNull::new(memory)) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut buffers = Self { entries: entries.cast(), memory, tail: 0 };
        // SAFETY: the memory is page-aligned, holds that many entries, and is never freed.
        unsafe {
            kernel.submitter().register_buf_ring_with_flags(
                entries.as_ptr() as u64,
                BUFFERS,
                BUFFER_GROUP,
                0,
            )?;
        }
        (0..BUFFERS).for_each(|id| buffers.give_back(&ReceivedBuffer { id, length: 0 }));
        Ok(buffers)
    }

    fn start_of(&self, id: u16) -> *mut u8 {
        assert!(id < BUFFERS, "the kernel names buffers that it was given");
        // SAFETY: the id is below the number of buffers, so the result lies in the allocation.
        unsafe { self.memory.as_ptr().add(usize::from(id) * BUFFER_BYTES) }
    }

    fn bytes(&self, buffer: &ReceivedBuffer) -> &[u8] {
        // SAFETY: the kernel has written that many bytes and leaves the buffer alone until it is given back, which takes
        // the token that is borrowed here.
        unsafe { std::slice::from_raw_parts(self.start_of(buffer.id), buffer.length as usize) }
    }

    fn give_back(&mut self, buffer: &ReceivedBuffer) {
        let place = usize::from(self.tail % BUFFERS);
        // SAFETY: the place is below the number of entries; the kernel reads only entries before the tail.
        let entry = unsafe { &mut *self.entries.as_ptr().add(place) };
        entry.set_addr(self.start_of(buffer.id) as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer.id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry holds the tail, which both sides access atomically.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}
