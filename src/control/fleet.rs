//! Quotas shared with a fleet: once per period this host adds the demand of its tenants to counters in the
//! fleet's store, and the totals of all hosts determine this host's part of each quota, which its cores draw
//! from pools (the parts of buckets that no core holds).

mod users;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

pub use self::users::UserFigures;
use self::users::Users;

use super::Versions;
use super::http::{Response, Status};
use super::json::as_shown;
use super::reconciliation::Reconciliation;
use crate::config::Quotas;
use crate::policy::fleet::{Fleet, HostId, Outcome, Question};
use crate::protocol::{ReplyScanner, encode, reply};
use crate::shard::{bucket_of, capacity_of};
use crate::values::limits::TENANTS_SHOWN_MAX;
use crate::values::usage::Amount;
use crate::values::{BucketId, Capacity, MicroUnits, Part, TenantId, Timestamp, Usage};

/// The interval between two exchanges with the fleet's store (Redis server with the counters of shared
/// quotas).
pub const PERIOD: Duration = Duration::from_secs(1);
/// The time, in milliseconds, after which the fleet's store (Redis server) forgets a counter, or the list of
/// hosts, that no host has updated meanwhile.
const LIFETIME_MS: &str = "60000";
/// Maximum number of characters that are shown of an error message of the fleet's store (Redis server with
/// the counters of shared quotas).
const PROBLEM_CHARS_MAX: usize = 200;

/// The settings of this host as a member of a fleet (weir processes that share quotas).
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// The address, without credentials, of the fleet's store (Redis server with the counters of shared
    /// quotas), as shown in logs and pages.
    pub store: String,
    /// The name of the fleet (weir processes that share quotas), with which the names of its keys in the
    /// Redis server begin.
    pub namespace: String,
    /// The identity of this host within the fleet (weir processes that share quotas), drawn at random for
    /// each process.
    pub host: HostId,
    /// The secret key by which names of tenants and users are hashed into ids of token buckets. If users'
    /// quotas are shared, all hosts of the fleet have the same; otherwise each process has one of its own.
    pub secret: [u64; 2],
    /// Maximum number of users whose quotas this host counts with the fleet, those with the highest demand;
    /// other users may spend an equal part of their quota on each host. 0 if users' quotas are not shared.
    pub users_max: usize,
}

/// A round trip to the fleet's store (Redis server with the counters of shared quotas): the requests, and the
/// number of their replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The number of this exchange with the fleet's store (Redis server with the counters of shared quotas);
    /// its reply is passed back with the same number.
    pub number: u64,
    /// The encoded commands to send to the fleet's store (Redis server with the counters of shared quotas).
    pub request: Vec<u8>,
    /// The number of commands in the exchange, each of which has one reply.
    pub replies: usize,
}

/// The outcome of an exchange with the fleet's store (Redis server with the counters of shared quotas).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The reply of the fleet's store (Redis server with the counters of shared quotas) to the exchange was
    /// used.
    Answered,
    /// No reply of the fleet's store (Redis server with the counters of shared quotas) came within a second,
    /// or the connection to it failed.
    Lost,
    /// The reply of the fleet's store (Redis server with the counters of shared quotas) was an error, could
    /// not be parsed, or listed more hosts than a fleet may have.
    Refused,
}

impl Ending {
    /// All outcomes of an exchange with the fleet's store (Redis server with the counters of shared quotas),
    /// in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Answered, Self::Lost, Self::Refused];

    /// Returns the word for this outcome of an exchange with the fleet's store (Redis server with the counters
    /// of shared quotas), in metrics and pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Lost => "lost",
            Self::Refused => "refused",
        }
    }
}

