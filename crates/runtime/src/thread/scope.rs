//! [`scope`]: threads that borrow from the stack of the thread that starts them.
//!
//! Sound because [`scope`] does not return, not even by panic, before `running` is zero, and a
//! thread counts as running until its closure, its result (unless a handle has it) and its
//! thread-local destructors are gone. Handles cannot leave the scope: they carry its lifetime.

use crate::thread::handle::{Thread, current};
use crate::thread::packet::Joiner;
use crate::thread::park::park;
use crate::thread::scope_data::ScopeData;
use crate::thread::spawn::{Options, start};
use core::fmt;
use core::marker::PhantomData;
use core::panic::AssertUnwindSafe;
use std::io;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

/// A scope to spawn threads in; see [`scope`].
///
/// # Examples
/// Threads of a scope may start others in it:
/// ```standalone_crate
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use tailwater::thread::{self, Scope};
///
/// fn count<'scope>(s: &'scope Scope<'scope, '_>, counter: &'scope AtomicU32, depth: u32) {
///     counter.fetch_add(1, Ordering::Relaxed);
///     for _ in 0..depth {
///         s.spawn(move || count(s, counter, depth - 1));
///     }
/// }
///
/// #[tailwater::main]
/// fn main() {
///     let counter = AtomicU32::new(0);
///     thread::scope(|s| count(s, &counter, 3));
///     assert_eq!(counter.into_inner(), 16);
/// }
/// ```
pub struct Scope<'scope, 'env: 'scope> {
    data: Arc<ScopeData>,
    /// Invariant, so that `'scope` can neither grow nor shrink.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Starts threads that may borrow: all threads spawned in the scope have ended, including their
/// thread-local destructors, when this returns.
///
/// Works on user threads and on ordinary ones.
///
/// # Panics
/// If `f` panics, or a thread panicked that was not joined; after all threads have ended.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let mut numbers = vec![1, 2, 3, 4];
///     let (low, high) = numbers.split_at_mut(2);
///     thread::scope(|s| {
///         s.spawn(|| low.iter_mut().for_each(|n| *n *= 10));
///         s.spawn(|| high.iter_mut().for_each(|n| *n *= 100));
///     });
///     assert_eq!(numbers, [10, 20, 300, 400]);
/// }
/// ```
pub fn scope<'env, F, T>(f: F) -> T
where
    F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
{
    let data = Arc::new(ScopeData::new(current()));
    let scope = Scope { data, scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    while !scope.data.all_have_ended() {
        park();
    }
    match result {
        Err(panic) => resume_unwind(panic),
        Ok(_) if scope.data.has_panicked() => panic!("a scoped thread panicked"),
        Ok(result) => result,
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread in the scope.
    ///
    /// # Panics
    /// If there is no runtime, or no memory for a stack.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let mut numbers = [1, 2, 3];
    ///     thread::scope(|s| {
    ///         for number in &mut numbers {
    ///             s.spawn(|| *number *= 10);
    ///         }
    ///     });
    ///     assert_eq!(numbers, [10, 20, 30]);
    /// }
    /// ```
    pub fn spawn<F, T>(&'scope self, main: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.start(main, Options::default()).unwrap_or_else(|e| panic!("cannot start a user thread: {e}"))
    }

    pub(crate) fn start<F, T>(
        &'scope self,
        main: F,
        options: Options,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.data.thread_starts();
        // SAFETY: `scope` waits until the thread has called `thread_ended`, after which it uses
        // neither `F` nor `T`.
        match unsafe { start(main, options, Some(Arc::clone(&self.data))) } {
            Ok(joiner) => Ok(ScopedJoinHandle { joiner, scope: PhantomData }),
            Err(e) => {
                self.data.thread_ended();
                Err(e)
            }
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("data", &self.data).finish_non_exhaustive()
    }
}

/// Handle of a scoped thread: waits for the thread and returns its result.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let words = ["user", "threads"];
///     let lengths = thread::scope(|s| {
///         words.map(|w| s.spawn(move || w.len())).map(|thread| thread.join().unwrap())
///     });
///     assert_eq!(lengths, [4, 7]);
/// }
/// ```
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    joiner: Joiner<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits until the thread has ended, including its thread-local destructors, and returns its
    /// result.
    ///
    /// # Errors
    /// The payload of the panic that ended the thread.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let text = String::from("borrowed");
    ///     let len = thread::scope(|s| s.spawn(|| text.len()).join().unwrap());
    ///     assert_eq!(len, 8);
    /// }
    /// ```
    pub fn join(self) -> std::thread::Result<T> {
        self.joiner.join()
    }

    /// Returns whether the thread has ended; `join` then returns at once.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     thread::scope(|s| {
    ///         let thread = s.spawn(|| ());
    ///         while !thread.is_finished() {
    ///             thread::yield_now();
    ///         }
    ///     });
    /// }
    /// ```
    pub fn is_finished(&self) -> bool {
        self.joiner.is_finished()
    }

    /// Returns a handle to the thread.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     thread::scope(|s| {
    ///         let sleeper = s.spawn(thread::park);
    ///         sleeper.thread().unpark();
    ///     });
    /// }
    /// ```
    pub fn thread(&self) -> &Thread {
        self.joiner.thread()
    }
}
