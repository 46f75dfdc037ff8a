//! Tests of the whole client. Each part has its own tests in its file.

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn client(policy: Policy) -> Client {
    Client::new(policy, Random::new(1))
}

/// Asks the client to admit a first attempt, and returns the attempt. Panics if the client refuses it.
fn send(client: &mut Client, repeats: Repeats, now: u64) -> Sent {
    match client.may_send(repeats, at(now)) {
        Decision::Send(sent) => sent,
        Decision::Refused(reason) => panic!("refused at {now}: {reason:?}"),
    }
}

const PATIENT: Policy = Policy {
    timeout: Duration::from_millis(100),
    deadline: None,
    retries: 2,
    backoff: Backoff { first: Duration::from_millis(10), most: Duration::from_millis(20) },
    budget: BudgetPolicy { percent: 100, least: 100, window: Duration::from_secs(10) },
    throttle_window: THROTTLE_WINDOW,
    breaker: BreakerPolicy {
        failures: 20,
        lasting: Duration::from_millis(200),
        pause: Duration::from_millis(100),
        pause_most: Duration::from_millis(500),
        probe_timeout: Duration::from_secs(5),
    },
};

#[test]
fn a_client_for_each_of_many_is_affordable() {
    assert!(size_of::<Client>() <= 1_024, "{}", size_of::<Client>());
}

#[test]
fn only_silence_is_repeated_and_only_where_that_does_no_harm() {
    let refused = |refusal| Outcome::Refused(refusal, Some(Duration::from_millis(30)));
    for (outcome, repeats, is_repeated) in [
        (Outcome::TimedOut, Repeats::Harmless, true),
        (Outcome::Lost, Repeats::Harmless, true),
        (Outcome::TimedOut, Repeats::Harmful, false),
        (Outcome::Lost, Repeats::Harmful, false),
        (Outcome::Answered, Repeats::Harmless, false),
        (refused(Refusal::Throttled), Repeats::Harmless, false),
        (refused(Refusal::Overloaded), Repeats::Harmless, false),
        (refused(Refusal::Unavailable), Repeats::Harmless, false),
        (refused(Refusal::Deadline), Repeats::Harmless, false),
    ] {
        let mut client = client(PATIENT);
        let sent = send(&mut client, repeats, 1_000);
        let next = client.handle_outcome(sent, outcome, at(1_100));
        assert_eq!(matches!(next, Next::RetryAt(_)), is_repeated, "{outcome:?} {repeats:?}");
        if outcome.retry_after().is_some() {
            assert_eq!(next, Next::Done { not_before: Some(at(1_130)) });
        }
    }
}

#[test]
fn a_request_is_repeated_so_often_and_told_what_is_left_of_its_deadline() {
    let policy = Policy { deadline: Some(Duration::from_secs(1)), ..PATIENT };
    let mut client = client(policy);
    // The client has seen so many requests accepted that one failure has no effect.
    for _ in 0..10 {
        let sent = send(&mut client, Repeats::Harmless, 500);
        client.handle_outcome(sent, Outcome::Answered, at(501));
    }
    let mut sent = send(&mut client, Repeats::Harmless, 1_000);
    assert_eq!((sent.rest(), sent.retries()), (None, 0));
    let mut now = at(1_000);
    for retries in 1..=2 {
        now = now.after(policy.timeout);
        let Next::RetryAt(retry) = client.handle_outcome(sent, Outcome::TimedOut, now) else {
            panic!("it is repeated")
        };
        assert!(retry.at() >= now && retry.at() <= now.after(policy.backoff.most));
        now = retry.at();
        let Decision::Send(again) = client.may_repeat(retry, now) else { panic!("it may be sent") };
        assert_eq!(again.retries(), retries);
        assert_eq!(again.rest(), Some(at(2_000).since(now)));
        sent = again;
    }
    assert_eq!(
        client.handle_outcome(sent, Outcome::TimedOut, now.after(policy.timeout)),
        Next::Done { not_before: None }
    );
}

#[test]
fn nothing_is_repeated_when_no_time_is_left() {
    let policy = Policy { deadline: Some(Duration::from_millis(150)), ..PATIENT };
    let mut client = client(policy);
    let sent = send(&mut client, Repeats::Harmless, 1_000);
    assert_eq!(client.handle_outcome(sent, Outcome::TimedOut, at(1_150)), Next::Done { not_before: None });
    let sent = send(&mut client, Repeats::Harmless, 2_000_000);
    let Next::RetryAt(retry) = client.handle_outcome(sent, Outcome::Lost, at(2_000_001)) else {
        panic!("it is repeated")
    };
    // The caller asks late: less than a millisecond is left before the deadline.
    assert_eq!(client.may_repeat(retry, at(2_000_150)), Decision::Refused(Reason::TooLate));
}

#[test]
fn an_outage_does_not_throttle_what_comes_after_it() {
    let mut client = client(PATIENT);
    let refusal = Outcome::of_error(b"OVERLOADED reason=stalled backend=a:1 retry_after_ms=100");
    let (mut sent, mut refused) = ([0; 3], [0; 3]);
    for now in 0..30_000_u64 {
        let stage = (now / 10_000) as usize;
        match client.may_send(Repeats::Harmless, at(now)) {
            Decision::Send(attempt) => {
                sent[stage] += 1;
                client.handle_outcome(attempt, if stage == 1 { refusal } else { Outcome::Answered }, at(now));
            }
            Decision::Refused(_) => refused[stage] += 1,
        }
    }
    assert_eq!((sent[0], refused[0]), (10_000, 0));
    // About two hundred requests until the breaker opens, and then a probe every half second.
    assert!((200..260).contains(&sent[1]), "{sent:?}");
    assert!(refused[2] < 750, "all that is lost then is the rest of a pause: {refused:?}");
}

