//! Tracking of keys (`CLIENT TRACKING`) for one client: stores tell it when keys change that it has read. All
//! requests of such a client about keys go over links of its own, one per store, because a store remembers
//! for each connection what was read over it.

use super::ClientStage;
use crate::protocol::{Protocol, TrackingOptions, encode};
use crate::shard::env::Env;
use crate::shard::request::PrivateId;
use crate::values::{BackendId, ClientId};

/// The links over which stores track keys for a client.
#[derive(Debug, Default)]
pub struct KeyTracking {
    /// The tracking options in force; `None` until the stores have confirmed the first.
    options: Option<TrackingOptions>,
    links: Vec<(BackendId, PrivateId)>,
    /// The `CLIENT TRACKING ON` command that not all stores have answered.
    pending: Option<Pending>,
    /// The `CLIENT CACHING` command that is sent before the client's next request.
    caching: Option<&'static [u8]>,
}

/// A command that switches tracking on and that not all stores have answered.
#[derive(Debug)]
struct Pending {
    sequence: u32,
    options: TrackingOptions,
    replies_missing: usize,
    refusal: Option<Vec<u8>>,
}

impl KeyTracking {
    /// Returns the link over which a store tracks keys for the client; `None` if there is none.
    pub fn link_to(&self, store: BackendId) -> Option<PrivateId> {
        self.links.iter().find(|(backend, _)| *backend == store).map(|(_, link)| *link)
    }

    /// Returns the links over which stores track keys for the client.
    pub fn links(&self) -> impl Iterator<Item = PrivateId> {
        self.links.iter().map(|(_, link)| *link)
    }

    /// True if stores track keys for the client over this link.
    pub fn has(&self, link: PrivateId) -> bool {
        self.links().any(|other| other == link)
    }

    /// Adds a link over which a store will track keys for the client.
    pub fn add(&mut self, store: BackendId, link: PrivateId) {
        self.links.push((store, link));
    }

    /// Returns the tracking options in force; `None` before the stores have confirmed any.
    pub fn options(&self) -> Option<&TrackingOptions> {
        self.options.as_ref()
    }

    /// Waits for the replies of all stores to a command that switches tracking on. `sequence` is the number
    /// of the client's command.
    pub fn expect(&mut self, sequence: u32, options: TrackingOptions) {
        let replies_missing = self.links.len();
        self.pending = Some(Pending { sequence, options, replies_missing, refusal: None });
    }

    /// Takes the reply of one store. With the last one, returns the number of the client's command and the
    /// reply to it.
    pub fn take_reply(&mut self, reply: Vec<u8>) -> Option<(u32, Vec<u8>)> {
        let pending = self.pending.as_mut()?;
        pending.replies_missing -= 1;
        if reply.starts_with(b"-") {
            pending.refusal.get_or_insert(reply);
        }
        let pending = self.pending.take_if(|pending| pending.replies_missing == 0)?;
        let reply = pending.refusal.unwrap_or_else(|| {
            self.options = Some(pending.options);
            b"+OK\r\n".to_vec()
        });
        Some((pending.sequence, reply))
    }

    /// Keeps `CLIENT CACHING` (`word` is `YES` or `NO`) for the client's next request. The error is the text
    /// of the reply.
    pub fn set_caching(&mut self, word: &[u8]) -> Result<(), &'static str> {
        const YES: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n";
        const NO: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$2\r\nNO\r\n";
        let options = self.options.as_ref().ok_or(NOT_TRACKING)?;
        let (opts_in, opts_out) = (options.opts_in, options.opts_out);
        self.caching = match word.to_ascii_uppercase().as_slice() {
            b"YES" if opts_in => Some(YES),
            b"NO" if opts_out => Some(NO),
            b"YES" => {
                return Err("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.");
            }
            b"NO" => {
                return Err("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.");
            }
            _ => return Err("ERR syntax error"),
        };
        Ok(())
    }

    /// Takes the `CLIENT CACHING` command that is sent before the client's next request; `None` if there is
    /// none.
    pub fn take_caching(&mut self) -> Option<&'static [u8]> {
        self.caching.take()
    }

    /// Returns the memory that this record takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let pending = self.pending.as_ref().map(|pending| &pending.options);
        let prefixes = self.options.iter().chain(pending).flat_map(|options| &options.prefixes);
        let prefixes = prefixes.map(|prefix| prefix.capacity() + size_of::<Vec<u8>>()).sum::<usize>();
        size_of::<Self>() + self.links.capacity() * size_of::<(BackendId, PrivateId)>() + prefixes
    }
}

/// The error for `CLIENT CACHING` of a client that tracks no keys.
pub const NOT_TRACKING: &str = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";

impl ClientStage {
    /// Answers `CLIENT TRACKINGINFO`.
    pub fn tracking_info(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let tracking = client.ties.as_ref().and_then(|ties| ties.tracking.as_ref());
        let options = tracking.and_then(|tracking| tracking.options.clone());
        self.answer_now(env, id, |out, protocol| write_info(out, protocol, options.as_ref()));
    }
}

fn write_info(out: &mut Vec<u8>, protocol: Protocol, options: Option<&TrackingOptions>) {
    let flags: Vec<&str> = options.map_or_else(|| vec!["off"], |options| options.flags(false).collect());
    let prefixes = options.map_or(&[][..], |options| &options.prefixes);
    encode::map(out, protocol, 3);
    encode::bulk(out, b"flags");
    encode::set(out, protocol, flags.len());
    flags.iter().for_each(|flag| encode::bulk(out, flag.as_bytes()));
    encode::bulk(out, b"redirect");
    encode::integer(out, if options.is_some() { 0 } else { -1 });
    encode::bulk(out, b"prefixes");
    encode::array(out, prefixes.len());
    prefixes.iter().for_each(|prefix| encode::bulk(out, prefix));
}
