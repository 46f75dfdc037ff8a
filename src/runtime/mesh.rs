//! Messages between shards: a ring of batches for each ordered pair of shards, and a doorbell for shards that
//! sleep.
//!
//! ```text
//!   shard i ── batches ──> shard j        one single-producer ring per pair, nothing shared but its ends
//!      └─ MSG_RING, only if j said that it sleeps ──> j's io_uring
//! ```

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::shard::Batch;
use crate::values::{ShardId, Timestamp};

/// The capacity, in batches of messages, of the ring from one shard to another; when it is full, further
/// messages gather at the sender.
const BATCHES_UNDER_WAY: usize = 64;

/// The longest time for which messages to other shards are collected before they are sent, while the core finds
/// work in every round of its loop.
const GATHERING_MAX: Duration = Duration::from_micros(30);

/// Bytes read of `/proc/thread-self/stat`: enough for the state of the thread, which stands behind the thread's
/// number and its name of at most 15 bytes.
const STAT_BYTES: usize = 64;

/// Decides when batches of messages are sent to other shards. A core that finds work in every turn (round) of
/// its loop will have more messages for the same shards in the next turn, so batches wait until a turn finds
/// none or 30 us (`GATHERING_MAX`) have passed: fewer and larger batches, and fewer wake-ups.
#[derive(Debug, Default)]
pub(super) struct Departure {
    gathering_since: Option<Timestamp>,
}

impl Departure {
    /// Returns whether batches of messages to other shards are sent in this turn (round) of the core's loop:
    /// after 30 us of turns with work (`GATHERING_MAX`), which the first call begins to measure, and after
    /// each turn that found none, so that no message waits while the core sleeps. `work` is the amount of
    /// work that the turn found.
    pub fn is_due(&mut self, work: usize, now: Timestamp) -> bool {
        let since = *self.gathering_since.get_or_insert(now);
        let is_due = work == 0 || now.since(since) >= GATHERING_MAX;
        if is_due {
            self.gathering_since = None;
        }
        is_due
    }
}

/// The state of a shard that all other shards can see, without a lock: whether and how it must be woken, and
/// how many turns (rounds of its loop) it has ended.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Peer {
    /// True while the shard sleeps, or is about to, so that whoever sends to it must wake it.
    parked: AtomicBool,
    /// The number of turns (rounds of its loop) that the shard has ended.
    turns: AtomicU64,
    /// A descriptor of the shard's `io_uring`, by which others wake it. It stays open until the last shard
    /// ends, so that a wake-up never goes to another ring with the same number.
    doorbell: OnceLock<OwnedFd>,
    /// `/proc/thread-self/stat` of the shard's thread, which tells whether the thread runs; none where there is
    /// no `/proc`.
    stat: OnceLock<File>,
}

/// One shard's ends of the rings of messages to and from every other shard.
pub(super) struct Mesh {
    own: usize,
    peers: Arc<[Peer]>,
    outbound: Vec<Option<Producer<Box<Batch>>>>,
    inbound: Vec<Option<Consumer<Box<Batch>>>>,
    /// Batches of messages that did not fit in the full ring to their destination, indexed by destination
    /// shard.
    waiting: Vec<Option<Box<Batch>>>,
    blocked_since: Option<Timestamp>,
    /// Shards that are woken if they sleep: those to which a batch of messages was sent in this turn (round) of
    /// the core's loop or was held back because the ring to them was full.
    given: Vec<usize>,
    /// Shards that the kernel failed to wake, to be woken once more.
    unwoken: Vec<usize>,
}

/// Makes the rings of messages between all pairs of shards, and returns each shard's ends.
pub(super) fn weave(shards: usize) -> Vec<Mesh> {
    let peers: Arc<[Peer]> = std::iter::repeat_with(Peer::default).take(shards).collect();
    let mut meshes: Vec<Mesh> = (0..shards)
        .map(|own| Mesh {
            own,
            peers: Arc::clone(&peers),
            outbound: std::iter::repeat_with(|| None).take(shards).collect(),
            inbound: std::iter::repeat_with(|| None).take(shards).collect(),
            waiting: std::iter::repeat_with(|| None).take(shards).collect(),
            blocked_since: None,
            given: Vec::with_capacity(shards),
            unwoken: Vec::new(),
        })
        .collect();
    for from in 0..shards {
        for to in (0..shards).filter(|to| *to != from) {
            let (producer, consumer) = RingBuffer::new(BATCHES_UNDER_WAY);
            meshes[from].outbound[to] = Some(producer);
            meshes[to].inbound[from] = Some(consumer);
        }
    }
    meshes
}

impl Mesh {
    /// Publishes `doorbell`, the descriptor by which other shards wake this one, and lets them see whether the
    /// calling thread, which is this shard's, runs.
    pub fn announce(&self, doorbell: OwnedFd) {
        let own = &self.peers[self.own];
        own.doorbell.set(doorbell).expect("a shard announces itself once");
        if let Ok(stat) = File::open("/proc/thread-self/stat") {
            own.stat.set(stat).expect("a shard announces itself once");
        }
    }

