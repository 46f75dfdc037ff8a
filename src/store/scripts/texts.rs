//! Functions of Lua's library `string` whose work a short script could make endless: pattern matching, formats,
//! `string.rep`, and the conversions of a whole string.

use mlua::{Error, Function, Lua, LuaString, MultiValue, Value};
use std::rc::Rc;

use super::errors::{bad_argument, ending, raise, relocated};
use super::fuel::Ending;
use super::given::Given;
use super::machine::Shared;
use super::patterns::{Capture, Fault, Matcher, find_plain};

/// The characters that have a meaning in Lua's patterns. A text without them is searched for as it is.
const SPECIAL: &[u8] = b"^$*+?.([%-";

type Values = Result<MultiValue, Error>;

/// Converts the reason why a match failed into the error that the script sees, or into the one that ends the
/// script if its effort (steps of work) is used up.
fn fail(lua: &Lua, shared: &Shared, fault: Fault) -> Error {
    match fault {
        Fault::Malformed(words) => raise(lua, words),
        Fault::TooLarge => shared.fuel.end(Ending::Memory),
        Fault::TooLong => match shared.fuel.spend(u64::MAX) {
            Err(error) => error,
            Ok(()) => raise(lua, "pattern too complex"),
        },
    }
}

/// Returns a pattern up to its first zero byte, where Lua 5.1 ends it too. Charges its length as effort
/// (steps of work). An error, which ends the script, if too little effort is left.
fn pattern_of<'a>(shared: &Shared, text: &'a [u8]) -> Result<&'a [u8], Error> {
    shared.fuel.spend_bytes(text.len())?;
    Ok(text.split(|byte| *byte == 0).next().unwrap_or_default())
}

fn captured(lua: &Lua, subject: &[u8], capture: Capture) -> Result<Value, Error> {
    match capture {
        Capture::Part(from, to) => lua.create_string(&subject[from..to]).map(Value::String),
        Capture::Position(at) => Ok(Value::Integer(at as i64)),
    }
}

/// Converts a position in a string of `length` bytes as Lua counts (1 is the first byte, -1 the last) to an
/// offset from 0 to `length`.
fn offset(position: i64, length: usize) -> usize {
    let length = length as i64;
    let position = if position < 0 { position.saturating_add(length + 1).max(0) } else { position };
    position.saturating_sub(1).clamp(0, length) as usize
}

/// A match of a pattern: its start and end offsets in the subject, and its captures. Without captures in the
/// pattern, the whole match is the only one.
struct Match {
    start: usize,
    end: usize,
    captures: Vec<Capture>,
    has_captures: bool,
}

/// Finds the first match of `pattern` in `subject` at offset `from` or later; only at `from` if `all_starts`
/// is false. `None` if there is no match. Charges the steps of matching as effort. An error for a malformed
/// pattern, or if the steps exceed the effort that is left.
fn search(
    lua: &Lua,
    shared: &Shared,
    subject: &[u8],
    pattern: &[u8],
    from: usize,
    all_starts: bool,
) -> Result<Option<Match>, Error> {
    let mut matcher = Matcher::new(subject, pattern, shared.fuel.steps_left());
    let mut found = Ok(None);
    for start in from..=subject.len() {
        match matcher.match_at(start, 0) {
            Ok(None) if all_starts => {}
            Ok(None) => break,
            Ok(Some(end)) => {
                let has_captures = matcher.level() > 0;
                let captures = matcher.captures(start, end);
                found = captures.map(|captures| Some(Match { start, end, captures, has_captures }));
                break;
            }
            Err(fault) => {
                found = Err(fault);
                break;
            }
        }
    }
    shared.fuel.spend_steps(matcher.steps)?;
    found.map_err(|fault| fail(lua, shared, fault))
}

