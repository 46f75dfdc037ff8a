//! Messages to clients about changes of keys (CLIENT TRACKING), as in Redis 7.0. REDIRECT may name only
//! connections that use RESP3.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;

use super::call::{Call, Done, Effect};
use super::post::Delivery;
use super::refusal::Refusal;
use crate::protocol::{Protocol, TrackingOptions, command, encode};
use crate::values::limits::ENGINE_TRACKED_BYTES_MAX;

/// The approximate bytes that a key takes in the table of keys that connections have read, besides its name.
const KEY_BYTES: usize = 96;
/// The approximate bytes that one connection's read of a key takes in the table of keys that connections have
/// read.
const READER_BYTES: usize = 32;
/// Maximum number of key prefixes that one connection may track (CLIENT TRACKING with BCAST and PREFIX); a
/// request for more is refused.
const PREFIXES_MAX: usize = 256;
/// Maximum number of bytes of all key prefixes together that one connection tracks (CLIENT TRACKING); a
/// request for more is refused.
const PREFIXES_BYTES_MAX: usize = 64 * 1024;

type Name = Box<[u8]>;

/// The message, to a connection that tracks keys, that all keys may have changed.
const ALL: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
/// Maximum bytes of the names of changed keys, with 64 bytes more for each, that wait to be sent to
/// connections which track by prefix (BCAST), for all prefixes together. A prefix whose change exceeds it
/// loses all its changes, and its connections are told that all keys may have changed.
const BROADCAST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The approximate bytes that a changed key takes under each of the tracked prefixes (BCAST) that it begins
/// with, besides its name.
const CHANGE_BYTES: usize = 64;
/// The number of keys that are dropped, after a request, from the table of keys that connections have read,
/// if it has more than its limit. After the n-th such request in a row, n times as many are dropped.
const REMOVED_AT_ONCE: usize = 100;

/// A connection for which CLIENT TRACKING is on, so that it is sent messages about changed keys.
#[derive(Clone, Debug, Default)]
struct Client {
    options: TrackingOptions,
    /// True if the connection has sent `CLIENT CACHING`, so that its next command or transaction is an
    /// exception to its tracking mode (OPTIN or OPTOUT).
    is_exception: bool,
}

/// A prefix of keys by which connections track (BCAST), and the keys with it that have changed since messages
/// were last sent.
#[derive(Debug, Default)]
struct Prefix {
    /// The connections that are sent messages about changed keys which begin with the prefix.
    clients: BTreeSet<u64>,
    /// The changed keys that begin with the prefix, each with the connection that has changed it last; `None`
    /// for a change by time, such as an expiry.
    changed: BTreeMap<Name, Option<u64>>,
    /// True if too many keys with the prefix have changed to name them: connections are told that all may
    /// have changed.
    is_overfull: bool,
}

/// The keys that connections have read, and the connections that are sent messages when these change (CLIENT
/// TRACKING).
#[derive(Debug, Default)]
pub(super) struct Tracking {
    clients: BTreeMap<u64, Client>,
    /// The connections that have read each key, by the key's name in any database. Connections that have been
    /// closed are left out when the key changes.
    readers: BTreeMap<Name, BTreeSet<u64>>,
    /// The approximate number of bytes that `readers`, the table of keys that connections have read, takes.
    bytes: usize,
    /// The number of reads in `readers`, which has the connections that have read each key: a key that two
    /// connections have read counts twice.
    items: usize,
    /// The key that was last dropped from `readers`, the table of keys that connections have read, because
    /// the table was too large. The key after it, in the order of names, is dropped next.
    removed: Name,
    /// The number of requests in a row after which `readers` had still more keys than the setting allows.
    crowded: usize,
    /// The prefixes by which any connection tracks keys.
    prefixes: BTreeMap<Name, Prefix>,
    /// The approximate bytes of all changed keys that wait in `prefixes` to be sent to connections.
    changed_bytes: usize,
    /// True if any key that begins with one of `prefixes` has changed since messages were last made.
    has_changes: bool,
    /// The connection whose request is being carried out, which with NOLOOP gets no message about its own
    /// changes; `None` for changes that happen by time, such as expiries.
    actor: Option<u64>,
    /// The connections that use RESP3, which can therefore be sent messages.
    hearing: BTreeSet<u64>,
    /// Messages to be sent, each with the connection that it goes to.
    told: Vec<(u64, Bytes)>,
}

