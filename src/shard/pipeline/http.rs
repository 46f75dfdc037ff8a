//! Requests over HTTP: each is handled as the commands that it contains.

use super::decode::share_of_turn;
use super::{Shard, no_room};
use crate::protocol::RequestDecoder;
use crate::protocol::http::{Conversation, Step};
use crate::shard::admission::FREE_BYTES;
use crate::shard::clients::Progress;
use crate::shard::counters::Counter;
use crate::values::ClientId;
use crate::values::time::Now;

impl Shard {
    /// Registers a client that has connected over HTTP. Returns its id.
    pub fn handle_http_client_opened(&mut self, now: Now) -> ClientId {
        self.clients.open_http(&mut self.env, now)
    }

    /// Accepts an HTTP client above the limit of `clients_max` clients only to answer it with an error and
    /// close it. Returns its id.
    pub fn handle_http_client_refused(&mut self, clients_max: usize, now: Now) -> ClientId {
        self.env.counters.add(Counter::ClientsRefused, 1);
        let id = self.handle_http_client_opened(now);
        self.refuse_http(id, &no_room(clients_max), now);
        self.clients.stop_listening(&mut self.env, id);
        id
    }

    /// Answers an HTTP client that has sent no request yet with an error. False if the client does not speak
    /// HTTP.
    pub(super) fn refuse_http(&mut self, id: ClientId, error: &str, now: Now) -> bool {
        let Some(mut http) = self.clients.begin_conversing(id) else { return false };
        let response = http.refuse(error, true);
        self.clients.end_conversing(id, http, now);
        self.clients.hold_place(&mut self.env, id, &response);
        true
    }

    /// Decodes `chunk`, the bytes that an HTTP client has sent, and handles as many of its requests as it
    /// may have in flight now. Returns whether all of them are decoded, or some are left for later.
    #[inline(never)]
    pub(super) fn decode_http(
        &mut self,
        id: ClientId,
        mut http: Box<Conversation>,
        chunk: &[u8],
        now: Now,
    ) -> Progress {
        http.receive(chunk);
        let progress = self.converse(id, &mut http, now);
        let is_over = http.is_over() && progress == Progress::Done;
        if self.clients.end_conversing(id, http, now) && is_over {
            self.clients.stop_listening(&mut self.env, id);
        }
        progress
    }

    fn converse(&mut self, id: ClientId, http: &mut Conversation, now: Now) -> Progress {
        let has_waited = self.clients.has_waited(id);
        loop {
            let (turn_left, limits) = match self.clients.may_take_on(id) {
                Ok(may) => may,
                Err(progress) => return progress,
            };
            if http.frames().is_empty() {
                let mut step = http.go_on();
                if let Step::Begins(claim) = step {
                    let (env, admission) = (&mut self.env, &mut self.admission);
                    step = match self.clients.identify(env, admission, id, claim.as_deref(), now) {
                        Ok(authority) => http.admit(authority, self.env.settings.request_bytes_max),
                        Err(stranger) => Step::Told(http.refuse(&stranger.text, stranger.is_last)),
                    };
                }
                match step {
                    Step::Wait | Step::Begins(_) => return Progress::Done,
                    Step::Commands => {}
                    Step::Told(response) => self.clients.hold_place(&mut self.env, id, &response),
                    Step::Refused { response, bytes } => {
                        if bytes > FREE_BYTES {
                            // An error leaves the client the identity that pays.
                            let _ = self.clients.assume(&mut self.env, &mut self.admission, (id, http), now);
                            let payer = self.payer_of(id);
                            self.charge_for_own(payer, (bytes, response.len()), now);
                        }
                        self.clients.hold_place(&mut self.env, id, &response);
                    }
                }
                continue;
            }
            let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
            // The commands were encoded by weir itself, so they are well formed.
            let Ok(Some(request)) = decoder.next(http.frames(), &mut consumed, &limits) else {
                debug_assert!(false, "commands of HTTP are whole requests");
                self.env.counters.add(Counter::ProtocolErrors, 1);
                self.clients.stop_listening(&mut self.env, id);
                return Progress::Done;
            };
            *turn_left = turn_left.saturating_sub(share_of_turn(&request.arguments));
            self.env.counters.add(Counter::Requests, 1);
            if has_waited {
                self.clients.date_request(id, http.held_bytes().saturating_sub(consumed));
            }
            let refusal = match http.void() {
                Some(error) => Some(error.to_owned()),
                None => self.assume(id, http, now).err(),
            };
            self.charge_for_rest(id, http, refusal.as_deref(), now);
            match &refusal {
                None => self.handle_request(id, request, now),
                Some(error) => self.refuse_void(id, error),
            }
            http.take(consumed);
            if let Some(error) = refusal {
                http.make_void(error);
            }
        }
    }

    /// Gives a client the identity, options and database of the HTTP request that its next command belongs
    /// to. The error is the text of the reply.
    fn assume(&mut self, id: ClientId, http: &Conversation, now: Now) -> Result<(), String> {
        self.clients.assume(&mut self.env, &mut self.admission, (id, http), now)?;
        self.assume_database(id, http.database())
    }

    /// Charges a client for the bytes of its HTTP request that no command is charged for, if they are more than 1 KiB:
    /// those of the head and body that are in no command, and with `refusal` (the error for all of its commands) those
    /// of the commands that are refused together.
    fn charge_for_rest(&mut self, id: ClientId, http: &Conversation, refusal: Option<&str>, now: Now) {
        let unused = if http.is_at_start() { http.unused_bytes() } else { 0 };
        let is_refused_now = refusal.is_some() && http.void().is_none();
        let bytes = unused + if is_refused_now { http.frames().len() } else { 0 };
        if bytes > FREE_BYTES {
            let payer = self.payer_of(id);
            self.charge_for_own(payer, (bytes, 0), now);
        }
    }

    /// Answers a command that is not carried out with the error `error`, because the HTTP request that it
    /// came in is refused: its identity, options or database were not accepted. A transaction of the
    /// request is discarded.
    fn refuse_void(&mut self, id: ClientId, error: &str) {
        self.clients.discard_transaction(id);
        self.answer_error(id, error);
    }
}