fn find_or_match(lua: &Lua, shared: &Shared, arguments: &MultiValue, is_find: bool) -> Values {
    let given = Given::new(lua, arguments);
    let (subject, pattern) = (given.text(0)?, given.text(1)?);
    let (subject, whole) = (subject.as_bytes(), pattern.as_bytes());
    let from = offset(given.integer_or(2, 1)?, subject.len());
    let is_plain = given.get(3).is_some_and(|plain| !matches!(plain, Value::Nil | Value::Boolean(false)));
    let pattern = pattern_of(shared, &whole)?;
    if is_find && (is_plain || !pattern.iter().any(|byte| SPECIAL.contains(byte))) {
        let mut steps = 0;
        let found = find_plain(&subject[from..], &whole, &mut steps, shared.fuel.steps_left());
        shared.fuel.spend_steps(steps)?;
        let Some(at) = found.map_err(|fault| fail(lua, shared, fault))? else { return nothing() };
        let start = from + at;
        return Ok([start + 1, start + whole.len()]
            .map(|place| Value::Integer(place as i64))
            .into_iter()
            .collect());
    }
    let (pattern, all_starts) = match pattern {
        [b'^', rest @ ..] => (rest, false),
        pattern => (pattern, true),
    };
    let found = search(lua, shared, &subject, pattern, from, all_starts)?;
    let Some(Match { start, end, captures, has_captures }) = found else { return nothing() };
    let mut values = MultiValue::new();
    if is_find {
        values.push_back(Value::Integer(start as i64 + 1));
        values.push_back(Value::Integer(end as i64));
        if !has_captures {
            return Ok(values);
        }
    }
    for capture in captures {
        values.push_back(captured(lua, &subject, capture)?);
    }
    Ok(values)
}

fn nothing() -> Values {
    Ok([Value::Nil].into_iter().collect())
}

