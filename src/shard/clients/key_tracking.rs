//! Tracking of keys (`CLIENT TRACKING`) for one client: stores tell it when keys change that it has read. All
//! requests of such a client about keys go over private links of its own, one per store, because a store
//! remembers for each connection which keys were read over it.

use super::filters::Filter;
use super::{Client, ClientStage};
use crate::protocol::{Protocol, TrackingOptions, encode};
use crate::shard::env::Env;
use crate::shard::request::PrivateId;
use crate::shard::tracking_redirect::{Peer, Target};
use crate::values::{BackendId, ClientId};

/// Number of bytes that stay allocated, after a request was answered, for the copy of the client's next request to a
/// cluster.
const KEPT_BYTES: usize = 1024;

/// The client's own connections over which stores track keys for it (private links), with the state of the
/// client's tracking.
#[derive(Debug, Default)]
pub struct KeyTracking {
    /// The tracking options in force; `None` until the stores have confirmed the first.
    options: Option<TrackingOptions>,
    /// The shares that the prefixes in force (`BCAST`) take of the limit on prefixes that stores compare with
    /// the keys of writes.
    filters: Vec<Filter>,
    links: Vec<(BackendId, PrivateId)>,
    /// The `CLIENT TRACKING ON` command in flight, which not all stores have answered; None if there is none.
    pending: Option<Pending>,
    /// The encoded `CLIENT CACHING` command that is sent to the store right before the client's next request;
    /// None if there is none.
    caching: Option<&'static [u8]>,
    /// The client that takes the invalidation messages in place of the tracking client (`REDIRECT`); None if
    /// the tracking client takes them itself.
    target: Option<Aim>,
    /// Links (unshared connections to stores) that were added after tracking was switched on, and whose stores
    /// have yet to confirm it: those to nodes of a cluster that got keys since.
    late: Vec<PrivateId>,
    /// The copy of the client's request in flight, which is sent again if a node of a cluster redirects it.
    request: Repeatable,
    /// True if any key that the client has read may have changed unseen; the client is told so after its next
    /// reply.
    is_unsure: bool,
}

/// A request that may be sent once more: to another node of a cluster, or to the same one later.
#[derive(Debug, Default)]
struct Repeatable {
    /// The bytes of the request, or of a whole transaction; empty if it must not be sent again.
    bytes: Vec<u8>,
    /// The number of replies that the store sends to `bytes`: one per request in them.
    replies: usize,
    /// The length of the `CLIENT CACHING` command at the beginning of `bytes`; 0 if there is none.
    caching_bytes: usize,
    /// The number of nodes that have redirected the request since a node last replied that it could not carry
    /// it out yet (TRYAGAIN, CLUSTERDOWN).
    tries: u8,
    /// The number of replies so far which say that a node cannot carry the request out yet.
    waits: u8,
    /// The store that the request was sent to first; `None` before there is a request.
    store: Option<BackendId>,
}

/// A request that is sent once more: to the node of a cluster that a redirect names, or to the same node after a while.
#[derive(Debug)]
pub struct Repeat {
    /// The bytes to send to the store: `ASKING` if the node is importing the slot, else `CLIENT CACHING` if the
    /// client has sent that, and then the request or transaction.
    pub bytes: Vec<u8>,
    /// The number of replies that the store sends when it has carried out `bytes`.
    pub replies: usize,
}

/// The client that takes another client's invalidation messages (`REDIRECT`).
#[derive(Clone, Copy, Debug)]
struct Aim {
    peer: Peer,
    /// True once the client is gone, or may no longer take the invalidation messages.
    is_gone: bool,
}

/// A `CLIENT TRACKING ON` command that not all stores have answered.
#[derive(Debug)]
struct Pending {
    sequence: u32,
    options: TrackingOptions,
    /// The shares that the options' prefixes (`BCAST`) take of the limit on prefixes that stores compare with
    /// the keys of writes.
    filters: Vec<Filter>,
    replies_missing: usize,
    /// True once any store has accepted the new tracking options.
    is_accepted: bool,
    refusal: Option<Vec<u8>>,
    /// The client that is to take the invalidation messages (`REDIRECT`); None if the tracking client takes
    /// them itself.
    target: Option<Aim>,
}

