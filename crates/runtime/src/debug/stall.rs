//! When a kthread counts as stalled: a pure function of what the watcher sees at each look.
//!
//! A kthread is *stalled* when it runs the same user thread, has neither switched nor reached a poll point, for the whole timeout, and is
//! not merely waiting for Linux to give it a core: it sleeps in the kernel, or has used the processor for at least half of the time.

use core::time::Duration;

/// What one look at a kthread shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Time since the watcher began.
    pub at: Duration,
    /// Address of the running thread's record, and the number of switches so far; `None` when it runs none.
    pub running: Option<(usize, u64)>,
    /// Whether a poll point was reached since the last question.
    pub answered: bool,
    /// Processor time the kthread has used.
    pub cpu: Duration,
    /// Whether it sleeps in the kernel.
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

/// What the watcher does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There was progress, or nothing runs: have the next poll point answer.
    Ask,
    /// No progress yet, but not for long.
    Wait,
    /// Stalled for this long. Said once.
    Stalled(Cause, Duration),
}

/// Watches one kthread.
#[derive(Debug, Default)]
pub struct Stall {
    /// The look since which there was no progress.
    since: Option<Look>,
    reported: bool,
}

impl Stall {
    /// Judges the latest look.
    pub fn judge(&mut self, now: Look, timeout: Duration) -> Verdict {
        let Some(since) = self.since.filter(|since| since.running == now.running && !now.answered) else {
            *self = Self { since: now.running.map(|_| now), reported: false };
            return Verdict::Ask;
        };
        let age = now.at - since.at;
        if self.reported || age < timeout {
            return Verdict::Wait;
        }
        let cause = if now.asleep {
            Cause::SystemCall
        } else if now.cpu.saturating_sub(since.cpu) >= age / 2 {
            Cause::NoPollPoint
        } else {
            return Verdict::Wait;
        };
        self.reported = true;
        Verdict::Stalled(cause, age)
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
        assert_eq!(stall.judge(look(0, 0), TIMEOUT), Verdict::Ask);
        assert_eq!(stall.judge(look(99, 99), TIMEOUT), Verdict::Wait);
        let ms = Duration::from_millis(101);
        assert_eq!(stall.judge(look(101, 101), TIMEOUT), Verdict::Stalled(Cause::NoPollPoint, ms));
        assert_eq!(stall.judge(look(500, 500), TIMEOUT), Verdict::Wait);
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
            stall.judge(look(0, 0), TIMEOUT);
            assert_eq!(stall.judge(progress, TIMEOUT), Verdict::Ask);
            let later = Look { answered: false, at: Duration::from_millis(120), ..progress };
            assert!(!matches!(stall.judge(later, TIMEOUT), Verdict::Stalled(..)), "{progress:?}");
        }
    }

    #[test]
    fn a_kthread_that_waits_for_a_core_is_not_blamed() {
        let mut stall = Stall::default();
        stall.judge(look(0, 0), TIMEOUT);
        assert_eq!(stall.judge(look(150, 10), TIMEOUT), Verdict::Wait);
        // Once it has computed for long enough, it is.
        assert!(matches!(stall.judge(look(300, 160), TIMEOUT), Verdict::Stalled(Cause::NoPollPoint, _)));
    }

    #[test]
    fn a_sleep_in_the_kernel_is_named_as_such() {
        let mut stall = Stall::default();
        stall.judge(look(0, 0), TIMEOUT);
        let asleep = Look { asleep: true, ..look(110, 1) };
        assert!(matches!(stall.judge(asleep, TIMEOUT), Verdict::Stalled(Cause::SystemCall, _)));
    }
}
