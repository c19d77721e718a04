//! The dump and the stall detector. What they print is read from child processes, each of which is its test again.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater::debug::{ThreadInfo, ThreadState};
use tailwater::{dump, thread};

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc;

const CHILD: &str = "TAILWATER_TEST_CHILD";
const STALL: Duration = Duration::from_millis(20);
/// How long a child lives at most.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a child says when the machine did not let it run.
const PAUSED: &str = "the machine paused";

/// Runs `main` in a process of its own and reads its standard error until `enough`; then closes its standard input and waits for
/// its good end. Returns what was read.
fn in_child(test: &str, main: impl FnOnce(), enough: impl Fn(&str) -> bool) -> String {
    if std::env::var(CHILD).is_ok_and(|running| running == test) {
        std::thread::spawn(|| {
            std::thread::sleep(PATIENCE);
            eprintln!("the parent has not read what it waits for");
            std::process::exit(1);
        });
        main();
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, test)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    while !enough(&text) && lines.read_line(&mut text).unwrap() > 0 {}
    drop(child.stdin.take());
    lines.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

fn runtime(kthreads: u16) -> tailwater::Builder {
    tailwater::Builder::new().kthreads(kthreads).stall_timeout(STALL)
}

/// Until the parent has read enough.
fn wait_for_the_parent() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Spins, without a poll point, until told to stop.
#[inline(never)]
fn spins_here(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[inline(never)]
fn parks_here() {
    thread::park();
    // Not a tail call, which would leave no frame.
    std::hint::black_box(());
}

fn mentions(info: &ThreadInfo, function: &str) -> bool {
    info.backtrace.iter().any(|f| f.function.as_ref().is_some_and(|name| name.contains(function)))
}

#[test]
fn a_dump_says_what_each_thread_does_and_where() {
    // One kthread, so that who is queued behind the spinning thread stays queued.
    tailwater::Builder::new()
        .kthreads(1)
        .stall_timeout(Duration::ZERO)
        .run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let named = |name: &str| thread::Builder::new().name(name);
            let parked = named("parked").spawn(parks_here).unwrap();
            let lock = Arc::new(tailwater::sync::Mutex::new(()));
            let held = lock.lock().unwrap();
            let blocked = named("blocked").spawn({
                let lock = Arc::clone(&lock);
                move || drop(lock.lock())
            });
            thread::yield_now();
            let spinning = named("spinning").spawn({
                let stop = Arc::clone(&stop);
                move || spins_here(&stop)
            });
            let queued = named("queued").spawn(|| ()).unwrap();
            let looker = std::thread::spawn(move || look_until_it_spins(&stop));
            spinning.unwrap().join().unwrap();
            queued.join().unwrap();
            let seen = looker.join().unwrap();
            drop(held);
            blocked.unwrap().join().unwrap();
            parked.thread().unpark();
            parked.join().unwrap();

            let find = |name| seen.iter().find(|info| info.thread.name() == Some(name)).unwrap();
            assert_eq!(find("spinning").state, ThreadState::Running { kthread: 0 });
            assert!(mentions(find("spinning"), "spins_here"), "{}", find("spinning"));
            assert_eq!(find("queued").state, ThreadState::Runnable);
            assert_eq!(find("parked").state, ThreadState::Parked);
            assert!(mentions(find("parked"), "parks_here"), "{}", find("parked"));
            assert_eq!(find("blocked").state, ThreadState::Blocked);
            assert!(mentions(find("blocked"), "lock_slowly"), "{}", find("blocked"));
            assert_eq!(find("main").state, ThreadState::Blocked);
            assert!(mentions(find("main"), "wait"), "{}", find("main"));
            let (line, file) = (find("parked").to_string(), file!());
            assert!(line.contains("user thread 'parked' (") && line.contains(file), "{line}");

            let after = dump();
            assert!(after.threads.iter().all(|info| info.thread.name() != Some("parked")), "an ended thread");
            a_backtrace_goes_through_a_signal_handler();
        })
        .unwrap();
}

/// Dumps until a dump shows the spinning thread with its backtrace; then lets it end.
fn look_until_it_spins(stop: &AtomicBool) -> Vec<ThreadInfo> {
    loop {
        let dump = dump();
        assert_eq!(dump.left_out, 0);
        if dump.threads.iter().any(|info| mentions(info, "spins_here")) {
            stop.store(true, Ordering::Relaxed);
            return dump.threads;
        }
    }
}

static IN_HANDLER: AtomicBool = AtomicBool::new(false);
static LEAVE_HANDLER: AtomicBool = AtomicBool::new(false);

