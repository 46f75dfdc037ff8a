//! Finds out for `QOS EXPLAIN` how the stage of hot keys would handle a request, without counting, keeping or
//! sending anything.

use super::entry::{Found, Read};
use super::{HotKeyStage, as_fetched, hash_of, value};
use crate::protocol::command::Effect;
use crate::shard::counters::Counter;
use crate::shard::request::{Route, Touched, Touches};
use crate::values::Timestamp;
use crate::values::limits::HOT_FRAME_BYTES_MAX;

/// The way in which a request would be handled with regard to hot keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forecast {
    /// The request names no key, or none that can be hot.
    NoKey,
    /// The request names several keys, or may be about any: it is always sent to the store and shares no
    /// fetch.
    Keys,
    /// The request is an `MGET` of several keys, which weir splits by store and core. Each part is answered from memory
    /// or by shared fetches if all its keys are hot, and sent to the store as one request otherwise.
    Values,
    /// The request's key is not hot, so the request is sent to its store like any other.
    Cold,
    /// A reply to the request is kept in memory and would be sent.
    Kept,
    /// A fetch (shared read of a hot key) of the reply exists already, and the request would wait for it.
    Joins,
    /// No valid reply is kept, and none is being fetched that the request could wait for: it would start a fetch
    /// (shared read of a hot key) from the store.
    Fetched,
    /// The request would be held back so that it does not overtake earlier ones of its connection, and then be handled
    /// again.
    Held,
    /// The request's key is hot, but the request is sent to the store and shares no fetch, for the reason
    /// given.
    GoesOn(&'static str),
}

impl Forecast {
    /// Returns the text about hot keys in the reply to `QOS EXPLAIN`.
    pub fn text(self) -> String {
        match self {
            Self::NoKey => "no key".to_owned(),
            Self::Keys => "several keys: goes on".to_owned(),
            Self::Values => "several keys: goes on where one of them is not hot".to_owned(),
            Self::Cold => "cold".to_owned(),
            Self::Kept => "hot: answered from memory".to_owned(),
            Self::Joins => "hot: would wait for what is being fetched".to_owned(),
            Self::Fetched => "hot: would be fetched".to_owned(),
            Self::Held => "hot: would wait for earlier requests of this connection".to_owned(),
            Self::GoesOn(why) => format!("hot: goes on ({why})"),
        }
    }
}

impl HotKeyStage {
    /// Returns how a request that is sent to its store from this core would be handled with regard to hot
    /// keys. `may_move` is true in front of a cluster, where slots change their owners. `touches` says which
    /// keys the request is about, `effect` whether it writes, `connection` which client connection sent it.
    pub fn forecast(
        &self,
        (touches, effect): (Touches, Effect),
        (connection, route): (u64, Route),
        frame: &[u8],
        may_move: bool,
        now: Timestamp,
    ) -> Forecast {
        let (key, may_be_kept) = match touches.of(frame) {
            Touched::Nothing => return Forecast::NoKey,
            Touched::Keys if value::is_asked_of_several(frame) => return Forecast::Values,
            Touched::Keys | Touched::Unknown => return Forecast::Keys,
            Touched::Key { key, may_be_kept } => (key, may_be_kept),
        };
        let Some(id) = self.keys.id_of(hash_of(&self.keys, route.database, key)) else {
            return Forecast::Cold;
        };
        let entry = self.entries.get(usize::from(id.index)).and_then(|entry| entry.as_deref());
        let Some(entry) = entry.filter(|entry| entry.id == id && entry.key == key) else {
            return Forecast::GoesOn("its name is too long");
        };
        if effect == Effect::Write {
            return Forecast::GoesOn("a write: nothing that was read before it is used any more");
        }
        if !may_be_kept {
            return Forecast::GoesOn("replies to this command are not kept");
        }
        if frame.len() > HOT_FRAME_BYTES_MAX {
            return Forecast::GoesOn("the request is too long");
        }
        let known = (&*self.settings.versions, &self.flights);
        let is_behind_any = self.under_way.is_about_any(connection);
        let route = as_fetched(route);
        let read = Read { connection, route, frame, is_behind_any, may_move };
        match entry.forecast(read, known, self.settings.ttl, now) {
            Found::Kept { .. } => Forecast::Kept,
            Found::Flight(_) => Forecast::Joins,
            Found::Fetchable => Forecast::Fetched,
            Found::Behind => Forecast::Held,
            Found::Nothing(Counter::HotBypassedOrder) => {
                Forecast::GoesOn("behind other requests of this connection for it")
            }
            Found::Nothing(Counter::HotBypassedWarming) => {
                Forecast::GoesOn("what was under way when it became hot has yet to be answered")
            }
            Found::Nothing(_) => Forecast::GoesOn("too many different requests for it"),
        }
    }
}
