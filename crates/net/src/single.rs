//! A platform for programs with one thread: simulators, fuzz targets and tests.
//!
//! Its locks are [`RefCell`]s: a lock that is taken twice panics instead of hanging. No thread ever
//! waits, and requests are traced by number.

use crate::platform::{Lock, Once, Platform, Waiters};
use core::cell::{OnceCell, RefCell, RefMut};
use core::fmt::Debug;

/// See the module documentation.
#[derive(Debug)]
pub struct Single;

impl Platform for Single {
    type Lock<T: Debug + 'static> = RefCell<T>;
    type Once<T: Debug + 'static> = OnceCell<T>;
    type Waiters = NoWaiters;
    type Request = u32;
}

impl<T: 'static> Lock<T> for RefCell<T> {
    type Guard<'a> = RefMut<'a, T>;

    fn new(value: T) -> Self {
        Self::new(value)
    }

    fn lock(&self) -> RefMut<'_, T> {
        self.borrow_mut()
    }
}

impl<T> Once<T> for OnceCell<T> {
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

/// No threads.
#[derive(Debug, Default)]
pub struct NoWaiters;

impl Waiters for NoWaiters {
    fn wake_one(&mut self) -> bool {
        false
    }
}
