//! Panics of user threads name the thread.
//!
//! `std` knows a user thread only as one it did not start, so its message says `<unnamed>`. A line with the name goes before it; then
//! the hook that was there does what it does.

use crate::thread::handle::UserThread;
use std::panic;

/// Puts the hook before the present one. A hook that the program sets later replaces both, as always.
pub fn install_hook() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Some(thread) = UserThread::current() {
            eprintln!("tailwater: user thread {thread} panicked:");
        }
        previous(info);
    }));
}
