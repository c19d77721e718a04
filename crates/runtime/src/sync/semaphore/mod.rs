//! A counting semaphore, served first come, first served.
//!
//! Threads and futures wait in one queue. A thread that finds too few permits queues with the
//! number it needs; a thread that returns permits gives them to the head of the queue for as long
//! as they suffice. Small requests do not overtake a large one at the head.

use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::runtime::deadline_after;
#[cfg(feature = "future")]
use crate::sync::queue::Queued;
use crate::sync::queue::{self, Queue};
use crate::verbs::switch::poll;
use crate::verbs::wait::WAKE_BATCH;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::Cycles;

#[derive(Debug)]
struct State {
    permits: usize,
    /// The number of permits that each waiter needs.
    queue: Queue<usize>,
}

impl State {
    fn take(&mut self, permits: usize) -> bool {
        let enough = self.queue.is_empty() && permits <= self.permits;
        if enough {
            self.permits -= permits;
        }
        enough
    }

    /// Serves up to [`WAKE_BATCH`] waiting threads; returns true if there may be more to serve.
    fn serve_batch(&mut self) -> bool {
        (0..WAKE_BATCH).all(|_| {
            let grant = self.queue.pop_if(|&wanted| wanted <= self.permits);
            grant.map(|mut grant| self.permits -= *grant.payload()).is_some()
        })
    }
}

/// A number of permits that threads take and return.
///
/// # Examples
/// ```
/// let tables = tailwater::sync::Semaphore::new(2);
/// let first = tables.acquire();
/// let second = tables.acquire();
/// assert!(tables.try_acquire().is_none());
/// drop(first);
/// assert_eq!(tables.available_permits(), 1);
/// # drop(second);
/// ```
#[derive(Debug)]
pub struct Semaphore {
    state: SpinLock<State>,
}

impl UnwindSafe for Semaphore {}
impl RefUnwindSafe for Semaphore {}

impl Semaphore {
    /// Returns a semaphore with `permits` free permits.
    ///
    /// # Examples
    /// ```
    /// static SLOTS: tailwater::sync::Semaphore = tailwater::sync::Semaphore::new(8);
    /// assert_eq!(SLOTS.available_permits(), 8);
    /// ```
    pub const fn new(permits: usize) -> Self {
        Self { state: SpinLock::new(State { permits, queue: Queue::new() }) }
    }

