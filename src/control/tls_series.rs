//! Counters of TLS handshakes and connections, and the metrics made of them.

use std::time::Duration;

use super::exposition::{Exposition, Kind};

/// The outcome of a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Handshake {
    /// The handshake was completed.
    Done,
    /// The TLS handshake was not completed within its time limit.
    TimedOut,
    /// The handshake was given up because too many were in progress, or too many clients waited to be taken
    /// over by shards.
    Crowded,
    /// The peer sent bytes that are not TLS.
    NotTls,
    /// A certificate was not trusted in the TLS handshake, or a required one was not shown.
    Certificate,
    /// Another error occurred in the TLS handshake, or the two ends had no version or cipher in common.
    Refused,
    /// The peer closed the connection before the TLS handshake was completed.
    Left,
}

impl Handshake {
    /// All outcomes of a TLS handshake, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::TimedOut,
        Self::Crowded,
        Self::NotTls,
        Self::Certificate,
        Self::Refused,
        Self::Left,
    ];

    /// The word for this outcome of a TLS handshake in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::TimedOut => "timeout",
            Self::Crowded => "crowded",
            Self::NotTls => "not_tls",
            Self::Certificate => "certificate",
            Self::Refused => "refused",
            Self::Left => "left",
        }
    }
}

/// The values of all TLS counters at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsFigures {
    /// The number of TLS handshakes with clients, by outcome.
    pub clients: [u64; Handshake::ALL.len()],
    /// The number of TLS handshakes with stores, by outcome.
    pub stores: [u64; Handshake::ALL.len()],
    /// The number of TLS handshakes with clients that are in progress.
    pub under_way: u64,
    /// The number of clients connected with TLS.
    pub open: u64,
    /// The CPU time that the thread for TLS handshakes with clients has used.
    pub busy: Duration,
    /// Number of TLS connections, with clients and stores together, that sent bytes which are not valid TLS
    /// after the TLS handshake was completed.
    pub broken: u64,
    /// The numbers of times that certificates were read again: those put in force, and those that were wrong.
    pub reloads: [u64; 2],
}

/// Writes the metrics of TLS handshakes and connections.
pub fn write_tls(page: &mut Exposition, figures: &TlsFigures) {
    let families = [
        ("weir_tls_handshakes_total", "TLS handshakes with clients, by outcome.", figures.clients),
        (
            "weir_tls_store_handshakes_total",
            "TLS handshakes with stores, of shards and other threads, by outcome.",
            figures.stores,
        ),
    ];
    for (name, help, counts) in families {
        let mut family = page.family(name, help, Kind::Counter);
        for (outcome, count) in Handshake::ALL.into_iter().zip(counts) {
            family.sample(&[("outcome", outcome.name())], count);
        }
    }
    let help = "TLS handshakes with clients in progress.";
    page.family("weir_tls_handshakes_under_way", help, Kind::Gauge).sample(&[], figures.under_way);
    let help = "Clients that are connected with TLS.";
    page.family("weir_tls_clients", help, Kind::Gauge).sample(&[], figures.open);
    let help = "Time that was spent on TLS handshakes with clients.";
    page.family("weir_tls_handshake_seconds_total", help, Kind::Counter)
        .sample(&[], figures.busy.as_secs_f64());
    let help = "TLS connections closed because the peer sent invalid TLS records.";
    page.family("weir_tls_broken_total", help, Kind::Counter).sample(&[], figures.broken);
    let help = "Times certificates were read again, by outcome.";
    let mut family = page.family("weir_tls_reloads_total", help, Kind::Counter);
    for (outcome, count) in ["taken", "wrong"].into_iter().zip(figures.reloads) {
        family.sample(&[("outcome", outcome)], count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_its_place_and_its_name() {
        for (place, outcome) in Handshake::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
        let mut page = Exposition::new();
        write_tls(
            &mut page,
            &TlsFigures { clients: [1, 2, 3, 4, 5, 6, 7], open: 8, ..TlsFigures::default() },
        );
        let text = page.finish();
        for line in [
            "weir_tls_handshakes_total{outcome=\"not_tls\"} 4",
            "weir_tls_store_handshakes_total{outcome=\"done\"} 0",
            "weir_tls_clients 8",
            "weir_tls_reloads_total{outcome=\"wrong\"} 0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
