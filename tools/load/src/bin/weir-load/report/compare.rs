//! A comparison of two runs: rates, outcomes and latencies of each group and phase, with their ratios.

use std::fmt::{self, Write as _};

use serde_json::Value;

use super::COUNTS;
use super::plot::escaped;

const LATENCIES: [(&str, &str); 6] = [
    ("p50", "p50 ms"),
    ("p90", "p90 ms"),
    ("p99", "p99 ms"),
    ("p99_9", "p99.9 ms"),
    ("p99_99", "p99.99 ms"),
    ("max", "max ms"),
];

/// Part of the comparison of two runs: the figures of one group of clients, of one of its phases, or of all
/// groups together.
struct Block {
    name: String,
    rows: Vec<Row>,
}

/// One figure of an earlier and a later run of the load generator, as texts, and the ratio of both.
struct Row {
    figure: &'static str,
    before: String,
    after: String,
    /// The later run's figure divided by the earlier one's, as text; `-` if one of them is missing or the earlier one
    /// is 0.
    ratio: String,
}

/// Renders the comparison of two runs, given as their JSON reports, as a table for the terminal.
pub fn text(before: &Value, after: &Value) -> String {
    let blocks = blocks(before, after);
    let rows = || blocks.iter().flat_map(|block| &block.rows);
    let width = |pick: fn(&Row) -> &str, least: usize| {
        rows().map(|row| pick(row).chars().count()).max().unwrap_or(0).max(least)
    };
    let (figures, befores) = (width(|row| row.figure, 0), width(|row| &row.before, "before".len()));
    let (afters, ratios) = (width(|row| &row.after, "after".len()), width(|row| &row.ratio, "ratio".len()));
    let mut text =
        format!("  {:figures$}  {:>befores$}  {:>afters$}  {:>ratios$}\n", "", "before", "after", "ratio");
    for block in &blocks {
        let _ = writeln!(text, "{}", block.name);
        for Row { figure, before, after, ratio } in &block.rows {
            let _ =
                writeln!(text, "  {figure:figures$}  {before:>befores$}  {after:>afters$}  {ratio:>ratios$}");
        }
    }
    text
}

/// Renders the comparison of two runs, given as their JSON reports, as a table of the HTML report.
pub fn html(before: &Value, after: &Value) -> String {
    let mut html = String::from("<table><tr><th></th><th>before</th><th>after</th><th>ratio</th></tr>");
    for block in blocks(before, after) {
        let _ = write!(html, "<tr class=\"group\"><td colspan=\"4\">{}</td></tr>", escaped(&block.name));
        for Row { figure, before, after, ratio } in block.rows {
            let _ = write!(
                html,
                "<tr class=\"phase\"><td>{figure}</td><td>{before}</td><td>{after}</td><td>{ratio}</td></tr>"
            );
        }
    }
    html.push_str("</table>");
    html
}

/// Returns the compared figures of all groups and phases of both runs (JSON reports), in the order of the
/// later run; then those that only the earlier run has, and at the end all groups together. Of phases of one name, the
/// first is compared with the first, the second with the second, and so on.
fn blocks(before: &Value, after: &Value) -> Vec<Block> {
    let (earlier, later) = (tallies(before), tallies(after));
    let gone = earlier.iter().filter(|(name, ..)| !later.iter().any(|(known, ..)| known == name));
    let names: Vec<&Name> = later.iter().chain(gone).map(|(name, ..)| name).collect();
    let find = |run: &[(Name, Figures)], name: &Name| {
        run.iter().find(|(known, _)| known == name).map(|(_, figures)| figures.clone())
    };
    let all = Block {
        name: "all".to_owned(),
        rows: rows(Some(Figures::of(&before["total"], before)), Some(Figures::of(&after["total"], after))),
    };
    let of_names = names
        .into_iter()
        .map(|name| Block { name: name.to_string(), rows: rows(find(&earlier, name), find(&later, name)) });
    of_names.chain([all]).collect()
}

/// The name of a group, or of a group and one of its phases, with the number of those before it in the report that
/// have the same name.
#[derive(PartialEq)]
struct Name {
    text: String,
    earlier: usize,
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.earlier {
            0 => out.write_str(&self.text),
            earlier => write!(out, "{} ({})", self.text, earlier + 1),
        }
    }
}

