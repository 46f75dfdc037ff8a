//! Tests of the refresh of the map: when nodes are asked, over an hour of made-up trouble.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::values::{Random, Timestamp};

fn map() -> Map {
    let mut told: Vec<Told> = ["a", "b", "c", "d", "e"].map(|id| Told::primary(id, 1, [])).to_vec();
    told[0].slots = (0..100).collect();
    told[4].flags = "master,fail";
    let mut cluster = Cluster::default();
    let map = cluster.apply(&[view(&told).expect("a view")]).map.expect("a map");
    Map::clone(&map)
}

fn key(map: &Map, id: &str) -> NodeKey {
    map.nodes().find(|node| node.id.as_str() == id).expect("known").key
}

fn seconds(seconds: f64) -> Timestamp {
    Timestamp::ZERO.after(Duration::from_secs_f64(seconds))
}

/// Creates a schedule of refreshes for a cluster whose first map is known, so that no round is due at once.
fn settled(map: &Map) -> Refresh {
    let mut refresh = Refresh::new(2, Random::new(7));
    let first = refresh.poll_round(&Map::empty(), Timestamp::ZERO).expect("at once");
    assert!(matches!(first, Ask::Seeds(seeds) if seeds.len() == 2));
    refresh.handle_outcome(Outcome::Changed, Timestamp::ZERO);
    assert!(refresh.poll_round(map, seconds(7.9)).is_none());
    refresh
}

#[test]
fn the_first_is_at_once_and_the_next_ever_later() {
    let map = map();
    let mut refresh = settled(&map);
    let mut now = seconds(5.0);
    refresh.handle_reason(Reason::LinkLost(None));
    let mut gaps = Vec::new();
    for _ in 0..6 {
        assert!(matches!(refresh.poll_round(&map, now), Some(Ask::Nodes(_))), "due by now");
        refresh.handle_reason(Reason::LinkLost(None));
        assert_eq!(refresh.poll_deadline(), None, "one at a time");
        refresh.handle_outcome(Outcome::Unchanged, now);
        let next = refresh.poll_deadline().expect("it was asked for");
        assert!(refresh.poll_round(&map, next.before(Duration::from_millis(1))).is_none());
        gaps.push(next.since(now).as_secs_f64());
        now = next;
    }
    for (gap, least) in gaps.iter().zip([1.0, 2.0, 4.0, 8.0, 8.0, 8.0]) {
        assert!((least..=12.0).contains(gap), "{gaps:?}");
    }
    assert!(gaps[0] <= 1.25 && gaps[1] <= 2.5 && gaps[2] <= 5.0, "{gaps:?}");
    // After a change the next round comes early again.
    assert!(refresh.poll_round(&map, now).is_some());
    refresh.handle_outcome(Outcome::Changed, now);
    refresh.handle_reason(Reason::LinkLost(None));
    assert!(refresh.poll_round(&map, now.after(Duration::from_secs(13))).is_some());
    refresh.handle_reason(Reason::LinkLost(None));
    let now = now.after(Duration::from_secs(13));
    refresh.handle_outcome(Outcome::Changed, now);
    assert!(refresh.poll_deadline().expect("asked for").since(now) <= Duration::from_millis(1_250));
}

#[test]
fn whoever_was_named_is_asked_and_nobody_that_is_not_there() {
    let map = map();
    for round in 0..50 {
        let mut refresh = Refresh::new(1, Random::new(round));
        refresh.poll_round(&map, Timestamp::ZERO);
        refresh.handle_outcome(Outcome::Changed, Timestamp::ZERO);
        let gone = NodeKey { generation: 99, ..key(&map, "b") };
        for node in [key(&map, "e"), gone, key(&map, "c")] {
            refresh.handle_reason(Reason::Moved(Some(node)));
        }
        let Some(Ask::Nodes(asked)) = refresh.poll_round(&map, seconds(2.0)) else {
            panic!("nodes are known")
        };
        assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), 3);
        assert!(asked.contains(&key(&map, "c")) && !asked.contains(&gone));
        assert!(!asked.contains(&key(&map, "e")), "named too long ago, and it failed");
    }
}

