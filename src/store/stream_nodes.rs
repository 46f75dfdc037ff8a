//! Nodes of streams as Redis dumps them: some entries with ids near each other, in one packed list.
//!
//! ```text
//!     key: the first id, 16 bytes    entries  deleted  fields  name ... 0
//!     entry with the same fields:    flags  ms  sequence               value ...       parts
//!     entry with other fields:       flags  ms  sequence  fields  name value ...       parts
//! ```

use super::effort::{Effort, INSERT};
use super::log::{Id, NodeSize};
use super::numbers;
use super::packed;
use super::rdb::DAMAGED;
use super::refusal::Refusal;
use super::stream::Stream;
use super::text::Text;
use std::iter::Peekable;

/// The flag, in a dumped node of a stream, of an entry that XDEL has deleted.
const DELETED: i64 = 1;
/// The flag of an entry whose fields have the names that are stored once for the whole node.
const SAME_FIELDS: i64 = 2;

/// The elements that are left to be read of a packed list: a node of a stream, as Redis dumps it.
struct Elements<'a>(Peekable<packed::Texts<'a>>);

impl Elements<'_> {
    fn text(&mut self) -> Result<Text, Refusal> {
        Ok(Text::new(self.0.next().ok_or(DAMAGED)??.as_bytes()))
    }

    fn integer(&mut self) -> Result<i64, Refusal> {
        numbers::integer(self.0.next().ok_or(DAMAGED)??.as_bytes()).ok_or(DAMAGED)
    }

    /// Reads the next element as a number of fields, which must be at least one; an error if it is not.
    fn fields(&mut self) -> Result<usize, Refusal> {
        usize::try_from(self.integer()?).ok().filter(|count| *count > 0).ok_or(DAMAGED)
    }
}

/// Returns the id of a stream entry that 16 bytes hold, of which the first are the most significant. An error
/// for any other number of bytes.
pub(super) fn id(bytes: &[u8]) -> Result<Id, Refusal> {
    let (ms, sequence) = bytes.split_first_chunk::<8>().ok_or(DAMAGED)?;
    let sequence: [u8; 8] = sequence.try_into().map_err(|_| DAMAGED)?;
    Ok(Id { ms: u64::from_be_bytes(*ms), sequence: u64::from_be_bytes(sequence) })
}

/// Reads the entries of a node (packed list of stream entries), and appends each that is not deleted to
/// `stream`. Ids in the node are stored as differences to `first`. `afford` refuses a number of bytes that is
/// too large for the stream and what is being read. Deleted entries take `effort` (steps of work). An error
/// if the node is malformed, or if `afford` or the effort does not allow it.
pub(super) fn read(
    stream: &mut Stream,
    first: Id,
    node: &[u8],
    effort: &Effort,
    afford: &dyn Fn(usize) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut elements = Elements(packed::texts(node)?.peekable());
    let (_existing, _deleted) = (elements.integer()?, elements.integer()?);
    let (mut names, mut names_bytes) = (Vec::new(), 0);
    for _ in 0..elements.fields()? {
        let name = elements.text()?;
        names_bytes += name.cost();
        afford(stream.bytes() + names_bytes)?;
        names.push(name);
    }
    if elements.integer()? != 0 {
        return Err(DAMAGED);
    }
    while elements.0.peek().is_some() {
        let flags = elements.integer()?;
        let (ms, sequence) = (elements.integer()?, elements.integer()?);
        let id = Id {
            ms: first.ms.wrapping_add_signed(ms),
            sequence: first.sequence.wrapping_add_signed(sequence),
        };
        let mut words = Vec::new();
        let mut bytes = stream.bytes() + names_bytes;
        let mut add = |name: Text, value: Text| {
            bytes += name.cost() + value.cost();
            words.extend([name, value]);
            afford(bytes)
        };
        if flags & SAME_FIELDS != 0 {
            for name in &names {
                add(name.clone(), elements.text()?)?;
            }
        } else {
            for _ in 0..elements.fields()? {
                add(elements.text()?, elements.text()?)?;
            }
        }
        let _parts = elements.integer()?;
        if flags & DELETED != 0 {
            effort.spend(1, INSERT)?;
        } else {
            if id <= stream.log.last {
                return Err(DAMAGED);
            }
            stream.log.append(id, words.into_boxed_slice(), NodeSize::default());
            afford(stream.bytes())?;
        }
    }
    Ok(())
}
