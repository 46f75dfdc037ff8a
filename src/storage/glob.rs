//! Patterns with `*`, `?`, `[...]` and `\`, as KEYS and SCAN know them.

/// Whether `text` as a whole matches `pattern`. Never looks back further than the last star, so that no pattern
/// takes more than about pattern times text steps.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = rest {
            retry = Some((after, left));
            rest = after;
        } else if let Some((first, others)) = left.split_first()
            && let Some(after) = match_one(rest, *first)
        {
            (rest, left) = (after, others);
        } else if rest.is_empty() && left.is_empty() {
            return true;
        } else {
            // The last star takes one byte more.
            let Some((after, [_, others @ ..])) = retry else { return false };
            retry = Some((after, others));
            (rest, left) = (after, others);
        }
    }
}

/// The pattern after its first element, if that element matches `byte`.
fn match_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', after @ ..] => Some(after),
        [b'[', class @ ..] => match_class(class, byte),
        [b'\\', literal, after @ ..] | [literal, after @ ..] => (*literal == byte).then_some(after),
    }
}

/// `class` starts after the bracket; a class that never ends ends with the pattern.
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
