//! The stack's platform: spin locks, wait lists and request tracing of this runtime.
//!
//! Owns the implementation of `tailwater_net`'s traits for the runtime's types, and the names under
//! which the rest of [`crate::net`] uses the stack.

use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::runtime::runtime;
use crate::verbs::trace::{self, Request};
use crate::verbs::watch;
use core::fmt::Debug;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;
use tailwater_net::platform::{Lock, Once, Outcome, Platform, Waiters};

/// Kthreads and their user threads.
#[derive(Debug)]
pub struct Kthreads;

/// The network stack.
pub type Stack = tailwater_net::Stack<Kthreads>;
/// A UDP socket of the stack.
pub type Endpoint = tailwater_net::udp::Endpoint<Kthreads>;
/// The receiving side of a UDP socket.
pub type Inbound = tailwater_net::udp::Inbound<Kthreads>;

impl Platform for Kthreads {
    type Lock<T: Debug + 'static> = SpinLock<T>;
    type Once<T: Debug + 'static> = OnceCell<T>;
    type Waiters = watch::Waiters;
    type Request = Request;

    fn awaits_acks(begins: bool) {
        let runtime = runtime();
        // A thread that is no kthread may come while the region is replaced.
        let _held = (!crate::ground::guard::inside()).then(|| runtime.hold_region_words());
        let word = &runtime.kthreads[0].shared.status.awaits_acks;
        // Relaxed: a kthread that parks publishes it with its state word.
        if begins {
            word.fetch_add(1, Relaxed)
        } else {
            word.fetch_sub(1, Relaxed)
        };
    }

    #[cold]
    fn delivered(request: Request, outcome: Outcome) {
        trace::delivered(request, outcome);
    }

    #[inline(always)]
    fn received(request: Option<Request>) {
        trace::received(request);
    }

    #[cold]
    fn wants_more(request: Request) {
        trace::wants_more(request.back);
    }
}

impl<T: 'static> Lock<T> for SpinLock<T> {
    type Guard<'a> = SpinGuard<'a, T>;

    #[inline]
    fn new(value: T) -> Self {
        Self::new(value)
    }

    #[inline]
    fn lock(&self) -> SpinGuard<'_, T> {
        self.lock()
    }
}

/// A cell that is written once.
#[derive(Debug)]
pub struct OnceCell<T>(OnceLock<T>);

impl<T> Once<T> for OnceCell<T> {
    fn new() -> Self {
        Self(OnceLock::new())
    }

    #[inline]
    fn get(&self) -> Option<&T> {
        self.0.get()
    }

    fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }
}

impl Waiters for watch::Waiters {
    #[inline]
    fn wake_one(&mut self) -> bool {
        self.wake_one()
    }
}
