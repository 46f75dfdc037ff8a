//! The value of a sorted set: members ordered by score, then by bytes.
//!
//! The order is cut into pieces of bounded length, so that an insertion moves little memory, a rank is the
//! sum of some piece lengths (`sums.rs`), and a range of ranks is read straight through.

use super::shapes::Size;
use super::sums::Sums;
use super::table::{Hasher, Keyed, Table, place_bytes, shrink};
use super::text::Text;
use std::cmp::Ordering;

/// Maximum number of members in one of the pieces into which a sorted set cuts its members in ascending
/// order: long enough that a million members make few pieces, short enough to be shifted at every insertion.
const PIECE_MAX: usize = 256;

/// The approximate bytes of a sorted set besides those in proportion to the number of its members: its table, its
/// first piece and the lists of pieces.
const RANKING_BYTES: usize = 320;

/// A member of a sorted set and its score, which is never NaN.
#[derive(Clone)]
pub(super) struct Scored {
    pub(super) member: Text,
    pub(super) score: f64,
}

impl Keyed for Scored {
    fn key(&self) -> &[u8] {
        self.member.as_bytes()
    }
}

/// The value of a sorted set: all its members with their scores, by name in a hash table and in ascending
/// order.
#[derive(Clone)]
pub(super) struct Ranking {
    scores: Table<Scored>,
    /// The members in ascending order, cut into pieces of at most 256 members, none empty.
    pieces: Vec<Vec<Scored>>,
    /// The number of members in each of `pieces`, summed up so that the piece of a rank is found without
    /// counting all.
    sums: Sums,
    bytes: usize,
    large: bool,
}

fn compare(scored: &Scored, score: f64, member: &[u8]) -> Ordering {
    // Zero and minus zero are equal, so this is not `total_cmp`.
    scored
        .score
        .partial_cmp(&score)
        .expect("scores are numbers")
        .then_with(|| scored.member.as_bytes().cmp(member))
}

impl Ranking {
    pub(super) fn new(hasher: &Hasher) -> Self {
        Self {
            scores: Table::new(hasher.clone()),
            pieces: Vec::new(),
            sums: Sums::default(),
            bytes: 0,
            large: false,
        }
    }

    /// Returns an empty sorted set that counts as large, so that it keeps minus zero as a score.
    pub(super) fn large(hasher: &Hasher) -> Self {
        Self { large: true, ..Self::new(hasher) }
    }

    pub(super) fn bytes(&self) -> usize {
        // Pieces are two thirds full on average.
        let places = place_bytes::<Scored>() + size_of::<Scored>() / 2;
        RANKING_BYTES + self.bytes + self.len() * (2 * size_of::<f64>() + places)
    }

