//! The process that takes over: finds the one that there is, and has its sockets.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::wire::{self, Manager, Message, Offer, PROTOCOL, Peer};

/// The process that this one takes over from.
#[derive(Debug)]
pub struct Predecessor {
    pub(super) peer: Peer,
    pub version: String,
    /// Who is told how that one goes, and now how this one does.
    pub manager: Manager,
    inherited: Vec<(String, String, Vec<OwnedFd>)>,
}

impl Predecessor {
    /// Whoever listens at a path, with its listening sockets; none where nobody does.
    pub fn find(path: &Path) -> Result<Option<Self>, String> {
        let failed = |what: String| format!("--takeover {}: {what}", path.display());
        let Some(socket) = wire::connect(path).map_err(|error| failed(error.to_string()))? else {
            return Ok(None);
        };
        let peer = Peer::new(socket).map_err(failed)?;
        Self::meet(peer).map(Some).map_err(failed)
    }

    fn meet(mut peer: Peer) -> Result<Self, String> {
        let unwell = |error| format!("the process that is to be taken over from does not answer: {error}");
        let hello = Message::Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() };
        peer.tell(&hello).map_err(unwell)?;
        let (version, manager) = match peer.receive().map_err(unwell)?.message {
            Message::Welcome { pid, version, manager } => {
                peer.pid = pid;
                (version, manager)
            }
            Message::Refused { pid, why } => {
                return Err(format!("process {pid} is not taken over from: {why}"));
            }
            other => return Err(format!("it says what makes no sense here: {other:?}")),
        };
        let mut inherited = Vec::new();
        loop {
            let received = peer.receive().map_err(unwell)?;
            match received.message {
                Message::Listener { entrance, address } => {
                    inherited.push((entrance, address, received.sockets));
                }
                Message::Started => break,
                other => return Err(format!("it says what makes no sense here: {other:?}")),
            }
        }
        Ok(Self { peer, version, manager, inherited })
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.peer.pid
    }

    /// The sockets that listen where this process is to listen, too.
    pub fn take(&mut self, entrance: &str, address: &str) -> Vec<OwnedFd> {
        let wanted = |(of, at, _): &mut (String, String, Vec<OwnedFd>)| of == entrance && at == address;
        self.inherited.extract_if(.., wanted).flat_map(|(_, _, sockets)| sockets).collect()
    }

    /// This process serves: the other one may end.
    pub fn tell_ready(&mut self) -> std::io::Result<()> {
        // Where this process does not listen, nobody does any more.
        self.inherited.clear();
        self.peer.tell(&Message::Ready)
    }
}

/// Those of some sockets, for somebody else.
pub fn copies(entrance: &'static str, address: String, sockets: &[OwnedFd]) -> std::io::Result<Offer> {
    let sockets = sockets.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>()?;
    Ok(Offer { entrance, address, sockets })
}
