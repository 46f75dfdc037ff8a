//! Tests of limits on what one client can do to others: hold up their requests, take up memory, or get replies without
//! paying.

use super::*;

pub(super) const TWO_TENANTS: &str = r"
    [tenants.acme]
    password = 'a'
    keys = ['acme:', 'shared:']
    tier = 'standard'
    deadline_ms = 1_000
    [tenants.acme.users.loader]
    tier = 'batch'
    [tenants.root]
    password = 'r'
    admin = true
";

fn with_tenants(text: &str) -> Rig {
    let mut rig = Rig::new(1, 1);
    rig.put_in_force(text);
    rig
}

impl Rig {
    pub(super) fn put_in_force(&mut self, text: &str) {
        let now = self.now;
        for shard in &mut self.shards {
            shard.handle_quotas(quotas(text), now);
        }
        self.turns();
    }

    pub(super) fn signed_in(&mut self, tenant: &str, password: &str) -> usize {
        let client = self.client(0);
        self.send(client, &[&["AUTH", tenant, password]]);
        assert_eq!(self.told(client), "+OK\r\n");
        client
    }

    pub(super) fn is_open(&self, client: usize) -> bool {
        let (shard, id) = self.clients[client];
        self.shards[shard].front().peek(id).is_some()
    }

    pub(super) fn counted(&self, counter: Counter) -> u64 {
        self.shards.iter().map(|shard| shard.counters().get(counter)).sum()
    }
}

#[test]
fn long_pipelines_hold_back_only_clients_of_their_tenant_and_only_while_they_move() {
    let mut rig = Rig::with(1, 1, |settings| {
        settings.overload.window = Mode::Off;
        settings.overload.queue_limit.requests = 512;
        settings.hot.mode = Mode::Off;
    });
    rig.put_in_force(TWO_TENANTS);
    let gets = |count: usize| request(&["GET", "shared:k"]).repeat(count);
    let crowd: Vec<usize> = (0..40).map(|_| rig.signed_in("acme", "a")).collect();
    let [late, last, other] = [("acme", "a"), ("acme", "a"), ("root", "r")]
        .map(|(tenant, password)| rig.signed_in(tenant, password));
    // After some replies it is known that replies are small, so that more than 64 requests of each may be unanswered.
    for client in crowd.iter().chain([&late, &last, &other]) {
        rig.raw(*client, &gets(60));
        (0..60).for_each(|_| rig.answer_next("$-1\r\n"));
        assert_eq!(rig.told(*client), "$-1\r\n".repeat(60));
    }
    crowd.iter().for_each(|client| rig.raw(*client, &gets(100)));
    let held_back = rig.owed();
    assert!((384..512).contains(&held_back), "{held_back} of 4,000");
    rig.raw(other, &gets(100));
    assert_eq!(rig.owed() - held_back, 100, "another tenant is not held back");
    rig.raw(late, &gets(100));
    let started = rig.owed() - held_back - 100;
    assert_eq!(started, 3, "but another client is, of 100: forty share the other half");
    (0..3).for_each(|_| rig.wait(Duration::from_millis(110)));
    rig.raw(last, &gets(100));
    assert_eq!(rig.owed() - held_back, 100 + started + 100, "until the others only wait");
    while rig.owed() > 0 {
        rig.answer_next("$-1\r\n");
    }
    let everybody = crowd.iter().chain([&late, &last, &other]);
    everybody.for_each(|client| assert_eq!(rig.told(*client), "$-1\r\n".repeat(100)));
}

