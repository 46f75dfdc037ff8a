//! Ejects backends that are unhealthy: watches their replies and response times, stops sending to them, tries
//! them, and takes them back. `policy/breaker.rs` decides, and the decision holds for all cores
//! (`health.rs`).

use std::time::Duration;

use super::bulkhead::Parked;
use super::link::{LinkState, Pending, whole};
use super::{Back, Replies, turn_away};
use crate::policy::breaker::median_of_others;
use crate::policy::breaker::{Cause, Comparison, Evidence, LOOKS_APART, Stage, Standing, Tally, Watch};
use crate::protocol::Scanned;
use crate::protocol::command::Class;
use crate::routing::cluster::NodeRefusal;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::message::Message;
use crate::shard::refusal::NotSent;
use crate::shard::request::{Envelope, Track};
use crate::shard::settings::{BULKHEADS, Mode};
use crate::values::limits::COMMAND_CLASSES;
use crate::values::time::Now;
use crate::values::{BackendId, ConnectionId, Tier, Timestamp};

/// The least number of backends for which response times are compared.
const COMPARED_FROM: usize = 3;
/// The least time between two log lines about ejections in shadow mode.
const SHADOWS_APART: Duration = Duration::from_secs(10);
/// The time for which costly requests are not used as a trial of an ejected backend. Afterwards they are, if
/// no others come.
const PATIENCE: Duration = Duration::from_secs(1);

/// The part of the time, one in this many, that a core may be late before it no longer judges backends slow:
/// of the time that a reply lay in its socket it only knows what passed since its next turn was planned.
const LATE_PART: u32 = 10;

/// Reasons for closing connections that say nothing about a backend's health, because another one does its
/// work by now.
const ELSEWHERE: [&str; 3] = ["node-gone", "node-failed", "store-moved"];

/// The knowledge that one core has of one backend's health.
#[derive(Debug, Default)]
pub struct Health {
    watch: Watch,
    tally: Tally,
    looked_at: Timestamp,
    /// The 95th percentiles of response times at the last check, by class of commands; only where backends
    /// are compared.
    recent: [Option<Duration>; COMMAND_CLASSES],
    /// True while some or all requests to the backend are refused.
    is_gated: bool,
    /// The time at which this core sent a trial request; `None` without one.
    trial: Option<Timestamp>,
    /// The number of requests that may pass while the backend returns, with fractions; at most 2.
    credit: f64,
    /// The last failure, in words.
    failure: &'static str,
    /// The number of times that this core ejected the backend.
    pub ejections: u64,
    shadowed_at: Option<Timestamp>,
}

impl Health {
    /// True if a good reply would change nothing: no failure was seen lately and no trial is in flight.
    fn is_quiet(&self) -> bool {
        self.watch.is_calm() && self.trial.is_none()
    }
}

impl Back {
    /// Counts a reply to a client's request and, unless it is good and nothing is suspected, checks what it
    /// says about the backend's health.
    #[inline]
    pub(super) fn note_health(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        pending: &Pending,
        (scanned, end): (&Scanned, &[u8]),
        now: Now,
    ) {
        let health = &mut self.health[usize::from(self.links[connection.0 as usize].backend.0)];
        health.tally.replies += 1;
        if scanned.kind == b'-' || !health.is_quiet() {
            self.hear_of_health(env, connection, pending, (scanned, end), now);
        }
    }

    #[cold]
    fn hear_of_health(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        pending: &Pending,
        (scanned, end): (&Scanned, &[u8]),
        now: Now,
    ) {
        if env.settings.overload.breaker == Mode::Off {
            return;
        }
        let link = &self.links[connection.0 as usize];
        // Replicas that answer reads are judged separately (`readers.rs`).
        if link.only_reads {
            return;
        }
        let backend = link.backend;
        let is_error = scanned.kind == b'-';
        // A script's error may be any text, so it says nothing about the backend.
        if is_error && pending.class == Class::Script {
            return;
        }
        let failure = if is_error {
            NodeRefusal::parse(&whole(&link.partial, end)).and_then(NodeRefusal::sickness)
        } else {
            None
        };
        let health = &mut self.health[usize::from(backend.0)];
        let is_trial = health.trial.is_some_and(|since| pending.sent_at >= since);
        let evidence = match failure {
            None => {
                health.watch.handle_answer();
                None
            }
            Some(failure) => {
                health.tally.failures += 1;
                health.failure = failure;
                health.watch.handle_failure()
            }
        };
        if is_trial {
            let took = now.monotonic.since(pending.sent_at).saturating_sub(self.late);
            self.end_trial(env, backend, failure.is_none().then_some(took), now);
        }
        if let Some(evidence) = evidence {
            self.set_aside(
                env,
                backend,
                Cause::Errors,
                &described(evidence, failure.unwrap_or_default()),
                now,
            );
        }
    }

