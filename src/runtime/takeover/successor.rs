//! The process that takes over: it connects to the running process, and receives its listening sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::wire::{self, Manager, Message, PROTOCOL, Peer, has_ended};
use crate::runtime::executor::files_too_few;

/// The process that this one takes over from: the connection to it, and the listening sockets that it has
/// given.
#[derive(Debug)]
pub struct Predecessor {
    pub(super) peer: Peer,
    pub version: String,
    /// The service manager that the previous process notifies, and that this one will notify.
    pub manager: Manager,
    inherited: Vec<(String, String, Vec<OwnedFd>)>,
}

/// The outcome of reporting to the previous process that this one is ready.
#[derive(Debug)]
pub enum Succession {
    /// The previous process has the report: it stops accepting, and hands its clients over.
    Begun,
    /// The previous process has ended or is draining, so the listening sockets are left to this process.
    Orphaned(io::Error),
    /// A signal told this process to end first, so nothing was reported and the previous process goes on.
    Renounced,
}

impl Predecessor {
    /// Connects to the running process, which listens at a path for a successor, and receives its listening
    /// sockets. `is_in_fleet` says that this process shares quotas with others, so that it also wants the
    /// previous process's parts of them. None if no process listens there; the error is a message for the
    /// operator.
    pub fn find(path: &Path, is_in_fleet: bool) -> Result<Option<Self>, String> {
        let failed = |what: String| format!("--takeover {}: {what}", path.display());
        let Some(socket) = wire::connect(path).map_err(|error| failed(error.to_string()))? else {
            return Ok(None);
        };
        let peer = Peer::new(socket).map_err(failed)?;
        Self::meet(peer, is_in_fleet).map(Some).map_err(failed)
    }

    fn meet(mut peer: Peer, is_in_fleet: bool) -> Result<Self, String> {
        let unwell = |error| format!("the running process does not answer: {error}");
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = Message::Hello { protocol: PROTOCOL, version, is_in_fleet };
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
                Message::Listener { entrance, address } if received.is_cut => {
                    return Err(format!(
                        "not all {entrance} sockets of {address} could be taken over, because {}",
                        files_too_few()
                    ));
                }
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
    /// over; does not if `told_to_end`, since a signal has told this process to end. The error is a message for
    /// the operator: the previous process has given this takeover up and goes on, so this process must not
    /// serve.
    pub fn tell_ready(&mut self, told_to_end: &AtomicBool) -> Result<Succession, String> {
        if told_to_end.load(Ordering::Acquire) {
            return Ok(Succession::Renounced);
        }
        // Sockets at addresses where this process does not listen are closed: nobody listens there any more.
        self.inherited.clear();
        let Err(error) = self.peer.tell(&Message::Ready) else { return Ok(Succession::Begun) };
        // A process that gives a takeover up says so before it closes its end.
        let why = match self.peer.receive().map(|received| received.message) {
            Err(end) if has_ended(&end) => return Ok(Succession::Orphaned(error)),
            Ok(Message::Refused { why, .. }) => why,
            _ => format!("it cannot be told that this process is ready ({error})"),
        };
        Err(format!("--takeover: process {} has given this takeover up and goes on: {why}", self.pid()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predecessor(peer: Peer) -> Predecessor {
        Predecessor { peer, version: String::new(), manager: Manager::default(), inherited: Vec::new() }
    }

    #[test]
    fn the_previous_process_is_told_unless_this_one_was_told_to_end() {
        let (near, far) = wire::pair();
        let outcome = predecessor(near).tell_ready(&AtomicBool::new(false));
        assert!(matches!(outcome, Ok(Succession::Begun)), "{outcome:?}");
        assert_eq!(far.receive().expect("a message").message, Message::Ready);

        let (near, far) = wire::pair();
        let outcome = predecessor(near).tell_ready(&AtomicBool::new(true));
        assert!(matches!(outcome, Ok(Succession::Renounced)), "{outcome:?}");
        assert!(has_ended(&far.receive().expect_err("the end, and nothing before it")));
    }

    #[test]
    fn a_takeover_that_was_given_up_is_told_from_a_process_that_has_ended() {
        let go_on = AtomicBool::new(false);
        let (near, far) = wire::pair();
        far.stop_hearing();
        far.tell(&Message::Refused { pid: 1, why: "it was late".to_owned() }).expect("room");
        drop(far);
        let told = predecessor(near).tell_ready(&go_on).expect_err("the other process serves");
        assert!(told.ends_with("has given this takeover up and goes on: it was late"), "{told}");

        let (near, far) = wire::pair();
        drop(far);
        let outcome = predecessor(near).tell_ready(&go_on);
        assert!(matches!(outcome, Ok(Succession::Orphaned(_))), "{outcome:?}");
    }
}
