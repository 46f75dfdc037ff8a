//! Tests of clients that speak HTTP.

use super::*;

impl Rig {
    pub(super) fn http_client(&mut self, shard: usize) -> usize {
        let id = self.shards[shard].handle_http_client_opened(self.now);
        self.clients.push((shard, id));
        self.clients.len() - 1
    }
}

const GET: &str = "GET /v1/keys/KEY HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn responses_keep_the_order_of_requests_across_cores() {
    let mut rig = Rig::new(2, 1);
    let client = rig.http_client(0);
    let [here, there] = [0, 1].map(|home| rig.key(home, 0));
    let both = [
        GET.replace("KEY", &there),
        GET.replace("KEY", &here),
        "NIX / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
    ];
    rig.raw(client, both.concat().as_bytes());
    rig.answer_first(&here, "$1\r\n2\r\n");
    assert_eq!(rig.told(client), "", "the other one was first");
    rig.answer_first(&there, "$1\r\n1\r\n");
    let told = rig.told(client);
    let bodies: Vec<&str> = told.split("\r\n\r\n").collect();
    assert!(bodies[1].starts_with("1HTTP/1.1 200") && bodies[2].starts_with("2HTTP/1.1 405"), "{told}");
}

#[test]
fn no_request_waits_over_http() {
    for call in [
        "[\"XREAD\",\"BLOCK\",\"0\",\"STREAMS\",\"s\",\"$\"]",
        "[\"QOS\",\"CALL\",\"TIER\",\"batch\",\"XREAD\",\"BLOCK\",\"0\",\"STREAMS\",\"s\",\"$\"]",
        "[\"BLPOP\",\"q\",\"0\"]",
    ] {
        let mut rig = Rig::with(1, 1, |settings| settings.private_links_max = 10);
        let client = rig.http_client(0);
        rig.raw(client, command("", call).as_bytes());
        let told = rig.told(client);
        assert!(told.contains("that command is about a connection"), "{call}: {told}");
        assert!(rig.at_stores.is_empty());
    }
}

#[test]
fn a_request_that_does_not_come_whole_is_given_up_in_time() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let key = rig.key(0, 0);
    rig.raw(client, GET.replace("KEY", &key).as_bytes());
    rig.answer_next("$-1\r\n");
    assert!(rig.told(client).starts_with("HTTP/1.1 404"));
    rig.wait(Duration::from_secs(300));
    assert_eq!(rig.told(client), "", "it is between two requests");
    // A byte now and then does not extend the deadline for a request.
    for byte in GET.bytes().take(16) {
        rig.raw(client, &[byte]);
        rig.wait(Duration::from_secs(2));
    }
    assert!(rig.told(client).starts_with("HTTP/1.1 408"));
    assert_eq!(rig.shards[0].clients_open(), 0);
    assert_eq!(rig.shards[0].counters().get(Counter::ClientsClosedSlow), 1);
}

#[test]
fn a_client_that_sends_an_empty_line_behind_its_request_is_idle_and_moves() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let ping = command("", "[\"PING\"]");
    rig.raw(client, format!("{ping}\r\n").as_bytes());
    assert_eq!(codes(&rig.told(client)), ["200"]);
    rig.wait(Duration::from_secs(300));
    assert_eq!((rig.told(client).as_str(), rig.is_open(client)), ("", true));
    rig.raw(client, format!("{ping}\r\n").as_bytes());
    assert_eq!(codes(&rig.told(client)), ["200"]);
    let session = rig.taken(client);
    let mut other = Rig::new(1, 1);
    let client = other.adopted(&session);
    other.raw(client, ping.as_bytes());
    assert_eq!(codes(&other.told(client)), ["200"]);
}

#[test]
fn each_request_of_a_pipeline_has_its_own_time_to_arrive() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let put = request("PUT /v1/keys/k", "", &"x".repeat(100_000));
    let (begun, rest) = put.split_at(put.len() / 2);
    rig.raw(client, begun.as_bytes());
    let next = [rest, begun].concat();
    for _ in 0..20 {
        rig.wait(Duration::from_secs(5));
        // The rest of one request comes together with the first half of the next.
        rig.raw(client, next.as_bytes());
        rig.answer_next("+OK\r\n");
        assert_eq!(codes(&rig.told(client)), ["204"]);
    }
    rig.wait(Duration::from_secs(60));
    assert_eq!(codes(&rig.told(client)), ["408"]);
    assert!(!rig.is_open(client));
}

