//! The type of the engine's commands, and the context in which a command runs: the parts of the engine that
//! it uses, its arguments and its reply.

use super::attend::Attend;
use super::directory::Directory;
use super::effort::{Effort, LOOK};
use super::events::{self, Class};
use super::keyspace::Keyspace;
use super::latency::Latencies;
use super::limits::EngineLimits;
use super::numbers;
use super::post::Post;
use super::refusal::Refusal;
use super::reply::Reply;
#[cfg(feature = "scripts")]
use super::scripts::Scripts;
use super::session::{Disposition, Session};
use super::settings::Settings;
use super::slow_log::SlowLog;
use super::stats::Stats;
use super::tracking;
use crate::protocol::{Arguments, Protocol};
use crate::values::time::Now;

/// The result of a command. `Ok` if the command has written its one reply; `Err` is a refusal, whose error
/// text replaces anything that the command has written.
pub(super) type Done = Result<(), Refusal>;

/// The kind of effect that a command has on keys or transactions. The kind decides whether the command is
/// refused when memory is full, and whether MULTI queues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    /// The command changes values but needs no more memory, so it runs even when memory is full.
    Write,
    /// The command may need more memory, so it is refused when memory is full.
    Grow,
    /// The command takes elements that are stored already, and needs little more memory for that (XREADGROUP), so
    /// that it is refused only when values take an eighth more than they may: else nobody could empty a full store.
    Take,
    /// The command opens, ends or leaves a transaction (MULTI, EXEC), so a transaction never queues it.
    Control,
}

impl Effect {
    /// True if memory is too full for a command with this effect: `needed` is the memory that all values
    /// would take with it, and `most` that which they may take, in bytes. Never true for a command that needs
    /// no more memory.
    pub(super) const fn exceeds(self, needed: u64, most: u64) -> bool {
        match self {
            Self::Grow => needed >= most,
            Self::Take => needed >= most.saturating_add(most / 8),
            Self::Read | Self::Write | Self::Control => false,
        }
    }
}

/// A command of the engine: its name in lower case, its arity and effect, and the function that carries it
/// out.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// The exact number of words of a request including the command's name, if positive; -n means at least n
    /// words, as in Redis.
    arity: i8,
    pub(super) effect: Effect,
    pub(super) run: fn(&mut Call<'_>) -> Done,
}

pub(super) const fn command(
    name: &'static str,
    arity: i8,
    effect: Effect,
    run: fn(&mut Call<'_>) -> Done,
) -> Command {
    Command { name, arity, effect, run }
}

impl Command {
    pub(super) fn accepts(&self, arguments: usize) -> bool {
        if self.arity < 0 {
            arguments >= usize::from(self.arity.unsigned_abs())
        } else {
            arguments == usize::from(self.arity.unsigned_abs())
        }
    }
}

/// A command that is running, with every part of the engine that it may use.
pub(super) struct Call<'a> {
    pub(super) keyspace: &'a mut Keyspace,
    pub(super) session: &'a mut Session,
    pub(super) tally: &'a mut Tally,
    pub(super) post: &'a mut Post,
    #[cfg(feature = "scripts")]
    pub(super) scripts: &'a mut Scripts,
    pub(super) directory: &'a Directory<Command>,
    pub(super) limits: &'a EngineLimits,
    pub(super) settings: &'a mut Settings,
    pub(super) arguments: Arguments<'a>,
    pub(super) now: Now,
    pub(super) out: Reply<'a>,
    pub(super) effort: &'a Effort,
    pub(super) disposition: Disposition,
    /// The function that a long-running script calls so that other connections get an answer meanwhile.
    /// `None` where the engine has no other connections to answer.
    pub(super) attend: Option<Attend<'a>>,
    /// True for a command that a script calls. SORT then orders a set even if asked not to, so that a script
    /// has the same result wherever it runs.
    pub(super) is_scripted: bool,
    /// False for a command in a transaction or a script, where a blocking command replies at once that it has
    /// found nothing, and for a blocking call that is carried out again after its wait.
    pub(super) may_wait: bool,
}

/// The destination of the reply of a command that runs within another command (EXEC, a script).
pub(super) enum InnerReply<'a> {
    /// The reply becomes part of the outer command's reply; `reserve` bytes of the outer reply's limit stay
    /// free for the parts that follow.
    Part { reserve: usize },
    /// The reply goes to a buffer of its own.
    #[cfg_attr(not(feature = "scripts"), expect(dead_code, reason = "only scripts look at replies"))]
    Own(&'a mut Vec<u8>),
}

