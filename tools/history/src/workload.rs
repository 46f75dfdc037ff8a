//! The workload: random operations of random kinds, as the commands that carry them out.

use std::sync::atomic::{AtomicU64, Ordering};

use weir::values::Random;

use super::asked::{Asked, Effect, Expect};
use super::flags::{HistoryFlags, Reads};
use super::keys::{FIELD, Key, Kind, Run, words};
use super::operation::{Token, Way};

/// The keys and settings of the run, from which all connections make their random commands.
#[derive(Debug)]
pub struct Workload {
    pub keys: Vec<Key>,
    pub run: Run,
    pub reads: Reads,
    pub undeclared: bool,
    pub flushes: bool,
    tokens: AtomicU64,
}

/// Commands that are sent together: their bytes, and for each of them the record by which its reply will be
/// interpreted.
#[derive(Debug, Default)]
pub struct Batch {
    pub bytes: Vec<u8>,
    pub asked: Vec<Asked>,
}

/// The longest lifetime of a value that is written with an expiry, in milliseconds.
const LIVES_MS_MAX: u64 = 40;
/// One in this many writes, on average, is a FLUSHALL, if `--flushes` is given.
const FLUSH_ONE_IN: u64 = 2_000;
/// The last index that LTRIM keeps of a list when it follows a push: four elements are left.
const LIST_LAST: &[u8] = b"3";

const SCRIPT_DECLARED: [&str; 3] = [
    "return redis.call('SET', KEYS[1], ARGV[1])",
    "return redis.call('HSET', KEYS[1], 'f', ARGV[1])",
    "return redis.call('LPUSH', KEYS[1], ARGV[1])",
];
/// Scripts that write the key `ARGV[2]`, although they declare another key of the same store; one each for
/// strings, hashes and lists.
const SCRIPT_UNDECLARED: [&str; 3] = [
    "return redis.call('SET', ARGV[2], ARGV[1])",
    "return redis.call('HSET', ARGV[2], 'f', ARGV[1])",
    "return redis.call('LPUSH', ARGV[2], ARGV[1])",
];
const SCRIPT_TWO: &str = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('SET', KEYS[2], ARGV[2])";
const SCRIPT_READ: &str = "return redis.call('GET', KEYS[1])";

#[derive(Clone, Copy)]
enum Write {
    Create,
    CreateFor,
    GetSet,
    SetGet,
    MsetBeside,
    MsetApart,
    Block,
    BlockOfTwo,
    Script,
    ScriptOfTwo,
    RenameInto,
    RenameAway,
    Copy,
    GetDelete,
    GetExpire,
    Delete,
    DeleteApart,
    Unlink,
    Expire,
    ExpireMs,
    SetHead,
}

/// Kinds of writes to strings, with the weights by which one is chosen at random.
const TEXT_WRITES: &[(Write, u64)] = &[
    (Write::Create, 30),
    (Write::CreateFor, 8),
    (Write::GetSet, 4),
    (Write::SetGet, 4),
    (Write::MsetBeside, 4),
    (Write::MsetApart, 5),
    (Write::Block, 4),
    (Write::BlockOfTwo, 3),
    (Write::Script, 5),
    (Write::ScriptOfTwo, 2),
    (Write::RenameInto, 5),
    (Write::RenameAway, 3),
    (Write::Copy, 5),
    (Write::GetDelete, 4),
    (Write::GetExpire, 4),
    (Write::Delete, 3),
    (Write::DeleteApart, 2),
    (Write::Unlink, 3),
    (Write::Expire, 2),
    (Write::ExpireMs, 2),
];
const HASH_WRITES: &[(Write, u64)] = &[
    (Write::Create, 40),
    (Write::Block, 6),
    (Write::Script, 6),
    (Write::RenameInto, 6),
    (Write::RenameAway, 3),
    (Write::Copy, 6),
    (Write::Delete, 4),
    (Write::Unlink, 4),
    (Write::Expire, 2),
    (Write::ExpireMs, 2),
];
const LIST_WRITES: &[(Write, u64)] = &[
    (Write::Create, 30),
    (Write::SetHead, 12),
    (Write::Block, 6),
    (Write::Script, 6),
    (Write::RenameInto, 6),
    (Write::RenameAway, 3),
    (Write::Copy, 6),
    (Write::Delete, 4),
    (Write::Unlink, 4),
    (Write::Expire, 2),
    (Write::ExpireMs, 2),
];

