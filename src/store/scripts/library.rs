//! The Lua library `redis` except the functions that reach the engine, and `math.random`.

use std::rc::Rc;

use mlua::{Error, Lua, MultiValue, Table, Value};
use sha1::{Digest as _, Sha1};

use super::errors::{bad_argument, error_table, raise, refuse};
use super::given::Given;
use super::machine::{Role, Shared, add};
use super::to_reply::error_text;
use crate::protocol::command;

/// The Redis version that `redis.REDIS_VERSION` states.
const VERSION: &str = "7.0.15";
const VERSION_NUMBER: i64 = 0x0007_000f;

/// The numeric constants of the library `redis` that scripts see, by name.
const CONSTANTS: &[(&str, i64)] = &[
    ("LOG_DEBUG", 0),
    ("LOG_VERBOSE", 1),
    ("LOG_NOTICE", 2),
    ("LOG_WARNING", LOG_LEVEL_MAX),
    ("REPL_NONE", 0),
    ("REPL_AOF", 1),
    ("REPL_SLAVE", 2),
    ("REPL_REPLICA", 2),
    ("REPL_ALL", REPLICATION_MAX),
    ("REDIS_VERSION_NUM", VERSION_NUMBER),
];

/// The number of bytes of which `redis.sha1hex` computes the digest for one unit of effort (steps of work).
const DIGEST_BYTES_PER_UNIT: u64 = 16;

const LOG_LEVEL_MAX: i64 = 3;
const REPLICATION_MAX: i64 = 3;

