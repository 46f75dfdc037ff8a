//! The reports: terminal, JSON, `HdrHistogram`'s two formats, one HTML page, and two runs beside each other.

mod compare;
pub mod hgrm;
pub mod hlog;
pub mod html;
pub mod json;
pub mod plot;
pub mod terminal;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::flags::{CompareFlags, LoadFlags};
use super::results::Results;

/// Names of the counts in the JSON report: requests that were offered (due by the schedule) and sent, then
/// requests by outcome.
const COUNTS: [&str; 10] = [
    "offered",
    "sent",
    "served",
    "throttled",
    "overloaded",
    "deadline",
    "unavailable",
    "errors",
    "timeouts",
    "refused_by_client",
];

/// Checks that the folders of `--json`, `--html` and `--hlog` exist, and that `--hgrm` is or can become a folder,
/// so that a mistake shows before the run rather than after it. The error is a text for the user.
pub fn check_writable(flags: &LoadFlags) -> Result<(), String> {
    // The folder, and those above it, are made when the reports are written.
    if let Some(path) = &flags.hgrm
        && let Some(there) = path.ancestors().find(|folder| folder.exists())
        && !there.is_dir()
    {
        return Err(format!("--hgrm {}: {} is no folder", path.display(), there.display()));
    }
    for (flag, path) in [("--json", &flags.json), ("--html", &flags.html), ("--hlog", &flags.hlog)] {
        let folder = path.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
        if let (Some(path), Some(folder)) = (path, folder)
            && !folder.is_dir()
        {
            return Err(format!("{flag} {}: there is no folder {}", path.display(), folder.display()));
        }
        if let Some(path) = path
            && path.is_dir()
        {
            return Err(format!("{flag} {}: a file is expected, and this is a folder", path.display()));
        }
    }
    Ok(())
}

/// Writes every report that the flags name a file for, also if one of them cannot be written. `compared` is the
/// JSON report of an earlier run to draw into the HTML page, if any. The error is a text for the user that
/// names each file that could not be written.
pub fn write(
    flags: &LoadFlags,
    results: &Results,
    compared: Option<&serde_json::Value>,
) -> Result<(), String> {
    let own = json::report(results);
    let mut written = Vec::new();
    if let Some(path) = &flags.json {
        written.push(save(path, &format!("{own:#}\n")));
    }
    if let Some(path) = &flags.html {
        written.push(save(path, &html::page(&own, compared)));
    }
    if let Some(path) = &flags.hlog {
        let start = results.summary.as_ref().map_or(0, |summary| summary.start_unix_ms);
        written.push(save(path, &hlog::log(&results.log, start)));
    }
    if let Some(folder) = &flags.hgrm {
        written.push(save_distributions(folder, results));
    }
    let problems: Vec<String> = written.into_iter().filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

fn save_distributions(folder: &Path, results: &Results) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names = HashSet::new();
    for group in &results.groups {
        let name = file_name(&group.name, &mut names);
        save(&folder.join(format!("{name}.hgrm")), &hgrm::distribution(&group.total.served))?;
    }
    Ok(())
}

/// Compares two earlier runs: returns the table for the terminal, and writes the HTML page if it was asked
/// for. The error is a text for the user.
pub fn compare(flags: &CompareFlags) -> Result<String, String> {
    let (before, after) = (json::read(&flags.before)?, json::read(&flags.after)?);
    if let Some(path) = &flags.html {
        save(path, &html::page(&after, Some(&before)))?;
    }
    Ok(compare::text(&before, &after))
}

/// Returns a file's name for a group of clients: its own name, in which a hyphen stands for each character that is
/// neither letter nor digit, and with a number behind it if another group (in `taken`) has that name.
fn file_name(group: &str, taken: &mut HashSet<String>) -> String {
    let plain: String =
        group.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
    let numbered = (2..).map(|number| format!("{plain}-{number}"));
    let name = std::iter::once(plain.clone()).chain(numbered).find(|name| !taken.contains(name));
    let name = name.expect("some number is free");
    taken.insert(name.clone());
    name
}

fn save(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_file_of_its_own() {
        let mut taken = HashSet::new();
        let names = ["a b", "a-b", "a/b", "c"].map(|group| file_name(group, &mut taken));
        assert_eq!(names, ["a-b", "a-b-2", "a-b-3", "c"]);
    }
}
