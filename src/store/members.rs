//! The value of a set: its members. A small set of integers is kept as sorted integers, as in Redis.

use super::numbers;
use super::shapes::Size;
use super::table::{Hasher, Keyed, PLACE_BYTES, Table};
use super::text::Text;
use crate::values::Random;

impl Keyed for Text {
    fn key(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// All members of a set.
#[derive(Clone)]
pub(super) struct Members {
    shape: Shape,
    hasher: Hasher,
    bytes: usize,
}

#[derive(Clone)]
enum Shape {
    /// The set is small and has only integers, kept in ascending order.
    Integers(Vec<i64>),
    Texts(Table<Text>),
}

impl Members {
    pub(super) fn new(hasher: &Hasher) -> Self {
        Self { shape: Shape::Integers(Vec::new()), hasher: hasher.clone(), bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.shape {
            Shape::Integers(integers) => size_of_val(integers.as_slice()),
            Shape::Texts(table) => self.bytes + table.len() * PLACE_BYTES,
        }
    }

    pub(super) fn is_small(&self) -> bool {
        matches!(self.shape, Shape::Integers(_))
    }

    pub(super) fn len(&self) -> usize {
        match &self.shape {
            Shape::Integers(integers) => integers.len(),
            Shape::Texts(table) => table.len(),
        }
    }

    pub(super) fn contains(&self, member: &[u8]) -> bool {
        match &self.shape {
            Shape::Integers(integers) => {
                numbers::integer(member).is_some_and(|integer| integers.binary_search(&integer).is_ok())
            }
            Shape::Texts(table) => table.find(table.hash(member), member).is_some(),
        }
    }

    /// Adds a member to the set. True if it is new.
    pub(super) fn insert(&mut self, member: &[u8]) -> bool {
        if let Shape::Integers(integers) = &mut self.shape {
            match numbers::integer(member) {
                Some(integer) => {
                    let Err(place) = integers.binary_search(&integer) else { return false };
                    integers.insert(place, integer);
                    if integers.len() > self.hasher.shapes().get(Size::Integers) {
                        self.spell_out();
                    }
                    return true;
                }
                None => self.spell_out(),
            }
        }
        self.insert_text(member)
    }

    /// Removes a member. True if it was in the set.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.shape {
            Shape::Integers(integers) => {
                let place =
                    numbers::integer(member).and_then(|integer| integers.binary_search(&integer).ok());
                place.map(|place| integers.remove(place)).is_some()
            }
            Shape::Texts(table) => {
                let Some(position) = table.find(table.hash(member), member) else { return false };
                self.bytes -= table.remove(position).cost();
                true
            }
        }
    }

    /// Calls `visit` with each member of the set, in the order in which replies list them.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&[u8])) {
        (0..self.len()).for_each(|position| self.at(position, &mut visit));
    }

    /// Calls `visit` with the members of the set, in the order in which replies list them, until it returns
    /// an error, which is returned.
    pub(super) fn try_each<E>(&self, mut visit: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        (0..self.len()).try_for_each(|position| self.at(position, &mut visit))
    }

    /// Passes the member of the set at `position`, which must be below the number of members, to `visit`, and
    /// returns the result of `visit`. Positions are valid until the next change.
    pub(super) fn at<R>(&self, position: usize, visit: impl FnOnce(&[u8]) -> R) -> R {
        match &self.shape {
            Shape::Integers(integers) => visit(numbers::Digits::new(integers[position]).as_bytes()),
            Shape::Texts(table) => visit(table.at(position).as_bytes()),
        }
    }

    /// Removes and returns a random member of the set; `None` if the set is empty.
    pub(super) fn pop(&mut self, random: &mut Random) -> Option<Text> {
        if self.len() == 0 {
            return None;
        }
        let position = random.index(self.len());
        Some(match &mut self.shape {
            Shape::Integers(integers) => {
                Text::new(numbers::Digits::new(integers.remove(position)).as_bytes())
            }
            Shape::Texts(table) => {
                let member = table.remove(position);
                self.bytes -= member.cost();
                member
            }
        })
    }

    /// Visits about `count` members of the set in the order of their hash values, from the value `from` on.
    /// Returns the hash value to continue from; `None` at the end. A set that is stored as integers is
    /// visited as a whole.
    pub(super) fn walk(&self, from: u32, count: usize, mut visit: impl FnMut(&[u8])) -> Option<u32> {
        match &self.shape {
            Shape::Integers(_) => {
                self.for_each(visit);
                None
            }
            Shape::Texts(table) => table.walk(from, count, |member| visit(member.as_bytes())),
        }
    }

    fn insert_text(&mut self, member: &[u8]) -> bool {
        let Shape::Texts(table) = &mut self.shape else { return false };
        let hash = table.hash(member);
        if table.find(hash, member).is_some() {
            return false;
        }
        let member = Text::new(member);
        self.bytes += member.cost();
        table.insert(hash, member);
        true
    }

    /// Turns a set that is stored as sorted integers into one stored as texts in a hash table; it stays one,
    /// as in Redis.
    fn spell_out(&mut self) {
        let Shape::Integers(integers) = &mut self.shape else { return };
        let integers = std::mem::take(integers);
        self.shape = Shape::Texts(Table::new(self.hasher.clone()));
        for integer in integers {
            self.insert_text(numbers::Digits::new(integer).as_bytes());
        }
    }
}
