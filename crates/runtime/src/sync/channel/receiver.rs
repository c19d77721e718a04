//! The receiving end of a channel.

use super::shared::Channel;
use super::{RecvError, RecvTimeoutError, TryRecvError};
use crate::sync::iterators::iterators;
use core::fmt;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// Receives messages from a channel; made by [`bounded`](super::bounded) and
/// [`unbounded`](super::unbounded). Each message goes to one of the clones.
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::channel::unbounded();
/// let other = receiver.clone();
/// (1..=2).for_each(|n| sender.send(n).unwrap());
/// assert_eq!((receiver.recv(), other.recv()), (Ok(1), Ok(2)));
/// assert!(receiver.try_recv().is_err());
/// ```
pub struct Receiver<T> {
    pub(super) channel: Arc<Channel<T>>,
}

impl<T> UnwindSafe for Receiver<T> {}
impl<T> RefUnwindSafe for Receiver<T> {}

impl<T> Receiver<T> {
    /// Returns an end that the caller has counted already.
    pub(super) fn new(channel: Arc<Channel<T>>) -> Self {
        Self { channel }
    }

    /// Returns what both ends share.
    pub(crate) fn channel(&self) -> &Arc<Channel<T>> {
        &self.channel
    }

    /// Receives, waiting while the channel is empty.
    ///
    /// # Errors
    /// If the channel is empty and has no sender any more.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, RecvError};
    ///
    /// let (sender, receiver) = channel::unbounded();
    /// sender.send(1).unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv(), Ok(1));
    /// assert_eq!(receiver.recv(), Err(RecvError));
    /// ```
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.channel.receive(None).map_err(|_| RecvError)
    }

    /// Receives without waiting: a message in the channel, or that of a thread that waits to send.
    ///
    /// # Errors
    /// `Empty` or `Disconnected`.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, TryRecvError};
    ///
    /// let (sender, receiver) = channel::unbounded();
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.channel.try_receive()
    }

    /// As [`recv`](Self::recv), for at most `timeout`.
    ///
    /// # Errors
    /// `Timeout` or `Disconnected`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tailwater::sync::channel::{self, RecvTimeoutError};
    ///
    /// let (sender, receiver) = channel::unbounded::<()>();
    /// let timeout = Duration::from_millis(1);
    /// assert_eq!(receiver.recv_timeout(timeout), Err(RecvTimeoutError::Timeout));
    /// drop(sender);
    /// assert_eq!(receiver.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected));
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.channel.receive(Some(timeout))
    }

    /// Returns an iterator over the messages, which waits for each until there is no sender any
    /// more.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = tailwater::sync::channel::unbounded();
    /// (0..3).for_each(|n| sender.send(n).unwrap());
    /// drop(sender);
    /// assert_eq!(receiver.iter().sum::<i32>(), 3);
    /// ```
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// Returns an iterator over the messages in the channel, without waiting.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = tailwater::sync::channel::unbounded();
    /// (1..4).for_each(|n| sender.send(n).unwrap());
    /// assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// ```
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }

    /// Returns the number of messages in the channel.
    pub fn len(&self) -> usize {
        self.channel.len()
    }

    /// Returns whether the channel holds no message; always true with capacity 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the channel is full; always true with capacity 0.
    pub fn is_full(&self) -> bool {
        self.channel.is_full()
    }

    /// Returns the capacity of the channel; `None` if it is unbounded.
    pub fn capacity(&self) -> Option<usize> {
        self.channel.capacity()
    }

    /// Returns whether both receive from the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.channel.add_receiver();
        Self { channel: Arc::clone(&self.channel) }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.channel.remove_receiver();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

iterators!("channel::unbounded");
