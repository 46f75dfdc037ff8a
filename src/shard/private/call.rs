//! The words of a blocking command: its timeout, the streams of which it awaits new entries, and replies
//! which show that it has waited in vain. With these a command can be sent again, to another node or by
//! another process, as if it had waited there from the start.

use std::time::Duration;

use crate::protocol::{Arguments, RequestDecoder, RequestLimits, encode, reply};

/// The kind of a blocking command whose arguments weir can read, with the position of its timeout among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// A command that pops or moves elements. The timeout, in seconds, is the word with this index, counted
    /// back from the end of the request (1 is the last word).
    PopTimeoutFromEnd(usize),
    /// A command that pops or moves elements. The timeout, in seconds, is the word with this index (0 is the
    /// command's name).
    PopTimeoutAt(usize),
    /// `XREAD` or `XREADGROUP`, with a timeout in milliseconds after the word `BLOCK`.
    Read,
    /// `WAIT`, which waits until replicas have confirmed writes.
    Wait,
    /// `WAITAOF`, which waits until the append-only files of the store and of replicas have been written.
    WaitAof,
}

impl Name {
    /// Returns the kind of a request's blocking command; None if weir does not know the command's words, so
    /// that it cannot change the timeout.
    fn of(words: &Arguments<'_>) -> Option<Self> {
        let name = match words.name().to_ascii_lowercase().as_slice() {
            b"blpop" | b"brpop" | b"blmove" | b"brpoplpush" | b"bzpopmin" | b"bzpopmax" => {
                Self::PopTimeoutFromEnd(1)
            }
            b"blmpop" | b"bzmpop" => Self::PopTimeoutAt(1),
            b"blmovem" => Self::PopTimeoutAt(5),
            b"xread" | b"xreadgroup" => Self::Read,
            b"wait" => Self::Wait,
            b"waitaof" => Self::WaitAof,
            _ => return None,
        };
        Some(name)
    }

    /// Returns the index of the blocking command's timeout among its words, and the number of units of the
    /// timeout that make a second (1 or 1,000); None if the request has no timeout.
    fn timeout(self, words: &Arguments<'_>) -> Option<(usize, f64)> {
        match self {
            Self::PopTimeoutFromEnd(back) => Some((words.len().checked_sub(back)?, 1.0)),
            Self::PopTimeoutAt(place) => Some((place, 1.0)),
            Self::Read => Some((timeout_of_read(words)?, 1_000.0)),
            Self::Wait => Some((2, 1_000.0)),
            Self::WaitAof => Some((3, 1_000.0)),
        }
    }
}

