//! The one stack of the process, and what ties it to kthreads: their egress rings, the cycle clock, a thread for its timers,
//! one for what it sends to itself.
//!
//! The stack's timers (questions repeated, neighbours aged, this host announced) need no precision and fire seconds apart, so
//! they have a user thread of their own, started when the first is set: it sleeps in the scheduler's timer queue like any other.

use super::stack::tcp::{Secrets, Socket};
use super::stack::{LoopbackBatch, NetConfig, Outlet, OutletError, Stack};
use crate::egress::{self, EgressError};
use crate::sync::spin::SpinLock;
use crate::sync::wait::{WaitList, wait};
use crate::trace::Request;
use core::hash::BuildHasher;
use core::time::Duration;
use std::sync::{Arc, OnceLock};
use tailwater_shm::clock;
use tailwater_shm::ring::FLAG_CHECKSUM_OWED;
use tailwater_tcp::Secret;

static STACK: OnceLock<Stack> = OnceLock::new();

/// Makes the process's stack.
///
/// # Panics
/// If the configuration is impossible, or there is a stack already.
pub fn init(config: NetConfig) {
    // Seeded by the operating system: ports must be hard to guess.
    let seed = std::hash::RandomState::new().hash_one(0);
    let secrets = Secrets { numbers: random_secret(), ports: random_secret() };
    let stack =
        Stack::with_secrets(config, seed, secrets).unwrap_or_else(|e| panic!("network configuration: {e}"));
    assert!(STACK.set(stack).is_ok(), "a process has one network stack, and it was made already");
}

/// Sixteen bytes from the operating system.
fn random_secret() -> Secret {
    let mut secret = [0; 16];
    // SAFETY: `secret` is writable for as many bytes as are asked for.
    let got = unsafe { libc::getrandom(secret.as_mut_ptr().cast(), secret.len(), 0) };
    // Up to 256 bytes come whole and without interruption once the system has booted (getrandom(2)).
    assert_eq!(got, 16, "getrandom: {}", std::io::Error::last_os_error());
    Secret(secret)
}

/// The process's stack.
///
/// # Panics
/// If no runtime has been started.
#[inline]
pub fn stack() -> &'static Stack {
    STACK.get().expect("sockets need a runtime: use #[tailwater::main] or tailwater::Builder::run")
}

#[inline]
fn transmit(len: usize, flags: u8, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
    egress::transmit(len, flags, fill).map_err(|error| match error {
        EgressError::Full => OutletError::Full,
        EgressError::Down => OutletError::Down,
    })
}

/// The egress ring of whichever kthread the caller runs on.
#[derive(Debug)]
pub struct KthreadOutlet;

impl Outlet for KthreadOutlet {
    #[inline]
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        transmit(len, 0, fill)
    }

    #[inline]
    fn transmit_incomplete(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        transmit(len, FLAG_CHECKSUM_OWED, fill)
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

    fn now(&self) -> Duration {
        Duration::from_nanos(crate::clock().to_ns(clock::now()))
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
            crate::thread::spawn(run_timers);
        }
    }

    fn poll_loopback(&mut self) {
        let mut loopback = LOOPBACK.lock();
        let start = !core::mem::replace(&mut loopback.started, true);
        loopback.sleeper.wake_one();
        drop(loopback);
        if start {
            crate::thread::spawn(run_loopback);
        }
    }
}

/// Connections whose acknowledgments wait for the end of one batch; those of further ones leave at once.
const MAX_DEFERRED: usize = 8;

/// Frames of an ingress ring that are processed one after the other. Preemption is off.
#[derive(Debug, Default)]
pub struct Batch {
    deferred: [Option<Arc<Socket>>; MAX_DEFERRED],
    /// The frame being processed is a traced request.
    traced: Option<Request>,
}

impl Batch {
    /// Processes a frame.
    #[inline]
    pub fn input(&mut self, frame: &[u8], flags: u8) {
        stack().input(self, frame, flags);
    }

    /// Processes a frame that is a traced request.
    #[cold]
    pub fn input_traced(&mut self, frame: &[u8], flags: u8, request: Option<Request>) {
        self.traced = request;
        self.input(frame, flags);
        self.traced = None;
    }
}

