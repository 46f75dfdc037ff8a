//! A script that runs for long, as others are told of it meanwhile: SCRIPT KILL, FUNCTION KILL, FUNCTION STATS, and
//! `-BUSY` for whatever else.
//!
//! ```text
//!     interpreter ── every few hundred instructions, after busy-reply-threshold ─> Attend: Running ─> Verdict
//! ```

use super::refusal::Refusal;
use super::reply::Reply;
use crate::protocol::{Arguments, Protocol};

/// A function that is called now and then while a script runs for long: others are answered meanwhile, and may end it.
pub(super) type Attend<'a> = &'a dyn Fn(&Running<'_>) -> Verdict;

/// Whether a script that is under way goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Continue,
    Kill,
}

/// The kind of a script that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A script of EVAL or EVALSHA, which SCRIPT KILL ends.
    Script,
    /// A function of a library, which FUNCTION KILL ends.
    Function,
}

/// A script that is under way.
pub(super) struct Running<'a> {
    pub(super) kind: Kind,
    /// True if the script has called a command that writes, so that it must not end half-way.
    pub(super) has_written: bool,
    /// The request that runs the script.
    pub(super) arguments: Arguments<'a>,
    /// The milliseconds since the script began.
    pub(super) ms: u64,
    /// The numbers of libraries and of functions that are loaded.
    pub(super) loaded: (usize, usize),
}

impl Running<'_> {
    /// The error of requests that the script keeps from being carried out.
    pub(super) fn busy(&self) -> Refusal {
        Refusal::Words(match self.kind {
            Kind::Script => {
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
            Kind::Function => {
                "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
            }
        })
    }

    /// Returns the reason, if there is one, why a request to end a script of this kind does not end this one.
    pub(super) fn refuse_to_end(&self, kind: Kind) -> Option<Refusal> {
        if self.has_written {
            return Some(Refusal::Words(
                "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait \
                 the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
            ));
        }
        (kind != self.kind).then(|| self.busy())
    }
}

/// Appends the reply to FUNCTION STATS.
pub(super) fn write_stats(
    out: &mut Reply<'_>,
    protocol: Protocol,
    (libraries, functions): (usize, usize),
    running: Option<&Running<'_>>,
) {
    out.map(protocol, 2);
    out.bulk(b"running_script");
    match running {
        None => out.null(protocol),
        Some(Running { arguments, ms, .. }) => {
            out.map(protocol, 3);
            out.bulk(b"name");
            out.bulk(arguments.get(1).unwrap_or_default());
            out.bulk(b"command");
            out.array(arguments.len());
            arguments.iter().for_each(|word| out.bulk(word));
            out.bulk(b"duration_ms");
            out.integer(*ms as i64);
        }
    }
    out.bulk(b"engines");
    out.map(protocol, 1);
    out.bulk(b"LUA");
    out.map(protocol, 2);
    out.bulk(b"libraries_count");
    out.integer(libraries as i64);
    out.bulk(b"functions_count");
    out.integer(functions as i64);
}
