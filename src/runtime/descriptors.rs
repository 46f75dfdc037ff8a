//! The descriptors that a ring works on. Each stays open until nothing names it any more, neither queued nor in flight:
//! the kernel looks a number up when it gets to it, and a number that was given back early may be somebody else's by then.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use slab::Slab;

use super::ring::Token;

#[derive(Debug)]
struct Descriptor {
    fd: OwnedFd,
    /// Requests to the kernel that name it and are not over.
    operations: u32,
    /// Its user is done with it.
    released: bool,
}

/// All descriptors of one ring. A place is taken again only when its descriptor is closed.
#[derive(Debug, Default)]
pub(super) struct Descriptors(Slab<Descriptor>);

impl Descriptors {
    /// Takes a descriptor over, and names it.
    pub fn adopt(&mut self, fd: OwnedFd) -> Token {
        self.0.insert(Descriptor { fd, operations: 0, released: false }) as Token
    }

    /// An operation on it begins: the number to give to the kernel.
    pub fn begin(&mut self, token: Token) -> RawFd {
        let descriptor = &mut self.0[token as usize];
        assert!(!descriptor.released, "nothing new begins on a descriptor that was released");
        descriptor.operations += 1;
        descriptor.fd.as_raw_fd()
    }

    /// An operation on it is over.
    pub fn finish(&mut self, token: Token) {
        let descriptor = &mut self.0[token as usize];
        descriptor.operations -= 1;
        self.close_if_done(token);
    }

    /// Its user is done with it: it is closed when the last operation is over.
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
