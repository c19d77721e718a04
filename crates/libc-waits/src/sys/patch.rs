//! Writes stubs and the jumps to them.
//!
//! Code is changed while the process has one thread: no other one can be in the middle of it. Each
//! library's stubs are a mapping of their own, made executable when it is written; no page is
//! writable and executable at once, but those of the sites, which contain the functions that this
//! needs, for the time it takes to write them.
//!
//! All that can fail comes before the first byte of a library is written.

use crate::sites::{Number, Site};
use crate::stub::{Immovable, MAX_STUB, jump, stub};
use crate::sys::entry::{PAGE, entry, entry_in_place};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::collections::BTreeSet;
use std::ops::Range;

/// Largest distance between a library and its stubs that is tried: half of what a jump reaches.
const REACH: u64 = 1 << 30;
/// Distance of the places that are tried.
const STEP: u64 = 1 << 20;

/// Why memory could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// There is no free memory near the library.
    #[error("there is no free memory within 1 GiB of the library")]
    NoRoom,
    /// An instruction cannot be moved.
    #[error(transparent)]
    Immovable(#[from] Immovable),
    /// The kernel refuses to make memory executable.
    #[error(
        "the kernel refuses executable memory that was written ({0}): a hardening setting such as systemd's \
         MemoryDenyWriteExecute, or SELinux (execmod, execmem), forbids it"
    )]
    Refused(Errno),
}

/// The stubs of one library, which are complete, and the jumps, which are not written yet.
#[derive(Debug)]
pub struct Prepared<'s> {
    sites: &'s [Site],
    jumps: Vec<Vec<u8>>,
    pages: BTreeSet<u64>,
}

/// Writes the stubs of `sites`, all of the library that occupies `library`, and makes the pages of
/// the sites writable.
///
/// # Errors
/// [`PatchError`]; the library is as it was then.
pub fn prepare<'s>(sites: &'s [Site], library: &Range<u64>) -> Result<Prepared<'s>, PatchError> {
    if sites.is_empty() {
        // As in the libpthread.so.0 of glibc 2.34 and later, which older programs load. The kernel
        // maps no empty memory.
        return Ok(Prepared { sites, jumps: Vec::new(), pages: BTreeSet::new() });
    }
    let size = (sites.len() * MAX_STUB).next_multiple_of(PAGE);
    let base = map_near(library, size)?;
    let (mut code, mut jumps, mut pages) = (Vec::with_capacity(size), Vec::new(), BTreeSet::new());
    for site in sites {
        let at = base + code.len() as u64;
        let entry = match site.number {
            Number::Cancellable => entry_in_place as *const () as u64,
            Number::Futex | Number::Any => entry as *const () as u64,
        };
        code.extend(stub(site, at, entry)?);
        code.resize(code.len().next_multiple_of(16), 0xcc);
        jumps.push(jump(site, at)?);
        pages.extend([page_of(site.start()), page_of(site.syscall - 1)]);
    }
    // SAFETY: the new mapping has `size` bytes, which the stubs do not exceed, and nothing else
    // uses it.
    unsafe {
        core::ptr::copy_nonoverlapping(code.as_ptr(), base as *mut u8, code.len());
        let executable = MprotectFlags::READ | MprotectFlags::EXEC;
        if let Err(error) = mprotect(base as *mut _, size, executable) {
            let _ = munmap(base as *mut _, size);
            return Err(PatchError::Refused(error));
        }
    }
    let prepared = Prepared { sites, jumps, pages };
    let writable = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
    prepared.protect(writable).map_err(PatchError::Refused)?;
    Ok(prepared)
}

/// Returns the address of the page of `address`.
fn page_of(address: u64) -> u64 {
    address & !(PAGE as u64 - 1)
}

/// Maps `size` bytes near a library.
fn map_near(library: &Range<u64>, size: usize) -> Result<u64, PatchError> {
    let above = (library.end.next_multiple_of(PAGE as u64)..library.end + REACH).step_by(STEP as usize);
    let lowest = library.start.saturating_sub(REACH);
    let below = (1..REACH / STEP).map(|n| page_of(library.start.saturating_sub(n * STEP)));
    let below = below.take_while(|&at| at > lowest);
    for at in above.chain(below) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let mapped = unsafe { mmap_anonymous(at as *mut _, size, ProtFlags::READ | ProtFlags::WRITE, flags) };
        match mapped {
            Ok(base) if base as u64 == at => return Ok(at),
            // A kernel before 4.17 takes the address as a hint.
            // SAFETY: the new mapping is not used.
            Ok(base) => drop(unsafe { munmap(base, size) }),
            Err(_) => {}
        }
    }
    Err(PatchError::NoRoom)
}

impl Prepared<'_> {
    /// Writes the jumps.
    ///
    /// # Safety
    /// 1. No other thread runs code of the library.
    /// 2. The sites were found in its memory as it is now.
    /// 3. [`entry::prepare`](crate::sys::entry::prepare) has succeeded.
    pub unsafe fn write(self) {
        for (site, jump) in self.sites.iter().zip(&self.jumps) {
            // SAFETY: `prepare` has made the pages writable; the bytes from the site's beginning to
            // its `syscall` are replaced by as many. Nothing executes them meanwhile: by point 1,
            // and because this loop calls no function with a site (memcpy makes no system call).
            unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), site.start() as *mut u8, jump.len()) };
        }
    }

    fn protect(&self, flags: MprotectFlags) -> Result<(), Errno> {
        for &at in &self.pages {
            // SAFETY: pages of code that stay readable and executable.
            unsafe { mprotect(at as *mut _, PAGE, flags) }?;
        }
        Ok(())
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // Refused or not, the code is complete, or as it was.
        let _ = self.protect(MprotectFlags::READ | MprotectFlags::EXEC);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_sites_needs_no_memory() {
        // There is none to map near it.
        let nowhere = 0..PAGE as u64;
        assert!(prepare(&[], &nowhere).is_ok());
    }
}
