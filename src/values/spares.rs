//! Things kept to be used again: as many as are in use, and no more for long.

use std::collections::VecDeque;

/// A stack of spare things. What was not needed since it was tidied last is let go, half of it each time.
#[derive(Debug)]
pub struct Spares<T> {
    kept: Vec<T>,
    most: usize,
    /// The fewest that there were since then.
    unused: usize,
}

impl<T> Spares<T> {
    /// None yet, and never more than so many.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, unused: 0 }
    }

    /// One of them.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let spare = self.kept.pop();
        self.unused = self.unused.min(self.kept.len());
        spare
    }

    /// Is there room for one more?
    pub fn has_room(&self) -> bool {
        self.kept.len() < self.most
    }

    /// Keeps one more, if there is room.
    pub fn push(&mut self, spare: T) {
        if self.has_room() {
            self.kept.push(spare);
        }
    }

    /// Lets go of half of what was not needed since the last time. False once nothing is left to let go of.
    pub fn tidy(&mut self, let_go: impl FnMut(T)) -> bool {
        let surplus = self.unused.div_ceil(2);
        self.kept.drain(..surplus).for_each(let_go);
        if self.kept.is_empty() {
            self.kept = Vec::new();
        }
        self.unused = self.kept.len();
        !self.kept.is_empty()
    }
}

/// Lists up to this length are left alone.
const LIST_KEPT: usize = 64;

/// Shortens a list that is much longer than what stands in it.
pub fn shorten<T>(list: &mut VecDeque<T>) {
    if list.capacity() > LIST_KEPT && list.len() < list.capacity() / 4 {
        list.shrink_to((list.len() * 2).max(LIST_KEPT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays_and_the_rest_goes() {
        let mut spares = Spares::new(100);
        (0..200).for_each(|spare| spares.push(spare));
        assert!(!spares.has_room());
        assert!(spares.tidy(drop), "all of them were needed until now");
        for _ in 0..20 {
            let used: Vec<i32> = (0..10).filter_map(|_| spares.pop()).collect();
            assert_eq!(used.len(), 10, "what is in use is there");
            used.into_iter().for_each(|spare| spares.push(spare));
            assert!(spares.tidy(drop));
        }
        assert_eq!(spares.kept.len(), 10);
        assert!((0..6).any(|_| !spares.tidy(drop)) && spares.pop().is_none(), "half of it each time");
    }
}
