//! The batch job beside a service: its rate alone, its rate beside the service, and the ratio of
//! the two, per second and per second of core time that it held.

use std::time::Instant;

use crate::account::{self, Shares, Snapshot};
use crate::bed::{START_TIMEOUT, Testbed};
use crate::child::Batch;

/// Number of intervals in which the batch job is measured alone.
const SOLO_INTERVALS: u32 = 3;

/// Trials per second of a batch job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchRates {
    /// Over the counted time.
    pub beside: f64,
    /// Alone, before or after the point, whichever was more.
    pub solo: f64,
    /// Trials per second of core time held beside the service, over the same alone; `None` where no
    /// account of core time is kept.
    pub speed: Option<f64>,
}

impl BatchRates {
    /// Returns the rate beside the service over the rate alone.
    pub fn share(self) -> f64 {
        self.beside / self.solo
    }
}

/// What reads the account of core time; `None` where none is kept.
pub(crate) type Meter<'a> = Option<&'a dyn Fn() -> anyhow::Result<Snapshot>>;

/// A batch job's rate over an interval, and where the cores' time went in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interval {
    /// Trials per second; 0 without a batch job.
    rate: f64,
    pub(crate) account: Vec<Shares>,
    /// The same of each half; `None` unless it was looked at in the middle.
    pub(crate) halves: Option<[Vec<Shares>; 2]>,
}

impl Interval {
    /// Returns the trials per second of core time held; `None` without an account.
    fn rate_held(&self) -> Option<f64> {
        let held = account::held_by_batch(&self.account);
        (held > 0.0).then(|| self.rate / held)
    }
}

/// A batch job and its rate alone before a point.
pub(crate) struct Companion {
    pub(crate) job: Batch,
    before: Interval,
}

impl Companion {
    /// Measures a job that has just started.
    pub(crate) fn new(testbed: &Testbed, mut job: Batch, meter: Meter<'_>) -> anyhow::Result<Self> {
        let before = alone(testbed, &mut job, meter)?;
        Ok(Self { job, before })
    }

    /// Measures the job alone again, after the service has ended; returns its rates, that of
    /// `beside` among them.
    pub(crate) fn rates(
        &mut self,
        testbed: &Testbed,
        beside: &Interval,
        meter: Meter<'_>,
    ) -> anyhow::Result<BatchRates> {
        let after = alone(testbed, &mut self.job, meter)?;
        let alone = if self.before.rate > after.rate { &self.before } else { &after };
        let speed = beside.rate_held().zip(alone.rate_held()).map(|(beside, alone)| beside / alone);
        Ok(BatchRates { beside: beside.rate, solo: alone.rate, speed })
    }
}

/// Measures a batch job that has its cores to itself: the median of several intervals, so that a
/// stall in one of them does not make every share of this rate too large. Intervals in which other
/// programs had the cores are repeated.
///
/// Runs right before and right after each point, with the same process, and the larger rate counts:
/// one virtual machine ran 660,000 trials a second, and 920,000 some seconds later; a share of the
/// slower rate could exceed 1.
fn alone(testbed: &Testbed, batch: &mut Batch, meter: Meter<'_>) -> anyhow::Result<Interval> {
    let length = testbed.solo / SOLO_INTERVALS;
    let give_up = Instant::now() + START_TIMEOUT;
    let mut intervals = Vec::new();
    while intervals.len() < SOLO_INTERVALS as usize {
        let from = Instant::now();
        let part = Part { from, to: from + length, in_halves: false };
        let interval = measure(testbed, Some(&mut *batch), meter, part)?;
        if interval.rate > 0.0 {
            intervals.push(interval);
        }
        anyhow::ensure!(
            Instant::now() < give_up,
            "the batch job gets no core even alone: the machine is overloaded"
        );
    }
    intervals.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    Ok(intervals.swap_remove(SOLO_INTERVALS as usize / 2))
}

/// The time that is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    /// Whether the account is also read in the middle.
    pub(crate) in_halves: bool,
}

/// Measures a batch job, if there is one, between two points in time; this thread sleeps meanwhile.
pub(crate) fn measure(
    testbed: &Testbed,
    mut batch: Option<&mut Batch>,
    meter: Meter<'_>,
    Part { from, to, in_halves }: Part,
) -> anyhow::Result<Interval> {
    let account = || meter.map(|read| read()).transpose();
    let mut look = || {
        let progress = batch.as_mut().map(|batch| batch.progress(&testbed.interrupt)).transpose()?;
        anyhow::Ok((progress, account()?))
    };
    testbed.interrupt.sleep_until(from)?;
    let first = look()?;
    let mut middle = None;
    if in_halves {
        testbed.interrupt.sleep_until(from + (to - from) / 2)?;
        middle = account()?;
    }
    testbed.interrupt.sleep_until(to)?;
    let last = look()?;
    let rate = last.0.zip(first.0).map_or(0.0, |(last, first)| last.rate_since(first));
    let Some((first, last)) = first.1.zip(last.1) else {
        return Ok(Interval { rate, ..Interval::default() });
    };
    let halves = middle.map(|middle| [account::between(&first, &middle), account::between(&middle, &last)]);
    Ok(Interval { rate, account: account::between(&first, &last), halves })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_the_rate_over_the_time_held() {
        let account = vec![Shares { batch_threads: 0.3, batch_runtime: 0.2, free: 0.5, ..Shares::default() }];
        let held = Interval { rate: 200.0, account, halves: None }.rate_held().expect("an account");
        assert!((held - 400.0).abs() < 1e-6, "{held}");
        assert_eq!(Interval { rate: 200.0, ..Interval::default() }.rate_held(), None);
    }

    #[test]
    fn a_share_is_one_of_the_rate_alone() {
        assert_eq!(BatchRates { beside: 450.0, solo: 500.0, speed: None }.share(), 0.9);
    }
}
