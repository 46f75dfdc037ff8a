//! The first line of a script, which may name flags: `#!lua flags=no-writes,allow-oom`.

use crate::store::refusal::{Refusal, quoted};

/// The flags that a script of EVAL declares in its first line, such as `#!lua flags=no-writes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Flags {
    /// True if the script begins with a `#!` line. Without one, the script may call any command that scripts
    /// may call.
    pub(super) declared: bool,
    /// True if the script may not call commands that write (`no-writes`).
    pub(super) no_writes: bool,
    /// True if the script may run when the memory is full (`allow-oom`).
    pub(super) allow_oom: bool,
}

/// Parses a script's `#!` line, if there is one. Returns the flags and the length of the line in bytes
/// without its end (0 if there is no such line); an error for a malformed line.
pub(super) fn parse(source: &[u8]) -> Result<(Flags, usize), Refusal> {
    if !source.starts_with(b"#!") {
        return Ok((Flags::default(), 0));
    }
    let Some(length) = source.iter().position(|byte| *byte == b'\n') else {
        return Err(Refusal::Words("ERR Invalid script shebang"));
    };
    let mut words = source[..length].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let engine = words.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(Refusal::Quoting(format!("ERR Unexpected engine in script shebang: {}", quoted(engine))));
    }
    let mut flags = Flags { declared: true, ..Flags::default() };
    for word in words {
        let Some(names) = word.strip_prefix(b"flags=") else {
            return Err(Refusal::Quoting(format!("ERR Unknown lua shebang option: {}", quoted(word))));
        };
        for name in names.split(|byte| *byte == b',').filter(|name| !name.is_empty()) {
            match name {
                b"no-writes" => flags.no_writes = true,
                b"allow-oom" => flags.allow_oom = true,
                b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys" => {}
                other => {
                    return Err(Refusal::Quoting(format!(
                        "ERR Unexpected flag in script shebang: {}",
                        quoted(other)
                    )));
                }
            }
        }
    }
    Ok((flags, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_strange_ones_refused() {
        assert_eq!(parse(b"return 1"), Ok((Flags::default(), 0)));
        let flags = Flags { declared: true, no_writes: true, allow_oom: true };
        assert_eq!(parse(b"#!lua flags=no-writes,allow-oom\nreturn 1"), Ok((flags, 31)));
        for (source, words) in [
            ("#!lua", "ERR Invalid script shebang"),
            ("#!luax\n", "ERR Unexpected engine in script shebang: #!luax"),
            ("#!lua flags=bad\n", "ERR Unexpected flag in script shebang: bad"),
            ("#!lua name=x\n", "ERR Unknown lua shebang option: name=x"),
        ] {
            assert_eq!(
                parse(source.as_bytes()).map_err(|refusal| refusal.text().into_owned()),
                Err(words.into())
            );
        }
    }
}
