//! The value of a set: its members. A small set of integers is kept as sorted integers, as in Redis; a small set of
//! other members is only marked as one that Redis would keep as a listpack.

use super::numbers;
use super::shapes::Size;
use super::table::{Hasher, Keyed, TABLE_BYTES, Table, place_bytes, shrink, spare_bytes};
use super::text::Text;
use crate::values::Random;

impl Keyed for Text {
    fn key(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// The approximate bytes of sorted integers besides the integers and the spare memory in proportion to them.
const INTEGERS_BYTES: usize = 24;

/// The value of a set: all its members, as sorted integers if they are few and nothing else, else in a hash
/// table.
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
    /// The set is small, and has or had other members: Redis keeps it as a listpack.
    Packed(Table<Text>),
    Texts(Table<Text>),
}

impl Members {
    pub(super) fn new(hasher: &Hasher) -> Self {
        Self { shape: Shape::Integers(Vec::new()), hasher: hasher.clone(), bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.shape {
            Shape::Integers(integers) => {
                let bytes = size_of_val(integers.as_slice());
                INTEGERS_BYTES + bytes + spare_bytes(bytes)
            }
            Shape::Packed(table) | Shape::Texts(table) => {
                TABLE_BYTES + self.bytes + table.len() * place_bytes::<Text>()
            }
        }
    }

    /// Returns the name of the set's encoding, as in `OBJECT ENCODING`.
    pub(super) fn encoding(&self) -> &'static str {
        match self.shape {
            Shape::Integers(_) => "intset",
            Shape::Packed(_) => "listpack",
            Shape::Texts(_) => "hashtable",
        }
    }

