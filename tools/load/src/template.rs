//! Commands with placeholders in braces: `SET key:{zipf:100000} {value:64}`. The constant parts are encoded
//! once.

use super::keys::Source;
use weir::protocol::command::{self, Effect};
use weir::protocol::encode;
use weir::values::Random;
use weir_client::Repeats;

/// The random choices for one request: the same draw gives the same bytes, so a retry repeats the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// The seed of the request's random numbers.
    pub seed: u64,
    /// The number of the request within its group of clients, for `{seq}`.
    pub sequence: u64,
}

#[derive(Clone, Debug)]
enum Part {
    Text(Vec<u8>),
    Hole(Source),
}

#[derive(Clone, Debug)]
enum Piece {
    /// Bytes of a request that are encoded already.
    Fixed(Vec<u8>),
    /// A word of a command with placeholders, which is encoded for each request.
    Word(Vec<Part>),
}

/// A command whose words may have placeholders in braces, which differ from request to request.
#[derive(Clone, Debug)]
pub struct Template {
    text: String,
    pieces: Vec<Piece>,
    repeats: Repeats,
}

impl Template {
    /// Parses a command with placeholders in braces. Words are separated by spaces; a word that contains
    /// spaces stands in single or double quotes. The error is a text for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words = words(text)?;
        if words.is_empty() {
            return Err("a command such as GET key:{zipf:100000} is expected, and there is none".to_owned());
        }
        // A container (`OBJECT ENCODING`) has no effect by its first word, so it counts as a command that may
        // write.
        let only_reads = command::find(words[0].as_bytes()).is_some_and(|found| found.effect == Effect::Read);
        let repeats = if only_reads { Repeats::Harmless } else { Repeats::Harmful };
        let mut fixed = Vec::new();
        encode::array(&mut fixed, words.len());
        let mut pieces = Vec::new();
        for word in words {
            let parts = parts(&word)?;
            match parts.as_slice() {
                [] => encode::bulk(&mut fixed, b""),
                [Part::Text(text)] => encode::bulk(&mut fixed, text),
                _ => {
                    pieces.push(Piece::Fixed(std::mem::take(&mut fixed)));
                    pieces.push(Piece::Word(parts));
                }
            }
        }
        if !fixed.is_empty() {
            pieces.push(Piece::Fixed(fixed));
        }
        Ok(Self { text: text.to_owned(), pieces, repeats })
    }

    /// Returns the command as the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn write(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>, sequence: u64, random: &mut Random) {
        for piece in &self.pieces {
            match piece {
                Piece::Fixed(bytes) => out.extend_from_slice(bytes),
                Piece::Word(parts) => {
                    scratch.clear();
                    for part in parts {
                        match part {
                            Part::Text(text) => scratch.extend_from_slice(text),
                            Part::Hole(source) => source.write(scratch, sequence, random),
                        }
                    }
                    encode::bulk(out, scratch);
                }
            }
        }
    }
}

impl std::str::FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

/// Splits a command into words at spaces outside quotes. The error is a text for the user.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in text.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(open) = quote {
        return Err(format!("a quote {open} is opened and not closed in: {text}"));
    }
    words.extend(word);
    Ok(words)
}

/// Splits a word of a command at its placeholders in braces. `{{` and `}}` stand for a plain brace (of a
/// hash tag, say). The error is a text for the user.
fn parts(word: &str) -> Result<Vec<Part>, String> {
    let mut parts: Vec<Part> = Vec::new();
    let mut rest = word;
    while !rest.is_empty() {
        let (text, after) = if let Some(after) = rest.strip_prefix("{{") {
            (b"{".to_vec(), after)
        } else if let Some(after) = rest.strip_prefix("}}") {
            (b"}".to_vec(), after)
        } else if let Some(inside) = rest.strip_prefix('{') {
            let (hole, after) = inside.split_once('}').ok_or_else(|| {
                format!("a brace is opened and not closed in: {word} (write {{{{ for a brace)")
            })?;
            rest = after;
            let source = Source::parse(hole)?;
            let Some(constant) = source.constant() else {
                parts.push(Part::Hole(source));
                continue;
            };
            (constant, after)
        } else {
            let end = rest.find(['{', '}']).unwrap_or(rest.len()).max(1);
            (rest.as_bytes()[..end].to_vec(), &rest[end..])
        };
        rest = after;
        match parts.last_mut() {
            Some(Part::Text(before)) => before.extend(text),
            _ => parts.push(Part::Text(text)),
        }
    }
    Ok(parts)
}

/// Several commands, of which one is chosen at random for each request, by their weights.
#[derive(Clone, Debug)]
pub struct Mix {
    templates: Vec<Template>,
    /// For each command, the sum of the weights of the commands up to and including it; a random number below
    /// the last sum chooses the first command whose sum is greater.
    reaches: Vec<u64>,
}

