//! FUNCTION, FCALL and its read-only variant: functions that libraries register.
//!
//! ```text
//!     FUNCTION LOAD ── header ─> name ── Machine: code ─> redis.register_function ─> Library ─> Libraries
//!     FCALL ── Libraries: name ─> Signature ── Interpreter: function, its library loaded again if need be ─> run
//! ```

use std::rc::Rc;

use mlua::{Error, Value};

use super::errors::ending;
use super::fuel::RunTime;
use super::kept::Kept;
use super::libraries::{Libraries, Library, Signature, parse_header};
use super::machine::{Machine, Role};
use super::register::Registered;
use super::to_reply::Failure;
use super::{Access, Scripts, broken, check_start, run_within, write_result};
use crate::store::attend;
use crate::store::call::{Call, Done};
use crate::store::effort::LOOK;
use crate::store::glob;
use crate::store::rdb;
use crate::store::refusal::{Refusal, quoted};
use crate::values::limits::ENGINE_LIBRARIES_BYTES_MAX;

const HELP: &[&str] = &[
    "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "LOAD [REPLACE] <code>",
    "    Add the library of functions that the code describes.",
    "DELETE <library>",
    "    Remove a library with its functions.",
    "LIST [LIBRARYNAME <pattern>] [WITHCODE]",
    "    Show the libraries whose names match, and their functions.",
    "STATS",
    "    Show the number of libraries and functions.",
    "KILL",
    "    Stop the function that is running.",
    "FLUSH [ASYNC|SYNC]",
    "    Remove all libraries.",
    "DUMP",
    "    Show all libraries as bytes for RESTORE.",
    "RESTORE <bytes> [FLUSH|APPEND|REPLACE]",
    "    Add the libraries of a dump, if their names are free (APPEND, the default), instead of those of the same",
    "    names (REPLACE), or instead of all (FLUSH).",
    "HELP",
    "    Prints this help.",
];

const NOT_FOUND: Refusal = Refusal::Words("ERR Function not found");

/// The libraries of functions of an engine, and the Lua interpreter that runs them, which is made when a
/// library is loaded or a function is called and there is none.
#[derive(Default)]
pub(in crate::store) struct Functions {
    libraries: Libraries,
    interpreter: Option<Interpreter>,
}

/// A Lua interpreter, and the functions of the libraries that are loaded in it.
struct Interpreter {
    /// The functions that are loaded in the interpreter, by their names in lower case.
    functions: Kept<Box<[u8]>>,
    machine: Machine,
}

impl Functions {
    /// Returns the number of libraries of functions, and the number of functions in them.
    pub(in crate::store) fn counts(&self) -> (usize, usize) {
        (self.libraries.len(), self.libraries.functions())
    }

    /// Returns the approximate bytes of all libraries of functions.
    pub(in crate::store) fn bytes(&self) -> usize {
        self.libraries.bytes()
    }

    /// Returns the memory that the Lua interpreter of functions uses, in bytes; 0 if there is none.
    pub(in crate::store) fn machine_bytes(&self) -> usize {
        self.interpreter.as_ref().map_or(0, |interpreter| interpreter.machine.used())
    }

    fn take_interpreter(&mut self, run_time: &Rc<RunTime>) -> Result<Interpreter, Refusal> {
        if let Some(interpreter) = self.interpreter.take() {
            return Ok(interpreter);
        }
        let machine = Machine::new(Role::Functions, Rc::clone(run_time)).map_err(|error| broken(&error))?;
        let functions = Kept::new(machine.lua()).map_err(|error| broken(&error))?;
        Ok(Interpreter { functions, machine })
    }
}

impl Interpreter {
    fn forget(&mut self, library: &Library) {
        for function in &library.functions {
            self.functions.remove(&*function.name.to_ascii_lowercase());
        }
    }

    fn new_registered(&self) -> Result<Registered, Error> {
        Registered::new(self.machine.lua())
    }

    /// Runs the code of a library in the interpreter, charges the effort (steps of work) for it, adds the
    /// functions that it registers to `registered`, and returns their signatures. An error if the code does
    /// not compile or fails, or if the effort or run time of the request is used up.
    fn load(
        &mut self,
        call: &Call<'_>,
        code: &[u8],
        registered: &mut Registered,
    ) -> Result<Vec<Signature>, Failure> {
        check_start(call)?;
        let ran = self.machine.register(call.limits.effort_max, call.effort.left(), code, registered);
        call.effort.charge(self.machine.shared().fuel.take_spent());
        let error = match ran {
            Ok(Ok(signatures)) => return Ok(signatures),
            Ok(Err(Value::Table(table))) => match table.raw_get("err")? {
                Value::String(text) => text.to_string_lossy(),
                _ => "ERR unknown error".to_owned(),
            },
            Ok(Err(_)) => "ERR unknown error".to_owned(),
            Err(Error::SyntaxError { message, .. }) => {
                return Err(Refusal::Quoting(format!("ERR Error compiling function: {message}")).into());
            }
            Err(error) => return Err(error.into()),
        };
        Err(Refusal::Quoting(format!("ERR Error registering functions: {error}")).into())
    }

