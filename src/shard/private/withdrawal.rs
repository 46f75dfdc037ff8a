//! Withdrawal of blocking commands: during a takeover or a drain the core itself has stores end them, and
//! finds out whether they have popped something before. The reply to a command that has waited in vain is not
//! sent: another process goes on with the command, or its client is closed.
//!
//! ```text
//!   waits -- XREAD ... $? ask for the last id --> CLIENT UNBLOCK over another link
//!     ^                                             |-- in vain ------------> withheld from the client
//!     |                                             |-- element or error ---> a reply like any other
//!     +------- :0, the store has not seen it yet ---+
//! ```

use super::link::{Errand, Expected, Link, State, Subject};
use super::{Abandoned, CanMove, Event, Owing, PrivateLinks, Waiting, call};
use crate::protocol::Protocol;
use crate::shard::env::Env;
use crate::shard::request::{PrivateId, ReplyTo};
use crate::values::Timestamp;
use crate::values::time::Now;

/// The number of times that a store may fail to end one blocking command when asked to by `CLIENT UNBLOCK` (it
/// replies `:0`: the command is not blocked there, perhaps as it has not arrived yet) before the core no longer
/// asks it.
const TOLD_MAX: u8 = 20;

/// Result of the attempt to have a store end a blocking command (`CLIENT UNBLOCK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withholding {
    /// The store was asked, now or before, to end the blocking command; its reply to the command will follow.
    Told,
    /// The store cannot be asked yet, because it has not been sent the command, or because a client has had
    /// the command ended and its reply is awaited.
    Later,
    /// The store cannot be asked to end the blocking command: it has not reported the connection's number, has
    /// refused `CLIENT UNBLOCK` or not ended the command after 20 attempts, or no other link can be had. Also if no
    /// command waits.
    Never,
}

impl Link {
    /// Returns the destination of the reply to the request in flight on this link, also if no client awaits that
    /// reply any more; `None` if no request is in flight.
    fn addressee(&self) -> Option<ReplyTo> {
        let request = self.in_flight.as_ref().map(|request| request.to);
        request.or_else(|| self.abandoned.as_ref().map(|abandoned| abandoned.to))
    }

    /// True if the core cannot have the blocking command in flight on this link ended: the store has not ended it
    /// after 20 attempts, has refused `CLIENT UNBLOCK` with an error, or has not reported the connection's number
    /// although the link is open. True also if no blocking command is in flight.
    fn cannot_be_ended(&self) -> bool {
        let told = self.in_flight.as_ref().and_then(|request| request.waiting()).map(|waiting| waiting.told);
        told.is_none_or(|told| told >= TOLD_MAX) || self.state == State::Open && self.number.is_none()
    }
}

impl PrivateLinks {
    /// True if another process can go on with the blocking command that waits on a private link (unshared connection
    /// to a store), and the store can be asked to end it here. False if no such command waits, or if a client has
    /// already had it ended.
    pub fn may_move(&self, id: PrivateId) -> bool {
        self.peek(id).is_some_and(|link| match &link.in_flight {
            Some(request) => {
                let can_move = request.waiting().is_some_and(|waiting| {
                    // Another client has sent `CLIENT UNBLOCK` for the command, and its end is awaited.
                    let ends_for_another = waiting.is_asked_to_end && !waiting.is_withheld;
                    waiting.can_move != CanMove::No && !ends_for_another
                });
                can_move && !link.cannot_be_ended()
            }
            None => false,
        })
    }

    /// Prepares the blocking command on a private link (unshared connection to a store) to be sent again by
    /// another process. An `XREAD` must not miss entries added in between, so each `$` in it is replaced by the
    /// id of its stream's last entry, for which the store is asked. True once nothing is left to be prepared; false
    /// while the store is asked, or cannot be for want of another link, and if no such command waits or it cannot move.
    pub fn prepare_move(&mut self, env: &mut Env, id: PrivateId, now: Now) -> bool {
        let Some(link) = self.at(id) else { return false };
        let (backend, database) = (link.backend, link.database);
        let Some(waiting) = link.waiting() else { return false };
        match waiting.can_move {
            CanMove::No | CanMove::Asks => return false,
            CanMove::Yes => {}
        }
        let Some((place, stream)) = call::awaits_new_entries(&waiting.frame) else { return true };
        let wanted = ((backend, database), Protocol::Resp2);
        let helper = self.helper(env, wanted, |link| link.database == database, now);
        let Some(helper) = helper else { return false };
        if let Some(waiting) = self.at(id).and_then(|link| link.waiting()) {
            waiting.can_move = CanMove::Asks;
        }
        let words: [&[u8]; 6] = [b"XREVRANGE", &stream, b"+", b"-", b"COUNT", b"1"];
        self.run_errand(env, helper, (id, Subject::LastEntry(place)), &words, now);
        false
    }

