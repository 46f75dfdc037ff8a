//! The engine: one request in, one reply out.

use super::call::{Call, Tally};
use super::commands::{Directory, Effect};
use super::effort::{Effort, LOOK};
use super::keyspace::{Keyspace, Swept};
use super::refusal::Refusal;
use super::reply::Reply;
use super::session::Session;
use crate::protocol::{Arguments, encode};
use crate::values::limits::{ENGINE_EFFORT_MAX, ENGINE_REPLY_BYTES_MAX};
use crate::values::time::Now;

/// What an element that a request brings may occupy beside its bytes, counted from the fifth word on: a single one is
/// within what the bound is approximate by.
const ARGUMENT_BYTES: usize = 64;
const ARGUMENTS_FREE: usize = 4;
/// How much of a client's bytes an unknown command's error quotes, as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

/// Bounds of one engine.
#[derive(Clone, Debug)]
pub struct EngineLimits {
    /// Approximate bytes of all keys and values at which writes that need memory are refused.
    pub bytes_max: u64,
    /// Bytes of one reply; of all replies of a transaction.
    pub reply_bytes_max: usize,
    /// What one request may take, a transaction as a whole: about one for each element looked at.
    pub effort_max: u64,
}

impl EngineLimits {
    /// The usual bounds of one request, and this much memory.
    pub fn with_memory(bytes_max: u64) -> Self {
        Self { bytes_max, reply_bytes_max: ENGINE_REPLY_BYTES_MAX, effort_max: ENGINE_EFFORT_MAX }
    }
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    Continue,
    /// It is closed once the reply is sent.
    Close,
}

/// Figures of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStatistics {
    /// Keys, those whose time is over but which nobody has found yet included.
    pub keys: usize,
    /// Keys with a lifetime.
    pub keys_volatile: usize,
    /// Approximate bytes of all keys and values.
    pub bytes_used: u64,
    /// Writes refused because the memory was full.
    pub refused_for_memory: u64,
    /// Commands refused because of what they would have looked at or replied.
    pub refused_for_cost: u64,
    /// Commands carried out.
    pub commands: u64,
    /// Replies that were errors.
    pub errors: u64,
    /// Keys removed because their time was over.
    pub expired: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
}

/// A Redis-compatible store of one thread.
pub struct Engine {
    keyspace: Keyspace,
    directory: Directory,
    limits: EngineLimits,
    tally: Tally,
    /// What the last request took.
    effort: u64,
}

impl Engine {
    /// An empty store. The seed decides the hash order and every random choice.
    pub fn new(limits: EngineLimits, seed: u64) -> Self {
        let directory = Directory::new();
        let tally = Tally { calls: vec![0; directory.len()], ..Tally::default() };
        Self { keyspace: Keyspace::new(seed), directory, limits, tally, effort: 0 }
    }

    /// Executes one request of one connection and appends exactly one reply to `out`, in the session's dialect.
    pub fn execute(
        &mut self,
        session: &mut Session,
        arguments: Arguments<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let effort = Effort::new(self.limits.effort_max);
        let before = out.len();
        let outcome = self.execute_within(&effort, session, arguments, now, out);
        effort.charge_bytes(out.len() - before);
        self.effort = effort.spent();
        outcome
    }

    /// What the last request took of the thread that all share, in units: reading one element of a list is one.
    pub fn effort(&self) -> u64 {
        self.effort
    }

