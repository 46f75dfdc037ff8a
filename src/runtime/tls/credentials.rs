//! Certificates that clients with open connections have shown. They are verified again when the files for
//! that have changed.
//!
//! ```text
//!   a handshake is over ──> Credential, one for all connections that showed the same ──> with each of them to its shard
//!   files have changed ───> verified again by the files in force now, some at a time ──> withdrawn ──> shards close its connections
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

/// Maximum number of clients' certificates that are verified again in a row, since signatures take time and
/// handshakes must go on meanwhile; the rest follow in the next rounds of the thread's loop.
const LOOKED_AT_ONCE: usize = 16;
/// The least number of clients' certificates that are kept before unused ones are dropped.
const KEPT: usize = 64;

/// The certificate chain that a client sent, beginning with the client's own certificate.
type Chain = Box<[CertificateDer<'static>]>;

/// The state of a client certificate, shared by all connections whose clients showed it.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Credential {
    withdrawn: AtomicBool,
}

impl Credential {
    /// True once this client certificate, accepted earlier, was verified again because the TLS files changed,
    /// and was refused.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }
}

/// A certificate that clients have shown: the time when it was last shown, and its state, which the connections
/// of all these clients share. The state is dropped once all of these connections are closed.
struct Shown {
    at: UnixTime,
    credential: Weak<Credential>,
}

/// All certificates that clients have shown, and the queue of those that must be verified again.
#[derive(Default)]
pub(super) struct Credentials {
    shown: HashMap<Chain, Shown>,
    /// The number of known certificates at which certificates without an open connection are dropped.
    full: usize,
    /// Certificates that are still to be verified again because the TLS files changed; `withdrawn` counts
    /// those that failed since then.
    suspects: VecDeque<Chain>,
    withdrawn: usize,
}

