//! A thread's data stays its own: everything ordinary Rust keeps per thread, used concurrently by
//! many user threads that are preempted by signal about twenty thousand times a second and migrate
//! between three kthreads.
//!
//! The program under test is this test again, in a child process: its output goes through pipes,
//! and each line is checked. It runs for three seconds, or for `TAILWATER_SOUNDNESS_SECONDS`:
//!
//! ```text
//! TAILWATER_SOUNDNESS_SECONDS=60 cargo test -p tailwater --test it soundness
//! ```
//!
//! A session is a user thread that runs all [`checks`] in turn, returns or panics, and is replaced
//! by the next.

mod checks;
mod lines;
mod spans;

use checks::Session;
use lines::Reader;
use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater::{debug, thread};
use tailwater_testkit::{PATIENCE, Program, Storm, is_rerun, rerun};

const TEST: &str = "what_belongs_to_a_thread_stays_with_it_under_preemption_and_migration";
const SECONDS: &str = "TAILWATER_SOUNDNESS_SECONDS";
/// Sessions at a time.
const SESSIONS: u64 = 24;
/// A thread that does not switch is interrupted after one to two of these.
const QUANTUM: Duration = Duration::from_micros(25);

fn duration() -> Duration {
    let seconds = std::env::var(SECONDS).map_or(3.0, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs_f64(seconds)
}

#[test]
fn what_belongs_to_a_thread_stays_with_it_under_preemption_and_migration() {
    if is_rerun(TEST) {
        let _storm = Storm::start(QUANTUM);
        let seen = tailwater::RuntimeBuilder::new().kthreads(3).quantum(QUANTUM).run(run_sessions).unwrap();
        // Without the test harness, which would print lines of its own.
        std::process::exit(seen);
    }
    let mut command = rerun(module_path!(), TEST);
    command
        // One thread: otherwise the harness prints a line of its own after a minute.
        .arg("--test-threads=1")
        .env(SECONDS, duration().as_secs_f64().to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Program::spawn_unread(&mut command);
    let out = Reader::start("out", child.process().stdout.take().unwrap());
    let err = Reader::start("err", child.process().stderr.take().unwrap());
    let status = child.wait_for(duration() + 3 * PATIENCE);
    if status.is_none() {
        child.signal(rustix::process::Signal::QUIT);
        std::thread::sleep(Duration::from_secs(5));
        child.kill();
    }
    let (out, err) = (out.finish(), err.finish());
    let Some(status) = status else { panic!("the sessions stand still; their dump:\n{}", err.other) };
    assert!(status.success(), "{status}\n{}", err.other);
    assert_eq!(
        (out.other.as_str(), err.other.as_str()),
        ("", ""),
        "lines that no session printed, or torn ones"
    );
    assert_eq!((out.lines, err.lines), (out.expected, err.expected), "lines were lost");
    assert!(out.lines > 0 && err.lines > 0);
    eprintln!("{}", out.summary);
}

/// Runs the child's main thread. Returns the exit code.
fn run_sessions() -> i32 {
    static STOP: AtomicBool = AtomicBool::new(false);
    spans::install();
    // Silent, but counting: the default hook's reports are as long as all sessions' lines together.
    std::panic::set_hook(Box::new(|_| checks::count_hooked_panic()));
    lines::begin();
    let start = Instant::now();
    let drivers: Vec<_> = (0..SESSIONS)
        .map(|driver| {
            thread::spawn(move || {
                // Ids of sessions of different drivers differ.
                let ids = (driver..).step_by(SESSIONS as usize);
                let count = ids.take_while(|_| !STOP.load(Ordering::Relaxed)).map(run_session).count();
                count as u64
            })
        })
        .collect();
    thread::sleep(duration());
    // On a busy machine until something was tested, but not for ever.
    let untested = || {
        let counters = debug::counters();
        counters.preemptions == 0 || counters.stolen_threads == 0 || !lines::on_both_streams()
    };
    while untested() && start.elapsed() < duration() + PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    STOP.store(true, Ordering::Relaxed);
    let mut sessions = 0;
    for driver in drivers {
        match driver.join() {
            Ok(count) => sessions += count,
            Err(panic) => return fail(&checks::message(&*panic)),
        }
    }
    if let Err(why) = checks::check_totals(sessions) {
        return fail(&why);
    }
    let counters = debug::counters();
    let (preemptions, stolen) = (counters.preemptions, counters.stolen_threads);
    lines::end(&format!(
        "{sessions} sessions in {:.1} s: {preemptions} preemptions, {stolen} threads stolen",
        start.elapsed().as_secs_f64()
    ));
    if preemptions == 0 || stolen == 0 {
        return fail(&format!("nothing was tested: {counters:?}"));
    }
    0
}

/// Runs one session in its own thread and checks how it ends.
fn run_session(id: u64) {
    let handle = thread::spawn(move || Session::new(id).run());
    match handle.join() {
        Ok(result) => assert_eq!(result, Session::result(id), "session {id} returned another's result"),
        Err(panic) if Session::panics(id) => {
            assert_eq!(panic.downcast_ref::<u64>(), Some(&id), "{}", checks::message(&*panic));
        }
        Err(panic) => panic!("session {id}: {}", checks::message(&*panic)),
    }
}

fn fail(why: &str) -> i32 {
    eprintln!("FAILED: {why}");
    1
}

/// Reads all of `from`.
fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
