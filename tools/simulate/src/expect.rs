//! Checks whether a reply is one that its request may get.

use std::collections::BTreeSet;
use std::time::Duration;

use super::history::{Fate, History, Sent};
use super::pauses::KnownPause;
use super::request::DEADLINE;
use super::token::tokens;
use weir::protocol::Protocol;
use weir::protocol::reply;
use weir::routing::slot_of;
use weir::values::limits::SLOT_HELD_MAX;

/// The replies that a request may get.
#[derive(Debug)]
pub(super) enum Expected {
    /// The reply must be exactly these bytes: weir answers without a store, so the request cannot fail.
    Exactly(Vec<u8>),
    /// The reply must be exactly these bytes, from weir without a store; but weir charges the request to a
    /// quota, so it may be refused with -THROTTLED.
    Told(Vec<u8>),
    /// The reply must be an error worded by weir that begins with this text; or -THROTTLED, as weir charges the
    /// request.
    OwnError(&'static str),
    /// The reply to an `EXEC` without requests, or of a transaction with an error, must begin with this
    /// text. weir needs no store for it, but may refuse it while earlier requests of the connection may
    /// still be carried out.
    NoBlock(&'static str),
    /// The reply must be `OK`, which acknowledges these writes (by their numbers in the history).
    Ok(Vec<usize>),
    /// The reply must be `OK`, which acknowledges this write by a script (by its number in the history); or
    /// the words of a refusal that the script returns, though the write was carried out.
    Scripted(usize),
    /// The reply must be an integer, the length of the value after this append (`write` is its number in
    /// the history) of this many bytes.
    Appended { write: usize, bytes: usize },
    /// The reply must be 1 if these writes (numbers in the history) of these keys were made, 0 if they were not because
    /// a key existed. If `certain`, the client had just deleted the keys, which only it writes: then 0 is possible only
    /// if a write or delete of them has failed or may have been lost.
    IfNone { writes: Vec<usize>, keys: Vec<String>, certain: bool },
    /// The reply must be the number of keys that these deletes (by their numbers in the history) have
    /// removed.
    Deleted(Vec<usize>),
    /// The reply must be the value of this key, or null; the same request deletes the key, and `write` is the
    /// deletion's number in the history.
    Taken { key: String, write: usize },
    /// The reply must be the value of the counter with this name after this increase.
    Counted(String),
    /// The reply must be the value of the key with this name, or null if it has none.
    Value(String),
    /// The reply must be an array of the values of these keys.
    Values(Vec<String>),
    /// The reply must be all values that were appended to the key with this name.
    Log(String),
    /// The reply must be a value that was written to any key with this hash tag, or null.
    OneOf(String),
    /// The reply must be an integer from 0 to this number.
    Number(i64),
    /// The reply must be `OK`, or an error that says that the key does not exist.
    Renamed,
    /// The reply must be that to HELLO, which states the RESP version. Later replies are in that version,
    /// unless weir refuses HELLO because an earlier request of the connection may still be carried out in
    /// the old one.
    Hello,
    /// The reply must be that to RESET, which sets RESP2; weir may refuse RESET like HELLO.
    Reset,
    /// The reply must be a page of a SCAN: the next cursor and keys.
    Scanned,
    /// The reply must be an error of the store that begins with this text.
    StoreError(&'static str),
    /// The reply must be that to EXEC: an array with one reply for each of these requests of the
    /// transaction.
    Block(Vec<Asked>),
}

#[derive(Debug)]
pub(super) struct Asked {
    pub sent: Sent,
    /// The RESP version in which the reply must come.
    pub protocol: Protocol,
    pub expected: Expected,
    pub reach: Reach,
}

/// The number of keys that a request names, and their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// The hash slots of the request's keys, each once; empty for a request without a key.
    pub slots: Vec<u16>,
    pub keys: usize,
    pub is_script: bool,
}

impl Reach {
    /// Finds the keys among a request's words, and their slots: simulated clients' keys have prefixes that
    /// no other words have.
    pub fn of(words: &[&[u8]]) -> Self {
        let is_key = |word: &&&[u8]| {
            [&b"key:"[..], b"own:", b"log:", b"n:", b"{tag"].iter().any(|start| word.starts_with(start))
        };
        let mut slots: Vec<u16> = words.iter().filter(is_key).map(|key| slot_of(key)).collect();
        let keys = slots.len();
        slots.sort_unstable();
        slots.dedup();
        Self { slots, keys, is_script: words.first() == Some(&&b"EVAL"[..]) }
    }

    /// Returns the number of keys of several requests, and their slots, each once.
    pub fn of_all<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for each in all {
            sum.keys += each.keys;
            sum.slots.extend(each.slots.iter().filter(|slot| !sum.slots.contains(slot)).collect::<Vec<_>>());
        }
        sum
    }

    /// True if both requests (this and `other`) have a key in the same slot.
    pub fn meets(&self, other: &Self) -> bool {
        self.slots.iter().any(|slot| other.slots.contains(slot))
    }
}

/// The failures that weir may report for a request in this world without breaking a promise, such as refusals
/// while a node is away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    pub refusals: bool,
    /// True if stores are nodes of a cluster, which may redirect a request too many times, or a slot of
    /// which may have no owner.
    pub redirections: bool,
    /// True if nodes may redirect the request to each other until weir gives up.
    pub going_around: bool,
    /// True if nodes may reply that the cluster is down (`-CLUSTERDOWN`).
    pub down: bool,
    /// True if a later request of the same connection for the same slot may have been carried out before this
    /// one.
    pub overtaken: bool,
    /// True if weir may reply `-DEADLINE` to a request although its store was not late: because cores did
    /// not run for a while, or because weir held the request back for long.
    pub lateness: bool,
    pub throttling: bool,
    pub oversized: bool,
    /// True if primaries go away, so that a request of which nothing is wrong may be refused while an earlier
    /// one of its connection, on a slot of such a primary, may still be carried out.
    pub stalled: bool,
    /// True if `-DEADLINE` may come long before 5 seconds: because requests have shorter deadlines, or stores may
    /// be slow for so long that weir expects their next replies too late.
    pub early_deadlines: bool,
    /// True if a core of weir may have lent all its connections for blocking commands and WATCH.
    pub few_links: bool,
    /// The pause of clients (`CLIENT PAUSE`) that the core of the request's client knows of; `None` if there is
    /// none.
    pub pause: Option<KnownPause>,
    /// The longest time from a store's sending of a reply until a core of weir handles it.
    pub under_way: Duration,
}

