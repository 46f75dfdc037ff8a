//! TOML reader whose errors name the file, the place, the key, the value found there and the value that is
//! expected.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::values::units;

/// Error in a quota file, worded in one line for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    file: String,
    /// Line and column of the error in the quota file, counted from 1; `None` for an error about the file as
    /// a whole, such as one that cannot be read.
    place: Option<(usize, usize)>,
    problem: String,
}

impl QuotaError {
    /// Creates an error about the quota file `file` as a whole, without a line and column. `problem`
    /// describes it in words.
    pub fn of_file(file: &str, problem: String) -> Self {
        Self { file: file.to_owned(), place: None, problem }
    }

    /// Creates an error of the quota file `file` about the byte at offset `at` of the file's text `text`.
    /// `problem` describes it in words.
    pub(super) fn at(file: &str, text: &[u8], at: usize, problem: String) -> Self {
        let before = &text[..at.min(text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let line = before.split(|byte| *byte == b'\n').count();
        let column = String::from_utf8_lossy(&before[line_start..]).chars().count() + 1;
        Self { file: file.to_owned(), place: Some((line, column)), problem }
    }

    /// Returns line and column of the error, counted from 1; `None` if it concerns the file as a whole.
    pub fn place(&self) -> Option<(usize, usize)> {
        self.place
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, problem } = self;
        match place {
            Some((line, column)) => write!(out, "{file}:{line}:{column}: {problem}"),
            None => write!(out, "{file}: {problem}"),
        }
    }
}

impl std::error::Error for QuotaError {}

/// Name and text of a TOML file, from which errors get the file's name and the place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl<'a> Document<'a> {
    pub fn parse(self) -> Result<Spanned<DeTable<'a>>, QuotaError> {
        DeTable::parse(self.text).map_err(|error| {
            // The line itself is not quoted in the error, since it may contain a password.
            self.error(error.span().unwrap_or(0..0), format!("this is not TOML: {}", error.message()))
        })
    }

    pub fn error(self, place: Range<usize>, problem: String) -> QuotaError {
        QuotaError::at(self.file, self.text.as_bytes(), place.start, problem)
    }
}

/// A table of the TOML file, with the path of keys that leads to it.
#[derive(Clone, Debug)]
pub(super) struct Section<'a> {
    document: Document<'a>,
    path: String,
    place: Range<usize>,
    table: &'a DeTable<'a>,
}

/// A value of the TOML file, with its place in the file for errors.
#[derive(Clone, Debug)]
pub(super) struct Found<'a, T> {
    section: &'a Section<'a>,
    key: &'a str,
    place: Range<usize>,
    pub value: T,
}

impl<'a> Section<'a> {
    pub fn root(document: Document<'a>, table: &'a Spanned<DeTable<'a>>) -> Self {
        Self { document, path: String::new(), place: 0..0, table: table.get_ref() }
    }

    /// Creates an error about the whole section, at its place in the file.
    pub fn error(&self, problem: impl fmt::Display) -> QuotaError {
        self.document.error(self.place.clone(), format!("[{}]: {problem}", self.path))
    }

    /// Returns an error if the section has a key that is not among `keys`.
    pub fn has_only(&self, keys: &[&str]) -> Result<(), QuotaError> {
        let Some(stranger) = self.table.keys().find(|key| !keys.contains(&key.get_ref().as_ref())) else {
            return Ok(());
        };
        let problem = format!(
            "{} is not known here: {} {} expected",
            self.path_of(stranger.get_ref()),
            one_of(keys),
            if keys.len() == 1 { "is" } else { "are" }
        );
        Err(self.document.error(stranger.span(), problem))
    }

