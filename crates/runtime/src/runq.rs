//! The run queue of one kthread: a bounded ring of user threads whose indices lie in shared memory.
//!
//! The owner pushes at the tail; the owner and thieves take from the head. The indices are where the IOKernel looks for
//! congestion (an entry that was there at two looks in a row), which is why they are in the region and not in here.
//!
//! | word | written by | ordering | read by |
//! |---|---|---|---|
//! | slot | owner, before the tail | Relaxed | whoever wins the head, after the tail |
//! | tail | owner | Release | thieves and owner: Acquire |
//! | head | whoever takes: compare-and-swap | AcqRel | owner, before it reuses slots: Acquire |
//!
//! A thief copies entries before it wins the head; if it loses, the copies are dropped. A slot is reused only after
//! the head has passed it, so a won copy is the entry that was queued.
//!
//! The queue of an only kthread has no thieves, and its head needs no locked instruction: 7 ns of the 17 that a yield
//! takes (Intel Xeon, 2-vCPU VM).

use crate::uthread::Uthread;
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicPtr;
use tailwater_shm::layout::StatusLine;
use tailwater_shm::sync::Ordering;

/// Entries in a run queue; more go to the overflow list.
pub const CAPACITY: usize = 256;
/// Most entries one steal takes.
pub const STEAL_MAX: usize = CAPACITY / 2;

/// See the module documentation.
#[derive(Debug)]
pub struct RunQueue {
    status: &'static StatusLine,
    /// Whether nobody but the owner ever takes.
    private: bool,
    slots: Box<[AtomicPtr<Uthread>; CAPACITY]>,
}

impl RunQueue {
    /// An empty queue whose indices are those of `status`. A `private` one is never stolen from.
    pub fn new(status: &'static StatusLine, private: bool) -> Self {
        Self { status, private, slots: Box::new([const { AtomicPtr::new(core::ptr::null_mut()) }; CAPACITY]) }
    }

    fn slot(&self, index: u32) -> &AtomicPtr<Uthread> {
        &self.slots[index as usize % CAPACITY]
    }

