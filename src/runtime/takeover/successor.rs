//! The process that takes over: it connects to the running process, and receives its listening sockets.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::wire::{self, Manager, Message, PROTOCOL, Peer};

/// The process that this one takes over from.
#[derive(Debug)]
pub struct Predecessor {
    pub(super) peer: Peer,
    pub version: String,
    /// The service manager that the previous process notifies, and that this one will notify.
    pub manager: Manager,
    inherited: Vec<(String, String, Vec<OwnedFd>)>,
}

impl Predecessor {
    /// Connects to the running process, which listens at a path for a successor, and receives its listening
    /// sockets. None if no process listens there; the error is a message for the operator.
    pub fn find(path: &Path) -> Result<Option<Self>, String> {
        let failed = |what: String| format!("--takeover {}: {what}", path.display());
        let Some(socket) = wire::connect(path).map_err(|error| failed(error.to_string()))? else {
            return Ok(None);
        };
        let peer = Peer::new(socket).map_err(failed)?;
        Self::meet(peer).map(Some).map_err(failed)
    }

    fn meet(mut peer: Peer) -> Result<Self, String> {
        let unwell = |error| format!("the running process does not answer: {error}");
        let hello = Message::Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() };
        peer.tell(&hello).map_err(unwell)?;
        let (version, manager) = match peer.receive().map_err(unwell)?.message {
            Message::Welcome { pid, version, manager } => {
                peer.pid = pid;
                (version, manager)
            }
            Message::Refused { pid, why } => {
                return Err(format!("process {pid} refuses the takeover: {why}"));
            }
            other => return Err(format!("it sent an unexpected message: {other:?}")),
        };
        let mut inherited = Vec::new();
        loop {
            let received = peer.receive().map_err(unwell)?;
            match received.message {
                Message::Listener { entrance, address } => {
                    inherited.push((entrance, address, received.sockets));
                }
                Message::Started => break,
                other => return Err(format!("it sent an unexpected message: {other:?}")),
            }
        }
        Ok(Self { peer, version, manager, inherited })
    }

    /// Returns the process ID of the previous process.
    pub fn pid(&self) -> i32 {
        self.peer.pid
    }

    /// Removes the sockets that listen at this address for this kind of clients (such as "resp" or "http")
    /// from those received, and returns them; empty if there are none.
    pub fn take(&mut self, entrance: &str, address: &str) -> Vec<OwnedFd> {
        let wanted = |(of, at, _): &mut (String, String, Vec<OwnedFd>)| of == entrance && at == address;
        self.inherited.extract_if(.., wanted).flat_map(|(_, _, sockets)| sockets).collect()
    }

    /// Informs the previous process that this one is ready, so that it stops accepting and hands its clients
    /// over.
    pub fn tell_ready(&mut self) -> std::io::Result<()> {
        // Sockets at addresses where this process does not listen are closed: nobody listens there any more.
        self.inherited.clear();
        self.peer.tell(&Message::Ready)
    }
}
