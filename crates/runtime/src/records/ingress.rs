//! The reading end of a kthread's ingress ring.

use crate::ground::guard::NoPreempt;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use tailwater_shm::ring::{Consumer, Hint};

/// A ring's reading end that any kthread of the runtime may use, one at a time: idle kthreads take
/// a busy kthread's frames.
#[derive(Debug)]
pub struct Ingress {
    busy: AtomicBool,
    consumer: UnsafeCell<Consumer>,
    /// What threads that do not hold `busy` look at.
    hint: Hint,
}

// SAFETY: `busy` gives one kthread at a time the consumer; the hint is made of atomics.
unsafe impl Sync for Ingress {}

impl Ingress {
    /// Wraps the reading end.
    pub fn new(consumer: Consumer) -> Self {
        let hint = Hint::new(&consumer);
        Self { busy: AtomicBool::new(false), consumer: UnsafeCell::new(consumer), hint }
    }

    /// Returns whether a frame seems to wait; may be stale while another kthread reads the ring.
    #[inline(always)]
    pub fn has_record(&self) -> bool {
        self.hint.has_record()
    }

    /// Runs `f` on the consumer; `None` if another kthread uses it at the moment.
    #[inline]
    pub fn try_with<R>(&self, _guard: &NoPreempt, f: impl FnOnce(&mut Consumer) -> R) -> Option<R> {
        // Acquire: pairs with the Release below.
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the exchange above made this the only user of the consumer until `busy` is
        // cleared.
        let consumer = unsafe { &mut *self.consumer.get() };
        let result = f(consumer);
        self.hint.follow(consumer);
        // Release: pairs with the Acquire above.
        self.busy.store(false, Ordering::Release);
        Some(result)
    }
}
