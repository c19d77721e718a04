//! Programs that run at raw tracepoints.

use core::ffi::c_int;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::CString;

use super::{LoadError, PROG_TEST_RUN, TestRun, bpf, descriptor, load};

const RAW_TRACEPOINT_OPEN: c_int = 17;
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// `BPF_F_TEST_RUN_ON_CPU`.
const ON_CORE: u32 = 1;

/// Loads a program for raw tracepoints.
///
/// # Errors
/// [`LoadError`]: with [`Errno::PERM`] without `CAP_BPF` and `CAP_PERFMON`, with the end of the
/// verifier's log if the program is wrong.
pub fn load_raw(code: &[u64]) -> Result<OwnedFd, LoadError> {
    load(PROG_TYPE_RAW_TRACEPOINT, code)
}

/// Runs `program` whenever any core passes tracepoint `name`, until the result is dropped.
///
/// # Errors
/// [`Errno::NOENT`] if the kernel has no such tracepoint, [`Errno::INVAL`] if it has fewer
/// arguments than the program reads.
pub fn attach(name: &str, program: impl AsFd) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Attributes {
        name: u64,
        program: u32,
        pad: u32,
    }
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let program = program.as_fd().as_raw_fd() as u32;
    bpf(RAW_TRACEPOINT_OPEN, &mut Attributes { name: name.as_ptr() as u64, program, pad: 0 }).map(descriptor)
}

/// Runs `program` once on a core, in an interrupt of whatever runs there, as at a tracepoint with
/// these arguments. Returns what the program does.
///
/// # Errors
/// The kernel's error: the core is offline.
pub fn run_on(core: u32, program: impl AsFd, arguments: &[u64]) -> Result<u32, Errno> {
    let mut run = TestRun {
        program: program.as_fd().as_raw_fd() as u32,
        context_in_size: size_of_val(arguments) as u32,
        context_in: arguments.as_ptr() as u64,
        flags: ON_CORE,
        core,
        ..TestRun::default()
    };
    bpf(PROG_TEST_RUN, &mut run)?;
    Ok(run.verdict)
}
