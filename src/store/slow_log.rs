//! SLOWLOG: the latest requests that took a long time.
//!
//! The engine has no clock of its own, so it reads its owner's clock. With a `slowlog-log-slower-than` below
//! 1 ms, it reads the clock around each request. Otherwise it reads the clock only after requests of much
//! effort, whose time counts from the start of the turn or from the end of the last such request, and may
//! include light requests of the same turn.

use std::collections::VecDeque;
use std::rc::Rc;

use super::call::{Call, Command, Done, Effect, command};
use super::connection::ADDRESS;
use super::effort::LOOK;
use super::refusal::Refusal;
use super::session::Session;
use crate::protocol::Arguments;
use crate::values::Timestamp;
use crate::values::limits::ENGINE_SLOW_REQUESTS_MAX;
use crate::values::time::Now;

pub(super) const COMMANDS: &[Command] = &[command("slowlog", -2, Effect::Read, slowlog)];

/// A function that returns the present time of a monotonic clock.
pub(super) type Clock = Rc<dyn Fn() -> Timestamp>;

/// The value of `slowlog-log-slower-than` (in microseconds) below which the clock is read before and after
/// each request.
const SHORT_US: i64 = 1_000;
/// The units of effort (steps of work) from which on a request may take 1 ms or longer, and so is timed.
const MUCH_EFFORT: u64 = 2_000;
/// The most words of a request that an entry of the slow log keeps, as in Redis. A longer request keeps one
/// word less, and a note of how many were left out.
const WORDS_MAX: usize = 32;
const WORD_BYTES_MAX: usize = 128;
/// The number of entries that SLOWLOG GET shows if it names no number.
const SHOWN: i64 = 10;
/// Commands whose requests contain passwords, so that they are never logged.
const SECRET: [&str; 2] = ["auth", "hello"];

/// A logged request: its number, the time when it ran (seconds since 1970), its duration and its words.
#[derive(Debug)]
struct Entry {
    id: u64,
    unix_s: u64,
    micros: u64,
    words: Vec<Box<[u8]>>,
    /// The name (CLIENT SETNAME) of the connection that sent the logged request.
    name: Box<[u8]>,
}

/// The log of slow requests, and its settings.
#[derive(Debug)]
pub(super) struct SlowLog {
    /// The least duration of a logged request in microseconds; a negative value turns the log off.
    slower_than_us: i64,
    entries_max: usize,
    /// The logged requests, the newest first.
    entries: VecDeque<Entry>,
    next_id: u64,
    /// The time from which the duration of the next timed request counts: the end of the last timed request,
    /// or the beginning of the present turn (pass of the service's loop), whichever is later. If each request
    /// is timed, the time at which the present one began.
    ended: Timestamp,
}

impl Default for SlowLog {
    fn default() -> Self {
        let entries = VecDeque::new();
        Self { slower_than_us: 10_000, entries_max: 128, entries, next_id: 0, ended: Timestamp::ZERO }
    }
}

impl SlowLog {
    /// Returns the settings `slowlog-log-slower-than` (in microseconds) and `slowlog-max-len`.
    pub(super) fn settings(&self) -> (i64, usize) {
        (self.slower_than_us, self.entries_max)
    }

    pub(super) fn set_slower_than(&mut self, micros: i64) {
        self.slower_than_us = micros;
    }

    /// Sets the maximum number of entries of the slow log, and drops the oldest ones beyond it.
    pub(super) fn set_entries_max(&mut self, entries: usize) {
        self.entries_max = entries.min(ENGINE_SLOW_REQUESTS_MAX);
        self.entries.truncate(self.entries_max);
    }

    /// Begins the timing of a request in the turn (pass of the service's loop) that began at `now`. Reads the
    /// `clock`, if there is one, if `slowlog-log-slower-than` is below 1 ms, so that each request is timed.
    pub(super) fn begin(&mut self, clock: Option<&Clock>, now: Now) {
        self.ended = self.ended.max(now.monotonic);
        if let Some(clock) = clock.filter(|_| (0..SHORT_US).contains(&self.slower_than_us)) {
            self.ended = clock();
        }
    }

    /// Ends the timing of a request that took `effort` units of effort (steps of work), and logs it if its
    /// duration reaches the threshold. Light requests are not timed if the threshold is 1 ms or longer.
    /// Nothing is logged without a `clock`, with a negative threshold, or of `AUTH` and `HELLO`.
    pub(super) fn end(
        &mut self,
        clock: Option<&Clock>,
        now: Now,
        effort: u64,
        arguments: Arguments<'_>,
        session: &Session,
    ) {
        let Ok(least) = u64::try_from(self.slower_than_us) else { return };
        let Some(clock) = clock.filter(|_| self.slower_than_us < SHORT_US || effort >= MUCH_EFFORT) else {
            return;
        };
        let ended = clock();
        let micros = ended.since(self.ended).as_micros() as u64;
        self.ended = ended;
        let is_secret = SECRET.iter().any(|name| arguments.name().eq_ignore_ascii_case(name.as_bytes()));
        if micros < least || is_secret || self.entries_max == 0 {
            return;
        }
        self.entries.truncate(self.entries_max - 1);
        let id = self.next_id;
        self.next_id += 1;
        let name = session.name.as_slice().into();
        self.entries.push_front(Entry {
            id,
            unix_s: now.unix_ms / 1000,
            micros,
            words: kept(arguments),
            name,
        });
    }
}

