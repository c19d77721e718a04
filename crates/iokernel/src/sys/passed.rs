//! Descriptors that a service manager passes to the process that it starts (sd_listen_fds(3)).

use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them; the others follow.
const FIRST: RawFd = 3;
/// Most of them.
const MOST: usize = 256;

/// Set once they are taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the descriptors that the service manager has passed to this process, with their names;
/// none if there is no manager, or they have been taken. To be called before this process opens a
/// descriptor of its own: that one may have one of their numbers, should the variables be wrong.
pub fn passed_descriptors() -> Vec<(String, OwnedFd)> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let count = count(&variable("LISTEN_PID"), &variable("LISTEN_FDS"), std::process::id());
    // Relaxed: only one caller sees false; the flag publishes nothing else.
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let names = variable("LISTEN_FDNAMES");
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    (FIRST..).take(count).zip(names).filter_map(|(number, name)| Some((name, take(number)?))).collect()
}

/// Returns how many are passed to process `own`, by what the variables say.
fn count(pid: &str, number: &str, own: u32) -> usize {
    // Of another process: this one inherited the variables.
    let is_own = pid.parse() == Ok(own);
    number.parse().ok().filter(|_| is_own).map_or(0, |number: usize| number.min(MOST))
}

/// Returns the descriptor of a number; `None` if there is none.
fn take(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the call takes integers and touches no memory of ours; it fails for a number that
    // is not open.
    let is_open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    // SAFETY: it is open, and by the variables the manager has opened it for this process; no
    // other code takes it, since each is taken once, by the flag.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_another_process_and_garbage_are_none() {
        assert_eq!([count("7", "3", 7), count("8", "3", 7), count("", "", 7)], [3, 0, 0]);
        assert_eq!([count("7", "-1", 7), count("7", "999999999", 7), count("x", "3", 7)], [0, MOST, 0]);
        assert!(take(RawFd::MAX).is_none());
        assert!(passed_descriptors().is_empty(), "no manager has started this test");
    }
}
