//! Tests of limits over all clients together: memory, and the numbers of clients.

use super::neighbours::TWO_TENANTS;
use super::*;
use crate::policy::seats::Seats;

/// Returns the beginning of a `SET` whose value is announced with `bytes` bytes and never ends, so that weir
/// has to hold it.
fn unfinished(bytes: usize) -> Vec<u8> {
    let mut begun = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", bytes + 1).into_bytes();
    begun.resize(begun.len() + bytes, b'x');
    begun
}

fn open(rig: &Rig) -> usize {
    rig.shards.iter().map(Shard::clients_open).sum()
}

#[test]
fn those_who_hold_most_are_closed_when_all_hold_too_much() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.request_bytes_max = 16 << 20;
        settings.clients.bytes_max = 64 << 20;
    });
    let clients: Vec<usize> = (0..40).map(|_| rig.client(0)).collect();
    let mut most: usize = 0;
    for (number, client) in clients.iter().enumerate() {
        // Requests of one, two or three MiB, received over several turns.
        for piece in unfinished((1 + number % 3) << 20).chunks(1 << 20) {
            let (shard, id) = rig.clients[*client];
            rig.shards[shard].handle_client_bytes(id, piece, rig.now);
            rig.turns();
            // The runtime does this after each turn, even if the shard weighed no client's memory in it.
            let excess = rig.shards[0].clients_bytes().saturating_sub(64 << 20);
            rig.shards[0].handle_memory_exceeded(excess);
            assert!(rig.shards[0].clients_bytes() <= 64 << 20);
            let held: usize = rig.shards[0].front().undecoded_bytes();
            most = most.max(held);
        }
    }
    assert!((40..80).contains(&(most >> 20)), "{most}");
    let closed = rig.shards[0].counters().get(Counter::ClientsClosedMemory);
    assert!((1..20).contains(&closed) && open(&rig) == 40 - closed as usize, "{closed}");
    let small = (0..40).step_by(3).filter(|number| rig.is_open(clients[*number])).count();
    assert_eq!(small, 14, "those who hold least stay");
}

#[test]
fn a_tenant_with_many_clients_does_not_cost_another_its_few_larger_ones() {
    let mut rig = Rig::with(1, 1, |settings| settings.clients.bytes_max = 16 << 20);
    rig.put_in_force(TWO_TENANTS);
    let large: Vec<usize> = (0..4).map(|_| rig.signed_in("root", "r")).collect();
    large.iter().for_each(|client| rig.raw(*client, &unfinished(900_000)));
    let many: Vec<usize> = (0..40).map(|_| rig.signed_in("acme", "a")).collect();
    many.iter().for_each(|client| rig.raw(*client, &unfinished(500_000)));
    rig.shards[0].weigh_clients();
    let excess = rig.shards[0].clients_bytes().saturating_sub(16 << 20);
    rig.shards[0].handle_memory_exceeded(excess);
    assert!(rig.shards[0].clients_bytes() <= 16 << 20);
    assert!(large.iter().all(|client| rig.is_open(*client)), "their tenant holds less in sum");
    let left = many.iter().filter(|client| rig.is_open(**client)).count();
    assert!((10..35).contains(&left), "no more are closed than have to be: {left} are left");
}

#[test]
fn names_requests_that_wait_and_replies_that_wait_are_weighed() {
    let mut rig = Rig::with(1, 2, |settings| settings.output_bytes_max = 8 << 20);
    let client = rig.client(0);
    let weighed = |rig: &mut Rig| {
        rig.shards[0].weigh_clients();
        rig.shards[0].clients_bytes()
    };
    let alone = weighed(&mut rig);
    assert!(alone > 0);
    let large = "x".repeat(300_000);
    rig.send(client, &[&["MULTI"], &["SET", "k", &large]]);
    assert!(weighed(&mut rig) > alone + 300_000, "what is queued");
    rig.send(client, &[&["DISCARD"], &["GET", "k"], &["ECHO", &large]]);
    assert!(weighed(&mut rig) > alone + 300_000, "a reply that waits for another");
    rig.answer_next("$-1\r\n");
    assert!(weighed(&mut rig) < alone + 300_000);
    rig.send(client, &[&["GET", "k"], &["SCRIPT", "LOAD", &large]]);
    assert!(weighed(&mut rig) > alone + 300_000, "a request that waits for a reply");
    rig.answer_next("$-1\r\n");
    rig.answer_next("$1\r\na\r\n");
    rig.answer_next("$1\r\na\r\n");
    rig.raw(client, &unfinished(500_000));
    assert!(weighed(&mut rig) > alone + 500_000, "a request that is not whole");
}