impl Credentials {
    /// Records the certificate chain that a client showed in a handshake completed at the time `at`. Returns
    /// the chain's state, which is kept with the connection and tells whether the certificate was later
    /// refused.
    pub fn note(&mut self, chain: &[CertificateDer<'static>], at: UnixTime) -> Arc<Credential> {
        if let Some(shown) = self.shown.get_mut(chain)
            && let Some(credential) = shown.credential.upgrade()
            && !credential.is_withdrawn()
        {
            shown.at = at;
            return credential;
        }
        if self.shown.len() >= self.full {
            self.shown.retain(|_, shown| shown.credential.strong_count() > 0);
            self.full = (2 * self.shown.len()).max(KEPT);
        }
        let credential = Arc::default();
        self.shown.insert(chain.into(), Shown { at, credential: Arc::downgrade(&credential) });
        credential
    }

    /// Queues every client certificate in use for another verification, since the TLS files have changed.
    pub fn suspect_all(&mut self) {
        let is_used = |(_, shown): &(&Chain, &Shown)| shown.credential.strong_count() > 0;
        self.suspects = self.shown.iter().filter(is_used).map(|(chain, _)| chain.clone()).collect();
    }

    /// Queues a client's certificate chain for another verification, since it was accepted by TLS files that
    /// are no longer in force.
    pub fn suspect(&mut self, chain: &[CertificateDer<'static>]) {
        self.suspects.extend(self.shown.get_key_value(chain).map(|(chain, _)| chain.clone()));
    }

    /// True if some clients' certificates are yet to be verified again, because the TLS files have changed.
    pub fn are_suspected(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Verifies at most 16 queued certificates (`LOOKED_AT_ONCE`) again with `verifier`; without a verifier
    /// all of them fail. Returns how many failed in all once the queue has become empty; `None` before that,
    /// and if no certificate was queued.
    pub fn look(&mut self, verifier: Option<&dyn ClientCertVerifier>) -> Option<usize> {
        if self.suspects.is_empty() {
            return None;
        }
        for _ in 0..LOOKED_AT_ONCE {
            let Some(chain) = self.suspects.pop_front() else { break };
            let Some(shown) = self.shown.get(&chain) else { continue };
            let (Some(credential), Some((first, others))) = (shown.credential.upgrade(), chain.split_first())
            else {
                continue;
            };
            // Verified as of the time when it was shown: a certificate that has expired since ends no
            // connection.
            let holds =
                verifier.is_some_and(|verifier| verifier.verify_client_cert(first, others, shown.at).is_ok());
            if !holds && !credential.withdrawn.swap(true, Ordering::AcqRel) {
                self.withdrawn += 1;
            }
        }
        self.suspects.is_empty().then(|| std::mem::take(&mut self.withdrawn))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use rustls::client::danger::HandshakeSignatureValid;
    use rustls::server::danger::ClientCertVerified;
    use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

    use super::*;

    /// A verifier for tests, which refuses the certificates whose first byte is in the set.
    #[derive(Debug)]
    struct Refuses(HashSet<u8>);

    impl ClientCertVerifier for Refuses {
        fn root_hint_subjects(&self) -> &[DistinguishedName] {
            &[]
        }

        fn verify_client_cert(
            &self,
            first: &CertificateDer<'_>,
            others: &[CertificateDer<'_>],
            at: UnixTime,
        ) -> Result<ClientCertVerified, Error> {
            assert_eq!((others.len(), at), (1, UnixTime::since_unix_epoch(SHOWN)));
            if self.0.contains(&first[0]) {
                Err(Error::General("refused".to_owned()))
            } else {
                Ok(ClientCertVerified::assertion())
            }
        }

        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            unreachable!("nobody shakes hands")
        }

        fn verify_tls13_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            unreachable!("nobody shakes hands")
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            Vec::new()
        }
    }

    const SHOWN: std::time::Duration = std::time::Duration::from_secs(1_700_000_000);

    fn chain(name: u8) -> [CertificateDer<'static>; 2] {
        [vec![name].into(), vec![name, 1].into()]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Opened(u8),
        Closed(usize),
        /// The files have changed: certificates of these names (first bytes) are refused from now on. The flag
        /// says whether all certificates are verified again before the next step.
        Changed(HashSet<u8>, bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => any::<u8>().prop_map(Step::Opened),
            2 => any::<usize>().prop_map(Step::Closed),
            1 => (prop::collection::hash_set(any::<u8>(), 0..40), any::<bool>())
                .prop_map(|(refused, ends)| Step::Changed(refused, ends)),
        ];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        /// Compares which clients are closed with a plain list of connections, all of which are checked
        /// whenever the files change.
        #[test]
        fn those_that_would_be_refused_are_closed_and_no_others(steps in steps()) {
            let (mut credentials, mut refuses) = (Credentials::default(), Refuses(HashSet::new()));
            let mut open: Vec<(u8, bool, Arc<Credential>)> = Vec::new();
            let mut most = 0;
            for step in steps {
                match step {
                    Step::Opened(name) => {
                        // A client that is refused is let in only if its handshake was under way when the
                        // files changed.
                        let refused = refuses.0.contains(&name);
                        let shown = UnixTime::since_unix_epoch(SHOWN);
                        open.push((name, refused, credentials.note(&chain(name), shown)));
                        if refused {
                            credentials.suspect(&chain(name));
                        }
                    }
                    Step::Closed(place) if open.is_empty() => _ = place,
                    Step::Closed(place) => _ = open.swap_remove(place % open.len()),
                    Step::Changed(refused, ends) => {
                        while ends && credentials.look(Some(&refuses)).is_none() && credentials.are_suspected() {}
                        // Certificates that were not verified in time are verified by the files in force now.
                        let late: HashSet<Chain> = credentials.suspects.iter().cloned().collect();
                        for (name, withdrawn, credential) in &mut open {
                            let is_late = late.contains(&chain(*name)[..]) && !credential.is_withdrawn();
                            *withdrawn = (*withdrawn && !is_late) || refused.contains(name);
                        }
                        refuses = Refuses(refused);
                        credentials.suspect_all();
                    }
                }
                most = most.max(open.len());
                prop_assert!(credentials.shown.len() <= (2 * most).max(KEPT) + 1);
            }
            while credentials.are_suspected() {
                credentials.look(Some(&refuses));
            }
            for (name, withdrawn, credential) in open {
                prop_assert_eq!(credential.is_withdrawn(), withdrawn, "{}", name);
            }
        }
    }
}
