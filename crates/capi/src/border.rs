//! What all functions share: calls of C's functions, errors, durations.
//!
//! # Calls
//! A function of C is called through a piece of assembly that has no unwind information. The search
//! for a handler of a C++ exception ends there, and `__cxa_throw` calls `std::terminate` with the
//! throwing frames still on the stack, as for an exception that leaves a `std::thread`. Called
//! directly, an exception would reach frames of Rust, which may not be unwound by it.

use core::ffi::{c_int, c_void};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// The value of a time in nanoseconds that never comes.
pub const FOREVER: u64 = u64::MAX;

core::arch::global_asm!(
    ".pushsection .text.tailwater_capi_call,\"ax\",@progbits",
    ".hidden tailwater_capi_call",
    ".globl tailwater_capi_call",
    ".type tailwater_capi_call,@function",
    "tailwater_capi_call:",
    "push rbp",
    "mov rbp, rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov rcx, r8",
    "call rax",
    "pop rbp",
    "ret",
    ".size tailwater_capi_call, . - tailwater_capi_call",
    ".popsection",
);

unsafe extern "C" {
    fn tailwater_capi_call(function: usize, a: usize, b: usize, c: usize, d: usize) -> usize;
}

/// Calls a function of C with up to four words, and returns its result.
///
/// # Safety
/// 1. `function` is the address of a function whose parameters are at most so many integers and
///    pointers, and whose result is one, or nothing.
/// 2. Its contract permits the call.
pub unsafe fn call(function: usize, arguments: [usize; 4]) -> usize {
    let [a, b, c, d] = arguments;
    // SAFETY: by the caller's contract; the assembly passes the words on in the registers of the
    // System V ABI, with an aligned stack.
    unsafe { tailwater_capi_call(function, a, b, c, d) }
}

/// A function of C with one argument, and that argument: what a thread starts with.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    function: usize,
    argument: *mut c_void,
}

// SAFETY: C passes both for another thread; what the function does with the argument is its own.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

/// A function of C that returns an address.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
/// A function of C that returns nothing.
pub type Procedure = unsafe extern "C" fn(*mut c_void);

impl Call {
    /// Returns a call of `function`.
    pub fn function(function: Function, argument: *mut c_void) -> Self {
        Self { function: function as usize, argument }
    }

    /// Returns a call of `procedure`, whose result is no value.
    pub fn procedure(procedure: Procedure, argument: *mut c_void) -> Self {
        Self { function: procedure as usize, argument }
    }

    /// Makes the call.
    pub fn make(self) -> Address {
        // SAFETY: 1. by the types of the constructors. 2. C asked for this call.
        Address(unsafe { call(self.function, [self.argument as usize, 0, 0, 0]) } as *mut c_void)
    }
}

/// An address of C, which Rust passes on and never uses.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub *mut c_void);

// SAFETY: it is a number here.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Largest size of a structure of C: that of a much later version.
const MAX_SIZE: usize = 4096;

/// Returns a copy of a structure whose first field is its size, with zeros for fields that its
/// program does not know of, and the error number of one that is not valid: `EINVAL` for an
/// impossible size, `E2BIG` for fields that this library does not know. A null pointer is all
/// zeros.
///
/// # Safety
/// 1. `from` is null, or has as many bytes as its first field says.
/// 2. Any bytes are a `T`.
pub unsafe fn sized<T: Copy>(from: *const T) -> (T, Result<(), c_int>) {
    // SAFETY: point 2.
    let mut copy: T = unsafe { core::mem::zeroed() };
    if from.is_null() {
        return (copy, Ok(()));
    }
    // SAFETY: point 1.
    let size = unsafe { from.cast::<usize>().read() };
    if !(size_of::<usize>()..=MAX_SIZE).contains(&size) {
        return (copy, Err(libc::EINVAL));
    }
    // SAFETY: point 1.
    let bytes = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), size) };
    let known = size_of::<T>();
    // SAFETY: so many bytes lie in both.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut copy).cast::<u8>(), size.min(known));
    }
    let is_known = bytes.iter().skip(known).all(|&byte| byte == 0);
    (copy, if is_known { Ok(()) } else { Err(libc::E2BIG) })
}

/// Returns a duration; `None` for [`FOREVER`].
pub fn limit(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != FOREVER).then(|| Duration::from_nanos(nanoseconds))
}

/// Returns 0, or a negative `errno`.
pub fn status(result: io::Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => -number(&error),
    }
}

/// Returns the `errno` of an error.
pub fn number(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        ErrorKind::ConnectionReset => libc::ECONNRESET,
        ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::NetworkDown => libc::ENETDOWN,
        ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
        ErrorKind::NotConnected => libc::ENOTCONN,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::QuotaExceeded => libc::ENOBUFS,
        ErrorKind::ResourceBusy => libc::EBUSY,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Unsupported => libc::ENOTSUP,
        ErrorKind::WouldBlock => libc::EAGAIN,
        _ => libc::EIO,
    })
}

/// Sets the calling thread's `errno`.
pub fn set_errno(number: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = number };
}

/// Returns the calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Checks at compile time that an object of the runtime fits the storage that C has for it.
#[macro_export]
macro_rules! fits {
    ($inner:ty, $storage:ty) => {
        const _: () = assert!(
            size_of::<$inner>() <= size_of::<$storage>() && align_of::<$inner>() <= align_of::<$storage>(),
            "the storage in tailwater.h is too small"
        );
    };
}
