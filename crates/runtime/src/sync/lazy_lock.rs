//! A value that is computed when it is first needed, as `std::sync::LazyLock`.

use crate::sync::once_lock::OnceLock;
use core::cell::Cell;
use core::fmt;
use core::ops::Deref;
use core::panic::{RefUnwindSafe, UnwindSafe};

/// A value that the first thread to need it computes, while others that need it wait.
///
/// # Examples
/// ```
/// use std::collections::HashMap;
/// use tailwater::sync::LazyLock;
///
/// static PORTS: LazyLock<HashMap<&str, u16>> =
///     LazyLock::new(|| HashMap::from([("echo", 7), ("ntp", 123)]));
///
/// assert_eq!(PORTS["echo"], 7);
/// ```
pub struct LazyLock<T, F = fn() -> T> {
    value: OnceLock<T>,
    /// Taken by the initialiser; `None` without a value means that it panicked.
    init: Cell<Option<F>>,
}

// SAFETY: `init` is touched by the one initialiser that `value` lets run.
unsafe impl<T: Send + Sync, F: Send> Sync for LazyLock<T, F> {}
impl<T: UnwindSafe, F: UnwindSafe> UnwindSafe for LazyLock<T, F> {}
impl<T: RefUnwindSafe + UnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// Returns a value that `init` computes on first use.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::LazyLock;
    ///
    /// static TABLE: LazyLock<Vec<u32>> = LazyLock::new(|| (0..10).map(|n| n * n).collect());
    /// assert_eq!(TABLE[3], 9);
    /// ```
    pub const fn new(init: F) -> Self {
        Self { value: OnceLock::new(), init: Cell::new(Some(init)) }
    }

    /// Returns the value, computed by this call if it is the first. The same as `&**this`.
    ///
    /// # Panics
    /// If the initialiser panics, or did so for an earlier caller: the value is poisoned
    /// permanently. An initialiser that uses its own value waits for itself, for ever.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::LazyLock;
    ///
    /// static TABLE: LazyLock<Vec<u32>> = LazyLock::new(|| (0..10).map(|n| n * n).collect());
    /// assert_eq!(LazyLock::force(&TABLE)[3], 9);
    /// ```
    #[inline]
    pub fn force(this: &Self) -> &T {
        this.value.get_or_init(|| match this.init.take() {
            Some(init) => init(),
            None => panic!("LazyLock instance has previously been poisoned"),
        })
    }
}

impl<T, F> LazyLock<T, F> {
    /// Returns the value, if it has been computed.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::LazyLock;
    ///
    /// let answer = LazyLock::new(|| 42);
    /// assert_eq!(LazyLock::get(&answer), None);
    /// assert_eq!((*answer, LazyLock::get(&answer)), (42, Some(&42)));
    /// ```
    pub fn get(this: &Self) -> Option<&T> {
        this.value.get()
    }

    /// Returns the value mutably, if it has been computed.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::LazyLock;
    ///
    /// let mut words = LazyLock::new(|| vec!["user"]);
    /// assert!(LazyLock::get_mut(&mut words).is_none());
    /// assert_eq!(words.len(), 1);
    /// LazyLock::get_mut(&mut words).unwrap().push("threads");
    /// assert_eq!(*words, ["user", "threads"]);
    /// ```
    pub fn get_mut(this: &mut Self) -> Option<&mut T> {
        this.value.get_mut()
    }
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        Self::force(self)
    }
}

impl<T: Default> Default for LazyLock<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_tuple("LazyLock");
        match self.value.get() {
            Some(value) => out.field(value),
            None => out.field(&format_args!("<uninit>")),
        };
        out.finish()
    }
}
