//! The operations of a select that may have to wait: how a channel is locked, tried, waited for and
//! released.

use super::shared::{Channel, State, Wake};
use super::{Receiver, RecvError, SendError, Sender, TryRecvError, TrySendError};
use crate::ground::spin::SpinGuard;
use crate::sync::queue::{Entry, Sleeper};
use core::cell::{Cell, OnceCell};
use core::ptr;

/// Something that messages can be received from. Sealed: [`Receiver`] and
/// [`mpsc::Receiver`](crate::sync::mpsc::Receiver).
pub trait ReceivingEnd {
    type Message;
    fn channel(&self) -> &Channel<Self::Message>;
}

/// Something that messages can be sent to. Sealed: [`Sender`], and the senders of
/// [`mpsc`](crate::sync::mpsc).
pub trait SendingEnd {
    type Message;
    fn channel(&self) -> &Channel<Self::Message>;
}

impl<T> ReceivingEnd for Receiver<T> {
    type Message = T;
    fn channel(&self) -> &Channel<T> {
        &self.channel
    }
}

impl<T> SendingEnd for Sender<T> {
    type Message = T;
    fn channel(&self) -> &Channel<T> {
        &self.channel
    }
}

/// The lock of one case's channel, and a pointer to the state it guards.
struct Access<'a, T> {
    channel: &'a Channel<T>,
    guard: Cell<Option<SpinGuard<'a, State<T>>>>,
    state: Cell<*mut State<T>>,
}

impl<'a, T> Access<'a, T> {
    fn new(channel: &'a Channel<T>) -> Self {
        Self { channel, guard: Cell::new(None), state: Cell::new(ptr::null_mut()) }
    }

    fn address(&self) -> *const () {
        ptr::from_ref(self.channel).cast()
    }

    /// # Safety
    /// As [`Case::lock`].
    unsafe fn lock(&self, held: Option<*mut ()>) -> *mut () {
        let state = held.map_or_else(
            || {
                let mut guard = self.channel.state.lock();
                let state = ptr::from_mut(&mut *guard);
                self.guard.set(Some(guard));
                state
            },
            <*mut ()>::cast,
        );
        self.state.set(state);
        state.cast()
    }

    fn unlock(&self) {
        self.state.set(ptr::null_mut());
        drop(self.guard.take());
    }

    /// Calls `f` with the state, between `lock` and `unlock`.
    fn with<R>(&self, f: impl FnOnce(&mut State<T>) -> R) -> R {
        // SAFETY: the pointer comes from the guard that this case, or an earlier one of the same
        // channel and hence of the same type, keeps until `unlock`; cases are used one after the
        // other, so this is the only reference.
        f(unsafe { self.state.get().as_mut() }.expect("used while it is locked only"))
    }
}

/// One operation of a select whose outcome is an `R`. From `enlist` to `withdraw` other threads
/// hold pointers to its entry, so a case is used by shared reference only, and stays in its box.
pub(super) trait Case<R> {
    /// Returns an address that identifies the channel.
    fn address(&self) -> *const ();
    /// Locks the channel, or uses the `lock` that an earlier case of the same channel holds.
    ///
    /// # Safety
    /// `held` is what `lock` returned to another case of the same channel, and none of the
    /// channel's cases uses the state after one of them has unlocked it.
    unsafe fn lock(&self, held: Option<*mut ()>) -> *mut ();
    fn unlock(&self);
    /// Completes the operation if that is possible now; returns whether it did. Called under the
    /// lock.
    fn attempt(&self) -> bool;
    /// Wakes the thread whose operation `attempt` completed, if any, which stays locked until then.
    /// Called after `unlock`.
    fn wake(&self);
    /// Queues the operation as number `case` of `sleeper`. Called under the lock.
    ///
    /// # Safety
    /// The case does not move or die before it was granted and
    /// [`Held::sleep`](crate::sync::queue::Held::sleep) has returned, or `withdraw` has returned.
    unsafe fn enlist(&self, sleeper: *const Sleeper, case: usize);
    /// Takes the operation out of the queue.
    fn withdraw(&self);
    /// Ends an operation that was completed by `attempt` or by a grant: calls the user's function.
    fn complete(self: Box<Self>) -> R;
    /// Ends an operation that was not completed: restores what `attempt` and `enlist` took.
    fn abandon(self: Box<Self>);
}

/// A receive.
pub(super) struct Receive<'a, T, F> {
    access: Access<'a, T>,
    entry: OnceCell<Entry<Option<T>>>,
    received: Cell<Option<Result<T, RecvError>>>,
    wake: Cell<Option<Wake<'a, T>>>,
    then: F,
}

