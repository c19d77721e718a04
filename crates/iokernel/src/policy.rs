//! The core-allocation policy that an IOKernel runs, by its name in the configuration.
//!
//! Owns the choice among the policies of `tailwater-sched` and the settings passed to them. The
//! names are those of the simulator; of its policies an IOKernel accepts the ones that are tested
//! on machines ([`PolicyName::is_live`]). The others keep cores for which a program has no work:
//! their kthreads park and are woken for nothing, or starve the programs beside them. IX's loop,
//! which keeps them in the paper, decides here which cores are lent, and lends them by congestion.

use tailwater_sched::Nanos;
use tailwater_sched::alloc::{
    self, Clocks, CongestionDetection, IxConfig, IxControl, Policy, PolicyName, Sequence, Static,
};

use crate::config::Config;

/// Returns whether a policy takes steps, of cores and clock rates.
pub(crate) fn has_steps(policy: PolicyName) -> bool {
    matches!(policy, PolicyName::Ix | PolicyName::IxEnergy)
}

/// Makes the configured policy, for a machine with these clock rates.
///
/// # Panics
/// If the configuration was not checked and its policy is not live.
pub(crate) fn build(config: &Config, clocks: Clocks) -> Box<dyn Policy + Send> {
    let interval = Nanos::from_micros(config.allocation_interval_us);
    let congestion = alloc::Config {
        interval,
        burst_quantum: Nanos::from_micros(config.burst_quantum_us),
        service_quantum: Nanos::from_micros(config.service_quantum_us),
        ..Default::default()
    };
    match config.policy {
        PolicyName::Congestion => Box::new(CongestionDetection::new(congestion)),
        PolicyName::Arbiter => Box::new(CongestionDetection::with_requests(congestion)),
        PolicyName::Ix => ix(config, congestion, clocks, Sequence::Consolidation),
        PolicyName::IxEnergy => ix(config, congestion, clocks, Sequence::Energy),
        PolicyName::Static => Box::new(Static::new(interval)),
        other => unreachable!("policy {other} was refused with the configuration"),
    }
}

fn ix(config: &Config, lending: alloc::Config, clocks: Clocks, sequence: Sequence) -> Box<dyn Policy + Send> {
    let settings = &config.ix;
    Box::new(IxControl::new(IxConfig {
        lending,
        sample: Nanos::from_micros(settings.sample_us),
        period: Nanos::from_millis(settings.period_ms),
        smoothing: Nanos::from_millis(settings.smoothing_ms),
        delay_bound: Nanos::from_micros(settings.delay_bound_us),
        hysteresis: f64::from(settings.hysteresis) / 100.0,
        sequence,
        steps: settings.steps.iter().map(|step| step.resolve(&clocks)).collect(),
        clocks,
    }))
}
