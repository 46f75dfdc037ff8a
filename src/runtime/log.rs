//! What people read: one line on standard error per event that matters. Nothing on the request path is logged, and whatever others can
//! make happen again and again is told a few times, and then how often it happened.

use std::io::Write as _;
use std::time::Duration;

use crate::control::Journal;
use crate::values::Timestamp;
use crate::values::time::Now;

/// A line is cut behind so many characters: a path or an error may be longer.
const LINE_CHARS_MAX: usize = 2_000;
/// Lines of one kind within a stretch of time; more are counted.
const LINES_MAX: u32 = 5;
const STRETCH: Duration = Duration::from_secs(10);

/// Writes a line. A standard error that is closed is no reason to stop.
pub(super) fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "weir: {}", shown(text));
}

/// What others can make happen as often as they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Told to reload.
    Reload,
    /// Quotas were put in force.
    Quotas,
    /// Quotas, or a token, were refused.
    Refused,
    /// A token was read.
    Token,
    /// There is another map of the cluster.
    Cluster,
    /// The name of a store leads elsewhere.
    Moved,
    /// A core holds back more, or less, of what matters little.
    Level,
    /// The fleet's store came or went, or hosts did.
    Fleet,
    /// A key became hot, or is hot no more.
    HotKey,
    /// Another process takes over, or this one does.
    Takeover,
    /// Certificates, or handshakes.
    Tls,
    /// The process starts or ends.
    Life,
}

const KINDS: usize = Kind::Life as usize + 1;

impl Kind {
    /// The word for what it is about.
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
            Self::Life => "process",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    started: Option<Timestamp>,
    lines: u32,
    left_out: u64,
}

/// Tells of such events with measure.
#[derive(Debug, Default)]
pub(super) struct Log([Stretch; KINDS]);

/// A line with what it is to say of those that were left out before it.
fn with_left_out(text: &str, left_out: u64) -> String {
    match left_out {
        0 => shown(text),
        count => shown(&format!("{text} ({count} lines like this one were left out before it)")),
    }
}

impl Log {
    /// Writes a line, unless there were many of its kind of late. The next one that is written says how many were not.
    pub fn say(&mut self, kind: Kind, text: &str, journal: &mut Journal, now: Now) {
        if let Some(left_out) = self.admit(kind, now.monotonic) {
            let text = with_left_out(text, left_out);
            line(&text);
            journal.write(kind.about(), &text, now.unix_ms);
        }
    }

    /// The same for what may have names of keys in it: only those read it who look at the admin port.
    pub fn note(&mut self, kind: Kind, text: &str, journal: &mut Journal, now: Now) {
        if let Some(left_out) = self.admit(kind, now.monotonic) {
            journal.write(kind.about(), &with_left_out(text, left_out), now.unix_ms);
        }
    }

    /// May a line be written? Then how many were left out before it.
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

/// Names and errors may hold anything: what would end the line, or move a terminal's cursor, is written out.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(LINE_CHARS_MAX));
    for (count, character) in text.chars().enumerate() {
        if count == LINE_CHARS_MAX {
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
    fn a_line_stays_one_line_of_bounded_length() {
        assert_eq!(shown("a\nb\r\u{1b}[2J\u{7f}"), "a\\nb\\r\\u{1b}[2J\\u{7f}");
        assert_eq!(shown("Grüße"), "Grüße");
        assert_eq!(shown(&"x".repeat(100_000)).len(), LINE_CHARS_MAX + 3);
    }
}
