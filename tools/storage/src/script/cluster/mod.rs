//! A store that plays a node of a Redis Cluster: it has one node's view of a made-up cluster, and refuses
//! what that node would refuse. There is no gossip: each process believes the view it was given, so several
//! may be given different ones.
//!
//! | what | file |
//! |---|---|
//! | the view, in the words of `CLUSTER NODES` | `nodes.rs` |
//! | `CLUSTER SLOTS`, `SHARDS` and others | `replies.rs` |
//! | errors for chosen slots, at chosen requests | `refusals.rs` |

mod nodes;
mod refusals;
mod replies;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use nodes::ClusterNodes;
use refusals::Refusals;
pub(super) use refusals::refusal;

use weir::protocol::command::{self, Class, Command, Effect, describe};
use weir::protocol::{Arguments, Protocol, encode};
use weir::routing::slot_of;
use weir::store::Session;

/// The way in which nodes are named to clients, as by Redis's `cluster-preferred-endpoint-type`: by address,
/// by host name, or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Endpoints {
    #[default]
    Address,
    Name,
    /// Nodes have an empty host, which stands for the host that the client is connected to.
    Unknown,
}

/// The cluster state of a client's connection: whether it has sent ASKING, which holds for its next request,
/// and READONLY, which holds for all further ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClusterSession {
    asking: bool,
    readonly: bool,
}

/// The simulated node's decision on a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request is carried out by the engine of the simulated node.
    Execute,
    /// The request is answered without the engine, and the reply is written already.
    Answered,
    /// The request is refused with this error line.
    Refused(String),
}

/// The simulated cluster node: its view of the cluster, how it names nodes to clients, and scripted errors.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) nodes: ClusterNodes,
    pub(super) endpoints: Endpoints,
    pub(super) refusals: Refusals,
    /// The number of requests that the simulated node refused.
    pub(super) refused: u64,
}

impl Cluster {
    pub(super) fn new(nodes: ClusterNodes) -> Self {
        Self { nodes, endpoints: Endpoints::default(), refusals: Refusals::default(), refused: 0 }
    }

    /// Decides whether the simulated node carries out a request whose service starts; an EXEC is decided by
    /// the requests of its transaction. `said` has what the connection sent before (ASKING, READONLY),
    /// `holds` tells whether the node has a key, and `out` takes the reply to a request that the node
    /// answers itself.
    pub(super) fn judge(
        &mut self,
        said: &mut ClusterSession,
        session: &Session,
        arguments: &Arguments<'_>,
        holds: &mut dyn FnMut(&[u8]) -> bool,
        out: &mut Vec<u8>,
    ) -> Verdict {
        let name = arguments.name().to_ascii_lowercase();
        let (asking, transaction) = (said.asking, session.queued());
        // ASKING holds for the next request, and for a whole transaction if that is a MULTI.
        let goes_on = transaction.is_some() && !matches!(&*name, b"exec" | b"discard") || name == b"multi";
        said.asking &= goes_on;
        if transaction.is_none() && self.answers(said, &name, arguments, session.protocol(), out) {
            return Verdict::Answered;
        }
        let mut wanted = Wanted::default();
        match transaction {
            Some(queued) if name == b"exec" => queued.for_each(|arguments| wanted.add(&arguments)),
            _ => wanted.add(arguments),
        }
        match self.refusal(&wanted, asking, said.readonly, holds) {
            None => Verdict::Execute,
            Some(line) => {
                self.refused += 1;
                Verdict::Refused(line)
            }
        }
    }

    fn answers(
        &mut self,
        said: &mut ClusterSession,
        name: &[u8],
        arguments: &Arguments<'_>,
        protocol: Protocol,
        out: &mut Vec<u8>,
    ) -> bool {
        if !matches!(name, b"asking" | b"readonly" | b"readwrite" | b"cluster" | b"command") {
            return false;
        }
        if let Err(problem) = command::recognise(arguments) {
            encode::error(out, &problem.to_string());
            return true;
        }
        match name {
            b"asking" => said.asking = true,
            b"readonly" => said.readonly = true,
            b"readwrite" => said.readonly = false,
            b"cluster" => {
                self.reply(arguments, protocol, out);
                return true;
            }
            // Clients of clusters read from COMMAND where the keys of a request are.
            _ => {
                describe::answer(out, protocol, arguments);
                return true;
            }
        }
        encode::simple(out, "OK");
        true
    }

    /// Returns the error line with which the simulated node refuses a request for the keys in `wanted`;
    /// `None` if it carries the request out. `asking` and `readonly` say whether the connection sent ASKING
    /// and READONLY, and `holds` tells whether the node has a key.
    fn refusal(
        &mut self,
        wanted: &Wanted,
        asking: bool,
        readonly: bool,
        holds: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<String> {
        let slot = wanted.slot?;
        if wanted.is_spread {
            return Some("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        if let Some(line) = self.refusals.of(slot, wanted.writes) {
            return Some(line);
        }
        let nodes = &self.nodes;
        let Some(owner) = nodes.owner(slot) else {
            return Some("CLUSTERDOWN Hash slot not served".to_owned());
        };
        let mut missing = || wanted.keys.iter().filter(|key| !holds(key)).count();
        let (try_again, several) =
            ("TRYAGAIN Multiple keys request during rehashing of slot", wanted.keys.len() > 1);
        if owner == nodes.myself() {
            let target = nodes.migrates_to(slot)?;
            let missing = missing();
            return if missing == 0 {
                None
            } else if missing < wanted.keys.len() {
                Some(try_again.to_owned())
            } else {
                Some(format!("ASK {slot} {}", self.named(target)))
            };
        }
        if asking && nodes.imports(slot) {
            return (several && missing() > 0).then(|| try_again.to_owned());
        }
        let copies = nodes.primary_of(nodes.myself()) == Some(owner);
        if copies && readonly && !wanted.writes {
            return None;
        }
        Some(format!("MOVED {slot} {}", self.named(owner)))
    }

    /// Returns the `host:port` of the node with this index, as clients see it; the host may be empty.
    fn named(&self, node: usize) -> String {
        let node = self.nodes.node(node);
        match self.endpoints {
            Endpoints::Address => format!("{}:{}", node.host, node.port),
            Endpoints::Name => format!("{}:{}", node.name.as_deref().unwrap_or("?"), node.port),
            Endpoints::Unknown => format!(":{}", node.port),
        }
    }
}

/// The keys of a request or a transaction, and their hash slot.
#[derive(Debug, Default)]
struct Wanted {
    keys: BTreeSet<Vec<u8>>,
    slot: Option<u16>,
    /// True if the keys of the request are in more than one hash slot.
    is_spread: bool,
    writes: bool,
}

impl Wanted {
    /// Adds the keys of a request, and whether it writes. A malformed request has none: the engine replies
    /// with its error.
    fn add(&mut self, arguments: &Arguments<'_>) {
        let Ok(command) = command::recognise(arguments) else { return };
        self.writes |= writes(command);
        let _ = command.for_each_key(arguments, &mut |index| {
            let key = arguments.at(index);
            let slot = slot_of(key);
            self.is_spread |= *self.slot.get_or_insert(slot) != slot;
            self.keys.insert(key.to_vec());
        });
    }
}

/// True for a command that a replica does not carry out. Redis lets replicas run EVAL too and refuses what
/// it writes; the engine would carry that out.
fn writes(command: &Command) -> bool {
    command.effect == Effect::Write || command.class == Class::Script && !command.name.ends_with("_ro")
}
