//! Sockets to backends: TCP, Unix, or one end of a pair whose other end the embedded engine gets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::driver::Connector;
use super::messages::Mailbox;
use super::storage_thread::ToStorage;
use super::tls::{Session, StoreTls};
use crate::values::{BackendId, ServerAddress};

/// Where a store is, and what its host is called.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub address: SockAddr,
    pub host: String,
}

impl Spot {
    /// One of a server's addresses.
    pub fn new(address: SocketAddr, server: &ServerAddress) -> Self {
        Self { address: address.into(), host: server.host.clone() }
    }
}

/// The addresses of a server's name now: at least one.
pub(super) fn addresses_of(server: &ServerAddress) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = (server.host.as_str(), server.port).to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its name has no address"));
    }
    Ok(found)
}

/// Where a store is now, if anybody is there. Looked at whenever a connection is opened, and by nobody else, so a lock holds nobody up.
pub(super) type Place = Arc<Mutex<Option<Spot>>>;

/// How to reach one backend.
#[derive(Clone)]
pub(super) enum Route {
    Server(Place),
    Embedded(Mailbox<ToStorage>),
}

impl Route {
    /// The place of a store that may move.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Server(place) => Some(place),
            Self::Embedded(_) => None,
        }
    }

    /// Where to connect to from outside of the shards, if there is such a place and somebody is there.
    pub fn spot(&self) -> Option<Spot> {
        match self {
            Self::Server(place) => spot_of(place),
            Self::Embedded(_) => None,
        }
    }
}

/// How to reach all of them.
#[derive(Clone)]
pub(super) struct Routes {
    pub routes: Arc<[Route]>,
    /// How they are spoken to, where they speak TLS.
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
                None => Err("the store has no address at the moment".to_owned()),
            }),
            Route::Embedded(_) => None,
        }
    }
}

pub(super) fn spot_of(place: &Place) -> Option<Spot> {
    place.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Who opens connections from now on finds it there.
pub(super) fn put(place: &Place, spot: Option<Spot>) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = spot;
}

fn open(address: SockAddr) -> io::Result<(OwnedFd, Option<SockAddr>)> {
    let socket = Socket::new(address.domain(), Type::STREAM.cloexec(), None)?;
    if address.domain() != Domain::UNIX {
        socket.set_tcp_nodelay(true)?;
        socket.set_keepalive(true)?;
        debug_assert_eq!(socket.protocol()?, Some(Protocol::TCP));
    }
    Ok((socket.into(), Some(address)))
}
