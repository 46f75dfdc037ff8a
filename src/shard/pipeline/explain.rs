//! Answers to `QOS LIMITS` and `QOS EXPLAIN`: how much a client may still spend, and why a request is
//! expensive or refused.

mod standing;

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::Shard;
use super::decode::encoded;
use super::destination::{Placement, asked_of_stores, touches_of};
use super::permission::permit_tenant;
use super::qos::inside_call;
use super::shared_channels::may_share;
use crate::policy::slice::Verdict;
use crate::protocol::command::{Class, Command, Gather, Handling, LocalCommand, PrivateUse, recognise};
use crate::protocol::{Arguments, Protocol, encode};
use crate::shard::admission::{Estimate, FREE_BYTES, Payer, Scope, asked};
use crate::shard::backend_levels;
use crate::shard::clients::{Chosen, Identity};
use crate::shard::clients::{Question, ScopeLimit};
use crate::shard::hot_keys::Forecast;
use crate::shard::partition::Permission;
use crate::shard::request::{ReplyTo, Route, Track};
use crate::shard::settings::{BULKHEADS, Mode};
use crate::values::limits::{EXPLAINED_WORDS_MAX, KEYS_PER_TURN};
use crate::values::time::Now;
use crate::values::usage::Amount;
use crate::values::{BackendId, ClientId, Database, MicroUnits, Price, ShardId};
use standing::{Standing, Terms, prefixed};

/// The client that a request to be explained (`QOS EXPLAIN`, or an operator's question at the admin port) is
/// assumed to come from.
struct Subject {
    identity: Identity,
    protocol: Protocol,
    database: Database,
    /// Number of the client's connection ([`ReplyTo::connection`]), by which its earlier requests in flight for
    /// a hot key are found.
    connection: u64,
}

/// Subcommands of `QOS` that are questions. They have a price, and are answered even if the quota is used up.
const QUESTIONS: [&[u8]; 4] = [b"explain", b"hotkeys", b"limits", b"tenants"];

/// The value of [`Subject::connection`] for a request that an operator asks weir to explain at the admin port, which
/// comes from no client connection.
const NO_CONNECTION: u64 = u64::MAX;

impl Shard {
    /// Has a client's `QOS LIMITS` answered with what is left of its quotas in its scopes (global, tenant, user), by
    /// the control executor (thread that handles no data of clients), because only that knows how much other cores
    /// spent.
    pub(super) fn qos_limits(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        if arguments.len() > 2 {
            let text = "ERR wrong number of arguments for 'qos|limits' command";
            return self.answer_error(id, text);
        }
        let Ok(charge) = self.admit_in_debt(id, command, arguments, now) else { return };
        // The pools have to count first what was spent here and not reported yet.
        self.admission.flush(now.monotonic);
        let identity = self.clients.client(id).identity().clone();
        let limits = self.scopes_of(&identity).into_iter().map(|(scope, name)| ScopeLimit {
            scope: word_for(scope),
            name,
            bucket: self.admission.bucket(scope),
        });
        let limits = limits.collect();
        let protocol = self.clients.client(id).protocol();
        self.clients.ask(&self.env, id, charge, Question::Limits { limits, protocol });
    }

    /// Answers a client's `QOS EXPLAIN`: the price of the request that it contains, its destination, and
    /// what would be decided about it. That request itself is not carried out.
    pub(super) fn qos_explain(
        &mut self,
        id: ClientId,
        command: &Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        let Some(inner) = arguments.skip(2) else {
            let text = "ERR wrong number of arguments for 'qos|explain' command";
            return self.answer_error(id, text);
        };
        let Ok(charge) = self.admit_in_debt(id, command, arguments, now) else { return };
        if inner.len() > EXPLAINED_WORDS_MAX {
            let text = format!("ERR a request of more than {EXPLAINED_WORDS_MAX} words is not explained");
            return self.answer_priced(id, charge, now, |out, _| encode::error(out, &text));
        }
        let (frame, places) = encoded(inner.iter());
        let inner = Arguments::new(&frame, &places);
        let command = match recognise(&inner) {
            Ok(command) => command,
            Err(error) => {
                let text = error.to_string();
                return self.answer_priced(id, charge, now, |out, _| encode::error(out, &text));
            }
        };
        let client = self.clients.client(id);
        let (identity, protocol, database) =
            (client.identity().clone(), client.protocol(), client.database());
        let connection = ReplyTo::new(self.env.settings.id, id, 0).connection();
        let explained =
            self.explained(&Subject { identity, protocol, database, connection }, command, &inner, now);
        self.answer_priced(id, charge, now, |out, protocol| explained.write(out, protocol));
    }

