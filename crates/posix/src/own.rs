//! Descriptors of the library and of the runtime.
//!
//! Owns their list. A program that closes all descriptors of a range (close_range(2), closefrom(3))
//! leaves these open: it has not opened them, and would cut itself off from its network.

use crate::real;
use libc::{c_int, c_uint};
use std::fs;
use tailwater::internals::SpinLock;

static OWN: SpinLock<Vec<i32>> = SpinLock::new(Vec::new());

/// Records an open descriptor, until [`remove`] or the end of the process.
pub fn add(fd: i32) {
    let mut own = OWN.lock();
    if !own.contains(&fd) {
        own.push(fd);
    }
}

/// Forgets a descriptor, which is closed.
pub fn remove(fd: i32) {
    OWN.lock().retain(|&other| other != fd);
}

/// Returns the open descriptors of the process.
pub fn open_descriptors() -> Vec<i32> {
    let Ok(listed) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let open = |fd: &i32| {
        // The one of the listing itself is closed by now.
        // SAFETY: no pointers.
        unsafe { real::fcntl(*fd, libc::F_GETFD, 0) >= 0 }
    };
    numbers.collect::<Vec<i32>>().into_iter().filter(open).collect()
}

/// Closes the descriptors from `first` to `last` that are not in the list, as close_range(2).
pub fn close_others(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut own: Vec<c_uint> = OWN.lock().iter().map(|&fd| fd as c_uint).collect();
    own.sort_unstable();
    let mut from = first;
    for fd in own.into_iter().filter(|fd| (first..=last).contains(fd)) {
        if from < fd {
            // SAFETY: no pointers.
            let result = unsafe { real::close_range(from, fd - 1, flags) };
            if result != 0 {
                return result;
            }
        }
        from = fd + 1;
    }
    // SAFETY: no pointers.
    if from <= last { unsafe { real::close_range(from, last, flags) } } else { 0 }
}
