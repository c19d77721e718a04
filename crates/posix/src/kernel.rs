//! Waits for descriptors of the kernel on behalf of pollers.
//!
//! Owns one ordinary thread, which sleeps in an `epoll` of the kernel over the epoll sets of the
//! kernel that belong to pollers. It marks a set whose descriptors have become ready and wakes its
//! poller; what is ready is then read from the kernel's set itself, with the kernel's own rules. No
//! timer: without events the thread sleeps.
//!
//! What the program itself writes to a pipe or an event of the kernel is seen by its next wait, as
//! on Linux, though the thread may not have run: each such write is [noted](note_write).
//!
//! # Invariant
//! A set whose descriptors may be ready has `ready` set: the thread sets it at each change. A
//! wait that clears it reads the set afterwards, and sets it again if that found something.

use crate::{forked, own, real};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use tailwater::internals::SpinLock;
use tailwater::readiness::Poller;
use tailwater::resident;
use tailwater::sync::Mutex;

/// Lowest number of the descriptors that the library has for itself: programs expect low ones.
const LOWEST: libc::c_long = 512;
/// Events that the thread takes at once.
const BATCH: usize = 64;

/// The kernel's set over all watched sets, or -1 unless the thread runs.
static ALL: AtomicI32 = AtomicI32::new(-1);
/// Held while the thread is started.
static STARTS: Mutex<()> = Mutex::new(());
static WATCHED: SpinLock<Option<Watched>> = SpinLock::new(None);

/// Number of writes of the program to descriptors of the kernel.
static WRITES: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Watched {
    sets: HashMap<u64, Weak<Kernel>>,
    next: u64,
}

/// A set of the kernel, and the poller that is woken for it.
pub struct Kernel {
    set: OwnedFd,
    id: u64,
    ready: AtomicBool,
    /// Value of `WRITES` when the set was read last.
    seen: AtomicU64,
    poller: Arc<Poller>,
}

impl Kernel {
    /// Watches the set of descriptor `fd`, which the program may close, for `poller`.
    pub fn watch(fd: i32, poller: &Arc<Poller>) -> Option<Arc<Self>> {
        // SAFETY: the descriptor is new.
        let own = unsafe {
            let mut own = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, LOWEST);
            if own < 0 {
                // The limit of descriptors is below.
                own = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
            }
            if own < 0 {
                return None;
            }
            OwnedFd::from_raw_fd(own)
        };
        Self::start(poller, own)
    }

    /// Watches a new set of the library's own for `poller`.
    pub fn new(poller: &Arc<Poller>) -> Option<Arc<Self>> {
        // SAFETY: no preconditions; the descriptor is new.
        let own = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return None;
            }
            OwnedFd::from_raw_fd(fd)
        };
        Self::start(poller, own)
    }

    fn start(poller: &Arc<Poller>, set: OwnedFd) -> Option<Arc<Self>> {
        let all = start_thread()?;
        own::add(set.as_raw_fd());
        let kernel = {
            let mut watched = WATCHED.lock();
            let watched = watched.get_or_insert_default();
            watched.next += 1;
            let id = watched.next;
            // What is ready before it is watched makes no change.
            let ready = AtomicBool::new(true);
            let kernel =
                Arc::new(Self { set, id, ready, seen: AtomicU64::new(0), poller: Arc::clone(poller) });
            watched.sets.insert(id, Arc::downgrade(&kernel));
            kernel
        };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: kernel.id };
        // SAFETY: the event is valid.
        let added = unsafe { real::epoll_ctl(all, libc::EPOLL_CTL_ADD, kernel.fd(), &raw mut event) };
        (added == 0).then_some(kernel)
    }

    /// Returns the library's own descriptor of the set.
    pub fn fd(&self) -> i32 {
        self.set.as_raw_fd()
    }

    /// Adds a descriptor to the set; returns false if the kernel refuses, as for files, which are
    /// always ready.
    pub fn add(&self, fd: i32, events: u32) -> bool {
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: the event is valid.
        unsafe { real::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) == 0 }
    }

    /// Returns whether descriptors may have become ready since the last call, which the caller then
    /// finds out.
    pub fn take_ready(&self) -> bool {
        let writes = WRITES.load(Ordering::Relaxed);
        if self.seen.load(Ordering::Relaxed) != writes {
            self.seen.store(writes, Ordering::Relaxed);
            self.ready.store(false, Ordering::Release);
            return true;
        }
        self.ready.load(Ordering::Acquire) && self.ready.swap(false, Ordering::AcqRel)
    }

    /// Records that descriptors were found ready: they may still be.
    pub fn put_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }
}

/// Records a write of the program to a descriptor of the kernel.
pub fn note_write() {
    if ALL.load(Ordering::Relaxed) >= 0 {
        WRITES.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if forked::is_abandoned() {
            // A forked child shares the set over all sets with its parent.
            return;
        }
        own::remove(self.fd());
        if let Some(watched) = &mut *WATCHED.lock() {
            watched.sets.remove(&self.id);
        }
        let none = core::ptr::null_mut();
        // The program may have other descriptors of the set, so closing this one does not end the
        // watch.
        // SAFETY: a removal reads no event.
        unsafe { real::epoll_ctl(ALL.load(Ordering::Acquire), libc::EPOLL_CTL_DEL, self.fd(), none) };
    }
}

/// Starts the thread unless it runs; returns the kernel's set over all sets.
pub fn start_thread() -> Option<i32> {
    let all = ALL.load(Ordering::Acquire);
    if all >= 0 {
        return Some(all);
    }
    let _starts = STARTS.lock().ok()?;
    let all = ALL.load(Ordering::Acquire);
    if all >= 0 {
        return Some(all);
    }
    // SAFETY: no preconditions; the first descriptor is closed once, if it has a copy.
    let all = unsafe {
        let low = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let high = real::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST);
        if high >= 0 {
            real::close(low);
        }
        // Without a copy the limit of descriptors is below `LOWEST`.
        if high < 0 { low } else { high }
    };
    if all < 0 {
        return None;
    }
    let spawned = tailwater::blocking(|| {
        resident::without_signals(|| {
            std::thread::Builder::new().name("tailwater/kernel".to_owned()).spawn(move || run(all))
        })
    });
    if spawned.is_err() {
        // SAFETY: the descriptor is this function's own.
        unsafe { real::close(all) };
        return None;
    }
    own::add(all);
    // Release: pairs with the Acquire loads above and in `Kernel::drop`.
    ALL.store(all, Ordering::Release);
    Some(all)
}

fn run(all: i32) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    loop {
        let none = core::ptr::null();
        // SAFETY: room for `BATCH` events.
        let found = unsafe { real::epoll_pwait(all, events.as_mut_ptr(), BATCH as i32, -1, none) };
        for event in &events[..usize::try_from(found).unwrap_or(0)] {
            let id = event.u64;
            let watched = WATCHED.lock();
            let kernel = watched.as_ref().and_then(|watched| watched.sets.get(&id)?.upgrade());
            drop(watched);
            if let Some(kernel) = kernel {
                kernel.ready.store(true, Ordering::Release);
                kernel.poller.wake();
            }
        }
    }
}