#[test]
fn whoever_has_to_be_sure_has_all_primaries_asked_but_not_all_the_time() {
    let map = map();
    let mut refresh = settled(&map);
    let mut now = seconds(1.0);
    for _ in 0..5 {
        refresh.handle_reason(Reason::Unsure);
        now = refresh.poll_deadline().expect("soon").max(now);
        let Some(Ask::Nodes(asked)) = refresh.poll_round(&map, now) else { panic!("nodes are known") };
        assert_eq!(asked.len(), 4, "all but the one that has failed and owns nothing");
        assert_eq!(refresh.poll_deadline(), None);
        let ended = now.after(Duration::from_millis(10));
        refresh.handle_outcome(Outcome::Unchanged, ended);
        refresh.handle_reason(Reason::Unsure);
        assert_eq!(refresh.poll_deadline(), Some(ended.after(Duration::from_millis(40))));
        now = ended;
    }
    // A round for another reason is not delayed by that.
    refresh.handle_reason(Reason::LinkLost(None));
    let next = refresh.poll_deadline().expect("soon");
    assert!(refresh.poll_round(&map, next).is_some());
}

#[test]
fn seeds_and_nodes_take_turns_while_nobody_answers() {
    let map = map();
    let mut refresh = settled(&map);
    let mut now = seconds(20.0);
    let mut kinds = Vec::new();
    for _ in 0..4 {
        let asked = refresh.poll_round(&map, now).expect("due");
        kinds.push(matches!(asked, Ask::Seeds(_)));
        refresh.handle_outcome(Outcome::NobodyAnswered, now);
        now = refresh.poll_deadline().expect("again");
    }
    assert_eq!(kinds, [false, true, false, true]);
    refresh.poll_round(&map, now);
    refresh.handle_outcome(Outcome::Unchanged, now);
    assert!(matches!(refresh.poll_round(&map, now.after(Duration::from_secs(12))), Some(Ask::Nodes(_))));
}

proptest! {
    #[test]
    fn never_two_at_once_nor_too_often_nor_never(
        seed in any::<u64>(),
        events in prop::collection::vec((0_u64..4_000, 0..6_u8), 1..200),
    ) {
        let map = map();
        let mut refresh = Refresh::new(3, Random::new(seed));
        let mut now = Timestamp::ZERO;
        let mut under_way = false;
        let (mut wanted, mut wanted_rounds) = (true, Vec::new());
        let mut ended = Timestamp::ZERO;
        for (pause, event) in events {
            now = now.after(Duration::from_millis(pause));
            match event {
                0 | 1 => {
                    refresh.handle_reason(Reason::Moved(None));
                    wanted = true;
                }
                2 | 3 if under_way => {
                    let outcome = if event == 2 { Outcome::Changed } else { Outcome::Unchanged };
                    refresh.handle_outcome(outcome, now);
                    (under_way, ended) = (false, now);
                }
                _ => {}
            }
            let due = refresh.poll_deadline();
            prop_assert_eq!(due.is_none(), under_way);
            prop_assert!(due.is_none_or(|due| due <= ended.after(Duration::from_secs(12)).max(now)));
            if let Some(ask) = refresh.poll_round(&map, now) {
                prop_assert!(!under_way);
                under_way = true;
                let count = match ask { Ask::Nodes(nodes) => nodes.len(), Ask::Seeds(seeds) => seeds.len() };
                prop_assert_eq!(count, 3);
                if std::mem::take(&mut wanted) {
                    wanted_rounds.push(now);
                }
            }
        }
        for rounds in wanted_rounds.windows(2) {
            prop_assert!(rounds[1].since(rounds[0]) >= Duration::from_secs(1));
        }
    }
}

#[test]
fn who_took_over_is_asked_at_once_whatever_was_asked_before() {
    let map = map();
    let mut refresh = settled(&map);
    let mut now = seconds(5.0);
    for _ in 0..4 {
        refresh.handle_reason(Reason::LinkLost(Some(key(&map, "a"))));
        now = refresh.poll_deadline().expect("it was asked for").max(now);
        let Some(Ask::Nodes(asked)) = refresh.poll_round(&map, now) else { panic!("nodes are known") };
        assert!(!asked.contains(&key(&map, "a")), "there are three others, if one of them has failed");
        refresh.handle_outcome(Outcome::Unchanged, now);
    }
    refresh.handle_reason(Reason::LinkLost(Some(key(&map, "a"))));
    assert!(refresh.poll_deadline().expect("in a while") > now.after(Duration::from_secs(1)));
    refresh.handle_reason(Reason::TookOver(key(&map, "d")));
    let Some(Ask::Nodes(asked)) = refresh.poll_round(&map, now) else { panic!("at once") };
    assert!(asked.contains(&key(&map, "d")));
}
