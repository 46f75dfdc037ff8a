//! Keys of a message. A message with several keys is parsed once more to find them, because keys do not
//! travel beside it.

use crate::protocol::command::{self, Class, Effect, Flags, Handling};
use crate::protocol::{Arguments, RequestDecoder, RequestLimits};
use crate::values::Database;

/// Maximum number of databases of one transaction (`SELECT`) for which its keys are found; with more, its
/// keys count as unknown.
const DATABASES_MAX: usize = 4;

/// Error for a message whose keys cannot be determined: it is malformed or too long, or has a command whose
/// keys are unknown. The message may then be about any key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold;

/// Calls `each` with every key of a message. Fails if the message is malformed, has a command whose keys are unknown,
/// or has a request above `bytes_max` bytes; `each` may have been called before.
pub fn for_each_key(message: &[u8], bytes_max: usize, each: &mut impl FnMut(&[u8])) -> Result<(), Untold> {
    for_each_request(message, bytes_max, &mut |arguments| {
        let command = command::recognise(arguments).map_err(|_| Untold)?;
        let called = command.for_each_key(arguments, &mut |index| each(arguments.at(index)));
        called.map_err(|_| Untold)
    })
}

/// Calls `each` with every key that a message may change, and the key's database: `database`, or one that the
/// message selects. A store may refuse a `SELECT`, so a key behind one is passed once for each database that
/// may be selected there. With `trusts_scripts` a script changes only the keys that it names. Fails if the message is
/// malformed or selects more than three other databases, for a script without `trusts_scripts`, for an administrator's
/// command, for one that changes keys without naming them or moves them to another database, and for a request above
/// `bytes_max` bytes.
pub fn for_each_written_key(
    message: &[u8],
    (database, bytes_max): (Database, usize),
    trusts_scripts: bool,
    each: &mut impl FnMut(Database, &[u8]),
) -> Result<(), Untold> {
    let (mut databases, mut count) = ([database; DATABASES_MAX], 1);
    for_each_request(message, bytes_max, &mut |arguments| {
        let command = command::recognise(arguments).map_err(|_| Untold)?;
        if command.name == "select" {
            let number = arguments.get(1).and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
            let selected = Database(number.ok_or(Untold)?);
            if !databases[..count].contains(&selected) {
                *databases.get_mut(count).ok_or(Untold)? = selected;
                count += 1;
            }
            return Ok(());
        }
        match command.effect {
            Effect::Read => return Ok(()),
            // Commands without an effect on keys are harmless, except those for administrators (settings,
            // debugging).
            Effect::None => return if command.admin { Err(Untold) } else { Ok(()) },
            Effect::Write => {}
        }
        if command.class == Class::Script && !trusts_scripts {
            return Err(Untold);
        }
        // The key of the other database is changed too.
        if command.handling_for(arguments) == Handling::BetweenDatabases {
            return Err(Untold);
        }
        let mut keys = 0;
        let called = command.for_each_key(arguments, &mut |index| {
            keys += 1;
            databases[..count].iter().for_each(|database| each(*database, arguments.at(index)));
        });
        // A write that names no key (`FLUSHALL`) changes all of them; a script that names none declares that
        // it needs none.
        let is_told = called.is_ok() && (keys > 0 || command.class == Class::Script);
        if is_told { Ok(()) } else { Err(Untold) }
    })
}

/// A key that is read, by itself or within a transaction, and the place of its value in the reply.
#[derive(Clone, Copy, Debug)]
pub struct Inner<'a> {
    /// Index of the request's reply among the elements of the reply to `EXEC`; None if the request is in no
    /// transaction.
    pub element: Option<u32>,
    /// Index of the key's value within the request's reply, if the request (`MGET`) returns the values of
    /// several keys; None otherwise.
    pub part: Option<u32>,
    /// The key that is read.
    pub key: &'a [u8],
    /// The bytes of the request that reads the key.
    pub frame: &'a [u8],
}

