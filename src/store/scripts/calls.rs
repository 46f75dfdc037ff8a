//! `redis.call` and `redis.pcall`: a command within a script, carried out as if a client had sent it.

use std::cell::{Cell, RefCell};

use mlua::{Error, Lua, MultiValue, Value};

use super::errors::{self, Raised};
use super::fuel::Ending;
use super::given::cut;
use super::machine::Shared;
use super::to_lua;
use crate::protocol::command::{self, Flags};
use crate::protocol::{Argument, Arguments, Protocol};
use crate::store::attend::{Kind, Running, Verdict};
use crate::store::call::{Call, Effect, InnerReply};
use crate::store::engine::memory_needed;
use crate::store::numbers;
use crate::store::refusal::Refusal;

/// The number of significant digits with which a Lua number becomes an argument of a command.
const ARGUMENT_PRECISION: usize = 17;
/// The units of effort (steps of work) of one `redis.call`, besides those of the command that it carries out.
const CALL_UNITS: u64 = 24;
/// The units of effort (steps of work) of an error in a script: an error value, and the stack trace that the
/// interpreter records.
const ERROR_UNITS: u64 = 64;
/// Commands that do not write, but that read-only scripts may not call either: Redis sends them to replicas
/// as it does writes.
const REPLICATED: [&str; 3] = ["pfcount", "publish", "spublish"];

/// The part of the engine that a running script can reach: the request that runs the script, and the script's
/// own state.
pub(super) struct Host<'host, 'call> {
    call: RefCell<&'host mut Call<'call>>,
    pub(super) shared: &'host Shared,
    /// The RESP version of the replies that the script sees, which it chooses by `redis.setresp`.
    protocol: Cell<Protocol>,
    /// True if the script may not call commands that write.
    readonly: bool,
    /// True as soon as the script has called a command that writes.
    wrote: Cell<bool>,
}

/// A request as a frame of bytes, and the position of each of its words in the frame.
type Words = (Vec<u8>, Vec<Argument>);

/// Turns the arguments of `redis.call` into the words of a request. An error if there are none, for arguments
/// other than strings and numbers, and if they take more memory than a script may have.
pub(super) fn words(shared: &Shared, arguments: &MultiValue) -> Result<Words, Error> {
    if arguments.is_empty() {
        return Err(errors::refuse("Please specify at least one argument for this redis lib call"));
    }
    let (mut frame, mut places) = (Vec::new(), Vec::with_capacity(arguments.len()));
    for argument in arguments {
        let start = frame.len();
        match argument {
            Value::String(text) => {
                let text = text.as_bytes();
                // A string may be named many times.
                if frame.len() + text.len() > shared.memory_max {
                    return Err(shared.fuel.end(Ending::Memory));
                }
                shared.fuel.spend_bytes(text.len())?;
                frame.extend_from_slice(&text);
            }
            Value::Integer(number) if number.unsigned_abs() < 1 << 53 => {
                crate::protocol::encode::decimal(&mut frame, *number);
            }
            Value::Integer(number) => numbers::write_general(&mut frame, *number as f64, ARGUMENT_PRECISION),
            Value::Number(number) => numbers::write_general(&mut frame, *number, ARGUMENT_PRECISION),
            _ => {
                return Err(errors::refuse("Lua redis lib command arguments must be strings or integers"));
            }
        }
        if u32::try_from(frame.len()).is_err() {
            return Err(errors::refuse("Lua redis lib command arguments are too long"));
        }
        places.push(Argument { start: start as u32, length: (frame.len() - start) as u32 });
    }
    Ok((frame, places))
}

impl<'host, 'call> Host<'host, 'call> {
    pub(super) fn new(call: &'host mut Call<'call>, shared: &'host Shared, readonly: bool) -> Self {
        let protocol = Cell::new(Protocol::Resp2);
        Self { call: RefCell::new(call), shared, protocol, readonly, wrote: Cell::new(false) }
    }

