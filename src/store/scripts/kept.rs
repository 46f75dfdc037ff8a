//! Functions that are kept in a Lua interpreter for later calls. They lie in a Lua table, because an
//! interpreter has room for only 8,000 references from outside, of which a script needs one for each argument
//! of a call.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use mlua::{Error, Function, Lua, Table, Value};

/// Functions of a Lua interpreter, by keys of type `K`. All of them together take one reference to the
/// interpreter.
pub(super) struct Kept<K> {
    /// The Lua table in which the functions are kept; the index of each is its place.
    table: Table,
    places: HashMap<K, usize>,
    /// The places in the table that were used and are free again.
    free: Vec<usize>,
}

impl<K: Eq + Hash> Kept<K> {
    pub(super) fn new(lua: &Lua) -> Result<Self, Error> {
        Ok(Self { table: lua.create_table()?, places: HashMap::new(), free: Vec::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Result<Option<Function>, Error>
    where
        K: Borrow<Q>,
    {
        self.places.get(key).map(|place| self.table.raw_get(*place)).transpose()
    }

    /// Keeps a function for later calls under `key`, in place of one that was kept under it before. An error
    /// if the interpreter has no memory left; nothing changes then.
    pub(super) fn insert(&mut self, key: K, function: &Function) -> Result<(), Error> {
        let next = self.places.len() + self.free.len() + 1;
        let known = self.places.get(&key).copied();
        let place = known.or_else(|| self.free.last().copied()).unwrap_or(next);
        self.table.raw_set(place, function)?;
        if known.is_none() {
            self.free.pop();
            self.places.insert(key, place);
        }
        Ok(())
    }

    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(place) = self.places.remove(key) {
            // If the interpreter has no memory even for that, the function stays until another one takes its place.
            self.table.raw_set(place, Value::Nil).ok();
            self.free.push(place);
        }
    }

    /// Forgets all functions that were kept, so that the interpreter can free their memory. An error if the
    /// interpreter fails.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        self.table.clear()?;
        self.places.clear();
        self.free.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let lua = Lua::new();
        let function = |number: i64| lua.create_function(move |_, ()| Ok(number)).expect("there is memory");
        let mut kept = Kept::new(&lua).expect("there is memory");
        let mut called = |steps: &[(u8, Option<i64>)]| {
            for (key, number) in steps {
                match number {
                    Some(number) => kept.insert(*key, &function(*number)).expect("there is memory"),
                    None => kept.remove(key),
                }
            }
            let value =
                |key| kept.get(&key).expect("it is one").map(|found| found.call::<i64>(()).expect("it runs"));
            ([value(1), value(2), value(3)], kept.table.raw_len())
        };
        assert_eq!(called(&[(1, Some(10)), (2, Some(20)), (2, Some(21))]), ([Some(10), Some(21), None], 2));
        assert_eq!(called(&[(1, None), (3, Some(30))]), ([None, Some(21), Some(30)], 2));
        assert_eq!(called(&[(1, Some(11))]), ([Some(11), Some(21), Some(30)], 3));
        kept.clear().expect("there is memory");
        assert!(kept.get(&1).expect("it is none").is_none() && kept.len() == 0);
    }
}
