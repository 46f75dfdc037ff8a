//! Numbers of all shared subscriptions of this process, as each core knows them. A store counts weir's
//! connections as subscribers; replies to `PUBLISH` and `PUBSUB NUMSUB` state the number of clients instead.

use std::collections::HashMap;

use bytes::Bytes;

use super::shared_channel::OwnNumbers;
use crate::protocol::command::Subscription;
use crate::values::glob;
use crate::values::limits::PATTERN_STEPS_MAX;

/// The numbers of subscribers of all channels and patterns for which a core of this process has one
/// subscription for all clients.
#[derive(Debug, Default)]
pub struct SharedNumbers {
    channels: HashMap<Bytes, OwnNumbers>,
    patterns: HashMap<Bytes, OwnNumbers>,
}

impl SharedNumbers {
    /// True if there is no channel or pattern for which this process has one subscription for all its
    /// clients.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty()
    }

    /// Records new numbers of subscribers of a channel or pattern; zeros remove it.
    pub fn set(&mut self, kind: Subscription, name: Bytes, own: OwnNumbers) {
        let names = if kind == Subscription::Patterns { &mut self.patterns } else { &mut self.channels };
        if own == OwnNumbers::default() {
            names.remove(&name);
        } else {
            names.insert(name, own);
        }
    }

    /// Returns how many connections of this process are subscribed to a channel by its name, and on behalf of
    /// how many clients; without subscriptions to patterns that match the name. Zeros if there are none.
    pub fn of_channel(&self, channel: &[u8]) -> OwnNumbers {
        self.channels.get(channel).copied().unwrap_or_default()
    }

    /// Returns how many subscriptions of this process's connections a message to a channel reaches, by the
    /// channel's name and by patterns, and on behalf of how many clients. After 262,144 steps of matching,
    /// the patterns that are left count as not matching.
    pub fn of_message(&self, channel: &[u8]) -> OwnNumbers {
        let mut steps = PATTERN_STEPS_MAX;
        let matching = self.patterns.iter().filter(|(pattern, _)| matches(pattern, channel, &mut steps));
        matching.fold(self.of_channel(channel), |sum, (_, own)| sum.and(*own))
    }
}

/// True if a channel matches a pattern. `steps` is the number of steps of comparison that may still be taken, and is
/// lowered by those that are; false if they do not suffice.
fn matches(pattern: &[u8], channel: &[u8], steps: &mut usize) -> bool {
    let count = |more| {
        let left = steps.checked_sub(more);
        *steps = left.unwrap_or(0);
        left.map(|_| ()).ok_or(())
    };
    glob::matches(pattern, channel, count) == Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    #[test]
    fn a_pattern_that_needs_more_steps_than_are_left_does_not_match() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut draw =
                |letters: &[u8]| -> Vec<u8> { (0..random.below(8)).map(|_| *random.pick(letters)).collect() };
            let (pattern, text) = (draw(b"ab*?[]\\^-"), draw(b"ab]"));
            let mut few = 3;
            assert!(!matches(&pattern, &text, &mut few) || matches(&pattern, &text, &mut 10_000));
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