impl Allowed {
    pub const NOTHING: Self = Self {
        refusals: false,
        redirections: false,
        going_around: false,
        down: false,
        overtaken: false,
        lateness: false,
        throttling: false,
        oversized: false,
        stalled: false,
        early_deadlines: false,
        few_links: false,
        pause: None,
        under_way: Duration::ZERO,
    };

    /// Returns these allowed failures and those that are allowed because of events (such as a node's
    /// failure) since the request was sent.
    fn widened(self, asked: &Asked, history: &History) -> Self {
        if !self.redirections {
            return self;
        }
        let Reach { slots, keys, is_script } = &asked.reach;
        let trouble = history.was_in_trouble(slots, asked.sent);
        // After a request of several keys, or a script, a slot may be held for the whole time that a request
        // has.
        let was_held = history.age(asked.sent) >= HELD_FOR_MOST;
        Self {
            refusals: self.refusals || trouble,
            going_around: self.going_around || trouble || was_held || *keys != 1 || *is_script,
            down: self.may_be_told_down(asked, history),
            lateness: self.lateness || history.age(asked.sent) >= LATE_AFTER,
            ..self
        }
    }

    /// True if the reply to this request may say that the cluster is down. A node must have said so. weir
    /// retries for about a second before it passes that on, so the request must be that old, unless it is a
    /// script, or a later request may have been carried out before it, or it is a read that may share the
    /// fetch of another read: that fetch may have been held for long by then.
    fn may_be_told_down(self, asked: &Asked, history: &History) -> bool {
        let is_fetched = asked.may_be_fetched();
        let since = if is_fetched { self.under_way + SLOT_HELD_MAX } else { Duration::ZERO };
        let has_waited = history.age(asked.sent) >= HELD_FOR_MOST;
        let may_be_at_once = is_fetched || asked.reach.is_script || self.overtaken;
        history.was_down(asked.sent, since) && (has_waited || may_be_at_once)
    }
}

