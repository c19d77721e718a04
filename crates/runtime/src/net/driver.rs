//! The one stack of the process, and its connection to kthreads: frames of their ingress rings,
//! their egress rings, the cycle clock, a thread for its timers, and one for packets that the host
//! sends to itself.
//!
//! The stack's timers (repeated requests, ageing of neighbours, announcements of this host) need no
//! precision and fire seconds apart, so they have a user thread of their own, started when the
//! first is set: it sleeps in the scheduler's timer queue like any other.

use super::platform::{Kthreads, Stack};
#[cfg(feature = "tcp")]
use super::tcp::deferred::Deferred;
#[cfg(feature = "tcp")]
use super::tcp::setup::secrets;
use crate::egress::{self, EgressError};
use crate::ground::spin::SpinLock;
use crate::ground::stderr;
use crate::records::ingress::{Taken, read};
use crate::records::runtime::runtime;
use crate::thread::spawn_normal;
use crate::verbs::trace::{self, Request};
use crate::verbs::wait::{WaitList, wait};
use core::hash::BuildHasher;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::net::SocketAddr;
#[cfg(feature = "tcp")]
use std::sync::Arc;
use std::sync::OnceLock;
use tailwater_net::{ConfigError, InputBatch, LoopbackBatch, Mode, NetConfig, Outlet, OutletError, RETRY};
use tailwater_shm::clock;
use tailwater_shm::ring::{Consumer, FLAG_CHECKSUM_OK, FLAG_CHECKSUM_OWED, FLAG_PASSED_ON};
use tailwater_shm::trace::FLAG_TRACED;
use tailwater_wire::Checksums;

/// Time until a segment is tried again while another IOKernel is waited for: each connection that
/// has data to send costs a try, and there may be thousands. When the IOKernel is there, the
/// segments of all connections are tried at once, or for want of memory for the thread that does so
/// after this time.
const RETRY_WITHOUT_IOKERNEL: Duration = Duration::from_secs(1);

static STACK: OnceLock<Stack> = OnceLock::new();

/// Lengths of the network's prefixes: IPv4, and IPv6 if there is one.
static PREFIXES: OnceLock<(u8, Option<u8>)> = OnceLock::new();

/// True while a standalone program has not written the notice of [`note_bound`].
static NOTICE_DUE: AtomicBool = AtomicBool::new(false);

/// Makes the process's stack.
///
/// # Errors
/// If the configuration is impossible.
///
/// # Panics
/// If there is a stack already.
pub fn init(config: NetConfig) -> Result<(), ConfigError> {
    // Before `std`'s first random number, whose absence is explained in fewer words.
    #[cfg(feature = "tcp")]
    let secrets = secrets();
    // Seeded by the operating system: ports must be hard to guess.
    let seed = std::hash::RandomState::new().hash_one(0);
    PREFIXES.get_or_init(|| (config.prefix, config.ipv6.as_ref().map(|ipv6| ipv6.prefix)));
    NOTICE_DUE.store(config.mode == Mode::Standalone, Ordering::Relaxed);
    #[cfg(feature = "tcp")]
    let stack = Stack::with_secrets(config, seed, secrets)?;
    #[cfg(not(feature = "tcp"))]
    let stack = Stack::new(config, seed)?;
    assert!(STACK.set(stack).is_ok(), "a process has one network stack, and it was made already");
    Ok(())
}

/// Writes to standard error, once, that no other process reaches the sockets of a standalone
/// program and how one does. The notice is due with the first socket at a port of the program's
/// choice, which is that of a service; other ports are for peers within the program.
pub fn note_bound(local: SocketAddr) {
    if local.port() == 0 || !NOTICE_DUE.load(Ordering::Relaxed) || !NOTICE_DUE.swap(false, Ordering::Relaxed)
    {
        return;
    }
    stderr::print(&format!(
        "tailwater: this program runs without an IOKernel, so no other process reaches it at {local}; start it with \
         `tailwater run`, without --standalone, and give the IOKernel a port (--tap tw0 --host-ip 10.77.0.1) if Linux's programs are to \
         reach it\n"
    ));
}

/// Returns the process's stack.
///
/// # Panics
/// If no runtime has been started.
#[inline]
pub fn stack() -> &'static Stack {
    STACK.get().expect("sockets need a runtime: use #[tailwater::main] or tailwater::RuntimeBuilder::run")
}

