use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn request(number: u32, connection: u64, tenant: u16, tier: Tier) -> Waiting<u32> {
    Waiting { item: number, connection, tenant: TenantId(tenant), tier, cost: UNIT, bytes: 1, deadline: None }
}

const LIMIT: Held = Held { requests: 8192, bytes: usize::MAX };

fn queue() -> Queue<u32> {
    Queue::new(LIMIT, Patience::default(), at(0))
}

fn take(queue: &mut Queue<u32>) -> Option<u32> {
    queue.take(|_| true).map(|taken| taken.item)
}

/// A healthy backend and a core that runs on time.
const CALM: Circumstances = Circumstances {
    late: Duration::ZERO,
    in_flight: 1,
    median: Duration::from_millis(1),
    is_growing: false,
    is_draining: false,
};

/// Lets `millis` milliseconds pass from the time `from` (in milliseconds) on, in turns of one millisecond, in
/// each of which the backend answers. Returns the time at the end.
fn pass(queue: &mut Queue<u32>, from: u64, millis: u64) -> u64 {
    for now in from..from + millis {
        queue.handle_progress(at(now));
        queue.handle_turn(at(now + 1), &CALM);
        queue.handle_turn_end();
    }
    from + millis
}

fn refused(queue: &mut Queue<u32>, now: u64) -> Vec<(u32, Refused)> {
    let mut refused = Vec::new();
    queue
        .expire(at(now), Duration::from_millis(1), (false, true), |item, why| refused.push((item.item, why)));
    refused
}

#[test]
fn the_most_important_tier_first_and_none_forgotten() {
    let mut queue = queue();
    for number in 0..400 {
        let tier = Tier::ALL[number as usize % 4];
        queue.push(request(number, u64::from(number), 0, tier), at(0)).expect("there is room");
    }
    let taken: Vec<u32> = std::iter::from_fn(|| take(&mut queue)).collect();
    let from_below = taken[..100].iter().filter(|number| **number % 4 == 3).count();
    assert_eq!(from_below, 1, "one in a hundred is of the least important tier");
    assert!(taken[..99].iter().all(|number| number % 4 == 0));
    assert_eq!(taken.len(), 400);
}

#[test]
fn tenants_have_as_much_each_however_dear_their_requests_and_however_many_wait() {
    let mut queue = queue();
    let costs = [UNIT, 10 * UNIT, 40 * UNIT];
    let mut number = 0;
    for (tenant, (cost, count)) in costs.into_iter().zip([4_000, 400, 100]).enumerate() {
        for connection in 0..count {
            let tenant = tenant as u16;
            let connection = u64::from(tenant) << 32 | connection;
            let waiting = Waiting { cost, ..request(u32::from(tenant), connection, tenant, Tier::Standard) };
            queue.push(waiting, at(0)).expect("there is room");
            number += 1;
        }
    }
    assert_eq!(queue.len(), number);
    let mut units = [0_u64; 3];
    while units.iter().sum::<u64>() < 6_000 * UNIT {
        let tenant = take(&mut queue).expect("more waits") as usize;
        units[tenant] += costs[tenant];
    }
    for had in units {
        assert!((1_900 * UNIT..2_100 * UNIT).contains(&had), "{units:?}");
    }
}

#[test]
fn a_tier_that_never_is_empty_is_over_and_serves_the_newest_until_it_is_not() {
    for times in [1, 4] {
        let interval = Duration::from_millis(100 * times);
        let mut queue = Queue::new(LIMIT, Patience { interval, ..Patience::default() }, at(0));
        let mut now = 0;
        let mut number = 0;
        while !queue.is_over(Tier::Standard) {
            for _ in 0..3 {
                queue
                    .push(request(number, u64::from(number), 0, Tier::Standard), at(now))
                    .expect("there is room");
                number += 1;
            }
            take(&mut queue);
            now = pass(&mut queue, now, 1);
            assert!(now < 200 * times, "it is over after a while");
        }
        assert!(now >= 100 * times, "and not at once: {now} ms");
        let told = refused(&mut queue, now);
        assert!(told.len() > 100 && told.iter().all(|(_, why)| *why == Refused::Overloaded));
        assert_eq!(take(&mut queue), Some(number - 1), "the newest is served");
        assert!(!queue.is_over(Tier::Critical));
        while take(&mut queue).is_some() {}
        pass(&mut queue, now, 150 * times);
        assert!(!queue.is_over(Tier::Standard), "nothing waits any more");
    }
}

