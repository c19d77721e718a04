//! The sending end of a channel.

use super::shared::Channel;
use super::{SendError, TrySendError};
use core::fmt;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

/// Why a message was not sent in time; holds the message.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// let (sender, _receiver) = tailwater::sync::channel::bounded(0);
/// let error = sender.send_timeout("late", Duration::ZERO).unwrap_err();
/// assert_eq!(error.to_string(), "timed out sending on a full channel");
/// assert_eq!(error.into_inner(), "late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendTimeoutError<T> {
    /// The channel stayed full.
    Timeout(T),
    /// The channel has no receiver any more.
    Disconnected(T),
}

impl<T> SendTimeoutError<T> {
    /// Returns the message.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::SendTimeoutError;
    ///
    /// assert_eq!(SendTimeoutError::Disconnected("returned").into_inner(), "returned");
    /// ```
    pub fn into_inner(self) -> T {
        match self {
            Self::Timeout(message) | Self::Disconnected(message) => message,
        }
    }
}

impl<T> fmt::Debug for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout(_) => "Timeout(..)",
            Self::Disconnected(_) => "Disconnected(..)",
        })
    }
}

impl<T> fmt::Display for SendTimeoutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout(_) => "timed out sending on a full channel",
            Self::Disconnected(_) => "sending on a channel without receivers",
        })
    }
}

impl<T> std::error::Error for SendTimeoutError<T> {}

/// Sends messages into a channel; made by [`bounded`](super::bounded) and
/// [`unbounded`](super::unbounded).
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::channel::bounded(2);
/// let other = sender.clone();
/// sender.send(1).unwrap();
/// other.send(2).unwrap();
/// assert!(sender.is_full() && sender.same_channel(&other));
/// drop(receiver);
/// assert!(sender.send(3).is_err());
/// ```
pub struct Sender<T> {
    pub(super) channel: Arc<Channel<T>>,
}

impl<T> UnwindSafe for Sender<T> {}
impl<T> RefUnwindSafe for Sender<T> {}

impl<T> Sender<T> {
    /// Returns an end that the caller has counted already.
    pub(super) fn new(channel: Arc<Channel<T>>) -> Self {
        Self { channel }
    }

    /// Returns what both ends share.
    pub(crate) fn channel(&self) -> &Arc<Channel<T>> {
        &self.channel
    }

    /// Sends, waiting while the channel is full.
    ///
    /// # Errors
    /// If the channel has no receiver any more; the error holds the message.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, SendError};
    ///
    /// let (sender, receiver) = channel::bounded(1);
    /// assert_eq!(sender.send(1), Ok(()));
    /// drop(receiver);
    /// assert_eq!(sender.send(2), Err(SendError(2)));
    /// ```
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.channel.send(message, None).map_err(|e| SendError(e.into_inner()))
    }

    /// Sends without waiting: into a channel with room, or to a thread that waits to receive.
    ///
    /// # Errors
    /// `Full` or `Disconnected`, with the message.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::channel::{self, TrySendError};
    ///
    /// let (sender, _receiver) = channel::bounded(1);
    /// assert_eq!(sender.try_send(1), Ok(()));
    /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    /// ```
    #[inline]
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.channel.try_send(message)
    }

    /// As [`send`](Self::send), for at most `timeout`.
    ///
    /// # Errors
    /// `Timeout` or `Disconnected`, with the message.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tailwater::sync::channel::{self, SendTimeoutError};
    ///
    /// let (sender, receiver) = channel::bounded(0);
    /// let timeout = Duration::from_millis(1);
    /// assert_eq!(sender.send_timeout(1, timeout), Err(SendTimeoutError::Timeout(1)));
    /// drop(receiver);
    /// assert_eq!(sender.send_timeout(1, timeout), Err(SendTimeoutError::Disconnected(1)));
    /// ```
    pub fn send_timeout(&self, message: T, timeout: Duration) -> Result<(), SendTimeoutError<T>> {
        self.channel.send(message, Some(timeout))
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

    /// Returns whether both send into the same channel.
    pub fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.channel.add_sender();
        Self { channel: Arc::clone(&self.channel) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.channel.remove_sender();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}
