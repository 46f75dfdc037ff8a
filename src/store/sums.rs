//! Sums of the lengths of a row of pieces (a Fenwick tree). They find the number of elements before a piece,
//! and the piece that contains an element, in a number of steps that grows with the logarithm of the number
//! of pieces.

use super::table::shrink;

/// The lengths of pieces in a row, as a Fenwick tree. Its entry for piece `i` (from 1) is the sum of the
/// lengths of `b` pieces, of which piece `i` is the last, where `b` is the value of the lowest bit of `i`
/// that is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(Vec<usize>);

/// Returns the value of the lowest bit of `place` that is set.
const fn lowest_bit(place: usize) -> usize {
    place & place.wrapping_neg()
}

impl Sums {
    /// Takes new pieces of these lengths in place of all former ones.
    pub(super) fn rebuild(&mut self, lengths: impl Iterator<Item = usize>) {
        let Self(sums) = self;
        sums.clear();
        sums.extend(lengths);
        sums.shrink_to(sums.len() * 2);
        for place in 1..=sums.len() {
            let above = place + lowest_bit(place);
            if above <= sums.len() {
                sums[above - 1] += sums[place - 1];
            }
        }
    }

    /// Adds a piece of this length behind the others.
    pub(super) fn push(&mut self, length: usize) {
        let place = self.0.len() + 1;
        let covered = self.before(place - 1) - self.before(place - lowest_bit(place));
        self.0.push(covered + length);
    }

    /// Removes all pieces but the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        let Self(sums) = self;
        sums.truncate(count);
        shrink(sums);
    }

    /// Counts one more element in the piece at `index`.
    pub(super) fn increase(&mut self, index: usize) {
        self.change(index, |sum| *sum += 1);
    }

    /// Counts one element less in the piece at `index`, which must not be empty.
    pub(super) fn decrease(&mut self, index: usize) {
        self.change(index, |sum| *sum -= 1);
    }

    fn change(&mut self, index: usize, change: impl Fn(&mut usize)) {
        let mut place = index + 1;
        while let Some(sum) = self.0.get_mut(place - 1) {
            change(sum);
            place += lowest_bit(place);
        }
    }

    /// Returns the number of elements in all pieces before the one at `index`.
    pub(super) fn before(&self, index: usize) -> usize {
        let (mut place, mut sum) = (index, 0);
        while place > 0 {
            sum += self.0[place - 1];
            place -= lowest_bit(place);
        }
        sum
    }

    /// Returns the index of the piece that contains the element at `position` of the whole row, and the
    /// element's position in that piece. For a position after the last element, returns the number of pieces,
    /// and `position` less the number of all elements.
    pub(super) fn find(&self, position: usize) -> (usize, usize) {
        let (mut index, mut left) = (0, position);
        let mut step = self.0.len().checked_ilog2().map_or(0, |log| 1 << log);
        while step > 0 {
            if let Some(sum) = self.0.get(index + step - 1).filter(|sum| **sum <= left) {
                left -= sum;
                index += step;
            }
            step /= 2;
        }
        (index, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    #[test]
    fn pieces_at_the_end_come_and_go() {
        let mut random = Random::new(5);
        let (mut lengths, mut sums) = (Vec::new(), Sums::default());
        for _ in 0..3_000 {
            if random.index(3) > 0 {
                let length = random.index(4);
                lengths.push(length);
                sums.push(length);
            } else {
                let count = lengths.len().saturating_sub(random.index(3));
                lengths.truncate(count);
                sums.truncate(count);
            }
            let mut anew = Sums::default();
            anew.rebuild(lengths.iter().copied());
            assert_eq!(sums.0, anew.0);
        }
        sums.truncate(0);
        assert!(sums.0.capacity() <= 4);
    }

    #[test]
    fn sums_and_places_are_those_of_counting() {
        let mut random = Random::new(3);
        for pieces in 0..70 {
            let mut lengths: Vec<usize> = (0..pieces).map(|_| 1 + random.index(5)).collect();
            let mut sums = Sums::default();
            sums.rebuild(lengths.iter().copied());
            for _ in 0..20 {
                if pieces > 0 {
                    let index = random.index(pieces);
                    if lengths[index] > 1 && random.index(2) == 0 {
                        lengths[index] -= 1;
                        sums.decrease(index);
                    } else {
                        lengths[index] += 1;
                        sums.increase(index);
                    }
                }
                let (mut before, mut places) = (0, Vec::new());
                for (index, length) in lengths.iter().enumerate() {
                    assert_eq!(sums.before(index), before);
                    before += length;
                    places.extend((0..*length).map(|place| (index, place)));
                }
                places.extend([(pieces, 0), (pieces, 1)]);
                assert_eq!(sums.before(pieces), before);
                let found: Vec<(usize, usize)> = (0..places.len()).map(|at| sums.find(at)).collect();
                assert_eq!(found, places);
            }
        }
    }
}