impl Drop for Batch {
    #[inline]
    fn drop(&mut self) {
        for socket in self.deferred.iter_mut().map_while(Option::take) {
            stack().flush_tcp(&mut KthreadOutlet, &socket);
        }
    }
}

impl Outlet for Batch {
    #[inline]
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        KthreadOutlet.transmit(len, fill)
    }

    #[inline]
    fn transmit_incomplete(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        KthreadOutlet.transmit_incomplete(len, fill)
    }

    #[inline]
    fn cork(&mut self) -> bool {
        KthreadOutlet.cork()
    }

    #[inline]
    fn uncork(&mut self) {
        KthreadOutlet.uncork();
    }

    #[inline]
    fn completes(&self) -> bool {
        KthreadOutlet.completes()
    }

    fn now(&self) -> Duration {
        KthreadOutlet.now()
    }

    fn poll_by(&mut self, deadline: Duration) {
        KthreadOutlet.poll_by(deadline);
    }

    fn defer(&mut self, socket: &Arc<Socket>) -> bool {
        let Some(place) = self.deferred.iter_mut().find(|place| place.is_none()) else { return false };
        *place = Some(Arc::clone(socket));
        true
    }

    fn poll_loopback(&mut self) {
        KthreadOutlet.poll_loopback();
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

/// The thread that processes what this host sends to itself, started when the first such packet is sent: never ends. One
/// thread, so that packets stay in order.
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
        // Whoever fills the queue from here on finds this thread in the list, or has to wait for this lock until it is there.
        if stack().is_loopback_empty() {
            wait(loopback, |loopback| &mut loopback.sleeper, None);
        }
    }
}

struct Timers {
    /// When the thread will look again at the latest.
    next: Duration,
    started: bool,
    sleeper: WaitList,
}

static TIMERS: SpinLock<Timers> =
    SpinLock::new(Timers { next: Duration::MAX, started: false, sleeper: WaitList::new() });

/// Makes sure that timers set before there was a kthread to run them are seen to: `stack` announces itself when it opens its
/// first socket.
pub fn start_timers(stack: &Stack) {
    if let Some(deadline) = stack.deadline() {
        KthreadOutlet.poll_by(deadline);
    }
}

/// By how much the timer thread's timer must be too early for the thread to be run for it. Of a service whose connections are served in
/// turn every request moves it by a little, and it is milliseconds ahead: retransmission timers are set for five or more.
const WORTHWHILE: Duration = Duration::from_millis(1);

/// Puts off what would wake this runtime for nothing: for a kthread that is about to give its core up, in the scheduler context.
/// True if that made the timer thread runnable, to set its own timer anew.
pub fn put_off_timers() -> bool {
    let stack = stack();
    stack.put_off_timers(&mut KthreadOutlet);
    let set = TIMERS.lock().next;
    let later = |deadline: Option<Duration>| deadline.is_none_or(|deadline| deadline > set + WORTHWHILE);
    // The first question is cheap, and mostly decides.
    if set == Duration::MAX || !later(stack.tcp_deadline()) || !later(stack.deadline()) {
        return false;
    }
    let mut timers = TIMERS.lock();
    // Or it runs already, or has been told of something earlier meanwhile.
    timers.next == set && timers.sleeper.wake_one()
}

/// The timer thread: never ends.
fn run_timers() {
    loop {
        crate::poll();
        // From here on `poll_by` writes to `next` what the poll below may not have seen.
        TIMERS.lock().next = Duration::MAX;
        let due = stack().poll_timers(&mut KthreadOutlet).unwrap_or(Duration::MAX);
        let mut timers = TIMERS.lock();
        timers.next = timers.next.min(due);
        // By the difference: converting points in time would err by milliseconds after weeks of uptime.
        let left = timers.next.saturating_sub(KthreadOutlet.now());
        if !left.is_zero() {
            let cycles = u64::try_from(left.as_nanos()).ok().map(|ns| crate::clock().from_ns(ns));
            let deadline = cycles.map(|cycles| clock::now().saturating_add(cycles));
            wait(timers, |timers| &mut timers.sleeper, deadline);
        }
    }
}
