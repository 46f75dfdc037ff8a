//! Common parts of SCAN, HSCAN, SSCAN and ZSCAN: cursor, pattern, count, and the shape of the reply.

use super::call::{Call, Done};
use super::distinct::{distinct, distinct_effort};
use super::effort::{Effort, LOOK};
use super::glob;
use super::numbers::Digits;
use super::refusal::Refusal;
use super::reply::Reply;
use crate::protocol::command::scan_cursor;
use crate::values::Random;

/// Maximum number of elements that one call of SCAN or its variants visits, even if COUNT asks for more.
const COUNT_MAX: usize = 100_000;

/// The options of SCAN, HSCAN, SSCAN or ZSCAN: cursor, pattern, count and type.
pub(super) struct ScanOptions<'a> {
    pub(super) cursor: u64,
    pattern: Option<&'a [u8]>,
    pub(super) count: usize,
    /// The type that keys must have for SCAN to list them (TYPE), if it names one; other scans have no such
    /// option.
    pub(super) kind: Option<&'a [u8]>,
    /// True if a hash's fields are returned without their values (NOVALUES of HSCAN).
    pub(super) names_only: bool,
}

/// The kind of scan: of keys (SCAN), of a hash's fields (HSCAN), or of a set's or sorted set's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scanned {
    Keys,
    Fields,
    Elements,
}

impl<'a> ScanOptions<'a> {
    /// Parses the cursor of a scan at argument `index` and the options after it, of which `scanned` decides
    /// which are allowed. An error if one of them is wrong.
    pub(super) fn parse(call: &Call<'a>, index: usize, scanned: Scanned) -> Result<Self, Refusal> {
        let cursor = cursor(call.at(index))?;
        let mut options = Self { cursor, pattern: None, count: 10, kind: None, names_only: false };
        let mut index = index + 1;
        while index < call.count() {
            if call.is(index, "novalues") {
                if scanned != Scanned::Fields {
                    return Err(Refusal::Words("ERR NOVALUES option can only be used in HSCAN"));
                }
                options.names_only = true;
                index += 1;
                continue;
            }
            let Some(argument) = call.arguments.get(index + 1) else { return Err(Refusal::Syntax) };
            if call.is(index, "count") {
                let count = call.integer_at(index + 1)?;
                if count < 1 {
                    return Err(Refusal::Syntax);
                }
                options.count = (count as usize).min(COUNT_MAX);
            } else if call.is(index, "match") {
                options.pattern = Some(argument).filter(|pattern| *pattern != b"*");
            } else if call.is(index, "type") && scanned == Scanned::Keys {
                options.kind = Some(argument);
            } else {
                return Err(Refusal::Syntax);
            }
            index += 2;
        }
        Ok(options)
    }

    /// Returns the cursor as the 32-bit hash value at which the scan of a collection continues; `None` if it
    /// is larger, and so beyond the end.
    pub(super) fn table_cursor(&self) -> Option<u32> {
        u32::try_from(self.cursor).ok()
    }

    /// True if the name of an element that the scan has reached matches the pattern of MATCH, if any. Charges
    /// the matching as effort (steps of work); an error if too little is left.
    pub(super) fn wants(&self, name: &[u8], effort: &Effort) -> Result<bool, Refusal> {
        effort.spend(1, LOOK)?;
        self.pattern.map_or(Ok(true), |pattern| glob::matches(pattern, name, effort))
    }
}

/// Returns an error if the text is no valid cursor of a scan; commands call it before they look at the key.
pub(super) fn check_cursor(text: &[u8]) -> Result<(), Refusal> {
    cursor(text).map(|_| ())
}

fn cursor(text: &[u8]) -> Result<u64, Refusal> {
    scan_cursor(text).ok_or(Refusal::InvalidCursor)
}

/// The reply of a scan while it is written: elements are appended as the scan reaches them; cursor and number
/// are inserted before them at the end.
pub(super) struct Page<'a> {
    options: ScanOptions<'a>,
    effort: &'a Effort,
    count: usize,
    refused: Done,
}

impl<'a> Page<'a> {
    pub(super) fn new(options: ScanOptions<'a>, effort: &'a Effort) -> Self {
        Self { options, effort, count: 0, refused: Ok(()) }
    }

    pub(super) fn options(&self) -> &ScanOptions<'a> {
        &self.options
    }

    /// Handles an element that the scan has reached: if its name matches, `write` appends it to the reply as
    /// `strings` strings. If too little effort (steps of work) is left for the match, [`Page::finish`] will
    /// fail.
    pub(super) fn meet(&mut self, name: &[u8], strings: usize, write: impl FnOnce()) {
        match self.options.wants(name, self.effort) {
            Ok(true) => {
                write();
                self.count += strings;
            }
            Ok(false) => {}
            Err(refusal) => self.refused = Err(refusal),
        }
    }

    /// Completes the reply to SCAN or a variant: inserts the cursor for the client's next call (`next`, or 0
    /// at the end) and the number of elements before the elements. An error if there was too little effort
    /// (steps of work) to match the name of an element.
    pub(super) fn finish(self, out: &mut Reply<'_>, next: Option<u64>) -> Done {
        self.refused?;
        out.insert(0, |out| {
            out.array(2);
            out.bulk(Digits::new(next.unwrap_or(0) as i64).as_bytes());
            out.array(self.count);
        });
        Ok(())
    }
}

/// Writes the reply to a scan of a key that does not exist: cursor 0 and no elements. Never fails.
pub(super) fn nothing(out: &mut Reply<'_>) -> Done {
    out.array(2);
    out.bulk(b"0");
    out.array(0);
    Ok(())
}

/// Returns `count` random positions below `length` for HRANDFIELD and its variants: distinct ones, at most
/// `length` of them, or repeated ones, as many as asked for, if `count` is negative. An error if that takes
/// too much effort, or for a count below -1,000,000.
pub(super) fn picks(
    random: &mut Random,
    count: i64,
    length: usize,
    effort: &Effort,
) -> Result<Vec<usize>, Refusal> {
    if count >= 0 {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(length);
        let (elements, each) = distinct_effort(count, length);
        effort.spend(elements, each)?;
        return Ok(distinct(random, count, length));
    }
    let count = count.unsigned_abs() as usize;
    if count > PICKS_MAX {
        return Err(Refusal::Words("ERR value is out of range"));
    }
    effort.spend(if length == 0 { 0 } else { count }, 2 * LOOK)?;
    Ok(if length == 0 { Vec::new() } else { (0..count).map(|_| random.index(length)).collect() })
}

/// Maximum number of elements, with repetitions, that HRANDFIELD and its variants may be asked for by a
/// negative count. A request for more is refused.
const PICKS_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn a_scan_of_a_key_is_one_hit() {
        let mut bench = Bench::new();
        bench.talk(&[("HSET h a 1", ":1|"), ("SADD s a", ":1|"), ("ZADD z 1 a", ":1|")]);
        for (line, hits) in [("HSCAN h 0", 1), ("SSCAN s 0", 2), ("ZSCAN z 0", 3)] {
            assert!(bench.send(line).starts_with("*2|$1|0|*"));
            assert_eq!(bench.engine.statistics().hits, hits, "{line}");
        }
    }
}
