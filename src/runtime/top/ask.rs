//! An HTTP GET to an admin port, bounded in time and in bytes.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::runtime::clock::Clock;

/// The time limit for a request to the admin port, from the look-up of the address to the end of the reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The least time limit for connecting to one address of the admin port.
const TIMEOUT_LEAST: Duration = Duration::from_millis(100);
/// Maximum number of bytes of a reply of the admin port, whose pages are smaller; a longer one is an error.
const REPLY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The size of one read from the admin port, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Fetches the page `path` from the admin port at `host` (name and port). Returns its body; the error is a
/// message for the user.
pub(super) fn get(host: &str, path: &str) -> Result<String, String> {
    let reply =
        reply(host, path).map_err(|error| format!("no answer from the admin port {host}: {error}"))?;
    let text =
        String::from_utf8(reply).map_err(|_| format!("{host} does not answer like an admin port of weir"))?;
    body(&text).map_err(|problem| format!("{host}{path}: {problem}"))
}

fn reply(host: &str, path: &str) -> io::Result<Vec<u8>> {
    let clock = Clock::start();
    let left = || TIMEOUT.saturating_sub(Duration::from_nanos(clock.now().monotonic.as_nanos()));
    let mut stream = connected(&host.to_socket_addrs()?.collect::<Vec<_>>(), left)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let (mut reply, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
    loop {
        let left = left();
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the reply takes too long"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(reply),
            Ok(count) => {
                reply.extend_from_slice(&chunk[..count]);
                // A store that was asked by mistake would wait for more requests instead of closing.
                if !reply.starts_with(b"HTTP/") && reply.len() >= 5 {
                    return Ok(reply);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the reply takes too long"));
            }
            Err(error) => return Err(error),
        }
        if reply.len() > REPLY_BYTES_MAX {
            return Err(io::Error::other("the reply is too long"));
        }
    }
}

/// Connects to the first of these addresses that accepts a connection. Each address is tried for an equal part
/// of half the time that is `left` (at least 100 ms), so that an address that does not answer leaves time for
/// the others and for the reply. The error is that of the last address.
fn connected(addresses: &[SocketAddr], left: impl Fn() -> Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name does not resolve");
    let part = left() / 2 / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    for address in addresses {
        match TcpStream::connect_timeout(address, part.max(TIMEOUT_LEAST)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the body of an HTTP reply with status 200; an error, as a message for the user, for any other reply.
fn body(reply: &str) -> Result<String, String> {
    let not_http = "the reply is not one of weir's admin port";
    let (head, body) = reply.split_once("\r\n\r\n").ok_or(not_http)?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).ok_or(not_http)?;
    if status != "200" {
        let line = body.lines().next().unwrap_or_default();
        let line: String = line.chars().filter(|letter| !letter.is_control()).take(300).collect();
        return Err(format!("status {} {line}", status.escape_debug()));
    }
    let told = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if told.is_some_and(|length| length != body.len()) {
        return Err("the reply ended too early".to_owned());
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_reply_that_says_200_is_taken() {
        assert_eq!(body("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), Ok("{}".to_owned()));
        assert_eq!(body("HTTP/1.0 200 OK\r\n\r\n{}"), Ok("{}".to_owned()));
        for (reply, problem) in [
            ("HTTP/1.1 503 x\r\n\r\na shard does not answer\n", "status 503 a shard does not answer"),
            ("HTTP/1.1 4\u{1b}3 x\r\n\r\n\u{1b}[2J", "status 4\\u{1b}3 [2J"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "the reply ended too early"),
            ("-ERR unknown command\r\n", "the reply is not one of weir's admin port"),
            ("\r\n\r\n", "the reply is not one of weir's admin port"),
        ] {
            assert_eq!(body(reply), Err(problem.to_owned()));
        }
    }
}
