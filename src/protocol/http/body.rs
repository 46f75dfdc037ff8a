//! Body of an HTTP request: a known number of bytes, or chunks (`Transfer-Encoding: chunked`).

use super::Status;
use super::head::Length;

/// Number of received bytes beyond which the line before a chunk of an HTTP body, or a line of the trailer
/// after the last one, is refused with status 400 if its end has not come yet.
const LINE_BYTES_MAX: usize = 1024;
/// Maximum number of bytes of the trailer, the header lines that follow the last chunk of an HTTP body. A
/// longer one is refused with status 431.
const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// The body of an HTTP request that is being received.
#[derive(Debug)]
pub struct Body {
    pub bytes: Vec<u8>,
    state: State,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The body has a known length; the field is the number of missing bytes.
    Plain(usize),
    /// The next bytes of the body are the line with the length of a chunk.
    Size,
    /// The next bytes belong to a chunk; the field is the number of its missing bytes, after which a line end
    /// follows.
    Chunk(usize),
    ChunkEnd,
    /// The next bytes belong to the trailer (header lines after the last chunk), which ends with an empty
    /// line; the field is the number of its bytes so far.
    Trailer(usize),
    Done,
}

impl Body {
    /// Creates the state of an HTTP body of the length that the headers state, of which nothing has been
    /// received. The error is the refusal of a body that is larger than `bytes_max`.
    pub fn new(length: Length, bytes_max: usize) -> Result<Self, Status> {
        let state = match length {
            Length::Known(length) => match usize::try_from(length).ok().filter(|length| *length <= bytes_max)
            {
                Some(0) => State::Done,
                Some(length) => State::Plain(length),
                None => return Err(Status::ContentTooLarge),
            },
            Length::Chunks => State::Size,
        };
        Ok(Self { bytes: Vec::new(), state, bytes_max })
    }

    pub fn is_whole(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the body's bytes from the start of `received`, and returns how many bytes of `received` it used,
    /// framing included. The error is the refusal of a malformed or too large body.
    pub fn take(&mut self, received: &[u8]) -> Result<usize, Status> {
        let mut at = 0;
        while self.state != State::Done {
            let rest = &received[at..];
            match self.state {
                State::Plain(missing) | State::Chunk(missing) => {
                    let taken = missing.min(rest.len());
                    if taken == 0 {
                        return Ok(at);
                    }
                    self.bytes.extend_from_slice(&rest[..taken]);
                    at += taken;
                    self.state = match (self.state, missing - taken) {
                        (State::Plain(_), 0) => State::Done,
                        (State::Plain(_), missing) => State::Plain(missing),
                        (_, 0) => State::ChunkEnd,
                        (_, missing) => State::Chunk(missing),
                    };
                }
                State::ChunkEnd => {
                    if rest.len() < 2 && b"\r\n".starts_with(rest) {
                        return Ok(at);
                    }
                    if !rest.starts_with(b"\r\n") {
                        return Err(Status::BadRequest("a chunk is longer than its length"));
                    }
                    (at, self.state) = (at + 2, State::Size);
                }
                State::Size => {
                    let Some(line) = line(rest)? else { return Ok(at) };
                    at += line.len() + 2;
                    let size = size_of(line)?;
                    if size > self.bytes_max - self.bytes.len() {
                        return Err(Status::ContentTooLarge);
                    }
                    self.state = if size == 0 { State::Trailer(0) } else { State::Chunk(size) };
                }
                State::Trailer(seen) => {
                    let Some(line) = line(rest)? else { return Ok(at) };
                    let seen = seen + line.len() + 2;
                    if seen > TRAILER_BYTES_MAX {
                        return Err(Status::HeadersTooLarge);
                    }
                    at += line.len() + 2;
                    self.state = if line.is_empty() { State::Done } else { State::Trailer(seen) };
                }
                State::Done => {}
            }
        }
        Ok(at)
    }
}

/// Returns the first line of `bytes` without its line end; `None` if it is not whole. The error is the
/// refusal of a line that is too long or ends wrongly.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Status> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(bytes.len()) > LINE_BYTES_MAX {
        return Err(Status::BadRequest("a line among the chunks is too long"));
    }
    match end {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' && !bytes[..end - 1].contains(&b'\r') => {
            Ok(Some(&bytes[..end - 1]))
        }
        Some(_) => Err(Status::BadRequest("a line among the chunks ends with CR alone or LF alone")),
        None => Ok(None),
    }
}

