//! Tests of the failover probe: which replicas it watches, and for how long.

use std::time::Duration;

use super::super::failover_probe::{Said, Watch, to_watch};
use super::*;
use crate::values::Timestamp;

fn map() -> Map {
    let mut told = vec![Told::primary("p", 1, 0..100), Told::primary("q", 2, 100..200)];
    told.extend((0..20).map(|number| Told::replica(&format!("p{number:02}"), "p", 1)));
    told.push(Told::replica("q0", "q", 2));
    let mut cluster = Cluster::default();
    Map::clone(&cluster.apply(&[view(&told).expect("a view")]).map.expect("a map"))
}

fn key(map: &Map, id: &str) -> NodeKey {
    map.nodes().find(|node| node.id.as_str() == id).expect("known").key
}

fn role(words: &[&str]) -> Vec<u8> {
    let mut reply = format!("*{}\r\n", words.len()).into_bytes();
    words
        .iter()
        .for_each(|word| reply.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes()));
    reply
}

#[test]
fn replicas_of_a_lost_primary_are_looked_at_once_each_and_not_too_many() {
    let map = map();
    let first = to_watch(&map, key(&map, "q"), &[]);
    assert_eq!(first, [key(&map, "q0")]);
    assert_eq!(to_watch(&map, key(&map, "q"), &first), []);
    let more = to_watch(&map, key(&map, "p"), &first);
    assert_eq!(more.len(), 15);
    let all: Vec<NodeKey> = first.into_iter().chain(more).collect();
    assert_eq!(to_watch(&map, key(&map, "p"), &all), []);
    assert_eq!(to_watch(&map, key(&map, "p00"), &[]), [], "who loses a replica has its primary");
    let gone = NodeKey { generation: 99, ..key(&map, "p") };
    assert_eq!(to_watch(&map, gone, &[]), []);
}

#[test]
fn what_a_replica_says_is_understood() {
    let said = |words: &[&str]| Said::parse(&role(words));
    assert_eq!(said(&["master", "3129659", ""]), Some(Said::IsPrimary));
    assert_eq!(said(&["slave", "10.0.0.1", "6379", "connected", "3167038"]), Some(Said::HasPrimary));
    assert_eq!(said(&["slave", "10.0.0.1", "6379", "connecting", "3167038"]), Some(Said::HasNone));
    assert_eq!(said(&["slave"]), None);
    assert_eq!(said(&["sentinel"]), None);
    assert_eq!(Said::parse(b"-NOPERM no\r\n"), None);
    assert_eq!(Said::parse(b"*0\r\n"), None);
    assert_eq!(Said::parse(b""), None);
}

#[test]
fn a_replica_is_looked_at_until_it_takes_over_or_has_nothing_to_take() {
    let until_over = |said: Option<Said>| {
        let mut watch = Watch::new(Timestamp::ZERO);
        let mut now = Timestamp::ZERO;
        while let Some(pause) = watch.handle(said, now) {
            now = now.after(pause);
            assert!(pause <= Duration::from_millis(50));
        }
        now.since(Timestamp::ZERO).as_secs()
    };
    assert_eq!(until_over(Some(Said::IsPrimary)), 0);
    assert_eq!(until_over(Some(Said::HasPrimary)), 30);
    assert_eq!(until_over(None), 30);
    assert_eq!(until_over(Some(Said::HasNone)), 60);
}
