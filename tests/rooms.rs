//! Checks the dependencies between the rooms (top-level modules) of `src/`, between the tools, and between
//! the rooms of `src/shard`. A new dependency is a new entry in a table here, and deserves a discussion
//! first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room (top-level module) of `src/`, and the other rooms that its files may name.
const ROOMS: &[(&str, &[&str])] = &[
    ("values", &[]),
    ("config", &["values"]),
    ("protocol", &["values"]),
    ("routing", &["values", "protocol"]),
    ("policy", &["values"]),
    ("store", &["values", "protocol", "routing"]),
    ("shard", &["values", "config", "protocol", "routing", "policy"]),
    ("control", &["values", "config", "protocol", "routing", "policy", "shard", "store"]),
    ("runtime", &["values", "config", "protocol", "routing", "policy", "shard", "control", "store"]),
];

/// Files of `tools/`, by the beginning of their paths, and the rooms (top-level modules of `src/`) and tools that they
/// may name. The first row that fits a file applies.
const TOOLS: &[(&str, &[&str])] = &[
    ("calibrate/src/calibration/", &["values", "protocol", "policy"]),
    ("calibrate/src/", &["values", "protocol", "runtime"]),
    ("client/src/", &["values", "protocol"]),
    ("floor/src/", &[]),
    ("history/src/", &["values", "protocol", "routing", "runtime", "load"]),
    ("load/src/bin/", &["values", "config", "load"]),
    ("load/src/generator.rs", &["runtime"]),
    ("load/src/thread.rs", &["values", "protocol", "runtime"]),
    ("load/src/", &["values", "protocol", "client"]),
    ("pages/src/", &["config"]),
    ("simulate/src/main.rs", &["values", "simulate"]),
    ("simulate/src/", &["values", "config", "protocol", "routing", "policy", "shard", "control", "store"]),
    ("storage/src/main.rs", &["config", "store", "runtime"]),
    ("storage/src/script_file.rs", &["config"]),
    ("storage/src/", &["values", "protocol", "routing", "store"]),
];

/// The rooms (modules) of `src/shard`, and the other ones that their files may name. Only `pipeline` may name all.
const STAGES: &[(&str, &[&str])] = &[
    ("admission", &[]),
    ("breaker", &[]),
    ("clients", &["admission"]),
    ("cluster", &[]),
    ("hot_keys", &[]),
    ("links", &[]),
    ("monitors", &[]),
    ("overload", &[]),
    ("peers", &[]),
    ("private", &["admission"]),
    ("shared_channels", &[]),
    ("upstream", &["breaker", "cluster", "links", "overload"]),
];

/// The only files that contain `unsafe`.
const UNSAFE: &[&str] = &[
    "runtime/ring.rs",
    "runtime/park.rs",
    "runtime/listen.rs",
    "runtime/allocator.rs",
    "tools/floor/src/ring.rs",
];
/// The only file that reads a clock.
const CLOCK: &[&str] = &["runtime/clock.rs"];

#[test]
fn rooms_know_only_whom_they_may_know() {
    let mut strange = Vec::new();
    for file in sources().iter().filter(|file| !file.path.starts_with("tools/")) {
        let name = file.room();
        let Some((_, allowed)) = ROOMS.iter().find(|(room, _)| *room == name) else {
            assert!(matches!(name, "main.rs" | "lib.rs"), "{name} is in no row of the table");
            continue;
        };
        for known in named_rooms(&file.text, "crate::") {
            let is_room = ROOMS.iter().any(|(room, _)| *room == known);
            if is_room && known != name && !allowed.contains(&known.as_str()) {
                strange.push(format!("{} names {known}", file.path));
            }
        }
    }
    assert!(strange.is_empty(), "{strange:#?}");
}

#[test]
fn tools_know_only_whom_they_may_know() {
    let mut strange = Vec::new();
    let mut looked_at = BTreeSet::new();
    for file in &sources() {
        let Some(path) = file.path.strip_prefix("tools/") else { continue };
        let row = TOOLS.iter().find(|(start, _)| path.starts_with(start));
        let Some((start, allowed)) = row else { panic!("{} is in no row of the table", file.path) };
        looked_at.insert(start);
        for known in named_rooms(&file.text, "weir::").into_iter().chain(named_tools(&file.text)) {
            if !allowed.contains(&known.as_str()) {
                strange.push(format!("{} names {known}", file.path));
            }
        }
    }
    assert!(strange.is_empty(), "{strange:#?}");
    assert_eq!(looked_at.len(), TOOLS.len(), "each row has files: {looked_at:?}");
}

#[test]
fn policies_never_name_each_other() {
    let policies: Vec<Source> = sources().into_iter().filter(|file| file.room() == "policy").collect();
    for file in policies.iter().filter(|file| !file.path.ends_with("/mod.rs")) {
        for other in policies.iter().filter(|other| other.path != file.path) {
            let other =
                Path::new(&other.path).file_stem().and_then(|stem| stem.to_str()).expect("a file of a room");
            let named = ["super::", "crate::policy::"]
                .iter()
                .any(|from| file.text.contains(&format!("{from}{other}")));
            assert!(!named, "{} names {other}", file.path);
        }
    }
}

