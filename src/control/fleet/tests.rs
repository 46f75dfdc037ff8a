use std::sync::Arc;

use super::*;
use crate::control::QuotaSource;
use crate::control::pool::Rhythm;
use crate::values::UNIT;

const FILE: &str = "[global]\nru_per_second = 3_000\n[tenants.acme]\npassword = 'x'\nru_per_second = 1_000\n\
                    [tenants.free]\npassword = 'x'\n[tenants.zeta]\npassword = 'x'\nru_per_second = 100\n";

struct Rig {
    fleet: FleetQuotas,
    pools: Reconciliation,
    versions: Versions,
    ms: u64,
    number: u64,
}

impl Rig {
    fn new() -> Self {
        Self::counting_users(0)
    }

    fn counting_users(users_max: usize) -> Self {
        let settings = FleetSettings {
            store: "redis://h:1".to_owned(),
            namespace: "ns".to_owned(),
            host: HostId(0xab),
            secret: [1, 2],
            users_max,
        };
        let quotas = Quotas::parse("q", FILE).expect("well formed");
        let rhythm = Rhythm { period: Duration::from_millis(10), lease: Duration::from_millis(50) };
        let fleet = FleetQuotas::new(settings, &quotas);
        let versions = Versions::new(Arc::new(quotas), None, 0);
        Self { fleet, pools: Reconciliation::new(rhythm), versions, ms: 0, number: 0 }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.ms)
    }

    fn asks(&mut self, tenant: &str, admitted: u64, throttled: u64) {
        let id = self.versions.current().find(tenant).expect("it is there");
        let usage = Usage { admitted: admitted * UNIT, throttled: throttled * UNIT, ..Usage::default() };
        self.fleet.handle_usage(&self.versions, self.versions.current().version(), &[(id, usage)]);
    }

    /// Begins a period (one second) of the host, and returns the commands that it sends to the fleet's store,
    /// one per line.
    fn begin(&mut self) -> String {
        self.ms += 1_000;
        let exchange = self.fleet.begin(self.now(), &mut self.pools);
        self.number = exchange.number;
        let requests = split(&exchange.request).expect("requests have the form of replies");
        assert_eq!(requests.len(), exchange.replies);
        let line = |request: &&[u8]| {
            let words = reply::elements(request).expect("an array");
            let words: Vec<_> =
                words.map(|word| String::from_utf8_lossy(reply::text(word).unwrap_or(b"?"))).collect();
            words.join(" ") + "\n"
        };
        requests.iter().map(line).collect()
    }

    fn hear(&mut self, answer: &str) {
        let now = self.now();
        self.fleet.handle_answer(self.number, Ok(answer.as_bytes()), now, &mut self.pools);
    }

    /// Runs a period (one second) in which another host is alive too, and answers the host's commands to the
    /// fleet's store with these totals of the counters.
    fn pass(&mut self, totals: [u64; 3]) {
        self.begin();
        let [tick, one, two, three] = [self.ms / 1_000, totals[0], totals[1], totals[2]];
        self.hear(&format!(
            ":0\r\n*4\r\n$16\r\n00000000000000ab\r\n$1\r\n1\r\n$16\r\n00000000000000cd\r\n$1\r\n{tick}\r\n\
             :{one}\r\n:{two}\r\n:{three}\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
        ));
    }

    fn part(&self, tenant: &str) -> f64 {
        let bucket = bucket_of([1, 2], tenant, None);
        self.pools.part(bucket).ratio()
    }

    fn parts(&self) -> [Part; 2] {
        ["acme", "zeta"].map(|tenant| self.pools.part(bucket_of([1, 2], tenant, None)))
    }

    fn lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.fleet.poll_line()).collect()
    }
}

