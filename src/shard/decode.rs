//! Stage 1: bytes to requests. Knows when a connection may not go on, and takes it up again later.

use super::client::{Address, Ending, HeldRequest};
use super::client_list::Paused;
use super::counters::Counter;
use super::qos::encoded;
use super::{Identity, Shard};
use crate::protocol::command::{self, Class, Command, Effect, Handling, LocalCommand};
use crate::protocol::{Argument, Arguments, Request, RequestDecoder, RequestLimits, encode};
use crate::values::time::Now;
use crate::values::{Action, Owner};
use crate::values::{ClientId, limits};

/// A client whose replies that wait exceed this has no more requests taken on: until it reads, or until the reply comes that
/// they wait for.
const OUTPUT_BYTES_PAUSE: usize = 256 * 1024;
/// A client that may not go on is read from until this much is held.
const HELD_BYTES_PAUSE: usize = 64 * 1024;

impl Shard {
    /// A client has connected.
    pub fn handle_client_opened(&mut self, now: Now) -> ClientId {
        self.counters.add(Counter::ClientsOpened, 1);
        self.clients_opened += 1;
        let shards = u64::from(self.settings.topology.shards());
        let number = (self.clients_opened - 1) * shards + u64::from(self.settings.id.0) + 1;
        let id = self.clients.open(number, Identity::default(), now.monotonic);
        self.seat_stranger(id, now);
        if self.draining {
            self.stop_listening(id);
        }
        id
    }

    /// Where a client is, for those who list clients.
    pub fn note_client_address(&mut self, id: ClientId, address: Address) {
        if let Some(client) = self.clients.get(id) {
            *client.address = address;
        }
    }

    /// A client has connected for whom there is no room: it is told so, and closed.
    pub fn handle_client_refused(&mut self, clients_max: usize, now: Now) -> ClientId {
        self.counters.add(Counter::ClientsRefused, 1);
        let id = self.handle_client_opened(now);
        self.answer_now(id, |out, _| {
            let text =
                format!("OVERLOADED reason=clients limit={clients_max} (--max-clients) retry_after_ms=1000");
            encode::error(out, &text);
        });
        self.stop_listening(id);
        id
    }

    /// Bytes from a client.
    pub fn handle_client_bytes(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        self.counters.add(Counter::ClientBytesReceived, chunk.len() as u64);
        let Some(client) = self.clients.get(id) else { return };
        client.last_heard = now.monotonic;
        if client.ending != Ending::Deaf {
            self.decode(id, chunk, now);
        }
    }

    /// The client will send no more, but may still read.
    pub fn handle_client_end(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        if client.ending == Ending::Open {
            client.ending = Ending::NoMoreInput;
        }
        self.close_if_done(id);
    }

    /// The client is gone.
    pub fn handle_client_lost(&mut self, id: ClientId) {
        self.forget_client(id);
    }

    /// Takes a connection up again after a barrier, or when it has room again.
    pub(super) fn resume(&mut self, id: ClientId, now: Now) {
        let Some(client) = self.clients.get(id) else { return };
        client.listed_to_resume = false;
        client.barrier &= client.unanswered() > 0;
        if !client.barrier
            && !client.waits_for_quota
            && !client.waits_by_order
            && let Some(held) = client.held_request.take()
        {
            let arguments = Arguments::new(&held.frame, &held.places);
            self.handle_request_as(id, &held.identity, Request { arguments, shared: None }, now);
        }
        self.decode(id, &[], now);
    }

    fn decode(&mut self, id: ClientId, chunk: &[u8], now: Now) {
        let Some(client) = self.clients.get(id) else { return };
        if client.turn != self.turn {
            (client.turn, client.turn_left) = (self.turn, limits::REQUESTS_PER_TURN);
        }
        // The decoder lends out requests while the shard handles them, so it leaves its place meanwhile.
        let mut decoder = std::mem::take(&mut client.decoder);
        let outcome = self.decode_with(id, &mut decoder, chunk, now);
        let Some(client) = self.clients.get(id) else { return };
        client.decoder = decoder;
        client.stalled = outcome == Outcome::Stalled;
        if client.stalled && client.turn_left == 0 && !client.listed_to_resume {
            client.listed_to_resume = true;
            self.clients_next_turn.push_back(id);
        }
        self.control_flow(id);
        self.close_if_done(id);
    }

