//! TLS: certificates and keys, handshakes, and what stands around a connection from then on. The kernel's own encryption (kTLS) is not
//! used; ARCHITECTURE.md says why.
//!
//! | what | file |
//! |---|---|
//! | certificates and keys from their files, and again when those change | `files.rs`, `certificates_thread.rs` |
//! | whom weir trusts among stores, and what it shows them | `stores.rs` |
//! | handshakes of clients, on a thread of their own | `handshakes_thread.rs`, `handshake.rs`, `crowd.rs` |
//! | what clients have shown, and whether it still holds | `credentials.rs` |
//! | whom a client's certificate names | `names.rs` |
//! | one connection: bytes that arrive made plain, those that leave encrypted | `session.rs` |
//! | the same for threads that wait | `line.rs` |
//! | what is counted | `tally.rs` |
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
