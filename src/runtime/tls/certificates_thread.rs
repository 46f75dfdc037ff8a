//! Reads certificate files again when they change, or when ordered to, on a thread of its own that sleeps
//! otherwise. An error is logged, and the certificates in force stay.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use rustix::event::{PollFd, PollFlags, poll};

use super::files::TlsFiles;
use super::handshakes_thread::ToHandshakes;
use super::stores::StoreTls;
use super::tally::Tally;
use crate::runtime::clock::timespec;
use crate::runtime::log;
use crate::runtime::messages::{Mailbox, ToControl};
use crate::runtime::watch::{FileWatch, check_rereadable};

/// The pause before a failed read of certificate files is tried again: a certificate and its key are two
/// files, and this is the time that an operator has to replace both.
const PATIENCE: Duration = Duration::from_millis(500);

/// Certificate files that are put in force together: those for connections of clients, or those for
/// connections to stores.
pub(in crate::runtime) enum Watched {
    /// The files for connections of clients, and the thread that does handshakes with the certificates in
    /// them.
    Clients(Vec<FileWatch>, TlsFiles, Mailbox<ToHandshakes>),
    /// The files for connections to stores, and the TLS settings that hold their content.
    Stores(Vec<FileWatch>, StoreTls),
}

impl Watched {
    fn watches(&self) -> &[FileWatch] {
        match self {
            Self::Clients(watches, ..) | Self::Stores(watches, _) => watches,
        }
    }

    fn have_changed(&mut self) -> bool {
        let (Self::Clients(watches, ..) | Self::Stores(watches, _)) = self;
        // Each watch must be asked, or changes of the others would be reported later.
        watches.iter_mut().map(FileWatch::has_changed).filter(|changed| *changed).count() > 0
    }

    /// Reads these certificate files and, if they are valid, puts them in force. Returns a line for the log;
    /// the error says what is wrong with the files.
    fn reload(&self) -> Result<String, String> {
        for path in self.watches().iter().map(FileWatch::path) {
            check_rereadable(path).map_err(|problem| format!("TLS: {}: {problem}", path.display()))?;
        }
        match self {
            Self::Clients(_, files, handshakes) => {
                handshakes.post(ToHandshakes::Terms(files.load()?));
                Ok(format!("TLS: the certificate in {} is in force", files.certificate.display()))
            }
            Self::Stores(_, stores) => {
                stores.reload()?;
                Ok("TLS: new connections to stores are opened with the files as they are now".to_owned())
            }
        }
    }
}

/// The watched files and channels of the thread that reads certificates again when they change.
pub(in crate::runtime) struct CertificatesThread {
    pub watched: Vec<Watched>,
    pub control: Mailbox<ToControl>,
    pub tally: Arc<Tally>,
    /// The channel of orders to read all certificate files again (on SIGHUP).
    pub letters: Receiver<()>,
    pub bell: OwnedFd,
}

impl CertificatesThread {
    /// Starts the thread that reads certificate files again when they change, which ends with the process. Fails
    /// if the thread cannot be started.
    pub fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("weir-certs".to_owned()).spawn(move || self.run()).map(|_| ())
    }

    fn run(mut self) {
        let mut is_told = false;
        loop {
            is_told = self.turn(is_told);
        }
    }

    /// Reads again the certificate files that have changed, or all if ordered to. Sleeps before that until
    /// there is something to do; not at all if an order is still to be carried out (`is_told`). Returns true
    /// if another order arrived while files were read.
    fn turn(&mut self, is_told: bool) -> bool {
        let reads_all = is_told || self.wait(None);
        let mut is_told_again = false;
        for index in 0..self.watched.len() {
            if self.watched[index].have_changed() || reads_all {
                is_told_again |= self.reload(index);
            }
        }
        is_told_again
    }

    /// Reads the certificate files of the set with this index again, after a pause (`PATIENCE`) a second time
    /// if that fails. Returns true if an order to read all files arrived meanwhile, which still has to be
    /// carried out.
    fn reload(&mut self, index: usize) -> bool {
        let mut is_told = false;
        let done = self.watched[index].reload().or_else(|_| {
            // The other one of the two files may be about to be replaced.
            is_told = self.wait(Some(PATIENCE));
            self.watched[index].have_changed();
            self.watched[index].reload()
        });
        self.tally.note_reload(done.is_ok());
        let text = done.unwrap_or_else(|problem| format!("{problem}; the files in force are unchanged"));
        self.control.post(ToControl::Said(log::Kind::Tls, text));
        is_told
    }

    /// Sleeps until an order to read the files again arrives (true), or until the kernel reports an event of the
    /// files, it is time to look at them, or `at_most` (if there is one) has passed (false). An interruption
    /// only makes the sleep shorter.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let watches = || self.watched.iter().flat_map(Watched::watches);
        let patience = watches().map(FileWatch::patience).chain(at_most).min().map(timespec);
        let watched = watches().filter_map(FileWatch::handle);
        let handles: Vec<BorrowedFd<'_>> = std::iter::once(self.bell.as_fd()).chain(watched).collect();
        let mut polled: Vec<PollFd<'_>> =
            handles.iter().map(|handle| PollFd::from_borrowed_fd(*handle, PollFlags::IN)).collect();
        let ready = poll(&mut polled, patience.as_ref());
        let told = ready.is_ok() && polled[0].revents().contains(PollFlags::IN);
        if told {
            // Reading resets the eventfd; the value read, a count of messages, is of no use.
            let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
            // However many orders came meanwhile, the files are read once.
            self.letters.try_iter().for_each(drop);
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn an_order_that_comes_while_files_are_tried_again_is_not_lost() {
        let (handshakes, _letters, _bell) = Mailbox::for_executor().expect("an eventfd");
        let (control, said, _bell_of_control) = Mailbox::for_executor().expect("an eventfd");
        let (own, letters, bell) = Mailbox::for_executor().expect("an eventfd");
        let missing = PathBuf::from("/nowhere/certificate");
        let files =
            TlsFiles { certificate: missing.clone(), key: missing, client_ca: None, client_crl: None };
        let watched = vec![Watched::Clients(Vec::new(), files, handshakes)];
        let mut thread = CertificatesThread { watched, control, tally: Arc::default(), letters, bell };
        own.post(());
        // The first order is carried out without waiting for the second, which comes in the middle of it.
        assert!(thread.turn(true), "all files are to be read");
        let told = said.try_recv().expect("that these could not be read");
        assert!(matches!(told, ToControl::Said(_, text) if text.contains("/nowhere/certificate")));
    }
}
