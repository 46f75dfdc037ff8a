//! Conversion of a script's Lua value to a reply.

use mlua::{Error, Table, Value};

use super::errors;
use super::given::cut;
use crate::protocol::Protocol;
use crate::store::effort::{Effort, LOOK};
use crate::store::refusal::Refusal;
use crate::store::reply::Reply;

/// The deepest nesting of tables in the value that a script returns; a table beyond it becomes an error in
/// the reply.
const DEPTH_MAX: usize = 128;
/// Number of elements of a table whose counting takes as much effort (steps of work) as reading one element.
const COUNTED_PER_LOOK: usize = 8;

/// The units of effort (steps of work) to convert a table of a script to a reply: its special fields (`err`,
/// `ok`, `map` ...) must be looked up.
const TABLE_UNITS: u64 = 32;

/// The RESP versions that decide how a value is written: the client's, and the one that the script chose
/// (`redis.setresp`); and the effort (steps of work) that each element is charged to.
#[derive(Clone, Copy)]
pub(super) struct Versions<'a> {
    pub(super) client: Protocol,
    pub(super) script: Protocol,
    pub(super) effort: &'a Effort,
}

/// The reason why a script's value could not become a reply: a limit of the engine, or an error of the
/// interpreter.
pub(super) enum Failure {
    Refused(Refusal),
    Lua(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lua(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Appends the value that a script returns as a reply. Fails beyond a limit of the engine (effort, length of
/// the reply), or if the interpreter fails.
pub(super) fn write(out: &mut Reply<'_>, value: &Value, versions: Versions<'_>) -> Result<(), Failure> {
    write_nested(out, value, versions, 0)
}

fn write_nested(
    out: &mut Reply<'_>,
    value: &Value,
    versions: Versions<'_>,
    depth: usize,
) -> Result<(), Failure> {
    out.check()?;
    let units = if value.is_table() { TABLE_UNITS } else { LOOK };
    versions.effort.spend(1, units)?;
    match value {
        Value::String(text) => out.bulk(&text.as_bytes()),
        Value::Boolean(truth) if versions.script == Protocol::Resp3 => match versions.client {
            Protocol::Resp3 => out.line(b'#', if *truth { b"t" } else { b"f" }),
            Protocol::Resp2 => out.integer(i64::from(*truth)),
        },
        Value::Boolean(true) => out.integer(1),
        Value::Integer(number) => out.integer(*number),
        Value::Number(number) => out.integer(cut(*number)),
        Value::Table(_) if depth >= DEPTH_MAX => out.line(b'-', b"ERR reached lua stack limit"),
        Value::Table(table) => write_table(out, table, versions, depth)?,
        _ => out.null(versions.client),
    }
    Ok(())
}

fn write_table(
    out: &mut Reply<'_>,
    table: &Table,
    versions: Versions<'_>,
    depth: usize,
) -> Result<(), Failure> {
    if let Some(text) = text_field(table, "err")? {
        out.line(b'-', error_text(&text));
        return Ok(());
    }
    if let Some(text) = text_field(table, "ok")? {
        out.line(b'+', &text);
        return Ok(());
    }
    match table.raw_get("double")? {
        Value::Integer(number) => {
            out.score(versions.client, number as f64);
            return Ok(());
        }
        Value::Number(number) => {
            out.score(versions.client, number);
            return Ok(());
        }
        _ => {}
    }
    if let Value::Table(map) = table.raw_get("map")? {
        let pairs = collect(&map)?;
        out.map(versions.client, pairs.len());
        for (key, value) in pairs {
            write_nested(out, &key, versions, depth + 1)?;
            write_nested(out, &value, versions, depth + 1)?;
        }
        return Ok(());
    }
    if let Value::Table(set) = table.raw_get("set")? {
        let pairs = collect(&set)?;
        out.set(versions.client, pairs.len());
        for (key, _) in pairs {
            write_nested(out, &key, versions, depth + 1)?;
        }
        return Ok(());
    }
    if let Some(digits) = text_field(table, "big_number")? {
        match versions.client {
            Protocol::Resp2 => out.bulk(&digits),
            Protocol::Resp3 => out.line(b'(', &digits),
        }
        return Ok(());
    }
    if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
        && let (Some(format), Some(text)) =
            (text_field(&verbatim, "format")?, text_field(&verbatim, "string")?)
    {
        out.verbatim_in(versions.client, &format, &text);
        return Ok(());
    }
    let mut count = 0;
    while !table.raw_get::<Value>(count + 1)?.is_nil() {
        // A table that contains itself is counted again and again.
        if count % COUNTED_PER_LOOK == 0 {
            versions.effort.spend(1, LOOK)?;
        }
        count += 1;
    }
    out.array(count);
    for index in 1..=count {
        write_nested(out, &table.raw_get(index)?, versions, depth + 1)?;
    }
    Ok(())
}

/// Returns all key-value pairs of a Lua table, in the order in which Lua visits them. An error if there are
/// more than 2,000.
fn collect(table: &Table) -> Result<Vec<(Value, Value)>, Error> {
    /// The most key-value pairs that are copied out of the interpreter, whose memory limit does not count
    /// them. A map or set with more is refused.
    const PAIRS_MAX: usize = 2_000;
    let mut pairs = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        if pairs.len() == PAIRS_MAX {
            return Err(super::errors::refuse("too many elements in a map or set that a script returns"));
        }
        pairs.push(pair?);
    }
    Ok(pairs)
}

/// True if the engine's counters of errors already include the error that this error table of a script
/// describes. Fails if the interpreter does.
pub(super) fn is_counted(table: &Table) -> Result<bool, Error> {
    Ok(table.raw_get::<Value>(errors::COUNTED)? == Value::Boolean(true))
}

/// Returns the field `name` of a Lua table as bytes; `None` if the field is not a string. An error if the
/// interpreter fails.
fn text_field(table: &Table, name: &str) -> Result<Option<Vec<u8>>, Error> {
    match table.raw_get(name)? {
        Value::String(text) => Ok(Some(text.as_bytes().to_vec())),
        _ => Ok(None),
    }
}

/// Returns the text of an error without the line breaks at its end.
pub(super) fn error_text(text: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let end = text.iter().rposition(|byte| !is_end(byte)).map_or(0, |last| last + 1);
    &text[..end]
}
