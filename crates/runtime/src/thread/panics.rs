//! Panic messages of user threads with the thread's name.
//!
//! `std` did not start a user thread, so its message says `<unnamed>`. A line with the name is
//! printed before it; then the previous hook runs.

use crate::thread::handle::UserThread;
use std::panic;

/// Installs the hook before the present one. A hook that the program sets later replaces both, as
/// usual.
pub fn install_hook() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Some(thread) = UserThread::current() {
            eprintln!("tailwater: user thread {thread} panicked:");
        }
        previous(info);
    }));
}
