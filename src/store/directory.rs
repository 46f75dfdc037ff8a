//! A directory that finds entries by name, in any case of letters, without allocating.

/// Maximum number of bytes of a name, so that a name fits in three integers of 64 bits. A longer name is no
/// command's.
const NAME_BYTES_MAX: usize = 24;
/// The number of slots in the hash index of a directory of commands: several times the number of names, so
/// that nearly every search ends at its first slot.
const INDEX_PLACES: usize = 1024;
const VACANT: u16 = u16::MAX;

/// Entries that are found by name, such as commands. Each has a position, in the order in which they were
/// given.
pub(super) struct Directory<T: 'static> {
    entries: Vec<Entry<T>>,
    index: Box<[u16]>,
}

struct Entry<T: 'static> {
    word: Word,
    name: &'static str,
    named: &'static T,
}

impl<T> Directory<T> {
    pub(super) fn new(named: impl IntoIterator<Item = (&'static str, &'static T)>) -> Self {
        let mut directory =
            Self { entries: Vec::new(), index: vec![VACANT; INDEX_PLACES].into_boxed_slice() };
        for (name, thing) in named {
            directory.add(name, thing);
        }
        directory
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.name)
    }

    pub(super) fn at(&self, position: usize) -> &'static T {
        self.entries[position].named
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        let word = word(name)?;
        let mut place = first_place(word);
        loop {
            let position = self.index[place];
            if position == VACANT {
                return None;
            }
            let entry = &self.entries[usize::from(position)];
            if entry.word == word && entry.name.len() == name.len() {
                return Some(usize::from(position));
            }
            place = (place + 1) % INDEX_PLACES;
        }
    }

    fn add(&mut self, name: &'static str, named: &'static T) {
        let word = word(name.as_bytes()).expect("names fit a word");
        debug_assert!(self.find(name.as_bytes()).is_none(), "{name} is there twice");
        let mut place = first_place(word);
        while self.index[place] != VACANT {
            place = (place + 1) % INDEX_PLACES;
        }
        self.index[place] = self.entries.len() as u16;
        self.entries.push(Entry { word, name, named });
    }
}

/// A name of at most 24 bytes as three integers, padded with zeros; these are compared faster than bytes.
type Word = [u64; NAME_BYTES_MAX / 8];

/// Returns a name in lower case as three integers; `None` if it is longer than 24 bytes, and so no command's.
fn word(name: &[u8]) -> Option<Word> {
    let mut bytes = [0; NAME_BYTES_MAX];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    bytes.make_ascii_lowercase();
    let (eights, _) = bytes.as_chunks::<8>();
    Some([eights[0], eights[1], eights[2]].map(u64::from_le_bytes))
}

fn first_place(word: Word) -> usize {
    let folded = word[0] ^ word[1].rotate_left(29) ^ word[2].rotate_left(43);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

const _: () = assert!(INDEX_PLACES == 1 << (64 - 54));
