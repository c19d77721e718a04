//! The noise of the host right before and right after an experiment.

use std::sync::Arc;
use std::time::Duration;

use tailwater_testbed::Testbed;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;

use super::envelope::CoreNoise;

/// Measures the noise of all cores that experiments use, at the same time, for `duration`. On a
/// machine with one core nothing is measured, and there is no noise.
pub fn probe(
    machine: &Machine,
    interrupt: &Arc<Interrupt>,
    duration: Duration,
) -> anyhow::Result<Vec<CoreNoise>> {
    let testbed = Testbed::new(machine.usable_cores.clone(), Arc::clone(interrupt), Duration::ZERO);
    let Ok(testbed) = testbed else { return Ok(Vec::new()) };
    let probes = testbed.probe_noise(duration)?;
    Ok(probes.into_iter().map(|(core, probe)| CoreNoise::new(core, probe.gaps.figures())).collect())
}
