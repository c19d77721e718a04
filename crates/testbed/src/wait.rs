//! How the Linux server waits for requests, and why: blocked in the kernel, or polling its socket.
//!
//! Owns the choice from a short trial of both. Polling is chosen if it is faster and leaves the
//! batch job about as much, for which the core is shared.

use serde::Serialize;
use tailwater_loadgen::Plan;

use crate::batch::BatchRates;
use crate::bed::Testbed;
use crate::measured::{Measured, latency_or_timeout};
use crate::on_linux::{self, Wait};
use crate::table::number;

/// Largest loss of batch share for which a faster polling server counts as better.
const BATCH_TOLERANCE: f64 = 0.1;

/// Tries both ways under `plan`, a load of `load` percent. `begin` gets the name of each trial
/// before it starts.
///
/// # Errors
/// As [`on_linux::point`].
pub fn choose(
    testbed: &Testbed,
    speed: u64,
    load: f64,
    plan: &Plan,
    seed: u64,
    mut begin: impl FnMut(&str),
) -> anyhow::Result<WaitChoice> {
    let mut trial = |wait: Wait, name: &str| -> anyhow::Result<WaitTrial> {
        begin(name);
        let setting = on_linux::Setting::threads(wait);
        Ok(WaitTrial::new(&on_linux::point(testbed, speed, plan, seed, setting)?))
    };
    let block = trial(Wait::Block, "Linux, blocking sockets")?;
    let busy = trial(Wait::Busy, "Linux, polling sockets")?;
    Ok(WaitChoice::between(load, block, busy))
}

/// How the Linux server waits, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitChoice {
    mode: Wait,
    /// The choice and its reason, as a clause.
    pub why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<WaitTrial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busy: Option<WaitTrial>,
}

/// A short trial of one way to wait.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WaitTrial {
    /// Median latency.
    pub p50_us: f64,
    /// Median of the windows' 99.9th percentiles.
    pub win_p999_us: f64,
    /// Speed of the batch job; 1 is its speed alone.
    pub batch_share: f64,
}

impl WaitTrial {
    /// Returns a measurement as a trial.
    pub fn new(measured: &Measured) -> Self {
        let figures = measured.measurement.report().figures;
        Self {
            p50_us: latency_or_timeout(figures.p50_us),
            win_p999_us: latency_or_timeout(figures.win_p999_us),
            batch_share: measured.batch.map_or(0.0, BatchRates::share),
        }
    }
}

impl WaitChoice {
    /// Returns the choice of an option.
    pub fn given(mode: Wait) -> Self {
        let name = name_of(mode);
        Self { mode, why: format!("{name} sockets, as asked"), block: None, busy: None }
    }

    /// Returns the choice between two trials at `load` percent: see the [module](self).
    pub fn between(load: f64, block: WaitTrial, busy: WaitTrial) -> Self {
        let faster = busy.win_p999_us < block.win_p999_us;
        let leaves = busy.batch_share > block.batch_share - BATCH_TOLERANCE;
        let mode = if faster && leaves { Wait::Busy } else { Wait::Block };
        let of = |t: WaitTrial| {
            format!(
                "p50 {} us, windowed p99.9 {} us, batch {:.2}",
                number(t.p50_us),
                number(t.win_p999_us),
                t.batch_share
            )
        };
        let because = match (mode, faster) {
            (Wait::Busy, _) => "polling is faster and leaves the batch job as much",
            (Wait::Block, true) => "polling is faster but takes the batch job's time",
            (Wait::Block, false) => "polling is not faster",
        };
        let why = format!(
            "{} sockets, because in a trial at {load} % load {because} (blocking: {}; polling: {})",
            name_of(mode),
            of(block),
            of(busy)
        );
        Self { mode, why, block: Some(block), busy: Some(busy) }
    }

    /// Returns the chosen way.
    pub fn mode(&self) -> Wait {
        self.mode
    }
}

fn name_of(mode: Wait) -> &'static str {
    match mode {
        Wait::Block => "blocking",
        Wait::Busy => "polling",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_sockets_must_be_faster_and_leave_time_for_the_batch_job() {
        let trial = |win_p999_us, batch_share| WaitTrial { p50_us: 10.0, win_p999_us, batch_share };
        let block = trial(180.0, 0.5);
        let mode = |busy| WaitChoice::between(30.0, block, busy).mode;
        assert_eq!(mode(trial(100.0, 0.45)), Wait::Busy);
        assert_eq!(mode(trial(100.0, 0.01)), Wait::Block);
        assert_eq!(mode(trial(200.0, 0.5)), Wait::Block);
        assert!(
            WaitChoice::between(30.0, block, trial(100.0, 0.0)).why.contains("takes the batch job's time")
        );
    }
}
