//! The batch job without a service, on Tailwater and on Linux, and what it got.
//!
//! Owns one round of each. The job's speed follows the host's, which changes by a third within
//! seconds on a virtual machine, so its processor time is measured beside its rate: what a system
//! takes from the job shows there.

use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_batch::proc::{thread_ns, threads};
use tailwater_iokernel::Config;
use tailwater_ports::{Attachment, memory};
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::{Batch, Spec};
use tailwater_testbed::embedded::{Embedded, lending};
use tailwater_testbed::on_tailwater::of_other_threads;
use tailwater_testbed::port::GENERATOR_IP;
use tailwater_wire::MacAddr;

/// What the batch job got in a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Got {
    /// Trials per second.
    pub(super) rate: f64,
    /// Processor time, in percent of a core.
    pub(super) core_percent: f64,
}

/// Runs the batch job on an IOKernel without traffic; returns what it got, and the IOKernel's
/// processor time in percent of a core.
pub(super) fn on_tailwater(testbed: &Testbed, share: u8, time: Duration) -> anyhow::Result<(Got, f64)> {
    let station = Attachment::Station { mac: MacAddr([2, 0xc1, 0, 0, 0, 1]), ip: Some(GENERATOR_IP) };
    let (port, _station) = memory::pair("station", station)?;
    let cores = &testbed.cores;
    let socket = format!("@tailwater-neighbour-{}", std::process::id());
    let config = Config { neighbour_share: share, ..lending(&socket, cores.polling, &cores.managed) };
    let _iokernel = Embedded::start(config, Box::new(port), None)?;
    let settings = vec![
        ("TAILWATER_IOKERNEL", socket),
        ("TAILWATER_CLASS", "best-effort".to_owned()),
        ("TAILWATER_KTHREADS", cores.managed.len().to_string()),
    ];
    let arguments = vec!["--report-on-input".to_owned()];
    let spec = Spec { app: "swaptions", arguments, settings, own_session: true, ..Spec::default() };
    let mut batch = Batch::start(&spec, &testbed.interrupt)?;
    let (used, began) = (of_other_threads(), Instant::now());
    let got = measure(testbed, &mut batch, time)?;
    Ok((got, percent(of_other_threads().saturating_sub(used), began)))
}

/// Runs the batch job as an ordinary program with as many threads.
pub(super) fn on_linux(testbed: &Testbed, time: Duration) -> anyhow::Result<Got> {
    let threads = testbed.cores.managed.len().to_string();
    let arguments = ["--linux", "--threads", &threads, "--report-on-input"].map(str::to_owned).to_vec();
    let spec = Spec { app: "swaptions", arguments, own_session: true, ..Spec::default() };
    measure(testbed, &mut Batch::start(&spec, &testbed.interrupt)?, time)
}

fn measure(testbed: &Testbed, batch: &mut Batch, time: Duration) -> anyhow::Result<Got> {
    let (used, began) = (processor_time(batch.id())?, Instant::now());
    let first = batch.progress(&testbed.interrupt)?;
    testbed.interrupt.sleep_until(Instant::now() + time)?;
    let rate = batch.progress(&testbed.interrupt)?.rate_since(first);
    let used = processor_time(batch.id())?.saturating_sub(used);
    Ok(Got { rate, core_percent: percent(used, began) })
}

fn percent(used: Duration, began: Instant) -> f64 {
    100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64()
}

/// Returns the processor time of a process's threads.
fn processor_time(process: u32) -> anyhow::Result<Duration> {
    let process = process.cast_signed();
    let times = threads(process).into_iter().filter_map(|thread| thread_ns(process, thread));
    let ns = times.reduce(|all, one| all + one);
    Ok(Duration::from_nanos(ns.context("Linux keeps no account of the processor time of threads")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::neighbour::load::burn;

    #[test]
    fn processor_time_of_other_threads_counts_those_that_have_ended() {
        let before = of_other_threads();
        std::thread::spawn(|| burn(Duration::from_millis(3))).join().unwrap();
        // The two clocks of a reading are read one after the other.
        assert!(of_other_threads() >= before + Duration::from_millis(2));
    }

    #[test]
    fn processor_time_is_that_of_all_threads_of_a_process() {
        let id = std::process::id();
        if processor_time(id).is_err() {
            return eprintln!("skipped: no /proc/PID/task/*/schedstat");
        }
        std::thread::spawn(move || {
            burn(Duration::from_millis(3));
            assert!(processor_time(id).unwrap() > Duration::ZERO);
        })
        .join()
        .unwrap();
    }
}
