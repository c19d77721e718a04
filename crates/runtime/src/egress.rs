//! Frames leaving this process: the current kthread's egress ring.
//!
//! Frames are built in place in the ring, once. A full ring pushes back to the socket ([`wait_for_room`]); the IOKernel
//! empties it within microseconds whether or not the kthread keeps its core.

use crate::kthread::NoPreempt;
use crate::runtime::runtime;
use crate::trace;
use crate::worker;
use tailwater_shm::ring::ReserveError;

/// The frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The ring is full: try again after [`wait_for_room`].
    #[error("the egress ring is full")]
    Full,
    /// There is no IOKernel (any more) to send through.
    #[error("the network is down")]
    Down,
}

/// Sends a frame of `len` bytes that `fill` writes in place, with the ring record's `flags`. Works on kthreads; frames from
/// ordinary threads have no ring.
///
/// # Errors
/// [`EgressError`].
///
/// # Panics
/// If `len` is not a possible frame length.
#[inline]
pub fn transmit(len: usize, flags: u8, fill: impl FnOnce(&mut [u8])) -> Result<(), EgressError> {
    let guard = NoPreempt::new();
    let Some(kthread) = guard.kthread() else { return Err(EgressError::Down) };
    let Some(egress) = &kthread.egress else { return Err(EgressError::Down) };
    if !runtime().is_attached() {
        return Err(EgressError::Down);
    }
    // SAFETY: this kthread's ring, preemption off; `fill` runs under the borrow and cannot reach the ring again, because
    // it only writes bytes (a nested `transmit` would be a bug of the network stack).
    let producer = unsafe { &mut *egress.get() };
    let mut slot = match producer.reserve(len) {
        Ok(slot) => slot,
        Err(ReserveError::Full) => return Err(EgressError::Full),
        Err(ReserveError::Lie(lie)) => panic!("the IOKernel broke the ring protocol: {lie}"),
    };
    // SAFETY: `frame` is valid for writing `len` bytes until `commit`; the ring is initialised memory.
    let frame = unsafe { core::slice::from_raw_parts_mut(slot.frame(), len) };
    fill(frame);
    let (traced, number) = match kthread.current() {
        Some(me) if me.carried.is_some() => trace::reply(kthread, me, frame),
        _ => (0, 0),
    };
    slot.commit(number, flags | traced, 0);
    Ok(())
}

/// Hides from the IOKernel what this kthread sends from now on, until [`uncork`]: see
/// [`Producer::cork`](tailwater_shm::ring::Producer::cork). True if this call did it, and then the caller must uncork with
/// preemption off since then.
#[inline]
pub fn cork() -> bool {
    let guard = NoPreempt::new();
    let Some(egress) = guard.kthread().and_then(|k| k.egress.as_ref()) else { return false };
    // SAFETY: this kthread's ring, preemption off; nothing is called under the borrow that could reach the ring again.
    unsafe { &mut *egress.get() }.cork()
}

/// Shows the IOKernel what was hidden since [`cork`].
#[inline]
pub fn uncork() {
    let guard = NoPreempt::new();
    if let Some(egress) = guard.kthread().and_then(|k| k.egress.as_ref()) {
        // SAFETY: as in `cork`.
        unsafe { &mut *egress.get() }.uncork();
    }
}

/// Lets others run while the IOKernel empties the ring.
pub fn wait_for_room() {
    worker::yield_now();
}
