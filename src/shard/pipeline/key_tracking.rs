//! Tracking of keys (`CLIENT TRACKING`): a client is told when keys change that it has read, so that it can
//! keep their values itself. Its requests about keys go over links of its own, one at a time, past the kept
//! replies of hot keys. Another client may take the messages in its place: see `tracking_redirects.rs`. In
//! front of a cluster, slots move between stores: see `tracking_in_clusters.rs`.

use super::Shard;
use crate::protocol::command::{Command, Refusal};
use crate::protocol::{Arguments, BadTrackingOption, Protocol, TrackingOptions, encode};
use crate::shard::clients::{Filter, KeyTracking, NO_TARGET, NOT_TRACKING, Rewrite, TrackingReply};
use crate::shard::counters::Counter;
use crate::shard::filter_board::FilterKind;
use crate::shard::message::Message;
use crate::shard::outcome::Outcome;
use crate::shard::private::Purpose;
use crate::shard::refusal::NotSent;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId};

/// Maximum number of bytes of one `CLIENT TRACKING ON` request, and of all prefixes of its client together (64
/// KiB each); a request beyond either is refused.
const FRAME_BYTES_MAX: usize = 64 * 1024;
/// The error for a `CLIENT TRACKING ON` of more than 64 KiB, and for prefixes of one client (`BCAST PREFIX`) that
/// are longer than 64 KiB together.
const PREFIXES_TOO_LONG: &str = "ERR CLIENT TRACKING has at most 64 KiB of prefixes";
/// The beginning of a store's message to a client whose keys it tracks, which says that the connection that
/// took the invalidation messages in the client's place is gone. The store's number of that connection
/// follows.
const BROKEN: &[u8] = b">2\r\n$21\r\ntracking-redir-broken\r\n";

