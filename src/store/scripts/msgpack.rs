//! The library `cmsgpack`: values in the format of `MessagePack`, as lua-cmsgpack 0.4 writes and reads it.

use std::rc::Rc;

use mlua::{Error, Integer, Lua, LuaString, MultiValue, Table, Value};

use super::errors::{bad_argument, raise};
use super::fuel::{Ending, TABLE_UNITS};
use super::given::Given;
use super::machine::{RESULTS_MAX, Shared, add};
use super::tables;

/// The depth of nested tables from which on `cmsgpack.pack` writes nil in place of a table, as lua-cmsgpack
/// does.
const WRITE_DEPTH_MAX: usize = 16;
/// The deepest nesting of tables that `cmsgpack.unpack` reads; deeper nesting is an error.
const READ_DEPTH_MAX: usize = 128;

pub(super) fn create(lua: &Lua, shared: &Rc<Shared>) -> Result<Table, Error> {
    let library = lua.create_table()?;
    add(lua, shared, &library, "pack", pack)?;
    add(lua, shared, &library, "unpack", |lua, shared, given| {
        unpack(lua, shared, &Given::new(lua, given), &Part { limit: None, offset: 0 })
    })?;
    add(lua, shared, &library, "unpack_one", |lua, shared, given| {
        let given = Given::new(lua, given);
        let offset = given.integer_or(1, 0)?;
        unpack(lua, shared, &given, &Part { limit: Some(1), offset })
    })?;
    add(lua, shared, &library, "unpack_limit", |lua, shared, given| {
        let given = Given::new(lua, given);
        let (limit, offset) = (given.integer(1)?, given.integer_or(2, 0)?);
        let limit = (limit != 0 || offset != 0).then_some(limit);
        unpack(lua, shared, &given, &Part { limit, offset })
    })?;
    for (name, text) in [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo"),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ] {
        library.raw_set(name, text)?;
    }
    Ok(library)
}

fn pack(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    if arguments.is_empty() {
        return Err(bad_argument(lua, 0, "MessagePack pack needs input."));
    }
    let mut writer = Writer { shared, out: Vec::new() };
    let written = arguments.iter().try_for_each(|value| writer.value(value, 0));
    shared.fuel.spend_bytes(writer.out.len())?;
    written?;
    lua.create_string(writer.out)
}