/// Returns whether `ip` is an address of the network that the stack is attached to.
///
/// # Panics
/// If no runtime has been started.
pub fn is_local(ip: std::net::IpAddr) -> bool {
    let &(v4, v6) = PREFIXES.get().expect("made with the stack");
    match (ip.to_canonical(), stack().ip6().zip(v6)) {
        (std::net::IpAddr::V4(ip), _) => {
            let differ = u32::from(ip) ^ u32::from(stack().ip());
            differ.leading_zeros() >= u32::from(v4)
        }
        (std::net::IpAddr::V6(ip), Some((own, prefix))) => {
            let differ = u128::from(ip) ^ u128::from(own);
            differ.leading_zeros() >= u32::from(prefix)
        }
        (std::net::IpAddr::V6(_), None) => false,
    }
}

#[inline]
fn transmit(len: usize, flags: u8, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
    egress::transmit(len, flags, fill).map_err(|error| match error {
        EgressError::Full => OutletError::Full,
        EgressError::Down => OutletError::Down,
    })
}

/// The egress ring of the kthread that the caller runs on.
#[derive(Debug)]
pub struct KthreadOutlet;

impl Outlet<Kthreads> for KthreadOutlet {
    #[inline]
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        transmit(len, 0, fill)
    }

    #[inline]
    fn transmit_incomplete(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        transmit(len, FLAG_CHECKSUM_OWED, fill)
    }

    #[cold]
    fn pass_on(&mut self, frame: &[u8], checksums: Checksums) {
        let vouched = if checksums == Checksums::Trust { FLAG_CHECKSUM_OK } else { 0 };
        // A frame for which there is no room is lost, as on a wire.
        let _ = egress::transmit(frame.len(), FLAG_PASSED_ON | vouched, |out| out.copy_from_slice(frame));
    }

    #[inline]
    fn cork(&mut self) -> bool {
        egress::cork()
    }

    #[inline]
    fn uncork(&mut self) {
        egress::uncork();
    }

    #[inline]
    fn completes(&self) -> bool {
        true
    }

    fn retry_after(&self) -> Duration {
        if runtime().awaits_iokernel() { RETRY_WITHOUT_IOKERNEL } else { RETRY }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(crate::records::runtime::clock().to_ns(clock::now()))
    }

    fn poll_by(&mut self, deadline: Duration) {
        let mut timers = TIMERS.lock();
        if deadline >= timers.next {
            return;
        }
        timers.next = deadline;
        let start = !core::mem::replace(&mut timers.started, true);
        timers.sleeper.wake_one();
        drop(timers);
        if start {
            spawn_normal(run_timers);
        }
    }

    fn poll_loopback(&mut self) {
        let mut loopback = LOOPBACK.lock();
        let start = !core::mem::replace(&mut loopback.started, true);
        loopback.sleeper.wake_one();
        drop(loopback);
        if start {
            spawn_normal(run_loopback);
        }
    }
}

/// Processes frames of kthread `ring`'s ingress ring, at most `limit`. Deferred acknowledgments
/// leave at the end, after the ring was published. Runs in the scheduler context.
///
/// # Panics
/// If the IOKernel breaks the ring protocol.
pub fn take_frames(consumer: &mut Consumer, ring: u16, limit: u64) -> Taken {
    let mut batch = Batch::default();
    let has_passed = |kthread: u16, position| {
        let older = runtime().kthreads.get(usize::from(kthread)).and_then(|older| older.ingress.as_ref());
        older.expect("the IOKernel names kthreads that have a ring").has_passed(position)
    };
    read(consumer, limit, has_passed, |record| {
        // SAFETY: the IOKernel, which this process attached to and trusts, writes no record before
        // it is freed.
        let frame = unsafe { record.frame() };
        let flags = record.flags();
        if flags & FLAG_TRACED == 0 {
            batch.input(frame, flags);
        } else {
            batch.input_traced(frame, flags, trace::taken(record.hash(), ring, frame));
        }
    })
}

/// Frames of an ingress ring that are processed one after the other. Preemption is off.
#[derive(Debug, Default)]
struct Batch {
    #[cfg(feature = "tcp")]
    deferred: Deferred,
    /// The frame being processed is a traced request.
    traced: Option<Request>,
}

impl Batch {
    /// Processes a frame.
    #[inline]
    fn input(&mut self, frame: &[u8], flags: u8) {
        // The producer of the ring guarantees all checksums in the frame: IPv4's and the
        // transport's.
        let checksums = if flags & FLAG_CHECKSUM_OK != 0 { Checksums::Trust } else { Checksums::Verify };
        stack().input_in_batch(self, &mut KthreadOutlet, frame, checksums);
    }