    fn decode_with(&mut self, id: ClientId, decoder: &mut RequestDecoder, chunk: &[u8], now: Now) -> Outcome {
        let mut consumed = 0;
        loop {
            let Some(client) = self.clients.get(id) else { return Outcome::Done };
            if client.ending == Ending::Deaf {
                return Outcome::Done;
            }
            if client.must_wait() {
                decoder.hold(&chunk[consumed..]);
                return Outcome::Stalled;
            }
            let limits =
                if client.identity.tenant.is_some() { self.limits } else { RequestLimits::stranger() };
            match decoder.next(chunk, &mut consumed, &limits) {
                Ok(Some(request)) => {
                    client.turn_left -= 1;
                    self.counters.add(Counter::Requests, 1);
                    self.handle_request(id, request, now);
                }
                Ok(None) => return Outcome::Done,
                Err(error) => {
                    self.counters.add(Counter::ProtocolErrors, 1);
                    self.answer_now(id, |out, _| encode::error(out, &error.0));
                    self.stop_listening(id);
                    return Outcome::Done;
                }
            }
        }
    }

    /// One whole request: from here it is answered exactly once.
    pub(super) fn handle_request(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        let arguments = request.arguments;
        if let Some(command) = command::recognise_plain(&arguments) {
            return self.handle_command(id, command, request, now);
        }
        self.handle_unusual(id, request, now);
    }

    /// A subcommand, a command of no table, or one with the wrong number of words.
    #[inline(never)]
    fn handle_unusual(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        let arguments = request.arguments;
        match command::recognise(&arguments) {
            Ok(command) => self.handle_command(id, command, request, now),
            Err(command::Unrecognised::Command(_)) => self.handle_unknown(id, request, now),
            Err(error) => {
                self.poison_transaction(id);
                self.answer_now(id, |out, _| encode::error(out, &error.to_string()));
            }
        }
    }

    fn handle_command(&mut self, id: ClientId, command: &'static Command, request: Request<'_>, now: Now) {
        let arguments = request.arguments;
        if command.class == Class::Scan
            && let Some((frame, places)) = self.with_lower_count(command, &arguments)
        {
            let request = Request { arguments: Arguments::new(&frame, &places), shared: None };
            return self.handle_command(id, command, request, now);
        }
        let handling = command.handling_for(&arguments);
        if let Err(refusal) = self.permit(id, command, handling, &arguments) {
            self.counters.add(Counter::RefusedPermission, 1);
            self.poison_transaction(id);
            return self.answer_now(id, |out, _| encode::error(out, &refusal));
        }
        let client = self.clients.at(id);
        let is_queued = client.transaction.is_some() && !ends_transaction(handling);
        if client.paused == Paused::Writes && !is_queued && may_write(command, handling) {
            return self.hold_by_order(id, &arguments);
        }
        if is_queued {
            return self.queue_in_transaction(id, command, handling, &arguments);
        }
        if self.waits_for_earlier(id, handling) {
            return self.hold_request(id, &arguments);
        }
        match handling {
            Handling::Forward => self.route(id, command, request, now),
            Handling::Split(gather) => self.split(id, command, gather, request, now),
            Handling::FanOut(fan_out) => self.fan_out(id, command, fan_out, request, now),
            Handling::Local(local) => self.answer_locally(id, command, local, request, now),
            Handling::Refused(refusal) => {
                self.answer_now(id, |out, _| encode::error(out, &refusal.of(command).to_string()));
            }
        }
    }

