//! Nodes of streams as Redis dumps them: some entries with ids near each other, in one packed list.
//!
//! ```text
//!     key: the first id, 16 bytes    entries  deleted  fields  name ... 0
//!     entry with the same fields:    flags  ms  sequence               value ...       parts
//!     entry with other fields:       flags  ms  sequence  fields  name value ...       parts
//! ```

use super::log::Id;
use super::numbers;
use super::packed;
use super::rdb::DAMAGED;
use super::refusal::Refusal;
use super::text::Text;

/// The flag, in a dumped node of a stream, of an entry that XDEL has deleted.
const DELETED: i64 = 1;
/// The flag of an entry whose fields have the names that are stored once for the whole node.
const SAME_FIELDS: i64 = 2;

/// The elements that are left to be read of a packed list: a node of a stream, as Redis dumps it.
struct Elements(std::vec::IntoIter<Vec<u8>>);

impl Elements {
    fn text(&mut self) -> Result<Text, Refusal> {
        self.0.next().map(|text| Text::new(&text)).ok_or(DAMAGED)
    }

    fn integer(&mut self) -> Result<i64, Refusal> {
        self.0.next().and_then(|text| numbers::integer(&text)).ok_or(DAMAGED)
    }

    /// Reads the next element as a number of fields, which must be at least one and not more than the
    /// elements that are left; an error if it is not.
    fn fields(&mut self) -> Result<usize, Refusal> {
        let count = usize::try_from(self.integer()?).ok();
        count.filter(|count| (1..=self.0.len()).contains(count)).ok_or(DAMAGED)
    }
}

/// Returns the id of a stream entry that 16 bytes hold, of which the first are the most significant. An error
/// for any other number of bytes.
pub(super) fn id(bytes: &[u8]) -> Result<Id, Refusal> {
    let (ms, sequence) = bytes.split_first_chunk::<8>().ok_or(DAMAGED)?;
    let sequence: [u8; 8] = sequence.try_into().map_err(|_| DAMAGED)?;
    Ok(Id { ms: u64::from_be_bytes(*ms), sequence: u64::from_be_bytes(sequence) })
}

/// Reads the entries of a node (packed list of stream entries), and hands each that is not deleted to `take`
/// with its words, the names and values of its fields. Ids in the node are stored as differences to `first`.
/// An error if the node is malformed, or from `take`.
pub(super) fn read(
    first: Id,
    node: &[u8],
    mut take: impl FnMut(Id, Box<[Text]>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut elements = Elements(packed::texts(node)?.into_iter());
    let (_existing, _deleted) = (elements.integer()?, elements.integer()?);
    let count = elements.fields()?;
    let names = (0..count).map(|_| elements.text()).collect::<Result<Vec<_>, _>>()?;
    if elements.integer()? != 0 {
        return Err(DAMAGED);
    }
    while elements.0.len() > 0 {
        let flags = elements.integer()?;
        let (ms, sequence) = (elements.integer()?, elements.integer()?);
        let id = Id {
            ms: first.ms.wrapping_add_signed(ms),
            sequence: first.sequence.wrapping_add_signed(sequence),
        };
        let mut words = Vec::new();
        if flags & SAME_FIELDS != 0 {
            for name in &names {
                words.extend([name.clone(), elements.text()?]);
            }
        } else {
            for _ in 0..elements.fields()? {
                words.extend([elements.text()?, elements.text()?]);
            }
        }
        let _parts = elements.integer()?;
        if flags & DELETED == 0 {
            take(id, words.into_boxed_slice())?;
        }
    }
    Ok(())
}
