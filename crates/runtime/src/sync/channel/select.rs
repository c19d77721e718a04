//! Waiting for the first of several channel operations.
//!
//! Two steps, of which the second is for a select that has to wait:
//!
//! 1. The select looks at all its channels without their locks ([`Look`](super::look)). If one
//!    operation looks ready, it is tried, under its channel's lock alone; of several, those are
//!    tried in turn, beginning with a random one. The first that can be completed is.
//! 2. All channels are locked at once, in the order of their addresses, so that no two selects
//!    deadlock. Under the locks the operations are tried again, beginning with a random one. If
//!    none can be completed, each gets an entry in its channel's queue, all with one [`Sleeper`],
//!    and the locks are released. From then on a thread at the other side of one of the channels
//!    may complete that operation; the sleeper allows exactly one of them to do so.
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
use super::plan::Plan;
use super::{RecvError, SendError};
use crate::ground::guard::NoPreempt;
use crate::ground::random::Random;
use crate::records::runtime::deadline_after;
use crate::sync::queue::Sleeper;
use crate::verbs::wait;
use core::cell::Cell;
use core::mem;
use std::time::Duration;
use tailwater_shm::{Cycles, clock};

/// Number of operations that lie in the select itself.
const IN_PLACE: usize = 4;

/// Waits for the first of several sends and receives; exactly one is completed.
///
/// Each operation has a function that turns its outcome into the outcome of the select; often the
/// variant of an enum will do. If several operations can be completed at once, one of them is
/// chosen at random. An operation on a channel whose other side is gone is complete, with an error.
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
    /// The first operations; the others are empty.
    first: [Plan<'a, R>; IN_PLACE],
    /// The operations after these.
    more: Vec<Plan<'a, R>>,
    count: usize,
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
        Self { first: [const { Plan::EMPTY }; IN_PLACE], more: Vec::new(), count: 0 }
    }

    #[inline]
    fn add(&mut self, plan: Plan<'a, R>) {
        match self.first.get_mut(self.count) {
            // The place is empty; to drop that plan would be a call and keep the select in memory.
            Some(place) => mem::forget(mem::replace(place, plan)),
            None => self.more.push(plan),
        }
        self.count += 1;
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
        self.add(Plan::new(Receive::new(receiver.channel(), then)));
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
            self.add(Plan::new(Send::new(sender.channel(), Cell::from_mut(message), then)));
        }
        self
    }

    /// Waits until one of the operations is complete.
    ///
    /// # Panics
    /// If there is no operation: that would wait for ever. On a user thread that holds a
    /// [`SpinLock`](crate::sync::spin::SpinLock), unless an operation can be completed at once.
    #[inline]
    pub fn wait(mut self) -> R {
        assert!(self.count > 0, "a select without operations waits for ever: add recv or send");
        if let Some(outcome) = self.take_ready() {
            return outcome;
        }
        self.run(true, None).expect("without a deadline only a complete operation ends the wait")
    }

    /// As [`wait`](Self::wait), for at most `timeout`; `None` if the time passed first. Without
    /// operations it sleeps for `timeout`.
    ///
    /// # Panics
    /// On a user thread that holds a [`SpinLock`](crate::sync::spin::SpinLock), unless an operation
    /// can be completed at once.
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
        self.first.iter().chain(&self.more).enumerate().for_each(|(number, plan)| {
            if plan.looks_ready() {
                (ready, last) = (ready + 1, number);
            }
        });
        match ready {
            0 => None,
            1 => self.plan(last).attempt(),
            _ => self.take_one_of_several(),
        }
    }

    /// Tries the operations that look ready in turn, beginning with a random one.
    fn take_one_of_several(&mut self) -> Option<R> {
        in_turn(self.count).find_map(|number| {
            let plan = self.plan(number);
            plan.looks_ready().then(|| plan.attempt()).flatten()
        })
    }

    #[inline]
    fn plan(&mut self, number: usize) -> &mut Plan<'a, R> {
        match number.checked_sub(IN_PLACE) {
            None => &mut self.first[number],
            Some(number) => &mut self.more[number],
        }
    }

    /// Completes one of the operations, waiting for it if that is allowed: step 2.
    #[inline(never)]
    fn run(&mut self, may_wait: bool, deadline: Option<Cycles>) -> Option<R> {
        if may_wait {
            wait::check_may_block(&NoPreempt::new());
        }
        let cases = Cases::of(self);
        let sleeper = Sleeper::new();
        cases.lock();
        let mut chosen = cases.attempt();
        if chosen.is_some() || !may_wait {
            cases.unlock();
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

/// The operations of a select that may have to wait, in the order of their channels' addresses.
struct Cases<'a, R>(Vec<Box<dyn Case<R> + 'a>>);

impl<'a, R> Cases<'a, R> {
    /// Takes all operations out of the select.
    fn of(select: &mut Select<'a, R>) -> Self {
        let mut cases = Vec::with_capacity(select.count);
        cases.extend(select.first.iter_mut().chain(&mut select.more).filter_map(Plan::take_case));
        cases.sort_unstable_by_key(|case| case.channel().address());
        Self(cases)
    }

    /// Locks every channel once.
    fn lock(&self) {
        let mut last: Option<(*const (), *mut ())> = None;
        for channel in self.0.iter().map(|case| case.channel()) {
            let address = channel.address();
            let held = last.filter(|(last, _)| *last == address).map(|(_, lock)| lock);
            // SAFETY: `held` comes from a case of the same channel; all are unlocked together.
            last = Some((address, unsafe { channel.lock(held) }));
        }
    }

    fn unlock(&self) {
        self.0.iter().for_each(|case| case.channel().unlock());
    }

    /// Tries the operations in turn, beginning with a random one; returns the number of the one
    /// that was completed.
    fn attempt(&self) -> Option<usize> {
        in_turn(self.0.len()).find(|&number| self.0[number].attempt())
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

/// Returns the numbers below `count` in turn, beginning with a random one.
fn in_turn(count: usize) -> impl Iterator<Item = usize> {
    let start = random(count);
    (start..count).chain(0..start)
}

/// Returns a random number below `count`.
fn random(count: usize) -> usize {
    thread_local! {
        static RANDOM: Random = Random::new(clock::now());
    }
    RANDOM.with(|random| random.below(count))
}

impl<R> Default for Select<'_, R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> core::fmt::Debug for Select<'_, R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Select").field("operations", &self.count).finish_non_exhaustive()
    }
}
