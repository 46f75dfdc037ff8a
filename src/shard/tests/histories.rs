//! Tests of consistency by histories of appends and reads in front of a cluster whose nodes keep lists. Whatever is
//! lost or moved, a read returns all values that were known to be written before it was sent and all that its client
//! has read before, and none that its client writes later.

use std::collections::{BTreeSet, VecDeque};

use super::cluster::{MILLISECOND, Nodes, clustered, thirds};
use super::*;
use crate::policy::hot_keys::HotSettings as Detection;
use crate::values::Random;
use crate::values::limits::SLOTS;

/// A request that a client has sent and that has no reply yet.
struct Asked {
    names: Vec<String>,
    /// The value that is appended; `None` for a read.
    value: Option<String>,
    /// For each key that the request names, the values known to be written when the request was sent: a read
    /// must return them.
    known: Vec<BTreeSet<String>>,
}

/// A client of the test: its unanswered requests, and what it knows of its keys, from which its replies are
/// judged.
#[derive(Default)]
struct Teller {
    asked: VecDeque<Asked>,
    told: Vec<u8>,
    /// The values that the client has read so far, by key: later reads must return them too.
    seen: BTreeMap<String, BTreeSet<String>>,
    /// The values that the client has asked to append and that are not acknowledged: an earlier read must not
    /// return them.
    later: BTreeSet<String>,
}

struct History {
    rig: Rig,
    cluster: Nodes,
    tellers: BTreeMap<usize, Teller>,
    acknowledged: BTreeMap<String, BTreeSet<String>>,
    seed: u64,
}

impl History {
    fn send(&mut self, client: usize, names: Vec<String>, value: Option<String>) {
        let words: Vec<&str> = match (&value, names.len()) {
            (Some(value), _) => vec!["APPEND", &names[0], value],
            (None, 1) => vec!["GET", &names[0]],
            (None, _) => std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect(),
        };
        self.rig.send(client, &[&words]);
        let known =
            names.iter().map(|name| self.acknowledged.get(name).cloned().unwrap_or_default()).collect();
        let teller = self.tellers.entry(client).or_default();
        teller.later.extend(value.clone());
        teller.asked.push_back(Asked { names, value, known });
        self.hear();
    }

    /// Checks the replies that clients got since the last call, and adds what they show to the clients'
    /// knowledge.
    fn hear(&mut self) {
        let seed = self.seed;
        for (client, teller) in &mut self.tellers {
            teller.told.extend_from_slice(self.rig.told(*client).as_bytes());
            loop {
                let scanned = crate::protocol::ReplyScanner::default().scan(&teller.told).expect("replies");
                let Some(scanned) = scanned else { break };
                let reply: Vec<u8> = teller.told.drain(..scanned.end).collect();
                let reply = String::from_utf8(reply).expect("text");
                let Asked { names, value, known } = teller.asked.pop_front().expect("each is answered once");
                if let Some(value) = value {
                    teller.later.remove(&value);
                    if reply.starts_with(':') {
                        self.acknowledged.entry(names[0].clone()).or_default().insert(value);
                    } else {
                        let is_known = reply.contains("=redirects") || reply.contains("=connection-lost");
                        assert!(is_known, "seed {seed}: {reply}");
                    }
                    continue;
                }
                if reply.contains("=redirects") || reply.contains("=connection-lost") {
                    continue;
                }
                let parts: Vec<&str> =
                    reply.split("\r\n").filter(|part| !part.starts_with(['$', '*'])).collect();
                for ((name, known), told) in names.iter().zip(known).zip(parts) {
                    let told: BTreeSet<String> =
                        told.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
                    assert!(
                        told.is_superset(&known),
                        "seed {seed}: {name} was {known:?}, and {told:?} is told"
                    );
                    let seen = teller.seen.entry(name.clone()).or_default();
                    assert!(told.is_superset(seen), "seed {seed}: {name} was {seen:?}, and then {told:?}");
                    let early = told.intersection(&teller.later).next();
                    assert_eq!(early, None, "seed {seed}: it was written later than {name} was asked for");
                    *seen = told;
                }
            }
        }
    }

