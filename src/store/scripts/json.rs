//! The Lua library `cjson`: conversion to and from JSON, as lua-cjson 2.1 does it.

mod decode;
mod encode;

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Error, Integer, Lua, MultiValue, Table, Value};

use super::errors::bad_argument;
use super::given::Given;
use super::machine::Shared;

/// The deepest nesting of tables that is converted to or from JSON, whatever limit a script sets, because
/// each level uses the thread's stack. Deeper nesting is an error.
const DEPTH_MAX: Integer = 200;

/// The treatment of numbers that JSON cannot express (NaN and infinities) in `cjson.encode`: an error, their
/// names, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalid {
    Refused,
    Spelled,
    Null,
}

/// The settings of the Lua library `cjson`, which a script may change until the script ends.
#[derive(Debug)]
pub(super) struct Settings {
    converts_sparse: Cell<bool>,
    sparse_ratio: Cell<Integer>,
    sparse_safe: Cell<Integer>,
    encode_depth_max: Cell<Integer>,
    decode_depth_max: Cell<Integer>,
    precision: Cell<Integer>,
    keeps_buffer: Cell<bool>,
    encodes_invalid: Cell<Invalid>,
    decodes_invalid: Cell<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            converts_sparse: Cell::new(false),
            sparse_ratio: Cell::new(2),
            sparse_safe: Cell::new(10),
            encode_depth_max: Cell::new(1_000),
            decode_depth_max: Cell::new(1_000),
            precision: Cell::new(14),
            keeps_buffer: Cell::new(true),
            encodes_invalid: Cell::new(Invalid::Refused),
            decodes_invalid: Cell::new(true),
        }
    }
}

impl Settings {
    /// Resets all settings of the library `cjson` to their defaults.
    pub(super) fn reset(&self) {
        let Self {
            converts_sparse,
            sparse_ratio,
            sparse_safe,
            encode_depth_max,
            decode_depth_max,
            precision,
            keeps_buffer,
            encodes_invalid,
            decodes_invalid,
        } = Self::default();
        self.converts_sparse.swap(&converts_sparse);
        self.sparse_ratio.swap(&sparse_ratio);
        self.sparse_safe.swap(&sparse_safe);
        self.encode_depth_max.swap(&encode_depth_max);
        self.decode_depth_max.swap(&decode_depth_max);
        self.precision.swap(&precision);
        self.keeps_buffer.swap(&keeps_buffer);
        self.encodes_invalid.swap(&encodes_invalid);
        self.decodes_invalid.swap(&decodes_invalid);
    }
}

/// Makes the table of the functions of the library `cjson`, which use and change `settings`. An error if the
/// interpreter has no memory left.
pub(super) fn create(lua: &Lua, shared: &Rc<Shared>, settings: &Rc<Settings>) -> Result<Table, Error> {
    let library = lua.create_table()?;
    let add = |name: &str, function: Function| {
        let (shared, settings) = (Rc::clone(shared), Rc::clone(settings));
        let function = move |lua: &Lua, given: MultiValue| function(lua, &shared, &settings, &given);
        library.raw_set(name, lua.create_function(function)?)
    };
    add("encode", encode::encode)?;
    add("decode", decode::decode)?;
    add("encode_sparse_array", encode_sparse_array)?;
    add("encode_max_depth", |lua, _, settings, given| {
        integer_option(lua, &limited(lua, given, 1)?, 0, &settings.encode_depth_max, 1..=INT_MAX)
    })?;
    add("decode_max_depth", |lua, _, settings, given| {
        integer_option(lua, &limited(lua, given, 1)?, 0, &settings.decode_depth_max, 1..=INT_MAX)
    })?;
    add("encode_number_precision", |lua, _, settings, given| {
        integer_option(lua, &limited(lua, given, 1)?, 0, &settings.precision, 1..=14)
    })?;
    add("encode_keep_buffer", |lua, _, settings, given| {
        switch_option(lua, &limited(lua, given, 1)?, 0, &settings.keeps_buffer)
    })?;
    add("decode_invalid_numbers", |lua, _, settings, given| {
        switch_option(lua, &limited(lua, given, 1)?, 0, &settings.decodes_invalid)
    })?;
    add("encode_invalid_numbers", encode_invalid_numbers)?;
    let shared = Rc::clone(shared);
    let new = move |lua: &Lua, _: MultiValue| create(lua, &shared, &Rc::default());
    library.raw_set("new", lua.create_function(new)?)?;
    library.raw_set("null", Value::NULL)?;
    library.raw_set("_NAME", "cjson")?;
    library.raw_set("_VERSION", "2.1.0")?;
    Ok(library)
}

