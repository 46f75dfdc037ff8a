//! The text of `INFO`: the fields that clients look for, and weir's own sections.

use std::fmt::Write as _;

use super::bulkhead_series::bulkhead_lines;
use super::hot_series::hot_lines;
use super::{ProcessFacts, Totals};
use crate::shard::{COUNTERS, Counter};

/// The sections in the order they are shown. Each is shown once, however often it is named.
const SECTIONS: [&str; 11] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "modules",
    "cluster",
    "keyspace",
    "weir",
    "weir_shards",
];

/// The text of the named sections, or of all if none is named.
pub fn info(sections: &[String], facts: &ProcessFacts, totals: &Totals) -> String {
    let everything = sections.is_empty()
        || sections.iter().any(|name| matches!(name.as_str(), "default" | "all" | "everything"));
    let mut out = String::new();
    for section in SECTIONS {
        if everything || sections.iter().any(|name| name == section) {
            if !out.is_empty() {
                out.push_str("\r\n");
            }
            write_section(&mut out, section, facts, totals);
        }
    }
    out
}

fn write_section(out: &mut String, section: &str, facts: &ProcessFacts, totals: &Totals) {
    let sum = totals.sum();
    let mut title = section.to_owned();
    title[..1].make_ascii_uppercase();
    // Writing to a string does not fail.
    let _ = write!(out, "# {title}\r\n");
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        let _ = write!(out, "{name}:{value}\r\n");
    };
    match section {
        "server" => {
            line("redis_version", &facts.store_version);
            line("weir_version", &env!("CARGO_PKG_VERSION"));
            line("redis_mode", &"standalone");
            line("os", &std::env::consts::OS);
            line("arch_bits", &usize::BITS);
            line("multiplexing_api", &"io_uring");
            line("process_id", &facts.pid);
            line("run_id", &facts.run_id);
            line("tcp_port", &facts.port);
            line("uptime_in_seconds", &facts.uptime.as_secs());
            line("uptime_in_days", &(facts.uptime.as_secs() / 86_400));
        }
        "clients" => {
            line("connected_clients", &sum.clients_open);
            line("maxclients", &facts.clients_max);
            if let Some(tls) = &facts.tls {
                line("tls_clients", &tls.open);
            }
            line("cluster_connections", &0);
            line("blocked_clients", &sum.private_links.waiting);
            line("tracking_clients", &sum.tracking_clients);
            line("pubsub_clients", &sum.subscribers);
            line("watching_clients", &sum.private_links.watching);
        }
        "memory" => {
            line("used_memory", &facts.resident_bytes);
            line("used_memory_human", &human(facts.resident_bytes));
            line("used_memory_rss", &facts.resident_bytes);
            // The eviction policy is known for the embedded store only.
            if totals.engine.is_some() {
                line("maxmemory_policy", &"noeviction");
            }
        }
        "persistence" => {
            line("loading", &0);
            line("async_loading", &0);
        }
        "stats" => {
            line("total_connections_received", &sum.counters.get(Counter::ClientsOpened));
            line("rejected_connections", &sum.counters.get(Counter::ClientsRefused));
            line("total_commands_processed", &sum.counters.get(Counter::Requests));
            line("total_net_input_bytes", &sum.counters.get(Counter::ClientBytesReceived));
        }
        "replication" => {
            line("role", &"master");
            line("connected_slaves", &0);
        }
        // There are no modules; Redis too shows only the title then.
        "modules" => {}
        "cluster" => line("cluster_enabled", &0),
        "keyspace" => {
            let databases = totals.engine.iter().flat_map(|engine| engine.databases).enumerate();
            for (number, (keys, volatile)) in databases.filter(|(_, (keys, _))| *keys > 0) {
                line(&format!("db{number}"), &format!("keys={keys},expires={volatile},avg_ttl=0"));
            }
        }
        "weir" => {
            line("shards", &totals.shards.len());
            line("draining", &u8::from(facts.draining));
            line("tenants", &facts.quotas.tenants);
            line("quotas_version", &facts.quotas.version);
            line("quotas_loaded", &facts.quotas.taken_in_all());
            line("quotas_refused", &facts.quotas.refused_in_all());
            let backends = facts.backends.iter().filter(|name| !name.is_empty());
            line("backends", &backends.map(String::as_str).collect::<Vec<_>>().join(","));
            line("backend_connections", &sum.links_open);
            line("backend_replies_owed", &sum.replies_owed);
            for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
                let micros = sum.service_times.quantile(share).as_micros();
                line(&format!("backend_reply_us_{name}"), &micros);
            }
            for (name, text) in bulkhead_lines(&facts.backends, totals) {
                line(&name, &text);
            }
            for (name, sum) in hot_lines(totals) {
                line(name, &sum);
            }
            for (counter, name, label, _) in COUNTERS {
                line(&short_name(name, label), &sum.counters.get(counter));
            }
        }
        _ => {
            for (index, report) in totals.shards.iter().enumerate() {
                let requests = report.counters.get(Counter::Requests);
                line(
                    &format!("shard{index}"),
                    &format!("clients={},requests={requests}", report.clients_open),
                );
            }
        }
    }
}

/// A number of bytes in the form that Redis shows to people: `1.50M`.
fn human(bytes: u64) -> String {
    const UNITS: [(u64, char); 4] = [(1 << 40, 'T'), (1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, letter)) => format!("{:.2}{letter}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

/// The name of an `INFO` field for a metric: without the prefix `weir_`, and with the label's value appended.
fn short_name(name: &str, label: &str) -> String {
    let short = name.trim_start_matches("weir_");
    match label.split('"').nth(1) {
        Some(value) => format!("{short}_{value}"),
        None => short.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ready_checks_read_is_there() {
        let text = info(&[], &ProcessFacts::default(), &Totals::default());
        for field in [
            "redis_version:7.2.4\r\n",
            "redis_mode:standalone\r\n",
            "role:master\r\n",
            "\nloading:0\r\n",
            "arch_bits:",
            "# Modules\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n",
        ] {
            assert!(text.contains(field), "{field}");
        }
        assert!(text.starts_with("# Server\r\n"));
    }

    #[test]
    fn only_the_sections_that_were_named() {
        let text = info(&["replication".to_owned()], &ProcessFacts::default(), &Totals::default());
        assert_eq!(text, "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
    }

    #[test]
    fn a_section_named_twice_is_shown_once_and_in_its_place() {
        let info = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            info(&names, &ProcessFacts::default(), &Totals::default())
        };
        let two = "# Modules\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n";
        assert_eq!(info(&["cluster", "modules", "cluster", "none"]), two);
        for name in ["default", "all", "everything"] {
            assert_eq!(info(&[name, "cluster", name]), info(&[]), "{name}");
        }
        assert_eq!(info(&["none"]), "");
    }

    #[test]
    fn the_version_is_that_of_the_stores() {
        let store_version = crate::values::StoreVersion::parse(b"7.0.15").expect("a version");
        let facts = ProcessFacts { store_version, ..ProcessFacts::default() };
        let text = info(&["server".to_owned()], &facts, &Totals::default());
        assert!(text.contains("redis_version:7.0.15\r\n"), "{text}");
    }

    #[test]
    fn bytes_for_people() {
        for (bytes, shown) in
            [(0, "0B"), (1023, "1023B"), (1536, "1.50K"), (3 << 20, "3.00M"), (5 << 40, "5.00T")]
        {
            assert_eq!(human(bytes), shown);
        }
    }
}
