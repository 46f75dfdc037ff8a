//! Messages to clients about changes of keys (CLIENT TRACKING), as in Redis 7.0. REDIRECT may name only
//! connections that use RESP3.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::call::{Call, Done, Effect};
use super::post::Delivery;
use super::refusal::{Refusal, quoted};
use crate::protocol::{BadTrackingOption, Protocol, TrackingOptions, command, encode};
use crate::values::limits::ENGINE_TRACKED_BYTES_MAX;

/// The approximate bytes that a key takes in the table of reads besides its name.
const KEY_BYTES: usize = 96;
/// The approximate bytes that one connection's read of a key takes in the table.
const READER_BYTES: usize = 32;
/// Maximum number of prefixes of one connection.
const PREFIXES_MAX: usize = 256;
/// Maximum number of bytes of all prefixes of one connection.
const PREFIXES_BYTES_MAX: usize = 64 * 1024;

type Name = Box<[u8]>;

/// A connection for which CLIENT TRACKING is on.
#[derive(Clone, Debug, Default)]
struct Client {
    options: TrackingOptions,
    /// True if `CLIENT CACHING` was sent, so that the next command or transaction is an exception to the
    /// connection's tracking mode.
    is_exception: bool,
}

/// The keys that connections have read, and the connections that are sent messages when these change (CLIENT
/// TRACKING).
#[derive(Debug, Default)]
pub(super) struct Tracking {
    clients: BTreeMap<u64, Client>,
    /// Connections that have read each key, by the key's name in any database. Connections that have been
    /// closed are left out when the key changes.
    readers: BTreeMap<Name, BTreeSet<u64>>,
    bytes: usize,
    /// The connection whose request is being carried out, which with NOLOOP gets no message about its own
    /// changes; `None` for changes that happen by time, such as expiries.
    actor: Option<u64>,
    /// The connections that use RESP3, which can be sent messages.
    hearing: BTreeSet<u64>,
    /// Messages to be sent, each with the connection that it goes to.
    told: Vec<(u64, Told)>,
}

/// A message of key tracking to a connection.
#[derive(Debug)]
enum Told {
    /// A key has changed.
    Key(Name),
    /// All keys may have changed.
    All,
    /// The connection with this number, to which messages are redirected, has been closed.
    Broken(u64),
}

impl Tracking {
    /// Returns the number of connections for which CLIENT TRACKING is on.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Sets the connection whose request is being carried out; `None` for changes that happen by time, such
    /// as expiries.
    pub(super) fn set_actor(&mut self, session: Option<u64>) {
        self.actor = session;
    }

