//! Adaptive polling: sleep when the machine is idle, without losing a wake-up.
//!
//! Owns the handshake with runtimes and ports. The polling thread sleeps when for `idle_sleep` no frame moved and no runtime
//! had or wanted a core. Two sides write one word and read the other's:
//!
//! | polling thread | a thread of a runtime that has work for it |
//! |---|---|
//! | `asleep` = 1, in every region | queue the work |
//! | `fence(SeqCst)` | `fence(SeqCst)` |
//! | look at all queues; sleep only if they are empty | look at `asleep`; ring the doorbell if it is set |
//!
//! At least one side sees the other's write. Ports wake it through their descriptors and their next event, the control
//! thread through its bell, dying runtimes through their sockets. A hostile doorbell costs the processor time of an
//! otherwise idle core, no more.

use core::sync::atomic::{AtomicBool, Ordering, fence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use tailwater_shm::{Cycles, clock};

use super::Polling;
use crate::port::Port;

/// How long before a timer or a port's next event the sleep ends, in microseconds: the wake of a halted core takes 20 to 52
/// (2-vCPU VM), and an event must not be late because nobody was awake.
pub(super) const WAKE_MARGIN_US: u64 = 60;
/// Longest sleep, so that the stop flag is noticed; ten wakes a second cost under 0.1 % of a core.
const LONGEST_NS: u64 = 100_000_000;

impl Polling {
    /// Sleeps until something happens, unless something just did.
    #[cold]
    pub(super) fn sleep(&mut self, stop: &AtomicBool, now: Cycles) {
        if self.time_left(now).is_none() {
            return;
        }
        self.set_asleep(1);
        // SeqCst: pairs with the fence between a runtime's queueing and its look at `asleep` (see the table above).
        fence(Ordering::SeqCst);
        self.allocator.look_at_all(now);
        let quiet = self.allocator.is_quiet() && !self.switch.has_egress() && !stop.load(Ordering::Relaxed);
        if quiet && let Some(timeout) = self.time_left(clock::now()) {
            self.stats.polling.sleeps.add(1);
            self.wait(timeout);
            let slept = clock::now().saturating_sub(now);
            self.stats.polling.slept_ns.add(self.clock.to_ns(slept));
        }
        self.set_asleep(0);
        // Whatever woke us shows at a look.
        self.next_tick = 0;
        self.next_death_check = 0;
    }

    fn set_asleep(&self, value: u32) {
        for runtime in self.allocator.runtimes.iter() {
            // Relaxed: ordered by the fence in `sleep`; clearing it late costs a needless ring.
            runtime.region.asleep().store(value, Ordering::Relaxed);
        }
    }

    /// Nanoseconds that may be slept; `None` when the next event is too near.
    fn time_left(&self, now: Cycles) -> Option<u64> {
        let event = self.switch.ports().filter_map(Port::next_event).min().unwrap_or(Cycles::MAX);
        let next = event.min(self.allocator.earliest_timer());
        let left = next.saturating_sub(now).checked_sub(self.margin)?;
        // Too short a nap is worth neither its system call nor the halt.
        (left > self.margin).then(|| self.clock.to_ns(left).min(LONGEST_NS))
    }

    fn wait(&mut self, timeout_ns: u64) {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.from_control.fd(), PollFlags::IN),
            PollFd::new(&self.deaths, PollFlags::IN),
        ];
        let fixed = fds.len();
        fds.extend(self.allocator.runtimes.iter().map(|r| PollFd::new(&r.doorbell, PollFlags::IN)));
        let bells = fds.len();
        let ports = self.switch.ports().filter_map(Port::pollable);
        fds.extend(ports.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        // Interrupted by a signal: look again, as after any other wake.
        let _ = poll(&mut fds, Some(&timeout));
        if fds[0].revents().contains(PollFlags::IN) {
            self.from_control.silence();
        }
        for fd in fds[fixed..bells].iter().filter(|fd| fd.revents().contains(PollFlags::IN)) {
            let _ = rustix::io::read(fd.as_fd(), &mut [0u8; 8]);
        }
    }
}