    /// Explains a request (`words`) to an operator as if a client of this tenant without options of its own had
    /// sent it, in the first database that the tenant may use. The error is a text that names the part of the
    /// operator's query that is wrong.
    pub fn handle_explain(&mut self, tenant: &str, words: &[Vec<u8>], now: Now) -> Result<Explained, String> {
        let quotas = &self.env.quotas;
        let tenant = quotas.find(tenant).ok_or_else(|| format!("there is no tenant '{tenant}'"))?;
        let database = quotas.tenant(tenant).databases.first().copied().unwrap_or(Database::FIRST);
        let identity = Identity::of(quotas, tenant, None, None, Chosen::default());
        let (frame, places) = encoded(words.iter().map(Vec::as_slice));
        let arguments = Arguments::new(&frame, &places);
        let command = recognise(&arguments).map_err(|error| error.to_string())?;
        let subject = Subject { identity, protocol: Protocol::Resp2, database, connection: NO_CONNECTION };
        Ok(self.explained(&subject, command, &arguments, now))
    }

    fn explained(
        &mut self,
        subject: &Subject,
        command: &'static Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Explained {
        if command.handling == Handling::Local(LocalCommand::Qos) && is_subcommand(arguments, b"call") {
            return self.explained_call(subject, command, arguments, now);
        }
        let mut map = Explained::default();
        map.text("command", command.spoken_name());
        let handling = self.in_force(command.handling_for(arguments));
        if let Some(refusal) = self.refusal_of(subject, (command, handling), arguments) {
            map.text("handled", refusal);
            return map;
        }
        let tenant = subject.identity.tenant(&self.env.quotas);
        let handling = match handling {
            Handling::Local(local) => {
                asked_of_stores(local, tenant, arguments).map_or(handling, Handling::FanOut)
            }
            handling => handling,
        };
        match handling {
            Handling::Local(local) => {
                self.explain_own(&mut map, subject, (command, local), arguments, now);
                return map;
            }
            Handling::Refused(refusal) => {
                map.text("handled", refusal.of(command).to_string());
                return map;
            }
            Handling::Private(PrivateUse::Unsubscribes(_)) => {
                let text = "the store is told, weir answers; never refused, priced by its bytes afterwards";
                map.text("handled", text.to_owned());
                return map;
            }
            Handling::Private(PrivateUse::Subscribes(kind))
                if tenant.is_some_and(|tenant| tenant.shares_channels)
                    && arguments.iter().skip(1).all(|name| may_share(kind, name)) =>
            {
                map.text(
                    "subscription",
                    "shared with other clients: one per channel and store of this process, no connection of the \
                     client's own"
                        .to_owned(),
                );
            }
            Handling::Private(_) => {
                let [own, free] = self.private.available(&self.env, subject.identity.tenant_id());
                let text = format!("{own} of this core's are free for the tenant, {free} in all");
                map.text("private_links", text);
            }
            Handling::Forward | Handling::BetweenDatabases | Handling::Split(_) | Handling::FanOut(_) => {}
        }
        let sender = self.explain_place(&mut map, command, handling, arguments);
        let (tier, backend) = (subject.identity.tier, sender.map(|(backend, _)| backend));
        let percent = self.env.backend_levels.percent(backend, tier);
        let total = self.explain_price(&mut map, subject, (command, percent), arguments);
        self.explain_admission(&mut map, subject, total, now);
        if let Some((backend, home)) = sender {
            let track = self.admission.track(subject.identity.payer, command.class, total);
            self.explain_hot(&mut map, subject, (command, arguments, track), now);
            self.explain_standing(&mut map, subject, (backend, home, track), now);
        }
        map
    }

