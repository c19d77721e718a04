//! Frames that leave this process: the current kthread's egress ring.
//!
//! Frames are built in place in the ring, once. When the ring is full, the socket waits
//! ([`wait_for_room`]); the IOKernel empties it within microseconds, whether or not the kthread
//! keeps its core. While a program waits for another IOKernel there is no room.

use crate::ground::guard::NoPreempt;
use crate::records::runtime::runtime;
use crate::thread;
use crate::verbs::switch::yield_now;
use crate::verbs::trace;
use core::time::Duration;
use tailwater_shm::ring::ReserveError;

/// Time between two looks for another IOKernel, of a thread that has something to send.
const LOOK: Duration = Duration::from_millis(1);

/// Why a frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The ring is full: try again after [`wait_for_room`].
    #[error("the egress ring is full")]
    Full,
    /// There is no IOKernel to send through, or it has ended.
    #[error("the network is down")]
    Down,
}

/// Sends a frame of `len` bytes that `fill` writes in place, with the ring record's `flags`. Works
/// on kthreads; frames from ordinary threads have no ring.
///
/// # Errors
/// [`EgressError`].
///
/// # Panics
/// If `len` is out of range for a frame, or `fill` sends a frame itself.
#[inline]
pub fn transmit(len: usize, flags: u8, fill: impl FnOnce(&mut [u8])) -> Result<(), EgressError> {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return Err(EgressError::Down) };
    let Some(egress) = &kthread.private().egress else { return Err(EgressError::Down) };
    let runtime = runtime();
    if !runtime.is_attached() {
        return Err(if runtime.awaits_iokernel() { EgressError::Full } else { EgressError::Down });
    }
    let mut producer = egress.borrow_mut();
    let mut slot = match producer.reserve(len) {
        Ok(slot) => slot,
        Err(ReserveError::Full) => return Err(EgressError::Full),
        Err(ReserveError::Lie(lie)) => panic!("the IOKernel broke the ring protocol: {lie}"),
    };
    // SAFETY: `frame` is valid for writing `len` bytes until `commit`; the ring is initialised
    // memory.
    let frame = unsafe { core::slice::from_raw_parts_mut(slot.frame(), len) };
    fill(frame);
    let (traced, number) = match kthread.current() {
        Some(me) if me.carried.is_some() => trace::reply(kthread, me, frame),
        _ => (0, 0),
    };
    slot.commit(number, flags | traced, 0);
    ring_doorbell();
    Ok(())
}

/// Hides from the IOKernel what this kthread sends from now on, until [`uncork`]: see
/// [`Producer::cork`](tailwater_shm::ring::Producer::cork). Returns true if the ring was not
/// corked: then the caller uncorks it, and keeps preemption off in between.
#[inline]
pub fn cork() -> bool {
    let guard = NoPreempt::new();
    let egress = guard.kthread().and_then(|kthread| kthread.private().egress.as_ref());
    egress.is_some_and(|egress| egress.borrow_mut().cork())
}

/// Makes visible to the IOKernel what was hidden since [`cork`].
#[inline]
pub fn uncork() {
    let guard = NoPreempt::new();
    if let Some(egress) = guard.kthread().and_then(|kthread| kthread.private().egress.as_ref()) {
        egress.borrow_mut().uncork();
        ring_doorbell();
    }
}

/// Wakes the IOKernel if it sleeps beside this kthread, after frames were shown to it.
#[inline]
fn ring_doorbell() {
    if let Some(iokernel) = runtime().iokernel {
        iokernel.ring_doorbell_from_core();
    }
}

/// Lets other threads run while the IOKernel empties the ring, or is waited for.
pub fn wait_for_room() {
    match pause() {
        Some(time) => thread::sleep(time),
        None => yield_now(),
    }
}

/// Returns the time until there may be room, if that is worth sleeping for.
pub fn pause() -> Option<Duration> {
    runtime().awaits_iokernel().then_some(LOOK)
}
