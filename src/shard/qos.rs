//! `QOS`: weir's own command. What a client may say about its requests, for all of them or for one.

use std::time::Duration;

use super::client::Rewrite;
use super::identify::Chosen;
use super::{Identity, Question, Shard};
use crate::config::Tier;
use crate::config::quotas::user_name;
use crate::protocol::command::{Command, quoted};
use crate::protocol::{Argument, Arguments, Request, encode};
use crate::values::ClientId;
use crate::values::limits::{DEADLINE_MS_MAX, OPTIONS_MAX, USER_NAME_BYTES_MAX};
use crate::values::time::Now;

/// What a client asks for. What it leaves out stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    user: Option<String>,
    tier: Option<Tier>,
    deadline: Option<Duration>,
}

impl Wishes {
    /// Takes one option. False if the word is not one.
    fn take(&mut self, option: &[u8], value: &[u8]) -> Result<bool, String> {
        let text = quoted(value);
        if option.eq_ignore_ascii_case(b"user") {
            let Some(name) = user_name(value) else {
                return Err(format!(
                    "ERR QOS USER '{text}': a name of 1 to {USER_NAME_BYTES_MAX} bytes without spaces or '/' is wanted"
                ));
            };
            self.user = Some(name.to_owned());
        } else if option.eq_ignore_ascii_case(b"tier") {
            self.tier = Some(text.to_lowercase().parse().map_err(|_| {
                format!("ERR QOS TIER '{text}': critical, standard, batch or sheddable is wanted")
            })?);
        } else if option.eq_ignore_ascii_case(b"deadline") {
            let millis = text.strip_suffix("ms").unwrap_or(&text).parse::<u64>().ok();
            let Some(millis) = millis.filter(|millis| (1..=DEADLINE_MS_MAX).contains(millis)) else {
                return Err(format!(
                    "ERR QOS DEADLINE '{text}': whole milliseconds from 1 to {DEADLINE_MS_MAX} are wanted"
                ));
            };
            self.deadline = Some(Duration::from_millis(millis));
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// From behind a client's name: `tier=batch;deadline=50ms`.
    pub fn from_name(text: &str) -> Result<Self, String> {
        let mut wishes = Self::default();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !wishes.take(option.as_bytes(), value.as_bytes())? {
                return Err(format!(
                    "ERR client name option '{}': user=, tier= or deadline= is wanted",
                    quoted(option.as_bytes())
                ));
            }
        }
        Ok(wishes)
    }

    /// From the words of a request, and how many of them were options.
    fn from_words(arguments: &Arguments<'_>, from: usize) -> Result<(Self, usize), String> {
        let mut wishes = Self::default();
        let mut at = from;
        while let (Some(option), Some(value)) = (arguments.get(at), arguments.get(at + 1)) {
            if !wishes.take(option, value)? {
                break;
            }
            at += 2;
            if at - from > 2 * OPTIONS_MAX {
                return Err(format!("ERR QOS: at most {OPTIONS_MAX} options are wanted"));
            }
        }
        Ok((wishes, at))
    }
}

const HELP: [&str; 17] = [
    "QOS <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "SET [USER <name>] [TIER <tier>] [DEADLINE <ms>]",
    "    For all further requests of this connection: who within the tenant sends them, how much they matter",
    "    (critical, standard, batch, sheddable; never above the tenant's own tier), how long an answer is of use.",
    "CALL [USER <name>] [TIER <tier>] [DEADLINE <ms>] <command> [<arg> ...]",
    "    The same for one request.",
    "LIMITS",
    "    Request units per second, burst, what is left, and when all of it is there again: of all tenants together, of",
    "    this tenant, of this user.",
    "EXPLAIN <command> [<arg> ...]",
    "    What that would cost, term by term, where it would go, and whether it would be let through. Nothing is done.",
    "TENANTS [AFTER <name>]",
    "    What this tenant asked for and got, in request units, and which quota would suit it; an administrator is told",
    "    of the first thousand tenants, in the order of their names, or of those after a name.",
    "HELP",
    "    Print this help.",
    "The same options may stand behind a client's name: CLIENT SETNAME cart;tier=batch;deadline=50ms",
];

impl Shard {
    pub(super) fn qos(&mut self, id: ClientId, command: &Command, request: Request<'_>, now: Now) {
        let arguments = request.arguments;
        let subcommand = arguments.get(1).unwrap_or(b"help");
        if subcommand.eq_ignore_ascii_case(b"set") {
            self.qos_set(id, &arguments);
        } else if subcommand.eq_ignore_ascii_case(b"call") {
            self.qos_call(id, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"tenants") {
            self.qos_tenants(id, command, &arguments);
        } else if subcommand.eq_ignore_ascii_case(b"limits") {
            self.qos_limits(id, command, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"explain") {
            self.qos_explain(id, command, &arguments, now);
        } else if subcommand.eq_ignore_ascii_case(b"help") {
            self.answer_now(id, |out, _| {
                encode::array(out, HELP.len());
                HELP.iter().for_each(|line| encode::simple(out, line));
            });
        } else {
            let text = format!("ERR unknown subcommand '{}'. Try QOS HELP.", quoted(subcommand));
            self.answer_now(id, |out, _| encode::error(out, &text));
        }
    }

    fn qos_set(&mut self, id: ClientId, arguments: &Arguments<'_>) {
        let identity =
            Wishes::from_words(arguments, 2).and_then(|(wishes, used)| match arguments.get(used) {
                _ if arguments.len() == 2 => Err(wrong_arguments("set")),
                Some(word) => Err(format!(
                    "ERR QOS SET '{}': USER, TIER or DEADLINE, each with a value, is wanted",
                    quoted(word)
                )),
                None => self.wished(id, &wishes),
            });
        match identity {
            Ok(identity) => {
                self.clients.at(id).identity = identity;
                self.answer_now(id, |out, _| encode::simple(out, "OK"));
            }
            Err(text) => self.answer_now(id, |out, _| encode::error(out, &text)),
        }
    }

    fn qos_call(&mut self, id: ClientId, arguments: &Arguments<'_>, now: Now) {
        let wished = Wishes::from_words(arguments, 2)
            .and_then(|(wishes, used)| Ok((self.wished(id, &wishes)?, arguments.skip(used))));
        let (identity, inner) = match wished {
            Ok((identity, Some(inner))) if !inner.name().eq_ignore_ascii_case(b"qos") => (identity, inner),
            Ok((_, Some(_))) => {
                let text = "ERR QOS CALL: a command other than QOS is wanted";
                return self.answer_now(id, |out, _| encode::error(out, text));
            }
            Ok((_, None)) => {
                return self.answer_now(id, |out, _| encode::error(out, &wrong_arguments("call")));
            }
            Err(text) => return self.answer_now(id, |out, _| encode::error(out, &text)),
        };
        let (frame, places) = encoded_anew(&inner);
        let request = Request { arguments: Arguments::new(&frame, &places), shared: None };
        self.handle_request_as(id, &identity, request, now);
    }

    fn qos_tenants(&mut self, id: ClientId, command: &Command, arguments: &Arguments<'_>) {
        let after = match (arguments.get(2), arguments.get(3)) {
            (None, _) => String::new(),
            (Some(word), Some(name)) if word.eq_ignore_ascii_case(b"after") && arguments.len() == 4 => {
                quoted(name).into_owned()
            }
            (Some(_), _) => {
                let text = "ERR QOS TENANTS: nothing more, or AFTER and a name, is wanted";
                return self.answer_now(id, |out, _| encode::error(out, text));
            }
        };
        let asker = self.tenant_of(id).map_or_else(String::new, |tenant| tenant.name.clone());
        let protocol = self.clients.at(id).protocol;
        let charge = self.charge_afterwards(id, command, arguments);
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        self.ask(id, to, Question::Tenants { asker, after, protocol });
    }

    /// One request on other terms than the connection's.
    pub(super) fn handle_request_as(
        &mut self,
        id: ClientId,
        identity: &Identity,
        request: Request<'_>,
        now: Now,
    ) {
        let own = std::mem::replace(&mut self.clients.at(id).identity, identity.clone());
        self.handle_request(id, request, now);
        // What the request itself changed (AUTH, RESET) stays changed.
        if let Some(client) = self.clients.get(id)
            && client.identity == *identity
        {
            client.identity = own;
        }
    }

    /// The client's identity with its wishes, if it may have them: a tier is lowered, never raised.
    pub(super) fn wished(&mut self, id: ClientId, wishes: &Wishes) -> Result<Identity, String> {
        let identity = self.clients.at(id).identity.clone();
        let Some(tenant) = identity.tenant else { return Ok(identity) };
        let terms = self.quotas.tenant(tenant);
        let user = wishes.user.as_deref().map(Into::into).or(identity.user);
        let highest = terms.tier_of(user.as_deref());
        if let Some(tier) = wishes.tier.filter(|tier| *tier < highest) {
            let whose = if highest == terms.tier { "tenant" } else { "user" };
            return Err(format!("ERR QOS TIER '{tier}': above '{highest}', which is this {whose}'s"));
        }
        let account = user.as_deref().and_then(|user| self.accounts.user(terms, user));
        let chosen = Chosen {
            tier: wishes.tier.or(identity.chosen.tier),
            deadline: wishes.deadline.or(identity.chosen.deadline),
        };
        Ok(Identity::of(&self.quotas, tenant, user, account, chosen))
    }
}

fn wrong_arguments(subcommand: &str) -> String {
    format!("ERR wrong number of arguments for 'qos|{subcommand}' command")
}

/// A request that stood inside another one, as a request of its own.
pub(super) fn encoded_anew(arguments: &Arguments<'_>) -> (Vec<u8>, Vec<Argument>) {
    encoded(arguments.iter())
}

/// A request of these words.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_behind_a_name() {
        let wishes = Wishes::from_name("tier=batch;deadline=50ms").expect("well formed");
        assert_eq!((wishes.tier, wishes.deadline), (Some(Tier::Batch), Some(Duration::from_millis(50))));
        assert!(Wishes::from_name("colour=red").expect_err("unknown").contains("tier="));
        assert!(Wishes::from_name("tier=urgent").expect_err("unknown").contains("sheddable"));
        assert!(Wishes::from_name("deadline=0").expect_err("zero").contains("from 1"));
    }
}
