//! The watcher: one ordinary thread that looks for stalls.
//!
//! It looks four times per timeout while threads run, and once per timeout while none do. Between
//! two looks the progress of a running thread shows in its kthread's count of switches, or, if it
//! runs alone, in the flag ([`Head::expect_poll`](crate::ground::guard::Head::expect_poll)) that
//! its next poll point answers: poll points cost the same whether the watcher runs or not.
//!
//! A thread that stalls in a system call while others wait for its kthread is interrupted and
//! queued behind them; the call continues when its turn comes. Otherwise two threads that share a
//! lock of `std`'s would deadlock a program with one kthread: one sleeps in the kernel until the
//! other, switched away while it held the lock, unlocks it. So the watcher waits for no lock that a
//! user thread may hold, as the dynamic linker's: unwinding needs that one, and is the
//! [reporter](super::report)'s.

use super::report::{self, Observed};
use crate::config::Config;
use crate::debug::stall::{Cause, Look, Stall, StallStatus};
use crate::records::kthread::Kthread;
use crate::records::runtime::{Runtime, runtime};
use crate::records::uthread::Uthread;
use crate::thread::UserThread;
#[cfg(feature = "debug")]
use crate::verbs::snapshot;
use crate::verbs::{look, quantum};
use core::sync::atomic::Ordering;
use std::io;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use tailwater_shm::clock;

/// Shortest time between two reports, however many threads stall.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

/// Starts the reporter and the watcher, as far as they are configured. Call from an ordinary thread
/// off the managed cores.
///
/// # Errors
/// If no thread can be started.
pub fn start(config: &Config) -> io::Result<()> {
    let reporter = report::start(config)?;
    let (Some(reporter), Some(timeout)) = (reporter, config.stall_timeout) else { return Ok(()) };
    let watch = move || watch(timeout, reporter);
    std::thread::Builder::new().name("tailwater/stalls".to_owned()).spawn(watch).map(drop)
}

fn watch(timeout: Duration, reporter: SyncSender<Observed>) {
    // The watcher runs for microseconds at a time, perhaps on the core that an IOKernel polls on; a
    // low priority would keep it waiting for longer than it may sleep.
    tailwater_shm::priority::raise_thread();
    let runtime = runtime();
    let mut stalls: Vec<Stall> = runtime.kthreads.iter().map(|_| Stall::default()).collect();
    let mut reports = Reports { reporter, last: None, left_out: 0 };
    let start = Instant::now();
    loop {
        let busy = look_for_stalls(runtime, &mut stalls, start, timeout, &mut reports);
        let tick = if busy { timeout / 4 } else { timeout };
        let before = Instant::now();
        std::thread::sleep(tick);
        if before.elapsed() > 2 * tick {
            // The process was stopped, or the machine is overloaded: an apparent stall may be the
            // watcher's own.
            stalls.iter_mut().for_each(|stall| *stall = Stall::default());
        }
    }
}

/// Looks for stalls; returns whether some kthread runs a thread.
fn look_for_stalls(
    runtime: &Runtime,
    stalls: &mut [Stall],
    start: Instant,
    timeout: Duration,
    reports: &mut Reports,
) -> bool {
    let mut busy = false;
    for (&kthread, stall) in runtime.kthreads.iter().zip(stalls) {
        let look = look_at(kthread, start);
        busy |= look.running.is_some();
        match stall.observe(look, timeout) {
            StallStatus::Wait => {}
            StallStatus::Ask if look.running.is_some() => kthread.head().expect_poll(),
            StallStatus::Ask => {}
            StallStatus::Still(cause, age) if !stall.printed && reports.are_due() => {
                // It was counted when it came too soon.
                reports.left_out = reports.left_out.saturating_sub(1);
                stall.printed = reports.report(kthread, cause, age);
                reports.left_out += usize::from(!stall.printed);
            }
            StallStatus::Still(..) => {}
            StallStatus::Stalled(cause, age) => {
                stall.printed = reports.are_due() && reports.report(kthread, cause, age);
                if !stall.printed {
                    reports.left_out += 1;
                }
                if cause == Cause::SystemCall && look::waits_for(kthread, runtime, clock::now()) {
                    // What it waits for in the kernel may be a thread that waits for this kthread.
                    quantum::end_turn(kthread);
                }
            }
        }
    }
    busy
}

fn look_at(kthread: &Kthread, start: Instant) -> Look {
    let switches = kthread.turn();
    let running = kthread.current().map(|record| (core::ptr::from_ref(record) as usize, switches));
    let tid = kthread.os_tid.load(Ordering::Relaxed);
    Look {
        at: start.elapsed(),
        running,
        answered: kthread.head().has_polled(),
        cpu: if running.is_some() { processor_time(tid) } else { Duration::ZERO },
        asleep: running.is_some() && sleeps(tid),
    }
}

/// Returns the processor time of a thread of this process.
fn processor_time(tid: i32) -> Duration {
    // Linux: the clock of a thread's scheduling time is ~tid << 3 | 6 (CPUCLOCK_PERTHREAD_MASK |
    // CPUCLOCK_SCHED).
    let clock = (!tid << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the timespec, or says that there is no such thread.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns whether a thread sleeps in the kernel (proc(5): the state follows the name, which is in
/// parentheses and may contain any).
fn sleeps(tid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ")?.1.chars().next())
        .is_some_and(|state| matches!(state, 'S' | 'D'))
}

/// Has stalls printed, at a limited rate. One that lasts until the next is due is printed then.
#[derive(Debug)]
struct Reports {
    reporter: SyncSender<Observed>,
    last: Option<Instant>,
    left_out: usize,
}

impl Reports {
    /// Returns whether the next report may be printed.
    fn are_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= BETWEEN_REPORTS)
    }

    /// Gives a stall to the reporter; returns false if that is still busy with another.
    fn report(&mut self, kthread: &Kthread, cause: Cause, age: Duration) -> bool {
        self.last = Some(Instant::now());
        let Some(observed) = observe(kthread, cause, age, self.left_out) else { return true };
        let given = self.reporter.try_send(observed).is_ok();
        if given {
            self.left_out = 0;
        }
        given
    }
}

/// Returns what is to be reported; `None` if the thread has moved on meanwhile.
fn observe(kthread: &Kthread, cause: Cause, age: Duration, left_out: usize) -> Option<Observed> {
    let record: &'static Uthread = kthread.current()?;
    let thread = UserThread::of_record(record)?;
    #[cfg(feature = "debug")]
    let snapshot = snapshot::of_running(kthread)
        .and_then(|(sampled, snapshot)| core::ptr::eq(sampled, record).then_some(snapshot));
    Some(Observed {
        thread,
        kthread: kthread.index,
        cause,
        age,
        left_out,
        #[cfg(feature = "debug")]
        snapshot,
    })
}
