//! The platform of these tests: locks that several threads may share and that panic, instead of
//! hanging, when one thread takes them twice.

use crate::platform::{Lock, Platform};
use crate::single::NoWaiters;
use core::cell::Cell;
use core::fmt::Debug;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};

#[derive(Debug)]
pub(super) struct Threads;

impl Platform for Threads {
    type Lock<T: Debug + 'static> = Checked<T>;
    type Once<T: Debug + 'static> = OnceLock<T>;
    type Waiters = NoWaiters;
    type Request = u32;

    fn awaits_acks(begins: bool) {
        AWAITING.with(|count| count.set(count.get() + if begins { 1 } else { -1 }));
    }
}

thread_local! {
    static AWAITING: Cell<i32> = const { Cell::new(0) };
}

/// Returns the number of connections that wait for acknowledgments, of this thread's stacks.
pub(super) fn awaiting() -> i32 {
    AWAITING.get()
}

impl<T> crate::platform::Once<T> for OnceLock<T> {
    fn new() -> Self {
        Self::new()
    }

    fn get(&self) -> Option<&T> {
        self.get()
    }

    fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.get_or_init(make)
    }
}

#[derive(Debug)]
pub(super) struct Checked<T> {
    value: Mutex<T>,
    /// The thread that holds it, as [`this_thread`] numbers it; zero for none.
    holder: AtomicUsize,
}

/// Returns a number that differs between threads that run at the same time, and is not zero.
fn this_thread() -> usize {
    thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| core::ptr::from_ref(here).addr())
}

impl<T: 'static> Lock<T> for Checked<T> {
    type Guard<'a> = Held<'a, T>;

    fn new(value: T) -> Self {
        Self { value: Mutex::new(value), holder: AtomicUsize::new(0) }
    }

    fn lock(&self) -> Held<'_, T> {
        // Relaxed: only the thread itself writes its own number.
        assert_ne!(self.holder.load(Relaxed), this_thread(), "a lock is taken twice by one thread");
        let value = self.value.lock().expect("no test panics with a lock held");
        self.holder.store(this_thread(), Relaxed);
        Held { value, holder: &self.holder }
    }
}

pub(super) struct Held<'a, T> {
    value: MutexGuard<'a, T>,
    holder: &'a AtomicUsize,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.holder.store(0, Relaxed);
    }
}
