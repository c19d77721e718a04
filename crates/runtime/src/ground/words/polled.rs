//! The address that poll points look at.
//!
//! At home it is that of a word which says whether the poll point has anything to do. While a poll
//! point is expected, it is that of a word which always says so; the owner's next poll point
//! returns it home.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `target` | any thread: expected; the owner: home | poll points of the owner |
//! | `home` | any thread | the owner |
//!
//! The home may change while the owner returns. [`set_home`](Polled::set_home) releases it with the
//! expectation, which [`returns`](Polled::returns) acquires when it ends one: the home that it
//! reads afterwards is that one or a later one.

use crate::ground::atomic::{AtomicPtr, Ordering};

/// See the module documentation. Addresses are only compared here.
#[derive(Debug)]
#[repr(C)]
pub struct Polled<T> {
    target: AtomicPtr<T>,
    home: AtomicPtr<T>,
}

impl<T> Polled<T> {
    /// Offset of the address that poll points look at, for assembly.
    pub const TARGET: usize = core::mem::offset_of!(Self, target);

    /// Returns one that is at home.
    pub fn new(home: *mut T) -> Self {
        Self { target: AtomicPtr::new(home), home: AtomicPtr::new(home) }
    }

    /// Sends the next poll point to the word at `expecting`. Any thread may call this.
    pub fn expect(&self, expecting: *mut T) {
        // A swap, not a store: it continues the release sequence of a home set before (C++20
        // [intro.races]), so that `returns` sees that home.
        self.target.swap(expecting, Ordering::Relaxed);
    }

    /// Returns whether a poll point was reached since [`expect`](Self::expect).
    #[inline]
    pub fn has_returned(&self, expecting: *mut T) -> bool {
        !core::ptr::eq(self.target.load(Ordering::Relaxed), expecting)
    }

    /// Sets the home, which holds from the next poll point on. Any thread may call this; those that
    /// do so at the same time set the same one.
    pub fn set_home(&self, home: *mut T, expecting: *mut T) {
        self.home.store(home, Ordering::Relaxed);
        // AcqRel: pairs with that in `returns`, whichever is first.
        self.target.swap(expecting, Ordering::AcqRel);
    }

    /// Returns home, if a poll point was expected: this is one. The owner calls this.
    #[inline]
    pub fn returns(&self, expecting: *mut T) {
        while !self.has_returned(expecting) {
            let home = self.home.load(Ordering::Relaxed);
            // AcqRel: pairs with that in `set_home`.
            let ended =
                self.target.compare_exchange(expecting, home, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if ended && !core::ptr::eq(self.home.load(Ordering::Relaxed), home) {
                // The home changed in between. By exchange: an expectation that came meanwhile
                // stays what the next turn acquires.
                let _ = self.target.compare_exchange(home, expecting, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}
