//! The word between a thread and whoever joins it: one locked instruction at the thread's end, and one at most to join it.
//!
//! Knows nothing of threads and results, so that a loom model can run it as it ships (`tests/loom_sync.rs`).
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `RUNNING` | no result yet, nobody waits | [`enlist`](JoinWord::enlist), [`abandon`](JoinWord::abandon), [`finish`](JoinWord::finish) |
//! | a waiter's token | no result yet, that waiter must be woken | `finish` |
//! | `ABANDONED` | no result yet, and nobody will ask for it | `finish` |
//! | `FINISHED` | the result is there | nobody |
//!
//! The result belongs to the finisher before `finish`, and to the other side once that knows of `FINISHED`. What both share is freed by the
//! second of them to let go: the finisher that finds `Abandoned`, or the other side, which finds the word finished.
//!
//! Orderings: `finish` releases the result to whoever acquires `FINISHED`, and acquires what the other side did before it
//! enlisted or abandoned.

use tailwater_shm::sync::{AtomicU64, Ordering};

const RUNNING: u64 = 0;
const FINISHED: u64 = 2;
const ABANDONED: u64 = 4;
/// The smallest token of a waiter.
pub(crate) const MIN_TOKEN: u64 = 8;

/// What the finisher finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nobody waits yet. The other side may free what is shared from now on.
    Nobody,
    /// A waiter to wake. Once awake it may free what is shared.
    Waiter(u64),
    /// The other side is gone: what is shared is the finisher's.
    Abandoned,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct JoinWord(AtomicU64);

impl JoinWord {
    /// Of a thread that runs.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(RUNNING))
    }

    /// Announces the result. Finisher only, once.
    #[inline]
    pub(crate) fn finish(&self) -> Found {
        // AcqRel: Release pairs with the Acquire in `is_finished`, `enlist` and `abandon`; Acquire with their Release.
        match self.0.swap(FINISHED, Ordering::AcqRel) {
            RUNNING => Found::Nobody,
            ABANDONED => Found::Abandoned,
            token => Found::Waiter(token),
        }
    }

    /// Whether the result is there.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        // Acquire: pairs with `finish`.
        self.0.load(Ordering::Acquire) == FINISHED
    }

    /// Asks for `token` to be woken; false if the result is there already.
    #[inline]
    pub(crate) fn enlist(&self, token: u64) -> bool {
        debug_assert!(token >= MIN_TOKEN);
        // Release: the waiter is whole for the finisher. Acquire: the result is there.
        self.0.compare_exchange(RUNNING, token, Ordering::Release, Ordering::Acquire).is_ok()
    }

    /// Gives the result up; true if it is there already, and with it all that is shared is the caller's.
    #[inline]
    pub(crate) fn abandon(&self) -> bool {
        // AcqRel: Release pairs with the Acquire in `finish`; Acquire as in `is_finished`.
        self.is_finished() || self.0.swap(ABANDONED, Ordering::AcqRel) == FINISHED
    }
}
