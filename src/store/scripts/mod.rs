//! EVAL, EVALSHA, SCRIPT, FCALL, FUNCTION and their kin: scripts in Lua 5.1, as Redis 7.0 runs them.
//!
//! ```text
//!     EVAL ── digest ─> Cache: source, flags ── Machine: function ─> run ── redis.call ─> Host ─> Call (inner)
//!                                                                    │ value                       │ reply
//!                                                                    v                             v
//!                                              reply <── to_reply ───┘        value of Lua <── to_lua
//! ```
//!
//! * A script runs whole before anything else, as a transaction does; time stands still meanwhile. Once it
//!   has run for longer than `busy-reply-threshold`, other connections get `-BUSY`, and may end it (`attend.rs`).
//! * Instructions, patterns and commands are charged to the effort of the request. A script beyond it ends with
//!   an error that it cannot catch; what it has written stays.
//! * A clock, where the engine has one, ends scripts whose single instructions take long.
//! * The memory of the interpreter and of the sources is bounded. An interpreter that reached its bound, or whose
//!   script was ended, is dropped, so that no script finds anything of another one.
//! * Functions of libraries run in an interpreter of their own, where they keep their local variables from one call
//!   to the next. When it is dropped, libraries are loaded again as they are called.
//! * Scripts see no clock, no files and no compiled code, and change no globals.

mod bits;
mod cache;
mod calls;
mod errors;
mod fuel;
mod functions;
mod given;
mod json;
mod kept;
mod libraries;
mod library;
mod machine;
mod msgpack;
mod patterns;
mod random;
mod register;
mod shebang;
mod structs;
mod tables;
#[cfg(test)]
mod tests;
mod texts;
mod to_lua;
mod to_reply;

use std::rc::Rc;

use mlua::{Error, Function, MultiValue, Table, Value};
use sha1::{Digest as _, Sha1};

use super::call::{Call, Command, Done, Effect, command};
use super::refusal::Refusal;
use crate::values::limits::ENGINE_SCRIPTS_BYTES_MAX;
use cache::{Cache, Digest, Origin, Script};
use calls::Host;
use errors::ending;
pub(super) use fuel::RunTime;
use fuel::{Attendance, Ending};
use functions::Functions;
use machine::{Machine, Role};
use to_reply::{Failure, Versions};

pub(super) const COMMANDS: &[Command] = &[
    command("eval", -3, Effect::Read, eval),
    command("evalsha", -3, Effect::Read, evalsha),
    command("eval_ro", -3, Effect::Read, eval_ro),
    command("evalsha_ro", -3, Effect::Read, evalsha_ro),
    command("script", -2, Effect::Read, script),
    command("fcall", -3, Effect::Read, functions::fcall),
    command("fcall_ro", -3, Effect::Read, functions::fcall_ro),
    command("function", -2, Effect::Read, functions::function),
];

const HELP: &[&str] = &[
    "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "DEBUG (YES|SYNC|NO)",
    "    Set the debug mode for subsequent scripts executed.",
    "EXISTS <sha1> [<sha1> ...]",
    "    Return information about the existence of the scripts in the script cache.",
    "FLUSH [ASYNC|SYNC]",
    "    Flush the Lua scripts cache. Very dangerous on replicas.",
    "    When called without the optional mode argument, the behavior is determined by the",
    "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
    "    * ASYNC: Asynchronously flush the scripts cache.",
    "    * SYNC: Synchronously flush the scripts cache.",
    "KILL",
    "    Kill the currently executing Lua script.",
    "LOAD <script>",
    "    Load a script into the scripts cache without executing it.",
    "HELP",
    "    Prints this help.",
];

const NO_SCRIPT: Refusal = Refusal::Words("NOSCRIPT No matching script. Please use EVAL.");

/// The cache of an engine's scripts, the Lua interpreter that runs them (made when the first script runs),
/// and the functions of libraries.
#[derive(Default)]
pub(super) struct Scripts {
    cache: Cache,
    machine: Option<Machine>,
    pub(super) functions: Functions,
    /// The run time of the scripts of a request, shared by the interpreters.
    pub(super) run_time: Rc<RunTime>,
}

