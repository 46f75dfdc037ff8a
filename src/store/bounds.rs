//! Tests that one request's cost stays within the limits, for every command: memory, reply size and elements
//! looked at.

use super::bench::Bench;
use super::limits::EngineLimits;
use crate::values::Random;

const REPLY_BYTES_MAX: usize = 1_000_000;
const MEMORY_BYTES_MAX: u64 = 20_000_000;
/// Maximum effort (steps of work) of one request in these tests: less than the default, so that they reach it
/// quickly.
const EFFORT_MAX: u64 = 1_000_000;

fn bench() -> Bench {
    Bench::with(EngineLimits {
        bytes_max: MEMORY_BYTES_MAX,
        reply_bytes_max: REPLY_BYTES_MAX,
        effort_max: EFFORT_MAX,
    })
}

/// Returns an engine with a value of every type, large ones among them, and elements of 300 bytes.
fn filled() -> Bench {
    let mut bench = bench();
    let long = "m".repeat(300);
    bench.send(&format!("SET string {}", "v".repeat(200_000)));
    bench.send(&format!("SET other {}", "v".repeat(200_000)));
    bench.send(&format!("SADD set {long}"));
    bench.send(&format!("HSET hash {long} {long}"));
    bench.send(&format!("ZADD ranking 0.1 {long}"));
    for number in 0..4_000 {
        bench.send(&format!("RPUSH list {number}-{long}"));
        bench.send(&format!("SADD members {number}-{long}"));
        bench.send(&format!("ZADD scored 0.{number} {number}-{long}"));
        bench.send(&format!("HSET fields {number} {long}"));
        bench.send(&format!("XADD stream {}-1 field {long}", number + 1));
    }
    bench.send("XGROUP CREATE stream group 0");
    bench.send("PFADD counter a b c");
    bench.send("HPEXPIRE fields 500000 FIELDS 3 1 2 3");
    bench.send("GEOADD places 13 38 a 14 37 b");
    bench
}

