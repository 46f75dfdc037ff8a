use std::collections::{BTreeMap, BTreeSet};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn owner(place: usize, in_flight: u32) -> Candidate {
    Candidate { place, role: Role::Owner, in_flight }
}

fn replica(place: usize, in_flight: u32) -> Candidate {
    Candidate { role: Role::Replica, ..owner(place, in_flight) }
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Reference model of one node: keeps everything that ever happened to it, and computes each answer from all
/// of that.
#[derive(Default)]
struct Story {
    role: Option<Role>,
    replies: Vec<(Timestamp, usize, u64)>,
    failures: u32,
    slow: u32,
    outs: Vec<(Timestamp, Timestamp)>,
    /// True while reads avoid the node, as of the last time that the policy was asked.
    is_out: bool,
}

impl Story {
    /// Returns the length of an ejection of the node (a time without reads) that begins now: 5 s, and 5 s
    /// more for each earlier ejection that still counts; each whole minute since the last one ended makes one
    /// count no longer.
    fn pause(&self, first_seen: Timestamp, now: Timestamp) -> Duration {
        let mut steps: u64 = 0;
        let mut since = first_seen;
        for (began, ended) in &self.outs {
            steps = steps.saturating_sub(began.since(since).as_secs() / 60) + 1;
            since = *ended;
        }
        steps = steps.saturating_sub(now.since(since).as_secs() / 60) + 1;
        Duration::from_secs((5 * steps).min(300))
    }
}

/// Compares which nodes get no reads, and for how long, with a model that keeps a list of everything.
#[test]
fn who_is_left_alone_is_who_a_list_of_everything_names() {
    let (mut outs, mut backs, mut slow_outs) = (0, 0, 0);
    for seed in 0..16 {
        let random = &mut Random::new(seed);
        let mut replica_choice = ReplicaChoice::default();
        let mut stories: BTreeMap<usize, Story> = BTreeMap::new();
        let mut first_seen: BTreeMap<usize, Timestamp> = BTreeMap::new();
        let mut now = at(1_000);
        replica_choice.handle_window(now);
        let mut window_began = now;
        let roles = [Role::Owner, Role::Replica, Role::Replica, Role::Replica];
        let sick = random.between(1, 3) as usize;
        for _ in 0..400 {
            let mut expected: Vec<Event> = Vec::new();
            // Some replies (slower ones from a sick node), and some failures.
            let is_sick = random.below(10) > 0;
            for (place, role) in roles.into_iter().enumerate() {
                first_seen.entry(place).or_insert(now);
                let story = stories.entry(place).or_default();
                story.role = Some(role);
                let class = random.index(2);
                for _ in 0..*random.pick(&[0, 99, 100, 120, 120, 150]) {
                    let took = if place == sick && is_sick { 9_000 } else { 1_000 } + random.below(800);
                    replica_choice.handle_reply(place, role, class, micros(took), now);
                    story.replies.push((now, class, took));
                    story.failures = 0;
                }
                for _ in 0..*random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 6]) {
                    replica_choice.handle_failure(place, role, now);
                    story.failures += 1;
                    if story.failures >= 5 && role == Role::Replica && !story.is_out {
                        let pause = story.pause(first_seen[&place], now);
                        expected.push(Event::Out(place, Why::Failures(story.failures), pause));
                        story.outs.push((now, now.after(pause)));
                        (story.is_out, story.failures, story.slow) = (true, 0, 0);
                    }
                }
            }
            let jump = if random.below(40) == 0 { random.between(2_500, 90_000) } else { 1_000 };
            now = now.after(Duration::from_millis(jump));
            assert!(replica_choice.is_due(now));
            replica_choice.handle_window(now);
            let in_window = |place: usize, class: usize| {
                let story = &stories[&place];
                let replies = story.replies.iter().filter(|(at, of, _)| *at >= window_began && *of == class);
                let mut took: Vec<u64> = replies.map(|(_, _, took)| least_of(place_of(*took))).collect();
                took.sort_unstable();
                (took.len() >= 100).then(|| took[(took.len() * 95).div_ceil(100) - 1])
            };
            let found: Vec<Option<(usize, u64, u64)>> = (0..roles.len())
                .map(|place| {
                    (0..2).find_map(|class| {
                        let own = in_window(place, class)?;
                        let mut peers: Vec<u64> = (0..roles.len())
                            .filter(|other| *other != place)
                            .filter_map(|other| in_window(other, class))
                            .collect();
                        peers.sort_unstable();
                        let median = match peers.len() {
                            0 => return None,
                            odd if odd % 2 == 1 => peers[odd / 2],
                            even => u64::midpoint(peers[even / 2 - 1], peers[even / 2]),
                        };
                        (own > 2_000 && own > 3 * median).then_some((class, own, median))
                    })
                })
                .collect();
            for place in 1..roles.len() {
                let story = stories.get_mut(&place).expect("it is there");
                if story.is_out && story.outs.last().is_some_and(|(_, ended)| *ended <= now) {
                    expected.push(Event::Back(place));
                    (story.is_out, story.failures, story.slow) = (false, 0, 0);
                }
                if story.is_out {
                    continue;
                }
                let is_slow = found[place].filter(|_| jump < 2_000);
                story.slow = if is_slow.is_some() { story.slow + 1 } else { 0 };
                if let Some((class, p95, median)) = is_slow.filter(|_| story.slow >= 3) {
                    let why = Why::Slow { class, p95: micros(p95), median: micros(median) };
                    let pause = story.pause(first_seen[&place], now);
                    expected.push(Event::Out(place, why, pause));
                    story.outs.push((now, now.after(pause)));
                    (story.is_out, story.failures, story.slow) = (true, 0, 0);
                    slow_outs += 1;
                }
            }
            let happened = replica_choice.take_events();
            outs += happened.iter().filter(|event| matches!(event, Event::Out(..))).count();
            backs += happened.iter().filter(|event| matches!(event, Event::Back(..))).count();
            assert_eq!(happened, expected, "seed {seed}");
            for (place, story) in &stories {
                let until = story.outs.last().map(|(_, ended)| *ended).filter(|_| story.is_out);
                assert_eq!(replica_choice.out_until(*place, now), until, "seed {seed}");
                story.replies.iter().for_each(|(at, ..)| assert!(*at <= now));
            }
            stories.values_mut().for_each(|story| story.replies.retain(|(at, ..)| *at >= now));
            window_began = now;
        }
    }
    assert!(
        outs > 100 && backs > 100 && slow_outs > 30,
        "{outs} out, {backs} back, {slow_outs} for being slow"
    );
}

