//! Blocking commands of clients that leave: in a takeover the clients move to another process, which sends the
//! commands again; in a drain, and when they have ended their input, they are closed. Either way no store pops
//! an element that does not reach its client.

use std::time::Duration;

use super::Shard;
use crate::routing::cluster::NodeRefusal;
use crate::shard::clients::{Readiness, Withdrawn};
use crate::shard::private::{Kind, PrivateRequest, ReplySize, Withholding, call};
use crate::shard::request::PrivateId;
use crate::values::ClientId;
use crate::values::time::Now;

/// Time between a blocking command and the end of its client's input below which the two count as sent
/// together, so that the client still awaits the reply: a server would have carried out the command before it
/// saw the end of the input.
const TOGETHER: Duration = Duration::from_millis(10);

impl Shard {
    /// Has the store end a client's blocking command (`CLIENT UNBLOCK` by another client): the store answers it with an
    /// error if `is_error` is true, else as at its timeout. False if the client waits in no command, if the core itself
    /// is having it ended (the client moves to another process or is closed), or if the store cannot be asked.
    pub(super) fn unblock(&mut self, id: ClientId, is_error: bool, now: Now) -> bool {
        let link = self.waiting_link(id).filter(|link| !self.private.is_being_withheld(*link));
        link.is_some_and(|link| self.private.unblock(&mut self.env, link, is_error, now))
    }

    /// Ends the blocking command of a client that has ended its input: as on a server, the client does not wait. If it
    /// has waited for 10 ms or more, and weir does not drain, it is taken to have left: an element that is popped for
    /// it in this instant is put back (`give_back`), or counted as lost. Otherwise such an element is still delivered
    /// before the client is closed. Does nothing if the client waits in no command.
    pub(super) fn end_wait_at_end_of_input(&mut self, id: ClientId, now: Now) {
        let Some(link) = self.waiting_link(id) else { return };
        let waited = self.private.waited(link, now.monotonic);
        if waited.is_some_and(|waited| waited >= TOGETHER) && !self.clients.is_draining() {
            self.abandon_call((id, link), &[], now);
        } else {
            self.end_waiting(id, now);
        }
    }

    /// Asks the store of a leaving client's blocking command to end the command. The client is closed once
    /// the store has confirmed that nothing was popped. A popped element is delivered first; unless this is a
    /// drain, requests behind the command are then carried out. A store that has confirmed nothing after
    /// `--backend-timeout` is not waited for. Does nothing if the client waits in no command.
    fn end_waiting(&mut self, id: ClientId, now: Now) {
        let Some(link) = self.waiting_link(id) else { return };
        if self.clients.is_draining() {
            self.clients.stop_listening(&mut self.env, id);
        }
        self.private.limit_wait(link, now.monotonic.after(self.env.settings.reply_timeout));
        match self.private.withhold(&mut self.env, link, now) {
            Withholding::Told => {}
            Withholding::Later => self.leaving.push(id),
            Withholding::Never => self.abandon_call((id, link), &[], now),
        }
    }

    /// Ends the blocking commands of clients that are leaving, as far as they could not be ended earlier: those
    /// that were sent since the client ended its input, or were not yet sent when their stores were to be asked
    /// to end them.
    pub(super) fn end_waits_of_leaving(&mut self, now: Now) {
        for id in std::mem::take(&mut self.leaving) {
            self.end_waiting(id, now);
        }
    }

    /// Handles the event that a blocking command may go on waiting, though its store was asked to end it. The store is
    /// asked again for a client that is to be closed; in a takeover the next call of [`Self::withdraw_waiting`] does
    /// so.
    pub(super) fn handle_waits_on(&mut self, id: ClientId) {
        if self.is_leaving(id) {
            self.leaving.push(id);
        }
    }