/// The engine's counters and logs for INFO, SLOWLOG and LATENCY, and the connections that CLIENT KILL closes.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The number of calls of each command; the index is the command's position in the directory of commands.
    pub(super) calls: Vec<u64>,
    pub(super) commands: u64,
    pub(super) refused_for_memory: u64,
    pub(super) refused_for_cost: u64,
    pub(super) errors: u64,
    pub(super) started_ms: Option<u64>,
    /// The numbers of connections that CLIENT KILL named and that the service around the engine has not
    /// closed yet.
    pub(super) killed: Vec<u64>,
    pub(super) slow_log: SlowLog,
    pub(super) stats: Stats,
    pub(super) latencies: Latencies,
    /// True if the error that a script is about to reply with is counted already, because a command of the
    /// script raised it.
    pub(super) is_counted: bool,
    /// The values that the counters had at the last CONFIG RESETSTAT. INFO shows the growth since then.
    pub(super) reset: Counters,
}

/// Counters of commands, error replies, expired keys, and look-ups of keys that exist (hits) and that do not
/// (misses), in the embedded engine. They only grow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) commands: u64,
    pub(super) errors: u64,
    pub(super) expired: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Tally {
    /// Counts an error reply, in total and by the error code that `text` begins with.
    pub(super) fn count_error(&mut self, text: &[u8]) {
        self.errors += 1;
        self.stats.count_error(text);
    }

    /// Counts a request that is refused before it is carried out, in total and for its command; `text` is the
    /// error reply.
    pub(super) fn count_rejection(
        &mut self,
        directory: &Directory<Command>,
        arguments: Arguments<'_>,
        text: &[u8],
    ) {
        self.count_error(text);
        if let Some(position) = directory.find(arguments.name()) {
            let slot = self.stats.slot(position, arguments);
            self.stats.reject(slot);
        }
    }

    /// Resets statistics for CONFIG RESETSTAT: INFO then shows commands, errors, expired keys, hits and misses since
    /// this call, and statistics by command and by error code start again. Counts of requests refused for memory or
    /// cost, and of dropped events, stay.
    pub(super) fn reset(&mut self, keyspace: &Keyspace) {
        self.reset = self.counters(keyspace);
        self.stats.reset();
    }

    /// Returns the growth of the counters of commands, errors, expired keys, hits and misses since the last
    /// CONFIG RESETSTAT.
    pub(super) fn since_reset(&self, keyspace: &Keyspace) -> Counters {
        let (now, then) = (self.counters(keyspace), self.reset);
        Counters {
            commands: now.commands - then.commands,
            errors: now.errors - then.errors,
            expired: now.expired - then.expired,
            hits: now.hits - then.hits,
            misses: now.misses - then.misses,
        }
    }

    fn counters(&self, keyspace: &Keyspace) -> Counters {
        let Keyspace { expired, hits, misses, .. } = *keyspace;
        Counters { commands: self.commands, errors: self.errors, expired, hits, misses }
    }
}

impl<'a> Call<'a> {
    pub(super) fn protocol(&self) -> Protocol {
        self.session.protocol
    }

    pub(super) fn count(&self) -> usize {
        self.arguments.len()
    }

