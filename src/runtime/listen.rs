//! Opens listening sockets: one per shard for each TCP address, so that the kernel spreads connections over
//! the shards; and the admin port's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use glommio::net::TcpListener;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::socket_file;

/// The idle time after which TCP probes whether a client is still there, as Redis does. A client that
/// vanished would otherwise hold its connection for the hours that the system's default waits.
const KEEPALIVE_TIME: Duration = Duration::from_secs(300);
/// The listen backlog of each listening socket for clients, in connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 4096;
/// Maximum number of attempts to bind an address, about a second in all. The kernel releases the rings of a
/// process some time after the process has ended, and listening sockets that they use stay open until then, so
/// a weir that is restarted at once would find the address in use.
const TRIES: u32 = 50;
/// The pause between two attempts to bind an address.
const TRIES_APART: Duration = Duration::from_millis(20);

/// Returns sockets for all shards after a takeover, and their address: every listening socket that the previous
/// process had at this address (`inherited`), since clients that wait there must be served, and new sockets if
/// the previous process had fewer than there are shards. New ones are bound and do not listen yet: the kernel
/// would give them clients that nobody accepts before this process serves. Fails if the address cannot be bound.
pub(super) fn tcp_after(
    inherited: Vec<OwnedFd>,
    address: SocketAddr,
    shards: usize,
) -> io::Result<(Vec<OwnedFd>, SocketAddr)> {
    let Some(first) = inherited.first() else { return tcp(address, shards) };
    let bound = SockRef::from(first).local_addr()?.as_socket().unwrap_or(address);
    let mut sockets = inherited;
    for _ in sockets.len()..shards {
        sockets.push(shared(bound)?.into());
    }
    Ok((sockets, bound))
}

/// Opens a listening socket at this address for each shard. Returns the sockets and their address, with the
/// real port if port 0 was asked for. Fails if another process listens there.
pub(super) fn tcp(address: SocketAddr, shards: usize) -> io::Result<(Vec<OwnedFd>, SocketAddr)> {
    // Without this probe, a second weir on the same port would silently share connections with the first.
    let (probe, bound) = alone(address, 1)?;
    drop(probe);
    let sockets = (0..shards).map(|_| listening(bound)).collect::<io::Result<Vec<_>>>()?;
    Ok((sockets, bound))
}

/// Opens a listening socket that shares its address with no other, and returns it with its address. Succeeds
/// although connections of an earlier process may linger (`TIME_WAIT`); fails if another process still listens
/// there after a second of trying. `backlog` is the number of connections that may wait to be accepted.
pub(super) fn alone(address: SocketAddr, backlog: i32) -> io::Result<(OwnedFd, SocketAddr)> {
    for _ in 0..TRIES {
        match bind_alone(address, backlog) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::park_timeout(TRIES_APART),
            result => return result,
        }
    }
    bind_alone(address, backlog)
}

fn bind_alone(address: SocketAddr, backlog: i32) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Accepted sockets inherit SO_REUSEADDR; without it, their remains (`TIME_WAIT`) would keep the next
    // process from binding.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    socket.listen(backlog)?;
    Ok((socket.into(), bound))
}

/// Returns a socket that listens already (inherited from another process), together with the address that it is
/// bound to, or `address` if it is bound to no IP address. Fails if the kernel does not report its address.
pub(super) fn bound(socket: OwnedFd, address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let bound = SockRef::from(&socket).local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, bound))
}

/// Wraps a listening socket so that tasks of the calling thread's executor can accept on it.
#[expect(
    unsafe_code,
    reason = "glommio takes a socket by its bare descriptor, or binds it without SO_REUSEADDR"
)]
pub(super) fn for_this_executor(socket: OwnedFd) -> TcpListener {
    // SAFETY: the descriptor is open and owned by nobody else.
    unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) }
}

fn listening(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = shared(address)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Returns a socket that is bound to an address which it shares with the other shards' sockets
/// (`SO_REUSEPORT`), and does not listen yet.
fn shared(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // Accepted sockets inherit these options.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME))?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Opens a listening Unix socket at this path. A socket file that nobody listens on any more is replaced;
/// any other file stays, and is an error.
pub(super) fn unix(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_file::bind(Type::STREAM, path)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Duplicates the descriptor of a listening socket (`first`), so that each shard has one of its own. Returns all
/// of them, `first` among them. Fails if the process may open no more files.
pub(super) fn for_each_of(first: OwnedFd, shards: usize) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = (1..shards).map(|_| first.try_clone()).collect::<io::Result<Vec<_>>>()?;
    sockets.push(first);
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_that_are_taken_over_are_all_kept_and_more_join_them() {
        let (sockets, bound) = tcp("127.0.0.1:0".parse().expect("an address"), 2).expect("a free port");
        let (one, _) = tcp_after(sockets, bound, 1).expect("they are there");
        assert_eq!(one.len(), 2, "none is closed");
        let (three, again) = tcp_after(one, bound, 3).expect("they are there");
        assert_eq!((three.len(), again), (3, bound));
        let clients: Vec<_> =
            (0..100).map(|_| TcpStream::connect(bound).expect("the first two listen")).collect();
        let accepted = |socket| {
            let listener = TcpListener::from(socket);
            listener.set_nonblocking(true).expect("a socket");
            std::iter::from_fn(|| listener.accept().ok()).count()
        };
        let counts: Vec<usize> = three.into_iter().map(accepted).collect();
        assert_eq!((counts[0] + counts[1], counts[2]), (100, 0), "a new one takes no client from them");
        drop(clients);
    }

    #[test]
    fn a_port_is_free_again_at_once_and_shared_with_nobody() {
        let (socket, bound) = alone("127.0.0.1:0".parse().expect("an address"), 8).expect("a free port");
        assert_eq!(alone(bound, 8).expect_err("one listens").kind(), io::ErrorKind::AddrInUse);
        let listener = TcpListener::from(socket);
        let mut client = TcpStream::connect(bound).expect("it listens");
        // The end that closes first keeps the connection in TIME_WAIT, so the server closes first here.
        drop(listener.accept().expect("one has come"));
        assert_eq!(client.read(&mut [0]).expect("the end"), 0);
        drop((client, listener));
        alone(bound, 8).expect("nobody listens");
    }

    #[test]
    fn who_is_about_to_stop_listening_is_waited_for() {
        let (socket, bound) = alone("127.0.0.1:0".parse().expect("an address"), 8).expect("a free port");
        let leaving = std::thread::spawn(move || {
            std::thread::park_timeout(2 * TRIES_APART);
            drop(socket);
        });
        alone(bound, 8).expect("it is free in time");
        leaving.join().expect("it ends");
    }
}
