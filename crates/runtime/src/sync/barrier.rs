//! A barrier, as `std::sync::Barrier`.

use crate::ground::spin::SpinLock;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitList};
use core::panic::{RefUnwindSafe, UnwindSafe};

#[derive(Debug)]
struct Arrivals {
    count: usize,
    waiters: WaitList,
}

/// Makes a number of threads wait until all of them have arrived; then it can be used again.
///
/// # Examples
/// ```
/// use tailwater::sync::Barrier;
///
/// let barrier = Barrier::new(3);
/// let leaders = std::thread::scope(|scope| {
///     let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| barrier.wait().is_leader())).collect();
///     threads.into_iter().map(|t| t.join().unwrap()).filter(|&leader| leader).count()
/// });
/// assert_eq!(leaders, 1);
/// ```
#[derive(Debug)]
pub struct Barrier {
    threads: usize,
    arrivals: SpinLock<Arrivals>,
}

impl UnwindSafe for Barrier {}
impl RefUnwindSafe for Barrier {}

/// Which of the threads that met at a [`Barrier`] this was.
///
/// # Examples
/// ```
/// assert!(tailwater::sync::Barrier::new(1).wait().is_leader());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Returns true for exactly one of the threads of each meeting: the last to arrive.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    /// Returns a barrier for `threads` threads; 0 means the same as 1.
    ///
    /// # Examples
    /// ```
    /// // A single thread does not wait.
    /// assert!(tailwater::sync::Barrier::new(1).wait().is_leader());
    /// ```
    pub const fn new(threads: usize) -> Self {
        Self { threads, arrivals: SpinLock::new(Arrivals { count: 0, waiters: WaitList::new() }) }
    }

    /// Waits until as many threads have called this as the barrier is for.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::Barrier;
    ///
    /// let barrier = Barrier::new(3);
    /// let leaders = std::thread::scope(|s| {
    ///     let threads = [(); 3].map(|()| s.spawn(|| barrier.wait().is_leader()));
    ///     threads.map(|thread| thread.join().unwrap()).into_iter().filter(|&leads| leads).count()
    /// });
    /// assert_eq!(leaders, 1);
    /// ```
    pub fn wait(&self) -> BarrierWaitResult {
        poll();
        let mut arrivals = self.arrivals.lock();
        arrivals.count += 1;
        let leader = arrivals.count >= self.threads;
        if leader {
            arrivals.count = 0;
            wait::wake_all(arrivals, |a| &mut a.waiters);
        } else {
            // SAFETY: `waiters` is the state's only list, and stays in it.
            unsafe { wait::wait(arrivals, |a| &mut a.waiters, None) };
        }
        BarrierWaitResult(leader)
    }
}