    /// Handles a connection that was lost, or could not be opened, with requests on it: counts it as a
    /// failure of the backend.
    pub(super) fn hear_of_loss(
        &mut self,
        env: &mut Env,
        connection: ConnectionId,
        reason: &'static str,
        now: Now,
    ) {
        let link = &self.links[connection.0 as usize];
        let says_nothing = link.pending.is_empty() || ELSEWHERE.contains(&reason) || link.only_reads;
        if says_nothing || env.settings.overload.breaker == Mode::Off {
            return;
        }
        let backend = link.backend;
        let health = &mut self.health[usize::from(backend.0)];
        let is_trial = health.trial.is_some_and(|since| {
            link.pending.iter().any(|pending| pending.is_counted() && pending.sent_at >= since)
        });
        let (counts, evidence) = health.watch.handle_loss(now.monotonic);
        if counts {
            health.tally.replies += 1;
            health.tally.failures += 1;
            health.failure = reason;
        }
        if is_trial {
            self.end_trial(env, backend, None, now);
        }
        if let Some(evidence) = evidence {
            self.set_aside(env, backend, Cause::Losses, &described(evidence, reason), now);
        }
    }

    fn set_aside(&mut self, env: &mut Env, backend: BackendId, cause: Cause, why: &str, now: Now) {
        let place = usize::from(backend.0);
        let health = &mut self.health[place];
        if env.settings.overload.breaker == Mode::Shadow {
            let is_due = health.shadowed_at.is_none_or(|at| now.monotonic.since(at) >= SHADOWS_APART);
            health.watch.begin_anew();
            if is_due {
                (health.shadowed_at, health.ejections) = (Some(now.monotonic), health.ejections + 1);
                let name = env.backend_name(backend).to_owned();
                env.say(format!("backend {name} would be set aside, were it not for --shadow: {why}"));
            }
            return;
        }
        let spread = env.random_byte();
        let board = &env.settings.overload.health;
        let from = board.standing(place);
        if matches!(from.stage, Stage::Well | Stage::Returning) {
            let to = from.set_aside(cause, now.monotonic, spread);
            if board.change(place, from, to) {
                health.ejections += 1;
                let pause = to.at.since(now.monotonic).as_millis();
                let name = env.backend_name(backend).to_owned();
                env.say(format!("backend {name} is set aside, and tried again in {pause} ms: {why}"));
            }
        }
        self.gate(backend);
    }

    /// Starts to check each request to a backend by itself.
    fn gate(&mut self, backend: BackendId) {
        let health = &mut self.health[usize::from(backend.0)];
        health.watch.begin_anew();
        if std::mem::replace(&mut health.is_gated, true) {
            return;
        }
        health.credit = 0.0;
        for index in bulkheads_of(backend) {
            self.bulkheads[index].set_gated(true);
            if !self.bulkheads[index].is_empty() {
                self.list(index);
            }
        }
    }

    /// Lets all requests to a backend pass again, and opens its connections without a pause.
    fn ungate(&mut self, backend: BackendId) {
        let health = &mut self.health[usize::from(backend.0)];
        if !std::mem::replace(&mut health.is_gated, false) {
            return;
        }
        (health.trial, health.credit) = (None, 0.0);
        health.watch.begin_anew();
        bulkheads_of(backend).for_each(|index| self.bulkheads[index].set_gated(false));
        for link in self.links.iter_mut().filter(|link| link.backend == backend) {
            // The backend is known to be reachable.
            if matches!(link.state, LinkState::BackingOff { .. }) {
                link.state = LinkState::Closed;
            }
        }
    }