impl Scripts {
    /// Returns the number of scripts in the cache.
    pub(super) fn known(&self) -> usize {
        self.cache.len()
    }

    /// Returns the approximate memory of the cached scripts, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Returns the memory that the Lua interpreter of scripts uses, in bytes; 0 if there is none.
    pub(super) fn machine_bytes(&self) -> usize {
        self.machine.as_ref().map_or(0, Machine::used)
    }

    fn machine(&mut self) -> Result<&mut Machine, Refusal> {
        if self.machine.is_none() {
            self.machine =
                Some(Machine::new(Role::Scripts, Rc::clone(&self.run_time)).map_err(|error| broken(&error))?);
        }
        self.machine.as_mut().ok_or(NO_SCRIPT)
    }

    /// Compiles a script (`source`) and adds it to the cache under its digest. An error if its `#!` line is
    /// malformed, if it does not compile (in Redis's words), or if SCRIPT LOAD (`origin`) finds no room; a
    /// script of EVAL for which there is no room is not kept.
    fn add(&mut self, digest: Digest, source: &[u8], origin: Origin) -> Result<Rc<Script>, Refusal> {
        let (flags, code_at) = shebang::parse(source)?;
        let script = Rc::new(Script { source: source.into(), flags, code_at });
        if let Err(error) = self.machine()?.function(digest, &script) {
            if ending(&error).is_some() {
                self.machine = None;
            }
            let text = match error {
                Error::SyntaxError { message, .. } => message,
                other => broken(&other).text().into_owned(),
            };
            return Err(Refusal::Quoting(format!("ERR Error compiling script (new function): {text}")));
        }
        let (forgotten, is_kept) = self.cache.add(digest, Rc::clone(&script), origin);
        let machine = self.machine()?;
        forgotten.iter().for_each(|digest| machine.forget(digest));
        if !is_kept {
            machine.forget(&digest);
            if origin == Origin::Loaded {
                return Err(Refusal::Quoting(format!(
                    "ERR the scripts that are loaded would take more than {ENGINE_SCRIPTS_BYTES_MAX} bytes: \
                     SCRIPT FLUSH forgets them"
                )));
            }
        }
        Ok(script)
    }
}

/// Returns the refusal that tells of an error of the Lua interpreter itself, or of the reason for which the
/// engine ended a script.
fn broken(error: &Error) -> Refusal {
    Refusal::Quoting(ending(error).map_or_else(|| format!("ERR {error}"), Ending::text))
}

fn digest_of(source: &[u8]) -> Digest {
    Sha1::digest(source).into()
}

/// Parses a script's digest of forty hexadecimal digits; `None` for any other text.
fn parse_digest(text: &[u8]) -> Option<Digest> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut digest = Digest::default();
    if text.len() != digest.len() * 2 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(digest)
}

/// The access to writes that the command which runs a script or function gives: `EVAL_RO` and its kind forbid
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Any,
    Readonly,
}

fn eval(call: &mut Call<'_>) -> Done {
    by_source(call, Access::Any)
}

fn eval_ro(call: &mut Call<'_>) -> Done {
    by_source(call, Access::Readonly)
}

fn evalsha(call: &mut Call<'_>) -> Done {
    by_digest(call, Access::Any)
}

fn evalsha_ro(call: &mut Call<'_>) -> Done {
    by_digest(call, Access::Readonly)
}

/// Fails if no further script of the request may begin. This is checked before the interpreter is used,
/// because an interpreter whose script the engine ends is dropped with all that it has compiled.
fn check_start(call: &Call<'_>) -> Done {
    let ending = call.scripts.run_time.forbids_start(call.effort.left(), call.limits.effort_max);
    ending.map_or(Ok(()), |ending| Err(Refusal::Quoting(ending.text())))
}

fn by_source(call: &mut Call<'_>, access: Access) -> Done {
    let keys = keys_of(call)?;
    check_start(call)?;
    let source = call.at(1);
    let digest = digest_of(source);
    let script = match call.scripts.cache.get(&digest) {
        Some(script) => script,
        None => call.scripts.add(digest, source, Origin::Run)?,
    };
    run(call, digest, &script, keys, access)
}