    fn execute_within(
        &mut self,
        effort: &Effort,
        session: &mut Session,
        arguments: Arguments<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Outcome {
        self.keyspace.set_now(now.unix_ms);
        self.tally.started_ms.get_or_insert(now.unix_ms);
        let position = match self.admit(arguments) {
            Ok(position) => position,
            Err(refusal) => {
                effort.charge_request(arguments.len(), arguments.frame().len());
                self.tally.errors += 1;
                if let Some(transaction) = &mut session.transaction {
                    transaction.spoiled = true;
                }
                encode::error(out, &refusal.text());
                return Outcome::Continue;
            }
        };
        if self.directory.at(position).effect != Effect::Control
            && let Some(transaction) = &mut session.transaction
        {
            effort.charge_request(arguments.len(), arguments.frame().len());
            if transaction.queue(arguments) {
                encode::simple(out, "QUEUED");
            } else {
                encode::error(out, "ERR transaction too large");
            }
            return Outcome::Continue;
        }
        let mut call = Call {
            keyspace: &mut self.keyspace,
            session,
            tally: &mut self.tally,
            directory: &self.directory,
            limits: &self.limits,
            arguments,
            now,
            out: Reply::new(out, self.limits.reply_bytes_max),
            effort,
            outcome: Outcome::Continue,
        };
        call.run(position);
        call.outcome
    }

    /// A connection that another one wants dropped with everything that it has not been answered, if any. Whoever holds the
    /// connections asks after each request.
    pub fn poll_killed(&mut self) -> Option<u64> {
        self.tally.killed.pop()
    }

    /// Removes keys whose time is over, looking at no more than about `budget` keys. Call it many times a second
    /// with a budget of some hundred keys, and again at once while most of those it visits are removed.
    pub fn expire_some(&mut self, now: Now, budget: usize) -> Swept {
        self.keyspace.set_now(now.unix_ms);
        self.keyspace.sweep(budget)
    }

    /// The figures as they are now.
    pub fn statistics(&self) -> EngineStatistics {
        EngineStatistics {
            keys: self.keyspace.len(),
            keys_volatile: self.keyspace.volatile(),
            bytes_used: self.keyspace.used(),
            refused_for_memory: self.tally.refused_for_memory,
            refused_for_cost: self.tally.refused_for_cost,
            commands: self.tally.commands,
            errors: self.tally.errors,
            expired: self.keyspace.expired,
            hits: self.keyspace.hits,
            misses: self.keyspace.misses,
        }
    }

    /// How often each command was carried out, those that never were left out.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = (0..self.directory.len()).map(|position| self.directory.at(position).name);
        names.zip(self.tally.calls.iter().copied()).filter(|(_, calls)| *calls > 0)
    }

    fn admit(&mut self, arguments: Arguments<'_>) -> Result<usize, Refusal> {
        let position = self.directory.find(arguments.name()).ok_or_else(|| unknown(arguments))?;
        let command = self.directory.at(position);
        if !command.accepts(arguments.len()) {
            return Err(Refusal::WrongArity(command.name));
        }
        // Many small elements take more memory than the bytes that name them.
        let places = arguments.len().saturating_sub(ARGUMENTS_FREE) * ARGUMENT_BYTES;
        let needed = self.keyspace.used().saturating_add((arguments.frame().len() + places) as u64);
        if command.effect == Effect::Grow && needed >= self.limits.bytes_max {
            self.tally.refused_for_memory += 1;
            return Err(Refusal::OutOfMemory);
        }
        Ok(position)
    }
}

impl Call<'_> {
    /// Carries out the command at `position` of the directory; a refusal replaces what it wrote.
    pub(super) fn run(&mut self, position: usize) {
        self.tally.calls[position] += 1;
        self.tally.commands += 1;
        self.effort.charge_request(self.count(), self.arguments.frame().len());
        if let Err(refusal) = (self.directory.at(position).run)(self).and_then(|()| self.out.check()) {
            self.tally.errors += 1;
            self.tally.refused_for_memory += u64::from(refusal == Refusal::OutOfMemory);
            let too_dear = matches!(refusal, Refusal::TooMuchWork(_) | Refusal::ReplyTooLarge(_));
            self.tally.refused_for_cost += u64::from(too_dear);
            self.out.refuse(&refusal);
        }
        self.effort.charge(self.keyspace.take_removed() * LOOK);
    }
}

fn unknown(arguments: Arguments<'_>) -> Refusal {
    if arguments.name().eq_ignore_ascii_case(b"storage") {
        return Refusal::Words(
            "ERR STORAGE is refused: only weir-storage, started with --scriptable, has it",
        );
    }
    let mut quoted: Vec<u8> = Vec::new();
    for argument in arguments.iter().skip(1) {
        if quoted.len() >= QUOTED_BYTES_MAX {
            break;
        }
        let room = QUOTED_BYTES_MAX - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(c_string(argument, room));
        quoted.extend_from_slice(b"' ");
    }
    Refusal::Quoting(format!(
        "ERR unknown command '{}', with args beginning with: {}",
        String::from_utf8_lossy(c_string(arguments.name(), QUOTED_BYTES_MAX)),
        String::from_utf8_lossy(&quoted),
    ))
}

