//! The plan of a simulated world, with all its settings, drawn once from its seed.

use std::time::Duration;

use super::Trouble;
use weir::config::HotScripts;
use weir::policy::hot_keys::HotSettings as Detection;
use weir::shard::{HotSettings, Mode};
use weir::values::limits::SLOTS;
use weir::values::{MicroUnits, Random, Timestamp, UNIT};

/// Probabilities of the faults that the simulation injects, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Probability, in thousandths per request, that a store drops the connection instead of carrying the
    /// request out.
    pub lost_before: u64,
    /// Probability, in thousandths per request, that a store carries the request out and drops the
    /// connection before or during the reply.
    pub lost_after: u64,
    /// Probability, in thousandths, that a store refuses a connection.
    pub refused_connect: u64,
    /// Probability, in thousandths, that a store does not react to an attempt to connect.
    pub ignored_connect: u64,
    /// Probability, in thousandths per request, that a store begins to reply with the error `LOADING`, or without a
    /// cluster sometimes `READONLY`, for 1 to 50 ms.
    pub loading: u64,
    /// Probability, in thousandths per request, that a store begins to stall, for 1 ms to 10 s.
    pub stall: u64,
    /// Probability, in thousandths per request, that a store replies with bytes that are not RESP.
    pub garbage: u64,
    /// Probability, in thousandths, that a client's connection ends by breaking without notice.
    pub client_lost: u64,
}

impl Faults {
    pub const NONE: Self = Self {
        lost_before: 0,
        lost_after: 0,
        refused_connect: 0,
        ignored_connect: 0,
        loading: 0,
        stall: 0,
        garbage: 0,
        client_lost: 0,
    };

    fn drawn(random: &mut Random) -> Self {
        // Many faults hide the effects of each, so each world has few kinds of them.
        let mut often = |most| if random.per_mille(400) { random.between(1, most) } else { 0 };
        Self {
            lost_before: often(15),
            lost_after: often(15),
            refused_connect: often(400),
            ignored_connect: often(200),
            loading: often(10),
            stall: often(10),
            garbage: often(5),
            client_lost: often(100),
        }
    }
}

/// A load of requests that rises above the stores' capacity: clients send without waiting for replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Requests per second that each client sends: first before the time `full_from`, then from that time
    /// on.
    pub rates: [f64; 2],
    pub full_from: Timestamp,
    /// The deadline of a request; a later reply is of no use.
    pub deadline: Duration,
    /// The start of the time in which requests are counted; `until` is its end and that of the load.
    pub counted_from: Timestamp,
    pub until: Timestamp,
    /// The number of keys that the clients' requests are spread over.
    pub keys: u64,
}

impl Load {
    pub fn rate(&self, now: Timestamp) -> f64 {
        self.rates[usize::from(now >= self.full_from)]
    }
}

/// The time for which weir keeps replies in its hot-key cache while their stores report changes of keys to
/// it.
const TRACKED_TTL: Duration = Duration::from_secs(10);
/// The time without a message after which weir gives up a tracker (the connection on which a store reports
/// changes of keys); after half of it weir sends a PING.
const TRACKER_SILENT_MAX: Duration = Duration::from_millis(200);

/// The load that clients offer under overload, as a multiple of the stores' capacity.
pub(super) const ASKED: f64 = 1.5;

/// A time interval in which a store carries out nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    pub from: Timestamp,
    pub until: Timestamp,
}

/// Random times in which cores do not run: the mean time from the end of one to the next (`apart`), and the
/// longest one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleeps {
    pub apart: Duration,
    pub longest: Duration,
}

/// Settings of a simulated cluster: how slots move, and how nodes misbehave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moves {
    /// The mean time between two steps in which slots move between nodes.
    pub apart: Duration,
    /// The least time that a slot which has moved stays at its new node: longer than weir follows a
    /// temporary redirect (ASK).
    pub rest: Duration,
    /// The longest delay until a core of weir learns of a slot's move.
    pub news_delay: Duration,
    /// The probability, in thousandths per request, that a node replies with a false redirect. A node that
    /// is asked for its view of the cluster gives an outdated one twenty times as often.
    pub lies: u64,
    /// The mode (on or off) of weir's retries of reads whose connection to the store was lost.
    pub retries: Mode,
    /// The times with which primaries go away and their replicas take over; `None` if they do not.
    pub falls: Option<Falls>,
}

