//! Requests of HTTP: taken on as the commands that they are.

use super::{Shard, no_room};
use crate::protocol::RequestDecoder;
use crate::protocol::http::{Conversation, Step};
use crate::shard::counters::Counter;
use crate::shard::front::{Identity, Progress, Wishes};
use crate::values::ClientId;
use crate::values::time::Now;

impl Shard {
    /// A client has connected that speaks HTTP.
    pub fn handle_http_client_opened(&mut self, now: Now) -> ClientId {
        self.front.open_http(&mut self.env, now)
    }

    /// The same if there is no room for it: it is told so, and closed.
    pub fn handle_http_client_refused(&mut self, clients_max: usize, now: Now) -> ClientId {
        self.env.counters.add(Counter::ClientsRefused, 1);
        let id = self.handle_http_client_opened(now);
        self.refuse_http(id, &no_room(clients_max), now);
        self.front.stop_listening(&mut self.env, id);
        id
    }

    /// Tells a client that speaks HTTP, and has asked for nothing, that it is not served. False if it speaks something else.
    pub(super) fn refuse_http(&mut self, id: ClientId, error: &str, now: Now) -> bool {
        let Some(mut http) = self.front.begin_conversing(id) else { return false };
        http.refuse(error);
        self.front.end_conversing(id, http, now);
        self.front.hold_place(&mut self.env, id);
        true
    }

    /// Takes on what it can of what has come.
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
        if self.front.end_conversing(id, http, now) && is_over {
            self.front.stop_listening(&mut self.env, id);
        }
        progress
    }

    fn converse(&mut self, id: ClientId, http: &mut Conversation, now: Now) -> Progress {
        loop {
            let (turn_left, limits) = match self.front.may_take_on(id) {
                Ok(may) => may,
                Err(progress) => return progress,
            };
            if http.frames().is_empty() {
                let mut step = http.go_on();
                if let Step::Begins(who) = step {
                    let known =
                        self.front.identify(&mut self.env, &mut self.gate, (id, &mut *http), who, now);
                    step = match known {
                        Ok(()) => http.admit(self.env.settings.request_bytes_max),
                        Err(error) => http.refuse(&error),
                    };
                }
                match step {
                    Step::Wait | Step::Begins(_) => return Progress::Done,
                    Step::Commands => {}
                    Step::Told => {
                        self.front.hold_place(&mut self.env, id);
                        self.front.close_if_guessing(&mut self.env, id);
                    }
                }
                continue;
            }
            *turn_left -= 1;
            let (mut decoder, mut consumed) = (RequestDecoder::default(), 0);
            // Nothing that was put together here is malformed, but it may be more than is allowed.
            let Ok(Some(request)) = decoder.next(http.frames(), &mut consumed, &limits) else {
                self.env.counters.add(Counter::ProtocolErrors, 1);
                self.front.stop_listening(&mut self.env, id);
                return Progress::Done;
            };
            self.env.counters.add(Counter::Requests, 1);
            match self.on_terms(id, http.wishes()) {
                Ok(None) => self.handle_request(id, request, now),
                Ok(Some(identity)) => self.handle_request_as(id, &identity, request, now),
                Err(text) => self.refuse_in_transaction(id, &text),
            }
            http.take(consumed);
        }
    }

    /// On whose terms a request is, if it says anything of that.
    fn on_terms(&mut self, id: ClientId, wishes: &[Vec<u8>]) -> Result<Option<Identity>, String> {
        if wishes.is_empty() {
            return Ok(None);
        }
        let wishes = Wishes::from_pairs(wishes)?;
        self.front.client(id).identity().wished(&self.env, &mut self.gate, &wishes).map(Some)
    }
}