    /// Removes and returns the next batch of messages from any other shard, if there is any.
    pub fn receive(&mut self) -> Option<Box<Batch>> {
        self.inbound.iter_mut().flatten().find_map(|consumer| consumer.pop().ok())
    }

    /// Sends a batch of messages to another shard; it waits on this side if the ring to that shard is full. The
    /// caller sends at most one batch per destination and turn (round of the core's loop), and none while a
    /// full ring holds batches back ([`Mesh::push_again`]).
    pub fn send(&mut self, to: ShardId, batch: Box<Batch>) {
        let to = usize::from(to.0);
        debug_assert!(
            self.waiting[to].is_none(),
            "at most one batch per destination and turn, and none while batches are held back"
        );
        self.waiting[to] = Some(batch);
        self.push_waiting(to);
    }

    /// Tries again to send batches of messages that found a full ring. If a ring is still full, returns for
    /// how long full rings have held batches back; otherwise `None`.
    pub fn push_again(&mut self, now: Timestamp) -> Option<Duration> {
        let mut blocked = false;
        for to in 0..self.waiting.len() {
            if self.waiting[to].is_some() {
                self.push_waiting(to);
                blocked |= self.waiting[to].is_some();
            }
        }
        if !blocked {
            self.blocked_since = None;
            return None;
        }
        Some(now.since(*self.blocked_since.get_or_insert(now)))
    }

    fn push_waiting(&mut self, to: usize) {
        let Some(batch) = self.waiting[to].take() else { return };
        let producer = self.outbound[to].as_mut().expect("a shard sends to others only");
        match producer.push(batch) {
            Ok(()) => self.given.push(to),
            Err(rtrb::PushError::Full(batch)) => {
                self.waiting[to] = Some(batch);
                // The peer may sleep in spite of a full ring, if its wake-up was lost between two checks:
                // ring again.
                self.given.push(to);
            }
        }
    }

    /// Records that the kernel failed to wake the shard with number `peer`, so that the next call of
    /// [`Mesh::sleepers`] returns the shard once more.
    pub fn ring_again(&mut self, peer: usize) {
        // A peer that is awake by now only looks at its rings once more.
        self.unwoken.push(peer);
    }

    /// Returns the shards that have to be woken, because they sleep while messages from this shard wait for
    /// them: their numbers, each with the descriptor by which it is woken. A shard is returned once per
    /// sleep, and again if the kernel failed to wake it.
    pub fn sleepers(&mut self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        // Pairs with the fence in `park`: either the sleeper sees the batch, or its flag is seen here.
        if !self.given.is_empty() {
            fence(Ordering::SeqCst);
        }
        let peers = &self.peers;
        let again = self.unwoken.drain(..).map(|to| (to, true));
        again.chain(self.given.drain(..).map(|to| (to, false))).filter_map(|(to, is_again)| {
            let peer = &peers[to];
            let parks = peer.parked.load(Ordering::Relaxed) && peer.parked.swap(false, Ordering::Relaxed);
            (parks || is_again).then(|| peer.doorbell.get().map(|bell| (to, bell.as_fd()))).flatten()
        })
    }

    /// Announces to the other shards that this one is about to sleep. False if it must stay awake, since
    /// messages have come in.
    pub fn park(&mut self) -> bool {
        // A shard that reads the flag as true also sees all that this shard has written before it parks.
        self.peers[self.own].parked.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let empty = self.inbound.iter_mut().flatten().all(|consumer| consumer.is_empty());
        if !empty {
            self.unpark();
        }
        empty
    }

