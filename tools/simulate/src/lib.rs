//! A simulated world around the real pipeline: seeded, in virtual time, with everything that goes wrong in a
//! real one.
//!
//! ```text
//!   Client ──Socket──> Shard ──Socket──> Store          what each promises is checked as it happens:
//!     │                 │  ^                 │           client.rs  one reply per request, in order, its own
//!     │ Expected        mesh of batches      │           history.rs what a read may see, what may never run twice
//!     v                 v  │                 v
//!   history <───────── Shard ───────────> history
//! ```
//!
//! The seed decides the shape (`plan.rs`), every delay, every split of bytes and every fault, so a run is
//! repeated by its seed, and the same seed leaves the same trace.
//!
//! | what | file |
//! |---|---|
//! | the shape of a world, drawn from its seed | `plan.rs` |
//! | time, events, shards and their mesh | `world.rs` |
//! | sockets: delays, splits, order | `network.rs` |
//! | clients: their requests, when they send them, how they leave | `client.rs`, `request.rs` |
//! | stores: the embedded engine, slow and unreliable | `store.rs` |
//! | stores that form a cluster: slots that move, refusals, and lies | `cluster.rs` |
//! | primaries that die or stall, and replicas that take over | `falls.rs` |
//! | the search for the owners of slots, and when cores hear of it | `topology.rs` |
//! | overload: how requests end when stores cannot serve them all | `overload.rs` |
//! | the number of requests that could have been served under overload | `capacity.rs` |
//! | pauses of clients (`CLIENT PAUSE`), as cores know of them | `pauses.rs` |
//! | clients that wait for elements of queues, or watch counters | `queues.rs` |
//! | whether a reply is possible | `expect.rs`, `history.rs`, `token.rs` |
//! | the hash by which two runs of one seed are compared | `trace.rs` |
//! | fleets of hosts with many cores, without faults | `hosts.rs` |
//! | figures of these: quotas, messages, reads of a hot key | `scale.rs` |

mod capacity;
mod client;
mod cluster;
mod expect;
mod falls;
mod history;
mod hosts;
mod network;
pub mod overload;
mod pauses;
mod plan;
mod queues;
mod request;
pub mod scale;
mod store;
mod token;
mod topology;
mod trace;
mod world;

use std::fmt;
use std::ops::AddAssign;

use overload::{Outcome, Trouble};
use world::World;

/// The figures of a simulated run in which no promise of weir's was broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of simulated events until none was left.
    pub steps: u64,
    /// The number of replies that clients received.
    pub replies: u64,
    /// The number of replies that were refusals.
    pub refusals: u64,
    /// The number of complete SCANs over all keys that had to meet at least one key.
    pub walks: u64,
    /// The number of connections of weir's to stores that broke.
    pub links_lost: u64,
    /// The number of reads of hot keys that weir answered from its cache, or by a shared fetch (one read at
    /// the store for all equal reads that come meanwhile), including the reads that began one.
    pub from_memory: u64,
    /// The number of reads of hot keys that a core of weir answered from a copy of another core's cached
    /// reply; they are a part of `from_memory`.
    pub from_copies: u64,
    /// The number of times that a node of a cluster redirected a request to another node.
    pub redirections: u64,
    /// The number of moves of single slots from one node of a cluster to another; takeovers do not count.
    pub slots_moved: u64,
    /// The number of times that a replica took over from its primary, which had failed or handed over.
    pub takeovers: u64,
    /// The number of changes of hot keys that stores reported to weir (CLIENT TRACKING).
    pub changes_told: u64,
    /// The number of lost connections of weir's over which stores reported changes of keys.
    pub trackers_lost: u64,
    /// The number of elements of shared queues (lists) that clients received.
    pub elements_delivered: u64,
    /// The number of elements of shared queues that no client received and no list has at the end: stores had popped
    /// them for clients that had disconnected, or the replies were lost.
    pub elements_missing: u64,
    /// The number of blocking commands that continued at another shard (core of weir) after their client had
    /// moved there.
    pub waits_moved: u64,
    /// The number of transactions with `WATCH` that took effect.
    pub committed: u64,
    /// The number of transactions with `WATCH` that did not take effect, because another client had written
    /// the watched key.
    pub conflicts: u64,
    /// A hash over all events, by which two runs of one seed can be compared.
    pub trace: u64,
}

