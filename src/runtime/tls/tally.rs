//! The counters of TLS, which several threads write: they change when connections come and go, never for a
//! request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::control::{Handshake, TlsFigures};

/// The counters of TLS in this process.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Tally {
    clients: [AtomicU64; Handshake::ALL.len()],
    stores: [AtomicU64; Handshake::ALL.len()],
    under_way: AtomicU64,
    open: AtomicU64,
    busy_nanos: AtomicU64,
    broken: AtomicU64,
    reloads: [AtomicU64; 2],
    /// Number of clients on the way from the thread for TLS handshakes to their shards.
    in_transit: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    /// Counts a TLS handshake with a client that has ended with this outcome.
    pub fn note_client(&self, outcome: Handshake) {
        count(&self.clients[outcome as usize]);
    }

    /// Sets the number of TLS handshakes with clients that are in progress.
    pub fn note_under_way(&self, handshakes: usize) {
        self.under_way.store(handshakes as u64, Ordering::Relaxed);
    }

    /// Adds `time` to the CPU time that the thread for TLS handshakes has used.
    pub fn note_busy(&self, time: Duration) {
        self.busy_nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a connection whose peer sent bytes that are not valid TLS after the handshake.
    pub fn note_broken(&self) {
        count(&self.broken);
    }

    /// Counts an attempt to put certificate files in force; `taken` is true if it succeeded.
    pub fn note_reload(&self, taken: bool) {
        count(&self.reloads[usize::from(!taken)]);
    }

    /// Counts a client that is on the way from the thread for TLS handshakes to its shard. False, and not
    /// counted, if `most` clients are on their way already.
    pub fn begin_transit(&self, most: usize) -> bool {
        let few = self.in_transit.load(Ordering::Relaxed) < most as u64;
        if few {
            count(&self.in_transit);
        }
        few
    }

    /// Counts a client as arrived at its shard, so that it is no longer on the way from the thread for TLS
    /// handshakes.
    pub fn end_transit(&self) {
        self.in_transit.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the values of all TLS counters.
    pub fn figures(&self) -> TlsFigures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TlsFigures {
            clients: self.clients.each_ref().map(read),
            stores: self.stores.each_ref().map(read),
            under_way: read(&self.under_way),
            open: read(&self.open),
            busy: Duration::from_nanos(read(&self.busy_nanos)),
            broken: read(&self.broken),
            reloads: self.reloads.each_ref().map(read),
        }
    }
}

/// The counter of the outcome of one TLS handshake with a store. A handshake that has begun is counted
/// exactly once, also if it is given up.
#[derive(Debug)]
pub(in crate::runtime) struct StoreHandshake {
    tally: Arc<Tally>,
    /// The outcome that is counted if the TLS handshake is given up. None before the handshake begins, and
    /// after its end.
    otherwise: Option<Handshake>,
    ended: bool,
}

impl StoreHandshake {
    pub fn new(tally: &Arc<Tally>) -> Self {
        Self { tally: Arc::clone(tally), otherwise: None, ended: false }
    }

    /// Sets the outcome that is counted if the TLS handshake is given up from now on, as bytes of it were sent
    /// or are awaited.
    pub fn go_on(&mut self, otherwise: Handshake) {
        if !self.ended {
            self.otherwise = Some(otherwise);
        }
    }

    /// Counts a TLS handshake as given up, with this outcome, unless it had not begun or has ended.
    pub fn give_up(&mut self, outcome: Handshake) {
        if self.otherwise.is_some() {
            self.end(outcome);
        }
    }

    /// Counts the outcome of the TLS handshake, once. Later events of the connection do not count for it.
    pub fn end(&mut self, outcome: Handshake) {
        self.otherwise = None;
        if !std::mem::replace(&mut self.ended, true) {
            count(&self.tally.stores[outcome as usize]);
        }
    }

    /// Counts an error in the bytes that the store sent: as the outcome of the TLS handshake or, after it, as
    /// a broken connection.
    pub fn note_error(&mut self, error: &rustls::Error) {
        if self.ended {
            self.tally.note_broken();
        } else {
            self.end(outcome_of(error));
        }
    }
}

impl Drop for StoreHandshake {
    fn drop(&mut self) {
        if let Some(outcome) = self.otherwise {
            self.end(outcome);
        }
    }
}

/// Counts a client's TLS connection as open in the counters of TLS, as long as this value lives.
#[derive(Debug)]
pub(in crate::runtime) struct OpenConnection(Arc<Tally>);

impl OpenConnection {
    pub fn new(tally: &Arc<Tally>) -> Self {
        count(&tally.open);
        Self(Arc::clone(tally))
    }

    pub fn tally(&self) -> &Tally {
        &self.0
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the outcome under which a TLS handshake that failed with this error is counted.
pub(super) fn outcome_of(error: &rustls::Error) -> Handshake {
    use rustls::AlertDescription as Alert;
    use rustls::Error;
    match error {
        Error::InvalidCertificate(_)
        | Error::InvalidCertRevocationList(_)
        | Error::NoCertificatesPresented
        | Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::CertificateRequired
            | Alert::UnsupportedCertificate,
        ) => Handshake::Certificate,
        Error::InvalidMessage(_) => Handshake::NotTls,
        _ => Handshake::Refused,
    }
}
