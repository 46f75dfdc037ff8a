//! `redis.register_function`: the functions that a library registers while it is loaded.

use std::rc::Rc;

use mlua::{Error, Function, Lua, LuaString, MultiValue, Table, Value};

use super::errors::refuse;
use super::fuel::TABLE_UNITS;
use super::given::Given;
use super::libraries::{Flags, NAME_RULE, Signature, is_name};
use super::library;
use super::machine::{self, Shared};
use crate::values::limits::ENGINE_LIBRARIES_BYTES_MAX;

/// The units of effort (steps of work) to register a function, besides those for its bytes.
const REGISTER_UNITS: u64 = 64;

/// A function that a library has registered.
pub(super) struct Registered {
    pub(super) signature: Signature,
    pub(super) function: Function,
}

/// The functions that the library which is being loaded has registered so far, and their approximate bytes.
#[derive(Default)]
pub(super) struct Registering {
    functions: Vec<Registered>,
    bytes: usize,
}

impl Registering {
    pub(super) fn into_functions(self) -> Vec<Registered> {
        self.functions
    }

    fn add(&mut self, given: &Arguments) -> Result<(), Error> {
        let name = given.name.as_bytes();
        let description = given.description.as_ref().map(LuaString::as_bytes);
        if !is_name(&name) {
            return Err(refuse(NAME_RULE));
        }
        if self.functions.iter().any(|known| known.signature.name.eq_ignore_ascii_case(&name)) {
            return Err(refuse("Function already exists in the library"));
        }
        self.bytes +=
            Signature::bytes_of(name.len(), description.as_ref().map_or(0, |description| description.len()));
        if self.bytes > ENGINE_LIBRARIES_BYTES_MAX {
            return Err(refuse("the functions of the library would take too many bytes"));
        }
        let description = description.map(|description| description.to_vec());
        let signature = Signature { name: name.to_vec(), description, flags: given.flags };
        self.functions.push(Registered { signature, function: given.callback.clone() });
        Ok(())
    }
}

/// The arguments of `redis.register_function`, which the code of a library gives by position, or by name in a
/// table.
struct Arguments {
    name: LuaString,
    callback: Function,
    flags: Flags,
    description: Option<LuaString>,
}

/// Makes the Lua library `redis` as the code of a library of functions sees it while FUNCTION LOAD runs it.
pub(super) fn create(lua: &Lua, shared: &Rc<Shared>) -> Result<Table, Error> {
    let redis = library::create_for_loading(lua)?;
    machine::add(lua, shared, &redis, "register_function", register)?;
    Ok(redis)
}

fn register(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<(), Error> {
    let known = shared.registering.borrow().as_ref().map(|registering| registering.functions.len());
    let Some(known) = known else {
        return Err(refuse("redis.register_function can only be called on FUNCTION LOAD command"));
    };
    // The name is compared with those of all functions that the library has registered before.
    shared.fuel.spend(REGISTER_UNITS + known as u64 / 4)?;
    let given = match arguments.len() {
        1 => by_name(lua, shared, &arguments[0])?,
        2 => by_position(lua, arguments)?,
        _ => return Err(refuse("wrong number of arguments to redis.register_function")),
    };
    shared.fuel.spend_bytes(given.description.as_ref().map_or(0, |text| text.as_bytes().len()))?;
    let mut registering = shared.registering.borrow_mut();
    registering.as_mut().map_or(Ok(()), |registering| registering.add(&given))
}

fn by_position(lua: &Lua, arguments: &MultiValue) -> Result<Arguments, Error> {
    let name = text(lua, arguments, 0)
        .ok_or_else(|| refuse("first argument to redis.register_function must be a string"))?;
    let Value::Function(callback) = &arguments[1] else {
        return Err(refuse("second argument to redis.register_function must be a function"));
    };
    Ok(Arguments { name, callback: callback.clone(), flags: Flags::default(), description: None })
}

fn by_name(lua: &Lua, shared: &Shared, given: &Value) -> Result<Arguments, Error> {
    let Value::Table(table) = given else {
        return Err(refuse(
            "calling redis.register_function with a single argument is only applicable to Lua table \
             (representing named arguments).",
        ));
    };
    let (mut name, mut callback, mut flags, mut description) = (None, None, Flags::default(), None);
    for pair in table.pairs::<Value, Value>() {
        shared.fuel.spend(TABLE_UNITS)?;
        let (key, value) = pair?;
        let key = match key {
            Value::String(key) => key.as_bytes().to_ascii_lowercase(),
            Value::Integer(_) | Value::Number(_) => Vec::new(),
            _ => return Err(refuse("named argument key given to redis.register_function is not a string")),
        };
        let value_text = || text(lua, &[value.clone()].into_iter().collect(), 0);
        match key.as_slice() {
            b"function_name" => {
                name = Some(value_text().ok_or_else(|| {
                    refuse("function_name argument given to redis.register_function must be a string")
                })?);
            }
            b"description" => {
                description = Some(value_text().ok_or_else(|| {
                    refuse("description argument given to redis.register_function must be a string")
                })?);
            }
            b"callback" => match value {
                Value::Function(function) => callback = Some(function),
                _ => {
                    return Err(refuse(
                        "callback argument given to redis.register_function must be a function",
                    ));
                }
            },
            b"flags" => match value {
                Value::Table(names) => flags = parse_flags(shared, &names)?,
                _ => {
                    return Err(refuse(
                        "flags argument to redis.register_function must be a table representing function flags",
                    ));
                }
            },
            _ => return Err(refuse("unknown argument given to redis.register_function")),
        }
    }
    let name = name.ok_or_else(|| refuse("redis.register_function must get a function name argument"))?;
    let callback = callback.ok_or_else(|| refuse("redis.register_function must get a callback argument"))?;
    Ok(Arguments { name, callback, flags, description })
}

fn parse_flags(shared: &Shared, names: &Table) -> Result<Flags, Error> {
    let mut flags = Flags::default();
    for index in 1.. {
        shared.fuel.spend(TABLE_UNITS)?;
        let known = match names.raw_get(index)? {
            Value::Nil => break,
            Value::String(name) => flags.set(&name.as_bytes()),
            _ => false,
        };
        if !known {
            return Err(refuse("unknown flag given"));
        }
    }
    Ok(flags)
}

/// Returns the argument at `index` (from 0) as a string, with numbers written as Lua does; `None` for any
/// other value.
fn text(lua: &Lua, arguments: &MultiValue, index: usize) -> Option<LuaString> {
    Given::new(lua, arguments).text(index).ok()
}
