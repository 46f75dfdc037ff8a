//! SORT and `SORT_RO`: the elements of a list, set or sorted set, ordered by themselves or by other keys.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{FIND, LOOK};
use super::events::Class;
use super::fields::Fields;
use super::items::{End, Items};
use super::keyspace::Lifetime;
use super::numbers::{self, Digits};
use super::refusal::Refusal;
use super::text::Text;
use super::value::{Collection as _, Value};
use std::cmp::Ordering;

pub(super) const COMMANDS: &[Command] =
    &[command("sort", -2, Effect::Grow, sort), command("sort_ro", -2, Effect::Read, sort_ro)];

/// The options of one SORT or `SORT_RO` request.
#[derive(Default)]
struct Options<'a> {
    by: Option<&'a [u8]>,
    gets: Vec<&'a [u8]>,
    limit: Option<(i64, i64)>,
    descending: bool,
    by_bytes: bool,
    /// The position of the argument that names the key for the result (STORE); `None` without STORE.
    target: Option<usize>,
}

impl<'a> Options<'a> {
    fn parse(call: &Call<'a>, may_store: bool) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut index = 2;
        while index < call.count() {
            let left = call.count() - index - 1;
            if call.is(index, "asc") {
                options.descending = false;
            } else if call.is(index, "desc") {
                options.descending = true;
            } else if call.is(index, "alpha") {
                options.by_bytes = true;
            } else if call.is(index, "limit") && left >= 2 {
                options.limit = Some((call.integer_at(index + 1)?, call.integer_at(index + 2)?));
                index += 2;
            } else if may_store && call.is(index, "store") && left >= 1 {
                index += 1;
                options.target = Some(index);
            } else if call.is(index, "by") && left >= 1 {
                index += 1;
                options.by = Some(call.at(index));
            } else if call.is(index, "get") && left >= 1 {
                index += 1;
                options.gets.push(call.at(index));
            } else {
                return Err(Refusal::Syntax);
            }
            index += 1;
        }
        Ok(options)
    }

    /// True if SORT leaves the elements in the order of the collection: the pattern of BY contains no `*`, so
    /// it names the same key for every element.
    fn keeps_order(&self) -> bool {
        self.by.is_some_and(|pattern| !pattern.contains(&b'*'))
    }

    /// Returns the positions that the option LIMIT of SORT selects from `length` elements: the first, and one
    /// after the last.
    fn selected(&self, length: usize) -> (usize, usize) {
        let (start, count) = self.limit.unwrap_or((0, -1));
        let start = usize::try_from(start).unwrap_or(0).min(length);
        let end = usize::try_from(count).map_or(length, |count| start.saturating_add(count).min(length));
        (start, end)
    }
}

/// An element to be sorted, with the value that decides its place.
struct Element {
    text: Text,
    weight: Weight,
}

/// The value by which SORT orders an element.
enum Weight {
    Number(f64),
    /// The string at another key, or in a hash's field there, that BY names for the element; `None` if there
    /// is none.
    Bytes(Option<Text>),
    /// The element is ordered by its own bytes.
    Itself,
}

fn sort(call: &mut Call<'_>) -> Done {
    carry_out(call, true)
}

fn sort_ro(call: &mut Call<'_>) -> Done {
    carry_out(call, false)
}

fn carry_out(call: &mut Call<'_>, may_store: bool) -> Done {
    let mut options = Options::parse(call, may_store)?;
    let (mut texts, unordered) = elements(call, options.descending && options.keeps_order())?;
    if options.keeps_order() && unordered && (options.target.is_some() || call.is_scripted) {
        // A set has no order of its own, but a result that is stored or that a script reads must not depend on chance.
        (options.by, options.by_bytes) = (None, true);
    }
    let (start, end) = options.selected(texts.len());
    let wanted = if options.keeps_order() {
        texts.drain(start..end).collect()
    } else {
        ordered(call, &options, texts)?.drain(start..end).collect::<Vec<_>>()
    };
    let looked_up = wanted.len().saturating_mul(options.gets.len());
    call.effort.spend(looked_up, FIND)?;
    match options.target {
        None => show(call, &options, &wanted),
        Some(index) => store(call, &options, &wanted, call.at(index)),
    }
}

