//! The credentials of an HTTP client, kept from one request to the next.

use subtle::ConstantTimeEq as _;

use super::identity::Identity;
use crate::protocol::http::Authority;

/// The credentials that an HTTP client was last identified by, and the identity that they gave.
#[derive(Debug)]
pub(super) struct HttpLogin {
    /// The value of the `Authorization` header; None if there was no such header, or if no tenant has a password, so
    /// that the header does not matter.
    pub claim: Option<Vec<u8>>,
    /// The version of the quotas under which the credentials were accepted.
    pub version: u64,
    /// The identity that the credentials give, before the options of a single request are applied.
    pub identity: Identity,
    pub authority: Authority,
}

impl HttpLogin {
    /// True if a request has the same credentials (`claim`), under the same version of the quotas. Takes
    /// equally long however many bytes agree, because others may share the connection and must not guess them
    /// byte by byte.
    pub fn is_for(&self, claim: Option<&[u8]>, version: u64) -> bool {
        let is_same = match (&self.claim, claim) {
            (None, None) => true,
            (Some(known), Some(claim)) => known.ct_eq(claim).into(),
            _ => false,
        };
        is_same && self.version == version
    }
}