/// Returns the numbers of a range as one string, with `before` in front of each.
fn listed(numbers: std::ops::Range<usize>, before: &str) -> String {
    numbers.fold(String::new(), |line, number| line + before + &number.to_string())
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Sends a request, checks that the reply and its buffer stay within their bounds, and returns the reply.
fn checked(bench: &mut Bench, words: &[Vec<u8>]) -> Vec<u8> {
    let borrowed: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let reply = bench.send_bytes(&borrowed);
    let shown =
        || String::from_utf8_lossy(&borrowed.concat()[..60.min(borrowed.concat().len())]).into_owned();
    assert!(reply.len() <= REPLY_BYTES_MAX + 1_000, "{} bytes for {}", reply.len(), shown());
    assert!(reply.capacity() <= 2 * 1024 * 1024, "{} bytes held for {}", reply.capacity(), shown());
    assert!(!reply.is_empty() && reply.ends_with(b"\r\n"), "{}", shown());
    reply
}

fn told(bench: &mut Bench, line: &str) -> String {
    String::from_utf8_lossy(&checked(bench, &words(line))).replace("\r\n", "|")
}

const TOO_LARGE: &str = "-ERR the reply would be larger than 1000000 bytes|";

#[test]
fn replies_that_a_short_request_multiplies_are_refused() {
    let mut bench = filled();
    for protocol in ["2", "3"] {
        bench.send(&format!("HELLO {protocol}"));
        for line in [
            "SRANDMEMBER set -400000",
            "HRANDFIELD hash -400000",
            "HRANDFIELD hash -100000 WITHVALUES",
            "ZRANDMEMBER ranking -400000",
            "ZRANDMEMBER ranking -100000 WITHSCORES",
            "SRANDMEMBER members 4000",
            "LRANGE list 0 -1",
            "SMEMBERS members",
            "SUNION members members",
            "SINTER members members",
            "SDIFF members nothing",
            "ZUNION 2 members scored",
            "ZINTER 2 scored scored WITHSCORES",
            "ZDIFF 1 scored",
            "ZRANGE scored 0 -1 WITHSCORES",
            "ZREVRANGEBYSCORE scored 1 0",
            "ZRANGEBYLEX scored - +",
            "HGETALL fields",
            "HVALS fields",
            "HSCAN fields 0 COUNT 100000",
            "SSCAN members 0 COUNT 100000",
            "ZSCAN scored 0 COUNT 100000",
            "SORT members ALPHA",
            "SORT list BY nosort",
            "SORT list BY nosort GET # GET #",
            "XRANGE stream - +",
            "XREVRANGE stream + -",
            "XREAD STREAMS stream 0",
            "XREADGROUP GROUP group consumer STREAMS stream >",
            "XINFO STREAM stream FULL COUNT 0",
            "DUMP list",
            "DUMP members",
            "DUMP scored",
            "DUMP fields",
            "DUMP stream",
        ] {
            assert_eq!(told(&mut bench, line), TOO_LARGE, "{line}");
        }
        for (command, repeated) in [("MGET", "string"), ("MGET", "other")] {
            assert_eq!(
                told(&mut bench, &format!("{command}{}", format!(" {repeated}").repeat(6))),
                TOO_LARGE
            );
        }
        let names = format!(" {}", "m".repeat(300)).repeat(4_000);
        assert_eq!(told(&mut bench, &format!("HMGET hash{names}")), TOO_LARGE);
        assert_eq!(told(&mut bench, &format!("ECHO {}", "e".repeat(1_000_000))), TOO_LARGE);
    }
    assert!(bench.engine.statistics().refused_for_cost > 40);
}

#[test]
fn keys_and_walks_over_long_names_are_refused_too() {
    let mut bench = bench();
    for number in 0..20 {
        bench.send(&format!("SET {number}-{} v", "k".repeat(100_000)));
    }
    assert_eq!(told(&mut bench, "KEYS *"), TOO_LARGE);
    assert_eq!(told(&mut bench, "SCAN 0 COUNT 1000"), TOO_LARGE);
    assert!(told(&mut bench, "SCAN 0 MATCH 1-* COUNT 1000").starts_with("*2|$1|0|*1|$100002|1-kk"));
    let pattern = format!("*{}b", "k".repeat(50_000));
    let refusal =
        "-ERR the request would take more than 1000000 steps, about one per element: ask for less at once|";
    assert_eq!(told(&mut bench, &format!("KEYS {pattern}")), refusal);
    assert_eq!(told(&mut bench, &format!("SCAN 0 COUNT 1000 MATCH {pattern}")), refusal);
}

#[test]
fn what_could_not_be_told_is_not_taken_out() {
    let mut bench = filled();
    for line in [
        "LPOP list 5000",
        "RPOP list 5000",
        "SPOP members 5000",
        "ZPOPMIN scored 5000",
        "ZPOPMAX scored 5000",
        "LMPOP 1 list LEFT COUNT 5000",
        &format!("HGETDEL fields FIELDS 4000{}", listed(0..4_000, " ")),
        &format!("HGETEX fields PX 1 FIELDS 4000{}", listed(0..4_000, " ")),
        "ZMPOP 1 scored MAX COUNT 5000",
        "XREADGROUP GROUP group consumer STREAMS stream >",
    ] {
        assert_eq!(told(&mut bench, line), TOO_LARGE, "{line}");
    }
    bench.talk(&[
        ("HLEN fields", ":4000|"),
        ("HTTL fields FIELDS 1 7", "*1|:-1|"),
        ("LLEN list", ":4000|"),
        ("SCARD members", ":4000|"),
        ("ZCARD scored", ":4000|"),
    ]);
    bench.talk(&[("XPENDING stream group", "*4|:0|$-1|$-1|*-1|"), ("XINFO CONSUMERS stream group", "*0|")]);
    assert!(told(&mut bench, "LPOP list 2").starts_with("*2|$302|0-mm"));
    assert!(told(&mut bench, "SPOP members 2000").starts_with("*2000|$30"));
    // An element whose reply would exceed the limit is not removed or replaced.
    bench.send(&format!("SETRANGE large 1500000 {}", "v"));
    bench.send(&format!("RPUSH larges {}", "v".repeat(1_500_000)));
    for line in [
        "GETDEL large",
        "GETSET large new",
        "SET large new GET",
        "GETEX large PX 1",
        "LPOP larges",
        "LMOVE larges list LEFT LEFT",
        "RPOPLPUSH larges list",
    ] {
        assert_eq!(told(&mut bench, line), TOO_LARGE, "{line}");
    }
    bench.talk(&[("STRLEN large", ":1500001|"), ("TTL large", ":-1|"), ("LLEN larges", ":1|")]);
    assert!(told(&mut bench, "GETRANGE large 0 99999").starts_with("$100000|"));
}

/// Returns an engine whose replies have at most `reply_bytes_max` bytes.
fn tight(reply_bytes_max: usize) -> Bench {
    Bench::with(EngineLimits { reply_bytes_max, ..EngineLimits::with_memory(u64::MAX) })
}

/// Pops ever more members, reads ever longer entries, and adds entries with ever more room for the reply, so that some
/// replies miss their limit by few bytes: a command that is refused has changed nothing, and breaks no watch.
#[test]
fn a_reply_that_misses_its_limit_by_few_bytes_changes_nothing() {
    const MEMBERS: usize = 120;
    let fails = |reply: &str| reply.contains("-ERR ");
    let mut bench = tight(4_000);
    let score = "-1.2345678901234567e-10";
    let members =
        (100..100 + MEMBERS).fold(String::new(), |line, member| format!("{line} {score} m{member}"));
    bench.send(&format!("ZADD z{members}"));
    let mut refused = 0;
    for count in 1..=MEMBERS {
        bench.talk(&[("COPY z y REPLACE", ":1|"), ("WATCH y", "+OK|")]);
        let is_refused = fails(&bench.send(&format!("ZMPOP 1 y MIN COUNT {count}")));
        refused += usize::from(is_refused);
        let (left, told) = if is_refused { (MEMBERS, "*1|+PONG|") } else { (MEMBERS - count, "*-1|") };
        bench.talk(&[("MULTI", "+OK|"), ("PING", "+QUEUED|"), ("EXEC", told)]);
        bench.talk(&[("ZCARD y", &format!(":{left}|"))]);
    }
    assert!((1..MEMBERS).contains(&refused), "{refused} of {MEMBERS} were refused");

    let mut bench = tight(1_000);
    let mut refused = 0;
    for length in 800..1_000 {
        bench.send(&format!("XADD s 1-1 f {}", "v".repeat(length)));
        bench.send("XGROUP CREATE s g 0");
        let is_refused = fails(&bench.send("XREADGROUP GROUP g c STREAMS s >"));
        refused += usize::from(is_refused);
        let pending = bench.send("XPENDING s g");
        assert_eq!(pending.starts_with("*4|:0|"), is_refused, "{length}: {pending}");
        bench.talk(&[("XLEN s", ":1|"), ("DEL s", ":1|")]);
    }
    assert!((1..200).contains(&refused), "{refused} of 200 were refused");

    let mut refused = 0;
    for bytes in 64..200 {
        let mut bench = tight(bytes);
        let id = format!("{0}-{0}", u64::MAX - 1);
        bench.talk(&[("MULTI", "+OK|"), (&format!("XADD s {id} f v"), "+QUEUED|")]);
        let is_refused = fails(&bench.send("EXEC"));
        refused += usize::from(is_refused);
        bench.talk(&[("XLEN s", if is_refused { ":0|" } else { ":1|" })]);
    }
    assert!((1..136).contains(&refused), "{refused} of 136 were refused");

    // A key that does not fit in the reply itself keeps its elements too.
    let mut bench = tight(1_000);
    let key = "k".repeat(2_000);
    bench.talk(&[(&format!("RPUSH l{key} a"), ":1|"), (&format!("ZADD z{key} 1 a"), ":1|")]);
    for line in [format!("LMPOP 1 l{key} LEFT"), format!("ZMPOP 1 z{key} MIN"), format!("BLPOP l{key} 0")] {
        assert_eq!(bench.send(&line), "-ERR the reply would be larger than 1000 bytes|");
    }
    bench.talk(&[(&format!("LLEN l{key}"), ":1|"), (&format!("ZCARD z{key}"), ":1|")]);
}

#[test]
fn a_transaction_is_bounded_as_one_request() {
    let mut bench = filled();
    bench.send("MULTI");
    for _ in 0..20 {
        bench.send("GET string");
    }
    bench.send("INCR n");
    let reply = told(&mut bench, "EXEC");
    assert!(reply.starts_with("*21|$200000|vv"), "{}", &reply[..40]);
    assert_eq!(reply.matches("$200000|").count(), 4);
    assert_eq!(reply.matches(TOO_LARGE).count(), 16);
    assert!(reply.ends_with(":1|"));
    // Error replies within EXEC count towards the limit of the reply too.
    bench.send("MULTI");
    for _ in 0..15_000 {
        bench.send("LPUSH string v");
    }
    assert!(told(&mut bench, "EXEC").contains("-ERR no room for this reply|"));
    bench.send("MULTI");
    for _ in 0..20_000 {
        bench.send("GET n");
    }
    assert!(told(&mut bench, "EXEC").starts_with("-EXECABORT "));
    bench.send("MULTI");
    for _ in 0..500 {
        bench.send("LREM list 0 x");
    }
    let reply = told(&mut bench, "EXEC");
    let done = reply.matches(":0|").count();
    assert!((200..250).contains(&done), "{done} were carried out");
    assert!(bench.engine.effort() <= EFFORT_MAX + 500 * 100);
}

#[test]
fn elements_that_one_request_looks_at_are_bounded() {
    let usual = EngineLimits::with_memory(u64::MAX);
    let mut bench = Bench::with(EngineLimits { effort_max: EFFORT_MAX, ..usual });
    let items = " x".repeat(10_000);
    for number in 0..10 {
        bench.send(&format!("RPUSH l{items}"));
        let members = listed(number * 1_000..(number + 1) * 1_000, " ");
        bench.send(&format!("SADD s{members}"));
        let scored = listed(number * 1_000..(number + 1) * 1_000, " 1 ");
        bench.send(&format!("ZADD z{scored}"));
    }
    bench.send("SADD t nobody");
    let small = listed(0..127, " v f");
    bench.send(&format!("HSET h f{small} v"));
    let before = bench.engine.statistics();
    for line in [
        format!("SUNION{}", " s".repeat(50_000)),
        format!("SUNIONSTORE to{}", " s".repeat(50_000)),
        format!("SINTER{}", " s".repeat(50_000)),
        format!("SDIFF s{}", " t".repeat(50_000)),
        format!("ZUNION 5000{}", " z".repeat(5_000)),
        format!("ZUNIONSTORE to 5000{}", " s".repeat(5_000)),
        format!("ZINTER 5000{}", " z".repeat(5_000)),
        format!("ZDIFF 5001 z{}", " t".repeat(5_000)),
        format!("SINTERCARD 5000{}", " s".repeat(5_000)),
        format!("HMGET h{}", " nobody".repeat(60_000)),
        format!("ZINTERCARD 5000{}", " z".repeat(5_000)),
        format!("PFCOUNT{}", " nothing".repeat(60_000)),
        format!("CONFIG GET{}", " nothing".repeat(60_000)),
    ] {
        let reply = bench.send(&line);
        let effort = bench.engine.effort();
        // Beyond the limit, a request spends at most the effort that its own length costs.
        assert!(effort <= EFFORT_MAX + 4 * line.len() as u64, "{effort} for {}", &line[..20]);
        let refused = reply.starts_with("-ERR the request would take more than 1000000 steps");
        assert!(refused, "{}: {}", &line[..20], &reply[..reply.len().min(80)]);
    }
    let after = bench.engine.statistics();
    assert_eq!((after.keys, after.bytes_used), (before.keys, before.bytes_used));
    // Requests of ordinary size are not refused.
    bench.talk(&[
        ("LREM l 0 nobody", ":0|"),
        ("LPOS l nobody", "$-1|"),
        ("LINSERT l BEFORE nobody x", ":-1|"),
        ("SINTERCARD 2 s s", ":10000|"),
        ("SUNIONSTORE to s s", ":10000|"),
        ("ZUNIONSTORE to 2 z z", ":10000|"),
        ("ZREMRANGEBYRANK z 0 -1", ":10000|"),
        ("LTRIM l 1 -2", "+OK|"),
        ("DEL l s t to h", ":5|"),
    ]);
}

#[test]
fn a_list_that_is_too_long_to_look_through_can_still_be_trimmed_and_deleted() {
    let usual = EngineLimits::with_memory(u64::MAX);
    let mut bench = Bench::with(EngineLimits { effort_max: 10_000, ..usual });
    for _ in 0..12 {
        bench.send(&format!("RPUSH l{}", " x".repeat(1_000)));
    }
    let refusal =
        "-ERR the request would take more than 10000 steps, about one per element: ask for less at once|";
    bench.talk(&[
        ("LREM l 0 y", refusal),
        ("LPOS l y", refusal),
        ("LINSERT l AFTER y z", refusal),
        ("LRANGE l 0 -1", refusal),
        ("COPY l other", refusal),
        ("LPOS l x", ":0|"),
        ("LINSERT l BEFORE x z", ":12001|"),
        ("LPOS l z", ":0|"),
        ("LTRIM l 0 -2", "+OK|"),
        ("LLEN l", ":12000|"),
        ("DEL l", ":1|"),
    ]);
}

#[test]
fn values_that_a_short_request_enlarges_stay_within_memory() {
    let mut bench = bench();
    bench.send(&format!("SET v {}", "v".repeat(6_000_000)));
    let refusal = "-OOM command not allowed when used memory > 'maxmemory'.|";
    bench.talk(&[
        ("COPY v w", ":1|"),
        ("APPEND v x", ":6000001|"),
        ("COPY v x", ":1|"),
        ("COPY v y", refusal),
        ("SETRANGE w 15000000 x", refusal),
        ("SETBIT w 150000000 1", refusal),
        ("SETRANGE new 9000000 x", refusal),
        ("EXISTS new", ":0|"),
        ("APPEND w x", ":6000001|"),
        ("SETRANGE w 6500000 x", ":6500001|"),
    ]);
    assert!(bench.engine.statistics().bytes_used <= MEMORY_BYTES_MAX);
    bench.send("FLUSHALL");
    let members = listed(0..90_000, " ");
    bench.send(&format!("SADD s{members}"));
    for number in 0..10 {
        bench.send(&format!("SUNIONSTORE s{number} s"));
        bench.send(&format!("ZUNIONSTORE z{number} 1 s"));
        bench.send(&format!("ZRANGESTORE y{number} z0 0 -1"));
        bench.send(&format!("SADD t{number}{members}"));
        bench.send(&format!("RPUSH l{number}{members}"));
        bench.send(&format!("MSET{}", format!(" {number}").repeat(2_000)));
    }
    let statistics = bench.engine.statistics();
    assert!(statistics.bytes_used <= MEMORY_BYTES_MAX, "{statistics:?}");
    assert!(statistics.refused_for_memory > 10);
}

#[test]
fn errors_quote_little_of_what_was_sent() {
    let mut bench = bench();
    let long = "x".repeat(500_000);
    bench.send("SET k v");
    for line in [
        format!("{long} a"),
        format!("NOTHING {long}"),
        format!("OBJECT {long}"),
        format!("CONFIG {long}"),
        format!("CLIENT {long}"),
        format!("HELLO 3 {long}"),
        format!("CLIENT SETINFO {long} a"),
        format!("CLIENT SETINFO {long} \u{7}"),
        format!("CLIENT SETNAME {long}"),
        format!("CLIENT SETINFO LIB-NAME {long}"),
        format!("EXPIRE k 10 {long}"),
    ] {
        let reply = told(&mut bench, &line);
        assert!(reply.starts_with('-') && reply.len() < 1_000, "{} bytes: {}", reply.len(), &reply[..60]);
    }
}

/// Sends every command with random keys, odd numbers and words: nothing panics, and the bounds hold.
#[test]
fn whatever_is_asked_stays_within_the_bounds() {
    const NUMBERS: &[&str] = &[
        "0",
        "1",
        "-1",
        "2",
        "7",
        "-5",
        "100",
        "1000000",
        "-1000000",
        "4294967295",
        "536870911",
        "536870912",
        "2147483648",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "1e300",
        "-inf",
        "inf",
        "0.1",
        "nan",
        "1e-9999",
        "(5",
        "[a",
        "-",
        "+",
        "",
    ];
    const WORDS: &[&str] = &[
        "COUNT",
        "MATCH",
        "LIMIT",
        "WITHSCORES",
        "WITHVALUES",
        "BYSCORE",
        "BYLEX",
        "REV",
        "WEIGHTS",
        "AGGREGATE",
        "SUM",
        "MAX",
        "GET",
        "EX",
        "PX",
        "KEEPTTL",
        "NX",
        "XX",
        "GT",
        "LT",
        "CH",
        "INCR",
        "BEFORE",
        "AFTER",
        "LEFT",
        "RIGHT",
        "RANK",
        "MAXLEN",
        "REPLACE",
        "BIT",
        "BYTE",
        "STORE",
        "*",
        "[^a",
        "USAGE",
        "ENCODING",
        "INFO",
        "SETNAME",
        "HELP",
        "DOCS",
        "all",
        "k*[a-z]?",
        "STREAMS",
        "GROUP",
        "group",
        "CREATE",
        "MAXLEN",
        "~",
        "FULL",
        ">",
        "FROMMEMBER",
        "BYRADIUS",
        "BYBOX",
        "km",
        "FIELDS",
        "AND",
        "NOT",
        "GET",
        "SET",
        "i64",
        "u7",
        "IDX",
        "BY",
        "ALPHA",
        "#",
    ];
    const KEYS: &[&str] = &[
        "string", "other", "set", "hash", "ranking", "list", "members", "scored", "fields", "nothing", "k1",
        "k2", "stream", "counter", "places",
    ];
    let mut bench = filled();
    let names: Vec<&'static str> = super::commands::directory().names().collect();
    let mut random = Random::new(2024);
    for step in 0..20_000 {
        let name = names[random.index(names.len())];
        if matches!(name, "flushall" | "flushdb" | "quit" | "swapdb" | "move") && random.index(100) > 0 {
            continue;
        }
        let mut request = vec![name.as_bytes().to_vec()];
        for place in 0..random.index(7) {
            let from = match (place, random.index(6)) {
                (0, 0..=4) | (_, 0 | 1) => KEYS,
                (_, 2..=4) => NUMBERS,
                _ => WORDS,
            };
            request.push(from[random.index(from.len())].as_bytes().to_vec());
        }
        checked(&mut bench, &request);
        if bench.session.subscribed {
            bench.send("RESET");
        }
        bench.session.database = 0;
        // Effort beyond the limit comes from the request's own length, or from elements that it removes.
        let effort = bench.engine.effort();
        assert!(effort <= EFFORT_MAX + 100_000, "{effort} for {request:?}");
        let used = bench.engine.statistics().bytes_used;
        assert!(used <= MEMORY_BYTES_MAX + 3_000, "{used} after {request:?}");
        if step % 1_000 == 0 {
            bench.wait_ms(random.below(1_000));
        }
    }
}
