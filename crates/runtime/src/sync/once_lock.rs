//! A cell that is written once, as `std::sync::OnceLock`.

use crate::sync::once::Once;
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::{self, MaybeUninit};
use core::panic::{RefUnwindSafe, UnwindSafe};

/// A value that is set once and read by many.
///
/// # Examples
/// ```
/// static CONFIG: tailwater::sync::OnceLock<String> = tailwater::sync::OnceLock::new();
///
/// assert_eq!(CONFIG.get(), None);
/// assert_eq!(CONFIG.get_or_init(|| "first".to_owned()), "first");
/// assert_eq!(CONFIG.set("second".to_owned()), Err("second".to_owned()));
/// ```
pub struct OnceLock<T> {
    once: Once,
    /// Initialised if `once` has completed.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by one thread, before `once` completes, and shared after. It may be
// dropped by another thread than set it, hence `T: Send`.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}
impl<T: UnwindSafe + RefUnwindSafe> RefUnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// Returns an empty cell.
    ///
    /// # Examples
    /// ```
    /// static CONFIG: tailwater::sync::OnceLock<String> = tailwater::sync::OnceLock::new();
    /// assert_eq!(CONFIG.get(), None);
    /// ```
    pub const fn new() -> Self {
        Self { once: Once::new(), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Returns the value, if it is set. Never waits.
    ///
    /// # Examples
    /// ```
    /// let cell = tailwater::sync::OnceLock::new();
    /// assert_eq!(cell.get(), None);
    /// cell.set(1).unwrap();
    /// assert_eq!(cell.get(), Some(&1));
    /// ```
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: the value is initialised and will not change while `self` is borrowed.
        self.once.is_completed().then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Returns the value mutably, if it is set.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the value is initialised.
        self.once.is_completed().then(|| unsafe { self.value.get_mut().assume_init_mut() })
    }

    /// Waits until the value is set, and returns it.
    ///
    /// # Examples
    /// ```
    /// let cell = tailwater::sync::OnceLock::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| cell.set(1));
    ///     assert_eq!(*cell.wait(), 1);
    /// });
    /// ```
    pub fn wait(&self) -> &T {
        self.once.wait_force();
        self.get().expect("waited for")
    }

    /// Sets the value. Waits for an initialiser that is running.
    ///
    /// # Errors
    /// `value` itself, if the cell is full.
    ///
    /// # Examples
    /// ```
    /// let cell = tailwater::sync::OnceLock::new();
    /// assert_eq!((cell.set(1), cell.set(2)), (Ok(()), Err(2)));
    /// ```
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        self.get_or_init(|| value.take().expect("an initialiser runs once"));
        value.map_or(Ok(()), Err)
    }

    /// Returns the value; if the cell is empty, sets it to the result of `init`. Of several callers
    /// one initialises, the others wait.
    ///
    /// # Panics
    /// If `init` panics: the cell stays empty and the next caller tries. A call from within `init`
    /// waits for itself, for ever.
    ///
    /// # Examples
    /// ```
    /// let cell = tailwater::sync::OnceLock::new();
    /// assert_eq!(cell.get_or_init(|| 1), &1);
    /// assert_eq!(cell.get_or_init(|| 2), &1);
    /// ```
    #[inline]
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        self.once.call_once_force(|_| {
            let value = init();
            // SAFETY: `once` lets one initialiser run, and no thread reads before it has completed.
            unsafe { (*self.value.get()).write(value) };
        });
        self.get().expect("initialised")
    }

    /// Consumes the cell and returns the value.
    pub fn into_inner(mut self) -> Option<T> {
        self.take()
    }

    /// Returns the value and leaves the cell empty.
    ///
    /// # Examples
    /// ```
    /// let mut cell = tailwater::sync::OnceLock::from(1);
    /// assert_eq!((cell.take(), cell.take()), (Some(1), None));
    /// ```
    pub fn take(&mut self) -> Option<T> {
        if !self.once.is_completed() {
            return None;
        }
        self.once = Once::new();
        let value = mem::replace(self.value.get_mut(), MaybeUninit::uninit());
        // SAFETY: `once` had completed and was replaced by a new one: the value is taken once.
        Some(unsafe { value.assume_init() })
    }
}

impl<T> Drop for OnceLock<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let cell = Self::new();
        assert!(cell.set(value).is_ok(), "a new cell is empty");
        cell
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> Self {
        self.get().cloned().map_or_else(Self::new, Self::from)
    }
}

impl<T: PartialEq> PartialEq for OnceLock<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T: Eq> Eq for OnceLock<T> {}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_tuple("OnceLock");
        match self.get() {
            Some(value) => out.field(value),
            None => out.field(&format_args!("<uninit>")),
        };
        out.finish()
    }
}
