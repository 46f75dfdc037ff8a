//! The writer of JSON: `cjson.encode` of Lua scripts.

use mlua::{Error, Integer, Lua, MultiValue, Table, Value};

use super::{DEPTH_MAX, Invalid, Settings, check_only_argument, one};
use crate::store::numbers;
use crate::store::scripts::errors::{raise, type_name};
use crate::store::scripts::fuel::{Ending, TABLE_UNITS};
use crate::store::scripts::machine::Shared;

const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";
/// Number of bytes of a string that are written before the memory of the text is checked again.
const TEXT_BYTES_AT_ONCE: usize = 4_096;

pub(super) fn encode(
    lua: &Lua,
    shared: &Shared,
    settings: &Settings,
    arguments: &MultiValue,
) -> Result<MultiValue, Error> {
    check_only_argument(lua, arguments)?;
    let mut encoder = Encoder { lua, shared, settings, out: Vec::new() };
    let encoded = encoder.value(&arguments[0], 0);
    shared.fuel.spend_bytes(encoder.out.len())?;
    encoded?;
    Ok(one(Value::String(lua.create_string(encoder.out)?)))
}

struct Encoder<'a> {
    lua: &'a Lua,
    shared: &'a Shared,
    settings: &'a Settings,
    out: Vec<u8>,
}

impl Encoder<'_> {
    fn refuse(&self, value: &Value, reason: &str) -> Error {
        raise(self.lua, format!("Cannot serialise {}: {reason}", type_name(value)))
    }

    fn check_memory(&self) -> Result<(), Error> {
        let is_over = self.out.len() > self.shared.memory_max;
        if is_over { Err(self.shared.fuel.end(Ending::Memory)) } else { Ok(()) }
    }

    fn value(&mut self, value: &Value, depth: Integer) -> Result<(), Error> {
        self.check_memory()?;
        match value {
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Integer(number) => self.number(*number as f64, value)?,
            Value::Number(number) => self.number(*number, value)?,
            Value::Boolean(truth) => self.out.extend_from_slice(if *truth { b"true" } else { b"false" }),
            Value::Nil => self.out.extend_from_slice(b"null"),
            null if *null == Value::NULL => self.out.extend_from_slice(b"null"),
            Value::Table(table) => self.table(table, value, depth + 1)?,
            other => return Err(self.refuse(other, "type not supported")),
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Result<(), Error> {
        self.out.push(b'"');
        for part in text.chunks(TEXT_BYTES_AT_ONCE) {
            // One byte of the string may become six.
            self.check_memory()?;
            self.text_part(part);
        }
        self.out.push(b'"');
        Ok(())
    }

    fn text_part(&mut self, part: &[u8]) {
        for byte in part {
            match byte {
                b'"' | b'\\' | b'/' => self.out.extend_from_slice(&[b'\\', *byte]),
                0x08 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                0x0c => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..=0x1f | 0x7f => {
                    let digits = [HEXADECIMAL[usize::from(byte >> 4)], HEXADECIMAL[usize::from(byte & 15)]];
                    self.out.extend_from_slice(b"\\u00");
                    self.out.extend_from_slice(&digits);
                }
                other => self.out.push(*other),
            }
        }
    }

    fn number(&mut self, number: f64, value: &Value) -> Result<(), Error> {
        if !number.is_finite() {
            match self.settings.encodes_invalid.get() {
                Invalid::Refused => return Err(self.refuse(value, "must not be NaN or Inf")),
                Invalid::Null => {
                    self.out.extend_from_slice(b"null");
                    return Ok(());
                }
                Invalid::Spelled if number.is_nan() => {
                    self.out.extend_from_slice(b"nan");
                    return Ok(());
                }
                Invalid::Spelled => {}
            }
        }
        numbers::write_general(&mut self.out, number, self.settings.precision.get() as usize);
        Ok(())
    }

    fn table(&mut self, table: &Table, value: &Value, depth: Integer) -> Result<(), Error> {
        if depth > self.settings.encode_depth_max.get().min(DEPTH_MAX) {
            return Err(raise(self.lua, format!("Cannot serialise, excessive nesting ({depth})")));
        }
        self.shared.fuel.spend(TABLE_UNITS)?;
        match self.array_length(table, value)? {
            Some(length) => self.array(table, length, depth),
            None => self.object(table, depth),
        }
    }

    /// Returns the length of the JSON array that a table becomes; `None` if the table becomes an object, as
    /// an empty one does. An error for an array with too many gaps, unless a setting turns such arrays into
    /// objects. An index beyond 32 bits counts as the least 32-bit integer, as in C on x86-64.
    #[expect(clippy::float_cmp, reason = "a whole number equals its own whole part")]
    fn array_length(&self, table: &Table, value: &Value) -> Result<Option<Integer>, Error> {
        let (mut largest, mut items, mut is_array) = (0_i32, 0, true);
        table.for_each(|key: Value, _: Value| {
            let index = match key {
                Value::Integer(index) => index as f64,
                Value::Number(number) if number.floor() == number => number,
                _ => 0.0,
            };
            if index < 1.0 {
                is_array = false;
            } else if index > f64::from(largest) {
                largest = if index > f64::from(i32::MAX) { i32::MIN } else { index as i32 };
            }
            items += 1;
            self.shared.fuel.spend(1)
        })?;
        let largest = Integer::from(largest);
        if !is_array || largest == 0 {
            return Ok(None);
        }
        let ratio = self.settings.sparse_ratio.get();
        if ratio > 0 && largest > items * ratio && largest > self.settings.sparse_safe.get() {
            if !self.settings.converts_sparse.get() {
                return Err(self.refuse(value, "excessively sparse array"));
            }
            return Ok(None);
        }
        Ok((largest > 0).then_some(largest))
    }

    fn array(&mut self, table: &Table, length: Integer, depth: Integer) -> Result<(), Error> {
        self.shared.fuel.spend(length as u64)?;
        self.out.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.out.push(b',');
            }
            self.value(&table.raw_get(index)?, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: Integer) -> Result<(), Error> {
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            self.shared.fuel.spend(1)?;
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.text(&text.as_bytes())?,
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.value(&key, depth)?;
                    self.out.push(b'"');
                }
                other => return Err(self.refuse(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}
