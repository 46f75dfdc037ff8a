use proptest::prelude::*;

use super::*;
use crate::values::Random;

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn well_since(millis: u64) -> Standing {
    Standing { at: at(millis), ..Standing::default() }
}

#[test]
fn a_standing_survives_being_a_word() {
    for stage in Stage::ALL {
        for cause in Cause::ALL {
            for openings in [0, 1, OPENINGS_MAX] {
                let standing = Standing { stage, cause, openings, at: Timestamp::from_nanos(7 << 30) };
                assert_eq!(Standing::from_bits(standing.to_bits()), standing);
            }
        }
    }
    let odd =
        Standing::from_bits(Standing { at: Timestamp::from_nanos(1_000_000_001), ..well_since(0) }.to_bits());
    assert!(
        odd.at >= Timestamp::from_nanos(1_000_000_001) && odd.at.since(at(1_000)) < Duration::from_micros(3)
    );
}

#[test]
fn pauses_double_up_to_a_bound_and_are_forgotten_with_time() {
    let pauses = |cause: Cause| {
        let mut standing = well_since(0);
        let pauses = (0..8).map(|_| {
            standing = standing.set_aside(cause, at(1_000), 255);
            standing.at.since(at(1_000)).as_millis()
        });
        pauses.collect::<Vec<_>>()
    };
    assert_eq!(pauses(Cause::Errors), [499, 999, 1_998, 3_996, 3_996, 3_996, 3_996, 3_996]);
    assert_eq!(pauses(Cause::Losses), [249, 499, 999, 999, 999, 999, 999, 999]);
    let often = Standing { openings: 4, ..well_since(0) };
    assert_eq!(often.set_aside(Cause::Errors, at(130_000), 0).openings, 3);
    assert_eq!(often.set_aside(Cause::Errors, at(3_600_000), 0).openings, 1);
    let shortest = well_since(0).set_aside(Cause::Errors, at(0), 0).at;
    assert_eq!(shortest.since(at(0)).as_millis(), 375);
}

#[test]
fn one_request_at_a_time_is_tried_and_what_becomes_of_it_decides() {
    let out = well_since(0).set_aside(Cause::Errors, at(1_000), 128);
    assert_eq!(out.begin_trial(out.at.before(Duration::from_nanos(1_024))), None);
    let due = out.end_pause(at(1_001)).expect("it is paused");
    assert!(due.begin_trial(at(1_002)).is_some());
    assert_eq!((out.end_pause(out.at), well_since(0).end_pause(at(1))), (None, None));
    let trying = out.begin_trial(out.at).expect("the pause is over");
    assert_eq!(
        (trying.stage, trying.begin_trial(out.at.after(Duration::from_secs(2)))),
        (Stage::Trying, None)
    );
    assert!(trying.begin_trial(out.at.after(TRIAL)).is_some(), "nothing was heard of it");
    assert_eq!(trying.end_pause(out.at), None);
    let returning = trying.end_trial(true, at(2_000), 0);
    assert_eq!(returning.stage, Stage::Returning);
    assert_eq!(returning.part(at(2_000)), Some(FIRST_PART));
    assert_eq!(returning.part(at(3_000)), Some(f64::midpoint(FIRST_PART, 1.0)));
    assert_eq!(returning.part(at(4_000)), None);
    assert_eq!(returning.back(at(4_000)).stage, Stage::Well);
    let again = returning.set_aside(Cause::Errors, at(2_500), 128);
    assert_eq!((again.stage, again.openings), (Stage::Out, 2));
}

#[test]
fn a_store_that_only_was_away_is_back_at_once() {
    let away = well_since(0).set_aside(Cause::Losses, at(1_000), 128);
    let trying = away.begin_trial(at(2_000)).expect("the pause is over");
    assert_eq!(trying.end_trial(false, at(2_001), 128).stage, Stage::Well);
}

#[test]
fn a_slow_store_that_is_quick_alone_was_crowded_and_is_excused_for_a_minute() {
    let slow = well_since(0).set_aside(Cause::Slowness, at(1_000), 128);
    let trying = slow.begin_trial(at(2_000)).expect("the pause is over");
    assert_eq!(trying.end_trial(false, at(2_200), 128).stage, Stage::Out);
    let excused = trying.end_trial(true, at(2_001), 128);
    assert_eq!((excused.stage, excused.cause), (Stage::Well, Cause::Load));
    let mut watch = Watch::default();
    assert!((0..100).all(|look| !watch.handle_comparison(Some(SLOW), excused, at(2_500 + look * 250))));
    let later = at(2_001).after(EXCUSED);
    assert!((0..SLOW_LOOKS).any(|_| watch.handle_comparison(Some(SLOW), excused, later)));
    // After a slow trial, a quick one ends the ejection: no other request was before either of them, so the
    // store itself has become fast.
    let twice = trying.end_trial(false, at(2_200), 128).begin_trial(at(9_000)).expect("the pause is over");
    assert_eq!(twice.end_trial(true, at(9_001), 128).stage, Stage::Returning);
}