/// The result of a `CLIENT TRACKING ON` command that all stores have answered, or that was refused before.
#[derive(Debug)]
pub struct TrackingReply {
    /// The sequence number of the client's `CLIENT TRACKING ON` command.
    pub sequence: u32,
    /// The reply to the client's `CLIENT TRACKING ON` command.
    pub reply: Vec<u8>,
    /// The client that took this client's invalidation messages (`REDIRECT`) before and no longer does, or that was to
    /// take them by the refused command; None if there is none.
    pub left: Option<Peer>,
    /// True if some stores have accepted the new options while others still use the former ones, so that the
    /// client would miss messages.
    pub is_divided: bool,
    /// True if the client that is to take the invalidation messages has disconnected meanwhile.
    pub is_target_gone: bool,
}

impl KeyTracking {
    /// Returns the link (unshared connection to a store) over which a store tracks keys for the client; `None`
    /// if there is none.
    pub fn link_to(&self, store: BackendId) -> Option<PrivateId> {
        self.links.iter().find(|(backend, _)| *backend == store).map(|(_, link)| *link)
    }

    /// Returns the links (unshared connections to stores) over which stores track keys for the client.
    pub fn links(&self) -> impl Iterator<Item = PrivateId> {
        self.links.iter().map(|(_, link)| *link)
    }

    /// True if stores track keys for the client over this link (unshared connection to a store).
    pub fn has(&self, link: PrivateId) -> bool {
        self.links().any(|other| other == link)
    }

    /// Adds a link (unshared connection to a store) over which a store will track keys for the client.
    pub fn add(&mut self, store: BackendId, link: PrivateId) {
        self.links.push((store, link));
    }

    /// Adds a link (unshared connection to a store) on which a store tracks keys once it has confirmed the
    /// options in force, which the caller sends.
    pub fn add_late(&mut self, store: BackendId, link: PrivateId) {
        self.links.push((store, link));
        self.late.push(link);
    }

    /// Takes the confirmation of a store for a link (unshared connection to a store) that was added after
    /// tracking began. False if none is expected on the link.
    pub fn confirm_late(&mut self, link: PrivateId) -> bool {
        let place = self.late.iter().position(|late| *late == link);
        place.map(|place| self.late.swap_remove(place)).is_some()
    }

    /// Removes a link (unshared connection to a store), whose store tracks no keys of the client any more.
    pub fn remove(&mut self, link: PrivateId) {
        self.links.retain(|(_, other)| *other != link);
        self.late.retain(|other| *other != link);
    }

    /// Returns the stores, each with the link (unshared connection to a store) over which it tracks keys for
    /// the client.
    pub fn stores(&self) -> impl Iterator<Item = (BackendId, PrivateId)> {
        self.links.iter().copied()
    }

    /// True while not all stores have replied to a command that switches tracking on.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Keeps a copy of a request (or transaction) to `store` with `replies` replies, to send it once more if a
    /// node redirects it. Its first `caching_bytes` bytes are a `CLIENT CACHING` command.
    pub fn keep_request(&mut self, store: BackendId, (bytes, caching_bytes): (&[u8], usize), replies: usize) {
        let request = &mut self.request;
        request.bytes.clear();
        request.bytes.extend_from_slice(bytes);
        (request.replies, request.caching_bytes) = (replies, caching_bytes);
        (request.tries, request.waits, request.store) = (0, 0, Some(store));
    }

    /// Counts a node's answer that the node cannot carry out the request in flight yet. Returns the number of
    /// such answers; `None` if the request must not be sent again.
    pub fn count_not_yet(&mut self) -> Option<u8> {
        let request = &mut self.request;
        if request.bytes.is_empty() {
            return None;
        }
        request.tries = 0;
        request.waits = request.waits.saturating_add(1);
        Some(request.waits)
    }

