//! The text of `INFO`: the fields that clients look for, those of the stores, and weir's own sections.

use std::fmt::Write as _;

use super::bulkhead_series::bulkhead_lines;
use super::hot_series::hot_lines;
use super::store_info::human;
use super::{ProcessFacts, StoreInfo, StoreSection, Totals};
use crate::shard::{COUNTERS, Counter, StoreView};

/// The sections of `INFO` in the order in which they are shown, as names and titles. Each is shown once,
/// however often a client names it. A title has letters and digits only: lua-redis takes no other line for one.
const SECTIONS: [(&str, &str); 15] = [
    ("server", "Server"),
    ("clients", "Clients"),
    ("memory", "Memory"),
    ("persistence", "Persistence"),
    ("stats", "Stats"),
    ("replication", "Replication"),
    ("cpu", "CPU"),
    ("modules", "Modules"),
    ("commandstats", "Commandstats"),
    ("errorstats", "Errorstats"),
    ("latencystats", "Latencystats"),
    ("cluster", "Cluster"),
    ("keyspace", "Keyspace"),
    ("weir", "Weir"),
    ("weirshards", "Weirshards"),
];

/// Sections of `INFO` that are shown for `all`, `everything` or their own name only.
const ON_REQUEST: [&str; 2] = ["commandstats", "latencystats"];

/// Sections of `INFO` that weir fills by itself, and never with a store's fields. The fields of a store would
/// describe its connections with weir, its replicas, which weir does not show, or its own cluster.
const OWN: [&str; 5] = ["clients", "replication", "cluster", "weir", "weirshards"];

/// Sections of `INFO` that weir shows even if no store has them.
const ALWAYS: [&str; 11] = [
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
    "weirshards",
];

/// Fields of a store's section `server` that are left out, because they would be taken for weir's own.
const STORES_OWN: [&str; 3] = ["executable", "config_file", "availability_zone"];

/// Fields of stores' `INFO` that every client may see, because they are settings and say nothing about
/// anybody's requests.
const SETTINGS: [&str; 3] = ["maxmemory_policy", "loading", "async_loading"];

/// The `INFO` replies of the stores that were asked because a client sent `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoresTold {
    /// The number of stores that were asked for their `INFO`.
    pub asked: usize,
    /// The number of stores that replied to `INFO` in time.
    pub answered: usize,
    /// The stores' `INFO` replies, joined into one; None unless all stores replied.
    pub info: Option<StoreInfo>,
}

/// True if the named sections of `INFO` (or all, if none is named) have fields that only stores can fill, so
/// that stores must be asked.
pub fn info_needs_stores(sections: &[String]) -> bool {
    let is_own = |name: &String| OWN.contains(&name.as_str());
    sections.is_empty() || !sections.iter().all(is_own)
}

/// True if some of the named sections are not among those that `INFO` shows by default, so that stores must
/// be asked for all their sections.
pub fn info_needs_everything(sections: &[String]) -> bool {
    let is_default = |name: &String| {
        name == "default"
            || SECTIONS.iter().any(|(section, _)| section == name) && !ON_REQUEST.contains(&name.as_str())
    };
    !sections.iter().all(is_default)
}

/// Returns the text of the named sections of `INFO`, or of the default ones if none is named. `stores` has
/// the stores' own `INFO`, of whose fields the text contains those that `view` permits.
pub fn info(
    sections: &[String],
    view: StoreView,
    facts: &ProcessFacts,
    totals: &Totals,
    stores: &StoresTold,
) -> String {
    let names = |wanted: &str| sections.iter().any(|name| name == wanted);
    let all = names("all") || names("everything");
    let by_default = all || sections.is_empty() || names("default");
    let mut out = String::new();
    for (name, title) in SECTIONS {
        if !names(name) && !all && (!by_default || ON_REQUEST.contains(&name)) {
            continue;
        }
        let section = stores.info.as_ref().and_then(|info| info.section(name));
        let theirs = section.map(|section| permitted(name, section, view)).unwrap_or_default();
        let is_stores = section.is_some() && view == StoreView::All;
        if theirs.is_empty() && !is_stores && !ALWAYS.contains(&name) {
            continue;
        }
        let own = own_fields(name, view, facts, totals, stores);
        let theirs = theirs.into_iter().cloned();
        // For `persistence`, the store's fields come first, since only the store knows whether it loads its
        // data.
        let fields = if name == "persistence" { with(theirs.collect(), own) } else { with(own, theirs) };
        write_section(&mut out, title, &fields);
    }
    let others = stores.info.iter().flat_map(StoreInfo::sections).filter(|_| view == StoreView::All);
    for section in
        others.filter(|section| !SECTIONS.iter().any(|(name, _)| section.title.eq_ignore_ascii_case(name)))
    {
        if names("everything") || names(&section.title.to_lowercase()) {
            write_section(&mut out, &section.title, &section.fields);
        }
    }
    out
}