    /// Explains the request inside a `QOS CALL` (`command`, with its `arguments`), under the options of the call.
    fn explained_call(
        &mut self,
        subject: &Subject,
        command: &'static Command,
        arguments: &Arguments<'_>,
        now: Now,
    ) -> Explained {
        let inside = inside_call(&self.env, &mut self.admission, &subject.identity, arguments);
        let refusal = match inside {
            Ok((identity, inner)) => {
                let (frame, places) = encoded(inner.iter());
                let inner = Arguments::new(&frame, &places);
                match recognise(&inner) {
                    Ok(command) => {
                        return self.explained(&Subject { identity, ..*subject }, command, &inner, now);
                    }
                    Err(error) => error.to_string(),
                }
            }
            Err(text) => text,
        };
        let mut map = Explained::default();
        map.text("command", command.spoken_name());
        map.text("handled", refusal);
        map
    }

    /// Adds to an explanation (`map`) that weir answers the request itself (`local` is its command), and what that
    /// costs.
    fn explain_own(
        &mut self,
        map: &mut Explained,
        subject: &Subject,
        (command, local): (&Command, LocalCommand),
        arguments: &Arguments<'_>,
        now: Now,
    ) {
        let is_question =
            local == LocalCommand::Qos && QUESTIONS.into_iter().any(|word| is_subcommand(arguments, word));
        if !is_question && !local.is_priced(arguments) {
            return map.text("handled", format!("answered by weir, {}", price_of_own(local, arguments)));
        }
        map.text("handled", "answered by weir, priced like any request".to_owned());
        // No store is asked, so none is strained by it.
        let total = self.explain_price(map, subject, (command, backend_levels::USUAL_PERCENT), arguments);
        match local {
            LocalCommand::Qos => map.text("rate", "answered even if the quota is used up".to_owned()),
            LocalCommand::Auth | LocalCommand::Hello | LocalCommand::ClientUnpause => {
                map.text("rate", "never throttled".to_owned());
            }
            _ => self.explain_admission(map, subject, total, now),
        }
    }

    /// Adds to an explanation (`map`) the class of a request and, term by term, the estimate of its price, which is
    /// `percent` of the usual one if its store is slow. Returns the estimate.
    fn explain_price(
        &mut self,
        map: &mut Explained,
        subject: &Subject,
        (command, percent): (&Command, u32),
        arguments: &Arguments<'_>,
    ) -> Price {
        map.text("class", word_for_class(command.class).to_owned());
        let weights = *self.admission.weights();
        let (payer, asked) = (subject.identity.payer, asked(Some(command), arguments));
        let Estimate { quote, expected, total, surcharge } =
            self.admission.estimate(payer, (&asked, command.class, percent));
        let fixed = quote.fixed.micro() - surcharge;
        let rest = weights.rest_of_estimate(&quote, expected);
        let mut price = Explained::default();
        price.units("base", weights.base.min(fixed));
        price.units("request_bytes", fixed.saturating_sub(weights.base));
        let keys = u64::from(quote.keys).saturating_mul(weights.key).min(rest);
        price.units("keys", keys);
        price.units("reply_expected", rest - keys);
        price.units("strained", surcharge);
        let terms = fixed.saturating_add(rest).saturating_add(surcharge);
        price.units("to_floor", total.micro().saturating_sub(terms));
        price.units("total", total.micro());
        map.0.push(("estimate", Value::Map(price)));
        total
    }

