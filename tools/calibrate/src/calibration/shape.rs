//! Shapes of requests to measure: common commands, each in several random sizes.
//!
//! Bytes and rows are drawn independently of each other, so that their costs can be separated.

use super::Features;
use weir::protocol::encode;
use weir::values::Random;

/// The number of sizes in which each command is measured; a third of them is left out of the fit of the
/// weights, to test it.
pub const SIZES: usize = 6;
/// Maximum number of pairs (key and value, or field and value) that one request writes when keys are created before the
/// measurement; of list elements and set members, twice as many.
const ITEMS_PER_REQUEST: usize = 500;
const VALUE_BYTES: (f64, f64) = (8.0, 65_536.0);
const ITEMS: (f64, f64) = (1.0, 1_000.0);
/// The least and the largest number of keys in an MGET or MSET, as clients usually send them.
const KEYS: (f64, f64) = (1.0, 100.0);
const ITEM_BYTES: (f64, f64) = (8.0, 2_048.0);
/// Maximum number of bytes of a collection (or of all values of an MGET or MSET) that a measured request
/// reads or changes.
const COLLECTION_BYTES_MAX: usize = 128 * 1024;
const BYTES_PER_KIB: f64 = 1_024.0;

/// A shape: one command in one size whose cost is measured, with the keys that it needs.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The name in reports: the command and its size, such as `GET 100 B`.
    pub name: String,
    /// The name of the command as `INFO commandstats` has it.
    pub command: &'static str,
    /// Requests that create the keys that the measured request reads or changes.
    pub setup: Vec<Vec<u8>>,
    /// The request whose cost is measured.
    pub request: Vec<u8>,
    /// All keys that the request or its set-up writes, which are removed at the end.
    pub keys: Vec<String>,
    /// The number of keys that the measured request writes, if its command writes several; 0 for other
    /// commands. Keys that it reads count as rows of the reply instead.
    keys_written: usize,
}

impl Shape {
    /// Returns the parts of the request that weir prices (KiB of request and reply, rows, keys), for a reply
    /// of this many bytes and rows.
    pub fn features(&self, reply_bytes: usize, reply_rows: u64) -> Features {
        Features {
            kib_in: self.request.len() as f64 / BYTES_PER_KIB,
            kib_out: reply_bytes as f64 / BYTES_PER_KIB,
            rows: reply_rows as f64,
            keys: if self.keys_written > 1 { self.keys_written as f64 } else { 0.0 },
        }
    }
}

#[derive(Clone, Copy)]
enum Family {
    Get,
    Set,
    HashGet,
    HashSet,
    ManyGet,
    ManySet,
    HashAll,
    List,
    SortedSet,
    Members,
}

const FAMILIES: [Family; 10] = [
    Family::Get,
    Family::Set,
    Family::HashGet,
    Family::HashSet,
    Family::ManyGet,
    Family::ManySet,
    Family::HashAll,
    Family::List,
    Family::SortedSet,
    Family::Members,
];

/// Makes all shapes: each command in several sizes. The names of their keys begin with the prefix; the same
/// seed gives the same shapes.
pub fn shapes(prefix: &str, seed: u64) -> Vec<Shape> {
    let mut random = Random::new(seed);
    let mut shapes = Vec::new();
    for family in FAMILIES {
        for size in 0..SIZES {
            // A size is drawn in each part of the range, so that every seed has small and large ones.
            let drawn =
                |(least, most): (f64, f64), share: f64| log_between(least, most, share).round() as usize;
            let part = |random: &mut Random| (size as f64 + random.unit()) / SIZES as f64;
            let value = drawn(VALUE_BYTES, part(&mut random));
            let several = matches!(family, Family::ManyGet | Family::ManySet);
            let items = drawn(if several { KEYS } else { ITEMS }, part(&mut random));
            let bytes = drawn(ITEM_BYTES, random.unit()).min(COLLECTION_BYTES_MAX / items).max(8);
            let key = format!("{prefix}{}", shapes.len());
            shapes.push(match family {
                Family::Get | Family::Set | Family::HashGet | Family::HashSet => single(family, &key, value),
                Family::ManyGet | Family::ManySet => many(family, &key, items, bytes),
                Family::HashAll | Family::List | Family::SortedSet | Family::Members => {
                    collection(family, &key, items, bytes)
                }
            });
        }
    }
    shapes
}

fn log_between(least: f64, most: f64, share: f64) -> f64 {
    least * (most / least).powf(share)
}

fn single(family: Family, key: &str, bytes: usize) -> Shape {
    let value = filler(0, bytes);
    let (command, setup, request): (_, Vec<&str>, Vec<&str>) = match family {
        Family::Get => ("get", vec!["SET", key, &value], vec!["GET", key]),
        Family::Set => ("set", vec!["SET", key, &value], vec!["SET", key, &value]),
        Family::HashGet => ("hget", vec!["HSET", key, "a", &value, "b", "1"], vec!["HGET", key, "a"]),
        _ => ("hset", vec!["HSET", key, "a", &value, "b", "1"], vec!["HSET", key, "a", &value]),
    };
    Shape {
        name: format!("{} {bytes} B", command.to_ascii_uppercase()),
        command,
        setup: vec![encoded(&setup)],
        request: encoded(&request),
        keys: vec![key.to_owned()],
        keys_written: 0,
    }
}

