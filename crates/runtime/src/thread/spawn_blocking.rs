//! [`spawn_blocking`]: a thread whose closure runs off the managed cores.

use crate::blocking::blocking;
use crate::thread::spawn::{JoinHandle, spawn};

/// Starts `f` on an ordinary thread, as [`blocking`](crate::blocking); the handle's thread is the
/// user thread that waits for it.
///
/// # Panics
/// If there is no runtime, or no memory for a stack.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let name = thread::spawn_blocking(|| std::fs::read_to_string("/proc/self/comm"));
///     assert!(!name.join().unwrap().unwrap().is_empty());
/// }
/// ```
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    spawn(move || blocking(f))
}
