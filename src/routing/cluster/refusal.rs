//! Refusals of a cluster's node: error replies which show that it did not carry out a request, or not yet.

use crate::values::ServerAddress;
use crate::values::limits::{HOST_BYTES_MAX, SLOTS};

/// A refusal by a cluster node, read from the text of the error reply. It proves nothing after a script,
/// which may return any error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRefusal<'a> {
    /// MOVED: the slot belongs to another node.
    Moved {
        /// The slot that has another owner.
        slot: u16,
        /// The node that owns the slot now.
        target: Target<'a>,
    },
    /// ASK: the request's key may have moved to another node, while the slot has not.
    Ask {
        /// The slot that is moving.
        slot: u16,
        /// The node to send this request to, and no other request.
        target: Target<'a>,
    },
    /// TRYAGAIN: some keys of the request are at this node, others have moved to another.
    TryAgain,
    /// CLUSTERDOWN: the node considers the cluster not to work, or no node to own the slot.
    ClusterDown,
    /// READONLY: the node is a replica, and carries out no writes.
    ReadOnly,
    /// LOADING: the node still loads its data.
    Loading,
    /// MASTERDOWN: the node is a replica without its primary.
    MasterDown,
    /// BUSY: the node has been running a script for too long.
    Busy,
}

/// Node that a MOVED or ASK redirect names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Host as the node wrote it, without brackets.
    host: &'a str,
    port: u16,
}

impl Target<'_> {
    /// Returns the node's address, given the address of the node that sent the redirect (`sender`), whose
    /// host an empty host stands for. None for the host `?`, which means that none is known.
    pub fn resolve(&self, sender: &ServerAddress) -> Option<ServerAddress> {
        let host = match self.host {
            "" => &sender.host,
            "?" => return None,
            host => host,
        };
        Some(ServerAddress { host: host.to_owned(), port: self.port })
    }
}

impl<'a> NodeRefusal<'a> {
    /// Returns the error code if the refusal says that the node cannot serve any request now; None if it is
    /// about a slot or a request.
    pub const fn unavailability(self) -> Option<&'static str> {
        match self {
            Self::Loading => Some("LOADING"),
            Self::Busy => Some("BUSY"),
            Self::MasterDown => Some("MASTERDOWN"),
            _ => None,
        }
    }

    /// Reads a node's whole reply, with `-` and line end. None if it is not an error by which a node refuses
    /// a request, or not written as Redis does.
    pub fn parse(reply: &'a [u8]) -> Option<Self> {
        let line = reply.strip_prefix(b"-")?.strip_suffix(b"\r\n")?;
        let (code, rest) = line.split_at(line.iter().position(|byte| *byte == b' ').unwrap_or(line.len()));
        Some(match code {
            b"MOVED" => {
                let (slot, target) = slot_and_target(rest)?;
                Self::Moved { slot, target }
            }
            b"ASK" => {
                let (slot, target) = slot_and_target(rest)?;
                Self::Ask { slot, target }
            }
            b"TRYAGAIN" => Self::TryAgain,
            b"CLUSTERDOWN" => Self::ClusterDown,
            b"READONLY" => Self::ReadOnly,
            b"LOADING" => Self::Loading,
            b"MASTERDOWN" => Self::MasterDown,
            b"BUSY" => Self::Busy,
            _ => return None,
        })
    }
}

/// Reads the slot and the node from the text of a MOVED or ASK redirect after its first word, such as ` 3999
/// 127.0.0.1:6381`. None if the text has another form.
fn slot_and_target(text: &[u8]) -> Option<(u16, Target<'_>)> {
    let (slot, target) = std::str::from_utf8(text).ok()?.strip_prefix(' ')?.split_once(' ')?;
    let (host, port) = host_and_port(target)?;
    let slot = digits(slot).filter(|slot| *slot < SLOTS)?;
    Some((slot, Target { host, port }))
}

/// Splits a host from the port after its last colon: nodes write IPv6 addresses without brackets. The host may
/// be empty. None if the text has no port above 0, or a host that is neither a name nor an address.
pub(super) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = digits(port).filter(|port| *port != 0)?;
    is_host(host).then_some((host, port))
}

