//! The journal: the last lines of the log, and lines about hot keys, which the log does not have. The admin
//! page shows it.

use std::collections::{BTreeSet, VecDeque};

use super::Totals;
use super::hot_keys::hottest;
use super::hot_series::label;
use crate::values::limits::{HOT_KEY_SERIES_MAX, JOURNAL_LINE_CHARS_MAX, JOURNAL_LINES_MAX};

/// A line of the journal, which the admin page shows: a line of the log, or one about hot keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of the line in the journal, counted from 1 at the start of the process.
    pub number: u64,
    /// The time at which the line was written, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The word for the kind of event that the line is about.
    pub about: &'static str,
    /// The text of the line, cut at 400 characters (`JOURNAL_LINE_CHARS_MAX`), with `...` if it is longer.
    pub text: String,
}

/// The last `JOURNAL_LINES_MAX` lines of the journal, the oldest first, and the keys that were reported as
/// hot and have not been reported as cold since.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    lines: VecDeque<Line>,
    written: u64,
    hot: BTreeSet<Vec<u8>>,
}

impl Journal {
    /// Appends a line with this text about the kind of event `about`, written at `unix_ms` (milliseconds
    /// since 1970), and drops the oldest line if there are too many.
    pub fn write(&mut self, about: &'static str, text: &str, unix_ms: u64) {
        if self.lines.len() == JOURNAL_LINES_MAX {
            self.lines.pop_front();
        }
        let mut cut: String = text.chars().take(JOURNAL_LINE_CHARS_MAX).collect();
        if cut.len() < text.len() {
            cut.push_str("...");
        }
        self.written += 1;
        self.lines.push_back(Line { number: self.written, unix_ms, about, text: cut });
    }

    /// Returns the lines of the journal that are kept, the newest first.
    pub fn latest(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().rev()
    }

    /// Returns lines about keys that have become hot since the last call, and one with the number of keys
    /// that have ceased to be hot. Only the `HOT_KEY_SERIES_MAX` hottest keys are reported as hot. Records
    /// which keys were.
    pub fn news_of_hot_keys(&mut self, totals: &Totals) -> Vec<String> {
        let mut news = Vec::new();
        let (keys, _) = hottest(totals, HOT_KEY_SERIES_MAX, |key| key.hot_for.is_some());
        for told in &keys {
            let key = told.key;
            if self.hot.insert(key.key.clone()) {
                news.push(format!(
                    "key '{}' is hot: {:.0} reads and {:.0} writes a second, {:.0} % of the requests of core {}{}",
                    label(key),
                    key.reads,
                    key.writes,
                    key.share * 100.0,
                    told.home,
                    key.tenant.as_ref().map_or_else(String::new, |name| format!(", last for tenant {name}"))
                ));
            }
        }
        let all = totals.shards.iter().flat_map(|report| &report.hot_keys);
        let hot: BTreeSet<&[u8]> =
            all.filter(|key| key.hot_for.is_some()).map(|key| key.key.as_slice()).collect();
        let before = self.hot.len();
        self.hot.retain(|key| hot.contains(key.as_slice()));
        match before - self.hot.len() {
            0 => {}
            1 => news.push("a key is no longer hot".to_owned()),
            count => news.push(format!("{count} keys are no longer hot")),
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hot_keys::tests::{key, totals};

    #[test]
    fn only_the_last_lines_are_kept_and_long_ones_are_cut() {
        let mut journal = Journal::default();
        (0..10_000_u64).for_each(|n| journal.write("store", &format!("{n}"), n));
        journal.write("store", &"é".repeat(100_000), 7);
        let lines: Vec<&Line> = journal.latest().collect();
        assert_eq!(lines.len(), JOURNAL_LINES_MAX);
        assert_eq!((lines[0].number, lines[0].unix_ms), (10_001, 7));
        assert_eq!(lines[0].text.chars().count(), JOURNAL_LINE_CHARS_MAX + 3);
        assert_eq!((lines[1].number, lines[1].text.as_str()), (10_000, "9999"));
    }

    #[test]
    fn keys_become_hot_once_and_cold_once() {
        let mut journal = Journal::default();
        let (hot, counted) = (key(b"a\n", 5.0), HotKey { hot_for: None, ..key(b"b", 9.0) });
        let told = journal.news_of_hot_keys(&totals(vec![vec![hot.clone()], vec![counted.clone()]]));
        assert_eq!(
            told,
            [
                "key 'a\\x0a' is hot: 5 reads and 2 writes a second, 12 % of the requests of core 0, last for tenant acme"
            ]
        );
        assert!(journal.news_of_hot_keys(&totals(vec![vec![hot], vec![]])).is_empty());
        assert_eq!(
            journal.news_of_hot_keys(&totals(vec![vec![], vec![counted]])),
            ["a key is no longer hot"]
        );
        let many = (0..300).map(|n| key(format!("{n}").as_bytes(), 1.0)).collect();
        let told = journal.news_of_hot_keys(&totals(vec![many]));
        assert_eq!(told.len(), HOT_KEY_SERIES_MAX, "the hottest");
    }

    use crate::shard::HotKey;
}
