//! The value of a hash: its fields. A small hash keeps its fields in the order in which they were added, as
//! in Redis.

use super::expiries::Expiries;
use super::keyspace::NEVER_MS;
use super::shapes::Size;
use super::table::{Hasher, Keyed, TABLE_BYTES, Table, place_bytes, shrink};
use super::text::Text;

/// The approximate bytes of the fields of a small hash besides those in proportion to their number.
const SMALL_BYTES: usize = 64;

/// A field of a hash and its value.
#[derive(Clone)]
pub(super) struct Field {
    pub(super) name: Text,
    pub(super) value: Text,
}

impl Field {
    fn cost(&self) -> usize {
        self.name.cost() + self.value.cost()
    }
}

impl Keyed for Field {
    fn key(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

/// The value of a hash: all its fields, in a vector if they are few, else in a hash table, and their
/// expiries.
#[derive(Clone)]
pub(super) struct Fields {
    shape: Shape,
    hasher: Hasher,
    bytes: usize,
    /// The expiries of the hash's fields; `None` if no field expires.
    expiries: Option<Box<Expiries>>,
}

#[derive(Clone)]
enum Shape {
    /// The fields of a small hash in the order in which they were added; a search goes through all of them.
    Small(Vec<Field>),
    Large(Table<Field>),
}

/// The effect of setting a field of a hash: the field was added, or its value was replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Added,
    Replaced,
}

impl Fields {
    pub(super) fn new(hasher: &Hasher) -> Self {
        Self { shape: Shape::Small(Vec::new()), hasher: hasher.clone(), bytes: 0, expiries: None }
    }

    pub(super) fn bytes(&self) -> usize {
        let expiries = self.expiries.as_ref().map_or(0, |expiries| size_of::<Expiries>() + expiries.bytes());
        let fixed = if self.is_small() { SMALL_BYTES } else { TABLE_BYTES };
        fixed + self.bytes + self.len() * place_bytes::<Field>() + expiries
    }

    pub(super) fn is_small(&self) -> bool {
        matches!(self.shape, Shape::Small(_))
    }

    pub(super) fn len(&self) -> usize {
        self.all().len()
    }

