//! The watcher: one ordinary thread that looks for stalls, and prints a dump when the signal for one came.
//!
//! It looks four times per timeout while threads run, and once per timeout while none do. Between two looks a running thread is noticed to
//! make progress by its kthread's count of switches, or, when it runs alone, by the question ([`Kthread::ask`]) that its next poll
//! point answers: poll points cost the same whether somebody watches or not.
//!
//! A thread that stalls in a system call while others wait for its kthread is interrupted and queued behind them; the call goes on
//! when its turn comes. Else two threads that share a lock of `std`'s would stop a program with one kthread for good: the one sleeps in
//! the kernel until the other, switched away while it held the lock, lets go.

use crate::config::{Config, DumpSignal};
use crate::debug::stall::{Cause, Look, Stall, Verdict};
use crate::debug::{Unwinder, dump, snapshot, write_backtrace};
use crate::kthread::Kthread;
use crate::quantum;
use crate::runtime::{Runtime, runtime};
use crate::thread::UserThread;
use crate::uthread::Uthread;
use crate::worker;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::time::{Duration, Instant};
use tailwater_shm::clock;

/// Shortest time between two reports, however many threads stall.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);
/// How often the watcher looks for the dump signal when it does not look for stalls.
const DUMP_ONLY_TICK: Duration = Duration::from_millis(100);

static DUMP_WANTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_dump_signal(_: i32) {
    DUMP_WANTED.store(true, Ordering::Relaxed);
}

/// Installs the dump signal's handler and starts the watcher, as far as they are wanted. Call from an ordinary thread off the
/// managed cores.
///
/// # Errors
/// When no thread can be started.
pub fn start(config: &Config) -> io::Result<()> {
    let on_signal = install(config.dump_signal);
    if config.stall_timeout.is_none() && !on_signal {
        return Ok(());
    }
    let timeout = config.stall_timeout;
    std::thread::Builder::new().name("tailwater/stalls".to_owned()).spawn(move || watch(timeout)).map(drop)
}

/// True if the signal is handled: a program that handles it already keeps it.
fn install(signal: DumpSignal) -> bool {
    let Some(number) = signal.number() else { return false };
    // SAFETY: all-zero sigactions are valid; the handler stores one flag.
    unsafe {
        let mut present: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(number, core::ptr::null(), &raw mut present) != 0
            || present.sa_sigaction != libc::SIG_DFL
        {
            return false;
        }
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_dump_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(number, &raw const action, core::ptr::null_mut()) == 0
    }
}

fn watch(timeout: Option<Duration>) {
    // It runs for microseconds at a time, perhaps on the core that an IOKernel polls on, which would keep it waiting for longer than
    // it may sleep.
    tailwater_shm::priority::raise_kthread();
    let runtime = runtime();
    let mut stalls: Vec<Stall> = runtime.kthreads.iter().map(|_| Stall::default()).collect();
    let mut reports = Reports::default();
    let start = Instant::now();
    loop {
        if DUMP_WANTED.swap(false, Ordering::Relaxed) {
            print(&dump().to_string());
        }
        let tick = match timeout {
            None => DUMP_ONLY_TICK,
            Some(timeout) => {
                let busy = look_for_stalls(runtime, &mut stalls, start, timeout, &mut reports);
                if busy { timeout / 4 } else { timeout }
            }
        };
        let before = Instant::now();
        std::thread::sleep(tick);
        if before.elapsed() > 2 * tick {
            // The process was stopped, or the machine is overloaded: what looks like a stall would be ours.
            stalls.iter_mut().for_each(|stall| *stall = Stall::default());
        }
    }
}

/// True if some kthread runs a thread.
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
        match stall.judge(look, timeout) {
            Verdict::Wait => {}
            Verdict::Ask if look.running.is_some() => kthread.ask(),
            Verdict::Ask => {}
            Verdict::Stalled(cause, age) => {
                reports.report(kthread, cause, age);
                if cause == Cause::SystemCall && worker::waits_for(kthread, runtime, clock::now()) {
                    // What it waits for in the kernel may be a thread that waits for this kthread.
                    quantum::end_turn(kthread);
                }
            }
        }
    }
    busy
}

fn look_at(kthread: &Kthread, start: Instant) -> Look {
    let switches = kthread.counters.switches.load(Ordering::Relaxed);
    let running = kthread.current().map(|record| (core::ptr::from_ref(record) as usize, switches));
    let tid = kthread.os_tid.load(Ordering::Relaxed);
    Look {
        at: start.elapsed(),
        running,
        answered: kthread.has_answered(),
        cpu: if running.is_some() { processor_time(tid) } else { Duration::ZERO },
        asleep: running.is_some() && sleeps(tid),
    }
}

/// Processor time of a thread of this process.
fn processor_time(tid: i32) -> Duration {
    // Linux: the clock of a thread's scheduling time is ~tid << 3 | 6 (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED).
    let clock = (!tid << 3) | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the timespec, or says that there is no such thread.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether a thread sleeps in the kernel (proc(5): the state follows the name, which is in parentheses and may contain any).
fn sleeps(tid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ")?.1.chars().next())
        .is_some_and(|state| matches!(state, 'S' | 'D'))
}

/// Prints stalls, not too many.
#[derive(Debug, Default)]
struct Reports {
    last: Option<Instant>,
    left_out: usize,
}

impl Reports {
    fn report(&mut self, kthread: &Kthread, cause: Cause, age: Duration) {
        if self.last.is_some_and(|last| last.elapsed() < BETWEEN_REPORTS) {
            self.left_out += 1;
            return;
        }
        self.last = Some(Instant::now());
        let Some(text) = describe(kthread, cause, age) else { return };
        print(&text);
        if self.left_out > 0 {
            print(&format!("tailwater: {} more stalls before this one were left out\n", self.left_out));
            self.left_out = 0;
        }
    }
}

/// Writes to standard error without `std`'s lock: the thread that stalls may hold it.
fn print(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: the bytes are `rest`.
        let written = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(written @ 1..) => rest = &rest[written..],
            // There is nobody to tell.
            _ => return,
        }
    }
}

/// The report; `None` if the thread has moved on meanwhile.
fn describe(kthread: &Kthread, cause: Cause, age: Duration) -> Option<String> {
    let record: &'static Uthread = kthread.current()?;
    let thread = UserThread::of_record(record)?;
    let sample = snapshot::of_running(kthread).filter(|(sampled, _)| core::ptr::eq(*sampled, record));
    let what = match cause {
        Cause::NoPollPoint => "has reached no poll point",
        Cause::SystemCall => "has been in a blocking system call",
    };
    let remedy = match cause {
        Cause::NoPollPoint => "call tailwater::poll() in long loops",
        Cause::SystemCall => "use tailwater::blocking",
    };
    let mut text = format!(
        "tailwater: user thread {thread} {what} for {} ms and holds up kthread {}: {remedy}\n",
        age.as_millis(),
        kthread.index
    );
    let written = match sample {
        Some((_, snapshot)) => write_backtrace(&mut text, &Unwinder::new().backtrace(&snapshot)),
        None => text.write_str("   no backtrace: it did not answer the signal\n"),
    };
    written.expect("a string takes all");
    Some(text)
}