#[test]
fn clients_that_want_many_replies_at_a_time_wait_for_their_own() {
    // Each of 20 connections keeps `depth` requests queued; `answered` requests are answered per millisecond.
    for (depth, answered, is_over) in [(50, 100, false), (400, 10, true), (1, 2, true)] {
        let limit = Held { requests: usize::MAX, ..LIMIT };
        let mut queue = Queue::new(limit, Patience::default(), at(0));
        for number in 0..20 * depth {
            queue
                .push(request(number, u64::from(number % 20), 0, Tier::Standard), at(0))
                .expect("there is room");
        }
        let mut now = 0;
        while now < 1_000 && !queue.is_over(Tier::Standard) {
            for _ in 0..answered {
                let connection = u64::from(take(&mut queue).expect("more waits") % 20);
                queue
                    .push(request(connection as u32, connection, 0, Tier::Standard), at(now))
                    .expect("there is room");
            }
            now = pass(&mut queue, now, 1);
        }
        assert_eq!(queue.is_over(Tier::Standard), is_over, "{depth} of each, {answered} in a millisecond");
    }
}

#[test]
fn clients_whose_deadlines_are_near_do_not_wait_for_their_own_pipelines() {
    // Of 20 connections with 50 waiting requests each, so many have deadlines of 18 ms. Each request waits 10 ms.
    for (pressed, is_over) in [(0, false), (9, false), (11, true), (20, true)] {
        let mut queue = queue();
        let one = |number: u32, now: u64| {
            let connection = u64::from(number % 20);
            let deadline = if connection < pressed { now + 18 } else { now + 100 };
            Waiting { deadline: Some(at(deadline)), ..request(number, connection, 0, Tier::Standard) }
        };
        for number in 0..20 * 50 {
            queue.push(one(number, u64::from(number / 100)), at(0)).expect("there is room");
        }
        let mut now = 0;
        while now < 350 && !queue.is_over(Tier::Standard) {
            for _ in 0..100 {
                let number = take(&mut queue).expect("more waits");
                queue.push(one(number, now), at(now)).expect("there is room");
            }
            now = pass(&mut queue, now, 1);
            assert!(queue.is_over(Tier::Standard) || refused(&mut queue, now).is_empty());
        }
        assert_eq!(
            queue.is_over(Tier::Standard),
            is_over,
            "the deadlines of {pressed} of 20 connections are near"
        );
    }
}

#[test]
fn what_this_core_did_not_run_for_makes_nothing_old() {
    let mut queue = queue();
    for number in 0..100 {
        queue.push(request(number, u64::from(number), 0, Tier::Standard), at(0)).expect("there is room");
    }
    // The core should have run 5 ms after each turn, and ran 50 ms after it.
    let mut now = 0;
    for _ in 0..10 {
        let planned = at(now + 5);
        now += 50;
        let late = lateness(planned, at(now));
        assert_eq!(late, Duration::from_millis(45));
        queue.handle_late(late);
        queue.handle_turn(at(now), &Circumstances { late, ..CALM });
        queue.handle_progress(at(now));
        queue.handle_turn_end();
    }
    assert_eq!(refused(&mut queue, now), []);
    pass(&mut queue, now, 200);
    assert!(!refused(&mut queue, now + 200).is_empty());
}

#[test]
fn a_window_that_grows_and_a_backend_that_is_silent_make_nothing_old() {
    for circumstances in [
        Circumstances { is_growing: true, ..CALM },
        Circumstances { is_draining: true, ..CALM },
        Circumstances { in_flight: 5, ..CALM },
    ] {
        let mut queue = queue();
        for number in 0..100 {
            queue.push(request(number, u64::from(number), 0, Tier::Standard), at(0)).expect("there is room");
        }
        for now in 1..900 {
            queue.handle_turn(at(now), &circumstances);
            queue.handle_turn_end();
        }
        assert_eq!(refused(&mut queue, 900), []);
        // After 2 s in the queue, a request is refused, whatever it waits for.
        assert_eq!(refused(&mut queue, 2_001).len(), 100);
    }
}

