//! Channels of addresses.
//!
//! A channel of C is one object, with both ends of the runtime's channel. A thread that sends or
//! receives takes a handle of its end first, so that `tw_channel_close` does not wait for it.
//! `tw_select` is the runtime's `Select`.

use crate::border::{Address, limit};
use core::ffi::{c_int, c_void};
use tailwater::internals::SpinLock;
use tailwater::sync::channel::{
    self, Receiver, RecvTimeoutError, Select, SendTimeoutError, Sender, TryRecvError, TrySendError,
};

/// A channel whose messages are addresses, for any number of threads.
pub struct tw_channel {
    sender: SpinLock<Option<Sender<Address>>>,
    receiver: Receiver<Address>,
}

/// A channel without a limit.
pub const TW_UNBOUNDED: usize = usize::MAX;

/// Makes a channel for `capacity` messages that wait; with 0 a sender waits for a receiver, and
/// with `TW_UNBOUNDED` there is no limit. Free it by `tw_channel_free`. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_channel_new(capacity: usize) -> *mut tw_channel {
    let (sender, receiver) =
        if capacity == TW_UNBOUNDED { channel::unbounded() } else { channel::bounded(capacity) };
    Box::into_raw(Box::new(tw_channel { sender: SpinLock::new(Some(sender)), receiver }))
}

/// Frees a channel that no thread uses. Messages in it are dropped. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_channel_free(channel: *mut tw_channel) {
    if !channel.is_null() {
        // SAFETY: by C's contract.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// Ends sending: later calls of `tw_channel_send` fail, and receivers get the messages in the
/// channel and then `-EPIPE`. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_channel_close(channel: *mut tw_channel) {
    // SAFETY: by C's contract.
    let sender = unsafe { &*channel }.sender.lock().take();
    // Outside the lock: the last sender wakes threads.
    drop(sender);
}

/// # Safety
/// `channel` is a channel that lives during the call of C.
unsafe fn sender(channel: *mut tw_channel) -> Option<Sender<Address>> {
    // SAFETY: by the caller's contract.
    let channel = unsafe { &*channel };
    channel.sender.lock().clone()
}

/// Sends a message. Switches threads while the channel is full, for `timeout_ns` nanoseconds at
/// most; `TW_FOREVER` waits for ever, 0 never.
///
/// Returns 0, `-EAGAIN` if a wait of 0 finds the channel full, `-ETIMEDOUT` after a longer one,
/// `-EPIPE` if the channel is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_channel_send(
    channel: *mut tw_channel,
    message: *mut c_void,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: by C's contract.
    let Some(sender) = (unsafe { sender(channel) }) else { return -libc::EPIPE };
    let message = Address(message);
    match limit(timeout_ns) {
        None => sender.send(message).map_or(-libc::EPIPE, |()| 0),
        Some(timeout) if timeout.is_zero() => match sender.try_send(message) {
            Ok(()) => 0,
            Err(TrySendError::Full(_)) => -libc::EAGAIN,
            Err(TrySendError::Disconnected(_)) => -libc::EPIPE,
        },
        Some(timeout) => match sender.send_timeout(message, timeout) {
            Ok(()) => 0,
            Err(SendTimeoutError::Timeout(_)) => -libc::ETIMEDOUT,
            Err(_) => -libc::EPIPE,
        },
    }
}

/// Receives a message into `*message`. Switches threads while the channel is empty, for
/// `timeout_ns` nanoseconds at most; `TW_FOREVER` waits for ever, 0 never.
///
/// Returns 0, `-EAGAIN` if a wait of 0 finds no message, `-ETIMEDOUT` after a longer one, `-EPIPE`
/// if the channel is closed and empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_channel_receive(
    channel: *mut tw_channel,
    message: *mut *mut c_void,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: by C's contract.
    let receiver = unsafe { &(*channel).receiver };
    let received = match limit(timeout_ns) {
        None => receiver.recv().map_err(|_| libc::EPIPE),
        Some(timeout) if timeout.is_zero() => receiver.try_recv().map_err(|error| match error {
            TryRecvError::Empty => libc::EAGAIN,
            TryRecvError::Disconnected => libc::EPIPE,
        }),
        Some(timeout) => receiver.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => libc::ETIMEDOUT,
            RecvTimeoutError::Disconnected => libc::EPIPE,
        }),
    };
    match received {
        Ok(Address(value)) => {
            // SAFETY: by C's contract.
            unsafe { message.write(value) };
            0
        }
        Err(number) => -number,
    }
}

