//! What is counted of TLS, by several threads: when connections come and go, never for a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::control::{Handshake, TlsFigures};

/// One for the process.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Tally {
    clients: [AtomicU64; Handshake::ALL.len()],
    stores: [AtomicU64; Handshake::ALL.len()],
    under_way: AtomicU64,
    open: AtomicU64,
    busy_nanos: AtomicU64,
    broken: AtomicU64,
    reloads: [AtomicU64; 2],
    /// Clients that their shards have yet to take over.
    in_transit: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    /// A handshake with a client is over.
    pub fn note_client(&self, outcome: Handshake) {
        count(&self.clients[outcome as usize]);
    }

    /// So many are under way with clients.
    pub fn note_under_way(&self, handshakes: usize) {
        self.under_way.store(handshakes as u64, Ordering::Relaxed);
    }

    /// Time that the thread of handshakes spent on them.
    pub fn note_busy(&self, time: Duration) {
        self.busy_nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A connection sent something that is no TLS, after its handshake.
    pub fn note_broken(&self) {
        count(&self.broken);
    }

    /// Certificates were read again: are they in force?
    pub fn note_reload(&self, taken: bool) {
        count(&self.reloads[usize::from(!taken)]);
    }

    /// A client goes to its shard. False if too many are on their way.
    pub fn begin_transit(&self, most: usize) -> bool {
        let few = self.in_transit.load(Ordering::Relaxed) < most as u64;
        if few {
            count(&self.in_transit);
        }
        few
    }

    /// It has arrived.
    pub fn end_transit(&self) {
        self.in_transit.fetch_sub(1, Ordering::Relaxed);
    }

    /// What was counted so far.
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

/// A handshake with a store: once it has begun it ends once, also where it is given up.
#[derive(Debug)]
pub(in crate::runtime) struct StoreHandshake {
    tally: Arc<Tally>,
    /// How it ends if nobody waits for it any more. None before it begins, and after its end.
    otherwise: Option<Handshake>,
    ended: bool,
}

impl StoreHandshake {
    pub fn new(tally: &Arc<Tally>) -> Self {
        Self { tally: Arc::clone(tally), otherwise: None, ended: false }
    }

    /// Something was said, or waited for: whoever gives it up now does because of that.
    pub fn go_on(&mut self, otherwise: Handshake) {
        if !self.ended {
            self.otherwise = Some(otherwise);
        }
    }

    /// Nobody waits for it any more.
    pub fn give_up(&mut self, outcome: Handshake) {
        if self.otherwise.is_some() {
            self.end(outcome);
        }
    }

    /// It is over. What comes of the connection later is nothing of it.
    pub fn end(&mut self, outcome: Handshake) {
        self.otherwise = None;
        if !std::mem::replace(&mut self.ended, true) {
            count(&self.tally.stores[outcome as usize]);
        }
    }

    /// What came was wrong, in the handshake or behind it.
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

/// A connection of a client that is open; counted as long as this lives.
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

/// How a handshake ends with that.
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