/// Addition of the figures of another run, field by field; the trace becomes a hash of both.
impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.replies += other.replies;
        self.refusals += other.refusals;
        self.walks += other.walks;
        self.links_lost += other.links_lost;
        self.from_memory += other.from_memory;
        self.from_copies += other.from_copies;
        self.redirections += other.redirections;
        self.slots_moved += other.slots_moved;
        self.takeovers += other.takeovers;
        self.changes_told += other.changes_told;
        self.trackers_lost += other.trackers_lost;
        self.elements_delivered += other.elements_delivered;
        self.elements_missing += other.elements_missing;
        self.waits_moved += other.waits_moved;
        self.committed += other.committed;
        self.conflicts += other.conflicts;
        self.trace ^= other.trace;
    }
}

/// A promise of weir's that a simulated run has broken, with the arguments that repeat the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed of the world in which the promise was broken.
    pub seed: u64,
    /// The number of the simulated event at which the broken promise was noticed.
    pub step: u64,
    /// The arguments of `weir-simulate` that repeat the run, without the seed.
    pub arguments: String,
    /// A description of the broken promise, and of what happened instead.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, arguments, what } = self;
        write!(
            out,
            "seed {seed}, step {step}: {what}\nrepeat with: weir-simulate --seed {seed} {arguments} --narrate"
        )
    }
}

/// The amount of text that a simulated run prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Voice {
    /// Only the outcome of the run is printed.
    #[default]
    Silent,
    /// Every event of the run is printed on standard error.
    Narrating,
}

/// Runs the simulated world of a seed. For `steps` events clients connect and send; then the remaining ones
/// disconnect, and all activity must come to an end. `voice` sets how much is printed. Returns the figures of
/// the run, or the promise that was broken.
pub fn run(seed: u64, steps: u64, voice: Voice) -> Result<Summary, Failure> {
    finish(&mut World::new(seed, steps, voice), seed, &format!("--steps {steps}"))
}

/// Runs the world of a seed in which the stores form a cluster, whose slots move. Clients act for `steps`
/// events; `voice` says how much is printed. Returns the figures of the run, or the promise of weir's that was
/// broken.
pub fn run_clustered(seed: u64, steps: u64, voice: Voice) -> Result<Summary, Failure> {
    finish(&mut World::clustered(seed, steps, voice), seed, &format!("--cluster --steps {steps}"))
}

/// Runs the world of a seed in which stores report changes of hot keys (CLIENT TRACKING), and clients that
/// bypass weir write there too. Clients act for `steps` events; `voice` says how much is printed. Returns the
/// figures of the run, or the promise of weir's that was broken.
pub fn run_tracked(seed: u64, steps: u64, voice: Voice) -> Result<Summary, Failure> {
    finish(&mut World::tracked(seed, steps, voice), seed, &format!("--tracked --steps {steps}"))
}

/// Runs the world of a seed in which an operator pauses clients (`CLIENT PAUSE`), and ends most pauses early. Clients
/// act for `steps` events; `voice` says how much is printed. Returns the figures of the run, or the promise of weir's
/// that was broken.
pub fn run_paused(seed: u64, steps: u64, voice: Voice) -> Result<Summary, Failure> {
    finish(&mut World::paused(seed, steps, voice), seed, &format!("--pauses --steps {steps}"))
}

/// Runs the world of a seed in which clients wait for elements of queues that they share, and increase
/// counters under `WATCH`. Clients act for `steps` events; `voice` says how much is printed. Returns the
/// figures of the run, or the promise of weir's that was broken.
pub fn run_queues(seed: u64, steps: u64, voice: Voice) -> Result<Summary, Failure> {
    finish(&mut World::queueing(seed, steps, voice), seed, &format!("--queues --steps {steps}"))
}

/// Runs the simulated world of a seed in which clients send 1.5 times as many requests as the stores can
/// serve, with the same checks as other worlds. `trouble` is the kind of disturbance, `voice` the amount of
/// text printed. Returns how the clients' requests ended.
pub fn run_overloaded(seed: u64, trouble: Trouble, voice: Voice) -> Result<Outcome, Failure> {
    let mut world = World::overloaded(seed, trouble, voice);
    finish(&mut world, seed, &format!("--overload --trouble {trouble}"))?;
    Ok(world.outcome())
}

