//! The interpreter: Lua 5.1 with the globals that scripts see, and bounds on memory and instructions.
//!
//! ```text
//!     sandbox.lua ── prepares ─> globals behind readonly tables <── functions of this room: texts tables json ...
//!     compile ─> function, kept by the digest of its source
//!     run ─> function, within `scope`: only there do redis.call and redis.pcall reach the engine
//! ```

use std::collections::HashMap;
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Error, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};

use super::cache::{Digest, Script};
use super::errors::{self, SANDBOX_NAME, SCRIPT_NAME};
use super::fuel::{Fuel, INSTRUCTIONS_PER_CHECK, Stopwatch};
use super::random::Random;
use super::tables::{self, Readonly};
use super::{bits, given, json, library, msgpack, structs, texts};
use crate::values::limits::ENGINE_SCRIPT_BYTES_MAX;

/// The bytes that a script may leave behind until they are collected.
const GARBAGE_BYTES: usize = 8 * 1024 * 1024;

/// Maximum number of results of a library function: the interpreter's stack must hold them.
pub(super) const RESULTS_MAX: usize = 7_900;

/// The state that library functions share.
pub(super) struct Shared {
    pub(super) fuel: Fuel,
    pub(super) random: Random,
    pub(super) json: Rc<json::Settings>,
    /// The most bytes of a text that a library makes.
    pub(super) memory_max: usize,
}

/// An interpreter.
pub(super) struct Machine {
    lua: Lua,
    shared: Rc<Shared>,
    /// The globals behind the readonly table that scripts see.
    globals: Table,
    environment: Table,
    /// The table behind `redis`.
    redis: Table,
    run: Function,
    functions: HashMap<Digest, Function>,
    /// The bytes in use after the last collection.
    settled: usize,
}

impl Machine {
    pub(super) fn new(stopwatch: Option<Stopwatch>) -> Result<Self, Error> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let shared = Rc::new(Shared {
            fuel: Fuel::new(stopwatch),
            random: Random::default(),
            json: Rc::default(),
            memory_max: ENGINE_SCRIPT_BYTES_MAX,
        });
        let (environment, run, redis) = prepare(&lua, &shared)?;
        let hooked = Rc::clone(&shared);
        lua.set_global_hook(
            HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK),
            move |_, _| hooked.fuel.spend_instructions().map(|()| VmState::Continue),
        )?;
        lua.gc_collect()?;
        let (globals, settled) = (lua.globals(), lua.used_memory());
        Ok(Self { lua, shared, globals, environment, redis, run, functions: HashMap::new(), settled })
    }

    pub(super) fn lua(&self) -> &Lua {
        &self.lua
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> usize {
        self.lua.used_memory()
    }

    /// The function of a script, compiled unless it is there.
    pub(super) fn function(&mut self, digest: Digest, script: &Script) -> Result<Function, Error> {
        if let Some(function) = self.functions.get(&digest) {
            return Ok(function.clone());
        }
        self.lua.set_memory_limit(self.lua.used_memory() + ENGINE_SCRIPT_BYTES_MAX)?;
        let code = &script.source[script.code_at..];
        let function = compile(&self.lua, code, SCRIPT_NAME, &self.environment)?;
        self.functions.insert(digest, function.clone());
        Ok(function)
    }

    pub(super) fn forget(&mut self, digest: &Digest) {
        self.functions.remove(digest);
    }

    /// Makes everything as a script finds it: its keys and arguments, its share of effort and of memory.
    pub(super) fn begin(
        &self,
        most: u64,
        left: u64,
        keys: impl Iterator<Item = impl AsRef<[u8]>>,
        arguments: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> Result<(), Error> {
        self.lua.set_memory_limit(self.lua.used_memory() + ENGINE_SCRIPT_BYTES_MAX)?;
        self.shared.fuel.start(most, left);
        self.shared.random.reset();
        self.shared.json.reset();
        self.globals.raw_set("KEYS", list(&self.lua, keys)?)?;
        self.globals.raw_set("ARGV", list(&self.lua, arguments)?)
    }

    /// Runs a function with these implementations of `redis.call`, `redis.pcall` and `redis.setresp`. Returns
    /// its value, or the table of the error that ended it.
    pub(super) fn run(
        &self,
        function: &Function,
        call: Function,
        pcall: Function,
        setresp: Function,
    ) -> Result<Result<Value, Value>, Error> {
        self.redis.raw_set("call", call)?;
        self.redis.raw_set("pcall", pcall)?;
        self.redis.raw_set("setresp", setresp)?;
        let (succeeded, value): (bool, Value) = self.run.call(function)?;
        self.shared.fuel.check()?;
        Ok(if succeeded { Ok(value) } else { Err(value) })
    }

    /// Ends a script: collects what it left behind, if that is much. Returns the bytes looked at for that.
    pub(super) fn end(&mut self) -> Result<usize, Error> {
        let used = self.lua.used_memory();
        if used < self.settled + GARBAGE_BYTES {
            return Ok(0);
        }
        self.globals.raw_set("KEYS", Value::Nil)?;
        self.globals.raw_set("ARGV", Value::Nil)?;
        self.lua.gc_collect()?;
        self.settled = self.lua.used_memory();
        Ok(used)
    }
}

/// Compiles text. The collector rests meanwhile, because the compiler of Lua 5.1 holds a text that the
/// collector does not see.
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

fn list(lua: &Lua, words: impl Iterator<Item = impl AsRef<[u8]>>) -> Result<Table, Error> {
    let table = lua.create_table()?;
    for (index, word) in words.enumerate() {
        table.raw_set(index + 1, lua.create_string(word)?)?;
    }
    Ok(table)
}

/// Prepares the globals. Returns the environment of scripts, the function that runs one, and the table behind
/// `redis`.
fn prepare(lua: &Lua, shared: &Rc<Shared>) -> Result<(Table, Function, Table), Error> {
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
    libraries.raw_set("redis", library::create(lua)?)?;
    libraries.raw_set("bit", bits::create(lua)?)?;
    libraries.raw_set("struct", structs::create(lua, shared)?)?;
    libraries.raw_set("cmsgpack", msgpack::create(lua, shared)?)?;
    libraries.raw_set("cjson", json::create(lua, shared, &shared.json)?)?;
    host.raw_set("libraries", libraries)?;
    let sandbox = lua.load(include_str!("sandbox.lua")).set_name(SANDBOX_NAME).into_function()?;
    let (environment, run, redis): (Table, Function, Table) = sandbox.call((&host, globals))?;
    let for_loading = environment.clone();
    let load = lua.create_function(move |lua, given: MultiValue| tables::load(lua, &for_loading, &given))?;
    lua.globals().raw_set("loadstring", &load)?;
    host.raw_set("loadstring", load)?;
    Ok((environment, run, redis))
}

fn visible_of(shared: &Rc<Shared>) -> impl Fn(&Lua, Value) -> Result<Value, Error> + 'static {
    let shared = Rc::clone(shared);
    move |lua, value| {
        shared.fuel.check()?;
        errors::visible(lua, value)
    }
}

/// Adds a function of the library to a table.
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
