//! The asynchronous methods of events, notifications, semaphores and channels.
//!
//! A change wakes all futures that wait for it, and each tries again: one that was woken and then
//! dropped takes nothing with it. Futures that wait for a semaphore have a place in its queue
//! instead, and one that is dropped gives back what it was granted.

use super::operation::{Operation, Wait};
use crate::sync::channel::{
    Channel, Receiver, ReceivingEnd, RecvError, SendError, Sender, TryRecvError, TrySendError,
};
use crate::sync::queue::Queued;
use crate::sync::{Event, Notify, Semaphore, SemaphorePermit, mpsc};
use crate::verbs::watch::Watchers;
use core::future::Future;
use std::sync::Arc;

#[derive(Debug)]
struct Set<'a>(&'a Event);

impl Operation for Set<'_> {
    type Output = ();

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<()> {
        self.0.is_set_or(arm).then_some(())
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        self.0.with_watchers(|watchers, _| change(watchers));
    }
}

impl Event {
    /// Returns a future that is ready while the event is set. One that waits when the event is set
    /// is woken; if the event is reset before it runs, it waits again.
    ///
    /// # Examples
    /// ```
    /// let event = tailwater::sync::Event::new();
    /// event.set();
    /// tailwater::future::block_on(event.wait_async());
    /// ```
    pub fn wait_async(&self) -> impl Future<Output = ()> + Send {
        Wait::new(Set(self))
    }
}

#[derive(Debug)]
struct Notified<'a> {
    notify: &'a Notify,
    /// Written while the future waits.
    seen: Option<u64>,
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if self.seen.is_some() {
            self.notify.end_future();
        }
    }
}

impl Operation for Notified<'_> {
    type Output = ();

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<()> {
        self.notify.try_wait_or(&mut self.seen, arm).then_some(())
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        self.notify.with_watchers(|watchers, _| change(watchers));
    }
}

impl Notify {
    /// Returns a future that takes a notification. It waits from its first poll on: a later
    /// [`notify_waiters`](Self::notify_waiters) reaches it, and each
    /// [`notify_one`](Self::notify_one) lets another one of several pass.
    ///
    /// # Examples
    /// ```
    /// let notify = tailwater::sync::Notify::new();
    /// notify.notify_one();
    /// tailwater::future::block_on(notify.wait_async());
    /// assert!(!notify.try_wait(), "taken");
    /// ```
    pub fn wait_async(&self) -> impl Future<Output = ()> + Send {
        Wait::new(Notified { notify: self, seen: None })
    }
}

#[derive(Debug)]
struct Acquire<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
    /// While the future waits.
    queued: Option<Arc<Queued<usize>>>,
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(queued) = self.queued.take() {
            self.semaphore.leave(&queued, self.permits);
        }
    }
}

impl<'a> Operation for Acquire<'a> {
    type Output = SemaphorePermit<'a>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<SemaphorePermit<'a>> {
        if self.queued.is_none() {
            self.queued = self.semaphore.take_or_queue(self.permits);
        }
        let granted = self.queued.as_ref().is_none_or(|queued| queued.granted_or(arm));
        granted.then(|| {
            self.queued = None;
            self.semaphore.permit(self.permits)
        })
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        // A call that was granted has no watchers any more.
        if let Some(queued) = &self.queued {
            queued.with_watchers(change);
        }
    }
}

