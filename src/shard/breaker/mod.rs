//! Breaker: the health of each backend as one core knows it, and the ejection of backends that are unhealthy. This
//! module is told of replies, losses and response times, and says whether requests pass; it has no access to
//! connections or windows. `policy/breaker.rs` decides, and the decision holds for all cores (`health.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use super::counters::Counter;
use super::env::Env;
use super::pending::{InFlight, Pending};
use super::refusal::NotSent;
use super::request::{Envelope, Track};
use super::settings::Mode;
use crate::policy::breaker::{
    Cause, Comparison, Evidence, LOOKS_APART, Sorted, Stage, Standing, Tally, Watch,
};
use crate::protocol::command::Class;
use crate::routing::cluster::NodeRefusal;
use crate::values::limits::COMMAND_CLASSES;
use crate::values::time::Now;
use crate::values::{BackendId, Tier, Timestamp};

/// The least number of backends that are compared with each other by their response times, to find slow ones.
const COMPARED_FROM: usize = 3;
/// The least time between two log lines about one backend in shadow mode, in which an ejection (taking the
/// backend out of use) is only logged.
const SHADOWS_APART: Duration = Duration::from_secs(10);
/// The time for which only a cheap request may be the trial of an ejected backend (one taken out of use),
/// counted from when a trial is due. After it, any request may be.
const PATIENCE: Duration = Duration::from_secs(1);

/// A core whose turns (passes of its loop) began late, all together by a tenth (one in this many parts) of the time
/// between two comparisons or more, does not judge backends slow, because replies may have waited in its sockets.
const LATE_PART: u32 = 10;

/// Reasons for closing connections that say nothing about a backend's health, because another backend does
/// its work by now.
const ELSEWHERE: [&str; 3] = ["node-gone", "node-failed", "store-moved"];

/// The health of all backends as one core knows it, and which of them it sends requests to without a check.
#[derive(Debug)]
pub struct Breaker {
    health: Vec<Health>,
    /// Changes of gates (whether each request to a backend is checked), in their order, until
    /// [`Breaker::poll_gate`] returns them.
    gates: VecDeque<(BackendId, Gate)>,
    /// The time by which turns (passes of the loop) of this core began later than planned, summed up since the
    /// backends' response times were last compared. A core that was late for too long judges no backend slow.
    late: Duration,
}

/// Whether a core asks the breaker about each request to a backend before it sends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Requests to the backend are not checked by the breaker: all are sent.
    Open,
    /// The backend is ejected (taken out of use) or returning: [`Breaker::check`] decides about each request
    /// to it.
    Closed,
}

/// The decision about a request to a backend that is ejected (taken out of use) or returning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The backend is healthy again: the request takes the usual way, through window and queue.
    AsUsual,
    /// The request is sent if the backend's window (limit on requests in flight) has room, else refused.
    WithRoom,
    /// The request is sent, even if the backend's window (limit on requests in flight) is full.
    Always,
    /// The request is sent as a trial of the ejected backend (one taken out of use). If it cannot be sent, the
    /// caller calls [`Breaker::handle_trial_unsent`].
    Trial,
    /// The request is not sent, for this reason; its client gets an error.
    Refused(NotSent),
}

/// One core's knowledge about one backend's health, with the trial request (which finds out whether an
/// ejected backend is healthy again) that it has in flight there.
#[derive(Debug, Default)]
struct Health {
    watch: Watch,
    tally: Tally,
    looked_at: Timestamp,
    /// The 95th percentiles of the backend's response times at the last check, by class of commands; None where there
    /// were too few replies, or where backends are not compared.
    recent: [Option<Duration>; COMMAND_CLASSES],
    /// True while the breaker checks each request to the backend, because the backend is ejected (taken out
    /// of use) or returning.
    is_gated: bool,
    /// The time at which this core sent the trial request (which finds out whether the ejected backend is
    /// healthy again) that is in flight; None without one.
    trial: Option<Timestamp>,
    /// The number of requests that may pass now while the backend returns to use, with fractions; at most 2. Each
    /// request adds the part of the requests that is let through; critical ones pass without it.
    credit: f64,
    /// The text of the backend's last failure, for logs.
    failure: &'static str,
    /// The number of times that this core ejected the backend (took it out of use); in shadow mode, that it
    /// logged that it would have.
    ejections: u64,
    shadowed_at: Option<Timestamp>,
}

