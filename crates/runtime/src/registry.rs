//! All user-thread records of the process, for the dump and for debuggers.
//!
//! A list that only grows: records live as long as the process. A record is added when its stack is made, not when a thread starts on it,
//! so this costs a thread nothing. Reading it needs no lock and works in a signal handler.

use crate::uthread::Uthread;
use core::sync::atomic::{AtomicPtr, Ordering};

static HEAD: AtomicPtr<Uthread> = AtomicPtr::new(core::ptr::null_mut());

/// Adds a new record.
pub fn add(record: &'static Uthread) {
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        record.next_record.set(head);
        let new = core::ptr::from_ref(record).cast_mut();
        // Release: pairs with the Acquire in `records`: the record and its link are whole.
        match HEAD.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// All records, newest first, with and without a thread.
pub fn records() -> impl Iterator<Item = &'static Uthread> {
    // SAFETY: links are null or lead to records, which are never freed.
    let follow = |link: *const Uthread| unsafe { link.as_ref() };
    // Acquire: pairs with the Release in `add`.
    let head = follow(HEAD.load(Ordering::Acquire));
    core::iter::successors(head, move |record| follow(record.next_record.get()))
}