/// The state of this host's connection to its fleet (weir processes that share quotas), by the last exchanges
/// with the fleet's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No reply of the fleet's store (Redis server with the counters of shared quotas) has been used since
    /// this host's start, so it knows no totals yet. It gives out a tenth of each quota or, for a minute, the
    /// part that the process before it gave out, if that is more.
    Starting,
    /// The last exchange with the fleet's store (Redis server with the counters of shared quotas) was
    /// answered.
    Connected,
    /// The last exchange with the fleet's store (Redis server with the counters of shared quotas) was lost or
    /// refused; the shares of quotas from the last answer stay in force, for up to a minute.
    Away,
    /// No reply of the fleet's store (Redis server with the counters of shared quotas) has come for a minute,
    /// so the shares of quotas that it led to are no longer in force: this host gives out at most an even
    /// part of each quota.
    Alone,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Connected => "connected",
            Self::Away => "away",
            Self::Alone => "alone",
        }
    }
}

/// The owner of a shared quota: all tenants together, a tenant or a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Everybody,
    Tenant(TenantId),
    /// A user. `quiet` is the number of periods in a row in which the user's demand was low: not above the
    /// part of the quota that every host may give out anyway.
    User {
        quiet: u32,
    },
}

/// A quota that the fleet (weir processes that share quotas) shares, its counter in the fleet's store, and
/// this host's part of it.
#[derive(Clone, Debug)]
struct Place {
    whose: Whose,
    /// The key of this quota's counter in the fleet's store (Redis server with the counters of shared
    /// quotas).
    key: String,
    bucket: BucketId,
    capacity: Capacity,
    /// This host's part of the quota, as last passed to the pools (what no core holds of each bucket); None
    /// before the first time.
    told: Option<Part>,
}

/// A part of a shared quota that the process before this one gave out, and that this one goes on with after a
/// takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InheritedPart {
    /// The key of the quota's counter in the fleet's store (Redis server with the counters of shared quotas).
    pub key: String,
    /// The id of the quota's bucket. It is the id that this process uses only if users' quotas are shared,
    /// since otherwise each process hashes names with a secret of its own.
    pub bucket: BucketId,
    /// The part of the quota that the process before this one gave out.
    pub part: Part,
}

/// The prices of a tenant's requests in this period: of those admitted or answered without a store, and of
/// those refused because a quota was used up.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    passed: MicroUnits,
    denied: MicroUnits,
}

/// The quotas that this host shares with its fleet (other weir processes), and the state of its exchanges
/// with the fleet's store.
#[derive(Debug)]
pub struct FleetQuotas {
    settings: FleetSettings,
    fleet: Fleet,
    /// All quotas that the fleet (weir processes that share quotas) shares: first that of all tenants
    /// together, if there is one, then those of tenants in the order of their ids, then those of users in no
    /// order.
    places: Vec<Place>,
    users: Users,
    /// The index into `places` (the shared quotas) of each tenant's quota, by tenant id; None for a tenant
    /// without a quota.
    place_of: Vec<Option<usize>>,
    asked: Vec<Asked>,
    /// Indices into `places` (the shared quotas) of those whose counters the last exchange added to, in the
    /// order of its replies.
    added: Vec<usize>,
    /// The keys at the fleet's store (Redis server with the counters of shared quotas) that hold values of
    /// another kind than the fleet keeps there, and are deleted with the next exchange.
    damaged: Vec<String>,
    /// The number of keys that the last exchange has deleted. Their replies come first.
    repairs: usize,
    /// True if the last reply had a counter that could not be read, which was logged then.
    unread_told: bool,
    /// Parts of users' quotas that the process before this one gave out, as long as they are in force here.
    inherited: BTreeMap<BucketId, Part>,
    /// The number of the exchange with the fleet's store (Redis server with the counters of shared quotas)
    /// whose reply is awaited; None if none is.
    awaited: Option<u64>,
    begun_at: Option<Timestamp>,
    counts: [u64; Ending::ALL.len()],
    state: State,
    hosts_told: u64,
    problem: Option<String>,
    /// Lines about the fleet (weir processes that share quotas) that are to be logged.
    lines: Vec<String>,
}

