//! Wakes a station for a measuring thread.
//!
//! Owns a flag, which the station reads at every poll, and an event descriptor, which wakes an
//! IOKernel that sleeps. What the attention is for travels besides.
//!
//! | field | written by | read by | ordering |
//! |---|---|---|---|
//! | `changed` | handle, after what it announces | station, every poll | Release / Acquire |

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Bell {
    changed: AtomicBool,
    wake: OwnedFd,
}

impl Bell {
    /// Returns a silent bell.
    ///
    /// # Errors
    /// If the kernel has no event descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { changed: AtomicBool::new(false), wake })
    }

    /// Announces what the caller has written.
    pub(crate) fn ring(&self) {
        // Release: pairs with the Acquire in `answer`; what is new is there before the flag shows.
        self.changed.store(true, Ordering::Release);
        // Fails only when the counter is at its maximum, and then it is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Returns true if the bell has been rung and not answered.
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        // Relaxed: a hint; `answer` has the Acquire.
        self.changed.load(Ordering::Relaxed)
    }

    /// Silences the bell; what was announced before is visible then.
    pub(crate) fn answer(&self) {
        // Acquire: pairs with the Release in `ring`.
        self.changed.swap(false, Ordering::Acquire);
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bell: &Bell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn a_bell_is_rung_and_its_descriptor_readable_until_it_is_answered() {
        let bell = Bell::new().unwrap();
        assert!(!bell.is_rung() && !is_readable(&bell));
        bell.ring();
        bell.ring();
        assert!(bell.is_rung() && is_readable(&bell));
        bell.answer();
        assert!(!bell.is_rung() && !is_readable(&bell));
    }
}
