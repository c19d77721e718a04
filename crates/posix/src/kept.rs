//! Epoll registrations of sockets that Tailwater may serve later.
//!
//! Owns the list. A program may add a socket to an epoll set before it connects it, or before a UDP
//! socket has a side in Tailwater; the kernel knows the registration then, and Tailwater has to
//! make it when the socket becomes a served one. Closed descriptors leave the list by [`forget`].

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use libc::epoll_event;
use tailwater::internals::SpinLock;

/// A registration that the kernel alone has.
#[derive(Clone, Copy)]
pub struct Registration {
    pub set: i32,
    pub fd: i32,
    pub event: epoll_event,
}

static KEPT: SpinLock<Vec<Registration>> = SpinLock::new(Vec::new());
/// Length of `KEPT`: most calls find it zero, without the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn change<R>(f: impl FnOnce(&mut Vec<Registration>) -> R) -> R {
    let mut kept = KEPT.lock();
    let result = f(&mut kept);
    COUNT.store(kept.len(), Relaxed);
    result
}

/// Keeps a registration, which replaces one of the same descriptors.
pub fn keep(registration: Registration) {
    change(|kept| {
        kept.retain(|other| (other.set, other.fd) != (registration.set, registration.fd));
        kept.push(registration);
    });
}

/// Returns whether a registration of `fd` in `set` is kept.
pub fn has(set: i32, fd: i32) -> bool {
    COUNT.load(Relaxed) > 0 && KEPT.lock().iter().any(|other| (other.set, other.fd) == (set, fd))
}

/// Forgets a registration.
pub fn remove(set: i32, fd: i32) {
    if COUNT.load(Relaxed) > 0 {
        change(|kept| kept.retain(|other| (other.set, other.fd) != (set, fd)));
    }
}

/// Forgets what is kept of a closed descriptor, a socket or a set.
pub fn forget(fd: i32) {
    if COUNT.load(Relaxed) > 0 {
        change(|kept| kept.retain(|other| other.set != fd && other.fd != fd));
    }
}

/// Returns the registrations of `fd`, and forgets them.
pub fn take(fd: i32) -> Vec<Registration> {
    if COUNT.load(Relaxed) == 0 {
        return Vec::new();
    }
    change(|kept| kept.extract_if(.., |one| one.fd == fd).collect())
}