type Function = fn(&Lua, &Shared, &Settings, &MultiValue) -> Result<MultiValue, Error>;

/// The largest integer that a setting of the library `cjson` can have.
const INT_MAX: Integer = i32::MAX as Integer;

/// Returns an error unless a library function was called with exactly one argument.
fn check_only_argument(lua: &Lua, arguments: &MultiValue) -> Result<(), Error> {
    if arguments.len() == 1 { Ok(()) } else { Err(bad_argument(lua, 1, "expected 1 argument")) }
}

/// Returns the arguments of a call of a library function, or an error if there are more than `most`.
fn limited<'a>(lua: &'a Lua, arguments: &'a MultiValue, most: usize) -> Result<Given<'a>, Error> {
    if arguments.len() > most {
        return Err(bad_argument(lua, most + 1, "found too many arguments"));
    }
    Ok(Given::new(lua, arguments))
}

fn one(value: Value) -> MultiValue {
    [value].into_iter().collect()
}

fn integer_option(
    lua: &Lua,
    given: &Given<'_>,
    index: usize,
    setting: &Cell<Integer>,
    range: std::ops::RangeInclusive<Integer>,
) -> Result<MultiValue, Error> {
    if !given.is_nil(index) {
        let value = given.integer(index)?;
        if !range.contains(&value) {
            let words = format!("expected integer between {} and {}", range.start(), range.end());
            return Err(bad_argument(lua, 1, &words));
        }
        setting.set(value);
    }
    Ok(one(Value::Integer(setting.get())))
}

/// Returns the position in `names` of the word that the argument at `index` (from 0) is; an error for another
/// word.
fn named_option(lua: &Lua, given: &Given<'_>, index: usize, names: &[&str]) -> Result<usize, Error> {
    let text = given.text(index)?;
    let text = text.as_bytes();
    let position = names.iter().position(|name| name.as_bytes() == &*text);
    position.ok_or_else(|| {
        bad_argument(lua, index + 1, &format!("invalid option '{}'", String::from_utf8_lossy(&text)))
    })
}

fn switch_option(
    lua: &Lua,
    given: &Given<'_>,
    index: usize,
    setting: &Cell<bool>,
) -> Result<MultiValue, Error> {
    match given.get(index) {
        None | Some(Value::Nil) => {}
        Some(Value::Boolean(on)) => setting.set(*on),
        Some(_) => setting.set(named_option(lua, given, index, &["off", "on"])? == 1),
    }
    Ok(one(Value::Boolean(setting.get())))
}

fn encode_sparse_array(
    lua: &Lua,
    _: &Shared,
    settings: &Settings,
    arguments: &MultiValue,
) -> Result<MultiValue, Error> {
    let given = limited(lua, arguments, 3)?;
    let mut values = switch_option(lua, &given, 0, &settings.converts_sparse)?;
    values.extend(integer_option(lua, &given, 1, &settings.sparse_ratio, 0..=INT_MAX)?);
    values.extend(integer_option(lua, &given, 2, &settings.sparse_safe, 0..=INT_MAX)?);
    Ok(values)
}

fn encode_invalid_numbers(
    lua: &Lua,
    _: &Shared,
    settings: &Settings,
    arguments: &MultiValue,
) -> Result<MultiValue, Error> {
    let given = limited(lua, arguments, 1)?;
    let setting = &settings.encodes_invalid;
    match given.get(0) {
        None | Some(Value::Nil) => {}
        Some(Value::Boolean(on)) => setting.set(if *on { Invalid::Spelled } else { Invalid::Refused }),
        Some(_) => {
            let position = named_option(lua, &given, 0, &["off", "on", "null"])?;
            setting.set([Invalid::Refused, Invalid::Spelled, Invalid::Null][position]);
        }
    }
    Ok(one(match setting.get() {
        Invalid::Refused => Value::Boolean(false),
        Invalid::Spelled => Value::Boolean(true),
        Invalid::Null => Value::String(lua.create_string("null")?),
    }))
}