/// Returns the elements of the list, set or sorted set at the key in argument 1 (none if there is no such
/// key), in reverse if `reversed`, and true if it is a set, whose elements have no order and are not
/// reversed. An error if the value is of another type.
fn elements(call: &mut Call<'_>, reversed: bool) -> Result<(Vec<Text>, bool), Refusal> {
    let Some(value) = call.keyspace.read(call.arguments.at(1)) else { return Ok((Vec::new(), false)) };
    if !matches!(value, Value::List(_) | Value::Set(_) | Value::SortedSet(_)) {
        return Err(Refusal::WrongType);
    }
    call.effort.spend(value.elements(), LOOK)?;
    let mut texts = Vec::with_capacity(value.elements());
    let mut unordered = false;
    match value {
        Value::List(items) => texts.extend(items.iter().cloned()),
        Value::Set(members) => {
            unordered = true;
            members.for_each(|member| texts.push(Text::new(member)));
        }
        Value::SortedSet(ranking) => {
            texts.extend(ranking.range(0, ranking.len()).map(|scored| scored.member.clone()));
        }
        _ => {}
    }
    if reversed && !unordered {
        texts.reverse();
    }
    Ok((texts, unordered))
}

fn ordered(call: &Call<'_>, options: &Options<'_>, texts: Vec<Text>) -> Result<Vec<Text>, Refusal> {
    let comparisons = usize::BITS - texts.len().leading_zeros();
    call.effort.spend(texts.len(), FIND + u64::from(comparisons))?;
    let weigh = |text: Text| Ok(Element { weight: weight(call, options, &text)?, text });
    let mut elements = texts.into_iter().map(weigh).collect::<Result<Vec<Element>, Refusal>>()?;
    elements.sort_by(|left, right| {
        let order = compare(left, right);
        if options.descending { order.reverse() } else { order }
    });
    Ok(elements.into_iter().map(|element| element.text).collect())
}

fn weight(call: &Call<'_>, options: &Options<'_>, text: &Text) -> Result<Weight, Refusal> {
    if options.by_bytes {
        return Ok(match options.by {
            None => Weight::Itself,
            Some(pattern) => Weight::Bytes(looked_up(call, pattern, text)),
        });
    }
    let number = match options.by {
        None => number(text.as_bytes()),
        Some(pattern) => looked_up(call, pattern, text).map_or(Some(0.0), |value| number(value.as_bytes())),
    };
    number.map(Weight::Number).ok_or(Refusal::Words("ERR One or more scores can't be converted into double"))
}

/// Parses a number as C's `strtod` does: an empty text is 0, and leading spaces are allowed. `None` if the
/// text is no number.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii_start();
    if text.is_empty() { Some(0.0) } else { numbers::float(text) }
}

fn compare(left: &Element, right: &Element) -> Ordering {
    let by_bytes = || left.text.as_bytes().cmp(right.text.as_bytes());
    match (&left.weight, &right.weight) {
        (Weight::Number(left), Weight::Number(right)) => {
            left.partial_cmp(right).expect("no weight is NaN").then_with(by_bytes)
        }
        (Weight::Bytes(left), Weight::Bytes(right)) => {
            left.as_ref().map(Text::as_bytes).cmp(&right.as_ref().map(Text::as_bytes))
        }
        _ => by_bytes(),
    }
}