#[test]
fn what_could_not_be_answered_in_time_and_what_waits_for_a_stalled_backend_is_refused() {
    let mut queue = queue();
    for number in 0..10 {
        let deadline = (number % 2 == 0).then_some(at(20));
        let waiting = Waiting { deadline, ..request(number, u64::from(number), 0, Tier::Batch) };
        queue.push(waiting, at(0)).expect("there is room");
    }
    assert_eq!(refused(&mut queue, 18), []);
    // Requests past their deadline leave at once even if they are not the oldest and those before them have
    // time left.
    let late: Vec<(u32, Refused)> = (0..10).step_by(2).map(|number| (number, Refused::Deadline)).collect();
    assert_eq!(refused(&mut queue, 20), late);
    let mut told = Vec::new();
    queue.expire(at(101), Duration::from_millis(1), (true, true), |taken, why| told.push((taken.item, why)));
    assert_eq!(told, (1..10).step_by(2).map(|number| (number, Refused::Stalled)).collect::<Vec<_>>());
}

#[test]
fn no_more_waits_than_may_and_none_comes_until_it_is_much_less() {
    for limit in [Held { requests: 100, bytes: usize::MAX }, Held { requests: usize::MAX, bytes: 100 }] {
        let mut queue = Queue::new(limit, Patience::default(), at(0));
        for number in 0..100 {
            assert!(!queue.is_full());
            let tier = if number < 50 { Tier::Standard } else { Tier::Batch };
            queue.push(request(number, u64::from(number), 0, tier), at(0)).expect("there is room");
        }
        assert_eq!(queue.push(request(0, 1, 0, Tier::Critical), at(0)), Err(Refused::Overloaded));
        assert!(queue.is_full());
        assert_eq!(queue.displace(Tier::Batch), None, "nobody matters less");
        let displaced = queue.displace(Tier::Standard).map(|taken| taken.item);
        assert_eq!(displaced, Some(99), "the last to come of those who matter least");
        queue.push(request(100, 100, 0, Tier::Critical), at(0)).expect("its place is free");
        for left in (76..=100).rev() {
            assert!(queue.is_full(), "{left}");
            take(&mut queue);
        }
        take(&mut queue);
        assert!(!queue.is_full());
    }
}

#[test]
fn what_a_burst_took_is_given_back_and_the_queue_goes_on() {
    let mut queue = queue();
    for round in 0..3 {
        for number in 0..1_000 {
            let waiting = request(number, u64::from(number % 300), (number % 5) as u16, Tier::Standard);
            queue.push(waiting, at(round)).expect("there is room");
        }
        queue.tidy();
        assert_eq!(queue.len(), 1_000, "nothing that waits is lost");
        while take(&mut queue).is_some() {}
        queue.tidy();
        assert!(queue.nodes.capacity() <= KEPT && queue.chains.capacity() <= KEPT);
    }
}

#[test]
fn of_one_connection_only_so_much_is_taken_on() {
    for bytes in [1, 64 * 1024] {
        let mut queue = queue();
        let most = if bytes == 1 { 64 } else { 16 };
        for number in 0..most {
            let one = Waiting { bytes, ..request(number, 1, 0, Tier::Standard) };
            assert_eq!(queue.push(one, at(0)), Ok(number + 1 == most), "{number}");
        }
        queue.push(request(1_000, 2, 0, Tier::Standard), at(0)).expect("there is room");
        let eased = std::iter::from_fn(|| queue.take(|_| true)).position(|taken| taken.is_eased);
        // The other connection takes its turns meanwhile.
        assert_eq!(eased, Some(most as usize / 2 + 1), "once half of it is gone");
    }
}

