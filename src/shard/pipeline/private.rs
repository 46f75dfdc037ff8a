//! Requests over private links (connections to stores, each lent to one client): blocking commands, `WATCH`
//! and the requests up to `EXEC`. Subscriptions use such links as well: see `subscriptions.rs`.
//!
//! ```text
//! blocking command ── lend a link ── send ── ... ── reply ── give the link back
//! WATCH ── lend a link ── reads of the watched store go over it ── MULTI ... EXEC over it ── give it back
//! SUBSCRIBE ── lend a link ── messages pass to the client ── the last channel is gone ── close it
//! ```
//!
//! Each such request is alone: earlier ones of its client are answered before it is sent, and later ones
//! wait.

use std::time::Duration;

use super::Shard;
use super::destination::{CROSS_SLOT, Destination, Placement};
use crate::protocol::command::{Class, Command, Handling, LocalCommand, PrivateUse};
use crate::protocol::{Arguments, Protocol, Request, encode, reply};
use crate::routing::cluster::{NodeRefusal, Reason, Target};
use crate::shard::admission::Charge;
use crate::shard::clients::{FeedLoss, Rewrite, Splice, Watch};
use crate::shard::cluster::{Doubt, behind_asking};
use crate::shard::counters::Counter;
use crate::shard::message::Message;
use crate::shard::note::Note;
use crate::shard::outcome::{Outcome, Settlement};
use crate::shard::private::{
    Abandoned, Event, Kind, Orphans, Owing, PaidAhead, PrivateRequest, Purpose, PutBack, ReplySize, Waiting,
    call,
};
use crate::shard::refusal::{NotSent, Refusal, Stage, abort_because_of, is_read_only, reasoned_abort};
use crate::shard::request::{Envelope, Nature, Overdue, PrivateId, ReplyTo, Selected};
use crate::shard::settings::Mode;
use crate::values::limits::{COPY_BYTES_MAX, STEP_ERROR_BYTES_MAX, WATCHED_KEYS_MAX};
use crate::values::time::Now;
use crate::values::{BackendId, ClientId, Database, StoreVersion, Timestamp};

/// Two requests, and their number, that are sent right before a command that waits for replicas (`WAIT`). The
/// command counts the replicas that have all that the store sent them up to a certain request of the
/// connection: in Redis before 7.2 the last request of any kind (`PING` is one), since then the last one passed
/// on to replicas, such as a message on a sharded channel, which no pattern matches. If the store refuses them, the
/// client gets its error ([`Shard::doubt_of_copies`]).
const BEFORE_WAIT: (&[u8], usize) =
    (b"*1\r\n$4\r\nPING\r\n*3\r\n$8\r\nSPUBLISH\r\n$13\r\n__weir:copies\r\n$0\r\n\r\n", 2);
/// Error for a `WAIT` that has to ask several stores while its client watches keys over its only private link.
const WAIT_WITHIN_WATCH: &str =
    "ERR WAIT asks each store that the client has written to, and cannot do so between WATCH and EXEC";
/// The longest time for which a client may watch keys (`WATCH`) over a connection of its own; then the
/// watch is given up, and the client's `EXEC` fails.
const WATCH_MAX: Duration = Duration::from_secs(30);
/// Maximum number of times that one blocking command, one `SSUBSCRIBE`, or one request of a client for which
/// keys are tracked, is sent to another node of a cluster because a node has refused it; after that the client
/// gets an error.
pub(super) const TRIES_MAX: u8 = 6;
/// The shortest time between two log lines of one core about elements that a store popped for clients that
/// had left.
const ORPHANS_SAID_EVERY: Duration = Duration::from_secs(1);
/// The retry delay named in the error replies to requests that were lost with a private link (a connection to
/// a store that one client has to itself).
pub(super) const RETRY_AFTER_LOSS: Duration = Duration::from_millis(50);

/// Reason why a request is sent over a private link (a connection to a store that the client has to itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkUse {
    /// The request is a plain one, or a transaction: it watches no keys, and the store answers it at once.
    Request,
    /// The request is `WATCH`: its keys stay watched on the link (unshared connection to a store) until the client
    /// ends the watch (`EXEC`, `DISCARD`, `UNWATCH` or `RESET`), or weir breaks it (after 30 s, for instance).
    Watch,
    /// The request is a blocking command, which waits at its store.
    Waits,
}

