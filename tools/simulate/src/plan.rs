//! What a world is like: drawn once, from its seed.

use std::time::Duration;

use super::Trouble;
use weir::config::HotScripts;
use weir::policy::hot_keys::HotSettings as Detection;
use weir::shard::{HotSettings, Mode};
use weir::values::limits::SLOTS;
use weir::values::{MicroUnits, Random, Timestamp, UNIT};

/// How often what goes wrong, in a thousand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// A store drops the connection instead of carrying a request out.
    pub lost_before: u64,
    /// A store carries a request out and drops the connection before or within the reply.
    pub lost_after: u64,
    /// A store does not let weir connect.
    pub refused_connect: u64,
    /// A store says neither yes nor no.
    pub ignored_connect: u64,
    /// A store begins to answer that it is loading.
    pub loading: u64,
    /// A store stops for a while.
    pub stall: u64,
    /// A store sends what is no reply.
    pub garbage: u64,
    /// A client leaves without a word.
    pub client_lost: u64,
}

impl Faults {
    const NONE: Self = Self {
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
        // Many faults hide what one would show, so each world has few kinds of them.
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

/// More than stores can do, all the time: clients send without waiting for replies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Requests of each client per second, before and from then on.
    pub rates: [f64; 2],
    pub full_from: Timestamp,
    /// Of no use after this.
    pub deadline: Duration,
    /// What was sent from then on until then counts, and until then it lasts.
    pub counted_from: Timestamp,
    pub until: Timestamp,
    /// Keys that all share.
    pub keys: u64,
}

impl Load {
    pub fn rate(&self, now: Timestamp) -> f64 {
        self.rates[usize::from(now >= self.full_from)]
    }
}

/// What is asked under load, by what stores can do.
pub(super) const ASKED: f64 = 1.5;

/// A store does nothing for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    pub from: Timestamp,
    pub until: Timestamp,
}

/// How often a core does not run, and for how long: a time between, and the longest one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleeps {
    pub apart: Duration,
    pub longest: Duration,
}

/// Slots of a cluster that move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moves {
    /// A step of that, and so long until the next one, in the mean.
    pub apart: Duration,
    /// A slot that has moved stays for so long: for longer than weir goes where a node has sent it for once.
    pub rest: Duration,
    /// How long news of it takes to a core, at most.
    pub news_delay: Duration,
    /// How often, in a thousand, nodes say what is not true.
    pub lies: u64,
    /// Reads that are lost with a connection are asked for again.
    pub retries: Mode,
    /// Primaries go away, and their replicas take over.
    pub falls: Option<Falls>,
}

/// How nodes of a cluster go away, and what the others do about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Falls {
    /// So long from when all is well until the next one goes, in the mean.
    pub apart: Duration,
    /// The others have missed it for so long before they say that the cluster is down, and for so long they do.
    pub missed_for: Duration,
    pub down_for: Duration,
    /// What a primary has done reaches its replica so much later, at most.
    pub lag: Duration,
    /// Nodes hear of a takeover within this time.
    pub news: Duration,
    /// The old one is back so long after another has taken over; and takes itself for a primary for so long then, if it only stood still.
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

/// A window that nothing in a world fills.
const WIDE: u16 = 4_096;

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub shards: u16,
    pub backends: u16,
    pub links_per_backend: u16,
    pub heavy_links: u16,
    /// What costs much: low, so that clients change between the connections often.
    pub heavy_from: MicroUnits,
    pub clients: usize,
    pub faults: Faults,
    /// The longest way between a socket's ends.
    pub network_delay: Duration,
    /// How long a store may take for one request; in the mean, if it has so many servers for all its connections.
    pub store_delay: Duration,
    pub store_servers: Option<usize>,
    /// Requests that a store may be asked at once; the others wait, and some overtake others there.
    pub window_most: u16,
    pub stall: Option<Stall>,
    pub sleeps: Option<Sleeps>,
    pub load: Option<Load>,
    /// How long a shard may be busy before it looks at what came in.
    pub turn_delay: Duration,
    /// Bytes in one piece, at most.
    pub piece_bytes: u64,
    pub output_bytes_max: usize,
    pub reply_bytes_max: usize,
    pub idle_timeout: Option<Duration>,
    /// Large values are this large.
    pub padding_max: usize,
    /// Request units per second that all clients share, if they do not have as many as they want.
    pub quota: Option<u64>,
    /// How long a report to the pools of quotas may be under way, and how often (in a thousand) far too long.
    pub pool_delay: Duration,
    pub pool_stall: u64,
    /// Hot keys: of so few requests that most are.
    pub hot: HotSettings,
    /// Everybody reads the same few keys.
    pub has_favourites: bool,
    /// So many of a thousand reads are scripts, of which weir does not know that they only read.
    pub script_reads: u64,
    /// The world ends by draining the shards; otherwise the clients leave by themselves.
    pub ends_by_draining: bool,
    /// The stores are a cluster.
    pub cluster: Option<Moves>,
}

