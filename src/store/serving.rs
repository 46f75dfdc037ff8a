//! Serves calls that wait, after the command or transaction that made their keys ready: in the order in which
//! the keys became ready, and for each key in the order in which the calls came.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::call::Call;
use super::effort::{Effort, FIND};
use super::engine::Engine;
use super::post::{Delivery, Post};
use super::refusal::Refusal;
use super::reply::Reply;
use super::session::{Disposition, Session};
use super::waits::{Kind, Waiter, Want};
use super::{lists, sorted_sets, stream_groups, streams};
use crate::protocol::{Argument, Arguments};
use crate::values::Timestamp;
use crate::values::time::Now;

/// The command name of the made-up request in whose place a blocking call that has waited is carried out: of
/// the call's own request, only the keys and the elements that it wants are kept.
const NAME: &[u8] = b"serve";
const PLACES: [Argument; 1] = [Argument { start: 0, length: NAME.len() as u32 }];

/// The reply to a call that has waited for entries of streams, kept so that other calls which wait for the
/// same entries of the same streams get a copy.
struct Told {
    waiter: Waiter,
    bytes: Bytes,
}

/// Returns an error if the call waits for entries of streams, and the present request has caused as many
/// bytes of messages and of such replies as a request may: each such call may get all entries that the
/// request has added, unlike calls that take elements away.
fn has_room(post: &Post, waiter: &Waiter) -> Result<(), Refusal> {
    if waiter.want.kind() == Kind::Stream { post.has_room() } else { Ok(()) }
}

impl Engine {
    /// Carries out the blocking calls that wait for keys which have been added, got entries or were removed,
    /// and those whose keys change as other calls are carried out.
    pub(super) fn serve_waiting(&mut self, effort: &Effort, now: Now) {
        // All entries were added to streams before, and serving calls only takes entries away from other calls: a call
        // that has found nothing in its streams finds nothing later either.
        let mut idle = BTreeSet::new();
        while let Some((database, key, streamed)) = self.keyspace.interest.waits.next_ready() {
            self.keyspace.select(database);
            let kind = self.kind_at(&key);
            if kind.is_some() {
                self.serve_row(&key, kind, &mut idle, effort, now);
            }
            if streamed && kind != Some(Kind::Stream) {
                self.refuse_row(&key, effort, now);
            }
        }
    }

    /// Returns the kind of blocking calls that wait for such a value as the one at `key`; `None` if there is
    /// no such key, or if no command waits for values of its type. Removes the key if it has expired.
    fn kind_at(&mut self, key: &[u8]) -> Option<Kind> {
        let place = self.keyspace.find(key)?;
        Kind::of(&self.keyspace.entry(place).value)
    }

    /// Carries out calls that wait for `key`, in the order in which they came, as long as its value has
    /// elements for them. `kind` is the kind of calls that wait for such a value; calls of another kind wait
    /// on. `idle` has the tickets (numbers in the order of arrival) of the calls that have found nothing in any
    /// of their streams since the last change of a stream: they are left out, and more such calls are added.
    fn serve_row(
        &mut self,
        key: &[u8],
        kind: Option<Kind>,
        idle: &mut BTreeSet<u64>,
        effort: &Effort,
        now: Now,
    ) {
        let (mut behind, mut told) = (0, None);
        while let Some((ticket, want)) =
            self.keyspace.interest.waits.next_behind(self.keyspace.selected(), key, behind)
        {
            behind = ticket;
            effort.charge(FIND);
            if Some(want.kind()) != kind || idle.contains(&ticket) {
                continue;
            }
            let ended = self.serve_call(ticket, &mut told, effort, now);
            if !ended && kind == Some(Kind::Stream) {
                idle.insert(ticket);
            }
            if kind != Some(Kind::Stream) && self.kind_at(key) != kind {
                return;
            }
        }
    }

    /// Refuses the calls that wait to read the stream at `key` for a consumer group, because the key does not
    /// hold a stream any more. Their error is that of an XREADGROUP which comes now, as in Redis 7.2.
    fn refuse_row(&mut self, key: &[u8], effort: &Effort, now: Now) {
        let mut behind = 0;
        while let Some((ticket, want)) =
            self.keyspace.interest.waits.next_behind(self.keyspace.selected(), key, behind)
        {
            behind = ticket;
            effort.charge(FIND);
            if matches!(want, Want::Deliveries { .. }) {
                self.serve_call(ticket, &mut None, effort, now);
            }
        }
    }

