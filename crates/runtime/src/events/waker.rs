//! [`LoopWaker`].

use super::inbox::Inbox;
use std::sync::Arc;

/// Wakes an [`EventLoop`](super::EventLoop) from any thread: the loop reports
/// [`Condition::Woken`](super::Condition::Woken).
///
/// # Examples
/// ```
/// use tailwater::events::{Batch, EventLoop};
///
/// let (mut events, mut batch) = (EventLoop::new(), Batch::new());
/// let waker = events.waker();
/// waker.wake();
/// waker.clone().wake();
/// assert_eq!(events.poll(&mut batch, None), 1, "both in one");
/// ```
#[derive(Debug, Clone)]
pub struct LoopWaker(Arc<Inbox>);

impl LoopWaker {
    pub(super) fn new(inbox: &Arc<Inbox>) -> Self {
        Self(Arc::clone(inbox))
    }

    /// Makes the loop report that it was woken, in its next round.
    pub fn wake(&self) {
        self.0.wake();
    }
}
