//! Finds out whether the other cores have handled all that the kernel had for them at some moment. A client may
//! have sent a request (`SUBSCRIBE`) to one core before another client's request (`PUBLISH`), which must take
//! effect later, came to another core.
//!
//! ```text
//!  the peer sleeps, its thread does not run in the kernel, and the kernel has nothing for it ──> it has handled all
//!  the peer is awake, or the kernel is waking it ──> it has once it sleeps after a turn, or ends a second one
//! ```
//!
//! The peer's turn at that moment may have taken its completions before. At its end the kernel gives it all that has
//! come, so the turn after it handles that, and a peer never sleeps on what the kernel has given. No core is woken for
//! the question: the kernel wakes a peer for which it has something.

use std::time::Duration;

use super::mesh::Mesh;
use crate::values::Timestamp;

/// The number of turns (rounds of its loop) that a core ends after a moment before it has handled everything that
/// the kernel had for it at that moment.
const TURNS_AWAITED: u64 = 2;
/// The time for which the kernel must have had nothing for a sleeping core before the core counts as having
/// handled all. Where there is no `/proc`, work that the kernel is just carrying out for a core, such as to copy
/// bytes from a socket, shows nowhere, and is over within this time.
const NOTHING_FOR: Duration = Duration::from_micros(10);

/// Another core that may not have handled yet everything that the kernel had for it when the question was
/// asked.
#[derive(Debug)]
struct Behind {
    peer: usize,
    /// The number of turns (rounds of its loop) that the core had ended when the question was asked.
    turns: u64,
    /// The time since when the core has slept while the kernel had nothing for it. None once a look has found the core
    /// awake, or something for it.
    idle_since: Option<Timestamp>,
}

/// The question whether all other cores have handled everything that the kernel had for them when it was asked,
/// so that a SUBSCRIBE that a client sent to another core takes effect before a later PUBLISH here. One
/// question at a time; each `look` reads how many turns (rounds of their loops) the other cores have ended, and
/// whether they sleep.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The time at which the question was asked; none while no question is under way.
    began: Option<Timestamp>,
    behind: Vec<Behind>,
}

impl Survey {
    /// Looks at the other cores once more, for the question under way or for a new one. Returns the time at
    /// which the question was asked as soon as all other cores have handled what the kernel had for them then;
    /// the next call then begins a new question. None before that: the caller looks again later.
    pub fn look(&mut self, mesh: &Mesh, now: Timestamp) -> Option<Timestamp> {
        let began = *self.began.get_or_insert_with(|| {
            self.behind.extend(mesh.others().map(|peer| Behind {
                peer,
                turns: mesh.turns_ended(peer),
                idle_since: Some(now),
            }));
            now
        });
        self.behind.retain_mut(|behind| !behind.has_got_on(mesh, now));
        self.behind.is_empty().then(|| {
            self.began = None;
            began
        })
    }

    /// Returns for how long the question under way has been asked; zero if there is none.
    pub fn lasts(&self, now: Timestamp) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }
}

