//! Plots over time as inline SVG: lines, axes with round numbers, a legend.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;
const TICKS: f64 = 5.0;
/// Maximum number of points of a line in a plot; if there are more, each drawn point is the largest of
/// several neighbours, so that no peak is lost.
const POINTS_MAX: usize = 600;
const LOG_RANGE_MAX: f64 = 1e6;

pub const COLOURS: [&str; 10] = [
    "#2563eb", "#16a34a", "#ea580c", "#dc2626", "#7c3aed", "#0891b2", "#ca8a04", "#db2777", "#475569",
    "#65a30d",
];

/// A line of a plot, with its name in the legend, its colour (an index into the list of colours) and its
/// points.
pub struct Line {
    pub name: String,
    pub colour: usize,
    /// True for a line of an earlier run with which this run is compared; it is drawn dashed.
    pub dashed: bool,
    /// The points of the line: each is the second of the run, and the value then; `None` leaves a gap.
    pub points: Vec<(f64, Option<f64>)>,
}

/// The scale by which values are mapped to the height of a plot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    Linear,
    Logarithmic,
}

/// Returns a plot over the seconds of a run as an HTML figure with an SVG. `marks` are named vertical lines,
/// each at a second of the time axis. Title and names are escaped.
pub fn plot(title: &str, scale: Scale, lines: &[Line], marks: &[(f64, String)]) -> String {
    let frame = Frame::around(scale, lines);
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escaped(title),
        escaped(title)
    );
    frame.draw_axes(&mut svg);
    for (second, name) in marks {
        let x = frame.x(*second);
        let (bottom, text) = (HEIGHT - BOTTOM, escaped(name));
        let _ = write!(
            svg,
            "<path class=\"mark\" d=\"M{x:.1} {TOP}V{bottom}\"/><text class=\"mark\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
            x + 3.0,
            TOP + 9.0
        );
    }
    for line in lines {
        let colour = COLOURS[line.colour % COLOURS.len()];
        let dash = if line.dashed { " stroke-dasharray=\"5 4\" opacity=\"0.7\"" } else { "" };
        let path = frame.path(line);
        let _ = write!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dash}><title>{}</title></path>",
            escaped(&line.name)
        );
    }
    svg.push_str("</svg><div class=\"legend\">");
    for line in lines {
        let style = if line.dashed { "dashed" } else { "solid" };
        let colour = COLOURS[line.colour % COLOURS.len()];
        let name = escaped(&line.name);
        let _ = write!(svg, "<span><i style=\"border-top:2px {style} {colour}\"></i>{name}</span>");
    }
    svg.push_str("</div></figure>");
    svg
}

struct Frame {
    scale: Scale,
    seconds: f64,
    low: f64,
    high: f64,
}

impl Frame {
    fn around(scale: Scale, lines: &[Line]) -> Self {
        let points = || lines.iter().flat_map(|line| &line.points);
        let seconds = points().map(|(second, _)| *second).fold(1.0, f64::max);
        let values = || points().filter_map(|(_, value)| *value);
        let most = values().fold(0.0, f64::max);
        match scale {
            Scale::Linear => {
                let most = if most > 0.0 { most } else { 1.0 };
                let step = round_step(most / TICKS);
                let least = values().fold(0.0, f64::min);
                let low = if least < 0.0 { (least / step).floor() * step } else { 0.0 };
                Self { scale, seconds, low, high: (most / step).ceil().max(1.0) * step }
            }
            Scale::Logarithmic => {
                let high = power_of_ten_above(most.max(1e-3));
                let least = values().filter(|value| *value > 0.0).fold(high / 10.0, f64::min);
                let low = power_of_ten_above(least) / 10.0;
                Self { scale, seconds, low: low.max(high / LOG_RANGE_MAX), high }
            }
        }
    }

    fn x(&self, second: f64) -> f64 {
        LEFT + second / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn draw_axes(&self, svg: &mut String) {
        for value in self.ticks() {
            let y = self.y(value);
            let (right, x, text) = (WIDTH - RIGHT, LEFT - 6.0, short(value));
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"y\" x=\"{x}\" y=\"{:.1}\">{text}</text>",
                y + 3.5
            );
        }
        let step = round_step(self.seconds / 8.0).max(1.0);
        let mut second = 0.0;
        while second <= self.seconds {
            let (x, y) = (self.x(second), HEIGHT - 8.0);
            let _ = write!(svg, "<text class=\"x\" x=\"{x:.1}\" y=\"{y}\">{second:.0}s</text>");
            second += step;
        }
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        match self.scale {
            Scale::Linear => {
                let step = round_step((self.high - self.low) / TICKS);
                let count = ((self.high - self.low) / step).round() as u32;
                ticks.extend((0..=count).map(|index| self.low + f64::from(index) * step));
            }
            Scale::Logarithmic => {
                let mut value = self.low;
                while value <= self.high * 1.001 {
                    ticks.push(value);
                    value *= 10.0;
                }
            }
        }
        ticks
    }

    fn path(&self, line: &Line) -> String {
        let mut path = String::new();
        let mut pen_down = false;
        for group in line.points.chunks(line.points.len().div_ceil(POINTS_MAX).max(1)) {
            let value = group.iter().filter_map(|(_, value)| *value).reduce(f64::max);
            match value {
                None => pen_down = false,
                Some(value) => {
                    let command = if pen_down { 'L' } else { 'M' };
                    let _ = write!(path, "{command}{:.1} {:.1}", self.x(group[0].0), self.y(value));
                    if !pen_down {
                        // A point without neighbours is visible too.
                        path.push_str("h0.1");
                    }
                    pen_down = true;
                }
            }
        }
        path
    }
}

/// Returns the smallest number of the form 1, 2, 5 or 10 times a power of ten that is not below `step` (by
/// more than 0.1 %), for the distance of an axis's ticks.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

fn power_of_ten_above(value: f64) -> f64 {
    10_f64.powf((value.log10() - 1e-9).ceil())
}

/// Formats a number for an axis: at most three decimals, with k, M or G for thousands, millions and
/// thousands of millions.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Escapes text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (step, round) in [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05)] {
            assert!((round_step(step) - round).abs() < 1e-9, "{step}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [(0.0, "0"), (0.001, "0.001"), (1_500.0, "1.5k"), (2e6, "2M"), (10.0, "10")] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn a_plot_escapes_names_and_survives_gaps_and_nothing_at_all() {
        let points = vec![(0.0, Some(1.0)), (1.0, None), (2.0, Some(3.0))];
        let line = Line { name: "<a&b>".to_owned(), colour: 0, dashed: true, points };
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = plot("a \"title\"", scale, std::slice::from_ref(&line), &[(1.0, "<p>".to_owned())]);
            assert!(
                svg.contains("&lt;a&amp;b&gt;") && !svg.contains("<a&b>") && !svg.contains("NaN"),
                "{svg}"
            );
            assert!(!plot("", scale, &[], &[]).contains("NaN"));
        }
    }

    #[test]
    fn no_peak_is_lost_in_a_long_run() {
        let mut points: Vec<(f64, Option<f64>)> =
            (0..10_000).map(|second| (f64::from(second), Some(1.0))).collect();
        points[5_003].1 = Some(100.0);
        let line = Line { name: String::new(), colour: 0, dashed: false, points };
        let frame = Frame::around(Scale::Linear, std::slice::from_ref(&line));
        assert!(frame.path(&line).contains(&format!(" {:.1}", frame.y(100.0))));
    }
}