    pub(super) fn at(&self, index: usize) -> &'a [u8] {
        self.arguments.at(index)
    }

    pub(super) fn integer_at(&self, index: usize) -> Result<i64, Refusal> {
        numbers::integer(self.at(index)).ok_or(Refusal::NotAnInteger)
    }

    /// True if argument `index` exists and equals `word` in any case of letters; argument 0 is the command's
    /// name. `word` must be in lower case.
    pub(super) fn is(&self, index: usize, word: &str) -> bool {
        self.arguments.get(index).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Returns the arguments from `start` on; argument 0 is the command's name.
    pub(super) fn rest(&self, start: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let arguments = self.arguments;
        (start..arguments.len()).map(move |index| arguments.at(index))
    }

    /// Queues a keyspace event (event `name` of `key` in the selected database), which is published if any
    /// connection subscribes to it. `class` is the group of events by which `notify-keyspace-events` enables
    /// it.
    pub(super) fn announce(&mut self, class: Class, name: &'static str, key: &[u8]) {
        self.keyspace.announce(class, name, key);
    }

    /// Removes a key and queues the event `del`. False if the key did not exist.
    pub(super) fn remove_key(&mut self, key: &[u8]) -> bool {
        let removed = self.keyspace.remove(key);
        if removed {
            self.announce(Class::Generic, "del", key);
        }
        removed
    }

    /// Refuses the command if values would grow by `growth` bytes and less memory than that is left: even a
    /// short request may ask for a large value.
    pub(super) fn afford(&self, growth: usize) -> Done {
        if growth as u64 > self.memory_left() { Err(Refusal::OutOfMemory) } else { Ok(()) }
    }

    /// Refuses a command that takes elements which are stored already ([`Effect::Take`]), if with `growth`
    /// bytes more the values would take an eighth more than they may. A growth of 0 is never refused.
    pub(super) fn afford_taken(&self, growth: usize) -> Done {
        let needed = self.keyspace.used().saturating_add(growth as u64);
        if growth > 0 && Effect::Take.exceeds(needed, self.bytes_max()) {
            return Err(Refusal::OutOfMemory);
        }
        Ok(())
    }

    /// Refuses the command if the `bytes` that it needs for its own work, and frees at its end, are more than a
    /// reply may have and also more than the memory that is left.
    pub(super) fn afford_meanwhile(&self, bytes: usize) -> Done {
        if bytes > self.limits.reply_bytes_max { self.afford(bytes) } else { Ok(()) }
    }

    /// Returns the number of bytes by which keys and values may still grow before they reach the memory
    /// limit.
    pub(super) fn memory_left(&self) -> u64 {
        self.bytes_max().saturating_sub(self.keyspace.used())
    }

    /// Returns the limit on the memory of all keys and values, in bytes. At the limit, writes that need
    /// memory are refused.
    pub(super) fn bytes_max(&self) -> u64 {
        self.settings.bytes_max_within(self.limits)
    }

    pub(super) fn ok(&mut self) -> Done {
        self.out.simple("OK");
        Ok(())
    }

    pub(super) fn integer(&mut self, value: i64) -> Done {
        self.out.integer(value);
        Ok(())
    }

    pub(super) fn number(&mut self, count: usize) -> Done {
        self.integer(count as i64)
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) -> Done {
        self.out.bulk(bytes);
        Ok(())
    }

    pub(super) fn null(&mut self) -> Done {
        self.out.null(self.session.protocol);
        Ok(())
    }

    pub(super) fn empty_array(&mut self) -> Done {
        self.out.array(0);
        Ok(())
    }

    pub(super) fn bulk_or_null(&mut self, bytes: Option<&[u8]>) -> Done {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }
}

impl Call<'_> {
    /// Returns the context for a command that runs within this one (EXEC, a script). `arguments` are the
    /// inner command's words, and `reply` says where its reply goes. Such a command never waits.
    pub(super) fn inner<'b>(&'b mut self, arguments: Arguments<'b>, reply: InnerReply<'b>) -> Call<'b> {
        let out = match reply {
            InnerReply::Part { reserve } => self.out.part(reserve),
            InnerReply::Own(out) => Reply::new(out, self.limits.reply_bytes_max),
        };
        Call {
            keyspace: self.keyspace,
            session: self.session,
            tally: self.tally,
            post: self.post,
            #[cfg(feature = "scripts")]
            scripts: self.scripts,
            directory: self.directory,
            limits: self.limits,
            settings: self.settings,
            arguments,
            now: self.now,
            out,
            effort: self.effort,
            disposition: Disposition::Continue,
            attend: self.attend,
            is_scripted: self.is_scripted,
            may_wait: false,
        }
    }

    /// Carries out the command at `position` of the directory of commands, and counts it. If the command is
    /// refused, the error replaces anything that it has written as its reply.
    pub(super) fn run(&mut self, position: usize) {
        self.tally.calls[position] += 1;
        self.tally.commands += 1;
        self.effort.charge_request(self.count(), self.arguments.frame().len());
        let (slot, began) = (self.tally.stats.slot(position, self.arguments), self.tally.stats.begin());
        let result = (self.directory.at(position).run)(self).and_then(|()| self.out.check());
        let is_counted = std::mem::take(&mut self.tally.is_counted);
        let failed = result.is_err() || self.out.is_error();
        let ms = self.tally.stats.end(slot, began, failed) / 1_000_000;
        if self.settings.sampled_from_ms > 0 && ms >= self.settings.sampled_from_ms {
            self.tally.latencies.add(&self.arguments, self.now.unix_ms / 1000, ms);
        }
        if let Err(refusal) = result {
            self.tally.count_error(refusal.text().as_bytes());
            self.tally.refused_for_memory += u64::from(refusal == Refusal::OutOfMemory);
            let too_dear = matches!(refusal, Refusal::TooMuchWork(_) | Refusal::ReplyTooLarge(_));
            self.tally.refused_for_cost += u64::from(too_dear);
            self.keyspace.interest.withdraw();
            self.out.refuse(&refusal);
        } else if failed && !is_counted {
            self.tally.count_error(self.out.error_text());
        }
        self.keyspace.interest.settle();
        if self.keyspace.events.is_used() {
            events::publish(self);
        }
        tracking::note_reads(self, self.directory.at(position).effect);
        self.effort.charge(self.keyspace.take_removed() * LOOK);
    }
}
