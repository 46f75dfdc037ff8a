//! Which clients may have their next request taken on, and when: a turn each, and none while something of theirs must come first.

use std::collections::VecDeque;

use super::Front;
use super::client::Ending;
use super::held::HeldRequest;
use crate::protocol::http::Conversation;
use crate::protocol::{Arguments, RequestDecoder, RequestLimits};
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::note::Note;
use crate::shard::request::ReplyTo;
use crate::values::time::Now;
use crate::values::{Action, ClientId, Owner, limits};

/// A client that may not go on is read from until this much is held.
const HELD_BYTES_PAUSE: usize = 64 * 1024;

/// Each time so many clients are held back, others may have half as much taken on in a turn.
const CONGESTED_MANY: u32 = 16;

/// Who goes on decoding, and when.
#[derive(Debug, Default)]
pub struct Turns {
    /// Counts turns.
    number: u32,
    /// How many requests were taken on in this one, with those that a client at its turn may still have taken on.
    taken: u32,
    /// Clients of which no more is taken on, because so much of them waits for a backend.
    congested: u32,
    /// Those whose obstacle is gone: at the end of this turn.
    to_resume: VecDeque<ClientId>,
    /// Those whose turn is over though they have sent more.
    next: VecDeque<ClientId>,
}

impl Turns {
    /// How many requests of one client may be taken on in a turn. Where many are held back for what waits of them, others may soon
    /// have to be: then less is taken on of each before that is known.
    fn most_of_one(&self) -> u32 {
        (limits::REQUESTS_PER_TURN >> (self.congested / CONGESTED_MANY).min(31)).max(1)
    }
}

/// How far a client's bytes were decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All that was received is decoded, or will never be.
    Done,
    /// There is more, for later.
    Stalled,
}

