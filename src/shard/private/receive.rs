//! Replies and messages that stores send over private links, and the rest of such a link until it is lent again.
//!
//! The next client that has a link must find nothing there that the store kept for the client before, and no reply
//! that was meant for that one. So a link rests only when the store has answered everything, and each answer was one
//! that leaves nothing behind ([`Expected::is_met_by`]). Any other answer, and a message that the link is not for,
//! spoils the link: it is closed as soon as no client has it. So is a link whose store has refused a part of its
//! greeting for the moment, once nothing is unanswered on it.

use super::link::{Expected, State};
use super::{Event, PrivateLinks, PutBack, ReplySize, Said};
use crate::routing::cluster::NodeRefusal;
use crate::shard::env::Env;
use crate::shard::fence::store_client;
use crate::shard::refusal::{
    NOT_READY, TURNED_AWAY, UNEXPECTED_REPLY, is_not_ready, reason_of_refused_login,
    reason_of_refused_select, turns_away,
};
use crate::shard::request::PrivateId;
use crate::values::time::Now;

impl PrivateLinks {
    /// Takes a whole reply or message of a store; `kind` is its first byte, also if an error stands in its place
    /// because it was too large.
    pub(super) fn take_reply(
        &mut self,
        env: &mut Env,
        id: PrivateId,
        (kind, size): (u8, ReplySize),
        reply: Vec<u8>,
        now: Now,
    ) {
        let Some(link) = self.at(id) else { return };
        if link.state != State::Open && turns_away(&reply) {
            let backend = link.backend;
            if self.turned_away.insert(backend) {
                env.say_turned_away(backend, &reply);
            }
            return self.give_up(env, id, TURNED_AWAY);
        }
        // Published messages and acknowledgements are arrays in RESP2; an error may stand for the latter.
        let is_message = link.is_streaming && link.expected.is_empty() && matches!(kind, b'*' | b'-');
        if kind == b'>' || is_message {
            return self.take_message(env, id, kind, reply, now);
        }
        let expected = link.expected.pop_front();
        let is_met = expected.is_none_or(|expected| expected.is_met_by(&reply));
        link.is_spoilt |= !is_met;
        match expected {
            None => {
                self.give_up(env, id, UNEXPECTED_REPLY);
            }
            Some(Expected::Login) if kind == b'-' => {
                self.give_up(env, id, reason_of_refused_login(&reply));
            }
            Some(Expected::Select) if kind == b'-' => {
                self.give_up(env, id, reason_of_refused_select(&reply));
            }
            Some(Expected::Login | Expected::Select) if !is_met => {
                self.give_up(env, id, UNEXPECTED_REPLY);
            }
            Some(Expected::Login | Expected::Select) if link.state == State::Open => {
                let was_sent = link.go_on();
                if was_sent {
                    self.list_to_send(id);
                } else {
                    self.give_up(env, id, UNEXPECTED_REPLY);
                }
            }
            Some(Expected::Login | Expected::Select | Expected::Cleaned) => {}
            Some(Expected::Name) => {
                link.is_half_greeted |= is_refused_for_now(&reply);
                link.name = store_client(&reply);
                if let Some(name) = &link.name {
                    env.fences.lift_former(link.backend, name);
                }
            }
            Some(Expected::Fence(origin, sequence)) => {
                link.take_fence_reply(env, (origin, sequence), &reply);
            }
            Some(Expected::Identity) if is_not_ready(&reply) && link.stays_tied() => {
                // The store may carry the request out by now, but could not be told to end a command that waits.
                self.give_up(env, id, NOT_READY);
            }
            Some(Expected::Identity) => {
                link.is_half_greeted |= is_refused_for_now(&reply);
                let digits = reply.strip_prefix(b":").and_then(|reply| reply.strip_suffix(b"\r\n"));
                let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
                link.number = digits.and_then(|digits| digits.parse().ok());
                link.state = State::Open;
                if link.in_flight.is_some() {
                    link.fence_off_first(env);
                }
                let (backend, holder) = (link.backend, link.holder.filter(|_| link.is_inbox));
                self.turned_away.remove(&backend);
                self.spare.take_if(|spare| *spare == id);
                self.events.extend(holder.map(|(holder, _)| Event::Numbered { holder }));
                self.list_to_send(id);
            }
            Some(Expected::Told) => {
                let said = Said::Answer(kind == b'-');
                let backend = link.backend;
                self.events.push_back(Event::Tracker { backend, said });
            }
            Some(Expected::Tracking) if link.is_tracker && is_refused_for_now(&reply) => {
                self.give_up(env, id, NOT_READY);
            }
            Some(Expected::Tracking) if link.is_tracker => {
                let said = Said::Tracks(kind != b'-');
                let backend = link.backend;
                self.events.push_back(Event::Tracker { backend, said });
            }
            Some(Expected::Tracking) => {
                if let Some((holder, _)) = link.holder {
                    self.events.push_back(Event::Tracking { link: id, holder, reply });
                }
            }
            Some(Expected::Step) => {
                if kind == b'-' {
                    link.step_error.get_or_insert(reply);
                } else if link.waits() {
                    // Of the requests before `WAIT`, the last one does all that an earlier one was to do.
                    link.step_error = None;
                }
            }
            Some(Expected::Errand) => {
                if let Some(errand) = link.errands.pop_front() {
                    self.end_errand(env, errand, Some(&reply));
                }
            }
            Some(Expected::Sign) => {
                let backend = link.backend;
                let is_busy = NodeRefusal::parse(&reply) == Some(NodeRefusal::Busy);
                self.events.push_back(Event::Sign { backend, is_busy });
            }
            Some(Expected::PutBack) => {
                if let Some((cells, count)) = link.puts_back.take() {
                    let end = if kind == b'-' { PutBack::Refused } else { PutBack::Done };
                    self.events.push_back(Event::PutBack { cells, count, end });
                }
            }
            Some(Expected::Answer) if link.abandoned.is_some() => {
                let place = (link.backend, link.database);
                if let Some(request) = link.abandoned.take() {
                    self.events.push_back(Event::Abandoned { place, request, reply: Some((reply, size)) });
                }
                self.close(env, id);
            }
            Some(Expected::Answer) => {
                let step_error = link.step_error.take();
                if let (Some((holder, _)), Some(request)) = (link.holder, link.in_flight.take()) {
                    link.is_spoilt |= kind == b'-' && request.may_leave_transaction(&reply);
                    let event = Event::Reply { link: id, holder, request, reply, size, step_error };
                    self.events.push_back(event);
                }
            }
        }
        self.rest(env, id, now);
    }

