//! Fits weights (prices per part of a request) to measured costs by non-negative least squares.

/// The number of weights (prices): one each for the base cost of any request, a KiB of request, a KiB of
/// reply, a row (element) of a reply, and a key written.
const TERMS: usize = 5;
/// The least base (cost of any request) in microseconds; with a smaller base, weights cannot be expressed in
/// request units.
const BASE_MIN: f64 = 1e-6;
/// The least pivot when the linear equations of the fit are solved; with a smaller one, a column counts as a
/// combination of the others, and there is no unique solution.
const PIVOT_MIN: f64 = 1e-9;

/// The parts of a request that weir prices, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Features {
    /// The size of the request in KiB.
    pub kib_in: f64,
    /// The size of the reply in KiB.
    pub kib_out: f64,
    /// The number of elements (rows) in the reply; 0 for a reply that is no array, map or set.
    pub rows: f64,
    /// The number of keys that a write of several keys writes; 0 for other requests.
    pub keys: f64,
}

impl Features {
    fn terms(&self) -> [f64; TERMS] {
        [1.0, self.kib_in, self.kib_out, self.rows, self.keys]
    }
}

/// The weights: the cost of each part of a request, in microseconds of the store's time, or in request
/// units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weights {
    /// The part of the cost that is the same for all requests, in microseconds of the store's time (or in request
    /// units).
    pub base: f64,
    /// The cost of 1,024 bytes of request, in microseconds of the store's time (or in request units).
    pub kib_in: f64,
    /// The cost of 1,024 bytes of reply, in microseconds of the store's time (or in request units).
    pub kib_out: f64,
    /// The cost of one element (row) of a reply, in microseconds of the store's time (or in request units).
    pub row: f64,
    /// The cost of each key in a write of several keys (0 keys count for other requests), in microseconds of the
    /// store's time (or in request units).
    pub key: f64,
}

impl Weights {
    const fn of([base, kib_in, kib_out, row, key]: [f64; TERMS]) -> Self {
        Self { base, kib_in, kib_out, row, key }
    }

    const fn terms(&self) -> [f64; TERMS] {
        [self.base, self.kib_in, self.kib_out, self.row, self.key]
    }

    /// Returns the cost that the weights predict for a request of the given size, in microseconds (or in
    /// request units, if the weights are).
    pub fn cost(&self, features: &Features) -> f64 {
        dot(&self.terms(), &features.terms())
    }

    /// Returns the weights divided by the base cost, which turns microseconds into request units: any
    /// request costs at least one. `None` if the base cost is not measurably above zero.
    pub fn in_units(&self) -> Option<Self> {
        (self.base > BASE_MIN).then(|| Self::of(self.terms().map(|term| term / self.base)))
    }
}

/// Finds the weights (prices per part of a request), none below zero, that predict the measured costs with
/// the least relative errors. Each sample holds the parts of a request and its cost in microseconds. `None`
/// if the samples are too alike to tell the weights apart.
///
/// Each sample is divided by its cost, so errors count in proportion. Costs span three orders of magnitude,
/// and most priced requests are small: plain least squares would give up the base, and with it every GET, for
/// a better fit of a few replies of 64 KiB. The noise of a measured time is in proportion to it too, so this
/// is also the weighting that the noise asks for.
pub fn fit(samples: &[(Features, f64)]) -> Option<Weights> {
    let rows: Vec<[f64; TERMS]> = samples
        .iter()
        .filter(|(_, cost)| *cost > 0.0)
        .map(|(features, cost)| features.terms().map(|term| term / cost))
        .collect();
    // With weights of at least zero, the optimum is the plain optimum over those terms that it leaves above
    // zero. With five terms there are thirty-one choices of terms: all are tried, and the best allowed one is
    // the optimum, without any iteration.
    let allowed = (1_u32..1 << TERMS).filter_map(|chosen| {
        let weights = least_squares(&rows, chosen)?;
        weights.iter().all(|weight| *weight >= 0.0).then_some(weights)
    });
    let error =
        |weights: &[f64; TERMS]| rows.iter().map(|row| (dot(row, weights) - 1.0).powi(2)).sum::<f64>();
    let best = allowed.min_by(|one, other| error(one).total_cmp(&error(other)))?;
    // Unless all terms can be told apart together, a zero may only mean that samples are missing.
    least_squares(&rows, (1 << TERMS) - 1).map(|_| Weights::of(best))
}