impl Health {
    /// True if a reply that is no failure would change nothing: the backend has not failed since the last such reply,
    /// and no trial request (which finds out whether an ejected backend is healthy again) is in flight.
    fn is_quiet(&self) -> bool {
        self.watch.is_calm() && self.trial.is_none()
    }

    /// Returns the time at which the trial request of this core (which finds out whether an ejected backend is healthy
    /// again) was sent, if it is among the unanswered requests of a connection (`pending`); else None. A request sent
    /// after it counts as the trial, too.
    fn trial_among(&self, pending: &VecDeque<Pending>) -> Option<Timestamp> {
        let since = self.trial?;
        let mut sent = pending.iter().filter_map(Pending::request).map(|request| request.sent_at);
        sent.find(|sent_at| *sent_at >= since)
    }
}

impl Breaker {
    /// Creates the breaker of a core that has seen nothing of its backends yet.
    pub fn new(backends: u16) -> Self {
        Self {
            health: (0..backends).map(|_| Health::default()).collect(),
            gates: VecDeque::new(),
            late: Duration::ZERO,
        }
    }

    /// Takes the next change of a gate (whether each request to a backend is checked); None if there is none.
    /// The caller applies it to the backend's bulkheads (windows and queues).
    pub fn poll_gate(&mut self) -> Option<(BackendId, Gate)> {
        self.gates.pop_front()
    }

    /// Returns the number of times that this core ejected the backend (took it out of use); in shadow mode,
    /// that it logged that it would have.
    pub fn ejections(&self, backend: BackendId) -> u64 {
        self.health[usize::from(backend.0)].ejections
    }

    /// Adds the time by which a turn of this core (pass of its loop) began later than planned. A core that was late for
    /// too long does not judge backends slow.
    pub fn handle_late(&mut self, late: Duration) {
        self.late += late;
    }

    /// Counts a backend's reply to a client's request. True if [`Breaker::record_reply`] must be called with it: it is
    /// an error (`is_error`), or the backend has failed since its last good reply, or its reply to a trial request is
    /// awaited.
    #[inline]
    pub fn count_reply(&mut self, backend: BackendId, is_error: bool) -> bool {
        let health = &mut self.health[usize::from(backend.0)];
        health.tally.replies += 1;
        is_error || !health.is_quiet()
    }

    /// Records a backend's reply to `request`; `error` is its text if it is an error. Only errors which say
    /// that the backend is unavailable (such as LOADING) are failures, and not those of scripts. Ends the
    /// trial (whether an ejected backend is healthy again) if the reply answers the trial request, and ejects
    /// the backend after too many failures. `late` is the delay of this core itself. Does nothing if the
    /// breaker is off.
    #[cold]
    pub fn record_reply(
        &mut self,
        env: &mut Env,
        (backend, request): (BackendId, &InFlight),
        error: Option<&[u8]>,
        late: Duration,
        now: Now,
    ) {
        if env.settings.overload.breaker == Mode::Off {
            return;
        }
        let failure = error.and_then(NodeRefusal::parse).and_then(NodeRefusal::unavailability);
        let is_error_of_script = error.is_some() && request.envelope.nature.class == Class::Script;
        // A script's error may be any text, so one that says that the backend is unavailable proves nothing.
        if is_error_of_script && failure.is_some() {
            return;
        }
        let health = &mut self.health[usize::from(backend.0)];
        let is_trial = health.trial.is_some_and(|since| request.sent_at >= since);
        let evidence = match failure {
            // The error ends a trial like any answer, but no row of failures.
            None if is_error_of_script => None,
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
            let took = now.monotonic.since(request.sent_at).saturating_sub(late);
            self.end_trial(env, backend, failure.is_none().then_some(took), now);
        }
        if let Some(evidence) = evidence {
            let why = described(evidence, failure.unwrap_or_default());
            self.eject(env, backend, Cause::Errors, &why, now);
        }
    }