/// Returns the `INFO` fields (names and values) of `first`, and those of `others` whose names are not among
/// them.
fn with(
    first: Vec<(String, String)>,
    others: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let mut fields = first;
    let count = fields.len();
    for (name, value) in others {
        if !fields[..count].iter().any(|(other, _)| *other == name) {
            fields.push((name, value));
        }
    }
    fields
}

/// Returns the fields of a store's section of `INFO` named `name` that a client with this view may see.
fn permitted<'a>(name: &str, section: &'a StoreSection, view: StoreView) -> Vec<&'a (String, String)> {
    if OWN.contains(&name) {
        return Vec::new();
    }
    let may_see = |field: &str| match view {
        StoreView::All => name != "server" || !STORES_OWN.contains(&field) && !field.starts_with("listener"),
        StoreView::KeyCounts => name == "keyspace" || SETTINGS.contains(&field),
        StoreView::Settings => SETTINGS.contains(&field),
    };
    section.fields.iter().filter(|(field, _)| may_see(field)).collect()
}

fn write_section(out: &mut String, title: &str, fields: &[(String, String)]) {
    // Writing to a string does not fail.
    let _ = write!(out, "{}# {title}\r\n", if out.is_empty() { "" } else { "\r\n" });
    for (name, value) in fields {
        let _ = write!(out, "{name}:{value}\r\n");
    }
}

/// Returns weir's own fields (names and values) of a section of `INFO`; empty if weir has none for that
/// section.
fn own_fields(
    section: &str,
    view: StoreView,
    facts: &ProcessFacts,
    totals: &Totals,
    stores: &StoresTold,
) -> Vec<(String, String)> {
    let sum = totals.sum();
    let mut fields = Vec::new();
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        fields.push((name.to_owned(), value.to_string()));
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
            line("blocked_clients", &(sum.private_links.blocked + sum.paused_clients));
            line("tracking_clients", &sum.tracking_clients);
            line("pubsub_clients", &sum.subscribers);
            line("watching_clients", &sum.private_links.watching);
        }
        // An administrator sees the memory of the stores, which is absent rather than weir's while they do not tell it.
        "memory" if view != StoreView::All => {
            line("used_memory", &facts.resident_bytes);
            line("used_memory_human", &human(facts.resident_bytes));
            line("used_memory_rss", &facts.resident_bytes);
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
        "cluster" => line("cluster_enabled", &0),
        "weir" => {
            line("shards", &totals.shards.len());
            line("resident_bytes", &facts.resident_bytes);
            line("info_stores_asked", &stores.asked);
            line("info_stores_answered", &stores.answered);
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
        "weirshards" => {
            for (index, report) in totals.shards.iter().enumerate() {
                let requests = report.counters.get(Counter::Requests);
                line(
                    &format!("shard{index}"),
                    &format!("clients={},requests={requests}", report.clients_open),
                );
            }
        }
        _ => {}
    }
    fields
}

