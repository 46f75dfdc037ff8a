//! SORT and `SORT_RO`: the elements of a list, set or sorted set, ordered by themselves or by other keys.

use super::call::{Call, Command, Done, Effect, command};
use super::effort::{Effort, FIND, LOOK};
use super::events::Class;
use super::fields::Fields;
use super::items::{End, Items};
use super::keyspace::{Keyspace, Lifetime};
use super::numbers::{self, Digits, Spelled};
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

    /// Returns the patterns of GET, which say what SORT shows of each element; without GET, the element itself.
    fn shown(&self) -> &[&'a [u8]] {
        const ITSELF: &[&[u8]] = &[b"#"];
        if self.gets.is_empty() { ITSELF } else { &self.gets }
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
struct Element<'t, 'w> {
    text: &'t Text,
    weight: Weight<'w>,
}

impl Element<'_, '_> {
    /// Returns the number of bytes that a comparison with another element may have to read.
    fn compared_bytes(&self) -> usize {
        match &self.weight {
            Weight::Bytes(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.as_bytes().len()),
            // Elements of equal numbers alone are compared by their bytes.
            Weight::Number(_) => self.text.as_bytes().len().min(64),
            Weight::Itself => self.text.as_bytes().len(),
        }
    }
}

/// The value by which SORT orders an element.
enum Weight<'w> {
    Number(f64),
    /// The string at another key, or in a hash's field there, that BY names for the element; `None` if there
    /// is none.
    Bytes(Option<Spelled<'w>>),
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
    let key = call.at(1);
    call.keyspace.read(key);
    let value = call.keyspace.peek(key).map(|entry| &entry.value);
    let is_set = matches!(value, Some(Value::Set(_)));
    if options.keeps_order() && is_set && (options.target.is_some() || call.is_scripted) {
        // A set has no order of its own, but a result that is stored or that a script reads must not depend on chance.
        (options.by, options.by_bytes) = (None, true);
    }
    let length = value.map_or(0, Value::elements);
    let (start, end) = options.selected(length);
    let texts = match value {
        None => Vec::new(),
        Some(value) if options.keeps_order() && !is_set => in_order(call, value, &options, (start, end))?,
        Some(value) => all(call, value)?,
    };
    let wanted = if options.keeps_order() {
        let (start, end) = if is_set { (start, end) } else { (0, texts.len()) };
        texts[start..end].iter().collect()
    } else {
        ordered(call, &options, &texts)?.drain(start..end).collect::<Vec<_>>()
    };
    let looked_up = wanted.len().saturating_mul(options.gets.len());
    call.effort.spend(looked_up, FIND)?;
    match options.target {
        None => show(call, &options, &wanted),
        Some(index) => store(call, &options, &wanted, call.at(index)),
    }
}

/// Returns the elements of a list or sorted set at the positions from `start` up to, but not including,
/// `end`, in the collection's own order. With DESC, positions count from the end and the order is reversed.
/// An error for another type.
fn in_order(
    call: &Call<'_>,
    value: &Value,
    options: &Options<'_>,
    (start, end): (usize, usize),
) -> Result<Vec<Text>, Refusal> {
    let length = value.elements();
    let (start, end) = if options.descending { (length - end, length - start) } else { (start, end) };
    let mut texts = match value {
        Value::List(items) => copied(call, end - start, || items.range(start, end))?,
        Value::SortedSet(ranking) => {
            copied(call, end - start, || ranking.range(start, end).map(|scored| &scored.member))?
        }
        _ => return Err(Refusal::WrongType),
    };
    if options.descending {
        texts.reverse();
    }
    Ok(texts)
}

/// Returns copies of `count` elements. `elements` returns an iterator over them, which is the same at each
/// call: their sizes are summed up before they are copied. An error if they take more effort or memory than
/// is left.
fn copied<'t, I: Iterator<Item = &'t Text>>(
    call: &Call<'_>,
    count: usize,
    elements: impl Fn() -> I,
) -> Result<Vec<Text>, Refusal> {
    call.effort.spend(count, LOOK)?;
    let bytes = elements().map(Text::cost).sum();
    call.effort.spend_bytes(bytes)?;
    call.afford_meanwhile(bytes)?;
    Ok(elements().cloned().collect())
}

/// Returns a copy of all elements of a list, set or sorted set. An error for another type, or if they take more effort
/// or memory than is left.
fn all(call: &Call<'_>, value: &Value) -> Result<Vec<Text>, Refusal> {
    if !matches!(value, Value::List(_) | Value::Set(_) | Value::SortedSet(_)) {
        return Err(Refusal::WrongType);
    }
    call.effort.spend(value.elements(), LOOK)?;
    call.effort.spend_bytes(value.cost())?;
    call.afford_meanwhile(value.cost())?;
    let mut texts = Vec::with_capacity(value.elements());
    match value {
        Value::List(items) => texts.extend(items.iter().cloned()),
        Value::Set(members) => members.for_each(|member| texts.push(Text::new(member))),
        Value::SortedSet(ranking) => {
            texts.extend(ranking.range(0, ranking.len()).map(|scored| scored.member.clone()));
        }
        _ => {}
    }
    Ok(texts)
}

/// Returns the elements `texts` in the order that the options of SORT ask for. An error if that takes too
/// much effort, or if SORT orders by numbers and a value is none.
fn ordered<'t>(call: &Call<'_>, options: &Options<'_>, texts: &'t [Text]) -> Result<Vec<&'t Text>, Refusal> {
    let comparisons = usize::BITS - texts.len().leading_zeros();
    call.effort.spend(texts.len(), FIND + u64::from(comparisons))?;
    let weigh = |text| Ok(Element { text, weight: weight(call, options, text)? });
    let mut elements = texts.iter().map(weigh).collect::<Result<Vec<_>, Refusal>>()?;
    let bytes = elements.iter().map(Element::compared_bytes).fold(0, usize::saturating_add);
    call.effort.spend_bytes(bytes.saturating_mul(comparisons as usize))?;
    elements.sort_by(|left, right| {
        let order = compare(left, right);
        if options.descending { order.reverse() } else { order }
    });
    Ok(elements.into_iter().map(|element| element.text).collect())
}

