//! The table of cases: scripts of segments and calls with the behaviour that an RFC asks for, run
//! against this crate in virtual time and against Linux in a network namespace.
//!
//! Owns the scripts (`scripts/`), the result of Linux (`linux.txt`) and the page of the book that
//! shows both. The crate must pass every case. Linux needs root and `/dev/net/tun`: the test says
//! so and skips without. It runs in real time, and a case depends on its timers, so a test run only
//! prints which cases differ from the record. On an idle machine,
//! `TAILWATER_TCP_CASES=compare cargo test -p tailwater-tcp --test cases` fails if many do, and
//! `TAILWATER_TCP_CASES=write` writes `linux.txt` and the page.

#[path = "../network/beside_linux/namespace.rs"]
mod namespace;

mod linux;
mod ours;
mod packet;
mod run;
mod script;
mod table;

use linux::Namespace;
use ours::Ours;
use run::run;
use script::{Case, cases};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use table::{Linux, render};

/// Namespaces in which Linux runs cases at the same time. Most of a case is waiting.
const NAMESPACES: usize = 8;
/// Times a case is run against Linux before its failure counts: this machine may be busy for longer
/// than a timer of the case.
const TRIES: usize = 3;
/// One case in so many may differ from the record of Linux where that is judged.
const MAX_DIFFERING: usize = 10;

fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn is_asked_to(what: &str) -> bool {
    std::env::var_os("TAILWATER_TCP_CASES").is_some_and(|asked| asked == what)
}

#[test]
fn the_crate_passes_every_case() {
    let cases = cases();
    assert!(cases.len() >= 200, "{} cases", cases.len());
    let mut failed = String::new();
    for case in &cases {
        if let Err(why) = run(case, &mut Ours::new()) {
            failed += &format!("\n{}: {}\n    {why}", case.category, case.expected);
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Runs a case until it passes, a few times at most.
fn on_linux(case: &Case, namespace: &mut Namespace) -> Result<(), String> {
    let mut result = Ok(());
    for _ in 0..TRIES {
        result = run(case, &mut namespace.host());
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Returns what Linux does in each case.
fn run_on_linux(cases: &[Case]) -> Result<Linux, String> {
    let results = Mutex::new(Vec::new());
    let next = Mutex::new(cases.iter());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..NAMESPACES)
            .map(|_| {
                scope.spawn(|| -> Result<(), String> {
                    let mut namespace = Namespace::enter()?;
                    loop {
                        let Some(case) = next.lock().expect("no panic").next() else { return Ok(()) };
                        if let Err(why) = on_linux(case, &mut namespace) {
                            results.lock().expect("no panic").push((case.expected.to_owned(), why));
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").map_err(|error| error.to_string())?;
    let version: Vec<_> = release.trim().split('.').take(2).collect();
    let mut failed = results.into_inner().expect("no panic");
    failed.sort();
    Ok(Linux { version: version.join("."), failed })
}

#[test]
fn linux_does_what_the_table_says() {
    let cases = cases();
    let now = match run_on_linux(&cases) {
        Ok(now) => now,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    if is_asked_to("write") {
        std::fs::write(path("tests/cases/linux.txt"), now.steps().to_string()).expect("linux.txt");
    }
    let recorded = Linux::recorded(&path("tests/cases/linux.txt"));
    if now.version != recorded.version {
        return eprintln!("skipped: Linux {} runs, the table is of {}", now.version, recorded.version);
    }
    let names = |linux: &Linux| linux.failed.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
    let differing: Vec<_> = names(&now).symmetric_difference(&names(&recorded)).cloned().collect();
    for name in &differing {
        eprintln!("Linux differs from the table this time: {name}");
    }
    let few = differing.len() <= cases.len() / MAX_DIFFERING;
    assert!(few || !is_asked_to("compare"), "{differing:?}\n{now}");
    check_page(&cases, &recorded);
}

#[test]
fn the_page_of_the_book_is_current() {
    if !is_asked_to("write") {
        check_page(&cases(), &Linux::recorded(&path("tests/cases/linux.txt")));
    }
}

fn check_page(cases: &[Case], linux: &Linux) {
    let page = path("../../docs/src/design/tcp-cases.md");
    let rendered = render(cases, linux);
    if is_asked_to("write") {
        std::fs::write(&page, &rendered).expect("the page");
    }
    let there = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(there == rendered, "{} is not current: see the header of this test", page.display());
}
