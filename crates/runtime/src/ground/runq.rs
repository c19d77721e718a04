//! The run queue of one kthread: a bounded ring of runnable threads whose indices lie in shared
//! memory.
//!
//! The [`Owner`] pushes at the tail; the owner and thieves ([`Stealer`]) take from the head. The
//! IOKernel looks at the indices for congestion (an entry that was there at two looks in a row), so
//! they are in the region and not in here.
//!
//! | word | written by | ordering | read by |
//! |---|---|---|---|
//! | slot | owner, before the tail | Relaxed | the thread that wins the head, after the tail |
//! | tail | owner | Release | thieves and owner: Acquire |
//! | head | the thread that takes: compare-and-swap | AcqRel | owner, before it reuses slots: Acquire |
//!
//! A thief copies entries before it wins the head; if it loses, the copies are dropped. A slot is
//! reused only after the head has passed it, so a copy that won is the entry that was queued.
//!
//! A queue without thieves (the runtime has one kthread) needs no locked instruction for its head:
//! 7 ns of the 17 that a yield takes (Intel Xeon, 2-vCPU VM).

use super::atomic::{AtomicPtr, Ordering};
use core::cell::Cell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use tailwater_shm::layout::StatusLine;

/// Entries in a run queue; more go to the overflow list.
#[cfg(not(loom))]
pub const CAPACITY: usize = 256;
/// Loom follows few steps.
#[cfg(loom)]
pub const CAPACITY: usize = 4;
/// Maximum number of entries that one steal takes.
pub const STEAL_MAX: usize = CAPACITY / 2;

/// What a queue holds: a token that is a pointer.
///
/// # Safety
/// `from_raw(into_raw(token))` is `token`, on any thread.
pub unsafe trait Token: Sized {
    /// What the pointer points to.
    type Target;

    /// Returns the token as a pointer.
    fn into_raw(self) -> *mut Self::Target;

    /// Returns the token again.
    ///
    /// # Safety
    /// `raw` came from `into_raw`, and becomes a token once.
    unsafe fn from_raw(raw: *mut Self::Target) -> Self;
}

/// A queue's slots. Leaked: kthreads live as long as the process.
type Slots<T> = &'static [AtomicPtr<T>; CAPACITY];

/// The words of a queue, which both ends use.
#[derive(Debug)]
struct Ring<T: 'static> {
    status: &'static StatusLine,
    /// True if only the owner takes entries.
    private: bool,
    slots: Slots<T>,
}

impl<T> Clone for Ring<T> {
    fn clone(&self) -> Self {
        Self { status: self.status, private: self.private, slots: self.slots }
    }
}

impl<T> Ring<T> {
    fn slot(&self, index: u32) -> &AtomicPtr<T> {
        &self.slots[index as usize % CAPACITY]
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.status.runq_head.load(Ordering::Relaxed) == self.status.runq_tail.load(Ordering::Relaxed)
    }

    /// Moves the head from `from` to `to`; where it is now if another thread has moved it since
    /// `from` was read.
    #[inline]
    fn advance(&self, from: u32, to: u32) -> Result<(), u32> {
        let head = &self.status.runq_head;
        if self.private {
            // Relaxed: only the owner uses the slots.
            head.store(to, Ordering::Relaxed);
            return Ok(());
        }
        // AcqRel: Release pairs with the owner's Acquire in `push` (the reads of the slots are
        // done).
        head.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Takes as many entries as `want` makes of the number queued, and writes them to the beginning
    /// of `out`; returns how many.
    #[inline]
    fn take(&self, out: &mut [MaybeUninit<*mut T>], want: impl Fn(u32) -> u32) -> usize {
        // Acquire: pairs with the AcqRel swap of the thread that took before.
        let mut head = self.status.runq_head.load(Ordering::Acquire);
        loop {
            // Acquire: pairs with the Release in `push`: entries below the tail are visible.
            let queued = self.status.runq_tail.load(Ordering::Acquire).wrapping_sub(head);
            if queued == 0 || queued as usize > CAPACITY {
                // More than the capacity: the head read was stale. The thief looks elsewhere.
                return 0;
            }
            let n = want(queued);
            for i in 0..n {
                out[i as usize].write(self.slot(head.wrapping_add(i)).load(Ordering::Relaxed));
            }
            match self.advance(head, head.wrapping_add(n)) {
                Ok(()) => return n as usize,
                Err(now) => head = now,
            }
        }
    }
}

/// Makes an empty queue whose indices are those of `status`. A `private` one is never stolen from.
pub fn new<R: Token>(status: &'static StatusLine, private: bool) -> (Owner<R>, Stealer<R>) {
    let slots = Box::leak(Box::new(core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut()))));
    let ring = Ring { status, private, slots };
    (Owner { ring: ring.clone(), _not_sync: PhantomData }, Stealer(ring))
}

