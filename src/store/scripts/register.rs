//! `redis.register_function`: the functions that a library registers while it is loaded.

use std::collections::HashSet;
use std::rc::Rc;

use mlua::{Error, Function, Lua, LuaString, MultiValue, Table, Value};

use super::errors::refuse;
use super::fuel::TABLE_UNITS;
use super::given::Given;
use super::kept::Kept;
use super::libraries::{Flags, NAME_RULE, Signature, is_name};
use super::library;
use super::machine::{self, Shared};
use crate::values::limits::ENGINE_LIBRARIES_BYTES_MAX;

/// The units of effort (steps of work) to register a function, besides those for its bytes.
const REGISTER_UNITS: u64 = 64;

/// The functions that the libraries of one command (FUNCTION LOAD, FUNCTION RESTORE or FCALL) have
/// registered, in the order of registration. All of them together take one of the 8,000 references that an
/// interpreter has room for.
pub(super) struct Registered {
    /// The table of the interpreter that holds the functions, from place 1 on.
    functions: Table,
    /// The names of the functions in lower case.
    names: Vec<Box<[u8]>>,
}

impl Registered {
    pub(super) fn new(lua: &Lua) -> Result<Self, Error> {
        Ok(Self { functions: lua.create_table()?, names: Vec::new() })
    }

    /// Adds all functions to `kept`, where calls find them, under their names in lower case. An error if the
    /// interpreter has no memory left.
    pub(super) fn keep_in(self, kept: &mut Kept<Box<[u8]>>) -> Result<(), Error> {
        for (index, name) in self.names.into_iter().enumerate() {
            kept.insert(name, &self.functions.raw_get(index + 1)?)?;
        }
        Ok(())
    }
}

/// The functions that the library which is being loaded has registered so far, and their approximate bytes.
pub(super) struct Registering {
    signatures: Vec<Signature>,
    /// The names of the functions in lower case, which are unique in a library.
    names: HashSet<Box<[u8]>>,
    functions: Table,
    /// The number of functions that the libraries before this one have registered, whose places in
    /// `functions` come first.
    before: usize,
    bytes: usize,
}

impl Registering {
    /// Begins a library, whose functions will follow those of the libraries before it (`registered`).
    pub(super) fn within(registered: &Registered) -> Self {
        Self {
            signatures: Vec::new(),
            names: HashSet::new(),
            functions: registered.functions.clone(),
            before: registered.names.len(),
            bytes: 0,
        }
    }

    /// Ends the library: adds the names of its functions to `registered`. Returns their signatures.
    pub(super) fn end(self, registered: &mut Registered) -> Vec<Signature> {
        let lower = |signature: &Signature| signature.name.to_ascii_lowercase().into_boxed_slice();
        registered.names.extend(self.signatures.iter().map(lower));
        self.signatures
    }

    fn add(&mut self, given: &Arguments) -> Result<(), Error> {
        let name = given.name.as_bytes();
        let description = given.description.as_ref().map(LuaString::as_bytes);
        if !is_name(&name) {
            return Err(refuse(NAME_RULE));
        }
        if self.names.contains(&*name.to_ascii_lowercase()) {
            return Err(refuse("Function already exists in the library"));
        }
        self.bytes +=
            Signature::bytes_of(name.len(), description.as_ref().map_or(0, |description| description.len()));
        if self.bytes > ENGINE_LIBRARIES_BYTES_MAX {
            return Err(refuse("the functions of the library would take too many bytes"));
        }
        let description = description.map(|description| description.to_vec());
        self.functions.raw_set(self.before + self.signatures.len() + 1, &given.callback)?;
        self.names.insert(name.to_ascii_lowercase().into_boxed_slice());
        self.signatures.push(Signature { name: name.to_vec(), description, flags: given.flags });
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

/// Makes the Lua library `redis` as the code of a library of functions sees it while it runs to be loaded
/// (FUNCTION LOAD and so on). An error if the interpreter has no memory left.
pub(super) fn create(lua: &Lua, shared: &Rc<Shared>) -> Result<Table, Error> {
    let redis = library::create_for_loading(lua)?;
    machine::add(lua, shared, &redis, "register_function", register)?;
    Ok(redis)
}

fn register(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<(), Error> {
    if shared.registering.borrow().is_none() {
        return Err(refuse("redis.register_function can only be called on FUNCTION LOAD command"));
    }
    shared.fuel.spend(REGISTER_UNITS)?;
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
