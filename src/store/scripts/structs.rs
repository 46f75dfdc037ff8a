//! The Lua library `struct`: packs values into bytes and back, by formats like those of C structures.

use std::rc::Rc;

use mlua::{Error, Integer, Lua, LuaString, MultiValue, Table, Value};

use super::errors::{bad_argument, raise};
use super::fuel::Ending;
use super::given::{Given, cut};
use super::machine::{RESULTS_MAX, Shared, add};

/// The largest size of an integer in a format of the library `struct`, in bytes; a larger one is an error.
const INTEGER_BYTES_MAX: i32 = 32;
/// The alignment in bytes that the option `!` without a number sets in a format of the library `struct`.
const ALIGNMENT: i32 = 8;
/// The number of characters of a format of the library `struct` that are read for one unit of effort (steps
/// of work).
const CHARACTERS_PER_UNIT: u64 = 4;

pub(super) fn create(lua: &Lua, shared: &Rc<Shared>) -> Result<Table, Error> {
    let library = lua.create_table()?;
    add(lua, shared, &library, "pack", pack)?;
    add(lua, shared, &library, "unpack", unpack)?;
    add(lua, shared, &library, "size", size)?;
    Ok(library)
}

/// A format string of the library `struct`, as it is read from left to right, and the byte order and
/// alignment that apply at this point.
struct Format<'a> {
    lua: &'a Lua,
    rest: &'a [u8],
    is_big: bool,
    alignment: usize,
}

impl<'a> Format<'a> {
    /// Begins to read a format: `text` up to its first zero byte. Charges its length as effort (steps of
    /// work). An error, which ends the script, if too little effort is left.
    fn new(lua: &'a Lua, shared: &Shared, text: &'a [u8]) -> Result<Self, Error> {
        let rest = text.split(|byte| *byte == 0).next().unwrap_or_default();
        shared.fuel.spend(rest.len() as u64 / CHARACTERS_PER_UNIT)?;
        Ok(Self { lua, rest, is_big: false, alignment: 1 })
    }

    /// Returns the next option of the format and the size of its value in bytes (0 for options without a
    /// fixed size); `None` at the end. An error for an integer that is too large.
    fn next(&mut self) -> Result<Option<(u8, usize)>, Error> {
        let Some((option, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(1)?,
            b'i' | b'I' => {
                let size = self.number(4)?;
                if size > INTEGER_BYTES_MAX {
                    let words = format!("integral size {size} is larger than limit of {INTEGER_BYTES_MAX}");
                    return Err(raise(self.lua, words));
                }
                size
            }
            _ => 0,
        };
        Ok(Some((*option, size as usize)))
    }

    fn number(&mut self, default: i32) -> Result<i32, Error> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = number
            .iter()
            .try_fold(0_i32, |number, digit| number.checked_mul(10)?.checked_add(i32::from(digit - b'0')));
        number.ok_or_else(|| raise(self.lua, "integral size overflow"))
    }

    /// Returns the number of bytes to skip at `position` so that a value of `size` bytes is aligned as the
    /// format asks; 0 for the option `c` of the format, which stands for plain bytes.
    fn padding(&self, position: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.alignment);
        size.wrapping_sub(position & size.wrapping_sub(1)) & size.wrapping_sub(1)
    }

    /// Applies an option of the format that stands for no value: a space, the byte order or the alignment. An
    /// error for an unknown option.
    fn control(&mut self, option: u8) -> Result<(), Error> {
        match option {
            b' ' => {}
            b'>' => self.is_big = true,
            b'<' => self.is_big = false,
            b'!' => {
                let alignment = self.number(ALIGNMENT)?;
                if alignment <= 0 || alignment & (alignment - 1) != 0 {
                    let words = format!("alignment {alignment} is not a power of 2");
                    return Err(raise(self.lua, words));
                }
                self.alignment = alignment as usize;
            }
            other => {
                let words = format!("invalid format option '{}'", char::from(other));
                return Err(bad_argument(self.lua, 1, &words));
            }
        }
        Ok(())
    }

    fn ordered<const N: usize>(&self, mut little: [u8; N]) -> [u8; N] {
        if self.is_big {
            little.reverse();
        }
        little
    }
}

fn pack(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    let text = Given::new(lua, arguments).text(0)?;
    let text = text.as_bytes();
    // The C library pushes a nil behind the arguments, which its checks then take for one more argument.
    let given = Given::new(lua, arguments).and_nil();
    let mut format = Format::new(lua, shared, &text)?;
    let mut out: Vec<u8> = Vec::new();
    let mut next = 1;
    while let Some((option, size)) = format.next()? {
        out.resize(out.len() + format.padding(out.len(), option, size), 0);
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                put_integer(&mut out, given.number(next)?, format.is_big, size);
                next += 1;
            }
            b'x' => out.push(0),
            b'f' => {
                out.extend(format.ordered((given.number(next)? as f32).to_le_bytes()));
                next += 1;
            }
            b'd' => {
                out.extend(format.ordered(given.number(next)?.to_le_bytes()));
                next += 1;
            }
            b'c' | b's' => {
                let value = given.text(next)?;
                next += 1;
                let value = value.as_bytes();
                let size = if size == 0 { value.len() } else { size };
                given.check(value.len() >= size, next, "string too short")?;
                shared.fuel.spend_bytes(size)?;
                out.extend_from_slice(&value[..size]);
                if option == b's' {
                    out.push(0);
                }
            }
            other => format.control(other)?,
        }
        if out.len() > shared.memory_max {
            return Err(shared.fuel.end(Ending::Memory));
        }
    }
    lua.create_string(out)
}

