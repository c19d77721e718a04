//! Common crates on user threads: the claims of `docs/src/guide/crates.md`, checked.
//!
//! Owns the list of checks. Without arguments it starts itself once for each check and each number
//! of kthreads, because a process has one runtime, and exits with 0 if all results are as the page
//! says. With the name of a check it runs that one; with `--page` it prints the table of the page,
//! which [`page`] owns.
//!
//! A check ends in one of two ways: it returns, or it can never end. The second kind is a claim
//! too: the locks and calls of those checks hold the only core on which their wait could end.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

mod beside;
mod clients;
mod futures_of_others;
mod holds;
mod page;
mod pool;
mod pure;
mod waits;

tailwater::allocator!();

/// How a check ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It returns.
    Returns,
    /// It returns, but only because the stall detector takes the waiting thread off its kthread.
    ReturnsByDetector,
}

/// A check: its name, what it runs, how it ends.
type Check = (&'static str, fn(), End);

const CHECKS: &[Check] = &[
    ("serde", pure::serde, End::Returns),
    ("rand", pure::rand, End::Returns),
    ("rayon", beside::rayon, End::Returns),
    ("tokio", beside::tokio, End::Returns),
    ("rusqlite", waits::rusqlite, End::Returns),
    ("rusqlite-blocking", waits::rusqlite_blocking, End::Returns),
    ("rustls", waits::rustls, End::Returns),
    ("tracing", waits::tracing, End::Returns),
    ("futures", futures_of_others::futures, End::Returns),
    ("tokio-io", futures_of_others::tokio_io, End::Returns),
    ("tokio-time", futures_of_others::tokio_time, End::Returns),
    ("tokio-rustls", futures_of_others::tokio_rustls, End::Returns),
    ("hyper-http1", futures_of_others::hyper_http1, End::Returns),
    ("hyper-http2", futures_of_others::hyper_http2, End::Returns),
    ("client-pool", pool::client_pool, End::Returns),
    ("axum", futures_of_others::axum, End::Returns),
    ("tower", futures_of_others::tower, End::Returns),
    ("reqwest", clients::reqwest, End::Returns),
    ("ureq", clients::ureq, End::Returns),
    ("redis", clients::redis, End::Returns),
    ("sqlx", clients::sqlx, End::Returns),
    ("tonic", clients::tonic, End::Returns),
    ("std-mutex", holds::std_mutex, End::ReturnsByDetector),
    ("parking-lot", holds::parking_lot_mutex, End::ReturnsByDetector),
    ("std-net", holds::std_net, End::ReturnsByDetector),
    ("std-channel", holds::std_channel, End::ReturnsByDetector),
    ("std-park", holds::std_park, End::ReturnsByDetector),
];

/// Time for a check that should return.
const PATIENCE: Duration = Duration::from_secs(900);
/// Time after which a check that can never end is stopped. A slow machine cannot make it fail.
const ENOUGH: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    if let Some(name) = std::env::args().nth(1) {
        if name == "--page" {
            print!("{}", page::table());
            return ExitCode::SUCCESS;
        }
        let Some((_, check, _)) = CHECKS.iter().find(|(known, ..)| *known == name) else {
            eprintln!("there is no check `{name}`");
            return ExitCode::from(2);
        };
        tailwater::RuntimeBuilder::new().run(check).expect("the runtime starts");
        return ExitCode::SUCCESS;
    }
    let mut failures = 0;
    if let Err(why) = page::check() {
        println!("WRONG: {why}");
        failures += 1;
    }
    for &(name, _, end) in CHECKS {
        for kthreads in [1, 2] {
            failures += u32::from(!as_said(name, kthreads, None, true));
        }
        if end == End::ReturnsByDetector {
            failures += u32::from(!as_said(name, 1, Some("0"), false));
        }
    }
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a check in its own process; returns whether it ends, or does not end, as it should.
fn as_said(name: &str, kthreads: u32, stall_timeout_ms: Option<&str>, should_end: bool) -> bool {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg(name).env("TAILWATER_KTHREADS", kthreads.to_string()).stdin(Stdio::null());
    if let Some(timeout) = stall_timeout_ms {
        command.env("TAILWATER_STALL_TIMEOUT_MS", timeout);
    }
    let began = Instant::now();
    let mut child = command.spawn().expect("this program starts");
    let limit = if should_end { PATIENCE } else { ENOUGH };
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break Some(status),
            None if began.elapsed() > limit => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }
    let ms = began.elapsed().as_millis();
    let outcome = match status {
        Some(status) if status.success() => format!("returned after {ms} ms"),
        Some(status) => format!("failed: {status}"),
        None => "did not return".to_owned(),
    };
    let right = if should_end { status.is_some_and(|status| status.success()) } else { status.is_none() };
    let detector = if stall_timeout_ms.is_some() { ", no stall detector" } else { "" };
    println!("{}: {name}, {kthreads} kthreads{detector}: {outcome}", if right { "ok" } else { "WRONG" });
    right
}