/// Returns a SHA-1 digest as hexadecimal digits.
pub(super) fn hexadecimal(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn create(lua: &Lua, shared: &Rc<Shared>, role: Role) -> Result<Table, Error> {
    let redis = lua.create_table()?;
    for (name, number) in CONSTANTS {
        redis.raw_set(*name, *number)?;
    }
    redis.raw_set("REDIS_VERSION", VERSION)?;
    redis.raw_set("error_reply", lua.create_function(|lua, given: MultiValue| error_reply(lua, &given))?)?;
    redis
        .raw_set("status_reply", lua.create_function(|lua, given: MultiValue| status_reply(lua, &given))?)?;
    add(lua, shared, &redis, "sha1hex", sha1hex)?;
    redis.raw_set("log", lua.create_function(|lua, given: MultiValue| log(lua, &given))?)?;
    redis.raw_set("set_repl", lua.create_function(|lua, given: MultiValue| set_repl(lua, &given))?)?;
    let bound = Rc::clone(shared);
    let check = lua.create_function(move |_, given: MultiValue| acl_check_cmd(&bound, &given))?;
    redis.raw_set("acl_check_cmd", check)?;
    if role == Role::Scripts {
        redis.raw_set("replicate_commands", lua.create_function(|_, _: MultiValue| Ok(true))?)?;
        redis.raw_set("breakpoint", lua.create_function(|_, _: MultiValue| Ok(false))?)?;
        redis.raw_set("debug", lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    }
    Ok(redis)
}

/// Makes the part of the Lua library `redis` that a library of functions may use while its code runs to be
/// loaded (FUNCTION LOAD and so on). An error if the interpreter has no memory left.
pub(super) fn create_for_loading(lua: &Lua) -> Result<Table, Error> {
    let redis = lua.create_table()?;
    for (name, number) in CONSTANTS.iter().filter(|(name, _)| !name.starts_with("REPL_")) {
        redis.raw_set(*name, *number)?;
    }
    redis.raw_set("REDIS_VERSION", VERSION)?;
    redis.raw_set("log", lua.create_function(|lua, given: MultiValue| log(lua, &given))?)?;
    Ok(redis)
}

/// Returns the text of an error reply without a leading minus and without line breaks at its ends, and with
/// `ERR ` before it if it is a single word, and so has no error code.
pub(super) fn coded(text: &[u8]) -> Vec<u8> {
    let text = error_text(text.strip_prefix(b"-").unwrap_or(text));
    let from = text.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(0);
    let text = &text[from..];
    if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() }
}

fn error_reply(lua: &Lua, arguments: &MultiValue) -> Result<Table, Error> {
    let text = match (arguments.len(), arguments.front()) {
        (1, Some(Value::String(text))) => coded(&text.as_bytes()),
        _ => b"ERR wrong number or type of arguments".to_vec(),
    };
    error_table(lua, &text, false)
}

fn status_reply(lua: &Lua, arguments: &MultiValue) -> Result<Table, Error> {
    match (arguments.len(), arguments.front()) {
        (1, Some(Value::String(text))) => {
            let table = lua.create_table()?;
            table.raw_set("ok", text)?;
            Ok(table)
        }
        _ => error_table(lua, b"ERR wrong number or type of arguments", false),
    }
}

fn sha1hex(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<String, Error> {
    if arguments.len() != 1 {
        return Err(refuse("wrong number of arguments"));
    }
    let text = match arguments.front() {
        Some(Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
            Given::new(lua, arguments).text(0)?
        }
        _ => lua.create_string("")?,
    };
    let text = text.as_bytes();
    shared.fuel.spend(text.len() as u64 / DIGEST_BYTES_PER_UNIT)?;
    Ok(hexadecimal(&Sha1::digest(&*text)))
}

/// Carries out `redis.log`, which only checks its arguments because the engine writes no log; wrong ones are
/// an error.
fn log(lua: &Lua, arguments: &MultiValue) -> Result<(), Error> {
    if arguments.len() < 2 {
        return Err(refuse("redis.log() requires two arguments or more."));
    }
    if !matches!(arguments.front(), Some(Value::Integer(_) | Value::Number(_))) {
        return Err(refuse("First argument must be a number (log level)."));
    }
    let level = Given::new(lua, arguments).integer(0)?;
    if !(0..=LOG_LEVEL_MAX).contains(&level) {
        return Err(refuse("Invalid debug level."));
    }
    Ok(())
}

fn set_repl(lua: &Lua, arguments: &MultiValue) -> Result<(), Error> {
    if arguments.len() != 1 {
        return Err(refuse("redis.set_repl() requires two arguments."));
    }
    let flags = lua.coerce_number(arguments[0].clone())?.map_or(0, super::given::cut);
    if !(0..=REPLICATION_MAX).contains(&flags) {
        let words = "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
        return Err(refuse(words));
    }
    Ok(())
}

/// Carries out `redis.acl_check_cmd`: true if the command exists, because the only user may do everything; an
/// error if it does not.
fn acl_check_cmd(shared: &Shared, arguments: &MultiValue) -> Result<bool, Error> {
    let (frame, places) = super::calls::words(shared, arguments)?;
    let request = crate::protocol::Arguments::new(&frame, &places);
    let found = command::find(request.name()).map(|found| found.resolve(&request));
    if !matches!(found, Some(Ok(_))) {
        return Err(refuse("Invalid command passed to redis.acl_check_cmd()"));
    }
    Ok(true)
}

/// Carries out `math.max` or `math.min`: returns the largest or the smallest of the arguments. `beyond`
/// compares two numbers, and is true if the first one takes the place of the second. An error if an argument is
/// no number.
pub(super) fn extreme(lua: &Lua, arguments: &MultiValue, beyond: fn(f64, f64) -> bool) -> Result<f64, Error> {
    let given = Given::new(lua, arguments);
    let mut found = given.number(0)?;
    for index in 1..given.len() {
        let number = given.number(index)?;
        if beyond(number, found) {
            found = number;
        }
    }
    Ok(found)
}

/// Carries out `math.random`: draws a number from Redis's random generator, between 0 and 1, or a whole
/// number from 1 to the one argument or from the first argument to the second. An error if that range is
/// empty. Numbers are repeatable only after `math.randomseed`, since each script starts from another state.
pub(super) fn random(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<f64, Error> {
    let given = Given::new(lua, arguments);
    let drawn = shared.random.next();
    match given.len() {
        0 => Ok(drawn),
        1 => {
            let most = given.integer(0)? as i32;
            if most < 1 {
                return Err(bad_argument(lua, 1, "interval is empty"));
            }
            Ok((drawn * f64::from(most)).floor() + 1.0)
        }
        2 => {
            let (least, most) = (given.integer(0)? as i32, given.integer(1)? as i32);
            if least > most {
                return Err(bad_argument(lua, 2, "interval is empty"));
            }
            let width = most.wrapping_sub(least).wrapping_add(1);
            Ok((drawn * f64::from(width)).floor() + f64::from(least))
        }
        _ => Err(raise(lua, "wrong number of arguments")),
    }
}
