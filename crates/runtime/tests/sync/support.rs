//! One standalone runtime for all tests of this process, and threads of both kinds.

use std::panic::resume_unwind;
use std::sync::Once;
use std::time::{Duration, Instant};
use tailwater::thread;
use tailwater_testkit::PATIENCE;

/// Starts the runtime; it stays when its main thread has ended.
pub fn start_runtime() {
    static START: Once = Once::new();
    START.call_once(|| tailwater::RuntimeBuilder::new().kthreads(3).run(|| ()).unwrap());
}

/// Runs `test` on an OS thread, then on a user thread.
pub fn in_both_worlds(test: fn()) {
    start_runtime();
    test();
    thread::spawn(test).join().unwrap_or_else(|panic| resume_unwind(panic));
}

/// A user thread or an OS thread.
pub enum Handle<T> {
    User(thread::JoinHandle<T>),
    Os(std::thread::JoinHandle<T>),
}

impl<T> Handle<T> {
    pub fn join(self) -> std::thread::Result<T> {
        match self {
            Self::User(handle) => handle.join(),
            // On a user thread, waits without holding the core.
            Self::Os(handle) => {
                while !handle.is_finished() {
                    thread::sleep(Duration::from_micros(200));
                }
                handle.join()
            }
        }
    }
}

/// Starts a thread: every third one is an OS thread.
pub fn spawn<T: Send + 'static>(number: usize, main: impl FnOnce() -> T + Send + 'static) -> Handle<T> {
    start_runtime();
    match number % 3 {
        2 => Handle::Os(std::thread::spawn(main)),
        _ => Handle::User(thread::spawn(main)),
    }
}

/// Starts `count` threads of both kinds, each with its number, and returns what they return.
pub fn mixed<T: Send + 'static>(count: usize, main: impl Fn(usize) -> T + Clone + Send + 'static) -> Vec<T> {
    let start = |number| {
        let main = main.clone();
        spawn(number, move || main(number))
    };
    let threads: Vec<_> = (0..count).map(start).collect();
    threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
}

/// Waits until `condition` holds, which it must however busy the machine is.
pub fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "this never happens");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Returns the message of the panic that `main` ends with.
pub fn panic_message<T: std::fmt::Debug>(main: impl FnOnce() -> T) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(main)).unwrap_err();
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
    }
}
