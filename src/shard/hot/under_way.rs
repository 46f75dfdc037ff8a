//! Requests that have yet to be answered, of which hot keys must know: each at the core that sends it.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

use bytes::Bytes;

use crate::policy::hot_keys::HotId;
use crate::protocol::Protocol;
use crate::shard::request::{Asker, Envelope, ReplyTo, Track};
use crate::shard::versions::{Cell, Snapshot, Versions};
use crate::values::Timestamp;

/// What one of them touches.
#[derive(Debug)]
pub enum Open {
    /// A hot key that is read, and a number for what asks for it.
    Read(HotId, u64),
    /// One that is written.
    Write(HotId, Cell),
    /// Several; which cells, of those that are written.
    Keys(Box<[(HotId, Option<Cell>)]>),
    /// Several that are read, each with its value in the reply.
    Values(Values),
    /// Keys that are at home anywhere.
    Anywhere {
        /// Those that are written.
        written: Box<[Cell]>,
        /// What is read of others, in the order in which it stands in the reply.
        read: Box<[InnerRead]>,
    },
    /// All that a backend stores.
    Cell(Cell),
    /// A key that is not hot, in this slot and with this hash, of which the reply may cost much.
    Costly(u16, u64),
}

/// What a transaction reads of a key.
#[derive(Clone, Copy, Debug)]
pub struct InnerRead {
    /// Which element of the reply says it; and which of that one's.
    pub place: (u32, Option<u32>),
    /// A number for what asks for it.
    pub asked: u64,
    pub cell: Cell,
}

/// A request for the values of keys, some of which are hot.
#[derive(Debug)]
pub struct Values {
    /// Those, each once, and where its value stands first in the reply.
    pub keys: Box<[(HotId, u32)]>,
    /// They are all that is asked for, and each is asked for once.
    pub are_all: bool,
    pub asker: Option<Asker>,
    pub protocol: Protocol,
    /// The reply is ahead of what is kept, if they differ: it is not that of a replica.
    pub is_compared: bool,
}

impl Values {
    pub fn new(envelope: &Envelope, keys: Box<[(HotId, u32)]>, count: u32) -> Self {
        Self {
            are_all: keys.len() == count as usize,
            keys,
            asker: envelope.asker,
            protocol: envelope.route.protocol,
            is_compared: envelope.route.track != Track::Replica,
        }
    }
}

impl Open {
    /// Is it about keys that need not be at home here?
    fn is_about_any(&self) -> bool {
        matches!(self, Self::Anywhere { .. } | Self::Cell(_))
    }

    /// Calls `each` with every hot key.
    pub fn for_each_key(&self, mut each: impl FnMut(HotId)) {
        match self {
            Self::Read(id, _) | Self::Write(id, _) => each(*id),
            Self::Keys(keys) => keys.iter().for_each(|(id, _)| each(*id)),
            Self::Values(values) => values.keys.iter().for_each(|(id, _)| each(*id)),
            Self::Anywhere { .. } | Self::Cell(_) | Self::Costly(..) => {}
        }
    }

    /// Calls `each` with every cell that is written.
    pub fn for_each_cell(&self, mut each: impl FnMut(Cell)) {
        match self {
            Self::Write(_, cell) | Self::Cell(cell) => each(*cell),
            Self::Keys(keys) => keys.iter().filter_map(|(_, cell)| *cell).for_each(each),
            Self::Anywhere { written, .. } => written.iter().copied().for_each(each),
            Self::Read(..) | Self::Values(_) | Self::Costly(..) => {}
        }
    }
}

/// A request that goes on by itself.
#[derive(Debug)]
struct Passed {
    open: Open,
    /// It is on its connection to the store.
    is_sent: bool,
}

/// All of them.
#[derive(Debug)]
pub struct UnderWay {
    open: HashMap<ReplyTo, Passed>,
    /// How many of those there are, by some bits of where their reply belongs: nearly all replies are to none.
    marks: Box<[u32; MARKS]>,
    /// By connection, those that are about keys that need not be at home here.
    about_any: HashMap<u64, u32>,
    /// What is answered next is answered without its store.
    abandoned: Option<ReplyTo>,
    /// Those that were, until their store has answered too, or their connection is lost.
    unsettled: HashMap<ReplyTo, Open>,
    /// Writes whose connection was lost, and until when they count as being under way.
    lost: VecDeque<(Timestamp, Open)>,
    /// What would have been answered from memory, were that not only watched.
    compared: HashMap<ReplyTo, (Snapshot, Bytes)>,
}

