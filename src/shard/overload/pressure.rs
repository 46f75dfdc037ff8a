//! Replies as samples: they set the size of the window, and each backend's response times are compared with
//! its usual ones. The shedding level that follows is published to other cores.

use std::time::Duration;

use super::{Overload, bulkhead_for};
use crate::policy::latency_ratio::{Change, Company, Seen};
use crate::policy::window::{self, Board as _, ERRORS, Sample};
use crate::policy::yielding::Cheap;
use crate::protocol::command::{Class, Effect};
use crate::shard::board::Section;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::pending::{InFlight, Odd};
use crate::shard::request::Track;
use crate::shard::settings::{BULKHEADS, Mode};
use crate::values::limits::COMMAND_CLASSES;
use crate::values::time::Now;
use crate::values::{BackendId, Timestamp};

const _: () =
    assert!(ERRORS >= 2 * COMMAND_CLASSES, "reads and writes of each class are a kind, and errors are one");

/// The time for which the latency of the last replies to cheap requests is used to decide how many expensive
/// requests may be in flight to the same backend.
const CHEAP_LAST: Duration = Duration::from_secs(1);

impl Overload {
    /// Counts an answered request (`request` is its record) as no longer in flight and, if its reply is
    /// selected as a sample, adjusts the window's size. `late` is the delay of this core itself, for which
    /// the backend is not blamed. `index` is that of the bulkhead (window and queue) that the request
    /// passed, and `kind` the first byte of the reply.
    #[expect(clippy::inline_always, reason = "every reply: a call would be half of it")]
    #[inline(always)]
    pub fn handle_answered(
        &mut self,
        env: &Env,
        (index, request, kind): (usize, &InFlight, u8),
        late: Duration,
        now: Now,
    ) {
        let bulkhead = &mut self.bulkheads[index];
        let in_flight = bulkhead.handle_over(request.envelope.tenant());
        if bulkhead.should_sample(request.sent_at, now.monotonic) {
            self.record_sample(env, (index, kind), (request, in_flight), late, now);
        }
    }

    /// Adjusts the window (limit on requests in flight) by a sampled reply, and records its latency unless it is an
    /// error (of which `kind` is `-`): a store that refuses is quick, so its errors would make all other replies look
    /// late. A script's error comes whenever the script raises it, so it says nothing about the window either. Does
    /// nothing if the backend is a weir that refused the request.
    #[cold]
    fn record_sample(
        &mut self,
        env: &Env,
        (index, kind): (usize, u8),
        (request, in_flight): (&InFlight, usize),
        late: Duration,
        now: Now,
    ) {
        if request.odd == Odd::Refused {
            return;
        }
        let nature = request.envelope.nature;
        let (class, effect) = (nature.class, nature.effect());
        let is_error = kind == b'-';
        let of_class = class.index() * 2 + usize::from(effect == Effect::Write);
        let sample = Sample {
            sent_at: request.sent_at,
            late,
            in_flight,
            depth: u32::from(request.depth),
            kind: if is_error { ERRORS } else { of_class },
            is_costly: request.odd != Odd::No || is_error && class == Class::Script,
            left: request.useful(),
        };
        let took = now.monotonic.since(request.sent_at).saturating_sub(late);
        if took > Duration::ZERO && !is_error {
            self.ratios[index / BULKHEADS].record(class.index(), took.as_micros() as u64);
        }
        let section = env.settings.overload.board.of(env.settings.id, index);
        self.bulkheads[index].handle_reply(&sample, now.monotonic, section);
    }

    /// Compares, for each backend, the median latency of cheap requests with the longest at which the backend does not
    /// count as crowded: while it is longer, fewer expensive requests may be in flight. Called with the regular checks,
    /// about every 100 ms. Does nothing unless windows are on and the setting `heavy_yields` is.
    pub fn yield_to_cheap(&mut self, env: &mut Env, now: Now) {
        let settings = &env.settings.overload;
        if !settings.heavy_yields || settings.window != Mode::On {
            return;
        }
        let now = now.monotonic;
        for backend in env.settings.topology.all_backends() {
            let [usual, heavy] = [Track::Usual, Track::Heavy].map(|track| bulkhead_for(backend, track));
            let cheap = latency_of_cheap(settings.board.of(env.settings.id, usual), now);
            let all_heavy = settings.board.of(env.settings.id, heavy);
            let (in_flight, base) = (all_heavy.in_flight(), least_base(all_heavy));
            let expensive = &mut self.bulkheads[heavy];
            if expensive.yield_to(cheap, (in_flight, base), now) {
                env.counters.add(Counter::HeavyYielded, 1);
            }
            let are_in_the_way = in_flight > 0 && expensive.may_be_in_the_way(now);
            let may_yield = expensive.may_yield(now);
            self.bulkheads[usual].handle_expensive(are_in_the_way, may_yield);
        }
    }

