//! Sleeping inside the executor: the core's task awaits its ring's eventfd through glommio, so that the
//! executor may run other tasks meanwhile and uses no CPU when there are none.

use std::os::fd::{BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::time::Duration;
use std::{future::Future, io, pin::Pin};

use glommio::io::BufferedFile;
use glommio::timer::Timer;

/// The time after a core's last work during which it sleeps in its own `io_uring`, which takes one system
/// call; later it sleeps in the executor, which takes several. Other tasks of the executor may be late by
/// this much.
pub(super) const SHALLOW_SLEEP: Duration = Duration::from_millis(20);

/// Returns how long a core may sleep that waits for progress of another core which does not wake it (room in a
/// full ring, say), and has waited for the time `waited` so far: an eighth of that time, 50 us to 5 ms. Then
/// the core must check again by itself.
pub(super) fn sleep_between_looks(waited: Duration) -> Duration {
    (waited / 8).clamp(Duration::from_micros(50), Duration::from_millis(5))
}

/// The longest sleep of a core when no event wakes it (1 s), so that a lost wake-up delays work by at most this
/// time.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The reason why a core's sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The core's sleep ended because its eventfd was signalled.
    Woken,
    /// The core's sleep ended because its time was over.
    Ended,
}

/// Lets a core's task sleep until an eventfd is signalled, repeatedly, while other tasks of its executor may
/// run.
pub(super) struct Parking {
    file: std::rc::Rc<BufferedFile>,
    /// The read of the eventfd that has not completed yet; none before the first sleep, or after the eventfd
    /// was signalled. If a sleep ends by time, the next sleep continues this read.
    waiting: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Parking {
    /// Creates a sleeper that waits on a duplicate of this eventfd, which any thread may signal.
    pub fn new(handle: BorrowedFd<'_>) -> io::Result<Self> {
        let handle = handle.try_clone_to_owned()?;
        Ok(Self { file: std::rc::Rc::new(wrapped(handle)), waiting: None })
    }

    /// Sleeps until the eventfd is signalled, for at most a second (`SLEEP_MAX`). Returns which of the two
    /// ended the sleep.
    pub async fn sleep(&mut self) -> Rest {
        self.sleep_for(SLEEP_MAX).await
    }

    async fn sleep_for(&mut self, longest: Duration) -> Rest {
        let file = std::rc::Rc::clone(&self.file);
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::pin(async move {
                // The value read is only a count of signals. An error means that there is nothing to wait
                // for.
                let _ = file.read_at(0, 8).await;
            })
        });
        let woken = async {
            waiting.await;
            Rest::Woken
        };
        let rest = futures_lite::future::or(woken, async {
            Timer::new(longest).await;
            Rest::Ended
        });
        let rest = rest.await;
        if rest == Rest::Woken {
            self.waiting = None;
        }
        rest
    }
}

#[expect(unsafe_code, reason = "glommio takes a file by its bare descriptor")]
fn wrapped(handle: OwnedFd) -> BufferedFile {
    // SAFETY: the descriptor is open and owned by nobody else.
    unsafe { BufferedFile::from_raw_fd(handle.into_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_sleep_is_over_when_somebody_signals_or_it_was_long_enough() {
        glommio::LocalExecutor::default().run(async {
            let handle = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
            let mut parking = Parking::new(handle.as_fd()).expect("a parking");
            let signal = || rustix::io::write(&handle, &1_u64.to_ne_bytes()).expect("room for a signal");
            signal();
            assert_eq!(parking.sleep_for(Duration::from_secs(60)).await, Rest::Woken);
            assert_eq!(parking.sleep_for(Duration::from_millis(1)).await, Rest::Ended);
            signal();
            assert_eq!(parking.sleep_for(Duration::from_secs(60)).await, Rest::Woken, "a wait goes on");
            assert_eq!(
                parking.sleep_for(Duration::from_millis(1)).await,
                Rest::Ended,
                "one signal, one waking"
            );
        });
    }
}