/// Returns the string that a pattern of BY or GET names for an element: `#` is the element itself, `*` in the
/// name of a key stands for the element, and `->field` after the name selects a field of a hash. `None` if
/// the key or field does not exist.
fn looked_up(call: &Call<'_>, pattern: &[u8], element: &Text) -> Option<Text> {
    if pattern == b"#" {
        return Some(element.clone());
    }
    let star = pattern.iter().position(|byte| *byte == b'*')?;
    let (prefix, behind) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = behind.windows(2).position(|pair| pair == b"->").filter(|at| at + 2 < behind.len());
    let (postfix, field) = match arrow {
        Some(at) => (&behind[..at], Some(&behind[at + 2..])),
        None => (behind, None),
    };
    let key = [prefix, element.as_bytes(), postfix].concat();
    call.effort.charge_bytes(key.len());
    let value = &call.keyspace.peek(&key)?.value;
    match field {
        Some(field) => {
            let fields = Fields::within(value)?;
            let lives = fields.expiry_ms(field).is_none_or(|expires_ms| expires_ms >= call.keyspace.now_ms());
            fields.get(field).filter(|_| lives).cloned()
        }
        None => value.bytes(&mut Digits::new(0)).map(Text::new),
    }
}

fn show(call: &mut Call<'_>, options: &Options<'_>, wanted: &[Text]) -> Done {
    let protocol = call.protocol();
    call.out.array(wanted.len() * options.gets.len().max(1));
    for element in wanted {
        if options.gets.is_empty() {
            call.out.bulk(element.as_bytes());
        }
        for pattern in &options.gets {
            match looked_up(call, pattern, element) {
                Some(value) => call.out.bulk(value.as_bytes()),
                None => call.out.null(protocol),
            }
            call.out.check()?;
        }
    }
    Ok(())
}

fn store(call: &mut Call<'_>, options: &Options<'_>, wanted: &[Text], target: &[u8]) -> Done {
    let mut items = Items::default();
    for element in wanted {
        if options.gets.is_empty() {
            items.push(End::Right, element.clone());
        }
        for pattern in &options.gets {
            let value = looked_up(call, pattern, element);
            items.push(End::Right, value.unwrap_or_else(|| Text::new(b"")));
            call.afford(items.bytes())?;
        }
    }
    call.afford(items.bytes())?;
    let count = items.len();
    if count == 0 {
        call.remove_key(target);
    } else {
        call.keyspace.set(target, Value::List(Box::new(items)), Lifetime::Forever);
        call.announce(Class::List, "sortstore", target);
    }
    call.number(count)
}

#[cfg(test)]
mod tests {
    use crate::store::bench::Bench;

    #[test]
    fn elements_are_ordered_by_themselves_or_by_other_keys() {
        Bench::new().talk(&[
            ("RPUSH l 3 1 2", ":3|"),
            ("SORT l", "*3|$1|1|$1|2|$1|3|"),
            ("SORT l DESC LIMIT 1 5", "*2|$1|2|$1|1|"),
            ("MSET w1 30 w2 20 w3 10 d1 one d3 three", "+OK|"),
            ("SORT l BY w* GET d* GET #", "*6|$5|three|$1|3|$-1|$1|2|$3|one|$1|1|"),
            ("SORT l BY nosort", "*3|$1|3|$1|1|$1|2|"),
            ("SORT l BY nosort DESC LIMIT 0 2", "*2|$1|2|$1|1|"),
            ("HSET o1 f b", ":1|"),
            ("HSET o2 f a", ":1|"),
            ("SORT l BY o*->f ALPHA GET o*->f", "*3|$-1|$1|a|$1|b|"),
            ("SORT l GET d* STORE s", ":3|"),
            ("LRANGE s 0 -1", "*3|$3|one|$0||$5|three|"),
            ("SORT s", "-ERR One or more scores can't be converted into double|"),
            ("SORT s ALPHA", "*3|$0||$3|one|$5|three|"),
            ("SORT_RO l STORE s", "-ERR syntax error|"),
            ("SORT nothing STORE s", ":0|"),
            ("EXISTS s", ":0|"),
            ("ZADD z 1 b 2 a", ":2|"),
            ("SORT z BY nosort DESC", "*2|$1|a|$1|b|"),
            ("SORT w1", "-WRONGTYPE Operation against a key holding the wrong kind of value|"),
        ]);
    }
}