#[test]
fn the_parts_of_the_process_before_hold_for_three_answers() {
    let part = |percent: u64| Part::of_billionths(percent * 10_000_000);
    let (mut before, mut rig) = (Rig::new(), Rig::counting_users(1));
    for second in 1..=3 {
        before.asks("acme", 500, 700);
        before.pass([0, 1_200_000 * second, 0]);
    }
    let mut told = before.fleet.heritage(before.now());
    let acme = before.part("acme");
    assert!(acme > 0.9, "{told:?}");
    let users = [1, 2].map(|hash| BucketId::of_user(7, hash));
    told.extend(users.map(|bucket| InheritedPart { key: "user".to_owned(), bucket, part: part(60) }));
    told.push(InheritedPart { key: "gone".to_owned(), bucket: BucketId::of_tenant(9), part: part(60) });
    let now = rig.now();
    rig.fleet.inherit(&told, &mut rig.pools, now);
    for answers in 0..3 {
        assert!((rig.part("acme") - acme).abs() < 1e-9, "{answers}");
        assert_eq!(rig.pools.part(users[0]), part(60));
        assert_eq!(rig.pools.part(users[1]), rig.fleet.fleet.uncounted(), "there is room for one");
        rig.pass([0, 2_000_000 * (answers + 2), 0]);
    }
    rig.pass([0, 10_000_000, 0]);
    assert!(rig.part("acme") < 0.2, "{}", rig.part("acme"));
    assert_eq!(rig.pools.part(users[0]), rig.fleet.fleet.uncounted());
}

#[test]
fn what_is_sent() {
    let mut rig = Rig::new();
    rig.asks("acme", 500, 700);
    rig.asks("free", 20, 0);
    assert_eq!(
        rig.begin(),
        "HSET {weir:ns}:hosts 00000000000000ab 1\nHGETALL {weir:ns}:hosts\n\
         INCRBY {weir:ns}:d:global 520000\nINCRBY {weir:ns}:d:tenant:acme 1200000\nINCRBY {weir:ns}:d:tenant:zeta 0\n\
         PEXPIRE {weir:ns}:d:global 60000\nPEXPIRE {weir:ns}:d:tenant:acme 60000\n\
         PEXPIRE {weir:ns}:d:tenant:zeta 60000\nPEXPIRE {weir:ns}:hosts 60000\n"
    );
}

#[test]
fn a_counter_that_leaps_costs_a_host_alone_nothing() {
    let mut rig = Rig::new();
    let mut total = 0_u64;
    for second in 0..30_u64 {
        rig.asks("acme", 600, 600);
        rig.begin();
        // A foreign client adds to the counter once at 5 s, and in every period after 10 s.
        total += 1_200_000 + if second == 5 || second > 10 { 1_000_000_000_000_000 } else { 0 };
        rig.hear(&format!(
            ":0\r\n*2\r\n$16\r\n00000000000000ab\r\n$1\r\n1\r\n:1\r\n:{total}\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
        ));
        assert!(second < 2 || (rig.part("acme") - 1.0).abs() < 1e-9, "{second}: {}", rig.part("acme"));
    }
}

#[test]
fn the_pools_go_by_the_answers() {
    let mut rig = Rig::new();
    rig.fleet.start(&mut rig.pools, Timestamp::ZERO);
    assert!((rig.part("acme") - 0.1).abs() < 1e-9 && (rig.part("nobody") - 1.0).abs() < 1e-9);
    for total in 1..5 {
        rig.pass([0, total, 0]);
    }
    assert!((rig.part("acme") - 0.05).abs() < 1e-9, "{}", rig.part("acme"));
    assert!((rig.part("zeta") - 0.5).abs() < 1e-9);
    assert!((rig.pools.part(BucketId::GLOBAL).ratio() - 0.5).abs() < 1e-9);
    assert_eq!(rig.lines(), ["fleet: 2 hosts share quotas at redis://h:1; this one is 00000000000000ab"]);
    // New quotas come into force, in which the tenant acme has another id. Its demand before counts, too.
    rig.asks("acme", 30, 0);
    let quotas = Quotas::parse(
        "q",
        "[tenants.a]\npassword='x'\nru_per_second=7\n[tenants.acme]\npassword='x'\nru_per_second=9",
    );
    let before = rig.versions.current().find("acme").expect("it is there");
    let quotas = rig.versions.take(quotas.expect("well formed"), QuotaSource::Post, 0);
    let now = rig.now();
    rig.fleet.handle_quotas(&quotas, &mut rig.pools, now);
    assert!((rig.part("acme") - 0.05).abs() < 1e-9 && (rig.part("zeta") - 1.0).abs() < 1e-9);
    assert!(rig.pools.shared_part(BucketId::GLOBAL).is_none());
    let usage = Usage { admitted: 5 * UNIT, ..Usage::default() };
    rig.fleet.handle_usage(&rig.versions, 0, &[(before, usage)]);
    assert!(rig.begin().contains("INCRBY {weir:ns}:d:tenant:acme 35000\n"));
}

