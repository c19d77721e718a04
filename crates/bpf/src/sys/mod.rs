//! eBPF programs and maps through bpf(2), without a library.
//!
//! Owns the layouts of the few requests that AF_XDP, the account of a core and the events of a core
//! need (linux/bpf.h, `union bpf_attr`), and all `unsafe` code of this crate. All results are
//! descriptors: programs, maps and attachments end with the process that made them, however it
//! ends. [`map`] has the maps that this process reads, [`ring`] the rings, [`tracepoint`] the
//! programs that run at tracepoints.

#![allow(unsafe_code)]

pub mod map;
pub mod ring;
pub mod tracepoint;

use core::ffi::{c_int, c_long};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use tailwater_shm::last_error;

use crate::disassembly::disassemble;

const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const PROG_LOAD: c_int = 5;
const PROG_TEST_RUN: c_int = 10;
const PROG_GET_FD_BY_ID: c_int = 13;
const OBJ_GET_INFO_BY_FD: c_int = 15;
const LINK_CREATE: c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// The name of the programs, by which `bpftool prog` shows them, and other IOKernels with
/// `CAP_SYS_ADMIN`.
const NAME: [u8; 16] = *b"tailwater\0\0\0\0\0\0\0";
/// Bytes kept of the verifier's log about a program it refuses.
const LOG_BYTES: usize = 16 * 1024;

/// Where in an interface's receive path a program runs (linux/if_link.h, `XDP_FLAGS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// After Linux has made its own packet of the frame; works with any driver.
    Generic = 1 << 1,
    /// In the driver.
    Driver = 1 << 2,
}

impl Hook {
    /// Returns the word of ip-link(8) for it, as in `ip link set dev eth0 xdp off`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Generic => "xdpgeneric",
            Self::Driver => "xdp",
        }
    }
}

/// A program was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{errno}{}{log}", if log.is_empty() { "" } else { "; the verifier says: " })]
pub struct LoadError {
    /// Linux's error.
    pub errno: Errno,
    /// The end of the verifier's log, on one line; empty if the verifier did not run.
    pub log: String,
    /// The instructions of the program, on one line; not part of the message.
    pub program: String,
}

fn bpf<T>(command: c_int, attributes: &mut T) -> Result<c_long, Errno> {
    // SAFETY: every caller passes the attributes of its command as a `repr(C)` structure without
    // padding, with its size; pointers in it point to memory that outlives the call, with the
    // length beside them.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, core::ptr::from_mut(attributes), size_of::<T>() as u32)
    };
    if result >= 0 { Ok(result) } else { Err(last_error()) }
}

fn descriptor(number: c_long) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us; no other code knows its number.
    unsafe { OwnedFd::from_raw_fd(number as c_int) }
}

/// Returns a map from queue number to AF_XDP socket.
///
/// # Errors
/// [`Errno::PERM`] without `CAP_BPF` or `CAP_SYS_ADMIN`; [`Errno::INVAL`] if this kernel has no
/// AF_XDP.
pub fn socket_map(queues: u32) -> Result<OwnedFd, Errno> {
    make_map(MAP_TYPE_XSKMAP, size_of::<u32>(), size_of::<u32>(), queues, 0)
}

fn make_map(
    map_type: u32,
    key_size: usize,
    value_size: usize,
    max_entries: u32,
    flags: u32,
) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
    }
    let (key_size, value_size) = (key_size as u32, value_size as u32);
    bpf(MAP_CREATE, &mut Attributes { map_type, key_size, value_size, max_entries, flags }).map(descriptor)
}

/// `union bpf_attr` of the requests that concern one element of a map.
#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    /// The value, or the next key.
    value: u64,
    flags: u64,
}

impl Element {
    fn new<K, V>(map: impl AsFd, key: *const K, value: *const V) -> Self {
        Self { map: map.as_fd().as_raw_fd() as u32, pad: 0, key: key as u64, value: value as u64, flags: 0 }
    }
}

/// Enters `socket` into the map as the receiver of queue `queue`.
///
/// # Errors
/// The kernel's error: the socket is not bound, or the map is smaller.
pub fn set_socket(map: impl AsFd, queue: u32, socket: impl AsFd) -> Result<(), Errno> {
    let value = socket.as_fd().as_raw_fd() as u32;
    bpf(MAP_UPDATE_ELEM, &mut Element::new(map, &raw const queue, &raw const value)).map(drop)
}

/// Loads an XDP program.
///
/// # Errors
/// [`LoadError`], with the end of the verifier's log if the program is wrong.
pub fn load_xdp(code: &[u64]) -> Result<OwnedFd, LoadError> {
    load(PROG_TYPE_XDP, code)
}