impl FleetQuotas {
    /// Creates the state of a host that knows no other host of the fleet (weir processes that share quotas)
    /// yet.
    pub fn new(settings: FleetSettings, quotas: &Quotas) -> Self {
        let places = places(&settings, quotas);
        let sizes = places.iter().map(|place| place.capacity.ru_per_second());
        let mut this = Self {
            fleet: Fleet::new(settings.host, PERIOD, sizes),
            settings,
            places: Vec::new(),
            users: Users::default(),
            place_of: Vec::new(),
            asked: vec![Asked::default(); quotas.len()],
            added: Vec::new(),
            damaged: Vec::new(),
            repairs: 0,
            unread_told: false,
            inherited: BTreeMap::new(),
            awaited: None,
            begun_at: None,
            counts: [0; Ending::ALL.len()],
            state: State::Starting,
            hosts_told: 1,
            problem: None,
            lines: Vec::new(),
        };
        this.take_places(places, quotas.len());
        this
    }

    /// Returns the time from the start of the process to this host's first exchange with the fleet's store
    /// (Redis server with the counters of shared quotas), less than a second, so that hosts do not all send
    /// at once.
    pub fn phase(&self) -> Duration {
        self.settings.host.phase(PERIOD)
    }

    /// Puts other quotas in force, updates this host's parts of them in `pools`, and gives up the exchange in
    /// flight. Tenants keep their state by their names.
    pub fn handle_quotas(&mut self, quotas: &Quotas, pools: &mut Reconciliation, now: Timestamp) {
        // The demand so far carries tenant ids of the version before.
        self.tell_demand(now);
        let mut next = places(&self.settings, quotas);
        let users = self.take_users();
        let mut before = std::mem::take(&mut self.places);
        let mut moved = vec![None; next.len()];
        // A map, although both are sorted: it is as long as the quota file, and this stays short.
        let by_bucket: BTreeMap<BucketId, usize> =
            before.iter().enumerate().map(|(at, place)| (place.bucket, at)).collect();
        for (place, from) in next.iter_mut().zip(&mut moved) {
            *from = by_bucket.get(&place.bucket).copied();
            if let Some(at) = *from {
                place.told = before[at].told.take();
            }
        }
        let mut stays = vec![false; before.len()];
        moved.iter().flatten().for_each(|at| stays[*at] = true);
        let gone = before.iter().zip(stays).filter(|(_, stays)| !stays);
        gone.for_each(|(place, _)| pools.forget_part(place.bucket));
        let sizes = next.iter().map(|place| place.capacity.ru_per_second());
        self.fleet.replace(sizes.zip(moved));
        next.extend(users);
        self.take_places(next, quotas.len());
        self.asked = vec![Asked::default(); quotas.len()];
        self.added.clear();
        self.awaited = None;
        self.apply(pools, now);
    }

    fn take_places(&mut self, places: Vec<Place>, tenants: usize) {
        self.place_of = vec![None; tenants];
        for (at, place) in places.iter().enumerate() {
            if let Whose::Tenant(tenant) = place.whose {
                self.place_of[usize::from(tenant.0)] = Some(at);
            }
        }
        self.places = places;
    }

    /// Adds the usage that a shard reports to the tenants' demand in this period; the tenant ids belong to
    /// `version` of the quotas. Usage of tenants that are gone is dropped.
    pub fn handle_usage(&mut self, versions: &Versions, version: u64, usage: &[(TenantId, Usage)]) {
        for (tenant, usage) in usage {
            let Some(tenant) = versions.now_called(version, *tenant) else { continue };
            if let Some(asked) = self.asked.get_mut(usize::from(tenant.0)) {
                asked.passed = asked.passed.saturating_add(usage.admitted).saturating_add(usage.cached);
                asked.denied = asked.denied.saturating_add(usage.throttled);
            }
        }
    }

    /// Ends a period (one second) and begins the next: adds up demands, updates this host's parts of the
    /// quotas in `pools`, and returns the exchange to send to the fleet's store. An earlier exchange without
    /// a reply counts as lost.
    pub fn begin(&mut self, now: Timestamp, pools: &mut Reconciliation) -> Exchange {
        if self.awaited.is_some() {
            self.handle_loss(Ending::Lost, "it did not answer in time");
        }
        self.tell_demand(now);
        self.choose_users(pools, now);
        let question = self.fleet.begin(now);
        (self.begun_at, self.awaited) = (Some(now), Some(question.tick));
        let exchange = self.written(&question);
        self.added = question.added.into_iter().map(|(place, _)| place).collect();
        self.settle_state(now);
        self.apply(pools, now);
        exchange
    }

