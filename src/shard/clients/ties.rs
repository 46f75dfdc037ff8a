//! Ties of a client to stores: the private links that it has, and what it keeps on them: keys that it
//! watches, and channels that it is subscribed to.

use std::collections::HashSet;

use super::ClientStage;
use crate::protocol::command::Subscription;
use crate::protocol::encode;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::values::{Action, BackendId, ClientId, Owner, Timestamp};

/// The ties of one client. A client has at most one link for requests and one for subscriptions.
#[derive(Debug, Default)]
pub struct Ties {
    /// The link for the client's blocking command, or for all requests while it watches keys.
    pub link: Option<PrivateId>,
    /// The keys that the client watches.
    pub watch: Option<Watch>,
    /// The channels that the client is subscribed to.
    pub subscriptions: Option<Box<Subscriptions>>,
}

/// Keys that a client watches until its next `EXEC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The store that has the keys.
    pub backend: BackendId,
    /// The hash slot of the first key.
    pub slot: u16,
    /// The time since which keys are watched.
    pub since: Timestamp,
    /// True once the link was lost, or the watch was held for too long: the next `EXEC` fails as if a key had
    /// changed.
    pub is_broken: bool,
}

impl Watch {
    /// True if keys in a slot of a backend can be used together with those that are watched: they share a store and,
    /// in a cluster, the slot.
    pub fn covers(&self, (slot, backend): (u16, BackendId), is_cluster: bool) -> bool {
        backend == self.backend && (!is_cluster || slot == self.slot)
    }
}

/// The channels that a client is subscribed to, on one link.
#[derive(Debug)]
pub struct Subscriptions {
    /// The link.
    pub link: PrivateId,
    /// The store at the other end of the link.
    pub backend: BackendId,
    /// Names of channels, of patterns and of sharded channels.
    names: [HashSet<Box<[u8]>>; 3],
    /// The sum of the lengths of all names.
    name_bytes: usize,
    /// The command whose acknowledgements have not all come.
    pending: Option<Pending>,
}

/// A command about subscriptions whose acknowledgements have not all come.
#[derive(Debug)]
struct Pending {
    sequence: u32,
    /// The number of acknowledgements that are still to come.
    left: usize,
    /// The word that each acknowledgement begins with, such as `psubscribe`.
    word: &'static [u8],
    /// The acknowledgements that have come, and the messages between them.
    gathered: Vec<u8>,
}

/// The result of a message that came over a link with subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The message is on its way to the client, or waits for acknowledgements.
    Passed,
    /// The message was the last acknowledgement of a command.
    Acknowledged {
        /// Destination of the reply to the command.
        reply_to: ReplyTo,
        /// All acknowledgements, with the messages between them.
        reply: Vec<u8>,
        /// True if no channel is left.
        is_over: bool,
    },
    /// The store has ended a subscription by itself, so that the client may miss messages.
    Revoked,
    /// The client has left, or has no subscriptions.
    Nobody,
}

/// Maximum number of channels and patterns that one client may be subscribed to.
pub const CHANNELS_MAX: usize = 16_384;
/// Maximum number of bytes that the names of all channels of one client may have.
pub const CHANNEL_BYTES_MAX: usize = 1 << 20;

impl Subscriptions {
    /// Creates the state of a client that is about to subscribe for the first time.
    pub fn new(link: PrivateId, backend: BackendId) -> Self {
        Self { link, backend, names: Default::default(), name_bytes: 0, pending: None }
    }

    /// Returns the numbers of channels, of patterns and of sharded channels.
    pub fn counts(&self) -> [usize; 3] {
        self.names.each_ref().map(HashSet::len)
    }

    fn len(&self) -> usize {
        self.names.iter().map(HashSet::len).sum()
    }

    /// True if the client may also be subscribed to these names.
    pub fn has_room<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> bool {
        let (count, bytes) = names.fold((self.len(), self.name_bytes), |(count, bytes), name| {
            (count + 1, bytes.saturating_add(name.len()))
        });
        count <= CHANNELS_MAX && bytes <= CHANNEL_BYTES_MAX
    }

    /// Notes a command that is about to be sent. Returns the number of acknowledgements that the store will
    /// send.
    fn note<'a>(
        &mut self,
        (kind, begins): (Subscription, bool),
        named: impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        let names = &mut self.names[kind as usize];
        let mut count = 0;
        for name in named {
            count += 1;
            if begins {
                if names.insert(name.into()) {
                    self.name_bytes += name.len();
                }
            } else if names.remove(name) {
                self.name_bytes -= name.len();
            }
        }
        if count == 0 {
            // `UNSUBSCRIBE` without names ends all, and is acknowledged at least once.
            count = names.len().max(1);
            self.name_bytes -= names.iter().map(|name| name.len()).sum::<usize>();
            names.clear();
        }
        count
    }

    /// Returns the memory that the names take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let gathered = self.pending.as_ref().map_or(0, |pending| pending.gathered.capacity());
        self.name_bytes + self.len() * (size_of::<Box<[u8]>>() + 8) + gathered
    }
}

