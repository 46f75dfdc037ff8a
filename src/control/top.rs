//! The display of `weir top`: turns `/state.json` into lines for a terminal. Pure: the document and the size
//! of the window are arguments.

use std::fmt::Write as _;

use serde_json::Value;

use crate::config::TopSort;

/// The use of colours in the display, besides words and shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The display is coloured by ANSI escape sequences.
    Ansi,
    /// The display is plain text without colours.
    None,
}

/// The size and style of the display of `weir top`, and the table that comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The table (stores, tenants or keys) that comes first.
    pub sort: TopSort,
    /// The number of characters in a line of the display. Columns of tables that do not fit are left out, the
    /// last ones first.
    pub columns: usize,
    /// The number of lines of the display. Tables are cut to fit; `usize::MAX` for no limit.
    pub rows: usize,
    /// Whether the display has colours.
    pub colour: Colour,
}

/// Maximum number of lines of the log that `weir top` shows, if the number of its lines is limited.
const LOG_LINES: usize = 8;
/// Maximum number of rows in `weir top` of each table but the first, if the number of its lines is limited.
const OTHERS_LINES: usize = 5;
/// The greatest width of a column in a table of `weir top`, in characters; longer texts are cut.
const CELL_LETTERS_MAX: usize = 48;

/// Returns the whole display of `weir top`, line by line. `state` is the document `/state.json`, `from` the
/// address of the admin port from which it was read, and `window` the size and style of the display.
pub fn top(state: &Value, from: &str, window: Window) -> Vec<String> {
    let mut lines = head(state, from, window);
    let tables = tables(state, window.sort);
    let mut room = window.rows.saturating_sub(lines.len());
    for (index, table) in tables.iter().enumerate() {
        let most = if index == 0 { room.saturating_sub(room / 2).max(OTHERS_LINES) } else { OTHERS_LINES };
        // Two lines are needed besides rows: the heading, and an empty line before it.
        let rows = most.min(table.rows.len()).min(room.saturating_sub(2));
        if rows == 0 && room < 3 {
            break;
        }
        let shown = table.lines(if window.rows == usize::MAX { table.rows.len() } else { rows }, window);
        room = room.saturating_sub(shown.len());
        lines.extend(shown);
    }
    let log = items(state, "log");
    let most = if window.rows == usize::MAX { log.len() } else { LOG_LINES.min(room.saturating_sub(2)) };
    if most > 0 && !log.is_empty() {
        lines.extend([String::new(), cut("LOG", window.columns)]);
        lines.extend(log.iter().take(most).map(|line| log_line(line, window)));
    }
    lines.truncate(window.rows);
    lines
}

fn log_line(line: &Value, window: Window) -> String {
    let at = text(line, "at");
    let at = at.get(..19).unwrap_or(&at).replace('T', " ");
    cut(&format!("{at}  {}  {}", text(line, "about"), text(line, "text")), window.columns)
}

fn head(state: &Value, from: &str, window: Window) -> Vec<String> {
    let verdict = &state["verdict"];
    let grade = verdict["grade"].as_str().unwrap_or_default();
    let mut lines = vec![
        format!(
            "weir at {}  version {}  up {} s  {} of {} clients",
            shown(from),
            text(state, "version"),
            number(&state["uptime_seconds"]),
            number(&state["clients"]["open"]),
            number(&state["clients"]["max"])
        ),
        format!("{} {}", shape(grade), verdict_word(grade)),
    ];
    let reasons = items(verdict, "reasons").iter();
    lines.extend(
        reasons.map(|reason| format!("  {} {}", shape(&text(reason, "grade")), text(reason, "text"))),
    );
    let (rates, replies) = (&state["requests"]["per_second"], &state["reply_ms"]);
    lines.push(format!(
        "requests/s  {} decoded  {} to stores  {} from memory",
        number(&rates["decoded"]),
        number(&rates["forwarded"]),
        number(&rates["cached"])
    ));
    lines.push(format!(
        "refused/s   {} quota  {} overload  {} deadline  {} store away  {} permission  {} too much work",
        number(&rates["refused_throttled"]),
        number(&rates["refused_overloaded"]),
        number(&rates["refused_deadline"]),
        number(&rates["refused_unavailable"]),
        number(&rates["refused_permission"]),
        number(&rates["refused_excess"])
    ));
    lines.push(format!(
        "replies ms  {} p50  {} p90  {} p99  {} longest",
        number(&replies["p50"]),
        number(&replies["p90"]),
        number(&replies["p99"]),
        number(&replies["max"])
    ));
    let mut cpu = "cpu         ".to_owned();
    for shard in items(state, "shards") {
        // Writing to a string does not fail.
        let _ = write!(cpu, "{}: {}  ", number(&shard["shard"]), percent(&shard["cpu"]));
    }
    lines.push(cpu.trim_end().to_owned());
    let mut lines: Vec<String> = lines.into_iter().map(|line| cut(&line, window.columns)).collect();
    lines[1] = coloured(&lines[1], grade, window.colour);
    lines
}