#[test]
fn replies_that_wait_for_an_earlier_one_count_as_waiting() {
    let mut rig = Rig::with(1, 2, |settings| settings.heavy_links = 0);
    let client = rig.client(0);
    let [silent, quick] = [rig.key(0, 0), rig.key(0, 1)];
    let large = format!("$100000\r\n{}\r\n", "x".repeat(100_000));
    rig.send(client, &[&["GET", &silent]]);
    for _ in 0..3 {
        rig.send(client, &[&["GET", &quick]]);
        rig.answer_first(&quick, &large);
    }
    rig.send(client, &[&["GET", &quick]]);
    assert!(rig.frames(&quick).is_empty(), "nothing more is taken on while so much waits");
    rig.answer_first(&silent, "$-1\r\n");
    rig.answer_first(&quick, "$-1\r\n");
    assert_eq!(rig.told(client), format!("$-1\r\n{}$-1\r\n", large.repeat(3)));

    rig.send(client, &[&["GET", &silent]]);
    rig.raw(client, &request(&["GET", &quick]).repeat(20));
    assert_eq!(
        rig.frames(&quick).len(),
        6,
        "as many as fit into three quarters of 1 MiB if they are as large"
    );
    let larger = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    for _ in 0..6 {
        assert_eq!(rig.shards[0].clients_open(), 1);
        rig.answer_first(&quick, &larger);
    }
    assert_eq!(rig.shards[0].clients_open(), 0, "more than 1 MiB");
    assert_eq!(rig.counted(Counter::ClientsClosedUnread), 1);
}

#[test]
fn replies_that_wait_for_a_slow_one_show_how_large_they_are_all_the_same() {
    let mut rig = Rig::new(1, 2);
    let client = rig.client(0);
    let [slow, quick] = [rig.key(0, 0), rig.key(0, 1)];
    rig.send(client, &[&["GET", &slow]]);
    rig.raw(client, &request(&["GET", &quick]).repeat(1_000));
    assert_eq!(rig.owed(), 64);
    for _ in 0..200 {
        rig.answer_first(&quick, "$-1\r\n");
    }
    assert!(rig.owed() >= 500, "{}: the replies are small", rig.owed());
    for _ in 200..1_000 {
        rig.answer_first(&quick, "$-1\r\n");
    }
    rig.answer_first(&slow, "$-1\r\n");
    assert_eq!(rig.told(client), "$-1\r\n".repeat(1_001));
}

#[test]
fn a_small_limit_of_waiting_replies_leaves_room_for_a_pipeline() {
    let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 8_000);
    let client = rig.client(0);
    rig.raw(client, &request(&["GET", "a"]).repeat(200));
    for answered in 1..=200_usize {
        assert!(rig.owed() >= (200 - answered).min(20), "{} after {answered}", rig.owed());
        rig.answer_next("$-1\r\n");
    }
    assert_eq!(rig.told(client), "$-1\r\n".repeat(200));
}

#[test]
fn requests_are_started_by_the_bytes_that_their_replies_are_expected_to_have() {
    for (length, is_warm) in [(10_000, false), (100_000, true), (700_000, true)] {
        let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 1 << 20);
        let client = rig.client(0);
        let reply = format!("${length}\r\n{}\r\n", "x".repeat(length));
        let mut expected = String::new();
        if is_warm {
            // One reply after a thousand small ones tells how large the others are.
            rig.raw(client, &request(&["GET", "a"]).repeat(1_000));
            (0..1_000).for_each(|_| rig.answer_next("$-1\r\n"));
            rig.send(client, &[&["GET", "a"]]);
            rig.answer_next(&reply);
            expected = format!("{}{reply}", "$-1\r\n".repeat(1_000));
        }
        rig.take_all();
        assert_eq!(rig.told(client), expected);
        rig.reading = Reading::Never;
        rig.raw(client, &request(&["GET", "a"]).repeat(200));
        let mut answered = 0;
        while rig.owed() > 0 {
            rig.answer_next(&reply);
            answered += 1;
        }
        assert!(answered * length > 128 * 1024, "{answered} are answered before it reads");
        assert_eq!(rig.shards[0].clients_open(), 1, "it has read nothing, and not too much waits for it");
        rig.take_all();
        while rig.owed() > 0 {
            rig.answer_next(&reply);
            rig.take_all();
        }
        assert_eq!(rig.told(client).matches('$').count(), 200);
    }
}

#[test]
fn a_pipeline_goes_on_though_all_replies_so_far_are_with_a_full_socket() {
    let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 8 << 20);
    let client = rig.client(0);
    let reply = format!("$5000\r\n{}\r\n", "v".repeat(5_000));
    rig.reading = Reading::Never;
    rig.raw(client, &request(&["GET", &"k".repeat(200)]).repeat(1_000));
    for _ in 0..100 {
        // More than may usually wait comes in one turn, and goes to the socket as one segment.
        for sent in std::mem::take(&mut rig.at_stores) {
            rig.shards[0].handle_link_bytes(sent.link, sent.generation, reply.as_bytes(), rig.now);
        }
        rig.turns();
        rig.wait(Duration::from_millis(100));
    }
    assert_eq!(rig.counted(Counter::Requests), 1_000);
}