#[test]
fn strangers_hold_little_together() {
    let mut rig = Rig::with(1, 1, |settings| settings.clients.bytes_max = 16 << 20);
    rig.put_in_force(TWO_TENANTS);
    let known = rig.signed_in("acme", "a");
    rig.raw(known, &unfinished(900_000));
    let half = [b"*2\r\n$4\r\nAUTH\r\n$16384\r\n".as_slice(), &[b'x'; 16_000]].concat();
    let strangers: Vec<usize> = (0..200).map(|_| rig.client(0)).collect();
    for stranger in strangers {
        rig.raw(stranger, &half);
        rig.shards[0].weigh_clients();
    }
    assert!(rig.shards[0].clients_bytes() < 3 << 20, "{}", rig.shards[0].clients_bytes());
    assert!(rig.is_open(known) && rig.counted(Counter::ClientsClosedMemory) > 100);
}

#[test]
fn who_does_not_log_in_in_time_is_closed() {
    let mut rig = Rig::with(1, 1, |settings| settings.clients.login_timeout = Some(Duration::from_secs(10)));
    rig.put_in_force(TWO_TENANTS);
    let [silent, known] = [rig.client(0), rig.signed_in("acme", "a")];
    rig.wait(Duration::from_secs(5));
    let late = rig.client(0);
    rig.wait(Duration::from_millis(5_500));
    assert_eq!([silent, known, late].map(|client| rig.is_open(client)), [false, true, true]);
    // After RESET, a client has the whole login timeout again.
    rig.send(known, &[&["RESET"]]);
    rig.wait(Duration::from_secs(5));
    assert_eq!([known, late].map(|client| rig.is_open(client)), [true, false]);
    rig.wait(Duration::from_secs(6));
    assert!(!rig.is_open(known));
    assert_eq!(rig.counted(Counter::ClientsClosedLogin), 3);
    assert_eq!(rig.shards[0].poll_deadline(), None, "with nobody there is nothing to look after");
}

#[test]
fn requests_without_a_login_give_nobody_more_time() {
    let mut rig = Rig::with(1, 1, |settings| settings.clients.login_timeout = Some(Duration::from_secs(10)));
    rig.put_in_force(TWO_TENANTS);
    let [client, web] = [rig.client(0), rig.http_client(0)];
    for _ in 0..3 {
        rig.wait(Duration::from_secs(3));
        rig.send(client, &[&["RESET"]]);
        assert_eq!(rig.told(client), "+RESET\r\n");
        rig.raw(web, b"GET /v1/keys/k HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert!(rig.told(web).starts_with("HTTP/1.1 401"));
    }
    rig.wait(Duration::from_millis(1_500));
    assert_eq!([client, web].map(|client| rig.is_open(client)), [false, false]);
    assert_eq!(rig.counted(Counter::ClientsClosedLogin), 2);
}

#[test]
fn strangers_make_way_and_who_is_known_does_not() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TWO_TENANTS);
    let first = rig.client(0);
    rig.wait(Duration::from_millis(1));
    let [known, second] = [rig.signed_in("acme", "a"), rig.client(0)];
    assert!(rig.shards[0].make_room());
    assert_eq!([first, known, second].map(|client| rig.is_open(client)), [false, true, true]);
    assert!(rig.shards[0].make_room() && !rig.shards[0].make_room());
    assert!(rig.is_open(known));
}

