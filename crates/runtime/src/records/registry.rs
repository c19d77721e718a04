//! All user-thread records of the process, for the dump and for debuggers.
//!
//! A list that only grows: records live as long as the process. A record is added when its stack is
//! made, not when a thread starts on it, so this costs a thread nothing. Reading the list needs no
//! lock and works in a signal handler.

use super::uthread::Uthread;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The head of the list, and what a debugger needs to follow it without debug information: see
/// `gdb/tailwater.py`.
#[repr(C)]
struct Registry {
    head: AtomicPtr<Uthread>,
    /// Offsets in a record: saved stack pointer, "on a kthread" byte, identity word, link.
    offsets: [usize; 4],
}

#[unsafe(no_mangle)]
static TAILWATER_USER_THREADS: Registry =
    Registry { head: AtomicPtr::new(core::ptr::null_mut()), offsets: Uthread::DEBUGGER_OFFSETS };

/// Adds a record, which is in no list yet.
pub fn add(record: &'static Uthread) {
    let mut head = TAILWATER_USER_THREADS.head.load(Ordering::Relaxed);
    loop {
        // Relaxed: published by the exchange.
        record.next_record.store(head, Ordering::Relaxed);
        let new = core::ptr::from_ref(record).cast_mut();
        // Release: pairs with the Acquire in `records`: the record and its link are whole.
        match TAILWATER_USER_THREADS.head.compare_exchange_weak(
            head,
            new,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Returns all records, newest first, with and without a thread.
pub fn records() -> impl Iterator<Item = &'static Uthread> {
    // SAFETY: links are null or lead to records, which live as long as the process.
    let follow = |link: *const Uthread| unsafe { link.as_ref() };
    // Acquire: pairs with the Release in `add`.
    let head = follow(TAILWATER_USER_THREADS.head.load(Ordering::Acquire));
    core::iter::successors(head, move |record| follow(record.next_record.load(Ordering::Relaxed)))
}
