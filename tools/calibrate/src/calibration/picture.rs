//! A picture of predicted against measured costs: one dot for each shape, on logarithmic scales.

use std::fmt::Write as _;

use super::{Calibration, Measured};

const SIZE: f64 = 520.0;
const MARGIN: f64 = 56.0;
const LEGEND: f64 = 22.0;
const RADIUS: f64 = 4.0;
const FITTED: &str = "#2563eb";
const HELD_OUT: &str = "#ea580c";

/// Draws the predicted against the measured cost of each shape as SVG, for a file of its own or to be put
/// into a page.
pub fn svg(measured: &[Measured], calibration: &Calibration) -> String {
    let frame = Frame::around(measured, calibration);
    let mut svg = String::new();
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIZE} {SIZE}\" width=\"{SIZE}\" height=\"{SIZE}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11\" role=\"img\">\
         <title>Microseconds of the store for one request: foretold by the weights, against measured</title>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    frame.draw_axes(&mut svg);
    for shape in measured {
        let (cost, foretold) = (shape.cost_us(), calibration.weights.cost(&shape.features));
        let (colour, name) = (if shape.held_out { HELD_OUT } else { FITTED }, escaped(&shape.name));
        let _ = write!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{RADIUS}\" fill=\"{colour}\" fill-opacity=\"0.7\">\
             <title>{name}: {cost:.2} us measured, {foretold:.2} us foretold</title></circle>",
            frame.x(cost),
            frame.y(foretold)
        );
    }
    let legend = [
        (FITTED, format!("fitted, R2 {:.3}", calibration.r_squared_fitted)),
        (HELD_OUT, format!("held out, R2 {:.3}", calibration.r_squared_held_out)),
    ];
    for (at, (colour, text)) in legend.iter().enumerate() {
        let (x, y) = (MARGIN + 14.0, MARGIN + 10.0 + at as f64 * 17.0);
        let _ = write!(
            svg,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{RADIUS}\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{text}</text>",
            x + 9.0,
            y + 4.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The axes, which both have the same logarithmic scale of costs in microseconds, from one power of ten
/// (`low`) to another (`high`).
struct Frame {
    low: f64,
    high: f64,
}

impl Frame {
    fn around(measured: &[Measured], calibration: &Calibration) -> Self {
        let costs = || {
            let both = |shape: &Measured| [shape.cost_us(), calibration.weights.cost(&shape.features)];
            measured.iter().flat_map(both).filter(|cost| *cost > 0.0)
        };
        let low = costs().fold(f64::INFINITY, f64::min);
        let high = costs().fold(0.0, f64::max);
        if high <= 0.0 {
            return Self { low: 1.0, high: 10.0 };
        }
        let (low, high) = (low.log10().floor(), high.log10().ceil());
        Self { low: 10_f64.powf(low), high: 10_f64.powf(high.max(low + 1.0)) }
    }

    fn share(&self, cost: f64) -> f64 {
        ((cost / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    fn x(&self, cost: f64) -> f64 {
        MARGIN + self.share(cost) * (SIZE - 2.0 * MARGIN)
    }

    fn y(&self, cost: f64) -> f64 {
        SIZE - MARGIN - self.share(cost) * (SIZE - 2.0 * MARGIN)
    }

    fn draw_axes(&self, svg: &mut String) {
        let (near, far) = (MARGIN, SIZE - MARGIN);
        let mut cost = self.low;
        while cost <= self.high * 1.001 {
            let (x, y) = (self.x(cost), self.y(cost));
            let _ = write!(
                svg,
                "<path d=\"M{near} {y:.1}H{far}M{x:.1} {near}V{far}\" stroke=\"#e2e8f0\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{cost}</text>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{cost}</text>",
                far + 15.0,
                near - 6.0,
                y + 4.0
            );
            cost *= 10.0;
        }
        let (middle, below) = (SIZE / 2.0, far + LEGEND + 14.0);
        let _ = write!(
            svg,
            "<path d=\"M{near} {far}L{far} {near}\" stroke=\"#94a3b8\" stroke-dasharray=\"5 4\"/>\
             <text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">measured, us per request</text>\
             <text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">\
             foretold, us per request</text>"
        );
    }
}

/// Escapes text for SVG and HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::fit::{Features, Weights};
    use super::*;

    fn shape(name: &str, kib_out: f64, cost: f64, held_out: bool) -> Measured {
        let features = Features { kib_in: 0.1, kib_out, rows: 1.0, keys: 0.0 };
        Measured { name: name.to_owned(), features, rounds_us: vec![cost], held_out }
    }

    fn calibration() -> Calibration {
        let weights = Weights { base: 2.0, kib_out: 1.0, ..Weights::default() };
        Calibration {
            weights,
            units: weights,
            r_squared_fitted: 0.99,
            r_squared_held_out: 0.98,
            relative_error_held_out: 0.1,
        }
    }

    #[test]
    fn every_shape_has_a_dot_that_lies_on_the_line_where_it_was_foretold() {
        let shapes = [shape("GET <a>", 0.0, 2.0, false), shape("GET b", 998.0, 1_000.0, true)];
        let svg = svg(&shapes, &calibration());
        assert_eq!(svg.matches("<circle").count(), 2 + 2);
        assert!(svg.contains("GET &lt;a&gt;: 2.00 us measured, 2.00 us foretold"), "{svg}");
        let frame = Frame::around(&shapes, &calibration());
        assert_eq!((frame.low, frame.high), (1.0, 1_000.0));
        assert!((frame.x(37.0) + frame.y(37.0) - SIZE).abs() < 1e-9);
        assert!((frame.x(1_000.0) - (SIZE - MARGIN)).abs() < 1e-9);
    }

    #[test]
    fn nothing_at_all_is_drawn_without_a_complaint() {
        let odd = svg(&[], &calibration()) + &svg(&[shape("nothing", 0.0, 0.0, false)], &calibration());
        assert!(!odd.contains("NaN") && !odd.contains("inf"), "{odd}");
    }
}