const MARKS: usize = 1_024;

impl Default for UnderWay {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            marks: Box::new([0; MARKS]),
            about_any: HashMap::new(),
            abandoned: None,
            unsettled: HashMap::new(),
            lost: VecDeque::new(),
            compared: HashMap::new(),
        }
    }
}

fn mark_of(to: ReplyTo) -> usize {
    (to.client.wrapping_mul(61) ^ to.sequence) as usize % MARKS
}

impl UnderWay {
    /// May a reply be to one of them?
    #[inline]
    pub fn may_have(&self, to: ReplyTo) -> bool {
        self.marks[mark_of(to)] > 0
    }

    pub fn len(&self) -> usize {
        self.open.len() + self.unsettled.len() + self.lost.len()
    }

    /// Has a connection asked for something that may be about any key?
    pub fn is_about_any(&self, connection: u64) -> bool {
        !self.about_any.is_empty() && self.about_any.contains_key(&connection)
    }

    pub fn open(&mut self, to: ReplyTo, open: Open) {
        if open.is_about_any() {
            *self.about_any.entry(to.connection()).or_default() += 1;
        }
        let before = self.open.insert(to, Passed { open, is_sent: false });
        self.marks[mark_of(to)] += u32::from(before.is_none());
        debug_assert!(before.is_none(), "a reply has one request: {to:?}");
    }

    /// A request is on its connection to the store. What it touches, the first time that this is said.
    pub fn handle_sent(&mut self, to: ReplyTo) -> Option<&Open> {
        let passed = self.open.get_mut(&to)?;
        (!std::mem::replace(&mut passed.is_sent, true)).then_some(&passed.open)
    }

    /// A request is answered: what it touched, and whether it was known to be on its connection to the store.
    pub fn close(&mut self, to: ReplyTo) -> Option<(Open, bool)> {
        let Passed { open, is_sent } = self.open.remove(&to)?;
        self.marks[mark_of(to)] -= 1;
        if open.is_about_any()
            && let Entry::Occupied(mut count) = self.about_any.entry(to.connection())
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some((open, is_sent))
    }

    /// A request is about to be answered without its store, which may carry it out yet.
    pub fn abandon(&mut self, to: ReplyTo) {
        self.abandoned = Some(to);
    }

    /// Its store has answered, or lost its connection.
    pub fn settle(&mut self, to: ReplyTo) -> Option<Open> {
        self.unsettled.remove(&to)
    }

    /// It may be carried out yet.
    pub fn handle_lost(&mut self, to: ReplyTo, open: Open, until: Timestamp) {
        if self.abandoned.take() == Some(to) {
            self.unsettled.insert(to, open);
        } else {
            self.put_off(open, until);
        }
    }

    /// It counts as being under way for some time.
    pub fn put_off(&mut self, open: Open, until: Timestamp) {
        self.lost.push_back((until, open));
    }

    /// When the first of those counts no more.
    pub fn due(&self) -> Option<Timestamp> {
        self.lost.front().map(|(until, _)| *until)
    }

    /// The next one that counts no more.
    pub fn take_due(&mut self, now: Timestamp) -> Option<Open> {
        self.due().filter(|due| *due <= now)?;
        self.lost.pop_front().map(|(_, open)| open)
    }

    /// The reply to a request is to be compared with this one.
    pub fn compare(&mut self, to: ReplyTo, snapshot: Option<Snapshot>, reply: Bytes) {
        if let Some(snapshot) = snapshot {
            self.compared.insert(to, (snapshot, reply));
        }
    }

    /// Is it the same? Nothing is to be said if it was not to be compared, or the key was written since.
    pub fn compared(&mut self, to: ReplyTo, versions: &Versions, reply: &[u8]) -> Option<bool> {
        let (snapshot, kept) = self.compared.remove(&to)?;
        versions.is_good(&snapshot).then(|| kept == reply)
    }
}
