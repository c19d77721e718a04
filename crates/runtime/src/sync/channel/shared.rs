//! The state that both ends of a channel share: the messages, and the calls that wait at either
//! end.
//!
//! Everything but [`Look`] is under one spin lock. A call that can be completed is one short
//! section; one that cannot queues, with its message or for one, and a thread at the other end
//! completes it (see [`queue`](crate::sync::queue)).
//!
//! # Invariants (under the lock)
//! * Calls wait to receive only while there is no message and no call waits to send.
//! * Calls wait to send only while the channel is full; so each message taken makes room for
//!   exactly one of them.
//! * Messages leave in the order in which their sends completed; calls complete in the order in
//!   which they began to wait.
//! * Messages are dropped and threads are woken outside the lock where possible: grants are
//!   returned to the caller.

use super::look::Look;
use super::messages::Messages;
use super::{RecvTimeoutError, SendTimeoutError, TryRecvError, TrySendError};
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::runtime::deadline_after;
use crate::sync::queue::{self, Grant, Queue};
use crate::verbs::switch::poll;
use crate::verbs::wait::WAKE_BATCH;
use crate::verbs::watch::Watchers;
use core::mem;
use std::sync::Arc;
use std::time::Duration;

/// A call that was completed by the other side, and is woken when this is dropped.
pub(super) type Wake<'g, T> = Grant<'g, Option<T>>;

#[derive(Debug)]
pub(super) struct State<T> {
    messages: Messages<T>,
    /// Maximum number of messages; `None` if unbounded.
    capacity: Option<usize>,
    senders: usize,
    receivers: usize,
    /// Calls with a message each. After completion the message is gone, after disconnection it is
    /// still there.
    pub(super) sending: Queue<Option<T>>,
    /// Calls for a message each. After completion the message is there, after disconnection there
    /// is none.
    pub(super) receiving: Queue<Option<T>>,
    /// Watchers of whether a receive would wait.
    readable: Watchers,
    /// Watchers of whether a send would wait.
    writable: Watchers,
}

impl<T> State<T> {
    /// Sends without waiting. Returns the receiving call that this completed, if any. `look` is the
    /// channel's.
    #[inline]
    pub(super) fn send<'g>(&mut self, message: T, look: &Look) -> Result<Option<Wake<'g, T>>, TrySendError<T>>
    where
        T: 'g,
    {
        if self.receivers == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if let Some(mut receiver) = self.receiving.pop() {
            *receiver.payload() = Some(message);
            return Ok(Some(receiver));
        }
        if self.capacity.is_some_and(|capacity| self.messages.len() >= capacity) {
            return Err(TrySendError::Full(message));
        }
        self.messages.push_back(message);
        look.set_len(self.messages.len());
        self.readable.notify();
        Ok(None)
    }

    /// Notes that a call is about to wait in `sending`: on a channel without room, that is the
    /// message that can be received.
    pub(super) fn note_sending(&mut self) {
        self.readable.notify();
    }

    /// Notes that a call is about to wait in `receiving`: on a channel without room, that is the
    /// room.
    pub(super) fn note_receiving(&mut self) {
        self.writable.notify();
    }

    /// Returns whether a receive would not wait.
    fn is_readable(&self) -> bool {
        self.messages.len() > 0 || !self.sending.is_empty() || self.senders == 0
    }

    /// Returns whether a send would not wait.
    fn is_writable(&self) -> bool {
        self.receivers == 0
            || !self.receiving.is_empty()
            || self.capacity.is_none_or(|capacity| self.messages.len() < capacity)
    }

