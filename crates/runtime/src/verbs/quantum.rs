//! Time slices: ends the turn of a user thread that neither blocks nor reaches a poll point while
//! others wait for its kthread.
//!
//! Owns one ordinary thread, started only if a [`quantum`](crate::Builder::quantum) is set, that
//! looks at every kthread once per quantum (Go's `sysmon` does so every 10 ms). If a kthread runs
//! the same thread as at the look before while something waits for it, the thread's turn is over:
//! it gives the core up at its next poll point or when the preempt signal arrives, whichever comes
//! first. So a thread runs for one to two quanta.
//!
//! Independent of the IOKernel, which takes *cores* away from runtimes; this shares one core among
//! the threads of one runtime.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `Kthread::turn_over` | this thread: true; its kthread: false, when it acts on it | its kthread |
//! | `Head::grant` | this thread, by `expect_poll`; its kthread, by `note_poll` | poll points of its kthread |
//!
//! The stall detector ends turns as well, of threads that sleep in the kernel (see
//! [`debug`](crate::debug)).
//!
//! Both words are hints: one that comes late, when the kthread has switched, ends another thread's
//! turn early.

use super::look::waits_for;
use crate::records::kthread::Kthread;
use crate::records::runtime::runtime;
use core::sync::atomic::Ordering;
use std::io;
use std::time::Duration;
use tailwater_shm::clock;

/// Timer slack of the thread, in nanoseconds: the default, 50 us, is as long as a short quantum
/// (prctl(2), `PR_SET_TIMERSLACK`).
const TIMER_SLACK_NS: u64 = 1;

/// Starts the thread if a quantum is set. Called from an ordinary thread off the managed cores.
///
/// # Errors
/// If it cannot be started.
pub fn start(quantum: Option<Duration>) -> io::Result<()> {
    let Some(quantum) = quantum else { return Ok(()) };
    std::thread::Builder::new()
        .name("tailwater/quantum".to_owned())
        .spawn(move || end_turns(quantum))
        .map(drop)
}

fn end_turns(quantum: Duration) {
    // It runs for a microsecond at a time, and a quantum must not last for as long as Linux lets
    // the kthreads run.
    tailwater_shm::priority::raise_thread();
    // SAFETY: this option has no memory operands. A refusal makes quanta longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
    let runtime = runtime();
    // Of each kthread, the turn in progress at the last look, and the number of looks since it
    // should have been over.
    let mut seen = vec![(None, 0u32); runtime.kthreads.len()];
    loop {
        std::thread::sleep(quantum);
        for (&kthread, (seen, overdue)) in runtime.kthreads.iter().zip(&mut seen) {
            let turn = turn_of(kthread);
            let over = turn.is_some() && turn == *seen && waits_for(kthread, runtime, clock::now());
            *overdue = if over { overdue.saturating_add(1) } else { 0 };
            *seen = turn;
            // More and more rarely while preemption stays off: delivering a signal takes longer
            // than a short quantum, and signals at every quantum would interrupt each other's
            // handlers until the stack is full.
            if overdue.is_power_of_two() {
                end_turn(kthread);
            }
        }
    }
}

/// Returns the number of the turn in progress, `None` in the scheduler.
fn turn_of(kthread: &Kthread) -> Option<u64> {
    kthread.current().map(|_| kthread.counters.switches.load(Ordering::Relaxed))
}

/// Makes the running thread give way to those that wait, at its next poll point or by signal, also
/// in a system call. Any thread may call this.
pub fn end_turn(kthread: &Kthread) {
    kthread.set_turn_over(true);
    kthread.head().expect_poll();
    kthread.interrupt();
}
