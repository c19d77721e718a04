//! Counts the requests of a dispatcher that no worker has yet: the bound of its queue.
//!
//! Owns the count of these requests, one word. A thread that submits adds a request; the thread
//! that holds the assigner's lock takes the request out *before* it puts it into a mailbox. So when
//! a request begins, its place in the queue is free. Servers rely on that: they give the request's
//! own [permit](super::super::permits) back then, and the request that gets it next is not refused.
//!
//! All accesses are Relaxed: what hands the request to the worker, and the place to the next one,
//! orders the two changes of the word.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// See the module documentation.
#[derive(Debug)]
pub struct Admission {
    waiting: AtomicUsize,
    most: usize,
}

impl Admission {
    /// Returns the admission of an empty queue for up to `most` requests.
    pub fn new(most: usize) -> Self {
        Self { waiting: AtomicUsize::new(0), most }
    }

    /// Admits one more request; false if as many wait as are allowed.
    pub fn admit(&self) -> bool {
        let admitted = self.waiting.fetch_add(1, Relaxed) < self.most;
        if !admitted {
            self.take_out();
        }
        admitted
    }

    /// Takes out a request that is about to be given to a worker.
    pub fn take_out(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}
