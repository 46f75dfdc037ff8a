//! Cluster: slots on the move, redirected requests, replicas for reads, and lost reads that are sent again. Unused in
//! front of plain stores. Has no access to connections or windows: replies and losses are passed to it with the index
//! of the connection.
//!
//! | what | file |
//! |---|---|
//! | slots, which change their owners, and their held requests | `slots.rs` |
//! | requests that are sent and unanswered, kept in case they must be sent again | `unanswered.rs` |
//! | reads that replicas may answer | `readers.rs` |
//! | reads that were lost with a connection, once more | `retry.rs` |

mod readers;
mod retry;
mod slots;
mod unanswered;

pub use readers::{ReaderFigures, Readers, ReplicaReply};
pub use slots::{Doubt, Heard, MapChange, Place, Released, Slots, behind_asking, behind_role, pause_not_yet};
pub use unanswered::Tries;

use super::request::Route;
use super::settings::{Mode, ShardSettings};
use crate::policy::replica_choice::Role;
use crate::values::time::Now;

/// The state that one core keeps of a cluster: owners of slots, requests that wait for them, and replicas for
/// reads.
#[derive(Debug)]
pub struct Cluster {
    /// The owners of slots, with held and unanswered requests; None until the first map has come, and where
    /// weir stands in front of plain stores.
    pub slots: Option<Box<Slots>>,
    /// The choice of replicas for reads that replicas may answer; `None` unless that is switched on.
    pub readers: Option<Box<Readers>>,
}

impl Cluster {
    /// Creates the state of a core that has no map of the cluster yet.
    pub fn new(settings: &ShardSettings) -> Self {
        let readers = (settings.replicas == Mode::On).then(|| Box::new(Readers::new(settings.seed)));
        Self { slots: None, readers }
    }

    /// Returns the route for a read that a replica may answer: to a replica, or to the slot's owner, to which `home`
    /// leads. `offer` returns the number of requests in flight at a node, and None if it can take no read now.
    pub fn choose_reader(
        &mut self,
        home: Route,
        mut offer: impl FnMut(&Slots, Route, Role) -> Option<u32>,
        now: Now,
    ) -> Route {
        let (Some(slots), Some(readers)) = (&self.slots, &mut self.readers) else { return home };
        readers.choose(slots, home, |route, role| offer(slots, route, role), now).unwrap_or(home)
    }

    /// True once a read was sent that a replica might have answered: the response times of slot owners are
    /// sampled from then on, to compare owners with replicas.
    #[inline]
    pub fn is_compared(&self) -> bool {
        self.readers.as_ref().is_some_and(|readers| readers.was_used())
    }
}
