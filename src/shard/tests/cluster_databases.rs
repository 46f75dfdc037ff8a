//! Tests of clusters whose nodes have several databases (`cluster-databases` of Valkey 9).

use super::cluster::{MILLISECOND, NODES, ask, clustered, moved, thirds};
use super::*;
use crate::routing::cluster::Databases;

/// Returns a test rig (shards with scripted stores and clients) with one core in front of a cluster whose nodes have
/// four databases, a client that has selected the last of them, and a key of the first node.
fn in_database_3(change: impl Fn(&mut ShardSettings)) -> (Rig, usize, String) {
    let mut rig = clustered(1, change);
    rig.publish_databases(Some(Databases::Numbered(4)));
    let (client, key) = (rig.client(0), rig.key(0, 0));
    rig.send(client, &[&["SELECT", "3"]]);
    assert_eq!(rig.told(client), "+OK\r\n");
    (rig, client, key)
}

impl Rig {
    fn publish_databases(&mut self, databases: Option<Databases>) {
        let view = self.view((NODES, None), |slot| Some(thirds(slot)));
        self.publish_view(view.with_databases(databases));
    }

    /// Returns the unanswered requests at the nodes, each as node number, database and command: `0/2 GET`.
    fn in_databases(&self) -> Vec<String> {
        let database = |sent: &Sent| self.selected.get(&(sent.shard, sent.link)).map_or("0", String::as_str);
        let word = |sent: &Sent| sent.frame.split("\r\n").nth(2).unwrap_or("").to_owned();
        self.at_stores
            .iter()
            .map(|sent| format!("{}/{} {}", sent.backend.0, database(sent), word(sent)))
            .collect()
    }
}

#[test]
fn clients_may_select_the_databases_that_nodes_have() {
    let mut rig = clustered(1, |settings| settings.databases = 8);
    let client = rig.client(0);
    let told_to = |rig: &mut Rig, number: &str| {
        rig.send(client, &[&["SELECT", number]]);
        rig.told(client)
    };
    assert_eq!(told_to(&mut rig, "0"), "+OK\r\n");
    let told = told_to(&mut rig, "1");
    assert!(
        told.starts_with("-UNAVAILABLE backend=10.0.0.0:7000 reason=topology "),
        "nobody knows yet: {told}"
    );
    let (out_of_range, not_here) =
        ("-ERR DB index is out of range\r\n", "-ERR SELECT is not allowed in cluster mode\r\n");
    for (databases, expected) in [
        (Databases::OnlyFirst, ["+OK\r\n", not_here, not_here, not_here, not_here]),
        (Databases::Numbered(1), ["+OK\r\n", out_of_range, out_of_range, out_of_range, out_of_range]),
        (Databases::Numbered(4), ["+OK\r\n", "+OK\r\n", "+OK\r\n", out_of_range, out_of_range]),
        // weir itself has fewer databases than the nodes.
        (Databases::Numbered(100), ["+OK\r\n", "+OK\r\n", "+OK\r\n", "+OK\r\n", out_of_range]),
    ] {
        rig.publish_databases(Some(databases));
        let told = ["0", "1", "3", "7", "8"].map(|number| told_to(&mut rig, number));
        assert_eq!(told, expected, "{databases:?}");
    }
    assert_eq!(told_to(&mut rig, "256"), out_of_range);
    assert_eq!(told_to(&mut rig, "-1"), out_of_range);
}

#[test]
fn what_a_node_has_said_of_its_databases_stays_known() {
    let (mut rig, client, _) = in_database_3(|_| {});
    rig.publish(|slot| Some(thirds(slot).max(1)));
    rig.send(client, &[&["SELECT", "2"], &["SELECT", "4"]]);
    assert_eq!(rig.told(client), "+OK\r\n-ERR DB index is out of range\r\n");
}

#[test]
fn a_redirected_request_stays_in_its_database_and_keeps_its_order() {
    let (mut rig, client, key) = in_database_3(|_| {});
    let other = rig.client(0);
    rig.send(client, &[&["APPEND", &key, "1"], &["APPEND", &key, "2"]]);
    rig.send(other, &[&["APPEND", &key, "x"]]);
    assert_eq!(rig.in_databases(), ["0/3 APPEND", "0/3 APPEND", "0/0 APPEND"]);
    rig.answer_next(&moved(&key, 1));
    rig.send(client, &[&["GET", &key]]);
    rig.answer_next(&moved(&key, 1));
    rig.answer_next(&moved(&key, 1));
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.in_databases(), ["1/3 APPEND", "1/3 APPEND", "1/0 APPEND"]);
    for reply in [":1\r\n", ":2\r\n", ":1\r\n"] {
        rig.answer_next(reply);
    }
    assert_eq!(rig.in_databases(), ["1/3 GET"]);
    rig.answer_next("$2\r\n12\r\n");
    assert_eq!(rig.told(client), ":1\r\n:2\r\n$2\r\n12\r\n");
    assert_eq!(rig.told(other), ":1\r\n");
}