/// Reads the length of a chunk, in bytes, from the line before it; chunk extensions after the number are
/// ignored. The error is the refusal of any other line.
fn size_of(line: &[u8]) -> Result<usize, Status> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let is_number = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let size = usize::from_str_radix(text, 16).ok().filter(|_| is_number);
    size.ok_or(Status::BadRequest("the length of a chunk is one to eight hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a body in chunks that arrives in pieces of `pieces` bytes. Returns the body, the bytes that
    /// follow it, and true if the body is complete. The error is the refusal of a malformed or too large
    /// body.
    fn read(text: &[u8], pieces: usize, bytes_max: usize) -> Result<(Vec<u8>, Vec<u8>, bool), Status> {
        let mut body = Body::new(Length::Chunks, bytes_max)?;
        let mut held = Vec::new();
        for piece in text.chunks(pieces.max(1)) {
            held.extend_from_slice(piece);
            let taken = body.take(&held)?;
            held.drain(..taken);
        }
        Ok((body.bytes.clone(), held, body.is_whole()))
    }

    #[test]
    fn chunks_make_a_body_in_whatever_pieces_they_come() {
        let text = b"5\r\nhello\r\n00001;ext=\"a b\"\r\n \r\nA \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nGET";
        for pieces in 1..text.len() {
            let (bytes, rest, is_whole) = read(text, pieces, 100).expect("well formed");
            assert_eq!(
                (bytes.as_slice(), rest.as_slice(), is_whole),
                (&b"hello 0123456789"[..], &b"GET"[..], true)
            );
        }
        assert_eq!(read(text, 7, 15), Err(Status::ContentTooLarge));
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for text in [
            "\r\n",
            "x\r\n",
            "+1\r\na\r\n",
            "-1\r\n",
            "0x1\r\na\r\n",
            " 1\r\na\r\n",
            "1\na\r\n",
            "1\r\r\na\r\n",
            "1\r\nab\r\n",
            "1\r\na\n",
            "123456789\r\n",
            "1;\r a\r\n",
            "0\r\nX: y\n\r\n",
        ] {
            assert!(matches!(read(text.as_bytes(), 3, 100), Err(Status::BadRequest(_))), "{text:?}");
        }
        let long = "1".repeat(LINE_BYTES_MAX + 1);
        assert!(matches!(read(long.as_bytes(), 100, 100), Err(Status::BadRequest(_))));
        let whole = format!("1;{long}\r\na\r\n0\r\n\r\n");
        assert!(matches!(read(whole.as_bytes(), 10_000, 100), Err(Status::BadRequest(_))));
        let trailers = format!("0\r\n{}", "X: yyyyyyyyyyyyyy\r\n".repeat(TRAILER_BYTES_MAX / 10));
        assert_eq!(read(trailers.as_bytes(), 1000, 100), Err(Status::HeadersTooLarge));
    }

    proptest! {
        #[test]
        fn a_body_of_known_length_is_what_came(bytes in prop::collection::vec(any::<u8>(), 0..300), rest in 0_usize..5, pieces in 1_usize..40) {
            let mut body = Body::new(Length::Known(bytes.len() as u64), 300).expect("short enough");
            let mut all = bytes.clone();
            all.extend(std::iter::repeat_n(b'x', rest));
            let mut held = Vec::new();
            for piece in all.chunks(pieces) {
                held.extend_from_slice(piece);
                let taken = body.take(&held).expect("no chunks");
                held.drain(..taken);
            }
            prop_assert!(body.is_whole());
            prop_assert_eq!((body.bytes, held.len()), (bytes, rest));
        }
    }
}