#[test]
fn answers_that_make_no_sense_change_nothing() {
    let mut rig = Rig::new();
    (1..4).for_each(|total| rig.pass([0, total, 0]));
    let parts = rig.parts();
    rig.lines();
    let nonsense = [
        "",
        ":0\r\n",
        "-NOAUTH Authentication required.\r\n-NOAUTH no\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        ":0\r\n*0\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        ":0\r\n+OK\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
        ":0\r\n*0\r\n:1\r\n:1\r\n",
        ":0\r\n*0\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n$5\r\nab",
    ];
    for answer in nonsense {
        rig.begin();
        rig.hear(answer);
        assert_eq!(rig.parts(), parts, "{answer}");
    }
    assert_eq!(rig.fleet.counted(Ending::Refused), nonsense.len() as u64);
    let told = rig.lines();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("fleet: the store redis://h:1 cannot be asked: its reply is not valid; the last")
    );
    // Some counters are not numbers, and some entries name no host.
    rig.begin();
    rig.hear(
        ":0\r\n*6\r\n$1\r\nx\r\n$1\r\n1\r\n$16\r\n00000000000000cd\r\n$1\r\nx\r\n$16\r\n00000000000000ab\r\n$1\r\n1\r\n\
         -WRONGTYPE no\r\n:-1\r\n$-1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
    );
    assert_eq!(rig.parts(), parts);
    let told = rig.lines();
    assert!(
        told[0].ends_with("WRONGTYPE no; it begins anew") && told[1].contains("answers again"),
        "{told:?}"
    );
}

#[test]
fn a_key_that_holds_something_else_is_deleted_with_the_next_exchange_and_told_of_once() {
    let mut rig = Rig::new();
    (1..4).for_each(|total| rig.pass([0, total, 0]));
    rig.lines();
    let hosts = ":0\r\n*2\r\n$16\r\n00000000000000ab\r\n$1\r\n1\r\n";
    let repair = "PEXPIRE {weir:ns}:d:tenant:acme 0\nHSET ";
    for damage in [
        "-WRONGTYPE Operation against a key holding the wrong kind of value",
        "-ERR value is not an integer or out of range",
        "-ERR increment or decrement would overflow",
        ":-7",
    ] {
        assert!(rig.begin().starts_with("HSET "), "{damage}");
        rig.hear(&format!("{hosts}:1\r\n{damage}\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n"));
        assert!(rig.begin().starts_with(repair), "{damage}");
        rig.hear(&format!(":1\r\n{hosts}:1\r\n:0\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n"));
        let told = rig.lines();
        let told =
            told.iter().filter(|line| line.contains("cannot be read") && line.ends_with("begins anew"));
        assert_eq!(told.count(), 1, "{damage}");
    }
    // Errors of another kind say nothing about the key, and are told of once.
    for _ in 0..3 {
        assert!(rig.begin().starts_with("HSET "));
        rig.hear(&format!("{hosts}:1\r\n-NOPERM no\r\n:0\r\n:1\r\n:1\r\n:1\r\n:1\r\n"));
    }
    assert_eq!(rig.lines().iter().filter(|line| line.ends_with("cannot be read: NOPERM no")).count(), 1);
    // The list of hosts, too.
    rig.begin();
    rig.hear(&["-WRONGTYPE no\r\n".repeat(2), ":1\r\n".repeat(7)].concat());
    let told = rig.lines();
    assert!(told[0].contains("WRONGTYPE no; the list of hosts begins anew; "), "{told:?}");
    assert!(rig.begin().starts_with("PEXPIRE {weir:ns}:hosts 0\nHSET "));
}

