//! JSON documents of the admin port, written by `serde_json`.

use std::fmt::Display;
use std::io;

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;
use serde_json::value::RawValue;

/// Returns a value as the text of a JSON document in which characters of HTML markup are escaped, with a line
/// end after it.
pub fn document(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, NoMarkup);
    value
        .serialize(&mut serializer)
        .expect("pages have texts as keys, and memory takes what is written to it");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("JSON is text")
}

/// Serializes a number as the text of its `Display`, without quotes: `1`, not `1.0`.
pub fn as_shown<S: Serializer>(number: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    RawValue::from_string(number.to_string()).expect("a number is shown").serialize(to)
}

/// Serializes a number as [`as_shown`] does, or `null` if there is none.
pub fn as_shown_or_null<S: Serializer>(number: &Option<impl Display>, to: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => as_shown(number, to),
        None => to.serialize_none(),
    }
}

/// A formatter for compact JSON that also escapes characters of HTML markup and the line ends of JavaScript,
/// for safety in browsers.
struct NoMarkup;

impl Formatter for NoMarkup {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['\x7f', '<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (before, from) = rest.split_at(at);
            let letter = from.chars().next().expect("one was found");
            write!(to, "{before}\\u{:04x}", u32::from(letter))?;
            rest = &from[letter.len_utf8()..];
        }
        to.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Serialize)]
    struct Page {
        text: String,
        #[serde(serialize_with = "as_shown")]
        number: f64,
        #[serde(serialize_with = "as_shown_or_null")]
        none: Option<u8>,
    }

    fn page(text: &str, number: f64) -> String {
        document(&Page { text: text.to_owned(), number, none: None })
    }

    #[test]
    fn numbers_have_the_digits_that_are_shown() {
        assert_eq!(page("", 1.0), "{\"text\":\"\",\"number\":1,\"none\":null}\n");
        assert_eq!(page("", 0.000_001), "{\"text\":\"\",\"number\":0.000001,\"none\":null}\n");
    }

    #[test]
    fn every_letter_comes_back_as_it_was() {
        let text: String = (0..0x3000_u32).filter_map(char::from_u32).chain(['\u{1f980}']).collect();
        let page = page(&text, 0.0);
        let read: serde_json::Value = serde_json::from_str(&page).expect("it is JSON");
        assert_eq!(read["text"], serde_json::Value::String(text));
        assert!(!page.trim_end().contains(['<', '>', '&', '\n', '\x7f', '\u{2028}', '\u{2029}']));
    }

    proptest! {
        #[test]
        fn any_text_comes_back_as_it_was(text in any::<String>(), number in 0.0..1e12_f64) {
            let page = page(&text, number);
            let read: BTreeMap<&str, &RawValue> = serde_json::from_str(&page).expect("it is JSON");
            prop_assert_eq!(serde_json::from_str::<String>(read["text"].get()).ok(), Some(text));
            prop_assert_eq!(read["number"].get().parse(), Ok(number));
            prop_assert_eq!(read["none"].get(), "null");
        }
    }
}