    /// Answers the oldest request of a connection chosen at random, or loses the connection if `is_lost`.
    fn step(&mut self, random: &mut Random, is_lost: bool) {
        let links: BTreeSet<_> = self.rig.at_stores.iter().map(|sent| (sent.shard, sent.link)).collect();
        let Some(link) = links.iter().nth(random.index(links.len().max(1))).copied() else {
            return self.rig.wait(MILLISECOND);
        };
        let owed: Vec<Sent> =
            self.rig.at_stores.iter().filter(|sent| (sent.shard, sent.link) == link).cloned().collect();
        if is_lost {
            // The node has carried out some of the requests on the lost connection, and not the rest.
            for done in owed.iter().take(random.index(owed.len() + 1)) {
                self.cluster.carry_out(done);
            }
            self.cluster.forget(link);
            self.rig.lose(&owed[0].frame);
        } else {
            let at = self.rig.at_stores.iter().position(|sent| (sent.shard, sent.link) == link);
            let next = self.rig.at_stores.remove(at.expect("there is one"));
            let reply = self.cluster.carry_out(&next);
            self.rig.bytes(&next, reply.as_bytes());
        }
        self.hear();
    }

    /// Runs `steps` random steps from a seed (requests, replies, moves of slots and, if `loses`, lost
    /// connections), and then lets all requests be answered. `change` adjusts the settings. Returns the
    /// history, which holds the counters.
    fn run(seed: u64, steps: u32, loses: bool, change: impl Fn(&mut ShardSettings)) -> Self {
        let random = &mut Random::new(seed);
        let names: Vec<String> =
            (0..3).flat_map(|slot| ["a", "b"].map(|name| format!("{{{slot}}}{name}"))).collect();
        let slots: Vec<u16> = names.iter().map(|name| slot_of(name.as_bytes())).collect();
        let mut this = Self {
            rig: clustered(2, change),
            cluster: Nodes::new(slots.iter().map(|slot| (*slot, thirds(*slot))).collect()),
            tellers: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            seed,
        };
        let clients = [this.rig.client(0), this.rig.client(0), this.rig.client(1)];
        let mut count = 0;
        for step in 0..steps {
            match random.below(14) {
                0..=3 => {
                    let client = *random.pick(&clients);
                    for _ in 0..random.between(1, 5) {
                        let name = random.pick(&names).clone();
                        let (names, value) = match random.below(10) {
                            0 => (vec![name.replace('b', "a"), name.replace('a', "b")], None),
                            1 => (vec![name], Some(format!("c{client}.{count}"))),
                            _ => (vec![name], None),
                        };
                        this.send(client, names, value);
                        count += 1;
                    }
                }
                4 if step % 16 == 0 => this.cluster.move_on(*random.pick(&slots), random),
                5 if random.below(12) == 0 => {
                    let owners = this.cluster.owners.clone();
                    this.rig.publish(|slot| Some(owners.get(&slot).copied().unwrap_or(thirds(slot))));
                }
                6 => this.rig.wait(MILLISECOND * random.below(6) as u32),
                7 => {
                    let is_lost = loses && random.below(8) == 0;
                    this.step(random, is_lost);
                }
                _ => this.step(random, false),
            }
            this.hear();
        }
        for _ in 0..6_000 {
            this.step(random, false);
        }
        assert!(this.tellers.values().all(|teller| teller.asked.is_empty()), "seed {seed}: each is answered");
        this
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.rig.shards.iter().map(|shard| shard.counters().get(counter)).sum()
    }
}

/// Lowers the thresholds so that keys become hot with few requests, and lets all shards share the counters of
/// writes.
fn eager(settings: &mut ShardSettings, versions: &Arc<crate::shard::versions::Versions>) {
    let detection = Detection { least_per_second: 20, least_share_per_mille: 0, ..Detection::default() };
    let ttl = Duration::from_millis(200);
    let versions = Arc::clone(versions);
    settings.hot = HotSettings { detection, ttl, versions, ..HotSettings::new(settings.topology.backends()) };
}

#[test]
fn reads_that_are_asked_for_again_stay_in_their_order() {
    let mut retries = 0;
    for seed in 0..25 {
        let history = History::run(seed, 2_000, true, |settings| settings.retries = Mode::On);
        retries += history.counted(Counter::RetriesSent);
    }
    assert!(retries > 40, "{retries}");
}

#[test]
fn what_is_kept_of_hot_keys_is_never_older_than_what_anybody_knows() {
    let (mut hits, mut joins, mut redirections) = (0, 0, 0);
    for seed in 0..10 {
        let versions = Arc::new(crate::shard::versions::Versions::new(SLOTS));
        let history = History::run(seed, 4_000, seed % 2 == 1, |settings| {
            settings.retries = Mode::On;
            eager(settings, &versions);
        });
        hits += history.counted(Counter::HotHits);
        joins += history.counted(Counter::HotJoins);
        redirections += history.counted(Counter::Redirections);
        let mut rig = history.rig;
        rig.wait(Duration::from_secs(1));
        assert_eq!(versions.under_way(), 0, "seed {seed}: what is over is over");
    }
    assert!(hits > 100 && joins > 300 && redirections > 300, "{hits} {joins} {redirections}");
}
