//! A gate at which all kthreads stop while memory that they share is replaced.
//!
//! Owns the gate and the count of kthreads before it. One thread, the leader, closes it, waits for
//! all kthreads and opens it again; kthreads pass it in their schedulers. Knows nothing of how a
//! kthread is made to come to the gate.
//!
//! A kthread that has not yet left the open gate when the leader closes it again counts as stopped.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Halt {
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    closed: bool,
    stopped: usize,
}

impl Halt {
    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Opens the gate. What the leader did before is visible to the kthreads that pass.
    pub fn open(&self) {
        self.lock().closed = false;
        self.changed.notify_all();
    }

    /// Waits until `count` kthreads have stopped; false after `timeout`.
    pub fn wait_until_stopped(&self, count: usize, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |gate| gate.stopped < count);
        let (gate, _) = waited.unwrap_or_else(PoisonError::into_inner);
        gate.stopped >= count
    }

    /// Stops the calling kthread while the gate is closed. Returns whether it stopped.
    pub fn pass(&self) -> bool {
        let mut gate = self.lock();
        if !gate.closed {
            return false;
        }
        gate.stopped += 1;
        self.changed.notify_all();
        let opened = self.changed.wait_while(gate, |gate| gate.closed);
        opened.unwrap_or_else(PoisonError::into_inner).stopped -= 1;
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    #[test]
    fn an_open_gate_stops_no_kthread() {
        assert!(!Halt::default().pass());
    }

    #[test]
    fn a_leader_without_all_kthreads_gives_up() {
        let halt = Halt::default();
        halt.close();
        assert!(!halt.wait_until_stopped(1, Duration::from_millis(1)));
        halt.open();
        assert!(!halt.pass());
    }

    #[test]
    #[cfg_attr(sanitizing, ignore = "ThreadSanitizer does not see what happens in a contended lock of std's")]
    fn nothing_moves_between_the_last_stop_and_the_opening() {
        let (halt, steps, ended) = (Halt::default(), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !ended.load(Relaxed) {
                        halt.pass();
                        steps.fetch_add(1, Relaxed);
                        std::thread::yield_now();
                    }
                });
            }
            for _ in 0..100 {
                halt.close();
                while !halt.wait_until_stopped(3, Duration::from_secs(1)) {}
                let before = steps.load(Relaxed);
                std::thread::yield_now();
                assert_eq!(steps.load(Relaxed), before);
                halt.open();
            }
            ended.store(true, Relaxed);
        });
    }
}