    /// Records the time that a backend took for a reply, in nanoseconds. Returns by how many microseconds that
    /// is more than usual for this backend. Returns 0 if the backend is another weir that refused the request,
    /// because that says nothing about the store behind it. Errors, whose first byte `kind` is `-`, do not change
    /// what is usual.
    #[expect(clippy::inline_always, reason = "every reply: a call would be a third of it")]
    #[inline(always)]
    pub fn record_time(
        &mut self,
        backend: BackendId,
        (request, kind): (&InFlight, u8),
        took_nanos: u64,
    ) -> u64 {
        if request.odd == Odd::Refused {
            return 0;
        }
        self.service_times.record(took_nanos);
        let baseline = &mut self.baselines[usize::from(backend.0)];
        let (class, took_micros) = (request.envelope.nature.class.index(), took_nanos / 1_000);
        if kind == b'-' {
            baseline.excess(class, took_micros)
        } else {
            baseline.handle_reply(class, took_micros)
        }
    }

    /// Compares recent response times with usual ones, for each backend, and publishes to other cores the shedding
    /// level, 0 to 3, that follows (how much requests of less important tiers cost, or whether they are refused). Logs
    /// changes of the level. Does nothing if shedding is off.
    pub fn compare_latencies(&mut self, env: &mut Env, now: Now) {
        if env.settings.overload.shed == Mode::Off {
            return;
        }
        for index in 0..self.ratios.len() {
            let own = &mut self.bulkheads[index * BULKHEADS..(index + 1) * BULKHEADS];
            let mut company = Company::default();
            for bulkhead in own {
                company.waits |= bulkhead.take_waits();
                company.in_flight += bulkhead.figures().in_flight;
            }
            let ratio = &mut self.ratios[index];
            let change = ratio.handle_tick(now.monotonic, company);
            let told = ratio.told(now.monotonic);
            env.settings.overload.board.of(env.settings.id, index * BULKHEADS).tell_level(told);
            if let Some(change) = change {
                env.counters.add(Counter::LevelChanges, 1);
                let backend = env.backend_name(BackendId(index as u16));
                let line = described(usize::from(env.settings.id.0), backend, &change);
                env.say(line);
            }
        }
    }
}

/// Returns the log line for a change of a backend's shedding level (which requests are refused or cost more)
/// on the core `shard`, with its cause.
fn described(shard: usize, backend: &str, change: &Change) -> String {
    let Change { from, to, seen } = *change;
    let why = seen.map_or_else(
        || "too few replies to tell".to_owned(),
        |Seen { ratio, class, short_p95, long_p95 }| {
            let class = Class::ALL.get(class).map_or("", |class| class.name());
            format!("latency ratio {ratio:.2}: p95 of {class} requests {short_p95:?}, usually {long_p95:?}")
        },
    );
    format!(
        "shard {shard}: backend {backend}: level {} ({from:?}) -> {} ({to:?}), {why}",
        from as u8, to as u8
    )
}

/// Returns the least base of any core (latency of a reply when little waits at the backend), by the cores' records
/// about their windows (limits on requests in flight); None while no core knows it.
fn least_base(records: Section<'_>) -> Option<Duration> {
    let bases = records.records().map(|record| record.base).filter(|base| *base > 0.0);
    Duration::try_from_secs_f64(bases.reduce(f64::min)?).ok()
}

/// Returns the latency of cheap requests to a backend, as all cores' records about their windows (limits on requests in
/// flight) show it; None if no core has written one within a second.
fn latency_of_cheap(records: Section<'_>, now: Timestamp) -> Option<Cheap> {
    let oldest = now.before(CHEAP_LAST);
    let (mut at, mut is_limited) = (Timestamp::ZERO, false);
    let (mut samples, mut medians, mut bases) = (0.0, 0.0, 0.0);
    for record in records.records().filter(|record| record.at >= oldest && record.base > 0.0) {
        at = at.max(record.at);
        is_limited |= record.is_limited;
        samples += f64::from(record.samples);
        medians += record.median * f64::from(record.samples);
        bases += record.base * f64::from(record.samples);
    }
    let mean = |sum: f64| Duration::try_from_secs_f64(sum / samples).unwrap_or_default();
    let work = if is_limited { mean(bases) * records.in_flight() } else { Duration::ZERO };
    (samples > 0.0).then(|| Cheap { at, median: mean(medians), allowed: window::calm(mean(bases)), work })
}
