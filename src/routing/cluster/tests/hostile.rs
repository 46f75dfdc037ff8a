//! Tests of reading nodes' views of a cluster from bytes that no Redis would send.

use proptest::prelude::*;

use super::*;
use crate::values::limits::{CLUSTER_NODES_MAX, CLUSTER_REPLY_BYTES_MAX};

const HEALTHY_SLOTS: &[u8] = include_bytes!("../../../../tests/data/cluster/hostnames.slots");
const HEALTHY_NODES: &[u8] = include_bytes!("../../../../tests/data/cluster/importing.nodes");

fn parse(slots: &[u8], nodes: &[u8]) -> Result<View, Unusable> {
    View::parse(&address("asked:1"), slots, nodes)
}

fn nodes(text: &str) -> Result<View, Unusable> {
    parse(b"*0\r\n", format!("${}\r\n{text}\r\n", text.len()).as_bytes())
}

#[test]
fn what_makes_no_sense_is_refused_as_a_whole() {
    let me = "a 1.1.1.1:1@2 myself,master - 0 0 1 connected";
    let wrong = Err(Unusable::Malformed("CLUSTER NODES"));
    for text in [
        "",
        "a",
        "a 1.1.1.1:1@2 master - 0 0 1 connected 5",
        "a 1.1.1.1:1@2 myself,master - 0 0 x connected 5",
        "a 1.1.1.1:1@2 myself,master - 0 0 18446744073709551615 connected 5",
        "a/b 1.1.1.1:1@2 myself,master - 0 0 1 connected 5",
        &format!("{me} 5 5"),
        &format!("{me} 0-10 10-20"),
        &format!("{me} 5-4"),
        &format!("{me} 0-16384"),
        &format!("{me} 0-99999"),
        &format!("{me} -5"),
        &format!("{me} [5->-b"),
        &format!("{me} [5>b]"),
        &format!("{me} [16384->-b]"),
        &format!("{me} [5-<-]"),
        &format!("{me} 5\n{me} 6"),
        &format!("{me} 5\nb 1.1.1.1:1@2 myself,master - 0 0 1 connected"),
        &format!("{me} 5\nb 1.1.1.1:1@2 master - 0 0 1 connected 5"),
        &format!("{} 1.1.1.1:1@2 myself,master - 0 0 1 connected 5", "a".repeat(65)),
    ] {
        assert_eq!(nodes(text), wrong, "{text}");
    }
    assert_eq!(nodes(me), Err(Unusable::KnowsNobody));
    assert!(nodes(&format!("{me} 5")).is_ok(), "a cluster of one");
    let text = format!("{me}\nb 9.9.9.9:1@2 handshake - 0 0 0 disconnected");
    assert_eq!(nodes(&text), Err(Unusable::KnowsNobody));
    // Newer versions write more after the address, and some nodes have no address.
    for (text, wanted) in [
        ("1.1.1.1:1@2,,shard-id=x", vec!["1.1.1.1:1"]),
        ("1.1.1.1:1@2,n.example,shard-id=x", vec!["1.1.1.1:1", "n.example:1"]),
        ("fe80::1:1@2", vec!["fe80::1:1"]),
        (":1@2", vec!["asked:1"]),
        (":0@0", vec![]),
        ("1.1.1.1:1", vec!["1.1.1.1:1"]),
        ("nonsense", vec![]),
    ] {
        let view = nodes(&format!("a {text} myself,master - 0 0 1 connected 5")).expect("a view");
        let wanted: Vec<_> = wanted.into_iter().map(address).collect();
        assert_eq!(view.nodes[0].addresses, wanted, "{text}");
    }
}

#[test]
fn errors_are_told_and_too_much_is_not_looked_at() {
    let refused = parse(b"-LOADING Redis is loading\r\n", HEALTHY_NODES);
    assert_eq!(refused, Err(Unusable::Refused("LOADING Redis is loading".to_owned())));
    let long = format!("-ERR {}\r\n", "x".repeat(9_000));
    assert!(
        matches!(parse(HEALTHY_SLOTS, long.as_bytes()), Err(Unusable::Refused(text)) if text.len() == 128)
    );
    let whole = format!("${CLUSTER_REPLY_BYTES_MAX}\r\n{}\r\n", " ".repeat(CLUSTER_REPLY_BYTES_MAX));
    assert_eq!(parse(HEALTHY_SLOTS, whole.as_bytes()), Err(Unusable::TooLarge));
    let many: Vec<String> =
        (0..=CLUSTER_NODES_MAX).map(|id| format!("{id} h:1@2 master - 0 0 0 connected")).collect();
    assert_eq!(nodes(&many.join("\n")), Err(Unusable::TooLarge));
    for (slots, complaint) in [
        ("+OK\r\n", "CLUSTER SLOTS"),
        ("*1\r\n:1\r\n", "CLUSTER SLOTS"),
        ("*1\r\n*1\r\n:1\r\n", "CLUSTER SLOTS"),
        ("*1\r\n*3\r\n:1\r\n:2\r\n*2\r\n$1\r\nh\r\n:1\r\n", "CLUSTER SLOTS"),
        ("*2\r\n:1\r\n", "no whole reply"),
        ("*0\r\n*0\r\n", "no whole reply"),
        ("", "no whole reply"),
    ] {
        assert_eq!(parse(slots.as_bytes(), HEALTHY_NODES), Err(Unusable::Malformed(complaint)), "{slots}");
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..6),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let (mut slots, mut nodes) = (HEALTHY_SLOTS.to_vec(), HEALTHY_NODES.to_vec());
        for (at, byte, in_slots) in changes {
            let bytes = if in_slots { &mut slots } else { &mut nodes };
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if !whole {
            nodes.truncate(cut.index(nodes.len()));
        }
        if let Ok(view) = parse(&slots, &nodes) {
            let mut cluster = Cluster::default();
            let _ = cluster.apply(&[view.clone(), view]);
        }
    }
}
