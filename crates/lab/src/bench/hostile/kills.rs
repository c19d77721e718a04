//! Programs that are killed in a row beside the service.
//!
//! Owns the kills: each program is registered, busy on a core that the service leaves idle, and
//! killed (SIGKILL) as soon as it is ready. All that it had must come back, for the next one needs
//! it: its name at once, its address, memory and core after a while.

use serde::Serialize;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tailwater_iokernel_testing::RawSpec;
use tailwater_iokernel_testing::child::{RawChild, Role};
use tailwater_loadgen::Plan;
use tailwater_testbed::note;

use super::{Latency, MOST_P50, latency};
use crate::bench::spin::Target;

/// Number of programs.
const TIMES: u32 = 1_000;

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Kills {
    times: u32,
    before: Latency,
    /// While they were killed: the worst percentiles of all measurements in a row, and what was
    /// lost in all of them.
    during: Latency,
    /// After the last.
    after: Latency,
    seconds: f64,
    harmless: bool,
}

impl Kills {
    pub(super) fn describe(&self) -> String {
        let us = |latency: &Latency| {
            let p50 = latency.p50_us.map_or_else(|| "none".to_owned(), |us| format!("{us:.1}"));
            format!("p50 {p50} us, {} lost", latency.lost)
        };
        let (times, seconds) = (self.times, self.seconds);
        let [before, during, after] = [&self.before, &self.during, &self.after].map(us);
        let verdict = if self.harmless { "Harmless" } else { "NOT harmless" };
        format!(
            "{times} programs registered and killed in {seconds:.0} s. Before: {before}; meanwhile, at worst: \
             {during}; afterwards: {after}. {verdict}: the median meanwhile at most {MOST_P50} times that before, \
             and no request lost.\n"
        )
    }
}

/// Measures the service before, while and after programs are killed.
pub(super) fn measure(target: &Target<'_>, plan: &Plan) -> anyhow::Result<Kills> {
    let before = latency(target, plan)?;
    let meanwhile = &Plan { warm_up_ns: 0, ..plan.clone() };
    let (socket, stop) = (target.socket.as_str(), AtomicBool::new(false));
    let (during, seconds) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let killer = scope.spawn(|| kill_all(socket, &stop));
        let mut during = latency(target, meanwhile);
        while !killer.is_finished()
            && let Ok(so_far) = during
        {
            during = latency(target, meanwhile).map(|later| worst(so_far, later));
        }
        if during.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let seconds =
            killer.join().map_err(|_| anyhow::anyhow!("the thread that kills programs panicked"))?;
        Ok((during?, seconds?))
    })?;
    let after = latency(target, plan)?;
    note!("{TIMES} programs killed in {seconds:.1} s");
    let harmless = during.is_harmless_after(before);
    Ok(Kills { times: TIMES, before, during, after, seconds, harmless })
}

/// Returns the larger of each percentile, and the sum of what was lost.
fn worst(a: Latency, b: Latency) -> Latency {
    let larger = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.max(b));
    Latency {
        p50_us: larger(a.p50_us, b.p50_us),
        p99_us: larger(a.p99_us, b.p99_us),
        win_p999_us: larger(a.win_p999_us, b.win_p999_us),
        lost: a.lost + b.lost,
    }
}

/// Returns how many seconds it took.
fn kill_all(socket: &str, stop: &AtomicBool) -> anyhow::Result<f64> {
    let began = Instant::now();
    let spec = RawSpec::new("victim").best_effort();
    for _ in 0..TIMES {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let victim = RawChild::start(Command::new("/proc/self/exe"), socket, &spec, Role::Burn);
        victim.map_err(anyhow::Error::msg)?.kill();
    }
    Ok(began.elapsed().as_secs_f64())
}
