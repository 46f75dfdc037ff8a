//! The reader of JSON: `cjson.decode` of Lua scripts.

use mlua::{Error, Integer, Lua, LuaString, MultiValue, Value};

use super::{DEPTH_MAX, Settings, check_only_argument, one};
use crate::store::scripts::errors::raise;
use crate::store::scripts::fuel::Fuel;
use crate::store::scripts::given::Given;
use crate::store::scripts::machine::Shared;

/// The number of characters of JSON that `cjson.decode` reads for one unit of effort (steps of work); a table
/// takes only two characters (`{}`).
const CHARACTERS_PER_UNIT: u64 = 4;

pub(super) fn decode(
    lua: &Lua,
    shared: &Shared,
    settings: &Settings,
    arguments: &MultiValue,
) -> Result<MultiValue, Error> {
    check_only_argument(lua, arguments)?;
    let text = Given::new(lua, arguments).text(0)?;
    let text = text.as_bytes();
    if text.len() >= 2 && text[..2].contains(&0) {
        return Err(raise(lua, "JSON parser does not support UTF-16 or UTF-32"));
    }
    shared.fuel.spend(text.len() as u64 / CHARACTERS_PER_UNIT)?;
    let mut decoder = Decoder { lua, fuel: &shared.fuel, settings, text: &text, at: 0, depth: 0 };
    let token = decoder.next()?;
    let value = decoder.value(token)?;
    let token = decoder.next()?;
    match token.kind {
        Kind::End => Ok(one(value)),
        _ => Err(decoder.expected("the end", &token)),
    }
}

/// A token of the JSON text, and its offset in bytes.
struct Token {
    kind: Kind,
    at: usize,
}

enum Kind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Fault(&'static str),
}

impl Kind {
    /// Returns the name of the token's kind as error texts of `cjson.decode` give it.
    fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::Text(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Boolean(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Fault(words) => words,
        }
    }
}

struct Decoder<'a> {
    lua: &'a Lua,
    fuel: &'a Fuel,
    settings: &'a Settings,
    text: &'a [u8],
    at: usize,
    depth: Integer,
}

