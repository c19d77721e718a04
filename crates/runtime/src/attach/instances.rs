//! The other instance of this program: the earlier one is asked to end, or this one is.
//!
//! Owns a second descriptor of the control socket, for threads that send while the
//! [watch](super::watch) thread receives, and the program's request that the earlier instance end.
//! What a stack does beside another instance is in [`tailwater_net`].
//!
//! The request is sent once the IOKernel has sent that there is an earlier instance, and so in each
//! registration until that one has ended: an IOKernel that dies may not have passed it on, and the
//! next one may have this program before it has the earlier one.

use crate::net;
use rustix::fd::OwnedFd;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, getpid, kill_process};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tailwater_shm::control::{ClientMessage, Instance, send};

/// Maximum time that a request to end waits until no client is in the middle of connecting: a
/// client repeats its acknowledgment after one and three seconds.
const HANDSHAKES: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// How this program stands to an earlier instance.
static EARLIER: Mutex<Earlier> = Mutex::new(Earlier { control: None, instance: None, is_to_end: false });

/// What is known of an earlier instance, and wanted of it.
#[derive(Debug)]
struct Earlier {
    /// The socket of the present registration, of a program that may have another instance.
    control: Option<OwnedFd>,
    /// What the IOKernel has sent last in this registration.
    instance: Option<Instance>,
    /// The program has asked that the earlier instance end.
    is_to_end: bool,
}

impl Earlier {
    /// Begins a registration. Without a descriptor, the earlier instance is not asked to end.
    fn begin(&mut self, control: Option<OwnedFd>) {
        (self.control, self.instance) = (control, None);
    }

    /// Notes what the IOKernel has sent; returns whether the earlier instance is to be asked to
    /// end.
    fn note(&mut self, instance: Instance) -> bool {
        self.instance = Some(instance);
        // Otherwise there is none, or not any more.
        self.is_to_end &= instance == Instance::Replaces;
        self.is_to_end
    }

    /// Notes that the earlier instance is to end; returns whether it is to be asked at once.
    #[cfg(feature = "signal")]
    fn end(&mut self) -> bool {
        let before = self.is_to_end;
        // As long as nothing was sent there may be one.
        self.is_to_end = matches!(self.instance, None | Some(Instance::Replaces));
        !before && self.instance == Some(Instance::Replaces)
    }

    /// Sends the request.
    fn ask(&self) {
        if let Some(control) = &self.control {
            // Fails without an IOKernel; the next one is sent it.
            let _ = send(control, &ClientMessage::EndEarlier, &[]);
        }
    }
}

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

/// Notes what the IOKernel has sent about another instance.
pub(super) fn hear(instance: Instance) {
    note(instance);
    let mut earlier = earlier();
    if earlier.note(instance) {
        earlier.ask();
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

/// Keeps a descriptor of the control socket of a registration that begins.
pub(super) fn keep(control: &OwnedFd) {
    earlier().begin(fcntl_dupfd_cloexec(control, 0).ok());
}

/// Asks the earlier instance to end, if there is one, or once it is known that there is.
#[cfg(feature = "signal")]
pub fn end_earlier() {
    let mut earlier = earlier();
    if earlier.end() {
        earlier.ask();
    }
}

fn earlier() -> MutexGuard<'static, Earlier> {
    EARLIER.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[cfg(feature = "signal")]
    #[test]
    fn the_earlier_instance_is_asked_to_end_once_in_each_registration_until_it_has() {
        let mut earlier = Earlier { control: None, instance: None, is_to_end: false };
        assert!(!earlier.end(), "it is not known that there is one");
        assert!(earlier.note(Instance::Replaces), "now it is");
        assert!(!earlier.end(), "it was asked");
        // The IOKernel dies; the next one has this program first.
        earlier.begin(None);
        assert!(!earlier.end());
        assert!(earlier.note(Instance::Replaces));
        // It ends.
        assert!(!earlier.note(Instance::Latest));
        assert!(!earlier.end(), "there is none");
        assert!(!earlier.note(Instance::Replaces), "one that comes back unexpectedly was not asked");
        assert!(earlier.end());
        // This one is replaced itself.
        assert!(!earlier.note(Instance::Replaced) && !earlier.end() && !earlier.note(Instance::Latest));
    }

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
