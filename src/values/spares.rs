//! Spare objects kept for reuse: after a burst, half of the unneeded ones are dropped at each tidying.

use std::collections::VecDeque;

/// A stack of spare objects. Each call of [`Spares::tidy`] drops half of those that were not needed since the
/// last call.
#[derive(Debug)]
pub struct Spares<T> {
    kept: Vec<T>,
    most: usize,
    /// The fewest objects that were in the stack at any time since the last call of [`Spares::tidy`]: as many
    /// were not needed.
    unused: usize,
}

impl<T> Spares<T> {
    /// Creates an empty stack of spare objects that keeps at most `most` of them.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, unused: 0 }
    }

    /// Takes a spare object from the stack; None if there is none.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let spare = self.kept.pop();
        self.unused = self.unused.min(self.kept.len());
        spare
    }

    /// True if one more spare object may be kept.
    pub fn has_room(&self) -> bool {
        self.kept.len() < self.most
    }

    /// Keeps an object for reuse, or drops it if there is no room.
    pub fn push(&mut self, spare: T) {
        if self.has_room() {
            self.kept.push(spare);
        }
    }

    /// Removes half of the spare objects that were not needed since the last call, and passes them to
    /// `let_go`. False once the stack is empty.
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

/// Capacity of a list in elements up to which [`shorten`] frees none of its memory.
const LIST_KEPT: usize = 64;

/// Frees memory of a list whose capacity is above 64 elements and more than four times its length.
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
