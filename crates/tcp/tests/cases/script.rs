//! The scripts: what a peer sends, what a program calls, and what the stack must do.
//!
//! A file holds one category. A line `== NAME` names it; `-- RFC | EXPECTED` begins a case; each
//! further line is a step, `#` begins a comment. Numbers are relative to each side's SYN, which has
//! number 0; the first byte of data is 1. `in` is a segment of the peer, `out` the next one of the
//! stack; fields that a line does not name are free.

/// One case.
#[derive(Debug)]
pub struct Case {
    pub category: &'static str,
    pub rfc: &'static str,
    /// The behaviour that the RFC asks for; also the name of the case.
    pub expected: &'static str,
    pub steps: Vec<Step>,
}

/// One step: its words, and the line for messages.
#[derive(Debug)]
pub struct Step {
    pub line: &'static str,
    pub words: Vec<&'static str>,
}

const FILES: &[&str] = &[
    include_str!("scripts/handshake.txt"),
    include_str!("scripts/resets.txt"),
    include_str!("scripts/windows.txt"),
    include_str!("scripts/sack.txt"),
    include_str!("scripts/recovery.txt"),
    include_str!("scripts/timeouts.txt"),
    include_str!("scripts/congestion.txt"),
    include_str!("scripts/timestamps.txt"),
    include_str!("scripts/closing.txt"),
    include_str!("scripts/limits.txt"),
    include_str!("scripts/options.txt"),
    include_str!("scripts/fast_open.txt"),
];

/// Reads all scripts.
///
/// # Panics
/// If a line is out of place.
pub fn cases() -> Vec<Case> {
    let (mut cases, mut category) = (Vec::<Case>::new(), "");
    for line in FILES.iter().flat_map(|file| file.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix("== ") {
            category = name;
        } else if let Some(head) = line.strip_prefix("-- ") {
            let (rfc, expected) = head.split_once(" | ").unwrap_or_else(|| panic!("no RFC in {line:?}"));
            assert!(cases.iter().all(|case| case.expected != expected), "twice: {expected}");
            cases.push(Case { category, rfc, expected, steps: Vec::new() });
        } else if !line.is_empty() {
            let case = cases.last_mut().unwrap_or_else(|| panic!("a step before a case: {line:?}"));
            case.steps.push(Step { line, words: line.split_whitespace().collect() });
        }
    }
    cases
}