/// Returns the words that the log keeps of a request: at most 32 words, of at most 128 bytes each, with notes
/// of how many are left out.
fn kept(arguments: Arguments<'_>) -> Vec<Box<[u8]>> {
    let count = arguments.len();
    let shown = if count > WORDS_MAX { WORDS_MAX - 1 } else { count };
    let mut words: Vec<Box<[u8]>> = arguments.iter().take(shown).map(kept_word).collect();
    if shown < count {
        words.push(format!("... ({} more arguments)", count - shown).into_bytes().into());
    }
    words
}

fn kept_word(word: &[u8]) -> Box<[u8]> {
    let Some((shown, left)) = word.split_at_checked(WORD_BYTES_MAX).filter(|(_, left)| !left.is_empty())
    else {
        return word.into();
    };
    [shown, format!("... ({} more bytes)", left.len()).as_bytes()].concat().into()
}

fn slowlog(call: &mut Call<'_>) -> Done {
    if call.is(1, "get") {
        return get(call);
    }
    for (name, run) in [("len", len as fn(&mut Call<'_>) -> Done), ("reset", reset)] {
        if call.is(1, name) && call.count() == 2 {
            return run(call);
        }
        if call.is(1, name) {
            return Err(Refusal::Quoting(format!(
                "ERR wrong number of arguments for 'slowlog|{name}' command"
            )));
        }
    }
    Err(call.unknown_subcommand())
}

fn get(call: &mut Call<'_>) -> Done {
    let count = match call.count() {
        2 => SHOWN,
        3 => {
            let count = call.integer_at(2).ok().filter(|count| *count >= -1);
            count.ok_or(Refusal::Words("ERR count should be greater than or equal to -1"))?
        }
        _ => return Err(call.wrong_subcommand()),
    };
    let entries = &call.tally.slow_log.entries;
    let shown = usize::try_from(count).unwrap_or(usize::MAX).min(entries.len());
    call.effort.charge((shown * WORDS_MAX) as u64 * LOOK);
    call.out.array(shown);
    for entry in entries.iter().take(shown) {
        call.out.array(6);
        call.out.integer(entry.id as i64);
        call.out.integer(entry.unix_s as i64);
        call.out.integer(entry.micros as i64);
        call.out.array(entry.words.len());
        entry.words.iter().for_each(|word| call.out.bulk(word));
        call.out.bulk(ADDRESS.as_bytes());
        call.out.bulk(&entry.name);
    }
    Ok(())
}

fn len(call: &mut Call<'_>) -> Done {
    call.number(call.tally.slow_log.entries.len())
}

fn reset(call: &mut Call<'_>) -> Done {
    call.tally.slow_log.entries.clear();
    call.ok()
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn slow_requests_are_kept_shortened_and_bounded() {
        let mut bench = Bench::new();
        bench.engine = bench.engine.with_clock({
            let time = std::cell::Cell::new(0);
            move || {
                time.set(time.get() + 5_000);
                crate::values::Timestamp::from_nanos(1_000_000_000 + time.get())
            }
        });
        bench.talk(&[
            ("SET a b", "+OK|"),
            ("SLOWLOG LEN", ":0|"),
            ("CONFIG SET slowlog-log-slower-than 5 slowlog-max-len 3", "+OK|"),
            ("CLIENT SETNAME me", "+OK|"),
            ("AUTH default secret", "+OK|"),
            ("SET a c", "+OK|"),
            ("SLOWLOG GET 1", "*1|*6|:2|:1700000000|:10|*3|$3|SET|$1|a|$1|c|$11|127.0.0.1:0|$2|me|"),
        ]);
        let long = format!("MSET {} 1{}", "k".repeat(200), " k 1".repeat(30));
        bench.send(&long);
        let shown = bench.send("SLOWLOG GET 1");
        let word = format!("$147|{}... (72 more bytes)|", "k".repeat(128));
        assert!(shown.contains(&word) && shown.contains("... (32 more arguments)"), "{shown}");
        bench.talk(&[
            ("SLOWLOG LEN", ":3|"),
            ("SLOWLOG RESET", "+OK|"),
            ("CONFIG SET slowlog-log-slower-than -1", "+OK|"),
            ("SLOWLOG RESET", "+OK|"),
            ("SLOWLOG GET -1", "*0|"),
            (
                "CONFIG SET slowlog-max-len 5000",
                "-ERR CONFIG SET failed (possibly related to argument 'slowlog-max-len') - argument must be between 0 \
                 and 1024 inclusive|",
            ),
            ("CONFIG GET slowlog*", "*4|$23|slowlog-log-slower-than|$2|-1|$15|slowlog-max-len|$1|3|"),
        ]);
    }
}