/// What a client sent, as errors repeat it: cut short, so that no error is as long as a request.
pub(super) fn quoted(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(c_string(bytes, QUOTED_BYTES_MAX))
}

/// At most `length` bytes, and none from a zero byte on: what printf would show.
pub(super) fn c_string(bytes: &[u8], length: usize) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end.min(length)]
}

#[cfg(test)]
pub(super) mod testing {
    //! One engine and one connection, spoken to in words.

    use super::*;
    use crate::protocol::Argument;

    pub(in crate::storage) struct Bench {
        pub(in crate::storage) engine: Engine,
        pub(in crate::storage) session: Session,
        pub(in crate::storage) now: Now,
    }

    impl Bench {
        pub(in crate::storage) fn new() -> Self {
            Self::bounded(u64::MAX)
        }

        pub(in crate::storage) fn bounded(bytes_max: u64) -> Self {
            Self::with(EngineLimits::with_memory(bytes_max))
        }

        pub(in crate::storage) fn with(limits: EngineLimits) -> Self {
            let now = Now { unix_ms: 1_700_000_000_000, ..Now::default() };
            Self { engine: Engine::new(limits, 42), session: Session::new(1), now }
        }

        pub(in crate::storage) fn send_bytes(&mut self, words: &[&[u8]]) -> Vec<u8> {
            let (mut frame, mut places) = (Vec::new(), Vec::new());
            for word in words {
                places.push(Argument { start: frame.len() as u32, length: word.len() as u32 });
                frame.extend_from_slice(word);
            }
            let mut out = Vec::new();
            self.engine.execute(&mut self.session, Arguments::new(&frame, &places), self.now, &mut out);
            out
        }

        /// Sends a command given as words between spaces, and shows the reply with `|` for line ends.
        pub(in crate::storage) fn send(&mut self, line: &str) -> String {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            String::from_utf8_lossy(&self.send_bytes(&words)).replace("\r\n", "|")
        }

        pub(in crate::storage) fn wait_ms(&mut self, ms: u64) {
            self.now.unix_ms += ms;
        }

