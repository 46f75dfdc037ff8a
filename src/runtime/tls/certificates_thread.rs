//! Reads certificates again when their files change, or somebody says so: on a thread of its own, which takes its time and is asleep
//! otherwise. What is wrong is told, and what was in force stays.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::files::TlsFiles;
use super::handshakes_thread::ToHandshakes;
use super::tally::Tally;
use crate::runtime::log;
use crate::runtime::messages::{Mailbox, ToControl};
use crate::runtime::watch::FileWatch;

/// A certificate and its key are two files: whoever replaces both has so long between them.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the thread works with.
pub(in crate::runtime) struct CertificatesThread {
    pub files: TlsFiles,
    pub watches: Vec<FileWatch>,
    pub handshakes: Mailbox<ToHandshakes>,
    pub control: Mailbox<ToControl>,
    pub tally: Arc<Tally>,
    /// Each letter means that they are to be read again.
    pub letters: Receiver<()>,
    pub bell: OwnedFd,
}

impl CertificatesThread {
    /// Starts it. It ends with the process.
    pub fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("weir-certs".to_owned()).spawn(move || self.run()).map(|_| ())
    }

    fn run(mut self) {
        loop {
            let Some(told) = self.wait(None) else { continue };
            // Each is looked at, or what was seen of the others is told as a change later.
            let changed =
                self.watches.iter_mut().map(FileWatch::has_changed).filter(|changed| *changed).count();
            if told || changed > 0 {
                self.reload();
            }
        }
    }

    fn reload(&mut self) {
        let loaded = self.files.load().or_else(|_| {
            // The other half of it may be on its way.
            self.wait(Some(PATIENCE));
            self.watches.iter_mut().for_each(|watch| _ = watch.has_changed());
            self.files.load()
        });
        self.tally.note_reload(loaded.is_ok());
        let text = match loaded {
            Ok(config) => {
                self.handshakes.post(ToHandshakes::Config(config));
                format!("TLS: the certificate in {} is in force", self.files.certificate.display())
            }
            Err(problem) => format!("{problem}; the certificate in force stays as it is"),
        };
        self.control.post(ToControl::Said(log::Kind::Tls, text));
    }

    /// Sleeps until somebody wants them read again (true) or there is something about the files. Nothing if it was only
    /// interrupted. So long at most, if that is said.
    fn wait(&self, at_most: Option<Duration>) -> Option<bool> {
        let patience = self.watches.iter().filter_map(FileWatch::patience).chain(at_most).min();
        let watched = self.watches.iter().filter_map(FileWatch::handle);
        let handles: Vec<BorrowedFd<'_>> = std::iter::once(self.bell.as_fd()).chain(watched).collect();
        let mut polled: Vec<PollFd<'_>> =
            handles.iter().map(|handle| PollFd::from_borrowed_fd(*handle, PollFlags::IN)).collect();
        let patience = patience
            .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        poll(&mut polled, patience.as_ref()).ok()?;
        let told = polled[0].revents().contains(PollFlags::IN);
        if told {
            // What is read is only a count of letters.
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
            // However often that was asked for meanwhile, they are read once.
            self.letters.try_iter().for_each(drop);
        }
        Some(told)
    }
}
