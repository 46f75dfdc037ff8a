//! A blocking connection to the Redis server whose costs are measured.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::calibration::shape::encoded;
use weir::protocol::ReplyScanner;
use weir::protocol::reply;

/// The longest time to wait for the server to accept a connection, take bytes, or reply; after it the run
/// ends with an error.
const PATIENCE: Duration = Duration::from_secs(10);
const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of bytes of an unexpected reply that an error text quotes.
const QUOTED_BYTES_MAX: usize = 160;
/// Maximum number of bytes of an unfinished reply to one command of [`Backend::ask`]; more are an error.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A blocking connection to the Redis server whose costs are measured.
pub struct Backend {
    name: String,
    address: SocketAddr,
    password: Option<String>,
    stream: TcpStream,
    chunk: Vec<u8>,
}

/// The size of a reply in bytes, and the number of its elements (`rows`; 0 for a reply that is no array, map
/// or set).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplySize {
    pub bytes: usize,
    pub rows: u64,
}

impl Backend {
    pub fn connect(name: &str, address: SocketAddr, password: Option<&str>) -> Result<Self, String> {
        let mut backend = Self {
            name: name.to_owned(),
            address,
            password: password.map(str::to_owned),
            stream: open(name, address)?,
            chunk: vec![0; CHUNK_BYTES],
        };
        backend.log_in()?;
        Ok(backend)
    }

    /// Opens a further connection to the same server, with the same password. The error is a text for the
    /// user.
    pub fn another(&self) -> Result<Self, String> {
        Self::connect(&self.name, self.address, self.password.as_deref())
    }

    /// Replaces the connection by a new one to the same server; requests in flight on the old one are given
    /// up. The error is a text for the user.
    pub fn reconnect(&mut self) -> Result<(), String> {
        self.stream = open(&self.name, self.address)?;
        self.log_in()
    }

    fn log_in(&mut self) -> Result<(), String> {
        let Some(password) = self.password.clone() else { return Ok(()) };
        self.ask(&["AUTH", &password]).map(drop)
    }

    /// Sends one command (`words`) and returns the bytes of its reply. The error is a text for the user: for an error
    /// reply, a reply that is malformed or too long, and a lost or silent connection.
    pub fn ask(&mut self, words: &[&str]) -> Result<Vec<u8>, String> {
        self.send(&encoded(words))?;
        let mut scanner = ReplyScanner::default();
        let mut answer = Vec::new();
        loop {
            let count = self.receive()?;
            let before = answer.len();
            answer.extend_from_slice(&self.chunk[..count]);
            match scanner.scan(&answer[before..]) {
                Ok(Some(_)) if answer[0] == b'-' => return Err(self.refused(words[0], &answer)),
                Ok(Some(_)) => return Ok(answer),
                Ok(None) if answer.len() < ANSWER_BYTES_MAX => {}
                Ok(None) => return Err(format!("{} answers {} without an end", self.name, words[0])),
                Err(_) => return Err(self.not_resp()),
            }
        }
    }

    /// Sends one command (`words`) and returns the text of its reply. The error is a text for the user, as for
    /// [`ask`](Self::ask), and also for a reply that is no text.
    pub fn ask_text(&mut self, words: &[&str]) -> Result<String, String> {
        let answer = self.ask(words)?;
        let text = reply::text(&answer)
            .ok_or_else(|| format!("{}: no text: {}", words.join(" "), quoted(&answer)))?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Sends one encoded request, waits for its reply, and returns the reply's size. The error is a text for the user:
    /// for an error reply, a malformed one, and a lost or silent connection.
    pub fn carry_out(&mut self, request: &[u8]) -> Result<ReplySize, String> {
        self.send(request)?;
        self.replies(1)
    }

    /// Waits for the next `count` replies, which must all have the same size, and returns that size. The error is a
    /// text for the user: for replies that differ, an error reply, a malformed one, and a lost or silent connection.
    pub fn replies(&mut self, count: usize) -> Result<ReplySize, String> {
        let mut scanner = ReplyScanner::default();
        let (mut replies, mut midway_bytes) = (0, 0);
        let mut size = None;
        while replies < count {
            let received = self.receive()?;
            let mut at = 0;
            while at < received {
                let rest = &self.chunk[at..received];
                if midway_bytes == 0 && rest[0] == b'-' {
                    return Err(self.refused("a request", rest));
                }
                let Ok(scanned) = scanner.scan(rest) else { return Err(self.not_resp()) };
                let Some(scanned) = scanned else {
                    midway_bytes += rest.len();
                    break;
                };
                let found = ReplySize { bytes: midway_bytes + scanned.end, rows: scanned.rows };
                if *size.get_or_insert(found) != found {
                    return Err(format!(
                        "{} answers the same request differently: is someone else writing?",
                        self.name
                    ));
                }
                midway_bytes = 0;
                at += scanned.end;
                replies += 1;
            }
        }
        Ok(size.unwrap_or_default())
    }

    /// Sends the bytes of encoded requests without waiting for replies.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|error| format!("{} takes nothing more: {error}", self.name))
    }

    fn receive(&mut self) -> Result<usize, String> {
        loop {
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Err(format!("{} has closed the connection", self.name)),
                Ok(count) => return Ok(count),
                // A signal interrupts the read; its flag is looked at between two shapes.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("{} does not answer: {error}", self.name)),
            }
        }
    }

    fn refused(&self, what: &str, reply: &[u8]) -> String {
        format!("{} refuses {what}: {}", self.name, quoted(reply))
    }

    fn not_resp(&self) -> String {
        format!("{} does not speak the Redis protocol", self.name)
    }
}

fn open(name: &str, address: SocketAddr) -> Result<TcpStream, String> {
    let told = |error: std::io::Error| format!("cannot connect to {name}: {error}");
    let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(told)?;
    stream.set_nodelay(true).map_err(told)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(told)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(told)?;
    Ok(stream)
}

fn quoted(reply: &[u8]) -> String {
    let line = reply.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(QUOTED_BYTES_MAX)]).into_owned()
}
