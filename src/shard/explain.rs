//! `QOS LIMITS` and `QOS EXPLAIN`: what a client may still spend, and why a request is dear or refused.

use std::time::Duration;

use super::accounts::{Payer, Scope};
use super::client::Rewrite;
use super::pricing::{asked, class_of};
use super::route::Placement;
use super::{Limiter, Question, ScopeLimit, Shard};
use crate::policy::slice::Verdict;
use crate::protocol::command::{Class, Command, Handling, recognise};
use crate::protocol::{Arguments, Protocol, encode};
use crate::values::time::Now;
use crate::values::usage::Amount;
use crate::values::{ClientId, MicroUnits, Price, UNIT};

impl Shard {
    /// All three scopes. What is left of them is asked of the pools, which know what other cores spent.
    pub(super) fn qos_limits(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        if arguments.len() > 2 {
            let text = "ERR wrong number of arguments for 'qos|limits' command";
            return self.answer_now(id, |out, _| encode::error(out, text));
        }
        // What was spent here and not told yet goes first.
        self.accounts.flush(now.monotonic);
        let limits = self.scopes_of(id).into_iter().map(|(scope, name)| ScopeLimit {
            scope: word_for(scope),
            name,
            bucket: self.accounts.bucket(scope).zip(self.accounts.capacity(scope)),
        });
        let limits = limits.collect();
        let protocol = self.clients.at(id).protocol;
        let charge = self.charge_afterwards(id, command, arguments);
        let to = self.expect_reply(id, Rewrite::AsItCame, charge);
        self.ask(id, to, Question::Limits { limits, protocol });
    }

    /// What a request would cost, where it would go, and what would be decided, without doing any of it.
    pub(super) fn qos_explain(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        let Some(inner) = arguments.skip(2) else {
            let text = "ERR wrong number of arguments for 'qos|explain' command";
            return self.answer_now(id, |out, _| encode::error(out, text));
        };
        let (frame, places) = super::qos::encoded_anew(&inner);
        let inner = Arguments::new(&frame, &places);
        let charge = self.charge_afterwards(id, command, arguments);
        let command = match recognise(&inner) {
            Ok(command) => command,
            Err(error) => {
                return self.answer_now(id, |out, _| encode::error(out, &error.to_string()));
            }
        };
        let explained = self.explained(id, command, &inner, now);
        self.answer_priced(id, charge, now, |out, protocol| explained.write(out, protocol));
    }

    fn explained(
        &mut self,
        id: ClientId,
        command: &'static Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Map {
        let mut map = Map::default();
        map.text("command", command.spoken_name());
        let handling = command.handling_for(arguments);
        match handling {
            Handling::Local(local) => {
                let price = if local.is_priced() { "priced by its bytes" } else { "at no cost" };
                map.text("handled", format!("answered by weir, {price}"));
                return map;
            }
            Handling::Refused(refusal) => {
                map.text("handled", refusal.of(command).to_string());
                return map;
            }
            Handling::Forward | Handling::Split(_) | Handling::FanOut(_) => {}
        }
        self.explain_place(&mut map, command, handling, arguments);
        map.text("class", word_for_class(class_of(Some(command))).to_owned());
        let weights = self.settings.admission.weights;
        let asked = asked(Some(command), arguments);
        let quote = weights.quote(&asked);
        let class = class_of(Some(command));
        let expected = self.payer_of(id).map_or(0, |payer| self.accounts.expected(payer, class));
        let total = weights.estimate(&quote, expected);
        let fixed = quote.fixed.micro();
        let rest = weights.rest_of_estimate(&quote, expected);
        let mut price = Map::default();
        price.units("base", weights.base.min(fixed));
        price.units("request_bytes", fixed.saturating_sub(weights.base));
        let keys = u64::from(quote.keys).saturating_mul(weights.key).min(rest);
        price.units("keys", keys);
        price.units("reply_expected", rest - keys);
        price.units("to_floor", total.micro().saturating_sub(fixed.saturating_add(rest)));
        price.units("total", total.micro());
        map.0.push(("estimate", Value::Map(price)));
        self.explain_admission(&mut map, id, total, now);
        map
    }

