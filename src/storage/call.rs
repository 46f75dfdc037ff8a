//! One command under way: what it may touch, and how it reads its arguments and writes its reply.

use super::commands::Directory;
use super::effort::Effort;
use super::engine::{EngineLimits, Outcome};
use super::keyspace::Keyspace;
use super::numbers;
use super::refusal::Refusal;
use super::reply::Reply;
use super::session::Session;
use crate::protocol::{Arguments, Protocol};
use crate::values::time::Now;

/// A command has written its one reply, or says why not: then what it wrote is taken back.
pub(super) type Done = Result<(), Refusal>;

/// Everything a command may touch.
pub(super) struct Call<'a> {
    pub(super) keyspace: &'a mut Keyspace,
    pub(super) session: &'a mut Session,
    pub(super) tally: &'a mut Tally,
    pub(super) directory: &'a Directory,
    pub(super) limits: &'a EngineLimits,
    pub(super) arguments: Arguments<'a>,
    pub(super) now: Now,
    pub(super) out: Reply<'a>,
    pub(super) effort: &'a Effort,
    pub(super) outcome: Outcome,
}

/// What the engine counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By position in the directory.
    pub(super) calls: Vec<u64>,
    pub(super) commands: u64,
    pub(super) refused_for_memory: u64,
    pub(super) refused_for_cost: u64,
    pub(super) errors: u64,
    pub(super) started_ms: Option<u64>,
    /// Connections that are to be dropped, for whoever holds them.
    pub(super) killed: Vec<u64>,
}

impl<'a> Call<'a> {
    pub(super) fn protocol(&self) -> Protocol {
        self.session.protocol
    }

    pub(super) fn count(&self) -> usize {
        self.arguments.len()
    }

    pub(super) fn at(&self, index: usize) -> &'a [u8] {
        self.arguments.at(index)
    }

    pub(super) fn integer_at(&self, index: usize) -> Result<i64, Refusal> {
        numbers::integer(self.at(index)).ok_or(Refusal::NotAnInteger)
    }

    /// Whether argument `index` is there and is this word; `word` is in lower case.
    pub(super) fn is(&self, index: usize, word: &str) -> bool {
        self.arguments.get(index).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The arguments from `start` on.
    pub(super) fn rest(&self, start: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let arguments = self.arguments;
        (start..arguments.len()).map(move |index| arguments.at(index))
    }

    /// Refuses what would need more memory than is left, where a small request may ask for much.
    pub(super) fn afford(&self, growth: usize) -> Done {
        if growth as u64 > self.memory_left() { Err(Refusal::OutOfMemory) } else { Ok(()) }
    }

    /// Bytes that values may still grow by.
    pub(super) fn memory_left(&self) -> u64 {
        self.limits.bytes_max.saturating_sub(self.keyspace.used())
    }

    pub(super) fn ok(&mut self) -> Done {
        self.out.simple("OK");
        Ok(())
    }

    pub(super) fn integer(&mut self, value: i64) -> Done {
        self.out.integer(value);
        Ok(())
    }

    pub(super) fn number(&mut self, count: usize) -> Done {
        self.integer(count as i64)
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) -> Done {
        self.out.bulk(bytes);
        Ok(())
    }

    pub(super) fn null(&mut self) -> Done {
        self.out.null(self.session.protocol);
        Ok(())
    }

    pub(super) fn empty_array(&mut self) -> Done {
        self.out.array(0);
        Ok(())
    }

    pub(super) fn bulk_or_null(&mut self, bytes: Option<&[u8]>) -> Done {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }
}