    /// Returns the request in flight to be sent to the store that it was sent to first; `None` if it must not
    /// be sent again, or if there is no link (unshared connection) to that store any more.
    pub fn once_more(&self) -> Option<(PrivateId, Repeat)> {
        let request = &self.request;
        let link = self.link_to(request.store?).filter(|_| !request.bytes.is_empty())?;
        Some((link, Repeat { bytes: request.bytes.clone(), replies: request.replies }))
    }

    /// Forgets the copy of the request in flight, because the request is answered or must not be sent again.
    pub fn forget_request(&mut self) {
        self.request.bytes.clear();
        self.request.bytes.shrink_to(KEPT_BYTES);
    }

    /// Returns the request in flight to be sent to another node, preceded by `ASKING` if that node is
    /// importing the slot (`is_asking`), and counts it as redirected. `None` if it must not be sent again, or
    /// was redirected `tries_max` times. If `ASKING` takes the place of a `CLIENT CACHING YES`, the client is
    /// to be told that any key may have changed.
    pub fn repeat(&mut self, is_asking: bool, tries_max: u8) -> Option<Repeat> {
        const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
        let request = &mut self.request;
        if request.bytes.is_empty() || request.tries >= tries_max {
            return None;
        }
        request.tries += 1;
        if !is_asking {
            return Some(Repeat { bytes: request.bytes.clone(), replies: request.replies });
        }
        // Only the command right behind `ASKING` is carried out at a node that imports the slot, and only the one right
        // behind `CLIENT CACHING` is an exception: there is no order for both.
        let (caching, rest) = request.bytes.split_at(request.caching_bytes);
        let opts_in = self.options.as_ref().is_some_and(|options| options.opts_in);
        self.is_unsure |= opts_in && !caching.is_empty();
        let replies = request.replies - usize::from(!caching.is_empty()) + 1;
        Some(Repeat { bytes: [ASKING, rest].concat(), replies })
    }

    /// Records that any key that the client has read may have changed unseen, so that it is told after its next
    /// reply.
    pub fn note_unsure(&mut self) {
        self.is_unsure = true;
    }

    /// True if any key that the client has read may have changed unseen since the last call, so that the
    /// client has to be told.
    pub fn take_unsure(&mut self) -> bool {
        std::mem::take(&mut self.is_unsure)
    }

    /// Returns the tracking options in force; `None` before the stores have confirmed any.
    pub fn options(&self) -> Option<&TrackingOptions> {
        self.options.as_ref()
    }

    /// Begins to wait for the replies of all stores to a `CLIENT TRACKING ON` command. `sequence` is the
    /// number of the client's command; `filters` has the shares that its prefixes take of the limit on
    /// prefixes at stores.
    pub fn expect(&mut self, sequence: u32, options: TrackingOptions, filters: Vec<Filter>) {
        let replies_missing = self.links.len();
        self.pending = Some(Pending {
            sequence,
            options,
            filters,
            replies_missing,
            is_accepted: false,
            refusal: None,
            target: None,
        });
    }

    /// Sets the client that will take the invalidation messages for the command with this number (`sequence`).
    /// Returns the stores with their links (unshared connections to stores), and the options to send to them;
    /// `None` if no such command waits for it.
    pub fn aim(
        &mut self,
        sequence: u32,
        target: &Target,
    ) -> Option<(&[(BackendId, PrivateId)], &TrackingOptions)> {
        let pending = self.pending.as_mut().filter(|pending| pending.sequence == sequence)?;
        pending.target = Some(Aim { peer: target.peer, is_gone: false });
        Some((&self.links, &pending.options))
    }

