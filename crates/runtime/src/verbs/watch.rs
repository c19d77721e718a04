//! Watchers: records that are notified of a change without being a thread that waits for it.
//!
//! A blocking call waits in a [`WaitList`]. A future and a poller's registration have no thread to
//! block: each links a [`Watcher`] into the [`Watchers`] of an object, which are part of its state
//! and under its [`SpinLock`](crate::ground::spin::SpinLock). A change wakes the threads that the
//! object's own rules select, **and** notifies all watchers. A watcher only looks: what there is
//! belongs to the thread or future that takes it, so none can keep a wake-up from another that
//! needs it.
//!
//! | event | holds | does |
//! |---|---|---|
//! | arm | object's lock | links the node, after the state was checked under the same lock |
//! | change | object's lock | calls each node's function; unlinks those that want no more |
//! | cancel | object's lock | unlinks the node |
//! | change for all | object's lock | moves the nodes behind an anchor of its own, then does as a change does, batch by batch, unlocking in between ([`notify_all`]) |
//! | close | object's lock | calls each node's function with [`Signal::Closed`]; unlinks all |
//!
//! A node is used under the object's lock only, so its owner, who cancels before it frees the node,
//! never races with a change. Nothing allocates. A change of an unwatched object costs a compare
//! with null, 8 bytes hold the list.
//!
//! The functions run with preemption off and a spin lock held: they take no lock of an object, run
//! no code of programs, and are short. A change of a socket or channel calls those of all its
//! watchers under one lock: programs have few on one object.

use super::switch::poll;
use super::wait::{WAKE_BATCH, WaitList};
use crate::ground::list::{self, Bag, Linked, Links};
use crate::ground::spin::SpinGuard;
use core::ptr::NonNull;

/// What happened to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Its state has changed.
    Changed,
    /// It will not change any more, and is about to go.
    Closed,
}

/// What a change does with a watcher: returns whether the watcher stays, which has no effect for
/// [`Signal::Closed`].
///
/// # Safety
/// The node is alive, linked, and its object locked by the caller.
pub(crate) type Notify = unsafe fn(NonNull<Watcher>, Signal) -> bool;

/// A node of [`Watchers`]; the first field of the type that owns it, so that both have one address.
#[derive(Debug)]
pub(crate) struct Watcher {
    links: Links<Watcher>,
    notify: Notify,
}

impl Linked for Watcher {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

impl Watcher {
    /// Returns a watcher of nothing.
    pub(crate) const fn new(notify: Notify) -> Self {
        Self { links: Links::new(), notify }
    }

    /// Returns whether the watcher is linked. The caller holds the object's lock.
    pub(crate) fn is_linked(&self) -> bool {
        self.links.are_linked()
    }
}

/// The watchers of one condition of an object.
#[derive(Debug)]
pub struct Watchers(Bag<Watcher>);

// SAFETY: nodes are reached only under the lock that the watchers lie in, by the contract of `add`.
unsafe impl Send for Watchers {}

impl Default for Watchers {
    fn default() -> Self {
        Self::new()
    }
}

impl Watchers {
    /// Returns no watchers.
    pub(crate) const fn new() -> Self {
        Self(Bag::new())
    }

    /// Adds a watcher.
    ///
    /// # Safety
    /// 1. It is linked nowhere, and neither moves nor dies before it has left these watchers.
    /// 2. It is used under the lock that `&mut self` implies.
    pub(crate) unsafe fn add(&mut self, watcher: &Watcher) {
        // SAFETY: by point 1.
        unsafe { self.0.push(watcher) };
    }

    /// Takes a watcher out, if it is in.
    ///
    /// # Safety
    /// It is in these watchers or in none.
    pub(crate) unsafe fn remove(&mut self, watcher: &Watcher) {
        // SAFETY: by the caller's contract.
        unsafe { self.0.remove(watcher) };
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notifies the watchers of a change.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if !self.0.is_empty() {
            self.signal(Signal::Changed);
        }
    }

    /// Notifies the watchers that the object is about to go, and takes all out.
    pub(crate) fn close(&mut self) {
        self.signal(Signal::Closed);
    }

