//! One source on one poller: two watchers, one for each direction, and a place in the poller's
//! lists.
//!
//! # What keeps it alive
//! The poller's registry holds a reference until the registration has left the source's watchers
//! and the poller's lists, each under its lock ([`Registration::unlink`]). The raw pointers in
//! those lists are therefore valid.
//!
//! # Access
//! `local` and `links` are used under the poller's lock: functions take its state as proof. The
//! watchers are used under the source's lock.

use super::interest::{Interest, Mode};
use super::poller::{Shared, State};
use super::source::{Key, Object, Side, Source};
use crate::ground::list::{Linked, Links};
use crate::token::Token;
use crate::verbs::watch::{Signal, Watcher};
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::Arc;

/// What the poller's lock guards.
#[derive(Debug)]
pub struct Local {
    pub token: Token,
    pub interest: Interest,
    pub mode: Mode,
    /// False after a one-shot registration was reported.
    pub enabled: bool,
    pub place: Place,
}

/// Which of the poller's lists a registration is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Nowhere,
    /// Ready, after a change for which a thread was woken.
    Ready,
    /// Ready, because it was reported and is registered by level.
    Again,
    /// Gone: the source was closed.
    Gone,
}

/// See the module documentation.
#[repr(C)]
pub struct Registration {
    reads: Watcher,
    writes: Watcher,
    links: Links<Registration>,
    local: UnsafeCell<Local>,
    key: Key,
    object: Arc<dyn Object>,
    poller: Arc<Shared>,
}

// SAFETY: see "Access" above.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}

impl Linked for Registration {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl Registration {
    /// Returns a registration that is linked nowhere.
    pub fn new(
        source: &impl Source,
        poller: Arc<Shared>,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> Self {
        Self {
            reads: Watcher::new(change_to_read),
            writes: Watcher::new(change_to_write),
            links: Links::new(),
            local: UnsafeCell::new(Local { token, interest, mode, enabled: true, place: Place::Nowhere }),
            key: source.key(),
            object: source.object(),
            poller,
        }
    }

    /// Returns what the poller's lock guards.
    pub fn local<'a>(&'a self, _held: &'a mut State) -> &'a mut Local {
        // SAFETY: the state is this registration's poller's, and its exclusive borrow lasts as long
        // as the result.
        unsafe { &mut *self.local.get() }
    }

    /// Returns the source's key in the registry.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Returns the source.
    pub fn object(&self) -> &dyn Object {
        &*self.object
    }

    /// Watches the directions of `interest`, and no others.
    ///
    /// # Safety
    /// [`unlink`](Self::unlink) is called before the registration dies.
    pub unsafe fn link(&self, interest: Interest) {
        // The end of a connection, however it comes, is a change for readers.
        let reads = [Interest::READABLE, Interest::READ_CLOSED, Interest::HANGUP];
        let sides = [
            (Side::Read, &self.reads, reads.iter().any(|&reads| interest.contains(reads))),
            (Side::Write, &self.writes, interest.contains(Interest::WRITABLE)),
        ];
        for (side, watcher, wanted) in sides {
            self.object.watchers(side, &mut |watchers| {
                match (wanted, watcher.is_linked()) {
                    // SAFETY: 1. by the caller's contract; an `Arc` does not move. 2. The lock is
                    // held.
                    (true, false) => unsafe { watchers.add(watcher) },
                    // SAFETY: it is in these watchers: the object has one list for a direction.
                    (false, true) => unsafe { watchers.remove(watcher) },
                    _ => {}
                }
            });
        }
    }

    /// Leaves the source's watchers and the poller's lists. The caller holds no lock but the
    /// registry's.
    pub fn unlink(&self) {
        // SAFETY: with no interest it leaves all watchers.
        unsafe { self.link(Interest::NONE) };
        // No change reaches it from here on.
        self.poller.forget(self);
    }
}

/// # Safety
/// `watcher` is `reads` of a live registration, and its source is locked.
unsafe fn change_to_read(watcher: NonNull<Watcher>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract: the first field of a repr(C) type.
    unsafe { changed(watcher.cast(), signal) }
}

/// # Safety
/// `watcher` is `writes` of a live registration, and its source is locked.
unsafe fn change_to_write(watcher: NonNull<Watcher>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract: it lies that far behind the registration's start.
    unsafe { changed(watcher.byte_sub(offset_of!(Registration, writes)).cast(), signal) }
}

/// # Safety
/// The registration is alive.
unsafe fn changed(registration: NonNull<Registration>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract.
    let registration = unsafe { registration.as_ref() };
    match signal {
        Signal::Changed => registration.poller.put(registration),
        Signal::Closed => registration.poller.close(registration),
    }
    true
}