    /// Ends the `CLIENT TRACKING ON` command with this number (`sequence`) with `error`: before any store was
    /// sent it, or because a store has refused it. `None` if there is no such command.
    pub fn refuse(&mut self, sequence: u32, error: Vec<u8>) -> Option<TrackingReply> {
        let pending = self.pending.take_if(|pending| pending.sequence == sequence)?;
        let left = pending.target.map(|aim| aim.peer).filter(|peer| !self.is_aimed_at(*peer));
        Some(TrackingReply { sequence, reply: error, left, is_divided: false, is_target_gone: false })
    }

    /// Takes one store's reply to `CLIENT TRACKING ON`. Once all stores have replied, returns the reply to
    /// the client's command; None before.
    pub fn take_reply(&mut self, reply: Vec<u8>) -> Option<TrackingReply> {
        let pending = self.pending.as_mut()?;
        pending.replies_missing -= 1;
        if reply.starts_with(b"-") {
            pending.refusal.get_or_insert(reply);
        } else {
            pending.is_accepted = true;
        }
        let mut pending = self.pending.take_if(|pending| pending.replies_missing == 0)?;
        if let Some(refusal) = pending.refusal.take() {
            let is_divided = pending.is_accepted && self.options.is_some();
            let sequence = pending.sequence;
            self.pending = Some(pending);
            let refused = self.refuse(sequence, refusal);
            return refused.map(|refused| TrackingReply { is_divided, ..refused });
        }
        pending.options.add_prefixes_of(self.options.as_ref());
        self.options = Some(pending.options);
        self.filters = pending.filters;
        let before = std::mem::replace(&mut self.target, pending.target);
        let left = before.map(|aim| aim.peer).filter(|peer| !self.is_aimed_at(*peer));
        let is_target_gone = self.target.is_some_and(|aim| aim.is_gone);
        let (sequence, reply) = (pending.sequence, b"+OK\r\n".to_vec());
        Some(TrackingReply { sequence, reply, left, is_divided: false, is_target_gone })
    }

    fn is_aimed_at(&self, peer: Peer) -> bool {
        self.target.is_some_and(|aim| aim.peer == peer)
    }

    /// Returns the clients that get this client's invalidation messages (`CLIENT TRACKING` with `REDIRECT`),
    /// or will once the stores have confirmed that command.
    pub fn targets(&self) -> impl Iterator<Item = Peer> {
        let pending = self.pending.as_ref().and_then(|pending| pending.target);
        self.target.into_iter().chain(pending).map(|aim| aim.peer)
    }

    /// Records that the client `peer` is gone, which takes this client's invalidation messages or was to take
    /// them. Returns the number (`CLIENT ID`) of the lost connection, of which this client is to be told;
    /// None if this client's messages do not go to `peer`, or if the loss is known already.
    pub fn lose_target(&mut self, peer: Peer) -> Option<u64> {
        if let Some(aim) = self.pending.as_mut().and_then(|pending| pending.target.as_mut()) {
            aim.is_gone |= aim.peer == peer;
        }
        let aim = self.target.as_mut().filter(|aim| aim.peer == peer && !aim.is_gone)?;
        aim.is_gone = true;
        self.redirect()
    }

    /// Records that the client is gone that takes this client's invalidation messages. Returns the number
    /// (`CLIENT ID`) of the lost connection, of which this client is to be told; None if this client takes
    /// its messages itself, or if the loss is known already.
    pub fn break_redirect(&mut self) -> Option<u64> {
        self.lose_target(self.target?.peer)
    }

    /// Returns the other client that takes the invalidation messages in place of this one (`REDIRECT`).
    /// `None` if this client takes them itself, or if the other client is gone.
    pub fn live_target(&self) -> Option<Peer> {
        self.target.filter(|aim| !aim.is_gone).map(|aim| aim.peer)
    }

    /// Returns the number (`CLIENT ID`) of the connection that takes the invalidation messages in place of this client
    /// (`REDIRECT`); `None` if this client takes them itself, or if no options are in force yet.
    pub fn redirect(&self) -> Option<u64> {
        self.options.as_ref()?.redirect
    }