/// Compares a node's score with the product of its average latency, computed anew here reply by reply, and
/// its requests in flight plus one. The average rises at once to a slower reply; towards faster ones it
/// falls, and without replies it fades, with a time constant of 10 s.
#[test]
fn an_average_jumps_up_and_comes_down_by_and_by() {
    let mut random = Random::new(3);
    let mut replica_choice = ReplicaChoice::default();
    let (mut now, mut average, mut since) = (at(1), 0.0_f64, at(1));
    for _ in 0..2_000 {
        now = now.after(Duration::from_millis(random.between(1, 3_000)));
        let share = (-now.since(since).as_secs_f64() / 10.0).exp();
        let took = random.between(100, 900) as f64 * 1_000.0;
        average = if took >= average * share { took } else { average * share + took * (1.0 - share) };
        since = now;
        replica_choice.handle_reply(0, Role::Owner, 0, Duration::from_nanos(took as u64), now);
        let later = now.after(Duration::from_millis(random.below(5_000)));
        let faded = average * (-later.since(now).as_secs_f64() / 10.0).exp();
        let in_flight = random.below(5) as u32;
        let score = replica_choice.score(owner(0, in_flight), later);
        let wanted = faded * f64::from(in_flight + 1);
        assert!((score - wanted).abs() <= wanted * 1e-9, "{score} for {wanted}");
    }
}

#[test]
fn the_better_of_two_answers_and_the_worst_of_three_never_does() {
    let mut random = Random::new(1);
    let mut replica_choice = ReplicaChoice::default();
    for (place, took) in [(0, 300), (1, 100), (2, 200)] {
        let role = if place == 0 { Role::Owner } else { Role::Replica };
        replica_choice.handle_reply(place, role, 0, micros(took), at(0));
    }
    let all = [owner(0, 0), replica(1, 0), replica(2, 0)];
    let mut chosen = [0_u32; 3];
    for _ in 0..3_000 {
        chosen[replica_choice.choose(all, &mut random, at(1)).expect("one")] += 1;
    }
    assert!(chosen[0] == 0 && chosen[1].abs_diff(2_000) < 120, "{chosen:?}");
    // Requests in flight count against a node.
    for (in_flight, wanted) in [(1, 1), (2, 0), (5, 0)] {
        let two = [owner(0, 0), replica(1, in_flight)];
        // The scores are equal: three in flight at 100 us against one at 300 us.
        let found: BTreeSet<usize> =
            (0..50).filter_map(|_| replica_choice.choose(two, &mut random, at(0))).collect();
        assert!(found.contains(&wanted), "{in_flight}: {found:?}");
        assert!(found.len() == 1 || in_flight == 2, "{in_flight}: {found:?}");
    }
    assert_eq!(replica_choice.choose([], &mut random, at(1)), None);
}

