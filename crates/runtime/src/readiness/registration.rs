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
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::Arc;

/// What the poller's lock guards.
#[derive(Debug)]
pub struct Local {
    pub token: Token,
    pub interest: Interest,
    pub mode: Mode,
    /// False after a one-shot registration was reported.
    pub enabled: bool,
    /// True after [`suspend`](super::Poller::suspend): for the program it is not there.
    pub suspended: bool,
    pub membership: Membership,
}

/// Which of the poller's lists a registration is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    Unlisted,
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
    /// The sides whose watchers it has joined, by [`Side::bit`]. Written under the registry's lock.
    linked: AtomicU8,
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
            linked: AtomicU8::new(0),
            local: UnsafeCell::new(Local {
                token,
                interest,
                mode,
                enabled: true,
                suspended: false,
                membership: Membership::Unlisted,
            }),
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

    /// Watches the sides that `interest` is about. It goes on to watch others: programs change
    /// their interest often, and a change of a side that is not asked for is ignored.
    ///
    /// # Safety
    /// [`unlink`](Self::unlink) is called before the registration dies.
    pub unsafe fn link(&self, interest: Interest) {
        for (side, watcher) in self.sides() {
            if side.concerns(interest) && self.linked.load(Relaxed) & side.bit() == 0 {
                // SAFETY: 1. by the caller's contract; an `Arc` does not move. 2. The lock is held.
                self.object.watchers(side, &mut |watchers| unsafe { watchers.add(watcher) });
                self.linked.fetch_or(side.bit(), Relaxed);
            }
        }
    }

    /// Leaves the source's watchers and the poller's lists. The caller holds no lock but the
    /// registry's.
    pub fn unlink(&self) {
        for (side, watcher) in self.sides() {
            self.object.watchers(side, &mut |watchers| {
                // SAFETY: it is in these watchers, or in none: the object has one list for a side.
                unsafe { watchers.remove(watcher) };
            });
        }
        // No change reaches it from here on.
        self.poller.forget(self);
    }

    fn sides(&self) -> [(Side, &Watcher); 2] {
        [(Side::Read, &self.reads), (Side::Write, &self.writes)]
    }
}

/// # Safety
/// `watcher` is `reads` of a live registration, and its source is locked.
unsafe fn change_to_read(watcher: NonNull<Watcher>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract: the first field of a repr(C) type.
    unsafe { changed(watcher.cast(), Side::Read, signal) }
}

/// # Safety
/// `watcher` is `writes` of a live registration, and its source is locked.
unsafe fn change_to_write(watcher: NonNull<Watcher>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract: it lies that far behind the registration's start.
    unsafe { changed(watcher.byte_sub(offset_of!(Registration, writes)).cast(), Side::Write, signal) }
}

/// # Safety
/// The registration is alive.
unsafe fn changed(registration: NonNull<Registration>, side: Side, signal: Signal) -> bool {
    // SAFETY: by the caller's contract.
    let registration = unsafe { registration.as_ref() };
    match signal {
        Signal::Changed => registration.poller.put(registration, Some(side)),
        Signal::Closed => registration.poller.close(registration),
    }
    true
}
