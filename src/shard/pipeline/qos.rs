//! The command `QOS`: options that a client sets for its requests, and questions about prices, quotas and hot
//! keys.

use bytes::Bytes;

use super::Shard;
use super::decode::encoded;
use crate::protocol::call::{inner_name, is_about_connection};
use crate::protocol::command::{Command, quoted};
use crate::protocol::{Argument, Arguments, Request, encode};
use crate::shard::admission::AdmissionStage;
use crate::shard::clients::Question;
use crate::shard::clients::{Identity, RequestOptions};
use crate::shard::env::Env;
use crate::values::ClientId;
use crate::values::limits::{HOT_KEYS_SHOWN, HOT_KEYS_SHOWN_MAX, KEYS_PER_TURN};
use crate::values::time::Now;

const HELP: [&str; 22] = [
    "QOS <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "SET [USER <name>] [TIER <tier>] [DEADLINE <ms>] [INFLIGHT <wait|answer>]",
    "    For all further requests of this connection: who within the tenant sends them, how much they matter",
    "    (critical, standard, batch, sheddable; never above the tenant's own tier), how long an answer is of use. What is",
    "    with a store when that is over is answered at once, or (INFLIGHT wait) when the store has: for whoever keeps to",
    "    deadlines itself, such as another weir.",
    "CALL [USER <name>] [TIER <tier>] [DEADLINE <ms>] [INFLIGHT <wait|answer>] <command> [<arg> ...]",
    "    The same for one request. Between MULTI and EXEC the request is queued; the options of EXEC are those that count.",
    "LIMITS",
    "    Request units per second, burst, what is left, and when all of it is there again: of all tenants together, of",
    "    this tenant, of this user.",
    "EXPLAIN <command> [<arg> ...]",
    "    What that would cost, term by term, where it would go, and whether it would be let through. Nothing is done.",
    "TENANTS [AFTER <name>]",
    "    What this tenant asked for and got, in request units, and which quota would suit it; an administrator is told",
    "    of the first thousand tenants, in the order of their names, or of those after a name.",
    "HOTKEYS [COUNT <number>]",
    "    The keys that are asked for the most, the hottest first, of all cores: how often, by whom, since when, and what is",
    "    done about it. A tenant that has only keys of certain prefixes is told of those.",
    "HELP",
    "    Print this help.",
    "The same options may stand behind a client's name: CLIENT SETNAME cart;tier=batch;deadline=50ms",
];

