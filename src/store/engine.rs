//! The engine of the embedded store: takes one request of one connection, carries it out, and appends the
//! reply.

use super::attend::Attend;
use super::call::{Call, Command, Effect, Tally};
use super::commands;
use super::directory::Directory;
use super::effort::Effort;
use super::keyspace::{Keyspace, Swept};
use super::limits::EngineLimits;
use super::post::{Delivery, Post};
use super::pubsub;
use super::refusal::{self, Refusal};
use super::reply::Reply;
#[cfg(feature = "scripts")]
use super::scripts::{RunTime, Scripts};
use super::session::{Disposition, Session};
use super::settings::Settings;
use super::slow_log::Clock;
use super::stats::{Slot, Stats};
use crate::protocol::command::{self, Flags};
use crate::protocol::{Arguments, Protocol, encode};
use crate::values::Timestamp;
use crate::values::limits::ENGINE_DATABASES;
use crate::values::time::Now;

/// The estimated memory overhead of one word of a request in bytes, besides the word's own bytes. The
/// estimate of a request's memory adds it for each word after the first four, because many small elements
/// take more memory than their bytes.
const ARGUMENT_BYTES: usize = 64;
/// The number of leading words of a request (command name included) for which the estimate of its memory adds
/// no overhead per word.
const ARGUMENTS_FREE: usize = 4;

/// Statistics of an embedded engine for metrics. Counters of events start at 0 with the engine and only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStatistics {
    /// The number of keys in all databases, including expired keys that have not been removed yet.
    pub keys: usize,
    /// The number of keys in all databases that have a lifetime (EXPIRE).
    pub keys_volatile: usize,
    /// For each database, by its number: the number of its keys, and the number of its keys that have a
    /// lifetime.
    pub databases: [(usize, usize); ENGINE_DATABASES as usize],
    /// The approximate memory of all keys and values, in bytes.
    pub bytes_used: u64,
    /// Number of commands refused because with them memory use might have passed the limit.
    pub refused_for_memory: u64,
    /// Number of commands refused because they would exceed the effort limit or the limit on a reply's size.
    pub refused_for_cost: u64,
    /// Number of commands that the engine has carried out, those in transactions and scripts included.
    pub commands: u64,
    /// Number of error replies, those to commands in transactions and scripts included. An error that a
    /// script passes on counts once.
    pub errors: u64,
    /// Number of keys removed because their lifetime had ended.
    pub expired: u64,
    /// Number of reads that found their key (`keyspace_hits` of INFO).
    pub hits: u64,
    /// Number of reads that did not find their key (`keyspace_misses` of INFO).
    pub misses: u64,
}

/// A single-threaded in-memory store that speaks Redis's commands. Time and the random seed are arguments, so
/// that equal calls give equal replies.
pub struct Engine {
    pub(super) keyspace: Keyspace,
    pub(super) directory: Directory<Command>,
    pub(super) limits: EngineLimits,
    pub(super) settings: Settings,
    pub(super) tally: Tally,
    pub(super) post: Post,
    #[cfg(feature = "scripts")]
    pub(super) scripts: Scripts,
    /// The clock that bounds the run time of scripts and measures the time of commands. `None` if the engine
    /// was given no clock.
    clock: Option<Clock>,
    /// The units of effort (steps of work) that the last request took.
    effort: u64,
}

impl Engine {
    /// Makes an empty store. `seed` determines the order of hash tables and every random choice; `limits`
    /// bound its memory and the reply and effort of each request.
    pub fn new(limits: EngineLimits, seed: u64) -> Self {
        let directory = commands::directory();
        let calls = vec![0; directory.len()];
        let tally = Tally { calls, stats: Stats::new(&directory), ..Tally::default() };
        let keyspace = Keyspace::new(seed);
        Self {
            keyspace,
            directory,
            limits,
            settings: Settings::default(),
            tally,
            post: Post::default(),
            #[cfg(feature = "scripts")]
            scripts: Scripts::default(),
            clock: None,
            effort: 0,
        }
    }

