//! Room for what one wait returns, which programs use again and again.

use super::interest::{Readiness, Ready};
use super::registration::Registration;
use std::sync::Arc;

/// Registrations that a `wait` has taken, and what their sources are ready for.
pub(super) type Taken = Vec<(Arc<Registration>, Ready)>;

/// Room for the events of one [`wait`](super::Poller::wait).
///
/// # Examples
/// ```
/// use tailwater::readiness::Events;
///
/// assert!(Events::with_capacity(64).is_empty());
/// ```
#[derive(Debug)]
pub struct Events {
    pub(super) list: Vec<Readiness>,
    pub(super) limit: usize,
    pub(super) taken: Taken,
}

impl Events {
    /// Returns room for `capacity` events, at least one.
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { list: Vec::with_capacity(capacity), limit: usize::MAX, taken: Vec::with_capacity(capacity) }
    }

    /// Limits later waits to `events` events, at least one, where there is room for more.
    #[doc(hidden)]
    pub fn limit(&mut self, events: usize) {
        self.limit = events.max(1);
    }

    /// Returns the events of the last `wait`.
    pub fn iter(&self) -> core::iter::Copied<core::slice::Iter<'_, Readiness>> {
        self.list.iter().copied()
    }

    /// Returns whether the last `wait` returned none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of events of the last `wait`.
    pub fn len(&self) -> usize {
        self.list.len()
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = Readiness;
    type IntoIter = core::iter::Copied<core::slice::Iter<'a, Readiness>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