    /// Whether the queue looks empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.status.runq_head.load(Ordering::Relaxed) == self.status.runq_tail.load(Ordering::Relaxed)
    }

    /// How many threads the queue seems to hold.
    pub fn len(&self) -> u32 {
        let tail = self.status.runq_tail.load(Ordering::Relaxed);
        tail.wrapping_sub(self.status.runq_head.load(Ordering::Relaxed))
    }

    /// Appends; owner only. Gives the thread back when the queue is full.
    #[inline]
    pub fn push(&self, uthread: &'static Uthread) -> Result<(), &'static Uthread> {
        // Relaxed: only the owner writes the tail.
        let tail = self.status.runq_tail.load(Ordering::Relaxed);
        // Acquire: pairs with the swap in `take`: the slot about to be reused has been read.
        let head = self.status.runq_head.load(Ordering::Acquire);
        if tail.wrapping_sub(head) as usize >= CAPACITY {
            return Err(uthread);
        }
        self.slot(tail).store(core::ptr::from_ref(uthread).cast_mut(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `take`.
        self.status.runq_tail.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Takes the oldest entry; owner only.
    #[inline]
    pub fn pop(&self) -> Option<&'static Uthread> {
        let mut one = [MaybeUninit::uninit(); 1];
        (self.take(&mut one, |queued| queued.min(1)) == 1).then(|| {
            // SAFETY: `take` has written one; entries are user-thread records, which are never freed.
            unsafe { &*one[0].assume_init() }
        })
    }

    /// Moves half of the entries, rounded up and at most [`STEAL_MAX`], to the empty queue `to` of the calling thief,
    /// all but one, which is returned to be run.
    pub fn steal_into(&self, to: &Self) -> Option<(&'static Uthread, usize)> {
        debug_assert!(!self.private, "a private queue was stolen from");
        // Not initialised: a kilobyte of zeros would be most of the work of stealing one thread.
        let mut loot = [const { MaybeUninit::uninit() }; STEAL_MAX];
        let taken = self.take(&mut loot, |queued| queued.div_ceil(2).min(STEAL_MAX as u32));
        // SAFETY: `take` has written so many; for the rest as in `pop`.
        let mut threads = loot[..taken].iter().map(|thread| unsafe { &*thread.assume_init() });
        let first = threads.next()?;
        for thread in threads {
            to.push(thread).expect("a thief's queue is empty, and the loot is half its capacity");
        }
        Some((first, taken))
    }

    /// Moves the head, unless somebody has moved it since `from` was read: then where it is now.
    #[inline]
    fn advance(&self, from: u32, to: u32) -> Result<(), u32> {
        let head = &self.status.runq_head;
        if self.private {
            // Relaxed: the owner is the only one who uses the slots.
            head.store(to, Ordering::Relaxed);
            return Ok(());
        }
        // AcqRel: Release pairs with the owner's Acquire in `push` (our reads of the slots are done).
        head.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// The entries at this moment, for a dump: some may have been taken meanwhile.
    pub fn snapshot(&self) -> Vec<*const Uthread> {
        // Relaxed: a look from outside; entries are addresses of records that are never freed, or null.
        let (head, tail) =
            (self.status.runq_head.load(Ordering::Relaxed), self.status.runq_tail.load(Ordering::Relaxed));
        let queued = (tail.wrapping_sub(head) as usize).min(CAPACITY) as u32;
        (0..queued).map(|i| self.slot(head.wrapping_add(i)).load(Ordering::Relaxed).cast_const()).collect()
    }

    /// Takes as many entries as `want` makes of the number queued, and writes them to the beginning of `out`; returns how many.
    #[inline]
    fn take(&self, out: &mut [MaybeUninit<*mut Uthread>], want: impl Fn(u32) -> u32) -> usize {
        // Acquire: pairs with the AcqRel swap of whoever took before.
        let mut head = self.status.runq_head.load(Ordering::Acquire);
        loop {
            // Acquire: pairs with the Release in `push`: entries below the tail are visible.
            let queued = self.status.runq_tail.load(Ordering::Acquire).wrapping_sub(head);
            if queued == 0 || queued as usize > CAPACITY {
                // More than the capacity: the head read was stale. An empty-handed thief simply looks elsewhere.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use tailwater_shm::layout::KthreadShared;

    fn queue() -> RunQueue {
        RunQueue::new(&Box::leak(Box::new(KthreadShared::new())).status, false)
    }

    fn threads(n: usize) -> Vec<&'static Uthread> {
        (0..n).map(|_| &*Box::leak(Box::new(Uthread::new(0, 0)))).collect()
    }

    #[test]
    fn entries_leave_in_the_order_they_came() {
        let private = RunQueue::new(&Box::leak(Box::new(KthreadShared::new())).status, true);
        let all = threads(CAPACITY + 1);
        for q in [queue(), private] {
            for round in 0..3 {
                for t in &all[..CAPACITY] {
                    q.push(t).unwrap();
                }
                assert!(q.push(all[CAPACITY]).is_err(), "round {round}: a full queue took one more");
                for t in &all[..CAPACITY] {
                    assert!(core::ptr::eq(q.pop().unwrap(), *t));
                }
                assert!(q.pop().is_none());
            }
        }
    }

    #[test]
    fn a_thief_takes_the_older_half() {
        let (q, mine, all) = (queue(), queue(), threads(7));
        for t in &all {
            q.push(t).unwrap();
        }
        let (first, taken) = q.steal_into(&mine).unwrap();
        assert!(core::ptr::eq(first, all[0]));
        assert_eq!(taken, 4);
        let drain = |q: &RunQueue| {
            core::iter::from_fn(|| q.pop()).map(|t| core::ptr::from_ref(t) as usize).collect::<Vec<_>>()
        };
        let addresses: Vec<_> = all.iter().map(|t| core::ptr::from_ref(*t) as usize).collect();
        assert_eq!((&drain(&mine)[..], &drain(&q)[..]), (&addresses[1..4], &addresses[4..]));
    }

    #[test]
    fn every_entry_is_taken_exactly_once_under_contention() {
        const ENTRIES: usize = 60_000;
        let (q, all) = (&*Box::leak(Box::new(queue())), threads(ENTRIES));
        let done = AtomicBool::new(false);
        let taken: Vec<Vec<usize>> = std::thread::scope(|scope| {
            let thieves: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (mine, mut got) = (queue(), Vec::new());
                        while !done.load(SeqCst) || !q.is_empty() {
                            if let Some((first, _)) = q.steal_into(&mine) {
                                got.push(core::ptr::from_ref(first) as usize);
                                while let Some(t) = mine.pop() {
                                    got.push(core::ptr::from_ref(t) as usize);
                                }
                            } else {
                                std::thread::yield_now();
                            }
                        }
                        got
                    })
                })
                .collect();
            let mut own = Vec::new();
            for (i, t) in all.iter().enumerate() {
                while q.push(t).is_err() {
                    std::thread::yield_now();
                }
                if i % 3 == 0 {
                    own.extend(q.pop().map(|t| core::ptr::from_ref(t) as usize));
                }
            }
            done.store(true, SeqCst);
            let mut taken: Vec<_> = thieves.into_iter().map(|t| t.join().unwrap()).collect();
            taken.push(own);
            taken
        });
        let flat: Vec<usize> = taken.into_iter().flatten().collect();
        assert_eq!(flat.len(), ENTRIES, "entries lost or taken twice");
        assert_eq!(flat.iter().collect::<HashSet<_>>().len(), ENTRIES, "an entry was taken twice");
    }
}
