//! The interval log of `HdrHistogram`: one line for each second and group, the histogram in the V2 format, zlib and
//! base64 around it. The zlib is stored, not deflated: runs of empty counts are short in V2 already, and every reader
//! takes it.

use std::fmt::Write as _;

use hdrhistogram::Histogram;

const COOKIE: u32 = 0x1c84_9313;
const COOKIE_COMPRESSED: u32 = 0x1c84_9314;
const STORED_BLOCK_MAX: usize = 65_535;
const ADLER_MODULUS: u32 = 65_521;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// The counts are of nanoseconds; the log's own maximum is in milliseconds.
const NANOS_PER_MS: f64 = 1e6;

/// The whole file. Lines count their seconds from the start of the run.
pub fn log(lines: &[String], start_unix_ms: u64) -> String {
    let mut text = String::from("#[Latencies from the intended send time, in nanoseconds]\n");
    let (seconds, millis) = (start_unix_ms / 1_000, start_unix_ms % 1_000);
    text.push_str("#[Histogram log format version 1.3]\n");
    let _ = writeln!(text, "#[StartTime: {seconds}.{millis:03} (seconds since epoch)]");
    text.push_str(
        "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
    );
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// One second of one group.
pub fn line(group: &str, second: u32, histogram: &Histogram<u64>) -> String {
    let tag: String = group
        .chars()
        .map(|letter| if letter == ',' || letter.is_whitespace() { '-' } else { letter })
        .collect();
    let max = histogram.max() as f64 / NANOS_PER_MS;
    let mut line = String::new();
    let _ = write!(line, "Tag={tag},{second}.000,1.000,{max:.3},{}", base64(&compressed(histogram)));
    line
}

fn compressed(histogram: &Histogram<u64>) -> Vec<u8> {
    let stored = zlib(&encoded(histogram));
    let mut bytes = COOKIE_COMPRESSED.to_be_bytes().to_vec();
    bytes.extend((stored.len() as u32).to_be_bytes());
    bytes.extend(stored);
    bytes
}

fn encoded(histogram: &Histogram<u64>) -> Vec<u8> {
    let counts = counts(histogram);
    let mut bytes = COOKIE.to_be_bytes().to_vec();
    bytes.extend((counts.len() as u32).to_be_bytes());
    bytes.extend(0_u32.to_be_bytes());
    bytes.extend(u32::from(histogram.sigfig()).to_be_bytes());
    bytes.extend(histogram.low().to_be_bytes());
    bytes.extend(histogram.high().to_be_bytes());
    bytes.extend(1.0_f64.to_be_bytes());
    bytes.extend(counts);
    bytes
}

/// Counts up to the largest value; a run of empty ones is its length, negative.
fn counts(histogram: &Histogram<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut empty = 0_i64;
    for step in histogram.iter_all() {
        let count = step.count_at_value();
        if count == 0 {
            empty += 1;
            continue;
        }
        if empty > 0 {
            zigzag(&mut bytes, -empty);
            empty = 0;
        }
        zigzag(&mut bytes, count as i64);
    }
    bytes
}

/// Seven bits at a time, the lowest first; a ninth byte is whole.
fn zigzag(bytes: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    for _ in 0..8 {
        if rest < 0x80 {
            bytes.push(rest as u8);
            return;
        }
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x78, 0x01];
    let mut blocks = data.chunks(STORED_BLOCK_MAX).peekable();
    while let Some(block) = blocks.next() {
        bytes.push(u8::from(blocks.peek().is_none()));
        let length = block.len() as u16;
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(block);
    }
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in data {
        low = (low + u32::from(*byte)) % ADLER_MODULUS;
        high = (high + low) % ADLER_MODULUS;
    }
    bytes.extend((high << 16 | low).to_be_bytes());
    bytes
}

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let digit = BASE64[(word >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_all_lengths() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn zlib_with_a_known_checksum() {
        let bytes = zlib(b"Wikipedia");
        assert_eq!(bytes[..7], [0x78, 0x01, 1, 9, 0, 0xf6, 0xff]);
        assert_eq!(bytes[16..], 0x11e6_0398_u32.to_be_bytes());
    }

    #[test]
    fn numbers() {
        for (value, expected) in
            [(0, vec![0]), (-1, vec![1]), (1, vec![2]), (-64, vec![127]), (64, vec![128, 1])]
        {
            let mut bytes = Vec::new();
            zigzag(&mut bytes, value);
            assert_eq!(bytes, expected);
        }
        let mut bytes = Vec::new();
        zigzag(&mut bytes, i64::MIN);
        assert_eq!(bytes, [255; 9]);
    }

    #[test]
    fn the_head_says_when_the_run_started() {
        let text = log(&["line".to_owned()], 1_700_000_000_007);
        assert!(
            text.contains("#[StartTime: 1700000000.007 (seconds since epoch)]\n") && text.ends_with("line\n")
        );
    }

    #[test]
    fn a_line_is_what_readers_know() {
        let mut histogram = weir::load::statistics::latencies();
        histogram.record(1_000_000).expect("in bounds");
        let line = line("a,b c", 3, &histogram);
        assert!(line.starts_with("Tag=a-b-c,3.000,1.000,1.000,HISTF"), "{line}");
    }
}
