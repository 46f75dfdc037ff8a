//! The tables of flags in `docs/operating/configuration.md`, made from the flags' texts in `weir --help-all`.

use std::path::Path;
use std::{fs, io};

use clap::Arg;
use weir::config::Flags;

const BEGIN: &str = "<!-- flags: begin; written by weir-pages --flags docs/operating/configuration.md -->\n";
const END: &str = "<!-- flags: end -->\n";

/// For each heading of the help: the heading, the title of the documentation page that explains its flags,
/// and the link to that page or section.
const PAGES: [(&str, &str, &str); 8] = [
    ("Stores", "choose the stores", "#choose-the-stores"),
    ("Quotas", "tenants and quotas", "tenants-and-quotas.md"),
    ("Fleet", "one quota for a fleet", "fleet.md"),
    ("Overload", "overload", "overload.md"),
    ("Hot keys", "hot keys", "hot-keys.md"),
    ("TLS", "TLS", "tls.md"),
    ("HTTP", "HTTP", "http.md"),
    ("Limits", "bound memory and connections", "#bound-memory-and-connections"),
];

/// Replaces the tables of flags in a documentation page. An error if the page lacks the two marker lines
/// between which the tables stand, or cannot be read or written.
pub fn write(page: &Path) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let found = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = found else {
        return Err(io::Error::other(format!(
            "the lines '{}' and '{}' are expected",
            BEGIN.trim(),
            END.trim()
        )));
    };
    fs::write(page, format!("{before}{BEGIN}{}{END}{after}", tables()))
}

/// Returns one Markdown table of weir's flags for each heading of the help, in the order of the help.
fn tables() -> String {
    let command = Flags::with_rare_flags();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for flag in command.get_arguments() {
        if !headings.contains(&flag.get_help_heading()) {
            headings.push(flag.get_help_heading());
        }
    }
    let table = |heading: Option<&str>| {
        let name = heading.unwrap_or("Others");
        let page = PAGES.iter().find(|(of, ..)| *of == name);
        let page = page.map_or_else(String::new, |(_, title, link)| format!("See [{title}]({link}).\n\n"));
        let flags = command.get_arguments().filter(|flag| flag.get_help_heading() == heading);
        let rows: String = flags.filter_map(row).collect();
        format!("\n### {name}\n\n{page}| flag | default | meaning |\n|---|---|---|\n{rows}")
    };
    headings.into_iter().map(table).collect::<String>() + "\n"
}

/// Returns the Markdown table row of a flag (name, default, meaning); `None` for an argument without a long
/// name, and for `--help-all`.
fn row(flag: &Arg) -> Option<String> {
    let name = flag.get_long().filter(|name| *name != "help-all")?;
    let values = flag.get_value_names().filter(|_| flag.get_action().takes_values());
    let value = values.map_or_else(String::new, |names| format!(" {}", names[0]));
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let (meaning, told) = match help.strip_suffix(']').and_then(|help| help.split_once(" [default: ")) {
        Some((meaning, default)) => (meaning, Some(default)),
        None => (help.as_str(), None),
    };
    let given: Vec<_> = flag.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match told {
        Some(told) => in_code(told),
        None if given.is_empty() || !flag.get_action().takes_values() => "none".to_owned(),
        None => format!("`{}`", given.join(",")),
    };
    let choices: Vec<_> = flag.get_possible_values().iter().map(choice).collect();
    let choices = if choices.is_empty() || !flag.get_action().takes_values() {
        String::new()
    } else {
        format!(": {}", choices.join("; "))
    };
    Some(format!("| `--{name}{value}` | {default} | {}{choices} |\n", in_code(meaning)))
}

/// Returns a value that a flag may have, in Markdown, with its meaning if it has one.
fn choice(value: &clap::builder::PossibleValue) -> String {
    let meaning = value.get_help().map(|help| format!(" ({})", in_code(&help.to_string())));
    format!("`{}`{}", value.get_name(), meaning.unwrap_or_default())
}

/// Returns a text of the help as Markdown for a table cell: flags, addresses and names with underscores or
/// brackets become code, and `|` is escaped.
fn in_code(text: &str) -> String {
    let word = |word: &str| {
        let end = word.trim_end_matches([',', ';', ':', '.', ')']);
        let start = end.trim_start_matches('(');
        let is_code = start.starts_with("--") || start.contains("://") || start.contains(['[', '{', '_']);
        if is_code && !word.contains('`') {
            let (before, after) = (&end[..end.len() - start.len()], &word[end.len()..]);
            format!("{before}`{start}`{after}")
        } else {
            word.to_owned()
        }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