#[test]
fn a_client_may_write_a_long_pipeline_before_it_reads() {
    let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 8 << 20);
    let client = rig.client(0);
    let word = "x".repeat(1_000);
    let reply = format!("$1000\r\n{word}\r\n");
    let pipeline = request(&["ECHO", &word]).repeat(5_000);
    for round in 1..=2 {
        rig.reading = Reading::Never;
        let before = rig.counted(Counter::Requests);
        rig.raw(client, &pipeline);
        let begun = rig.counted(Counter::Requests) - before;
        assert!(
            (200..600).contains(&begun),
            "{begun}: until 256 KiB wait, the segment with the socket not counted"
        );
        for _ in 0..50 {
            rig.wait(Duration::from_millis(100));
        }
        assert_eq!(
            rig.counted(Counter::Requests) - before,
            5_000,
            "it has read nothing, so the rest goes on"
        );
        assert_eq!(rig.counted(Counter::ClientBacklogs), round);
        rig.take_all();
        assert!(rig.told(client) == reply.repeat(5_000));
    }
}

#[test]
fn no_more_than_three_quarters_of_the_limit_wait_for_a_client_that_reads_nothing() {
    let mut rig = Rig::with(1, 1, |settings| settings.output_bytes_max = 8 << 20);
    let client = rig.client(0);
    let word = "x".repeat(1_000);
    rig.reading = Reading::Never;
    rig.raw(client, &request(&["ECHO", &word]).repeat(12_000));
    for _ in 0..50 {
        rig.wait(Duration::from_millis(100));
    }
    let taken = rig.counted(Counter::Requests) as usize;
    assert!((5_500..6_800).contains(&taken), "{taken} of 12,000 KB in 8 MiB");
    assert_eq!(rig.shards[0].clients_open(), 1);
    rig.take_all();
    assert_eq!(rig.told(client).matches("$1000").count(), 12_000, "once it reads, all is answered");
}

#[test]
fn parts_that_wait_for_other_parts_count_as_waiting() {
    let mut rig = Rig::with(1, 2, |settings| settings.output_bytes_max = 300_000);
    let client = rig.client(0);
    let [silent, quick] = [rig.key(0, 0), rig.key(0, 1)];
    let part = format!("*1\r\n$100000\r\n{}\r\n", "x".repeat(100_000));
    rig.raw(client, &request(&["MGET", &silent, &quick]).repeat(4));
    for _ in 0..2 {
        rig.answer_first(&quick, &part);
    }
    rig.answer_first(&silent, "*1\r\n$-1\r\n");
    assert!(rig.told(client).starts_with("*2\r\n$-1\r\n$100000\r\n"), "what is joined waits no longer");
    for _ in 0..2 {
        assert_eq!(rig.shards[0].clients_open(), 1);
        rig.answer_first(&quick, &part);
    }
    assert_eq!((rig.shards[0].clients_open(), rig.shards[0].gathers_open()), (0, 0));
}

#[test]
fn a_browsers_post_is_never_carried_out() {
    for tenant in [None, Some(("acme", "a")), Some(("root", "r"))] {
        for multi in ["", "MULTI\r\n"] {
            let mut rig = with_tenants(TWO_TENANTS);
            let client = match tenant {
                Some((tenant, password)) => rig.signed_in(tenant, password),
                None => rig.client(0),
            };
            let page = "POST / HTTP/1.1\r\nHost: localhost:7379\r\n\r\nSET acme:1 x\r\n";
            rig.raw(client, format!("{multi}{page}").as_bytes());
            let told = rig.told(client);
            assert!(
                told.ends_with("-ERR Protocol error: this is HTTP, and RESP is spoken here\r\n"),
                "{told}"
            );
            assert_eq!((rig.at_stores.len(), rig.shards[0].clients_open()), (0, 0));
        }
    }
}

