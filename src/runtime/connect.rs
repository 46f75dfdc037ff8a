//! Opens sockets to backends: TCP, a Unix socket, or one end of a socket pair whose other end goes to the
//! embedded engine.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::driver::Connector;
use super::messages::Mailbox;
use super::storage_thread::ToStorage;
use super::tls::{Session, StoreTls};
use crate::values::{BackendId, ServerAddress};

/// The address of a store, and its host name, with which its TLS certificate is compared.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub address: SockAddr,
    pub host: String,
}

impl Spot {
    /// Combines a server's resolved address with the host name of its setting, which its certificate must have.
    pub fn new(address: SocketAddr, server: &ServerAddress) -> Self {
        Self { address: address.into(), host: server.host.clone() }
    }
}

/// Looks up the IP addresses of a server's host name: at least one, or an error.
pub(super) fn addresses_of(server: &ServerAddress) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = (server.host.as_str(), server.port).to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its name does not resolve"));
    }
    Ok(found)
}

/// The current address of a store, or `None` while its host name resolves to no address; all threads share it.
/// Threads lock it only to open a connection or to change the address, so the lock delays no request.
pub(super) type Place = Arc<Mutex<Option<Spot>>>;

/// A way to connect to one backend: a server's address, or the embedded engine.
#[derive(Clone)]
pub(super) enum Route {
    Server(Place),
    Embedded(Mailbox<ToStorage>),
}

impl Route {
    /// Returns the shared address of a server; `None` for the embedded engine.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Server(place) => Some(place),
            Self::Embedded(_) => None,
        }
    }

    /// Returns the address at which threads other than shards may connect to the backend now. `None` for the
    /// embedded engine, and for a server whose name resolves to no address.
    pub fn spot(&self) -> Option<Spot> {
        match self {
            Self::Server(place) => spot_of(place),
            Self::Embedded(_) => None,
        }
    }
}

/// The ways to connect to the backends (one for each, in order of backend number), and the TLS settings for
/// these connections.
#[derive(Clone)]
pub(super) struct Routes {
    pub routes: Arc<[Route]>,
    /// The TLS settings for connections to stores; none if they are not encrypted.
    pub tls: Option<StoreTls>,
}

impl Connector for Routes {
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<SockAddr>)> {
        match &self.routes[usize::from(backend.0)] {
            Route::Server(place) => open(spot_of(place).ok_or(io::ErrorKind::AddrNotAvailable)?.address),
            Route::Embedded(storage) => {
                let (ours, theirs) = UnixStream::pair()?;
                storage.post(ToStorage::Adopt(theirs.into()));
                Ok((ours.into(), None))
            }
        }
    }

    fn secure(&self, backend: BackendId) -> Option<Result<Session, String>> {
        let tls = self.tls.as_ref()?;
        match &self.routes[usize::from(backend.0)] {
            // A store that has just lost its address is looked for again: without a name to hold its certificate against, the
            // connection is refused. It would be opened in the clear otherwise.
            Route::Server(place) => Some(match spot_of(place) {
                Some(spot) => tls.session(&spot.host),
                None => Err("the store's name does not resolve at the moment".to_owned()),
            }),
            Route::Embedded(_) => None,
        }
    }
}

pub(super) fn spot_of(place: &Place) -> Option<Spot> {
    place.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets a store's address, which connections opened from now on use; `None` if its host name resolves to no
/// address.
pub(super) fn put(place: &Place, spot: Option<Spot>) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = spot;
}

/// Returns the TCP keepalive settings of connections to stores: after 30 s of silence three probes, 10 s
/// apart, so that a client that waits for a reply or for messages learns in about a minute that its store is
/// gone.
fn keepalive() -> TcpKeepalive {
    let interval = Duration::from_secs(10);
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(interval).with_retries(3)
}

fn open(address: SockAddr) -> io::Result<(OwnedFd, Option<SockAddr>)> {
    let socket = Socket::new(address.domain(), Type::STREAM.cloexec(), None)?;
    if address.domain() != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive())?;
        debug_assert_eq!(socket.protocol()?, Some(Protocol::TCP));
    }
    Ok((socket.into(), Some(address)))
}
