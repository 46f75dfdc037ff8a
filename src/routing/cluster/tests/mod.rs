//! Tests of the cluster's maps: with replies recorded from redis-server 7.0.15 (`tests/data/cluster/`),
//! against a slow reference model, and with hostile bytes.

mod failover_probe;
mod hostile;
mod model;
mod recorded;
mod refresh;
mod walk;

use std::fmt::Write as _;
use std::sync::Arc;

use super::*;
use crate::values::ServerAddress;

fn address(text: &str) -> ServerAddress {
    let (host, port) = text.rsplit_once(':').expect("host:port");
    ServerAddress { host: host.to_owned(), port: port.parse().expect("a port") }
}

/// A node as a made-up view of the cluster has it.
#[derive(Clone, Debug, Default)]
struct Told {
    id: String,
    epoch: u64,
    flags: &'static str,
    replica_of: Option<String>,
    slots: Vec<u16>,
    open: String,
}

impl Told {
    fn primary(id: &str, epoch: u64, slots: impl IntoIterator<Item = u16>) -> Self {
        let slots = slots.into_iter().collect();
        Self { id: id.to_owned(), epoch, flags: "master", slots, ..Self::default() }
    }

    fn replica(id: &str, primary: &str, epoch: u64) -> Self {
        Self {
            id: id.to_owned(),
            epoch,
            flags: "slave",
            replica_of: Some(primary.to_owned()),
            ..Self::default()
        }
    }
}

/// Builds the view of the first of these nodes from the bytes that this node would send. Addresses follow
/// from the nodes' ids.
fn view(told: &[Told]) -> Result<View, Unusable> {
    let mut nodes = String::new();
    let mut ranges = Vec::new();
    for (place, node) in told.iter().enumerate() {
        let Told { id, epoch, flags, replica_of, slots, open } = node;
        let myself = if place == 0 { "myself," } else { "" };
        let primary = replica_of.as_deref().unwrap_or("-");
        write!(nodes, "{id} {id}.example:1@2 {myself}{flags} {primary} 0 0 {epoch} connected").expect("text");
        for slot in slots {
            write!(nodes, " {slot}").expect("text");
            let replicas =
                told.iter().filter(|other| other.replica_of.as_ref() == Some(id)).map(|other| &other.id);
            let named: Vec<String> = std::iter::once(id).chain(replicas).map(|id| endpoint(id)).collect();
            ranges.push(format!("*{}\r\n:{slot}\r\n:{slot}\r\n{}", 2 + named.len(), named.concat()));
        }
        writeln!(nodes, "{open}").expect("text");
    }
    let slots = format!("*{}\r\n{}", ranges.len(), ranges.concat());
    let nodes = format!("${}\r\n{nodes}\r\n", nodes.len());
    View::parse(&address("seed.example:7"), slots.as_bytes(), nodes.as_bytes())
}

/// Returns the bytes that describe the node with this id in a reply to `CLUSTER SLOTS`.
fn endpoint(id: &str) -> String {
    let host = format!("{id}.example");
    format!("*3\r\n${}\r\n{host}\r\n:1\r\n${}\r\n{id}\r\n", host.len(), id.len())
}

fn owner_of(map: &Map, slot: u16) -> Option<&str> {
    map.owner(slot).and_then(|owner| map.node(owner)).map(|node| node.id.as_str())
}