#[test]
fn stages_know_only_whom_they_may_know() {
    let sources = sources();
    let rooms: Vec<&str> = STAGES.iter().map(|(stage, _)| *stage).chain(["pipeline"]).collect();
    for (stage, allowed) in STAGES {
        let is_stranger = |room: &&&str| **room != *stage && !allowed.contains(*room);
        let strangers: Vec<&&str> = rooms.iter().filter(is_stranger).collect();
        let files = sources.iter().filter(|file| file.path.starts_with(&format!("shard/{stage}/")));
        let mut looked_at = 0;
        for file in files {
            looked_at += 1;
            for stranger in &strangers {
                let named = ["shard", "super"].iter().any(|from| {
                    let name = format!("{from}::{stranger}");
                    file.text.match_indices(&name).any(|(at, _)| {
                        let next = file.text[at + name.len()..].chars().next();
                        !next.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
                    })
                });
                assert!(!named, "{} names {stranger}", file.path);
            }
        }
        assert!(looked_at > 0, "{stage} has files");
    }
}

/// Checks for cycles among the files of each room of `src/shard`, and among the rooms and files of
/// `src/shard` itself.
#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let sources = sources();
    let mut rooms: BTreeMap<&str, BTreeMap<&str, BTreeSet<String>>> = BTreeMap::new();
    for file in sources.iter().filter(|file| !file.path.contains("tests")) {
        let own = file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let Some(path) = file.path.strip_prefix("shard/") else { continue };
        let parts: Vec<&str> = path.split('/').collect();
        // The path of the module; a file and a folder of the same name are one module.
        let module: Vec<&str> = parts
            .iter()
            .filter(|part| **part != "mod.rs")
            .map(|part| part.strip_suffix(".rs").unwrap_or(part))
            .collect();
        for (depth, name) in module.iter().enumerate().take(2) {
            let up = "super::".repeat(module.len() - depth);
            let room = module[..depth].join("::");
            let from_root = if room.is_empty() { String::new() } else { format!("{room}::") };
            let mut named = named_rooms(own, &format!("crate::shard::{from_root}"));
            for before in [" ", "(", "<", "&"] {
                named.extend(named_rooms(own, &format!("{before}{up}")));
            }
            named.remove(*name);
            let room = if depth == 0 { "shard" } else { parts[0] };
            rooms.entry(room).or_default().entry(name).or_default().extend(named);
        }
    }
    assert!(rooms.len() >= 10, "all rooms were found: {:?}", rooms.keys());
    for (room, files) in rooms {
        let in_circle = |file: &&str| reached(&files, file).contains(file);
        let circle: Vec<&str> = files.keys().copied().filter(in_circle).collect();
        assert!(circle.is_empty(), "in {room}, {circle:?} import each other, directly or over others");
    }
}

/// Returns all files that `from` imports, directly or through others.
fn reached<'a>(imports: &'a BTreeMap<&str, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut to_visit = vec![from.to_owned()];
    while let Some(file) = to_visit.pop() {
        for next in imports.get(file.as_str()).into_iter().flatten() {
            if imports.contains_key(next.as_str()) && found.insert(next.as_str()) {
                to_visit.push(next.clone());
            }
        }
    }
    found
}

#[test]
fn unsafe_and_clocks_stay_where_they_are() {
    only_in(UNSAFE, "unsafe", |line| words(line).any(|word| word == "unsafe"));
    only_in(CLOCK, "a clock", |line| line.contains("Instant::now") || line.contains("SystemTime::now"));
}

/// Checks the maps (tables of files) in module comments: a map names every file of its folder, except tests, and no
/// file that does not exist.
#[test]
fn maps_are_complete() {
    let mut maps = 0;
    let tops = ["/mod.rs", "/lib.rs", "/main.rs"];
    for module in sources().iter().filter(|file| tops.iter().any(|top| file.path.ends_with(top))) {
        let path = module.place();
        let text = fs::read_to_string(&path).expect("sources are text");
        let map: String = text.lines().filter(|line| line.starts_with("//! ")).collect::<Vec<_>>().join("\n");
        if !map.contains(" file |") {
            continue;
        }
        maps += 1;
        let named: BTreeSet<&str> = map.split('`').filter(|name| is_file_or_folder(name)).collect();
        let folder = path.parent().expect("a file is in a folder");
        let entries: Vec<String> = fs::read_dir(folder)
            .expect("the folder can be read")
            .map(|entry| entry.expect("the folder can be read"))
            .map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.path().is_dir() { name + "/" } else { name }
            })
            .collect();
        let missing = |entry: &&String| {
            let stem = entry.trim_end_matches('/').trim_end_matches(".rs");
            let both = [format!("{stem}.rs"), format!("{stem}/")];
            !matches!(stem, "mod" | "lib" | "main" | "tests")
                && !both.iter().any(|name| named.contains(name.as_str()))
        };
        let missing: Vec<&String> = entries.iter().filter(missing).collect();
        assert!(missing.is_empty(), "{} does not name {missing:?}", module.path);
        let gone: Vec<&&str> = named.iter().filter(|name| !folder.join(name).exists()).collect();
        assert!(gone.is_empty(), "{} names {gone:?}", module.path);
    }
    assert!(maps >= 7, "{maps} maps were found");
}

