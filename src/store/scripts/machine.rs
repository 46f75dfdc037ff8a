//! The interpreter: Lua 5.1 with the globals that scripts see, and bounds on memory and instructions.
//!
//! ```text
//!     sandbox.lua ── prepares ─> globals behind readonly tables <── functions of: texts tables json ...
//!     compile ─> function, kept by the digest of its source
//!     run ─> function, within `scope`: only there do redis.call and redis.pcall reach the engine
//!     register ─> a library's code, which registers functions and reaches nothing else
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Error, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};

use super::cache::{Digest, Script};
use super::errors::{self, LIBRARY_NAME, SANDBOX_NAME, SCRIPT_NAME};
use super::fuel::{Attendance, Fuel, INSTRUCTIONS_PER_CHECK, INSTRUCTIONS_PER_CHECK_LARGE, RunTime};
use super::kept::Kept;
use super::libraries::Signature;
use super::random::Random;
use super::register::{self, Registered, Registering};
use super::tables::{self, Readonly};
use super::{bits, given, json, library, msgpack, structs, texts};
use crate::values::limits::{ENGINE_FUNCTIONS_BYTES_MAX, ENGINE_SCRIPT_BYTES_MAX};

/// The memory in bytes by which the Lua interpreter may grow before its garbage is collected at the end of a
/// script.
const GARBAGE_BYTES: usize = 8 * 1024 * 1024;
/// The memory in bytes by which the interpreter may grow, by strings and garbage, before single instructions
/// of a script may take so long that its run time is checked at each call of the hook.
const TEXTS_BYTES: usize = 1024 * 1024;

/// The most results that a library function may return, because the interpreter's stack must hold them; more
/// are an error.
pub(super) const RESULTS_MAX: usize = 7_900;

/// The state that the library functions of one Lua interpreter share.
pub(super) struct Shared {
    pub(super) fuel: Fuel,
    pub(super) random: Random,
    pub(super) json: Rc<json::Settings>,
    /// Maximum number of bytes of a string that a library function may make in a script; a longer one ends
    /// the script.
    pub(super) memory_max: usize,
    /// The functions that a library has registered so far; `None` unless the code of a library is running, to
    /// load it.
    pub(super) registering: RefCell<Option<Registering>>,
    /// The bytes of the interpreter's memory in use after the last garbage collection.
    settled: Cell<usize>,
    /// The number of instructions after each of which effort (steps of work) and time are checked.
    checked_every: Cell<u32>,
}

/// The kind of code that an interpreter runs: scripts or functions of libraries, each of which has an
/// interpreter of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Scripts of EVAL. Nothing that a script sets remains in the interpreter for the next script.
    Scripts,
    /// Functions of libraries. Their local variables remain from one call to the next.
    Functions,
}

impl Role {
    /// Returns the name that stands for the source of this kind of code in error messages.
    fn code_name(self) -> &'static str {
        match self {
            Self::Scripts => SCRIPT_NAME,
            Self::Functions => LIBRARY_NAME,
        }
    }
}

/// Number of scripts that an interpreter keeps in compiled form. For one more, all are dropped, and compiled
/// again when they are run again.
const COMPILED_MAX: usize = 2_000;

/// A Lua interpreter with the globals of scripts, and the scripts that it has compiled.
pub(super) struct Machine {
    role: Role,
    lua: Lua,
    shared: Rc<Shared>,
    /// The table of global variables behind the readonly table that scripts see.
    globals: Table,
    environment: Table,
    /// The table that holds `call`, `pcall` and `setresp` of the script that is running; the library `redis`
    /// looks them up here.
    reached: Table,
    run: Function,
    /// A Lua function that switches the global variables that code sees: called with `true`, to those for the
    /// code of a library that is being loaded; with `false`, back to the usual ones.
    switch: Function,
    functions: Kept<Digest>,
}