/// The times with which primaries of a cluster go away, other nodes notice it, and replicas take over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Falls {
    /// The mean time from when all nodes of the cluster work until the next primary goes away.
    pub apart: Duration,
    /// The time until the other nodes find that a primary is missing, and report the cluster as down;
    /// `down_for` is the time from then until its replica takes over.
    pub missed_for: Duration,
    pub down_for: Duration,
    /// The longest delay until a replica has carried out a write that its primary has carried out.
    pub lag: Duration,
    /// The longest time until the other nodes learn that a replica has taken over.
    pub news: Duration,
    /// The longest time from a replica's takeover until the old primary is back. `deluded_for` is the
    /// longest time for which it still believes then that it is a primary, if its process was only stopped.
    pub away_for: Duration,
    pub deluded_for: Duration,
}

impl Falls {
    fn drawn(random: &mut Random) -> Self {
        let micros = |random: &mut Random, from: &[u64]| Duration::from_micros(*random.pick(from));
        Self {
            apart: micros(random, &[5_000, 50_000, 300_000]),
            missed_for: micros(random, &[2_000, 20_000, 200_000, 1_500_000]),
            down_for: micros(random, &[100, 5_000, 100_000]),
            lag: micros(random, &[100, 2_000, 30_000]),
            news: micros(random, &[100, 3_000, 20_000]),
            away_for: micros(random, &[1_000, 30_000, 500_000]),
            deluded_for: micros(random, &[100, 3_000, 20_000]),
        }
    }
}

impl Moves {
    fn drawn(random: &mut Random, sleeps: Option<Sleeps>) -> Self {
        let micros = |random: &mut Random, from: &[u64]| Duration::from_micros(*random.pick(from));
        Self {
            falls: random.per_mille(600).then(|| Falls::drawn(random)),
            rest: Duration::from_millis(280) + sleeps.map_or(Duration::ZERO, |sleeps| sleeps.longest),
            apart: micros(random, &[200, 1_000, 5_000, 20_000]),
            news_delay: micros(random, &[10, 1_000, 20_000, 200_000]),
            lies: *random.pick(&[0, 0, 0, 5, 40]),
            retries: *random.pick(&[Mode::Off, Mode::On, Mode::On]),
        }
    }
}

/// Simulated clients that write to stores directly, bypassing weir; only in worlds in which stores report
/// changes of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    /// The mean time between two writes that bypass weir.
    pub apart: Duration,
    /// The time after a write that bypasses weir from which on no read through weir may find an older value:
    /// the store has told weir of the change by then, or weir's copy has expired.
    pub told_within: Duration,
    /// The probability, in thousandths per write that bypasses weir, that a connection on which the store
    /// reports changes is cut before the write; `is_silent` is true if weir does not notice the cut.
    pub cuts: u64,
    pub is_silent: bool,
}

/// The largest number of connections that a core of weir lends to clients; no simulated world needs so many.
pub(super) const MANY_LINKS: usize = 64;
/// A limit on requests in flight to a store that no simulated world reaches.
const WIDE: u16 = 4_096;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub shards: u16,
    pub backends: u16,
    pub links_per_backend: u16,
    pub heavy_links: u16,
    /// The least price, in millionths of a request unit, of a request that goes over the separate
    /// connections for heavy requests: low, so that clients change between connections often.
    pub heavy_from: MicroUnits,
    pub clients: usize,
    pub faults: Faults,
    /// The longest time that bytes take from one end of a simulated socket to the other.
    pub network_delay: Duration,
    /// The longest service time of a request at a store; if the store has `store_servers` servers, which all
    /// its connections share, the mean service time.
    pub store_delay: Duration,
    pub store_servers: Option<usize>,
    /// Maximum number of requests in flight to a store; further ones wait in weir's queue, where some
    /// overtake others.
    pub window_most: u16,
    pub stall: Option<Stall>,
    pub sleeps: Option<Sleeps>,
    pub load: Option<Load>,
    /// The longest time until a shard (core of weir) handles events that have arrived for it.
    pub turn_delay: Duration,
    /// Maximum number of bytes of one piece in which a socket's bytes arrive.
    pub piece_bytes: u64,
    pub output_bytes_max: usize,
    pub reply_bytes_max: usize,
    pub idle_timeout: Option<Duration>,
    /// The size of the padding of large values, in bytes.
    pub padding_max: usize,
    /// Request units per second that all clients together may use; `None` for no limit.
    pub quota: Option<u64>,
    /// The longest delay of a core's report of spent quota to the central pools, which divide quotas among
    /// cores. `pool_stall` is the probability, in thousandths, of a delay of up to 300 ms.
    pub pool_delay: Duration,
    pub pool_stall: u64,
    /// Settings of weir's hot-key cache; so few requests make a key hot that most keys are.
    pub hot: HotSettings,
    /// True if all clients mostly read the same few keys, which become hot.
    pub has_favourites: bool,
    /// Probability, in thousandths, that a client which mostly reads the same few keys sends a read in place
    /// of another request.
    pub mere_reads: u64,
    /// Probability, in thousandths, that a read is sent as a script, so that weir does not know that it only
    /// reads.
    pub script_reads: u64,
    /// True if the world ends by draining the shards (cores of weir accept no more clients and finish);
    /// false if the clients end by themselves.
    pub ends_by_draining: bool,
    /// Settings of the cluster that the stores form; `None` if they are single stores.
    pub cluster: Option<Moves>,
    /// Writes that bypass weir, which stores report to it; `None` if there are none.
    pub around: Option<Around>,
    /// Settings for clients that share queues and counters, each of which needs a connection to a store of
    /// its own; `None` if there are no such clients.
    pub private: Option<Private>,
    /// True if an operator pauses all clients now and then (`CLIENT PAUSE`), and ends most pauses early.
    pub pauses: bool,
}