impl Plan {
    pub fn drawn(random: &mut Random) -> Self {
        let micros = |random: &mut Random, from: &[u64]| Duration::from_micros(*random.pick(from));
        let calm = random.per_mille(250);
        let backends = random.between(1, 3) as u16;
        let has_favourites = random.per_mille(400);
        let window_most = if calm { WIDE } else { *random.pick(&[WIDE, WIDE, WIDE, 1, 4]) };
        // Who asks for the same large value again and again must be able to have all of them waiting.
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
            // Where requests overtake each other.
            script_reads: if window_most < WIDE { 40 } else { 2 },
            ends_by_draining: random.per_mille(300),
            cluster: None,
        }
    }

    /// A fifth of all worlds have a cluster.
    pub fn drawn_of_any(random: &mut Random) -> Self {
        let plan = Self::drawn(random);
        if random.per_mille(200) { plan.before_cluster(random) } else { plan }
    }

    /// The stores are a cluster.
    pub fn clustered(random: &mut Random) -> Self {
        let plan = Self::drawn(random);
        plan.before_cluster(random)
    }

    fn before_cluster(self, random: &mut Random) -> Self {
        // What is known of hot keys before a cluster is kept by slots.
        let HotSettings { mode, detection, ttl, scripts, copied_from, seed, .. } = self.hot;
        let moves = Moves::drawn(random, self.sleeps);
        Self {
            // Where they go away, each has a replica.
            backends: if moves.falls.is_some() {
                2 * random.between(2, 3) as u16
            } else {
                random.between(2, 4) as u16
            },
            cluster: Some(moves),
            // What is refused for its price finds out nothing about slots.
            quota: self.quota.filter(|_| random.per_mille(300)),
            hot: HotSettings { mode, detection, ttl, copied_from, scripts, seed, ..HotSettings::new(SLOTS) },
            ..self
        }
    }

    /// Half as much again is asked as the stores can do.
    pub fn overloaded(random: &mut Random, trouble: Trouble) -> Self {
        const FACTORS: [f64; 2] = [0.5, ASKED];
        let calm = Self { faults: Faults::NONE, quota: None, idle_timeout: None, ..Self::drawn(random) };
        let clients = random.between(40, 200) as usize;
        let servers = *random.pick(if trouble.has(Trouble::COLD_START) { &[1, 4, 16] } else { &[1, 2, 4] });
        let capacity = random.between(500, 2_000) as f64;
        // A calm beginning, if any, and then a moment to find out what the stores can do.
        let full_from = Timestamp::from_millis(if trouble.has(Trouble::COLD_START) { 0 } else { 2_000 });
        let counted_from = full_from.after(Duration::from_secs(1));
        let stall = trouble.has(Trouble::STALLS).then(|| {
            let from = counted_from.after(Duration::from_millis(random.between(500, 1_500)));
            Stall { from, until: from.after(Duration::from_secs(*random.pick(&[1, 3, 10]))) }
        });
        let lost_after = u64::from(trouble.has(Trouble::LOST_LINKS));
        Self {
            shards: *random.pick(&[1, 2, 4, 8]),
            // Hardly any key is hot in the usual sense.
            hot: HotSettings::new(calm.backends),
            // What is asked here costs little.
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

    /// When a store does nothing: only the first one stalls.
    pub fn stall_of(&self, store: usize) -> Option<Stall> {
        self.stall.filter(|_| store == 0)
    }

    /// Nothing goes wrong that could make weir refuse a request.
    pub fn is_calm(&self) -> bool {
        let falls = self.cluster.is_some_and(|moves| moves.falls.is_some());
        if falls || self.store_servers.is_some() || self.window_most < WIDE {
            return false;
        }
        let Faults {
            lost_before, lost_after, refused_connect, ignored_connect, loading, stall, garbage, ..
        } = self.faults;
        lost_before + lost_after + refused_connect + ignored_connect + loading + stall + garbage == 0
    }
}