struct Table {
    titles: Vec<&'static str>,
    /// The rows of a table: for each, its grade (which decides its colour) and the texts of its columns.
    rows: Vec<(String, Vec<String>)>,
    left_out: u64,
}

fn tables(state: &Value, sort: TopSort) -> [Table; 3] {
    let (stores, tenants, keys) = (stores(state), tenants(state), keys(state));
    match sort {
        TopSort::Store => [stores, tenants, keys],
        TopSort::Tenant => [tenants, stores, keys],
        TopSort::Key => [keys, tenants, stores],
    }
}

fn table(
    state: &Value,
    part: &str,
    titles: Vec<&'static str>,
    cells: impl Fn(&Value) -> Vec<String>,
) -> Table {
    let rows = items(state, part).iter().map(|row| (text(row, "grade"), cells(row))).collect();
    let left_out = state[format!("{part}_left_out")].as_u64().unwrap_or_default();
    Table { titles, rows, left_out }
}

fn stores(state: &Value) -> Table {
    let titles = vec![
        "STORE",
        "STATE",
        "IN-FLIGHT",
        "WINDOW",
        "QUEUE",
        "MEDIAN-MS",
        "BEST-MS",
        "LEVEL",
        "RATIO",
        "BREAKER",
        "SET-ASIDE",
    ];
    table(state, "stores", titles, |store| {
        let mut cells = vec![text(store, "name"), state_of(store)];
        let figures = ["in_flight", "window", "queue", "median_ms", "base_ms", "level", "latency_ratio"];
        cells.extend(figures.map(|name| number(&store[name])));
        cells.extend([text(store, "breaker"), number(&store["ejections"])]);
        cells
    })
}

fn tenants(state: &Value) -> Table {
    let titles = vec![
        "TENANT",
        "STATE",
        "ADMITTED/S",
        "OF-QUOTA",
        "THROTTLED/S",
        "SHED/S",
        "CACHED/S",
        "QUOTA",
        "SUGGESTED",
    ];
    table(state, "tenants", titles, |tenant| {
        let mut cells = vec![text(tenant, "name"), state_of(tenant), number(&tenant["admitted"])];
        cells.push(percent(&tenant["share_of_quota"]));
        let figures = ["throttled", "shed", "cached", "ru_per_second", "suggested_ru_per_second"];
        cells.extend(figures.map(|name| number(&tenant[name])));
        cells
    })
}

fn keys(state: &Value) -> Table {
    let titles =
        vec!["KEY", "STATE", "READS/S", "WRITES/S", "OF-CORE", "FROM-MEMORY", "TENANT", "CORE", "HOT-FOR-S"];
    table(state, "hot_keys", titles, |key| {
        let mut cells = vec![text(key, "key"), text(key, "state")];
        cells.extend([number(&key["reads_per_second"]), number(&key["writes_per_second"])]);
        cells.extend([percent(&key["share"]), percent(&key["hits"])]);
        cells.push(key["tenant"].as_str().map_or_else(|| "-".to_owned(), shown));
        cells.extend([number(&key["home"]), number(&key["hot_for_seconds"])]);
        cells
    })
}

