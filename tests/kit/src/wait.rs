//! Waiting for a condition, with a bound.

use std::time::{Duration, Instant};

/// Maximum wait for a condition on a machine that is busy with other tests and builds.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two checks of a condition.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// Waits until `condition` returns a value, and returns it.
///
/// # Panics
/// After [`PATIENCE`], with `what` was expected.
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// After [`PATIENCE`], with `what` was expected.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, || condition().then_some(()));
}