    pub(super) fn is_small(&self) -> bool {
        !self.large
    }

    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        let position = self.scores.find(self.scores.hash(member), member)?;
        Some(self.scores.at(position).score)
    }

    /// Returns all members of the sorted set in no particular order, for random choices.
    pub(super) fn unordered(&self) -> &[Scored] {
        self.scores.entries()
    }

    /// Sets the score of a member of the sorted set; the member is added if it is new.
    pub(super) fn set(&mut self, member: &[u8], score: f64) {
        debug_assert!(!score.is_nan());
        // Redis keeps whole scores of a small sorted set as integers, which have no minus zero.
        let score = if self.large { score } else { score + 0.0 };
        let hash = self.scores.hash(member);
        let text = if let Some(position) = self.scores.find(hash, member) {
            let before = std::mem::replace(&mut self.scores.at_mut(position).score, score);
            self.take_ordered(before, member)
        } else {
            let text = Text::new(member);
            self.scores.insert(hash, Scored { member: text.clone(), score });
            self.bytes += 2 * text.cost();
            self.large |= self.outgrows(member);
            text
        };
        self.insert_ordered(Scored { member: text, score });
    }

    /// True if the sorted set, which has `member` already, exceeds a limit of Redis's compact form: it has
    /// too many members, or `member` is too long.
    fn outgrows(&self, member: &[u8]) -> bool {
        let shapes = self.scores.hasher().shapes();
        self.len() > shapes.get(Size::RankingMembers) || member.len() > shapes.get(Size::RankingBytes)
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let position = self.scores.find(self.scores.hash(member), member)?;
        let Scored { member, score } = self.scores.remove(position);
        self.take_ordered(score, member.as_bytes());
        self.bytes -= 2 * member.cost();
        Some(score)
    }

    /// Returns the number of members for which `precedes` is true. In the order of the sorted set, these must
    /// come before all for which it is false.
    pub(super) fn count_while(&self, precedes: impl Fn(&Scored) -> bool) -> usize {
        let whole = self.pieces.partition_point(|piece| piece.last().is_some_and(&precedes));
        self.sums.before(whole) + self.pieces.get(whole).map_or(0, |piece| piece.partition_point(&precedes))
    }

    pub(super) fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.count_while(|scored| compare(scored, score, member) == Ordering::Less))
    }

    /// Returns the members of ranks `start` up to, but not including, `end`, in ascending order of scores.
    /// Rank 0 is the member with the lowest score.
    pub(super) fn range(&self, start: usize, end: usize) -> impl DoubleEndedIterator<Item = &Scored> {
        let end = end.min(self.len());
        let start = start.min(end);
        let (first, skipped) = self.sums.find(start);
        let (last, kept) = self.sums.find(end);
        (first..=last).filter_map(|index| self.pieces.get(index).map(|piece| (index, piece))).flat_map(
            move |(index, piece)| {
                let from = if index == first { skipped } else { 0 };
                let to = if index == last { kept } else { piece.len() };
                &piece[from..to]
            },
        )
    }

    /// Removes and returns the members of ranks `start` up to, but not including, `end`; rank 0 is the member
    /// with the lowest score.
    pub(super) fn remove_range(&mut self, start: usize, end: usize) -> Vec<Scored> {
        let gone: Vec<Scored> = self.range(start, end).cloned().collect();
        for scored in &gone {
            self.remove(scored.key());
        }
        gone
    }

    /// Visits about `count` members of the sorted set in the order of their hash values, from the value
    /// `from` on. Returns the hash value to continue from; `None` at the end. A small sorted set is visited
    /// as a whole, in the order of its scores.
    pub(super) fn walk(&self, from: u32, count: usize, visit: impl FnMut(&Scored)) -> Option<u32> {
        if self.large {
            return self.scores.walk(from, count, visit);
        }
        self.pieces.iter().flatten().for_each(visit);
        None
    }

    fn insert_ordered(&mut self, scored: Scored) {
        let precedes =
            |other: &Scored| compare(other, scored.score, scored.member.as_bytes()) == Ordering::Less;
        let index = self.pieces.partition_point(|piece| piece.last().is_some_and(precedes));
        // Beyond all pieces, the last one grows, so that ascending insertions fill pieces.
        let index = index.min(self.pieces.len().saturating_sub(1));
        let Some(piece) = self.pieces.get_mut(index) else {
            self.pieces.push(vec![scored]);
            self.count_pieces(index);
            return;
        };
        let place = piece.partition_point(precedes);
        piece.insert(place, scored);
        self.sums.increase(index);
        if piece.len() > PIECE_MAX {
            // Ascending insertions leave full pieces behind, others half-full ones.
            let cut = if place + 1 == piece.len() { PIECE_MAX } else { PIECE_MAX / 2 };
            let rest = piece.split_off(cut);
            piece.shrink_to(PIECE_MAX);
            self.pieces.insert(index + 1, rest);
            self.count_pieces(index);
        }
    }

    fn take_ordered(&mut self, score: f64, member: &[u8]) -> Text {
        let precedes = |other: &Scored| compare(other, score, member) == Ordering::Less;
        let index = self.pieces.partition_point(|piece| piece.last().is_some_and(precedes));
        let piece = self.pieces.get_mut(index).expect("every member is in the order");
        let taken = piece.remove(piece.partition_point(precedes));
        self.sums.decrease(index);
        debug_assert!(taken.member.as_bytes() == member);
        shrink(piece);
        if piece.len() < PIECE_MAX / 4 {
            self.join(index);
        }
        taken.member
    }

    /// Merges the short piece at `index` (of the pieces into which the members are cut) with a neighbour, if
    /// both together are not too long, and removes it if it is empty. So the number of pieces stays in
    /// proportion to the number of members.
    fn join(&mut self, index: usize) {
        let pieces = self.pieces.len();
        let left = if index + 1 < self.pieces.len() { index } else { index.saturating_sub(1) };
        if let Some(right) = self.pieces.get(left + 1)
            && self.pieces[left].len() + right.len() <= PIECE_MAX
        {
            let mut right = self.pieces.remove(left + 1);
            self.pieces[left].append(&mut right);
            self.pieces[left].shrink_to(PIECE_MAX);
        }
        if self.pieces.get(index).is_some_and(Vec::is_empty) {
            self.pieces.remove(index);
        }
        if self.pieces.len() < pieces {
            shrink(&mut self.pieces);
            self.count_pieces(left);
        }
    }

    /// Computes the sums of the pieces' lengths anew, after a piece was added or removed at index `first` or
    /// after it. With at most two pieces from `first` on, only their sums are computed: that is the case when
    /// members come and go at the end of the order.
    fn count_pieces(&mut self, first: usize) {
        if self.pieces.len() - first > 2 {
            return self.sums.rebuild(self.pieces.iter().map(Vec::len));
        }
        self.sums.truncate(first);
        self.pieces[first..].iter().for_each(|piece| self.sums.push(piece.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    #[test]
    fn sorted_sets_that_became_small_take_little_memory() {
        let mut random = Random::new(3);
        let mut ranking = Ranking::new(&Hasher::new(1));
        let check = |ranking: &Ranking| {
            let places: usize = ranking.pieces.iter().map(Vec::capacity).sum();
            assert!(places <= 4 * ranking.len().max(1), "{places} places for {} members", ranking.len());
            assert!(ranking.pieces.capacity() <= 4 * ranking.pieces.len().max(1));
        };
        for number in 0..5_000 {
            ranking.set(number.to_string().as_bytes(), random.below(1_000) as f64);
            check(&ranking);
        }
        let mut copy = ranking.clone();
        for _ in 0..4_999 {
            // Copies begin without spare memory.
            for (ranking, rank) in [(&mut ranking, 1), (&mut copy, 0)] {
                ranking.remove_range(rank, rank + 1);
                check(ranking);
            }
        }
        assert_eq!((ranking.len(), copy.len()), (1, 1));
    }

    #[test]
    fn ranks_are_those_of_counting_while_pieces_come_and_go() {
        let mut random = Random::new(7);
        let mut ranking = Ranking::new(&Hasher::new(1));
        let mut model = std::collections::BTreeSet::new();
        for step in 0..30_000_u64 {
            // The sorted set grows and shrinks in turn, at both ends and in between.
            let shrinks = step / 6_000 % 2 == 1;
            let number = match random.index(3) {
                0 => 1_000_000 + step,
                1 => 1_000_000 - step,
                _ => random.below(2_000_000),
            };
            let chosen = match random.index(3) {
                _ if !shrinks || model.is_empty() => number,
                0 => *model.first().expect("it is not empty"),
                1 => *model.last().expect("it is not empty"),
                _ => *model.range(number..).next().unwrap_or(model.first().expect("it is not empty")),
            };
            let member = format!("{chosen:08}");
            if shrinks {
                assert_eq!(ranking.remove(member.as_bytes()).is_some(), model.remove(&chosen));
            } else {
                ranking.set(member.as_bytes(), chosen as f64);
                model.insert(chosen);
            }
            if step % 500 == 0 {
                for (rank, number) in model.iter().enumerate().step_by(97) {
                    let member = format!("{number:08}");
                    assert_eq!(ranking.rank(member.as_bytes()), Some(rank));
                    let scored = ranking.range(rank, rank + 1).next().expect("it has one at that rank");
                    assert_eq!(scored.member.as_bytes(), member.as_bytes());
                }
            }
        }
        assert_eq!(ranking.len(), model.len());
    }
}
