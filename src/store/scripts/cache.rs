//! The cache of scripts by their digest (EVALSHA), bounded in bytes.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::shebang::Flags;
use crate::values::limits::ENGINE_SCRIPTS_BYTES_MAX;

/// The SHA-1 digest of a script's source, the script's key in the cache.
pub(super) type Digest = [u8; 20];

/// The approximate memory of a cached script in bytes, besides its source.
const SCRIPT_BYTES: usize = 1_024;
/// The approximate memory of a cached and compiled script in bytes for each byte of its source.
const COMPILED_FACTOR: usize = 8;

/// A Lua script of EVAL or SCRIPT LOAD.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: Box<[u8]>,
    pub(super) flags: Flags,
    /// The number of bytes of the script's `source` before the Lua code: the length of its `#!` line, or 0.
    pub(super) code_at: usize,
}

impl Script {
    fn bytes(&self) -> usize {
        SCRIPT_BYTES + self.source.len() * COMPILED_FACTOR
    }
}

/// The cache of scripts. When it is full, a new script evicts scripts that EVAL added, the oldest first;
/// scripts of SCRIPT LOAD stay.
#[derive(Debug, Default)]
pub(super) struct Cache {
    scripts: HashMap<Digest, Entry>,
    /// The digests of scripts that EVAL added to the cache, the oldest first. Some of these scripts may have
    /// been evicted since, or loaded by SCRIPT LOAD.
    run: VecDeque<Digest>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    script: Rc<Script>,
    loaded: bool,
}

/// The way in which a script came into the cache, which decides whether it can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// SCRIPT LOAD added the script: it stays until SCRIPT FLUSH.
    Loaded,
    /// EVAL added the script: it may be evicted when another script needs room.
    Run,
}

impl Cache {
    pub(super) fn get(&self, digest: &Digest) -> Option<Rc<Script>> {
        self.scripts.get(digest).map(|entry| Rc::clone(&entry.script))
    }

    pub(super) fn len(&self) -> usize {
        self.scripts.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Marks a cached script as loaded by SCRIPT LOAD, so that it is never evicted.
    pub(super) fn keep(&mut self, digest: &Digest) {
        if let Some(entry) = self.scripts.get_mut(digest) {
            entry.loaded = true;
        }
    }

    /// Adds a script to the cache; `origin` says whether it may be evicted later. Returns the digests of the
    /// scripts evicted for it, and true if it was added, or false if there is no room for it even so.
    pub(super) fn add(&mut self, digest: Digest, script: Rc<Script>, origin: Origin) -> (Vec<Digest>, bool) {
        let bytes = script.bytes();
        let mut forgotten = Vec::new();
        if bytes > ENGINE_SCRIPTS_BYTES_MAX {
            return (forgotten, false);
        }
        while self.bytes + bytes > ENGINE_SCRIPTS_BYTES_MAX {
            let Some(oldest) = self.run.pop_front() else { return (forgotten, false) };
            if self.scripts.get(&oldest).is_some_and(|entry| !entry.loaded) {
                self.bytes -= self.scripts.remove(&oldest).map_or(0, |entry| entry.script.bytes());
                forgotten.push(oldest);
            }
        }
        self.bytes += bytes;
        let loaded = origin == Origin::Loaded;
        self.scripts.insert(digest, Entry { script, loaded });
        if !loaded {
            self.run.push_back(digest);
        }
        (forgotten, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(cache: &mut Cache, number: u8, origin: Origin) -> (Vec<Digest>, bool) {
        let source = vec![b' '; ENGINE_SCRIPTS_BYTES_MAX / COMPILED_FACTOR / 4].into_boxed_slice();
        let script = Script { source, flags: Flags::default(), code_at: 0 };
        cache.add([number; 20], Rc::new(script), origin)
    }

    #[test]
    fn the_oldest_that_was_only_run_is_forgotten_first() {
        let mut cache = Cache::default();
        for number in 0..3 {
            assert_eq!(add(&mut cache, number, Origin::Run), (vec![], true));
        }
        cache.keep(&[0; 20]);
        assert_eq!(add(&mut cache, 3, Origin::Loaded), (vec![[1; 20]], true));
        assert_eq!(add(&mut cache, 4, Origin::Loaded), (vec![[2; 20]], true));
        assert_eq!(add(&mut cache, 5, Origin::Loaded), (vec![], false));
        assert_eq!((cache.len(), cache.get(&[5; 20]).is_some()), (3, false));
        assert!(cache.bytes() <= ENGINE_SCRIPTS_BYTES_MAX);
    }
}
