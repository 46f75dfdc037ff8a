//! Listening sockets: one per shard and TCP address, so that the kernel spreads connections over the shards; and one for the admin
//! port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use glommio::net::TcpListener;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

/// A client that says nothing for so long is asked whether it is still there, as Redis does: one that vanished must not hold its
/// seat for the hours that the system waits.
const KEEPALIVE_TIME: Duration = Duration::from_secs(300);
/// Connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 4096;
/// The kernel takes the rings of a process apart after it has ended, and the sockets that they accepted on listen until then: who
/// starts weir again at once would find the address in use. So it is tried again for about a second.
const TRIES: u32 = 50;
const TRIES_APART: Duration = Duration::from_millis(20);

/// What another process has listened with goes on, however many sockets those are: what waits in their queues was promised to be
/// served. Where there are fewer than shards, the others have new ones.
pub(super) fn tcp_after(
    inherited: Vec<OwnedFd>,
    address: SocketAddr,
    shards: usize,
) -> io::Result<(Vec<OwnedFd>, SocketAddr)> {
    let Some(first) = inherited.first() else { return tcp(address, shards) };
    let bound = SockRef::from(first).local_addr()?.as_socket().unwrap_or(address);
    let mut sockets = inherited;
    for _ in sockets.len()..shards {
        sockets.push(listening(bound)?);
    }
    Ok((sockets, bound))
}

/// One listening socket per shard, and the address they really have (the port may have been left to the system).
pub(super) fn tcp(address: SocketAddr, shards: usize) -> io::Result<(Vec<OwnedFd>, SocketAddr)> {
    // Without this, a second weir on the same port would silently share its connections with the first.
    let (probe, bound) = alone(address, 1)?;
    drop(probe);
    let sockets = (0..shards).map(|_| listening(bound)).collect::<io::Result<Vec<_>>>()?;
    Ok((sockets, bound))
}

/// The only listening socket there, and its address. What is left of connections of a process that is gone (`TIME_WAIT`) is no
/// hindrance; somebody who listens is.
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
    // Accepted sockets inherit it, and so does what is left of them: else the next process could not bind.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    socket.listen(backlog)?;
    Ok((socket.into(), bound))
}

/// A socket that listens already, and its address.
pub(super) fn bound(socket: OwnedFd, address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let bound = SockRef::from(&socket).local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, bound))
}

/// The same socket, for tasks of the executor that asks.
#[expect(
    unsafe_code,
    reason = "glommio takes a socket by its bare descriptor, or binds it without SO_REUSEADDR"
)]
pub(super) fn for_this_executor(socket: OwnedFd) -> TcpListener {
    // SAFETY: the descriptor is open and owned by nobody else.
    unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) }
}

fn listening(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // Accepted sockets inherit these.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// One listening socket, shared by all shards. A left-over socket file of a process that is gone is replaced.
pub(super) fn unix(path: &Path, shards: usize) -> io::Result<Vec<OwnedFd>> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    if let Err(error) = socket.bind(&address) {
        let in_use = Socket::new(Domain::UNIX, Type::STREAM, None)?.connect(&address).is_ok();
        if error.kind() != io::ErrorKind::AddrInUse || in_use {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        socket.bind(&address)?;
    }
    socket.listen(BACKLOG)?;
    for_each_of(socket.into(), shards)
}

/// A listening socket that all shards share.
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
        for _ in 0..100 {
            TcpStream::connect(bound).expect("it listens");
        }
    }

    #[test]
    fn a_port_is_free_again_at_once_and_shared_with_nobody() {
        let (socket, bound) = alone("127.0.0.1:0".parse().expect("an address"), 8).expect("a free port");
        assert_eq!(alone(bound, 8).expect_err("one listens").kind(), io::ErrorKind::AddrInUse);
        let listener = TcpListener::from(socket);
        let mut client = TcpStream::connect(bound).expect("it listens");
        // Who closes first keeps the connection in mind.
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