/// The kind of reply that was found to be possible for its request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judged {
    Answer,
    Refusal,
    /// The reply is a page of a SCAN: the next cursor, and the keys on this page.
    Page(u64, BTreeSet<String>),
}

impl Asked {
    pub fn judge(
        &self,
        reply: &[u8],
        step: u64,
        history: &mut History,
        allowed: Allowed,
    ) -> Result<Judged, String> {
        let judged = self.judged(reply, step, history, allowed);
        judged.map_err(|what| {
            let shown = String::from_utf8_lossy(&reply[..reply.len().min(200)]).escape_debug().to_string();
            format!(
                "client {} request {} {:?} was answered {shown}: {what}",
                self.sent.client, self.sent.sequence, self.expected
            )
        })
    }

    fn judged(
        &self,
        reply: &[u8],
        step: u64,
        history: &mut History,
        allowed: Allowed,
    ) -> Result<Judged, String> {
        let allowed = allowed.widened(self, history);
        if let Some(fate) = self.refusal(reply, history, allowed)? {
            use Expected::{
                Block, Exactly, Log, OneOf, OwnError, Scanned, Scripted, Taken, Told, Value, Values,
            };
            if matches!(self.expected, Exactly(_))
                || (self.chooses_dialect() && !reply.starts_with(STALLED))
                || (matches!(self.expected, OwnError(_) | Told(_)) && !reply.starts_with(THROTTLED))
            {
                return Err("weir answers this by itself".into());
            }
            let may_be_large = matches!(
                self.expected,
                Value(_) | Values(_) | Log(_) | OneOf(_) | Scanned | Block(_) | Taken { .. }
            );
            if reply.starts_with(OVERSIZED) && !may_be_large {
                return Err("its reply is never large".into());
            }
            let is_sent_around = reply.windows(REDIRECTS.len()).any(|window| window == REDIRECTS.as_bytes());
            let is_uncertain = is_sent_around && matches!(self.expected, Scripted(_));
            self.refused(if is_uncertain { Fate::Unknown } else { fate }, history)?;
            return Ok(Judged::Refusal);
        }
        match &self.expected {
            Expected::Exactly(bytes) | Expected::Told(bytes) => same(reply, bytes)?,
            Expected::OwnError(prefix) | Expected::NoBlock(prefix) | Expected::StoreError(prefix) => {
                if !reply.starts_with(prefix.as_bytes()) {
                    return Err(format!("expected {prefix}"));
                }
            }
            Expected::Ok(writes) => {
                same(reply, b"+OK\r\n")?;
                all(writes, Fate::Done(step), history)?;
            }
            Expected::Scripted(write) => {
                same(reply, b"+OK\r\n")?;
                history.settle(*write, Fate::Done(step))?;
            }
            Expected::Appended { write, bytes } => {
                if number(reply)? < *bytes as i64 {
                    return Err(format!("less than the {bytes} bytes of the append"));
                }
                history.settle(*write, Fate::Done(step))?;
            }
            Expected::IfNone { writes, keys, certain } => match number(reply)? {
                1 => all(writes, Fate::Done(step), history)?,
                0 if *certain && keys.iter().all(|key| history.is_certain(key, self.sent.client)) => {
                    return Err("the keys had just been deleted".into());
                }
                // The request was carried out, though it wrote nothing.
                0 => {}
                _ => return Err("neither 0 nor 1".into()),
            },
            Expected::Deleted(writes) => {
                if !(0..=writes.len() as i64).contains(&number(reply)?) {
                    return Err("more than were named".into());
                }
                all(writes, Fate::Done(step), history)?;
            }
            Expected::Taken { key, write } => {
                self.check_value(key, reply, history)?;
                history.settle(*write, Fate::Done(step))?;
            }
            Expected::Counted(key) => history.check_count(self.sent, step, key, number(reply)?)?,
            Expected::Value(key) => self.check_value(key, reply, history)?,
            Expected::Values(keys) => self.check_values(keys, reply, history, allowed)?,
            Expected::Log(key) => {
                let value = self.text(reply)?.unwrap_or_default();
                history.check_log(self.sent, key, &tokens(value).ok_or("not a list of writes")?)?;
            }
            Expected::OneOf(group) => {
                if let Some(value) = self.text(reply)? {
                    let found = tokens(value).ok_or("not a written value")?;
                    if found.len() != 1 || !found[0].key.starts_with(group.as_str()) {
                        return Err("a value of other keys".into());
                    }
                }
            }
            Expected::Number(most) => {
                if !(0..=*most).contains(&number(reply)?) {
                    return Err("too many".into());
                }
            }
            Expected::Renamed => {
                if reply != b"+OK\r\n" && reply != b"-ERR no such key\r\n" {
                    return Err("neither renamed nor absent".into());
                }
            }
            Expected::Hello => self.check_hello(reply)?,
            Expected::Reset => same(reply, b"+RESET\r\n")?,
            Expected::Scanned => return page(reply),
            Expected::Block(inner) => return self.judge_block(inner, reply, step, history, allowed),
        }
        Ok(Judged::Answer)
    }

