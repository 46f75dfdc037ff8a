//! Simulates a thousand clients and a store that stalls for ten seconds, in virtual time: clients that retry
//! at once keep the store overloaded after its return, and clients of this library do not.

use std::collections::BTreeMap;

use super::*;

const MICROS_PER_SECOND: u64 = 1_000_000;
const CLIENTS: usize = 1_000;
/// The mean number of requests per second of one client. All clients together offer half of what the store
/// can serve.
const REQUESTS_PER_SECOND: f64 = 10.0;
const SERVICE_MICROS: u64 = 50;
/// Maximum number of requests that the store queues, a second's worth; it refuses further ones with
/// -OVERLOADED.
const QUEUE: u64 = 20_000;
const TIMEOUT_MICROS: u64 = 500_000;
const NAIVE_ATTEMPTS: u8 = 4;
/// The second of the simulation in which the store stalls; it serves again from second [`RETURNS`].
const STALLS: u64 = 5;
const RETURNS: u64 = 15;
const ENDS: u64 = 20;

#[derive(Clone, Copy)]
enum Attempt {
    Naive(u8),
    Smart(Sent),
}

#[derive(Clone, Copy)]
enum Event {
    /// The next new request of this client is due.
    Offer(usize),
    Repeat(usize, Retry),
    End(usize, Attempt, Outcome),
    /// The store has served a request, whether or not its client still waits for the reply.
    Served,
}

enum Kind {
    Naive,
    Smart(Box<Client>),
}

/// Counts for each second of the simulation: new requests, attempts that reached the store, and answered
/// requests.
#[derive(Default)]
struct Seen {
    offered: [u64; ENDS as usize],
    reached: [u64; ENDS as usize],
    answered: [u64; ENDS as usize],
}

struct World {
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    number: u64,
    kinds: Vec<Kind>,
    arrivals: Random,
    queued: u64,
    /// The time, in microseconds, at which the store will have served its whole queue.
    free_at: u64,
    seen: Seen,
}

impl World {
    fn new(kind: impl Fn(u64) -> Kind) -> Self {
        let mut world = Self {
            now: 0,
            events: BTreeMap::new(),
            number: 0,
            kinds: (0..CLIENTS as u64).map(kind).collect(),
            arrivals: Random::new(1),
            queued: 0,
            free_at: 0,
            seen: Seen::default(),
        };
        (0..CLIENTS).for_each(|client| world.plan_offer(client));
        world
    }

    fn run(mut self) -> Seen {
        while let Some(((at, _), event)) = self.events.pop_first()
            && at < ENDS * MICROS_PER_SECOND
        {
            self.now = at;
            self.handle(event);
        }
        self.seen
    }

    fn handle(&mut self, event: Event) {
        let now = self.timestamp();
        match event {
            Event::Offer(client) => {
                self.plan_offer(client);
                self.seen.offered[self.second()] += 1;
                match &mut self.kinds[client] {
                    Kind::Naive => self.send(client, Attempt::Naive(1)),
                    Kind::Smart(smart) => {
                        let decision = smart.may_send(Repeats::Harmless, now);
                        self.carry_out(client, decision);
                    }
                }
            }
            Event::Repeat(client, retry) => {
                if let Kind::Smart(smart) = &mut self.kinds[client] {
                    let decision = smart.may_repeat(retry, now);
                    self.carry_out(client, decision);
                }
            }
            Event::End(client, attempt, outcome) => self.end(client, attempt, outcome),
            Event::Served => self.queued -= 1,
        }
    }

    fn carry_out(&mut self, client: usize, decision: Decision) {
        if let Decision::Send(sent) = decision {
            self.send(client, Attempt::Smart(sent));
        }
    }

    fn end(&mut self, client: usize, attempt: Attempt, outcome: Outcome) {
        let now = self.timestamp();
        self.seen.answered[self.second()] += u64::from(outcome == Outcome::Answered);
        match (&mut self.kinds[client], attempt) {
            (Kind::Smart(smart), Attempt::Smart(sent)) => {
                if let Next::RetryAt(retry) = smart.handle_outcome(sent, outcome, now) {
                    self.plan(retry.at().as_nanos() / 1_000, Event::Repeat(client, retry));
                }
            }
            (_, Attempt::Naive(attempts)) if outcome != Outcome::Answered && attempts < NAIVE_ATTEMPTS => {
                self.send(client, Attempt::Naive(attempts + 1));
            }
            _ => {}
        }
    }

    /// Sends an attempt to the store, and plans its outcome: a refusal, an answer, or a timeout.
    fn send(&mut self, client: usize, attempt: Attempt) {
        self.seen.reached[self.second()] += 1;
        if self.queued >= QUEUE {
            let refusal = Outcome::of_error(b"OVERLOADED reason=queue backend=a:1 retry_after_ms=100");
            return self.plan(self.now + 1, Event::End(client, attempt, refusal));
        }
        let mut begins = self.free_at.max(self.now);
        if (STALLS * MICROS_PER_SECOND..RETURNS * MICROS_PER_SECOND).contains(&begins) {
            begins = RETURNS * MICROS_PER_SECOND;
        }
        self.free_at = begins + SERVICE_MICROS;
        self.queued += 1;
        self.plan(self.free_at, Event::Served);
        let gives_up = self.now + TIMEOUT_MICROS;
        let (at, outcome) = if self.free_at <= gives_up {
            (self.free_at, Outcome::Answered)
        } else {
            (gives_up, Outcome::TimedOut)
        };
        self.plan(at, Event::End(client, attempt, outcome));
    }

    fn plan_offer(&mut self, client: usize) {
        let pause = self.arrivals.exponential() / REQUESTS_PER_SECOND * MICROS_PER_SECOND as f64;
        self.plan(self.now + pause as u64, Event::Offer(client));
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.events.insert((at.max(self.now), self.number), event);
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp::from_nanos(self.now * 1_000)
    }

    fn second(&self) -> usize {
        (self.now / MICROS_PER_SECOND) as usize
    }
}

impl Seen {
    /// Returns the number of attempts that reached the store during its stall, divided by the number of new
    /// requests in that time.
    fn reached_in_stall(&self) -> f64 {
        let sum = |counts: &[u64]| counts[STALLS as usize..RETURNS as usize].iter().sum::<u64>() as f64;
        sum(&self.reached) / sum(&self.offered)
    }

    /// Returns the number of requests answered in a second, divided by the number of new requests in that
    /// second.
    fn answered_in(&self, second: u64) -> f64 {
        self.answered[second as usize] as f64 / self.offered[second as usize] as f64
    }
}

#[test]
fn clients_that_repeat_at_once_keep_a_store_down_and_these_do_not() {
    let policy = Policy { timeout: Duration::from_micros(TIMEOUT_MICROS), ..Policy::default() };
    let smart = World::new(|seed| Kind::Smart(Box::new(Client::new(policy, Random::new(seed))))).run();
    let naive = World::new(|_| Kind::Naive).run();
    for second in 1..STALLS {
        assert!(smart.answered_in(second) > 0.99 && naive.answered_in(second) > 0.99, "calm, {second}");
    }
    let (reached, storm) = (smart.reached_in_stall(), naive.reached_in_stall());
    assert!(reached < 1.2, "{reached} times what was offered");
    assert!(storm > 2.0, "{storm} times what was offered");
    for second in RETURNS + 2..ENDS {
        let (smart, naive) = (smart.answered_in(second), naive.answered_in(second));
        assert!(smart > 0.95, "{smart} in second {second}");
        assert!(naive < 0.5, "the storm blew over: {naive} in second {second}");
    }
}
