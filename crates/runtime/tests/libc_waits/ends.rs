//! Forks, the end of the process, the end of an ordinary thread, and what comes after the runtime's
//! main thread.

use crate::{Case, run_adopted};
use core::ffi::c_void;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;
use tailwater::thread;

pub const CASES: &[Case] = &[
    ("a_child_waits_in_the_kernel", fork),
    ("the_process_ends_while_threads_wait", exit),
    ("ordinary_threads_go_on_after_the_main_thread", after),
    ("an_ordinary_thread_that_waits_can_be_cancelled", cancel),
];

/// Keeps user threads waiting for a lock that is never free for long.
fn contend() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let lock = Arc::new(Mutex::new(0));
    for _ in 0..4 {
        let (over, lock) = (Arc::clone(&over), Arc::clone(&lock));
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let mut count = lock.lock().unwrap();
                thread::yield_now();
                *count += 1;
            }
        });
    }
    over
}

/// What a child does: waits, with and without a timeout, for a thread of its own.
fn child() -> i32 {
    let (sender, receiver) = mpsc::channel();
    let (back, answers) = mpsc::channel();
    let thread = std::thread::spawn(move || receiver.iter().for_each(|n: u32| back.send(n + 1).unwrap()));
    for n in 0..100 {
        sender.send(n).unwrap();
        assert_eq!(answers.recv().unwrap(), n + 1);
    }
    drop(sender);
    thread.join().unwrap();
    let (lock, condvar) = (Mutex::new(()), Condvar::new());
    let wait = condvar.wait_timeout(lock.lock().unwrap(), Duration::from_millis(5)).unwrap();
    i32::from(!wait.1.timed_out())
}

fn fork() {
    run_adopted(1, || {
        let over = contend();
        // SAFETY: the child uses what belongs to itself, and ends by `_exit`.
        tailwater::blocking(|| unsafe {
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                libc::_exit(child());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        });
        over.store(true, Ordering::Relaxed);
    });
}

fn exit() {
    static SAID: Mutex<u32> = Mutex::new(0);
    extern "C" fn at_exit() {
        *SAID.lock().unwrap() += 1;
        println!("the handler ran");
    }
    let _: ExitCode = run_adopted(1, || {
        // SAFETY: a handler that may run at any time.
        unsafe { libc::atexit(at_exit) };
        contend();
        let never = Arc::new((Mutex::new(()), Condvar::new()));
        for _ in 0..4 {
            let never = Arc::clone(&never);
            thread::spawn(move || drop(never.1.wait(never.0.lock().unwrap())));
        }
        thread::yield_now();
        std::process::exit(0)
    });
}

fn after() {
    run_adopted(1, || {
        contend();
    });
    let (sender, receiver) = mpsc::channel();
    let (back, answers) = mpsc::channel();
    let thread = std::thread::spawn(move || receiver.iter().for_each(|n: u32| back.send(n + 1).unwrap()));
    for n in 0..500 {
        sender.send(n).unwrap();
        assert_eq!(answers.recv().unwrap(), n + 1);
    }
    drop(sender);
    thread.join().unwrap();
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
}

/// Waits for a condition that never comes.
extern "C-unwind" fn wait_for_ever(waits: *mut c_void) -> *mut c_void {
    // SAFETY: `cancel` passes a flag that lives, and the objects are initialised. The frame has
    // nothing to drop when it is unwound.
    unsafe {
        let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        let mut cond = libc::PTHREAD_COND_INITIALIZER;
        libc::pthread_mutex_lock(&raw mut mutex);
        (*waits.cast::<AtomicU32>()).store(1, Ordering::SeqCst);
        loop {
            libc::pthread_cond_wait(&raw mut cond, &raw mut mutex);
        }
    }
}

fn cancel() {
    run_adopted(1, || {
        let waits = AtomicU32::new(0);
        tailwater::blocking(|| {
            // SAFETY: the thread uses the flag until it is joined. Its function unwinds as C's do.
            unsafe {
                let mut thread = core::mem::zeroed();
                let start: extern "C" fn(*mut c_void) -> *mut c_void =
                    core::mem::transmute(wait_for_ever as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
                let argument = core::ptr::from_ref(&waits).cast_mut().cast();
                assert_eq!(libc::pthread_create(&raw mut thread, core::ptr::null(), start, argument), 0);
                while waits.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                // Also if it does not wait yet.
                assert_eq!(pthread_cancel(thread), 0);
                let mut result = core::ptr::null_mut();
                assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
                assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
            }
        });
    });
}