    /// Takes a message of a store that is not a reply to a request, or an error in place of the acknowledgement of
    /// subscriptions; `kind` is its first byte. A message on a link (unshared connection to a store) that is not for
    /// messages is dropped, and the link is lent to no other client, unless the store has yet to confirm that it sends
    /// no more.
    fn take_message(&mut self, env: &mut Env, id: PrivateId, kind: u8, message: Vec<u8>, now: Now) {
        let Some(link) = self.at(id) else { return };
        let backend = link.backend;
        if link.is_tracker {
            let said = Said::Message(message);
            self.events.push_back(Event::Tracker { backend, said });
        } else if link.is_feed {
            self.events.push_back(Event::Feed { backend, said: Ok(message) });
        } else if let Some((holder, _)) = link.holder.filter(|_| link.takes_messages()) {
            // Subscriptions may have stayed that the client takes for ended.
            link.is_spoilt |= kind == b'-';
            self.events.push_back(Event::Pushed { link: id, holder, message });
        } else if link.holder.is_some() || link.expected.is_empty() {
            link.is_spoilt = true;
            self.rest(env, id, now);
        }
    }

    /// Adds a private link (unshared connection to a store) to those that can be lent, if its store has answered
    /// everything, and neither a client nor the core itself has the link. A link for which the store may still keep
    /// something, or which it has greeted in part only, is closed instead.
    pub(super) fn rest(&mut self, env: &mut Env, id: PrivateId, now: Now) {
        let Some(link) = self.at(id).filter(|link| link.is_free()) else { return };
        if link.is_spoilt || link.is_half_greeted && link.expected.is_empty() {
            self.close(env, id);
        } else if link.expected.is_empty() {
            link.idle_since = now.monotonic;
            self.idle.push_back(id);
        }
    }
}

/// True if a store's reply within the greeting (the requests that open a connection) is an error to what the store may
/// carry out later: it can serve no request at present, or wants a login that it may not want later.
fn is_refused_for_now(reply: &[u8]) -> bool {
    is_not_ready(reply) || reply.starts_with(b"-NOAUTH")
}