    /// Collects the garbage of the Lua interpreter if the last call left much of it, and charges the effort
    /// (steps of work) for that. An error if the collection fails, for lack of memory.
    fn end(&mut self, call: &Call<'_>) -> Result<(), Refusal> {
        let swept = self.machine.end().map_err(|error| broken(&error))?;
        call.effort.charge_bytes(swept);
        Ok(())
    }
}

pub(super) fn fcall(call: &mut Call<'_>) -> Done {
    call_function(call, Access::Any)
}

pub(super) fn fcall_ro(call: &mut Call<'_>) -> Done {
    call_function(call, Access::Readonly)
}

fn call_function(call: &mut Call<'_>, access: Access) -> Done {
    let (library, position) = call.scripts.functions.libraries.find(call.at(1)).ok_or(NOT_FOUND)?;
    let signature = &library.functions[position];
    let flags = signature.flags;
    let bad = Refusal::Words("ERR Bad number of keys provided");
    let keys = call.integer_at(2).map_err(|_| bad)?;
    if keys > (call.count() - 3) as i64 {
        return Err(Refusal::Words("ERR Number of keys can't be greater than number of args"));
    }
    let keys = usize::try_from(keys).map_err(|_| Refusal::Words("ERR Number of keys can't be negative"))?;
    if access == Access::Readonly && !flags.no_writes() {
        return Err(Refusal::Words("ERR Can not execute a script with write flag using *_ro command."));
    }
    if !flags.no_writes() && call.settings.lacks_replicas() {
        return Err(Refusal::NoReplicas);
    }
    if !flags.no_writes() && !flags.allow_oom() && call.memory_left() == 0 {
        return Err(Refusal::OutOfMemory);
    }
    check_start(call)?;
    let Scripts { functions, run_time, .. } = &mut *call.scripts;
    let mut interpreter = functions.take_interpreter(run_time)?;
    let database = call.session.database;
    let outcome = run(call, &mut interpreter, &library, signature, keys);
    call.session.database = database;
    call.keyspace.select(database);
    call.effort.charge(interpreter.machine.shared().fuel.take_spent());
    // After an error of the interpreter itself, the interpreter is dropped with all state that functions have
    // kept in it.
    if !matches!(outcome, Err(Failure::Lua(_))) {
        interpreter.end(call)?;
        call.scripts.functions.interpreter = Some(interpreter);
    }
    outcome.map_err(refusal_of)
}

fn run(
    call: &mut Call<'_>,
    interpreter: &mut Interpreter,
    library: &Library,
    signature: &Signature,
    keys: usize,
) -> Result<(), Failure> {
    let lower = signature.name.to_ascii_lowercase();
    let known = interpreter.functions.get(&*lower)?;
    let function = if let Some(function) = known {
        function
    } else {
        let mut registered = interpreter.new_registered()?;
        interpreter.load(call, library.code(), &mut registered)?;
        registered.keep_in(&mut interpreter.functions)?;
        interpreter.functions.get(&*lower)?.ok_or(NOT_FOUND)?
    };
    let machine = &interpreter.machine;
    let (words, arguments) = (call.rest(3).take(keys), call.rest(3 + keys));
    let words = machine.begin(call.limits.effort_max, call.effort.left(), words, arguments)?;
    let ran = run_within(call, machine, &function, words, signature.flags.no_writes())?;
    write_result(call, ran, &String::from_utf8_lossy(&signature.name))
}

fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Refused(refusal) => refusal,
        Failure::Lua(error) => broken(&error),
    }
}

