//! Data in a shared record that one OS thread uses alone.

/// A value that only its owner can reach, although the record around it is shared.
///
/// `T` need not be `Sync`: `Cell`s will do. The owner is an OS thread with preemption off, and the
/// type that proves it calls [`get`](Self::get): see
/// [`ThisKthread`](crate::records::kthread::ThisKthread).
#[derive(Debug)]
pub struct OwnerCell<T>(T);

// SAFETY: a shared reference gives access to the value through `get` only, whose contract admits
// one thread.
unsafe impl<T: Send> Sync for OwnerCell<T> {}

impl<T> OwnerCell<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value.
    ///
    /// # Safety
    /// 1. The calling OS thread is the only one that ever calls this on the cell.
    /// 2. It runs no other user thread while the reference is used: preemption is off.
    #[inline(always)]
    pub unsafe fn get(&self) -> &T {
        &self.0
    }
}
