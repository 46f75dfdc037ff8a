//! Clusters of operations on a key: each consists of the write of one value and the reads that found the
//! value.

use std::collections::HashMap;

use super::super::operation::{Act, Fate, Found, Operation, Token};
use super::{Verdict, explain};

/// All clusters of a key (a cluster is a value with its write and its reads), and the cluster that each
/// operation belongs to.
pub struct Clusters {
    /// The number of each operation's cluster (a value with its write and its reads); `None` if the
    /// operation says nothing about the order, such as a delete of unknown success, or a write of unknown
    /// success that no read found.
    of: Vec<Option<u32>>,
    /// The index of the first operation of each cluster (a value's write and its reads): the write, if it has
    /// one.
    heads: Vec<u32>,
    /// The index, among the operations, of each value's write, by the token (number of the write) in the
    /// value.
    writes: HashMap<Token, u32>,
}

impl Clusters {
    pub fn of(operations: &[Operation], verdict: &mut Verdict) -> Self {
        let mut clusters =
            Self { of: vec![None; operations.len()], heads: Vec::new(), writes: HashMap::new() };
        for (index, operation) in operations.iter().enumerate() {
            if let Act::Write { token, .. } = operation.act {
                clusters.writes.insert(token, index as u32);
            }
        }
        for (index, operation) in operations.iter().enumerate() {
            match operation.act {
                Act::Read(found) | Act::Take(found) => clusters.read(operations, index, found, verdict),
                Act::Write { .. } | Act::Delete if operation.fate == Fate::Done => clusters.begin(index),
                Act::Write { .. } | Act::Delete | Act::Expire { .. } => {}
            }
        }
        clusters
    }

    fn read(&mut self, operations: &[Operation], index: usize, found: Found, verdict: &mut Verdict) {
        let read = &operations[index];
        let token = match found {
            Found::Nil => return self.begin(index),
            Found::Strange => return verdict.note(|| explain::alone(read, "found what nobody wrote")),
            Found::Value(token) => token,
        };
        let Some(write) = self.write_of(token) else {
            return verdict.note(|| explain::alone(read, "found what nobody wrote to this key"));
        };
        let written = &operations[write];
        if written.fate == Fate::Never {
            return verdict
                .note(|| explain::two(written, "was refused unsent", read, "found it all the same"));
        }
        if read.answered < written.asked {
            return verdict
                .note(|| explain::two(read, "found the value of a later write", written, "came later"));
        }
        self.begin(write);
        self.of[index] = self.of[write];
    }

    /// Begins a cluster (a value with its write and its reads) with the operation at an index, unless the
    /// operation is in one already.
    fn begin(&mut self, index: usize) {
        if self.of[index].is_none() {
            self.of[index] = Some(self.heads.len() as u32);
            self.heads.push(index as u32);
        }
    }

    pub fn count(&self) -> usize {
        self.heads.len()
    }

    pub fn cluster(&self, operation: usize) -> Option<usize> {
        self.of[operation].map(|cluster| cluster as usize)
    }

    /// Returns the index of the first operation of a cluster (a value's write and its reads): the write, if it
    /// has one.
    pub fn head(&self, cluster: usize) -> usize {
        self.heads[cluster] as usize
    }

    pub fn write_of(&self, token: Token) -> Option<usize> {
        self.writes.get(&token).map(|write| *write as usize)
    }
}
