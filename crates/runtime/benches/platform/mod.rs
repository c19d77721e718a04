//! The stack's platform as the runtime supplies it: its spin locks, which turn preemption off.

use std::fmt::Debug;
use std::sync::OnceLock;
use tailwater::internals::{SpinGuard, SpinLock, WaitList};
use tailwater_net::platform::{Lock, Once, Platform, Waiters};

#[derive(Debug)]
pub struct Kthreads;

pub type Stack = tailwater_net::Stack<Kthreads>;

impl Platform for Kthreads {
    type Lock<T: Debug + 'static> = Spin<T>;
    type Once<T: Debug + 'static> = Cell<T>;
    type Waiters = Waiting;
    type Request = ();
}

#[derive(Debug)]
pub struct Spin<T>(SpinLock<T>);

impl<T: 'static> Lock<T> for Spin<T> {
    type Guard<'a> = SpinGuard<'a, T>;

    #[inline]
    fn new(value: T) -> Self {
        Self(SpinLock::new(value))
    }

    #[inline]
    fn lock(&self) -> SpinGuard<'_, T> {
        self.0.lock()
    }
}

#[derive(Debug)]
pub struct Cell<T>(OnceLock<T>);

impl<T> Once<T> for Cell<T> {
    fn new() -> Self {
        Self(OnceLock::new())
    }

    #[inline]
    fn get(&self) -> Option<&T> {
        self.0.get()
    }

    fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }
}

#[derive(Debug, Default)]
pub struct Waiting(WaitList);

impl Waiters for Waiting {
    #[inline]
    fn wake_one(&mut self) -> bool {
        self.0.wake_one()
    }
}