#[test]
fn the_more_connections_wait_the_less_of_each_is_taken_on() {
    let mut queue = Queue::new(Held { requests: 1_000, bytes: usize::MAX }, Patience::default(), at(0));
    let mut told = [false; 200];
    for round in 0..64 {
        for connection in (0..200).filter(|connection| !told[*connection]).collect::<Vec<_>>() {
            let one = request(round, connection as u64, 0, Tier::Standard);
            told[connection] = queue.push(one, at(0)).expect("there is room for all of them");
        }
    }
    assert!(told.iter().all(|told| *told), "each is told in time");
    assert!((300..1_000).contains(&queue.len()), "{}", queue.len());
}

#[test]
fn who_has_too_much_in_flight_leaves_room_to_others() {
    let mut queue = queue();
    for number in 0..20 {
        let mut push = |item: u32, tenant: u16, tier| {
            queue.push(request(item, u64::from(item), tenant, tier), at(0)).expect("there is room");
        };
        push(number, number as u16 % 2, Tier::Standard);
        push(100 + number, 1, Tier::Batch);
    }
    let mut taken = || queue.take(|tenant| tenant.0 == 1).map(|taken| taken.item);
    let first: Vec<u32> = (0..10).filter_map(|_| taken()).collect();
    assert_eq!(first, (1..20).step_by(2).collect::<Vec<_>>(), "only those of the other tenant");
    let rest: Vec<u32> = std::iter::from_fn(taken).collect();
    let expected: Vec<u32> = (0..20).step_by(2).chain(100..120).collect();
    assert_eq!(rest, expected, "the rivals are of a lower tier, or there are none");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push { connection: u64, tenant: u16, tier: usize, cost: u64 },
    Take,
    Displace,
    Pass(u64),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6_u64, 0..3_u16, 0..4_usize, 1..60_u64)
            .prop_map(|(connection, tenant, tier, cost)| Step::Push { connection, tenant, tier, cost }),
        3 => Just(Step::Take),
        1 => Just(Step::Displace),
        1 => (1..40_u64).prop_map(Step::Pass),
        1 => Just(Step::Expire),
    ]
}

proptest! {
    /// Compares the queue with one plain list per connection: no request is lost, leaves twice or overtakes
    /// another of its connection.
    #[test]
    fn every_request_leaves_once_and_in_the_order_of_its_connection(steps in prop::collection::vec(step(), 1..300)) {
        let mut queue = queue();
        let mut waiting: BTreeMap<u64, VecDeque<u32>> = BTreeMap::new();
        let connection_of = |number: u32| u64::from(number % 6);
        let (mut now, mut number) = (0, 0);
        for step in steps {
            match step {
                Step::Push { connection, tenant, tier, cost } => {
                    number = number / 6 * 6 + 6 + connection as u32;
                    let one = Waiting { cost: cost * UNIT, ..request(number, connection, tenant, Tier::ALL[tier]) };
                    queue.push(one, at(now)).expect("there is room");
                    waiting.entry(connection).or_default().push_back(number);
                }
                Step::Take => {
                    let taken = take(&mut queue);
                    prop_assert_eq!(taken.is_none(), waiting.values().all(VecDeque::is_empty));
                    if let Some(number) = taken {
                        let own = waiting.get_mut(&connection_of(number)).and_then(VecDeque::pop_front);
                        prop_assert_eq!(own, Some(number));
                    }
                }
                Step::Displace => {
                    if let Some(taken) = queue.displace(Tier::Critical) {
                        let own = waiting.get_mut(&connection_of(taken.item)).and_then(VecDeque::pop_back);
                        prop_assert_eq!(own, Some(taken.item));
                    }
                }
                Step::Pass(millis) => now = pass(&mut queue, now, millis),
                Step::Expire => {
                    for (number, _) in refused(&mut queue, now) {
                        let own = waiting.get_mut(&connection_of(number)).and_then(VecDeque::pop_front);
                        prop_assert_eq!(own, Some(number));
                    }
                }
            }
            prop_assert_eq!(queue.len(), waiting.values().map(VecDeque::len).sum::<usize>());
        }
    }
}
