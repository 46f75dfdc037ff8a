//! The report on the terminal: a line per second while the load runs, and a summary that fits a screen.

use std::fmt::Write as _;

use weir_load::statistics::Tally;

use crate::results::{Latencies, Results, Second, goodput};

const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";
/// Maximum number of rows of the terminal's summary; with more, it shows only groups of clients, without
/// their phases.
const ROWS_MAX: usize = 24;
const NAME_WIDTH: usize = 22;
const KINDS_SHOWN: usize = 4;

/// Formats the line about one second of the run; red, if `colour` permits, when there were errors or timeouts.
pub fn progress(second: &Second, colour: bool) -> String {
    let counts = &second.all.counts;
    let failed = counts.errors + counts.timeouts;
    let (on, off) = if colour && failed > 0 { (RED, PLAIN) } else { ("", "") };
    let [p50, _, p99, ..] = second.all.latencies.percentiles;
    format!(
        "{:>4}s  offered {:>8}/s  served {:>8}/s  refused {:>7}  {on}failed {failed:>6}{off}  open {:>7}  p50 {} p99 {} max {} ms",
        second.number + 1,
        counts.offered,
        counts.served,
        counts.refused() + counts.refused_by_client,
        second.open,
        millis(p50),
        millis(p99),
        millis(second.all.latencies.max),
    )
}

/// Formats the summary of the whole run for the terminal: a row for each group and, unless there are too many, for each
/// phase, and remarks.
pub fn summary(results: &Results) -> String {
    let mut text = String::new();
    let heads = [
        "offered", "served", "/s", "thrott", "overld", "deadln", "unavail", "client", "errors", "timeout",
        "p50", "p99", "p99.9", "max ms",
    ];
    let _ = write!(text, "\n{:<NAME_WIDTH$}", "group");
    for (head, width) in heads.iter().zip(WIDTHS) {
        let _ = write!(text, " {head:>width$}");
    }
    text.push('\n');
    let rows: usize = results.groups.iter().map(|group| group.phases.len() + 1).sum();
    for group in &results.groups {
        text.push_str(&row(&group.name, &group.total, goodput(&group.total, results.duration_of(group))));
        if group.phases.len() > 1 && rows <= ROWS_MAX {
            for (phase, duration) in results.phases_of(group) {
                let name = format!("  {}", phase.name);
                text.push_str(&row(&name, &phase.tally, goodput(&phase.tally, duration)));
            }
        }
    }
    if results.groups.len() > 1 {
        text.push_str(&row("all", &results.total, goodput(&results.total, results.duration())));
    }
    text.push_str(&remarks(results));
    text
}

const WIDTHS: [usize; 14] = [9, 9, 8, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

fn row(name: &str, tally: &Tally, goodput_per_s: f64) -> String {
    let counts = &tally.counts;
    let latencies = Latencies::of(&tally.served);
    let [p50, _, p99, p99_9, _] = latencies.percentiles;
    let name: String = name.chars().take(NAME_WIDTH).collect();
    let cells = [
        counts.offered.to_string(),
        counts.served.to_string(),
        format!("{goodput_per_s:.0}"),
        counts.throttled.to_string(),
        counts.overloaded.to_string(),
        counts.deadline.to_string(),
        counts.unavailable.to_string(),
        counts.refused_by_client.to_string(),
        counts.errors.to_string(),
        counts.timeouts.to_string(),
        millis(p50),
        millis(p99),
        millis(p99_9),
        millis(latencies.max),
    ];
    let mut text = format!("{name:<NAME_WIDTH$}");
    for (cell, width) in cells.iter().zip(WIDTHS) {
        let _ = write!(text, " {cell:>width$}");
    }
    text.push('\n');
    text
}

fn remarks(results: &Results) -> String {
    let mut text = String::new();
    let kinds: Vec<String> =
        results.total.kinds.iter().take(KINDS_SHOWN).map(|(kind, count)| format!("{kind} {count}")).collect();
    if !kinds.is_empty() {
        let _ = writeln!(text, "errors: {}", kinds.join(", "));
    }
    if results.total.counts.retries > 0 {
        let _ = writeln!(text, "repeated: {}", results.total.counts.retries);
    }
    if results.description.closed {
        let _ = writeln!(text, "closed loop: latencies leave out what requests wait for their turn");
    }
    let Some(summary) = &results.summary else { return text };
    if let Some(cpu) = results.cpu_us_per_request() {
        let seconds = summary.cpu.as_secs_f64();
        let share = 100.0 * seconds / summary.took.as_secs_f64().max(1e-9);
        let _ = writeln!(text, "generator: {cpu:.2} us of CPU per request, {share:.0} % of one core");
    }
    for complaint in &summary.complaints {
        let _ = writeln!(text, "note: {complaint}");
    }
    if !summary.started {
        let targets = results.description.targets.join(", ");
        let _ = writeln!(text, "nothing was sent: every group needs a connection to {targets}");
    }
    if summary.interrupted {
        let _ = writeln!(text, "interrupted after {:.1} s", summary.took.as_secs_f64());
    }
    text
}

fn millis(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 10.0 => format!("{value:.3}"),
        Some(value) if value < 100.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
    }
}