    /// True if another client was to take the invalidation messages (`REDIRECT`) and is gone.
    pub fn is_broken(&self) -> bool {
        self.target.is_some_and(|aim| aim.is_gone)
    }

    /// Keeps `CLIENT CACHING` (`word` is `YES` or `NO`) for the client's next request. The error is the text of the
    /// reply: the word is another, no keys are tracked, or their mode (`OPTIN` for `YES`, `OPTOUT` for `NO`) does not
    /// fit.
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

    /// Returns the sum of the lengths, in bytes, of the key prefixes (`BCAST`) in force.
    pub fn prefix_bytes(&self) -> usize {
        self.options.iter().flat_map(|options| &options.prefixes).map(Vec::len).sum()
    }

    /// Returns the bytes of memory that the record of the client's key tracking takes.
    pub fn memory_bytes(&self) -> usize {
        let pending = self.pending.as_ref().map(|pending| &pending.options);
        let prefixes = self.options.iter().chain(pending).flat_map(|options| &options.prefixes);
        let prefixes = prefixes.map(|prefix| prefix.capacity() + size_of::<Vec<u8>>()).sum::<usize>();
        let request = self.request.bytes.capacity() + self.late.capacity() * size_of::<PrivateId>();
        let filters = self.filters.capacity() * size_of::<Filter>();
        size_of::<Self>()
            + request
            + filters
            + self.links.capacity() * size_of::<(BackendId, PrivateId)>()
            + prefixes
    }
}

/// The error for `CLIENT CACHING` of a client that tracks no keys.
pub const NOT_TRACKING: &str = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";

impl ClientStage {
    /// Returns the number of clients for which stores track keys.
    pub fn tracking_clients(&self) -> usize {
        self.clients.all().filter(|client| client.tracks_keys()).count()
    }

    /// Returns the clients for which stores track keys.
    pub fn tracking_ids(&self) -> Vec<ClientId> {
        let tracks = |id: &ClientId| self.clients.peek(*id).is_some_and(Client::tracks_keys);
        self.clients.ids().filter(tracks).collect()
    }

    /// Answers `CLIENT TRACKINGINFO` with the tracking options in force, `off` if there are none.
    pub fn tracking_info(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let tracking = client.ties.as_ref().and_then(|ties| ties.tracking.as_ref());
        let options = tracking.and_then(|tracking| tracking.options.clone());
        let is_exception = tracking.is_some_and(|tracking| tracking.caching.is_some());
        let mut flags: Vec<&str> =
            options.as_ref().map_or_else(|| vec!["off"], |options| options.flags(is_exception).collect());
        flags.extend(tracking.filter(|tracking| tracking.is_broken()).map(|_| "broken_redirect"));
        self.answer_now(env, id, |out, protocol| write_info(out, protocol, &flags, options.as_ref()));
    }
}

impl Client {
    /// Returns the number that `CLIENT GETREDIR` answers: that of the connection which takes the invalidation
    /// messages for the client, 0 if it takes them itself, -1 if no keys are tracked.
    pub fn redirect(&self) -> i64 {
        let tracking = self.ties.as_ref().and_then(|ties| ties.tracking.as_ref());
        let options = tracking.and_then(|tracking| tracking.options());
        options.map_or(-1, |options| options.redirect.map_or(0, |number| number as i64))
    }
}

fn write_info(out: &mut Vec<u8>, protocol: Protocol, flags: &[&str], options: Option<&TrackingOptions>) {
    let prefixes = options.map_or(&[][..], |options| &options.prefixes);
    encode::map(out, protocol, 3);
    encode::bulk(out, b"flags");
    encode::set(out, protocol, flags.len());
    flags.iter().for_each(|flag| encode::bulk(out, flag.as_bytes()));
    encode::bulk(out, b"redirect");
    encode::integer(out, options.map_or(-1, |options| options.redirect.unwrap_or(0) as i64));
    encode::bulk(out, b"prefixes");
    encode::array(out, prefixes.len());
    prefixes.iter().for_each(|prefix| encode::bulk(out, prefix));
}
