//! Tests of clusters with replicas, and of tenants whose reads replicas may answer.

use std::collections::BTreeSet;

use super::*;
use crate::policy::window::Bounds;
use crate::routing::cluster::{Databases, Map, ReplicaState, View};
use crate::values::limits::SLOTS;
use crate::values::{Random, ServerAddress};

const MILLISECOND: Duration = Duration::from_millis(1);
/// The number of primaries, each of which has one replica.
const PRIMARIES: u16 = 3;
const QUOTAS: &str = "[default]\nstale_reads = true\nadmin = true\n[tenants.fresh]\npassword = 'f'\n";

fn owner_of(slot: u16) -> u16 {
    (u32::from(slot) * u32::from(PRIMARIES) / u32::from(SLOTS)) as u16
}

/// Returns a key whose slot belongs to the given primary.
fn key_of(primary: u16) -> String {
    let lives_there = |key: &String| owner_of(slot_of(key.as_bytes())) == primary;
    (0..1_000).map(|number| format!("key{number}")).find(lives_there).expect("some key does")
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

/// Returns a map of the cluster with one replica per primary. `own` is appended to the first primary's line
/// of `CLUSTER NODES`, such as the slots that it is moving.
fn map_with(rig: &mut Rig, own: &str) -> Arc<Map> {
    let newer = (rig.cluster.map().version() + 1) * 10;
    let (mut nodes, mut slots) = (Vec::new(), vec![format!("*{PRIMARIES}\r\n")]);
    for primary in 0..PRIMARIES {
        let owned: Vec<u16> = (0..SLOTS).filter(|slot| owner_of(*slot) == primary).collect();
        let (first, last) = (owned[0], owned[owned.len() - 1]);
        let (myself, more) = if primary == 0 { ("myself,", own) } else { ("", "") };
        let (epoch, replica) = (newer + u64::from(primary), primary + PRIMARIES);
        nodes.push(format!(
            "{primary:040} 10.0.0.{primary}:7000@1 {myself}master - 0 0 {epoch} connected {first}-{last}{more}\n"
        ));
        nodes.push(format!(
            "{replica:040} 10.0.0.{replica}:7000@1 slave {primary:040} 0 0 {epoch} connected\n"
        ));
        slots.push(format!("*4\r\n:{first}\r\n:{last}\r\n"));
        for node in [primary, replica] {
            let (host, id) = (bulk(&format!("10.0.0.{node}")), bulk(&format!("{node:040}")));
            slots.push(format!("*3\r\n{host}:7000\r\n{id}"));
        }
    }
    let (nodes, slots) = (bulk(&nodes.concat()), slots.concat());
    let asked = ServerAddress { host: "10.0.0.0".to_owned(), port: 7000 };
    let view = View::parse(&asked, slots.as_bytes(), nodes.as_bytes()).expect("a view");
    rig.cluster.apply(&[view.with_databases(Some(Databases::Numbered(4)))]);
    Arc::clone(rig.cluster.map())
}

/// Returns a test rig (shards with scripted stores and clients) with this many cores in front of a cluster whose
/// replicas are up to date.
fn before_replicas(shards: u16) -> Rig {
    before_replicas_with(shards, |_| {})
}

fn before_replicas_with(shards: u16, change: impl Fn(&mut ShardSettings)) -> Rig {
    let mut rig = Rig::with(shards, 2 * PRIMARIES, |settings| {
        settings.hot.mode = Mode::Off;
        settings.replicas = Mode::On;
        change(settings);
    });
    rig.publish_replicas("");
    for shard in &mut rig.shards {
        shard.handle_quotas(quotas(QUOTAS), rig.now);
    }
    rig.tell_of_replicas(true);
    rig
}

impl Rig {
    fn publish_replicas(&mut self, own: &str) {
        let map = map_with(self, own);
        assert_eq!(map.node(BackendId(0)).map(|node| node.replicas.clone()), Some(vec![BackendId(3)]));
        self.shards.iter_mut().for_each(|shard| shard.handle_slots(Arc::clone(&map), self.now));
        self.turns();
    }

    /// Reports to all cores that all replicas have their primaries' writes up to now (`are_fresh`), or that
    /// this is unknown, so that replicas answer no reads.
    fn tell_of_replicas(&mut self, are_fresh: bool) {
        let map = Arc::clone(self.cluster.map());
        let key = |at| map.node(BackendId(at)).expect("it is there").key;
        let state = |primary: u16| ReplicaState {
            node: key(primary + PRIMARIES),
            primary: key(primary),
            as_of: are_fresh.then_some(self.now.monotonic),
            behind_bytes: None,
            heard_seconds: None,
            unfit: None,
        };
        let states: Vec<ReplicaState> = (0..PRIMARIES).map(state).collect();
        self.shards.iter_mut().for_each(|shard| shard.handle_replicas(&states));
    }

    /// Returns a client, and a key of the first primary whose next reads are sent to the replica, because the
    /// primary's last reply was slow.
    fn reader(&mut self) -> (usize, String) {
        let client = self.client(0);
        let key = key_of(0);
        // The first read goes to the primary; its slow reply makes the replica the better choice.
        self.send(client, &[&["GET", &key]]);
        assert_eq!(self.nodes_asked(), [0]);
        self.wait(20 * MILLISECOND);
        self.answer_next("$1\r\n0\r\n");
        self.told(client);
        self.tell_of_replicas(true);
        // A new replica counts as twice as slow as its primary, and the average of a node without reads
        // decays.
        (client, key)
    }

    fn nodes_asked(&self) -> Vec<u16> {
        self.at_stores.iter().map(|sent| sent.backend.0).collect()
    }

    /// Sends reads of a key until one of them is sent to the first primary's replica; at most four.
    fn read_from_replica(&mut self, client: usize, key: &str) {
        for _ in 0..4 {
            self.send(client, &[&["GET", key]]);
            if self.nodes_asked().contains(&PRIMARIES) {
                break;
            }
        }
        assert_eq!(
            self.nodes_asked().last(),
            Some(&PRIMARIES),
            "what is in flight at the primary speaks for the replica"
        );
        while self.nodes_asked()[0] != PRIMARIES {
            self.answer_next("$1\r\n0\r\n");
        }
        self.told(client);
        assert_eq!(self.nodes_asked(), [PRIMARIES]);
    }
}

#[test]
fn a_replica_answers_whom_that_is_good_enough_for() {
    let mut rig = before_replicas(1);
    let (client, key) = rig.reader();
    rig.read_from_replica(client, &key);
    rig.answer_next("$1\r\n7\r\n");
    assert_eq!(rig.told(client), "$1\r\n7\r\n");
    assert_eq!(rig.shards[0].reader_figures()[3].answered, 1);
    // Replicas get no reads of other tenants.
    let other = rig.client(0);
    rig.send(other, &[&["AUTH", "fresh", "f"]]);
    for _ in 0..20 {
        rig.send(other, &[&["GET", &key], &["MGET", &key, "b"]]);
    }
    assert!(rig.nodes_asked().iter().all(|node| *node < PRIMARIES), "{:?}", rig.nodes_asked());
    // A request that is no plain read goes to the primary.
    while !rig.at_stores.is_empty() {
        rig.answer_next(if rig.at_stores[0].frame.contains("MGET") {
            "*1\r\n$1\r\n7\r\n"
        } else {
            "$1\r\n7\r\n"
        });
    }
    for request in [
        &["SET", &key, "1"][..],
        &["SINTER", &key, &key],
        &["EVAL_RO", "x", "1", &key],
        &["PFCOUNT", &key],
        &["HSCAN", &key, "0"],
        &["DBSIZE"],
        &["SCAN", "0"],
        &["KEYS", "*"],
        &["RANDOMKEY"],
        &["EXISTS", &key, &key],
        &["GETEX", &key],
        &["TOUCH", &key],
        &["OBJECT", "FREQ", &key],
        &["MEMORY", "USAGE", &key],
    ] {
        for _ in 0..8 {
            let another = rig.client(0);
            rig.send(another, &[request]);
        }
        assert!(
            rig.nodes_asked().iter().all(|node| *node < PRIMARIES),
            "{request:?}: {:?}",
            rig.nodes_asked()
        );
        while !rig.at_stores.is_empty() {
            rig.answer_next(":1\r\n");
        }
    }
    let another = rig.client(0);
    for _ in 0..8 {
        rig.send(another, &[&["MULTI"], &["GET", &key], &["EXEC"]]);
    }
    assert!(rig.nodes_asked().iter().all(|node| *node < PRIMARIES));
}

#[test]
fn what_a_replica_does_not_have_the_primary_is_asked_for() {
    for (request, empty, answer) in [
        ("GET", "$-1\r\n", "$1\r\n7\r\n"),
        ("STRLEN", ":0\r\n", ":5\r\n"),
        ("TTL", ":-2\r\n", ":9\r\n"),
        ("MGET", "*1\r\n$-1\r\n", "*1\r\n$-1\r\n"),
        ("GET", "-MOVED 1 10.0.0.9:1\r\n", "$1\r\n7\r\n"),
        ("GET", "-LOADING x\r\n", "$1\r\n7\r\n"),
        ("GET", "-MASTERDOWN x\r\n", "$-1\r\n"),
        ("GET", "-CLUSTERDOWN x\r\n", "-CLUSTERDOWN x\r\n"),
        ("TYPE", "+none\r\n", "+none\r\n"),
    ] {
        let mut rig = before_replicas(1);
        let (client, key) = rig.reader();
        rig.read_from_replica(client, &key);
        rig.answer_next("$1\r\n7\r\n");
        rig.told(client);
        for _ in 0..8 {
            rig.send(client, &[&[request, &key]]);
        }
        let at = rig.at_stores.iter().position(|sent| sent.backend.0 == PRIMARIES).expect("one is there");
        let sent = rig.at_stores.remove(at);
        rig.bytes(&sent, empty.as_bytes());
        assert!(rig.frames(request).iter().all(|sent| !sent.frame.contains("READONLY")));
        let mut answered = 0;
        // A request that the primary refuses with the same error is tried again until its time is over.
        for _ in 0..1_100 {
            while !rig.at_stores.is_empty() {
                let node = rig.at_stores[0].backend.0;
                rig.answer_next(if node == 0 { answer } else { empty });
                answered += 1;
                assert!(answered < 60);
            }
            rig.wait(MILLISECOND);
        }
        assert_eq!(rig.told(client), answer.repeat(8), "{request} {empty}");
    }
}

#[test]
fn a_replica_that_is_lost_or_silent_costs_nobody_an_answer() {
    for silent in [false, true] {
        let mut rig = before_replicas(1);
        let (client, key) = rig.reader();
        rig.read_from_replica(client, &key);
        rig.connecting = Connecting::Hangs;
        if silent {
            rig.tell_of_replicas(true);
            rig.wait(150 * MILLISECOND);
        } else {
            rig.lose(&key);
        }
        assert_eq!(rig.nodes_asked(), [0], "silent: {silent}");
        rig.answer_next("$1\r\n7\r\n");
        assert_eq!(rig.told(client), "$1\r\n7\r\n");
        assert_eq!(rig.shards[0].counters().get(Counter::ReplicaReadsLost), 1);
        // The replica cannot be reached, and no read waits for it.
        for _ in 0..20 {
            rig.send(client, &[&["GET", &key]]);
            assert_eq!(rig.nodes_asked(), [0]);
            rig.answer_next("$1\r\n7\r\n");
            assert_eq!(rig.told(client), "$1\r\n7\r\n");
        }
    }
}

#[test]
fn with_a_deadline_a_silent_replica_is_given_up_in_time() {
    let mut rig = before_replicas_with(1, |settings| settings.overload.shed = Mode::On);
    let (client, key) = rig.reader();
    rig.send(client, &[&["QOS", "SET", "DEADLINE", "60"]]);
    rig.told(client);
    rig.read_from_replica(client, &key);
    rig.wait(35 * MILLISECOND);
    assert_eq!(rig.nodes_asked(), [0]);
    rig.answer_next("$1\r\n7\r\n");
    assert_eq!(rig.told(client), "$1\r\n7\r\n");
    // The client gets an error at its deadline, whichever node owes the reply.
    rig.read_from_replica(client, &key);
    rig.wait(35 * MILLISECOND);
    rig.wait(40 * MILLISECOND);
    assert!(rig.told(client).starts_with("-DEADLINE "));
}

#[test]
fn own_requests_are_not_overtaken_on_the_way_to_another_node() {
    let mut rig = before_replicas(1);
    let (client, key) = rig.reader();
    let other = rig.client(0);
    rig.read_from_replica(other, &key);
    // A read behind the client's own write goes to the primary, however fast the replica is.
    for _ in 0..5 {
        rig.send(client, &[&["SET", &key, "1"], &["GET", &key]]);
    }
    assert_eq!(rig.nodes_asked()[1..], [0; 10]);
    while rig.at_stores.len() > 1 {
        let reply = if rig.at_stores[1].frame.contains("SET") { "+OK\r\n" } else { "$1\r\n1\r\n" };
        let sent = rig.at_stores.remove(1);
        rig.bytes(&sent, reply.as_bytes());
    }
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n1\r\n".repeat(5));
    // A write behind a read waits until the read is answered.
    rig.send(other, &[&["SET", &key, "2"], &["GET", &key]]);
    assert_eq!(rig.nodes_asked(), [PRIMARIES]);
    rig.answer_next("$1\r\n1\r\n");
    assert_eq!(rig.nodes_asked(), [0, 0]);
    rig.answer_next("+OK\r\n");
    rig.answer_next("$1\r\n2\r\n");
    assert_eq!(rig.told(other), "$1\r\n1\r\n+OK\r\n$1\r\n2\r\n");
}

/// The order of a client's requests holds even when it logs in as another tenant in between; and replicas are
/// chosen where no quotas are in force as well.
#[test]
fn who_is_somebody_else_by_now_is_not_taken_for_who_it_was() {
    for limiter in [Limiter::Off, Limiter::Buckets] {
        let mut rig = before_replicas_with(1, |settings| settings.admission.limiter = limiter.clone());
        let (client, key) = rig.reader();
        rig.read_from_replica(client, &key);
        rig.send(client, &[&["AUTH", "fresh", "f"], &["SET", &key, "1"], &["GET", &key]]);
        assert_eq!(rig.nodes_asked(), [PRIMARIES], "a write waits for the read before it, whoever writes");
        rig.answer_next("$1\r\n0\r\n");
        assert_eq!(rig.nodes_asked(), [0, 0]);
        rig.answer_next("+OK\r\n");
        rig.answer_next("$1\r\n1\r\n");
        assert_eq!(rig.told(client), "$1\r\n0\r\n+OK\r\n+OK\r\n$1\r\n1\r\n");
        for _ in 0..20 {
            rig.send(client, &[&["GET", &key]]);
        }
        assert_eq!(rig.nodes_asked(), [0; 20]);
    }
}

#[test]
fn a_replica_that_may_be_far_behind_is_not_asked() {
    let asked = |rig: &mut Rig, client: usize, key: &str| {
        for _ in 0..8 {
            rig.send(client, &[&["GET", key]]);
        }
        let asked: BTreeSet<u16> = rig.nodes_asked().into_iter().collect();
        while !rig.at_stores.is_empty() {
            rig.answer_next("$1\r\n7\r\n");
        }
        rig.told(client);
        asked.contains(&PRIMARIES)
    };
    let mut rig = before_replicas(1);
    let (client, key) = rig.reader();
    rig.read_from_replica(client, &key);
    rig.answer_next("$1\r\n7\r\n");
    assert!(asked(&mut rig, client, &key));
    rig.wait(Duration::from_millis(2_900));
    assert!(asked(&mut rig, client, &key));
    rig.wait(Duration::from_millis(200));
    assert!(!asked(&mut rig, client, &key), "nobody has told of it for more than three seconds");
    rig.tell_of_replicas(true);
    assert!(asked(&mut rig, client, &key));
    rig.tell_of_replicas(false);
    assert!(!asked(&mut rig, client, &key), "it is known to be behind");
    rig.tell_of_replicas(true);
    // The slot is moving to another primary.
    let slot = slot_of(key.as_bytes());
    rig.publish_replicas(&format!(" [{slot}->-{:040}]", 1));
    assert!(!asked(&mut rig, client, &key));
    let neighbour = (0..1_000)
        .map(|number| format!("n{number}"))
        .find(|name| owner_of(slot_of(name.as_bytes())) == 0 && slot_of(name.as_bytes()) != slot);
    assert!(asked(&mut rig, client, &neighbour.expect("some key is")));
    rig.publish_replicas("");
    assert!(asked(&mut rig, client, &key));
}

#[test]
fn a_replica_that_fails_again_and_again_is_left_alone_and_comes_back() {
    let mut rig = before_replicas(1);
    let (client, key) = rig.reader();
    for _ in 0..5 {
        rig.tell_of_replicas(true);
        rig.read_from_replica(client, &key);
        rig.answer_next("-LOADING x\r\n");
        rig.answer_next("$1\r\n7\r\n");
        rig.told(client);
    }
    let line = rig.shards[0].poll_line().expect("somebody is told");
    assert!(
        line.starts_with("replica 10.0.0.3:7000 gets no reads of core 0 for 5s: 5 failures in a row"),
        "{line}"
    );
    let figures = rig.shards[0].reader_figures()[3];
    assert_eq!((figures.is_out, figures.out), (true, [1, 0]));
    let count = |rig: &mut Rig| {
        let clients: Vec<usize> = (0..200).map(|_| rig.client(0)).collect();
        clients.iter().for_each(|client| rig.send(*client, &[&["GET", &key]]));
        let count = rig.nodes_asked().iter().filter(|node| **node == PRIMARIES).count();
        while !rig.at_stores.is_empty() {
            rig.answer_next("$1\r\n7\r\n");
        }
        count
    };
    assert_eq!(count(&mut rig), 0);
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(5));
    rig.tell_of_replicas(true);
    let first = count(&mut rig);
    assert!((1..60).contains(&first), "{first} of 200");
    assert!(rig.shards[0].poll_line().is_some_and(|line| line.contains("again, few at first")));
    rig.now.monotonic = rig.now.monotonic.after(Duration::from_secs(10));
    rig.tell_of_replicas(true);
    let all = count(&mut rig);
    assert!(all > 60, "{all} of 200");
}

