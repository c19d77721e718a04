//! The dump and the stall detector. Their output is read from child processes, each of which runs
//! its own test again.

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tailwater::debug::{ThreadInfo, ThreadState};
use tailwater::{dump, thread};
use tailwater_testkit::{PATIENCE, Program, is_rerun, own_process, rerun, text};

/// Time after which a stall is reported where none may be.
const SHORT: Duration = Duration::from_millis(20);
/// Time after which a stall is reported where one must be. The watcher looks four times in it, and
/// forgets what it saw if a look is two such quarters late: on a busy machine short ones would be.
const LONG: Duration = Duration::from_millis(500);
/// Line of a child that the machine did not let run.
const PAUSED: &str = "the machine paused";
/// Line of a report whose kthread did not run, and so did not answer, within 20 ms.
const NO_BACKTRACE: &str = "no backtrace";
/// Processes that may leave no backtrace, on a busy machine, before the test fails.
const TRIES: usize = 100;

/// Runs `main` in its own process and reads its standard error until `enough`; then closes its
/// standard input and waits for its successful end. Returns the output.
fn in_child(test: &str, main: impl FnOnce(), enough: impl Fn(&str) -> bool) -> String {
    if is_rerun(test) {
        main();
        std::process::exit(0);
    }
    let mut command = rerun(module_path!(), test);
    let mut child =
        Program::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()));
    let input = child.take_input();
    while !enough(&child.errors()) && child.error_line().is_some() {}
    drop(input);
    let output = child.finish();
    let written = text(&output.stderr);
    assert!(output.status.success(), "{written}");
    written
}

/// The report of a stall in `function`, which `main` causes, with its backtrace.
fn report(test: &str, main: fn(), function: &str) -> String {
    let is_whole = |text: &str| text.contains(function) || text.contains(NO_BACKTRACE);
    (0..TRIES)
        .map(|_| in_child(test, main, is_whole))
        .find(|text| text.contains(function))
        .unwrap_or_else(|| panic!("no report of {TRIES} names {function}"))
}

/// Returns when the parent has read enough, or has ended.
fn wait_for_the_parent() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Spins without a poll point until `stop` is set.
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
    own_process(|| {
        // One kthread, so that threads queued behind the spinning thread stay queued.
        tailwater::RuntimeBuilder::new()
            .kthreads(1)
            .stall_timeout(Duration::ZERO)
            .run(|| {
                let stop = Arc::new(AtomicBool::new(false));
                let named = |name: &str| thread::Builder::new().name(name.to_owned());
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
                assert!(
                    after.threads.iter().all(|info| info.thread.name() != Some("parked")),
                    "an ended thread"
                );
                a_backtrace_goes_through_a_signal_handler();
            })
            .unwrap();
    });
}

/// Dumps until a dump shows the spinning thread with its backtrace; then lets it end.
fn look_until_it_spins(stop: &AtomicBool) -> Vec<ThreadInfo> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let dump = dump();
        let is_seen = dump.threads.iter().any(|info| mentions(info, "spins_here"));
        if is_seen || Instant::now() > deadline {
            stop.store(true, Ordering::Relaxed);
            assert!(is_seen && dump.left_out == 0, "{dump}");
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

/// Like a preempted thread's backtrace: its youngest frames are those of the preempt signal's
/// handler.
fn a_backtrace_goes_through_a_signal_handler() {
    // SAFETY: the handler is async-signal-safe, on the stack of the thread that it interrupts.
    unsafe { libc::signal(libc::SIGUSR1, spins_in_a_handler as *const () as usize) };
    let looker = std::thread::spawn(|| {
        while !IN_HANDLER.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // A thread that does not answer in time, on a busy machine, has no backtrace; the next dump
        // may find it.
        let deadline = Instant::now() + PATIENCE;
        let mut seen = None;
        while seen.is_none() && Instant::now() < deadline {
            let threads = dump().threads;
            let main = threads.into_iter().find(|info| info.thread.name() == Some("main"));
            seen = main.filter(|main| mentions(main, "spins_in_a_handler"));
        }
        LEAVE_HANDLER.store(true, Ordering::Relaxed);
        seen
    });
    is_interrupted_here();
    let main = looker.join().unwrap().expect("a look sees the handler");
    assert!(mentions(&main, "is_interrupted_here"), "{main}");
}

#[test]
fn a_signal_has_all_threads_printed_and_the_program_goes_on() {
    let main = || {
        // As inherited by a program that a shell starts in the background. SAFETY: no handler is
        // installed, and no code of this process depends on the disposition of this signal.
        unsafe { libc::signal(libc::SIGQUIT, libc::SIG_IGN) };
        let run = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
            let _parked = thread::Builder::new().name("parked".to_owned()).spawn(parks_here).unwrap();
            // Either kthread may run it. While it runs, the dump has no backtrace if Linux does not
            // run the kthread.
            let is_parked =
                |info: &ThreadInfo| info.state == ThreadState::Parked && mentions(info, "parks_here");
            while !dump().threads.iter().any(is_parked) {
                thread::yield_now();
            }
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
        let run = tailwater::RuntimeBuilder::new().kthreads(2).stall_timeout(LONG).run(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&stop);
            let hog = thread::Builder::new().name("hog".to_owned()).spawn(move || spins_here(&told)).unwrap();
            tailwater::blocking(wait_for_the_parent);
            stop.store(true, Ordering::Relaxed);
            hog.join().unwrap();
        });
        run.unwrap();
    };
    let text = report("a_thread_without_poll_points_is_named_with_its_backtrace", main, "spins_here");
    assert!(text.contains("tailwater: user thread 'hog' ("), "{text}");
    assert!(text.contains("no poll point"), "{text}");
}