    /// Gives the engine a clock for two purposes alone: to end scripts that run for too long although they
    /// take few steps, and to measure the time of commands. Expiry uses the `now` that each call gets instead.
    /// Returns the engine.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Timestamp + 'static) -> Self {
        let clock: Clock = std::rc::Rc::new(clock);
        self.tally.stats.set_clock(&clock);
        #[cfg(feature = "scripts")]
        {
            self.scripts.run_time = std::rc::Rc::new(RunTime::new(Some(std::rc::Rc::clone(&clock))));
        }
        self.clock = Some(clock);
        self
    }

    /// Carries out one request of one connection, and appends its reply to `out` in the session's protocol
    /// version. SUBSCRIBE appends one reply per channel, and a blocking command that waits appends nothing
    /// yet. Messages that the connection published to itself stand before the reply. Returns whether the
    /// connection goes on, is to be closed, or waits.
    pub fn execute(
        &mut self,
        session: &mut Session,
        arguments: Arguments<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Disposition {
        self.execute_attended(session, arguments, now, out, None)
    }

    /// Carries out one request as [`Engine::execute`] does. If the request runs a script for longer than the
    /// setting `busy-reply-threshold`, the script calls `attend` about every millisecond, so that other
    /// connections get an answer.
    pub(super) fn execute_attended(
        &mut self,
        session: &mut Session,
        arguments: Arguments<'_>,
        now: Now,
        out: &mut Vec<u8>,
        attend: Option<Attend<'_>>,
    ) -> Disposition {
        let effort = Effort::new(self.limits.effort_max);
        let before = out.len();
        self.tally.slow_log.begin(self.clock.as_ref(), now);
        self.tally.stats.begin_request(now.monotonic);
        self.keyspace.interest.tracking.set_actor(Some(session.id));
        let disposition = self.execute_within(&effort, session, arguments, now, out, attend);
        if !self.post.own.is_empty() {
            let inserted = self.post.own.len();
            out.append(&mut self.post.own);
            out[before..].rotate_right(inserted);
        }
        if self.keyspace.interest.waits.has_ready() {
            self.serve_waiting(&effort, now);
        }
        if session.tracks
            && session.transaction.is_none()
            && !arguments.name().eq_ignore_ascii_case(b"client")
        {
            self.keyspace.interest.tracking.end_caching(session.id);
        }
        self.deliver_changes();
        effort.charge_bytes(out.len() - before);
        self.effort = effort.spent();
        self.tally.slow_log.end(self.clock.as_ref(), now, self.effort, arguments, session);
        disposition
    }

    /// Publishes the keyspace events that are still queued after the present command, if any, such as those
    /// of keys that expired. No request is charged for that.
    fn publish_events(&mut self) {
        self.keyspace.events.publish(&mut self.post, None, self.limits.effort_max);
    }

    /// Publishes the keyspace events that are still queued, and queues the invalidation messages about
    /// changed keys (CLIENT TRACKING) for their connections. Also keeps the number of tracked keys within its
    /// limit.
    fn deliver_changes(&mut self) {
        if self.keyspace.events.is_pending() {
            self.publish_events();
        }
        let tracking = &mut self.keyspace.interest.tracking;
        tracking.set_actor(None);
        tracking.limit(self.settings.tracked_keys_max);
        for message in tracking.take_messages() {
            self.post.deliver(message);
        }
    }

    /// Returns the units of effort (steps of work) that the last request took. Reading one element of a list
    /// takes one unit.
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
        attend: Option<Attend<'_>>,
    ) -> Disposition {
        self.keyspace.set_now(now.unix_ms);
        self.keyspace.select(session.database);
        self.post.begin();
        #[cfg(feature = "scripts")]
        self.scripts.run_time.begin_request();
        self.keyspace.events.begin(self.post.channels.clients());
        self.tally.started_ms.get_or_insert(now.unix_ms);
        let position = match self.admit(session, arguments) {
            Ok(position) => position,
            Err(refusal) => {
                effort.charge_request(arguments.len(), arguments.frame().len());
                self.tally.count_rejection(&self.directory, arguments, refusal.text().as_bytes());
                if arguments.name().eq_ignore_ascii_case(b"exec") {
                    session.transaction = None;
                    self.end_watches(session);
                    let text = refusal.text();
                    let reason = text.strip_prefix("ERR ").unwrap_or(&text);
                    encode::error(out, &format!("EXECABORT Transaction discarded because of: {reason}"));
                    return Disposition::Continue;
                }
                if let Some(transaction) = &mut session.transaction {
                    transaction.spoiled = true;
                }
                encode::error_bytes(out, &refusal.bytes());
                return Disposition::Continue;
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
            return Disposition::Continue;
        }
        let mut call = Call {
            keyspace: &mut self.keyspace,
            session,
            tally: &mut self.tally,
            post: &mut self.post,
            #[cfg(feature = "scripts")]
            scripts: &mut self.scripts,
            directory: &self.directory,
            limits: &self.limits,
            settings: &mut self.settings,
            arguments,
            now,
            out: Reply::new(out, self.limits.reply_bytes_max),
            effort,
            disposition: Disposition::Continue,
            attend,
            is_scripted: false,
            may_wait: true,
        };
        call.run(position);
        call.disposition
    }

    /// Returns the next bytes to send to a connection besides the replies that [`Engine::execute`] has
    /// appended: the reply to a blocking call that has waited, or a message. `None` if there are no more. The
    /// owner of the connections calls this after each request, and after [`Engine::expire_waits`] and
    /// [`Engine::expire_some`].
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.post.next()
    }

    /// Ends all watches (WATCH) of a connection.
    pub(super) fn end_watches(&mut self, session: &mut Session) {
        session.watches = false;
        self.keyspace.interest.watches.end(session.id);
    }

    /// Removes everything that the engine keeps for a closed connection: its wait, watches, tracking and
    /// subscriptions.
    pub fn forget(&mut self, session: &Session) {
        self.keyspace.interest.forget(session.id);
        self.keyspace.interest.tracking.tidy();
        if session.subscribed {
            self.post.channels.forget(session.id);
        }
    }

    /// True if a key of database 0 exists and has not expired. Selects this database, and sets the time to
    /// `now`.
    pub fn holds(&mut self, key: &[u8], now: Now) -> bool {
        self.keyspace.set_now(now.unix_ms);
        self.keyspace.select(0);
        self.keyspace.peek(key).is_some()
    }

    /// Returns the number of a connection that CLIENT KILL named; `None` if there are no more. The owner of
    /// the connections calls this after each request, and drops the connection with all its unanswered
    /// requests.
    pub fn poll_killed(&mut self) -> Option<u64> {
        self.tally.killed.pop()
    }

    /// Removes expired keys and hash fields, visiting at most about `budget` of them, and returns how many it
    /// visited and removed. The owner of the engine calls this ten times a second with a budget of a few
    /// hundred, and again at once while more than a quarter of the visited ones turn out to be expired.
    pub fn expire_some(&mut self, now: Now, budget: usize) -> Swept {
        self.keyspace.set_now(now.unix_ms);
        self.post.begin();
        self.keyspace.events.begin(self.post.channels.clients());
        let swept = self.keyspace.sweep(budget);
        // The budget bounds this work already, so that no request pays for it.
        self.keyspace.take_removed();
        self.keyspace.interest.settle();
        if self.keyspace.interest.waits.has_ready() {
            self.serve_waiting(&Effort::new(self.limits.effort_max), now);
        }
        self.deliver_changes();
        swept
    }

    /// True if any key, or any field of a hash, has an expiry.
    pub(super) fn has_expiries(&self) -> bool {
        self.keyspace.has_expiries()
    }

    /// Returns the statistics of the engine at this moment.
    pub fn statistics(&self) -> EngineStatistics {
        let (keys, keys_volatile) = self.keyspace.totals();
        let mut databases = [(0, 0); ENGINE_DATABASES as usize];
        for (number, keys, volatile) in self.keyspace.filled() {
            databases[number] = (keys, volatile);
        }
        EngineStatistics {
            keys,
            keys_volatile,
            databases,
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

    /// Returns the number of calls of each command, by the command's name, without commands that were never
    /// called.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.directory.names().zip(self.tally.calls.iter().copied()).filter(|(_, calls)| *calls > 0)
    }

    fn admit(&mut self, session: &Session, arguments: Arguments<'_>) -> Result<usize, Refusal> {
        let position = self.directory.find(arguments.name()).ok_or_else(|| refusal::unknown(arguments))?;
        let command = self.directory.at(position);
        if !command.accepts(arguments.len()) {
            return Err(Refusal::WrongArity(command.name));
        }
        if session.transaction.is_some() {
            match self.tally.stats.slot(position, arguments) {
                Slot::Unknown => return Err(refusal::unknown_subcommand(arguments)),
                Slot::Misused(name) => return Err(Refusal::WrongArity(name)),
                Slot::Position(_) | Slot::Named(_) => {}
            }
        }
        let needed = self.keyspace.used().saturating_add(memory_needed(arguments));
        if command.effect.exceeds(needed, self.settings.bytes_max_within(&self.limits)) {
            self.tally.refused_for_memory += 1;
            return Err(Refusal::OutOfMemory);
        }
        if self.settings.lacks_replicas()
            && command::recognise(&arguments).is_ok_and(|known| known.flags.contains(Flags::WRITE))
        {
            return Err(Refusal::NoReplicas);
        }
        let is_modal = session.subscribed && session.protocol == Protocol::Resp2;
        if is_modal && !pubsub::FOR_SUBSCRIBERS.contains(&command.name) {
            return Err(pubsub::refusal_to_subscriber(command.name, arguments.get(1)));
        }
        Ok(position)
    }
}

