//! Decoding: takes a client's bytes apart into requests, and starts the work on each.

use bytes::Bytes;

use super::Shard;
use super::destination::{Destination, step_of};
use super::private::not_while_subscribed;
use crate::protocol::command::{self, Class, Command, Handling, LocalCommand, quoted};
use crate::protocol::{Argument, Arguments, Request, RequestDecoder, encode};
use crate::shard::admission::{FREE_BYTES, Payer};
use crate::shard::clients::{Identity, Progress};
use crate::shard::counters::Counter;
use crate::shard::refusal::abort_because_of;
use crate::values::ClientId;
use crate::values::limits::{KEYS_PER_TURN, WORDS_PER_REQUEST};
use crate::values::time::Now;

impl Shard {
    /// Goes on with a client that had to wait: handles its held request, if there is one, then the bytes
    /// received after that.
    pub(super) fn resume(&mut self, id: ClientId, now: Now) {
        if let Some(mut held) = self.clients.take_up(id) {
            self.clients.begin_held(id, &mut held);
            let arguments = Arguments::new(&held.frame, &held.places);
            let request = Request { arguments, shared: Some(&held.frame) };
            self.handle_request_as(id, &held.identity, request, now);
            self.clients.end_held(id, held);
        }
        self.decode(id, &[], now);
    }

    /// Resumes requests that waited for the control executor's answer about a quota, each before later requests
    /// of its client. In shadow mode, where requests pass without waiting, counts those that would have been
    /// refused.
    pub(super) fn resume_waiting(&mut self, now: Now) {
        let waiting = self.admission.take_waiting();
        self.resume_held(waiting, now);
        self.admission.decide_in_shadow(&mut self.env, now);
    }

    /// Resumes requests that waited until earlier requests of their tenant were settled (charged their real price,
    /// which is known with the reply).
    #[cold]
    pub(super) fn resume_settled(&mut self, now: Now) {
        let settled = self.admission.take_settled(now.monotonic);
        self.resume_held(settled, now);
    }

    /// Resumes clients whose next request was held, for instance until a quota or the map of the cluster was
    /// known. Clients that have disconnected since are skipped.
    pub(super) fn resume_held(&mut self, clients: Vec<ClientId>, now: Now) {
        for id in clients {
            if self.clients.end_wait_for_grant(id) {
                self.resume(id, now);
            }
        }
    }

    /// Decodes `chunk`, the bytes that a client has sent, and handles as many of its requests as it may have
    /// in flight now. Returns how many bytes are known to be missing of its next request, 0 while the client
    /// should not be read from.
    pub(super) fn decode(&mut self, id: ClientId, chunk: &[u8], now: Now) -> usize {
        let Some((mut decoder, http)) = self.clients.begin_decoding(id, now) else { return 0 };
        let progress = match http {
            None => self.decode_with(id, &mut decoder, chunk, now),
            Some(http) => self.decode_http(id, http, chunk, now),
        };
        let missing = if progress == Progress::Done { decoder.missing() } else { 0 };
        self.clients.end_decoding(&mut self.env, id, decoder, progress);
        missing
    }

    fn decode_with(
        &mut self,
        id: ClientId,
        decoder: &mut RequestDecoder,
        chunk: &[u8],
        now: Now,
    ) -> Progress {
        let (mut consumed, has_waited) = (0, self.clients.has_waited(id));
        loop {
            let (turn_left, limits) = match self.clients.may_take_on(id) {
                Ok(may) => may,
                Err(progress) => {
                    if progress == Progress::Stalled {
                        decoder.hold(&chunk[consumed..]);
                    }
                    return progress;
                }
            };
            let undecoded = if has_waited { decoder.held_bytes() + chunk.len() - consumed } else { 0 };
            match decoder.next(chunk, &mut consumed, &limits) {
                Ok(Some(request)) => {
                    *turn_left = turn_left.saturating_sub(share_of_turn(&request.arguments));
                    if has_waited {
                        let own = request.arguments.frame().len();
                        self.clients.date_request(id, undecoded.saturating_sub(own));
                    }
                    self.env.counters.add(Counter::Requests, 1);
                    if request.arguments.len() > KEYS_PER_TURN
                        && let Some((step, frame)) = self.step_if_split(id, &request)
                    {
                        self.hold_for_turns(id, step, frame, decoder);
                    } else {
                        self.handle_decoded(id, request, now);
                    }
                }
                Ok(None) => return Progress::Done,
                Err(error) => {
                    self.env.counters.add(Counter::ProtocolErrors, 1);
                    self.answer_error(id, &error.0);
                    self.clients.stop_listening(&mut self.env, id);
                    return Progress::Done;
                }
            }
        }
    }