    /// Adds the tenants' demand in this period (prices of requests that were admitted, or refused for lack of
    /// quota) to the demand that this host reports to the fleet. Towards the quota of all tenants together a
    /// tenant counts for at most as much as its own quota permits on this host, or as was admitted, if that
    /// is more.
    fn tell_demand(&mut self, now: Timestamp) {
        let elapsed = self.begun_at.map_or(PERIOD, |begun_at| now.since(begun_at));
        let mut everybody = 0_u64;
        for (tenant, asked) in self.asked.iter_mut().enumerate() {
            let Asked { passed, denied } = std::mem::take(asked);
            let wanted = passed.saturating_add(denied);
            if wanted == 0 {
                continue;
            }
            let of_everybody = match self.place_of[tenant] {
                Some(at) => {
                    self.fleet.handle_demand(at, wanted);
                    let here = self.fleet.part(at, now).of(self.places[at].capacity.comes_in(elapsed));
                    wanted.min(here).max(passed)
                }
                None => wanted,
            };
            everybody = everybody.saturating_add(of_everybody);
        }
        if self.is_shared_by_everybody() {
            self.fleet.handle_demand(0, everybody);
        }
    }

    /// True if there is a quota of all tenants together, which is then the first in `places` (the shared
    /// quotas).
    fn is_shared_by_everybody(&self) -> bool {
        self.places.first().is_some_and(|place| place.whose == Whose::Everybody)
    }

    fn written(&mut self, question: &Question) -> Exchange {
        let mut exchange = Exchange { number: question.tick, request: Vec::new(), replies: 0 };
        // A key expires at once if no time is left. Unlike DEL, this needs no further right at the store.
        let damaged = std::mem::take(&mut self.damaged);
        damaged.iter().for_each(|key| exchange.add(&["PEXPIRE", key, "0"]));
        self.repairs = damaged.len();
        let hosts = self.settings.hosts_key();
        let own = name_of(self.settings.host);
        exchange.add(&["HSET", &hosts, &own, &question.tick.to_string()]);
        exchange.add(&["HGETALL", &hosts]);
        for (place, added) in &question.added {
            exchange.add(&["INCRBY", &self.places[*place].key, &added.to_string()]);
        }
        for (place, _) in &question.added {
            exchange.add(&["PEXPIRE", &self.places[*place].key, LIFETIME_MS]);
        }
        // A list that cannot be read, because it is too long, say, is not kept alive, so that it begins anew.
        if self.problem.is_none() {
            exchange.add(&["PEXPIRE", &hosts, LIFETIME_MS]);
        }
        if !question.gone.is_empty() {
            let gone: Vec<String> = question.gone.iter().map(|host| name_of(*host)).collect();
            let words = ["HDEL", &hosts].into_iter().chain(gone.iter().map(String::as_str));
            exchange.add(&words.collect::<Vec<_>>());
        }
        exchange
    }

    /// Handles the reply to the exchange with this number: all replies of the fleet's store (Redis server
    /// with the counters of shared quotas) in a row, or the reason why there are none. Updates this host's
    /// part of each shared quota in `pools`. Ignores a reply that is no longer awaited.
    pub fn handle_answer(
        &mut self,
        number: u64,
        answer: Result<&[u8], &str>,
        now: Timestamp,
        pools: &mut Reconciliation,
    ) {
        // The exchange was given up, or belongs to earlier quotas.
        if self.awaited.take_if(|awaited| *awaited == number).is_none() {
            return;
        }
        match answer
            .map_err(|problem| (Ending::Lost, problem.to_owned()))
            .and_then(|bytes| self.read(bytes, now))
        {
            Ok(()) => {
                self.count(Ending::Answered);
                self.problem = None;
                self.added.clear();
                self.tell_connected();
            }
            Err((ending, problem)) => self.handle_loss(ending, &problem),
        }
        self.end_inheritance(pools);
        self.settle_state(now);
        self.apply(pools, now);
    }