    /// Reads the key's value, a whole number from `least` to `most`; `None` if the section does not have the
    /// key.
    pub fn number(
        &'a self,
        key: &'a str,
        least: u64,
        most: u64,
    ) -> Result<Option<Found<'a, u64>>, QuotaError> {
        let wanted = format!("a whole number from {least} to {most} is expected");
        self.find(key, &wanted, |value| whole_number(value).filter(|number| (least..=most).contains(number)))
    }

    /// Reads the key's value, a number from `least` to `most`, which may have a fraction; `None` if the section
    /// does not have the key.
    pub fn fraction(
        &'a self,
        key: &'a str,
        (least, most): (f64, u32),
    ) -> Result<Option<Found<'a, f64>>, QuotaError> {
        let wanted = format!("a number from {least} to {most} is expected");
        self.find(key, &wanted, |value| {
            let number: f64 = match value {
                DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok()?,
                DeValue::Float(float) => float.as_str().parse().ok()?,
                _ => return None,
            };
            (number >= least && number <= f64::from(most)).then_some(number)
        })
    }

    /// Reads the key's value, a duration with a unit, up to `most` (0 needs no unit); `None` if the section
    /// does not have the key.
    pub fn duration(
        &'a self,
        key: &'a str,
        most: Duration,
    ) -> Result<Option<Found<'a, Duration>>, QuotaError> {
        let wanted = format!("0, or a duration up to {most:?}, in quotes, such as \"10s\", is expected");
        self.find(key, &wanted, |value| match value {
            DeValue::Integer(integer) => (integer.as_str() == "0").then_some(Duration::ZERO),
            _ => units::duration(value.as_str()?).ok().filter(|duration| *duration <= most),
        })
    }

    pub fn boolean(&'a self, key: &'a str) -> Result<Option<Found<'a, bool>>, QuotaError> {
        self.find(key, "true or false is expected", DeValue::as_bool)
    }

    /// Reads the key's value, a text that `read` accepts; `None` if the section does not have the key.
    /// `wanted` says in errors what is expected.
    pub fn text<T>(
        &'a self,
        key: &'a str,
        wanted: &str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Option<Found<'a, T>>, QuotaError> {
        self.find(key, wanted, |value| read(value.as_str()?))
    }

    /// Reads the key's value, a text that `read` accepts and that errors must not show; `None` if the section
    /// does not have the key. `wanted` describes the expected value in the error.
    pub fn secret<T>(
        &'a self,
        key: &'a str,
        wanted: &str,
        read: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Option<Found<'a, T>>, QuotaError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        match found.value.as_str().and_then(read) {
            Some(value) => Ok(Some(found.with(value))),
            None => Err(found.error(wanted)),
        }
    }

    /// Reads the value of `key` in this section of the quota file, a list of texts; `None` if the section does
    /// not have the key. `wanted` describes the expected value in the error.
    pub fn texts(
        &'a self,
        key: &'a str,
        wanted: &str,
    ) -> Result<Option<Vec<Found<'a, &'a str>>>, QuotaError> {
        self.list(key, wanted, DeValue::as_str)
    }

    /// Reads the key's value, a list of whole numbers up to `most`; `None` if the section does not have the
    /// key. `wanted` describes the expected value in the error.
    pub fn numbers(
        &'a self,
        key: &'a str,
        most: u64,
        wanted: &str,
    ) -> Result<Option<Vec<Found<'a, u64>>>, QuotaError> {
        self.list(key, wanted, |value| whole_number(value).filter(|number| *number <= most))
    }

    /// Reads the key's value, a list whose items `read` accepts; `None` if the section does not have the key.
    /// `wanted` describes the expected value in the error.
    fn list<T>(
        &'a self,
        key: &'a str,
        wanted: &str,
        read: impl Fn(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<Vec<Found<'a, T>>>, QuotaError> {
        let Some(list) = self.find(key, wanted, |value| value.as_array().map(|list| list.iter()))? else {
            return Ok(None);
        };
        list.value
            .map(|item| {
                let found = Found { section: self, key, place: item.span(), value: item.get_ref() };
                match read(found.value) {
                    Some(value) => Ok(found.with(value)),
                    None => Err(found.given(wanted)),
                }
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Returns the table inside this one under the key; `None` if this one does not have the key. Fails if
    /// the key's value is not a table; the error does not show the value, which may be a password.
    pub fn section(&self, key: &str) -> Result<Option<Section<'a>>, QuotaError> {
        let Some((name, value)) = self.table.get_key_value(key) else { return Ok(None) };
        let path = self.path_of(key);
        match value.get_ref() {
            DeValue::Table(table) => {
                Ok(Some(Section { document: self.document, path, place: name.span(), table }))
            }
            other => {
                let problem = format!("{path} is {}: a section [{path}] is expected", kind_of(other));
                Err(self.document.error(value.span(), problem))
            }
        }
    }

    /// Returns the names of all keys in this section of the quota file.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    fn value(&'a self, key: &'a str) -> Option<Found<'a, &'a DeValue<'a>>> {
        let value = self.table.get(key)?;
        Some(Found { section: self, key, place: value.span(), value: value.get_ref() })
    }

    fn find<T>(
        &'a self,
        key: &'a str,
        wanted: &str,
        read: impl Fn(&'a DeValue<'a>) -> Option<T>,
    ) -> Result<Option<Found<'a, T>>, QuotaError> {
        let Some(found) = self.value(key) else { return Ok(None) };
        match read(found.value) {
            Some(value) => Ok(Some(found.with(value))),
            None => Err(found.given(wanted)),
        }
    }

    fn path_of(&self, key: &str) -> String {
        let plain = !key.is_empty()
            && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        let key = if plain { key.to_owned() } else { format!("\"{}\"", key.escape_debug()) };
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }
}

impl<'a, T> Found<'a, T> {
    /// Creates an error about the value, at its place, that does not show the value.
    pub fn error(&self, problem: impl fmt::Display) -> QuotaError {
        let path = self.section.path_of(self.key);
        self.section.document.error(self.place.clone(), format!("{path}: {problem}"))
    }

    fn with<U>(&self, value: U) -> Found<'a, U> {
        Found { section: self.section, key: self.key, place: self.place.clone(), value }
    }
}

impl Found<'_, &DeValue<'_>> {
    fn given(&self, wanted: &str) -> QuotaError {
        let path = self.section.path_of(self.key);
        let problem = format!("{path} is {}: {wanted}", shown(self.value));
        self.section.document.error(self.place.clone(), problem)
    }
}

fn whole_number(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Maximum number of characters of a wrong value that an error about it repeats.
const SHOWN_CHARACTERS_MAX: usize = 40;

/// Returns a value as an error shows it: a number or a boolean in full, the beginning of a text, and the kind of
/// anything else.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => {
            let start: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
            let more = if start.len() < text.len() { "..." } else { "" };
            format!("\"{}{more}\"", start.escape_debug())
        }
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        other => kind_of(other).to_owned(),
    }
}

/// Returns the kind of a value in words, for errors that must not show the value.
const fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// Joins words for an error text: `a`, `a and b`, `a, b and c`.
fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}
