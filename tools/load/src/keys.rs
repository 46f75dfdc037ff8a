//! Sources of the keys and values that replace the braces in a command and differ from request to request.

use super::zipf::Zipf;
use weir::protocol::encode;
use weir::values::Random;

/// A source of key numbers or values, written in braces in a command; most differ from request to request.
#[derive(Clone, Debug)]
pub enum Source {
    /// The source `{uniform:N}`: a random number below N, all equally likely.
    Uniform(u64),
    /// The source `{zipf:N}` or `{zipf:N:s}`: a random number below N by Zipf's law with exponent s (0.99 if
    /// none is given); 0 is the most frequent.
    Zipf(Zipf),
    /// The source `{hot:N:share%:K}`: with probability `share` one of the first K numbers, else one of the
    /// others below N.
    Hot {
        /// The number of keys in all (N).
        keys: u64,
        /// The probability of a hot key, from 0 to 1.
        share: f64,
        /// The number of hot keys (`K` of `{hot:N:share%:K}`).
        hot: u64,
    },
    /// The source `{seq}`: 0, 1, 2, ... from request to request; the same number wherever it stands in one
    /// request.
    Sequence,
    /// The source `{viral}`: always the text `viral`, for a key that all requests read.
    Viral,
    /// The source `{value:BYTES}`: a constant text of BYTES bytes.
    Value(usize),
    /// The source `{rand:BYTES}`: BYTES random letters, digits, `-` and `_`, different each time.
    Letters(usize),
}

const KEYS_MAX: u64 = 1 << 53;
const VALUE_BYTES_MAX: u64 = 512 * 1024 * 1024;
const VIRAL: &[u8] = b"viral";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const EXPONENT_DEFAULT: f64 = 0.99;
const WANTED: &str =
    "{uniform:N}, {zipf:N[:s]}, {hot:N:share%:K}, {viral}, {seq}, {value:BYTES} or {rand:BYTES} is expected";

impl Source {
    /// Parses the text between the braces of a placeholder in a command, such as `uniform:1000`. The error is
    /// a text for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(':').collect();
        let wrong = || format!("{{{text}}} is not known: {WANTED}");
        match words.as_slice() {
            ["uniform", keys] => Ok(Self::Uniform(number(keys, 1, KEYS_MAX, text)?)),
            ["zipf", keys] => Ok(Self::Zipf(Zipf::new(number(keys, 1, KEYS_MAX, text)?, EXPONENT_DEFAULT))),
            ["zipf", keys, exponent] => {
                let exponent = exponent.parse().ok().filter(|exponent| (0.01..=10.0).contains(exponent));
                let exponent =
                    exponent.ok_or_else(|| format!("{{{text}}}: an exponent from 0.01 to 10 is expected"))?;
                Ok(Self::Zipf(Zipf::new(number(keys, 1, KEYS_MAX, text)?, exponent)))
            }
            ["hot", keys, share, hot] => {
                let keys = number(keys, 2, KEYS_MAX, text)?;
                let per_cent = share.strip_suffix('%').and_then(|share| share.parse::<f64>().ok());
                let per_cent = per_cent.filter(|share| (0.0..=100.0).contains(share));
                let per_cent =
                    per_cent.ok_or_else(|| format!("{{{text}}}: a share such as 90% is expected"))?;
                Ok(Self::Hot { keys, share: per_cent / 100.0, hot: number(hot, 1, keys - 1, text)? })
            }
            ["viral"] => Ok(Self::Viral),
            ["seq"] => Ok(Self::Sequence),
            ["value", bytes] => Ok(Self::Value(number(bytes, 0, VALUE_BYTES_MAX, text)? as usize)),
            ["rand", bytes] => Ok(Self::Letters(number(bytes, 0, VALUE_BYTES_MAX, text)? as usize)),
            _ => Err(wrong()),
        }
    }

    /// Returns the bytes of a source that is the same for every request; `None` for other sources.
    pub fn constant(&self) -> Option<Vec<u8>> {
        match self {
            Self::Viral => Some(VIRAL.to_vec()),
            Self::Value(bytes) => Some(vec![b'x'; *bytes]),
            _ => None,
        }
    }

    /// Appends to `out` the number or text that the source gives for the request with this sequence number. Random
    /// sources draw from `random`.
    pub fn write(&self, out: &mut Vec<u8>, sequence: u64, random: &mut Random) {
        let number = match self {
            Self::Uniform(keys) => random.below(*keys),
            Self::Zipf(zipf) => zipf.rank(random) - 1,
            Self::Hot { keys, share, hot } => {
                if random.unit() < *share {
                    random.below(*hot)
                } else {
                    hot + random.below(keys - hot)
                }
            }
            Self::Sequence => sequence,
            Self::Viral => return out.extend_from_slice(VIRAL),
            Self::Value(bytes) => return out.resize(out.len() + bytes, b'x'),
            Self::Letters(bytes) => return letters(out, *bytes, random),
        };
        encode::decimal(out, number as i64);
    }
}

fn letters(out: &mut Vec<u8>, count: usize, random: &mut Random) {
    const PER_DRAW: usize = 10;
    for start in (0..count).step_by(PER_DRAW) {
        let mut bits = random.bits();
        for _ in start..count.min(start + PER_DRAW) {
            out.push(ALPHABET[(bits & 63) as usize]);
            bits >>= 6;
        }
    }
}

fn number(text: &str, least: u64, most: u64, whole: &str) -> Result<u64, String> {
    let number = text.replace('_', "").parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        format!("{{{whole}}}: a whole number from {least} to {most} is expected where '{text}' stands")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(source: &str, sequence: u64, random: &mut Random) -> String {
        let mut out = Vec::new();
        Source::parse(source).expect(source).write(&mut out, sequence, random);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_is_written() {
        let mut random = Random::new(1);
        assert_eq!(written("seq", 17, &mut random), "17");
        assert_eq!(written("viral", 17, &mut random), "viral");
        assert_eq!(written("value:4", 0, &mut random), "xxxx");
        let (one, other) = (written("rand:33", 0, &mut random), written("rand:33", 0, &mut random));
        assert!(one.len() == 33 && other.len() == 33 && one != other);
        for source in ["uniform:10", "zipf:10", "zipf:10:1.2", "hot:10:90%:2"] {
            for _ in 0..1_000 {
                assert!(written(source, 0, &mut random).parse::<u64>().expect("a number") < 10);
            }
        }
    }

    #[test]
    fn hot_keys_get_their_share() {
        let mut random = Random::new(2);
        let hot = (0..20_000)
            .filter(|_| written("hot:1000:80%:5", 0, &mut random).parse::<u64>().expect("a number") < 5)
            .count();
        assert!(hot.abs_diff(16_000) < 300, "{hot}");
    }

    #[test]
    fn complaints_say_what_would_be_right() {
        for (source, complaint) in [
            ("unifrom:5", "{unifrom:5} is not known: {uniform:N}, {zipf:N[:s]}"),
            ("uniform:0", "{uniform:0}: a whole number from 1 to"),
            ("zipf:5:x", "an exponent from 0.01 to 10 is expected"),
            ("hot:5:90:1", "a share such as 90% is expected"),
            ("hot:5:90%:5", "a whole number from 1 to 4 is expected where '5' stands"),
            ("", "{} is not known"),
        ] {
            let told = Source::parse(source).expect_err(source);
            assert!(told.contains(complaint), "{told}");
        }
    }
}
