//! Glob patterns with `*`, `?`, `[...]` and `\`, as in KEYS and SCAN.

use super::effort::Effort;
use super::refusal::Refusal;

/// The number of matching steps per unit of effort.
const STEPS_PER_UNIT: usize = 16;
/// The number of matching steps after which effort is charged.
const STEPS_MAX: usize = 1024;

/// Whether the whole of `text` matches `pattern`. Backtracks only to the last star, so that no pattern takes
/// more than about pattern times text steps. These are counted as effort, because both may be long.
pub(super) fn matches(pattern: &[u8], text: &[u8], effort: &Effort) -> Result<bool, Refusal> {
    let (mut rest, mut left) = (pattern, text);
    let mut retry: Option<(&[u8], &[u8])> = None;
    let mut steps = 0;
    loop {
        // A class counts with the whole rest of the pattern, since its end is found only by scanning.
        steps += if rest.first() == Some(&b'[') { rest.len() } else { 1 };
        if steps >= STEPS_MAX {
            effort.spend(steps / STEPS_PER_UNIT, 1)?;
            steps = 0;
        }
        if let [b'*', after @ ..] = rest {
            retry = Some((after, left));
            rest = after;
        } else if let Some((first, others)) = left.split_first()
            && let Some(after) = match_one(rest, *first)
        {
            (rest, left) = (after, others);
        } else if rest.is_empty() && left.is_empty() {
            return Ok(true);
        } else {
            // The last star takes one byte more.
            let Some((after, [_, others @ ..])) = retry else { return Ok(false) };
            retry = Some((after, others));
            (rest, left) = (after, others);
        }
    }
}

/// The rest of the pattern after its first element, if that element matches `byte`.
fn match_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', after @ ..] => Some(after),
        [b'[', class @ ..] => match_class(class, byte),
        [b'\\', literal, after @ ..] | [literal, after @ ..] => (*literal == byte).then_some(after),
    }
}

/// The rest of the pattern after a class, if the class matches `byte`. `class` starts after the bracket; a
/// class without an end reaches to the end of the pattern.
fn match_class(class: &[u8], byte: u8) -> Option<&[u8]> {
    let (mut rest, wanted) = match class {
        [b'^', rest @ ..] => (rest, false),
        rest => (rest, true),
    };
    let mut found = false;
    let after = loop {
        match rest {
            [] => break rest,
            [b']', after @ ..] => break after,
            [b'\\', literal, after @ ..] => {
                found |= *literal == byte;
                rest = after;
            }
            [from, b'-', to, after @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest = after;
            }
            [literal, after @ ..] => {
                found |= *literal == byte;
                rest = after;
            }
        }
    };
    (found == wanted).then_some(after)
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
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("*ab*ab", "abxabyab", true),
            ("[", "[", false),
            ("[]", "]", false),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_stay_cheap() {
        let text = vec![b'a'; 20_000];
        assert!(!matches(&b"a*".repeat(50).into_iter().chain(*b"b").collect::<Vec<_>>(), &text));
    }
}
