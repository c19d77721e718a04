//! How many threads wait for the words of each bucket.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `users` | the hook, when a user thread begins or ends to wait | wakers |
//! | `kernel` | the entry, around a wait in the kernel | wakers |
//! | `pinned` | the first wait of the bucket that the entry cannot count down | the same |
//! | `missed` | the hook | the hook |
//!
//! A waiter counts itself before it looks at the futex word, in the table or in the kernel, and a
//! waker changes the word before it looks at the counts. Both use a full fence in between, so of
//! two that meet one sees the other ([`Bucket::waiters`]). No loom model: one of the two is the
//! kernel, and a wake without waiters is assembly.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Binary logarithm of the number of buckets.
pub(crate) const BUCKET_BITS: u32 = 9;
/// Number of buckets.
pub const BUCKETS: usize = 1 << BUCKET_BITS;
/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4).
pub(crate) static HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// The waiters of all words with one hash. A cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bucket {
    users: AtomicU32,
    pub(crate) kernel: AtomicU32,
    pinned: AtomicBool,
    /// True if a wake could not be done where it was asked for, and is still due.
    pub missed: AtomicBool,
}

/// The bits of a size of [`Bucket`].
pub(crate) const BUCKET_SHIFT: u32 = size_of::<Bucket>().trailing_zeros();

/// All buckets.
pub(crate) static TABLE: [Bucket; BUCKETS] = [const { Bucket::new() }; BUCKETS];

/// Returns the number of the bucket of the futex word at `address`.
pub fn bucket_of(address: usize) -> usize {
    ((address as u64 >> 2).wrapping_mul(HASH) >> (u64::BITS - BUCKET_BITS)) as usize
}

/// Returns a bucket.
pub fn bucket(index: usize) -> &'static Bucket {
    &TABLE[index]
}

impl Bucket {
    const fn new() -> Self {
        Self {
            users: AtomicU32::new(0),
            kernel: AtomicU32::new(0),
            pinned: AtomicBool::new(false),
            missed: AtomicBool::new(false),
        }
    }

    /// Counts a user thread that is about to look at the word and wait.
    pub fn add_user(&self) {
        // SeqCst: the full fence of a waiter.
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a user thread less.
    pub fn remove_user(&self) {
        // Relaxed: one too many costs a waker a look.
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the numbers of user threads and of other threads that may wait, for a waker that has
    /// changed the word.
    pub fn waiters(&self) -> (u32, u32) {
        // The full fence of a waker.
        fence(Ordering::SeqCst);
        (self.users.load(Ordering::Relaxed), self.kernel.load(Ordering::Relaxed))
    }

    /// Counts a thread that is about to wait in the kernel.
    pub(crate) fn add_kernel(&self) {
        // SeqCst: the full fence of a waiter.
        self.kernel.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one thread for good, if none was counted so before.
    pub(crate) fn pin(&self) {
        if !self.pinned.swap(true, Ordering::Relaxed) {
            self.kernel.fetch_add(1, Ordering::Relaxed);
        }
        // The full fence of a waiter, which also sees another's count.
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_side_by_side_are_in_different_buckets() {
        let mut buckets: Vec<_> = (0..64usize).map(|n| bucket_of(0x7fff_1234_5000 + 4 * n)).collect();
        buckets.sort_unstable();
        buckets.dedup();
        assert!(buckets.len() > 56, "{buckets:?}");
        assert!(buckets.iter().all(|&bucket| bucket < BUCKETS));
    }
}
