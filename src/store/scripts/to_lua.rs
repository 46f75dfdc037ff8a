//! Conversion of a command's reply to the Lua value that a script gets.

use mlua::{Error, Lua, Table, Value};

use super::errors::{error_table, refuse};
use super::fuel::Fuel;

/// The deepest nesting of a command's reply that can be converted to a Lua value; deeper nesting is an error.
const DEPTH_MAX: usize = 64;

/// Converts a whole reply in RESP to the Lua value that a script gets from `redis.call`. An error if the
/// reply cannot be read, or if the run time of the script, which `fuel` knows, is over.
pub(super) fn value(lua: &Lua, fuel: &Fuel, reply: &[u8]) -> Result<Value, Error> {
    Reader { lua, fuel, rest: reply }.value(0)
}

struct Reader<'a> {
    lua: &'a Lua,
    fuel: &'a Fuel,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Result<&'a [u8], Error> {
        let length = self.rest.windows(2).position(|end| end == b"\r\n").ok_or_else(broken)?;
        let line = &self.rest[..length];
        self.rest = &self.rest[length + 2..];
        Ok(line)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(broken)?;
        self.rest = rest.strip_prefix(b"\r\n").ok_or_else(broken)?;
        Ok(bytes)
    }

    fn value(&mut self, depth: usize) -> Result<Value, Error> {
        if depth > DEPTH_MAX {
            return Err(broken());
        }
        let line = self.line()?;
        let (kind, line) = line.split_first().ok_or_else(broken)?;
        match kind {
            b':' => Ok(Value::Number(number(line) as f64)),
            b'$' => match number(line) {
                length if length < 0 => Ok(Value::Boolean(false)),
                length => {
                    self.fuel.note_string()?;
                    self.lua.create_string(self.bytes(length as usize)?).map(Value::String)
                }
            },
            b'+' => self.field("ok", Value::String(self.lua.create_string(line)?)),
            b'-' => error_table(self.lua, line, true).map(Value::Table),
            b'*' | b'>' => match number(line) {
                count if count < 0 => Ok(Value::Boolean(false)),
                count => self.list(count as usize, depth).map(Value::Table),
            },
            b'%' => {
                let map = self.lua.create_table()?;
                for _ in 0..number(line).max(0) {
                    let key = self.value(depth + 1)?;
                    let value = self.value(depth + 1)?;
                    if is_key(&key) {
                        map.raw_set(key, value)?;
                    }
                }
                self.field("map", Value::Table(map))
            }
            b'~' => {
                let set = self.lua.create_table()?;
                for _ in 0..number(line).max(0) {
                    let key = self.value(depth + 1)?;
                    if is_key(&key) {
                        set.raw_set(key, true)?;
                    }
                }
                self.field("set", Value::Table(set))
            }
            b'_' => Ok(Value::Nil),
            b'#' => Ok(Value::Boolean(line == b"t")),
            b',' => {
                let value = std::str::from_utf8(line).ok().and_then(|text| text.parse::<f64>().ok());
                self.field("double", Value::Number(value.unwrap_or(f64::NAN)))
            }
            b'(' => self.field("big_number", Value::String(self.lua.create_string(line)?)),
            b'=' => {
                let text = self.bytes(number(line).max(0) as usize)?;
                let table = self.lua.create_table()?;
                table.raw_set("format", self.lua.create_string(text.get(..3).unwrap_or_default())?)?;
                table.raw_set("string", self.lua.create_string(text.get(4..).unwrap_or_default())?)?;
                self.field("verbatim_string", Value::Table(table))
            }
            _ => Err(broken()),
        }
    }

    fn list(&mut self, count: usize, depth: usize) -> Result<Table, Error> {
        let list = self.lua.create_table()?;
        for index in 1..=count {
            let value = self.value(depth + 1)?;
            list.raw_set(index, value)?;
        }
        Ok(list)
    }

    fn field(&self, name: &str, value: Value) -> Result<Value, Error> {
        let table = self.lua.create_table()?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    }
}

/// True if the value can be the key of a Lua table (neither nil nor NaN).
fn is_key(value: &Value) -> bool {
    !value.is_nil() && !matches!(value, Value::Number(number) if number.is_nan())
}

fn broken() -> Error {
    refuse("the reply of a command cannot be read")
}

fn number(line: &[u8]) -> i64 {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