#[test]
fn who_is_new_starts_at_twice_the_median() {
    let mut random = Random::new(1);
    let mut replica_choice = ReplicaChoice::default();
    let unknown = [owner(0, 0), replica(1, 0)];
    let found: BTreeSet<usize> =
        (0..50).filter_map(|_| replica_choice.choose(unknown, &mut random, at(0))).collect();
    assert_eq!(found.len(), 2, "nothing is known of either");
    for (place, took) in [(0, 100), (2, 300), (3, 200)] {
        replica_choice.handle_reply(place, Role::Owner, 0, micros(took), at(0));
    }
    assert_eq!(replica_choice.choose(unknown, &mut random, at(0)), Some(0));
    assert!((replica_choice.score(replica(1, 0), at(0)) - 400_000.0).abs() < 1.0);
    // The owner has more and more requests in flight at once.
    assert_eq!(replica_choice.choose([owner(0, 4), replica(1, 0)], &mut random, at(0)), Some(1));
    // The average of a node without reads decays, until the node is tried again.
    replica_choice.handle_reply(0, Role::Owner, 0, micros(100), at(20_000));
    assert_eq!(replica_choice.choose(unknown, &mut random, at(20_000)), Some(1));
}

#[test]
fn who_comes_back_gets_little_at_first() {
    let mut random = Random::new(9);
    let mut replica_choice = ReplicaChoice::default();
    let both = [owner(0, 9), replica(1, 0)];
    replica_choice.handle_reply(0, Role::Owner, 0, micros(100), at(0));
    (0..5).for_each(|_| replica_choice.handle_failure(1, Role::Replica, at(0)));
    assert_eq!(replica_choice.take_events(), [Event::Out(1, Why::Failures(5), 5 * SECOND)]);
    let mut part = |replica_choice: &mut ReplicaChoice, now| {
        let chosen = (0..2_000).filter(|_| replica_choice.choose(both, &mut random, now) == Some(1)).count();
        chosen as f64 / 2_000.0
    };
    assert!(part(&mut replica_choice, at(4_999)).abs() < 1e-9);
    for (now, wanted) in [(5_000, 0.1), (10_000, 0.55), (15_000, 1.0), (30_000, 1.0)] {
        let found = part(&mut replica_choice, at(now));
        assert!((found - wanted).abs() < 0.04, "{found} for {wanted}");
    }
    assert_eq!(replica_choice.take_events(), [Event::Back(1)]);
    replica_choice.forget(1);
    assert!(part(&mut replica_choice, at(30_001)) > 0.99);
}

#[test]
fn an_owner_is_never_left_alone() {
    let mut random = Random::new(1);
    let mut replica_choice = ReplicaChoice::default();
    replica_choice.handle_window(at(0));
    for second in 1..10 {
        for place in 0..3 {
            let (role, took) = if place == 0 { (Role::Owner, 50_000) } else { (Role::Replica, 100) };
            (0..200)
                .for_each(|_| replica_choice.handle_reply(place, role, 1, micros(took), at(second * 1_000)));
        }
        (0..20).for_each(|_| replica_choice.handle_failure(0, Role::Owner, at(second * 1_000)));
        replica_choice.handle_window(at(second * 1_000));
    }
    assert!(replica_choice.take_events().is_empty());
    assert_eq!(replica_choice.choose([owner(0, 0)], &mut random, at(10_000)), Some(0));
}

#[test]
fn places_of_counts_meet() {
    for number in (0..20_000).chain([1 << 20, 1 << 25, (1 << 26) - 1]) {
        let place = place_of(number);
        assert!(least_of(place) <= number && number < least_of(place + 1), "{number}");
    }
    assert_eq!(place_of(u64::MAX), COUNTS - 1);
}
