//! Background threads that are runnable: one queue for all kthreads, first in, first out.
//!
//! Background threads are never in a run queue, an overflow list or a mailbox: where ordinary
//! threads are looked for, none is found. What runs them is in
//! [`verbs::background`](crate::verbs::background).

use super::uthread::{Runnable, Uthread};
use crate::ground::spin::SpinLock;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::collections::VecDeque;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Background {
    /// True once a background thread was made. On a line that is hardly written: each thread that
    /// is made runnable looks at it.
    used: AtomicBool,
    len: AtomicUsize,
    list: SpinLock<List>,
}

#[derive(Debug, Default)]
struct List {
    threads: VecDeque<Runnable>,
    /// True if the thread that fetches a core for those that wait has to be told of the next one.
    keeper_rests: bool,
}

impl Background {
    /// Returns whether any background thread was made.
    #[inline(always)]
    pub fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// Records that a background thread is being made; returns whether it is the first.
    pub fn begin(&self) -> bool {
        !self.is_used() && !self.used.swap(true, Relaxed)
    }

    /// Takes [`begin`](Self::begin) back: the next background thread is the first. Those that exist
    /// are queued as ordinary ones.
    pub fn unbegin(&self) {
        self.used.store(false, Relaxed);
    }

    /// Returns whether a thread seems to wait.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        self.len.load(Relaxed) != 0
    }

    /// Appends a thread. Returns true once after [`rest`](Self::rest) has returned true.
    pub fn push(&self, runnable: Runnable) -> bool {
        let mut list = self.list.lock();
        list.threads.push_back(runnable);
        self.len.store(list.threads.len(), Relaxed);
        core::mem::take(&mut list.keeper_rests)
    }

    /// Returns whether no thread waits: then the next [`push`](Self::push) returns true.
    pub fn rest(&self) -> bool {
        let mut list = self.list.lock();
        list.keeper_rests = list.threads.is_empty();
        list.keeper_rests
    }

    /// Takes the first thread.
    pub fn pop(&self) -> Option<Runnable> {
        if !self.waits() {
            return None;
        }
        let mut list = self.list.lock();
        let first = list.threads.pop_front();
        self.len.store(list.threads.len(), Relaxed);
        first
    }

    /// Returns the queue at this moment, for a dump.
    pub fn snapshot(&self) -> Vec<*const Uthread> {
        self.list.lock().threads.iter().map(|runnable| core::ptr::from_ref(runnable.thread())).collect()
    }
}