impl Tracking {
    /// Returns the number of connections for which CLIENT TRACKING is on.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Returns the number of keys that connections have read, the number of reads of these keys (a key that
    /// two connections have read counts twice), and the number of prefixes by which connections track keys.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.readers.len(), self.items, self.prefixes.len())
    }

    /// Sets the connection (`session`) whose request causes the following changes of keys, so that with
    /// NOLOOP it gets no message about them; `None` for changes that happen by time, such as expiries.
    pub(super) fn set_actor(&mut self, session: Option<u64>) {
        self.actor = session;
    }

    /// True if any connection may have to be sent a message about a change of the key.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.readers.contains_key(key) || self.prefixes.keys().any(|prefix| key.starts_with(prefix))
    }

    /// Records that a connection (`session`) has read a key, so that it is sent a message when the key
    /// changes; does nothing if its tracking leaves this read out. If the table of read keys then takes too
    /// many bytes, keys are dropped from it, and the connections that have read them are told that they
    /// changed.
    fn note_read(&mut self, session: u64, key: &[u8]) {
        if !self.clients.get(&session).is_some_and(Client::tracks) {
            return;
        }
        let readers = if let Some(readers) = self.readers.get_mut(key) {
            readers
        } else {
            self.bytes += KEY_BYTES + key.len();
            self.readers.entry(key.into()).or_default()
        };
        let is_new = usize::from(readers.insert(session));
        self.bytes += READER_BYTES * is_new;
        self.items += is_new;
        while self.bytes > ENGINE_TRACKED_BYTES_MAX && self.remove_one() {}
    }

    /// Drops keys from the table of keys that connections have read while it has more than `keys_max`, a
    /// bounded number at once; 0 stands for no limit. The connections that have read a dropped key are told
    /// that it has changed.
    pub(super) fn limit(&mut self, keys_max: usize) {
        if keys_max == 0 || self.readers.len() <= keys_max {
            self.crowded = 0;
            return;
        }
        self.crowded += 1;
        for _ in 0..REMOVED_AT_ONCE.saturating_mul(self.crowded) {
            self.remove_one();
            if self.readers.len() <= keys_max {
                self.crowded = 0;
                return;
            }
        }
    }

    /// Drops the next key, in the order of names, from the table of keys that connections have read, and
    /// tells these connections that it has changed. False if the table is empty.
    fn remove_one(&mut self) -> bool {
        let after = (Bound::Excluded(&*self.removed), Bound::Unbounded);
        let next = self.readers.range::<[u8], _>(after).next().or_else(|| self.readers.first_key_value());
        let Some(key) = next.map(|(key, _)| key.clone()) else { return false };
        self.tell_readers(&key, None);
        self.removed = key;
        true
    }

    /// Queues the message that a key has changed for the connections that have read it, and drops their reads
    /// of it. `actor` is the connection that has changed it, if any; with NOLOOP it gets no message.
    fn tell_readers(&mut self, key: &[u8], actor: Option<u64>) {
        let Some(readers) = self.readers.remove(key) else { return };
        self.bytes -= KEY_BYTES + key.len() + READER_BYTES * readers.len();
        self.items -= readers.len();
        let message = changes(std::iter::once(key));
        for reader in readers {
            // A read before the connection began to track by prefix does not count.
            if let Some(client) = self.clients.get(&reader)
                && !client.options.is_broadcast
                && !(client.options.leaves_out_own && actor == Some(reader))
            {
                self.told.extend(addressed(&self.hearing, (reader, client), message.clone()));
            }
        }
    }

    /// Records that a key has changed: queues messages for the connections that have read it and drops their
    /// reads, and keeps the change for messages to the connections that track the key by prefix.
    pub(super) fn change(&mut self, key: &[u8]) {
        for (_, state) in self.prefixes.iter_mut().filter(|(prefix, _)| key.starts_with(prefix)) {
            self.has_changes = true;
            if state.is_overfull {
                continue;
            }
            if state.changed.insert(key.into(), self.actor).is_none() {
                self.changed_bytes += CHANGE_BYTES + key.len();
            }
            if self.changed_bytes > BROADCAST_BYTES_MAX {
                self.changed_bytes -= state.changed_bytes();
                state.changed.clear();
                state.is_overfull = true;
            }
        }
        self.tell_readers(key, self.actor);
    }

    /// Records that all keys of a database were removed: queues for each tracking connection the message that
    /// all keys may have changed, only once for several databases in a row, and drops all records of reads.
    pub(super) fn clear(&mut self) {
        if self.told.last().is_some_and(|(_, message)| message == ALL) && self.readers.is_empty() {
            return;
        }
        for (session, client) in &self.clients {
            self.told.extend(addressed(&self.hearing, (*session, client), Bytes::from_static(ALL)));
        }
        self.drop_reads();
    }

    fn drop_reads(&mut self) {
        self.readers.clear();
        (self.bytes, self.items) = (0, 0);
    }

    /// Turns tracking off for a connection (`session`). The records of keys that it has read stay, and count
    /// again if tracking is turned on later.
    pub(super) fn end(&mut self, session: u64) {
        let Some(client) = self.clients.remove(&session) else { return };
        for prefix in client.options.prefixes {
            if let Some(state) = self.prefixes.get_mut(&*prefix)
                && state.clients.remove(&session)
                && state.clients.is_empty()
            {
                self.changed_bytes -= state.changed_bytes();
                self.prefixes.remove(&*prefix);
            }
        }
    }

    /// Removes a connection (`session`) that has been closed, or has sent RESET.
    pub(super) fn forget(&mut self, session: u64) {
        self.end(session);
        self.hearing.remove(&session);
    }

    /// Drops all records of keys that connections have read, if no connection tracks keys any more.
    pub(super) fn tidy(&mut self) {
        if self.clients.is_empty() {
            self.drop_reads();
        }
    }

    /// True if no connection tracks keys and no reads of keys are recorded, so that changes of keys need not
    /// be reported.
    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.readers.is_empty()
    }

    /// Records the RESP version of a connection (`session`): only with RESP3 it can be sent messages about
    /// changed keys.
    pub(super) fn set_protocol(&mut self, session: u64, protocol: Protocol) {
        if protocol == Protocol::Resp3 {
            self.hearing.insert(session);
        } else {
            self.hearing.remove(&session);
        }
    }

    /// True if the messages of a connection (`client`) are redirected to a connection that has been closed,
    /// or that cannot be sent any.
    fn is_broken(&self, client: &Client) -> bool {
        client.options.redirect.is_some_and(|target| !self.hearing.contains(&target))
    }

    /// Ends a request of a connection (`session`), after which an earlier `CLIENT CACHING` has no effect any
    /// more.
    pub(super) fn end_caching(&mut self, session: u64) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.is_exception = false;
        }
    }

    /// Returns the messages about changes since the last call, as deliveries, and removes them. All changed
    /// keys with one prefix are in one message.
    pub(super) fn take_messages(&mut self) -> impl Iterator<Item = Delivery> + use<> {
        if std::mem::take(&mut self.has_changes) {
            self.tell_by_prefix();
        }
        let told = std::mem::take(&mut self.told).into_iter();
        told.map(|(session, bytes)| Delivery { session, bytes, ends_wait: false })
    }

    /// Queues the messages to connections that track by prefix (BCAST), and forgets the changes that these
    /// tell of.
    fn tell_by_prefix(&mut self) {
        for state in self.prefixes.values_mut() {
            let is_overfull = std::mem::take(&mut state.is_overfull);
            let changed = std::mem::take(&mut state.changed);
            if changed.is_empty() && !is_overfull {
                continue;
            }
            let all = if is_overfull {
                Bytes::from_static(ALL)
            } else {
                changes(changed.keys().map(AsRef::as_ref))
            };
            for session in &state.clients {
                let Some(client) = self.clients.get(session) else { continue };
                let is_own = |actor: &Option<u64>| client.options.leaves_out_own && *actor == Some(*session);
                let message = if is_overfull || !changed.values().any(is_own) {
                    all.clone()
                } else if changed.values().all(is_own) {
                    continue;
                } else {
                    let others: Vec<&[u8]> =
                        changed.iter().filter(|(_, actor)| !is_own(actor)).map(|(key, _)| &**key).collect();
                    changes(others.into_iter())
                };
                self.told.extend(addressed(&self.hearing, (*session, client), message));
            }
        }
        self.changed_bytes = 0;
    }
}