impl Machine {
    pub(super) fn new(role: Role, run_time: Rc<RunTime>) -> Result<Self, Error> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let shared = Rc::new(Shared {
            fuel: Fuel::new(run_time),
            random: Random::default(),
            json: Rc::default(),
            memory_max: ENGINE_SCRIPT_BYTES_MAX,
            registering: RefCell::default(),
            settled: Cell::default(),
            checked_every: Cell::default(),
        });
        let (environment, run, reached, switch) = prepare(&lua, &shared, role)?;
        check_every(&lua, &shared, INSTRUCTIONS_PER_CHECK)?;
        let functions = Kept::new(&lua)?;
        lua.gc_collect()?;
        shared.settled.set(lua.used_memory());
        let globals = lua.globals();
        Ok(Self { role, lua, shared, globals, environment, reached, run, switch, functions })
    }

    pub(super) fn lua(&self) -> &Lua {
        &self.lua
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the memory that the interpreter uses, in bytes.
    pub(super) fn used(&self) -> usize {
        self.lua.used_memory()
    }

    /// Returns the compiled function of the script with this digest, and compiles the script first if that is
    /// not done yet. An error if the script does not compile, or if memory does not suffice.
    pub(super) fn function(&mut self, digest: Digest, script: &Script) -> Result<Function, Error> {
        if let Some(function) = self.functions.get(&digest)? {
            return Ok(function);
        }
        self.limit_memory()?;
        let code = &script.source[script.code_at..];
        let function = compile(&self.lua, code, self.role.code_name(), &self.environment)?;
        if self.functions.len() >= COMPILED_MAX {
            // They are compiled again when they are run again.
            self.functions.clear()?;
        }
        self.functions.insert(digest, &function)?;
        Ok(function)
    }

    pub(super) fn forget(&mut self, digest: &Digest) {
        self.functions.remove(digest);
    }

    /// Limits the memory that the next script, function or library code may allocate in the interpreter. In
    /// the interpreter of functions, whose state remains from call to call, total memory is limited as well.
    /// An error if the interpreter refuses the limit.
    fn limit_memory(&self) -> Result<(), Error> {
        let most = self.lua.used_memory() + ENGINE_SCRIPT_BYTES_MAX;
        let most = if self.role == Role::Functions { most.min(ENGINE_FUNCTIONS_BYTES_MAX) } else { most };
        self.lua.set_memory_limit(most).map(|_| ())
    }

    /// Sets the bounds of a script, or of a library's code: its memory limit, the instructions between two checks, and
    /// an effort (steps of work) of `left` units; `most` is the limit that the error names. An error if `left` is less
    /// than a script's start takes, if the request's scripts have run for too long, or if the interpreter fails.
    fn start(&self, most: u64, left: u64) -> Result<(), Error> {
        self.limit_memory()?;
        if self.shared.checked_every.get() != INSTRUCTIONS_PER_CHECK {
            check_every(&self.lua, &self.shared, INSTRUCTIONS_PER_CHECK)?;
        }
        self.shared.fuel.start(most, left)?;
        self.shared.json.reset();
        Ok(())
    }

    /// Prepares the interpreter for a script: sets its keys and arguments, its memory limit, and an effort
    /// (steps of work) of `left` units (`most` is the limit that the error names). Returns the keys and
    /// arguments for functions of libraries, which get them as parameters; `None` for scripts, which find them
    /// in `KEYS` and `ARGV`. An error if memory, effort or run time does not suffice.
    pub(super) fn begin(
        &self,
        most: u64,
        left: u64,
        keys: impl Iterator<Item = impl AsRef<[u8]>>,
        arguments: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> Result<Option<(Table, Table)>, Error> {
        self.start(most, left)?;
        let (keys, arguments) = (self.list(keys)?, self.list(arguments)?);
        if self.role == Role::Functions {
            return Ok(Some((keys, arguments)));
        }
        self.shared.random.begin();
        self.globals.raw_set("KEYS", keys)?;
        self.globals.raw_set("ARGV", arguments)?;
        Ok(None)
    }

    fn list(&self, words: impl Iterator<Item = impl AsRef<[u8]>>) -> Result<Table, Error> {
        let table = self.lua.create_table()?;
        for (index, word) in words.enumerate() {
            self.shared.fuel.note_string()?;
            table.raw_set(index + 1, self.lua.create_string(word)?)?;
        }
        Ok(table)
    }

    /// Runs the code of a library with an effort (steps of work) of `left` units; `most` is the limit for the
    /// whole request. Adds the functions that the code registers to `registered`, and returns their signatures; the inner
    /// `Err` is the table of the error that the code raised, the outer one means that the engine ended it.
    pub(super) fn register(
        &self,
        most: u64,
        left: u64,
        code: &[u8],
        registered: &mut Registered,
    ) -> Result<Result<Vec<Signature>, Value>, Error> {
        self.start(most, left)?;
        let function = compile(&self.lua, code, self.role.code_name(), &self.environment)?;
        self.switch.call::<()>(true)?;
        *self.shared.registering.borrow_mut() = Some(Registering::within(registered));
        let ran = self.run.call::<(bool, Value)>(function);
        let registering = self.shared.registering.take();
        self.switch.call::<()>(false)?;
        let (succeeded, value) = ran?;
        self.shared.fuel.check()?;
        let signatures = registering.map_or_else(Vec::new, |registering| registering.end(registered));
        Ok(if succeeded { Ok(signatures) } else { Err(value) })
    }

    /// Runs `function` with these implementations of `redis.call`, `redis.pcall` and `redis.setresp`. `words`
    /// are the keys and arguments of a library's function, and `None` for a script; `attendance` answers
    /// other connections if the run takes long. Returns the value that `function` returns, or the table of
    /// the error that it raised; the outer `Err` means that the engine ended it.
    pub(super) fn run(
        &self,
        function: &Function,
        words: Option<(Table, Table)>,
        call: Function,
        pcall: Function,
        setresp: Function,
        attendance: Attendance,
    ) -> Result<Result<Value, Value>, Error> {
        self.reached.raw_set("call", call)?;
        self.reached.raw_set("pcall", pcall)?;
        self.reached.raw_set("setresp", setresp)?;
        self.shared.fuel.attend_with(Some(attendance));
        let ran: Result<(bool, Value), Error> = match words {
            Some((keys, arguments)) => self.run.call((function, keys, arguments)),
            None => self.run.call(function),
        };
        self.shared.fuel.attend_with(None);
        let (succeeded, value) = ran?;
        self.shared.fuel.check()?;
        Ok(if succeeded { Ok(value) } else { Err(value) })
    }

    /// Ends a script or a call of a function: collects the interpreter's garbage if there is much. Returns
    /// the number of bytes to charge for the collection; 0 if there was none. An error if the interpreter
    /// fails.
    pub(super) fn end(&self) -> Result<usize, Error> {
        let used = self.lua.used_memory();
        if used < self.shared.settled.get() + GARBAGE_BYTES {
            return Ok(0);
        }
        self.globals.raw_set("KEYS", Value::Nil)?;
        self.globals.raw_set("ARGV", Value::Nil)?;
        self.lua.gc_collect()?;
        self.shared.settled.set(self.lua.used_memory());
        Ok(used)
    }
}

/// Sets the interpreter's hook, which checks the effort (steps of work) and time of a script each time after
/// this many instructions. Once a script uses much memory, the hook sets itself anew, for fewer instructions.
/// An error if the interpreter fails.
fn check_every(lua: &Lua, shared: &Rc<Shared>, instructions: u32) -> Result<(), Error> {
    shared.checked_every.set(instructions);
    let hooked = Rc::clone(shared);
    let triggers = HookTriggers::new().every_nth_instruction(instructions);
    lua.set_global_hook(triggers, move |lua, _| {
        let used = lua.used_memory();
        hooked.fuel.spend_instructions(instructions, used >= hooked.settled.get() + TEXTS_BYTES)?;
        let is_large = used >= hooked.settled.get() + GARBAGE_BYTES + TEXTS_BYTES;
        if is_large && instructions != INSTRUCTIONS_PER_CHECK_LARGE {
            check_every(lua, &hooked, INSTRUCTIONS_PER_CHECK_LARGE)?;
        }
        Ok(VmState::Continue)
    })
}

/// Compiles source text (`code`), whose name in errors is `name` and whose globals are in `environment`. The
/// garbage collector is stopped meanwhile, because the compiler of Lua 5.1 holds a string that the collector
/// does not see. An error if the source is no valid Lua, or memory does not suffice.
pub(super) fn compile(lua: &Lua, code: &[u8], name: &str, environment: &Table) -> Result<Function, Error> {
    if code.first() == Some(&0x1b) {
        let line = format!("[string \"{}\"]:1: unexpected symbol near 'char(27)'", "\u{1b}LuaQ");
        return Err(Error::SyntaxError { message: line, incomplete_input: false });
    }
    lua.gc_stop();
    let chunk = lua.load(code).set_name(name).set_mode(ChunkMode::Text).set_environment(environment.clone());
    let function = chunk.into_function();
    lua.gc_restart();
    function
}

/// The results of `sandbox.lua`, the Lua code that prepares an interpreter: the table of globals that scripts
/// see, the function that runs a script, the table of the functions that reach the engine, and the function
/// that begins and ends the loading of a library.
type Prepared = (Table, Function, Table, Function);

/// Runs the Lua code (`sandbox.lua`) that prepares the globals of a new interpreter, and returns its results.
/// `role` says which kind of code the interpreter is for. An error if the interpreter fails.
fn prepare(lua: &Lua, shared: &Rc<Shared>, role: Role) -> Result<Prepared, Error> {
    let globals = lua.globals();
    let host = lua.create_table()?;
    let own_next: Function = globals.raw_get("next")?;
    let readonly = Readonly { behind: lua.create_table()?, sealed: lua.create_table()?, next: own_next };
    host.raw_set("behind", &readonly.behind)?;
    host.raw_set("sealed", &readonly.sealed)?;
    add_readonly(lua, shared, &host, readonly)?;
    add_texts(lua, shared, &host)?;
    host.raw_set("visible", lua.create_function(visible_of(shared))?)?;
    host.raw_set("finish", lua.create_function(|lua, value: Value| errors::final_table(lua, value))?)?;
    let libraries = lua.create_table()?;
    libraries.raw_set("redis", library::create(lua, shared, role)?)?;
    if role == Role::Functions {
        host.raw_set("loading", register::create(lua, shared)?)?;
        host.raw_set("reached", add_reaching(lua, &libraries.raw_get("redis")?)?)?;
    }
    libraries.raw_set("bit", bits::create(lua)?)?;
    libraries.raw_set("struct", structs::create(lua, shared)?)?;
    libraries.raw_set("cmsgpack", msgpack::create(lua, shared)?)?;
    libraries.raw_set("cjson", json::create(lua, shared, &shared.json)?)?;
    host.raw_set("libraries", libraries)?;
    let sandbox = lua.load(include_str!("sandbox.lua")).set_name(SANDBOX_NAME).into_function()?;
    let (environment, run, reached, switch): Prepared = sandbox.call((&host, globals))?;
    let for_loading = environment.clone();
    let load =
        move |lua: &Lua, shared: &Shared, given: &MultiValue| tables::load(lua, shared, &for_loading, given);
    add(lua, shared, &host, "loadstring", load)?;
    lua.globals().raw_set("loadstring", host.raw_get::<Function>("loadstring")?)?;
    Ok((environment, run, reached, switch))
}

/// Adds `call`, `pcall` and `setresp` to the library `redis` in such a form that a library of functions may
/// keep them: each looks up the implementation for the command that is running now. Returns the table in
/// which they look. An error if the interpreter fails.
fn add_reaching(lua: &Lua, redis: &Table) -> Result<Table, Error> {
    let reached = lua.create_table()?;
    for name in ["call", "pcall", "setresp"] {
        let within = reached.clone();
        let reach = move |_: &Lua, given: MultiValue| within.raw_get::<Function>(name)?.call::<Value>(given);
        redis.raw_set(name, lua.create_function(reach)?)?;
    }
    Ok(reached)
}

fn visible_of(shared: &Rc<Shared>) -> impl Fn(&Lua, Value) -> Result<Value, Error> + 'static {
    let shared = Rc::clone(shared);
    move |lua, value| {
        shared.fuel.check()?;
        errors::visible(lua, value)
    }
}