/// Calls `each` with every key that a message, a transaction or one request, reads by `MGET` or by a cacheable command
/// with a single key. Stops at a request that is malformed, unknown or above `bytes_max` bytes, and at one that selects
/// another database.
pub fn for_each_read(message: &[u8], bytes_max: usize, each: &mut impl FnMut(Inner<'_>)) {
    let mut next: Option<u32> = None;
    // An error needs no handling here: a message whose keys are unknown counts as a write, which makes kept
    // replies invalid anyway.
    let _: Result<(), Untold> = for_each_request(message, bytes_max, &mut |arguments| {
        let command = command::recognise(arguments).map_err(|_| Untold)?;
        let element = next;
        next = if command.name == "multi" { Some(0) } else { next.map(|next| next + 1) };
        if command.name == "select" {
            return Err(Untold);
        }
        if !command.flags.contains(Flags::CACHEABLE) {
            return Ok(());
        }
        let asks_for_values = command.name == "mget";
        let (mut keys, mut only) = (0, None);
        let called = command.for_each_key(arguments, &mut |index| {
            let key = arguments.at(index);
            let inner = |part| Inner { element, part, key, frame: arguments.frame() };
            if asks_for_values {
                each(inner(Some(keys)));
            }
            only = (keys == 0 && !asks_for_values).then(|| inner(None));
            keys += 1;
        });
        if let Some(inner) = only {
            each(inner);
        }
        called.map_err(|_| Untold)
    });
}

fn for_each_request(
    message: &[u8],
    bytes_max: usize,
    each: &mut impl FnMut(&Arguments<'_>) -> Result<(), Untold>,
) -> Result<(), Untold> {
    let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
    let limits = RequestLimits::trusted(bytes_max);
    while consumed < message.len() {
        let request = decoder.next(message, &mut consumed, &limits).map_err(|_| Untold)?;
        each(&request.ok_or(Untold)?.arguments)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::encode;

    fn message(requests: &[&str]) -> Vec<u8> {
        let mut message = Vec::new();
        for request in requests {
            let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
            encode::request(&mut message, words.into_iter());
        }
        message
    }

    fn written(requests: &[&str], trusts_scripts: bool) -> Result<Vec<String>, Untold> {
        let mut keys = Vec::new();
        for_each_written_key(
            &message(requests),
            (Database(2), 1 << 20),
            trusts_scripts,
            &mut |database, key| {
                let key = String::from_utf8_lossy(key);
                keys.push(if database == Database(2) {
                    key.into_owned()
                } else {
                    format!("{}:{key}", database.0)
                });
            },
        )?;
        Ok(keys)
    }

    #[test]
    fn every_kind_of_write_says_what_it_changes() {
        for (request, keys) in [
            ("SET a 1", "a"),
            ("MSET a 1 b 2", "a b"),
            ("RENAME a b", "a b"),
            ("COPY a b REPLACE", "a b"),
            ("GETDEL a", "a"),
            ("GETEX a PX 5", "a"),
            ("PEXPIRE a 1", "a"),
            ("PERSIST a", "a"),
            ("SUNIONSTORE a b c", "a b c"),
            ("ZRANGESTORE a b 0 -1", "a b"),
            ("SORT a STORE b", "a b"),
            ("LMOVE a b LEFT LEFT", "a b"),
            ("RESTORE a 0 x", "a"),
            ("GEOSEARCHSTORE a b FROMLONLAT 0 0 BYRADIUS 1 km", "a b"),
            ("XADD a * f v", "a"),
            ("BITOP AND a b c", "a b c"),
            ("PFMERGE a b", "a b"),
            ("GET a", ""),
            ("MGET a b", ""),
            ("SORT_RO a", ""),
            ("DBSIZE", ""),
            ("INFO", ""),
        ] {
            assert_eq!(
                written(&[request], false).map(|keys| keys.join(" ")),
                Ok(keys.to_owned()),
                "{request}"
            );
        }
    }

    #[test]
    fn a_block_says_what_all_of_it_changes() {
        let block = ["MULTI", "GET x", "SET a 1", "DEL b c", "EXEC"];
        assert_eq!(written(&block, false), Ok(["a", "b", "c"].map(str::to_owned).into()));
        assert_eq!(written(&["MULTI", "SET a 1", "FLUSHALL", "EXEC"], false), Err(Untold));
    }

    #[test]
    fn keys_behind_a_select_may_be_of_either_database() {
        let block = ["MULTI", "SET a 1", "SELECT 5", "GET b", "SET c 1", "SELECT 2", "DEL d", "EXEC"];
        let keys = ["a", "c", "5:c", "d", "5:d"];
        assert_eq!(written(&block, false), Ok(keys.map(str::to_owned).into()));
        assert_eq!(written(&["SELECT 3", "SELECT 4", "SELECT 5"], false), Ok(Vec::new()));
        assert_eq!(written(&["SELECT 3", "SELECT 4", "SELECT 5", "SELECT 6"], false), Err(Untold));
        assert_eq!(written(&["SELECT x", "SET a 1"], false), Err(Untold));
    }

    #[test]
    fn a_block_says_what_it_reads_of_which_replies_are_kept_and_where_those_stand() {
        let block = [
            "MULTI",
            "GET a",
            "SET b 1",
            "MGET c a",
            "HGET d f",
            "EXISTS e",
            "EXISTS e f",
            "SORT_RO g",
            "EXEC",
        ];
        let mut read = Vec::new();
        for_each_read(&message(&block), 1 << 20, &mut |inner| {
            let names = [inner.key, inner.frame].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            assert!(inner.frame.starts_with(b"*") && names[1].contains(&names[0]));
            read.push((inner.element, inner.part, names[0].clone()));
        });
        let read: Vec<_> = read.iter().map(|(element, part, key)| (*element, *part, key.as_str())).collect();
        let told = [(0, None, "a"), (2, Some(0), "c"), (2, Some(1), "a"), (3, None, "d"), (4, None, "e")];
        assert_eq!(read, told.map(|(element, part, key)| (Some(element), part, key)));
        for alone in
            [&["GET a"][..], &["CLIENT CACHING YES", "GET a"], &["MULTI", "SELECT 1", "GET a", "EXEC"]]
        {
            let mut read = Vec::new();
            for_each_read(&message(alone), 1 << 20, &mut |inner| {
                read.push((inner.element, inner.key.to_vec()));
            });
            assert_eq!(read, if alone[0] == "MULTI" { vec![] } else { vec![(None, b"a".to_vec())] });
        }
        for other in [&["EVAL code 1 a"][..], &["NOSUCH", "GET a"], &["SET a b"], &["EXISTS a b"], &["MULTI"]]
        {
            for_each_read(&message(other), 1 << 20, &mut |inner| panic!("{other:?}: {inner:?}"));
        }
    }

    #[test]
    fn what_nobody_can_tell_is_said_to_be_so() {
        for request in ["FLUSHALL", "FLUSHDB ASYNC", "NOSUCH a", "CONFIG SET a b", "DEBUG RELOAD"] {
            assert_eq!(written(&[request], true), Err(Untold), "{request}");
        }
        assert_eq!(written(&["EVAL code 1 a x"], false), Err(Untold));
        assert_eq!(written(&["EVAL code 1 a x"], true), Ok(vec!["a".to_owned()]));
        assert_eq!(written(&["EVAL code 0"], true), Ok(Vec::new()));
        assert_eq!(written(&["FCALL name 2 a b"], true), Ok(["a", "b"].map(str::to_owned).into()));
    }
}
