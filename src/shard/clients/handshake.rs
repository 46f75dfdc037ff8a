//! Commands that begin a connection: `AUTH`, `HELLO`, `RESET`, and the `CLIENT` commands about the client's
//! own name.

use super::ClientStage;
use super::identity::{Chosen, Identity};
use super::monitor::no_place_left;
use super::order::Replies;
use super::request_options::RequestOptions;
use super::seats::no_seat_left;
use crate::config::quotas::DEFAULT_TENANT;
use crate::protocol::command::{integer, quoted};
use crate::protocol::{Arguments, Protocol, encode};
use crate::shard::admission::AdmissionStage;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::values::limits::{CLIENT_NAME_BYTES_MAX, HELLO_WORDS_MAX, LOGINS_FAILED_MAX};
use crate::values::time::Now;
use crate::values::{ClientId, Database};

/// Text of the reply to `AUTH password` if the quotas give no tenant a password, as Redis words it.
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                           configuration is correct?";
const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NAME_ERROR: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

impl ClientStage {
    /// Answers `LOLWUT` with a line that names the version of the stores, as Redis does, and that of weir.
    pub fn answer_lolwut(&mut self, env: &mut Env, id: ClientId) {
        let (stores, own) = (self.store_version, env!("CARGO_PKG_VERSION"));
        let text = format!("A weir holds the river, not the fish.\nRedis ver. {stores}, weir {own}\n");
        self.answer_now(env, id, |out, protocol| encode::verbatim(out, protocol, &text));
    }

    /// Answers `AUTH password` and `AUTH tenant[/user] password`: logs the client in, or answers with an error.
    /// Closes the connection after the tenth failure on it, in order: the error is still sent.
    pub fn auth(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        arguments: &Arguments<'_>,
    ) {
        let (user, password) = match arguments.len() {
            2 => (None, arguments.at(1)),
            3 => (Some(arguments.at(1)), arguments.at(2)),
            _ => return self.answer_now(env, id, |out, _| encode::error(out, "ERR syntax error")),
        };
        let signed_in = self.log_in(env, admission, id, user, password);
        self.answer_now(env, id, |out, _| match &signed_in {
            Ok(()) => encode::simple(out, "OK"),
            Err(text) => encode::error(out, text),
        });
        self.close_if_guessing(env, id);
    }

    /// Logs a client in by `AUTH` or `HELLO`; `user` is None for `AUTH` with a password alone. If the quotas give no
    /// tenant a password, the user `default` may give any password, and a password alone is an error, as on a Redis
    /// without passwords. The error is the text of the reply.
    fn log_in(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        user: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), String> {
        match user {
            None if !env.quotas.has_passwords() => Err(NO_PASSWORD.to_owned()),
            Some(user) if user == DEFAULT_TENANT.as_bytes() && !env.quotas.has_passwords() => Ok(()),
            _ => self.sign_in(env, admission, id, user, password),
        }
    }

    /// Logs a client in with a password, and counts it as a connection (seat) of its tenant. `user` names a tenant, or
    /// a user of one (`tenant/user`); None for a password alone. The error is the text of the reply: for a wrong
    /// password, which is counted, or for a tenant that may have no more connections, or no more monitors if the client
    /// is one (`MONITOR`).
    pub(super) fn sign_in(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        user: Option<&[u8]>,
        password: &[u8],
    ) -> Result<(), String> {
        let Some(signed_in) = env.quotas.sign_in(user, password) else {
            env.counters.add(Counter::LoginsFailed, 1);
            let client = self.clients.at(id);
            client.logins_failed = client.logins_failed.saturating_add(1);
            return Err(WRONGPASS.to_owned());
        };
        let (tenant, user) = (signed_in.tenant, signed_in.user.map(String::into_boxed_str));
        if !self.may_watch_within(env, id, tenant) {
            return Err(no_place_left(env));
        }
        if !self.change_seat(env, id, Some(tenant)) {
            env.counters.add(Counter::ClientsRefused, 1);
            return Err(no_seat_left(env, tenant));
        }
        let account = user.as_ref().and_then(|user| admission.account_of(env.quotas.tenant(tenant), user));
        let client = self.clients.at(id);
        client.stranger_since = None;
        self.change_identity(id, Identity::of(&env.quotas, tenant, user, account, Chosen::default()));
        self.note_sight(env, id);
        self.apply_pauses_to(&env.quotas, id);
        Ok(())
    }

