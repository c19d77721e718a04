//! The page of the book, and the file that keeps the result of Linux.

use crate::script::Case;
use core::fmt::{self, Write};
use std::path::Path;

/// The cases that Linux does not pass, with the step that failed, by name.
#[derive(Debug)]
pub struct Linux {
    pub version: String,
    pub failed: Vec<(String, String)>,
}

impl fmt::Display for Linux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.version)?;
        self.failed.iter().try_for_each(|(name, why)| writeln!(f, "{name} | {why}"))
    }
}

impl Linux {
    /// Reads the file.
    ///
    /// # Panics
    /// If it is not what [`Display`](fmt::Display) writes.
    pub fn recorded(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("the result of Linux");
        let mut lines = text.lines();
        let version = lines.next().expect("a version").to_owned();
        let entry = |line: &str| {
            let (name, why) = line.split_once(" | ").expect("a case and a step");
            (name.to_owned(), why.to_owned())
        };
        Self { version, failed: lines.map(entry).collect() }
    }

    /// Returns the same with the failed steps alone: the rest differs from run to run.
    pub fn steps(&self) -> Self {
        let step = |why: &String| why.split_once("`: ").map_or(why.clone(), |(step, _)| format!("{step}`"));
        let failed = self.failed.iter().map(|(name, why)| (name.clone(), step(why))).collect();
        Self { version: self.version.clone(), failed }
    }

    fn passes(&self, case: &Case) -> bool {
        self.failed.iter().all(|(name, _)| name != case.expected)
    }
}

/// Returns the page.
pub fn render(cases: &[Case], linux: &Linux) -> String {
    let mut categories: Vec<_> = cases.iter().map(|case| case.category).collect();
    categories.dedup();
    let mut page = format!(
        "# TCP cases\n\n\
         Each case is a script of segments and calls (`crates/tcp/tests/cases/scripts`), run against this crate in virtual\n\
         time and against Linux {} in a network namespace. A case passes if the stack does what the RFC asks for. CI runs\n\
         both; this page is written by the test `cases` of `tailwater-tcp`. Where Linux does something else, that is often a\n\
         choice that the RFC leaves open: the step that it does not follow is in `crates/tcp/tests/cases/linux.txt`.\n\n\
         | category | cases | Tailwater | Linux |\n|---|---:|---:|---:|\n",
        linux.version
    );
    for category in &categories {
        let all: Vec<_> = cases.iter().filter(|case| case.category == *category).collect();
        let passed = all.iter().filter(|case| linux.passes(case)).count();
        let _ = writeln!(page, "| {category} | {} | {} | {passed} |", all.len(), all.len());
    }
    let passed = cases.iter().filter(|case| linux.passes(case)).count();
    let _ = writeln!(page, "| all | {} | {} | {passed} |", cases.len(), cases.len());
    for category in &categories {
        let _ =
            write!(page, "\n## {category}\n\n| RFC | expected | Tailwater | Linux |\n|---|---|---|---|\n");
        for case in cases.iter().filter(|case| case.category == *category) {
            let linux = if linux.passes(case) { "yes" } else { "no" };
            let _ = writeln!(page, "| {} | {} | yes | {linux} |", case.rfc, case.expected);
        }
    }
    page
}