#[test]
fn a_thread_in_a_blocking_system_call_is_reported_with_blocking_as_the_remedy() {
    let main = || {
        let runtime = tailwater::RuntimeBuilder::new().kthreads(1).stall_timeout(LONG);
        runtime.run(wait_for_the_parent).unwrap();
    };
    let test = "a_thread_in_a_blocking_system_call_is_reported_with_blocking_as_the_remedy";
    let text = report(test, main, "wait_for_the_parent");
    assert!(text.contains("user thread 'main' (1)") && text.contains("blocking system call"), "{text}");
    assert!(text.contains("kthread 0") && text.contains("tailwater::sync"), "{text}");
    assert!(text.contains("tailwater::blocking"), "{text}");
}

#[test]
fn a_list_of_libraries_that_is_read_over_a_switch_stops_no_other_reader() {
    own_process(|| {
        static READING: AtomicBool = AtomicBool::new(false);
        static WAITING: AtomicBool = AtomicBool::new(false);
        unsafe extern "C" fn reads(_: *mut libc::dl_phdr_info, _: usize, _: *mut libc::c_void) -> i32 {
            READING.store(true, Ordering::Relaxed);
            // A thread that finds the list locked sleeps before this one runs again.
            while !WAITING.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            1
        }
        let read = || {
            // SAFETY: the callback takes no data.
            unsafe { libc::dl_iterate_phdr(Some(reads), std::ptr::null_mut()) }
        };
        let builder = tailwater::RuntimeBuilder::new().kthreads(1).stall_timeout(Duration::from_millis(200));
        let run = builder.run(move || {
            let first = thread::spawn(read);
            while !READING.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let wait = move || {
                WAITING.store(true, Ordering::Relaxed);
                read()
            };
            let others: Vec<_> = (0..3).map(|_| thread::spawn(wait)).collect();
            assert_eq!(first.join().unwrap(), 1);
            others.into_iter().for_each(|other| assert_eq!(other.join().unwrap(), 1));
        });
        run.unwrap();
    });
}

#[test]
fn threads_that_poll_or_yield_or_wait_are_not_reported() {
    let main = || {
        let run = tailwater::RuntimeBuilder::new().kthreads(1).stall_timeout(SHORT).run(|| {
            let mut last = Instant::now();
            let mut for_a_while = |step: fn()| {
                let end = last + 8 * SHORT;
                while last < end {
                    step();
                    let now = Instant::now();
                    if now - last > SHORT / 2 {
                        eprintln!("{PAUSED}");
                    }
                    last = now;
                }
            };
            for_a_while(tailwater::poll);
            for_a_while(thread::yield_now);
            thread::sleep(8 * SHORT);
            tailwater::blocking(|| std::thread::sleep(8 * SHORT));
        });
        run.unwrap();
    };
    let text = in_child("threads_that_poll_or_yield_or_wait_are_not_reported", main, |_| false);
    // If the host takes a core away from a virtual machine, that counts as processor time of the
    // thread that was running there.
    assert!(!text.contains("tailwater: user thread") || text.contains(PAUSED), "{text}");
}
