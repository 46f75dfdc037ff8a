//! Values of several hot keys in one reply: the answers to `MGET` from memory, and the comparison of stores' replies to
//! it with the values that are kept.

use bytes::Bytes;

use super::entry::{Found, Read, Stale};
use super::under_way::Values;
use super::{HotKeyStage, as_fetched, connection_of, entry_of, longer, value};
use crate::policy::hot_keys::HotId;
use crate::protocol::encode;
use crate::protocol::reply::elements;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::request::Envelope;
use crate::shard::settings::Mode;
use crate::values::Timestamp;

impl HotKeyStage {
    /// Returns the reply to an `MGET` of these hot keys (`ids`), in this order, from memory, if all their values are
    /// kept. None of the keys has been written through weir since its value was asked for, so the values are of one
    /// moment, as a store's are. If a value is missing, returns None and begins a fetch (shared read of a hot key) of
    /// it, for which nobody waits, provided that its reply would be kept. None as well if the reply would be too large,
    /// if a request of the connection that may be about any key is unanswered, in shadow mode, and for keys of several
    /// slots: weir splits an `MGET` of several slots if all its keys are hot.
    pub(super) fn find_values(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        ids: &[HotId],
        now: Timestamp,
    ) -> Option<Bytes> {
        let connection = connection_of(env, envelope);
        if self.settings.mode != Mode::On || self.under_way.is_about_any(connection) {
            return None;
        }
        let route = as_fetched(envelope.route);
        let may_move = env.slots.is_some();
        let known = (&*self.settings.versions, &self.flights);
        let mut frame = env.pool.take();
        let mut reply = Vec::new();
        encode::array(&mut reply, ids.len());
        let (mut oldest, mut are_all_kept, mut to_fetch) = (now, true, Vec::new());
        for id in ids.iter().copied() {
            let entry = entry_of(&mut self.entries, id).filter(|entry| entry.slot == route.slot)?;
            entry.encode_read(&mut frame);
            let read = Read { connection, route, frame: &frame, is_behind_any: false, may_move };
            let is_to_be_fetched = match entry.forecast(read, known, self.settings.ttl, now) {
                Found::Kept { reply: value, asked_at, is_to_be_fetched } => {
                    reply.extend_from_slice(value::alone(&value));
                    oldest = oldest.min(asked_at);
                    is_to_be_fetched
                }
                found => {
                    are_all_kept = false;
                    matches!(found, Found::Fetchable) && entry.would_keep(&self.settings.versions, now)
                }
            };
            if is_to_be_fetched && !to_fetch.contains(&id) {
                to_fetch.push(id);
            }
        }
        let is_answered = are_all_kept && reply.len() <= env.settings.reply_bytes_max;
        for id in ids.iter().copied() {
            let Some(entry) = entry_of(&mut self.entries, id) else { continue };
            if is_answered {
                entry.encode_read(&mut frame);
                let read = Read { connection, route, frame: &frame, is_behind_any: false, may_move };
                entry.find(read, known, (self.settings.ttl, self.stale_max), now);
            } else {
                entry.handle_unshared(known.0, now);
            }
        }
        for id in to_fetch {
            if let Some(entry) = entry_of(&mut self.entries, id) {
                entry.encode_read(&mut frame);
                self.fetch(env, envelope, (id, true), &frame, now);
            }
        }
        env.pool.give(frame);
        if !is_answered {
            return None;
        }
        self.ages.record(now.nanos_since(oldest));
        env.counters.add(Counter::HotHits, 1);
        Some(reply.into())
    }

    /// Builds the reply to an `MGET` from kept, possibly expired values when the store is unavailable. None unless
    /// every key is hot and has a kept value that the request's tenant accepts (`stale_on_error`). `connection` is that
    /// of the client, and None also if a request of it that may be about any key is in flight.
    pub(super) fn spare_values(
        &mut self,
        env: &mut Env,
        (connection, values): (u64, &Values),
        now: Timestamp,
    ) -> Option<Bytes> {
        let Self { entries, keys, settings, under_way, .. } = self;
        let longer = longer(values.asker, &env.quotas);
        if settings.mode != Mode::On || !values.are_all || under_way.is_about_any(connection) {
            return None;
        }
        let mut reply = Vec::new();
        encode::array(&mut reply, values.keys.len());
        for (id, _) in &values.keys {
            let is_for = |stale: &Stale<'_>| stale.is_for(longer, &settings.versions, now);
            let stale = entry_of(entries, *id)?.stale_values(values.protocol).find(is_for)?;
            reply.extend_from_slice(value::alone(&stale.reply()));
            if reply.len() > env.settings.reply_bytes_max {
                return None;
            }
        }
        for (id, _) in &values.keys {
            // The read is counted, so that the key stays hot even if no other request asks for it while the
            // store is away.
            keys.note_many(*id, 1);
            if let Some(entry) = entry_of(entries, *id) {
                entry.handle_stale_value(now);
            }
        }
        env.counters.add(Counter::HotStaleOnError, values.keys.len() as u64);
        Some(reply.into())
    }

    /// Compares each value of an `MGET` reply of a store with the reply kept for its key, as [`Self::compare`] does.
    /// Skips elements that are errors. Does nothing for a replica's reply.
    pub(super) fn compare_values(&mut self, env: &mut Env, values: &Values, reply: &[u8], now: Timestamp) {
        let Some(told) = elements(reply).filter(|_| values.is_compared) else { return };
        let mut keys = values.keys.iter().peekable();
        for (place, told) in told.enumerate() {
            let Some((id, _)) = keys.next_if(|(_, own)| *own as usize == place) else { continue };
            let hash = entry_of(&mut self.entries, *id).map(|entry| entry.hash);
            // The value of one key may be an error, if a part of the split `MGET` failed.
            if let Some(hash) = hash.filter(|_| !value::is_error(told)) {
                self.compare(env, (*id, hash), told, now);
            }
            if keys.peek().is_none() {
                return;
            }
        }
    }
}