    /// Takes one permit, waiting until there is one.
    ///
    /// # Examples
    /// ```
    /// let semaphore = tailwater::sync::Semaphore::new(2);
    /// let permit = semaphore.acquire();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// drop(permit);
    /// assert_eq!(semaphore.available_permits(), 2);
    /// ```
    pub fn acquire(&self) -> SemaphorePermit<'_> {
        self.acquire_many(1)
    }

    /// Takes `permits` permits at once, waiting until as many are free: for ever, if there never
    /// will be.
    ///
    /// # Examples
    /// ```
    /// let semaphore = tailwater::sync::Semaphore::new(5);
    /// let permit = semaphore.acquire_many(3);
    /// assert_eq!((permit.permits(), semaphore.available_permits()), (3, 2));
    /// ```
    pub fn acquire_many(&self, permits: usize) -> SemaphorePermit<'_> {
        self.wait(permits, None);
        SemaphorePermit { semaphore: self, permits }
    }

    /// Takes one permit if one is free and no thread or future waits.
    ///
    /// # Examples
    /// ```
    /// let semaphore = tailwater::sync::Semaphore::new(1);
    /// let permit = semaphore.try_acquire();
    /// assert!(permit.is_some() && semaphore.try_acquire().is_none());
    /// ```
    pub fn try_acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.try_acquire_many(1)
    }

    /// Takes `permits` permits at once if as many are free and no thread or future waits.
    ///
    /// # Examples
    /// ```
    /// let semaphore = tailwater::sync::Semaphore::new(3);
    /// let permit = semaphore.try_acquire_many(2);
    /// assert!(permit.is_some() && semaphore.try_acquire_many(2).is_none());
    /// ```
    pub fn try_acquire_many(&self, permits: usize) -> Option<SemaphorePermit<'_>> {
        let taken = self.state.lock().take(permits);
        taken.then(|| SemaphorePermit { semaphore: self, permits })
    }

    /// As [`acquire`](Self::acquire), for at most `timeout`; `None` if the time passed first.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let semaphore = tailwater::sync::Semaphore::new(1);
    /// let permit = semaphore.acquire_timeout(Duration::from_millis(1));
    /// assert!(permit.is_some() && semaphore.acquire_timeout(Duration::from_millis(1)).is_none());
    /// ```
    pub fn acquire_timeout(&self, timeout: Duration) -> Option<SemaphorePermit<'_>> {
        self.acquire_many_timeout(1, timeout)
    }

    /// As [`acquire_many`](Self::acquire_many), for at most `timeout`; `None` if the time passed
    /// first.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let semaphore = tailwater::sync::Semaphore::new(3);
    /// assert!(semaphore.acquire_many_timeout(4, Duration::from_millis(1)).is_none());
    /// assert!(semaphore.acquire_many_timeout(3, Duration::from_millis(1)).is_some());
    /// ```
    pub fn acquire_many_timeout(&self, permits: usize, timeout: Duration) -> Option<SemaphorePermit<'_>> {
        let granted = self.wait(permits, Some(deadline_after(timeout)));
        granted.then(|| SemaphorePermit { semaphore: self, permits })
    }

    /// As [`acquire`](Self::acquire), with a permit that keeps the semaphore alive and may outlive
    /// the borrow.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tailwater::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(1));
    /// let permit = Semaphore::acquire_owned(&semaphore);
    /// std::thread::spawn(move || drop(permit)).join().unwrap();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// ```
    pub fn acquire_owned(self: &Arc<Self>) -> OwnedSemaphorePermit {
        self.acquire_many_owned(1)
    }

    /// As [`acquire_many`](Self::acquire_many), with a permit that keeps the semaphore alive.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tailwater::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(3));
    /// let permit = Semaphore::acquire_many_owned(&semaphore, 2);
    /// assert_eq!((permit.permits(), semaphore.available_permits()), (2, 1));
    /// ```
    pub fn acquire_many_owned(self: &Arc<Self>, permits: usize) -> OwnedSemaphorePermit {
        self.wait(permits, None);
        OwnedSemaphorePermit { semaphore: Arc::clone(self), permits }
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that keeps the semaphore alive.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use tailwater::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(1));
    /// let permit = Semaphore::try_acquire_owned(&semaphore);
    /// assert!(permit.is_some() && Semaphore::try_acquire_owned(&semaphore).is_none());
    /// ```
    pub fn try_acquire_owned(self: &Arc<Self>) -> Option<OwnedSemaphorePermit> {
        let taken = self.state.lock().take(1);
        taken.then(|| OwnedSemaphorePermit { semaphore: Arc::clone(self), permits: 1 })
    }

    /// Returns the number of free permits.
    pub fn available_permits(&self) -> usize {
        self.state.lock().permits
    }

    /// Adds permits, new ones or those of a permit that was [forgotten](SemaphorePermit::forget).
    ///
    /// # Panics
    /// If the semaphore would have more than `usize::MAX` permits.
    ///
    /// # Examples
    /// ```
    /// let semaphore = tailwater::sync::Semaphore::new(0);
    /// semaphore.add_permits(2);
    /// assert_eq!(semaphore.available_permits(), 2);
    /// ```
    pub fn add_permits(&self, permits: usize) {
        let mut state = self.state.lock();
        let sum = state.permits.checked_add(permits);
        if let Some(sum) = sum {
            state.permits = sum;
            self.serve(state);
        }
        assert!(sum.is_some(), "a semaphore cannot hold more than usize::MAX permits");
    }

    fn wait(&self, permits: usize, deadline: Option<Cycles>) -> bool {
        let mut state = self.state.lock();
        if state.take(permits) {
            return true;
        }
        // SAFETY: `queue` is the state's only queue, and stays in it.
        let (granted, _) = unsafe { queue::wait_in(state, |s| &mut s.queue, permits, deadline) };
        if !granted {
            // Those behind this one may need fewer permits.
            self.serve(self.state.lock());
        }
        granted
    }

    /// Takes permits for a future; returns its call, queued, if there are too few.
    #[cfg(feature = "future")]
    pub(crate) fn take_or_queue(&self, permits: usize) -> Option<Arc<Queued<usize>>> {
        if self.state.lock().take(permits) {
            return None;
        }
        let queued = Queued::new(permits);
        let mut state = self.state.lock();
        if state.take(permits) {
            return None;
        }
        // SAFETY: 1. it is new. 2. By `Acquire`, which asks whether it was granted, or leaves;
        // grants are dropped in `serve_batch`.
        unsafe { queued.join(&mut state.queue) };
        Some(queued)
    }

    /// Ends a future's queued call, and returns the permits that it was granted.
    #[cfg(feature = "future")]
    pub(crate) fn leave(&self, queued: &Queued<usize>, permits: usize) {
        let mut state = self.state.lock();
        if queued.is_granted() {
            drop(state);
            self.add_permits(permits);
        } else {
            // SAFETY: it has joined this queue.
            unsafe { queued.leave(&mut state.queue) };
            // Those behind it may need fewer permits.
            self.serve(state);
        }
    }

    /// Returns permits that a future has taken.
    #[cfg(feature = "future")]
    pub(crate) fn permit(&self, permits: usize) -> SemaphorePermit<'_> {
        SemaphorePermit { semaphore: self, permits }
    }

    /// Serves the queue for as long as the permits suffice, in batches between which it unlocks and
    /// passes a poll point.
    fn serve<'a>(&'a self, mut state: SpinGuard<'a, State>) {
        // Each turn but the last unlinks a batch of waiting threads, and takes at least as many
        // permits.
        while state.serve_batch() {
            drop(state);
            poll();
            state = self.state.lock();
        }
    }
}

