//! The reports: text for people, JSON for programs, and a picture or page for browsers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::calibration::picture::{escaped, svg};
use crate::calibration::{Calibration, Measured};
use serde_json::{Value, json};

use super::flags::{CalibrateFlags, Cost};
use super::measure::ServerInfo;

/// The number of shapes (commands in one size each) with the worst predictions that the summary lists.
const WORST_SHOWN: usize = 5;
/// The least R2 (share of the differences between costs that the weights predict) of good weights; with
/// less, they say little about the cost of a request.
const R_SQUARED_GOOD: f64 = 0.9;

/// Returns the summary as text; its last line has the flags of weir to paste.
pub fn text(
    flags: &CalibrateFlags,
    server: &ServerInfo,
    measured: &[Measured],
    calibration: &Calibration,
) -> String {
    let weights = &calibration.weights;
    let held_out = measured.iter().filter(|shape| shape.held_out).count();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} ({}), {}, {} connections with pipelines of {}, {} rounds over {} shapes",
        flags.target,
        server.version,
        describe(flags.cost),
        flags.connections,
        flags.pipeline,
        flags.rounds,
        measured.len()
    );
    let _ = writeln!(
        text,
        "\nmicroseconds: {:.2} a request, {:.3} a KiB in, {:.3} a KiB out, {:.4} a row, {:.4} a key of several written",
        weights.base, weights.kib_in, weights.kib_out, weights.row, weights.key
    );
    let _ = writeln!(
        text,
        "one RU is {:.2} us: one core of this server does {:.0} RU per second",
        weights.base,
        1e6 / weights.base
    );
    let _ = writeln!(
        text,
        "R2 {:.3} on the {held_out} shapes held out ({:.3} on the others); half of them cost within {:.0} % of what was foretold",
        calibration.r_squared_held_out,
        calibration.r_squared_fitted,
        100.0 * calibration.relative_error_held_out
    );
    if calibration.r_squared_held_out < R_SQUARED_GOOD {
        let _ =
            writeln!(text, "that is little: measure for more --seconds, on a machine with less else to do");
    }
    let _ = writeln!(text, "\nfarthest from what was foretold:");
    let mut worst: Vec<&Measured> = measured.iter().collect();
    let ratio = |shape: &Measured| shape.cost_us() / weights.cost(&shape.features);
    worst.sort_by(|one, other| ratio(other).ln().abs().total_cmp(&ratio(one).ln().abs()));
    for shape in worst.iter().take(WORST_SHOWN) {
        let _ = writeln!(
            text,
            "  {:<28} {:>9.2} us, foretold {:>9.2}",
            shape.name,
            shape.cost_us(),
            weights.cost(&shape.features)
        );
    }
    let _ = writeln!(
        text,
        "\nweir's flags (--ru-latency-ms is policy, not a cost of the server: it stays as it is):"
    );
    let _ = writeln!(text, "{}", calibration.flags());
    text
}

const fn describe(cost: Cost) -> &'static str {
    match cost {
        Cost::Cpu => "CPU of the server, sockets included",
        Cost::Commandstats => "INFO commandstats, without sockets",
    }
}

/// Writes every report (SVG, HTML, JSON) for which the flags name a file. The error is a text for the user.
pub fn write(
    flags: &CalibrateFlags,
    server: &ServerInfo,
    measured: &[Measured],
    calibration: &Calibration,
) -> Result<(), String> {
    if let Some(path) = &flags.svg {
        save(path, &svg(measured, calibration))?;
    }
    if let Some(path) = &flags.html {
        save(path, &page(flags, server, measured, calibration))?;
    }
    if let Some(path) = &flags.json {
        save(path, &format!("{:#}\n", json_report(flags, server, measured, calibration)))?;
    }
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn json_report(
    flags: &CalibrateFlags,
    server: &ServerInfo,
    measured: &[Measured],
    calibration: &Calibration,
) -> Value {
    let (weights, units) = (&calibration.weights, &calibration.units);
    json!({
        "weir_calibrate": env!("CARGO_PKG_VERSION"),
        "target": flags.target,
        "redis_version": server.version,
        "cost": flags.cost.name(),
        "connections": flags.connections,
        "pipeline": flags.pipeline,
        "seconds": flags.seconds,
        "rounds": flags.rounds,
        "seed": flags.seed,
        "weights_us": {
            "base": weights.base, "kib_in": weights.kib_in, "kib_out": weights.kib_out, "row": weights.row,
            "key": weights.key,
        },
        "weights_ru": {
            "base": 1.0, "kib_in": units.kib_in, "kib_out": units.kib_out, "row": units.row, "key": units.key,
        },
        "flags": calibration.flags(),
        "r_squared": { "held_out": calibration.r_squared_held_out, "fitted": calibration.r_squared_fitted },
        "median_relative_error_held_out": calibration.relative_error_held_out,
        "shapes": measured.iter().map(|shape| json!({
            "name": shape.name,
            "held_out": shape.held_out,
            "kib_in": shape.features.kib_in,
            "kib_out": shape.features.kib_out,
            "rows": shape.features.rows,
            "keys": shape.features.keys,
            "cost_us": shape.cost_us(),
            "foretold_us": weights.cost(&shape.features),
            "rounds_us": shape.rounds_us,
        })).collect::<Vec<_>>(),
    })
}

fn page(
    flags: &CalibrateFlags,
    server: &ServerInfo,
    measured: &[Measured],
    calibration: &Calibration,
) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>weir-calibrate</title><style>\
         body{font:14px system-ui,sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
         td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #e2e8f0}td:first-child{text-align:left}\
         pre{background:#f1f5f9;padding:1em;overflow:auto}</style><h1>Request units</h1>",
    );
    let _ = write!(page, "<pre>{}</pre>", escaped(&text(flags, server, measured, calibration)));
    page.push_str(&svg(measured, calibration));
    page.push_str(
        "<table><tr><th>shape</th><th>KiB in</th><th>KiB out</th><th>rows</th><th>keys</th><th>us</th><th>foretold</th><th></th></tr>",
    );
    for shape in measured {
        let features = &shape.features;
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{:.0}</td><td>{:.0}</td><td>{:.2}</td><td>{:.2}</td><td>{}</td></tr>",
            escaped(&shape.name),
            features.kib_in,
            features.kib_out,
            features.rows,
            features.keys,
            shape.cost_us(),
            calibration.weights.cost(features),
            if shape.held_out { "held out" } else { "" }
        );
    }
    page.push_str("</table></html>\n");
    page
}
