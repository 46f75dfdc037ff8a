//! The log: one line on standard error per event that matters. Nothing is logged per request, and of events
//! that clients can repeat at will only a few lines are written per 10 s; further ones are counted.
//!
//! No line waits for whoever reads standard error. Where that is a pipe or a socket that is full, because
//! its reader is stuck, lines are dropped, and the next line that is written says how many.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::Journal;
use crate::values::Timestamp;
use crate::values::time::Now;

/// Maximum number of bytes of a log line; a longer line is cut. With its prefix and line end, a line stays
/// below the 4,096 bytes (`PIPE_BUF`) that a pipe which can be written to takes at once.
const LINE_BYTES_MAX: usize = 2_000;
/// Maximum number of log lines of one kind within 10 s (`STRETCH`); further ones are counted instead of
/// written.
const LINES_MAX: u32 = 5;
/// The period in which at most `LINES_MAX` log lines of a kind are written. The first line of the kind after
/// the end of a period begins the next one.
const STRETCH: Duration = Duration::from_secs(10);

/// The number of log lines that were dropped since the last one that was written, because standard error
/// could take none.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Writes a line to the log, which is standard error. Does nothing if standard error is closed. If its reader
/// is stuck, the line is dropped and counted, since a thread that waited for the reader would stop serving.
pub fn line(text: &str) {
    write_line(&mut std::io::stderr().lock(), text, &DROPPED);
}

fn write_line(out: &mut (impl Write + AsFd), text: &str, dropped: &AtomicU64) {
    if !can_take_a_line(out) {
        dropped.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let before = match dropped.swap(0, Ordering::Relaxed) {
        0 => String::new(),
        count => format!(" ({count} lines before it were dropped: nobody read standard error)"),
    };
    // One write for all of it: only the first one is sure not to wait.
    let _ = out.write_all(format!("weir: {}{before}\n", shown(text)).as_bytes());
}

/// Makes a panic end the process, also in builds that unwind. The report of a panic is left out if standard
/// error could not take it at once, since no thread waits for the reader of standard error.
pub(super) fn end_at_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if can_take_a_line(&std::io::stderr()) {
            report(panic);
        }
        std::process::abort();
    }));
}

/// True if a line can be written to a file without waiting: a pipe or socket has room for it, or the file is
/// of another kind. True also if the file is closed or broken, where a write fails at once.
fn can_take_a_line(out: &impl AsFd) -> bool {
    let mut handles = [PollFd::new(out, PollFlags::OUT)];
    !matches!(poll(&mut handles, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// The kind of an event that is logged; lines are limited per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A signal (SIGHUP) ordered to read files again, but no flag names a file that could be read again.
    Reload,
    /// Quotas were put in force: those of the quota file, or posted ones.
    Quotas,
    /// Quotas or an admin token that were read were refused, because they are invalid or could not be read;
    /// those in force stay.
    Refused,
    /// The admin token (without it the admin port accepts no change of quotas) was read from its file again.
    Token,
    /// The map of the cluster (which node owns which slot) changed.
    Cluster,
    /// A store's host name resolves to another address.
    Moved,
    /// A core treats a backend in another way: its level of load shedding changed (which requests are refused
    /// or cost more), or the backend was ejected (taken out of use), or is used again.
    Level,
    /// The store of a fleet (weir processes that share quotas, by counters in that store), or a host of it,
    /// appeared or disappeared.
    Fleet,
    /// A key became hot, or stopped being hot.
    HotKey,
    /// Another process takes over from this one, or this one from another.
    Takeover,
    /// TLS certificates were read (or could not be), or TLS handshakes failed or were given up.
    Tls,
    /// Something failed because resources of the process or machine, such as open files, are used up.
    Want,
    /// The process starts, drains or ends.
    Life,
}

const KINDS: usize = Kind::Life as usize + 1;

impl Kind {
    /// Returns the word under which the admin port's journal lists events of this kind.
    const fn about(self) -> &'static str {
        match self {
            Self::Reload | Self::Quotas | Self::Refused => "quotas",
            Self::Token => "token",
            Self::Cluster => "cluster",
            Self::Level | Self::Moved => "store",
            Self::Fleet => "fleet",
            Self::HotKey => "hot key",
            Self::Takeover => "takeover",
            Self::Tls => "TLS",
            Self::Want | Self::Life => "process",
        }
    }
}

/// The words that say in a log line of used-up resources that a client could not be accepted.
pub(super) const NOT_ACCEPTED: &str = "a client could not be accepted";
/// The least time between two log lines of one thread about resources that are used up.
const COMPLAINTS_APART: Duration = Duration::from_secs(1);

/// Limiter of the log lines of one thread which say that something failed because resources of the process or
/// machine, such as open files, are used up: at most one a second.
#[derive(Debug, Default)]
pub(super) struct WantComplaints {
    /// The time of the last log line about resources that are used up; none before the first.
    last: Option<Timestamp>,
}

impl WantComplaints {
    /// Returns a line for the log (of the kind [`Kind::Want`]) which says that `what` failed with this error.
    /// `None` if the error is about a peer rather than about resources, or the last such line was less than a
    /// second ago.
    pub fn complain(&mut self, what: &str, error: &io::Error, now: Timestamp) -> Option<String> {
        let is_want =
            matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS));
        if !is_want || self.last.is_some_and(|last| now.since(last) < COMPLAINTS_APART) {
            return None;
        }
        self.last = Some(now);
        Some(format!(
            "{what}: {error}; the limit of open files (LimitNOFILE= in systemd, `ulimit -n`) or \
             --max-clients may be the cause"
        ))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    started: Option<Timestamp>,
    lines: u32,
    left_out: u64,
}

