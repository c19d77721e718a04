//! The batch job beside a service: its rate alone, its rate beside the service, and the ratio of
//! the two.

use std::time::Instant;

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
}

impl BatchRates {
    /// Returns the rate beside the service over the rate alone.
    pub fn share(self) -> f64 {
        self.beside / self.solo
    }
}

/// A batch job and its rate alone before a point.
pub(crate) struct Companion {
    pub(crate) job: Batch,
    before: f64,
}

impl Companion {
    /// Measures a job that has just started.
    pub(crate) fn new(testbed: &Testbed, mut job: Batch) -> anyhow::Result<Self> {
        let before = solo_rate(testbed, &mut job)?;
        Ok(Self { job, before })
    }

    /// Measures the job alone again, after the service has ended; returns its rates, `beside` among
    /// them.
    pub(crate) fn rates(&mut self, testbed: &Testbed, beside: f64) -> anyhow::Result<BatchRates> {
        let after = solo_rate(testbed, &mut self.job)?;
        Ok(BatchRates { beside, solo: self.before.max(after) })
    }
}

/// Measures a batch job that has its cores to itself: the median of several intervals, so that a
/// stall in one of them does not make every share of this rate too large. Intervals in which other
/// programs had the cores are repeated.
///
/// Runs right before and right after each point, with the same process, and the larger rate counts:
/// one virtual machine ran 660,000 trials a second, and 920,000 some seconds later; a share of the
/// slower rate could exceed 1.
fn solo_rate(testbed: &Testbed, batch: &mut Batch) -> anyhow::Result<f64> {
    let interval = testbed.solo / SOLO_INTERVALS;
    let give_up = Instant::now() + START_TIMEOUT;
    let mut rates = Vec::new();
    while rates.len() < SOLO_INTERVALS as usize {
        let from = Instant::now();
        let rate = batch_rate(testbed, batch, from, from + interval)?;
        if rate > 0.0 {
            rates.push(rate);
        }
        anyhow::ensure!(
            Instant::now() < give_up,
            "the batch job gets no core even alone: the machine is overloaded"
        );
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

/// Measures a batch job between two points in time; this thread sleeps meanwhile.
fn batch_rate(testbed: &Testbed, batch: &mut Batch, from: Instant, to: Instant) -> anyhow::Result<f64> {
    testbed.interrupt.sleep_until(from)?;
    let first = batch.progress(&testbed.interrupt)?;
    testbed.interrupt.sleep_until(to)?;
    let last = batch.progress(&testbed.interrupt)?;
    Ok(last.rate_since(first))
}

/// Returns the batch job's rate over the counted part; without a batch job, sleeps until its end.
pub(crate) fn beside(
    testbed: &Testbed,
    batch: Option<&mut Batch>,
    (from, to): (Instant, Instant),
) -> anyhow::Result<Option<f64>> {
    match batch {
        Some(batch) => batch_rate(testbed, batch, from, to).map(Some),
        None => Ok(testbed.interrupt.sleep_until(to).map(|()| None)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_of_the_rate_alone() {
        assert_eq!(BatchRates { beside: 450.0, solo: 500.0 }.share(), 0.9);
    }
}
