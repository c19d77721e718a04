//! The other instance of this program: the earlier one is asked to end, or this one is.
//!
//! Owns a second descriptor of the control socket, for threads that send while the
//! [watch](super::watch) thread receives. What a stack does beside another instance is in
//! [`tailwater_net`].

use crate::net;
use rustix::fd::OwnedFd;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater_shm::control::Instance;
#[cfg(feature = "signal")]
use tailwater_shm::control::{ClientMessage, send};

/// Maximum time that a request to end waits until no client is in the middle of connecting: a
/// client repeats its acknowledgment after one and three seconds.
const HANDSHAKES: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The socket of the present registration, of a program that may have another instance.
static CONTROL: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Another instance has taken the place of this one.
static REPLACED: AtomicBool = AtomicBool::new(false);

/// The request to end, of which there is one for each time that this program is replaced.
static REQUEST: Request = Request(AtomicU32::new(0));

/// Whether this program is asked to end: its number is odd while it is. Only the watch thread
/// writes; Relaxed, since it orders nothing else.
#[derive(Debug)]
struct Request(AtomicU32);

impl Request {
    /// Begins a request and returns its number; `None` if one stands.
    fn begin(&self) -> Option<u32> {
        let last = self.0.load(Relaxed);
        let next = last.wrapping_add(1);
        last.is_multiple_of(2).then(|| self.0.store(next, Relaxed)).map(|()| next)
    }

    /// Takes back the one that stands.
    fn cancel(&self) {
        let last = self.0.load(Relaxed);
        self.0.store(last.wrapping_add(last % 2), Relaxed);
    }

    /// Returns whether the one with this number stands.
    fn stands(&self, number: u32) -> bool {
        self.0.load(Relaxed) == number
    }
}

/// Notes how this program stands to another instance.
pub(super) fn note(instance: Instance) {
    // Relaxed: it orders nothing else.
    REPLACED.store(instance == Instance::Replaced, Relaxed);
    if instance != Instance::Replaced {
        // The later one has ended meanwhile.
        REQUEST.cancel();
    }
    net::set_instance(instance);
}

/// Returns whether another instance has taken the place of this one, and serves or is about to.
#[cfg(feature = "signal")]
pub fn is_replaced() -> bool {
    REPLACED.load(Relaxed)
}

/// Keeps a descriptor of the control socket. Without one, the earlier instance is not asked to end.
pub(super) fn keep(control: &OwnedFd) {
    *CONTROL.lock().unwrap_or_else(PoisonError::into_inner) = fcntl_dupfd_cloexec(control, 0).ok();
}

/// Asks the earlier instance to end, if there is one.
#[cfg(feature = "signal")]
pub fn end_earlier() {
    if let Some(control) = &*CONTROL.lock().unwrap_or_else(PoisonError::into_inner) {
        // Fails without an IOKernel, and then there is none to ask.
        let _ = send(control, &ClientMessage::EndEarlier, &[]);
    }
}

/// Sends SIGTERM to this process once no client is in the middle of connecting: a listener that is
/// closed forgets such clients. Does so once, however often the later instance asks, and not if
/// that ends meanwhile.
pub(super) fn end_soon() {
    let Some(request) = REQUEST.begin() else { return };
    let wait = move || {
        let began = Instant::now();
        while net::has_handshakes() && began.elapsed() < HANDSHAKES {
            std::thread::sleep(LOOK);
        }
        if REQUEST.stands(request) {
            // A process may send itself any signal.
            let _ = kill_process(getpid(), Signal::TERM);
        }
    };
    if std::thread::Builder::new().name("tailwater/end".to_owned()).spawn(wait).is_err() {
        wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_end_is_begun_once_and_falls_with_the_later_instance() {
        let request = Request(AtomicU32::new(0));
        request.cancel();
        let first = request.begin().unwrap();
        assert_eq!(request.begin(), None, "it stands");
        assert!(request.stands(first));
        request.cancel();
        assert!(!request.stands(first), "the later one has died");
        let second = request.begin().unwrap();
        assert!(request.stands(second) && !request.stands(first), "another one asks");
    }
}