    fn read(&mut self, bytes: &[u8], now: Timestamp) -> Result<(), (Ending, String)> {
        let refused = |problem: &str| (Ending::Refused, problem.to_owned());
        let replies = split(bytes).ok_or_else(|| refused("its reply is not valid"))?;
        let count = self.added.len();
        let ([said, listed], rest) = replies
            .get(self.repairs..)
            .and_then(<[_]>::split_first_chunk::<2>)
            .filter(|(_, rest)| rest.len() >= 2 * count)
            .ok_or_else(|| refused("its reply is not valid"))?;
        for reply in [said, listed] {
            if reply[0] == b'-' {
                let mut problem = shown(reply);
                if is_damage(reply) {
                    self.damaged.push(self.settings.hosts_key());
                    problem.push_str("; the list of hosts begins anew");
                }
                return Err(refused(&problem));
            }
        }
        let hosts = hosts_of(listed).ok_or_else(|| refused("its list of hosts is not valid"))?;
        if total_of(said).is_none() || !hosts.iter().any(|(host, _)| *host == self.settings.host) {
            return Err(refused("its list of hosts is not valid"));
        }
        let totals: Vec<Option<u64>> = rest[..count].iter().map(|reply| total_of(reply)).collect();
        let unread = rest[..count].iter().find(|reply| total_of(reply).is_none());
        // Without an end to these keys their quotas would never be shared again: each exchange prolongs their
        // lives.
        let damaged = self.added.iter().zip(&rest[..count]).filter(|(_, reply)| is_damage(reply));
        self.damaged.extend(damaged.map(|(place, _)| self.places[*place].key.clone()));
        match self.fleet.handle_answer(now, &hosts, &totals) {
            Outcome::Heard => {}
            Outcome::Late => return Err((Ending::Lost, "its reply came too late".to_owned())),
            Outcome::Crowded => return Err(refused("it lists more hosts than a fleet may have")),
        }
        // An unreadable counter leaves its quota as it is; the other quotas are split by what was read.
        let was_told = std::mem::replace(&mut self.unread_told, unread.is_some());
        if let Some(reply) = unread.filter(|_| !was_told) {
            let (store, consequence) =
                (&self.settings.store, if is_damage(reply) { "; it begins anew" } else { "" });
            self.lines
                .push(format!("fleet: a counter at {store} cannot be read: {}{consequence}", shown(reply)));
        }
        Ok(())
    }

    fn handle_loss(&mut self, ending: Ending, problem: &str) {
        self.count(ending);
        self.fleet.handle_lost();
        self.added.clear();
        self.awaited = None;
        let problem: String = problem.chars().take(PROBLEM_CHARS_MAX).collect();
        let consequence = match self.state {
            State::Starting => "a tenth of each quota is what this host gives out until it is",
            State::Connected => "the last shares hold for a minute",
            State::Away | State::Alone => "",
        };
        if !consequence.is_empty() && self.problem.as_ref() != Some(&problem) {
            let store = &self.settings.store;
            self.lines.push(format!("fleet: the store {store} cannot be asked: {problem}; {consequence}"));
        }
        self.problem = Some(problem);
    }

    fn tell_connected(&mut self) {
        let (store, hosts) = (&self.settings.store, self.fleet.hosts());
        match self.state {
            State::Starting => {
                let own = name_of(self.settings.host);
                self.lines.push(format!("fleet: {hosts} hosts share quotas at {store}; this one is {own}"));
            }
            State::Away | State::Alone => {
                self.lines.push(format!("fleet: the store {store} answers again: {hosts} hosts"));
            }
            State::Connected if hosts != self.hosts_told => {
                self.lines.push(format!("fleet: {hosts} hosts share quotas, there were {}", self.hosts_told));
            }
            State::Connected => {}
        }
        self.hosts_told = hosts;
    }

