//! Responses of one HTTP connection that wait to be sent. A large body is a piece of its own, because a copy
//! takes as much memory again, and time in which the core does nothing else.

use crate::protocol::Segment;
use crate::values::limits::COPY_BYTES_MAX;

/// Maximum number of pieces of responses that wait; a body beyond that is copied, however large it is. One
/// send on a socket takes all of them.
const PIECES_MAX: usize = 32;

/// Responses that wait to be sent, as pieces that follow each other.
#[derive(Debug, Default)]
pub struct Written {
    /// Pieces of responses to which nothing is appended any more, in the order in which they are sent; `open`
    /// follows them.
    closed: Vec<Vec<u8>>,
    /// The last piece, to which responses are written.
    pub open: Vec<u8>,
}

impl Written {
    /// Appends the body of a response, without a copy if it is large (above 16 KiB) and not too many pieces
    /// wait.
    pub fn append(&mut self, body: Vec<u8>) {
        if body.len() <= COPY_BYTES_MAX || self.closed.len() + 2 >= PIECES_MAX {
            return self.open.extend_from_slice(&body);
        }
        self.closed.push(std::mem::take(&mut self.open));
        self.closed.push(body);
    }

    /// Takes all responses, and puts the buffer `spare` in their place; `None` if there are none.
    pub fn take(&mut self, spare: Vec<u8>) -> Option<Segment> {
        if self.closed.is_empty() && self.open.is_empty() {
            return None;
        }
        let open = std::mem::replace(&mut self.open, spare);
        if self.closed.is_empty() {
            return Some(Segment::Gathered(open));
        }
        let pieces = std::mem::take(&mut self.closed).into_iter().chain([open]);
        Some(Segment::Several(pieces.filter(|piece| !piece.is_empty()).map(Segment::Gathered).collect()))
    }

    /// Returns the memory that the responses hold, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.open.capacity() + self.closed.iter().map(Vec::capacity).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_sent_in_order_in_few_pieces() {
        let (mut written, mut all) = (Written::default(), Vec::new());
        for number in 0..100_usize {
            let body = vec![number as u8; if number % 3 == 0 { 10 } else { COPY_BYTES_MAX + 1 }];
            written.open.extend_from_slice(b"head");
            all.extend_from_slice(b"head");
            all.extend_from_slice(&body);
            written.append(body);
        }
        assert!(written.memory_bytes() >= all.len());
        let segment = written.take(Vec::new()).expect("responses");
        assert!(segment.pieces().count() <= PIECES_MAX);
        assert!(segment.pieces().all(|piece| !piece.is_empty()));
        assert!(segment.bytes() == all);
        assert!(written.take(Vec::new()).is_none() && written.memory_bytes() == 0);
    }

    #[test]
    fn a_large_body_is_not_copied() {
        let mut written = Written::default();
        written.open.extend_from_slice(b"head");
        let body = vec![b'x'; COPY_BYTES_MAX + 1];
        let place = body.as_ptr();
        written.append(body);
        let segment = written.take(Vec::new()).expect("a response");
        assert!(segment.pieces().any(|piece| piece.as_ptr() == place));
    }
}
