//! Ctrl-C as a descriptor that a thread can wait for.
//!
//! Owns a pipe that becomes readable, and stays so, when SIGINT or SIGTERM arrives. A wait for it
//! costs nothing until then; checking a flag at intervals would show in the tail latency of a
//! machine with two cores. A second signal of the same kind ends the process at once.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use signal_hook::consts::{SIGINT, SIGTERM};

/// SIGINT or SIGTERM has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The signals that have arrived since this was made.
#[derive(Debug)]
pub struct Interrupt {
    signalled: UnixStream,
}

impl Interrupt {
    /// Catches SIGINT and SIGTERM from now on, for the life of the process.
    ///
    /// # Errors
    /// If the kernel refuses a socket pair or a handler.
    pub fn catch() -> anyhow::Result<Self> {
        let (signalled, writer) = UnixStream::pair().context("cannot catch signals")?;
        for signal in [SIGINT, SIGTERM] {
            let seen = Arc::new(AtomicBool::new(false));
            // The order matters: the first signal finds `seen` unset, sets it, and writes.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&seen))
                .and_then(|_| signal_hook::flag::register(signal, seen))
                .and_then(|_| signal_hook::low_level::pipe::register(signal, writer.try_clone()?))
                .context("cannot catch signals")?;
        }
        Ok(Self { signalled })
    }

    /// Fails if a signal has arrived.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<(), Interrupted> {
        self.sleep_until(Instant::now())
    }

    /// Sleeps until `time` or until a signal arrives.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn sleep_until(&self, time: Instant) -> Result<(), Interrupted> {
        self.wait_readable(None, time).map(|_| ())
    }

    /// Waits until `fd` is readable (true) or `deadline` has passed (false).
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn wait_readable(&self, fd: Option<BorrowedFd<'_>>, deadline: Instant) -> Result<bool, Interrupted> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [
                PollFd::from_borrowed_fd(self.signalled.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(fd.unwrap_or(self.signalled.as_fd()), PollFlags::IN),
            ];
            // A call that a signal interrupts is repeated.
            let ready = poll(&mut fds, Some(&timespec(left))).unwrap_or(0);
            if !fds[0].revents().is_empty() && ready > 0 {
                return Err(Interrupted);
            }
            if ready > 0 {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