fn load(program_type: u32, code: &[u64]) -> Result<OwnedFd, LoadError> {
    #[repr(C)]
    struct Attributes {
        program_type: u32,
        count: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
    }
    let mut log = Vec::new();
    let load = |log: &mut Vec<u8>| {
        let mut attributes = Attributes {
            program_type,
            count: code.len() as u32,
            code: code.as_ptr() as u64,
            license: c"Apache-2.0".as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            kernel_version: 0,
            flags: 0,
            name: NAME,
        };
        bpf(PROG_LOAD, &mut attributes).map(descriptor)
    };
    // The first attempt has no log: a valid program must not fail because its log is long.
    load(&mut log).or_else(|errno| {
        if matches!(errno, Errno::PERM | Errno::NOSYS) {
            return Err(LoadError { errno, log: String::new(), program: String::new() });
        }
        log.resize(LOG_BYTES, 0);
        load(&mut log).map_err(|errno| LoadError {
            errno,
            log: log_tail(&log),
            program: disassemble(code).join(" | "),
        })
    })
}

/// Returns the end of a NUL-terminated log, as one line.
fn log_tail(log: &[u8]) -> String {
    let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// Returns the first words of what the kernel says about a map or a program (linux/bpf.h, `struct
/// bpf_map_info` and `struct bpf_prog_info`); those that it does not say are zero.
fn info(object: impl AsFd) -> Result<[u32; 20], Errno> {
    #[repr(C)]
    struct Attributes {
        descriptor: u32,
        len: u32,
        info: u64,
    }
    let mut info = [0u32; 20];
    let descriptor = object.as_fd().as_raw_fd() as u32;
    let (len, address) = (size_of_val(&info) as u32, &raw mut info as u64);
    bpf(OBJ_GET_INFO_BY_FD, &mut Attributes { descriptor, len, info: address })?;
    Ok(info)
}

/// Returns the number of a program, which no other one has until the machine starts again.
///
/// # Errors
/// The kernel's error.
pub fn program_number(program: impl AsFd) -> Result<u32, Errno> {
    // The type comes first.
    info(program).map(|[_, number, ..]| number)
}

/// Returns the name of the program of a number; empty if it was given none.
///
/// # Errors
/// The kernel's error: [`Errno::PERM`] without `CAP_SYS_ADMIN`, [`Errno::NOENT`] if it is gone.
pub fn program_name(number: u32) -> Result<String, Errno> {
    #[repr(C)]
    struct Attributes {
        number: u32,
        next: u32,
        flags: u32,
    }
    let program = bpf(PROG_GET_FD_BY_ID, &mut Attributes { number, next: 0, flags: 0 }).map(descriptor)?;
    // The last of these words: 16 bytes that end with a zero.
    let name: Vec<u8> = info(program)?[16..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(name.split(|&byte| byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default().into_owned())
}

/// Runs `program` on the frames that interface `index` receives, until the result is dropped.
///
/// # Errors
/// [`Errno::BUSY`] if another program is attached, [`Errno::OPNOTSUPP`] if the driver has no such
/// hook.
pub fn attach_xdp(program: impl AsFd, index: u32, hook: Hook) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
    }
    let mut attributes = Attributes {
        program: program.as_fd().as_raw_fd() as u32,
        interface: index,
        attach_type: ATTACH_TYPE_XDP,
        flags: hook as u32,
    };
    bpf(LINK_CREATE, &mut attributes).map(descriptor)
}

/// `union bpf_attr` of a run on request.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    verdict: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_in_size: u32,
    context_out_size: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    core: u32,
}

/// Runs a program in the kernel once on `frame`, as if received on queue 0 of the loopback
/// interface; returns its verdict.
///
/// # Errors
/// The kernel's error; [`Errno::PERM`] without the capability.
pub fn test_run(program: impl AsFd, frame: &[u8]) -> Result<u32, Errno> {
    let mut run = TestRun {
        program: program.as_fd().as_raw_fd() as u32,
        size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    bpf(PROG_TEST_RUN, &mut run)?;
    Ok(run.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_comes_with_the_verifiers_words() {
        // `exit` alone: register 0 was never written.
        match load_xdp(&[0x95]) {
            Err(error) if matches!(error.errno, Errno::PERM | Errno::NOSYS) => {
                eprintln!("skipped: no program can be loaded here ({error})");
            }
            Err(error) => {
                assert!(error.to_string().contains("R0 !read_ok"), "{error}");
                assert!(error.program.contains("0: exit"), "{error:?}");
            }
            Ok(_) => panic!("a program without a verdict was loaded"),
        }
    }
}