impl Front {
    /// Bytes have come from a client. False if nobody listens to it any more.
    pub fn hear(&mut self, id: ClientId, now: Now) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        (client.last_heard, client.came) = (now.monotonic, now.monotonic);
        client.ending == Ending::Open
    }

    /// Takes a client's decoder out of its place, and its conversation if it speaks HTTP: they lend requests out while they are handled.
    #[inline]
    pub fn begin_decoding(&mut self, id: ClientId) -> Option<(RequestDecoder, Option<Box<Conversation>>)> {
        let client = self.clients.get(id)?;
        if client.turn != self.turns.number {
            (client.turn, client.turn_left) = (self.turns.number, self.turns.most_of_one());
        }
        // What it does not use is given back when its decoder is.
        client.turn_left = client.turn_left.min(limits::REQUESTS_PER_TURN_OF_ALL - self.turns.taken);
        self.turns.taken += client.turn_left;
        Some((std::mem::take(&mut client.decoder), client.http.take()))
    }

    /// What a client's next request may be, if one may be taken on now, and how many more may in this turn.
    #[inline]
    pub fn may_take_on(&mut self, id: ClientId) -> Result<(&mut u32, RequestLimits), Progress> {
        let Some(client) = self.clients.get(id) else { return Err(Progress::Done) };
        if client.ending == Ending::Deaf {
            return Err(Progress::Done);
        }
        if client.must_wait(self.replies_bytes_max) {
            return Err(Progress::Stalled);
        }
        // A request of HTTP has a head and a body with bounds of their own, and is taken on once it is known who asks.
        if client.speaks_http {
            return Ok((&mut client.turn_left, RequestLimits::assembled()));
        }
        let is_known = client.identity.tenant.is_some();
        let limits = if is_known { self.limits } else { RequestLimits::stranger() };
        Ok((&mut client.turn_left, limits))
    }

    /// Puts the decoder back. Reads less, or more again, from the client, by what it has waiting.
    pub fn end_decoding(&mut self, env: &mut Env, id: ClientId, decoder: RequestDecoder, progress: Progress) {
        let Some(client) = self.clients.get(id) else { return };
        client.decoder = decoder;
        self.turns.taken -= client.turn_left;
        client.stalled = progress == Progress::Stalled;
        if client.stalled && client.turn_left == 0 && !client.listed_to_resume {
            client.listed_to_resume = true;
            self.turns.next.push_back(id);
        }
        let full = client.stalled && client.held_bytes() > HELD_BYTES_PAUSE;
        if full && !client.reading_paused && client.ending == Ending::Open {
            client.reading_paused = true;
            env.actions.push_back(Action::PauseReading(Owner::Client(id)));
        } else if client.reading_paused && !client.stalled {
            client.reading_paused = false;
            env.actions.push_back(Action::ResumeReading(Owner::Client(id)));
        }
        self.close_if_done(env, id);
    }

    /// Takes a connection up again after a barrier, or when it has room again. Its held request, if that may be tried again.
    pub fn take_up(&mut self, id: ClientId) -> Option<Box<HeldRequest>> {
        let client = self.clients.get(id)?;
        client.listed_to_resume = false;
        client.barrier &= client.unanswered() > 0;
        let may_try = !client.barrier && !client.waits_for_quota && !client.waits_by_order;
        if may_try { client.held_request.take() } else { None }
    }

    /// Puts a request off until all earlier ones of its connection are answered; later ones wait behind it.
    pub fn hold_for_replies(&mut self, env: &mut Env, id: ClientId, arguments: &Arguments<'_>) {
        let client = self.clients.at(id);
        debug_assert!(client.unanswered() > 0);
        client.barrier = true;
        env.counters.add(Counter::RequestsHeld, 1);
        self.hold(id, arguments);
    }

    /// Puts a request off until clients may write again; later ones wait behind it.
    pub fn hold_by_order(&mut self, env: &mut Env, id: ClientId, arguments: &Arguments<'_>) {
        self.clients.at(id).waits_by_order = true;
        env.counters.add(Counter::RequestsHeld, 1);
        self.hold(id, arguments);
    }

    /// Puts a request off until a pool of quotas has answered; later ones wait behind it.
    pub fn hold_for_grant(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        debug_assert!(!self.clients.at(id).waits_for_quota);
        self.clients.at(id).waits_for_quota = true;
        self.hold(id, arguments);
    }

    fn hold(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let client = self.clients.at(id);
        debug_assert!(client.held_request.is_none());
        client.held_request = Some(Box::new(client.held(arguments)));
    }

    /// A pool has answered for a client. False if it has left.
    pub fn end_wait_for_grant(&mut self, id: ClientId) -> bool {
        let client = self.clients.get(id);
        client.map(|client| client.waits_for_quota = false).is_some()
    }

    /// Another core, or this one, tells something about a connection.
    pub fn handle_note(&mut self, to: ReplyTo, note: Note) {
        let id = to.client_id();
        let Some(client) = self.clients.get(id) else { return };
        match note {
            // That stays on the core that sends it.
            Note::Sent(_) => {}
            Note::Unsettled => client.handle_unsettled(),
            Note::Settled => client.handle_settled(),
            Note::Long => {
                self.turns.congested += u32::from(client.congested == 0);
                client.congested = client.congested.saturating_add(1);
            }
            Note::NotPrimary => {
                if let Some(addressed) = &mut client.addressed {
                    addressed.refused.push(to.part);
                }
            }
            Note::Eased => {
                self.turns.congested -= u32::from(client.congested == 1);
                client.congested = client.congested.saturating_sub(1);
                self.list_to_resume(id);
            }
        }
    }

    /// Puts a client whose obstacle may be gone on the list for the end of the turn.
    pub(super) fn list_to_resume(&mut self, id: ClientId) {
        let client = self.clients.at(id);
        if !client.is_stuck() || client.listed_to_resume {
            return;
        }
        let may_go_on =
            if client.barrier { client.unanswered() == 0 } else { !client.must_wait(self.replies_bytes_max) };
        if may_go_on {
            client.listed_to_resume = true;
            self.turns.to_resume.push_back(id);
        }
    }

    /// Do clients wait for their next turn, with requests that are here already?
    pub fn is_busy(&self) -> bool {
        !self.turns.next.is_empty()
    }

    /// How many clients wait for their next turn.
    pub fn waiting_for_turn(&self) -> usize {
        self.turns.next.len()
    }

    /// However many requests came in this turn, there is room for some of those that waited.
    pub fn reserve_for_waiting(&mut self) {
        self.turns.taken = self.turns.taken.min(limits::REQUESTS_PER_TURN_OF_ALL / 2);
    }

    /// The next of those who wait for their turn, if more may be taken on in this one.
    pub fn take_next_turn(&mut self) -> Option<ClientId> {
        if self.turns.taken == limits::REQUESTS_PER_TURN_OF_ALL { None } else { self.turns.next.pop_front() }
    }

    /// The next of those whose obstacle is gone.
    pub fn take_resumable(&mut self) -> Option<ClientId> {
        self.turns.to_resume.pop_front()
    }

    /// A client leaves.
    pub(super) fn end_turns_of(&mut self, was_congested: bool) {
        self.turns.congested -= u32::from(was_congested);
    }

    /// The next turn begins.
    pub fn begin_turn(&mut self) {
        self.turns.number = self.turns.number.wrapping_add(1);
        self.turns.taken = 0;
    }
}
