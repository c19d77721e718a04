//! Channels with one receiver, with the API of `std::sync::mpsc`.
//!
//! The ends wrap those of [`sync::channel`](crate::sync::channel), which documents their behaviour;
//! its [`Select`](crate::sync::channel::Select) takes them too.

use crate::sync::channel::{self, Channel, ReceivingEnd, SendingEnd};
use crate::sync::iterators::iterators;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::panic::RefUnwindSafe;
use std::time::Duration;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

/// Returns an unbounded channel: sends never wait.
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::mpsc::channel();
/// std::thread::spawn(move || (0..3).for_each(|n| sender.send(n).unwrap()));
/// assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2]);
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = channel::unbounded();
    (Sender { inner: sender }, Receiver::new(receiver))
}

/// Returns a channel that holds at most `bound` messages; with 0 every send waits for its receive.
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::mpsc::sync_channel(0);
/// std::thread::scope(|scope| {
///     scope.spawn(|| sender.send("met").unwrap());
///     assert_eq!(receiver.recv(), Ok("met"));
/// });
/// ```
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let (sender, receiver) = channel::bounded(bound);
    (SyncSender { inner: sender }, Receiver::new(receiver))
}

/// Sends into a [`channel`](channel()), without waiting.
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::mpsc::channel();
/// let other = sender.clone();
/// sender.send(1).unwrap();
/// other.send(2).unwrap();
/// drop((sender, other));
/// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2]);
/// ```
pub struct Sender<T> {
    inner: channel::Sender<T>,
}

/// Sends into a [`sync_channel`], waiting while it is full.
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::mpsc::sync_channel(1);
/// sender.send(1).unwrap();
/// assert!(sender.try_send(2).is_err());
/// assert_eq!(receiver.recv(), Ok(1));
/// ```
pub struct SyncSender<T> {
    inner: channel::Sender<T>,
}

/// Receives from a [`channel`](channel()) or [`sync_channel`]. There is one per channel; it can be
/// moved to another thread, but not shared.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tailwater::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
///
/// let (sender, receiver) = mpsc::channel();
/// sender.send(1).unwrap();
/// assert_eq!(receiver.recv(), Ok(1));
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
/// drop(sender);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
/// ```
pub struct Receiver<T> {
    inner: channel::Receiver<T>,
    _not_sync: PhantomData<Cell<()>>,
}

impl<T> Sender<T> {
    /// Sends; never waits.
    ///
    /// # Errors
    /// If the receiver is gone; the error holds the message.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::mpsc::{self, SendError};
    ///
    /// let (sender, receiver) = mpsc::channel();
    /// assert_eq!(sender.send(1), Ok(()));
    /// drop(receiver);
    /// assert_eq!(sender.send(2), Err(SendError(2)));
    /// ```
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.inner.send(message)
    }
}

impl<T> SyncSender<T> {
    /// Sends, waiting while the channel is full.
    ///
    /// # Errors
    /// If the receiver is gone; the error holds the message.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::mpsc::{self, SendError};
    ///
    /// let (sender, receiver) = mpsc::sync_channel(1);
    /// assert_eq!(sender.send(1), Ok(()));
    /// drop(receiver);
    /// assert_eq!(sender.send(2), Err(SendError(2)));
    /// ```
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.inner.send(message)
    }

    /// Sends if the channel has room, or the receiver waits.
    ///
    /// # Errors
    /// `Full` or `Disconnected`, with the message.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::mpsc::{self, TrySendError};
    ///
    /// let (sender, _receiver) = mpsc::sync_channel(1);
    /// assert_eq!(sender.try_send(1), Ok(()));
    /// assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    /// ```
    #[inline]
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.inner.try_send(message)
    }
}

// As for `std`'s: a panic cannot leave a receiver inconsistent.
impl<T> RefUnwindSafe for Receiver<T> {}

impl<T> Receiver<T> {
    /// Returns the receiving end of the channel.
    pub(crate) fn shared(&self) -> &channel::Receiver<T> {
        &self.inner
    }

    fn new(inner: channel::Receiver<T>) -> Self {
        Self { inner, _not_sync: PhantomData }
    }

    /// Receives, waiting while the channel is empty.
    ///
    /// # Errors
    /// If the channel is empty and all senders are gone.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::mpsc::{self, RecvError};
    ///
    /// let (sender, receiver) = mpsc::channel();
    /// sender.send(1).unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv(), Ok(1));
    /// assert_eq!(receiver.recv(), Err(RecvError));
    /// ```
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.inner.recv()
    }

    /// Receives without waiting: a message in the channel, or that of a thread that waits to send.
    ///
    /// # Errors
    /// `Empty` or `Disconnected`.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::mpsc::{self, TryRecvError};
    ///
    /// let (sender, receiver) = mpsc::channel();
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// ```
    #[inline]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.inner.try_recv()
    }

    /// As [`recv`](Self::recv), for at most `timeout`.
    ///
    /// # Errors
    /// `Timeout` or `Disconnected`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tailwater::sync::mpsc::{self, RecvTimeoutError};
    ///
    /// let (_sender, receiver) = mpsc::channel::<u8>();
    /// assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
    /// ```
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.inner.recv_timeout(timeout)
    }

    /// Returns an iterator over the messages, which waits for each until all senders are gone.
    ///
    /// # Examples
    /// ```
    /// let (sender, receiver) = tailwater::sync::mpsc::channel();
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
    /// let (sender, receiver) = tailwater::sync::mpsc::channel();
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
    /// ```
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> SendingEnd for Sender<T> {
    type Message = T;
    fn channel(&self) -> &Channel<T> {
        self.inner.channel()
    }
}

impl<T> SendingEnd for SyncSender<T> {
    type Message = T;
    fn channel(&self) -> &Channel<T> {
        self.inner.channel()
    }
}

impl<T> ReceivingEnd for Receiver<T> {
    type Message = T;
    fn channel(&self) -> &Channel<T> {
        self.inner.channel()
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

iterators!("mpsc::channel");