/// Returns R2, the share of the differences (variance) between the measured costs of the samples that the weights
/// predict: 1 is all, 0 is no better than the mean cost, less is worse. `None` if the costs do not differ, or if there
/// are fewer than two.
pub fn r_squared(weights: &Weights, samples: &[(Features, f64)]) -> Option<f64> {
    let mean = samples.iter().map(|(_, cost)| cost).sum::<f64>() / samples.len() as f64;
    let total: f64 = samples.iter().map(|(_, cost)| (cost - mean).powi(2)).sum();
    let left: f64 = samples.iter().map(|(features, cost)| (cost - weights.cost(features)).powi(2)).sum();
    (samples.len() > 1 && total > 0.0).then(|| 1.0 - left / total)
}

/// Finds the weights of the chosen terms (a bit mask of columns) with which each row, multiplied by them,
/// comes closest to 1 in the least-squares sense; all other weights are 0. `None` if there is no unique
/// solution.
fn least_squares(rows: &[[f64; TERMS]], chosen: u32) -> Option<[f64; TERMS]> {
    let terms: Vec<usize> = (0..TERMS).filter(|term| chosen >> term & 1 == 1).collect();
    // Columns are scaled to equal size, so that one bound on pivots fits all.
    let sizes: Vec<f64> =
        terms.iter().map(|term| rows.iter().map(|row| row[*term].powi(2)).sum::<f64>().sqrt()).collect();
    if sizes.iter().any(|size| *size <= 0.0) {
        return None;
    }
    let column = |at: usize, row: &[f64; TERMS]| row[terms[at]] / sizes[at];
    let count = terms.len();
    let mut system = vec![vec![0.0; count + 1]; count];
    for row in rows {
        for (at, equation) in system.iter_mut().enumerate() {
            (0..count).for_each(|other| equation[other] += column(at, row) * column(other, row));
            equation[count] += column(at, row);
        }
    }
    let solved = solve(&mut system)?;
    let mut weights = [0.0; TERMS];
    terms.iter().zip(&sizes).zip(solved).for_each(|((term, size), value)| weights[*term] = value / size);
    Some(weights)
}

/// Solves linear equations by elimination, with the largest pivot first. Each row of `system` holds the
/// coefficients of one equation, and at its end the right side. `None` if there is no unique solution.
fn solve(system: &mut [Vec<f64>]) -> Option<Vec<f64>> {
    let count = system.len();
    for at in 0..count {
        let pivot =
            (at..count).max_by(|one, other| system[*one][at].abs().total_cmp(&system[*other][at].abs()))?;
        if system[pivot][at].abs() < PIVOT_MIN {
            return None;
        }
        system.swap(at, pivot);
        let (done, rest) = system.split_at_mut(at + 1);
        for equation in rest {
            let factor = equation[at] / done[at][at];
            equation.iter_mut().zip(&done[at]).for_each(|(value, upper)| *value -= factor * upper);
        }
    }
    let mut solved = vec![0.0; count];
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count).map(|other| system[at][other] * solved[other]).sum();
        solved[at] = (system[at][count] - known) / system[at][at];
    }
    Some(solved)
}

