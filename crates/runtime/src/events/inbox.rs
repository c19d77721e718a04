//! The list of a loop's sockets that have changed, and the loop's sleep until one does.
//!
//! Each socket of a loop has a [`Link`] with a watcher for each direction (the module
//! `verbs::watch`). A change, under the socket's lock, puts the link on the inbox's list and wakes
//! the loop if it sleeps; a link that is on the list already stays where it is. Nothing allocates.
//!
//! # Locks
//! The socket's, then the inbox's. The loop takes links off under the inbox's lock, and looks at
//! their sockets after it has unlocked.
//!
//! # What keeps a link alive
//! The slot of its socket, until the link has left the socket's watchers and the list, each under
//! its lock ([`Link::leave`]). The raw pointers in both are therefore valid.

use crate::ground::list::{Linked, Links, List};
use crate::ground::spin::SpinLock;
use crate::verbs::wait::{WaitList, wait};
use crate::verbs::watch::{Signal, Watcher, Watchers};
use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::Arc;
use tailwater_shm::Cycles;

struct State {
    changed: List<Link>,
    /// True after [`Inbox::wake`], until the loop has reported it.
    woken: bool,
    sleeper: WaitList,
}

// SAFETY: links on the list are alive and used under the lock, by the module's rules.
unsafe impl Send for State {}

/// The sockets of a loop that have changed.
pub struct Inbox(SpinLock<State>);

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl Inbox {
    /// Returns an empty one.
    pub fn new() -> Self {
        let (changed, sleeper) = (List::new(), WaitList::new());
        Self(SpinLock::new(State { changed, woken: false, sleeper }))
    }

    fn put(&self, link: &Link) {
        let mut state = self.0.lock();
        if link.links.are_linked() {
            return;
        }
        // SAFETY: it is on no list, and `leave` takes it out before it dies.
        unsafe { state.changed.push_back(link) };
        state.sleeper.wake_one();
    }

    /// Calls `each` with the slots of up to `most` changed sockets, oldest change first. Returns
    /// whether the loop was woken.
    pub fn take(&self, most: usize, mut each: impl FnMut(u32)) -> bool {
        let mut state = self.0.lock();
        for _ in 0..most {
            let Some(link) = state.changed.pop_front() else { break };
            // SAFETY: it was on the list, so it is alive, and `leave` needs the lock.
            each(unsafe { link.as_ref() }.slot);
        }
        core::mem::take(&mut state.woken)
    }

    /// Makes the loop report that it was woken.
    pub fn wake(&self) {
        let mut state = self.0.lock();
        state.woken = true;
        state.sleeper.wake_one();
    }

    /// Blocks until a socket changes or the loop is woken; until `deadline` at the latest. Returns
    /// whether it did, and other threads could run.
    pub fn wait(&self, deadline: Option<Cycles>) -> bool {
        let state = self.0.lock();
        let sleeps = state.changed.is_empty() && !state.woken;
        if sleeps {
            // SAFETY: `sleeper` always returns the same list, which stays behind the lock.
            unsafe { wait(state, |state| &mut state.sleeper, deadline) };
        }
        sleeps
    }
}

/// A socket's place in the inbox of its loop.
#[repr(C)]
pub struct Link {
    reads: Watcher,
    writes: Watcher,
    links: Links<Link>,
    slot: u32,
    inbox: Arc<Inbox>,
}

// SAFETY: `links` is used under the inbox's lock, the watchers under the socket's.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Linked for Link {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl Link {
    /// Returns a link that watches nothing.
    pub fn new(slot: u32, inbox: &Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self {
            reads: Watcher::new(read_changed),
            writes: Watcher::new(write_changed),
            links: Links::new(),
            slot,
            inbox: Arc::clone(inbox),
        })
    }

    /// Watches readers, of a locked socket.
    ///
    /// # Safety
    /// 1. It watches no other's, and [`ignore_reads`](Self::ignore_reads) precedes the link's end.
    /// 2. `watchers` are under the lock that the caller holds.
    pub unsafe fn watch_reads(&self, watchers: &mut Watchers) {
        // SAFETY: by the caller's contract; an `Arc` does not move.
        unsafe { watchers.add(&self.reads) };
    }

    /// As [`watch_reads`](Self::watch_reads), for writers.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn watch_writes(&self, watchers: &mut Watchers) {
        // SAFETY: as above.
        unsafe { watchers.add(&self.writes) };
    }

    /// Ends the watch of readers.
    ///
    /// # Safety
    /// It watches these or none.
    pub unsafe fn ignore_reads(&self, watchers: &mut Watchers) {
        // SAFETY: by the caller's contract.
        unsafe { watchers.remove(&self.reads) };
    }

    /// As [`ignore_reads`](Self::ignore_reads), for writers.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn ignore_writes(&self, watchers: &mut Watchers) {
        // SAFETY: as above.
        unsafe { watchers.remove(&self.writes) };
    }

    /// Leaves the inbox. It watches nothing any more.
    pub fn leave(&self) {
        // SAFETY: it is on this list or on none.
        unsafe { self.inbox.0.lock().changed.remove(self) };
    }
}

/// # Safety
/// `watcher` is `reads` of a live link, and its socket is locked.
unsafe fn read_changed(watcher: NonNull<Watcher>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract: the first field of a repr(C) type.
    unsafe { changed(watcher.cast(), signal) }
}

/// # Safety
/// `watcher` is `writes` of a live link, and its socket is locked.
unsafe fn write_changed(watcher: NonNull<Watcher>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract: it lies that far behind the link's start.
    unsafe { changed(watcher.byte_sub(offset_of!(Link, writes)).cast(), signal) }
}

/// # Safety
/// The link is alive.
unsafe fn changed(link: NonNull<Link>, signal: Signal) -> bool {
    // SAFETY: by the caller's contract.
    let link = unsafe { link.as_ref() };
    link.inbox.put(link);
    // A socket closes with its last handle, of which the slot has one: none closes under a link.
    signal == Signal::Changed
}