pub(super) fn function(call: &mut Call<'_>) -> Done {
    let subcommand = String::from_utf8_lossy(call.at(1)).to_ascii_lowercase();
    let (fits, run): (bool, fn(&mut Call<'_>) -> Done) = match subcommand.as_str() {
        "load" => (call.count() >= 3, load),
        "delete" => (call.count() == 3, delete),
        "list" => (true, list),
        "stats" => (call.count() == 2, stats),
        "kill" => (call.count() == 2, |_| Err(Refusal::Words("NOTBUSY No scripts in execution right now."))),
        "flush" => (true, flush),
        "dump" => (call.count() == 2, dump),
        "restore" => (call.count() >= 3, restore),
        "help" => (call.count() == 2, help),
        _ => return Err(call.unknown_subcommand()),
    };
    if !fits {
        return Err(Refusal::Quoting(format!(
            "ERR wrong number of arguments for 'function|{subcommand}' command"
        )));
    }
    run(call)
}

fn help(call: &mut Call<'_>) -> Done {
    call.out.array(HELP.len());
    HELP.iter().for_each(|line| call.out.simple(line));
    Ok(())
}

fn load(call: &mut Call<'_>) -> Done {
    let last = call.count() - 1;
    if let Some(index) = (2..last).find(|index| !call.is(*index, "replace")) {
        let option = quoted(call.at(index)).replace(['\r', '\n'], " ");
        return Err(Refusal::Quoting(format!("ERR Unknown option given: {option}")));
    }
    call.afford(call.at(last).len())?;
    let (name, code_at) = parse_header(call.at(last))?;
    let replaces = last > 2;
    if !replaces && call.scripts.functions.libraries.get(&name).is_some() {
        return Err(Refusal::Quoting(format!("ERR Library '{}' already exists", quoted(&name))));
    }
    let sources = [(name, code_at, call.at(last))];
    add(call, &sources, if replaces { Policy::Replace } else { Policy::Append })?;
    let [(name, ..)] = sources;
    call.bulk(&name)
}

/// The rule of FUNCTION LOAD and FUNCTION RESTORE for libraries that exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Existing libraries stay; the command is refused if a new library has the name of an existing one.
    Append,
    /// A new library replaces an existing one of the same name; the others stay.
    Replace,
    /// All existing libraries are removed before the new ones are added.
    Flush,
}

/// A library's name, the number of bytes before its code, and its source.
type Named<'a> = (Vec<u8>, usize, &'a [u8]);

/// Loads libraries and adds them all; adds none if any library is invalid, registers no function, or collides
/// with an existing one. `policy` says which of the existing libraries they replace. The error says why.
fn add(call: &mut Call<'_>, sources: &[Named<'_>], policy: Policy) -> Done {
    let Scripts { functions, run_time, .. } = &mut *call.scripts;
    let mut interpreter = functions.take_interpreter(run_time)?;
    let loaded = load_all(call, &mut interpreter, sources);
    if matches!(loaded, Err(Failure::Lua(_))) {
        // The interpreter is dropped, because its memory is used up or the engine ended the code.
        return loaded.map(|_| ()).map_err(|failure| match failure {
            Failure::Lua(error) if ending(&error).is_some() => {
                let text = broken(&error).text().into_owned();
                Refusal::Quoting(format!("ERR Error registering functions: {text}"))
            }
            other => refusal_of(other),
        });
    }
    let added = loaded.map_err(refusal_of).and_then(|(libraries, registered)| {
        let known = &mut call.scripts.functions.libraries;
        let mut removed: Vec<Rc<Library>> = Vec::new();
        let former = match policy {
            Policy::Append => None,
            Policy::Replace => {
                removed.extend(libraries.iter().filter_map(|library| known.remove(&library.name)));
                None
            }
            Policy::Flush => Some(std::mem::take(known)),
        };
        if let Err(refusal) = known.add(libraries) {
            match former {
                Some(former) => *known = former,
                None => removed.into_iter().for_each(|library| known.insert(library)),
            }
            return Err(refusal);
        }
        removed.iter().for_each(|library| interpreter.forget(library));
        let cleared = former.map_or(Ok(()), |_| interpreter.functions.clear());
        let is_kept = cleared.and_then(|()| registered.keep_in(&mut interpreter.functions)).is_ok();
        Ok(is_kept)
    });
    // Without memory for a table of the functions, the interpreter is dropped, and libraries are loaded again as they
    // are called.
    if added != Ok(false) {
        interpreter.end(call)?;
        call.scripts.functions.interpreter = Some(interpreter);
    }
    added.map(|_| ())
}