/// Returns the bytes of the message that `keys` have changed.
fn changes<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Bytes {
    let mut bytes = Vec::new();
    encode::push(&mut bytes, Protocol::Resp3, 2);
    encode::bulk(&mut bytes, b"invalidate");
    encode::array(&mut bytes, keys.len());
    keys.for_each(|key| encode::bulk(&mut bytes, key));
    Bytes::from(bytes)
}

/// Returns a message for the connection with number `session`, whose tracking state is `client`, with the
/// number of the connection that gets it. If messages are redirected to a connection that cannot be sent any,
/// returns a message about that for `session` itself; `None` if `session` cannot be sent messages either.
/// `hearing` has the connections that can be sent messages.
fn addressed(
    hearing: &BTreeSet<u64>,
    (session, client): (u64, &Client),
    message: Bytes,
) -> Option<(u64, Bytes)> {
    let target = client.options.redirect.unwrap_or(session);
    if hearing.contains(&target) {
        return Some((target, message));
    }
    let broken = || {
        let mut bytes = Vec::new();
        encode::push(&mut bytes, Protocol::Resp3, 2);
        encode::bulk(&mut bytes, b"tracking-redir-broken");
        encode::integer(&mut bytes, target as i64);
        (session, Bytes::from(bytes))
    };
    hearing.contains(&session).then(broken)
}

