//! Time slices: ends the turn of a user thread that has run for a
//! [`quantum`](crate::RuntimeBuilder::quantum) while something else waits for its kthread.
//!
//! A turn is what runs between two switches of a kthread, which numbers its turns. A turn that is
//! over ends at the thread's next poll point. Who finds that out depends on what polls anyway:
//!
//! | runtime | who looks at the clock | how the poll point learns of it |
//! |---|---|---|
//! | attached, latency-critical | the IOKernel, several times per quantum ([`layout::TurnLine`]) | the grant word ends the turn |
//! | any other | the poll point, now and then ([`Slice`](crate::ground::slice::Slice)) | it looks itself |
//! | any, in a [`background`](super::background) thread | the poll point: the turn ends when the kthread has anything else to do | it looks itself |
//! | any, within a request of a preemptive [`dispatch`](crate::dispatch)er | the poll point too, by the slice that the policy gave | it looks itself |
//!
//! An IOKernel sleeps while only best-effort programs have cores, so these look themselves.
//!
//! # Code without poll points
//! Each kthread has a timer of its processor time that sends the preempt signal to it: once per
//! quantum, but at most every [`TICK`], and rounded up to the kernel's own tick of 1 to 10 ms
//! (timer_create(2), the clock of that thread's processor time), so that it causes no interrupt of
//! its own. It is there where there is a quantum, or since the first preemptive dispatcher began.
//! A thread that has run from one tick to another for its quantum or slice while others wait gives
//! way in the signal handler. A signal from another core takes 13 us and more in a virtual machine,
//! and 8 us of its sender's time; a timer of real time takes as long to set for each turn. So only
//! a dispatcher with a kthread of its own sends one, to a request that has not given way 20 us
//! after it was ordered to ([`end_turn`]); one that sleeps in the kernel gets it, too, so `poll` or
//! `nanosleep` may fail with `EINTR`. To the timer a thread that sleeps there uses no processor
//! time: it is the stall detector's business (see [`debug`](crate::debug)).
//!
//! Every request to end a turn carries the turn's number; one that comes late ends nothing.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `Kthread::over` | tick and poll points of its OS thread; the stall detector; a dispatcher's thread | its OS thread |
//! | `Kthread::ticked`, `ticked_at` | the signal handler on its OS thread | the same |
//! | `TurnLine::turns` | its OS thread, at each switch | IOKernel; stall detector; a dispatcher's thread; counters |
//!
//! [`layout::TurnLine`]: tailwater_shm::layout::TurnLine

use super::look::{waits_for, work_visible};
use crate::ground::slice::MAX_POLLS;
use crate::ground::spin::SpinLock;
use crate::ground::stderr::print;
use crate::records::kthread::{Kthread, ThisKthread};
use crate::records::runtime::{Runtime, runtime, started};
use crate::records::serving::RequestThread;
use crate::records::uthread::Uthread;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::io;
use std::time::Duration;
use tailwater_shm::control::ProgramClass;
use tailwater_shm::grant::PREEMPT_SIGNAL;
use tailwater_shm::{Cycles, clock};

/// Shortest interval of the timer: the handler takes 2 to 5 us.
const TICK: Duration = Duration::from_millis(1);

/// Time between two looks of a background thread for other work: an idle kthread looks every third
/// to half of one.
const PACE_NS: u64 = 1_000;

/// True once a dispatcher has given requests slices, or there is a background thread. The lock is
/// held while poll points are counted or not because of that.
static HAS_SLICES: SpinLock<bool> = SpinLock::new(false);

/// True once kthreads have timers for the slices of requests.
static SIGNALS_SLICES: AtomicBool = AtomicBool::new(false);

/// Decides who looks at the clock, before the kthreads are announced to the IOKernel.
pub fn prepare(runtime: &Runtime, quantum: Option<Duration>) {
    let Some(quantum) = quantum else { return };
    for kthread in &runtime.kthreads {
        if is_watched(runtime) {
            let ns = u64::try_from(quantum.as_nanos()).unwrap_or(u64::MAX);
            kthread.shared.turn.quantum_ns.store(ns, Relaxed);
        } else {
            kthread.head().count_polls(true);
        }
    }
}

/// Returns whether an IOKernel looks at the clock of this runtime, while there is one.
fn is_watched(runtime: &Runtime) -> bool {
    runtime.iokernel.is_some_and(|iokernel| iokernel.class == ProgramClass::LatencyCritical)
}

/// Leaves the look at the clock to the IOKernel that takes an orphaned runtime, if it is its, and
/// requests have no slices of their own.
pub fn leave_to_iokernel(runtime: &Runtime) {
    let has_slices = HAS_SLICES.lock();
    if is_watched(runtime) && runtime.quantum != Cycles::MAX && !*has_slices {
        runtime.kthreads.iter().for_each(|kthread| kthread.head().count_polls(false));
    }
}

/// Has poll points counted from now on, unless they are already: requests have slices, or
/// background threads look for other work.
pub fn watch_slices(runtime: &Runtime) {
    let mut has_slices = HAS_SLICES.lock();
    *has_slices = true;
    for kthread in &runtime.kthreads {
        if !kthread.head().counts_polls() {
            kthread.head().count_polls(true);
        }
    }
}