impl<'a, T, F> Receive<'a, T, F> {
    pub(super) fn new(channel: &'a Channel<T>, then: F) -> Self {
        Self {
            access: Access::new(channel),
            entry: OnceCell::new(),
            received: Cell::new(None),
            wake: Cell::new(None),
            then,
        }
    }
}

impl<T, R, F: FnOnce(Result<T, RecvError>) -> R> Case<R> for Receive<'_, T, F> {
    fn address(&self) -> *const () {
        self.access.address()
    }

    unsafe fn lock(&self, held: Option<*mut ()>) -> *mut () {
        // SAFETY: by the caller's contract.
        unsafe { self.access.lock(held) }
    }

    fn unlock(&self) {
        self.access.unlock();
    }

    fn attempt(&self) -> bool {
        let received = match self.access.with(|state| state.receive(&self.access.channel.look)) {
            Ok((message, wake)) => {
                self.wake.set(wake);
                Ok(message)
            }
            Err(TryRecvError::Disconnected) => Err(RecvError),
            Err(TryRecvError::Empty) => return false,
        };
        self.received.set(Some(received));
        true
    }

    unsafe fn enlist(&self, sleeper: *const Sleeper, case: usize) {
        let entry = self.entry.get_or_init(|| Entry::new(None, sleeper, case));
        self.access.with(|state| {
            state.note_receiving();
            // SAFETY: by the caller's contract.
            unsafe { state.receiving.push_back(entry) };
        });
    }

    fn wake(&self) {
        drop(self.wake.take());
    }

    fn withdraw(&self) {
        let entry = self.entry.get().expect("enlisted");
        // SAFETY: `enlist` put it into this queue.
        unsafe { self.access.channel.state.lock().receiving.remove(entry) };
    }

    fn complete(self: Box<Self>) -> R {
        let Self { entry, received, then, .. } = *self;
        let granted = || entry.into_inner().and_then(Entry::into_payload).ok_or(RecvError);
        then(received.into_inner().unwrap_or_else(granted))
    }

    fn abandon(self: Box<Self>) {}
}

/// A send.
pub(super) struct Send<'a, T, F> {
    access: Access<'a, T>,
    entry: OnceCell<Entry<Option<T>>>,
    /// The caller's slot: holds the message before and after, unless it was sent.
    message: &'a Cell<Option<T>>,
    wake: Cell<Option<Wake<'a, T>>>,
    then: F,
}

impl<'a, T, F> Send<'a, T, F> {
    /// Returns the case; `message` is not empty.
    pub(super) fn new(channel: &'a Channel<T>, message: &'a Cell<Option<T>>, then: F) -> Self {
        Self { access: Access::new(channel), entry: OnceCell::new(), message, wake: Cell::new(None), then }
    }
}

impl<T, R, F: FnOnce(Result<(), SendError<T>>) -> R> Case<R> for Send<'_, T, F> {
    fn address(&self) -> *const () {
        self.access.address()
    }

    unsafe fn lock(&self, held: Option<*mut ()>) -> *mut () {
        // SAFETY: by the caller's contract.
        unsafe { self.access.lock(held) }
    }

    fn unlock(&self) {
        self.access.unlock();
    }

    fn attempt(&self) -> bool {
        let message = self.message.take().expect("cases without a message are left out");
        match self.access.with(|state| state.send(message, &self.access.channel.look)) {
            Ok(wake) => {
                self.wake.set(wake);
                true
            }
            Err(TrySendError::Disconnected(message)) => {
                self.message.set(Some(message));
                true
            }
            Err(TrySendError::Full(message)) => {
                self.message.set(Some(message));
                false
            }
        }
    }

    unsafe fn enlist(&self, sleeper: *const Sleeper, case: usize) {
        let entry = self.entry.get_or_init(|| Entry::new(self.message.take(), sleeper, case));
        self.access.with(|state| {
            state.note_sending();
            // SAFETY: by the caller's contract.
            unsafe { state.sending.push_back(entry) };
        });
    }

    fn wake(&self) {
        drop(self.wake.take());
    }

    fn withdraw(&self) {
        let entry = self.entry.get().expect("enlisted");
        // SAFETY: `enlist` put it into this queue.
        unsafe { self.access.channel.state.lock().sending.remove(entry) };
    }

    fn complete(self: Box<Self>) -> R {
        let Self { entry, message, then, .. } = *self;
        let message = entry.into_inner().map_or_else(|| message.take(), Entry::into_payload);
        then(message.map_or(Ok(()), |message| Err(SendError(message))))
    }

    fn abandon(self: Box<Self>) {
        if let Some(entry) = self.entry.into_inner() {
            self.message.set(entry.into_payload());
        }
    }
}