/// Settings of connections to stores that weir lends to one client each, for blocking commands and WATCH.
#[derive(Clone, Copy, Debug)]
pub(super) struct Private {
    /// Maximum number of connections to stores that a core of weir lends to clients (for blocking commands
    /// and WATCH), one client each.
    pub links: usize,
    /// True if weir puts back elements that a store has popped for a client that had disconnected.
    pub gives_back: bool,
    /// The mean time between two moves of a client to another shard, as in a takeover by another process; `None` if no
    /// client moves.
    pub moves_apart: Option<Duration>,
    /// The mean time between two connections that stores drop, idle or not; `None` if stores drop none.
    pub cuts_apart: Option<Duration>,
}

impl Plan {
    pub fn drawn(random: &mut Random) -> Self {
        let micros = |random: &mut Random, from: &[u64]| Duration::from_micros(*random.pick(from));
        let calm = random.per_mille(250);
        let backends = random.between(1, 3) as u16;
        let has_favourites = random.per_mille(400);
        let window_most = if calm { WIDE } else { *random.pick(&[WIDE, WIDE, WIDE, 1, 4]) };
        // A client that asks for the same large value again and again must be able to have all replies
        // waiting.
        let output_bytes_max = *random.pick(&[150_000, 1_000_000, 64_000_000]);
        let output_bytes_max = if has_favourites { 64_000_000 } else { output_bytes_max };
        Self {
            shards: random.between(1, 8) as u16,
            backends,
            links_per_backend: random.between(1, 3) as u16,
            heavy_links: random.between(0, 2) as u16,
            heavy_from: UNIT + *random.pick(&[UNIT / 25, UNIT / 10, UNIT, 20 * UNIT]),
            clients: random.between(2, 10) as usize,
            faults: if calm { Faults::NONE } else { Faults::drawn(random) },
            network_delay: micros(random, &[1, 50, 500, 5_000]),
            store_delay: micros(random, if has_favourites { &[1, 20, 200] } else { &[1, 20, 200, 2_000] }),
            store_servers: (!calm && random.per_mille(300)).then(|| random.between(1, 4) as usize),
            window_most,
            stall: None,
            sleeps: random.per_mille(300).then(|| Sleeps {
                apart: Duration::from_millis(*random.pick(&[50, 1_000])),
                longest: Duration::from_millis(*random.pick(&[20, 200])),
            }),
            load: None,
            turn_delay: micros(random, &[1, 20, 300]),
            piece_bytes: *random.pick(&[3, 40, 1_000, 16_384, 16_384]),
            output_bytes_max,
            reply_bytes_max: if random.per_mille(200) { 30_000 } else { 64_000_000 },
            idle_timeout: random.per_mille(300).then_some(Duration::from_millis(500)),
            padding_max: *random.pick(&[0, 100, 100, 20_000, 40_000]),
            quota: random.per_mille(350).then(|| *random.pick(&[300, 3_000, 30_000, 1_000_000])),
            pool_delay: micros(random, &[1, 100, 3_000]),
            pool_stall: if random.per_mille(300) { 50 } else { 0 },
            hot: HotSettings {
                mode: *random.pick(&[Mode::On, Mode::On, Mode::On, Mode::On, Mode::Shadow, Mode::Off]),
                detection: Detection {
                    least_per_second: *random.pick(&[1, 10, 100]),
                    least_share_per_mille: 0,
                    ..Detection::default()
                },
                ttl: micros(
                    random,
                    if has_favourites { &[20_000, 1_000_000, 1_000_000] } else { &[2_000, 20_000, 200_000] },
                ),
                scripts: *random.pick(&[HotScripts::Strict, HotScripts::Declared]),
                copied_from: *random.pick(&[[1, 1], [1, 1], [1, 1], [1, 1], [1, 1], [1, 1], [1, 1], [20, 5]]),
                seed: random.bits(),
                ..HotSettings::new(backends)
            },
            has_favourites,
            mere_reads: 700,
            // Scripts are frequent where requests overtake each other.
            script_reads: if window_most < WIDE { 40 } else { 2 },
            ends_by_draining: random.per_mille(300),
            cluster: None,
            around: None,
            private: None,
            pauses: false,
        }
    }

