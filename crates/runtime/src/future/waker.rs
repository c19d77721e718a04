//! Wakers of threads that run a future, and which wakers may be called under a lock.
//!
//! A user thread's waker is the address of its record: cloning copies a pointer, dropping does
//! nothing, waking sets `woken` and gives the thread its token ([`park`](crate::thread::park)).
//! Records are never freed, so a waker may outlive its thread; it then wakes the thread that has
//! the record now. Such a spurious wake is harmless: both `park` and `Future::poll` allow for it.
//!
//! `woken` is apart from the token because code within the future may park, and would take the
//! token away. An inner `block_on` that has cleared it sets it when it returns, so that the outer
//! one polls once more instead of missing a wake-up that the inner one took for its own.
//!
//! | `woken` | by | ordering |
//! |---|---|---|
//! | to true | a waker | AcqRel: Release pairs with the thread's Acquire; the swap continues the release sequence of an earlier waker |
//! | to true | the thread, at the end of a run that has cleared it | Relaxed |
//! | to false | the thread, before each poll | Acquire |
//!
//! These wakers run no code of programs, so an object calls them under its lock ([`is_direct`]).
//! All others are called by the [`relay`](super::relay).

use crate::records::kthread::current_uthread;
use crate::records::uthread::{Runnable, Uthread};
use crate::verbs::ready::ready;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{RawWaker, RawWakerVTable, Waker};
use std::sync::Arc;
use std::thread::Thread;

/// Statics, not constants: a static has one address, by which its wakers are recognised.
static USER: RawWakerVTable = RawWakerVTable::new(clone_user, wake_user, wake_user, drop_user);
static OS: RawWakerVTable = RawWakerVTable::new(clone_os, wake_os, wake_os_by_ref, drop_os);

/// Returns whether a waker may be called, cloned and dropped under any lock.
#[inline]
pub(crate) fn is_direct(waker: &Waker) -> bool {
    core::ptr::eq(waker.vtable(), &raw const USER) || core::ptr::eq(waker.vtable(), &raw const OS)
}

/// The thread that runs a future.
#[derive(Debug)]
pub(crate) enum Poller {
    User(&'static Uthread),
    Os(Arc<OsThread>),
}

/// An ordinary thread that runs a future.
#[derive(Debug)]
pub(crate) struct OsThread {
    thread: Thread,
    woken: AtomicBool,
}

impl Poller {
    /// Returns the calling thread.
    pub(crate) fn current() -> Self {
        current_uthread().map_or_else(
            || {
                let thread = std::thread::current();
                Self::Os(Arc::new(OsThread { thread, woken: AtomicBool::new(false) }))
            },
            Self::User,
        )
    }

    fn woken(&self) -> &AtomicBool {
        match self {
            Self::User(record) => &record.woken,
            Self::Os(thread) => &thread.woken,
        }
    }

    /// Returns a waker of the thread.
    pub(crate) fn waker(&self) -> Waker {
        let raw = match self {
            Self::User(record) => RawWaker::new(core::ptr::from_ref(*record).cast(), &USER),
            Self::Os(thread) => RawWaker::new(Arc::into_raw(Arc::clone(thread)).cast(), &OS),
        };
        // SAFETY: the functions of both tables keep the contract of `RawWakerVTable`: records are
        // never freed, and a reference to an `OsThread` is counted.
        unsafe { Waker::from_raw(raw) }
    }

    /// Begins a poll: what is woken from here on is seen by [`wait`](Self::wait). Returns whether a
    /// waker was called before.
    pub(crate) fn begin(&self) -> bool {
        // Acquire: pairs with the wakers' Release, so that the poll sees what they did before.
        self.woken().swap(false, Ordering::Acquire)
    }

    /// Waits until a waker was called since [`begin`](Self::begin).
    pub(crate) fn wait(&self) {
        // Acquire: as in `begin`; that clears the flag.
        while !self.woken().load(Ordering::Acquire) {
            crate::thread::park();
        }
    }

    /// Ends the run of a future in which [`begin`](Self::begin) has returned true: an outer run of
    /// the same thread, for which that may have been, polls once more.
    pub(crate) fn pass_on(&self) {
        // Relaxed: the flag alone matters.
        self.woken().store(true, Ordering::Relaxed);
    }
}

/// # Safety
/// `data` is the address of a record.
unsafe fn user(data: *const ()) -> &'static Uthread {
    // SAFETY: by the caller's contract; records are never freed.
    unsafe { &*data.cast::<Uthread>() }
}

unsafe fn clone_user(data: *const ()) -> RawWaker {
    RawWaker::new(data, &USER)
}

unsafe fn wake_user(data: *const ()) {
    // SAFETY: every waker of this table has the address of a record.
    let record = unsafe { user(data) };
    // AcqRel: see the module documentation.
    if record.woken.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(id) = record.identity.id() else { return };
    if record.identity.give_token(id) {
        // SAFETY: 1. the thread parks with preemption off since `PARKED`. 2. `give_token` is true
        // once a wait.
        ready(unsafe { Runnable::new(record) });
    }
}

unsafe fn drop_user(_: *const ()) {}

/// # Safety
/// `data` is an `Arc<OsThread>` as a pointer, whose count the caller owns.
unsafe fn os(data: *const ()) -> Arc<OsThread> {
    // SAFETY: by the caller's contract.
    unsafe { Arc::from_raw(data.cast()) }
}

unsafe fn clone_os(data: *const ()) -> RawWaker {
    // SAFETY: the waker that is cloned holds a count.
    unsafe { Arc::increment_strong_count(data.cast::<OsThread>()) };
    RawWaker::new(data, &OS)
}

unsafe fn wake_os(data: *const ()) {
    // SAFETY: the waker is consumed, and its count with it.
    unsafe {
        wake_os_by_ref(data);
        drop_os(data);
    }
}

unsafe fn wake_os_by_ref(data: *const ()) {
    // SAFETY: the waker holds a count while it is used.
    let thread = unsafe { &*data.cast::<OsThread>() };
    // AcqRel: see the module documentation.
    if !thread.woken.swap(true, Ordering::AcqRel) {
        thread.thread.unpark();
    }
}

unsafe fn drop_os(data: *const ()) {
    // SAFETY: the waker is dropped, and its count with it.
    drop(unsafe { os(data) });
}
