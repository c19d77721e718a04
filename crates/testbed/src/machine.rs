//! A description of the machine, for every report of numbers measured on it.
//!
//! Owns the reading of `/proc` and of the clock's frequency. Unavailable values are `unknown`,
//! never guessed.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;
use tailwater_shm::Clock;

/// The machine that a result was measured on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// The model name in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Number of cores of the machine.
    pub cores: usize,
    /// Cores that this process may use.
    pub usable_cores: Vec<usize>,
    /// Whether the processor reports a hypervisor.
    pub virtual_machine: bool,
    /// Kernel release.
    pub kernel: String,
    /// Mebibytes of memory.
    pub memory_mib: u64,
    /// Frequency of the time-stamp counter in Hz.
    pub tsc_hz: u64,
    /// Whether Linux ranks threads within their session only (`sched_autogroup_enabled`).
    pub autogroup: bool,
}

impl Machine {
    /// Describes this machine; measuring the clock takes 50 ms.
    pub fn describe() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            cpuinfo.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'))
        };
        let memory = read("/proc/meminfo");
        let memory_kib = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        Self {
            cpu_model: field("model name").map_or("unknown", |(_, model)| model.trim()).to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            usable_cores: usable_cores(),
            virtual_machine: field("flags").is_some_and(|(_, f)| f.split(' ').any(|f| f == "hypervisor")),
            kernel: or_unknown(read("/proc/sys/kernel/osrelease").trim()),
            memory_mib: memory_kib.unwrap_or(0u64) / 1024,
            tsc_hz: Clock::calibrate(50).hz(),
            autogroup: read("/proc/sys/kernel/sched_autogroup_enabled").trim() == "1",
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} cores{}, {} MiB, Linux {}, TSC {:.3} GHz",
            self.cpu_model,
            self.cores,
            if self.virtual_machine { " (virtual machine)" } else { "" },
            self.memory_mib,
            self.kernel,
            self.tsc_hz as f64 / 1e9
        )
    }
}

/// Cores that the calling thread may use, in order.
pub fn usable_cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Returns cores as programs take them in their arguments: `1,3`.
#[must_use]
pub fn core_list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the set of these cores; numbers beyond Linux's limit are left out.
pub fn cpu_set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    set
}

/// Returns the commit that this program was built from, with `-dirty` when files differed from it;
/// `unknown` without git.
pub fn commit() -> String {
    env!("TAILWATER_COMMIT").to_owned()
}

/// Returns what `--version` prints after the name: version and commit.
pub fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("TAILWATER_COMMIT"), ")")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}
