//! `weir-floor`: forwards the requests of many clients over one connection to one store, and nothing else. One thread,
//! one `io_uring`. `perf/floor` compares weir's CPU per request with that of this program, which does what any
//! forwarder of the same shape must do: find where requests and replies end, count them, and move their bytes.
//!
//! ```text
//!   a turn:  wait ─> completions ─> whole requests ─> bytes for the store ──┐
//!             ^                 └─> whole replies ──> bytes for clients ────┤
//!             └──────────── one send for each connection that has bytes <───┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `forwarder.rs` | which bytes go to whom, in which order |
//! | `ring.rs` | the `io_uring`: accepts, receives, sends |
//! | `scan.rs` | where a request or a reply ends |

mod forwarder;
mod ring;
mod scan;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use socket2::{Domain, Socket, Type};

use forwarder::Forwarder;
use ring::{Completion, Ring};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BACKLOG: i32 = 4096;
/// Maximum number of clients; further connections are closed at once.
const CLIENTS_MAX: usize = 16_384;

const NOTES: &str = "\
Without quotas, overload control, hot keys, metrics and recovery: when the store is lost, the program ends with an error.
Clients must speak RESP2 and share the store's connection, so commands that change a connection (HELLO, SELECT, AUTH, MULTI,
SUBSCRIBE, BLPOP) hit all of them. For measurements only.";

/// Forwards requests of many clients over one connection to one store, as a floor to measure weir against.
#[derive(Debug, Parser)]
#[command(name = "weir-floor", version, after_help = NOTES, max_term_width = 120)]
struct FloorFlags {
    /// Address where clients connect. Port 0 takes any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7390")]
    listen: SocketAddr,
    /// Address of the store
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    storage: SocketAddr,
}

fn run(flags: &FloorFlags) -> Result<(), String> {
    let store = connect(flags.storage).map_err(|error| format!("{} (--storage): {error}", flags.storage))?;
    let listener = listen(flags.listen).map_err(|error| format!("{} (--listen): {error}", flags.listen))?;
    let address = listener.local_addr().ok().and_then(|address| address.as_socket());
    let mut ring = Ring::new().map_err(|error| format!("io_uring is needed: {error}"))?;
    ring.listen(listener);
    eprintln!("weir-floor: listening on {}", address.unwrap_or(flags.listen));
    forward(&mut ring, store)
}

fn connect(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.connect(&address.into())?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

fn listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    // Accepted connections inherit TCP_NODELAY.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Forwards requests and replies until an error, which it returns as a text for the user: the store's connection is
/// lost or sends something unexpected, the `io_uring` fails, or no client can be accepted.
fn forward(ring: &mut Ring, store: Socket) -> Result<(), String> {
    let store = ring.adopt(store);
    let mut forwarder = Forwarder::new(store);
    let mut completions = Vec::new();
    loop {
        ring.submit_and_wait().map_err(|error| format!("io_uring: {error}"))?;
        ring.reap(&mut completions);
        for completion in completions.drain(..) {
            match completion {
                Completion::Accepted(Ok(socket)) => {
                    if forwarder.clients_open() < CLIENTS_MAX {
                        forwarder.handle_client_opened(ring.adopt(socket));
                    }
                }
                Completion::Accepted(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Completion::Accepted(Err(error)) => {
                    return Err(format!("no connection can be accepted: {error}"));
                }
                Completion::Received { socket, buffer } => {
                    let bytes = ring.bytes(&buffer);
                    if socket == store {
                        forwarder
                            .handle_store_bytes(bytes)
                            .map_err(|refusal| format!("the store sent {refusal}"))?;
                    } else {
                        forwarder.handle_client_bytes(socket, bytes);
                    }
                    ring.give_back(buffer);
                }
                Completion::Ended { socket } if socket == store => {
                    return Err("the store has closed the connection".to_owned());
                }
                Completion::Ended { socket } => {
                    // The shutdown also ends a send to a client that does not read.
                    ring.shut_down(socket);
                    forwarder.handle_client_ended(socket);
                }
                Completion::Sent { socket, bytes } => forwarder.handle_sent(socket, bytes),
            }
        }
        while let Some((client, refusal)) = forwarder.poll_refused() {
            eprintln!("weir-floor: a client is closed: {refusal}");
            ring.shut_down(client);
        }
        while let Some((socket, bytes)) = forwarder.poll_transmit() {
            ring.send(socket, bytes);
        }
        while let Some(client) = forwarder.poll_departed() {
            ring.close(client);
        }
    }
}

fn main() -> ExitCode {
    match run(&FloorFlags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("weir-floor: {text}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        FloorFlags::command().debug_assert();
    }

    #[test]
    fn complaints_name_the_flag() {
        for flag in ["--listen", "--storage"] {
            let complaint =
                FloorFlags::try_parse_from(["weir-floor", flag, "nowhere"]).expect_err(flag).to_string();
            assert!(complaint.contains(flag) && complaint.contains("nowhere"), "{complaint}");
        }
    }
}