/// Runs the code of libraries in the interpreter. Returns the libraries, and the functions that all of them
/// registered; an error if one of them fails or registers no function.
fn load_all(
    call: &Call<'_>,
    interpreter: &mut Interpreter,
    sources: &[Named<'_>],
) -> Result<(Vec<Library>, Registered), Failure> {
    let (mut libraries, mut registered) = (Vec::new(), interpreter.new_registered()?);
    for (name, code_at, source) in sources {
        let mut signatures = interpreter.load(call, &source[*code_at..], &mut registered)?;
        if signatures.is_empty() {
            return Err(Refusal::Words("ERR No functions registered").into());
        }
        signatures.sort_by(|left, right| left.name.cmp(&right.name));
        let library = Library {
            name: name.as_slice().into(),
            source: (*source).into(),
            code_at: *code_at,
            functions: signatures,
        };
        libraries.push(library);
    }
    Ok((libraries, registered))
}

fn delete(call: &mut Call<'_>) -> Done {
    let functions = &mut call.scripts.functions;
    let removed = functions.libraries.remove(call.arguments.at(2));
    let removed = removed.ok_or(Refusal::Words("ERR Library not found"))?;
    if let Some(interpreter) = &mut functions.interpreter {
        interpreter.forget(&removed);
    }
    call.ok()
}

fn flush(call: &mut Call<'_>) -> Done {
    if call.count() > 3 {
        return Err(call.wrong_subcommand());
    }
    if call.count() == 3 && !call.is(2, "sync") && !call.is(2, "async") {
        return Err(Refusal::Words("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    call.scripts.functions = Functions::default();
    call.ok()
}

fn list(call: &mut Call<'_>) -> Done {
    let (mut pattern, mut with_code, mut index) = (None, false, 2);
    while index < call.count() {
        if !with_code && call.is(index, "withcode") {
            with_code = true;
        } else if pattern.is_none() && call.is(index, "libraryname") {
            index += 1;
            let given = call.arguments.get(index);
            pattern = Some(given.ok_or(Refusal::Words("ERR library name argument was not given"))?);
        } else {
            let word = quoted(call.at(index));
            return Err(Refusal::Quoting(format!("ERR Unknown argument {word}")));
        }
        index += 1;
    }
    let pattern = pattern.map(<[u8]>::to_ascii_lowercase);
    let libraries = &call.scripts.functions.libraries;
    call.effort.spend(libraries.len() + libraries.functions(), LOOK * 8)?;
    let mut listed: Vec<Rc<Library>> = Vec::new();
    for library in libraries.all() {
        let matches = match &pattern {
            Some(pattern) => glob::matches(pattern, &library.name.to_ascii_lowercase(), call.effort)?,
            None => true,
        };
        listed.extend(matches.then(|| Rc::clone(library)));
    }
    call.out.array(listed.len());
    listed.iter().for_each(|library| write_library(call, library, with_code));
    Ok(())
}

fn write_library(call: &mut Call<'_>, library: &Library, with_code: bool) {
    let (protocol, out) = (call.session.protocol, &mut call.out);
    out.map(protocol, if with_code { 4 } else { 3 });
    out.bulk(b"library_name");
    out.bulk(&library.name);
    out.bulk(b"engine");
    out.bulk(b"LUA");
    out.bulk(b"functions");
    out.array(library.functions.len());
    for function in &library.functions {
        out.map(protocol, 3);
        out.bulk(b"name");
        out.bulk(&function.name);
        out.bulk(b"description");
        match &function.description {
            Some(description) => out.bulk(description),
            None => out.null(protocol),
        }
        out.bulk(b"flags");
        out.set(protocol, function.flags.names().count());
        function.flags.names().for_each(|flag| out.simple(flag));
    }
    if with_code {
        out.bulk(b"library_code");
        out.bulk(&library.source);
    }
}

fn stats(call: &mut Call<'_>) -> Done {
    let loaded = call.scripts.functions.counts();
    attend::write_stats(&mut call.out, call.session.protocol, loaded, None);
    Ok(())
}

fn dump(call: &mut Call<'_>) -> Done {
    let sources = call.scripts.functions.libraries.all().map(|library| &*library.source);
    let bytes = rdb::write_libraries(sources, &|bytes| call.out.expect(bytes))?;
    call.effort.charge_bytes(bytes.len());
    call.bulk(&bytes)
}

fn restore(call: &mut Call<'_>) -> Done {
    if call.count() > 4 {
        return Err(call.wrong_subcommand());
    }
    let policy = if call.count() == 3 || call.is(3, "append") {
        Policy::Append
    } else if call.is(3, "replace") {
        Policy::Replace
    } else if call.is(3, "flush") {
        Policy::Flush
    } else {
        return Err(Refusal::Words(
            "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
        ));
    };
    call.afford(call.at(2).len())?;
    let sources =
        rdb::read_libraries(call.at(2), ENGINE_LIBRARIES_BYTES_MAX, call.effort, call.keyspace.hasher())?;
    let mut named: Vec<Named<'_>> = Vec::new();
    for source in &sources {
        let (name, code_at) = parse_header(source)?;
        if named.iter().any(|(other, ..)| *other == name) {
            return Err(Refusal::Quoting(format!("ERR Library '{}' already exists", quoted(&name))));
        }
        call.effort.spend(named.len(), LOOK)?;
        named.push((name, code_at, source));
    }
    let known = &call.scripts.functions.libraries;
    if policy == Policy::Append
        && let Some((name, ..)) = named.iter().find(|(name, ..)| known.get(name).is_some())
    {
        return Err(Refusal::Quoting(format!("ERR Library {} already exists", quoted(name))));
    }
    add(call, &named, policy)?;
    call.ok()
}