/// True if the text may be the name or the address of a host, or is empty.
pub(super) fn is_host(text: &str) -> bool {
    text.len() <= HOST_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"[]@,".contains(&byte))
}

/// Reads a number without a sign. None for any other text, and for a number that does not fit the type.
pub(super) fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(host: &str, port: u16) -> ServerAddress {
        ServerAddress { host: host.to_owned(), port }
    }

    #[test]
    fn redirections_are_read() {
        let sender = address("10.0.0.9", 7);
        for (line, slot, wanted) in [
            ("MOVED 3999 127.0.0.1:6381", 3999, Some(address("127.0.0.1", 6381))),
            ("MOVED 0 ::1:6381", 0, Some(address("::1", 6381))),
            ("MOVED 0 fe80::12:6381", 0, Some(address("fe80::12", 6381))),
            ("MOVED 16383 [::1]:6381", 16383, Some(address("::1", 6381))),
            ("MOVED 5 b.example:1", 5, Some(address("b.example", 1))),
            // Recorded with `cluster-preferred-endpoint-type` unknown-endpoint, and with hostname on a node
            // without one.
            ("MOVED 12182 :32863", 12182, Some(address("10.0.0.9", 32863))),
            ("MOVED 12182 ?:32863", 12182, None),
        ] {
            for (code, is_ask) in [("MOVED", false), ("ASK", true)] {
                let reply = format!("-{}\r\n", line.replace("MOVED", code));
                let (read, target) = match NodeRefusal::parse(reply.as_bytes()) {
                    Some(NodeRefusal::Moved { slot, target }) if !is_ask => (slot, target),
                    Some(NodeRefusal::Ask { slot, target }) if is_ask => (slot, target),
                    other => panic!("{reply}: {other:?}"),
                };
                assert_eq!((read, target.resolve(&sender)), (slot, wanted.clone()), "{line}");
            }
        }
    }

    #[test]
    fn other_refusals_are_told_by_their_first_word() {
        for (line, wanted) in [
            ("TRYAGAIN Multiple keys request during rehashing of slot", Some(NodeRefusal::TryAgain)),
            ("CLUSTERDOWN Hash slot not served", Some(NodeRefusal::ClusterDown)),
            ("READONLY You can't write against a read only replica.", Some(NodeRefusal::ReadOnly)),
            ("LOADING Redis is loading the dataset in memory", Some(NodeRefusal::Loading)),
            ("MASTERDOWN Link with MASTER is down", Some(NodeRefusal::MasterDown)),
            ("BUSY Redis is busy running a script.", Some(NodeRefusal::Busy)),
            ("BUSY", Some(NodeRefusal::Busy)),
            ("BUSYGROUP Consumer Group name already exists", None),
            ("ERR MOVED 1 a:1", None),
            ("MOVEDX 1 a:1", None),
            ("", None),
        ] {
            assert_eq!(NodeRefusal::parse(format!("-{line}\r\n").as_bytes()), wanted, "{line}");
        }
        assert_eq!(NodeRefusal::parse(b"+BUSY\r\n"), None);
    }

    #[test]
    fn redirections_that_redis_would_not_write_are_none() {
        let long = format!("MOVED 1 {}:1", "h".repeat(HOST_BYTES_MAX + 1));
        for line in [
            "MOVED",
            "MOVED ",
            "MOVED 1",
            "MOVED 1 ",
            "MOVED 1 a",
            "MOVED 1 a:",
            "MOVED 1 a:0",
            "MOVED 1 a:65536",
            "MOVED 1 a:+1",
            "MOVED +1 a:1",
            "MOVED 16384 a:1",
            "MOVED -1 a:1",
            "MOVED 1  a:1",
            "MOVED 1 a b:1",
            "MOVED 1 a\u{e9}:1",
            &long,
        ] {
            assert_eq!(NodeRefusal::parse(format!("-{line}\r\n").as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_give_a_bounded_target_or_none(line in "-(MOVED|ASK) [0-9]{0,6} .{0,300}\r\n") {
            if let Some(NodeRefusal::Moved { slot, target } | NodeRefusal::Ask { slot, target }) =
                NodeRefusal::parse(line.as_bytes())
            {
                prop_assert!(slot < SLOTS && target.host.len() <= HOST_BYTES_MAX && target.port > 0);
            }
        }
    }
}