#[test]
fn a_list_of_hosts_that_cannot_be_read_is_left_to_expire() {
    let mut rig = Rig::new();
    let renewal = "PEXPIRE {weir:ns}:hosts 60000";
    assert!(rig.begin().contains(renewal));
    let others = "$16\r\n00000000000000cd\r\n$1\r\n1\r\n".repeat(5_000);
    let own = "$16\r\n00000000000000ab\r\n$1\r\n1\r\n";
    let totals = ":1\r\n:1\r\n:0\r\n:1\r\n:1\r\n:1\r\n";
    rig.hear(&format!(":0\r\n*{}\r\n{own}{others}{totals}:1\r\n", 2 * 5_001));
    assert!(rig.lines()[0].contains("it lists more hosts than a fleet may have"));
    assert!(!rig.begin().contains(renewal));
    // The list has expired, and holds only what was sent since.
    rig.hear(&format!(":1\r\n*2\r\n{own}{totals}"));
    assert!(rig.lines()[0].contains("hosts share quotas"));
    assert!(rig.begin().contains(renewal));
}

#[test]
fn a_store_that_goes_away_is_told_of_once_and_again_after_a_minute() {
    let mut rig = Rig::new();
    (1..4).for_each(|total| rig.pass([0, total, 0]));
    rig.lines();
    for _ in 0..100 {
        rig.begin();
        let now = rig.now();
        rig.fleet.handle_answer(rig.number, Err("Connection refused"), now, &mut rig.pools);
    }
    let told = rig.lines();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("Connection refused; the last shares hold for a minute"), "{told:?}");
    assert!(told[1].contains("no more than its part among 2"), "{told:?}");
    // The store does not answer at all.
    rig.pass([0, 5, 0]);
    rig.begin();
    rig.begin();
    assert_eq!(rig.fleet.counted(Ending::Lost), 101);
}

#[test]
fn the_page() {
    let mut rig = Rig::new();
    (0..3).for_each(|total| rig.pass([total, total, 0]));
    rig.ms += 20;
    let page = rig.fleet.page(rig.versions.current(), "", rig.now());
    assert_eq!(
        page.body,
        "{\"state\":\"connected\",\"store\":\"redis://h:1\",\"namespace\":\"ns\",\"host\":\"00000000000000ab\",\"hosts\":2,\
         \"answered_ms_ago\":20,\"exchanges\":{\"answered\":3,\"lost\":0,\"refused\":0},\"problem\":null,\"scopes\":[\
         {\"scope\":\"global\",\"name\":\"global\",\"ru_per_second\":3000,\"share_ru_per_second\":150,\"share\":0.05,\
         \"demand_ru_per_second\":0},\
         {\"scope\":\"tenant\",\"name\":\"acme\",\"ru_per_second\":1000,\"share_ru_per_second\":50,\"share\":0.05,\
         \"demand_ru_per_second\":0},\
         {\"scope\":\"tenant\",\"name\":\"zeta\",\"ru_per_second\":100,\"share_ru_per_second\":50,\"share\":0.5,\
         \"demand_ru_per_second\":0}],\"next\":null}\n"
    );
    let next = rig.fleet.page(rig.versions.current(), "after=acme", rig.now()).body;
    assert!(next.contains("zeta") && !next.contains("acme") && !next.contains("global"), "{next}");
    assert_eq!(rig.fleet.page(rig.versions.current(), "x=1", rig.now()).status, Status::BadRequest);
}