    /// Returns the error with which a request is refused before its quotas are looked at: its tenant may not
    /// send it, or it asks for too much work at a store (by repeating a key, for instance). None for any other
    /// request. Words that repeat a key are not counted in a request of more than 4,096 words.
    fn refusal_of(
        &self,
        subject: &Subject,
        command: (&'static Command, Handling),
        arguments: &Arguments<'_>,
    ) -> Option<String> {
        let tenant = subject.identity.tenant(&self.env.quotas)?;
        let permitted = permit_tenant(tenant, subject.database, command, arguments, || Permission::Unknown);
        let counted = || (arguments.len() > KEYS_PER_TURN).then_some(0);
        let excess = || command.0.excess(arguments, counted).map(|excess| excess.to_string());
        permitted.err().or_else(excess)
    }

    /// Adds to an explanation (`map`) how the request's key would be treated if it is hot. Only the key's
    /// home core (the core through which a key's requests pass) knows that; another core adds the number of
    /// the home core. `track` is the request's set of connections.
    fn explain_hot(
        &mut self,
        map: &mut Explained,
        subject: &Subject,
        (command, arguments, track): (&Command, &Arguments<'_>, Track),
        now: Now,
    ) {
        let settings = &self.env.settings;
        let (own, mode) = (settings.id, settings.hot.mode);
        let text = match self.placement(command, arguments) {
            Ok(Placement::Together { home, .. }) if home != own => {
                format!("core {} decides: the key is at home there", home.0)
            }
            Ok(Placement::Together { slot, backend, .. }) => {
                let route =
                    Route { slot, backend, protocol: subject.protocol, track, database: subject.database };
                let what = (touches_of(command, arguments), command.effect);
                let (may_move, frame) = (self.env.slots.is_some(), arguments.frame());
                self.hot_keys
                    .forecast(what, (subject.connection, route), frame, may_move, now.monotonic)
                    .text()
            }
            Ok(Placement::OneBackend { .. } | Placement::Apart)
                if command.handling == Handling::Split(Gather::Values) =>
            {
                Forecast::Values.text()
            }
            Ok(Placement::OneBackend { .. } | Placement::Apart) => Forecast::Keys.text(),
            Ok(Placement::Nowhere) | Err(_) => Forecast::NoKey.text(),
        };
        map.text("hot", prefixed(mode, &text));
    }

    /// Adds to an explanation (`map`) the state of the window (limit on requests in flight), queue, breaker
    /// and shedding level (which requests are refused or cost more) in front of a backend, as on the core
    /// (`home`) that would send the request on this track (set of connections).
    fn explain_standing(
        &mut self,
        map: &mut Explained,
        subject: &Subject,
        (backend, home, track): (BackendId, ShardId, Track),
        now: Now,
    ) {
        let settings = &self.env.settings;
        let overload = &settings.overload;
        let index = usize::from(backend.0) * BULKHEADS + track as usize;
        let standing = if home == settings.id {
            self.upstream.bulkheads(&self.env).nth(index).map(|own| Standing::of(&own)).unwrap_or_default()
        } else {
            let first = overload.window_bounds.first(settings.topology.shards());
            Standing::told(overload.board.of(home, index), first)
        };
        let identity = &subject.identity;
        let level =
            backend_levels::agreed_at(&overload.board, settings, usize::from(backend.0), now.monotonic);
        let terms = Terms { tier: identity.tier, deadline: identity.deadline, level };
        map.text("tier", identity.tier.to_string());
        map.text("connections", if track == Track::Heavy { "heavy" } else { "usual" }.to_owned());
        let health = overload.health.standing(usize::from(backend.0));
        map.text("breaker", standing::breaker(overload.breaker, health, now.monotonic));
        standing.explain(map, overload, &terms);
    }

    /// Adds to an explanation (`map`) where the request would go. Returns its backend and the core that
    /// would send it, if there is only one backend; else None.
    fn explain_place(
        &self,
        map: &mut Explained,
        command: &'static Command,
        handling: Handling,
        arguments: &Arguments<'_>,
    ) -> Option<(BackendId, ShardId)> {
        if let Handling::FanOut(_) = handling {
            map.text("place", "every backend, or the one that a cursor names".to_owned());
            return None;
        }
        let backend_name = |backend: BackendId| self.env.backend_name(backend).to_owned();
        let own = self.env.settings.id;
        match self.placement(command, arguments) {
            Ok(Placement::Together { slot, backend, home }) => {
                map.number("slot", i64::from(slot));
                map.text("backend", backend_name(backend));
                map.number("shard", i64::from(home.0));
                Some((backend, home))
            }
            Ok(Placement::OneBackend { backend, .. }) => {
                map.text("backend", backend_name(backend));
                map.text("place", "keys of several cores: alone on its connection".to_owned());
                Some((backend, own))
            }
            Ok(Placement::Apart) => {
                map.text("place", "keys of several backends".to_owned());
                None
            }
            Ok(Placement::Nowhere) => {
                let (_, backend) = self.first_place();
                map.text("backend", backend_name(backend));
                map.text("place", "no keys: the first backend".to_owned());
                Some((backend, own))
            }
            Err(error) => {
                map.text("place", error.to_string());
                None
            }
        }
    }

    fn explain_admission(&mut self, map: &mut Explained, subject: &Subject, cost: Price, now: Now) {
        let mode = self.admission.mode();
        if mode == Mode::Off {
            return map.text("rate", "off".to_owned());
        }
        let mut scopes = Vec::new();
        let mut decision = "admitted";
        for (scope, name) in self.scopes_of(&subject.identity) {
            let forecast = self.admission.forecast(&self.env.quotas, scope, cost, now.monotonic);
            let Some((verdict, limit, remaining)) = forecast else { continue };
            let mut told = Explained::default();
            told.text("scope", word_for(scope).to_owned());
            told.text("name", name);
            told.number("limit", limit as i64);
            told.number("remaining", remaining as i64);
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
        map.text("rate", prefixed(mode, decision));
        map.0.push(("scopes", Value::List(scopes)));
    }

    /// Returns the quota scopes (global, tenant, user) that a client's requests are charged to, with the
    /// payer's name in each.
    pub(super) fn scopes_of(&self, identity: &Identity) -> Vec<(Scope, String)> {
        let mut scopes = vec![(Scope::Global, "global".to_owned())];
        if let Some(tenant) = identity.tenant {
            scopes.push((Scope::Tenant(tenant), self.env.quotas.tenant(tenant).name.clone()));
        }
        if let Some(account) = identity.payer.and_then(Payer::user) {
            scopes.push((Scope::User(account), identity.full_name(&self.env.quotas)));
        }
        scopes
    }
}

/// Returns what a request costs that weir answers itself and that has no base price (`local` is its command), as a part
/// of a sentence.
fn price_of_own(local: LocalCommand, arguments: &Arguments<'_>) -> &'static str {
    let is_help =
        local == LocalCommand::Help || local == LocalCommand::Qos && !is_subcommand(arguments, b"set");
    match local {
        LocalCommand::Exec => "at the price of all requests of its transaction",
        LocalCommand::Discard | LocalCommand::Reset => {
            "priced by the bytes of the requests that it drops if they are more than 1 KiB"
        }
        LocalCommand::Monitor => "at no cost; the lines that follow are priced by their bytes",
        _ if arguments.frame().len() > FREE_BYTES => "priced by its bytes",
        _ if is_help => "priced by the bytes of its reply if they are more than 1 KiB",
        _ => "at no cost",
    }
}

/// True if the second word of a request is this one, in any case of letters.
fn is_subcommand(arguments: &Arguments<'_>, name: &[u8]) -> bool {
    arguments.get(1).is_some_and(|word| word.eq_ignore_ascii_case(name))
}

pub(super) const fn word_for(scope: Scope) -> &'static str {
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

/// An explanation of a request, or another reply that consists of named values, which may be nested, in the
/// order in which they were added. It is written in either RESP version or as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained(Vec<(&'static str, Value)>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Number(i64),
    Map(Explained),
    List(Vec<Value>),
}

impl Serialize for Explained {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Explained {
    /// Returns the home core (the core through which a key's requests pass) of the explained request's keys
    /// (the value named `shard`), or None if there is none. That core can explain more than others.
    pub fn home(&self) -> Option<ShardId> {
        self.0.iter().find_map(|(name, value)| match value {
            Value::Number(home) if *name == "shard" => u16::try_from(*home).ok().map(ShardId),
            _ => None,
        })
    }

    fn text(&mut self, name: &'static str, text: String) {
        self.0.push((name, Value::Text(text)));
    }

    fn number(&mut self, name: &'static str, number: i64) {
        self.0.push((name, Value::Number(number)));
    }

    /// Adds to the explanation an amount of request units, given in millionths, as text with all its
    /// decimals.
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