    /// Returns all fields of the hash, in the order in which replies list them.
    pub(super) fn all(&self) -> &[Field] {
        match &self.shape {
            Shape::Small(fields) => fields,
            Shape::Large(table) => table.entries(),
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Text> {
        self.find(name).map(|position| &self.all()[position].value)
    }

    /// True if any field of the hash has an expiry.
    pub(super) fn expires(&self) -> bool {
        self.expiries.is_some()
    }

    /// Returns the soonest expiry of any field of the hash, in milliseconds since 1970; `u64::MAX` if none
    /// expires.
    pub(super) fn soonest_ms(&self) -> u64 {
        self.expiries.as_ref().and_then(|expiries| expiries.soonest_ms()).unwrap_or(NEVER_MS)
    }

    /// True if the hash has fields and all of them expired before `now_ms`.
    pub(super) fn have_all_expired(&self, now_ms: u64) -> bool {
        let expiries = self.expiries.as_ref().filter(|expiries| expiries.len() == self.len());
        expiries.and_then(|expiries| expiries.latest_ms()).is_some_and(|latest_ms| latest_ms < now_ms)
    }

    /// Returns the expiry of the field `name` of the hash, in milliseconds since 1970; `None` if it does not
    /// expire.
    pub(super) fn expiry_ms(&self, name: &[u8]) -> Option<u64> {
        self.expiries.as_ref()?.get(name)
    }

    /// Sets the expiry (milliseconds since 1970) of the field `name` of the hash, which must exist, or
    /// removes it (`None`). True if the field had an expiry before.
    pub(super) fn set_expiry(&mut self, name: &[u8], expires_ms: Option<u64>) -> bool {
        if self.expiries.is_none() && expires_ms.is_none() {
            return false;
        }
        let had = self.expiries.get_or_insert_default().set(name, expires_ms);
        self.expiries.take_if(|expiries| expiries.is_empty());
        had
    }

    /// Removes the fields of the hash that expired before `now_ms`, at most `most` of them, those that expired
    /// first. Returns how many.
    pub(super) fn remove_expired(&mut self, now_ms: u64, most: usize) -> usize {
        let mut removed = 0;
        while removed < most
            && let Some(name) = self.expiries.as_mut().and_then(|expiries| expiries.pop_expired(now_ms))
        {
            self.remove(&name);
            removed += 1;
        }
        self.expiries.take_if(|expiries| expiries.is_empty());
        removed
    }

    /// Sets the value of the field `name` of the hash. A field that exists keeps its expiry. Returns whether
    /// the field was added or had a value before.
    pub(super) fn set(&mut self, name: &[u8], value: &[u8]) -> Change {
        let value = Text::new(value);
        if let Some(position) = self.find(name) {
            let too_long = value.as_bytes().len() > self.hasher.shapes().get(Size::HashBytes);
            let field = self.at_mut(position);
            let before = field.cost();
            field.value = value;
            let after = field.cost();
            self.bytes = self.bytes + after - before;
            if too_long {
                self.enlarge();
            }
            return Change::Replaced;
        }
        if name.len().max(value.as_bytes().len()) > self.hasher.shapes().get(Size::HashBytes) {
            self.enlarge();
        }
        self.add(Field { name: Text::new(name), value });
        Change::Added
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Field> {
        let position = self.find(name)?;
        let field = match &mut self.shape {
            Shape::Small(fields) => {
                let field = fields.remove(position);
                shrink(fields);
                field
            }
            Shape::Large(table) => table.remove(position),
        };
        self.bytes -= field.cost();
        self.set_expiry(name, None);
        Some(field)
    }

    /// Visits about `count` fields in the order of the hash values of their names, from the value `from` on.
    /// Returns the hash value to continue from; `None` at the end. The fields of a small hash, which has no
    /// hash table, are visited all at once.
    pub(super) fn walk(&self, from: u32, count: usize, mut visit: impl FnMut(&Field)) -> Option<u32> {
        match &self.shape {
            Shape::Small(fields) => {
                fields.iter().for_each(visit);
                None
            }
            Shape::Large(table) => table.walk(from, count, &mut visit),
        }
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        match &self.shape {
            Shape::Small(fields) => fields.iter().position(|field| field.key() == name),
            Shape::Large(table) => table.find(table.hash(name), name),
        }
    }

    fn at_mut(&mut self, position: usize) -> &mut Field {
        match &mut self.shape {
            Shape::Small(fields) => &mut fields[position],
            Shape::Large(table) => table.at_mut(position),
        }
    }

    fn add(&mut self, field: Field) {
        self.bytes += field.cost();
        match &mut self.shape {
            Shape::Small(fields) => fields.push(field),
            Shape::Large(table) => {
                table.insert(table.hash(field.key()), field);
            }
        }
        if self.len() > self.hasher.shapes().get(Size::HashFields) {
            self.enlarge();
        }
    }

    /// Turns a small hash, whose fields are in a list, into a large one, whose fields are in a hash table. A
    /// hash that was large once stays large, as in Redis.
    fn enlarge(&mut self) {
        if let Shape::Small(fields) = &mut self.shape {
            let mut table = Table::new(self.hasher.clone());
            for field in fields.drain(..) {
                table.insert(table.hash(field.key()), field);
            }
            self.shape = Shape::Large(table);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_hashes_that_lost_their_fields_take_little_memory() {
        let mut fields = Fields::new(&Hasher::new(1));
        let names: Vec<String> = (0..100).map(|name| name.to_string()).collect();
        for name in &names {
            fields.set(name.as_bytes(), b"v");
        }
        for name in &names {
            fields.remove(name.as_bytes());
            let Shape::Small(small) = &fields.shape else { unreachable!("100 fields are few") };
            assert!(small.capacity() <= 4 * small.len().max(1), "{} places", small.capacity());
        }
    }
}