    /// Draws the plan of a world in which clients wait for elements of shared queues, and increase shared
    /// counters under `WATCH`.
    pub fn queueing(random: &mut Random) -> Self {
        let plan = Self::drawn(random);
        let plan = if random.per_mille(400) { plan.before_cluster(random) } else { plan };
        // Writes are lost with primaries, and are so with elements; nobody keeps a record of that.
        let cluster = plan.cluster.map(|moves| Moves { falls: None, lies: 0, ..moves });
        Self {
            cluster,
            clients: random.between(4, 16) as usize,
            private: Some(Private {
                links: *random.pick(&[3, 16, MANY_LINKS, MANY_LINKS]),
                gives_back: random.per_mille(300),
                cuts_apart: random.per_mille(300).then(|| Duration::from_millis(*random.pick(&[3, 30]))),
                moves_apart: random
                    .per_mille(500)
                    .then(|| Duration::from_millis(*random.pick(&[1, 10, 100]))),
            }),
            // Elements are few, and replies to the one client that takes them are small.
            output_bytes_max: 64_000_000,
            reply_bytes_max: 64_000_000,
            quota: None,
            ..plan
        }
    }

    /// Draws the plan of a world in which stores report changes of keys to weir (CLIENT TRACKING), and clients that
    /// bypass weir write too. weir keeps replies for 10 seconds if their keys are tracked, else for at most 5
    /// milliseconds.
    pub fn tracked(random: &mut Random) -> Self {
        let plan = Self::drawn(random);
        let hot = HotSettings {
            mode: Mode::On,
            detection: Detection { least_per_second: 1, ..plan.hot.detection },
            ttl: Duration::from_micros(*random.pick(&[100, 1_000, 5_000])),
            tracked_ttl: Some(TRACKED_TTL),
            ..plan.hot
        };
        let cuts = *random.pick(&[0, 50, 300]);
        let is_silent = random.per_mille(500);
        // The core with the tracker may sleep before it handles a message, or sees that none comes.
        let sleeps = plan.sleeps.map_or(Duration::ZERO, |sleeps| sleeps.longest);
        let silence = if cuts > 0 && is_silent { TRACKER_SILENT_MAX + sleeps } else { Duration::ZERO };
        let told_within = hot.ttl.max(silence) + plan.network_delay + 2 * plan.turn_delay + sleeps;
        let apart = Duration::from_micros(*random.pick(&[300, 3_000, 30_000]));
        Self {
            around: Some(Around { apart, told_within, cuts, is_silent }),
            hot,
            has_favourites: true,
            // A write through weir would end what a change that was missed leaves.
            mere_reads: *random.pick(&[700, 970, 998]),
            output_bytes_max: 64_000_000,
            ..plan
        }
    }

    /// Draws the plan of a world of the usual kind; a fifth of these have a cluster.
    pub fn drawn_of_any(random: &mut Random) -> Self {
        let plan = Self::drawn(random);
        if random.per_mille(200) { plan.before_cluster(random) } else { plan }
    }

    /// Draws the plan of a world in which an operator pauses clients.
    pub fn paused(random: &mut Random) -> Self {
        Self { pauses: true, ..Self::drawn_of_any(random) }
    }

    /// Draws the plan of a world in which the stores are a cluster.
    pub fn clustered(random: &mut Random) -> Self {
        let plan = Self::drawn(random);
        plan.before_cluster(random)
    }