/// Adds the native `function`, which is given the interpreter, its shared state and the arguments, to the Lua
/// table `table` under `name`. An error if the interpreter has no memory left.
pub(super) fn add<R: mlua::IntoLuaMulti>(
    lua: &Lua,
    shared: &Rc<Shared>,
    table: &Table,
    name: &str,
    function: impl Fn(&Lua, &Shared, &MultiValue) -> Result<R, Error> + 'static,
) -> Result<(), Error> {
    let shared = Rc::clone(shared);
    table.raw_set(name, lua.create_function(move |lua, given: MultiValue| function(lua, &shared, &given))?)
}

fn add_readonly(lua: &Lua, shared: &Rc<Shared>, host: &Table, readonly: Readonly) -> Result<(), Error> {
    let readonly = Rc::new(readonly);
    let own_metatable: Function = lua.globals().raw_get("getmetatable")?;
    let with = || Rc::clone(&readonly);
    let own = with();
    add(lua, shared, host, "setmetatable", move |lua, _, given| own.set_metatable(lua, given))?;
    let own = with();
    add(lua, shared, host, "getmetatable", move |lua, _, given| own.metatable(lua, given, &own_metatable))?;
    let own = with();
    add(lua, shared, host, "rawget", move |lua, _, given| own.raw_get(lua, given))?;
    let own = with();
    add(lua, shared, host, "rawset", move |lua, _, given| own.raw_set(lua, given))?;
    let own = with();
    add(lua, shared, host, "pairs", move |lua, _, given| own.pairs(lua, given))?;
    let own = with();
    add(lua, shared, host, "insert", move |lua, shared, given| own.insert(lua, shared, given))?;
    let own = with();
    add(lua, shared, host, "remove", move |lua, shared, given| own.remove(lua, shared, given))?;
    add(lua, shared, host, "concat", tables::concat)?;
    add(lua, shared, host, "unpack", tables::unpack)?;
    add(lua, shared, host, "collectgarbage", tables::collect_garbage)?;
    add(lua, shared, host, "gcinfo", |lua, _, _| Ok(lua.used_memory() / 1024))?;
    add(lua, shared, host, "is_native", |_, _, given| {
        Ok(given.front().and_then(Value::as_function).is_some_and(|function| function.info().what == "C"))
    })?;
    add(lua, shared, host, "is_short", |lua, _, given| tables::is_short(lua, given))?;
    add(lua, shared, host, "spend", |lua, shared, given| {
        shared.fuel.spend(given::cut(given::Given::new(lua, given).number(0)?).max(0) as u64)
    })
}

