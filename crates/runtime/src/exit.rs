//! The end of the process: what its sockets have accepted is delivered before it is gone.
//!
//! The stack lives in the process and ends with it, whereas Linux's goes on with the sockets that a
//! process had closed. So exit(3), which a return from `main`, a panic of `main` and
//! `std::process::exit` all come to, runs [`at_exit`] here:
//!
//! 1. Connections that were closed in good order send the rest of their data and their FIN; open
//!    ones send what was written to them, and are reset. Datagrams that wait for the address of a
//!    neighbour wait on, for [`NEIGHBOURS`]. See
//!    [`Stack::poll_ending`](tailwater_net::Stack::poll_ending).
//! 2. After the exit linger, or [`STALLED`] without progress, the rest is reset.
//! 3. The IOKernel takes what lies in the egress rings.
//!
//! Other user threads run meanwhile, as threads do until exit(3) is through. They may keep the
//! kthreads from running the caller again, so an alarm ends the process after the longest time that
//! all of this may take. Nothing is done where the caller cannot wait, in a forked child, and where
//! no IOKernel carries frames: then no peer outlives the process. A process that is killed, or that
//! calls `_exit` or `abort`, does not come here.

use crate::ground::guard::{Head, NoPreempt, inside};
use crate::net;
use crate::records::iokernel::IoKernel;
use crate::records::runtime::{Runtime, started};
use crate::thread;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Longest time without progress: no peer has acknowledged anything, or no kthread has begun.
const STALLED: Duration = Duration::from_secs(10);
/// Maximum time for the resets, and for the IOKernel to take the last frames. It takes a ring's
/// worth within milliseconds.
const LAST_FRAMES: Duration = Duration::from_secs(1);
/// Time after which a neighbour that was asked when the end began has answered or failed; others
/// are not waited for.
const NEIGHBOURS: Duration = Duration::from_secs(4);
/// Time between two looks, at first and at most.
const LOOKS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));

/// Exit linger in milliseconds.
static LINGER_MS: AtomicU64 = AtomicU64::new(0);
/// The process that has the runtime; its forked children do not.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Has exit(3) deliver, for `linger` at most, what sockets have accepted.
pub fn install(linger: Duration) {
    LINGER_MS.store(u64::try_from(linger.as_millis()).unwrap_or(u64::MAX), Relaxed);
    PROCESS.store(std::process::id(), Relaxed);
    // Without memory for the entry, the process ends as if it was killed.
    // SAFETY: the function lives as long as the process: `dlclose` of what contains a running
    // runtime is not possible.
    unsafe { libc::atexit(at_exit) };
    // A process identifier alone does not tell a child in a PID namespace of its own.
    // SAFETY: the function is async-signal-safe.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
}

/// Runs in a forked child: the runtime is its parent's.
extern "C" fn forget() {
    PROCESS.store(0, Relaxed);
}

/// Ends the process whose kthreads do not run the thread that called exit(3) again.
extern "C" fn give_up(_: libc::c_int) {
    // SAFETY: the call has no preconditions, and is async-signal-safe.
    unsafe { libc::_exit(1) }
}

/// Runs `end`, with an alarm that ends the process after the longest time that it may take.
fn bounded(end: impl FnOnce()) {
    let longest = linger() + 2 * STALLED + 2 * LAST_FRAMES;
    let seconds = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX);
    // SAFETY: the handler only ends the process, which ends in any case: SIGALRM has no other use
    // from here on.
    unsafe {
        libc::signal(libc::SIGALRM, give_up as extern "C" fn(libc::c_int) as libc::sighandler_t);
        libc::alarm(seconds);
    }
    end();
    // SAFETY: no preconditions. Further functions that exit(3) calls may take their time.
    unsafe { libc::alarm(0) };
}

/// Runs in exit(3), on the thread that called it.
extern "C" fn at_exit() {
    let Some(runtime) = started() else { return };
    let Some(iokernel) = runtime.iokernel else { return };
    if PROCESS.load(Relaxed) != std::process::id() || !has_network(runtime) {
        return;
    }
    let is_inside = inside();
    if is_inside && !may_wait() {
        return;
    }
    bounded(|| {
        if is_inside {
            deliver(runtime);
        } else if net::has_peers() {
            deliver_elsewhere(runtime);
        }
        wait_for_iokernel(runtime, iokernel);
    });
}

