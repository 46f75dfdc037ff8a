//! Reasons why the engine refuses a command, and Redis's words for them.

use crate::protocol::Arguments;

/// Maximum number of bytes of a client's input that an error quotes, as in Redis.
const QUOTED_BYTES_MAX: usize = 128;

/// The error reply of a command that could not be carried out.
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
    /// The setting `min-replicas-to-write` asks for replicas, of which the engine has none.
    NoReplicas,
    TooLong,
    /// The reply would have more than this many bytes, which is the limit.
    ReplyTooLarge(usize),
    /// The request would take more than this many units of effort (steps of work), which is the limit.
    TooMuchWork(u64),
    InvalidCursor,
    InvalidExpire(&'static str),
    WrongArity(&'static str),
    /// A complete error text, with its code (such as ERR), that is always the same.
    Words(&'static str),
    /// A complete error text, with its code (such as ERR), that quotes the client's input or other details.
    Quoting(String),
    /// A complete error text, with its code, that quotes words of the client which may be no UTF-8.
    QuotingBytes(Vec<u8>),
}

impl Refusal {
    /// Returns the bytes of the error reply, without the leading minus.
    pub(super) fn bytes(&self) -> std::borrow::Cow<'_, [u8]> {
        match self {
            Self::QuotingBytes(text) => text.as_slice().into(),
            _ => self.text().into_owned().into_bytes().into(),
        }
    }

    /// Returns the text of the error reply, without the leading minus.
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
            Self::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
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
            Self::QuotingBytes(text) => return String::from_utf8_lossy(text).into_owned().into(),
        }
        .into()
    }
}

/// Returns the refusal of a request whose command does not exist. The text quotes the request's first words,
/// except for `STORAGE`, a command that only weir-storage has.
pub(super) fn unknown(arguments: Arguments<'_>) -> Refusal {
    if arguments.name().eq_ignore_ascii_case(b"storage") {
        return Refusal::Words(
            "ERR STORAGE is refused: only weir-storage, started with --scriptable, has it",
        );
    }
    let mut quoted: Vec<u8> = Vec::new();
    for argument in arguments.iter().skip(1) {
        if quoted.len() >= QUOTED_BYTES_MAX {
            break;
        }
        let room = QUOTED_BYTES_MAX - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(c_string(argument, room));
        quoted.extend_from_slice(b"' ");
    }
    let name = c_string(arguments.name(), QUOTED_BYTES_MAX);
    Refusal::QuotingBytes(
        [b"ERR unknown command '", name, b"', with args beginning with: ", &quoted].concat(),
    )
}

/// Returns the refusal of a request whose command does not have the subcommand that its second word names.
pub(super) fn unknown_subcommand(arguments: Arguments<'_>) -> Refusal {
    let given = c_string(arguments.get(1).unwrap_or_default(), QUOTED_BYTES_MAX);
    let name = arguments.name().to_ascii_uppercase();
    Refusal::QuotingBytes([b"ERR unknown subcommand '", given, b"'. Try ", &name, b" HELP."].concat())
}

/// Returns a client's input for an error text: up to its first zero byte and at most 128 bytes, so that no
/// error is as long as a request.
pub(super) fn quoted(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(c_string(bytes, QUOTED_BYTES_MAX))
}

/// Returns the bytes before the first zero byte, where a string of C ends, but at most the first `length`.
pub(super) fn c_string(bytes: &[u8], length: usize) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end.min(length)]
}