#[test]
fn what_was_queued_under_other_rights_is_not_carried_out() {
    for change in
        [("'acme:', 'shared:'", "'acme:'"), ("[tenants.acme]", "[tenants.ajax]"), ("admin = true", "")]
    {
        for (tenant, password, key) in [("acme", "a", "shared:1"), ("root", "r", "any")] {
            let mut rig = with_tenants(TWO_TENANTS);
            let client = rig.signed_in(tenant, password);
            rig.send(client, &[&["MULTI"], &["SET", key, "x"]]);
            let after = TWO_TENANTS.replace("tenants.acme.users", "tenants.root.users");
            rig.put_in_force(&after.replace(change.0, change.1));
            rig.send(client, &[&["EXEC"]]);
            let told = rig.told(client);
            let is_concerned = (tenant == "root") == (change.1.is_empty());
            assert_eq!(rig.at_stores.is_empty(), is_concerned, "{tenant} {change:?}: {told}");
            let refusals = ["-EXECABORT ", "-NOAUTH "];
            assert_eq!(refusals.iter().any(|refusal| told.contains(refusal)), is_concerned, "{told}");
        }
    }
}

#[test]
fn what_a_tenant_is_given_changes_with_the_quotas_and_what_a_client_chose_stays() {
    let quotas = TWO_TENANTS.replace("'batch'", "'sheddable'");
    let mut rig = with_tenants(&quotas);
    let [plain, chosen] = [rig.signed_in("acme", "a"), rig.signed_in("acme", "a")];
    let tier = |rig: &mut Rig, client| {
        let id = rig.asks(client, &["CLIENT", "ID"]);
        let told = rig.asks(client, &["CLIENT", "LIST", "ID", id.trim_matches([':', '\r', '\n'])]);
        told.split(" tier=")
            .nth(1)
            .and_then(|rest| rest.split('\n').next())
            .map(str::to_owned)
            .expect("a tier")
    };
    rig.send(chosen, &[&["QOS", "SET", "TIER", "batch", "DEADLINE", "50"]]);
    rig.told(chosen);
    assert_eq!([plain, chosen].map(|client| tier(&mut rig, client)), ["standard", "batch"]);
    rig.put_in_force(&quotas.replace("'standard'", "'sheddable'").replace("1_000", "20"));
    assert_eq!([plain, chosen].map(|client| tier(&mut rig, client)), ["sheddable"; 2]);
    rig.put_in_force(&quotas.replace("'standard'", "'critical'").replace("1_000", "20"));
    assert_eq!([plain, chosen].map(|client| tier(&mut rig, client)), ["critical", "batch"]);
    let deadlines = [plain, chosen].map(|client| {
        let id = rig.id(client);
        rig.shards[0].front().peek(id).expect("it is open").identity().deadline
    });
    assert_eq!(deadlines.map(|deadline| deadline.map(|it| it.as_millis())), [Some(20), Some(50)]);
}

#[test]
fn a_user_has_its_own_tier_however_it_is_named() {
    let mut rig = with_tenants(TWO_TENANTS);
    let client = rig.signed_in("acme", "a");
    for (request, answer) in [
        (&["QOS", "SET", "USER", "loader"][..], "+OK"),
        (
            &["QOS", "SET", "TIER", "standard"],
            "-ERR QOS TIER 'standard': above 'batch', which is this user's",
        ),
        (&["QOS", "CALL", "USER", "cart", "CLIENT", "INFO"], "user=acme/cart "),
        (&["CLIENT", "LIST"], "tier=batch\n"),
        (&["CLIENT", "SETNAME", "x;tier=standard"], "-ERR QOS TIER 'standard': above 'batch'"),
    ] {
        let told = rig.asks(client, request);
        assert!(told.contains(answer), "{request:?}: {told}");
    }
}

