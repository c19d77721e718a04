//! The hand-off that Tailwater avoids: a signal makes the victim park, an eventfd wakes the next
//! thread.
//!
//! Owns two child processes bound to one core, a victim that spins and a service that waits, and
//! the thread that acts as the IOKernel on another core. As in Shenango section 6.1, the signal
//! handler parks in a blocking read of the victim's eventfd. A parameter chooses whether the
//! service is woken after the victim has parked (Shenango) or at once (nothing the kernel offers is
//! faster). All communication is by eventfds and one pipe; no shared memory.

use hdrhistogram::Histogram;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::pipe::pipe;
use rustix::process::Signal;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tailwater_shm::{Clock, clock};
use tailwater_testkit::Program;

use super::baseline_child::{BaselineOrder, only};
use super::common::{BenchError, PATIENCE};
use crate::child::{VARIABLE, baseline_order};

/// Both children and this end of their descriptors.
pub(super) struct Baseline {
    victim: Program,
    // Waits for its wake.
    _service: Program,
    service_fd: OwnedFd,
    parked_fd: OwnedFd,
    stamps: OwnedFd,
    clock: Clock,
    // Kept open for the children that inherited them.
    _theirs: [OwnedFd; 2],
    before: rustix::thread::CpuSet,
}

fn inheritable() -> Result<OwnedFd, BenchError> {
    eventfd(0, EventfdFlags::empty()).map_err(|source| BenchError::System { what: "an eventfd", source })
}

impl Baseline {
    /// Starts both children. `cores`: the core on which the calling thread acts as the IOKernel,
    /// and the core that the two children hand to each other.
    pub(super) fn start(spawn: &dyn Fn() -> Command, cores: (u16, u16)) -> Result<Self, BenchError> {
        let system = |what| move |source| BenchError::System { what, source };
        let (victim_fd, service_fd, parked_fd) = (inheritable()?, inheritable()?, inheritable()?);
        let (stamps, stamps_out) = pipe().map_err(system("a pipe"))?;
        let order = |victim| BaselineOrder {
            core: cores.1,
            victim,
            victim_fd: victim_fd.as_raw_fd(),
            service_fd: service_fd.as_raw_fd(),
            parked_fd: parked_fd.as_raw_fd(),
            stamps_fd: stamps_out.as_raw_fd(),
        };
        let start = |victim| {
            let mut command = spawn();
            command.env(VARIABLE, baseline_order(order(victim)));
            Program::try_spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))
                .map_err(|e| BenchError::Child(format!("cannot start {command:?}: {e}")))
        };
        let (victim, service) = (start(true)?, start(false)?);
        for fd in [&parked_fd, &stamps] {
            rustix::io::ioctl_fionbio(fd, true).map_err(system("a non-blocking descriptor"))?;
        }
        let before = rustix::thread::sched_getaffinity(None).map_err(system("an affinity mask"))?;
        rustix::thread::sched_setaffinity(None, &only(cores.0)).map_err(system("an affinity"))?;
        let clock = Clock::calibrate(10);
        let theirs = [victim_fd, stamps_out];
        let mut baseline =
            Self { victim, _service: service, service_fd, parked_fd, stamps, clock, _theirs: theirs, before };
        // Each child writes one stamp when it is ready.
        baseline.stamp()?;
        baseline.stamp()?;
        Ok(baseline)
    }

    /// Measures `count` hand-offs, `gap` apart, into `into`.
    pub(super) fn measure(
        &mut self,
        count: usize,
        gap: Duration,
        together: bool,
        into: &mut Histogram<u64>,
    ) -> Result<(), BenchError> {
        let gap = self.clock.from_ns(gap.as_nanos() as u64);
        for _ in 0..count {
            let next = clock::now() + gap;
            while clock::now() < next {
                core::hint::spin_loop();
            }
            let decided = clock::now();
            // The first thread of the victim: the only one that runs.
            self.victim.signal(Signal::URG);
            if !together {
                // The IOKernel learns from the victim that the core is free, and only then wakes
                // the next thread.
                poll_read(&self.parked_fd)?;
            }
            let _ = write(&self.service_fd, &1u64.to_ne_bytes());
            if together {
                poll_read(&self.parked_fd)?;
            }
            let began = self.stamp()?;
            into.saturating_record(self.clock.to_ns(began.saturating_sub(decided)));
        }
        Ok(())
    }

    /// Returns the next time stamp that a child wrote.
    fn stamp(&mut self) -> Result<u64, BenchError> {
        poll_read(&self.stamps)
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}

/// Reads eight bytes from a non-blocking descriptor by polling, as an IOKernel would.
fn poll_read(fd: &OwnedFd) -> Result<u64, BenchError> {
    let end = Instant::now() + PATIENCE;
    let mut bytes = [0; 8];
    loop {
        for _ in 0..1_000 {
            match read(fd, &mut bytes) {
                Ok(8) => return Ok(u64::from_ne_bytes(bytes)),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => core::hint::spin_loop(),
                Err(source) => return Err(BenchError::System { what: "a read", source }),
            }
        }
        if Instant::now() > end {
            return Err(BenchError::TooSlow { what: "a hand-off of the baseline", limit: PATIENCE });
        }
    }
}