fn many(family: Family, key: &str, items: usize, bytes: usize) -> Shape {
    let keys: Vec<String> = (0..items).map(|item| format!("{key}:{item}")).collect();
    let value = filler(0, bytes);
    let pairs: Vec<&str> = keys.iter().flat_map(|key| [key.as_str(), &value]).collect();
    let setup =
        pairs.chunks(2 * ITEMS_PER_REQUEST).map(|pairs| encoded(&[&["MSET"], pairs].concat())).collect();
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let (command, request, keys_written) = match family {
        Family::ManyGet => ("mget", encoded(&[&["MGET"], &names[..]].concat()), 0),
        _ => ("mset", encoded(&[&["MSET"], &pairs[..]].concat()), items),
    };
    let name = format!("{} {items} x {bytes} B", command.to_ascii_uppercase());
    Shape { name, command, setup, request, keys, keys_written }
}

fn collection(family: Family, key: &str, items: usize, bytes: usize) -> Shape {
    let members: Vec<String> = (0..items).map(|item| filler(item, bytes)).collect();
    let numbers: Vec<String> = (0..items).map(|item| item.to_string()).collect();
    let pairs = members.iter().zip(&numbers);
    let (command, writes, parts, request): (_, _, Vec<&str>, Vec<&str>) = match family {
        Family::HashAll => (
            "hgetall",
            "HSET",
            pairs.flat_map(|(member, number)| [number.as_str(), member.as_str()]).collect(),
            vec!["HGETALL", key],
        ),
        Family::List => {
            ("lrange", "RPUSH", members.iter().map(String::as_str).collect(), vec!["LRANGE", key, "0", "-1"])
        }
        Family::SortedSet => (
            "zrange",
            "ZADD",
            pairs.flat_map(|(member, number)| [number.as_str(), member.as_str()]).collect(),
            vec!["ZRANGE", key, "0", "-1"],
        ),
        _ => ("smembers", "SADD", members.iter().map(String::as_str).collect(), vec!["SMEMBERS", key]),
    };
    Shape {
        name: format!("{} {items} x {bytes} B", command.to_ascii_uppercase()),
        command,
        setup: parts
            .chunks(2 * ITEMS_PER_REQUEST)
            .map(|parts| encoded(&[&[writes, key], parts].concat()))
            .collect(),
        request: encoded(&request),
        keys: vec![key.to_owned()],
        keys_written: 0,
    }
}

/// Returns a text of `bytes` bytes that begins with `number`, so that different numbers give different
/// texts.
fn filler(number: usize, bytes: usize) -> String {
    let mut text = format!("{number}.");
    text.extend(std::iter::repeat_n('v', bytes.saturating_sub(text.len())));
    text
}

/// Encodes a request as a RESP array of bulk strings.
pub fn encoded(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::request(&mut bytes, words.iter().map(|word| word.as_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::protocol::{RequestDecoder, RequestLimits};

    #[test]
    fn shapes_are_requests_of_their_commands_on_keys_of_their_prefix() {
        let shapes = shapes("calibrate:", 7);
        assert_eq!(shapes.len(), FAMILIES.len() * SIZES);
        for shape in &shapes {
            let mut decoder = RequestDecoder::default();
            for bytes in shape.setup.iter().chain([&shape.request]) {
                let mut consumed = 0;
                let request = decoder.next(bytes, &mut consumed, &RequestLimits::trusted(1 << 20));
                let arguments = request.expect("well formed").expect("whole").arguments;
                assert_eq!(consumed, bytes.len());
                assert!(arguments.at(1).starts_with(b"calibrate:"), "{}", shape.name);
                if std::ptr::eq(bytes, &raw const shape.request) {
                    assert!(arguments.name().eq_ignore_ascii_case(shape.command.as_bytes()));
                }
            }
            assert!(shape.keys.iter().all(|key| key.starts_with("calibrate:")));
            assert!(shape.request.len() < COLLECTION_BYTES_MAX + 64 * 1024, "{}", shape.name);
        }
        let mut keys: Vec<&String> = shapes.iter().flat_map(|shape| &shape.keys).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "no two shapes share a key");
    }

    #[test]
    fn the_same_seed_gives_the_same_shapes_and_every_seed_small_and_large_ones() {
        let names = |seed| shapes("p:", seed).into_iter().map(|shape| shape.name).collect::<Vec<_>>();
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
        for seed in 0..20 {
            let bytes: Vec<usize> = shapes("p:", seed).iter().map(|shape| shape.request.len()).collect();
            assert!(bytes.iter().any(|bytes| *bytes < 64) && bytes.iter().any(|bytes| *bytes > 16 * 1024));
        }
    }

    #[test]
    fn keys_that_are_written_count_and_those_that_are_read_are_rows() {
        let shapes = shapes("p:", 1);
        let features = |command: &str| {
            let several = |shape: &&Shape| shape.command == command && shape.keys.len() > 1;
            let many = shapes.iter().find(several).expect("it is there");
            (many.features(5, 7), many.keys.len() as f64)
        };
        let ((written, keys), (read, _)) = (features("mset"), features("mget"));
        assert_eq!((written.keys, written.rows, read.keys, read.rows), (keys, 7.0, 0.0, 7.0));
        let get = shapes.iter().find(|shape| shape.command == "get").expect("it is there");
        let features = get.features(2_048, 0);
        assert_eq!((features.kib_out, features.rows, features.keys), (2.0, 0.0, 0.0));
    }
}