fn weight<'w>(call: &'w Call<'_>, options: &Options<'_>, text: &'w Text) -> Result<Weight<'w>, Refusal> {
    let found = match options.by {
        None if options.by_bytes => return Ok(Weight::Itself),
        None => Some(Spelled::Bytes(text.as_bytes())),
        Some(pattern) => look_up(call.keyspace, call.effort, pattern, text)?,
    };
    if options.by_bytes {
        return Ok(Weight::Bytes(found));
    }
    let bytes = found.as_ref().map_or(&[][..], Spelled::as_bytes);
    call.effort.spend_bytes(bytes.len())?;
    let refusal = Refusal::Words("ERR One or more scores can't be converted into double");
    let number = numbers::lenient(bytes).filter(|number| !number.is_out_of_range);
    number.map(|number| Weight::Number(number.value)).ok_or(refusal)
}

fn compare(left: &Element<'_, '_>, right: &Element<'_, '_>) -> Ordering {
    let by_bytes = || left.text.as_bytes().cmp(right.text.as_bytes());
    match (&left.weight, &right.weight) {
        (Weight::Number(left), Weight::Number(right)) => {
            left.partial_cmp(right).expect("no weight is NaN").then_with(by_bytes)
        }
        (Weight::Bytes(left), Weight::Bytes(right)) => {
            left.as_ref().map(Spelled::as_bytes).cmp(&right.as_ref().map(Spelled::as_bytes))
        }
        _ => by_bytes(),
    }
}

/// Returns the string that a pattern of BY or GET names for an element: `#` is the element itself, `*` in the
/// name of a key stands for the element, and `->field` after the name selects a field of a hash. `None` if
/// the key or field does not exist or has another type, and for a pattern without `*`. An error if `effort`
/// does not suffice for the look-up.
fn look_up<'w>(
    keyspace: &'w Keyspace,
    effort: &Effort,
    pattern: &[u8],
    element: &'w Text,
) -> Result<Option<Spelled<'w>>, Refusal> {
    if pattern == b"#" {
        return Ok(Some(Spelled::Bytes(element.as_bytes())));
    }
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else { return Ok(None) };
    let (prefix, behind) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = behind.windows(2).position(|pair| pair == b"->").filter(|at| at + 2 < behind.len());
    let (postfix, field) = match arrow {
        Some(at) => (&behind[..at], Some(&behind[at + 2..])),
        None => (behind, None),
    };
    effort.spend_bytes(pattern.len() + element.as_bytes().len())?;
    let key = [prefix, element.as_bytes(), postfix].concat();
    let Some(entry) = keyspace.peek(&key) else { return Ok(None) };
    let Some(field) = field else {
        return Ok(match &entry.value {
            Value::Integer(integer) => Some(Spelled::Digits(Digits::new(*integer))),
            value => value.stored().map(Spelled::Bytes),
        });
    };
    effort.spend(1, FIND)?;
    let Some(fields) = Fields::within(&entry.value) else { return Ok(None) };
    let lives = fields.expiry_ms(field).is_none_or(|expires_ms| expires_ms >= keyspace.now_ms());
    Ok(fields.get(field).filter(|_| lives).map(|value| Spelled::Bytes(value.as_bytes())))
}