/// Estimates the bytes by which a request may grow the stored values: the bytes of the request, and 64 bytes
/// for each of its words after the first four.
pub(super) fn memory_needed(arguments: Arguments<'_>) -> u64 {
    let places = arguments.len().saturating_sub(ARGUMENTS_FREE) * ARGUMENT_BYTES;
    (arguments.frame().len() + places) as u64
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;
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
    fn unknown_words_are_quoted_byte_for_byte() {
        let mut bench = Bench::new();
        let told = bench.send_bytes(&[b"\xffFOO", b"\xe9"]);
        assert_eq!(told, b"-ERR unknown command '\xffFOO', with args beginning with: '\xe9' \r\n");
        let told = bench.send_bytes(&[b"OBJECT", b"\xff", b"k"]);
        assert_eq!(told, b"-ERR unknown subcommand '\xff'. Try OBJECT HELP.\r\n");
    }

    #[test]
    fn writes_are_refused_if_they_need_replicas() {
        let refusal = "-NOREPLICAS Not enough good replicas to write.|";
        let mut bench = Bench::new();
        bench.talk(&[
            ("SET k v", "+OK|"),
            ("CONFIG SET min-replicas-to-write 1", "+OK|"),
            ("SET k w", refusal),
            ("DEL k", refusal),
            ("GET k", "$1|v|"),
            ("PUBLISH c m", ":0|"),
            ("MULTI", "+OK|"),
            ("INCR k", refusal),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors.|"),
        ]);
        #[cfg(feature = "scripts")]
        {
            bench.talk(&[("EVAL return(redis.call('get','k')) 0", "$1|v|")]);
            let reply = bench.send("EVAL return(redis.call('set','k','w')) 0");
            assert!(reply.starts_with("-NOREPLICAS Not enough good replicas to write. script:"), "{reply}");
            let declared = bench.send_bytes(&[b"EVAL", b"#!lua\nreturn redis.call('get','k')", b"0"]);
            assert_eq!(String::from_utf8_lossy(&declared).replace("\r\n", "|"), refusal);
        }
        bench.talk(&[("CONFIG SET min-replicas-max-lag 0", "+OK|"), ("SET k w", "+OK|")]);
    }

    #[test]
    fn an_exec_that_is_refused_ends_the_watches() {
        let mut bench = Bench::new();
        let refusal =
            "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command|";
        bench.talk(&[("WATCH k", "+OK|"), ("MULTI", "+OK|"), ("EXEC now", refusal)]);
        assert!(!bench.session.watches && bench.engine.keyspace.interest.watches.is_empty());
        bench.talk(&[("SET k v", "+OK|"), ("MULTI", "+OK|"), ("PING", "+QUEUED|"), ("EXEC", "*1|+PONG|")]);
    }

    #[test]
    fn full_memory_refuses_growth_only() {
        let mut bench = Bench::bounded(10_000);
        let value = "x".repeat(100);
        let stored = (0..1_000).take_while(|key| bench.send(&format!("SET {key} {value}")) == "+OK|").count();
        assert!((10..100).contains(&stored), "{stored}");
        let small = (0..100).take_while(|key| bench.send(&format!("INCR n{key}")) == ":1|").count();
        let refusal = "-OOM command not allowed when used memory > 'maxmemory'.|";
        bench.talk(&[
            (&format!("INCR n{small}"), refusal),
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

    /// Command lines on keys of every type; the test puts a small number in the place of each `#`.
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
            // Memory may exceed its limit by one small command and by the growth of one buffer.
            assert!(bench.engine.statistics().bytes_used < 22_000, "{line}");
        }
        assert!(bench.engine.statistics().refused_for_memory > 0);
    }
}