    fn before_cluster(self, random: &mut Random) -> Self {
        // Before a cluster, hot keys are tracked by slot.
        let HotSettings { mode, detection, ttl, scripts, copied_from, seed, .. } = self.hot;
        let moves = Moves::drawn(random, self.sleeps);
        Self {
            // Where primaries go away, each has a replica.
            backends: if moves.falls.is_some() {
                2 * random.between(2, 3) as u16
            } else {
                random.between(2, 4) as u16
            },
            cluster: Some(moves),
            // A throttled request teaches weir nothing about slots, so quotas are rare here.
            quota: self.quota.filter(|_| random.per_mille(300)),
            hot: HotSettings {
                mode,
                detection,
                ttl,
                tracked_ttl: random.per_mille(500).then_some(TRACKED_TTL),
                copied_from,
                scripts,
                seed,
                ..HotSettings::new(SLOTS)
            },
            ..self
        }
    }

    /// Draws the plan of a world in which clients send 1.5 times as many requests as the stores can serve,
    /// with these faults.
    pub fn overloaded(random: &mut Random, trouble: Trouble) -> Self {
        const FACTORS: [f64; 2] = [0.5, ASKED];
        let calm = Self { faults: Faults::NONE, quota: None, idle_timeout: None, ..Self::drawn(random) };
        let clients = random.between(40, 200) as usize;
        let servers = *random.pick(if trouble.has(Trouble::COLD_START) { &[1, 4, 16] } else { &[1, 2, 4] });
        let capacity = random.between(500, 2_000) as f64;
        // The calm beginning, if any, lasts two seconds; the second after it is for weir to find out the
        // stores' capacity.
        let full_from = Timestamp::from_millis(if trouble.has(Trouble::COLD_START) { 0 } else { 2_000 });
        let counted_from = full_from.after(Duration::from_secs(1));
        let stall = trouble.has(Trouble::STALLS).then(|| {
            let from = counted_from.after(Duration::from_millis(random.between(500, 1_500)));
            Stall { from, until: from.after(Duration::from_secs(*random.pick(&[1, 3, 10]))) }
        });
        let lost_after = u64::from(trouble.has(Trouble::LOST_LINKS));
        Self {
            shards: *random.pick(&[1, 2, 4, 8]),
            // With the default thresholds hardly any key becomes hot.
            hot: HotSettings::new(calm.backends),
            // Requests under load cost little.
            heavy_from: 20 * UNIT,
            clients,
            faults: Faults { lost_after, ..Faults::NONE },
            network_delay: Duration::from_micros(*random.pick(&[50, 200])),
            turn_delay: Duration::from_micros(20),
            store_delay: Duration::from_secs_f64(servers as f64 / capacity),
            store_servers: Some(servers),
            window_most: WIDE,
            stall,
            sleeps: trouble
                .has(Trouble::LATE_CORES)
                .then_some(Sleeps { apart: Duration::from_secs(1), longest: Duration::from_millis(200) }),
            load: Some(Load {
                rates: FACTORS.map(|factor| factor * capacity * f64::from(calm.backends) / clients as f64),
                full_from,
                deadline: Duration::from_millis(*random.pick(&[250, 500])),
                counted_from,
                until: stall.map_or(counted_from, |stall| stall.until).after(Duration::from_secs(4)),
                keys: 2_000,
            }),
            piece_bytes: 16_384,
            output_bytes_max: 64_000_000,
            reply_bytes_max: 64_000_000,
            padding_max: 100,
            pool_stall: 0,
            ends_by_draining: false,
            ..calm
        }
    }

    /// Returns the planned time in which the store with this index carries out nothing; `None` for all
    /// stores but the first, or if none is planned.
    pub fn stall_of(&self, store: usize) -> Option<Stall> {
        self.stall.filter(|_| store == 0)
    }

    /// True if requests have short deadlines, or stores may do nothing for so long that weir expects their next
    /// replies seconds later.
    pub fn has_early_deadlines(&self) -> bool {
        let falls = self.cluster.is_some_and(|moves| moves.falls.is_some());
        self.load.is_some() || self.faults.stall > 0 || falls
    }

    /// True if no fault in the plan, no limited number of servers of a store and no small window (limit on requests in
    /// flight) can make weir refuse requests. Quotas, few private links, and primaries that go away are not considered:
    /// they may cause refusals all the same.
    pub fn is_calm(&self) -> bool {
        let cuts = self.private.is_some_and(|private| private.cuts_apart.is_some());
        if cuts || self.store_servers.is_some() || self.window_most < WIDE {
            return false;
        }
        let Faults {
            lost_before, lost_after, refused_connect, ignored_connect, loading, stall, garbage, ..
        } = self.faults;
        lost_before + lost_after + refused_connect + ignored_connect + loading + stall + garbage == 0
    }
}