impl Prefix {
    /// Returns the approximate bytes of the changed keys that begin with this prefix and wait to be sent to
    /// connections.
    fn changed_bytes(&self) -> usize {
        self.changed.keys().map(|key| CHANGE_BYTES + key.len()).sum()
    }
}

impl Client {
    /// True if the keys that the connection's present request reads are to be recorded as read by it.
    fn tracks(&self) -> bool {
        let TrackingOptions { is_broadcast, opts_in, opts_out, .. } = self.options;
        let is_left_out = if self.is_exception { opts_out } else { opts_in };
        !is_broadcast && !is_left_out
    }
}

/// Records the keys that a command which only reads has read, or would have read if they existed, if its
/// connection tracks keys. As in Redis 7.2, those of a script are the keys that its commands have read, not
/// the ones that it was given.
pub(super) fn note_reads(call: &mut Call<'_>, effect: Effect) {
    if !call.session.tracks {
        return;
    }
    let (tracking, session) = (&mut call.keyspace.interest.tracking, call.session.id);
    if effect != Effect::Read {
        return;
    }
    let Ok(known) = command::recognise(&call.arguments) else { return };
    if known.class != command::Class::Script && known.effect == command::Effect::Read {
        // A command whose keys cannot be found has read none.
        let _ = known.for_each_key(&call.arguments, &mut |index| {
            tracking.note_read(session, call.arguments.at(index));
        });
    }
}

/// Carries out `CLIENT TRACKING`, which turns messages about changed keys on or off for the connection.
pub(super) fn client_tracking(call: &mut Call<'_>) -> Done {
    let session = call.session.id;
    let mut options = TrackingOptions::parse(&call.arguments).map_err(|bad| Refusal::Words(bad.text()))?;
    let hears = |target| call.keyspace.interest.tracking.hearing.contains(&target);
    if options.redirect.is_some_and(|target| !hears(target)) {
        return Err(Refusal::Words(
            "ERR The client ID you want redirect to does not exist, or does not speak RESP3",
        ));
    }
    if call.is(2, "off") {
        call.keyspace.interest.tracking.end(session);
        call.session.tracks = false;
        return call.ok();
    }
    if !call.is(2, "on") {
        return Err(Refusal::Syntax);
    }
    let Tracking { clients, prefixes, .. } = &mut call.keyspace.interest.tracking;
    let known = clients.get(&session);
    check(&options, known.map(|known| &known.options))?;
    let before = known.map(|known| known.options.prefixes.as_slice()).unwrap_or_default();
    // The limits come first, since the prefixes are then compared pairwise.
    check_size(before.iter().chain(&options.prefixes))?;
    if let Some(text) = options.overlap(before) {
        return Err(Refusal::Quoting(text));
    }
    if options.is_broadcast && options.prefixes.is_empty() {
        options.prefixes.push(Vec::new());
    }
    options.prefixes.retain(|prefix| !before.contains(prefix));
    options.prefixes.splice(..0, before.iter().cloned());
    check_size(options.prefixes.iter())?;
    let is_exception = known.is_some_and(|known| known.is_exception);
    for prefix in &options.prefixes {
        prefixes.entry(prefix.as_slice().into()).or_default().clients.insert(session);
    }
    clients.insert(session, Client { options, is_exception });
    call.session.tracks = true;
    call.ok()
}

