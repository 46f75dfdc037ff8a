//! Glob patterns with `*`, `?`, `[...]` and `\`, by the rules of Redis (`KEYS`, `SCAN`, `PSUBSCRIBE`).

/// True if the whole of `text` matches the glob pattern `pattern`. Backtracks only to the last star, so that the time
/// grows with pattern length times text length at most. `count` is called before each step with the number of bytes of
/// the pattern that the step may look at: 1, or all that are left if a class (`[...]`) comes next. Its error ends the
/// comparison and is returned.
pub fn matches<E>(
    pattern: &[u8],
    text: &[u8],
    mut count: impl FnMut(usize) -> Result<(), E>,
) -> Result<bool, E> {
    let (mut rest, mut left) = (pattern, text);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        // A class counts with the whole rest of the pattern, since its end is found only by scanning.
        count(if rest.first() == Some(&b'[') { rest.len() } else { 1 })?;
        if let [b'*', after @ ..] = rest {
            if after.is_empty() {
                return Ok(true);
            }
            retry = Some((after, left));
            rest = after;
        } else if let Some((first, others)) = left.split_first()
            && let Some(after) = match_one(rest, *first)
        {
            (rest, left) = (after, others);
        } else if rest.is_empty() && left.is_empty() {
            return Ok(true);
        } else {
            // The last star of the pattern takes one byte more, and the comparison goes on behind it.
            let Some((after, [_, others @ ..])) = retry else { return Ok(false) };
            retry = Some((after, others));
            (rest, left) = (after, others);
        }
    }
}

/// Returns the rest of a glob pattern after its first element, if that element, which is not a star, matches
/// `byte`; else None.
fn match_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', after @ ..] => Some(after),
        [b'[', class @ ..] => match_class(class, byte),
        [b'\\', literal, after @ ..] | [literal, after @ ..] => (*literal == byte).then_some(after),
    }
}

/// Returns the rest of a glob pattern after a class (`[...]`), if the class matches `byte`; else None.
/// `class` starts after the bracket; a class without an end reaches to the end of the pattern.
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
    use std::convert::Infallible;

    use super::*;
    use crate::values::Random;

    fn is_match(pattern: &[u8], text: &[u8]) -> bool {
        let Ok(matches) = matches::<Infallible>(pattern, text, |_| Ok(()));
        matches
    }

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("?", "", false),
            ("a*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("a*c", "abbcd", false),
            ("a**b*", "axxbyy", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("*ab*ab", "abxabyab", true),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("[", "[", false),
            ("[]", "]", false),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(is_match(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    /// Slow reference model, which tries every length for a star.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|length| slow(rest, &text[length..])),
            (_, []) => false,
            (_, [first, behind @ ..]) => match_one(pattern, *first).is_some_and(|rest| slow(rest, behind)),
        }
    }

    #[test]
    fn random_patterns_match_what_the_definition_says() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut draw =
                |letters: &[u8]| -> Vec<u8> { (0..random.below(8)).map(|_| *random.pick(letters)).collect() };
            let (pattern, text) = (draw(b"ab*?[]\\^-"), draw(b"ab]"));
            assert_eq!(is_match(&pattern, &text), slow(&pattern, &text), "{pattern:?} {text:?}");
        }
    }
}