/// Returns the name and figures of every group in a run's JSON report, each followed by those of its phases
/// if it has several.
fn tallies(run: &Value) -> Vec<(Name, Figures)> {
    let mut found: Vec<(Name, Figures)> = Vec::new();
    let mut add = |text: String, figures: Figures| {
        let earlier = found.iter().filter(|(name, _)| name.text == text).count();
        found.push((Name { text, earlier }, figures));
    };
    for group in list(&run["groups"]) {
        let name = group["name"].as_str().unwrap_or_default();
        // Reports of earlier versions have no time of their own for each group.
        let timed = if group["duration_s"].is_number() { group } else { run };
        add(name.to_owned(), Figures::of(group, timed));
        let phases = list(&group["phases"]);
        if phases.len() > 1 {
            for phase in phases {
                let phase_name = phase["name"].as_str().unwrap_or_default();
                add(format!("{name}, {phase_name}"), Figures::of(phase, phase));
            }
        }
    }
    found
}

/// The figures of one group or phase in a JSON report, with the seconds over which they were counted.
#[derive(Clone)]
struct Figures {
    tally: Value,
    seconds: f64,
}

impl Figures {
    fn of(tally: &Value, timed: &Value) -> Self {
        Self { tally: tally.clone(), seconds: timed["duration_s"].as_f64().unwrap_or(0.0) }
    }

    fn count(&self, name: &str) -> f64 {
        self.tally["counts"][name].as_f64().unwrap_or(0.0)
    }

    fn offered_per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.count("offered") / self.seconds)
    }

    fn share(&self, outcome: &str) -> Option<f64> {
        let offered = self.count("offered");
        (offered > 0.0).then(|| self.count(outcome) / offered)
    }
}

fn rows(before: Option<Figures>, after: Option<Figures>) -> Vec<Row> {
    let runs = [before, after];
    let of = |pick: &dyn Fn(&Figures) -> Option<f64>| runs.each_ref().map(|run| run.as_ref().and_then(pick));
    let mut rows = vec![
        row("offered/s", of(&Figures::offered_per_second), rate),
        row("served/s", of(&|run| run.tally["goodput_per_s"].as_f64()), rate),
    ];
    // The outcomes are compared as shares of the offered requests.
    for outcome in &COUNTS[1..] {
        let shares = of(&|run| run.share(outcome));
        if shares.iter().any(|share| share.is_some_and(|share| share > 0.0)) {
            let mut row = row(outcome, shares, |_| String::new());
            for (shown, (run, share)) in
                [&mut row.before, &mut row.after].into_iter().zip(runs.iter().zip(shares))
            {
                if let (Some(run), Some(share)) = (run, share) {
                    *shown = format!("{} ({:.2} %)", run.count(outcome), share * 100.0);
                }
            }
            rows.push(row);
        }
    }
    for (name, shown) in LATENCIES {
        rows.push(row(shown, of(&|run| run.tally["latency_ms"][name].as_f64()), millis));
    }
    rows
}

fn row(figure: &'static str, [before, after]: [Option<f64>; 2], show: fn(f64) -> String) -> Row {
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), show);
    let ratio = before.zip(after).filter(|(before, _)| *before > 0.0).map(|(before, after)| after / before);
    Row {
        figure,
        before: shown(before),
        after: shown(after),
        ratio: ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
    }
}

fn rate(value: f64) -> String {
    format!("{value:.0}")
}