    /// Announces to the other shards that this one has ended a turn (round of its loop).
    #[inline]
    pub fn end_turn(&mut self) {
        let turns = &self.peers[self.own].turns;
        // Each shard writes only its own counter, so that no read-modify-write operation is needed.
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Returns the numbers of all other shards.
    pub fn others(&self) -> impl Iterator<Item = usize> {
        (0..self.peers.len()).filter(|peer| *peer != self.own)
    }

    /// Returns how many turns (rounds of its loop) the shard with number `peer` has ended.
    pub fn turns_ended(&self, peer: usize) -> u64 {
        self.peers[peer].turns.load(Ordering::Acquire)
    }

    /// True if the shard with number `peer` sleeps, or is about to, and nobody is waking it.
    pub fn is_parked(&self, peer: usize) -> bool {
        self.peers[peer].parked.load(Ordering::Acquire)
    }

    /// True if the shard with number `peer` sleeps, and its `io_uring` has no completions and no pending work
    /// for it. Also true while the kernel copies received bytes on the thread of the sleeping shard;
    /// [`Mesh::is_asleep`] is false then.
    pub fn is_idle(&self, peer: usize) -> bool {
        let Some(bell) = self.peers[peer].doorbell.get().filter(|_| self.is_parked(peer)) else {
            return false;
        };
        // An `io_uring` is readable while it has completions, or work that leads to some.
        let readable = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&Timespec::default()));
        // A shard that has woken up during this call may have taken its completions before they were looked for.
        readable == Ok(0) && self.is_parked(peer)
    }

    /// True if the thread of the shard with number `peer` waits in the kernel for something to happen. False
    /// while it runs, or waits for a CPU, also within the kernel: after bytes have come for a sleeping shard,
    /// its own thread copies them, and [`Mesh::is_idle`] is true until it has. True where there is no `/proc`.
    pub fn is_asleep(&self, peer: usize) -> bool {
        let mut text = [0; STAT_BYTES];
        let Some(read) = self.peers[peer].stat.get().and_then(|stat| stat.read_at(&mut text, 0).ok()) else {
            return true;
        };
        // `1234 (weir-0) S ...`: a thread's name may hold a bracket, but no number after it does.
        let state = text[..read].rsplit(|byte| *byte == b')').next().unwrap_or_default();
        state.starts_with(b" S")
    }

    /// Announces to the other shards that this one is awake and need not be woken.
    pub fn unpark(&mut self) {
        self.peers[self.own].parked.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    use crate::shard::{Message, Outcome, ReplyTo};

    fn numbered(number: u32) -> Box<Batch> {
        let mut batch = Box::<Batch>::default();
        let to = ReplyTo { shard: ShardId(0), part: 0, client: 0, generation: 0, sequence: number };
        batch.push_reply(to, Outcome::Refused, Message::Small(b"x"));
        batch
    }

    #[test]
    fn batches_arrive_in_order_and_a_full_ring_loses_none() {
        let mut meshes = weave(2);
        let mut receiver = meshes.pop().expect("two shards");
        let mut sender = meshes.pop().expect("two shards");
        let mut sent = 0;
        let mut seen = Vec::new();
        while seen.len() < 3 * BATCHES_UNDER_WAY {
            while sender.push_again(Timestamp::ZERO).is_none() && sent < 3 * BATCHES_UNDER_WAY as u32 {
                sender.send(ShardId(1), numbered(sent));
                sent += 1;
            }
            let batch = receiver.receive().expect("something is under way");
            seen.extend(batch.replies().map(|(to, ..)| to.sequence));
            sender.push_again(Timestamp::ZERO);
        }
        assert!(seen.is_sorted() && seen.len() == 3 * BATCHES_UNDER_WAY);
    }

    #[test]
    fn how_long_a_ring_has_been_full_is_known() {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut meshes = weave(2);
        let mut receiver = meshes.pop().expect("two shards");
        let mut sender = meshes.pop().expect("two shards");
        for number in 0..=BATCHES_UNDER_WAY as u32 {
            assert_eq!(sender.push_again(at(1)), None);
            sender.send(ShardId(1), numbered(number));
        }
        assert_eq!(sender.push_again(at(2)), Some(Duration::ZERO));
        assert_eq!(sender.push_again(at(9)), Some(Duration::from_millis(7)));
        receiver.receive().expect("a full ring");
        assert_eq!(sender.push_again(at(10)), None);
        sender.send(ShardId(1), numbered(99));
        assert_eq!(sender.push_again(at(20)), Some(Duration::ZERO), "it begins anew");
    }

    #[test]
    fn batches_wait_for_the_end_of_the_work_but_not_long() {
        let at = |micros: u64| Timestamp::from_nanos(1_000_000 + micros * 1_000);
        let mut departure = Departure::default();
        assert!(departure.is_due(0, at(0)), "nothing more is coming");
        assert!(!departure.is_due(3, at(10)));
        assert!(departure.is_due(0, at(12)), "a short stretch of work is over");
        assert!(!departure.is_due(1, at(20)), "each stretch begins anew");
        assert!(!departure.is_due(1, at(49)));
        assert!(departure.is_due(1, at(50)), "work goes on");
        assert!(!departure.is_due(1, at(51)));
    }

    #[test]
    fn a_sleeper_is_woken_once_and_does_not_sleep_on_a_batch() {
        let mut meshes = weave(2);
        let mut receiver = meshes.pop().expect("two shards");
        let mut sender = meshes.pop().expect("two shards");
        let (doorbell, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let number = doorbell.as_raw_fd();
        receiver.announce(doorbell.into());
        assert!(receiver.park());
        sender.send(ShardId(1), numbered(1));
        let named = |sender: &mut Mesh| -> Vec<(usize, i32)> {
            sender.sleepers().map(|(peer, bell)| (peer, bell.as_raw_fd())).collect()
        };
        assert_eq!(named(&mut sender), [(1, number)]);
        sender.send(ShardId(1), numbered(2));
        assert_eq!(named(&mut sender), []);
        sender.ring_again(1);
        assert!(
            !receiver.peers[1].parked.load(Ordering::Relaxed),
            "one that may be awake does not pass for asleep"
        );
        assert_eq!(named(&mut sender), [(1, number)], "the kernel could not wake it");
        assert_eq!(named(&mut sender), []);
        assert!(!receiver.park(), "two batches wait");
    }
}