    /// Decides about a request to an ejected or returning backend. `None` if all requests pass again, else
    /// the result of sending or refusing it. While the backend is ejected, requests of class `Control` pass
    /// all the same.
    #[cold]
    pub(super) fn pass_gate(
        &mut self,
        env: &mut Env,
        envelope: &Envelope,
        (message, requests): (Message<'_>, usize),
        now: Now,
    ) -> Option<Result<(), NotSent>> {
        let (backend, place) = (envelope.route.backend, usize::from(envelope.route.backend.0));
        let standing = env.settings.overload.health.standing(place);
        let refused = NotSent::Ejected(standing.retry_after(now.monotonic));
        match standing.stage {
            Stage::Well => {
                self.ungate(backend);
                return None;
            }
            Stage::Returning => {
                let Some(part) = standing.part(now.monotonic) else {
                    env.settings.overload.health.change(place, standing, standing.back(now.monotonic));
                    self.ungate(backend);
                    return None;
                };
                let health = &mut self.health[place];
                health.credit = (health.credit + part).min(2.0);
                if envelope.tier != Tier::Critical {
                    if health.credit < 1.0 {
                        env.counters.add(Counter::RefusedEjected, 1);
                        return Some(Err(refused));
                    }
                    health.credit -= 1.0;
                }
                let bulkhead = &self.bulkheads[super::forward::bulkhead_for(envelope.route)];
                if !bulkhead.has_place() {
                    return Some(Err(NotSent::Window(bulkhead.retry_full())));
                }
                return Some(self.put_on_link(env, envelope, message, requests, now));
            }
            // A control command may end the script that keeps the store busy.
            Stage::Out | Stage::Trying if envelope.nature.class == Class::Control => {
                return Some(self.put_on_link(env, envelope, message, requests, now));
            }
            Stage::Out | Stage::Trying => {}
        }
        let is_cheap = envelope.route.track == Track::Usual
            && !matches!(envelope.nature.class, Class::Scan | Class::Script);
        let is_fit = is_cheap || now.monotonic.since(standing.at) > PATIENCE;
        let trial = standing.begin_trial(now.monotonic).filter(|_| is_fit);
        if let Some(trial) = trial
            && env.settings.overload.health.change(place, standing, trial)
        {
            self.health[place].trial = Some(now.monotonic);
            let sent = self.put_on_link(env, envelope, message, requests, now);
            if let Err(why) = sent {
                self.health[place].trial = None;
                let wait = if let NotSent::Down(wait) = why { wait } else { LOOKS_APART };
                let board = &env.settings.overload.health;
                let trying = board.standing(place);
                board.change(place, trying, trying.put_off(now.monotonic.after(wait)));
            }
            return Some(sent);
        }
        env.counters.add(Counter::RefusedEjected, 1);
        Some(Err(refused))
    }

    /// Ends a trial: the request was answered after `took`, or failed (`None`). Returns the backend to
    /// service, gradually or at once, or ejects it again.
    fn end_trial(&mut self, env: &mut Env, backend: BackendId, took: Option<Duration>, now: Now) {
        let place = usize::from(backend.0);
        self.health[place].trial = None;
        let spread = env.random_byte();
        let board = &env.settings.overload.health;
        let from = board.standing(place);
        if from.stage != Stage::Trying {
            return;
        }
        let to = match took {
            Some(took) => from.end_trial(took <= board.fair(place), now.monotonic, spread),
            None => from.set_aside(from.cause, now.monotonic, spread),
        };
        if board.change(place, from, to) && to.stage != Stage::Out {
            let took = took.unwrap_or_default();
            let name = env.backend_name(backend).to_owned();
            env.say(format!("backend {name} answers again, in {took:.1?}: {}", how_back(to)));
        }
        if to.stage == Stage::Well {
            self.ungate(backend);
        }
    }

    /// Refuses all requests that wait for an ejected backend.
    pub(super) fn clear_gated(&mut self, env: &mut Env, index: usize, replies: &mut impl Replies, now: Now) {
        let backend = BackendId((index / BULKHEADS) as u16);
        let standing = env.settings.overload.health.standing(usize::from(backend.0));
        while let Some((parked, is_eased)) = self.bulkheads[index].take_gated() {
            let Parked { envelope, message, .. } = parked;
            env.counters.add(Counter::RefusedEjected, 1);
            let why = NotSent::Ejected(standing.retry_after(now.monotonic));
            turn_away(env, replies, envelope.addressee(), why, now);
            message.release(&mut env.pool);
            if is_eased {
                replies.note(env, envelope.reply_to, crate::shard::note::Note::Eased);
            }
        }
    }

    /// Forgets a backend's health, because another server has its place.
    pub(super) fn forget_health(&mut self, env: &Env, backend: BackendId) {
        env.settings.overload.health.forget(usize::from(backend.0));
        self.ungate(backend);
        let health = &mut self.health[usize::from(backend.0)];
        health.watch = Watch::default();
    }

    /// Reports what this core has seen of backends, and checks what all cores have seen, at most once per
    /// `LOOKS_APART`. Ejects backends that fail or are slow.
    pub fn look_for_sickness(&mut self, env: &mut Env, now: Now) {
        if env.settings.overload.breaker == Mode::Off {
            return;
        }
        let is_compared = self.slots.is_none() && self.health.len() >= COMPARED_FROM;
        let mut looked_at = false;
        for place in 0..self.health.len() {
            let backend = BackendId(place as u16);
            let board = &env.settings.overload.health;
            let health = &mut self.health[place];
            board.tell(env.settings.id, place, health.tally);
            if now.monotonic.since(health.looked_at) < LOOKS_APART {
                continue;
            }
            looked_at = true;
            health.looked_at = now.monotonic;
            let mut standing = board.standing(place);
            if standing.stage == Stage::Returning && standing.part(now.monotonic).is_none() {
                let back = standing.back(now.monotonic);
                board.change(place, standing, back);
                standing = back;
            }
            let evidence = health.watch.look(board.tally(place), standing, now.monotonic);
            if is_compared {
                for class in Class::ALL {
                    let recent = self.ratios[place].recent_p95(class.index());
                    health.recent[class.index()] = recent;
                    if let Some(p95) = recent {
                        board.tell_time(env.settings.id, (place, class.index()), p95, now.monotonic);
                    }
                }
            }
            match standing.stage {
                Stage::Well => self.ungate(backend),
                // Another core has ejected the backend.
                _ if env.settings.overload.breaker == Mode::On && !self.health[place].is_gated => {
                    self.gate(backend);
                }
                _ => {}
            }
            if let Some(evidence) = evidence {
                let failure = self.health[place].failure;
                self.set_aside(env, backend, Cause::Errors, &described(evidence, failure), now);
            }
        }
        if is_compared && looked_at {
            let is_witness = std::mem::take(&mut self.late_lately) < LOOKS_APART / LATE_PART;
            self.compare(env, is_witness, now);
        }
    }

    /// Ejects backends that are slow compared with the others. A core that was late itself (`is_witness` is
    /// false) ejects none.
    fn compare(&mut self, env: &mut Env, is_witness: bool, now: Now) {
        let rates: Vec<(f64, Option<f64>)> = self.health.iter().map(|health| health.watch.rates()).collect();
        for place in 0..self.health.len() {
            let board = &env.settings.overload.health;
            let standing = board.standing(place);
            let others = |other: &usize| *other != place && board.standing(*other).stage == Stage::Well;
            let others: Vec<usize> = (0..self.health.len()).filter(others).collect();
            let mut other_rates: Vec<f64> = others.iter().map(|other| rates[*other].0).collect();
            let rate_others = median_of_others(&mut other_rates).unwrap_or_default();
            let (rate, rate_before) = rates[place];
            let classes = Class::ALL.into_iter().filter(|_| is_witness);
            let compared = classes.filter_map(|class| {
                let own = self.health[place].recent[class.index()].filter(|_| rate > 0.0)?;
                let told = |other: &usize| {
                    let p95 = board.time(env.settings.id, (*other, class.index()), now.monotonic)?;
                    Some(p95.as_secs_f64())
                };
                let mut times: Vec<f64> = others.iter().filter_map(told).collect();
                let others = Duration::try_from_secs_f64(median_of_others(&mut times)?).ok()?;
                Some((class, Comparison { own, others, rate, rate_before, rate_others }))
            });
            let slowest = compared.max_by(|(_, one), (_, other)| one.slowness().total_cmp(&other.slowness()));
            let is_slow = self.health[place].watch.handle_comparison(
                slowest.map(|(_, compared)| compared),
                standing,
                now.monotonic,
            );
            let Some((class, Comparison { own, others, .. })) = slowest.filter(|_| is_slow) else { continue };
            board.set_fair(place, Comparison::fair(others));
            let class = class.name();
            let why = format!("95 % of its {class} requests take up to {own:.1?}, elsewhere {others:.1?}");
            self.set_aside(env, BackendId(place as u16), Cause::Slowness, &why, now);
        }
    }
}

fn bulkheads_of(backend: BackendId) -> std::ops::Range<usize> {
    let first = usize::from(backend.0) * BULKHEADS;
    first..first + BULKHEADS
}

fn described(evidence: Evidence, failure: &str) -> String {
    match evidence {
        Evidence::Row(row) => format!("{row} failures in a row, the last one {failure}"),
        Evidence::Failing(failures, replies) => {
            format!("{failures} of {replies} replies were failures, the last one {failure}")
        }
    }
}

fn how_back(standing: Standing) -> &'static str {
    match (standing.stage, standing.cause) {
        (Stage::Well, Cause::Load) => "it had been load",
        (Stage::Well, _) => "all requests pass",
        _ => "requests pass again, more and more of them",
    }
}
