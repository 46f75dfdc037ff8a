//! Listening sockets: one per shard and TCP address, so that the kernel spreads connections over the shards.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// A client that says nothing for so long is asked whether it is still there, as Redis does: one that vanished must not hold its
/// seat for the hours that the system waits.
const KEEPALIVE_TIME: Duration = Duration::from_secs(300);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// One listening socket per shard, and the address they really have (the port may have been left to the system).
pub(super) fn tcp(address: SocketAddr, shards: usize) -> io::Result<(Vec<OwnedFd>, SocketAddr)> {
    // Without this, a second weir on the same port would silently share its connections with the first.
    let probe = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    probe.set_reuse_address(true)?;
    probe.bind(&address.into())?;
    let bound = probe.local_addr()?.as_socket().unwrap_or(address);
    probe.listen(1)?;
    drop(probe);
    let sockets = (0..shards).map(|_| listening(bound)).collect::<io::Result<Vec<_>>>()?;
    Ok((sockets, bound))
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
    let first: OwnedFd = socket.into();
    let mut sockets = (1..shards).map(|_| first.try_clone()).collect::<io::Result<Vec<_>>>()?;
    sockets.push(first);
    Ok(sockets)
}
