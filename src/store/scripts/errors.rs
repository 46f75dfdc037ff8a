//! Errors that the engine raises in scripts, and the Lua value that a script sees of each.

use std::fmt;

use mlua::{Error, Lua, Table, Value};

use super::fuel::Ending;

/// The name of the field of an error table (an error reply as scripts see it) that says that the engine's
/// counters of errors include the error already. Redis uses the same name.
pub(super) const COUNTED: &str = "ignore_error_stats_update";
/// The name that stands for a script's source in error messages.
pub(super) const SCRIPT_NAME: &str = "@user_script";
/// The name that stands for a library's source in error messages.
pub(super) const LIBRARY_NAME: &str = "@user_function";

/// The name of `sandbox.lua` (the Lua code between scripts and the functions that the engine provides) in the
/// interpreter, by which its stack frames are recognised.
pub(super) const SANDBOX_NAME: &str = "=sandbox";
/// The most stack frames of `sandbox.lua` (the Lua code between scripts and the engine's functions) that can
/// lie between a script and the function that it calls.
const SANDBOX_FRAMES_MAX: usize = 4;

/// An error that the engine raises in a script.
#[derive(Clone, Debug)]
pub(super) enum Raised {
    /// An error that the script sees as a string, as Lua's own libraries raise it.
    Text(Vec<u8>),
    /// An error reply, which scripts see as a table. The flag is true if the engine's counters of errors
    /// include the error already.
    Reply(Vec<u8>, bool),
    /// The end of a script by the engine, which the script cannot catch.
    Ended(Ending),
}

impl fmt::Display for Raised {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Reply(text, _) => String::from_utf8_lossy(text).fmt(formatter),
            Self::Ended(ending) => ending.text().fmt(formatter),
        }
    }
}

impl std::error::Error for Raised {}

impl From<Raised> for Error {
    fn from(raised: Raised) -> Self {
        Self::external(raised)
    }
}

/// Returns an error whose message is `text` after the place in the script (`source:line:`) that called the
/// running function.
pub(super) fn raise(lua: &Lua, text: impl AsRef<[u8]>) -> Error {
    let mut placed = place(lua, 1);
    placed.extend_from_slice(text.as_ref());
    Raised::Text(placed).into()
}

/// Returns an error reply that the engine itself raises in a script; its text is `ERR ` followed by `text`.
pub(super) fn refuse(text: &str) -> Error {
    Raised::Reply(format!("ERR {text}").into_bytes(), false).into()
}

/// Returns the place `source:line: ` in the script at level `level` of the call stack (0 is the running
/// function); empty if there is none. Frames of `sandbox.lua`, the Lua code between scripts and the engine's
/// functions, are skipped.
fn place(lua: &Lua, level: usize) -> Vec<u8> {
    let found = frame(lua, level).and_then(|(level, _)| {
        lua.inspect_stack(level, |debug| {
            let line = debug.current_line()?;
            Some(format!("{}:{line}: ", debug.source().short_src.unwrap_or_default()))
        })
    });
    found.flatten().unwrap_or_default().into_bytes()
}

/// Returns the first level of the call stack from `level` on that does not belong to `sandbox.lua` (the Lua
/// code between scripts and the engine's functions), and whether it is a native function. `None` if there is
/// none within four levels.
fn frame(lua: &Lua, level: usize) -> Option<(usize, bool)> {
    (level..level + SANDBOX_FRAMES_MAX).find_map(|level| {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source();
            // A frame that a tail call has replaced has neither source nor line.
            (source.source.as_deref() == Some(SANDBOX_NAME) || source.what == "tail", source.what == "C")
        });
        found.filter(|(is_sandbox, _)| !is_sandbox).map(|(_, is_native)| (level, is_native))
    })
}

/// Returns the error `bad argument #index to 'function'` of Lua for the running function, with the reason in
/// parentheses; `index` counts from 1.
pub(super) fn bad_argument(lua: &Lua, mut index: usize, reason: &str) -> Error {
    let called = lua.inspect_stack(0, |debug| {
        let names = debug.names();
        let name = names.name.map_or_else(|| "?".to_owned(), std::borrow::Cow::into_owned);
        (name, matches!(names.name_what, Some("method")))
    });
    let (name, is_method) = called.unwrap_or_else(|| ("?".to_owned(), false));
    if is_method {
        index -= 1;
        if index == 0 {
            return raise(lua, format!("calling '{name}' on bad self ({reason})"));
        }
    }
    raise(lua, format!("bad argument #{index} to '{name}' ({reason})"))
}

/// Returns the error for the argument at `index` (from 1), which has the wrong type. `expected` is the right
/// type; `given` is the argument, or `None` if it is missing.
pub(super) fn wrong_type(lua: &Lua, index: usize, expected: &str, given: Option<&Value>) -> Error {
    bad_argument(lua, index, &format!("{expected} expected, got {}", given.map_or("no value", type_name)))
}

