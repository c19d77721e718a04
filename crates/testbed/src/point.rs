//! One point of a program, wherever it runs.

use std::sync::Arc;

use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;

use crate::bed::Testbed;
use crate::handoffs::HandoffRecord;
use crate::measured::Measured;
use crate::program::{Host, Program};
use crate::{on_linux, on_tailwater};

/// Measures one point of any program, after it has stored what its protocol reads.
///
/// # Errors
/// If a process does not start or ends, if the plan cannot be run, or on a signal.
pub fn point(
    program: &Program,
    testbed: &Testbed,
    plan: &Plan,
    seed: u64,
    handoffs: &mut HandoffRecord,
) -> anyhow::Result<Measured> {
    let load = Load { protocol: Arc::clone(&program.protocol), seed, preload: true };
    match program.host {
        Host::Tailwater => {
            let setting = on_tailwater::Setting { batch: program.batch, ..Default::default() };
            on_tailwater::measure(testbed, program, plan, &load, setting, handoffs)
        }
        Host::Linux => on_linux::measure_program(testbed, program, plan, &load),
    }
}
