//! Running futures: [`block_on`] and [`spawn`].
//!
//! A task's thread and its [`Task`] share a cell under one spin lock.
//!
//! | event | on | does |
//! |---|---|---|
//! | start | the thread | stores its waker |
//! | end | the thread | stores the result; notifies who awaits the task |
//! | [`Task::cancel`] | any thread | sets `cancelled`; wakes the thread, which drops the future when the poll under way is over |
//! | drop of the [`Task`] | any thread | nothing: the task goes on, and its result is dropped with the cell |

use super::operation::{Operation, Wait};
use super::remedy::explain;
use super::waker::Poller;
use crate::ground::spin::SpinLock;
use crate::verbs::watch::Watchers;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::Result;

/// Runs a future on the calling thread and returns its output. Where the future waits, a user
/// thread gives its core away; an ordinary thread parks.
///
/// # Panics
/// On a user thread that would wait within [`no_preempt`](crate::no_preempt).
///
/// # Examples
/// ```
/// assert_eq!(tailwater::future::block_on(async { 6 * 7 }), 42);
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    match catch_unwind(AssertUnwindSafe(|| run_unless(future, |_| false))) {
        Ok(output) => output.expect("never cancelled"),
        Err(panic) => resume_unwind(explain(panic)),
    }
}

/// Runs a future; stops and drops it as soon as `is_cancelled` of its waker, asked before each
/// poll, is true.
fn run_unless<F: Future>(future: F, is_cancelled: impl Fn(&Waker) -> bool) -> Option<F::Output> {
    /// Passes on what the run has cleared, also if the future panics.
    struct Run {
        poller: Poller,
        was_woken: bool,
    }
    impl Drop for Run {
        fn drop(&mut self) {
            if self.was_woken {
                self.poller.pass_on();
            }
        }
    }
    let mut run = Run { poller: Poller::current(), was_woken: false };
    let waker = run.poller.waker();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        run.was_woken |= run.poller.begin();
        if is_cancelled(&waker) {
            return None;
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        run.poller.wait();
    }
}

/// How far a task is.
#[derive(Debug)]
enum Progress<T> {
    Running,
    Ended(Result<T>),
    /// Ended, and the result was returned.
    Taken,
}

#[derive(Debug)]
struct State<T> {
    progress: Progress<T>,
    cancelled: bool,
    /// Of the thread, once it runs.
    waker: Option<Waker>,
    watchers: Watchers,
}

#[derive(Debug)]
struct Shared<T>(SpinLock<State<T>>);

impl<T> Shared<T> {
    fn run(&self, future: impl Future<Output = T>) {
        let is_cancelled = |waker: &Waker| {
            let mut state = self.0.lock();
            if state.waker.is_none() {
                // A thread's own waker, whose clone copies a pointer.
                state.waker = Some(waker.clone());
            }
            state.cancelled
        };
        let result = catch_unwind(AssertUnwindSafe(|| run_unless(future, is_cancelled)));
        let result = match result {
            Ok(None) => return,
            Ok(Some(output)) => Ok(output),
            Err(panic) => Err(explain(panic)),
        };
        let mut state = self.0.lock();
        state.progress = Progress::Ended(result);
        state.watchers.notify();
    }
}

/// A spawned future. As a future itself it waits for the output, or for the payload of the panic
/// that ended it. Dropped, it leaves the task to itself.
///
/// # Panics
/// If it is polled after it was ready.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, spawn};
///
/// #[tailwater::main]
/// fn main() {
///     let task = spawn(async { "done" });
///     assert_eq!(task.join().unwrap(), "done");
///     let failing = spawn(async { panic!("on purpose") });
///     assert!(block_on(failing).is_err());
/// }
/// ```
#[derive(Debug)]
#[must_use = "the task goes on if this is dropped: `drop` it to say so, or await it"]
pub struct Task<T> {
    shared: Arc<Shared<T>>,
    /// On the heap, so that a task can be moved after it was polled.
    wait: Pin<Box<Wait<Finished<T>>>>,
}

#[derive(Debug)]
struct Finished<T>(Arc<Shared<T>>);

impl<T> Operation for Finished<T> {
    type Output = Result<T>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<Result<T>> {
        let mut state = self.0.0.lock();
        match core::mem::replace(&mut state.progress, Progress::Taken) {
            Progress::Running => {
                state.progress = Progress::Running;
                arm(&mut state.watchers);
                None
            }
            Progress::Ended(result) => Some(result),
            Progress::Taken => {
                drop(state);
                panic!("a future is not polled after it is ready")
            }
        }
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        change(&mut self.0.0.lock().watchers);
    }
}

/// Starts a task: a user thread that runs `future`. It may call what blocks, and computes for as
/// long as it likes.
///
/// # Panics
/// If no runtime has been started, or there is no memory for a stack.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, spawn};
/// use tailwater::sync::channel;
///
/// #[tailwater::main]
/// fn main() {
///     let (sender, receiver) = channel::bounded(1);
///     drop(spawn(async move {
///         for n in 0..10 {
///             sender.send_async(n).await.unwrap();
///         }
///     }));
///     let sum = spawn(async move {
///         let mut sum = 0;
///         while let Ok(n) = receiver.recv_async().await {
///             sum += n;
///         }
///         sum
///     });
///     assert_eq!(block_on(sum).unwrap(), 45);
/// }
/// ```
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let state =
        State { progress: Progress::Running, cancelled: false, waker: None, watchers: Watchers::new() };
    let shared = Arc::new(Shared(SpinLock::new(state)));
    let wait = Box::pin(Wait::new(Finished(Arc::clone(&shared))));
    let task = Task { shared: Arc::clone(&shared), wait };
    drop(crate::thread::spawn(move || shared.run(future)));
    task
}

impl<T> Task<T> {
    /// Waits for the task's end; gives the core away meanwhile.
    ///
    /// # Errors
    /// The payload of the task's panic.
    pub fn join(self) -> Result<T> {
        block_on(self)
    }

    /// Returns whether the task has ended, also after its result was taken.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::future::{sleep, spawn};
    /// use tailwater::time::Duration;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let task = spawn(sleep(Duration::from_secs(60)));
    ///     assert!(!task.is_finished());
    ///     task.cancel();
    /// }
    /// ```
    pub fn is_finished(&self) -> bool {
        !matches!(self.shared.0.lock().progress, Progress::Running)
    }

    /// Ends the task: its future is dropped on its own thread, where it waits next or at once if it
    /// waits now. A future that never waits runs to its end.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::future::{sleep, spawn};
    /// use tailwater::sync::channel;
    /// use tailwater::time::Duration;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let (sender, receiver) = channel::bounded::<()>(1);
    ///     let task = spawn(async move {
    ///         sleep(Duration::from_secs(3600)).await;
    ///         drop(sender);
    ///     });
    ///     task.cancel();
    ///     assert!(receiver.recv().is_err(), "the sender was dropped with the future");
    /// }
    /// ```
    pub fn cancel(self) {
        let mut state = self.shared.0.lock();
        state.cancelled = true;
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.wait.as_mut().poll(context)
    }
}

/// Lets other threads run, and other futures of the same task.
///
/// # Examples
/// ```
/// tailwater::future::block_on(tailwater::future::yield_now());
/// ```
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        crate::thread::yield_now();
        Poll::Pending
    })
    .await;
}