/// Returns the name of an `INFO` field for a metric: `name` without the prefix `weir_`, and with the value of
/// the metric's label (such as `reason="full"`) appended.
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

    fn own(sections: &[&str]) -> String {
        shown(sections, StoreView::All, &StoresTold::default())
    }

    fn shown(sections: &[&str], view: StoreView, stores: &StoresTold) -> String {
        let sections: Vec<String> = sections.iter().map(|name| (*name).to_owned()).collect();
        info(&sections, view, &ProcessFacts::default(), &Totals::default(), stores)
    }

    fn told() -> StoresTold {
        let text = "# Server\r\nredis_version:1.0.0\r\nconfig_file:/etc/store\r\nhz:10\r\n\r\n\
            # Clients\r\nconnected_clients:9\r\nmaxclients:1\r\ntotal_blocking_keys:3\r\n\r\n\
            # Memory\r\nused_memory:77\r\nmaxmemory_policy:allkeys-lru\r\n\r\n\
            # Persistence\r\nloading:1\r\nrdb_changes_since_last_save:4\r\n\r\n\
            # Stats\r\ntotal_commands_processed:999\r\nexpired_keys:2\r\n\r\n\
            # Replication\r\nrole:slave\r\nmaster_host:10.0.0.1\r\n\r\n\
            # CPU\r\nused_cpu_sys:1.5\r\n\r\n# Modules\r\nmodule:name=a\r\nmodule:name=b\r\n\r\n\
            # Commandstats\r\ncmdstat_get:calls=2\r\n\r\n# Errorstats\r\nerrorstat_ERR:count=1\r\n\r\n\
            # Latencystats\r\n\r\n# Cluster\r\ncluster_enabled:1\r\n\r\n\
            # Keyspace\r\ndb0:keys=3\r\n\r\n# a_things\r\na_count:5\r\n";
        StoresTold { asked: 1, answered: 1, info: StoreInfo::parse(text.as_bytes()) }
    }

    #[test]
    fn what_ready_checks_read_is_there() {
        let text = own(&[]);
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
        assert_eq!(own(&["replication"]), "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
    }

    #[test]
    fn a_section_named_twice_is_shown_once_and_in_its_place() {
        let two = "# Modules\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n";
        assert_eq!(own(&["cluster", "modules", "cluster", "none"]), two);
        for name in ["default", "all", "everything"] {
            assert_eq!(own(&[name, "cluster", name]), own(&[]), "{name}");
        }
        assert_eq!(own(&["none"]), "");
    }

    #[test]
    fn the_fields_of_stores_stand_behind_weirs_own() {
        let shown = |sections: &[&str]| shown(sections, StoreView::All, &told());
        let server = shown(&["server"]);
        assert!(
            server.starts_with("# Server\r\nredis_version:7.2.4\r\n") && server.ends_with("\r\nhz:10\r\n"),
            "{server}"
        );
        assert!(!server.contains("config_file"), "{server}");
        assert_eq!(shown(&["memory"]), "# Memory\r\nused_memory:77\r\nmaxmemory_policy:allkeys-lru\r\n");
        assert_eq!(
            shown(&["persistence"]),
            "# Persistence\r\nloading:1\r\nrdb_changes_since_last_save:4\r\nasync_loading:0\r\n"
        );
        let stats = shown(&["stats"]);
        assert!(
            stats.contains("total_commands_processed:0\r\n") && stats.ends_with("expired_keys:2\r\n"),
            "{stats}"
        );
        assert_eq!(shown(&["modules"]), "# Modules\r\nmodule:name=a\r\nmodule:name=b\r\n");
        assert_eq!(shown(&["commandstats"]), "# Commandstats\r\ncmdstat_get:calls=2\r\n");
        assert_eq!(
            shown(&["cpu", "keyspace"]),
            "# CPU\r\nused_cpu_sys:1.5\r\n\r\n# Keyspace\r\ndb0:keys=3\r\n"
        );
        assert_eq!(shown(&["latencystats"]), "# Latencystats\r\n", "the store has the title alone");
        assert_eq!(shown(&["a_things"]), "# a_things\r\na_count:5\r\n");
        assert!(!shown(&["clients"]).contains("total_blocking_keys"));
        assert_eq!(shown(&["replication", "cluster"]), own(&["replication", "cluster"]));
    }

    #[test]
    fn sections_on_request_are_not_among_the_default_ones() {
        let shown = |sections: &[&str]| shown(sections, StoreView::All, &told());
        for (sections, has_commands, has_modules_own) in [
            (&[][..], false, false),
            (&["default"], false, false),
            (&["all"], true, false),
            (&["everything"], true, true),
        ] {
            let text = shown(sections);
            assert_eq!(text.contains("# Commandstats\r\n"), has_commands, "{text}");
            assert_eq!(text.contains("# a_things\r\n"), has_modules_own, "{text}");
            assert!(text.contains("# Errorstats\r\nerrorstat_ERR:count=1\r\n"), "{text}");
        }
    }

    #[test]
    fn tenants_see_settings_and_nothing_of_the_traffic_of_others() {
        for (view, keys) in [(StoreView::Settings, ""), (StoreView::KeyCounts, "db0:keys=3\r\n")] {
            let text = shown(&["everything"], view, &told());
            assert!(
                text.contains("maxmemory_policy:allkeys-lru\r\n") && text.contains("\nloading:1\r\n"),
                "{text}"
            );
            assert!(text.contains("used_memory:0\r\n"), "{text}");
            assert!(text.contains(&format!("# Keyspace\r\n{keys}\r\n# Weir\r\n")), "{text}");
            for absent in [
                "used_memory:77",
                "cmdstat",
                "errorstat",
                "expired_keys",
                "CPU",
                "a_things",
                "hz:",
                "module:",
            ] {
                assert!(!text.contains(absent), "{absent} in {text}");
            }
        }
    }

    #[test]
    fn stores_are_asked_only_for_what_weir_does_not_know() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (sections, needs_stores, needs_everything) in [
            (&[][..], true, false),
            (&["clients", "replication"], false, false),
            (&["clients", "memory"], true, false),
            (&["default"], true, false),
            (&["all"], true, true),
            (&["commandstats"], true, true),
            (&["a_things"], true, true),
        ] {
            let sections = names(sections);
            assert_eq!(info_needs_stores(&sections), needs_stores, "{sections:?}");
            assert_eq!(info_needs_everything(&sections), needs_everything, "{sections:?}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_stores() {
        let store_version = crate::values::StoreVersion::parse(b"7.0.15").expect("a version");
        let facts = ProcessFacts { store_version, ..ProcessFacts::default() };
        let sections = ["server".to_owned()];
        let text = info(&sections, StoreView::All, &facts, &Totals::default(), &StoresTold::default());
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