    fn settle_state(&mut self, now: Timestamp) {
        let next = match (self.fleet.heard_at(), &self.problem) {
            (None, _) => State::Starting,
            (Some(_), _) if self.fleet.is_out_of_patience(now) => State::Alone,
            (Some(_), Some(_)) => State::Away,
            (Some(_), None) => State::Connected,
        };
        if next == State::Alone && self.state != State::Alone {
            let (store, hosts) = (&self.settings.store, self.fleet.hosts());
            self.lines.push(format!(
                "fleet: the store {store} has been away for a minute: this host gives out no more than its part among {hosts}"
            ));
        }
        self.state = next;
    }

    /// Passes this host's parts of the shared quotas, as far as they have changed since the last call, to the
    /// pools (the parts of buckets that no core holds) from which cores draw grants.
    fn apply(&mut self, pools: &mut Reconciliation, now: Timestamp) {
        self.tell_terms(pools);
        for (at, place) in self.places.iter_mut().enumerate() {
            let part = self.fleet.part(at, now);
            if place.told != Some(part) {
                pools.set_part(place.bucket, place.capacity, part, now);
                place.told = Some(part);
            }
        }
    }

    /// Passes this host's first parts of the shared quotas to the pools (the parts of buckets that no core
    /// holds) from which cores draw grants, at the start of the process.
    pub fn start(&mut self, pools: &mut Reconciliation, now: Timestamp) {
        self.apply(pools, now);
    }

    /// Returns this host's parts of the shared quotas, for the process that takes over from this one: it gives
    /// out as much at first ([`Self::inherit`]).
    pub fn heritage(&self, now: Timestamp) -> Vec<InheritedPart> {
        let inherited = |(at, place): (usize, &Place)| InheritedPart {
            key: place.key.clone(),
            bucket: place.bucket,
            part: self.fleet.part(at, now),
        };
        self.places.iter().enumerate().map(inherited).collect()
    }

    /// Takes over the parts of shared quotas that the process before this one gave out, until the fleet's
    /// store (Redis server with the counters of shared quotas) has answered three times. Parts of tenants
    /// that have no quota here, and of more users than `users_max`, are ignored. Updates this host's parts in
    /// `pools`.
    pub fn inherit(&mut self, parts: &[InheritedPart], pools: &mut Reconciliation, now: Timestamp) {
        self.fleet.begin_inheritance(now);
        let places: BTreeMap<&str, usize> =
            self.places.iter().enumerate().map(|(at, place)| (place.key.as_str(), at)).collect();
        for InheritedPart { key, bucket, part } in parts {
            match places.get(key.as_str()) {
                Some(at) => self.fleet.inherit(*at, *part),
                // The user will be counted with the fleet once it shows demand here.
                None if bucket.is_user() && self.inherited.len() < self.settings.users_max => {
                    pools.inherit_part(*bucket, *part);
                    self.inherited.insert(*bucket, *part);
                }
                None => {}
            }
        }
        self.apply(pools, now);
    }

    /// Ends the inheritance of users' parts from the process before once they are no longer in force: this
    /// host gives out the part that is common to all users again.
    fn end_inheritance(&mut self, pools: &mut Reconciliation) {
        if self.fleet.inherits() || self.inherited.is_empty() {
            return;
        }
        let mut inherited = std::mem::take(&mut self.inherited);
        for place in &self.places {
            inherited.remove(&place.bucket);
        }
        inherited.keys().for_each(|bucket| pools.forget_part(*bucket));
    }

    /// Returns the next line about the fleet (weir processes that share quotas) to be logged; None if there
    /// is none.
    pub fn poll_line(&mut self) -> Option<String> {
        (!self.lines.is_empty()).then(|| self.lines.remove(0))
    }

    fn count(&mut self, ending: Ending) {
        self.counts[ending as usize] += 1;
    }

    /// Returns the number of exchanges with the fleet's store (Redis server with the counters of shared
    /// quotas) that ended in this way.
    pub fn counted(&self, ending: Ending) -> u64 {
        self.counts[ending as usize]
    }

