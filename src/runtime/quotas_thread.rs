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
            self.carry_out_orders();
            self.wait();
            if self.file.as_mut().is_some_and(|file| file.watch.has_changed()) {
                self.read_file(QuotaSource::Change);
            }
        }
    }

    /// Carries out the orders that have arrived, in the order in which they were given, as each result replaces the
    /// quotas of the one before. Of several reloads that follow one another, only one is carried out.
    fn carry_out_orders(&mut self) {
        let mut reload = false;
        while let Ok(letter) = self.letters.try_recv() {
            match letter {
                ToQuotas::Reload => reload = true,
                ToQuotas::Check { body, ticket } => {
                    if std::mem::take(&mut reload) {
                        self.reload();
                    }
                    self.check(&body, ticket);
                }
            }
        }
        if reload {
            self.reload();
        }
    }

    fn reload(&mut self) {
        if let Some(token @ TokenSource::File(path)) = &self.token {
            let read = check_rereadable(path)
                .map_err(|problem| format!("--admin-token-file {}: {problem}", path.display()))
                .and_then(|()| token.load().map_err(|error| error.to_string()));
            self.control.post(ToControl::Token(read));
        }
        if let Some(file) = &mut self.file {
            file.watch.note_read();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::Clock;

    /// A quotas thread that is not started, its quota file, and the two ends that the control executor has of
    /// the channels to and from it. The file is removed when the rig is dropped.
    struct Rig {
        path: PathBuf,
        thread: QuotasThread,
        orders: Mailbox<ToQuotas>,
        told: Receiver<ToControl>,
    }

    impl Rig {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("weir-quotas-{name}-{}", std::process::id()));
            std::fs::write(&path, "[default]\n").expect("a file can be written");
            let (control, told, _) = Mailbox::for_executor().expect("an eventfd");
            let (orders, letters, bell) = Mailbox::for_executor().expect("an eventfd");
            let watch = FileWatch::new(&path, Clock::start());
            let file = Some(QuotaFile { path: path.clone(), watch });
            let thread = QuotasThread { file, token: None, control, letters, bell };
            Self { path, thread, orders, told }
        }

        /// Has the thread carry out these orders, which have all arrived. Returns the sources and tickets of the
        /// quotas that it has read, in the order in which they come into force.
        fn reads(&mut self, orders: Vec<ToQuotas>) -> Vec<(QuotaSource, Option<u64>)> {
            orders.into_iter().for_each(|order| self.orders.post(order));
            self.thread.carry_out_orders();
            let read = |letter| match letter {
                ToControl::Quotas(read) => (read.source, read.ticket),
                other => panic!("{other:?}"),
            };
            self.told.try_iter().map(read).collect()
        }

        fn has_changed(&mut self) -> bool {
            self.thread.file.as_mut().expect("it has one").watch.has_changed()
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn check(ticket: u64) -> ToQuotas {
        ToQuotas::Check { body: b"[default]\n".to_vec(), ticket }
    }

    #[test]
    fn quotas_that_are_posted_after_a_signal_are_read_after_the_file() {
        use ToQuotas::Reload;
        let signal: (QuotaSource, Option<u64>) = (QuotaSource::Signal, None);
        let post = |ticket: u64| (QuotaSource::Post, Some(ticket));
        let mut rig = Rig::new("order");
        assert_eq!(rig.reads(vec![Reload, check(1)]), [signal, post(1)]);
        assert_eq!(rig.reads(vec![check(2), Reload]), [post(2), signal]);
        let several = vec![Reload, Reload, check(3), check(4), Reload, Reload];
        assert_eq!(rig.reads(several), [signal, post(3), post(4), signal]);
    }

    #[test]
    fn a_change_that_was_read_at_a_signal_is_not_read_again() {
        let mut rig = Rig::new("again");
        std::fs::write(&rig.path, "[default]\nru_per_second = 5\n").expect("a file can be written");
        assert_eq!(rig.reads(vec![ToQuotas::Reload, check(1)]).len(), 2);
        assert!(!rig.has_changed(), "it would replace what was posted since");
        std::fs::write(&rig.path, "[default]\nru_per_second = 50\n").expect("a file can be written");
        assert!(rig.has_changed());
    }
}
