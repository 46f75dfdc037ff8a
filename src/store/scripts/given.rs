//! The arguments of a library function, checked in the manner and with the error texts of Lua's own
//! libraries.

use mlua::{Error, Integer, Lua, LuaString, MultiValue, Table, Value};

use super::errors::{bad_argument, wrong_type};
use crate::store::numbers;

/// The number of significant digits with which Lua writes a number as a string.
pub(super) const LUA_PRECISION: usize = 14;

/// The longest string that is taken for a number, in bytes; a longer one counts as no number. To read such a
/// one, spaces or zeroes for the most part, could keep everybody waiting.
const NUMBER_BYTES_MAX: usize = 4096;

/// The arguments of one call of a library function by a script. Indices count from 0 here, and from 1 in
/// error texts.
pub(super) struct Given<'a> {
    lua: &'a Lua,
    values: &'a MultiValue,
    /// The value that stands for an argument after the last one: nil if an error about a missing argument is
    /// to say `nil`, else `None`.
    behind: Option<&'a Value>,
}

impl<'a> Given<'a> {
    pub(super) fn new(lua: &'a Lua, values: &'a MultiValue) -> Self {
        Self { lua, values, behind: None }
    }

    /// Adds a nil after the last argument, so that the error about a missing argument says `nil` instead of
    /// `no value`.
    pub(super) fn and_nil(self) -> Self {
        Self { behind: Some(&Value::Nil), ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<&'a Value> {
        self.values.get(index).or(self.behind.filter(|_| index == self.values.len()))
    }

    /// True if the argument at `index` (from 0) is nil or missing.
    pub(super) fn is_nil(&self, index: usize) -> bool {
        self.get(index).is_none_or(Value::is_nil)
    }

    /// Returns the argument at `index` (from 0) as a string; a number is converted as Lua does. An error for
    /// other types.
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

    /// Returns the argument at `index` (from 0) as a number; a string of at most 4 KiB that spells a number is
    /// converted. An error for other values.
    pub(super) fn number(&self, index: usize) -> Result<f64, Error> {
        let given = self.get(index);
        let is_long = matches!(given, Some(Value::String(text)) if text.as_bytes().len() > NUMBER_BYTES_MAX);
        let short = given.filter(|_| !is_long);
        let number = short.map_or(Ok(None), |value| self.lua.coerce_number(value.clone()))?;
        number.ok_or_else(|| wrong_type(self.lua, index + 1, "number", given))
    }

    /// Returns the argument at `index` (from 0) as an integer; a fraction is cut off as in C. An error if the
    /// argument is no number.
    pub(super) fn integer(&self, index: usize) -> Result<Integer, Error> {
        self.number(index).map(cut)
    }

    /// Returns the argument at `index` (from 0) as an integer with its fraction cut off, or `other` if the
    /// argument is nil or missing. An error if it is anything else but a number.
    pub(super) fn integer_or(&self, index: usize, other: Integer) -> Result<Integer, Error> {
        if self.is_nil(index) { Ok(other) } else { self.integer(index) }
    }

    pub(super) fn table(&self, index: usize) -> Result<Table, Error> {
        match self.get(index) {
            Some(Value::Table(table)) => Ok(table.clone()),
            other => Err(wrong_type(self.lua, index + 1, "table", other)),
        }
    }

    /// Fails with `reason` as the error about the argument at `index` (from 0) unless `wanted` is true.
    pub(super) fn check(&self, wanted: bool, index: usize, reason: &str) -> Result<(), Error> {
        if wanted { Ok(()) } else { Err(bad_argument(self.lua, index + 1, reason)) }
    }
}

/// Returns the number without its fraction. Numbers beyond the range of an integer, and NaN, become the least
/// integer, as on x86-64.
pub(super) fn cut(number: f64) -> Integer {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if (-BEYOND..BEYOND).contains(&number) { number as Integer } else { Integer::MIN }
}
