//! Metrics in the Prometheus text format, version 0.0.4.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

/// The value of the HTTP header `content-type` for metrics in the text format of Prometheus.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric, as Prometheus knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows; the metric's name ends in `_total`.
    Counter,
    /// A metric whose value goes up and down.
    Gauge,
    /// Quantiles, with the sum and the count of the values.
    Summary,
}

/// The value of one sample of a metric, as it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// An integer as the value of a sample; all its digits are written.
    Whole(u64),
    /// A floating-point number as the value of a sample; it may be whole, infinite or NaN.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(out),
            Self::Real(value) if value.is_nan() => out.write_str("NaN"),
            Self::Real(value) if value.is_infinite() => {
                out.write_str(if *value > 0.0 { "+Inf" } else { "-Inf" })
            }
            Self::Real(value) => value.fmt(out),
        }
    }
}

/// The text of the page `/metrics` while it is being written, one family of samples after another.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    text: String,
    families: BTreeSet<String>,
}

/// The family of all samples of one metric, which the format requires next to each other.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Exposition {
    /// Creates a text of metrics that is empty so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a family of samples: one metric, with its name, its help text and its type. Its samples must be
    /// added before the next family starts.
    pub fn family<'a>(&'a mut self, name: &'a str, help: &str, kind: Kind) -> Family<'a> {
        debug_assert!(is_name(name), "{name} is no name of a metric");
        debug_assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let is_new = self.families.insert(name.to_owned());
        debug_assert!(is_new, "{name} is there already");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Summary => "summary",
        };
        self.text.push_str("# HELP ");
        self.text.push_str(name);
        self.text.push(' ');
        escape(&mut self.text, help, &['\\', '\n']);
        self.line(format_args!("\n# TYPE {name} {kind}"));
        Family { text: &mut self.text, name }
    }

    /// Returns the finished text of all metrics.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, words: fmt::Arguments<'_>) {
        writeln!(self.text, "{words}").expect("writing to a string does not fail");
    }
}

impl Family<'_> {
    /// Adds a sample to the family. `labels` are names and values; they must differ from those of the
    /// family's other samples.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) -> &mut Self {
        self.text.push_str(self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            debug_assert!(is_name(name) && !name.contains(':'), "{name} is no name of a label");
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(self.text, value, &['\\', '\n', '"']);
            self.text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{end} {}", value.into()).expect("writing to a string does not fail");
        self
    }
}

impl Family<'_> {
    /// Adds the sum and the count of the values from which a summary's quantiles are computed.
    pub fn sum_and_count(&mut self, sum: f64, count: u64) {
        let name = self.name;
        writeln!(self.text, "{name}_sum {}\n{name}_count {count}", Value::from(sum))
            .expect("writing to a string does not fail");
    }
}

/// Appends `text` to `out` with a backslash before each character in `special`, where a line end is written
/// as backslash and `n`. Other control characters become `?`: the format cannot express them, and some
/// readers take them for line ends.
fn escape(out: &mut String, text: &str, special: &[char]) {
    for letter in text.chars() {
        if special.contains(&letter) {
            out.push('\\');
        }
        out.push(match letter {
            '\n' => 'n',
            '\u{2028}' | '\u{2029}' => '?',
            _ if letter.is_control() => '?',
            _ => letter,
        });
    }
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    name.bytes().all(fits) && name.starts_with(|first: char| !first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_with_their_samples() {
        let mut page = Exposition::new();
        page.family("weir_requests_total", "Requests decoded.", Kind::Counter)
            .sample(&[("shard", "0")], 3_u64)
            .sample(&[("shard", "1"), ("tier", "batch")], u64::MAX);
        page.family("weir_load", "How busy.", Kind::Gauge).sample(&[], 0.25);
        let mut family = page.family("weir_seconds", "How long.", Kind::Summary);
        family.sample(&[("quantile", "0.5")], 0.5).sum_and_count(7.5, 3);
        assert_eq!(
            page.finish(),
            "# HELP weir_requests_total Requests decoded.\n\
             # TYPE weir_requests_total counter\n\
             weir_requests_total{shard=\"0\"} 3\n\
             weir_requests_total{shard=\"1\",tier=\"batch\"} 18446744073709551615\n\
             # HELP weir_load How busy.\n\
             # TYPE weir_load gauge\n\
             weir_load 0.25\n\
             # HELP weir_seconds How long.\n\
             # TYPE weir_seconds summary\n\
             weir_seconds{quantile=\"0.5\"} 0.5\n\
             weir_seconds_sum 7.5\n\
             weir_seconds_count 3\n"
        );
    }

    #[test]
    fn what_has_a_meaning_of_its_own_is_escaped() {
        let mut odd = String::new();
        escape(&mut odd, "a\r\t\u{85}\u{2028}\u{1b}b", &[]);
        assert_eq!(odd, "a?????b");
        let mut page = Exposition::new();
        page.family("up", "a \\ \"b\"\nc", Kind::Gauge).sample(&[("key", "a\\b\"c\nd")], 1_u64);
        assert_eq!(
            page.finish(),
            "# HELP up a \\\\ \"b\"\\nc\n# TYPE up gauge\nup{key=\"a\\\\b\\\"c\\nd\"} 1\n"
        );
    }

    #[test]
    fn numbers_that_are_none() {
        let shown = |value: f64| Value::from(value).to_string();
        assert_eq!(
            [shown(f64::NAN), shown(f64::INFINITY), shown(f64::NEG_INFINITY)],
            ["NaN", "+Inf", "-Inf"]
        );
        assert_eq!([shown(1.0), shown(1e21), shown(-0.5)], ["1", "1000000000000000000000", "-0.5"]);
    }

    #[test]
    fn names() {
        for name in ["up", "_a1", "job:up"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "1a", "a-b", "a b", "é"] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    #[should_panic(expected = "is there already")]
    #[cfg(debug_assertions)]
    fn a_family_stands_together() {
        let mut page = Exposition::new();
        page.family("up", "Up.", Kind::Gauge);
        page.family("up", "Up.", Kind::Gauge);
    }
}