    /// Processes a frame that is a traced request.
    #[cold]
    fn input_traced(&mut self, frame: &[u8], flags: u8, request: Option<Request>) {
        self.traced = request;
        self.input(frame, flags);
        self.traced = None;
    }
}

impl InputBatch<Kthreads> for Batch {
    #[cfg(feature = "tcp")]
    fn defer(&mut self, socket: &Arc<tailwater_net::tcp::Socket<Kthreads>>) -> bool {
        self.deferred.push(socket)
    }

    #[inline]
    fn traced(&self) -> Option<Request> {
        self.traced
    }
}

struct LoopbackThread {
    started: bool,
    sleeper: WaitList,
}

static LOOPBACK: SpinLock<LoopbackThread> =
    SpinLock::new(LoopbackThread { started: false, sleeper: WaitList::new() });

/// Runs the thread that processes packets that this host sends to itself, started when the first
/// such packet is sent: never returns. One thread, so that packets stay in order.
fn run_loopback() {
    let mut batch = LoopbackBatch::default();
    loop {
        while stack().take_loopback(&mut batch) {
            for packet in batch.packets() {
                stack().input_local(&mut KthreadOutlet, &packet);
                crate::poll();
            }
        }
        let loopback = LOOPBACK.lock();
        // A sender that fills the queue from here on finds this thread in the list, or waits for
        // this lock until the thread is there.
        if stack().is_loopback_empty() {
            // SAFETY: `sleeper` is the only list that the lock guards, and it stays there.
            unsafe { wait(loopback, |loopback| &mut loopback.sleeper, None) };
        }
    }
}

struct Timers {
    /// Time of the thread's next run, at the latest.
    next: Duration,
    started: bool,
    sleeper: WaitList,
}

static TIMERS: SpinLock<Timers> =
    SpinLock::new(Timers { next: Duration::MAX, started: false, sleeper: WaitList::new() });

/// Makes sure that timers set before there was a kthread to run them are handled: `stack` announces
/// itself when it opens its first socket.
pub fn start_timers(stack: &Stack) {
    if let Some(deadline) = stack.deadline() {
        KthreadOutlet.poll_by(deadline);
    }
}

/// Minimum by which the timer thread's timer must be early for the thread to be run to reset it. In
/// a service whose connections are served in turn, every request moves the timer a little, and it
/// is milliseconds ahead: retransmission timers are set for five or more.
const WORTHWHILE: Duration = Duration::from_millis(1);

/// Postpones timers that would wake this runtime for nothing: for a kthread that is about to give
/// its core up, in the scheduler context. Returns true if that made the timer thread runnable, to
/// reset its own timer.
pub fn put_off_timers() -> bool {
    let stack = stack();
    stack.put_off_timers(&mut KthreadOutlet);
    let set = TIMERS.lock().next;
    let later = |deadline: Option<Duration>| deadline.is_none_or(|deadline| deadline > set + WORTHWHILE);
    // The first condition is cheap, and usually decides.
    if set == Duration::MAX || !later(stack.tcp_deadline()) || !later(stack.deadline()) {
        return false;
    }
    let mut timers = TIMERS.lock();
    // Otherwise it runs already, or has got an earlier deadline meanwhile.
    timers.next == set && timers.sleeper.wake_one()
}

/// Runs the timer thread: never returns.
fn run_timers() {
    loop {
        crate::poll();
        // From here on `poll_by` writes deadlines to `next` that the poll below may not have seen.
        TIMERS.lock().next = Duration::MAX;
        let due = stack().poll_timers(&mut KthreadOutlet).unwrap_or(Duration::MAX);
        let mut timers = TIMERS.lock();
        timers.next = timers.next.min(due);
        // The difference is converted: converting points in time would err by milliseconds after
        // weeks of uptime.
        let left = timers.next.saturating_sub(KthreadOutlet.now());
        if !left.is_zero() {
            let cycles =
                u64::try_from(left.as_nanos()).ok().map(|ns| crate::records::runtime::clock().from_ns(ns));
            let deadline = cycles.map(|cycles| clock::now().saturating_add(cycles));
            // SAFETY: as in `run_loopback`.
            unsafe { wait(timers, |timers| &mut timers.sleeper, deadline) };
        }
    }
}
