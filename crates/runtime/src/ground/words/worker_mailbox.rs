//! The mailbox of a dispatcher's worker: requests one way, reports of finished requests the other
//! (Concord, SOSP'23, sections 3.1 and 3.2).
//!
//! Owns [`PLACES`] places for requests and as many for reports, each a ring, on cache lines of one
//! writer each. Knows nothing of threads and policies. The *dispatcher* is the thread that holds
//! the dispatcher's lock, the *worker* the one thread that has the lane; both change, and each
//! hands its role over by a lock or a run queue, which orders what it did before.
//!
//! ```text
//!              places: a pointer or null, 8 to a line      taken, began, resting
//!  dispatcher ───────────────────────────────────▶ worker ────────────────────────▶ dispatcher
//!              order: the request that gives way           reports, and their number
//! ```
//!
//! | word | written by | read by | ordering |
//! |---|---|---|---|
//! | `places[i]`, set | dispatcher: [`give`](WorkerMailbox::give), while it is null | worker: [`take`](WorkerMailbox::take) | Release swap, Acquire swap: the request |
//! | `places[i]`, cleared | worker: `take`; dispatcher: [`take_back`](WorkerMailbox::take_back) | each other | swaps: one of the two gets the request |
//! | `order` | dispatcher | worker, at a poll point | Relaxed: a hint that is checked under the lock |
//! | `began`, `taken` | worker: `take` | dispatcher: [`progress`](WorkerMailbox::progress) | Release store of `taken`, Acquire load: `began` is of that request or a later one |
//! | `reports[i]`, `reported` | worker: [`report`](WorkerMailbox::report) | dispatcher: [`collect`](WorkerMailbox::collect) | Release store of `reported`, Acquire load: the report, and that the place of its request is null |
//! | `resting` | worker | dispatcher | Relaxed: a hint |
//!
//! The one word with two writers is a place that both empty. It costs the worker a swap on a line
//! that it has to fetch anyway, and is what lets a request be taken back from a worker that has
//! lost its core, at any instruction.
//!
//! # Invariants
//! - A request that was given is taken by the worker or taken back, never both.
//! - The worker takes requests in the order in which they were given; the newest is taken back
//!   first. So those that remain keep their order.
//! - At most [`PLACES`] requests are given and not accounted for by a report or under the lock: the
//!   dispatcher's bound. So no place and no report is overwritten.

use crate::ground::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::ground::spin::SpinLock;
use core::fmt;
use core::marker::PhantomData;
use core::ptr;

/// Requests that a mailbox holds at most: one cache line of pointers.
pub const PLACES: usize = 8;

/// Two cache lines of their own: processors fetch lines in pairs.
#[repr(align(128))]
struct Lines<T>(T);

/// See the module documentation.
pub struct WorkerMailbox<T> {
    places: Lines<[AtomicPtr<T>; PLACES]>,
    /// The number of the request that is to give way, and 1; 0: none.
    order: Lines<AtomicU64>,
    worker: Lines<Progress>,
    reports: Lines<[Cells; PLACES]>,
    /// It hands values of `T` from thread to thread, as a lock does.
    values: PhantomData<SpinLock<T>>,
}

struct Progress {
    /// Requests taken, modulo 2^32.
    taken: AtomicU32,
    /// When the last one was taken.
    began: AtomicU64,
    /// Reports made, modulo 2^32.
    reported: AtomicU32,
    /// 1 while the worker does not look.
    resting: AtomicU32,
}

struct Cells {
    /// The number, and bit 32 if the request panicked.
    number: AtomicU64,
    began: AtomicU64,
    ended: AtomicU64,
}

const PANICKED: u64 = 1 << 32;

/// A request that the worker has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Its number.
    pub number: u32,
    /// When the worker took it, in the worker's unit of time.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
    /// True if it panicked.
    pub panicked: bool,
}

impl<T> fmt::Debug for WorkerMailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.worker.0.taken.load(Ordering::Relaxed);
        f.debug_struct("WorkerMailbox").field("taken", &taken).finish_non_exhaustive()
    }
}