#[test]
fn what_a_client_sends_while_it_has_to_wait_has_a_bound() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let key = rig.key(0, 0);
    let many = GET.replace("KEY", &key).repeat(5_000);
    rig.reading = Reading::Never;
    rig.raw(client, many.as_bytes());
    assert!(rig.at_stores.len() <= limits::PIPELINE_MAX, "{}", rig.at_stores.len());
    assert!(rig.actions.iter().any(|(_, action)| matches!(action, Action::PauseReading(_))));
    rig.reading = Reading::Always;
    while !rig.at_stores.is_empty() {
        rig.now.monotonic = rig.now.monotonic.after(Duration::from_micros(100));
        rig.answer_next("$-1\r\n");
    }
    assert_eq!(rig.told(client).matches("HTTP/1.1 404").count(), 5_000);
}

#[test]
fn refusals_count_in_a_turn_and_among_the_bytes_that_wait() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let refused = request("GET /v1/keys/a", "origin: https://evil.example\r\n", "").repeat(4_000);
    rig.reading = Reading::Never;
    let (id, now) = (rig.id(client), rig.now);
    rig.shards[0].handle_client_bytes(id, refused.as_bytes(), now);
    let begun = rig.counted(Counter::AnsweredHere);
    assert!(begun <= u64::from(limits::REQUESTS_PER_TURN), "{begun} in one turn");
    rig.turns();
    let begun = rig.counted(Counter::AnsweredHere);
    assert!(begun < 2_000, "{begun} wait for a client that does not read");
    rig.take_all();
    let told = rig.told(client);
    assert!(codes(&told).len() == 4_000 && codes(&told).iter().all(|code| *code == "403"));
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing_behind() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    rig.raw(client, b"PUT /v1/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc");
    let id = rig.id(client);
    rig.shards[0].handle_client_end(id, rig.now);
    rig.turns();
    assert_eq!(rig.shards[0].clients_open(), 0);
}

const TENANTS: &str = "[default]\nru_per_second = 1_000_000\n[tenants.acme]\npassword = 'a'\nkeys = ['acme:']\n[tenants.shop]\npassword = 's'\n";

/// Builds a request with a token, and a body if there is one.
fn request(line: &str, headers: &str, body: &str) -> String {
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}{length}\r\n{body}")
}

fn command(headers: &str, body: &str) -> String {
    request("POST /", &format!("content-type: application/json\r\n{headers}"), body)
}

fn codes(told: &str) -> Vec<&str> {
    told.match_indices("HTTP/1.1 ").map(|(at, _)| &told[at + 9..at + 12]).collect()
}

#[test]
fn nothing_of_one_request_is_left_for_the_next() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TENANTS);
    let client = rig.http_client(0);
    let [acme, shop] = ["authorization: Bearer a\r\n", "authorization: Bearer s\r\n"];
    for inner in [
        "\"MULTI\"",
        "\"auth\",\"shop\",\"s\"",
        "\"HELLO\",3",
        "\"QUIT\"",
        "\"reset\"",
        "\"CLIENT\",\"SETNAME\",\"a;tier=batch\"",
        "\"SELECT\",0",
        "\"QOS\",\"SET\",\"TIER\",\"batch\"",
        "\"QOS\",\"CALL\",\"multi\"",
        "\"EXEC\"",
        "\"WATCH\",\"acme:a\"",
    ] {
        for before in ["", "\"QOS\",\"CALL\",", "\"qos\",\"call\",\"TIER\",\"batch\",\"user\",\"u\","] {
            let one = format!("[{before}{inner}]");
            rig.raw(client, command(acme, &one).as_bytes());
            let told = rig.told(client);
            assert!(codes(&told) == ["400"] && told.contains("about a connection"), "{one}: {told}");
            let many = command(acme, &format!("[[\"PING\"],{one}]")).replace("POST /", "POST /pipeline");
            rig.raw(client, many.as_bytes());
            assert_eq!(codes(&rig.told(client)), ["400"], "{one}: nothing of it is carried out");
        }
    }
    rig.raw(client, command(shop, "[\"ACL\",\"WHOAMI\"]").as_bytes());
    assert!(rig.told(client).contains("{\"result\":\"shop\"}"));
    rig.raw(client, command(acme, "[\"acl\",\"whoami\"]").as_bytes());
    assert!(rig.told(client).contains("{\"result\":\"acme\"}"));
    rig.raw(client, command("x-weir-user: ann\r\n", "[\"acl\",\"whoami\"]").as_bytes());
    assert!(rig.told(client).contains("{\"result\":\"default/ann\"}"));
    rig.raw(client, command("", "[\"acl\",\"whoami\"]").as_bytes());
    assert!(rig.told(client).contains("{\"result\":\"default\"}"), "nobody's user is left");
    assert_eq!(rig.at_stores.len(), 0);
}