    /// Returns whether the request's writes may have taken effect, if the reply is a refusal; `None` if it is
    /// none. An error if such a refusal is not allowed, or not yet.
    fn refusal(&self, reply: &[u8], history: &History, allowed: Allowed) -> Result<Option<Fate>, String> {
        if reply.starts_with(LATE) && !allowed.early_deadlines && history.age(self.sent) < LATE_AFTER {
            return Err("it is too young for that".into());
        }
        refusal(reply, allowed)
    }

    /// True for a read that may get the reply to an equal read that weir sent to the store for another
    /// client (a fetch).
    fn may_be_fetched(&self) -> bool {
        matches!(
            self.expected,
            Expected::Value(_) | Expected::Values(_) | Expected::Log(_) | Expected::OneOf(_)
        )
    }

    /// True for a request (HELLO, RESET) that changes the RESP version of later replies.
    pub fn chooses_dialect(&self) -> bool {
        matches!(self.expected, Expected::Hello | Expected::Reset)
    }

    /// True for a request that a `CLIENT PAUSE` of writes holds back: one that writes, or a transaction with
    /// such a request.
    pub fn writes(&self) -> bool {
        use Expected::{Appended, Block, Counted, Deleted, IfNone, Ok, Renamed, Scripted, Taken};
        match &self.expected {
            Block(inner) => inner.iter().any(Self::writes),
            Ok(_) | Scripted(_) | Appended { .. } | IfNone { .. } | Deleted(_) => true,
            other => matches!(other, Taken { .. } | Counted(_) | Renamed),
        }
    }

    /// Sets the RESP version that the reply to this request must have, because the request that should have
    /// changed it was refused.
    pub fn keep_dialect(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        if let Expected::Block(inner) = &mut self.expected {
            inner.iter_mut().for_each(|asked| asked.keep_dialect(protocol));
        }
    }