const SLOW: Comparison = Comparison {
    own: Duration::from_millis(200),
    others: Duration::from_millis(5),
    rate: 300.0,
    rate_before: Some(295.0),
    rate_others: 200.0,
};

#[test]
fn slowness_has_to_last_and_to_be_no_crowd() {
    let looks = |compared: Comparison| {
        let mut watch = Watch::default();
        (1..=40).find(|look| watch.handle_comparison(Some(compared), well_since(0), at(look * 250)))
    };
    assert_eq!(looks(SLOW), Some(u64::from(SLOW_LOOKS)));
    // The owner of a hot key has more requests than the other stores, or than before, so its slowness is no
    // fault of its own.
    assert_eq!(looks(Comparison { rate: 401.0, rate_before: Some(400.0), ..SLOW }), None);
    assert_eq!(looks(Comparison { rate_before: Some(190.0), ..SLOW }), None);
    // The earlier request rate is unknown.
    assert_eq!(looks(Comparison { rate_before: None, ..SLOW }), None);
    // Latencies within tolerance: up to three times as long, or 2 ms more.
    assert_eq!(looks(Comparison { own: Duration::from_millis(15), ..SLOW }), None);
    let [own, others] = [1_900, 100].map(Duration::from_micros);
    assert_eq!(looks(Comparison { own, others, ..SLOW }), None);
    // A comparison in which the store is well restarts the count.
    let mut watch = Watch::default();
    let well = Comparison { own: Duration::from_millis(6), ..SLOW };
    assert!((0..100).all(|look| {
        let compared = if look % 7 == 6 { well } else { SLOW };
        !watch.handle_comparison(Some(compared), well_since(0), at(look * 250))
    }));
}

#[test]
fn a_median_needs_two_others() {
    let two = Sorted::new([(1.0, 4), (2.0, 5)]);
    assert_eq!([4, 5].map(|store| two.median_of_others(store, Some(store as f64 - 3.0))), [None; 2]);
    assert_eq!(two.median_of_others(6, None), Some(2.0));
    let three = Sorted::new([(3.0, 0), (1.0, 1), (2.0, 2)]);
    let medians = [(0, 3.0), (1, 1.0), (2, 2.0)].map(|(store, own)| three.median_of_others(store, Some(own)));
    assert_eq!(medians, [Some(2.0), Some(3.0), Some(3.0)]);
}

/// Returns the median of all figures but that of one store, by sorting the others; `None` if there are fewer
/// than two others.
fn median_without(values: &[Option<f64>], store: usize) -> Option<f64> {
    let others = values.iter().enumerate().filter(|(other, _)| *other != store);
    let mut others: Vec<f64> = others.filter_map(|(_, value)| *value).collect();
    others.sort_unstable_by(f64::total_cmp);
    (others.len() >= 2).then(|| others[others.len() / 2])
}

proptest! {
    #[test]
    fn medians_of_others_are_those_of_the_others_sorted_one_by_one(
        values in proptest::collection::vec(proptest::option::of(0_u8..8), 0..40),
        removed in proptest::collection::vec(0_usize..40, 0..6),
    ) {
        let mut values: Vec<Option<f64>> = values.into_iter().map(|value| value.map(f64::from)).collect();
        let told = values.iter().enumerate().filter_map(|(store, value)| Some(((*value)?, store)));
        let mut sorted = Sorted::new(told);
        for removed in [None].into_iter().chain(removed.into_iter().map(Some)) {
            if let Some(store) = removed.filter(|store| *store < values.len())
                && let Some(own) = values[store].take()
            {
                sorted.remove(store, own);
            }
            for store in 0..=values.len() {
                let own = values.get(store).copied().flatten();
                prop_assert_eq!(sorted.median_of_others(store, own), median_without(&values, store));
            }
        }
    }
}

#[test]
fn five_failures_in_a_row_are_enough_and_connections_lost_together_are_one() {
    let mut watch = Watch::default();
    for _ in 0..100 {
        (1..ROW).for_each(|_| assert_eq!(watch.handle_failure(), None));
        watch.handle_answer();
    }
    (1..ROW).for_each(|_| assert_eq!(watch.handle_failure(), None));
    assert_eq!(watch.handle_failure(), Some(Evidence::Row(ROW)));
    let mut watch = Watch::default();
    for link in 0..64 {
        assert_eq!(watch.handle_loss(at(1_000 + link)), (link == 0, None));
    }
    let counted = (1..ROW).map(|time| watch.handle_loss(at(1_000 + u64::from(time) * 100)));
    assert_eq!(counted.last(), Some((true, Some(Evidence::Row(ROW)))));
}

/// Slow reference model of a [`Watch`] (which decides whether a store is to be ejected): keeps all counts of
/// the store's replies that it was told, and searches all of them each time.
#[derive(Default)]
struct Model {
    told: Vec<(u64, Tally)>,
}

