//! The Lua library `bit`: operations on the low 32 bits of numbers.

use mlua::{Error, Lua, LuaString, MultiValue, Table};

use super::given::Given;

/// The number 1.5 * 2^52: added to a double, it rounds the double to an integer, whose low 32 bits are then
/// those of the sum.
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// The number of hexadecimal digits of 32 bits, which `bit.tohex` writes at most.
const DIGITS_MAX: usize = 8;

/// Returns the low 32 bits of the argument at `index` (from 0), rounded to the nearest integer. An error if
/// the argument is no number.
fn bits(lua: &Lua, arguments: &MultiValue, index: usize) -> Result<u32, Error> {
    Given::new(lua, arguments).number(index).map(|number| (number + MAGIC).to_bits() as u32)
}

type Operation = fn(u32, u32) -> u32;
type Change = fn(u32) -> u32;

/// Functions of the library `bit` that combine all their arguments, from left to right; each with its name in
/// scripts.
const FOLDS: [(&str, Operation); 3] = [
    ("band", |left, right| left & right),
    ("bor", |left, right| left | right),
    ("bxor", |left, right| left ^ right),
];

/// Functions of the library `bit` that shift or rotate their first argument by the second one, from 0 to 31
/// bits; each with its name in scripts.
const SHIFTS: [(&str, Operation); 5] = [
    ("lshift", |bits, by| bits << by),
    ("rshift", |bits, by| bits >> by),
    ("arshift", |bits, by| (bits as i32 >> by) as u32),
    ("rol", u32::rotate_left),
    ("ror", u32::rotate_right),
];

pub(super) fn create(lua: &Lua) -> Result<Table, Error> {
    let library = lua.create_table()?;
    let singles: [(&str, Change); 3] =
        [("tobit", |bits| bits), ("bnot", |bits| !bits), ("bswap", u32::swap_bytes)];
    for (name, operate) in singles {
        let function =
            move |lua: &Lua, given: MultiValue| bits(lua, &given, 0).map(|bits| signed(operate(bits)));
        library.raw_set(name, lua.create_function(function)?)?;
    }
    for (name, operate) in FOLDS {
        let function = move |lua: &Lua, given: MultiValue| {
            let mut folded = bits(lua, &given, 0)?;
            for index in 1..given.len() {
                folded = operate(folded, bits(lua, &given, index)?);
            }
            Ok(signed(folded))
        };
        library.raw_set(name, lua.create_function(function)?)?;
    }
    for (name, operate) in SHIFTS {
        let function = move |lua: &Lua, given: MultiValue| {
            let shifted = bits(lua, &given, 0)?;
            Ok(signed(operate(shifted, bits(lua, &given, 1)? & 31)))
        };
        library.raw_set(name, lua.create_function(function)?)?;
    }
    library.raw_set("tohex", lua.create_function(|lua, given: MultiValue| to_hex(lua, &given))?)?;
    Ok(library)
}

fn signed(bits: u32) -> f64 {
    f64::from(bits as i32)
}

/// Carries out `bit.tohex(x, n)`: the last |n| of the 8 hexadecimal digits of x, in capitals if n is
/// negative. All of them without n; an error if an argument is no number.
fn to_hex(lua: &Lua, arguments: &MultiValue) -> Result<LuaString, Error> {
    let value = bits(lua, arguments, 0)?;
    let wanted = if arguments.len() < 2 { DIGITS_MAX as i32 } else { bits(lua, arguments, 1)? as i32 };
    let digits = (wanted.unsigned_abs() as usize).min(DIGITS_MAX);
    let text = if wanted < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
    lua.create_string(&text[DIGITS_MAX - digits..])
}
