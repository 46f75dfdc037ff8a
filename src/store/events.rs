//! Events of keys, which CONFIG SET notify-keyspace-events switches on: messages that say which command changed
//! which key.
//!
//! ```text
//!     command ── Keyspace::announce ─> Events: queue ── end of the command ─> publish ─> subscribers
//!     change that empties a value ───> emptied ── behind the event of the command ─> del
//! ```
//!
//! Nothing is queued unless events are wanted and anybody is subscribed to anything. Bytes and effort are bounded
//! for each request; events beyond are dropped and counted.

use super::call::Call;
use super::effort::Effort;
use super::post::Post;
use super::pubsub;
use super::refusal::Refusal;
use crate::values::limits::ENGINE_EVENTS_BYTES_MAX;

/// The approximate bytes that a queued keyspace event takes besides its key.
const EVENT_BYTES: usize = 64;

/// The class (group) of a keyspace event. CONFIG SET notify-keyspace-events switches events on by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Generic,
    String,
    List,
    Set,
    Hash,
    SortedSet,
    Expired,
    /// Events of keys that are evicted for want of memory, which the engine never does.
    #[expect(dead_code, reason = "the class has a letter")]
    Evicted,
    Stream,
    /// Events of modules, which the engine does not have.
    #[expect(dead_code, reason = "the class has a letter")]
    Module,
    /// Events of keys that are created (`new`).
    New,
    /// Events of reads that find no key (`keymiss`).
    Missed,
}

/// The letters by which the setting `notify-keyspace-events` names the classes of events, in the order of
/// [`Class`].
const LETTERS: &[u8; 12] = b"g$lshzxetdnm";
/// The number of classes of events that the letter A of `notify-keyspace-events` stands for: the first ten.
const ALL_CLASSES: u32 = 10;
/// The flag K of `notify-keyspace-events`: events are published on the channel of their key,
/// `__keyspace@<database>__:<key>`.
const BY_KEY: u16 = 1 << 14;
/// The flag E of `notify-keyspace-events`: events are published on the channel of their name,
/// `__keyevent@<database>__:<event>`.
const BY_EVENT: u16 = 1 << 15;

/// The value of `notify-keyspace-events`: the classes of events that are switched on, and whether events are
/// published on the channel of their key (K), of their name (E), or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u16);

impl Flags {
    const ALL: u16 = (1 << ALL_CLASSES) - 1;

    /// Returns the flags that the text of `notify-keyspace-events` means; `None` if one of its letters is
    /// unknown.
    pub(super) fn parse(setting: &[u8]) -> Option<Self> {
        setting.iter().try_fold(Self::default(), |Self(flags), letter| {
            let flag = match letter {
                b'A' => Self::ALL,
                b'K' => BY_KEY,
                b'E' => BY_EVENT,
                letter => 1 << LETTERS.iter().position(|known| known == letter)?,
            };
            Some(Self(flags | flag))
        })
    }

    /// Returns the flags as the text of `notify-keyspace-events`, with the letters in Redis's order.
    pub(super) fn text(self) -> String {
        let has = |letter: u8| {
            let position = LETTERS.iter().position(|known| *known == letter);
            position.is_some_and(|position| self.0 & 1 << position != 0)
        };
        let mut text = String::new();
        if self.0 & Self::ALL == Self::ALL {
            text.push('A');
        } else {
            text.extend(
                LETTERS
                    .iter()
                    .filter(|letter| **letter != b'm' && has(**letter))
                    .map(|letter| *letter as char),
            );
        }
        text.extend(
            [(BY_KEY, 'K'), (BY_EVENT, 'E')]
                .iter()
                .filter(|(flag, _)| self.0 & flag != 0)
                .map(|(_, letter)| letter),
        );
        if has(b'm') {
            text.push('m');
        }
        text
    }

    fn wants(self, class: Class) -> bool {
        self.0 & 1 << class as u16 != 0
    }
}

/// A keyspace event that is to be published: the event's name, the number of the database, and the key.
#[derive(Debug)]
struct Event {
    name: &'static str,
    database: u8,
    key: Box<[u8]>,
}