fn millis(value: f64) -> String {
    format!("{value:.3}")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::json;
    use super::*;
    use crate::results::tests::two_groups;

    fn tally(name: &str, served: u64, p99: f64) -> Value {
        json!({
            "name": name, "duration_s": 2.0, "goodput_per_s": served / 2,
            "counts": {"offered": 1000, "sent": 1000, "served": served, "throttled": 1000 - served},
            "latency_ms": {"p50": 1.0, "p99": p99, "max": null},
        })
    }

    /// Builds the JSON report of a run with one group and these phases, each with its number of served
    /// requests out of 1000 and its p99 latency.
    fn run(phases: &[(&str, u64, f64)]) -> Value {
        let mut group = tally("clients", 800, 4.0);
        group["phases"] = phases.iter().map(|(name, served, p99)| tally(name, *served, *p99)).collect();
        json!({"duration_s": 2.0, "groups": [group], "total": tally("all", 800, 4.0)})
    }

    fn cells<'text>(table: &'text str, block: &str, figure: &str) -> Vec<&'text str> {
        let mut lines = table.lines().skip_while(|line| *line != block).skip(1);
        let line = lines.find(|line| line.trim_start().starts_with(figure)).expect("the figure has a line");
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn each_phase_has_both_runs_and_their_ratio() {
        let before = run(&[("calm", 1000, 2.0), ("over", 800, 4.0)]);
        let after = run(&[("calm", 1000, 2.0), ("over", 400, 6.0)]);
        let table = text(&before, &after);
        assert_eq!(cells(&table, "clients, over", "served/s"), ["served/s", "400", "200", "0.50"]);
        assert_eq!(
            cells(&table, "clients, over", "throttled"),
            ["throttled", "200 (20.00 %)", "600 (60.00 %)", "3.00"]
        );
        assert_eq!(cells(&table, "clients, over", "p99"), ["p99 ms", "4.000", "6.000", "1.50"]);
        assert_eq!(cells(&table, "all", "offered/s"), ["offered/s", "500", "500", "1.00"]);
        assert_eq!(cells(&table, "all", "max"), ["max ms", "-", "-", "-"]);
        assert!(!table.contains("overloaded"), "an outcome that neither run has is left out");
        assert!(html(&before, &after).contains("<td>served/s</td><td>400</td><td>200</td><td>0.50</td>"));
    }

    #[test]
    fn phases_of_one_name_are_compared_in_their_order() {
        let before = run(&[("calm", 1000, 2.0), ("over", 800, 4.0), ("calm", 600, 3.0)]);
        let after = run(&[("calm", 900, 2.0), ("over", 400, 6.0), ("calm", 300, 9.0), ("calm", 100, 9.0)]);
        let table = text(&before, &after);
        assert_eq!(cells(&table, "clients, calm", "served/s"), ["served/s", "500", "450", "0.90"]);
        assert_eq!(cells(&table, "clients, calm (2)", "served/s"), ["served/s", "300", "150", "0.50"]);
        assert_eq!(cells(&table, "clients, calm (2)", "p99"), ["p99 ms", "3.000", "9.000", "3.00"]);
        assert_eq!(cells(&table, "clients, calm (3)", "served/s"), ["served/s", "-", "50", "-"]);
    }

    #[test]
    fn groups_of_different_lengths_have_their_own_rates() {
        let run = json::report(&two_groups(5.0));
        let table = text(&run, &run);
        assert_eq!(cells(&table, "short", "offered/s"), ["offered/s", "1500", "1500", "1.00"]);
        assert_eq!(cells(&table, "short", "served/s"), ["served/s", "1000", "1000", "1.00"]);
        assert_eq!(cells(&table, "long", "offered/s"), ["offered/s", "75", "75", "1.00"]);
        assert_eq!(cells(&table, "long, phase 1", "served/s"), ["served/s", "50", "50", "1.00"]);
        let mut earlier = run.clone();
        earlier["groups"][0].as_object_mut().expect("a group").remove("duration_s");
        assert_eq!(cells(&text(&earlier, &run), "short", "offered/s"), ["offered/s", "375", "1500", "4.00"]);
    }

    #[test]
    fn a_phase_of_one_run_alone_has_no_ratio() {
        let table = text(
            &run(&[("calm", 900, 2.0), ("old", 900, 3.0)]),
            &run(&[("calm", 900, 2.0), ("new", 900, 3.0)]),
        );
        assert_eq!(cells(&table, "clients, new", "p99"), ["p99 ms", "-", "3.000", "-"]);
        assert_eq!(cells(&table, "clients, old", "p99"), ["p99 ms", "3.000", "-", "-"]);
    }

    #[test]
    fn names_from_a_file_are_text_in_the_page() {
        let mut odd = run(&[]);
        odd["groups"][0]["name"] = json!("<script>");
        assert!(html(&odd, &odd).contains("&lt;script&gt;") && !html(&odd, &odd).contains("<script>"));
    }
}