impl Table {
    /// Returns the table as lines of `weir top`: an empty line, the titles (with the number of rows left
    /// out), and at most `count` rows. Columns that do not fit are left out, except the first two.
    fn lines(&self, count: usize, window: Window) -> Vec<String> {
        let rows = &self.rows[..count.min(self.rows.len())];
        let width = |column: usize| {
            let cells = rows.iter().map(|(_, cells)| letters(&cells[column])).max().unwrap_or_default();
            cells.max(self.titles[column].len()).min(CELL_LETTERS_MAX)
        };
        let widths: Vec<usize> = (0..self.titles.len()).map(width).collect();
        let mut fits = widths.len();
        while fits > 2 && widths[..fits].iter().sum::<usize>() + 2 * (fits - 1) > window.columns {
            fits -= 1;
        }
        let row = |cells: &[&str]| {
            let mut line = String::new();
            for (column, cell) in cells.iter().take(fits).enumerate() {
                let cell = cut(cell, widths[column]);
                let gap = " ".repeat(widths[column] - letters(&cell));
                // Names and words are aligned at the left, numbers at the right.
                let is_name = column < 2;
                let (before, behind) = if is_name { ("", gap.as_str()) } else { (gap.as_str(), "") };
                line.extend([if column == 0 { "" } else { "  " }, before, cell.as_str(), behind]);
            }
            cut(line.trim_end(), window.columns)
        };
        let mut lines = vec![String::new(), row(&self.titles)];
        for (grade, cells) in rows {
            let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
            lines.push(coloured(&row(&cells), grade, window.colour));
        }
        let more = self.left_out + (self.rows.len() - rows.len()) as u64;
        if more > 0
            && let Some(titles) = lines.get_mut(1)
        {
            *titles = cut(&format!("{titles}  (and {more} more)"), window.columns);
        }
        lines
    }
}

fn coloured(line: &str, grade: &str, colour: Colour) -> String {
    let code = match grade {
        "trouble" => "1;31",
        "strained" => "33",
        _ => return line.to_owned(),
    };
    if colour == Colour::None { line.to_owned() } else { format!("\u{1b}[{code}m{line}\u{1b}[0m") }
}

fn shape(grade: &str) -> &'static str {
    match grade {
        "well" => "●",
        "strained" => "▲",
        "trouble" => "■",
        _ => "?",
    }
}

fn verdict_word(grade: &str) -> &'static str {
    match grade {
        "well" => "All is well",
        "strained" => "Holding back",
        "trouble" => "Trouble",
        _ => "Unknown",
    }
}

fn state_of(row: &Value) -> String {
    format!("{} {}", shape(&text(row, "grade")), text(row, "state").replace(' ', "-"))
}

fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().map_or_else(|| "-".to_owned(), shown)
}

fn number(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(number) if number.fract() == 0.0 || number >= 100.0 => format!("{number:.0}"),
        Some(number) => format!("{number:.2}"),
    }
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |part| format!("{:.1}%", part * 100.0))
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

fn cut(text: &str, most: usize) -> String {
    if letters(text) <= most {
        return text.to_owned();
    }
    let mut shorter: String = text.chars().take(most.saturating_sub(1)).collect();
    shorter.extend((most > 0).then_some('…'));
    shorter
}