    /// True if any connection would be sent a message about a change of the key.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.readers.contains_key(key) || self.clients.values().any(|client| client.hears(key))
    }

    /// Records that a connection has read a key, so that it is sent a message when the key changes.
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
        self.bytes += READER_BYTES * usize::from(readers.insert(session));
        while self.bytes > ENGINE_TRACKED_BYTES_MAX
            && let Some((key, readers)) = self.readers.pop_first()
        {
            self.forget_key(&key, &readers);
            let Self { clients, hearing, told, .. } = self;
            let known = readers.into_iter().filter_map(|reader| Some((reader, clients.get(&reader)?)));
            told.extend(known.filter_map(|known| message(hearing, known, || Told::Key(key.clone()))));
        }
    }

    fn forget_key(&mut self, key: &[u8], readers: &BTreeSet<u64>) {
        self.bytes -= KEY_BYTES + key.len() + READER_BYTES * readers.len();
    }

    /// Queues messages for all connections that track a key which has changed, and drops their reads of it.
    pub(super) fn change(&mut self, key: &[u8]) {
        let Self { clients, actor, hearing, told, .. } = self;
        let mut tell = |reader: u64, client: &Client| {
            if !client.options.leaves_out_own || *actor != Some(reader) {
                told.extend(message(hearing, (reader, client), || Told::Key(key.into())));
            }
        };
        for (reader, client) in clients.iter().filter(|(_, client)| client.hears(key)) {
            tell(*reader, client);
        }
        let Some(readers) = self.readers.remove(key) else { return };
        for reader in &readers {
            if let Some(client) = clients.get(reader) {
                tell(*reader, client);
            }
        }
        self.forget_key(key, &readers);
    }

    /// Handles that all keys of a database were removed: each tracking connection is sent the message that
    /// all keys may have changed, once for several databases.
    pub(super) fn clear(&mut self) {
        let is_told = self.told.last().is_some_and(|(_, told)| matches!(told, Told::All));
        if is_told && self.readers.is_empty() {
            return;
        }
        let Self { clients, hearing, told, .. } = self;
        let known = clients.iter().map(|(session, client)| (*session, client));
        told.extend(known.filter_map(|known| message(hearing, known, || Told::All)));
        self.readers.clear();
        self.bytes = 0;
    }

    /// Turns tracking off for a connection. Its reads stay in the table, and count again if tracking is
    /// turned on later.
    pub(super) fn end(&mut self, session: u64) {
        self.clients.remove(&session);
    }

    /// Removes a connection that has been closed, or has sent RESET.
    pub(super) fn forget(&mut self, session: u64) {
        self.end(session);
        self.hearing.remove(&session);
    }

    /// Drops all reads if no connection tracks keys any more.
    pub(super) fn tidy(&mut self) {
        if self.clients.is_empty() {
            (self.readers, self.bytes) = (BTreeMap::new(), 0);
        }
    }

    /// True if no connection tracks keys and no reads are recorded, so that changes need not be reported.
    pub(super) fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.readers.is_empty()
    }

    /// Sets the RESP version of a connection: only with RESP3 it can be sent invalidation messages.
    pub(super) fn set_protocol(&mut self, session: u64, protocol: Protocol) {
        if protocol == Protocol::Resp3 {
            self.hearing.insert(session);
        } else {
            self.hearing.remove(&session);
        }
    }

    /// True if a connection's messages are redirected to a connection that has been closed, or that cannot be
    /// sent any.
    fn is_broken(&self, client: &Client) -> bool {
        client.options.redirect.is_some_and(|target| !self.hearing.contains(&target))
    }

    /// Ends a request of a connection, after which an earlier `CLIENT CACHING` has no effect any more.
    pub(super) fn end_caching(&mut self, session: u64) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.is_exception = false;
        }
    }

    /// Returns the messages about changes since the last call, as deliveries, and removes them.
    pub(super) fn take_messages(&mut self) -> impl Iterator<Item = Delivery> + use<> {
        std::mem::take(&mut self.told).into_iter().map(|(session, told)| {
            let mut bytes = Vec::new();
            let is_broken = matches!(told, Told::Broken(_));
            encode::push(&mut bytes, Protocol::Resp3, 2);
            encode::bulk(&mut bytes, if is_broken { b"tracking-redir-broken" } else { b"invalidate" });
            match told {
                Told::Key(key) => {
                    encode::array(&mut bytes, 1);
                    encode::bulk(&mut bytes, &key);
                }
                Told::All => encode::null(&mut bytes, Protocol::Resp3),
                Told::Broken(target) => encode::integer(&mut bytes, target as i64),
            }
            Delivery { session, bytes: Bytes::from(bytes), ends_wait: false }
        })
    }
}

/// Returns the message for a connection that tracks keys, with the connection that it goes to; `None` if that
/// connection cannot be sent messages.
fn message(
    hearing: &BTreeSet<u64>,
    (session, client): (u64, &Client),
    told: impl FnOnce() -> Told,
) -> Option<(u64, Told)> {
    let target = client.options.redirect.unwrap_or(session);
    if hearing.contains(&target) {
        return Some((target, told()));
    }
    hearing.contains(&session).then_some((session, Told::Broken(target)))
}

impl Client {
    /// True if the keys that the connection's present request reads are tracked.
    fn tracks(&self) -> bool {
        let TrackingOptions { is_broadcast, opts_in, opts_out, .. } = self.options;
        let is_left_out = if self.is_exception { opts_out } else { opts_in };
        !is_broadcast && !is_left_out
    }

    /// True if the connection is sent a message at each change of the key, whether it has read the key or
    /// not.
    fn hears(&self, key: &[u8]) -> bool {
        let TrackingOptions { is_broadcast, prefixes, .. } = &self.options;
        *is_broadcast && prefixes.iter().any(|prefix| key.starts_with(prefix))
    }
}

/// Records the keys that a command has read, or would have read if they existed, if its connection tracks
/// keys.
pub(super) fn note_reads(call: &mut Call<'_>, effect: Effect) {
    if !call.session.tracks || effect != Effect::Read {
        return;
    }
    let Ok(known) = command::recognise(&call.arguments) else { return };
    if known.effect != command::Effect::Read {
        return;
    }
    let (tracking, session) = (&mut call.keyspace.interest.tracking, call.session.id);
    // A command whose keys cannot be found has read none.
    let _ = known.for_each_key(&call.arguments, &mut |index| {
        tracking.note_read(session, call.arguments.at(index));
    });
}

