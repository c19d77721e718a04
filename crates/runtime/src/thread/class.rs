//! [`Class`]: what a thread is to its program.

use crate::records::kthread::current_uthread;
use crate::records::runtime::runtime;
use crate::verbs::quantum;

/// What a thread is to its program; see [`Builder::class`](crate::thread::Builder::class).
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread::{Builder, Class};
///
/// #[tailwater::main]
/// fn main() {
///     let batch = Builder::new().class(Class::Background).spawn(|| 6 * 7).unwrap();
///     assert_eq!(batch.join().unwrap(), 42);
/// }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// It runs before all background threads.
    #[default]
    Normal,
    /// It runs only on a kthread that has nothing else to do, and gives way to anything else at a
    /// poll point within about a microsecond. An IOKernel takes its core as if that were idle, for
    /// any program that needs one.
    Background,
}

impl Class {
    /// Returns the class of the calling thread, if it is not the usual one.
    pub(crate) fn inherited() -> Option<Self> {
        let inherits = runtime().background.is_used() && current_uthread()?.is_background();
        inherits.then_some(Self::Background)
    }
}

/// Prepares the runtime for background threads; returns whether this is the first.
pub(crate) fn begin_background() -> bool {
    let is_first = runtime().background.begin();
    if is_first {
        quantum::watch_slices(runtime());
    }
    is_first
}