fn dot(one: &[f64; TERMS], other: &[f64; TERMS]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir::policy::price::{self, Asked};
    use weir::values::Random;
    use weir::values::{self, UNIT};

    const TRUE: Weights = Weights { base: 3.0, kib_in: 0.4, kib_out: 0.7, row: 0.05, key: 0.3 };

    /// Returns requests of all sizes with their costs under these weights, with relative errors of up to
    /// `noise`.
    fn samples(weights: &Weights, noise: f64, random: &mut Random) -> Vec<(Features, f64)> {
        (0..60)
            .map(|_| {
                let mut up_to = |most: f64| most.powf(random.unit()) - 1.0;
                let features = Features {
                    kib_in: up_to(65.0),
                    kib_out: up_to(129.0),
                    rows: up_to(1_001.0),
                    keys: up_to(101.0),
                };
                (features, weights.cost(&features) * (1.0 + noise * (2.0 * random.unit() - 1.0)))
            })
            .collect()
    }

    fn near(found: f64, wanted: f64, tolerance: f64) -> bool {
        (found - wanted).abs() <= tolerance * wanted.abs().max(0.01)
    }

    #[test]
    fn exact_costs_give_the_weights_back() {
        let samples = samples(&TRUE, 0.0, &mut Random::new(1));
        let found = fit(&samples).expect("all terms are told apart");
        assert!(
            found.terms().iter().zip(TRUE.terms()).all(|(found, wanted)| near(*found, wanted, 1e-6)),
            "{found:?}"
        );
        assert!(near(r_squared(&found, &samples).expect("costs differ"), 1.0, 1e-9));
        assert!(near(found.in_units().expect("there is a base").row, 0.05 / 3.0, 1e-6));
    }

    #[test]
    fn noise_in_proportion_to_the_cost_moves_the_weights_little() {
        for seed in 0..20 {
            let random = &mut Random::new(seed);
            let found = fit(&samples(&TRUE, 0.1, random)).expect("all terms are told apart");
            assert!(near(found.base, 3.0, 0.2) && near(found.row, 0.05, 0.3), "seed {seed}: {found:?}");
            assert!(r_squared(&found, &samples(&TRUE, 0.1, random)).expect("costs differ") > 0.9);
        }
    }

    /// Checks that the fit is the optimum without negative weights: no small step in an allowed direction is
    /// better.
    #[test]
    fn no_weight_is_below_zero_and_no_small_change_is_better() {
        let error = |weights: &Weights, samples: &[(Features, f64)]| -> f64 {
            samples.iter().map(|(features, cost)| (weights.cost(features) / cost - 1.0).powi(2)).sum()
        };
        // Requests seem cheaper the more bytes they carry, so the unconstrained optimum has a negative
        // weight.
        let odd = Weights { kib_in: -0.01, ..TRUE };
        for seed in 0..20 {
            let samples = samples(&odd, 0.3, &mut Random::new(seed));
            let found = fit(&samples).expect("all terms are told apart");
            assert!(found.terms().iter().all(|weight| *weight >= 0.0), "{found:?}");
            for term in 0..TERMS {
                for step in [-1e-4, 1e-4] {
                    let mut terms = found.terms();
                    terms[term] = (terms[term] + step).max(0.0);
                    assert!(error(&Weights::of(terms), &samples) >= error(&found, &samples) - 1e-9);
                }
            }
        }
    }

    /// Checks that a fitted cost in units is the price that weir computes for the request.
    #[test]
    fn a_cost_in_units_is_the_price_of_the_request() {
        let units = TRUE.in_units().expect("there is a base");
        let micro = |weight: f64| (weight * UNIT as f64).round() as u64;
        let weights = values::Weights {
            base: micro(units.base),
            hit: 0,
            kib_in: micro(units.kib_in),
            kib_out: micro(units.kib_out),
            row: micro(units.row),
            key: micro(units.key),
            latency_ms: 0,
            busy_ms: 0,
        };
        for (bytes_in, bytes_out, rows, keys) in
            [(30, 70, 0, 0), (40, 65_536, 1, 0), (50, 12_000, 500, 0), (9_000, 5, 0, 300), (900, 800, 9, 9)]
        {
            let asked = Asked { requests: 1, bytes_in, keys, ..Asked::default() };
            let measured = price::Measured { bytes_out, rows, ..price::Measured::default() };
            let kib = |bytes: u64| bytes as f64 / 1_024.0;
            let (rows, keys) = (rows as f64, keys as f64);
            let features = Features { kib_in: kib(bytes_in), kib_out: kib(bytes_out), rows, keys };
            let total = weights.breakdown(&asked, &measured).total().micro() as f64 / UNIT as f64;
            assert!(near(total, units.cost(&features), 1e-4), "{total} {features:?}");
        }
    }

    #[test]
    fn samples_that_tell_too_little_give_nothing() {
        assert_eq!(fit(&[]), None);
        let alike: Vec<_> =
            (0..9).map(|_| (Features { kib_in: 1.0, kib_out: 2.0, rows: 3.0, keys: 4.0 }, 5.0)).collect();
        assert_eq!(fit(&alike), None);
        assert_eq!(r_squared(&TRUE, &alike), None);
        // Rows that always come with the same number of bytes are the same term twice.
        let bound = (1..9).map(f64::from).map(|rows| {
            (Features { kib_in: 1.0 / rows, kib_out: rows * 0.1, rows, keys: rows.sqrt() }, 1.0 + rows)
        });
        assert_eq!(fit(&bound.collect::<Vec<_>>()), None);
        assert_eq!(Weights::default().in_units(), None);
    }

    #[test]
    fn weights_that_foretell_nothing_have_no_r_squared_to_speak_of() {
        let samples = samples(&TRUE, 0.0, &mut Random::new(3));
        let mean = samples.iter().map(|(_, cost)| cost).sum::<f64>() / samples.len() as f64;
        let flat = Weights { base: mean, ..Weights::default() };
        assert!(near(r_squared(&flat, &samples).expect("costs differ") + 1.0, 1.0, 1e-9));
    }
}