    /// Carries out the waiting call with number `ticket`, and sends the reply or error to the call's
    /// connection. If its keys have nothing for it, it waits on: false then. `told` is the latest reply to a
    /// call for entries of streams; a call that asks for the same entries gets a copy of it.
    fn serve_call(&mut self, ticket: u64, told: &mut Option<Told>, effort: &Effort, now: Now) -> bool {
        let Some(waiter) = self.keyspace.interest.waits.take_out(ticket) else { return true };
        if let Some(told) = told.as_ref().filter(|told| told.waiter.reads_as(&waiter)) {
            let (session, bytes) = (waiter.session, told.bytes.clone());
            effort.charge_bytes(bytes.len());
            self.keyspace.interest.waits.put_back(ticket, waiter);
            self.keyspace.interest.waits.end(ticket);
            self.post.deliver(Delivery { session, bytes, ends_wait: true });
            return true;
        }
        let mut session = Session::new(waiter.session);
        session.protocol = waiter.protocol;
        session.database = waiter.database;
        let own = Effort::new(self.limits.effort_max);
        let mut reply = Vec::new();
        let mut call = Call {
            keyspace: &mut self.keyspace,
            session: &mut session,
            tally: &mut self.tally,
            post: &mut self.post,
            #[cfg(feature = "scripts")]
            scripts: &mut self.scripts,
            directory: &self.directory,
            limits: &self.limits,
            settings: &mut self.settings,
            arguments: Arguments::new(NAME, &PLACES),
            now,
            out: Reply::new(&mut reply, self.limits.reply_bytes_max),
            effort: &own,
            disposition: Disposition::Continue,
            attend: None,
            is_scripted: false,
            may_wait: false,
        };
        let served = has_room(call.post, &waiter)
            .and_then(|()| serve(&mut call, &waiter))
            .and_then(|served| call.out.check().map(|()| served));
        if let Err(refusal) = &served {
            call.tally.count_error(refusal.text().as_bytes());
            call.tally.stats.fail(waiter.slot);
            call.keyspace.interest.withdraw();
            call.out.refuse(refusal);
        }
        self.keyspace.interest.settle();
        effort.charge(own.spent());
        if self.keyspace.events.is_pending() {
            effort.charge(self.keyspace.events.publish(&mut self.post, None, self.limits.effort_max));
        }
        effort.charge_bytes(reply.len());
        let session = waiter.session;
        self.keyspace.interest.waits.put_back(ticket, waiter);
        let ended = served != Ok(false);
        if ended {
            let bytes = Bytes::from(reply);
            let waiter = self.keyspace.interest.waits.end(ticket);
            if let Some(waiter) = waiter.filter(|waiter| waiter.want.kind() == Kind::Stream) {
                self.post.count(bytes.len());
                *told = served.is_ok().then(|| Told { waiter, bytes: bytes.clone() });
            }
            self.post.deliver(Delivery { session, bytes, ends_wait: true });
        }
        ended
    }

    /// Ends the wait of a connection's blocking call without a reply; the caller replies in another way. Does
    /// nothing if no call of the connection waits.
    pub fn cancel_wait(&mut self, session: &Session) {
        self.keyspace.interest.waits.leave(session.id);
    }

    /// Ends the wait of all blocking calls whose timeouts have passed at `now`, each with the reply for a
    /// timeout.
    pub fn expire_waits(&mut self, now: Now) {
        while let Some(waiter) = self.keyspace.interest.waits.next_overdue(now.monotonic) {
            let bytes = waiter.reply_at_end().into();
            self.post.deliver(Delivery { session: waiter.session, bytes, ends_wait: true });
        }
    }

    /// Returns the time at which the next timeout of a waiting call passes; `None` if no call waits with a
    /// timeout.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.keyspace.interest.waits.deadline()
    }
}

/// Carries out a blocking call that has waited, now that one of its keys has changed, and writes its reply.
/// As in Redis 7.2, which carries the command out anew, the call looks at all of its keys in the order in
/// which it names them. False if they have nothing for it. An error becomes the call's reply.
fn serve(call: &mut Call<'_>, waiter: &Waiter) -> Result<bool, Refusal> {
    let keys = &waiter.keys;
    let first = |call: &mut Call<'_>, pop: fn(&mut Call<'_>, &Want, &[u8]) -> Result<bool, Refusal>| {
        for key in keys {
            if pop(call, &waiter.want, key)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    match &waiter.want {
        Want::Item(_) | Want::Items(..) | Want::Moved { .. } => first(call, lists::serve),
        Want::Member(_) | Want::Members(..) => first(call, sorted_sets::serve),
        Want::Entries { after, count } => streams::serve(call, keys, after, *count),
        Want::Deliveries { group, consumer, count, forgets } => {
            stream_groups::serve(call, keys, (group, consumer), *count, *forgets)
        }
        Want::Replicas | Want::Copies => Ok(false),
    }
}
