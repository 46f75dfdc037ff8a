//! A script that runs for a long time (longer than `busy-reply-threshold`), and requests of other connections
//! meanwhile: SCRIPT KILL, FUNCTION KILL and FUNCTION STATS are carried out, a few others (such as MULTI)
//! wait for the script's end, and the rest get the error `-BUSY`.

use super::refusal::Refusal;
use super::reply::Reply;
use crate::protocol::{Arguments, Protocol};

/// The function that the script interpreter calls regularly once a script has run for longer than
/// `busy-reply-threshold`. The function answers requests of other connections, and its verdict may end the
/// script.
pub(super) type Attend<'a> = &'a dyn Fn(&Running<'_>) -> Verdict;

/// The decision whether a running script continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Continue,
    Kill,
}

/// The kind of a running script, which decides which command can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A script of EVAL or EVALSHA, which SCRIPT KILL ends.
    Script,
    /// A function of a library, which FUNCTION KILL ends.
    Function,
}

/// The running script, as commands of other connections see it: SCRIPT KILL, FUNCTION KILL, FUNCTION STATS.
pub(super) struct Running<'a> {
    pub(super) kind: Kind,
    /// True if the script has called a command that writes. Such a script cannot be killed, because half of
    /// its writes would stay.
    pub(super) has_written: bool,
    /// The request that runs the script, for example EVAL with its arguments.
    pub(super) arguments: Arguments<'a>,
    /// The time since the script began, in milliseconds.
    pub(super) ms: u64,
    /// The number of libraries and the number of functions that are loaded, for FUNCTION STATS.
    pub(super) loaded: (usize, usize),
}

impl Running<'_> {
    /// Returns the error `-BUSY` for requests that are not carried out while this script runs. The text names
    /// the command that ends a script of its kind (SCRIPT KILL or FUNCTION KILL).
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

    /// Returns the error for a command that ends scripts of `kind` (SCRIPT KILL, FUNCTION KILL) but cannot
    /// end the running script, because that is of the other kind, or has written already. `None` if the
    /// command ends it.
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

/// Appends the reply to FUNCTION STATS: the function that is `running`, if any, and the numbers of
/// `libraries` and `functions` that are loaded.
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