#[test]
fn a_core_takes_on_so_many_in_a_turn_and_those_who_waited_come_first_in_the_next() {
    let mut rig = Rig::new(1, 1);
    let clients: Vec<_> = (0..40).map(|_| rig.client(0)).collect();
    let (now, flood) = (rig.now, b"PING\r\n".repeat(200));
    let of_all = u64::from(limits::REQUESTS_PER_TURN_OF_ALL);
    for (turn, clients) in (1..).zip(clients.chunks(20)) {
        for client in clients {
            let id = rig.id(*client);
            rig.shards[0].handle_client_bytes(id, &flood, now);
        }
        assert_eq!(rig.counted(Counter::Requests), turn * of_all);
        if turn == 1 {
            rig.shards[0].handle_turn_end(now);
        }
    }
    rig.shards[0].handle_turn_end(now);
    assert_eq!(rig.counted(Counter::Requests), of_all * 5 / 2, "half of them is kept for those who waited");
    assert!(rig.shards[0].is_busy());
    rig.turns();
    assert_eq!(rig.counted(Counter::Requests), 40 * 200);
    clients.iter().for_each(|client| assert_eq!(rig.told(*client), "+PONG\r\n".repeat(200)));
    assert!(!rig.shards[0].is_busy());
}

#[test]
fn a_connection_has_its_turn_and_then_others_have_theirs() {
    let mut rig = Rig::new(1, 1);
    let [greedy, modest] = [rig.client(0), rig.client(0)];
    let (now, ids) = (rig.now, [rig.id(greedy), rig.id(modest)]);
    let flood = b"PING\r\n".repeat(10_000);
    for piece in flood.chunks(1_000) {
        rig.shards[0].handle_client_bytes(ids[0], piece, now);
    }
    assert_eq!(rig.counted(Counter::Requests), u64::from(limits::REQUESTS_PER_TURN));
    assert!(rig.shards[0].is_busy() && rig.shards[0].poll_deadline().is_some());
    rig.shards[0].handle_client_bytes(ids[1], b"PING\r\n", now);
    assert_eq!(rig.counted(Counter::Requests), u64::from(limits::REQUESTS_PER_TURN) + 1);
    rig.turns();
    assert_eq!((rig.told(greedy), rig.told(modest).as_str()), ("+PONG\r\n".repeat(10_000), "+PONG\r\n"));
    assert!(!rig.shards[0].is_busy());
}

#[test]
fn long_answers_use_up_a_turn_sooner() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    let (now, id) = (rig.now, rig.id(client));
    rig.shards[0].handle_client_bytes(id, &b"COMMAND DOCS\r\n".repeat(100), now);
    assert!(rig.counted(Counter::Requests) < 5, "{}", rig.counted(Counter::Requests));
    rig.turns();
    assert_eq!(rig.counted(Counter::Requests), 100);
}

#[test]
fn what_a_client_sent_is_repeated_in_part_only() {
    let mut rig = with_tenants(TWO_TENANTS);
    let client = rig.signed_in("acme", "a");
    let long = "x".repeat(900_000);
    let [option, wish] = [format!("name;{long}=1"), format!("name;tier={long}")];
    for request in [
        &["GET", &long][..],
        &[&long, "a"],
        &["OBJECT", &long, "a"],
        &["HELLO", "3", &long],
        &["CLIENT", "SETINFO", &long, "x"],
        &["CLIENT", "SETINFO", "LIB-NAME", &long],
        &["CLIENT", "SETNAME", &long],
        &["CLIENT", "SETNAME", &option],
        &["CLIENT", "SETNAME", &wish],
        &["QOS", &long],
        &["QOS", "SET", &long, "x"],
        &["QOS", "SET", "USER", &long],
        &["QOS", "SET", "TIER", &long],
        &["QOS", "SET", "DEADLINE", &long],
        &["QOS", "EXPLAIN", &long],
        &["COMMAND", &long],
        &["AUTH", "acme", &long],
        &["AUTH", &long, &long],
    ] {
        rig.send(client, &[request]);
        let told = rig.told(client);
        assert!(told.starts_with('-') && told.len() < 500, "{:.100?}: {} bytes", request, told.len());
    }
}

#[test]
fn guessing_ends_the_connection() {
    let mut rig = with_tenants(TWO_TENANTS);
    for guess in [&["AUTH", "acme", "b"][..], &["HELLO", "3", "AUTH", "acme", "b"]] {
        let client = rig.client(0);
        for attempt in 1..=u64::from(limits::LOGINS_FAILED_MAX) {
            assert_eq!(rig.shards[0].clients_open(), 1, "{attempt}");
            rig.send(client, &[guess]);
            assert!(rig.told(client).starts_with("-WRONGPASS "));
        }
        assert_eq!(rig.shards[0].clients_open(), 0);
    }
    assert_eq!(rig.counted(Counter::LoginsFailed), 2 * u64::from(limits::LOGINS_FAILED_MAX));
}