/// The owner's end. There is one, and it is not `Sync`.
#[derive(Debug)]
pub struct Owner<R: Token<Target: 'static>> {
    ring: Ring<R::Target>,
    _not_sync: PhantomData<Cell<()>>,
}

impl<R: Token<Target: 'static>> Owner<R> {
    /// Returns how many entries the queue seems to hold.
    pub fn len(&self) -> u32 {
        self.ring.status.runq_len()
    }

    /// Returns what the entry behind `ahead` others points to, if the queue is that long. For a
    /// prefetch: a thief may take the entry meanwhile.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<*const R::Target> {
        let ring = &self.ring;
        let head = ring.status.runq_head.load(Ordering::Relaxed);
        // Relaxed: an address that is not followed.
        let entry = || ring.slot(head.wrapping_add(ahead)).load(Ordering::Relaxed).cast_const();
        (self.len() > ahead).then(entry)
    }

    /// Appends an entry; returns it if the queue is full.
    #[inline]
    pub fn push(&self, entry: R) -> Result<(), R> {
        let ring = &self.ring;
        // Relaxed: only the owner writes the tail.
        let tail = ring.status.runq_tail.load(Ordering::Relaxed);
        // Acquire: pairs with the swap in `advance`: the slot about to be reused has been read.
        let head = ring.status.runq_head.load(Ordering::Acquire);
        if tail.wrapping_sub(head) as usize >= CAPACITY {
            return Err(entry);
        }
        ring.slot(tail).store(entry.into_raw(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        ring.status.runq_tail.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn pop(&self) -> Option<R> {
        let mut one = [MaybeUninit::uninit(); 1];
        (self.ring.take(&mut one, |queued| queued.min(1)) == 1).then(|| {
            // SAFETY: `take` has written one pointer, which `push` made of a token, and the head
            // has moved past it once.
            unsafe { R::from_raw(one[0].assume_init()) }
        })
    }
}

/// The thieves' end.
#[derive(Debug)]
pub struct Stealer<R: Token<Target: 'static>>(Ring<R::Target>);

// SAFETY: made of atomics and shared references to atomics; tokens may move to any thread by the
// contract of `Token`.
unsafe impl<R: Token<Target: 'static>> Send for Stealer<R> {}
// SAFETY: as above.
unsafe impl<R: Token<Target: 'static>> Sync for Stealer<R> {}

impl<R: Token<Target: 'static>> Stealer<R> {
    /// Returns whether the queue looks empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many entries the queue seems to hold.
    pub fn len(&self) -> u32 {
        self.0.status.runq_len()
    }

    /// Moves half of the entries, rounded up and at most [`STEAL_MAX`], to the empty queue `to` of
    /// the calling thief, all but one. Returns that one, and how many were moved in all.
    ///
    /// # Panics
    /// If `to` has no room for them.
    pub fn steal_into(&self, to: &Owner<R>) -> Option<(R, usize)> {
        debug_assert!(!self.0.private, "a private queue was stolen from");
        // Not initialised: a kilobyte of zeros would be most of the work of stealing one thread.
        let mut loot = [const { MaybeUninit::uninit() }; STEAL_MAX];
        let taken = self.0.take(&mut loot, |queued| queued.div_ceil(2).min(STEAL_MAX as u32));
        // SAFETY: `take` has written so many pointers; for the rest as in `pop`.
        let mut entries = loot[..taken].iter().map(|entry| unsafe { R::from_raw(entry.assume_init()) });
        let first = entries.next()?;
        for entry in entries {
            let full = to.push(entry).is_err();
            assert!(!full, "a thief's queue is empty, and the loot is half its capacity");
        }
        Some((first, taken))
    }

    /// Returns the entries at this moment, for a dump: some may have been taken meanwhile.
    pub fn snapshot(&self) -> Vec<*const R::Target> {
        let ring = &self.0;
        // Relaxed: a look from outside; entries are addresses that are not followed, or null.
        let (head, tail) =
            (ring.status.runq_head.load(Ordering::Relaxed), ring.status.runq_tail.load(Ordering::Relaxed));
        let queued = (tail.wrapping_sub(head) as usize).min(CAPACITY) as u32;
        (0..queued).map(|i| ring.slot(head.wrapping_add(i)).load(Ordering::Relaxed).cast_const()).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use tailwater_shm::layout::KthreadShared;

    /// A number in place of a thread.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    struct Number(usize);

    // SAFETY: the pointer is the number, and nothing else.
    unsafe impl Token for Number {
        type Target = u8;

        fn into_raw(self) -> *mut u8 {
            core::ptr::without_provenance_mut(self.0)
        }

        unsafe fn from_raw(raw: *mut u8) -> Self {
            Self(raw.addr())
        }
    }

    fn queue(private: bool) -> (Owner<Number>, Stealer<Number>) {
        new(&Box::leak(Box::new(KthreadShared::new())).status, private)
    }

    fn drain(owner: &Owner<Number>) -> Vec<usize> {
        core::iter::from_fn(|| owner.pop()).map(|number| number.0).collect()
    }

    #[test]
    fn entries_leave_in_the_order_they_came() {
        for private in [false, true] {
            let (owner, _) = queue(private);
            for round in 0..3 {
                (1..=CAPACITY).for_each(|n| owner.push(Number(n)).unwrap());
                assert!(owner.push(Number(9)).is_err(), "round {round}: a full queue took one more");
                assert_eq!(drain(&owner), (1..=CAPACITY).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn an_entry_is_seen_before_its_turn() {
        let (owner, _) = queue(true);
        // Across the end of the ring.
        (1..=CAPACITY).for_each(|n| owner.push(Number(n)).unwrap());
        (3..=CAPACITY).for_each(|_| assert!(owner.pop().is_some()));
        (1..=3).for_each(|n| owner.push(Number(n)).unwrap());
        let seen = |ahead| owner.peek(ahead).map(<*const u8>::addr);
        assert_eq!([seen(0), seen(1), seen(2)], [Some(CAPACITY - 1), Some(CAPACITY), Some(1)]);
        assert_eq!((seen(4), seen(5)), (Some(3), None), "no entry is that far behind");
        assert_eq!(owner.len(), 5, "a look takes nothing");
    }

    #[test]
    fn a_thief_takes_the_older_half() {
        let ((owner, stealer), (mine, _)) = (queue(false), queue(false));
        (1..=7).for_each(|n| owner.push(Number(n)).unwrap());
        assert_eq!(stealer.steal_into(&mine), Some((Number(1), 4)));
        assert_eq!((drain(&mine), drain(&owner)), (vec![2, 3, 4], vec![5, 6, 7]));
    }

    #[test]
    fn every_entry_is_taken_exactly_once_under_contention() {
        const ENTRIES: usize = 60_000;
        let (owner, stealer) = queue(false);
        let done = AtomicBool::new(false);
        let taken: Vec<Vec<usize>> = std::thread::scope(|scope| {
            let thieves: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let ((mine, _), mut got) = (queue(false), Vec::new());
                        while !done.load(SeqCst) || !stealer.is_empty() {
                            match stealer.steal_into(&mine) {
                                Some((first, _)) => {
                                    got.push(first.0);
                                    got.extend(drain(&mine));
                                }
                                None => std::thread::yield_now(),
                            }
                        }
                        got
                    })
                })
                .collect();
            let mut own = Vec::new();
            for n in 1..=ENTRIES {
                while owner.push(Number(n)).is_err() {
                    std::thread::yield_now();
                }
                if n % 3 == 0 {
                    own.extend(owner.pop().map(|number| number.0));
                }
            }
            done.store(true, SeqCst);
            let mut taken: Vec<_> = thieves.into_iter().map(|t| t.join().unwrap()).collect();
            taken.push(own);
            taken
        });
        let flat: Vec<usize> = taken.into_iter().flatten().collect();
        assert_eq!(flat.len(), ENTRIES, "entries were lost or taken twice");
        assert_eq!(flat.iter().collect::<HashSet<_>>().len(), ENTRIES, "an entry was taken twice");
    }
}