impl Shard {
    /// Handles a request of a client that has private links (connections to stores of its own), if the request must
    /// not go the usual way: sends it over the client's link, or answers it with an error (while the client is
    /// subscribed, for instance). False if it goes the usual way: then nothing was done, and the caller goes on.
    /// `handling` says how weir handles its `command`.
    #[cold]
    pub(super) fn handle_tied(
        &mut self,
        id: ClientId,
        (command, handling): (&'static Command, Handling),
        request: Request<'_>,
        now: Now,
    ) -> bool {
        let client = self.clients.client(id);
        if matches!(handling, Handling::Local(LocalCommand::Hello)) && !client.is_subscriber_only() {
            return self.refuse_tied_hello(id, &request.arguments);
        }
        if client.is_subscriber_only() {
            use LocalCommand::{Ping, Quit, Reset};
            match handling {
                Handling::Private(PrivateUse::Subscribes(_) | PrivateUse::Unsubscribes(_))
                | Handling::Local(Ping | Quit | Reset) => return false,
                _ => {
                    let text = not_while_subscribed(command.name);
                    let is_exec = matches!(handling, Handling::Local(LocalCommand::Exec));
                    let text = if is_exec { abort_because_of(&text) } else { format!("ERR {text}") };
                    self.answer_error(id, &text);
                }
            }
            return true;
        }
        if client.watch().is_none() && !client.tracks_keys()
            || !matches!(handling, Handling::Forward | Handling::BetweenDatabases | Handling::Split(_))
        {
            return false;
        }
        let (slot, backend) = match self.placement(command, &request.arguments) {
            Ok(Placement::Together { slot, backend, .. } | Placement::OneBackend { slot, backend }) => {
                (slot, backend)
            }
            Ok(Placement::Apart) => {
                self.answer_error(id, CROSS_SLOT);
                return true;
            }
            Ok(Placement::Nowhere) | Err(_) => return false,
        };
        if !self.goes_over_own_link(id, (slot, backend)) {
            return false;
        }
        self.carry_out(id, Some(command), Destination::Private { slot, backend }, request, now);
        true
    }

    /// True if a client's request for keys at this `place` (slot and store) goes over a connection of its own (private
    /// link): stores track keys for the client, or it watches keys of that store, in a cluster of that slot.
    pub(super) fn goes_over_own_link(&mut self, id: ClientId, place: (u16, BackendId)) -> bool {
        let client = self.clients.client(id);
        let is_cluster = self.env.slots.is_some();
        client.tracks_keys() || client.watch().is_some_and(|watch| watch.covers(place, is_cluster))
    }

    /// Refuses a client's `HELLO 2` if messages of subscriptions come over private links (unshared
    /// connections to stores), because they come in RESP3. False for any other `HELLO`, so that the caller
    /// answers it.
    fn refuse_tied_hello(&mut self, id: ClientId, arguments: &Arguments<'_>) -> bool {
        let client = self.clients.client(id);
        let subscriptions = client.ties().and_then(|ties| ties.subscriptions.as_ref());
        let goes_back = arguments.get(1) == Some(b"2");
        if goes_back && subscriptions.is_some_and(|subscriptions| subscriptions.links().next().is_some()) {
            self.answer_error(id, "ERR HELLO is not allowed while the connection is subscribed to channels");
            return true;
        }
        false
    }

    /// Changes the database of a client and of its private links (unshared connections to stores), on which
    /// keys stay watched and tracked.
    pub(super) fn change_database(&mut self, id: ClientId, database: Database) {
        let client = self.clients.client(id);
        client.select(database);
        let Some(ties) = client.ties() else { return };
        let tracking = ties.tracking.iter().flat_map(|tracking| tracking.links());
        for link in ties.link.into_iter().chain(tracking) {
            self.private.select(link, database);
        }
    }

    /// Breaks a client's watch of keys (`WATCH`) if another node of the cluster owns their slot by now: the keys
    /// have left the node that watches them, as if they were deleted there.
    fn break_moved_watch(&mut self, id: ClientId, now: Now) {
        let Some(watch) = self.clients.client(id).watch().filter(|_| self.env.slots.is_some()) else {
            return;
        };
        if self.env.backend_of(watch.slot) != watch.backend {
            self.break_watch(id, now);
        }
    }

    /// Breaks a client's watch of keys (`WATCH`): its next `EXEC` fails as if a key had changed. Gives back
    /// the connection over which the keys were watched.
    pub(super) fn break_watch(&mut self, id: ClientId, now: Now) {
        let Some(ties) = self.clients.find(id).and_then(|client| client.ties()) else { return };
        let Some(watch) = &mut ties.watch else { return };
        watch.is_broken = true;
        if let Some(link) = ties.link.take() {
            self.return_link((id, link), true, now);
        }
    }

    /// Returns the destination of a command that needs a private link (a connection to a store that the client
    /// has to itself), for the reason `usage`, such as that it blocks or is a `WATCH`. The error is the text of
    /// the reply.
    pub(super) fn private_destination(
        &mut self,
        id: ClientId,
        (command, usage): (&'static Command, PrivateUse),
        arguments: &Arguments<'_>,
    ) -> Result<Destination, String> {
        if usage == PrivateUse::AwaitsCopies {
            let stores = self.stores_to_wait_for(id);
            if stores.len() > 1 && self.clients.client(id).watch().is_some() {
                return Err(WAIT_WITHIN_WATCH.to_owned());
            }
            let backend = stores.first().copied().unwrap_or(BackendId(0));
            return Ok(Destination::Private { slot: self.no_slot(), backend });
        }
        if let PrivateUse::Subscribes(kind) | PrivateUse::Unsubscribes(kind) = usage {
            return self.destination_of_subscription((command, kind), arguments);
        }
        match self.placement(command, arguments).map_err(|error| error.to_string())? {
            Placement::Together { slot, backend, .. } | Placement::OneBackend { slot, backend } => {
                Ok(Destination::Private { slot, backend })
            }
            Placement::Nowhere | Placement::Apart => Err(CROSS_SLOT.to_owned()),
        }
    }

    /// Returns the stores that a client's `WAIT` asks one after the other: those to which it may have written, or
    /// all while it has written nothing. A store whose keys the client watches is asked first in any case, as its
    /// link is the client's only one.
    fn stores_to_wait_for(&mut self, id: ClientId) -> Vec<BackendId> {
        let stores = self.env.stores();
        let client = self.clients.client(id);
        let watched = client.watch().map(|watch| watch.backend);
        let is_chosen = |store: &BackendId| client.may_have_written(*store) || Some(*store) == watched;
        let mut chosen: Vec<_> = stores.into_iter().filter(is_chosen).collect();
        chosen.sort_by_key(|store| Some(*store) != watched);
        chosen
    }

    /// Sends an admitted request to `backend`, over a connection that its client has to itself (private link).
    /// `command` is None if weir does not know it. `charge` is the price taken for the request (None if it has none),
    /// which is corrected to the real price with the reply, or here if the request is refused (then it costs nothing)
    /// or is a blocking command.
    pub(super) fn send_private(
        &mut self,
        id: ClientId,
        command: Option<&'static Command>,
        (slot, backend): (u16, BackendId),
        charge: Option<Charge>,
        request: Request<'_>,
        now: Now,
    ) {
        let arguments = &request.arguments;
        let handling = command.map_or(Handling::Forward, |command| command.handling_for(arguments));
        match (handling, command) {
            (Handling::Private(usage @ (PrivateUse::Subscribes(_) | PrivateUse::Unsubscribes(_))), _) => {
                self.change_subscriptions(id, usage, charge, arguments, now);
            }
            (Handling::Private(PrivateUse::Watches), Some(command)) => {
                self.watch(id, command, (slot, backend), charge, request, now);
            }
            (handling, _) => {
                let (waits, awaits_copies) = match handling {
                    Handling::Private(usage) => (true, usage == PrivateUse::AwaitsCopies),
                    _ => (false, false),
                };
                let usage = if waits { LinkUse::Waits } else { LinkUse::Request };
                let place = (backend, arguments.frame().len());
                let Some(link) = self.link_for_request((id, usage), place, charge, now) else { return };
                if command.is_none() {
                    self.private.spoil(link);
                }
                let (frame, nature) = (arguments.frame(), Nature::of(command));
                let (kind, charge) = if waits {
                    // A call may wait for ever, so its cost is not awaited like that of others.
                    let paid_ahead = charge.map(|charge| PaidAhead {
                        payer: charge.payer,
                        units: self.admission.settle_waiting(&charge, now),
                    });
                    let waiting = Waiting::new(arguments, slot, self.clients.has_own_terms());
                    let later = if awaits_copies { self.stores_to_wait_for(id) } else { Vec::new() };
                    let later = later.into_iter().filter(|store| *store != backend).collect();
                    (Kind::Waits(Waiting { later, paid_ahead, ..waiting }), None)
                } else {
                    (Kind::Plain, charge)
                };
                // `WAIT` counts the writes of its own connection. The client's writes went over other
                // connections and are answered, so requests that replicas get as well precede it.
                let caching = self.take_caching((id, link)).map(|caching| (caching, 1));
                let before = if awaits_copies { Some(BEFORE_WAIT) } else { caching };
                let block = before.map(|(before, replies)| ([before, frame].concat(), replies + 1));
                let message = match &block {
                    Some((block, replies)) => (Message::Small(block), *replies),
                    None => (Message::new(frame, request.shared), 1),
                };
                if matches!(kind, Kind::Plain) && nature.class != Class::Script {
                    let caching_bytes = caching.map_or(0, |(caching, _)| caching.len());
                    self.keep_for_another_node((id, backend), (message.0.bytes(), caching_bytes), message.1);
                }
                self.send_over(
                    id,
                    (link, backend),
                    message,
                    (nature, kind),
                    (Rewrite::AsItCame, charge),
                    now,
                );
                if waits && self.is_leaving(id) {
                    self.leaving.push(id);
                }
            }
        }
    }

    /// Returns, for this `usage`, the private link (connection to a store) that a client's request goes over: one that
    /// the client has already, or one that it is lent now. None if it can have none; the request is then refused here.
    /// `backend` is the store that the request goes to, `bytes` the length of the request, and `charge` the price taken
    /// for it, if it has one, which is given back if it is refused.
    fn link_for_request(
        &mut self,
        (id, usage): (ClientId, LinkUse),
        (backend, bytes): (BackendId, usize),
        charge: Option<Charge>,
        now: Now,
    ) -> Option<PrivateId> {
        if !self.private.has_room_for(bytes) {
            self.settle(charge, &Settlement::default(), now);
            self.answer_not_sent(id, backend, NotSent::Full);
            return None;
        }
        let tracking = match self.link_for_tracking(id, backend, now) {
            Ok(tracking) => tracking,
            Err(why) => {
                self.settle(charge, &Settlement::default(), now);
                self.answer_not_sent(id, backend, why);
                return None;
            }
        };
        if usage == LinkUse::Request && tracking.is_some() {
            return tracking;
        }
        self.break_moved_watch(id, now);
        if let Some(link) = self.clients.client(id).ties().and_then(|ties| ties.link) {
            // The client's private link is bound to the store of its watched keys, and this request needs the
            // same store.
            if self.private.backend_of(link) == Some(backend) {
                return Some(link);
            }
            self.settle(charge, &Settlement::default(), now);
            self.answer_error(id, CROSS_SLOT);
            return None;
        }
        let link = match tracking {
            Some(link) => link,
            None => self.lend_all(id, &[backend], Purpose::Other, charge, now)?.pop()?.1,
        };
        self.clients.client(id).ties_mut().link = Some(link);
        Some(link)
    }

    /// Lends a client a connection of its own (private link) to each of these stores. None if one cannot be had;
    /// the client's request is refused then. `purpose` is what the connections are for, and `charge` the price
    /// taken for the request, if it has one, which is given back if it is refused.
    pub(super) fn lend_all(
        &mut self,
        id: ClientId,
        stores: &[BackendId],
        purpose: Purpose,
        charge: Option<Charge>,
        now: Now,
    ) -> Option<Vec<(BackendId, PrivateId)>> {
        let mut lent = Vec::new();
        for store in stores {
            let Some(link) = self.lend_for(id, *store, purpose, now) else {
                lent.into_iter().for_each(|(_, link)| self.private.close(&mut self.env, link));
                self.settle(charge, &Settlement::default(), now);
                self.answer_not_sent(id, *store, NotSent::Links);
                return None;
            };
            lent.push((*store, link));
        }
        Some(lent)
    }

    /// Lends a client a private link (unshared connection to a store) in the client's database, for this
    /// `purpose`; None if this core or the client's tenant may have no more, or the client has left.
    pub(super) fn lend_for(
        &mut self,
        id: ClientId,
        store: BackendId,
        purpose: Purpose,
        now: Now,
    ) -> Option<PrivateId> {
        let client = self.clients.find(id)?;
        let holder = (id, client.identity().tenant_id());
        let wanted = ((store, client.database()), client.protocol());
        let lent = self.private.lend(&mut self.env, holder, wanted, purpose, now)?;
        self.private.keep_spare(&mut self.env, wanted, now);
        Some(lent)
    }

    /// Takes the encoded `CLIENT CACHING` command that is sent directly before a client's next request;
    /// `None` if there is none, or if keys are not tracked over that private link (unshared connection to a
    /// store).
    fn take_caching(&mut self, (id, link): (ClientId, PrivateId)) -> Option<&'static [u8]> {
        let tracking = self.tracking_of(id).filter(|tracking| tracking.has(link))?;
        tracking.take_caching()
    }

    /// Carries out a transaction over a private link (unshared connection to a store): that of a client for
    /// which keys are tracked, or one that is lent until the reply comes, because the transaction selects other
    /// databases. `nature` is its class and effect, `block` has its bytes, to which `replies` replies come;
    /// `splice` has weir's own replies to be inserted, `selects` the databases that it selects, and `charge` is
    /// the price taken for it, if any, given back if no link can be had.
    pub(super) fn execute_apart(
        &mut self,
        id: ClientId,
        backend: BackendId,
        (nature, block, replies): (Nature, Vec<u8>, usize),
        (splice, selects): (Splice, Vec<Selected>),
        charge: Option<Charge>,
        now: Now,
    ) {
        let place = (backend, block.len());
        let Some(link) = self.link_for_request((id, LinkUse::Request), place, charge, now) else { return };
        let rewrite = self.keep_splice(id, splice);
        let (block, replies, caching_bytes) = match self.take_caching((id, link)) {
            Some(caching) => ([caching, &block].concat(), replies + 1, caching.len()),
            None => (block, replies, 0),
        };
        // Nodes refuse a redirected transaction as a whole, so it can be sent again to another node.
        self.keep_for_another_node((id, backend), (&block, caching_bytes), replies);
        let kind = (nature, Kind::Transaction(selects));
        let message = (Message::Small(&block), replies);
        self.send_over(id, (link, backend), message, kind, (rewrite, charge), now);
    }

    fn send_over(
        &mut self,
        id: ClientId,
        (link, backend): (PrivateId, BackendId),
        (message, replies): (Message<'_>, usize),
        (nature, kind): (Nature, Kind),
        (rewrite, charge): (Rewrite, Option<Charge>),
        now: Now,
    ) {
        let client = self.clients.client(id);
        let asked = (backend, client.protocol(), client.database());
        let (cells, read) =
            self.hot_keys.begin_elsewhere(&self.env, asked, (nature.effect(), message.bytes()));
        let sequence = client.expect_reply(rewrite, charge);
        client.hold_back_later();
        let deadline = client.deadline_obeyed();
        let to = ReplyTo::new(self.env.settings.id, id, sequence);
        // A call that waits does not keep its store busy meanwhile.
        let shares_quiet = (nature.hides_work() && !matches!(kind, Kind::Waits(_)))
            .then(|| (backend, self.upstream.quiet_mut(backend).handle_sent_privately(now.monotonic)));
        let began = now.monotonic;
        let request = PrivateRequest { to, nature, cells, read, began, deadline, kind, shares_quiet };
        self.private.send(&mut self.env, link, (message, replies), request, now);
    }

    /// Sends a command that kills a running script, or asks about it, over a private link (unshared connection to a
    /// store) lent for this request alone. False if no such link can be had (`--private-links 0`, for instance), or
    /// the client has left: the caller then sends the request over a shared connection.
    pub(super) fn interrupt(
        &mut self,
        id: ClientId,
        envelope: &Envelope,
        message: Message<'_>,
        now: Now,
    ) -> bool {
        let Some(client) = self.clients.find(id).filter(|_| self.private.is_on()) else { return false };
        let (holder, protocol) = ((id, client.identity().tenant_id()), client.protocol());
        let wanted = (envelope.route.backend, protocol);
        let Some(link) = self.private.lend_for_interrupt(&mut self.env, holder, wanted, now) else {
            return false;
        };
        let to = envelope.reply_to;
        let deadline = if envelope.overdue == Overdue::Answered { envelope.deadline } else { Timestamp::MAX };
        let request = PrivateRequest {
            to,
            nature: envelope.nature,
            cells: Vec::new(),
            read: Vec::new(),
            began: now.monotonic,
            deadline,
            kind: Kind::Interrupt,
            shares_quiet: None,
        };
        self.private.send(&mut self.env, link, (message, 1), request, now);
        true
    }

    /// Carries out a client's `WATCH`, over a private link (unshared connection to a store). A client that
    /// watches keys already can add more, if they are at the same store (in a cluster, in the same slot). The
    /// keys are at `backend`, in `slot`; `charge` is the price taken for the command, if it has one. Keys
    /// elsewhere, and more than `WATCHED_KEYS_MAX` per client, are an error; once the watch is broken, the reply
    /// is OK and nothing is sent.
    fn watch(
        &mut self,
        id: ClientId,
        command: &'static Command,
        (slot, backend): (u16, BackendId),
        charge: Option<Charge>,
        request: Request<'_>,
        now: Now,
    ) {
        self.break_moved_watch(id, now);
        let client = self.clients.client(id);
        if client.is_watch_broken() {
            // The watch is broken already, so the next `EXEC` fails whatever this command watches.
            return self.answer_priced(id, charge, now, |out, _| encode::simple(out, "OK"));
        }
        let earlier = client.watch();
        let is_cluster = self.env.slots.is_some();
        if earlier.is_some_and(|watch| !watch.covers((slot, backend), is_cluster)) {
            self.settle(charge, &Settlement::default(), now);
            return self.answer_error(id, CROSS_SLOT);
        }
        let keys = earlier.map_or(0, |watch| watch.keys) + request.arguments.len() - 1;
        if keys > WATCHED_KEYS_MAX {
            self.settle(charge, &Settlement::default(), now);
            let error = format!("ERR too many watched keys: a client may watch {WATCHED_KEYS_MAX} at a time");
            return self.answer_error(id, &error);
        }
        let place = (backend, request.arguments.frame().len());
        let Some(link) = self.link_for_request((id, LinkUse::Watch), place, charge, now) else { return };
        let watch = Watch { backend, slot, since: now.monotonic, keys, is_broken: false };
        self.clients.client(id).ties_mut().watch.get_or_insert(watch).keys = keys;
        let message = Message::new(request.arguments.frame(), request.shared);
        let kind = Kind::Watch(earlier.is_none());
        self.send_over(
            id,
            (link, backend),
            (message, 1),
            (Nature::of(Some(command)), kind),
            (Rewrite::AsItCame, charge),
            now,
        );
    }

    /// Carries out the transaction of a client that watches keys, over its link (unshared connection to a store).
    /// `place` is the slot and store of the transaction's keys, if it has any. If the link is gone, or the watched
    /// keys have moved to another node, nothing is sent, and the reply is null: a watched key may have changed. Keys
    /// at another store than the watched ones are an error. `nature` is the transaction's class and effect, `block`
    /// has its bytes, to which `replies` replies come; `splice` has weir's own replies, `selects` the databases that
    /// it selects, and `charge` is the price taken for it, if any.
    pub(super) fn execute_watched(
        &mut self,
        id: ClientId,
        place: Option<(u16, BackendId)>,
        (nature, block, replies): (Nature, &[u8], usize),
        (splice, selects): (Splice, Vec<Selected>),
        charge: Option<Charge>,
        now: Now,
    ) {
        self.break_moved_watch(id, now);
        let client = self.clients.client(id);
        let watch = client.watch();
        let link = client.ties().and_then(|ties| ties.link);
        let (Some(watch), Some(link)) = (watch, link) else {
            // The link with the watch is gone, or the keys have moved to another node: a watched key may have
            // changed unseen, so the transaction fails.
            self.end_watch(id, now);
            self.env.counters.add(Counter::WatchesBroken, 1);
            return self.answer_priced(id, charge, now, encode::null_array);
        };
        if place.is_some_and(|place| !watch.covers(place, self.env.slots.is_some())) {
            self.end_watch(id, now);
            self.settle(charge, &Settlement::default(), now);
            return self.answer_error(id, &abort_because_of(CROSS_SLOT));
        }
        let rewrite = self.keep_splice(id, splice);
        let behind_caching = self.take_caching((id, link)).map(|caching| [caching, block].concat());
        let replies = replies + usize::from(behind_caching.is_some());
        let block = behind_caching.as_deref().unwrap_or(block);
        let kind = (nature, Kind::Exec(selects));
        self.send_over(
            id,
            (link, watch.backend),
            (Message::Small(block), replies),
            kind,
            (rewrite, charge),
            now,
        );
    }

    /// True if a client watches keys (`WATCH`), so that its next `EXEC` depends on whether they have
    /// changed.
    pub(super) fn watches(&mut self, id: ClientId) -> bool {
        self.clients.client(id).ties().is_some_and(|ties| ties.watch.is_some())
    }

    /// Ends a client's watch of keys (`WATCH`), if it has one, and gives back the private link (unshared
    /// connection to a store) over which the keys were watched.
    pub(super) fn end_watch(&mut self, id: ClientId, now: Now) {
        let Some(client) = self.clients.find(id) else { return };
        let Some(ties) = client.ties() else { return };
        if ties.watch.take().is_none() {
            return;
        }
        let link = ties.link.take();
        client.release_ties();
        if let Some(link) = link {
            self.return_link((id, link), true, now);
        }
    }

    /// Takes back a private link (connection to a store that one client has to itself) that a client has used
    /// for requests. `has_watched` says that keys are watched over it (`WATCH`): they are unwatched. A link
    /// over which keys are tracked stays with the client.
    pub(super) fn return_link(&mut self, (id, link): (ClientId, PrivateId), has_watched: bool, now: Now) {
        if !self.tracks_over(id, link) {
            self.private.give_back(&mut self.env, link, has_watched, now);
        } else if has_watched {
            self.private.unwatch(&mut self.env, link, now);
        }
    }

    /// Ends the subscriptions, tracking and watched keys of a client, and gives its own connections to stores
    /// (private links) back (`RESET`).
    pub(super) fn end_ties(&mut self, id: ClientId, now: Now) {
        self.end_tracking(id, now);
        self.end_watch(id, now);
        self.end_subscriptions(id, now);
    }

    /// Handles all events since the last call on private links (connections that one client, or the core itself, has
    /// to itself): replies, messages, losses.
    pub(super) fn handle_private_events(&mut self, now: Now) {
        while let Some(event) = self.private.poll_event() {
            match event {
                Event::Reply { link, holder, mut request, reply, size, step_error } => {
                    if let Some(backend) = self.private.backend_of(link) {
                        self.upstream.handle_heard(backend, now.monotonic);
                    }
                    self.look_for_read_only(link, (&reply, step_error.as_deref()), now);
                    let busy_micros = self.end_share(&mut request);
                    let answer = (reply.as_slice(), step_error.as_deref());
                    if let Some(request) = self.track_elsewhere((link, holder), request, answer, now) {
                        let answer = (reply, step_error.as_deref());
                        self.take_private_reply((link, holder), request, answer, (size, busy_micros), now);
                    }
                }
                Event::Pushed { link, holder, message } => {
                    if !self.pass_invalidation((holder, link), &message, now) {
                        self.take_message((holder, link), &message, now);
                    }
                }
                Event::Numbered { holder } => {
                    self.answer_if_open(holder);
                    self.answer_questions(holder, now);
                }
                Event::Tracking { link, holder, reply } => {
                    self.take_tracking_reply((link, holder), reply, now);
                }
                Event::Abandoned { place, request, reply } => {
                    if reply.is_some() {
                        self.upstream.handle_heard(place.0, now.monotonic);
                    }
                    self.charge_abandoned(&request, reply.as_ref(), now);
                    self.take_orphans(place, request, reply.as_ref().map(|(reply, _)| &**reply), now);
                }
                Event::AbandonedUnknown { link } => {
                    self.private.end_abandoned(&mut self.env, link, now);
                }
                Event::PutBack { cells, count, end } => {
                    if end == PutBack::Lost {
                        self.hot_keys.put_off_writes(cells, now.monotonic);
                    } else {
                        self.hot_keys.end_writes(&cells);
                    }
                    let is_done = end == PutBack::Done;
                    let outcome = if is_done { Counter::OrphansPutBack } else { Counter::OrphansLost };
                    self.env.counters.add(outcome, count as u64);
                }
                Event::Sign { backend, is_busy } => {
                    self.upstream.handle_sign(&self.env.settings, backend, is_busy);
                }
                Event::Tracker { backend, said } => self.take_change(backend, said, now),
                Event::Feed { backend, said } => self.take_from_feed(backend, said),
                Event::WaitsOn { holder } => self.handle_waits_on(holder),
                Event::Lost { link, holder, request, backend, reason, was_sent } => {
                    self.lose_private((link, holder), request, (backend, reason, was_sent), now);
                }
            }
        }
    }

    /// Has connections to a store opened anew if its reply over `link`, or the first error within a transaction
    /// (`step_error`), says that the store has become a replica (`-READONLY`).
    fn look_for_read_only(&mut self, link: PrivateId, (reply, step_error): (&[u8], Option<&[u8]>), now: Now) {
        if (is_read_only(reply) || step_error.is_some_and(is_read_only))
            && let Some(backend) = self.private.backend_of(link)
        {
            self.upstream.handle_read_only(backend, now.monotonic);
        }
    }

    /// Returns the error that a client gets in place of the error (`reply`) of a store over `link`. A
    /// redirect by a cluster's node becomes a refusal that clients retry or, for the `EXEC` of a client that
    /// watches keys, a null reply, as if a watched key had changed. `CLUSTERDOWN` counts as a redirect,
    /// except for a blocking command, and where weir has retried it already: for a client that tracks keys
    /// and watches none. An `-EXECABORT` without a reason gets `step_error`, the first error to a request of
    /// the transaction.
    fn reworded(
        &mut self,
        request: &PrivateRequest,
        reply: Vec<u8>,
        step_error: Option<&[u8]>,
        link: PrivateId,
    ) -> Vec<u8> {
        let is_redirect = |error: &[u8]| {
            matches!(
                NodeRefusal::parse(error),
                Some(
                    NodeRefusal::Moved { .. }
                        | NodeRefusal::Ask { .. }
                        | NodeRefusal::TryAgain
                        | NodeRefusal::ClusterDown
                )
            )
        };
        // Errors to what is sent before a blocking command, such as `ASKING`, say less than the one to it.
        let decisive = step_error.filter(|_| !request.waits()).unwrap_or(&reply);
        let holder = request.to.client_id();
        // weir has retried the request of a tracking client during CLUSTERDOWN for as long as it may.
        let was_retried = self.tracks_over(holder, link)
            && self.clients.find(holder).is_some_and(|client| client.watch().is_none());
        let is_down = NodeRefusal::parse(decisive) == Some(NodeRefusal::ClusterDown)
            && (request.waits() || was_retried);
        if self.env.slots.is_some() && is_redirect(decisive) && !is_down {
            // A doubt that names an owner is worth more.
            self.private_doubt.get_or_insert(Doubt { reason: Reason::Moved(None), moved: None });
            let mut text = Vec::new();
            if matches!(request.kind, Kind::Exec(_)) {
                let protocol = self.clients.find(request.to.client_id()).map(|client| client.protocol());
                encode::null_array(&mut text, protocol.unwrap_or(Protocol::Resp2));
                self.env.counters.add(Counter::WatchesBroken, 1);
            } else {
                let backend = self.private.backend_of(link).unwrap_or(BackendId(0));
                text = self.refusal_by(backend, NotSent::Redirects);
            }
            return text;
        }
        let step_error = step_error.and_then(|error| error.strip_prefix(b"-")?.strip_suffix(b"\r\n"));
        let abort = step_error
            .and_then(|error| reasoned_abort(&reply, &error[..error.len().min(STEP_ERROR_BYTES_MAX)]));
        abort.unwrap_or(reply)
    }

    /// Returns the error reply to a request that is not carried out at `backend` for the reason `why`, and counts it.
    fn refusal_by(&mut self, backend: BackendId, why: NotSent) -> Vec<u8> {
        let mut error = Vec::new();
        let (counter, refusal) = why.refusal(self.env.backend_name(backend));
        refusal.encode(&mut error);
        self.env.counters.add(counter, 1);
        error
    }

    /// Ends a request's share in its store's quiet time (in which the store answers nothing, since requests in flight
    /// keep it busy), and returns the share in microseconds. 0 for a request whose words show how much work it is,
    /// and if the share was ended before.
    fn end_share(&mut self, request: &mut PrivateRequest) -> u32 {
        self.end_quiet(request.shares_quiet.take())
    }

    fn end_quiet(&mut self, shares_quiet: Option<(BackendId, u32)>) -> u32 {
        let Some((backend, reading)) = shares_quiet else { return 0 };
        let quiet = self.upstream.quiet_mut(backend);
        quiet.handle_over_privately();
        let busy_micros = quiet.share_since(reading);
        self.env.counters.add(Counter::BusyMicros, u64::from(busy_micros));
        busy_micros
    }

    fn take_private_reply(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: PrivateRequest,
        (reply, step_error): (Vec<u8>, Option<&[u8]>),
        (size, busy_micros): (ReplySize, u32),
        now: Now,
    ) {
        let reply = self.doubt_of_copies(&request, (&reply, step_error)).unwrap_or(reply);
        let Some(mut request) = self.ask_elsewhere((link, holder), request, &reply, now) else { return };
        let waits = request.waits();
        if waits && self.withdraw_reply((link, holder), &mut request, (&reply, size), now) {
            return;
        }
        let Some((mut request, mut reply)) = self.wait_for_next((link, holder), request, reply, now) else {
            return;
        };
        let took_micros = if waits { 0 } else { now.monotonic.nanos_since(request.began) / 1_000 };
        let outcome = measured_privately(request.nature, (&reply, size), took_micros, busy_micros);
        self.hot_keys.compare_read(&request.read, &reply);
        if reply.starts_with(b"-") {
            reply = self.reworded(&request, reply, step_error, link);
        }
        if waits && self.clients.find(holder).is_none() {
            self.lose_reply((link, holder), &mut request, &reply, now);
        }
        self.hot_keys.end_writes(&request.cells);
        if let Kind::Exec(selects) | Kind::Transaction(selects) = &request.kind {
            self.follow_selects((link, holder), selects, &reply, now);
        }
        let is_over = match request.kind {
            Kind::Waits(_) => self.clients.find(holder).is_none_or(|client| client.watch().is_none()),
            Kind::Exec(_) | Kind::Transaction(_) => true,
            Kind::Watch(is_first) => is_first && reply.starts_with(b"-"),
            Kind::Plain => false,
            Kind::Interrupt => {
                if reply == b"+OK\r\n"
                    && let Some(backend) = self.private.backend_of(link)
                {
                    let health = &self.env.settings.overload.health;
                    health.handle_script_killed(usize::from(backend.0), now.monotonic);
                }
                // A busy store may have refused a part of the greeting, so the link serves no other request.
                self.private.close(&mut self.env, link);
                false
            }
        };
        if matches!(request.kind, Kind::Plain) && reply.starts_with(b"-UNAVAILABLE ") {
            // The keys of the client's watch may have moved to another node.
            self.break_watch(holder, now);
        }
        if is_over && let Some(client) = self.clients.find(holder) {
            // A call that could not go on at another node has given its link back already.
            let mut has_link = false;
            if let Some(ties) = client.ties() {
                has_link = ties.link.take() == Some(link);
                // `EXEC` ends all watches. A broken watch remains after a blocking call, until the client's
                // `EXEC` fails.
                if !waits {
                    ties.watch = None;
                }
            }
            client.release_ties();
            if has_link {
                self.return_link((holder, link), false, now);
            }
        }
        if let Kind::Waits(waiting) = &request.kind {
            self.charge_for_waited(waiting.paid_ahead, size, Some(holder), now);
        }
        if reply.len() > COPY_BYTES_MAX {
            self.give_back(request.to, outcome, Message::Shared(&reply.into()), now);
        } else {
            self.give_back(request.to, outcome, Message::Small(&reply), now);
        }
        self.end_tracked_request(holder, now);
    }

    /// Returns the error that a client gets in place of a store's `reply` to its `WAIT` or `WAITAOF`, because the store
    /// has refused (`step_error`) what weir sends before the command so that it counts no replica that lacks a write of
    /// the client. None if it has not, for any other request, and at a store before Redis 7.2 that does not know
    /// `SPUBLISH`, since it has carried out `PING`, which is enough there.
    fn doubt_of_copies(
        &self,
        request: &PrivateRequest,
        (reply, step_error): (&[u8], Option<&[u8]>),
    ) -> Option<Vec<u8>> {
        let error = step_error.filter(|_| !reply.starts_with(b"-"))?;
        let awaits_copies = call::awaits_copies(&request.waiting()?.frame);
        let is_old = self.clients.store_version() < StoreVersion::WAIT_COUNTS_WRITES;
        let is_sure = is_old && error.starts_with(b"-ERR unknown command");
        (awaits_copies && !is_sure).then(|| error.to_vec())
    }

    /// Charges for the reply to a blocking command: its bytes and elements, less the part of the command's price
    /// that was for the reply. The account that paid that part (`paid_ahead`) is charged, or, if quotas have
    /// changed so often since that it is no longer known, that of the client (`holder`). Nothing is charged if
    /// `paid_ahead` is None, since requests had no prices.
    pub(super) fn charge_for_waited(
        &mut self,
        paid_ahead: Option<PaidAhead>,
        size: ReplySize,
        holder: Option<ClientId>,
        now: Now,
    ) {
        let Some(PaidAhead { payer, units }) = paid_ahead else { return };
        let known = Some(payer).filter(|payer| self.admission.knows(*payer));
        let payer = known.or_else(|| self.clients.find(holder?)?.payer());
        if let Some(payer) = payer {
            self.admission.charge_for_waited(payer, (size.bytes, size.rows), units, now);
        }
    }

    /// Charges for a request that no client awaits any more, once its store has replied; `reply` is None if its
    /// connection ended without a reply.
    fn charge_abandoned(&mut self, request: &Abandoned, reply: Option<&(Vec<u8>, ReplySize)>, now: Now) {
        match request.owing {
            Owing::Reply(paid_ahead) => {
                if let Some((_, size)) = reply {
                    self.charge_for_waited(paid_ahead, *size, None, now);
                }
            }
            Owing::Rest { began, shares_quiet, nature } => {
                let busy_micros = self.end_quiet(shares_quiet);
                let took_micros = now.monotonic.nanos_since(began) / 1_000;
                let outcome = reply.map_or(Outcome::Lost, |(reply, size)| {
                    measured_privately(nature, (reply, *size), took_micros, busy_micros)
                });
                self.clients.handle_note(request.to, Note::LatePrice(outcome));
            }
        }
    }

    /// Changes the database of a client (`holder`) and of its private link (unshared connection to a store) to the
    /// last one that the client's transaction has selected, as the reply shows. After an error, which does not show
    /// it, the link selects the client's database anew, or is closed.
    fn follow_selects(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        selects: &[Selected],
        reply: &[u8],
        now: Now,
    ) {
        if selects.is_empty() {
            return;
        }
        if let Some(elements) = reply::elements(reply) {
            let mut selects = selects.iter().peekable();
            let mut selected = None;
            for (index, element) in elements.enumerate() {
                let select = selects.next_if(|select| select.element as usize == index);
                selected =
                    select.filter(|_| element == b"+OK\r\n").map(|select| select.database).or(selected);
            }
            let Some(database) = selected else { return };
            self.private.note_selected(link, database);
            if self.clients.find(holder).is_some() {
                self.change_database(holder, database);
            }
        } else if reply.starts_with(b"-") {
            // The error may stand for a reply that was too large, so it is unknown which database the link
            // has now.
            if self.tracks_over(holder, link) {
                self.private.select_anew(&mut self.env, link, now);
            } else {
                self.private.close(&mut self.env, link);
            }
        }
    }

    /// Handles the reply to a blocking command whose client has left in this turn (pass of the shard's loop): elements
    /// in the reply are put back or counted as lost. `holder` is the client, and `link` the connection that it had.
    fn lose_reply(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: &mut PrivateRequest,
        reply: &[u8],
        now: Now,
    ) {
        let (Some(place), Some(tenant)) = (self.private.place_of(link), self.private.tenant_of(link)) else {
            debug_assert!(false, "the link of client {holder:?} is there");
            return;
        };
        if let Kind::Waits(waiting) = &request.kind {
            let (takes, cells) = (waiting.takes, std::mem::take(&mut request.cells));
            let (to, told, owing) = (request.to, waiting.told, Owing::Reply(waiting.paid_ahead));
            let abandoned = Abandoned { takes, cells, tenant, owing, to, told };
            self.take_orphans(place, abandoned, Some(reply), now);
        }
    }

    /// Counts the elements that a store has popped, as its `reply` shows (None if the connection ended without
    /// one), for a blocking command (`request`) whose client had left, and puts them back if the client's tenant
    /// wants that (`give_back`).
    fn take_orphans(
        &mut self,
        place: (BackendId, Database),
        request: Abandoned,
        reply: Option<&[u8]>,
        now: Now,
    ) {
        let Some(reply) = reply else {
            return self.hot_keys.put_off_writes(request.cells, now.monotonic);
        };
        let Some(orphans) = Orphans::of(request.takes, reply) else {
            return self.hot_keys.end_writes(&request.cells);
        };
        let tenant = request.tenant;
        let known = usize::from(tenant.0) < self.env.quotas.len();
        let gives_back = known && self.env.quotas.tenant(tenant).give_back;
        let Orphans { key, count, way_back } = orphans;
        let (name, key) = (self.env.backend_name(place.0).to_owned(), key.escape_ascii().to_string());
        let mut left = Some(request.cells);
        if let Some(way_back) = way_back.filter(|_| gives_back) {
            let cells = left.take().unwrap_or_default();
            left = self.private.put_back(&mut self.env, place, (&way_back, count), cells, now).err();
        }
        if self.orphans_said_at.is_none_or(|at| now.monotonic.since(at) >= ORPHANS_SAID_EVERY) {
            self.orphans_said_at = Some(now.monotonic);
            let becomes = if left.is_some() { "lost" } else { "put back" };
            self.env.say(format!(
                "{count} element(s) that {name} took from {key:.100} for a client that had left are {becomes} \
                 (weir_blocked_orphans_total)"
            ));
        }
        if let Some(cells) = left {
            self.env.counters.add(Counter::OrphansLost, count as u64);
            self.hot_keys.end_writes(&cells);
        }
    }

    /// Charges a client's quotas for bytes that it gets without a request that pays for them, such as the bytes
    /// of a published message.
    pub(super) fn charge_for_bytes(&mut self, id: ClientId, bytes: usize, now: Now) {
        if let Some(payer) = self.clients.find(id).and_then(|client| client.payer()) {
            self.admission.charge_for_bytes(payer, bytes, now);
        }
    }

    /// Sends a blocking command to another node of a cluster if `reply` says that a node has refused it, because that
    /// does not own the slot of the command's keys or these have left it, or has ended it because the slot moved
    /// (`-UNBLOCKED`). The command waits at the other node for the rest of its timeout. Returns the request if it is
    /// not sent again, so that the client gets the reply. `holder` is the client that has the `link`.
    fn ask_elsewhere(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        mut request: PrivateRequest,
        reply: &[u8],
        now: Now,
    ) -> Option<PrivateRequest> {
        let (Some(map), Kind::Waits(waiting)) = (&self.env.slots, &mut request.kind) else {
            return Some(request);
        };
        let may_go_on = !waiting.frame.is_empty() && !waiting.is_asked_to_end;
        let Some(from) = self.private.backend_of(link).filter(|_| may_go_on) else {
            return Some(request);
        };
        let is_unblocked = reply.starts_with(b"-UNBLOCKED");
        let sender = map.node(from).and_then(|node| node.addresses.first());
        let named = |target: Target<'_>| {
            sender.and_then(|sender| map.find(&target.resolve(sender)?)).map(|node| node.key)
        };
        let (node, is_asking) = match NodeRefusal::parse(reply) {
            Some(NodeRefusal::Moved { target, .. }) => (named(target), false),
            Some(NodeRefusal::Ask { target, .. }) => (named(target), true),
            _ if is_unblocked => {
                let owner = map.owner(waiting.slot).and_then(|owner| map.node(owner));
                (owner.map(|node| node.key), false)
            }
            _ => return Some(request),
        };
        if !is_asking {
            let moved = node.map(|owner| (waiting.slot, owner));
            self.private_doubt = Some(Doubt { reason: Reason::Moved(node), moved });
        }
        waiting.tries += 1;
        let Some(node) = node.filter(|node| node.backend != from && waiting.tries <= TRIES_MAX) else {
            return Some(request);
        };
        let left = call::with_time_left(&waiting.frame, now.monotonic.since(request.began));
        let (bytes, replies) = if is_asking { (behind_asking(&left), 2) } else { (left, 1) };
        // For a client that has just left the request is not sent again; its link is closed at the end of the
        // turn.
        self.send_to_another((link, holder), node.backend, (&bytes, replies), request, now)
    }

    /// Sends a `WAIT` or `WAITAOF` that has waited at one store to the next of the stores that the client has
    /// written to, where it waits for the rest of its timeout. Returns the request, with the reply for its
    /// client, if no other store is to be asked: the least of what the stores have confirmed, or the error
    /// that one of them has returned as its `reply`. `holder` is the client that has the `link`.
    fn wait_for_next(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        mut request: PrivateRequest,
        reply: Vec<u8>,
        now: Now,
    ) -> Option<(PrivateRequest, Vec<u8>)> {
        let passed = now.monotonic.since(request.began);
        let Kind::Waits(waiting) = &mut request.kind else { return Some((request, reply)) };
        if waiting.later.is_empty() && waiting.least.is_empty() || reply.starts_with(b"-") {
            return Some((request, reply));
        }
        let least = call::least_confirmed(&waiting.least, &reply).unwrap_or(reply);
        let Some(store) = waiting.later.pop() else { return Some((request, least)) };
        if waiting.is_asked_to_end {
            // `CLIENT UNBLOCK` ends the wait at all stores, and in a process that takes the client over.
            waiting.frame = call::without_wait(&waiting.frame).into();
        }
        let rest = call::with_time_left(&waiting.frame, passed);
        waiting.least = least;
        waiting.begin_anew();
        let message = [BEFORE_WAIT.0, &rest].concat();
        let unsent = self.send_to_another((link, holder), store, (&message, BEFORE_WAIT.1 + 1), request, now);
        let Some(request) = unsent else {
            if self.is_leaving(holder) {
                self.leaving.push(holder);
            }
            return None;
        };
        Some((request, self.refusal_by(store, NotSent::Links)))
    }

    /// Sends a blocking command, which was sent over `link` before, to another store, over a link that is lent for
    /// it. `message` has its bytes, with the number of replies to them. Returns the request if it is not sent,
    /// because its client (`holder`) has left, or because no link can be had.
    fn send_to_another(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        store: BackendId,
        message: (&[u8], usize),
        request: PrivateRequest,
        now: Now,
    ) -> Option<PrivateRequest> {
        let Some(client) = self.clients.find(holder) else { return Some(request) };
        let (tenant, protocol) = (client.identity().tenant_id(), client.protocol());
        let place = (store, client.database());
        if client.watch().is_some() {
            // The call goes on over another link, so a watched key may change unseen.
            self.break_watch(holder, now);
        } else {
            self.return_link((holder, link), false, now);
        }
        let lent = match self.link_for_tracking(holder, store, now) {
            Ok(None) => {
                self.private.lend(&mut self.env, (holder, tenant), (place, protocol), Purpose::Other, now)
            }
            tracking => tracking.ok().flatten(),
        };
        let client = self.clients.client(holder);
        client.ties_mut().link = lent;
        let Some(lent) = lent else {
            client.release_ties();
            return Some(request);
        };
        let (bytes, replies) = message;
        self.private.send(&mut self.env, lent, (Message::Small(bytes), replies), request, now);
        None
    }

    pub(super) fn lose_private(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: Option<PrivateRequest>,
        (backend, reason, was_sent): (BackendId, &'static str, bool),
        now: Now,
    ) {
        let mut text = self.env.pool.take();
        let name = self.env.backend_name(backend);
        Refusal::Unavailable { backend: name, reason, retry_after: RETRY_AFTER_LOSS }.encode(&mut text);
        if self.lose_inbox((holder, link), (backend, reason, was_sent), &text) {
            self.env.pool.give(text);
            return;
        }
        let (mut loss, mut tracked) = (FeedLoss::Unused, false);
        if let Some(client) = self.clients.find(holder)
            && let Some(ties) = client.ties()
        {
            if let Some(subscriptions) = &mut ties.subscriptions {
                loss = subscriptions.drop_feed(link, &text);
            }
            tracked = ties.tracking.as_ref().is_some_and(|tracking| tracking.has(link));
            if ties.link == Some(link) {
                ties.link = None;
                ties.end_or_break_watch(request.as_ref().is_some_and(PrivateRequest::ends_watch));
            }
            client.release_ties();
        }
        if let Some(request) = request {
            self.env.counters.add(Counter::RefusedUnavailable, 1);
            self.end_unanswered(request, was_sent, &text, now);
        }
        self.env.pool.give(text);
        if loss == FeedLoss::Answered {
            self.env.counters.add(Counter::RefusedUnavailable, 1);
            let delivered = self.clients.end_subscription_command(&self.env, holder);
            self.handle_delivered(holder, delivered, 0, now);
        }
        if (tracked || loss == FeedLoss::Missed) && self.clients.find(holder).is_some() {
            // The client subscribes anew when it connects again, as it does when a store has died.
            self.clients.close(&mut self.env, holder);
        }
    }

    /// Answers a request over a private link (unshared connection to a store) with the error `text` (an empty text
    /// sends the client nothing), because its store has not answered it. `was_sent` is false if the request certainly
    /// did not reach the store. After a blocking command that may have popped an element, the client is closed, as if
    /// its store had died.
    fn end_unanswered(&mut self, mut request: PrivateRequest, was_sent: bool, text: &[u8], now: Now) {
        self.end_share(&mut request);
        let (to, waits) = (request.to, request.waits());
        let paid_ahead = request.waiting().and_then(|waiting| waiting.paid_ahead);
        let outcome = if was_sent {
            self.hot_keys.put_off_writes(request.cells, now.monotonic);
            Outcome::Lost
        } else {
            self.hot_keys.end_writes(&request.cells);
            Outcome::Refused
        };
        if let Some(PaidAhead { payer, units }) = paid_ahead.filter(|paid| self.admission.knows(paid.payer)) {
            self.admission.charge_for_unanswered(payer, units, was_sent, now);
        }
        let holder = to.client_id();
        self.give_back(to, outcome, Message::Small(text), now);
        if waits && was_sent && self.clients.find(holder).is_some() {
            self.clients.stop_listening(&mut self.env, holder);
        }
    }

    /// Gives up the request in flight on a client's private link (unshared connection to a store), and returns it for
    /// the caller to end, with a reply if its client is still to get one. None if there is none, or if it was given up
    /// before. The link is closed, or stays open until the store has replied; then the charge of a request that is
    /// no blocking command is kept until the reply shows the real price.
    fn abandon_private(&mut self, link: PrivateId, now: Now) -> Option<PrivateRequest> {
        let request = self.private.abandon(&mut self.env, link, now)?;
        if self.private.measures_late(link) {
            self.clients.handle_note(request.to, Note::PriceFollows);
        }
        Some(request)
    }

    /// Ends a turn (pass of the shard's loop) for private links (connections to stores that one client has to itself):
    /// takes back those of clients that have left, sends again requests that nodes could not carry out yet, and answers
    /// requests whose deadline has passed with an error (in shadow mode only counts them; if deadlines are off, does
    /// neither).
    pub(super) fn handle_private_turn_end(&mut self, now: Now) {
        self.end_waits_of_leaving(now);
        for link in self.clients.take_left_links() {
            if let Some(request) = self.abandon_private(link, now) {
                self.end_unanswered(request, true, &[], now);
            }
        }
        if self.private.lent() == 0 {
            return;
        }
        self.ask_again(now);
        for (holder, link) in self.private.overdue(now.monotonic) {
            if self.private.waits(link) && self.is_leaving(holder) {
                self.abandon_call((holder, link), &[], now);
                continue;
            }
            let deadlines = self.upstream.deadlines();
            if deadlines != Mode::On {
                self.env.counters.add(Counter::LateInShadow, u64::from(deadlines == Mode::Shadow));
                self.private.await_late(link);
                continue;
            }
            let may_have_happened = self.private.may_change(link) && self.private.may_have_sent(link);
            let Some(waited) = self.private.waited(link, now.monotonic) else { continue };
            let mut text = self.env.pool.take();
            Refusal::TooLate { stage: Stage::Backend, waited, may_have_happened }.encode(&mut text);
            self.env.counters.add(Counter::RefusedDeadline, 1);
            self.abandon_call((holder, link), &text, now);
            self.env.pool.give(text);
        }
    }

    /// Gives up a client's request in flight on a private link (unshared connection to a store), and answers it with
    /// the error `text` (an empty text, for a client that is leaving, sends nothing). After that the client is closed
    /// if it waited in a blocking command that may have reached the store, or if keys are tracked over the link.
    pub(super) fn abandon_call(&mut self, (holder, link): (ClientId, PrivateId), text: &[u8], now: Now) {
        let was_sent = text.is_empty() || self.private.may_have_sent(link);
        let Some(request) = self.abandon_private(link, now) else { return };
        let tracked = self.tracks_over(holder, link);
        if let Some(client) = self.clients.find(holder) {
            if let Some(ties) = client.ties().filter(|ties| ties.link == Some(link)) {
                ties.link = None;
                ties.end_or_break_watch(request.ends_watch());
            }
            client.release_ties();
        }
        self.end_unanswered(request, was_sent, text, now);
        if tracked && self.clients.find(holder).is_some() {
            // Without the link on which its keys are tracked, the client would miss changes of the keys that it
            // keeps.
            self.clients.stop_listening(&mut self.env, holder);
        }
    }

    /// Gives up private links (connections that one client has to itself) whose stores do not reply, and breaks watches
    /// of keys (`WATCH`) that have lasted for 30 s, unless a request is in flight on their link.
    pub(super) fn look_after_private(&mut self, now: Now) {
        self.private.look_after(&mut self.env, now);
        self.handle_private_events(now);
        if self.private.lent() == 0 {
            return;
        }
        for id in self.clients.watching_since(now.monotonic.before(WATCH_MAX)) {
            let Some(ties) = self.clients.find(id).and_then(|client| client.ties()) else { continue };
            // A link with a request in flight is left alone until the request is answered.
            if ties.link.is_some_and(|link| self.private.is_at_work(link)) {
                continue;
            }
            self.break_watch(id, now);
        }
    }
}

/// Returns the text of the error, without its code, for a command that a client which speaks RESP2 sends while it is
/// subscribed to channels.
pub(super) fn not_while_subscribed(name: &str) -> String {
    format!(
        "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
         context"
    )
}

/// Returns the outcome of a request of this `nature` that a store has answered over a private link, as far as
/// its price depends on it. `size` is the reply's size as the store sent it, `took_micros` the time until the
/// reply, and `busy_micros` the time for which the request kept its store busy, both in microseconds.
fn measured_privately(
    nature: Nature,
    (reply, size): (&[u8], ReplySize),
    took_micros: u64,
    busy_micros: u32,
) -> Outcome {
    let kind = reply.first().copied().unwrap_or_default();
    let rows = nature.rows_priced((kind, size.rows), reply, took_micros);
    Outcome::served((size.bytes, rows), (took_micros, 0), busy_micros)
}
