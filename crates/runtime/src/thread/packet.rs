//! The result of a call on its way from who makes it to who waits for it, and the memory that it travels in.
//!
//! [`JoinWord`] says who may touch what. A [`Completion`] is a result with such a word; a packet is a completion on the heap,
//! with two owners, the thread ([`Completer`]) and its handle ([`Joiner`]).

use crate::kthread::{self, NoPreempt};
use crate::sync::wait::check_may_block;
use crate::thread::handle::Thread;
use crate::thread::join_word::{Found, JoinWord};
use crate::thread::scope::ScopeData;
use crate::uthread::Uthread;
use crate::worker;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Tells an [`OsWaiter`]'s address from a record's.
const OS: u64 = 1;

/// An ordinary thread that waits. Aligned so that its address is a token.
#[repr(align(16))]
struct OsWaiter {
    thread: std::thread::Thread,
    woken: AtomicBool,
}

/// A result that one thread makes and one other waits for.
#[derive(Debug)]
pub(crate) struct Completion<T> {
    word: JoinWord,
    result: UnsafeCell<Option<std::thread::Result<T>>>,
}

// SAFETY: the word gives the result one owner at a time (see `JoinWord`).
unsafe impl<T: Send> Sync for Completion<T> {}

impl<T> Completion<T> {
    /// No result yet.
    pub(crate) fn new() -> Self {
        Self { word: JoinWord::new(), result: UnsafeCell::new(None) }
    }

    /// Stores the result without telling anybody.
    ///
    /// # Safety
    /// The caller is the one completer, and has not called [`complete`](Self::complete).
    pub(crate) unsafe fn store(&self, result: std::thread::Result<T>) {
        // SAFETY: before `finish` the result is the finisher's.
        unsafe { *self.result.get() = Some(result) };
    }

    /// Tells who waits that the result is there. True if nobody ever will: then the completion is the caller's.
    ///
    /// # Safety
    /// 1. `this` points to a completion whose one completer is the caller.
    /// 2. The result is stored, and this is called once.
    /// 3. Unless this returns true the completion is not touched afterwards: who waited may have freed it.
    pub(crate) unsafe fn complete(this: *const Self) -> bool {
        // SAFETY: alive until `finish` by point 1; nothing of it is used after that.
        match unsafe { (*this).word.finish() } {
            Found::Nobody => false,
            Found::Abandoned => true,
            Found::Waiter(token) if token & OS != 0 => {
                // SAFETY: the waiter stays where it is until `woken`.
                let waiter = unsafe { &*((token - OS) as *const OsWaiter) };
                let thread = waiter.thread.clone();
                // Release: pairs with the Acquire in `wait_os`.
                waiter.woken.store(true, Ordering::Release);
                thread.unpark();
                false
            }
            Found::Waiter(token) => {
                // SAFETY: `wait_user` put the address of a record there, and records live for ever.
                worker::ready(unsafe { &*(token as *const Uthread) });
                false
            }
        }
    }

    /// Waits for the result and takes it.
    ///
    /// # Safety
    /// The caller is the only one who ever waits, and does so once.
    ///
    /// # Panics
    /// On a user thread that holds a spin lock or reads an `Rcu`.
    pub(crate) unsafe fn wait(&self) -> std::thread::Result<T> {
        if !self.word.is_finished() {
            match kthread::current_uthread() {
                Some(me) => self.wait_user(me),
                None => self.wait_os(),
            }
        }
        // SAFETY: after `FINISHED` the result is the waiter's, which is the caller.
        unsafe { (*self.result.get()).take() }.expect("a result is stored before it is announced")
    }

    fn wait_user(&self, me: &'static Uthread) {
        let guard = NoPreempt::new();
        check_may_block(&guard);
        if self.word.enlist(core::ptr::from_ref(me) as u64) {
            // The completer may queue this thread before it has left its stack: see `Uthread::claim`.
            worker::block(guard);
        }
    }

    #[cold]
    fn wait_os(&self) {
        let waiter = OsWaiter { thread: std::thread::current(), woken: AtomicBool::new(false) };
        if self.word.enlist(core::ptr::from_ref(&waiter) as u64 + OS) {
            // Acquire: pairs with the Release in `complete`.
            while !waiter.woken.load(Ordering::Acquire) {
                std::thread::park();
            }
        }
    }
}