    fn explain_place(
        &self,
        map: &mut Map,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) {
        if let Handling::FanOut(_) = handling {
            return map.text("place", "every backend, or the one that a cursor names".to_owned());
        }
        let backend_name =
            |backend: crate::values::BackendId| self.settings.backends[usize::from(backend.0)].name.clone();
        match self.placement(command, arguments) {
            Ok(Placement::Together { slot, backend, home }) => {
                map.number("slot", i64::from(slot));
                map.text("backend", backend_name(backend));
                map.number("shard", i64::from(home.0));
            }
            Ok(Placement::OneBackend { backend, .. }) => {
                map.text("backend", backend_name(backend));
                map.text("place", "keys of several cores: alone on its connection".to_owned());
            }
            Ok(Placement::Apart) => map.text("place", "keys of several backends".to_owned()),
            Ok(Placement::Nowhere) => map.text("place", "no keys: the first backend".to_owned()),
            Err(error) => map.text("place", error.to_string()),
        }
    }

    fn explain_admission(&mut self, map: &mut Map, id: ClientId, cost: Price, now: Now) {
        if !matches!(self.settings.admission.limiter, Limiter::Buckets | Limiter::Shadow) {
            return map.text("rate", "off".to_owned());
        }
        let mut scopes = Vec::new();
        let mut decision = "admitted";
        for (scope, name) in self.scopes_of(id) {
            let Some(verdict) = self.accounts.peek(scope, cost, now.monotonic) else { continue };
            let (capacity, remaining) =
                self.accounts.remaining(scope, now.monotonic).expect("what has a verdict has a bucket");
            let mut told = Map::default();
            told.text("scope", word_for(scope).to_owned());
            told.text("name", name);
            told.number("limit", capacity.ru_per_second as i64);
            told.number("remaining", (remaining / UNIT) as i64);
            match verdict {
                Verdict::Fits => told.text("verdict", "fits".to_owned()),
                Verdict::Ask => {
                    told.text("verdict", "ask the pool".to_owned());
                    decision = if decision == "throttled" { decision } else { "ask the pool" };
                }
                Verdict::Refused(retry_after) => {
                    told.text("verdict", "throttled".to_owned());
                    told.number("retry_after_ms", in_ms(retry_after));
                    decision = "throttled";
                }
            }
            scopes.push(Value::Map(told));
        }
        map.text("rate", decision.to_owned());
        map.0.push(("scopes", Value::List(scopes)));
    }

    /// The scopes that a client's requests are paid from, and the names of those who pay.
    fn scopes_of(&mut self, id: ClientId) -> Vec<(Scope, String)> {
        let full_name = self.full_user_name(id);
        let identity = &self.clients.at(id).identity;
        let mut scopes = vec![(Scope::Global, "global".to_owned())];
        if let Some(tenant) = identity.tenant {
            scopes.push((Scope::Tenant(tenant), self.quotas.tenant(tenant).name.clone()));
        }
        if let Some(account) = identity.payer.and_then(Payer::user) {
            scopes.push((Scope::User(account), full_name));
        }
        scopes
    }
}

const fn word_for(scope: Scope) -> &'static str {
    match scope {
        Scope::Global => "global",
        Scope::Tenant(_) => "tenant",
        Scope::User(_) => "user",
    }
}

const fn word_for_class(class: Class) -> &'static str {
    match class {
        Class::Point => "point",
        Class::Multi => "multi",
        Class::Range => "range",
        Class::Scan => "scan",
        Class::Script => "script",
        Class::Control => "control",
    }
}

fn in_ms(duration: Duration) -> i64 {
    (duration.as_micros() as u64).div_ceil(1_000) as i64
}

/// A reply of named values, in either dialect.
#[derive(Debug, Default)]
struct Map(Vec<(&'static str, Value)>);

#[derive(Debug)]
enum Value {
    Text(String),
    Number(i64),
    Map(Map),
    List(Vec<Value>),
}

impl Map {
    fn text(&mut self, name: &'static str, text: String) {
        self.0.push((name, Value::Text(text)));
    }

    fn number(&mut self, name: &'static str, number: i64) {
        self.0.push((name, Value::Number(number)));
    }

    /// Request units, exactly.
    fn units(&mut self, name: &'static str, micro: MicroUnits) {
        self.text(name, Amount(u128::from(micro)).to_string());
    }

    fn write(&self, out: &mut Vec<u8>, protocol: Protocol) {
        encode::map(out, protocol, self.0.len());
        for (name, value) in &self.0 {
            encode::bulk(out, name.as_bytes());
            value.write(out, protocol);
        }
    }
}

impl Value {
    fn write(&self, out: &mut Vec<u8>, protocol: Protocol) {
        match self {
            Self::Text(text) => encode::bulk(out, text.as_bytes()),
            Self::Number(number) => encode::integer(out, *number),
            Self::Map(map) => map.write(out, protocol),
            Self::List(values) => {
                encode::array(out, values.len());
                values.iter().for_each(|value| value.write(out, protocol));
            }
        }
    }
}
