//! Numbers of all shared subscriptions of this process, as each core knows them. A store counts the connections of
//! weir; replies to `PUBLISH` and `PUBSUB NUMSUB` name the clients instead.

use std::collections::HashMap;

use bytes::Bytes;

use super::shared_channel::OwnNumbers;
use crate::protocol::command::Subscription;
use crate::values::limits::PATTERN_STEPS_MAX;

/// The shared channels and patterns of all cores, with the numbers of their subscribers.
#[derive(Debug, Default)]
pub struct SharedNumbers {
    channels: HashMap<Bytes, OwnNumbers>,
    patterns: HashMap<Bytes, OwnNumbers>,
}

impl SharedNumbers {
    /// True if this process has no shared subscription.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty()
    }

    /// Records new numbers of subscribers of a name; zeros remove the name.
    pub fn set(&mut self, kind: Subscription, name: Bytes, own: OwnNumbers) {
        let names = if kind == Subscription::Patterns { &mut self.patterns } else { &mut self.channels };
        if own == OwnNumbers::default() {
            names.remove(&name);
        } else {
            names.insert(name, own);
        }
    }

    /// Returns the numbers of this process's subscriptions to a channel by its name, without those by
    /// patterns.
    pub fn of_channel(&self, channel: &[u8]) -> OwnNumbers {
        self.channels.get(channel).copied().unwrap_or_default()
    }

    /// Returns the numbers of subscriptions that a message to a channel reaches, by its name and by patterns. After
    /// [`PATTERN_STEPS_MAX`] steps the patterns that are left count as not matching.
    pub fn of_message(&self, channel: &[u8]) -> OwnNumbers {
        let mut steps = PATTERN_STEPS_MAX;
        let matching = self.patterns.iter().filter(|(pattern, _)| matches(pattern, channel, &mut steps));
        matching.fold(self.of_channel(channel), |sum, (_, own)| sum.and(*own))
    }
}

/// True if a text matches a pattern of Redis. False once no steps are left.
fn matches(pattern: &[u8], text: &[u8], steps: &mut usize) -> bool {
    let (mut at, mut read) = (0, 0);
    // The place behind the last star, and the part of the text that the star stands for so far ends there.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let Some(left) = steps.checked_sub(1) else { return false };
        *steps = left;
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, read));
            continue;
        }
        if read == text.len() && at == pattern.len() {
            return true;
        }
        let next = if read < text.len() { match_one(&pattern[at..], text[read], steps) } else { None };
        match (next, &mut star) {
            (Some(length), _) => {
                at += length;
                read += 1;
            }
            (None, Some((behind, end))) if *end < text.len() => {
                *end += 1;
                (at, read) = (*behind, *end);
            }
            (None, _) => return false,
        }
    }
}

/// Returns the length of the first element of a pattern, which is no star, if a byte matches it.
fn match_one(pattern: &[u8], byte: u8, steps: &mut usize) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            let (matches, length) = match_set(rest, byte);
            *steps = steps.saturating_sub(length);
            matches.then_some(1 + length)
        }
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Decides whether a byte is in a set of a pattern (`set` begins behind the `[`). Returns the length of the
/// set as well.
fn match_set(set: &[u8], byte: u8) -> (bool, usize) {
    let is_negated = set.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_in = false;
    loop {
        match &set[at..] {
            [] => break,
            [b'\\', literal, ..] => {
                is_in |= *literal == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [first, b'-', last, ..] => {
                is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_in |= *literal == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    fn is_match(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes(), &mut 100_000)
    }

    #[test]
    fn patterns_match_as_in_redis() {
        let cases = [
            ("a*", "abc", true),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("*", "", true),
            ("?", "", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("a**b*", "axxbyy", true),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(is_match(pattern, text), expected, "{pattern} {text}");
        }
    }

    /// The obvious definition, which tries all lengths for a star.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|length| slow(rest, &text[length..])),
            (_, []) => false,
            (_, [first, behind @ ..]) => {
                match_one(pattern, *first, &mut 1_000).is_some_and(|length| slow(&pattern[length..], behind))
            }
        }
    }

    #[test]
    fn random_patterns_match_what_the_definition_says_within_their_steps() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut draw =
                |letters: &[u8]| -> Vec<u8> { (0..random.below(8)).map(|_| *random.pick(letters)).collect() };
            let (pattern, text) = (draw(b"ab*?[]\\^-"), draw(b"ab]"));
            assert_eq!(matches(&pattern, &text, &mut 10_000), slow(&pattern, &text), "{pattern:?} {text:?}");
            let mut few = 3;
            matches(&pattern, &text, &mut few);
        }
        let endless = ["*a".repeat(50).into_bytes(), b"b".to_vec()].concat();
        let mut steps = 1_000;
        assert!(!matches(&endless, &b"a".repeat(10_000), &mut steps) && steps == 0);
    }

    #[test]
    fn a_message_reaches_a_channel_and_all_patterns_that_match() {
        let mut numbers = SharedNumbers::default();
        let own = |links, subscribers| OwnNumbers { links, subscribers };
        numbers.set(Subscription::Channels, Bytes::from_static(b"news"), own(1, 3));
        numbers.set(Subscription::Patterns, Bytes::from_static(b"n*"), own(1, 2));
        numbers.set(Subscription::Patterns, Bytes::from_static(b"other*"), own(1, 7));
        assert_eq!((numbers.of_message(b"news"), numbers.of_channel(b"news")), (own(2, 5), own(1, 3)));
        assert_eq!(numbers.of_message(b"none"), own(1, 2));
        for (kind, name) in [
            (Subscription::Channels, "news"),
            (Subscription::Patterns, "n*"),
            (Subscription::Patterns, "other*"),
        ] {
            numbers.set(kind, Bytes::from_static(name.as_bytes()), OwnNumbers::default());
        }
        assert!(numbers.is_empty());
    }
}
