//! Channels with any number of senders and receivers, bounded or not, and [`Select`] over several
//! of them.
//!
//! Each message is received once. Messages arrive in the order in which they were sent; threads
//! that wait, to send or to receive, are served in the order in which they began to wait. A bounded
//! channel allocates nothing per message. A channel whose bound is 0 holds no message: a send waits
//! for its receive.
//!
//! After the last [`Receiver`] is dropped, messages that were not received are dropped and every
//! send fails. After the last [`Sender`] is dropped, receivers get the remaining messages and then
//! fail. (The channels of `crossbeam-channel`, whose API this follows, behave the same.)
//!
//! # Examples
//! ```
//! use tailwater::sync::channel;
//!
//! let (jobs, workers) = channel::bounded(4);
//! let (results, sum) = channel::unbounded();
//! for _ in 0..2 {
//!     let (workers, results) = (workers.clone(), results.clone());
//!     std::thread::spawn(move || {
//!         workers.iter().for_each(|job: u64| results.send(job * job).unwrap());
//!     });
//! }
//! drop(results);
//! (1..=10).for_each(|job| jobs.send(job).unwrap());
//! drop(jobs);
//! assert_eq!(sum.iter().sum::<u64>(), 385);
//! ```

mod case;
mod look;
mod messages;
mod operation;
mod plan;
mod receiver;
mod select;
mod sender;
mod shared;

pub use receiver::{IntoIter, Iter, Receiver, TryIter};
pub use select::Select;
pub use sender::{SendTimeoutError, Sender};
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

pub(crate) use case::{ReceivingEnd, SendingEnd};
pub(crate) use shared::Channel;

/// Returns a channel that holds at most `capacity` messages; with 0 every send waits for its
/// receive.
///
/// # Examples
/// ```
/// use tailwater::sync::channel::{self, TrySendError};
///
/// let (sender, receiver) = channel::bounded(1);
/// sender.send("first").unwrap();
/// assert_eq!(sender.try_send("second"), Err(TrySendError::Full("second")));
/// assert_eq!(receiver.recv(), Ok("first"));
/// ```
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    with_capacity(Some(capacity))
}

/// Returns a channel that is bounded only by memory; sends never wait.
///
/// # Examples
/// ```
/// let (sender, receiver) = tailwater::sync::channel::unbounded();
/// (0..1000).for_each(|n| sender.send(n).unwrap());
/// drop(sender);
/// assert_eq!(receiver.iter().count(), 1000);
/// ```
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    with_capacity(None)
}

fn with_capacity<T>(capacity: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = Channel::new(capacity);
    (Sender::new(channel.clone()), Receiver::new(channel))
}

#[cfg(test)]
mod tests;