/// Permits of a [`Semaphore`]; returns them when dropped.
///
/// # Examples
/// ```
/// let semaphore = tailwater::sync::Semaphore::new(2);
/// drop(semaphore.acquire());
/// assert_eq!(semaphore.available_permits(), 2);
/// semaphore.acquire().forget();
/// assert_eq!(semaphore.available_permits(), 1);
/// semaphore.add_permits(1);
/// assert_eq!(semaphore.available_permits(), 2);
/// ```
#[derive(Debug)]
#[must_use = "the permit is returned at once if it is dropped"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

/// As [`SemaphorePermit`], without a borrow.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use tailwater::sync::Semaphore;
///
/// let permits = {
///     let semaphore = Arc::new(Semaphore::new(2));
///     [semaphore.try_acquire_owned(), semaphore.try_acquire_owned()]
/// };
/// assert_eq!(permits.iter().flatten().map(|permit| permit.permits()).sum::<usize>(), 2);
/// ```
#[derive(Debug)]
#[must_use = "the permit is returned at once if it is dropped"]
pub struct OwnedSemaphorePermit {
    semaphore: Arc<Semaphore>,
    permits: usize,
}

impl SemaphorePermit<'_> {
    /// Returns the number of permits held.
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// Consumes the permits without returning them: the semaphore has as many less.
    pub fn forget(mut self) {
        self.permits = 0;
    }
}

impl OwnedSemaphorePermit {
    /// Returns the number of permits held.
    pub fn permits(&self) -> usize {
        self.permits
    }

    /// Consumes the permits without returning them: the semaphore has as many less.
    pub fn forget(mut self) {
        self.permits = 0;
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.permits);
    }
}

impl Drop for OwnedSemaphorePermit {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.permits);
    }
}

#[cfg(test)]
mod tests;
