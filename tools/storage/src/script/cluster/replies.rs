//! Replies to `CLUSTER` commands about the nodes and slots.

use super::nodes::{Node, slot_number};
use super::{Cluster, Endpoints};
use weir::protocol::{Arguments, Protocol, encode};
use weir::routing::slot_of;
use weir::values::limits::SLOTS;

impl Cluster {
    /// Appends the reply to a `CLUSTER` command to `out`; SETSLOT also changes the node's view of the
    /// cluster.
    pub(super) fn reply(&mut self, arguments: &Arguments<'_>, protocol: Protocol, out: &mut Vec<u8>) {
        let words: Vec<String> =
            arguments.iter().skip(1).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let subcommand = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        match (subcommand.as_str(), words.get(1..).unwrap_or_default()) {
            ("slots", []) => self.write_slots(protocol, out),
            ("nodes", []) => encode::verbatim(out, protocol, &self.nodes.text()),
            ("shards", []) => self.write_shards(protocol, out),
            ("myid", []) => encode::bulk(out, self.nodes.my_id().as_bytes()),
            ("info", []) => encode::verbatim(out, protocol, &self.info()),
            ("keyslot", [_]) => encode::integer(out, i64::from(slot_of(arguments.at(2)))),
            ("setslot", [slot, change @ ..]) => {
                let slot = slot_number(slot).ok_or("ERR Invalid or out of range slot".to_owned());
                match slot.and_then(|slot| self.nodes.set_slot(slot, change)) {
                    Ok(()) => encode::simple(out, "OK"),
                    Err(line) => encode::error(out, &line),
                }
            }
            _ => encode::error(
                out,
                "ERR this store answers CLUSTER SLOTS, NODES, SHARDS, MYID, INFO, KEYSLOT and SETSLOT",
            ),
        }
    }

    fn write_slots(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let ranges = self.nodes.ranges();
        encode::array(out, ranges.len());
        for (first, last, owner) in ranges {
            let nodes: Vec<usize> = std::iter::once(owner).chain(self.replicas(owner)).collect();
            encode::array(out, 2 + nodes.len());
            encode::integer(out, i64::from(first));
            encode::integer(out, i64::from(last));
            for node in nodes {
                let node = self.nodes.node(node);
                encode::array(out, 4);
                match self.endpoint(node) {
                    Some(host) => encode::bulk(out, host.as_bytes()),
                    None => encode::null(out, protocol),
                }
                encode::integer(out, i64::from(node.port));
                encode::bulk(out, node.id.as_bytes());
                let known = [
                    ("ip", (self.endpoints != Endpoints::Address).then_some(node.host.as_str())),
                    ("hostname", node.name.as_deref().filter(|_| self.endpoints != Endpoints::Name)),
                ];
                let known = known.into_iter().filter_map(|(field, value)| Some((field, value?)));
                encode::map(out, protocol, known.clone().count());
                for (field, value) in known {
                    encode::bulk(out, field.as_bytes());
                    encode::bulk(out, value.as_bytes());
                }
            }
        }
    }

    fn write_shards(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let ranges = self.nodes.ranges();
        let primaries: Vec<usize> =
            (0..self.nodes.all().len()).filter(|place| !is_replica(self.nodes.node(*place))).collect();
        encode::array(out, primaries.len());
        for primary in primaries {
            let slots = ranges.iter().filter(|(_, _, owner)| *owner == primary);
            let nodes: Vec<usize> = std::iter::once(primary).chain(self.replicas(primary)).collect();
            encode::map(out, protocol, 2);
            encode::bulk(out, b"slots");
            encode::array(out, 2 * slots.clone().count());
            for (first, last, _) in slots {
                encode::integer(out, i64::from(*first));
                encode::integer(out, i64::from(*last));
            }
            encode::bulk(out, b"nodes");
            encode::array(out, nodes.len());
            for place in nodes {
                let node = self.nodes.node(place);
                let texts = [
                    ("id", node.id.as_str()),
                    ("ip", node.host.as_str()),
                    ("endpoint", self.endpoint(node).unwrap_or_default()),
                    ("role", if place == primary { "master" } else { "replica" }),
                    ("health", if node.is("fail") { "fail" } else { "online" }),
                ];
                encode::map(out, protocol, texts.len() + 2);
                for (field, value) in texts {
                    encode::bulk(out, field.as_bytes());
                    encode::bulk(out, value.as_bytes());
                }
                for (field, value) in [("port", i64::from(node.port)), ("replication-offset", 0)] {
                    encode::bulk(out, field.as_bytes());
                    encode::integer(out, value);
                }
            }
        }
    }

    fn info(&self) -> String {
        let slots: usize =
            self.nodes.ranges().iter().map(|(first, last, _)| usize::from(last - first) + 1).sum();
        let state = if slots == usize::from(SLOTS) { "ok" } else { "fail" };
        let nodes = self.nodes.all();
        let (epoch, mine) =
            (nodes.iter().map(|node| node.epoch).max(), self.nodes.node(self.nodes.myself()).epoch);
        let owners: std::collections::BTreeSet<usize> =
            self.nodes.ranges().into_iter().map(|(_, _, owner)| owner).collect();
        format!(
            "cluster_enabled:1\r\ncluster_state:{state}\r\ncluster_slots_assigned:{slots}\r\ncluster_slots_ok:{slots}\r\n\
             cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{}\r\ncluster_size:{}\r\n\
             cluster_current_epoch:{}\r\ncluster_my_epoch:{mine}\r\n",
            nodes.len(),
            owners.len(),
            epoch.unwrap_or(0),
        )
    }

    /// Returns the indices of the nodes that are replicas of the primary with this index and have not
    /// failed.
    fn replicas(&self, primary: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.all().len()).filter(move |place| {
            let node = self.nodes.node(*place);
            is_replica(node) && !node.is("fail") && self.nodes.primary_of(*place) == Some(primary)
        })
    }

    fn endpoint<'a>(&self, node: &'a Node) -> Option<&'a str> {
        match self.endpoints {
            Endpoints::Address => Some(&node.host),
            Endpoints::Name => Some(node.name.as_deref().unwrap_or("?")),
            Endpoints::Unknown => None,
        }
    }
}

fn is_replica(node: &Node) -> bool {
    node.is("slave") || node.is("replica")
}