/// Returns a text with those characters escaped that would move the cursor, hide, or change the direction of
/// the text: names are chosen by others.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        let is_hidden = matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        if letter.is_control() || is_hidden {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLAIN: Window =
        Window { sort: TopSort::Store, columns: usize::MAX, rows: usize::MAX, colour: Colour::None };

    fn state() -> Value {
        json!({
            "version": "0.1.0", "uptime_seconds": 5, "clients": { "open": 1, "max": 10 },
            "verdict": { "grade": "trouble", "reasons": [{ "grade": "trouble", "text": "store a:1: set aside" }] },
            "requests": { "per_second": { "decoded": 12.5, "refused_unavailable": 3 } },
            "reply_ms": { "p50": 0.25, "p99": 1.5 },
            "shards": [{ "shard": 0, "cpu": 0.5 }, { "shard": 1, "cpu": null }],
            "stores": [
                { "name": "a:1", "grade": "trouble", "state": "set aside", "in_flight": 0, "window": 4, "breaker": "ejected" },
                { "name": "b:1", "grade": "well", "state": "ok", "in_flight": 2, "window": 64, "breaker": "ok" },
            ],
            "stores_left_out": 7,
            "tenants": [{ "name": "acme", "grade": "strained", "state": "throttled", "throttled": 2.5, "ru_per_second": 10 }],
            "hot_keys": [{ "key": "viral", "state": "kept", "reads_per_second": 1000.4, "share": 0.5, "tenant": "acme" }],
            "log": [{ "at": "2026-01-02T03:04:05.678Z", "about": "store", "text": "backend a:1 is set aside" }],
        })
    }

    #[test]
    fn all_of_it_once_has_stable_columns() {
        let lines = top(&state(), "127.0.0.1:7381", PLAIN);
        assert_eq!(
            lines,
            [
                "weir at 127.0.0.1:7381  version 0.1.0  up 5 s  1 of 10 clients",
                "■ Trouble",
                "  ■ store a:1: set aside",
                "requests/s  12.50 decoded  - to stores  - from memory",
                "refused/s   - quota  - overload  - deadline  3 store away  - permission  - too much work",
                "replies ms  0.25 p50  - p90  1.50 p99  - longest",
                "cpu         0: 50.0%  1: -",
                "",
                "STORE  STATE        IN-FLIGHT  WINDOW  QUEUE  MEDIAN-MS  BEST-MS  LEVEL  RATIO  BREAKER  SET-ASIDE  (and 7 more)",
                "a:1    ■ set-aside          0       4      -          -        -      -      -  ejected          -",
                "b:1    ● ok                 2      64      -          -        -      -      -       ok          -",
                "",
                "TENANT  STATE        ADMITTED/S  OF-QUOTA  THROTTLED/S  SHED/S  CACHED/S  QUOTA  SUGGESTED",
                "acme    ▲ throttled           -         -         2.50       -         -     10          -",
                "",
                "KEY    STATE  READS/S  WRITES/S  OF-CORE  FROM-MEMORY  TENANT  CORE  HOT-FOR-S",
                "viral  kept      1000         -    50.0%            -    acme     -          -",
                "",
                "LOG",
                "2026-01-02 03:04:05  store  backend a:1 is set aside",
            ]
        );
    }

    #[test]
    fn what_is_sorted_by_stands_first() {
        let first = |sort| {
            let lines = top(&state(), "a", Window { sort, ..PLAIN });
            lines[8].split(' ').next().unwrap_or_default().to_owned()
        };
        assert_eq!([TopSort::Store, TopSort::Tenant, TopSort::Key].map(first), ["STORE", "TENANT", "KEY"]);
    }

    #[test]
    fn no_window_is_too_small_and_none_is_left() {
        for columns in 0..130 {
            for rows in [0, 1, 2, 5, 7, 10, 20, 40] {
                let window = Window { columns, rows, ..PLAIN };
                let lines = top(&state(), "127.0.0.1:7381", window);
                assert!(lines.len() <= rows, "{columns} {rows}");
                assert!(lines.iter().all(|line| letters(line) <= columns), "{columns} {rows}: {lines:#?}");
            }
        }
    }

    #[test]
    fn nothing_that_others_made_up_reaches_the_terminal_raw() {
        let hostile = "\u{1b}[2J\r\n\u{7f}\u{9b}31m\u{202e}x\u{feff}";
        let mut state = state();
        for (part, name) in
            [("stores", "name"), ("tenants", "name"), ("hot_keys", "key"), ("log", "text"), ("log", "at")]
        {
            state[part][0][name] = hostile.into();
        }
        state["hot_keys"][0]["tenant"] = hostile.into();
        state["verdict"]["reasons"][0]["text"] = hostile.into();
        state["version"] = hostile.into();
        for line in top(&state, hostile, PLAIN) {
            assert!(!line.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{line:?}");
        }
        let coloured = top(&state, "a", Window { colour: Colour::Ansi, ..PLAIN }).join("\n");
        let left = coloured.replace("\u{1b}[1;31m", "").replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
        assert!(!left.contains('\u{1b}'));
    }

    #[test]
    fn a_document_of_another_kind_is_no_reason_to_fail() {
        for other in [json!(null), json!([]), json!({ "verdict": 1, "stores": [1, {}], "log": {} })] {
            assert!(!top(&other, "a", PLAIN).is_empty());
        }
    }
}
