//! What a panic leaves: one line of JSON on standard error, where the log is and the service
//! manager keeps it, with the message, the place, the thread, the version, the stack, and the last
//! events of cores that the IOKernel recorded.
//!
//! Owns the line, in place of the standard library's text of many lines. The line is written
//! directly: the thread that passes on the log may be the one that panics. Stacks are names of
//! functions, youngest first. Events are read as a tracer reads them, so the polling thread may be
//! anywhere.

use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::io::{Write, stderr};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;

use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use tailwater_shm::trace::{Played, Recording, TraceEvent};
use tailwater_shm::{Clock, clock};
use tailwater_testbed::machine;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::trace::LAST_EVENTS;

/// Most functions of a stack.
const DEPTH: usize = 64;
/// Most events of cores.
const EVENTS: usize = 32;

/// The record of the IOKernel's events.
static RECORD: OnceLock<OwnedFd> = OnceLock::new();

/// Has the line of a panic name the last events in this record.
pub fn read_events_of(record: OwnedFd) {
    // A process has one IOKernel.
    let _ = RECORD.set(record);
}

/// Has all panics of this process leave such a line.
pub fn report() {
    std::panic::set_hook(Box::new(|panic| {
        let line = line(panic, &Backtrace::force_capture().to_string());
        // In one write: lines of the log may come at the same time. A closed standard error is no
        // reason to panic again.
        let _ = stderr().lock().write_all(format!("{line}\n").as_bytes());
    }));
}

fn line(panic: &PanicHookInfo<'_>, backtrace: &str) -> serde_json::Value {
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    json!({
        "timestamp": timestamp,
        "level": "ERROR",
        "message": "panic",
        "panic": panic.payload_as_str().unwrap_or("no text"),
        "place": panic.location().map(ToString::to_string),
        "thread": std::thread::current().name(),
        "version": machine::version(),
        "stack": functions(backtrace),
        "cores": RECORD.get().map(events),
    })
}

/// Returns the last events of cores in a record, the latest last.
fn events(record: &OwnedFd) -> Vec<Value> {
    let Ok(mut recording) = Recording::attach(record) else { return Vec::new() };
    let (clock, now) = (Clock::from_hz(recording.hz()), clock::now());
    let mut last = VecDeque::with_capacity(EVENTS);
    for _ in 0..LAST_EVENTS {
        match recording.next_event() {
            Played::Event(at, TraceEvent::Core { core, step, handoff, who, .. }) => {
                if last.len() == EVENTS {
                    last.pop_front();
                }
                let us_before = clock.to_ns(now.saturating_sub(at)) / 1_000;
                let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
                last.push_back(json!({ "us_before": us_before, "core": core, "step": word(&step),
                    "handoff": word(&handoff), "program": who.runtime, "kthread": who.kthread }));
            }
            Played::Event(..) | Played::Lost(_) => {}
            Played::Nothing | Played::Impossible => break,
        }
    }
    last.into()
}

/// Returns the functions of a backtrace as the standard library prints it, from the one that
/// panicked on.
fn functions(backtrace: &str) -> Vec<&str> {
    let named = backtrace.lines().filter_map(|line| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.bytes().all(|digit| digit.is_ascii_digit()).then_some(name)
    });
    let named: Vec<&str> = named.collect();
    // Before are the functions of the panic itself, and of this module.
    let is_machinery = |name: &&str| name.starts_with("core::panicking::") || name.contains("begin_panic");
    let first = named.iter().rposition(is_machinery).map_or(0, |last| last + 1);
    named.into_iter().skip(first).take(DEPTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_shm::trace::{CoreStep, Handoff, Recorder, Who};
    use tailwater_testkit::{is_rerun, rerun, text};

    /// Returns a record of so many events, one for each core.
    fn record(cores: u16) -> (Recorder, OwnedFd) {
        let (mut recorder, file) = Recorder::create(1 << 10, 1_000_000_000).unwrap();
        let who = Who { runtime: 3, kthread: 1 };
        for core in 0..cores {
            let (step, handoff) = (CoreStep::Ceded, Handoff::Polling);
            recorder.record(clock::now(), &TraceEvent::Core { core, step, handoff, who, from: None });
        }
        (recorder, file)
    }

    #[test]
    fn a_panic_of_any_thread_leaves_one_line_with_its_message_place_and_stack() {
        const TEST: &str = "a_panic_of_any_thread_leaves_one_line_with_its_message_place_and_stack";
        if is_rerun(TEST) {
            report();
            let (_recorder, file) = record(7);
            read_events_of(file);
            let thread = std::thread::Builder::new().name("ring".to_owned());
            let panicked = thread.spawn(|| panic!("first\nsecond {}", 3)).unwrap().join();
            assert!(panicked.is_err());
            return;
        }
        let output = tailwater_testkit::run(&mut rerun(module_path!(), TEST), &[]);
        let errors = text(&output.stderr);
        let lines: Vec<Value> = errors.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let [line] = lines.as_slice() else { panic!("one line of JSON is expected: {errors}") };
        assert_eq!((&line["level"], &line["thread"]), (&"ERROR".into(), &"ring".into()));
        assert_eq!(line["panic"], "first\nsecond 3");
        assert!(line["place"].as_str().unwrap().contains("panics.rs"), "{line}");
        assert!(line["version"].as_str().unwrap().starts_with(env!("CARGO_PKG_VERSION")), "{line}");
        assert!(line["stack"][0].as_str().unwrap().contains("panics::tests"), "{line}");
        let event = &line["cores"][6];
        assert_eq!(
            (&event["core"], &event["step"], &event["program"]),
            (&6.into(), &"ceded".into(), &3.into())
        );
        assert!(event["us_before"].is_u64() && line["cores"][7].is_null(), "{line}");
    }

    #[test]
    fn a_panic_names_the_last_events_only() {
        let (_recorder, file) = record(100);
        let events = events(&file);
        assert_eq!((events.len(), &events[EVENTS - 1]["core"]), (EVENTS, &99.into()));
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(super::events(&other.into()).is_empty());
    }

    #[test]
    fn a_stack_begins_behind_the_functions_of_the_panic_itself() {
        let text = "   0: std::backtrace::Backtrace::create\n   1: core::panicking::panic_fmt\n             at /x:1:2\n   \
                    2: kernel::poll\n  10: main\n";
        assert_eq!(functions(text), ["kernel::poll", "main"]);
        assert_eq!(functions("disabled backtrace"), [""; 0]);
    }
}
