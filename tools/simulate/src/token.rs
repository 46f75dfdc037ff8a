//! Tokens in values: each value contains the number of its write, its client and its key, so no two values
//! are equal.

/// The token of a value, such as `w17.3.key:5;`: the number of the write, the number of the client that
/// wrote it, and the key. Padding may follow it in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub write: usize,
    pub client: u32,
    pub key: &'a str,
}

/// Builds the value of a write: its token (the write's number, the writing client's number and the key), and
/// `padding` bytes of padding.
pub(super) fn value(write: usize, client: u32, key: &str, padding: usize) -> Vec<u8> {
    let mut value = format!("w{write}.{client}.{key};").into_bytes();
    value.resize(value.len() + padding, b'~');
    value
}

/// Returns all tokens in a value (each is the mark of one write), one after the other; `None` if there is
/// anything else in it but padding.
pub(super) fn tokens(mut value: &[u8]) -> Option<Vec<Token<'_>>> {
    let mut found = Vec::new();
    while !value.is_empty() {
        let end = value.iter().position(|byte| *byte == b';')?;
        found.push(token(&value[..end])?);
        value = &value[end + 1..];
        let padding = value.iter().take_while(|byte| **byte == b'~').count();
        value = &value[padding..];
    }
    Some(found)
}

/// Returns the token (mark of a write) in a word of a request; `None` unless the word is a value with
/// exactly one.
pub(super) fn token_of_word(word: &[u8]) -> Option<Token<'_>> {
    if !word.starts_with(b"w") {
        return None;
    }
    let found = tokens(word)?;
    (found.len() == 1).then(|| found[0])
}

fn token(text: &[u8]) -> Option<Token<'_>> {
    let mut words = std::str::from_utf8(text).ok()?.strip_prefix('w')?.splitn(3, '.');
    let write = words.next()?.parse().ok()?;
    let client = words.next()?.parse().ok()?;
    Some(Token { write, client, key: words.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_writes() {
        let both = [value(17, 3, "key:5", 9), value(18, 4, "a.b", 0)].concat();
        let told = tokens(&both).expect("tokens");
        assert_eq!(told[0], Token { write: 17, client: 3, key: "key:5" });
        assert_eq!(told[1], Token { write: 18, client: 4, key: "a.b" });
        assert!(tokens(b"w1.2").is_none() && token_of_word(&both).is_none());
    }
}
