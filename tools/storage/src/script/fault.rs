//! Errors that a store in trouble replies with.

use std::str::FromStr;

/// A kind of error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultKind {
    code: &'static str,
    line: &'static str,
}

/// The kinds with Redis's own error lines.
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
    /// The error line without the leading minus.
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

/// The kind of errors, and the share of requests that are answered with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    kind: FaultKind,
    share: f64,
}

impl Errors {
    /// Creates errors for a share of the requests, from 0 to 1.
    pub fn new(kind: FaultKind, share: f64) -> Result<Self, String> {
        if (0.0..=1.0).contains(&share) {
            Ok(Self { kind, share })
        } else {
            Err(format!("'{share}' is no share; a number from 0 to 1 is expected"))
        }
    }

    /// The kind of the errors.
    pub fn kind(self) -> FaultKind {
        self.kind
    }

    /// The share of requests answered with an error, from 0 to 1.
    pub fn share(self) -> f64 {
        self.share
    }
}