impl Decoder<'_> {
    fn expected(&self, expected: &str, token: &Token) -> Error {
        let found = token.kind.name();
        raise(self.lua, format!("Expected {expected} but found {found} at character {}", token.at + 1))
    }

    /// Returns the byte of the JSON text at the offset `at`; 0 beyond the end of the text.
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Result<Token, Error> {
        while matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let kind = match self.byte(at) {
            0 => Kind::End,
            b'{' => self.skip(1, Kind::ObjectBegin),
            b'}' => self.skip(1, Kind::ObjectEnd),
            b'[' => self.skip(1, Kind::ArrayBegin),
            b']' => self.skip(1, Kind::ArrayEnd),
            b':' => self.skip(1, Kind::Colon),
            b',' => self.skip(1, Kind::Comma),
            b'"' => return Ok(self.quoted(at)),
            b'-' | b'0'..=b'9' => {
                if !self.settings.decodes_invalid.get() && self.is_invalid_number() {
                    Kind::Fault("invalid number")
                } else {
                    self.number()
                }
            }
            b'f' | b'i' | b'I' | b'n' | b'N' | b't' | b'+' => self.word(),
            _ => Kind::Fault("invalid token"),
        };
        Ok(Token { kind, at })
    }

    fn skip(&mut self, bytes: usize, kind: Kind) -> Kind {
        self.at += bytes;
        kind
    }

    fn word(&mut self) -> Kind {
        let rest = &self.text[self.at..];
        if rest.starts_with(b"true") {
            self.skip(4, Kind::Boolean(true))
        } else if rest.starts_with(b"false") {
            self.skip(5, Kind::Boolean(false))
        } else if rest.starts_with(b"null") {
            self.skip(4, Kind::Null)
        } else if self.settings.decodes_invalid.get() && self.is_invalid_number() {
            self.number()
        } else {
            Kind::Fault("invalid token")
        }
    }

    /// True if a number that JSON does not allow begins at the present position of the text: with a plus or
    /// leading zeros, hexadecimal, infinite, or NaN.
    fn is_invalid_number(&self) -> bool {
        let mut at = self.at;
        if self.byte(at) == b'+' {
            return true;
        }
        if self.byte(at) == b'-' {
            at += 1;
        }
        if self.byte(at) == b'0' {
            let next = self.byte(at + 1);
            return matches!(next, b'x' | b'X') || next.is_ascii_digit();
        }
        if self.byte(at) <= b'9' {
            return false;
        }
        let word = self.text.get(at..at + 3).unwrap_or_default();
        word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
    }

    fn number(&mut self) -> Kind {
        match number_at(&self.text[self.at..]) {
            Some((number, length)) => self.skip(length, Kind::Number(number)),
            None => Kind::Fault("invalid number"),
        }
    }

    fn quoted(&mut self, start: usize) -> Token {
        let fault = |at, words| Token { kind: Kind::Fault(words), at };
        let mut text = Vec::new();
        let mut at = start + 1;
        loop {
            match self.byte(at) {
                b'"' => break,
                0 => return fault(at, "unexpected end of string"),
                b'\\' => {
                    let plain = match self.byte(at + 1) {
                        escaped @ (b'"' | b'\\' | b'/') => escaped,
                        b'b' => 0x08,
                        b'f' => 0x0c,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'u' => {
                            let Some((bytes, length)) = self.unicode(at) else {
                                return fault(at, "invalid unicode escape code");
                            };
                            text.extend_from_slice(&bytes);
                            at += length;
                            continue;
                        }
                        _ => return fault(at, "invalid escape code"),
                    };
                    text.push(plain);
                    at += 2;
                }
                other => {
                    text.push(other);
                    at += 1;
                }
            }
        }
        self.at = at + 1;
        Token { kind: Kind::Text(text), at: start }
    }

    /// Decodes the escape `\uXXXX` at offset `at`, or two of them that form a surrogate pair. Returns the
    /// character in UTF-8 and the length of the escape or pair in bytes; `None` if it is invalid.
    fn unicode(&self, at: usize) -> Option<(Vec<u8>, usize)> {
        let digits = |at: usize| {
            let digits =
                self.text.get(at..at + 4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        };
        let mut point = digits(at + 2)?;
        let mut length = 6;
        if point & 0xf800 == 0xd800 {
            let low = (self.byte(at + 6) == b'\\' && self.byte(at + 7) == b'u').then(|| digits(at + 8))??;
            if point & 0x400 != 0 || low & 0xfc00 != 0xdc00 {
                return None;
            }
            point = ((point & 0x3ff) << 10 | (low & 0x3ff)) + 0x1_0000;
            length = 12;
        }
        let mut bytes = [0; 4];
        Some((char::from_u32(point)?.encode_utf8(&mut bytes).as_bytes().to_vec(), length))
    }

    fn descend(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > self.settings.decode_depth_max.get().min(DEPTH_MAX) {
            return Err(raise(
                self.lua,
                format!("Found too many nested data structures ({}) at character {}", self.depth, self.at),
            ));
        }
        Ok(())
    }

    fn value(&mut self, token: Token) -> Result<Value, Error> {
        match token.kind {
            Kind::Text(text) => self.string(&text).map(Value::String),
            Kind::Number(number) => Ok(Value::Number(number)),
            Kind::Boolean(truth) => Ok(Value::Boolean(truth)),
            Kind::Null => Ok(Value::NULL),
            Kind::ObjectBegin => self.object(),
            Kind::ArrayBegin => self.array(),
            _ => Err(self.expected("value", &token)),
        }
    }

    fn string(&self, text: &[u8]) -> Result<LuaString, Error> {
        self.fuel.note_string()?;
        self.lua.create_string(text)
    }

    fn object(&mut self) -> Result<Value, Error> {
        self.descend()?;
        let object = self.lua.create_table()?;
        let mut token = self.next()?;
        if matches!(token.kind, Kind::ObjectEnd) {
            self.depth -= 1;
            return Ok(Value::Table(object));
        }
        loop {
            let Kind::Text(key) = &token.kind else { return Err(self.expected("object key string", &token)) };
            let key = self.string(key)?;
            let colon = self.next()?;
            if !matches!(colon.kind, Kind::Colon) {
                return Err(self.expected("colon", &colon));
            }
            let value = self.next()?;
            let value = self.value(value)?;
            object.raw_set(key, value)?;
            token = self.next()?;
            match token.kind {
                Kind::ObjectEnd => break,
                Kind::Comma => token = self.next()?,
                _ => return Err(self.expected("comma or object end", &token)),
            }
        }
        self.depth -= 1;
        Ok(Value::Table(object))
    }

    fn array(&mut self) -> Result<Value, Error> {
        self.descend()?;
        let array = self.lua.create_table()?;
        let mut token = self.next()?;
        if matches!(token.kind, Kind::ArrayEnd) {
            self.depth -= 1;
            return Ok(Value::Table(array));
        }
        for index in 1.. {
            let value = self.value(token)?;
            array.raw_set(index, value)?;
            let end = self.next()?;
            match end.kind {
                Kind::ArrayEnd => break,
                Kind::Comma => token = self.next()?,
                _ => return Err(self.expected("comma or array end", &end)),
            }
        }
        self.depth -= 1;
        Ok(Value::Table(array))
    }
}