/// Returns the name of a value's type, as Lua's `type` returns it.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Boolean(_) => "boolean",
        Value::Integer(_) | Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Table(_) => "table",
        Value::Function(_) => "function",
        Value::Thread(_) => "thread",
        _ => "userdata",
    }
}

/// Returns the engine's error inside an error of the interpreter; `None` if the interpreter itself raised it.
fn raised(error: &Error) -> Option<&Raised> {
    match error {
        Error::CallbackError { cause, .. } | Error::BadArgument { cause, .. } => raised(cause),
        Error::ExternalError(_) => error.downcast_ref(),
        _ => None,
    }
}

/// Converts an error into the value that a script sees: a table for an error reply, a string for other
/// errors. Other values stay as they are. `Err` if the engine ends the script, since scripts must not catch
/// that.
pub(super) fn visible(lua: &Lua, value: Value) -> Result<Value, Error> {
    let Value::Error(error) = value else { return Ok(value) };
    match raised(&error) {
        Some(Raised::Text(text)) => lua.create_string(text).map(Value::String),
        Some(Raised::Reply(text, counted)) => error_table(lua, text, *counted).map(Value::Table),
        Some(Raised::Ended(_)) => Err(*error),
        None => lua.create_string(plain_text(&error)).map(Value::String),
    }
}

/// Returns the message of an error that the interpreter itself raised, without its stack trace.
fn plain_text(error: &Error) -> String {
    match error {
        Error::CallbackError { cause, .. } => plain_text(cause),
        Error::MemoryError(_) => "not enough memory".to_owned(),
        Error::StackError => "stack overflow".to_owned(),
        other => other.to_string(),
    }
}

/// Converts the error of a function of Lua's own library, to which the running function has passed its own
/// arguments, into the error that a script would get if it had called the library's function itself.
pub(super) fn relocated(lua: &Lua, error: &Error) -> Error {
    let text = plain_text(error);
    let text = text.strip_prefix("runtime error: ").unwrap_or(&text);
    let line = text.split("\nstack traceback:").next().unwrap_or_default();
    let of_argument = line.strip_prefix("bad argument #").and_then(|rest| rest.split_once(" to '?' ("));
    if let Some((index, reason)) = of_argument
        && let (Ok(index), Some(reason)) = (index.parse(), reason.strip_suffix(')'))
    {
        return bad_argument(lua, index, reason);
    }
    raise(lua, line)
}

/// Returns the reason for which the engine ended the script, which may be that the interpreter ran out of
/// memory; `None` for an error that does not end scripts.
pub(super) fn ending(error: &Error) -> Option<Ending> {
    match raised(error) {
        Some(Raised::Ended(ending)) => Some(*ending),
        _ if is_memory(error) => Some(Ending::Memory),
        _ => None,
    }
}

fn is_memory(error: &Error) -> bool {
    match error {
        Error::CallbackError { cause, .. } => is_memory(cause),
        other => matches!(other, Error::MemoryError(_)),
    }
}

/// Makes the table of an error reply, as `redis.pcall` and `redis.error_reply` return it, with `text` up to
/// its first zero byte. `counted` says that the engine's counters of errors include the error already.
pub(super) fn error_table(lua: &Lua, text: &[u8], counted: bool) -> Result<Table, Error> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(until_zero(text))?)?;
    if counted {
        table.raw_set(COUNTED, true)?;
    }
    Ok(table)
}

/// Returns the bytes of `text` before its first zero byte, or all if it has none.
fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Makes the table of the error that ends a script from the value that the script raised, with the source and
/// the line where the script raised it. `Err` if the engine ends the script.
pub(super) fn final_table(lua: &Lua, value: Value) -> Result<Value, Error> {
    let value = visible(lua, value)?;
    let table = match value {
        Value::Table(table) => table,
        Value::Integer(_) | Value::Number(_) | Value::String(_) => {
            let mut text = b"ERR ".to_vec();
            if let Some(spelled) = lua.coerce_string(value)? {
                text.extend_from_slice(&spelled.as_bytes());
            }
            let table = lua.create_table()?;
            table.raw_set("err", lua.create_string(text)?)?;
            table
        }
        other => {
            let text = match &other {
                Value::Nil => "ERR nil".to_owned(),
                Value::Boolean(truth) => format!("ERR {truth}"),
                other => format!("ERR {}: {:p}", type_name(other), other.to_pointer()),
            };
            error_table(lua, text.as_bytes(), false)?
        }
    };
    let mut raiser = frame(lua, 1);
    if let Some((level, true)) = raiser {
        raiser = frame(lua, level + 1);
    }
    let found = raiser.and_then(|(level, _)| {
        lua.inspect_stack(level, |debug| {
            (debug.source().source.map(std::borrow::Cow::into_owned), debug.current_line())
        })
    });
    if let Some((source, line)) = found {
        table.raw_set("source", source.unwrap_or_default())?;
        table.raw_set("line", line.map_or(-1, |line| line as i64))?;
    }
    Ok(Value::Table(table))
}