impl ClientStage {
    /// Records a command about subscriptions that is about to be sent: it is answered to the client when all
    /// of its acknowledgements have come.
    pub fn expect_acknowledgements<'a>(
        &mut self,
        id: ClientId,
        sequence: u32,
        (kind, begins): (Subscription, bool),
        named: impl Iterator<Item = &'a [u8]>,
    ) {
        let client = self.clients.at(id);
        let Some(subscriptions) = client.ties.as_mut().and_then(|ties| ties.subscriptions.as_mut()) else {
            return debug_assert!(false, "the caller has seen to a link");
        };
        let left = subscriptions.note((kind, begins), named);
        let word = kind.word(begins);
        subscriptions.pending = Some(Pending { sequence, left, word, gathered: Vec::new() });
    }

    /// Takes a message from a link with subscriptions: an acknowledgement, or what was published.
    pub fn deliver_message(&mut self, env: &mut Env, id: ClientId, message: &[u8]) -> Delivered {
        let bytes_max = env.settings.output_bytes_max;
        let Some(client) = self.clients.get(id) else { return Delivered::Nobody };
        let Some(subscriptions) = client.ties.as_mut().and_then(|ties| ties.subscriptions.as_mut()) else {
            return Delivered::Nobody;
        };
        let Some(pending) = &mut subscriptions.pending else {
            let is_revoked = first_word(message) == Some(b"sunsubscribe");
            client.order.push(Message::Small(message), &mut env.pool);
            self.after_push(env, id);
            return if is_revoked { Delivered::Revoked } else { Delivered::Passed };
        };
        pending.gathered.extend_from_slice(message);
        if message.starts_with(b"-") {
            pending.left = 0;
        } else if first_word(message) == Some(pending.word) {
            pending.left = pending.left.saturating_sub(1);
        }
        if pending.left > 0 {
            if pending.gathered.len() > bytes_max {
                self.expel(env, id, Counter::ClientsClosedUnread);
            }
            return Delivered::Passed;
        }
        let Pending { sequence, gathered, .. } = subscriptions.pending.take().expect("seen just now");
        let is_over = subscriptions.len() == 0;
        let reply_to = ReplyTo::new(env.settings.id, id, sequence);
        Delivered::Acknowledged { reply_to, reply: gathered, is_over }
    }

    /// Answers `UNSUBSCRIBE` of a client that has no subscriptions: one acknowledgement for each name, or one
    /// without a name.
    pub fn acknowledge_nothing<'a>(
        &mut self,
        env: &mut Env,
        id: ClientId,
        kind: Subscription,
        named: impl ExactSizeIterator<Item = &'a [u8]>,
    ) {
        let word = kind.word(false);
        self.answer_now(env, id, |out, protocol| {
            let none = named.len() == 0;
            let names = named.map(Some).chain(none.then_some(None));
            for name in names {
                encode::push(out, protocol, 3);
                encode::bulk(out, word);
                match name {
                    Some(name) => encode::bulk(out, name),
                    None => encode::null(out, protocol),
                }
                encode::integer(out, 0);
            }
        });
    }

    /// Returns the clients that watch keys since a time or for longer.
    pub fn watching_since(&self, since: Timestamp) -> Vec<ClientId> {
        let has_watched = |id: &ClientId| {
            let client = self.clients.peek(*id);
            client.is_some_and(|client| client.watch().is_some_and(|watch| watch.since <= since))
        };
        self.clients.ids().filter(has_watched).collect()
    }

    /// Takes the links of clients that have left since the last call.
    pub fn take_left_links(&mut self) -> Vec<PrivateId> {
        std::mem::take(&mut self.left_links)
    }

    /// Closes a client at once, with requests unanswered.
    pub fn close(&mut self, env: &mut Env, id: ClientId) {
        self.forget(env, id);
        env.actions.push_back(Action::Close(Owner::Client(id)));
    }
}

/// Returns the first element of an array or push, if that is a string.
fn first_word(message: &[u8]) -> Option<&[u8]> {
    let start = message.iter().position(|byte| *byte == b'\n')? + 1;
    let text = message.get(start..)?.strip_prefix(b"$")?;
    let line = text.iter().position(|byte| *byte == b'\r')?;
    let length: usize = std::str::from_utf8(&text[..line]).ok()?.parse().ok()?;
    text.get(line + 2..line + 2 + length)
}