    /// Returns the number of arguments per key, and the bytes, of a request with so many keys that it is split
    /// by key over several turns (passes of the shard's loop). None for any other request, and if its client is
    /// in a transaction, or watches or tracks keys over a connection of its own, so that the request goes
    /// whole.
    #[cold]
    #[inline(never)]
    pub(super) fn step_if_split(&mut self, id: ClientId, request: &Request<'_>) -> Option<(usize, Bytes)> {
        let (arguments, frame) = (&request.arguments, request.shared?);
        let command = command::recognise(arguments).ok()?;
        let Handling::Split(_) = command.handling_for(arguments) else { return None };
        let client = self.clients.client(id);
        let goes_another_way =
            client.transaction().is_some() || client.watch().is_some() || client.tracks_keys();
        let step = step_of(command);
        let is_split = (arguments.len() - 1).is_multiple_of(step) && !goes_another_way;
        is_split.then(|| (step, frame.clone()))
    }

    /// Holds the request that the decoder returned last while its keys are assigned to backends over several
    /// turns (passes of the shard's loop); `step` is the number of arguments per key.
    #[cold]
    #[inline(never)]
    fn hold_for_turns(&mut self, id: ClientId, step: usize, frame: Bytes, decoder: &mut RequestDecoder) {
        let request = (frame, decoder.take_places());
        self.clients.hold_for_turns(&mut self.env, id, step, request);
    }

    /// Continues the splitting by key of one large request, and the joining of one large reply, each of
    /// which takes several turns (passes of the shard's loop).
    #[cold]
    #[inline(never)]
    pub(super) fn work_in_steps(&mut self, now: Now) {
        self.clients.go_on_joining(&mut self.env);
        if let Some(id) = self.clients.go_on_partitioning(&mut self.env) {
            self.resume_held(vec![id], now);
        }
    }

    /// Handles one request of a client under `identity` (tenant, user, options) in place of the connection's own: the
    /// one that `QOS CALL` gives the request, or the one that the client had when the request arrived that was held.
    pub(super) fn handle_request_as(
        &mut self,
        id: ClientId,
        identity: &Identity,
        request: Request<'_>,
        now: Now,
    ) {
        self.clients.begin_acting(id, identity);
        self.handle_request(id, request, now);
        self.clients.end_acting(id);
    }

    /// Handles one whole request of a client: finds its command, and sends, queues, answers or refuses it.
    /// Every request handled here is answered exactly once.
    #[inline(never)]
    pub(super) fn handle_request(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        self.handle_decoded(id, request, now);
    }

    #[expect(clippy::inline_always, reason = "every request: a call would be a quarter of it")]
    #[inline(always)]
    fn handle_decoded(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        if request.arguments.frame().len() > FREE_BYTES {
            return self.handle_large_request(id, request, now);
        }
        self.handle_any_request(id, request, now);
    }

    /// Handles a request of more than 1 KiB. If weir answers it by itself and has taken no price for it (with an
    /// error, say), its client pays for its bytes and those of the reply.
    #[inline(never)]
    fn handle_large_request(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        let (bytes_in, payer) = (request.arguments.frame().len(), self.payer_of(id));
        let answers = |shard: &Self| {
            [Counter::AnsweredHere, Counter::AnswerBytes].map(|counter| shard.env.counters.get(counter))
        };
        let [answered, written] = answers(self);
        self.is_paid = false;
        self.handle_any_request(id, request, now);
        let [answered_now, written_now] = answers(self);
        if answered_now > answered && !self.is_paid {
            // So that the request around it (`QOS CALL`) does not pay once more.
            self.is_paid = true;
            self.charge_for_own(payer, (bytes_in, (written_now - written) as usize), now);
        }
    }

    /// Charges the account `payer` for a request that weir has answered by itself, and that has no other price: for
    /// its bytes (`bytes_in`) and those of its reply (`bytes_out`).
    pub(super) fn charge_for_own(&mut self, payer: Option<Payer>, bytes: (usize, usize), now: Now) {
        if let Some(payer) = payer {
            self.admission.charge_for_own(payer, bytes, now);
        }
    }

    /// Charges the accounts of clients whose transactions were discarded for the bytes of the queued requests.
    #[cold]
    pub(super) fn charge_for_discarded(&mut self, now: Now) {
        for (payer, bytes) in self.clients.take_unpaid() {
            self.admission.charge_for_own(payer, (bytes, 0), now);
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "every request: it is the rest of its one usual caller")]
    fn handle_any_request(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        if let Some(command) = command::recognise_plain(&request.arguments) {
            return self.handle_command(id, command, request, now);
        }
        self.handle_unusual(id, request, now);
    }