#[test]
fn a_word_of_other_protocols_neither_ends_the_connection_nor_loses_what_follows() {
    let mut rig = Rig::new(1, 1);
    let client = rig.http_client(0);
    let many = command("", "[[\"POST\"],[\"PING\"],[\"Host:\"]]").replace("POST / ", "POST /pipeline ");
    rig.raw(client, (many + &command("", "[\"PING\"]")).as_bytes());
    let told = rig.told(client);
    assert_eq!(codes(&told), ["200", "200"], "{told}");
    assert_eq!((told.matches("PONG").count(), told.matches("Protocol error").count()), (2, 2));
    assert!(rig.is_open(client));
}

#[test]
fn a_token_is_held_against_the_quotas_in_force() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TENANTS);
    let client = rig.http_client(0);
    let who = command("authorization: Bearer s\r\n", "[\"ACL\",\"WHOAMI\"]");
    for _ in 0..2 {
        rig.raw(client, who.as_bytes());
        assert_eq!(codes(&rig.told(client)), ["200"]);
    }
    // The password changes while a body is being received.
    let split = who.len() - 5;
    rig.raw(client, &who.as_bytes()[..split]);
    rig.put_in_force(&TENANTS.replace("'s'", "'new'"));
    rig.raw(client, &who.as_bytes()[split..]);
    assert_eq!(codes(&rig.told(client)), ["401"]);
    let bodiless = request("GET /v1/keys/a", "authorization: Bearer s\r\n", "");
    rig.raw(client, bodiless.as_bytes());
    assert_eq!(codes(&rig.told(client)), ["401"]);
    rig.raw(client, who.replace("Bearer s", "Bearer new").as_bytes());
    assert!(rig.told(client).contains("{\"result\":\"shop\"}"));
    rig.put_in_force(&TENANTS.replace("[default]", "[tenants.other]\npassword = 'o'"));
    rig.raw(client, request("GET /v1/keys/a", "", "").as_bytes());
    assert_eq!(codes(&rig.told(client)), ["401"], "strangers are not served any more");
}

#[test]
fn only_wrong_tokens_in_a_row_end_the_connection_and_it_says_so() {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(TENANTS);
    let client = rig.http_client(0);
    let get = |token: &str| request("GET /v1/keys/a", &format!("authorization: Bearer {token}\r\n"), "");
    let ping = command("authorization: Bearer s\r\n", "[\"PING\"]");
    let most = usize::from(limits::LOGINS_FAILED_MAX);
    for _ in 0..5 {
        rig.raw(client, (get("wrong").repeat(most - 1) + &ping).as_bytes());
        let told = rig.told(client);
        assert_eq!(codes(&told), [&vec!["401"; most - 1][..], &["200"]].concat());
        assert!(!told.contains("connection: close"), "{told}");
    }
    rig.raw(client, (get("wrong").repeat(most) + &ping).as_bytes());
    let told = rig.told(client);
    assert_eq!(codes(&told), vec!["401"; most]);
    assert_eq!(told.matches("connection: close").count(), 1);
    assert!(told.rfind("connection: close") > told.rfind("HTTP/1.1"), "the last one says so");
    assert!(!rig.is_open(client));
}

#[test]
fn pages_of_other_sites_are_not_served() {
    let rules = crate::protocol::http::Rules {
        origins: vec!["https://app.example".into()],
        hosts: vec!["weir.internal".to_owned()],
    };
    let mut rig = Rig::with(1, 1, |settings| settings.clients.web = rules.clone().into());
    rig.put_in_force(TENANTS);
    let asks = |rig: &mut Rig, text: String| {
        let client = rig.http_client(0);
        rig.raw(client, text.as_bytes());
        let told = rig.told(client);
        codes(&told).join(" ")
    };
    let set = "[\"PING\"]";
    for (headers, code) in [
        ("", "200"),
        ("origin: https://app.example\r\n", "200"),
        ("origin: https://evil.example\r\n", "403"),
        ("origin: null\r\n", "403"),
        ("sec-fetch-site: cross-site\r\n", "403"),
        ("sec-fetch-site: same-site\r\n", "403"),
        ("sec-fetch-site: same-origin\r\n", "200"),
        ("authorization: Bearer s\r\norigin: https://evil.example\r\n", "403"),
    ] {
        assert_eq!(asks(&mut rig, command(headers, set)), code, "{headers}");
        let hosts = command(headers, set).replace("localhost", "evil.example:80");
        let expected = if code == "200" { "421" } else { code };
        assert_eq!(asks(&mut rig, hosts), expected, "{headers}");
        let known = command(headers, set).replace("localhost", "Weir.internal:80");
        assert_eq!(asks(&mut rig, known), code, "{headers}");
    }
    for kind in [
        "content-type: multipart/form-data; boundary=a\r\n",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
    ] {
        assert_eq!(asks(&mut rig, request("POST /", kind, set)), "415", "{kind}");
        let basic = format!("authorization: Basic c2hvcDpz\r\n{kind}");
        assert_eq!(asks(&mut rig, request("POST /", &basic, set)), "415", "a browser remembers it: {kind}");
        let bearer = format!("authorization: Bearer s\r\n{kind}");
        let named = request("POST /", &bearer, set).replace("localhost", "some.service");
        assert_eq!(asks(&mut rig, named), "200", "{kind}");
    }
    assert_eq!(rig.at_stores.len(), 0);
}

