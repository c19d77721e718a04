//! A traced request on its way through this process.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A request that the IOKernel chose to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number of the trace; not zero.
    pub id: u32,
    /// Flow key of its reply.
    pub back: u64,
}

/// The request that a user thread works on, if any. Written by the thread itself, and by its
/// creator before it is queued, so plain loads and stores do.
#[derive(Debug, Default)]
pub struct Carried {
    /// 0 if there is none.
    id: AtomicU32,
    back: AtomicU64,
}

impl Carried {
    /// Returns whether there is a request.
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        self.id() != 0
    }

    /// Returns the number of its trace; 0 if there is no request.
    #[inline(always)]
    pub fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    /// Flow key of its reply, if there is a request.
    pub fn back(&self) -> u64 {
        self.back.load(Relaxed)
    }

    /// Takes the request out; its number is 0 if there was none.
    pub fn take(&self) -> Request {
        let request = Request { id: self.id(), back: self.back() };
        self.id.store(0, Relaxed);
        request
    }

    /// Puts a request in the place of the present one.
    pub fn set(&self, request: Request) {
        self.id.store(request.id, Relaxed);
        self.back.store(request.back, Relaxed);
    }
}
