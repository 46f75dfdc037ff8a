//! Patterns of Lua 5.1 (`string.find`, `match`, `gmatch`, `gsub`), matched in bounded time and depth. Those of
//! the Lua library take time without end for some patterns, and stack without end for others.

/// Maximum number of captures of a pattern, as in Lua; a pattern with more is an error.
const CAPTURES_MAX: usize = 32;
/// Maximum depth of a match: an item of a pattern whose match depends on the items after it (such as `*`)
/// takes a stack frame while these are matched. A match beyond it ends with the error "pattern too complex".
const DEPTH_MAX: usize = 200;
/// The character that introduces character classes, references to captures and escaped characters in a
/// pattern of Lua.
const ESCAPE: u8 = b'%';
/// The number of bytes of a pattern's set (`[...]`), or of a replacement, that are read for one step of a
/// match.
const BYTES_PER_STEP: usize = 4;

/// The reason why matching a pattern ended with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The pattern is malformed, for this reason in Lua's words.
    Malformed(&'static str),
    /// The match would take more steps than the script has left.
    TooLong,
    /// The text that results from the match would be longer than a string of a script may be.
    TooLarge,
}

/// The length of a capture, or the state that stands in place of a length; the offset at which the capture
/// begins is stored beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The capture has begun and not ended yet.
    Open,
    /// The capture is a position in the subject (`()`) instead of a part of it.
    Position,
    Bytes(usize),
}

/// A part of the subject, or a position in it, that a pattern has captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// The captured bytes, from the first offset in the subject up to, but not including, the second.
    Part(usize, usize),
    /// A position in the subject (`()`), counted from one.
    Position(usize),
}

/// A match that is under way: the subject, the pattern, and the captures so far.
pub(super) struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: [(usize, Extent); CAPTURES_MAX],
    level: usize,
    depth: usize,
    /// The number of steps that the match has taken so far, about one for each character compared; they are
    /// charged as effort (steps of work).
    pub(super) steps: u64,
    steps_max: u64,
}

type Matched = Result<Option<usize>, Fault>;

impl<'a> Matcher<'a> {
    pub(super) fn new(subject: &'a [u8], pattern: &'a [u8], steps_max: u64) -> Self {
        let captures = [(0, Extent::Open); CAPTURES_MAX];
        Self { subject, pattern, captures, level: 0, depth: 0, steps: 0, steps_max }
    }

    /// Matches the pattern from its offset `pattern` on against the subject from offset `start` on. Returns
    /// the offset in the subject after the match; `None` if there is no match at `start`. An error if the
    /// pattern is malformed, or the match takes too many steps.
    pub(super) fn match_at(&mut self, start: usize, pattern: usize) -> Matched {
        self.level = 0;
        self.depth = 0;
        self.step(start, pattern)
    }

    /// Returns the captures of the match from `start` to `end` (offsets in the subject); the whole match if
    /// the pattern has no captures. An error if a capture has not ended.
    pub(super) fn captures(&self, start: usize, end: usize) -> Result<Vec<Capture>, Fault> {
        if self.level == 0 {
            return Ok(vec![Capture::Part(start, end)]);
        }
        (0..self.level).map(|index| self.capture(index, start, end)).collect()
    }

    /// Returns the number of captures of the last match.
    pub(super) fn level(&self) -> usize {
        self.level
    }

    /// Returns the capture at `index` (from 0) of the match from `start` to `end`. Without captures in the
    /// pattern, index 0 is the whole match. An error for any other index without a capture, or if the capture
    /// has not ended.
    pub(super) fn capture(&self, index: usize, start: usize, end: usize) -> Result<Capture, Fault> {
        if index >= self.level {
            return if index == 0 {
                Ok(Capture::Part(start, end))
            } else {
                Err(Fault::Malformed("invalid capture index"))
            };
        }
        match self.captures[index] {
            (_, Extent::Open) => Err(Fault::Malformed("unfinished capture")),
            (at, Extent::Position) => Ok(Capture::Position(at + 1)),
            (at, Extent::Bytes(length)) => Ok(Capture::Part(at, at + length)),
        }
    }

    fn count(&mut self) -> Result<(), Fault> {
        self.count_steps(1)
    }