    /// Records the loss of a connection, or a failed attempt to open it, as a failure of the backend if requests were
    /// unanswered (`pending`) on it, and no other loss has counted within 100 ms. A trial request among them has
    /// failed. Ejects the backend after too many failures. `reason` is the word for logs; reasons which say that
    /// another backend does the work (`ELSEWHERE`) do not count. Does nothing if the breaker is off.
    pub fn record_loss(
        &mut self,
        env: &mut Env,
        backend: BackendId,
        pending: &VecDeque<Pending>,
        reason: &'static str,
        now: Now,
    ) {
        let says_nothing = pending.is_empty() || ELSEWHERE.contains(&reason);
        if says_nothing || env.settings.overload.breaker == Mode::Off {
            return;
        }
        let health = &mut self.health[usize::from(backend.0)];
        let is_trial = health.trial_among(pending).is_some();
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
            self.eject(env, backend, Cause::Losses, &described(evidence, reason), now);
        }
    }

    /// Records that a backend has refused the database, the login or the RESP version of a connection on which
    /// requests were unanswered (`pending`). A trial among them ends, because the backend has answered; nothing
    /// is held against it.
    pub fn record_refused_connection(
        &mut self,
        env: &mut Env,
        backend: BackendId,
        pending: &VecDeque<Pending>,
        now: Now,
    ) {
        if let Some(sent_at) = self.health[usize::from(backend.0)].trial_among(pending) {
            self.end_trial(env, backend, Some(now.monotonic.since(sent_at)), now);
        }
    }

    /// Ejects a backend for a `cause`, unless another core has done so; the text `why` goes to the log. In
    /// shadow mode, only logs that it would be ejected (taken out of use).
    fn eject(&mut self, env: &mut Env, backend: BackendId, cause: Cause, why: &str, now: Now) {
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
        self.close_gate(backend);
    }

    fn close_gate(&mut self, backend: BackendId) {
        let health = &mut self.health[usize::from(backend.0)];
        health.watch.begin_anew();
        if std::mem::replace(&mut health.is_gated, true) {
            return;
        }
        health.credit = 0.0;
        self.gates.push_back((backend, Gate::Closed));
    }

    fn open_gate(&mut self, backend: BackendId) {
        let health = &mut self.health[usize::from(backend.0)];
        if !std::mem::replace(&mut health.is_gated, false) {
            return;
        }
        (health.trial, health.credit) = (None, 0.0);
        health.watch.begin_anew();
        self.gates.push_back((backend, Gate::Open));
    }

    /// Decides about a request to an ejected (taken out of use) or returning backend. While it is ejected,
    /// requests of class `Control` pass, one request at a time is the trial once that is due, and all others
    /// are refused. While it returns, critical requests pass, and a growing part of the others.
    #[cold]
    pub fn check(&mut self, env: &mut Env, envelope: &Envelope, now: Now) -> Pass {
        let (backend, place) = (envelope.route.backend, usize::from(envelope.route.backend.0));
        let standing = env.settings.overload.health.standing(place);
        let refused = Pass::Refused(NotSent::Ejected(standing.retry_after(now.monotonic)));
        match standing.stage {
            Stage::Well => {
                self.open_gate(backend);
                return Pass::AsUsual;
            }
            Stage::Returning => {
                let Some(part) = standing.part(now.monotonic) else {
                    env.settings.overload.health.change(place, standing, standing.back(now.monotonic));
                    self.open_gate(backend);
                    return Pass::AsUsual;
                };
                let health = &mut self.health[place];
                health.credit = (health.credit + part).min(2.0);
                if envelope.tier != Tier::Critical {
                    if health.credit < 1.0 {
                        env.counters.add(Counter::RefusedEjected, 1);
                        return refused;
                    }
                    health.credit -= 1.0;
                }
                return Pass::WithRoom;
            }
            // A control command may end the script that keeps the store busy.
            Stage::Out | Stage::Trying if envelope.nature.class == Class::Control => return Pass::Always,
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
            return Pass::Trial;
        }
        env.counters.add(Counter::RefusedEjected, 1);
        refused
    }

    /// Puts off the trial of an ejected backend (one taken out of use), because the trial request could not be sent:
    /// until the pause of its connection is over, if `why` names one, else by 250 ms.
    pub fn handle_trial_unsent(&mut self, env: &Env, backend: BackendId, why: NotSent, now: Now) {
        let place = usize::from(backend.0);
        self.health[place].trial = None;
        let wait = if let NotSent::Down(wait) = why { wait } else { LOOKS_APART };
        let board = &env.settings.overload.health;
        let trying = board.standing(place);
        // A late reply to another core may have ended the trial.
        if trying.stage == Stage::Trying {
            board.change(place, trying, trying.put_off(now.monotonic.after(wait)));
        }
    }

    /// Ends the trial of an ejected backend (one taken out of use): the trial request was answered after `took`, or
    /// failed (None). Puts the backend in use again, gradually or at once. Ejects it again if the trial failed or,
    /// after an ejection for slowness, took too long. Does nothing if another core has ended the trial.
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
            env.say(format!("backend {name} answers again, in {took:.1?}: {}", return_described(to)));
        }
        if to.stage == Stage::Well {
            self.open_gate(backend);
        }
    }

    /// Ends the ejection of a backend (it is in use again) and forgets its failures, because another server has its
    /// number now, or its server has another role.
    pub fn forget(&mut self, env: &Env, backend: BackendId) {
        env.settings.overload.health.forget(usize::from(backend.0));
        self.open_gate(backend);
        self.health[usize::from(backend.0)].watch = Watch::default();
    }

    /// Reports to other cores what this core has seen of backends, and checks, at most every 250 ms for each
    /// backend, what all cores have seen. Ejects (takes out of use) backends that fail or, if `are_alike`
    /// says that all have similar work, are slow. `recent_p95` gives the 95th percentile of a backend's
    /// recent response times in a class of commands.
    pub fn check_all(
        &mut self,
        env: &mut Env,
        are_alike: bool,
        recent_p95: impl Fn(BackendId, Class) -> Option<Duration>,
        now: Now,
    ) {
        if env.settings.overload.breaker == Mode::Off {
            return;
        }
        let is_compared = are_alike && self.health.len() >= COMPARED_FROM;
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
                    let recent = recent_p95(backend, class);
                    health.recent[class.index()] = recent;
                    if let Some(p95) = recent {
                        board.tell_time(env.settings.id, (place, class.index()), p95, now.monotonic);
                    }
                }
            }
            match standing.stage {
                Stage::Well => self.open_gate(backend),
                // Another core has ejected the backend, so this core stops sending to it too.
                _ if env.settings.overload.breaker == Mode::On && !self.health[place].is_gated => {
                    self.close_gate(backend);
                }
                _ => {}
            }
            if let Some(evidence) = evidence {
                let failure = self.health[place].failure;
                self.eject(env, backend, Cause::Errors, &described(evidence, failure), now);
            }
        }
        if is_compared && looked_at {
            let is_witness = std::mem::take(&mut self.late) < LOOKS_APART / LATE_PART;
            self.compare(env, is_witness, now);
        }
    }

    /// Ejects backends that are slow compared with the others. If `is_witness` is false, this core was late
    /// itself, and compares no response times.
    fn compare(&mut self, env: &mut Env, is_witness: bool, now: Now) {
        let rates: Vec<(f64, Option<f64>)> = self.health.iter().map(|health| health.watch.rates()).collect();
        let mut figures = Figures::new(env, &rates);
        for (place, (rate, rate_before)) in rates.iter().copied().enumerate() {
            let board = &env.settings.overload.health;
            let standing = board.standing(place);
            let rate_others = figures.rates.median_of_others(place, Some(rate)).unwrap_or_default();
            let classes = Class::ALL.into_iter().filter(|_| is_witness);
            let compared = classes.filter_map(|class| {
                let own = self.health[place].recent[class.index()].filter(|_| rate > 0.0)?;
                let others = figures.time_of_others(env, place, class, now.monotonic)?;
                let others = Duration::try_from_secs_f64(others).ok()?;
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
            self.eject(env, BackendId(place as u16), Cause::Slowness, &why, now);
            if env.settings.overload.health.standing(place).stage != Stage::Well {
                figures.remove(place, rate);
            }
        }
    }
}

/// Figures of the stores in full service (neither ejected nor returning), sorted once for all comparisons of
/// one check.
struct Figures {
    /// Indices of the stores in full service, in ascending order.
    stores: Vec<usize>,
    /// The stores' replies per second.
    rates: Sorted,
    /// The 95th percentiles of the stores' response times by class of commands, in seconds; None for a class that was
    /// not compared yet.
    times: [Option<Times>; COMMAND_CLASSES],
}

/// The 95th percentiles of the stores' response times in one class of commands, in seconds.
struct Times {
    /// The times by the store's index; None for a store that is not in full service, or whose time is unknown.
    by_store: Vec<Option<f64>>,
    sorted: Sorted,
}

impl Times {
    fn new(env: &Env, (stores, count): (&[usize], usize), class: Class, now: Timestamp) -> Self {
        let mut by_store = vec![None; count];
        for store in stores {
            let p95 = env.settings.overload.health.time(env.settings.id, (*store, class.index()), now);
            by_store[*store] = p95.map(|p95| p95.as_secs_f64());
        }
        let told = by_store.iter().enumerate().filter_map(|(store, time)| Some(((*time)?, store)));
        let sorted = Sorted::new(told);
        Self { by_store, sorted }
    }
}

impl Figures {
    /// Sorts the stores in full service by their reply rates. `rates` has for each store its replies per
    /// second to all cores: in about the last second, which alone counts here, and some seconds ago (None if
    /// unknown).
    fn new(env: &Env, rates: &[(f64, Option<f64>)]) -> Self {
        let board = &env.settings.overload.health;
        let is_well = |store: &usize| board.standing(*store).stage == Stage::Well;
        let stores: Vec<usize> = (0..rates.len()).filter(is_well).collect();
        let sorted = Sorted::new(stores.iter().map(|store| (rates[*store].0, *store)));
        Self { stores, rates: sorted, times: std::array::from_fn(|_| None) }
    }

    /// Returns the median of the 95th percentiles of all stores but one (`place`) in a class of commands, in seconds;
    /// None with fewer than two others.
    fn time_of_others(&mut self, env: &Env, place: usize, class: Class, now: Timestamp) -> Option<f64> {
        let count = usize::from(env.settings.topology.backends());
        let stores = (self.stores.as_slice(), count);
        let times = self.times[class.index()].get_or_insert_with(|| Times::new(env, stores, class, now));
        times.sorted.median_of_others(place, times.by_store[place])
    }

    /// Removes a store that is ejected (taken out of use) now from what others are compared with. `rate` is the number
    /// of its replies per second.
    fn remove(&mut self, place: usize, rate: f64) {
        self.stores.retain(|store| *store != place);
        self.rates.remove(place, rate);
        for times in self.times.iter_mut().flatten() {
            if let Some(time) = times.by_store[place].take() {
                times.sorted.remove(place, time);
            }
        }
    }
}

fn described(evidence: Evidence, failure: &str) -> String {
    match evidence {
        Evidence::Row(row) => format!("{row} failures in a row, the last one {failure}"),
        Evidence::Failing(failures, replies) => {
            format!("{failures} of {replies} replies were failures, the last one {failure}")
        }
    }
}

fn return_described(standing: Standing) -> &'static str {
    match (standing.stage, standing.cause) {
        (Stage::Well, Cause::Load) => "it had been load",
        (Stage::Well, _) => "all requests pass",
        _ => "requests pass again, more and more of them",
    }
}