/// Returns the number of messages in the channel. Never switches threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_channel_len(channel: *const tw_channel) -> usize {
    // SAFETY: by C's contract.
    unsafe { &(*channel).receiver }.len()
}

/// Receives from a channel.
pub const TW_RECEIVE: u32 = 0;
/// Sends to a channel.
pub const TW_SEND: u32 = 1;
/// Operations of a `tw_select` at most.
pub const TW_SELECT_MAX: usize = 64;

/// One of the operations of `tw_select`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_operation {
    /// The channel.
    pub channel: *mut tw_channel,
    /// `TW_RECEIVE` or `TW_SEND`.
    pub kind: u32,
    /// Set if this is the one that was completed: 0, or `-EPIPE` if the channel is closed and, for
    /// a receive, empty.
    pub status: c_int,
    /// The message to send; set to the message that was received.
    pub message: *mut c_void,
}

/// What became of the completed operation: the message of a receive, or an error number.
type Outcome = Result<Option<Address>, c_int>;

/// Completes one of the operations, or none in the time. A send to a closed channel is complete.
///
/// # Safety
/// The channels live during the call.
unsafe fn select(operations: &[tw_operation], timeout_ns: u64) -> Option<(usize, Outcome)> {
    let mut senders = [const { None }; TW_SELECT_MAX];
    let mut messages = [None; TW_SELECT_MAX];
    for (index, operation) in operations.iter().enumerate().filter(|(_, it)| it.kind == TW_SEND) {
        // SAFETY: by the caller's contract.
        senders[index] = unsafe { sender(operation.channel) };
        messages[index] = Some(Address(operation.message));
        if senders[index].is_none() {
            return Some((index, Err(libc::EPIPE)));
        }
    }
    let mut select = Select::new();
    for (index, (operation, message)) in operations.iter().zip(&mut messages).enumerate() {
        select = match &senders[index] {
            Some(sender) => select
                .send(sender, message, move |sent| (index, sent.map(|()| None).map_err(|_| libc::EPIPE))),
            // SAFETY: by the caller's contract.
            None => select.recv(unsafe { &(*operation.channel).receiver }, move |received| {
                (index, received.map(Some).map_err(|_| libc::EPIPE))
            }),
        };
    }
    match limit(timeout_ns) {
        None => Some(select.wait()),
        Some(timeout) if timeout.is_zero() => select.try_wait(),
        Some(timeout) => select.wait_timeout(timeout),
    }
}

/// Waits for the first of several sends and receives, for `timeout_ns` nanoseconds at most
/// (`TW_FOREVER`: for ever, 0: not at all), and completes exactly that one: one at random if
/// several can be. Switches threads while none can be completed.
///
/// Returns its index, with `status` and, for a receive, `message` set in it; `-EAGAIN` if a wait of
/// 0 finds none, `-ETIMEDOUT` after a longer one, `-EINVAL` for no operation, more than
/// `TW_SELECT_MAX`, or another kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_select(operations: *mut tw_operation, count: usize, timeout_ns: u64) -> c_int {
    if !(1..=TW_SELECT_MAX).contains(&count) || operations.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: by C's contract there are so many, which no other code uses meanwhile.
    let operations = unsafe { core::slice::from_raw_parts_mut(operations, count) };
    if operations.iter().any(|it| !matches!(it.kind, TW_RECEIVE | TW_SEND) || it.channel.is_null()) {
        return -libc::EINVAL;
    }
    // SAFETY: by C's contract.
    let Some((index, outcome)) = (unsafe { select(operations, timeout_ns) }) else {
        return if timeout_ns == 0 { -libc::EAGAIN } else { -libc::ETIMEDOUT };
    };
    operations[index].status = outcome.as_ref().map_or_else(|number| -number, |_| 0);
    if let Ok(Some(Address(message))) = outcome {
        operations[index].message = message;
    }
    index as c_int
}
