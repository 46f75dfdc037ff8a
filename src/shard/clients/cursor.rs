//! Cursors of `SCAN` over several stores: a cursor that a client gets also says which store is next. For a
//! cluster, see `routing/cluster/walk.rs`.

use crate::protocol::command::scan_cursor;
use crate::protocol::{encode, reply};
use crate::routing::cluster::WalkPosition;

/// Splits a client's `SCAN` cursor into the index of the store that it names and that store's own cursor.
/// None if the word is no cursor. `backends` is the number of stores.
pub fn split_cursor(word: &[u8], backends: u16) -> Option<(u16, u64)> {
    let cursor = scan_cursor(word)?;
    let backends = u64::from(backends);
    Some(((cursor % backends) as u16, cursor / backends))
}

/// Replaces the cursor in a store's reply to `SCAN` by one for the client, which also names a store out of
/// `backends`. If store `backend` has finished (its cursor is 0), the new cursor names the store `next`, or ends
/// the scan if that is None. The result is an error if the store's cursor is too large for that. A reply without
/// a cursor (an error) is returned unchanged.
pub fn with_next_cursor(reply: &[u8], backend: u16, next: Option<u16>, backends: u16) -> Vec<u8> {
    let backends = u64::from(backends);
    let Some((cursor, rest)) = cursor_and_rest(reply) else { return reply.to_vec() };
    let next = match cursor {
        0 => Some(next.map_or(0, u64::from)),
        cursor => cursor.checked_mul(backends).and_then(|scaled| scaled.checked_add(u64::from(backend))),
    };
    with_cursor(next, rest)
}

/// Replaces the cursor in a cluster node's reply to `SCAN` by one that also holds `position`, the place in the walk
/// over all nodes (a `SCAN` of a cluster scans one node after another). The result is an error if the node's cursor is
/// too large for that. A reply without a cursor (an error) is returned unchanged.
pub fn with_walk_cursor(reply: &[u8], position: WalkPosition) -> Vec<u8> {
    let Some((cursor, rest)) = cursor_and_rest(reply) else { return reply.to_vec() };
    with_cursor(position.after(cursor), rest)
}

fn with_cursor(next: Option<u64>, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rest.len() + 40);
    match next {
        Some(next) => {
            encode::array(&mut out, 2);
            encode::bulk(&mut out, next.to_string().as_bytes());
            out.extend_from_slice(rest);
        }
        None => encode::error(
            &mut out,
            "ERR the cursor of the store is too large to be combined with the number of stores",
        ),
    }
    out
}

fn cursor_and_rest(scan_reply: &[u8]) -> Option<(u64, &[u8])> {
    let mut elements = reply::elements(scan_reply)?;
    let cursor = reply::text(elements.next()?)?;
    Some((std::str::from_utf8(cursor).ok()?.parse().ok()?, elements.rest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_with(cursor: u64) -> Vec<u8> {
        format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.to_string().len()).into_bytes()
    }

    #[test]
    fn a_cursor_leads_through_all_stores_and_ends() {
        let mut seen = Vec::new();
        let mut word = b"0".to_vec();
        loop {
            let (backend, inner) = split_cursor(&word, 3).expect("a cursor of ours");
            seen.push((backend, inner));
            // Each store takes three steps.
            let reply = reply_with(if inner == 2 { 0 } else { inner + 1 });
            let following = Some(backend + 1).filter(|following| *following < 3);
            let next = with_next_cursor(&reply, backend, following, 3);
            word = reply::text(reply::elements(&next).and_then(|mut elements| elements.next()).expect("two"))
                .expect("a bulk")
                .to_vec();
            if word == b"0" {
                break;
            }
        }
        let expected: Vec<_> = (0..3).flat_map(|backend| (0..3).map(move |inner| (backend, inner))).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_is_no_cursor_is_said_to_be_none() {
        assert_eq!(split_cursor(b"x", 2), None);
        assert_eq!(split_cursor(b"--1", 2), None);
        assert!(with_next_cursor(&reply_with(u64::MAX), 1, None, 2).starts_with(b"-ERR the cursor"));
        assert_eq!(with_next_cursor(b"-ERR away\r\n", 0, Some(1), 2), b"-ERR away\r\n");
    }
}
