//! The arguments of a library function, checked as Lua's own libraries check them.

use mlua::{Error, Integer, Lua, LuaString, MultiValue, Table, Value};

use super::errors::{bad_argument, wrong_type};
use crate::store::numbers;

/// The digits with which Lua spells numbers.
pub(super) const LUA_PRECISION: usize = 14;

/// The arguments of a call, counted from one in errors and from zero here.
pub(super) struct Given<'a> {
    lua: &'a Lua,
    values: &'a MultiValue,
    /// A value that counts as one more argument, after the last: nil if [`Given::and_nil`] added it.
    behind: Option<&'a Value>,
}

impl<'a> Given<'a> {
    pub(super) fn new(lua: &'a Lua, values: &'a MultiValue) -> Self {
        Self { lua, values, behind: None }
    }

    /// Makes a nil count as one more argument, after the last.
    pub(super) fn and_nil(self) -> Self {
        Self { behind: Some(&Value::Nil), ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&'a Value> {
        self.values.get(index).or(self.behind.filter(|_| index == self.values.len()))
    }

    /// True if the argument is nil or missing.
    pub(super) fn is_nil(&self, index: usize) -> bool {
        self.get(index).is_none_or(Value::is_nil)
    }

    /// Returns an argument as a string; a number is spelled as Lua does. An error for other types.
    pub(super) fn text(&self, index: usize) -> Result<LuaString, Error> {
        match self.get(index) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Integer(number)) => self.spelled(*number as f64),
            Some(Value::Number(number)) => self.spelled(*number),
            other => Err(wrong_type(self.lua, index + 1, "string", other)),
        }
    }

    fn spelled(&self, number: f64) -> Result<LuaString, Error> {
        let mut spelled = Vec::new();
        numbers::write_general(&mut spelled, number, LUA_PRECISION);
        self.lua.create_string(spelled)
    }

    /// Returns an argument as a number; a string may spell one. An error for others.
    pub(super) fn number(&self, index: usize) -> Result<f64, Error> {
        let given = self.get(index);
        let number = given.map_or(Ok(None), |value| self.lua.coerce_number(value.clone()))?;
        number.ok_or_else(|| wrong_type(self.lua, index + 1, "number", given))
    }

    /// Returns an argument that is a number without its fraction, as C cuts it off.
    pub(super) fn integer(&self, index: usize) -> Result<Integer, Error> {
        self.number(index).map(cut)
    }

    /// Returns an argument that is a number without its fraction, or `other` if it is nil or missing.
    pub(super) fn integer_or(&self, index: usize, other: Integer) -> Result<Integer, Error> {
        if self.is_nil(index) { Ok(other) } else { self.integer(index) }
    }

    pub(super) fn table(&self, index: usize) -> Result<Table, Error> {
        match self.get(index) {
            Some(Value::Table(table)) => Ok(table.clone()),
            other => Err(wrong_type(self.lua, index + 1, "table", other)),
        }
    }

    /// Returns an error for an argument, with this reason, unless `wanted` is true.
    pub(super) fn check(&self, wanted: bool, index: usize, reason: &str) -> Result<(), Error> {
        if wanted { Ok(()) } else { Err(bad_argument(self.lua, index + 1, reason)) }
    }
}

/// A number without its fraction; the least integer for those beyond the range, as on x86-64.
pub(super) fn cut(number: f64) -> Integer {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if (-BEYOND..BEYOND).contains(&number) { number as Integer } else { Integer::MIN }
}