/// Parses the number at the start of a text as C's `strtod` does. Returns the number and its length in bytes.
/// `None` if no number is there.
fn number_at(text: &[u8]) -> Option<(f64, usize)> {
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let is_negative = text.first() == Some(&b'-');
    let rest = &text[sign..];
    let signed = |value: f64| if is_negative { -value } else { value };
    let starts = |word: &[u8]| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if starts(b"infinity") {
        return Some((signed(f64::INFINITY), sign + 8));
    }
    if starts(b"inf") {
        return Some((signed(f64::INFINITY), sign + 3));
    }
    if starts(b"nan") {
        return Some((signed(f64::NAN), sign + 3));
    }
    if starts(b"0x")
        && let Some((value, length)) = hexadecimal_at(&rest[2..])
    {
        return Some((signed(value), sign + 2 + length));
    }
    let digits = |from: usize| rest[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(0);
    let mut length = whole;
    if rest.get(whole) == Some(&b'.') {
        let fraction = digits(whole + 1);
        if whole + fraction > 0 {
            length = whole + 1 + fraction;
        }
    }
    if length == 0 {
        return None;
    }
    if matches!(rest.get(length), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(rest.get(length + 1), Some(b'+' | b'-')));
        let exponent = rest.get(length + 1 + signed).map_or(0, |_| digits(length + 1 + signed));
        if exponent > 0 {
            length += 1 + signed + exponent;
        }
    }
    let value: f64 = std::str::from_utf8(&rest[..length]).ok()?.parse().ok()?;
    Some((signed(value), sign + length))
}

/// Parses a hexadecimal number without its `0x`, with an optional fraction and binary exponent. Returns the
/// number and its length in bytes. `None` if no number is there.
fn hexadecimal_at(text: &[u8]) -> Option<(f64, usize)> {
    let mut value = 0.0;
    let (mut at, mut scale, mut has_digits) = (0, 0, false);
    let mut has_point = false;
    while let Some(byte) = text.get(at) {
        if let Some(digit) = char::from(*byte).to_digit(16) {
            value = value * 16.0 + f64::from(digit);
            scale -= if has_point { 4 } else { 0 };
            has_digits = true;
        } else if *byte == b'.' && !has_point {
            has_point = true;
        } else {
            break;
        }
        at += 1;
    }
    if !has_digits {
        return None;
    }
    if matches!(text.get(at), Some(b'p' | b'P')) {
        let signed = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let digits = text.iter().skip(at + 1 + signed).take_while(|byte| byte.is_ascii_digit()).count();
        let exponent = text.get(at + 1..at + 1 + signed + digits).filter(|_| digits > 0)?;
        scale += std::str::from_utf8(exponent).ok()?.parse::<i32>().unwrap_or(0).clamp(-5_000, 5_000);
        at += 1 + signed + digits;
    }
    Some((value * f64::from(scale).exp2(), at))
}