    /// Handles a request whose command is not found at first sight: one with a subcommand (such as `CLIENT
    /// LIST`), an unknown command, or a wrong number of words.
    #[inline(never)]
    fn handle_unusual(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        match command::recognise(&request.arguments) {
            Ok(command) => return self.handle_command(id, command, request, now),
            Err(command::Unrecognised::Command(_)) => self.handle_unknown(id, request, now),
            // As in Redis, a malformed `EXEC` is over.
            Err(command::Unrecognised::Arity(exec)) if exec.name == "exec" => {
                self.discard_unpaid(id);
                let error = command::Unrecognised::Arity(exec).to_string();
                self.answer_error(id, &abort_because_of(error.trim_start_matches("ERR ")));
            }
            Err(error) => self.refuse_with_bytes(id, &error.text()),
        }
        self.end_caching(id, request.arguments.name());
    }

    fn handle_command(&mut self, id: ClientId, command: &'static Command, request: Request<'_>, now: Now) {
        let arguments = &request.arguments;
        if command.class == Class::Scan
            && let Some((frame, places)) = self.with_lower_count(command, arguments)
        {
            let request = Request { arguments: Arguments::new(&frame, &places), shared: None };
            return self.handle_command(id, command, request, now);
        }
        let handling = self.in_force(command.handling_for(arguments));
        if let Err(refusal) = self.permit(id, command, handling, arguments) {
            self.env.counters.add(Counter::RefusedPermission, 1);
            self.refuse_in_transaction(id, &refusal);
            return self.end_caching(id, arguments.name());
        }
        let counted = || self.clients.partition(&self.env, arguments)?.repeated();
        if let Some(excess) = command.excess(arguments, counted) {
            self.env.counters.add(Counter::RefusedExcess, 1);
            self.refuse_in_transaction(id, &excess.to_string());
            return self.end_caching(id, arguments.name());
        }
        let client = self.clients.client(id);
        client.note_command(command);
        let is_queued = client.transaction().is_some() && !ends_transaction(handling);
        if client.is_paused_in_part()
            && client.is_held_back(
                (command, handling),
                is_queued,
                arguments,
                &self.env.settings.clients.scripts,
            )
        {
            return self.clients.hold_by_order(&mut self.env, id, arguments);
        }
        if is_queued {
            return self.queue_in_transaction(id, command, handling, arguments, now);
        }
        if client.is_tied() {
            return self.handle_command_of_tied(id, (command, handling), request, now);
        }
        match self.destination(id, command, handling, arguments) {
            Ok(destination) => self.carry_out(id, Some(command), destination, request, now),
            Err(text) => self.answer_error(id, &text),
        }
    }