/// Refuses options of `CLIENT TRACKING` (`wanted`) that contradict each other or the options that the
/// connection has in force (`known`; `None` if tracking is off).
fn check(wanted: &TrackingOptions, known: Option<&TrackingOptions>) -> Result<(), Refusal> {
    let refuse = |words| Err(Refusal::Words(words));
    if !wanted.is_broadcast && !wanted.prefixes.is_empty() {
        return refuse("ERR PREFIX option requires BCAST mode to be enabled");
    }
    if wanted.is_broadcast && (wanted.opts_in || wanted.opts_out) {
        return refuse("ERR OPTIN and OPTOUT are not compatible with BCAST");
    }
    if wanted.opts_in && wanted.opts_out {
        return refuse("ERR You can't specify both OPTIN mode and OPTOUT mode");
    }
    let Some(known) = known else { return Ok(()) };
    if known.is_broadcast != wanted.is_broadcast {
        return refuse(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.",
        );
    }
    if known.opts_in && wanted.opts_out || known.opts_out && wanted.opts_in {
        return refuse(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.",
        );
    }
    Ok(())
}

/// Refuses the prefixes of a connection if they are more than 256, or have more than 64 KiB together.
fn check_size<'a>(prefixes: impl Iterator<Item = &'a Vec<u8>>) -> Result<(), Refusal> {
    let (count, bytes) = prefixes.fold((0, 0), |(count, bytes), prefix| (count + 1, bytes + prefix.len()));
    if count > PREFIXES_MAX || bytes > PREFIXES_BYTES_MAX {
        return Err(Refusal::Words("ERR too many prefixes"));
    }
    Ok(())
}

/// Carries out `CLIENT CACHING`, by which the next command or transaction is an exception to the tracking
/// mode OPTIN or OPTOUT.
pub(super) fn client_caching(call: &mut Call<'_>) -> Done {
    let Some(client) = call.keyspace.interest.tracking.clients.get_mut(&call.session.id) else {
        return Err(Refusal::Words(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ));
    };
    let yes = call.arguments.at(2).eq_ignore_ascii_case(b"yes");
    if !yes && !call.arguments.at(2).eq_ignore_ascii_case(b"no") {
        return Err(Refusal::Syntax);
    }
    if !(if yes { client.options.opts_in } else { client.options.opts_out }) {
        let (word, mode) = if yes { ("YES", "OPTIN") } else { ("NO", "OPTOUT") };
        return Err(Refusal::Quoting(format!(
            "ERR CLIENT CACHING {word} is only valid when tracking is enabled in {mode} mode."
        )));
    }
    client.is_exception = true;
    call.ok()
}

/// Carries out `CLIENT GETREDIR`: replies with the number of the connection that receives this one's messages
/// about changed keys; 0 for itself, -1 if it tracks no keys.
pub(super) fn client_getredir(call: &mut Call<'_>) -> Done {
    let client = call.keyspace.interest.tracking.clients.get(&call.session.id);
    call.integer(redirect(client))
}

/// Returns the number of the connection that receives the messages of a connection (`client`): 0 for that
/// connection itself, -1 if it tracks no keys.
fn redirect(client: Option<&Client>) -> i64 {
    client.map_or(-1, |client| client.options.redirect.unwrap_or(0) as i64)
}

