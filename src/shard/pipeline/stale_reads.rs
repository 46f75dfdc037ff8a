//! Reads that replicas of a cluster may answer, for clients that accept slightly old values.

use super::Shard;
use super::destination::Destination;
use crate::protocol::command::{Class, Command, Effect, Flags, Gather, Handling, Keys};
use crate::shard::request::Track;
use crate::shard::settings::Mode;

impl Shard {
    /// Returns the track (set of backend connections) of a request whose client accepts old values: that to
    /// replicas, if replicas are switched on and may answer the request, else the usual one.
    #[cold]
    pub(super) fn track_of_stale(
        &self,
        command: Option<&'static Command>,
        destination: Destination,
    ) -> Track {
        let is_on = self.env.settings.replicas == Mode::On;
        let may_be_old = is_on && command.is_some_and(|command| may_be_old(command, destination));
        if may_be_old { Track::Replica } else { Track::Usual }
    }
}

/// True if a replica may answer a request, though its values may be slightly old: it reads only one key, or
/// several keys each of which has its own value in the reply. A reply combined from several keys is excluded:
/// it may lack a key that has moved to another node, and nothing in the reply would show that.
fn may_be_old(command: &Command, destination: Destination) -> bool {
    let only_reads =
        command.effect == Effect::Read && matches!(command.class, Class::Point | Class::Multi | Class::Range);
    let is_plain = match command.handling {
        Handling::Forward => !command.flags.intersects(Flags::UNSHOWN_WORK),
        Handling::Split(_) => false,
        _ => return false,
    };
    let has_key_first = matches!(command.keys, Keys::Range { first: 1, .. });
    only_reads
        && has_key_first
        && (is_plain || command.flags.contains(Flags::CACHEABLE))
        && match destination {
            Destination::Home { touches, .. } => {
                touches.is_key() || command.handling == Handling::Split(Gather::Values)
            }
            Destination::Parts(gather) => gather == Gather::Values,
            _ => false,
        }
}