    /// Records that a request was refused, or that its client disconnected before its reply: the request's
    /// writes get this fate (never carried out, or unknown). An error if that contradicts the history.
    pub fn refused(&self, fate: Fate, history: &mut History) -> Result<(), String> {
        match &self.expected {
            Expected::Ok(writes) | Expected::Deleted(writes) | Expected::IfNone { writes, .. } => {
                all(writes, fate, history)
            }
            Expected::Scripted(write) | Expected::Appended { write, .. } | Expected::Taken { write, .. } => {
                history.settle(*write, fate)
            }
            Expected::Counted(key) => {
                if fate == Fate::Never {
                    history.never_counted(key);
                }
                Ok(())
            }
            Expected::Block(inner) => inner.iter().try_for_each(|asked| {
                // A block is sent to one store as a whole, so its writes share its fate.
                match &asked.expected {
                    Expected::Ok(writes) | Expected::Deleted(writes) => all(writes, fate, history),
                    _ => asked.refused(fate, history),
                }
            }),
            _ => Ok(()),
        }
    }

    fn judge_block(
        &self,
        inner: &[Self],
        reply: &[u8],
        step: u64,
        history: &mut History,
        allowed: Allowed,
    ) -> Result<Judged, String> {
        if reply.starts_with(b"-EXECABORT") {
            if !allowed.refusals && !allowed.throttling && !allowed.down {
                return Err("nothing was wrong with it".into());
            }
            self.refused(Fate::Never, history)?;
            return Ok(Judged::Refusal);
        }
        let elements: Vec<&[u8]> = reply::elements(reply).ok_or("not an array")?.collect();
        if elements.len() != inner.len() {
            return Err(format!("{} replies to {} requests", elements.len(), inner.len()));
        }
        for (asked, element) in inner.iter().zip(elements) {
            asked.judge(element, step, history, Allowed::NOTHING)?;
        }
        Ok(Judged::Answer)
    }

    fn check_value(&self, key: &str, reply: &[u8], history: &mut History) -> Result<(), String> {
        history.check_value(self.sent, key, self.found(reply)?)
    }

    /// Returns the number (in the history) of the write whose value is in the reply; `None` if the reply is
    /// null. An error if it is neither.
    fn found(&self, reply: &[u8]) -> Result<Option<usize>, String> {
        let Some(value) = self.text(reply)? else { return Ok(None) };
        match tokens(value).as_deref() {
            Some([token]) => Ok(Some(token.write)),
            _ => Err("not a written value".into()),
        }
    }

    fn check_values(
        &self,
        keys: &[String],
        reply: &[u8],
        history: &mut History,
        allowed: Allowed,
    ) -> Result<(), String> {
        let elements: Vec<&[u8]> = reply::elements(reply).ok_or("not an array")?.collect();
        if elements.len() != keys.len() {
            return Err(format!("{} values for {} keys", elements.len(), keys.len()));
        }
        let mut values = Vec::new();
        for (key, element) in keys.iter().zip(elements) {
            if self.refusal(element, history, allowed)?.is_none() {
                values.push((key, self.found(element)?));
            }
        }
        // A request that names a key twice may be split: the first value may be lost with a node, and read
        // again later.
        values.sort_by_key(|(_, found)| found.and_then(|found| history.executed(found)));
        values.into_iter().try_for_each(|(key, found)| history.check_value(self.sent, key, found))
    }

    fn check_hello(&self, reply: &[u8]) -> Result<(), String> {
        let (head, dialect): (&[u8], &[u8]) = match self.protocol {
            Protocol::Resp2 => (b"*14\r\n", b"$5\r\nproto\r\n:2\r\n"),
            Protocol::Resp3 => (b"%7\r\n", b"$5\r\nproto\r\n:3\r\n"),
        };
        let told = reply.starts_with(head) && reply.windows(dialect.len()).any(|window| window == dialect);
        if told { Ok(()) } else { Err("not the dialect that was asked for".into()) }
    }

    /// Returns the text of a bulk string reply; `None` for the null of the client's RESP version. An error
    /// for any other reply.
    fn text<'a>(&self, reply: &'a [u8]) -> Result<Option<&'a [u8]>, String> {
        let null: &[u8] = match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        };
        if reply == null {
            return Ok(None);
        }
        let text = reply.starts_with(b"$").then(|| reply::text(reply)).flatten();
        text.map(Some).ok_or_else(|| format!("no bulk string of {:?}", self.protocol))
    }
}

