//! Compares each backend's response times with its usual ones, and tells other cores the resulting level.

use super::Back;
use crate::policy::latency_ratio::{Change, Company, Seen};
use crate::protocol::command::Class;
use crate::shard::counters::Counter;
use crate::shard::env::Env;
use crate::shard::settings::{BULKHEADS, Mode};
use crate::values::BackendId;
use crate::values::time::Now;

impl Back {
    /// Compares recent response times with usual ones, for each backend with traffic, and reports the level
    /// to other cores. Changes of the level are logged.
    pub fn look_for_strain(&mut self, env: &mut Env, now: Now) {
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

/// The log line for a change of level, with its cause.
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
