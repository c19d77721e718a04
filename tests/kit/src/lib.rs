//! What tests of several crates share: bounded waiting, child processes, tests in a process of
//! their own, names, addresses and folders that no other test uses, network namespaces, storms of
//! preempt signals, frames, comparisons of speed, CPU quotas, clients of the key-value store,
//! programs that give up on a busy machine.
//!
//! Every wait has a bound, which grows with what else the machine runs, and ends with a message
//! about what did not happen. No assertion is about a duration. Depends on no other crate of the
//! workspace, so that each of them can depend on it.

use std::path::PathBuf;

mod busy;
pub mod frames;
pub mod futex;
pub mod machine;
pub mod namespace;
mod own;
mod process;
mod program;
mod quota;
pub mod speed;
pub mod store;
mod storm;
pub mod syscalls;
mod unique;
mod wait;

pub use busy::unless_too_busy;
pub use own::{is_rerun, own_process, rerun};
pub use process::{children, is_running, stat, thread_named};
pub use program::{Program, binary, run, text};
pub use quota::CpuQuota;
pub use storm::Storm;
pub use unique::{loopback_address, memory_folder, socket_name};
pub use wait::{PATIENCE, eventually, until};

/// Returns the number of CPUs this process may use, which is less than [`cpu_numbers`] has under a
/// quota.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the numbers of the CPUs this process may use, in ascending order: in a container or
/// under `taskset` they are not the first of the machine.
///
/// # Panics
/// If the kernel does not tell.
pub fn cpu_numbers() -> Vec<u16> {
    let set = rustix::thread::sched_getaffinity(None).expect("an affinity mask");
    (0..rustix::thread::CpuSet::MAX_CPU as u16).filter(|&cpu| set.is_set(cpu.into())).collect()
}

/// Returns whether there are two CPUs, one for an IOKernel to poll on and one for it to lend; if
/// not, prints that the test is skipped.
pub fn has_two_cpus() -> bool {
    has_cpus(2)
}

/// Returns whether there are so many CPUs; if not, prints that the test is skipped.
pub fn has_cpus(needed: usize) -> bool {
    let enough = cpus() >= needed;
    if !enough {
        eprintln!("skipped: needs {needed} CPUs, this process may use {}", cpus());
    }
    enough
}

/// Returns whether `program` is installed, as [`installed`] does.
pub fn is_installed(program: &str, package: &str) -> bool {
    installed(program, package).is_some()
}

/// Returns the path of `program`; if it is not installed, prints that the test is skipped, and the
/// Debian package that has the program.
///
/// Also searches `/usr/sbin`, where servers are and which `PATH` often omits.
pub fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("skipped: no `{program}` (Debian: {package})");
    }
    found
}