impl Mix {
    /// Creates a mix of one command only.
    pub fn single(template: Template) -> Self {
        Self { templates: vec![template], reaches: vec![1] }
    }

    /// Creates a mix of at least one command, each with its weight of at least 1.
    pub fn weighted(commands: Vec<(u32, Template)>) -> Self {
        debug_assert!(!commands.is_empty());
        let mut reach = 0;
        let (reaches, templates) = commands
            .into_iter()
            .map(|(weight, template)| {
                reach += u64::from(weight);
                (reach, template)
            })
            .unzip();
        Self { templates, reaches }
    }

    /// Returns the texts of all commands of the mix, as the user wrote them.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.templates.iter().map(Template::text)
    }

    /// Appends to `out` the encoded request that a draw (its random choices) stands for. `scratch` is a
    /// buffer, empty or not, that calls share.
    pub fn write(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>, draw: Draw) {
        let (template, mut random) = self.choose(draw);
        template.write(out, scratch, draw.sequence, &mut random);
    }

    /// Returns whether the request that a draw (its random choices) stands for may be carried out twice
    /// without harm.
    pub fn repeats(&self, draw: Draw) -> Repeats {
        self.choose(draw).0.repeats
    }

    /// Returns the command that a draw (the random choices of one request) chooses, and the generator of the
    /// random numbers for its placeholders.
    fn choose(&self, draw: Draw) -> (&Template, Random) {
        let mut random = Random::new(draw.seed);
        let template = if self.templates.len() == 1 {
            &self.templates[0]
        } else {
            let place = random.below(*self.reaches.last().expect("a mix has commands"));
            &self.templates[self.reaches.partition_point(|reach| *reach <= place)]
        };
        (template, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(mix: &Mix, draw: Draw) -> String {
        let mut out = Vec::new();
        mix.write(&mut out, &mut Vec::new(), draw);
        String::from_utf8(out).expect("text")
    }

    fn single(text: &str) -> Mix {
        Mix::single(Template::parse(text).expect(text))
    }

    #[test]
    fn commands_are_encoded() {
        for (text, bytes) in [
            ("PING", "*1\r\n$4\r\nPING\r\n"),
            ("  GET   a ", "*2\r\n$3\r\nGET\r\n$1\r\na\r\n"),
            ("SET 'a b' \"\"", "*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$0\r\n\r\n"),
            ("SET k{seq} {value:3}", "*3\r\n$3\r\nSET\r\n$2\r\nk7\r\n$3\r\nxxx\r\n"),
            ("ZADD z {seq} m{seq}", "*4\r\n$4\r\nZADD\r\n$1\r\nz\r\n$1\r\n7\r\n$2\r\nm7\r\n"),
            ("GET {{tag}}:{viral}", "*2\r\n$3\r\nGET\r\n$11\r\n{tag}:viral\r\n"),
        ] {
            assert_eq!(written(&single(text), Draw { seed: 1, sequence: 7 }), bytes, "{text}");
        }
    }

    #[test]
    fn the_same_draw_is_the_same_request() {
        let mix = single("SET key:{zipf:1000} {rand:20}");
        let (one, other) = (Draw { seed: 1, sequence: 0 }, Draw { seed: 2, sequence: 0 });
        assert_eq!(written(&mix, one), written(&mix, one));
        assert_ne!(written(&mix, one), written(&mix, other));
    }

    #[test]
    fn what_only_reads_may_be_repeated() {
        for (text, repeats) in [
            ("GET {seq}", Repeats::Harmless),
            ("zrange z 0 -1", Repeats::Harmless),
            ("SET a b", Repeats::Harmful),
            ("EVAL 'return 1' 0", Repeats::Harmful),
            ("FLUSHALL", Repeats::Harmful),
            ("NOSUCH a", Repeats::Harmful),
        ] {
            assert_eq!(single(text).repeats(Draw::default()), repeats, "{text}");
        }
    }

    #[test]
    fn a_mix_keeps_its_weights() {
        let template = |text| Template::parse(text).expect("a template");
        let mix = Mix::weighted(vec![(90, template("GET a")), (10, template("SET a b"))]);
        let mut seeds = Random::new(1);
        let sets = (0..10_000)
            .filter(|_| written(&mix, Draw { seed: seeds.bits(), sequence: 0 }).contains("SET"))
            .count();
        assert!(sets.abs_diff(1_000) < 150, "{sets}");
    }

    #[test]
    fn complaints() {
        for (text, complaint) in [
            ("", "there is none"),
            ("GET 'a", "a quote ' is opened and not closed"),
            ("GET a{zipf:5", "a brace is opened and not closed"),
            ("GET a{zip:5}", "{zip:5} is not known"),
        ] {
            let told = Template::parse(text).expect_err(text);
            assert!(told.contains(complaint), "{told}");
        }
    }
}