    /// Asks the store to end the blocking command on a private link (unshared connection to a store), so that the
    /// client can move to another process or be closed. If the store is asked, a reply which shows that the command has
    /// waited in vain, that its slot has moved, or that other stores are still to be asked (`WAIT`) is kept from the
    /// client; any other reply reaches it ([`Waiting::is_withheld`](super::Waiting::is_withheld)). Returns whether the
    /// store was asked, now or before.
    pub fn withhold(&mut self, env: &mut Env, id: PrivateId, now: Now) -> Withholding {
        let Some(link) = self.peek(id) else { return Withholding::Never };
        let Some(waiting) = link.in_flight.as_ref().and_then(|request| request.waiting()) else {
            return Withholding::Never;
        };
        if waiting.is_being_withheld() {
            return Withholding::Told;
        }
        if link.cannot_be_ended() {
            return Withholding::Never;
        }
        if waiting.is_asked_to_end || !link.is_sent() {
            return Withholding::Later;
        }
        if !self.unblock(env, id, false, now) {
            return Withholding::Never;
        }
        if let Some(waiting) = self.at(id).and_then(Link::waiting) {
            waiting.is_withheld = true;
        }
        Withholding::Told
    }

    /// True if the core itself, not a client, has asked the store to end the blocking command on a private link
    /// (unshared connection to a store), and the store has not replied that it could not end it. The client then
    /// does not get a reply which shows that the command has waited in vain.
    pub fn is_being_withheld(&self, id: PrivateId) -> bool {
        let request = self.peek(id).and_then(|link| link.in_flight.as_ref());
        request.and_then(|request| request.waiting()).is_some_and(Waiting::is_being_withheld)
    }

    /// Sets the deadline of the blocking command on a private link (unshared connection to a store) to
    /// `deadline`, if that is earlier than its own.
    pub fn limit_wait(&mut self, id: PrivateId, deadline: Timestamp) {
        if let Some(request) = self.at(id).and_then(|link| link.in_flight.as_mut()) {
            request.deadline = request.deadline.min(deadline);
        }
    }

    /// True if stores owe replies to blocking commands whose clients have disconnected, or to requests that
    /// put elements back.
    pub fn owes_orphans(&self) -> bool {
        let mut links = self.places.iter().filter_map(|place| place.link.as_ref());
        let waited = |request: &Abandoned| matches!(request.owing, Owing::Reply(_));
        links.any(|link| link.abandoned.as_ref().is_some_and(waited) || link.puts_back.is_some())
    }

    /// Sends a request with the words `words` about the blocking command on a private link (`link`) over
    /// another link (`helper`). `subject` says what the request is about.
    pub(super) fn run_errand(
        &mut self,
        env: &mut Env,
        helper: PrivateId,
        (link, subject): (PrivateId, Subject),
        words: &[&[u8]],
        now: Now,
    ) {
        let Some(to) = self.peek(link).and_then(Link::addressee) else {
            return debug_assert!(false, "a blocking command is in flight");
        };
        if let Some(helper) = self.at(helper) {
            helper.errands.push_back(Errand { link, to, subject });
        }
        self.ask(env, (helper, Expected::Errand), words, now);
    }

    /// Handles the reply to a request about a blocking command (`CLIENT UNBLOCK`, `XREVRANGE`); `reply` is
    /// None if it was lost. Does nothing if the command has been answered by then. If a store has not ended the command
    /// of a client that has disconnected, it is asked again; if it refuses to, or its reply is lost, the command's
    /// connection is closed, which ends the command too.
    pub(super) fn end_errand(
        &mut self,
        env: &mut Env,
        Errand { link: id, to, subject }: Errand,
        reply: Option<&[u8]>,
    ) {
        let Some(link) = self.at(id) else { return };
        if link.addressee() != Some(to) {
            return;
        }
        if let Some(abandoned) = &mut link.abandoned {
            match reply {
                _ if subject != Subject::End => {}
                Some(b":0\r\n") if abandoned.told < TOLD_MAX => {
                    abandoned.told += 1;
                    self.events.push_back(Event::AbandonedUnknown { link: id });
                }
                Some(b":0\r\n" | b":1\r\n") => {}
                // Else the command would wait on, and take an element for nobody.
                _ => self.close(env, id),
            }
            return;
        }
        match subject {
            Subject::LastEntry(place) => {
                let Some(waiting) = link.waiting() else { return };
                waiting.can_move = CanMove::No;
                if let Some(frame) = reply.and_then(|reply| call::with_last_id(&waiting.frame, place, reply))
                {
                    waiting.frame = frame.into();
                    waiting.can_move = CanMove::Yes;
                }
            }
            Subject::End if reply == Some(b":1\r\n") => {}
            Subject::End => {
                let holder = link.holder;
                let Some(waiting) = link.waiting() else { return };
                let is_refused = reply.is_some_and(|reply| reply.starts_with(b"-"));
                waiting.told = if is_refused { TOLD_MAX } else { waiting.told.saturating_add(1) };
                waiting.is_asked_to_end = false;
                waiting.may_have_ended |= reply.is_none();
                let was_withheld = waiting.is_withheld;
                waiting.is_withheld &= waiting.may_have_ended;
                if was_withheld && let Some((holder, _)) = holder {
                    self.events.push_back(Event::WaitsOn { holder });
                }
            }
        }
    }
}