fn put_integer(out: &mut Vec<u8>, number: f64, is_big: bool, size: usize) {
    // Numbers from 2^64 on are written as 0 and NaN as 2^63, as C's conversion gives on x86-64.
    const BEYOND: f64 = 18_446_744_073_709_551_616.0;
    let value = match number {
        number if number < 0.0 => cut(number) as u64,
        number if number < BEYOND => number as u64,
        number if number.is_nan() => 1 << 63,
        _ => 0,
    };
    let little = value.to_le_bytes();
    let start = out.len();
    out.extend((0..size).map(|at| little.get(at).copied().unwrap_or(0)));
    if is_big {
        out[start..].reverse();
    }
}

fn integer(bytes: &[u8], is_big: bool, is_signed: bool) -> f64 {
    let join = |joined: u64, byte: &u8| (joined << 8) | u64::from(*byte);
    let joined = if is_big { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) };
    if !is_signed {
        return joined as f64;
    }
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32 * 8).wrapping_sub(1));
    (if joined & mask == 0 { joined } else { joined | mask }) as i64 as f64
}

fn unpack(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<MultiValue, Error> {
    let given = Given::new(lua, arguments);
    let (text, data) = (given.text(0)?, given.text(1)?);
    let (text, data) = (text.as_bytes(), data.as_bytes());
    let position = given.integer_or(2, 1)?;
    given.check(position != 0, 2, "offset must be 1 or greater")?;
    // A negative position is one beyond all data, as in C.
    let mut position = (position as usize).wrapping_sub(1);
    let mut format = Format::new(lua, shared, &text)?;
    let mut results: Vec<Value> = Vec::new();
    while let Some((option, mut size)) = format.next()? {
        position = position.saturating_add(format.padding(position, option, size));
        let fits = |position: usize, size: usize| size <= data.len() && position <= data.len() - size;
        given.check(fits(position, size), 1, "data string too short")?;
        if results.len() >= RESULTS_MAX {
            return Err(raise(lua, "stack overflow (too many results)"));
        }
        let here = &data[position..position + size];
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                results.push(Value::Number(integer(here, format.is_big, option.is_ascii_lowercase())));
            }
            b'x' => {}
            b'f' => {
                let bytes = format.ordered(here.try_into().unwrap_or_default());
                results.push(Value::Number(f64::from(f32::from_le_bytes(bytes))));
            }
            b'd' => {
                let bytes = format.ordered(here.try_into().unwrap_or_default());
                results.push(Value::Number(f64::from_le_bytes(bytes)));
            }
            b'c' => {
                if size == 0 {
                    let previous = results.pop().map_or(Ok(None), |value| lua.coerce_number(value))?;
                    let Some(previous) = previous else {
                        return Err(raise(lua, "format 'c0' needs a previous size"));
                    };
                    size = usize::try_from(cut(previous)).unwrap_or(usize::MAX);
                    given.check(fits(position, size), 1, "data string too short")?;
                }
                shared.fuel.spend_bytes(size)?;
                results.push(Value::String(lua.create_string(&data[position..position + size])?));
            }
            b's' => {
                let length = data[position..].iter().position(|byte| *byte == 0);
                shared.fuel.spend_bytes(length.unwrap_or(data.len() - position))?;
                let Some(length) = length else {
                    return Err(raise(lua, "unfinished string in data"));
                };
                results.push(Value::String(lua.create_string(&data[position..position + length])?));
                size = length + 1;
            }
            other => format.control(other)?,
        }
        position += size;
    }
    results.push(Value::Integer(position.wrapping_add(1) as Integer));
    Ok(results.into_iter().collect())
}

fn size(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<Integer, Error> {
    let text = Given::new(lua, arguments).text(0)?;
    let text = text.as_bytes();
    let mut format = Format::new(lua, shared, &text)?;
    let mut position: usize = 0;
    while let Some((option, size)) = format.next()? {
        position += format.padding(position, option, size);
        if option == b's' {
            return Err(bad_argument(lua, 1, "option 's' has no fixed size"));
        }
        if option == b'c' && size == 0 {
            return Err(bad_argument(lua, 1, "option 'c0' has no fixed size"));
        }
        if !option.is_ascii_alphanumeric() {
            format.control(option)?;
        }
        position += size;
    }
    Ok(position as Integer)
}