    /// Chooses the encoding of the set before `count` members are added, of which `first` is the first one: Redis
    /// does not wait for the limits to be passed if a command names more members than fit.
    pub(super) fn expect(&mut self, first: &[u8], count: usize) {
        let shapes = self.hasher.shapes();
        let (fits_integers, fits_listpack) =
            (count <= shapes.get(Size::Integers), count <= shapes.get(Size::SetMembers));
        match &self.shape {
            Shape::Integers(integers) if integers.is_empty() => {
                if numbers::integer(first).is_some() && fits_integers {
                    return;
                }
                if fits_listpack { self.begin_packed() } else { self.begin_spread() }
            }
            Shape::Integers(_) if !fits_integers => self.spell_out(),
            Shape::Packed(_) if !fits_listpack => self.unpack(),
            _ => {}
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.shape {
            Shape::Integers(integers) => integers.len(),
            Shape::Packed(table) | Shape::Texts(table) => table.len(),
        }
    }

    pub(super) fn contains(&self, member: &[u8]) -> bool {
        match &self.shape {
            Shape::Integers(integers) => {
                numbers::integer(member).is_some_and(|integer| integers.binary_search(&integer).is_ok())
            }
            Shape::Packed(table) | Shape::Texts(table) => table.find(table.hash(member), member).is_some(),
        }
    }

    /// Gives an empty set the encoding of a listpack, before its members are added.
    pub(super) fn begin_packed(&mut self) {
        self.shape = Shape::Packed(Table::new(self.hasher.clone()));
    }

    /// Gives an empty set the encoding of a hash table, before its members are added.
    pub(super) fn begin_spread(&mut self) {
        self.shape = Shape::Texts(Table::new(self.hasher.clone()));
    }

    /// Adds a member to the set. True if it is new.
    pub(super) fn insert(&mut self, member: &[u8]) -> bool {
        if let Shape::Integers(integers) = &mut self.shape {
            if let Some(integer) = numbers::integer(member) {
                let Err(place) = integers.binary_search(&integer) else { return false };
                integers.insert(place, integer);
                if integers.len() > self.hasher.shapes().get(Size::Integers) {
                    self.spell_out();
                }
                return true;
            }
            let fits = self.fits_listpack(member);
            self.spell_out();
            if fits {
                self.pack();
            }
        }
        self.insert_text(member)
    }

    /// True if the set stays within the limits of a listpack when `member` is added; all members that it has must
    /// be within them.
    fn fits_listpack(&self, member: &[u8]) -> bool {
        let shapes = self.hasher.shapes();
        let bytes_max = shapes.get(Size::SetBytes);
        let longest = match &self.shape {
            Shape::Integers(integers) => {
                let ends = integers.first().into_iter().chain(integers.last());
                ends.map(|integer| numbers::Digits::new(*integer).as_bytes().len()).max().unwrap_or(0)
            }
            Shape::Packed(_) | Shape::Texts(_) => 0,
        };
        self.len() < shapes.get(Size::SetMembers) && member.len().max(longest) <= bytes_max
    }

    /// Marks a set that is stored in a hash table as one that Redis keeps as a listpack, as `OBJECT ENCODING`
    /// then says.
    fn pack(&mut self) {
        if let Shape::Texts(table) = &mut self.shape {
            let table = std::mem::replace(table, Table::new(self.hasher.clone()));
            self.shape = Shape::Packed(table);
        }
    }

    /// Marks a set that Redis keeps as a listpack as one that it keeps as a hash table, because the set has
    /// outgrown a limit. Does nothing for any other set.
    fn unpack(&mut self) {
        if let Shape::Packed(table) = &mut self.shape {
            let table = std::mem::replace(table, Table::new(self.hasher.clone()));
            self.shape = Shape::Texts(table);
        }
    }

    /// Gives a set that is stored in a hash table the encoding of a listpack, if it is within the limits of
    /// one: as in Redis, where SPOP of nearly all members makes a new set of the rest.
    pub(super) fn pack_rest(&mut self) {
        let shapes = self.hasher.shapes();
        let (members_max, bytes_max) = (shapes.get(Size::SetMembers), shapes.get(Size::SetBytes));
        if let Shape::Texts(table) = &self.shape
            && table.len() <= members_max
            && table.entries().iter().all(|member| member.as_bytes().len() <= bytes_max)
        {
            self.pack();
        }
    }

    /// Gives a set the encoding of sorted integers if all its members are integers and not too many for it,
    /// as in Redis, where an intersection is a new set.
    pub(super) fn pack_integers(&mut self) {
        let (Shape::Packed(table) | Shape::Texts(table)) = &self.shape else { return };
        if table.len() > self.hasher.shapes().get(Size::Integers) {
            return;
        }
        let integers = table.entries().iter().map(|member| numbers::integer(member.as_bytes()));
        if let Some(mut integers) = integers.collect::<Option<Vec<i64>>>() {
            integers.sort_unstable();
            integers.shrink_to_fit();
            self.shape = Shape::Integers(integers);
            self.bytes = 0;
        }
    }

    /// Removes a member. True if it was in the set.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        match &mut self.shape {
            Shape::Integers(integers) => {
                let place =
                    numbers::integer(member).and_then(|integer| integers.binary_search(&integer).ok());
                let removed = place.map(|place| integers.remove(place)).is_some();
                shrink(integers);
                removed
            }
            Shape::Packed(table) | Shape::Texts(table) => {
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
            Shape::Packed(table) | Shape::Texts(table) => visit(table.at(position).as_bytes()),
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
                let member = Text::new(numbers::Digits::new(integers.remove(position)).as_bytes());
                shrink(integers);
                member
            }
            Shape::Packed(table) | Shape::Texts(table) => {
                let member = table.remove(position);
                self.bytes -= member.cost();
                member
            }
        })
    }

    /// Visits about `count` members of the set in the order of their hash values, from the value `from` on.
    /// Returns the hash value to continue from; `None` at the end. A small set is visited as a whole.
    pub(super) fn walk(&self, from: u32, count: usize, mut visit: impl FnMut(&[u8])) -> Option<u32> {
        match &self.shape {
            Shape::Integers(_) | Shape::Packed(_) => {
                self.for_each(visit);
                None
            }
            Shape::Texts(table) => table.walk(from, count, |member| visit(member.as_bytes())),
        }
    }

    fn insert_text(&mut self, member: &[u8]) -> bool {
        let fits = self.fits_listpack(member);
        let (Shape::Packed(table) | Shape::Texts(table)) = &mut self.shape else { return false };
        let hash = table.hash(member);
        if table.find(hash, member).is_some() {
            return false;
        }
        let member = Text::new(member);
        self.bytes += member.cost();
        table.insert(hash, member);
        if !fits {
            self.unpack();
        }
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

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    fn words(numbers: std::ops::Range<usize>, prefix: &str) -> String {
        let words: Vec<String> = numbers.map(|number| format!(" {prefix}{number}")).collect();
        words.concat()
    }

    #[test]
    fn small_sets_are_listpacks_unless_all_members_are_integers() {
        let mut bench = Bench::new();
        let (integers, small, large) = ("$6|intset|", "$8|listpack|", "$9|hashtable|");
        let (long, longest) = ("x".repeat(65), "x".repeat(64));
        bench.talk(&[
            ("SADD s a 1", ":2|"),
            ("OBJECT ENCODING s", small),
            ("SREM s a", ":1|"),
            ("OBJECT ENCODING s", small),
            ("SADD i 1 2", ":2|"),
            ("OBJECT ENCODING i", integers),
            (&format!("SADD i {longest}"), ":1|"),
            ("OBJECT ENCODING i", small),
            (&format!("SADD i {long}"), ":1|"),
            ("OBJECT ENCODING i", large),
            (&format!("SREM i {long}"), ":1|"),
            ("OBJECT ENCODING i", large),
            (&format!("SADD m{}", words(0..128, "m")), ":128|"),
            ("OBJECT ENCODING m", small),
            ("COPY m copied", ":1|"),
            ("SADD m m0 m1", ":0|"),
            ("OBJECT ENCODING m", small),
            ("SADD m one-more", ":1|"),
            ("OBJECT ENCODING m", large),
            ("SADD copied 1", ":1|"),
            ("OBJECT ENCODING copied", large),
            // Words count, not distinct members.
            (&format!("SADD twice{}", " a".repeat(129)), ":1|"),
            ("OBJECT ENCODING twice", large),
            (&format!("SADD n{}", words(0..128, "")), ":128|"),
            ("OBJECT ENCODING n", integers),
            ("SADD n a", ":1|"),
            ("OBJECT ENCODING n", large),
            ("SMOVE n new a", ":1|"),
            ("OBJECT ENCODING new", small),
        ]);
        // A listpack is scanned as a whole.
        bench.send(&format!("SADD p{}", words(0..100, "m")));
        assert!(bench.send("SSCAN p 0 COUNT 1").starts_with("*2|$1|0|*100|"));
    }

    #[test]
    fn whole_new_sets_are_small_where_redis_makes_them_so() {
        let mut bench = Bench::new();
        let (integers, small, large) = ("$6|intset|", "$8|listpack|", "$9|hashtable|");
        bench.talk(&[
            (&format!("SADD many{}", words(0..200, "m")), ":200|"),
            ("SADD mixed m1 m2 1 2", ":4|"),
            ("SADD numbers 1 2 3", ":3|"),
            ("SUNIONSTORE to many numbers", ":203|"),
            ("OBJECT ENCODING to", large),
            ("SUNIONSTORE to mixed numbers", ":5|"),
            ("OBJECT ENCODING to", small),
            ("SINTERSTORE to many mixed", ":2|"),
            ("OBJECT ENCODING to", small),
            ("SINTERSTORE to mixed numbers", ":2|"),
            ("OBJECT ENCODING to", integers),
            ("SDIFFSTORE to many mixed", ":198|"),
            ("OBJECT ENCODING to", large),
            ("SDIFFSTORE to mixed many", ":2|"),
            ("OBJECT ENCODING to", integers),
        ]);
        bench.send("SPOP many 100");
        bench.talk(&[("OBJECT ENCODING many", large)]);
        bench.send("SPOP many 90");
        bench.talk(&[("SCARD many", ":10|"), ("OBJECT ENCODING many", small)]);
        for (key, encoding) in [("mixed", small), ("numbers", integers)] {
            let dump = bench.send_bytes(&[b"DUMP", key.as_bytes()]);
            let start = dump.windows(2).position(|pair| pair == b"\r\n").expect("a bulk string") + 2;
            let dump = &dump[start..dump.len() - 2];
            assert_eq!(bench.send_bytes(&[b"RESTORE", b"to", b"0", dump, b"REPLACE"]), b"+OK\r\n");
            bench.talk(&[("OBJECT ENCODING to", encoding)]);
        }
        bench.send("FLUSHALL");
        assert_eq!(bench.engine.statistics().bytes_used, 0);
    }
}