impl Workload {
    pub fn new(flags: &HistoryFlags, keys: Vec<Key>, run: Run) -> Self {
        let HistoryFlags { reads, undeclared, flushes, .. } = *flags;
        Self { keys, run, reads, undeclared, flushes, tokens: AtomicU64::new(1) }
    }

    pub fn token(&self) -> Token {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Chooses a key at random and returns its index; the first keys come more often.
    fn key(&self, random: &mut Random) -> usize {
        random.index(self.keys.len()).min(random.index(self.keys.len()))
    }

    /// Chooses at random another key that holds a string, in the same slot as the key with index `key` if
    /// `beside`, else in another slot. Returns its index; `None` if there is no such key.
    fn partner(&self, key: usize, beside: bool, random: &mut Random) -> Option<usize> {
        let first = random.index(self.keys.len());
        let others = (0..self.keys.len()).map(|step| (first + step) % self.keys.len());
        others.into_iter().find(|other| {
            *other != key
                && self.keys[*other].kind == Kind::Text
                && self.keys[*other].is_beside(&self.keys[key]) == beside
        })
    }

    pub fn read(&self, batch: &mut Batch, random: &mut Random) {
        let index = self.key(random);
        let (key, at) = (&self.keys[index], index as u16);
        let name = key.name.as_bytes();
        if self.reads == Reads::Get {
            return batch.ask(&[b"GET", name], Asked::plain("GET", at, Expect::Value));
        }
        if random.below(20) == 0 {
            return batch.ask(&[b"EXISTS", name], Asked::plain("EXISTS", at, Expect::Count));
        }
        match (key.kind, random.below(20)) {
            (Kind::Text, 0..3) => {
                batch.ask(&[b"GETRANGE", name, b"0", b"-1"], Asked::plain("GETRANGE", at, Expect::Value));
            }
            (Kind::Text, 3) => {
                batch.ask(&[b"SUBSTR", name, b"0", b"-1"], Asked::plain("SUBSTR", at, Expect::Value));
            }
            (Kind::Text, 4) => batch.ask(&[b"STRLEN", name], Asked::plain("STRLEN", at, Expect::Count)),
            (Kind::Text, 5) => {
                let asked = Asked::plain("EVAL that reads", at, Expect::Value);
                batch.ask(&[b"EVAL", SCRIPT_READ.as_bytes(), b"1", name], asked);
            }
            (Kind::Text, 6..8) => self.read_several(batch, index, random),
            (Kind::Text, _) => batch.ask(&[b"GET", name], Asked::plain("GET", at, Expect::Value)),
            (Kind::Hash, 0..3) => {
                batch.ask(&[b"HMGET", name, FIELD.as_bytes()], Asked::plain("HMGET", at, Expect::First));
            }
            (Kind::Hash, 3..6) => batch.ask(&[b"HGETALL", name], Asked::plain("HGETALL", at, Expect::Second)),
            (Kind::Hash, 6..8) => batch.ask(&[b"HVALS", name], Asked::plain("HVALS", at, Expect::First)),
            (Kind::Hash, 8) => batch.ask(&[b"HLEN", name], Asked::plain("HLEN", at, Expect::Count)),
            (Kind::Hash, _) => {
                batch.ask(&[b"HGET", name, FIELD.as_bytes()], Asked::plain("HGET", at, Expect::Value));
            }
            (Kind::List, 0..8) => {
                batch.ask(&[b"LRANGE", name, b"0", b"0"], Asked::plain("LRANGE", at, Expect::First));
            }
            (Kind::List, 8) => batch.ask(&[b"LLEN", name], Asked::plain("LLEN", at, Expect::Count)),
            (Kind::List, _) => batch.ask(&[b"LINDEX", name, b"0"], Asked::plain("LINDEX", at, Expect::Value)),
        }
    }

    fn read_several(&self, batch: &mut Batch, key: usize, random: &mut Random) {
        let texts = (0..self.keys.len()).filter(|index| self.keys[*index].kind == Kind::Text);
        let chosen: Vec<usize> = texts.filter(|index| *index == key || random.per_mille(400)).collect();
        let mut all: Vec<&[u8]> = vec![b"MGET"];
        all.extend(chosen.iter().map(|index| self.keys[*index].name.as_bytes()));
        let effects: Vec<Effect> = chosen.iter().map(|index| Effect::Read(*index as u16)).collect();
        batch.ask(&all, Asked { way: Way::Plain, ..Asked::new("MGET", effects, Expect::Each) });
    }

    pub fn write(&self, batch: &mut Batch, random: &mut Random) {
        if self.flushes && random.below(FLUSH_ONE_IN) == 0 {
            let effects: Vec<Effect> = (0..self.keys.len()).map(|key| Effect::Delete(key as u16)).collect();
            let asked = Asked { is_split: true, ..Asked::new("FLUSHALL", effects, Expect::Ok) };
            return batch.ask(&[b"FLUSHALL"], asked);
        }
        let index = self.key(random);
        let writes = match self.keys[index].kind {
            Kind::Text => TEXT_WRITES,
            Kind::Hash => HASH_WRITES,
            Kind::List => LIST_WRITES,
        };
        let mut place = random.below(writes.iter().map(|(_, weight)| weight).sum());
        let chosen = writes.iter().find(|(_, weight)| {
            let is_it = place < *weight;
            place = place.saturating_sub(*weight);
            is_it
        });
        self.write_as(chosen.map_or(Write::Create, |(write, _)| *write), index, batch, random);
    }

    fn write_as(&self, write: Write, index: usize, batch: &mut Batch, random: &mut Random) {
        let (key, at) = (&self.keys[index], index as u16);
        let name = key.name.as_bytes();
        let token = self.token();
        let value = self.run.value(token, random);
        let lives_ms = random.between(1, LIVES_MS_MAX) as u32;
        let lives = lives_ms.to_string();
        let writes = [Effect::Write(at, token)];
        let deletes = [Effect::Delete(at)];
        match write {
            Write::Create => {
                let asked = Asked::new(key.create_name(), writes, created(key.kind));
                batch.encoded(|out| key.create(out, &key.name, &value), asked);
                if key.kind == Kind::List {
                    batch.ask(&[b"LTRIM", name, b"0", LIST_LAST], Asked::helper("LTRIM", Expect::Ok));
                }
            }
            Write::CreateFor => {
                let effects = [Effect::WriteFor(at, token, lives_ms)];
                let asked = Asked::new("SET PX", effects, Expect::Ok);
                batch.ask(&[b"SET", name, &value, b"PX", lives.as_bytes()], asked);
            }
            Write::GetSet => {
                let asked = Asked::new("GETSET", [Effect::Take(at), writes[0]], Expect::Value);
                batch.ask(&[b"GETSET", name, &value], asked);
            }
            Write::SetGet => {
                let asked = Asked::new("SET GET", [Effect::Take(at), writes[0]], Expect::Value);
                batch.ask(&[b"SET", name, &value, b"GET"], asked);
            }
            Write::MsetBeside => self.write_two(index, true, batch, random),
            Write::MsetApart => self.write_two(index, false, batch, random),
            Write::Block => self.block(index, token, &value, batch, random),
            Write::BlockOfTwo => self.block_of_two(index, batch, random),
            Write::Script => self.script(index, token, &value, batch, random),
            Write::ScriptOfTwo => self.script_of_two(index, batch, random),
            Write::RenameInto => {
                let scratch = key.scratch(token);
                batch.encoded(
                    |out| key.create(out, &scratch, &value),
                    Asked::helper("scratch", created(key.kind)),
                );
                let asked = Asked::new("RENAME into", writes, Expect::Ok);
                batch.ask(&[b"RENAME", scratch.as_bytes(), name], asked);
            }
            Write::RenameAway => {
                let scratch = key.scratch(token);
                let asked = Asked::new("RENAME away", deletes, Expect::Ok);
                batch.ask(&[b"RENAME", name, scratch.as_bytes()], asked);
                batch.ask(&[b"UNLINK", scratch.as_bytes()], Asked::helper("scratch", Expect::Number));
            }
            Write::Copy => {
                let scratch = key.scratch(token);
                batch.encoded(
                    |out| key.create(out, &scratch, &value),
                    Asked::helper("scratch", created(key.kind)),
                );
                let asked = Asked::new("COPY", writes, Expect::NotZero);
                batch.ask(&[b"COPY", scratch.as_bytes(), name, b"REPLACE"], asked);
                batch.ask(&[b"UNLINK", scratch.as_bytes()], Asked::helper("scratch", Expect::Number));
            }
            Write::GetDelete => {
                let asked = Asked::new("GETDEL", [Effect::Take(at), deletes[0]], Expect::Value);
                batch.ask(&[b"GETDEL", name], asked);
            }
            Write::GetExpire => {
                let effects = [Effect::Read(at), Effect::Expire(at, lives_ms)];
                let asked = Asked::new("GETEX", effects, Expect::Value);
                batch.ask(&[b"GETEX", name, b"PX", lives.as_bytes()], asked);
            }
            Write::Delete => batch.ask(&[b"DEL", name], Asked::new("DEL", deletes, Expect::Removed)),
            Write::DeleteApart => {
                let Some(other) = self.partner(index, false, random) else { return };
                let effects = [deletes[0], Effect::Delete(other as u16)];
                let asked = Asked { is_split: true, ..Asked::new("DEL of two", effects, Expect::Removed) };
                batch.ask(&[b"DEL", name, self.keys[other].name.as_bytes()], asked);
            }
            Write::Unlink => batch.ask(&[b"UNLINK", name], Asked::new("UNLINK", deletes, Expect::Removed)),
            Write::Expire => {
                batch.ask(&[b"EXPIRE", name, b"-1"], Asked::new("EXPIRE past", deletes, Expect::Removed));
            }
            Write::ExpireMs => {
                batch.ask(&[b"PEXPIRE", name, b"0"], Asked::new("PEXPIRE past", deletes, Expect::Removed));
            }
            Write::SetHead => {
                let asked = Asked::new("LSET", writes, Expect::Ok);
                batch.ask(&[b"LSET", name, b"0", &value], asked);
            }
        }
    }

    /// Adds to the batch an MSET of the key with index `first` and another random key: of the same slot if
    /// `beside`, else of another slot. Adds nothing if there is no such key.
    fn write_two(&self, first: usize, beside: bool, batch: &mut Batch, random: &mut Random) {
        let Some(second) = self.partner(first, beside, random) else { return };
        let (effects, values) = self.two(first, second, random);
        let names = [first, second].map(|index| self.keys[index].name.as_bytes());
        let command = if beside { "MSET beside" } else { "MSET apart" };
        let asked = Asked { is_split: !beside, ..Asked::new(command, effects, Expect::Ok) };
        batch.ask(&[b"MSET", names[0], &values[0], names[1], &values[1]], asked);
    }

    fn two(&self, first: usize, second: usize, random: &mut Random) -> ([Effect; 2], [Vec<u8>; 2]) {
        let tokens = [self.token(), self.token()];
        let values = tokens.map(|token| self.run.value(token, random));
        ([Effect::Write(first as u16, tokens[0]), Effect::Write(second as u16, tokens[1])], values)
    }

    /// Adds a transaction on one key (`index` in the list of keys) to the batch: MULTI, sometimes a read, a write of
    /// `value` or a delete, a read, EXEC. `token` is the mark in the value by which the write is recognised later.
    fn block(&self, index: usize, token: Token, value: &[u8], batch: &mut Batch, random: &mut Random) {
        let (key, at) = (&self.keys[index], index as u16);
        let name = key.name.as_bytes();
        let mut block = Block::begin(batch);
        if key.kind == Kind::Text && random.per_mille(500) {
            block.add(&[b"GET", name], Asked::new("GET in MULTI", [Effect::Read(at)], Expect::Value));
        }
        if random.per_mille(150) {
            block.add(&[b"DEL", name], Asked::new("DEL in MULTI", [Effect::Delete(at)], Expect::Removed));
        } else {
            block
                .batch
                .encoded(|out| key.create(out, &key.name, value), Asked::helper("queued", Expect::Queued));
            let expect = created(key.kind);
            block.asked.push(Asked::new("write in MULTI", [Effect::Write(at, token)], expect));
        }
        if key.kind == Kind::Text {
            block.add(&[b"GET", name], Asked::new("GET in MULTI", [Effect::Read(at)], Expect::Value));
        }
        block.end();
    }

    fn block_of_two(&self, first: usize, batch: &mut Batch, random: &mut Random) {
        let Some(second) = self.partner(first, true, random) else { return };
        let (effects, values) = self.two(first, second, random);
        let mut block = Block::begin(batch);
        for ((index, effect), value) in [first, second].into_iter().zip(effects).zip(&values) {
            let asked = Asked::new("write in MULTI", [effect], Expect::Ok);
            block.add(&[b"SET", self.keys[index].name.as_bytes(), value], asked);
        }
        block.end();
    }

    fn script(&self, index: usize, token: Token, value: &[u8], batch: &mut Batch, random: &mut Random) {
        let (key, at) = (&self.keys[index], index as u16);
        let (name, kind) = (key.name.as_bytes(), key.kind as usize);
        if self.undeclared && random.per_mille(500) {
            let declared = key.scratch(0);
            let asked = Asked::new("EVAL undeclared", [Effect::Write(at, token)], created(key.kind));
            let asked = Asked { way: Way::Unnamed, ..asked };
            let script = SCRIPT_UNDECLARED[kind].as_bytes();
            batch.ask(&[b"EVAL", script, b"1", declared.as_bytes(), value, name], asked);
        } else {
            let asked = Asked::new("EVAL", [Effect::Write(at, token)], created(key.kind));
            batch.ask(&[b"EVAL", SCRIPT_DECLARED[kind].as_bytes(), b"1", name, value], asked);
        }
    }

    fn script_of_two(&self, first: usize, batch: &mut Batch, random: &mut Random) {
        let Some(second) = self.partner(first, true, random) else { return };
        let (effects, values) = self.two(first, second, random);
        let names = [first, second].map(|index| self.keys[index].name.as_bytes());
        let asked = Asked::new("EVAL of two", effects, Expect::Ok);
        batch.ask(&[b"EVAL", SCRIPT_TWO.as_bytes(), b"2", names[0], names[1], &values[0], &values[1]], asked);
    }

    /// Adds to the batch a write or delete of a random key that the store with this index holds, to be sent
    /// to the store directly (bypassing weir). Adds nothing if the store holds none of the keys.
    pub fn around(&self, store: usize, batch: &mut Batch, random: &mut Random) {
        let here = self.keys.iter().enumerate().filter(|(_, key)| key.stores.contains(&store));
        let here: Vec<(usize, &Key)> = here.collect();
        if here.is_empty() {
            return;
        }
        let (index, key) = *random.pick(&here);
        if random.per_mille(200) {
            let asked = Asked::new("DEL around", [Effect::Delete(index as u16)], Expect::Removed);
            return batch.ask(&[b"DEL", key.name.as_bytes()], Asked { way: Way::Around, ..asked });
        }
        let token = self.token();
        let value = self.run.value(token, random);
        let asked = Asked::new("write around", [Effect::Write(index as u16, token)], created(key.kind));
        batch.encoded(|out| key.create(out, &key.name, &value), Asked { way: Way::Around, ..asked });
    }
}

impl Batch {
    fn ask(&mut self, command: &[&[u8]], asked: Asked) {
        self.encoded(|out| words(out, command), asked);
    }

    fn encoded(&mut self, encode: impl FnOnce(&mut Vec<u8>), asked: Asked) {
        encode(&mut self.bytes);
        self.asked.push(asked);
    }
}

/// Returns the reply of the command, alone or as a script, that gives a key of this type its value: `OK` for SET,
/// else a number.
const fn created(kind: Kind) -> Expect {
    match kind {
        Kind::Text => Expect::Ok,
        Kind::Hash | Kind::List => Expect::Number,
    }
}

/// A transaction that is being assembled for a batch.
struct Block<'a> {
    batch: &'a mut Batch,
    asked: Vec<Asked>,
}

impl<'a> Block<'a> {
    fn begin(batch: &'a mut Batch) -> Self {
        batch.ask(&[b"MULTI"], Asked::helper("MULTI", Expect::Begun));
        Self { batch, asked: Vec::new() }
    }

    fn add(&mut self, command: &[&[u8]], asked: Asked) {
        self.batch.ask(command, Asked::helper("queued", Expect::Queued));
        self.asked.push(asked);
    }

    fn end(self) {
        self.batch.ask(&[b"EXEC"], Asked::new("EXEC", [], Expect::Block(self.asked)));
    }
}
