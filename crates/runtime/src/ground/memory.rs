//! Memory for stacks: mappings and guard pages.

use std::io;

/// Size of a page, and of a guard page.
pub const PAGE: usize = 4096;
/// `MADV_GUARD_INSTALL` (Linux 6.13): makes a guard page without splitting the mapping.
const MADV_GUARD_INSTALL: i32 = 102;

/// Why no stack could be made.
///
/// # Examples
/// ```
/// // The error of `thread::Builder::spawn` contains one if there is no memory for the stack.
/// fn is_out_of_stacks(error: &std::io::Error) -> bool {
///     error.get_ref().is_some_and(|inner| inner.is::<tailwater::StackError>())
/// }
/// assert!(!is_out_of_stacks(&std::io::ErrorKind::OutOfMemory.into()));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes of stacks: {source}; lower the stack size or raise the memory limit")]
pub struct StackError {
    bytes: usize,
    source: io::Error,
}

/// Maps `bytes` bytes of zeroed memory, which Linux commits when they are touched.
pub fn map(bytes: usize) -> Result<*mut u8, StackError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new anonymous mapping aliases nothing.
    let base =
        unsafe { libc::mmap(core::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(StackError { bytes, source: io::Error::last_os_error() });
    }
    Ok(base.cast())
}

/// Makes accesses to the page at `low` fault. On a kernel that refuses both ways the stack stays
/// unguarded.
///
/// # Safety
/// The page belongs to a mapping of the caller and holds nothing.
pub unsafe fn guard_page(low: *mut u8) {
    // SAFETY: by the caller's contract nothing is lost with the page.
    unsafe {
        if libc::madvise(low.cast(), PAGE, MADV_GUARD_INSTALL) != 0 {
            libc::mprotect(low.cast(), PAGE, libc::PROT_NONE);
        }
    }
}