pub(super) fn find(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Values {
    find_or_match(lua, shared, arguments, true)
}

pub(super) fn match_(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Values {
    find_or_match(lua, shared, arguments, false)
}

/// Carries out `string.gmatch`: returns a Lua function that returns the captures of the next match at each
/// call, and nil after the last match.
pub(super) fn gmatch(lua: &Lua, shared: &Rc<Shared>, arguments: &MultiValue) -> Values {
    let given = Given::new(lua, arguments);
    let (subject, pattern) = (given.text(0)?, given.text(1)?);
    let shared = Rc::clone(shared);
    let from = std::cell::Cell::new(0);
    let next = lua.create_function(move |lua, (): ()| {
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        if from.get() > subject.len() {
            return nothing();
        }
        let found = search(lua, &shared, &subject, pattern_of(&shared, &pattern)?, from.get(), true)?;
        let Some(Match { start, end, captures, .. }) = found else {
            from.set(subject.len() + 1);
            return nothing();
        };
        from.set(if end == start { end + 1 } else { end });
        captures.into_iter().map(|capture| captured(lua, &subject, capture)).collect()
    })?;
    Ok([Value::Function(next)].into_iter().collect())
}

/// Carries out one step of `string.gsub`, whose loop is in `sandbox.lua`: finds the first match at or after
/// an offset. Returns the end and the start of the match (offsets from 0) and its captures; nil if there is
/// no match. The Lua arguments are the subject, the pattern, the offset, and true to match at the offset
/// only.
pub(super) fn search_step(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Values {
    let given = Given::new(lua, arguments);
    let (subject, pattern) = (given.text(0)?, given.text(1)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let from = given.integer(2)?.clamp(0, subject.len() as i64) as usize;
    let all_starts = !matches!(given.get(3), Some(Value::Boolean(true)));
    let found = search(lua, shared, &subject, pattern_of(shared, &pattern)?, from, all_starts)?;
    let Some(Match { start, end, captures, .. }) = found else { return nothing() };
    let mut values: MultiValue = [end, start].map(|at| Value::Integer(at as i64)).into_iter().collect();
    for capture in captures {
        values.push_back(captured(lua, &subject, capture)?);
    }
    Ok(values)
}

/// Carries out `string.gsub` with a string as replacement. The Lua arguments are the subject, the pattern,
/// the replacement, and the maximum number of replacements. Returns the new text and the number of
/// replacements. An error if the pattern is malformed, or if the matching or the new text goes beyond its
/// limit.
pub(super) fn gsub_text(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Values {
    let given = Given::new(lua, arguments);
    let (subject, pattern, replacement) = (given.text(0)?, given.text(1)?, given.text(2)?);
    let (subject, whole, replacement) = (subject.as_bytes(), pattern.as_bytes(), replacement.as_bytes());
    let most = given.integer_or(3, subject.len() as i64 + 1)?;
    let (pattern, anchored) = match pattern_of(shared, &whole)? {
        [b'^', rest @ ..] => (rest, true),
        pattern => (pattern, false),
    };
    let mut matcher = Matcher::new(&subject, pattern, shared.fuel.steps_left());
    let (mut out, mut at, mut count) = (Vec::new(), 0, 0);
    let mut fault = None;
    while count < most {
        match matcher.match_at(at, 0) {
            Ok(Some(end)) => {
                count += 1;
                let added = add_replacement(
                    (&mut out, shared.memory_max),
                    &mut matcher,
                    &subject,
                    &replacement,
                    (at, end),
                );
                if let Err(found) = added {
                    fault = Some(found);
                    break;
                }
                if end > at {
                    at = end;
                } else if at < subject.len() {
                    out.push(subject[at]);
                    at += 1;
                } else {
                    break;
                }
            }
            Ok(None) if at < subject.len() => {
                out.push(subject[at]);
                at += 1;
            }
            Ok(None) => break,
            Err(found) => {
                fault = Some(found);
                break;
            }
        }
        if anchored {
            break;
        }
    }
    shared.fuel.spend_steps(matcher.steps)?;
    shared.fuel.spend_bytes(out.len())?;
    if let Some(fault) = fault {
        return Err(fail(lua, shared, fault));
    }
    out.extend_from_slice(subject.get(at..).unwrap_or_default());
    Ok([Value::String(lua.create_string(out)?), Value::Integer(count)].into_iter().collect())
}

/// Appends the replacement for one match to `out`: `%1` to `%9` in it stand for captures and `%0` for the
/// whole match, which is from offset `start` to `end` of `subject`. An error if `out` would get longer than
/// `most` bytes, or if the replacement takes more steps than the script has left.
fn add_replacement(
    (out, most): (&mut Vec<u8>, usize),
    matcher: &mut Matcher<'_>,
    subject: &[u8],
    replacement: &[u8],
    (start, end): (usize, usize),
) -> Result<(), Fault> {
    matcher.count_bytes(replacement.len())?;
    let mut add = |bytes: &[u8]| {
        if bytes.len() > most.saturating_sub(out.len()) {
            return Err(Fault::TooLarge);
        }
        out.extend_from_slice(bytes);
        Ok(())
    };
    let mut bytes = replacement.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            add(&[byte])?;
            continue;
        }
        match bytes.next() {
            Some(b'0') => add(&subject[start..end])?,
            Some(digit) if digit.is_ascii_digit() => {
                match matcher.capture(usize::from(digit - b'1'), start, end)? {
                    Capture::Part(from, to) => add(&subject[from..to])?,
                    Capture::Position(at) => add(at.to_string().as_bytes())?,
                }
            }
            Some(other) => add(&[other])?,
            None => add(&[0])?,
        }
    }
    Ok(())
}

/// Carries out `string.rep(text, n)`: returns the text n times. Ends the script if the result would take too
/// much memory.
pub(super) fn rep(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    let given = Given::new(lua, arguments);
    let text = given.text(0)?;
    let count = i64::from(given.integer(1)? as i32).max(0) as usize;
    let text = text.as_bytes();
    let length = text.len().saturating_mul(count);
    if length > shared.memory_max {
        return Err(shared.fuel.end(Ending::Memory));
    }
    shared.fuel.spend_bytes(length)?;
    lua.create_string(text.repeat(if text.is_empty() { 0 } else { count }))
}

/// Carries out `string.char`: returns the text of the bytes that the arguments are. An error if one is no
/// number from 0 to 255.
pub(super) fn char(lua: &Lua, arguments: &MultiValue) -> Result<LuaString, Error> {
    let given = Given::new(lua, arguments);
    let byte = |index| {
        let byte = u8::try_from(given.integer(index)? as i32);
        byte.map_err(|_| bad_argument(lua, index + 1, "invalid value"))
    };
    let text: Vec<u8> = (0..given.len()).map(byte).collect::<Result<_, Error>>()?;
    lua.create_string(text)
}

/// Carries out `string.format` by Lua's own function (`native`), and returns its text or error. Charges the
/// length of all texts as effort (steps of work), because the function reads a number from each that it
/// writes as one.
pub(super) fn format(
    lua: &Lua,
    shared: &Shared,
    arguments: &MultiValue,
    native: &Function,
) -> Result<LuaString, Error> {
    let texts = arguments.iter().filter_map(Value::as_string);
    shared.fuel.spend_bytes(texts.map(|text| text.as_bytes().len()).sum())?;
    native
        .call(arguments.clone())
        .map_err(|error| if ending(&error).is_some() { error } else { relocated(lua, &error) })
}

/// Carries out `string.lower`: returns the text in the argument with its ASCII letters in lower case.
pub(super) fn lower(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    converted(lua, shared, arguments, <[u8]>::make_ascii_lowercase)
}

/// Carries out `string.upper`: returns the text in the argument with its ASCII letters in upper case.
pub(super) fn upper(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    converted(lua, shared, arguments, <[u8]>::make_ascii_uppercase)
}

/// Carries out `string.reverse`: returns the bytes of the text in the argument from the last to the first.
pub(super) fn reverse(lua: &Lua, shared: &Shared, arguments: &MultiValue) -> Result<LuaString, Error> {
    converted(lua, shared, arguments, <[u8]>::reverse)
}

/// Returns the first argument, a string, after `convert` has changed a copy of it. Charges its length as
/// effort (steps of work). An error if there is no such argument, or too little effort left.
fn converted(
    lua: &Lua,
    shared: &Shared,
    arguments: &MultiValue,
    convert: fn(&mut [u8]),
) -> Result<LuaString, Error> {
    let text = Given::new(lua, arguments).text(0)?;
    let mut text = text.as_bytes().to_vec();
    shared.fuel.spend_bytes(text.len())?;
    convert(&mut text);
    lua.create_string(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bench::Bench;
    use crate::store::limits::EngineLimits;

    #[test]
    fn a_replacement_is_bounded_while_it_is_made() {
        let subject = [b'a'; 1_000];
        for replacement in ["%0", "%1", "%2"] {
            let mut matcher = Matcher::new(&subject, b"(.*)()", 1_000_000);
            let end = matcher.match_at(0, 0).expect("it is well formed").expect("it matches");
            let mut out = Vec::new();
            let added = add_replacement(
                (&mut out, 10_000),
                &mut matcher,
                &subject,
                replacement.repeat(10_000).as_bytes(),
                (0, end),
            );
            assert_eq!(added, Err(Fault::TooLarge), "{replacement}");
            assert!(out.len() <= 10_000 && out.capacity() < 100_000, "{replacement}");
        }
    }

    #[test]
    fn replacements_that_add_nothing_take_effort() {
        let limits = EngineLimits { effort_max: 100_000, ..EngineLimits::with_memory(u64::MAX) };
        let mut bench = Bench::with(limits);
        let script = "return(#string.gsub(('a'):rep(1e4),'(x*)',('%1'):rep(1e3)))";
        let reply = bench.send(&format!("EVAL {script} 0"));
        assert!(reply.starts_with("-ERR the script would take more than 100000 steps"), "{reply}");
    }
}