#[test]
fn a_replica_that_closes_an_idle_connection_has_not_failed() {
    let mut rig = before_replicas(1);
    let (client, key) = rig.reader();
    let mut read = None;
    // One failure less than those for which a replica is left alone.
    for _ in 0..4 {
        rig.tell_of_replicas(true);
        rig.read_from_replica(client, &key);
        read = Some(rig.at_stores[0].clone());
        rig.answer_next("-LOADING x\r\n");
        rig.answer_next("$1\r\n7\r\n");
        assert_eq!(rig.told(client), "$1\r\n7\r\n");
    }
    let idle = read.expect("a read was sent to the replica");
    rig.shards[0].handle_link_lost(idle.link, idle.generation, Loss::ByPeer, rig.now);
    assert_eq!(rig.shards[0].counters().get(Counter::LinksLost), 1);
    rig.wait(Duration::from_millis(200));
    assert!(rig.shards[0].reader_figures().iter().all(|figures| !figures.is_out));
}

/// A scripted cluster with replicas: the values of keys, and the nodes' replies to requests. Replicas lag,
/// and refuse now and then.
struct Copies {
    /// For each key, all values that it ever had, in order.
    values: BTreeMap<String, Vec<String>>,
}

impl Copies {
    fn carry_out(&mut self, sent: &Sent, random: &mut Random) -> String {
        let words: Vec<&str> = sent.frame.split("\r\n").collect();
        let values = self.values.entry(words[4].to_owned()).or_default();
        if words[2] == "SET" {
            assert!(sent.backend.0 < PRIMARIES, "a replica is not written to");
            values.push(words[6].to_owned());
            return "+OK\r\n".to_owned();
        }
        assert_eq!(words[2], "GET");
        if sent.backend.0 < PRIMARIES {
            return values.last().map_or_else(|| "$-1\r\n".to_owned(), |value| bulk(value));
        }
        match random.below(16) {
            0 => "$-1\r\n".to_owned(),
            1 => "-LOADING Redis is loading the dataset in memory\r\n".to_owned(),
            2 => format!("-MOVED {} 10.0.0.1:7000\r\n", slot_of(words[4].as_bytes())),
            // The replica may lag behind by any number of writes.
            _ if values.is_empty() => "$-1\r\n".to_owned(),
            _ => bulk(&values[values.len() - 1 - random.index(values.len().min(3))]),
        }
    }
}