#[test]
fn a_node_that_imports_a_slot_is_told_so_on_the_connection_of_the_database() {
    let (mut rig, client, key) = in_database_3(|_| {});
    rig.send(client, &[&["MULTI"], &["SET", &key, "1"], &["EXEC"]]);
    for reply in ["+OK\r\n", &ask(&key, 2), "-EXECABORT because\r\n"] {
        rig.answer_next(reply);
    }
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.in_databases(), ["2/3 ASKING", "2/3 MULTI", "2/3 SET", "2/3 EXEC"]);
    let links: Vec<ConnectionId> = rig.at_stores.iter().map(|sent| sent.link).collect();
    assert!(links.iter().all(|link| *link == links[0]));
    for reply in ["+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"] {
        rig.answer_next(reply);
    }
    assert!(rig.told(client).ends_with("*1\r\n+OK\r\n"));
}

#[test]
fn a_request_for_all_primaries_asks_each_about_the_database() {
    let (mut rig, client, _) = in_database_3(|_| {});
    rig.send(client, &[&["DBSIZE"]]);
    let asked = rig.in_databases();
    assert_eq!(asked, ["0/3 ROLE", "0/3 DBSIZE", "1/3 ROLE", "1/3 DBSIZE", "2/3 ROLE", "2/3 DBSIZE"]);
    while let Some(sent) = rig.at_stores.first() {
        let role = sent.frame.contains("ROLE");
        rig.answer_next(if role { "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n" } else { ":5\r\n" });
    }
    assert_eq!(rig.told(client), ":15\r\n");
}

#[test]
fn a_lost_read_is_sent_once_more_to_its_database() {
    let (mut rig, client, key) = in_database_3(|settings| settings.retries = Mode::On);
    rig.send(client, &[&["GET", &key]]);
    rig.lose("GET");
    rig.wait(5 * MILLISECOND);
    assert_eq!(rig.in_databases(), ["0/3 GET"]);
    rig.answer_next("$1\r\n3\r\n");
    assert_eq!(rig.told(client), "$1\r\n3\r\n");
}

#[test]
fn a_node_that_lacks_the_database_is_not_blamed_for_it() {
    let (mut rig, client, key) = in_database_3(|_| {});
    rig.select_reply = "-ERR DB index is out of range\r\n";
    for _ in 0..20 {
        rig.send(client, &[&["SET", &key, "1"]]);
        let told = rig.told(client);
        assert!(told.contains(" reason=no-database "), "{told}");
    }
    rig.send(client, &[&["SELECT", "0"], &["SET", &key, "1"]]);
    rig.answer_next("+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n+OK\r\n");
}

#[test]
fn connections_to_databases_are_bounded() {
    let mut rig = clustered(1, |settings| {
        settings.databases = 4;
        settings.replicas = Mode::On;
    });
    rig.publish_databases(Some(Databases::Numbered(4)));
    let client = rig.client(0);
    for node in 0..NODES {
        let key = rig.key(0, node);
        for number in ["0", "1", "2", "3", "3", "0"] {
            for protocol in ["2", "3"] {
                rig.send(client, &[&["HELLO", protocol], &["SELECT", number], &["GET", &key]]);
                while let Some(sent) = rig.at_stores.first() {
                    let greets = sent.frame.contains("HELLO");
                    rig.answer_next(if greets { "%1\r\n+proto\r\n:3\r\n" } else { "$1\r\n1\r\n" });
                }
            }
        }
    }
    let backends: Arc<[BackendSettings]> = (0..NODES)
        .map(|index| BackendSettings { name: format!("store{index}"), credentials: None })
        .collect();
    let settings = ShardSettings::new(Topology::new(1, NODES), backends);
    let most = connections_max(&ShardSettings { databases: 4, replicas: Mode::On, ..settings });
    let used = rig.links.keys().map(|(_, link)| link.0 + 1).max().unwrap_or_default();
    assert!(
        used <= most && rig.links.len() == usize::from(NODES) * 2 * 4,
        "{used} of {most}, {:?}",
        rig.links
    );
}
