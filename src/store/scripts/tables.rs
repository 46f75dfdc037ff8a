//! Lua's functions on tables, which respect readonly tables and charge the effort of loops that a short call
//! could make endless.

use mlua::{Error, Function, Integer, Lua, LuaString, MultiValue, Table, Value};

use super::errors::{Raised, bad_argument, raise, type_name};
use super::fuel::Ending;
use super::given::{Given, LUA_PRECISION};
use super::machine::Shared;
use crate::store::numbers;

/// The number of table elements that `table.insert` or `table.remove` may move without a charge of effort
/// (steps of work); if it moves more, all of them are charged. `table.concat` is charged each time that it
/// has joined this many.
const FREE_ELEMENTS: Integer = 64;
/// The number of bytes of source that `loadstring` compiles for one unit of effort (steps of work).
const SOURCE_BYTES_PER_UNIT: u64 = 4;
/// The longest string in bytes that elements may be if Lua's own `table.sort` is to compare them without a
/// charge of effort (steps of work) for each comparison.
const SHORT_BYTES: usize = 256;
/// The most stack slots that the results and arguments of one `unpack` may take together; more are an error.
const UNPACKED_MAX: Integer = 8_000;

/// The readonly tables of scripts: each is an empty table, whose reads go to a hidden table that holds the
/// content.
pub(super) struct Readonly {
    /// The hidden content table of each readonly table.
    pub(super) behind: Table,
    /// The metatable of those readonly tables for which `getmetatable` returns nil.
    pub(super) sealed: Table,
    pub(super) next: Function,
}

impl Readonly {
    fn behind(&self, value: &Value) -> Result<Option<Table>, Error> {
        if value.is_nil() { Ok(None) } else { self.behind.raw_get(value) }
    }