    /// Closes a client whose rights have ended, after its earlier requests are answered. A blocking command in which it
    /// waits is given up: an element that is popped for it in this instant is put back (`give_back`), or counted as
    /// lost.
    pub(super) fn revoke(&mut self, id: ClientId, now: Now) {
        self.clients.revoke(&mut self.env, id);
        if let Some(link) = self.waiting_link(id) {
            self.abandon_call((id, link), &[], now);
        }
    }

    /// True if a client is to be closed (weir drains, its connection is ending, or its input is known to end), so that
    /// it must not wait in a blocking command.
    pub(super) fn is_leaving(&self, id: ClientId) -> bool {
        self.clients.is_draining() || self.clients.is_ending(id)
    }

    /// Returns whether a client that waits in a blocking command can move to another process: `Waits` (it
    /// can) or `Stays` (it cannot). `None` if it does not wait.
    pub(super) fn readiness_of_waiting(&self, id: ClientId) -> Option<Readiness> {
        let link = self.waiting_link(id)?;
        let can_move = self.clients.does_nothing_but_wait(id) && self.private.may_move(link);
        Some(if can_move { Readiness::Waits } else { Readiness::Stays })
    }

    /// Makes the store of a client's blocking command end it (`CLIENT UNBLOCK`), so that the client can
    /// move to another process. The caller repeats the call until the client is ready to move or no longer
    /// waits; the client is not read from meanwhile.
    pub fn withdraw_waiting(&mut self, id: ClientId, now: Now) {
        let Some(link) = self.waiting_link(id) else { return };
        if self.private.prepare_move(&mut self.env, link, now) {
            self.private.withhold(&mut self.env, link, now);
        }
    }

    /// Sets the deadline of a client's blocking command, which began in another process, to `left` from now,
    /// unless the command's own deadline is earlier. None leaves that deadline.
    pub(super) fn limit_wait(&mut self, id: ClientId, left: Option<Duration>, now: Now) {
        if let (Some(left), Some(link)) = (left, self.waiting_link(id)) {
            self.private.limit_wait(link, now.monotonic.after(left));
        }
    }

    /// Handles the reply to a blocking command that was ended for its client to leave. True if the reply is kept
    /// from the client, since the command has waited in vain or its slot has moved to another node. False if the
    /// caller has to handle it like any other: it has an element or another error, or the command was not ended
    /// for that. `holder` is the client that has the `link`.
    pub(super) fn withdraw_reply(
        &mut self,
        (link, holder): (PrivateId, ClientId),
        request: &mut PrivateRequest,
        (reply, size): (&[u8], ReplySize),
        now: Now,
    ) -> bool {
        let Kind::Waits(waiting) = &mut request.kind else { return false };
        if !waiting.is_withheld || self.clients.find(holder).is_none() {
            return false;
        }
        // A node of a cluster ends the call when its slot moves; the next process asks the new owner.
        let has_slot_left = self.env.slots.is_some()
            && (reply.starts_with(b"-UNBLOCKED")
                || matches!(
                    NodeRefusal::parse(reply),
                    Some(NodeRefusal::Moved { .. } | NodeRefusal::Ask { .. })
                ));
        // `WAIT` before several stores is not over while other stores are to be asked.
        let waits_on = !waiting.later.is_empty() && !reply.starts_with(b"-");
        if !has_slot_left && !waits_on && !call::is_in_vain(&waiting.frame, reply) {
            return false;
        }
        self.hot_keys.end_writes(&request.cells);
        self.charge_for_waited(waiting.paid_ahead, size, Some(holder), now);
        let frame = std::mem::take(&mut waiting.frame);
        let withdrawn = Withdrawn { frame, began: request.began, deadline: request.deadline };
        self.clients.withdraw(&mut self.env, holder, withdrawn);
        self.return_link((holder, link), false, now);
        true
    }

    /// Returns the connection of its own (private link) on which a client's blocking command waits; None if
    /// the client does not wait.
    fn waiting_link(&self, id: ClientId) -> Option<PrivateId> {
        self.clients.link_at_work(id).filter(|link| self.private.waits(*link))
    }
}
