//! Signal handlers that wake, wherever they interrupt: `sem_post` is safe in them (POSIX,
//! signal-safety(7)).

use crate::{Case, adopting};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tailwater::thread;
use tailwater_testkit::PATIENCE;

pub const CASES: &[Case] = &[
    ("handlers_that_post_a_semaphore_lose_no_wake", || posts(0)),
    ("handlers_on_the_alternate_stack_lose_no_wake", || posts(libc::SA_ONSTACK)),
];

struct Semaphore(UnsafeCell<libc::sem_t>);

// SAFETY: a semaphore is made for several threads.
unsafe impl Sync for Semaphore {}

// SAFETY: initialised before its first use.
static SEMAPHORE: Semaphore = Semaphore(UnsafeCell::new(unsafe { core::mem::zeroed() }));
static POSTED: AtomicU64 = AtomicU64::new(0);
static TAKEN: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn post(_: libc::c_int) {
    POSTED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: initialised by `posts`; async-signal-safe.
    unsafe { libc::sem_post(SEMAPHORE.0.get()) };
}

fn take() {
    // SAFETY: as above.
    while unsafe { libc::sem_wait(SEMAPHORE.0.get()) } != 0 {}
    TAKEN.fetch_add(1, Ordering::SeqCst);
}

/// Sends the signal to all threads of the process, again and again.
fn send() {
    let process = rustix::process::getpid();
    while !OVER.load(Ordering::Relaxed) {
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let Ok(tid) = task.unwrap().file_name().to_str().unwrap().parse::<i32>() else { continue };
            for _ in 0..8 {
                // SAFETY: the handler is installed.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, process.as_raw_nonzero().get(), tid, libc::SIGUSR1);
                }
            }
        }
    }
}

/// Waits until the handlers' posts have been taken.
fn await_balance() {
    let start = Instant::now();
    while TAKEN.load(Ordering::SeqCst) != POSTED.load(Ordering::SeqCst) {
        assert!(start.elapsed() < PATIENCE, "{TAKEN:?} of {POSTED:?} posts were taken");
        tailwater::time::sleep(Duration::from_millis(1));
    }
}

fn posts(flags: libc::c_int) {
    // SAFETY: the semaphore and the handler are set up before they are used.
    unsafe {
        libc::sem_init(SEMAPHORE.0.get(), 0, 0);
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = post as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = flags | libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()), 0);
    }
    let builder = adopting(2).quantum(Duration::from_micros(100));
    let run = builder.run(|| {
        let takers: Vec<_> = (0..8)
            .map(|_| {
                thread::spawn(|| {
                    while !OVER.load(Ordering::Relaxed) {
                        take();
                    }
                })
            })
            .collect();
        // What the handlers interrupt: waits and wakes of the same table.
        let state = Arc::new((Mutex::new(0u64), Condvar::new()));
        let passers: Vec<_> = (0..4)
            .map(|me| {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    let (turn, changed) = &*state;
                    let mut turn = turn.lock().unwrap();
                    while !OVER.load(Ordering::Relaxed) {
                        *turn += u64::from(*turn % 4 == me);
                        changed.notify_all();
                        turn = changed.wait_timeout(turn, Duration::from_millis(1)).unwrap().0;
                    }
                })
            })
            .collect();
        let sender = tailwater::blocking(|| std::thread::spawn(send));
        let start = Instant::now();
        // Three seconds at most on an idle machine, and until some are handled on a busy one.
        let goes_on = || match POSTED.load(Ordering::Relaxed) {
            ..=100 => start.elapsed() < PATIENCE,
            posted => posted < 20_000 && start.elapsed() < Duration::from_secs(3),
        };
        while goes_on() {
            tailwater::time::sleep(Duration::from_millis(5));
        }
        OVER.store(true, Ordering::Relaxed);
        tailwater::blocking(|| sender.join().unwrap());
        // Each taker ends with its next post.
        for _ in 0..takers.len() {
            post(0);
        }
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        while TAKEN.load(Ordering::SeqCst) < POSTED.load(Ordering::SeqCst) {
            take();
        }
        await_balance();
        passers.into_iter().for_each(|passer| passer.join().unwrap());
    });
    run.unwrap();
    assert!(POSTED.load(Ordering::Relaxed) > 100, "{POSTED:?} signals were handled");
}
