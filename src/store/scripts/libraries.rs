//! Libraries of functions: their names, code and signatures, bounded in bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::protocol::request::split_line;
use crate::store::refusal::{Refusal, quoted};
use crate::values::limits::ENGINE_LIBRARIES_BYTES_MAX;

/// The approximate memory of a library in bytes, besides its code.
const LIBRARY_BYTES: usize = 1_024;
/// The approximate memory of a library in bytes for each byte of its code: the source itself, and the
/// compiled code in the interpreter.
const CODE_FACTOR: usize = 9;
/// The approximate memory of a function of a library in bytes, besides its description and its name, which is
/// stored twice.
const FUNCTION_BYTES: usize = 512;

/// The error text for an invalid name of a library or function.
pub(super) const NAME_RULE: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

/// The names of the flags that a function can be registered with, in the order in which FUNCTION LIST shows
/// them.
const FLAG_NAMES: [&str; 5] =
    ["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"];
const NO_WRITES: usize = 0;
const ALLOW_OOM: usize = 1;

/// The flags that a function was registered with: for each flag name in the order of FUNCTION LIST, whether
/// it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags([bool; FLAG_NAMES.len()]);

impl Flags {
    /// Sets the flag of a function that has this name, in any case of letters. False if there is no such
    /// flag.
    pub(super) fn set(&mut self, name: &[u8]) -> bool {
        let position = FLAG_NAMES.iter().position(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        position.map(|position| self.0[position] = true).is_some()
    }

    /// True if the function was registered as one that never writes (`no-writes`), so that `FCALL_RO` may
    /// call it.
    pub(super) fn no_writes(self) -> bool {
        self.0[NO_WRITES]
    }

    /// True if the function may be called when memory is full (`allow-oom`).
    pub(super) fn allow_oom(self) -> bool {
        self.0[ALLOW_OOM]
    }

    /// Returns the names of the flags of a function that are set.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        FLAG_NAMES.into_iter().zip(self.0).filter(|(_, is_set)| *is_set).map(|(name, _)| name)
    }
}

/// The name, description and flags with which a library has registered a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) name: Vec<u8>,
    pub(super) description: Option<Vec<u8>>,
    pub(super) flags: Flags,
}

impl Signature {
    /// Returns the approximate memory in bytes of a function whose name has `name` bytes and whose
    /// description has `description` bytes.
    pub(super) fn bytes_of(name: usize, description: usize) -> usize {
        FUNCTION_BYTES + 2 * name + description
    }

    fn bytes(&self) -> usize {
        Self::bytes_of(self.name.len(), self.description.as_ref().map_or(0, Vec::len))
    }
}

/// A library of functions for FCALL, as FUNCTION LOAD added it.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) name: Box<[u8]>,
    /// The source of the library, including its first line (`#!lua name=...`).
    pub(super) source: Box<[u8]>,
    /// The number of bytes of `source` before the Lua code: the length of its `#!` line.
    pub(super) code_at: usize,
    /// The functions of the library, in the order of their names.
    pub(super) functions: Vec<Signature>,
}

impl Library {
    pub(super) fn code(&self) -> &[u8] {
        &self.source[self.code_at..]
    }

    fn bytes(&self) -> usize {
        let functions = self.functions.iter().map(Signature::bytes).sum::<usize>();
        LIBRARY_BYTES + self.source.len() * CODE_FACTOR + functions
    }
}

/// All libraries of functions that an engine has, by which FCALL finds a function by its name.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    by_name: BTreeMap<Box<[u8]>, Rc<Library>>,
    /// For each function, by its name in lower case: the library that has it, and its position in that
    /// library.
    by_function: HashMap<Box<[u8]>, (Rc<Library>, usize)>,
    bytes: usize,
}

impl Libraries {
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn functions(&self) -> usize {
        self.by_function.len()
    }

    /// Returns the approximate bytes of all libraries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Rc<Library>> {
        self.by_name.values()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Rc<Library>> {
        self.by_name.get(name)
    }