fn add_texts(lua: &Lua, shared: &Rc<Shared>, host: &Table) -> Result<(), Error> {
    add(lua, shared, host, "find", texts::find)?;
    add(lua, shared, host, "match", texts::match_)?;
    add(lua, shared, host, "search", texts::search_step)?;
    add(lua, shared, host, "gsub", texts::gsub_text)?;
    add(lua, shared, host, "rep", texts::rep)?;
    add(lua, shared, host, "lower", texts::lower)?;
    add(lua, shared, host, "upper", texts::upper)?;
    add(lua, shared, host, "reverse", texts::reverse)?;
    add(lua, shared, host, "char", |lua, _, given| texts::char(lua, given))?;
    let format: Function = lua.globals().raw_get::<Table>("string")?.raw_get("format")?;
    add(lua, shared, host, "format", move |lua, shared, given| texts::format(lua, shared, given, &format))?;
    add(lua, shared, host, "max", |lua, _, given| library::extreme(lua, given, |one, other| one > other))?;
    add(lua, shared, host, "min", |lua, _, given| library::extreme(lua, given, |one, other| one < other))?;
    let own = Rc::clone(shared);
    host.raw_set(
        "gmatch",
        lua.create_function(move |lua, given: MultiValue| texts::gmatch(lua, &own, &given))?,
    )?;
    add(lua, shared, host, "random", library::random)?;
    add(lua, shared, host, "randomseed", |lua, shared, given| {
        shared.random.seed(given::Given::new(lua, given).integer(0)? as i32);
        Ok(())
    })
}