#[test]
fn where_nobody_has_a_password_the_default_user_may_give_any() {
    let mut rig = Rig::new(1, 1);
    let client = rig.client(0);
    for (request, answer) in [
        (&["AUTH", "default", "x"][..], "+OK\r\n"),
        (&["HELLO", "2", "AUTH", "default", "x"], "*14\r\n"),
        (&["AUTH", "x"], "-ERR AUTH <password> called without any password configured for the default user."),
        (&["AUTH", "other", "x"], "-WRONGPASS "),
    ] {
        rig.send(client, &[request]);
        let told = rig.told(client);
        assert!(told.starts_with(answer), "{request:?}: {told}");
    }
    assert_eq!(rig.counted(Counter::LoginsFailed), 1);
}

#[test]
fn answers_of_weirs_own_have_a_price() {
    let quota = "[default]\nru_per_second = 10\nadmin = true";
    for (request, is_refused) in [
        (&["INFO"][..], true),
        (&["COMMAND", "DOCS"], true),
        // Nobody is kept from logging in as another tenant.
        (&["AUTH", "x"], false),
        (&["HELLO", "3", "SETNAME", "cart", "AUTH", "default", "x"], false),
        (&["CLIENT", "PAUSE", "1"], true),
        (&["CLIENT", "UNPAUSE"], false),
        (&["CLIENT", "TRACKING", "ON"], true),
        (&["CLIENT", "TRACKING", "OFF"], false),
        (&["HELLO", "3", "SETNAME", "cart"], false),
        (&["PING"], false),
        (&["QOS", "HELP"], false),
    ] {
        let mut rig = with_tenants(quota);
        rig.pools = (0, true);
        let client = rig.client(0);
        rig.send(client, &[&["GET", "a"]]);
        rig.answer_next("$-1\r\n");
        rig.told(client);
        rig.send(client, &[request]);
        assert_eq!(rig.told(client).starts_with("-THROTTLED "), is_refused, "{request:?}");
    }
    // A client whose bucket is empty may ask for its limits and log in, and is charged for that later.
    let mut rig = with_tenants(quota);
    let client = rig.client(0);
    let hello = &["HELLO", "2", "AUTH", "default", "x"];
    rig.send(
        client,
        &[&["AUTH", "x"], hello, &["QOS", "EXPLAIN", "GET", "a"], &["QOS", "LIMITS"], &["INFO"]],
    );
    while let Some((to, _)) = rig.shards[0].poll_question() {
        let now = rig.now;
        rig.shards[0].handle_answer(to, b"+told\r\n", now);
        // Requests behind the question wait for its answer.
        rig.turns();
    }
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(2));
    rig.turns();
    let metered: u64 =
        rig.reports.iter().flat_map(|report| &report.usage).map(|(_, usage)| usage.admitted).sum();
    assert!((5 * UNIT..6 * UNIT).contains(&metered), "{metered}");
}

#[test]
fn options_are_few() {
    let mut rig = with_tenants(TWO_TENANTS);
    let client = rig.signed_in("acme", "a");
    let guesses = [&["HELLO", "3"][..], &["AUTH", "acme", "b"].repeat(1_000)].concat();
    let options = [&["QOS", "SET"][..], &["TIER", "batch"].repeat(1_000)].concat();
    let call = [&["QOS", "CALL"][..], &["TIER", "batch"].repeat(1_000), &["PING"]].concat();
    for request in [&guesses, &options, &call] {
        rig.send(client, &[request]);
        let told = rig.told(client);
        assert!(told.starts_with("-ERR "), "{told}");
    }
    assert_eq!(rig.counted(Counter::LoginsFailed), 0, "no password was looked at");
}

#[test]
fn a_refusal_names_some_of_many_prefixes() {
    let prefixes: Vec<String> = (0..200).map(|number| format!("'{number}{}'", "x".repeat(1_000))).collect();
    let mut rig = with_tenants(&TWO_TENANTS.replace("'acme:', 'shared:'", &prefixes.join(",")));
    let client = rig.signed_in("acme", "a");
    rig.send(client, &[&["GET", "other"]]);
    let told = rig.told(client);
    assert!(told.len() < 800 && told.contains(" or 197 other prefixes, not 'other'"), "{told}");
}

