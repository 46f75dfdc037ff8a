//! Board of the scripts that declare that they write nothing, by their digests, shared by all cores. A script
//! declares it in its first line, `#!lua flags=no-writes`; a request that names the script by its digest
//! (`EVALSHA`) does not show that line. `CLIENT PAUSE` of writes lets such requests pass, as in Redis. A
//! server keeps the scripts themselves; weir keeps these digests instead.
//!
//! A digest has only one source, so an entry is never wrong. If a script's entry is overwritten by another,
//! requests for the script wait without need during such a pause.

use std::sync::atomic::{AtomicU64, Ordering};

use sha1::{Digest as _, Sha1};

/// The number of script digests that the board (which all cores share) has places for. A digest that falls on
/// the place of another takes it.
const PLACES: usize = 2048;
/// The largest source, in bytes, of a script whose digest is put on the board of scripts that write nothing.
/// A longer script counts as one that writes.
const SOURCE_BYTES_MAX: usize = 64 * 1024;
/// The flag by which a script declares that it writes nothing.
const NO_WRITES: &[u8] = b"no-writes";
/// The flags that a script may declare. Servers refuse a script that declares another.
const FLAGS: [&[u8]; 5] = [NO_WRITES, b"allow-oom", b"allow-stale", b"no-cluster", b"allow-cross-slot-keys"];

/// Digests of scripts that declare that they write nothing, shared by all cores. A digest has one possible
/// place in the table, where it overwrites an earlier one.
#[derive(Debug)]
pub struct ScriptBoard {
    /// The first 16 bytes of a digest in each place. Two cores that write to one place at a time may leave halves of
    /// two digests there, which are the digest of no script.
    places: Box<[[AtomicU64; 2]]>,
}

impl Default for ScriptBoard {
    fn default() -> Self {
        Self { places: std::iter::repeat_with(Default::default).take(PLACES).collect() }
    }
}

impl ScriptBoard {
    /// Puts the digest of a script on the board that all cores share, if its source declares that it writes
    /// nothing.
    pub fn note(&self, source: &[u8]) {
        if source.len() <= SOURCE_BYTES_MAX && declares_no_writes(source) {
            let digest: [u8; 20] = Sha1::digest(source).into();
            let (place, words) = split(&digest);
            for (cell, word) in self.places[place].iter().zip(words) {
                cell.store(word, Ordering::Relaxed);
            }
        }
    }

    /// True if a digest, in hexadecimal digits, is on the board that all cores share: the script declares
    /// that it writes nothing.
    pub fn has(&self, digest: &[u8]) -> bool {
        let Some(digest) = parsed(digest) else { return false };
        let (place, words) = split(&digest);
        self.places[place].iter().zip(words).all(|(cell, word)| cell.load(Ordering::Relaxed) == word)
    }
}

/// True if the first line of a script (`source`) declares that it writes nothing: `#!lua` with the flag
/// `no-writes` and no word that servers refuse. False for a line that only a server can split into words,
/// such as one with quotes.
pub fn declares_no_writes(source: &[u8]) -> bool {
    if !source.starts_with(b"#!") {
        return false;
    }
    let Some(end) = source.iter().position(|byte| *byte == b'\n') else { return false };
    let mut words = source[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    if words.next() != Some(b"#!lua") {
        return false;
    }
    let mut is_declared = false;
    for word in words {
        let Some(flags) = word.strip_prefix(b"flags=") else { return false };
        for flag in flags.split(|byte| *byte == b',') {
            if !FLAGS.contains(&flag) {
                return false;
            }
            is_declared |= flag == NO_WRITES;
        }
    }
    is_declared
}

/// Returns the place of a digest on the board, and its first 16 bytes.
fn split(digest: &[u8; 20]) -> (usize, [u64; 2]) {
    let word =
        |start: usize| digest[start..start + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    (word(12) as usize % PLACES, [word(0), word(8)])
}

/// Reads a digest of 40 hexadecimal digits; `None` for any other text.
fn parsed(digits: &[u8]) -> Option<[u8; 20]> {
    let mut digest = [0; 20];
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = (*digit as char).to_digit(16)?;
            *byte = *byte << 4 | value as u8;
        }
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_declares_in_its_first_line_that_it_writes_nothing() {
        for line in
            ["#!lua flags=no-writes\n", "#!lua  flags=allow-stale,no-writes flags=allow-oom\r\nreturn 1"]
        {
            assert!(declares_no_writes(line.as_bytes()), "{line}");
        }
        for line in [
            "return 1",
            "#!lua\nreturn 1",
            "#!lua flags=no-writes",
            "#!lua flags=allow-oom\n-- no-writes",
            "#!lua flags=no-writes,other\n",
            "#!lua name=no-writes\n",
            "#!lua no-writes\n",
            "#!python flags=no-writes\n",
            " #!lua flags=no-writes\n",
            "#!lua \"flags=no-writes\"\n",
            "#! lua flags=no-writes\n",
            "#!\n",
        ] {
            assert!(!declares_no_writes(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn a_digest_is_known_once_its_source_was_seen() {
        let board = ScriptBoard::default();
        let (reads, writes) = (b"#!lua flags=no-writes\nreturn 2", b"#!lua\nreturn 2");
        // Digests as `sha1sum` computes them.
        let digests: [&[u8]; 2] =
            [b"ae33f9227913b24d053a555637f98260b23bd3a3", b"327e60b78547ebb77ec450ead371d5bd10cbdd69"];
        board.note(writes);
        assert!(!digests.iter().any(|digest| board.has(digest)));
        board.note(reads);
        assert_eq!(digests.map(|digest| board.has(digest)), [true, false]);
        assert!(board.has(&digests[0].to_ascii_uppercase()));
        for bad in [&b""[..], b"zz", &digests[0][1..], &[b'g'; 40]] {
            assert!(!board.has(bad));
        }
    }

    #[test]
    fn any_number_of_scripts_leaves_the_board_as_large_as_it_is() {
        let board = ScriptBoard::default();
        for number in 0..3 * PLACES {
            board.note(format!("#!lua flags=no-writes\nreturn {number}").as_bytes());
        }
        assert_eq!(board.places.len(), PLACES);
        board.note(&[&b"#!lua flags=no-writes\n"[..], &vec![b' '; SOURCE_BYTES_MAX]].concat());
    }
}