    /// The same walk with a smaller step, if its client asks for too large a one: `COUNT` is a hint.
    #[cold]
    fn with_lower_count(
        &self,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Option<(Vec<u8>, Vec<Argument>)> {
        let most = self.settings.admission.scan_count_max;
        let walk = command.walk(arguments)?;
        let mut too_large = walk.counts_above(arguments, most).peekable();
        too_large.peek()?;
        let lower = most.to_string();
        let words = arguments.iter().enumerate();
        let lowered = words.map(|(index, word)| match too_large.next_if_eq(&index) {
            Some(_) => lower.as_bytes(),
            None => word,
        });
        Some(encoded(lowered))
    }

    /// Requests without one home (and those that change the dialect) start when all earlier ones are answered.
    fn waits_for_earlier(&mut self, id: ClientId, handling: Handling) -> bool {
        let alone = matches!(
            handling,
            Handling::FanOut(_)
                | Handling::Local(LocalCommand::Exec | LocalCommand::Hello | LocalCommand::Reset)
        );
        alone && self.clients.at(id).unanswered() > 0
    }

    /// Puts a request off until all earlier ones of its connection are answered; later ones wait behind it.
    pub(super) fn hold_request(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        self.counters.add(Counter::RequestsHeld, 1);
        let client = self.clients.at(id);
        debug_assert!(client.held_request.is_none() && client.unanswered() > 0);
        client.barrier = true;
        client.held_request = Some(Box::new(HeldRequest::new(arguments, &client.identity)));
    }

    /// Puts a request off until clients may write again; later ones wait behind it.
    fn hold_by_order(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        self.counters.add(Counter::RequestsHeld, 1);
        let client = self.clients.at(id);
        client.waits_by_order = true;
        client.held_request = Some(Box::new(HeldRequest::new(arguments, &client.identity)));
    }

    /// Later requests of the connection wait until the one just sent is answered.
    pub(super) fn hold_back_later(&mut self, id: ClientId) {
        self.clients.at(id).barrier = true;
    }

    /// No further request is taken on; what was taken on is answered, then the connection is closed.
    pub(super) fn stop_listening(&mut self, id: ClientId) {
        // The answer just given may have been more than may wait for it, and it was closed for that.
        let Some(client) = self.clients.get(id) else { return };
        client.ending = Ending::Deaf;
        self.close_if_done(id);
    }

    /// Reads less, or more again, from a client, by what it has waiting.
    fn control_flow(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let full = client.stalled && client.decoder.held_bytes() > HELD_BYTES_PAUSE;
        if full && !client.reading_paused && client.ending == Ending::Open {
            client.reading_paused = true;
            self.actions.push_back(Action::PauseReading(Owner::Client(id)));
        } else if client.reading_paused && !client.stalled {
            client.reading_paused = false;
            self.actions.push_back(Action::ResumeReading(Owner::Client(id)));
        }
    }
}

impl super::client::Client {
    /// Has it yet to be answered, or to be sent an answer?
    fn is_owed(&self) -> bool {
        self.unanswered() > 0
            || self.held_request.is_some()
            || !self.output.is_empty()
            || self.sending_since.is_some()
    }

    /// Does something of it wait to go on?
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        self.stalled || self.held_request.is_some() || self.barrier
    }

    /// May the next request not be taken on yet?
    pub(super) fn must_wait(&self) -> bool {
        self.barrier
            || self.waits_for_quota
            || self.waits_by_order
            || self.turn_left == 0
            || self.unanswered() >= limits::PIPELINE_MAX
            || self.waiting_bytes() > OUTPUT_BYTES_PAUSE
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All that was received is decoded, or will never be.
    Done,
    /// There is more, for later.
    Stalled,
}

/// Nobody can tell what a script or a transaction does.
fn may_write(command: &Command, handling: Handling) -> bool {
    command.effect == Effect::Write || matches!(handling, Handling::Local(LocalCommand::Exec))
}

fn ends_transaction(handling: Handling) -> bool {
    use LocalCommand::{Discard, Exec, Multi, Quit, Reset};
    matches!(handling, Handling::Local(Discard | Exec | Multi | Quit | Reset))
}

impl Shard {
    /// Drops what is left of a client that has ended, when everything was answered and sent.
    pub(super) fn close_if_done(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let undecoded = client.ending == Ending::NoMoreInput && client.stalled;
        if client.ending != Ending::Open && !client.is_owed() && !undecoded {
            self.forget_client(id);
            self.actions.push_back(Action::Close(Owner::Client(id)));
        }
    }

    pub(super) fn forget_client(&mut self, id: ClientId) {
        let gathers: Vec<u32> =
            self.clients.get(id).map(|client| client.open_gathers().collect()).unwrap_or_default();
        self.remember_charges(id);
        for gather in gathers {
            self.gathers.remove(gather, &mut self.pool);
        }
        if let Some(client) = self.clients.close(id, &mut self.pool) {
            self.counters.add(Counter::ClientsClosed, 1);
            if let Some(tenant) = client.seat {
                self.settings.clients.seats.give_back(tenant);
            }
            if client.sending_since.is_some() {
                self.sends_under_way -= 1;
            }
        }
    }

    /// Closes clients that do not read, or that say nothing for too long.
    pub(super) fn close_stuck_clients(&mut self, now: Now) {
        if self.sends_under_way == 0 && self.settings.idle_timeout.is_none() {
            return;
        }
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let unread = client
                .sending_since
                .is_some_and(|since| now.monotonic.since(since) >= self.settings.send_timeout);
            let idle = self.settings.idle_timeout.is_some_and(|timeout| {
                !client.is_owed() && now.monotonic.since(client.last_heard) >= timeout
            });
            if unread || idle {
                self.expel(
                    id,
                    if unread { Counter::ClientsClosedUnread } else { Counter::ClientsClosedIdle },
                );
            }
        }
    }

    /// Closes a client, whatever it is still owed.
    pub(super) fn expel(&mut self, id: ClientId, why: Counter) {
        self.counters.add(why, 1);
        self.forget_client(id);
        self.actions.push_back(Action::Close(Owner::Client(id)));
    }
}