impl<T> WorkerMailbox<T> {
    /// Returns an empty mailbox, of which nothing was taken yet.
    pub fn new() -> Self {
        let cells =
            || Cells { number: AtomicU64::new(0), began: AtomicU64::new(0), ended: AtomicU64::new(0) };
        Self {
            places: Lines(core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()))),
            order: Lines(AtomicU64::new(0)),
            worker: Lines(Progress {
                taken: AtomicU32::new(0),
                began: AtomicU64::new(0),
                reported: AtomicU32::new(0),
                resting: AtomicU32::new(0),
            }),
            reports: Lines(core::array::from_fn(|_| cells())),
            values: PhantomData,
        }
    }

    /// Gives the worker its `index`th request, counted from 0 modulo 2^32 without those that were
    /// taken back. Called by the dispatcher.
    ///
    /// # Errors
    /// The request, if its place is not empty: more than [`PLACES`] are out.
    pub fn give(&self, index: u32, request: T) -> Result<(), T> {
        let place = &self.places.0[place_of(index)];
        // Relaxed: that it is null was acquired with the report of the request that was there, or
        // the dispatcher cleared it itself.
        if !place.load(Ordering::Relaxed).is_null() {
            return Err(request);
        }
        // Release: pairs with the Acquire in `empty`. A swap and no store: where all that changes a
        // place is a read-modify-write, no other swap comes between this value and the one that
        // takes it.
        let before = place.swap(Box::into_raw(Box::new(request)), Ordering::Release);
        debug_assert!(before.is_null(), "only the dispatcher fills a place");
        Ok(())
    }

    /// Takes back the `index`th request, the newest that is out; `None` if the worker has taken it.
    /// Called by the dispatcher.
    pub fn take_back(&self, index: u32) -> Option<T> {
        empty(&self.places.0[place_of(index)])
    }

    /// Returns how many requests the worker has taken, and when it took that one or a later one.
    /// Called by the dispatcher.
    pub fn progress(&self) -> (u32, u64) {
        // Acquire: pairs with the Release in `take`.
        let taken = self.worker.0.taken.load(Ordering::Acquire);
        (taken, self.worker.0.began.load(Ordering::Relaxed))
    }

    /// Returns the worker's `index`th report, if it has made it. Called by the dispatcher, once for
    /// each index.
    pub fn collect(&self, index: u32) -> Option<Report> {
        // Acquire: pairs with the Release in `report`.
        if self.worker.0.reported.load(Ordering::Acquire) == index {
            return None;
        }
        let cells = &self.reports.0[place_of(index)];
        let number = cells.number.load(Ordering::Relaxed);
        Some(Report {
            number: number as u32,
            began: cells.began.load(Ordering::Relaxed),
            ended: cells.ended.load(Ordering::Relaxed),
            panicked: number & PANICKED != 0,
        })
    }

    /// Returns how many reports there were at this moment: a hint.
    pub fn reported(&self) -> u32 {
        self.worker.0.reported.load(Ordering::Relaxed)
    }

    /// Orders request `number` to give way at its next look at the clock, or no request. Called by
    /// the dispatcher.
    pub fn order(&self, number: Option<u32>) {
        let order = number.map_or(0, |number| u64::from(number) + 1);
        self.order.0.store(order, Ordering::Relaxed);
    }

    /// Returns whether request `number` is to give way. Called by the worker.
    pub fn is_ordered(&self, number: u32) -> bool {
        self.order.0.load(Ordering::Relaxed) == u64::from(number) + 1
    }

    /// Returns whether a request waits: a hint. Called by the worker.
    #[inline]
    pub fn has_request(&self) -> bool {
        let taken = self.worker.0.taken.load(Ordering::Relaxed);
        !self.places.0[place_of(taken)].load(Ordering::Relaxed).is_null()
    }

    /// Takes the next request, which begins `now`. Called by the worker.
    #[inline]
    pub fn take(&self, now: u64) -> Option<T> {
        let taken = self.worker.0.taken.load(Ordering::Relaxed);
        let place = &self.places.0[place_of(taken)];
        // A swap would fetch the line for writing, from the dispatcher that is about to fill it.
        if place.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let request = empty(place)?;
        self.worker.0.began.store(now, Ordering::Relaxed);
        // Release: pairs with the Acquire in `progress`.
        self.worker.0.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(request)
    }

    /// Reports that request `number`, the last one taken, has ended. Called by the worker.
    pub fn report(&self, number: u32, ended: u64, panicked: bool) {
        let reported = self.worker.0.reported.load(Ordering::Relaxed);
        let cells = &self.reports.0[place_of(reported)];
        let flag = if panicked { PANICKED } else { 0 };
        cells.number.store(u64::from(number) | flag, Ordering::Relaxed);
        cells.began.store(self.worker.0.began.load(Ordering::Relaxed), Ordering::Relaxed);
        cells.ended.store(ended, Ordering::Relaxed);
        // Release: pairs with the Acquire in `collect`.
        self.worker.0.reported.store(reported.wrapping_add(1), Ordering::Release);
    }

    /// Records whether the worker looks for requests for the present. Called by the worker.
    pub fn set_resting(&self, rests: bool) {
        let rests = u32::from(rests);
        if self.worker.0.resting.load(Ordering::Relaxed) != rests {
            self.worker.0.resting.store(rests, Ordering::Relaxed);
        }
    }

    /// Returns whether the worker does not look: a hint.
    pub fn is_resting(&self) -> bool {
        self.worker.0.resting.load(Ordering::Relaxed) != 0
    }
}

