//! Sockets to backends: TCP, Unix, or one end of a pair whose other end the embedded engine gets.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::driver::Connector;
use super::messages::Mailbox;
use super::storage_thread::ToStorage;
use crate::values::BackendId;

/// How to reach one backend.
#[derive(Clone)]
pub(super) enum Route {
    Socket(SockAddr),
    Embedded(Mailbox<ToStorage>),
}

/// How to reach all of them.
#[derive(Clone)]
pub(super) struct Routes(pub Arc<[Route]>);

impl Connector for Routes {
    fn open(&self, backend: BackendId) -> io::Result<(OwnedFd, Option<SockAddr>)> {
        match &self.0[usize::from(backend.0)] {
            Route::Socket(address) => {
                let socket = Socket::new(address.domain(), Type::STREAM.cloexec(), None)?;
                if address.domain() != Domain::UNIX {
                    socket.set_tcp_nodelay(true)?;
                    socket.set_keepalive(true)?;
                    debug_assert_eq!(socket.protocol()?, Some(Protocol::TCP));
                }
                Ok((socket.into(), Some(address.clone())))
            }
            Route::Embedded(storage) => {
                let (ours, theirs) = UnixStream::pair()?;
                storage.post(ToStorage::Adopt(theirs.into()));
                Ok((ours.into(), None))
            }
        }
    }
}