impl Shard {
    /// Carries out a client's `CLIENT TRACKING ON` or `OFF`: answers it, or sends it to stores and answers
    /// it when they have replied.
    pub(super) fn client_tracking(
        &mut self,
        id: ClientId,
        command: &'static Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        let word = arguments.get(2).unwrap_or_default();
        if word.eq_ignore_ascii_case(b"off") {
            return match TrackingOptions::parse(arguments) {
                Ok(TrackingOptions { redirect: Some(number), .. }) => self.end_tracking_if_known(id, number),
                Ok(_) => {
                    self.end_tracking(id, now);
                    self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, "OK"));
                }
                Err(bad) => self.answer_error(id, bad.text()),
            };
        }
        if !word.eq_ignore_ascii_case(b"on") {
            return self.answer_error(id, "ERR syntax error");
        }
        if !self.private.is_on() {
            return self.answer_error(id, &Refusal::Tracks.of(command).to_string());
        }
        match self.tracking_options(id, arguments) {
            Ok(options) => self.begin_tracking(id, options, now),
            Err(text) => self.answer_error(id, &text),
        }
    }

    /// Reads the options of `CLIENT TRACKING ON`, and checks that the client may have them. The error is the
    /// text of the reply.
    fn tracking_options(
        &mut self,
        id: ClientId,
        arguments: &Arguments<'_>,
    ) -> Result<TrackingOptions, String> {
        if arguments.frame().len() > FRAME_BYTES_MAX {
            return Err(PREFIXES_TOO_LONG.to_owned());
        }
        let options = TrackingOptions::parse(arguments).map_err(BadTrackingOption::text)?;
        if options.redirect == Some(0) {
            return Err(NO_TARGET.to_owned());
        }
        let known = self.tracking_of(id).map_or(0, |tracking| tracking.prefix_bytes());
        if known + options.prefixes.iter().map(Vec::len).sum::<usize>() > FRAME_BYTES_MAX {
            return Err(PREFIXES_TOO_LONG.to_owned());
        }
        let Some(tenant) = self.tenant_of(id).filter(|_| options.is_broadcast) else { return Ok(options) };
        if !tenant.databases.is_empty() {
            return Err(format!("{}, and BCAST tells of keys in all", tenant.refusal_of_all()));
        }
        if tenant.keys.is_empty() {
            return Ok(options);
        }
        let is_own = |prefix: &Vec<u8>| tenant.keys.iter().any(|own| prefix.starts_with(own.as_bytes()));
        let names_own = !options.prefixes.is_empty() && options.prefixes.iter().all(is_own);
        if !names_own {
            return Err(format!(
                "NOPERM tenant '{}' has only keys with certain prefixes, so BCAST needs a PREFIX that begins with one of \
                 them",
                tenant.name
            ));
        }
        Ok(options)
    }

    fn begin_tracking(&mut self, id: ClientId, options: TrackingOptions, now: Now) {
        let mut missing = self.env.stores();
        if missing.is_empty() {
            // No node of the cluster is known yet, so none would confirm the command.
            return self.answer_not_sent(id, BackendId(0), NotSent::NoOwner);
        }
        if let Some(known) = self.tracking_of(id) {
            missing.retain(|store| known.link_to(*store).is_none());
        }
        // The limit on prefixes comes first, since they are then compared pairwise.
        let Some(filters) = self.filters_for(id, &options) else { return };
        if let Some(text) = self.overlap_of(id, &options) {
            return self.answer_error(id, &text);
        }
        let Some(lent) = self.lend_all(id, &missing, Purpose::Tracking, None, now) else { return };
        let client = self.clients.client(id);
        let sequence = client.expect_reply(Rewrite::AsItCame, None);
        client.hold_back_later();
        let tracking = client.ties_mut().tracking.get_or_insert_with(|| Box::new(KeyTracking::default()));
        lent.into_iter().for_each(|(store, link)| tracking.add(store, link));
        let (mut frame, number) = (Vec::new(), options.redirect);
        options.encode(&mut frame, None);
        tracking.expect(sequence, options, filters);
        if let Some(number) = number {
            return self.ask_for_target(ReplyTo::new(self.env.settings.id, id, sequence), number);
        }
        let links: Vec<PrivateId> = tracking.links().collect();
        for link in links {
            self.private.send_tracking(&mut self.env, link, &frame, now);
        }
    }

    /// Returns the text of the error if these options of a client's `CLIENT TRACKING ON` name prefixes (`BCAST`) that
    /// overlap with each other, or with those in force. No store is sent such options, because Redis 7.0 may give two
    /// replies to them, of which the second would be taken for that to the next request.
    fn overlap_of(&mut self, id: ClientId, options: &TrackingOptions) -> Option<String> {
        if !options.is_broadcast {
            return None;
        }
        let known = self.tracking_of(id).and_then(|tracking| tracking.options());
        options.overlap(known.map_or(&[][..], |known| &known.prefixes))
    }

    /// Takes shares of the limit on key prefixes at stores, which compare each prefix with every changed key, for the
    /// prefixes that will be in force with these options: they add to those in force now. Returns the records of the
    /// shares (filters). None if too little of the limit is left; the client has then been answered with an error.
    fn filters_for(&mut self, id: ClientId, options: &TrackingOptions) -> Option<Vec<Filter>> {
        if !options.is_broadcast {
            return Some(Vec::new());
        }
        let mut sum = options.clone();
        sum.add_prefixes_of(self.tracking_of(id).and_then(|tracking| tracking.options()));
        let holder = (id, FilterKind::Prefix);
        let held = sum.prefixes.iter().map(|prefix| self.clients.hold_filter(&self.env, holder, prefix));
        match held.collect() {
            Ok(filters) => Some(filters),
            Err(text) => {
                self.answer_error(id, &text);
                None
            }
        }
    }

    /// Takes the reply of a store to `CLIENT TRACKING ON`, which was sent over `link` for a client: the last reply
    /// completes the client's command, unless `link` was added after that command, on weir's own account.
    pub(super) fn take_tracking_reply(
        &mut self,
        (link, id): (PrivateId, ClientId),
        reply: Vec<u8>,
        now: Now,
    ) {
        let Some(tracking) = self.tracking_of(id) else { return };
        if tracking.confirm_late(link) {
            return self.take_late_confirmation(id, &reply, now);
        }
        if let Some(replied) = tracking.take_reply(reply) {
            self.complete_tracking(id, replied, now);
        }
    }

    /// Carries out `CLIENT TRACKING OFF REDIRECT number` of client `id`: asks the core of the client with this `number`
    /// (`CLIENT ID`) whether that client exists and belongs to the same tenant. [`Self::take_search`] takes the answer.
    fn end_tracking_if_known(&mut self, id: ClientId, number: u64) {
        let client = self.clients.client(id);
        let sequence = client.expect_reply(Rewrite::AsItCame, None);
        client.hold_back_later();
        self.search_for(ReplyTo::new(self.env.settings.id, id, sequence), number);
    }

    /// Answers a client's `CLIENT TRACKING OFF REDIRECT`: if the client that the command names exists (`is_found`), the
    /// tracking of keys ends; else the reply is an error. `to` is the reply address of the command.
    pub(super) fn take_search(&mut self, to: ReplyTo, is_found: bool, now: Now) {
        let mut reply = Vec::new();
        if is_found {
            self.end_tracking(to.client_id(), now);
            encode::simple(&mut reply, "OK");
        } else {
            encode::error(&mut reply, NO_TARGET);
        }
        self.give_back(to, Outcome::answered(reply.len()), Message::Small(&reply), now);
    }

    /// Answers a client's `CLIENT TRACKING ON` once all stores have replied. If the first such command of the client
    /// has failed, ends the tracking that some stores have begun; if only some stores have taken new options, closes
    /// the client.
    pub(super) fn complete_tracking(&mut self, id: ClientId, replied: TrackingReply, now: Now) {
        let TrackingReply { sequence, reply, left, is_divided, is_target_gone } = replied;
        let own = self.env.settings.id;
        self.clients.leave_targets(own, id, left.into_iter());
        if self.tracking_of(id).is_some_and(|tracking| tracking.options().is_none()) {
            self.end_tracking(id, now);
        }
        let to = ReplyTo::new(own, id, sequence);
        self.give_back(to, Outcome::answered(reply.len()), Message::Small(&reply), now);
        if is_divided {
            self.clients.stop_listening(&mut self.env, id);
        } else if is_target_gone && let Some(number) = self.clients.find(id).map(|client| client.redirect()) {
            self.tell_broken(id, number as u64, now);
        }
        // The cluster's map has changed while the command was under way, so keys may have changed unseen.
        if self.tracking_of(id).is_some_and(KeyTracking::take_unsure) {
            self.follow_nodes(id, now);
        }
    }

    /// Handles a store's message that came over `link` about changed keys: passes it on to the client, unless the
    /// client speaks RESP2 and the keys are its own. If the message says that the connection for invalidation messages
    /// is gone (`REDIRECT`), informs the client. False if the link (unshared connection to a store) is neither one over
    /// which keys are tracked for this client nor one on which it takes the messages of other clients.
    pub(super) fn pass_invalidation(
        &mut self,
        (id, link): (ClientId, PrivateId),
        message: &[u8],
        now: Now,
    ) -> bool {
        if !self.tracks_over(id, link) {
            return self.deliver_redirected((id, link), message, now);
        }
        if message.starts_with(BROKEN) {
            if self.env.slots.is_some() {
                // The target has given back its link to that node. If the target itself is gone, its core
                // reports that.
                self.tell_any_key(id, now);
            } else if let Some(number) = self.tracking_of(id).and_then(KeyTracking::break_redirect) {
                self.tell_broken(id, number, now);
            }
            return true;
        }
        if self.clients.client(id).protocol() == Protocol::Resp2 {
            // The client has switched to RESP2 meanwhile, in which it cannot get the message.
            return true;
        }
        self.clients.push_message(&mut self.env, id, message);
        self.env.counters.add(Counter::InvalidationsPassed, 1);
        self.charge_for_bytes(id, message.len(), now);
        true
    }

    /// Answers `CLIENT CACHING`, which says (`word` is `YES` or `NO`) whether the keys of the client's next
    /// request are tracked.
    pub(super) fn client_caching(&mut self, id: ClientId, word: &[u8]) {
        let set = self.tracking_of(id).map_or(Err(NOT_TRACKING), |tracking| tracking.set_caching(word));
        self.clients.answer_now(&mut self.env, id, |out, _| match set {
            Ok(()) => encode::simple(out, "OK"),
            Err(text) => encode::error(out, text),
        });
    }

    /// Ends the effect of `CLIENT CACHING`, which lasts for one command, once the client's next request was handled,
    /// even if that reads no keys or was refused. `name` is the request's first word. The effect lasts while the
    /// request is held (kept to be handled later), in a transaction until its end, and behind commands about the
    /// client itself: `CLIENT`, and `QOS`, since the next request may be in a `QOS CALL`.
    pub(super) fn end_caching(&mut self, id: ClientId, name: &[u8]) {
        let Some(client) = self.clients.find(id).filter(|client| client.tracks_keys()) else { return };
        let is_in_transaction = client.transaction().is_some();
        let is_about_client = [&b"client"[..], b"qos"].iter().any(|word| name.eq_ignore_ascii_case(word));
        if is_in_transaction || is_about_client || self.clients.holds_request(id) {
            return;
        }
        if let Some(tracking) = self.tracking_of(id) {
            tracking.take_caching();
        }
    }

    /// Ends the tracking of keys (`CLIENT TRACKING`) for a client, and breaks its watch of keys (`WATCH`), if it has
    /// one. The client's own connections to stores (private links) are free for other clients once their stores have
    /// confirmed the end.
    pub(super) fn end_tracking(&mut self, id: ClientId, now: Now) {
        if self.tracking_of(id).is_none() {
            return;
        }
        // A watch that uses the lost link ends too.
        self.break_watch(id, now);
        let Some(client) = self.clients.find(id) else { return };
        let tracking = client.ties().and_then(|ties| ties.tracking.take());
        client.release_ties();
        if let Some(tracking) = &tracking {
            self.clients.leave_targets(self.env.settings.id, id, tracking.targets());
        }
        for link in tracking.iter().flat_map(|tracking| tracking.links()) {
            self.private.end_tracking(&mut self.env, link, now);
        }
    }

    pub(super) fn tracking_of(&mut self, id: ClientId) -> Option<&mut KeyTracking> {
        self.clients.find(id)?.ties()?.tracking.as_deref_mut()
    }

    /// True if a store tracks keys for this client over this link (unshared connection to a store).
    pub(super) fn tracks_over(&mut self, id: ClientId, link: PrivateId) -> bool {
        self.tracking_of(id).is_some_and(|tracking| tracking.has(link))
    }
}