/// Decodes an encoded request (`frame`), and returns the result of `look` for its words. None if the bytes are
/// not a request, or if `look` returns None.
fn with_words<T>(frame: &[u8], look: impl FnOnce(&Arguments<'_>) -> Option<T>) -> Option<T> {
    let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
    let request = decoder.next(frame, &mut consumed, &RequestLimits::trusted(frame.len())).ok()??;
    look(&request.arguments)
}

fn number(word: Option<&[u8]>) -> Option<i64> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

/// Returns the index of the timeout among the words of an `XREAD` or `XREADGROUP`; None without `BLOCK`. Of
/// several `BLOCK`, stores obey the last; names of groups and consumers, which may equal names of options, are
/// skipped.
fn timeout_of_read(words: &Arguments<'_>) -> Option<usize> {
    let (mut index, mut timeout) = (1, None);
    while let Some(word) = words.get(index) {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        index += match () {
            () if is(b"streams") => break,
            () if is(b"group") => 3,
            () if is(b"count") || is(b"claim") => 2,
            () if is(b"block") => {
                timeout = Some(index + 1);
                2
            }
            () => 1,
        };
    }
    timeout
}

/// True if the words of a blocking command are known, so that it can be sent again with the rest of its
/// timeout.
pub fn is_known(words: &Arguments<'_>) -> bool {
    Name::of(words).is_some()
}

/// True if a request (`frame`) is `WAIT` or `WAITAOF`, which count the copies of what was written before it.
pub fn awaits_copies(frame: &[u8]) -> bool {
    with_words(frame, |words| Some(matches!(Name::of(words)?, Name::Wait | Name::WaitAof))).unwrap_or(false)
}

/// Returns a blocking command (`frame`) whose timeout is shortened by `passed`, the time that it has waited
/// already, to whole milliseconds, rounded up and at least 1: it never ends early. A timeout of 0, which means
/// for ever, stays; a command whose words are not known is returned unchanged.
pub fn with_time_left(frame: &[u8], passed: Duration) -> Vec<u8> {
    let changed = with_words(frame, |words| {
        let (place, units) = Name::of(words)?.timeout(words)?;
        let timeout: f64 = std::str::from_utf8(words.get(place)?).ok()?.parse().ok()?;
        if timeout.is_nan() || timeout <= 0.0 {
            return None;
        }
        let left = passed.as_secs_f64().mul_add(-units, timeout);
        let is_millis = units > 1.0;
        let millis = if is_millis { left } else { left * 1e3 }.ceil().max(1.0);
        let left = if is_millis { format!("{millis:.0}") } else { format!("{:.3}", millis / 1e3) };
        Some(with_word(words, place, left.as_bytes()))
    });
    changed.unwrap_or_else(|| frame.to_vec())
}

/// Returns a blocking command (`frame`) that ends 1 ms after the store has received it; unchanged if its words are
/// not known.
pub fn without_wait(frame: &[u8]) -> Vec<u8> {
    let changed = with_words(frame, |words| {
        let (place, units) = Name::of(words)?.timeout(words)?;
        Some(with_word(words, place, if units > 1.0 { b"1" } else { b"0.001" }))
    });
    changed.unwrap_or_else(|| frame.to_vec())
}

/// Returns the reply that confirms no more copies than either of two replies of stores to the same `WAIT` or
/// `WAITAOF`; None if they are not numbers, or not equally many.
pub fn least_confirmed(one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    if let (Some(one), Some(other)) = (reply::integer(one), reply::integer(other)) {
        encode::integer(&mut out, one.min(other));
        return Some(out);
    }
    let numbers = |told| reply::elements(told)?.map(reply::integer).collect::<Option<Vec<_>>>();
    let (one, other) = (numbers(one)?, numbers(other)?);
    if one.len() != other.len() {
        return None;
    }
    encode::array(&mut out, one.len());
    one.iter().zip(&other).for_each(|(one, other)| encode::integer(&mut out, *one.min(other)));
    Some(out)
}

/// Returns an encoded request in which the word at index `place` is replaced by `word`.
fn with_word(words: &Arguments<'_>, place: usize, word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(words.frame().len() + word.len() + 8);
    let changed: Vec<&[u8]> =
        words.iter().enumerate().map(|(index, old)| if index == place { word } else { old }).collect();
    encode::request(&mut out, changed.into_iter());
    out
}

/// Returns the first stream of which an `XREAD` (`frame`) awaits entries added after the request (`$`), as
/// the index of the word `$` and the stream's key. None if there is none.
pub fn awaits_new_entries(frame: &[u8]) -> Option<(usize, Vec<u8>)> {
    with_words(frame, |words| {
        if !words.name().eq_ignore_ascii_case(b"xread") {
            return None;
        }
        let first = words.iter().position(|word| word.eq_ignore_ascii_case(b"streams"))? + 1;
        let streams = words.len().checked_sub(first)? / 2;
        let place = (first + streams..words.len()).find(|index| words.at(*index) == b"$")?;
        Some((place, words.get(place - streams)?.to_vec()))
    })
}

/// Returns a request (`frame`) in which the word at index `place` is replaced by the id of a stream's last
/// entry, taken from `told`, the reply to `XREVRANGE stream + - COUNT 1`. For an empty or missing stream
/// the id is `0-0`. None if the reply is an error or otherwise not of that form.
pub fn with_last_id(frame: &[u8], place: usize, told: &[u8]) -> Option<Vec<u8>> {
    let mut entries = reply::elements(told)?;
    let id = match entries.next() {
        Some(entry) => reply::text(reply::elements(entry)?.next()?)?,
        // The stream is empty or does not exist.
        None => b"0-0",
    };
    with_words(frame, |words| Some(with_word(words, place, id)))
}

/// True if `told`, the store's reply to the blocking command `frame`, shows that the command has waited in vain,
/// as at its timeout: nothing was popped or read, or fewer replicas than wanted have confirmed the writes. False if
/// the words of the command are not known.
pub fn is_in_vain(frame: &[u8], told: &[u8]) -> bool {
    let in_vain = with_words(frame, |words| match Name::of(words)? {
        Name::PopTimeoutFromEnd(_) | Name::PopTimeoutAt(_) | Name::Read => {
            Some(matches!(told, b"*-1\r\n" | b"$-1\r\n" | b"_\r\n"))
        }
        Name::Wait => Some(reply::integer(told)? < number(words.get(1))?),
        Name::WaitAof => {
            let mut confirmed = reply::elements(told)?.map(reply::integer);
            let [own, replicas] = [confirmed.next()??, confirmed.next()??];
            Some(own < number(words.get(1))? || replicas < number(words.get(2))?)
        }
    });
    in_vain.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::private::encoded;

    #[test]
    fn the_time_left_takes_the_place_of_the_timeout() {
        let cases = [
            ("BLPOP a b 10", "BLPOP a b 7.500"),
            ("blpop a 0", "blpop a 0"),
            ("BLMPOP 5 1 a LEFT", "BLMPOP 2.500 1 a LEFT"),
            ("BLMOVEM a b LEFT RIGHT 10 COUNT 2", "BLMOVEM a b LEFT RIGHT 7.500 COUNT 2"),
            ("FUTURE.POP a 10", "FUTURE.POP a 10"),
            ("BZPOPMIN a 1.5", "BZPOPMIN a 0.001"),
            ("BZPOPMIN a 2.7314", "BZPOPMIN a 0.232"),
            ("XREAD COUNT 1 BLOCK 4000 STREAMS s 0", "XREAD COUNT 1 BLOCK 1500 STREAMS s 0"),
            ("XREAD BLOCK 1 STREAMS s 0", "XREAD BLOCK 1 STREAMS s 0"),
            ("XREAD BLOCK 0 STREAMS s $", "XREAD BLOCK 0 STREAMS s $"),
            (
                "XREADGROUP GROUP block me BLOCK 4000 STREAMS s >",
                "XREADGROUP GROUP block me BLOCK 1500 STREAMS s >",
            ),
            (
                "XREADGROUP NOACK GROUP block 5000 COUNT 9 BLOCK 9 block 4000 STREAMS block 5000 > >",
                "XREADGROUP NOACK GROUP block 5000 COUNT 9 BLOCK 9 block 1500 STREAMS block 5000 > >",
            ),
            ("WAIT 1 4000", "WAIT 1 1500"),
            ("WAITAOF 1 1 0", "WAITAOF 1 1 0"),
            ("WAITAOF 1 1 3000", "WAITAOF 1 1 500"),
        ];
        for (request, changed) in [
            ("BLPOP a 0", "BLPOP a 0.001"),
            ("WAIT 1 0", "WAIT 1 1"),
            ("WAITAOF 1 1 3000", "WAITAOF 1 1 1"),
            ("FUTURE.POP a 10", "FUTURE.POP a 10"),
        ] {
            assert_eq!(without_wait(&encoded(request)), encoded(changed));
        }
        for (request, changed) in cases {
            let told = with_time_left(&encoded(request), Duration::from_millis(2_500));
            assert_eq!(String::from_utf8_lossy(&told), String::from_utf8_lossy(&encoded(changed)));
        }
    }

    #[test]
    fn new_entries_are_those_behind_the_last_one() {
        for request in [
            "XREAD BLOCK 0 STREAMS s 0",
            "XREADGROUP GROUP g $ BLOCK 0 STREAMS $ >",
            "BLPOP $ 0",
            "XREAD BLOCK $",
        ] {
            assert_eq!(awaits_new_entries(&encoded(request)), None, "{request}");
        }
        let call = encoded("xread block 0 streams $ t u $ 0 $");
        assert_eq!(awaits_new_entries(&call), Some((7, b"$".to_vec())));
        let entry = b"*1\r\n*2\r\n$3\r\n5-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n";
        let call = with_last_id(&call, 7, entry).expect("an entry");
        assert_eq!(awaits_new_entries(&call), Some((9, b"u".to_vec())));
        assert_eq!(with_last_id(&call, 9, b"-NOPERM\r\n"), None);
        let call = with_last_id(&call, 9, b"*0\r\n").expect("no entry");
        assert_eq!(call, encoded("xread block 0 streams $ t u 5-1 0 0-0"));
        assert_eq!(awaits_new_entries(&call), None);
    }

    #[test]
    fn a_call_was_in_vain_if_nothing_was_taken_or_too_few_have_confirmed() {
        for (request, told, in_vain) in [
            ("BLPOP q 0", "*-1\r\n", true),
            ("BLMOVE q r LEFT RIGHT 0", "$-1\r\n", true),
            ("XREAD BLOCK 0 STREAMS s $", "_\r\n", true),
            ("BLPOP q 0", "*2\r\n$1\r\nq\r\n$1\r\nx\r\n", false),
            ("BLMOVE q r LEFT RIGHT 0", "$0\r\n\r\n", false),
            ("BLPOP q 0", "-WRONGTYPE\r\n", false),
            ("FUTURE.POP q 0", "*-1\r\n", false),
            ("WAIT 2 0", ":1\r\n", true),
            ("WAIT 2 0", ":2\r\n", false),
            ("WAIT 2 0", "-ERR\r\n", false),
            ("WAITAOF 1 2 0", "*2\r\n:1\r\n:1\r\n", true),
            ("WAITAOF 1 2 0", "*2\r\n:0\r\n:2\r\n", true),
            ("WAITAOF 1 2 0", "*2\r\n:1\r\n:2\r\n", false),
        ] {
            assert_eq!(is_in_vain(&encoded(request), told.as_bytes()), in_vain, "{request} {told}");
        }
        for (one, other, least) in [
            (":2\r\n", ":10\r\n", Some(":2\r\n")),
            ("*2\r\n:1\r\n:3\r\n", "*2\r\n:0\r\n:4\r\n", Some("*2\r\n:0\r\n:3\r\n")),
            (":2\r\n", "*2\r\n:0\r\n:4\r\n", None),
            ("", ":2\r\n", None),
            ("*1\r\n+x\r\n", "*1\r\n:1\r\n", None),
        ] {
            let told = least_confirmed(one.as_bytes(), other.as_bytes());
            assert_eq!(told.as_deref(), least.map(str::as_bytes), "{one} {other}");
        }
        let is_known = |request| with_words(&encoded(request), |words| Some(is_known(words)));
        assert_eq!((is_known("BRPOP a 0"), is_known("FUTURE.POP a 0")), (Some(true), Some(false)));
        for (request, awaits) in [("wait 1 0", true), ("WAITAOF 1 1 0", true), ("BLPOP wait 0", false)] {
            assert_eq!(awaits_copies(&encoded(request)), awaits, "{request}");
        }
    }
}
