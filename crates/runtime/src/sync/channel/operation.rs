//! The operations of a select that need not wait.

use super::case::{self, Case};
use super::shared::Channel;
use super::{RecvError, SendError, TryRecvError, TrySendError};
use core::cell::Cell;

/// One operation of a select whose outcome is an `R`.
pub(super) trait Operation<'a, R> {
    /// What the channel did.
    type Outcome;
    /// Returns whether the operation may be completed now, without locking the channel.
    fn looks_ready(&self) -> bool;
    /// Completes the operation if that is possible now.
    fn attempt(&self) -> Option<Self::Outcome>;
    /// Calls the user's function with the outcome of `attempt`.
    fn finish(self, outcome: Self::Outcome) -> R;
    /// Turns the operation into one that can wait.
    fn into_case(self) -> Box<dyn Case<R> + 'a>;
}

/// A receive.
pub(super) struct Receive<'a, T, F> {
    channel: &'a Channel<T>,
    then: F,
}

impl<'a, T, F> Receive<'a, T, F> {
    #[inline]
    pub(super) fn new(channel: &'a Channel<T>, then: F) -> Self {
        Self { channel, then }
    }
}

impl<'a, T, R, F: FnOnce(Result<T, RecvError>) -> R + 'a> Operation<'a, R> for Receive<'a, T, F> {
    type Outcome = Result<T, RecvError>;

    #[inline]
    fn looks_ready(&self) -> bool {
        self.channel.look.is_receivable()
    }

    #[inline]
    fn attempt(&self) -> Option<Self::Outcome> {
        match self.channel.try_receive() {
            Ok(message) => Some(Ok(message)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
            Err(TryRecvError::Empty) => None,
        }
    }

    #[inline]
    fn finish(self, outcome: Self::Outcome) -> R {
        (self.then)(outcome)
    }

    fn into_case(self) -> Box<dyn Case<R> + 'a> {
        in_place(|| case::Receive::new(self.channel, self.then))
    }
}

/// A send.
pub(super) struct Send<'a, T, F> {
    channel: &'a Channel<T>,
    /// The caller's slot: holds the message before and after, unless it was sent.
    message: &'a Cell<Option<T>>,
    then: F,
}

impl<'a, T, F> Send<'a, T, F> {
    /// Returns the operation; `message` is not empty.
    #[inline]
    pub(super) fn new(channel: &'a Channel<T>, message: &'a Cell<Option<T>>, then: F) -> Self {
        Self { channel, message, then }
    }
}

impl<'a, T, R, F: FnOnce(Result<(), SendError<T>>) -> R + 'a> Operation<'a, R> for Send<'a, T, F> {
    type Outcome = Result<(), SendError<T>>;

    #[inline]
    fn looks_ready(&self) -> bool {
        self.channel.look.is_sendable()
    }

    #[inline]
    fn attempt(&self) -> Option<Self::Outcome> {
        let message = self.message.take().expect("operations without a message are left out");
        match self.channel.try_send(message) {
            Ok(()) => Some(Ok(())),
            Err(TrySendError::Disconnected(message)) => Some(Err(SendError(message))),
            Err(TrySendError::Full(message)) => {
                self.message.set(Some(message));
                None
            }
        }
    }

    #[inline]
    fn finish(self, outcome: Self::Outcome) -> R {
        (self.then)(outcome)
    }

    fn into_case(self) -> Box<dyn Case<R> + 'a> {
        in_place(|| case::Send::new(self.channel, self.message, self.then))
    }
}

/// Returns a box of what `make` returns. `Box::new` would write the value to the stack and copy it
/// into the box with vector loads, to which the words just written cannot be forwarded. Here the
/// box is allocated first, and the words are written into it.
#[inline(always)]
fn in_place<T>(make: impl FnOnce() -> T) -> Box<T> {
    let room = Box::new_uninit();
    Box::write(room, make())
}