/// Returns whether frames may still leave.
fn has_network(runtime: &Runtime) -> bool {
    runtime.is_attached() || runtime.awaits_iokernel()
}

/// Returns whether the calling user thread may wait. On a kthread.
fn may_wait() -> bool {
    let guard = NoPreempt::new();
    let thread = guard.kthread().and_then(|kthread| kthread.current());
    guard.head().map_or(0, Head::preempt_depth) == 1
        && thread.is_some_and(|thread| !thread.handles.load(Relaxed))
}

/// Runs [`deliver`] on a user thread and waits for it: frames leave from kthreads only.
fn deliver_elsewhere(runtime: &'static Runtime) {
    let linger = linger();
    let (steps, from_thread) = channel();
    let run = move |steps: Sender<()>| {
        // Fails if the process has given this thread up.
        let _ = steps.send(());
        deliver(runtime);
        let _ = steps.send(());
    };
    let begun = thread::Builder::new().name("exit".to_owned()).spawn(move || run(steps)).is_ok();
    // All kthreads may be busy with threads that reach no poll point.
    if begun && from_thread.recv_timeout(STALLED).is_ok() {
        let _ = from_thread.recv_timeout(linger + STALLED);
    }
}

fn linger() -> Duration {
    Duration::from_millis(LINGER_MS.load(Relaxed))
}

/// Waits until nothing is owed to a peer, for the exit linger at most, and resets the rest. On a
/// user thread.
fn deliver(runtime: &Runtime) {
    let linger = linger();
    let mut ending = net::begin_ending();
    let mut patience = Patience::new();
    loop {
        let owed = net::poll_ending(&mut ending, false);
        let progress = (owed.connections as u64, owed.acknowledged);
        let has_asked = patience.began.elapsed() >= NEIGHBOURS;
        let is_done = owed.is_nothing() || owed.connections == 0 && has_asked;
        if is_done || !has_network(runtime) || !patience.lasts(linger, STALLED, progress) {
            break;
        }
        patience.pause();
    }
    // Also what was opened meanwhile.
    let mut patience = Patience::new();
    while has_network(runtime) && net::poll_ending(&mut ending, true).connections > 0 {
        if !patience.lasts(LAST_FRAMES, LAST_FRAMES, (0, 0)) {
            return;
        }
        patience.pause();
    }
}

/// Waits until the IOKernel has taken the frames that lie in the egress rings now.
fn wait_for_iokernel(runtime: &Runtime, iokernel: &IoKernel) {
    let region = &iokernel.region;
    let mut rings: Vec<(u16, u64)> =
        runtime.kthreads.iter().map(|kthread| (kthread.index, region.unsent(kthread.index).0)).collect();
    let mut patience = Patience::new();
    loop {
        rings.retain(|&(index, first)| {
            let (taken, waits) = region.unsent(index);
            // Other threads may fill the ring for ever.
            waits && taken.saturating_sub(first) < region.ring_lines()
        });
        if rings.is_empty() || !runtime.is_attached() || !patience.lasts(LAST_FRAMES, LAST_FRAMES, (0, 0)) {
            return;
        }
        runtime.ring_doorbell();
        patience.pause();
    }
}

/// The time that a wait has taken.
struct Patience {
    began: Instant,
    /// When progress was seen last, and what was seen.
    moved: Instant,
    progress: (u64, u64),
    pause: Duration,
}

impl Patience {
    fn new() -> Self {
        let now = Instant::now();
        Self { began: now, moved: now, progress: (0, 0), pause: LOOKS.0 }
    }

    /// Returns whether the wait has taken less than `limit`, and less than `stalled` since
    /// `progress` changed.
    fn lasts(&mut self, limit: Duration, stalled: Duration, progress: (u64, u64)) -> bool {
        let now = Instant::now();
        if progress != self.progress {
            (self.moved, self.progress) = (now, progress);
        }
        now - self.began < limit && now - self.moved < stalled
    }

    fn pause(&mut self) {
        thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LOOKS.1);
    }
}
