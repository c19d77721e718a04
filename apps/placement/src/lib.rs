//! Code that the services share when they run on kernel sockets: one core for all threads, receive
//! buffers as large as Tailwater's ([`buffer`]), and errors that name the attempt.
//!
//! Owns the check of a core before any thread is bound to it, so that a service with a wrong core
//! does not start at all.

#![forbid(unsafe_code)]

use std::io;

pub mod buffer;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns an error of the same kind, with what was attempted in its message.
#[must_use]
pub fn explain(error: &io::Error, attempt: &str) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {attempt}: {error}"))
}

/// Returns the set with just `core`, after trying it on the calling thread, whose own set is then
/// restored.
///
/// # Errors
/// The kernel's error: the core does not exist, or this process may not use it.
pub fn only_core(core: usize) -> io::Result<CpuSet> {
    let mut only = CpuSet::new();
    // The kernel refuses an empty set too.
    if core < CpuSet::MAX_CPU {
        only.set(core);
    }
    let before = sched_getaffinity(None)?;
    sched_setaffinity(None, &only).map_err(|e| explain(&e.into(), &format!("use core {core}")))?;
    sched_setaffinity(None, &before)?;
    Ok(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_can_be_had_is_tried_and_the_thread_stays_where_it_was() {
        let before = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap();
        let only = only_core(core).unwrap();
        assert_eq!((only.count(), only.is_set(core)), (1, true));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn a_core_that_cannot_be_had_is_an_error_that_names_it() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU] {
            let error = only_core(core).unwrap_err().to_string();
            assert!(error.contains(&format!("cannot use core {core}")), "{error}");
        }
    }
}
