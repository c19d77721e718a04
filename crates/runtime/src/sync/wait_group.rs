//! A wait group: waits until all of a changing number of tasks have ended.
//!
//! Go counts with `add` and `done`, and a panic between the two breaks the count. Here a task is a
//! value: made by [`WaitGroup::add`], cloned for a task that starts another, and done when it is
//! dropped, also by unwinding.

use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitList};
use core::fmt;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::Cycles;

#[derive(Debug, Default)]
struct State {
    tasks: usize,
    waiters: WaitList,
}

/// Waits for tasks to end.
///
/// # Examples
/// ```
/// use tailwater::sync::WaitGroup;
///
/// let group = WaitGroup::new();
/// for i in 0..4 {
///     let task = group.add();
///     std::thread::spawn(move || {
///         println!("task {i}");
///         drop(task);
///     });
/// }
/// group.wait();
/// assert_eq!(group.tasks(), 0);
/// ```
#[derive(Default)]
pub struct WaitGroup {
    state: Arc<SpinLock<State>>,
}

impl UnwindSafe for WaitGroup {}
impl RefUnwindSafe for WaitGroup {}

impl WaitGroup {
    /// Returns a group without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task, which is done when the returned value is dropped. Add it before you start the
    /// task, not in it: otherwise the group may be found empty too early.
    ///
    /// # Examples
    /// ```
    /// let group = tailwater::sync::WaitGroup::new();
    /// let task = group.add();
    /// assert_eq!(group.tasks(), 1);
    /// std::thread::spawn(move || drop(task));
    /// group.wait();
    /// assert_eq!(group.tasks(), 0);
    /// ```
    pub fn add(&self) -> WaitGroupTask {
        self.state.lock().tasks += 1;
        WaitGroupTask { state: Arc::clone(&self.state) }
    }

    /// Returns the number of tasks that are not done.
    pub fn tasks(&self) -> usize {
        self.state.lock().tasks
    }

    /// Waits until no task is left. The group can be used again, and several threads may wait.
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`wait`](Self::wait), for at most `timeout`; false if the time passed first.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let group = tailwater::sync::WaitGroup::new();
    /// let task = group.add();
    /// assert!(!group.wait_timeout(Duration::from_millis(1)));
    /// drop(task);
    /// assert!(group.wait_timeout(Duration::ZERO));
    /// ```
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.wait_until(Some(deadline_after(timeout)))
    }

    fn wait_until(&self, deadline: Option<Cycles>) -> bool {
        poll();
        let state = self.state.lock();
        if state.tasks == 0 {
            return true;
        }
        // SAFETY: `waiters` is the state's only list, and stays in it.
        unsafe { wait::wait(state, |s| &mut s.waiters, deadline) == wait::WaitOutcome::Woken }
    }
}

/// A task that a [`WaitGroup`] waits for: done when dropped. A clone is one more task of the same
/// group.
///
/// # Examples
/// ```
/// let group = tailwater::sync::WaitGroup::new();
/// let task = group.add();
/// let subtask = task.clone();
/// drop(task);
/// assert_eq!(group.tasks(), 1);
/// drop(subtask);
/// group.wait();
/// ```
pub struct WaitGroupTask {
    state: Arc<SpinLock<State>>,
}

impl UnwindSafe for WaitGroupTask {}
impl RefUnwindSafe for WaitGroupTask {}

impl Clone for WaitGroupTask {
    fn clone(&self) -> Self {
        self.state.lock().tasks += 1;
        Self { state: Arc::clone(&self.state) }
    }
}

impl Drop for WaitGroupTask {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.tasks -= 1;
        if state.tasks == 0 {
            wait::wake_all(state, |s| &mut s.waiters);
        }
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup").field("tasks", &self.tasks()).finish()
    }
}

impl fmt::Debug for WaitGroupTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroupTask").finish_non_exhaustive()
    }
}