#[test]
fn what_becomes_no_command_pays_for_its_bytes() {
    let large = "x".repeat(100 * 1024);
    let blanks = " ".repeat(101 * 1024);
    let many = |name: &str| format!("[{}]", vec![format!("[\"{name}\"]"); 12_000].join(","));
    let short = command("", "[\"SUBSCRIBE\",\"a\"]");
    let long_head = format!("x-long: {}\r\n", "x".repeat(20 * 1024));
    let chunks = |size: &str, rest: &str| {
        let headers = format!("content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{size}");
        format!("POST / HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n{large}{rest}")
    };
    for (asked, code, kib) in [
        (short.repeat(50), "400", 0),
        (command("", &format!("[\"SET\",\"{large}\"")), "400", 100),
        (command("", &format!("[\"SUBSCRIBE\",\"{large}\"]")), "400", 100),
        (command("", &format!("[\"SET\",null,\"{large}\"]")), "400", 100),
        (command("", &many("PING")).replace("POST /", "POST /pipeline"), "413", 105),
        (command("", &many("PING")).replace("POST /", "POST /multi-exec"), "413", 105),
        (request("PUT /v1/keys/a?ttl=never", "", &large), "400", 100),
        (chunks("19000", "0\r\n\r\n"), "400", 100),
        (chunks("19000", "\r\n7fffffff\r\n"), "413", 100),
        (command("x-weir-tier: none\r\n", &format!("[\"ECHO\",\"{large}\"]")), "400", 100),
        (command("x-weir-database: 99\r\n", &format!("[\"ECHO\",\"{large}\"]")), "400", 100),
        (command("", &format!("[\"PING\"{blanks}]")), "200", 100),
        (command(&long_head, "[\"PING\"]"), "200", 20),
        (command(&long_head, "[\"SUBSCRIBE\",\"a\"]"), "400", 20),
    ] {
        let mut rig = super::admission::priced_by_bytes();
        let client = rig.http_client(0);
        rig.raw(client, asked.as_bytes());
        let told = rig.told(client);
        let name = &asked[..100];
        assert!(codes(&told).iter().all(|told| *told == code) && !told.is_empty(), "{name}: {told}");
        let (taken, metered) = super::admission::booked(&mut rig);
        assert!((kib * UNIT..(kib + 3) * UNIT).contains(&metered), "{name}: {metered}");
        assert_eq!(taken, 2 * metered as i64, "{name}: from the global and the tenant's bucket");
    }
}

#[test]
fn a_refused_body_is_charged_to_who_sent_it() {
    let mut rig = super::admission::priced_by_bytes();
    rig.put_in_force(TENANTS);
    let client = rig.http_client(0);
    let bad = format!("[\"SUBSCRIBE\",\"{}\"]", "x".repeat(100 * 1024));
    for (headers, tenant) in [
        ("authorization: Bearer a\r\n", "acme"),
        ("authorization: Bearer s\r\n", "shop"),
        ("authorization: Bearer s\r\nx-weir-user: ann\r\n", "shop"),
        ("authorization: Bearer a\r\nx-weir-tier: none\r\n", "acme"),
        ("", "default"),
    ] {
        rig.reports.clear();
        rig.raw(client, command(headers, &bad).as_bytes());
        assert_eq!(codes(&rig.told(client)), ["400"]);
        super::admission::booked(&mut rig);
        let usage = rig.reports.iter().flat_map(|report| &report.usage);
        let paying: Vec<_> =
            usage.filter(|(_, usage)| usage.admitted > 0).map(|(tenant, _)| *tenant).collect();
        assert_eq!(paying, [quotas(TENANTS).find(tenant).expect("a tenant")], "{headers}");
    }
}
