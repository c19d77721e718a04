//! Waiting for the first of several channel operations.
//!
//! All channels concerned are locked at once, in the order of their addresses, so that no two
//! selects deadlock. Under the locks the operations are tried, beginning with a random one; the
//! first that can be completed is. If none can, each gets an entry in its channel's queue, all with
//! one [`Sleeper`], and the locks are released. From then on a thread at the other side of one of
//! the channels may complete that operation; the sleeper allows exactly one of them to do so.
//!
//! The locks are held with preemption off. A select of two operations of which one can be completed
//! at once takes about 100 ns in all, including building it (the book's page "Measured").

use super::case::{Case, Receive, ReceivingEnd, Send, SendingEnd};
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
///
/// A select is built and used once. It allocates a small block per operation.
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
    cases: Vec<Box<dyn Case<R> + 'a>>,
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
        Self { cases: Vec::new() }
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
    pub fn recv<E: ReceivingEnd>(
        mut self,
        receiver: &'a E,
        then: impl FnOnce(Result<E::Message, RecvError>) -> R + 'a,
    ) -> Self {
        self.cases.push(Box::new(Receive::new(receiver.channel(), then)));
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
    pub fn send<E: SendingEnd>(
        mut self,
        sender: &'a E,
        message: &'a mut Option<E::Message>,
        then: impl FnOnce(Result<(), SendError<E::Message>>) -> R + 'a,
    ) -> Self {
        if message.is_some() {
            self.cases.push(Box::new(Send::new(sender.channel(), Cell::from_mut(message), then)));
        }
        self
    }

    /// Waits until one of the operations is complete.
    ///
    /// # Panics
    /// If there is no operation: that would wait for ever. On a user thread that holds a
    /// [`SpinLock`](crate::sync::spin::SpinLock).
    pub fn wait(self) -> R {
        assert!(!self.cases.is_empty(), "a select without operations waits for ever: add recv or send");
        self.run(true, None).expect("without a deadline only a complete operation ends the wait")
    }

    /// As [`wait`](Self::wait), for at most `timeout`; `None` if the time passed first. Without
    /// operations it sleeps for `timeout`.
    ///
    /// # Panics
    /// On a user thread that holds a [`SpinLock`](crate::sync::spin::SpinLock).
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
    pub fn wait_timeout(self, timeout: Duration) -> Option<R> {
        self.run(true, Some(deadline_after(timeout)))
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
    pub fn try_wait(self) -> Option<R> {
        self.run(false, None)
    }

    fn run(mut self, may_wait: bool, deadline: Option<Cycles>) -> Option<R> {
        if may_wait {
            wait::check_may_block(&NoPreempt::new());
        }
        self.cases.sort_unstable_by_key(|case| case.channel().address());
        let sleeper = Sleeper::new();
        self.lock();
        let mut chosen = self.attempt();
        let enlist = chosen.is_none() && may_wait;
        if enlist {
            for (number, case) in self.cases.iter().enumerate() {
                // SAFETY: the case stays in its box, and the sleeper in this frame, until all but
                // the one granted have been withdrawn below. Nothing between here and there panics:
                // the caller may block.
                unsafe { case.enlist(&raw const sleeper, number) };
            }
        }
        self.cases.iter().for_each(|case| case.channel().unlock());
        if enlist {
            chosen = sleeper.sleep(deadline);
            let others = self.cases.iter().enumerate().filter(|(number, _)| Some(*number) != chosen);
            others.for_each(|(_, case)| case.withdraw());
        }
        let chosen = chosen.map(|number| self.cases.swap_remove(number));
        self.cases.into_iter().for_each(Case::abandon);
        chosen.map(Case::complete)
    }

    /// Locks every channel once. The cases are sorted by channel.
    fn lock(&self) {
        let mut last: Option<(*const (), *mut ())> = None;
        for channel in self.cases.iter().map(|case| case.channel()) {
            let held = last.filter(|(address, _)| *address == channel.address()).map(|(_, lock)| lock);
            // SAFETY: `held` comes from a case of the same channel; all are unlocked together.
            last = Some((channel.address(), unsafe { channel.lock(held) }));
        }
    }

    /// Tries the operations in turn, beginning with a random one; returns the number of the one
    /// that was completed.
    fn attempt(&self) -> Option<usize> {
        let count = self.cases.len();
        let start = random(count);
        (0..count).map(|i| (start + i) % count).find(|&number| self.cases[number].attempt())
    }
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
        f.debug_struct("Select").field("operations", &self.cases.len()).finish_non_exhaustive()
    }
}