    /// Returns the RESP version of the replies that the script sees, which it chooses with `redis.setresp`;
    /// RESP2 by default.
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol.get()
    }

    pub(super) fn set_protocol(&self, lua: &Lua, arguments: &MultiValue) -> Result<(), Error> {
        if arguments.len() != 1 {
            return Err(errors::refuse("redis.setresp() requires one argument."));
        }
        let protocol = match lua.coerce_number(arguments[0].clone())?.map(cut) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            _ => return Err(errors::refuse("RESP version must be 2 or 3.")),
        };
        self.protocol.set(protocol);
        Ok(())
    }

    /// Lets other connections get answers while the script runs for a long time. Returns the error that ends
    /// the script if one of their requests was SCRIPT KILL or FUNCTION KILL.
    pub(super) fn attend(&self) -> Result<(), Error> {
        let Ok(call) = self.call.try_borrow() else { return Ok(()) };
        let Some(attend) = call.attend else { return Ok(()) };
        let name = call.arguments.name();
        let is_function = name.first().is_some_and(|first| first.eq_ignore_ascii_case(&b'f'));
        let running = Running {
            kind: if is_function { Kind::Function } else { Kind::Script },
            has_written: self.wrote.get(),
            arguments: call.arguments,
            ms: self.shared.fuel.running_ms(),
            loaded: call.scripts.functions.counts(),
        };
        match attend(&running) {
            Verdict::Continue => Ok(()),
            Verdict::Kill => Err(self.shared.fuel.end(Ending::Killed)),
        }
    }

    /// Carries out `redis.call` with its arguments (a command), and returns the reply as a Lua value. An
    /// error reply of the command raises an error in the script.
    pub(super) fn call(&self, lua: &Lua, arguments: &MultiValue) -> Result<Value, Error> {
        let reply = self.carry_out(arguments).or_else(|error| {
            self.shared.fuel.spend(ERROR_UNITS)?;
            Err(error)
        })?;
        match reply.strip_prefix(b"-") {
            Some(error) => Err(Raised::Reply(super::library::coded(error), true).into()),
            None => to_lua::value(lua, &self.shared.fuel, &reply),
        }
    }

    /// Carries out `redis.pcall` with its arguments (a command), and returns the reply as a Lua value. An
    /// error reply of the command is returned to the script as a table.
    pub(super) fn pcall(&self, lua: &Lua, arguments: &MultiValue) -> Result<Value, Error> {
        match self.call(lua, arguments) {
            Err(error) => {
                let visible = errors::visible(lua, Value::Error(Box::new(error)))?;
                Ok(match visible {
                    Value::String(text) => Value::Table(errors::error_table(lua, &text.as_bytes(), false)?),
                    other => other,
                })
            }
            done => done,
        }
    }

    /// Carries out a command for a script, and returns its reply, which may be an error reply, as RESP bytes.
    /// `Err` if the command could not run at all, or if the engine ends the script.
    fn carry_out(&self, arguments: &MultiValue) -> Result<Vec<u8>, Error> {
        self.shared.fuel.spend(CALL_UNITS)?;
        // The commands before may have taken long, in few instructions.
        self.shared.fuel.heed_time()?;
        let (frame, places) = words(self.shared, arguments)?;
        let arguments = Arguments::new(&frame, &places);
        let Ok(mut call) = self.call.try_borrow_mut() else {
            let text = b"ERR redis.call() cannot be called from within itself".to_vec();
            return Err(Raised::Reply(text, true).into());
        };
        call.effort.charge(self.shared.fuel.take_spent());
        let position = match self.admit(&mut call, arguments) {
            Ok(position) => position,
            Err(text) => {
                let directory = call.directory;
                call.tally.count_rejection(directory, arguments, text.as_bytes());
                return Err(Raised::Reply(text.into_bytes(), true).into());
            }
        };
        let reply = carry_out_inner(&mut call, position, arguments, self.protocol.get());
        self.shared.fuel.set_left(call.effort.left());
        self.shared.fuel.spend_bytes(reply.len())?;
        Ok(reply)
    }

    /// Checks a command that a script calls, and returns its position in the directory of commands. The error
    /// is the text for the script: the command is unknown, has a wrong number of arguments, is not allowed in
    /// scripts, would block (XREAD with BLOCK), writes although the script may not or too few replicas are
    /// connected, or needs memory while none is left. Records that the script has written if an admitted
    /// command writes.
    fn admit(&self, call: &mut Call<'_>, arguments: Arguments<'_>) -> Result<usize, String> {
        let refuse = |words: &str| Err(format!("ERR {words}"));
        let found = match command::recognise(&arguments) {
            Ok(found) => found,
            Err(command::Unrecognised::Arity(_)) => {
                return refuse("Wrong number of args calling Redis command from script");
            }
            Err(_) => return refuse("Unknown Redis command called from script"),
        };
        if found.flags.contains(Flags::NOSCRIPT) {
            return refuse("This Redis command is not allowed from script");
        }
        let Some(position) = call.directory.find(arguments.name()) else {
            return refuse("Unknown Redis command called from script");
        };
        let known = call.directory.at(position);
        if !known.accepts(arguments.len()) {
            return refuse("Wrong number of args calling Redis command from script");
        }
        if known.effect == Effect::Control {
            return refuse("This Redis command is not allowed from script");
        }
        let writes = matches!(known.effect, Effect::Write | Effect::Grow | Effect::Take)
            && found.flags.contains(Flags::WRITE);
        if self.readonly && (writes || REPLICATED.contains(&known.name)) {
            return refuse("Write commands are not allowed from read-only scripts.");
        }
        if ["xread", "xreadgroup"].contains(&known.name) && blocks(arguments) {
            let name = String::from_utf8_lossy(arguments.name());
            return refuse(&format!("{name} command is not allowed with BLOCK option from scripts"));
        }
        if writes && call.settings.lacks_replicas() {
            return Err(Refusal::NoReplicas.text().into_owned());
        }
        let needed = call.keyspace.used().saturating_add(memory_needed(arguments));
        if known.effect.exceeds(needed, call.bytes_max()) {
            call.tally.refused_for_memory += 1;
            return Err("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        self.wrote.set(self.wrote.get() || writes);
        Ok(position)
    }
}

/// True for XREAD and XREADGROUP with the option BLOCK.
fn blocks(arguments: Arguments<'_>) -> bool {
    let mut options = arguments.iter().take_while(|word| !word.eq_ignore_ascii_case(b"streams"));
    options.any(|word| word.eq_ignore_ascii_case(b"block"))
}

/// Carries out the command at `position` of the directory of commands for a script, and returns its reply in
/// RESP version `protocol`.
fn carry_out_inner(
    call: &mut Call<'_>,
    position: usize,
    arguments: Arguments<'_>,
    protocol: Protocol,
) -> Vec<u8> {
    let mut reply = Vec::new();
    let own = std::mem::replace(&mut call.session.protocol, protocol);
    let mut inner = call.inner(arguments, InnerReply::Own(&mut reply));
    inner.is_scripted = true;
    inner.run(position);
    call.session.protocol = own;
    reply
}