/// Carries out `CLIENT TRACKING`.
pub(super) fn client_tracking(call: &mut Call<'_>) -> Done {
    let session = call.session.id;
    if call.is(2, "off") {
        call.keyspace.interest.tracking.end(session);
        call.session.tracks = false;
        return call.ok();
    }
    if !call.is(2, "on") {
        return Err(Refusal::Syntax);
    }
    let mut options = TrackingOptions::parse(&call.arguments).map_err(|bad| match bad {
        BadTrackingOption::NoNumber => Refusal::Words("ERR value is not an integer or out of range"),
        BadTrackingOption::SecondRedirect => {
            Refusal::Words("ERR A client can only redirect to a single other client")
        }
        BadTrackingOption::Syntax => Refusal::Syntax,
    })?;
    let hears = |target| call.keyspace.interest.tracking.hearing.contains(&target);
    if options.redirect.is_some_and(|target| !hears(target)) {
        return Err(Refusal::Words(
            "ERR The client ID you want redirect to does not exist, or does not speak RESP3",
        ));
    }
    let clients = &mut call.keyspace.interest.tracking.clients;
    let known = clients.get(&session);
    check(&options, known.map(|known| &known.options))?;
    if let Some(known) = known {
        let before = known.options.prefixes.iter().filter(|prefix| !prefix.is_empty()).cloned();
        options.prefixes.splice(..0, before);
    }
    let prefix_bytes: usize = options.prefixes.iter().map(Vec::len).sum();
    if options.prefixes.len() > PREFIXES_MAX || prefix_bytes > PREFIXES_BYTES_MAX {
        return Err(Refusal::Words("ERR too many prefixes"));
    }
    if options.is_broadcast && options.prefixes.is_empty() {
        options.prefixes.push(Vec::new());
    }
    check_overlaps(&options.prefixes)?;
    let is_exception = known.is_some_and(|known| known.is_exception);
    clients.insert(session, Client { options, is_exception });
    call.session.tracks = true;
    call.ok()
}

/// Refuses options of `CLIENT TRACKING` that contradict each other or the options that are in force.
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

/// Refuses prefixes if one of them begins with another.
fn check_overlaps(prefixes: &[Vec<u8>]) -> Result<(), Refusal> {
    for (index, prefix) in prefixes.iter().enumerate() {
        let overlaps = |other: &&Vec<u8>| other.starts_with(prefix) || prefix.starts_with(other);
        if let Some(other) = prefixes[..index].iter().find(overlaps) {
            return Err(Refusal::Quoting(format!(
                "ERR Prefix '{}' overlaps with an existing prefix '{}'. Prefixes for a single client must not overlap.",
                quoted(prefix),
                quoted(other)
            )));
        }
    }
    Ok(())
}

/// Carries out `CLIENT CACHING`.
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

/// Carries out `CLIENT GETREDIR`.
pub(super) fn client_getredir(call: &mut Call<'_>) -> Done {
    let client = call.keyspace.interest.tracking.clients.get(&call.session.id);
    call.integer(redirect(client))
}

/// Returns the number of the connection that receives a connection's messages: 0 for itself, -1 if it tracks
/// no keys.
fn redirect(client: Option<&Client>) -> i64 {
    client.map_or(-1, |client| client.options.redirect.unwrap_or(0) as i64)
}

/// Carries out `CLIENT TRACKINGINFO`.
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
        assert_eq!(told(&mut bench), [changed("user:1"), changed("item:1")]);
        bench.talk(&[
            ("CLIENT TRACKINGINFO", "%3|$5|flags|~2|$2|on|$5|bcast|$8|redirect|:0|$8|prefixes|*2|$5|user:|$5|item:|"),
            ("CLIENT GETREDIR", ":0|"),
            ("CLIENT TRACKING ON BCAST PREFIX user:1", "-ERR Prefix 'user:1' overlaps with an existing prefix 'user:'. Prefixes for a single client must not overlap.|"),
            ("CLIENT TRACKING ON OPTIN", "-ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.|"),
            ("CLIENT TRACKING ON PREFIX a", "-ERR PREFIX option requires BCAST mode to be enabled|"),
            ("CLIENT TRACKING ON OPTIN OPTOUT", "-ERR You can't specify both OPTIN mode and OPTOUT mode|"),
            ("CLIENT TRACKING ON OPTIN BCAST", "-ERR OPTIN and OPTOUT are not compatible with BCAST|"),
            ("CLIENT TRACKING ON NOPE", "-ERR syntax error|"),
            ("CLIENT CACHING YES", "-ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.|"),
            ("CLIENT TRACKING OFF", "+OK|"),
            ("CLIENT GETREDIR", ":-1|"),
        ]);
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