/// A request without a reply yet: its key, the value that it writes (`None` for a read), and the oldest and
/// newest value that it may see.
type Owed = (String, Option<u64>, u64, u64);

/// Replicas lag, die, lose their data and refuse. Each request gets one reply without an error, and no read
/// of a client sees less than its earlier requests, or a value that was written after it.
#[test]
fn whatever_replicas_do_requests_are_answered_once_and_in_their_order() {
    let (mut from_replicas, mut sent_on) = (0, 0);
    for seed in 0..24 {
        let random = &mut Random::new(seed);
        let narrow = seed % 2 == 1;
        let mut rig = before_replicas_with(2, |settings| {
            if narrow {
                let window_bounds = Bounds { least: 1, most: 3 };
                settings.overload =
                    OverloadSettings { window_bounds, ..OverloadSettings::new(2, 2 * PRIMARIES) };
            }
        });
        let mut copies = Copies { values: BTreeMap::new() };
        let clients: Vec<usize> = (0..4).map(|at| rig.client(at % 2)).collect();
        // Each client has keys of its own, so that the order of their writes is known.
        let key = |client: usize, number: u64| format!("{{{number}}}c{client}");
        let mut owed: BTreeMap<usize, Vec<Owed>> = BTreeMap::new();
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        let mut told: BTreeMap<usize, String> = BTreeMap::new();
        let (mut asked, mut answered) = (0, 0);
        for step in 0..3_000 {
            let is_over = step > 2_000;
            match random.below(10) {
                0..=2 if !is_over => {
                    let client = *random.pick(&clients);
                    let list = owed.entry(client).or_default();
                    let mut bytes = Vec::new();
                    for _ in 0..random.between(1, 4) {
                        let name = key(client, random.below(3));
                        let newest = written.entry(name.clone()).or_default();
                        if random.below(10) == 0 {
                            *newest += 1;
                            bytes.extend(request(&["SET", &name, &newest.to_string()]));
                            list.push((name, Some(*newest), 0, 0));
                        } else {
                            bytes.extend(request(&["GET", &name]));
                            // The newest write of the client that has no reply yet, if there is one.
                            let under_way =
                                list.iter().rev().find(|(of, write, ..)| *of == name && write.is_some());
                            let least = under_way.and_then(|(_, write, ..)| *write).unwrap_or(0);
                            list.push((name, None, least, *newest));
                        }
                        asked += 1;
                    }
                    rig.raw(client, &bytes);
                }
                3 if !is_over && random.below(6) == 0 => {
                    let at: Vec<Sent> =
                        rig.at_stores.iter().filter(|sent| sent.backend.0 >= PRIMARIES).cloned().collect();
                    if let Some(sent) = at.first() {
                        let (shard, link, generation) = (sent.shard, sent.link, sent.generation);
                        rig.at_stores.retain(|sent| (sent.shard, sent.link) != (shard, link));
                        rig.shards[shard].handle_link_lost(link, generation, Loss::ByPeer, rig.now);
                        rig.turns();
                    }
                }
                4 => {
                    if random.below(5) == 0 || is_over {
                        rig.tell_of_replicas(is_over || random.below(4) > 0);
                    }
                    // No node answers for a while: reads leave replicas, and wait for primaries.
                    rig.wait(MILLISECOND * if random.below(30) == 0 && !narrow { 150 } else { 2 });
                }
                _ if !rig.at_stores.is_empty() => {
                    // Each connection answers in the order of its requests.
                    let at = random.index(rig.at_stores.len());
                    let (shard, link) = (rig.at_stores[at].shard, rig.at_stores[at].link);
                    let first =
                        rig.at_stores.iter().position(|sent| (sent.shard, sent.link) == (shard, link));
                    let sent = rig.at_stores.remove(first.expect("it is there"));
                    let reply = if sent.frame.contains("READONLY") {
                        "+OK\r\n".to_owned()
                    } else {
                        copies.carry_out(&sent, random)
                    };
                    rig.bytes(&sent, reply.as_bytes());
                }
                _ => {}
            }
            for client in &clients {
                let text = told.entry(*client).or_default();
                *text += &rig.told(*client);
                let list = owed.entry(*client).or_default();
                while !list.is_empty() {
                    let reply_length = match text.as_bytes().first() {
                        None => break,
                        Some(b'$') if !text.starts_with("$-1") => {
                            let header = text.find("\r\n").expect("a line") + 2;
                            header + text[header..].find("\r\n").expect("a line") + 2
                        }
                        _ => text.find("\r\n").expect("a line") + 2,
                    };
                    let reply: String = text.drain(..reply_length).collect();
                    let (name, write, least, newest) = list.remove(0);
                    answered += 1;
                    assert!(!reply.starts_with('-'), "seed {seed}: {reply}");
                    if write.is_some() {
                        assert_eq!(reply, "+OK\r\n", "seed {seed}: {name}");
                        continue;
                    }
                    let value = reply.split("\r\n").nth(1).unwrap_or_default().parse().unwrap_or(0);
                    assert!(
                        (least..=newest).contains(&value),
                        "seed {seed}: {name} was {value}, not {least} to {newest}"
                    );
                }
                assert!(!list.is_empty() || text.is_empty(), "seed {seed}: nobody asked for {text}");
            }
        }
        assert_eq!(answered, asked, "seed {seed}: each is answered once");
        for shard in &rig.shards {
            from_replicas += shard.reader_figures().iter().map(|node| node.answered).sum::<u64>();
            let counters =
                [Counter::ReplicaReadsEmpty, Counter::ReplicaReadsRefused, Counter::ReplicaReadsLost];
            sent_on += counters.map(|counter| shard.counters().get(counter)).iter().sum::<u64>();
        }
    }
    assert!(from_replicas > 50 && sent_on > 100, "{from_replicas} answered, {sent_on} sent on");
}

#[test]
fn replicas_are_read_from_in_the_database_of_the_client() {
    let mut rig = before_replicas(1);
    let (client, key) = (rig.client(0), key_of(0));
    rig.send(client, &[&["SELECT", "3"], &["GET", &key]]);
    assert_eq!(rig.nodes_asked(), [0]);
    rig.wait(20 * MILLISECOND);
    rig.answer_next("$1\r\n0\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\n0\r\n");
    let is_in_database =
        |rig: &Rig| rig.selected.get(&(0, rig.at_stores[0].link)).is_some_and(|at| at == "3");
    for (reply, told) in [("$1\r\n7\r\n", "$1\r\n7\r\n"), ("$-1\r\n", "$1\r\n8\r\n"), ("", "$1\r\n8\r\n")] {
        rig.tell_of_replicas(true);
        rig.read_from_replica(client, &key);
        assert!(is_in_database(&rig));
        if reply.is_empty() {
            rig.lose(&key);
        } else {
            rig.answer_next(reply);
        }
        if reply != told {
            assert!(
                rig.nodes_asked() == [0] && is_in_database(&rig),
                "the primary is asked in the same database"
            );
            rig.answer_next(told);
        }
        assert_eq!(rig.told(client), told);
    }
}
