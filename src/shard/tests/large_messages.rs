//! Tests of large requests and replies, the rest of which is received directly into their own buffer.

use super::*;
use crate::protocol::Room;

/// Fills a lent buffer with `bytes` as a socket would, as far as there is room. Returns the buffer, and the
/// number of bytes that fitted.
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

/// Returns a reply of `bytes` bytes in two parts: the first 20,000 bytes, which announce the length, and the
/// rest.
fn large_reply(bytes: usize) -> (String, String) {
    let reply = format!("${bytes}\r\n{}\r\n", "x".repeat(bytes));
    let (first, rest) = reply.split_at(20_000);
    (first.to_owned(), rest.to_owned())
}

/// Returns the actions since the last call by which the core stops (`false`) or resumes (`true`) reading from
/// connections to stores, in order.
fn readings(rig: &mut Rig) -> Vec<(bool, ConnectionId)> {
    let readings = rig.actions.drain(..).filter_map(|(_, action)| match action {
        Action::PauseReading(Owner::Link(connection, _)) => Some((false, connection)),
        Action::ResumeReading(Owner::Link(connection, _)) => Some((true, connection)),
        _ => None,
    });
    readings.collect()
}

/// A connection over which a request was sent to a store: its number, and the generation of its socket.
type Over = (ConnectionId, u32);

/// Gives the first core bytes that a store has sent, and runs turns (passes of the shards' loops).
fn receive(rig: &mut Rig, (link, generation): Over, bytes: &[u8]) {
    let now = rig.now;
    rig.shards[0].handle_link_bytes(link, generation, bytes, now);
    rig.turns();
}

/// Number of bytes of each reply that [`begin_large_replies`] begins, with its header and line ends.
const LARGE_REPLY_BYTES: usize = "$700000\r\n\r\n".len() + 700_000;

/// Sends the first 20,000 bytes of a reply of 700,000 bytes in answer to each unanswered request at the
/// stores. Returns the requests' connections, and the rest of such a reply, which is the same for all.
fn begin_large_replies(rig: &mut Rig) -> (Vec<Over>, String) {
    let links: Vec<_> = rig.at_stores.drain(..).map(|sent| (sent.link, sent.generation)).collect();
    let (first, rest) = large_reply(700_000);
    readings(rig);
    links.iter().for_each(|link| receive(rig, *link, first.as_bytes()));
    (links, rest)
}

#[test]
fn large_replies_of_several_connections_take_turns_in_the_room_that_they_share() {
    let mut rig = Rig::with(1, 1, |settings| {
        (settings.reply_bytes_max, settings.clients.bytes_max) = (1 << 20, 4 << 20);
        (settings.reply_timeout, settings.private_links_max) = (Duration::from_secs(1), 10);
    });
    // Connections of two databases, and one that a client has to itself.
    let clients = [rig.client(0), rig.client(0), rig.client(0)];
    rig.send(clients[1], &[&["SELECT", "1"]]);
    rig.send(clients[2], &[&["WATCH", "k"]]);
    super::private::greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    rig.send(clients[0], &[&["GET", "k"]]);
    rig.send(clients[1], &[&["GET", "k"]]);
    rig.send(clients[2], &[&["GET", "k"]]);
    clients.iter().for_each(|client| drop(rig.told(*client)));
    assert_eq!(rig.at_stores.len(), 3, "{:?}", rig.at_stores);
    let (links, rest) = begin_large_replies(&mut rig);
    assert_eq!(readings(&mut rig), [(false, links[1].0), (false, links[2].0)]);
    for (place, link) in links.iter().enumerate() {
        // The stores of the others are not blamed for the time in which they are not read.
        for piece in rest.as_bytes().chunks(100_000) {
            rig.wait(Duration::from_millis(200));
            receive(&mut rig, *link, piece);
        }
        let told = rig.told(clients[place]);
        assert!(told.len() == LARGE_REPLY_BYTES, "{place}: {}", &told[..told.len().min(200)]);
        let next = links.get(place + 1).map(|next| (true, next.0));
        assert_eq!(readings(&mut rig), next.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn a_store_that_falls_silent_amid_a_large_reply_keeps_no_other_waiting_and_is_given_up() {
    let mut rig = Rig::with(1, 2, |settings| {
        (settings.reply_bytes_max, settings.clients.bytes_max) = (1 << 20, 4 << 20);
        settings.reply_timeout = Duration::from_secs(1);
    });
    let clients = [rig.client(0), rig.client(0)];
    for (place, client) in clients.iter().enumerate() {
        let key = rig.key(0, place as u16);
        rig.send(*client, &[&["GET", &key]]);
    }
    let (links, rest) = begin_large_replies(&mut rig);
    assert_eq!(readings(&mut rig), [(false, links[1].0)]);
    rig.wait(Duration::from_millis(260));
    assert_eq!(readings(&mut rig), [(true, links[1].0)]);
    receive(&mut rig, links[1], rest.as_bytes());
    assert_eq!(rig.told(clients[1]).len(), LARGE_REPLY_BYTES);
    rig.wait(Duration::from_secs(1));
    let told = rig.told(clients[0]);
    assert!(told.starts_with("-UNAVAILABLE backend=store0 reason=reply-timeout "), "{told}");
}

#[test]
fn replies_that_are_too_large_are_told_and_counted_whatever_connection_they_come_over() {
    let mut rig = Rig::with(1, 1, |settings| {
        (settings.reply_bytes_max, settings.private_links_max) = (100_000, 1);
    });
    let [client, own] = [rig.client(0), rig.client(0)];
    rig.send(own, &[&["WATCH", "k"]]);
    super::private::greet(&mut rig);
    rig.answer_first("WATCH", "+OK\r\n");
    assert_eq!(rig.told(own), "+OK\r\n");
    for (place, client) in [client, own].into_iter().enumerate() {
        rig.send(client, &[&["GET", "k"]]);
        let sent = rig.at_stores.remove(0);
        let (first, rest) = large_reply(200_000);
        for piece in (first + &rest).as_bytes().chunks(60_000) {
            receive(&mut rig, (sent.link, sent.generation), piece);
        }
        assert_eq!(rig.told(client), "-ERR the reply is larger than 100000 bytes (--max-reply-bytes)\r\n");
        assert_eq!(rig.counted(Counter::RepliesOversized), 1 + place as u64);
    }
}

#[test]
fn a_connection_lost_while_large_replies_wait_makes_room_for_the_next() {
    let mut rig = Rig::with(1, 2, |settings| {
        (settings.reply_bytes_max, settings.clients.bytes_max) = (1 << 20, 4 << 20);
    });
    let keys = [rig.key(0, 0), rig.key(0, 1)];
    let client = rig.client(0);
    rig.send(client, &[&["GET", &keys[0]], &["GET", &keys[1]]]);
    let (links, _) = begin_large_replies(&mut rig);
    assert_eq!(readings(&mut rig), [(false, links[1].0)]);
    let now = rig.now;
    rig.shards[0].handle_link_lost(links[0].0, links[0].1, Loss::ByPeer, now);
    rig.turns();
    assert_eq!(readings(&mut rig), [(true, links[1].0)]);
}
