//! LCS: the longest common subsequence of two strings.

use super::call::{Call, Command, Done, Effect, command};
use super::numbers;
use super::refusal::Refusal;
use super::reply::Reply;
use super::value::Value;

pub(super) const COMMANDS: &[Command] = &[command("lcs", -3, Effect::Read, lcs)];

/// The number of cells (pairs of bytes) of LCS's comparison table that are computed per unit of effort (steps
/// of work).
const CELLS_PER_UNIT: usize = 32;

/// The options of LCS: what the reply contains, and the least length of a common stretch that it lists.
#[derive(Default)]
struct Options {
    length_only: bool,
    with_places: bool,
    with_lengths: bool,
    length_min: usize,
}

impl Options {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut index = 3;
        while index < call.count() {
            if call.is(index, "len") {
                options.length_only = true;
            } else if call.is(index, "idx") {
                options.with_places = true;
            } else if call.is(index, "withmatchlen") {
                options.with_lengths = true;
            } else if call.is(index, "minmatchlen") && index + 1 < call.count() {
                index += 1;
                options.length_min = usize::try_from(call.integer_at(index)?).unwrap_or(0);
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        if options.length_only && options.with_places {
            return Err(Refusal::Words("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(options)
    }
}

fn lcs(call: &mut Call<'_>) -> Done {
    let left = string(call, 1)?;
    let right = string(call, 2)?;
    let options = Options::parse(call)?;
    let cells = left.len().saturating_mul(right.len());
    call.effort.spend(cells / CELLS_PER_UNIT, 1)?;
    let table = Table::new(&left, &right);
    if options.length_only {
        return call.number(table.length);
    }
    if !options.with_places {
        let mut common = Vec::with_capacity(table.length);
        table.walk_back(|step| {
            if let Step::Match(at, _) = step {
                common.push(left[at]);
            }
        });
        common.reverse();
        return call.bulk(&common);
    }
    write_places(&mut call.out, call.session.protocol, &table, &options);
    Ok(())
}

/// Returns a copy of the string at the key in argument `index`; an empty one if there is no such key, an
/// error if the value is no string.
fn string(call: &mut Call<'_>, index: usize) -> Result<Vec<u8>, Refusal> {
    let mut digits = numbers::Digits::new(0);
    match call.keyspace.read(call.arguments.at(index)).map(|value: &Value| value.bytes(&mut digits)) {
        None => Ok(Vec::new()),
        Some(Some(bytes)) => Ok(bytes.to_vec()),
        Some(None) => Err(Refusal::Words("ERR The specified keys must contain string values")),
    }
}

/// A step of the search for the longest common subsequence of two strings, which goes from their ends to their
/// beginnings.
enum Step {
    /// The bytes at these positions of both strings belong to the common subsequence.
    Match(usize, usize),
    /// A byte of one of the strings is passed over: it does not belong to the common subsequence.
    Gap,
}

/// The comparison table of LCS for two strings. One bit for each pair of their positions says whether the way
/// back from there passes over a byte of the left string.
struct Table<'a> {
    left: &'a [u8],
    right: &'a [u8],
    /// The length in bytes of the longest common subsequence of `left` and `right`, which LCS replies.
    length: usize,
    /// A bit for each pair of a byte of the left string (rows) and one of the right. The bit is set where
    /// tracing the longest common subsequence back from the end leaves out the left byte.
    upward: Vec<u64>,
}

impl<'a> Table<'a> {
    fn new(left: &'a [u8], right: &'a [u8]) -> Self {
        let mut upward = vec![0_u64; (left.len() * right.len()).div_ceil(64)];
        let mut above = vec![0_u32; right.len() + 1];
        let mut row = above.clone();
        for (i, a) in left.iter().enumerate() {
            for (j, b) in right.iter().enumerate() {
                row[j + 1] = if a == b {
                    above[j] + 1
                } else if above[j + 1] > row[j] {
                    let cell = i * right.len() + j;
                    upward[cell / 64] |= 1 << (cell % 64);
                    above[j + 1]
                } else {
                    row[j]
                };
            }
            std::mem::swap(&mut row, &mut above);
        }
        Self { left, right, length: above[right.len()] as usize, upward }
    }

    fn walk_back(&self, mut visit: impl FnMut(Step)) {
        let (mut i, mut j) = (self.left.len(), self.right.len());
        while i > 0 && j > 0 {
            if self.left[i - 1] == self.right[j - 1] {
                (i, j) = (i - 1, j - 1);
                visit(Step::Match(i, j));
                continue;
            }
            let cell = (i - 1) * self.right.len() + j - 1;
            if self.upward[cell / 64] >> (cell % 64) & 1 == 1 {
                i -= 1;
            } else {
                j -= 1;
            }
            visit(Step::Gap);
        }
        visit(Step::Gap);
    }
}

/// A stretch of bytes that both strings of LCS have in common, by its first position in each.
#[derive(Clone, Copy)]
struct Stretch {
    left: usize,
    right: usize,
    length: usize,
}

/// Writes the reply of `LCS ... IDX`: the stretches of bytes that both strings have in common, from the last
/// to the first, and their total length. `table` is the comparison table of the two strings.
fn write_places(
    out: &mut Reply<'_>,
    protocol: crate::protocol::Protocol,
    table: &Table<'_>,
    options: &Options,
) {
    out.map(protocol, 2);
    out.bulk(b"matches");
    let at = out.len();
    let mut count = 0;
    let mut open: Option<Stretch> = None;
    table.walk_back(|step| match (step, &mut open) {
        (Step::Match(left, right), Some(stretch)) => {
            (stretch.left, stretch.right, stretch.length) = (left, right, stretch.length + 1);
        }
        (Step::Match(left, right), none) => *none = Some(Stretch { left, right, length: 1 }),
        (Step::Gap, open) => {
            if let Some(stretch) = open.take().filter(|stretch| stretch.length >= options.length_min) {
                write_stretch(out, stretch, options.with_lengths);
                count += 1;
            }
        }
    });
    out.insert(at, |out| out.array(count));
    out.bulk(b"len");
    out.integer(table.length as i64);
}

fn write_stretch(out: &mut Reply<'_>, stretch: Stretch, with_length: bool) {
    out.array(if with_length { 3 } else { 2 });
    for start in [stretch.left, stretch.right] {
        out.array(2);
        out.integer(start as i64);
        out.integer((start + stretch.length - 1) as i64);
    }
    if with_length {
        out.integer(stretch.length as i64);
    }
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn two_strings_are_compared() {
        Bench::new().talk(&[
            ("MSET a ohmytext b mynewtext", "+OK|"),
            ("LCS a b", "$6|mytext|"),
            ("LCS a b LEN", ":6|"),
            ("LCS a b IDX", "*4|$7|matches|*2|*2|*2|:4|:7|*2|:5|:8|*2|*2|:2|:3|*2|:0|:1|$3|len|:6|"),
            ("LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN", "*4|$7|matches|*1|*3|*2|:4|:7|*2|:5|:8|:4|$3|len|:6|"),
            ("LCS a nothing", "$0||"),
            ("LCS a nothing IDX", "*4|$7|matches|*0|$3|len|:0|"),
            ("LCS a b IDX LEN", "-ERR If you want both the length and indexes, please just use IDX.|"),
            ("RPUSH l x", ":1|"),
            ("LCS a l", "-ERR The specified keys must contain string values|"),
        ]);
    }
}