impl Model {
    fn look(&mut self, millis: u64, tally: Tally, standing: Standing) -> Option<(u64, u64)> {
        let wanted = match standing.stage {
            Stage::Out | Stage::Trying => 0,
            Stage::Well
                if u64::from(standing.openings) <= (millis - standing.at.as_nanos() / 1_000_000) / 60_000 =>
            {
                100
            }
            Stage::Well | Stage::Returning => 20,
        };
        let since = standing.at.as_nanos() / 1_000_000;
        let failing = |then: &Tally| {
            let (failures, replies) = (tally.failures - then.failures, tally.replies - then.replies);
            let (mean, deviation) = (0.2 * replies as f64, (0.2 * 0.8 * replies as f64).sqrt());
            (replies >= wanted && failures as f64 > mean + 2.0 * deviation).then_some((failures, replies))
        };
        let mut of_late =
            self.told.iter().rev().filter(|(then, _)| *then >= since && *then + 10_000 >= millis);
        let seen = of_late.find_map(|(_, then)| failing(then));
        self.told.push((millis, tally));
        seen.filter(|_| wanted > 0)
    }
}

proptest! {
    #[test]
    fn failures_among_replies_are_judged_by_the_shortest_time_that_has_enough(
        looks in prop::collection::vec((200_u64..600, 0_u64..300, 0_u64..70), 1..120),
        stage in 0_usize..4, openings in 0_u8..4, since in 0_u64..20_000,
    ) {
        let standing = Standing { stage: Stage::ALL[stage], openings, at: at(since), ..Standing::default() };
        let (mut watch, mut model) = (Watch::default(), Model::default());
        // The first tally has a reply, so that no two tallies are equal.
        let (mut millis, mut tally) = (since, Tally { replies: 1, failures: 0 });
        for (passed, replies, failing) in looks {
            millis += passed;
            tally.replies += replies;
            tally.failures += replies * failing / 100;
            let seen = watch.look(tally, standing, at(millis));
            let seen = seen.map(|evidence| match evidence {
                Evidence::Failing(failures, replies) => (failures, replies),
                Evidence::Row(_) => unreachable!("nothing was told of a row"),
            });
            // The watch keeps only as many tallies as fit ten seconds, so longer histories do not compare.
            if model.told.len() < LOOKS_KEPT {
                prop_assert_eq!(seen, model.look(millis, tally, standing));
            } else {
                model.told.remove(0);
                prop_assert_eq!(seen, model.look(millis, tally, standing));
            }
        }
    }

    #[test]
    fn a_store_that_fails_one_time_in_ten_stays_and_one_that_fails_three_in_ten_goes_within_three_seconds(
        seed in any::<u64>(),
    ) {
        let went = |per_mille: u64| {
            let (mut random, mut watch) = (Random::new(seed), Watch::default());
            let mut tally = Tally::default();
            (1..=240_u64).find(|look| {
                for _ in 0..75 {
                    let fails = *look > 40 && random.per_mille(per_mille);
                    tally.replies += 1;
                    tally.failures += u64::from(fails);
                }
                watch.look(tally, Standing::default(), at(look * 250)).is_some()
            })
        };
        prop_assert!(went(300).is_some_and(|look| look <= 40 + 12));
        prop_assert_eq!(went(100), None);
    }

    #[test]
    fn whatever_happens_a_store_that_answers_is_back_within_nine_seconds(
        steps in prop::collection::vec((0_u8..5, 0_u64..3_000), 0..60), spread in any::<u8>(),
    ) {
        let (mut standing, mut now) = (Standing::default(), 0);
        for (step, passed) in steps {
            now += passed;
            standing = match (step, standing.stage) {
                (0, Stage::Well | Stage::Returning) => standing.set_aside(Cause::Errors, at(now), spread),
                (1, Stage::Well | Stage::Returning) => standing.set_aside(Cause::Slowness, at(now), spread),
                (2, Stage::Trying) => standing.set_aside(standing.cause, at(now), spread),
                (3, Stage::Trying) => standing.end_trial(false, at(now), spread),
                (4, _) => standing.begin_trial(at(now)).unwrap_or(standing),
                _ => standing,
            };
        }
        let until = now + 4_000 + 3_000 + 2_000;
        // From now on the store answers, and a request is sent to it every 50 ms.
        while now < until && standing.stage != Stage::Well {
            now += 50;
            standing = match standing.stage {
                Stage::Out | Stage::Trying => {
                    standing.begin_trial(at(now)).map_or(standing, |trial| trial.end_trial(true, at(now), spread))
                }
                Stage::Returning if standing.part(at(now)).is_none() => standing.back(at(now)),
                Stage::Well | Stage::Returning => standing,
            };
        }
        prop_assert_eq!(standing.stage, Stage::Well);
    }
}