/// What a thread and its handle share.
#[derive(Debug)]
struct Packet<T> {
    completion: Completion<T>,
    scope: Option<Arc<ScopeData>>,
    /// Here and not in the handle, which stays one word.
    thread: Thread,
}

impl<T> Drop for Packet<T> {
    fn drop(&mut self) {
        if let Some(scope) = &self.scope
            && matches!(self.completion.result.get_mut(), Some(Err(_)))
        {
            scope.set_panicked();
        }
    }
}

/// Makes a packet and its two owners' halves.
pub(crate) fn packet<T>(thread: Thread, scope: Option<Arc<ScopeData>>) -> (Completer<T>, Joiner<T>) {
    // Field by field where it stays: built elsewhere and copied, it costs 5 ns for stores that the copy's loads wait for.
    let packet = NonNull::from(Box::leak(Box::<Packet<T>>::new_uninit())).cast::<Packet<T>>();
    // SAFETY: fresh memory for a packet, all of whose fields are written.
    unsafe {
        let packet = packet.as_ptr();
        (&raw mut (*packet).completion.word).write(JoinWord::new());
        (&raw mut (*packet).completion.result).write(UnsafeCell::new(None));
        (&raw mut (*packet).scope).write(scope);
        (&raw mut (*packet).thread).write(thread);
    }
    (Completer(packet), Joiner(packet))
}

/// The thread's half. Whoever has it stores a result and finishes; one that is dropped instead leaves its joiner waiting.
#[derive(Debug)]
#[must_use]
pub(crate) struct Completer<T>(NonNull<Packet<T>>);

// SAFETY: it hands a `T` to another thread, and nothing else of it is bound to a thread.
unsafe impl<T: Send> Send for Completer<T> {}

impl<T> Completer<T> {
    /// Stores the thread's result.
    pub(crate) fn store(&mut self, result: std::thread::Result<T>) {
        // SAFETY: this is the completer's half, and it has not finished, which would have consumed it.
        unsafe { self.0.as_ref().completion.store(result) };
    }

    /// Tells who waits that the stored result is there; if nobody can ask for it any more, drops it and calls `dropped`;
    /// last, tells the scope.
    ///
    /// # Safety
    /// A result was stored.
    pub(crate) unsafe fn finish(self, dropped: impl FnOnce()) {
        // SAFETY: alive: the other half frees it after `complete` only.
        let scope = unsafe { self.0.as_ref() }.scope.clone();
        // SAFETY: 1. this half is the completer's; 2. by contract, and this consumes the half; 3. used below only if it is ours.
        let ours = unsafe { Completion::complete(&raw const (*self.0.as_ptr()).completion) };
        if ours {
            // SAFETY: made by `Box::leak` in `packet`; the other half is gone.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
            dropped();
        }
        if let Some(scope) = scope {
            scope.thread_ended();
        }
    }
}

/// The handle's half.
#[derive(Debug)]
pub(crate) struct Joiner<T>(NonNull<Packet<T>>);

// SAFETY: it takes a `T` from another thread, and nothing else of it is bound to a thread.
unsafe impl<T: Send> Send for Joiner<T> {}
// SAFETY: a shared reference only tells whether the result is there.
unsafe impl<T: Send> Sync for Joiner<T> {}

impl<T> Joiner<T> {
    /// Waits for the thread's end and takes its result.
    pub(crate) fn join(self) -> std::thread::Result<T> {
        // SAFETY: this consumes the one half that waits.
        unsafe { self.0.as_ref().completion.wait() }
    }

    /// The thread.
    pub(crate) fn thread(&self) -> &Thread {
        // SAFETY: alive as long as this half; never written after it was made.
        &unsafe { self.0.as_ref() }.thread
    }

    /// Whether the thread has ended.
    pub(crate) fn is_finished(&self) -> bool {
        // SAFETY: alive as long as this half.
        unsafe { self.0.as_ref() }.completion.word.is_finished()
    }
}

impl<T> Drop for Joiner<T> {
    fn drop(&mut self) {
        // SAFETY: alive as long as this half.
        if unsafe { self.0.as_ref() }.completion.word.abandon() {
            // SAFETY: made by `Box::leak` in `packet`; the other half is through with it.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}
