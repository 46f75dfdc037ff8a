//! The descriptors of files and sockets that a ring works on. Each stays open until no operation, queued or in
//! flight, names it: the kernel resolves a descriptor's number when it starts the operation, and a number that
//! was closed early may belong to another socket by then.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use slab::Slab;

use super::ring::Token;

#[derive(Debug)]
struct Descriptor {
    fd: OwnedFd,
    /// The number of operations handed to the ring that name this descriptor and have not completed.
    operations: u32,
    /// True once the descriptor's owner no longer uses it; the ring closes it when its last operation has
    /// completed.
    released: bool,
}

/// All descriptors of one ring, by token (the number by which the ring names a descriptor). A token is used
/// again only after its descriptor was closed.
#[derive(Debug, Default)]
pub(super) struct Descriptors(Slab<Descriptor>);

impl Descriptors {
    /// Takes ownership of a descriptor, and returns the token by which the ring names it.
    pub fn adopt(&mut self, fd: OwnedFd) -> Token {
        self.0.insert(Descriptor { fd, operations: 0, released: false }) as Token
    }

    /// Counts an `io_uring` operation that begins on the descriptor which `token` names, and returns the
    /// descriptor's number for the kernel. Panics if the descriptor was released.
    pub fn begin(&mut self, token: Token) -> RawFd {
        let descriptor = &mut self.0[token as usize];
        assert!(!descriptor.released, "nothing new begins on a descriptor that was released");
        descriptor.operations += 1;
        descriptor.fd.as_raw_fd()
    }

    /// Counts one `io_uring` operation on the descriptor as completed. Closes the descriptor if it was
    /// released and no other operation names it.
    pub fn finish(&mut self, token: Token) {
        let descriptor = &mut self.0[token as usize];
        descriptor.operations -= 1;
        self.close_if_done(token);
    }

    /// Marks a descriptor as no longer used by its owner: it is closed when its last `io_uring` operation has
    /// completed, or at once if there is none.
    pub fn release(&mut self, token: Token) {
        self.0[token as usize].released = true;
        self.close_if_done(token);
    }

    pub fn get(&self, token: Token) -> BorrowedFd<'_> {
        self.0[token as usize].fd.as_fd()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn close_if_done(&mut self, token: Token) {
        let descriptor = &self.0[token as usize];
        if descriptor.released && descriptor.operations == 0 {
            self.0.remove(token as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_is_closed_when_nothing_names_it_any_more() {
        let (mut one, other) = UnixStream::pair().expect("a pair");
        let mut descriptors = Descriptors::default();
        let token = descriptors.adopt(other.into());
        descriptors.begin(token);
        descriptors.begin(token);
        descriptors.release(token);
        descriptors.finish(token);
        one.set_nonblocking(true).expect("a socket");
        let still_open = std::io::Read::read(&mut one, &mut [0]).expect_err("nothing was sent");
        assert_eq!(still_open.kind(), std::io::ErrorKind::WouldBlock);
        descriptors.finish(token);
        assert_eq!(std::io::Read::read(&mut one, &mut [0]).expect("the end"), 0);
        assert_eq!(descriptors.len(), 0);
    }

    #[test]
    #[should_panic(expected = "nothing new begins")]
    fn nothing_begins_on_what_was_released() {
        let mut descriptors = Descriptors::default();
        let token = descriptors.adopt(UnixStream::pair().expect("a pair").0.into());
        descriptors.begin(token);
        descriptors.release(token);
        descriptors.begin(token);
    }
}