/// The end of weir's error text for a write that was sent to a store and not answered, so that it may have
/// taken effect.
const MAY_HAVE_HAPPENED: &str = " (it may have happened)";
/// The end of weir's error text for a write to several stores of which one part failed, while others may
/// have been carried out.
const REST_MAY_HAVE_HAPPENED: &str = " (the rest may have happened)";
/// The beginning of weir's refusal of a request whose store has stalled, or of one that comes while an earlier one of
/// its client may still be carried out.
pub(super) const STALLED: &[u8] = b"-OVERLOADED reason=stalled ";
/// The beginning of weir's refusal of a request whose deadline is too near or over.
pub(super) const LATE: &[u8] = b"-DEADLINE ";
const THROTTLED: &[u8] = b"-THROTTLED scope=";
const OVERSIZED: &[u8] = b"-ERR the reply is larger";

/// The least age of a request at which weir may refuse it as late. Requests have a deadline of 5 seconds, and
/// weir gives up sending one less than 500 ms before its deadline.
pub(super) const LATE_AFTER: Duration = DEADLINE.saturating_sub(Duration::from_millis(500));
/// A time slightly below the longest (1 second) for which weir holds back requests on a slot that is being
/// moved between nodes.
const HELD_FOR_MOST: Duration = Duration::from_millis(900);
const REDIRECTS: &str = "reason=redirects ";
/// Reasons in the text of weir's refusals on account of a cluster. Such a request was not carried out.
const OF_CLUSTERS: [&str; 4] = [REDIRECTS, "reason=no-owner ", "reason=not-primary ", "reason=topology "];

fn contains(reply: &[u8], text: &str) -> bool {
    reply.windows(text.len()).any(|window| window == text.as_bytes())
}

/// True for a refusal by weir (`reply`) on account of the cluster: no known node owns the slot, or nodes
/// redirected the request too often.
pub(super) fn is_of_cluster(reply: &[u8]) -> bool {
    reply.starts_with(b"-UNAVAILABLE ") && OF_CLUSTERS.iter().any(|text| contains(reply, text))
}

/// Returns whether a request's writes may have taken effect, from the text of an error by weir (`reply`);
/// `None` for other replies.
pub(super) fn fate_of(reply: &[u8]) -> Option<Fate> {
    if contains(reply, MAY_HAVE_HAPPENED) || contains(reply, REST_MAY_HAVE_HAPPENED) {
        return Some(Fate::Unknown);
    }
    if [&b"-LOADING "[..], b"-READONLY ", b"-OVERLOADED ", b"-DEADLINE "]
        .iter()
        .any(|word| reply.starts_with(word))
    {
        return Some(Fate::Never);
    }
    let never_sent =
        ["reason=connect-failed", "reason=connect-timeout"].iter().any(|text| contains(reply, text))
            || is_of_cluster(reply);
    let fate = if never_sent { Fate::Never } else { Fate::Unknown };
    reply.starts_with(b"-UNAVAILABLE ").then_some(fate)
}

/// Returns whether a request's writes may have taken effect, if the reply is a refusal; `None` if it is
/// none. An error if such a refusal is not allowed.
fn refusal(reply: &[u8], allowed: Allowed) -> Result<Option<Fate>, String> {
    if reply.starts_with(OVERSIZED) && allowed.oversized {
        return Ok(Some(Fate::Unknown));
    }
    if reply.starts_with(THROTTLED) {
        return if allowed.throttling { Ok(Some(Fate::Never)) } else { Err("there is no quota".into()) };
    }
    let may_go_on = contains(reply, REST_MAY_HAVE_HAPPENED);
    if reply.starts_with(b"-CLUSTERDOWN ") {
        let fate = if may_go_on { Fate::Unknown } else { Fate::Never };
        return if allowed.down { Ok(Some(fate)) } else { Err("no node has said so".into()) };
    }
    if contains(reply, REDIRECTS) && !allowed.going_around {
        return Err("nobody sent it around".into());
    }
    let is_of_cluster = is_of_cluster(reply);
    let Some(fate) = fate_of(reply) else { return Ok(None) };
    let is_late = allowed.lateness && reply.starts_with(LATE);
    let is_lost = allowed.redirections && is_of_cluster;
    let is_behind = allowed.stalled && reply.starts_with(STALLED);
    if (allowed.refusals && !is_of_cluster) || is_late || is_lost || is_behind {
        Ok(Some(fate))
    } else {
        Err("nothing was wrong that could be a reason".into())
    }
}

