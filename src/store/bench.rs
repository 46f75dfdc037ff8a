//! Test bench: an engine and one connection to it, driven by command lines, for the tests of the command
//! families.

use super::engine::Engine;
use super::limits::EngineLimits;
use super::session::{Disposition, Session};
use crate::protocol::{Argument, Arguments};
use crate::values::time::Now;

pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) session: Session,
    pub(super) now: Now,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::bounded(u64::MAX)
    }

    pub(super) fn bounded(bytes_max: u64) -> Self {
        Self::with(EngineLimits::with_memory(bytes_max))
    }

    pub(super) fn with(limits: EngineLimits) -> Self {
        let now = Now { unix_ms: 1_700_000_000_000, ..Now::default() };
        Self { engine: Engine::new(limits, 42), session: Session::new(1), now }
    }

    pub(super) fn send_bytes(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let (mut frame, mut places) = (Vec::new(), Vec::new());
        for word in words {
            places.push(Argument { start: frame.len() as u32, length: word.len() as u32 });
            frame.extend_from_slice(word);
        }
        let mut out = Vec::new();
        let arguments = Arguments::new(&frame, &places);
        if self.engine.execute(&mut self.session, arguments, self.now, &mut out) == Disposition::Wait {
            self.engine.cancel_wait(&self.session);
            out.extend_from_slice(b"+WAITS\r\n");
        }
        out
    }

    /// Sends a command whose words are separated by spaces, and returns the reply with `|` in place of each
    /// CRLF. A blocking command that would wait returns `+WAITS|`, and its wait ends at once.
    pub(super) fn send(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        String::from_utf8_lossy(&self.send_bytes(&words)).replace("\r\n", "|")
    }

    pub(super) fn wait_ms(&mut self, ms: u64) {
        self.now.unix_ms += ms;
    }

    /// Sends each command of `(command, reply)` in order and asserts its reply.
    pub(super) fn talk(&mut self, dialogue: &[(&str, &str)]) {
        for (line, expected) in dialogue {
            assert_eq!(self.send(line), *expected, "{line}");
        }
    }
}
