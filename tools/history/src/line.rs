//! A connection to weir or to a store, on which a thread sends commands and waits for their replies.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weir::protocol::{ReplyScanner, reply};

use super::keys::words;

/// The longest wait for bytes of a reply, or to connect or send; the connection is given up after it.
const PATIENCE: Duration = Duration::from_secs(20);
const CHUNK_BYTES: usize = 64 * 1024;

pub struct Line {
    stream: TcpStream,
    scanner: ReplyScanner,
    /// Received bytes, of which those before `begin` were taken as replies already.
    bytes: Vec<u8>,
    /// The offset in `bytes` at which the next reply begins; `scanned` is the offset up to which the search
    /// for its end has come.
    begin: usize,
    scanned: usize,
}

impl Line {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, scanner: ReplyScanner::default(), bytes: Vec::new(), begin: 0, scanned: 0 })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for more bytes, for at most 20 seconds. An error after that, or if the connection is lost.
    pub fn receive(&mut self) -> io::Result<()> {
        self.bytes.drain(..self.begin);
        self.scanned -= self.begin;
        self.begin = 0;
        let held = self.bytes.len();
        self.bytes.resize(held + CHUNK_BYTES, 0);
        let received = loop {
            match self.stream.read(&mut self.bytes[held..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.bytes.truncate(held + *received.as_ref().unwrap_or(&0));
        if received? == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Returns the next reply; `None` if it has not been received as a whole. An error if the bytes are no
    /// RESP.
    pub fn next_reply(&mut self) -> io::Result<Option<&[u8]>> {
        let scanned = self.scanner.scan(&self.bytes[self.scanned..]);
        let scanned = scanned.map_err(|_| io::Error::new(ErrorKind::InvalidData, "that is no RESP"))?;
        let Some(scanned) = scanned else {
            self.scanned = self.bytes.len();
            return Ok(None);
        };
        let begin = self.begin;
        self.scanned += scanned.end;
        self.begin = self.scanned;
        Ok(Some(&self.bytes[begin..self.scanned]))
    }

    /// Sends a command, waits for its reply, and returns it, even if it is an error reply.
    pub fn ask(&mut self, command: &[&str]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let command: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
        words(&mut bytes, &command);
        self.send(&bytes)?;
        loop {
            if let Some(reply) = self.next_reply()? {
                return Ok(reply.to_vec());
            }
            self.receive()?;
        }
    }

    /// Sends a command, waits for its reply, and returns it; an error reply is an `Err`.
    pub fn ask_firmly(&mut self, command: &[&str]) -> io::Result<Vec<u8>> {
        let reply = self.ask(command)?;
        if matches!(reply.first(), Some(b'-' | b'!')) {
            let text = String::from_utf8_lossy(reply::text(&reply).unwrap_or_default()).into_owned();
            return Err(io::Error::other(format!("{} was answered: {text}", command[0])));
        }
        Ok(reply)
    }
}
