//! Clients that speak HTTP. A [`Conversation`] translates between HTTP and RESP, so that the rest of weir
//! treats them like any client.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::ClientStage;
use super::client::Ending;
use super::http_login::HttpLogin;
use super::request_options::RequestOptions;
use super::seats::NOAUTH;
use crate::protocol::http::headers::credentials;
use crate::protocol::http::{Authority, Conversation};
use crate::protocol::{Protocol, encode};
use crate::shard::admission::AdmissionStage;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::ClientId;
use crate::values::limits::{HTTP_BODY_BYTES_PER_SECOND, HTTP_REQUEST_TIMEOUT, LOGINS_FAILED_MAX};
use crate::values::time::Now;

const WRONGPASS: &str =
    "WRONGPASS no tenant has that token: Bearer TENANT:PASSWORD, Bearer PASSWORD or Basic is expected";

/// The error for a request whose sender cannot be identified, or whose tenant may have no more connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// The text of the error reply.
    pub text: String,
    /// True if 10 wrong tokens came in a row on the connection: it is then closed.
    pub is_last: bool,
}

impl Stranger {
    fn of(text: &str) -> Self {
        Self { text: text.to_owned(), is_last: false }
    }
}

impl ClientStage {
    /// Registers a new connection that speaks HTTP. Returns the client's id.
    pub fn open_http(&mut self, env: &mut Env, now: Now) -> ClientId {
        let id = self.open(env, now);
        if let Some(client) = self.clients.get(id) {
            let rules = Arc::clone(&env.settings.clients.web);
            client.http = Some(Box::new(Conversation::new(env.settings.reply_bytes_max).with_rules(rules)));
            client.speaks_http = true;
        }
        id
    }

    /// Takes a client's HTTP conversation out of the table of clients while its requests are handled. None if
    /// the client has disconnected or speaks RESP.
    pub fn begin_conversing(&mut self, id: ClientId) -> Option<Box<Conversation>> {
        self.clients.get(id)?.http.take()
    }