    /// Returns the number of live hosts of the fleet (weir processes that share quotas), this one included.
    pub fn hosts(&self) -> u64 {
        self.fleet.hosts()
    }

    /// Returns the time since a reply of the fleet's store (Redis server with the counters of shared quotas)
    /// was last used; None before the first.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        self.fleet.heard_at().map(|heard_at| now.since(heard_at))
    }

    /// Returns the part of a tenant's quota (or, if `tenant` is None, of the quota of all tenants together)
    /// that this host may give out; None if there is no such quota.
    pub fn part(&self, tenant: Option<TenantId>, now: Timestamp) -> Option<Part> {
        let at = match tenant {
            Some(tenant) => self.place_of.get(usize::from(tenant.0)).copied().flatten()?,
            None => self.is_shared_by_everybody().then_some(0)?,
        };
        Some(self.fleet.part(at, now))
    }

    /// Makes the admin page `/fleet`; `query` is the query string, empty or `after=NAME` for the tenants
    /// whose names come after that one. Any other query gets status 400.
    pub fn page(&self, quotas: &Quotas, query: &str, now: Timestamp) -> Response {
        let Some(after) = query.strip_prefix("after=").or(query.is_empty().then_some("")) else {
            let problem = format!("{query} is not known here: after=NAME is expected");
            return Response::problem(Status::BadRequest, &problem, None);
        };
        let limited = quotas.tenants_after(after).filter(|(_, tenant)| tenant.limit.is_some());
        let mut tenants: Vec<_> = limited.take(TENANTS_SHOWN_MAX + 1).collect();
        let is_cut = tenants.len() > TENANTS_SHOWN_MAX;
        tenants.truncate(TENANTS_SHOWN_MAX);
        let next = tenants.last().filter(|_| is_cut).map(|(_, last)| format!("/fleet?after={}", last.name));
        let everybody = (self.is_shared_by_everybody() && after.is_empty())
            .then(|| self.shown("global", "global", 0, now));
        let tenants = tenants.into_iter().filter_map(|(id, tenant)| {
            let at = self.place_of.get(usize::from(id.0)).copied().flatten()?;
            Some(self.shown("tenant", &tenant.name, at, now))
        });
        let page = Page {
            state: self.state.name(),
            store: &self.settings.store,
            namespace: &self.settings.namespace,
            host: name_of(self.settings.host),
            hosts: self.hosts(),
            answered_ms_ago: self.age(now).map(|age| age.as_millis() as u64),
            exchanges: ExchangesShown {
                answered: self.counted(Ending::Answered),
                lost: self.counted(Ending::Lost),
                refused: self.counted(Ending::Refused),
            },
            problem: self.problem.as_deref(),
            scopes: everybody.into_iter().chain(tenants).collect(),
            users: self.users(),
            next,
        };
        Response::json(Status::Ok, &page)
    }

    fn shown<'a>(&self, scope: &'static str, name: &'a str, at: usize, now: Timestamp) -> ScopeShown<'a> {
        let (part, quota) = (self.fleet.part(at, now), self.places[at].capacity);
        ScopeShown {
            scope,
            name,
            ru_per_second: quota.ru_per_second(),
            share_ru_per_second: Amount(u128::from(part.of(quota.second()))),
            share: part.ratio(),
            demand_ru_per_second: Amount(u128::from(self.fleet.demand(at))),
        }
    }
}

/// The JSON of the page `/fleet`; names and their order are a contract.
#[derive(Serialize)]
struct Page<'a> {
    state: &'static str,
    store: &'a str,
    namespace: &'a str,
    host: String,
    hosts: u64,
    answered_ms_ago: Option<u64>,
    exchanges: ExchangesShown,
    problem: Option<&'a str>,
    scopes: Vec<ScopeShown<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<UserFigures>,
    next: Option<String>,
}

#[derive(Serialize)]
struct ExchangesShown {
    answered: u64,
    lost: u64,
    refused: u64,
}