/// Looks at the clock, at a counted poll point of `me`: ends the turn if it has lasted long enough.
pub fn look_at_clock(kthread: ThisKthread<'_>, me: &'static Uthread) {
    if me.is_background() {
        return look_for_others(kthread);
    }
    let (runtime, slice) = (runtime(), &kthread.private().slice);
    let serving = me.serving.get();
    let quantum = serving.map_or(Cycles::MAX, RequestThread::slice).min(runtime.quantum);
    let mut looked = slice.get();
    if quantum == Cycles::MAX {
        // Requests of a dispatcher and background threads have slices: what was learnt of their
        // poll points stays.
        kthread.head().set_polls_left(MAX_POLLS);
        return;
    }
    let (turn, now, left) = (kthread.turn(), clock::now(), kthread.head().polls_left());
    let over = looked.look(turn, left, now, quantum);
    slice.set(looked);
    kthread.head().set_polls(looked.next, looked.first);
    let ends = match serving {
        Some(serving) if serving.is_stopped() => true,
        Some(serving) => over && (waits_for(&kthread, runtime, now) || serving.is_over(now)),
        None => over && waits_for(&kthread, runtime, now),
    };
    if ends {
        kthread.end_turn(turn);
    }
}

/// Ends the turn of a background thread, at a counted poll point, if the kthread has anything else
/// to do.
#[cold]
fn look_for_others(kthread: ThisKthread<'_>) {
    let (runtime, slice) = (runtime(), &kthread.private().slice);
    let (turn, now, left) = (kthread.turn(), clock::now(), kthread.head().polls_left());
    let mut looked = slice.get();
    looked.pace(turn, left, now, runtime.clock.from_ns(PACE_NS));
    slice.set(looked);
    kthread.head().set_polls(looked.next, looked.first);
    if work_visible(&kthread, runtime, now) {
        kthread.end_turn(turn);
    }
}

/// Handles the preempt signal, from any sender: ends the turn if it has lasted for about its
/// quantum since an earlier one. Called by the handler, on the kthread's OS thread.
pub fn tick(kthread: &Kthread) {
    let Some((runtime, me)) = started().zip(kthread.current()) else { return };
    let serving = me.serving.get();
    let quantum = serving.map_or(Cycles::MAX, RequestThread::slice).min(runtime.quantum);
    if quantum == Cycles::MAX {
        return;
    }
    let (turn, now) = (kthread.turn(), clock::now());
    if kthread.ticked.swap(turn, Relaxed) != turn {
        kthread.ticked_at.store(now, Relaxed);
        return;
    }
    // Half: signals come at ticks of the kernel, so two of them may be less than a quantum apart.
    let over = now.saturating_sub(kthread.ticked_at.load(Relaxed)) >= quantum / 2;
    if over && (waits_for(kthread, runtime, now) || serving.is_some_and(RequestThread::makes_way)) {
        kthread.end_turn(turn);
    }
}

/// Makes the running thread give way to those that wait, at its next poll point or by signal, also
/// in a system call. Any thread may call this.
pub fn end_turn(kthread: &Kthread) {
    kthread.end_turn(kthread.turn());
    kthread.interrupt();
}

/// Has requests that reach no poll point interrupted by signal from now on, unless they are
/// already.
pub fn signal_slices(runtime: &Runtime) {
    if runtime.quantum == Cycles::MAX && !SIGNALS_SLICES.swap(true, Relaxed) {
        runtime.kthreads.iter().for_each(|kthread| start_timer(kthread, TICK));
    }
}

/// Starts the timer of a kthread whose OS thread runs, which lasts as long as the process; prints
/// the reason if the kernel refuses it.
pub fn start_timer(kthread: &Kthread, quantum: Duration) {
    if let Err(error) = try_start_timer(kthread.os_tid.load(Relaxed), quantum.max(TICK)) {
        print(&format!(
            "tailwater: no timer for kthread {} ({error}): a time slice ends at poll points only\n",
            kthread.index
        ));
    }
}

fn try_start_timer(tid: i32, interval: Duration) -> io::Result<()> {
    let interval = libc::timespec {
        tv_sec: libc::time_t::try_from(interval.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: interval.subsec_nanos().into(),
    };
    let times = libc::itimerspec { it_interval: interval, it_value: interval };
    // SAFETY: an all-zero sigevent is valid, and the structures live through the calls that read
    // them. By system call, since glibc before 2.34 has the functions in a library of their own.
    let made = unsafe {
        let mut event: libc::sigevent = core::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = PREEMPT_SIGNAL;
        event.sigev_notify_thread_id = tid;
        let mut timer: libc::c_int = 0;
        // The clock of a thread's processor time (pthread_getcpuclockid(3), which needs a handle of
        // the thread): its id inverted, and 6.
        let clock = (!tid << 3) | 6;
        let made = libc::syscall(libc::SYS_timer_create, clock, &raw mut event, &raw mut timer);
        if made == 0 {
            let none = core::ptr::null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const times, none)
        } else {
            made
        }
    };
    if made == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
