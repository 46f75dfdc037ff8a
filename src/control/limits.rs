//! The reply to `QOS LIMITS`: how much is left of each of a client's quotas, over all cores.

use super::reconciliation::Reconciliation;
use crate::protocol::{Protocol, encode};
use crate::shard::ScopeLimit;
use crate::values::{Timestamp, UNIT, signed};

/// Writes the reply to `QOS LIMITS`: an array with a map for each of the client's quotas in `limits` (the
/// global one, the tenant's and the user's), which tells its rate, its burst, how much of it remains and in
/// how many milliseconds it will be full again; these are null where there is no limit. A quota that hosts of
/// a fleet share also has `share`, this host's part of the rate.
pub fn write_limits(
    out: &mut Vec<u8>,
    protocol: Protocol,
    limits: &[ScopeLimit],
    pools: &Reconciliation,
    now: Timestamp,
) {
    encode::array(out, limits.len());
    for limit in limits {
        // A share exists only for quotas that a fleet shares.
        let share = limit.bucket.and_then(|(bucket, capacity)| {
            let part = pools.shared_part(bucket)?;
            Some(part.of(capacity.second()) / UNIT)
        });
        encode::map(out, protocol, 6 + usize::from(share.is_some()));
        encode::bulk(out, b"scope");
        encode::bulk(out, limit.scope.as_bytes());
        encode::bulk(out, b"name");
        encode::bulk(out, limit.name.as_bytes());
        let known = limit.bucket.map(|(bucket, capacity)| {
            let remaining = pools.remaining(bucket, capacity, now);
            let here = capacity.scaled(pools.part(bucket));
            let missing = (signed(here.burst).saturating_sub(remaining)).max(0) as u64;
            let reset_ms = here.micros_for(missing).div_ceil(1_000);
            [capacity.ru_per_second(), capacity.burst / UNIT, remaining.max(0) as u64 / UNIT, reset_ms]
        });
        for (index, name) in ["limit", "burst", "remaining", "reset_ms"].into_iter().enumerate() {
            encode::bulk(out, name.as_bytes());
            match known {
                Some(values) => encode::integer(out, values[index] as i64),
                // A scope without a quota has no bound.
                None => encode::null(out, protocol),
            }
        }
        if let Some(share) = share {
            encode::bulk(out, b"share");
            encode::integer(out, share as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::control::pool::Rhythm;
    use crate::values::allowance::{Report, lease_of};
    use crate::values::{BucketId, Capacity, Demand, ShardId};

    #[test]
    fn what_cores_spent_is_missing_until_it_came_in_again() {
        let period = Duration::from_millis(10);
        let mut pools = Reconciliation::new(Rhythm { period, lease: lease_of(period) });
        let (bucket, capacity) = (BucketId(3), Capacity::new(1_000, 2_000 * UNIT));
        let spent = Demand {
            bucket,
            capacity,
            wanted: 0,
            asked: 0,
            spent: 500 * UNIT as i64,
            surprise: 0,
            returned: 0,
            owed: 0,
            needed: 0,
            lump: UNIT,
        };
        let report = Report { shard: ShardId(1), version: 0, demands: vec![spent], usage: Vec::new() };
        pools.handle_report(&report, Timestamp::from_millis(1), &mut Vec::new());
        let limits = [
            ScopeLimit { scope: "global", name: "global".to_owned(), bucket: None },
            ScopeLimit { scope: "tenant", name: "acme".to_owned(), bucket: Some((bucket, capacity)) },
        ];
        let told = |millis| {
            let mut out = Vec::new();
            write_limits(&mut out, Protocol::Resp2, &limits, &pools, Timestamp::from_millis(millis));
            String::from_utf8(out).expect("text")
        };
        let text = told(101);
        assert!(text.starts_with("*2\r\n*12\r\n$5\r\nscope\r\n$6\r\nglobal\r\n"), "{text}");
        assert!(text.contains("$5\r\nlimit\r\n$-1\r\n"), "{text}");
        assert!(text.contains("$9\r\nremaining\r\n:1600\r\n$8\r\nreset_ms\r\n:400\r\n"), "{text}");
        assert!(told(5_000).ends_with("$9\r\nremaining\r\n:2000\r\n$8\r\nreset_ms\r\n:0\r\n"));
    }
}
