//! One-time initialisation, as `std::sync::Once`.
//!
//! | state | left by |
//! |---|---|
//! | `INCOMPLETE` | the first caller, under the lock: to `RUNNING` |
//! | `RUNNING` | that caller, under the lock: to `COMPLETE`, or to `POISONED` if it panics; wakes all |
//! | `POISONED` | a forcing caller, under the lock: to `RUNNING` |
//! | `COMPLETE` | final |
//!
//! The state is changed under the lock only. Outside the lock it is read for `COMPLETE`, which
//! publishes what the initialiser did.

use crate::ground::spin::SpinLock;
use crate::verbs::switch::poll;
use crate::verbs::wait::{self, WaitList};
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicU8, Ordering};

const INCOMPLETE: u8 = 0;
const RUNNING: u8 = 1;
const POISONED: u8 = 2;
const COMPLETE: u8 = 3;

/// Runs an initialiser once: the first caller runs it, all others wait until it has run.
///
/// # Examples
/// ```
/// static START: tailwater::sync::Once = tailwater::sync::Once::new();
///
/// START.call_once(|| println!("once"));
/// START.call_once(|| unreachable!());
/// assert!(START.is_completed());
/// ```
pub struct Once {
    state: AtomicU8,
    waiters: SpinLock<WaitList>,
}

impl UnwindSafe for Once {}
impl RefUnwindSafe for Once {}

/// The argument of an initialiser of [`Once::call_once_force`].
///
/// # Examples
/// ```
/// tailwater::sync::Once::new().call_once_force(|state| assert!(!state.is_poisoned()));
/// ```
#[derive(Debug)]
pub struct OnceState {
    poisoned: bool,
    /// Like `std`'s, the state stays with the initialiser's thread.
    _not_sync: PhantomData<Cell<()>>,
}

impl OnceState {
    /// Returns whether an earlier initialiser panicked.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }
}

/// Ends `RUNNING` on drop, also if the initialiser unwinds.
struct Finish<'a> {
    once: &'a Once,
    state: u8,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let waiters = self.once.waiters.lock();
        // Release: pairs with the Acquire in `is_completed`.
        self.once.state.store(self.state, Ordering::Release);
        wait::wake_all(waiters, |list| list);
    }
}

impl Once {
    /// Returns a `Once` whose initialiser has not run.
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(INCOMPLETE), waiters: SpinLock::new(WaitList::new()) }
    }

    /// Runs `init` unless an initialiser has run already; waits for one that is running.
    ///
    /// # Panics
    /// If an earlier initialiser panicked. A call from within the initialiser waits for itself, for
    /// ever.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::Once;
    ///
    /// static START: Once = Once::new();
    /// for _ in 0..3 {
    ///     START.call_once(|| println!("printed once"));
    /// }
    /// assert!(START.is_completed());
    /// ```
    #[inline]
    pub fn call_once(&self, init: impl FnOnce()) {
        if !self.is_completed() {
            self.run(false, |_| init());
        }
    }

    /// As [`call_once`](Self::call_once), but also runs `init` if an earlier initialiser panicked.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::Once;
    ///
    /// let once = Once::new();
    /// let panic = std::thread::scope(|s| s.spawn(|| once.call_once(|| panic!("no"))).join());
    /// assert!(panic.is_err());
    /// once.call_once_force(|state| assert!(state.is_poisoned()));
    /// once.call_once(|| unreachable!("it has completed"));
    /// ```
    #[inline]
    pub fn call_once_force(&self, init: impl FnOnce(&OnceState)) {
        if !self.is_completed() {
            self.run(true, init);
        }
    }

    /// Returns whether an initialiser has completed. What it did is then visible to the caller.
    #[inline]
    pub fn is_completed(&self) -> bool {
        // Acquire: pairs with the Release in `Finish::drop`.
        self.state.load(Ordering::Acquire) == COMPLETE
    }

    /// Waits until an initialiser has run.
    ///
    /// # Panics
    /// If an initialiser panicked.
    ///
    /// # Examples
    /// ```
    /// let once = tailwater::sync::Once::new();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| once.call_once(|| ()));
    ///     once.wait();
    /// });
    /// assert!(once.is_completed());
    /// ```
    pub fn wait(&self) {
        self.wait_completed(false);
    }

    /// As [`wait`](Self::wait), but if an initialiser panicked, continues to wait until a later one
    /// has run.
    ///
    /// # Examples
    /// ```
    /// let once = tailwater::sync::Once::new();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| once.call_once(|| ()));
    ///     once.wait_force();
    /// });
    /// assert!(once.is_completed());
    /// ```
    pub fn wait_force(&self) {
        self.wait_completed(true);
    }

    fn wait_completed(&self, ignore_poison: bool) {
        while !self.is_completed() {
            let waiters = self.waiters.lock();
            // Relaxed: changed under the lock we hold.
            match self.state.load(Ordering::Relaxed) {
                COMPLETE => return,
                POISONED if !ignore_poison => {
                    drop(waiters);
                    poisoned();
                }
                // SAFETY: the list is all that the lock guards, and it stays there.
                _ => unsafe { wait::wait(waiters, |list| list, None) },
            };
        }
    }

    #[cold]
    fn run(&self, ignore_poison: bool, init: impl FnOnce(&OnceState)) {
        poll();
        let was_poisoned = loop {
            let waiters = self.waiters.lock();
            // Relaxed: changed under the lock we hold, here and below.
            match self.state.load(Ordering::Relaxed) {
                COMPLETE => return,
                POISONED if !ignore_poison => {
                    drop(waiters);
                    poisoned();
                }
                state @ (INCOMPLETE | POISONED) => {
                    self.state.store(RUNNING, Ordering::Relaxed);
                    break state == POISONED;
                }
                // SAFETY: the list is all that the lock guards, and it stays there.
                _ => unsafe { wait::wait(waiters, |list| list, None) },
            };
        };
        let mut finish = Finish { once: self, state: POISONED };
        init(&OnceState { poisoned: was_poisoned, _not_sync: PhantomData });
        finish.state = COMPLETE;
    }
}

fn poisoned() -> ! {
    panic!("Once instance has previously been poisoned")
}

impl Default for Once {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").finish_non_exhaustive()
    }
}