#[test]
fn a_core_that_is_behind_is_waited_for_by_so_much_only() {
    let mut rig = Rig::with(2, 1, |settings| settings.output_bytes_max = 1 << 30);
    let clients = [rig.client(0), rig.client(0)];
    let large = request(&["SET", &rig.key(1, 0), &"x".repeat(1 << 20)]);
    let fits = limits::BATCH_BYTES_MAX / (1 << 20);
    for number in 0..fits + 10 {
        let (shard, id) = rig.clients[clients[number % 2]];
        // Nothing is handed over to other cores before the turn ends.
        for piece in large.chunks(100_000) {
            rig.shards[shard].handle_client_bytes(id, piece, rig.now);
        }
    }
    let handed_over = rig.counted(Counter::RequestsHandedOver) as usize;
    assert!((fits - 1..=fits + 1).contains(&handed_over), "{handed_over}");
    rig.turns();
    (0..handed_over).for_each(|_| rig.answer_next("+OK\r\n"));
    let told = clients.map(|client| rig.told(client)).concat();
    let refused = told.matches("-OVERLOADED reason=core backend=store0 retry_after_ms=").count();
    assert_eq!((told.matches("+OK").count(), refused), (handed_over, fits + 10 - handed_over));
}

#[test]
fn questions_have_a_bound_and_wait_where_they_were_asked() {
    let mut rig = Rig::new(1, 1);
    let clients: Vec<usize> = (0..100).map(|_| rig.client(0)).collect();
    for client in &clients {
        rig.send(*client, &[&["INFO"][..]; 50]);
    }
    let mut under_way = Vec::new();
    while let Some((to, _)) = rig.shards[0].poll_question() {
        under_way.push(to);
    }
    assert_eq!(under_way.len(), limits::QUESTIONS_UNDER_WAY_MAX);
    let (mut answered, mut most) = (0, 0);
    while let Some(to) = under_way.pop() {
        let now = rig.now;
        rig.shards[0].handle_answer(to, b"+told\r\n", now);
        answered += 1;
        rig.turns();
        while let Some((to, _)) = rig.shards[0].poll_question() {
            under_way.push(to);
        }
        most = most.max(under_way.len());
    }
    assert_eq!(
        (answered, most),
        (5_000, limits::QUESTIONS_UNDER_WAY_MAX),
        "nothing is lost, and never more at once"
    );
}

#[test]
fn questions_of_those_who_have_left_are_not_asked() {
    let mut rig = Rig::new(1, 1);
    let clients: Vec<usize> = (0..300).map(|_| rig.client(0)).collect();
    for client in &clients {
        rig.send(*client, &[&["INFO"]]);
        let (shard, id) = rig.clients[*client];
        if client % 100 != 7 {
            rig.shards[shard].handle_client_lost(id);
        }
    }
    let asked = std::iter::from_fn(|| rig.shards[0].poll_question()).count();
    assert_eq!((asked, rig.shards[0].requests_abandoned()), (3, 0));
}

#[test]
fn a_sort_by_patterns_waits_for_earlier_writes_of_keys_that_it_does_not_name() {
    let mut rig = Rig::new(2, 1);
    let client = rig.client(0);
    let (list, other) = (rig.key(0, 0), rig.key(1, 0));
    for (options, waits) in [
        (&["BY", "w_*"][..], true),
        (&["GET", "#", "GET", "o_*->f", "DESC"], true),
        (&["BY", "nosort", "GET", "#"], false),
        (&["LIMIT", "0", "1"], false),
    ] {
        for sort in ["SORT", "SORT_RO"] {
            rig.send(client, &[&["SET", &other, "1"], &[&[sort, list.as_str()], options].concat()]);
            assert_eq!(rig.at_stores.len(), if waits { 1 } else { 2 }, "{sort} {options:?}");
            rig.answer_next("+OK\r\n");
            rig.answer_next("+OK\r\n");
            assert_eq!(rig.told(client), "+OK\r\n+OK\r\n");
        }
    }
}
