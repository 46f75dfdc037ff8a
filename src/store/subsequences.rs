//! LCS: the longest common subsequence of two strings.

use super::call::{Call, Command, Done, Effect, command};
use super::keyspace::Keyspace;
use super::numbers;
use super::refusal::Refusal;
use super::reply::Reply;

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
    let (left, right) = (length(call, 1), length(call, 2));
    let cells = left?.saturating_mul(right?);
    let options = Options::parse(call)?;
    call.effort.spend(cells / CELLS_PER_UNIT, 1)?;
    call.afford_meanwhile(cells / 8)?;
    let (mut left, mut right) = (numbers::Digits::new(0), numbers::Digits::new(0));
    let (left, right) =
        (string(call.keyspace, call.at(1), &mut left), string(call.keyspace, call.at(2), &mut right));
    let table = Table::new(left, right);
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

/// Returns the length in bytes of the string at the key in argument `index`; 0 if there is no such key, an
/// error if the value is no string.
fn length(call: &mut Call<'_>, index: usize) -> Result<usize, Refusal> {
    let length = call.keyspace.read_string(call.arguments.at(index), |bytes| bytes.map_or(0, <[u8]>::len));
    length.map_err(|_| Refusal::Words("ERR The specified keys must contain string values"))
}

/// Returns the string at a key, an integer's digits in `digits`; an empty one if there is no such key. The
/// caller has made sure that the value is a string.
fn string<'a>(keyspace: &'a Keyspace, key: &[u8], digits: &'a mut numbers::Digits) -> &'a [u8] {
    let value = keyspace.peek(key).map(|entry| &entry.value);
    value.and_then(|value| value.bytes(digits)).unwrap_or_default()
}

/// A step of the search for the longest common subsequence of two strings, which goes from their ends to their
/// beginnings.
enum Step {
    /// The bytes at these positions of both strings belong to the common subsequence.
    Match(usize, usize),
    /// A byte of one of the strings is passed over: it does not belong to the common subsequence.
    Gap,
}

/// The comparison table of LCS for two strings. For each byte of the left and each different byte of the
/// right string, one bit says which of the two the search, which goes from the ends to the beginnings, passes
/// over.
struct Table<'a> {
    left: &'a [u8],
    right: &'a [u8],
    /// The length in bytes of the longest common subsequence of `left` and `right`, which LCS replies.
    length: usize,
    /// A bit for each pair of a byte of the longer string (the rows) and a byte of the shorter one. The bit
    /// is set if the search passes over the byte of the left string.
    upward: Vec<u64>,
}

impl<'a> Table<'a> {
    fn new(left: &'a [u8], right: &'a [u8]) -> Self {
        // Whole rows are kept while the table is computed, so they are as short as can be.
        let is_turned = left.len() < right.len();
        let (rows, columns) = if is_turned { (right, left) } else { (left, right) };
        let rows = if columns.is_empty() { columns } else { rows };
        let mut upward = vec![0_u64; (rows.len() * columns.len()).div_ceil(64)];
        let mut above = vec![0_u32; columns.len() + 1];
        let mut row = above.clone();
        for (i, a) in rows.iter().enumerate() {
            for (j, b) in columns.iter().enumerate() {
                let (up, back) = (above[j + 1], row[j]);
                row[j + 1] = if a == b { above[j] + 1 } else { up.max(back) };
                if a != b && if is_turned { back > up } else { up > back } {
                    let cell = i * columns.len() + j;
                    upward[cell / 64] |= 1 << (cell % 64);
                }
            }
            std::mem::swap(&mut row, &mut above);
        }
        Self { left, right, length: above[columns.len()] as usize, upward }
    }

    /// True if the search, when it has come to byte `i` of the left string and byte `j` of the right one,
    /// which differ, passes over the left byte.
    fn leaves_out_left(&self, i: usize, j: usize) -> bool {
        let (left, right) = (self.left.len(), self.right.len());
        let cell = if left < right { j * left + i } else { i * right + j };
        self.upward[cell / 64] >> (cell % 64) & 1 == 1
    }

    fn walk_back(&self, mut visit: impl FnMut(Step)) {
        let (mut i, mut j) = (self.left.len(), self.right.len());
        while i > 0 && j > 0 {
            if self.left[i - 1] == self.right[j - 1] {
                (i, j) = (i - 1, j - 1);
                visit(Step::Match(i, j));
                continue;
            }
            if self.leaves_out_left(i - 1, j - 1) {
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
/// to the first, without those shorter than MINMATCHLEN, and the length of the longest common subsequence.
/// `table` is the comparison table of the two strings.
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
    use crate::store::limits::EngineLimits;
    use crate::values::Random;

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

    #[test]
    fn work_is_bounded_before_it_is_done() {
        let limits = EngineLimits { effort_max: 10_000, ..EngineLimits::with_memory(u64::MAX) };
        let mut bench = Bench::with(limits);
        let long = "ab".repeat(1_000_000);
        bench.talk(&[
            (&format!("SET long {long}"), "+OK|"),
            ("SET short ba", "+OK|"),
            ("LCS long nothing", "$0||"),
            ("LCS nothing long LEN", ":0|"),
        ]);
        assert!(bench.engine.effort() < 100);
        assert!(
            bench.send("LCS short long").starts_with("-ERR the request would take more than 10000 steps")
        );
    }

    #[test]
    fn the_order_of_the_strings_does_not_matter_for_what_is_common() {
        let mut random = Random::new(3);
        let mut bench = Bench::new();
        for _ in 0..200 {
            let [a, b] = [12, 5].map(|length| {
                (0..=random.index(length)).map(|_| *random.pick(&['a', 'b', 'c'])).collect::<String>()
            });
            bench.talk(&[(&format!("MSET a {a} b {b}"), "+OK|")]);
            for (left, right, first, second) in [(&a, &b, "a", "b"), (&b, &a, "b", "a")] {
                let common = common(left.as_bytes(), right.as_bytes());
                let text = format!("${}|{common}|", common.len());
                bench.talk(&[(&format!("LCS {first} {second}"), &text)]);
            }
        }
    }

    /// Returns the longest common subsequence that Redis finds: from the end, the left byte is left out only
    /// where that leaves a longer one.
    fn common(left: &[u8], right: &[u8]) -> String {
        let (Some((a, lefts)), Some((b, rights))) = (left.split_last(), right.split_last()) else {
            return String::new();
        };
        if a == b {
            return common(lefts, rights) + &char::from(*a).to_string();
        }
        let (up, back) = (common(lefts, right), common(left, rights));
        if up.len() > back.len() { up } else { back }
    }
}