#[derive(Serialize)]
struct ScopeShown<'a> {
    scope: &'static str,
    name: &'a str,
    ru_per_second: u64,
    #[serde(serialize_with = "as_shown")]
    share_ru_per_second: Amount,
    #[serde(serialize_with = "as_shown")]
    share: f64,
    #[serde(serialize_with = "as_shown")]
    demand_ru_per_second: Amount,
}

impl Exchange {
    fn add(&mut self, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        encode::request(&mut self.request, words.into_iter());
        self.replies += 1;
    }
}

impl FleetSettings {
    /// Returns the key in the fleet's store (Redis server with the counters of shared quotas) under which the
    /// demand for a quota is counted; `scope` names the quota, such as `tenant:acme`.
    fn key(&self, scope: &str) -> String {
        format!("{{weir:{}}}:d:{scope}", self.namespace)
    }

    /// Returns the key in the fleet's store (Redis server with the counters of shared quotas) under which the
    /// fleet's hosts are listed.
    fn hosts_key(&self) -> String {
        format!("{{weir:{}}}:hosts", self.namespace)
    }
}

fn places(settings: &FleetSettings, quotas: &Quotas) -> Vec<Place> {
    let key = |scope: &str| settings.key(scope);
    let everybody = quotas.global().map(|limit| Place {
        whose: Whose::Everybody,
        key: key("global"),
        bucket: BucketId::GLOBAL,
        capacity: capacity_of(limit),
        told: None,
    });
    let tenants = quotas.tenants().filter_map(|(id, tenant)| {
        Some(Place {
            whose: Whose::Tenant(id),
            key: key(&format!("tenant:{}", tenant.name)),
            bucket: bucket_of(settings.secret, &tenant.name, None),
            capacity: capacity_of(tenant.limit?),
            told: None,
        })
    });
    everybody.into_iter().chain(tenants).collect()
}

/// Returns the name of a host in the fleet's store (Redis server with the counters of shared quotas): sixteen
/// hexadecimal digits.
fn name_of(host: HostId) -> String {
    format!("{:016x}", host.0)
}

/// Splits bytes into the RESP replies that they contain. None if they are no RESP replies, or the last is
/// incomplete.
fn split(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let end = ReplyScanner::default().scan(bytes).ok()??.end;
        let (reply, rest) = bytes.split_at(end);
        replies.push(reply);
        bytes = rest;
    }
    Some(replies)
}

/// Parses the fleet store's reply with the list of hosts, each with the number of its latest exchange.
/// Entries of another form are skipped. None if the reply is no such list.
fn hosts_of(listed: &[u8]) -> Option<Vec<(HostId, u64)>> {
    let words: Vec<&[u8]> =
        reply::names_and_values(listed)?.map(|word| reply::text(word).unwrap_or(b"")).collect();
    let number = |word: &[u8], base| u64::from_str_radix(std::str::from_utf8(word).ok()?, base).ok();
    let hosts = words.chunks_exact(2).filter(|pair| pair[0].len() == 16);
    Some(hosts.filter_map(|pair| Some((HostId(number(pair[0], 16)?), number(pair[1], 10)?))).collect())
}

fn total_of(reply: &[u8]) -> Option<u64> {
    u64::try_from(reply::integer(reply)?).ok()
}

/// True if a reply of the fleet's store says that a key holds something that hosts of the fleet never put
/// there: a value of another type, a text, or a number that cannot be counted up. False for other errors,
/// which pass or are about the store, such as `LOADING` or `NOPERM`.
fn is_damage(reply: &[u8]) -> bool {
    const DAMAGES: [&[u8]; 3] = [
        b"-WRONGTYPE ",
        b"-ERR value is not an integer or out of range",
        b"-ERR increment or decrement would overflow",
    ];
    reply::integer(reply).is_some_and(i64::is_negative)
        || DAMAGES.iter().any(|damage| reply.starts_with(damage))
}

/// Returns the text of an unexpected reply of the fleet's store (Redis server with the counters of shared
/// quotas), for logs, cut at 200 characters.
fn shown(reply: &[u8]) -> String {
    let text = reply::text(reply).unwrap_or(b"no such reply was expected");
    String::from_utf8_lossy(text).chars().take(PROBLEM_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