fn is_file_or_folder(name: &str) -> bool {
    let stem = name.strip_suffix(".rs").or_else(|| name.strip_suffix('/'));
    stem.is_some_and(|stem| !stem.is_empty() && words(stem).eq([stem]))
}

/// Checks that property tests keep their failing seeds in the repository, so that a failure repeats in every
/// later run.
#[test]
fn failing_seeds_are_kept() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut properties = 0;
    for entry in fs::read_dir(&tests).expect("tests/ can be read") {
        let path = entry.expect("tests/ can be read").path();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if path.extension().is_none_or(|extension| extension != "rs") || name == "rooms" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("sources are text");
        if text.contains("proptest!") {
            properties += 1;
            // A property test in `src` keeps its seeds by default; one in `tests/` must name the file.
            let place = format!("/proptest-regressions/tests/{name}.txt");
            assert!(text.contains(&place), "tests/{name}.rs does not keep its seeds in {place}");
        }
    }
    assert!(properties >= 2, "the properties were found");
    assert!(sources().iter().all(|file| !file.text.contains("failure_persistence")), "all seeds are kept");
}

fn only_in(files: &[&str], what: &str, found: impl Fn(&str) -> bool) {
    for file in sources().iter().filter(|file| !files.contains(&file.path.as_str())) {
        for (number, line) in file.text.lines().enumerate() {
            assert!(!found(line), "{what} in {}:{}", file.path, number + 1);
        }
    }
}

/// A source file of `src/` or of a tool, without comments (everything after `//`).
struct Source {
    /// The path, relative to `src/`, or to the repository for files of `tools/`.
    path: String,
    text: String,
}

impl Source {
    fn room(&self) -> &str {
        self.path.split('/').next().expect("a path has a first part")
    }

    fn place(&self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        if self.path.starts_with("tools/") {
            root.join(&self.path)
        } else {
            root.join("src").join(&self.path)
        }
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let src = root.join("src");
    let mut folders: Vec<PathBuf> = vec![src.clone(), root.join("tools")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources can be read") {
            let path = entry.expect("sources can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                let text =
                    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>();
                let inside =
                    path.strip_prefix(&src).or_else(|_| path.strip_prefix(root)).expect("found below one");
                let path = inside.to_string_lossy().replace('\\', "/");
                found.push(Source { path, text: text.join("\n") });
            }
        }
    }
    let tools = found.iter().filter(|file| file.path.starts_with("tools/")).count();
    assert!(tools > 50 && found.len() - tools > 50, "all of src/ and tools/ was found");
    found
}

/// Returns the tools whose libraries the text names: `load` for `weir_load::`.
fn named_tools(text: &str) -> BTreeSet<String> {
    let after = text.match_indices("weir_").map(|(at, start)| &text[at + start.len()..]);
    let named = after.filter_map(|rest| rest.split_once("::").map(|(name, _)| name));
    named.filter(|name| words(name).eq([*name])).map(str::to_owned).collect()
}

/// Returns the first name after each `start` in the text, and for a group in braces the first name of each
/// path in it.
fn named_rooms(text: &str, start: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, start) in text.match_indices(start) {
        let rest = &text[at + start.len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(first_names(list)),
            None => found.extend(words(rest).next().map(str::to_owned)),
        }
    }
    found
}

/// Returns the first name of each path at the outermost level of `a, b::{c, d}, e}`, which begins after the opening
/// brace.
fn first_names(list: &str) -> Vec<String> {
    let (mut depth, mut item, mut names) = (0, String::new(), Vec::new());
    for letter in list.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(std::mem::take(&mut item)),
            _ => {}
        }
        item.push(letter);
    }
    names.push(item);
    names.iter().filter_map(|item| words(item).next().map(str::to_owned)).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

#[test]
fn paths_are_read_right() {
    let text = "use crate::{values::{a, b}, shard};\nlet x = crate::config::Quotas;";
    let found: Vec<String> = named_rooms(text, "crate::").into_iter().collect();
    assert_eq!(found, ["config", "shard", "values"]);
    let text = "use weir::values::Tier;\nuse weir_load::{Plan, Run};";
    assert!(named_rooms(text, "weir::").iter().eq(["values"]) && named_tools(text).iter().eq(["load"]));
}
