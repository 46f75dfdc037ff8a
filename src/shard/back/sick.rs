//! Stores that are sick: found out by what their replies are and how long they take, left alone, tried, and taken back. What is to be
//! done is decided in `policy/breaker.rs`, and is the same on all cores (`health.rs`).

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

/// Others are compared with from so many stores on.
const COMPARED_FROM: usize = 3;
/// What only decides in shadow says so no more often than this.
const SHADOWS_APART: Duration = Duration::from_secs(10);
/// What costs much is no trial, unless nothing else has come for so long.
const PATIENCE: Duration = Duration::from_secs(1);

/// A core that was this part of the time late, since it looked last, is no witness of how slow stores are: of the time that a reply lay
/// in its socket it knows only what passed since its next turn was planned.
const LATE_PART: u32 = 10;

/// Connections are given up for these reasons because others do a store's work now: they say nothing of its health.
const ELSEWHERE: [&str; 3] = ["node-gone", "node-failed", "store-moved"];

/// What this core knows of one store's health.
#[derive(Debug, Default)]
pub struct Health {
    watch: Watch,
    tally: Tally,
    looked_at: Timestamp,
    /// The 95th percentiles of what its replies took then, by class of commands, where they are compared.
    recent: [Option<Duration>; COMMAND_CLASSES],
    /// Some of its requests are refused, or all.
    is_gated: bool,
    /// The request that this core let through was sent then.
    trial: Option<Timestamp>,
    /// How many more may pass while it returns, in parts of one.
    credit: f64,
    /// What failed last.
    failure: &'static str,
    /// How often this core set it aside.
    pub ejections: u64,
    shadowed_at: Option<Timestamp>,
}

impl Health {
    /// Is there nothing that a reply would change?
    fn is_quiet(&self) -> bool {
        self.watch.is_calm() && self.trial.is_none()
    }
}

impl Back {
    /// A reply to a client's request: what does it say of its store?
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
        // What stands in for others is judged by itself (`readers.rs`).
        if link.only_reads {
            return;
        }
        let backend = link.backend;
        let is_error = scanned.kind == b'-';
        // A script says whatever its client likes: that speaks neither for the store nor against it.
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

    /// A connection was lost, or not made, with these on it.
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

    /// Its requests are looked at one by one.
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

    /// All of them pass.
    fn ungate(&mut self, backend: BackendId) {
        let health = &mut self.health[usize::from(backend.0)];
        if !std::mem::replace(&mut health.is_gated, false) {
            return;
        }
        (health.trial, health.credit) = (None, 0.0);
        health.watch.begin_anew();
        bulkheads_of(backend).for_each(|index| self.bulkheads[index].set_gated(false));
        for link in self.links.iter_mut().filter(|link| link.backend == backend) {
            // It is known to be there.
            if matches!(link.state, LinkState::BackingOff { .. }) {
                link.state = LinkState::Closed;
            }
        }
    }

    /// May a request pass to a store that is looked at so? Nothing if all may; or it is sent, or refused.
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
            // What is to end a script that keeps the store busy, say.
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

    /// The request that was let through was answered after so long, or failed.
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

    /// What waited for a store that was set aside is told so.
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

    /// Another store has the place of this one.
    pub(super) fn forget_health(&mut self, env: &Env, backend: BackendId) {
        env.settings.overload.health.forget(usize::from(backend.0));
        self.ungate(backend);
        let health = &mut self.health[usize::from(backend.0)];
        health.watch = Watch::default();
    }

    /// Tells what this core has seen of stores, and looks at what all have, where there is traffic.
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
                // Another core has set it aside.
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

    /// Sets stores aside that are slow, as stores go. Nothing is held against them by a core that is no witness.
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
