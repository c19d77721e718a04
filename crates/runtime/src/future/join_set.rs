//! [`JoinSet`]: tasks that are awaited in the order in which they end.

use super::task::{Task, spawn};
use crate::sync::channel::{Receiver, Sender, unbounded};
use core::future::Future;
use std::collections::HashMap;
use std::thread::Result;

/// A set of tasks. Dropped, it cancels those that have not ended.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{JoinSet, block_on};
///
/// #[tailwater::main]
/// fn main() {
///     let mut tasks = JoinSet::new();
///     for n in 1..=4 {
///         tasks.spawn(async move { n * n });
///     }
///     let mut sum = 0;
///     block_on(async {
///         while let Some(square) = tasks.join_next().await {
///             sum += square.unwrap();
///         }
///     });
///     assert_eq!(sum, 30);
/// }
/// ```
#[derive(Debug)]
pub struct JoinSet<T> {
    tasks: HashMap<u64, Task<T>>,
    /// Number of the next task.
    next: u64,
    /// Numbers of tasks whose futures are over, those of cancelled tasks among them.
    over: (Sender<u64>, Receiver<u64>),
    /// The task that [`join_next`](Self::join_next) awaits, whose result is about to come.
    ending: Option<Task<T>>,
}

/// Reports that a future is over, however it ends.
struct Over {
    number: u64,
    over: Sender<u64>,
}

impl Drop for Over {
    fn drop(&mut self) {
        // Fails if the set is gone.
        let _ = self.over.send(self.number);
    }
}

impl<T: Send + 'static> JoinSet<T> {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self { tasks: HashMap::new(), next: 0, over: unbounded(), ending: None }
    }

    /// Starts a task of the set, as [`spawn`](super::spawn()).
    ///
    /// # Panics
    /// As there.
    pub fn spawn(&mut self, future: impl Future<Output = T> + Send + 'static) {
        let over = Over { number: self.next, over: self.over.0.clone() };
        let task = spawn(async move {
            let _over = over;
            future.await
        });
        self.tasks.insert(self.next, task);
        self.next += 1;
    }

    /// Waits for the next task that ends, and removes it; `None` if the set is empty. A future that
    /// is dropped before it is ready loses no result.
    ///
    /// # Errors
    /// The result is an error for a task that has panicked: its payload.
    pub async fn join_next(&mut self) -> Option<Result<T>> {
        while self.ending.is_none() {
            if self.tasks.is_empty() {
                return None;
            }
            let number = self.over.1.recv_async().await.expect("the set has a sender itself");
            // That of a cancelled task is in the set no more.
            self.ending = self.tasks.remove(&number);
        }
        let result = self.ending.as_mut()?.await;
        self.ending = None;
        Some(result)
    }

    /// Returns the number of tasks that were not returned yet.
    pub fn len(&self) -> usize {
        self.tasks.len() + usize::from(self.ending.is_some())
    }

    /// Returns whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> JoinSet<T> {
    /// Cancels all tasks and removes them: see [`Task::cancel`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::future::{JoinSet, block_on, sleep};
    /// use tailwater::time::Duration;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let mut tasks = JoinSet::new();
    ///     tasks.spawn(sleep(Duration::from_secs(3600)));
    ///     tasks.cancel_all();
    ///     assert!(block_on(tasks.join_next()).is_none());
    /// }
    /// ```
    pub fn cancel_all(&mut self) {
        self.tasks.drain().for_each(|(_, task)| task.cancel());
        self.ending = None;
    }
}

impl<T: Send + 'static> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.cancel_all();
    }
}
