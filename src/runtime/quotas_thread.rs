//! Reads and checks quotas on a thread of its own, since thousands of tenants take a while and the control
//! executor must serve shards meanwhile. Also watches the quota file. The result goes to the control
//! executor, which puts it in force.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use crossbeam_channel::Receiver;
use rustix::event::{PollFd, PollFlags, poll};

use super::clock::timespec;
use super::messages::{Mailbox, QuotasRead, ToControl, ToQuotas};
use super::watch::{FileWatch, check_rereadable};
use crate::config::{QuotaError, QuotaText, Quotas, TokenSource};
use crate::control::QuotaSource;

/// The name that errors give to a quota file that was posted over HTTP.
const POSTED: &str = "request body";

/// The path of the quota file, and the watch that notices its changes.
pub(super) struct QuotaFile {
    pub path: PathBuf,
    pub watch: FileWatch,
}

/// The mailboxes, the quota file and the source of the admin token of the thread that reads and checks
/// quotas.
pub(super) struct QuotasThread {
    pub file: Option<QuotaFile>,
    pub token: Option<TokenSource>,
    pub control: Mailbox<ToControl>,
    pub letters: Receiver<ToQuotas>,
    pub bell: OwnedFd,
}

impl QuotasThread {
    /// Starts the thread that reads and checks quotas, which ends with the process. Fails if the thread cannot
    /// be started.
    pub fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("weir-quotas".to_owned()).spawn(move || self.run()).map(|_| ())
    }

    fn run(mut self) {
        loop {
            let mut reload = false;
            while let Ok(letter) = self.letters.try_recv() {
                match letter {
                    // However many reloads were ordered meanwhile, the file is read once.
                    ToQuotas::Reload => reload = true,
                    ToQuotas::Check { body, ticket } => self.check(&body, ticket),
                }
            }
            if reload {
                self.reload();
            }
            self.wait();
            if self.file.as_mut().is_some_and(|file| file.watch.has_changed()) {
                self.read_file(QuotaSource::Change);
            }
        }
    }

    fn reload(&self) {
        if let Some(token @ TokenSource::File(path)) = &self.token {
            let read = check_rereadable(path)
                .map_err(|problem| format!("--admin-token-file {}: {problem}", path.display()))
                .and_then(|()| token.load().map_err(|error| error.to_string()));
            self.control.post(ToControl::Token(read));
        }
        self.read_file(QuotaSource::Signal);
    }

    fn check(&self, body: &[u8], ticket: u64) {
        let result = Quotas::parse_bytes(POSTED, body);
        let text = std::str::from_utf8(body).ok().filter(|_| result.is_ok());
        let posted = text.and_then(QuotaText::without_passwords);
        self.tell(QuotasRead { source: QuotaSource::Post, ticket: Some(ticket), result, posted });
    }

    fn read_file(&self, source: QuotaSource) {
        let Some(file) = &self.file else { return };
        let result = check_rereadable(&file.path)
            .map_err(|problem| QuotaError::of_file(&file.path.display().to_string(), problem))
            .and_then(|()| Quotas::load(&file.path));
        self.tell(QuotasRead { source, ticket: None, result, posted: None });
    }

    fn tell(&self, read: QuotasRead) {
        self.control.post(ToControl::Quotas(Box::new(read)));
    }

    /// Sleeps until a message to this thread arrives, the kernel reports an event of the watched quota file,
    /// or it is time to look at the file. An interruption only makes the sleep shorter.
    fn wait(&self) {
        let patience = self.file.as_ref().map(|file| timespec(file.watch.patience()));
        let watched = self.file.as_ref().and_then(|file| file.watch.handle());
        let handles: Vec<BorrowedFd<'_>> = std::iter::once(self.bell.as_fd()).chain(watched).collect();
        let mut polled: Vec<PollFd<'_>> =
            handles.iter().map(|handle| PollFd::from_borrowed_fd(*handle, PollFlags::IN)).collect();
        let ready = poll(&mut polled, patience.as_ref());
        if ready.is_ok() && polled[0].revents().contains(PollFlags::IN) {
            // Reading resets the eventfd; the value read, a count of messages, is of no use.
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        }
    }
}
