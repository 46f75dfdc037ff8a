//! The percentile distribution in the format of `HdrHistogram`'s plotter. Values are in milliseconds.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

const TICKS_PER_HALF: u32 = 5;
const NANOS_PER_MS: f64 = 1e6;

/// Builds the whole file of percentiles, for the plotter of `HdrHistogram`, from a histogram of latencies in
/// nanoseconds.
pub fn distribution(histogram: &Histogram<u64>) -> String {
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        let (value, quantile) = (step.value_iterated_to() as f64 / NANOS_PER_MS, step.quantile_iterated_to());
        let count = histogram.count_between(0, step.value_iterated_to());
        let _ = if quantile < 1.0 {
            writeln!(text, "{value:12.6} {quantile:2.12} {count:10} {:14.2}", 1.0 / (1.0 - quantile))
        } else {
            writeln!(text, "{value:12.6} {quantile:2.12} {count:10}            inf")
        };
    }
    let (mean, deviation) = (histogram.mean() / NANOS_PER_MS, histogram.stdev() / NANOS_PER_MS);
    let (max, count) = (histogram.max() as f64 / NANOS_PER_MS, histogram.len());
    let _ = writeln!(text, "#[Mean    = {mean:12.6}, StdDeviation   = {deviation:12.6}]");
    let _ = writeln!(text, "#[Max     = {max:12.6}, Total count    = {count:12}]");
    let _ = writeln!(
        text,
        "#[Buckets = {:12}, SubBuckets     = {:12}]",
        histogram.buckets(),
        2_u64 << (10_f64.powi(i32::from(histogram.sigfig())).log2().ceil() as u32)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution() {
        let mut histogram = weir_load::statistics::latencies();
        (1..=1_000_u64).for_each(|millis| histogram.record(millis * 1_000_000).expect("in bounds"));
        let text = distribution(&histogram);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(rows.iter().all(|row| row.len() == 4));
        let last = rows.last().expect("there are rows");
        assert_eq!((last[2], last[3]), ("1000", "inf"));
        let median = rows.iter().find(|row| row[1].starts_with("0.5000")).expect("there is a median");
        assert!((median[0].parse::<f64>().expect("a number") - 500.0).abs() < 1.0);
        assert!(text.contains("Total count    =         1000]"));
    }
}