    /// Finds a function by its name, in any case of letters. Returns its library and its position among the
    /// functions of that library; `None` if there is none.
    pub(super) fn find(&self, function: &[u8]) -> Option<(Rc<Library>, usize)> {
        self.by_function.get(&*function.to_ascii_lowercase()).cloned()
    }

    /// Adds libraries whose names the caller has checked. Adds none of them and fails if any of their
    /// functions has the name of an existing one or of another of theirs, or if there is no room.
    pub(super) fn add(&mut self, libraries: Vec<Library>) -> Result<(), Refusal> {
        let (mut bytes, mut names) = (self.bytes, HashSet::new());
        for library in &libraries {
            bytes = bytes.saturating_add(library.bytes());
            for Signature { name, .. } in &library.functions {
                if self.find(name).is_some() || !names.insert(name.to_ascii_lowercase()) {
                    return Err(Refusal::Quoting(format!("ERR Function {} already exists", quoted(name))));
                }
            }
        }
        if bytes > ENGINE_LIBRARIES_BYTES_MAX {
            return Err(Refusal::Quoting(format!(
                "ERR the libraries of functions would take more than {ENGINE_LIBRARIES_BYTES_MAX} bytes: FUNCTION \
                 DELETE removes one"
            )));
        }
        libraries.into_iter().for_each(|library| self.insert(Rc::new(library)));
        Ok(())
    }

    /// Adds a library of functions. The caller has checked that the names of the library and its functions
    /// are free, and that there is room.
    pub(super) fn insert(&mut self, library: Rc<Library>) {
        self.bytes += library.bytes();
        for (position, function) in library.functions.iter().enumerate() {
            let name = function.name.to_ascii_lowercase().into_boxed_slice();
            self.by_function.insert(name, (Rc::clone(&library), position));
        }
        self.by_name.insert(library.name.clone(), library);
    }

    /// Removes the library `name`, and returns it; `None` if there is none.
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Rc<Library>> {
        let library = self.by_name.remove(name)?;
        self.bytes -= library.bytes();
        for function in &library.functions {
            self.by_function.remove(&*function.name.to_ascii_lowercase());
        }
        Some(library)
    }
}

const INVALID: Refusal = Refusal::Words("ERR Invalid library metadata");

/// True if the name is valid for a library or function: at least one character, all of them ASCII letters,
/// digits or underscores.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// Parses the first line of a library (`#!lua name=...`). Returns the library's name, and the length of the
/// line in bytes without its end; an error if the line is missing or wrong.
pub(super) fn parse_header(source: &[u8]) -> Result<(Vec<u8>, usize), Refusal> {
    if !source.starts_with(b"#!") {
        return Err(Refusal::Words("ERR Missing library metadata"));
    }
    let length = source.iter().position(|byte| *byte == b'\n').ok_or(INVALID)?;
    let words = split_line(&source[..length]).ok_or(INVALID)?;
    let (engine, options) = words.split_first().ok_or(INVALID)?;
    let engine = engine.get(2..).unwrap_or_default();
    let mut name = None;
    for option in options {
        match option.split_at_checked(b"name=".len()) {
            Some((word, given)) if word.eq_ignore_ascii_case(b"name=") => {
                if name.replace(given.to_vec()).is_some() {
                    return Err(Refusal::Words(
                        "ERR Invalid metadata value, name argument was given multiple times",
                    ));
                }
            }
            _ => {
                let option = quoted(option);
                return Err(Refusal::Quoting(format!("ERR Invalid metadata value given: {option}")));
            }
        }
    }
    let name = name.ok_or(Refusal::Words("ERR Library name was not given"))?;
    if !is_name(&name) {
        return Err(Refusal::Quoting(format!("ERR {NAME_RULE}")));
    }
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err(Refusal::Quoting(format!("ERR Engine '{}' not found", quoted(engine))));
    }
    Ok((name, length))
}