    /// Counts the steps for reading `bytes` bytes of a set of the pattern, or of a replacement. An error if
    /// these are more steps than the script has left.
    pub(super) fn count_bytes(&mut self, bytes: usize) -> Result<(), Fault> {
        self.count_steps((bytes / BYTES_PER_STEP) as u64)
    }

    fn count_steps(&mut self, steps: u64) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > self.steps_max { Err(Fault::TooLong) } else { Ok(()) }
    }

    fn step(&mut self, subject: usize, pattern: usize) -> Matched {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::Malformed("pattern too complex"));
        }
        let matched = self.items(subject, pattern);
        self.depth -= 1;
        matched
    }

    fn items(&mut self, mut s: usize, mut p: usize) -> Matched {
        loop {
            self.count()?;
            let Some(first) = self.pattern.get(p).copied() else { return Ok(Some(s)) };
            let next = self.pattern.get(p + 1).copied();
            match (first, next) {
                (b'(', Some(b')')) => return self.open(s, p + 2, Extent::Position),
                (b'(', _) => return self.open(s, p + 1, Extent::Open),
                (b')', _) => return self.close(s, p + 1),
                (ESCAPE, Some(b'b')) => {
                    let Some(end) = self.balance(s, p + 2)? else { return Ok(None) };
                    (s, p) = (end, p + 4);
                    continue;
                }
                (ESCAPE, Some(b'f')) => {
                    p += 2;
                    if self.pattern.get(p) != Some(&b'[') {
                        return Err(Fault::Malformed("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(p)?;
                    let before = if s == 0 { 0 } else { self.subject[s - 1] };
                    let here = self.subject.get(s).copied().unwrap_or(0);
                    if self.in_set(before, p, end - 1)? || !self.in_set(here, p, end - 1)? {
                        return Ok(None);
                    }
                    p = end;
                    continue;
                }
                (ESCAPE, Some(digit)) if digit.is_ascii_digit() => {
                    let Some(end) = self.repeated(s, digit)? else { return Ok(None) };
                    (s, p) = (end, p + 2);
                    continue;
                }
                (b'$', None) => return Ok((s == self.subject.len()).then_some(s)),
                _ => {}
            }
            let end = self.class_end(p)?;
            match self.pattern.get(end) {
                Some(b'?') => {
                    if self.fits(s, p, end)?
                        && let Some(matched) = self.step(s + 1, end + 1)?
                    {
                        return Ok(Some(matched));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.expand(s, p, end),
                Some(b'+') => {
                    return if self.fits(s, p, end)? { self.expand(s + 1, p, end) } else { Ok(None) };
                }
                Some(b'-') => return self.expand_least(s, p, end),
                _ if self.fits(s, p, end)? => (s, p) = (s + 1, end),
                _ => return Ok(None),
            }
        }
    }

    /// Returns the offset in the pattern after the single-character item (a character, an escape such as
    /// `%d`, or a set `[...]`) that begins at `start`. An error if the item is malformed.
    fn class_end(&mut self, start: usize) -> Result<usize, Fault> {
        let p = start + 1;
        match self.pattern[start] {
            ESCAPE => {
                if p >= self.pattern.len() {
                    return Err(Fault::Malformed("malformed pattern (ends with '%')"));
                }
                Ok(p + 1)
            }
            b'[' => {
                let end = self.set_end(p);
                self.count_bytes(end.unwrap_or(self.pattern.len()) - start)?;
                end.ok_or(Fault::Malformed("malformed pattern (missing ']')"))
            }
            _ => Ok(p),
        }
    }

    /// Returns the offset in the pattern after the set (`[...]`) whose opening bracket is directly before
    /// offset `p`; `None` if the set has no end.
    fn set_end(&self, mut p: usize) -> Option<usize> {
        if self.pattern.get(p) == Some(&b'^') {
            p += 1;
        }
        loop {
            // A `]` directly after the opening bracket stands for itself.
            let byte = self.pattern.get(p)?;
            p += if *byte == ESCAPE && p + 1 < self.pattern.len() { 2 } else { 1 };
            if self.pattern.get(p) == Some(&b']') {
                return Some(p + 1);
            }
        }
    }

    /// True if the subject has a byte at offset `s` that matches the pattern item from `p` up to `end`. An
    /// error if a set takes more steps to search than the script has left.
    fn fits(&mut self, s: usize, p: usize, end: usize) -> Result<bool, Fault> {
        let Some(byte) = self.subject.get(s).copied() else { return Ok(false) };
        match self.pattern[p] {
            b'.' => Ok(true),
            ESCAPE => Ok(in_class(byte, self.pattern[p + 1])),
            b'[' => self.in_set(byte, p, end - 1),
            other => Ok(other == byte),
        }
    }

    /// True if `byte` belongs to the set `[...]` whose brackets are at offsets `p` and `last` of the pattern.
    /// An error if the set takes more steps to search than the script has left.
    fn in_set(&mut self, byte: u8, mut p: usize, last: usize) -> Result<bool, Fault> {
        self.count_bytes(last - p)?;
        let mut sign = true;
        if self.pattern.get(p + 1) == Some(&b'^') {
            sign = false;
            p += 1;
        }
        loop {
            p += 1;
            if p >= last {
                return Ok(!sign);
            }
            let here = self.pattern[p];
            if here == ESCAPE {
                p += 1;
                if in_class(byte, self.pattern[p]) {
                    return Ok(sign);
                }
            } else if self.pattern.get(p + 1) == Some(&b'-') && p + 2 < last {
                p += 2;
                if (here..=self.pattern[p]).contains(&byte) {
                    return Ok(sign);
                }
            } else if here == byte {
                return Ok(sign);
            }
        }
    }

    fn balance(&mut self, s: usize, p: usize) -> Matched {
        let (Some(open), Some(close)) = (self.pattern.get(p).copied(), self.pattern.get(p + 1).copied())
        else {
            return Err(Fault::Malformed("unbalanced pattern"));
        };
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut nested = 1;
        for at in s + 1..self.subject.len() {
            self.count()?;
            let byte = self.subject[at];
            if byte == close {
                nested -= 1;
                if nested == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == open {
                nested += 1;
            }
        }
        Ok(None)
    }

    fn expand(&mut self, s: usize, p: usize, end: usize) -> Matched {
        let mut count = 0;
        while self.fits(s + count, p, end)? {
            self.count()?;
            count += 1;
        }
        loop {
            if let Some(matched) = self.step(s + count, end + 1)? {
                return Ok(Some(matched));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn expand_least(&mut self, mut s: usize, p: usize, end: usize) -> Matched {
        loop {
            if let Some(matched) = self.step(s, end + 1)? {
                return Ok(Some(matched));
            }
            if !self.fits(s, p, end)? {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, extent: Extent) -> Matched {
        if self.level >= CAPTURES_MAX {
            return Err(Fault::Malformed("too many captures"));
        }
        self.captures[self.level] = (s, extent);
        self.level += 1;
        let matched = self.step(s, p)?;
        if matched.is_none() {
            self.level -= 1;
        }
        Ok(matched)
    }

    fn close(&mut self, s: usize, p: usize) -> Matched {
        let open = (0..self.level).rev().find(|index| self.captures[*index].1 == Extent::Open);
        let index = open.ok_or(Fault::Malformed("invalid pattern capture"))?;
        self.captures[index].1 = Extent::Bytes(s - self.captures[index].0);
        let matched = self.step(s, p)?;
        if matched.is_none() {
            self.captures[index].1 = Extent::Open;
        }
        Ok(matched)
    }

    /// Matches the bytes of an earlier capture (`%1` in a pattern; `digit` is the one after the percent sign)
    /// at offset `s` of the subject. Returns the offset after them; `None` if other bytes are there, or if
    /// the capture is a position. An error if there is no such capture, or if the match takes too many steps.
    fn repeated(&mut self, s: usize, digit: u8) -> Matched {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        if index >= self.level || self.captures[index].1 == Extent::Open {
            return Err(Fault::Malformed("invalid capture index"));
        }
        let (at, Extent::Bytes(length)) = self.captures[index] else { return Ok(None) };
        self.count_steps((length / 16) as u64 + 1)?;
        let fits = self.subject[s..].starts_with(&self.subject[at..at + length]);
        Ok(fits.then_some(s + length))
    }
}

/// True if the character class `%class` of Lua contains the byte; a character that names no class stands for
/// itself.
fn in_class(byte: u8, class: u8) -> bool {
    let fits = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    fits != class.is_ascii_uppercase()
}

/// Returns the offset of the first occurrence of `text` in `subject`, without patterns; `None` if there is
/// none. Adds its work to `steps`, and fails beyond `steps_max`.
pub(super) fn find_plain(subject: &[u8], text: &[u8], steps: &mut u64, steps_max: u64) -> Matched {
    let Some(first) = text.first() else { return Ok(Some(0)) };
    let mut from = 0;
    while subject.len() - from >= text.len() {
        let starts = &subject[from..=subject.len() - text.len()];
        let Some(found) = starts.iter().position(|byte| byte == first) else {
            *steps += (starts.len() / 16) as u64;
            return Ok(None);
        };
        let here = &subject[from + found..][..text.len()];
        let same = here.iter().zip(text).take_while(|(left, right)| left == right).count();
        *steps += (found / 16 + same / 4) as u64 + 1;
        if *steps > steps_max {
            return Err(Fault::TooLong);
        }
        if same == text.len() {
            return Ok(Some(from + found));
        }
        from += found + 1;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(subject: &str, pattern: &str) -> Result<Option<(usize, usize)>, Fault> {
        let mut matcher = Matcher::new(subject.as_bytes(), pattern.as_bytes(), 100_000);
        for start in 0..=subject.len() {
            if let Some(end) = matcher.match_at(start, 0)? {
                return Ok(Some((start, end)));
            }
        }
        Ok(None)
    }

    #[test]
    fn patterns_match_as_in_lua() {
        for (subject, pattern, expected) in [
            ("hello world", "o w", Some((4, 7))),
            ("key:123", "%d+", Some((4, 7))),
            ("a.b", "%.", Some((1, 2))),
            ("[x]", "[]x]+", Some((1, 3))),
            ("THE (quick) fox", "%((%a+)%)", Some((4, 11))),
            ("f(a(b)c)d", "%b()", Some((1, 8))),
            ("THE fox", "%f[%l]%a+", Some((4, 7))),
            ("abab", "(ab)%1", Some((0, 4))),
            ("aXb", "a-X", Some((0, 2))),
            ("abc", "b$", None),
        ] {
            assert_eq!(find(subject, pattern), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn malformed_patterns_and_endless_matches_are_refused() {
        for (pattern, words) in [
            ("[a", "malformed pattern (missing ']')"),
            ("%", "malformed pattern (ends with '%')"),
            ("%f", "missing '[' after '%f' in pattern"),
            ("a)", "invalid pattern capture"),
            ("%b", "unbalanced pattern"),
            ("%1", "invalid capture index"),
        ] {
            assert_eq!(find("a", pattern), Err(Fault::Malformed(words)), "{pattern}");
        }
        assert_eq!(find(&"a".repeat(200), ".-.-.-.-.-b"), Err(Fault::TooLong));
        let nested = "a?".repeat(5_000);
        assert_eq!(find(&"a".repeat(5_000), &nested), Err(Fault::Malformed("pattern too complex")));
    }

    #[test]
    fn long_sets_take_steps() {
        let set = format!("[{}a]", "b".repeat(10_000));
        for pattern in [format!("{set}*"), format!("{set}+"), format!("{set}-c"), format!("%f{set}c")] {
            assert_eq!(find(&"a".repeat(1_000), &pattern), Err(Fault::TooLong), "{}", &pattern[10_000..]);
        }
        assert_eq!(find(&"a".repeat(1_000), &format!("c{set}")), Ok(None));
    }

    #[test]
    fn plain_texts_are_found_within_the_steps() {
        let mut steps = 0;
        assert_eq!(find_plain(b"abcabd", b"abd", &mut steps, 100), Ok(Some(3)));
        assert_eq!(find_plain(b"abc", b"", &mut steps, 100), Ok(Some(0)));
        assert_eq!(find_plain(b"abc", b"abcd", &mut steps, 100), Ok(None));
        let (subject, text) = ([b'a'; 4_000], [b'a'; 2_000].iter().chain(b"b").copied().collect::<Vec<_>>());
        assert_eq!(find_plain(&subject, &text, &mut steps, 10_000), Err(Fault::TooLong));
    }
}
