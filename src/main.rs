//! The server.
use std::time::Duration;
use weir::config::Quotas;
use weir::runtime::*;
use weir::shard::BackendSettings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let a: Vec<String> = std::env::args().collect();
    let get = |n: &str| a.iter().position(|x| x == n).map(|i| a[i + 1].clone());
    let listen = get("--listen").unwrap_or("127.0.0.1:7379".into()).parse().unwrap();
    let shards: usize = get("--shards").unwrap_or("2".into()).parse().unwrap();
    let storage = get("--storage").unwrap_or("embedded".into());
    let backends = if storage == "embedded" {
        vec![(
            BackendAddress::Embedded { bytes_max: 1 << 28 },
            BackendSettings { name: "embedded".into(), credentials: None },
        )]
    } else {
        storage
            .trim_start_matches("redis://")
            .split(',')
            .map(|s| {
                (
                    BackendAddress::Tcp(s.parse().unwrap()),
                    BackendSettings { name: s.into(), credentials: None },
                )
            })
            .collect()
    };
    let setup = Setup {
        listen: vec![listen],
        unix: vec![],
        admin: get("--admin").map(|x| x.parse().unwrap()),
        cpus: (0..shards).map(|i| (shards <= 2).then_some(i)).collect(),
        busy_poll: Duration::from_micros(get("--busy-poll-us").unwrap_or("0".into()).parse().unwrap()),
        backends,
        quotas_file: None,
        quotas: Quotas::trusting(),
        clients_max: 10000,
        drain_timeout: Duration::from_secs(10),
        shard: ShardTemplate {
            links_per_backend: 1,
            request_bytes_max: 16 << 20,
            reply_bytes_max: 64 << 20,
            output_bytes_max: 64 << 20,
            idle_timeout: None,
            send_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(1),
        },
    };
    if let Err(e) = run(setup) {
        eprintln!("weir: {e}");
        std::process::exit(1)
    }
}