    /// Closes a client's connection if 10 attempts to log in have failed on it, after its earlier requests are
    /// answered.
    pub fn close_if_guessing(&mut self, env: &mut Env, id: ClientId) {
        if self.clients.get(id).is_some_and(|client| client.logins_failed >= LOGINS_FAILED_MAX) {
            self.stop_listening(env, id);
        }
    }

    /// Answers `HELLO [2|3 [AUTH user password] [SETNAME name]]`. If any part of it fails, the answer is an error, and
    /// the client keeps its identity.
    pub fn hello(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        let before = self.clients.at(id).identity.clone();
        if let Err(text) = self.try_hello(env, admission, id, arguments) {
            self.clients.at(id).identity = before;
            self.is_identity_changed = false;
            self.keep_seat(env, id, now);
            self.note_sight(env, id);
            self.apply_pauses_to(&env.quotas, id);
            self.answer_now(env, id, |out, _| encode::error(out, &text));
            return self.close_if_guessing(env, id);
        }
        let number = self.clients.at(id).number as i64;
        let version = self.store_version.to_string();
        self.answer_now(env, id, |out, protocol| {
            encode::map(out, protocol, 7);
            encode::bulk(out, b"server");
            encode::bulk(out, b"redis");
            encode::bulk(out, b"version");
            encode::bulk(out, version.as_bytes());
            encode::bulk(out, b"proto");
            encode::integer(out, if protocol == Protocol::Resp3 { 3 } else { 2 });
            encode::bulk(out, b"id");
            encode::integer(out, number);
            encode::bulk(out, b"mode");
            encode::bulk(out, b"standalone");
            encode::bulk(out, b"role");
            encode::bulk(out, b"master");
            encode::bulk(out, b"modules");
            encode::array(out, 0);
        });
    }

