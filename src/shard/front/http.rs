//! Clients that speak HTTP: a conversation stands around each, and the rest of weir sees a client like any other.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Front;
use super::client::Ending;
use crate::protocol::encode;
use crate::protocol::http::Conversation;
use crate::protocol::http::headers::credentials;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::gate::Gate;
use crate::values::ClientId;
use crate::values::limits::{HTTP_BODY_BYTES_PER_SECOND, HTTP_REQUEST_TIMEOUT};
use crate::values::time::Now;

const NOAUTH: &str = "NOAUTH Authentication required.";
const WRONGPASS: &str =
    "WRONGPASS no tenant has that token: Bearer TENANT:PASSWORD, Bearer PASSWORD or Basic is wanted";

impl Front {
    /// A client has connected that speaks HTTP.
    pub fn open_http(&mut self, env: &mut Env, now: Now) -> ClientId {
        let id = self.open(env, now);
        if let Some(client) = self.clients.get(id) {
            client.http = Some(Box::new(Conversation::new(env.settings.reply_bytes_max)));
            client.speaks_http = true;
        }
        id
    }

    /// Takes a client's conversation out of its place, while its requests are handled.
    pub fn begin_conversing(&mut self, id: ClientId) -> Option<Box<Conversation>> {
        self.clients.get(id)?.http.take()
    }

    /// Puts it back. False if its client has left.
    pub fn end_conversing(&mut self, id: ClientId, http: Box<Conversation>, now: Now) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let is_midway = http.is_midway();
        client.http_since = if is_midway { client.http_since.or(Some(now.monotonic)) } else { None };
        self.watch_http |= is_midway;
        client.http = Some(http);
        true
    }

    /// A place in the order of a client's answers, for something that is told in HTTP alone.
    pub fn hold_place(&mut self, env: &mut Env, id: ClientId) {
        self.answer_now(env, id, |out, _| encode::simple(out, "OK"));
    }

    /// Who asks, by what a request says of that (`Authorization`). The error is told to the client.
    pub fn identify(
        &mut self,
        env: &mut Env,
        gate: &mut Gate,
        (id, http): (ClientId, &mut Conversation),
        told: Option<Vec<u8>>,
        now: Now,
    ) -> Result<(), String> {
        // Where there are no passwords, there is nothing that a token could be wrong about.
        let told = told.filter(|_| env.quotas.has_passwords());
        let is_known = self.clients.get(id).is_some_and(|client| client.identity.tenant.is_some());
        if told != *http.known_by() || (told.is_some() && !is_known) {
            http.forget_who();
            match &told {
                None => self.seat_stranger(env, id, now),
                Some(told) => {
                    if let Err(text) = self.sign_in_by(env, gate, id, told) {
                        // It is nobody, and not who it was before.
                        self.seat_stranger(env, id, now);
                        return Err(text);
                    }
                }
            }
            http.remember_who(told);
        }
        let is_known = self.clients.get(id).is_some_and(|client| client.identity.tenant.is_some());
        if is_known { Ok(()) } else { Err(NOAUTH.to_owned()) }
    }

    fn sign_in_by(
        &mut self,
        env: &mut Env,
        gate: &mut Gate,
        id: ClientId,
        told: &[u8],
    ) -> Result<(), String> {
        let basic = credentials(told, "basic").map(|text| STANDARD.decode(text).unwrap_or_default());
        let token = basic.as_deref().or_else(|| credentials(told, "bearer")).unwrap_or_default();
        let pair = token.iter().position(|byte| *byte == b':').map(|at| (&token[..at], &token[at + 1..]));
        let by_name = pair.filter(|(name, password)| env.quotas.sign_in(Some(name), password).is_some());
        let by_password = env.quotas.only_tenant_with(token).map(str::to_owned);
        let (name, password) = match (by_name, &by_password) {
            (Some((name, password)), _) => (name, password),
            (None, Some(name)) => (name.as_bytes(), token),
            // Counted like any other attempt.
            (None, None) => (b"".as_slice(), token),
        };
        self.sign_in(env, gate, id, Some(name), password)
            .map_err(|text| if text.starts_with("WRONGPASS") { WRONGPASS.to_owned() } else { text })
    }

    /// Is a request of HTTP coming that is not whole?
    pub fn has_slow_http(&self) -> bool {
        self.watch_http
    }

    /// Tells those whose request takes too long that it did, and closes them.
    pub fn close_slow_http(&mut self, env: &mut Env, now: Now) {
        if !std::mem::take(&mut self.watch_http) {
            return;
        }
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let Some(since) = client.http_since.filter(|_| client.ending == Ending::Open) else { continue };
            if client.stalled {
                // It is weir that does not go on.
                client.http_since = Some(now.monotonic);
            }
            let Some(http) = client.http.as_mut() else { continue };
            let slowest = http.memory_bytes() as u64 / HTTP_BODY_BYTES_PER_SECOND;
            let allowed = HTTP_REQUEST_TIMEOUT + std::time::Duration::from_secs(slowest);
            if now.monotonic.since(since) < allowed || client.stalled {
                self.watch_http = true;
                continue;
            }
            http.time_out();
            client.http_since = None;
            env.counters.add(Counter::ClientsClosedSlow, 1);
            self.hold_place(env, id);
            self.stop_listening(env, id);
        }
    }
}
