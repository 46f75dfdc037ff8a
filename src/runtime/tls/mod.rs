//! TLS: certificates and keys, handshakes, and the encryption of connections. The kernel's own encryption
//! (kTLS) is not used; docs/design/tls.md says why.
//!
//! | subject | file |
//! |---|---|
//! | reading certificates and keys from their files, and again when those change | `files.rs`, `certificates_thread.rs` |
//! | the authorities that weir trusts for stores, and the certificate that it shows them | `stores.rs` |
//! | handshakes with clients, on a thread of their own | `handshakes_thread.rs`, `handshake.rs`, `crowd.rs` |
//! | certificates that clients have shown, and whether they are still valid | `credentials.rs` |
//! | the name in a client's certificate | `names.rs` |
//! | encryption and decryption of a connection, without I/O | `session.rs` |
//! | a connection to a store for threads that block | `line.rs` |
//! | counters | `tally.rs` |
//! | a certificate and keys for tests | `samples/` |

mod certificates_thread;
mod credentials;
mod crowd;
mod files;
mod handshake;
mod handshakes_thread;
mod line;
mod names;
mod session;
mod stores;
mod tally;
#[cfg(test)]
mod tests;

pub(super) use certificates_thread::{CertificatesThread, Watched};
pub(super) use files::{Terms, TlsFiles};
pub(super) use handshakes_thread::{HandshakesThread, Rates, ToHandshakes};
pub(super) use line::{Line, is_interruption};
pub(super) use session::{Heard, SecureClient, Session};
pub(super) use stores::StoreTls;
pub(super) use tally::Tally;