impl<T> Drop for WorkerMailbox<T> {
    fn drop(&mut self) {
        for index in 0..PLACES as u32 {
            drop(self.take_back(index));
        }
    }
}

fn place_of(index: u32) -> usize {
    index as usize % PLACES
}

/// Takes out what is in a place.
fn empty<T>(place: &AtomicPtr<T>) -> Option<T> {
    // Acquire: pairs with the Release in `give`; for the dispatcher, which may be another thread
    // than the one that gave, the lock orders the two.
    let request = place.swap(ptr::null_mut(), Ordering::Acquire);
    if request.is_null() {
        return None;
    }
    // SAFETY: what is not null in a place is a pointer that `give` made of a box, and this swap
    // took it out: no other one returns it.
    Some(*unsafe { Box::from_raw(request) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn requests_arrive_in_order_and_the_newest_is_taken_back() {
        let mailbox = WorkerMailbox::new();
        (0..3u32).for_each(|index| mailbox.give(index, index * 10).unwrap());
        assert_eq!(mailbox.take(7), Some(0));
        assert_eq!(mailbox.progress(), (1, 7));
        assert_eq!(mailbox.take_back(2), Some(20));
        assert_eq!(mailbox.take_back(2), None);
        mailbox.give(2, 25).unwrap();
        assert_eq!([mailbox.take(8), mailbox.take(9), mailbox.take(9)], [Some(10), Some(25), None]);
        assert_eq!(mailbox.take_back(2), None, "the worker has it");
    }

    #[test]
    fn reports_have_what_the_worker_wrote_and_indices_wrap() {
        let mailbox = WorkerMailbox::new();
        for round in 0..20u32 {
            assert_eq!(mailbox.collect(round), None);
            mailbox.give(round, ()).unwrap();
            mailbox.take(u64::from(round)).unwrap();
            mailbox.report(round + 5, 100, round % 2 == 1);
            let report =
                Report { number: round + 5, began: round.into(), ended: 100, panicked: round % 2 == 1 };
            assert_eq!(mailbox.collect(round), Some(report));
        }
        assert_eq!(mailbox.reported(), 20);
    }

    #[test]
    fn a_full_mailbox_returns_the_request_and_drops_what_it_holds() {
        let mailbox = WorkerMailbox::new();
        let value = Rc::new(());
        (0..PLACES as u32).for_each(|index| mailbox.give(index, Rc::clone(&value)).unwrap());
        assert!(mailbox.give(PLACES as u32, Rc::clone(&value)).is_err());
        assert_eq!(Rc::strong_count(&value), 1 + PLACES);
        drop(mailbox);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn an_order_is_for_one_request() {
        let mailbox = WorkerMailbox::<()>::new();
        mailbox.order(Some(0));
        assert!(mailbox.is_ordered(0) && !mailbox.is_ordered(1));
        mailbox.order(None);
        assert!(!mailbox.is_ordered(0));
    }
}