fn page(reply: &[u8]) -> Result<Judged, String> {
    let mut parts = reply::elements(reply).ok_or("not an array")?;
    let cursor =
        parts.next().and_then(reply::text).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let keys = parts.next().and_then(reply::elements).ok_or("no array of keys")?;
    let keys = keys.filter_map(reply::text).map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    Ok(Judged::Page(cursor.ok_or("no cursor")?, keys))
}

fn all(writes: &[usize], fate: Fate, history: &mut History) -> Result<(), String> {
    writes.iter().try_for_each(|write| history.settle(*write, fate))
}

/// Checks that a reply has exactly the expected bytes; the error says which were expected.
pub(super) fn same(reply: &[u8], expected: &[u8]) -> Result<(), String> {
    if reply == expected { Ok(()) } else { Err(format!("expected {}", expected.escape_ascii())) }
}

fn number(reply: &[u8]) -> Result<i64, String> {
    reply::integer(reply).ok_or_else(|| "not a number".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;
    use weir::values::Timestamp;

    fn asked(expected: Expected) -> Asked {
        let sent = Sent { client: 1, sequence: 1, step: 1 };
        Asked { sent, protocol: Protocol::Resp2, expected, reach: Reach::default() }
    }

    #[test]
    fn a_refusal_in_a_calm_world_whose_primaries_go_away_is_noticed() {
        let judged = |reply: &[u8]| {
            let allowed = Allowed { stalled: true, ..Allowed::NOTHING };
            asked(Expected::Value("key:1".into())).judge(reply, 5, &mut History::default(), allowed)
        };
        assert_eq!(judged(b"-OVERLOADED reason=stalled backend=a retry_after_ms=5\r\n"), Ok(Judged::Refusal));
        assert!(judged(b"-UNAVAILABLE backend=a reason=reply-timeout retry_after_ms=1\r\n").is_err());
    }

    #[test]
    fn a_deadline_that_passes_too_early_is_noticed() {
        let judged = |millis| {
            let mut history = History::default();
            history.handle_time(Timestamp::from_millis(1_000), 1);
            history.handle_time(Timestamp::from_millis(millis), 2);
            let allowed = Allowed { refusals: true, ..Allowed::NOTHING };
            asked(Expected::Value("key:1".into())).judge(
                b"-DEADLINE stage=queue\r\n",
                2,
                &mut history,
                allowed,
            )
        };
        assert_eq!(judged(5_500), Ok(Judged::Refusal));
        assert!(judged(5_499).is_err());
    }

    #[test]
    fn the_length_after_an_append_is_at_least_what_was_appended() {
        let judged = |reply: &[u8]| {
            let mut history = History::default();
            let sent = Sent { client: 1, sequence: 1, step: 1 };
            let write = history.write(sent, "log:1");
            history.carried_out(Token { write, client: 1, key: "log:1" }).expect("first time");
            let expected = Expected::Appended { write, bytes: 12 };
            asked(expected).judge(reply, 5, &mut history, Allowed::NOTHING)
        };
        assert_eq!(judged(b":12\r\n"), Ok(Judged::Answer));
        assert!(judged(b":11\r\n").is_err() && judged(b":0\r\n").is_err());
    }
}
