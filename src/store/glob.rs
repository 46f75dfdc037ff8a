//! Glob patterns, as in KEYS and SCAN, whose matching is charged as effort.

use super::effort::Effort;
use super::refusal::Refusal;
use crate::values::glob;

/// The number of steps of pattern matching per unit of effort (the measure of a request's work).
const STEPS_PER_UNIT: usize = 32;
/// The number of steps of pattern matching after which they are charged before the matching goes on.
const STEPS_MAX: usize = 1024;

/// True if the whole of `text` matches the glob `pattern`. The steps of matching are charged as effort (steps
/// of work), because both may be long; an error if too little effort is left. Less than 32 steps stay free,
/// since the caller charges each text that it looks at.
///
/// As in Redis, an empty text matches the empty pattern alone, and not `*`: commands for which `*` stands for
/// everything (KEYS, SCAN) look for that pattern first.
pub(super) fn matches(pattern: &[u8], text: &[u8], effort: &Effort) -> Result<bool, Refusal> {
    if text.is_empty() {
        return Ok(pattern.is_empty());
    }
    let mut steps = 0;
    let matches = glob::matches(pattern, text, |more| {
        steps += more;
        if steps >= STEPS_MAX {
            effort.spend(steps / STEPS_PER_UNIT, 1)?;
            steps = 0;
        }
        Ok(())
    })?;
    effort.spend(steps / STEPS_PER_UNIT, 1)?;
    Ok(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        super::matches(pattern, text, &Effort::new(1_000_000)).expect("short enough")
    }

    #[test]
    fn long_patterns_on_long_texts_are_given_up() {
        for tail in [[b"a".repeat(20_000), b"b".to_vec()].concat(), b"[^b".repeat(20_000)] {
            let pattern = [b"*".as_slice(), &tail].concat();
            let effort = Effort::new(10_000);
            let long = super::matches(&pattern, &b"a".repeat(1_000_000), &effort);
            assert_eq!(long, Err(Refusal::TooMuchWork(10_000)));
        }
    }

    #[test]
    fn an_empty_text_matches_only_an_empty_pattern() {
        assert!(matches(b"", b""));
        assert!(!matches(b"*", b""));
        assert!(!matches(b"**", b""));
        assert!(matches(b"a*", b"a"));
        assert!(!matches(b"", b"a"));
    }

    #[test]
    fn short_texts_take_effort_too() {
        let effort = Effort::new(100);
        assert_eq!(super::matches(b"*aaaaaaaaab", &[b'a'; 60], &effort), Ok(false));
        assert!((10..30).contains(&effort.spent()), "{}", effort.spent());
        let more = (0..10).map(|_| super::matches(b"*aaaaaaaaab", &[b'a'; 60], &effort));
        assert_eq!(more.last(), Some(Err(Refusal::TooMuchWork(100))));
    }

    #[test]
    fn many_stars_stay_cheap() {
        let text = vec![b'a'; 20_000];
        assert!(!matches(&b"a*".repeat(50).into_iter().chain(*b"b").collect::<Vec<_>>(), &text));
    }
}
