//! Waiting for the first of several channel operations.
//!
//! Two steps, of which the second is for a select that has to wait:
//!
//! 1. The select looks at all its channels without their locks ([`Look`](super::look)). If one
//!    operation looks ready, it is tried, under its channel's lock alone; of several, those are
//!    tried in random order. The first that can be completed is. An operation on a channel without
//!    room always looks ready.
//! 2. All channels are locked at once, in the order of their addresses, so that no two selects
//!    deadlock. Under the locks the operations are tried again, in random order. If none can be
//!    completed, each gets an entry in its channel's queue, all with one [`Sleeper`], and the locks
//!    are released. From then on a thread at the other side of one of the channels may complete
//!    that operation; the sleeper allows exactly one of them to do so.
//!
//! In both steps an operation that completes wakes the thread at the other side, then the other
//! operations are dropped, then the function of this one is called. So the user's code, destructors
//! included, runs while the select holds no lock and does not keep preemption off.
//!
//! A select fails or waits only after step 2, so at one moment none of its operations could be
//! completed. The locks are held with preemption off.
//!
//! Step 1 costs one locked instruction, that of the channel which it receives from or sends to, and
//! allocates nothing. The thread of a select that waits for one of n channels without a deadline
//! executes 2n - 1: n to lock the channels and n - 1 to withdraw the operations that were not
//! granted; also one for each operation that only looked ready. The thread that grants one executes
//! two. Step 2 allocates a block for each operation and one for their list.

use super::case::{Case, ReceivingEnd, SendingEnd};
use super::operation::{Receive, Send};
use super::plan::{Plan, Plans};
use super::{RecvError, SendError};
use crate::ground::guard::NoPreempt;
use crate::ground::random::Random;
use crate::records::runtime::deadline_after;
use crate::sync::queue::Sleeper;
use crate::verbs::wait;
use core::cell::Cell;
use std::time::Duration;
use tailwater_shm::{Cycles, clock};

/// Waits for the first of several sends and receives; exactly one is completed.
///
/// Each operation has a function that turns its outcome into the outcome of the select; often the
/// variant of an enum will do. If several operations can be completed at once, one of them is
/// chosen at random. An operation on a channel whose other side is gone is complete, with an error.
/// The functions that are not chosen are dropped before the chosen one is called.
///
/// A select is built and used once. One of up to four operations allocates nothing if one of them
/// can be completed at once and none of their functions captures more than a reference; otherwise
/// it allocates a small block per operation.
///
/// # Examples
/// ```
/// use tailwater::sync::channel::{self, RecvError, Select};
///
/// enum Event {
///     Number(Result<u32, RecvError>),
///     Word(Result<&'static str, RecvError>),
/// }
///
/// let (numbers, from_numbers) = channel::bounded(1);
/// let (_words, from_words) = channel::bounded(1);
/// numbers.send(7).unwrap();
/// match Select::new().recv(&from_numbers, Event::Number).recv(&from_words, Event::Word).wait() {
///     Event::Number(number) => assert_eq!(number, Ok(7)),
///     Event::Word(_) => unreachable!("no thread sent a word"),
/// }
/// ```
#[must_use = "a select does nothing until it is waited for"]
pub struct Select<'a, R> {
    plans: Plans<'a, R>,
}

impl<'a, R> Select<'a, R> {
    /// Returns a select without operations.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::Select;
    ///
    /// assert_eq!(Select::<()>::new().try_wait(), None);
    /// ```
    pub const fn new() -> Self {
        Self { plans: Plans::new() }
    }