        /// Checks lines of `command => reply` one after the other.
        pub(in crate::storage) fn talk(&mut self, dialogue: &[(&str, &str)]) {
            for (line, expected) in dialogue {
                assert_eq!(self.send(line), *expected, "{line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Bench;
    use crate::values::Random;

    #[test]
    fn refusals_are_in_redis_words() {
        Bench::new().talk(&[
            ("FOO a b", "-ERR unknown command 'FOO', with args beginning with: 'a' 'b' |"),
            ("FOO", "-ERR unknown command 'FOO', with args beginning with: |"),
            ("GET", "-ERR wrong number of arguments for 'get' command|"),
            (
                "STORAGE HELP",
                "-ERR STORAGE is refused: only weir-storage, started with --scriptable, has it|",
            ),
            ("SET k v", "+OK|"),
            ("INCR k", "-ERR value is not an integer or out of range|"),
            ("OBJECT FOO k", "-ERR unknown subcommand 'FOO'. Try OBJECT HELP.|"),
            ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command|"),
        ]);
    }

    #[test]
    fn full_memory_refuses_growth_only() {
        let mut bench = Bench::bounded(10_000);
        let value = "x".repeat(100);
        let stored = (0..1_000).take_while(|key| bench.send(&format!("SET {key} {value}")) == "+OK|").count();
        assert!((10..100).contains(&stored), "{stored}");
        let refusal = "-OOM command not allowed when used memory > 'maxmemory'.|";
        bench.talk(&[
            ("INCR n", refusal),
            ("GET 0", &format!("$100|{value}|")),
            ("DEL 0 1 2", ":3|"),
            ("SET a b", "+OK|"),
            ("SETRANGE a 400000000 b", refusal),
            ("SETBIT bits 4000000000 1", refusal),
            ("EXISTS bits", ":0|"),
        ]);
        assert!(bench.engine.statistics().bytes_used <= 10_000);
    }

    #[test]
    fn transactions_run_whole_or_not_at_all() {
        Bench::new().talk(&[
            ("EXEC", "-ERR EXEC without MULTI|"),
            ("MULTI", "+OK|"),
            ("MULTI", "-ERR MULTI calls can not be nested|"),
            ("SET k v", "+QUEUED|"),
            ("INCR k", "+QUEUED|"),
            ("GET k", "+QUEUED|"),
            ("EXEC", "*3|+OK|-ERR value is not an integer or out of range|$1|v|"),
            ("MULTI", "+OK|"),
            ("SET k w", "+QUEUED|"),
            ("GET", "-ERR wrong number of arguments for 'get' command|"),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors.|"),
            ("GET k", "$1|v|"),
            ("MULTI", "+OK|"),
            ("DEL k", "+QUEUED|"),
            ("DISCARD", "+OK|"),
            ("EXISTS k", ":1|"),
        ]);
    }

    /// Commands on keys of every kind, `#` standing for a small number.
    const MIXED: &[&str] = &[
        "SET s# value-#",
        "SET s# #",
        "APPEND s# some-more-text",
        "SETRANGE s# # long-enough-to-leave-its-place",
        "INCR s#",
        "SETBIT s# # 1",
        "INCRBYFLOAT s# 0.#",
        "GETDEL s#",
        "SET s# v PX #",
        "HSET h# f# a-value-that-is-longer-than-a-short-text",
        "HSET h# f# #",
        "HDEL h# f#",
        "HINCRBY h# f# #",
        "RPUSH l# # an-item-that-is-longer-than-a-short-text",
        "LPOP l#",
        "RPOP l# #",
        "LTRIM l# # 9",
        "LSET l# # x",
        "LREM l# 1 #",
        "LINSERT l# BEFORE # pivot",
        "LMOVE l# l# LEFT RIGHT",
        "SADD m# #",
        "SADD m# text-# #",
        "SREM m# #",
        "SPOP m#",
        "SMOVE m# m# #",
        "SUNIONSTORE m# m# m#",
        "SDIFFSTORE m# m# m#",
        "ZADD z# # member-#",
        "ZADD z# # a-member-that-is-longer-than-a-short-text-#",
        "ZINCRBY z# # member-#",
        "ZREM z# member-#",
        "ZPOPMIN z# #",
        "ZREMRANGEBYSCORE z# # 9",
        "ZUNIONSTORE z# 2 z# m#",
        "RENAME s# s#",
        "COPY l# l# REPLACE",
        "COPY z# z# REPLACE",
        "PEXPIRE h# #",
        "DEL l# m#",
        "GET h#",
        "LPUSH s# x",
    ];

    #[test]
    fn memory_is_counted_up_and_down_by_the_same_amounts() {
        let mut random = Random::new(99);
        for _ in 0..10 {
            let mut bench = Bench::new();
            for _ in 0..5_000 {
                let pattern = MIXED[random.index(MIXED.len())].split('#').collect::<Vec<_>>();
                let line = pattern[1..]
                    .iter()
                    .fold(pattern[0].to_owned(), |line, part| format!("{line}{}{part}", random.index(12)));
                bench.send(&line);
                bench.wait_ms(random.below(2));
            }
            assert!(bench.engine.statistics().bytes_used > 0);
            for number in 0..12 {
                bench.send(&format!("DEL s{number} h{number} l{number} m{number} z{number}"));
            }
            let statistics = bench.engine.statistics();
            assert_eq!((statistics.keys, statistics.keys_volatile, statistics.bytes_used), (0, 0, 0));
        }
    }

    #[test]
    fn no_kind_of_write_passes_the_bound() {
        let mut random = Random::new(5);
        let mut bench = Bench::bounded(20_000);
        for step in 0..20_000 {
            let pattern = MIXED[step % MIXED.len()].split('#').collect::<Vec<_>>();
            let line = pattern[1..]
                .iter()
                .fold(pattern[0].to_owned(), |line, part| format!("{line}{}{part}", random.index(300)));
            bench.send(&line);
            // One small command and the growth of one buffer are all that may come on top.
            assert!(bench.engine.statistics().bytes_used < 22_000, "{line}");
        }
        assert!(bench.engine.statistics().refused_for_memory > 0);
    }
}