fn by_digest(call: &mut Call<'_>, access: Access) -> Done {
    let digest = parse_digest(call.at(1)).ok_or(NO_SCRIPT)?;
    let keys = keys_of(call)?;
    let script = call.scripts.cache.get(&digest).ok_or(NO_SCRIPT)?;
    check_start(call)?;
    run(call, digest, &script, keys, access)
}

/// Returns the number of keys of a script, which argument 2 of the request states; an error if it is negative
/// or exceeds the number of arguments that follow.
fn keys_of(call: &Call<'_>) -> Result<usize, Refusal> {
    let keys = call.integer_at(2)?;
    if keys > (call.count() - 3) as i64 {
        return Err(Refusal::Words("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(keys).map_err(|_| Refusal::Words("ERR Number of keys can't be negative"))
}

/// Runs the script with this digest, and appends its reply. `keys` is the number of keys, which stand before
/// the script's other arguments; `access` says whether the command forbids writes. A refusal if the script's
/// flags do not permit it to run now, or if the engine or the interpreter ended it; an error of the script
/// itself becomes its reply.
fn run(call: &mut Call<'_>, digest: Digest, script: &Script, keys: usize, access: Access) -> Done {
    let flags = script.flags;
    if flags.declared && access == Access::Readonly && !flags.no_writes {
        return Err(Refusal::Words("ERR Can not execute a script with write flag using *_ro command."));
    }
    if flags.declared && !flags.no_writes && call.settings.lacks_replicas() {
        return Err(Refusal::NoReplicas);
    }
    if flags.declared && !flags.no_writes && !flags.allow_oom && call.memory_left() == 0 {
        return Err(Refusal::Words(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        ));
    }
    call.scripts.machine()?;
    let Some(mut machine) = call.scripts.machine.take() else { return Err(NO_SCRIPT) };
    let readonly = flags.no_writes || access == Access::Readonly;
    let database = call.session.database;
    let outcome = run_on(call, &mut machine, digest, script, keys, readonly);
    call.session.database = database;
    call.keyspace.select(database);
    call.effort.charge(machine.shared().fuel.take_spent());
    if call.scripts.cache.get(&digest).is_none() {
        // The cache had no room for the script, so its compiled function goes as well.
        machine.forget(&digest);
    }
    // After an error of the interpreter itself, the interpreter is dropped with everything that the script
    // has left in it.
    if outcome.is_ok() {
        let swept = machine.end().map_err(|error| broken(&error))?;
        call.effort.charge_bytes(swept);
        call.scripts.machine = Some(machine);
    }
    outcome.map_err(|failure| match failure {
        Failure::Refused(refusal) => refusal,
        Failure::Lua(error) => broken(&error),
    })
}

fn run_on(
    call: &mut Call<'_>,
    machine: &mut Machine,
    digest: Digest,
    script: &Script,
    keys: usize,
    readonly: bool,
) -> Result<(), Failure> {
    let function = machine.function(digest, script)?;
    let words = call.rest(3);
    let arguments = call.rest(3 + keys);
    let words = machine.begin(call.limits.effort_max, call.effort.left(), words.take(keys), arguments)?;
    let ran = run_within(call, machine, &function, words, readonly)?;
    write_result(call, ran, &library::hexadecimal(&digest))
}

/// Appends the value that a script or function returned as its reply, or its error. `protocol` is the RESP
/// version that the script chose (`redis.setresp`); `name` is the script's digest or the function's name, for
/// the text of the error. Fails if the reply is too large, takes too much effort, or if the interpreter
/// fails.
fn write_result(call: &mut Call<'_>, (value, protocol): Ran, name: &str) -> Result<(), Failure> {
    let client = call.session.protocol;
    let versions = Versions { client, script: protocol, effort: call.effort };
    match value {
        Ok(value) => {
            if let Value::Table(table) = &value {
                call.tally.is_counted = to_reply::is_counted(table)?;
            }
            to_reply::write(&mut call.out, &value, versions)
        }
        Err(error) => write_error(call, &error, name),
    }
}

/// The value that a script returned or the error that ended it, and the RESP version that the script chose
/// (`redis.setresp`).
type Ran = (Result<Value, Value>, crate::protocol::Protocol);

fn run_within(
    call: &mut Call<'_>,
    machine: &Machine,
    function: &Function,
    words: Option<(Table, Table)>,
    readonly: bool,
) -> Result<Ran, Error> {
    let after_ms = call.settings.busy_after_ms;
    let host = Host::new(call, machine.shared(), readonly);
    let value = machine.lua().scope(|scope| {
        let call = scope.create_function(|lua, given: MultiValue| host.call(lua, &given))?;
        let pcall = scope.create_function(|lua, given: MultiValue| host.pcall(lua, &given))?;
        let setresp = scope.create_function(|lua, given: MultiValue| host.set_protocol(lua, &given))?;
        let attend = scope.create_function(|_, ()| host.attend())?;
        machine.run(function, words, call, pcall, setresp, Attendance { attend, after_ms })
    })?;
    Ok((value, host.protocol()))
}

/// Appends the error that ended a script as its reply; the text gets the script's `name` and the line where
/// the script raised it. Fails only if the interpreter does.
fn write_error(call: &mut Call<'_>, error: &Value, name: &str) -> Result<(), Failure> {
    let Value::Table(table) = error else {
        // No memory was left in the interpreter to make a table of the error.
        return Err(Failure::Lua(errors::Raised::Ended(Ending::Memory).into()));
    };
    let mut text = match table.raw_get("err")? {
        Value::String(text) => text.as_bytes().to_vec(),
        _ => b"ERR unknown error".to_vec(),
    };
    if let (Value::String(source), Value::Integer(line)) = (table.raw_get("source")?, table.raw_get("line")?)
    {
        text.extend_from_slice(format!(" script: {name}, on ").as_bytes());
        text.extend_from_slice(&source.as_bytes());
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    call.tally.is_counted = to_reply::is_counted(table)?;
    call.out.line(b'-', to_reply::error_text(&text));
    Ok(())
}

fn script(call: &mut Call<'_>) -> Done {
    let subcommand = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
    let (fits, run): (bool, fn(&mut Call<'_>) -> Done) = match subcommand.as_str() {
        "load" => (call.count() == 3, script_load),
        "exists" => (call.count() >= 3, script_exists),
        "flush" => (true, script_flush),
        "kill" => (call.count() == 2, |_| Err(Refusal::Words("NOTBUSY No scripts in execution right now."))),
        "debug" => (call.count() == 3, |_| {
            Err(Refusal::Words("ERR SCRIPT DEBUG is refused: the store has no debugger for scripts"))
        }),
        "help" => (call.count() == 2, script_help),
        _ => return Err(call.unknown_subcommand()),
    };
    if !fits {
        return Err(Refusal::Quoting(format!(
            "ERR wrong number of arguments for 'script|{subcommand}' command"
        )));
    }
    run(call)
}

fn script_load(call: &mut Call<'_>) -> Done {
    let digest = digest_of(call.at(2));
    if call.scripts.cache.get(&digest).is_some() {
        call.scripts.cache.keep(&digest);
    } else {
        call.scripts.add(digest, call.at(2), Origin::Loaded)?;
    }
    call.bulk(library::hexadecimal(&digest).as_bytes())
}

fn script_exists(call: &mut Call<'_>) -> Done {
    call.out.array(call.count() - 2);
    for text in call.rest(2) {
        let known = parse_digest(text).is_some_and(|digest| call.scripts.cache.get(&digest).is_some());
        call.out.integer(i64::from(known));
    }
    Ok(())
}

fn script_flush(call: &mut Call<'_>) -> Done {
    let has_mode = call.is(2, "sync") || call.is(2, "async");
    if call.count() > 3 || call.count() == 3 && !has_mode {
        return Err(Refusal::Words("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    (call.scripts.cache, call.scripts.machine) = (Cache::default(), None);
    call.ok()
}

fn script_help(call: &mut Call<'_>) -> Done {
    call.out.array(HELP.len());
    HELP.iter().for_each(|line| call.out.simple(line));
    Ok(())
}
