//! Tests of large requests and replies, the rest of which is received directly into their own buffer.

use super::*;
use crate::protocol::Room;

/// Fills a lent buffer with `bytes` as a socket would. Returns the buffer, and the number of bytes that did
/// fit.
fn fill(room: Option<Room>, bytes: &str) -> (Vec<u8>, usize) {
    let mut room = room.expect("much is missing");
    assert!(room.bytes >= bytes.len(), "room for {} of {}", room.bytes, bytes.len());
    room.buffer.extend_from_slice(bytes.as_bytes());
    (room.buffer, bytes.len())
}

#[test]
fn a_large_request_and_a_large_reply_come_into_rooms() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let (id, value) = (rig.id(client), "x".repeat(100_000));
    let set = String::from_utf8(request(&["SET", "k", &value])).expect("text");
    let (first, rest) = set.split_at(20_000);
    let now = rig.now;
    assert_eq!(rig.shards[0].handle_client_bytes(id, first.as_bytes(), now), rest.len());
    let (half, end) = rest.split_at(50_000);
    let (buffer, received) = fill(rig.shards[0].lend_client_room(id), half);
    assert_eq!(rig.shards[0].handle_client_filled(id, buffer, received, now), end.len());
    let (buffer, received) = fill(rig.shards[0].lend_client_room(id), end);
    assert_eq!(rig.shards[0].handle_client_filled(id, buffer, received, now), 0);
    assert!(rig.shards[0].lend_client_room(id).is_none(), "nothing is missing");
    assert_eq!(rig.counted(Counter::ClientBytesReceived) as usize, set.len());
    rig.turns();
    assert_eq!(rig.at_stores[0].frame, set);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");

    rig.send(client, &[&["GET", "k"], &["PING"]]);
    let sent = rig.at_stores.remove(0);
    let reply = format!("${}\r\n{value}\r\n", value.len());
    let (first, rest) = reply.split_at(20_000);
    let (link, generation) = (sent.link, sent.generation);
    assert_eq!(rig.shards[0].handle_link_bytes(link, generation, first.as_bytes(), now), rest.len());
    let (buffer, received) = fill(rig.shards[0].lend_link_room(link, generation), rest);
    assert_eq!(rig.shards[0].handle_link_filled(link, generation, buffer, received, now), 0);
    assert!(rig.shards[0].lend_link_room(link, generation).is_none(), "nothing is missing");
    rig.turns();
    assert_eq!(rig.told(client), format!("{reply}+PONG\r\n"));
}

#[test]
fn no_room_is_lent_beyond_the_largest_reply() {
    let mut rig = Rig::with(1, 1, |settings| settings.reply_bytes_max = 50_000);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "a"], &["GET", "b"]]);
    let sent = rig.at_stores.remove(0);
    let (link, generation, now) = (sent.link, sent.generation, rig.now);
    let reply = format!("$100000\r\n{}\r\n", "x".repeat(100_000));
    let (first, rest) = reply.split_at(20_000);
    rig.shards[0].handle_link_bytes(link, generation, first.as_bytes(), now);
    let room = rig.shards[0].lend_link_room(link, generation);
    assert_eq!(room.as_ref().map(|room| room.bytes), Some(30_000));
    let (here, rest) = rest.split_at(30_000);
    let (buffer, received) = fill(room, here);
    rig.shards[0].handle_link_filled(link, generation, buffer, received, now);
    assert!(rig.shards[0].lend_link_room(link, generation).is_none(), "no more of it is expected");
    for piece in rest.as_bytes().chunks(20_000) {
        rig.shards[0].handle_link_bytes(link, generation, piece, now);
    }
    rig.turns();
    rig.answer_next("$1\r\nb\r\n");
    let told = rig.told(client);
    assert!(told.starts_with("-ERR the reply is larger") && told.ends_with("\r\n$1\r\nb\r\n"), "{told}");
}

#[test]
fn a_room_outlives_who_lent_it() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["GET", "k"]]);
    let (id, now) = (rig.id(client), rig.now);
    let sent = rig.at_stores.remove(0);
    rig.shards[0].handle_link_bytes(sent.link, sent.generation, b"$100000\r\nxxx", now);
    let lent_by_link = fill(rig.shards[0].lend_link_room(sent.link, sent.generation), "xxx");
    rig.shards[0].handle_client_bytes(id, b"*2\r\n$3\r\nGET\r\n$100000\r\nyyy", now);
    let lent_by_client = fill(rig.shards[0].lend_client_room(id), "yyy");
    rig.shards[0].handle_link_lost(sent.link, sent.generation, Loss::ByPeer, now);
    rig.shards[0].handle_client_lost(id);
    rig.shards[0].handle_link_filled(sent.link, sent.generation, lent_by_link.0, lent_by_link.1, now);
    rig.shards[0].handle_client_filled(id, lent_by_client.0, lent_by_client.1, now);
    rig.turns();
    assert_eq!(rig.shards[0].clients_open(), 0);
}