impl Semaphore {
    /// As [`acquire`](Self::acquire), as a future. Futures and threads are served in the order in
    /// which they began to wait. One that is dropped leaves the queue.
    ///
    /// # Examples
    /// ```
    /// use tailwater::future::block_on;
    ///
    /// let tables = tailwater::sync::Semaphore::new(1);
    /// let permit = block_on(tables.acquire_async());
    /// assert!(tables.try_acquire().is_none());
    /// drop(permit);
    /// ```
    pub fn acquire_async(&self) -> impl Future<Output = SemaphorePermit<'_>> + Send {
        self.acquire_many_async(1)
    }

    /// As [`acquire_many`](Self::acquire_many), as a future: see
    /// [`acquire_async`](Self::acquire_async).
    ///
    /// # Examples
    /// ```
    /// let semaphore = tailwater::sync::Semaphore::new(5);
    /// let permit = tailwater::future::block_on(semaphore.acquire_many_async(3));
    /// assert_eq!((permit.permits(), semaphore.available_permits()), (3, 2));
    /// ```
    pub fn acquire_many_async(&self, permits: usize) -> impl Future<Output = SemaphorePermit<'_>> + Send {
        Wait::new(Acquire { semaphore: self, permits, queued: None })
    }
}

#[derive(Debug)]
struct Receive<'a, T>(&'a Channel<T>);

impl<T> Operation for Receive<'_, T> {
    type Output = Result<T, RecvError>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<Result<T, RecvError>> {
        match self.0.try_receive_or(arm) {
            Ok(message) => Some(Ok(message)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
            Err(TryRecvError::Empty) => None,
        }
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        self.0.with_readable(|watchers, _, _| change(watchers));
    }
}

impl<T: Send> Receiver<T> {
    /// As [`recv`](Self::recv), as a future. A message is taken by the poll that returns it, so a
    /// future that is dropped loses none.
    ///
    /// # Errors
    /// If the channel is empty and has no sender any more.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = tailwater::sync::channel::unbounded();
    /// sender.send(1).unwrap();
    /// assert_eq!(tailwater::future::block_on(receiver.recv_async()), Ok(1));
    /// ```
    pub fn recv_async(&self) -> impl Future<Output = Result<T, RecvError>> + Send {
        Wait::new(Receive(self.channel()))
    }
}

impl<T: Send> mpsc::Receiver<T> {
    /// As [`recv`](Self::recv), as a future.
    ///
    /// # Errors
    /// If the channel is empty and has no sender any more.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = tailwater::sync::mpsc::channel();
    /// sender.send(1).unwrap();
    /// assert_eq!(tailwater::future::block_on(receiver.recv_async()), Ok(1));
    /// ```
    pub fn recv_async(&self) -> impl Future<Output = Result<T, RecvError>> + Send {
        Wait::new(Receive(ReceivingEnd::channel(self)))
    }
}

#[derive(Debug)]
struct SendOne<'a, T> {
    channel: &'a Channel<T>,
    message: Option<T>,
}

impl<T> Operation for SendOne<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn attempt(&mut self, arm: impl FnOnce(&mut Watchers)) -> Option<Result<(), SendError<T>>> {
        let message = self.message.take().expect("a future is not polled after it is ready");
        match self.channel.try_send_or(message, arm) {
            Ok(()) => Some(Ok(())),
            Err(TrySendError::Disconnected(message)) => Some(Err(SendError(message))),
            Err(TrySendError::Full(message)) => {
                self.message = Some(message);
                None
            }
        }
    }

    fn with_watchers(&self, change: impl FnOnce(&mut Watchers)) {
        self.channel.with_writable(|watchers, _, _| change(watchers));
    }
}

impl<T: Send> Sender<T> {
    /// As [`send`](Self::send), as a future. One that is dropped before it is ready has not sent.
    ///
    /// # Errors
    /// If the channel has no receiver any more; the error holds the message.
    ///
    /// # Panics
    /// On a channel with capacity 0: two futures would never meet there, because neither waits in
    /// the channel. Use a capacity of 1, or [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = tailwater::sync::channel::bounded(1);
    /// tailwater::future::block_on(sender.send_async(1)).unwrap();
    /// assert_eq!(receiver.recv(), Ok(1));
    /// ```
    pub fn send_async(&self, message: T) -> impl Future<Output = Result<(), SendError<T>>> + Send {
        assert!(
            self.capacity() != Some(0),
            "send_async needs a channel with a capacity of at least 1: use bounded(1), or send"
        );
        Wait::new(SendOne { channel: self.channel(), message: Some(message) })
    }
}