fn show(call: &mut Call<'_>, options: &Options<'_>, wanted: &[&Text]) -> Done {
    let protocol = call.protocol();
    call.out.array(wanted.len() * options.shown().len());
    for element in wanted {
        for pattern in options.shown() {
            match look_up(call.keyspace, call.effort, pattern, element)? {
                Some(found) => call.out.bulk(found.as_bytes()),
                None => call.out.null(protocol),
            }
            call.out.check()?;
        }
    }
    Ok(())
}

fn store(call: &mut Call<'_>, options: &Options<'_>, wanted: &[&Text], target: &[u8]) -> Done {
    let mut items = Items::default();
    for element in wanted {
        for pattern in options.shown() {
            let found = look_up(call.keyspace, call.effort, pattern, element)?;
            let bytes = found.as_ref().map_or(&[][..], Spelled::as_bytes);
            call.effort.spend_bytes(bytes.len())?;
            call.afford(items.bytes() + bytes.len())?;
            items.push(End::Right, Text::new(bytes));
        }
    }
    call.afford(items.bytes())?;
    items.settle_new(call.keyspace.hasher().shapes().list());
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
    use crate::store::limits::EngineLimits;

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

    #[test]
    fn weights_are_not_copied_and_cost_effort_by_their_length() {
        let limits = EngineLimits { effort_max: 20_000, ..EngineLimits::with_memory(4_000_000) };
        let mut bench = Bench::with(limits);
        bench.talk(&[
            (&format!("RPUSH l {}", "1 ".repeat(1_000).trim()), ":1000|"),
            (&format!("SET w1 {}1", "0".repeat(999_999)), "+OK|"),
            ("SET v1 1", "+OK|"),
            ("HSET h1 f 1", ":1|"),
        ]);
        let all = format!("*1000|{}", "$1|1|".repeat(1_000));
        for line in ["SORT_RO l BY v* ALPHA", "SORT_RO l BY v*", "SORT_RO l BY h*->f", "SORT_RO l"] {
            assert_eq!(bench.send(line), all, "{line}");
        }
        for line in ["SORT l BY w* ALPHA", "SORT l BY w*"] {
            assert!(
                bench.send(line).starts_with("-ERR the request would take more than 20000 steps"),
                "{line}"
            );
        }
        let long = format!("SORT l BY {}*", "x".repeat(100_000));
        assert!(bench.send(&long).starts_with("-ERR the request would take more"));
    }

    #[test]
    fn a_long_list_costs_effort_by_its_length() {
        let limits = EngineLimits { effort_max: 10_000, ..EngineLimits::with_memory(u64::MAX) };
        let mut bench = Bench::with(limits);
        bench.talk(&[(&format!("RPUSH l {} {}", "a".repeat(3_000_000), "b".repeat(3_000_000)), ":2|")]);
        assert!(bench.send("SORT l BY nosort").starts_with("-ERR the request would take more"));
        assert!(bench.send("SORT l ALPHA LIMIT 0 0").starts_with("-ERR the request would take more"));
    }

    #[test]
    fn elements_beyond_a_limit_cost_nothing_where_their_order_stays() {
        let limits = EngineLimits { effort_max: 20_000, ..EngineLimits::with_memory(u64::MAX) };
        let mut bench = Bench::with(limits);
        for number in 0..30 {
            let members =
                (0..1_000).map(|at| format!(" {} m{at}", number * 1_000 + at)).collect::<Vec<_>>().concat();
            bench.send(&format!("RPUSH l{}", members.replace(" m", " ")));
            bench.send(&format!("ZADD z{}", members.replace(" m", &format!(" m{number}-"))));
        }
        assert!(bench.send("SORT l BY nosort").starts_with("-ERR the request would take more"));
        bench.talk(&[
            ("SORT l BY nosort LIMIT 2 2", "*2|$1|1|$1|1|"),
            ("SORT l BY nosort DESC LIMIT 0 3", "*3|$3|999|$5|29999|$3|998|"),
            ("SORT z BY nosort LIMIT 15000 2", "*2|$5|m15-0|$5|m15-1|"),
            ("SORT z BY nosort DESC LIMIT 29998 10", "*2|$4|m0-1|$4|m0-0|"),
            ("SORT z BY nosort DESC LIMIT 1 1 STORE d", ":1|"),
            ("LRANGE d 0 -1", "*1|$7|m29-998|"),
            ("SORT z BY nosort LIMIT 30000 5", "*0|"),
            ("SORT z BY nosort LIMIT 5 0", "*0|"),
            ("SORT z BY nosort LIMIT -5 1", "*1|$4|m0-0|"),
        ]);
        assert!(bench.engine.effort() < 100, "{}", bench.engine.effort());
    }
}
