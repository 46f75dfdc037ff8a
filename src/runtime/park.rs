//! Sleeping inside the executor: the core's task awaits the ring's eventfd through glommio, so that the executor may
//! run other tasks meanwhile and costs nothing when there are none.

use std::os::fd::{BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::time::Duration;
use std::{future::Future, io, pin::Pin};

use glommio::io::BufferedFile;
use glommio::timer::Timer;

/// A core that has had work so lately sleeps on its ring itself, which takes one system call; only then does it sleep in
/// the executor, which takes several. Other tasks of the executor may be late by that much.
pub(super) const SHALLOW_SLEEP: Duration = Duration::from_millis(20);

/// How long a core sleeps at most that has had something for another one for so long, which takes nothing on: nobody tells it
/// when there is room.
pub(super) fn full_peer_sleep(blocked: Duration) -> Duration {
    (blocked / 8).clamp(Duration::from_micros(50), Duration::from_millis(5))
}

/// A core gets up this often though nobody woke it, so that a signal which was lost on its way costs no more than that.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// How a sleep was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Somebody signalled.
    Woken,
    /// It had been long enough.
    Ended,
}

/// Waits for an eventfd, again and again.
pub(super) struct Parking {
    file: std::rc::Rc<BufferedFile>,
    /// A wait that was not over when its sleeper had to get up goes on at the next sleep.
    waiting: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Parking {
    /// Sleeps on an eventfd, which anyone may signal.
    pub fn new(handle: BorrowedFd<'_>) -> io::Result<Self> {
        let handle = handle.try_clone_to_owned()?;
        Ok(Self { file: std::rc::Rc::new(wrapped(handle)), waiting: None })
    }

    /// Sleeps until the ring, another core or anyone with the wait handle says so, or for a second.
    pub async fn sleep(&mut self) -> Rest {
        self.sleep_for(SLEEP_MAX).await
    }

    async fn sleep_for(&mut self, longest: Duration) -> Rest {
        let file = std::rc::Rc::clone(&self.file);
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::pin(async move {
                // What is read is only a count of signals. An error means that there is nothing to wait for.
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