#[test]
fn a_probe_that_says_nothing_makes_room_for_the_next() {
    let mut client = client(PATIENT);
    for now in 0..20 {
        let sent = send(&mut client, Repeats::Harmful, now * 20);
        client.handle_outcome(sent, Outcome::TimedOut, at(now * 20));
    }
    let until = client.open_until(at(380)).expect("it is open");
    let Decision::Send(probe) = client.may_send(Repeats::Harmful, until) else { panic!("this is the probe") };
    assert!(matches!(client.may_send(Repeats::Harmful, until), Decision::Refused(Reason::BreakerOpen(_))));
    client.handle_outcome(probe, Outcome::Refused(Refusal::Throttled, None), until);
    let Decision::Send(probe) = client.may_send(Repeats::Harmful, until) else { panic!("this is another") };
    client.handle_outcome(probe, Outcome::Answered, until);
    assert_eq!(client.open_until(until), None);
}

/// A client that starts during an outage, and so has never seen a request accepted, recovers when the outage
/// ends.
#[test]
fn an_outage_from_the_start_is_over_when_it_is_over() {
    for (pause, lasts) in [(1, 60_000), (100, 60_000), (1, 600_000)] {
        let mut client = client(PATIENT);
        let (mut sent, mut refused_at) = (0, 0);
        for now in (0..lasts + 30_000_u64).step_by(pause) {
            match client.may_send(Repeats::Harmless, at(now)) {
                Decision::Send(attempt) if now < lasts => {
                    sent += 1;
                    client.handle_outcome(attempt, Outcome::Lost, at(now));
                }
                Decision::Send(attempt) => drop(client.handle_outcome(attempt, Outcome::Answered, at(now))),
                Decision::Refused(_) => refused_at = now,
            }
        }
        // About twenty requests until the breaker opens, and then two probes per second.
        assert!(sent <= 60 + lasts * 2 / 1_000, "{sent} were sent");
        assert!(refused_at < lasts + 750, "refused until {refused_at}");
    }
}

/// A client that cannot tell the requests to a refusing backend from those to a healthy one: the adaptive
/// throttle refuses at most 1 % of the healthy one's.
#[test]
fn requests_for_a_backend_that_is_well_do_not_pay_for_the_other() {
    let (mut client, mut targets) = (client(Policy::default()), Random::new(2));
    let refusal = Outcome::of_error(b"OVERLOADED reason=stalled backend=b:1 retry_after_ms=1000");
    let (mut offered, mut served) = (0, 0);
    for now in 0..60_000_u64 {
        let is_well = targets.below(2) == 0;
        let outcome = if is_well || now < 5_000 { Outcome::Answered } else { refusal };
        offered += u64::from(is_well);
        if let Decision::Send(sent) = client.may_send(Repeats::Harmless, at(now)) {
            served += u64::from(is_well);
            client.handle_outcome(sent, outcome, at(now));
        }
    }
    assert!(served * 100 >= offered * 99, "{served} of {offered}");
}

proptest! {
    /// For random outcomes, the number of attempts is bounded, deadlines are kept, and retries stay within
    /// their budget.
    #[test]
    fn retries_are_bounded(
        ends in prop::collection::vec((0..50_u64, 0..6_u8, any::<bool>()), 1..400),
        deadline in prop::option::of(1..400_u64), retries in 0..4_u8, seed in any::<u64>(),
    ) {
        let policy = Policy {
            deadline: deadline.map(Duration::from_millis), retries,
            budget: BudgetPolicy { percent: 10, least: 1, window: Duration::from_secs(1_000_000) }, ..PATIENT
        };
        let mut client = Client::new(policy, Random::new(seed));
        let (mut first, mut again, mut now) = (0_u64, 0_u64, at(0));
        let mut waiting: Vec<Retry> = Vec::new();
        for (pause, end, is_harmless) in ends {
            now = now.after(Duration::from_millis(pause));
            let due = waiting.iter().position(|retry| retry.at() <= now).map(|index| waiting.remove(index));
            let repeats = if is_harmless { Repeats::Harmless } else { Repeats::Harmful };
            let decision = match due {
                Some(retry) => client.may_repeat(retry, now),
                None => client.may_send(repeats, now),
            };
            let Decision::Send(sent) = decision else { continue };
            *if due.is_some() { &mut again } else { &mut first } += 1;
            prop_assert!(sent.retries() <= retries);
            prop_assert_eq!(sent.rest().is_some(), due.is_some() && deadline.is_some());
            prop_assert!(sent.rest().is_none_or(|rest| rest >= REST_LEAST));
            let outcome = match end {
                0 => Outcome::Lost,
                1 | 2 => Outcome::TimedOut,
                3 => Outcome::Refused(Refusal::Overloaded, None),
                _ => Outcome::Answered,
            };
            if let Next::RetryAt(retry) = client.handle_outcome(sent, outcome, now) {
                prop_assert!(is_harmless || due.is_some());
                prop_assert!(retry.at() >= now);
                waiting.push(retry);
            }
        }
        prop_assert!(again + waiting.len() as u64 <= first / 10 + 1);
    }
}
