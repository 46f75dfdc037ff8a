//! The HTML report: one page with tables and plots over time, which loads nothing from elsewhere.

use std::fmt::Write as _;

use serde_json::Value;

use super::COUNTS;
use super::compare;
use super::plot::{Line, Scale, escaped, plot, short};

const GROUPS_DRAWN: usize = 10;
const FAMILIES_DRAWN: usize = 60;
const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:14px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1360px;padding:0 16px}
h1{font-size:20px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 8px}
p{margin:2px 0}.note{color:#b45309}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:3px 8px;text-align:right;border-bottom:1px solid #8884}
th:first-child,td:first-child{text-align:left}tr.phase td:first-child{padding-left:24px}
tr.group td{font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(420px,1fr));gap:16px}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto}
svg text{font-size:10px;fill:currentColor;opacity:.75}text.y{text-anchor:end}text.x{text-anchor:middle}
path.grid{stroke:#8884}path.mark{stroke:#8888;stroke-dasharray:2 3}
.legend span{margin-right:12px;font-size:12px}.legend i{display:inline-block;width:18px;margin-right:4px;vertical-align:middle}
";

/// Builds the whole HTML report from the JSON report of this run (`own`), and that of an earlier run to
/// compare with, if any, whose lines are dashed.
pub fn page(own: &Value, compared: Option<&Value>) -> String {
    let mut html = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(html, "<title>weir-load</title><style>{STYLE}</style></head><body><h1>weir-load</h1>");
    head(&mut html, own);
    html.push_str("<h2>Requests</h2>");
    table(&mut html, own);
    if let Some(other) = compared {
        html.push_str("<h2>Compared with (dashed)</h2>");
        head(&mut html, other);
        table(&mut html, other);
        html.push_str("<h2>Both runs</h2>");
        html.push_str(&compare::html(other, own));
    }
    let runs: Vec<(&Value, bool)> =
        std::iter::once((own, false)).chain(compared.map(|other| (other, true))).collect();
    let marks = marks(own);
    html.push_str("<h2>Over time</h2><div class=\"plots\">");
    plots(&mut html, &runs, &marks);
    html.push_str("</div>");
    gauges(&mut html, &runs, &marks);
    html.push_str("</body></html>\n");
    html
}

fn head(html: &mut String, report: &Value) {
    let targets = report["target"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let targets: Vec<String> = targets.map(escaped).collect();
    let _ = write!(
        html,
        "<p>{} &middot; {:.1} s &middot; {} connections &middot; seed {}</p>",
        targets.join(", "),
        number(&report["took_s"]),
        report["connections"],
        report["seed"]
    );
    if let Some(cpu) = report["generator"]["cpu_us_per_request"].as_f64() {
        let _ = write!(html, "<p>generator: {cpu:.2} us of CPU per request</p>");
    }
    if report["interrupted"] == true {
        html.push_str("<p class=\"note\">interrupted</p>");
    }
    for complaint in report["complaints"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let _ = write!(html, "<p class=\"note\">{}</p>", escaped(complaint));
    }
}

const LATENCIES: [(&str, &str); 6] = [
    ("p50", "p50 ms"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p99_9", "p99.9"),
    ("p99_99", "p99.99"),
    ("max", "max"),
];

fn table(html: &mut String, report: &Value) {
    html.push_str("<table><tr><th>group</th>");
    for head in COUNTS.iter().chain(&["retries", "served/s"]).chain(LATENCIES.iter().map(|(_, head)| head)) {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr>");
    for group in report["groups"].as_array().into_iter().flatten() {
        row(html, "group", group);
        let phases = group["phases"].as_array().map_or(&[][..], Vec::as_slice);
        if phases.len() > 1 {
            phases.iter().for_each(|phase| row(html, "phase", phase));
        }
    }
    row(html, "group", &report["total"]);
    html.push_str("</table>");
}

fn row(html: &mut String, class: &str, tally: &Value) {
    let name = escaped(tally["name"].as_str().unwrap_or("all"));
    let _ = write!(html, "<tr class=\"{class}\"><td>{name}</td>");
    for count in COUNTS {
        let _ = write!(html, "<td>{}</td>", tally["counts"][count].as_u64().unwrap_or(0));
    }
    let _ = write!(html, "<td>{}</td>", tally["sends"]["retries"].as_u64().unwrap_or(0));
    let _ = write!(html, "<td>{:.0}</td>", number(&tally["goodput_per_s"]));
    for (name, _) in LATENCIES {
        match tally["latency_ms"][name].as_f64() {
            Some(value) => {
                let _ = write!(html, "<td>{value:.3}</td>");
            }
            None => html.push_str("<td>-</td>"),
        }
    }
    html.push_str("</tr>");
}

/// Returns from a JSON report the start of each phase, in seconds from the start of the load, with its name,
/// for the group that has the most phases; empty if no group has more than one.
fn marks(report: &Value) -> Vec<(f64, String)> {
    let phases_of = |group: &Value| group["phases"].as_array().cloned().unwrap_or_default();
    let groups = report["groups"].as_array().into_iter().flatten();
    let phases = groups.map(phases_of).max_by_key(Vec::len).unwrap_or_default();
    if phases.len() < 2 {
        return Vec::new();
    }
    let mut start = 0.0;
    // Phases that an interrupted run did not come to have no time.
    let starts = phases.iter().filter(|phase| number(&phase["duration_s"]) > 0.0).map(|phase| {
        let mark = (start, phase["name"].as_str().unwrap_or_default().to_owned());
        start += number(&phase["duration_s"]);
        mark
    });
    starts.collect()
}

fn plots(html: &mut String, runs: &[(&Value, bool)], marks: &[(f64, String)]) {
    let counts = |names: &[&str]| -> Vec<Line> {
        let lines = runs.iter().flat_map(|(run, dashed)| {
            names.iter().enumerate().map(|(colour, name)| {
                line(name, colour, *dashed, run, |second| second["counts"][*name].as_f64())
            })
        });
        lines.collect()
    };
    html.push_str(&plot(
        "offered and served, per second",
        Scale::Linear,
        &counts(&["offered", "served"]),
        marks,
    ));
    let latencies: Vec<Line> = runs
        .iter()
        .flat_map(|(run, dashed)| {
            ["p50", "p90", "p99", "p99_9", "max"].iter().enumerate().map(|(colour, name)| {
                line(name, colour, *dashed, run, |second| second["latency_ms"][*name].as_f64())
            })
        })
        .collect();
    html.push_str(&plot("latency of served requests, ms", Scale::Logarithmic, &latencies, marks));
    let refusals =
        ["throttled", "overloaded", "deadline", "unavailable", "errors", "timeouts", "refused_by_client"];
    html.push_str(&plot("refused and failed, per second", Scale::Linear, &counts(&refusals), marks));
    let open: Vec<Line> = runs
        .iter()
        .map(|(run, dashed)| line("due and not ended", 0, *dashed, run, |second| second["open"].as_f64()))
        .collect();
    html.push_str(&plot("requests waiting", Scale::Linear, &open, marks));
    if groups_of(runs[0].0).len() > 1 {
        group_plots(html, runs, marks);
    }
}

fn group_plots(html: &mut String, runs: &[(&Value, bool)], marks: &[(f64, String)]) {
    let of = |pick: fn(&Value) -> Option<f64>| -> Vec<Line> {
        let lines = runs.iter().flat_map(|(run, dashed)| {
            groups_of(run).into_iter().take(GROUPS_DRAWN).enumerate().map(move |(colour, name)| {
                line(&name, colour, *dashed, run, |second| pick(&second["groups"][&name]))
            })
        });
        lines.collect()
    };
    let refused = |group: &Value| {
        let kinds = ["throttled", "overloaded", "deadline", "unavailable", "refused_by_client"];
        Some(kinds.iter().filter_map(|kind| group["counts"][kind].as_f64()).sum())
    };
    let served = |group: &Value| group["counts"]["served"].as_f64();
    html.push_str(&plot("served by group, per second", Scale::Linear, &of(served), marks));
    let p99 = |group: &Value| group["latency_ms"]["p99"].as_f64();
    html.push_str(&plot("p99 by group, ms", Scale::Logarithmic, &of(p99), marks));
    html.push_str(&plot("refused by group, per second", Scale::Linear, &of(refused), marks));
}

/// Draws plots of weir's own metrics in the given runs (JSON report, true if its lines are dashed), at most 60; `marks`
/// are the phases' starts. Counters are drawn as their increase per second, and metrics that are always zero are left
/// out.
fn gauges(html: &mut String, runs: &[(&Value, bool)], marks: &[(f64, String)]) {
    let readings = |run: &Value| run["metrics"].as_array().cloned().unwrap_or_default();
    let mut families: Vec<(&str, String)> = Vec::new();
    for kind in ["gauges", "counters"] {
        for reading in readings(runs[0].0) {
            for name in reading[kind].as_object().into_iter().flat_map(|values| values.keys()) {
                if !families.iter().any(|(_, known)| known == name) {
                    families.push((kind, name.clone()));
                }
            }
        }
    }
    if families.is_empty() {
        return;
    }
    html.push_str("<h2>The target's own metrics</h2><div class=\"plots\">");
    let mut drawn = 0;
    for (kind, family) in &families {
        let lines: Vec<Line> = runs
            .iter()
            .map(|(run, dashed)| {
                let values: Vec<(f64, Option<f64>)> = readings(run)
                    .iter()
                    .map(|reading| (number(&reading["second"]), reading[*kind][family].as_f64()))
                    .collect();
                let points = if *kind == "counters" { growth(&values) } else { values };
                Line { name: family.clone(), colour: 0, dashed: *dashed, points }
            })
            .collect();
        let values = || lines.iter().flat_map(|line| line.points.iter().filter_map(|(_, value)| *value));
        // A metric that is always zero is not worth a plot.
        if drawn == FAMILIES_DRAWN || values().all(|value| value == 0.0) {
            continue;
        }
        drawn += 1;
        let most = short(values().fold(f64::MIN, f64::max));
        let unit = if *kind == "counters" { ", per second" } else { "" };
        html.push_str(&plot(&format!("{family}{unit} (most: {most})"), Scale::Linear, &lines, marks));
    }
    html.push_str("</div>");
}

fn growth(values: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    let pairs = values.windows(2).map(|pair| {
        let (before, after) = (&pair[0], &pair[1]);
        let grown = before.1.zip(after.1).map(|(before_value, after_value)| {
            (after_value - before_value).max(0.0) / (after.0 - before.0).max(1.0)
        });
        (after.0, grown)
    });
    pairs.collect()
}

fn line(name: &str, colour: usize, dashed: bool, run: &Value, pick: impl Fn(&Value) -> Option<f64>) -> Line {
    let seconds = run["seconds"].as_array().map_or(&[][..], Vec::as_slice);
    let points = seconds.iter().map(|second| (number(&second["second"]), pick(second))).collect();
    Line { name: name.to_owned(), colour, dashed, points }
}

fn groups_of(run: &Value) -> Vec<String> {
    let groups = run["groups"].as_array().into_iter().flatten();
    groups.filter_map(|group| group["name"].as_str().map(str::to_owned)).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}
