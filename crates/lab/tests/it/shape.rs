//! The shapes of documents: which keys they have, and which systems, panels, loads and sizes.
//!
//! `shapes.txt` has a section for each command: `= NAME: COMMAND`, then a line for each object,
//! `PATH: KEY | KEY`, and for each column whose names matter, `PATH= NAME | NAME`. A path, key or
//! name that ends with `?` may be missing: the machine lacks a program for it, or was too busy to
//! measure it. `*` stands for further words, as where there is one for each core. Values are not
//! judged, but that a median is not above its tail.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Columns whose values name what was measured.
const NAMES: [&str; 22] = [
    "bound",
    "bytes",
    "connections",
    "cores",
    "cores_messages_or_bytes",
    "hot_part",
    "job",
    "load",
    "mechanism",
    "name",
    "op",
    "operation",
    "others",
    "outstanding",
    "panel",
    "part",
    "placement",
    "situation",
    "step",
    "system",
    "way",
    "workload",
];
/// Keys that every document has, and texts.
const COMMON: [&str; 11] = [
    "claims", "commit", "machine", "measured", "name", "notes", "paper", "quick", "seed", "summary", "title",
];

/// Words by the path of an object, `PATH:`, or of a column, `PATH=`.
type Shape = BTreeMap<String, BTreeSet<String>>;

/// Returns the command of a section.
pub fn command(section: &str) -> &'static str {
    lines(section).0
}

/// Returns a section's command and its lines.
fn lines(section: &str) -> (&'static str, impl Iterator<Item = &'static str>) {
    let all = include_str!("shapes.txt").split("\n= ").skip(1);
    let own = all.filter_map(|text| text.split_once(": ")).find(|(name, _)| *name == section);
    let mut lines = own.unwrap_or_else(|| panic!("shapes.txt has no {section}")).1.lines();
    (lines.next().unwrap_or_default(), lines.filter(|line| !line.is_empty()))
}

/// Returns what differs between a document and its section; empty if nothing does.
pub fn differences(section: &str, document: &Value) -> Vec<String> {
    let mut found = Shape::new();
    let own =
        document.as_object().expect("a document").iter().filter(|(key, _)| !COMMON.contains(&key.as_str()));
    add(&mut found, "", &own.map(|(key, value)| (key.clone(), value.clone())).collect::<Value>());
    let mut differ = Vec::new();
    for line in lines(section).1 {
        let (path, words) = line.split_once(' ').unwrap_or_else(|| panic!("no words: {line}"));
        let words: Vec<&str> = words.split(" | ").collect();
        let may_lack = path.contains('?');
        let path = path.replace('?', "");
        if may_lack && !found.contains_key(&path) {
            continue;
        }
        let mut known = found.remove(&path).unwrap_or_default();
        let is_missing = |word: &&&str| **word != "*" && !word.ends_with('?') && !known.contains(**word);
        differ.extend(words.iter().filter(is_missing).map(|word| format!("{path} lacks {word}")));
        known.retain(|found| !words.iter().any(|word| *word == "*" || word.trim_end_matches('?') == found));
        differ.extend(known.iter().map(|word| format!("{path} has {word}, too")));
    }
    found.retain(|path, _| path.ends_with(':'));
    differ.extend(found.iter().map(|(path, words)| format!("{path} has {words:?}, too")));
    differ
}

/// Adds a part of a document at a path; the items of a list are at the path of the list.
fn add(shape: &mut Shape, path: &str, value: &Value) {
    if let Value::Array(items) = value {
        return items.iter().for_each(|item| add(shape, path, item));
    }
    let fields = value.as_object().into_iter().flatten();
    for (key, value) in fields.clone().filter(|(_, value)| !value.is_null()) {
        shape.entry(format!("{path}:")).or_default().insert(key.clone());
        let path = format!("{path}.{key}");
        if NAMES.contains(&key.as_str()) && (value.is_string() || value.is_number()) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            shape.entry(format!("{path}=")).or_default().insert(text.trim_end_matches(".0").to_owned());
        }
        if let (Some(median), true) = (value.as_f64(), key.contains("p50")) {
            let tail = fields.clone().find(|(tail, _)| **tail == key.replace("p50", "p99"));
            let is_above = tail.and_then(|(_, tail)| tail.as_f64()).is_some_and(|tail| tail < median);
            assert!(!is_above, "{path} is {median}, above its tail {tail:?}");
        }
        add(shape, &path, value);
    }
}
