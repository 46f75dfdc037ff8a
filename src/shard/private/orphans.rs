//! Orphans: elements that a store pops for a blocking command after its client has disconnected. Nobody gets
//! the reply, so the elements would be lost; a tenant may have them put back (`give_back`).

use crate::protocol::{Arguments, encode, reply};

/// Kind of the elements that a blocking command removes from a key, as its words say: how the store's reply names
/// them, and how they can be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// One element of a list (`BLPOP`, `BRPOP`), which this command (`LPUSH` or `RPUSH`) puts back.
    Element(&'static [u8]),
    /// Several elements of a list (`BLMPOP`), which this command (`LPUSH` or `RPUSH`) puts back.
    Elements(&'static [u8]),
    /// One member of a sorted set, with its score (`BZPOPMIN`, `BZPOPMAX`).
    Member,
    /// Several members of a sorted set, each with its score (`BZMPOP`).
    Members,
    /// Entries of streams, which the store does not keep as pending (`XREADGROUP` with `NOACK`). They cannot be put
    /// back.
    Entries,
    /// The command removes nothing for good: moved elements are in their destination, and entries of a stream stay
    /// pending unless the command has `NOACK`. Also for requests that do not block.
    Nothing,
}

impl Takes {
    /// Returns the kind of the elements that a blocking command with these words removes.
    pub fn of(words: &Arguments<'_>) -> Self {
        match words.name().to_ascii_lowercase().as_slice() {
            b"blpop" => Self::Element(b"LPUSH"),
            b"brpop" => Self::Element(b"RPUSH"),
            b"blmpop" => match takes_from_left(words) {
                Some(true) => Self::Elements(b"LPUSH"),
                Some(false) => Self::Elements(b"RPUSH"),
                None => Self::Nothing,
            },
            b"bzpopmin" | b"bzpopmax" => Self::Member,
            b"bzmpop" => Self::Members,
            b"xreadgroup" if words.iter().any(|word| word.eq_ignore_ascii_case(b"noack")) => Self::Entries,
            _ => Self::Nothing,
        }
    }
}

/// Elements that a store has popped from a key for a client that had disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphans {
    /// The key from which the store popped the elements; for entries of several streams, the first stream.
    pub key: Vec<u8>,
    /// The number of elements that were popped.
    pub count: usize,
    /// The request that puts the elements back (in a list at the end from which they were popped); None for
    /// entries of a stream, which cannot be put back.
    pub way_back: Option<Vec<u8>>,
}

impl Orphans {
    /// Returns the elements that a store has popped, or read with `NOACK`, according to its reply to a
    /// blocking command, which removes elements of the kind `takes`. None if there are none.
    pub fn of(takes: Takes, reply: &[u8]) -> Option<Self> {
        if takes == Takes::Entries {
            return entries_without_pending(reply);
        }
        let mut parts = reply::elements(reply)?;
        let key = parts.next().and_then(reply::text)?.to_vec();
        match takes {
            Takes::Element(push) => {
                let element = reply::text(parts.next()?)?;
                Some(Self::with(key, push, &[], &[element], 1))
            }
            Takes::Elements(push) => {
                // Elements are told in the order in which they were taken: the last one goes back first.
                let mut taken: Vec<&[u8]> =
                    reply::elements(parts.next()?)?.map(reply::text).collect::<Option<_>>()?;
                taken.reverse();
                let count = taken.len();
                Some(Self::with(key, push, &[], &taken, count))
            }
            Takes::Member => {
                let member = reply::text(parts.next()?)?;
                let score = number(parts.next()?)?;
                Some(Self::with(key, b"ZADD", &[b"NX"], &[score, member], 1))
            }
            Takes::Members => {
                let mut scored = Vec::new();
                for pair in reply::elements(parts.next()?)? {
                    let mut pair = reply::elements(pair)?;
                    let member = reply::text(pair.next()?)?;
                    scored.extend([number(pair.next()?)?, member]);
                }
                let count = scored.len() / 2;
                Some(Self::with(key, b"ZADD", &[b"NX"], &scored, count))
            }
            Takes::Entries | Takes::Nothing => None,
        }
    }

    fn with(key: Vec<u8>, name: &[u8], options: &[&[u8]], elements: &[&[u8]], count: usize) -> Self {
        let mut request = Vec::new();
        let words: Vec<&[u8]> =
            [name, &key].into_iter().chain(options.iter().copied()).chain(elements.iter().copied()).collect();
        encode::request(&mut request, words.into_iter());
        Self { key, count, way_back: Some(request) }
    }
}

/// True if `BLMPOP` pops elements from the left, false from the right; None if the request is malformed.
fn takes_from_left(words: &Arguments<'_>) -> Option<bool> {
    let keys: usize = std::str::from_utf8(words.get(2)?).ok()?.parse().ok()?;
    let direction = words.get(keys.checked_add(3)?)?;
    Some(direction.eq_ignore_ascii_case(b"left"))
}

