//! Tests of clients that move to another process: when they can move, and with which identity.

use super::neighbours::TWO_TENANTS;
use super::*;
use crate::shard::{ClientsAsked, Pause, Paused, Readiness, Session};
use crate::values::limits::MOVED_BYTES_MAX;

impl Rig {
    fn readiness(&self, client: usize) -> Readiness {
        let (shard, id) = self.clients[client];
        self.shards[shard].readiness(id)
    }

    /// Takes a client away from its shard, as for a move to another process. Returns the state that the other
    /// process gets, as it is after encoding and decoding.
    pub(super) fn taken(&mut self, client: usize) -> Session {
        assert_eq!(self.readiness(client), Readiness::Ready);
        let (shard, id) = self.clients[client];
        let session = self.shards[shard].take_session(id, self.now);
        assert!(self.shards[shard].front().peek(id).is_none());
        let text = serde_json::to_string(&session).expect("plain values");
        let mut told: Session = serde_json::from_str(&text).expect("what was written");
        told.held = session.held;
        told
    }

    /// Adds a client that comes from another process, with its state (`session`), to the first shard. Returns
    /// its number.
    pub(super) fn adopted(&mut self, session: &Session) -> usize {
        let now = self.now;
        let id = self.shards[0].handle_client_moved(session, now);
        self.clients.push((0, id));
        self.shards[0].handle_client_held(id, session, now);
        self.turns();
        self.clients.len() - 1
    }
}

#[test]
fn a_client_goes_on_as_who_it_was() {
    let (mut rig, mut other) = (Rig::new(1, 1), Rig::new(1, 1));
    rig.put_in_force(TWO_TENANTS);
    other.put_in_force(TWO_TENANTS);
    let client = rig.client(0);
    rig.send(client, &[&["HELLO", "3", "AUTH", "acme/ann", "a", "SETNAME", "cart;tier=batch;deadline=70ms"]]);
    rig.send(client, &[&["CLIENT", "SETINFO", "LIB-NAME", "redis-py"], &["CLIENT", "NO-EVICT", "ON"]]);
    rig.told(client);
    rig.raw(client, b"*2\r\n$3\r\nGET\r\n$6\r\nacm");
    let session = rig.taken(client);
    assert_eq!(rig.shards[0].clients_open(), 0);

    let client = other.adopted(&session);
    other.raw(client, b"e:1\r\n");
    assert_eq!(other.words_at_stores(), ["HELLO"], "in its dialect");
    other.answer_next("%1\r\n+proto\r\n:3\r\n");
    other.answer_next("_\r\n");
    assert_eq!(other.told(client), "_\r\n", "its request has come in two parts, to two processes");
    let info = other.asks(client, &["CLIENT", "LIST"]);
    for word in ["name=cart ", "user=acme/ann ", "resp=3 ", "lib-name=redis-py ", "tier=batch"] {
        assert!(info.contains(word), "{word} {info}");
    }
    other.send(client, &[&["GET", "root:1"]]);
    assert!(other.told(client).starts_with("-NOPERM"), "and it may no more than that");
}

#[test]
fn whose_tenant_is_gone_must_log_in_again() {
    let (mut rig, mut other) = (Rig::new(1, 1), Rig::new(1, 1));
    rig.put_in_force(TWO_TENANTS);
    other.put_in_force("[tenants.else]\npassword = 'e'\n");
    let client = rig.signed_in("acme", "a");
    let session = rig.taken(client);
    let client = other.adopted(&session);
    other.send(client, &[&["GET", "acme:1"], &["AUTH", "else", "e"]]);
    let told = other.told(client);
    assert!(told.starts_with("-NOAUTH") && told.ends_with("+OK\r\n"), "{told}");
}

#[test]
fn who_has_not_logged_in_does_not_become_a_tenant_with_a_password() {
    const OPEN: &str = "[default]\nkeys = ['pub:']\n[tenants.acme]\npassword = 'a'\n";
    const CLOSED: &str = "[tenants.default]\npassword = 'secret'\nadmin = true\n";
    let (mut rig, mut other) = (Rig::new(1, 1), Rig::new(1, 1));
    rig.put_in_force(OPEN);
    other.put_in_force(CLOSED);
    let stranger = rig.client(0);
    rig.send(stranger, &[&["HELLO", "2", "SETNAME", "cart;user=ann;deadline=70ms"]]);
    rig.told(stranger);
    let session = rig.taken(stranger);
    let refused = |rig: &mut Rig, client: usize| {
        rig.send(client, &[&["GET", "secret"], &["FLUSHALL"]]);
        let told = rig.told(client);
        assert_eq!(told.matches("-NOAUTH").count(), 2, "{told}");
    };
    let moved = other.adopted(&session);
    refused(&mut other, moved);
    // New quotas in the same process, for a client and for a request that waits.
    let stranger = rig.client(0);
    let tied = rig.client(0);
    rig.send(tied, &[&["MULTI"], &["SET", "pub:1", "1"]]);
    rig.put_in_force(CLOSED);
    refused(&mut rig, stranger);
    rig.send(tied, &[&["EXEC"]]);
    assert!(!rig.told(tied).ends_with("+OK\r\n") && rig.at_stores.is_empty());
    // A client of that tenant keeps it whether or not others are served without a password.
    let owner = rig.signed_in("default", "secret");
    rig.put_in_force(OPEN);
    rig.send(owner, &[&["GET", "pub:1"]]);
    assert_eq!(rig.words_at_stores(), ["GET"]);
    // Terms that a client without a login has chosen stay its own where others like it are served.
    let mut open = Rig::new(1, 1);
    open.put_in_force(OPEN);
    let moved = open.adopted(&session);
    assert!(open.asks(moved, &["CLIENT", "LIST"]).contains("user=default/ann "));
}