    fn check(&self, value: Option<&Value>) -> Result<(), Error> {
        match value {
            Some(value) if self.behind(value)?.is_some() => {
                Err(Raised::Text(b"Attempt to modify a readonly table".to_vec()).into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn set_metatable(&self, lua: &Lua, arguments: &MultiValue) -> Result<Table, Error> {
        let given = Given::new(lua, arguments);
        self.check(given.get(0))?;
        let table = given.table(0)?;
        let meta = match given.get(1) {
            Some(Value::Nil) => None,
            Some(Value::Table(meta)) => Some(meta.clone()),
            _ => return Err(bad_argument(lua, 2, "nil or table expected")),
        };
        // The interpreter has room for some thousand references, and `metatable` ends the process if there is
        // none for its own. A table that is made and dropped leaves one free, or fails with an error.
        drop(lua.create_table()?);
        let current = table.metatable();
        if current.is_some_and(|meta| meta.raw_get::<Value>("__metatable").is_ok_and(|shown| !shown.is_nil()))
        {
            return Err(raise(lua, "cannot change a protected metatable"));
        }
        table.set_metatable(meta)?;
        Ok(table)
    }

    /// Carries out `getmetatable`, which returns nil for most readonly tables, so that scripts cannot change
    /// them by it; `own` is the interpreter's own function of this name, which answers for all other values.
    pub(super) fn metatable(
        &self,
        lua: &Lua,
        arguments: &MultiValue,
        own: &Function,
    ) -> Result<Value, Error> {
        let Some(value) = arguments.front() else { return Err(bad_argument(lua, 1, "value expected")) };
        let shown: Value = own.call(value)?;
        let hidden = matches!(&shown, Value::Table(table) if *table == self.sealed);
        Ok(if hidden { Value::Nil } else { shown })
    }

    pub(super) fn raw_get(&self, lua: &Lua, arguments: &MultiValue) -> Result<Value, Error> {
        let given = Given::new(lua, arguments);
        let table = given.table(0)?;
        let Some(key) = given.get(1) else { return Err(bad_argument(lua, 2, "value expected")) };
        let original = self.behind(&Value::Table(table.clone()))?.unwrap_or(table);
        original.raw_get(key)
    }

    pub(super) fn raw_set(&self, lua: &Lua, arguments: &MultiValue) -> Result<Table, Error> {
        let given = Given::new(lua, arguments);
        self.check(given.get(0))?;
        let table = given.table(0)?;
        let Some(key) = given.get(1) else { return Err(bad_argument(lua, 2, "value expected")) };
        let Some(value) = given.get(2) else { return Err(bad_argument(lua, 3, "value expected")) };
        set(&table, key, value)?;
        Ok(table)
    }

    pub(super) fn pairs(&self, lua: &Lua, arguments: &MultiValue) -> Result<MultiValue, Error> {
        let table = Value::Table(Given::new(lua, arguments).table(0)?);
        let next = match self.behind(&table)? {
            None => self.next.clone(),
            Some(original) => {
                let own = self.next.clone();
                lua.create_function(move |_, (_, key): (Value, Value)| {
                    own.call::<MultiValue>((&original, key))
                })?
            }
        };
        Ok([Value::Function(next), table, Value::Nil].into_iter().collect())
    }

    pub(super) fn insert(&self, lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<(), Error> {
        let given = Given::new(lua, arguments);
        let table = given.table(0)?;
        self.check(given.get(0))?;
        let end = table.raw_len() as Integer + 1;
        let (at, value) = match given.len() {
            2 => (end, &arguments[1]),
            3 => (Integer::from(given.integer(1)? as i32), &arguments[2]),
            _ => return Err(raise(lua, "wrong number of arguments to 'insert'")),
        };
        spend_moves(shared, end - at)?;
        for place in (at + 1..=end).rev() {
            table.raw_set(place, table.raw_get::<Value>(place - 1)?)?;
        }
        table.raw_set(at, value)
    }

    pub(super) fn remove(
        &self,
        lua: &Lua,
        shared: &Shared,
        arguments: &MultiValue,
    ) -> Result<MultiValue, Error> {
        let given = Given::new(lua, arguments);
        let table = given.table(0)?;
        self.check(given.get(0))?;
        let end = table.raw_len() as Integer;
        let at = Integer::from(given.integer_or(1, end)? as i32);
        if at < 1 || at > end {
            return Ok(MultiValue::new());
        }
        spend_moves(shared, end - at)?;
        let removed: Value = table.raw_get(at)?;
        for place in at..end {
            table.raw_set(place, table.raw_get::<Value>(place + 1)?)?;
        }
        table.raw_set(end, Value::Nil)?;
        Ok([removed].into_iter().collect())
    }
}

/// Sets a field of a Lua table; fails with Lua's error text for a key that no table can have (nil or NaN).
pub(super) fn set(table: &Table, key: &Value, value: &Value) -> Result<(), Error> {
    match key {
        Value::Nil => Err(Raised::Text(b"table index is nil".to_vec()).into()),
        Value::Number(number) if number.is_nan() => Err(Raised::Text(b"table index is NaN".to_vec()).into()),
        _ => table.raw_set(key, value),
    }
}

fn spend_moves(shared: &Shared, moved: Integer) -> Result<(), Error> {
    if moved > FREE_ELEMENTS { shared.fuel.spend(moved as u64 * 4) } else { Ok(()) }
}

/// True if no element of a table, the first argument, is a string of more than 256 bytes, so that Lua's own
/// `table.sort` may sort the table. The second argument is the number of its elements. An error for wrong
/// arguments.
pub(super) fn is_short(lua: &Lua, arguments: &MultiValue) -> Result<bool, Error> {
    let given = Given::new(lua, arguments);
    let (table, length) = (given.table(0)?, given.integer(1)?);
    let is_long = |value: &Value| value.as_string().is_some_and(|text| text.as_bytes().len() > SHORT_BYTES);
    for index in 1..=length {
        if is_long(&table.raw_get(index)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Carries out `table.concat`: returns the strings and numbers of a table joined, with a separator between
/// them. An error for other elements, or if the result would be too long.
pub(super) fn concat(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    let given = Given::new(lua, arguments);
    let table = given.table(0)?;
    let separator = if given.is_nil(1) { lua.create_string("")? } else { given.text(1)? };
    let from = Integer::from(given.integer_or(2, 1)? as i32);
    let to =
        if given.is_nil(3) { table.raw_len() as Integer } else { Integer::from(given.integer(3)? as i32) };
    let mut out = Vec::new();
    for index in from..=to {
        match table.raw_get(index)? {
            Value::String(text) => out.extend_from_slice(&text.as_bytes()),
            Value::Integer(number) => {
                numbers::write_general(&mut out, number as f64, LUA_PRECISION);
            }
            Value::Number(number) => numbers::write_general(&mut out, number, LUA_PRECISION),
            other => {
                shared.fuel.spend_bytes(out.len())?;
                let kind = type_name(&other);
                return Err(raise(
                    lua,
                    format!("invalid value ({kind}) at index {index} in table for 'concat'"),
                ));
            }
        }
        if index < to {
            out.extend_from_slice(&separator.as_bytes());
        }
        if out.len() > shared.memory_max {
            return Err(shared.fuel.end(Ending::Memory));
        }
        if index % FREE_ELEMENTS == 0 {
            shared.fuel.spend(FREE_ELEMENTS as u64)?;
        }
    }
    shared.fuel.spend_bytes(out.len())?;
    lua.create_string(out)
}

/// Carries out Lua's `unpack`: returns the elements of a table as separate values. An error if they do not
/// fit on the interpreter's stack.
pub(super) fn unpack(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<MultiValue, Error> {
    let given = Given::new(lua, arguments);
    let table = given.table(0)?;
    let from = Integer::from(given.integer_or(1, 1)? as i32);
    let to =
        if given.is_nil(2) { table.raw_len() as Integer } else { Integer::from(given.integer(2)? as i32) };
    if to - from >= UNPACKED_MAX - given.len() as Integer {
        return Err(raise(lua, "too many results to unpack"));
    }
    shared.fuel.spend((to - from).max(0) as u64)?;
    (from..=to).map(|index| table.raw_get(index)).collect()
}

/// Carries out Lua's `collectgarbage`. Its options `count` (returns the interpreter's memory in KiB),
/// `collect` and `step` have an effect (the last two collect everything); `stop`, `restart`, `setpause` and
/// `setstepmul` are accepted and ignored, and any other is an error.
pub(super) fn collect_garbage(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<Value, Error> {
    const PAUSE: Integer = 200;
    let given = Given::new(lua, arguments);
    let option = if given.is_nil(0) { lua.create_string("collect")? } else { given.text(0)? };
    let option = option.as_bytes();
    match &*option {
        b"collect" | b"step" => {
            shared.fuel.spend_bytes(lua.used_memory())?;
            lua.gc_collect()?;
            Ok(if &*option == b"step" { Value::Boolean(true) } else { Value::Integer(0) })
        }
        b"count" => Ok(Value::Number(lua.used_memory() as f64 / 1024.0)),
        b"setpause" | b"setstepmul" => Ok(Value::Integer(PAUSE)),
        b"stop" | b"restart" => Ok(Value::Integer(0)),
        other => Err(bad_argument(lua, 1, &format!("invalid option '{}'", String::from_utf8_lossy(other)))),
    }
}

/// Carries out Lua's `loadstring` for source text, whose globals are in `environment`. Returns the compiled
/// function, or nil and the message of a syntax error; compiled code counts as one.
pub(super) fn load(
    lua: &Lua,
    shared: &Shared,
    environment: &Table,
    arguments: &MultiValue,
) -> Result<MultiValue, Error> {
    let given = Given::new(lua, arguments);
    let source = given.text(0)?;
    shared.fuel.spend(source.as_bytes().len() as u64 / SOURCE_BYTES_PER_UNIT)?;
    let name = if given.is_nil(1) { source.clone() } else { given.text(1)? };
    let name = String::from_utf8_lossy(name.as_bytes().split(|byte| *byte == 0).next().unwrap_or_default())
        .into_owned();
    match super::machine::compile(lua, &source.as_bytes(), &name, environment) {
        Ok(function) => Ok([Value::Function(function)].into_iter().collect()),
        Err(Error::SyntaxError { message, .. }) => {
            let message = lua.create_string(message)?;
            Ok([Value::Nil, Value::String(message)].into_iter().collect())
        }
        Err(other) => Err(other),
    }
}
