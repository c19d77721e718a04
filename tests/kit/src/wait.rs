//! Waiting for a condition, with a bound that is longer the busier the machine is.

use std::time::{Duration, Instant};

/// Maximum wait by a clock: for time-outs of sockets and for deadlines that a test keeps itself.
/// Nothing that a test waits for takes a tenth of it while a machine is free.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// Maximum wait of [`eventually`] and of the methods of [`Program`](crate::Program) on a machine
/// that is free.
pub(crate) const FREE: Duration = Duration::from_secs(120);

/// Maximum wait by a clock, in multiples of that on a machine that is free.
const LONGEST: u32 = 20;

/// Time between two checks of a condition.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// Longest sleep of a waiter that is told of progress: it looks at the time after each.
pub(crate) const SLICE: Duration = Duration::from_millis(250);

/// A wait that ends after [`FREE`] of a machine that is free, and later on a busy one: of each
/// time, the part counts that a thread among all runnable ones gets of the CPUs.
#[derive(Debug)]
pub(crate) struct Wait {
    counted: Duration,
    start: Instant,
    last: Instant,
    bound: Duration,
}

impl Wait {
    /// Begins a wait.
    pub fn new() -> Self {
        Self::of(FREE)
    }

    /// Begins a wait with this bound on a machine that is free.
    pub fn of(bound: Duration) -> Self {
        let start = Instant::now();
        Self { counted: Duration::ZERO, start, last: start, bound }
    }

    /// Returns true when the wait is over. Called at least every few [`SLICE`]s.
    pub fn is_over(&mut self) -> bool {
        let passed = self.last.elapsed();
        if passed >= SLICE {
            self.last += passed;
            self.counted += passed.mul_f64(part_of_a_cpu());
        }
        self.counted >= self.bound || self.start.elapsed() >= LONGEST * self.bound
    }
}

/// Returns the part of a CPU that each runnable thread of the machine gets if they share equally;
/// 1 if the kernel does not tell (proc_loadavg(5), fourth field).
fn part_of_a_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let runnable = text.split([' ', '/']).nth(3).and_then(|number| number.parse::<usize>().ok());
    let cpus = crate::cpus();
    cpus as f64 / runnable.unwrap_or(cpus).max(cpus) as f64
}

/// Waits until `condition` returns a value, and returns it.
///
/// # Panics
/// After two minutes of a machine that is free, with `what` was expected; later on a busy one.
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let mut wait = Wait::new();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(!wait.is_over(), "not in time: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// As [`eventually`].
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, || condition().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_over_no_earlier_than_its_bound() {
        let bound = Duration::from_millis(600);
        let (mut wait, start) = (Wait::of(bound), Instant::now());
        while !wait.is_over() {
            std::thread::sleep(LOOK);
        }
        assert!(start.elapsed() >= bound, "{wait:?}");
    }

    #[test]
    fn threads_beyond_the_cpus_share_them() {
        let part = part_of_a_cpu();
        assert!(part > 0.0 && part <= 1.0, "{part}");
    }
}
