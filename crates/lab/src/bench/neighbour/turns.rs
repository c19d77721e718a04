//! Another way to give other programs a share of the polling thread's core: Linux's own turns.
//!
//! Owns the weights. The polling thread is an ordinary thread with the shortest slice there is, and
//! its weight over that of an ordinary thread is what the share says. Where Linux groups sessions
//! (sched(7), "The autogroup feature") it weighs this one against that of the other programs, and
//! divides a session's weight among the cores by the weight of its threads there. Polling thread
//! and kthreads have the highest priority then, so each core gets the same part, and the session's
//! own nice value makes the share. A process in no such group, as one that no session was ever made
//! for, competes with the sessions thread by thread.

use anyhow::Context;
use tailwater_host::{SessionWeight, groups_sessions};
use tailwater_shm::priority::{HIGHEST, LOWEST};

/// The weight of this process's session.
const SESSION: &str = "/proc/self/autogroup";
/// How much more weight a nice value has than the next (sched(7), "The nice value").
const STEP: f64 = 1.25;

/// Nice values that give other programs their share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turns {
    thread: i32,
    session: Option<i32>,
}

impl Turns {
    /// For `percent` of the polling thread's core, where Tailwater has so many `cores`.
    pub(super) fn new(percent: u8, cores: usize) -> Self {
        Self::grouped(groups_sessions() && SessionWeight::open(SESSION).is_ok(), percent, cores)
    }

    fn grouped(grouped: bool, percent: u8, cores: usize) -> Self {
        let percent = f64::from(percent.max(1));
        let over_others = (100.0 - percent) / percent;
        let nice = |weight: f64| (-weight.log(STEP).round() as i32).clamp(HIGHEST, LOWEST);
        match grouped {
            true => Self { thread: HIGHEST, session: Some(nice(over_others * cores as f64)) },
            false => Self { thread: nice(over_others), session: None },
        }
    }

    /// Returns the polling thread's nice value.
    pub(super) fn nice(&self) -> i32 {
        self.thread
    }

    /// Gives this session its weight until what is returned is dropped, unless the thread's
    /// decides. A bench that is killed (SIGKILL) leaves it to the session.
    ///
    /// # Errors
    /// If Linux refuses it.
    pub(super) fn weigh_session(&self) -> anyhow::Result<Option<SessionWeight>> {
        let Some(nice) = self.session else { return Ok(None) };
        let weight = SessionWeight::open_and_set(SESSION, nice);
        Ok(Some(weight.context("the weight of this session; --turns needs root")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_a_ninth_of_the_polling_threads_weight() {
        assert_eq!(Turns::grouped(false, 10, 2), Turns { thread: -10, session: None });
        assert_eq!(Turns::grouped(false, 50, 2), Turns { thread: 0, session: None });
        assert_eq!(Turns::grouped(true, 10, 2), Turns { thread: HIGHEST, session: Some(-13) });
        assert_eq!(Turns::grouped(true, 0, 64), Turns { thread: HIGHEST, session: Some(HIGHEST) });
    }
}
