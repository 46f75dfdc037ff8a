//! The interval log of `HdrHistogram`: one line for each second and group.

use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriter, IntervalLogWriterBuilder, Tag};

/// The divisor that turns nanoseconds, which the histograms count, into milliseconds, in which each line of the
/// interval log gives its largest latency.
const NANOS_PER_MS: f64 = 1e6;
/// The version comment that Java's `HdrHistogram` writes first; `COLUMNS` is the line of column heads that
/// follows. Readers of the format need neither.
const VERSION: &str = "[Histogram log format version 1.3]";
const COLUMNS: &str =
    "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";

/// Builds the whole interval log of `HdrHistogram` from its lines, which count their seconds from the start
/// of the run (`start_unix_ms`, in milliseconds since 1970).
pub fn log(lines: &[String], start_unix_ms: u64) -> String {
    let mut head = IntervalLogWriterBuilder::new();
    head.add_comment("[Latencies from the intended send time, in nanoseconds]").add_comment(VERSION);
    head.with_start_time(UNIX_EPOCH + Duration::from_millis(start_unix_ms));
    let mut text = written(&mut head, |_| {});
    text.push_str(COLUMNS);
    lines.iter().for_each(|line| text.extend([line, "\n"]));
    text
}

/// Builds the line of the interval log for one second of one group of clients. `second` counts from the
/// start of the run, and the histogram has latencies in nanoseconds.
pub fn line(group: &str, second: u32, histogram: &Histogram<u64>) -> String {
    let tag: String = group
        .chars()
        .map(|letter| if letter == ',' || letter.is_whitespace() { '-' } else { letter })
        .collect();
    let start = Duration::from_secs(u64::from(second));
    let text = written(&mut IntervalLogWriterBuilder::new(), |log| {
        let written = log.write_histogram(histogram, start, Duration::from_secs(1), Tag::new(&tag));
        written.expect("memory takes what is written to it");
    });
    // The writer repeats the unit of the maximum in a comment before each line; only the last line is kept.
    text.trim_end().rsplit('\n').next().expect("a line was written").to_owned()
}

type Writer<'a> = IntervalLogWriter<'a, 'a, Vec<u8>, V2DeflateSerializer>;

fn written(builder: &mut IntervalLogWriterBuilder, write: impl FnOnce(&mut Writer<'_>)) -> String {
    let (mut text, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    builder.with_max_value_divisor(NANOS_PER_MS);
    let begun = builder.begin_log_with(&mut text, &mut serializer);
    write(&mut begun.expect("memory takes what is written to it"));
    String::from_utf8(text).expect("the log is text")
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use weir::values::Random;

    use super::*;

    #[test]
    fn the_head_says_when_the_run_started() {
        let text = log(&["line".to_owned()], 1_700_000_000_007);
        assert!(text.contains("#[StartTime: 1700000000.007 (seconds since epoch)]\n"), "{text}");
        assert!(text.contains(&format!("#{VERSION}\n")) && text.ends_with("line\n"), "{text}");
    }

    #[test]
    fn a_line_is_what_readers_know() {
        let mut histogram = weir_load::statistics::latencies();
        histogram.record(1_000_000).expect("in bounds");
        let line = line("a,b c", 3, &histogram);
        assert!(line.starts_with("Tag=a-b-c,3.000,1.000,1.000,HISTF"), "{line}");
    }

    #[test]
    fn what_was_logged_is_read_again() {
        let mut random = Random::new(1);
        let mut told = Vec::new();
        for second in 0..50_u32 {
            let mut histogram = weir_load::statistics::latencies();
            for _ in 0..random.below(2_000) {
                let magnitude = random.between(8, 41);
                histogram.saturating_record(random.below(1 << magnitude));
            }
            told.push((second, histogram));
        }
        let lines: Vec<String> =
            told.iter().map(|(second, histogram)| line("g", *second, histogram)).collect();
        let text = log(&lines, 1_700_000_000_000);
        let without_columns = text.replace(COLUMNS, "");
        let mut read = IntervalLogIterator::new(without_columns.as_bytes())
            .map(|entry| entry.expect("the log is well formed"))
            .filter_map(|entry| match entry {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            });
        for (second, histogram) in told {
            let interval = read.next().expect("a line for each second");
            assert_eq!(interval.tag().map(|tag| tag.as_str()), Some("g"));
            assert_eq!(interval.start_timestamp(), Duration::from_secs(u64::from(second)));
            let bytes = STANDARD.decode(interval.encoded_histogram()).expect("base64");
            let found: Histogram<u64> =
                Deserializer::new().deserialize(&mut &bytes[..]).expect("a histogram");
            assert!(found == histogram, "second {second}");
        }
        assert!(read.next().is_none());
    }
}
