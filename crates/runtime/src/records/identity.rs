//! The identity of the thread that runs on a record, and its park token.
//!
//! One thread after another uses a record, and handles outlive threads. So one word holds both the
//! thread's id and the state of its token: an `unpark` through an old handle finds another id and
//! does nothing.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | [`EMPTY`] | no token | `park`, which is about to block: to `PARKED`; `unpark`: to `TOKEN` |
//! | [`TOKEN`] | the next `park` returns at once | `park`: to `EMPTY` |
//! | [`PARKED`] | the thread is blocked in `park` | `unpark`: to `TOKEN`; its timer: to `EMPTY`. The one that succeeds queues the thread |
//! | word 0 | no thread | `begin` |
//!
//! Ids come in blocks, one per kthread, so that starting a thread touches no shared line.
//!
//! # Orderings
//! `unpark` swaps with AcqRel and `park` takes the token with Acquire: what happened before
//! `unpark` is visible after `park`. `begin` and `end` are plain stores: an `unpark` that meets
//! them had a stale handle, and its swap fails.

use crate::ground::spin::SpinLock;
use core::cell::Cell;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// No token.
pub const EMPTY: u64 = 0;
/// A token is there.
pub const TOKEN: u64 = 1;
/// The thread is blocked in `park`.
pub const PARKED: u64 = 2;
const STATE_BITS: u32 = 2;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// Ids that a kthread takes at once.
const BLOCK: u64 = 1024;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The ids that a kthread may use. Not `Sync`: its OS thread uses it.
#[derive(Debug, Default)]
pub struct IdBlock {
    next: Cell<u64>,
    end: Cell<u64>,
}

impl IdBlock {
    /// Returns an id that no other thread of this process has had.
    #[inline]
    pub fn next(&self) -> NonZeroU64 {
        if self.next.get() == self.end.get() {
            self.refill();
        }
        id(self.next.replace(self.next.get() + 1))
    }

    #[cold]
    fn refill(&self) {
        let first = NEXT_ID.fetch_add(BLOCK, Ordering::Relaxed);
        self.next.set(first);
        self.end.set(first + BLOCK);
    }
}

/// Returns an id that no other thread of this process has had, for a thread started by an ordinary
/// thread.
pub fn new_id() -> NonZeroU64 {
    id(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

fn id(number: u64) -> NonZeroU64 {
    // 2^62 ids last a century at one per nanosecond.
    NonZeroU64::new(number).expect("ids begin with 1")
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Identity {
    word: AtomicU64,
    /// True if `name` holds a name. Lets threads without one end without locking.
    named: AtomicBool,
    name: SpinLock<Option<Arc<str>>>,
}

const fn word(id: NonZeroU64, state: u64) -> u64 {
    id.get() << STATE_BITS | state
}

impl Identity {
    /// Offset of the word, for debuggers.
    pub const WORD_OFFSET: usize = core::mem::offset_of!(Self, word);

    /// Records that thread `id` is about to start.
    #[inline]
    pub fn begin(&self, id: NonZeroU64, name: Option<&Arc<str>>) {
        if let Some(name) = name {
            self.set_name(Some(Arc::clone(name)));
        }
        self.word.store(word(id, EMPTY), Ordering::Relaxed);
    }

    /// Records that the thread has ended.
    #[inline]
    pub fn end(&self) {
        self.word.store(0, Ordering::Relaxed);
        if self.named.load(Ordering::Relaxed) {
            self.set_name(None);
        }
    }

    /// Apart and rare: most threads have no name and pay a comparison.
    #[cold]
    fn set_name(&self, name: Option<Arc<str>>) {
        self.named.store(name.is_some(), Ordering::Relaxed);
        // Swapped under the lock, dropped after it.
        let old = core::mem::replace(&mut *self.name.lock(), name);
        drop(old);
    }

    /// Returns the id of the thread that runs here, if any.
    pub fn id(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.word.load(Ordering::Relaxed) >> STATE_BITS)
    }

    /// Returns the name of the thread that runs here, if it has one.
    pub fn name(&self) -> Option<Arc<str>> {
        if self.named.load(Ordering::Relaxed) { self.name.lock().clone() } else { None }
    }

    /// Returns the lock around the name, for code that must not wait for it.
    pub fn name_lock(&self) -> &SpinLock<Option<Arc<str>>> {
        &self.name
    }

    /// Returns whether the thread is blocked in `park`.
    pub fn is_parked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STATE == PARKED
    }

    /// Changes the state of thread `id` from `from` to `to`; false if it is another. The thread
    /// itself and its timer call this.
    pub fn change(&self, id: NonZeroU64, from: u64, to: u64) -> bool {
        self.word
            // Acquire: pairs with the AcqRel in `give_token`.
            .compare_exchange(word(id, from), word(id, to), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Makes the next `park` of thread `id` return. True if that thread is blocked: the caller
    /// queues it.
    pub fn give_token(&self, id: NonZeroU64) -> bool {
        // Relaxed: the exchange below orders.
        let mut seen = self.word.load(Ordering::Relaxed);
        // Repeats only if the thread, another waker or the thread's end came in between.
        while seen >> STATE_BITS == id.get() {
            // AcqRel: Release pairs with the Acquire in `change`, even when a token was there
            // already.
            match self.word.compare_exchange_weak(seen, word(id, TOKEN), Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return seen & STATE == PARKED,
                Err(now) => seen = now,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).unwrap()
    }

    #[test]
    fn a_token_waits_for_the_thread_it_was_given_to() {
        let identity = Identity::default();
        identity.begin(id(7), None);
        assert!(!identity.give_token(id(7)) && !identity.give_token(id(7)));
        assert!(identity.change(id(7), TOKEN, EMPTY));
        assert!(!identity.change(id(7), TOKEN, EMPTY), "two tokens became one, and one was used");
    }

    #[test]
    fn an_old_handle_does_not_reach_the_next_thread_on_the_record() {
        let identity = Identity::default();
        identity.begin(id(7), Some(&"first".into()));
        identity.end();
        assert!(!identity.give_token(id(7)));
        identity.begin(id(8), None);
        assert!(identity.change(id(8), EMPTY, PARKED));
        assert!(!identity.give_token(id(7)), "a stale handle woke another thread");
        assert!(identity.is_parked());
        assert_eq!(identity.name(), None);
        assert!(identity.give_token(id(8)));
    }
}
