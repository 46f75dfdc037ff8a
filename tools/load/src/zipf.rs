//! Zipf's law: the k-th most frequent key is requested `k^-s` times as often as the first.
//!
//! Uses rejection inversion (Hörmann and Derflinger, 1996): constant time and memory for any number of keys.

use weir::values::Random;

/// A generator of random ranks from 1 to `keys` by Zipf's law: rank k comes in proportion to `k^-exponent`.
#[derive(Clone, Debug)]
pub struct Zipf {
    keys: f64,
    exponent: f64,
    area_of_first: f64,
    area_of_all: f64,
    always_accepted: f64,
}

impl Zipf {
    /// Creates a distribution by Zipf's law over `keys` keys, at least one, with a positive exponent.
    pub fn new(keys: u64, exponent: f64) -> Self {
        debug_assert!(keys > 0 && exponent > 0.0);
        let keys = keys as f64;
        let mut zipf = Self { keys, exponent, area_of_first: 0.0, area_of_all: 0.0, always_accepted: 0.0 };
        zipf.area_of_first = zipf.area(1.5) - 1.0;
        zipf.area_of_all = zipf.area(keys + 0.5);
        zipf.always_accepted = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.density(2.0));
        zipf
    }

    /// Draws a random rank by Zipf's law: rank 1 comes most often.
    pub fn rank(&self, random: &mut Random) -> u64 {
        // Each try succeeds with a probability well above one half, whatever the exponent.
        loop {
            let area = self.area_of_all + random.unit() * (self.area_of_first - self.area_of_all);
            let place = self.area_inverse(area);
            let rank = place.round().clamp(1.0, self.keys);
            if rank - place <= self.always_accepted || area >= self.area(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    fn density(&self, place: f64) -> f64 {
        (-self.exponent * place.ln()).exp()
    }

    /// Returns the integral of the density (`x^-exponent`) up to `place`, plus a constant.
    fn area(&self, place: f64) -> f64 {
        let logarithm = place.ln();
        exp_m1_over((1.0 - self.exponent) * logarithm) * logarithm
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let scaled = (area * (1.0 - self.exponent)).max(-1.0);
        (ln_1p_over(scaled) * area).exp()
    }
}

/// Computes `ln(1 + x) / x`, also near zero.
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * (0.5 - x / 3.0) }
}

/// Computes `(exp(x) - 1) / x`, also near zero.
fn exp_m1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x * 0.5 * (1.0 + x / 3.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        for exponent in [0.5, 0.99, 1.0, 1.3, 2.0] {
            let keys = 1_000_u64;
            let draws = 300_000;
            let zipf = Zipf::new(keys, exponent);
            let mut random = Random::new(7);
            let mut seen = vec![0_u32; keys as usize + 1];
            for _ in 0..draws {
                seen[zipf.rank(&mut random) as usize] += 1;
            }
            let weights: f64 = (1..=keys).map(|rank| (rank as f64).powf(-exponent)).sum();
            for rank in [1_u32, 2, 3, 10] {
                let expected = f64::from(draws) * f64::from(rank).powf(-exponent) / weights;
                let found = f64::from(seen[rank as usize]);
                let tolerance = 5.0 * expected.sqrt();
                assert!((found - expected).abs() < tolerance, "s={exponent} rank={rank} {found} {expected}");
            }
        }
    }

    #[test]
    fn one_key_is_always_it() {
        let mut random = Random::new(3);
        assert!((0..100).all(|_| Zipf::new(1, 0.99).rank(&mut random) == 1));
    }
}
