//! What Tailwater needs of a machine, and what this one has.
//!
//! Owns the list of requirements. `tailwater doctor` prints it; commands that measure check it
//! first, so that a machine that lacks something is reported before anything starts.

use std::net::UdpSocket;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tailwater_shm::{Clock, memory};

use crate::machine;

/// Bit of AT_HWCAP2 that says that user mode may write the FS base (Linux,
/// arch/x86/include/uapi/asm/hwcap2.h).
const HWCAP2_FSGSBASE: usize = 1 << 1;

/// Cores that the IOKernel and one service need.
const MIN_CORES: usize = 2;

/// The machine lacks something.
#[derive(Debug)]
pub struct Unsupported(Vec<String>);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this machine lacks what Tailwater needs:")?;
        self.0.iter().try_for_each(|what| write!(f, "\n  {what}"))
    }
}

impl std::error::Error for Unsupported {}

/// One requirement and what was found.
#[derive(Debug)]
pub struct Finding {
    /// What is required.
    pub name: &'static str,
    /// What there is, or what is missing and what to do.
    pub found: Result<String, String>,
}

/// Fails if something is missing.
///
/// # Errors
/// [`Unsupported`] with one line for each.
pub fn check() -> Result<(), Unsupported> {
    judge(&examine())
}

/// Returns the error for what is missing among `findings`.
///
/// # Errors
/// [`Unsupported`] with one line for each.
pub fn judge(findings: &[Finding]) -> Result<(), Unsupported> {
    let missing = |finding: &Finding| {
        let problem = finding.found.as_ref().err()?;
        Some(format!("{}: {problem}", finding.name))
    };
    let missing: Vec<String> = findings.iter().filter_map(missing).collect();
    if missing.is_empty() { Ok(()) } else { Err(Unsupported(missing)) }
}

/// Examines this machine: one finding for each requirement, in a fixed order.
pub fn examine() -> Vec<Finding> {
    let finding = |name, ok: bool, found: String, remedy: &str| Finding {
        name,
        found: if ok { Ok(found) } else { Err(format!("{found}; {remedy}")) },
    };
    let cores = machine::usable_cores();
    let fs_base = rustix::param::linux_hwcap().1 & HWCAP2_FSGSBASE != 0;
    let invariant = Clock::invariant();
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty());
    let proc = std::fs::exists("/proc/self/task").unwrap_or(false);
    let memory_file = memory::create("tailwater-doctor", 4096);
    let socket = UdpSocket::bind("127.0.0.1:0");
    let describe = |result: Result<(), String>| result.err().unwrap_or_else(|| "works".to_owned());
    vec![
        finding(
            "cores",
            cores.len() >= MIN_CORES,
            format!("this process may use {} cores: {}", cores.len(), machine::core_list(&cores)),
            "the IOKernel needs one and a service another: use a larger machine, or widen the affinity (taskset, cpuset)",
        ),
        finding(
            "C library",
            cfg!(target_env = "gnu"),
            if cfg!(target_env = "gnu") { "glibc" } else { "not glibc" }.to_owned(),
            "user threads set up their thread-local storage as glibc does: build for x86_64-unknown-linux-gnu",
        ),
        finding(
            "wrfsbase",
            fs_base,
            if fs_base { "user mode may write the FS base" } else { "user mode may not write the FS base" }
                .to_owned(),
            "needs a processor with FSGSBASE (2012 and later) and Linux 5.9 or later",
        ),
        finding(
            "time-stamp counter",
            invariant,
            if invariant { "invariant" } else { "not invariant" }.to_owned(),
            "the hypervisor hides that the counter runs at one rate: choose another processor model for this machine",
        ),
        finding(
            "/proc",
            proc,
            if proc { "is mounted" } else { "is not mounted" }.to_owned(),
            "the IOKernel identifies the threads of programs there: mount -t proc proc /proc",
        ),
        finding(
            "pidfd_open",
            pidfd.is_ok(),
            describe(pidfd.map(drop).map_err(|e| e.to_string())),
            "needs Linux 5.3 or later, and a container that allows the call",
        ),
        finding(
            "memory files",
            memory_file.is_ok(),
            describe(memory_file.map(drop).map_err(|e| e.to_string())),
            "needs memfd_create with sealing",
        ),
        finding(
            "UDP on 127.0.0.1",
            socket.is_ok(),
            describe(socket.map(drop).map_err(|e| e.to_string())),
            "the demo's Linux baseline needs the loopback device: `ip link set lo up`",
        ),
    ]
}
