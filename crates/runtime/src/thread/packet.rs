//! The state that a thread and its handle share: a [`Completion`] on the heap with two owners, the
//! thread ([`Completer`]) and its handle ([`Joiner`]).

use crate::records::uthread::Runnable;
use crate::thread::handle::Thread;
use crate::thread::scope_data::ScopeData;
use crate::verbs::completion::{Completion, Left};
use core::ptr::NonNull;
use std::sync::Arc;

/// What a thread and its handle share.
#[derive(Debug)]
struct Packet<T> {
    completion: Completion<T>,
    scope: Option<Arc<ScopeData>>,
    /// Here and not in the handle, which is one word.
    thread: Thread,
}

impl<T> Drop for Packet<T> {
    fn drop(&mut self) {
        if let Some(scope) = &self.scope
            && matches!(self.completion.result_mut(), Some(Err(_)))
        {
            scope.set_panicked();
        }
    }
}

/// Makes a packet; returns its two halves.
pub(crate) fn packet<T>(thread: Thread, scope: Option<Arc<ScopeData>>) -> (Completer<T>, Joiner<T>) {
    // Written in its final place: see `Completion::write_new`.
    let packet = NonNull::from(Box::leak(Box::<Packet<T>>::new_uninit())).cast::<Packet<T>>();
    // SAFETY: fresh memory for a packet, all of whose fields are written.
    unsafe {
        let packet = packet.as_ptr();
        Completion::write_new(&raw mut (*packet).completion);
        (&raw mut (*packet).scope).write(scope);
        (&raw mut (*packet).thread).write(thread);
    }
    (Completer(packet), Joiner(packet))
}

/// The thread's half. Its owner stores a result and finishes; if it is dropped instead, the joiner
/// waits for ever.
#[derive(Debug)]
#[must_use]
pub(crate) struct Completer<T>(NonNull<Packet<T>>);

// SAFETY: it hands a `T` to another thread, and nothing else of it is bound to a thread.
unsafe impl<T: Send> Send for Completer<T> {}

impl<T> Completer<T> {
    /// Stores the thread's result.
    pub(crate) fn store(&mut self, result: std::thread::Result<T>) {
        // SAFETY: this is the completer's half, and it has not finished, which would have consumed
        // it.
        unsafe { self.0.as_ref().completion.store(result) };
    }

    /// Announces the stored result. If the joiner is gone, drops the result and calls `dropped`.
    /// Finally, counts the thread as ended in its scope. Returns the joiner, if it is a user thread
    /// that waits: the caller makes it runnable.
    ///
    /// # Safety
    /// A result was stored.
    pub(crate) unsafe fn finish(self, dropped: impl FnOnce()) -> Option<Runnable> {
        // SAFETY: alive: the other half frees it after `complete` only.
        let scope = unsafe { self.0.as_ref() }.scope.clone();
        // SAFETY: 1. this half is the completer's; 2. by contract, and this consumes the half; 3.
        // used below only if it is ours.
        let left = unsafe { Completion::complete(&raw const (*self.0.as_ptr()).completion) };
        if matches!(left, Left::Completion) {
            // SAFETY: made by `Box::leak` in `packet`; the other half is gone.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            dropped();
        }
        if let Some(scope) = scope {
            scope.thread_ended();
        }
        match left {
            Left::Waiter(joiner) => Some(joiner),
            Left::Nothing | Left::Completion => None,
        }
    }
}

/// The handle's half.
#[derive(Debug)]
pub(crate) struct Joiner<T>(NonNull<Packet<T>>);

// SAFETY: it takes a `T` from another thread, and nothing else of it is bound to a thread.
unsafe impl<T: Send> Send for Joiner<T> {}
// SAFETY: a shared reference shows only whether the result is there.
unsafe impl<T: Send> Sync for Joiner<T> {}

impl<T> Joiner<T> {
    /// Waits for the thread's end and returns its result.
    pub(crate) fn join(self) -> std::thread::Result<T> {
        // SAFETY: this consumes the one half that waits.
        unsafe { self.0.as_ref().completion.wait() }
    }

    /// Returns the thread.
    pub(crate) fn thread(&self) -> &Thread {
        // SAFETY: alive as long as this half; never written after it was made.
        &unsafe { self.0.as_ref() }.thread
    }

    /// Returns whether the thread has ended.
    pub(crate) fn is_finished(&self) -> bool {
        // SAFETY: alive as long as this half.
        unsafe { self.0.as_ref() }.completion.is_finished()
    }
}

impl<T> Drop for Joiner<T> {
    fn drop(&mut self) {
        // SAFETY: alive as long as this half.
        if unsafe { self.0.as_ref() }.completion.abandon() {
            // SAFETY: made by `Box::leak` in `packet`; the other half uses it no more.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}