/// Returns the digits of a score in a reply: a text in RESP2, a double in RESP3. None if it is no score.
fn number(reply: &[u8]) -> Option<&[u8]> {
    let double = reply.strip_prefix(b",").and_then(|digits| digits.strip_suffix(b"\r\n"));
    double.or_else(|| reply::text(reply))
}

/// Returns the entries that a consumer group has read with `NOACK`, so that the store does not keep them as
/// pending; None if there are none.
fn entries_without_pending(reply: &[u8]) -> Option<Orphans> {
    let is_map = reply.starts_with(b"%");
    let mut streams = reply::names_and_values(reply)?;
    let mut found: Option<Orphans> = None;
    while let Some(next) = streams.next() {
        let (name, entries) = if is_map {
            (reply::text(next)?, streams.next()?)
        } else {
            let mut stream = reply::elements(next)?;
            (reply::text(stream.next()?)?, stream.next()?)
        };
        let count = reply::elements(entries)?.count();
        let all = found.get_or_insert_with(|| Orphans { key: name.to_vec(), count: 0, way_back: None });
        all.count += count;
    }
    found.filter(|found| found.count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{RequestDecoder, RequestLimits};
    use crate::shard::private::encoded;

    fn found(request: &str, reply: &str) -> Option<(String, usize, Option<Vec<u8>>)> {
        let (frame, mut decoder, mut consumed) = (encoded(request), RequestDecoder::default(), 0);
        let request = decoder.next(&frame, &mut consumed, &RequestLimits::trusted(frame.len())).ok()??;
        let orphans = Orphans::of(Takes::of(&request.arguments), reply.as_bytes())?;
        Some((String::from_utf8_lossy(&orphans.key).into_owned(), orphans.count, orphans.way_back))
    }

    #[test]
    fn elements_go_back_to_the_end_from_which_they_came() {
        let one = "*2\r\n$1\r\nq\r\n$1\r\nx\r\n";
        let several = "*2\r\n$1\r\nq\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n";
        let cases = [
            ("BLPOP p q 0", one, 1, "LPUSH q x"),
            ("brpop p q 0", one, 1, "RPUSH q x"),
            ("BLMPOP 0 2 p q LEFT COUNT 2", several, 2, "LPUSH q b a"),
            ("BLMPOP 0 2 left q RIGHT COUNT 2", several, 2, "RPUSH q b a"),
            ("BZPOPMIN q 0", "*3\r\n$1\r\nq\r\n$1\r\nm\r\n$3\r\n1.5\r\n", 1, "ZADD q NX 1.5 m"),
            ("BZPOPMAX q 0", "*3\r\n$1\r\nq\r\n$1\r\nm\r\n,-inf\r\n", 1, "ZADD q NX -inf m"),
            (
                "BZMPOP 0 1 q MIN COUNT 2",
                "*2\r\n$1\r\nq\r\n*2\r\n*2\r\n$1\r\nm\r\n,1\r\n*2\r\n$1\r\nn\r\n,2\r\n",
                2,
                "ZADD q NX 1 m 2 n",
            ),
        ];
        for (request, reply, count, back) in cases {
            assert_eq!(
                found(request, reply),
                Some(("q".to_owned(), count, Some(encoded(back)))),
                "{request}"
            );
        }
    }

    #[test]
    fn entries_of_a_stream_are_lost_only_without_pending_list() {
        let request = "XREADGROUP GROUP g c NOACK BLOCK 0 STREAMS s t > >";
        let entry = "*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n";
        let resp2 = format!("*1\r\n*2\r\n$1\r\ns\r\n*2\r\n{entry}{entry}");
        let resp3 = format!("%2\r\n$1\r\ns\r\n*1\r\n{entry}$1\r\nt\r\n*2\r\n{entry}{entry}");
        assert_eq!(found(request, &resp2), Some(("s".to_owned(), 2, None)));
        assert_eq!(found(request, &resp3), Some(("s".to_owned(), 3, None)));
        assert_eq!(found(&request.replace("NOACK ", ""), &resp2), None);
    }

    #[test]
    fn nothing_is_lost_by_other_replies() {
        for (request, reply) in [
            ("BLPOP q 0", "*-1\r\n"),
            ("BLPOP q 0", "_\r\n"),
            ("BLPOP q 0", "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
            ("BLPOP q 0", "*1\r\n$1\r\nq\r\n"),
            ("BLMOVE q r LEFT RIGHT 0", "$1\r\nx\r\n"),
            ("XREAD BLOCK 0 STREAMS s $", "*1\r\n*2\r\n$1\r\ns\r\n*0\r\n"),
            ("WAIT 1 0", ":1\r\n"),
            ("BZMPOP 0 1 q MIN", "*2\r\n$1\r\nq\r\n*1\r\n*1\r\n$1\r\nm\r\n"),
            ("BLMPOP 0 9 q LEFT", "*2\r\n$1\r\nq\r\n*1\r\n$1\r\nx\r\n"),
        ] {
            assert_eq!(found(request, reply), None, "{request}");
        }
    }
}
