//! Tests of clients with TLS, and of tenants that their certificates name.

use super::neighbours::TWO_TENANTS;
use super::*;
use crate::policy::seats::Seats;

impl Rig {
    fn secure_client(&mut self, name: Option<&str>) -> usize {
        let client = self.client(0);
        let id = self.id(client);
        self.shards[0].handle_client_secure(id, name, self.now);
        self.turns();
        client
    }

    fn asks_who(&mut self, client: usize) -> String {
        self.send(client, &[&["CLIENT", "INFO"]]);
        self.told(client)
    }
}

#[test]
fn a_certificate_logs_its_tenant_in_for_as_long_as_there_is_one() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TWO_TENANTS);
    let acme = rig.secure_client(Some("acme"));
    assert!(rig.asks_who(acme).contains(" user=acme "), "no AUTH was needed");
    rig.send(acme, &[&["AUTH", "root", "r"]]);
    assert_eq!(rig.told(acme), "+OK\r\n");
    rig.send(acme, &[&["RESET"]]);
    assert_eq!(rig.told(acme), "+RESET\r\n");
    assert!(rig.asks_who(acme).contains(" user=acme "), "RESET leads back to the certificate");
    for name in [None, Some("nobody")] {
        let stranger = rig.secure_client(name);
        rig.send(stranger, &[&["GET", "a"]]);
        assert_eq!(rig.told(stranger), "-NOAUTH Authentication required.\r\n");
    }
    rig.put_in_force("[tenants.root]\npassword = 'r'\n");
    rig.send(acme, &[&["GET", "a"]]);
    assert_eq!(rig.told(acme), "-NOAUTH Authentication required.\r\n");
}

#[test]
fn a_tenant_without_a_seat_left_is_told_so() {
    let mut rig = Rig::with(1, 1, |settings| settings.clients.seats = Seats::new(2));
    rig.put_in_force(
        &TWO_TENANTS
            .replace("[tenants.root]", "[tenants.tiny]\npassword = 't'\nmax_clients = 1\n[tenants.root]"),
    );
    let first = rig.secure_client(Some("tiny"));
    assert!(rig.asks_who(first).contains(" user=tiny "));
    let second = rig.secure_client(Some("tiny"));
    let told = rig.told(second);
    assert!(told.starts_with("-OVERLOADED reason=clients scope=tenant name=tiny limit=1 "), "{told}");
    assert_eq!(rig.shards[0].clients_open(), 1);
}

#[test]
fn who_is_let_in_no_more_is_answered_what_it_asked_for_and_is_closed() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TWO_TENANTS);
    let [idle, busy] = [rig.secure_client(Some("acme")), rig.secure_client(Some("acme"))];
    rig.send(busy, &[&["GET", "acme:a"]]);
    for _ in 0..2 {
        for client in [idle, busy] {
            let id = rig.id(client);
            rig.shards[0].handle_client_revoked(id, rig.now);
        }
        rig.turns();
    }
    assert_eq!([rig.is_open(idle), rig.is_open(busy)], [false, true]);
    rig.send(busy, &[&["GET", "acme:b"]]);
    rig.answer_first("GET", "$1\r\n1\r\n");
    assert_eq!(rig.told(busy), "$1\r\n1\r\n");
    assert!(!rig.is_open(busy));
    assert_eq!(rig.counted(Counter::ClientsClosedRevoked), 2);
}

#[test]
fn a_certificate_names_the_tenant_of_requests_over_http() {
    let mut rig = Rig::with(1, 1, |settings| settings.clients.seats = Seats::new(2));
    rig.put_in_force(
        &TWO_TENANTS
            .replace("[tenants.root]", "[tenants.tiny]\npassword = 't'\nmax_clients = 1\n[tenants.root]"),
    );
    let secure = |rig: &mut Rig, name| {
        let client = rig.http_client(0);
        let id = rig.id(client);
        rig.shards[0].handle_client_secure(id, name, rig.now);
        rig.turns();
        client
    };
    let asks = |rig: &mut Rig, client, more: &str| {
        let body = "[\"PING\"]";
        let text = format!(
            "POST / HTTP/1.1\r\nhost: localhost\r\n{more}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        rig.raw(client, text.as_bytes());
        let told = rig.told(client);
        told[..told.find("\r\n").unwrap_or(0)].to_owned()
    };
    let tiny = secure(&mut rig, Some("tiny"));
    assert_eq!(asks(&mut rig, tiny, ""), "HTTP/1.1 200 OK", "no token was needed");
    assert_eq!(asks(&mut rig, tiny, "authorization: Bearer root:r\r\n"), "HTTP/1.1 200 OK");
    rig.raw(tiny, b"GET /v1/keys/a HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\n\r\n");
    assert!(rig.told(tiny).starts_with("HTTP/1.1 401 "));
    assert_eq!(
        asks(&mut rig, tiny, ""),
        "HTTP/1.1 200 OK",
        "without a token it is whom its certificate names"
    );
    let second = secure(&mut rig, Some("tiny"));
    let told = rig.told(second);
    assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("scope=tenant name=tiny limit=1"), "{told}");
    let stranger = secure(&mut rig, Some("nobody"));
    assert_eq!(asks(&mut rig, stranger, ""), "HTTP/1.1 401 Unauthorized");
}

#[test]
fn who_finds_the_tenant_of_its_certificate_full_later_is_told_so() {
    const PING: &str = "POST / HTTP/1.1\r\nhost: localhost\r\nMOREcontent-length: 8\r\n\r\n[\"PING\"]";
    for default in ["", "[default]\n"] {
        let start = || {
            let mut rig = Rig::with(1, 1, |settings| settings.clients.seats = Seats::new(2));
            let tiny = "[tenants.tiny]\npassword = 't'\nmax_clients = 1\n";
            rig.put_in_force(&format!("{default}{tiny}{TWO_TENANTS}"));
            rig
        };
        let mut rig = start();
        let secure_http = |rig: &mut Rig| {
            let client = rig.http_client(0);
            let id = rig.id(client);
            rig.shards[0].handle_client_secure(id, Some("tiny"), rig.now);
            rig.turns();
            client
        };
        let first = secure_http(&mut rig);
        rig.raw(first, PING.replace("MORE", "authorization: Bearer root:r\r\n").as_bytes());
        assert!(rig.told(first).starts_with("HTTP/1.1 200 "), "{default}");
        secure_http(&mut rig);
        rig.raw(first, PING.replace("MORE", "").as_bytes());
        let told = rig.told(first);
        assert!(told.starts_with("HTTP/1.1 503 "), "{default}{told}");
        assert!(told.contains("scope=tenant name=tiny limit=1"), "{default}{told}");

        let mut rig = start();
        let first = rig.secure_client(Some("tiny"));
        rig.send(first, &[&["AUTH", "root", "r"]]);
        rig.secure_client(Some("tiny"));
        rig.send(first, &[&["RESET"], &["GET", "a"]]);
        let told = rig.told(first);
        let refused = "+OK\r\n+RESET\r\n-OVERLOADED reason=clients scope=tenant name=tiny limit=1 ";
        assert!(told.starts_with(refused), "{default}{told}");
    }
}

#[test]
fn what_tls_holds_is_counted() {
    let mut rig = Rig::new(1, 1);
    let plain = rig.client(0);
    let secure = rig.secure_client(None);
    let bytes = |rig: &Rig, client| {
        let front = rig.shards[0].front();
        front.peek(rig.id(client)).expect("it is open").memory_bytes()
    };
    assert_eq!(bytes(&rig, secure) - bytes(&rig, plain), crate::values::limits::TLS_CLIENT_BYTES);
}