    /// Puts a client's HTTP conversation back into the table of clients. False if the client has
    /// disconnected.
    pub fn end_conversing(&mut self, id: ClientId, mut http: Box<Conversation>, now: Now) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let (is_midway, has_begun_anew) = (http.is_midway(), http.take_ended());
        let since = client.http_since.filter(|_| !has_begun_anew).unwrap_or(now.monotonic);
        client.http_since = is_midway.then_some(since);
        self.watch_http |= is_midway;
        client.http = Some(http);
        true
    }

    /// Puts an HTTP response that weir makes without a backend (such as 400 or 100 Continue) into its place in
    /// the order of a client's replies, where its bytes count like those of any reply. It counts as a request
    /// among those that the client may start in one turn (pass of the shard's loop).
    pub fn hold_place(&mut self, env: &mut Env, id: ClientId, response: &[u8]) {
        if let Some(client) = self.clients.get(id) {
            client.turn_left = client.turn_left.saturating_sub(1);
        }
        self.answer_now(env, id, |out, _| encode::bulk(out, response));
    }

    /// Identifies the sender of an HTTP request by its `Authorization` header (`claim`) and the quotas in force,
    /// whatever identity earlier requests on the connection had. Returns the kind of proof: a token, a password (which
    /// a browser may add by itself), or nothing but the connection. The error is for a wrong token, for none where one
    /// is needed, and for a tenant that may have no more connections.
    pub fn identify(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        claim: Option<&[u8]>,
        now: Now,
    ) -> Result<Authority, Stranger> {
        // Without passwords in the quotas, no token can be wrong.
        let claim = claim.filter(|_| env.quotas.has_passwords());
        let Some(client) = self.clients.get(id) else { return Err(Stranger::of(NOAUTH)) };
        if let Some(known) =
            client.http_login.as_ref().filter(|known| known.is_for(claim, env.quotas.version()))
        {
            if claim.is_some() {
                client.logins_failed = 0;
            }
            return Ok(known.authority);
        }
        client.http_login = None;
        let Some(claim) = claim else {
            self.seat_stranger(env, id, now);
            return self.note_known(env, id, None, Authority::Ambient);
        };
        match self.sign_in_by(env, admission, id, claim) {
            Ok(()) => {
                self.clients.at(id).logins_failed = 0;
                self.note_known(env, id, Some(claim), Authority::of(claim))
            }
            Err(text) => {
                // The client loses the identity that an earlier request gave it.
                self.seat_stranger(env, id, now);
                // Several clients may share the connection (behind a proxy), so only wrong tokens in a row
                // count. The last response announces that the connection ends.
                let is_last = self.clients.at(id).logins_failed >= LOGINS_FAILED_MAX;
                Err(Stranger { text, is_last })
            }
        }
    }

    fn note_known(
        &mut self,
        env: &Env,
        id: ClientId,
        claim: Option<&[u8]>,
        authority: Authority,
    ) -> Result<Authority, Stranger> {
        let client = self.clients.at(id);
        if client.identity.tenant.is_none() {
            return Err(Stranger::of(&self.not_logged_in(env, id)));
        }
        let claim = claim.map(<[u8]>::to_vec);
        let (version, identity) = (env.quotas.version(), client.identity.clone());
        client.http_login = Some(Box::new(HttpLogin { claim, version, identity, authority }));
        Ok(authority)
    }

    /// Gives a client the identity and options of the HTTP request that its next command belongs to. The error
    /// is the text of the reply. If only the options are invalid, the client has the identity of the request's
    /// credentials, which the request is charged to.
    pub fn assume(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        (id, http): (ClientId, &Conversation),
        now: Now,
    ) -> Result<(), String> {
        self.identify(env, admission, id, http.claim(), now).map_err(|stranger| stranger.text)?;
        let Some(client) = self.clients.get(id) else { return Ok(()) };
        let known = client.http_login.as_ref().map(|known| &known.identity);
        debug_assert!(known.is_some(), "who was identified is known");
        let Some(known) = known else { return Err(NOAUTH.to_owned()) };
        if http.options().is_empty() {
            if client.identity != *known {
                client.identity = known.clone();
            }
        } else {
            let options = RequestOptions::from_pairs(http.options());
            match options.and_then(|options| known.with_options(env, admission, &options)) {
                Ok(identity) => client.identity = identity,
                Err(error) => {
                    // The request is charged to its tenant, and not to the user of an earlier request.
                    client.identity = known.clone();
                    return Err(error);
                }
            }
        }
        if http.is_at_start() {
            debug_assert!(client.transaction.is_none(), "no request of HTTP begins inside MULTI");
            debug_assert_eq!(client.protocol, Protocol::Resp2, "each speaks the same dialect");
            debug_assert!(client.held_request.is_none(), "each begins behind the one before");
            client.transaction = None;
            client.change_protocol(Protocol::Resp2);
        }
        Ok(())
    }

    fn sign_in_by(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
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
            // An empty name fails to log in, and is counted like any other wrong password.
            (None, None) => (b"".as_slice(), token),
        };
        self.sign_in(env, admission, id, Some(name), password)
            .map_err(|text| if text.starts_with("WRONGPASS") { WRONGPASS.to_owned() } else { text })
    }

    /// True if a client may have an incomplete HTTP request, so that [`Self::close_slow_http`] has to be
    /// called.
    pub fn has_slow_http(&self) -> bool {
        self.watch_http
    }

    /// Closes clients whose HTTP request is incomplete after 30 s, plus one second per 16 KiB held of it; the time
    /// starts anew while weir itself makes the client wait. Each is sent an error response first.
    pub fn close_slow_http(&mut self, env: &mut Env, now: Now) {
        if !std::mem::take(&mut self.watch_http) {
            return;
        }
        for place in 0..self.clients.places() {
            let Some(id) = self.clients.in_place(place) else { continue };
            let client = self.clients.at(id);
            let Some(since) = client.http_since.filter(|_| client.ending == Ending::Open) else { continue };
            if client.stalled {
                // The delay is weir's own, so the time starts anew.
                client.http_since = Some(now.monotonic);
            }
            let Some(http) = client.http.as_mut() else { continue };
            let slowest = http.memory_bytes() as u64 / HTTP_BODY_BYTES_PER_SECOND;
            let allowed = HTTP_REQUEST_TIMEOUT + std::time::Duration::from_secs(slowest);
            if now.monotonic.since(since) < allowed || client.stalled {
                self.watch_http = true;
                continue;
            }
            let response = http.time_out();
            client.http_since = None;
            env.counters.add(Counter::ClientsClosedSlow, 1);
            self.hold_place(env, id, &response);
            self.stop_listening(env, id);
        }
    }
}
