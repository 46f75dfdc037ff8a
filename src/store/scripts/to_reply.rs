//! Values of Lua as replies.

use mlua::{Error, Table, Value};

use super::errors;
use super::given::cut;
use crate::protocol::Protocol;
use crate::store::effort::{Effort, LOOK};
use crate::store::refusal::Refusal;
use crate::store::reply::Reply;

/// The deepest nesting of a reply.
const DEPTH_MAX: usize = 128;

/// The units of effort of a table, whose fields are looked at.
const TABLE_UNITS: u64 = 32;

/// The protocol versions that decide about a reply: the client's, and the one that the script has chosen. Each
/// element is charged to the effort.
#[derive(Clone, Copy)]
pub(super) struct Versions<'a> {
    pub(super) client: Protocol,
    pub(super) script: Protocol,
    pub(super) effort: &'a Effort,
}

/// A reply that could not be written.
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

/// Appends a value to a reply.
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
        count += 1;
    }
    out.array(count);
    for index in 1..=count {
        write_nested(out, &table.raw_get(index)?, versions, depth + 1)?;
    }
    Ok(())
}

/// The pairs of a table, in the table's order.
fn collect(table: &Table) -> Result<Vec<(Value, Value)>, Error> {
    /// The pairs that are held outside of the interpreter at most.
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

/// True if the error that a table stands for was counted where it arose.
pub(super) fn is_counted(table: &Table) -> Result<bool, Error> {
    Ok(table.raw_get::<Value>(errors::COUNTED)? == Value::Boolean(true))
}

/// The text of a field, if that is a text.
fn text_field(table: &Table, name: &str) -> Result<Option<Vec<u8>>, Error> {
    match table.raw_get(name)? {
        Value::String(text) => Ok(Some(text.as_bytes().to_vec())),
        _ => Ok(None),
    }
}

/// The text of an error without line ends behind it.
pub(super) fn error_text(text: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let end = text.iter().rposition(|byte| !is_end(byte)).map_or(0, |last| last + 1);
    &text[..end]
}
