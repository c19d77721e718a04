//! A result that one thread makes and one other waits for.

use super::switch::block;
use super::wait::check_may_block;
use crate::ground::guard::NoPreempt;
use crate::ground::words::join::{Found, JoinWord};
use crate::records::kthread::current_uthread;
use crate::records::uthread::{Runnable, Uthread};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::thread::Result;

/// Distinguishes the address of an [`OsWaiter`] from a record's.
const OS: u64 = 1;

/// An ordinary thread that waits. Aligned so that its address is a token.
#[repr(align(16))]
struct OsWaiter {
    thread: std::thread::Thread,
    woken: AtomicBool,
}

/// What is left to the completer when the result is announced.
#[derive(Debug)]
#[must_use = "a waiter never runs again if it is lost"]
pub enum Left {
    /// Nothing.
    Nothing,
    /// The completion: the other side is gone.
    Completion,
    /// To make the waiter runnable.
    Waiter(Runnable),
}

/// See the module documentation; [`JoinWord`] states which side may use what.
#[derive(Debug)]
pub struct Completion<T> {
    word: JoinWord,
    result: UnsafeCell<Option<Result<T>>>,
}

// SAFETY: the word gives the result one owner at a time (see `JoinWord`).
unsafe impl<T: Send> Sync for Completion<T> {}

impl<T> Completion<T> {
    /// No result yet.
    pub fn new() -> Self {
        Self { word: JoinWord::new(), result: UnsafeCell::new(None) }
    }

    /// Writes [`new`](Self::new) to `place`, field by field. Built elsewhere and copied it costs 5
    /// ns, for stores that the copy's loads wait for.
    ///
    /// # Safety
    /// `place` is valid for writing.
    pub unsafe fn write_new(place: *mut Self) {
        // SAFETY: by the caller's contract.
        unsafe {
            (&raw mut (*place).word).write(JoinWord::new());
            (&raw mut (*place).result).write(UnsafeCell::new(None));
        }
    }

    /// Stores the result without waking the waiter.
    ///
    /// # Safety
    /// The caller is the one completer, and has not called [`complete`](Self::complete).
    pub unsafe fn store(&self, result: Result<T>) {
        // SAFETY: before `finish` the result is the finisher's.
        unsafe { *self.result.get() = Some(result) };
    }

    /// Announces the stored result, and wakes the waiter if it is an ordinary thread.
    ///
    /// # Safety
    /// 1. `this` points to a completion whose one completer is the caller.
    /// 2. The result is stored, and this is called once.
    /// 3. Unless this returns [`Left::Completion`] the completion is not used afterwards: the
    ///    waiter may have freed it.
    pub unsafe fn complete(this: *const Self) -> Left {
        // SAFETY: alive until `finish` by point 1; nothing of it is used after that.
        match unsafe { (*this).word.finish() } {
            Found::NoJoiner => Left::Nothing,
            Found::Abandoned => Left::Completion,
            Found::Waiter(token) if token & OS != 0 => {
                // SAFETY: the waiter stays where it is until `woken`.
                let waiter = unsafe { &*((token - OS) as *const OsWaiter) };
                let thread = waiter.thread.clone();
                // Release: pairs with the Acquire in `wait_os`.
                waiter.woken.store(true, Ordering::Release);
                thread.unpark();
                Left::Nothing
            }
            Found::Waiter(token) => {
                // SAFETY: `wait_user` left the address of a record there, and records live as long
                // as the process. 1. Its thread blocks with preemption off since then. 2. `finish`
                // is called once.
                Left::Waiter(unsafe { Runnable::new(&*(token as *const Uthread)) })
            }
        }
    }

    /// Returns whether the result is there.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.word.is_finished()
    }

    /// Gives the result up; true if it is there already: then the completion is the caller's.
    #[inline]
    pub fn abandon(&self) -> bool {
        self.word.abandon()
    }

    /// Returns the result, if it is there and was not taken.
    pub fn result_mut(&mut self) -> Option<&mut Result<T>> {
        self.result.get_mut().as_mut()
    }

    /// Waits for the result and takes it.
    ///
    /// # Safety
    /// The caller is the only one that ever waits, and does so once.
    ///
    /// # Panics
    /// On a user thread that holds a spin lock or reads an `Rcu`.
    pub unsafe fn wait(&self) -> Result<T> {
        if !self.word.is_finished() {
            match current_uthread() {
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
            // The completer may queue this thread before it has left its stack: see
            // `Runnable::claim`.
            block(guard);
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