    /// Receives without waiting. Returns the sending call that this completed, if any. `look` is
    /// the channel's.
    #[inline]
    pub(super) fn receive<'g>(&mut self, look: &Look) -> Result<(T, Option<Wake<'g, T>>), TryRecvError>
    where
        T: 'g,
    {
        let first = self.messages.pop_front();
        let sender = if self.sending.is_empty() { None } else { self.sending.pop() };
        let Some(mut sender) = sender else {
            return match first {
                Some(message) => {
                    look.set_len(self.messages.len());
                    self.writable.notify();
                    Ok((message, None))
                }
                None if self.senders == 0 => Err(TryRecvError::Disconnected),
                None => Err(TryRecvError::Empty),
            };
        };
        let brought = sender.payload().take().expect("a call that waits to send has its message");
        let message = match first {
            Some(first) => {
                self.messages.push_back(brought);
                first
            }
            None => brought,
        };
        Ok((message, Some(sender)))
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Channel<T> {
    pub(super) look: Look,
    pub(super) state: SpinLock<State<T>>,
}

impl<T> Channel<T> {
    /// Returns a channel with one sender and one receiver.
    pub(super) fn new(capacity: Option<usize>) -> Arc<Self> {
        let state = State {
            messages: Messages::new(capacity),
            capacity,
            senders: 1,
            receivers: 1,
            sending: Queue::new(),
            receiving: Queue::new(),
            readable: Watchers::new(),
            writable: Watchers::new(),
        };
        Arc::new(Self { look: Look::new(capacity), state: SpinLock::new(state) })
    }

    #[inline]
    pub(super) fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.state.lock();
        let result = state.send(message, &self.look);
        drop(state);
        result.map(drop)
    }

    /// Sends, waiting for at most `timeout`; without one, as long as necessary.
    #[inline]
    pub(super) fn send(&self, message: T, timeout: Option<Duration>) -> Result<(), SendTimeoutError<T>> {
        let mut state = self.state.lock();
        let message = match state.send(message, &self.look) {
            Ok(receiver) => {
                drop(state);
                drop(receiver);
                return Ok(());
            }
            Err(TrySendError::Disconnected(message)) => return Err(SendTimeoutError::Disconnected(message)),
            Err(TrySendError::Full(message)) => message,
        };
        state.note_sending();
        let deadline = timeout.map(deadline_after);
        // SAFETY: always the queue of senders, which stays in the channel's state.
        match unsafe { queue::wait_in(state, |state| &mut state.sending, Some(message), deadline) } {
            (_, None) => Ok(()),
            (true, Some(message)) => Err(SendTimeoutError::Disconnected(message)),
            (false, Some(message)) => Err(SendTimeoutError::Timeout(message)),
        }
    }

    #[inline]
    pub(super) fn try_receive(&self) -> Result<T, TryRecvError> {
        let mut state = self.state.lock();
        let result = state.receive(&self.look);
        drop(state);
        result.map(|(message, _)| message)
    }

    /// Receives, waiting for at most `timeout`; without one, as long as necessary.
    #[inline]
    pub(super) fn receive(&self, timeout: Option<Duration>) -> Result<T, RecvTimeoutError> {
        let mut state = self.state.lock();
        match state.receive(&self.look) {
            Ok((message, sender)) => {
                drop(state);
                drop(sender);
                return Ok(message);
            }
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => {}
        }
        state.note_receiving();
        let deadline = timeout.map(deadline_after);
        // SAFETY: always the queue of receivers, which stays in the channel's state.
        match unsafe { queue::wait_in(state, |state| &mut state.receiving, None, deadline) } {
            (_, Some(message)) => Ok(message),
            (true, None) => Err(RecvTimeoutError::Disconnected),
            (false, None) => Err(RecvTimeoutError::Timeout),
        }
    }

    /// Receives, or calls `arm` with the watchers of messages, locked.
    pub(crate) fn try_receive_or(&self, arm: impl FnOnce(&mut Watchers)) -> Result<T, TryRecvError> {
        let mut state = self.state.lock();
        let result = state.receive(&self.look);
        if matches!(result, Err(TryRecvError::Empty)) {
            arm(&mut state.readable);
        }
        drop(state);
        result.map(|(message, _)| message)
    }

    /// Sends, or calls `arm` with the watchers of room, locked.
    pub(crate) fn try_send_or(
        &self,
        message: T,
        arm: impl FnOnce(&mut Watchers),
    ) -> Result<(), TrySendError<T>> {
        let mut state = self.state.lock();
        let result = state.send(message, &self.look);
        if matches!(result, Err(TrySendError::Full(_))) {
            arm(&mut state.writable);
        }
        drop(state);
        result.map(drop)
    }

    /// Calls `change` with the watchers of messages, locked, and whether a receive would not wait
    /// and no sender is left.
    pub(crate) fn with_readable<R>(&self, change: impl FnOnce(&mut Watchers, bool, bool) -> R) -> R {
        let mut state = self.state.lock();
        let (ready, over) = (state.is_readable(), state.senders == 0);
        change(&mut state.readable, ready, over)
    }

    /// Calls `change` with the watchers of room, locked, and whether a send would not wait and no
    /// receiver is left.
    pub(crate) fn with_writable<R>(&self, change: impl FnOnce(&mut Watchers, bool, bool) -> R) -> R {
        let mut state = self.state.lock();
        let (ready, over) = (state.is_writable(), state.receivers == 0);
        change(&mut state.writable, ready, over)
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.state.lock().capacity
    }

    pub(super) fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.capacity.is_some_and(|capacity| state.messages.len() >= capacity)
    }

    pub(super) fn add_sender(&self) {
        self.state.lock().senders += 1;
    }

    pub(super) fn add_receiver(&self) {
        self.state.lock().receivers += 1;
    }

    /// Removes a sender. The last one wakes the threads that wait for a message, and closes the
    /// watchers of room.
    pub(super) fn remove_sender(&self) {
        let mut state = self.state.lock();
        state.senders -= 1;
        if state.senders == 0 {
            self.look.close_sending();
            state.readable.notify();
            state.writable.close();
            self.wake_all(state, |state| &mut state.receiving);
        }
    }

    /// Removes a receiver. The last one wakes the threads that wait to send, and drops the messages
    /// in the channel.
    pub(super) fn remove_receiver(&self) {
        let mut state = self.state.lock();
        state.receivers -= 1;
        if state.receivers > 0 {
            return;
        }
        self.look.close_receiving();
        state.writable.notify();
        // No receiver is left that could be ready.
        state.readable.close();
        let unreceived = mem::replace(&mut state.messages, Messages::new(Some(0)));
        self.look.set_len(0);
        self.wake_all(state, |state| &mut state.sending);
        // Outside the lock: the messages' destructors may do anything, also use this channel.
        drop(unreceived);
    }

    /// Ends all calls in a queue to which no call is added any more, in batches between which it
    /// unlocks and passes a poll point.
    fn wake_all<'a>(
        &'a self,
        mut state: SpinGuard<'a, State<T>>,
        queue: impl Fn(&mut State<T>) -> &mut Queue<Option<T>>,
    ) {
        // Each turn but the last takes a batch out of a queue that does not grow.
        while (0..WAKE_BATCH).all(|_| queue(&mut state).pop().is_some()) {
            drop(state);
            poll();
            state = self.state.lock();
        }
    }
}
