//! Tests of weir with the Rust client `redis` and its default settings; the store is the embedded one.
#![cfg(feature = "runtime")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use redis::{Commands as _, RedisResult};

/// A weir process on a free port, which ends when this value is dropped.
struct Weir {
    process: Child,
    address: String,
}

impl Weir {
    fn start(shards: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["--listen", "127.0.0.1:0", "--admin", "off", "--shards", shards])
            .stderr(Stdio::piped())
            .spawn()
            .expect("weir starts");
        let report = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut address = None;
        // Weir prints its address first, and the line that ends with `is ready` last.
        for line in report.lines().map_while(Result::ok) {
            if let Some(bound) = line.strip_prefix("weir: listening on ") {
                address = Some(bound.to_owned());
            }
            if line.ends_with("is ready") {
                break;
            }
        }
        Self { process, address: address.expect("weir says where it listens") }
    }

    fn client(&self, query: &str) -> redis::Connection {
        let client =
            redis::Client::open(format!("redis://{}/{query}", self.address)).expect("a valid address");
        client.get_connection().expect("weir lets it in")
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn commands_pipelines_and_transactions_in_both_dialects() {
    let weir = Weir::start("3");
    for (round, query) in ["", "?protocol=resp3"].into_iter().enumerate() {
        let mut client = weir.client(query);
        let key = |name: &str| format!("{name}:{round}");
        let () = client.set(key("text"), "value").expect("SET");
        assert_eq!(client.get::<_, String>(key("text")).expect("GET"), "value");
        assert_eq!(client.get::<_, Option<String>>(key("missing")).expect("GET"), None);
        assert_eq!(client.incr::<_, _, i64>(key("count"), 5).expect("INCRBY"), 5);
        let () = client.hset_multiple(key("hash"), &[("a", 1), ("b", 2)]).expect("HSET");
        let hash: std::collections::BTreeMap<String, i64> = client.hgetall(key("hash")).expect("HGETALL");
        assert_eq!(hash.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let () = client.zadd(key("ranking"), "one", 1.5).expect("ZADD");
        assert_eq!(client.zscore::<_, _, f64>(key("ranking"), "one").expect("ZSCORE").to_string(), "1.5");

        let mut pipeline = redis::pipe();
        (0..500).for_each(|number| {
            pipeline.set(format!("{round}:{number}"), number).ignore().get(format!("{round}:{number}"));
        });
        let numbers: Vec<i64> = pipeline.query(&mut client).expect("a pipeline over three shards");
        assert_eq!(numbers, (0..500).collect::<Vec<_>>());
        let many: Vec<Option<i64>> =
            client.mget((0..50).map(|number| format!("{round}:{number}")).collect::<Vec<_>>()).expect("MGET");
        assert_eq!(many, (0..50).map(Some).collect::<Vec<_>>());

        let both: (i64, i64) = redis::pipe()
            .atomic()
            .incr(key("count"), 1)
            .incr(key("other"), 1)
            .query(&mut client)
            .expect("MULTI");
        assert_eq!(both, (6, 1));
        let refused: RedisResult<()> = client.lpush(key("text"), 1);
        assert_eq!(refused.expect_err("a string is no list").code(), Some("WRONGTYPE"));
        let scanned: usize = client
            .scan_match::<_, String>(format!("{round}:*"))
            .expect("SCAN")
            .filter_map(Result::ok)
            .count();
        assert_eq!(scanned, 500);
    }
}