impl Behind {
    fn has_got_on(&mut self, mesh: &Mesh, now: Timestamp) -> bool {
        let turns = mesh.turns_ended(self.peer) - self.turns;
        if turns > 0 {
            return turns >= TURNS_AWAITED || mesh.is_parked(self.peer);
        }
        self.idle_since = self.idle_since.filter(|_| mesh.is_idle(self.peer));
        // The thread is looked at last: bytes that came before are by now in its hands, or handled.
        self.idle_since.is_some_and(|since| now.since(since) >= NOTHING_FOR) && mesh.is_asleep(self.peer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crossbeam_channel::{Sender, bounded};

    use super::*;
    use crate::runtime::mesh::weave;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_nanos(micros * 1_000)
    }

    #[test]
    fn a_core_that_is_awake_has_handled_everything_after_its_second_turn() {
        let mut meshes = weave(3);
        let mut survey = Survey::default();
        meshes[1].end_turn();
        for turn in 0..2 {
            assert_eq!(survey.look(&meshes[0], at(turn)), None);
            meshes[1].end_turn();
            meshes[2].end_turn();
        }
        assert_eq!(survey.look(&meshes[0], at(90)), Some(at(0)), "it was asked then");
        assert_eq!(
            (survey.look(&meshes[0], at(100)), survey.lasts(at(101))),
            (None, Duration::from_micros(1))
        );
        meshes[1].end_turn();
        meshes[1].end_turn();
        assert_eq!(survey.look(&meshes[0], at(110)), None, "the other one has not turned");
        assert_eq!(Survey::default().look(&weave(1)[0], at(1)), Some(at(1)), "there are no other cores");
    }

    #[test]
    fn a_core_that_sleeps_has_handled_everything_unless_the_kernel_has_something_for_it() {
        let mut meshes = weave(2);
        let (mut doorbell, mut kernel) = UnixStream::pair().expect("a pair");
        let announced = doorbell.try_clone().expect("a copy");
        let (mut peer, thread) = Thread::announced(meshes.pop().expect("two shards"), announced);
        thread.sleep(&meshes[0]);
        assert!(peer.park());
        let mut survey = Survey::default();
        assert_eq!(survey.look(&meshes[0], at(1)), None, "the kernel may be reading something for it");
        assert_eq!(survey.look(&meshes[0], at(10)), None);
        assert_eq!(survey.look(&meshes[0], at(11)), Some(at(1)));
        kernel.write_all(b"x").expect("room");
        assert_eq!(survey.look(&meshes[0], at(20)), None, "it is about to wake");
        doorbell.read_exact(&mut [0]).expect("a byte");
        for micros in [40, 60] {
            assert_eq!(
                survey.look(&meshes[0], at(micros)),
                None,
                "it has yet to handle what the kernel took"
            );
        }
        peer.unpark();
        peer.end_turn();
        assert_eq!(survey.look(&meshes[0], at(61)), None, "the kernel may only now have given it what came");
        assert!(peer.park());
        assert_eq!(survey.look(&meshes[0], at(62)), Some(at(20)), "it does not sleep on what came");
    }

    #[test]
    fn a_core_whose_thread_runs_in_the_kernel_has_not_handled_what_came() {
        let mut meshes = weave(2);
        let (doorbell, _kernel) = UnixStream::pair().expect("a pair");
        let (mut peer, thread) = Thread::announced(meshes.pop().expect("two shards"), doorbell);
        assert!(peer.park());
        let mut survey = Survey::default();
        for micros in [1, 11, 1_000_000] {
            assert_eq!(survey.look(&meshes[0], at(micros)), None, "its thread may be copying bytes");
        }
        thread.sleep(&meshes[0]);
        assert_eq!(survey.look(&meshes[0], at(1_000_001)), Some(at(1)));
    }

    /// A thread in the place of a shard's, which runs until it is told to sleep, and sleeps until this value is
    /// dropped.
    struct Thread {
        sleeps: Arc<AtomicBool>,
        _ends: Sender<()>,
    }

    impl Thread {
        /// Begins a thread that announces a shard to the others, and returns the shard's ends of the rings of
        /// messages (mesh).
        fn announced(mesh: Mesh, doorbell: UnixStream) -> (Mesh, Self) {
            let sleeps = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&sleeps);
            let (announces, announced) = bounded(1);
            let (ends, ended) = bounded::<()>(0);
            std::thread::spawn(move || {
                mesh.announce(doorbell.into());
                assert!(announces.send(mesh).is_ok(), "the test waits for it");
                while !told.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                ended.recv().expect_err("nothing is sent");
            });
            let mesh = announced.recv().expect("the thread announces the shard");
            (mesh, Self { sleeps, _ends: ends })
        }

        fn sleep(&self, mesh: &Mesh) {
            self.sleeps.store(true, Ordering::Relaxed);
            while !mesh.is_asleep(1) {
                std::thread::yield_now();
            }
        }
    }
}