impl Shard {
    pub(super) fn qos(&mut self, id: ClientId, command: &Command, request: Request<'_>, now: Now) {
        let arguments = request.arguments;
        let subcommand = arguments.get(1).unwrap_or(b"help");
        if self.clients.client(id).speaks_http() && is_about_connection(arguments.iter()) {
            return self.refuse_about_connection(id);
        }
        if subcommand.eq_ignore_ascii_case(b"set") {
            self.qos_set(id, &arguments);
        } else if subcommand.eq_ignore_ascii_case(b"call") {
            self.qos_call(id, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"tenants") {
            self.qos_tenants(id, command, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"hotkeys") {
            self.qos_hot_keys(id, command, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"limits") {
            self.qos_limits(id, command, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"explain") {
            self.qos_explain(id, command, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"help") {
            self.clients.answer_now(&mut self.env, id, |out, _| {
                encode::array(out, HELP.len());
                HELP.iter().for_each(|line| encode::simple(out, line));
            });
        } else {
            let text = format!("ERR unknown subcommand '{}'. Try QOS HELP.", quoted(subcommand));
            self.answer_error(id, &text);
        }
    }

    fn qos_set(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let identity =
            RequestOptions::from_words(arguments, 2).and_then(|(options, used)| match arguments.get(used) {
                _ if arguments.len() == 2 => Err(wrong_arguments("set")),
                Some(word) => Err(format!(
                    "ERR QOS SET '{}': USER, TIER, DEADLINE or INFLIGHT, each with a value, is expected",
                    quoted(word)
                )),
                None => {
                    self.clients.client(id).identity().with_options(&self.env, &mut self.admission, &options)
                }
            });
        match identity {
            Ok(identity) => {
                self.clients.change_identity(id, identity);
                self.clients.answer_now(&mut self.env, id, |out, _| encode::simple(out, "OK"));
            }
            Err(text) => self.answer_error(id, &text),
        }
    }

    /// Handles the request inside `QOS CALL` under the options of that. In a transaction the request is queued, and
    /// after an error `EXEC` will fail.
    pub(super) fn qos_call(&mut self, id: ClientId, arguments: &Arguments<'_>, now: Now) {
        let own = self.clients.client(id).identity();
        let (identity, inner) = match inside_call(&self.env, &mut self.admission, own, arguments) {
            Ok(inside) => inside,
            Err(text) => return self.refuse_call(id, arguments, &text),
        };
        let (frame, places) = encoded(inner.iter());
        if places.len() > KEYS_PER_TURN {
            return self.call_large(id, &identity, (frame.into(), places), now);
        }
        let request = Request { arguments: Arguments::new(&frame, &places), shared: None };
        self.handle_request_as(id, &identity, request, now);
    }

    /// Answers a malformed `QOS CALL` with an error. If the client is in a transaction, its `EXEC` will fail;
    /// a malformed `QOS CALL ... EXEC` ends the transaction.
    fn refuse_call(&mut self, id: ClientId, arguments: &Arguments<'_>, text: &str) {
        if inner_name(arguments.iter().skip(2)).is_some_and(|name| name.eq_ignore_ascii_case(b"exec")) {
            self.discard_unpaid(id);
        }
        self.refuse_in_transaction(id, text);
    }

    /// Handles a large request inside `QOS CALL` under the identity `identity`. If it is split by key, it is
    /// held while the splitting takes several turns (passes of the shard's loop).
    #[cold]
    fn call_large(
        &mut self,
        id: ClientId,
        identity: &Identity,
        (frame, places): (Bytes, Vec<Argument>),
        now: Now,
    ) {
        let request = Request { arguments: Arguments::new(&frame, &places), shared: Some(&frame) };
        let Some((step, shared)) = self.step_if_split(id, &request) else {
            return self.handle_request_as(id, identity, request, now);
        };
        self.clients.begin_acting(id, identity);
        self.clients.hold_for_turns(&mut self.env, id, step, (shared, places));
        self.clients.end_acting(id);
    }

    fn qos_tenants(&mut self, id: ClientId, command: &Command, arguments: &Arguments<'_>, now: Now) {
        let after = match (arguments.get(2), arguments.get(3)) {
            (None, _) => String::new(),
            (Some(word), Some(name)) if word.eq_ignore_ascii_case(b"after") && arguments.len() == 4 => {
                quoted(name).into_owned()
            }
            (Some(_), _) => {
                let text = "ERR QOS TENANTS: nothing more, or AFTER and a name, is expected";
                return self.answer_error(id, text);
            }
        };
        let asker = self.asker(id);
        let protocol = self.clients.client(id).protocol();
        let Ok(charge) = self.admit_in_debt(id, command, arguments, now) else { return };
        self.clients.ask(&self.env, id, charge, Question::Tenants { asker, after, protocol });
    }

    fn qos_hot_keys(&mut self, id: ClientId, command: &Command, arguments: &Arguments<'_>, now: Now) {
        let count = match (arguments.get(2), arguments.get(3)) {
            (None, _) => Some(HOT_KEYS_SHOWN),
            (Some(word), Some(count)) if word.eq_ignore_ascii_case(b"count") && arguments.len() == 4 => {
                let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok());
                count.filter(|count| (1..=HOT_KEYS_SHOWN_MAX).contains(count))
            }
            (Some(_), _) => None,
        };
        let Some(count) = count else {
            let text = format!(
                "ERR QOS HOTKEYS: nothing more, or COUNT and a number from 1 to {HOT_KEYS_SHOWN_MAX}, is expected"
            );
            return self.answer_error(id, &text);
        };
        let asker = self.asker(id);
        let protocol = self.clients.client(id).protocol();
        let Ok(charge) = self.admit_in_debt(id, command, arguments, now) else { return };
        self.clients.ask(&self.env, id, charge, Question::HotKeys { asker, count, protocol });
    }

    /// Returns the name of a client's tenant, which decides what reports the client may see; an empty name
    /// before the client has logged in.
    fn asker(&mut self, id: ClientId) -> String {
        self.tenant_of(id).map_or_else(String::new, |tenant| tenant.name.clone())
    }
}

/// Returns the request inside a `QOS CALL` (`arguments`), and the identity that it is handled under: that of its client
/// (`own`) with the options of the call. The error is the text of the reply to a malformed call.
pub(super) fn inside_call<'a>(
    env: &Env,
    admission: &mut AdmissionStage,
    own: &Identity,
    arguments: &Arguments<'a>,
) -> Result<(Identity, Arguments<'a>), String> {
    let (options, used) = RequestOptions::from_words(arguments, 2)?;
    let identity = own.with_options(env, admission, &options)?;
    let inner = arguments.skip(used).ok_or_else(|| wrong_arguments("call"))?;
    if inner.name().eq_ignore_ascii_case(b"qos") {
        return Err("ERR QOS CALL: a command other than QOS is expected".to_owned());
    }
    Ok((identity, inner))
}

fn wrong_arguments(subcommand: &str) -> String {
    format!("ERR wrong number of arguments for 'qos|{subcommand}' command")
}