struct Writer<'a> {
    shared: &'a Shared,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.out.len() > self.shared.memory_max {
            return Err(self.shared.fuel.end(Ending::Memory));
        }
        match value {
            Value::String(text) => self.text(&text.as_bytes()),
            Value::Boolean(truth) => self.out.push(if *truth { 0xc3 } else { 0xc2 }),
            Value::Integer(number) => self.integer(*number),
            Value::Number(number) => self.number(*number),
            Value::Table(table) if depth < WRITE_DEPTH_MAX => self.table(table, depth)?,
            _ => self.out.push(0xc0),
        }
        Ok(())
    }

    fn put(&mut self, kind: u8, bytes: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &[u8]) {
        match text.len() {
            length @ ..32 => self.out.push(0xa0 | length as u8),
            length @ ..=0xff => self.put(0xd9, &[length as u8]),
            length @ ..=0xffff => self.put(0xda, &(length as u16).to_be_bytes()),
            length => self.put(0xdb, &(length as u32).to_be_bytes()),
        }
        self.out.extend_from_slice(text);
    }

    fn integer(&mut self, number: Integer) {
        match number {
            -32..=0x7f => self.out.push(number as u8),
            0x80..=0xff => self.put(0xcc, &[number as u8]),
            0x100..=0xffff => self.put(0xcd, &(number as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.put(0xce, &(number as u32).to_be_bytes()),
            0x1_0000_0000.. => self.put(0xcf, &number.to_be_bytes()),
            -128..=-33 => self.put(0xd0, &[number as u8]),
            -0x8000..=-129 => self.put(0xd1, &(number as u16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => self.put(0xd2, &(number as u32).to_be_bytes()),
            _ => self.put(0xd3, &number.to_be_bytes()),
        }
    }

    #[expect(clippy::float_cmp, reason = "a number that a shorter form holds exactly is written in that")]
    fn number(&mut self, number: f64) {
        let whole = super::given::cut(number);
        if whole as f64 == number {
            return self.integer(whole);
        }
        let short = number as f32;
        if f64::from(short) == number {
            self.put(0xca, &short.to_be_bytes());
        } else {
            self.put(0xcb, &number.to_be_bytes());
        }
    }

    fn count(&mut self, count: usize, [short, medium, long]: [u8; 3]) {
        match count {
            0..=15 => self.out.push(short | count as u8),
            16..=0xffff => self.put(medium, &(count as u16).to_be_bytes()),
            _ => self.put(long, &(count as u32).to_be_bytes()),
        }
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), Error> {
        self.shared.fuel.spend(TABLE_UNITS)?;
        let (mut count, mut largest, mut is_array) = (0, 0, true);
        table.for_each(|key: Value, _: Value| {
            count += 1;
            match key {
                Value::Integer(index) if index > 0 => largest = index.max(largest),
                _ => is_array = false,
            }
            Ok(())
        })?;
        self.shared.fuel.spend(count as u64)?;
        if is_array && largest as usize == count {
            self.count(count, [0x90, 0xdc, 0xdd]);
            for index in 1..=count {
                self.value(&table.raw_get(index)?, depth + 1)?;
            }
            return Ok(());
        }
        self.count(count, [0x80, 0xde, 0xdf]);
        table.for_each(|key: Value, value: Value| {
            self.value(&key, depth + 1)?;
            self.value(&value, depth + 1)
        })
    }
}

/// The part of the input that `cmsgpack.unpack` and its variants read: from byte `offset` on, at most `limit`
/// values; all of them if `limit` is `None`.
struct Part {
    limit: Option<Integer>,
    offset: Integer,
}

fn unpack(lua: &Lua, shared: &Shared, given: &Given<'_>, part: &Part) -> Result<MultiValue, Error> {
    let input = given.text(0)?;
    let input = input.as_bytes();
    let (limit, offset) = (part.limit.unwrap_or(Integer::MAX), part.offset);
    // Without a limit, the values are returned alone; with one, the offset to continue from comes first.
    let reads_all = part.limit.is_none();
    if offset < 0 || limit < 0 {
        return Err(raise(
            lua,
            format!("Invalid request to unpack with offset of {offset} and limit of {}.", input.len()),
        ));
    }
    if offset as usize > input.len() {
        return Err(raise(lua, format!("Start offset {offset} greater than input length {}.", input.len())));
    }
    let rest = &input[offset as usize..];
    let mut reader = Reader { lua, shared, rest, uncharged: rest.len() };
    let mut values = MultiValue::new();
    while !reader.rest.is_empty() && (values.len() as Integer) < limit {
        if values.len() >= RESULTS_MAX {
            let words =
                "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)";
            return Err(raise(lua, words));
        }
        values.push_back(reader.value(0).map_err(|fault| match fault {
            Fault::Short => raise(lua, "Missing bytes in input."),
            Fault::Strange => raise(lua, "Bad data format in input."),
            Fault::Deep => raise(lua, "stack overflow (in function mp_decode_to_lua_array)"),
            Fault::Lua(error) => error,
        })?);
    }
    reader.charge()?;
    if !reads_all {
        let left = reader.rest.len();
        let offset = if left == 0 { -1 } else { (input.len() - left) as Integer };
        values.push_front(Value::Integer(offset));
    }
    Ok(values)
}

/// The reason why bytes cannot be unpacked as `MessagePack`.
enum Fault {
    Short,
    Strange,
    Deep,
    Lua(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Lua(error)
    }
}

struct Reader<'a> {
    lua: &'a Lua,
    shared: &'a Shared,
    rest: &'a [u8],
    /// The number of bytes, at the end of the input, that have not been charged as effort (steps of work).
    uncharged: usize,
}

impl<'a> Reader<'a> {
    /// Charges the bytes that have been read since the last call as effort (steps of work). An error, which
    /// ends the script, if too little effort is left.
    fn charge(&mut self) -> Result<(), Error> {
        // Two bytes cost one unit, because a single byte may make a table.
        let units = (self.uncharged - self.rest.len()) / 2;
        self.uncharged -= 2 * units;
        self.shared.fuel.spend(units as u64)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(Fault::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads an unsigned integer of `count` bytes, the highest byte first. An error if the input has fewer
    /// bytes.
    fn unsigned(&mut self, count: usize) -> Result<u64, Fault> {
        Ok(self.bytes(count)?.iter().fold(0, |joined, byte| (joined << 8) | u64::from(*byte)))
    }

    fn text(&mut self, length: usize) -> Result<Value, Fault> {
        let bytes = self.bytes(length)?;
        self.shared.fuel.note_string()?;
        Ok(Value::String(self.lua.create_string(bytes)?))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        if depth > READ_DEPTH_MAX {
            return Err(Fault::Deep);
        }
        self.charge()?;
        let kind = self.unsigned(1)? as u8;
        Ok(match kind {
            0x00..=0x7f => Value::Integer(Integer::from(kind)),
            0xe0..=0xff => Value::Integer(Integer::from(kind as i8)),
            0xa0..=0xbf => self.text(usize::from(kind & 0x1f))?,
            0x90..=0x9f => self.array(usize::from(kind & 0xf), depth)?,
            0x80..=0x8f => self.map(usize::from(kind & 0xf), depth)?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Boolean(kind == 0xc3),
            0xca => Value::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => Value::Number(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xcf => Value::Number(self.unsigned(1 << (kind - 0xcc))? as i64 as f64),
            0xd0 => Value::Integer(Integer::from(self.unsigned(1)? as i8)),
            0xd1 => Value::Integer(Integer::from(self.unsigned(2)? as i16)),
            0xd2 => Value::Integer(Integer::from(self.unsigned(4)? as i32)),
            0xd3 => Value::Number(self.unsigned(8)? as i64 as f64),
            0xd9..=0xdb => {
                let length = self.unsigned(1 << (kind - 0xd9))? as usize;
                self.text(length)?
            }
            0xdc | 0xdd => {
                let count = self.unsigned(2 << (kind - 0xdc))? as usize;
                self.array(count, depth)?
            }
            0xde | 0xdf => {
                let count = self.unsigned(2 << (kind - 0xde))? as usize;
                self.map(count, depth)?
            }
            _ => return Err(Fault::Strange),
        })
    }

    fn array(&mut self, count: usize, depth: usize) -> Result<Value, Fault> {
        let array = self.lua.create_table()?;
        for index in 1..=count {
            let value = self.value(depth + 1)?;
            array.raw_set(index, value)?;
        }
        Ok(Value::Table(array))
    }

    fn map(&mut self, count: usize, depth: usize) -> Result<Value, Fault> {
        let map = self.lua.create_table()?;
        for _ in 0..count {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            tables::set(&map, &key, &value)?;
        }
        Ok(Value::Table(map))
    }
}