/// Events of keys that are still to be published, and the flags that say which events are switched on.
#[derive(Debug, Default)]
pub(super) struct Events {
    flags: Flags,
    /// True if the setting names a kind of channel to publish events on (K or E), and any connection is
    /// subscribed to a channel or pattern. Events are queued only then.
    is_on: bool,
    queue: Vec<Event>,
    /// The approximate bytes of the events that the present request has queued, keys included, to bound them.
    bytes: usize,
    /// The units of effort (steps of work) that publishing events of the present request has taken, to bound them.
    spent: u64,
    /// The database and name of a key that a command has removed by taking its last element. The event `del`
    /// of the key is added after the command's own event.
    emptied: Option<(u8, Box<[u8]>)>,
    dropped: u64,
}

impl Events {
    pub(super) fn flags(&self) -> Flags {
        self.flags
    }

    pub(super) fn set_flags(&mut self, flags: Flags) {
        (self.flags, self.is_on) = (flags, false);
    }

    /// True if the setting `notify-keyspace-events` is not empty.
    pub(super) fn is_used(&self) -> bool {
        self.flags != Flags::default()
    }

    /// Returns the number of keyspace events that were dropped because a request caused too many bytes of
    /// them or of their messages, or because publishing them would have taken too much effort.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Begins a request or a sweep of expired keys, whose events are bounded together. `subscribers` is the
    /// number of connections with subscriptions.
    pub(super) fn begin(&mut self, subscribers: usize) {
        (self.bytes, self.spent) = (0, 0);
        if self.is_used() {
            self.listen(subscribers);
        }
    }

    /// Records how many connections have subscriptions: if none has, or events are switched off, no events
    /// are queued.
    fn listen(&mut self, subscribers: usize) {
        self.is_on = subscribers > 0 && self.flags.0 & (BY_KEY | BY_EVENT) != 0;
    }

    /// Queues the event `name` of a key of a database, if events of its class are switched on and any
    /// connection is subscribed. Beyond a request's limit on bytes of events, it is dropped and counted. If
    /// the same command has emptied the key, the key's event `del` follows.
    pub(super) fn add(&mut self, class: Class, name: &'static str, database: u8, key: &[u8]) {
        if !self.is_on {
            return;
        }
        if self.flags.wants(class) {
            self.queue(name, database, key);
        }
        if self.emptied.as_ref().is_some_and(|(other, emptied)| *other == database && **emptied == *key) {
            self.settle();
        }
    }

    fn queue(&mut self, name: &'static str, database: u8, key: &[u8]) {
        self.bytes += EVENT_BYTES + key.len();
        if self.bytes > ENGINE_EVENTS_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.queue.push(Event { name, database, key: key.into() });
    }

    /// Records that a key was removed because its value has no element left. If the value had none before the
    /// command either (`was_empty`), the key had only been created to be filled: its event `new` is taken
    /// back then, and no `del` follows.
    pub(super) fn note_emptied(&mut self, database: u8, key: &[u8], was_empty: bool) {
        if self.is_on && was_empty {
            self.queue.pop_if(|event| event.name == "new" && *event.key == *key);
        } else if self.is_on {
            self.settle();
            self.emptied = Some((database, key.into()));
        }
    }

    /// Records that a key was added again. If the same command had emptied it before, no event `del` follows.
    /// `database` is that of the key.
    pub(super) fn note_added(&mut self, database: u8, key: &[u8]) {
        if self.emptied.as_ref().is_some_and(|(other, emptied)| *other == database && **emptied == *key) {
            self.emptied = None;
        }
    }

    /// Queues the event `del` of the key that the present command has emptied, if there is such a key.
    fn settle(&mut self) {
        if let Some((database, key)) = self.emptied.take()
            && self.flags.wants(Class::Generic)
        {
            self.queue("del", database, &key);
        }
    }

    /// True if keyspace events are queued, because the setting names a kind of channel for them and
    /// connections are subscribed.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// True if any keyspace event is waiting to be published.
    pub(super) fn is_pending(&self) -> bool {
        !self.queue.is_empty() || self.emptied.is_some()
    }

