//! Whether a kthread is stalled: a pure function of the watcher's observations.
//!
//! A kthread is *stalled* if, for the whole timeout, it runs the same user thread, has neither
//! switched nor reached a poll point, and is not merely waiting for Linux to give it a core: it
//! sleeps in the kernel, or has used the processor for at least half of the timeout. On a busy
//! machine that takes longer than the timeout.

use core::time::Duration;

/// One observation of a kthread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Time since the watcher began.
    pub at: Duration,
    /// Address of the running thread's record, and the number of switches so far; `None` if it runs
    /// none.
    pub running: Option<(usize, u64)>,
    /// True if a poll point was reached since [`StallStatus::Ask`].
    pub answered: bool,
    /// Processor time the kthread has used.
    pub cpu: Duration,
    /// True if it sleeps in the kernel.
    pub asleep: bool,
}

/// Why a kthread makes no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The thread computes without poll points.
    NoPollPoint,
    /// The thread sleeps in a system call.
    SystemCall,
}

/// What an observation shows, and what the watcher does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallStatus {
    /// There was progress, or nothing runs: have the next poll point answer.
    Ask,
    /// No progress yet, but not for long.
    Wait,
    /// Stalled for this long. Returned once per stall.
    Stalled(Cause, Duration),
    /// The same stall, this long.
    Still(Cause, Duration),
}

/// Watches one kthread.
#[derive(Debug, Default)]
pub struct Stall {
    /// The first observation without progress since.
    since: Option<Look>,
    cause: Option<Cause>,
    /// True if its report has been printed.
    pub printed: bool,
}

impl Stall {
    /// Takes an observation; returns what it shows.
    pub fn observe(&mut self, now: Look, timeout: Duration) -> StallStatus {
        let Some(since) = self.since.filter(|since| since.running == now.running && !now.answered) else {
            *self = Self { since: now.running.map(|_| now), ..Self::default() };
            return StallStatus::Ask;
        };
        let age = now.at - since.at;
        if let Some(cause) = self.cause {
            return StallStatus::Still(cause, age);
        }
        if age < timeout {
            return StallStatus::Wait;
        }
        let cause = if now.asleep {
            Cause::SystemCall
        } else if now.cpu.saturating_sub(since.cpu) >= timeout / 2 {
            Cause::NoPollPoint
        } else {
            return StallStatus::Wait;
        };
        self.cause = Some(cause);
        StallStatus::Stalled(cause, age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn look(ms: u64, cpu_ms: u64) -> Look {
        Look {
            at: Duration::from_millis(ms),
            running: Some((1, 7)),
            answered: false,
            cpu: Duration::from_millis(cpu_ms),
            asleep: false,
        }
    }

    #[test]
    fn a_busy_thread_without_poll_points_is_reported_once() {
        let mut stall = Stall::default();
        assert_eq!(stall.observe(look(0, 0), TIMEOUT), StallStatus::Ask);
        assert_eq!(stall.observe(look(99, 99), TIMEOUT), StallStatus::Wait);
        let ms = Duration::from_millis(101);
        assert_eq!(stall.observe(look(101, 101), TIMEOUT), StallStatus::Stalled(Cause::NoPollPoint, ms));
        let ms = Duration::from_millis(500);
        assert_eq!(stall.observe(look(500, 500), TIMEOUT), StallStatus::Still(Cause::NoPollPoint, ms));
        let progress = Look { running: Some((2, 8)), ..look(600, 600) };
        assert_eq!(stall.observe(progress, TIMEOUT), StallStatus::Ask);
    }

    #[test]
    fn a_switch_or_a_poll_point_or_an_idle_kthread_is_progress() {
        for progress in [
            Look { running: Some((1, 8)), ..look(90, 90) },
            Look { running: Some((2, 7)), ..look(90, 90) },
            Look { answered: true, ..look(90, 90) },
            Look { running: None, ..look(90, 90) },
        ] {
            let mut stall = Stall::default();
            stall.observe(look(0, 0), TIMEOUT);
            assert_eq!(stall.observe(progress, TIMEOUT), StallStatus::Ask);
            let later = Look { answered: false, at: Duration::from_millis(120), ..progress };
            assert!(!matches!(stall.observe(later, TIMEOUT), StallStatus::Stalled(..)), "{progress:?}");
        }
    }

    #[test]
    fn a_kthread_that_waits_for_a_core_is_not_blamed() {
        let mut stall = Stall::default();
        stall.observe(look(0, 0), TIMEOUT);
        assert_eq!(stall.observe(look(150, 10), TIMEOUT), StallStatus::Wait);
        // Once it has computed for long enough, it is stalled, also with a small share of a core.
        assert_eq!(stall.observe(look(400, 49), TIMEOUT), StallStatus::Wait);
        assert!(matches!(stall.observe(look(500, 50), TIMEOUT), StallStatus::Stalled(Cause::NoPollPoint, _)));
    }

    #[test]
    fn a_sleep_in_the_kernel_is_named_as_such() {
        let mut stall = Stall::default();
        stall.observe(look(0, 0), TIMEOUT);
        let asleep = Look { asleep: true, ..look(110, 1) };
        assert!(matches!(stall.observe(asleep, TIMEOUT), StallStatus::Stalled(Cause::SystemCall, _)));
    }
}