/// Runs a simulated world to its end. `arguments` are those of `weir-simulate` that repeat it, without the
/// seed. Returns the figures of the run, or the promise of weir's that was broken.
fn finish(world: &mut World, seed: u64, arguments: &str) -> Result<Summary, Failure> {
    world.run().map_err(|what| Failure { seed, step: world.step(), arguments: arguments.to_owned(), what })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use weir::values::Tier;

    const STEPS: u64 = 16_000;

    #[test]
    fn seeds_0_to_31_break_no_promise() {
        hold(0..32);
    }

    #[test]
    fn seeds_32_to_79_break_no_promise() {
        hold(32..80);
    }

    #[test]
    fn the_same_seed_leaves_the_same_trace() {
        let [first, second] = [(); 2].map(|()| run(5, STEPS, Voice::Silent).expect("holds"));
        assert_eq!(first, second);
        assert_ne!(first.trace, run(6, STEPS, Voice::Silent).expect("holds").trace);
    }

    #[test]
    fn under_half_as_much_again_as_stores_can_do_nearly_all_of_what_they_do_is_of_use() {
        for seed in [0, 6, 10] {
            let outcome = run_overloaded(seed, Trouble::NONE, Voice::Silent);
            let outcome = outcome.unwrap_or_else(|failure| panic!("{failure}"));
            assert!(outcome.goodput() >= 0.95, "seed {seed}: {outcome:?}");
            assert!(outcome.served(Tier::Critical) >= 0.99, "seed {seed}: {outcome:?}");
            assert!(outcome.late() <= 0.001, "seed {seed}: {outcome:?}");
        }
    }

    #[test]
    fn stalls_late_cores_and_lost_connections_under_load_break_no_promise() {
        for seed in [0, 2, 5] {
            let outcome = run_overloaded(seed, Trouble::ALL, Voice::Silent);
            outcome.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }

    #[test]
    fn seeds_0_to_31_of_clusters_break_no_promise() {
        let sum = sum(0..32, run_clustered);
        let Summary { slots_moved: moved, takeovers, redirections, from_memory, walks, .. } = sum;
        let Summary { refusals, replies, .. } = sum;
        assert!(moved > 200 && redirections > 2_000, "{moved} slots moved, {redirections} redirections");
        assert!(takeovers > 10, "{takeovers} takeovers");
        assert!(walks > 2, "{walks} complete SCANs");
        assert!(from_memory > 500, "{from_memory} replies from memory");
        assert!(replies > 2 * refusals, "{refusals} refusals in {replies} replies");
    }

    #[test]
    fn seeds_0_to_31_with_writers_around_weir_break_no_promise() {
        let Summary { changes_told, trackers_lost, from_memory, .. } = sum(0..32, run_tracked);
        assert!(
            changes_told > 200 && trackers_lost > 10,
            "{changes_told} changes told, {trackers_lost} lost"
        );
        assert!(from_memory > 1_000, "{from_memory} replies from memory");
    }

    #[test]
    fn seeds_0_to_47_with_queues_and_counters_break_no_promise() {
        let Summary { elements_delivered, committed, conflicts, links_lost, waits_moved, .. } =
            sum(0..48, run_queues);
        assert!(waits_moved > 60, "{waits_moved} blocking commands moved");
        assert!(elements_delivered > 5_000, "{elements_delivered} elements");
        assert!(committed > 1_000 && conflicts > 100, "{committed} transactions, {conflicts} conflicts");
        assert!(links_lost > 50, "{links_lost} connections lost");
    }

    #[test]
    fn seeds_0_to_47_with_pauses_break_no_promise() {
        let Summary { replies, refusals, .. } = sum(0..48, run_paused);
        assert!(replies > 2 * refusals, "{refusals} refusals in {replies} replies");
    }

    #[test]
    fn the_same_seed_of_a_cluster_leaves_the_same_trace() {
        let [first, second] = [(); 2].map(|()| run_clustered(3, STEPS, Voice::Silent).expect("holds"));
        assert_eq!(first, second);
    }

    fn sum(seeds: Range<u64>, run: impl Fn(u64, u64, Voice) -> Result<Summary, Failure>) -> Summary {
        let mut sum = Summary::default();
        for seed in seeds {
            sum += run(seed, STEPS, Voice::Silent).unwrap_or_else(|failure| panic!("{failure}"));
        }
        sum
    }

    fn hold(seeds: Range<u64>) {
        let Summary { replies, refusals, walks, from_memory, from_copies, .. } = sum(seeds, run);
        assert!(
            from_memory > 1_000 && from_copies > 50,
            "{from_memory} replies from memory, {from_copies} of copies"
        );
        assert!(refusals > 100 && replies > 2 * refusals, "{refusals} refusals in {replies} replies");
        assert!(walks > 40, "{walks} complete SCANs");
    }
}