    /// Publishes the queued events to the connections that are subscribed to their channels, and returns the units
    /// of effort (steps of work) that this took. `actor` is the connection whose request is being carried out, if
    /// any. Events are dropped and counted if with them all events of the present request would take more than
    /// `effort_max` units, or more bytes than a request may cause.
    pub(super) fn publish(&mut self, post: &mut Post, actor: Option<u64>, effort_max: u64) -> u64 {
        let effort = &Effort::new(effort_max.saturating_sub(self.spent));
        self.settle();
        for Event { name, database, key } in std::mem::take(&mut self.queue) {
            let (database, name) = (database.to_string(), name.as_bytes());
            let mut published = Ok(());
            if self.flags.0 & BY_KEY != 0 {
                let channel = [b"__keyspace@", database.as_bytes(), b"__:", &key].concat();
                published = pubsub::publish_event(post, actor, effort, &channel, name);
            }
            if published.is_ok() && self.flags.0 & BY_EVENT != 0 {
                let channel = [b"__keyevent@", database.as_bytes(), b"__:", name].concat();
                published = pubsub::publish_event(post, actor, effort, &channel, &key);
            }
            if published.is_err() {
                self.dropped += 1;
            }
        }
        self.spent = self.spent.saturating_add(effort.spent());
        effort.spent()
    }
}

/// Publishes the keyspace events that a command has caused, charges its request for the effort, which does not
/// count towards the limit of the request's own, and updates the number of connections with subscriptions, without
/// which no events are queued.
pub(super) fn publish(call: &mut Call<'_>) {
    let events = &mut call.keyspace.events;
    if events.is_pending() {
        let spent = events.publish(call.post, Some(call.session.id), call.limits.effort_max);
        call.effort.charge_aside(spent);
    }
    events.listen(call.post.channels.clients());
}

/// Parses the value that CONFIG SET gives for `notify-keyspace-events`; an error for an unknown letter.
pub(super) fn parse_setting(setting: &[u8]) -> Result<Flags, Refusal> {
    Flags::parse(setting).ok_or(Refusal::Words(
        "ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event class \
         character. Use 'Ag$lshzxeKEtmdn'.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bench::Bench;
    use crate::store::limits::EngineLimits;

    /// Many patterns make every event dear. All events of a request share one limit, and leave its commands theirs.
    #[test]
    fn events_beyond_the_steps_of_a_request_are_dropped_and_refuse_nothing() {
        const EFFORT_MAX: u64 = 100_000;
        let usual = EngineLimits::with_memory(u64::MAX);
        let mut bench = Bench::with(EngineLimits { effort_max: EFFORT_MAX, ..usual });
        let patterns = (0..1_000).fold(String::new(), |line, number| format!("{line} {number}"));
        bench.send("HELLO 3");
        bench.send("CONFIG SET notify-keyspace-events KEA");
        bench.send(&format!("PSUBSCRIBE{patterns}"));
        bench.send("MULTI");
        for _ in 0..100 {
            bench.send("SET k v");
        }
        bench.send("HTTL h FIELDS 1 f");
        let reply = bench.send("EXEC");
        assert_eq!(reply, format!("*101|{}*1|:-2|", "+OK|".repeat(100)));
        // An event has two channels, and each of them is compared with all patterns at four steps each.
        let dropped = bench.engine.keyspace.events.dropped();
        assert!((85..=90).contains(&dropped), "{dropped} were dropped");
        let effort = bench.engine.effort();
        assert!((EFFORT_MAX / 2..EFFORT_MAX + 10_000).contains(&effort), "{effort}");
        #[cfg(feature = "scripts")]
        {
            let script = &b"for _ = 1, 100 do redis.call('set', 'k', 'v') end return 'done'"[..];
            let reply = bench.send_bytes(&[b"EVAL", script, b"0"]);
            assert_eq!(String::from_utf8_lossy(&reply), "$4\r\ndone\r\n");
        }
        // The next request has its own limit.
        let dropped = bench.engine.keyspace.events.dropped();
        bench.talk(&[("SET k v", "+OK|")]);
        assert_eq!(bench.engine.keyspace.events.dropped(), dropped);
    }

    #[test]
    fn settings_are_spelled_as_by_redis() {
        for (setting, spelled) in [
            ("KEA", "AKE"),
            ("gxKEnm", "gxnKEm"),
            ("AnmKE", "AKEm"),
            ("g$lshzxetd", "A"),
            ("KEx$", "$xKE"),
            ("", ""),
        ] {
            assert_eq!(Flags::parse(setting.as_bytes()).map(Flags::text).as_deref(), Some(spelled));
        }
        assert_eq!(Flags::parse(b"kea"), None);
    }
}
