//! Measured costs of shapes (commands in one size each), and the weights fitted to them.

use super::fit::{self, Features, Weights};
use super::shape::SIZES;
use weir::values::Random;

/// One in this many shapes (sizes) of each command is left out of the fit, to test how well the weights
/// predict its cost.
const HELD_OUT_OF: usize = 3;

/// The measured cost of one shape (a command in one size).
#[derive(Clone, Debug)]
pub struct Measured {
    /// The name, in reports, of the measured combination of a command and a size.
    pub name: String,
    /// The parts of the measured request that weir prices: kibibytes of request and reply, rows (elements of
    /// the reply) and keys.
    pub features: Features,
    /// The cost of one request, in microseconds of the server's time, as measured in each round over all
    /// shapes.
    pub rounds_us: Vec<f64>,
    /// True if this combination of a command and a size is left out of the fit, to test how well the fitted
    /// weights predict its cost.
    pub held_out: bool,
}

impl Measured {
    /// Returns the cost of one request in microseconds of the server's time (CPU time or that of `INFO commandstats`,
    /// as `--cost` says): the median over all rounds, since other work of the machine inflates some rounds.
    pub fn cost_us(&self) -> f64 {
        median(&mut self.rounds_us.clone())
    }
}

/// Chooses, among `count` shapes (commands in one size each), those that are left out of the fit: a random
/// third of the sizes of each command, so that every command is both fitted and tested. Returns a flag for
/// each shape; the same seed gives the same choice.
pub fn held_out(count: usize, seed: u64) -> Vec<bool> {
    let mut random = Random::new(seed);
    let mut held = vec![false; count];
    for sizes in held.chunks_mut(SIZES) {
        let mut left = sizes.len() / HELD_OUT_OF;
        while left > 0 {
            let at = random.below(sizes.len() as u64) as usize;
            left -= usize::from(!sizes[at]);
            sizes[at] = true;
        }
    }
    held
}

/// The weights (prices per part of a request) that were fitted to measured costs, and how well they predict
/// costs.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// The fitted weights (prices per part of a request), in microseconds of the server's time.
    pub weights: Weights,
    /// The fitted weights in request units: divided by the base cost of a request, which is therefore 1.
    pub units: Weights,
    /// R2 (share of the differences in cost that the weights predict, at most 1) over the shapes that were
    /// fitted.
    pub r_squared_fitted: f64,
    /// R2 (share of the differences in cost that the weights predict, at most 1) over the shapes that were
    /// left out of the fit.
    pub r_squared_held_out: f64,
    /// The median relative error over the shapes that were left out of the fit: for half of them, the
    /// predicted cost differs from the measured one by at most this share of the measured one (0.1 is 10 %).
    pub relative_error_held_out: f64,
}

impl Calibration {
    /// Fits the weights of request units to measured costs, and tests them on the shapes that are left out
    /// of the fit. The error is a text for the user.
    pub fn of(measured: &[Measured]) -> Result<Self, String> {
        let samples = |held_out| -> Vec<(Features, f64)> {
            let chosen = measured.iter().filter(|shape| shape.held_out == held_out);
            chosen.map(|shape| (shape.features, shape.cost_us())).collect()
        };
        let (fitted, held_out) = (samples(false), samples(true));
        let weights =
            fit::fit(&fitted).ok_or("the shapes that were measured do not tell the weights apart")?;
        let units = weights
            .in_units()
            .ok_or("the base cost of a request was not told from nothing: measure for more --seconds")?;
        let alike = "all shapes cost the same: nothing can be said of the fit";
        let mut errors: Vec<f64> =
            held_out.iter().map(|(features, cost)| (weights.cost(features) / cost - 1.0).abs()).collect();
        Ok(Self {
            weights,
            units,
            r_squared_fitted: fit::r_squared(&weights, &fitted).ok_or(alike)?,
            r_squared_held_out: fit::r_squared(&weights, &held_out).ok_or(alike)?,
            relative_error_held_out: median(&mut errors),
        })
    }

    /// Returns the flags of weir that set these weights, to be pasted into a command line.
    pub fn flags(&self) -> String {
        let Weights { kib_in, kib_out, row, key, .. } = self.units;
        format!(
            "--ru-base 1 --ru-kib-in {} --ru-kib-out {} --ru-row {} --ru-key {}",
            three_digits(kib_in),
            three_digits(kib_out),
            three_digits(row),
            three_digits(key)
        )
    }
}

/// Formats a number to three significant digits, but with all digits before the point, without an exponent and with at
/// most six decimals; "0" for a number that is not above zero.
fn three_digits(value: f64) -> String {
    if value <= 0.0 {
        return "0".to_owned();
    }
    let decimals = (2.0 - value.log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: Weights = Weights { base: 2.0, kib_in: 0.5, kib_out: 0.25, row: 0.04, key: 0.3 };

    fn measured(cost: impl Fn(&Features) -> f64) -> Vec<Measured> {
        let held = held_out(60, 4);
        let mut random = Random::new(9);
        (0..60)
            .map(|number| {
                let mut up_to = |most: f64| most.powf(random.unit()) - 1.0;
                let features = Features {
                    kib_in: up_to(65.0),
                    kib_out: up_to(129.0),
                    rows: up_to(1_001.0),
                    keys: up_to(101.0),
                };
                // Another program disturbed one of three rounds.
                let cost = cost(&features);
                let rounds_us = vec![cost, cost * 5.0, cost];
                Measured { name: number.to_string(), features, rounds_us, held_out: held[number] }
            })
            .collect()
    }

    #[test]
    fn weights_of_a_store_are_found_in_spite_of_a_disturbed_round() {
        let found = Calibration::of(&measured(|features| TRUE.cost(features))).expect("it can be fitted");
        assert_eq!(
            found.flags(),
            "--ru-base 1 --ru-kib-in 0.25 --ru-kib-out 0.125 --ru-row 0.02 --ru-key 0.15"
        );
        assert!(found.r_squared_held_out > 0.999_999 && found.relative_error_held_out < 1e-6);
    }

    #[test]
    fn costs_that_are_not_linear_are_told_by_the_shapes_held_out() {
        let found = Calibration::of(&measured(|features| 20.0 + features.rows.powi(3) * 1e-4))
            .expect("it can be fitted");
        assert!(found.r_squared_held_out < 0.9, "{found:?}");
    }

    #[test]
    fn what_cannot_be_fitted_is_said() {
        assert!(Calibration::of(&[]).expect_err("nothing is there").contains("do not tell"));
        let no_base = measured(|features| features.kib_in + features.kib_out + features.rows);
        assert!(Calibration::of(&no_base).expect_err("no base").contains("--seconds"));
    }

    #[test]
    fn a_third_of_each_command_is_held_out() {
        let held = held_out(60, 1);
        let counts = held.chunks(SIZES).map(|sizes| sizes.iter().filter(|held| **held).count());
        assert!(counts.into_iter().all(|count| count == SIZES / HELD_OUT_OF));
        assert_eq!(held_out(60, 1), held_out(60, 1));
        assert_ne!(held_out(60, 1), held_out(60, 2));
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.012_345, "0.0123"),
            (0.25, "0.25"),
            (12.34, "12.3"),
            (1_234.5, "1234"),
            (100.0, "100"),
        ] {
            assert_eq!(three_digits(value), text);
        }
    }
}
