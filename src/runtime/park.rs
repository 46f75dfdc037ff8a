//! Sleeping inside the executor: the core's task awaits the ring's eventfd through glommio, so that the executor may
//! run other tasks meanwhile and costs nothing when there are none.

use std::os::fd::{BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::time::Duration;
use std::{future::Future, io, pin::Pin};

use glommio::io::BufferedFile;

/// A core that has had work so lately sleeps on its ring itself, which takes one system call; only then does it sleep in
/// the executor, which takes several. Other tasks of the executor may be late by that much.
pub(super) const SHALLOW_SLEEP: Duration = Duration::from_millis(20);

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

    /// Sleeps until the ring, another core or anyone with the wait handle says so.
    pub async fn sleep(&mut self) {
        let file = std::rc::Rc::clone(&self.file);
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::pin(async move {
                // What is read is only a count of signals. An error means that there is nothing to wait for.
                let _ = file.read_at(0, 8).await;
            })
        });
        waiting.await;
        self.waiting = None;
    }
}

#[expect(unsafe_code, reason = "glommio takes a file by its bare descriptor")]
fn wrapped(handle: OwnedFd) -> BufferedFile {
    // SAFETY: the descriptor is open and owned by nobody else.
    unsafe { BufferedFile::from_raw_fd(handle.into_raw_fd()) }
}