#[test]
fn who_is_owed_something_is_waited_for() {
    let mut rig = Rig::new(2, 1);
    let client = rig.client(0);
    let key = rig.key(1, 0);
    assert_eq!(rig.readiness(client), Readiness::Ready);
    rig.send(client, &[&["GET", &key], &["GET", &key]]);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.readiness(client), Readiness::Owed);
    rig.reading = Reading::Never;
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.readiness(client), Readiness::Owed, "its reply is with the socket");
    rig.take_all();
    assert_eq!(rig.readiness(client), Readiness::Ready);
    // The client is closed once its reply is sent.
    rig.send(client, &[&["QUIT"]]);
    assert_ne!(rig.readiness(client), Readiness::Ready);
}

#[test]
fn what_is_half_done_is_done_first() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    rig.send(client, &[&["MULTI"], &["SET", "a", "1"]]);
    assert_eq!(rig.readiness(client), Readiness::Unfinished);
    rig.send(client, &[&["DISCARD"]]);
    assert_eq!(rig.readiness(client), Readiness::Ready);
    let set = request(&["SET", "k", &"x".repeat(MOVED_BYTES_MAX + 1)]);
    rig.raw(client, &set[..MOVED_BYTES_MAX - 100]);
    assert_eq!(rig.readiness(client), Readiness::Ready, "so much of a request goes along");
    rig.raw(client, &set[MOVED_BYTES_MAX - 100..set.len() - 1]);
    assert_eq!(rig.readiness(client), Readiness::Unfinished);
    rig.raw(client, &set[set.len() - 1..]);
    assert_eq!(rig.readiness(client), Readiness::Owed);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.readiness(client), Readiness::Ready);
}

impl Rig {
    /// Pauses the clients of the only shard for 1,000 s (`CLIENT PAUSE`), as a process does that takes over
    /// from one whose clients were paused. `extent` says whether all requests wait, or writes alone.
    pub(super) fn take_over_pause(&mut self, extent: Paused) {
        let pause = Pause::taken_over(None, Duration::from_secs(1_000), extent, self.now.monotonic);
        self.shards[0].handle_clients_asked(&ClientsAsked::Pause(pause), self.now);
    }
}

#[test]
fn a_request_that_a_pause_holds_back_moves_and_waits_on() {
    for (mode, extent) in [("WRITE", Paused::Writes), ("ALL", Paused::Everything)] {
        let (mut rig, mut other) = (Rig::new(1, 1), Rig::new(1, 1));
        let (operator, writer) = (rig.client(0), rig.client(0));
        rig.asks(operator, &["CLIENT", "PAUSE", "1000000", mode]);
        rig.send(writer, &[&["SET", "k", "1"], &["PING", "behind"]]);
        assert_eq!(rig.shards[0].paused_clients(), 1);
        let [ordered, session] = [operator, writer].map(|client| rig.taken(client));
        assert_eq!((rig.shards[0].paused_clients(), rig.at_stores.len()), (0, 0));

        other.take_over_pause(extent);
        let early = other.client(0);
        let [operator, writer] = [ordered, session].map(|session| other.adopted(&session));
        other.send(early, &[&["SET", "k", "2"]]);
        assert_eq!((other.shards[0].paused_clients(), other.at_stores.len()), (2, 0), "{mode}");
        let session = other.taken(writer);
        let writer = other.adopted(&session);
        assert_eq!((other.shards[0].paused_clients(), other.at_stores.len()), (2, 0), "and once more");
        assert_eq!(other.asks(operator, &["CLIENT", "UNPAUSE"]), "+OK\r\n", "{mode}");
        other.answer_next("+OK\r\n");
        other.answer_next("+OK\r\n");
        assert_eq!(
            (other.told(writer).as_str(), other.told(early).as_str()),
            ("+OK\r\n$6\r\nbehind\r\n", "+OK\r\n")
        );
    }
}

#[test]
fn who_did_not_order_a_pause_does_not_end_it_in_the_next_process() {
    let (mut rig, mut other) = (Rig::new(1, 1), Rig::new(1, 1));
    let (operator, client) = (rig.client(0), rig.client(0));
    rig.asks(operator, &["CLIENT", "PAUSE", "1000000"]);
    let [ordered, session] = [operator, client].map(|client| rig.taken(client));
    other.take_over_pause(Paused::Everything);
    // The client has the number here that the operator had there.
    let [client, operator] = [session, ordered].map(|session| other.adopted(&session));
    assert_eq!(other.asks(client, &["CLIENT", "UNPAUSE"]), "");
    assert_eq!(other.asks(operator, &["CLIENT", "UNPAUSE"]), "+OK\r\n");
}

#[test]
fn what_waits_for_more_than_the_end_of_a_pause_stays() {
    let mut rig = Rig::new(1, 1);
    let [operator, busy, long, other] = std::array::from_fn(|_| rig.client(0));
    rig.send(busy, &[&["GET", "k"]]);
    rig.asks(operator, &["CLIENT", "PAUSE", "1000000", "WRITE"]);
    rig.send(busy, &[&["SET", "k", "1"]]);
    rig.send(long, &[&["SET", "k", &"x".repeat(MOVED_BYTES_MAX)]]);
    rig.send(other, &[&["QOS", "CALL", "USER", "ann", "SET", "k", "1"]]);
    assert_eq!(rig.shards[0].paused_clients(), 3);
    assert_eq!([busy, long, other].map(|client| rig.readiness(client)), [Readiness::Owed; 3]);
    rig.answer_next("$-1\r\n");
    assert_eq!(rig.readiness(busy), Readiness::Ready);
}
