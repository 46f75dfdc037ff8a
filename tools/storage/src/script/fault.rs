//! Error replies of a store in trouble, such as LOADING.

use std::str::FromStr;

/// A kind of error reply that a scripted store gives, such as `-LOADING`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultKind {
    code: &'static str,
    line: &'static str,
}

/// The kinds of error reply, with Redis's own error lines.
const KINDS: &[FaultKind] = &[
    FaultKind { code: "LOADING", line: "LOADING Redis is loading the dataset in memory" },
    FaultKind {
        code: "BUSY",
        line: "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    },
    FaultKind { code: "CLUSTERDOWN", line: "CLUSTERDOWN The cluster is down" },
    FaultKind {
        code: "MASTERDOWN",
        line: "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    },
    FaultKind { code: "READONLY", line: "READONLY You can't write against a read only replica." },
    FaultKind { code: "TRYAGAIN", line: "TRYAGAIN Multiple keys request during rehashing of slot" },
    FaultKind { code: "OOM", line: "OOM command not allowed when used memory > 'maxmemory'." },
    FaultKind { code: "ERR", line: "ERR scripted error" },
];

impl FaultKind {
    /// Returns the error line that a client gets, without the leading minus.
    pub(crate) fn line(self) -> &'static str {
        self.line
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        KINDS.iter().copied().find(|kind| kind.code.eq_ignore_ascii_case(text)).ok_or_else(|| {
            let codes: Vec<_> = KINDS.iter().map(|kind| kind.code).collect();
            format!("'{text}' is no kind of error; one of {} is expected", codes.join(", "))
        })
    }
}

/// A kind of error reply, and the share of requests that are answered with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    kind: FaultKind,
    share: f64,
}

impl Errors {
    /// Creates the setting to answer requests with errors of a kind; `share` is the share of requests that
    /// get one, from 0 to 1. The error is a text for the user.
    pub fn new(kind: FaultKind, share: f64) -> Result<Self, String> {
        if (0.0..=1.0).contains(&share) {
            Ok(Self { kind, share })
        } else {
            Err(format!("'{share}' is no share; a number from 0 to 1 is expected"))
        }
    }

    /// Returns the kind of error reply.
    pub fn kind(self) -> FaultKind {
        self.kind
    }

    /// Returns the share of requests that are answered with an error, from 0 to 1.
    pub fn share(self) -> f64 {
        self.share
    }
}
