//! A mailbox in which a kthread that polls receives a thread.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `CLOSED` | the owner does not poll | the owner: [`open`](Mailbox::open) |
//! | `OPEN` | the owner polls | a thread that [`offer`](Mailbox::offer)s; the owner: [`close`](Mailbox::close) |
//! | a token | the token is the owner's | the owner: `close` |
//!
//! `offer` releases what the token stands for to the owner, which acquires it in `close`.

use crate::ground::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
/// The smallest token.
pub const MIN_TOKEN: u64 = 2;

/// See the module documentation. On two cache lines of its own, as [`Section`](super::section).
#[derive(Debug)]
#[repr(align(128))]
pub struct Mailbox(AtomicU64);

impl Mailbox {
    /// Returns a closed mailbox.
    pub fn new() -> Self {
        Self(AtomicU64::new(CLOSED))
    }

    /// Lets one token in; the owner calls this while the mailbox is closed.
    pub fn open(&self) {
        // Relaxed: hands nothing over.
        self.0.store(OPEN, Ordering::Relaxed);
    }

    /// Lets nothing in any more, and returns the token that came in; the owner calls this.
    pub fn close(&self) -> Option<u64> {
        // Acquire: pairs with the Release in `offer`.
        let found = self.0.swap(CLOSED, Ordering::Acquire);
        (found >= MIN_TOKEN).then_some(found)
    }

    /// Returns whether a token came in; the owner calls this while the mailbox is open.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.peek().is_some()
    }

    /// Puts `token` in; false if the mailbox is closed or filled.
    pub fn offer(&self, token: u64) -> bool {
        debug_assert!(token >= MIN_TOKEN);
        // No load before it: that would fetch the line twice. Release: pairs with the Acquire in
        // `close`.
        self.0.compare_exchange(OPEN, token, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Returns the token in it at this moment: a hint.
    pub fn peek(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&found| found >= MIN_TOKEN)
    }
}
