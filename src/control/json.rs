//! Writing JSON: objects and lists that are appended to a text, in the order they are told.

use std::fmt::{self, Write as _};

/// An object that is being written.
#[derive(Debug)]
pub struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

/// A list that is being written.
#[derive(Debug)]
pub struct List<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> Object<'a> {
    /// `{`.
    pub fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    /// Text.
    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        string(self.out, value);
        self
    }

    /// Something that is written as a number, `true` or `false`.
    pub fn number(&mut self, name: &str, value: impl fmt::Display) -> &mut Self {
        self.name(name);
        write!(self.out, "{value}").expect("writing to a string does not fail");
        self
    }

    /// The same, or `null`.
    pub fn number_or_null(&mut self, name: &str, value: Option<impl fmt::Display>) -> &mut Self {
        match value {
            Some(value) => self.number(name, value),
            None => self.number(name, "null"),
        }
    }

    /// An object inside it; `write` fills it.
    pub fn object(&mut self, name: &str, write: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.name(name);
        let mut inner = Object::open(self.out);
        write(&mut inner);
        inner.close();
        self
    }

    /// A list inside it; `write` fills it.
    pub fn list(&mut self, name: &str, write: impl FnOnce(&mut List<'_>)) -> &mut Self {
        self.name(name);
        self.out.push('[');
        let mut inner = List { out: self.out, is_empty: true };
        write(&mut inner);
        self.out.push(']');
        self
    }

    /// `}`.
    pub fn close(self) {
        self.out.push('}');
    }

    fn name(&mut self, name: &str) {
        comma(self.out, &mut self.is_empty);
        string(self.out, name);
        self.out.push(':');
    }
}

impl List<'_> {
    /// One more text.
    pub fn text(&mut self, value: &str) {
        comma(self.out, &mut self.is_empty);
        string(self.out, value);
    }

    /// One more object; `write` fills it.
    pub fn object(&mut self, write: impl FnOnce(&mut Object<'_>)) {
        comma(self.out, &mut self.is_empty);
        let mut inner = Object::open(self.out);
        write(&mut inner);
        inner.close();
    }
}

fn comma(out: &mut String, is_empty: &mut bool) {
    if !std::mem::replace(is_empty, false) {
        out.push(',');
    }
}

fn string(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            // Escaped beyond what JSON asks for: what looks like markup, and the line ends of JavaScript.
            '\0'..='\x1f' | '\x7f' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(out, "\\u{:04x}", letter as u32).expect("writing to a string does not fail");
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_nest() {
        let mut out = String::new();
        let mut object = Object::open(&mut out);
        object.number("a", 1).number_or_null("b", None::<u64>).list("c", |list| {
            list.text("x");
            list.object(|inner| {
                inner.number("d", true);
            });
        });
        object.object("e", |_| {}).list("f", |_| {});
        object.close();
        assert_eq!(out, r#"{"a":1,"b":null,"c":["x",{"d":true}],"e":{},"f":[]}"#);
    }

    #[test]
    #[cfg(feature = "runtime")]
    fn any_text_comes_back_as_it_was() {
        let text: String = (0..0x3000_u32).filter_map(char::from_u32).chain(['\u{1f980}']).collect();
        let mut out = String::new();
        let mut object = Object::open(&mut out);
        object.text(&text, &text);
        object.close();
        let read: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
        assert_eq!(read[&text], serde_json::Value::String(text));
        assert!(!out.contains(['<', '\n', '\u{2028}']));
    }
}
