//! What would become of a request, for whoever asks. Nothing is counted, kept or sent.

use super::entry::{Found, Read};
use super::{Hot, as_fetched};
use crate::protocol::command::Effect;
use crate::shard::counters::Counter;
use crate::shard::request::{Route, Touched, Touches};
use crate::values::Timestamp;
use crate::values::limits::HOT_FRAME_BYTES_MAX;

/// It, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreseen {
    /// It is about no key, or about none that is ever hot.
    NoKey,
    /// It is about several keys: it always goes on.
    Keys,
    /// Its key is not hot.
    Cold,
    /// Its reply is there.
    Kept,
    /// Its reply is on its way already.
    Joins,
    /// It would be the first to wait for its reply.
    Fetched,
    /// It would wait for earlier requests of its connection, and then be looked at again.
    Held,
    /// Its key is hot, but it goes on by itself, because of this.
    GoesOn(&'static str),
}

impl Foreseen {
    /// As `QOS EXPLAIN` says it.
    pub fn text(self) -> String {
        match self {
            Self::NoKey => "no key".to_owned(),
            Self::Keys => "several keys: goes on".to_owned(),
            Self::Cold => "cold".to_owned(),
            Self::Kept => "hot: answered from memory".to_owned(),
            Self::Joins => "hot: would wait for what is being fetched".to_owned(),
            Self::Fetched => "hot: would be fetched".to_owned(),
            Self::Held => "hot: would wait for earlier requests of this connection".to_owned(),
            Self::GoesOn(why) => format!("hot: goes on ({why})"),
        }
    }
}

impl Hot {
    /// What would become of a request that is sent from here.
    pub fn foresee(
        &self,
        (touches, effect): (Touches, Effect),
        (connection, route): (u64, Route),
        frame: &[u8],
        may_move: bool,
        now: Timestamp,
    ) -> Foreseen {
        let (key, may_be_kept) = match touches.of(frame) {
            Touched::Nothing => return Foreseen::NoKey,
            Touched::Keys | Touched::Unknown => return Foreseen::Keys,
            Touched::Key { key, may_be_kept } => (key, may_be_kept),
        };
        let Some(id) = self.keys.id_of(self.keys.hash(key)) else { return Foreseen::Cold };
        let entry = self.entries.get(usize::from(id.index)).and_then(|entry| entry.as_deref());
        let Some(entry) = entry.filter(|entry| entry.id == id && entry.key == key) else {
            return Foreseen::GoesOn("its name is too long");
        };
        if effect == Effect::Write {
            return Foreseen::GoesOn("a write: nothing that was read before it is used any more");
        }
        if !may_be_kept {
            return Foreseen::GoesOn("replies to this command are not kept");
        }
        if frame.len() > HOT_FRAME_BYTES_MAX {
            return Foreseen::GoesOn("the request is too long");
        }
        let known = (&*self.settings.versions, &self.flights);
        let is_behind_any = self.under_way.is_about_any(connection);
        let route = as_fetched(route);
        let read = Read { connection, route, frame, is_behind_any, may_move };
        match entry.foresee(read, known, self.settings.ttl, now) {
            Found::Kept { .. } => Foreseen::Kept,
            Found::Flight(_) => Foreseen::Joins,
            Found::Fetchable => Foreseen::Fetched,
            Found::Behind => Foreseen::Held,
            Found::Nothing(Counter::HotBypassedOrder) => {
                Foreseen::GoesOn("behind other requests of this connection for it")
            }
            Found::Nothing(Counter::HotBypassedWarming) => {
                Foreseen::GoesOn("what was under way when it became hot has yet to be answered")
            }
            Found::Nothing(_) => Foreseen::GoesOn("too many different requests for it"),
        }
    }
}