    /// Handles a request of a client that has ties to stores (connections of its own, for instance) like one of any
    /// other client, unless [`Self::handle_tied`] handles it. `handling` says how weir handles its `command`. The
    /// effect of a `CLIENT CACHING` before the request ends with it.
    #[cold]
    #[inline(never)]
    fn handle_command_of_tied(
        &mut self,
        id: ClientId,
        (command, handling): (&'static Command, Handling),
        request: Request<'_>,
        now: Now,
    ) {
        if !self.handle_tied(id, (command, handling), request, now) {
            match self.destination(id, command, handling, &request.arguments) {
                Ok(destination) => self.carry_out(id, Some(command), destination, request, now),
                Err(text) => self.answer_error(id, &text),
            }
        }
        self.end_caching(id, request.arguments.name());
    }

    /// Records for all cores that the script in a request (`EVAL`, `SCRIPT LOAD`) writes nothing, if it declares that.
    /// Requests that name such a script by its digest may pass while `CLIENT PAUSE` holds back writes.
    #[cold]
    #[inline(never)]
    pub(super) fn note_script(&self, command: &Command, arguments: &Arguments<'_>) {
        let place = match command.name {
            "eval" => 1,
            "script|load" => 2,
            _ => return,
        };
        self.env.settings.clients.scripts.note(arguments.at(place));
    }

    /// Handles a command that weir does not know, which may do anything: sends it to the backend of its first
    /// argument's slot, since that is the key in most commands of modules. Refuses it if the client may not run unknown
    /// commands, is in a transaction, or is a subscriber in RESP2; holds it while a `CLIENT PAUSE` holds back writes;
    /// and closes a client that speaks HTTP on a connection for RESP.
    fn handle_unknown(&mut self, id: ClientId, request: Request<'_>, now: Now) {
        // HTTP is checked for first, whoever the client is: what follows may be the body of a web page's
        // request, and must not be carried out.
        if speaks_http(request.arguments.name()) {
            self.env.counters.add(Counter::ProtocolErrors, 1);
            self.answer_error(id, "ERR Protocol error: this is HTTP, and RESP is spoken here");
            // In a connection that speaks HTTP, such a word is part of a body, and the requests behind it are
            // separate ones.
            if !self.clients.find(id).is_some_and(|client| client.speaks_http()) {
                self.clients.stop_listening(&mut self.env, id);
            }
            return;
        }
        if let Err(refusal) = self.permit_unknown(id, &request.arguments) {
            self.env.counters.add(Counter::RefusedPermission, 1);
            return self.refuse_in_transaction(id, &refusal);
        }
        // The store would report an unknown command in a transaction only at its end.
        let client = self.clients.client(id);
        if client.transaction().is_some() {
            let text = command::Unrecognised::Command(request.arguments).text();
            return self.refuse_with_bytes(id, &text);
        }
        if client.is_paused_in_part() {
            return self.clients.hold_by_order(&mut self.env, id, &request.arguments);
        }
        if client.is_subscriber_only() {
            let name = quoted(request.arguments.name()).to_lowercase();
            return self.answer_error(id, &format!("ERR {}", not_while_subscribed(&name)));
        }
        let destination = match self.destination_of_unknown(&request.arguments) {
            Destination::Alone { slot, backend } if self.goes_over_own_link(id, (slot, backend)) => {
                Destination::Private { slot, backend }
            }
            destination => destination,
        };
        self.carry_out(id, None, destination, request, now);
    }

    /// Returns a `SCAN`, or another command that walks over keys or elements, with its `COUNT` lowered to the
    /// largest that is allowed; None if its `COUNT` is not above that. The protocol permits this because
    /// `COUNT` is a hint.
    #[cold]
    fn with_lower_count(
        &self,
        command: &Command,
        arguments: &Arguments<'_>,
    ) -> Option<(Vec<u8>, Vec<Argument>)> {
        let most = self.admission.scan_count_max();
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

    /// Answers the client's request that is being handled with an error. `text` has no `-` and no line end.
    pub(super) fn answer_error(&mut self, id: ClientId, text: &str) {
        self.clients.answer_now(&mut self.env, id, |out, _| encode::error(out, text));
    }

    /// Answers the client's request that is being handled with the error `text`, which has no `-` and no line end. If
    /// the client is in a transaction, its `EXEC` will fail.
    pub(super) fn refuse_in_transaction(&mut self, id: ClientId, text: &str) {
        self.refuse_with_bytes(id, text.as_bytes());
    }

    /// Answers the client's request that is being handled with the error `text`, which has no `-` and need not be
    /// UTF-8, because it may quote the client. If the client is in a transaction, its `EXEC` will fail.
    fn refuse_with_bytes(&mut self, id: ClientId, text: &[u8]) {
        if let Some(client) = self.clients.find(id) {
            client.poison_transaction();
        }
        self.clients.answer_now(&mut self.env, id, |out, _| encode::error_bytes(out, text));
    }
}

/// Returns the number for which a request counts among the requests that a client may start in one turn (pass
/// of the shard's loop): one, and one more for every 64 words.
pub(super) fn share_of_turn(arguments: &Arguments<'_>) -> u32 {
    1 + (arguments.len() / WORDS_PER_REQUEST) as u32
}

fn ends_transaction(handling: Handling) -> bool {
    use LocalCommand::{Discard, Exec, Multi, Quit, Reset};
    matches!(handling, Handling::Local(Discard | Exec | Multi | Quit | Reset))
}

/// True for the name of a command that is the first word of an HTTP request, which a browser may be tricked
/// into sending to a store. Such a client is cut off as by Redis, because the backend connections behind it
/// are shared by all clients.
fn speaks_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Encodes words as a RESP request, and returns the bytes with the place of each word in them.
pub(super) fn encoded<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> (Vec<u8>, Vec<Argument>) {
    let mut frame = Vec::new();
    let mut places = Vec::with_capacity(words.len());
    encode::array(&mut frame, words.len());
    for word in words {
        encode::header(&mut frame, b'$', word.len());
        places.push(Argument { start: frame.len() as u32, length: word.len() as u32 });
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
    (frame, places)
}
