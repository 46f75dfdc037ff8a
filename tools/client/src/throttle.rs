//! Adaptive throttling (Site Reliability Engineering, chapter 21, "Client-side throttling"): a client that
//! sees most of its requests refused refuses some itself, because a refusal costs the target something too.
//!
//! Counts requests and accepted requests of the last two minutes, and refuses a request with probability
//! `max(0, (requests - 2 accepted) / (requests + 1))`. So twice as much is sent as is accepted, and the rest
//! of the load is refused without cost to the target.
//!
//! Where nothing at all is accepted the formula is a trap: each request refused here makes the next refusal
//! more likely, and after a minute hardly any request is left to notice that the target is back. The breaker
//! handles that case: as many requests pass the throttle as the breaker needs to open, and when it closes,
//! the throttle starts from zero.

use std::time::Duration;

use super::window::Window;
use weir::values::{Random, Timestamp};

const STRETCHES: usize = 60;
/// The number of requests that the throttle lets pass for each one that the target accepts, once the target
/// refuses more than half.
const SENT_PER_ACCEPTED: u64 = 2;

/// The default time for which the client's throttle remembers requests, and which of them were accepted: 120
/// seconds.
pub const THROTTLE_WINDOW: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(super) struct Throttle {
    /// Recent requests whose outcome is known, and those that the throttle itself refused. Requests in
    /// flight are left out: at the start, and wherever replies take longer than the pause to the next
    /// request, they would look as if they were refused.
    requests: Window<STRETCHES>,
    accepted: Window<STRETCHES>,
    /// The least number of remembered requests; with fewer, the throttle refuses none.
    requests_least: u64,
}

impl Throttle {
    pub fn new(window: Duration, requests_least: u32) -> Self {
        Self {
            requests: Window::new(window),
            accepted: Window::new(window),
            requests_least: u64::from(requests_least),
        }
    }

    /// Sets the counts of requests and accepted requests to zero when the circuit breaker closes, since they
    /// date from the outage before.
    pub fn forget(&mut self) {
        self.requests.clear();
        self.accepted.clear();
    }

    /// Decides whether a request may be sent: false at random, more often the fewer of the remembered requests were
    /// accepted, and never if half of them were. A request refused here is counted as one that was not accepted.
    #[must_use]
    pub fn may_pass(&mut self, now: Timestamp, random: &mut Random) -> bool {
        let requests = self.requests.sum(now);
        let excess = requests.saturating_sub(SENT_PER_ACCEPTED * self.accepted.sum(now));
        // Where nothing is in excess no random number is drawn, so that the sequence stays the same.
        let refuses = excess > 0 && requests >= self.requests_least && random.below(requests + 1) < excess;
        if refuses {
            self.requests.add(now);
        }
        !refuses
    }

    /// Counts a request that the target accepted.
    pub fn note_accepted(&mut self, now: Timestamp) {
        self.requests.add(now);
        self.accepted.add(now);
    }

    /// Counts a request that the target refused or did not answer.
    pub fn note_rejected(&mut self, now: Timestamp) {
        self.requests.add(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    proptest! {
        /// Compares the throttle with two lists of requests and the formula from the book.
        #[test]
        fn it_refuses_as_often_as_the_formula_says(
            ends in prop::collection::vec((0..3_000_u64, any::<bool>()), 0..300),
            seed in any::<u64>(),
        ) {
            let mut throttle = Throttle::new(THROTTLE_WINDOW, 0);
            let (mut requests, mut accepted) = (Vec::new(), Vec::new());
            let mut millis = 0;
            for (pause, is_accepted) in ends {
                millis += pause;
                requests.push(millis / 2_000);
                if is_accepted {
                    accepted.push(millis / 2_000);
                    throttle.note_accepted(at(millis));
                } else {
                    throttle.note_rejected(at(millis));
                }
            }
            let recent = |all: &[u64]| all.iter().filter(|stretch| **stretch + 60 > millis / 2_000).count() as f64;
            let probability = ((recent(&requests) - 2.0 * recent(&accepted)) / (recent(&requests) + 1.0)).max(0.0);
            let mut random = Random::new(seed);
            let tries = 2_000;
            // Each try starts from the same state, since a refusal changes the probability of the next.
            let refused = (0..tries).filter(|_| !throttle.clone().may_pass(at(millis), &mut random)).count();
            let expected = f64::from(tries) * probability;
            let deviation = (expected * (1.0 - probability)).sqrt();
            prop_assert!((refused as f64 - expected).abs() <= 6.0 * deviation + 1e-9, "{refused} instead of {expected}");
        }
    }

    /// Simulates 60 seconds in which `offered` requests per second come and the target accepts `accepted` per
    /// second. Returns the number of requests sent in the last second.
    fn sent_per_second(offered: u64, accepted: u64) -> u64 {
        let (mut throttle, mut random) = (Throttle::new(Duration::from_secs(10), 0), Random::new(1));
        let mut sent = 0;
        for second in 0..60 {
            sent = 0;
            for number in 0..offered {
                let now = at(second * 1_000 + number * 1_000 / offered);
                if throttle.may_pass(now, &mut random) {
                    sent += 1;
                    if sent <= accepted { throttle.note_accepted(now) } else { throttle.note_rejected(now) }
                }
            }
        }
        sent
    }

    #[test]
    fn twice_as_much_is_sent_as_is_accepted() {
        assert_eq!(sent_per_second(1_000, 1_000), 1_000);
        assert_eq!(sent_per_second(1_000, 600), 1_000);
        for (offered, accepted) in [(1_000, 300), (2_000, 100)] {
            let sent = sent_per_second(offered, accepted);
            assert!(sent.abs_diff(2 * accepted) < accepted / 2, "{sent} of {offered}, {accepted} accepted");
        }
    }

    #[test]
    fn a_few_requests_say_nothing() {
        let (mut throttle, mut random) = (Throttle::new(THROTTLE_WINDOW, 20), Random::new(1));
        for _ in 0..20 {
            assert!(throttle.may_pass(at(0), &mut random));
            throttle.note_rejected(at(0));
        }
        assert!((0..1_000).filter(|_| throttle.may_pass(at(0), &mut random)).count() < 10);
        throttle.forget();
        assert!((0..20).all(|_| throttle.may_pass(at(0), &mut random)));
    }

    #[test]
    fn it_forgets() {
        let (mut throttle, mut random) = (Throttle::new(THROTTLE_WINDOW, 0), Random::new(1));
        (0..1_000).for_each(|_| throttle.note_rejected(at(1_000)));
        let passed = |throttle: &mut Throttle, millis, random: &mut Random| {
            (0..100).filter(|_| throttle.may_pass(at(millis), random)).count()
        };
        assert!(passed(&mut throttle, 1_000, &mut random) < 5);
        // Requests that the throttle itself refused meanwhile count too.
        assert_eq!(passed(&mut throttle, 1_000 + 2 * 120_000, &mut random), 100);
    }
}
