//! HTTP headers that are used both in requests for keys and in requests to the admin port.

use httparse::Header;

/// Returns the values of all headers with this name, in any case of letters.
pub fn values<'a>(headers: &'a [Header<'a>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// True if the client's connection is kept after the response, by its header `Connection` and the rules of
/// HTTP/1.1 (`is_modern`) or HTTP/1.0.
pub fn lasts(headers: &[Header<'_>], is_modern: bool) -> bool {
    let asks_for = |wanted: &str| {
        values(headers, "connection")
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|word| word.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    if is_modern { !asks_for("close") } else { asks_for("keep-alive") && !asks_for("close") }
}

/// Reads a length in bytes: only digits, whereas `parse` would accept a sign too. `None` for any other text.
pub fn length_of(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the text after the given scheme (such as `Bearer`) in the value of `Authorization`; `None` if it
/// has another scheme.
pub fn credentials<'a>(value: &'a [u8], scheme: &str) -> Option<&'a [u8]> {
    let (name, rest) = value.split_at_checked(scheme.len())?;
    let rest = rest.strip_prefix(b" ")?;
    name.eq_ignore_ascii_case(scheme.as_bytes()).then(|| rest.trim_ascii())
}