    /// Apart: most objects have none.
    #[cold]
    fn signal(&mut self, signal: Signal) {
        self.0.retain(|watcher| {
            // SAFETY: a linked watcher is alive by the contract of `add`, and its function is for
            // it. `&mut self` implies the lock.
            let stays = unsafe { (watcher.as_ref().notify)(watcher, signal) };
            stays && signal == Signal::Changed
        });
    }
}

/// Notifies the watchers that `watchers` finds in the guarded state of a change, and unlocks. The
/// object is none that closes meanwhile.
///
/// Notifies in batches, between which it unlocks and passes a poll point, as
/// [`wake_all`](super::wait::wake_all): any number of futures may wait for an event.
pub(crate) fn notify_all<T>(mut guard: SpinGuard<'_, T>, watchers: impl Fn(&mut T) -> &mut Watchers) {
    let lock = guard.lock_of();
    let anchor = Watcher::new(leave);
    // SAFETY: the anchor stays in this frame, which ends when no node is behind it.
    unsafe { watchers(&mut guard).0.move_behind(&anchor) };
    // Each turn takes a batch or finds no more, and no node is added behind the anchor.
    while !notify_batch(&anchor, watchers(&mut guard)) {
        drop(guard);
        poll();
        guard = lock.lock();
    }
}

/// Notifies up to [`WAKE_BATCH`] of the watchers that were moved behind `anchor`, and adds those
/// that stay to `watchers`, where they were; true if none is left.
fn notify_batch(anchor: &Watcher, watchers: &mut Watchers) -> bool {
    for _ in 0..WAKE_BATCH {
        // SAFETY: `&mut watchers` implies the lock.
        let Some(watcher) = (unsafe { list::pop_behind(anchor) }) else { return true };
        // SAFETY: its owner needs the lock to let it die, by the contract of `add`. The function is
        // for it.
        let stays = unsafe { (watcher.as_ref().notify)(watcher, Signal::Changed) };
        if stays {
            // SAFETY: as when it was added here; it was taken out above.
            unsafe { watchers.add(watcher.as_ref()) };
        }
    }
    false
}

/// The function of an anchor, which no change calls.
unsafe fn leave(_: NonNull<Watcher>, _: Signal) -> bool {
    false
}

/// Threads that wait for a condition, and its watchers.
#[derive(Debug, Default)]
pub struct Waiters {
    threads: WaitList,
    watchers: Watchers,
}

impl Waiters {
    /// Returns no threads and no watchers.
    pub(crate) const fn new() -> Self {
        Self { threads: WaitList::new(), watchers: Watchers::new() }
    }

    /// Wakes the thread that has waited longest, and notifies the watchers; false if no thread
    /// waits.
    #[inline]
    pub(crate) fn wake_one(&mut self) -> bool {
        self.watchers.notify();
        self.threads.wake_one()
    }

    /// Returns the threads that wait.
    #[inline]
    pub(crate) fn threads(&mut self) -> &mut WaitList {
        &mut self.threads
    }

    /// Returns the watchers.
    #[inline]
    pub(crate) fn watchers(&mut self) -> &mut Watchers {
        &mut self.watchers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::spin::SpinLock;
    use core::cell::{Cell, RefCell};

    #[repr(C)]
    struct Counter {
        watcher: Watcher,
        stays: bool,
        seen: RefCell<Vec<Signal>>,
        calls: Cell<u32>,
    }

    unsafe fn count(watcher: NonNull<Watcher>, signal: Signal) -> bool {
        // SAFETY: the watcher is the first field of a repr(C) Counter.
        let counter = unsafe { watcher.cast::<Counter>().as_ref() };
        counter.seen.borrow_mut().push(signal);
        counter.calls.set(counter.calls.get() + 1);
        counter.stays
    }

    fn counter(stays: bool) -> Counter {
        let (seen, calls) = (RefCell::default(), Cell::new(0));
        Counter { watcher: Watcher::new(count), stays, seen, calls }
    }

    #[test]
    fn a_change_reaches_all_watchers_and_keeps_those_that_stay() {
        let (once, always, gone) = (counter(false), counter(true), counter(true));
        let mut waiters = Waiters::new();
        for counter in [&once, &always, &gone] {
            // SAFETY: the counters outlive the list, which one thread uses.
            unsafe { waiters.watchers().add(&counter.watcher) };
        }
        // SAFETY: it is in the list.
        unsafe { waiters.watchers().remove(&gone.watcher) };
        assert!(!waiters.wake_one(), "no thread waits");
        assert!(!waiters.wake_one());
        assert_eq!((once.calls.get(), always.calls.get(), gone.calls.get()), (1, 2, 0));
        assert!(!once.watcher.is_linked() && always.watcher.is_linked());
    }

    #[test]
    fn more_watchers_than_a_batch_are_notified_once_each() {
        let counters: Vec<_> = (0..WAKE_BATCH * 2 + 1).map(|i| counter(i.is_multiple_of(2))).collect();
        let waiters = SpinLock::new(Waiters::new());
        for counter in &counters {
            // SAFETY: as above.
            unsafe { waiters.lock().watchers().add(&counter.watcher) };
        }
        notify_all(waiters.lock(), Waiters::watchers);
        for counter in &counters {
            assert_eq!((counter.calls.get(), counter.watcher.is_linked()), (1, counter.stays));
        }
    }

    #[test]
    fn closing_tells_and_takes_out_all() {
        let (once, always) = (counter(false), counter(true));
        let mut watchers = Watchers::new();
        // SAFETY: as above.
        unsafe {
            watchers.add(&once.watcher);
            watchers.add(&always.watcher);
        }
        watchers.close();
        watchers.notify();
        assert_eq!(*always.seen.borrow(), [Signal::Closed]);
        assert_eq!(*once.seen.borrow(), [Signal::Closed]);
        assert!(!always.watcher.is_linked());
    }

    #[test]
    fn an_unwatched_condition_pays_a_pointer() {
        assert_eq!(size_of::<Waiters>(), size_of::<WaitList>() + size_of::<usize>());
    }
}