    /// Adds a receive from `receiver`, of [`channel`](super) or of [`mpsc`](crate::sync::mpsc).
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, Select};
    ///
    /// let (one, from_one) = channel::unbounded();
    /// let (_other, from_other) = channel::unbounded();
    /// one.send(1).unwrap();
    /// let number = Select::new().recv(&from_one, |n| n).recv(&from_other, |n| n).wait();
    /// assert_eq!(number, Ok(1));
    /// ```
    #[inline]
    pub fn recv<E: ReceivingEnd>(
        mut self,
        receiver: &'a E,
        then: impl FnOnce(Result<E::Message, RecvError>) -> R + 'a,
    ) -> Self {
        self.plans.add(Receive::new(receiver.channel(), then));
        self
    }

    /// Adds a send to `sender`, of [`channel`](super) or of [`mpsc`](crate::sync::mpsc). The
    /// message is taken out of `message` if this operation is the one that completes, and stays
    /// there otherwise. Without a message the operation is left out.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, Select};
    ///
    /// let (sender, receiver) = channel::bounded(1);
    /// let mut next = Some("a message");
    /// assert!(Select::new().send(&sender, &mut next, |sent| sent.is_ok()).wait());
    /// assert_eq!((next, receiver.recv()), (None, Ok("a message")));
    /// ```
    #[inline]
    pub fn send<E: SendingEnd>(
        mut self,
        sender: &'a E,
        message: &'a mut Option<E::Message>,
        then: impl FnOnce(Result<(), SendError<E::Message>>) -> R + 'a,
    ) -> Self {
        if message.is_some() {
            self.plans.add(Send::new(sender.channel(), Cell::from_mut(message), then));
        }
        self
    }

    /// Waits until one of the operations is complete.
    ///
    /// # Panics
    /// If there is no operation: that would wait for ever. On a user thread within
    /// [`no_preempt`](crate::no_preempt), unless an operation can be completed at once.
    #[inline]
    pub fn wait(mut self) -> R {
        assert!(self.plans.len() > 0, "a select without operations waits for ever: add recv or send");
        if let Some(outcome) = self.take_ready() {
            return outcome;
        }
        self.run(true, None).expect("without a deadline only a complete operation ends the wait")
    }

    /// As [`wait`](Self::wait), for at most `timeout`; `None` if the time passed first. Without
    /// operations it sleeps for `timeout`.
    ///
    /// # Panics
    /// On a user thread within [`no_preempt`](crate::no_preempt), unless an operation can be
    /// completed at once.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tailwater::sync::channel::{self, Select};
    ///
    /// let (_sender, receiver) = channel::unbounded::<()>();
    /// let outcome = Select::new().recv(&receiver, |_| ()).wait_timeout(Duration::from_millis(1));
    /// assert_eq!(outcome, None);
    /// ```
    #[inline]
    pub fn wait_timeout(mut self, timeout: Duration) -> Option<R> {
        self.take_ready().or_else(|| self.run(true, Some(deadline_after(timeout))))
    }

    /// Completes one of the operations if that is possible without waiting; `None` if it is not.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, Select};
    ///
    /// let (_sender, receiver) = channel::unbounded::<u32>();
    /// let number = Select::new().recv(&receiver, |n| n.unwrap()).try_wait().unwrap_or(0);
    /// assert_eq!(number, 0);
    /// ```
    #[inline]
    pub fn try_wait(mut self) -> Option<R> {
        self.take_ready().or_else(|| self.run(false, None))
    }

    /// Completes one of the operations that look ready, if that is possible: step 1.
    #[inline]
    fn take_ready(&mut self) -> Option<R> {
        let (mut ready, mut last) = (0, 0);
        self.plans.ready().for_each(|number| (ready, last) = (ready + 1, number));
        match ready {
            0 => None,
            1 => self.plans.attempt(last),
            _ => self.take_one_of_several(),
        }
    }

    /// Tries the operations that look ready, in random order.
    fn take_one_of_several(&mut self) -> Option<R> {
        let count = self.plans.len();
        (0..count).find_map(|number| {
            self.plans.swap(number, random_from(number, count));
            self.plans.plan(number).looks_ready().then(|| self.plans.attempt(number)).flatten()
        })
    }

    /// Completes one of the operations, waiting for it if that is allowed: step 2.
    #[inline(never)]
    pub(super) fn run(&mut self, may_wait: bool, deadline: Option<Cycles>) -> Option<R> {
        if may_wait {
            wait::check_may_block(&NoPreempt::new());
        }
        let mut cases = Cases::of(&mut self.plans);
        let sleeper = Sleeper::new();
        cases.lock();
        let mut chosen = cases.attempt();
        if chosen.is_some() || !may_wait {
            cases.unlock();
            if let Some(number) = chosen {
                // Before any of the user's code runs: that may need the thread's sleeper, which is
                // locked until this.
                cases.0[number].wake();
            }
        } else {
            // SAFETY: no other thread knows the sleeper before the cases are enlisted.
            let asleep = unsafe { sleeper.hold() };
            for (number, case) in cases.0.iter().enumerate() {
                // SAFETY: the case stays in its box, and the sleeper in this frame, until all but
                // the one granted have been withdrawn below. Nothing between here and there panics:
                // the caller may block.
                unsafe { case.enlist(&raw const sleeper, number) };
            }
            cases.unlock();
            chosen = asleep.sleep(deadline);
            cases.withdraw_others(chosen);
        }
        cases.end(chosen)
    }
}

/// The operations of a select that may have to wait.
struct Cases<'a, R>(Vec<Box<dyn Case<R> + 'a>>);

impl<'a, R> Cases<'a, R> {
    /// Takes all operations out of the select.
    fn of(plans: &mut Plans<'a, R>) -> Self {
        let mut cases = Vec::with_capacity(plans.len());
        cases.extend(plans.iter_mut().filter_map(Plan::take_case));
        Self(cases)
    }

    /// Locks every channel once, in the order of their addresses.
    fn lock(&mut self) {
        self.0.sort_unstable_by_key(|case| case.address());
        let mut last: Option<(*const (), *mut ())> = None;
        for case in &self.0 {
            let address = case.address();
            let held = last.filter(|(last, _)| *last == address).map(|(_, lock)| lock);
            // SAFETY: `held` comes from a case of the same channel; all are unlocked together.
            last = Some((address, unsafe { case.lock(held) }));
        }
    }

    fn unlock(&self) {
        self.0.iter().for_each(|case| case.unlock());
    }

    /// Tries the operations in random order, into which it brings them; returns the number of the
    /// one that was completed.
    fn attempt(&mut self) -> Option<usize> {
        let count = self.0.len();
        (0..count).find(|&number| {
            self.0.swap(number, random_from(number, count));
            self.0[number].attempt()
        })
    }

    /// Takes all operations but `granted` out of their queues.
    fn withdraw_others(&self, granted: Option<usize>) {
        let others = self.0.iter().enumerate().filter(|(number, _)| Some(*number) != granted);
        others.for_each(|(_, case)| case.withdraw());
    }

    /// Ends all operations; returns the outcome of `complete`.
    fn end(mut self, complete: Option<usize>) -> Option<R> {
        let complete = complete.map(|number| self.0.swap_remove(number));
        self.0.into_iter().for_each(Case::abandon);
        complete.map(Case::complete)
    }
}

/// Returns a random number from `number` up to `count`, exclusive. In random order means that each
/// operation in turn changes places with the one of that number (Fisher and Yates): those that
/// cannot be completed do not skew the choice among the others.
fn random_from(number: usize, count: usize) -> usize {
    if number + 1 == count {
        return number;
    }
    thread_local! {
        static RANDOM: Random = Random::new(clock::now());
    }
    number + RANDOM.with(|random| random.below(count - number))
}

impl<R> Default for Select<'_, R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> core::fmt::Debug for Select<'_, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Select").field("operations", &self.plans.len()).finish_non_exhaustive()
    }
}