/// The limiter of log lines: the number of lines of each kind in its current period of 10 s, and the number of
/// those that were left out.
#[derive(Debug, Default)]
pub(super) struct Log([Stretch; KINDS]);

/// Returns the text of a log line, made fit for one line; if lines of its kind were left out before it, the
/// text says how many (`left_out`).
fn with_left_out(text: &str, left_out: u64) -> String {
    match left_out {
        0 => shown(text),
        count => shown(&format!("{text} ({count} similar lines before it were suppressed)")),
    }
}

impl Log {
    /// Writes a line to standard error and to the admin port's journal (its copy of the last log lines),
    /// unless 5 lines of its kind were written within 10 s; then the line is counted, and the next one says
    /// how many were left out.
    pub fn say(&mut self, kind: Kind, text: &str, journal: &mut Journal, now: Now) {
        if let Some(left_out) = self.admit(kind, now.monotonic) {
            let text = with_left_out(text, left_out);
            line(&text);
            journal.write(kind.about(), &text, now.unix_ms);
        }
    }

    /// Writes a line to the admin port's journal (its copy of the last log lines) only, limited as by
    /// [`Log::say`], because it may name keys, which only readers of the admin port may see.
    pub fn note(&mut self, kind: Kind, text: &str, journal: &mut Journal, now: Now) {
        if let Some(left_out) = self.admit(kind, now.monotonic) {
            journal.write(kind.about(), &with_left_out(text, left_out), now.unix_ms);
        }
    }

    /// Decides whether a log line of a kind may be written now. If so, returns how many were left out before
    /// it. None if it may not be written, and is counted as left out.
    fn admit(&mut self, kind: Kind, now: Timestamp) -> Option<u64> {
        let stretch = &mut self.0[kind as usize];
        if stretch.started.is_none_or(|started| now.since(started) >= STRETCH) {
            stretch.started = Some(now);
            stretch.lines = 0;
        }
        if stretch.lines == LINES_MAX {
            stretch.left_out += 1;
            return None;
        }
        stretch.lines += 1;
        Some(std::mem::take(&mut stretch.left_out))
    }
}

/// Makes a text fit for one log line: escapes control characters, which could end the line or move a
/// terminal's cursor, and cuts it at `LINE_BYTES_MAX`.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(LINE_BYTES_MAX));
    for character in text.chars() {
        let bytes =
            if character.is_control() { character.escape_default().len() } else { character.len_utf8() };
        if shown.len() + bytes > LINE_BYTES_MAX {
            shown.push_str("...");
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_flood_of_one_kind_is_counted_and_hides_no_other() {
        let mut log = Log::default();
        let at = Timestamp::from_millis;
        let told = (0..1_000).filter(|ms| log.admit(Kind::Reload, at(*ms)).is_some()).count();
        assert_eq!(told, LINES_MAX as usize);
        assert_eq!(log.admit(Kind::Refused, at(1_000)), Some(0));
        assert_eq!(log.admit(Kind::Reload, at(10_000)), Some(1_000 - u64::from(LINES_MAX)));
        assert_eq!(log.admit(Kind::Reload, at(10_001)), Some(0));
    }

    #[test]
    fn resources_that_are_used_up_are_complained_of_once_a_second_and_peers_never() {
        let mut complaints = WantComplaints::default();
        let failed = |number| io::Error::from_raw_os_error(number);
        let mut complain =
            |number, ms| complaints.complain("it", &failed(number), Timestamp::from_millis(ms));
        assert_eq!(complain(libc::ECONNREFUSED, 0), None);
        assert!(complain(libc::EMFILE, 0).is_some_and(|line| line.starts_with("it: Too many open files")));
        assert_eq!(complain(libc::ENOMEM, 999), None);
        assert!(complain(libc::ENOMEM, 1_000).is_some());
    }

    #[test]
    fn a_line_stays_one_line_of_bounded_length() {
        assert_eq!(shown("a\nb\r\u{1b}[2J\u{7f}"), "a\\nb\\r\\u{1b}[2J\\u{7f}");
        assert_eq!(shown("Grüße"), "Grüße");
        for long in ["x", "ß", "\u{1}", "\u{10ffff}"] {
            let length = shown(&long.repeat(100_000)).len();
            assert!((LINE_BYTES_MAX - 10..=LINE_BYTES_MAX + 3).contains(&length), "{long:?}: {length}");
        }
    }

    #[test]
    fn a_reader_that_is_stuck_costs_lines_and_no_time() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let dropped = AtomicU64::new(0);
        let mut written = 0_usize;
        // The pipe blocks whoever writes to it when it is full: this ends because lines are dropped then.
        while dropped.load(Ordering::Relaxed) < 3 {
            write_line(&mut writer, &"x".repeat(1_000), &dropped);
            written += 1;
        }
        let mut room = vec![0; written * 2_000];
        let held = reader.read(&mut room).expect("the lines that were written");
        assert!(held > 0 && room[..held].starts_with(b"weir: xxx"));
        write_line(&mut writer, "goes on", &dropped);
        write_line(&mut writer, "as before", &dropped);
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("all is text");
        let told =
            "weir: goes on (3 lines before it were dropped: nobody read standard error)\nweir: as before\n";
        assert!(rest.ends_with(told), "{rest}");
    }
}