    fn try_hello(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        arguments: &Arguments<'_>,
    ) -> Result<(), String> {
        let protocol = match arguments.get(1) {
            None => self.clients.at(id).protocol,
            Some(b"2") => Protocol::Resp2,
            Some(b"3") => Protocol::Resp3,
            Some(word) if integer(word).is_some() => {
                return Err("NOPROTO unsupported protocol version".to_owned());
            }
            Some(_) => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
        };
        // Bounds the number of AUTH options, each of which costs a digest.
        if arguments.len() > HELLO_WORDS_MAX {
            return Err("ERR Syntax error in HELLO: one AUTH and one SETNAME are expected at most".to_owned());
        }
        let mut name = None;
        let mut at = 2;
        while let Some(word) = arguments.get(at) {
            match (arguments.get(at + 1), arguments.get(at + 2)) {
                (Some(user), Some(password)) if word.eq_ignore_ascii_case(b"auth") => {
                    self.log_in(env, admission, id, Some(user), password)?;
                    at += 3;
                }
                (Some(given), _) if word.eq_ignore_ascii_case(b"setname") => {
                    name = Some(given);
                    at += 2;
                }
                _ => {
                    return Err(format!("ERR Syntax error in HELLO option '{}'", quoted(word)));
                }
            }
        }
        if self.clients.at(id).identity.tenant.is_none() {
            return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
                        <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
                        RESP protocol version at the same time"
                .to_owned());
        }
        if let Some(name) = name {
            self.rename(env, admission, id, name)?;
        }
        self.clients.at(id).change_protocol(protocol);
        Ok(())
    }

    /// Answers `RESET`: drops the transaction and the name, ends `MONITOR`, `CLIENT NO-EVICT` and `CLIENT REPLY OFF`,
    /// and returns the client to RESP2, to the first database, and to the identity of a new connection. The caller has
    /// ended its subscriptions and its watched and tracked keys.
    pub fn reset(&mut self, env: &mut Env, id: ClientId, now: Now) {
        self.discard_transaction(id);
        let client = self.clients.at(id);
        client.is_monitor = false;
        client.no_evict = false;
        // As in Redis, a `CLIENT REPLY SKIP` right before it leaves out the reply to `RESET` itself.
        if client.order.replies() == Replies::None {
            client.set_replies(Replies::All);
        }
        client.change_protocol(Protocol::Resp2);
        client.name.clear();
        client.database = Database::FIRST;
        self.seat_stranger(env, id, now);
        self.answer_now(env, id, |out, _| encode::simple(out, "RESET"));
    }

    /// Answers `CLIENT GETNAME` with the client's name, without options behind a `;`; null if it has none.
    pub fn client_name(&mut self, env: &mut Env, id: ClientId) {
        let name = self.clients.at(id).name.clone();
        self.answer_now(env, id, |out, protocol| {
            if name.is_empty() { encode::null(out, protocol) } else { encode::bulk(out, &name) }
        });
    }

    /// Answers `CLIENT SETNAME`: sets the name, and the options behind a `;` in it, or answers with an error.
    pub fn set_client_name(
        &mut self,
        env: &mut Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        name: &[u8],
    ) {
        match self.rename(env, admission, id, name) {
            Ok(()) => self.answer_now(env, id, |out, _| encode::simple(out, "OK")),
            Err(text) => self.answer_now(env, id, |out, _| encode::error(out, &text)),
        }
    }

    /// Sets the client's name (`CLIENT SETNAME`). After a `;` the name may carry options, such as
    /// `cart;tier=batch`, for clients that cannot send weir's own commands. The error is the text of the
    /// reply.
    fn rename(
        &mut self,
        env: &Env,
        admission: &mut AdmissionStage,
        id: ClientId,
        name: &[u8],
    ) -> Result<(), String> {
        if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
            return Err(NAME_ERROR.to_owned());
        }
        if name.len() > CLIENT_NAME_BYTES_MAX {
            return Err(format!("ERR a client's name has at most {CLIENT_NAME_BYTES_MAX} bytes"));
        }
        let text = String::from_utf8_lossy(name);
        let (plain, options) = text.split_once(';').unwrap_or((&text, ""));
        if !options.is_empty() {
            self.change_options(env, admission, id, &RequestOptions::from_name(options)?)?;
        }
        self.clients.at(id).name = plain.as_bytes().to_vec();
        Ok(())
    }

    /// Answers `CLIENT SETINFO lib-name|lib-ver value`: keeps the name or version of the client's library, for
    /// `CLIENT LIST`, or answers with an error.
    pub fn set_client_info(&mut self, env: &mut Env, id: ClientId, attribute: &[u8], value: &[u8]) {
        let place = if attribute.eq_ignore_ascii_case(b"lib-name") {
            0
        } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
            1
        } else {
            let text = format!("ERR Unrecognized option '{}'", quoted(attribute));
            return self.answer_now(env, id, |out, _| encode::error(out, &text));
        };
        if !value.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
            let name = ["lib-name", "lib-ver"][place];
            let text = format!("ERR {name} cannot contain spaces, newlines or special characters.");
            return self.answer_now(env, id, |out, _| encode::error(out, &text));
        }
        if value.len() > CLIENT_NAME_BYTES_MAX {
            let name = ["lib-name", "lib-ver"][place];
            let text = format!("ERR {name} has at most {CLIENT_NAME_BYTES_MAX} bytes");
            return self.answer_now(env, id, |out, _| encode::error(out, &text));
        }
        self.clients.at(id).library[place] = value.to_vec();
        self.answer_now(env, id, |out, _| encode::simple(out, "OK"));
    }

    /// Answers `CLIENT INFO` with the line that describes the client itself.
    pub fn client_info(&mut self, env: &mut Env, id: ClientId, arguments: &Arguments<'_>, now: Now) {
        let client = self.clients.at(id);
        client.note_asking(Some(arguments));
        let text = client.line(&env.quotas, now);
        client.note_asking(None);
        self.answer_now(env, id, |out, protocol| encode::verbatim(out, protocol, &text));
    }
}