/// Carries out `CLIENT TRACKINGINFO`: replies with the flags, redirection and prefixes of the connection's
/// tracking.
pub(super) fn client_trackinginfo(call: &mut Call<'_>) -> Done {
    let tracking = &call.keyspace.interest.tracking;
    let client = tracking.clients.get(&call.session.id);
    let mut flags: Vec<&str> =
        client.map_or_else(|| vec!["off"], |client| client.options.flags(client.is_exception).collect());
    flags.extend(client.filter(|client| tracking.is_broken(client)).map(|_| "broken_redirect"));
    let redirect = redirect(client);
    let prefixes = client.map(|client| client.options.prefixes.clone()).unwrap_or_default();
    let protocol = call.protocol();
    call.out.map(protocol, 3);
    call.out.bulk(b"flags");
    call.out.set(protocol, flags.len());
    flags.iter().for_each(|flag| call.out.bulk(flag.as_bytes()));
    call.out.bulk(b"redirect");
    call.out.integer(redirect);
    call.out.bulk(b"prefixes");
    call.out.array(prefixes.len());
    prefixes.iter().for_each(|prefix| call.out.bulk(prefix));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Session;
    use crate::store::bench::Bench;

    fn told(bench: &mut Bench) -> Vec<(u64, String)> {
        let deliveries = std::iter::from_fn(|| bench.engine.poll_delivery());
        deliveries
            .map(|told| (told.session, String::from_utf8_lossy(&told.bytes).replace("\r\n", "|")))
            .collect()
    }

    fn changed(key: &str) -> (u64, String) {
        (1, format!(">2|$10|invalidate|*1|${}|{key}|", key.len()))
    }

    fn tracking(options: &str) -> Bench {
        let mut bench = Bench::new();
        bench.send("HELLO 3");
        assert_eq!(bench.send(&format!("CLIENT TRACKING ON{options}")), "+OK|");
        bench
    }

    #[test]
    fn a_key_that_was_read_is_told_of_once() {
        let mut bench = tracking("");
        for line in ["SET k v", "SET unread v", "GET k", "MGET k l", "STRLEN k", "EXISTS m"] {
            bench.send(line);
        }
        assert_eq!(told(&mut bench), []);
        bench.send("SET k w");
        bench.send("SET k x");
        assert_eq!(told(&mut bench), [changed("k")]);
        bench.send("MSET l 1 m 2");
        assert_eq!(told(&mut bench), [changed("l"), changed("m")]);
        for line in ["GET k", "MULTI", "GET l", "INCR l", "EXEC", "DEL k"] {
            bench.send(line);
        }
        assert_eq!(told(&mut bench), [changed("l"), changed("k")]);
        bench.send("GET k");
        bench.send("LPUSH k x");
        bench.send("GET k");
        bench.send("SET n v PX 5");
        bench.send("GET n");
        bench.wait_ms(10);
        bench.send("GET n");
        assert_eq!(told(&mut bench), [changed("k"), changed("n")], "each once");
        bench.send("GET n");
        bench.send("FLUSHALL");
        assert_eq!(told(&mut bench), [(1, ">2|$10|invalidate|_|".to_owned())]);
        bench.send("GET n");
        assert_eq!(bench.send("CLIENT TRACKING OFF"), "+OK|");
        bench.send("SET n v");
        assert_eq!(told(&mut bench), []);
        assert!(bench.engine.keyspace.interest.tracking.is_idle());
    }

    #[test]
    fn messages_go_to_the_connection_that_is_named() {
        let mut bench = Bench::new();
        let mut target = Session::new(2);
        let refusal = "-ERR The client ID you want redirect to does not exist, or does not speak RESP3|";
        assert_eq!(bench.send("CLIENT TRACKING ON REDIRECT 2"), refusal);
        std::mem::swap(&mut bench.session, &mut target);
        bench.send("HELLO 3");
        std::mem::swap(&mut bench.session, &mut target);
        bench.talk(&[
            ("CLIENT TRACKING ON REDIRECT x", "-ERR value is not an integer or out of range|"),
            ("CLIENT TRACKING ON REDIRECT 2", "+OK|"),
            ("CLIENT GETREDIR", ":2|"),
            ("GET k", "$-1|"),
            ("GET l", "$-1|"),
            ("SET k v", "+OK|"),
        ]);
        let changed = (2, ">2|$10|invalidate|*1|$1|k|".to_owned());
        assert_eq!(told(&mut bench), [changed]);
        bench.engine.forget(&target);
        bench.send("SET l v");
        assert_eq!(told(&mut bench), [], "it speaks RESP2");
        bench.send("HELLO 3");
        bench.send("GET k");
        bench.send("SET k w");
        assert_eq!(told(&mut bench), [(1, ">2|$21|tracking-redir-broken|:2|".to_owned())]);
        let info = "%3|$5|flags|~2|$2|on|$15|broken_redirect|$8|redirect|:2|$8|prefixes|*0|";
        bench.talk(&[("CLIENT TRACKINGINFO", info)]);
    }

    #[test]
    fn a_name_is_told_of_whatever_the_database() {
        let mut bench = tracking("");
        bench.send("GET k");
        bench.send("SELECT 3");
        bench.send("SET k v");
        assert_eq!(told(&mut bench), [changed("k")]);
    }

    #[test]
    fn options_decide_what_is_told() {
        let mut bench = tracking(" OPTIN");
        for line in [
            "GET a",
            "CLIENT CACHING YES",
            "GET b",
            "GET c",
            "CLIENT CACHING YES",
            "MULTI",
            "GET d",
            "GET e",
            "EXEC",
        ] {
            bench.send(line);
        }
        bench.send("MSET a 1 b 1 c 1 d 1 e 1");
        assert_eq!(told(&mut bench), [changed("b"), changed("d"), changed("e")]);
        let mut bench = tracking(" OPTOUT NOLOOP");
        for line in ["CLIENT CACHING NO", "GET a", "GET b", "SET b own"] {
            bench.send(line);
        }
        assert_eq!(told(&mut bench), [], "its own change");
        let mut bench = tracking(" BCAST PREFIX user: PREFIX item:");
        bench.send("MSET user:1 a item:1 b other c");
        assert_eq!(told(&mut bench), [changed("item:1"), changed("user:1")]);
        bench.talk(&[
            ("CLIENT TRACKINGINFO", "%3|$5|flags|~2|$2|on|$5|bcast|$8|redirect|:0|$8|prefixes|*2|$5|user:|$5|item:|"),
            ("CLIENT GETREDIR", ":0|"),
            ("CLIENT TRACKING ON BCAST PREFIX user:1", "-ERR Prefix 'user:1' overlaps with an existing prefix 'user:'. Prefixes for a single client must not overlap.|"),
            ("CLIENT TRACKING ON BCAST PREFIX b PREFIX a PREFIX bc", "-ERR Prefix 'b' overlaps with another provided prefix 'bc'. Prefixes for a single client must not overlap.|"),
            ("CLIENT TRACKING ON OPTIN", "-ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.|"),
            ("CLIENT TRACKING ON PREFIX a", "-ERR PREFIX option requires BCAST mode to be enabled|"),
            ("CLIENT TRACKING ON OPTIN OPTOUT", "-ERR You can't specify both OPTIN mode and OPTOUT mode|"),
            ("CLIENT TRACKING ON OPTIN BCAST", "-ERR OPTIN and OPTOUT are not compatible with BCAST|"),
            ("CLIENT TRACKING ON NOPE", "-ERR syntax error|"),
            ("CLIENT CACHING YES", "-ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.|"),
            ("CLIENT TRACKING OFF NOPE", "-ERR syntax error|"),
            ("CLIENT TRACKING OFF REDIRECT x", "-ERR value is not an integer or out of range|"),
            ("CLIENT TRACKING OFF REDIRECT 99", "-ERR The client ID you want redirect to does not exist, or does not speak RESP3|"),
            ("CLIENT GETREDIR", ":0|"),
            ("CLIENT TRACKING OFF BCAST PREFIX a PREFIX ab OPTIN", "+OK|"),
            ("CLIENT GETREDIR", ":-1|"),
        ]);
    }

    #[test]
    fn one_message_names_all_keys_of_a_prefix_that_a_request_changes() {
        let mut bench = tracking(" BCAST");
        let mut other = Session::new(2);
        std::mem::swap(&mut bench.session, &mut other);
        bench.send("HELLO 3");
        bench.send("CLIENT TRACKING ON BCAST PREFIX a NOLOOP");
        bench.send("MSET a1 1 b 1 a2 1");
        let message = |keys: &[&str]| {
            let bulk = |key: &&str| format!("${}|{key}|", key.len());
            format!(">2|$10|invalidate|*{}|{}", keys.len(), keys.iter().map(bulk).collect::<String>())
        };
        assert_eq!(
            told(&mut bench),
            [(1, message(&["a1", "a2", "b"]))],
            "in order, and its own changes left out"
        );
        std::mem::swap(&mut bench.session, &mut other);
        for line in ["MULTI", "SET a2 1", "SET a1 1", "INCR a2", "EXEC"] {
            bench.send(line);
        }
        let both = message(&["a1", "a2"]);
        assert_eq!(told(&mut bench), [(1, both.clone()), (2, both)]);
        bench.send("SET a1 v PX 1");
        std::mem::swap(&mut bench.session, &mut other);
        bench.wait_ms(5);
        bench.send("SET a2 v");
        told(&mut bench);
        bench.send("MSET b 1 a1 2");
        bench.engine.expire_some(bench.now, 10);
        assert_eq!(told(&mut bench), [(1, message(&["a1", "b"]))]);
        bench.send("SET a1 v PX 1");
        told(&mut bench);
        bench.wait_ms(5);
        bench.send("GET a1");
        assert_eq!(told(&mut bench), [(1, message(&["a1"]))], "found expired by its own request");
        assert_eq!(bench.engine.keyspace.interest.tracking.counts(), (0, 0, 2));
        bench.send("CLIENT TRACKING OFF");
        assert_eq!(bench.engine.keyspace.interest.tracking.counts(), (0, 0, 1));
        bench.engine.forget(&other);
        assert!(bench.engine.keyspace.interest.tracking.is_idle());
        assert_eq!(bench.engine.keyspace.interest.tracking.counts(), (0, 0, 0));
    }

    #[test]
    fn too_many_changed_keys_are_not_named() {
        let mut bench = tracking(" BCAST PREFIX k");
        let name = "n".repeat(BROADCAST_BYTES_MAX / 3);
        let keys: Vec<String> = (0..4).map(|number| format!("k{number}{name} v")).collect();
        bench.send(&format!("MSET {}", keys.join(" ")));
        assert_eq!(told(&mut bench), [(1, ">2|$10|invalidate|_|".to_owned())]);
        assert_eq!(bench.engine.keyspace.interest.tracking.changed_bytes, 0);
        bench.send("SET k v");
        assert_eq!(told(&mut bench), [changed("k")]);
    }

    #[test]
    fn the_table_has_as_many_keys_as_the_setting_permits() {
        let mut bench = tracking("");
        bench.send("MGET a b c d");
        assert_eq!(bench.engine.keyspace.interest.tracking.counts(), (4, 4, 0));
        bench.send("CONFIG SET tracking-table-max-keys 2");
        assert_eq!(told(&mut bench), [changed("a"), changed("b")]);
        bench.send("GET a");
        assert_eq!(told(&mut bench), [changed("c")], "the next in order");
        let many: Vec<String> = (0..400).map(|number| format!("k{number}")).collect();
        bench.send(&format!("MGET {}", many.join(" ")));
        assert_eq!(told(&mut bench).len(), 100, "not all at once");
        bench.send("PING");
        bench.engine.expire_some(bench.now, 10);
        assert_eq!(told(&mut bench).len(), 300);
        bench.send("CONFIG SET tracking-table-max-keys 0");
        bench.send(&format!("MGET {}", many.join(" ")));
        assert_eq!(told(&mut bench), []);
    }

    #[cfg(feature = "scripts")]
    #[test]
    fn a_script_has_read_the_keys_that_its_commands_read() {
        let mut bench = tracking("");
        bench.send("EVAL return(redis.call('set','k','v')) 2 k l");
        bench.send("MSET k 1 l 1");
        assert_eq!(told(&mut bench), []);
        bench.send("EVAL_RO return(redis.call('get','k')) 2 k l");
        bench.send("MSET k 2 l 2 m 2");
        assert_eq!(told(&mut bench), [changed("k")]);
        bench.send("EVAL return(redis.call('mget','m','n')) 1 k");
        bench.send("MSET k 2 l 2 m 2 n 2");
        assert_eq!(told(&mut bench), [changed("m"), changed("n")]);
        bench.send("EVAL_RO return(redis.call('ping')) 2 k l");
        bench.send("MSET k 2 l 2");
        assert_eq!(told(&mut bench), []);
    }

    #[test]
    fn prefixes_are_bounded_over_all_commands_of_a_connection() {
        let mut bench = tracking(" BCAST PREFIX first:");
        let accepted = (0..1_000).take_while(|number| {
            bench.send(&format!("CLIENT TRACKING ON BCAST PREFIX {number:04}:")) == "+OK|"
        });
        assert_eq!(accepted.count(), PREFIXES_MAX - 1);
        let mut bench = tracking(" BCAST PREFIX first:");
        let long = "x".repeat(PREFIXES_BYTES_MAX);
        let words = format!("CLIENT TRACKING ON BCAST PREFIX {long}");
        assert_eq!(bench.send(&words), "-ERR too many prefixes|");
        assert_eq!(bench.send("CLIENT TRACKING ON BCAST PREFIX second:"), "+OK|", "that changed nothing");
        let overlapping = " PREFIX overlap".repeat(PREFIXES_MAX);
        let words = format!("CLIENT TRACKING ON BCAST{overlapping}");
        assert_eq!(bench.send(&words), "-ERR too many prefixes|", "they are not even compared");
    }

    #[test]
    fn the_table_is_bounded_and_forgets_in_exchange_for_messages() {
        let mut tracking = Tracking::default();
        tracking.clients.insert(1, Client::default());
        tracking.set_protocol(1, Protocol::Resp3);
        let large = vec![b'k'; ENGINE_TRACKED_BYTES_MAX / 3];
        for first in [b'a', b'b', b'c'] {
            tracking.note_read(1, &[&[first], &large[..]].concat());
        }
        assert!(tracking.bytes <= ENGINE_TRACKED_BYTES_MAX);
        assert_eq!(tracking.take_messages().count(), 1);
        assert_eq!(tracking.readers.len(), 2);
        tracking.end(1);
        tracking.tidy();
        assert_eq!((tracking.bytes, tracking.readers.len()), (0, 0));
    }
}