extern "C" fn spins_in_a_handler(_: i32) {
    IN_HANDLER.store(true, Ordering::Relaxed);
    spins_here(&LEAVE_HANDLER);
    std::hint::black_box(());
}

#[inline(never)]
fn is_interrupted_here() {
    // SAFETY: a handler for this signal was installed.
    unsafe { libc::raise(libc::SIGUSR1) };
    std::hint::black_box(());
}

/// As a preempted thread's does: its youngest frames are those of the preempt signal's handler.
fn a_backtrace_goes_through_a_signal_handler() {
    // SAFETY: the handler is async-signal-safe, on the stack of the thread that it interrupts.
    unsafe { libc::signal(libc::SIGUSR1, spins_in_a_handler as *const () as usize) };
    let looker = std::thread::spawn(|| {
        while !IN_HANDLER.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // A thread that does not answer in time, on a busy machine, has no backtrace; the next look may find it.
        let seen = (0..20).find_map(|_| {
            let threads = dump().threads;
            let main = threads.into_iter().find(|info| info.thread.name() == Some("main"));
            main.filter(|main| mentions(main, "spins_in_a_handler"))
        });
        LEAVE_HANDLER.store(true, Ordering::Relaxed);
        seen
    });
    is_interrupted_here();
    let main = looker.join().unwrap().expect("one look of twenty sees the handler");
    assert!(mentions(&main, "is_interrupted_here"), "{main}");
}

#[test]
fn a_signal_has_all_threads_printed_and_the_program_goes_on() {
    let main = || {
        // A shell ignores it for what it starts in the background, and a handler that is there already is kept.
        // SAFETY: nothing of this process has a handler for it yet.
        unsafe { libc::signal(libc::SIGQUIT, libc::SIG_DFL) };
        let run = runtime(2).run(|| {
            let _parked = thread::Builder::new().name("parked").spawn(parks_here).unwrap();
            thread::yield_now();
            // SAFETY: a signal to this very process, which handles it.
            unsafe { libc::kill(libc::getpid(), libc::SIGQUIT) };
            tailwater::blocking(wait_for_the_parent);
        });
        run.unwrap();
    };
    let whole = |text: &str| text.contains("user thread 'parked' (") && text.contains("parks_here");
    let text = in_child("a_signal_has_all_threads_printed_and_the_program_goes_on", main, whole);
    assert!(whole(&text), "{text}");
}

#[test]
fn a_thread_without_poll_points_is_named_with_its_backtrace() {
    let main = || {
        let run = runtime(2).run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&stop);
            let hog = thread::Builder::new().name("hog").spawn(move || spins_here(&told)).unwrap();
            tailwater::blocking(wait_for_the_parent);
            stop.store(true, Ordering::Relaxed);
            hog.join().unwrap();
        });
        run.unwrap();
    };
    let enough = |text: &str| text.contains("spins_here");
    let text = in_child("a_thread_without_poll_points_is_named_with_its_backtrace", main, enough);
    assert!(text.contains("tailwater: user thread 'hog' ("), "{text}");
    assert!(text.contains("has reached no poll point for ") && enough(&text), "{text}");
    assert_eq!(text.matches("no poll point").count(), 1, "one stall, one report: {text}");
}

#[test]
fn a_thread_in_a_blocking_system_call_is_told_of_blocking() {
    let main = || runtime(1).run(wait_for_the_parent).unwrap();
    let enough = |text: &str| text.contains("wait_for_the_parent");
    let text = in_child("a_thread_in_a_blocking_system_call_is_told_of_blocking", main, enough);
    assert!(text.contains("user thread 'main' (1) has been in a blocking system call for "), "{text}");
    assert!(text.contains("use tailwater::blocking") && enough(&text), "{text}");
}

#[test]
fn threads_that_poll_or_yield_or_wait_are_not_reported() {
    let main = || {
        let run = runtime(1).run(|| {
            let for_a_while = |step: fn()| {
                let (start, mut last) = (Instant::now(), Duration::ZERO);
                while last < 8 * STALL {
                    step();
                    let now = start.elapsed();
                    if now - last > STALL / 2 {
                        eprintln!("{PAUSED}");
                    }
                    last = now;
                }
            };
            for_a_while(tailwater::poll);
            for_a_while(thread::yield_now);
            thread::sleep(8 * STALL);
            tailwater::blocking(|| std::thread::sleep(8 * STALL));
        });
        run.unwrap();
    };
    let text = in_child("threads_that_poll_or_yield_or_wait_are_not_reported", main, |_| false);
    // A virtual machine whose host takes a core away counts that as processor time of the thread that was running there.
    assert!(!text.contains("tailwater: user thread") || text.contains(PAUSED), "{text}");
}