#[test]
fn a_tenant_has_its_share_of_seats_and_no_more() {
    let seats = Seats::new(2);
    let mut rig = Rig::with(2, 1, |settings| settings.clients.seats = seats.clone());
    let default = format!("[default]\n{TWO_TENANTS}");
    rig.put_in_force(&default.replace("password = 'r'", "password = 'r'\nmax_clients = 1"));
    let clients: Vec<usize> = (0..4).map(|number| rig.client(number % 2)).collect();
    for (client, answer) in clients.iter().zip(["$-1", "$-1", "-OVERLOADED", "-OVERLOADED"]) {
        rig.send(*client, &[&["GET", "k"]]);
        if answer == "$-1" {
            rig.answer_next("$-1\r\n");
        }
        let told = rig.told(*client);
        assert!(told.starts_with(answer), "{told}");
    }
    // A client that does not count among strangers may take one of a tenant's places.
    for (client, answer) in [(2, "+OK"), (3, "-OVERLOADED reason=clients scope=tenant name=root limit=1 ")] {
        rig.send(clients[client], &[&["AUTH", "root", "r"]]);
        let told = rig.told(clients[client]);
        assert!(told.starts_with(answer), "{told}");
    }
    rig.send(clients[0], &[&["HELLO", "3", "AUTH", "acme", "a", "NONSENSE"]]);
    assert!(rig.told(clients[0]).starts_with("-ERR "));
    rig.send(clients[0], &[&["AUTH", "acme", "a"]]);
    rig.send(clients[2], &[&["RESET"], &["GET", "k"]]);
    rig.answer_next("$-1\r\n");
    assert!(rig.told(clients[2]).ends_with("$-1\r\n"), "the seat that became free");
    // Clients keep their places when quotas change, under the new number of their tenant.
    let fewer = "[tenants.acme]\npassword = 'a'\nmax_clients = 1\n[tenants.other]\npassword = 'o'";
    rig.put_in_force(fewer);
    let acme = crate::values::TenantId(0);
    assert_eq!(seats.taken(acme), 1);
    let late = rig.client(0);
    rig.send(late, &[&["AUTH", "acme", "a"]]);
    assert!(rig.told(late).starts_with("-OVERLOADED reason=clients scope=tenant name=acme limit=1 "));
    for client in 0..clients.len() {
        let (shard, id) = rig.clients[client];
        rig.shards[shard].handle_client_lost(id);
    }
    assert_eq!(seats.taken(acme), 0);
}

#[test]
fn a_client_that_must_leave_while_its_request_is_sent_in_parts_stops_nobody() {
    for command in ["MGET", "DBSIZE"] {
        let mut rig = Rig::with(1, 4, |settings| settings.output_bytes_max = 200);
        rig.connecting = Connecting::Fails;
        let client = rig.client(0);
        let keys: Vec<String> = (0..4).map(|backend| rig.key(0, backend)).collect();
        // The connections are in their back-off, so each part is refused while later parts are still to be
        // sent.
        for key in &keys {
            rig.send(client, &[&["GET", key]]);
        }
        let named = if command == "MGET" { keys.as_slice() } else { &[] };
        let request: Vec<&str> = [command].into_iter().chain(named.iter().map(String::as_str)).collect();
        rig.send(client, &[&request]);
        assert!(!rig.is_open(client), "more waits for it than may");
        rig.told(client);
        let other = rig.client(0);
        rig.send(other, &[&["PING"]]);
        assert_eq!(rig.told(other), "+PONG\r\n");
    }
}

#[test]
fn replies_that_the_socket_is_sending_are_weighed() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let weighed = |rig: &mut Rig| {
        rig.shards[0].weigh_clients();
        rig.shards[0].clients_bytes()
    };
    let alone = weighed(&mut rig);
    rig.reading = Reading::Never;
    rig.send(client, &[&["GET", "k"]]);
    rig.answer_next(&format!("$300000\r\n{}\r\n", "x".repeat(300_000)));
    assert!(weighed(&mut rig) > alone + 300_000, "as long as the client does not read it");
    rig.take_all();
    assert!(weighed(&mut rig) < alone + 300_000);
}

#[test]
fn a_client_that_logs_out_where_no_stranger_has_room_gives_its_seat_back() {
    let seats = Seats::new(2);
    let mut rig = Rig::with(1, 1, |settings| settings.clients.seats = seats.clone());
    rig.put_in_force(&format!("[default]\nmax_clients = 1\n{TWO_TENANTS}"));
    let acme = rig.signed_in("acme", "a");
    let stranger = rig.client(0);
    rig.send(stranger, &[&["PING"]]);
    let tenant = (0..3).map(crate::values::TenantId).find(|tenant| seats.taken(*tenant) == 1);
    let taken: u32 = (0..3).map(|tenant| seats.taken(crate::values::TenantId(tenant))).sum();
    assert!(tenant.is_some() && taken == 2, "one each: {taken}");
    rig.send(acme, &[&["RESET"], &["GET", "k"]]);
    let told = rig.told(acme);
    assert!(told.starts_with("+RESET\r\n-OVERLOADED reason=clients "), "{told}");
    let taken: u32 = (0..3).map(|tenant| seats.taken(crate::values::TenantId(tenant))).sum();
    assert_eq!(taken, 1, "the stranger's");
}
