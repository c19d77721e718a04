//! The examples of the documentation, as rustdoc compiles them: those of the edition 2024 in one
//! program, except those that say `standalone_crate`. If that program cannot be compiled, rustdoc
//! compiles each of its examples by itself, and does not say so.

use std::fs;
use std::path::{Path, PathBuf};

/// What only one example of a program can have: its allocator, declared by hand or by `main`.
const ALLOCATORS: [&str; 3] = ["#[tailwater::main", "tailwater::allocator!", "#[global_allocator]"];

/// Words behind which an example is compiled by itself, or not at all.
const ALONE: [&str; 4] = ["standalone_crate", "compile_fail", "ignore", "text"];

/// Returns all source files below `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(below).filter(|path| path.extension().is_some_and(|rs| rs == "rs")).collect()
}

/// Returns the examples of a file: the line of the opening fence, what follows the fence there, and
/// the text.
fn examples(source: &str) -> Vec<(usize, &str, String)> {
    let mut found = Vec::new();
    let mut open = None;
    for (number, line) in (1..).zip(source.lines().map(str::trim_start)) {
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        match (text.trim().strip_prefix("```"), &mut open) {
            (Some(words), None) => open = Some((number, words, String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, _, lines))) => lines.extend([text, "\n"]),
            (None, None) => {}
        }
    }
    assert_eq!(open, None, "a fence has no end");
    found
}

#[test]
fn examples_with_an_allocator_keep_no_others_from_being_one_program() {
    let all = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let mut seen = 0;
    for path in all {
        for (line, words, text) in examples(&fs::read_to_string(&path).unwrap()) {
            let has_allocator = ALLOCATORS.iter().any(|allocator| text.contains(allocator));
            let is_alone = words.split([',', ' ']).any(|word| ALONE.contains(&word));
            assert!(!has_allocator || is_alone, "{}:{line}: say `standalone_crate`", path.display());
            seen += usize::from(has_allocator);
        }
    }
    assert!(seen > 100, "only {seen} examples with an allocator were found");
}
