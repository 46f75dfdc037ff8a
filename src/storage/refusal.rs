//! Why a command was not carried out, and Redis's words for it.

/// A command's reply when it could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    WrongType,
    NotAnInteger,
    NotAFloat,
    Syntax,
    NoSuchKey,
    OutOfRange,
    Overflow,
    OutOfMemory,
    TooLong,
    /// The reply would pass this many bytes.
    ReplyTooLarge(usize),
    /// More elements would be looked at than one request may: the limit, in units of effort.
    TooMuchWork(u64),
    InvalidCursor,
    InvalidExpire(&'static str),
    WrongArity(&'static str),
    /// A whole error line, code first.
    Words(&'static str),
    /// One that quotes the client.
    Quoting(String),
}

impl Refusal {
    /// The error line without the leading minus.
    pub(super) fn text(&self) -> std::borrow::Cow<'static, str> {
        match self {
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::NotAnInteger => "ERR value is not an integer or out of range",
            Self::NotAFloat => "ERR value is not a valid float",
            Self::Syntax => "ERR syntax error",
            Self::NoSuchKey => "ERR no such key",
            Self::OutOfRange => "ERR index out of range",
            Self::Overflow => "ERR increment or decrement would overflow",
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::TooLong => "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            Self::InvalidCursor => "ERR invalid cursor",
            Self::ReplyTooLarge(bytes) => {
                return format!("ERR the reply would be larger than {bytes} bytes").into();
            }
            Self::TooMuchWork(units) => {
                return format!(
                    "ERR the request would take more than {units} steps, about one per element: ask for less at once"
                )
                .into();
            }
            Self::InvalidExpire(command) => {
                return format!("ERR invalid expire time in '{command}' command").into();
            }
            Self::WrongArity(command) => {
                return format!("ERR wrong number of arguments for '{command}' command").into();
            }
            Self::Words(words) => words,
            Self::Quoting(text) => return text.clone().into(),
        }
        .into()
    }
}
