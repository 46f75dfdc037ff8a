//! Sockets to backends: TCP, Unix, or one end of a pair whose other end the embedded engine gets.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::driver::Connector;
use super::messages::Mailbox;
use super::storage_thread::ToStorage;
use crate::values::BackendId;

/// Where a node is. Looked at whenever a connection is opened, and by nobody else, so a lock holds nobody up.
pub(super) type Place = Arc<Mutex<Option<SockAddr>>>;

/// How to reach one backend.
#[derive(Clone)]
pub(super) enum Route {
    Socket(SockAddr),
    /// A node of a cluster: where it is now, if anybody is there.
    Node(Place),
    Embedded(Mailbox<ToStorage>),
}

/// How to reach all of them.
#[derive(Clone)]
pub(super) struct Routes(pub Arc<[Route]>);

impl Connector for Routes {
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<SockAddr>)> {
        match &self.0[usize::from(backend.0)] {
            Route::Socket(address) => open(address.clone()),
            Route::Node(place) => {
                let address = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
                open(address.ok_or(io::ErrorKind::AddrNotAvailable)?)
            }
            Route::Embedded(storage) => {
                let (ours, theirs) = UnixStream::pair()?;
                storage.post(ToStorage::Adopt(theirs.into()));
                Ok((ours.into(), None))
            }
        }
    }
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
